"""The taped Gated DeltaNet layer against mlx-lm's own, and its chunked training form against the step form."""
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_5
from mlx_lm.models.cache import ArraysCache
from specdecode_nb import gdn
from toy import PROMPT, VOCAB, hybrid, stock

TEXT = [int(i) for i in np.random.default_rng(8).integers(1, VOCAB, 40)]


@pytest.mark.parametrize("heads", [(4, 2), (2, 2)])
def test_agrees_with_the_stock_layer(heads):
    model, target = stock(value_heads=heads[0], key_heads=heads[1]), hybrid(value_heads=heads[0], key_heads=heads[1])
    wanted = np.array(model(mx.array([TEXT])))
    ours = np.array(target.model(mx.array([TEXT])))
    assert np.abs(ours - wanted).max() < 1e-3 * np.abs(wanted).max()
    theirs, cache = model.make_cache(), target.make_cache()
    for ids in (TEXT[:20], TEXT[20:21], TEXT[21:30]):
        wanted, ours = model(mx.array([ids]), cache=theirs), target.model(mx.array([ids]), cache=cache)
        assert np.abs(np.array(ours) - np.array(wanted)).max() < 1e-3 * np.abs(np.array(wanted)).max()
    for a, b in zip(theirs, cache):
        if isinstance(b, gdn.RecurrentCache):
            np.testing.assert_allclose(np.array(b[0]), np.array(a[0]), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(np.array(b[1]), np.array(a[1]), rtol=1e-3, atol=1e-4)


def test_nothing_of_mlx_lm_is_patched():
    """The stock classes stay as imported; a model made after ours has stock layers and stock caches."""
    hybrid()
    layer, cache = qwen3_5.GatedDeltaNet, ArraysCache
    assert layer.__call__.__module__ == "mlx_lm.models.qwen3_5" and not hasattr(layer, "rows")
    assert all(f.__module__ == "mlx_lm.models.cache" for f in (cache.__init__, cache.advance, cache.__getitem__, cache.__setitem__))
    assert qwen3_5.GatedDeltaNet is layer and gdn.GatedDeltaNet is layer
    model = stock(seed=5)
    assert all(type(x.linear_attn) is layer for x in model.layers if x.is_linear)
    assert [type(c).__name__ for c in model.make_cache()] == ["ArraysCache"] * 3 + ["KVCache"]


def test_adopt_shares_the_weights_and_leaves_the_stock_layer_alone():
    layer = stock().layers[0].linear_attn
    taped = gdn.adopt(layer)
    assert type(layer) is qwen3_5.GatedDeltaNet and isinstance(taped, gdn.TapedGatedDeltaNet)
    theirs, ours = dict(tree_flatten(layer.parameters())), dict(tree_flatten(taped.parameters()))
    assert theirs.keys() == ours.keys() and all(theirs[k] is ours[k] for k in theirs)


def test_masks_and_padding_are_refused():
    layer = hybrid().model.layers[0].linear_attn
    x = mx.zeros((1, 3, 64))
    with pytest.raises(NotImplementedError, match="mask"):
        layer(x, mask=mx.ones((1, 3)))
    cache = gdn.RecurrentCache()
    cache.prepare(lengths=[2])
    with pytest.raises(NotImplementedError, match="unpadded"):
        layer(x, cache=cache)


def test_types_of_every_part():
    """Gates, keys and values enter the recurrence in float32; the write strength is never rounded to the type of the rows."""
    layer = hybrid(dtype="bfloat16").model.layers[0].linear_attn
    x = mx.random.normal((1, 6, 64), key=mx.random.key(5)).astype(mx.bfloat16)
    conv_rows, q, k, v, g, beta, z = layer.rows(x, mx.zeros((1, 3, layer.conv_dim), dtype=mx.bfloat16))
    assert (conv_rows.dtype, z.dtype) == (mx.bfloat16, mx.bfloat16) and {a.dtype for a in (q, k, v, g, beta)} == {mx.float32}
    assert np.array_equal(np.array(beta), np.array(mx.sigmoid(layer.in_proj_b(x).astype(mx.float32))))
    assert not np.array_equal(np.array(beta), np.array(beta.astype(mx.bfloat16).astype(mx.float32)))
    np.testing.assert_allclose(np.array(mx.linalg.norm(k, axis=-1)), 1, atol=1e-2)
    cache = hybrid(dtype="bfloat16").make_cache()[0]
    cache.tape = gdn.Tape()
    mx.eval(layer(x, cache=cache))
    assert {a.dtype for a in cache.tape.deltas + cache.tape.keys + cache.tape.decays} == {mx.float32} and cache[1].dtype == mx.float32


def draw(T, B=2, H=3, Dk=8, Dv=6, seed=0):
    keys = mx.random.split(mx.random.key(seed), 6)
    unit = lambda x: x / mx.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    q, k = (unit(mx.random.normal((B, T, H, Dk), key=keys[i])) for i in (0, 1))
    v = mx.random.normal((B, T, H, Dv), key=keys[2])
    g = mx.exp(-mx.exp(2 * mx.random.normal((B, T, H), key=keys[3]) - 3))
    beta = mx.sigmoid(mx.random.normal((B, T, H), key=keys[4]))
    return q, k, v, g, beta, mx.random.normal((B, H, Dv, Dk), key=keys[5])


def steps(q, k, v, g, beta, state):
    ys = []
    for t in range(q.shape[1]):
        y, _, state = gdn.delta_rule_step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], state)
        ys.append(y)
    return mx.stack(ys, axis=1), state


