"""The multi-token-prediction drafter: one more layer of the target's kind, chained from its last hidden row.

A row joins the target's normalised last hidden row at a position with the embedding of the next token, and predicts the
token after that. Its own output stands in for the hidden row of the next link. Names are those of Qwen3.5's ``mtp.*``.
"""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .backend import mx, nn  # isort: skip

from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache
from mlx_lm.models.qwen3_5 import DecoderLayer

from .drafters import Draft
from .errors import BadInput
from .taps import TapDrafter
from .targets import DTYPES, Target, expect, read_safetensors, write_safetensors

PREFIX = "mtp."
_MLP = "layers.0.mlp.gate_proj.weight"  # its rows say how wide the layer's MLP is; everything else is the target's


class MTPModel(nn.Module):
    """The drafter's own weights; embedding and head are the target's. ``width`` is that of the layer's MLP."""

    def __init__(self, target: Target, width: int):
        super().__init__()
        args = replace(target.model.language_model.args, intermediate_size=width, num_experts=0)
        norm = lambda: nn.RMSNorm(args.hidden_size, args.rms_norm_eps)  # noqa: E731
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = norm(), norm(), norm()
        self.fc = nn.Linear(2 * args.hidden_size, args.hidden_size, bias=False)
        self.layers = [DecoderLayer(args, args.full_attention_interval - 1)]

    def rows(self, hidden, embedded):
        """What the layer reads: hidden rows and embeddings of the next tokens, each [N, T, hidden] -> [N, T, hidden]."""
        return self.fc(mx.concatenate([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], axis=-1))

    def __call__(self, hidden, embedded, cache: KVCache):
        """Rows for the head and for the next link, [N, T, hidden]; the rows stay in ``cache``."""
        x = self.rows(hidden, embedded)
        return self.norm(self.layers[0](x, create_attention_mask(x, cache), cache))


class MTPDrafter(TapDrafter):
    """Proposes ``k - 1`` tokens one after another, each by a forward of one row of the extra layer.

    The layer's cache holds a row for every committed token but the first, which no hidden row precedes; the rows of a
    draft are dropped after it.

    Args:
        depth: links that it was trained for, so ``k`` is at most one more.
    """

    def __init__(self, target: Target, model: MTPModel, depth: int, name: str = "mtp", metadata: dict | None = None):
        super().__init__(target, [len(target.model.layers) - 1], [KVCache()], name, metadata)
        self.model, self.block_size = model, depth + 1
        self._norm = target.model.language_model.model.norm
        self._last: mx.array | None = None  # the hidden row of the last id held, [1, 1, hidden]

    def _cut(self, length: int) -> None:
        if length < len(self._ids):  # hidden rows further back are not kept
            self._ids, self._last = [], None
        self._caches[0].offset = max(0, len(self._ids) - 1)

    def _hold(self, ids: list[int], taps: mx.array) -> None:
        hidden = self._norm(taps)
        before = hidden[:, :-1] if self._last is None else mx.concatenate([self._last, hidden[:, :-1]], axis=1)
        if before.shape[1]:
            self.model(before, self._embed(mx.array([ids[-before.shape[1] :]])), self._caches[0])
        self._last = hidden[:, -1:]
        mx.eval(self._last)

    def _propose(self, ids: list[int], taps: mx.array | None, anchor: int, k: int, choose: Callable) -> Draft:
        known = [h for h in (self._last, None if taps is None else self._norm(taps)) if h is not None]
        if not known:  # a prompt of one token: there is no hidden row to start from
            return Draft([])
        hidden, cache = mx.concatenate(known, axis=1), self._caches[0]
        after = mx.array([(ids + [anchor])[-hidden.shape[1] :]])
        last, rows, drawn = hidden[:, -1:], hidden.shape[1] + k - 2, []
        for ahead in range(k - 1):
            hidden = self.model(hidden, self._embed(after), cache)[:, -1:]
            token, q = choose(self._head(hidden)[0], ahead)
            after = token[None]
            drawn.append((token, q))
        tokens = mx.concatenate([t for t, _ in drawn]).tolist()
        mx.eval(last)
        self._last = last
        cache.offset -= k - 1
        return Draft(tokens, forwards=k - 1, rows=rows, q=None if q is None else mx.concatenate([q for _, q in drawn]))


def read_mtp(path: Path, target: Target) -> tuple[MTPModel, dict]:
    """The drafter of a safetensors file in the type of ``target``, and its metadata (at least ``depth``).

    Raises:
        BadInput: a missing or damaged file, a tensor that is missing, unknown or of the wrong size, no depth.
    """
    tensors = read_safetensors(path)
    plain = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
    if len(plain) != len(tensors) or _MLP not in plain:
        odd = next((n for n in tensors if not n.startswith(PREFIX)), PREFIX + _MLP)
        raise BadInput(f"The file {path.name!r} is no MTP drafter: the tensor {odd!r} is {'not one of its' if odd in tensors else 'missing'}.")
    try:
        metadata = json.loads(mx.load(str(path), return_metadata=True)[1]["drafter"])
        depth = metadata["depth"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise BadInput(f"The file {path.name!r} does not say how deep its drafter was trained; export it again.") from None
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise BadInput(f"The file {path.name!r} gives the depth {depth!r}; it must be a whole number, 1 or more.")
    if getattr(target.model, "language_model", None) is None:
        raise BadInput(f"Target {target.name!r} has no layers to tap; use a model of the Qwen3.5 class.")
    model = MTPModel(target, plain[_MLP].shape[0])
    expect({k: v.shape for k, v in tree_flatten(model.parameters())}, {k: v.shape for k, v in plain.items()}, path.name)
    model.load_weights([(k, v.astype(DTYPES[target.dtype])) for k, v in plain.items()])
    model.eval()
    mx.eval(model.parameters())
    return model, metadata


def write_mtp(path: Path, model: MTPModel, metadata: dict) -> None:
    """One safetensors file in bfloat16, put in place whole. ``metadata`` has to hold ``depth``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, {PREFIX + k: v.astype(mx.bfloat16) for k, v in tree_flatten(model.parameters())},
                      {"format": "mlx", "drafter": json.dumps(metadata)})
