"""The second pass over the reversed canvas: exact reversal, controls, fusions, what it leaves alone. Everything on one layer of the toy."""
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from specdecode_nb import gdn
from specdecode_nb.targets import share
from specdecode_nb.train.bidirectional import BidirectionalDeltaNet, Canvas, Mixing, gates, install
from toy import hybrid

P, C = 5, 9
PASSES = ("aligned", "shuffled", "none", "block_end")


def rows(length=P + C, seed=4):
    return mx.random.normal((2, length, 64), key=mx.random.key(seed))


def layer(*mixing, prefix=P, order=True):
    canvas = Canvas(prefix)
    if order:
        canvas.shuffle(C, 3, 1)
    return BidirectionalDeltaNet(share(hybrid().model.layers[0].linear_attn), Mixing(*mixing), canvas)


def stepped(inner, x):
    """Raw output [B, T, Hv, Dv], queries and last state by the step recurrence."""
    _, q, k, v, g, beta, _ = inner.rows(x, mx.zeros((len(x), 3, inner.conv_dim)))
    state, ys = mx.zeros((len(x), inner.num_v_heads, inner.head_v_dim, inner.head_k_dim)), []
    for t in range(x.shape[1]):
        y, _, state = gdn.delta_rule_step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], state)
        ys.append(y)
    return mx.stack(ys, axis=1), q, state


def second(made, x):
    projected = made.inner.project(x)
    q, _, state = made._scan(x, projected)
    return np.array(made.second(x[:, P:], [p[:, P:] for p in projected], q[:, P:], state))


def test_the_second_pass_of_a_palindrome_is_the_first_one_turned_round():
    half = rows(4)
    x, made = mx.concatenate([half, half[:, ::-1]], axis=1), layer("constant", 0.5, prefix=0)
    projected = made.inner.project(x)
    q, o, state = made._scan(x, projected)
    assert np.array(made.second(x, projected, q, state)).tobytes() == np.array(o[:, ::-1]).tobytes()
    assert not np.array_equal(np.array(o), np.array(o[:, ::-1]))


def test_the_second_pass_is_the_step_recurrence_over_the_reversed_canvas_from_nothing():
    made, x = layer("constant"), rows()
    wanted = np.array(stepped(made.inner, x[:, P:][:, ::-1])[0][:, ::-1])
    np.testing.assert_allclose(second(made, x), wanted, atol=2e-5 * np.abs(wanted).max())


