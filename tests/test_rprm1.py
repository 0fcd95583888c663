"""RPRM Stage 1: the protocol on the embedded model, and the analysis on blocks whose signals are planted."""
import dataclasses
import json

import numpy as np
import pytest
import slots
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from specdecode_nb import criteria, residual
from specdecode_nb.book import acts, needs, uncertainty
from specdecode_nb.errors import BadInput
from specdecode_nb.protocols import common, rprm1
from specdecode_nb.records import check_row, load_rows
from specdecode_nb.residual import FIT, MODELS, TEST, VALIDATION, Stratum, auroc, resampled, split

PARAMS = acts.get("rprm1").resolve({"quick": True}) | {"windows": 2}
PROGRESS, ENTROPY = MODELS["1 progress only"], MODELS["4 progress + entropy"]


@pytest.fixture(scope="module", autouse=True)
def short_windows():
    """The reference BLAS of the tests is slow: windows of 14 to 20 tokens, four of them the target's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rprm1, "CONTEXT", (14, 20))
        patch.setattr(rprm1, "OWN", 4)
        yield


@pytest.fixture(scope="module")
def measured(short_windows, tmp_path_factory):
    return load_rows(rprm1.measure(PARAMS, tmp_path_factory.mktemp("measured") / "rprm1.journal"))


@pytest.fixture(scope="module")
def pair(short_windows):
    return common.load_pair(PARAMS)


# --- features ---

def test_features_of_a_case_worked_out_by_hand():
    """Two positions of four tokens: probabilities 1/2 1/4 1/8 1/8 against certainty, and two even choices."""
    halves, sure = np.log([[0.5, 0.25, 0.125, 0.125]]), np.array([[0.0, -800.0, -800.0, -800.0]])
    even = np.log([[0.5, 0.5, 1e-300, 1e-300]])
    found = rprm1.features(np.vstack([halves, even]), np.vstack([sure, sure[:, ::-1]]), np.vstack([sure, halves]))
    assert found["agree"] == [1, 0]
    # 1.75 bits and 1 bit of 2
    assert found["entropy"] == [0.875, 0.5] and found["doubt"] == [0.5, 0.5] and found["second"] == [0.25, 0.5]
    # the same distribution, and |1 - 1/8| + 7/8
    assert found["gap"] == [0.0, 1.75] and found["teacher_entropy"] == [0.0, 0.0]
    assert found["bare_entropy"] == [0.0, float(f"{1.75 * np.log(2):.3g}")]
    assert found.keys() == set(rprm1.FIELDS)


def test_certainty_keeps_its_digits():
    """Top-1 probabilities that round to 1 are still told apart."""
    logits = np.array([[0.0, -12.0, -30.0], [0.0, -14.0, -30.0]])
    doubt = rprm1.features(logits, logits, logits)["doubt"]
    assert 0 < doubt[1] < doubt[0] < 1e-5


# --- protocol ---

def test_every_window_has_its_three_rows(measured):
    assert [(r["window"], r["stratum"]) for r in measured.rows] == [(w, s) for w in range(2) for s in rprm1.STRATA]
    assert all(len(r["agree"]) == rprm1.BLOCK - 1 for r in measured.rows)
    assert measured.config["reduced"] is True and measured.config["criteria"] == criteria.load("rprm1").rules
    assert {tuple(r["noised"]) for r in measured.rows if r["stratum"] != "schedule"} == {()} and {r["rate"] for r in measured.rows if r["stratum"] != "schedule"} == {1.0}
    by = {(r["window"], r["stratum"]): r for r in measured.rows}
    assert all(by[w, "full"]["teacher_entropy"] == by[w, "schedule"]["teacher_entropy"] for w in range(2))


def test_the_rows_are_those_of_one_uncached_forward(pair, measured):
    """Window 0 again in the published layout: context, seed token and block in one sequence, nothing cached."""
    from specdecode_nb.targets import mx

    target, drafter = pair
    _, ids = rprm1.window(target, 0, PARAMS["seed"])
    noise, *_ = rprm1.corruption(target, 0, PARAMS["seed"])
    context, rows = ids[: 1 - rprm1.BLOCK], slice(1 - rprm1.BLOCK, None)
    last = lambda out: np.array(out[0, rows])  # noqa: E731
    drafter._gate.rows(mx.array([[0.0] * len(context) + [1.0] * len(noise)]))
    student, bare = (last(m(mx.array([context + noise]))) for m in (drafter._model, target.model))
    expected, found = rprm1.features(student, last(target.model(mx.array([ids]))), bare), measured.rows[0]
    assert found["agree"] == expected["agree"]
    for name in rprm1.FIELDS[1:]:
        assert found[name] == pytest.approx(expected[name], rel=0.02, abs=1e-6), name


def test_on_schedule_a_position_is_noise_where_the_mask_says_so_and_the_true_token_elsewhere(measured):
    """Nothing looks ahead: window 0 begins with two positions of noise, which are those of ``full``; window 1 is all true, so that the target sees its own rows."""
    (full, mixed), (noise, true) = ([next(r for r in measured.rows if (r["window"], r["stratum"]) == (w, s)) for s in ("full", "schedule")] for w in (0, 1))
    assert mixed["noised"][:3] == [1, 1, 0] and not any(true["noised"])
    assert all(mixed[name][:2] == pytest.approx(full[name][:2], rel=0.02, abs=1e-6) for name in rprm1.FIELDS)
    assert mixed["gap"][2] != pytest.approx(full["gap"][2], rel=0.02) and max(true["gap"]) < 1e-3 < min(noise["gap"])


def test_on_its_own_text_the_target_reads_what_it_would_have_written(pair):
    """Row j of the answers is the target's own next token, so the drafter is judged on the text that it decodes."""
    from specdecode_nb import generate
    from specdecode_nb.decoder import Session

    target, _ = pair
    _, ids = rprm1.window(target, 1, 5)
    session = Session(target)
    session.feed(ids[:8])
    logits, rows = rprm1.answers(target, session, None)
    assert rows == generate(target, ids[:8], max_tokens=rprm1.BLOCK - 1, ignore_eos=True).tokens
    assert logits.argmax(axis=-1)[:-1].tolist() == rows[1:] and session.tokens == ids[:8]
    again, same = rprm1.answers(target, session, rows)
    assert same == rows and np.abs(again - logits).max() < 1e-3


