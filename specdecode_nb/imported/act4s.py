"""The published tables of Act IV-S from its sessions in ``results/speculative``."""
from __future__ import annotations

from .. import statistics as st
from .compare import DERIVED, READ, ROWS, Absent, Cells, Results, Table, columns, measured, shares, summary

WHOLE = {
    "rows": "rows",
    "throughput median": "tok_s_median",
    "throughput mean": "tok_s_mean",
    "sd": "tok_s_sd",
    "p25": "tok_s_p25",
    "p75": "tok_s_p75",
    "xAR end-to-end": "speedup_vs_ar",
    "decode-only median": "decode_tok_s_median",
    "xAR decode-only": "decode_speedup_vs_ar",
    "TPF": "tpf_median",
    "latency per token": "ms_per_token_median",
    "time to first token": "ttft_ms_median",
    "slot acceptance": "acceptance_rate",
    "mean accepted prefix": "mean_accepted_prefix",
    "committed per cycle": "mean_committed_per_cycle",
    "cycles": "cycles",
}
STAGE = {"draft": "proposal_ms", "verify": "verify_ms", "commit": "commit_ms", "overhead": "overhead_ms"}
KINDS = ("code", "dialogue", "factual", "high_entropy", "math", "prose", "reasoning", "structured", "technical")
SWEEP = {f"K={k}": f"uno_k{k}" for k in (1, 2, 4, 8, 16)}
CONTROLS = {"AR": "ar", "diffusion K=4": "uno_k4", "n-gram 2": "ngram2_k4", "n-gram 3": "ngram3_k4", "refine x2": "refine2_k4", "refine x4": "refine4_k4"}
ADAPTIVE = {
    "AR": "ar",
    "K=2": "uno_k2",
    "K=4": "uno_k4",
    "K=8": "uno_k8",
    "entropy": "adapt_entropy",
    "expected value": "adapt_ev",
    "survival": "adapt_survival",
}


def whole(session: str, clean: bool = False):
    return lambda r: {key: columns(entry, WHOLE) for key, entry in summary(r, session, clean=clean).items()}


def stages(session: str):
    return lambda r: {key: columns(entry, STAGE) for key, entry in summary(r, session).items()}


def by_kind(session: str, arms: dict[str, str], column: str):
    """A row a category, a column an arm."""

    def make(r: Results) -> Cells:
        found = summary(r, session, "category")
        return {(kind,): {name: found[arm, kind][column] for name, arm in arms.items() if (arm, kind) in found} for kind in KINDS}

    return make


def cycle(r: Results) -> Cells:
    """Cycle times as the sum of the stages' medians."""
    found = summary(r, "ksweep")
    return {(name,): {"cycle": (sum(found[arm,][c][0] for c in STAGE.values()), DERIVED)} for name, arm in SWEEP.items() if (arm,) in found}


def tail(r: Results) -> Cells:
    found = shares(r, "ksweep", st.survival, "{}", {0: "uno_k16"}, 15)[0,]
    return {(int(j),): {"P(accepted >= j)": v} for j, v in found.items()}


def kind_ratio(r: Results) -> Cells:
    found = summary(r, "ksweep", "category")
    how = ROWS if r.rows("main_ksweep") else DERIVED
    return {
        (kind,): {f"{name} xAR": (found[arm, kind]["tok_s_median"][0] / found["ar", kind]["tok_s_median"][0], how) for name, arm in SWEEP.items()}
        for kind in KINDS
    }


def kind_prefix(r: Results) -> Cells:
    cells = by_kind("ksweep", {k: v for k, v in SWEEP.items() if k != "K=1"}, "mean_accepted_prefix")(r)
    try:
        loops = st.by([x for x in r.listed("main_degeneration", "loops") if x["tokens_length"] == 128], "category")
    except Absent:
        return cells
    return {(kind,): entry | {"AR loop fraction": (st.mean([x["looped_fraction"] for x in loops[kind]]), ROWS)} for (kind,), entry in cells.items()}


def kind_accept(r: Results) -> Cells:
    found = summary(r, "ksweep", "category")
    return {
        (kind,): columns(found["uno_k4", kind], {"acceptance": "acceptance_rate", "TPF": "tpf_median", "committed per cycle": "mean_committed_per_cycle"})
        for kind in KINDS
    }


