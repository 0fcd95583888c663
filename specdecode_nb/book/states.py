"""Tables and metrics of Act IV-N from its rows: E against D over seeds, what the second pass adds, what the states tell by themselves.

A seed is an independent replicate with held-out windows of its own, so a difference is one number a seed (the mean over its windows) and
intervals are Student's over seeds.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from .. import criteria
from ..records import RowFile
from . import measures, reverse
from .measures import Found
from .sweep import frame

PRIMARY, FULL = (0.5, 0.75), (1.0,)
BOTH = ("causal", "aligned")
EFFECT, LEARNED = 2.0, 0.9  # points; share of the batch that Stage 1 learns by heart
NAMES = {"causal": "no second pass", "aligned": "aligned second pass", "shuffled": "shuffled second pass"}


def scores(file: RowFile) -> dict[tuple, dict]:
    """Score rows by (condition, arm, seed, level)."""
    return {(r["condition"], r["arm"], r["seed"], r["level"]): r for r in file.of("state_score")}


def accuracy(row: dict) -> np.ndarray:
    """Share of corrupted positions right, in points, by window."""
    return 100 * np.array(row["right"]) / row["hidden"]


def nats(row: dict) -> np.ndarray:
    """Mean cross entropy of the corrupted positions, by window."""
    return np.array(row["nats"])


def mean_of(file: RowFile, condition: str, arms: Sequence[str] = BOTH, levels: Sequence[float] = PRIMARY, value: Callable[[dict], np.ndarray] = accuracy) -> dict[int, np.ndarray]:
    """By seed, the accuracy (or another ``value``) of every window averaged over arms and levels; seeds that lack one of these are left out."""
    found = scores(file)
    cells = {seed: [found.get((condition, arm, seed, level)) for arm in arms for level in levels] for seed in file.config["seeds"]}
    return {seed: np.mean([value(r) for r in rows], axis=0) for seed, rows in cells.items() if all(rows)}


def less(one: dict[int, np.ndarray], other: dict[int, np.ndarray]) -> dict[int, float]:
    """The mean over windows of the paired differences, by seed that both have."""
    return {seed: float((one[seed] - other[seed]).mean()) for seed in one if seed in other}


def over_seeds(values: dict[int, float]) -> Found:
    """Mean and Student's interval over seeds."""
    return measures.student(list(values.values())) if values else (None,)


def tabled(file: RowFile, condition: str, value: Callable[[dict], np.ndarray] = accuracy, levels: Sequence[float] = PRIMARY) -> dict[int, np.ndarray]:
    """By seed, what the table of the states reads out right of every window (or another ``value``), averaged over levels."""
    rows = {(r["seed"], r["level"]): value(r) for r in file.of("state_table") if r["condition"] == condition}
    return {seed: np.mean([rows[seed, level] for level in levels], axis=0) for seed in file.config["seeds"]}


def added(file: RowFile, condition: str, **which) -> dict[int, float]:
    """What the trained readouts add to the table, by seed; ``which``: value of :func:`mean_of`."""
    return less(mean_of(file, condition, **which), tabled(file, condition, **which))


def power(values: Sequence[float], effect: float = EFFECT) -> float | None:
    """Probability that the t-test over as many seeds sees a true difference of ``effect``; None below two seeds."""
    n = len(values)
    return reverse.power(effect, float(np.std(values, ddof=1)) / math.sqrt(n), n - 1) if n > 1 else None


def gain(file: RowFile, condition: str, arm: str = "aligned", against: str = "causal") -> dict[int, float]:
    """What arm adds to another under one condition, by seed."""
    return less(mean_of(file, condition, [arm]), mean_of(file, condition, [against]))


def told(file: RowFile, condition: str, measure: Callable[[dict], Sequence[float]]) -> dict[int, np.ndarray]:
    return {r["seed"]: np.array(measure(r)) for r in file.of("state_told") if r["condition"] == condition}


def within(row: dict) -> np.ndarray:
    return 100 * np.array(row["right_within"]) / row["rows"]


def learned(row: dict) -> bool:
    """Whether a launch of Stage 1 passes."""
    return row["stopped"] is None and row["right"] >= LEARNED * row["hidden"]


def passes(file: RowFile) -> dict[str, Found]:
    """E against D and what the second pass adds, as all rules ask for them."""
    gains = {c: gain(file, c) for c in "DE"}
    return {"e_less_d": between(file, "E", "D"), "interaction": over_seeds({s: gains["E"][s] - gains["D"][s] for s in gains["E"] if s in gains["D"]}),
            "aligned_less_causal": over_seeds(gains["E"]), "aligned_less_shuffled": over_seeds(gain(file, "E", against="shuffled"))}


def bare(file: RowFile) -> dict[str, Found]:
    """Every metric of data/criteria/act4n_bare.json that these rows can give."""
    by_seed = {c: added(file, c) for c in "DE"}
    return passes(file) | {"e_less_table": over_seeds(by_seed["E"]), "d_less_table": over_seeds(by_seed["D"]),
                           "added": over_seeds({s: by_seed["E"][s] - by_seed["D"][s] for s in by_seed["E"] if s in by_seed["D"]})}


