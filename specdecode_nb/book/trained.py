"""Tables and metrics of the training Acts from their rows: what a launch learned and what it is worth in decoding.

Intervals of teacher-forced numbers resample held-out text with all its blocks; those of decoding resample prompts. Slot j is the j-th
speculative one (slot 1 is offset +2 of Act IV-U4 and later).
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from . import replicates
from .measures import RESAMPLES, Found, acceptance_of, beyond_one_ulp, more, over_prompts, prefix_of, rate_of, ratio, tpf_of
from .palette import label
from .sweep import arm_rows, frame
from .verdicts import paying_slots

UNTRAINED, WIDTHS = "untrained", (4, 6, 8)  # as the protocols name them
NEIGHBOURS = 3  # windows of about one document


# --- teacher-forced ---

def forced(file: RowFile, arm: str, launch: int = 1, step: int | None = None) -> dict:
    """The judged checkpoint of a launch, the last one unless ``step`` says another."""
    mine = [r for r in file.of("forced") if (r["arm"], r["launch"]) == (arm, launch) and step in (None, r["step"])]
    return max(mine, key=lambda r: r["step"])


def hits(row: dict) -> np.ndarray:
    """Agreement as bool [blocks, slots]."""
    return np.array([[c == "1" for c in m] for m in row["matches"]])


def slot(n: int) -> Callable[[dict], np.ndarray]:
    return lambda row: hits(row)[:, n - 1].astype(float)


def mean_slots(k: int) -> Callable[[dict], np.ndarray]:
    """Agreement averaged over the slots of width ``k``, by block."""
    return lambda row: hits(row)[:, : k - 1].mean(axis=1)


def prefix(k: int) -> Callable[[dict], np.ndarray]:
    """Slots that agree before the first that does not, by block."""
    return lambda row: np.cumprod(hits(row)[:, : k - 1], axis=1).sum(axis=1).astype(float)


def distance(row: dict, k: int) -> float:
    """Mean L1 distance a row of blocks of ``k``, the seed row's zero included, as published."""
    return float(sum(row["l1_by_slot"][: k - 1])) / k


def distance_k4(row: dict) -> np.ndarray:
    return np.array(row["l1_k4"])


def over_windows(values: np.ndarray, windows: Sequence[int]) -> Found:
    """Mean of ``values`` [blocks] and its interval. Windows are consecutive pieces of documents, so NEIGHBOURS of them are resampled together."""
    at = np.array(windows) // NEIGHBOURS
    sums = np.array([[values[at == n].sum(), (at == n).sum()] for n in np.unique(at)])
    n, value = len(sums), float(values.mean())
    if thin := criteria.few(n, unit="document"):
        return value, None, None, n, thin
    drawn = sums[st.draws(n, n * RESAMPLES).reshape(RESAMPLES, n)].sum(axis=1)
    return value, *st.interval(drawn[:, 0] / drawn[:, 1]), n


def losses(file: RowFile, *arms: str) -> dict[int, float]:
    """Training loss by step of the first launch of each arm."""
    return {e[0]: e[1] for r in file.of("launch") if r["arm"] in arms and r["launch"] == 1 for e in r["loss"]}


def gain(one: dict, other: dict, measure: Callable[[dict], np.ndarray]) -> Found:
    """``one`` less ``other`` on the same blocks."""
    return over_windows(measure(one) - measure(other), one["windows"])


def slots(file: RowFile, rows: Sequence[dict], names: Sequence[str] | None = None) -> pd.DataFrame:
    """One line a judged checkpoint: agreement by slot, prefix at K=4, distance of the distributions at K=4."""
    lines = []
    for i, r in enumerate(rows):
        by_slot = hits(r).mean(axis=0)
        lines.append({"adapter": names[i] if names else r["arm"], "step": r["step"]} | {f"slot {j}": float(v) for j, v in enumerate(by_slot, 1)}
                     | {"prefix at K=4": float(prefix(4)(r).mean()), "validation TV": float(distance_k4(r).mean())})
    return frame(lines, **{"validation TV": "L1 per row"})


# --- decoding ---