def test_the_block_end_is_the_last_state_read_by_each_query():
    made, x = layer("constant", 0.0, "block_end"), rows()
    _, q, state = stepped(made.inner, x)
    wanted = np.einsum("bhvk,bchk->bchv", np.array(state), np.array(q[:, P:]))
    np.testing.assert_allclose(second(made, x), wanted, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("reverse", PASSES[:3])
@pytest.mark.parametrize("fusion", ("constant", "scalar"))
def test_gate_one_is_the_causal_layer_bit_for_bit(fusion, reverse):
    x, causal = rows(), layer()
    plain = share(causal.inner).train()  # the layer itself, in its training form
    wanted = np.array(causal(x))
    assert np.array(layer(fusion, 1.0, reverse)(x)).tobytes() == wanted.tobytes() == np.array(plain(x)).tobytes()
    assert not np.array_equal(np.array(layer(fusion, 0.99, reverse)(x)), wanted)


def test_concatenation_starts_as_the_causal_layer_and_a_token_gate_as_its_constant():
    x = rows()
    np.testing.assert_allclose(np.array(layer("concat")(x)), np.array(layer()(x)), atol=1e-6)
    np.testing.assert_allclose(np.array(layer("token", 0.95)(x)), np.array(layer("constant", 0.95)(x)), atol=1e-5)


def test_fusions_by_hand():
    o, other = mx.full((1, 1, 4, 16), 2.0), mx.full((1, 1, 4, 16), 6.0)
    value = lambda *mixing: np.unique(np.array(layer(*mixing).fused(o, other))).tolist()  # noqa: E731
    assert value("constant", 0.5) == [4.0] and value("constant", 0.0) == [6.0] and value("scalar", 0.75) == [3.0]
    made = layer("token", 0.5)
    made.weight = mx.concatenate([mx.zeros((4, 4)), mx.eye(4)])  # each head's gate is the sigmoid of the size of its second output, 6
    gate = 1 / (1 + np.exp(-6))
    np.testing.assert_allclose(np.array(made.fused(o, other)), gate * 2 + (1 - gate) * 6, rtol=1e-5)
    made = layer("concat")
    made.weight = mx.concatenate([mx.zeros((16, 16)), mx.eye(16)])
    assert np.array_equal(np.array(made.fused(o, other)), np.array(other))


@pytest.mark.parametrize("fusion, added", [("causal", 0), ("constant", 0), ("scalar", 1), ("token", 2080), ("concat", 32768)])
def test_a_fusion_adds_the_published_number_of_parameters(fusion, added):
    published = SimpleNamespace(num_v_heads=32, head_v_dim=128)
    made = BidirectionalDeltaNet(published, Mixing(fusion), Canvas(P))
    assert sum(v.size for _, v in tree_flatten(made.trainable_parameters())) == added


def test_the_shuffled_control_holds_the_same_rows_in_another_order():
    x = rows()
    made = layer("constant", 0.5, "shuffled")
    aligned, shuffled = second(layer("constant"), x), second(made, x)
    order = np.array(made._canvas.order)
    assert sorted(order.tolist()) == list(range(C)) and order.tolist() != list(range(C))
    assert sorted(r.tobytes() for r in shuffled[0]) == sorted(r.tobytes() for r in aligned[0])
    assert np.array_equal(shuffled[:, 0], aligned[:, order[0]]) and not np.array_equal(shuffled, aligned)


def test_a_permutation_is_drawn_for_every_step_or_once_for_good():
    def order(*draw):
        canvas = Canvas(P)
        canvas.shuffle(32, *draw)
        return canvas.order.tolist()

    assert order(7, 0) == order(7, 0) and len({tuple(order(7, step)) for step in range(20)}) == 20 and order(8, 0) != order(7, 0)
    assert order(0) == order(0)
    with pytest.raises(ValueError, match="permutation"):
        layer("constant", 0.5, "shuffled", order=False)(rows())


@pytest.mark.parametrize("mixing, moved", [((), [C - 1]), (("constant", 0.5, "none"), [C - 1]), (("constant",), list(range(C))), (("constant", 0.0, "block_end"), list(range(C)))])
def test_directions(mixing, moved):
    """The last canvas row is changed: which canvas rows see it. The prefix never does, and is that of the causal layer."""
    x, made = rows(), layer(*mixing)
    other = mx.concatenate([x[:, :-1], x[:, -1:] + 1], axis=1)
    one, two = np.array(made(x)), np.array(made(other))
    assert np.flatnonzero(np.abs(one - two).max(axis=(0, 2)) > 0).tolist() == [P + i for i in moved]
    assert one[:, :P].tobytes() == np.array(layer()(x))[:, :P].tobytes()


def test_the_second_pass_sees_no_prefix():
    x, made = rows(), layer("constant")
    other = mx.concatenate([x[:, :P] + 1, x[:, P:]], axis=1)
    assert second(made, x).tobytes() == second(made, other).tobytes()


def test_installing_shares_the_weights_and_trains_the_fusion_alone():
    target = hybrid()
    before, model = target.digest(), share(target.model)
    model.freeze()
    made = install(model, Mixing("scalar", 0.95), Canvas(P))
    assert [name.split("layers.")[1] for name, _ in tree_flatten(model.trainable_parameters())] == [f"{i}.linear_attn.gate" for i in range(3)]
    assert made[0].inner.in_proj_qkv.weight is target.model.layers[0].linear_attn.in_proj_qkv.weight
    assert gates(made) == pytest.approx([0.95] * 3) and gates(install(share(target.model), Mixing(), Canvas(P))) == []
    assert target.digest() == before


def test_a_wrong_mixing_and_a_cache_are_refused():
    with pytest.raises(ValueError, match="meen"):
        Mixing("meen")
    with pytest.raises(NotImplementedError, match="cache"):
        layer()(rows(), cache=gdn.RecurrentCache())
