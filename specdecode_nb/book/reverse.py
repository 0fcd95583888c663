"""Tables and metrics of Act II from its rows: margins between arms over launches and windows, the power of their comparison, gates, cost.

A difference of two arms is a number for every pair (seed, window). Seeds and windows are both drawn at random and crossed, so the
variance of the mean is estimated from the two-way table: by seed (launches), by window (texts), and the rest. Intervals are
Student's with Satterthwaite's degrees of freedom, since a handful of seeds is too few to resample; a bootstrap of both beside it.
Against the shuffled control the second factor is the permutation, which is drawn for a forward of many windows.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from .measures import Found, student
from .sweep import frame

ALIGNED = ("B", "E")  # the published arms with an aligned second pass
NAMES = {"A": "A causal", "B": "B aligned", "C": "C shuffled", "D": "D block-end readout", "E": "E", "C_fixed": "C as published", "E_half": "E from 1/2", "A_conditioned": "A conditioned"}
SHORT = {arm: NAMES[arm] for arm in ("C_fixed", "E_half", "A_conditioned")}
CONDITIONS = ("aligned", "shuffled", "none")
LIFT, ACCURACY = "right", "changed_right"  # lists of a score row: of all canvas rows, and of those that the noise changed
SEEN = 3.0  # percentage points
FORWARD = 32  # windows of one forward, for rows that do not say


@dataclass(frozen=True)
class Margin:
    """A mean over seeds and windows with the parts of its variance; ``low`` and ``high`` None below two seeds or windows."""

    value: float
    seeds: int
    windows: int
    sd_seed: float
    sd_window: float
    sd_rest: float
    se: float
    df: float
    unit: str = "windows"

    @property
    def low(self) -> float | None:
        return self.value - stats.t.ppf(0.975, self.df) * self.se if math.isfinite(self.se) else None

    @property
    def high(self) -> float | None:
        return 2 * self.value - self.low if math.isfinite(self.se) else None

    def found(self) -> Found:
        """The arguments of :func:`..criteria.judge`; seeds are the units."""
        thin = criteria.few(self.seeds, unit="seed") or criteria.few(self.windows, unit="window")
        span = (None, None) if thin else (self.low, self.high)
        return self.value, *span, f"{self.seeds} seeds x {self.windows} {self.unit}", thin

    def power(self, effect: float = SEEN) -> float:
        """Probability that a two-sided test at 5 % sees a true difference of ``effect``, with this variance; 0 where none can be estimated."""
        return power(effect, self.se, self.df)


def power(effect: float, se: float, df: float) -> float:
    """Probability that a two-sided t-test at 5 % sees a true ``effect``, whose estimate has standard error ``se`` with ``df`` degrees of freedom."""
    if not math.isfinite(se):
        return 0.0
    edge, shift = stats.t.ppf(0.975, df), effect / se if se else math.inf
    # given the estimate of the standard error, which is a chi: SciPy's noncentral t gives no number where the effect is many of them
    drawn = np.sqrt(stats.chi2.ppf((np.arange(4000) + 0.5) / 4000, df) / df)
    return float(np.mean(stats.norm.cdf(shift - edge * drawn) + stats.norm.cdf(-shift - edge * drawn)))


def crossed(table: np.ndarray) -> Margin:
    """The mean of a table [seeds, windows] and its standard error; both factors random."""
    s, w = table.shape
    mean = table.mean()
    if min(s, w) < 2:
        return Margin(float(mean), s, w, math.nan, math.nan, math.nan, math.inf, 1.0)
    by_seed, by_window = table.mean(axis=1, keepdims=True), table.mean(axis=0, keepdims=True)
    seed = w * ((by_seed - mean) ** 2).sum() / (s - 1)
    window = s * ((by_window - mean) ** 2).sum() / (w - 1)
    rest = ((table - by_seed - by_window + mean) ** 2).sum() / ((s - 1) * (w - 1))
    # a difference of mean squares can fall below zero by chance; the mean is never more certain than either factor alone makes it
    total = max(seed + window - rest, seed, window)
    df = total**2 / (seed**2 / (s - 1) + window**2 / (w - 1) + rest**2 / ((s - 1) * (w - 1))) if total else 1.0
    part = lambda square, n: math.sqrt(max(0.0, square - rest) / n)  # noqa: E731
    return Margin(float(mean), s, w, part(seed, w), part(window, s), math.sqrt(rest), math.sqrt(total / (s * w)), max(1.0, df))


def bootstrap(table: np.ndarray, resamples: int = 4000) -> tuple[float, float]:
    """95 % interval of the mean by drawing seeds and windows, each with replacement (Owen 2007)."""
    rng, (s, w) = np.random.default_rng(st.SEED), table.shape
    seeds, windows = (rng.multinomial(n, np.full(n, 1 / n), resamples) for n in (s, w))
    return st.interval(((seeds @ table) * windows).sum(axis=1) / (s * w))


def planned(seeds: int, windows: int, sd_launch: float, share: float, canvas: int, levels: Sequence[float]) -> float:
    """Power to see SEEN before there are rows: launches of an arm scatter by ``sd_launch`` (pp), and of the changed canvas rows a ``share``
    is read out right, each by itself. Degrees of freedom are those of the launches alone."""
    by_seed = 2 * sd_launch**2
    rest = np.mean([2 * 1e4 * share * (1 - share) / (canvas * t) for t in levels]) / len(levels)
    return power(SEEN, math.sqrt(by_seed / seeds + rest / (seeds * windows)), seeds - 1) if seeds > 1 else 0.0


def lacking(file: RowFile) -> Iterator[str]:
    """Scores that a launch which came to its end should have, for every held-out window; and the arms that the page compares."""
    absent = [a for a in ("A", "B", "C", "D", "E") if a not in file.config.get("arms", ())]
    if absent:
        yield f"the arms {', '.join(absent)}"
    have = {(r["arm"], r["seed"], r["level"]): len(r["right"]) for r in file.of("reverse_score")}
    lengths = {*have.values(), *(len(r["changed"]) for r in file.of("reverse_windows"))}
    ended = [r for r in file.of("reverse_launch") if r["stopped"] is None]
    lost = [(r["arm"], r["seed"], t) for r in ended for t in file.config.get("levels", ()) if (r["arm"], r["seed"], t) not in have]
    if lost or len(lengths) > 1:
        yield f"reverse_score rows of {' '.join(map(str, lost[0]))}" if lost else "one number of windows in all reverse_score rows"


# --- from rows to tables [seeds, windows] ---

def launches(file: RowFile, arm: str) -> list[dict]:
    return [r for r in file.of("reverse_launch") if r["arm"] == arm]


def whole(file: RowFile, arm: str) -> list[int]:
    """Seeds at which the arm was trained to the end."""
    return sorted(r["seed"] for r in launches(file, arm) if r["stopped"] is None)


def counts(file: RowFile, arm: str, seeds: Sequence[int], level: float, field: str) -> np.ndarray:
    """[seeds, windows] of one list of the score rows."""
    found = {r["seed"]: r[field] for r in file.of("reverse_score") if r["arm"] == arm and r["level"] == level}
    return np.array([found[s] for s in seeds], dtype=float)


def scored(file: RowFile, level: float, field: str) -> np.ndarray:
    """Canvas rows that count, by window: all of them, or those that the noise changed."""
    row = next(r for r in file.of("reverse_windows") if r["level"] == level)
    changed = np.array(row["changed"], dtype=float)
    return changed if field == ACCURACY else np.full(len(changed), float(row["canvas"]))


def shares(file: RowFile, arms: Sequence[str], field: str, levels: Sequence[float], signs: Sequence[int]) -> np.ndarray:
    """[seeds, windows] of 100 x the signed sum of the arms' shares of rows right, averaged over ``levels``.

    A share is a ratio of sums over windows; each entry is its linear part at that seed and window, so that the mean of the table
    is the ratio itself and its variance that of the ratio.
    """
    seeds = sorted(set.intersection(*(set(whole(file, a)) for a in arms)))
    if not seeds:
        return np.zeros((0, 0))
    parts = []
    for level in levels:
        n, right = scored(file, level, field), sum(sign * counts(file, a, seeds, level, field) for a, sign in zip(arms, signs))
        ratio = right.sum() / (len(seeds) * n.sum())
        parts.append(ratio + (right - ratio * n) / n.mean())
    return 100 * np.mean(parts, axis=0)


def by_permutation(file: RowFile, values: np.ndarray) -> np.ndarray:
    """[..., windows] to [..., permutations]: the windows of one forward share the shuffled control's order, so they are one unit. The mean stays."""
    share = file.config.get("forward", FORWARD)
    starts = np.arange(0, values.shape[-1], share)
    return np.add.reduceat(values, starts, axis=-1) * (len(starts) / values.shape[-1])


