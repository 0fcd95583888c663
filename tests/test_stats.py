"""Counters, origins of tokens, and options that are refused before any work."""
import json

import numpy as np
import pytest
from dataclasses import replace
from specdecode_nb.decoder import Session, generate, stream
from specdecode_nb.drafters import Draft, NgramDrafter, RandomDrafter, UnoDrafter
from specdecode_nb.errors import BadInput
from specdecode_nb.sampling import Sampling
from toy import PROMPT, VOCAB, ScriptedDrafter, adapter, hybrid, plain, scripted

FORMS = ("lookup", "published", "kept")
TEXT = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Watched:
    """A model that notes the rows of every forward."""

    def __init__(self, model):
        self.model, self.rows, self.make_cache = model, [], model.make_cache

    def __call__(self, ids, cache=None):
        self.rows.append(ids.shape[1])
        return self.model(ids, cache=cache)


def watched(keep_seed=True):
    """Target and Uno drafter whose forwards, draft and verify, are noted in one list."""
    adapted, gate = adapter(hybrid())
    model = Watched(hybrid().model)
    target = replace(hybrid(), model=model)
    view = Watched(adapted)
    view.rows = model.rows
    return target, UnoDrafter(target, view, gate, keep_seed=keep_seed), model.rows


@pytest.mark.parametrize("k", (1, 2, 4, 8))
@pytest.mark.parametrize("keep_seed", (True, False))
def test_rows_of_every_forward(k, keep_seed):
    """Kept seed: k rows drafted, k verified. Published: k drafted, k + 1 verified. The last block fits the budget."""
    target, drafter, rows = watched(keep_seed)
    result = generate(target, PROMPT, drafter, k=k, max_tokens=17, ignore_eos=True)
    wanted, room = [len(PROMPT) - 1], 17
    for committed in result.stats.committed_per_cycle:
        width = min(k, max(1, room - 1))
        wanted += [width] if keep_seed and room == 1 else [width, width + (not keep_seed)]
        room -= committed
    assert rows == wanted and room == 0
    assert (result.stats.forwards, result.stats.forward_tokens) == (len(rows), sum(rows))


@pytest.mark.parametrize("n", (1, 2, 16, 17))
def test_forwards_by_formula(n):
    target = hybrid()
    for prompt in (PROMPT, [77]):
        known, first = plain(target, prompt), int(len(prompt) > 1)
        s = generate(target, prompt, None, max_tokens=n, ignore_eos=True).stats
        assert (s.forwards, s.forward_tokens, s.cycles) == (first + n, len(prompt) - 1 + n, 0)
        s = generate(target, prompt, ScriptedDrafter(target, known, len(prompt), (0,), "lookup"), k=3, max_tokens=n, ignore_eos=True).stats
        assert s.cycles == n and s.forwards == first + n
        s = generate(target, prompt, ScriptedDrafter(target, known, len(prompt), (0,), "kept"), k=3, max_tokens=n, ignore_eos=True).stats
        assert s.cycles == (n + 1) // 2 and s.forwards == first + n  # two tokens for two forwards, one for one


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k", (2, 3, 6))
def test_all_rejected_and_all_accepted(form, k):
    target, prompt, ids = scripted(TEXT)
    exact = int(form != "lookup")
    none = generate(target, prompt, ScriptedDrafter(target, ids, 1, (0,), form), k=k, max_tokens=20)
    everything = generate(target, prompt, ScriptedDrafter(target, ids, 1, (99,), form), k=k, max_tokens=20)
    assert none.tokens == everything.tokens == ids[:20]
    assert sum(none.stats.accepted_per_cycle) == 0 < sum(none.stats.offered_per_cycle)
    assert set(none.stats.committed_per_cycle) <= {1 + exact, 1}
    assert sum(everything.stats.accepted_per_cycle) == sum(everything.stats.offered_per_cycle) > 0
    assert everything.stats.committed_per_cycle[0] == k + exact and everything.stats.cycles < none.stats.cycles
    assert all(o == k - 1 for o in none.stats.offered_per_cycle[:3])


