"""The backward step by hand and against the forward one; the guard on planted heads."""
import mlx.core as mx
import numpy as np
import pytest
from specdecode_nb import rewind
from specdecode_nb.gdn import Tape, delta_rule_step
from specdecode_nb.rewind import EPSILON, LIMIT, amplification, step_back

HEADS, SIZE = 3, 8


def array(x):
    return mx.array(np.array(x, dtype=np.float32))


def block(rows, g=0.9, beta=0.5, seed=0, length=1.0):
    """A recorded block of unit keys (or of ``length``); g and beta are numbers or one a row and head [rows, HEADS]."""
    rng = np.random.default_rng(seed)
    tape = Tape("rewind", state_before=array(rng.standard_normal((1, HEADS, SIZE, SIZE))))
    state = tape.state_before
    g, beta = (np.broadcast_to(np.array(a, np.float32), (rows, HEADS)) for a in (g, beta))
    for t in range(rows):
        k = rng.standard_normal((1, HEADS, SIZE))
        k, v = array(length * k / np.linalg.norm(k, axis=-1, keepdims=True)), array(rng.standard_normal((1, HEADS, SIZE)))
        gt, bt = array(g[None, t]), array(beta[None, t])
        _, delta, state = delta_rule_step(k, k, v, gt, bt, state)
        tape.record(k, v, gt, bt, delta, state)
        tape.rows += 1
    return tape


def error(tape, n, **options):
    """Largest error by head, relative to the largest entry, and the fallbacks."""
    state, fallbacks = rewind.rewind(tape, n, **options)
    wanted = np.array(tape.states[n - 1] if n else tape.state_before)
    return np.abs(np.array(state) - wanted).max(axis=(0, 2, 3)) / np.abs(wanted).max(), fallbacks.item()


def test_one_step_by_hand():
    # S = [[2, 4]], k = (1, 0), v = 3, g = 1/2, beta = 1/2: faded [[1, 2]], delta = 1/2 (3 - 1) = 1, S' = [[2, 2]]
    k, v, g, beta, state = array([[[1, 0]]]), array([[[3]]]), array([[0.5]]), array([[0.5]]), array([[[[2, 4]]]])
    _, delta, after = delta_rule_step(k, k, v, g, beta, state)
    assert delta.item() == 1 and after.tolist() == [[[[2, 2]]]]
    assert step_back(k, v, g, beta, after).tolist() == [[[[2, 4]]]]
    assert amplification(k, g, beta).item() == 4


def test_the_projector_stands_on_the_right():
    """Negative control: the same formula with the factor on the other side of the state is no inverse."""
    tape = block(1)
    k, v, g, beta = (np.array(a[0])[0] for a in (tape.keys, tape.values, tape.decays, tape.betas))
    after, before = np.array(tape.states[0])[0], np.array(tape.state_before)[0]
    ratio = (beta / (1 - beta))[:, None, None]
    write = beta[:, None, None] * v[:, :, None] * k[:, None, :]
    left = ((after - write) + ratio * k[:, :, None] * (k[:, None, :] @ (after - write))) / g[:, None, None]
    right = ((after - write) + ratio * ((after - write) @ k[:, :, None]) * k[:, None, :]) / g[:, None, None]
    assert np.abs(right - before).max() < 1e-6 < 0.1 < np.abs(left - before).max()


@pytest.mark.parametrize("g, beta", [(0.9, 0.5), (0.99, 0.1), (0.5, 0.8), (1.0, 0.0)])
@pytest.mark.parametrize("rows, n", [(1, 0), (4, 3), (5, 1), (5, 5), (9, 0)])
def test_within_roundings_times_amplification(g, beta, rows, n):
    found, fallbacks = error(block(rows, g, beta), n, limit=float("inf"))
    assert found.max() <= 4 * EPSILON * ((1 - beta) * g) ** -(rows - n) * (rows - n + 1) and fallbacks == 0


def test_keys_that_are_not_quite_unit_vectors():
    """The length of the key is computed; taking it for one would be off by far more than rounding."""
    tape = block(1, 0.9, 0.95, length=0.999)
    assert error(tape, 0)[0].max() < 1e-5
    k, v, g, beta = tape.keys[0], tape.values[0], tape.decays[0], tape.betas[0]
    taken_for_one = step_back(k / 0.999, v, g, beta, tape.states[0])
    assert mx.abs(taken_for_one - tape.state_before).max().item() > 1e-3


@pytest.mark.parametrize("planted", [dict(beta=1.0), dict(beta=1 - 2.0**-20), dict(g=0.0), dict(g=1e-9), dict(beta=1.0, g=0.0)], ids=str)
@pytest.mark.parametrize("row", [1, 2, 4])
def test_the_guard_falls_back_exactly_at_a_planted_head(planted, row):
    g, beta = np.full((5, HEADS), 0.98), np.full((5, HEADS), 0.2)
    g[row, 1], beta[row, 1] = planted.get("g", 0.98), planted.get("beta", 0.2)
    tape = block(5, g, beta)
    found, fallbacks = error(tape, 1)
    assert fallbacks == 1 and found.max() < rewind.TOLERANCE
    for n in range(row + 1, 6):
        assert error(tape, n)[1] == 0
    if row == 1:
        assert found[1] == 0 < found[0]  # the recorded state itself, in that head alone


def test_the_product_is_accumulated_and_starts_again_after_a_fallback():
    """Each step amplifies 8 times: 8, 64, 512 > 100, so every third step of every head falls back."""
    tape = block(9, 0.5, 0.75)
    assert [error(tape, n)[1] for n in range(9, -1, -1)] == [0, 0, 0, HEADS, HEADS, HEADS, 2 * HEADS, 2 * HEADS, 2 * HEADS, 3 * HEADS]
    assert [error(tape, 0, limit=limit)[1] for limit in (1.0, 10.0, 1e3, 1e9)] == [9 * HEADS, 4 * HEADS, 2 * HEADS, 0]
    assert LIMIT == 100


def test_without_the_guard_the_state_is_lost():
    """Negative control: a planted decay leaves an error beyond the tolerance if nothing guards, or if the guard looks at beta alone."""
    g = np.full((3, HEADS), 0.98)
    g[2, 0] = 1e-9
    tape = block(3, g, 0.3)
    assert error(tape, 1)[0].max() < rewind.TOLERANCE
    for options in (dict(limit=float("inf")), dict(amplify=lambda k, g, beta: amplification(k, mx.ones_like(g), beta))):
        assert error(tape, 1, **options)[0][0] > 1
