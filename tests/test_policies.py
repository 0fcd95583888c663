"""Rules that choose the width: against traces worked by hand, blind to the draft to come, and without effect on the text."""
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from specdecode_nb import streams
from specdecode_nb.decoder import generate
from specdecode_nb.drafters import NgramDrafter, UnoDrafter
from specdecode_nb.errors import BadInput
from specdecode_nb.policies import ByAcceptance, ByConditionalValue, ByEntropy, ByExpectedValue, ByProbing, BySurvival, Cycle, Fixed, Policy
from toy import PROMPT, VOCAB, ScriptedDrafter, adapter, consistent, hybrid, plain, uno

COSTS = {0: 1.0, 1: 1.9, 2: 2.0, 4: 2.3, 8: 3.1}
RULES = {"entropy": ByEntropy((2, 4, 8), low=2.0, high=4.0), "survival": BySurvival(), "value": ByExpectedValue(COSTS, samples=1, probe=4),
         "conditional": ByConditionalValue(COSTS, trust=2, first=2), "acceptance": ByAcceptance(8, window=2),
         "probing": ByProbing(COSTS, full=8, short=2)}


def trace(rule, cycles):
    """Widths asked for: before the first cycle, and after each of (accepted, entropy) or (offered, accepted)."""
    rule = rule.begin()
    asked = [rule.width()]
    for cycle in cycles:
        rule.observe(cycle(asked[-1]))
        asked.append(rule.width())
    return asked


def accepts(*counts):
    return [lambda k, a=a: Cycle(k, max(0, k - 1), a, a + 2) for a in counts]


def test_entropy_by_hand():
    seen = [lambda k, h=h: Cycle(k, k - 1, 0, 2, h) for h in (0.5, 0.51, 1.99, 2.0, None, 0.0)]
    assert trace(ByEntropy(), seen) == [8, 8, 4, 4, 2, 2, 8]


def test_survival_by_hand():
    """1, then .7 + .9 = 1.6, then 2.02, which is the first to allow four; and from two it cannot climb by itself."""
    assert trace(BySurvival(), accepts(1, 3, 3, 0)) == [2, 2, 2, 4, 2]
    assert set(trace(BySurvival(), accepts(*[1] * 50))) == {2}


def test_expected_value_by_hand():
    """Three tries of each; (.85 + 2) / 1, (2.6175 + 2) / 1.5 and (0 + 2) / 4; every 16th cycle takes the widths in turn."""
    rule = ByExpectedValue({2: 1.0, 4: 1.5, 8: 4.0})
    asked = trace(rule, accepts(1, 1, 0, 3, 0, 3, 0, 0, 0, *[3] * 40))
    assert asked[:9] == [2, 2, 2, 4, 4, 4, 8, 8, 8] and asked[9] == 4
    assert [asked[n - 1] for n in (16, 32, 48)] == [4, 8, 2]
    assert trace(ByExpectedValue({2: 1.0, 4: 1.7, 8: 4.0}), accepts(1, 1, 0, 3, 0, 3, 0, 0, 0))[9] == 2


def test_conditional_value_by_hand():
    """Two visits make a position believed. 3/2.3, then .5, .333 and .25 accepted: 2.25/2.3 is below a plain step, so none is drafted;
    two cycles later a probe is accepted, 2.4/2.3 is above it, and drafting goes on. The third width is the first probe."""
    rule = ByConditionalValue({0: 1.0, 2: 2.3, 3: 3.0}, allowed=(0, 2, 3), trust=2, first=2)
    assert trace(rule, accepts(1, 0, 0, 0, 0, 1)) == [2, 2, 3, 2, 0, 2, 2]


def test_conditional_value_of_a_drafter_without_an_exact_token():
    rule = ByConditionalValue({0: 1.0, 4: 2.0}, allowed=(0, 4), trust=1, exact=0)
    assert (rule.expected(0), rule.expected(1), rule.expected(4)) == (1.0, 1.0, 4.0) and rule.width() == 0
    # no position is believed yet, so the widest that may be tried is one beyond none
    assert ByConditionalValue({0: 1.0, 2: 1.5}, allowed=(0, 2), exact=0).width() == 2


