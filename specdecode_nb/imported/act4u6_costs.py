"""The published tables of Act IV-U6 from its two measurements without decoding: the cost curve, and the diagnostic of wide drafts."""
from __future__ import annotations

from collections.abc import Sequence

from .. import statistics as st
from .compare import DERIVED, READ, Cells, Results, Table

CYCLE_MS = 0.83  # host work of a cycle, of the published bound for perfect drafting


def cost(r: Results, what: str, width: int, field: str = "median") -> float:
    return r.number("cost_curve", f"{what}_ms_by_{'verify_' if what == 'commit' else ''}width", str(width), field)


def forwards(what: str, widths: Sequence[int]):
    def make(r: Results) -> Cells:
        cells = {(w,): {c: (cost(r, what, w, c), READ) for c in ("median", "p25", "p75", "mean")} for w in widths}
        if what == "verify":
            for w in widths:
                cells[w,]["commit median"] = (cost(r, "commit", w), READ)
        return cells

    return make


def fits(r: Results) -> Cells:
    """Straight lines through the published medians."""
    out: Cells = {}
    for what, widths in (("verify", range(2, 10)), ("draft", (2, 4, 6, 8, 12, 16))):
        line = st.line(list(widths), [cost(r, what, w) for w in widths])
        out[what,] = {"fixed": (line["intercept"], DERIVED), "marginal": (line["slope"], DERIVED), "R2": (line["r2"], DERIVED)}
    return out


def fixed_share(r: Results) -> Cells:
    fixed = fits(r)["verify",]["fixed"][0]
    return {(w,): {"total": (cost(r, "verify", w), READ), "fixed share": (100 * fixed / cost(r, "verify", w), DERIVED)} for w in (5, 9)}


def against_one(r: Results) -> Cells:
    v = {w: cost(r, "verify", w) for w in (3, 4, 5, 9)}
    return {
        (name,): {"staged": (staged, DERIVED), "single": (single, READ)}
        for name, staged, single in (
            ("verify(3) twice vs verify(5) once", 2 * v[3], v[5]),
            ("verify(5)+verify(4) [S(8,4)] vs verify(9)", v[5] + v[4], v[9]),
            ("verify(3) x3 [S(8,2)] vs verify(9)", 3 * v[3], v[9]),
        )
    }


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
        cells[name,] = {
            "stage widths": ("+".join(map(str, stages)), READ),
            "tokens": (tokens, READ),
            "ms": (took, DERIVED),
            "tokens per ms": (tokens / took, DERIVED),
            "beats perfect incumbent": (tokens / took > bound, DERIVED),
        }
    return cells


def slot(r: Results, condition: str, field: str, n: int) -> float:
    return r.number("diagnostic_wide_draft", "summary", condition, field, n)


def prefix4(r: Results) -> Cells:
    """The mean change is the difference of the two means; the interval stands in the file."""
    base, cells = r.number("diagnostic_wide_draft", "summary", "D4_decoder", "mean_prefix4"), {}
    for name, condition, delta in (*((f"D{d}", f"D{d}_decoder", f"D{d}_decoder") for d in (6, 8, 16)), ("redraw D4", "D4_redraw", "redraw_D4")):
        own = r.number("diagnostic_wide_draft", "summary", condition, "mean_prefix4")
        cells[name,] = {
            "mean change": (own - base, DERIVED),
            "mean prefix4": (own, READ),
            **{c: (r.number("diagnostic_wide_draft", "prefix4_delta_vs_d4", delta, k), READ) for c, k in (("CI low", "ci_low"), ("CI high", "ci_high"))},
        }
    return cells


def aligned(r: Results) -> Cells:
    cells: Cells = {}
    for d in (6, 8, 16):
        gaps = {"max |dlogit| slot 1": 0, "slot 2 dlogit": 1, "slot 3 dlogit": 2, "slot 4 dlogit": 3}
        cells[f"D{d}",] = (
            {f"slot {n + 1}": (slot(r, f"D{d}_aligned", "identical_to_d4_same_condition", n), READ) for n in range(4)}
            | {c: (slot(r, f"D{d}_aligned", "mean_max_abs_logit_diff_vs_d4", n), READ) for c, n in gaps.items()}
            | {"mean prefix4": (r.number("diagnostic_wide_draft", "summary", f"D{d}_aligned", "mean_prefix4"), READ)}
        )
    return cells


def by_slot(field: str, conditions: dict[str, str]):
    return lambda r: {(name,): {f"slot {n + 1}": (slot(r, c, field, n), READ) for n in range(4)} for name, c in conditions.items()}


def extra_draft(r: Results) -> Cells:
    return {(f"draft({d})",): {"extra": (cost(r, "draft", d) - cost(r, "draft", 4), DERIVED)} for d in (6, 8)}


def overhead(r: Results) -> Cells:
    return {("snapshot + restore per cycle",): {c: (r.number("cost_curve", "snapshot_restore_ms", c), READ) for c in ("median", "mean")}}


DECODER = {"D6": "D6_decoder", "D8": "D8_decoder", "D16": "D16_decoder", "redraw D4": "D4_redraw"}
AGREE = {
    "D4 decoder noise": "D4_decoder",
    "D4 aligned": "D4_aligned",
    "D4 redraw": "D4_redraw",
    "D6 decoder": "D6_decoder",
    "D8 decoder": "D8_decoder",
    "D16 decoder": "D16_decoder",
}
TABLES = tuple(
    Table("act4u6", *spec)
    for spec in (
        ("u6_verify_cost", forwards("verify", (2, 3, 4, 5, 6, 7, 8, 9, 13, 17))),
        ("u6_draft_cost", forwards("draft", (2, 4, 6, 8, 12, 16))),
        ("u6_fits", fits, 1, ("widths fitted",)),
        ("u6_fixed_share", fixed_share),
        ("u6_compare_cost", against_one),
        ("u6_extra_draft", extra_draft),
        ("u6_overhead", overhead),
        ("u6_perfect", perfect),
        ("u6_prefix4", prefix4),
        ("u6_aligned", aligned),
        ("u6_slot_agree", by_slot("slot_agreement_with_target", AGREE)),
        ("u6_decoder_slot_id", by_slot("identical_to_d4_same_condition", DECODER)),
    )
)
