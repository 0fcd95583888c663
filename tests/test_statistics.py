"""Statistics against numbers worked out by hand and against the plain form of each definition."""
import random

import pytest

from specdecode_nb import statistics as st


def row(arm="uno_k4", prompt="p-1", repeat=0, seconds=1.0, tokens=10, accepted=(), committed=(), **more):
    cycles = len(committed)
    return {"arm": arm, "prompt_id": prompt, "category": prompt.split("-")[0], "repeat": repeat, "tokens": tokens, "wall_seconds": seconds, "prefill_seconds": 0.0,
            "draft_seconds": 0.0, "verify_seconds": 0.0, "commit_seconds": 0.0, "overhead_seconds": 0.0, "forwards": 1 + 2 * cycles if cycles else tokens, "cycles": cycles,
            "accepted_per_cycle": list(accepted), "committed_per_cycle": list(committed), "offered_per_cycle": [3] * cycles, "ar_looped_fraction": 0.0,
            "identical_to_ar": True, "divergence_gap_ulps": None} | more


def test_loops_by_hand():
    assert st.looped_fraction(list(range(15)) ) == 0.0  # too short to say
    assert st.looped_fraction([1] * 15) == 0.0
    assert st.looped_fraction(list(range(40))) == 0.0
    assert st.looped_fraction([7] * 16) == 8 / 9  # nine starts, the first is new
    assert st.looped_fraction([1, 2, 3, 4] * 5) == (13 - 4) / 13  # 13 starts, four different 8-grams
    assert st.distinct_ratio([1, 2, 3, 4] * 5) == 4 / 20
    assert st.distinct_ratio([1] * 15) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_loops_by_definition(seed):
    rng = random.Random(seed)
    tokens = [rng.randrange(2) for _ in range(60)]
    grams = [tuple(tokens[i : i + 8]) for i in range(53)]
    assert st.looped_fraction(tokens) == sum(g in grams[:i] for i, g in enumerate(grams)) / 53


def test_survival_histogram_conditional():
    accepted = [0, 1, 3, 3]
    assert st.survival(accepted, 3) == [0.75, 0.5, 0.5]
    assert st.histogram(accepted, 3) == [0.25, 0.25, 0.0, 0.5]
    assert sum(st.survival(accepted, 3)) == st.mean(accepted)  # the area under survival
    rows = [row(accepted=accepted, committed=[2, 3, 5, 5], tokens=15)]
    assert st.conditional(rows, 4) == [0.75, 2 / 3, 1.0, None]
    short = [row(accepted=[3, 0], committed=[5, 1], offered_per_cycle=[3, 0])]  # a last cycle that could offer nothing
    assert st.conditional(short, 1) == [1.0]


def test_quartiles_follow_the_published_indices():
    assert st.quantiles([4, 1, 3, 2])["p25"] == 1  # index int(1) less one, as n is a multiple of 4
    assert st.quantiles([1, 2, 3, 4])["p75"] == 4  # index int(3)
    five = st.quantiles([5, 1, 4, 2, 3])
    assert (five["p25"], five["median"], five["p75"], five["n"], five["min"], five["max"]) == (2, 3, 4, 5, 1, 5)
    assert five["sd"] == pytest.approx(2.5**0.5)
    one = st.quantiles([7.0])
    assert (one["p25"], one["p75"], one["sd"]) == (7.0, 7.0, 0.0)


def test_rates_of_a_row():
    r = row(seconds=2.0, tokens=10, prefill_seconds=0.5, accepted=[1, 3], committed=[3, 7])
    assert (st.tokens_per_second(r), st.decode_tokens_per_second(r), st.tokens_per_forward(r), st.acceptance(r)) == (5.0, 10 / 1.5, 2.0, 4 / 6)
    del r["offered_per_cycle"]
    assert st.offered(r) == [3, 3]
    assert st.acceptance(row("uno_k1", accepted=[0], committed=[2], offered_per_cycle=[0])) == 0.0


