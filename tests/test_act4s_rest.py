"""The rest of Act IV-S on the embedded model: sections, costs, resume; its tables and metrics on rows written by hand."""
import json
from dataclasses import replace

import pytest
import synthetic
from specdecode_nb import criteria
from specdecode_nb.book import acts, measures, rest
from specdecode_nb.book import page as pages
from specdecode_nb.errors import BadInput
from specdecode_nb.protocols import act4s_rest
from specdecode_nb.records import RowFile, check_row, load_rows, save_rows
from specdecode_nb.targets import load_target

PARAMS = acts.get("act4s").resolve({"part": "rest", "quick": True, "tokens": 8, "rest_prompts": 2, "policy_prompts": 2,
                                    "lengths": [6, 9], "contexts": [16, 24]})
CONTROLS = ["ar", "ar_mlx_lm", "uno_k1", "uno_k4", "refine2_k4", "refine4_k4", "ngram2_k4", "ngram3_k4", "untrained_k4", "shuffled_k4", "conf_k4"]
POLICIES = ["ar", "ar_mlx_lm", "uno_k2", "uno_k4", "uno_k8", "adapt_entropy", "adapt_survival", "adapt_ev", "adapt_value0"]


short_prompts = synthetic.short_prompts(act4s_rest)


@pytest.fixture(scope="module")
def measured(short_prompts, tmp_path_factory):
    return load_rows(act4s_rest.measure(PARAMS, tmp_path_factory.mktemp("rest") / "act4s_rest.journal"))


def test_every_section_has_its_arms_in_protocol_order(measured):
    arms = lambda name: [r["arm"] for r in measures.section(measured, name)]  # noqa: E731
    assert measured.act == "act4s_rest" and arms("controls") == CONTROLS * 2 and arms("policies") == POLICIES * 2
    assert [(r["tokens"], r["arm"]) for r in measures.section(measured, "length")] == [(n, arm) for n in (6, 9) for _ in range(2) for arm in ("ar", "uno_k4")]
    assert [(r["prompt_tokens"], r["tokens"]) for r in measures.section(measured, "context")] == [(n, 8) for n in (16, 24) for _ in range(5)]
    assert {(r["width"], r["prompt_id"]) for r in measured.of("cycle_cost")} == {(w, p) for w in (0, 1, 2, 4, 8) for p in measured.config["prompts"]}


def test_every_row_is_plain_decoding(measured):
    assert all(r["identical_to_ar"] for r in measured.of("decode"))
    assert len(measured.of("decode")) == 22 + 18 + 8 + 10


def test_arms_are_what_they_are_called(measured):
    forwards = {r["arm"]: (r["forwards"] - 1) / r["cycles"] for r in measures.section(measured, "controls") if r["cycles"]}
    assert forwards["refine4_k4"] == pytest.approx(5, abs=1) and forwards["uno_k4"] <= 2 and forwards["ngram2_k4"] == forwards["ngram3_k4"] == 1
    for r in measured.of("decode"):
        assert bool(r.get("width_per_cycle")) == r["arm"].startswith("adapt_") and bool(r.get("confidence_per_cycle")) == (r["arm"] == "conf_k4")
    assert measured.config["criteria"] == criteria.load("act4s_rest").rules and measured.config["shuffled_adapter"]


def test_costs_are_milliseconds_of_a_cycle():
    rows = [{"width": 2, "cycles": 4, "seconds": 0.1}, {"width": 2, "cycles": 1, "seconds": 0.05}, {"width": 0, "cycles": 10, "seconds": 0.1}]
    assert act4s_rest.costs_of(rows) == pytest.approx({2: 30.0, 0: 10.0})


def test_a_context_is_a_recipe_and_the_shorter_one_begins_the_longer():
    target = load_target("tiny-hybrid")
    short, long = (act4s_rest.context_prompt(target, n)["ids"] for n in (300, 3000))
    assert (len(short), len(long)) == (300, 3000) and long[:300] == short and 0 not in long
    assert act4s_rest.context_prompt(target, 300)["ids"] == short


def test_a_killed_run_goes_on_from_its_finished_rows(tmp_path):
    journal = tmp_path / "act4s_rest.journal"

    def stop(done, total, label):
        if done == 9:
            raise KeyboardInterrupt

    few = PARAMS | {"rest_prompts": 1, "policy_prompts": 1, "lengths": [6], "contexts": [16]}
    with pytest.raises(KeyboardInterrupt):
        act4s_rest.measure(few, journal, stop)
    first = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    seen = []
    file = load_rows(act4s_rest.measure(few, journal, lambda *a: seen.append(a), resume=True))
    assert len(first) == 9 and file.rows[:9] == first and seen[0][0] == 9 and seen[-1][0] == seen[-1][1] == len(file.rows)


def test_a_drafter_without_an_adapter_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(BadInput, match="ngram"):
        act4s_rest.measure(PARAMS | {"drafter": "ngram"}, tmp_path / "act4s_rest.journal")
    assert not list(tmp_path.iterdir())


def test_every_criterion_asks_for_a_metric_that_rows_give(measured):
    """On these few rows some cannot be had: no prompt of the three kinds, no loops."""
    wanted = {c.rule.metric for c in criteria.load("act4s_rest")}
    given = set(rest.metrics(measured))
    assert given <= wanted and wanted - given <= {"high_entropy_excess", "loops_and_acceptance"}
    judged = rest.outcomes(criteria.load("act4s_rest"), measured)
    assert next(o for o in judged if o.criterion.id == "identity").word == criteria.HOLDS and all(o.word for o in judged)


