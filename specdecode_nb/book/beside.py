"""One quantity a row, one origin a column: published, and measured here on each target. No column holds two origins."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from . import block, sweep
from .measures import ratio
from .palette import label
from .sweep import arm_rows

REAL = "smollm2-135m"
WIDTHS = (2, 4, 8)  # of the adapter, as far as the published clean table goes


def interval(rows: Sequence[dict], arm: str) -> str:
    """Speed-up over the faster plain arm of these rows with its 95 % interval over prompts, as text; a dash where there are no rows."""
    if not rows:
        return "-"
    r = st.speedup(arm_rows(rows, arm), arm_rows(rows, st.plain_arm(rows)))
    return f"{r['ratio']:.2f} [{r['low']:.2f}, {r['high']:.2f}]"


def measured(rows: Sequence[dict], arms: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """What one target's sweep says of ``arms`` (label: arm), by (label, quantity).

    Speed-ups are against the plain arm that is the faster one on the same prompts; costs are in the steps of the one that is faster on all.
    """
    control, free, found = st.plain_arm(rows), st.loop_free(rows), {}
    costs = {e["arm"]: e for e in st.cost_model(rows)}
    for name, arm in arms.items():
        cost = costs[arm]
        found |= {(name, "× plain"): interval(rows, arm), (name, "× plain, loop-free"): interval(free, arm),
                  (name, "mean accepted prefix"): f"{cost['mean accepted prefix']:.2f}", (name, "tokens per cycle"): f"{cost['tokens per cycle']:.2f}",
                  (name, "draft, plain steps"): f"{cost['draft steps']:.2f}", (name, "verify, plain steps"): f"{cost['verify steps']:.2f}",
                  (name, "cycle, plain steps"): f"{cost['cycle steps']:.2f}"}
    checked = [r for r in rows if r["arm"] != "ar"]
    found["all arms", "rows identical to plain decoding"] = f"{sum(r['identical_to_ar'] for r in checked)} of {len(checked)}"
    prompts = {r["prompt_id"]: r for r in rows}
    found["plain decoding", "loop-free prompts"] = f"{sum(r['ar_looped_fraction'] < st.LOOP_FREE for r in prompts.values())} of {len(prompts)}"
    found["plain decoding", "tok/s"] = f"{st.median_of(arm_rows(rows, control), st.tokens_per_second):.1f} ({label(control)})"
    return found


def columns(origins: Mapping[str, Mapping[tuple[str, str], str]]) -> pd.DataFrame:
    """The origins side by side in the order given; what an origin does not state is a dash."""
    keys = dict.fromkeys(key for found in origins.values() for key in found)
    return pd.DataFrame([{"arm": arm, "quantity": quantity} | {origin: found.get((arm, quantity), "-") for origin, found in origins.items()}
                         for arm, quantity in keys])


def published_sweep(act) -> dict[tuple[str, str], str]:
    """The published cells of Act IV-S that answer :func:`measured`; costs in its own plain steps."""
    found, step = {}, 1000 / act.value("s_ksweep", "decode-only median", arm="ar")
    for k in WIDTHS:
        arm, name = f"uno_k{k}", f"K={k}"
        stage = {s: act.value("s_ksweep_stage", s, arm=arm) / step for s in ("draft", "verify", "commit", "overhead")}
        found |= {(name, "× plain"): f"{act.value('s_ksweep', 'xAR end-to-end', arm=arm):.2f}",
                  (name, "× plain, loop-free"): f"{act.value('s_ksweep_clean', 'xAR end-to-end', arm=arm):.2f}",
                  (name, "mean accepted prefix"): f"{act.value('s_ksweep', 'mean accepted prefix', arm=arm):.2f}",
                  (name, "tokens per cycle"): f"{act.value('s_ksweep', 'committed per cycle', arm=arm):.2f}",
                  (name, "draft, plain steps"): f"{stage['draft']:.2f}", (name, "verify, plain steps"): f"{stage['verify']:.2f}",
                  (name, "cycle, plain steps"): f"{sum(stage.values()):.2f}"}
    return found


def outcomes(adapter: RowFile | None, blocks: RowFile | None) -> list[criteria.Outcome]:
    """The rules of data/criteria/smollm2.json, fixed before the rows, on the sweeps of Act IV-S and Act DFlash of the real model."""
    found, checked = {}, []
    for metric, file, rows_of, best in (("uno_over_plain_clean", adapter, lambda f: f.of("decode"), sweep.best), ("dflash_over_plain_clean", blocks, block.sweep_rows, block.best)):
        if file is None:
            continue
        rows = rows_of(file)
        checked += [r for r in rows if r["arm"] != "ar"]
        if free := st.loop_free(rows):
            found[metric] = ratio(free, best(free), st.plain_arm(rows))
    if checked:
        found["rows_not_plain"] = (sum(not r["identical_to_ar"] for r in checked), None, None, len(checked))
    return [criteria.judge(c, *found.get(c.rule.metric, (None,))) for c in criteria.load("smollm2")]
