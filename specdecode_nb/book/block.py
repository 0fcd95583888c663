"""Tables and metrics of the measured sweep of Act DFlash, from its rows: speeds, what is called acceptance, break-even, verdicts.

An arm is timed end to end and compared with the faster plain arm of its run. Intervals resample prompts with all they hold.
"""
from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pandas as pd

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from . import staging
from .measures import Found, acceptance_of, fastest, over_prompts, ratio, section
from .sweep import arm_rows, drafting, frame

HEAD, ADAPTER, LOOKUP = "mtp3", "uno_k4", "ngram2_k4"
RULES = {"value": "adapt_value", "mlx_vlm": "adapt_mlx_vlm", "dflash_mlx": "adapt_dflash_mlx"}
NARROW, WIDE = (4, 5), 16  # the blocks that the post settled at, and the one that its comparison used


def sweep_rows(file: RowFile) -> list[dict]:
    """The decode rows of the sweep."""
    return section(file, "sweep")


def fixed(rows: Sequence[dict]) -> dict[int, str]:
    """The arms of fixed blocks by block width, narrow ones first."""
    return dict(sorted((int(arm.removeprefix("dflash_b")), arm) for arm in st.by(rows, "arm") if arm.startswith("dflash_b")))


def best(rows: Sequence[dict]) -> str:
    """The fastest arm of a fixed block, by median tokens per second."""
    return fastest(rows, fixed(rows).values())


# --- speed ---

def speeds(rows: Sequence[dict]) -> pd.DataFrame:
    """By arm: throughput, and the ratio to the faster plain arm on all prompts and on loop-free ones, each with its interval."""
    free, entries = st.loop_free(rows), []
    for e in st.summarise(rows):
        entry = {k: e[k] for k in ("arm", "rows", "tok/s", "x plain")}
        _, entry["low"], entry["high"], _ = ratio(rows, e["arm"], st.plain_arm(rows))
        clean = ratio(free, e["arm"], st.plain_arm(free)) if free else (None, None, None, 0)
        entry |= dict(zip(("x plain, loop-free", "low, loop-free", "high, loop-free", "loop-free prompts"), clean))
        entries.append(entry | {k: e[k] for k in ("x plain, decode", "TPF")})
    return frame(entries, **{"tok/s": "median"}, **dict.fromkeys(("low", "high", "low, loop-free", "high, loop-free"), "95 %"))


# --- acceptance ---

def counts(rows: Sequence[dict]) -> tuple[int, int, int, int]:
    """Drafted tokens, accepted ones among the emitted, emitted tokens, cycles: D, A, E, R of the field."""
    return sum(sum(st.offered(r)) for r in rows), sum(st.pooled(rows, "accepted_per_cycle")), sum(r["tokens"] for r in rows), sum(r["cycles"] for r in rows)


def acceptances(rows: Sequence[dict]) -> pd.DataFrame:
    """By drafting arm, cycles pooled: each thing called acceptance under its name. The adapter's first proposal is the target's own and
    is not drafted, so its accepted/emitted is below ``1 - 1/(tokens per cycle)``; for every other arm the two are one number."""
    entries = []
    for arm in drafting(rows):
        drafted, accepted, emitted, cycles = counts(arm_rows(rows, arm))
        entries.append({"arm": arm, "cycles": cycles, "drafted per cycle": drafted / cycles, "accepted / drafted": accepted / max(1, drafted),
                        "accepted / emitted": accepted / emitted, "1 - 1/(tokens per cycle)": 1 - cycles / emitted, "tokens per cycle": emitted / cycles})
    return frame(entries)


def broken(rows: Sequence[dict]) -> int:
    """Rows in which accepted/emitted is not exactly one less the inverse of tokens per cycle, of arms that guess every proposal."""
    told = [counts([r]) for r in rows if r["cycles"] and r["arm"] != ADAPTER]
    return sum(Fraction(a, e) != 1 - 1 / Fraction(e, n) for _, a, e, n in told)


def slots(rows: Sequence[dict], arm: str) -> int:
    """The most tokens that one cycle of an arm drafted."""
    return max(st.pooled(arm_rows(rows, arm), "offered_per_cycle"), default=0)


def conditional(rows: Sequence[dict], most: int = 7) -> pd.DataFrame:
    """By drafting arm: P(position j accepted | drafted, and all before it accepted); positions beyond ``most`` are left out."""
    reached = {arm: st.conditional(arm_rows(rows, arm), min(most, slots(rows, arm))) for arm in drafting(rows)}
    return frame([{"arm": arm} | {f"j={j}": p for j, p in enumerate(told, 1)} for arm, told in reached.items()])


