"""What Act IV-U6 asks of its measured rows: tables, and the number with interval behind every criterion.

Every interval resamples prompts with all they hold. The published ones of throughput resample (prompt, repeat) units, which
are not independent: repeats of a prompt decode the same tokens.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from .sweep import arm_rows, frame

B, DUPLICATE, DECOUPLED = "uno_k4", "uno_k4_b2", "dec_d4v4"
STAGED = ("staged_d6v4", "staged_d8v4", "staged_d6v3", "staged_d8v2")
TRUNCATED = ("trunc_d6v4", "trunc_d8v4")
RESAMPLES = 2000
Number = tuple[float | None, float | None, float | None, int | None]
"""Value, ends of its 95 % interval (None for a count), number of units."""


def name(arm: str) -> str:
    """``staged_d6v4`` as the Act writes it, S(6,4); any other arm as it is."""
    kind, _, widths = arm.partition("_d")
    return f"{kind[0].upper()}({','.join(widths.split('v'))})" if kind in ("staged", "trunc") else {DUPLICATE: "B2, the same again", DECOUPLED: "B_dec"}.get(arm, arm)


def over_prompts(values: np.ndarray, statistic: Callable[[np.ndarray], float]) -> Number:
    """``statistic`` of ``values`` [prompts, ...] with its interval, prompts resampled."""
    n = len(values)
    chosen = st.draws(n, n * RESAMPLES).reshape(RESAMPLES, n)
    value, (low, high) = float(statistic(values)), st.interval(np.array([statistic(values[c]) for c in chosen]))
    return value, min(low, value), max(high, value), n


# --- decode rows ---

def percent(rows: Sequence[dict], arm: str, control: str = B) -> Number:
    """Paired change of mean throughput against ``control`` in percent of its mean; n counts prompts."""
    base = st.mean([st.tokens_per_second(r) for r in arm_rows(rows, control)]) / 100
    b = st.paired_bootstrap(st.paired_prompts(arm_rows(rows, arm), arm_rows(rows, control), st.tokens_per_second))
    return b["mean_diff"] / base, b["ci_low"] / base, b["ci_high"] / base, b["n"]


def floor(rows: Sequence[dict]) -> float:
    """What a win must reach, from the two identical arms: the larger end of their interval rounded up to a half, at least 1 %."""
    _, low, high, _ = percent(rows, DUPLICATE)
    return max(1.0, math.ceil(2 * max(abs(low), abs(high))) / 2)


def blocks(row: dict) -> list[dict]:
    """The drafts of one run: width, tokens committed, verify stages, seconds (None without a clock by cycle)."""
    drafted = row.get("drafted_per_cycle") or [1] * row["cycles"]
    seconds, out = row.get("seconds_per_cycle") or [None] * row["cycles"], []
    for fresh, committed, spent in zip(drafted, row["committed_per_cycle"], seconds):
        if fresh:
            out.append({"drafted": fresh, "committed": 0, "stages": 0, "seconds": 0.0 if spent is not None else None})
        out[-1]["committed"] += committed
        out[-1]["stages"] += 1
        if spent is not None:
            out[-1]["seconds"] += spent
    return out


def totals(rows: Sequence[dict], arm: str) -> np.ndarray:
    """By prompt [prompts, 4]: tokens, blocks, blocks with a second stage, decode seconds."""
    out = []
    for group in st.by(arm_rows(rows, arm), "prompt_id").values():
        made = [b for r in group for b in blocks(r)]
        out.append([sum(b["committed"] for b in made), len(made), sum(b["stages"] > 1 for b in made), sum(r["wall_seconds"] - r["prefill_seconds"] for r in group)])
    return np.array(out, float)


def per_block(rows: Sequence[dict], arm: str, column: int) -> Number:
    """Change in percent against B of tokens (0) or seconds (3) for each draft, pooled."""
    both = np.stack([totals(rows, arm), totals(rows, B)], axis=1)
    return over_prompts(both, lambda v: 100 * ((v[:, 0, column].sum() / v[:, 0, 1].sum()) / (v[:, 1, column].sum() / v[:, 1, 1].sum()) - 1))


def clearly_below(number: Number, limit: float) -> bool:
    return number[2] < -limit


def wins(rows: Sequence[dict], arm: str) -> bool:
    """The published rule U6-4: interval above zero, estimate at the floor, and the loop-free prompts do not say the opposite."""
    value, low, _, _ = percent(rows, arm)
    free = st.loop_free(rows)
    return low > 0 and value >= floor(rows) and (not free or percent(free, arm)[0] * value > 0)


def differing(rows: Sequence[dict], one: str, other: str) -> int:
    """Runs whose tokens by draft differ between two verify widths at one draft width; drafts cut to the budget do not count,
    since how far they reach depends on where a stage ends."""
    key = lambda r: (r["prompt_id"], r["repeat"])  # noqa: E731
    left, right = ({key(r): [b["committed"] for b in blocks(r) if b["drafted"] == r["draft_width"]] for r in arm_rows(rows, a)} for a in (one, other))
    return sum(left[k] != right[k] for k in left)


def added_ms(rows: Sequence[dict], arm: str, stage: str) -> float:
    """Milliseconds of one stage for each draft, above B's; pooled."""
    spent = [1000 * sum(r[f"{stage}_seconds"] for r in arm_rows(rows, a)) / sum(len(blocks(r)) for r in arm_rows(rows, a)) for a in (arm, B)]
    return spent[0] - spent[1]


