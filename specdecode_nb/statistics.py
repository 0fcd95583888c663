"""Everything that is derived from rows: loops, acceptance, medians, intervals, cost model. Nothing here is stored.

Definitions follow the published system (sections 3.4 to 3.9 and 5.9); intervals are seeded, so a figure and a table that
show one are equal, and so is the next run.
"""
from __future__ import annotations

import random
import statistics as st
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

LOOP_NGRAM, LOOP_FREE = 8, 0.05
BOOTSTRAP_SEED, RESAMPLES = 20260905, 10_000


# --- loops ---------------------------------------------------------------------------------------------------------


def looped_fraction(tokens: Sequence[int]) -> float:
    """Share of 8-gram start positions whose 8-gram occurred earlier in the same continuation; 0 below 16 tokens (3.9)."""
    if len(tokens) < 16:
        return 0.0
    grams = [tuple(tokens[i : i + LOOP_NGRAM]) for i in range(len(tokens) - LOOP_NGRAM + 1)]
    seen, repeated = set(), 0
    for gram in grams:
        repeated += gram in seen
        seen.add(gram)
    return repeated / len(grams)


def distinct_ratio(tokens: Sequence[int]) -> float:
    """Distinct ids over all ids; 1 below 16 tokens."""
    return 1.0 if len(tokens) < 16 else len(set(tokens)) / len(tokens)


# --- acceptance ----------------------------------------------------------------------------------------------------


def histogram(accepted: Iterable[int], slots: int) -> list[float]:
    """P(a = 0), ..., P(a = slots) over cycles; NaN when there is no cycle."""
    counts = Counter(accepted)
    n = sum(counts.values())
    return [counts[a] / n if n else float("nan") for a in range(slots + 1)]


def survival(accepted: Iterable[int], slots: int) -> list[float]:
    """P(a >= 1), ..., P(a >= slots) over cycles."""
    mass = histogram(accepted, slots)
    return [sum(mass[j:]) for j in range(1, slots + 1)]


def conditional_acceptance(accepted: Sequence[int], offered: Sequence[int], slots: int) -> list[float]:
    """P(slot j accepted | slot j offered and reached); NaN where never reached."""
    rates = []
    for j in range(1, slots + 1):
        reached = [a for a, o in zip(accepted, offered) if o >= j and a >= j - 1]
        rates.append(sum(a >= j for a in reached) / len(reached) if reached else float("nan"))
    return rates


def acceptance_names(rows: Sequence[dict]) -> dict[str, float]:
    """The three ratios that are all called acceptance: accepted over drafted, accepted over emitted, tokens per cycle."""
    accepted = sum(sum(r["accepted_per_cycle"]) for r in rows)
    offered = sum(sum(r["offered_per_cycle"]) for r in rows)
    emitted, cycles = sum(r["tokens"] for r in rows), sum(r["cycles"] for r in rows)
    return {"accepted/drafted": accepted / offered if offered else float("nan"), "accepted/emitted": accepted / emitted,
            "tokens/cycle": emitted / cycles if cycles else float("nan")}


# --- medians and intervals -----------------------------------------------------------------------------------------


def describe(values: Sequence[float]) -> dict[str, float]:
    """n, median, mean, sample sd, p25, p75, min, max by the published index rules (3.6), not rounded."""
    v, n = sorted(values), len(values)
    low = int(0.25 * n) - (1 if n % 4 == 0 else 0)
    return {"n": n, "median": st.median(v), "mean": st.fmean(v), "sd": st.stdev(v) if n > 1 else 0.0, "p25": v[max(0, low)],
            "p75": v[min(n - 1, int(0.75 * n))], "min": v[0], "max": v[-1]}


@lru_cache(maxsize=32)
def _draws(n: int, resamples: int, seed: int) -> np.ndarray:
    """The indices that ``random.Random(seed).choices(range(n))`` gives, resamples x n: floor(u n) of the same stream."""
    stream = random.Random(seed)
    uniform = np.fromiter((stream.random() for _ in range(resamples * n)), float, resamples * n)
    return np.floor(uniform * n).astype(np.int32).reshape(resamples, n)


def _interval(values: np.ndarray) -> tuple[float, float]:
    values, r = np.sort(values), len(values)
    return float(values[int(0.025 * r)]), float(values[min(r - 1, int(0.975 * r))])


def paired_bootstrap(treatment: Sequence[float], control: Sequence[float], resamples: int = RESAMPLES, seed: int = BOOTSTRAP_SEED) -> dict:
    """Mean of treatment - control over pairs with its 95 % interval (3.7): resampled pairs, percentile of the sorted means."""
    diff = np.asarray(treatment, float) - np.asarray(control, float)
    if len(diff) < 2 or len(treatment) != len(control):
        raise ValueError(f"A paired bootstrap needs two or more pairs of equal number, not {len(treatment)} and {len(control)}.")
    means = diff[_draws(len(diff), resamples, seed)].mean(axis=1)
    low, high = _interval(means)
    return {"n": len(diff), "mean_diff": float(diff.mean()), "paired_se": float(diff.std(ddof=1) / len(diff) ** 0.5), "ci_low": low,
            "ci_high": high, "p_positive": float((means > 0).mean()), "significant": low > 0 or high < 0,
            "wins": int((diff > 0).sum()), "losses": int((diff < 0).sum())}


