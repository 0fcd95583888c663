"""Import, paths, the choice of BLAS, provenance, doctor and the pinned versions."""
import getpass
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from conftest import QUIET
from specdecode_nb import blas, environment, paths
from specdecode_nb.errors import BadInput, nearest

ROOT = Path(__file__).resolve().parents[1]
linux_cpu = pytest.mark.skipif(sys.platform != "linux" or environment.installed("mlx-cpu") is None, reason="chooses a BLAS on a Linux CPU only")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def python(code: str, cwd=None, **environ) -> str:
    """Standard output of a fresh interpreter that sees the package; None removes a variable."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "SPECDECODE_BLAS": None} | environ
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env={k: str(v) for k, v in env.items() if v is not None},
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def chosen(before: str = "", **environ) -> dict:
    return json.loads(python(f"import json, specdecode_nb.blas as blas\n{before}\nblas.select()\nprint(json.dumps(blas.report()))", **environ))


def refused(**environ) -> str:
    return python("import specdecode_nb.blas as b\ntry: b.select()\nexcept b.BadInput as e: print(e)", **environ)


def test_import_is_light():
    """CPU time, not wall time: the machine may be busy."""
    code = ("import sys, time; t = time.process_time(); import specdecode_nb; t = time.process_time() - t\n"
            "print(t, [m for m in ('mlx', 'mlx.core', 'mlx_lm', 'numpy', 'transformers', 'matplotlib') if m in sys.modules], specdecode_nb.__version__)")
    seconds, rest = python(code).split(" ", 1)
    assert float(seconds) < 1 and rest.strip() == "[] 0.1.0"


def test_exports_are_lazy_and_known():
    import specdecode_nb

    assert {"load_target", "load_drafter", "generate", "stream", "Transaction", "__version__"} <= set(dir(specdecode_nb))
    assert specdecode_nb.Transaction.__module__ == "specdecode_nb.transaction"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        specdecode_nb.nothing  # noqa: B018


def test_paths_from_another_folder(tmp_path):
    assert python("from specdecode_nb import paths; print(paths.root(), paths.data())", cwd=tmp_path).split() == [str(ROOT), str(ROOT / "data")]
    assert len(set(paths.ACTS)) == len(paths.ACTS) == 13


def test_paths_outside_a_repository(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "__file__", str(tmp_path / "site-packages" / "specdecode_nb" / "paths.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="SPECDECODE_ROOT"):
        paths.root()
    monkeypatch.setenv("SPECDECODE_ROOT", "nowhere")
    with pytest.raises(BadInput, match="'nowhere'"):
        paths.root()
    monkeypatch.setenv("SPECDECODE_ROOT", str(ROOT))
    assert paths.root() == ROOT


def test_nearest():
    assert nearest("act4z", ["act4s", "dflash"]) == " (did you mean 'act4s'?)"
    assert nearest("zzzz", ["act4s"]) == nearest("act", []) == ""
    assert nearest(170, ["17"]) == " (did you mean '17'?)"


def test_report_before_and_after():
    code = "import json, specdecode_nb.blas as b; a = b.report(); s = b.select(); print(json.dumps([a, s, b.report(), b.select()]))"
    before, *after = json.loads(python(code, SPECDECODE_BLAS="reference"))
    assert before["name"] == "not chosen yet" and after[0] == after[1] == after[2]
    assert set(before) == set(after[0]) == {"name", "version", "how", "threads"}


def test_unknown_blas_is_refused():
    assert "'openblaz' (did you mean 'openblas'?)" in refused(SPECDECODE_BLAS="openblaz")


@linux_cpu
def test_reference_and_too_late():
    facts = chosen(SPECDECODE_BLAS="reference")
    assert (facts["name"], facts["how"], facts["threads"]) == ("reference", "SPECDECODE_BLAS=reference", 1)
    assert facts["version"][0].isdigit()
    late = chosen("import mlx.core", SPECDECODE_BLAS="auto")
    assert late["name"] == "reference" and "imported before" in late["how"]


@linux_cpu
@needs_compiler
def test_shim_over_scipy(tmp_path):
    """Compiled once into the cache folder, holds the name MLX asks for, and leaves products and LAPACK right."""
    code = """
import json, specdecode_nb.blas as blas
blas.SYSTEM = ()
facts, holder = blas.select(), blas._global_holder()
import mlx.core as mx, numpy as np
rng, wrong = np.random.default_rng(0), []
for kind in (np.float32, np.complex64):
    for m in (1, 5, 33):
        a, b = (rng.standard_normal(s).astype(kind) for s in ((m, 65), (65, 47)))
        if not np.allclose(np.array(mx.array(a) @ mx.array(b)), a @ b, atol=1e-4): wrong.append((str(kind), m))
