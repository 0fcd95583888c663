"""What ``specdecode-nb doctor`` looks at: everything that has spoilt a measurement or an installation before.

What a package can do is tried, not read off its version; nothing of a foreign package but MLX and mlx-lm is imported.
"""
from __future__ import annotations

import ast
import importlib
import importlib.metadata
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from . import __version__, blas, condition, paths
from .environment import PACKAGES, installed, machine, package_digest, tf32
from .errors import BadInput

Finding = tuple[str, str, str]
"""Item, what was found, note."""

MODULES = {"mx": "mlx.core", "nn": "mlx.nn", "optim": "mlx.optimizers"}  # what the package calls them
NAMESAKES = ("dflash", "dflash-mlx")  # distributions that bring a command and drafters of their own


def examine() -> list[Finding]:
    """Every finding, in the order of printing.

    Loads MLX and the embedded targets where that is possible; what is missing or broken is a row, not an error. Raises BadInput
    as :func:`blas.select` does.
    """
    chosen, device = blas.select(), _device()
    rows = [("machine", machine()["class"], machine()["platform"]), ("specdecode_nb", __version__, f"sources {package_digest()[:12]}"),
            ("python", platform.python_version(), "")]
    rows += [(name, installed(name) or "missing", "") for name in PACKAGES]
    rows.append(device)
    threads = f"; threads: {chosen['threads']}" if chosen["threads"] else ""
    rows.append(("BLAS", f"{chosen['name']} {chosen['version'] or ''}".strip(), chosen["how"] + threads))
    rows.append(("TF32", tf32(), "MLX_ENABLE_TF32=0, set before MLX loads, is needed where identity is claimed on M5-class or CUDA GPUs"))
    rows += _condition(condition.readings())
    lacking = [] if "mlx.core" not in sys.modules else _names() + _abilities()
    if "mlx.core" in sys.modules and not lacking:
        rows.append(_drafters())
    return rows + (_traps() + _commands() + _registries() + lacking or [("traps", "none found", "")])


def _device() -> Finding:
    try:
        import mlx.core as mx
    except ImportError as error:
        return "device", "MLX cannot be imported", f"{type(error).__name__}; see the traps below"
    return "device", str(mx.default_device()), f"Metal {'yes' if mx.metal.is_available() else 'no'}, CUDA {'yes' if mx.cuda.is_available() else 'no'}"


def _condition(reading: dict) -> list[Finding]:
    """Priority, load, power and heat, and what follows for timings."""
    load, other, power = reading.get("load_1min"), reading.get("other_cores"), reading.get("power")
    said = condition.reasons([reading])
    return [("priority", f"nice {reading['nice']}", "a positive value slows this process when others run"),
            ("load", "not readable" if load is None else f"{load:.1f} in the last minute, {reading['load_per_core']:.2f} a core",
             "other work cannot be told from this process" if other is None else f"other work on {other:.2f} cores now; up to {condition.OTHER_CORES} counts as quiet"),
            ("power and heat", ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in power.items()) if power else "not readable",
             "" if power else "note the power mode by hand; a throttled machine has no valid timing"),
            ("timing", "degraded" if said else "quiet", f"captions would say: {condition.marking({'condition': [reading]})}" if said else "captions would carry no mark")]


# --- capabilities ---

