"""Tables and metrics of the rest of Act IV-S, from its rows: confidence, policies, lengths, contexts, and what its criteria ask for."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from .measures import RESAMPLES, Found, acceptance_of, count_prompts, fastest, gathered, over_prompts, prefix_of, ratio, section
from .palette import label
from .sweep import arm_rows, frame

POLICIES, RULE, FIXED = ("adapt_entropy", "adapt_survival", "adapt_ev"), "adapt_value0", ("uno_k2", "uno_k4", "uno_k8")
BINS = 10


# --- confidence ---

def deciles(rows: Sequence[dict]) -> list[dict]:
    """Ten equal groups of cycles by the draft's mean top-1 probability (5.3): their confidence and accepted prefix."""
    cycles = sorted((float(np.mean([top for top, _ in told])), a) for r in rows
                    for told, a in zip(r["confidence_per_cycle"], r["accepted_per_cycle"]) if told)
    groups = [g for g in np.array_split(np.array(cycles).reshape(-1, 2), BINS) if len(g)]
    return [{"tenth": n, "cycles": len(g), "mean top-1": float(g[:, 0].mean()), "mean accepted prefix": float(g[:, 1].mean())} for n, g in enumerate(groups, 1)]


def spread(rows: Sequence[dict]) -> float:
    """Accepted prefix of the surest tenth of cycles less that of the least sure."""
    tenths = [d["mean accepted prefix"] for d in deciles(rows)]
    return tenths[-1] - tenths[0]


def calibration(rows: Sequence[dict]) -> list[dict]:
    """Ten bins of stated probability over proposals that verification reached: how often the target agreed.

    The last cycle of a row is left out, since the budget may cut its accepted count short.
    """
    told = np.array([(top, slot < a) for r in rows for cycle, a in zip(r["confidence_per_cycle"][:-1], r["accepted_per_cycle"])
                     for slot, (top, _) in enumerate(cycle) if slot <= a], dtype=float).reshape(-1, 2)
    bins = np.minimum((told[:, 0] * BINS).astype(int), BINS - 1)
    return [{"from": b / BINS, "to": (b + 1) / BINS, "proposals": int((bins == b).sum()), "stated": float(told[bins == b, 0].mean()),
             "accepted": float(told[bins == b, 1].mean())} for b in range(BINS) if (bins == b).any()]


def calibration_error(rows: Sequence[dict]) -> float:
    """Mean distance of stated and found probability, bins weighed by their proposals."""
    bins = calibration(rows)
    return sum(b["proposals"] * abs(b["stated"] - b["accepted"]) for b in bins) / sum(b["proposals"] for b in bins)


# --- widths, lengths, contexts ---

def shares(rows: Sequence[dict]) -> pd.DataFrame:
    """Share of cycles at each width, by policy."""
    chosen = {arm: st.pooled(group, "width_per_cycle") for arm, group in st.by(rows, "arm").items() if any(r.get("width_per_cycle") for r in group)}
    widths = sorted({k for v in chosen.values() for k in v})
    return frame([{"arm": arm, "cycles": len(v)} | {f"K={k}": v.count(k) / len(v) for k in widths} for arm, v in chosen.items()])


def costs(file: RowFile) -> pd.DataFrame:
    """Warm-up cost of a cycle by width, in milliseconds and in plain steps."""
    ms = {w: 1000 * sum(r["seconds"] for r in g) / sum(r["cycles"] for r in g) for w, g in st.by(file.of("cycle_cost"), "width").items()}
    return frame([{"width": w, "cycle": v, "plain steps": v / ms[0]} for w, v in ms.items()], cycle="ms")


def ratio_at(rows: Sequence[dict], arm: str, measure: Callable[[dict], float] = st.tokens_per_second) -> float:
    """Median of ``arm`` over that of the faster plain arm."""
    return st.median_of(arm_rows(rows, arm), measure) / st.median_of(arm_rows(rows, st.plain_arm(rows)), measure)


