"""From a text source to an executed notebook, one way: read, run in this interpreter's kernel, accept, normalise, install.

A run counts only if every code cell ran, in order, without an error and without a word on stderr, and the page was
closed. Nothing is written over a good notebook before that.
"""
from __future__ import annotations

import ast
import fcntl
import json
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import nbformat
from nbformat import NotebookNode

import specdecode_nb

from .. import paths
from ..errors import BadInput, RunFailed
from ..records import parse, read_text, sha256, write_atomic
from . import acts, digests, numbers
from .page import COMMAND, OUT

TIMEOUT = 1800  # seconds for one cell; a measurement in a notebook may take that long
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}


def source_path(act: str) -> Path:
    return paths.notebooks() / "source" / f"{act}.py"


def read_source(act: str, path: Path | None = None) -> NotebookNode:
    """The text source as a notebook with stable ids. Raises BadInput for a header or parameters cell that does not fit."""
    import jupytext

    path = path or source_path(act)
    if not path.is_file():
        raise BadInput(f"There is no notebook source for {act} yet; write notebooks/source/{act}.py.")
    text = read_text(path, "notebook source")
    if re.search(r"[&*]\w", text.split("# ---", 2)[1] if text.startswith("# ---") else ""):  # YAML that refers to itself can expand without end
        raise BadInput(f"{path.name} has a jupytext header with an anchor or an alias; begin it as the other sources do.")
    book = jupytext.reads(text, fmt="py:percent")
    if book.metadata.get("kernelspec", {}).get("name") != "python3" or "jupytext" not in book.metadata:
        raise BadInput(f"{path.name} has no full jupytext header with the kernelspec python3; begin it as the other sources do.")
    for number, cell in enumerate(book.cells):
        cell.id = f"{act}-{number:03d}"
    check_parameters(act, path.name, book)
    return book


def check_parameters(act: str, name: str, book: NotebookNode) -> None:
    """Exactly one ``parameters`` cell, of literals, equal to the defaults declared in the package."""
    spec = acts.get(act)
    tagged = [c for c in book.cells if "parameters" in c.metadata.get("tags", [])]
    if len(tagged) != bool(spec.params):
        raise BadInput(f"{name} has {len(tagged)} cells tagged parameters; it needs {int(bool(spec.params))}.")
    found = {}
    try:
        body = ast.parse(tagged[0].source).body if tagged else ()
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"The parameters cell of {name} is not Python ({error}); correct it.") from None
    for statement in body:
        try:
            (goal,) = statement.targets
            found[goal.id] = ast.literal_eval(statement.value)
        except (AttributeError, ValueError):
            raise BadInput(f"The parameters cell of {name} may hold literals only; move line {statement.lineno} to the next cell.") from None
    if found != spec.defaults or [type(v) for v in found.values()] != [type(spec.defaults[k]) for k in found]:
        odd = next(k for k in {**spec.defaults, **found} if found.get(k, ...) != spec.defaults.get(k, ...) or type(found[k]) is not type(spec.defaults[k]))
        raise BadInput(f"The parameter {odd!r} of {name} is {found.get(odd)!r}, declared is {spec.defaults.get(odd)!r}; make them equal.")


