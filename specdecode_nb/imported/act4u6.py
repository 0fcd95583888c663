"""The published tables of Act IV-U6: its cost curve, its diagnostic of wide drafts, and its decoding sessions or the scores that were kept of them."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import statistics as st
from .compare import DERIVED, READ, ROWS, Cells, Results, Table, marked, ms, paths, summary

B, B2 = "uno_k4", "uno_k4_b2"
STAGED = {"S(8,4)": "staged_d8v4", "S(8,2)": "staged_d8v2", "S(6,4)": "staged_d6v4", "S(6,3)": "staged_d6v3"}
ARMS = {"B_dec (4,4)": "dec_d4v4"} | STAGED
SHORT = {"B_dec": "dec_d4v4"} | STAGED
SESSIONS = {"calibration": "calibrate", "pilot": "pilot", "decisive": "decisive"}
AUDITED = {"divergences": "divergences", "beyond one ULP": "beyond_one_ulp"}
FIRST = {f"slot {n + 1}": n for n in range(4)}
CYCLE_MS = 0.83  # host work of a cycle, of the published bound for perfect drafting


# --- forwards at fixed contexts ---

def cost(r: Results, what: str, width: int) -> float:
    return r.need("cost_curve", f"{what}_ms_by_{'verify_' if what == 'commit' else ''}width", str(width), "median")


def curve(what: str, widths: Sequence[int]) -> dict[int, dict[str, tuple]]:
    """Paths of the cost of forwards of each width."""
    return {w: {c: (f"{what}_ms_by_width", str(w), c) for c in ("median", "p25", "p75", "mean")} for w in widths}


def fits(r: Results) -> Cells:
    """Straight lines through the published medians."""
    cells: Cells = {}
    for what, widths in (("verify", range(2, 10)), ("draft", (2, 4, 6, 8, 12, 16))):
        line = st.line(list(widths), [cost(r, what, w) for w in widths])
        cells[what,] = marked(DERIVED, {"fixed": line["intercept"], "marginal": line["slope"], "R2": line["r2"]})
    return cells


def fixed_share(r: Results) -> Cells:
    fixed, totals = fits(r)["verify",]["fixed"][0], {w: cost(r, "verify", w) for w in (5, 9)}
    return {(w,): {"total": (total, READ), "fixed share": (100 * fixed / total, DERIVED)} for w, total in totals.items()}


def against_one(r: Results) -> Cells:
    v = {w: cost(r, "verify", w) for w in (3, 4, 5, 9)}
    pairs = {
        "verify(3) twice vs verify(5) once": (2 * v[3], v[5]),
        "verify(5)+verify(4) [S(8,4)] vs verify(9)": (v[5] + v[4], v[9]),
        "verify(3) x3 [S(8,2)] vs verify(9)": (3 * v[3], v[9]),
    }
    return {(name,): {"staged": (staged, DERIVED), "single": (single, READ)} for name, (staged, single) in pairs.items()}


def extra_draft(r: Results) -> Cells:
    return {(f"draft({d})",): {"extra": (cost(r, "draft", d) - cost(r, "draft", 4), DERIVED)} for d in (6, 8)}


def perfect(r: Results) -> Cells:
    """Every stage fully accepted: tokens over the draft, the verifies, their commits and the host work of a cycle."""
    cells, bound = {}, 0.0
    for name, draft, stages, tokens in (
        ("incumbent (4,4)", 4, (5,), 5),
        ("S(8,4)", 8, (5, 4), 9),
        ("S(6,4)", 6, (5, 2), 7),
        ("S(6,3)", 6, (4, 3), 7),
        ("S(8,2)", 8, (3, 3, 3), 9),
    ):
        took = cost(r, "draft", draft) + sum(cost(r, "verify", w) + cost(r, "commit", w) + CYCLE_MS for w in stages)
        bound = bound or tokens / took
        cells[name,] = marked(READ, {"stage widths": "+".join(map(str, stages)), "tokens": tokens})
        cells[name,] |= marked(DERIVED, {"ms": took, "tokens per ms": tokens / took, "beats perfect incumbent": tokens / took > bound})
    return cells


def slots(field: str, conditions: dict[str, str], columns: dict[str, int] = FIRST) -> dict[str, dict[str, tuple]]:
    """Paths of a figure of the first slots in the diagnostic."""
    return {name: {c: ("summary", condition, field, n) for c, n in columns.items()} for name, condition in conditions.items()}


def prefix4(r: Results) -> Cells:
    """The mean change is the difference of the two means; the interval stands in the file."""
    mean = lambda condition: r.need("diagnostic_wide_draft", "summary", condition, "mean_prefix4")  # noqa: E731
    cells: Cells = {}
    for name, condition in WIDE.items():
        delta = {"D4_redraw": "redraw_D4"}.get(condition, condition)
        interval = {c: r.get("diagnostic_wide_draft", "prefix4_delta_vs_d4", delta, k) for c, k in (("CI low", "ci_low"), ("CI high", "ci_high"))}
        cells[name,] = {"mean change": (mean(condition) - mean("D4_decoder"), DERIVED)} | marked(READ, interval | {"mean prefix4": mean(condition)})
    return cells


# --- decoding ---

def ways(r: Results, stem: str = "decisive") -> tuple[str, str]:
    """How what is read, and how what is derived, is worked out where the rows of a session would give both."""
    return (ROWS, ROWS) if r.rows(stem) else (READ, DERIVED)


def of(rows: Sequence[dict], arm: str) -> list[dict]:
    return st.only(rows, arm=arm)


def median(r: Results, stem: str, arm: str) -> tuple[float | None, str]:
    """Median tokens per second of an arm: from rows, or from the summary that the file holds."""
    if rows := r.rows(stem):
        return st.median_of(of(rows, arm), st.tokens_per_second), ROWS
    return r.get(stem, "summary", arm, "tokens_per_second", "median"), READ


def change(rows: Sequence[dict], arm: str, measure: Callable[[dict], float] = st.tokens_per_second) -> dict[str, float]:
    """An arm against B, paired by prompt and repeat: both means, their difference with its interval, of rates in percent of B's mean."""
    own, base = of(rows, arm), of(rows, B)
    b = st.paired_bootstrap(st.paired(own, base, measure))
    own, base = (st.mean([measure(x) for x in group]) for group in (own, base))
    unit = base / 100 if measure is st.tokens_per_second else 1
    return {"own": own, "base": base, "change": b["mean_diff"] / unit, "CI low": b["ci_low"] / unit, "CI high": b["ci_high"] / unit}