def test_speed_is_quoted_against_the_faster_plain_arm_of_the_run():
    rows = [row("ar", seconds=1.0), row("ar_mlx_lm", seconds=0.8), row("uno_k4", seconds=0.4, accepted=[3, 3], committed=[5, 5])]
    assert st.plain_arm(rows) == "ar_mlx_lm"
    found = {e["arm"]: e for e in st.summarise(rows)}
    assert found["uno_k4"]["x plain"] == pytest.approx(2.0) and found["ar"]["x plain"] == pytest.approx(0.8)
    assert (found["uno_k4"]["mean accepted prefix"], found["uno_k4"]["committed per cycle"], found["uno_k4"]["TPF"]) == (3.0, 5.0, 2.0)
    with pytest.raises(ValueError, match="plain arm"):
        st.plain_arm(rows[2:])


def test_three_acceptances_are_three_numbers():
    names = st.three_acceptances([row(accepted=[0, 1, 3], committed=[2, 3, 5], tokens=10)])
    assert names == pytest.approx({"tokens per cycle": 10 / 3, "accepted / drafted": 4 / 9, "accepted / emitted": 0.7, "mean accepted prefix": 4 / 3})
    assert names["accepted / emitted"] == pytest.approx(1 - 1 / names["tokens per cycle"])


@pytest.mark.parametrize("n", (1, 2, 3, 27, 48, 64, 81, 128))
def test_draws_are_those_of_random(n):
    stream = random.Random(st.SEED)
    assert st.draws(n, 700).tolist() == [stream.randrange(n) for _ in range(700)]


def test_paired_bootstrap_is_the_published_procedure():
    rng = random.Random(1)
    differences = [rng.gauss(0.3, 1.0) for _ in range(21)]
    stream = random.Random(20260905)
    means = sorted(sum(differences[stream.randrange(21)] for _ in range(21)) / 21 for _ in range(400))
    found = st.paired_bootstrap(differences, resamples=400)
    assert (found["ci_low"], found["ci_high"]) == (round(means[10], 6), round(means[390], 6))
    assert found["p_positive"] == pytest.approx(sum(m > 0 for m in means) / 400)
    assert (found["n"], found["wins"], found["losses"]) == (21, sum(d > 0 for d in differences), sum(d < 0 for d in differences))
    assert found["mean_diff"] == pytest.approx(sum(differences) / 21, abs=1e-6)


def test_paired_bootstrap_of_a_constant_and_of_nothing():
    found = st.paired_bootstrap([2.0] * 5)
    assert (found["ci_low"], found["ci_high"], found["paired_se"], found["significant"], found["p_positive"]) == (2.0, 2.0, 0.0, True, 1.0)
    assert not st.paired_bootstrap([0.0, 0.0])["significant"]
    with pytest.raises(ValueError, match="no pairs"):
        st.paired_bootstrap([])


def test_pairs_are_by_prompt_and_repeat_in_any_order():
    left = [row(prompt="a-1", seconds=0.5), row(prompt="b-1", seconds=1.0)]
    right = [row("ar", prompt="b-1"), row("ar", prompt="a-1")]
    assert st.paired(left, right, st.tokens_per_second) == [10.0, 0.0]
    with pytest.raises(ValueError, match="no partner"):
        st.paired(left, right[:1], st.tokens_per_second)


def test_repeats_of_a_prompt_are_one_difference():
    left = [row(prompt=p, repeat=r, seconds=s) for r, p, s in ((0, "a", 0.5), (0, "b", 1.0), (1, "a", 1.0), (1, "b", 1.0))]
    right = [row("ar", prompt=p, repeat=r) for p in "ba" for r in (1, 0)]
    assert st.paired_prompts(left, right, st.tokens_per_second) == [5.0, 0.0]


