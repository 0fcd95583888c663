"""Peers side by side, from the rows of :mod:`specdecode_nb.protocols.peers`: speed, what is accepted, identity, and what did not run."""
from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from .palette import label
from .rest import Found, fastest, ratio, section
from .sweep import arm_rows, drafting, frame

SECTION, RUNTIMES = "peers", ("dflash_mlx", "z_lab")
MLX_LM, OURS, BLOCK = "spec_mlx_lm_d", "small_k", "dflash_b"


def arms(rows: Sequence[dict], beginning: str) -> list[str]:
    return [arm for arm in st.by(rows, "arm") if arm.startswith(beginning)]


def speeds(file: RowFile) -> pd.DataFrame:
    """By section and arm: tokens per second, the ratio to the faster plain loop of the section with its interval, acceptance, identity.

    Rows of which one leaves plain decoding by more than a tie have no speed.
    """
    entries = []
    for name, place in ((SECTION, "one interleave"), *((runtime, "a process of its own") for runtime in RUNTIMES)):
        rows = section(file, name)
        for e in st.summarise(rows) if rows else ():
            group = arm_rows(rows, e["arm"])
            found, drafts = st.audit(group), bool(e["cycles"])
            defect = found["beyond one ULP"] > 0
            against = (None, None, None) if defect else ratio(rows, e["arm"], st.plain_arm(rows))[:3]
            entries.append({"arm": e["arm"], "measured in": place, "prompts": len(st.by(group, "prompt_id")), "tok/s": None if defect else e["tok/s"],
                            **dict(zip(("x plain", "low", "high"), against)), "accepted / drafted": sum(st.pooled(group, "accepted_per_cycle")) / max(1, sum(sum(st.offered(r)) for r in group)) if drafts else None,
                            "tokens per cycle": e["committed per cycle"] if drafts else None, "unlike plain": found["divergences"], "beyond a tie": found["beyond one ULP"]})
    return frame(entries, **{"tok/s": "median", "low": "95 %", "high": "95 %", "unlike plain": "rows", "beyond a tie": "rows"})


def told(file: RowFile) -> pd.DataFrame:
    """Which peers ran on this target, and in whose words the others did not."""
    return pd.DataFrame([{"peer": label(r["peer"]), "version": r["version"] or "not installed", "call": r["call"], "outcome": r["outcome"],
                          "why": r["why"] or "-"} for r in file.of("peer")])


def outcomes(file: RowFile) -> list[criteria.Outcome]:
    """Every criterion judged on these rows. Raises BadInput if the rows were measured under other rules."""
    return criteria.load("dflash_peers").judged(file, metrics)


def metrics(file: RowFile) -> dict[str, Found]:
    """Every metric that the rows can give, by the name the criteria use; a peer that did not run gives none."""
    rows = section(file, SECTION)
    found: dict[str, Found] = {}
    if mine := arms(rows, MLX_LM):
        best = fastest(rows, mine)
        group = [r for arm in mine for r in arm_rows(rows, arm)]
        found |= {"mlx_lm_beyond_one_ulp": (st.audit(group)["beyond one ULP"], None, None, len(group)), "mlx_lm_speed": ratio(rows, best, st.plain_arm(rows)),
                  "same_model": ratio(rows, f"{OURS}{int(best.removeprefix(MLX_LM)) + 1}", best)}
        if block := arms(rows, BLOCK):
            found["block_over_mlx_lm"] = ratio(rows, block[0], best)
    for name in RUNTIMES:
        if other := arm_rows(section(file, name), name):
            found[f"{name}_beyond_one_ulp"] = st.audit(other)["beyond one ULP"], None, None, len(other)
    return found


def best(file: RowFile) -> str:
    """The fastest drafting arm of the interleave, "" where nothing drafts."""
    rows = section(file, SECTION)
    return fastest(rows, drafting(rows)) if drafting(rows) else ""