def numbers(file: RowFile) -> dict[str, Found]:
    """Every metric of data/criteria/act4n.json that these rows can give."""
    checks, launches = file.of("state_check"), file.of("state_launch")
    one, two = ([r for r in launches if r["stage"] == stage] for stage in (1, 2))
    count = lambda bad, n: (int(bad), None, None, n)  # noqa: E731
    e_less_d = less(mean_of(file, "E"), mean_of(file, "D"))
    bits = lambda c: told(file, c, lambda r: r["state_bits"])  # noqa: E731
    uneven = [r["seed"] for r in file.of("alphabet") if abs(r["text_entropy"]["D"] - r["text_entropy"]["E"]) > file.config["near"] or r["kept"] > 0]
    found = {"failed_checks": count(sum(not r["passed"] for r in checks) + len(uneven), len(checks)), "unlearned": count(sum(not learned(r) for r in one), len(one)),
             "unstable": count(sum(r["stopped"] is not None for r in two), len(two)),
             "d_less_e_bits": over_seeds(less(bits("D"), bits("E"))), "d_less_e_within": over_seeds(less(told(file, "D", within), told(file, "E", within))),
             "e_less_c": between(file, "E", "C"), "a_less_b": between(file, "A", "B"),
             "e_less_d_full": between(file, "E", "D", levels=FULL)}
    seen = power(list(e_less_d.values()))
    thin = criteria.few(len(e_less_d), unit="seed")
    return passes(file) | found | ({"power": (seen, None, None, len(e_less_d), thin)} if seen is not None else {})


def outcomes(file: RowFile) -> list[criteria.Outcome]:
    """Every criterion judged on these rows. Raises BadInput if they were measured under other rules."""
    return criteria.load(file.act).judged(file, bare if file.act == "act4n_bare" else numbers)


# --- tables ---

def matrix(file: RowFile, value: Callable[[dict], np.ndarray] = accuracy) -> pd.DataFrame:
    """One line a run of Stage 2: accuracy on corrupted positions (or their ``nats``) by level, mean over seeds, and the seeds."""
    entries = []
    for condition, arm in dict.fromkeys((c, a) for c, a, _ in file.config["runs"]):
        cells = {level: mean_of(file, condition, [arm], [level], value) for level in file.config["levels"]}
        entries.append({"condition": condition, "second pass": NAMES[arm].removesuffix(" second pass"), "seeds": len(next(iter(cells.values()))),
                        **{f"t={level:.2f}": float(np.mean([v.mean() for v in by_seed.values()])) if by_seed else None for level, by_seed in cells.items()}})
    table = frame(entries, **{f"t={level:.2f}": "%" if value is accuracy else "nats" for level in file.config["levels"]})
    return table.sort_values(["condition", "second pass"], kind="stable", ignore_index=True)


def entries(rows: dict[str, Found]) -> list[dict]:
    """Entries of a forest: label, value, low, high, n; a comparison that no seed ran is left out."""
    return [{"label": label} | dict(zip(("value", "low", "high", "n"), found)) for label, found in rows.items() if found[0] is not None]


def between(file: RowFile, one: str, other: str, **which) -> Found:
    """One condition less another over seeds; ``which``: arms, levels and value of :func:`mean_of`."""
    return over_seeds(less(mean_of(file, one, **which), mean_of(file, other, **which)))


def remark(file: RowFile) -> str:
    """What belongs beside the primary outcome and no rule judges: the same comparison by cross entropy."""
    return f"by cross entropy, which no rule judges, semantic less permuted {measures.span(between(file, 'E', 'D', value=nats), '+.2f', ' nats')}, lower being better"


def decisive(file: RowFile) -> list[dict]:
    """E less D, in all and by arm and level, and what the second pass adds."""
    rows = {"E less D (primary)": between(file, "E", "D")} | {f"E less D, {NAMES[arm]}": between(file, "E", "D", arms=[arm]) for arm in BOTH}
    rows |= {f"E less D, t = {level:.2f}": between(file, "E", "D", levels=[level]) for level in file.config["levels"]}
    rows |= {f"aligned less none, {c}": over_seeds(gain(file, c)) for c in "DE"}
    return entries(rows | {"aligned less shuffled, E": over_seeds(gain(file, "E", against="shuffled"))})


def without(file: RowFile) -> list[dict]:
    """Of launches beside a table: E less D, what training adds to the table, and what the second pass adds."""
    return entries({"E less D": between(file, "E", "D"), "E less D, table": over_seeds(less(tabled(file, "E"), tabled(file, "D"))),
                    **{f"trained less table, {c}": over_seeds(added(file, c)) for c in "DE"}, **{f"aligned less none, {c}": over_seeds(gain(file, c)) for c in "DE"},
                    "aligned less shuffled, E": over_seeds(gain(file, "E", against="shuffled"))})


