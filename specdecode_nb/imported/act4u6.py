"""The published tables of Act IV-U6 from its three decoding sessions, or from the scores that were kept of them."""
from __future__ import annotations

import math
from collections.abc import Sequence

from .. import statistics as st
from .compare import DERIVED, READ, ROWS, Absent, Cells, Results, Table, ms

ARMS = {"B_dec (4,4)": "dec_d4v4", "S(8,4)": "staged_d8v4", "S(8,2)": "staged_d8v2", "S(6,4)": "staged_d6v4", "S(6,3)": "staged_d6v3"}
SHORT = {"B_dec": "dec_d4v4", **{k: v for k, v in ARMS.items() if k.startswith("S")}}
B = "uno_k4"


def of(rows: Sequence[dict], arm: str) -> list[dict]:
    return [x for x in rows if x["arm"] == arm]


def change(rows: Sequence[dict], arm: str) -> dict[str, float]:
    """Paired change of tokens per second against B in percent of B's mean, with its interval over (prompt, repeat)."""
    control = of(rows, B)
    base = st.mean([st.tokens_per_second(x) for x in control]) / 100
    b = st.paired_bootstrap(st.paired(of(rows, arm), control, st.tokens_per_second))
    return {"percent": b["mean_diff"] / base, "CI low": b["ci_low"] / base, "CI high": b["ci_high"] / base}


def session(r: Results, stem: str) -> list[dict]:
    rows = r.rows(stem)
    if not rows:
        raise Absent
    return rows


def native(r: Results, stem: str) -> tuple[float, str]:
    """Median of the plain arm: from rows, or from the summary that the file holds."""
    rows = r.rows(stem)
    if rows:
        return st.median_of(of(rows, "ar"), st.tokens_per_second), ROWS
    return r.summary_of(stem, "ar", "tokens_per_second", "median"), READ


def sessions(r: Results) -> Cells:
    cells: Cells = {}
    for name, stem in (("U6-1 diagnostic", "diagnostic_wide_draft"), ("U6-2 cost curve", "cost_curve")):
        cells[name,] = r.maybe(lambda: {"wall": (r.number(stem, "seconds"), READ)})
    for name in ("calibration", "pilot", "decisive"):
        stem = "calibrate" if name == "calibration" else name
        cells[name,] = r.maybe(lambda: {"native AR": native(r, stem)}) | r.maybe(lambda: {"wall": (r.number_of(stem, "seconds"), READ)})
    return cells


def calibration(r: Results) -> Cells:
    values: dict[str, tuple] = {}
    rows = r.rows("calibrate")
    if rows:
        b = st.paired_bootstrap(st.paired(of(rows, "uno_k4_b2"), of(rows, B), st.tokens_per_second))
        base, low, high, mean, how = st.mean([st.tokens_per_second(x) for x in of(rows, B)]), b["ci_low"], b["ci_high"], b["mean_diff"], ROWS
        values = {
            "median B": (st.median_of(of(rows, B), st.tokens_per_second), ROWS),
            "median B2": (st.median_of(of(rows, "uno_k4_b2"), st.tokens_per_second), ROWS),
        }
    else:
        base, mean, how = r.number("floor", "mean_incumbent_tok_s"), r.number("floor", "mean_diff_tok_s"), READ
        low, high = r.number("floor", "ci_tok_s", 0), r.number("floor", "ci_tok_s", 1)
        for name, arm in (("median B", B), ("median B2", "uno_k4_b2")):
            values |= r.maybe(lambda: {name: (r.summary_of("calibrate", arm, "tokens_per_second", "median"), READ)})
    raw = 100 * max(abs(low), abs(high)) / base
    values |= {
        "mean incumbent tok/s": (base, how),
        "mean difference B2 - B": (mean, how),
        "CI low": (low, how),
        "CI high": (high, how),
        "raw floor": (raw, how if rows else DERIVED),
        "floor used": (max(1.0, math.ceil(2 * raw) / 2), how if rows else DERIVED),
    }
    return {(k,): {"value": v} for k, v in values.items()}


