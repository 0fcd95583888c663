"""Published claims of Act IV-S held against rows measured here: what of it holds on another target and machine.

The rules are the published ones. A claim that rows cannot judge is absent: adaptive widths, refinement and long contexts
are not in a sweep.
"""
from __future__ import annotations

from collections.abc import Sequence

from .. import statistics as st
from . import sweep

BANDS = {"Gate 4-modest": 1.10, "Gate 4-useful": 1.25, "Gate 4-strong": 1.50}


def claims(rows: Sequence[dict]) -> dict[str, str]:
    """Outcome in words by criterion id or hypothesis, from decode rows of one run."""
    control, best = st.plain_arm(rows), sweep.best(rows)
    entries = {e["arm"]: e for e in st.summarise(rows)}
    speed = st.speedup(sweep.arm_rows(rows, best), sweep.arm_rows(rows, control))
    fastest = f"K={sweep.width(best)} at {speed['ratio']:.3f} [{speed['low']:.3f}, {speed['high']:.3f}] x plain"
    plain = st.quantiles([st.tokens_per_second(r) for r in sweep.arm_rows(rows, control)])
    audit = st.audit([r for r in rows if r["cycles"]])
    identity = f"{audit['identical']} of {audit['rows']} rows identical, {audit['beyond one ULP']} beyond one ULP"
    prefix = max(entries[arm]["mean accepted prefix"] for arm in sweep.drafting(rows))
    out = {"Gate 0": f"seen: sd {100 * plain['sd'] / plain['mean']:.1f} % of the mean, no threshold", "Gate 1": holds(not audit["beyond one ULP"], identity),
           "Gate 2": holds(prefix > 1, f"best mean accepted prefix {prefix:.2f}"), "Gate 3": holds(speed["ratio"] > 1, fastest),
           "The decoder breaks losslessness": refuted(not audit["beyond one ULP"], identity)}
    out |= {gate: holds(speed["ratio"] >= bound, fastest) for gate, bound in BANDS.items()}
    accepted = {e["category"]: e["accepted / drafted"] for e in st.categories(rows, best)}
    if {"high_entropy", "code", "structured"} <= accepted.keys():
        text = ", ".join(f"{name} {accepted[name]:.2f}" for name in ("high_entropy", "code", "structured")) + " accepted / drafted"
        out["Pred-high-entropy"] = holds(accepted["high_entropy"] < min(accepted["code"], accepted["structured"]), text)
        out["High-entropy prompts draft best"] = refuted(accepted["high_entropy"] < max(accepted.values()), text)
    widest = max(sweep.drafting(rows), key=sweep.width)
    out["Wider decode blocks are faster"] = refuted(widest != best, f"{fastest}; K={sweep.width(widest)} at {entries[widest]['x plain']:.3f}")
    if "uno_k1" in entries:
        out["The draft-verify cycle is free"] = refuted(entries["uno_k1"]["x plain"] < 1, f"K=1 at {entries['uno_k1']['x plain']:.3f} x plain")
    return out


def holds(true: bool, seen: str) -> str:
    return f"{'holds' if true else 'does NOT hold'}: {seen}"


def refuted(true: bool, seen: str) -> str:
    return f"{'negative here too' if true else 'NOT negative here'}: {seen}"