def test_rows_of_other_rules_are_not_judged(measured):
    with pytest.raises(BadInput, match="rules"):
        rest.outcomes(criteria.load("act4s_rest"), replace(measured, config=measured.config | {"criteria": "0" * 64}))


# --- tables from rows written by hand ---

def told(confidence, accepted):
    return {"confidence_per_cycle": confidence, "accepted_per_cycle": accepted, "prompt_id": "p"}


def test_tenths_of_cycles_by_hand():
    """Twenty cycles, mean confidence n / 20 and prefix n // 5: two in each tenth."""
    rows = [told([[[n / 20, 0.0], [n / 20, 0.0]] for n in range(20)], [n // 5 for n in range(20)])]
    found = rest.deciles(rows)
    assert [d["cycles"] for d in found] == [2] * 10 and found[0] == {"tenth": 1, "cycles": 2, "mean top-1": 0.025, "mean accepted prefix": 0.0}
    assert found[2]["mean accepted prefix"] == 0.5 and rest.spread(rows) == 3.0


def test_calibration_counts_proposals_that_verification_reached():
    """Slot 2 of the first cycle was never reached; 0.95 twice with one right, 0.25 once and right, 1.0 falls in the last bin."""
    rows = [told([[[0.95, 0.9], [0.15, 0.1]], [[0.95, 0.9], [0.25, 0.1]], [[1.0, 1.0]], []], [0, 2, 1, 0])]
    found = rest.calibration(rows)
    assert [(b["from"], b["proposals"]) for b in found] == [(0.2, 1), (0.9, 3)]
    assert found[1]["accepted"] == pytest.approx(2 / 3) and found[1]["stated"] == pytest.approx(2.9 / 3)
    assert rest.calibration_error(rows) == pytest.approx((0.75 + 3 * 0.3) / 4)


def test_shares_of_widths():
    rows = [{"arm": "adapt_ev", "width_per_cycle": [2, 2, 4, 0]}, {"arm": "uno_k4"}]
    assert rest.shares(rows).to_dict("records") == [{"arm": "by expected value", "cycles": 4, "K=0": 0.25, "K=2": 0.5, "K=4": 0.25}]


def test_an_interval_over_prompts_keeps_a_prompt_together():
    rows = [{"prompt_id": p, "v": v} for p, v in (("a", 0.0), ("a", 0.0), ("b", 1.0), ("c", 1.0))]
    value, low, high, n = measures.over_prompts(rows, lambda rs: sum(r["v"] for r in rs) / len(rs))
    assert (value, low, high, n) == (0.5, 0.0, 1.0, 3)
    assert measures.over_prompts(rows[:2], lambda rs: 5.0) == (5.0, None, None, 1, "1 prompt")
    assert measures.over_prompts(rows, lambda rs: 5.0, (3, 1)) == (5.0, None, None, "3 and 1", "3 prompts against 1")


def kind(category, n, accepted):
    return {"arm": "uno_k4", "category": category, "prompt_id": f"{category}-{n}", "accepted_per_cycle": accepted, "cycles": len(accepted)}


def test_kinds_of_text_are_compared_over_prompts_of_each():
    """High-entropy prompts accept 0 or 2 a cycle, the others 1: the difference is 0 on average and between -1 and 1."""
    rows = [kind("high_entropy", n, [2 * (n % 2)] * 2) for n in range(4)] + [kind(c, n, [1, 1, 1]) for c in ("code", "structured") for n in range(2)]
    value, low, high, n = rest.kinds_apart(rows)
    assert (value, low, high, n) == (0.0, -1.0, 1.0, "4 and 4")
    assert rest.kinds_apart(rows[3:]) == (1.0, None, None, "1 and 4", "1 prompt against 4") and rest.kinds_apart(rows[:6]) is None


def test_optional_lists_and_costs_have_a_schema(measured):
    row = next(r for r in measured.of("decode") if r["arm"] == "conf_k4")
    told, n = row["confidence_per_cycle"], row["cycles"]
    for change in ({"confidence_per_cycle": told[1:]}, {"confidence_per_cycle": [[[1.5, 0.0]]] * n}, {"confidence_per_cycle": [[[0.5]]] * n},
                   {"width_per_cycle": [4] * (n + 1)}):
        with pytest.raises(BadInput, match="confidence_per_cycle|width_per_cycle"):
            check_row(row | change, "x")
    with pytest.raises(BadInput, match="cycles"):
        check_row({"kind": "cycle_cost", "width": 2, "prompt_id": "p", "cycles": 0, "seconds": 1.0}, "x")


# --- two row files of one Act ---

def test_a_page_takes_either_row_file_of_its_act(measured, tmp_path):
    path = save_rows(tmp_path / "mine.json", measured.act, measured.target, measured.provenance, measured.config, measured.rows)
    page = pages.Page("act4s", acts.get("act4s").defaults | {"rows": str(path)})
    assert isinstance(page.parts["rest"], RowFile) and page.parts["rest"].name == "mine.json"
    assert page.rows is not None and page.rows.act == "act4s"
    with pytest.raises(BadInput, match="act4s_rest"):
        pages.Page("act1", acts.get("act1").defaults | {"rows": str(path)})


def test_the_part_decides_what_is_measured_and_where():
    act = acts.get("act4s")
    assert act.measuring(act.resolve({}))[0] == "act4s"
    assert act.measuring(act.resolve({"part": "rest"})) == ("act4s_rest", "specdecode_nb.protocols.act4s_rest:measure")
    with pytest.raises(BadInput, match="sweep, rest"):
        act.resolve({"part": "rset"})
