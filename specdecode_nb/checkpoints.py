"""Find a checkpoint, by folder or hub id, and read it with mlx-lm's own classes after a look at every file.

Nothing is fetched unless it is asked for, and code that comes with a checkpoint is never run.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from .backend import mx  # isort: skip

from huggingface_hub import snapshot_download
from mlx.utils import tree_flatten
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS, load_model
from mlx_lm.utils import _get_classes as classes_of
from safetensors import SafetensorError, safe_open

from . import paths, smollm2
from .errors import BadInput, nearest
from .records import parse, read_text
from .released import PINS

EMBEDDED = ("tiny-hybrid",)
NAMED = (*EMBEDDED, smollm2.NAME)
LAYERS = 1000  # of a model at most: they are made one by one, before its weights are looked at
FILES = [pattern for pattern in DEFAULT_ALLOW_PATTERNS if not pattern.endswith(".py")]


def find(name: str, download: bool = False, revision: str | None = None) -> tuple[Path, str]:
    """The folder of a target, and what to call it.

    Args:
        name: an embedded name, that of the packaged model, a folder with a config.json, or a hub id "organisation/model".
        download: fetch a hub id that is not in the local cache; otherwise the network is not touched.
        revision: commit, tag or branch of a hub id; by default the pinned one of a published target, else "main".
    Raises:
        BadInput: nothing of that name, or not here and not to be fetched, or not to be had.
    """
    if name in EMBEDDED:
        return paths.models() / name, name
    if name == smollm2.NAME:
        return smollm2.folder(), name
    folder = Path(os.path.expanduser(name))  # of pathlib it raises where there is no such user
    if is_file(folder / "config.json"):
        return folder, folder.resolve().name
    if not paths.HUB_ID.fullmatch(name) or os.path.exists(folder):
        raise BadInput(f"There is no target {name!r}{nearest(name, NAMED)}; give a name ({', '.join(NAMED)}), "
                       "a local folder with a config.json or a hub id.")
    revision = revision or PINS.get(name)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES, local_files_only=not download)), name.split("/")[1]
    except Exception as error:  # of the hub's library, of the network or of a disk
        if not download:
            raise BadInput(f"There is no whole copy of {name!r}{f' at revision {revision}' if revision else ''} on this machine; "
                           "allow the download with download=True (--download), or give a local folder.") from None
        raise BadInput(f"{name!r} could not be downloaded ({_first(error)}); check the id, the revision and the network.") from None


def read(folder: Path, name: str) -> tuple:
    """The model of a folder as mlx-lm builds, sanitises and quantises it, and its configuration; weights are evaluated.

    Raises:
        BadInput: a missing, corrupt or truncated file, an unknown architecture, a tensor that is missing, unknown, of
            another shape, or not finite.
    """
    config = settings(folder / "config.json", f"target {name!r}")
    if odd := next((p.name for p in folder.iterdir() if p.exists() and not p.is_file() and not p.is_dir()), None):
        raise BadInput(f"The folder of target {name!r} holds {odd!r}, which is a pipe or a device; remove it.")
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise BadInput(f"The file config.json of target {name!r} gives the model type {kind!r}; restore it.")
    if not isinstance(config.get("text_config", {}), dict):
        raise BadInput(f"The config.json of target {name!r} does not describe a {kind} model (text_config is {config['text_config']!r}); restore it.")
    if config.get("model_file") is not None:
        raise BadInput(f"Target {name!r} asks to run its own code ({config['model_file']!r}), which is never done; use a model of mlx-lm's classes.")
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise BadInput(f"Target {name!r} has no model.safetensors; restore the file.")
    held: dict[str, str] = {}
    for path in files:
        check_whole(path)
        if twice := next((n for n in tensor_names(path) if held.setdefault(n, path.name) != path.name), None):
            raise BadInput(f"Both {held[twice]!r} and {path.name!r} of target {name!r} hold the tensor {twice!r}; remove the file that does not belong to it.")
    with blaming(f"The weights of target {name!r} are not those of a {kind} model"):
        return load_model(folder, lazy=True, get_model_classes=partial(_classes, name=name, file=files[0].name))


def _classes(config: dict, name: str, file: str) -> tuple:
    """mlx-lm's classes for ``config``, in the form that its loader wants; errors name the file, weights are looked at before they are taken."""
    kind = config["model_type"]
    try:
        model_class, args_class = classes_of(config)
    except (ValueError, AttributeError, ImportError):
        raise BadInput(f"Target {name!r} has model type {kind!r}, which mlx-lm does not know; use one of its models.") from None

    def take(model, weights, strict: bool = True):
        found = dict(weights)
        expect({k: v.shape for k, v in tree_flatten(model.parameters())}, {k: v.shape for k, v in found.items()}, file)
        check_finite(found, file)
        del model.load_weights  # the class's own again
        return model.load_weights(weights, strict=strict)

    def build(found: dict):
        with blaming(f"The config.json of target {name!r} does not describe a {kind} model"):
            for part in (found, found.get("text_config", {})):
                if not 0 < (layers := part.get("num_hidden_layers", 1)) <= LAYERS:
                    raise ValueError(f"num_hidden_layers is {layers}")
            model = model_class(args_class.from_dict(found))
        model.load_weights = partial(take, model)
        return model

    # its loader makes settings first and a model of them next; here the first step makes both
    return (lambda model: model), SimpleNamespace(from_dict=build)


@contextmanager
def blaming(complaint: str) -> Iterator[None]:
    """Whatever a library raises about a file that it cannot take becomes one sentence that names the file."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{complaint} ({_first(error)}); restore the files of the target.") from None


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".:")[:300] or type(error).__name__


# --- files ---

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


def check_whole(path: Path) -> None:
    """The header of a safetensors file against its size. Raises BadInput."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is no regular file")
        if path.stat().st_size > (room := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
            raise OSError(f"it has {path.stat().st_size:,} bytes, the memory of this machine {room:,}")
        with safe_open(str(path), framework="numpy") as handle:
            handle.keys()
    except FileNotFoundError:
        raise BadInput(f"There is no file {path.name!r} where it was expected; check the path.") from None
    except (SafetensorError, RuntimeError, ValueError, OSError, MemoryError) as error:
        raise _broken(path, error) from None


def _broken(path: Path, error: Exception) -> BadInput:
    return BadInput(f"The file {path.name!r} is not a whole safetensors file ({str(error).splitlines()[0]}); restore or download it again.")


def check_finite(tensors: dict, file: str) -> None:
    """Raises BadInput that names the first tensor with a number that is not finite."""
    odd = next((name for name, value in sorted(tensors.items()) if not mx.isfinite(value).all().item()), None)
    if odd is not None:
        raise BadInput(f"The tensor {odd!r} in {file!r} holds numbers that are not finite; restore or download the file again.")


def read_safetensors(path: Path) -> dict:
    """All tensors of a file, after its header has been checked against its size; numbers are finite. Raises BadInput."""
    check_whole(path)
    try:
        tensors = mx.load(str(path))
        if wide := next((name for name, value in tensors.items() if min(value.shape, default=0) < 0), None):
            raise ValueError(f"the shape of {wide!r} is beyond 31 bits")
        check_finite(tensors, path.name)
    except BadInput:
        raise
    except (RuntimeError, ValueError, OSError, MemoryError) as error:
        raise _broken(path, error) from None
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
