"""Every derived file against its source: pairs, pictures, tables, numbers, schemas, leaks. Reports, never repairs."""
from __future__ import annotations

import base64
import json
import re
import socket
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import nbformat

from .. import criteria, paths
from ..errors import BadInput, RunFailed
from ..records import load_rows, parse, read_text, sha256
from . import acts, digests, notebooks, numbers, published
from .origin import FIRST, measured_path

BOOK = ("overview", *acts.reading())  # what has to have a source and a notebook
LARGEST = 1_000_000  # bytes of one executed notebook
LEAK = re.compile(r"/(?:home|root|Users|tmp|private|var/folders|work)/[\w.]|ipykernel_\d|\bat 0x[0-9a-f]{6,}|\r|Traceback \(most recent")
FORMATS = {"figure": ("figures/", ("png", "svg", "pdf", "json")), "table": ("figures/tables/", ("csv", "tex", "md", "json"))}


def problems(rebuild: bool = False) -> list[str]:
    """One sentence for each thing that does not agree; with ``rebuild`` every notebook is executed again and compared."""
    sources, books, kept, pairs = {}, {}, {}, {}
    found = [*data(), *attempt("data/digests.json", digests.problems), *attempt("figures/numbers.tex", number_files, kept)]
    for act in dict.fromkeys([*BOOK, *notebooks.sources()]):
        where = f"notebooks/{act}.ipynb"
        pairs[act] = [*attempt(f"notebooks/source/{act}.py", keep, sources, act, notebooks.read_source), *attempt(where, keep, books, act, read_book)]
        if act in books:
            pairs[act] += attempt(where, pair, act, sources.get(act), books[act], kept.get("numbers"))
    found += [*strays(books, [act for act in pairs if act not in books], kept.get("numbers") or {}), *(line for lines in pairs.values() for line in lines)]
    if rebuild:
        found += [line for lines in notebooks.each(again, [act for act, lines in pairs.items() if not lines]) for line in lines]
    return found


def attempt(where: str, function: Callable, *args) -> Iterator[str]:
    """What ``function`` finds. Whatever stops it is one more finding, so that one damaged file does not hide the others."""
    try:
        yield from function(*args)
    except BadInput as error:
        yield str(error)
    except Exception as error:  # a file damaged by hand can raise anything in the libraries that read it
        yield f"{where} cannot be read ({type(error).__name__}: {next(iter(str(error).splitlines()), '')}); restore it or build it again."


def keep(into: dict, key: str, function: Callable, *args) -> tuple:
    """``function(key, *args)`` goes into the dictionary; finds nothing, unless it raises."""
    into[key] = function(key, *args)
    return ()


def data() -> Iterator[str]:
    """Published facts, criteria, measured rows and the files of figures/ as schemas and strict JSON have them."""
    folder = paths.data()
    for where, loader, names in (("published", published.load, paths.ACTS), ("criteria", criteria.load, stems(folder / "criteria")),
                                 ("read", published.read, stems(folder / "read"))):
        for stem in names:
            yield from attempt(f"data/{where}/{stem}.json", keep, {}, stem, loader)
    for path in sorted((folder / "measured").glob("*/*.json")):
        yield from attempt(name(path), rows, path)
    for path in sorted(p for p in paths.figures().rglob("*") if p.suffix in (".json", ".csv", ".md", ".tex", ".svg")):
        yield from attempt(name(path), text_file, path)


def stems(folder: Path) -> list[str]:
    return sorted(p.stem for p in folder.glob("*.json"))


def rows(path: Path) -> Iterator[str]:
    """A row file: its schema, and the Act and target that its path promises."""
    file = load_rows(path, name(path))
    if file.published:
        yield f"{name(path)} holds published rows, and data/measured is for rows measured here; keep them elsewhere and draw them with -p rows=FILE."
    yield from leaks(name(path), path.read_text(encoding="utf-8"))
    if (file.target, file.act) != (path.parent.name, path.stem.removesuffix(FIRST)):
        yield f"{name(path)} holds rows of {file.act!r} on {file.target!r}, not of {path.stem!r} on {path.parent.name!r}; rename or remove it."


def text_file(path: Path) -> Iterator[str]:
    if not path.is_file():  # reading a pipe would never end
        raise BadInput(f"{name(path)} is no regular file; remove it.")
    text = path.read_text(encoding="utf-8")
    yield from leaks(name(path), text)
    if path.suffix == ".json" and path.name != "numbers.json":
        parse(text, name(path))


def number_files(kept: dict) -> Iterator[str]:
    """figures/numbers.json and what follows from it; its numbers go into ``kept``, unless they cannot be read."""
    file, latex = paths.figures() / "numbers.json", paths.figures() / "numbers.tex"
    yield from (f"{name(p)} is missing; run `specdecode-nb build`." for p in (file, latex) if not p.is_file())
    if file.is_file():
        kept["numbers"] = numbers.load(file)
        if latex.is_file() and latex.read_bytes() != numbers.as_latex(kept["numbers"]).encode():
            yield "figures/numbers.tex does not follow from figures/numbers.json; run `specdecode-nb build`."