def unit(one: str, other: str) -> str:
    """What is drawn besides seeds: windows, or against the shuffled control permutations."""
    return "permutations" if "C" in (one, other) else "windows"


def margin_table(file: RowFile, one: str, other: str, field: str = LIFT, levels: Sequence[float] | None = None) -> np.ndarray:
    table = shares(file, (one, other), field, levels or file.config["levels"], (1, -1))
    return by_permutation(file, table) if unit(one, other) == "permutations" and table.size else table


def margin(file: RowFile, one: str, other: str, field: str = LIFT, levels: Sequence[float] | None = None) -> Margin | None:
    """Arm ``one`` less arm ``other`` in percentage points, paired by seed and window; lift over copy is that over all rows, since a copier scores
    the same for both. None without a seed that both have."""
    table = margin_table(file, one, other, field, levels)
    return replace(crossed(table), unit=unit(one, other)) if table.size else None


def best(file: RowFile) -> str | None:
    """The published bidirectional arm with the greatest lift, chosen once: choosing favours the hypothesis."""
    found = {arm: margin(file, arm, "A") for arm in ALIGNED}
    return max((a for a, m in found.items() if m), key=lambda a: found[a].value, default=None)


def named(entries: Sequence[dict], **units: str) -> pd.DataFrame:
    """A table whose arms keep their names, by which figures find their look."""
    table = frame(entries, **units)
    if entries:
        table["arm"] = [e["arm"] for e in entries]
    return table


