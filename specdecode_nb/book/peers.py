"""Peers side by side, from the rows of :mod:`specdecode_nb.protocols.peers`: speed, what is accepted, identity, and what did not run."""
from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from .measures import Found, acceptance_of, fastest, ratio, section
from .palette import label
from .sweep import arm_rows, frame

SECTION, RUNTIMES = "peers", ("dflash_mlx", "z_lab")
MLX_LM, OURS, BLOCK = "spec_mlx_lm_d", "small_k", "dflash_b"


def arms(rows: Sequence[dict], beginning: str) -> list[str]:
    return [arm for arm in st.by(rows, "arm") if arm.startswith(beginning)]


def speeds(file: RowFile) -> pd.DataFrame:
    """By arm: tokens per second, the ratio to the faster plain loop beside it with its interval, acceptance, identity.

    An arm of which one row leaves plain decoding by more than a tie has no speed. Of a process of its own only the runtime is shown.
    """
    entries = []
    for name in (SECTION, *RUNTIMES):
        rows = section(file, name)
        entries += [entry(rows, e) for e in (st.summarise(rows) if rows else ()) if name == SECTION or e["arm"] == name]
    return frame(entries, **{"tok/s": "median", "low": "95 %", "high": "95 %", "unlike plain": "rows", "beyond a tie": "rows"})


def entry(rows: Sequence[dict], summary: dict) -> dict:
    """The line of one arm of a section."""
    group = arm_rows(rows, summary["arm"])
    found, drafts = st.audit(group), summary["cycles"] > 0
    defect = found["beyond one ULP"] > 0
    against = (None, None, None) if defect else ratio(rows, summary["arm"], st.plain_arm(rows))[:3]
    return {"arm": summary["arm"], "tok/s": None if defect else summary["tok/s"], **dict(zip(("x plain", "low", "high"), against)),
            "accepted / drafted": acceptance_of(rows, summary["arm"]) if drafts else None, "tokens per cycle": summary["committed per cycle"] if drafts else None,
            "unlike plain": found["divergences"], "beyond a tie": found["beyond one ULP"]}


def told(files: Sequence[RowFile]) -> pd.DataFrame:
    """Which peers ran on each target, and what stopped the others in their own words."""
    return pd.DataFrame([{"target": file.target, "peer": label(r["peer"]), "version": r["version"] or "not installed", "outcome": r["outcome"], "why": r["why"] or "-"}
                         for file in files for r in file.of("peer")])


def states(file: RowFile) -> pd.DataFrame:
    """By rows kept of a verified block: the largest relative error of any cache, by runtime, over prompts."""
    entries = []
    for kept, rows in st.by(file.of("peer_state"), "kept").items():
        worst = {label(name): max(r["relative_error"] for r in group) for name, group in st.by(rows, "peer").items()}
        entries.append({"rows kept": kept, "of": rows[0]["width"], **worst})
    return pd.DataFrame(entries)


def closing(files: Sequence[RowFile]) -> pd.DataFrame:
    """One line a criterion, with number and verdict by target."""
    judged = {file.target: outcomes(file) for file in files}
    return pd.DataFrame([{"hypothesis": c.statement} | {target: "not measured" if found[i].value is None else f"{found[i].text}: {found[i].word}"
                                                        for target, found in judged.items()} for i, c in enumerate(criteria.load("dflash_peers"))])


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
        if undone := [r["relative_error"] for r in file.of("peer_state") if r["peer"] == name]:
            found[f"{name}_state_error"] = max(undone), None, None, len(undone)
    return found
