"""Reading tokens out in place: layout, corruption, the denoiser, its losses and its samplers (published system, section 6, Acts I and III).

A sequence is [prefix of P clean rows | canvas of C rows]. The readout is not shifted: the logits of a canvas row name the token that
stands in that row. Canvas rows see each other both ways in the attention layers; Gated DeltaNet layers stay causal (Act I) or read
their canvas rows out of the state at the end of the canvas (``block_end``, Act III).
"""
from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..backend import mx, nn  # isort: skip

import numpy as np
from mlx.utils import tree_flatten

from ..families import embed_and_head, tower, width
from ..gdn import Taped, scan
from ..lora import PUBLISHED, attach
from ..streams import stream_seed
from .fast import adopt_mlp

ATTENTION = tuple(m for m in PUBLISHED if m.startswith("self_attn"))
RECURRENT = ("linear_attn.in_proj_qkv", "linear_attn.out_proj")  # what of Gated DeltaNet is adapted in Act III
SINUSOIDS = 256
EVAL_CANVAS, SCRAMBLE, TIMESTEP = 0x4556414C5F435653, 0x534352414D424C45, 0x54494D4553544550  # streams


# --- text ---

def in_turn(text: np.ndarray, seed: int, stream: int, batch: int) -> Callable[[int], mx.array]:
    """``taken(step)``: the windows [batch, rows] of a step. Every epoch goes through all of ``text`` in an order of its own."""
    @lru_cache(2)
    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng(stream_seed(seed, stream, epoch)).permutation(len(text))

    def taken(step: int) -> mx.array:
        places = [divmod(i, len(text)) for i in range(step * batch, (step + 1) * batch)]
        return mx.array(np.stack([text[order(epoch)[i]] for epoch, i in places]))

    return taken


# --- corruption ---

def replaced(ids, t, vocab: int, key):
    """Act I: each id of ids [B, C] gives way with probability t [B] to one drawn evenly from the vocabulary (which may be the same)."""
    which, what = mx.random.split(key)
    noise = mx.random.randint(0, vocab, ids.shape, key=what).astype(ids.dtype)
    return mx.where(mx.random.uniform(shape=ids.shape, key=which) < t[:, None], noise, ids)


@dataclass(frozen=True)
class Recipe:
    """What decides a launch, besides its arm, the target and the text. Rank, scale 32 / 16, warm-up and batch as published for Act II."""

    seed: int
    steps: int
    batch: int = 4
    lr: float = 1e-3
    warmup: int = 20
    schedule: str = "flat"
    rank: int = 16
    scale: float = 2.0


def masks(t, canvas: int, key):
    """Act III: bool [B, C] with exactly round(t C) true a row, places drawn evenly; the complementary view is its negation. t: [B]."""
    order = mx.argsort(mx.argsort(mx.random.uniform(shape=(len(t), canvas), key=key), axis=-1), axis=-1)
    return order < mx.round(t * canvas)[:, None]


def scrambled(ids, hidden, key):
    """ids [B, C] with the visible ones permuted among their own places and the hidden ones as they are: what the canvas probe shows the model."""
    noise = mx.random.uniform(shape=ids.shape, key=key)
    places = mx.argsort(hidden.astype(mx.float32), axis=-1)  # stable: visible places first, in order
    mixed = mx.argsort(mx.where(hidden, 2.0, noise), axis=-1)  # visible places first, in random order
    return mx.where(hidden, ids, mx.put_along_axis(ids, places, mx.take_along_axis(ids, mixed, axis=-1), axis=-1))


# --- the denoiser ---

def canvas_mask(rows: int, prefix: int):
    """bool [T, T], true where a row may look: causal, and everywhere within the canvas."""
    at = mx.arange(rows)
    inside = at >= prefix
    return (at[:, None] >= at[None]) | (inside[:, None] & inside[None])