def test_windows_are_apart_and_noise_depends_on_the_window_alone(pair):
    target, _ = pair
    found = [tuple(rprm1.window(target, n, 1)[1]) for n in range(27)]
    assert len({w[:10] for w in found}) > 20 and len(set(found)) == 27
    assert rprm1.window(target, 3, 1) == rprm1.window(target, 3, 1) != rprm1.window(target, 3, 2)
    drawn = [rprm1.corruption(target, n, 1) for n in range(200)]
    assert rprm1.corruption(target, 7, 1) == drawn[7] and len({tuple(noise) for noise, *_ in drawn}) == 200
    assert min(min(noise) for noise, *_ in drawn) >= 1
    # of a position with rate t a share t is noise
    assert np.mean([rate for _, rate, _ in drawn]) == pytest.approx(0.5, abs=0.07) == np.mean([mask for *_, mask in drawn])
    assert np.corrcoef([rate for _, rate, _ in drawn], [np.mean(mask) for *_, mask in drawn])[0, 1] > 0.7


def test_a_killed_run_goes_on_from_its_finished_rows(tmp_path, measured):
    """Killed within a window, after its second row."""
    journal = tmp_path / "rprm1.journal"

    def stop(done, total, label):
        assert total == 2 * len(rprm1.STRATA)
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rprm1.measure(PARAMS, journal, stop)
    first = [row for row in map(json.loads, journal.read_text().splitlines()[1:]) if "kind" in row]
    assert first == measured.rows[:5]
    assert load_rows(rprm1.measure(PARAMS, journal, resume=True)).rows == measured.rows


@pytest.mark.parametrize("change, word", [({"drafter": "ngram"}, "canvas"), ({"target": "tiny-hybird"}, "tiny-hybrid")])
def test_bad_input_is_refused_before_anything_is_measured(tmp_path, change, word):
    with pytest.raises(BadInput, match=word):
        rprm1.measure(PARAMS | change, tmp_path / "rprm1.journal")
    assert not list(tmp_path.iterdir())


def test_a_document_too_short_for_a_window_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(rprm1, "document", lambda *_, **__: "Too short.")
    with pytest.raises(BadInput, match="takes at least 22"):
        rprm1.measure(PARAMS, tmp_path / "rprm1.journal")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("field, value", [("agree", [1] * 6), ("agree", [2] * 7), ("noised", [1]), ("entropy", [1.1] * 7), ("gap", [-0.1] * 7), ("stratum", "other"), ("window", -1)])
def test_rows_that_do_not_fit_are_refused(measured, field, value):
    check_row(measured.rows[0], "here")
    with pytest.raises(BadInput):
        check_row(measured.rows[0] | {field: value}, "here")


# --- analysis ---

def stratum(name="full", windows=600, **planted) -> Stratum:
    rows = slots.rows(windows, strata=(name,), **planted)
    return Stratum(rows, slots.VOCAB, split(r["window"] for r in rows))


@pytest.fixture(scope="module")
def planted():
    return {name: stratum(name, effect=1.5, gap=1.0) for name in ("full", "schedule")}


@pytest.fixture(scope="module")
def null():
    return stratum(effect=0.0, gap=1.0)


