"""How an Act fails."""


class RunFailed(RuntimeError):
    """An Act stopped while running; one sentence that names Act, cell and reason."""
