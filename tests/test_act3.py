"""Act III measured in small on a toy: a launch killed between two checkpoints goes on bit for bit; its metrics on rows whose numbers are known."""
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from specdecode_nb import criteria
from specdecode_nb.book import acts, denoising, needs, overview
from specdecode_nb.protocols import act3
from specdecode_nb.records import load_rows
from specdecode_nb.rows.denoised import Masked, MaskedLaunchRow
from specdecode_nb.streams import TRAIN_NOISE, TRAIN_RATE, stream_seed
from specdecode_nb.targets import mx
from toy import VOCAB, hybrid

PARAMS = acts.get("act3").resolve({"quick": True}) | {"steps": 4, "bias_steps": 2, "windows": 3, "prompts": 1}
SMALL = {"PREFIX": 8, "CANVAS": 16, "RANK": 3, "SAVE_EVERY": 1, "LEVELS": (0.1, 0.5, 0.9, 1.0), "FILLS": ((0.0, 8), (0.0, 64), (0.5, 8))}


@pytest.fixture(scope="module")
def small():
    target = hybrid()
    target.tokenizer.pad_token_id = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(act3, "load_target", lambda name, dtype: target)
        for name, value in SMALL.items():
            patch.setattr(act3, name, value)
        yield target


@pytest.fixture(scope="module")
def measured(small, tmp_path_factory):
    """Killed in the middle of its first launch, after a checkpoint, and gone on with."""
    journal = tmp_path_factory.mktemp("act3") / "act3.journal"
    with pytest.MonkeyPatch.context() as patch:
        take = act3.health

        def stop(model, step, *rest):
            if step:
                raise KeyboardInterrupt
            return take(model, step, *rest)

        patch.setattr(act3, "health", stop)
        journal.with_name(f"act3-none-{act3.FIRST_SEED}.safetensors").write_text("of another measurement")
        with pytest.raises(KeyboardInterrupt):
            act3.measure(PARAMS, journal)
    assert list(journal.parent.glob("*.safetensors"))
    file = load_rows(act3.measure(PARAMS, journal, resume=True))
    assert not list(journal.parent.glob("*.safetensors"))
    return file


def test_each_launch_is_judged_by_itself_too(measured):
    seed, *others = measured.config["seeds"]
    whole = denoising.reached(denoising.masked(measured))
    assert not others and denoising.reached_alone(measured) == {seed: whole} and "7" in whole and set(whole) <= set("1234567")
    two = replace(measured, config=measured.config | {"seeds": [seed, seed + 1]}, rows=measured.rows + [r | {"seed": seed + 1} for r in measured.rows if r["seed"] == seed])
    assert denoising.reached_alone(two) == {seed: whole, seed + 1: whole}


def test_every_launch_and_canvas_is_there_once(measured):
    assert [r["arm"] for r in measured.of("masked_launch")] == list(act3.ARMS) and needs.check(measured) is measured
    assert [r["source"] for r in measured.of("canvas")] == ["truth", "greedy", "drawn"] + 3 * ["sampler"]
    truth, full, half = (denoising.canvases(measured, *which)[0] for which in (("truth",), ("sampler", 0.0, 8), ("sampler", 0.5, 8)))
    assert truth["right"] == truth["written"] == 16 and half["written"] == 8 >= half["right"] and len(full["sure"]) == 8 and len(denoising.canvases(measured, "sampler", 0.0, 64)[0]["sure"]) == 16
    table = denoising.fills_table(measured)
    assert len(table) == 6 and table["confidence first"].notna().sum() == 3 and table["rows right"][0] == 100
    assert measured.config["shared_windows"] == 0 and measured.config["mask_id"] == 1
    before = measured.provenance["target"]["digest"]
    assert all(r["target_before"] == r["target_after"] == before for r in measured.of("masked_launch"))


def test_a_launch_that_was_killed_is_the_one_that_was_not(measured, small, tmp_path):
    text = act3.windows(small, act3.BATCH * PARAMS["steps"], 24, act3.TEXT)
    held_out = act3.windows(small, PARAMS["windows"], 24, act3.TEXT, True, act3.APART)
    row, _ = act3.launch(small, "none", act3.Recipe(PARAMS["lr"], steps=PARAMS["steps"], seed=act3.FIRST_SEED), text, held_out, tmp_path / "c.safetensors")
    assert {k: v for k, v in row.items() if k != "seconds"} == {k: v for k, v in measured.of("masked_launch")[0].items() if k != "seconds"}


def test_levels_and_masks_of_a_step_have_streams_of_their_own(small):
    key = lambda stream: mx.random.key(stream_seed(7, stream, 3))  # noqa: E731
    text = np.random.default_rng(1).integers(2, VOCAB, (5, 24)).astype(np.int32)
    _, hidden, t = act3.batches(text, act3.Recipe(seed=7))(3)
    assert np.array_equal(t, mx.random.uniform(0.05, 1.0, (2,), key=key(TRAIN_RATE)))
    assert np.array_equal(hidden, act3.masks(t, 16, key(TRAIN_NOISE)))


