"""The record of where a number was measured."""
from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from . import __version__, blas, condition

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
        model = condition.ask("sysctl", "-n", "machdep.cpu.brand_string")
    wide = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), None)
    cores = len(condition.open_cores())
    words = ", ".join([platform.machine(), f"{cores} core{'s' * (cores != 1)}"] + ([wide] if wide else []))
    system = f"macOS {platform.mac_ver()[0]}" if sys.platform == "darwin" else f"{platform.system()} {platform.release().split('-')[0]}"
    return {"class": f"{model} ({words})" if model else words, "cores": cores, "platform": system} | _accelerator()


def _accelerator() -> dict:
    """The name of the GPU, where MLX is loaded and runs on one."""
    mx = sys.modules.get("mlx.core")
    if mx is None or mx.default_device().type != mx.gpu:
        return {}
    return {"gpu": str(mx.device_info().get("device_name", "unnamed"))}


def tf32() -> str:
    value = os.environ.get("MLX_ENABLE_TF32")
    return {"0": "off", None: "MLX's default (on where the device has it)"}.get(value, "on")


def provenance() -> dict:
    """Machine, its condition now, versions, BLAS, TF32 flag, date and package digest of this process; takes a second."""
    versions = {"python": platform.python_version(), "specdecode_nb": __version__}
    versions |= {name.replace("-", "_"): installed(name) for name in PACKAGES}
    return {"machine": machine(), "condition": [condition.readings()], "versions": versions, "blas": blas.report(), "tf32": tf32(),
            "date": datetime.date.today().isoformat(), "package_digest": package_digest()}