@pytest.mark.parametrize("chunk", [8, 16, 32, 64])
def test_the_chunked_form_agrees_with_the_step_form(chunk):
    rows = draw(64)
    y, state, starts = gdn.delta_rule_chunked(*rows, chunk=chunk)
    wanted, end = steps(*rows)
    np.testing.assert_allclose(np.array(y), np.array(wanted), atol=2e-5)
    np.testing.assert_allclose(np.array(state), np.array(end), atol=2e-5)
    for i in range(64 // chunk):
        part = [a[:, : i * chunk] for a in rows[:5]]
        before = steps(*part, rows[5])[1] if i else rows[5]
        np.testing.assert_allclose(np.array(starts[:, i]), np.array(before), atol=2e-5)


TOLERANCE = 2e-5
"""Stated for training: the largest difference of a value or a gradient from the step recurrence, over the largest entry of that array."""


def closed(ours, wanted, size=0.0):
    ours, wanted = np.array(ours), np.array(wanted)
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=TOLERANCE * max(np.abs(wanted).max(), size, 1e-6))


def gates_of(kind, g, beta):
    """The drawn gates, or extreme ones: nothing fades or all of it, nothing is written or all of it, and all of these by turns."""
    T, full = g.shape[1], lambda v: mx.full(g.shape, v)  # noqa: E731
    turn = lambda *v: mx.broadcast_to(mx.array([v[t % len(v)] for t in range(T)])[None, :, None], g.shape)  # noqa: E731
    return {"drawn": (g, beta), "keeps all": (full(1.0), beta), "fades at once": (full(1e-6), beta), "writes nothing": (g, full(0.0)), "writes all": (g, full(1.0)),
            "keeps and writes all": (full(1.0), full(1.0)), "by turns": (turn(1.0, 1e-3, 0.999, 1e-12), turn(1.0, 0.0, 0.5))}[kind]


