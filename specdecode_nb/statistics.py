"""From raw rows to everything a notebook says about them. Section numbers refer to the published protocol.

Rows are the dictionaries of :mod:`specdecode_nb.records`; results are plain dictionaries, ready for a table. Nothing
here is stored instead of rows, and nothing random is unseeded: an interval is the same wherever it is drawn.
"""
from __future__ import annotations

import math
import operator
import random
import statistics as plain
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

SEED, RESAMPLES = 20260905, 10_000
LOOP_FREE = 0.05
STAGES = ("draft", "verify", "commit", "overhead")


# --- a continuation (3.9) ---

def looped_fraction(tokens: Sequence[int], n: int = 8) -> float:
    """Share of n-gram starts whose n-gram has occurred before in ``tokens``; 0 for fewer than 16 tokens."""
    if len(tokens) < 16:
        return 0.0
    seen, repeated, starts = set(), 0, len(tokens) - n + 1
    for i in range(starts):
        gram = tuple(tokens[i : i + n])
        repeated += gram in seen
        seen.add(gram)
    return repeated / starts


def distinct_ratio(tokens: Sequence[int]) -> float:
    """Different ids over all ids; 1 for fewer than 16 tokens."""
    return len(set(tokens)) / len(tokens) if len(tokens) >= 16 else 1.0


def loop_free(rows: Iterable[dict]) -> list[dict]:
    """Rows of prompts whose plain continuation repeats less than 5 % of itself; without those of which it is not known."""
    return [row for row in rows if row["ar_looped_fraction"] is not None and row["ar_looped_fraction"] < LOOP_FREE]


# --- one row (3.4) ---

def tokens_per_second(row: dict) -> float:
    """End to end, prefill included; of an imported row the published rate, which is finer than its rounded seconds."""
    return row.get("tokens_per_second") or row["tokens"] / row["wall_seconds"]


def decode_tokens_per_second(row: dict) -> float:
    """Without prefill."""
    return row["tokens"] / (row["wall_seconds"] - row["prefill_seconds"])


def tokens_per_forward(row: dict) -> float:
    """Tokens over full forwards of the model, prefill counted as one."""
    return row["tokens"] / row["forwards"]


def offered(row: dict) -> list[int]:
    """Drafted tokens that could be accepted, by cycle. A row without the list offers one block less its first token."""
    if "offered_per_cycle" in row:
        return row["offered_per_cycle"]
    return [int(row["arm"].rsplit("_k", 1)[1]) - 1] * row["cycles"]


def acceptance(row: dict) -> float:
    """Accepted over offered drafted tokens, 0 where nothing is offered; of an imported row as published."""
    if row.get("acceptance_rate") is not None:
        return row["acceptance_rate"]
    return sum(row["accepted_per_cycle"]) / max(1, sum(offered(row)))


# --- pooled over rows ---

def pooled(rows: Iterable[dict], field: str) -> list[int]:
    """All cycles of all rows in one list."""
    return [value for row in rows for value in row[field]]


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def survival(accepted: Sequence[int], slots: int) -> list[float]:
    """P(accepted >= j) for j = 1..slots."""
    return [sum(a >= j for a in accepted) / len(accepted) for j in range(1, slots + 1)]


def histogram(accepted: Sequence[int], slots: int) -> list[float]:
    """Share of cycles with exactly 0..slots accepted tokens."""
    return [sum(a == j for a in accepted) / len(accepted) for j in range(slots + 1)]


def conditional(rows: Sequence[dict], slots: int) -> list[float | None]:
    """P(slot j accepted | it was offered and all before it were accepted) over cycles; None where no cycle got that far."""
    cycles = [(a, o) for row in rows for a, o in zip(row["accepted_per_cycle"], offered(row))]
    reached = [[a >= j for a, o in cycles if o >= j and a >= j - 1] for j in range(1, slots + 1)]
    return [sum(hits) / len(hits) if hits else None for hits in reached]


def quantiles(values: Sequence[float]) -> dict:
    """n, median, mean, sample sd and the published index quartiles (3.6)."""
    ordered, n = sorted(values), len(values)
    low = int(0.25 * n) - (n % 4 == 0)
    return {"n": n, "median": plain.median(ordered), "mean": plain.fmean(ordered), "sd": plain.stdev(ordered) if n > 1 else 0.0,
            "p25": ordered[max(0, low)], "p75": ordered[min(n - 1, int(0.75 * n))], "min": ordered[0], "max": ordered[-1]}


