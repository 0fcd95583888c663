"""Published rules on rows whose outcome is known beforehand."""
import pytest

from specdecode_nb import criteria
from specdecode_nb.book import overview, published, verdicts
from test_statistics import row


def rows(k8_seconds=0.9, gap=None, forwards=None):
    """Two prompts in each of three categories; plain takes 1 s, K=1 1.2 s, K=4 0.7 s."""
    out = []
    for category, accepted in (("code", 3), ("structured", 2), ("high_entropy", 1)):
        for n in (1, 2):
            arms = [row("ar", seconds=1.0), row("uno_k1", seconds=1.2, accepted=[0] * 5, committed=[2] * 5, offered_per_cycle=[0] * 5, verify_seconds=0.5),
                    row("uno_k4", seconds=0.7, accepted=[accepted] * 2, committed=[5, 5], draft_seconds=0.2, verify_seconds=0.2),
                    row("uno_k8", seconds=k8_seconds, accepted=[accepted] * 2, committed=[5, 5], offered_per_cycle=[7, 7], draft_seconds=0.3, verify_seconds=0.3)]
            out += [r | {"prompt_id": f"{category}-{n}", "category": category} for r in arms]
    if gap is not None:
        out[2] |= {"identical_to_ar": False, "divergence_gap_ulps": gap}
    if forwards:
        out[2]["forwards"] = forwards
    return out


def test_every_judged_claim_is_a_published_one():
    for act, claim in verdicts.claims(rows()):
        facts = published.load(act).facts
        assert claim in [c.id for c in facts.criteria] + [n.hypothesis for n in facts.negative_results]


def test_outcomes_follow_the_rows():
    found = verdicts.claims(rows())
    assert found["act4s", "Gate 3"].startswith("holds: K=4 at 1.429")
    assert found["act4s", "Gate 4-useful"].startswith("holds") and found["act4s", "Gate 4-strong"].startswith("does NOT hold")
    assert found["act4s", "The draft-verify cycle is free"].startswith("negative here too: K=1 at 0.833")
    assert found["act4s", "Pred-high-entropy"].startswith("holds")
    assert found["act4u4", "U4-B3b"].startswith("does NOT hold: K=8 at 0.778")
    slots = "act4u4", "Slots beyond the third pay for themselves"
    assert "never trained" not in found[slots] and verdicts.claims(rows(), 5)[slots] == found[slots] + "; the adapter was trained at K=5, so slots 5 to 7 were never trained"
    assert verdicts.claims(rows(k8_seconds=0.6))["act4u4", "K=8 is the faster block size"].startswith("NOT negative here")


@pytest.mark.parametrize("gap, outcome", [(0.0, "holds: 17 of 18"), (1.0, "holds: 17 of 18"), (2.0, "does NOT hold: 17 of 18")])
def test_identity_allows_one_unit_in_the_last_place(gap, outcome):
    assert verdicts.claims(rows(gap=gap))["act4s", "Gate 1"].startswith(outcome)


def test_a_third_forward_is_seen():
    assert verdicts.claims(rows())["act4u2", "U2-2"].startswith("holds")
    assert verdicts.claims(rows(forwards=6))["act4u2", "U2-2"].startswith("does NOT hold: 1 of 18")


def test_paying_slots_by_hand():
    # 1 ms a slot, 10 ms a cycle at width 4: slot 1 needs 2/7, slot 2 needs 2.5/8, slot 3 needs 2.8/9
    assert verdicts.paying_slots([0.5, 0.3, 0.32], {2: 8.0, 4: 10.0}) == [1, 3]


def test_the_ledger_says_what_was_not_measured(monkeypatch):
    monkeypatch.setattr(overview, "rows_of", lambda act, target: {})
    ledger = overview.ledger()
    without = {(act, claim) for act in ("act2", "act4u4", "act4u5", "dflash") for claim in criteria.load(act).unjudged}
    for act, id, here in zip(ledger["act"], ledger["id"], ledger["here"]):
        assert here.startswith("no rule: ") if (act, id) in without else here == "not measured"
    assert len(without) > 5


def test_the_overview_of_a_target_shows_the_rows_of_that_target():
    assert overview.rows_of("act4s", "tiny-hybrid").keys() == {"tiny-hybrid"} and overview.rows_of("act4s", "another") == {}
    one, every = overview.measured("act4s", "tiny-hybrid"), overview.measured("act4s")
    assert overview.measured("act4s", "another") == "not measured" != one and one in every and "smollm2-135m" in every and "smollm2-135m" not in one


def test_what_was_not_measured_is_left_out_of_a_finding():
    """The hybrid target has no draft model for mlx-lm, and the real one no chained head."""
    hybrid, real = (overview.measured("dflash", target) for target in ("tiny-hybrid", "smollm2-135m"))
    assert "not measured" not in hybrid + real and "chained head" in hybrid and "chained head" not in real
    assert "small draft model" in real and "small draft model" not in hybrid and "dflash-mlx leaves plain decoding" in hybrid and "dflash-mlx" not in real