def guesses(*accepted):
    """Cycles of a drafter that guesses every token after the seed; "all" is a full hit."""
    return [lambda k, a=a: Cycle(k, k - 1, k - 1 if a == "all" else a, 1 + (k - 1 if a == "all" else a)) for a in accepted]


def test_acceptance_by_hand():
    """16 offers 15: 4 of 15 is below .30 and halves; 8 offers 7: 3 of 7 is below .50 and takes 2; full hits give 2 back, up to the start."""
    rule = ByAcceptance(16, window=2)
    asked = trace(rule, guesses(4, 4, 3, 3, "all", "all", 7, "all", *["all"] * 20))
    assert asked[:9] == [16, 16, 8, 8, 6, 6, 8, 8, 10] and max(asked) == asked[-1] == 16
    assert trace(ByAcceptance(8, window=1), guesses(0, 0, 0)) == [8, 4, 4, 4]  # 8 halves; 4 is the floor
    assert trace(ByAcceptance(7, window=1), guesses(0, "all")) == [7, 5, 7]
    assert trace(ByAcceptance(8, window=1), guesses(5)) == [8, 8]  # 5 of 7: between .50 and .85


def test_probing_by_hand():
    """Four poor cycles: 64 short ones; eight full ones are tried; only good and no slower ones bring the full block back."""
    rule = ByProbing({16: 4.0, 4: 2.0})
    asked = trace(rule, guesses(*[1] * 4, *[1] * 64, *[1] * 8, *[1] * 64, *[15] * 8, 15))
    assert asked[:5] == [16] * 4 + [4] and asked[4:68] == [4] * 64 and asked[68:76] == [16] * 8 and asked[76:140] == [4] * 64
    assert asked[140:] == [16] * 10
    slow = ByProbing({16: 40.0, 4: 2.0})  # 16 tokens in 40 ms are fewer than 4 in 2
    assert trace(slow, guesses(*[1] * 4, *["all"] * 16, *[15] * 4, 1))[-2:] == [4, 4]
    early = trace(ByProbing({16: 4.0, 4: 2.0}), guesses(*[1] * 4, *[1] * 8, *["all"] * 8, *[1] * 4, *["all"] * 64))
    assert early[4:20] == [4] * 16 and early[20:24] == [16] * 4 and early[24:88] == [4] * 64  # once; the next probe waits for 64
    assert set(trace(ByProbing({4: 1.0}, full=4), guesses(*[0] * 9))) == {4}


def test_a_position_not_reached_is_not_counted():
    rule = ByConditionalValue(COSTS, trust=1).begin()
    rule.observe(Cycle(5, 4, 1, 3))
    assert [visits for _, visits in rule._slots] == [1, 1, 0, 0, 0, 0, 0, 0]
    assert [acceptance for acceptance, _ in rule._slots[:2]] == [1.0, 0.0]
    assert rule.expected(2) == 3.0 and rule.expected(8) == 3.0 and rule.expected(0) == 1.0


def test_costs_between_measured_widths_are_interpolated_and_flat_outside():
    rule = ByConditionalValue({0: 1.0, 2: 2.0, 6: 4.0}, allowed=(0, 4, 8))
    assert rule._price == {0: 1.0, 4: 3.0, 8: 4.0}


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_sees_the_draft_of_the_cycle_it_chooses_for(rule):
    """Two drafters that differ first in cycle 6 are given the same widths up to it."""
    target = hybrid()
    counts = ((1, 0, 2, 1, 3, 0, 0, 0, 0, 0), (1, 0, 2, 1, 3, 7, 7, 7, 7, 7))
    widths = [generate(target, PROMPT, ScriptedDrafter(target, plain(target), len(PROMPT), c), k=RULES[rule], max_tokens=60, ignore_eos=True)
              .stats.width_per_cycle for c in counts]
    assert widths[0][:6] == widths[1][:6] and len(widths[1]) > 6


