"""Training a Uno drafter on a toy: branched blocks against the published layout, frozen target, reproducible weights."""
import re
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from specdecode_nb import ending, lora
from specdecode_nb.families import embed_and_head
from specdecode_nb.gdn import RecurrentCache
from specdecode_nb.streams import EVAL_NOISE, TRAIN_NOISE, TRAIN_RATE, stream_seed
from specdecode_nb.train import fast, uno
from toy import VOCAB, adapter, hybrid, reference_cache, stock

R = 3
WINDOWS = np.random.default_rng(2).integers(1, VOCAB, (3, 24)).astype(np.int32)
WINDOW_OF, ANCHORS = mx.array([0, 1, 2, 0, 1, 2, 0]), mx.array([0, 3, 9, 19, 19, 1, 12])
AT = ANCHORS[:, None] + 1 + mx.arange(R)[None]


@pytest.fixture(scope="module")
def clean():
    return uno.clean_pass(hybrid(), WINDOWS, batch=2)


def head(hidden):
    return embed_and_head(hybrid())[1](hidden)


def blocks(clean, rows=None):
    """Draft rows (noise unless given), caches, teacher logits and the scored rows of the head (None: all) of seven blocks."""
    if rows is None:
        rows = mx.random.randint(1, VOCAB, AT.shape, key=mx.random.key(7)).astype(mx.int32)
    return rows, uno.branch(hybrid(), clean, WINDOW_OF, ANCHORS), head(clean.hidden[WINDOW_OF[:, None], AT]), None


def published(adapted, gate, rows, kind):
    """The same blocks one by one in the suffix layout; each has its own length."""
    losses = []
    for n, (w, a) in enumerate(zip(WINDOW_OF.tolist(), ANCHORS.tolist())):
        ids = mx.array(WINDOWS[w : w + 1, : a + 1 + R])
        losses.append(uno.suffix_loss(adapted, gate, hybrid(), ids, rows[n : n + 1], kind))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("kind", ("tv", "ce"))
def test_branched_blocks_have_the_loss_of_the_published_layout(clean, kind):
    adapted, gate = adapter(hybrid())
    rows, caches, teacher, _ = blocks(clean)
    ours = uno.branch_loss(adapted, gate, rows, caches, teacher, None, kind).item()
    assert ours == pytest.approx(published(adapted, gate, rows, kind).item(), rel=1e-5, abs=1e-5)
    assert ours > 0.1


@pytest.mark.parametrize("kind", ("tv", "ce"))
def test_branched_blocks_have_the_gradient_of_the_published_layout(clean, kind):
    """The clean rows carry none, so leaving them out of the graph changes nothing."""
    adapted, gate = adapter(hybrid(), size=0.02)
    rows, caches, teacher, _ = blocks(clean)
    ours = nn.value_and_grad(adapted, lambda m: uno.branch_loss(m, gate, rows, caches, teacher, None, kind))(adapted)[1]
    wanted = dict(tree_flatten(nn.value_and_grad(adapted, lambda m: published(m, gate, rows, kind))(adapted)[1]))
    for name, grad in tree_flatten(ours):
        scale = float(mx.abs(wanted[name]).max())
        np.testing.assert_allclose(np.array(grad), np.array(wanted[name]), atol=2e-3 * scale + 1e-7, err_msg=name)
    assert {k.rsplit(".", 1)[1] for k in wanted} == {"lora_a", "lora_b"}


def test_blocks_of_equal_length_in_one_batch(clean):
    adapted, gate = adapter(hybrid())
    window_of, anchors = mx.array([0, 1, 2]), mx.array([11, 11, 11])
    at = anchors[:, None] + 1 + mx.arange(R)[None]
    rows = mx.array([[9, 80, 3], [200, 4, 4], [17, 17, 250]])
    ours = uno.branch_loss(adapted, gate, rows, uno.branch(hybrid(), clean, window_of, anchors), head(clean.hidden[window_of[:, None], at]), None, "tv")
    wanted = uno.suffix_loss(adapted, gate, hybrid(), mx.array(WINDOWS[:, : 12 + R]), rows, "tv")
    assert ours.item() == pytest.approx(wanted.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ("tv", "ce"))