def ratio_of_medians(treatment: Sequence[float], control: Sequence[float], resamples: int = 2000, seed: int = BOOTSTRAP_SEED) -> dict:
    """Median(treatment) / median(control) and its 95 % interval over resampled pairs."""
    t, c = np.asarray(treatment, float), np.asarray(control, float)
    index = _draws(len(t), resamples, seed)
    low, high = _interval(np.median(t[index], axis=1) / np.median(c[index], axis=1))
    return {"n": len(t), "ratio": float(np.median(t) / np.median(c)), "ci_low": low, "ci_high": high}


# --- decode rows ---------------------------------------------------------------------------------------------------


def decode_frame(rows: Sequence[dict]) -> pd.DataFrame:
    """Decode rows as a frame with the derived columns tok_s, decode_tok_s, tpf, k and loop_free."""
    frame = pd.DataFrame([r for r in rows if r["kind"] == "decode"])
    frame["tok_s"] = frame.tokens / frame.wall_seconds
    frame["decode_tok_s"] = frame.tokens / (frame.wall_seconds - frame.prefill_seconds)
    frame["tpf"] = frame.tokens / frame.forwards
    frame["k"] = frame.arm.str.extract(r"_k(\d+)$")[0].astype("Int64")
    frame["loop_free"] = frame.ar_looped_fraction < LOOP_FREE
    return frame


def baseline_arm(frame: pd.DataFrame) -> str:
    """The faster of the plain arms in this run, by median throughput: what speed-ups are quoted against."""
    plain = frame[frame.arm.isin(("ar", "ar_mlx_lm"))].groupby("arm").tok_s.median()
    return str(plain.idxmax())


def paired(frame: pd.DataFrame, arm: str, control: str, value: str = "tok_s") -> tuple[np.ndarray, np.ndarray]:
    """Values of two arms on the same (prompt, repeat), in the order of the control's rows."""
    keys = ["prompt_id", "repeat"]
    joined = frame[frame.arm == control][[*keys, value]].merge(frame[frame.arm == arm][[*keys, value]], on=keys, suffixes=("_c", "_t"))
    return joined[f"{value}_t"].to_numpy(), joined[f"{value}_c"].to_numpy()


def sweep_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One line an arm: throughput, speed-up against :func:`baseline_arm` with its interval, acceptance, identity."""
    control, lines = baseline_arm(frame), []
    for arm, rows in frame.groupby("arm", sort=False):
        accepted, offered = [a for r in rows.accepted_per_cycle for a in r], [o for r in rows.offered_per_cycle for o in r]
        speed, decode = ratio_of_medians(*paired(frame, arm, control)), ratio_of_medians(*paired(frame, arm, control, "decode_tok_s"))
        d, cycles = describe(rows.tok_s.tolist()), int(rows.cycles.sum())
        lines.append({"arm": arm, "rows": len(rows), "tok/s median": d["median"], "tok/s mean": d["mean"], "sd": d["sd"], "p25": d["p25"],
                      "p75": d["p75"], "speed-up": speed["ratio"], "low": speed["ci_low"], "high": speed["ci_high"],
                      "decode-only speed-up": decode["ratio"], "TPF": rows.tpf.median(),
                      "acceptance": sum(accepted) / sum(offered) if sum(offered) else float("nan"),
                      "prefix": float(np.mean(accepted)) if sum(offered) else float("nan"),
                      "tokens/cycle": rows.tokens.sum() / cycles if cycles else float("nan"), "cycles": cycles,
                      "identical": int(rows.identical_to_ar.sum())})
    return pd.DataFrame(lines)


def stage_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds a cycle by stage, and what the two forwards leave over, for the drafting arms."""
    lines = []
    for arm, rows in frame[frame.cycles > 0].groupby("arm", sort=False):
        n = rows.cycles.sum()
        ms = {s: 1e3 * rows[f"{s}_seconds"].sum() / n for s in ("draft", "verify", "commit", "overhead")}
        cycle = sum(ms.values())
        lines.append({"arm": arm, **ms, "cycle": cycle, "outside the forwards": (ms["commit"] + ms["overhead"]) / cycle})
    return pd.DataFrame(lines)


def cost_model(frame: pd.DataFrame) -> pd.DataFrame:
    """The napkin: tokens a cycle over what a cycle costs in plain steps, beside the measured decode-only speed-up.

    A plain step is the median decode time a token of :func:`baseline_arm`. ``break-even`` is the tokens a cycle needed.
    """
    control = baseline_arm(frame)
    plain = frame[frame.arm == control]
    step = ((plain.wall_seconds - plain.prefill_seconds) / plain.tokens).median() * 1e3
    table, lines = sweep_table(frame).set_index("arm"), []
    for _, row in stage_table(frame).iterrows():
        tokens, cost = table.loc[row.arm, "tokens/cycle"], row.cycle / step
        lines.append({"arm": row.arm, "tokens/cycle": tokens, "cycle ms": row.cycle, "plain step ms": step, "cycle in plain steps": cost,
                      "predicted": tokens / cost, "measured": table.loc[row.arm, "decode-only speed-up"], "break-even": cost})
    return pd.DataFrame(lines)


def audit_counts(frame: pd.DataFrame) -> dict[str, int | float | None]:
    """Rows checked, identical, diverging, and the largest gap in units in the last place (3.8)."""
    other = frame[frame.arm != "ar"]
    gaps = other.loc[~other.identical_to_ar.astype(bool), "divergence_gap_ulps"].dropna()
    return {"rows": len(other), "identical": int(other.identical_to_ar.sum()), "diverging": len(other) - int(other.identical_to_ar.sum()),
            "within one ULP": int((gaps <= 1.0001).sum()), "beyond one ULP": int((gaps > 1.0001).sum()),
            "largest gap": float(gaps.max()) if len(gaps) else None}
