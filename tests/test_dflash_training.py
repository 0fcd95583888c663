"""Training a DFlash drafter on a toy: blocks as decoding sees them, no leak past the anchor, resumable, judged by decoding."""
import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from specdecode_nb.decoder import Session
from specdecode_nb.dflash import DFlashDrafter
from specdecode_nb.taps import TappedModel
from specdecode_nb.train import dflash, tapped
from specdecode_nb.train.columns import columns, most_frequent
from tapping import CONFIG, LENGTH, PREFIX, toy_rows, toy_windows, weights
from toy import VOCAB, hybrid

RECIPE = dflash.Recipe(layers=1, heads=4, kv_heads=2, mlp=64, blocks=(4, 3), lr=1e-2, warmup=2, steps=40, windows_a_step=3, rows=72, probe_every=10,
                       probe_block=4, probe_tokens=12, patience=2, seed=5)


@pytest.fixture
def windows():
    return toy_windows()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return toy_rows(tmp_path_factory.mktemp("taps"), RECIPE.taps)


def quiet(*_, **__):
    pass


def exact(windows):
    """Tapped rows in float32, [P, W, width]."""
    return mx.concatenate(TappedModel(hybrid().model, RECIPE.taps).taps(mx.array(windows.astype(np.int32)), hybrid().make_cache())[1], axis=-1)


