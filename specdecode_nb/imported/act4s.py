"""The published tables of Act IV-S from its sessions in ``results/speculative``."""
from __future__ import annotations

from collections.abc import Callable, Mapping

from .. import statistics as st
from .compare import COUNTS, DERIVED, READ, ROWS, Cells, Results, Table, counts, marked, pick, spread, summary

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
REFINE = {"tok/s": "tok_s_median", "xAR": "speedup_vs_ar"} | {c: WHOLE[c] for c in ("TPF", "slot acceptance", "mean accepted prefix")} | {"draft": "proposal_ms"}
CONTEXT = (
    {"end-to-end": "tok_s_median", "decode-only": "decode_tok_s_median", "draft": "proposal_ms", "verify": "verify_ms"}
    | {c: WHOLE[c] for c in ("xAR end-to-end", "xAR decode-only", "TPF", "slot acceptance", "mean accepted prefix", "committed per cycle", "time to first token")}
)
KINDS = ("code", "dialogue", "factual", "high_entropy", "math", "prose", "reasoning", "structured", "technical")
SWEEP = {f"K={k}": f"uno_k{k}" for k in (1, 2, 4, 8, 16)}
CONTROLS = {"AR": "ar", "diffusion K=4": "uno_k4", "n-gram 2": "ngram2_k4", "n-gram 3": "ngram3_k4", "refine x2": "refine2_k4", "refine x4": "refine4_k4"}
POLICIES = {"entropy": "adapt_entropy", "expected value": "adapt_ev", "survival": "adapt_survival"}
ADAPTIVE = {"AR": "ar", "K=2": "uno_k2", "K=4": "uno_k4", "K=8": "uno_k8"} | POLICIES
CHOSEN = {arm: arm for arm in POLICIES.values()} | {"fixed K=4": "uno_k4", "fixed K=8": "uno_k8"}
NAMED = {"uno_k4": "uno_k4", **{n: f"{n}_k4" for n in ("ngram2", "ngram3", "refine1", "refine2", "refine4")}}
WIDTHS = {k: f"uno_k{k}" for k in (2, 4, 8, 16)}


def arms(session: str, names: Mapping[str, str], clean: bool = False) -> Callable[[Results], Cells]:
    """A row an arm."""
    return lambda r: {(arm,): pick(entry, names) for (arm, _), entry in summary(r, session, clean=clean).items()}


def across(session: str, by: str, rows: tuple, columns: Mapping[str, tuple[str, str]], **only) -> Callable[[Results], Cells]:
    """A row a value of ``by``; a column an arm and a summary column of it."""

    def make(r: Results) -> Cells:
        found = summary(r, session, by, **only)
        return {(row,): {c: cell for c, (arm, name) in columns.items() if (cell := found.get((arm, row), {}).get(name))} for row in rows}

    return make


def kinds(session: str, columns: Mapping[str, str], name: str) -> Callable[[Results], Cells]:
    """A row a kind of text, a column an arm."""
    return across(session, "category", KINDS, {c: (arm, name) for c, arm in columns.items()})


def shares(session: str, of: Callable, label: str, arms: Mapping, most: int) -> Callable[[Results], Cells]:
    """Survival or histogram, a row an arm; ``label`` makes a column of a slot."""

    def make(r: Results) -> Cells:
        found, how = counts(r, session), ROWS if r.rows(f"main_{session}") else COUNTS
        first = 1 if of is st.survival else 0
        return {(key,): marked(how, {label.format(j): v for j, v in enumerate(of(found[arm], most), first)}) for key, arm in arms.items() if arm in found}

    return make


def cycle(r: Results) -> Cells:
    """Cycle times as the sum of the stages' medians."""
    found = summary(r, "ksweep")
    return {(name,): {"cycle": (sum(found[arm, ""][c][0] for c in STAGE.values()), DERIVED)} for name, arm in SWEEP.items() if (arm, "") in found}