def kernel_manager(environment: dict[str, str], managers: list) -> type:
    """A kernel of this very interpreter, whatever kernelspecs the machine has. Each manager that is made joins ``managers``."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    spec = KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], env=environment, **{
        k: v for k, v in KERNELSPEC.items() if k != "name"})

    class Here(AsyncKernelManager):
        def __init__(self, **options):
            # sockets in the run's own folder: kernels that start at the same time would race for ports
            super().__init__(**options, transport="ipc", ip=str(Path(environment[OUT]) / "kernel"))
            managers.append(self)

        @property
        def kernel_spec(self):
            return spec

    return Here


def end(managers: Sequence) -> None:
    """Kill kernels that an interrupt has left: they would look for sockets in a folder that is gone, and say so on stderr."""
    for manager in managers:
        process = getattr(manager.provisioner, "process", None)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()


def environment(out: Path, command: str) -> dict[str, str]:
    """What the kernel sees: this package, no progress bars, no settings of the user that would change a picture."""
    import matplotlib

    # the cache of fonts is built here, so that no cell has to tell of it
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    import matplotlib.font_manager  # noqa: F401

    package = str(Path(specdecode_nb.__file__).parents[1])
    return {OUT: str(out), COMMAND: command, "SPECDECODE_ROOT": str(paths.root()), "MATPLOTLIBRC": str(Path(matplotlib.get_data_path()) / "matplotlibrc"),
            "MPLBACKEND": "agg", "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])), "PYTHONHASHSEED": "0",
            "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "1",
            "IPYTHONDIR": str(out / ".ipython"), "PYTHONWARNINGS": "default"}


def execute(act: str, params: dict, staging: Path, cwd: Path, command: str, source: Path | None = None, timeout: int = TIMEOUT) -> NotebookNode:
    """Run the Act's source and return the accepted, normalised notebook; its figures and tables are under ``staging``.

    Args:
        params: values that differ from the defaults (an injected cell shows them); empty for a committed build.
        cwd: the kernel's working directory, from which ``rows`` is found.
    Raises:
        RunFailed: the notebook as far as it got is ``staging``/failed.ipynb.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries deprecate at import is not this project's
        import papermill

    book, saved, failure, managers = read_source(act, source), staging / "failed.ipynb", "", []
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    try:
        # papermill fills braces in a path, so they are doubled; it saves after every cell, which keeps a failed run
        book = papermill.execute_notebook(
            book, str(saved).replace("{", "{{").replace("}", "}}"), parameters=params, kernel_name="python3", progress_bar=False, cwd=str(cwd),
            start_timeout=120, execution_timeout=timeout, record_timing=False, kernel_manager_class=kernel_manager(environment(staging, command), managers),
            extra_arguments=["--IPKernelApp.log_level=CRITICAL", "--HistoryManager.enabled=False"])
    except papermill.PapermillExecutionError as error:
        failure = f"{error.ename}: {error.evalue}"
    except (RuntimeError, OSError, ValueError) as error:  # a dead kernel, a time limit, an invalid notebook
        failure = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    finally:
        end(managers)
    if saved.exists():
        try:
            book = nbformat.read(saved, as_version=4)
        except ValueError:  # a full disk has cut it off
            saved.unlink()
            failure = failure or "the notebook could not be saved whole"
        book.cells = [c for c in book.cells if "papermill-error-cell-tag" not in c.metadata.get("tags", [])]  # its banners would shift the count
    number, reason = next(faults(act, book), (None, ""))
    if failure or number is not None:
        first = next(iter(book.cells[number].source.splitlines()), "") if number is not None else ""
        counted = sum("injected-parameters" not in c.metadata.get("tags", []) for c in book.cells[:number])
        where = f" in cell {counted} ({first.strip()})" if first else ""
        raise RunFailed(f"{act} stopped{where}: {failure or reason}.")
    saved.unlink(missing_ok=True)
    book = normalise(act, book)
    nbformat.validate(book)
    return book


def faults(act: str, book: NotebookNode) -> Iterator[tuple[int, str]]:
    """(cell number, reason) for everything that makes a run count for nothing. papermill's own status is not asked."""
    expected = 0
    for number, cell in enumerate(book.cells):
        if cell.cell_type != "code":
            continue
        for output in cell.outputs:
            if output.output_type == "error":
                yield number, f"{output.ename}: {output.evalue}"
            if output.output_type == "stream" and output.name == "stderr":
                yield number, f"it wrote to stderr: {next(iter(output.text.strip().splitlines()), '')}"
        if cell.source.strip():
            expected += 1
            if cell.execution_count != expected:
                yield number, "it did not run in its place"
    if closing(book).get("finished") != act:
        yield len(book.cells) - 1, "the page was not closed; end the notebook with page.finish()"


def closing(book: NotebookNode) -> dict:
    """What ``page.finish()`` left in the last cell that has output."""
    about = [o.get("metadata", {}).get("specdecode", {}) for c in book.cells if c.cell_type == "code" for o in c.outputs]
    return about[-1] if about else {}


