"""Act IV-N in small on the toy: the alphabet against hand cases, what each condition shows, launches that are killed and go on, metrics on known rows."""
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from specdecode_nb import criteria
from specdecode_nb.book import acts, needs, overview
from specdecode_nb.book import states as book
from specdecode_nb.errors import BadInput
from specdecode_nb.families import tower
from specdecode_nb.protocols import act4n
from specdecode_nb.protocols import act4n_checks as checks
from specdecode_nb.records import RowFile, load_rows
from specdecode_nb.rows.states import StateLaunchRow, StateScoreRow
from specdecode_nb.streams import stream_seed
from specdecode_nb.train import alphabet as symbols
from specdecode_nb.train import states
from specdecode_nb.train.alphabet import Alphabet
from specdecode_nb.train.bidirectional import SHUFFLE
from specdecode_nb.train.states import CANVAS, PREFIX, Recipe
from toy import VOCAB, hybrid

PARAMS = acts.get("act4n").resolve({"quick": True}) | {"steps": 2, "heart_steps": 2, "windows": 3, "train_windows": 16, "batch": 2, "full": 1}
RECIPE = Recipe(5, 2, 2)


def text(windows=8, seed=0):
    """Windows of the toy's ids, some much more frequent than others."""
    return (VOCAB * np.random.default_rng(seed).random((windows, PREFIX + CANVAS)) ** 3).astype(np.int32)


@pytest.fixture(scope="module")
def target():
    return hybrid()


@pytest.fixture(scope="module")
def alphabet(target):
    return act4n.alphabet_of(target, text(), 5)


# --- the alphabet ---

def test_entropy_by_hand():
    assert symbols.entropy_bits(np.array([0, 0, 1, 1, 2, 3])) == pytest.approx(2 * (1 / 3) * np.log2(3) + 2 * (1 / 6) * np.log2(6))
    assert symbols.entropy_bits(np.array([0, 1, 1]), np.array([2.0, 1.0, 1.0])) == 1.0
    assert symbols.entropy_bits(np.array([4, 4, 4])) == 0.0


def test_spherical_kmeans_finds_directions_whatever_their_length():
    rng = np.random.default_rng(1)
    directions = np.linalg.qr(rng.normal(size=(12, 12)))[0][:4]
    truth = np.repeat(np.arange(4), 25)
    found = symbols.spherical_kmeans(directions[truth] * rng.uniform(0.1, 50, (100, 1)) + 1e-3 * rng.normal(size=(100, 12)), 4, 0)
    assert len({(a, b) for a, b in zip(truth, found)}) == 4
    assert sorted(np.bincount(symbols.spherical_kmeans(np.ones((5, 3)), 5, 0))) == [1] * 5  # even of equal vectors no cluster is empty
    with pytest.raises(ValueError, match="3 vectors cannot fill 4"):
        symbols.spherical_kmeans(np.eye(3), 4, 0)


@pytest.mark.parametrize("seed", range(4))
def test_the_permutation_has_the_frequencies_and_no_tokens_of_the_original(seed):
    rng = np.random.default_rng(seed)
    labels, frequencies = rng.integers(0, 8, 300), rng.zipf(1.3, 300).clip(1, 10_000).astype(float)
    other = symbols.permuted(labels, frequencies, seed)
    assert np.array_equal(np.bincount(other, minlength=8), np.bincount(labels, minlength=8))
    assert symbols.entropy_bits(other) == symbols.entropy_bits(labels) and not (other == labels).any()
    assert abs(symbols.entropy_bits(other, frequencies) - symbols.entropy_bits(labels, frequencies)) <= symbols.NEAR
    assert np.array_equal(other, symbols.permuted(labels, frequencies, seed)) and not np.array_equal(other, symbols.permuted(labels, frequencies, seed + 10))


def test_a_permutation_that_cannot_avoid_a_state_keeps_the_counts():
    labels = np.array([0] * 8 + [1] * 2)
    assert np.array_equal(np.bincount(symbols.permuted(labels, np.ones(10), 0)), [8, 2])


