"""Tables drawn from imported rows (``specdecode-nb import``): rows of the published project, worked out again and labelled as published.

They stand beside the published verdict, in tables of their own: none of them holds a number that was measured here.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pandas as pd

from .. import statistics as st
from ..records import RowFile
from . import draw, palette, sweep

KINDS = ("decode", "loops", "divergence", "summary")
SLOTS = 7
SPEED = {c: ".3f" for c in ("tok/s", "p25", "p75", "low", "high")} | {
    c: ".4f" for c in ("x plain", "decode tok/s", "TPF", "slot acceptance", "mean accepted prefix", "committed per cycle")}


def show(page, file: RowFile) -> None:
    """Every table that the kinds of rows in ``file`` give."""
    cut = file.config.get("cut_sample") or any(f.get("cut_sample") for f in file.provenance.get("files", []))
    page.say(
        "**Published rows, worked out again.** The tables from here to the next heading are computed by this package from raw rows of the published project, read "
        "by `specdecode-nb import`. None of their numbers was measured here."
        + (" The file was cut short, so they cover a few of its rows only." if cut else "")
    )
    for id, table, caption, formats in chain(decoded(page, file), others(page, file)):
        if len(table):
            frame = pd.DataFrame(table)
            page.show(frame, f"imported-{id}", caption, {c: f for c, f in formats.items() if c in frame}, sources=[file])


def others(page, file: RowFile) -> Iterator[tuple]:
    """(id, rows, caption, formats) of what is no decode row."""
    for n, rows in st.by(file.of("loops"), "tokens_length").items():
        caption = f"How far plain decoding of {n} tokens repeats itself, by kind of text"
        yield f"loops-{n}", sweep.loops(rows), caption, {"loop fraction": ".4f", "distinct tokens": ".4f"}
    audits = []
    for (section, arm), own in st.by(file.of("divergence"), "section", "arm").items():
        found = st.audit([{"identical_to_ar": False, "divergence_gap_ulps": r["gap_in_ulps"]} for r in own])
        counts = {k: found[k] for k in ("divergences", "exact ties", "within one ULP", "beyond one ULP", "max gap")}
        audits.append({"session": section, "arm": palette.label(arm, page.act)} | counts)
    yield "audit", audits, "Published audits counted again, by session and arm: divergences by the gap of the contested logits", {}
    for table, rows in st.by(file.of("summary"), "table").items():
        entries = [({"at": r["path"]} if r["path"] else {}) | r["values"] for r in rows]
        yield table.replace("_", "-"), entries, f"What {table.replace('_', ' ')} holds", {}


def decoded(page, file: RowFile) -> Iterator[tuple]:
    """(id, rows, caption, formats): throughput, stages, survival, kinds of text, paired differences and identity, each arm at each length of its own."""
    speeds, stages, curves, kinds, differences, identity = [], [], {}, [], [], []
    apart = st.by([r | {"context_length": r.get("context_length")} for r in file.of("decode")], "tokens", "context_length")
    for (tokens, context), own in apart.items():
        suffix = "" if len(apart) == 1 else f", context {context}" if context is not None else f", {tokens} tokens"
        arms = st.by(own, "arm")
        for arm, group in arms.items():
            name = {"arm": palette.label(arm, page.act) + suffix}
            speeds.append(name | speed(group, arms.get("ar", [])))
            known = [r["divergence_gap_ulps"] for r in group if r["divergence_gap_ulps"] is not None]
            parted = {"rows": len(group), "divergences": sum(r["identical_to_ar"] is False for r in group), "audited": len(known)}
            identity.append(name | parted | {"within one ULP": sum(g <= 1.0001 for g in known), "max gap": max(known, default=None)})
            if accepted := st.pooled(group, "accepted_per_cycle"):
                if max(accepted):
                    curves[name["arm"]] = st.survival(accepted, min(SLOTS, max(accepted)))
                kinds += [name | {"category": kind, "rows": len(g), "mean accepted prefix": st.mean(st.pooled(g, "accepted_per_cycle"))}
                          for kind, g in st.by(group, "category").items()]
                differences += [name | found for found in difference(group, arms.get("ar", []))]
        stages += [s | {"arm": palette.label(s["arm"], page.act) + suffix} for s in st.stages(own)]
    yield "speed", speeds, "Throughput, end to end and decode only, by arm; speed-up over plain decoding of the same session, its interval over prompts", SPEED
    formats = {c: ".3f" for c in (*st.STAGES, "cycle")} | {"outside forwards": ".1f"}
    yield "stages", stages, "Median milliseconds a cycle by stage", formats
    survival = [{"arm": arm} | {f"j={j}": v for j, v in enumerate(curve, 1)} for arm, curve in curves.items()]
    yield "survival", survival, "Share of cycles that accept at least j tokens", {f"j={j}": ".5f" for j in range(1, SLOTS + 1)}
    if curves:
        alt = "Falling curves of survival by slot, one for each arm of the imported file."
        page.figure(draw.survival(curves), "imported-survival", "Prefix survival of the published rows", alt, sources=[file])
    yield "kinds", kinds, "Mean accepted prefix by kind of text", {"mean accepted prefix": ".4f"}
    caption = "Paired differences in tokens per second from plain decoding of the same prompt and repeat, in percent of its mean"
    yield "paired", differences, caption, {c: "+.3f" for c in ("difference", "low", "high")}
    yield "identity", identity, "Rows that leave plain decoding, and the gaps of those that the published audit covers", {}


def speed(group: Sequence[dict], control: Sequence[dict]) -> dict:
    rate = st.quantiles([st.tokens_per_second(r) for r in group])
    try:
        ratio = st.speedup(group, control) if len({r["prompt_id"] for r in group}) > 2 else {}
    except ValueError:  # not the same prompts in both
        ratio = {}
    return {
        "rows": len(group),
        "tok/s": rate["median"],
        "p25": rate["p25"],
        "p75": rate["p75"],
        "x plain": rate["median"] / st.median_of(control, st.tokens_per_second) if control else None,
        "low": ratio.get("low"),
        "high": ratio.get("high"),
        "decode tok/s": st.median_of(group, st.decode_tokens_per_second),
        "TPF": st.median_of(group, st.tokens_per_forward),
        "slot acceptance": st.median_of(group, st.acceptance),
        "mean accepted prefix": st.mean(st.pooled(group, "accepted_per_cycle")),
        "committed per cycle": st.mean(st.pooled(group, "committed_per_cycle")),
    }


def difference(group: Sequence[dict], control: Sequence[dict]) -> Iterator[dict]:
    try:
        b = st.paired_bootstrap(st.paired(group, control, st.tokens_per_second))
    except ValueError:  # rows without a partner, as in a cut sample
        return
    base = st.mean([st.tokens_per_second(r) for r in control]) / 100
    shares = {name: b[key] / base for name, key in (("difference", "mean_diff"), ("low", "ci_low"), ("high", "ci_high"))}
    yield {"pairs": b["n"]} | shares | {"wins": b["wins"], "losses": b["losses"]}
