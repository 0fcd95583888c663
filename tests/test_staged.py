"""Draft width apart from verify width: cycles traced by hand, equality with the coupled decoder, every exit between stages."""
from dataclasses import replace

import pytest
from specdecode_nb.decoder import Session, generate, stream
from specdecode_nb.drafters import Draft, NgramDrafter
from specdecode_nb.errors import BadInput
from specdecode_nb.staged import Staged, Truncated
from toy import PROMPT, ScriptedDrafter, clean, consistent, held, hybrid, plain, scripted, uno

TEXT = "abcdefghijklmnopqrstuvwxyz0123456789"


class Counting(ScriptedDrafter):
    """Notes the block number that keys the noise."""

    def draft(self, cache, history, k, cycle):
        self.blocks = [*getattr(self, "blocks", []), cycle]
        return super().draft(cache, history, k, cycle)


def run(verify, draft, counts, tokens=20, form="kept", wrapper=Staged):
    target, prompt, ids = scripted(TEXT)
    w = wrapper(Counting(target, ids, 1, counts, form), verify)
    result = generate(target, prompt, w, k=draft, max_tokens=tokens, ignore_eos=True)
    assert result.tokens == ids[:tokens] and held(result.session) == result.session.tokens[:-1]
    return result.stats, w


@pytest.mark.parametrize("form", ["kept", "published"])
def test_s84_by_hand(form):
    """Nine tokens in two stages if all is right; a miss in the first or second stage ends the block there."""
    s, w = run(4, 8, (9, 1, 5), tokens=9 + 3 + 7, form=form)
    # block 1: p1..p4 and p5 as the lookahead, then p6..p8 and the bonus; block 2: p1, p2, correction; block 3: five, then p6 and a correction
    assert s.committed_per_cycle == [5, 4, 3, 5, 2]
    assert s.accepted_per_cycle == [3, 3, 1, 3, 1] and s.offered_per_cycle == [3, 3, 3, 3, 1]
    assert [h.drafted for h in w.trace] == [8, 0, 8, 6, 0]  # the last draft is cut to the budget
    assert w.inner.blocks == [1, 2, 3]  # noise is keyed by the block
    kept = form == "kept"
    assert s.forwards == 5 + 3 * kept  # no prefill of a one-token prompt


def test_s82_takes_three_stages():
    s, w = run(2, 8, (9,), tokens=18)
    assert s.committed_per_cycle == [3] * 6 and [h.drafted for h in w.trace] == [8, 0, 0, 8, 0, 0]
    # the first stage verifies two rows, the seed kept; each further one the seed and two guesses
    assert s.forward_tokens == 2 * (8 + 2 + 3 + 3)


def test_a_lookahead_that_ends_the_draft_is_not_carried():
    s, w = run(4, 5, (9,), tokens=10)
    assert [h.drafted for h in w.trace][0] == 5 and s.committed_per_cycle[:1] == [5] and w.trace[1].drafted > 0


def test_a_wrong_lookahead_starts_a_new_draft():
    """All four verified are right, the fifth drafted token is not: nothing is carried."""
    s, w = run(4, 8, (3, 9), tokens=14)
    assert s.committed_per_cycle[0] == 5 and [h.drafted > 0 for h in w.trace][:3] == [True, True, False]


@pytest.mark.parametrize("counts, committed", [((9,), [5, 5, 5, 5]), ((0,), [2] * 10), ((2, 9), [4, 5, 5, 5, 1])])
def test_truncated_commits_what_a_block_of_v_would(counts, committed):
    s, w = run(4, 8, counts, wrapper=Truncated)
    assert s.committed_per_cycle == committed and max(s.offered_per_cycle) == 3
    assert [h.handed for h in w.trace][:2] == [4, 4] and w.trace[0].drafted == 8


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("keep_seed", [True, False])
def test_d_equals_v_is_the_coupled_decoder(k, keep_seed):
    """Token for token, cycle for cycle, row for row."""
    target = hybrid()
    drafter = uno(target, keep_seed=keep_seed)
    coupled = generate(target, PROMPT, drafter, k=k, max_tokens=40, ignore_eos=True)
    for wrapper in (Staged, Truncated):
        split = generate(target, PROMPT, wrapper(drafter, k), k=k, max_tokens=40, ignore_eos=True)
        assert split.tokens == coupled.tokens == plain(target)[:40]
        for field in ("accepted_per_cycle", "offered_per_cycle", "committed_per_cycle", "forwards", "forward_tokens"):
            assert getattr(split.stats, field) == getattr(coupled.stats, field), field
        assert consistent(split.session)


@pytest.mark.parametrize("scheme", ["tape", "per_token_states"])
@pytest.mark.parametrize("form", ["lookup", "published", "kept"])
@pytest.mark.parametrize("draft, verify", [(8, 4), (6, 4), (6, 3), (8, 2), (8, 1), (5, 4)])
def test_the_text_is_plain_decoding_and_the_caches_are_bit_equal(draft, verify, form, scheme):
    target = hybrid()
    for counts in ((9,), (0,), (1, 4, 2, 7, 3)):
        inner = ScriptedDrafter(target, plain(target), len(PROMPT), counts, form)
        result = generate(target, PROMPT, Staged(inner, verify), k=draft, max_tokens=30, ignore_eos=True, scheme=scheme)
        assert result.tokens == plain(target)[:30] and consistent(result.session)
        assert sum(result.stats.committed_per_cycle) == 30


