"""Token-conditional LoRA: ``y = W x + m (alpha / r) (x A) B`` with a 0/1 gate ``m`` per row (published system, 1.10).

The adapted model is a second tree of modules that shares every weight with the target by reference, so the target
itself stays as it is. Rows with gate 0 give the target's own bits. The update is never merged, since rows differ.
"""
from __future__ import annotations

import json
from pathlib import Path

from .backend import mx, nn  # isort: skip

from mlx.utils import tree_flatten, tree_unflatten

from .checkpoints import expect, read_safetensors, write_safetensors
from .errors import BadInput
from .targets import share

PUBLISHED = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
             "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
DELTANET = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj")
SCALE = 16.0
LARGEST = 1e4  # of a weight; far beyond it products overflow, and an infinite update times a gate of 0 is no number


class RowGate:
    """Which rows of the next forward are adapted. One per adapted model, so two drafters never see each other."""

    def __init__(self, scale: float = SCALE):
        self.scale = scale
        self.factors: mx.array | None = None

    def rows(self, mask) -> None:
        """``mask``: 0/1 of shape [B, T] for the next forwards, or None for all rows off."""
        self.factors = None if mask is None else mx.array(mask)[..., None] * self.scale


class GatedLoRALinear(nn.Module):
    """A frozen linear layer and its gated update; ``lora_a`` [in, r], ``lora_b`` [r, out], both float32."""

    def __init__(self, base: nn.Module, lora_a: mx.array, lora_b: mx.array, gate: RowGate):
        super().__init__()
        self.base, self.lora_a, self.lora_b = base, lora_a, lora_b
        self._gate = gate
        self.base.freeze()

    def fuse(self, *_, **__):
        """Merging, by the name that mlx-lm has for it. Raises BadInput, always."""
        raise BadInput("This adapter cannot be merged into its base: its gate is off on the seed row and on every row that is verified, so one set of "
                       "weights cannot serve both; keep the adapter beside the target.")

    def __call__(self, x):
        y = self.base(x)
        factors = self._gate.factors
        if factors is None:
            return y
        if factors.shape[:2] != x.shape[:2]:
            raise ValueError(f"The row gate has shape {factors.shape[:2]} but the rows are {x.shape[:2]}.")
        # the gate multiplies the r-wide product: r multiplications a row instead of one per output
        narrow = (x.astype(mx.float32) @ self.lora_a) * factors
        return mx.addmm(y.astype(mx.float32), narrow, self.lora_b).astype(y.dtype)


def attach(model, rank: int, modules=PUBLISHED, scale: float = SCALE, seed: int = 0):
    """An adapted view of ``model`` with A ~ N(0, 0.01^2) and B = 0, and its gate (all rows off).

    Returns:
        (adapted model, RowGate). Only ``lora_a`` and ``lora_b`` are trainable in the adapted model.
    """
    gate, adapted = RowGate(scale), share(model)
    adapted.freeze()
    key = mx.random.key(seed)
    for layer in adapted.layers:
        for path in modules:
            owner, name = path.split(".")
            if owner in layer and name in layer[owner]:
                base = layer[owner][name]
                key, sub = mx.random.split(key)
                out, inner = base.weight.shape
                if isinstance(base, nn.QuantizedLinear):  # whose weights lie packed in 32-bit words
                    inner *= 32 // base.bits
                a = 0.01 * mx.random.normal((inner, rank), key=sub)
                layer[owner][name] = GatedLoRALinear(base, a, mx.zeros((rank, out)), gate)
    return adapted, gate


def adapter_weights(adapted) -> dict[str, mx.array]:
    """The trainable tensors by their path in the model: of Qwen3.5 the published names, ``language_model.model.layers.{i}....lora_a`` and ``lora_b``."""
    return {k: v for k, v in tree_flatten(adapted.parameters()) if k.endswith(("lora_a", "lora_b"))}