def scores(file: RowFile) -> pd.DataFrame:
    """Corrupted-position accuracy and lift over copy by arm and level, mean over launches with the standard deviation between them."""
    entries = []
    for arm in file.config["arms"]:
        seeds = whole(file, arm)
        for level in file.config["levels"] if seeds else ():
            changed, rows = scored(file, level, ACCURACY), scored(file, level, LIFT)
            accuracy = 100 * counts(file, arm, seeds, level, ACCURACY).sum(axis=1) / changed.sum()
            lift = 100 * (counts(file, arm, seeds, level, LIFT).sum(axis=1) - (rows - changed).sum()) / rows.sum()
            sd = accuracy.std(ddof=1) if len(seeds) > 1 else None
            entries.append({"arm": NAMES[arm], "t": level, "launches": len(seeds), "accuracy": accuracy.mean(), "sd": sd,
                            "lift": lift.mean(), "nats": counts(file, arm, seeds, level, "nats").mean()})
    return named(entries, accuracy="%", sd="pp", lift="pp")


PAIRS = (("B", "A"), ("E", "A"), ("D", "A"), ("C", "A"), ("B", "C"), ("E_half", "A"), ("C_fixed", "A"), ("C_fixed", "C"), ("E", "C_fixed"), ("A", "A_conditioned"))


def margins(file: RowFile, field: str) -> pd.DataFrame:
    """Every comparison that these rows can give, with both intervals, the parts of its variance and its power to see SEEN."""
    entries = []
    for one, other in PAIRS:
        if {one, other} <= set(file.config["arms"]) and (table := margin_table(file, one, other, field)).size:
            m = crossed(table)
            sampled = bootstrap(table) if m.seeds > 1 else (None, None)
            entries.append({"comparison": f"{SHORT.get(one, one)} minus {SHORT.get(other, other)}", "difference": m.value, "low": m.low, "high": m.high,
                            "resampled low": sampled[0], "resampled high": sampled[1], "sd by seed": m.sd_seed, "sd by window": m.sd_window, "sd of the rest": m.sd_rest,
                            "power": m.power(), "seeds": m.seeds, "units": m.windows, "unit": unit(one, other)})
    points = dict.fromkeys(("difference", "sd by seed", "sd by window", "sd of the rest"), "pp")
    return frame(entries, **points, low="95 %", high="95 %", power=f"of {SEEN:g} pp")


def gate_sweep(file: RowFile) -> dict[str, dict[float, np.ndarray]]:
    """Untrained loss by window [W], by condition and gate."""
    out: dict[str, dict[float, np.ndarray]] = {}
    for r in file.of("gate_sweep"):
        out.setdefault(r["condition"], {})[r["gate"]] = np.array(r["nats"])
    return out


def gate_ends(file: RowFile, arm: str) -> list[float]:
    """The mean gate over the layers at the end of each launch."""
    return [float(np.mean(r["gates"][-1][1:])) for r in launches(file, arm) if r["stopped"] is None and r["gates"]]


def drift(file: RowFile, arm: str) -> pd.DataFrame:
    """The learned gate over training: mean over layers and launches, least and greatest of all of them."""
    tracks = [r["gates"] for r in launches(file, arm) if r["stopped"] is None]
    at = [(int(t[0][0]), [g for entry in t for g in entry[1:]]) for t in zip(*tracks)]
    return frame([{"step": step, "mean": float(np.mean(g)), "least": min(g), "greatest": max(g)} for step, g in at])


