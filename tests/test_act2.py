"""Act II in small on the toy: every row once, a killed run, what is trained; and its statistics on tables whose truth is known beforehand."""
from dataclasses import replace

import numpy as np
import scipy.stats
import pytest
from mlx.utils import tree_flatten
from pydantic import ValidationError
from specdecode_nb import criteria
from specdecode_nb.book import acts, needs, overview, reverse
from specdecode_nb.errors import BadInput
from specdecode_nb.protocols import act2
from specdecode_nb.records import RowFile, load_rows
from specdecode_nb.rows.reverse import ReverseLaunchRow, ReverseScoreRow
from specdecode_nb.streams import TRAIN_NOISE, TRAIN_RATE, stream_seed
from specdecode_nb.targets import mx
from specdecode_nb.train.bidirectional import SHUFFLE
from toy import VOCAB, hybrid

PARAMS = acts.get("act2").resolve({"quick": True}) | {"seeds": 1, "steps": 3, "batch": 2, "windows": 4, "train_windows": 5, "extra": True}
SWEEP, EVERY = 15, tuple(act2.ARMS | act2.EXTRA)
RECIPE = act2.Recipe(act2.FIRST_SEED, 3, 2)


@pytest.fixture(scope="module", autouse=True)
def toy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(act2, "load_target", lambda name, dtype: hybrid())
        yield


@pytest.fixture(scope="module")
def measured(toy, tmp_path_factory):
    """Killed within the scores of a launch (the third one, a control), and gone on with."""
    journal, told = tmp_path_factory.mktemp("act2") / "act2.journal", []

    def stop(done, total, label):
        if done == 3 + SWEEP + 2 * 4 + 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        act2.measure(PARAMS, journal, stop)
    with pytest.raises(BadInput, match="steps"):
        act2.measure(PARAMS | {"steps": 4}, journal, resume=True)
    file = load_rows(act2.measure(PARAMS, journal, lambda *a: told.append(a), resume=True))
    assert told[0][:2] == (3 + SWEEP + 10, len(file.rows)) and told[-1][:2] == (len(file.rows), len(file.rows))
    return file


def text(**options):
    return act2.windows(hybrid(), 5, act2.PREFIX + act2.CANVAS, act2.TEXT, **options)


def test_every_row_is_there_once(measured):
    names = [(r["kind"], *(r.get(n) for n in ("arm", "seed", "level", "condition", "gate"))) for r in measured.rows]
    assert len(names) == len(set(names)) == 3 + SWEEP + len(EVERY) * 4
    assert [(r["seed"], r["arm"]) for r in measured.of("reverse_launch")] == [(1234, a) for a in EVERY]
    assert needs.check(measured) is measured and measured.config["recipe"]["adapter"] == "all" and "seed" not in measured.config["recipe"]


def test_a_launch_cut_short_is_the_launch_not_cut(measured):
    held_out = act2.windows(hybrid(), 4, act2.PREFIX + act2.CANVAS, act2.TEXT, held_out=True, apart=act2.APART)
    again = list(act2.launch(hybrid(), "C", RECIPE, text(), held_out))
    rows = [r for r in measured.rows if r.get("arm") == "C" and r["seed"] == 1234]
    apart = lambda r: {k: v for k, v in r.items() if k != "seconds"}  # noqa: E731
    assert list(map(apart, rows)) == list(map(apart, again)) and len(rows) == 4


def test_seeds_and_arms_differ_and_the_steps_are_recorded(measured):
    launches = [*measured.of("reverse_launch"), *(r for r in act2.launch(hybrid(), "E", replace(RECIPE, seed=5), text(), text()[:1]) if r["kind"] == "reverse_launch")]
    assert len({r["digest"] for r in launches}) == len(launches) and all(len(r["losses"]) == 3 and r["stopped"] is None for r in launches)
    assert {r["arm"]: len(r["gates"]) > 0 for r in launches} == {a: a in ("E", "E_half") for a in EVERY}
    assert all(r["gates"][0][1:] == pytest.approx([0.95 if r["arm"] == "E" else 0.5] * 3) and r["gates"][-1][0] == 3 for r in launches if r["gates"])
    assert all(r["gates"][-1][1:] != r["gates"][0][1:] for r in launches if r["gates"])


def test_the_untrained_loss_at_gate_one_is_the_same_for_every_control(measured):
    found = reverse.gate_sweep(measured)
    assert all(np.array_equal(found[c][1.0], found["aligned"][1.0]) for c in act2.CONDITIONS)
    assert all(not np.array_equal(found[c][0.5], found["aligned"][0.5]) for c in ("shuffled", "none"))
    assert reverse.numbers(measured)["gate_one"][:1] == (0,)