def beside_table(file: RowFile, conditioned: RowFile | None) -> pd.DataFrame:
    """Accuracy and cross entropy of the table, of these launches, and of those of another run of the same length at the same seeds, if there are any."""
    runs = {"table of the states": lambda c, value: tabled(file, c, value), "without conditioner": lambda c, value: mean_of(file, c, value=value)}
    same = lambda c: [c["recipe"]["steps"], c["recipe"]["batch"], c["windows"], c["train_windows"]]  # noqa: E731
    if conditioned is not None and set(file.config["seeds"]) <= set(conditioned.config["seeds"]) and same(file.config) == same(conditioned.config):
        runs["with conditioner"] = lambda c, value: {s: v for s, v in mean_of(conditioned, c, value=value).items() if s in file.config["seeds"]}
    lines = []
    for name, run in runs.items():
        line = {"readout": name}
        for value, unit, gap in ((accuracy, "%", "pp"), (nats, "nats", "nats")):
            means = {c: float(np.mean([v.mean() for v in run(c, value).values()])) for c in "DE"}
            line |= {f"{c} ({unit})": means[c] for c in "DE"} | {f"E less D ({gap})": means["E"] - means["D"]}
        lines.append(line)
    return frame(lines)


def others(file: RowFile) -> list[dict]:
    """E less the conditions that tell nothing of the token, and the two oldest ones against each other."""
    return entries({f"{one} less {other}": between(file, one, other) for one, other in ("EA", "EB", "EC", "AB")})


def seeds(file: RowFile) -> pd.DataFrame:
    """One line a seed: its alphabet, what the states tell the target, and E less D."""
    alphabets = {r["seed"]: r for r in file.of("alphabet")}
    e_less_d, bits = less(mean_of(file, "E"), mean_of(file, "D")), {c: told(file, c, lambda r: r["state_bits"]) for c in "DE"}
    inside = {c: told(file, c, within) for c in "DE"}
    return frame([{"seed": s, "H(bucket)": a["entropy"]["E"], **{f"H in text, {c}": a["text_entropy"][c] for c in "DE"},
                   **{f"told, {c}": float(bits[c][s].mean()) for c in "DE"}, **{f"within, {c}": float(inside[c][s].mean()) for c in "DE"},
                   "E less D": e_less_d.get(s)} for s, a in alphabets.items()],
                 **dict.fromkeys(("H(bucket)", "H in text, D", "H in text, E"), "bits"), **dict.fromkeys(("told, D", "told, E"), "bits a row"),
                 **dict.fromkeys(("within, D", "within, E"), "%"), **{"E less D": "pp"})


def learning(file: RowFile) -> pd.DataFrame:
    """Stage 1 by condition: loss at the beginning and the end, largest gradient norm, positions right, outcome."""
    return frame([{"condition": r["condition"], "first loss": r["losses"][0] if r["losses"] else None, "last loss": r["losses"][-1] if r["losses"] else None,
                   "largest gradient norm": max(r["norms"], default=None), "right": f"{r['right']} of {r['hidden']}",
                   "outcome": "passes" if learned(r) else r["stopped"] or "has not learned it"}
                  for r in file.of("state_launch") if r["stage"] == 1], **{"first loss": "nats", "last loss": "nats"})


def curves(file: RowFile, arm: str, bins: int = 30) -> dict[str, tuple[list[float], list[float]]]:
    """Training loss by condition for one arm: steps and mean loss of the launches of all seeds, in at most ``bins`` bins of steps."""
    out = {}
    for condition in file.config["conditions"]:
        losses = [r["losses"] for r in file.of("state_launch") if (r["stage"], r["condition"], r["arm"]) == (2, condition, arm) and r["stopped"] is None]
        if losses:
            mean = np.mean(losses, axis=0)
            parts = np.array_split(np.arange(1, len(mean) + 1), min(bins, len(mean)))
            out[condition] = ([float(p.mean()) for p in parts], [float(mean[p - 1].mean()) for p in parts])
    return out


def buckets(file: RowFile, most: int) -> pd.DataFrame:
    """States of the first seed's E, most frequent in text first: tokens, share of the text, examples."""
    row = file.of("alphabet")[0]
    order = sorted(range(row["states"]), key=lambda s: -row["shares"][s])[:most]
    return frame([{"state": s, "tokens": row["sizes"][s], "share of text": 100 * row["shares"][s], "most frequent": " ".join(map(repr, row["examples"][s]))}
                  for s in order], **{"share of text": "%"})


def lacking(file: RowFile) -> Iterator[str]:
    """Runs of Stage 2 that were finished and are not scored at every level."""
    found = scores(file)
    runs = [(r["condition"], r["arm"], r["seed"]) for r in file.of("state_launch") if r["stage"] == 2 and r["stopped"] is None]
    absent = [run for run in runs if any((*run, level) not in found for level in file.config["levels"])]
    if absent:
        yield f"scores of {len(absent)} launches, the first {' '.join(map(str, absent[0]))}"