def decoding(rows: Sequence[dict]) -> pd.DataFrame:
    """Acceptance, accepted prefix, tokens a forward and speed by arm, speed over the faster plain arm with its interval."""
    control, lines = st.plain_arm(rows), []
    for e in st.summarise(rows):
        value, low, high, *_ = ratio(rows, e["arm"], control)
        lines.append({"arm": e["arm"], "acceptance": None if e["arm"].startswith("ar") else acceptance_of(rows, e["arm"]), "mean accepted prefix": e["mean accepted prefix"], "TPF": tpf_of(rows, e["arm"]), "tok/s": e["tok/s"],
                      "x plain": value, "low": low, "high": high})
    table = frame(lines, **{"mean accepted prefix": "tokens", "acceptance": "all prompts", "TPF": "all prompts", "tok/s": "median", "low": "95 %", "high": "95 %"})
    table["arm"] = [label(e["arm"]) if e["arm"].startswith("ar") else e["arm"] for e in lines]
    return table


def survivals(rows: Sequence[dict], arms: Sequence[str], k: int = 4) -> dict[str, list[float]]:
    return {arm: st.survival(st.pooled(arm_rows(rows, arm), "accepted_per_cycle"), k - 1) for arm in arms}


def best_of(rows: Sequence[dict], arms: Sequence[str], statistic: Callable) -> str:
    return max(arms, key=lambda arm: statistic(rows, arm))


def integrity(file: RowFile) -> dict[str, Found]:
    """What every training Act must keep; a digest that changed would have voided the rows."""
    launches = file.of("launch")
    trained = launches[0]["trained"]
    return {"seed_rows_changed": (sum(r["seed_rows_changed"] for r in file.of("forced")), None, None, sum(r["seed_rows_compared"] for r in file.of("forced"))),
            "foreign": (sum(r["foreign"] for r in launches), None, None, len(launches)),
            "beyond_one_ulp": beyond_one_ulp(file),
            "share": (100 * trained / (trained + file.provenance["target"]["parameters"]), None, None, trained)}


# --- IV-U ---

def of_act4u(file: RowFile) -> dict[str, Found]:
    rows, at = file.of("decode"), {arm: forced(file, arm) for arm in (UNTRAINED, "trained_k2", "shuffled_k2", "trained_k4", "shuffled_k4")}
    out = integrity(file)
    out |= {"k2_gain": gain(at["trained_k2"], at[UNTRAINED], slot(1)), "k2_shuffled_gain": gain(at["shuffled_k2"], at[UNTRAINED], slot(1)),
            "k2_apart": gain(at["trained_k2"], at["shuffled_k2"], slot(1)), "k4_gain": gain(at["trained_k4"], at[UNTRAINED], mean_slots(4)),
            "k4_agreement": over_windows(mean_slots(4)(at["trained_k4"]), at["trained_k4"]["windows"]),
            "k4_slot2_apart": gain(at["trained_k4"], at["shuffled_k4"], slot(2))}
    for kind in ("trained", "replay"):
        arm = best_of(rows, [f"{kind}_k{k}" for k in (2, 4, 8)], tpf_of)
        out[f"{kind}_tpf"] = over_prompts(arm_rows(rows, arm), lambda rs, arm=arm: tpf_of(rs, arm))
        fast = best_of(rows, [f"{kind}_k{k}" for k in (2, 4, 8)], rate_of)
        out[f"{kind}_speed"] = ratio(rows, fast, st.plain_arm(rows))
    return out


# --- IV-U3 ---

def of_act4u3(file: RowFile) -> dict[str, Found]:
    rows, points = file.of("decode"), sorted({r["step"] for r in file.of("launch") if r["arm"] == "curve"})
    first, last = points[0], points[-1]
    early, late, arms = forced(file, "curve", 1, first), forced(file, "curve", 1, last), [f"step{p}_k4" for p in (first, last)]
    again = [r["state_digest"] for r in file.of("launch") if (r["arm"], r["step"]) == ("curve", first)]
    return integrity(file) | {
        "again_agreement": (abs(float((mean_slots(4)(forced(file, "curve", 2, first)) - mean_slots(4)(early)).mean())), None, None, early["blocks"]),
        "again_digests": (len(set(again)), None, None, len(again)),
        "agreement_gain": gain(late, early, mean_slots(4)), "tv_change": gain(late, early, distance_k4),
        "acceptance_gain": more(rows, arms[1], arms[0], acceptance_of), "tpf_gain": more(rows, arms[1], arms[0], tpf_of),
        "rate_gain": ratio(rows, arms[1], arms[0]), "speed": ratio(rows, arms[1], st.plain_arm(rows)),
        "k2_acceptance_gain": more(rows, f"step{last}_k2", f"step{first}_k2", acceptance_of),
        "passed_on": over_prompts([r for r in rows if r["arm"] in arms], lambda rs: rate_of(rs, arms[1]) / rate_of(rs, arms[0]) - acceptance_of(rs, arms[1]) / acceptance_of(rs, arms[0]))
        if acceptance_of(rows, arms[0]) else (None,)}


