"""The one training loop: it goes on bit for bit, trains what is allowed alone, and stops when it must."""
import json
from dataclasses import dataclass, replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from specdecode_nb.errors import BadInput
from specdecode_nb.streams import DATA_SAMPLING, stream_seed
from specdecode_nb.train.loop import Loop, Recipe, rate

RECIPE = Recipe(lr=0.05, warmup=4, steps=20, seed=3)


class Two(nn.Module):
    """One layer to train and one that is frozen."""

    def __init__(self):
        super().__init__()
        keys = mx.random.split(mx.random.key(1))
        self.trained, self.kept = mx.random.normal((4, 4), key=keys[0]), mx.random.normal((4, 4), key=keys[1])
        self.freeze(keys=["kept"])

    def __call__(self, x):
        return mx.tanh(x @ self.trained) @ self.kept


def batch(step):
    keys = mx.random.split(mx.random.key(stream_seed(RECIPE.seed, DATA_SAMPLING, step)))
    return mx.random.normal((8, 4), key=keys[0]), mx.random.normal((8, 4), key=keys[1])


def loss(model, x, y):
    return ((model(x) - y) ** 2).mean()


def loop(recipe=RECIPE, model=None, **options):
    return Loop(model or Two(), loss, batch, recipe, **options)


def quiet(*_, **__):
    pass


def state(run):
    return {k: np.array(v).tobytes() for k, v in tree_flatten(run.model.parameters()) + tree_flatten(run.optimizer.state)}


def test_resumed_is_uninterrupted(tmp_path):
    whole, first, second = loop(), loop(), loop(replace(RECIPE, steps=30))
    whole.run(17, quiet)
    first.run(6, quiet)
    first.save(tmp_path / "c.safetensors")
    second.resume(tmp_path / "c.safetensors")
    assert (second.step, second.log) == (6, first.log)
    second.run(17, quiet)
    assert state(second) == state(whole) != state(first) and second.log == whole.log == {"loss": [[10, *whole.log["loss"][0][1:]]]}
    with pytest.raises(BadInput, match="another recipe"):
        loop(replace(RECIPE, lr=0.1)).resume(tmp_path / "c.safetensors")
    with pytest.raises(BadInput, match="another recipe"):
        loop(replace(RECIPE, seed=4)).resume(tmp_path / "c.safetensors")
    loop(replace(RECIPE, lr=0.1)).resume(tmp_path / "c.safetensors", ["lr"])
    first.save(tmp_path / "d.safetensors")
    known = loop(frozen=lambda: "one")
    known.save(tmp_path / "e.safetensors")
    loop(frozen=lambda: "two").resume(tmp_path / "d.safetensors")  # saved without a target
    loop(frozen=lambda: "one").resume(tmp_path / "e.safetensors")
    with pytest.raises(BadInput, match="trained on another target"):
        loop(frozen=lambda: "two").resume(tmp_path / "e.safetensors")
    wide = nn.Linear(5, 5)
    with pytest.raises(BadInput, match="does not fit"):
        loop(model=wide).resume(tmp_path / "c.safetensors")


@pytest.mark.parametrize("schedule", ["linear", "end"])
def test_a_schedule_that_depends_on_the_steps_keeps_them(tmp_path, schedule):
    recipe, path = replace(RECIPE, schedule=schedule), tmp_path / "c.safetensors"
    loop(recipe).save(path)
    loop(recipe).resume(path)
    with pytest.raises(BadInput, match=r"another recipe \(steps\); give that one"):
        loop(replace(recipe, steps=30)).resume(path)


def changed(part="", value=lambda v: v, names=lambda k: True, **state):
    """A damage: tensors of ``part`` with other values, those of some names alone, the state with other fields."""
    def damage(path):
        tensors, found = mx.load(str(path), return_metadata=True)
        text = json.dumps(json.loads(found["state"]) | state)
        kept = {k: value(v) if part and part in k else mx.array(np.array(v)) for k, v in tensors.items() if names(k)}
        mx.save_safetensors(str(path), kept, {"state": text})
    return damage


