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
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from .condition import Reading
from .errors import BadInput
from .rows import Row, Strict
from .rows_denoise import ROWS as DENOISE
from .rows_reverse import ROWS as REVERSE
from .trained_rows import ROWS as TRAINED

SCHEMA = 1
ROWS: dict[str, type[Row]] = TRAINED | DENOISE | REVERSE
LARGEST = 64_000_000  # bytes of one file that is read whole
DEEPEST = 64  # levels of lists and objects in one file
JOURNAL = b'{"schema": '  # how the first line of a journal begins
WRITING = ".writing"  # the end of the name of a file that is not whole yet
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


def parse(text: str, where: str, remedy: str = "restore it or measure again") -> Any:
    """JSON as the standard has it: no NaN, no infinity, no key twice, nothing that cannot be computed with or written again.

    Raises BadInput naming file, field and remedy.
    """
    def pairs(items):
        keys = [k for k, _ in items]
        twice = next((k for k in keys if keys.count(k) > 1), None) if len(set(keys)) < len(keys) else None
        if twice is not None:
            raise BadInput(f"{where} holds the key {twice!r} twice in one object; keep one of them.")
        return dict(items)

    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise BadInput(f"{where} is not JSON (line {error.lineno}, column {error.colno}: {error.msg}); {remedy}.") from None
    except RecursionError:
        raise BadInput(f"{where} is not JSON (nested too deeply); {remedy}.") from None
    except BadInput:
        raise
    except ValueError:  # Python refuses to read integers of thousands of digits
        raise BadInput(f"{where} holds a number of too many digits; {remedy}.") from None
    if odd := unfit(value):
        raise BadInput(f"{where} holds {odd}; {remedy}.")
    return value


def unfit(value: Any) -> str | None:
    """The first thing in ``value`` that strict JSON cannot hold or that nothing could compute with, and where; or None."""
    found = _unfit(value, 0)
    return found and f"{found[0]} at {found[1].lstrip('.') or 'the top'}"


def _unfit(value: Any, depth: int) -> tuple[str, str] | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else ("a number that is not finite", "")
    if isinstance(value, int):
        return None if abs(value) < 2**63 else ("a number beyond 64 bits", "")
    if isinstance(value, str):
        return None if value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value) else ("half a character (a lone surrogate)", "")
    if not isinstance(value, (dict, list)):
        return None
    if depth == DEEPEST:
        return "something nested too deeply", ""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if found := _unfit(item, depth + 1) or isinstance(key, str) and _unfit(key, depth):
            return found[0], (f"[{key}]" if isinstance(key, int) else f".{key}") + found[1]
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


def read_text(path: str | Path, what: str) -> str:
    """A whole UTF-8 file. Raises BadInput, also for what is no file (a pipe or a device has no end) and for a huge one."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError("it is no regular file")
            data = file.read(LARGEST + 1) or b""
        if len(data) > LARGEST:
            raise OSError(f"it is larger than {LARGEST:,} bytes")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise BadInput(f"There is no {what} {path}; check the name or make it first.") from None
    except (OSError, ValueError) as error:
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
    if odd := unfit(value):
        raise BadInput(f"{where} would hold {odd}; nothing was written.")
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
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=WRITING)
    try:
        with os.fdopen(handle, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # held while a process is at it, so what a killed one left can be told
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sweep(folder: Path) -> int:
    """Remove what killed processes have left half written in ``folder`` by :func:`write_atomic`; returns how many files."""
    count = 0
    for path in folder.glob(f".*.????????{WRITING}"):
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                count += 1
        except OSError:  # it is being written, or gone
            continue
    return count


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
        if os.path.lexists(self.path) and (self.path.is_symlink() or not self.path.is_file()):
            raise BadInput(f"{self.path} is no journal but a link, a folder or a device; remove it or choose another --out.")
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
        lines = whole.decode("utf-8", errors="replace").split("\n")[:-1]
        if not lines and not data.startswith(JOURNAL[: len(data)]):
            raise BadInput(f"{self.path} is no journal; remove it or choose another --out.")
        found = check_header(parse(lines[0], f"{self.path.name}, line 1"), self.path.name) if lines else None
        if len(whole) < len(data):
            self.dropped = True
            log.warning("%s ends in half a row, which is dropped and measured again.", self.path.name)
            self._file.truncate(len(whole))
        if found is None:
            return self._write(self.header)
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
