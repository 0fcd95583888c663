"""Which matrix product MLX uses on a Linux CPU. MLX's wheel brings the reference BLAS, far slower than OpenBLAS.

MLX leaves ``cblas_sgemm`` to the dynamic linker, so a library that exports it and stands in the global scope first takes
its place. :func:`select` arranges that before MLX is imported: a system OpenBLAS, else a small shim over the OpenBLAS
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
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from .errors import BadInput, nearest

CHOICES = ("auto", "openblas", "reference")
SYSTEM = ("libopenblas.so.0",)

# the three products that MLX imports, forwarded to the names that SciPy's library exports
SHIM = "".join(
    f"void scipy_cblas_{p}gemm(int,int,int,int,int,int,{s},const void*,int,const void*,int,{s},void*,int);\n"
    f"void cblas_{p}gemm(int o,int ta,int tb,int m,int n,int k,{s} x,const void*a,int lda,const void*b,int ldb,{s} y,void*c,int ldc)"
    f"{{scipy_cblas_{p}gemm(o,ta,tb,m,n,k,x,a,lda,b,ldb,y,c,ldc);}}\n"
    for p, s in (("s", "float"), ("d", "double"), ("c", "const void*")))

_chosen: dict | None = None


class _Unfit(Exception):
    """Why one candidate cannot serve."""


def select() -> dict:
    """Choose once per process, before ``mlx.core`` is imported; returns the same facts as :func:`report`.

    Raises BadInput for an unknown SPECDECODE_BLAS, and when it names a library that cannot be had.
    """
    global _chosen
    if _chosen is None:
        wanted = os.environ.get("SPECDECODE_BLAS") or "auto"
        if wanted not in CHOICES:
            raise BadInput(f"SPECDECODE_BLAS is {wanted!r}{nearest(wanted, CHOICES)}; set it to {', '.join(CHOICES)}.")
        _chosen = _select(wanted)
    return dict(_chosen)


def report() -> dict:
    """What this process uses: name, version, how it was chosen, threads. A fallback carries its reason in ``how``."""
    if _chosen is None:
        return _facts("not chosen yet", None, "MLX has not been loaded by this package", None)
    return dict(_chosen)


def _facts(name: str, version: str | None, how: str, threads: int | None) -> dict:
    return {"name": name, "version": version, "how": how, "threads": threads}


def _reference(reason: str) -> dict:
    """The reference BLAS of MLX's wheel; its version stands in the file name."""
    try:
        files = metadata.files("mlx-cpu") or []
    except metadata.PackageNotFoundError:
        files = []
    version = next((f.name.split(".so.")[1] for f in files if f.name.startswith("libblas") and ".so." in f.name), None)
    return _facts("reference", version, reason, 1)


def _select(wanted: str) -> dict:
    if sys.platform == "darwin":
        return _facts("Accelerate", platform.mac_ver()[0], "part of macOS; products on the GPU are Metal kernels", None)
    if any(found for name in ("mlx-cuda-12", "mlx-cuda-13") for found in metadata.distributions(name=name)):
        return _facts("CUDA", None, "products on the GPU are CUDA kernels; none was chosen for the CPU", None)
    holder = _global_holder()
    if holder:  # a preloaded OpenBLAS or MKL is the user's choice
        if wanted == "reference":
            raise BadInput(f"SPECDECODE_BLAS asks for reference, but {holder} is already in the process; start without preloading it.")
        return _facts(holder, None, "was in the process before this package looked", None)
    if wanted == "reference":
        return _reference("SPECDECODE_BLAS=reference")
    reasons = []
    if "mlx.core" in sys.modules:
        reasons.append("MLX was imported before a BLAS could be chosen")
    else:
        for candidate in (_system, _scipy):
            try:
                return candidate()
            except _Unfit as why:
                reasons.append(str(why))
    reason = "; ".join(reasons)
    if wanted == "openblas":
        raise BadInput(f"SPECDECODE_BLAS asks for openblas, but {reason}; unset it to go on with the reference BLAS.")
    return _reference(reason)


