"""Every derived file against its source: pairs, pictures, tables, numbers, schemas, leaks. Reports, never repairs."""
from __future__ import annotations

import base64
import json
import re
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

import nbformat

from .. import criteria, paths
from ..errors import BadInput
from ..records import load_rows, parse, read_text, sha256
from . import acts, notebooks, numbers, published
from .errors import RunFailed
from .page import measured_path

LARGEST = 1_000_000  # bytes of one executed notebook
LEAK = re.compile(r"/(?:home|root|Users|tmp|private|var/folders|work)/[\w.]|ipykernel_\d|\bat 0x[0-9a-f]{6,}|\r|Traceback \(most recent")
CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def problems(rebuild: bool = False) -> list[str]:
    """One sentence for each thing that does not agree; with ``rebuild`` every notebook is executed again and compared."""
    pairs = {act: list(pair(act)) for act in notebooks.sources()}
    found = [*data(), *strays(), *(line for lines in pairs.values() for line in lines)]
    if rebuild:
        found += [line for lines in notebooks.each(again, [act for act, lines in pairs.items() if not lines]) for line in lines]
    return found


def data() -> Iterator[str]:
    """Published facts, criteria, measured rows and the files of figures/ as schemas and strict JSON have them."""
    for act in paths.ACTS:
        try:
            published.load(act)
        except BadInput as error:
            yield str(error)
    for path in sorted((paths.data() / "criteria").glob("*.json")):
        try:
            criteria.load(path.stem)
        except BadInput as error:
            yield str(error)
    for path in sorted((paths.data() / "read").glob("*.json")):
        try:
            published.read(path.stem)
        except BadInput as error:
            yield str(error)
    for path in sorted((paths.data() / "measured").glob("*/*.json")):
        try:
            load_rows(path, name(path))
            yield from leaks(name(path), path.read_text(encoding="utf-8"))
        except BadInput as error:
            yield str(error)
    for path in sorted(p for p in paths.figures().rglob("*") if p.suffix in (".json", ".csv", ".md", ".tex", ".svg")):
        text = path.read_text(encoding="utf-8")
        yield from leaks(name(path), text)
        if path.suffix == ".json":
            try:
                parse(text, name(path))
            except BadInput as error:
                yield str(error)
    file = paths.figures() / "numbers.json"
    if file.exists() and (paths.figures() / "numbers.tex").read_text(encoding="utf-8") != numbers.as_latex(numbers.load(file)):
        yield "figures/numbers.tex does not follow from figures/numbers.json; run `specdecode-nb build`."


def strays() -> Iterator[str]:
    """Notebooks and figures that no source makes."""
    known = set(notebooks.sources())
    for path in sorted([*paths.notebooks().glob("*.ipynb"), *paths.figures().glob("*-*"), *paths.figures().glob("tables/*-*")]):
        owner = path.stem if path.suffix == ".ipynb" else path.name.split("-", 1)[0]
        if owner not in known:
            yield f"{name(path)} has no notebook source; remove it or write notebooks/source/{owner}.py."


