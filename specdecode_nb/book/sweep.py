"""Tables of a measured sweep over block widths, from its decode rows; first used in Act IV-S."""
from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .. import statistics as st
from .palette import label

UNITS = {"tok/s": "median", "p25": "tok/s", "p75": "tok/s", "peak memory": "MB", "mean accepted prefix": "tokens", "committed per cycle": "tokens"}


def frame(entries: Sequence[dict], **units: str) -> pd.DataFrame:
    """Entries as a table; an ``arm`` is shown by its name in the legends."""
    table = pd.DataFrame(list(entries))
    if "arm" in table:
        table["arm"] = [label(a) for a in table["arm"]]
    table.attrs["units"] = units
    return table


def drafting(rows: Sequence[dict]) -> list[str]:
    """The drafting arms, in the order of their first row."""
    return [arm for arm, group in st.by(rows, "arm").items() if any(r["cycles"] for r in group)]


def width(arm: str) -> int:
    return int(arm.rsplit("_k", 1)[1])


def arm_rows(rows: Sequence[dict], arm: str) -> list[dict]:
    return st.only(rows, arm=arm)


def best(rows: Sequence[dict]) -> str:
    """The fastest drafting arm by median tokens per second."""
    return max(drafting(rows), key=lambda arm: st.median_of(arm_rows(rows, arm), st.tokens_per_second))


def speed(rows: Sequence[dict]) -> pd.DataFrame:
    """Throughput and speed-up by arm, with the interval of the speed-up over prompts."""
    control, entries = st.plain_arm(rows), []
    for e in st.summarise(rows):
        ratio = st.speedup(arm_rows(rows, e["arm"]), arm_rows(rows, control))
        entries.append({k: e[k] for k in ("arm", "rows", "tok/s", "p25", "p75", "x plain")} | {"low": ratio["low"], "high": ratio["high"]}
                       | {k: e[k] for k in ("x plain, decode", "TPF", "slot acceptance", "mean accepted prefix", "committed per cycle", "peak memory")})
    return frame(entries, **{"tok/s": "median", "p25": "tok/s", "p75": "tok/s", "low": "95 %", "high": "95 %", "peak memory": "MB"})


def stages(rows: Sequence[dict]) -> pd.DataFrame:
    return frame(st.stages(rows), **{s: "ms" for s in (*st.STAGES, "cycle")}, **{"outside forwards": "%"})


def survival(rows: Sequence[dict]) -> dict[str, list[float]]:
    """Survival curves of the arms that speculate, by arm."""
    return {arm: st.survival(st.pooled(arm_rows(rows, arm), "accepted_per_cycle"), width(arm) - 1) for arm in drafting(rows) if width(arm) > 1}


def slots(rows: Sequence[dict], kind: str, most: int = 7) -> pd.DataFrame:
    """By arm and slot: ``survival``, ``histogram`` or ``conditional`` acceptance; slots beyond ``most`` are left out."""
    entries = []
    for arm in drafting(rows):
        group, n = arm_rows(rows, arm), width(arm) - 1
        if n < 1:
            continue
        accepted = st.pooled(group, "accepted_per_cycle")
        values = {"survival": lambda: st.survival(accepted, n), "conditional": lambda: st.conditional(group, n), "histogram": lambda: st.histogram(accepted, n)}[kind]()
        start = 0 if kind == "histogram" else 1
        entries.append({"arm": arm, "cycles": len(accepted)} | {f"j={j}": v for j, v in enumerate(values[: most + 1 - start], start)})
    return frame(entries)


def acceptances(rows: Sequence[dict]) -> pd.DataFrame:
    """What is called acceptance, by arm, each under its own name."""
    return frame([{"arm": arm, **st.three_acceptances(arm_rows(rows, arm))} for arm in drafting(rows) if width(arm) > 1])


def categories(rows: Sequence[dict], arm: str) -> pd.DataFrame:
    return frame(st.categories(rows, arm))


def differences(rows: Sequence[dict]) -> list[dict]:
    """Paired differences in tokens per second of every drafting arm, in percent of the faster plain arm's mean, over prompts."""
    control = arm_rows(rows, st.plain_arm(rows))
    base = st.mean([st.tokens_per_second(r) for r in control]) / 100
    entries = []
    for arm in drafting(rows):
        b = st.paired_bootstrap(st.paired_prompts(arm_rows(rows, arm), control, st.tokens_per_second))
        entries.append({"label": arm, "value": b["mean_diff"] / base, "low": b["ci_low"] / base, "high": b["ci_high"] / base, "n": b["n"], **b})
    return entries


def repeats(rows: Sequence[dict], arm: str) -> pd.DataFrame:
    """By repeat: median tokens per second of both plain arms and of ``arm``, and its ratio to the plain arm that is faster over all."""
    control = st.plain_arm(rows)
    out = []
    for n, group in sorted(st.by(rows, "repeat").items()):
        speeds = {a: st.median_of(arm_rows(group, a), st.tokens_per_second) for a in ("ar", "ar_mlx_lm", arm)}
        out.append({"repeat": n + 1} | {label(a): v for a, v in speeds.items()} | {"x plain": speeds[arm] / speeds[control]})
    return frame(out, **{label(a): "tok/s" for a in ("ar", "ar_mlx_lm", arm)})


def cost(rows: Sequence[dict]) -> pd.DataFrame:
    return frame(st.cost_model(rows), error="%")


def loops(rows: Sequence[dict]) -> pd.DataFrame:
    """Loop statistics of plain decoding by category, from rows of kind ``loops``."""
    entries = []
    for category, group in st.by(rows, "category").items():
        entry = {"category": category, "prompts": len(group), "loop fraction": st.mean([r["looped_fraction"] for r in group]),
                 "loop-free prompts": sum(r["looped_fraction"] < st.LOOP_FREE for r in group), "distinct tokens": st.mean([r["distinct_ratio"] for r in group])}
        if all("mean_entropy_nats" in r for r in group):
            entry["entropy"] = st.mean([r["mean_entropy_nats"] for r in group])
        entries.append(entry)
    return frame(entries, entropy="nats")
