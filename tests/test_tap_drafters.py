"""Drafters that read the target's layers: taps, a context that follows the committed prefix, identity after every exit."""
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from specdecode_nb import decoder
from specdecode_nb.decoder import Session, generate, stream
from specdecode_nb.dflash import DFlashDrafter
from specdecode_nb.drafters import NgramDrafter
from specdecode_nb.stops import Stops
from specdecode_nb.taps import TappedModel
from specdecode_nb.transaction import Transaction
from tapping import make, residuals, scripted
from toy import PROMPT, VOCAB, ScriptedDrafter, consistent, failing, hybrid, plain

# taps


@pytest.mark.parametrize("layers", [(0,), (3,), (0, 2, 3), (1, 2)])
def test_taps_are_the_residual_stream_after_the_layers(layers):
    target = hybrid()
    wanted, logits = residuals(target, PROMPT)
    seen = []
    view, cache = TappedModel(target.model, layers, lambda *a: seen.append(a)), target.make_cache()
    ours = view(mx.array([PROMPT]), cache=cache)
    (caches, start, ids, taps), = seen
    assert caches is cache and start == 0 and ids == PROMPT and len(taps) == len(layers)
    for i, tap in zip(layers, taps):
        assert np.array(tap).tobytes() == np.array(wanted[i]).tobytes(), i
    assert np.array(ours).tobytes() == np.array(logits).tobytes() == np.array(target.model(mx.array([PROMPT]), cache=target.make_cache())).tobytes()
    view(mx.array([[9, 8]]), cache=cache)
    assert seen[1][1:3] == (len(PROMPT), [9, 8]) and seen[1][3][0].shape == (1, 2, 64)


def test_tapping_leaves_the_target_as_it_is():
    target = hybrid()
    kinds, before = [type(layer) for layer in target.model.layers], target.digest()
    view = TappedModel(target.model, (0, 1, 2, 3))
    view.taps(mx.array([PROMPT]), target.make_cache())
    assert [type(layer) for layer in target.model.layers] == kinds and target.digest() == before
    pairs = zip(tree_flatten(target.model.parameters()), tree_flatten(view._model.parameters()), strict=True)
    assert all(a is b for (_, a), (_, b) in pairs)


# the context follows the committed prefix


KINDS = ("dflash", "mtp")
N = 24


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def follows(drafter, session, k=6):
    """How many times its draft ran the history through the target, after context and draft were found to be those of a
    drafter that has just read the session's tokens from the start."""
    kind = "dflash" if isinstance(drafter, DFlashDrafter) else "mtp"
    fresh, draft = make(kind, session.target), getattr(drafter, "own", drafter.draft)
    live, cold = draft(session.cache, session.tokens, k, 1), fresh.draft(session.cache, session.tokens, k, 1)
    past = tuple(session.tokens[:-1])
    assert live.tokens == cold.tokens and drafter.context_ids == fresh.context_ids == past
    assert all(c.offset == held(kind, len(past)) for c in drafter._caches + fresh._caches)
    for ours, theirs in zip(drafter._caches, fresh._caches):
        for a, b in zip(*([] if c.offset == 0 else [v[..., : c.offset, :] for v in (c.keys, c.values)] for c in (ours, theirs))):
            assert np.array(a).tobytes() == np.array(b).tobytes()
    return live.forwards - (own_forwards(kind, k) if live.tokens else 0)


def held(kind, n):
    """Rows of a draft cache for n committed rows of the target."""
    return n if kind == "dflash" else max(0, n - 1)


def own_forwards(kind, k):
    return 1 if kind == "dflash" else k - 1


@pytest.mark.parametrize("k", range(1, 17))
def test_identity_for_every_block_size(kind, k):
    target = hybrid()
    for drafter in (make(kind), scripted(kind, target)):
        result = generate(target, PROMPT, drafter, k=k, max_tokens=N, ignore_eos=True)
        assert result.tokens == plain(target)[:N] and consistent(result.session, len(PROMPT) - 1)
        assert follows(drafter, result.session) == 0


@pytest.mark.parametrize("scheme", ("tape", "per_token_states"))
@pytest.mark.parametrize("other", [dict(seed=1, value_heads=2), dict(seed=2, dtype="bfloat16"), dict(seed=3, value_heads=6)])
def test_identity_on_other_targets(kind, other, scheme):
    target = hybrid(**other)
    drafter = make(kind, target)
    result = generate(target, PROMPT, drafter, k=5, max_tokens=N, ignore_eos=True, scheme=scheme)
    assert result.tokens == plain(target)[:N] and consistent(result.session, len(PROMPT) - 1)


