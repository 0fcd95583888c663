"""Read and write a DFlash drafter in the published layout: a folder with config.json and model.safetensors.

Nothing is guessed: taps, mask id, block size and rope base must be stated, and the pair must fit (peers 3.2, 3.3, 8F).
"""
from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from .backend import mx  # isort: skip

from mlx.utils import tree_flatten

from .checkpoints import LAYERS, expect, read_safetensors, settings, write_safetensors
from .dflash import DFlashConfig, DFlashModel
from .errors import BadInput
from .families import require, width
from .records import write_atomic
from .targets import DTYPES, Target

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
NESTED = {"target_layer_ids", "mask_token_id", "block_size", "num_target_layers", "causal", "runtime_block_size", "draft_window_size"}
BORROWED = ("embed_tokens.weight", "lm_head.weight")  # of the target; extra copies in a file are left aside


def parse_config(found: dict, file: str = "config.json") -> DFlashConfig:
    """The configuration of a published drafter. Raises BadInput that names the key."""
    def refuse(text: str):
        return BadInput(f"The file {file!r} {text}")

    nested = found.get("dflash_config")
    if not isinstance(nested, dict):
        raise refuse("has no dflash_config; it does not describe a DFlash drafter.")
    if odd := sorted(set(nested) - NESTED):
        raise refuse(f"sets dflash_config.{odd[0]}, which this version does not know.")

    def one(name: str):
        """A key that may stand at the top or nested, the same in both."""
        values = [d[name] for d in (found, nested) if d.get(name) is not None]
        if not values:
            raise refuse(f"lacks {name}, which is never guessed; copy it from the drafter's release.")
        if any(v != values[0] for v in values[1:]):
            raise refuse(f"gives {name} twice, as {values[0]!r} and {values[1]!r}; keep the right one.")
        return values[0]

    def whole(name: str, value, least: int = 1) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise refuse(f"gives {name} as {value!r}; it must be a whole number, {least} or more.")
        return value

    def positive(name: str, value) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise refuse(f"gives {name} as {value!r}; it must be a positive number.")
        return float(value)

    for name, fine in {"attention_bias": (None, False), "hidden_act": (None, "silu"), "rope_scaling": (None,)}.items():
        if found.get(name) not in fine:
            raise refuse(f"sets {name} to {found[name]!r}, which this version does not support.")
    if nested.get("causal") not in (None, False):
        raise refuse("asks for a causal block; this version drafts blocks in both directions.")
    kinds = found.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise refuse("has layers other than full_attention, which this version does not support.")
    rope = found.get("rope_parameters") or {}
    if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) != "default":
        raise refuse(f"has rope_parameters {rope!r}; this version supports the default kind.")
    theta = [t for t in (found.get("rope_theta"), rope.get("rope_theta")) if t is not None]
    if not theta or any(t != theta[0] for t in theta[1:]):
        raise refuse(f"gives rope_theta as {theta or 'nothing'}, which is never guessed; state it once.")
    taps = nested.get("target_layer_ids")
    if not isinstance(taps, list) or not taps:
        raise refuse("lacks dflash_config.target_layer_ids, which is never guessed; copy it from the drafter's release.")
    taps = tuple(whole("target_layer_ids", t, 0) for t in taps)
    if list(taps) != sorted(set(taps)):
        raise refuse(f"lists target_layer_ids {list(taps)}; they must ascend.")
    if nested.get("mask_token_id") is None:
        raise refuse("lacks dflash_config.mask_token_id, which is never guessed; copy it from the drafter's release.")
    sizes = {name: whole(name, one(name)) for name in SIZES}
    if sizes["num_hidden_layers"] > LAYERS:
        raise refuse(f"has {sizes['num_hidden_layers']} layers, more than {LAYERS}.")
    if sizes["head_dim"] % 2:
        raise refuse(f"gives head_dim as {sizes['head_dim']}; positions turn pairs of numbers, so it must be even.")
    if sizes["num_attention_heads"] % sizes["num_key_value_heads"]:
        raise refuse(f"has {sizes['num_attention_heads']} heads for {sizes['num_key_value_heads']} of keys; one must divide the other.")
    return DFlashConfig(**sizes, rms_norm_eps=positive("rms_norm_eps", one("rms_norm_eps")), rope_theta=positive("rope_theta", theta[0]),
                        block_size=whole("block_size", one("block_size"), 2), num_target_layers=whole("num_target_layers", one("num_target_layers")),
                        target_layer_ids=taps, mask_token_id=whole("mask_token_id", nested["mask_token_id"], 0),
                        draft_window_size=whole("draft_window_size", one("draft_window_size"))
                        if any(d.get("draft_window_size") is not None for d in (found, nested)) else None)