def rule(rows: Sequence[dict], helps: bool) -> int:
    """The first published verdict rule that holds, 1 to 6; ``helps``: some wider draft helps the first slots."""
    if any(wins(rows, a) for a in STAGED):
        return 1
    if any(wins(rows, a) for a in TRUNCATED):
        return 2
    more = [a for a in STAGED if per_block(rows, a, 0)[1] > 0]
    if any(added_ms(rows, a, "verify") > added_ms(rows, a, "draft") for a in more):
        return 3
    return 4 if more else 5 if not helps else 6


VERDICTS = {1: "STAGED VERIFICATION WINS", 2: "DECOUPLED WIDTH WINS", 3: "VERIFY COST DOMINATES", 4: "WIDER DRAFT HELPS, BUT NOT WALL CLOCK",
            5: "DRAFT WIDTH DOES NOT AFFECT USEFUL PREFIX", 6: "NO BENEFIT FROM DECOUPLING"}


# --- the diagnostic ---

def prefix4(row: dict) -> int:
    """Leading matches of slots 2 to 4 with the target's continuation."""
    hits = [p == t for p, t in zip(row["proposals"][1:4], row["target"][1:4])]
    return next((j for j, hit in enumerate(hits) if not hit), 3)


def condition(rows: Sequence[dict], which: str, width: int) -> list[dict]:
    return [r for r in rows if r["condition"] == which and r["draft_width"] == width]


def change(rows: Sequence[dict], which: str, width: int) -> Number:
    """Change of the first four slots against D=4 with the decoder's noise, contexts of a prompt averaged."""
    sides = [{k: [prefix4(r) for r in g] for k, g in st.by(condition(rows, *c), "prompt_id").items()} for c in ((which, width), ("decoder", 4))]
    return over_prompts(np.array([[np.mean(sides[0][p]) - np.mean(sides[1][p])] for p in sides[0]]), np.mean)


def identity(rows: Sequence[dict], which: str, width: int) -> list[float]:
    """Share of contexts where slots 1 to 4 propose what D=4 proposes (a redraw against the decoder's noise)."""
    base = condition(rows, "decoder" if which == "redraw" else which, 4)
    return np.mean([np.equal(r["proposals"][:4], b["proposals"][:4]) for r, b in zip(condition(rows, which, width), base)], axis=0).tolist()


def diagnostic(rows: Sequence[dict]) -> pd.DataFrame:
    pairs = dict.fromkeys((r["condition"], r["draft_width"]) for r in rows)
    out = []
    for which, width in pairs:
        group = condition(rows, which, width)
        delta, agree = change(rows, which, width), np.mean([np.equal(r["proposals"][:4], r["target"][:4]) for r in group], axis=0)
        out.append({"noise": which, "D": width, "contexts": len(group), "mean prefix4": st.mean([prefix4(r) for r in group]), "change": delta[0], "low": delta[1],
                    "high": delta[2]} | {f"right {j}": v for j, v in enumerate(agree, 1)} | {f"as D=4, {j}": v for j, v in enumerate(identity(rows, which, width), 1)}
                   | {"max |dlogit|": max(max(r["max_abs_logit_diff_vs_d4"]) for r in group)})
    return frame(out, low="95 %", high="95 %")