def test_scored_among_every_id_the_loss_is_that_over_the_vocabulary(clean, kind):
    adapted, gate = adapter(hybrid())
    some = lambda frequent: uno._blocks(hybrid(), clean, uno.Recipe(block=4, blocks=5, negatives=2), 3, TRAIN_NOISE, 4, frequent)  # noqa: E731
    whole, every, few = some(None), some(np.arange(VOCAB)), some(np.array([5, 6]))
    assert np.array_equal(whole[0], every[0]) and whole[3] is None and every[3].shape[0] == VOCAB and 2 < few[3].shape[0] <= 5 * 3 + 4
    assert uno.branch_loss(adapted, gate, *every, kind).item() == pytest.approx(uno.branch_loss(adapted, gate, *whole, kind).item(), rel=1e-4)


def test_a_block_starts_from_the_states_that_decoding_sees(clean):
    _, caches, *_ = blocks(clean)
    for n, (w, a) in enumerate(zip(WINDOW_OF.tolist(), ANCHORS.tolist())):
        wanted = reference_cache(hybrid(), WINDOWS[w, : a + 1].tolist(), 0)
        for ours, plain in zip(caches, wanted):
            if isinstance(plain, RecurrentCache):
                assert all(np.array(ours[j][n]).tobytes() == np.array(plain[j][0]).tobytes() for j in (0, 1)), (n, a)


@pytest.mark.parametrize("size", (0.2, 0.0))
def test_teacher_states_and_true_tokens_of_a_step_are_of_one_place_in_the_text(clean, size):
    """The place is found by the teacher's rows, which are the target's own logits there; the student's are those of the published layout."""
    recipe, (adapted, gate) = uno.Recipe(block=R + 1, blocks=8, corruption="uniform"), adapter(hybrid(), size=size)
    rows, caches, teacher, _ = uno._blocks(hybrid(), clean, recipe, 3, TRAIN_NOISE, 12)
    noise = np.array(uno._blocks(hybrid(), clean, replace(recipe, corruption="full"), 3, TRAIN_NOISE, 12)[0])
    gate.rows(mx.ones(rows.shape))
    student, own, kept = np.array(adapted(rows, cache=caches)), np.array(hybrid().model(mx.array(WINDOWS))), np.array(rows) != noise
    for n, row in enumerate(np.array(rows)):
        [(w, a)] = [(w, a) for w in range(3) for a in range(-1, 24 - R) if np.allclose(own[w, a + 1 : a + 1 + R], np.array(teacher[n]), atol=1e-4)]
        assert 12 <= a and np.array_equal(row[kept[n]], WINDOWS[w, a + 1 : a + 1 + R][kept[n]])
        ids = mx.array([[*WINDOWS[w, : a + 1].tolist(), *row.tolist()]])
        gate.rows(mx.array([[0.0] * (a + 1) + [1.0] * R]))
        for model in (adapted, *[hybrid().model] * (not size)):  # an adapter of nothing is the target
            np.testing.assert_allclose(student[n], np.array(model(ids))[0, -R:], atol=1e-3)
    assert 4 < kept.sum() < kept.size - 4


@pytest.mark.parametrize("modules", [lora.PUBLISHED, lora.PUBLISHED + lora.DELTANET])
def test_a_zero_adapter_on_true_tokens_is_the_teacher(clean, modules):
    adapted, gate = lora.attach(hybrid().model, 4, modules)
    true = mx.array(WINDOWS)[WINDOW_OF[:, None], AT]
    assert uno.branch_loss(adapted, gate, *blocks(clean, true), "tv").item() < 1e-5
    rows, caches, teacher, _ = blocks(clean, true)
    p = mx.softmax(teacher, axis=-1)
    entropy = -(p * mx.log(mx.maximum(p, 1e-30))).sum().item() / (len(ANCHORS) * (R + 1))
    assert uno.branch_loss(adapted, gate, rows, caches, teacher, None, "ce").item() == pytest.approx(entropy, abs=1e-4)
    assert uno.branch_loss(adapted, gate, *blocks(clean), "tv").item() > 0.1


