"""The published tables of Act IV-U3 from ``results/act4u3``, which holds checkpoint summaries and counts, no decode rows."""
from __future__ import annotations

from collections.abc import Callable

from .. import statistics as st
from .compare import COUNTS, DERIVED, READ, Cells, Results, Table, marked, spread

STEM, EACH = "u3_checkpoints", ("checkpoint", "K")
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


def accepted(r: Results) -> dict[tuple[str, int], list[int]]:
    """Accepted tokens of every cycle by checkpoint and block size, from the published counts."""
    out: dict[tuple[str, int], list[int]] = {}
    for x in r.lines("u3_acceptance_histogram"):
        out.setdefault((x["checkpoint"], x["K"]), []).extend([x["accepted_specs"]] * x["cycles"])
    return out


def checkpoints(k: int) -> Callable[[Results], Cells]:
    def make(r: Results) -> Cells:
        cells = spread(STEM, ("checkpoint",), NAMES, K=k)(r)
        for x in st.only(r.lines(STEM), K=k):
            cells[x["checkpoint"],]["xAR"] = (x["tok_s_median"] / x["ar_baseline_tok_s"], DERIVED)
        for (name, width), counted in accepted(r).items():
            if width == k and (name,) in cells:
                mean = st.mean(counted)
                again = {"mean accepted prefix": mean, "free-running acceptance": mean / (k - 1), "full-block rate": st.survival(counted, k - 1)[-1]}
                cells[name,] |= marked(COUNTS, again)
        return cells

    return make


def predicted(r: Results) -> Cells:
    cells = spread(STEM, EACH, {"predicted": "predicted_tok_s", "measured": "tok_s_median"})(r)
    for entry in cells.values():
        entry["error"] = (100 * (entry["predicted"][0] / entry["measured"][0] - 1), DERIVED)
    return cells


def shares(r: Results) -> Cells:
    return {key: marked(COUNTS, {f"P({j})": v for j, v in enumerate(st.histogram(counted, key[1] - 1))}) for key, counted in accepted(r).items()}


def required(checkpoint: str) -> Callable[[Results], Cells]:
    names = {"for {target_speedup:.2f}x": "required_per_slot_accept", "actual acceptance": "actual_per_slot_accept", "actual xAR": "actual_speedup"}
    return spread("u3_cost_model", ("K",), names, checkpoint=checkpoint)


def repro(r: Results) -> Cells:
    found = {(x["checkpoint"], x["K"]): x["tf_agree_specs"] for x in r.lines(STEM)}
    cells: Cells = {}
    for k in (2, 4):
        old, new = found["orig400", k], found["step-400", k]
        derived = {"difference": new - old, "within +-0.03": abs(new - old) <= 0.03}
        cells[f"K={k} teacher-forced agreement",] = marked(READ, {"archived": old, "re-run": new}) | marked(DERIVED, derived)
    return cells


def chain(r: Results) -> Cells:
    """Changes from step 400 to 3200 at K=4, in percent."""
    ends = {x["checkpoint"]: x for x in st.only(r.lines(STEM), K=4)}
    cells: Cells = {}
    for name in ("validation TV", "teacher-forced agreement", "free-running acceptance", "TPF", "forwards per token", "throughput"):
        first, last = (ends[step][NAMES[name]] for step in ("step-400", "step-3200"))
        change = marked(READ, {"step 400": first, "step 3200": last}) | marked(DERIVED, {"change": 100 * (last / first - 1)})
        cells["tok/s" if name == "throughput" else name,] = change
    return cells


QUINTILES = {"q{quintile}": "acceptance", "r(gap, agreement)": "pearson_gap", "r(entropy, agreement)": "pearson_entropy"}
TABLES = (
    Table("u3_ck_k4", checkpoints(4)),
    Table("u3_ck_k2", checkpoints(2)),
    Table("u3_offsets", spread(STEM, ("checkpoint",), {"step": "step"} | {f"slot {n}": f"acc_plus_{n}" for n in (1, 2, 3)}, K=4)),
    Table("u3_stage", spread(STEM, EACH, {"draft": "proposal_ms", "verify": "verify_ms", "commit": "commit_ms"}), keys=2),
    Table("u3_costcheck", predicted, keys=2),
    Table("u3_draft_quint", spread("u3_draftability", ("checkpoint",), QUINTILES)),
    Table("u3_hist", shares, keys=2),
    Table("u3_required", required("step-3200"), skip=("ceiling xAR",)),
    Table("u3_required_400", required("step-400")),
    Table("u3_repro", repro, mixed=True),
    Table("u3_chain", chain, mixed=True),
)
