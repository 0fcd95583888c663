"""A small draft model: a few Llama layers between the target's own embedding and head, which drafts token by token.

It is what mlx-lm's speculative decoding takes as ``draft_model``; :class:`SmallDrafter` drafts with it in this package's decoder.
"""
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from .backend import mx, nn  # isort: skip

from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache
from mlx_lm.models.llama import TransformerBlock

from .acceptance import Greedy
from .checkpoints import expect, read_safetensors, write_safetensors
from .decoder import PREFILL_ROWS
from .drafters import Draft, same_target
from .errors import BadInput
from .families import embed_and_head, family, text_of
from .targets import DTYPES, Target

PREFIX = "small."
_MLP = "layers.0.mlp.gate_proj.weight"  # its rows say how wide the MLP is


class SmallModel(nn.Module):
    """``layers`` Llama layers of the target's width with an MLP of ``mlp``, and a norm; embedding and head are the target's by
    reference and no parameters of this model. Raises BadInput for a target of another family."""

    def __init__(self, target: Target, layers: int, mlp: int):
        super().__init__()
        if family(target.model) != "llama":
            raise BadInput(f"A small draft model is made of Llama layers, but {target.name!r} is of the family {family(target.model)}; choose a Llama target.")
        args = replace(text_of(target.model).args, num_hidden_layers=layers, intermediate_size=mlp, layer_types=None)
        self.layers = [TransformerBlock(args) for _ in range(layers)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self._borrowed = embed_and_head(target)  # a tuple with such a name is no part of the parameters

    def hidden(self, ids: mx.array, cache: list | None = None) -> mx.array:
        """Normalised rows [P, T, hidden] of ids [P, T]."""
        x, cache = self._borrowed[0](ids), cache or [None] * len(self.layers)
        mask = create_attention_mask(x, cache[0])
        for layer, c in zip(self.layers, cache, strict=True):
            x = layer(x, mask, c)
        return self.norm(x)

    def head(self, hidden: mx.array) -> mx.array:
        """Logits [..., vocab] of normalised rows."""
        return self._borrowed[1](hidden)

    def __call__(self, ids: mx.array, cache: list | None = None) -> mx.array:
        """Logits [P, T, vocab] of ids [P, T], as mlx-lm calls its models."""
        return self.head(self.hidden(ids, cache))


class SmallDrafter:
    """Proposes ``k - 1`` tokens one after another. Its caches stand for ids that it remembers; what a new history does not share is cut."""

    exact, samples, name = 0, True, "small"

    def __init__(self, model: SmallModel, metadata: dict | None = None):
        self.model, self.metadata = model, metadata or {}
        self._cache, self._ids = [KVCache() for _ in model.layers], []

    def draft(self, cache: list, history: list[int], k: int, cycle: int, rule: Greedy = Greedy()) -> Draft:
        """``history`` is every committed id. Its last is always forwarded; ``rule`` chooses the tokens."""
        if k < 2:
            return Draft([])
        held = next((i for i, (a, b) in enumerate(zip(self._ids, history[:-1])) if a != b), min(len(self._ids), len(history) - 1))
        del self._ids[held:]  # now, so that a draft that is interrupted leaves nothing wrong behind
        for c in self._cache:
            c.offset = held
        rows, drawn, first = history[held:], [], max(0, len(history) - held - 1)
        for start in range(0, first, PREFILL_ROWS):  # the head is not computed for rows that nobody asks about
            self.model.hidden(mx.array([rows[start : min(start + PREFILL_ROWS, first)]]), self._cache)
            mx.eval([c.state for c in self._cache])
        last = mx.array(rows[-1:])
        for ahead in range(k - 1):
            token, q = rule.propose(self.model(last[None], self._cache)[0], len(history) + ahead, history)
            drawn.append((token, q))
            last = token
        tokens = mx.concatenate([token for token, _ in drawn]).tolist()
        self._ids = history + tokens[:-1]
        q = None if drawn[0][1] is None else mx.concatenate([q for _, q in drawn])
        return Draft(tokens, forwards=k - 1 + (first > 0), rows=len(rows) + k - 2, q=q)


def write_small(path: Path, model: SmallModel, metadata: dict) -> None:
    """One safetensors file in bfloat16, put in place whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, {PREFIX + k: v.astype(mx.bfloat16) for k, v in tree_flatten(model.parameters())},
                      {"format": "mlx", "drafter": json.dumps(metadata)})


def read_small(path: Path, target: Target) -> tuple[SmallModel, dict]:
    """The draft model of a file in the type of ``target``, and its metadata.

    Raises:
        BadInput: a missing or damaged file, a tensor that is missing, unknown or of the wrong size, another target.
    """
    tensors = read_safetensors(path)
    plain = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
    if len(plain) != len(tensors) or _MLP not in plain:
        raise BadInput(f"The file {path.name!r} is no small draft model, whose tensors begin with {PREFIX!r}; train one with specdecode_nb.train.small.")
    model = SmallModel(target, len({name.split(".")[1] for name in plain if name.startswith("layers.")}), plain[_MLP].shape[0])
    expect({k: v.shape for k, v in tree_flatten(model.parameters())}, {k: v.shape for k, v in plain.items()}, path.name)
    try:
        metadata = json.loads(mx.load(str(path), return_metadata=True)[1]["drafter"])
    except (KeyError, ValueError, RecursionError):
        raise BadInput(f"The metadata of {path.name!r} cannot be read; export it again.") from None
    metadata = same_target(f"draft model {path.name!r}", metadata, target, foreign=False)
    model.load_weights([(k, v.astype(DTYPES[target.dtype])) for k, v in plain.items()])
    model.eval()
    mx.eval(model.parameters())
    return model, metadata
