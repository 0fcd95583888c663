"""Raw rows on disk: strict to read, atomic to write, safe to interrupt.

A row file is what a measurement leaves; every rate, median and verdict is computed from its rows. A journal is a row
file in the making: one line a row, each forced to disk, so a killed measurement goes on from its finished rows.
"""
from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from .condition import Reading
from .errors import BadInput
from .rows import ROWS, Row, Strict

SCHEMA = 1
log = logging.getLogger(__name__)


class Provenance(Strict):
    """Where rows were measured. Files from before the condition was read have none."""

    condition: list[Reading] = []


class Header(Strict):
    """Everything of a row file but the rows."""

    schema_: Annotated[int, Field(alias="schema")]
    act: str
    target: str
    provenance: Provenance
    config: dict[str, Any]


@dataclass(frozen=True)
class RowFile:
    """A validated row file. ``digest`` is the sha256 of its bytes, ``name`` how a reader finds it."""

    act: str
    target: str
    provenance: dict
    config: dict
    rows: list[dict]
    name: str
    digest: str

    @property
    def published(self) -> bool:
        """Whether the rows were imported from the published project: never measured here."""
        return self.provenance.get("origin") == "published"

    def of(self, kind: str) -> list[dict]:
        """The rows of one kind, in file order."""
        return [row for row in self.rows if row["kind"] == kind]


def parse(text: str, where: str) -> Any:
    """JSON as the standard has it: no NaN, no infinity, no key twice. Raises BadInput naming file, field and remedy."""
    def pairs(items):
        keys = [k for k, _ in items]
        twice = next((k for k in keys if keys.count(k) > 1), None) if len(set(keys)) < len(keys) else None
        if twice is not None:
            raise BadInput(f"{where} holds the key {twice!r} twice in one object; keep one of them.")
        return dict(items)

    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except (json.JSONDecodeError, RecursionError) as error:
        place = f"line {error.lineno}, column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        raise BadInput(f"{where} is not JSON ({place}); restore it or measure again.") from None
    odd = not_finite(value)
    if odd:
        raise BadInput(f"{where} holds a number that is not finite at {odd}; strict JSON has none, so measure that row again.")
    return value


def not_finite(value: Any, at: str = "") -> str | None:
    """The path of the first number that is NaN or infinite, or None."""
    if isinstance(value, float):
        return None if math.isfinite(value) else at or "the top"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found = not_finite(item, f"{at}[{key}]" if isinstance(key, int) else f"{at}.{key}".lstrip("."))
        if found:
            return found
    return None


def conform(model: type[Strict], value: Any, where: str, at: str = "") -> Strict:
    """``value`` as ``model``; the first thing that does not fit becomes one sentence."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = at + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise BadInput(f"{where} does not fit the schema at {field.lstrip('.') or 'the top'}: {message[0].lower() + message[1:]}; "
                       "correct that field or measure again.") from None


def check_row(row: Any, where: str, at: str = "row") -> dict:
    """``row`` itself, once it fits the schema of its kind; a kind without a schema only has to be named."""
    kind = row.get("kind") if isinstance(row, dict) else None
    conform(ROWS.get(kind, Row) if isinstance(kind, str) else Row, row, where, at)
    return row


def check_header(value: Any, where: str) -> dict:
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or isinstance(value.get("schema"), bool):
        found = value.get("schema") if isinstance(value, dict) else None
        raise BadInput(f"{where} has schema {found!r}, this version reads {SCHEMA}; read it with the version that wrote it or import it again.")
    conform(Header, value, where)
    return value


def read_text(path: Path, what: str) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise BadInput(f"There is no {what} {path}; check the name or make it first.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{what[0].upper() + what[1:]} {path} cannot be read ({error}); restore it.") from None


def load_rows(path: str | Path, name: str | None = None) -> RowFile:
    """Read and validate a row file. ``name`` is what figures and tables call it, by default its file name."""
    path = Path(path)
    text = read_text(path, "row file")
    where = name or path.name
    value = check_header(parse(text, where), where)
    if not isinstance(value.get("rows"), list):
        raise BadInput(f"{where} has no list at rows; restore it or measure again.")
    for number, row in enumerate(value["rows"]):
        check_row(row, where, f"rows[{number}]")
    return RowFile(value["act"], value["target"], value["provenance"], value["config"], value["rows"], where, sha256(text.encode()))


def save_rows(path: str | Path, act: str, target: str, provenance: dict, config: dict, rows: list[dict]) -> Path:
    """Validate and write a row file, one row a line so that differences are readable; replaces the old file at once."""
    path = Path(path)
    head = check_header({"schema": SCHEMA, "act": act, "target": target, "provenance": provenance, "config": config}, path.name)
    body = ",\n".join("  " + dumps(check_row(row, path.name, f"rows[{n}]"), path.name) for n, row in enumerate(rows))
    fields = ",\n".join(f" {json.dumps(key)}: {dumps(value, path.name)}" for key, value in head.items())
    write_atomic(path, f"{{\n{fields},\n \"rows\": [\n{body}\n ]\n}}\n")
    return path


def dumps(value: Any, where: str = "the row") -> str:
    """One line of strict JSON. Raises BadInput for what JSON does not have."""
    odd = not_finite(value)
    if odd:
        raise BadInput(f"{where} would hold a number that is not finite at {odd}; nothing was written.")
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except TypeError as error:
        raise BadInput(f"{where} would hold a value that JSON has no type for ({error}); convert it to a plain number, text or list.") from None


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replace ``path`` by ``data`` in one step: a reader sees the old file or the new one."""
    data = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class Finished(Exception):
    """A resume found nothing to go on with: ``path`` is the finished row file, of the same settings."""

    def __init__(self, path: Path):
        super().__init__(f"{path} is finished.")
        self.path = path