@pytest.mark.parametrize("arm", EVERY)
def test_only_what_is_allowed_is_trained(arm):
    target = hybrid()
    before, (model, _, _) = target.digest(), act2.build(target, (act2.ARMS | act2.EXTRA)[arm], RECIPE)
    names = [name for name, _ in tree_flatten(model.trainable_parameters())]
    assert all(map(act2.allowed, names)) and sum(name.endswith(".gate") for name in names) == 3 * (arm in ("E", "E_half"))
    assert sum(name.endswith("lora_a") for name in names) == 4 * 3 + 3 * 3 + 4 and sum(name.startswith("time.") for name in names) == 4
    assert not act2.allowed("adapted.language_model.model.embed_tokens.weight") and not act2.allowed("adapted.language_model.model.layers.0.linear_attn.inner.norm.weight")
    frozen = {n: v.sum().item() for n, v in tree_flatten(model.parameters()) if n not in names}
    list(act2.launch(target, arm, replace(RECIPE, steps=1), text(), text()[:1]))
    assert target.digest() == before and {n: v.sum().item() for n, v in tree_flatten(model.parameters()) if n not in names} == frozen


def test_arms_of_one_seed_share_adapter_text_and_noise():
    models = [act2.build(hybrid(), act2.ARMS[a], RECIPE)[0] for a in "AB"]
    shared = [{n: v for n, v in tree_flatten(m.trainable_parameters()) if n.endswith("lora_a") and "self_attn" in n} for m in models]
    assert shared[0].keys() == shared[1].keys() and all(np.array_equal(*pair) for pair in zip(shared[0].values(), shared[1].values()))
    batch, other = act2.batches(text(), RECIPE, VOCAB), act2.batches(text(), replace(RECIPE, seed=1), VOCAB)
    one, two = batch(7), act2.batches(text(), RECIPE, VOCAB)(7)
    assert all(np.array_equal(a, b) for a, b in zip(one, two)) and not np.array_equal(one[2], other(7)[2])
    seen = np.concatenate([np.array(batch(i)[2]) for i in range(5)])  # ten windows are two passes over the five
    assert all((seen == w[act2.PREFIX :]).all(axis=1).sum() == 2 for w in text())
    ids, clean = np.array(one[1]), np.array(one[2])
    assert (ids[:, : act2.PREFIX] == np.array([next(w for w in text() if np.array_equal(w[act2.PREFIX :], c)) for c in clean])[:, : act2.PREFIX]).all()


def test_levels_and_noise_of_a_step_have_streams_of_their_own():
    key = lambda stream: mx.random.key(stream_seed(act2.FIRST_SEED, stream, 3))  # noqa: E731
    _, ids, clean, t = act2.batches(text(), RECIPE, VOCAB)(3)
    assert np.array_equal(t, mx.random.uniform(shape=(2,), key=key(TRAIN_RATE)))
    assert np.array_equal(ids[:, act2.PREFIX :], act2.replaced(clean, t, VOCAB, key(TRAIN_NOISE)))


@pytest.mark.parametrize("arm", ("C", "C_fixed"))
def test_a_shuffled_arm_permutes_anew_at_every_step_and_the_published_control_once_for_good(arm, monkeypatch):
    orders = []

    class Noting(act2.Canvas):
        def shuffle(self, *args):
            super().shuffle(*args)
            orders.append(self.order.tolist())

    monkeypatch.setattr(act2, "Canvas", Noting)
    list(act2.launch(hybrid(), arm, replace(RECIPE, seed=5), text(), text()[:1]))
    seeds = [0] * 3 if arm == "C_fixed" else [stream_seed(5, SHUFFLE, step) for step in range(3)]
    assert orders[:3] == [mx.random.permutation(act2.CANVAS, key=mx.random.key(seed)).tolist() for seed in seeds]
    assert len({tuple(order) for order in orders[:3]}) == (1 if arm == "C_fixed" else 3)


