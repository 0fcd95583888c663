"""Load a target: an unmodified autoregressive model with caches that a transaction can undo."""
from __future__ import annotations

import hashlib
import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

from .backend import mx, nn  # isort: skip

from mlx.utils import tree_flatten, tree_map, tree_map_with_path
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.utils import load_tokenizer, quantize_model

from .checkpoints import EMBEDDED, blaming, find, read
from .errors import BadInput, nearest
from .families import TESTED, drafters, family, take_over, text_of, tower
from .transaction import SCHEMES

__all__ = ["EMBEDDED", "Target", "digest_of", "load_target", "own_arrays", "quantised", "share", "take_over"]
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model")
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}
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
        """A fresh cache per layer: :class:`.gdn.RecurrentCache` for Gated DeltaNet, mlx-lm's KVCache for attention."""
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
        bits = {name: module.bits for name, module in self.model.named_modules() if "scales" in module}
        extra = {f"{stem}.{name}" for stem in bits for name in ("scales", "biases")}
        return sum(v.size * 32 // bits[stem] if (stem := name.removesuffix(".weight")) in bits else v.size for name, v in found.items() if name not in extra)

    def digest(self) -> str:
        """blake2b-256 over every weight in order of name: name, shape, dtype, raw bytes (published system, section 0)."""
        return digest_of(self.model)

    def tokenizer_digest(self) -> str:
        """blake2b-256 over the tokenizer's map of tokens to ids: two that differ in one id differ here, whatever their sizes."""
        pairs = sorted((int(i), token) for token, i in self.tokenizer.get_vocab().items())
        return hashlib.blake2b(json.dumps(pairs).encode(), digest_size=32).hexdigest()

    def card(self) -> str:
        """What this is and what it supports, in three lines."""
        kinds = [type(c).__name__ for c in self.make_cache()]
        recurrent, sliding = kinds.count("RecurrentCache"), getattr(self.model, "sliding_layers", 0)
        layers = f"{recurrent} Gated DeltaNet + {len(kinds) - recurrent} attention layers"
        layers += f" ({sliding} with a sliding window; all rows are kept and the window is a mask)" if sliding else ""
        words = f" with {self.bits}-bit matrices" if self.bits else ""
        found = family(self.model)
        note = "" if found in TESTED else f"; {found} is not among the families that the tests decode with"
        fit, not_fit = drafters(self.model)
        return "\n".join([
            f"{self.name}: {self.parameters() / 1e6:.1f} M parameters in {self.dtype}{words}, {layers}, vocabulary {self.vocab_size}",
            f"class {found}, context {self.context}; undone by {', '.join(SCHEMES) if recurrent else 'moving an offset'}{note}",
            f"drafters: {', '.join(fit)}" + "".join(f"; no {name}: {reason}" for name, reason in not_fit.items())])


def digest_of(model) -> str:
    h = hashlib.blake2b(digest_size=32)
    for name, value in sorted(tree_flatten(model.parameters())):
        raw = value.view(mx.uint16) if value.dtype == mx.bfloat16 else value
        for part in (name, str(tuple(value.shape)), str(value.dtype)):
            h.update(part.encode())
        h.update(memoryview(raw))
    return h.hexdigest()


def load_target(name: str = "tiny-hybrid", dtype: str | None = None, download: bool = False, revision: str | None = None) -> Target:
    """Load an embedded target by name, a local folder in mlx-lm's layout (config.json, model*.safetensors, tokenizer) or a hub id.

    Args:
        dtype: "float32" or "bfloat16" for all that is not quantised; default "float32", the type in which identity is exact
            on a CPU. A checkpoint that is stored and computes in this type is left as it is, tensor by tensor.
        download: fetch a hub id that is not in the local cache; without it the network is never touched.
        revision: commit, tag or branch of a hub id; by default the pinned one of a published target, else "main".

    Raises:
        BadInput: unknown name, missing, corrupt, truncated or wrong-shaped file, unsupported architecture, layer or dtype.
    """
    dtype = "float32" if dtype is None else dtype
    if not isinstance(name, str | Path) or not isinstance(dtype, str):
        raise BadInput(f"The target is {name!r} in {dtype!r}; give a name or a folder, and float32 or bfloat16.")
    if dtype not in DTYPES:
        raise BadInput(f"There is no dtype {dtype!r}{nearest(dtype, DTYPES)}; choose float32 or bfloat16.")
    name = str(name)
    folder, called = find(name, download, revision)
    model, config = read(folder, name)
    with blaming(f"The weights of target {name!r} cannot be computed with as its config.json says"):
        _cast(model, DTYPES[dtype])
    if dtype != "float32" and mx.default_device().type == mx.cpu and any(type(m) is SwitchLinear for _, m in model.named_modules()):
        raise BadInput(f"Target {name!r} has experts, which MLX multiplies in {dtype} on a GPU alone; load it in float32.")
    model.eval()
    take_over(model, called)
    mx.eval(model.parameters())
    if not any((folder / file).is_file() for file in TOKENIZERS):  # transformers would make an empty one
        raise BadInput(f"The tokenizer of target {name!r} is missing; restore tokenizer.json.")
    with blaming(f"The tokenizer of target {name!r} cannot be read"):
        # else transformers would ask on the terminal whether to run code that the folder names, and warn of prompts that are refused here
        tokenizer = load_tokenizer(folder, {"trust_remote_code": False, "model_max_length": 10**30}, eos_token_ids=config.get("eos_token_id"))
    with blaming(f"The config.json of target {name!r} does not fit its weights or its tokenizer"):
        # one row through the model, so that a setting of the wrong kind is found before any work
        vocabulary = model(mx.array([[0]]), cache=model.make_cache())
        mx.eval(vocabulary)
        target = Target(model, tokenizer, called, dtype, _context(model, config), vocabulary.shape[-1], _bits(model))
        if not all(0 <= i < target.vocab_size for i in target.eos_ids) or not target.context > 0:
            raise ValueError(f"end ids {sorted(target.eos_ids)}, context {target.context}")
    return target


def _cast(model, wanted) -> None:
    """Every number that is not packed to ``wanted``, unless most are stored so and the model computes in it: then all stay as stored.
    Weights of another type here and there (norms in float32) can widen every activation, and the model then computes in that type."""
    sizes: dict = {}
    for _, v in tree_flatten(model.parameters()):
        if mx.issubdtype(v.dtype, mx.floating):
            sizes[v.dtype] = sizes.get(v.dtype, 0) + v.size
    if not sizes:
        raise ValueError("none of them are floating-point numbers that MLX computes with")
    if max(sizes, key=sizes.get) == wanted and model(mx.array([[0]])).dtype == wanted:  # the type is known without computing
        return
    casts = getattr(model, "cast_predicate", lambda path: True)  # some parameters (A_log) mlx-lm never narrows
    model.update(tree_map_with_path(lambda path, v: v.astype(wanted if casts(path) else mx.float32) if mx.issubdtype(v.dtype, mx.floating) else v,
                                    model.parameters()))


def _context(model, config: dict) -> int:
    """The most positions, by the configuration or else by mlx-lm's default for it. Raises ValueError."""
    text = config.get("text_config")
    stated = [d.get("max_position_embeddings") for d in (config, text if isinstance(text, dict) else {})]
    stated.append(getattr(getattr(text_of(model), "args", None), "max_position_embeddings", None))
    found = next((value for value in stated if value is not None), None)
    if not isinstance(found, int) or isinstance(found, bool):
        raise ValueError(f"max_position_embeddings is {found!r}")
    return found


def _bits(model) -> int | None:
    """Bits of a weight in the widest-spread kind of quantised matrix; None if there is none."""
    sizes: dict[int, int] = {}
    for _, module in model.named_modules():
        if "scales" in module:
            sizes[module.bits] = sizes.get(module.bits, 0) + module.weight.size
    return max(sizes, key=sizes.get, default=None)


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
    if not isinstance(tower(model).embed_tokens, nn.QuantizedEmbedding):
        raise BadInput(f"Groups of {group} do not divide the rows of {target.name!r}; choose smaller ones.")
    return replace(target, model=own_arrays(model), bits=bits)


def own_arrays(model):
    """``model`` itself, with arrays that no other model refers to."""
    model.update(tree_map(mx.array, model.parameters()))
    mx.eval(model.parameters())
    return model