def lengths(r: Results) -> Cells:
    found, cells = summary(r, "baseline", "max_tokens"), {}
    for n in (128, 256, 512):
        ar, four = found["ar", n], found["uno_k4", n]
        cells[n,] = columns(ar, {"AR median": "tok_s_median", "AR sd": "tok_s_sd", "AR time to first token": "ttft_ms_median"}) | columns(
            four,
            {
                "K=4 median": "tok_s_median",
                "K=4 sd": "tok_s_sd",
                "apparent xAR": "speedup_vs_ar",
                "K=4 acceptance": "acceptance_rate",
                "K=4 mean prefix": "mean_accepted_prefix",
            },
        )
    return cells


def stability(r: Results) -> Cells:
    """Plain decoding in every session that a results folder holds."""
    cells: Cells = {}
    for name, session in (("K sweep session", "ksweep"), ("controls session", "controls"), ("adaptive session", "adaptive")):
        cells[name,] = r.maybe(lambda: {"AR": summary(r, session)["ar",]["tok_s_median"]})
    cells["baseline session, 128 tokens",] = r.maybe(lambda: {"AR": summary(r, "baseline", "max_tokens")["ar", 128]["tok_s_median"]})
    cells["Act IV-U3 session",] = r.maybe(
        lambda: {"AR": (st.median_of(r.document("u3_summary")["ar_baseline"]["rows"], lambda x: x["tokens_per_second"]), ROWS)}
    )
    return cells


def kinds_at_512(r: Results) -> Cells:
    rows = r.rows("main_baseline")
    if rows:
        long = [x for x in rows if x["tokens"] == 512]
        found = {
            (arm, kind): {k: (v, ROWS) for k, v in measured(g, []).items()}
            for arm, group in st.by(long, "arm").items()
            for kind, g in st.by(group, "category").items()
        }
    else:
        found = {(x["arm"], x["category"]): {k: (v, READ) for k, v in x.items()} for x in r.lines("main_baseline_by_category") if x["max_tokens"] == 512}
    return {
        (kind,): columns(found["ar", kind], {"AR": "tok_s_median"})
        | columns(found["uno_k4", kind], {"K=4": "tok_s_median", "K=4 mean prefix": "mean_accepted_prefix", "K=4 acceptance": "acceptance_rate"})
        for kind in KINDS
    }


def degeneration(r: Results) -> Cells:
    """Loop statistics from the published rows of each prompt; a row counts as clean below the published limit."""
    cells: Cells = {}
    for n, rows in st.by(r.listed("main_degeneration", "loops"), "tokens_length").items():
        clean, looped = ([x["acceptance_rate"] for x in rows if (x["looped_fraction"] < st.LOOP_FREE) == wanted] for wanted in (True, False))
        loops, accepted = [x["looped_fraction"] for x in rows], [x["acceptance_rate"] for x in rows]
        values = {
            "mean loop fraction": st.mean(loops),
            "rows with loop < 0.05": len(clean),
            "rows": len(rows),
            "mean acceptance": st.mean(accepted),
            "acceptance, clean rows": st.mean(clean),
            "acceptance, looped rows": st.mean(looped),
            "r(loop, acceptance)": st.correlation(loops, accepted),
        }
        cells[n,] = {k: (v, ROWS) for k, v in values.items()}
    return cells


def loops(r: Results) -> Cells:
    cells: Cells = {}
    for kind, rows in st.by([x for x in r.listed("main_degeneration", "loops") if x["tokens_length"] == 128], "category").items():
        for n, x in enumerate(rows, 1):
            cells[kind, n] = {
                "loop fraction": (x["looped_fraction"], READ),
                "distinct-token ratio": (x["distinct_ratio"], READ),
                "acceptance": (x["acceptance_rate"], READ),
                "tok/s": (x["tokens_per_second"], READ),
                "mean accepted": (x["mean_accepted"], READ),
            }
    return cells


def refine(r: Results) -> Cells:
    full = summary(r, "controls")
    clean = r.maybe(lambda: summary(r, "controls", clean=True))
    names = {
        "tok/s": "tok_s_median",
        "xAR": "speedup_vs_ar",
        "TPF": "tpf_median",
        "slot acceptance": "acceptance_rate",
        "mean accepted prefix": "mean_accepted_prefix",
        "draft": "proposal_ms",
    }
    return {
        (n,): columns(full[arm,], names) | columns(clean.get((arm,), {}), {"loop-free xAR": "speedup_vs_ar"})
        for n in (1, 2, 4)
        if (arm := f"refine{n}_k4",) in full
    }


