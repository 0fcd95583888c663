"""The measuring protocol on the embedded model: rows, order, identity audit, resume."""
import json
from types import SimpleNamespace

import pytest

from specdecode_nb.errors import BadInput
from specdecode_nb.protocols import act4s, common
from specdecode_nb.records import load_rows
from specdecode_nb.targets import load_target, mx
from specdecode_nb.train.grammar import CATEGORIES

PARAMS = {"target": "tiny-hybrid", "drafter": "uno", "block_sizes": [2, 4], "tokens": 12, "repeats": 1, "prompts": 2,
          "dtype": "float32", "quick": True}


@pytest.fixture(scope="module")
def target():
    return load_target("tiny-hybrid")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    return load_rows(act4s.measure(PARAMS, folder / "act4s.journal"))


def test_every_arm_of_every_prompt_is_there_in_protocol_order(measured):
    rows = [r for r in measured.rows if r["kind"] == "decode"]
    arms = ["ar", "ar_mlx_lm", "uno_k2", "uno_k4"]
    assert [r["arm"] for r in rows] == arms * 2
    assert len({r["prompt_id"] for r in rows}) == 2
    assert all(r["tokens"] == 12 for r in rows)


def test_on_the_reference_blas_every_arm_gives_the_same_tokens(measured):
    rows = [r for r in measured.rows if r["kind"] == "decode"]
    assert all(r["identical_to_ar"] for r in rows)
    for prompt in {r["prompt_id"] for r in rows}:
        assert len({r["token_digest"] for r in rows if r["prompt_id"] == prompt}) == 1


def test_counters_add_up(measured):
    for r in measured.rows:
        if r["kind"] == "decode" and r["cycles"]:
            assert sum(r["committed_per_cycle"]) == r["tokens"]
            assert len(r["accepted_per_cycle"]) == len(r["offered_per_cycle"]) == r["cycles"]
            assert all(a <= o for a, o in zip(r["accepted_per_cycle"], r["offered_per_cycle"]))
            stages = r["prefill_seconds"] + r["draft_seconds"] + r["verify_seconds"] + r["commit_seconds"] + r["overhead_seconds"]
            assert stages == pytest.approx(r["wall_seconds"])
            assert r["peak_memory_bytes"] > 0


def test_ties_and_loops_are_measured_too(measured):
    ties = [r for r in measured.rows if r["kind"] == "tie"]
    assert ties and all(r["dtype"] == "bfloat16" and 0 <= r["exact_ties"] <= r["positions"] for r in ties)
    assert len([r for r in measured.rows if r["kind"] == "loops"]) == 2


def test_provenance_names_target_drafter_and_machine_but_no_path(measured):
    text = json.dumps(measured.provenance)
    assert {"target", "drafter", "machine", "versions", "blas", "tf32", "date", "package_digest"} <= set(measured.provenance)
    assert "/" not in text.replace("BSD", "").replace("http://", "") or all(part not in text for part in ("/home", "/root", "/tmp", "/Users"))


def test_a_killed_run_goes_on_from_its_finished_rows(tmp_path, monkeypatch):
    journal = tmp_path / "act4s.journal"
    seen = []

    def stop(done, total, label):
        seen.append(done)
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        act4s.measure(PARAMS, journal, stop)
    first = journal.read_text().splitlines()[1:]
    assert len(first) == 3
    with pytest.raises(BadInput, match="resume"):
        act4s.measure(PARAMS, journal)
    with pytest.raises(BadInput):
        act4s.measure(PARAMS | {"tokens": 13}, journal, resume=True)
    file = load_rows(act4s.measure(PARAMS, journal, resume=True))
    assert [json.loads(line) for line in first] == file.rows[:3]
    assert [r["arm"] for r in file.rows if r["kind"] == "decode"] == ["ar", "ar_mlx_lm", "uno_k2", "uno_k4"] * 2


def test_audit_counts_every_position_and_the_largest_gap(target):
    prompt = target.encode("Step 1.")
    logits = target.model(mx.array([prompt]))[0, -1]
    order = mx.argsort(-logits).tolist()
    assert common.audit(target, prompt, [order[0]], [order[0]])["identical_to_ar"]
    found = common.audit(target, prompt, [order[0]], [order[5]])
    gap = (logits[order[0]] - logits[order[5]]).item()
    assert found["first_divergence"] == 0 and found["divergence_positions_checked"] == 1
    assert found["divergence_gap_ulps"] == pytest.approx(gap / common.ulp(max(abs(logits[order[0]].item()), abs(logits[order[5]].item())), "float32"), rel=1e-3)


@pytest.mark.parametrize("value, dtype, step", [(1.0, "bfloat16", 2.0**-7), (25.0, "bfloat16", 0.125), (-25.0, "bfloat16", 0.125), (1.5, "float32", 2.0**-23)])
def test_ulp(value, dtype, step):
    assert common.ulp(value, dtype) == step


@pytest.mark.parametrize("name, suite", [("tiny-hybrid", "suite"), ("smollm2-135m", "english"), ("Qwen3.5-4B-Base", "english")])
def test_a_suite_has_every_category_and_few_prompts_still_cover_them(name, suite):
    target = SimpleNamespace(name=name)
    whole, few = common.prompt_suite(target), common.prompt_suite(target, 9)
    assert common.suite_of(target) == suite and len({p["category"] for p in few}) == 9
    assert len(whole) == 27 == len({p["id"] for p in whole}) == len({p["text"] for p in whole})
    assert {p["category"] for p in whole} == set(CATEGORIES)


@pytest.mark.parametrize("change, word", [({"target": "tiny-hybird"}, "tiny-hybrid"), ({"drafter": "uon"}, "uno"), ({"dtype": "float23"}, "float32"),
                                          ({"tokens": 40_000}, "context"), ({"drafter": "none"}, "drafter")])
def test_bad_input_is_refused_before_anything_is_measured(tmp_path, change, word):
    with pytest.raises(BadInput, match=word):
        act4s.measure(PARAMS | change, tmp_path / "act4s.journal")
    assert not list(tmp_path.iterdir())