@pytest.mark.parametrize("k", (2, 5, 8))
def test_every_accepted_count(kind, k):
    target = hybrid()
    for count in range(k):
        drafter = scripted(kind, target, (count,))
        result = generate(target, PROMPT, drafter, k=k, max_tokens=3 * (count + 1) + k, ignore_eos=True)
        assert result.tokens == plain(target)[: len(result.tokens)]
        assert result.stats.accepted_per_cycle[:3] == [count] * 3 and result.stats.committed_per_cycle[:3] == [count + 1] * 3
        assert follows(drafter, result.session) == 0


def test_accounting(kind):
    """One draft forward of k rows (of one row a link) and one verify forward of k rows a cycle; nothing is run again."""
    target, k = hybrid(), 5
    s = generate(target, PROMPT, scripted(kind, target, (2,)), k=k, max_tokens=12, ignore_eos=True).stats
    assert s.committed_per_cycle[:3] == [3, 3, 3] and s.offered_per_cycle[:2] == [k - 1] * 2
    widths = [n + 1 for n in s.offered_per_cycle]
    assert s.forwards == 1 + s.cycles + sum(own_forwards(kind, w) for w in widths if w > 1)
    if kind == "dflash":
        assert s.forward_tokens == len(PROMPT) - 1 + sum(w + (w if w > 1 else 0) for w in widths)
    else:  # the links of a chain, and the rows that the layer reads of what was committed since
        read = [len(PROMPT) - 2, *s.committed_per_cycle]
        assert s.forward_tokens == len(PROMPT) - 1 + sum(widths) + sum(w - 1 + n for w, n in zip(widths, read) if w > 1)


def test_the_draft_cache_is_as_long_as_the_committed_prefix_in_every_cycle(kind):
    target, lengths = hybrid(), []

    drafter = scripted(kind, target)
    inner = drafter.draft

    def watched(cache, history, k, cycle):
        made = inner(cache, history, k, cycle)
        if k > 1:
            lengths.append((held(kind, len(history) - 1), held(kind, cache[0].offset), *(c.offset for c in drafter._caches)))
            assert list(drafter.context_ids) == history[:-1]
        return made

    drafter.draft = watched
    generate(target, PROMPT, drafter, k=6, max_tokens=40, ignore_eos=True)
    assert len(lengths) > 8 and all(len(set(row)) == 1 for row in lengths)


def test_a_long_prompt_becomes_keys_and_values_in_parts(kind, monkeypatch):
    target, prompt = hybrid(), [int(i) for i in np.random.default_rng(1).integers(2, VOCAB, 23)]
    monkeypatch.setattr(decoder, "PREFILL_ROWS", 4)
    drafter = make(kind)
    session = Session(target)
    session.feed(prompt, drafter.verifier)
    assert len(drafter.context_ids) == 20 and len(drafter._pending[1]) == 2
    assert follows(drafter, session) == 0
    assert generate(target, prompt, drafter, k=4, max_tokens=9, ignore_eos=True).tokens == plain(target, prompt, 9)


@pytest.mark.parametrize("prompt", ([77], PROMPT))
def test_a_session_that_goes_on(kind, prompt):
    target, session = hybrid(), Session(hybrid())
    drafter = make(kind)
    for _ in range(3):
        result = generate(target, prompt, drafter, k=4, max_tokens=7, ignore_eos=True, session=session)
        assert result.tokens == plain(target, session.tokens[:-7], 7) and follows(drafter, session) == 0


@pytest.mark.parametrize("between", [None, NgramDrafter(1)])
def test_rows_decoded_without_the_drafter_are_read_again(kind, between):
    """The one case with a second forward over the past, and the draft says so."""
    target, session, drafter = hybrid(), Session(hybrid()), make(kind)
    generate(target, PROMPT, drafter, k=4, max_tokens=7, ignore_eos=True, session=session)
    generate(target, [65], between, k=4, max_tokens=7, ignore_eos=True, session=session)
    past = len(session.tokens) - 1
    draft = drafter.draft(session.cache, session.tokens, 4, 1)
    assert draft.forwards == 1 + own_forwards(kind, 4) and draft.rows == past + (4 if kind == "dflash" else 3)
    assert follows(drafter, session) == 0
    assert consistent(session)