def pilot(r: Results) -> Cells:
    rows, cells = r.rows("pilot"), {}
    for name, arm in ARMS.items():
        if rows:
            entry = {k: (v, ROWS) for k, v in change(rows, arm).items()}
        else:
            at = lambda *path: r.number("pilot_gate", "arms", arm, *path)  # noqa: B023,E731
            entry = {"percent": (at("percent"), READ), "CI low": (at("ci_percent", 0), READ), "CI high": (at("ci_percent", 1), READ)}
        cells[name,] = entry | {"clearly below -1.0%": (entry["CI high"][0] < -1.0, ROWS if rows else DERIVED)}
    return cells


def score(r: Results, arm: str, *path) -> float:
    return r.number("u6_scores", "arms", arm, *path)


def decisive(r: Results) -> Cells:
    rows, cells = r.rows("decisive"), {}
    for name, arm in ({"B incumbent (4,4)": B} | ARMS).items():
        entry: dict = {}
        if rows:
            clean, ar = st.loop_free(rows), of(rows, "ar")
            speed = st.median_of(of(rows, arm), st.tokens_per_second)
            entry = {
                "median": (speed, ROWS),
                "xAR": (speed / st.median_of(ar, st.tokens_per_second), ROWS),
                "TPF": (st.median_of(of(rows, arm), lambda x: round(st.tokens_per_forward(x), 4)), ROWS),
            }
            if arm != B:
                entry |= {k: (v, ROWS) for k, v in change(rows, arm).items()}
                entry |= {{"percent": "loop-free percent"}.get(k, f"loop-free {k}"): (v, ROWS) for k, v in change(clean, arm).items()}
        else:
            for column, path in (("median", ("tokens_per_second", "median")), ("xAR", ("speedup_vs_ar",)), ("TPF", ("tokens_per_forward", "median"))):
                entry |= r.maybe(lambda: {column: (r.summary_of("decisive", arm, *path), READ)})
            if arm != B:
                entry |= r.maybe(lambda: scored(r, arm))
        cells[name,] = entry
    return cells


def scored(r: Results, arm: str) -> dict:
    """Percent from the two means; the difference has six digits, as every figure of the bootstrap."""
    entry = {}
    for part, before in (("tok_s", ""), ("tok_s_clean", "loop-free ")):
        own, base = score(r, arm, part, "mean_arm_tok_s"), score(r, arm, part, "mean_incumbent_tok_s")
        entry |= {
            f"{before}percent": (100 * round(own - base, 6) / base, DERIVED),
            f"{before}CI low": (score(r, arm, part, "ci_percent", 0), READ),
            f"{before}CI high": (score(r, arm, part, "ci_percent", 1), READ),
        }
    return entry


def passes(r: Results) -> Cells:
    """The decisive table with its verdicts: an arm passes if its interval lies above 0 and its mean at the floor or above."""
    cells = decisive(r)
    for (name,), entry in cells.items():
        if name.startswith("S") and "percent" in entry:
            low, how = entry["CI low"][0], entry["percent"][1]
            entry["passes"] = (low > 0 and entry["percent"][0] >= 1.0, how)
    return cells


def means(r: Results) -> Cells:
    rows, cells = r.rows("decisive"), {}
    for name, arm in (SHORT | {"B_dec (4,4)": "dec_d4v4", "B incumbent": B}).items():
        if rows:
            entry = {c: (st.mean([st.tokens_per_second(x) for x in of(g, arm)]), ROWS) for c, g in (("mean", rows), ("loop-free mean", st.loop_free(rows)))}
        else:
            side, of_arm = ("incumbent", "dec_d4v4") if arm == B else ("arm", arm)
            entry = {c: (score(r, of_arm, part, f"mean_{side}_tok_s"), READ) for c, part in (("mean", "tok_s"), ("loop-free mean", "tok_s_clean"))}
        cells[name,] = entry
    return cells


