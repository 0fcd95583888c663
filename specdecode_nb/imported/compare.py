"""The published tables worked out again from an imported folder and held against data/published, cell by cell.

A cell agrees if what was worked out rounds to the digits printed in its column. How it was worked out: from ``rows`` (decode rows, by
:mod:`specdecode_nb.statistics`), from ``counts`` (cycles by accepted tokens, restored from published shares), ``derived`` (ratios, fits and sums of
published aggregates), or only ``read`` (the number stands in a published file as it is). Cells whose rows or files are not in the folder are not
judged.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import statistics as st
from ..book import published
from ..errors import BadInput
from .folder import Source
from .stream import REMEDY

ROWS, COUNTS, DERIVED, READ = "rows", "counts", "derived", "read"
Cells = dict[tuple, dict[str, tuple[Any, str]]]  # row of a published table -> column -> (value, how it was worked out)


@dataclass(frozen=True)
class Line:
    """One published cell; ``agrees`` is None where the folder does not hold what it takes, ``how`` is then empty."""

    act: str
    table: str
    row: str
    column: str
    published: Any
    found: Any
    how: str
    agrees: bool | None


@dataclass(frozen=True)
class Table:
    """How a published table is worked out: by its first ``keys`` cells a row, without ``skip``, which no raw file holds."""

    id: str
    make: Callable[[Results], Cells]
    keys: int = 1
    skip: tuple[str, ...] = ()
    mixed: bool = False  # another quantity in each row: digits by cell


class Results:
    """An imported folder, by the stems of its files. What is not in it is empty or None."""

    def __init__(self, sources: Iterable[Source]):
        self.sources = {s.stem: s for s in sources}

    def rows(self, stem: str) -> list[dict]:
        """The rows of a JSON file if all of them are here."""
        source = self.sources.get(stem)
        return source.rows if source and source.whole else []

    def lines(self, stem: str) -> list[dict]:
        """Those of a CSV file."""
        return self.sources[stem].about["lines"] if stem in self.sources else []

    def value(self, stem: str, *path: str | int) -> Any:
        """What a JSON file holds at ``path``, in a list the entry of an arm; a sample that was cut counts for what it holds beside its rows."""
        source = self.sources.get(stem)
        found = source.about if source and not (source.sample and source.reads == "aggregate") else None
        for key in path:
            if isinstance(found, list) and isinstance(key, str):
                found = {x["arm"]: x for x in reversed(found) if isinstance(x, dict) and isinstance(x.get("arm"), str)}
            found = found.get(key) if isinstance(found, dict) else found[key] if isinstance(found, list) and key < len(found) else None
        return found

    def get(self, stem: str, *path: str | int) -> float | None:
        """The number there, if there is anything. Raises BadInput for what is no number."""
        found = self.value(stem, *path)
        if isinstance(found, bool) or not isinstance(found, (int, float, type(None))):
            raise BadInput(f"{stem}.json has no number at {'.'.join(map(str, path))}; {REMEDY}.")
        return found

    def need(self, stem: str, *path: str | int) -> float:
        """A number without which a table cannot be worked out."""
        found = self.get(stem, *path)
        if found is None:
            raise KeyError(path)
        return found


# --- what several tables are made by ---

def marked(how: str, values: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    return {column: (v, how) for column, v in values.items() if v is not None}


def spread(stem: str, keys: tuple[str, ...], names: Mapping[str, str], **where) -> Callable[[Results], Cells]:
    """Cells that stand in a CSV file: its lines with the values ``where``, a row by ``keys``. A column's name may hold values of the line in braces."""

    def make(r: Results) -> Cells:
        cells: Cells = {}
        for x in st.only(r.lines(stem), **where):
            cells.setdefault(tuple(x[k] for k in keys), {}).update(marked(READ, {c.format_map(x): x[n] for c, n in names.items()}))
        return cells

    return make


def paths(stem: str, rows: Mapping[Any, Mapping[str, tuple]]) -> Callable[[Results], Cells]:
    """Cells that stand in a JSON file, each at its path: row -> column -> path."""
    return lambda r: {(row,): marked(READ, {column: r.get(stem, *path) for column, path in cells.items()}) for row, cells in rows.items()}


# --- decode rows to the published summary, by its column names ---

def ms(stage: str) -> Callable[[dict], float]:
    return lambda r: r["recorded"].get(f"{stage}_ms_per_cycle", 0.0)


def measured(rows: list[dict], control: list[dict]) -> dict[str, Any]:
    """One summary of the rows of one arm; shares and times of a row have the digits they were published with."""
    speed, decode = st.quantiles([st.tokens_per_second(r) for r in rows]), st.median_of(rows, st.decode_tokens_per_second)
    out = {
        "rows": len(rows),
        **{f"tok_s_{name}": speed[name] for name in ("median", "mean", "sd", "p25", "p75")},
        "decode_tok_s_median": decode,
        "tpf_median": st.median_of(rows, lambda r: round(st.tokens_per_forward(r), 4)),
        "ms_per_token_median": st.median_of(rows, lambda r: 1000 * r["wall_seconds"] / r["tokens"]),
        "ttft_ms_median": st.median_of(rows, lambda r: 1000 * r["prefill_seconds"]),
        "acceptance_rate": st.median_of(rows, st.acceptance),
        "mean_accepted_prefix": st.mean(st.pooled(rows, "accepted_per_cycle")),
        "mean_committed_per_cycle": st.mean(st.pooled(rows, "committed_per_cycle")),
        "cycles": sum(r["cycles"] or r["forwards"] for r in rows),
        **{f"{stage}_ms": st.median_of(rows, ms(stage)) for stage in ("proposal", "verify", "commit", "overhead")},
    }
    if control:
        out["speedup_vs_ar"] = speed["median"] / st.median_of(control, st.tokens_per_second)
        out["decode_speedup_vs_ar"] = decode / st.median_of(control, st.decode_tokens_per_second)
    return out


