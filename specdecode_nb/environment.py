"""The record of where a number was measured, and the questions ``specdecode-nb doctor`` answers."""
from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
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
    model, flags = "", []
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        facts = dict(line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
        facts = {k.strip(): v.strip() for k, v in facts.items()}
        model, flags = facts.get("model name", ""), facts.get("flags", "").split()
    elif sys.platform == "darwin":
        model = _ask("sysctl", "-n", "machdep.cpu.brand_string")
    wide = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), None)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = ", ".join([platform.machine(), f"{cores} core{'s' * (cores != 1)}"] + ([wide] if wide else []))
    system = f"macOS {platform.mac_ver()[0]}" if sys.platform == "darwin" else f"{platform.system()} {platform.release().split('-')[0]}"
    return {"class": f"{model} ({words})" if model else words, "cores": cores, "platform": system} | _accelerator()


def _accelerator() -> dict:
    """The name of the GPU, where MLX is loaded and runs on one."""
    mx = sys.modules.get("mlx.core")
    if mx is None or mx.default_device().type != mx.gpu:
        return {}
    return {"gpu": str(mx.device_info().get("device_name", "unnamed"))}


def _ask(*command: str) -> str:
    """What a system command prints, or nothing where there is no such command or it does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


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
    """(item, what was found, note) for everything that has spoilt a measurement or an installation before.

    Loads MLX if it is installed; a missing or broken one is a row, not an error. Raises BadInput as :func:`blas.select` does.
    """
    chosen, device = blas.select(), _device()
    facts = machine()
    rows = [("machine", facts["class"], facts["platform"]), ("specdecode_nb", __version__, f"sources {package_digest()[:12]}"),
            ("python", platform.python_version(), "")]
    rows += [(name, installed(name) or "missing", "") for name in PACKAGES]
    rows.append(device)
    threads = f"; threads: {chosen['threads']}" if chosen["threads"] else ""
    rows.append(("BLAS", f"{chosen['name']} {chosen['version'] or ''}".strip(), chosen["how"] + threads))
    rows.append(("TF32", tf32(), "MLX_ENABLE_TF32=0, set before MLX loads, is needed where identity is claimed on M5-class or CUDA GPUs"))
    rows.append(("priority", f"nice {os.getpriority(os.PRIO_PROCESS, 0)}", "a positive value slows this process when others run"))
    load = os.getloadavg()[0]
    rows.append(("load", f"{load:.1f} on {facts['cores']} cores", "other work is running: do not time now" if load > 0.5 else "quiet"))
    rows.append(("power and heat", *_power()))
    return rows + (_traps() or [("traps", "none found", "")])


def _device() -> tuple[str, str, str]:
    try:
        import mlx.core as mx
    except ImportError as error:
        return "device", "MLX cannot be imported", f"{type(error).__name__}; see the traps below"
    return "device", str(mx.default_device()), f"Metal {'yes' if mx.metal.is_available() else 'no'}, CUDA {'yes' if mx.cuda.is_available() else 'no'}"


def _power() -> tuple[str, str]:
    if sys.platform == "darwin":
        found = [line.strip() for what in ("batt", "therm") for line in _ask("pmset", "-g", what).splitlines()[:1]]
    else:
        found = [f"{label} {value}" for label, pattern in (
            ("governor", "devices/system/cpu/cpu0/cpufreq/scaling_governor"), ("battery", "class/power_supply/*/status"),
            ("thermal zone (mC)", "class/thermal/thermal_zone0/temp")) for value in _read(pattern)]
    return (", ".join(found), "") if found else ("not readable", "note the power mode by hand; a throttled machine has no valid timing")


def _read(pattern: str) -> list[str]:
    values = []
    for path in sorted(Path("/sys").glob(pattern)):
        try:
            values.append(path.read_text().strip())
        except OSError:  # some drivers list a file that cannot be read
            continue
    return values


def _traps() -> list[tuple[str, str, str]]:
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
    owners = sorted({e.dist.name for e in importlib.metadata.entry_points(group="console_scripts", name="dflash") if e.dist})
    if owners:
        rows.append(("trap: dflash", ", ".join(owners), "two packages install a command of this name; ours is specdecode-nb"))
    pip = installed("pip")
    if pip and int(pip.split(".")[0]) < 22:
        rows.append(("trap: old pip", pip, "it cannot install this package in place, or new wheels; python -m pip install -U pip"))
    return rows