def median_of(rows: Sequence[dict], measure: Callable[[dict], float]) -> float:
    return plain.median(measure(row) for row in rows)


def by(rows: Iterable[dict], *fields: str) -> dict[Any, list[dict]]:
    """Rows grouped by a field, or by a tuple of several; groups in order of first appearance."""
    groups: dict[Any, list[dict]] = {}
    key = operator.itemgetter(*fields)
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def only(rows: Iterable[dict], **fields) -> list[dict]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in fields.items())]


def plain_arm(rows: Iterable[dict]) -> str:
    """The faster plain arm of this run, by median tokens per second: what every speed-up is quoted against."""
    arms = {arm: group for arm, group in by(rows, "arm").items() if arm in ("ar", "ar_mlx_lm")}
    if not arms:
        raise ValueError("These rows hold no plain arm, so there is nothing to be faster than.")
    return max(arms, key=lambda arm: median_of(arms[arm], tokens_per_second))


def summarise(rows: Sequence[dict]) -> list[dict]:
    """One entry an arm, in the terms of the published sweep; rates are medians over rows, prefix and committed are pooled."""
    arms = by(rows, "arm")
    control = arms[plain_arm(rows)]
    out = []
    for arm, group in arms.items():
        speed = quantiles([tokens_per_second(r) for r in group])
        decode = median_of(group, decode_tokens_per_second)
        out.append({
            "arm": arm, "rows": len(group), "tok/s": speed["median"], "mean": speed["mean"], "sd": speed["sd"], "p25": speed["p25"], "p75": speed["p75"],
            "x plain": speed["median"] / median_of(control, tokens_per_second), "decode tok/s": decode,
            "x plain, decode": decode / median_of(control, decode_tokens_per_second), "TPF": median_of(group, tokens_per_forward),
            "ms per token": 1000 / speed["median"], "slot acceptance": median_of(group, acceptance),
            "mean accepted prefix": mean(pooled(group, "accepted_per_cycle")), "committed per cycle": mean(pooled(group, "committed_per_cycle")),
            "cycles": sum(r["cycles"] for r in group), "peak memory": max((r.get("peak_memory_bytes", 0) for r in group)) / 1e6})
    return out


def stages(rows: Sequence[dict]) -> list[dict]:
    """Median milliseconds a cycle by stage for each drafting arm, their sum, and the share outside the two forwards."""
    out = []
    for arm, group in by(rows, "arm").items():
        if not any(r["cycles"] for r in group):
            continue
        ms = {s: 1000 * median_of(group, lambda r, s=s: r[f"{s}_seconds"] / r["cycles"]) for s in STAGES}
        whole = sum(ms.values())
        out.append({"arm": arm, **ms, "cycle": whole, "outside forwards": 100 * (ms["commit"] + ms["overhead"]) / whole})
    return out


def three_acceptances(rows: Sequence[dict]) -> dict:
    """The three numbers that are all called acceptance, and the one that decides speed; from pooled cycles of one arm."""
    accepted, cycles = pooled(rows, "accepted_per_cycle"), sum(r["cycles"] for r in rows)
    emitted, drafted = sum(r["tokens"] for r in rows), sum(sum(offered(r)) for r in rows)
    return {"tokens per cycle": emitted / cycles, "accepted / drafted": sum(accepted) / max(1, drafted), "accepted / emitted": 1 - cycles / emitted,
            "mean accepted prefix": mean(accepted)}


# --- intervals (3.7) ---

def draws(n: int, count: int, seed: int = SEED) -> np.ndarray:
    """The first ``count`` values of ``random.Random(seed).randrange(n)``, bit for bit, int64 [count]."""
    *key, position = random.Random(seed).getstate()[1]
    stream = np.random.MT19937(0)
    stream.state = {"bit_generator": "MT19937", "state": {"key": np.array(key, dtype=np.uint32), "pos": position}}
    shift, parts, have = np.uint64(32 - n.bit_length()), [], 0
    while have < count:
        # randrange takes the top bits of one 32-bit word and draws again if they are n or more
        words = stream.random_raw(2 * (count - have) + 64) >> shift
        parts.append(words[words < n])
        have += len(parts[-1])
    return np.concatenate(parts)[:count].astype(np.int64)


