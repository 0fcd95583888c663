"""The published facts of an Act as typed tables, each with its units and its origin."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pandas as pd
from pydantic import AfterValidator, ConfigDict, model_validator

from .. import paths
from ..errors import BadInput, nearest
from ..records import Strict, conform, parse, read_text, sha256
from . import acts


class Facts(Strict):
    model_config = ConfigDict(strict=True, extra="forbid")


def whole_name(column: Column) -> Column:
    """Undo a split at the wrong bar: "max |dlogit| slot 1" came apart as a name and a unit."""
    if column.unit.count("|") == 1:
        return Column(name=f"{column.name} |{column.unit}".strip(), unit="")
    return column


class Column(Facts):
    name: str
    unit: str


class Table(Facts):
    id: str
    title: str
    columns: list[Annotated[Column, AfterValidator(whole_name)]]
    rows: list[list[float | int | bool | str | None]]
    source: str

    @model_validator(mode="after")
    def rectangular(self):
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"row {number} of table {self.id} has {len(row)} cells for {len(self.columns)} columns")
        return self

    def frame(self) -> pd.DataFrame:
        """Columns by name; ``attrs["units"]`` maps a column to its unit, missing cells are None."""
        names = [c.name for c in self.columns]
        frame = pd.DataFrame({name: pd.Series([row[i] for row in self.rows], dtype=object) for i, name in enumerate(names)}, columns=names)
        for name in names:
            kinds = {type(v) for v in frame[name] if v is not None}
            if kinds == {int} and frame[name].notna().all():
                frame[name] = frame[name].astype("int64")
            elif kinds == {float}:  # a mixture stays as it is: such a column has another quantity in each row
                frame[name] = frame[name].astype("float64")
        frame.attrs = {"units": {c.name: c.unit for c in self.columns if c.unit}}
        return frame


class Criterion(Facts):
    id: str
    statement: str
    threshold: str
    observed: str
    passed: bool | None


class Negative(Facts):
    hypothesis: str
    observed: str
    numbers: dict[str, int | float | list[int | float]]
    source: str


class Merit(Facts):
    name: str
    value: int | float
    unit: str
    ci: list[float] | None
    source: str


class Published(Facts):
    """The facts of one published Act, as its sources state them."""

    act: str
    title: str
    question: str
    date: str | None
    setup: dict[str, str | int | float]
    criteria: list[Criterion]
    verdict: str
    tables: list[Table]
    negative_results: list[Negative]
    figures_of_merit: list[Merit]
    notes: list[str]


@dataclass(frozen=True)
class Act:
    """Published facts with their file name and digest."""

    facts: Published
    name: str
    digest: str

    @property
    def label(self) -> str:
        """Where these numbers come from; every figure and table of them says it."""
        setup = self.facts.setup
        model = setup.get("model") or setup.get("target") or "model not named"
        hardware = setup.get("hardware", "machine not named")
        return f"published: {model}; {hardware}; {self.facts.date or 'undated'}"

    def table(self, table: str) -> Table:
        for candidate in self.facts.tables:
            if candidate.id == table:
                return candidate
        ids = [t.id for t in self.facts.tables]
        raise BadInput(f"{self.facts.act} has no published table {table!r}{nearest(table, ids)}; its tables are {', '.join(ids)}.")

    def frame(self, table: str) -> pd.DataFrame:
        return self.table(table).frame()

    def value(self, table: str, column: str, **where):
        """One cell of a published table: ``value("s_ksweep", "TPF", arm="uno_k4")``. The row must be the only one."""
        frame = self.frame(table)
        for name in (column, *where):
            if name not in frame.columns:
                raise BadInput(f"Table {table} has no column {name!r}{nearest(name, frame.columns)}.")
        for name, wanted in where.items():
            frame = frame[frame[name] == wanted]
        if len(frame) != 1:
            raise BadInput(f"Table {table} has {len(frame)} rows with {where}; name exactly one.")
        cell = frame[column].iloc[0]
        return cell.item() if hasattr(cell, "item") else cell

    def negative(self, beginning: str) -> Negative:
        """The negative result whose hypothesis begins so."""
        found = [n for n in self.facts.negative_results if n.hypothesis.startswith(beginning)]
        if len(found) != 1:
            known = [n.hypothesis for n in self.facts.negative_results]
            raise BadInput(f"{len(found)} negative results of {self.facts.act} begin with {beginning!r}{nearest(beginning, known)}.")
        return found[0]


class ReadFact(Facts):
    fact: str
    value: str
    bites: str
    source: str


class ReadFacts(Facts):
    """What somebody read in public code and records: neither in a publication nor measured. ``blocks``: block width by model."""

    what: str
    date: str | None
    blocks: dict[str, int]
    facts: list[ReadFact]


@dataclass(frozen=True)
class Reading:
    """Facts read by hand, with their file name and digest; a source like the others."""

    facts: ReadFacts
    name: str
    digest: str

    @property
    def label(self) -> str:
        return f"read upstream, not measured; {self.facts.date or 'undated'}"

    def frame(self) -> pd.DataFrame:
        return pd.DataFrame([{"fact": f.fact, "value": f.value, "where it bites": f.bites, "read in": f.source} for f in self.facts.facts])


def read(act: str) -> Reading:
    """Facts read for ``act`` from data/read. Raises BadInput for a file that does not fit."""
    name = f"data/read/{act}.json"
    text = read_text(paths.root() / name, "file of facts that were read")
    return Reading(conform(ReadFacts, parse(text, name), name), name, sha256(text.encode()))


def title(act: str) -> str:
    """The short title of any Act, ours too: "Act IV-S"."""
    return (load(act).facts.title if act in paths.ACTS else acts.get(act).title).split(":")[0].split(" (")[0]


def load(act: str) -> Act:
    """The facts of ``act`` from data/published. Raises BadInput for a file that does not fit, naming field and remedy."""
    path = paths.data() / "published" / f"{act}.json"
    name = f"data/published/{path.name}"
    if act not in paths.ACTS:
        raise BadInput(f"There is no published Act {act!r}{nearest(act, paths.ACTS)}; the Acts are {', '.join(paths.ACTS)}.")
    text = read_text(path, "file of published facts")
    facts = conform(Published, parse(text, name), name)
    if facts.act != act:
        raise BadInput(f"{name} holds the facts of {facts.act!r}; restore the file.")
    return Act(facts, name, sha256(text.encode()))