def test_objectives_by_hand():
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 3, 5))
    q, p = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (student, teacher))
    pair = mx.array(student.astype(np.float32)), mx.array(teacher.astype(np.float32))
    assert uno.objective_sum(*pair, "tv").item() == pytest.approx(np.abs(q - p).sum(), rel=1e-5)
    assert uno.objective_sum(*pair, "ce").item() == pytest.approx(-(p * np.log(q)).sum(), rel=1e-5)


def test_the_gradient_of_the_distance_by_hand():
    """q (s - sum(s q)) with s the sign of q - p (system 1.1)."""
    rng = np.random.default_rng(3)
    student, teacher = (rng.normal(size=(1, 2, 6)).astype(np.float32) for _ in range(2))
    q, p = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (student.astype(np.float64), teacher.astype(np.float64)))
    s = np.sign(q - p)
    ours = mx.grad(lambda x: uno.objective_sum(x, mx.array(teacher), "tv"))(mx.array(student))
    np.testing.assert_allclose(np.array(ours), q * (s - (s * q).sum(-1, keepdims=True)), rtol=1e-4, atol=1e-6)


def test_corruption():
    ids = mx.array(np.random.default_rng(1).integers(0, VOCAB, (400, 7)).astype(np.int32))
    full, mixed = uno.Recipe(seed=5), uno.Recipe(seed=5, corruption="uniform")
    noise = np.array(uno.corrupt(ids, VOCAB, full, 3))
    assert noise.min() >= 1 and noise.max() < VOCAB and noise.shape == ids.shape and uno.corrupt(ids, VOCAB, full, 3).dtype == ids.dtype
    assert np.array_equal(noise, np.array(uno.corrupt(mx.zeros_like(ids), VOCAB, full, 3)))  # true tokens play no part
    assert not np.array_equal(noise, np.array(uno.corrupt(ids, VOCAB, full, 4)))
    assert not np.array_equal(noise, np.array(uno.corrupt(ids, VOCAB, full, 3, stream=TRAIN_NOISE + 1)))
    rows = np.array(uno.corrupt(ids, VOCAB, mixed, 3))
    kept = rows == np.array(ids)
    assert np.array_equal(rows[~kept], noise[~kept])  # the same noise, at fewer rows
    share = kept.mean(axis=1)
    assert 0.4 < share.mean() < 0.6 and (share == 1).sum() > 20 and (share < 0.2).sum() > 20  # a rate a block, uniform


def test_the_rate_of_a_block_comes_from_the_stream_of_rates_and_its_noise_says_nothing_of_the_place():
    ids, recipe = mx.zeros((40, 900), dtype=mx.int32), uno.Recipe(seed=5, corruption="uniform", noise_seed=8)
    rate = np.array(mx.random.uniform(shape=(40, 1), key=mx.random.key(stream_seed(8, TRAIN_RATE, 3))))[:, 0]
    rows = np.array(uno.corrupt(ids, VOCAB, recipe, 3))
    assert np.abs((rows != 0).mean(axis=1) - rate).max() < 4 * 0.5 / 30 and np.ptp(rate) > 0.8  # noise is never 0
    noise = rows[rate < 0.5][rows[rate < 0.5] != 0]
    assert abs(noise.mean() - VOCAB / 2) < 4 * VOCAB / np.sqrt(12 * len(noise))


# training

RECIPE = uno.Recipe(rank=6, objective="ce", block=4, lr=2e-2, warmup=2, steps=20, windows=4, blocks=12, seed=11)