def test_a_rule_is_asked_before_and_told_after_each_cycle():
    target, log = hybrid(), []

    @dataclass
    class Watched(Policy):
        widest = 3

        def width(self):
            log.append("asked")
            return 3

        def observe(self, cycle):
            log.append(cycle)

    class Loud(NgramDrafter):
        def draft(self, *args):
            log.append("draft")
            return super().draft(*args)

    stats = generate(target, PROMPT, Loud(1), k=Watched(), max_tokens=12, ignore_eos=True).stats
    assert log[::3] == ["asked"] * stats.cycles and log[1::3] == ["draft"] * stats.cycles
    told = log[2::3]
    assert [c.accepted for c in told] == stats.accepted_per_cycle and [c.committed for c in told] == stats.committed_per_cycle
    assert [c.offered for c in told] == stats.offered_per_cycle and [c.width for c in told] == stats.width_per_cycle


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("keep", (True, False))
def test_identity_under_every_rule(rule, keep):
    target = hybrid()
    result = generate(target, PROMPT, uno(target, keep_seed=keep), k=RULES[rule], max_tokens=40, ignore_eos=True)
    assert result.tokens == plain(target)[:40] and consistent(result.session, len(PROMPT) - 1)
    assert len(result.stats.width_per_cycle) == result.stats.cycles
    # a last cycle that only emits the exact token verifies nothing
    assert len(result.stats.entropy_per_cycle) in ((result.stats.cycles - 1, result.stats.cycles) if rule == "entropy" else (0,))


def test_width_0_is_one_target_row_and_no_draft():
    class Never:
        name = "never"

        def draft(self, *_):
            raise AssertionError("a plain step drafts nothing")

    target = hybrid()
    result = generate(target, PROMPT, Never(), k=Fixed(0), max_tokens=12, ignore_eos=True)
    s = result.stats
    assert result.tokens == plain(target)[:12] and consistent(result.session, len(PROMPT) - 1)
    assert (s.forwards, s.forward_tokens, s.cycles) == (1 + 12, len(PROMPT) - 1 + 12, 12) and s.width_per_cycle == [0] * 12
    assert s.committed_per_cycle == [1] * 12 and s.offered_per_cycle == [0] * 12


@pytest.mark.parametrize("form", ("lookup", "published", "kept"))
def test_plain_steps_between_drafts(form):
    @dataclass
    class Turns(Policy):
        cycle: int = 0
        widest = 5

        def width(self):
            return (0, 5, 1, 0, 3)[self.cycle % 5]

        def observe(self, cycle):
            self.cycle += 1

    target = hybrid()
    drafter = ScriptedDrafter(target, plain(target), len(PROMPT), (9, 2, 9, 9, 1), form)
    result = generate(target, PROMPT, drafter, k=Turns(), max_tokens=30, ignore_eos=True)
    assert result.tokens == plain(target)[:30] and consistent(result.session, len(PROMPT) - 1)
    assert result.stats.width_per_cycle[:5] == [0, 5, 1, 0, 3] and result.stats.committed_per_cycle[0] == 1


def test_a_rule_keeps_nothing_from_one_generation_to_the_next():
    target, rule = hybrid(), ByConditionalValue(COSTS, trust=2, first=2)
    runs = [generate(target, PROMPT, uno(target), k=rule, max_tokens=40, ignore_eos=True).stats.width_per_cycle for _ in range(2)]
    assert runs[0] == runs[1] and len(set(runs[0])) > 1


