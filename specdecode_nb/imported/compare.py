"""The published tables worked out again from an imported folder and held against data/published, cell by cell.

A cell agrees if what was worked out rounds to the digits printed in its column. How it was worked out: from ``rows`` (decode rows, by
:mod:`specdecode_nb.statistics`), from ``counts`` (cycles by accepted tokens, restored from published shares), ``derived`` (ratios, fits and sums of
published aggregates), or only ``read`` (the number stands in a published file as it is). Cells whose rows or files are not in the folder are not
judged.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import statistics as st
from ..book import published
from ..errors import BadInput
from .folder import Source
from .stream import REMEDY

ROWS, COUNTS, DERIVED, READ = "rows", "counts", "derived", "read"
Cells = dict[tuple, dict[str, tuple[Any, str]]]


class Absent(Exception):
    """The folder lacks what a table would be worked out from."""


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

    act: str
    id: str
    make: Callable[[Results], Cells]
    keys: int = 1
    skip: tuple[str, ...] = ()
    mixed: bool = False  # another quantity in each row: digits by cell


class Results:
    """An imported folder, by the stems of its files."""

    def __init__(self, sources: Iterable[Source]):
        self.sources = {(s.stem, s.reads): s for s in sources}

    def rows(self, stem: str) -> list[dict] | None:
        """The decode rows of a session if all of them are here."""
        source = self.sources.get((stem, "rows"))
        return [r for r in source.rows if r["kind"] == "decode"] if source and source.whole else None

    def part(self, stem: str, key: str) -> Any:
        """What the top level of a row file holds beside its rows, in a cut sample too."""
        source = self.sources.get((stem, "rows"))
        return source.about.get(key) if source else None

    def lines(self, stem: str) -> list[dict]:
        return self._about(stem, "csv")["lines"]

    def document(self, stem: str, reads: str = "aggregate") -> dict:
        return self._about(stem, reads)

    def listed(self, stem: str, reads: str) -> list[dict]:
        source = self.sources.get((stem, reads))
        if source is None or not source.whole:
            raise Absent
        return source.rows

    def number(self, stem: str, *path: str | int, missing: float | None = None) -> float:
        """A number of a file of aggregates by its path; ``missing`` where the last key is not there."""
        return number(self.document(stem), stem, path, missing)

    def number_of(self, stem: str, *path: str | int) -> float:
        """A number that a row file holds beside its rows."""
        return number(self.part(stem, path[0]), stem, path[1:])

    def summary_of(self, stem: str, arm: str, *path: str) -> float:
        """A number of the summary of one arm that a row file holds beside its rows."""
        listed = self.part(stem, "summary")
        for entry in listed if isinstance(listed, list) else []:
            if isinstance(entry, dict) and entry.get("arm") == arm:
                return number(entry, stem, path)
        raise Absent

    @staticmethod
    def maybe(make: Callable[[], dict]) -> dict:
        """What ``make`` gives, nothing where the folder lacks it."""
        try:
            return make()
        except Absent:
            return {}

    def _about(self, stem: str, reads: str) -> dict:
        source = self.sources.get((stem, reads))
        if source is None or source.sample:
            raise Absent
        return source.about


def number(value: Any, stem: str, path: Sequence[str | int], missing: float | None = None) -> float:
    """The number at ``path`` in ``value``. Raises Absent where there is nothing and BadInput for anything else than a number."""
    for n, key in enumerate(path):
        inside = isinstance(value, dict) and key in value or isinstance(value, list) and isinstance(key, int) and key < len(value)
        if not inside:
            if missing is not None and n == len(path) - 1 and isinstance(value, dict):
                return missing
            raise Absent
        value = value[key]
    if value is None:
        raise Absent
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(f"{stem}.json has no number at {'.'.join(map(str, path))}; {REMEDY}.")
    return value


# --- decode rows to the published summary, by its column names ---

def ms(stage: str) -> Callable[[dict], float]:
    return lambda r: r["recorded"].get(f"{stage}_ms_per_cycle", 0.0)


def measured(rows: list[dict], control: list[dict]) -> dict[str, Any]:
    """One summary of the rows of one arm; shares and times of a row have the digits they were published with."""
    speed = st.quantiles([st.tokens_per_second(r) for r in rows])
    decode = lambda group: st.median_of(group, st.decode_tokens_per_second)  # noqa: E731
    out = {
        "rows": len(rows),
        "tok_s_median": speed["median"],
        "tok_s_mean": speed["mean"],
        "tok_s_sd": speed["sd"],
        "tok_s_p25": speed["p25"],
        "tok_s_p75": speed["p75"],
        "decode_tok_s_median": decode(rows),
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
        out |= {"speedup_vs_ar": speed["median"] / st.median_of(control, st.tokens_per_second), "decode_speedup_vs_ar": decode(rows) / decode(control)}
    return out


def summary(r: Results, session: str, by: str = "", clean: bool = False) -> dict[tuple, dict[str, tuple[Any, str]]]:
    """(arm,) or (arm, value of ``by``) to every summary column with how it was worked out: from rows if all are here, else from the published CSV."""
    field = {"max_tokens": "tokens"}.get(by, by)
    rows = r.rows(f"main_{session}")
    if rows:
        if clean:
            rows = st.loop_free(rows)
        groups: dict[tuple, list[dict]] = {}
        for row in rows:
            groups.setdefault((row["arm"], *([row[field]] if by else [])), []).append(row)
        return {key: {k: (v, ROWS) for k, v in measured(group, groups.get(("ar", *key[1:]), [])).items()} for key, group in groups.items()}
    stem = f"main_{session}_" + ("by_category" if by == "category" else "summary_clean" if clean else "summary")
    found = {(line["arm"], *([line[by]] if by else [])): line for line in r.lines(stem)}
    out = {key: {k: (v, READ) for k, v in line.items()} for key, line in found.items()}
    for key, line in found.items():
        plain = found.get(("ar", *key[1:]))
        for ratio, column in (("speedup_vs_ar", "tok_s_median"), ("decode_speedup_vs_ar", "decode_tok_s_median")):
            if plain and plain[column]:
                out[key][ratio] = (line[column] / plain[column], DERIVED)
    if not by and not clean:
        for arm, accepted in counts(r, session, {arm: line["cycles"] for (arm,), line in found.items()}).items():
            out[arm,]["mean_accepted_prefix"] = (st.mean(accepted), COUNTS)
    return out


def counts(r: Results, session: str, cycles: Mapping[str, int]) -> dict[str, list[int]]:
    """By arm, the accepted tokens of every cycle: from rows, or restored from the published shares, which have five digits for fewer than 2e4 cycles."""
    rows = r.rows(f"main_{session}")
    if rows:
        return {arm: st.pooled(group, "accepted_per_cycle") for arm, group in st.by(rows, "arm").items() if any(x["cycles"] for x in group)}
    out: dict[str, list[int]] = {}
    try:
        lines = r.lines(f"main_{session}_histogram")
    except Absent:
        return {}
    for line in lines:
        n = line["probability"] * cycles.get(line["arm"], 0)
        if cycles.get(line["arm"], 0) >= 20_000 or abs(n - round(n)) > 0.3:
            raise Absent
        out.setdefault(line["arm"], []).extend([line["accepted"]] * round(n))
    return {arm: accepted for arm, accepted in out.items() if len(accepted) == cycles.get(arm)}


def columns(entry: Mapping[str, tuple[Any, str]], names: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """The cells of one row: published column to summary column."""
    return {column: entry[name] for column, name in names.items() if entry.get(name, (None, ""))[0] is not None}


def shares(r: Results, session: str, of: Callable, label: str, arms: Mapping[Any, str], most: int) -> Cells:
    """Survival or histogram by arm; ``arms`` maps the first published cell to an arm, ``label`` makes a column of a slot."""
    found = counts(r, session, {arm: line["cycles"][0] for (arm,), line in summary(r, session).items()})
    how = ROWS if r.rows(f"main_{session}") else COUNTS
    if not found:
        raise Absent
    start = 1 if of is st.survival else 0
    return {(key,): {label.format(j): (v, how) for j, v in enumerate(of(found[arm], most), start)} for key, arm in arms.items() if arm in found}


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
    from . import act4s, act4u3, act4u6, act4u6_costs

    sources = list(sources)
    results, acts = Results(sources), {s.act for s in sources}
    known = {(t.act, t.id): t for module in (act4s, act4u3, act4u6, act4u6_costs) for t in module.TABLES}
    return [
        line
        for act in ("act4u3", "act4s", "act4u6")
        if act in acts
        for facts in published.load(act).facts.tables
        if (act, facts.id) in known
        for line in held(known[act, facts.id], facts, results)
    ]


def held(table: Table, facts: published.Table, results: Results) -> Iterator[Line]:
    try:
        cells = table.make(results)
    except BadInput:
        raise
    except (Absent, KeyError, ValueError, ArithmeticError):  # no such file, no such arm in it, rows without a partner, nothing to divide by
        cells = {}
    names = [c.name for c in facts.columns]
    places = [max((digits(row[i]) for row in facts.rows if isinstance(row[i], (int, float))), default=0) for i in range(len(names))]
    for row in facts.rows:
        entry = cells.get(tuple(row[: table.keys]), {})
        for i, value in enumerate(row):
            if i < table.keys or value is None or names[i] in table.skip:
                continue
            found, how = entry.get(names[i], (None, ""))
            judged = None if found is None else agrees(value, found, digits(value) if table.mixed else places[i])
            yield Line(table.act, table.id, ", ".join(map(str, row[: table.keys])), names[i], value, found, how, judged)


def tally(lines: Iterable[Line]) -> dict[tuple[str, str], Counter]:
    """By act and table: cells by outcome (True, False, None) and by how they were worked out."""
    out: dict[tuple[str, str], Counter] = {}
    for line in lines:
        out.setdefault((line.act, line.table), Counter()).update([line.agrees, line.how] if line.how else [line.agrees])
    return out