def test_the_shuffled_control_permutes_anew_at_every_step(target, alphabet):
    loop, canvas = states.training(target, alphabet, "E", "shuffled", RECIPE, text())
    orders = []
    for step in range(3):
        loop.run(step + 1, lambda *_, **__: None)
        orders.append(tuple(canvas.order.tolist()))
        assert orders[-1] == tuple(mx.random.permutation(CANVAS, key=mx.random.key(stream_seed(RECIPE.seed, SHUFFLE, step))).tolist())
    assert len(set(orders)) == 3


def test_what_each_condition_shows():
    by_hand = Alphabet(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]), np.array([6.0, 2.0, 0.0, 0.0]), 2)
    ids = mx.array([[0, 1, 2, 3]] * 500)
    shown = {c: np.array(by_hand.symbols(c, ids, mx.random.key(3))) for c in "ABCDE"}
    assert (shown["A"] == 4).all() and shown["B"].max() == 3 and len(np.unique(shown["B"])) == 4
    assert (shown["D"] == [5, 5, 4, 4]).all() and (shown["E"] == [4, 4, 5, 5]).all()
    assert (shown["C"] == 4).all()  # the second state never occurs in this text


def test_two_streams_that_do_not_touch(alphabet):
    ids = mx.array(text())
    (where, what), (other_where, other_what) = symbols.keys(5, 0), symbols.keys(5, 1)
    t, hit = symbols.drawn((8, CANVAS), where)
    mine, symbols_moved = (np.array(states.shown(alphabet, "C", ids, hit, key)) for key in (what, other_what))
    assert np.array_equal(mine >= VOCAB, symbols_moved >= VOCAB) and not np.array_equal(mine, symbols_moved)
    assert not np.array_equal(np.array(symbols.drawn((8, CANVAS), other_where)[1]), np.array(hit))
    drawn = {tuple(np.array(k).tolist()) for step in range(3) for held in (False, True) for k in symbols.keys(5, step, held)}
    assert len(drawn) == 12
    assert np.array(symbols.exactly((9, CANVAS), 0.75, where)).sum(1).tolist() == [24] * 9
    rates, hits = (np.array(x) for x in symbols.drawn((3000, CANVAS), where))
    assert abs(hits.mean(1) - rates[:, 0]).mean() < 0.1 and abs((hits.mean(1) - rates[:, 0]).mean()) < 0.005 and hits.any(1).all()


# --- the model ---

def test_states_are_embedded_and_cannot_be_read_out(target, alphabet):
    before = target.digest()
    model, canvas = states.build(target, alphabet, "aligned", RECIPE)
    ids = mx.array(text(2))
    hit = mx.ones((2, CANVAS)) > 0
    logits = model(states.shown(alphabet, "E", ids, hit, mx.random.key(0)), PREFIX, mx.ones((2,)))
    assert logits.shape == (2, CANVAS, target.vocab_size) and np.isfinite(np.array(logits)).all()
    norms = np.linalg.norm(np.array(model.states.side), axis=1)
    vectors = np.array(model.states(mx.arange(VOCAB)))
    assert np.allclose(norms, np.linalg.norm(vectors, axis=1).mean(), rtol=1e-5)
    assert np.array_equal(vectors, np.array(tower(target.model).embed_tokens(mx.arange(VOCAB))))
    assert np.array_equal(np.array(model.states(mx.array([VOCAB + 3]))[0]), np.array(model.states.side[3]))
    assert target.digest() == before


def test_gradients_only_where_they_may_be(target, alphabet):
    before = target.digest()
    loop, _ = states.training(target, alphabet, "E", "aligned", RECIPE, text())
    names = [name for name, _ in tree_flatten(loop.model.trainable_parameters())]
    assert names and all(states.allowed(name) for name in names) and {"states.side"} < set(names)
    assert not states.allowed("states.base.weight") and not states.allowed("adapted.model.norm.weight")
    start, plain = np.array(loop.model.states.side), np.array(loop.model.states.base.weight)
    loop.run(1, **act4n.QUIET)
    shown = {int(i) - VOCAB for i in np.array(loop.batches(0)[1]).ravel() if i >= VOCAB}
    assert set(np.flatnonzero((np.array(loop.model.states.side) != start).any(1)).tolist()) == shown
    assert np.array_equal(np.array(loop.model.states.base.weight), plain) and target.digest() == before


