"""Published claims held against rows measured here: what of them holds on another target and machine.

The rules are the published ones. Rows of a sweep over block widths (Act IV-S) can judge claims of three Acts; a claim
that they cannot judge, of training, adaptive widths, refinement or long contexts, is absent.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import statistics as st
from . import sweep

BANDS = {"Gate 4-modest": 1.10, "Gate 4-useful": 1.25, "Gate 4-strong": 1.50}


def claims(rows: Sequence[dict], trained: int | None = None) -> dict[tuple[str, str], str]:
    """Outcome in words by (act, criterion id or hypothesis), from decode rows of one run with a plain arm.

    ``trained``: the block width that the drafter was trained at, None if unknown.
    """
    entries = {e["arm"]: e for e in st.summarise(rows)}
    out = {("act4s", claim): text for claim, text in sweep_claims(rows, entries).items()}
    drafted = [r for r in rows if r["cycles"]]
    third = sum(r["forwards"] > 1 + 2 * r["cycles"] for r in drafted)
    out["act4u2", "U2-2"] = holds(not third, f"{third} of {len(drafted)} rows have a forward beyond two a cycle and the prefill")
    tpf = {sweep.width(arm): entries[arm]["TPF"] for arm in ("uno_k2", "uno_k4") if arm in entries}
    if tpf:
        text = ", ".join(f"{value:.3f} at K={k}" for k, value in tpf.items())
        out["act4u2", "U2-3"] = holds(min(tpf.values()) > 1, f"TPF {text} in the sweep, where the seed's row is kept from the draft and K rows are "
                                                             "verified; the published form verifies K+1")
    if {"uno_k4", "uno_k8"} <= entries.keys():
        out |= {("act4u4", claim): text for claim, text in width_claims(rows, entries, trained).items()}
    return out


def sweep_claims(rows: Sequence[dict], entries: dict[str, dict]) -> dict[str, str]:
    """What Act IV-S claims of speed, identity and kinds of text."""
    control, best = st.plain_arm(rows), sweep.best(rows)
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
        one = st.speedup(sweep.arm_rows(rows, "uno_k1"), sweep.arm_rows(rows, control))
        out["The draft-verify cycle is free"] = undecided(one) or refuted(one["high"] < 1, f"K=1 at {words(one)} x plain")
    return out


def width_claims(rows: Sequence[dict], entries: dict[str, dict], trained: int | None = None) -> dict[str, str]:
    """What Act IV-U4 claims of K=8 against K=4; here one adapter decodes at both widths."""
    four, eight = entries["uno_k4"], entries["uno_k8"]
    ratio = st.speedup(sweep.arm_rows(rows, "uno_k8"), sweep.arm_rows(rows, "uno_k4"))
    tpf, speed = f"TPF {eight['TPF']:.3f} at K=8, {four['TPF']:.3f} at K=4", f"K=8 at {words(ratio)} of K=4, one adapter at both"
    out = {"U4-B2": holds(eight["TPF"] > four["TPF"], tpf), "U4-B3a": holds(eight["x plain"] > 1, f"{eight['x plain']:.3f} x plain"), "U4-B3b": undecided(ratio) or holds(ratio["low"] > 1, speed),
           "K=8 is the faster block size": undecided(ratio) or refuted(ratio["high"] < 1, speed)}
    cycles = {sweep.width(e["arm"]): e["cycle"] for e in st.stages(rows) if e["arm"] in ("uno_k2", "uno_k4", "uno_k8")}
    paying = paying_slots(st.survival(st.pooled(sweep.arm_rows(rows, "uno_k8"), "accepted_per_cycle"), 7), cycles)
    text = f"paying at K=8: slots {', '.join(map(str, paying)) or 'none'}"
    if trained and trained < 8:
        text += f"; the adapter was trained at K={trained}, so slots {trained} to 7 were never trained"
    out["Slots beyond the third pay for themselves"] = refuted(not any(j > 3 for j in paying), text)
    return out


def paying_slots(returned: Sequence[float], cycles: dict[int, float]) -> list[int]:
    """Slots that return more than their milliseconds bring without them; the price of a slot is the slope of ``cycles`` (ms by width)."""
    returned, slots = np.asarray(returned, float), np.arange(1, len(returned) + 1)
    price = st.line(list(cycles), list(cycles.values()))["slope"]
    block = len(returned) + 1
    needed = (2 + returned.cumsum() - returned) * price / (cycles[block] - (block - slots) * price)
    return [int(j) for j, pays in zip(slots, returned > needed) if pays]


def words(ratio: dict) -> str:
    return f"{ratio['ratio']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def undecided(ratio: dict) -> str:
    """A ratio whose interval spans 1 judges nothing."""
    return f"not decidable: {words(ratio)} spans 1" if ratio["low"] <= 1 <= ratio["high"] else ""


def holds(true: bool, seen: str) -> str:
    return f"{'holds' if true else 'does NOT hold'}: {seen}"


def refuted(true: bool, seen: str) -> str:
    return f"{'negative here too' if true else 'NOT negative here'}: {seen}"
