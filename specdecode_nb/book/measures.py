"""What pages of several Acts measure on their rows: a value, its 95 % interval and what it counts, as :func:`..criteria.judge` takes them."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from .sweep import arm_rows, frame

RESAMPLES = 1000

Found = tuple[float, float | None, float | None, int | str] | tuple[float, None, None, int | str, str]
"""A number, its interval (or None twice), what n counts, and for an estimate from too few prompts the words that say so."""


def section(file: RowFile, name: str) -> list[dict]:
    """The decode rows of one section, in file order."""
    return [r for r in file.of("decode") if r.get("section") == name]


def count_prompts(rows: Sequence[dict]) -> int:
    return len(st.by(rows, "prompt_id"))


def speeds(rows: Sequence[dict]) -> pd.DataFrame:
    """Throughput by arm with the interval of the speed-up over the faster plain arm."""
    control, entries = arm_rows(rows, st.plain_arm(rows)), []
    for e in st.summarise(rows):
        ratio = st.speedup(arm_rows(rows, e["arm"]), control)
        entries.append({k: e[k] for k in ("arm", "rows", "tok/s", "x plain")} | {"low": ratio["low"], "high": ratio["high"]}
                       | {k: e[k] for k in ("TPF", "slot acceptance", "mean accepted prefix", "committed per cycle")})
    return frame(entries, **{"tok/s": "median", "low": "95 %", "high": "95 %"})


def fastest(rows: Sequence[dict], arms: Sequence[str]) -> str:
    return max((a for a in arms if arm_rows(rows, a)), key=lambda a: rate_of(rows, a))


def acceptance_of(rows: Sequence[dict], arm: str) -> float:
    """Accepted over drafted, cycles of all rows pooled."""
    mine = arm_rows(rows, arm)
    return sum(st.pooled(mine, "accepted_per_cycle")) / sum(sum(st.offered(r)) for r in mine)


def prefix_of(rows: Sequence[dict], arm: str) -> float:
    return float(np.mean(st.pooled(arm_rows(rows, arm), "accepted_per_cycle")))


def tpf_of(rows: Sequence[dict], arm: str) -> float:
    mine = arm_rows(rows, arm)
    return sum(r["tokens"] for r in mine) / sum(r["forwards"] for r in mine)


def rate_of(rows: Sequence[dict], arm: str) -> float:
    return st.median_of(arm_rows(rows, arm), st.tokens_per_second)


def ratio(rows: Sequence[dict], treatment: str, control: str) -> Found:
    r = st.speedup(arm_rows(rows, treatment), arm_rows(rows, control))
    thin = criteria.few(r["prompts"])
    return (r["ratio"], None, None, r["prompts"], thin) if thin else (r["ratio"], r["low"], r["high"], r["prompts"])


def over_prompts(rows: Sequence[dict], statistic: Callable[[list[dict]], float], sides: Sequence[int] = ()) -> Found:
    """A statistic of rows with its 95 % interval, prompts resampled with all their rows.

    ``sides``: numbers of prompts behind each side of a difference, where it compares kinds of prompts. A resample without any prompt of
    one kind is left out.
    """
    prompts = list(st.by(rows, "prompt_id").values())
    n, samples, value = len(prompts), [], statistic(list(rows))
    said = " and ".join(map(str, sides)) or n
    if thin := criteria.few(*(sides or [n])):
        return value, None, None, said, thin
    for chosen in st.draws(n, n * RESAMPLES).reshape(RESAMPLES, n):
        try:
            samples.append(statistic([r for i in chosen for r in prompts[i]]))
        except (ValueError, ZeroDivisionError, IndexError, TypeError):  # a resample without loop-free prompts, say
            continue
    if len(samples) < RESAMPLES // 2:
        return value, None, None, said, "undefined in most resamples"
    return value, *st.interval(np.array(samples)), said


def more(rows: Sequence[dict], one: str, other: str, statistic: Callable[[Sequence[dict], str], float]) -> Found:
    """A statistic of arm ``one`` less that of ``other``."""
    return over_prompts([r for r in rows if r["arm"] in (one, other)], lambda rs: statistic(rs, one) - statistic(rs, other))


def student(values: Sequence[float], unit: str = "seed") -> Found:
    """The arguments of :func:`..criteria.judge`: mean of independent values and Student's 95 % interval; too few decide nothing."""
    x, n = np.asarray(values, float), len(values)
    if thin := criteria.few(n, unit=unit):
        return float(x.mean()), None, None, n, thin
    half = stats.t.ppf(0.975, n - 1) * x.std(ddof=1) / math.sqrt(n)
    return float(x.mean()), float(x.mean() - half), float(x.mean() + half), n


def span(found: Found, fmt: str = "+.3f", unit: str = "") -> str:
    """A value, its unit and its interval."""
    return f"{found[0]:{fmt}}{unit}" + (f" [{found[1]:{fmt}}, {found[2]:{fmt}}]" if found[1] is not None else "")


def beyond_one_ulp(file: RowFile) -> Found:
    """Rows of drafting arms whose divergence from plain decoding is beyond arithmetic."""
    checked = [r for r in file.of("decode") if r["arm"] != "ar"]
    return st.audit(checked)["beyond one ULP"], None, None, len(checked)


def gathered(file: RowFile, *parts: Callable[[RowFile], dict[str, Found]]) -> dict[str, Found]:
    """The metrics of every part, and the rows whose divergence is beyond arithmetic."""
    return {name: value for part in parts for name, value in part(file).items()} | {"beyond_one_ulp": beyond_one_ulp(file)}