def lengths(rows: Sequence[dict], arm: str = "uno_k4") -> pd.DataFrame:
    """By generated length: apparent speed-up, loops, and acceptance on loop-free and on looping prompts."""
    entries = []
    for n, group in st.by(rows, "tokens").items():
        drafted = arm_rows(group, arm)
        clean = st.loop_free(drafted)
        looped = [r for r in drafted if r not in clean]
        entries.append({"generated tokens": n, "prompts": len(drafted), "x plain": ratio_at(group, arm),
                        "loop fraction": st.mean([r["ar_looped_fraction"] for r in drafted]),
                        "loop-free prompts": len(clean), "acceptance, loop-free": st.mean([st.acceptance(r) for r in clean]) if clean else None,
                        "acceptance, looping": st.mean([st.acceptance(r) for r in looped]) if looped else None,
                        "r(loop, acceptance)": st.correlation([r["ar_looped_fraction"] for r in drafted], [st.acceptance(r) for r in drafted])})
    return frame(entries)


def contexts(rows: Sequence[dict]) -> pd.DataFrame:
    """By prompt length and arm: speed end to end and of decoding alone, each over the plain arm that is faster in it."""
    entries = []
    for n, group in st.by(rows, "prompt_tokens").items():
        quickest = {m: max(st.median_of(arm_rows(group, a), m) for a in ("ar", "ar_mlx_lm")) for m in (st.tokens_per_second, st.decode_tokens_per_second)}
        for arm, mine in st.by(group, "arm").items():
            whole, decode = st.median_of(mine, st.tokens_per_second), st.median_of(mine, st.decode_tokens_per_second)
            per_cycle = lambda r: 1000 * r["verify_seconds"] / r["cycles"] if r["cycles"] else None  # noqa: E731
            entries.append({"context": n, "arm": arm, "tok/s": whole, "decode tok/s": decode, "x plain": whole / quickest[st.tokens_per_second],
                            "x plain, decode": decode / quickest[st.decode_tokens_per_second],
                            "prefill": st.median_of(mine, lambda r: r["prefill_seconds"]),
                            "verify": st.median_of(mine, per_cycle) if mine[0]["cycles"] else None,
                            "mean accepted prefix": st.mean(st.pooled(mine, "accepted_per_cycle")) if mine[0]["cycles"] else None})
    return frame(entries, prefill="s", verify="ms", **{"mean accepted prefix": "tokens"})


# --- metrics of the criteria ---

def kinds_apart(rows: Sequence[dict], arm: str = "uno_k4") -> Found | None:
    """Accepted prefix on high-entropy prompts less the mean of code and structured ones; prompts are resampled within each kind."""
    kinds = {k: [np.array([(sum(r["accepted_per_cycle"]), r["cycles"]) for r in g]).sum(axis=0) for g in st.by(group, "prompt_id").values()]
             for k, group in st.by(arm_rows(rows, arm), "category").items() if k in ("high_entropy", "code", "structured")}
    if len(kinds) < 3:
        return None
    high, *others = (np.array(kinds[k]) for k in ("high_entropy", "code", "structured"))
    apart = lambda sums: sums[0][..., 0] / sums[0][..., 1] - sum(s[..., 0] / s[..., 1] for s in sums[1:]) / 2  # noqa: E731
    sides = len(high), sum(map(len, others))
    value, said = float(apart([v.sum(axis=0) for v in (high, *others)])), " and ".join(map(str, sides))
    if thin := criteria.few(*sides):
        return value, None, None, said, thin
    drawn = [v[st.draws(len(v), len(v) * RESAMPLES, st.SEED + i).reshape(RESAMPLES, len(v))].sum(axis=1) for i, v in enumerate((high, *others))]
    return value, *st.interval(apart(drawn)), said


def outcomes(rules: criteria.Criteria, file: RowFile) -> list[criteria.Outcome]:
    """Every criterion judged on these rows. Raises BadInput if the rows were measured under other rules."""
    return rules.judged(file, metrics)


def metrics(file: RowFile) -> dict[str, Found]:
    """Every metric that the rows can give, by the name the criteria use."""
    return gathered(file, of_controls, of_policies, of_lengths, of_contexts)


