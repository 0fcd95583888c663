"""Tables and criteria of the measured Act IV-U2, from its rows: ways to undo compared, commits, gates, and what a guard lets through."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from .. import statistics as st
from ..criteria import HOLDS, Criteria, Criterion, Outcome, judge
from ..records import RowFile
from .sweep import arm_rows, frame, width

SCHEMES = ("replay", "per_token_states", "rewind", "tape")
NAMES = {"replay": "replay", "per_token_states": "snapshot", "rewind": "rewind", "tape": "innovation tape"}
QUANTILES = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
Found = tuple[float, float | None, float | None, int | None]


def scheme(arm: str) -> str:
    return arm.rsplit("_k", 1)[0]


def arms(rows: Sequence[dict]) -> list[str]:
    """The drafting arms, by block width and then in the order of :data:`SCHEMES`."""
    found = {r["arm"] for r in rows if scheme(r["arm"]) in SCHEMES}
    return sorted(found, key=lambda a: (width(a), SCHEMES.index(scheme(a))))


def ratio_of_sums(rows: Sequence[dict], top: Callable[[dict], float], bottom: Callable[[dict], float]) -> Found:
    """Pooled ratio of counts with its 95 % interval over prompts; a prompt is resampled with all its rows. Over nothing it is 0."""
    groups = st.by(rows, "prompt_id").values()
    sums = np.array([[sum(map(top, g)), sum(map(bottom, g))] for g in groups], dtype=float)
    n = len(sums)
    drawn = sums[st.draws(n, n * st.RESAMPLES)].reshape(st.RESAMPLES, n, 2).sum(axis=1)
    total = sums.sum(axis=0)
    return (float(total[0] / max(1, total[1])), *st.interval(drawn[:, 0] / np.maximum(1, drawn[:, 1])), n)


def tpf(rows: Sequence[dict], arm: str) -> Found:
    """Tokens per forward, pooled."""
    return ratio_of_sums(arm_rows(rows, arm), lambda r: r["tokens"], lambda r: r["forwards"])


def fallback(rows: Sequence[dict], k: int) -> Found:
    """Percent of undone head-steps in which rewind took the recorded state."""
    return ratio_of_sums(arm_rows(rows, f"rewind_k{k}"), lambda r: 100 * sum(r["rewind_fallbacks_per_cycle"]), lambda r: sum(r["rewind_steps_per_cycle"]))


def speed(rows: Sequence[dict], arm: str, control: str) -> Found:
    """Ratio of median tokens per second with its interval over prompts; ``control`` "plain" is the faster plain arm."""
    s = st.speedup(arm_rows(rows, arm), arm_rows(rows, st.plain_arm(rows) if control == "plain" else control))
    return s["ratio"], s["low"], s["high"], s["prompts"]


def headline(rows: Sequence[dict]) -> pd.DataFrame:
    """One line an arm, in the columns of the published table."""
    out = []
    for arm in arms(rows):
        group = arm_rows(rows, arm)
        value, low, high, _ = tpf(rows, arm)
        ratio, below, above, _ = speed(rows, arm, "plain")
        out.append({"block size": width(arm), "mode": NAMES[scheme(arm)], "TPF": value, "TPF low": low, "TPF high": high,
                    "tok/s": st.median_of(group, st.tokens_per_second), "x plain": ratio, "low": below, "high": above,
                    "replayed blocks": sum(r["replay_forwards"] for r in group), "recorded": max(r["recorded_bytes"] for r in group) / 1e3,
                    "fallback": fallback(rows, width(arm))[0] if scheme(arm) == "rewind" else None, "not as plain": sum(not r["identical_to_ar"] for r in group)})
    return frame(out, **{"tok/s": "median", "low": "95 %", "high": "95 %", "TPF low": "95 %", "TPF high": "95 %", "recorded": "kB", "fallback": "% of head-steps",
                         "not as plain": "rows"})


# --- commits ---

def commits(rows: Sequence[dict]) -> pd.DataFrame:
    """One line a width, count and scheme: milliseconds of the commit and of the verify forward before it, bytes, fallbacks, error."""
    out = []
    for r in sorted(rows, key=lambda r: (r["width"], r["kept"], SCHEMES.index(r["scheme"]))):
        q = st.quantiles(r["commit_ms"])
        steps = r["rewind_steps"] * len(r["commit_ms"])
        out.append({"width": r["width"], "kept": r["kept"], "mode": NAMES[r["scheme"]], "n": q["n"], "commit": q["median"], "p25": q["p25"], "p75": q["p75"],
                    "verify": st.quantiles(r["verify_ms"])["median"], "recorded": r["recorded_bytes"] / 1e3,
                    "fallback": 100 * sum(r["rewind_fallbacks"]) / steps if steps else None, "largest error": max(r["state_error"])})
    return frame(out, commit="ms", p25="ms", p75="ms", verify="ms", recorded="kB", fallback="%")


def commit_grid(rows: Sequence[dict]) -> pd.DataFrame:
    """Median milliseconds of a commit, widths and counts down, ways to undo across; the rows kept are the accepted count and two, or all."""
    grid = commits(rows).pivot(index=["width", "kept"], columns="mode", values="commit").reset_index()
    grid = grid[["width", "kept", *(NAMES[s] for s in SCHEMES)]]
    grid.columns.name = None
    grid.attrs["units"] = {NAMES[s]: "ms" for s in SCHEMES}
    return grid


def by_width(rows: Sequence[dict]) -> dict[str, dict[int, float]]:
    """Median milliseconds of a partial commit by way to undo and verify width, over all counts."""
    out: dict[str, dict[int, float]] = {}
    for name in SCHEMES:
        for w in sorted({r["width"] for r in rows}):
            values = [v for r in rows if (r["scheme"], r["width"]) == (name, w) and r["kept"] < w for v in r["commit_ms"]]
            if values:
                out.setdefault(NAMES[name], {})[w] = float(np.median(values))
    return out


def commit_ratio(rows: Sequence[dict], one: str, other: str, at: int) -> Found:
    """Ratio of median milliseconds of the partial commits at one verify width; repetitions are resampled, in all counts together."""
    sides = [np.array([r["commit_ms"] for r in sorted(rows, key=lambda r: r["kept"]) if (r["scheme"], r["width"]) == (s, at) and r["kept"] < at]) for s in (one, other)]
    n = sides[0].shape[1]
    drawn = st.draws(n, n * st.RESAMPLES).reshape(st.RESAMPLES, n)
    medians = [np.median(s[:, drawn].transpose(1, 0, 2).reshape(st.RESAMPLES, -1), axis=1) for s in sides]
    return (float(np.median(sides[0]) / np.median(sides[1])), *st.interval(medians[0] / medians[1]), n)


def recorded(rows: Sequence[dict], name: str, at: int) -> int:
    """Bytes that one verify forward of ``at`` rows recorded."""
    return next(r["recorded_bytes"] for r in rows if (r["scheme"], r["width"]) == (name, at))


# --- gates and guard ---

def gate_values(rows: Sequence[dict]) -> dict[str, np.ndarray]:
    """beta, 1 - beta, g and the amplification of one backward step, of every head-step in ``rows``."""
    logit, fade = (np.concatenate([np.asarray(r[f], float) for r in rows]) for f in ("write_logit", "fade"))
    left = 1 / (1 + np.exp(logit))
    return {"beta": 1 / (1 + np.exp(-logit)), "1-beta": left, "decay g": np.exp(-fade), "amplification": np.exp(fade) / left}


def gates(rows: Sequence[dict]) -> pd.DataFrame:
    """Quantiles over all layers, then by layer."""
    out = []
    for layer, group in [("all", rows), *sorted(st.by(rows, "layer").items())]:
        for quantity, values in gate_values(group).items():
            out.append({"quantity": quantity, "layer": str(layer), **{q: float(np.quantile(values, p)) for q, p in QUANTILES.items()}})
    return pd.DataFrame(out)


def gate_shares(rows: Sequence[dict], block_sizes: Sequence[int]) -> pd.DataFrame:
    """How often a head-step is nearly singular, and how many blocks would hold one if head-steps were independent."""
    beta, heads = gate_values(rows), len({r["layer"] for r in rows}) * rows[0]["heads"]
    tests = {"beta > 0.99": beta["beta"] > 0.99, "beta > 0.999": beta["beta"] > 0.999, "1-beta < 1e-4": beta["1-beta"] < 1e-4, "g < 0.01": beta["decay g"] < 0.01,
             "amplification > 100": beta["amplification"] > 100}
    out = [{"head-steps with": name, "share": 100 * float(hit.mean())} | {f"blocks of K={k}": 100 * (1 - (1 - float(hit.mean())) ** (heads * (k + 1))) for k in block_sizes}
           for name, hit in tests.items()]
    return frame(out, share="%", **{f"blocks of K={k}": "%" for k in block_sizes})


def guards(rows: Sequence[dict], tolerance: float) -> pd.DataFrame:
    """By guard, limit and verify width: fallbacks, largest error, and whether it is within ``tolerance``; a block that is not finite counts as an error."""
    out = []
    keys = dict.fromkeys((r["guard"], r["limit"], r["width"]) for r in rows)
    for guard, limit, at in sorted(keys, key=lambda k: (k[0] == "beta", k[1] is None, k[1] or 0, k[2])):
        group = [r for r in rows if (r["guard"], r["limit"], r["width"]) == (guard, limit, at)]
        worst = largest_error(group)
        out.append({"guard on": {"both": "beta and g", "beta": "beta alone"}[guard], "limit": limit if limit is not None else "none", "width": at, "blocks": len(group),
                    "fallback": 100 * sum(r["fallbacks"] for r in group) / sum(r["steps"] for r in group), "largest error": worst,
                    "within": "yes" if worst is not None and worst < tolerance else "NO"})
    return frame(out, fallback="% of head-steps")


def largest_error(rows: Sequence[dict]) -> float | None:
    """None if a state was not finite."""
    errors = [r["relative_error"] for r in rows]
    return None if None in errors else max(errors)


def rewind_error(rows: Sequence[dict], limit: float, guard: str) -> Found | None:
    """The largest error under one guard, infinite if a state was not finite, and the number of blocks."""
    group = [r for r in rows if r["limit"] == limit and r["guard"] == guard]
    if not group:
        return None
    worst = largest_error(group)
    return float("inf") if worst is None else worst, None, None, len(group)


# --- criteria ---

def metric(name: str, rows: RowFile) -> Found | None:
    """The number behind a rule: value, interval and n; None where these rows cannot tell (a block width that was not run)."""
    kind, *arguments = name.split(":")
    decoded, timed = rows.of("decode"), rows.of("commit")
    present = {r["arm"] for r in decoded}

    def count(values):
        values = list(values)
        return (sum(values), None, None, len(values)) if values else None

    if kind == "rows_not_plain":
        return count(not r["identical_to_ar"] for r in decoded if scheme(r["arm"]) == arguments[0])
    if kind == "rows_unlike_replay":
        told = lambda r: (r["token_digest"], r["accepted_per_cycle"])  # noqa: E731
        replay = {(width(r["arm"]), r["prompt_id"], r["repeat"]): told(r) for r in decoded if scheme(r["arm"]) == "replay"}
        return count(told(r) != replay[width(r["arm"]), r["prompt_id"], r["repeat"]] for r in decoded if scheme(r["arm"]) in ("per_token_states", "tape"))
    if kind == "states_unlike_recorded":
        return count(e > 0 for r in timed if r["scheme"] == arguments[0] for e in r["state_error"])
    if kind == "third_forwards":
        return count(r["forwards"] - 1 - 2 * r["cycles"] for r in decoded if scheme(r["arm"]) in SCHEMES[1:])
    if kind == "tpf":
        return tpf(decoded, arguments[0]) if arguments[0] in present else None
    if kind == "fallback":
        return fallback(decoded, int(arguments[0])) if f"rewind_k{arguments[0]}" in present else None
    if kind == "speed":
        arm, control = arguments[0].split("/")
        return speed(decoded, arm, control) if {arm} | ({control} - {"plain"}) <= present else None
    if kind in ("commit", "bytes"):
        (one, other), at = arguments[0].split("/"), int(arguments[1])
        if at not in {r["width"] for r in timed}:
            return None
        return commit_ratio(timed, one, other, at) if kind == "commit" else (recorded(timed, one, at) / recorded(timed, other, at), None, None, None)
    if kind == "worst_amplification":
        found = rows.of("gates")
        values = gate_values(found)["amplification"] if found else ()
        return (float(values.max()), None, None, len(values)) if found else None
    if kind == "rewind_error":
        return rewind_error(rows.of("rewind"), float(arguments[0]), arguments[1])
    raise ValueError(f"There is no metric {name!r}.")


def outcome(criterion: Criterion, rows: RowFile) -> Outcome:
    return judge(criterion, *(metric(criterion.rule.metric, rows) or (None,)))


def outcomes(criteria: Criteria, rows: RowFile) -> list[Outcome]:
    """Every criterion judged on rows that were measured under these rules. Raises BadInput for others."""
    criteria.bind(rows)
    return [outcome(c, rows) for c in criteria]


PUBLISHED_VERDICT = {"the undo is exact": ("U2-1",), "there is no third forward": ("U2-2",), "faster than replay": ("U2-6-replay-k2", "U2-6-replay-k4"),
                     "faster than plain decoding": ("U2-6-plain-k2", "U2-6-plain-k4")}
DOMINATION = {"slower decoding": ("rewind-speed-k2", "rewind-speed-k4"), "a slower commit": ("rewind-commit",), "no less recorded": ("rewind-memory",)}


def established(found: Sequence[Outcome], parts: dict[str, tuple[str, ...]]) -> bool:
    """Whether every rule of ``parts`` holds."""
    word = {o.criterion.id: o.word for o in found}
    return all(word[i] == HOLDS for ids in parts.values() for i in ids)


def told(found: Sequence[Outcome], parts: dict[str, tuple[str, ...]]) -> str:
    """Every part of a verdict with the word of its rules, by block size where there is one."""
    word = {o.criterion.id: o.word for o in found}
    where = lambda i: f"at K={i.rsplit('-k', 1)[1]} " if "-k" in i else ""  # noqa: E731
    return "; ".join(f"{text}: " + ", ".join(where(i) + word[i].split(":")[0] for i in ids) for text, ids in parts.items())