class Conditioner(nn.Module):
    """Noise level t [B] to a bias [B, hidden] for the embeddings of the canvas: sinusoids, two layers, the last one zero at first.

    ``size`` None leaves the norm of the bias to training, as published. A number fixes it to that many mean norms of a token
    embedding (``unit``), whatever is learned; the last layer then starts from small numbers, since a zero has no direction.
    """

    def __init__(self, hidden: int, unit: float, size: float | None = None, seed: int = 0):
        super().__init__()
        self.inner, self.outer = nn.Linear(SINUSOIDS, hidden), nn.Linear(hidden, hidden)
        one, two = mx.random.split(mx.random.key(stream_seed(seed, TIMESTEP, 0)))
        self.inner.weight, self.inner.bias = mx.random.normal((hidden, SINUSOIDS), key=one) / SINUSOIDS**0.5, mx.zeros((hidden,))
        self.outer.weight, self.outer.bias = (size is not None) * mx.random.normal((hidden, hidden), key=two) / hidden**0.5, mx.zeros((hidden,))
        self._norm = None if size is None else size * unit

    def __call__(self, t):
        frequency = mx.exp(-math.log(10_000) * mx.arange(SINUSOIDS // 2) / (SINUSOIDS // 2))
        angle = 1000 * t[:, None] * frequency
        bias = self.outer(nn.silu(self.inner(mx.concatenate([mx.cos(angle), mx.sin(angle)], axis=-1))))
        return bias if self._norm is None else self._norm * bias / mx.linalg.norm(bias, axis=-1, keepdims=True)


class BlockEnd(nn.Module):
    """A Gated DeltaNet layer whose canvas rows read the state after the last row: o_i = S_end q_i. ``inner``: the layer itself, not a copy.

    ``layout.prefix`` None makes it the causal layer again.
    """

    def __init__(self, inner: Taped, layout):
        super().__init__()
        self.inner, self._layout = inner, layout

    def __call__(self, x, mask=None, cache=None):
        layer, prefix = self.inner, self._layout.prefix
        if prefix is None:
            return layer(x, mask, cache)
        B, T, _ = x.shape
        _, q, k, v, g, beta, z = layer.rows(x, mx.zeros((B, layer.conv_kernel_size - 1, layer.conv_dim), dtype=x.dtype))
        o, end = scan(q, k, v, g, beta, mx.zeros((B, layer.num_v_heads, layer.head_v_dim, layer.head_k_dim)))
        whole = (q[:, prefix:].swapaxes(1, 2) @ end.swapaxes(-1, -2)).swapaxes(1, 2)
        out = layer.norm(mx.concatenate([o[:, :prefix], whole], axis=1).astype(x.dtype), z.reshape(B, T, layer.num_v_heads, layer.head_v_dim))
        return layer.out_proj(out.reshape(B, T, -1))


class Layout:
    """Where the canvas of the next forward begins; None for an ordinary causal one."""

    prefix: int | None = None


class Denoiser(nn.Module):
    """A target with an adapter, and a conditioner if ``timestep``; these two are all that is trainable.

    Args:
        rank, modules, scale: of the adapter; the published alpha / r is 2.
        timestep: whether there is a conditioner; ``size`` is that of :class:`Conditioner`.
        block_end: canvas rows of Gated DeltaNet layers read the state at the end of the canvas.
        fast: the training forms of the layers; without them an adapter that is off leaves the target's own bits.
    """

    def __init__(self, target, rank: int, modules=ATTENTION, scale: float = 2.0, timestep: bool = True, size: float | None = None,
                 block_end: bool = False, seed: int = 0, fast: bool = True):
        super().__init__()
        self.adapted, self._gate = attach(target.model, rank, modules, scale, seed)
        embed, head = embed_and_head(target)
        # functions, for as a module of this one the embedding would be trained
        self._layout, self._embed, self._head = Layout(), lambda ids: embed(ids), lambda h: head(h)
        for layer in self.adapted.layers:
            if fast:
                layer.mlp = adopt_mlp(layer.mlp)
            if block_end and "linear_attn" in layer:
                layer.linear_attn = BlockEnd(layer.linear_attn, self._layout)
        self.unit = mx.linalg.norm(embed.weight.astype(mx.float32), axis=-1).mean().item()
        if timestep:
            self.time = Conditioner(width(target.model), self.unit, size, seed)
        self.train(fast)

    def trainable(self) -> dict[str, mx.array]:
        return dict(tree_flatten(self.trainable_parameters()))

    def fingerprint(self) -> str:
        """blake2b-128 over the trained tensors in order of name: name and raw bytes."""
        return hashlib.blake2b(b"".join(name.encode() + bytes(memoryview(v)) for name, v in sorted(self.trainable().items())), digest_size=16).hexdigest()

    def __call__(self, ids, prefix: int, t=None, adapter: bool = True):
        """Logits [B, C, V] of the canvas rows of ids [B, P + C], each for the token in its own row; t [B] for the conditioner."""
        self._gate.rows(mx.ones(ids.shape) if adapter else None)
        h = self._embed(ids)
        if "time" in self and adapter:
            h = mx.concatenate([h[:, :prefix], h[:, prefix:] + self.time(t)[:, None].astype(h.dtype)], axis=1)
        mask, self._layout.prefix = canvas_mask(ids.shape[1], prefix), prefix
        for layer in self.adapted.layers:
            h = layer(h, mask=None if "linear_attn" in layer else mask)
        return self._head(tower(self.adapted).norm(h[:, prefix:]))

    def causal(self, ids, adapter: bool = True):
        """Ordinary next-token logits [B, T, V], with the adapter on or off."""
        self._gate.rows(mx.ones(ids.shape) if adapter else None)
        self._layout.prefix = None
        return self.adapted(ids)


def trains(name: str) -> bool:
    """Whether a tensor of a denoiser may be trained: those of the adapter and of the conditioner."""
    return name.endswith(("lora_a", "lora_b")) or name.startswith("time.")


# --- losses ---

def canvas_loss(model: Denoiser, ids, clean, t, prefix: int, corrupted_only: bool):
    """Act I: mean cross-entropy in nats over the canvas of ids [B, P + C] against clean [B, C], or over its changed rows alone."""
    loss = nn.losses.cross_entropy(model(ids, prefix, t).astype(mx.float32), clean)
    scored = ids[:, prefix:] != clean if corrupted_only else mx.ones(clean.shape)
    return (loss * scored).sum() / mx.maximum(scored.sum(), 1)


def two_views(ids, hidden, prefix: int, mask_id: int):
    """[2 B, P + C]: the windows ids [B, P + C] with hidden [B, C] masked, then with all the rest of the canvas masked."""
    canvas = mx.concatenate([mx.where(m, mask_id, ids[:, prefix:]) for m in (hidden, ~hidden)])
    return mx.concatenate([mx.concatenate([ids[:, :prefix]] * 2), canvas], axis=1)


def both_losses(model: Denoiser, ids, hidden, t, prefix: int, mask_id: int):
    """Act III: (L_AR over ids, L_diff over both views), nats. Every canvas token is hidden in one view, so it is scored once; t [B]."""
    ar = nn.losses.cross_entropy(model.causal(ids)[:, :-1].astype(mx.float32), ids[:, 1:]).mean()
    read = model(two_views(ids, hidden, prefix, mask_id), prefix, mx.concatenate([t, 1 - t]))
    loss = nn.losses.cross_entropy(read.astype(mx.float32), mx.concatenate([ids[:, prefix:]] * 2))
    return ar, (loss * mx.concatenate([hidden, ~hidden])).sum() / hidden.size


# --- sampler ---

def committed(canvas: int, steps: int) -> list[int]:
    """Rows that are committed after each step: ceil(C (k + 1) / K)."""
    return [-(-canvas * (k + 1) // steps) for k in range(steps)]


def unmask(model: Denoiser, prefix_ids, start, steps: int, visible=None) -> Iterator[tuple]:
    """Fill a canvas, the surest rows first; a committed row never changes.

    Args:
        prefix_ids: [1, P]; start: [1, C], what stands in the rows at first (mask ids in Act III, noise in Act I).
        visible: bool [C], rows that are given and so committed from the beginning.
    Yields:
        After each of ``steps`` forwards (at most one for an open row): the canvas [C], which rows are committed (bool [C]), and the mean over the rows that were still
        open of the top probability and of the entropy in nats.
    """
    canvas, open_rows = np.array(start[0]), np.ones(start.shape[1], dtype=bool) if visible is None else ~np.array(visible)
    given = int((~open_rows).sum())
    for count in committed(len(canvas) - given, min(steps, len(canvas) - given)):
        t = mx.array([open_rows.mean()])
        logits = model(mx.concatenate([prefix_ids, mx.array(canvas)[None]], axis=1), prefix_ids.shape[1], t)[0].astype(mx.float32)
        logp = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        top, entropy = np.exp(logp.max(axis=-1)), -(np.exp(logp) * logp).sum(axis=-1)
        sure, vague = float(top[open_rows].mean()), float(entropy[open_rows].mean())
        chosen = np.argsort(np.where(open_rows, -top, np.inf), kind="stable")[: count + given - int((~open_rows).sum())]
        canvas[chosen], open_rows[chosen] = logp[chosen].argmax(axis=-1), False
        yield canvas.copy(), ~open_rows, sure, vague


# --- counting ---

def tally(read, noisy, clean) -> dict[str, int]:
    """Canvas rows of one batch by whether they were changed and whether the readout is right; all [B, C]. A copier scores ``unchanged``."""
    right, changed = np.array(read) == np.array(clean), np.array(noisy) != np.array(clean)
    return {"rows": right.size, "changed": int(changed.sum()), "changed_right": int((right & changed).sum()), "unchanged_right": int((right & ~changed).sum())}


def ordinary_nats(model: Denoiser, ids, adapter: bool, batch: int = 8) -> list[float]:
    """Next-token cross-entropy of ordinary decoding, nats a token for each window of ids [N, T]; the perplexity is exp of their mean."""
    parts = [mx.array(ids[i : i + batch]) for i in range(0, len(ids), batch)]
    return [v for rows in parts for v in nn.losses.cross_entropy(model.causal(rows, adapter)[:, :-1].astype(mx.float32), rows[:, 1:]).mean(axis=-1).tolist()]