@pytest.fixture(scope="module")
def windows():
    tokens = np.random.default_rng(6).integers(1, VOCAB, 600)
    tokens[::30] = 0
    made = uno.own_windows(hybrid(), tokens, 6, prefix=8, length=28, seed=3, batch=4)
    begins = {tuple(tokens[i + 1 : i + 9]) for i in np.flatnonzero(tokens == 0)}
    assert made.shape == (6, 28) and all(tuple(row[:8]) in begins for row in made)
    return made


def quiet(*_, **__):
    pass


def run(windows, recipe=RECIPE, **options):
    adapted, gate, log = uno.train(hybrid(), windows[:4], windows[4:], recipe, lowest=4, say=quiet, **options)
    return adapted, gate, log, {k: np.array(v) for k, v in lora.adapter_weights(adapted).items()}


@pytest.fixture(scope="module")
def trained(windows):
    before = hybrid().digest()
    result = run(windows)
    assert hybrid().digest() == before
    return result


def test_own_windows_are_the_target_s_greedy_text(windows):
    target = hybrid()
    for row in windows[:2]:
        logits = target.model(mx.array([row.tolist()]), cache=target.make_cache())[0]
        assert np.array(mx.argmax(logits, axis=-1))[7:-1].tolist() == row[8:].tolist()


@pytest.mark.parametrize("kind", ("ce", "tv"))
def test_twenty_steps_lower_the_loss(windows, trained, kind):
    """On blocks and noise of a step that training has not seen."""
    adapted, gate, log, _ = trained if kind == "ce" else run(windows, replace(RECIPE, objective="tv", rank=16, lr=3e-2))
    zero, off = lora.attach(hybrid().model, RECIPE.rank, uno.MODULES["all"])
    clean = uno.clean_pass(hybrid(), windows[:4])
    fixed = uno._blocks(hybrid(), clean, RECIPE, 999, TRAIN_NOISE, 4)
    fresh = uno._blocks(hybrid(), clean, RECIPE, 999, TRAIN_NOISE, 4)
    before, after = uno.branch_loss(zero, off, *fixed, kind).item(), uno.branch_loss(adapted, gate, *fresh, kind).item()
    assert after < {"ce": 0.8, "tv": 0.98}[kind] * before, (before, after)
    assert [row[0] for row in log["loss"]] == [10, 20] and [row[0] for row in log["agreement"]] == [0, 20]
    assert 0 <= log["agreement"][-1][1]["prefix_k4"] <= 3 and len(log["agreement"][-1][1]["per_slot"]) == 3


def test_the_same_seed_gives_the_same_weights(windows, trained):
    again = run(windows)[3]
    assert all(again[k].tobytes() == v.tobytes() for k, v in trained[3].items())
    other = run(windows, replace(RECIPE, seed=12))[3]
    assert any(other[k].tobytes() != v.tobytes() for k, v in trained[3].items())


def test_going_on_from_an_earlier_adapter(windows, trained, tmp_path):
    """The tensors of the file are where the second stage begins."""
    path = tmp_path / "first.safetensors"
    lora.save_adapter(path, trained[0], {"scale": 16.0})
    start = lora.adapter_weights(lora.load_adapter(path, hybrid().model)[0])
    assert {k: v.shape for k, v in start.items()} == {k: v.shape for k, v in trained[3].items()}
    log = run(windows, replace(RECIPE, steps=1), start=start)[2]
    assert log["agreement"][0][1] == trained[2]["agreement"][-1][1]


