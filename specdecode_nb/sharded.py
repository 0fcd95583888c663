"""A target and its adapter split over several machines, by mlx-lm's own ``shard`` and MLX's own communication (tensor parallelism).

Every rank runs the same decoder on the same prompt. A rank holds a part of the heads and of the MLP of every layer (in Qwen3.5 also
of an untied head's vocabulary); embedding and norms are whole. MLX sums the parts after attention or recurrence and after the MLP, so
the residual stream, the logits and every decision are the same bits on all ranks if the sum is, and no rank need be told what another
decided. Nothing here sends anything of its own, but for the sum of an adapter's narrow product.

Start with ``mlx.launch``, and in every rank: ``group = mx.distributed.init()``; load target and drafter; ``part = shard(target, group)``;
an adapter goes through :func:`shard_adapter`; ngram and random drafters are used as they are; DFlash and MTP drafters are loaded for
``part`` and are whole on every rank.
"""
from __future__ import annotations

import copy
from dataclasses import dataclass, fields

from .backend import mx, nn  # isort: skip

from mlx.nn.layers.distributed import QuantizedShardedToAllLinear, ShardedToAllLinear

from .drafters import UnoDrafter
from .errors import BadInput
from .families import family
from .lora import GatedLoRALinear, RowGate
from .targets import Target, share

TESTED = ("llama", "qwen3", "qwen3_moe", "qwen3_5")
"""Families whose parts the tests decode with; mlx-lm splits others too, and these are taken if it does."""
HEADS = ("n_heads", "n_kv_heads", "num_attention_heads", "num_key_value_heads", "num_k_heads", "num_v_heads")


@dataclass(frozen=True)
class ShardedTarget(Target):
    """One rank's part of a target. :meth:`digest` is that of the whole, taken before it was split, so drafters know their target."""

    whole_digest: str = ""

    def digest(self) -> str:
        return self.whole_digest


def shard(target: Target, group=None) -> Target:
    """This rank's part of ``target``, which is left as it is; ``group``: an ``mx.distributed`` group, by default the global one.

    The whole target has been read on every rank; it is freed when nothing refers to it any more. A group of one gives ``target`` itself.

    Raises:
        BadInput: a family that mlx-lm cannot split, or sizes that the number of ranks does not divide.
    """
    group = group or mx.distributed.init()
    if group.size() == 1:
        return target
    model, ranks, found = share(target.model), group.size(), family(target.model)
    if not hasattr(model, "shard"):
        raise BadInput(f"Target {target.name!r} ({found}) cannot be split over {ranks} ranks: mlx-lm does not split this family; "
                       f"tested are {', '.join(TESTED)}.")
    odd = next(((name, n) for _, m in model.named_modules() for name in HEADS if isinstance(n := getattr(m, name, None), int) and n % ranks), None)
    if odd:  # mlx-lm would round down
        raise BadInput(f"Target {target.name!r} ({found}) has {odd[1]} heads ({odd[0]}), which {ranks} ranks do not divide; choose another number of ranks.")
    whole = target.digest()
    try:
        model.shard(group)
    except (ValueError, AssertionError) as error:
        raise BadInput(f"Target {target.name!r} ({found}) cannot be split over {ranks} ranks ({error}); choose another number of ranks.") from None
    mx.eval(model.parameters())
    return ShardedTarget(**{f.name: getattr(target, f.name) for f in fields(Target)} | {"model": model}, whole_digest=whole)


class SummedLoRALinear(GatedLoRALinear):
    """The adapter of a layer whose inputs are split and whose outputs are summed by the base itself: its narrow product is summed too."""

    def narrow(self, x):
        return mx.distributed.all_sum(super().narrow(x), group=self.base.group)


def shard_adapter(drafter: UnoDrafter, part: ShardedTarget, group=None) -> UnoDrafter:
    """This rank's part of an adapter drafter of the whole target, to draft for ``part`` as made by :func:`shard` for the same group.

    Raises BadInput for another kind of drafter, or one of another target.
    """
    group = group or mx.distributed.init()
    if not isinstance(drafter, UnoDrafter) or drafter.target.digest() != part.digest():
        raise BadInput(f"Drafter {drafter.name!r} is not an adapter of the target {part.name!r} that was split; load it for the whole target first.")
    if group.size() == 1:
        return drafter
    new, gate = copy.copy(drafter), RowGate(drafter._gate.scale)
    model, probe = share(part.model), share(drafter._model)
    adapted = [(i, owner, name, module) for i, layer in enumerate(drafter._model.layers) for owner in ("mlp", "self_attn", "linear_attn") if owner in layer
               for name, module in layer[owner].items() if isinstance(module, GatedLoRALinear)]
    for i, owner, name, module in adapted:
        inner, out = module.lora_a.shape[0], module.lora_b.shape[1]
        # a matrix of its own positions: what mlx-lm leaves of it says which rows and columns this rank has
        probe.layers[i][owner][name] = positions = nn.Linear(1, 1, bias=False)
        positions.weight = mx.arange(out * inner, dtype=mx.int32).reshape(out, inner)
    probe.shard(group)
    for i, owner, name, module in adapted:
        inner, kept, base = module.lora_a.shape[0], probe.layers[i][owner][name].weight, model.layers[i][owner][name]
        kind = SummedLoRALinear if isinstance(base, ShardedToAllLinear | QuantizedShardedToAllLinear) else GatedLoRALinear
        model.layers[i][owner][name] = kind(base, module.lora_a[kept[0] % inner], module.lora_b[:, kept[:, 0] // inner], gate)
        mx.eval(model.layers[i][owner][name].parameters())
    new.target, new._model, new._gate, new._masks = part, model, gate, {}
    return new
