"""Train an MTP drafter on the target's own continuations.

    python -m specdecode_nb.train.mtp OUT WORK [CORPUS] [--windows FILE.npy ...] [--depth 3 ...]

OUT gets mtp.safetensors and training.json. Every row of a window starts a chain: the first link reads the target's hidden
row, each further one the output of the link before it, and sees the keys that it would see in decoding.
"""
from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ..backend import mx, nn  # isort: skip

import numpy as np

from ..ending import guarded
from ..mtp import MTPDrafter, MTPModel, write_mtp
from ..families import tower
from ..streams import DATA_SAMPLING, stream_seed
from ..targets import Target
from ..taps import embed_and_head
from . import tapped
from .fast import fast_sigmoid


@dataclass(frozen=True)
class Recipe(tapped.Recipe):
    """``taps`` is the target's last layer, ``mlp`` the width of the layer's MLP, ``depth`` the links of a chain."""

    taps: tuple[int, ...] = (3,)
    mlp: int = 1024
    depth: int = 3
    probe_block: int = 4


def _parts(attention, x):
    """Queries, keys and values [N, heads, T, head_dim] of rows x [N, T, hidden] at positions 0.., and the output gate."""
    n, t, _ = x.shape
    queries, gate = mx.split(attention.q_proj(x).reshape(n, t, attention.num_attention_heads, -1), 2, axis=-1)
    split = lambda v: v.reshape(n, t, attention.num_key_value_heads, -1)  # noqa: E731
    keys, values = attention.k_norm(split(attention.k_proj(x))).swapaxes(1, 2), split(attention.v_proj(x)).swapaxes(1, 2)
    spread = lambda v: mx.repeat(v, attention.num_attention_heads // attention.num_key_value_heads, axis=1)  # noqa: E731
    return attention.rope(attention.q_norm(queries).swapaxes(1, 2)), spread(attention.rope(keys)), spread(values), gate.reshape(n, t, -1)


def _later(x, rows: int, axis: int):
    """``x`` moved ``rows`` to later positions along ``axis``, zeros in front."""
    if not rows:
        return x
    width = [(0, 0)] * x.ndim
    width[axis] = (rows, 0)
    return mx.pad(mx.take(x, mx.arange(x.shape[axis] - rows), axis=axis), width)


def chain_hidden(model: MTPModel, target: Target, hidden, ids, depth: int) -> list:
    """Outputs of links 1..depth, each [W, C - 1, hidden], over windows ``ids`` [W, C] and the target's normalised ``hidden`` [W, C, hidden].

    Row r joins ids[r + 1] to what came before it, and predicts ids[r + 2]. A link of depth d sees the first links of rows
    up to r - d + 1 and the one link of each depth between, which are those that decoding has in the cache then.
    """
    embed, _ = embed_and_head(target)
    layer, embedded, before = model.layers[0], embed(ids[:, 1:]), hidden[:, :-1]
    row = mx.arange(ids.shape[1] - 1)
    kept, outputs = [], []
    for d in range(1, depth + 1):
        x = model.rows(before, embedded)
        queries, keys, values, gate = _parts(layer.self_attn, layer.input_layernorm(x))
        kept.append((keys, values))
        queries = queries * layer.self_attn.scale
        seen = mx.where(row[None, :] <= row[:, None] - (d - 1), 0.0, -mx.inf)
        scores = [queries @ kept[0][0].swapaxes(-1, -2) + seen]
        between = [tuple(_later(v, d - e, 2) for v in kept[e - 1]) for e in range(2, d + 1)]
        scores += [(queries * k).sum(axis=-1, keepdims=True) for k, _ in between]
        weights = mx.softmax(mx.concatenate(scores, axis=-1), axis=-1)
        n = len(row)
        mixed = weights[..., :n] @ kept[0][1] + sum(weights[..., n + i : n + i + 1] * v for i, (_, v) in enumerate(between))
        x = x + layer.self_attn.o_proj(mixed.swapaxes(1, 2).reshape(gate.shape) * fast_sigmoid(gate))
        outputs.append(model.norm(x + layer.mlp(layer.post_attention_layernorm(x))))
        before = _later(outputs[-1], 1, 1)
    return outputs


def chain_loss(model: MTPModel, target: Target, taps, ids, prefix: int, depth: int):
    """Cross-entropy against the target's own next tokens, in nats, averaged over rows and links. taps [W, C, hidden]."""
    _, head = embed_and_head(target)
    outputs = chain_hidden(model, target, tower(target.model).norm(taps), ids, depth)
    logits = head(mx.stack([out[:, prefix - 1 : -1] for out in outputs]))
    labels = mx.broadcast_to(ids[None, :, prefix + 1 :], logits.shape[:-1])
    return nn.losses.cross_entropy(logits, labels).mean()


class Training(tapped.Training):
    def new_model(self) -> MTPModel:
        return MTPModel(self.target, self.recipe.mlp)

    def batch(self, step: int, rows: np.ndarray, windows: np.ndarray, prefix: int) -> tuple:
        """Taps, ids, the length of the prompt part and the depth."""
        r = self.recipe
        rng = np.random.default_rng(stream_seed(r.seed, DATA_SAMPLING, step))
        chosen = rng.choice(len(windows), r.windows_a_step, replace=len(windows) < r.windows_a_step)
        return mx.array(rows[chosen]).astype(mx.float32), mx.array(windows[chosen].astype(np.int32)), prefix, r.depth

    def loss(self, model: MTPModel, *batch) -> mx.array:
        return chain_loss(model, self.target, *batch)

    def drafter(self, model: MTPModel) -> MTPDrafter:
        return MTPDrafter(self.target, tapped.shipped(model), self.recipe.depth)

    def write(self, out: Path, facts: dict) -> None:
        write_mtp(out / "mtp.safetensors", self.model, facts | {"depth": self.recipe.depth})


if __name__ == "__main__":
    sys.exit(guarded(lambda: tapped.command(__doc__.splitlines()[0], Training, Recipe)))