def _global_holder() -> str | None:
    """File name of the library that already answers to cblas_sgemm in the global scope."""

    class Info(ctypes.Structure):
        _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]

    process, info = ctypes.CDLL(None), Info()
    if not hasattr(process, "cblas_sgemm"):
        return None
    found = process.dladdr(ctypes.cast(process.cblas_sgemm, ctypes.c_void_p), ctypes.byref(info))
    return Path(os.fsdecode(info.file)).name if found and info.file else "an unnamed library"


def _system() -> dict:
    for name in SYSTEM:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        facts = _openblas(library, "", "system library")
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        return facts
    raise _Unfit("there is no system OpenBLAS")


def _scipy() -> dict:
    spec = find_spec("scipy")
    found = sorted(Path(spec.origin).parents[1].glob("scipy.libs/libscipy_openblas*.so*")) if spec and spec.origin else []
    if not found:
        raise _Unfit("SciPy's wheel has no OpenBLAS beside it")
    try:
        library = ctypes.CDLL(str(found[0]))
        facts = _openblas(library, "scipy_", "inside SciPy's wheel, through a compiled shim")
        shim = _build(found[0].name)
        ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)  # the shim finds its three names here
        ctypes.CDLL(str(shim), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise _Unfit(f"the shim over SciPy's OpenBLAS could not be loaded ({type(error).__name__})") from None
    return facts


def _build(library: str) -> Path:
    """The shim in the user's cache folder, compiled if it is not there. ``library`` is a file name that holds its own digest."""
    key = hashlib.sha256("\n".join((SHIM, library, platform.machine())).encode()).hexdigest()[:16]
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdecode_nb"
        shim = cache / f"blas-{key}.so"
        if shim.exists():
            return shim
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None:
            raise _Unfit("there is no C compiler to build the shim over SciPy's OpenBLAS")
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            source, built = Path(scratch, "shim.c"), Path(scratch, "shim.so")
            source.write_text(SHIM)
            subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", built, source], check=True, capture_output=True)
            os.replace(built, shim)  # a half-written library is never loaded
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        raise _Unfit(f"the cache folder cannot be written ({type(error).__name__}; set XDG_CACHE_HOME)") from None
    except subprocess.CalledProcessError as error:
        raise _Unfit(f"the C compiler could not build the shim over SciPy's OpenBLAS (status {error.returncode})") from None
    return shim


def _openblas(library: ctypes.CDLL, prefix: str, how: str) -> dict:
    """Name, version, kernels and threads of a loaded OpenBLAS; refuses one whose integers are wide or whose product is wrong."""

    def ask(name: str, kind):
        function = getattr(library, f"{prefix}openblas_{name}")
        function.restype = kind
        return function()

    try:
        words = ask("get_config", ctypes.c_char_p).decode().split()
        if "USE64BITINT" in words or not _exact(getattr(library, f"{prefix}cblas_sgemm")):
            raise _Unfit("an OpenBLAS was found, but with 64-bit integers or wrong products on this processor")
        kernels, threads = ask("get_corename", ctypes.c_char_p).decode(), ask("get_num_threads", ctypes.c_int)
    except AttributeError as missing:
        raise _Unfit(f"an OpenBLAS was found without {str(missing).split()[-1]}") from None
    return _facts("OpenBLAS", next((w for w in words if w[0].isdigit()), None), f"{how}; {kernels} kernels", threads)


def _exact(gemm) -> bool:
    """x @ w.T over small whole numbers, one row and five: any order of summation gives the exact product."""
    n, k = 19, 67
    w = [[(3 * i + 5 * j) % 11 - 5 for j in range(k)] for i in range(n)]
    for m in (1, 5):
        x = [[(7 * i + 2 * j) % 13 - 6 for j in range(k)] for i in range(m)]
        out = (ctypes.c_float * (m * n))()
        flat = [(ctypes.c_float * (len(a) * k))(*(v for row in a for v in row)) for a in (x, w)]
        gemm(101, 111, 112, m, n, k, ctypes.c_float(1), flat[0], k, flat[1], k, ctypes.c_float(0), out, n)  # row-major, plain, transposed
        if list(out) != [sum(a * b for a, b in zip(r, c, strict=True)) for r in x for c in w]:
            return False
    return True