def needed() -> list[tuple[str, str]]:
    """(module, dotted name) of everything that the sources of this package take from MLX and mlx-lm, as they are written."""
    found = set()
    for path in Path(__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module.split(".")[0] in ("mlx", "mlx_lm"):
                found |= {(node.module, name.name) for name in node.names}
            names: list[str] = []
            while isinstance(node, ast.Attribute):
                names.insert(0, node.attr)
                node = node.value
            if names and isinstance(node, ast.Name) and node.id in MODULES:
                found.add((MODULES[node.id], ".".join(names)))
    return sorted(found)


def _names() -> list[Finding]:
    """One row a library that lacks something the sources name."""
    missing: dict[str, list[str]] = {}
    for module, dotted in needed():
        try:
            value = importlib.import_module(module)
            for name in dotted.split("."):
                value = getattr(value, name) if hasattr(value, name) else importlib.import_module(f"{module}.{name}")
        except ImportError:
            missing.setdefault(module.split(".")[0].replace("_", "-"), []).append(f"{module}.{dotted}")
    return [(f"trap: {library} lacks", ", ".join(names), f"this package calls it; install the {library} of constraints.txt") for library, names in missing.items()]


def _recurrence() -> None:
    """Qwen3.5 of mlx-lm takes the caches of this package, and a transaction undoes rows in both kinds."""
    from mlx_lm.models import qwen3_5

    from .backend import mx
    from .targets import take_over
    from .transaction import Transaction

    model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict({
        "model_type": "qwen3_5", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "rms_norm_eps": 1e-6, "vocab_size": 32, "max_position_embeddings": 64, "linear_num_value_heads": 2, "linear_num_key_heads": 1,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "tie_word_embeddings": True, "full_attention_interval": 4,
        "rope_parameters": {"type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}))
    take_over(model)
    cache, plain = model.make_cache(), model.make_cache()
    with Transaction(cache) as tx:
        mx.eval(model(mx.array([[3, 5, 7]]), cache=cache))
        tx.commit(1)
    model(mx.array([[3]]), cache=plain)
    after, wanted = (model(mx.array([[9]]), cache=c) for c in (cache, plain))
    if [c.offset for c in cache] != [2] * 4 or not mx.allclose(after, wanted, atol=1e-4).item():
        raise RuntimeError("a transaction does not undo its layers exactly")


def _plain_loop() -> None:
    """mlx-lm's own loop decodes and reports its prefill."""
    from mlx_lm.generate import generate_step

    from .backend import mx

    told: list[int] = []
    steps = list(generate_step(mx.array([1, 2, 3]), lambda ids, cache=None, **_: mx.zeros((1, ids.shape[1], 8)), max_tokens=2, prompt_cache=[],
                               prompt_progress_callback=lambda done, total: told.append(done)))
    if len(steps) != 2 or not told:
        raise RuntimeError(f"{len(steps)} tokens of 2, {len(told)} reports")


def _files() -> None:
    """A safetensors file of MLX keeps its metadata."""
    from .backend import mx

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "a.safetensors")
        mx.save_safetensors(path, {"a": mx.zeros((2,))}, metadata={"drafter": "{}"})
        if mx.load(path, return_metadata=True)[1].get("drafter") != "{}":
            raise RuntimeError("the metadata is gone")


ABILITIES = {"Qwen3.5 over undoable caches": _recurrence, "mlx-lm's plain loop": _plain_loop, "metadata of safetensors files": _files}


def _abilities() -> list[Finding]:
    """One row for each ability that fails when tried."""
    rows = []
    for name, attempt in ABILITIES.items():
        try:
            attempt()
        except Exception as error:  # a library that has changed may raise anything
            rows.append((f"trap: {name}", "fails when tried", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"))
    return rows


def _drafters() -> Finding:
    """Which trained drafters the embedded targets have, each loaded for its target."""
    from .drafters import TRAINED, load_drafter, place
    from .targets import EMBEDDED, load_target

    found, notes = [], []
    for name in EMBEDDED:
        good = []
        try:
            target = load_target(name)
        except BadInput as error:
            notes.append(str(error))
            continue
        for drafter in TRAINED:
            if not place(drafter, name).exists():
                notes.append(f"{name} has no {drafter}")
                continue
            try:
                load_drafter(drafter, target)
                good.append(drafter)
            except BadInput as error:
                notes.append(f"{drafter} does not load: {error}")
        found.append(f"{name}: {', '.join(good) or 'none'}")
    return "drafters", "; ".join(found) or "no target loads", "; ".join(notes)


# --- packaging ---

def _traps() -> list[Finding]:
    """Known packaging traps that this environment is in."""
    rows = []
    mlx, spec = installed("mlx"), find_spec("mlx")
    backends = [name for name in ("mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "mlx-metal") if installed(name)]
    if spec is not None and spec.origin is not None:  # the real one is a namespace package and has no file of its own
        rows.append(("trap: shadow", Path(spec.origin).name, "a module or package named mlx hides the installed one; run from another folder"))
    if not backends:
        have = f"mlx {mlx}" if mlx else "no mlx"
        rows.append(("trap: no backend", have, "mlx-lm does not bring one on Linux; install '.[cpu]' or '.[cuda]'"))
    if len(backends) > 1:
        rows.append(("trap: two backends", ", ".join(backends), "they overwrite each other's files; remove all and install one"))
    for name in backends:
        if installed(name) != mlx:
            rows.append(("trap: versions", f"mlx {mlx}, {name} {installed(name)}", "they must agree; install both again together"))
    if sys.platform != "darwin" and not shutil.which("g++"):
        rows.append(("trap: no C++ compiler", "g++ missing", "on a Linux CPU MLX calls g++ to compile fused kernels; install it"))
    pip = installed("pip")
    if pip and int(pip.split(".")[0]) < 22:
        rows.append(("trap: old pip", pip, "it cannot install this package in place, or new wheels; python -m pip install -U pip"))
    return rows


def _commands() -> list[Finding]:
    """Commands that two or more installed distributions claim: one of them answers, the others are silently shadowed."""
    claims: dict[str, set[str]] = {}
    for entry in importlib.metadata.entry_points(group="console_scripts"):
        if entry.dist:
            claims.setdefault(entry.name, set()).add(entry.dist.name.lower().replace("_", "-"))
    return [(f"trap: command {name}", ", ".join(sorted(owners)), "each installs a command of this name and the last one wins; give each its own environment")
            for name, owners in sorted(claims.items()) if len(owners) > 1]


def _registries() -> list[Finding]:
    """Drafter registries of other packages that do not name a target of ours, by the text of their files: none is imported."""
    rows = []
    for name in NAMESAKES:
        found = set().union(*_registered(name))
        unknown = [target for target in (p.name for p in sorted(paths.models().glob("*/"))) if target not in found]
        if found and unknown:
            rows.append((f"trap: registry of {name}", f"{name} {installed(name)}", f"it does not name {', '.join(unknown)}; name target and drafter by path"))
    return rows


def _registered(distribution: str) -> Iterator[set[str]]:
    """The texts in each module of an installed distribution that fills a name ending in REGISTRY at its top level."""
    try:
        files = importlib.metadata.distribution(distribution).files or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        try:
            tree = ast.parse(Path(file.locate()).read_bytes()) if file.suffix == ".py" else ast.Module([], [])
        except (OSError, SyntaxError, ValueError):
            continue
        names = [t.id for node in tree.body for t in getattr(node, "targets", [getattr(node, "target", None)]) if isinstance(t, ast.Name)]
        if any(n.endswith("REGISTRY") for n in names):
            yield {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
