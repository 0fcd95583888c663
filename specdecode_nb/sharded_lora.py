"""An adapter split as its target is (:mod:`.sharded`): where a layer's outputs are split B is cut, where its inputs are A is cut."""
from __future__ import annotations

import copy

from .backend import mx, nn  # isort: skip

from mlx.nn.layers.distributed import QuantizedShardedToAllLinear, ShardedToAllLinear

from .drafters import UnoDrafter
from .errors import BadInput
from .lora import GatedLoRALinear, RowGate
from .sharded import ShardedTarget
from .targets import share


class SummedLoRALinear(GatedLoRALinear):
    """The adapter of a layer whose inputs are split and which sums its outputs: the update is added to this rank's part, so one sum serves both."""

    def __init__(self, summing: nn.Module, lora_a: mx.array, lora_b: mx.array, gate: RowGate):
        kind = nn.Linear if isinstance(summing, ShardedToAllLinear) else nn.QuantizedLinear
        base = kind.__new__(kind)
        nn.Module.__init__(base)
        base.__dict__.update(summing.__dict__, _no_grad=set(summing._no_grad))
        dict.update(base, {name: value for name, value in summing.items() if name != "bias"})
        super().__init__(base, lora_a, lora_b, gate)
        self._bias = summing.get("bias")

    def __call__(self, x):
        y = mx.distributed.all_sum(super().__call__(x), group=self.base.group)
        return y if self._bias is None else y + self._bias  # once, not once a rank


def shard_adapter(drafter: UnoDrafter, part: ShardedTarget, group=None) -> UnoDrafter:
    """This rank's part of an adapter drafter of the whole target, to draft for ``part``, made by :func:`.sharded.shard` for the same group.

    A group of one gives ``drafter`` itself. Raises BadInput for another kind of drafter, or one of another target.
    """
    group = group or mx.distributed.init()
    if not isinstance(drafter, UnoDrafter) or drafter.target.digest() != part.digest():
        raise BadInput(f"Drafter {drafter.name!r} is not an adapter of the target {part.name!r} that was split; load an adapter for the whole target.")
    if group.size() == 1:
        return drafter
    model, probe, gate = share(part.model), share(drafter._model), RowGate(drafter._gate.scale)
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
        model.layers[i][owner][name] = made = kind(base, module.lora_a[kept[0] % inner], module.lora_b[:, kept[:, 0] // inner], gate)
        mx.eval(made.parameters())
    new = copy.copy(drafter)
    new.target, new._model, new._gate, new._masks = part, model, gate, {}
    return new