def interval(samples: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of resampled values by the published indices."""
    ordered, count = np.sort(samples), len(samples)
    return float(ordered[int(0.025 * count)]), float(ordered[min(count - 1, int(0.975 * count))])


def paired_bootstrap(differences: Sequence[float], resamples: int = RESAMPLES, seed: int = SEED) -> dict:
    """Mean of paired differences (treatment minus control) with its interval; figures rounded to 6 places as published."""
    values = np.asarray(differences, dtype=float)
    n = len(values)
    if not n:
        raise ValueError("There are no pairs to compare.")
    means = values[draws(n, n * resamples, seed)].reshape(resamples, n).mean(axis=1)
    low, high = interval(means)
    figures = {"mean_diff": values.mean(), "paired_se": values.std(ddof=1) / math.sqrt(n) if n > 1 else 0.0, "ci_low": low, "ci_high": high,
               "p_positive": (means > 0).mean()}
    return {"n": n, **{k: round(float(v), 6) for k, v in figures.items()}, "significant": bool(low > 0 or high < 0),
            "wins": int((values > 0).sum()), "losses": int((values < 0).sum())}


def paired(treatment: Iterable[dict], control: Iterable[dict], measure: Callable[[dict], float]) -> list[float]:
    """Differences of a measure, paired by prompt and repeat; a row without a partner is an error."""
    key = lambda r: (r["prompt_id"], r["repeat"])  # noqa: E731
    left, right = {key(r): measure(r) for r in treatment}, {key(r): measure(r) for r in control}
    if left.keys() != right.keys():
        raise ValueError(f"{len(left.keys() ^ right.keys())} rows have no partner with the same prompt and repeat.")
    return [left[k] - right[k] for k in left]


def paired_prompts(treatment: Iterable[dict], control: Iterable[dict], measure: Callable[[dict], float]) -> list[float]:
    """Paired differences averaged over the repeats of each prompt, to resample prompts: repeats decode the same tokens."""
    treatment = list(treatment)
    apart: dict[str, list[float]] = {}
    for row, difference in zip({(r["prompt_id"], r["repeat"]): r for r in treatment}.values(), paired(treatment, control, measure)):
        apart.setdefault(row["prompt_id"], []).append(difference)
    return [mean(v) for v in apart.values()]


def speedup(treatment: Sequence[dict], control: Sequence[dict], resamples: int = RESAMPLES, seed: int = SEED) -> dict:
    """Ratio of median tokens per second and its interval over prompts.

    A prompt is resampled with all its repeats: they decode the same tokens, so they are not independent evidence.
    """
    sides = [{p: [tokens_per_second(r) for r in group] for p, group in by(rows, "prompt_id").items()} for rows in (treatment, control)]
    if sides[0].keys() != sides[1].keys() or len({len(v) for side in sides for v in side.values()}) != 1:
        raise ValueError("Every prompt needs the same number of repeats in both arms.")
    top, bottom = (np.array([side[p] for p in sides[0]]) for side in sides)
    n = len(top)
    chosen = draws(n, n * resamples, seed).reshape(resamples, n)
    ratios = np.median(top[chosen].reshape(resamples, -1), axis=1) / np.median(bottom[chosen].reshape(resamples, -1), axis=1)
    low, high = interval(ratios)
    return {"ratio": float(np.median(top) / np.median(bottom)), "low": low, "high": high, "prompts": n, "rows": top.size}


# --- cost model (5.9) ---

def cost_model(rows: Sequence[dict]) -> list[dict]:
    """Tokens a cycle over the cycle's cost in plain steps, beside the decode speed-up that was measured.

    ``break-even prefix`` is the mean accepted prefix at which the arm would be as fast as plain decoding.
    """
    control = by(rows, "arm")[plain_arm(rows)]
    step = 1 / median_of(control, decode_tokens_per_second)
    out = []
    for stage in stages(rows):
        group = [r for r in rows if r["arm"] == stage["arm"]]
        cost = {name: stage[name] / 1000 / step for name in (*STAGES, "cycle")}
        committed, prefix = mean(pooled(group, "committed_per_cycle")), mean(pooled(group, "accepted_per_cycle"))
        predicted = committed / cost["cycle"]
        measured = median_of(group, decode_tokens_per_second) * step
        out.append({"arm": stage["arm"], "tokens per cycle": committed, **{f"{k} steps": v for k, v in cost.items()}, "predicted": predicted,
                    "measured": measured, "error": 100 * (predicted / measured - 1), "mean accepted prefix": prefix,
                    "break-even prefix": cost["cycle"] - (committed - prefix)})
    return out


def slots_that_pay(curve: Sequence[float], committed: float, cycle_ms: float, slot_ms: float) -> list[dict]:
    """Slot j pays if P(accepted >= j) exceeds the tokens that the same milliseconds bring anyway."""
    needed = committed * slot_ms / cycle_ms
    return [{"slot": j, "returns": p, "needed": needed, "pays": p > needed} for j, p in enumerate(curve, 1)]


def line(x: Sequence[float], y: Sequence[float]) -> dict:
    """Least squares: intercept, slope, r2."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    slope, intercept = np.polyfit(x, y, 1)
    rest = ((y - intercept - slope * x) ** 2).sum()
    return {"intercept": float(intercept), "slope": float(slope), "r2": float(1 - rest / ((y - y.mean()) ** 2).sum())}


# --- identity (3.8) ---

def audit(rows: Iterable[dict]) -> dict:
    """Counts of rows that leave plain decoding, by the gap of the contested logits in units in the last place."""
    rows = [r for r in rows if r["identical_to_ar"] is not None]
    gaps = [r["divergence_gap_ulps"] for r in rows if not r["identical_to_ar"]]
    unexplained = sum(gap is None for gap in gaps)
    known = [gap for gap in gaps if gap is not None]
    beyond = unexplained + sum(gap > 1.0001 for gap in known)
    return {"rows": len(rows), "identical": len(rows) - len(gaps), "divergences": len(gaps), "exact ties": sum(gap == 0 for gap in known),
            "within one ULP": len(gaps) - beyond, "beyond one ULP": beyond, "median gap": plain.median(known) if known else None,
            "max gap": max(known, default=None), "verdict": "DEFECT" if beyond else "ARITHMETIC" if gaps else "IDENTICAL"}


def tie_rate(rows: Sequence[dict]) -> dict:
    """Share of positions whose two best logits are exactly equal."""
    positions, ties = sum(r["positions"] for r in rows), sum(r["exact_ties"] for r in rows)
    return {"prompts": len(rows), "positions": positions, "exact ties": ties, "rate": 100 * ties / positions}


def categories(rows: Sequence[dict], arm: str) -> list[dict]:
    """By category: prefix, acceptance, speed against the faster plain arm of the run, how far plain decoding loops."""
    control, out = plain_arm(rows), []
    for category, group in by(rows, "category").items():
        drafted, undrafted = ([r for r in group if r["arm"] == a] for a in (arm, control))
        accepted = pooled(drafted, "accepted_per_cycle")
        out.append({"category": category, "prompts": len({r["prompt_id"] for r in group}), "mean accepted prefix": mean(accepted),
                    "accepted / drafted": sum(accepted) / max(1, sum(sum(offered(r)) for r in drafted)),
                    "x plain": median_of(drafted, tokens_per_second) / median_of(undrafted, tokens_per_second),
                    "AR loop fraction": mean([r["ar_looped_fraction"] for r in drafted])})
    return out


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's r, None where one side does not vary."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    return None if len(x) < 2 or x.std() == 0 or y.std() == 0 else float(np.corrcoef(x, y)[0, 1])


def components(table: np.ndarray) -> dict[str, float]:
    """Variance components of ``table`` [launches, prompts], two-way without replication; an estimate below zero is zero."""
    n, m = table.shape
    centred = table - table.mean()
    of_launch, of_prompt = m * centred.mean(axis=1) @ centred.mean(axis=1) / (n - 1), n * centred.mean(axis=0) @ centred.mean(axis=0) / (m - 1)
    rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    residual = float((rest**2).sum() / ((n - 1) * (m - 1)))
    return {"launch": max(0.0, float(of_launch - residual) / m), "prompt": max(0.0, float(of_prompt - residual) / n), "launch x prompt": residual}
