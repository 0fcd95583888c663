"""Row files and published files: their schemas, strict reading and writing, and the journal of a running measurement."""
from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import BadInput

SCHEMA = 1
Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class DecodeRow(_Open):
    """One generation of one arm; seconds are wall time, lists have one entry a cycle."""

    kind: Literal["decode"]
    arm: str
    prompt_id: str
    category: str
    repeat: Count
    prompt_tokens: Count
    tokens: Count
    wall_seconds: Seconds
    prefill_seconds: Seconds
    draft_seconds: Seconds
    verify_seconds: Seconds
    commit_seconds: Seconds
    forwards: Count
    cycles: Count
    accepted_per_cycle: list[Count]
    committed_per_cycle: list[Count]
    ar_looped_fraction: Annotated[float, Field(ge=0, le=1)]
    identical_to_ar: bool
    first_divergence: Count | None
    divergence_gap_ulps: float | None


class RowFile(_Open):
    """``data/measured/<target>/<act>.json``."""

    schema_: Literal[1] = Field(alias="schema")
    act: str
    target: str
    provenance: dict[str, Any]
    config: dict[str, Any]
    rows: list[dict[str, Any]]


class Column(_Open):
    name: str
    unit: str


class Table(_Open):
    id: str
    title: str
    columns: list[Column]
    rows: list[list[Any]]
    source: str


class Criterion(_Open):
    id: str
    statement: str
    threshold: Any
    observed: Any
    passed: bool | None


class Published(_Open):
    """``data/published/<act>.json``: facts of the published project, with their sources."""

    act: str
    title: str
    question: str
    date: str | None
    setup: dict[str, Any]
    criteria: list[Criterion]
    verdict: str
    tables: list[Table]
    negative_results: list[Any]
    figures_of_merit: list[Any]
    notes: list[Any]


def _refuse(constant: str):
    raise ValueError(f"it holds {constant}, which is not JSON")


def read_json(path: Path) -> Any:
    """Strict JSON: no NaN, no Infinity. Raises BadInput that names the file and the remedy."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except FileNotFoundError:
        raise BadInput(f"There is no file {path.name!r} where it was expected; check the name or measure the Act first.") from None
    except (ValueError, OSError) as error:
        raise BadInput(f"The file {path.name!r} cannot be read ({error}); restore it or measure again.") from None


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace ``path`` in one step, so that a killed run leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.writing")
    scratch.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(scratch, path)


def digest(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _validate(model: type[BaseModel], value: Any, name: str) -> Any:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "the file"
        raise BadInput(f"In {name!r}, {where}: {first['msg'].lower()}; this is not a file of schema {SCHEMA}.") from None


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    return all(map(_finite, value)) if isinstance(value, list) else True


def check_row(row: dict, name: str = "row") -> dict:
    """The row itself, if it fits its kind. Raises BadInput."""
    if not isinstance(row.get("kind"), str):
        raise BadInput(f"In {name!r} a row has no kind; it was not written by this package.")
    if row["kind"] == "decode":
        _validate(DecodeRow, row, name)
    if not _finite(row):
        raise BadInput(f"In {name!r} a row of kind {row['kind']!r} holds a number that is not finite; measure it again.")
    return row


def load_rows(path: Path) -> RowFile:
    """A row file, with every row checked. Raises BadInput for a missing field, wrong type, NaN or unknown schema."""
    value = read_json(path)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        found = value.get("schema") if isinstance(value, dict) else type(value).__name__
        raise BadInput(f"The file {path.name!r} has schema {found!r} and this version reads schema {SCHEMA}; measure again or use the version that wrote it.")
    file = _validate(RowFile, value, path.name)
    for row in file.rows:
        check_row(row, path.name)
    return file


def load_published(path: Path) -> Published:
    return _validate(Published, read_json(path), path.name)


def dump_rows(act: str, target: str, provenance: dict, config: dict, rows: list[dict]) -> str:
    """The text of a row file: strict JSON, one row a line, so that a difference names its row."""
    one = lambda v: json.dumps(v, allow_nan=False, ensure_ascii=False)  # noqa: E731
    body = ",\n  ".join(one(check_row(row)) for row in rows)
    return (f'{{"schema": {SCHEMA}, "act": {one(act)}, "target": {one(target)},\n "provenance": {one(provenance)},\n'
            f' "config": {one(config)},\n "rows": [\n  {body}\n]}}\n')


def save_rows(path: Path, act: str, target: str, provenance: dict, config: dict, rows: list[dict]) -> None:
    write_atomic(path, dump_rows(act, target, provenance, config, rows))


class Journal:
    """Rows of a running measurement, appended one line at a time; what is written survives a kill.

    The first line holds act, target, provenance and config. A torn last line is dropped on resume. :meth:`finish` writes
    the row file beside the journal and removes the journal.

    Raises:
        BadInput: an unfinished journal without ``resume``, or one of another configuration.
    """

    def __init__(self, path: Path, act: str, target: str, provenance: dict, config: dict, resume: bool = False):
        self.path, self.result = path, path.with_name(f"{act}.json")
        self.head = {"schema": SCHEMA, "act": act, "target": target, "provenance": provenance, "config": config}
        self.rows: list[dict] = []
        self.dropped = 0
        if path.exists():
            if not resume:
                raise BadInput(f"{path.name!r} holds the rows of an unfinished run; add --resume to go on from them, or choose another --out.")
            self._restore()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(self.head, allow_nan=False) + "\n")
        self._handle = path.open("a", encoding="utf-8")

    def _restore(self) -> None:
        lines = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
        whole = []
        for line in lines[:-1]:  # the last piece is empty, or torn by a kill
            try:
                whole.append(json.loads(line, parse_constant=_refuse))
            except ValueError:
                break
        self.dropped = len([x for x in lines if x]) - len(whole)
        if not whole or whole[0].get("config") != self.head["config"] or whole[0].get("act") != self.head["act"]:
            raise BadInput(f"{self.path.name!r} belongs to a run with other parameters; repeat those, or choose another --out.")
        kept = whole[0]["provenance"]
        for key in ("machine", "blas", "target", "drafter", "package_digest"):
            if kept.get(key) != self.head["provenance"].get(key):
                raise BadInput(f"{self.path.name!r} was measured with another {key.replace('_', ' ')}; start again in another --out.")
        self.head, self.rows = whole[0], [check_row(r, self.path.name) for r in whole[1:]]
        write_atomic(self.path, "".join(json.dumps(x, allow_nan=False) + "\n" for x in whole))

    def append(self, row: dict) -> None:
        self._handle.write(json.dumps(check_row(row), allow_nan=False) + "\n")
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self.rows.append(row)

    def __iter__(self):
        return iter(list(self.rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_) -> None:
        self._handle.close()

    def finish(self) -> Path:
        head = self.head
        save_rows(self.result, head["act"], head["target"], head["provenance"], head["config"], self.rows)
        self._handle.close()
        self.path.unlink()
        return self.result