def told(metadata):
    return lambda path: mx.save_safetensors(str(path), {k: mx.array(np.array(v)) for k, v in mx.load(str(path)).items()}, metadata)


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "missing": lambda path: path.unlink(),
    "without metadata": told({}),
    "state cut": told({"state": "{"}),
    "state a list": told({"state": "[]"}),
    "state without a log": changed(log=None),
    "without moments": changed(names=lambda k: not k.startswith("optimizer.trained")),
    "half the moments": changed(names=lambda k: not k.endswith(".v")),
    "moments of another shape": changed(".v", lambda v: mx.zeros((1,))),
    "half precision": changed("model.", lambda v: v.astype(mx.float16)),
    "weights not finite": changed("model.", lambda v: v * mx.nan),
    "moments not finite": changed(".m", lambda v: v * mx.inf),
    "another step in the moments": changed("optimizer.step", lambda v: v + 1),
    "another step in the state": changed(step=5),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_one_sentence(tmp_path, damage):
    run, path = loop(), tmp_path / "c.safetensors"
    run.run(2, quiet)
    run.save(path)
    DAMAGES[damage](path)
    again = loop()
    before = state(again)
    with pytest.raises(BadInput, match=r"^[^;\n]*'c\.safetensors'[^;\n]*; [^\n]*\.$"):
        again.resume(path)
    assert state(again) == before and again.step == 0


def test_only_what_is_allowed_is_trained():
    run = loop(allowed=lambda name: name == "trained")
    before = {k: np.array(v) for k, v in tree_flatten(run.model.parameters())}
    run.run(3, quiet)
    after = dict(tree_flatten(run.model.parameters()))
    assert np.array_equal(np.array(after["kept"]), before["kept"]) and not np.array_equal(np.array(after["trained"]), before["trained"])
    assert {k.split(".")[0] for k, _ in tree_flatten(run.optimizer.state)} == {"step", "learning_rate", "trained"}
    with pytest.raises(BadInput, match="'trained' would be trained"):
        loop(allowed=lambda name: name == "kept")
    frozen = Two()
    frozen.freeze()
    with pytest.raises(BadInput, match="Nothing"):
        loop(model=frozen)


def test_a_frozen_part_that_moves_voids_the_run():
    told = iter(["a", "a", "b"])
    run = loop(frozen=lambda: next(told))
    run.run(2, quiet)
    with pytest.raises(RuntimeError, match="void"):
        run.run(3, quiet)


@pytest.mark.parametrize("value, word", [(float("nan"), "loss nan"), (float("inf"), "loss inf")])
def test_a_loss_that_is_not_finite_ends_the_run(value, word):
    run = Loop(Two(), lambda m, x, y: loss(m, x, y) * value, batch, RECIPE)
    with pytest.raises(FloatingPointError, match=f"step 1: {word}.*lower the rate"):
        run.run(4, quiet)


def test_a_gradient_that_is_not_a_number_ends_the_run_though_the_loss_is_finite():
    run = Loop(Two(), lambda m, x, y: loss(m, x, y) + mx.sqrt(mx.abs(0 * m.trained)).sum(), batch, RECIPE)  # 0, with slope 0 times infinity
    with pytest.raises(FloatingPointError, match="step 1: loss [0-9.]+, gradient norm nan"):
        run.run(4, quiet)


@pytest.mark.parametrize("norm, ends", [(0.9e-3, True), (1.1e-3, False)])
def test_a_gradient_is_still_below_a_thousandth(norm, ends):
    """The sum of 16 numbers has a gradient of norm 4."""
    run = Loop(Two(), lambda m, *_: norm / 4 * m.trained.sum(), batch, RECIPE, saturated=lambda *_: True, log_every=1)
    if ends:
        with pytest.raises(FloatingPointError, match="step 5:"):
            run.run(20, quiet)
    else:
        run.run(20, quiet)
    assert run.step == (5 if ends else 20) and {entry[2] for entry in run.log["loss"]} == {0.001}


