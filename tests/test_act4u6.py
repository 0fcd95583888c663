"""The protocol of Act IV-U6 on the embedded model, and its rules on rows whose outcome is known beforehand."""
import json

import pytest
import synthetic
from specdecode_nb import criteria
from specdecode_nb.book import acts, published, staging
from specdecode_nb.errors import BadInput
from specdecode_nb.protocols import act4u6
from specdecode_nb.records import RowFile, check_row, load_rows

PARAMS = acts.get("act4u6").resolve({"quick": True}) | {"prompts": 2, "tokens": 6, "drafts": [4, 6], "repeats": 1}
ARMS = ["ar", "uno_k4", "dec_d4v4", "uno_k4_b2", "staged_d6v4", "staged_d8v4", "staged_d6v3", "staged_d8v2", "trunc_d6v4", "trunc_d8v4"]


short_prompts = synthetic.short_prompts(act4u6)
CONTEXTS = 3


@pytest.fixture(scope="module", autouse=True)
def short_contexts():
    """The diagnostic looks at 3 contexts of a prompt instead of 9."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(act4u6, "CONTEXT", (CONTEXTS - 1) * act4u6.SPACING)
        yield


@pytest.fixture(scope="module")
def measured(short_prompts, short_contexts, tmp_path_factory):
    return load_rows(act4u6.measure(PARAMS, tmp_path_factory.mktemp("measured") / "act4u6.journal"))


def test_every_row_of_the_three_sections_is_there(measured):
    assert [r["arm"] for r in measured.of("decode")] == ARMS * 2
    shots = {(r["prompt_id"], r["at"], r["condition"], r["draft_width"]) for r in measured.of("wide_draft")}
    assert len(shots) == len(measured.of("wide_draft")) == 2 * CONTEXTS * (2 * 2 + 1)
    forwards = {(r["prompt_id"], r["forward"], r["width"]) for r in measured.of("cost")}
    assert len(forwards) == len(measured.of("cost")) == 2 * (17 + 16)
    assert measured.config["reduced"] is True and measured.config["criteria"] == criteria.load("act4u6").rules


def test_the_text_is_plain_and_the_coupled_and_decoupled_k4_make_the_same_cycles(measured):
    rows = measured.of("decode")
    assert all(r["identical_to_ar"] for r in rows)
    by = {(r["arm"], r["prompt_id"]): r for r in rows}
    for p in measured.config["prompts"]:
        one, other = by["uno_k4", p], by["dec_d4v4", p]
        assert one["committed_per_cycle"] == other["committed_per_cycle"] and one["forward_tokens"] == other["forward_tokens"]


def test_cycles_of_a_staged_row_add_up(measured):
    for r in measured.of("decode"):
        if "drafted_per_cycle" in r:
            assert r["drafted_per_cycle"][0] > 0 and all(h <= r["verify_width"] for h in r["handed_per_cycle"])
            assert sum(r["seconds_per_cycle"]) == pytest.approx(r["wall_seconds"] - r["prefill_seconds"], rel=0.02)
            assert sum(b["committed"] for b in staging.blocks(r)) == r["tokens"]


def test_shared_noise_gives_the_same_first_proposals_at_every_width(measured):
    """The forward is causal and rows do not depend on the width here, so even the logits agree."""
    wide = measured.of("wide_draft")
    assert staging.identity(wide, "aligned", 6) == [1.0] * 4
    assert max(max(r["max_abs_logit_diff_vs_d4"]) for r in staging.condition(wide, "aligned", 6)) < 1e-3
    assert {tuple(r["proposals"]) for r in staging.condition(wide, "decoder", 4)} != {tuple(r["proposals"]) for r in staging.condition(wide, "redraw", 4)}
    # slot 1 is the target's own next token under every condition
    assert all(r["proposals"][0] == r["target"][0] for r in wide)


def test_every_metric_of_the_criteria_is_computed(measured):
    found = staging.numbers(measured)
    assert {c.rule.metric for c in criteria.load("act4u6")} <= found.keys()
    judged = staging.outcomes(measured)
    assert [o.criterion.id for o in judged] == [c.id for c in criteria.load("act4u6")]
    assert {c.id for c in published.load("act4u6").facts.criteria} - {"Prediction"} <= {o.criterion.id for o in judged}


def test_rows_made_under_other_rules_are_refused(measured):
    other = RowFile(**{**vars(measured), "config": measured.config | {"criteria": "0" * 64}})
    with pytest.raises(BadInput, match="not measured under the rules"):
        staging.outcomes(other)


def test_a_killed_run_goes_on_from_its_finished_rows(tmp_path, measured):
    """Killed in the diagnostic and among the costs, within a prompt."""
    journal = tmp_path / "act4u6.journal"
    for n, at in enumerate((7, 60)):
        with pytest.raises(KeyboardInterrupt):
            act4u6.measure(PARAMS, journal, synthetic.stopping(at, 2 * (5 * CONTEXTS + 33 + 10)), resume=n > 0)
    first = [row for row in map(json.loads, journal.read_text().splitlines()[1:]) if "kind" in row]  # the others are readings of the machine
    assert len(first) == at
    file = load_rows(act4u6.measure(PARAMS, journal, resume=True))
    assert file.rows[:at] == first
    key = lambda r: tuple(r.get(k) for k in ("kind", "arm", "prompt_id", "repeat", "at", "condition", "draft_width", "forward", "width"))  # noqa: E731
    assert [key(r) for r in file.rows if r["kind"] != "cost"] == [key(r) for r in measured.rows if r["kind"] != "cost"]
    assert {key(r) for r in file.rows} == {key(r) for r in measured.rows} and len(file.rows) == len(measured.rows)


@pytest.mark.parametrize("change, word", [({"drafter": "ngram"}, "canvas"), ({"drafts": [6, 8]}, "add it"), ({"tokens": 40_000}, "context"), ({"target": "tiny-hybird"}, "tiny-hybrid")])
def test_bad_input_is_refused_before_anything_is_measured(tmp_path, change, word):
    with pytest.raises(BadInput, match=word):
        act4u6.measure(PARAMS | change, tmp_path / "act4u6.journal")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind, field, value", [("wide_draft", "proposals", [1, 2, 3]), ("wide_draft", "condition", "other"), ("wide_draft", "top1", [0.5]), ("cost", "seconds", 0.0),
                                                ("cost", "forward", "commit"), ("cost", "width", "4"), ("decode", "drafted_per_cycle", [4])])
def test_rows_that_do_not_fit_are_refused(measured, kind, field, value):
    row = measured.of(kind)[-1]
    check_row(row, "here")
    with pytest.raises(BadInput):
        check_row(row | {field: value}, "here")


# --- rules ---

def run(arm, prompt, repeat=0, seconds=1.0, committed=(5, 5), drafted=None, looped=0.0, verify=0.3, draft=0.2):
    """Ten tokens; times in seconds."""
    row = {"kind": "decode", "arm": arm, "prompt_id": prompt, "repeat": repeat, "tokens": sum(committed), "wall_seconds": seconds, "prefill_seconds": 0.0, "verify_seconds": verify,
           "draft_seconds": draft, "cycles": len(committed), "committed_per_cycle": list(committed), "ar_looped_fraction": looped}
    return row | ({"drafted_per_cycle": list(drafted), "seconds_per_cycle": [seconds / len(committed)] * len(committed)} if drafted else {})


def sweep(staged=1.0, twin=1.0, loop_free=None, **more):
    """Six prompts, two loop-free ones; ``staged`` is the time of every staged arm, ``loop_free`` that on the loop-free prompts."""
    out = []
    for i in range(6):
        free = i < 2
        time = loop_free if free and loop_free is not None else staged
        common = dict(prompt=f"p{i}", looped=0.0 if free else 0.5)
        out += [run("uno_k4", **common), run("uno_k4_b2", seconds=twin, **common), run("ar", seconds=1.5, **common), run("dec_d4v4", **common)]
        out += [run(a, seconds=time, **common, **more) for a in staging.STAGED] + [run(a, seconds=1.2, **common) for a in staging.TRUNCATED]
    return out


def test_the_floor_is_the_larger_end_rounded_up_to_a_half_and_at_least_one():
    assert staging.floor(sweep()) == 1.0
    assert staging.floor(sweep(twin=1 / 1.0071)) == 1.0
    assert staging.floor(sweep(twin=1 / 1.0171)) == 2.0 and staging.floor(sweep(twin=1 / 0.976)) == 2.5


@pytest.mark.parametrize("staged, loop_free, won", [(0.9, None, True), (0.995, None, False), (1.1, None, False), (0.8, 1.05, False)])
def test_an_arm_wins_by_interval_floor_and_loop_free_text(staged, loop_free, won):
    rows = sweep(staged, loop_free=loop_free)
    assert staging.wins(rows, "staged_d8v4") is won
    assert (staging.rule(rows, False) == 1) is won


def test_the_verdict_rules_in_their_order():
    slow = dict(committed=(5, 5), drafted=(8, 0))  # ten tokens from one draft, where K=4 needs two
    assert staging.rule(sweep(1.2, verify=0.6, draft=0.1, **slow), False) == 3
    assert staging.rule(sweep(1.2, verify=0.01, draft=0.9, **slow), False) == 4
    assert staging.rule(sweep(1.2), False) == 5 and staging.rule(sweep(1.2), True) == 6
    wide = [r | ({"wall_seconds": 0.8} if r["arm"] == "trunc_d8v4" else {}) for r in sweep(1.2)]
    assert staging.rule(wide, False) == 2


def test_blocks_gather_their_stages():
    row = run("staged_d8v4", "p", committed=(5, 4, 2, 5), drafted=(8, 0, 8, 3), seconds=4.0) | {"draft_width": 8}
    assert staging.blocks(row) == [{"drafted": 8, "committed": 9, "stages": 2, "seconds": 2.0}, {"drafted": 8, "committed": 2, "stages": 1, "seconds": 1.0},
                                   {"drafted": 3, "committed": 5, "stages": 1, "seconds": 1.0}]
    same = run("staged_d8v2", "p", committed=(3, 3, 3, 2, 3, 2), drafted=(8, 0, 0, 8, 3, 2)) | {"draft_width": 8}  # its last draft is cut to the budget
    assert staging.differing([row, same], "staged_d8v4", "staged_d8v2") == 0
    assert staging.differing([row, same | {"committed_per_cycle": [3, 3, 3, 3, 2, 2]}], "staged_d8v4", "staged_d8v2") == 1


@pytest.mark.parametrize("draft, verify, rows", [(8, 4, [4, 4]), (6, 4, [4, 2]), (6, 3, [3, 3]), (8, 2, [2, 3, 3]), (4, 4, [4]), (5, 4, [4])])
def test_rows_of_the_stages_of_a_perfect_draft(draft, verify, rows):
    """As published, where the first stage has the seed's row as well."""
    assert staging.stage_rows(draft, verify) == rows


