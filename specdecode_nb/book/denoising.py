"""Tables and metrics of Acts I and III from their rows. Intervals of Act I are Student's over launches (seeds), those of Act III resample held-out windows.

A copier is right wherever nothing was changed: its accuracy is the copy baseline, and lift is accuracy less that.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from .measures import RESAMPLES, Found, student
from .sweep import frame

BIASED = ("free", "x1", "x20")
ARMS = {"none": "no conditioner", "free": "bias grows", "x1": "1 embedding", "x20": "20 embeddings"}
SOURCES = {"truth": "held-out text", "greedy": "target, greedy", "drawn": "target, drawn"}


# --- Act I ---

def rates(tally: dict) -> dict[str, float]:
    """Percentages of one tally; ``corrupted`` is None where nothing was changed."""
    rows, changed = tally["rows"], tally["changed"]
    identity, copy = 100 * (tally["changed_right"] + tally["unchanged_right"]) / rows, 100 * (rows - changed) / rows
    return {"identity": identity, "copy baseline": copy, "lift": identity - copy, "corrupted": 100 * tally["changed_right"] / changed if changed else None,
            "unchanged": 100 * tally["unchanged_right"] / (rows - changed) if rows > changed else None}


def runs(file: RowFile) -> dict[str, list[dict]]:
    """Launches by run, each run in the order of its seeds."""
    return {name: sorted(group, key=lambda r: r["seed"]) for name, group in sorted(st.by(file.of("overfit"), "run").items())}


def last(group: Sequence[dict], name: str) -> list[float]:
    """One rate of every launch under the noise of training, at its last step."""
    return [rates(r["curve"][-1])[name] for r in group]


def at(row: dict, t: float) -> dict:
    return next(level for level in row["levels"] if level["t"] == t)


def cost_of_adapter(row: dict) -> float:
    """Perplexity with the adapter left on over that without it."""
    return math.exp(np.mean(row["nats_on"]) - np.mean(row["nats_off"]))


def overfit_numbers(file: RowFile) -> dict[str, Found]:
    """Every metric of data/criteria/act1.json that these rows can give; percentages and points."""
    by, out = runs(file), {}
    for name, group in by.items():
        out[f"lift:{name}"] = student(last(group, "lift"))
    corrupted = {name: np.array(last(group, "corrupted")) for name, group in by.items()}
    out |= {"corrupted:001": student(corrupted["001"]), "unchanged:002": student(last(by["002"], "unchanged")),
            "steps": student(corrupted["004"] - corrupted["001"]), "capacity": student(corrupted["003"] - corrupted["004"]),
            "recall:003": student([rates(at(r, 1.0))["identity"] for r in by["003"]]),
            "unseen:003": student([rates(r["unseen"])["lift"] for r in by["003"]]),
            "bits": (sum(r["bits_changed"] for r in file.of("overfit")), None, None, len(file.of("overfit"))),
            "ppl:003": student([cost_of_adapter(r) for r in by["003"]])}
    return out


def overfit(file: RowFile) -> list[criteria.Outcome]:
    """Every criterion of Act I judged on these rows. Raises BadInput if they were measured under other rules."""
    return criteria.load("act1").judged(file, overfit_numbers)


def overfit_table(file: RowFile) -> pd.DataFrame:
    """One line a run: means over seeds at the last step, and the range of the lift."""
    entries = []
    for name, group in runs(file).items():
        told, lifts = {k: st.mean(last(group, k)) for k in ("identity", "copy baseline", "lift", "corrupted", "unchanged")}, last(group, "lift")
        entries.append({"run": name, "launches": len(group), "steps": group[0]["steps"], "trained": group[0]["trained"],
                        "loss first": st.mean([r["losses"][0] for r in group]),
                        "loss last": st.mean([st.mean(r["losses"][-5:]) for r in group]), **told, "lowest lift": min(lifts), "highest lift": max(lifts),
                        "unseen lift": st.mean([rates(r["unseen"])["lift"] for r in group]), "AR perplexity": st.mean([cost_of_adapter(r) for r in group])})
    return frame(entries, **dict.fromkeys(("identity", "copy baseline", "corrupted", "unchanged"), "%"),
                 **dict.fromkeys(("lift", "lowest lift", "highest lift", "unseen lift"), "pp"), **{"AR perplexity": "× off"})


def seeds_table(file: RowFile) -> pd.DataFrame:
    """One line a seed: identity accuracy of every run under the noise of training, at its last step."""
    by = runs(file)
    columns = {f"run {name}": last(group, "identity") for name, group in by.items()}
    table = pd.DataFrame({"seed": [r["seed"] for r in next(iter(by.values()))], **columns})
    table.attrs["units"] = dict.fromkeys(columns, "%")
    return table


def curve(group: Sequence[dict], name: str) -> tuple[list, list, list, list]:
    """Steps, and mean, least and greatest of one rate over launches."""
    table = np.array([[rates(point)[name] for point in r["curve"]] for r in group])
    return [p["step"] for p in group[0]["curve"]], table.mean(axis=0).tolist(), table.min(axis=0).tolist(), table.max(axis=0).tolist()


def levels_table(group: Sequence[dict]) -> pd.DataFrame:
    """One line a noise level: the trained readout of one run and what the target itself reads, means over launches."""
    entries = []
    for t in [level["t"] for level in group[0]["levels"]]:
        cells = [at(r, t) for r in group]
        entries.append({"t": t, "changed": st.mean([100 * c["changed"] / c["rows"] for c in cells]),
                        "base identity": st.mean([100 * c["base_right"] / c["rows"] for c in cells]),
                        "base next token": st.mean([100 * c["base_next_right"] / c["base_next_rows"] for c in cells]),
                        "trained identity": st.mean([rates(c)["identity"] for c in cells]),
                        "trained corrupted": st.mean([rates(c)["corrupted"] for c in cells]) if cells[0]["changed"] else None,
                        "loss": st.mean([c["nats"] for c in cells])})
    return frame(entries, **dict.fromkeys(("changed", "base identity", "base next token", "trained identity", "trained corrupted"), "%"), loss="nats")


def texts_table(file: RowFile) -> pd.DataFrame:
    """Ordinary greedy decoding with the adapter off and left on: perplexity, and how much of a text is one token."""
    share = lambda tokens: 100 * max(map(tokens.count, tokens)) / len(tokens)  # noqa: E731
    entries = [{"run": name, "adapter": state, "perplexity": st.mean([math.exp(np.mean(r[f"nats_{state}"])) for r in group]),
                "distinct tokens": st.mean([len(set(r[f"greedy_{state}"])) for r in group]),
                "most frequent token": st.mean([share(r[f"greedy_{state}"]) for r in group])}
               for name, group in runs(file).items() for state in ("off", "on")]
    return frame(entries, **{"most frequent token": "% of the text"})


def remark(file: RowFile) -> str:
    """What the means of Act I hide: at how many seeds run 003 learns its batch."""
    ends = seeds_table(file)["run 003"]
    return f"the run with MLPs ends above 80 % at {(ends >= 80).sum()} of {len(ends)} seeds and below 50 % at {(ends < 50).sum()}, at a rate chosen by another run"


# --- Act III ---

def launches(file: RowFile, arm: str) -> list[dict]:
    """The whole launches of an arm; one that stopped early has no end to be judged."""
    return [r for r in file.of("masked_launch") if r["arm"] == arm and r["stopped"] is None]


def aborts(row: dict) -> str:
    """The first of the published rules for ending a run that a launch meets, and its step, "" for none; they are told here and end nothing.

    Canvas L1 under 0.1 at t = 0.5; after a quarter of the run fewer than 20 % of visible rows preserved at t = 0.1; ordinary perplexity ten times that at the start.
    """
    seen = [(point["step"], {lv["t"]: lv for lv in point["levels"]}, np.mean(point["ar"])) for point in row["health"]]
    for step, at, ar in seen[1:]:
        kept = 100 * np.mean(at[0.1]["visible_right"]) / at[0.1]["visible"]
        met = {"canvas L1 under 0.1": np.mean(at[0.5]["canvas_l1"]) < 0.1, "fewer than 20 % of visible rows preserved after a quarter of the run": step > 0.25 * row["steps"] and kept < 20,
               "ten times the perplexity": math.exp(ar - seen[0][2]) > 10}
        if any(met.values()):
            return f"step {step}: {next(what for what, true in met.items() if true)}"
    return ""


def windowed(group: Sequence[dict], t: float, name: str, point: int = -1) -> np.ndarray:
    """[windows]: one list of the health of launches at a level, averaged over launches; counts of rows as percentages."""
    cells = [next(level for level in r["health"][point]["levels"] if level["t"] == t) for r in group]
    part = {"hidden_right": "hidden", "visible_right": "visible", "visible_next": "visible_next_of"}.get(name)
    return np.mean([np.array(c[name]) * (100 / np.maximum(c[part], 1) if part else 1) for c in cells], axis=0)


def over_windows(statistic: Callable[..., np.ndarray], *values: np.ndarray) -> Found:
    """``statistic`` of the means of ``values`` (each [windows]) with its interval, windows resampled together."""
    table = np.array(values)
    n = table.shape[1]
    value = float(statistic(*table.mean(axis=1)))
    if thin := criteria.few(n, unit="window"):
        return value, None, None, n, thin
    chosen = st.draws(n, n * RESAMPLES).reshape(RESAMPLES, n)
    return value, *st.interval(statistic(*table[:, chosen].mean(axis=2))), n


def canvases(file: RowFile, source: str, given: float = 0.0, forwards: int = 0) -> list[dict]:
    return [r for r in file.of("canvas") if (r["source"], r["given"], r["forwards"]) == (source, given, forwards)]


def by_window(rows: Sequence[dict], name: str) -> np.ndarray:
    """[windows]: one number of canvas rows, averaged over seeds."""
    groups = st.by(rows, "window")
    return np.array([st.mean([r[name] for r in groups[w]]) for w in sorted(groups)])


def masked_numbers(file: RowFile) -> dict[str, Found]:
    """Every metric of data/criteria/act3.json that these rows can give."""
    none, same = launches(file, "none"), lambda x: x
    out: dict[str, Found] = {"shared": (file.config["shared_windows"], None, None, file.config["windows"])}
    if none:
        right = lambda t, point=-1: windowed(none, t, "hidden_right", point)  # noqa: E731
        ar = lambda point: np.mean([r["health"][point]["ar"] for r in none], axis=0)  # noqa: E731
        least = 100 / (windowed(none, 0.5, "hidden_right").size * len(none) * next(lv["hidden"] for lv in none[0]["health"][0]["levels"] if lv["t"] == 0.5))
        out |= {"gap": over_windows(lambda a, b, c: np.minimum(a - b, b - c), right(0.1), right(0.5), right(0.9)), "masked:0.1": over_windows(same, right(0.1)),
                "preserved": over_windows(np.minimum, windowed(none, 0.1, "visible_right"), windowed(none, 0.5, "visible_right")),
                # a start without one right row counts as one, so that a factor exists
                "gain": over_windows(lambda end, start: end / np.maximum(start, least), right(0.5), right(0.5, 0)),
                "canvas_l1": over_windows(same, windowed(none, 0.5, "canvas_l1")), "ppl": over_windows(lambda end, start: np.exp(end - start), ar(-1), ar(0)),
                "visible_next": over_windows(same, windowed(none, 0.1, "visible_next")),
                "from_nothing": over_windows(lambda a, b: a / np.maximum(b, 1e-9), right(1.0), right(0.9))}
    arms = {arm: launches(file, arm) for arm in BIASED}
    if arms["free"]:
        out["bias:free"] = (min(max(r["health"][-1]["bias"]) for r in arms["free"]), None, None, len(arms["free"]))
    out |= {f"l1:{arm}": over_windows(same, windowed(arms[arm], 0.5, "canvas_l1")) for arm in ("x1", "x20") if arms[arm]}
    both = {r["seed"] for r in arms["x1"]} & {r["seed"] for r in arms["x20"]}
    if both:
        pair = [[r for r in arms[arm] if r["seed"] in both] for arm in ("x1", "x20")]
        out |= {"pair_l1": over_windows(np.subtract, *(windowed(g, 0.5, "canvas_l1") for g in pair)),
                "pair_masked": over_windows(np.subtract, *(windowed(g, 0.1, "hidden_right") for g in pair))}
    empty, more, half = (canvases(file, "sampler", *fill) for fill in ((0.0, 8), (0.0, 64), (0.5, 8)))
    truth, drawn = canvases(file, "truth"), canvases(file, "drawn")
    if all((empty, more, half, truth, drawn)):
        less = lambda a, b, name="nats": over_windows(np.subtract, by_window(a, name), by_window(b, name))  # noqa: E731
        out |= {"nats:0": less(empty, truth), "nats:drawn": less(empty, drawn), "distinct:0": less(empty, truth, "distinct"),
                "infill": less(half, empty), "forwards": less(more, empty)}
    return out


def masked(file: RowFile) -> list[criteria.Outcome]:
    """Every criterion of Act III judged on these rows. Raises BadInput if they were measured under other rules."""
    return criteria.load("act3").judged(file, masked_numbers)


def reached(outcomes: Iterable[criteria.Outcome]) -> list[str]:
    """The published criteria, 1 to 7, whose number alone is on the right side, as they were judged when published."""
    return [o.criterion.id for o in outcomes if o.criterion.id.isdigit() and o.value is not None and o.criterion.rule.passed(o.value)]


def reached_alone(file: RowFile) -> dict[int, list[str]]:
    """The same for each seed by itself."""
    return {seed: reached(masked(replace(file, rows=[r for r in file.rows if r["seed"] in (0, seed)]))) for seed in file.config["seeds"]}


def heldout_table(group: Sequence[dict]) -> pd.DataFrame:
    """One line a noise level at the end of the launches of one arm, means over windows and launches."""
    entries = []
    for t in [level["t"] for level in group[0]["health"][-1]["levels"]]:
        mean = lambda key: float(windowed(group, t, key).mean())  # noqa: E731
        entries.append({"t": t, "masked accuracy": mean("hidden_right"), "canvas L1": mean("canvas_l1"), "cross entropy": mean("nats"),
                        "visible preserved": mean("visible_right") if t < 1 else None, "visible, next token": mean("visible_next") if t < 1 else None})
    return frame(entries, **dict.fromkeys(("masked accuracy", "visible preserved", "visible, next token"), "%"), **{"cross entropy": "nats"})


def dynamics(group: Sequence[dict], t: float, name: str) -> tuple[list, list]:
    """Steps and one list of the health of launches at a level, means over windows and launches."""
    return [h["step"] for h in group[0]["health"]], [float(windowed(group, t, name, point).mean()) for point in range(len(group[0]["health"]))]


def perplexities(group: Sequence[dict]) -> tuple[list, list]:
    """Steps and AR perplexity of held-out windows, adapter on, of the launches of one arm."""
    return [h["step"] for h in group[0]["health"]], [math.exp(np.mean([r["health"][point]["ar"] for r in group])) for point in range(len(group[0]["health"]))]


def bias_table(file: RowFile) -> pd.DataFrame:
    """One line a launch of the comparison of bias sizes, at its end."""
    entries = []
    for arm in BIASED:
        for r in launches(file, arm):
            entries.append({"conditioner": ARMS[arm], "seed": r["seed"], "steps": r["steps"], "largest bias": max(r["health"][-1]["bias"]),
                            "canvas L1": float(windowed([r], 0.5, "canvas_l1").mean()), "masked, t = 0.10": float(windowed([r], 0.1, "hidden_right").mean()),
                            "masked, t = 0.50": float(windowed([r], 0.5, "hidden_right").mean()), "AR perplexity": perplexities([r])[1][-1]})
    return frame(entries, **{"largest bias": "embeddings", "masked, t = 0.10": "%", "masked, t = 0.50": "%"})


def fills_table(file: RowFile) -> pd.DataFrame:
    """One line a kind of canvas: what the target says of it, how much it repeats, confidence at the first and the last forward."""
    entries = []
    for (source, given, forwards) in dict.fromkeys((r["source"], r["given"], r["forwards"]) for r in file.of("canvas")):
        rows = canvases(file, source, given, forwards)
        name = SOURCES.get(source) or f"sampler, {f'{given:.0%} given' if given else 'full mask'}, {forwards} forwards"
        entries.append({"canvas": name, "texts": len(rows),
                        "nats a token": st.mean([r["nats"] for r in rows]), "distinct": st.mean([r["distinct"] for r in rows]),
                        "looped": st.mean([r["looped"] for r in rows]), "rows right": 100 * st.mean([r["right"] / r["written"] for r in rows]),
                        "confidence first": st.mean([r["sure"][0] for r in rows]) if rows[0].get("sure") else None,
                        "confidence last": st.mean([r["sure"][-1] for r in rows]) if rows[0].get("sure") else None})
    return frame(entries, **{"nats a token": "under the target", "rows right": "%"})