def test_a_student_without_gradient_whose_logits_are_more_than_twice_the_teacher_s_ends_a_run(clean):
    """An adapter of zeros has no gradient; the teacher's logits are scaled to both sides of the limit."""
    recipe = replace(RECIPE, block=R + 1)
    nothing = {k: mx.zeros_like(v) for k, v in lora.adapter_weights(lora.attach(hybrid().model, recipe.rank, uno.MODULES[recipe.modules])[0]).items()}
    ratios = []
    for step in range(5):
        rows, caches, teacher, _ = uno._blocks(hybrid(), clean, recipe, step, TRAIN_NOISE, 4)
        ratios.append((mx.abs(hybrid().model(rows, cache=caches)).max() / mx.abs(teacher).max()).item())
    begin = lambda scale: uno.launch(hybrid(), replace(clean, hidden=clean.hidden * scale), recipe, 4, start=nothing)[2]  # noqa: E731
    with pytest.raises(FloatingPointError, match="step 5: loss [0-9.]+, gradient norm 0;"):
        begin(min(ratios) / 2.05).run(6, quiet)
    begin(max(ratios) / 1.95).run(5, quiet)


def test_a_rate_that_is_too_high_is_an_error(windows):
    with pytest.raises(FloatingPointError, match="lower the rate"):
        run(windows, replace(RECIPE, lr=1e30, warmup=1))