def test_tapped_rows_are_those_of_the_target(windows, rows):
    wanted = np.array(exact(windows))
    assert rows.shape == wanted.shape and rows.dtype == np.float16
    np.testing.assert_allclose(rows, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("block, window", [(2, None), (5, None), (9, None), (5, 7)])
def test_a_block_in_training_is_the_block_of_decoding(windows, block, window):
    model, target = weights(replace(CONFIG, draft_window_size=window)), hybrid()
    anchors = mx.array([[5, 17, 30], [6, 6, 31]])
    ids = mx.array(windows[:2].astype(np.int32))
    logits = np.array(dflash.block_logits(model, target, exact(windows[:2]), ids, anchors, block)).reshape(2, 3, block - 1, VOCAB)
    for w in range(2):
        for j, a in enumerate(anchors[w].tolist()):
            history = windows[w, : a + 1].tolist()
            drafter, session = DFlashDrafter(target, model), Session(target)
            session.feed(history, drafter.verifier)
            seen = []
            drafter._head = lambda h, inner=drafter._head: seen.append(inner(h)) or seen[-1]
            drafter.draft(session.cache, history, block, 1)
            np.testing.assert_allclose(logits[w, j], np.array(seen[0][0]), rtol=1e-3, atol=1e-3)


def test_a_block_sees_nothing_from_its_anchor_on_and_no_other_block(windows):
    model, target, taps = weights(), hybrid(), np.array(exact(windows[:1]))
    ids = windows[:1].astype(np.int32)
    run = lambda t, i, a: np.array(dflash.block_logits(model, target, mx.array(t), mx.array(i), mx.array(a), 4)).reshape(-1, 3, VOCAB)  # noqa: E731
    base = run(taps, ids, [[10, 20]])
    later, earlier, words = taps.copy(), taps.copy(), ids.copy()
    later[:, 10:] += 1
    earlier[:, 9] += 1
    words[:, 11:] = 3
    assert np.array_equal(run(later, ids, [[10, 20]])[0], base[0]) and not np.array_equal(run(later, ids, [[10, 20]])[1], base[1])
    assert not np.array_equal(run(earlier, ids, [[10, 20]])[0], base[0])
    assert np.array_equal(run(taps, words, [[10, 20]])[0], base[0]) and np.array_equal(run(taps, ids, [[10, 33]])[0], base[0])


def test_the_loss_by_hand(windows):
    model, target, taps = weights(), hybrid(), exact(windows[:2])
    ids, anchors = mx.array(windows[:2].astype(np.int32)), mx.array([[5, 17], [6, 31]])
    for block in (4, 9):
        logits = np.array(dflash.block_logits(model, target, taps, ids, anchors, block)).astype(np.float64).reshape(2, 2, block - 1, VOCAB)
        total, weight = 0.0, 0.0
        for w in range(2):
            for j in range(2):
                for k in range(1, block):
                    decay, row = np.exp(-(k - 1) / (4 if block <= 8 else 7)), logits[w, j, k - 1]
                    total += decay * (np.log(np.exp(row - row.max()).sum()) + row.max() - row[windows[w, int(anchors[w, j].item()) + k]])
                    weight += decay
        labels = dflash.block_labels(np.array(ids), np.array(anchors), block)
        assert dflash.block_loss(model, target, taps, ids, anchors, block, mx.array(labels)).item() == pytest.approx(total / weight, rel=1e-4)
        # scored among all ids by position it is the same loss, among fewer a smaller one that still has the labels
        every, at = columns(labels, np.arange(VOCAB), VOCAB, 3, np.random.default_rng(0))
        assert dflash.block_loss(model, target, taps, ids, anchors, block, mx.array(at), mx.array(every)).item() == pytest.approx(total / weight, rel=1e-4)
        few, at = columns(labels, most_frequent(labels, 2), VOCAB, 5, np.random.default_rng(0))
        assert np.array_equal(few[at], labels) and np.unique(labels).size <= len(few) <= np.unique(labels).size + 5
        assert dflash.block_loss(model, target, taps, ids, anchors, block, mx.array(at), mx.array(few)).item() < total / weight


def test_batches_are_own_text_and_a_function_of_seed_and_step(windows, rows):
    seen, run = set(), dflash.Training(hybrid(), RECIPE)
    for step in range(60):
        taps, ids, anchors, block, labels, scored, last = run.batch(step, rows, windows, PREFIX)
        assert scored is None and last is None and RECIPE.soft == 0 and labels.shape == (anchors.size, block - 1)
        assert block == RECIPE.blocks[step % 2] and taps.shape == (3, LENGTH, 192) and anchors.shape == (3, 72 // (3 * block))
        seen |= {(int(a), block) for a in np.array(anchors).ravel()}
    # the anchor may be the last token of the prompt; the last label may be the last token of the window
    assert min(a for a, _ in seen) == PREFIX - 1 and {max(a for a, b in seen if b == n) for n in (3, 4)} == {LENGTH - 3, LENGTH - 4}
    again = run.batch(59, rows, windows, PREFIX)
    assert all(np.array_equal(np.array(x), np.array(y)) for x, y in zip(again[:3], (taps, ids, anchors)))


def test_taps_brought_to_one_size_give_the_same_drafter(windows, rows):
    run = dflash.Training(hybrid(), replace(RECIPE, even=True))
    raw = dflash.Training(hybrid(), RECIPE).batch(3, rows, windows, PREFIX)
    even = run.batch(3, rows, windows, PREFIX)
    assert all(np.array_equal(np.array(a), np.array(b)) for a, b in zip(raw[1:5], even[1:5]))
    size = np.sqrt(np.mean(np.array(even[0])[:, PREFIX:] ** 2, axis=(0, 1)))
    assert 0.3 < size.min() and size.max() < 3 and np.ptp(np.log(np.sqrt(np.mean(np.array(raw[0]) ** 2, axis=(0, 1))))) > np.ptp(np.log(size))
    folded = run._for_raw_taps(run.model)
    np.testing.assert_allclose(np.array(folded.features(raw[0])), np.array(run.model.features(even[0])), rtol=1e-3, atol=1e-4)
    assert np.array_equal(np.array(run.drafter(run.model).model.fc.weight), np.array(tapped.shipped(folded).fc.weight))


@pytest.mark.parametrize("taps", [(0, 2), (0, 2, 3)])
def test_soft_labels_are_the_distribution_of_the_target(windows, taps):
    target, recipe = hybrid(), replace(RECIPE, taps=taps, soft=0.75, even=True)
    run, layers = dflash.Training(target, recipe), recipe.read(hybrid())
    assert layers == (0, 2, 3)
    everything = np.array(mx.concatenate(TappedModel(target.model, layers).taps(mx.array(windows.astype(np.int32)), target.make_cache())[1], axis=-1))
    batch = read, ids, anchors, block, labels, scored, last = run.batch(5, everything, windows, PREFIX)
    plain = dflash.Training(target, replace(recipe, soft=0.0)).batch(5, everything[..., : 64 * len(taps)], windows, PREFIX)
    assert run.recipe.soft == 0.75 and all(np.array_equal(np.array(a), np.array(b)) for a, b in zip(plain[:5], (read, ids, anchors, block, labels)))
    # the windows of this step in full, to see what the target itself says at the rows of the blocks
    whole, found = np.array(target.model(mx.array(windows.astype(np.int32)))), np.array(dflash.teacher(target, last, anchors, block))
    for w, row in enumerate(np.array(ids)):
        n, first = next((n, f) for n in range(len(windows)) for f in range(LENGTH - len(row) + 1) if np.array_equal(windows[n, f : f + len(row)], row))
        for j, anchor in enumerate(np.array(anchors)[w]):
            for k in range(block - 1):
                logits = whole[n, first + anchor + k].astype(np.float64)
                np.testing.assert_allclose(found[w * anchors.shape[1] + j, k], np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum(), atol=1e-4)
    # a loss is its two parts, and the soft one is the cross-entropy by hand
    part = lambda share: dflash.block_loss(run.model, target, read, ids, anchors, block, labels, None, last, share).item()  # noqa: E731
    assert run.loss(run.model, *batch).item() == part(0.75)
    assert part(0.75) == pytest.approx(0.25 * part(0.0) + 0.75 * part(1.0), rel=1e-4)
    logits = np.array(dflash.block_logits(run.model, target, read, ids, anchors, block)).astype(np.float64)
    nats = -(found * (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))).sum(-1)
    weight = np.exp(-np.arange(block - 1) / 4)
    assert part(1.0) == pytest.approx((nats * weight).sum() / (weight.sum() * len(nats)), rel=1e-3)


def state(run):
    return {k: np.array(v) for k, v in tree_flatten(run.model.parameters()) + tree_flatten(run.optimizer.state)}


def test_training_lowers_the_loss_and_goes_on_bit_for_bit(windows, rows, tmp_path):
    before = hybrid().digest()
    whole, first, second = (dflash.Training(hybrid(), RECIPE) for _ in range(3))
    whole.run(rows, windows[2:], 24, PREFIX, quiet)
    first.run(rows, windows[2:], 11, PREFIX, quiet)
    first.save(tmp_path / "c.safetensors")
    second.resume(tmp_path / "c.safetensors")
    assert second.step == 11 and second.log == first.log
    second.run(rows, windows[2:], 24, PREFIX, quiet)
    a, b = state(whole), state(second)
    assert a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)
    assert hybrid().digest() == before
    batch = whole.batch(998, rows, windows[2:], PREFIX)
    fresh = dflash.Training(hybrid(), RECIPE)
    assert dflash.block_loss(whole.model, hybrid(), *batch).item() < 0.9 * dflash.block_loss(fresh.model, hybrid(), *batch).item()
    with pytest.raises(ValueError, match="another recipe"):
        dflash.Training(hybrid(), replace(RECIPE, lr=2e-2)).resume(tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match=r"another recipe \(steps\)"):  # on which its rate depends
        dflash.Training(hybrid(), replace(RECIPE, steps=50)).resume(tmp_path / "c.safetensors")
    longer = dflash.Training(hybrid(), replace(RECIPE, patience=50))
    longer.resume(tmp_path / "c.safetensors")
    assert longer.step == 11