def strays(books: dict, unread: Collection[str], kept: dict) -> Iterator[str]:
    """Files of notebooks/, figures/ and data/ that no Act makes or reads. What belongs to an ``unread`` notebook is not judged."""
    about = [o.get("metadata", {}).get("specdecode", {}) for book in books.values() for cell in book.cells for o in cell.get("outputs", [])]
    made = {f"{folder}{a[kind]}.{suffix}" for a in about for kind, (folder, suffixes) in FORMATS.items() if kind in a for suffix in suffixes}
    drawn = {file for a in about if "finished" in a for file in a.get("sources", {})}
    every = {*books, *unread}
    known = made | drawn | {f"notebooks/{act}.ipynb" for act in every} | {f"notebooks/source/{act}.py" for act in every} | {
        "figures/numbers.json", "figures/numbers.tex", "data/digests.json"} | {f"data/published/{act}.json" for act in paths.ACTS}
    for file in sorted(name(p) for folder in (paths.notebooks(), paths.figures(), paths.data()) for p in folder.rglob("*") if p.is_file()):
        path = Path(file)
        owner = path.stem.split("-", 1)[0]
        if file in known or owner in unread or any(part.startswith((".", "__pycache__")) for part in path.parts):
            continue
        if any(path.match(p) for p in ("data/criteria/*.json", "data/read/*.json")) or path.parts[:2] in (("data", "models"), ("data", "prompts")):
            continue
        if path.match("data/measured/*/*.json"):
            if not unread:
                yield f"{file} is drawn by no notebook; run `specdecode-nb build`, or remove it."
        elif owner in books:
            yield f"{file} is nothing that {owner} makes; remove it."
        else:
            yield f"{file} belongs to no Act; remove it."
    for act in sorted({key.split(".")[0] for key in kept} - every):
        yield f"figures/numbers.json holds numbers of {act!r}, which is no Act; remove them."