# the command


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command with these words in an empty folder with a corpus and windows: (status, what it said)."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "torn.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "empty.npy").touch()
    np.save(tmp_path / "corpus" / "train.npy", np.where(np.arange(1, 901) % 30, 7, 0).astype(np.uint16))
    np.save(tmp_path / "own.npy", np.random.default_rng(0).integers(1, VOCAB, (uno.HELD_OUT + 4, 24)).astype(np.int32))
    np.save(tmp_path / "foreign.npy", np.full((uno.HELD_OUT + 4, 24), VOCAB))
    np.save(tmp_path / "few.npy", np.ones((uno.HELD_OUT, 24), dtype=int))
    np.save(tmp_path / "real.npy", np.ones((40, 24)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(uno, "load_target", lambda name: hybrid())

    def run(words):
        monkeypatch.setattr("sys.argv", ["uno", *words.split()])
        return ending.guarded(uno.main), capsys.readouterr().err

    return run


GOOD = "u.safetensors --windows-file own.npy --prefix 8 --block 3 --windows 3 --blocks 2 --steps 1 --rank 2"


@pytest.mark.parametrize("words, said", [
    *((f"{GOOD} --{name} {least - 1}", f"--{name} is {least - 1}; give {least} or more")
      for name, least in {"steps": 1, "rank": 1, "block": 2, "windows": 1, "blocks": 1, "prefix": 1, "negatives": 0, "seed": 0, "text-windows": 1}.items()),
    *((f"{GOOD} --lr {rate}", f"--lr is {float(rate)}; give a finite number above 0") for rate in ("nan", "inf", "0", "-1")),
    (f"{GOOD} --prefix 21", r"than --prefix and --block together \(24\)"),
    (f"{GOOD} --window 11", r"--window is 11; give more than --prefix and --block together \(11\)"),
    (f"{GOOD} --checkpoint nowhere/c.safetensors", "'nowhere/c.safetensors': its folder is missing"),
    (f"nowhere/{GOOD}", "'nowhere/u.safetensors': its folder is missing"),
    (f"{GOOD} --checkpoint corpus", "'corpus': that is a folder"),
    (f"{GOOD} --windows-file torn.npy", "'torn.npy' holds no token ids"),
    (f"{GOOD} --windows-file empty.npy", "'empty.npy' holds no token ids"),
    (f"{GOOD} --windows-file real.npy", r"'real.npy' holds no token ids \(no whole numbers of 2 axes\)"),
    (f"{GOOD} --windows-file foreign.npy", f"ids from {VOCAB} to {VOCAB}, but those of the target end at {VOCAB - 1}"),
    (f"{GOOD} --windows-file few.npy", "gives 0 windows of 24 tokens"),
    (f"{GOOD} --windows-file corpus/train.npy", "'corpus/train.npy' holds no token ids"),
    (f"u.safetensors nowhere {GOOD.split(' ', 1)[1]}", "'nowhere/train.npy' holds no token ids .No such file"),
    ("u.safetensors corpus --window 24 --prefix 8 --block 3 --text-windows 9", "41 windows of own text need as many documents, but the corpus has 30"),
    (GOOD.replace("--windows-file own.npy ", ""), "There is no text to train on")])
def test_bad_options_are_one_sentence_before_anything_starts(command, monkeypatch, words, said):
    monkeypatch.setattr(uno, "clean_pass", None)
    status, error = command(words)
    assert status == 2 and error.count("\n") == 1 and re.search(said, error)


def test_the_command_trains(command, tmp_path):
    assert command(GOOD) == (0, "") and (tmp_path / "u.safetensors").is_file()


# arithmetic that only training uses


def test_fast_sigmoid():
    x = mx.concatenate([mx.linspace(-120, 120, 4001), mx.array([0.0, -0.0, 1e-30, 88.7, -88.7, 3e38, -3e38])])
    ours, wanted = np.array(fast.fast_sigmoid(x), dtype=np.float64), 1 / (1 + np.exp(-np.clip(np.array(x, dtype=np.float64), -700, 700)))
    normal = wanted > 1e-37
    np.testing.assert_allclose(ours[normal], wanted[normal], rtol=5e-6)
    near = np.abs(np.array(x)) <= 4
    np.testing.assert_allclose(ours[near], wanted[near], rtol=4e-7)
    assert ours[~normal].max() < 1e-36 and np.isfinite(ours).all()
    np.testing.assert_allclose(ours, np.array(mx.sigmoid(x)), atol=1e-6)


def test_the_gradient_of_fast_sigmoid():
    x, weight = mx.linspace(-30, 30, 401), mx.random.normal((401,), key=mx.random.key(1))
    ours, wanted = (np.array(mx.grad(lambda v, f=f: (f(v) * weight).sum())(x)) for f in (fast.fast_sigmoid, mx.sigmoid))
    np.testing.assert_allclose(ours, wanted, atol=1e-6)
    second = mx.grad(lambda v: mx.grad(lambda u: fast.fast_sigmoid(u).sum())(v).sum())(mx.array([0.5]))
    assert second.item() == pytest.approx(-0.057556, abs=1e-4)


def test_the_training_mlp_agrees_with_the_stock_one():
    mlp = stock().layers[0].mlp
    quick, x = fast.adopt_mlp(mlp), mx.random.normal((2, 5, 64), key=mx.random.key(3))
    np.testing.assert_allclose(np.array(quick(x)), np.array(mlp(x)), rtol=1e-4, atol=1e-5)
    assert type(mlp) is not type(quick) and quick.up_proj is mlp.up_proj


def test_half_the_bytes_are_the_rounded_adapter(tmp_path):
    whole = lora.adapter_weights(adapter(hybrid())[0])
    lora.save_adapter(tmp_path / "half.safetensors", adapter(hybrid())[0], {"scale": 16.0}, half=True)
    model, _, _ = lora.load_adapter(tmp_path / "half.safetensors", hybrid().model)
    read = lora.adapter_weights(model)
    assert read.keys() == whole.keys() and any(not np.array_equal(np.array(read[k]), np.array(whole[k])) for k in read)
    for name, value in read.items():
        assert value.dtype == mx.float32 and np.array_equal(np.array(value), np.array(whole[name].astype(mx.bfloat16).astype(mx.float32)))


def test_a_shuffled_teacher_is_another_block_s_and_held_out_blocks_keep_their_own(clean):
    recipe = uno.Recipe(block=R + 1, blocks=5)
    own, other = (uno._blocks(hybrid(), clean, replace(recipe, shuffled=s), 3, TRAIN_NOISE, 4) for s in (False, True))
    assert np.array(own[0]).tolist() == np.array(other[0]).tolist()
    assert np.array(mx.roll(own[2], 1, axis=0)).tolist() == np.array(other[2]).tolist() != np.array(own[2]).tolist()
    held_out = [uno._blocks(hybrid(), clean, replace(recipe, shuffled=s), 3, EVAL_NOISE, 4)[2] for s in (False, True)]
    assert np.array(held_out[0]).tolist() == np.array(held_out[1]).tolist()
