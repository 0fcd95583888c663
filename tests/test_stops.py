"""Where a generation ends: end-of-text ids, stop texts, budgets, on a target that follows a written text."""
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specdecode_nb.decoder import generate, stream
from specdecode_nb.drafters import NgramDrafter
from specdecode_nb.errors import BadInput
from specdecode_nb.stops import Stops
from toy import ScriptedDrafter, held, scripted

TEXT = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FORMS = ("lookup", "published", "kept")
COUNTS = [(0,), (1,), (10**6,), (2, 0, 1)]
CASES = [(None, (0,))] + [(form, counts) for form in FORMS for counts in COUNTS]


def decode(text, form, counts, k=4, wrong=None, eos=(0,), prompt=(65,), **options):
    target, prompt, ids = scripted(text, prompt, eos)
    drafter = ScriptedDrafter(target, ids + [2] * 40, len(prompt), counts, form, wrong) if form else None
    result = generate(target, prompt, drafter, k=k, **({"max_tokens": len(ids)} | options))
    assert result.session.tokens == (prompt if result.tokens else []) + result.tokens
    assert held(result.session) == result.session.tokens[:-1]
    assert sum(result.stats.committed_per_cycle) == (result.stats.tokens if drafter else 0)
    assert result.stats.tokens == len(result.tokens)
    return result, ids


@pytest.mark.parametrize("form, counts", CASES)
@pytest.mark.parametrize("k", (1, 2, 5))
def test_end_of_text_at_every_position(form, counts, k):
    """It is emitted, it gives no text, its own row is not consumed, and nothing after it is kept."""
    for at in range(2 * (k + 1) + 1):
        result, ids = decode(list(TEXT[:at].encode()) + [0] + list(TEXT[at:40].encode()), form, counts, k)
        assert (result.tokens, result.text, result.finish_reason) == (ids[: at + 1], TEXT[:at], "stop"), at


@pytest.mark.parametrize("form, counts", CASES)
def test_end_of_text_among_several_ids(form, counts):
    for first, second in ((0, 1), (1, 0)):
        result, ids = decode([97, 98, first, 99, second, 100], form, counts, eos=(0, 1))
        assert result.tokens == [97, 98, first] and result.finish_reason == "stop"
        result, ids = decode([97, 98, first, 99, second, 100], form, counts, eos=(second,))
        assert result.tokens == ids[:5] and result.finish_reason == "stop"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("counts", COUNTS)
def test_a_drafted_end_of_text_is_only_a_proposal(form, counts):
    result, ids = decode(TEXT, form, counts, wrong=0)
    assert result.tokens == ids and result.finish_reason == "length" and result.text == TEXT


@pytest.mark.parametrize("form, counts", CASES)
@pytest.mark.parametrize("k", (1, 4))
def test_end_of_text_at_the_last_allowed_token_is_a_stop(form, counts, k):
    for n in range(1, 8):
        text = list(TEXT[: n - 1].encode()) + [0] + list(TEXT[:9].encode())
        assert decode(text, form, counts, k, max_tokens=n)[0].finish_reason == "stop"
        if n > 1:
            assert decode(text, form, counts, k, max_tokens=n - 1)[0].finish_reason == "length"


@pytest.mark.parametrize("form, counts", CASES)
def test_end_of_text_can_be_ignored(form, counts):
    result, ids = decode([97, 0, 98, 0, 0, 99, 100], form, counts, ignore_eos=True)
    assert result.tokens == ids and result.finish_reason == "length" and result.text == "abcd"


@pytest.mark.parametrize("form, counts", CASES)
@pytest.mark.parametrize("length", (1, 3, 7))
def test_a_stop_text_at_every_position(form, counts, length):
    """Within a block, over the border of two, longer than a block."""
    for at in range(0, 14):
        result, ids = decode(TEXT, form, counts, stop=TEXT[at : at + length])
        assert (result.tokens, result.text, result.finish_reason) == (ids[: at + length], TEXT[:at], "stop"), at


@pytest.mark.parametrize("form, counts", CASES)
def test_of_several_stop_texts_the_first_to_be_completed_wins(form, counts):
    for stop, text, tokens in [(("cd", "bc"), "a", 3), (("cdefgh", "e"), "abcd", 5), (("efgh", "fg"), "abcde", 7),
                               (("c", "abc"), "", 3), (("zz", "d"), "abc", 4)]:
        for order in (stop, stop[::-1]):
            result, ids = decode(TEXT, form, counts, k=8, stop=order)
            assert (result.text, len(result.tokens), result.finish_reason) == (text, tokens, "stop"), stop


@pytest.mark.parametrize("form, counts", CASES)
def test_a_stop_text_that_is_not_completed_is_shown(form, counts):
    result, ids = decode("one two, one tw", form, counts, stop=["two!", "twx"])
    assert result.text == "one two, one tw" and result.finish_reason == "length"
    result, ids = decode([*b"one tw", 0], form, counts, stop=["two"])
    assert result.text == "one tw" and result.finish_reason == "stop"
    result, ids = decode("aaab", form, counts, stop="aab")  # a start inside a start
    assert result.text == "a" and result.finish_reason == "stop"