def test_the_probe_is_decoding_with_the_weights_that_are_written(windows):
    run = dflash.Training(hybrid(), RECIPE)
    prompts = [w[:PREFIX].tolist() for w in windows[:2]]
    found, best = run.probe(prompts)
    assert best and found["block"] == 4 and len(found["reach"]) == 3 and found["cycles"] > 10
    assert found["prefix"] == pytest.approx(sum(found["reach"]), abs=2e-3)
    assert run.probe(prompts) == (found, False)
    copy = dict(tree_flatten(tapped.shipped(run.model).parameters()))
    assert all(np.array_equal(np.array(copy[k]), np.array(v.astype(mx.bfloat16).astype(mx.float32)))
               for k, v in tree_flatten(run.model.parameters()))


def test_the_probe_decides_when_it_is_done():
    run = dflash.Training(hybrid(), RECIPE)
    for step, (prefix, verdict) in enumerate([(0.1, None), (0.5, None), (0.4, None), (0.6, None), (0.6, None), (0.5, "plateau")], 1):
        run.log["probe"].append([step, {"prefix": prefix}])
        assert run.verdict == verdict
    run.log["probe"].append([7, {"prefix": 0.7}])
    assert run.verdict is None
    run.step = RECIPE.steps
    assert run.verdict == "steps"


def test_the_command_trains_writes_and_goes_on(windows, tmp_path, monkeypatch):
    monkeypatch.setattr(tapped, "load_target", lambda name: hybrid())
    monkeypatch.setattr(tapped, "PREFIX", PREFIX)
    monkeypatch.setattr(tapped, "HELD_OUT", 2)
    monkeypatch.setattr(tapped.Training.run, "__defaults__", (PREFIX, quiet))
    np.save(tmp_path / "own.npy", windows)

    def command(steps):
        monkeypatch.setattr("sys.argv", ["train", *(str(tmp_path / n) for n in ("out", "work", "corpus")), "--windows", str(tmp_path / "own.npy"),
                                         "--layers", "1", "--mlp", "64", "--blocks", "4", "--windows-a-step", "3", "--rows", "48", "--steps", str(steps),
                                         "--probe-every", "2", "--probe-block", "4", "--probe-tokens", "8", "--patience", "9"])
        tapped.command("", dflash.Training, dflash.Recipe)
        return json.loads((tmp_path / "out" / "training.json").read_text())

    first = command(2)
    assert first["step"] == 2 and first["ended"] == "steps" and first["windows"] == 6 and (tmp_path / "out" / "model.safetensors").exists()
    second = command(4)
    assert second["step"] == 4 and second["best_step"] in (2, 4) and second["log"]["probe"][0] == first["log"]["probe"][0] and len(second["log"]["probe"]) == 2
    from specdecode_nb.drafters import load_drafter

    drafter = load_drafter(str(tmp_path / "out"), hybrid())
    assert drafter.metadata["target_digest"] == hybrid().digest() and drafter.block_size == 4