def test_the_split_is_by_window_and_leaks_nothing(planted):
    parts = split(range(600))
    assert [sum(p == part for p in parts.values()) for part in (FIT, VALIDATION, TEST)] == [300, 120, 180]
    assert parts == split(reversed(range(600))) and parts != split(range(600), 1)
    s = planted["full"]
    sets = [set(s.window[s.part == part]) for part in (FIT, VALIDATION, TEST)]
    assert not (sets[0] & sets[1] | sets[0] & sets[2] | sets[1] & sets[2]) and sum(map(len, sets)) == 600
    # what is fitted does not know the other parts
    rows = slots.rows(600, effect=1.5, strata=("full",))
    spoilt = [r | {"agree": [1 - a for a in r["agree"]], "entropy": [0.5] * 7} if parts[r["window"]] == TEST else r for r in rows]
    a, b = (Stratum(x, slots.VOCAB, parts) for x in (rows, spoilt))
    assert np.array_equal(a.score(ENTROPY)[a.part != TEST], b.score(ENTROPY)[b.part != TEST])
    # and a control: spoiling the fit windows does move it
    spoilt = [r | {"agree": [1 - a for a in r["agree"]]} if parts[r["window"]] == FIT else r for r in rows]
    assert Stratum(spoilt, slots.VOCAB, parts).value(ENTROPY) < 0.5 < a.value(ENTROPY)


def test_scores_are_those_of_other_implementations(planted):
    rng = np.random.default_rng(3)
    y, score = rng.integers(0, 2, 300), rng.integers(0, 12, 300).astype(float)  # many ties
    weights = rng.integers(0, 4, (5, 300)).astype(float)
    assert auroc(y, score) == pytest.approx(roc_auc_score(y, score))
    assert auroc(y, score, weights) == pytest.approx([roc_auc_score(y, score, sample_weight=w) for w in weights])
    assert np.isnan(auroc(np.ones(4), np.arange(4.0)))
    assert residual.log_loss(y, score, weights) == pytest.approx([log_loss(y, 1 / (1 + np.exp(-score)), sample_weight=w) for w in weights])
    times = weights[0].astype(int)
    assert residual.pearson(weights[:1] @ residual.moments(score, y))[0] == pytest.approx(np.corrcoef(np.repeat(score, times), np.repeat(y, times))[0, 1])
    s = planted["schedule"]
    x = np.column_stack([s.progress, s.columns["entropy"]])
    other = LogisticRegression(C=1e10, max_iter=5000, tol=1e-10).fit(x[s.part == FIT], s.y[s.part == FIT])
    assert s.score(ENTROPY) == pytest.approx(other.decision_function(x), abs=1e-2)


@pytest.mark.parametrize("name", ["full", "schedule"])
def test_a_planted_effect_is_found(planted, name):
    s = planted[name]
    value, low, high, n = s.gain(ENTROPY, PROGRESS)
    assert low > 0.05 and low < value < high and n == 180
    assert s.over_shuffled() > 0.05 and s.within("entropy", (2, 3, 4, 5))[1] > 0.6 and len(s.counting()) == (7 if s.test_windows >= 200 else 0)
    assert s.rises()[0] == 0 and s.spread()[1] > 2 and s.correlation("entropy")[2] < -0.2
    assert all(met for *_, met in uncertainty.ways(s).values())


def test_a_planted_null_is_rejected(null):
    """Nothing is found, and the gap that was planted beside it is: the control of the test itself."""
    value, low, high, _ = null.gain(ENTROPY, PROGRESS)
    assert low < 0.01 and high < 0.05 and abs(null.over_shuffled()) < 0.02
    assert not any(met for *_, met in uncertainty.ways(null).values())
    assert null.within("entropy", (6, 7))[1] < 0.5 < null.within("entropy", (6, 7))[2]
    assert null.gain(MODELS["5 progress + gap"], PROGRESS)[1] > 0.02
    assert null.within("gap", (6, 7), less="entropy")[1] > 0


def test_the_shuffled_control_keeps_cells_and_loses_the_signal(planted):
    s = planted["schedule"]
    mixed = s.shuffled(1)
    assert not np.array_equal(mixed, s.shuffled(2)) and np.array_equal(mixed, s.shuffled(1)) and (mixed != s.columns["entropy"]).mean() > 0.8
    for part in (FIT, TEST):
        for offset in (2, 8):
            at = (s.part == part) & (s.offset == offset)
            assert sorted(mixed[at]) == sorted(s.columns["entropy"][at])
    assert abs(s.shuffles().mean() - s.value(PROGRESS)) < 0.005 < s.value(ENTROPY) - s.value(PROGRESS)


