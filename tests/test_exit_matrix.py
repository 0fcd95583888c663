"""Every drafter by every scheme through every way that a cycle can end: text, caches, counters, and what goes on from there.

The reference is plain decoding by hand, a row at a time (:mod:`specdecode_nb.protocols.battery`). Drafters that read or adapt the
target offer what a script says after they have done their own work, so that drafts of every length are accepted.
"""
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import tapping
from mlx_lm.models.qwen3_next import Qwen3NextMLP
from specdecode_nb.acceptance import Greedy
from specdecode_nb.decoder import Session, generate, stream
from specdecode_nb.drafters import NgramDrafter, RandomDrafter
from specdecode_nb.protocols.battery import InTurn, reference
from specdecode_nb.staged import Staged, Truncated
from specdecode_nb.stops import Stops
from specdecode_nb.transaction import EXACT, SCHEMES, Transaction
from toy import PROMPT, VOCAB, ScriptedDrafter, bits, clean, equal, failing, hybrid, plain, uno

BLOCK, MORE = 4, [65, 66]
COUNTS = (1, 0, 99, 2, 3)
PLAIN = reference()[0]
TOKENS = PLAIN.tokens


class Letters:
    """One letter an id; its end-of-text ids are set by each test."""

    eos_token_ids: list = []

    def encode(self, text, add_special_tokens=False):
        return [ord(c) - 0x4E00 for c in text]

    def decode(self, ids, skip_special_tokens=True, clean_up_tokenization_spaces=False):
        return "".join(chr(0x4E00 + i) for i in ids)


TARGET = replace(hybrid(), tokenizer=Letters())


def known(form):
    return ScriptedDrafter(TARGET, TOKENS, len(PROMPT), COUNTS, form)


def adapted():
    """The Uno drafter, whose draft forward runs, with proposals by the script after its exact one."""
    drafter = uno(TARGET)
    own, script = drafter.draft, known("published")

    def draft(cache, history, k, cycle):
        made = own(cache, history, k, cycle)
        return replace(made, tokens=made.tokens[:1] + script.draft(cache, history, k, cycle).tokens[1:])

    drafter.draft = draft
    return drafter


DRAFTERS = {"uno": adapted, "dflash": lambda: tapping.scripted("dflash", TARGET, COUNTS, TOKENS),
            "mtp": lambda: tapping.scripted("mtp", TARGET, COUNTS, TOKENS),
            "ngram": lambda: NgramDrafter(1), "random": lambda: RandomDrafter(VOCAB), "kept": lambda: known("kept"), "lookup": lambda: known("lookup"),
            "staged": lambda: Staged(known("kept"), 2), "truncated": lambda: Truncated(adapted(), 3)}
CASES = [(name, scheme) for name in DRAFTERS for scheme in SCHEMES]


@cache
def drafter(name):
    """One a session: that a drafter has served other generations, failed ones too, must not matter."""
    return None if name == "plain" else DRAFTERS[name]()


@pytest.fixture(autouse=True)
def no_end_ids():
    yield
    TARGET.tokenizer.eos_token_ids = []


FULL = ("uno", "dflash", "mtp", "kept")


def thin(name, scheme, values):
    """All of ``values`` for the trained kinds of drafter by the default scheme, else every fourth; where one begins differs from case to case."""
    return list(values) if scheme == "tape" and name in FULL else list(values)[CASES.index((name, scheme)) % 4 :: 4]


def settled(session, scheme, committed=None):
    """The session is at a committed prefix of plain decoding and nothing is open."""
    ids, whole = session.tokens, PROMPT + TOKENS
    assert clean(session.cache) and not session.busy
    assert ids == whole[: len(ids)] and (committed is None or len(ids) == len(PROMPT) + committed)
    rows = max(0, len(ids) - 1)
    assert {c.offset for c in session.cache} == {rows}
    if rows and scheme in EXACT:
        assert equal(bits(session.cache), PLAIN.caches[rows])
    elif rows:
        assert all(np.abs(a - b).max() < 1e-3 for a, b in zip(bits(session.cache), PLAIN.caches[rows], strict=True))


def goes_on(session, name, scheme):
    """The next turn, drafted or plain in turns, is that of a cold run."""
    done = list(session.tokens)
    with_drafter = drafter(name if len(done) % 2 else "plain")
    result = generate(TARGET, MORE, with_drafter, k=BLOCK, max_tokens=5, ignore_eos=True, session=session, scheme=scheme)
    assert result.tokens == plain(hybrid(), [*done, *MORE], 5) and clean(session.cache)
    if hasattr(with_drafter, "context_ids"):
        assert list(with_drafter.context_ids) == session.tokens[: len(with_drafter.context_ids)]


def run(name, scheme, n=12, k=BLOCK, **options):
    """A generation, checked: counters count what was emitted and no more."""
    options = {"ignore_eos": True} | options
    result = generate(TARGET, PROMPT, drafter(name), k=k, max_tokens=n, scheme=scheme, **options)
    s = result.stats
    assert s.tokens == len(result.tokens) == sum(s.committed_per_cycle)
    assert len(s.accepted_per_cycle) == len(s.offered_per_cycle) == len(s.committed_per_cycle) == s.cycles
    assert all(0 <= a <= min(o, c) and 1 <= c for a, o, c in zip(s.accepted_per_cycle, s.offered_per_cycle, s.committed_per_cycle))
    assert result.tokens == TOKENS[: len(result.tokens)]
    return result