@pytest.mark.parametrize("answer", (-1, 4, 1.0, None))
def test_a_width_that_was_not_announced_is_an_error_and_leaves_the_session_whole(answer):
    class Odd(Fixed):
        def width(self):
            return answer

    from specdecode_nb.decoder import Session

    target = hybrid()
    session = Session(target)
    with pytest.raises(ValueError, match="outside 0 to 3"):
        generate(target, PROMPT, uno(target), k=Odd(3), session=session)
    assert session.tokens == PROMPT and consistent(session, len(PROMPT) - 1)


def test_the_widest_block_must_fit_the_context():
    target = hybrid()
    with pytest.raises(BadInput, match="block of k=8"):
        generate(target, PROMPT, uno(target), k=BySurvival(), max_tokens=target.context - len(PROMPT) - 4)


# --- refinement and confidence ---

@pytest.mark.parametrize("keep", (True, False))
@pytest.mark.parametrize("passes", (1, 2, 4))
def test_a_pass_reads_the_guesses_of_the_pass_before_one_row_later(passes, keep):
    """By hand, without a cache: [seed, noise], then [seed, p_1 .. p_{k-1}], the adapter off on the seed's row in each."""
    target, k = hybrid(), 5
    adapted, gate = adapter(target)
    history = [*PROMPT, *plain(target)[:3]]
    guesses = np.array(mx.random.randint(1, VOCAB, (16,), key=mx.random.key(streams.stream_seed(42, streams.BENCH_NOISE, 2))))[: k - 1].tolist()
    seen = []
    for _ in range(passes):
        gate.rows(mx.array([[0.0] * len(history) + [1.0] * (k - 1)]))
        seen.append(mx.argmax(adapted(mx.array([history + guesses]))[0, -k:], axis=-1).tolist())
        guesses = seen[-1][:-1]
    drafter = UnoDrafter(target, adapted, gate, noise_seed=42, passes=passes, keep_seed=keep)
    cache = target.make_cache()
    target.model(mx.array([history[:-1]]), cache=cache)
    draft = drafter.draft(cache, history, k, 2)
    assert draft.tokens == seen[-1] and draft.tokens[0] == plain(target)[3] and (draft.forwards, draft.rows) == (passes, passes * k)
    assert cache[-1].offset == len(history) - 1 + keep
    assert passes == 1 or seen[-1] != seen[0]


@pytest.mark.parametrize("passes", (2, 4))
def test_refined_drafts_give_the_same_text(passes):
    target = hybrid()
    result = generate(target, PROMPT, uno(target, passes=passes), k=4, max_tokens=24, ignore_eos=True)
    assert result.tokens == plain(target)[:24] and consistent(result.session, len(PROMPT) - 1)
    assert result.stats.forwards == 1 + (passes + 1) * result.stats.cycles


def test_confidence_is_told_only_where_asked_and_changes_nothing():
    target = hybrid()
    silent, told = (generate(target, PROMPT, uno(target, confidence=c), k=4, max_tokens=24, ignore_eos=True) for c in (False, True))
    assert silent.tokens == told.tokens and silent.stats.accepted_per_cycle == told.stats.accepted_per_cycle
    assert "confidence_per_cycle" not in silent.row() and len(told.row()["confidence_per_cycle"]) == told.stats.cycles
    for cycle, offered in zip(told.stats.confidence_per_cycle, told.stats.offered_per_cycle):
        assert len(cycle) == offered and all(0 <= margin <= top <= 1 and top >= 1 / VOCAB for top, margin in cycle)


def test_confidence_is_top_1_and_the_margin_to_the_second():
    from specdecode_nb.drafters import _sureness

    assert _sureness(mx.log(mx.array([[0.5, 0.2, 0.3], [0.1, 0.1, 0.8]]))) == [pytest.approx([0.5, 0.2], abs=1e-5), pytest.approx([0.8, 0.7], abs=1e-5)]


# --- lookup at the edges ---

