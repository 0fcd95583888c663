"""An adapter in the layout of PEFT: a folder with adapter_config.json and adapter_model.safetensors, written and read back.

The names and the transposed orientation are PEFT's (``lora_A.weight`` [r, in], ``lora_B.weight`` [out, r]; system of the
report, 2). PEFT has no word for the gate: the adapter is off on the seed row and on every row that is verified. So the gate
is written into the metadata of the weights, and a program that loads the folder without it adapts every row, which is
another model. For the same reason nothing here merges (:meth:`.lora.GatedLoRALinear.fuse` says so).
"""
from __future__ import annotations

import json
from pathlib import Path

from .backend import mx
from .checkpoints import is_file, read_safetensors, settings, write_safetensors
from .errors import BadInput
from .lora import adapt, adapter_weights
from .records import write_atomic

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
HEAD = "base_model.model."
PLAIN = {"bias": "none", "fan_in_fan_out": False, "use_dora": False, "use_rslora": False, "lora_bias": False, "rank_pattern": {}, "alpha_pattern": {},
         "modules_to_save": None}
"""Settings of PEFT that change the arithmetic, at the values that leave it as it is here."""
OTHERS = ("use_qalora", "target_parameters", "trainable_token_indices", "layer_replication", "alora_invocation_tokens", "arrow_config")
"""Newer ones of that kind; they must be absent or empty."""
GATE = "off on the seed row and on every row that is verified, on for the other rows of a draft"


def is_peft(folder: Path) -> bool:
    return is_file(folder / CONFIG)


def write_peft(folder: Path, adapted, base: str, metadata: dict, stem: str = "model.") -> None:
    """Export an adapter (:func:`.lora.attach`, :func:`.lora.load_adapter`), float32, each file put in place whole.

    Args:
        base: what the adapter was trained on, a hub id or a name; PEFT wants it.
        metadata: kept beside the gate, such as the digest of the target and the recipe.
        stem: what stands before ``layers.`` in PyTorch's model: "model." in a text model, "model.language_model." in one that can also see.
    """
    weights = adapter_weights(adapted)
    named = {name[name.index("layers.") :]: value for name, value in sorted(weights.items())}
    rank = next(value.shape[1] for name, value in named.items() if name.endswith("lora_a"))
    scale = next(module._gate.scale for _, module in adapted.named_modules() if "lora_a" in module)
    ends = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight"}
    tensors = {HEAD + stem + name[:-6] + ends[name[-6:]]: mx.contiguous(value.T) for name, value in named.items()}
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "inference_mode": True, "r": rank, "lora_alpha": scale * rank,
              "lora_dropout": 0.0, "target_modules": sorted({".".join(name.split(".")[2:4]) for name in named}), **PLAIN}
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / WEIGHTS, tensors, {"format": "pt", "adapter": json.dumps(metadata | {"scale": scale, "gate": GATE})})
    write_atomic(folder / CONFIG, json.dumps(config, indent=1, sort_keys=True) + "\n")


def read_peft(folder: Path, model):
    """The adapter of a folder, attached to ``model`` and gated as any other: (adapted model, RowGate, metadata).

    Raises:
        BadInput: a missing or damaged file, another kind of adapter, a setting that changes the arithmetic, tensors that do not fit.
    """
    scale = _scale(folder)
    tensors, (_, kept) = read_safetensors(folder / WEIGHTS), mx.load(str(folder / WEIGHTS), return_metadata=True)
    found = {}
    for name, value in tensors.items():
        end = next((ours for theirs, ours in ((".lora_A.weight", ".lora_a"), (".lora_B.weight", ".lora_b")) if name.endswith(theirs)), None)
        if end is None or value.ndim != 2:
            raise BadInput(f"The file {WEIGHTS!r} holds {name!r}, which is no lora_A or lora_B of a linear layer; such adapters are not supported.")
        found[name[: -len(".lora_A.weight")] + end] = mx.contiguous(value.T)  # so that products are those of an adapter of our own
    try:
        metadata = json.loads(kept.get("adapter", "{}"))
        if not isinstance(metadata, dict):
            raise ValueError(repr(metadata))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"The metadata of {WEIGHTS!r} cannot be read ({error}); export the adapter again.") from None
    return *adapt(model, found, WEIGHTS, scale), metadata | {"scale": scale}


def _scale(folder: Path) -> float:
    """alpha / r. Raises BadInput for a configuration of anything but plain LoRA."""
    config = settings(folder / CONFIG, f"adapter {folder.name!r}")
    if config.get("peft_type") != "LORA":
        raise BadInput(f"The file {CONFIG!r} of {folder.name!r} does not describe a LoRA adapter; only those are supported.")
    odd = next((n for n, fine in PLAIN.items() if config.get(n) not in (fine, None)), None) or next((n for n in OTHERS if config.get(n)), None)
    if odd:
        raise BadInput(f"The file {CONFIG!r} of {folder.name!r} sets {odd} to {config[odd]!r}, which this version does not support.")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) or not 0 < v < float("inf") for v in (rank, alpha)):
        raise BadInput(f"The file {CONFIG!r} of {folder.name!r} gives r as {rank!r} and lora_alpha as {alpha!r}; both must be positive numbers.")
    return alpha / rank