def context(r: Results) -> Cells:
    names = {
        "end-to-end": "tok_s_median",
        "decode-only": "decode_tok_s_median",
        "xAR end-to-end": "speedup_vs_ar",
        "xAR decode-only": "decode_speedup_vs_ar",
        "TPF": "tpf_median",
        "slot acceptance": "acceptance_rate",
        "mean accepted prefix": "mean_accepted_prefix",
        "committed per cycle": "mean_committed_per_cycle",
        "draft": "proposal_ms",
        "verify": "verify_ms",
        "time to first token": "ttft_ms_median",
    }
    return {(length, arm): columns(entry, names) for (arm, length), entry in summary(r, "context", "context_length").items()}


def context_survival(r: Results) -> Cells:
    rows, cells = r.rows("main_context"), {}
    if rows:
        for k in (2, 4, 8):
            for n, group in st.by([x for x in rows if x["arm"] == f"uno_k{k}"], "context_length").items():
                cells[n, k] = {f"j={j}": (v, ROWS) for j, v in enumerate(st.survival(st.pooled(group, "accepted_per_cycle"), k - 1), 1)}
    else:
        widths = {arm: k for k, arm in WIDTHS.items()}
        for x in r.lines("main_context_survival"):
            cell = cells.setdefault((x["context_length"], widths.get(x["arm"])), {})
            cell[f"j={x['j']}"] = (x["p_survive"], READ)
            if x["p_survive"] == 0:  # the list of an arm ends at the first slot that nothing reaches
                cell |= {f"j={j}": (0.0, DERIVED) for j in range(x["j"] + 1, 8)}
    return cells