def save_adapter(path: Path, adapted, metadata: dict, half: bool = False) -> None:
    """One safetensors file; ``half`` rounds to bfloat16, which loading widens again. Raises OSError."""
    tensors = {k: v.astype(mx.bfloat16) if half else v for k, v in adapter_weights(adapted).items()}
    write_safetensors(path, tensors, {"format": "mlx", "adapter": json.dumps(metadata)})


def load_adapter(path: Path, model):
    """Attach the adapter of a file to ``model``; rank and modules are read from its tensors, names and shapes checked.

    Returns:
        (adapted model, RowGate, metadata). A file without metadata (the released one) has scale 16.0.
    Raises:
        BadInput: not a safetensors file, or tensors that do not fit this model.
    """
    found, metadata = read_safetensors(path), _metadata(path)
    return *adapt(model, found, path.name, float(metadata["scale"])), metadata


def adapt(model, found: dict, file: str, scale: float):
    """(adapted model, RowGate): the adapter whose tensors are ``found``, under any prefix, attached to ``model``; ``file`` is for messages.

    Raises:
        BadInput: tensors that do not fit this model, or far too large ones, or such a scale.
    """
    suffix = {name: name[name.index("layers.") + 7 :] for name in found if "layers." in name and name.endswith((".lora_a", ".lora_b"))}
    if len(suffix) != len(found) or not found:
        odd = min(set(found) - set(suffix), default="nothing")
        raise BadInput(f"The file {file!r} is not an adapter: it holds {odd!r}, not only lora_a and lora_b of layers.")
    if len(set(suffix.values())) != len(found):
        raise BadInput(f"The adapter {file!r} names one tensor under two prefixes; export it again.")
    modules = tuple(dict.fromkeys(".".join(name.split(".")[1:3]) for name in sorted(suffix.values())))
    # the part before "layers." differs between exports of the same model
    stem = next(name for name, _ in tree_flatten(model.parameters()) if "layers." in name).split("layers.")[0] + "layers."
    found = {stem + suffix[name]: value for name, value in found.items()}
    unknown = [m for m in modules if m not in PUBLISHED + DELTANET]
    if unknown:
        raise BadInput(f"The adapter {file!r} adapts {unknown[0]!r}, which this version does not know.")
    rank = next((v.shape[1] for k, v in sorted(found.items()) if k.endswith("lora_a") and v.ndim == 2), 0)
    large = next((k for k, v in sorted(found.items()) if v.size and mx.abs(v.astype(mx.float32)).max().item() > LARGEST), None)
    if large:
        raise BadInput(f"The tensor {large!r} in {file!r} holds numbers beyond {LARGEST:g}; the adapter is damaged, export it again.")
    if not scale <= LARGEST:  # an infinite update times a gate of 0 again
        raise BadInput(f"The adapter {file!r} has the scale {scale:g}; beyond {LARGEST:g} it is damaged, export it again.")
    whole = next((k for k, v in sorted(found.items()) if not mx.issubdtype(v.dtype, mx.floating)), None)
    if whole:
        raise BadInput(f"The tensor {whole!r} in {file!r} holds {found[whole].dtype}, not floating-point numbers; export it again.")
    adapted, gate = attach(model, rank, modules, scale)
    expect({k: v.shape for k, v in adapter_weights(adapted).items()}, {k: v.shape for k, v in found.items()}, file)
    adapted.update(tree_unflatten([(k, v.astype(mx.float32)) for k, v in found.items()]))
    mx.eval(adapter_weights(adapted))
    return adapted, gate


def _metadata(path: Path) -> dict:
    _, metadata = mx.load(str(path), return_metadata=True)
    try:
        read = {"scale": SCALE} | json.loads(metadata.get("adapter", "{}"))
        if not 0 < float(read["scale"]) < float("inf"):
            raise ValueError(f"scale {read['scale']!r}")
        return read
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput(f"The metadata of {path.name!r} cannot be read ({error}); export the adapter again.") from None