def cycles(r: Results) -> Cells:
    """Committed and accepted tokens a cycle are means over (prompt, repeat) of each row's own mean."""
    rows, cells = r.rows("decisive"), {}
    kept = {n: lambda x, n=n: st.mean(x[f"{n}_per_cycle"]) for n in ("committed", "accepted")}
    for name, arm in ({"B": B} | {k: v for k, v in ARMS.items() if k.startswith("S")}).items():
        entry: dict = {}
        for n, before in (("committed", ""), ("accepted", "accepted ")):
            if rows:
                own = st.mean([kept[n](x) for x in of(rows, arm)])
                b = st.paired_bootstrap(st.paired(of(rows, arm), of(rows, B), kept[n]))
                found = {f"{n} per cycle": own, f"{n} change": b["mean_diff"], f"{before}CI low": b["ci_low"], f"{before}CI high": b["ci_high"]}
                entry |= {k: (v, ROWS) for k, v in found.items()}
            else:
                at = lambda *path: score(r, "dec_d4v4" if arm == B else arm, f"{n}_per_cycle", *path)  # noqa: B023,E731
                base = at("incumbent_mean")
                own = base if arm == B else at("arm_mean")
                entry |= {f"{n} per cycle": (own, READ), f"{n} change": (own - base, DERIVED)}
                if arm != B:
                    entry |= {f"{before}CI low": (at("ci", 0), READ), f"{before}CI high": (at("ci", 1), READ)}
        for column, stage, key in (("added verify", "verify", "verify"), ("added draft", "proposal", "draft")):
            if rows:
                entry[column] = (st.mean(st.paired(of(rows, arm), of(rows, B), ms(stage))), ROWS)
            else:  # B against itself
                entry[column] = (0.0, DERIVED) if arm == B else (score(r, arm, f"added_{key}_ms_per_cycle"), READ)
        cells[name,] = entry
    return cells


def profile(r: Results) -> Cells:
    """From traces; without them the counts of cycles by stages give the means and rates again."""
    rows, cells = r.rows("decisive"), {}
    for name, arm in SHORT.items():
        if rows:
            group = of(rows, arm)
            staged, took = st.pooled(group, "stages_per_cycle"), st.quantiles(st.pooled(group, "cycle_ms_per_cycle"))
            n, how = {j: staged.count(j) for j in (1, 2, 3)}, ROWS
            rest = {
                "verify tokens per committed": (sum(st.pooled(group, "verified_per_cycle")) / sum(x["tokens"] for x in group), ROWS),
                "unused draft tokens per cycle": (st.mean(st.pooled(group, "unused_per_cycle")), ROWS),
                "rejected draft tokens per cycle": (
                    (sum(st.pooled(group, "offered_per_cycle")) - sum(st.pooled(group, "accepted_per_cycle"))) / len(staged),
                    ROWS,
                ),
                "cycle mean": (took["mean"], ROWS),
                "cycle sd": (took["sd"], ROWS),
            }
        else:
            at = lambda *path: r.number("u6_scores", "stage_profile", arm, *path)  # noqa: B023,E731
            n, how = {j: r.number("u6_scores", "stage_profile", arm, "stages_per_cycle_histogram", str(j), missing=0) for j in (1, 2, 3)}, DERIVED
            rest = {
                "verify tokens per committed": (at("verify_tokens_per_committed_token"), READ),
                "unused draft tokens per cycle": (at("mean_unused_draft_tokens"), READ),
                "rejected draft tokens per cycle": (at("mean_rejected_draft_tokens"), READ),
                "cycle mean": (at("mean_cycle_ms"), READ),
                "cycle sd": (at("sd_cycle_ms"), READ),
            }
        total = sum(n.values())
        cells[name,] = {
            "cycles": (total, how),
            "1 stage": (n[1], how if rows else READ),
            "2 stages": (n[2], how if rows else READ),
            "3 stages": (n[3], how if rows else READ),
            "mean stages": (sum(j * c for j, c in n.items()) / total, how),
            "second-stage rate": ((total - n[1]) / total, how),
        } | rest
    return cells


def per_token(r: Results) -> Cells:
    """Forwards over committed tokens: a draft a cycle, a verify a stage."""
    found, out = profile(r), {}
    for name in ("S(6,4)", "S(8,4)", "S(6,3)", "S(8,2)", "B"):
        entry = found["B_dec" if name == "B" else name,]
        tokens = sum(x["tokens"] for x in of(session(r, "decisive"), SHORT[name])) if r.rows("decisive") and name != "B" else 81 * 128
        count, how = entry["cycles"][0], entry["cycles"][1]
        out[name,] = {"verify forwards per token": (count * entry["mean stages"][0] / tokens, how), "draft forwards per token": (count / tokens, how)}
        if name != "B":
            out[name,]["second-stage rate"] = (100 * entry["second-stage rate"][0], how)
    return out


