"""Act IV-U5 from its rows: what makes two launches of one command differ, how far launches lie apart, and what its four arms cost and reach."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import chi2
from scipy.stats import f as f_distribution

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from .measures import Found, more, prefix_of, rate_of, ratio, span, student, tpf_of
from .sweep import arm_rows, frame

CONTROL, OTHER = "A_k4", "C_k8"  # as the protocol names them
INGREDIENTS = ("nothing", "looking", "threads", "kernels", "rounding", "order", "noise")


def ended(file: RowFile) -> list[dict]:
    """The last row of every launch from the start."""
    last: dict[tuple, dict] = {}
    for r in file.of("launch"):
        if r["start"]:
            last[r["arm"], r["launch"]] = r
    return list(last.values())


def group(file: RowFile, arm: str, change: str) -> list[str]:
    """Names of the decode arms of the launches of ``arm`` that differ in ``change``; "again" is the first one and its repetitions."""
    wanted = ("", "launched again") if change == "again" else (change,)
    return [f"{r['arm']}-{r['launch']}" for r in ended(file) if r["arm"] == arm and r["change"] in wanted]


def changed(file: RowFile) -> pd.DataFrame:
    """What each ingredient does after a few steps: whether the adapter is still the control's bits (None where there was nothing to change,
    as with threads on one core), and how far it is from it."""
    found = {r["change"]: r for r in file.of("launch") if r["arm"].startswith("only_")}
    control = {r["step"]: r for r in file.of("launch") if (r["arm"], r["launch"]) == (CONTROL, 1)}

    def kept(r: dict) -> bool | None:
        of = control[r["step"]]
        return None if r["change"] == "threads" and r["threads"] == of["threads"] else r["state_digest"] == of["state_digest"]

    said = {"nothing": "nothing: the same command again", "looking": "held-out text looked at while training", "threads": "another number of BLAS threads", "kernels": "OpenBLAS's kernels of an older processor",
            "rounding": "one number of the start, by one unit in the last place", "order": "the seed of the data order", "noise": "the seed of the noise"}
    return frame([{"perturbed": said[name], "same bits": kept(found[name]), "relative distance": found[name]["distance"],
                   "BLAS": found[name]["blas"], "threads": found[name]["threads"]} for name in INGREDIENTS])


def prefixes(rows: Sequence[dict], arms: Sequence[str]) -> np.ndarray:
    """Accepted prefix [launches, prompts]."""
    return np.array([[float(np.mean(st.pooled(g, "accepted_per_cycle"))) for g in st.by(arm_rows(rows, arm), "prompt_id").values()] for arm in arms])


def launch_share(table: np.ndarray) -> Found:
    """Share of the variance of a launch's mean that is of the launch and not of these prompts, with its interval by the F distribution."""
    n, m = table.shape
    if thin := criteria.few(n, unit="run"):
        return None, None, None, n, thin
    if not table.var():
        return None, None, None, n, "no variance"
    parts = st.components(table)
    rest = parts["launch x prompt"] / m
    ratio = table.mean(axis=1).var(ddof=1) / rest if rest else np.inf
    value, low, high = (max(0.0, 1 - edge / ratio) for edge in (1.0, *f_distribution.ppf((0.975, 0.025), n - 1, (n - 1) * (m - 1))))
    return value, low, high, n


def scattered(file: RowFile) -> pd.DataFrame:
    """By what launches differ in: how far their prefixes, means over prompts, scatter (sd with its interval by chi-square), how much of that variance is the
    launch's own and not of these prompts, and the variance components of one prompt's prefix."""
    lines = []
    for name, arm, change in (("seed", CONTROL, "seed"), ("rounding", CONTROL, "rounding"), ("seed (K=8)", OTHER, "seed")):
        table = prefixes(file.of("decode"), [f"{arm}-1", *group(file, arm, change)])
        n, sd, (share, low, high, *_) = len(table), float(table.mean(axis=1).std(ddof=1)), launch_share(table)
        edges = (sd * ((n - 1) / chi2.ppf((0.975, 0.025), n - 1)) ** 0.5).tolist()
        lines.append({"launches that differ by": name, "launches": n, "sd": sd, "sd low": edges[0], "sd high": edges[1], "launch's share": share, "low": low, "high": high, **st.components(table)})
    return frame(lines, sd="tokens", low="95 %", high="95 %", **{"sd low": "95 %", "sd high": "95 %"})


