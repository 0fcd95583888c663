"""Acts I and III on a toy: layouts, corruption and masks by count, losses by hand, what is trained and what stays, samplers."""
import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from specdecode_nb.gdn import delta_rule_step
from specdecode_nb.streams import DATA_SAMPLING
from specdecode_nb.train import corpus, denoise
from toy import VOCAB, hybrid

P, C, MASK = 6, 10, 1
IDS = mx.array(np.random.default_rng(5).integers(2, VOCAB, (2, P + C)).astype(np.int32))


def model(**options):
    """A denoiser of the toy whose adapter, and conditioner, are not zero."""
    made = denoise.Denoiser(hybrid(), 3, denoise.PUBLISHED + denoise.RECURRENT, **options)
    key = mx.random.key(3)
    made.update(tree_unflatten([(k, 0.1 * mx.random.normal(v.shape, key=key)) for k, v in made.trainable().items()]))
    return made


@pytest.mark.parametrize("t", (0.05, 0.3, 0.62, 1.0))
def test_masks_are_exact_and_the_two_views_hide_every_canvas_token_once(t):
    hidden = denoise.masks(mx.full((50,), t), 32, mx.random.key(1))
    assert (np.array(hidden).sum(axis=1) == round(t * 32)).all()
    assert t == 1.0 or len({row.tobytes() for row in np.array(hidden)}) > 40
    ids = mx.broadcast_to(mx.arange(2, 2 + 40), (50, 40))
    views = np.array(denoise.two_views(ids, hidden, 8, MASK))
    assert ((views[:50, 8:] == MASK) ^ (views[50:, 8:] == MASK)).all() and (views[:, :8] == np.arange(2, 10)).all()
    seen = np.where(views[:50, 8:] == MASK, views[50:, 8:], views[:50, 8:])
    assert (seen == np.arange(10, 42)).all()


def test_the_rate_of_replaced_tokens_is_that_of_each_row():
    t = mx.array([0.0, 0.25, 1.0])
    ids = mx.full((3, 20_000), 7)
    changed = (np.array(denoise.replaced(ids, t, VOCAB, mx.random.key(4))) != 7).mean(axis=1)
    wanted = np.array(t) * (1 - 1 / VOCAB)  # a replacement may be the token itself
    assert changed[0] == 0 and abs(changed - wanted).max() < 4 * 0.5 / math.sqrt(20_000)
    drawn = np.bincount(np.array(denoise.replaced(ids, t, VOCAB, mx.random.key(4)))[2], minlength=VOCAB)
    assert drawn.min() > 30 and len(drawn) == VOCAB


@pytest.mark.parametrize("t", (0.05, 0.3))
def test_which_token_comes_says_nothing_of_where(t):
    """At few places too, every id of the vocabulary is as likely as another."""
    drawn = np.array(denoise.replaced(mx.full((1, 40_000), -1), mx.array([t]), VOCAB, mx.random.key(4)))
    tokens = drawn[drawn >= 0]
    assert abs(len(tokens) / 40_000 - t) < 4 * 0.5 / 200
    assert abs(tokens.mean() - (VOCAB - 1) / 2) < 4 * VOCAB / math.sqrt(12 * len(tokens)) and tokens.min() < 5 and tokens.max() > VOCAB - 6


def test_every_epoch_takes_every_window_once_in_an_order_of_its_own():
    """Batches of three out of seven windows, so that some lie across two epochs."""
    taken = denoise.in_turn(np.arange(7)[:, None], 5, DATA_SAMPLING, 3)
    epochs = np.concatenate([np.array(taken(step))[:, 0] for step in range(14)]).reshape(6, 7)
    assert (np.sort(epochs, axis=1) == np.arange(7)).all() and len({tuple(epoch) for epoch in epochs}) == 6
    assert np.array_equal(taken(0), denoise.in_turn(np.arange(7)[:, None], 5, DATA_SAMPLING, 3)(0))


def test_scrambling_permutes_the_visible_tokens_among_themselves():
    hidden = denoise.masks(mx.array([0.5, 0.9]), C, mx.random.key(9))
    ids = mx.where(hidden, MASK, IDS[:, P:])
    mixed = np.array(denoise.scrambled(ids, hidden, mx.random.key(2)))
    assert (mixed[np.array(hidden)] == MASK).all() and (mixed[0] != np.array(ids)[0]).any()
    assert (np.sort(mixed, axis=1) == np.sort(np.array(ids), axis=1)).all()


