"""How each Act is measured: one module an Act, over the arms, audit and journal of :mod:`.common`."""
