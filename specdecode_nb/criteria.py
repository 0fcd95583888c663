"""Criteria fixed before the rows: rules as data, and verdicts computed from a number and its interval.

``data/criteria/<act>.json`` holds {"act", "criteria": [...]}, and {"design": {name: words}} where the analysis was fixed beforehand too;
each criterion has a rule {metric, comparison, threshold}; one that came after the rows is "late" and says so. "unjudged" gives the reason why a
published criterion has no rule. What a metric means is a function of the Act. Measured rows carry the digest of the rules they were made under
(config ``criteria``), so that a rule changed afterwards is seen.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd
from pydantic import ConfigDict, model_validator

from . import paths
from .errors import BadInput, nearest
from .records import RowFile, Strict, conform, parse, read_text, sha256

HOLDS, FAILS = "holds", "does NOT hold"
SPANS, NO_ROWS = "not decidable: the interval spans the threshold", "not decidable: nothing was measured"
LATER = "(rule added after the committed rows)"
AFTERWARDS = "changed afterwards"  # the entry of a design that tells what was changed when rows had been read
FEWEST = 3  # prompts (or texts) on each side of a comparison, below which an estimate has neither an interval nor a verdict


def few(*counts: int, unit: str = "prompt") -> str:
    """"1 prompt against 2" where one of ``counts`` is below FEWEST, else nothing."""
    if min(counts) >= FEWEST:
        return ""
    return f"{counts[0]} {unit}{'s' * (counts[0] != 1)}" + "".join(f" against {n}" for n in counts[1:])


class Fixed(Strict):
    model_config = ConfigDict(strict=True, extra="forbid")


class Rule(Fixed):
    """``metric`` compared with ``threshold``; "between" takes [low, high], ends included, "==" a count without an interval."""

    metric: str
    comparison: Literal[">", ">=", "<", "<=", "==", "between"]
    threshold: int | float | list[int | float]
    unit: str = ""
    format: str = ".3g"

    @model_validator(mode="after")
    def shape(self):
        pair = isinstance(self.threshold, list)
        if pair != (self.comparison == "between") or pair and (len(self.threshold) != 2 or self.threshold[0] > self.threshold[1]):
            raise ValueError("threshold is one number, or for the comparison 'between' a list of two, the lower first")
        return self

    def passed(self, value: float) -> bool:
        t = self.threshold
        if self.comparison == "between":
            return t[0] <= value <= t[1]
        return {">": value > t, ">=": value >= t, "<": value < t, "<=": value <= t, "==": value == t}[self.comparison]

    def __str__(self) -> str:
        t = self.threshold
        limit = f"between {t[0]} and {t[1]}" if self.comparison == "between" else f"{self.comparison} {t}"
        return f"{limit} {self.unit}".rstrip()


class Mirrored(Fixed):
    """What was published for the same hypothesis: its number and its verdict, in words."""

    number: str
    verdict: str


class Criterion(Fixed):
    """``published`` is None for a hypothesis that was not published; ``differs``: what between the machines could explain a difference.

    ``claims`` names the published criteria (by id) and negative results (by hypothesis) that this one bears on. ``late``: added after rows
    had been read; its rule binds none, so it is not in their digest.
    """

    id: str
    statement: str
    rule: Rule
    published: Mirrored | None
    differs: str
    claims: list[str] = []
    late: bool = False


class File(Fixed):
    act: str
    criteria: list[Criterion]
    unjudged: dict[str, str] = {}
    design: dict[str, str] = {}

    @model_validator(mode="after")
    def once(self):
        ids = [c.id for c in self.criteria]
        if len(set(ids)) < len(ids):
            raise ValueError(f"an id is used twice among {', '.join(ids)}")
        if both := self.unjudged.keys() & {claim for c in self.criteria for claim in c.claims}:
            raise ValueError(f"both a rule and a reason for having none are there for {', '.join(sorted(both))}")
        return self


@dataclass(frozen=True)
class Criteria:
    """The criteria of one Act, in file order; a source of a page (``name``, ``digest``, ``label``). ``rules``: digest of the rules alone.

    ``design``: what was fixed of the analysis besides, in words by name (outcome, test, seeds, power); empty for most Acts. ``unjudged``: reasons by published criterion.
    """

    act: str
    criteria: tuple[Criterion, ...]
    name: str
    digest: str
    label: str = "rules fixed before the rows"
    design: Mapping[str, str] = field(default_factory=dict)
    unjudged: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Criterion]:
        return iter(self.criteria)

    def __len__(self) -> int:
        return len(self.criteria)

    def __getitem__(self, id: str) -> Criterion:
        for criterion in self.criteria:
            if criterion.id == id:
                return criterion
        ids = [c.id for c in self.criteria]
        raise BadInput(f"{self.name} has no criterion {id!r}{nearest(id, ids)}; it has {', '.join(ids)}.")

    @property
    def rules(self) -> str:
        return sha256(json.dumps([[c.id, c.rule.model_dump()] for c in self.criteria if not c.late], sort_keys=True).encode())

    def judged(self, rows: RowFile, metrics: Callable[[RowFile], Mapping[str, tuple]]) -> list[Outcome]:
        """Every criterion judged by what ``metrics`` finds in ``rows``: by name, the arguments of :func:`judge`; one that the rows do
        not give is not decidable. Raises BadInput as :meth:`bind` does.
        """
        self.bind(rows)
        found = metrics(rows)
        return [judge(c, *found.get(c.rule.metric, (None,))) for c in self]

    def bind(self, rows: RowFile) -> None:
        """Raises BadInput if ``rows`` were measured under other rules, or under none."""
        if rows.config.get("criteria") != self.rules:
            raise BadInput(f"{rows.name} was not measured under the rules of {self.name} (rules {self.rules[:12]}, rows name "
                           f"{str(rows.config.get('criteria'))[:12]}); measure again or restore the rules.")


def load(act: str) -> Criteria:
    """The criteria of ``act``. Raises BadInput for a file that is not there or does not fit, naming field and remedy."""
    path = paths.data() / "criteria" / f"{act}.json"
    name = f"data/criteria/{path.name}"
    text = read_text(path, "file of criteria")
    found = conform(File, parse(text, name), name)
    if found.act != act:
        raise BadInput(f"{name} holds the criteria of {found.act!r}; restore the file.")
    late = sum(c.late for c in found.criteria)
    said = tuple(c.model_copy(update={"statement": f"{c.statement} {LATER}"}) if c.late else c for c in found.criteria)
    return Criteria(act, said, name, sha256(text.encode()), Criteria.label + (f", and {late} added after them" if late else ""), found.design, found.unjudged)


@dataclass(frozen=True)
class Outcome:
    """One criterion judged. ``word`` is HOLDS, FAILS or begins with "not decidable"; ``n`` counts what the interval resamples, by side if text."""

    criterion: Criterion
    value: float | None
    low: float | None
    high: float | None
    n: int | str | None
    word: str

    @property
    def text(self) -> str:
        """The number with its interval, unit and n."""
        if self.value is None:
            return "-"
        fmt = self.criterion.rule.format
        span = f" [{self.low:{fmt}}, {self.high:{fmt}}]" if self.low is not None else ""
        return f"{self.value:{fmt}}{span} {self.criterion.rule.unit}".rstrip() + (f" (n={self.n})" if self.n is not None else "")


def judge(criterion: Criterion, value: float | None, low: float | None = None, high: float | None = None, n: int | str | None = None,
          thin: str = "") -> Outcome:
    """Apply the rule. With an interval the rule must be met, or missed, by every number in it; else it is not decidable.

    An estimate from fewer than FEWEST units decides nothing: ``thin`` holds the words of :func:`few` where it has no interval. A count
    has none either, and is judged.
    Raises ValueError for half an interval, one that is empty or has no value, or one under "==". A resampled interval of medians may
    lie beside its value, so that is allowed.
    """
    rule = criterion.rule
    if (low is None) != (high is None) or low is not None and (value is None or low > high or thin):
        raise ValueError(f"{criterion.id}: {low} to {high} is no interval around {value}.")
    if value is None:
        return Outcome(criterion, None, None, None, n, NO_ROWS)
    if not thin and low is not None and isinstance(n, int):
        thin = few(n, unit="unit")
    if thin:
        word = f"not decidable: {thin}"
    elif low is None:
        word = HOLDS if rule.passed(value) else FAILS
    elif rule.comparison == "==":
        raise ValueError(f"{criterion.id}: an equality is judged on a count, without an interval.")
    elif rule.passed(low) and rule.passed(high):
        word = HOLDS
    else:
        # both ends outside a band, on its two sides, still span it
        over = rule.comparison == "between" and low < rule.threshold[0] and high > rule.threshold[1]
        word = FAILS if not rule.passed(low) and not rule.passed(high) and not over else SPANS
    return Outcome(criterion, value, low, high, n, word)


def table(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """The closing table of an Act: hypothesis, published, measured, verdict, what differs; one line an outcome."""
    lines = []
    for o in outcomes:
        c, published = o.criterion, o.criterion.published
        lines.append({"id": c.id, "hypothesis": c.statement, "rule": str(c.rule), "published number": published.number if published else "not published",
                      "published verdict": published.verdict if published else "-", "measured here": o.text, "verdict here": o.word, "what differs": c.differs})
    return pd.DataFrame(lines)