def survival(rows: Sequence[dict]) -> dict[str, list[float]]:
    """P(accepted prefix of j or more) by arm of a fixed width, for ``draw.survival``."""
    return {arm: st.survival(st.pooled(arm_rows(rows, arm), "accepted_per_cycle"), slots(rows, arm)) for arm in (HEAD, ADAPTER, *fixed(rows).values())
            if arm_rows(rows, arm)}


def smallest_fall(rows: Sequence[dict]) -> float:
    """The least that accepted/drafted falls from a block to the next wider one."""
    by_block = [acceptance_of(rows, arm) for arm in fixed(rows).values()]
    return min(a - b for a, b in zip(by_block, by_block[1:]))


# --- break-even ---

def milliseconds(rows: Sequence[dict]) -> float:
    """Decoding time for each token without prefill, rows pooled."""
    return 1000 * sum(r["wall_seconds"] - r["prefill_seconds"] for r in rows) / sum(r["tokens"] for r in rows)


def plain_step(rows: Sequence[dict]) -> float:
    """Milliseconds for each token of the faster plain arm: the unit of the break-even curve."""
    return milliseconds(arm_rows(rows, st.plain_arm(rows)))


def break_even(file: RowFile) -> pd.DataFrame:
    """By verified rows: medians of the forwards of one cycle, their sum in plain steps, and what must be accepted for it to pay.

    A cycle pays if it commits more tokens than its plain steps. Where a block of that width was decoded: its tokens per cycle, the
    speed-up predicted from the forwards alone, and the one measured, both without prefill and pooled.
    """
    rows, costs, entries = sweep_rows(file), staging.Costs(file.of("cost")), []
    step, arms = plain_step(rows), fixed(rows)
    for n, w in enumerate(costs.widths["verify"]):
        parts = {"draft": costs.at(costs.ms["draft"], "draft", w) if w in costs.widths["draft"] else None, "verify": costs.at(costs.ms["verify"], "verify", w),
                 "commit": float(costs.commit[n])}
        cycle = sum(v or 0.0 for v in parts.values())
        entry = {"rows": w, **parts, "cycle": cycle, "plain steps": cycle / step, "must accept": (cycle / step - 1) / (w - 1) if w > 1 else None}
        if w in arms:
            mine = arm_rows(rows, arms[w])
            _, _, emitted, cycles = counts(mine)
            predicted, measured = emitted / cycles * step / cycle, step / milliseconds(mine)
            entry |= {"tokens per cycle": emitted / cycles, "predicted": predicted, "measured": measured, "error": 100 * (predicted / measured - 1)}
        entries.append(entry)
    return frame(entries, **dict.fromkeys(("draft", "verify", "commit", "cycle"), "ms"),
                 **{"must accept": "of drafted", "predicted": "x plain", "measured": "x plain", "error": "%"})


def price(file: RowFile, width: int) -> Found | tuple[None]:
    """Plain steps of one cycle of ``width`` rows by its single forwards; prompts of these are resampled."""
    costs, step = staging.Costs(file.of("cost")), plain_step(sweep_rows(file))
    if width not in costs.widths["draft"]:
        return (None,)
    n = len(costs.widths["verify"])
    commit = float(costs.commit[costs.widths["verify"].index(width)])
    return staging.over_prompts(costs.both, lambda v: (costs.at(v[:, :n], "verify", width) + commit + costs.at(v[:, n:], "draft", width)) / step)


# --- what is short, and what the rules chose ---

def goal(rows: Sequence[dict], arm: str, wanted: float) -> dict:
    """What keeps ``arm`` from ``wanted`` times plain: tokens per cycle over the plain steps of a cycle, without prefill and pooled.

    ``short`` is "nothing" if the arm is that fast end to end (ratio of medians); "prefill" if it is so only without prefill, "price" if even
    a cycle whose every draft is accepted would be too slow, else "acceptance".
    """
    group = arm_rows(rows, arm)
    whole = ratio(rows, arm, st.plain_arm(rows))[0]
    drafted, _, emitted, cycles = counts(group)
    tokens = emitted / cycles
    steps = tokens * milliseconds(group) / plain_step(rows)
    most = 1 + drafted / cycles
    short = "nothing" if whole >= wanted else "prefill" if tokens / steps >= wanted else "price" if most / steps < wanted else "acceptance"
    return {"arm": arm, "wanted": wanted, "end to end": whole, "tokens per cycle": tokens, "cycle": steps, "speed": tokens / steps,
            "tokens needed": wanted * steps, "cycle affordable": tokens / wanted, "speed, all accepted": most / steps, "short": short}