def cost(file: RowFile, arm: str) -> Found | None:
    """Seconds of a launch over those of the causal arm at the same seed."""
    causal = {r["seed"]: r["seconds"] for r in launches(file, "A") if r["stopped"] is None}
    ratios = [r["seconds"] / causal[r["seed"]] for r in launches(file, arm) if r["stopped"] is None and r["seed"] in causal]
    return student(ratios) if ratios else None


def prices(file: RowFile) -> pd.DataFrame:
    """Median milliseconds of a training step by arm, over the causal ones, and how much is trained."""
    entries = []
    for arm in file.config["arms"]:
        done, found = [r for r in launches(file, arm) if r["stopped"] is None], cost(file, arm)
        if done:
            entries.append({"arm": NAMES[arm], "launches": len(done), "ms per step": 1000 * float(np.median([r["seconds"] / r["steps"] for r in done])),
                            "x causal": found and found[0], "trained": done[0]["trained"]})
    return named(entries, trained="numbers")


def learning(file: RowFile, parts: int = 12) -> dict[str, tuple[list[float], list[float]]]:
    """Training loss by arm: the last step of each twelfth of the run, and the mean over it and over launches."""
    out = {}
    for arm in file.config["arms"]:
        losses = np.array([r["losses"] for r in launches(file, arm) if r["stopped"] is None])
        if losses.size:
            split = np.array_split(np.arange(losses.shape[1]), min(parts, losses.shape[1]))
            out[NAMES[arm]] = [float(p[-1] + 1) for p in split], [float(losses[:, p].mean()) for p in split]
    return out


# --- criteria ---

def numbers(file: RowFile) -> dict[str, Found]:
    """Every metric of data/criteria/act2.json and act2_bare.json that these rows can give."""
    out: dict[str, Found] = {}
    if untrained := gate_sweep(file):
        one = [untrained[c][1.0] for c in ("aligned", "shuffled", "none")]
        out["gate_one"] = (int(sum((v != one[0]).sum() for v in one[1:])), None, None, len(one[0]))
        out["untrained_aligned"] = student(by_permutation(file, untrained["shuffled"][0.25] - untrained["aligned"][0.25]), "permutation")
    unstable = sum(r["stopped"] is not None for a in ALIGNED for r in launches(file, a) if r["seed"] in whole(file, "A"))
    out["unstable"] = (unstable, None, None, sum(len(launches(file, a)) for a in ALIGNED))
    levels = file.config["levels"]
    for name, which in (("learned", ("A",)), ("conditioner", ("A", "A_conditioned"))):
        if set(which) <= set(file.config["arms"]):
            clean = [shares(file, which, ACCURACY, [level], (1, -1)) for level in (levels[0], levels[-1])]
            if clean[0].size:
                out[name] = crossed(clean[0] - clean[1]).found()
    arm, pairs = best(file), [*((pair, ACCURACY) for pair in (("B", "A"), ("E", "A"), ("B", "C"))), *(((a, "A"), LIFT) for a in ALIGNED)]
    decisive = [m for pair, field in pairs if (m := margin(file, *pair, field))]
    if arm:
        thin = criteria.few(decisive[0].seeds, unit="seed")
        out["power"] = (min(m.power() for m in decisive), None, None, f"{decisive[0].seeds} seeds x {decisive[0].windows} windows", thin)
        out["lift_margin"] = margin(file, arm, "A").found()
        out |= {f"accuracy_margin_{t:g}": margin(file, arm, "A", ACCURACY, [t]).found() for t in levels[:2]}
    for name, pair in (("aligned_less_shuffled", ("B", "C")), ("block_end_less_causal", ("D", "A")), ("control_gate", ("C_fixed", "C"))):
        if set(pair) <= set(file.config["arms"]) and (m := margin(file, *pair, ACCURACY)):
            out[name] = m.found()
    for name, which in (("gate", "E"), ("gate_half", "E_half")):
        if ends := gate_ends(file, which):
            out[name] = student(ends)
    if found := cost(file, "B"):
        out["cost"] = found
    return out


def outcomes(file: RowFile) -> list[criteria.Outcome]:
    """Every criterion judged on these rows. Raises BadInput if they were measured under other rules."""
    return criteria.load(file.act).judged(file, numbers)


def outcome(found: Mapping[str, criteria.Outcome], prefix: str) -> tuple[str, list[str]]:
    """What the published rules make of judged criteria "<prefix>-4" to "-10": continue, stop or not decided; and the reasons to stop that are met."""
    words = {n: found[f"{prefix}-{n}"].word for n in range(4, 11)}
    killed = [f"{prefix}-{n}" for n in (7, 8, 9, 10) if words[n] == criteria.FAILS]
    return "continue" if all(word == criteria.HOLDS for word in words.values()) else "stop" if killed else "not decided", killed
