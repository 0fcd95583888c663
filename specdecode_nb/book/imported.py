"""Tables drawn from imported rows (``specdecode-nb import``): rows of the published project, worked out again and labelled as published.

They stand beside the published verdict, in tables of their own: none of them holds a number that was measured here.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from .. import statistics as st
from ..records import RowFile
from . import draw, palette, sweep

KINDS = ("decode", "loops", "divergence", "summary")
SLOTS = 7
FORMATS = {
    "tok/s": ".3f",
    "p25": ".3f",
    "p75": ".3f",
    "x plain": ".4f",
    "low": ".3f",
    "high": ".3f",
    "decode tok/s": ".4f",
    "TPF": ".4f",
    "slot acceptance": ".4f",
    "mean accepted prefix": ".4f",
    "committed per cycle": ".4f",
}


def show(page, file: RowFile) -> None:
    """Every table that the kinds of rows in ``file`` give."""
    cut = file.config.get("cut_sample") or any(f.get("cut_sample") for f in file.provenance.get("files", []))
    page.say(
        "**Published rows, worked out again.** The tables from here to the next heading are computed by this package from raw rows of the published project, read "
        "by `specdecode-nb import`. None of their numbers was measured here."
        + (" The file was cut short, so they cover a few of its rows only." if cut else "")
    )
    if file.of("decode"):
        decoded(page, file, file.of("decode"))
    if file.of("loops"):
        for n, rows in st.by(file.of("loops"), "tokens_length").items():
            page.show(
                sweep.loops(rows),
                f"imported-loops-{n}",
                f"How far plain decoding of {n} tokens repeats itself, by kind of text",
                {"loop fraction": ".4f", "distinct tokens": ".4f"},
                sources=[file],
            )
    if file.of("divergence"):
        page.show(
            audited(file.of("divergence"), page.act),
            "imported-audit",
            "Published audits counted again, by session and arm: divergences by the gap of the contested logits",
            sources=[file],
        )
    for table, rows in st.by(file.of("summary"), "table").items():
        page.show(
            pd.DataFrame([{**({"at": r["path"]} if r["path"] else {}), **r["values"]} for r in rows]),
            f"imported-{table.replace('_', '-')}",
            f"What {table.replace('_', ' ')} holds",
            sources=[file],
        )


def decoded(page, file: RowFile, rows: Sequence[dict]) -> None:
    """Throughput, stages, survival, kinds of text, paired differences and identity, each arm at each length of its own."""
    groups = [(suffix, own) for suffix, own in regimes(rows)]
    speeds, stages, curves, kinds, differences, identity = [], [], {}, [], [], []
    for suffix, own in groups:
        control = [r for r in own if r["arm"] == "ar"]
        for arm, group in st.by(own, "arm").items():
            name = {"arm": palette.label(arm, page.act) + suffix}
            speeds.append(name | speed(group, control))
            known = [r["divergence_gap_ulps"] for r in group if r["divergence_gap_ulps"] is not None]
            parted = sum(r["identical_to_ar"] is False for r in group)
            identity.append(
                name
                | {
                    "rows": len(group),
                    "divergences": parted,
                    "audited": len(known),
                    "within one ULP": sum(g <= 1.0001 for g in known),
                    "max gap": max(known, default=None),
                }
            )
            accepted = st.pooled(group, "accepted_per_cycle")
            if accepted:
                if max(accepted):
                    curves[name["arm"]] = st.survival(accepted, min(SLOTS, max(accepted)))
                kinds += [
                    name | {"category": kind, "rows": len(g), "mean accepted prefix": st.mean(st.pooled(g, "accepted_per_cycle"))}
                    for kind, g in st.by(group, "category").items()
                ]
                differences += list(difference(name, group, control))
        stages += [s | {"arm": palette.label(s["arm"], page.act) + suffix} for s in st.stages(own)]
    page.show(
        pd.DataFrame(speeds),
        "imported-speed",
        "Throughput, end to end and decode only, by arm; speed-up over plain decoding of the same session, its interval over prompts",
        FORMATS,
        sources=[file],
    )
    if stages:
        page.show(
            pd.DataFrame(stages),
            "imported-stages",
            "Median milliseconds a cycle by stage",
            {c: ".3f" for c in (*st.STAGES, "cycle")} | {"outside forwards": ".1f"},
            sources=[file],
        )
    if curves:
        table = pd.DataFrame([{"arm": arm} | {f"j={j}": v for j, v in enumerate(curve, 1)} for arm, curve in curves.items()])
        page.show(table, "imported-survival", "Share of cycles that accept at least j tokens", {c: ".5f" for c in table.columns[1:]}, sources=[file])
        page.figure(
            draw.survival(curves),
            "imported-survival",
            "Prefix survival of the published rows",
            "Falling curves of survival by slot, one for each arm of the imported file.",
            sources=[file],
        )
    if kinds:
        page.show(pd.DataFrame(kinds), "imported-kinds", "Mean accepted prefix by kind of text", {"mean accepted prefix": ".4f"}, sources=[file])
    if differences:
        page.show(
            pd.DataFrame(differences),
            "imported-paired",
            "Paired differences in tokens per second from plain decoding of the same prompt and repeat, in percent of its mean",
            {c: "+.3f" for c in ("difference", "low", "high")},
            sources=[file],
        )
    page.show(
        pd.DataFrame(identity), "imported-identity", "Rows that leave plain decoding, and the gaps of those that the published audit covers", sources=[file]
    )


def regimes(rows: Sequence[dict]) -> Iterator[tuple[str, list[dict]]]:
    """Rows of one length of text and of one context, with what tells them apart where the file has several."""
    apart: dict[tuple, list[dict]] = {}
    for r in rows:
        apart.setdefault((r["tokens"], r.get("context_length")), []).append(r)
    for (tokens, context), own in apart.items():
        yield "" if len(apart) == 1 else f", context {context}" if context is not None else f", {tokens} tokens", own


def speed(group: Sequence[dict], control: Sequence[dict]) -> dict:
    rate, decode = st.quantiles([st.tokens_per_second(r) for r in group]), st.median_of(group, st.decode_tokens_per_second)
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
        "decode tok/s": decode,
        "TPF": st.median_of(group, st.tokens_per_forward),
        "slot acceptance": st.median_of(group, st.acceptance),
        "mean accepted prefix": st.mean(st.pooled(group, "accepted_per_cycle")),
        "committed per cycle": st.mean(st.pooled(group, "committed_per_cycle")),
    }


def difference(name: dict, group: Sequence[dict], control: Sequence[dict]) -> Iterator[dict]:
    try:
        b = st.paired_bootstrap(st.paired(group, control, st.tokens_per_second))
    except ValueError:  # rows without a partner, as in a cut sample
        return
    base = st.mean([st.tokens_per_second(r) for r in control]) / 100
    yield name | {
        "pairs": b["n"],
        "difference": b["mean_diff"] / base,
        "low": b["ci_low"] / base,
        "high": b["ci_high"] / base,
        "wins": b["wins"],
        "losses": b["losses"],
    }


def audited(rows: Sequence[dict], act: str) -> pd.DataFrame:
    lines = []
    for section, group in st.by(rows, "section").items():
        for arm, own in st.by(group, "arm").items():
            found = st.audit([{"identical_to_ar": False, "divergence_gap_ulps": r["gap_in_ulps"]} for r in own])
            lines.append(
                {
                    "session": section,
                    "arm": palette.label(arm, act),
                    **{k: found[k] for k in ("divergences", "exact ties", "within one ULP", "beyond one ULP", "max gap")},
                }
            )
    return pd.DataFrame(lines)
