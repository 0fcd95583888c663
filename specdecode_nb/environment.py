"""The record of where a number was measured, and the questions ``specdecode-nb doctor`` answers."""
from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import platform
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from . import __version__, blas

PACKAGES = ("mlx", "mlx-lm", "numpy", "scipy", "transformers", "safetensors")


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def package_digest() -> str:
    """sha256 over the package's own sources, so that rows name the code that made them."""
    h, folder = hashlib.sha256(), Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        h.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return h.hexdigest()


def machine() -> dict:
    """Processor, cores and system; no name of a host or a person."""
    model, flags = platform.processor() or platform.machine(), ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        facts = dict(line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
        facts = {k.strip(): v.strip() for k, v in facts.items()}
        model, flags = facts.get("model name", model), facts.get("flags", "")
    wide = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags.split()), None)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = [platform.machine(), f"{cores} cores"] + ([wide] if wide else [])
    return {"class": f"{model} ({', '.join(words)})", "cores": cores, "platform": f"{platform.system()} {platform.release().split('-')[0]}"}


def tf32() -> str:
    value = os.environ.get("MLX_ENABLE_TF32")
    return {"0": "off", None: "MLX's default (on where the device has it)"}.get(value, "on")


def provenance() -> dict:
    """Machine, versions, BLAS, TF32 flag, date and package digest of this process."""
    versions = {"python": platform.python_version(), "specdecode_nb": __version__}
    versions |= {name.replace("-", "_"): installed(name) for name in PACKAGES}
    return {"machine": machine(), "versions": versions, "blas": blas.report(), "tf32": tf32(),
            "date": datetime.date.today().isoformat(), "package_digest": package_digest()}


def doctor() -> list[tuple[str, str, str]]:
    """(item, what was found, note) for everything that has spoilt a measurement or an installation before."""
    facts, rows = machine(), []
    rows.append(("machine", facts["class"], facts["platform"]))
    rows.append(("python", platform.python_version(), "3.11 or newer is needed"))
    rows += [(name, installed(name) or "missing", "") for name in PACKAGES]
    chosen = blas.select()
    rows.append(("BLAS", f"{chosen['name']} {chosen['version'] or ''}".strip(), f"{chosen['how']}; threads: {chosen['threads']}"))
    rows.append(("MLX_ENABLE_TF32", os.environ.get("MLX_ENABLE_TF32", "not set"), "set it to 0 before MLX loads where identity is claimed on M5 or CUDA"))
    rows.append(_device())
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    rows.append(("C++ compiler", "found" if compiler else "missing", "MLX compiles fused kernels with it on a Linux CPU"))
    rows.append(("priority", f"nice {os.getpriority(os.PRIO_PROCESS, 0)}", "a positive value slows this process when others run"))
    load = os.getloadavg()[0]
    rows.append(("load", f"{load:.1f}", "other work is running: do not time now" if load > 0.5 else "quiet"))
    rows.append(("power and heat", *_power()))
    rows += _traps(load)
    return rows


def _device() -> tuple[str, str, str]:
    try:
        import mlx.core as mx
    except ImportError as error:
        return "device", "MLX cannot be imported", f"{type(error).__name__}; install the extra cpu on Linux"
    metal = mx.metal.is_available()
    cuda = hasattr(mx, "cuda") and mx.cuda.is_available()
    return "device", str(mx.default_device()), f"Metal {'yes' if metal else 'no'}, CUDA {'yes' if cuda else 'no'}"


def _power() -> tuple[str, str]:
    supplies = sorted(Path("/sys/class/power_supply").glob("*/status")) if Path("/sys/class/power_supply").exists() else []
    zones = sorted(Path("/sys/class/thermal").glob("thermal_zone*/temp")) if Path("/sys/class/thermal").exists() else []
    found = [f"battery {p.read_text().strip().lower()}" for p in supplies]
    try:
        found += [f"{int(p.read_text()) / 1000:.0f} degrees C" for p in zones[:1]]
    except (OSError, ValueError):
        pass
    return (", ".join(found), "") if found else ("not readable", "record the power mode by hand; a throttled machine has no valid timing")


def _traps(load: float) -> list[tuple[str, str, str]]:
    rows = []
    both = [name for name in ("dflash", "dflash-mlx") if installed(name)]
    if both:
        rows.append(("trap: dflash", ", ".join(both), "two packages install a command of this name; ours is specdecode-nb"))
    if installed("mlx-lm") and sys.platform != "darwin" and not (installed("mlx-cpu") or find_spec("mlx.core")):
        rows.append(("trap: no backend", "mlx-lm without mlx", "on Linux mlx-lm does not bring MLX; install the extra cpu or cuda"))
    if installed("mlx-cpu") and installed("mlx-cpu") != installed("mlx"):
        rows.append(("trap: versions", f"mlx {installed('mlx')}, mlx-cpu {installed('mlx-cpu')}", "they must agree; reinstall mlx[cpu]"))
    shadow = [p for p in (Path.cwd() / "mlx", Path.cwd() / "mlx.py") if p.exists()]
    if shadow:
        rows.append(("trap: shadow", shadow[0].name, "this file or folder hides the installed MLX; run from another folder"))
    return rows or [("traps", "none found", "")]