def perfect(target, verify=4):
    return Staged(ScriptedDrafter(target, plain(hybrid()), len(PROMPT), (9,), "kept"), verify)


@pytest.mark.parametrize("tokens", range(1, 20))
def test_the_budget_ends_inside_any_stage(tokens):
    target = hybrid()
    result = generate(target, PROMPT, perfect(target), k=8, max_tokens=tokens, ignore_eos=True)
    assert result.tokens == plain(target)[:tokens] and result.finish_reason == "length" and consistent(result.session)


def test_an_end_of_text_inside_any_stage():
    tokens = plain(hybrid())
    for at in (i for i in range(1, 16) if tokens[i] not in tokens[:i]):
        target = replace(hybrid(), tokenizer=type(hybrid().tokenizer)(eos=(tokens[at],)))
        drafter = perfect(target)
        result = generate(target, PROMPT, drafter, k=8, max_tokens=30)
        assert result.tokens == tokens[: at + 1] and result.finish_reason == "stop" and consistent(result.session)
        # the remainder that was not verified is not offered to the next turn
        again = generate(target, [65, 66], drafter, k=8, max_tokens=6, ignore_eos=True, session=result.session)
        assert again.tokens == plain(hybrid(), [*PROMPT, *tokens[: at + 1], 65, 66], 6) and drafter.trace[0].drafted == 6 - 1


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_an_exception_between_stages_keeps_what_was_committed(at):
    target = hybrid()
    drafter, session = perfect(target, 2), Session(target)
    real, calls = drafter.draft, []

    def failing(*args):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return real(*args)

    drafter.draft = failing
    with pytest.raises(KeyboardInterrupt):
        generate(target, PROMPT, drafter, k=8, max_tokens=30, ignore_eos=True, session=session)
    drafter.draft = real
    # three tokens a stage
    assert session.tokens == PROMPT + plain(target)[: 3 * (at - 1)] and clean(session.cache) and consistent(session)
    result = generate(target, [65], drafter, k=8, max_tokens=6, ignore_eos=True, session=session)
    assert result.tokens == plain(target, [*PROMPT, *plain(target)[: 3 * (at - 1)], 65], 6) and consistent(session)


@pytest.mark.parametrize("events", range(1, 12))
def test_a_stream_closed_between_stages(events):
    target = hybrid()
    session = Session(target)
    running = stream(target, PROMPT, perfect(target), k=8, max_tokens=30, ignore_eos=True, session=session)
    seen = [next(running).token for _ in range(events)]
    running.close()
    done = session.tokens[len(PROMPT) :]
    assert done[:events] == seen and done == plain(target)[: len(done)] and consistent(session)


def test_a_failed_draft_leaves_no_remainder():
    class Failing:
        name = "failing"

        def draft(self, cache, history, k, cycle):
            if len(history) > 3:
                raise ValueError("injected")
            return Draft([7, 8, 9, 10], exact=0)

    staged = Staged(Failing(), 2)
    assert staged.draft([], [1, 2], 4, 1).tokens == [7, 8]
    with pytest.raises(ValueError):
        staged.draft([], [1, 2, 3, 4], 4, 2)  # another history
    with pytest.raises(ValueError):
        staged.draft([], [1, 2, 7, 8, 9], 4, 3)  # would have been carried


def test_two_streams_share_one_staged_drafter():
    target = hybrid()
    drafter = Staged(uno(target), 2)
    prompts = PROMPT, [77, 3, 200]
    runs = [stream(target, p, drafter, k=6, max_tokens=20, ignore_eos=True) for p in prompts]
    assert [[e.token for e in column] for column in zip(*zip(*runs))] == [plain(target, p)[:20] for p in prompts]


def test_guesses_alone_can_be_staged():
    target = hybrid()
    prompt = [5, 6, 7, 8] * 6
    result = generate(target, prompt, Staged(NgramDrafter(2), 2), k=6, max_tokens=20, ignore_eos=True)
    assert result.tokens == plain(target, prompt, 20) and consistent(result.session)


@pytest.mark.parametrize("verify", [0, -1, True, 2.0, "4"])
def test_a_verify_width_is_a_whole_number(verify):
    with pytest.raises(BadInput, match="verify"):
        Staged(NgramDrafter(2), verify)


def test_a_generation_begins_anew_also_after_a_plain_step():
    """The trace is of the present generation, whatever cycle first asks for a draft."""
    from specdecode_nb.policies import Policy

    class Late(Policy):
        widest = 4

        def __init__(self):
            self.asked = 0

        def begin(self):
            return Late()

        def width(self):
            self.asked += 1
            return 0 if self.asked < 3 else 4

    target, prompt, ids = scripted(TEXT)
    w = Staged(ScriptedDrafter(target, ids, 1, (9,), "kept"), 2)
    lengths = []
    for _ in range(2):
        generate(target, prompt, w, k=Late(), max_tokens=12, ignore_eos=True)
        lengths.append(len(w.trace))
    assert lengths[0] == lengths[1] > 0


def test_a_wrapper_of_a_drafter_that_reads_the_target():
    from tapping import make

    target = hybrid()
    for wrapper in (Staged, Truncated):
        drafter = make("dflash", target)
        result = generate(target, PROMPT, wrapper(drafter, 3), k=6, max_tokens=20, ignore_eos=True)
        assert result.tokens == plain(target)[:20] and consistent(result.session, len(PROMPT) - 1)
        again = drafter.draft(result.session.cache, result.session.tokens, 4, 1)
        assert again.forwards == 1  # what it read is what was committed; nothing is run again