def score(r: Results, arm: str, part: str) -> dict[str, float]:
    """The :func:`change` of one part of the scores of an arm: from decode rows if all are here, else as u6_scores.json has it, {} where neither is.

    B stands in it as the other side of every arm.
    """
    if rows := r.rows("decisive"):
        return change(st.loop_free(rows) if part == "tok_s_clean" else rows, arm, KEPT.get(part, st.tokens_per_second))
    at = lambda *path: r.get("u6_scores", "arms", SHORT["B_dec"] if arm == B else arm, part, *path)  # noqa: E731
    own, base, interval = ("arm_mean", "incumbent_mean", "ci") if part in KEPT else ("mean_arm_tok_s", "mean_incumbent_tok_s", "ci_percent")
    own, base = at(base if arm == B else own), at(base)
    if own is None:
        return {}
    found = {"own": own, "base": base, "change": own - base if part in KEPT else 100 * round(own - base, 6) / base}  # six digits, as the bootstrap gives
    return found if arm == B else found | {"CI low": at(interval, 0), "CI high": at(interval, 1)}


KEPT = {f"{n}_per_cycle": lambda x, n=n: st.mean(x[f"{n}_per_cycle"]) for n in ("committed", "accepted")}


def sessions(r: Results) -> Cells:
    cells = {(name,): marked(READ, {"wall": r.get(stem, "seconds")}) for name, stem in {
        "U6-1 diagnostic": "diagnostic_wide_draft", "U6-2 cost curve": "cost_curve", **SESSIONS}.items()}
    for name, stem in SESSIONS.items():
        cells[name,]["native AR"] = median(r, stem, "ar")
    return cells