def tail(r: Results) -> Cells:
    found = shares("ksweep", st.survival, "{}", {0: "uno_k16"}, 15)(r)[0,]
    return {(int(j),): {"P(accepted >= j)": v} for j, v in found.items()}


def kind_ratio(r: Results) -> Cells:
    found, how = summary(r, "ksweep", "category"), ROWS if r.rows("main_ksweep") else DERIVED
    rate = lambda arm, kind: found[arm, kind]["tok_s_median"][0]  # noqa: E731
    return {(kind,): {f"{name} xAR": (rate(arm, kind) / rate("ar", kind), how) for name, arm in SWEEP.items()} for kind in KINDS}


def prompts(r: Results, tokens: int = 128) -> dict[str, list[dict]]:
    """The loop statistics of each prompt at one length, by kind of text."""
    return st.by(st.only(r.rows("main_degeneration"), tokens_length=tokens), "category")


def kind_prefix(r: Results) -> Cells:
    cells = kinds("ksweep", {k: v for k, v in SWEEP.items() if k != "K=1"}, "mean_accepted_prefix")(r)
    for kind, rows in prompts(r).items():
        cells.setdefault((kind,), {})["AR loop fraction"] = (st.mean([x["looped_fraction"] for x in rows]), ROWS)
    return cells


def stability(r: Results) -> Cells:
    """Plain decoding in every session that a results folder holds."""
    found = {(name,): summary(r, session).get(("ar", "")) for name, session in (
        ("K sweep session", "ksweep"), ("controls session", "controls"), ("adaptive session", "adaptive"))}
    found["baseline session, 128 tokens",] = summary(r, "baseline", "tokens").get(("ar", 128))
    cells = {row: pick(entry or {}, {"AR": "tok_s_median"}) for row, entry in found.items()}
    if rows := r.value("u3_summary", "ar_baseline", "rows"):
        cells["Act IV-U3 session",] = {"AR": (st.median_of(rows, lambda x: x["tokens_per_second"]), ROWS)}
    return cells


def degeneration(r: Results) -> Cells:
    """Loop statistics from the published rows of each prompt; a row counts as clean below the published limit."""
    cells: Cells = {}
    for n, rows in st.by(r.rows("main_degeneration"), "tokens_length").items():
        clean, looped = ([x["acceptance_rate"] for x in rows if (x["looped_fraction"] < st.LOOP_FREE) == wanted] for wanted in (True, False))
        loops, accepted = [x["looped_fraction"] for x in rows], [x["acceptance_rate"] for x in rows]
        cells[n,] = marked(ROWS, {
            "mean loop fraction": st.mean(loops),
            "rows with loop < 0.05": len(clean),
            "rows": len(rows),
            "mean acceptance": st.mean(accepted),
            "acceptance, clean rows": st.mean(clean),
            "acceptance, looped rows": st.mean(looped),
            "r(loop, acceptance)": st.correlation(loops, accepted),
        })
    return cells


def loops(r: Results) -> Cells:
    names = {"loop fraction": "looped_fraction", "distinct-token ratio": "distinct_ratio", "acceptance": "acceptance_rate", "tok/s": "tokens_per_second",
             "mean accepted": "mean_accepted"}
    return {(kind, n): marked(READ, {c: x[name] for c, name in names.items()}) for kind, rows in prompts(r).items() for n, x in enumerate(rows, 1)}


def refine(r: Results) -> Cells:
    full, clean = summary(r, "controls"), summary(r, "controls", clean=True)
    return {(n,): pick(full.get((f"refine{n}_k4", ""), {}), REFINE) | pick(clean.get((f"refine{n}_k4", ""), {}), {"loop-free xAR": "speedup_vs_ar"})
            for n in (1, 2, 4)}


def context(r: Results) -> Cells:
    return {(length, arm): pick(entry, CONTEXT) for (arm, length), entry in summary(r, "context", "context_length").items()}