def test_the_loss_counts_corrupted_positions_alone(target, alphabet):
    loop, _ = states.training(target, alphabet, "D", "causal", RECIPE, text())
    _, ids, clean, hit, t = loop.batches(0)
    logits = np.array(loop.model(ids, PREFIX, t)).astype(float)
    logp = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)) - logits.max(-1, keepdims=True)
    wanted = -np.take_along_axis(logp, np.array(clean)[..., None], -1)[..., 0][np.array(hit)].mean()
    loop.run(1, **act4n.QUIET)
    assert loop.log["loss"][0][1] == pytest.approx(wanted, abs=2e-3)


def test_within_a_seed_conditions_differ_in_what_is_shown_alone(target, alphabet):
    e, d = (states.training(target, alphabet, c, "causal", RECIPE, text())[0] for c in "ED")
    for (name, one), (_, other) in zip(tree_flatten(e.model.trainable_parameters()), tree_flatten(d.model.trainable_parameters())):
        assert np.array_equal(np.array(one), np.array(other)), name
    for one, other in zip(e.batches(3)[2:], d.batches(3)[2:]):
        assert np.array_equal(np.array(one), np.array(other))
    assert not np.array_equal(np.array(e.batches(3)[1]), np.array(d.batches(3)[1]))


def test_a_stopped_launch_goes_on_bit_for_bit(target, alphabet, tmp_path):
    make = lambda: states.training(target, alphabet, "C", "shuffled", RECIPE, text())[0]  # noqa: E731
    whole, half, rest = make(), make(), make()
    whole.run(2, **act4n.QUIET)
    half.run(1, **act4n.QUIET)
    half.save(tmp_path / "half.safetensors")
    rest.resume(tmp_path / "half.safetensors")
    rest.run(2, **act4n.QUIET)
    assert rest.model.fingerprint() == whole.model.fingerprint() != half.model.fingerprint() and rest.log["loss"] == whole.log["loss"]


# --- the protocol ---