def curve(file: RowFile, k: int = 4) -> pd.DataFrame:
    """One line a checkpoint, from loss to clock."""
    rows = file.of("decode")
    lines = []
    for r in sorted((r for r in file.of("forced") if (r["arm"], r["launch"]) == ("curve", 1)), key=lambda r: r["step"]):
        arm = f"step{r['step']}_k{k}"
        lines.append({"step": r["step"], "validation TV": distance(r, k), "agreement": float(mean_slots(k)(r).mean()), "acceptance": acceptance_of(rows, arm),
                      "mean accepted prefix": prefix_of(rows, arm), "TPF": tpf_of(rows, arm), "tok/s": rate_of(rows, arm), "x plain": rate_of(rows, arm) / rate_of(rows, st.plain_arm(rows))})
    return frame(lines, **{"validation TV": "L1 per row", "mean accepted prefix": "tokens", "tok/s": "median"})


# --- IV-U4 ---

def cycles(rows: Sequence[dict]) -> dict[int, float]:
    """Milliseconds of a cycle by width, each adapter trained at it."""
    return {k: next(e["cycle"] for e in st.stages(arm_rows(rows, f"horizon{k}_k{k}"))) for k in WIDTHS}


def paying(rows: Sequence[dict]) -> list[int]:
    """Slots of K=8 that return more than their milliseconds would bring without them."""
    return paying_slots(survivals(rows, ["horizon8_k8"], 8)["horizon8_k8"], cycles(rows))


def of_act4u4(file: RowFile) -> dict[str, Found]:
    rows = file.of("decode")
    start, at = forced(file, "start"), {k: forced(file, f"horizon{k}") for k in WIDTHS}
    errors, fours = [e["error"] for e in st.cost_model(rows)], [f"{arm}_k4" for arm in ("start", *(f"horizon{k}" for k in WIDTHS))]
    best4 = best_of(rows, fours, rate_of)
    out = integrity(file) | {name: gain(row, start, slot(j)) for name, row, j in (("k8_slot4", at[8], 4), ("k8_slot5", at[8], 5), ("k4_slot4", at[4], 4))}
    return out | {"cost_error": (float(np.mean(np.abs(errors))), None, None, len(errors)), "cost_one_sided": (max(sum(e > 0 for e in errors), sum(e < 0 for e in errors)) / len(errors), None, None, len(errors)),
                  "k8_tpf": more(rows, "horizon8_k8", best_of(rows, fours, tpf_of), tpf_of), "k8_speed": ratio(rows, "horizon8_k8", st.plain_arm(rows)),
                  "k8_over_k4": ratio(rows, "horizon8_k8", best4), "k6_over_k4": ratio(rows, "horizon6_k6", best4),
                  "k8_at_k4": more(rows, "horizon8_k4", "horizon4_k4", prefix_of), "late_paying": (sum(j > 3 for j in paying(rows)), None, None, max(WIDTHS) - 1 - 3)}


def best_eight(file: RowFile) -> dict[str, tuple[str, Found]]:
    """The best K=8 against the best K=4, whichever adapter it is: the decode arm and its difference (TPF) or ratio (speed)."""
    rows = file.of("decode")
    arms = {k: [f"{arm}_k{k}" for arm in ("start", *(f"horizon{w}" for w in WIDTHS))] for k in (4, 8)}
    by_tpf, by_rate = ({k: best_of(rows, some, measure) for k, some in arms.items()} for measure in (tpf_of, rate_of))
    return {"tpf": (by_tpf[8], more(rows, by_tpf[8], by_tpf[4], tpf_of)), "rate": (by_rate[8], ratio(rows, by_rate[8], by_rate[4]))}