@pytest.mark.parametrize("kind", ["drawn", "keeps all", "fades at once", "writes nothing", "writes all", "keeps and writes all", "by turns"])
@pytest.mark.parametrize("length", [1, 7, 32, 33, 80])
def test_values_and_gradients_agree_with_the_step_form(length, kind):
    """Outputs, last state, and the gradients of a weighted sum of both with respect to every input, at any length."""
    q, k, v, g, beta, state = draw(length, seed=length)
    g, beta = gates_of(kind, g, beta)
    one, two = mx.random.normal((2, length, 3, 6), key=mx.random.key(9)), mx.random.normal(state.shape, key=mx.random.key(10))
    weighed = lambda form: lambda *a: (form(*a)[0] * one).sum() + (form(*a)[1] * two).sum()  # noqa: E731
    for ours, wanted in zip(gdn.scan(q, k, v, g, beta, state), steps(q, k, v, g, beta, state)):
        closed(ours, wanted)
    grads = [mx.grad(weighed(form), argnums=tuple(range(6)))(q, k, v, g, beta, state) for form in (gdn.scan, steps)]
    for i in (0, 1, 2, 4, 5):
        closed(grads[0][i], grads[1][i])
    # a layer has the logarithm of a decay; by the decay itself, rounding is divided by as little as 1e-12
    closed(grads[0][3] * g, grads[1][3] * g, size=np.abs(np.array(grads[1][4])).max())


@pytest.mark.parametrize("decay", [0.0, 1e-38, 1e-6, 1.0])
def test_extreme_decays_stay_finite(decay):
    q, k, v, _, beta, state = draw(64)
    g = mx.full((2, 64, 3), decay)
    value, grads = mx.value_and_grad(lambda *a: gdn.delta_rule_chunked(*a)[0].sum(), argnums=tuple(range(6)))(q, k, v, g, beta, state)
    assert np.isfinite(value.item()) and all(np.isfinite(np.array(x)).all() for x in grads)
    np.testing.assert_allclose(np.array(gdn.delta_rule_chunked(q, k, v, g, beta, state)[0]), np.array(steps(q, k, v, g, beta, state)[0]),
                               atol=2e-5)


@pytest.mark.parametrize("length", [7, 32, 40])
def test_training_mode_of_a_layer(length):
    layer = gdn.adopt(stock().layers[0].linear_attn)
    x = mx.random.normal((2, length, 64), key=mx.random.key(4))
    layer.train()
    trained = np.array(layer(x))
    loss, grads = nn.value_and_grad(layer, lambda m, x: (m(x) ** 2).mean())(layer, x)
    assert all(np.isfinite(np.array(v)).all() for _, v in tree_flatten(grads)) and np.isfinite(loss.item())
    layer.eval()
    np.testing.assert_allclose(trained, np.array(layer(x)), atol=1e-4)


def test_replaying_the_tape_in_another_order_would_not_be_exact():
    """Why the tape is replayed step by step: the closed form differs in the last bits."""
    q, k, v, g, beta, state = draw(12, B=1)
    deltas, exact = [], state
    for t in range(12):
        _, delta, exact = gdn.delta_rule_step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], exact)
        deltas.append(delta)
    replayed = state
    for t in range(12):
        replayed = gdn.replay_step(deltas[t], k[:, t], g[:, t], replayed)
    assert np.array(replayed).tobytes() == np.array(exact).tobytes()
    after = mx.stack([mx.prod(g[:, t + 1 :], axis=1) for t in range(12)], axis=1)
    closed = state * mx.prod(g, axis=1)[..., None, None] + mx.einsum("bth,bthv,bthk->bhvk", after, mx.stack(deltas, 1), k)
    np.testing.assert_allclose(np.array(closed), np.array(exact), atol=1e-5)
    assert np.array(closed).tobytes() != np.array(exact).tobytes()


def test_the_state_is_shared_by_prompt_and_step():
    """One forward of the prompt, or one row at a time: the same bits."""
    target = hybrid()
    a, b = target.make_cache(), target.make_cache()
    mx.eval(target.model(mx.array([PROMPT]), cache=a))
    for i in PROMPT:
        mx.eval(target.model(mx.array([[i]]), cache=b))
    assert all(np.array(x[j]).tobytes() == np.array(y[j]).tobytes() for x, y in zip(a[:3], b[:3]) for j in (0, 1))
