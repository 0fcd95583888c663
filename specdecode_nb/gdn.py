"""The Gated DeltaNet layer: one set of gates, one step, and a recording of what each row wrote.

A layer holds a convolution window (the last three rows before the convolution) and a matrix ``S`` per value head.
One token does ``S <- g S``, ``delta = beta (v - S k)``, ``S <- S + delta k^T``, ``y = S q`` (Yang et al., 2412.06464).
``S`` cannot be trimmed: the product of the decays and the written directions is not invertible in floating point.
So the layer can record, per row, what it wrote (``Tape``); :mod:`specdecode_nb.transaction` uses that to undo.

The layer is a subclass of mlx-lm's own, Qwen3.5's or Qwen3-Next's; it takes the place of the stock one in a single model
(:func:`adopt`), and nothing of mlx-lm is patched.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from .backend import mx, nn  # isort: skip

from mlx_lm.models.cache import ArraysCache
from mlx_lm.models.gated_delta import compute_g, normalize_qk
from mlx_lm.models.qwen3_5 import GatedDeltaNet
from mlx_lm.models.qwen3_next import Qwen3NextGatedDeltaNet

CHUNK = 32


@partial(mx.compile)
def delta_rule_step(q, k, v, g, beta, state):
    """One row of the gated delta rule, in float32.

    Args:
        q, k: [B, Hv, Dk]; v: [B, Hv, Dv]; g, beta: [B, Hv]; state: [B, Hv, Dv, Dk].
    Returns:
        y [B, Hv, Dv], the innovation delta [B, Hv, Dv], the new state.
    """
    decayed = state * g[..., None, None]
    delta = (v - (decayed * k[..., None, :]).sum(axis=-1)) * beta[..., None]
    state = decayed + k[..., None, :] * delta[..., None]
    return (state * q[..., None, :]).sum(axis=-1), delta, state


@partial(mx.compile)
def replay_step(delta, k, g, state):
    """The write half of :func:`delta_rule_step`: the same products and sum, so the same bits."""
    return state * g[..., None, None] + k[..., None, :] * delta[..., None]


def delta_rule_chunked(q, k, v, g, beta, state, chunk: int = CHUNK):
    """The same recurrence for whole sequences in plain matrix products (WY form), for training by autodiff.

    Within a chunk ``(I + A) delta = beta (v - gamma S_0 k)`` with A strictly lower triangular, so the inverse is a
    product of log2(chunk) factors. Agrees with the step form to float32 rounding, not bit for bit: values and gradients
    within 2e-5 of an array's largest entry (the tolerance that ``tests/test_gdn.py`` holds it to).

    Args:
        q, k: [B, T, Hv, Dk]; v: [B, T, Hv, Dv]; g, beta: [B, T, Hv] with T a multiple of ``chunk``; state as in the step.
    Returns:
        y [B, T, Hv, Dv], the final state, and the states at the start of each chunk [B, N, Hv, Dv, Dk].
    """
    B, T, H, _ = k.shape
    n = T // chunk

    def split(x):
        return x.reshape(B, n, chunk, H, -1).transpose(0, 1, 3, 2, 4)

    q, k, v = split(q), split(k), split(v)
    decay = mx.cumsum(split(mx.log(mx.maximum(g, 1e-30)))[..., 0], axis=-1)
    beta = split(beta)
    lower = mx.tril(mx.ones((chunk, chunk)))
    # masked before exp: the upper triangle would overflow and poison the gradient
    ratio = mx.exp(mx.where(lower > 0, decay[..., :, None] - decay[..., None, :], 0.0)) * lower
    gamma = mx.exp(decay)[..., None]
    A = beta * (k @ k.swapaxes(-1, -2)) * ratio * mx.tril(lower, -1)
    inverse, power, width = mx.eye(chunk) - A, A, 2
    while width < chunk:
        power = power @ power
        inverse = inverse + inverse @ power
        width *= 2
    write, read = inverse @ (beta * v), inverse @ (beta * gamma * k)
    scores = (q @ k.swapaxes(-1, -2)) * ratio
    to_end = mx.exp(decay[..., -1:] - decay)[..., None] * k
    ys, starts = [], []
    for i in range(n):
        starts.append(state)
        delta = write[:, i] - read[:, i] @ state.swapaxes(-1, -2)
        ys.append(scores[:, i] @ delta + (gamma[:, i] * q[:, i]) @ state.swapaxes(-1, -2))
        state = state * gamma[:, i, :, -1:, :] + delta.swapaxes(-1, -2) @ to_end[:, i]
    y = mx.stack(ys, axis=1).transpose(0, 1, 3, 2, 4).reshape(B, T, H, -1)
    return y, state, mx.stack(starts, axis=1)


def scan(q, k, v, g, beta, state, chunk: int = CHUNK):
    """:func:`delta_rule_chunked` for any T: y [B, T, Hv, Dv] and the state after row T.

    Rows are added that write nothing and fade nothing, so the last state is that of the last real row.
    """
    T = q.shape[1]
    wide = lambda a, value=0: mx.pad(a, [(0, 0), (0, -T % chunk)] + [(0, 0)] * (a.ndim - 2), constant_values=value)  # noqa: E731
    y, state, _ = delta_rule_chunked(wide(q), wide(k), wide(v), wide(g, 1), wide(beta), state, chunk)
    return y[:, :T], state


@dataclass
class Tape:
    """What one recorded forward wrote into one layer, row by row, in float32.

    ``conv_rows`` is [B, 3 + T, conv_dim]: the window before the block, then the block. The scheme decides what else is kept,
    as float32 per row: innovations, keys and decays ("tape", 4 (Hv Dv + Hv Dk + Hv) bytes a row), every state
    ("per_token_states", 4 Hv Dv Dk), or every state and what the step was made of ("rewind").
    """

    scheme: str = "tape"
    conv_before: mx.array | None = None
    state_before: mx.array | None = None
    conv_rows: mx.array | None = None
    deltas: list = field(default_factory=list)
    keys: list = field(default_factory=list)
    decays: list = field(default_factory=list)
    states: list = field(default_factory=list)
    values: list = field(default_factory=list)
    betas: list = field(default_factory=list)
    rows: int = 0

    def record(self, k, v, g, beta, delta, state) -> None:
        """One row: the arguments and results of :func:`delta_rule_step`."""
        kept = {"tape": ((self.deltas, delta), (self.keys, k), (self.decays, g)), "per_token_states": ((self.states, state),),
                "rewind": ((self.states, state), (self.keys, k), (self.values, v), (self.decays, g), (self.betas, beta))}[self.scheme]
        for rows, row in kept:
            rows.append(row)

    @property
    def nbytes(self) -> int:
        """Bytes held beyond the cache itself: everything recorded but the convolution rows."""
        return sum(a.nbytes for a in (*self.deltas, *self.keys, *self.decays, *self.states, *self.values, *self.betas))


class RecurrentCache(ArraysCache):
    """mlx-lm's cache of a Gated DeltaNet layer ([conv window, state]) that knows its length and can be recorded.

    Arrays are never written in place, so holding a reference is a snapshot.
    """

    def __init__(self):
        super().__init__(size=2)
        self.offset = 0
        self.tape: Tape | None = None
        self.sealed = False  # between a commit and the end of its block, when nothing may be forwarded

    def advance(self, n: int) -> None:
        self.offset += n
        super().advance(n)


class Taped:
    """The arithmetic of every use of a Gated DeltaNet layer in one place, over the parameters of mlx-lm's own.

    Prefill, plain step, verify and replay share :meth:`rows` (projections, convolution, gates, normalised keys) and
    :func:`delta_rule_step`. In training mode without a cache the chunked form takes the step's place.
    """

    def project(self, x):
        """The five projections of x [B, T, hidden]: qkv [B, T, conv_dim], z [B, T, Hv Dv] or [B, T, Hv, Dv], b and a [B, T, Hv]."""
        raise NotImplementedError

    def rows(self, x, window, projected=None):
        """Everything that does not depend on the state.

        Args:
            x: [B, T, hidden]; window: [B, 3, conv_dim]; projected: what :meth:`project` gives for x, where that is known.
        Returns:
            conv_rows [B, 3+T, conv_dim], q and k [B, T, Hv, Dk], v [B, T, Hv, Dv], g and beta [B, T, Hv] (float32), z.
        """
        B, T, _ = x.shape
        qkv, z, b, a = self.project(x) if projected is None else projected
        conv_rows = mx.concatenate([window, qkv], axis=1)
        # MLX's depthwise Conv1d is 50 times slower on a CPU than four shifted products with the same result
        w = self.conv1d.weight[..., 0]
        mixed = conv_rows[:, 0:T] * w[:, 0]
        for j in range(1, self.conv_kernel_size):
            mixed = mixed + conv_rows[:, j : j + T] * w[:, j]
        mixed = nn.silu(mixed)
        q, k, v = mx.split(mixed, [self.key_dim, 2 * self.key_dim], axis=-1)
        q = q.reshape(B, T, self.num_k_heads, self.head_k_dim)
        k = k.reshape(B, T, self.num_k_heads, self.head_k_dim)
        v = v.reshape(B, T, self.num_v_heads, self.head_v_dim)
        q, k = normalize_qk(q, k, inv_scale=self.head_k_dim**-0.5, eps=1e-6)
        if (repeat := self.num_v_heads // self.num_k_heads) > 1:
            q, k = mx.repeat(q, repeat, axis=-2), mx.repeat(k, repeat, axis=-2)
        g = compute_g(self.A_log, a, self.dt_bias)
        f32 = mx.float32
        return conv_rows, q.astype(f32), k.astype(f32), v.astype(f32), g.astype(f32), mx.sigmoid(b.astype(f32)), z

    def __call__(self, inputs, mask=None, cache=None):
        if mask is not None or (cache is not None and cache.lengths is not None):
            raise NotImplementedError("Gated DeltaNet layers here take one unpadded sequence per row; drop the mask.")
        if getattr(cache, "sealed", False):
            raise RuntimeError("This transaction is committed; forward further rows in a new one.")
        B, T, _ = inputs.shape
        tape = getattr(cache, "tape", None)
        window, state = (cache[0], cache[1]) if cache is not None else (None, None)
        if window is None:
            window = mx.zeros((B, self.conv_kernel_size - 1, self.conv_dim), dtype=inputs.dtype)
            state = mx.zeros((B, self.num_v_heads, self.head_v_dim, self.head_k_dim), dtype=mx.float32)
        conv_rows, q, k, v, g, beta, z = self.rows(inputs, window)
        if self.training and cache is None:
            y = scan(q, k, v, g, beta, state)[0]
        else:
            if tape is not None and tape.rows == 0:
                tape.conv_before, tape.state_before = window, state
            ys = []
            for t in range(T):
                y, delta, state = delta_rule_step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], state)
                ys.append(y)
                if tape is not None:
                    tape.record(k[:, t], v[:, t], g[:, t], beta[:, t], delta, state)
            y = mx.stack(ys, axis=1)
        if tape is not None:
            tape.conv_rows = conv_rows if tape.rows == 0 else mx.concatenate([tape.conv_rows, conv_rows[:, -T:]], axis=1)
            tape.rows += T
        if cache is not None:
            # a copy, because a slice would keep the whole block alive
            cache[0] = mx.contiguous(conv_rows[:, T:])
            cache[1] = state
            cache.advance(T)
        out = self.norm(y.astype(inputs.dtype), z.reshape(B, T, self.num_v_heads, self.head_v_dim))
        out = self.out_proj(out.reshape(B, T, -1))
        group = getattr(self, "sharding_group", None)  # set where mlx-lm has split the heads over ranks
        return out if group is None else mx.distributed.all_sum(out, group=group)


class TapedGatedDeltaNet(Taped, GatedDeltaNet):
    """Qwen3.5's layer: a projection each."""

    def project(self, x):
        return self.in_proj_qkv(x), self.in_proj_z(x), self.in_proj_b(x), self.in_proj_a(x)


class TapedNextGatedDeltaNet(Taped, Qwen3NextGatedDeltaNet):
    """Qwen3-Next's layer: two projections, whose outputs lie side by side per key head."""

    def project(self, x):
        q, k, v, z, b, a = self.fix_query_key_value_ordering(self.in_proj_qkvz(x), self.in_proj_ba(x))
        return mx.concatenate([part.reshape(*x.shape[:2], -1) for part in (q, k, v)], axis=-1), z, b, a


TAPED = {GatedDeltaNet: TapedGatedDeltaNet, Qwen3NextGatedDeltaNet: TapedNextGatedDeltaNet}


def adopt(layer: nn.Module) -> Taped:
    """A taped layer that shares the parameters of ``layer``, of a class in :data:`TAPED`; the stock layer is left as it is."""
    kind = TAPED[type(layer)]
    taped = kind.__new__(kind)
    nn.Module.__init__(taped)
    taped.__dict__.update(layer.__dict__, _no_grad=set(layer._no_grad))
    dict.update(taped, layer)
    return taped