def goals(asked: Sequence[tuple[str, Sequence[dict], str, float]]) -> pd.DataFrame:
    """One line for each (name of the rows, rows, arm, wanted speed)."""
    steps = "plain steps"
    return frame([{"prompts": name, **goal(rows, arm, wanted)} for name, rows, arm, wanted in asked],
                 **{"cycle": steps, "cycle affordable": steps, "speed": "x plain", "speed, all accepted": "x plain", "wanted": "x plain",
                    "end to end": "x plain"})


def chosen(rows: Sequence[dict]) -> pd.DataFrame:
    """By rule: speed over the best fixed block with its interval, the mean width of its cycles, and the share of them by width, "no draft" included."""
    entries = []
    for arm in RULES.values():
        widths = st.pooled(arm_rows(rows, arm), "width_per_cycle")
        share = lambda low, high: sum(low <= w <= high for w in widths) / len(widths)  # noqa: E731
        against = dict(zip(("speed", "low", "high"), ratio(rows, arm, best(rows))))
        entries.append({"arm": arm, **against, "cycles": len(widths), "mean width": st.mean(widths),
                        "no draft": share(0, 1), "2 to 5": share(2, 5), "6 to 8": share(6, 8), "9 or more": share(9, max(widths) + 9)})
    return frame(entries, **{"speed": "x best fixed", "low": "95 %", "high": "95 %", "mean width": "rows"},
                 **dict.fromkeys(("no draft", "2 to 5", "6 to 8", "9 or more"), "of cycles"))


# --- criteria ---

def narrow_over_wide(rows: Sequence[dict]) -> float:
    """The fastest of blocks 4 and 5 over the fastest of the others, by median tokens per second."""
    speed = {b: st.median_of(arm_rows(rows, arm), st.tokens_per_second) for b, arm in fixed(rows).items()}
    return max(v for b, v in speed.items() if b in NARROW) / max(v for b, v in speed.items() if b not in NARROW)


def emitted_share(rows: Sequence[dict], arm: str) -> float:
    """Accepted over emitted, rows pooled."""
    _, accepted, emitted, _ = counts(arm_rows(rows, arm))
    return accepted / emitted


def numbers(file: RowFile) -> dict[str, Found]:
    """Every metric of data/criteria/dflash.json that these rows can give."""
    rows = sweep_rows(file)
    free, control, arms, top = st.loop_free(rows), st.plain_arm(rows), fixed(rows), best(rows)
    blocks = [r for r in rows if r["arm"] in arms.values()]
    checked = [r for r in rows if r["arm"] != "ar"]
    table = break_even(file)
    out: dict[str, Found] = {"best_over_plain": ratio(rows, top, control),
                             "rows_not_plain": (sum(not r["identical_to_ar"] for r in checked), None, None, len(checked)),
                             "broken_identity": (broken(rows), None, None, sum(r["cycles"] > 0 and r["arm"] != ADAPTER for r in rows)),
                             "lookup_over_best": ratio(rows, LOOKUP, top), f"price_{WIDE}": price(file, WIDE),
                             "model_error": (float(table["error"].abs().max()), None, None, len(arms))}
    out |= {f"{name}_over_fixed": ratio(rows, arm, top) for name, arm in RULES.items()}
    out |= {f"best_over_{name}": ratio(rows, top, arm) for name, arm in (("head", HEAD), ("adapter", ADAPTER)) if arm_rows(rows, arm)}
    if arm_rows(rows, HEAD):  # a target may have no chained head
        out["head_over_plain"] = ratio(rows, HEAD, control)
    if free:
        out["best_over_plain_clean"] = ratio(free, top, st.plain_arm(free))
    if len(arms) > 1:
        out["acceptance_fall"] = over_prompts(blocks, smallest_fall)
    if any(b in NARROW for b in arms) and any(b not in NARROW for b in arms):
        out["narrow_over_wide"] = over_prompts(blocks, narrow_over_wide)
    if WIDE in arms:
        out[f"emitted_share_{WIDE}"] = over_prompts(arm_rows(rows, arms[WIDE]), lambda rs: emitted_share(rs, arms[WIDE]))
    return out


def outcomes(file: RowFile) -> list[criteria.Outcome]:
    """Every criterion judged on these rows. Raises BadInput if they were measured under other rules."""
    return criteria.load("dflash").judged(file, numbers)