def read_book(act: str) -> nbformat.NotebookNode:
    """The executed notebook, once it is valid. Raises BadInput."""
    path, remedy = paths.notebooks() / f"{act}.ipynb", f"run `specdecode-nb build {act}`"
    if not path.exists():
        raise BadInput(f"{name(path)} has not been built; {remedy}.")
    text = read_text(path, "executed notebook")
    parse(text, name(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            book = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
            nbformat.validate(book)
    except Exception as error:  # nbformat raises its validator's own classes
        raise BadInput(f"{name(path)} is no valid notebook ({next(iter(str(error).splitlines()), '')}); {remedy}.") from None
    if (book.nbformat, book.nbformat_minor) != (4, 5):
        raise BadInput(f"{name(path)} has notebook format {book.nbformat}.{book.nbformat_minor}, not 4.5; {remedy}.")
    return book


def pair(act: str, source: nbformat.NotebookNode | None, book: nbformat.NotebookNode, kept: dict | None) -> Iterator[str]:
    """One text source, if it can be read, and its executed notebook, and everything that the notebook shows."""
    path, remedy = paths.notebooks() / f"{act}.ipynb", f"run `specdecode-nb build {act}`"
    size = path.stat().st_size
    if size > LARGEST:
        yield f"{name(path)} is {size:,} bytes, above {LARGEST:,}; show less."
    if source is not None:
        yield from (f"{act} is stale {reason}; {remedy}." for reason in stale(book, source))
    yield from (f"{act} did not run well at cell {number}: {reason}; {remedy}." for number, reason in notebooks.faults(act, book))
    clean = notebooks.normalise(act, book)
    if book.metadata != clean.metadata:
        yield f"{act} has other notebook metadata than the build writes; {remedy}."
    for number, (cell, whole) in enumerate(zip(book.cells, clean.cells)):
        recorded = cell.metadata.get("specdecode", {})
        if cell.cell_type == "code" and recorded.get("outputs") != whole.metadata.specdecode.outputs:
            yield f"{act} shows other outputs than its run gave at cell {number} ({first(cell)}); {remedy}."
        elif cell != whole and recorded.get("source") == whole.metadata.get("specdecode", {}).get("source"):  # else it is stale
            yield f"{act} has an id, a tag or metadata that the build does not write at cell {number} ({first(cell)}); {remedy}."
        yield from (f"{line} (cell {number})" for line in leaks(name(path), readable(cell)))
        for output in cell.get("outputs", []):
            yield from (f"{act} is stale at cell {number}: {reason}; {remedy}." for reason in attempt("what is shown", shown, act, output, kept))
            if set(output.get("data", {})) - {"text/plain", "text/html", "text/markdown", "image/png"}:
                yield f"{act} shows {', '.join(output.data)} at cell {number}; show text, tables and PNG pictures only."


def stale(book: nbformat.NotebookNode, source: nbformat.NotebookNode) -> Iterator[str]:
    """Where the notebook has other cells than the source: their number, and the first that differs."""
    if len(book.cells) != len(source.cells):
        yield f"at its end: the source has {len(source.cells)} cells, the notebook {len(book.cells)}"
    for number, (old, new) in enumerate(zip(book.cells, source.cells)):
        recorded = old.metadata.get("specdecode", {}).get("source")
        same = (old.cell_type, old.source, old.metadata.get("tags", [])) == (new.cell_type, new.source, new.metadata.get("tags", []))
        if not same or old.cell_type == "code" and recorded != sha256(new.source.encode())[:16]:
            yield f"at cell {number} ({first(new)})"
            return


def first(cell) -> str:
    """The beginning of a cell, by which a reader finds it."""
    return next(iter(cell.source.splitlines()), "")[:60]


def shown(act: str, output, kept: dict | None) -> Iterator[str]:
    """Why one output does not agree with figures/, the numbers ``kept`` there (None: unreadable) or the data it was drawn from."""
    about = output.get("metadata", {}).get("specdecode", {})
    for kind, (place, _) in FORMATS.items():
        if kind not in about:
            continue
        folder = paths.root() / place
        sidecar = folder / f"{about[kind]}.json"
        if not sidecar.is_file() or sha256(sidecar.read_bytes()) != about["sha256"]:
            yield f"{kind} {about[kind]} is not the one this notebook made"
            continue
        made = json.loads(sidecar.read_text(encoding="utf-8"))["sha256"]
        for suffix, digest in made.items():
            file = folder / f"{about[kind]}.{suffix}"
            if not file.is_file() or sha256(file.read_bytes()) != digest:
                yield f"{name(file)} is not the one this notebook made"
        if kind == "figure" and sha256(base64.b64decode(output.data.get("image/png", ""))) != made["png"]:
            yield f"the picture shown is not {name(folder / (about[kind] + '.png'))}"
    for number, text in (about.get("numbers", {}) if kept is not None else {}).items():
        if kept.get(f"{act}.{number}", {}).get("text") != text:
            yield f"the number {number} is {text!r} here and {kept.get(f'{act}.{number}', {}).get('text')!r} in figures/numbers.json"
    if "finished" in about:
        mine = {key: item for key, item in (kept or {}).items() if key.startswith(f"{act}.")}
        if kept is not None and sha256(numbers.canonical(mine).encode()) != about["numbers_sha256"]:
            yield "the numbers of this Act in figures/numbers.json are not those of this notebook"
        for file, digest in about["sources"].items():
            path = paths.root() / file
            if not path.is_file() or sha256(path.read_bytes()) != digest:
                yield f"{file} has changed since"
        spec = acts.get(act)
        for measured in spec.row_files:
            path = measured_path(measured, spec.defaults.get("target", ""))
            if path.exists() and name(path) not in about["sources"]:
                yield f"{name(path)} has been measured since"


def readable(cell) -> str:
    """All text of a cell, without pictures."""
    parts = [cell.source]
    for output in cell.get("outputs", []):
        parts += [output.get("text", ""), *(str(v) for k, v in output.get("data", {}).items() if not k.startswith("image/")), json.dumps(output.get("metadata", {}))]
    return "\n".join(parts)


def leaks(where: str, text: str) -> Iterator[str]:
    """Paths, host names, addresses and tracebacks, which have no place in a committed file."""
    host = socket.gethostname()
    found = LEAK.search(text)
    if found:
        yield f"{where} holds {found[0]!r}, which belongs to one machine or run; remove its cause and build again"
    elif len(host) > 4 and re.search(rf"\b{re.escape(host)}\b", text) and host != "localhost":
        yield f"{where} holds the name of this host; remove its cause and build again"


def again(act: str) -> list[str]:
    """Execute the notebook once more and compare it and its files byte by byte."""
    remedy = f"run `specdecode-nb build {act}`."
    with notebooks.staging_folder() as staging:
        try:
            book = notebooks.execute(act, {}, staging, staging, f"specdecode-nb figures {act}")
        except RunFailed as failure:
            return [str(failure)]
        old = nbformat.read(paths.notebooks() / f"{act}.ipynb", as_version=4)
        for number, (was, now) in enumerate(zip(old.cells, book.cells)):
            if was != now:
                return [f"{act} gives something else at cell {number} ({first(now)}) when it is run again; {remedy}"]
        made = staging / "figures"
        pairs = {f"notebooks/{act}.ipynb": notebooks.written(book)} | {
            f"figures/{p.relative_to(made).as_posix()}": p.read_bytes() for p in sorted(made.rglob("*")) if p.is_file() and not p.name.startswith("numbers.")}
        return [f"{name} is not what the build writes; {remedy}" for name, data in pairs.items()
                if not (paths.root() / name).is_file() or (paths.root() / name).read_bytes() != data]


def name(path: Path) -> str:
    return path.relative_to(paths.root()).as_posix()