def predictions(r: Results) -> Cells:
    found = decisive(r)
    return {(f"{name} vs B",): {"measured": found[name,]["percent"]} for name in ARMS if name.startswith("S")}


def audits(r: Results) -> Cells:
    cells: Cells = {}
    for name in ("calibration", "pilot", "decisive"):
        stem = "calibrate" if name == "calibration" else name
        cells[name,] = r.maybe(
            lambda: {c: (r.number_of(stem, "ulp_audit", k), READ) for c, k in (("divergences", "divergences"), ("beyond one ULP", "beyond_one_ulp"))}
        )
        if r.rows(stem):
            found = st.audit(r.rows(stem))
            cells[name,] = {c: (found[c], ROWS) for c in ("divergences", "beyond one ULP")}
    return cells


def arm_audits(r: Results) -> Cells:
    rows, cells = r.rows("decisive"), {}
    for name, arm in (SHORT | {"B (by subtraction from 210)": B}).items():
        if rows:
            found = st.audit(of(rows, arm))
            cells[name,] = {c: (found[c], ROWS) for c in ("divergences", "beyond one ULP")}
        elif arm != B:
            cells[name,] = {c: (score(r, arm, k), READ) for c, k in (("divergences", "divergences"), ("beyond one ULP", "beyond_one_ulp"))}
        else:
            all_ = {k: r.number("u6_scores", "u6_0", k) for k in ("divergences", "beyond_one_ulp")}
            cells[name,] = {
                c: (all_[k] - sum(score(r, a, k) for a in SHORT.values()), DERIVED)
                for c, k in (("divergences", "divergences"), ("beyond one ULP", "beyond_one_ulp"))
            }
    return cells


def same_cycles(r: Results) -> Cells:
    """Units (prompt, repeat) in which two arms commit the same tokens a cycle."""
    rows = session(r, "decisive")

    def pair(left: list[dict], right: list[dict]) -> dict:
        key = lambda x: (x["prompt_id"], x["repeat"])  # noqa: E731
        other = {key(x): x["committed_per_cycle"] for x in right}
        return {"units identical": (sum(other.get(key(x)) == x["committed_per_cycle"] for x in left), ROWS), "units": (len(left), ROWS)}

    cells = {
        ("S(8,4) vs S(8,2)",): pair(of(rows, "staged_d8v4"), of(rows, "staged_d8v2")),
        ("S(6,4) vs S(6,3)",): pair(of(rows, "staged_d6v4"), of(rows, "staged_d6v3")),
    }
    sweep = r.rows("main_ksweep")
    return cells | ({("S(8,4) vs coupled K=8 of Act IV-S",): pair(of(rows, "staged_d8v4"), of(sweep, "uno_k8"))} if sweep else {})


def reproduction(r: Results) -> Cells:
    from .act4s import summary

    cells: Cells = {}
    for name, of_session in (("Act IV-S headline", "ksweep"), ("Act IV-S controls", "controls"), ("Act IV-S adaptive", "adaptive")):
        cells[name,] = r.maybe(lambda: {"xAR": summary(r, of_session)["uno_k4",]["speedup_vs_ar"]})
    found = decisive(r)["B incumbent (4,4)",]
    return cells | {("Act IV-U6 incumbent",): {k: v for k, v in found.items() if k == "xAR"}}


TABLES = tuple(
    Table("act4u6", *spec)
    for spec in (
        ("u6_sessions", sessions, 1, ("contents",), True),
        ("u6_calibration", calibration, 1, ("unit",), True),
        ("u6_pilot", pilot),
        ("u6_decisive", passes),
        ("u6_arm_means", means),
        ("u6_cycle", cycles),
        ("u6_stages", profile),
        ("u6_forwards", per_token),
        ("u6_predictions", predictions, 1, ("predicted",)),
        ("u6_divergence", audits),
        ("u6_arm_divergence", arm_audits),
        ("u6_staging_identity", same_cycles),
        ("u6_reproduction", reproduction),
    )
)
