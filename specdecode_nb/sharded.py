"""A target split over several machines, by mlx-lm's own ``shard`` and MLX's own communication (tensor parallelism).

Every rank runs the same decoder on the same prompt. A rank holds a part of the heads and of the MLP of every layer (in Qwen3.5 also of an
untied head's vocabulary); embedding, norms and a tied head are whole. MLX sums the parts after attention or recurrence and after the MLP, so
the residual stream, the logits and every decision are the same bits on all ranks if each sum is, and no rank need be told what another
decided. There is no other message.

Start with ``mlx.launch``, and in every rank: load the target and its drafter; ``part = shard(target)``; an adapter goes through
:func:`.sharded_lora.shard_adapter`; ngram and random drafters are used as they are; DFlash and MTP drafters are loaded for ``part`` and are
whole on every rank. Ranks must be given the same prompt, options and seed: nothing checks it, and ranks that disagree wait for each other.
"""
from __future__ import annotations

from dataclasses import dataclass, fields

from .backend import mx
from .errors import BadInput
from .families import family
from .targets import Target, share

TESTED = ("llama", "qwen3", "qwen3_moe", "qwen3_5")
"""Families whose parts the tests decode with; mlx-lm splits others too, and these are taken if their caches are."""
HEADS = ("n_heads", "n_kv_heads", "num_attention_heads", "num_key_value_heads", "num_k_heads", "num_v_heads")


@dataclass(frozen=True)
class ShardedTarget(Target):
    """One rank's part of a target. :meth:`digest` is that of the whole, taken before it was split, so that drafters know their target."""

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
    model, ranks, found = share(target.model), group.size(), family(target.model)
    if ranks == 1:
        return target
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