def helping(rows: Sequence[dict]) -> list[int]:
    """Widths that pass the published rule: interval above zero and a mean beyond that of the redraw."""
    redraw = abs(change(rows, "redraw", 4)[0])
    widths = dict.fromkeys(r["draft_width"] for r in rows if r["condition"] == "decoder" and r["draft_width"] > 4)
    return [w for w in widths if (c := change(rows, "decoder", w))[1] > 0 and c[0] > redraw]


# --- what a forward costs ---

class Costs:
    """Milliseconds of forwards: arrays [prompts, widths, repeats] by kind, for medians and what follows from them."""

    def __init__(self, rows: Sequence[dict]):
        self.rows = rows
        self.widths = {f: sorted({r["width"] for r in rows if r["forward"] == f}) for f in ("verify", "draft")}
        self.ms = {f: self._array(f, "seconds") for f in self.widths}
        self.commit = np.median(self._array("verify", "commit_seconds"), axis=(0, 2))

    def _array(self, forward: str, field: str) -> np.ndarray:
        found: dict[str, dict[int, list[float]]] = {}
        for r in self.rows:
            if r["forward"] == forward:
                found.setdefault(r["prompt_id"], {}).setdefault(r["width"], []).append(1000 * r[field])
        return np.array([[p[w] for w in self.widths[forward]] for p in found.values()])

    def at(self, values: np.ndarray, forward: str, width: int) -> float:
        """Median at one width of an array as in ``ms``."""
        return float(np.median(values[:, self.widths[forward].index(width)]))

    def fit(self, forward: str, low: int, high: int, values: np.ndarray | None = None) -> dict:
        """The line through the medians of widths ``low`` to ``high``."""
        medians = np.median(self.ms[forward] if values is None else values, axis=(0, 2))
        chosen = [(w, m) for w, m in zip(self.widths[forward], medians) if low <= w <= high]
        return st.line(*zip(*chosen))

    def r2(self, forward: str, low: int, high: int) -> Number:
        return over_prompts(self.ms[forward], lambda v: self.fit(forward, low, high, v)["r2"])

    def cliff(self) -> Number:
        """The verify forward of 17 rows over the line through 2 to 9."""
        def ratio(v):
            f = self.fit("verify", 2, 9, v)
            return self.at(v, "verify", 17) / (f["intercept"] + 17 * f["slope"])

        return over_prompts(self.ms["verify"], ratio)

    def two_for_one(self) -> Number:
        """The two verify forwards of S(8,4), 4 rows each with the seed kept, over the single one of 8 rows."""
        return over_prompts(self.ms["verify"], lambda v: 2 * self.at(v, "verify", 4) / self.at(v, "verify", 8))

    def perfect(self, draft: int, stages: Sequence[int], host: float, values: np.ndarray | None = None) -> float:
        """Tokens a millisecond if every guess is right; ``stages``: verified rows of each, the first with the seed kept."""
        v = self.both if values is None else values
        n = len(self.widths["verify"])
        ms = self.at(v[:, n:], "draft", draft) + sum(self.at(v[:, :n], "verify", w) + self.commit[w - 1] + host for w in stages)
        return (draft + 1) / ms

    @property
    def both(self) -> np.ndarray:
        return np.concatenate([self.ms["verify"], self.ms["draft"]], axis=1)

    def table(self) -> pd.DataFrame:
        out = []
        for forward, widths in self.widths.items():
            for i, w in enumerate(widths):
                q = st.quantiles(self.ms[forward][:, i].ravel().tolist())
                out.append({"forward": forward, "rows": w} | {k: q[k] for k in ("n", "median", "p25", "p75", "mean")} | {"commit": self.commit[i] if forward == "verify" else None})
        return frame(out, **dict.fromkeys(("median", "p25", "p75", "mean", "commit"), "ms"))


def stage_rows(draft: int, verify: int) -> list[int]:
    """Rows verified in each stage by a perfect drafter: the first V with the seed kept, then a seed and up to V guesses."""
    out, at = [min(draft, verify)], min(draft, verify) + 1
    while at < draft:
        guesses = min(verify, draft - at)
        out.append(1 + guesses)
        at += 1 + guesses
    return out


def bounds(costs: Costs, rows: Sequence[dict]) -> dict[str, Number]:
    """By staged arm: tokens a millisecond with a perfect drafter, over the incumbent's."""
    host = 1000 * st.median_of(arm_rows(rows, B), lambda r: r["overhead_seconds"] / r["cycles"])
    out = {}
    for arm in STAGED:
        d, v = map(int, arm.removeprefix("staged_d").split("v"))
        out[arm] = over_prompts(costs.both, lambda x, d=d, v=v: costs.perfect(d, stage_rows(d, v), host, x) / costs.perfect(4, [4], host, x))
    return out