@pytest.mark.parametrize("form", (None, *FORMS))
@pytest.mark.parametrize("counts", [(0,), (2, 0, 5), (99,)])
@pytest.mark.parametrize("n", (1, 7, 20))
def test_counters_count_emitted_tokens(form, counts, n):
    for end in (None, 3, 6):
        text = list(TEXT[:40].encode())
        if end is not None:
            text[end] = 0
        target, prompt, ids = scripted(text)
        drafter = ScriptedDrafter(target, ids, 1, counts, form) if form else None
        result = generate(target, prompt, drafter, k=5, max_tokens=n)
        s = result.stats
        assert s.tokens == len(result.tokens) == min(n, 40 if end is None else end + 1) and s.prompt_tokens == 1
        if drafter:
            assert sum(s.committed_per_cycle) == s.tokens
            assert len(s.committed_per_cycle) == len(s.accepted_per_cycle) == len(s.offered_per_cycle) == s.cycles
            for accepted, offered, committed in zip(s.accepted_per_cycle, s.offered_per_cycle, s.committed_per_cycle):
                assert 0 <= accepted <= min(offered, committed) and committed >= 1
        else:
            assert (s.cycles, s.accepted_per_cycle, s.offered_per_cycle, s.committed_per_cycle) == (0, [], [], [])


def test_an_end_of_text_inside_accepted_drafts_is_counted_to_the_cut():
    target, prompt, ids = scripted([*b"abc", 0, *b"defghijkl"])
    for form, accepted in (("kept", 3), ("published", 3), ("lookup", 4)):
        s = generate(target, prompt, ScriptedDrafter(target, ids, 1, (99,), form), k=8, max_tokens=13).stats
        assert (s.accepted_per_cycle, s.offered_per_cycle, s.committed_per_cycle) == ([accepted], [7], [4])


@pytest.mark.parametrize("form, count, wanted", [
    ("kept", 2, ["target", "draft", "draft", "correction"]), ("kept", 0, ["target", "correction"]),
    ("kept", 99, ["target", "draft", "draft", "draft", "bonus"]), ("published", 1, ["target", "draft", "correction"]),
    ("lookup", 0, ["correction"]), ("lookup", 2, ["draft", "draft", "correction"]), ("lookup", 99, ["draft", "draft", "draft", "bonus"])])
def test_origins(form, count, wanted):
    target, prompt, ids = scripted(TEXT)
    drafter = ScriptedDrafter(target, ids, 1, (count,), form)
    seen = [e.origin for e in stream(target, prompt, drafter, k=4, max_tokens=2 * len(wanted) + 4)]
    assert seen[: 2 * len(wanted)] == wanted * 2


def test_origins_without_proposals():
    target, prompt, ids = scripted("abcdefgh")
    for drafter in (None, NgramDrafter(2), RandomDrafter(VOCAB)):
        assert {e.origin for e in stream(target, prompt, drafter, k=1, max_tokens=8)} == {"target"}
    drafter = ScriptedDrafter(target, ids, 1, (99,), "kept")
    assert [e.origin for e in stream(target, prompt, drafter, k=1, max_tokens=4)] == ["target", "bonus"] * 2


@pytest.mark.parametrize("form", FORMS)
def test_origins_add_up_to_the_counters(form):
    target = hybrid()
    drafter = ScriptedDrafter(target, plain(target), len(PROMPT), (3, 0, 1, 99), form)
    events = list(stream(target, PROMPT, drafter, k=5, max_tokens=30, ignore_eos=True))
    drafter = ScriptedDrafter(target, plain(target), len(PROMPT), (3, 0, 1, 99), form)
    s = generate(target, PROMPT, drafter, k=5, max_tokens=30, ignore_eos=True).stats
    assert sum(e.origin == "draft" for e in events) == sum(s.accepted_per_cycle)
    assert [e.token for e in events] == plain(target)[:30]


def test_times_and_row():
    target = hybrid()
    result = generate(target, PROMPT, NgramDrafter(1), k=3, max_tokens=20, ignore_eos=True)
    s = result.stats
    parts = [s.prefill_seconds, s.draft_seconds, s.verify_seconds, s.commit_seconds, s.overhead_seconds]
    assert min(parts) >= 0 and sum(parts) == pytest.approx(s.wall_seconds)
    row = json.loads(json.dumps(result.row(), allow_nan=False))
    assert row["finish_reason"] == "length" and row["tokens"] == 20 and row["committed_per_cycle"] == s.committed_per_cycle