a = rng.standard_normal((9, 9)).astype(np.float32)
if not np.allclose(np.array(mx.linalg.inv(mx.array(a), stream=mx.cpu)), np.linalg.inv(a), atol=1e-2): wrong.append("inv")
print(json.dumps([facts, holder, wrong]))
"""
    facts, holder, wrong = json.loads(python(code, SPECDECODE_BLAS="openblas", XDG_CACHE_HOME=tmp_path))
    built = list((tmp_path / "specdecode_nb").iterdir())
    assert facts["name"] == "OpenBLAS" and "SciPy" in facts["how"] and facts["threads"] >= 1 and not wrong
    assert [p.name for p in built] == [holder] and re.fullmatch(r"blas-[0-9a-f]{16}\.so", holder)
    stamp = built[0].stat().st_mtime_ns
    assert chosen("blas.SYSTEM = ()", XDG_CACHE_HOME=tmp_path, PATH="") == facts  # found again, without a compiler
    assert built[0].stat().st_mtime_ns == stamp


@linux_cpu
@needs_compiler
def test_mlx_takes_its_product_from_the_global_scope(tmp_path):
    """The mechanism itself, on this wheel: a stand-in that counts its calls is called. It is also seen as preloaded."""
    source, library = tmp_path / "count.c", tmp_path / "count.so"
    source.write_text("int calls; void cblas_sgemm(int o,int a,int b,int m,int n,int k,float x,void*p,int l,void*q,int r,float y,void*c,int d){calls++;}")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    code = (f"import ctypes, specdecode_nb.blas as b; c = ctypes.CDLL({str(library)!r}, mode=ctypes.RTLD_GLOBAL); name = b.select()['name']\n"
            "import mlx.core as mx; mx.eval(mx.ones((5, 8)) @ mx.ones((8, 3))); print(name, ctypes.c_int.in_dll(c, 'calls').value)")
    name, calls = python(code).split()
    assert name == "count.so" and int(calls) >= 1
    code = f"import ctypes, specdecode_nb.blas as b; ctypes.CDLL({str(library)!r}, mode=ctypes.RTLD_GLOBAL)\ntry: b.select()\nexcept b.BadInput as e: print(e)"
    assert "count.so is already in the process" in python(code, SPECDECODE_BLAS="reference")


@linux_cpu
def test_fallback_says_why(tmp_path):
    no_compiler = chosen("blas.SYSTEM = ()", XDG_CACHE_HOME=tmp_path, PATH="")
    assert no_compiler["name"] == "reference" and "no system OpenBLAS; there is no C compiler" in no_compiler["how"]
    (tmp_path / "cc").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "cc").chmod(0o755)
    broken = chosen("blas.SYSTEM = ()", XDG_CACHE_HOME=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert broken["name"] == "reference" and "status 3" in broken["how"]
    assert "XDG_CACHE_HOME" in chosen("blas.SYSTEM = ()", XDG_CACHE_HOME="/dev/null")["how"]
    code = "import specdecode_nb.blas as b; b.SYSTEM = ()\ntry: b.select()\nexcept b.BadInput as e: print(e)"
    assert "unset it to go on" in python(code, SPECDECODE_BLAS="openblas", XDG_CACHE_HOME=tmp_path / "new", PATH="")


def test_a_wrong_product_is_refused():
    assert not blas._exact(lambda *a: None)

    def product(order, ta, tb, m, n, k, alpha, x, lda, w, ldw, beta, out, ldc):
        for i in range(m):
            for j in range(n):
                out[i * n + j] = sum(x[i * k + t] * w[j * k + t] for t in range(k))

    assert blas._exact(product)


def test_provenance_names_no_person_host_or_path():
    record = environment.provenance()
    text = json.dumps(record, allow_nan=False)
    assert {"machine", "versions", "blas", "tf32", "date", "package_digest"} <= set(record)
    assert {"class", "cores", "platform"} <= set(record["machine"]) and {"python", "mlx", "mlx_lm", "numpy", "specdecode_nb"} <= set(record["versions"])
    assert re.fullmatch(r"[0-9a-f]{64}", record["package_digest"]) and re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
    words = set(re.findall(r"[\w.-]+", text))
    assert not words & {getpass.getuser(), os.uname().nodename}
    assert not [p for p in (str(ROOT), str(Path.home()), sys.prefix) if p in text]


def test_tf32_is_reported_and_left_alone(monkeypatch):
    for value, said in (("0", "off"), ("1", "on")):
        monkeypatch.setenv("MLX_ENABLE_TF32", value)
        assert environment.tf32() == said
    monkeypatch.delenv("MLX_ENABLE_TF32")
    assert "default" in environment.tf32()
    code = "import os, specdecode_nb.blas as b; b.select(); print(os.environ.get('MLX_ENABLE_TF32'))"
    assert python(code, MLX_ENABLE_TF32=None).strip() == "None" and python(code, MLX_ENABLE_TF32="1").strip() == "1"


def test_provenance_holds_the_condition():
    assert environment.provenance()["condition"] == [{"when": "start", **QUIET}]


def test_exact_versions_lie_within_the_bounds():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    exact = {r.name.lower().replace("_", "-"): Version(str(r.specifier)[2:]) for r in map(Requirement, lines)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in [*project["dependencies"], *(r for group in project["optional-dependencies"].values() for r in group)]:
        need = Requirement(text)
        assert {"<", ">="} == {s.operator for s in need.specifier}, f"{text} needs a lower and an upper bound"
        assert exact[need.name.lower()] in need.specifier, text


def test_bootstrap_says_what_is_missing(tmp_path):
    """Without the compiler nothing is set up: one sentence, status 2."""
    if sys.platform != "linux":
        pytest.skip("only Linux needs the compiler")
    done = subprocess.run([sys.executable, ROOT / "bootstrap.py", "list"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 2 and "g++" in done.stderr and done.stderr.count("\n") == 1