def test_without_a_conditioner_and_the_causal_arm_with_it(tmp_path):
    file = load_rows(act2.bare(PARAMS | {"extra": False}, tmp_path / "act2_bare.journal"))
    launches = {r["arm"]: r for r in file.of("reverse_launch")}
    assert list(launches) == [*act2.ARMS, "A_conditioned"] and {r["seed"] for r in launches.values()} == {act2.FIRST_SEED + 1} and len(file.rows) == 3 + 6 * 4
    held_out = act2.windows(hybrid(), 4, act2.PREFIX + act2.CANVAS, act2.TEXT, held_out=True, apart=act2.APART)
    usual = list(act2.launch(hybrid(), "A", replace(RECIPE, seed=act2.FIRST_SEED + 1), text(), held_out))
    apart = lambda r: {k: v for k, v in r.items() if k not in ("seconds", "arm")}  # noqa: E731
    assert [apart(r) for r in file.rows if r.get("arm") == "A_conditioned"] == [apart(r) for r in usual]
    model = act2.build(hybrid(), act2.ARMS["A"], replace(RECIPE, conditioner=False))[0]
    assert "time" not in model and "time" in act2.build(hybrid(), act2.ARMS["A"], RECIPE)[0] and launches["A"]["trained"] == sum(v.size for v in model.trainable().values()) < usual[-1]["trained"]
    assert needs.check(file) is file and file.config["recipe"]["conditioner"] is False and "does NOT" not in overview.found("act2_bare", file)[0]
    with pytest.raises(BadInput, match="cannot be drawn as act2_bare"):
        needs.check(replace(file, rows=[r for r in file.rows if r.get("arm") != "A_conditioned"]))


def test_held_out_noise_is_one_for_all_and_of_the_level():
    wide = np.zeros((400, act2.PREFIX + act2.CANVAS), dtype=np.int32)
    for level in act2.LEVELS:
        noise = np.array(act2.held_out_noise(wide, level, VOCAB))
        assert abs((noise > 0).mean() - level * (1 - 1 / VOCAB)) < 0.02 and np.array_equal(noise, np.array(act2.held_out_noise(wide, level, VOCAB)))


def test_an_unstable_launch_is_recorded_and_not_scored():
    rows = list(act2.launch(hybrid(), "A", replace(RECIPE, lr=1e30), text(), text()[:1]))
    assert [r["kind"] for r in rows] == ["reverse_launch"] and "Training stopped" in rows[0]["stopped"]
    ReverseLaunchRow.model_validate(rows[0])


# --- statistics ---

def test_the_parts_of_a_variance_by_hand():
    """Two seeds 1 above and below, three windows at -3, 0 and 3, nothing else: mean squares 2 x 3, 9 x 2 and 0."""
    m = reverse.crossed(np.array([[1.0], [-1.0]]) + np.array([[-3.0, 0.0, 3.0]]) + 5)
    assert (m.value, m.sd_seed, m.sd_window, m.sd_rest) == pytest.approx((5, 2**0.5, 3, 0)) and m.se**2 == pytest.approx((6 + 18) / 6)
    assert m.df == pytest.approx(24**2 / (6**2 / 1 + 18**2 / 2)) and m.high - m.value == pytest.approx(m.value - m.low)
    one = reverse.crossed(np.array([[1.0, 2.0]]))
    assert (one.value, one.low, one.power()) == (1.5, None, 0.0) and one.found()[-1] == "1 seed"


def test_the_interval_covers_and_the_power_is_what_is_found():
    """600 tables of 6 seeds and 40 windows with a true mean of 1.5."""
    rng, inside, seen, promised = np.random.default_rng(3), 0, 0, []
    for _ in range(600):
        m = reverse.crossed(1.5 + rng.normal(0, 1, (6, 1)) + rng.normal(0, 2, (1, 40)) + rng.normal(0, 4, (6, 40)))
        inside, seen = inside + (m.low <= 1.5 <= m.high), seen + (m.low > 0)
        promised.append(m.power(1.5))
    # from the true variance: mean squares 40 + 16, 24 + 16 and 16
    true = reverse.power(1.5, (1 / 6 + 4 / 40 + 16 / 240) ** 0.5, 80**2 / (56**2 / 5 + 40**2 / 39 + 16**2 / 195))
    assert 0.93 <= inside / 600 <= 0.985 and abs(seen / 600 - true) < 0.05 and abs(np.mean(promised) - true) < 0.1