@pytest.mark.parametrize("name, scheme", CASES)
def test_every_budget_with_and_without_plain_cycles_between(name, scheme):
    for k in (BLOCK, InTurn()):
        for n in thin(name, scheme, range(3 * BLOCK + 1)):
            result = run(name, scheme, n, k)
            assert len(result.tokens) == n and result.finish_reason == "length"
            if n:
                settled(result.session, scheme, n)
            if k is not BLOCK and n > BLOCK + 1:  # a plain cycle follows the first drafted one
                assert result.stats.width_per_cycle[:2] == [BLOCK, 0]
        goes_on(result.session, name, scheme)


@pytest.mark.parametrize("name, scheme", CASES)
def test_an_end_of_text_at_every_place(name, scheme):
    for at in thin(name, scheme, (i for i in range(10) if TOKENS[i] not in TOKENS[:i])):
        for others in ([], [TOKENS[at + 2]]):  # of several ids the first to come ends the text
            TARGET.tokenizer.eos_token_ids = [*others, TOKENS[at]]
            result = run(name, scheme, 20, ignore_eos=False)
            assert (len(result.tokens), result.finish_reason) == (at + 1, "stop") and result.text == TARGET.decode(TOKENS[:at])
            settled(result.session, scheme, at + 1)
        goes_on(result.session, name, scheme)


@pytest.mark.parametrize("name, scheme", CASES)
def test_a_stop_text_at_every_place_and_across_cycles(name, scheme):
    letters = TARGET.decode(TOKENS)
    for length in (1, 3):
        for at in thin(name, scheme, (i for i in range(9) if letters.index(letters[i : i + length]) == i)):
            result = run(name, scheme, 20, stop=[letters[at + 1 : at + length + 2], letters[at : at + length]])
            assert (result.text, len(result.tokens), result.finish_reason) == (letters[:at], at + length, "stop")
            settled(result.session, scheme, at + length)
    goes_on(result.session, name, scheme)


# "layer" fails in the middle of a forward: of the prefill, of a draft or of a verify forward, some layers having moved
PLACES = {"layer": (Qwen3NextMLP, "__call__", (2, 6, 11, 16)), "verify": (Greedy, "pick", (1, 3)), "acceptance": (Greedy, "accept", (1, 2)),
          "admission": (Stops, "admit", (1, 3)), "commit": (Transaction, "commit", (1, 2, 3)), "draft": (None, "draft", (1, 2))}


@pytest.mark.parametrize("name, scheme", CASES)
def test_a_failure_anywhere(name, scheme, monkeypatch):
    moments = [(place, at, late) for place, (_, _, moments) in PLACES.items() for at in moments for late in (False, True)]
    for i, (place, at, late) in enumerate(thin(name, scheme, moments)):
        owner, attribute, _ = PLACES[place]
        owner, error = owner or drafter(name), (ValueError("injected"), KeyboardInterrupt())[i % 2]
        session = Session(TARGET)
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, failing(getattr(owner, attribute), at, late, error))
            with pytest.raises(type(error)):
                run(name, scheme, 20, session=session)
        settled(session, scheme)
        goes_on(session, name, scheme)


@pytest.mark.parametrize("name, scheme", CASES)
def test_a_stream_left_after_every_event(name, scheme):
    for events in thin(name, scheme, range(1, 10)):
        session = Session(TARGET)
        running = stream(TARGET, PROMPT, drafter(name), k=BLOCK, max_tokens=12, ignore_eos=True, session=session, scheme=scheme)
        seen = [next(running).token for _ in range(events)]
        if events % 2:
            running.close()
        else:
            with pytest.raises(KeyboardInterrupt):
                running.throw(KeyboardInterrupt())
        assert seen == TOKENS[:events] and len(session.tokens) >= len(PROMPT) + events
        settled(session, scheme)
        goes_on(session, name, scheme)


@pytest.mark.parametrize("names", [["dflash"] * 5, ["mtp"] * 5, ["random"] * 5, ["staged"] * 5, ["dflash", "mtp", "plain", "uno", "dflash"],
                                   ["ngram", "truncated", "mtp", "staged", "mtp"]])
def test_five_turns_by_different_schemes_equal_cold_runs(names):
    session = Session(TARGET)
    for turn, name in enumerate(names):
        prompt = [turn + 40, *PROMPT[turn:]]
        whole = session.tokens + prompt
        result = generate(TARGET, prompt, drafter(name), k=BLOCK, max_tokens=6, ignore_eos=True, session=session, scheme=EXACT[turn % len(EXACT)])
        assert result.tokens == plain(hybrid(), whole, 6) and session.tokens == whole + result.tokens and clean(session.cache)


def test_two_targets_and_two_drafters_in_one_process_in_turns():
    """Generators of two models, each with a drafter that reads it and one that adapts it, take turns token by token."""
    other = hybrid(seed=1, value_heads=2)
    digests = [t.digest() for t in (TARGET, other)]
    runs = [(t, d, stream(t, PROMPT, d, k=k, max_tokens=14, ignore_eos=True, scheme=scheme))
            for t, made, k, scheme in ((TARGET, drafter("dflash"), 4, "tape"), (other, tapping.make("mtp", other), 3, "per_token_states"),
                                       (TARGET, drafter("uno"), 5, "replay"), (other, uno(other), 4, "tape"), (TARGET, None, 1, "tape"),
                                       (other, tapping.make("dflash", other), 2, "tape"))
            for d in [made]]
    seen = [[e.token for e in column] for column in zip(*zip(*(r for _, _, r in runs)))]
    assert seen == [plain(hybrid() if t is TARGET else other)[:14] for t, _, _ in runs]
    assert [t.digest() for t in (TARGET, other)] == digests