def check_pair(c: DFlashConfig, target: Target) -> None:
    """Raises BadInput if a drafter of this configuration cannot read or write for ``target``."""
    require("dflash", target.model, target.name)
    facts = {"hidden_size": (c.hidden_size, width(target.model)), "vocab_size": (c.vocab_size, target.vocab_size),
             "num_target_layers": (c.num_target_layers, len(target.model.layers))}
    for name, (ours, theirs) in facts.items():
        if ours != theirs:
            raise BadInput(f"The drafter is for a target with {name} {ours}, but {target.name!r} has {theirs}; use the one made for it.")
    if c.target_layer_ids[-1] >= c.num_target_layers:
        raise BadInput(f"The drafter taps layer {c.target_layer_ids[-1]}, but {target.name!r} has layers 0 to {c.num_target_layers - 1}.")
    if c.mask_token_id >= target.vocab_size:
        raise BadInput(f"The mask id {c.mask_token_id} is outside the vocabulary of {target.vocab_size}; the drafter belongs to another target.")


def read_dflash(folder: Path, target: Target) -> tuple[DFlashModel, dict]:
    """The drafter of ``folder`` in the type of ``target``, and the metadata of its weights.

    Raises:
        BadInput: a missing or damaged file, a key or tensor that is missing, unknown or of the wrong size, another target.
    """
    path, weights = folder / "config.json", folder / "model.safetensors"
    config = parse_config(settings(path, f"drafter {folder.name!r}"), path.name)
    check_pair(config, target)
    try:
        model = DFlashModel(config)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:  # MLX has arrays of less than 2**31 rows
        raise BadInput(f"The file {path.name!r} of drafter {folder.name!r} describes no model that can be made ({str(error).splitlines()[0]}); restore it.") from None
    tensors = read_safetensors(weights)
    plain = {name.removeprefix("model."): value for name, value in tensors.items()}
    if len(plain) != len(tensors):
        raise BadInput(f"The drafter {folder.name!r} names one tensor with and without the prefix 'model.'; export it again.")
    for name in BORROWED:
        if name in plain and tuple(plain.pop(name).shape) != (config.vocab_size, config.hidden_size):
            raise BadInput(f"The tensor {name!r} of drafter {folder.name!r} has another vocabulary than the target; such drafters are not supported.")
    expect({k: v.shape for k, v in tree_flatten(model.parameters())}, {k: v.shape for k, v in plain.items()}, weights.name)
    model.load_weights([(k, v.astype(DTYPES[target.dtype])) for k, v in plain.items()])
    model.eval()
    mx.eval(model.parameters())
    try:
        metadata = json.loads(mx.load(str(weights), return_metadata=True)[1].get("drafter", "{}"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"The metadata of drafter {folder.name!r} cannot be read ({error}); export it again.") from None
    return model, metadata if isinstance(metadata, dict) else {}


def config_file(c: DFlashConfig) -> dict:
    """config.json of a drafter, under the published keys."""
    top = asdict(c)
    nested = {name: top.pop(name) for name in ("target_layer_ids", "mask_token_id", "draft_window_size")}
    if nested["draft_window_size"] is None:
        del nested["draft_window_size"]
    return {"model_type": "qwen3", "architectures": ["DFlashDraftModel"], "hidden_act": "silu", "attention_bias": False, "dtype": "bfloat16",
            "layer_types": ["full_attention"] * c.num_hidden_layers, "tie_word_embeddings": False, **top,
            "dflash_config": nested | {"target_layer_ids": list(c.target_layer_ids)}}


def write_dflash(folder: Path, model: DFlashModel, metadata: dict) -> None:
    """config.json and model.safetensors in bfloat16, each put in place whole."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.astype(mx.bfloat16) for k, v in tree_flatten(model.parameters())}
    write_safetensors(folder / "model.safetensors", tensors, {"format": "mlx", "drafter": json.dumps(metadata)})
    write_atomic(folder / "config.json", json.dumps(config_file(model.config), indent=1) + "\n")