def arms(file: RowFile) -> pd.DataFrame:
    """What each of the four arms costs and reaches: draft rows a step, how many of them decoding at K=4 uses, seconds, and its prefix less the
    mean of the control's launches over seeds."""
    rows = file.of("decode")
    control = float(np.mean([prefix_of(rows, a) for a in (f"{CONTROL}-1", *group(file, CONTROL, "seed"))]))
    lines = []
    for r in ended(file):
        if r["launch"] == 1 and not r["arm"].startswith("only_"):
            asked = r["recipe"]["blocks"] * (r["recipe"]["block"] - 1)  # what a curriculum shares out
            blocks = [asked // (k - 1) for k in r["widths"]]  # a curriculum has several widths, one after the other
            lines.append({"arm": r["arm"], "steps": r["step"] - file.config["start_steps"], "rows a step": float(np.mean([b * (k - 1) for b, k in zip(blocks, r["widths"])])),
                          "used at K=4": float(np.mean([3 * b for b in blocks])), "seconds": r["seconds"], "mean accepted prefix": prefix_of(rows, f"{r['arm']}-1"),
                          "against the controls": prefix_of(rows, f"{r['arm']}-1") - control})
    return frame(lines, **{"mean accepted prefix": "tokens", "against the controls": "tokens"})


def against_start(file: RowFile) -> dict[str, Found]:
    """Accepted prefix of the launches over seeds less that of their start, by arm: mean and Student's interval."""
    rows, start = file.of("decode"), prefix_of(file.of("decode"), "start-1")
    return {arm: student([prefix_of(rows, a) - start for a in (f"{arm}-1", *group(file, arm, "seed"))], "run") for arm in (CONTROL, OTHER)}


def remark(file: RowFile) -> str:
    """What no rule of Act IV-U5 covers: the effect of a longer block over launches that share a seed, and the scatter of launches."""
    apart, parts = pairs(file)["difference"], scattered(file).set_index("launches that differ by")["sd"]
    return (f"training at K=8 instead of 4 changes the accepted prefix at K=4 by {span(student(apart, 'pair'))} tokens over {len(apart)} pairs of launches; launches scatter by an sd of "
            f"{parts['rounding']:.3f} tokens where rounding alone differs, {parts['seed']:.3f} where seeds do (no rule judges these)")


def spread(rows: Sequence[dict], arms: Sequence[str]) -> tuple[float, None, None, int]:
    """Largest less smallest accepted prefix of some launches."""
    values = [prefix_of(rows, arm) for arm in arms]
    return max(values) - min(values), None, None, len(arms)


def threes(rows: Sequence[dict], arms: Sequence[str]) -> list[float]:
    """Largest less smallest accepted prefix in every three of some launches. The published band is of three, and a band grows with their number."""
    return [spread(rows, some)[0] for some in combinations(arms, 3)]


def pairs(file: RowFile) -> pd.DataFrame:
    """Launches of K=8 beside the control of the same seeds: accepted prefix of both at K=4, and the difference."""
    rows, names = file.of("decode"), [[f"{arm}-1", *group(file, arm, "seed")] for arm in (CONTROL, OTHER)]
    lines = [{"control": a, "trained at K=8": b, "control's prefix": prefix_of(rows, a), "K=8's prefix": prefix_of(rows, b)} for a, b in zip(*names)]
    return frame([line | {"difference": line["K=8's prefix"] - line["control's prefix"]} for line in lines], **{"control's prefix": "tokens", "K=8's prefix": "tokens", "difference": "tokens"})


def scatter(file: RowFile) -> pd.DataFrame:
    """One line a full launch: what it scored, and against the first launch of the control."""
    rows, control = file.of("decode"), prefix_of(file.of("decode"), f"{CONTROL}-1")
    lines = [{"launch": f"{r['arm']}-{r['launch']}", "arm ": r["arm"], "what differs": r["change"] or "-", "mean accepted prefix": prefix_of(rows, f"{r['arm']}-{r['launch']}"),
              "change": prefix_of(rows, f"{r['arm']}-{r['launch']}") - control, "TPF": tpf_of(rows, f"{r['arm']}-{r['launch']}"), "tok/s": rate_of(rows, f"{r['arm']}-{r['launch']}"),
              "adapter": r["adapter_digest"][:8], "distance": r["distance"], "seconds": r["seconds"]} for r in ended(file) if not r["arm"].startswith("only_")]
    return frame(lines, **{"mean accepted prefix": "tokens", "tok/s": "median"})


def numbers(file: RowFile) -> dict[str, Found]:
    """Every metric that the criteria name, beside those that all training Acts share."""
    rows, first, out = file.of("decode"), f"{CONTROL}-1", {}
    for arm in (CONTROL, OTHER):
        same = [r["state_digest"] for r in ended(file) if r["arm"] == arm and r["change"] in ("", "launched again")]
        out[f"distinct_{arm}"] = len(set(same)), None, None, len(same)
    same = changed(file)["same bits"].tolist()
    out |= {f"differs_{name}": (None if kept is None else int(not kept), None, None, 1) for name, kept in zip(INGREDIENTS, same)}
    for arm in ("B_k6", "C_k8", "D_curr"):
        out |= {f"prefix_{arm}": more(rows, f"{arm}-1", first, prefix_of), f"tpf_{arm}": more(rows, f"{arm}-1", first, tpf_of), f"rate_{arm}": ratio(rows, f"{arm}-1", first)}
    seeds, rounding = ([first, *group(file, CONTROL, c)] for c in ("seed", "rounding"))
    out |= {"band_seed": spread(rows, seeds), "band_rounding": spread(rows, rounding), "band_again": spread(rows, group(file, CONTROL, "again"))}
    apart = pairs(file)["difference"]
    out["signs"] = int(min((apart > 0).sum(), (apart < 0).sum())), None, None, len(apart)
    out["launch_share"] = launch_share(prefixes(rows, seeds))
    return out