def calibration(r: Results) -> Cells:
    """B against itself: the floor below which no difference counts."""
    read, derived = ways(r, "calibrate")
    if rows := r.rows("calibrate"):
        b = st.paired_bootstrap(st.paired(of(rows, B2), of(rows, B), st.tokens_per_second))
        base, mean, low, high = st.mean([st.tokens_per_second(x) for x in of(rows, B)]), b["mean_diff"], b["ci_low"], b["ci_high"]
    else:
        base, mean, low, high = (r.need("floor", *p) for p in (("mean_incumbent_tok_s",), ("mean_diff_tok_s",), ("ci_tok_s", 0), ("ci_tok_s", 1)))
    raw = 100 * max(abs(low), abs(high)) / base
    cells = marked(read, {"mean incumbent tok/s": base, "mean difference B2 - B": mean, "CI low": low, "CI high": high})
    cells |= marked(derived, {"raw floor": raw, "floor used": max(1.0, math.ceil(2 * raw) / 2)})
    cells |= {"median B": median(r, "calibrate", B), "median B2": median(r, "calibrate", B2)}
    return {(row,): {"value": cell} for row, cell in cells.items()}


def pilot(r: Results) -> Cells:
    (read, derived), rows = ways(r, "pilot"), r.rows("pilot")
    cells: Cells = {}
    for name, arm in ARMS.items():
        places = {"change": ("percent",), "CI low": ("ci_percent", 0), "CI high": ("ci_percent", 1)}
        found = change(rows, arm) if rows else {k: r.need("pilot_gate", "arms", arm, *p) for k, p in places.items()}
        cells[name,] = marked(read, {"percent": found["change"], "CI low": found["CI low"], "CI high": found["CI high"]})
        cells[name,] |= marked(derived, {"clearly below -1.0%": found["CI high"] < -1.0})
    return cells


def decisive(r: Results) -> Cells:
    """With the verdicts: an arm passes if its interval lies above 0 and its mean at the floor or above."""
    (read, derived), rows = ways(r), r.rows("decisive")
    cells: Cells = {}
    for name, arm in ({"B incumbent (4,4)": B} | ARMS).items():
        entry = {"median": median(r, "decisive", arm)}
        if rows:
            ratio = entry["median"][0] / median(r, "decisive", "ar")[0]
            entry |= marked(ROWS, {"xAR": ratio, "TPF": st.median_of(of(rows, arm), lambda x: round(st.tokens_per_forward(x), 4))})
        else:
            places = {"xAR": ("speedup_vs_ar",), "TPF": ("tokens_per_forward", "median")}
            entry |= marked(READ, {c: r.get("decisive", "summary", arm, *p) for c, p in places.items()})
        for part, before in (("tok_s", ""), ("tok_s_clean", "loop-free ")):
            if arm != B and (found := score(r, arm, part)):
                entry |= marked(read, {f"{before}{c}": found.get(c) for c in ("CI low", "CI high")}) | {f"{before}percent": (found["change"], derived)}
        if name in STAGED and "percent" in entry:
            entry["passes"] = (entry["CI low"][0] > 0 and entry["percent"][0] >= 1.0, derived)
        cells[name,] = entry
    return cells


def means(r: Results) -> Cells:
    parts = {"mean": "tok_s", "loop-free mean": "tok_s_clean"}
    return {(name,): marked(ways(r)[0], {c: score(r, arm, part).get("own") for c, part in parts.items()})
            for name, arm in (SHORT | ARMS | {"B incumbent": B}).items()}


def cycles(r: Results) -> Cells:
    """Committed and accepted tokens a cycle are means over (prompt, repeat) of each row's own mean."""
    (read, derived), rows = ways(r), r.rows("decisive")
    cells: Cells = {}
    for name, arm in ({"B": B} | STAGED).items():
        entry: dict[str, tuple[Any, str]] = {}
        for n, before in (("committed", ""), ("accepted", "accepted ")):
            found = score(r, arm, f"{n}_per_cycle")
            entry |= marked(read, {f"{n} per cycle": found.get("own"), **{f"{before}{c}": found.get(c) for c in ("CI low", "CI high")}})
            entry |= marked(derived, {f"{n} change": found.get("change")})
        for column, stage, key in (("added verify", "verify", "verify"), ("added draft", "proposal", "draft")):
            added = st.mean(st.paired(of(rows, arm), of(rows, B), ms(stage))) if rows else r.get("u6_scores", "arms", arm, f"added_{key}_ms_per_cycle")
            entry |= marked(read, {column: added}) if arm != B else {column: (0.0, derived)} if entry else {}  # B against itself
        cells[name,] = entry
    return cells