def confidence(r: Results) -> Cells:
    """Ten groups of cycles of equal number by the mean top-1 probability of the draft."""
    rows = r.rows("main_confidence")
    if not rows:
        return {
            (x["bin"],): {"n": (x["n"], READ), "mean top-1": (x["mean_top1"], READ), "mean accepted prefix": (x["mean_accepted"], READ)}
            for x in r.lines("main_confidence_bins")
        }
    told = sorted(
        (
            (st.mean([p for p, _ in pairs]), a)
            for x in rows
            if x["arm"] == "conf_k4"
            for pairs, a in zip(x.get("confidence_per_cycle", []), x["accepted_per_cycle"])
            if pairs
        ),
        key=lambda t: t[0],
    )
    groups = [told[len(told) * n // 10 : len(told) * (n + 1) // 10] for n in range(10)]
    return {
        (n,): {"n": (len(g), ROWS), "mean top-1": (st.mean([c for c, _ in g]), ROWS), "mean accepted prefix": (st.mean([a for _, a in g]), ROWS)}
        for n, g in enumerate(groups)
    }


def confidence_cost(r: Results) -> Cells:
    found = summary(r, "confidence")
    return {
        ("conf_k4",): columns(found["conf_k4",], {"tok/s": "tok_s_median", "xAR": "speedup_vs_ar"}) | columns(found["ar",], {"AR in session": "tok_s_median"})
    }


def choices(r: Results) -> Cells:
    """Share of cycles at each width that a policy chose."""
    rows = r.rows("main_adaptive")
    if not rows:
        raise Absent
    cells: Cells = {}
    for arm in ("adapt_entropy", "adapt_ev", "adapt_survival"):
        widths = [k for x in rows if x["arm"] == arm for k in x.get("width_per_cycle", [])]
        cells[arm,] = {f"K={k}": (widths.count(k) / len(widths), ROWS) for k in (2, 4, 8)} if widths else {}
    return cells


def divergence(r: Results) -> Cells:
    """The audits counted again; of one that is not whole, its own summary."""
    cells: Cells = {}
    for name, session in (("baseline", "baseline"), ("K sweep", "ksweep"), ("controls", "controls"), ("adaptive", "adaptive"), ("context", "context")):
        source = r.sources.get((f"main_{session}_divergence_audit", "audit"))
        if source is None:
            continue
        own = source.about.get("summary", {}) if isinstance(source.about.get("summary"), dict) else {}
        names = {
            "divergences": "divergences",
            "exact ties": "exact_ties",
            "within one ULP": "within_one_ulp",
            "beyond one ULP": "beyond_one_ulp",
            "max gap": "max_gap_in_ulps",
            "median gap": "median_gap_in_ulps",
        }
        cells[name,] = {column: (own[key], READ) for column, key in names.items() if isinstance(own.get(key), (int, float))}
        if source.whole and len(source.rows) == own.get("divergences", len(source.rows)):
            found = st.audit([{"identical_to_ar": False, "divergence_gap_ulps": x["gap_in_ulps"]} for x in source.rows])
            cells[name,] = {column: (found[column], ROWS) for column in names}
    if len(cells) == 5:
        both = [entry for entry in cells.values()]
        cells["total",] = (
            {c: (sum(e[c][0] for e in both), DERIVED) for c in ("divergences", "exact ties", "within one ULP", "beyond one ULP")}
            | {"max gap": (max(e["max gap"][0] for e in both), DERIVED)}
            if all(len(e) == 6 for e in both)
            else {}
        )
    return cells


def ties(r: Results) -> Cells:
    """The tie rate as the baseline session counted it; the rate and the expectation follow from its counts."""
    own = r.part("main_baseline", "tie_rate")
    if not isinstance(own, dict) or not all(isinstance(own.get(k), int) for k in ("exact_ties", "positions")):
        raise Absent
    rate = st.tie_rate([own])["rate"]
    return {
        ("tied positions",): {"value": (own["exact_ties"], READ)},
        ("decoded positions",): {"value": (own["positions"], READ)},
        ("rate (%)",): {"value": (rate, DERIVED)},
        ("expected ties per 128-token generation",): {"value": (1.28 * rate, DERIVED)},
    }


CHOSEN = {"adapt_entropy": "adapt_entropy", "adapt_ev": "adapt_ev", "adapt_survival": "adapt_survival", "fixed K=4": "uno_k4", "fixed K=8": "uno_k8"}
NAMED = {"uno_k4": "uno_k4", **{n: f"{n}_k4" for n in ("ngram2", "ngram3", "refine1", "refine2", "refine4")}}
WIDTHS = {k: f"uno_k{k}" for k in (2, 4, 8, 16)}
TABLES = tuple(
    Table("act4s", *spec)
    for spec in (
        ("s_ksweep", whole("ksweep")),
        ("s_ksweep_clean", whole("ksweep", True)),
        ("s_ksweep_stage", stages("ksweep")),
        ("s_cycle", cycle),
        ("s_survival", lambda r: shares(r, "ksweep", st.survival, "j={}", WIDTHS, 7)),
        ("s_survival_k16_tail", tail),
        ("s_histogram", lambda r: shares(r, "ksweep", st.histogram, "P({})", WIDTHS, 7)),
        ("s_cat_toks", by_kind("ksweep", {"AR": "ar", **SWEEP}, "tok_s_median")),
        ("s_cat_xar", kind_ratio),
        ("s_cat_prefix", kind_prefix),
        ("s_cat_accept", kind_accept),
        ("s_baseline", lengths),
        ("s_baseline_stability", stability),
        ("s_baseline_cat512", kinds_at_512),
        ("s_degeneration", degeneration),
        ("s_loops", loops, 2),
        ("s_controls", whole("controls")),
        ("s_controls_clean", whole("controls", True)),
        ("s_controls_stage", stages("controls")),
        ("s_refine", refine),
        ("s_controls_survival", lambda r: shares(r, "controls", st.survival, "j={}", NAMED, 3)),
        ("s_controls_hist", lambda r: shares(r, "controls", st.histogram, "P({})", NAMED, 3)),
        ("s_controls_cat", by_kind("controls", CONTROLS, "tok_s_median")),
        ("s_context", context, 2),
        ("s_context_survival", context_survival, 2),
        ("s_confidence", confidence),
        ("s_confidence_cost", confidence_cost),
        ("s_adaptive", whole("adaptive")),
        ("s_adaptive_clean", whole("adaptive", True)),
        ("s_adaptive_choices", choices),
        ("s_adaptive_survival", lambda r: shares(r, "adaptive", st.survival, "j={}", CHOSEN, 7)),
        ("s_adaptive_cat", by_kind("adaptive", ADAPTIVE, "tok_s_median")),
        ("s_divergence", divergence),
        ("s_tie_rate", ties, 1, (), True),
    )
)
