"""Exact decoding has the same bits with any drafter, where ordinary decoding has not: a model whose sums depend on the width of a forward."""
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from specdecode_nb import acceptance, exact
from specdecode_nb.decoder import Session, generate, stream
from specdecode_nb.drafters import Draft, NgramDrafter, RandomDrafter
from specdecode_nb.errors import BadInput
from specdecode_nb.policies import ByAcceptance, ByEntropy
from specdecode_nb.targets import Target, take_over
from specdecode_nb.transaction import Transaction
from tapping import make
from toy import PROMPT, VOCAB, ByteTokenizer, ScriptedDrafter, bits, clean, equal, hybrid, plain, scripted, stock, uno

N = 21  # more than two cells
DTYPES = ("float32", "bfloat16")


class Moody(nn.Linear):
    """Adds in another order for another number of rows, as a faster BLAS or a GPU does."""

    def __call__(self, x):
        at = x.shape[-1] // 2 - x.shape[-2] % 5
        return x[..., :at] @ self.weight[:, :at].T + x[..., at:] @ self.weight[:, at:].T


@cache
def moody(dtype="float32", eos=(0,)) -> Target:
    model = stock(0, getattr(mx, dtype))
    take_over(model)
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Moody
    return Target(model, ByteTokenizer(eos), "moody", dtype, 4096, VOCAB)


def known(target, n=80):
    return plain(target if target.dtype == "float32" else moody(), n=n)


DRAFTERS = {
    "none": lambda t: None,
    "uno": lambda t: uno(t),
    "uno_published": lambda t: uno(t, keep_seed=False),
    "dflash": lambda t: make("dflash", t),
    "mtp": lambda t: make("mtp", t),
    "ngram": lambda t: NgramDrafter(2),
    "random": lambda t: RandomDrafter(VOCAB),
    "kept": lambda t: ScriptedDrafter(t, known(t), len(PROMPT), (1, 0, 10**6, 2), "kept"),
    "lookup": lambda t: ScriptedDrafter(t, known(t), len(PROMPT), (10**6, 3, 0), "lookup"),
}


def run(target, drafter=None, k=4, n=N, prompt=tuple(PROMPT), **options):
    return generate(target, list(prompt), drafter, k=k, max_tokens=n, ignore_eos=True, **{"exact": True} | options)


@cache
def alone(dtype="float32", n=N):
    """Tokens and states of plain exact decoding."""
    result = run(moody(dtype), n=n)
    return result.tokens, bits(result.session.cache)


def on_the_grid(target, ids, prefill, padding=9, width=exact.CELL):
    """Caches after ``ids``, by hand: whole cells are forwarded, the last one with other ids behind, which are undone."""
    cache = target.make_cache()
    target.model(mx.array([ids[:prefill]]), cache=cache)
    for start in range(prefill, len(ids), width):
        rows = ids[start : start + width]
        with Transaction(cache) as tx:
            target.model(mx.array([rows + [padding] * (width - len(rows))]), cache=cache)
            tx.commit(len(rows))
    return bits(cache)


@pytest.mark.parametrize("k", (1, 3, 8))
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_tokens_and_states_are_those_of_no_drafter(drafter, k):
    target = moody()
    result = run(target, DRAFTERS[drafter](target), k)
    assert result.tokens == alone()[0] and result.session.tokens == PROMPT + result.tokens
    assert clean(result.session.cache) and equal(bits(result.session.cache), alone()[1])


@pytest.mark.parametrize("drafter", ("uno", "dflash", "ngram", "kept", "lookup"))
def test_in_bfloat16_too(drafter):
    target = moody("bfloat16")
    result = run(target, DRAFTERS[drafter](target), 5, scheme="per_token_states")
    assert result.tokens == alone("bfloat16")[0] and equal(bits(result.session.cache), alone("bfloat16")[1])