def of_controls(file: RowFile) -> dict[str, Found]:
    rows = section(file, "controls")
    arms, control, free = set(st.by(rows, "arm")), st.plain_arm(rows), st.loop_free(rows)
    four = arm_rows(rows, "uno_k4")
    out = {f"refine{n}_over_one": ratio(rows, f"refine{n}_k4", "uno_k4") for n in (2, 4)}
    out["refine4_prefix_gain"] = over_prompts(rows, lambda rs: prefix_of(rs, "refine4_k4") - prefix_of(rs, "uno_k4"))
    out["k1_over_plain"] = ratio(rows, "uno_k1", control)
    if free:
        out["lookup_over_diffusion_clean"] = ratio(free, "ngram2_k4", "uno_k4")
        gain = lambda rs: ratio_at(rs, "ngram2_k4") - ratio_at(st.loop_free(rs), "ngram2_k4")  # noqa: E731
        out["lookup_loop_gain"] = over_prompts(rows, gain, (count_prompts(rows), count_prompts(free)))
    out["trained_less_untrained"] = over_prompts(rows, lambda rs: acceptance_of(rs, "uno_k4") - acceptance_of(rs, "untrained_k4"))
    if "shuffled_k4" in arms:
        out["shuffled_less_untrained"] = over_prompts(rows, lambda rs: acceptance_of(rs, "shuffled_k4") - acceptance_of(rs, "untrained_k4"))
    told = arm_rows(rows, "conf_k4")
    out["confidence_spread"] = over_prompts(told, spread)
    out["confidence_error"] = over_prompts(told, calibration_error)
    loops = [r["ar_looped_fraction"] for r in four]
    if len(four) > 2 and max(loops) > min(loops):
        out["loops_and_acceptance"] = over_prompts(four, lambda rs: st.correlation([r["ar_looped_fraction"] for r in rs], [st.acceptance(r) for r in rs]) + 0.0)
    if (apart := kinds_apart(rows)) is not None:
        out["high_entropy_excess"] = apart
    return out


def of_policies(file: RowFile) -> dict[str, Found]:
    rows = section(file, "policies")
    fixed, control = fastest(rows, FIXED), st.plain_arm(rows)
    survived = arm_rows(rows, "adapt_survival")
    plain = {(r["prompt_id"], r["repeat"]): st.tokens_per_second(r) for r in arm_rows(rows, control)}
    worst = [st.tokens_per_second(r) / plain[r["prompt_id"], r["repeat"]] for r in arm_rows(rows, RULE)]
    return {"adaptive_over_fixed": ratio(rows, fastest(rows, POLICIES), fixed), "value0_over_fixed": ratio(rows, RULE, fixed),
            "value0_worst_prompt": (min(worst), None, None, len(worst)),
            "survival_k2_share": over_prompts(survived, lambda rs: float(np.mean([k == 2 for k in st.pooled(rs, "width_per_cycle")])))}


def of_lengths(file: RowFile) -> dict[str, Found]:
    rows = section(file, "length")
    short, long = min(r["tokens"] for r in rows), max(r["tokens"] for r in rows)
    if short == long:
        return {}
    at = lambda rs, n: [r for r in rs if r["tokens"] == n]  # noqa: E731
    apart = lambda f: over_prompts(rows, lambda rs: f(at(rs, long)) - f(at(rs, short)))  # noqa: E731
    out = {"length_trend": apart(lambda rs: ratio_at(rs, "uno_k4")),
           "length_loops": apart(lambda rs: st.mean([r["ar_looped_fraction"] for r in arm_rows(rs, "ar")]))}
    sides = [count_prompts(st.loop_free(at(rows, n))) for n in (short, long)]
    if all(sides):
        clean = lambda rs, n: acceptance_of(st.loop_free(at(rs, n)), "uno_k4")  # noqa: E731
        out["length_clean_acceptance"] = over_prompts(rows, lambda rs: clean(rs, long) - clean(rs, short), sides)
    return out


def of_contexts(file: RowFile) -> dict[str, Found]:
    table = contexts(section(file, "context"))
    mine = table[table["arm"] == label("uno_k4")].sort_values("context")["x plain, decode"].tolist()
    one = None, None, 1, criteria.few(1, unit="text") + " a length"
    return {"context_longest": (mine[-1], *one)} | ({"context_trend": (mine[-1] - mine[0], *one)} if len(mine) > 1 else {})