@pytest.mark.parametrize("order, history, k, wanted", [
    (2, [1, 2, 9, 1, 2], 2, [9]),                      # a match at the very beginning
    (2, [5, 5, 5], 2, [5]),                            # the match overlaps the tail
    (2, [5, 5, 5, 5], 3, [5, 5]),                      # all that follows may reach into the tail
    (2, [1, 2, 7, 1, 2], 5, []),                       # only three tokens follow, four are wanted
    (2, [1, 2, 3, 4, 5, 1, 2, 1, 2], 4, [3, 4, 5]),    # the latest match is too short, an earlier one is not
    (3, [1, 2, 3, 8, 9, 2, 3, 1, 2, 3], 3, [8, 9]),    # two of three tokens are no match
    (3, [4, 1, 2, 3, 6, 1, 2, 3, 7, 1, 2, 3], 2, [7]),  # the latest of two
    (3, [1, 2], 3, []), (2, [1, 2], 2, []), (2, [], 4, []), (1, [3, 3], 2, [3]), (2, [1, 2, 9, 1, 2], 1, []),
])
def test_lookup(order, history, k, wanted):
    draft = NgramDrafter(order).draft([], history, k, 1)
    assert draft.tokens == wanted and (draft.forwards, draft.exact) == (0, 0)


def test_the_last_block_of_a_lookup_fills_the_budget():
    """With r tokens left a lookup may offer r - 1 and commit them all, and an exact first token takes one place more."""
    from specdecode_nb.drafters import Draft

    target = hybrid()
    known = plain(target)
    widths = {0: [], 1: []}
    for exact, seen in widths.items():
        class Oracle:
            name = "oracle"

            def draft(self, cache, history, k, cycle):
                seen.append(k)
                at = len(history) - len(PROMPT)
                return Draft(known[at : at + k - 1 + self.exact], exact=self.exact)

        oracle = Oracle()
        oracle.exact = exact
        assert generate(target, PROMPT, oracle, k=4, max_tokens=7, ignore_eos=True).tokens == known[:7]
    assert widths == {0: [4, 3], 1: [4, 1]}


@pytest.mark.parametrize("make, says", [
    (lambda: Fixed(-1), "k is -1"), (lambda: Fixed("4"), "k is '4'"), (lambda: Fixed(0.0), "k is 0.0"), (lambda: ByEntropy(default=16), "default is 16"),
    (lambda: ByEntropy(allowed=()), "allowed is ()"), (lambda: ByEntropy(low=3.0), "low is 3.0"), (lambda: ByEntropy(high=float("nan")), "high nan"),
    (lambda: BySurvival((-2, 4)), "allowed is"), (lambda: BySurvival((2.5, 4)), "allowed is"), (lambda: BySurvival(decay="x"), "decay is 'x'"),
    (lambda: BySurvival(decay=5), "decay is 5"), (lambda: ByExpectedValue(COSTS, samples=0), "samples is 0"), (lambda: ByExpectedValue({2: 1.0}), "lacks the width 4"),
    (lambda: ByExpectedValue({2: float("nan"), 4: 1.0, 8: 1.0}), "costs is"), (lambda: ByConditionalValue({}), "costs is {}"),
    (lambda: ByConditionalValue({0: 0.0, 8: 0.0}), "costs is"), (lambda: ByConditionalValue(COSTS, allowed=(4, 8)), "must be allowed"),
    (lambda: ByConditionalValue(COSTS, trust=0), "trust is 0"), (lambda: ByAcceptance(0), "start is 0"), (lambda: ByProbing({16: 1.0}), "lacks the width 4"),
])
def test_options_that_could_not_be_followed_are_refused_when_the_rule_is_made(make, says):
    with pytest.raises(BadInput) as refused:
        make()
    assert says in str(refused.value)


def test_an_answer_may_be_a_numpy_integer():
    @dataclass
    class Odd(Policy):
        widest = 3

        def width(self):
            return np.int64(3)

    target = hybrid()
    assert generate(target, PROMPT, uno(target), k=Odd(), max_tokens=9, ignore_eos=True).tokens == plain(target)[:9]