def cost(forward, width, seconds, prompt="p0"):
    return {"kind": "cost", "prompt_id": prompt, "forward": forward, "width": width, "seconds": seconds, "commit_seconds": 0.0}


@pytest.mark.parametrize("cliff", [1.0, 2.0])
def test_costs_of_a_line_with_and_without_a_cliff(cliff):
    """20 ms and 1 ms a row, the publication's shape; 17 rows times ``cliff``."""
    c = staging.Costs([cost(f, w, (20 + w) / 1000 * (cliff if w == 17 else 1), p) for p in ("p0", "p1", "p2") for f in ("verify", "draft") for w in range(1, 18)])
    fit = c.fit("verify", 2, 9)
    assert fit["intercept"] == pytest.approx(20) and fit["slope"] == pytest.approx(1) and fit["r2"] == pytest.approx(1)
    assert c.cliff()[0] == pytest.approx(cliff) and c.cliff()[3] == 3
    assert c.two_for_one()[0] == pytest.approx(48 / 28)
    assert c.perfect(8, [4, 4], 1.0) == pytest.approx(9 / (28 + 2 * 25)) and c.perfect(4, [4], 1.0) == pytest.approx(5 / (24 + 25))
    rule = criteria.load("act4u6")["N-cliff"]
    assert criteria.judge(rule, *c.cliff()).word == (criteria.HOLDS if cliff == 1 else criteria.FAILS)


def wide(prompt, condition, width, right):
    """``right`` leading right guesses after the first slot."""
    target = [10, 11, 12, 13, 14]
    return {"prompt_id": prompt, "condition": condition, "draft_width": width, "proposals": (target[: 1 + right] + [0] * width)[:width], "target": target}


@pytest.mark.parametrize("right, redrawn, passing", [(3, 1, [8]), (1, 1, []), (3, 3, []), (0, 1, [])])
def test_a_wider_draft_helps_only_beyond_the_redraw(right, redrawn, passing):
    rows = [wide(f"p{i}", *c) for i in range(4) for c in (("decoder", 4, 1), ("decoder", 8, right), ("redraw", 4, redrawn))]
    assert staging.helping(rows) == passing
    value, low, high, n = staging.change(rows, "decoder", 8)
    assert value == low == high == right - 1 and n == 4
    assert criteria.judge(criteria.load("act4u6")["U6-1-d8"], value, low, high, n).word == (criteria.HOLDS if right == 3 else criteria.FAILS)