def context_survival(r: Results) -> Cells:
    if rows := r.rows("main_context"):
        return {(n, k): marked(ROWS, {f"j={j}": v for j, v in enumerate(st.survival(st.pooled(group, "accepted_per_cycle"), k - 1), 1)})
                for k in (2, 4, 8) for n, group in st.by(st.only(rows, arm=WIDTHS[k]), "context_length").items()}
    found = spread("main_context_survival", ("context_length", "arm"), {"j={j}": "p_survive"})(r)
    # the list of an arm ends at the first slot that nothing reaches
    return {(n, k): {f"j={j}": (0.0, DERIVED) for j in range(1, 8) if (0.0, READ) in found[n, arm].values()} | found[n, arm]
            for k, arm in WIDTHS.items() for n in {n for n, a in found if a == arm}}


def confidence(r: Results) -> Cells:
    """Ten groups of cycles of equal number by the mean top-1 probability of the draft."""
    rows = r.rows("main_confidence")
    if not rows:
        return spread("main_confidence_bins", ("bin",), {"n": "n", "mean top-1": "mean_top1", "mean accepted prefix": "mean_accepted"})(r)
    told = [
        (st.mean([p for p, _ in pairs]), a)
        for x in st.only(rows, arm="conf_k4")
        for pairs, a in zip(x.get("confidence_per_cycle", []), x["accepted_per_cycle"])
        if pairs
    ]
    told.sort(key=lambda t: t[0])
    groups = [told[len(told) * n // 10 : len(told) * (n + 1) // 10] for n in range(10)]
    return {(n,): marked(ROWS, {"n": len(g), "mean top-1": st.mean([c for c, _ in g]), "mean accepted prefix": st.mean([a for _, a in g])})
            for n, g in enumerate(groups)}


def confidence_cost(r: Results) -> Cells:
    found = summary(r, "confidence")
    return {("conf_k4",): pick(found["conf_k4", ""], {"tok/s": "tok_s_median", "xAR": "speedup_vs_ar"}) | pick(found["ar", ""], {"AR in session": "tok_s_median"})}


def choices(r: Results) -> Cells:
    """Share of cycles at each width that a policy chose."""
    cells: Cells = {}
    for arm in POLICIES.values():
        widths = [k for x in st.only(r.rows("main_adaptive"), arm=arm) for k in x.get("width_per_cycle", [])]
        cells[arm,] = {f"K={k}": (widths.count(k) / len(widths), ROWS) for k in (2, 4, 8) if widths}
    return cells


def divergence(r: Results) -> Cells:
    """The audits counted again; of one that is not whole, its own summary."""
    names = {"divergences": "divergences", "exact ties": "exact_ties", "within one ULP": "within_one_ulp", "beyond one ULP": "beyond_one_ulp",
             "max gap": "max_gap_in_ulps", "median gap": "median_gap_in_ulps"}
    cells: Cells = {}
    for name in ("baseline", "K sweep", "controls", "adaptive", "context"):
        stem = f"main_{name.replace('K sweep', 'ksweep')}_divergence_audit"
        rows, own = r.rows(stem), {column: r.get(stem, "summary", key) for column, key in names.items()}
        if rows and own["divergences"] in (None, len(rows)):
            found = st.audit([{"identical_to_ar": False, "divergence_gap_ulps": x["gap_in_ulps"]} for x in rows])
            cells[name,] = marked(ROWS, {column: found[column] for column in names})
        else:
            cells[name,] = marked(READ, own)
    if all(len(entry) == len(names) for entry in cells.values()):
        total = {c: (max if c == "max gap" else sum)(entry[c][0] for entry in cells.values()) for c in names if c != "median gap"}
        cells["total",] = marked(DERIVED, total)
    return cells


def ties(r: Results) -> Cells:
    """The tie rate as the baseline session counted it; the rate and the expectation follow from its counts."""
    own = {key: r.need("main_baseline", "tie_rate", key) for key in ("exact_ties", "positions")}
    rate = st.tie_rate([own])["rate"]
    cells = marked(READ, {"tied positions": own["exact_ties"], "decoded positions": own["positions"]})
    cells |= marked(DERIVED, {"rate (%)": rate, "expected ties per 128-token generation": 1.28 * rate})
    return {(row,): {"value": cell} for row, cell in cells.items()}


K4 = {"acceptance": ("uno_k4", "acceptance_rate"), "TPF": ("uno_k4", "tpf_median"), "committed per cycle": ("uno_k4", "mean_committed_per_cycle")}
LENGTHS = {
    "AR median": ("ar", "tok_s_median"), "AR sd": ("ar", "tok_s_sd"), "AR time to first token": ("ar", "ttft_ms_median"),
    "K=4 median": ("uno_k4", "tok_s_median"), "K=4 sd": ("uno_k4", "tok_s_sd"), "apparent xAR": ("uno_k4", "speedup_vs_ar"),
    "K=4 acceptance": ("uno_k4", "acceptance_rate"), "K=4 mean prefix": ("uno_k4", "mean_accepted_prefix"),
}
AT_512 = {"AR": ("ar", "tok_s_median"), "K=4": ("uno_k4", "tok_s_median"), "K=4 mean prefix": ("uno_k4", "mean_accepted_prefix"),
          "K=4 acceptance": ("uno_k4", "acceptance_rate")}
TABLES = (
    Table("s_ksweep", arms("ksweep", WHOLE)),
    Table("s_ksweep_clean", arms("ksweep", WHOLE, clean=True)),
    Table("s_ksweep_stage", arms("ksweep", STAGE)),
    Table("s_cycle", cycle),
    Table("s_survival", shares("ksweep", st.survival, "j={}", WIDTHS, 7)),
    Table("s_survival_k16_tail", tail),
    Table("s_histogram", shares("ksweep", st.histogram, "P({})", WIDTHS, 7)),
    Table("s_cat_toks", kinds("ksweep", {"AR": "ar", **SWEEP}, "tok_s_median")),
    Table("s_cat_xar", kind_ratio),
    Table("s_cat_prefix", kind_prefix),
    Table("s_cat_accept", across("ksweep", "category", KINDS, K4)),
    Table("s_baseline", across("baseline", "tokens", (128, 256, 512), LENGTHS)),
    Table("s_baseline_stability", stability),
    Table("s_baseline_cat512", across("baseline", "category", KINDS, AT_512, tokens=512)),
    Table("s_degeneration", degeneration),
    Table("s_loops", loops, keys=2),
    Table("s_controls", arms("controls", WHOLE)),
    Table("s_controls_clean", arms("controls", WHOLE, clean=True)),
    Table("s_controls_stage", arms("controls", STAGE)),
    Table("s_refine", refine),
    Table("s_controls_survival", shares("controls", st.survival, "j={}", NAMED, 3)),
    Table("s_controls_hist", shares("controls", st.histogram, "P({})", NAMED, 3)),
    Table("s_controls_cat", kinds("controls", CONTROLS, "tok_s_median")),
    Table("s_context", context, keys=2),
    Table("s_context_survival", context_survival, keys=2),
    Table("s_confidence", confidence),
    Table("s_confidence_cost", confidence_cost),
    Table("s_adaptive", arms("adaptive", WHOLE)),
    Table("s_adaptive_clean", arms("adaptive", WHOLE, clean=True)),
    Table("s_adaptive_choices", choices),
    Table("s_adaptive_survival", shares("adaptive", st.survival, "j={}", CHOSEN, 7)),
    Table("s_adaptive_cat", kinds("adaptive", ADAPTIVE, "tok_s_median")),
    Table("s_divergence", divergence),
    Table("s_tie_rate", ties, mixed=True),
)
