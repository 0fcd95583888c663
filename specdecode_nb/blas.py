"""Which matrix product MLX uses on a Linux CPU. MLX's wheel links the reference BLAS, 25 to 50 times slower than OpenBLAS.

MLX leaves ``cblas_sgemm`` to the dynamic linker, so a library that exports it and is loaded into the global scope first
takes its place. :func:`select` does that before MLX is imported: a system OpenBLAS, else a small shim over the OpenBLAS
inside SciPy's wheel. ``SPECDECODE_BLAS=reference`` switches it off; on macOS and with CUDA there is nothing to choose.
"""
from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from .errors import BadInput, nearest

CHOICES = ("auto", "openblas", "reference")
SYSTEM = ("libopenblas.so.0", "libopenblas.so")

# the three products that MLX imports, forwarded to the names that SciPy's library exports
SHIM = "".join(
    f"void scipy_cblas_{p}gemm(int,int,int,int,int,int,{s},const void*,int,const void*,int,{s},void*,int);\n"
    f"void cblas_{p}gemm(int o,int ta,int tb,int m,int n,int k,{s} x,const void*a,int lda,const void*b,int ldb,{s} y,void*c,int ldc)"
    f"{{scipy_cblas_{p}gemm(o,ta,tb,m,n,k,x,a,lda,b,ldb,y,c,ldc);}}\n"
    for p, s in (("s", "float"), ("d", "double"), ("c", "const void*")))

_chosen: dict | None = None


def select() -> dict:
    """Choose once per process, before ``mlx.core`` is imported; returns the same facts as :func:`report`.

    Raises BadInput for an unknown SPECDECODE_BLAS, or when it asks for openblas and none can be had.
    """
    global _chosen
    if _chosen is None:
        wanted = os.environ.get("SPECDECODE_BLAS", "auto")
        if wanted not in CHOICES:
            raise BadInput(f"SPECDECODE_BLAS is {wanted!r}{nearest(wanted, CHOICES)}; set it to {', '.join(CHOICES)}.")
        _chosen = _select(wanted)
        if wanted == "openblas" and _chosen["name"] != "OpenBLAS":
            reason, _chosen = _chosen["how"], None
            raise BadInput(f"SPECDECODE_BLAS asks for openblas, but {reason}; unset it to go on with the reference BLAS.")
    return dict(_chosen)


def report() -> dict:
    """What this process uses: name, version, how it was chosen, threads. Never silent about a fallback."""
    if _chosen is None:
        return {"name": "not chosen yet", "version": None, "how": "MLX has not been loaded by this package", "threads": None}
    return dict(_chosen)


def _facts(name, version, how, threads=None) -> dict:
    return {"name": name, "version": version, "how": how, "threads": threads}


def _select(wanted: str) -> dict:
    if sys.platform == "darwin":
        return _facts("Accelerate", platform.mac_ver()[0], "macOS; products on the GPU are Metal kernels")
    if wanted == "reference":
        return _facts("reference", "3.10", "SPECDECODE_BLAS=reference", 1)
    if "mlx.core" in sys.modules:
        return _facts("reference", "3.10", "MLX was imported before a BLAS could be chosen", 1)
    for name in SYSTEM:
        try:
            library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return _facts("OpenBLAS", _version(library, "openblas_get_config"), "system library", _threads(library, "openblas_get_num_threads"))
    return _scipy_shim()


def _scipy_shim() -> dict:
    spec = find_spec("scipy")
    found = sorted(Path(spec.origin).parents[1].glob("scipy.libs/libscipy_openblas*.so*")) if spec else []
    if not found:
        return _facts("reference", "3.10", "neither a system OpenBLAS nor one inside SciPy's wheel was found", 1)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    key = hashlib.sha256(SHIM.encode() + str(found[0]).encode() + str(found[0].stat().st_size).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdecode_nb"
    shim = cache / f"blas-{key}.so"
    if not shim.exists():
        if compiler is None:
            return _facts("reference", "3.10", "there is no C compiler to build the shim over SciPy's OpenBLAS", 1)
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                source, built = Path(scratch) / "shim.c", Path(scratch) / "shim.so"
                source.write_text(SHIM)
                subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", built, source, found[0], f"-Wl,-rpath,{found[0].parent}"],
                               check=True, capture_output=True)
                os.replace(built, shim)  # a half-written library is never loaded
        except (OSError, subprocess.CalledProcessError) as error:
            return _facts("reference", "3.10", f"the shim over SciPy's OpenBLAS could not be built ({type(error).__name__})", 1)
    try:
        library = ctypes.CDLL(str(found[0]))
        ctypes.CDLL(str(shim), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return _facts("reference", "3.10", "the shim over SciPy's OpenBLAS could not be loaded", 1)
    return _facts("OpenBLAS", _version(library, "scipy_openblas_get_config"), "inside SciPy's wheel, through a shim",
                  _threads(library, "scipy_openblas_get_num_threads"))


def _version(library, name: str) -> str | None:
    if not hasattr(library, name):
        return None
    get = getattr(library, name)
    get.restype = ctypes.c_char_p
    words = get().decode().split()
    return " ".join(w for w in words if w[0].isdigit() or w.isupper() or w[0].isupper()) or None


def _threads(library, name: str) -> int | None:
    return int(getattr(library, name)()) if hasattr(library, name) else None
