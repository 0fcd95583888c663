"""Load a target: an unmodified autoregressive model with caches that a transaction can undo."""
from __future__ import annotations

import hashlib
import io
import json
import os
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

from .backend import mx, nn  # isort: skip

from mlx.utils import tree_flatten, tree_map, tree_map_with_path
from mlx_lm.models import qwen3_5
from mlx_lm.models.cache import KVCache
from mlx_lm.utils import load_tokenizer, quantize_model
from safetensors import SafetensorError, safe_open

from . import paths
from .errors import BadInput, nearest
from .gdn import RecurrentCache, adopt
from .records import parse, read_text

EMBEDDED = ("tiny-hybrid",)
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}
LAYERS = 1000  # of a model at most: they are made one by one, before its weights are looked at
BITS, GROUPS = (4, 8), (32, 64, 128)


@dataclass(frozen=True)
class Target:
    """The authoritative model. Nothing here or in a drafter changes its weights; :meth:`digest` proves it.

    ``model(ids, cache=cache)`` takes int32 ids [1, T] and returns logits [1, T, vocab]; row i predicts position i + 1.
    ``bits`` of a weight in the quantised matrices, None if none is; ``dtype`` is that of everything else.
    """

    model: object
    tokenizer: object
    name: str
    dtype: str
    context: int
    vocab_size: int
    bits: int | None = None

    def make_cache(self) -> list:
        """A fresh cache per layer: :class:`RecurrentCache` for Gated DeltaNet, mlx-lm's KVCache for attention."""
        return self.model.make_cache()

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a text, from the tokenizer's own configuration."""
        return frozenset(int(i) for i in self.tokenizer.eos_token_ids)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, raw: no chat template, no special tokens added."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def parameters(self) -> int:
        """How many weights; those of a quantised matrix are counted as they were, its scales and biases are not."""
        found = dict(tree_flatten(self.model.parameters()))
        packed = {name.removesuffix(".scales") for name in found if name.endswith(".scales")}
        extra = {f"{stem}.{name}" for stem in packed for name in ("scales", "biases")}
        return sum(v.size * 32 // self.bits if name.removesuffix(".weight") in packed else v.size for name, v in found.items() if name not in extra)

    def digest(self) -> str:
        """blake2b-256 over every weight in order of name: name, shape, dtype, raw bytes (published system, section 0)."""
        return digest_of(self.model)

    def tokenizer_digest(self) -> str:
        """blake2b-256 over the tokenizer's map of tokens to ids: two that differ in one id differ here, whatever their sizes."""
        pairs = sorted((int(i), token) for token, i in self.tokenizer.get_vocab().items())
        return hashlib.blake2b(json.dumps(pairs).encode(), digest_size=32).hexdigest()

    def card(self) -> str:
        """One line: what this is and what it supports."""
        kinds = [type(c).__name__ for c in self.make_cache()]
        layers = f"{kinds.count('RecurrentCache')} Gated DeltaNet + {kinds.count('KVCache')} attention layers"
        words = f" with {self.bits}-bit matrices" if self.bits else ""
        return f"{self.name}: {self.parameters() / 1e6:.1f} M parameters in {self.dtype}{words}, {layers}, vocabulary {self.vocab_size}"


def digest_of(model) -> str:
    h = hashlib.blake2b(digest_size=32)
    for name, value in sorted(tree_flatten(model.parameters())):
        raw = value.view(mx.uint16) if value.dtype == mx.bfloat16 else value
        for part in (name, str(tuple(value.shape)), str(value.dtype)):
            h.update(part.encode())
        h.update(memoryview(raw))
    return h.hexdigest()


def load_target(name: str = "tiny-hybrid", dtype: str | None = None) -> Target:
    """Load an embedded target by name, or a local folder in mlx-lm's layout (config.json, *.safetensors, tokenizer).

    Args:
        dtype: "float32" or "bfloat16"; default "float32", the type in which identity is exact on a CPU.

    Raises:
        BadInput: unknown name, missing, corrupt, truncated or wrong-shaped file, unsupported architecture or dtype.
    """
    dtype = "float32" if dtype is None else dtype
    if not isinstance(name, str | Path) or not isinstance(dtype, str):
        raise BadInput(f"The target is {name!r} in {dtype!r}; give a name or a folder, and float32 or bfloat16.")
    if dtype not in DTYPES:
        raise BadInput(f"There is no dtype {dtype!r}{nearest(dtype, DTYPES)}; choose float32 or bfloat16.")
    folder = paths.models() / name if name in EMBEDDED else Path(name)
    if not is_file(folder / "config.json"):
        raise BadInput(f"There is no target {name!r}{nearest(name, EMBEDDED)}; give an embedded name ({', '.join(EMBEDDED)}) "
                       "or a local folder with a config.json.")
    config = settings(folder / "config.json", f"target {name!r}")
    if odd := next((p.name for p in folder.iterdir() if p.exists() and not p.is_file() and not p.is_dir()), None):
        raise BadInput(f"The folder of target {name!r} holds {odd!r}, which is a pipe or a device; remove it.")
    if config.get("model_type") != "qwen3_5":
        raise BadInput(f"Target {name!r} has model type {config.get('model_type')!r}; this version supports qwen3_5.")
    with _blaming(f"The config.json of target {name!r} does not describe a Qwen3.5 model"):
        arguments = qwen3_5.ModelArgs.from_dict(config)
        if not 0 < (layers := arguments.text_config.get("num_hidden_layers", 1)) <= LAYERS:
            raise ValueError(f"num_hidden_layers is {layers}")
        model = qwen3_5.Model(arguments)
    weights = {}
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise BadInput(f"Target {name!r} has no model.safetensors; restore the file.")
    for path in files:
        weights |= read_safetensors(path)
    with _blaming(f"The weights of target {name!r} are not those of a Qwen3.5 model"):
        weights = model.sanitize(weights)
    expect({k: v.shape for k, v in tree_flatten(model.parameters())}, {k: v.shape for k, v in weights.items()}, files[0].name)
    model.load_weights(list(weights.items()))
    # mlx-lm keeps some parameters (A_log) in the type of the file, or float32
    casts = model.cast_predicate
    model.update(tree_map_with_path(lambda path, v: v.astype(DTYPES[dtype] if casts(path) else mx.float32), model.parameters()))
    model.eval()
    take_over(model)
    mx.eval(model.parameters())
    if not (folder / "tokenizer.json").is_file():  # transformers would make an empty one
        raise BadInput(f"The tokenizer of target {name!r} is missing; restore tokenizer.json.")
    with _blaming(f"The tokenizer of target {name!r} cannot be read"):
        # else transformers would ask on the terminal whether to run code that the folder names, and warn of prompts that are refused here
        tokenizer = load_tokenizer(folder, {"trust_remote_code": False, "model_max_length": 10**30}, eos_token_ids=config.get("eos_token_id"))
    text = model.language_model.args
    target = Target(model, tokenizer, name if name in EMBEDDED else folder.resolve().name, dtype,
                    text.max_position_embeddings, text.vocab_size)
    with _blaming(f"The config.json of target {name!r} does not fit its weights or its tokenizer"):
        # one row through the model, so that a setting of the wrong kind is found before any work
        mx.eval(model(mx.array([[0]]), cache=target.make_cache()))
        if not all(0 <= i < target.vocab_size for i in target.eos_ids) or not target.context > 0:
            raise ValueError(f"end ids {sorted(target.eos_ids)}, context {target.context}")
    return target


@contextmanager
def _blaming(complaint: str):
    """Whatever a library raises about a file that it cannot take becomes one sentence that names the file."""
    try:
        yield
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(f"{complaint} ({reason.rstrip('.')}); restore the files of the target.") from None


def take_over(model) -> None:
    """Give this one model the taped Gated DeltaNet layers and caches that a transaction can undo."""
    for layer in model.layers:
        if layer.is_linear:
            layer.linear_attn = adopt(layer.linear_attn)
    linear = [layer.is_linear for layer in model.layers]
    model.make_cache = lambda: [RecurrentCache() if is_linear else KVCache() for is_linear in linear]


def share(module: nn.Module) -> nn.Module:
    """A new tree of modules over the same arrays; replacing a submodule in it leaves the original alone."""
    new = type(module).__new__(type(module))
    nn.Module.__init__(new)
    new.__dict__.update(module.__dict__, _no_grad=set(module._no_grad))  # freezing one must not freeze the other
    for name, value in module.items():
        if isinstance(value, nn.Module):
            value = share(value)
        elif isinstance(value, list):
            value = [share(v) if isinstance(v, nn.Module) else v for v in value]
        dict.__setitem__(new, name, value)
    return new


def quantised(target: Target, bits: int, group: int = 64) -> Target:
    """A copy of ``target`` whose matrices, embedding and tied head included, mlx-lm's own quantiser has rounded (affine).

    Args:
        bits: 4 or 8 a weight.
        group: weights that share a scale and a bias; matrices whose rows it does not divide stay as they are.

    Returns:
        A target of the same name with a digest of its own; it shares no array and no module with ``target``.
    Raises:
        BadInput: another number of bits or weights a group, a target that is quantised, an embedding that ``group`` does not divide.
    """
    if bits not in BITS or group not in GROUPS:
        raise BadInput(f"A target cannot be put in {bits!r} bits by groups of {group!r}; choose 4 or 8 bits and groups of 32, 64 or 128.")
    if target.bits is not None:
        raise BadInput(f"Target {target.name!r} has {target.bits}-bit matrices already; quantise the original.")
    model = share(target.model)
    with redirect_stdout(io.StringIO()):  # it prints the bits a weight
        quantize_model(model, {}, group, bits)
    if not isinstance(model.language_model.model.embed_tokens, nn.QuantizedEmbedding):
        raise BadInput(f"Groups of {group} do not divide the rows of {target.name!r}; choose smaller ones.")
    return replace(target, model=own_arrays(model), bits=bits)


def own_arrays(model):
    """``model`` itself, with arrays that no other model refers to."""
    model.update(tree_map(mx.array, model.parameters()))
    mx.eval(model.parameters())
    return model


def is_file(path: Path) -> bool:
    """Whether there is a regular file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def settings(path: Path, whose: str) -> dict:
    """The JSON object in a file of a model's folder. Raises BadInput."""
    found = parse(read_text(path, f"file of settings for {whose}"), f"The file {path.name} of {whose}", "restore it")
    if not isinstance(found, dict):
        raise BadInput(f"The file {path.name} of {whose} holds no settings; restore it.")
    return found


def tensor_names(path: Path) -> list[str]:
    """What a safetensors file holds, by its header alone; nothing if it has none (reading it says what is wrong)."""
    try:
        with safe_open(str(path), framework="numpy") as handle:
            return list(handle.keys())
    except (SafetensorError, OSError, MemoryError):
        return []


def read_safetensors(path: Path) -> dict:
    """All tensors of a file, after its header has been checked against its size; numbers are finite. Raises BadInput."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is no regular file")
        if path.stat().st_size > (room := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
            raise OSError(f"it has {path.stat().st_size:,} bytes, the memory of this machine {room:,}")
        with safe_open(str(path), framework="numpy") as handle:
            handle.keys()
        tensors = mx.load(str(path))
        if wide := next((name for name, value in tensors.items() if min(value.shape, default=0) < 0), None):
            raise ValueError(f"the shape of {wide!r} is beyond 31 bits")
        odd = next((name for name, value in sorted(tensors.items()) if not mx.isfinite(value).all().item()), None)
    except FileNotFoundError:
        raise BadInput(f"There is no file {path.name!r} where it was expected; check the path.") from None
    except (SafetensorError, RuntimeError, ValueError, OSError, MemoryError) as error:
        raise BadInput(f"The file {path.name!r} is not a whole safetensors file ({str(error).splitlines()[0]}); "
                       "restore or download it again.") from None
    if odd is not None:
        raise BadInput(f"The tensor {odd!r} in {path.name!r} holds numbers that are not finite; restore or download the file again.")
    return tensors


def write_safetensors(path: Path, tensors: dict, metadata: dict) -> None:
    """One safetensors file, put in place whole. Raises OSError where there is no room or no permission."""
    scratch = path.with_name(path.stem + ".writing.safetensors")
    try:
        mx.save_safetensors(str(scratch), tensors, metadata=metadata)
    except RuntimeError as error:  # what MLX raises for a file that it cannot write
        scratch.unlink(missing_ok=True)
        raise OSError(f"{path.name} cannot be written: {str(error).splitlines()[0]}") from None
    os.replace(scratch, path)


def expect(wanted: dict, found: dict, file: str) -> None:
    """Names and shapes must agree exactly. Raises BadInput that names the first difference."""
    for kind, names in (("lacks", wanted.keys() - found.keys()), ("has an unknown", found.keys() - wanted.keys())):
        if names:
            raise BadInput(f"The file {file!r} {kind} tensor {min(names)!r} ({len(names)} in all); it does not fit this model.")
    for name in sorted(wanted):
        if tuple(wanted[name]) != tuple(found[name]):
            raise BadInput(f"The tensor {name!r} in {file!r} has shape {tuple(found[name])}, not {tuple(wanted[name])}; "
                           "it belongs to another model.")