def test_speedup_interval_resamples_prompts_with_their_repeats():
    fast = [row(prompt=f"a-{i}", repeat=r, seconds=0.5) for i in range(4) for r in range(3)]
    slow = [row("ar", prompt=f"a-{i}", repeat=r) for i in range(4) for r in range(3)]
    assert st.speedup(fast, slow) == {"ratio": 2.0, "low": 2.0, "high": 2.0, "prompts": 4, "rows": 12}
    mixed = [r | {"wall_seconds": 0.5 if r["prompt_id"] < "a-2" else 1.0} for r in fast]
    found = st.speedup(mixed, slow)
    assert found["low"] == 1.0 and found["high"] == 2.0 and found["ratio"] == 1.5
    assert st.speedup(mixed, slow) == found
    with pytest.raises(ValueError, match="repeats"):
        st.speedup(fast[1:], slow)


def test_cost_model_by_hand():
    plain = row("ar", tokens=10, seconds=1.0)  # a step is 0.1 s
    fast = row("uno_k4", tokens=12, seconds=0.6, accepted=[2, 2, 2], committed=[4, 4, 4], draft_seconds=0.3, verify_seconds=0.24, commit_seconds=0.03, overhead_seconds=0.03)
    (stage,) = st.stages([plain, fast])
    assert stage.pop("arm") == "uno_k4"
    assert stage == pytest.approx({"draft": 100, "verify": 80, "commit": 10, "overhead": 10, "cycle": 200, "outside forwards": 10}, rel=1e-9)
    (found,) = st.cost_model([plain, fast])
    assert found["cycle steps"] == pytest.approx(2.0) and found["predicted"] == pytest.approx(2.0) and found["measured"] == pytest.approx(2.0)
    assert found["break-even prefix"] == pytest.approx(0.0) and found["error"] == pytest.approx(0.0)


def test_a_slot_pays_if_it_returns_more_than_its_time_brings_anyway():
    found = st.slots_that_pay([0.6, 0.3, 0.15, 0.05], committed=3.0, cycle_ms=50.0, slot_ms=1.5)
    assert [p["pays"] for p in found] == [True, True, True, False] and found[0]["needed"] == pytest.approx(0.09)


def test_line_and_correlation():
    assert st.line([1, 2, 3], [3, 5, 7]) == pytest.approx({"intercept": 1.0, "slope": 2.0, "r2": 1.0})
    assert st.correlation([1, 2, 3], [6, 4, 2]) == pytest.approx(-1.0)
    assert st.correlation([1, 1], [1, 2]) is None and st.correlation([1], [1]) is None


def test_audit_counts():
    gaps = (0.0, 1.0, 1.00005, 3.0, None)
    rows = [row(identical_to_ar=False, divergence_gap_ulps=g) for g in gaps] + [row(), row(identical_to_ar=None)]
    found = st.audit(rows)
    assert (found["rows"], found["identical"], found["divergences"], found["exact ties"], found["within one ULP"], found["beyond one ULP"]) == (6, 1, 5, 1, 3, 2)
    assert found["verdict"] == "DEFECT" and st.audit(rows[:3])["verdict"] == "ARITHMETIC" and st.audit([row()])["verdict"] == "IDENTICAL"


def test_ties_and_categories():
    assert st.tie_rate([{"positions": 100, "exact_ties": 1}, {"positions": 100, "exact_ties": 2}]) == {"prompts": 2, "positions": 200, "exact ties": 3, "rate": 1.5}
    rows = [row("ar", "code-1"), row("uno_k4", "code-1", seconds=0.5, accepted=[1, 2], committed=[5, 5]), row("ar", "prose-1"), row("uno_k4", "prose-1", accepted=[0], committed=[10])]
    code, prose = st.categories(rows, "uno_k4")
    assert (code["x plain"], code["mean accepted prefix"], code["accepted / drafted"], prose["x plain"]) == (2.0, 1.5, 0.5, 1.0)


def test_loop_free_rows_repeat_less_than_a_twentieth():
    assert [r["ar_looped_fraction"] for r in st.loop_free([row(ar_looped_fraction=f) for f in (0.0, 0.049, 0.05, 0.9)])] == [0.0, 0.049]
