"""Tables and metrics of Act VI from its rows: what sampling emits, what each rule accepts, what it costs.

Speed is end to end against the faster plain arm of the same section, which samples as the drafted arm does. Intervals resample prompts.
Acceptance is that of a draft which was judged: all before it in its cycle were accepted.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .. import criteria, fit
from .. import statistics as st
from ..records import RowFile
from .measures import Found, over_prompts, ratio, section
from .sweep import arm_rows, frame

RULES = ("gumbel", "match", "rejection")
DRAFTERS = {"uno": "uno_k4", "dflash": "dflash_b8"}
ARMS = tuple(f"{rule}_{arm}" for arm in DRAFTERS.values() for rule in RULES)
HOT, CONTROL = "t1", "control: noise used twice"
PROMISED = ("greedy", *RULES[:2])


def rule_of(arm: str) -> str:
    """The rule of an arm: gumbel, match or rejection; greedy for a drafted arm without one, "" for plain decoding."""
    return next((rule for rule in RULES if arm.startswith(f"{rule}_")), "" if arm.startswith("ar") else "greedy")


def sections(file: RowFile) -> list[str]:
    return list(st.by(file.of("decode"), "section"))


def drafted(file: RowFile) -> list[dict]:
    return [r for r in file.of("decode") if r["cycles"]]


# --- counts on the table ---

def chain(row: dict) -> dict:
    """One ``chain`` row held against closed forms: the joint fit of pairs, and what was accepted."""
    vocab = len(row["judged_after"])
    p, q = np.array(row["p"]), np.array(row["q"])
    told = fit.chi_square(np.array(row["counts"]).reshape((vocab,) * 3), p)
    found = fit.distance(row["judged_after"], row["accepted"], fit.acceptance(p, q, row["rule"]))
    return {"case": row["case"], "sound": row["sound"], "pairs": sum(row["counts"]), "chi-square": told["statistic"], "df": told["df"], "z of the fit": told["z"],
            "judged": found["judged"], "accepted": found["accepted"] / found["judged"], "closed form": found["expected"] / found["judged"], "z of acceptance": found["z"]}


def chains(file: RowFile) -> pd.DataFrame:
    """One line a case, sound ones and controls."""
    return frame([chain(r) for r in file.of("chain")])


# --- acceptance and speed on the target ---

def judged(rows: Sequence[dict]) -> tuple[int, int]:
    """Drafts that were judged, and accepted ones; the last cycle of a row is left out, since the budget may have cut it."""
    cycles = [(o, a) for r in rows for o, a in zip(r["offered_per_cycle"][:-1], r["accepted_per_cycle"][:-1])]
    return sum(min(o, a + 1) for o, a in cycles), sum(a for _, a in cycles)


def accepted(rows: Sequence[dict]) -> float:
    reached, kept = judged(rows)
    return kept / reached


def difference(rows: Sequence[dict], one: str, other: str) -> Found:
    """Acceptance of arm ``one`` less that of ``other``."""
    return over_prompts([r for r in rows if r["arm"] in (one, other)], lambda rs: accepted(arm_rows(rs, one)) - accepted(arm_rows(rs, other)))


def arms(file: RowFile) -> pd.DataFrame:
    """By section and arm: throughput, speed over the faster plain arm of the section, acceptance, tokens a cycle, rows that are the plain tokens."""
    entries = []
    for name in sections(file):
        rows = section(file, name)
        control = st.plain_arm(rows)
        for arm, group in st.by(rows, "arm").items():
            drafts = bool(group[0]["cycles"])
            speed = dict(zip(("x plain", "low", "high"), ratio(rows, arm, control))) if arm != control else {"x plain": 1.0, "low": None, "high": None}
            promise = rule_of(arm) in PROMISED
            entries.append({"section": name, "arm": arm, "tok/s": st.median_of(group, st.tokens_per_second), **speed,
                            "accepted": accepted(group) if drafts else None, "tokens per cycle": sum(r["tokens"] for r in group) / sum(r["cycles"] for r in group) if drafts else None,
                            "identical": f"{sum(r['identical_to_ar'] for r in group)} of {len(group)}" if promise else "-"})
    table = frame(entries, **{"tok/s": "median", "low": "95 %", "high": "95 %"})
    table["arm"] = [e["arm"] for e in entries]
    return table


def stage_costs(file: RowFile, name: str) -> pd.DataFrame:
    """Median milliseconds a cycle by stage, for every drafted arm of a section."""
    return frame(st.stages(section(file, name)), **{s: "ms" for s in (*st.STAGES, "cycle")}, **{"outside forwards": "%"})


# --- criteria ---

def not_plain(rows: Sequence[dict], rule: str) -> Found:
    mine = [r for r in rows if rule_of(r["arm"]) == rule]
    return sum(not r["identical_to_ar"] for r in mine), None, None, len(mine)


def numbers(file: RowFile) -> dict[str, Found]:
    """Every metric of data/criteria/act6.json that these rows can give."""
    rows, told = file.of("decode"), chains(file)
    sound, control = told[told["sound"]], told[~told["sound"]]
    hot, warm, greedy, filtered = section(file, HOT), section(file, "t0.6"), section(file, "greedy"), section(file, "filtered")
    plain = [r | {"arm": f"plain_{r['section']}"} for r in rows if r["arm"] == "ar"]
    out: dict[str, Found] = {f"not_plain_{rule}": not_plain(drafted(file), rule) for rule in PROMISED}
    out["not_plain_filtered"] = not_plain(filtered, "gumbel")
    out |= {"worst_fit": (float(sound["z of the fit"].max()), None, None, len(sound)), "control_fit": (float(control["z of the fit"].min()), None, None, len(control)),
            "worst_acceptance": (float(sound["z of acceptance"].abs().max()), None, None, len(sound))}
    for name, arm in DRAFTERS.items():
        out |= {f"rejection_less_match_{name}": difference(hot, f"rejection_{arm}", f"match_{arm}"),
                f"gumbel_less_match_{name}": difference(hot, f"gumbel_{arm}", f"match_{arm}"),
                f"rejection_less_gumbel_{name}": difference(hot, f"rejection_{arm}", f"gumbel_{arm}"),
                f"gumbel_over_plain_{name}": ratio(hot, f"gumbel_{arm}", st.plain_arm(hot)),
                f"gumbel_over_plain_warm_{name}": ratio(warm, f"gumbel_{arm}", st.plain_arm(warm)),
                f"rejection_over_gumbel_{name}": ratio(hot, f"rejection_{arm}", f"gumbel_{arm}")}
        apart = [r | {"arm": "greedy"} for r in arm_rows(greedy, arm)] + [r | {"arm": HOT} for r in arm_rows(hot, f"gumbel_{arm}")]
        out[f"greedy_less_hot_{name}"] = difference(apart, "greedy", HOT)
    out |= {"sampled_over_greedy_plain": ratio(plain, f"plain_{HOT}", "plain_greedy"), "filtered_over_sampled_plain": ratio(plain, "plain_filtered", f"plain_{HOT}")}
    return out


def outcomes(file: RowFile) -> list[criteria.Outcome]:
    """Every criterion judged on these rows. Raises BadInput if they were measured under other rules."""
    return criteria.load("act6").judged(file, numbers)
