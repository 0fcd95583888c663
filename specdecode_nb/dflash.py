"""The block-diffusion drafter DFlash: mask embeddings that read the target's layers and propose a block at once.

A block is the anchor (the last committed token) and masks, embedded by the target. Every layer lets the block attend to
itself in both directions and to the context, whose keys and values come from the target's own residual stream: the
tapped layers side by side, projected by ``fc`` and normalised. Row i predicts the token at its own position, read by the
target's head. Configuration keys and weight names are the published ones (:mod:`specdecode_nb.dflash_files`).
"""
from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

from .backend import mx, nn  # isort: skip

from mlx_lm.models.cache import KVCache
from mlx_lm.models.qwen3_next import Qwen3NextMLP

from .decoder import PREFILL_ROWS
from .drafters import Draft
from .taps import TappedModel
from .targets import Target


@dataclass(frozen=True)
class DFlashConfig:
    """What decides the drafter's arithmetic; every field is required in a file. ``block_size`` counts the anchor."""

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


class ContextCache(KVCache):
    """Keys and values of committed rows for one layer. A block reads its own beside them and leaves none behind."""

    def bind(self, features) -> Callable:
        """The ``attend`` of one block that follows the new context rows ``features`` [1, n, hidden] (None for none)."""

        def attend(attention: BlockAttention, x):
            start, n = self.offset, 0 if features is None else features.shape[1]
            rows = x if features is None else mx.concatenate([features, x], axis=1)
            keys, values = self.update_and_fetch(*attention.keys_values(rows, start))
            self.offset = start + n
            queries = attention.queries(x, start + n)
            return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=attention.scale)

        return attend

    def extend(self, attention: BlockAttention, features) -> None:
        """Add context rows without a block."""
        self.update_and_fetch(*attention.keys_values(features, self.offset))


def embed_and_head(target: Target) -> tuple[Callable, Callable]:
    """The target's embedding and its head, by reference."""
    text = target.model.language_model
    return text.model.embed_tokens, text.model.embed_tokens.as_linear if text.args.tie_word_embeddings else text.lm_head


class DFlashDrafter:
    """Proposes ``k - 1`` tokens after the anchor in one forward of the block ``[anchor, mask, ...]`` of k rows.

    The decoder sends the target's rows through :attr:`verifier`, which gives the target's own logits and keeps the taps.
    The context remembers the ids that it stands for. Whatever happened since the last block (a rejected draft, an
    undone cycle, rows decoded without this drafter, another session), rows that are not those of the history are
    dropped, and when rows are missing the history is run through the target once more, which the draft counts as
    forwards. So one drafter may serve several sessions; alternating between them is correct but pays that each time.

    Args:
        model: the drafter's weights, in the type of the target (:func:`specdecode_nb.dflash_files.read_dflash`).
    """

    def __init__(self, target: Target, model: DFlashModel, name: str = "dflash", metadata: dict | None = None):
        self.target, self.model, self.name, self.metadata = target, model, name, metadata or {}
        self.block_size = model.config.block_size
        self._embed, self._head = embed_and_head(target)
        self.verifier = TappedModel(target.model, model.config.target_layer_ids, self._receive)
        self._caches = [ContextCache() for _ in model.layers]
        self._ids: list[int] = []  # what the caches stand for
        self._pending: tuple[int, list[int], list[mx.array]] | None = None  # the latest forward: start, ids, taps
        self._owner: Callable = lambda: None  # a cache of the session that both belong to

    @property
    def context_ids(self) -> tuple[int, ...]:
        """The ids whose keys and values the draft cache holds: committed ones only."""
        return tuple(self._ids)

    def _receive(self, cache: list, start: int, ids: list[int], taps: list[mx.array]) -> None:
        self._serve(cache)
        if self._pending is not None and self._pending[0] + len(self._pending[1]) == start:
            # the target has gone on from all of them (a long prefill): hold keys and values instead of taps
            first, before, outputs = self._pending
            if first <= len(self._ids):
                self._cut(first)
                self._extend(before, outputs)
        self._pending = start, ids, taps

    def _serve(self, cache: list) -> None:
        if self._owner() is not cache[0]:
            self._cut(0)
            self._pending, self._owner = None, weakref.ref(cache[0])

    def _cut(self, length: int) -> None:
        del self._ids[length:]
        for cache in self._caches:
            cache.offset = length

    def _extend(self, ids: list[int], taps: list[mx.array]) -> None:
        features = self.model.features(mx.concatenate(taps, axis=-1))
        for layer, cache in zip(self.model.layers, self._caches):
            cache.extend(layer.self_attn, features)
        mx.eval([c.state for c in self._caches])
        self._ids += ids

    def _follow(self, past: list[int]) -> list[mx.array]:
        """Cut the context to what it shares with ``past``; taps of the rows after that, if the latest forward has them."""
        held = _common(self._ids, past)
        self._cut(held)
        if self._pending is None or self._pending[0] > held:
            return []
        start, ids, taps = self._pending
        end = start + _common(ids, past[start:])
        return [t[:, held - start : end - start] for t in taps] if end > held else []

    def _rebuild(self, past: list[int]) -> None:
        self._cut(0)
        cache = self.target.make_cache()
        for first in range(0, len(past), PREFILL_ROWS):
            ids = past[first : first + PREFILL_ROWS]
            self._extend(ids, self.verifier.taps(mx.array([ids]), cache)[1])
            mx.eval([c.state for c in cache])

    def draft(self, cache: list, history: list[int], k: int, cycle: int) -> Draft:
        """``history`` is every committed id; its last is the anchor, the others are the context."""
        self._serve(cache)
        past, rebuilt = history[:-1], 0
        taps = self._follow(past)
        held = len(self._ids) + (taps[0].shape[1] if taps else 0)
        if k < 2:  # nothing to propose, but the rows seen must not be lost
            if taps:
                self._extend(past[len(self._ids) : held], taps)
            return Draft([])
        if held < len(past):
            self._rebuild(past)
            taps, rebuilt = [], len(past)
        features = self.model.features(mx.concatenate(taps, axis=-1)) if taps else None
        block = self._embed(mx.array([[history[-1]] + [self.model.config.mask_token_id] * (k - 1)]))
        hidden = self.model(block, [c.bind(features) for c in self._caches])
        tokens = mx.argmax(self._head(hidden)[0], axis=-1).tolist()
        self._ids += past[len(self._ids) :]
        self._pending = None
        return Draft(tokens, forwards=1 + int(rebuilt > 0), rows=k + rebuilt)


def _common(a: list[int], b: list[int]) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    return n if a[:n] == b[:n] else next(i for i in range(n) if a[i] != b[i])