PROFILE = {
    "verify tokens per committed": "verify_tokens_per_committed_token",
    "unused draft tokens per cycle": "mean_unused_draft_tokens",
    "rejected draft tokens per cycle": "mean_rejected_draft_tokens",
    "cycle mean": "mean_cycle_ms",
    "cycle sd": "sd_cycle_ms",
}


def profile(r: Results) -> Cells:
    """From traces; without them the counts of cycles by stages give the means and rates again."""
    (read, derived), rows = ways(r), r.rows("decisive")
    cells: Cells = {}
    for name, arm in SHORT.items():
        if rows:
            group = of(rows, arm)
            pooled = {k: st.pooled(group, f"{k}_per_cycle") for k in ("stages", "verified", "unused", "offered", "accepted", "cycle_ms")}
            n, took = {j: pooled["stages"].count(j) for j in (1, 2, 3)}, st.quantiles(pooled["cycle_ms"])
            rejected = (sum(pooled["offered"]) - sum(pooled["accepted"])) / len(pooled["stages"])
            told = (sum(pooled["verified"]) / sum(x["tokens"] for x in group), st.mean(pooled["unused"]), rejected, took["mean"], took["sd"])
        else:
            at = lambda *path: r.get("u6_scores", "stage_profile", arm, *path)  # noqa: B023,E731
            n, told = {j: at("stages_per_cycle_histogram", str(j)) or 0 for j in (1, 2, 3)}, map(at, PROFILE.values())
        total = sum(n.values())
        cells[name,] = marked(read, {"1 stage": n[1], "2 stages": n[2], "3 stages": n[3], **dict(zip(PROFILE, told))})
        rates = {"mean stages": sum(j * c for j, c in n.items()) / total, "second-stage rate": (total - n[1]) / total}
        cells[name,] |= marked(derived, {"cycles": total} | rates)
    return cells


def per_token(r: Results) -> Cells:
    """Forwards over committed tokens: a draft a cycle, a verify a stage. B takes those of the decoupled arm that does the same."""
    found, cells = profile(r), {}
    for name in ("S(6,4)", "S(8,4)", "S(6,3)", "S(8,2)", "B"):
        arm = "B_dec" if name == "B" else name
        (count, how), stages, second = (found[arm,][c] for c in ("cycles", "mean stages", "second-stage rate"))
        tokens = sum(x["tokens"] for x in of(r.rows("decisive"), SHORT[arm])) or 81 * 128
        rates = {"verify forwards per token": count * stages[0] / tokens, "draft forwards per token": count / tokens}
        cells[name,] = marked(how, rates | ({"second-stage rate": 100 * second[0]} if name != "B" else {}))
    return cells


def predictions(r: Results) -> Cells:
    found = decisive(r)
    return {(f"{name} vs B",): {"measured": found[name,]["percent"]} for name in STAGED}


def audits(r: Results) -> Cells:
    cells: Cells = {}
    for name, stem in SESSIONS.items():
        rows = r.rows(stem)
        found = st.audit(rows) if rows else {c: r.get(stem, "ulp_audit", key) for c, key in AUDITED.items()}
        cells[name,] = marked(ways(r, stem)[0], {c: found[c] for c in AUDITED})
    return cells


def arm_audits(r: Results) -> Cells:
    """By arm; what the scores do not say of B is left over from all."""
    (read, derived), rows = ways(r), r.rows("decisive")
    found = {name: st.audit(of(rows, arm)) if rows else {c: r.need("u6_scores", "arms", arm, key) for c, key in AUDITED.items()} for name, arm in SHORT.items()}
    whole = st.audit(rows) if rows else {c: r.need("u6_scores", "u6_0", key) for c, key in AUDITED.items()}
    cells = {(name,): marked(read, {c: entry[c] for c in AUDITED}) for name, entry in found.items()}
    cells["B (by subtraction from 210)",] = marked(derived, {c: whole[c] - sum(entry[c] for entry in found.values()) for c in AUDITED})
    return cells