def read(target, monkeypatch, drafter, **options):
    """Position -> the different bits that the logits of a committed token had, in any forward that chose it."""
    picked, found = [], {}
    pick, accept = acceptance.Greedy.pick, acceptance.Greedy.accept

    def note(rows, position, count):
        for i, row in enumerate(np.array(rows.astype(mx.float32))[:count]):
            found.setdefault(position + i, set()).add(row.tobytes())

    def spy_pick(self, logits, position, *rest):
        picked.append((logits, position))
        if drafter is None and not options.get("exact"):
            note(logits, position, 1)
        return pick(self, logits, position, *rest)

    def spy_accept(self, best, draft, given, shift):
        n, following = accept(self, best, draft, given, shift)
        note(*picked[-1], picked[-1][0].shape[0] - len(best) + n - shift + 1)
        return n, following

    with monkeypatch.context() as patch:
        patch.setattr(acceptance.Greedy, "pick", spy_pick)
        patch.setattr(acceptance.Greedy, "accept", spy_accept)
        result = run(target, drafter, **options)
    return {p: seen for p, seen in found.items() if p < len(result.session.tokens)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_have_the_same_bits_on_the_grid_and_other_bits_without_it(dtype, monkeypatch):
    """The negative control: the same model and drafter, one forward as wide as its draft, differ from plain decoding in most positions."""
    target = moody(dtype)
    script = lambda: DRAFTERS["lookup"](target)  # noqa: E731
    free = [read(target, monkeypatch, d, k=5, exact=False) for d in (None, script())]
    agreed = [p for p in free[0] if free[0][p] == free[1].get(p)]
    assert len(free[0]) == N and len(agreed) < N / 2
    grid = [read(target, monkeypatch, d, k=5) for d in (None, script(), uno(target))]
    assert grid[0] == grid[1] == grid[2] and all(len(seen) == 1 for seen in grid[0].values())
    assert sorted(grid[0]) == list(range(len(PROMPT), len(PROMPT) + N))


@pytest.mark.parametrize("padding", (0, 77))
def test_states_are_those_of_cells_forwarded_by_hand(padding, monkeypatch):
    """Whatever stands behind the committed rows."""
    target, prefill = moody(), len(PROMPT) - 1
    for n in (1, 7, 8, 9, 16, N):  # within a cell, one full, just over
        result = run(target, uno(target), 4, n)
        assert equal(bits(result.session.cache), on_the_grid(target, result.session.tokens[:-1], prefill, padding)), n
        assert result.tokens == alone()[0][:n]
    monkeypatch.setattr(exact, "PADDING", 200)
    assert equal(bits(run(target, uno(target)).session.cache), alone()[1])


@pytest.mark.parametrize("cell", (1, 3, 16))
def test_any_width_of_the_cells(cell, monkeypatch):
    monkeypatch.setattr(exact, "CELL", cell)
    target = moody()
    wanted = run(target)
    for name in ("uno", "dflash", "lookup"):
        result = run(target, DRAFTERS[name](target), k=cell)
        assert result.tokens == wanted.tokens and equal(bits(result.session.cache), bits(wanted.session.cache))
    assert equal(bits(wanted.session.cache), on_the_grid(target, wanted.session.tokens[:-1], len(PROMPT) - 1, width=cell))


def test_the_cell_cuts_a_draft_and_a_full_cell_costs_a_forward_more():
    target = moody()
    offered = []

    class Eager(ScriptedDrafter):
        exact = 0

        def draft(self, cache, history, k, cycle):
            draft = super().draft(cache, history, k, cycle)
            offered.append((len(history), k, len(draft.tokens)))
            return draft

    s = run(target, Eager(target, known(target), len(PROMPT), (10**6,), "lookup"), k=8, n=24).stats
    # all right: 7 behind the seed, and the last row gives the seed of the next cell
    assert s.committed_per_cycle == [8, 8, 8] and s.forwards == 4 and s.forward_tokens == len(PROMPT) - 1 + 3 * 8
    assert [(k, n) for _, k, n in offered] == [(8, 7)] * 3
    s = run(target, Eager(target, known(target), len(PROMPT), (2,), "lookup"), k=4, n=24).stats
    # 3, 3, then one drafted row is left in the cell: 2, and the last row was right
    assert s.committed_per_cycle == [3, 3, 2] * 3 and s.offered_per_cycle == [3, 3, 1] * 3
    s = run(target, Eager(target, known(target), len(PROMPT), (0,), "lookup"), k=8, n=16).stats
    # nothing can be drafted behind a full cell: its forward gives the seed of the next one
    assert s.committed_per_cycle == [1] * 16 and s.offered_per_cycle == [7, 6, 5, 4, 3, 2, 1, 0] * 2
    assert run(target, None, n=16).stats.cycles == 0


def test_the_row_of_an_exact_proposal_is_verified_like_the_others():
    """It was made at another width. Here it is wrong, which ordinary decoding would believe."""
    target = moody()

    class Sure:
        name, exact = "sure", 1

        def draft(self, cache, history, k, cycle):
            return Draft([(known(target)[len(history) - len(PROMPT)] + 1) % VOCAB] * k, exact=1)

    result = run(target, Sure(), 4)
    assert result.tokens == alone()[0] and set(result.stats.accepted_per_cycle) == {0}
    assert run(target, Sure(), 4, exact=False).tokens != alone()[0]


@pytest.mark.parametrize("policy", (ByAcceptance(start=4), ByEntropy((2, 4, 8))))
def test_a_policy_chooses_widths_and_no_bits(policy):
    target = moody()
    result = run(target, DRAFTERS["kept"](target), policy)
    assert result.tokens == alone()[0] and equal(bits(result.session.cache), alone()[1])
    assert len(result.stats.width_per_cycle) == result.stats.cycles > 3


def test_log_probabilities_have_the_same_bits():
    target = moody()
    wanted = run(target, logprobs=True).logprobs
    assert len(wanted) == N and all(run(target, DRAFTERS[d](target), k=5, logprobs=True).logprobs == wanted for d in ("uno", "dflash", "lookup"))
    np.testing.assert_allclose(wanted, run(target, logprobs=True, exact=False).logprobs, atol=1e-3)


def test_a_session_goes_on_as_plain_exact_decoding_of_the_same_calls_does():
    """Other drafters in every call; the second call is closed by its reader."""
    target, wanted = moody(), None
    for names in (("uno", "kept", "dflash"), ("none", "none", "none"), ("dflash", "lookup", "uno")):
        session = Session(target)
        run(target, DRAFTERS[names[0]](target), 4, n=5, session=session)
        events = stream(target, [3, 4], DRAFTERS[names[1]](target), k=2, ignore_eos=True, session=session, exact=True)
        while len(session.tokens) < len(PROMPT) + 12:  # the token of 12 may bring another one with it
            next(events)
        events.close()
        assert clean(session.cache) and session.cache[0].offset == len(session.tokens) - 1 and not session.busy
        if wanted is None or len(session.tokens) != len(wanted[0]):
            closed = len(session.tokens) - len(PROMPT) - 7
            again = Session(target)
            run(target, None, n=5, session=again)
            run(target, None, n=closed, prompt=(3, 4), session=again)
            wanted = again.tokens[:], bits(again.cache), run(target, None, n=9, prompt=(8,), session=again).tokens, bits(again.cache)
        assert session.tokens == wanted[0] and equal(bits(session.cache), wanted[1])
        result = run(target, DRAFTERS[names[2]](target), 4, n=9, prompt=(8,), session=session)
        assert result.tokens == wanted[2] and equal(bits(session.cache), wanted[3])


def test_a_failing_drafter_leaves_what_was_committed():
    target = moody()

    class Failing:
        name = "failing"

        def __init__(self):
            self.inner = uno(target)

        def draft(self, cache, history, k, cycle):
            draft = self.inner.draft(cache, history, k, cycle)
            if cycle == 3:
                raise KeyboardInterrupt
            return draft

    session = Session(target)
    with pytest.raises(KeyboardInterrupt):
        run(target, Failing(), 4, session=session)
    made = session.tokens[len(PROMPT) :]
    assert 2 <= len(made) < N and made == alone()[0][: len(made)] and clean(session.cache) and not session.busy
    assert equal(bits(session.cache), on_the_grid(target, session.tokens[:-1], len(PROMPT) - 1))


def test_a_drafter_that_fails_before_any_forward():
    session = Session(moody())
    with pytest.raises(ZeroDivisionError):
        run(moody(), type("Broken", (), {"name": "broken", "draft": lambda *_: 1 / 0})(), prompt=(77,), session=session)
    assert session.tokens == [77] and session.cache[0].offset == 0 and clean(session.cache)
    assert run(moody(), None, n=5, prompt=(78,), session=session).tokens == run(moody(), None, n=5, prompt=(77, 78)).tokens


def test_a_failing_forward_leaves_what_was_committed(monkeypatch):
    """It has rewritten rows of the cell that were committed before, with the same bits."""
    target, session, calls = moody(), Session(moody()), []
    pick = acceptance.Greedy.pick

    def fail(self, logits, position, *rest):
        mx.eval(logits, [c.state for c in session.cache])
        calls.append(position)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return pick(self, logits, position, *rest)

    monkeypatch.setattr(acceptance.Greedy, "pick", fail)
    with pytest.raises(KeyboardInterrupt):
        run(target, None, session=session)
    assert session.tokens == PROMPT + alone()[0][:2] and equal(bits(session.cache), on_the_grid(target, session.tokens[:-1], len(PROMPT) - 1))


@pytest.mark.parametrize("options, reason", [({"stop": "fox"}, "stop"), ({"max_tokens": 11}, "length"), ({}, "stop")])
def test_stops_and_events(options, reason):
    target, prompt, ids = scripted("The quick brown fox jumps.\0")
    drafter = ScriptedDrafter(target, ids, len(prompt), (10**6, 1), "lookup")
    wanted = generate(target, prompt, None, **options)
    result = generate(target, prompt, drafter, k=4, exact=True, **options)
    assert (result.text, result.tokens, result.finish_reason) == (wanted.text, wanted.tokens, wanted.finish_reason) and result.finish_reason == reason
    events = list(stream(target, prompt, drafter, k=4, exact=True, **options))
    assert [e.token for e in events] == wanted.tokens and {e.origin for e in events} <= {"draft", "bonus", "correction", "target"}
    assert {e.origin for e in stream(target, prompt, exact=True, **options)} == {"target"}


@pytest.mark.parametrize("options, word", [({"k": 9}, "at most 8"), ({"scheme": "rewind"}, "tape or per_token_states"), ({"scheme": "replay"}, "very bits"),
                                           ({"max_tokens": 4085}, "do not fit")])
def test_what_cannot_be_honoured_is_refused(options, word):
    session = Session(hybrid())
    with pytest.raises(BadInput, match=word):
        generate(hybrid(), PROMPT, NgramDrafter(), exact=True, session=session, **options)
    assert session.tokens == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_blas_needs_no_grid(dtype, monkeypatch):
    """Here every row has its bits at any width, so ordinary drafting has those of plain decoding, on the grid or not."""
    target = hybrid(dtype=dtype)
    free, grid = ([read(target, monkeypatch, d, k=5, n=12, exact=on) for d in (None, uno(target))] for on in (False, True))
    assert grid[0] == grid[1] == free[0] and len(free[1]) > 5 and all(free[1][p] == free[0][p] for p in free[1])


CHILD = """
import json, sys
sys.path.insert(0, "tests")
import specdecode_nb.backend
from specdecode_nb import blas
import pytest, test_exact as t
from specdecode_nb.targets import load_target
from specdecode_nb.drafters import load_drafter
patch, target = pytest.MonkeyPatch(), load_target("tiny-hybrid")
def logits(name, **options):
    return t.read(target, patch, load_drafter(name, target), n=12, prompt=target.encode("Step 1."), **options)
free = [logits(name, exact=False) for name in (None, "dflash")]
grid = [logits(name) for name in (None, "uno", "dflash", "ngram")]
print(json.dumps([blas.report()["name"], len(free[1]), sum(free[0][p] != free[1][p] for p in free[1]), [g == grid[0] for g in grid],
                  [len(seen) for seen in grid[0].values()]]))
"""


def test_a_faster_blas_needs_it():
    """OpenBLAS gives other bits to wider forwards of the embedded model; on the grid they are the same with all drafters."""
    environment = os.environ | {"SPECDECODE_BLAS": "openblas", "PYTHONPATH": os.getcwd(), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[1], check=True)
    name, read_free, differing, same, counts = json.loads(done.stdout.splitlines()[-1])
    assert name == "OpenBLAS" and read_free == 12 and differing > 6
    assert same == [True] * 4 and counts == [1] * 12