def test_the_clustered_bootstrap_is_wider_where_windows_differ(monkeypatch):
    """Positions of a window share a trait: resampling positions claims too much. Without the trait both agree."""
    def widths(shared):
        s = stratum(windows=400, effect=0.0, gap=0.0, shared=shared)
        y = s.y[s.test]
        naive = resampled(np.arange(len(y)))
        spans = [np.subtract(*residual.with_interval(y.mean(), (w @ y) / w.sum(axis=1), 1)[2:0:-1]) for w in (s.weights, naive)]
        return spans[0] / spans[1]

    assert widths(3.0) > 1.4 and 0.8 < widths(0.0) < 1.2


def test_resamples_take_windows_whole():
    units = np.repeat([5, 2, 9], 4)
    w = resampled(units, 50)
    assert w.shape == (50, 12) and (w.sum(axis=1) == 12).all()
    assert all((w[:, units == u] == w[:, units == u][:, :1]).all() for u in (2, 5, 9)) and w[:, 0].std() > 0


@pytest.mark.parametrize("acceptance, rises, largest", [([0.5, 0.4, 0.3, 0.2, 0.1], 0, 0.0), ([0.5, 0.3, 0.4, 0.2, 0.3], 2, 0.1), ([0.1, None, 0.2, 0.2, 0.1], 1, 0.1)])
def test_rises_are_counted(planted, monkeypatch, acceptance, rises, largest):
    monkeypatch.setattr(Stratum, "groups", lambda self, signal="entropy": [{"acceptance": a} for a in acceptance])
    found = planted["full"].rises()
    assert found[0] == rises and found[1] == pytest.approx(largest)


def test_an_offset_counts_with_enough_positions(planted):
    """180 test windows are too few, 300 are enough."""
    assert planted["full"].counting() == [] and stratum(windows=1000, effect=1.5).counting() == [2, 3, 4, 5, 6, 7, 8]


# --- criteria ---

RULES = criteria.load("rprm1")


@pytest.mark.parametrize("changed, mark", [({}, 2), ({"rises": 2}, 1), ({"largest_rise": 0.021}, 1), ({"ways": 0}, 1), ({"gain_low": -0.01}, 1), ({"offsets": 3}, 1),
                                           ({"gain_estimate": 0.049}, 0), ({"over_shuffled": -0.001}, 0), ({"gain_estimate": None}, None)])
def test_grades_follow_the_published_rules(changed, mark):
    good = {"rises": 1, "largest_rise": 0.02, "offsets": 4, "gain_estimate": 0.05, "over_shuffled": 0.001, "ways": 1, "gain_low": 0.001} | changed
    assert uncertainty.grade({f"{k}:own": (v, None, None, 9) for k, v in good.items()}, "own", RULES) == mark


def test_the_published_numbers_get_the_published_grade():
    found = {"rises": 0, "largest_rise": 0.0, "offsets": 6, "gain_estimate": 0.0217, "over_shuffled": 0.7298 - 0.7105, "ways": 1, "gain_low": 0.0010}
    assert uncertainty.GRADES[uncertainty.grade({f"{k}:full": (v, None, None, 384) for k, v in found.items()}, "full", RULES)] == "FAIL"


@pytest.mark.parametrize("effect, word", [(1.5, criteria.FAILS), (0.0, criteria.HOLDS)])
def test_every_criterion_is_judged_on_enough_windows(effect, word):
    file = slots.row_file(RULES.rules, 700, effect=effect)
    judged = {o.criterion.id: o for o in uncertainty.outcomes(file)}
    assert judged.keys() == {c.id for c in RULES} and all(o.value is not None for o in judged.values())
    assert judged["Verdict"].word == judged["Verdict-own"].word == judged["3-full"].word == word


def test_too_few_windows_decide_nothing():
    judged = uncertainty.outcomes(slots.row_file(RULES.rules, 60, effect=1.5))
    assert {o.word for o in judged} == {"not decidable: 60 windows, 512 asked for"} and not any(o.low for o in judged)


def test_rows_made_under_other_rules_are_refused():
    with pytest.raises(BadInput, match="not measured under the rules"):
        uncertainty.outcomes(slots.row_file("0" * 64, 20))


def test_the_page_asks_for_all_strata_on_the_same_windows():
    """Its sentence names the stratum; the whole file passes."""
    machine = {"drafter": {"name": "uno"}, "target": {"name": "t", "parameters": 1, "dtype": "float32"}, "machine": {"class": "m"}, "versions": {"mlx": "0"}, "blas": {"name": "b"}}
    file = dataclasses.replace(slots.row_file(RULES.rules, 10), provenance=machine)
    assert needs.check(file) is file
    with pytest.raises(BadInput, match="slots rows with stratum own;"):
        needs.check(dataclasses.replace(file, rows=[r for r in file.rows if r["stratum"] != "own"]))
    with pytest.raises(BadInput, match="slots rows of own for the same"):
        needs.check(dataclasses.replace(file, rows=[r for r in file.rows if (r["stratum"], r["window"]) != ("own", 3)]))
