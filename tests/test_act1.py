"""Act I measured in small on a toy: four runs, killed and gone on with; its metrics on rows whose numbers are known."""
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from specdecode_nb import criteria
from specdecode_nb.book import acts, denoising, needs, overview
from specdecode_nb.errors import BadInput
from specdecode_nb.protocols import act1
from specdecode_nb.records import load_rows
from specdecode_nb.rows.denoised import OverfitRow, Tally
from specdecode_nb.streams import TRAIN_NOISE, TRAIN_RATE, stream_seed
from specdecode_nb.targets import mx
from specdecode_nb.train.denoise import replaced
from toy import VOCAB, hybrid

PARAMS = acts.get("act1").resolve({"quick": True}) | {"seeds": 2, "share": 1.0}
SHORT = {name: replace(run, steps=2 + 2 * (name > "002")) for name, run in act1.RUNS.items()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Killed after three launches, gone on with under the same settings alone."""
    journal = tmp_path_factory.mktemp("act1") / "act1.journal"

    def stop(done, total, label):
        assert total == 8
        if done == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(act1, "load_target", lambda name, dtype: hybrid())
        for name, value in {"RUNS": SHORT, "TEXTS": 2, "TEXT_ROWS": 16, "GREEDY": 3, "EVERY": 3}.items():
            patch.setattr(act1, name, value)
        with pytest.raises(KeyboardInterrupt):
            act1.measure(PARAMS, journal, stop)
        with pytest.raises(BadInput, match="lr was"):
            act1.measure(PARAMS | {"lr": 0.5}, journal, resume=True)
        return load_rows(act1.measure(PARAMS, journal, resume=True))


def test_every_run_of_every_seed_is_there_once_and_the_target_is_as_it_was(measured):
    assert [(r["seed"], r["run"]) for r in measured.rows] == [(s, name) for s in measured.config["seeds"] for name in act1.RUNS]
    before = measured.provenance["target"]["digest"]
    assert all(r["target_before"] == r["target_after"] == before and r["bits_changed"] == 0 for r in measured.rows)
    assert len({r["digest"] for r in measured.rows}) == 8 and needs.check(measured) is measured
    one, four = (next(r for r in measured.rows if r["run"] == name) for name in ("001", "004"))
    assert one["losses"] == four["losses"][:2] and one["curve"][0] == four["curve"][0] and one["trained"] < measured.rows[2]["trained"]
    with pytest.raises(BadInput, match="overfit rows with run 003"):
        needs.check(replace(measured, rows=[r for r in measured.rows if r["run"] != "003"]))


def test_counts_agree_with_the_noise(measured):
    for r in measured.rows:
        by_level = {level["t"]: level for level in r["levels"]}
        assert by_level[0.0]["changed"] == 0 and by_level[1.0]["changed"] > 0.95 * by_level[1.0]["rows"] and r["nats_off"] == measured.rows[0]["nats_off"]
        assert all(level["rows"] == 2 * 2 * act1.CANVAS for level in r["levels"]) and len(r["fills"][0]["sure"]) == act1.FORWARDS
        assert len({(c["rows"], c["changed"]) for c in r["curve"]}) == 1  # the same draws at every step


def test_a_launch_is_a_function_of_its_seed(measured):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RUNS": SHORT, "TEXTS": 2, "TEXT_ROWS": 16, "GREEDY": 3, "EVERY": 3}.items():
            patch.setattr(act1, name, value)
        again = act1.launch(hybrid(), "001", SHORT["001"], PARAMS["draws"], act1.Recipe(PARAMS["lr"], act1.WARMUP, SHORT["001"].steps, act1.FIRST_SEED))
    assert {k: v for k, v in again.items() if k != "seconds"} == {k: v for k, v in measured.rows[0].items() if k != "seconds"}


@pytest.mark.parametrize("name", ("001", "002"))
def test_levels_and_noise_of_a_step_have_streams_of_their_own(name, monkeypatch):
    """What a launch gives its loop, which is not run here."""
    class Given(Exception):
        pass

    def loop(model, loss, batch, *_, **__):
        raise Given(batch)

    monkeypatch.setattr(act1, "Loop", loop)
    monkeypatch.setattr(act1, "POOL", 4)
    with pytest.raises(Given) as given:
        act1.launch(hybrid(), name, SHORT[name], 1, act1.Recipe(seed=7))
    ids, t = given.value.args[0](3)
    key = lambda stream: mx.random.key(stream_seed(7, stream, 3))  # noqa: E731
    clean = act1.examples(hybrid(), 7, False)
    assert np.array_equal(t, mx.random.uniform({"001": 0.0, "002": 0.1}[name], 0.5, (2,), key=key(TRAIN_RATE)))
    assert np.array_equal(ids[:, :16], clean[:, :16]) and np.array_equal(ids[:, 16:], replaced(clean[:, 16:], t, VOCAB, key(TRAIN_NOISE)))


def test_every_rule_can_be_judged(measured):
    found, rules = denoising.overfit_numbers(measured), criteria.load("act1")
    assert {c.rule.metric for c in rules} == set(found)
    words = {o.criterion.id: o.word for o in denoising.overfit(measured)}
    assert words["A1-AR-off"] == criteria.HOLDS and words["A1-003"] == "not decidable: 2 seeds"
    assert overview.found("act1", measured)[0].startswith("lift over a copier ")


def test_lift_and_corrupted_accuracy_by_hand(measured):
    """A copier has no lift; 3 of 4 changed rows and all unchanged ones right is a lift of 30 points on 10 rows."""
    def with_counts(**counts):
        entry = {"step": 2, "t": 0.0, "rows": 10, "changed": 4, **counts}
        return replace(measured, rows=[r | {"curve": [entry], "steps": 2 + (r["run"] > "002")} for r in measured.rows] + [measured.rows[0] | {"seed": 9, "run": n, "curve": [entry], "steps": 2 + (n > "002")} for n in act1.RUNS])

    found = denoising.overfit_numbers(with_counts(changed_right=0, unchanged_right=6))
    assert found["lift:001"][:3] == (0, 0, 0) and found["corrupted:001"][0] == 0 and found["unchanged:002"][0] == 100
    found = denoising.overfit_numbers(with_counts(changed_right=3, unchanged_right=6))
    assert np.allclose(found["lift:003"][:3], 30) and found["corrupted:001"][0] == 75 and found["steps"][0] == 0


@pytest.mark.parametrize("change, words", [({"changed_right": 5}, "5 of 4 changed"), ({"unchanged_right": 7}, "7 of 6 unchanged"), ({"rows": 0}, "greater than")])
def test_impossible_counts_are_refused(change, words):
    good = {"rows": 10, "changed": 4, "changed_right": 4, "unchanged_right": 6}
    assert Tally.model_validate(good)
    with pytest.raises(ValidationError, match=words):
        Tally.model_validate(good | change)


def test_a_row_without_all_its_losses_is_refused(measured):
    with pytest.raises(ValidationError, match="1 losses"):
        OverfitRow.model_validate(measured.rows[0] | {"losses": [1.0]})


def test_every_run_is_cut_by_the_same_share(tmp_path, monkeypatch):
    monkeypatch.setattr(act1, "load_target", lambda name, dtype: hybrid())
    for name, value in {"RUNS": SHORT, "TEXTS": 2, "TEXT_ROWS": 16, "GREEDY": 3, "EVERY": 3}.items():
        monkeypatch.setattr(act1, name, value)
    file = load_rows(act1.measure(PARAMS | {"seeds": 1, "share": 0.5, "quick": False}, tmp_path / "act1.journal"))
    assert [r["steps"] for r in file.rows] == [len(r["losses"]) for r in file.rows] == [run.steps // 2 for run in SHORT.values()] == [1, 1, 2, 2]
    assert [run["steps"] for run in file.config["runs"].values()] == [r["steps"] for r in file.rows] and file.config["reduced"] is True