class Journal:
    """An append-only measurement. Use as a context manager; iterate for the rows that are already finished.

    The file lives at ``path`` (suffix ``.journal``) until :meth:`finish` turns it into the row file beside it. Its
    first line holds provenance and configuration: a resume under any other is refused, date and condition apart. A resume that
    meets no journal but the finished row file raises :class:`Finished`.
    ``dropped`` tells whether a torn last line was discarded.
    """

    def __init__(self, path: str | Path, act: str, target: str, provenance: dict, config: dict, resume: bool = False):
        self.path, self.resume, self.dropped = Path(path), resume, False
        self.header = check_header({"schema": SCHEMA, "act": act, "target": target, "provenance": provenance, "config": config}, self.path.name)
        self._rows: list[dict] = []
        self._file = None

    def __enter__(self) -> Journal:
        if not self.resume and self.path.exists() and self.path.stat().st_size:
            raise BadInput(unfinished(self.path))
        if self.resume and not self.path.exists() and self.path.with_suffix(".json").exists():
            path = self.path.with_suffix(".json")
            file = load_rows(path)
            self._same({k: getattr(file, k) for k in ("act", "target", "provenance", "config")}, path.name)
            raise Finished(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a+b")
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BadInput(f"Another process is writing {self.path.name}; wait for it or choose another --out.") from None
            self._recover()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[dict]:
        return iter(list(self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    def _recover(self) -> None:
        """Read what is there, cut a torn last line off, and write the header if nothing is left."""
        self._file.seek(0)
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self.dropped = True
            log.warning("%s ends in half a row, which is dropped and measured again.", self.path.name)
            self._file.truncate(len(whole))
        lines = whole.decode("utf-8", errors="replace").split("\n")[:-1]
        if not lines:
            return self._write(self.header)
        found = check_header(parse(lines[0], f"{self.path.name}, line 1"), self.path.name)
        self._same(found, self.path.name)
        # one file, one provenance: the date is that of the first row
        self.header = found
        for n, line in enumerate(lines[1:], 2):
            where = f"{self.path.name}, line {n}"
            value = parse(line, where)
            if isinstance(value, dict) and value.keys() == {"condition"}:
                conform(Reading, value["condition"], where, "condition")
                self._note(value["condition"])
            else:
                self._rows.append(check_row(value, where))

    def _same(self, found: dict, where: str) -> None:
        different = difference(found, {k: v for k, v in json.loads(dumps(self.header)).items() if k in found})
        if different:
            raise BadInput(f"{where} was begun under another configuration ({different}); resume with that one or choose another --out.")

    def _write(self, value: dict) -> None:
        self._file.write(dumps(value, self.path.name).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _note(self, reading: dict) -> None:
        provenance = self.header["provenance"]
        self.header["provenance"] = provenance | {"condition": [*provenance.get("condition", []), reading]}

    def note(self, reading: dict) -> None:
        """Add a reading of the machine's condition to the provenance; it is on disk when this returns."""
        self._write({"condition": reading})
        self._note(reading)

    def append(self, row: dict) -> None:
        """Add one finished row; it is on disk when this returns."""
        self._write(check_row(row, self.path.name))
        self._rows.append(row)

    def finish(self) -> Path:
        """Write the row file beside the journal, remove the journal, and return the row file's path."""
        h = self.header
        path = save_rows(self.path.with_suffix(".json"), h["act"], h["target"], h["provenance"], h["config"], self._rows)
        self.path.unlink()
        return path


def unfinished(journal: Path) -> str:
    """The sentence for a journal in the way."""
    return f"{journal} holds an unfinished measurement; go on from it with --resume, or choose another --out."


def difference(old: Any, new: Any, at: str = "") -> str:
    """``field: old, now new`` for the first difference between two headers, or nothing; dates and readings of the machine's condition are not compared."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            if (at, key) not in (("provenance", "date"), ("provenance", "condition")) and (found := difference(old.get(key), new.get(key), f"{at}.{key}".lstrip("."))):
                return found
        return ""
    return "" if old == new and type(old) is type(new) else f"{at} was {old!r}, now {new!r}"
