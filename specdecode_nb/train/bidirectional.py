"""Bidirectional Gated DeltaNet: the same weights a second time over the reversed canvas (published system, section 6, Act II).

A sequence is [clean prefix of P rows | noisy canvas of C rows]. The forward pass is the layer as it is, over all rows. The reverse
pass runs over the canvas alone, last row first, from a zero state and an empty convolution window; its raw output is turned round
and fused with the forward one before the gated norm. Prefix rows are never touched. Everything is in the chunked form, to train.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

from ..backend import mx, nn  # isort: skip

from ..gdn import Taped, scan
from ..streams import stream_seed

SHUFFLE = 0x53485546464C455F  # the stream of the permutations
FUSIONS = ("causal", "constant", "scalar", "token", "concat")
REVERSES = ("aligned", "shuffled", "none", "block_end")


@dataclass(frozen=True)
class Mixing:
    """What a layer does with its second pass.

    ``fusion``: "causal" has no second pass; "constant" is f = g o + (1 - g) o' with the fixed ``gate`` g (1/2: the published mean);
    "scalar" learns one g a layer from ``gate`` on; "token" computes g for every row and head from the sizes of o and o' (2 Hv -> Hv,
    at first ``gate`` everywhere); "concat" is a projection [o; o'] -> f for each head, at first [I; 0].
    ``reverse``: where o' comes from: "aligned", "shuffled" (its canvas rows permuted), "none" (o' = 0: the forward output scaled)
    or "block_end" (no second pass: what the state at the end of the canvas holds for each row's query, after FLARE).
    """

    fusion: str = "causal"
    gate: float = 0.5
    reverse: str = "aligned"

    def __post_init__(self):
        if self.fusion not in FUSIONS or self.reverse not in REVERSES:
            raise ValueError(f"There is no mixing {self.fusion!r} of {self.reverse!r}.")


class Canvas:
    """What all layers of one model know of the next forward: rows of the prefix, and the permutation of the canvas if there is one."""

    def __init__(self, prefix: int):
        self.prefix = prefix
        self.order: mx.array | None = None

    def shuffle(self, width: int, seed: int, step: int | None = None) -> None:
        """Permute ``width`` canvas rows by seed and step; without a step it is one permutation for good, as published (seed 0 there)."""
        self.order = mx.random.permutation(width, key=mx.random.key(seed if step is None else stream_seed(seed, SHUFFLE, step)))


class BidirectionalDeltaNet(nn.Module):
    """A Gated DeltaNet layer with a second pass. ``inner`` is the layer itself: the same weights, not a copy.

    Its own parameters, all that it adds: ``gate`` (), or ``weight`` [2 Hv, Hv] and ``bias`` [Hv], or ``weight`` [2 Dv, Dv].
    """

    def __init__(self, inner: Taped, mixing: Mixing, canvas: Canvas):
        super().__init__()
        self.inner = inner
        self._mixing, self._canvas = mixing, canvas
        heads, dim = inner.num_v_heads, inner.head_v_dim
        if mixing.fusion == "scalar":
            self.gate = mx.array(mixing.gate)
        elif mixing.fusion == "token":
            self.weight, self.bias = mx.zeros((2 * heads, heads)), mx.full((heads,), math.log(mixing.gate / (1 - mixing.gate)))
        elif mixing.fusion == "concat":
            self.weight = mx.concatenate([mx.eye(dim), mx.zeros((dim, dim))])

    def _scan(self, x, projected):
        """Queries, raw output [B, T, Hv, Dv] and last state of the layer over x [B, T, hidden], from nothing."""
        layer, B = self.inner, len(x)
        _, q, k, v, g, beta, _ = layer.rows(x, mx.zeros((B, layer.conv_kernel_size - 1, layer.conv_dim), dtype=x.dtype), projected)
        return q, *scan(q, k, v, g, beta, mx.zeros((B, layer.num_v_heads, layer.head_v_dim, layer.head_k_dim)))

    def second(self, x, projected, q, state):
        """o' [B, C, Hv, Dv] of the canvas x [B, C, hidden]; its projections and queries in the forward pass, and the forward state after it.

        A projection is made row by row, so that of the reversed canvas is the reversed one: an adapter on it gates whole sequences alone.
        """
        reverse = self._mixing.reverse
        if reverse == "none":
            return mx.zeros((*q.shape[:-1], self.inner.head_v_dim))
        if reverse == "block_end":
            return (q.swapaxes(1, 2) @ state.swapaxes(-1, -2)).swapaxes(1, 2)
        back = self._scan(x[:, ::-1], [p[:, ::-1] for p in projected])[1][:, ::-1]
        if reverse == "aligned":
            return back
        if self._canvas.order is None:
            raise ValueError("A shuffled second pass needs a permutation; call Canvas.shuffle first.")
        return back[:, self._canvas.order]

    def fused(self, o, other):
        """f [B, C, Hv, Dv] from the forward output and the second one."""
        if self._mixing.fusion == "concat":
            return mx.concatenate([o, other], axis=-1) @ self.weight
        gate = self._mixing.gate
        if self._mixing.fusion == "scalar":
            gate = self.gate
        elif self._mixing.fusion == "token":
            size = mx.concatenate([mx.sqrt((x**2).mean(axis=-1) + 1e-12) for x in (o, other)], axis=-1)
            gate = mx.sigmoid(size @ self.weight + self.bias)[..., None]
        return gate * o + (1 - gate) * other

    def __call__(self, x, mask=None, cache=None):
        if mask is not None or cache is not None:
            raise NotImplementedError("The bidirectional layer takes whole unpadded sequences without a cache.")
        (B, T, _), P = x.shape, self._canvas.prefix
        projected = self.inner.project(x)
        q, o, state = self._scan(x, projected)
        if self._mixing.fusion != "causal":
            second = self.second(x[:, P:], [p[:, P:] for p in projected], q[:, P:], state)
            o = mx.concatenate([o[:, :P], self.fused(o[:, P:], second)], axis=1)
        out = self.inner.norm(o.astype(x.dtype), projected[1].reshape(B, T, self.inner.num_v_heads, self.inner.head_v_dim))
        return self.inner.out_proj(out.reshape(B, T, -1))


def install(model, mixing: Mixing, canvas: Canvas) -> list[BidirectionalDeltaNet]:
    """Put a second pass into every Gated DeltaNet layer of ``model``, a tree of its own (:func:`..targets.share`); returns the new layers.

    What was frozen stays so; the parameters of the fusion are trainable.
    """
    made = []
    for layer in model.layers:
        if "linear_attn" in layer:
            layer.linear_attn = BidirectionalDeltaNet(layer.linear_attn, mixing, canvas)
            made.append(layer.linear_attn)
    return made


def gates(layers: list[BidirectionalDeltaNet]) -> list[float]:
    """The learned scalar gate of each layer; empty where there is none."""
    return [layer.gate.item() for layer in layers if "gate" in layer]