def test_weights_that_are_not_finite_after_the_last_update_end_the_run():
    """The loss of that step is computed before it."""
    with pytest.raises(FloatingPointError, match="step 3: weights are not finite.*lower the rate"):
        loop(rate=lambda step: float("inf") if step == 2 else 0.01).run(3, quiet)


def test_saturation_is_five_still_steps_of_saturated_logits():
    still = lambda m, x, y: 1e-6 * loss(m, x, y)  # noqa: E731
    asked = []

    def saturated(model, x, y):
        asked.append(np.array(x).tobytes())
        return len(asked) != 3  # the third answer begins the count again

    run = Loop(Two(), still, batch, RECIPE, saturated=saturated)
    with pytest.raises(FloatingPointError, match="step 8:"):
        run.run(20, quiet)
    assert asked == [np.array(batch(step)[0]).tobytes() for step in range(8)]
    calm = Loop(Two(), still, batch, RECIPE, saturated=lambda *_: False)
    calm.run(20, quiet)
    assert calm.step == 20


def test_still_steps_are_counted_over_pauses(tmp_path):
    """Two steps at a time, and a pause on disk, end a run as five in a row do."""
    def still():
        return Loop(Two(), lambda m, x, y: 1e-6 * loss(m, x, y), batch, RECIPE, saturated=lambda *_: True)

    run, path = still(), tmp_path / "c.safetensors"
    run.run(2, quiet)
    run.run(4, quiet)
    run.save(path)
    again = still()
    again.resume(path)
    with pytest.raises(FloatingPointError, match="step 5:"):
        again.run(9, quiet)


def test_rates():
    flat = [rate(RECIPE, s) / RECIPE.lr for s in range(20)]
    assert flat == pytest.approx([0.25, 0.5, 0.75] + [1.0] * 17)
    assert [rate(replace(RECIPE, schedule="end", lr=1.0), s) for s in (3, 13, 14, 17, 19)] == pytest.approx([1, 1, 1, 0.5, 1 / 6])

    @dataclass(frozen=True)
    class Old:
        lr: float = 1.0
        warmup: int = 2
        steps: int = 10
        seed: int = 0

    assert [rate(Old(), s) for s in (0, 1, 5, 9, 10)] == pytest.approx([0.5, 0.9, 0.5, 0.1, 0.05])
    with pytest.raises(BadInput, match="flat, linear, end"):
        rate(replace(RECIPE, schedule="cosine"), 0)


def test_the_step_is_adamw_with_the_gradient_clipped():
    """Against the update written out: bias-corrected moments, then the decay-free step."""
    run = Loop(Two(), lambda m, x, y: 100 * loss(m, x, y), batch, RECIPE)
    w, m, v = np.array(run.model.trained, dtype=np.float64), 0.0, 0.0
    for step in range(3):
        grad = np.array(mx.grad(lambda t: 100 * ((mx.tanh(batch(step)[0] @ t) @ run.model.kept - batch(step)[1]) ** 2).mean())(mx.array(w.astype(np.float32))), dtype=np.float64)  # noqa: B023
        norm = np.sqrt((grad**2).sum())
        assert norm > 1
        grad /= norm
        m, v = 0.9 * m + 0.1 * grad, 0.98 * v + 0.02 * grad**2
        w -= rate(RECIPE, step) * (m / (1 - 0.9 ** (step + 1))) / (np.sqrt(v / (1 - 0.98 ** (step + 1))) + 1e-8)
    run.run(3, quiet)
    np.testing.assert_allclose(np.array(run.model.trained), w, rtol=1e-4, atol=1e-5)