def test_power_at_its_ends():
    assert reverse.power(0, 1.0, 7) == pytest.approx(0.05, rel=1e-3) and reverse.power(3, 0.1, 2.2) > 0.999 and reverse.power(3, 0.01, 5.0) == 1.0
    for effect, df in ((1.0, 3), (2.5, 3), (2.5, 40.5), (4.0, 7)):
        edge = scipy.stats.t.ppf(0.975, df)
        assert reverse.power(effect, 1.0, df) == pytest.approx(scipy.stats.nct.sf(edge, df, effect) + scipy.stats.nct.cdf(-edge, df, effect), abs=1e-4)
    assert reverse.power(3, 0.0, 7) == 1.0 and reverse.power(3, float("inf"), 1) == 0.0
    plan = lambda seeds, windows, sd=0.8: reverse.planned(seeds, windows, sd, 0.5, 32, act2.LEVELS)  # noqa: E731
    assert plan(1, 10_000) == 0.0 and plan(3, 64) < plan(5, 64) < plan(5, 256) < plan(8, 256) and plan(8, 256, 3.0) < 0.8 < plan(8, 256)


CANVAS, WINDOWS = 10, 6


def invented(arms: dict[str, list[int]], reduced=False) -> RowFile:
    """Arms by their rows right in every window, a number for each of two levels, at four seeds; half of the changed rows are among them."""
    rules = criteria.load("act2").rules
    rows = [{"kind": "reverse_windows", "level": t, "canvas": CANVAS, "changed": [n] * WINDOWS} for t, n in ((0.5, 4), (0.75, 8))]
    for a, right in arms.items():
        for s in range(4):
            rows += [{"kind": "reverse_score", "arm": a, "seed": s, "level": t, "right": [r + s % 2] * WINDOWS, "changed_right": [r // 2] * WINDOWS, "nats": [1.0] * WINDOWS}
                     for t, r in zip((0.5, 0.75), right)]
            rows.append({"kind": "reverse_launch", "arm": a, "seed": s, "steps": 1, "trained": 1, "losses": [1.0], "norms": [1.0], "seconds": 2.0 + (a != "A"), "digest": "",
                         "stopped": None, "gates": [[0, 0.95], [1, 0.9 + s / 100]] if a == "E" else []})
    rows += [{"kind": "gate_sweep", "condition": c, "gate": g, "level": 0.5, "nats": [5.0 + g * (c == "aligned") * (g < 1) * i for i in range(WINDOWS)]}
             for c in reverse.CONDITIONS for g in (1.0, 0.25)]
    return RowFile("act2", "toy", {}, {"arms": list(arms), "seeds": [0, 1, 2, 3], "levels": [0.5, 0.75], "gates": [1.0, 0.25], "reduced": reduced, "recipe": {"steps": 1}, "canvas": CANVAS, "forward": 1,
                                       "criteria": rules}, rows, "rows", "0" * 64)


FILE = invented({"A": [4, 2], "B": [6, 2], "C": [4, 4], "D": [2, 2], "E": [4, 2]})


def test_margins_by_hand():
    lift = reverse.margin(FILE, "B", "A")
    assert lift.value == pytest.approx(100 * (2 / 10 + 0) / 2) and lift.se == 0  # both arms scatter alike, so that it cancels
    accuracy = reverse.margin(FILE, "B", "A", reverse.ACCURACY)
    assert accuracy.value == pytest.approx(100 * (1 / 4 + 0) / 2) and reverse.best(FILE) == "B"
    first = reverse.scores(FILE).iloc[0]
    assert (first["accuracy"], first["lift"]) == pytest.approx((100 * 2 / 4, 100 * (4.5 - 6) / 10))


def test_a_ratio_over_uneven_windows_is_the_ratio_of_sums():
    rows = [dict(r) for r in FILE.rows]
    changed, right = [1, 2, 3, 4, 5, 6], [1, 0, 2, 1, 4, 3]
    rows[0]["changed"] = changed
    for r in rows:
        if r["kind"] == "reverse_score" and r["arm"] == "B" and r["level"] == 0.5:
            r["right"] = r["changed_right"] = right
        elif r["kind"] == "reverse_score" and r["level"] == 0.5:
            r["changed_right"] = [0] * 6
    assert reverse.margin(replace(FILE, rows=rows), "B", "A", reverse.ACCURACY, [0.5]).value == pytest.approx(100 * sum(right) / sum(changed))


def test_windows_of_one_forward_share_a_permutation():
    file = replace(FILE, config=FILE.config | {"forward": 4})
    whole, shared = reverse.margin(FILE, "B", "C"), reverse.margin(file, "B", "C")
    assert (whole.windows, shared.windows) == (6, 2) and shared.value == pytest.approx(whole.value) and reverse.margin(file, "B", "A").windows == 6
    assert reverse.by_permutation(file, np.arange(6.0)) == pytest.approx([2 * 6 / 6, 2 * 9 / 6])
    assert reverse.numbers(file)["untrained_aligned"][1:] == (None, None, 2, "2 permutations")


def test_verdicts_follow_the_rows():
    judged = {o.criterion.id: o for o in reverse.outcomes(FILE)}
    words = {i: o.word for i, o in judged.items()}
    assert {i for i, w in words.items() if w == criteria.HOLDS} == {"II-1", "II-2", "II-3", "II-4", "II-5", "II-7", "II-9", "II-10"}
    assert {words[i] for i in ("II-6", "II-11", "II-12", "II-13")} == {criteria.FAILS} and words["II-14"] == words["II-15"] == criteria.NO_ROWS
    assert words["II-8"] == criteria.SPANS and judged["II-8"].value == pytest.approx(0.915) and judged["II-13"].value == 1.5
    assert "the lift by +10.00 [" in overview.phrase("act2", FILE)
    assert reverse.outcome(judged, "II") == ("not decided", [])
    worse = invented({"A": [6, 4], "B": [4, 4], "C": [4, 4], "D": [2, 2], "E": [4, 4]})
    judged = {o.criterion.id: o for o in reverse.outcomes(worse)}
    assert judged["II-4"].word == judged["II-7"].word == criteria.FAILS and reverse.outcome(judged, "II") == ("stop", ["II-7", "II-10"])


def test_the_conditioner_is_judged_by_what_the_canvas_adds():
    file = invented({"A": [6, 2], "A_conditioned": [4, 4], "B": [6, 2], "C": [6, 2], "D": [6, 2], "E": [6, 2]})
    file = replace(file, act="act2_bare", rows=[r for r in file.rows if r["kind"] != "gate_sweep"], config=file.config | {"criteria": criteria.load("act2_bare").rules})
    judged = {o.criterion.id: o for o in reverse.outcomes(file)}
    assert judged["IIb-2"].value == pytest.approx(100 * (3 / 4 - 1 / 8)) and judged["IIb-1"].value == pytest.approx(100 * ((3 - 2) / 4 - (1 - 2) / 8))
    assert judged["IIb-1"].word == judged["IIb-2"].word == criteria.HOLDS and judged["IIb-4"].word == criteria.FAILS


def test_unstable_launches_are_counted_and_left_out():
    rows = [r | {"stopped": "at step 1", "losses": [], "norms": []} if r["kind"] == "reverse_launch" and (r["arm"], r["seed"]) == ("B", 2) else r
            for r in FILE.rows if (r.get("arm"), r.get("seed"), r["kind"]) != ("B", 2, "reverse_score")]
    file = replace(FILE, rows=rows)
    assert reverse.numbers(file)["unstable"][0] == 1 and reverse.margin(file, "B", "A").seeds == 3 and reverse.margin(file, "E", "A").seeds == 4


@pytest.mark.parametrize("keep, says", [(lambda r: r.get("level") != 0.75 or r["kind"] != "reverse_score", "reverse_score rows of A 0 0.75"), (lambda r: r["kind"] != "gate_sweep", "rows of kind gate_sweep"),
                                        (lambda r: (r["kind"], r.get("arm")) != ("reverse_launch", "D"), "reverse_launch rows with arm and seed D 0")])
def test_a_sentence_names_what_the_rows_lack(keep, says):
    file = replace(FILE, provenance={"target": {"name": "toy"}}, config=FILE.config | {"gates": [1.0, 0.25]})
    assert needs.check(file) is file
    with pytest.raises(BadInput, match=says):
        needs.check(replace(file, rows=[r for r in file.rows if keep(r)]))
    with pytest.raises(BadInput, match="rules"):
        needs.check(replace(file, config=file.config | {"criteria": "0"}))


def test_rows_that_contradict_themselves_are_refused():
    score = {"kind": "reverse_score", "arm": "A", "seed": 1, "level": 0.5, "right": [3, 2], "changed_right": [1, 2], "nats": [1.0, 2.0]}
    ReverseScoreRow.model_validate(score)
    for change in ({"changed_right": [1, 3]}, {"nats": [1.0]}, {"right": [], "changed_right": [], "nats": []}, {"level": 1.5}):
        with pytest.raises(ValidationError):
            ReverseScoreRow.model_validate(score | change)
    launch = {"kind": "reverse_launch", "arm": "A", "seed": 1, "steps": 2, "trained": 3, "losses": [1.0, 1.0], "norms": [1.0, 1.0], "gates": [], "seconds": 1.0, "digest": "", "stopped": None}
    ReverseLaunchRow.model_validate(launch)
    with pytest.raises(ValidationError):
        ReverseLaunchRow.model_validate(launch | {"losses": [1.0], "norms": [1.0]})