@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Killed among the checks and between the scores of a launch, and gone on with each time."""
    journal = tmp_path_factory.mktemp("act4n") / "act4n.journal"
    before = 1 + len(checks.CHECKS) + 2 + 5

    def stop(at):
        def progress(done, total, label):
            assert total == before + 11 * 4
            if done == at:
                raise KeyboardInterrupt
        return progress

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(act4n, "load_target", lambda name, dtype: hybrid())
        for at, resume in ((4, False), (before + 4 + 2, True)):
            with pytest.raises(KeyboardInterrupt):
                act4n.measure(PARAMS, journal, stop(at), resume=resume)
        with pytest.raises(BadInput):
            act4n.measure(PARAMS | {"steps": 3}, journal, resume=True)
        with pytest.raises(BadInput, match="only 1 seeds"):
            act4n.measure(PARAMS | {"full": 2}, journal)
        return load_rows(act4n.measure(PARAMS, journal, resume=True))


def test_every_row_is_there_once(measured):
    keys = [act4n.key(r) for r in measured.rows]
    assert len(set(keys)) == len(keys) == 1 + len(checks.CHECKS) + 2 + 5 + 11 * 4
    assert all(r["passed"] for r in measured.of("state_check")) and needs.check(measured) is measured
    launches = measured.of("state_launch")
    assert [tuple(r[k] for k in ("condition", "arm", "seed")) for r in launches if r["stage"] == 2] == [tuple(run) for run in measured.config["runs"]]
    assert len({r["target_digest"] for r in launches}) == 1 and len({r["digest"] for r in launches}) == len(launches)
    with pytest.raises(BadInput, match="state_launch rows with stage and condition and arm and seed 2 E shuffled"):
        needs.check(replace(measured, rows=[r for r in measured.rows if not (r["kind"] == "state_launch" and r["arm"] == "shuffled")]))
    with pytest.raises(BadInput, match="scores of 1 launches"):
        needs.check(replace(measured, rows=measured.rows[:-2] + measured.rows[-1:]))


def test_every_rule_can_be_judged(measured):
    found, rules = book.numbers(measured), criteria.load("act4n")
    assert {c.rule.metric for c in rules} - set(found) == {"power"} and rules.design["primary outcome"]
    words = {o.criterion.id: o.word for o in book.outcomes(measured)}
    assert words["N-1"] == words["N-3"] == criteria.HOLDS and words["N-2"] == criteria.FAILS and words["N-5"] == "not decidable: 1 seed"
    assert "states that name a semantic bucket" in overview.found("act4n", measured)[0]


def stop_within(done, total, label):
    """Between the scores of the first launch of the second part, after its six rows of the table."""
    assert total == 6 + len(act4n.DECISIVE) * 4
    if done == 8:
        raise KeyboardInterrupt


def test_without_a_conditioner_and_beside_a_table(tmp_path, monkeypatch, measured):
    monkeypatch.setattr(act4n, "load_target", lambda name, dtype: hybrid())
    journal = tmp_path / "act4n_bare.journal"
    with pytest.raises(KeyboardInterrupt):
        act4n.bare(PARAMS, journal, stop_within)
    file = load_rows(act4n.bare(PARAMS, journal, resume=True))
    assert len(file.rows) == len({act4n.key(r) for r in file.rows}) == 6 + len(act4n.DECISIVE) * 4 and needs.check(file) is file
    assert not {r["trained"] for r in file.of("state_launch")} & {r["trained"] for r in measured.of("state_launch")}
    assert {c.rule.metric for c in criteria.load("act4n_bare")} <= set(book.bare(file)) and "without the timestep conditioner" in overview.found("act4n_bare", file)[0]
    assert [line["label"] for line in book.without(file)][:2] == ["E less D", "E less D, table"]
    assert book.beside_table(file, measured)["readout"].tolist() == ["table of the states", "without conditioner", "with conditioner"]
    assert len(book.beside_table(file, replace(measured, config=measured.config | {"windows": 1}))) == 2
    with pytest.raises(BadInput, match="state_table rows with condition and seed and level D"):
        needs.check(replace(file, rows=file.rows[1:]))


def test_a_table_names_the_most_frequent_token_of_a_state():
    labels, trained_on = np.array([0, 0, 1, 1]), np.array([[0, 1, 1, 3, 3, 3]])
    row = states.by_table(labels, trained_on, 7, np.tile([0, 1, 2, 3], (3, 12)), 1.0)  # 16 clean and 32 canvas tokens a window, each token eight times
    assert row["hidden"] == 32 and row["right"] == [16] * 3  # 1 and 3 are right, 0 and 2 never
    counts = np.array([2, 3, 1, 4])
    assert row["nats"] == pytest.approx([-np.log(counts / np.array([5, 5, 5, 5])).mean()] * 3, abs=1e-3)


@pytest.mark.parametrize("statement, fault", [
    ("every state has as many tokens in D as in E", {"permuted": lambda a: np.zeros_like(a.permuted)}),
    ("no token keeps its state in D", {"permuted": lambda a: a.semantic}),
    ("D and E have nearly the same entropy over text", {"permuted": lambda a: np.roll(a.semantic[np.argsort(a.frequencies)], 1)}),
    ("the same seed gives the same alphabet", {"semantic": lambda a: np.roll(a.semantic, 1)}),
    ("every state of E has a token", {"semantic": lambda a: np.minimum(a.semantic, 30)}),
])
def test_a_faulty_alphabet_fails_its_check(target, alphabet, statement, fault):
    broken = replace(alphabet, **{name: change(alphabet) for name, change in fault.items()})
    assert checks.CHECKS[statement](checks.Bench(target, alphabet, text(), RECIPE))[1]
    assert not checks.CHECKS[statement](checks.Bench(target, broken, text(), RECIPE))[1]


@pytest.mark.parametrize("statement, condition, instead", [("A shows one id", "A", "C"), ("B shows tokens of the vocabulary", "B", "E"), ("A, C, D and E show states alone", "C", "B"),
                                                           ("D shows the state of D of each token", "D", "E"), ("C tells nothing of the token", "C", "E")])
def test_a_faulty_corruption_fails_its_check(target, alphabet, statement, condition, instead, monkeypatch):
    right = Alphabet.symbols
    monkeypatch.setattr(Alphabet, "symbols", lambda self, c, ids, key: right(self, instead if c == condition else c, ids, key))
    assert not checks.CHECKS[statement](checks.Bench(target, alphabet, text(), RECIPE))[1]


def test_a_failed_check_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(act4n, "load_target", lambda name, dtype: hybrid())
    monkeypatch.setattr(checks, "CHECKS", {"two and two are five": lambda bench: ("4", False)})
    with pytest.raises(RuntimeError, match="Stage 0 fails: two and two are five"):
        act4n.measure(PARAMS, tmp_path / "act4n.journal")
    assert '"passed": false' in (tmp_path / "act4n.journal").read_text() and "state_launch" not in (tmp_path / "act4n.journal").read_text()


# --- metrics on rows that are known ---

def known(differences, windows=4):
    """Rows of two conditions and arms whose E less D is ``differences`` points at each seed, at every level; windows differ, but equally in both."""
    rows = [{"kind": "state_score", "condition": c, "arm": arm, "seed": seed, "level": level, "hidden": 100, "right": [20 + 5 * w + (d if c == "E" else 0) for w in range(windows)],
             "nats": [2.0 - 0.5 * (c == "E")] * windows} for seed, d in enumerate(differences) for c in "DE" for arm in book.BOTH for level in (0.5, 0.75, 1.0)]
    return RowFile("act4n", "toy", {}, {"seeds": list(range(len(differences))), "levels": [0.5, 0.75, 1.0], "runs": []}, rows, "known", "")


def test_differences_are_paired_and_over_seeds():
    value, low, high, n = book.numbers(known([1, 2, 3]))["e_less_d"]
    assert (value, n) == (pytest.approx(2.0), 3) and high - value == pytest.approx(4.3027 / np.sqrt(3), abs=1e-3) and value - low == pytest.approx(high - value)
    assert book.numbers(known([1, 2]))["e_less_d"][1:] == (None, None, 2, "2 seeds")
    assert book.numbers(known([1, 2, 3]))["e_less_c"] == (None,)
    assert book.between(known([1, 2, 3]), "E", "D", value=book.nats)[0] == -0.5 and "-0.50 nats [-0.50, -0.50], lower being better" in book.remark(known([1, 2, 3]))
    assert book.remark(known([1, 2])).endswith("-0.50 nats, lower being better")


def test_power_by_the_design():
    at = lambda n, sd: book.power(list(np.resize([1.0, -1.0], n) * sd * np.sqrt((n - 1) / n)), 2.0)  # noqa: E731
    assert at(10, 2.0) == pytest.approx(0.80, abs=0.005) and at(10, 1.5) == pytest.approx(0.96, abs=0.005)  # as data/criteria/act4n.json says
    assert at(10, 0.01) == 1.0 and book.power([1.0]) is None


def test_rows_that_do_not_agree_are_refused():
    score = {"kind": "state_score", "condition": "E", "arm": "causal", "seed": 1, "level": 0.5, "hidden": 16, "right": [3], "nats": [2.0]}
    StateScoreRow.model_validate(score)
    with pytest.raises(ValueError, match="16 hidden"):
        StateScoreRow.model_validate(score | {"right": [17]})
    with pytest.raises(ValueError, match="1 losses and 1 norms for 2 steps"):
        StateLaunchRow.model_validate({"kind": "state_launch", "stage": 2, "condition": "E", "arm": "causal", "seed": 1, "steps": 2, "trained": 5, "losses": [1.0],
                                       "norms": [1.0], "hidden": 0, "right": 0, "seconds": 1.0, "digest": "", "target_digest": "", "stopped": None})