# --- criteria ---

def numbers(file: RowFile) -> dict[str, Number]:
    """Every metric that data/criteria/act4u6.json names."""
    rows, wide, costs = file.of("decode"), file.of("wide_draft"), Costs(file.of("cost"))
    free, limit, helps = st.loop_free(rows), floor(rows), helping(wide)
    count = lambda value, n=None: (value, None, None, n)  # noqa: E731
    drafted = [r for r in rows if r["cycles"]]
    first = [r for r in rows if r["repeat"] == 0]
    perfect = bounds(costs, rows)
    out = {"beyond_one_ulp": count(st.audit(drafted)["beyond one ULP"], len(drafted)), "helping_widths": count(len(helps), len(condition(wide, "decoder", 4))),
           "perfect_arms": count(sum(v[0] > 1 for v in perfect.values())), "pilot_open": count(sum(not clearly_below(percent(first, a), limit) for a in STAGED)),
           "winning_arms": count(sum(wins(rows, a) for a in (*STAGED, *TRUNCATED))), "rule": count(rule(rows, bool(helps))),
           "verify_r2": costs.r2("verify", 2, 9), "draft_r2": costs.r2("draft", 2, 16), "cliff": costs.cliff(), "two_for_one": costs.two_for_one(),
           "staging_differs": count(differing(rows, "staged_d8v4", "staged_d8v2") + differing(rows, "staged_d6v4", "staged_d6v3"), 2 * len(arm_rows(rows, B)))}
    out |= {f"percent:{a}": percent(rows, a) for a in (DUPLICATE, DECOUPLED, *STAGED, *TRUNCATED)}
    out |= {f"loop_free:{a}": percent(free, a) if free else count(None) for a in STAGED}
    out |= {f"perfect:{a}": v for a, v in perfect.items()}
    out |= {f"tokens:{a}": per_block(rows, a, 0) for a in STAGED}
    out |= {f"second:{a}": over_prompts(totals(rows, a), lambda v: 100 * v[:, 2].sum() / v[:, 1].sum()) for a in STAGED}
    widths = sorted({r["draft_width"] for r in wide} | {6, 8, 16})
    out |= {f"prefix4:{w}": change(wide, "decoder", w) if condition(wide, "decoder", w) else count(None) for w in widths}
    out |= {f"aligned:{w}": count(min(identity(wide, "aligned", w)), len(condition(wide, "aligned", w))) if condition(wide, "aligned", w) else count(None) for w in widths}
    medians = [st.median_of(arm_rows(rows, a), st.tokens_per_second) for a in (DUPLICATE, B)]
    out["median_gap"] = count(abs(100 * (medians[0] / medians[1] - 1)), len(arm_rows(rows, B)))
    return out


def outcomes(file: RowFile) -> list[criteria.Outcome]:
    """The criteria applied to the rows. Raises BadInput if these were measured under other rules."""
    rules, found = criteria.load("act4u6"), numbers(file)
    rules.bind(file)
    return [criteria.judge(c, *found[c.rule.metric]) for c in rules]


def decisive(rows: Sequence[dict]) -> pd.DataFrame:
    """Arms against B: throughput, tokens and stages a draft."""
    free, out = st.loop_free(rows), []
    plain = st.median_of(arm_rows(rows, "ar"), st.tokens_per_second)
    for arm in (B, DUPLICATE, DECOUPLED, *STAGED, *TRUNCATED):
        p, t = percent(rows, arm), totals(rows, arm).sum(axis=0)
        out.append({"arm": name(arm), "prompts": p[3], "change": p[0], "low": p[1], "high": p[2], "loop-free change": percent(free, arm)[0] if free else None,
                    "x plain": st.median_of(arm_rows(rows, arm), st.tokens_per_second) / plain, "tokens per draft": t[0] / t[1], "ms per draft": 1000 * t[3] / t[1],
                    "second stage": 100 * t[2] / t[1], "added verify": added_ms(rows, arm, "verify"), "added draft": added_ms(rows, arm, "draft"), "wins": wins(rows, arm)})
    return frame(out, **{"change": "%", "low": "95 %", "high": "95 %", "loop-free change": "%", "second stage": "% of drafts", "added verify": "ms", "added draft": "ms"})