def normalise(act: str, book: NotebookNode) -> NotebookNode:
    """The same notebook without timings, paths, versions of the kernel or random ids: an allow-list, not a drop-list.

    Each code cell gets the digests of its source and of its outputs, so what this makes of its own result is that result.
    """
    clean = nbformat.v4.new_notebook(metadata={"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    clean.nbformat_minor = 5
    ordinal = 0
    for cell in book.cells:
        injected = "injected-parameters" in cell.metadata.get("tags", [])
        kept = NotebookNode(cell_type=cell.cell_type, id=f"{act}-injected" if injected else f"{act}-{ordinal:03d}", source=cell.source, metadata=NotebookNode())
        ordinal += not injected
        if cell.metadata.get("tags"):
            kept.metadata["tags"] = list(cell.metadata.tags)
        if cell.cell_type == "code":
            kept.execution_count, kept.outputs = cell.execution_count, [tidy(output) for output in cell.outputs]
            shown = json.dumps(kept.outputs, sort_keys=True).encode()
            kept.metadata["specdecode"] = NotebookNode(source=sha256(cell.source.encode())[:16], outputs=sha256(shown)[:16])
        clean.cells.append(kept)
    return clean


def tidy(output: NotebookNode) -> NotebookNode:
    output = NotebookNode(output)
    output.pop("transient", None)
    if "metadata" in output:
        output["metadata"] = NotebookNode({k: v for k, v in output["metadata"].items() if k in ("filename", "image/png", "specdecode")})
    return output


def written(book: NotebookNode) -> bytes:
    return (nbformat.writes(book).rstrip("\n") + "\n").encode()


# --- where results go ---

@contextmanager
def staging_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="specdecode-") as name:
        yield Path(name)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One writer at a time in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def install(act: str, staging: Path, folder: Path) -> list[Path]:
    """Move the figures, tables and numbers of one Act from ``staging`` to ``folder``; what it made before and no longer makes goes."""
    made = staging / "figures"
    with locked(folder):
        files = sorted(p.relative_to(made) for p in made.rglob("*") if p.is_file() and not p.name.startswith("numbers."))
        for name in files:
            write_atomic(folder / name, (made / name).read_bytes())
        for sidecar, item in recorded(folder, act):
            for old in (sidecar, *(sidecar.with_suffix(f".{kind}") for kind in item["sha256"])):
                if old.relative_to(folder) not in files:
                    old.unlink(missing_ok=True)
        names = numbers.write(folder, act, numbers.load(made / "numbers.json"))
    return [folder / name for name in (*files, *names)]


def recorded(folder: Path, act: str = "*") -> Iterator[tuple[Path, dict]]:
    """The records of figures and tables in ``folder``, by path; files of another kind and of other people are passed over."""
    for path in sorted([*folder.glob(f"{act}-*.json"), *folder.glob(f"tables/{act}-*.json")]):
        try:
            item = parse(read_text(path, "record"), path.name)
        except BadInput:
            continue
        if isinstance(item, dict) and item.get("id") == path.stem and "caption" in item:
            if isinstance(item.get("sha256"), dict) and all(map(str.isalnum, item["sha256"])):
                yield path, item


def keep_failure(act: str, staging: Path, folder: Path) -> str:
    """Copy the half-run notebook to ``folder``; returns where it is, in words."""
    if not (staging / "failed.ipynb").exists():
        return ""
    write_atomic(folder / f"{act}.ipynb", (staging / "failed.ipynb").read_bytes())  # never through a link
    return f" What it had got to is {folder / f'{act}.ipynb'}."


def run(act: str, params: dict, out: Path, command: str) -> list[Path]:
    """Execute one Act into ``out``: notebook, figures, tables, numbers. Committed files stay as they are."""
    with staging_folder() as staging:
        try:
            book = execute(act, params, staging, out, command)
        except RunFailed as failure:
            raise RunFailed(f"{failure}{keep_failure(act, staging, out / 'failed')}") from None
        files = install(act, staging, out / "figures")
        write_atomic(out / f"{act}.ipynb", written(book))
    (out / "failed" / f"{act}.ipynb").unlink(missing_ok=True)
    return [out / f"{act}.ipynb", *files]


def build(act: str) -> Path:
    """Execute one Act from its committed source and rows into the committed tree: the only thing that writes there."""
    with staging_folder() as staging:
        try:
            book = execute(act, {}, staging, staging, f"specdecode-nb figures {act}")
        except RunFailed as failure:
            raise RunFailed(f"{failure}{keep_failure(act, staging, paths.root() / 'out' / 'failed')}") from None
        install(act, staging, paths.figures())
        path = paths.notebooks() / f"{act}.ipynb"
        write_atomic(path, written(book))
        digests.write()
    (paths.root() / "out" / "failed" / f"{act}.ipynb").unlink(missing_ok=True)
    return path


def each(function: Callable, names: Sequence[str]) -> Iterator:
    """``function`` of every Act in order; as many kernels at a time as there are cores, four at most."""
    # processes, because papermill changes the working folder of its own
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1), get_context("fork")) as pool:
        yield from pool.map(function, names)


def sources() -> list[str]:
    """Acts that have a notebook source, the overview first."""
    return [act for act in ("overview", *(a for a in acts.ACTS if a != "overview")) if source_path(act).exists()]

