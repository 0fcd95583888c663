"""What is known of mlx-lm's model classes: where their layers, embedding and head are, and whose caches can be undone.

Nothing of mlx-lm is patched. A model of any class is taken if all its caches can be undone row by row: keys and values
that grow, or the Gated DeltaNet state of Qwen3.5 and Qwen3-Next. Sliding windows keep all rows and hide the old ones by
the model's own mask, in the families where the mask and not the cache says what a row sees.
"""
from __future__ import annotations

from collections.abc import Callable

from . import backend  # noqa: F401  isort: skip

from mlx_lm.models.base import gather_last_axis
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from .errors import BadInput
from .gdn import TAPED, RecurrentCache, Taped, adopt

TESTED = ("llama", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "gemma", "gemma2", "gemma3_text")
"""Families that the tests decode with; others are taken if their caches allow, and the card says that they are not among these."""
SLIDING = ("llama", "gemma3_text")
TAPPED = ("llama", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5")
"""Families whose residual stream is read after each layer; the embedding of the others is scaled, which a DFlash drafter does not know."""
CHAINED = ("llama", "qwen3", "qwen3_5")
"""Families of whose layer an MTP drafter is made."""
SUPPORTED = f"attention with a KVCache, sliding windows of {' and '.join(SLIDING)}, Gated DeltaNet of qwen3_5 and qwen3_next"


def text_of(model):
    """The module with the head: the model itself, or the language model of one that can also see."""
    return getattr(model, "language_model", model)


def family(model) -> str:
    """The module of mlx-lm that the text model comes from, such as "llama"; a model of another origin gives its own."""
    return type(text_of(model)).__module__.rsplit(".", 1)[-1]


def tower(model):
    """Embedding, layers and final norm: ``embed_tokens``, ``layers`` (the list itself) and ``norm``."""
    return text_of(model).model


def width(model) -> int:
    """Width of the residual stream."""
    return tower(model).norm.weight.size


def embed_and_head(target) -> tuple[Callable, Callable]:
    """The target's embedding and its head, by reference."""
    text, embed = text_of(target.model), tower(target.model).embed_tokens
    if "lm_head" not in text:
        return embed, embed.as_linear
    group = getattr(text, "sharding_group", None)  # set where mlx-lm has split the head over ranks, each of which has a part of the vocabulary
    return embed, text.lm_head if group is None else lambda x: gather_last_axis(text.lm_head(x), group)


def is_recurrent(layer) -> bool:
    return type(layer.get("linear_attn")) in TAPED or isinstance(layer.get("linear_attn"), Taped)


def take_over(model, name: str = "this model") -> None:
    """Give this one model caches that a transaction can undo, and the taped form of its Gated DeltaNet layers.

    Raises:
        BadInput: a layer whose cache cannot be undone; the model is then as it was.
    """
    layers, caches = list(model.layers), make_prompt_cache(model)
    if len(layers) != len(caches):
        raise BadInput(f"Target {name!r} ({family(model)}) has {len(caches)} caches for {len(layers)} layers, which cannot be undone row by row; "
                       f"supported are {SUPPORTED}.")
    kinds = [_kind(i, layer, cache, family(model), name) for i, (layer, cache) in enumerate(zip(layers, caches))]
    for layer, kind in zip(layers, kinds):
        if kind is RecurrentCache and not isinstance(layer.linear_attn, Taped):
            layer.linear_attn = adopt(layer.linear_attn)
    model.make_cache = lambda: [kind() for kind in kinds]
    model.sliding_layers = sum(isinstance(c, RotatingKVCache) for c in caches)


def _kind(i: int, layer, cache, found: str, name: str) -> type:
    """The undoable cache in the place of ``cache``. Raises BadInput."""
    if is_recurrent(layer):
        return RecurrentCache
    if type(cache) is KVCache or type(cache) is RotatingKVCache and found in SLIDING:
        return KVCache
    raise BadInput(f"Layer {i} of target {name!r} ({found}, {type(layer).__name__}) keeps its rows in {type(cache).__name__}, "
                   f"which cannot be undone row by row; supported are {SUPPORTED}.")


def drafters(model) -> tuple[list[str], dict[str, str]]:
    """Names of the drafters that can be made for ``model``, and why the others cannot."""
    found, fit, not_fit = family(model), ["ngram", "random"], {}
    if any("q_proj" in layer.get("self_attn", ()) for layer in getattr(model, "layers", ())):
        fit.append("uno")
    else:
        not_fit["uno"] = "no layer has the projections that it adapts"
    for name, families in (("dflash", TAPPED), ("mtp", CHAINED)):
        if found in families:
            fit.append(name)
        else:
            not_fit[name] = f"{found} is not among {', '.join(families)}"
    return fit, not_fit


def require(drafter: str, model, name: str) -> None:
    """Raises BadInput if a drafter called ``drafter`` cannot be made for the target ``name``."""
    fit, not_fit = drafters(model)
    if drafter not in fit:
        raise BadInput(f"Target {name!r} takes no {drafter} drafter: {not_fit[drafter]}; choose {' or '.join(fit)}.")