def summary(r: Results, session: str, by: str = "", clean: bool = False, **only) -> Cells:
    """(arm, value of ``by``) to every summary column, of rows with the values ``only``: from rows if all are here, else from the published CSV."""
    theirs = {"tokens": "max_tokens"}
    rows = r.rows(f"main_{session}")
    whole = bool(rows)
    if whole:
        rows = st.loop_free(rows) if clean else rows
    else:
        rows = r.lines(f"main_{session}_" + ("by_category" if by == "category" else "summary_clean" if clean else "summary"))
        by, only = theirs.get(by, by), {theirs.get(k, k): v for k, v in only.items()}
    groups = st.by([x | {"": ""} for x in st.only(rows, **only)], "arm", by)
    if whole:
        return {key: marked(ROWS, measured(group, groups.get(("ar", key[1]), []))) for key, group in groups.items()}
    out = {key: marked(READ, group[-1]) for key, group in groups.items()}
    for (_, value), entry in out.items():
        for ratio, column in (("speedup_vs_ar", "tok_s_median"), ("decode_speedup_vs_ar", "decode_tok_s_median")):
            if plain := out.get(("ar", value), {}).get(column, (0,))[0]:
                entry[ratio] = (entry[column][0] / plain, DERIVED)
    if not by and not clean:
        for arm, accepted in counts(r, session).items():
            out[arm, ""]["mean_accepted_prefix"] = (st.mean(accepted), COUNTS)
    return out


def counts(r: Results, session: str) -> dict[str, list[int]]:
    """By arm, the accepted tokens of every cycle: from rows, or restored from the published shares, which have five digits for fewer than 2e4 cycles."""
    if rows := r.rows(f"main_{session}"):
        return {arm: st.pooled(group, "accepted_per_cycle") for arm, group in st.by(rows, "arm").items() if any(x["cycles"] for x in group)}
    cycles = {x["arm"]: x["cycles"] for x in r.lines(f"main_{session}_summary")}
    out: dict[str, list[int]] = {}
    for x in r.lines(f"main_{session}_histogram"):
        total = cycles.get(x["arm"], 0)
        n = x["probability"] * total
        if total >= 20_000 or abs(n - round(n)) > 0.3:
            return {}
        out.setdefault(x["arm"], []).extend([x["accepted"]] * round(n))
    return {arm: accepted for arm, accepted in out.items() if len(accepted) == cycles.get(arm)}


def pick(entry: Mapping[str, tuple[Any, str]], names: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """The cells of one row: published column to summary column."""
    return {column: entry[name] for column, name in names.items() if name in entry}


# --- the comparison ---

def digits(value: Any) -> int:
    """Digits after the point, as printed."""
    text = repr(value)
    if not isinstance(value, float) or "e" in text:
        return 0 if isinstance(value, int) else 12
    return 0 if text.endswith(".0") else len(text.partition(".")[2])


def agrees(value: Any, found: Any, places: int) -> bool:
    """Whether ``found`` rounds to the printed ``value``; at a tie either neighbour will do."""
    if isinstance(value, (bool, str)) or isinstance(found, (bool, str)):
        return value == found
    return abs(found - value) <= 0.5 * 10.0**-places * (1 + 1e-6) + 1e-12


def compare(sources: Iterable[Source]) -> list[Line]:
    """One line a published cell that raw files can give, of the Acts that ``sources`` are of; tables in their published order."""
    from . import act4s, act4u3, act4u6

    sources = list(sources)
    results, acts = Results(sources), {s.act for s in sources}
    lines: list[Line] = []
    for act, tables in (("act4u3", act4u3.TABLES), ("act4s", act4s.TABLES), ("act4u6", act4u6.TABLES)):
        known = {t.id: t for t in tables}
        for facts in published.load(act).facts.tables if act in acts else ():
            if facts.id in known:
                lines += held(act, known[facts.id], facts, results)
    return lines


def held(act: str, table: Table, facts: published.Table, results: Results) -> Iterator[Line]:
    try:
        cells = table.make(results)
    except BadInput:
        raise
    except (KeyError, ValueError, ArithmeticError):  # no such number, no such arm, rows without a partner, nothing to divide by
        cells = {}
    names = [c.name for c in facts.columns]
    places = [max((digits(row[i]) for row in facts.rows if isinstance(row[i], (int, float))), default=0) for i in range(len(names))]
    for row in facts.rows:
        entry = cells.get(tuple(row[: table.keys]), {})
        for i, value in enumerate(row):
            if i < table.keys or value is None or names[i] in table.skip:
                continue
            found, how = entry.get(names[i], (None, ""))
            how = how if found is not None else ""
            judged = None if found is None else agrees(value, found, digits(value) if table.mixed else places[i])
            yield Line(act, table.id, ", ".join(map(str, row[: table.keys])), names[i], value, found, how, judged)


def tally(lines: Iterable[Line]) -> dict[tuple[str, str], Counter]:
    """By act and table: cells by outcome (True, False, None) and by how they were worked out."""
    out: dict[tuple[str, str], Counter] = {}
    for line in lines:
        out.setdefault((line.act, line.table), Counter()).update([line.agrees, line.how] if line.how else [line.agrees])
    return out