def same_cycles(r: Results) -> Cells:
    """Units (prompt, repeat) in which two arms commit the same tokens a cycle."""
    rows, sweep = r.rows("decisive"), r.rows("main_ksweep")
    cells: Cells = {}
    for name, left, right in (
        ("S(8,4) vs S(8,2)", "S(8,4)", of(rows, STAGED["S(8,2)"])),
        ("S(6,4) vs S(6,3)", "S(6,4)", of(rows, STAGED["S(6,3)"])),
        ("S(8,4) vs coupled K=8 of Act IV-S", "S(8,4)", of(sweep, "uno_k8")),
    ):
        own, other = ({(x["prompt_id"], x["repeat"]): x["committed_per_cycle"] for x in g} for g in (of(rows, STAGED[left]), right))
        if own and other:
            cells[name,] = marked(ROWS, {"units identical": sum(other.get(key) == kept for key, kept in own.items()), "units": len(own)})
    return cells


def reproduction(r: Results) -> Cells:
    cells = {(f"Act IV-S {name}",): {"xAR": summary(r, session).get((B, ""), {}).get("speedup_vs_ar", (None, ""))} for name, session in (
        ("headline", "ksweep"), ("controls", "controls"), ("adaptive", "adaptive"))}
    cells["Act IV-U6 incumbent",] = {k: v for k, v in decisive(r)["B incumbent (4,4)",].items() if k == "xAR"}
    return cells


WIDE = {f"D{d}": f"D{d}_decoder" for d in (6, 8, 16)} | {"redraw D4": "D4_redraw"}
AGREE = {"D4 decoder noise": "D4_decoder", "D4 aligned": "D4_aligned", "D4 redraw": "D4_redraw", **{f"D{d} decoder": f"D{d}_decoder" for d in (6, 8, 16)}}
ALIGNED = {f"D{d}": f"D{d}_aligned" for d in (6, 8, 16)}
SAME, GAP = "identical_to_d4_same_condition", "mean_max_abs_logit_diff_vs_d4"
GAPS = {"max |dlogit| slot 1": 0, "slot 2 dlogit": 1, "slot 3 dlogit": 2, "slot 4 dlogit": 3}
FORWARDS = curve("verify", (2, 3, 4, 5, 6, 7, 8, 9, 13, 17))
TABLES = (
    Table("u6_verify_cost", paths("cost_curve", {w: at | {"commit median": ("commit_ms_by_verify_width", str(w), "median")} for w, at in FORWARDS.items()})),
    Table("u6_draft_cost", paths("cost_curve", curve("draft", (2, 4, 6, 8, 12, 16)))),
    Table("u6_fits", fits, skip=("widths fitted",)),
    Table("u6_fixed_share", fixed_share),
    Table("u6_compare_cost", against_one),
    Table("u6_extra_draft", extra_draft),
    Table("u6_overhead", paths("cost_curve", {"snapshot + restore per cycle": {c: ("snapshot_restore_ms", c) for c in ("median", "mean")}})),
    Table("u6_perfect", perfect),
    Table("u6_prefix4", prefix4),
    Table("u6_aligned", paths("diagnostic_wide_draft", {
        name: at | slots(GAP, ALIGNED, GAPS)[name] | {"mean prefix4": ("summary", ALIGNED[name], "mean_prefix4")} for name, at in slots(SAME, ALIGNED).items()})),
    Table("u6_slot_agree", paths("diagnostic_wide_draft", slots("slot_agreement_with_target", AGREE))),
    Table("u6_decoder_slot_id", paths("diagnostic_wide_draft", slots(SAME, WIDE))),
    Table("u6_sessions", sessions, skip=("contents",), mixed=True),
    Table("u6_calibration", calibration, skip=("unit",), mixed=True),
    Table("u6_pilot", pilot),
    Table("u6_decisive", decisive),
    Table("u6_arm_means", means),
    Table("u6_cycle", cycles),
    Table("u6_stages", profile),
    Table("u6_forwards", per_token),
    Table("u6_predictions", predictions, skip=("predicted",)),
    Table("u6_divergence", audits),
    Table("u6_arm_divergence", arm_audits),
    Table("u6_staging_identity", same_cycles),
    Table("u6_reproduction", reproduction),
)