NUMBERS = {"act4u": of_act4u, "act4u3": of_act4u3, "act4u4": of_act4u4, "act4u5": lambda file: integrity(file) | replicates.numbers(file)}


def outcomes(file: RowFile) -> list[criteria.Outcome]:
    """Every criterion of the Act judged on these rows. Raises BadInput if they were measured under other rules."""
    return criteria.load(file.act).judged(file, NUMBERS[file.act])


# --- what the pages share ---

TRAINED = {"overfit": "run {run}", "masked_launch": "{arm}", "reverse_launch": "{arm}", "state_launch": "stage {stage}, {condition} {arm}", "launch": "{arm}-{launch}"}
"""Kinds of rows, of any Act, that say what was trained, and how the launch is called."""


def manifest(file: RowFile, last: int = 20) -> pd.DataFrame:
    """One line a trained adapter: launch, seed, steps, weights, mean loss of its last steps, seconds, and the beginning of the digest of its tensors."""
    lines = []
    for r in file.rows:
        if r["kind"] in TRAINED:
            losses = [e[1] for e in r["loss"]] if "loss" in r else r["losses"] if "losses" in r else np.add(r["ar"], r["diff"])
            lines.append({"launch": TRAINED[r["kind"]].format(**r), "seed": r.get("seed") or r["recipe"].get("data_seed") or r["recipe"]["seed"], "steps": r.get("steps", r.get("step")), "trained": r["trained"],
                          "last losses": float(np.mean(losses[-last:])) if len(losses) else None, "seconds": r["seconds"],
                          **({"sha256": r["adapter_digest"][:16]} if "adapter_digest" in r else {"blake2b": r["digest"][:16]})})
    return frame(lines, trained="numbers", **{"last losses": f"mean of {last}"})


FORMATS = {f"slot {j}": ".3f" for j in range(1, 8)} | dict.fromkeys(("prefix at K=4", "validation TV", "agreement", "acceptance", "mean accepted prefix", "TPF", "x plain", "low", "high", "sd", "sd low", "sd high"), ".3f") | {
    "tok/s": ".1f", "change": "+.3f", "launch's share": ".2f", "against the controls": "+.3f", "rows a step": ".0f", "used at K=4": ".0f", "launch": ".5f", "prompt": ".5f", "launch x prompt": ".5f", "difference": "+.3f", "control's prefix": ".3f", "K=8's prefix": ".3f", "distance": ".1e", "relative distance": ".1e", "seconds": ".0f"}


def fmt(table: pd.DataFrame) -> dict[str, str]:
    """The formats of the columns that ``table`` has."""
    return {c: f for c, f in FORMATS.items() if c in table}


def scale(page) -> None:
    """How long was trained here, in one sentence."""
    config, first = page.rows.config, page.rows.of("forced")[0]
    for name, value, unit in (("steps", config["steps"], "steps"), ("draft_rows", config["draft_rows"], "rows"), ("windows", config["windows"], "windows"), ("rate", config["rate"], "learning rate"), ("judged_blocks", first["blocks"], "blocks"),
                              ("judged_windows", len(set(first["windows"])), "windows"), ("decoded_prompts", len(config["prompts"]), "prompts"), ("decoded_tokens", config["tokens"], "tokens")):
        page.number(f"here_{name}", value, "g" if name == "rate" else ",d", unit, page.rows.name)
    page.say("Launches take [[here_steps]] steps of [[here_draft_rows]] draft rows over [[here_windows]] windows of text, at a learning rate of [[here_rate]]. Agreement is judged on [[here_judged_blocks]] blocks in [[here_judged_windows]] held-out windows, "
             "decoding on [[here_decoded_prompts]] prompts with [[here_decoded_tokens]] new tokens each." + (" **This is a reduced run**, shorter than the protocol asks for." if config["reduced"] else ""))


def closing(page) -> None:
    """The closing table of the measured part, and how many of its hypotheses hold."""
    rules, found = criteria.load(page.act), outcomes(page.rows)
    table = criteria.table(found)
    page.show(table[["id", "hypothesis", "rule", "published number", "measured here", "verdict here"]], "measured-closing", "Hypotheses by rules fixed before the rows: rule, published and measured number with its 95 % interval, and our verdict. "
              "In the files also the published verdicts and what differs for each", sources=[page.published, rules, page.rows], full=table)
    page.tally(found, "here")