def test_arms_differ_in_the_bias_alone(measured):
    none, free, one, twenty = measured.of("masked_launch")
    assert free["trained"] == one["trained"] == twenty["trained"] == none["trained"] + 256 * 64 + 64 * 64 + 2 * 64 and none["health"][0]["bias"] == []
    assert np.allclose(one["health"][-1]["bias"], 1, rtol=1e-4) and np.allclose(twenty["health"][-1]["bias"], 20, rtol=1e-4) and free["health"][0]["bias"] == [0] * 4
    assert none["ar"][0] == free["ar"][0] == one["ar"][0] == twenty["ar"][0]  # the same windows, and ordinary decoding has no bias
    assert none["diff"][0] == free["diff"][0] != one["diff"][0] != twenty["diff"][0] and len(free["ar"]) == 2


def test_counts_of_a_level(measured):
    for launch in measured.of("masked_launch"):
        levels = {level["t"]: level for level in launch["health"][-1]["levels"]}
        assert [levels[t]["hidden"] for t in (0.1, 0.5, 0.9, 1.0)] == [2, 8, 14, 16] and max(levels[1.0]["canvas_l1"]) < 1e-4 < min(levels[0.5]["canvas_l1"])
        assert all(len(level["nats"]) == 3 for level in levels.values())


def test_every_rule_can_be_judged(measured):
    found, rules = denoising.masked_numbers(measured), criteria.load("act3")
    assert {c.rule.metric for c in rules} == set(found)
    words = {o.criterion.id: o.word for o in denoising.masked(measured)}
    assert words["7"] == criteria.HOLDS and words["sampler-nats"] == "not decidable: 1 window"
    assert overview.found("act3", measured)[0].startswith("masked accuracy ")


def test_metrics_by_hand(measured):
    """Windows whose accuracies are known: gaps, factor, preservation."""
    def launch(row):
        def level(t, hidden, right, seen):
            return {"t": t, "hidden": hidden, "visible": 100 - hidden, "hidden_right": right, "visible_right": seen, "visible_next": seen, "visible_next_of": [99 - hidden] * 3, "names_mask": [0] * 3, "nats": [1.0] * 3,
                    "canvas_l1": [0.4, 0.5, 0.6]}
        start, end = [3, 3, 3], [20, 25, 30]
        points = [{"step": s, "ar": [ar] * 3, "bias": [], "levels": [level(0.1, 10, [6, 6, 6], [9, 9, 9]), level(0.5, 50, mid, [40, 40, 40]), level(0.9, 90, [9, 9, 9], [1, 1, 1]),
                                                                   level(1.0, 100, [5, 5, 5], [0, 0, 0])]} for s, ar, mid in ((0, 2.0, start), (4, 2.5, end))]
        return row | {"health": points}

    found = denoising.masked_numbers(replace(measured, rows=[launch(r) if r.get("arm") == "none" else r for r in measured.rows]))
    assert found["gap"][0] == pytest.approx(10) and found["gap"][1] == pytest.approx(0) and found["masked:0.1"][:3] == (60, 60, 60)
    assert found["gain"][0] == pytest.approx(25 / 3) and found["preserved"][0] == pytest.approx(10) and found["ppl"][:3] == pytest.approx((np.exp(0.5),) * 3)
    assert found["canvas_l1"][0] == pytest.approx(0.5) and found["canvas_l1"][1] < 0.45 and found["from_nothing"][0] == pytest.approx(0.5)


def test_a_launch_that_stopped_is_kept_and_not_judged(measured):
    rows = [r | {"stopped": "Training stopped at step 1"} if r.get("arm") == "x20" else r for r in measured.rows]
    found = denoising.masked_numbers(replace(measured, rows=rows))
    assert "l1:x20" not in found and "pair_l1" not in found and "l1:x1" in found
    assert MaskedLaunchRow.model_validate(rows[-1] | {"ar": [], "diff": [], "health": []})


@pytest.mark.parametrize("change, words", [({"nats": [1.0]}, "lists of"), ({"hidden_right": [9, 0]}, "with 8 hidden"), ({"canvas_l1": [2.5, 0.0]}, "less than or equal")])
def test_impossible_counts_are_refused(change, words):
    good = {"t": 0.5, "hidden": 8, "visible": 8, "hidden_right": [8, 0], "visible_right": [0, 8], "visible_next": [0, 0], "visible_next_of": [7, 8], "names_mask": [0, 0], "nats": [1.0, 2.0], "canvas_l1": [0.0, 2.0]}
    assert Masked.model_validate(good)
    with pytest.raises(ValidationError, match=words):
        Masked.model_validate(good | change)