BAD = [
    (dict(prompt=""), "The prompt is empty; give"), (dict(prompt=[]), "The prompt is empty; give"),
    (dict(prompt="a\ud800"), "half of a surrogate pair; decode it"), (dict(prompt=[5, 256]), "id 256, outside the vocabulary of 256"), (dict(prompt=[-1]), "id -1, outside"),
    *((dict(prompt=p), "must be text or a list of token ids") for p in (None, 5, [1.0], [True], ["a"], b"ab", np.array([1, 2]), {1: 2})),
    *((dict(k=k), f"k is {k!r}; give a whole number") for k in (0, -3, 1.5, "4", None, True, float("nan"))),
    (dict(k=5000), "block of k=5000 do not fit the context of 4096; shorten"), (dict(max_tokens=4096), "4096 new ones .* do not fit"),
    (dict(prompt=[7] * 4000), "4000 prompt tokens, 128 new ones"),
    *((dict(max_tokens=n), f"max_tokens is {n!r}; give") for n in (-1, 2.5, "8", None, True)),
    *((dict(temperature=t), f"temperature is {t!r}; give 0") for t in (-1, 1e-9, float("nan"), float("inf"), "0", None, True)),
    (dict(sampling=0.7), "sampling is 0.7; give a Sampling"), (dict(sampling=Sampling(), temperature=0.5), "temperature is 0.5 beside a Sampling"),
    *((dict(seed=s), f"seed is {s!r}; give a whole number") for s in (1.5, "0", None)),
    *((dict(scheme=s), "no scheme .* for decoding; choose tape, per_token_states, replay or rewind") for s in ("snapshot", "", None, 3)),
    *((dict(stop=s), "stop is .*; give a text") for s in ("", ["a", ""], 3, None)),
    *((dict(drafter=d), "The drafter is .*; make one with load_drafter") for d in ("uno", 4, object)),
]


@pytest.mark.parametrize("options, message", BAD, ids=lambda v: v if isinstance(v, str) else str(v)[:40])
def test_bad_input(options, message):
    """One sentence that names the value and the remedy, before the target is called."""
    for call in (generate, stream):
        target, prompt, _ = scripted(TEXT)
        with pytest.raises(BadInput, match=message) as caught:
            call(target, **({"prompt": prompt, "drafter": NgramDrafter()} | options))
        text = str(caught.value)
        assert "\n" not in text and text.endswith(".") and ". " not in text
        assert target.model.calls == 0


def test_unknown_options_are_not_ignored():
    target, prompt, _ = scripted(TEXT)
    for name in ("top_p", "top_k", "repetition_penalty", "logits_processors"):
        for call in (generate, stream):
            with pytest.raises(TypeError, match=name):
                call(target, prompt, **{name: 1})


@pytest.mark.parametrize("answer, says", [(Draft([10**6]), "id 1000000, outside"), (Draft([-1]), "id -1, outside"), (Draft(["a"]), "id 'a', outside"),
                                          (Draft([], exact=1), "needs a proposal"), (Draft([], seed_kept=True), "needs a proposal"), (None, "answered None")])
def test_a_drafter_that_breaks_its_contract_is_stopped(answer, says):
    """An id outside the vocabulary would read memory beyond the embedding. The session stays at its committed prefix."""
    target, session = hybrid(), Session(hybrid())

    class Broken(NgramDrafter):
        def draft(self, *args):
            return answer

    with pytest.raises(ValueError, match=says):
        generate(target, PROMPT, Broken(), k=4, max_tokens=8, session=session)
    assert generate(target, [65], None, max_tokens=6, ignore_eos=True, session=session).tokens == plain(target, [*PROMPT, 65], 6)


def test_things_of_another_target():
    target, other = hybrid(), hybrid(seed=1)
    with pytest.raises(BadInput, match="session belongs to another target"):
        generate(target, PROMPT, session=Session(other))
    with pytest.raises(BadInput, match="drafter 'uno' was made for another target"):
        generate(target, PROMPT, UnoDrafter(other, *adapter(other)))


def test_a_session_counts_towards_the_context():
    target, prompt, ids = scripted(TEXT)
    session = generate(target, prompt, None, max_tokens=10).session
    with pytest.raises(BadInput, match="12 prompt tokens, 4081 new ones"):
        generate(target, [75], None, max_tokens=4081, session=session)
    assert session.tokens == prompt + ids[:10]
