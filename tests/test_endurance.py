"""Five hundred cycles: nothing grows but the attention caches, whose size is known, and no work is put off to later."""
import gc
import io

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache
from specdecode_nb.decoder import Session, generate, stream
from tapping import make
from toy import PROMPT, ScriptedDrafter, clean, hybrid, uno

CYCLES, EVERY = 500, 50


def arrays(caches):
    """Everything that caches hold."""
    return [a for c in caches for a in ((c.keys, c.values) if isinstance(c, KVCache) else c.cache) if a is not None]


def pending(caches) -> int:
    """Operations that are still to be done for what the caches hold: the edges of its graph."""
    text = io.StringIO()
    mx.export_to_dot(text, *arrays(caches))
    return text.getvalue().count("->")


def bytes_beside(caches) -> int:
    gc.collect()
    return mx.get_active_memory() - sum(a.nbytes for c in caches if isinstance(c, KVCache) for a in arrays([c]))


def flat(sizes) -> bool:
    return len(sizes) == CYCLES // EVERY and max(sizes) - min(sizes) < 16384


def test_plain_decoding_of_five_hundred_steps():
    session, sizes = Session(hybrid()), []
    for i, _ in enumerate(stream(hybrid(), PROMPT, None, max_tokens=CYCLES + 1, ignore_eos=True, session=session)):
        if i % EVERY == EVERY - 1:  # never the last step, where no step is held ahead
            sizes.append(bytes_beside(session.cache))
    assert flat(sizes), sizes
    # what the last step leaves to the next one, however many there were
    assert pending(session.cache) == pending(generate(hybrid(), PROMPT, None, max_tokens=3, ignore_eos=True).session.cache)


@pytest.mark.parametrize("arm", ["uno", "lookup", "dflash", "mtp"])
def test_five_hundred_drafted_cycles(arm):
    """Hardly anything of these drafts is accepted, so nearly every cycle undoes rows."""
    target, sizes, graphs = hybrid(), [], []
    drafter = {"uno": uno, "lookup": lambda t: ScriptedDrafter(t, [3] * 2000, len(PROMPT), (0,), "lookup")}.get(arm, lambda t: make(arm, t))(target)
    own, session = drafter.draft, Session(target)

    def draft(cache, history, k, cycle):
        if cycle % EVERY == 0:
            sizes.append(bytes_beside([*cache, *getattr(drafter, "_caches", [])]))
            graphs.append(pending([*cache, *getattr(drafter, "_caches", [])]))
        return own(cache, history, k, cycle)

    drafter.draft = draft
    running = stream(target, PROMPT, drafter, k=2, max_tokens=3 * CYCLES, ignore_eos=True, session=session)
    while len(sizes) < CYCLES // EVERY:
        next(running)
    running.close()
    assert flat(sizes), sizes
    assert graphs == [0] * len(sizes) and clean(session.cache)


def test_the_graph_has_teeth():
    """Work that is put off is seen."""
    caches = hybrid().make_cache()
    hybrid().model(mx.array([PROMPT]), cache=caches)
    mx.eval(arrays(caches))
    assert pending(caches) == 0
    grown = []
    for _ in range(3):
        hybrid().model(mx.array([[5]]), cache=caches)
        grown.append(pending(caches))
    assert 10 < grown[0] < grown[1] < grown[2]
