"""The block-diffusion drafter DFlash: mask embeddings that read the target's layers and propose a block at once.

A block is the anchor (the last committed token) and masks, embedded by the target. Every layer lets the block attend to
itself in both directions and to the context, whose keys and values come from the target's own residual stream: the
tapped layers side by side, projected by ``fc`` and normalised. Row i predicts the token at its own position, read by the
target's head. Configuration keys and weight names are the published ones (:mod:`specdecode_nb.dflash_files`).
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from .backend import mx, nn  # isort: skip

from mlx_lm.models.cache import KVCache
from mlx_lm.models.qwen3_next import Qwen3NextMLP

from .drafters import Draft
from .taps import TapDrafter
from .targets import Target


@dataclass(frozen=True)
class DFlashConfig:
    """What decides the drafter's arithmetic; a file has to state every field but the last. ``block_size`` counts the anchor;
    ``draft_window_size`` is the number of context rows that a block sees, None for all."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    draft_window_size: int | None = None


class BlockAttention(nn.Module):
    """Projections of one layer: queries of block rows, keys and values of block and context rows alike."""

    def __init__(self, c: DFlashConfig):
        super().__init__()
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(c.head_dim, c.rms_norm_eps), nn.RMSNorm(c.head_dim, c.rms_norm_eps)
        self.rope = nn.RoPE(c.head_dim, base=c.rope_theta)
        self.scale, self._width = c.head_dim**-0.5, c.head_dim

    def _heads(self, x):
        return x.reshape(*x.shape[:2], -1, self._width)

    def queries(self, x, offset):
        """x [N, T, hidden] at positions offset.. -> [N, heads, T, head_dim]; ``offset`` a number or one per N."""
        return self.rope(self.q_norm(self._heads(self.q_proj(x))).swapaxes(1, 2), offset=offset)

    def keys_values(self, x, offset):
        """The same for keys and values, [N, kv heads, T, head_dim] each; values carry no position."""
        keys = self.rope(self.k_norm(self._heads(self.k_proj(x))).swapaxes(1, 2), offset=offset)
        return keys, self._heads(self.v_proj(x)).swapaxes(1, 2)


class BlockLayer(nn.Module):
    def __init__(self, c: DFlashConfig):
        super().__init__()
        self.self_attn = BlockAttention(c)
        self.mlp = Qwen3NextMLP(c.hidden_size, c.intermediate_size)
        self.input_layernorm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)

    def __call__(self, x, attend: Callable):
        """x [N, T, hidden]; ``attend(self_attn, rows)`` gives [N, heads, T, head_dim] and knows the context."""
        y = attend(self.self_attn, self.input_layernorm(x)).swapaxes(1, 2)
        x = x + self.self_attn.o_proj(y.reshape(*x.shape[:2], -1))
        return x + self.mlp(self.post_attention_layernorm(x))


class DFlashModel(nn.Module):
    """The drafter's own weights; embedding and head are the target's and are not held here."""

    def __init__(self, c: DFlashConfig):
        super().__init__()
        self._config = c
        self.fc = nn.Linear(len(c.target_layer_ids) * c.hidden_size, c.hidden_size, bias=False)
        self.hidden_norm, self.norm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps), nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.layers = [BlockLayer(c) for _ in range(c.num_hidden_layers)]

    @property
    def config(self) -> DFlashConfig:
        return self._config

    def features(self, taps):
        """Context rows for every layer: taps [N, T, len(target_layer_ids) * hidden] -> [N, T, hidden]."""
        return self.hidden_norm(self.fc(taps))

    def __call__(self, x, contexts):
        """Hidden rows for the head: block embeddings [N, T, hidden] -> rows 1.. of the block; row 0 predicts nothing."""
        for layer, context in zip(self.layers, contexts):
            x = layer(x, context)
        return self.norm(x[:, 1:])


def widened(model: DFlashModel) -> DFlashModel:
    """The same weights, by reference, reading every context row."""
    other = DFlashModel(replace(model.config, draft_window_size=None))
    other.update(model.parameters())
    return other


class ContextCache(KVCache):
    """Keys and values of committed rows for one layer. A block reads its own beside them and leaves none behind.

    Args:
        window: how many of the latest context rows a block sees, None for all. Older ones are dropped now and then.
    """

    def __init__(self, window: int | None = None):
        super().__init__()
        self.window, self.first = window, 0  # position of the first row held

    @property
    def end(self) -> int:
        """Position after the last row held."""
        return self.first + self.offset

    def bind(self, features) -> Callable:
        """The ``attend`` of one block that follows the new context rows ``features`` [1, n, hidden] (None for none)."""

        def attend(attention: BlockAttention, x):
            start, kept, n = self.end, self.offset, 0 if features is None else features.shape[1]
            rows = x if features is None else mx.concatenate([features, x], axis=1)
            seen = slice(0 if self.window is None else max(0, kept + n - self.window), None)
            keys, values = (a[..., seen, :] for a in self.update_and_fetch(*attention.keys_values(rows, start)))
            self.offset = kept + n
            self._drop()
            queries = attention.queries(x, start + n)
            return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=attention.scale)

        return attend

    def extend(self, attention: BlockAttention, features) -> None:
        """Add context rows without a block."""
        self.update_and_fetch(*attention.keys_values(features, self.end))
        self._drop()

    def skip(self, rows: int) -> None:
        """Go past ``rows`` positions without their keys and values; nothing before them will be seen again."""
        self.first, self.offset = self.end + rows, 0

    def _drop(self) -> None:
        if self.window is not None and self.offset > 2 * self.window:
            last = slice(self.offset - self.window, self.offset)
            self.first, self.offset = self.first + last.start, self.window
            self.keys, self.values = self.keys[..., last, :], self.values[..., last, :]


class DFlashDrafter(TapDrafter):
    """Proposes ``k - 1`` tokens after the anchor in one forward of the block ``[anchor, mask, ...]`` of k rows.

    Args:
        model: the drafter's weights, in the type of the target (:func:`specdecode_nb.dflash_files.read_dflash`).
    """

    def __init__(self, target: Target, model: DFlashModel, name: str = "dflash", metadata: dict | None = None):
        window = model.config.draft_window_size
        super().__init__(target, model.config.target_layer_ids, [ContextCache(window) for _ in model.layers], name, metadata)
        self.model, self.block_size, self.window = model, model.config.block_size, window or math.inf

    def _cut(self, length: int) -> None:
        first = self._caches[0].first
        broken = first > len(self._ids) or any(cache.first != first for cache in self._caches)  # a draft failed after it had dropped rows
        if broken or length < len(self._ids) and first > max(0, length - self.window):  # rows that the window would reach are gone
            length = first = 0
        del self._ids[length:]
        for cache in self._caches:
            cache.first, cache.offset = first, len(self._ids) - first

    def _pass(self, rows: int) -> None:
        for cache in self._caches:
            cache.skip(rows)

    def _hold(self, ids: list[int], taps: mx.array) -> None:
        features = self.model.features(taps)
        for layer, cache in zip(self.model.layers, self._caches):
            cache.extend(layer.self_attn, features)

    def _propose(self, ids: list[int], taps: mx.array | None, anchor: int, k: int, choose: Callable) -> Draft:
        features = self.model.features(taps) if taps is not None else None
        block = self._embed(mx.array([[anchor] + [self.model.config.mask_token_id] * (k - 1)]))
        hidden = self.model(block, [c.bind(features) for c in self._caches])
        tokens, q = choose(self._head(hidden)[0])
        return Draft(tokens.tolist(), forwards=1, rows=k, q=q)