@pytest.mark.parametrize("block_end", (False, True))
def test_canvas_rows_see_the_whole_canvas_and_prefix_rows_none_of_it(block_end):
    m, other = model(timestep=False, block_end=block_end), IDS
    other = mx.concatenate([IDS[:, :-1], (IDS[:, -1:] + 1) % VOCAB], axis=1)
    one, two = (np.array(m(x, P)) for x in (IDS, other))
    assert abs(one[:, 0] - two[:, 0]).max() > 1e-3  # the first canvas row reads the last one
    assert np.allclose(np.array(m.causal(IDS))[:, :-1], np.array(m.causal(other))[:, :-1], atol=1e-5)
    mask = np.array(denoise.canvas_mask(P + C, P))
    assert not mask[:P, P:].any() and mask[P:].all() and (mask[:P, :P] == np.tri(P, dtype=bool)).all()


def test_the_readout_is_not_shifted():
    """One canvas row and no adapter: its logits are those that ordinary decoding has in the same row, for the next token there."""
    m = denoise.Denoiser(hybrid(), 3, timestep=False)
    read = np.array(m(IDS, P + C - 1))
    assert read.shape == (2, 1, VOCAB) and np.allclose(read[:, 0], np.array(hybrid().model(IDS))[:, -1], atol=2e-3)


def test_block_end_reads_the_state_after_the_last_row():
    m = model(timestep=False, block_end=True)
    layer, x = m.adapted.layers[0].linear_attn, mx.random.normal((2, P + C, 64), key=mx.random.key(8))
    m._gate.rows(mx.ones((2, P + C)))
    m._layout.prefix = P
    got, inner = np.array(layer(x)), layer.inner
    _, q, k, v, g, beta, z = inner.rows(x, mx.zeros((2, 3, inner.conv_dim)))
    state, out = mx.zeros((2, inner.num_v_heads, inner.head_v_dim, inner.head_k_dim)), []
    for i in range(P + C):
        y, _, state = delta_rule_step(q[:, i], k[:, i], v[:, i], g[:, i], beta[:, i], state)
        out.append(y)
    out[P:] = [(state * q[:, i, :, None, :]).sum(axis=-1) for i in range(P, P + C)]
    wanted = inner.out_proj(inner.norm(mx.stack(out, axis=1), z.reshape(2, P + C, inner.num_v_heads, inner.head_v_dim)).reshape(2, P + C, -1))
    assert np.allclose(got, np.array(wanted), atol=1e-4)


def test_an_adapter_that_is_off_leaves_the_bits_of_the_target():
    before, m = hybrid().digest(), model(fast=False, block_end=True)
    plain = np.array(hybrid().model(IDS))
    assert np.array(m.causal(IDS, adapter=False)).tobytes() == plain.tobytes() and abs(np.array(m.causal(IDS)) - plain).max() > 1e-3
    assert hybrid().digest() == before


@pytest.mark.parametrize("timestep", (False, True))
def test_gradients_reach_the_adapter_and_the_conditioner_alone(timestep):
    m, t, hidden = model(timestep=timestep, block_end=True), mx.array([0.3, 0.8]), denoise.masks(mx.array([0.3, 0.8]), C, mx.random.key(1))
    for loss in (lambda m: denoise.canvas_loss(m, IDS, IDS[:, P:][:, ::-1], t, P, False), lambda m: sum(denoise.both_losses(m, IDS, hidden, t, P, MASK))):
        grads = dict(tree_flatten(nn.value_and_grad(m, loss)(m)[1]))
        assert {k.split(".")[0] for k in grads} == {"adapted", "time"} - ({"time"} if not timestep else set())
        assert set(grads) == set(m.trainable()) and all(map(denoise.trains, grads)) and not denoise.trains("adapted.model.norm.weight") and all(mx.abs(v).max() > 0 for v in grads.values())


def test_the_conditioner_starts_at_nothing_or_has_the_norm_that_is_asked_for():
    t = mx.array([0.1, 0.5, 0.9])
    free, fixed = denoise.Conditioner(64, 0.5), denoise.Conditioner(64, 0.5, 20)
    assert not mx.abs(free(t)).max() and np.allclose(np.linalg.norm(np.array(fixed(t)), axis=-1), 10, rtol=1e-5)
    assert abs(np.array(fixed(t))[0] - np.array(fixed(t))[1]).max() > 1e-2
    fixed.outer.weight = 5 * fixed.outer.weight
    assert np.allclose(np.linalg.norm(np.array(fixed(t)), axis=-1), 10, rtol=1e-5)


class Script(nn.Module):
    """Stands in for a denoiser: logits [B, C, V] by a function of the ids."""

    def __init__(self, logits):
        super().__init__()
        self._logits = logits

    def __call__(self, ids, prefix, t=None):
        return self._logits(ids)[:, prefix:]

    causal = lambda self, ids: self._logits(ids)  # noqa: E731