@pytest.mark.parametrize("form, counts", CASES)
@pytest.mark.parametrize("k", (1, 2, 4))
def test_budgets(form, counts, k):
    """Exactly N tokens for every N, at the block's width and around it."""
    for n in range(3 * (k + 1) + 1):
        result, ids = decode(TEXT, form, counts, k, max_tokens=n)
        assert result.tokens == ids[:n] and result.finish_reason == "length" and result.text == TEXT[:n]


def test_no_budget_does_no_work():
    for form in (None, *FORMS):
        target, prompt, ids = scripted(TEXT)
        drafter = ScriptedDrafter(target, ids, 1, (0,), form) if form else None
        result = generate(target, prompt, drafter, max_tokens=0)
        assert (result.tokens, result.text, result.finish_reason, target.model.calls) == ([], "", "length", 0)
        assert list(stream(target, prompt, drafter, max_tokens=0)) == [] and target.model.calls == 0
        assert result.stats.forwards == 0 and result.session.tokens == []


UNICODE = "naïve café → 東京の🙂 ends é"


@pytest.mark.parametrize("form, counts", CASES)
@pytest.mark.parametrize("k", (1, 3, 8))
def test_characters_of_several_tokens(form, counts, k):
    """Streamed texts joined are the decoded ids; a character appears with its last byte, whole."""
    target, prompt, ids = scripted(UNICODE)
    drafter = ScriptedDrafter(target, ids + [2] * 40, 1, counts, form) if form else None
    events = list(stream(target, prompt, drafter, k=k, max_tokens=len(ids)))
    assert [e.token for e in events] == ids and "".join(e.text for e in events) == UNICODE
    assert [e.text for e in events if e.text] == list(UNICODE)
    for n in range(1, len(ids)):
        events = list(stream(target, prompt, drafter, k=k, max_tokens=n))
        assert "".join(e.text for e in events) == target.decode(ids[:n])


@pytest.mark.parametrize("form, counts", CASES)
def test_a_stop_text_of_several_bytes_a_character(form, counts):
    for stop in ("é", "→ 東", "🙂", "京の"):
        result, ids = decode(UNICODE, form, counts, stop=stop)
        at = UNICODE.index(stop)
        assert result.text == UNICODE[:at] and result.tokens == ids[: len(UNICODE[: at + len(stop)].encode())]


def test_streaming_stops_where_generate_does():
    for stop in ("f", "hij", ("xyz", "lm")):
        for form, counts in CASES:
            target, prompt, ids = scripted(TEXT)
            make = lambda: ScriptedDrafter(target, ids + [2] * 40, 1, counts, form) if form else None  # noqa: E731,B023
            result = generate(target, prompt, make(), max_tokens=40, stop=stop)
            events = list(stream(target, prompt, make(), max_tokens=40, stop=stop))
            assert [e.token for e in events] == result.tokens and "".join(e.text for e in events) == result.text


def naive(ids, eos, stops, budget, decode):
    """What the text of a generation should be, worked out token by token from the whole text each time."""
    for n in range(1, budget + 1):
        text = decode(ids[:n])
        if ids[n - 1] in eos:
            return n, text, "stop"
        whole = text.rstrip("\ufffd")
        ends = [(whole.index(s) + len(s), whole.index(s)) for s in stops if s in whole]
        if ends:
            return n, whole[: min(ends)[1]], "stop"
    return budget, decode(ids[:budget]), "length"


@settings(max_examples=150, derandomize=True, database=None, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(list(b"abab  ")), st.sampled_from(list("é→🙂".encode())), st.integers(0, 255)), min_size=1,
                max_size=30), st.lists(st.text("ab é→🙂", min_size=1, max_size=4), max_size=3), st.data())
def test_any_text_any_stops_any_cycles(ids, stops, data):
    target, _, _ = scripted(ids, eos=(0, 1))
    budget = data.draw(st.integers(1, len(ids)))
    n, text, reason = naive(ids, (0, 1), stops, budget, target.decode)
    rule = Stops(target, (0, 1), stops, budget, want_text=True)
    done, shown = 0, []
    while rule.reason is None:
        width = data.draw(st.integers(1, 6))
        kept, texts = rule.admit(ids[done : done + width])
        assert kept == len(texts)
        done += kept
        shown += texts
    assert (done, rule.text, rule.reason) == (n, text, reason) and "".join(shown) == text


@pytest.mark.parametrize("stop", ["", ("a", ""), 5, None, (1,), b"a"])
def test_bad_stop_texts(stop):
    target, prompt, _ = scripted(TEXT)
    with pytest.raises(BadInput, match="stop is .*give"):
        generate(target, prompt, NgramDrafter(), stop=stop)
    assert target.model.calls == 0