def test_one_drafter_and_two_sessions_in_turns(kind):
    target, drafter = hybrid(), make(kind)
    one = stream(target, PROMPT, drafter, k=4, max_tokens=12, ignore_eos=True)
    two = stream(target, PROMPT[:-1] + [77], drafter, k=4, max_tokens=12, ignore_eos=True)
    pairs = [(a.token, b.token) for a, b in zip(one, two)]
    assert [a for a, _ in pairs] == plain(target)[:12] and [b for _, b in pairs] == plain(target, PROMPT[:-1] + [77], 12)


def test_rows_of_another_session_are_not_taken_for_this_one_s(kind):
    """Even under the same ids: what a context holds was read in the session that it serves."""
    drafter, a, b = make(kind), Session(hybrid()), Session(hybrid())
    a.feed(PROMPT, drafter.verifier)
    assert follows(drafter, a) == 0
    b.feed(PROMPT)
    assert follows(drafter, b) == 1 and follows(drafter, b) == 0 and follows(drafter, a) == 1


@pytest.mark.parametrize("late", (False, True))
@pytest.mark.parametrize("where", ("verifier", "draft", "admit", "commit"))
def test_a_failure_anywhere(kind, where, late, monkeypatch):
    """After it the session is at a committed prefix, goes on, and so does the context."""
    target = hybrid()

    for at in (1, 2, 4):
        session, drafter = Session(target), scripted(kind, target)
        with monkeypatch.context() as patch:
            owner, name = {"verifier": (drafter, "verifier"), "draft": (drafter, "draft"), "admit": (Stops, "admit"),
                           "commit": (Transaction, "commit")}[where]
            patch.setattr(owner, name, failing(getattr(owner, name), at, late, ValueError("injected")))
            with pytest.raises(ValueError, match="injected"):
                generate(target, PROMPT, drafter, k=4, max_tokens=20, ignore_eos=True, session=session)
        assert consistent(session)
        if session.tokens:
            assert follows(drafter, session) in (0, 1)
        done = list(session.tokens)
        other = make(kind) if at == 2 else drafter
        other.script = ScriptedDrafter(target, [3] * 40, len(done) + 2, (0,), "lookup")
        result = generate(target, [65, 66], other, k=4, max_tokens=6, ignore_eos=True, session=session)
        assert result.tokens == plain(target, [*done, 65, 66], 6) and consistent(session) and follows(other, session) == 0


def test_a_failure_inside_the_draft_forward(kind, monkeypatch):
    target, drafter, session = hybrid(), make(kind), Session(hybrid())
    generate(target, PROMPT, drafter, k=4, max_tokens=5, ignore_eos=True, session=session)
    for name in ("_head", "_embed"):
        with monkeypatch.context() as patch:
            patch.setattr(drafter, name, lambda x: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                generate(target, [4], drafter, k=4, max_tokens=5, ignore_eos=True, session=session)
        assert follows(drafter, session) == 0 and consistent(session)


@pytest.mark.parametrize("stop_after", range(1, 9))
def test_stop_and_closed_stream(kind, stop_after):
    target = hybrid()
    drafter, session = scripted(kind, target), Session(target)
    events = stream(target, PROMPT, drafter, k=5, max_tokens=20, ignore_eos=True, session=session)
    for _ in range(stop_after):
        next(events)
    events.close()
    assert consistent(session) and follows(drafter, session) == 0
    eos = replace(target, tokenizer=type(target.tokenizer)((plain(target)[stop_after],)))
    ended = scripted(kind, eos)
    result = generate(eos, PROMPT, ended, k=5, max_tokens=20)
    assert result.finish_reason == "stop" and result.tokens == plain(target)[: len(result.tokens)] and follows(ended, result.session) == 0


def test_plain_decoding_and_other_drafters_are_not_tapped(kind, monkeypatch):
    monkeypatch.setattr(TappedModel, "taps", lambda *a: 1 / 0)
    for drafter in (None, NgramDrafter(1)):
        generate(hybrid(), PROMPT, drafter, max_tokens=4, ignore_eos=True)
    with pytest.raises(ZeroDivisionError):
        generate(hybrid(), PROMPT, make(kind), max_tokens=4, ignore_eos=True)