def test_losses_by_hand():
    flat = Script(lambda ids: mx.zeros((*ids.shape, 4)))
    ids, clean = mx.array([[0, 1, 2, 3]]), mx.array([[1, 2, 0]])
    assert denoise.canvas_loss(flat, ids, clean, None, 1, False).item() == pytest.approx(math.log(4))
    # it repeats its input: log(1 + 3 e^-9) where that is right, 9 more where it is wrong
    echo = Script(lambda ids: 9.0 * (ids[..., None] == mx.arange(4)))
    base = math.log(1 + 3 * math.exp(-9))
    assert denoise.canvas_loss(echo, ids, clean, None, 1, False).item() == pytest.approx(base + 3)
    assert denoise.canvas_loss(echo, ids, clean, None, 1, True).item() == pytest.approx(base + 9)
    assert denoise.canvas_loss(echo, ids, ids[:, 1:], None, 1, True).item() == 0
    ar, read = denoise.both_losses(echo, mx.array([[0, 2, 2, 3]]), mx.array([[True, False, False]]), mx.array([0.5]), 1, 1)
    assert ar.item() == pytest.approx(base + 6) and read.item() == pytest.approx(base + 9)  # 2 -> 2 alone is right; no canvas token is the mask


def test_the_second_view_is_told_the_rest_of_the_noise_level():
    """It believes every hidden token to be 1 with the probability t that it is told: 1 of 4 canvas rows at 1/4, the other three at 3/4."""
    class Told(Script):
        def __call__(self, ids, prefix, t):
            return mx.stack([mx.log(1 - t), mx.log(t)], axis=-1)[:, None] + self._logits(ids)[:, prefix:]

    told = Told(lambda ids: mx.zeros((*ids.shape, 2)))
    ar, read = denoise.both_losses(told, mx.ones((1, 6), dtype=mx.int32), mx.array([[False, True, False, False]]), mx.array([0.25]), 2, 0)
    assert ar.item() == pytest.approx(math.log(2)) and read.item() == pytest.approx(-(math.log(0.25) + 3 * math.log(0.75)) / 4)


def test_a_copier_scores_the_copy_baseline():
    clean, noisy = mx.array([[5, 6, 7, 8]]), mx.array([[5, 9, 7, 3]])
    assert denoise.tally(noisy, noisy, clean) == {"rows": 4, "changed": 2, "changed_right": 0, "unchanged_right": 2}
    assert denoise.tally(mx.array([[5, 6, 0, 3]]), noisy, clean) == {"rows": 4, "changed": 2, "changed_right": 1, "unchanged_right": 1}


@pytest.mark.parametrize("steps", (1, 3, 8, C))
def test_the_sampler_commits_the_surest_rows_and_never_takes_one_back(steps):
    logits = mx.random.normal((1, P + C, VOCAB), key=mx.random.key(6)) * mx.arange(1, P + C + 1)[None, :, None]
    done, last, start = np.zeros(C, dtype=bool), None, mx.full((1, C), MASK)
    assert denoise.committed(C, steps) == [math.ceil(C * (k + 1) / steps) for k in range(steps)]
    trace = list(denoise.unmask(Script(lambda ids: logits), IDS[:1, :P], start, steps))
    for (canvas, rows, sure, vague), count in zip(trace, denoise.committed(C, steps), strict=True):
        assert rows.sum() == count
        assert (rows | ~done).all() and (canvas[~rows] == MASK).all() and 0 < sure <= 1 and vague >= 0
        assert last is None or (canvas[done] == last[done]).all()
        done, last = rows, canvas
    assert done.all() and (last == np.array(logits)[0, P:].argmax(axis=-1)).all()
    if steps == C:
        assert trace[0][1].argmax() == np.exp(np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True)))[0, P:].max(axis=-1).argmax()


def test_windows_are_the_text_of_documents_and_held_out_ones_are_others():
    one, more, unseen = corpus.windows(hybrid(), 3, 64, 7), corpus.windows(hybrid(), 5, 64, 7), corpus.windows(hybrid(), 3, 64, 7, held_out=True)
    assert (corpus.windows(hybrid(), 2, 64, 7, apart=2) == more[:4:2]).all()
    assert one.shape == (3, 64) and (one == more[:3]).all() and not (one == unseen).all(axis=1).any() and not (one == corpus.windows(hybrid(), 3, 64, 8)).all()


def test_ordinary_decoding_is_that_of_the_plain_model_when_the_adapter_is_off():
    m, ids = model(), np.array(IDS)
    wanted = nn.losses.cross_entropy(hybrid().model(IDS)[:, :-1], IDS[:, 1:]).mean(axis=-1).tolist()
    assert denoise.ordinary_nats(m, ids, False, batch=1) == pytest.approx(wanted, rel=1e-3) and denoise.ordinary_nats(m, ids, True) != pytest.approx(wanted, rel=0.02)