def pair(act: str) -> Iterator[str]:
    """One text source and its executed notebook, and everything that the notebook shows."""
    path, remedy = paths.notebooks() / f"{act}.ipynb", f"run `specdecode-nb build {act}`"
    if not path.exists():
        yield f"{name(path)} has not been built; {remedy}."
        return
    try:
        source = notebooks.read_source(act)
        text = read_text(path, "executed notebook")
        parse(text, name(path))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            book = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
            nbformat.validate(book)
    except BadInput as error:
        yield str(error)
        return
    except Exception as error:  # nbformat raises its validator's own classes
        yield f"{name(path)} is no valid notebook ({str(error).splitlines()[0]}); {remedy}."
        return
    if (book.nbformat, book.nbformat_minor) != (4, 5):
        yield f"{name(path)} has notebook format {book.nbformat}.{book.nbformat_minor}, not 4.5; {remedy}."
        return
    if len(text.encode()) > LARGEST:
        yield f"{name(path)} is {len(text.encode()):,} bytes, above {LARGEST:,}; show less."
    ids = [cell.get("id", "") for cell in book.cells]
    if len(set(ids)) < len(ids) or not all(CELL_ID.fullmatch(i) for i in ids):
        yield f"{name(path)} has cell ids that are not unique or not allowed; {remedy}."
    if len(book.cells) != len(source.cells):
        yield f"{act} is stale: its source has {len(source.cells)} cells, the notebook {len(book.cells)}; {remedy}."
    for number, (old, new) in enumerate(zip(book.cells, source.cells)):
        recorded = old.metadata.get("specdecode", {}).get("source")
        if old.cell_type != new.cell_type or old.source != new.source or (old.cell_type == "code" and recorded != sha256(new.source.encode())[:16]):
            yield f"{act} is stale at cell {number} ({next(iter(new.source.splitlines()), '')[:60]}); {remedy}."
            break
    yield from (f"{act} did not run well at cell {number}: {reason}; {remedy}." for number, reason in notebooks.faults(act, book))
    for number, cell in enumerate(book.cells):
        yield from (f"{line} (cell {number})" for line in leaks(name(path), readable(cell)))
        for output in cell.get("outputs", []):
            yield from (f"{act} is stale at cell {number}: {reason}; {remedy}." for reason in shown(act, output))
            if set(output.get("data", {})) - {"text/plain", "text/html", "text/markdown", "image/png"}:
                yield f"{act} shows {', '.join(output.data)} at cell {number}; show text, tables and PNG pictures only."


def shown(act: str, output) -> Iterator[str]:
    """Why one output does not agree with figures/, numbers.json or the data it was drawn from."""
    about = output.get("metadata", {}).get("specdecode", {})
    for kind, folder in (("figure", paths.figures()), ("table", paths.figures() / "tables")):
        if kind not in about:
            continue
        sidecar = folder / f"{about[kind]}.json"
        if not sidecar.exists() or sha256(sidecar.read_bytes()) != about["sha256"]:
            yield f"{kind} {about[kind]} is not the one this notebook made"
            continue
        for suffix, digest in json.loads(sidecar.read_text(encoding="utf-8"))["sha256"].items():
            file = folder / f"{about[kind]}.{suffix}"
            if not file.exists() or sha256(file.read_bytes()) != digest:
                yield f"{name(file)} is not the one this notebook made"
        if kind == "figure" and sha256(base64.b64decode(output.data["image/png"])) != json.loads(sidecar.read_text(encoding="utf-8"))["sha256"]["png"]:
            yield f"the picture shown is not {name(folder / (about[kind] + '.png'))}"
    kept = numbers.load(paths.figures() / "numbers.json") if "numbers" in about or "finished" in about else {}
    for number, text in about.get("numbers", {}).items():
        if kept.get(f"{act}.{number}", {}).get("text") != text:
            yield f"the number {number} is {text!r} here and {kept.get(f'{act}.{number}', {}).get('text')!r} in figures/numbers.json"
    if "finished" in about:
        mine = {key: item for key, item in kept.items() if key.startswith(f"{act}.")}
        if sha256(numbers.canonical(mine).encode()) != about["numbers_sha256"]:
            yield "the numbers of this Act in figures/numbers.json are not those of this notebook"
        for file, digest in about["sources"].items():
            path = paths.root() / file
            if not path.exists() or sha256(path.read_bytes()) != digest:
                yield f"{file} has changed since"
        spec = acts.get(act)
        for measured in (act, *(f"{act}_{part}" for part in spec.parts)):
            rows = measured_path(measured, spec.defaults.get("target", ""))
            if rows.exists() and name(rows) not in about["sources"]:
                yield f"{name(rows)} has been measured since"


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
                return [f"{act} gives something else at cell {number} ({next(iter(now.source.splitlines()), '')[:60]}) when it is run again; {remedy}"]
        made = staging / "figures"
        pairs = {f"notebooks/{act}.ipynb": notebooks.written(book)} | {
            f"figures/{p.relative_to(made).as_posix()}": p.read_bytes() for p in sorted(made.rglob("*")) if p.is_file() and not p.name.startswith("numbers.")}
        return [f"{name} is not what the build writes; {remedy}" for name, data in pairs.items()
                if not (paths.root() / name).is_file() or (paths.root() / name).read_bytes() != data]


def name(path: Path) -> str:
    return path.relative_to(paths.root()).as_posix()
