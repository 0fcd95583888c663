"""The published tables of Act IV-U3 from ``results/act4u3``, which holds checkpoint summaries and counts, no decode rows."""
from __future__ import annotations

from collections.abc import Iterable

from .. import statistics as st
from .compare import COUNTS, DERIVED, READ, Absent, Cells, Results, Table

NAMES = {
    "step": "step",
    "validation TV": "val_tv",
    "teacher-forced agreement": "tf_agree_specs",
    "free-running acceptance": "free_acceptance_rate",
    "mean accepted prefix": "free_mean_accepted_specs",
    "full-block rate": "free_full_block_rate",
    "TPF": "tpf",
    "forwards per token": "forwards_per_token",
    "throughput": "tok_s_median",
    "sd across prompts": "tok_s_std",
}
LAST, FIRST = ("step-3200", 3200), ("step-400", 400)


def lines(r: Results, k: int | None = None) -> list[dict]:
    return [x for x in r.lines("u3_checkpoints") if k in (None, x["K"])]


def accepted(r: Results) -> dict[tuple[str, int], list[int]]:
    """Accepted tokens of every cycle by checkpoint and block size, from the published counts."""
    out: dict[tuple[str, int], list[int]] = {}
    for x in r.lines("u3_acceptance_histogram"):
        out.setdefault((x["checkpoint"], x["K"]), []).extend([x["accepted_specs"]] * x["cycles"])
    return out


def checkpoints(k: int):
    def make(r: Results) -> Cells:
        cells: Cells = {
            (x["checkpoint"],): {c: (x[n], READ) for c, n in NAMES.items()} | {"xAR": (x["tok_s_median"] / x["ar_baseline_tok_s"], DERIVED)}
            for x in lines(r, k)
        }
        for (name, width), counted in r.maybe(lambda: accepted(r)).items():
            if width == k and (name,) in cells:
                mean = st.mean(counted)
                cells[name,] |= {
                    "mean accepted prefix": (mean, COUNTS),
                    "free-running acceptance": (mean / (k - 1), COUNTS),
                    "full-block rate": (st.survival(counted, k - 1)[-1], COUNTS),
                }
        return cells

    return make


def spread(columns: dict[str, str], keys: Iterable[str] = ("checkpoint",), k: int | None = None):
    return lambda r: {tuple(x[key] for key in keys): {c: (x[n], READ) for c, n in columns.items()} for x in lines(r, k)}


def predicted(r: Results) -> Cells:
    return {
        (x["checkpoint"], x["K"]): {
            "predicted": (x["predicted_tok_s"], READ),
            "measured": (x["tok_s_median"], READ),
            "error": (100 * (x["predicted_tok_s"] / x["tok_s_median"] - 1), DERIVED),
        }
        for x in lines(r)
    }


def quintiles(r: Results) -> Cells:
    cells: Cells = {}
    for x in r.lines("u3_draftability"):
        cells.setdefault((x["checkpoint"],), {}).update(
            {f"q{x['quintile']}": (x["acceptance"], READ), "r(gap, agreement)": (x["pearson_gap"], READ), "r(entropy, agreement)": (x["pearson_entropy"], READ)}
        )
    return cells


def shares(r: Results) -> Cells:
    return {key: {f"P({j})": (v, COUNTS) for j, v in enumerate(st.histogram(counted, key[1] - 1))} for key, counted in accepted(r).items()}


def required(checkpoint: str):
    def make(r: Results) -> Cells:
        cells: Cells = {}
        for x in r.lines("u3_cost_model"):
            if x["checkpoint"] == checkpoint:
                cells.setdefault((x["K"],), {}).update(
                    {
                        f"for {x['target_speedup']:.2f}x": (x["required_per_slot_accept"], READ),
                        "actual acceptance": (x["actual_per_slot_accept"], READ),
                        "actual xAR": (x["actual_speedup"], READ),
                    }
                )
        return cells

    return make


def repro(r: Results) -> Cells:
    cells: Cells = {}
    for k in (2, 4):
        old, new = ({x["checkpoint"]: x["tf_agree_specs"] for x in lines(r, k)}.get(name) for name in ("orig400", "step-400"))
        if old is None or new is None:
            raise Absent
        cells[f"K={k} teacher-forced agreement",] = {
            "archived": (old, READ),
            "re-run": (new, READ),
            "difference": (new - old, DERIVED),
            "within +-0.03": (abs(new - old) <= 0.03, DERIVED),
        }
    return cells


def chain(r: Results) -> Cells:
    """Changes from step 400 to 3200 at K=4, in percent."""
    ends = {x["checkpoint"]: x for x in lines(r, 4)}
    first, last, cells = ends[FIRST[0]], ends[LAST[0]], {}
    for name, column in (
        ("validation TV", "val_tv"),
        ("teacher-forced agreement", "tf_agree_specs"),
        ("free-running acceptance", "free_acceptance_rate"),
        ("TPF", "tpf"),
        ("forwards per token", "forwards_per_token"),
        ("tok/s", "tok_s_median"),
    ):
        cells[name,] = {"step 400": (first[column], READ), "step 3200": (last[column], READ), "change": (100 * (last[column] / first[column] - 1), DERIVED)}
    return cells


TABLES = tuple(
    Table("act4u3", *spec)
    for spec in (
        ("u3_ck_k4", checkpoints(4)),
        ("u3_ck_k2", checkpoints(2)),
        ("u3_offsets", spread({"step": "step", "slot 1": "acc_plus_1", "slot 2": "acc_plus_2", "slot 3": "acc_plus_3"}, k=4)),
        ("u3_stage", spread({"draft": "proposal_ms", "verify": "verify_ms", "commit": "commit_ms"}, ("checkpoint", "K")), 2),
        ("u3_costcheck", predicted, 2),
        ("u3_draft_quint", quintiles),
        ("u3_hist", shares, 2),
        ("u3_required", required("step-3200"), 1, ("ceiling xAR",)),
        ("u3_required_400", required("step-400")),
        ("u3_repro", repro, 1, (), True),
        ("u3_chain", chain, 1, (), True),
    )
)
