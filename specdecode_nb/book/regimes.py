"""The rest of the DFlash Act from its rows: where drafting pays, by precision, prompt length, generated length, target and machine.

A factor is a ratio of medians of tokens per second over prompts, end to end unless it says decode. Plain decoding is the arm
``ar``, the drafted arm is the other one. Intervals resample prompts with all their rows.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from ..rows.decoding import WHOLE
from ..statistics import only
from .measures import Found, acceptance_of, gathered, over_prompts, section
from .sweep import arm_rows, frame

Rows = Sequence[dict]


def plain(rows: Rows) -> list[dict]:
    return arm_rows(rows, "ar")


def drafted(rows: Rows) -> list[dict]:
    return [r for r in rows if r["arm"] != "ar" and not r["arm"].endswith(WHOLE)]


def without_window(rows: Rows) -> list[dict]:
    """Plain decoding and the drafter that reads all of the context, under the name of the other; empty if its rows are missing."""
    whole = [r | {"arm": r["arm"].removesuffix(WHOLE)} for r in rows if r["arm"].endswith(WHOLE)]
    return plain(rows) + whole if whole else []


def speed(rows: Rows, measure: Callable[[dict], float] = st.tokens_per_second) -> float:
    return st.median_of(rows, measure)


def factor(rows: Rows, measure: Callable[[dict], float] = st.tokens_per_second) -> float:
    """Drafted over plain."""
    return speed(drafted(rows), measure) / speed(plain(rows), measure)


def accepted(rows: Rows) -> float:
    """Accepted over drafted of the drafted arm, its cycles pooled."""
    return acceptance_of(rows, drafted(rows)[0]["arm"])


def values(rows: Rows, name: str) -> list:
    """What ``name`` takes, in order of first appearance."""
    return list(st.by(rows, name))


# --- tables ---

def precision(file: RowFile) -> pd.DataFrame:
    """By precision: both speeds, what drafting is worth there, what the precision is worth without drafting, and both together."""
    rows = section(file, "precision")
    full = values(rows, "precision")[0]
    start = speed(plain(only(rows, precision=full)))
    entries = []
    for name, group in st.by(rows, "precision").items():
        f = over_prompts(group, factor)
        entries.append({"precision": name, "prompts": f[3], "plain": speed(plain(group)), "drafted": speed(drafted(group)), "drafting factor": f[0], "low": f[1],
                        "high": f[2], "precision factor": speed(plain(group)) / start, "combined": speed(drafted(group)) / start, "acceptance": accepted(group)})
    return frame(entries, plain="tok/s", drafted="tok/s", low="95 %", high="95 %", acceptance="accepted / drafted")


def texts(file: RowFile) -> pd.DataFrame:
    """By precision: how much of the text is that of full precision, with and without drafting, and what held-out text costs."""
    entries = []
    for name, group in st.by(file.of("text_effect"), "precision").items():
        rows = drafted(only(section(file, "precision"), precision=name))
        entries.append({"precision": name, "prompts": len(group), "argmax agreement": st.mean([r["argmax_agreement"] for r in group]),
                        "tokens as at full precision": st.mean([r["agree_with_full"] for r in group]), "tokens": group[0]["tokens"],
                        "held-out text": held_out(group), "drafted texts unlike plain": st.audit(rows)["divergences"]})
    return frame(entries, **{"held-out text": "nats per token", "tokens as at full precision": "mean"})


def by_value(rows: Rows, name: str, title: str, measure: Callable[[dict], float] = st.tokens_per_second) -> list[dict]:
    """One entry a value of the field ``name``: speeds, the factor with its interval, acceptance."""
    entries = []
    for value, group in st.by(rows, name).items():
        f = over_prompts(group, lambda rs: factor(rs, measure))
        entries.append({title: value, "prompts": f[3], "plain": speed(plain(group), measure), "drafted": speed(drafted(group), measure), "factor": f[0], "low": f[1],
                        "high": f[2], "acceptance": accepted(group), "mean accepted prefix": st.mean(st.pooled(drafted(group), "accepted_per_cycle"))})
    return entries


UNITS = {"plain": "tok/s", "drafted": "tok/s", "low": "95 %", "high": "95 %", "acceptance": "accepted / drafted", "mean accepted prefix": "tokens"}


def contexts(file: RowFile, whole: bool = False) -> pd.DataFrame:
    """By prompt length: decode speeds without prefill, their factor, the factor end to end and the prefill of both arms;
    of the drafter as it is or, with ``whole``, without its window."""
    rows = section(file, "context")
    rows = without_window(rows) if whole else rows
    entries = by_value(rows, "prompt_tokens", "prompt", st.decode_tokens_per_second)
    for e in entries:
        group = only(rows, prompt_tokens=e["prompt"])
        e |= {"factor end to end": factor(group), "prefill, plain": speed(plain(group), prefill), "prefill, drafted": speed(drafted(group), prefill)}
    return frame(sorted(entries, key=lambda e: e["prompt"]), **UNITS | {"prompt": "tokens", "prefill, plain": "s", "prefill, drafted": "s"})


def lengths(file: RowFile) -> pd.DataFrame:
    """By generated length: speeds, factor, acceptance, and how far plain decoding repeats itself."""
    rows = section(file, "length")
    entries = [e | {"loop fraction": loops(only(rows, tokens=e["new tokens"]))} for e in by_value(rows, "tokens", "new tokens")]
    return frame(entries, **UNITS)


def modified(file: RowFile) -> pd.DataFrame:
    """By training steps on other text: the relative change of the weights, speeds, factor, acceptance."""
    rows = section(file, "modified")
    entries = [{"steps": e.pop("steps"), "change": only(rows, tuning_steps=s)[0]["change"], **e}
               for s, e in zip(values(rows, "tuning_steps"), by_value(rows, "tuning_steps", "steps"))]
    return frame(entries, **UNITS | {"change": "of the weights' norm"})


def machine(file: RowFile) -> pd.DataFrame:
    """By condition: speeds, each over the quiet ones, the factor and the factor over the quiet one."""
    rows = section(file, "machine")
    quiet, entries = only(rows, condition="quiet"), by_value(rows, "condition", "condition")
    for e in entries:
        group = only(rows, condition=e["condition"])
        e |= {"plain / quiet": speed(plain(group)) / speed(plain(quiet)), "drafted / quiet": speed(drafted(group)) / speed(drafted(quiet)),
              "factor / quiet": factor(group) / factor(quiet)}
    return frame(entries, **UNITS)


def varied(file: RowFile) -> pd.DataFrame:
    """Prompt and generated length varied apart, in one table; each line has what the other was."""
    def of_prompts(long: pd.DataFrame, name: str) -> pd.DataFrame:
        return long.rename(columns={"prompt": "prompt tokens"}).assign(**{"new tokens": section(file, "context")[0]["tokens"], "varied": name,
                                                                          "prefill": long["prefill, drafted"] / long["prefill, plain"]})

    grown, long = lengths(file), of_prompts(contexts(file), "prompt")
    if without_window(section(file, "context")):
        long = pd.concat([long, of_prompts(contexts(file, whole=True), "prompt, no window")])
    usual = round(st.mean([r["prompt_tokens"] for r in section(file, "length")]))
    grown = grown.assign(**{"prompt tokens": usual, "varied": "output"})
    columns = ["varied", "prompt tokens", "new tokens", "prompts", "plain", "drafted", "factor", "low", "high", "factor end to end", "acceptance",
               "prefill", "loop fraction"]
    return frame(pd.concat([long, grown])[[*columns]].to_dict("records"), **UNITS | {"prefill": "drafted / plain"})


def text_effects(file: RowFile) -> pd.DataFrame:
    """By precision: both speeds, acceptance, and what the precision and the drafting do to the text."""
    both = precision(file)[["precision", "prompts", "plain", "drafted", "acceptance"]].merge(texts(file).drop(columns="prompts"), on="precision")
    return frame(both.to_dict("records"), **UNITS | {"held-out text": "nats per token", "tokens as at full precision": "mean"})


# --- metrics of the criteria ---

def outcomes(rules: criteria.Criteria, file: RowFile) -> list[criteria.Outcome]:
    """Every criterion judged on these rows. Raises BadInput if the rows were measured under other rules."""
    return rules.judged(file, metrics)


def metrics(file: RowFile) -> dict[str, Found]:
    """Every metric that the rows can give, by the name the criteria use."""
    return gathered(file, of_precision, of_text, of_contexts, of_lengths, of_modified, of_machine)


def of_precision(file: RowFile) -> dict[str, Found]:
    rows = section(file, "precision")
    full, *lower = values(rows, "precision")
    at = lambda rs, name: only(rs, precision=name)  # noqa: E731
    found = {"drafting_full": over_prompts(at(rows, full), factor)}
    for name in lower:
        found[f"drafting_{name}"] = over_prompts(at(rows, name), factor)
        found[f"quantising_{name}"] = over_prompts(rows, lambda rs, name=name: speed(plain(at(rs, name))) / speed(plain(at(rs, full))))
        found[f"combined_{name}"] = over_prompts(rows, lambda rs, name=name: speed(drafted(at(rs, name))) / speed(plain(at(rs, full))))
        # the quantisation factor cancels: what is left is drafting there over drafting at full precision
        found[f"interaction_{name}"] = over_prompts(rows, lambda rs, name=name: factor(at(rs, name)) / factor(at(rs, full)))
        _, low, high, n, *few = found[f"interaction_{name}"]
        found[f"interaction_{name}_has_one"] = int(low is not None and low <= 1 <= high), None, None, n, *few
        found[f"acceptance_{name}_less_full"] = over_prompts(rows, lambda rs, name=name: accepted(at(rs, name)) - accepted(at(rs, full)))
    own = drafted(rows)
    found["drafted_unlike_plain"] = st.audit(own)["divergences"], None, None, len(own)
    return found


def held_out(rows: Rows) -> float:
    """Nats per token over the held-out tokens of ``rows``; the first token of each text is given."""
    return sum(r["nats_per_token"] * (r["held_out_tokens"] - 1) for r in rows) / sum(r["held_out_tokens"] - 1 for r in rows)


def of_text(file: RowFile) -> dict[str, Found]:
    rows = file.of("text_effect")
    full, *lower = values(rows, "precision")
    found = {}
    for name in lower:
        found[f"agreement_{name}"] = over_prompts(only(rows, precision=name), lambda rs: st.mean([r["argmax_agreement"] for r in rs]))
        found[f"nats_{name}_less_full"] = over_prompts(rows, lambda rs, name=name: held_out(only(rs, precision=name)) - held_out(only(rs, precision=full)))
    return found


def prefill(row: dict) -> float:
    return row["prefill_seconds"]


def of_contexts(file: RowFile) -> dict[str, Found]:
    # a text at all its lengths is one piece of evidence
    rows = [r | {"prompt_id": str(r["which"])} for r in section(file, "context")]
    short, long = min(values(rows, "prompt_tokens")), max(values(rows, "prompt_tokens"))
    at = lambda rs, n: only(rs, prompt_tokens=n)  # noqa: E731
    decode = lambda rs: factor(rs, st.decode_tokens_per_second)  # noqa: E731
    found = {"context_longest": over_prompts(at(rows, long), decode),
             "prefill_longest": over_prompts(at(rows, long), lambda rs: speed(drafted(rs), prefill) / speed(plain(rs), prefill))}
    if without_window(rows):
        found |= {"whole_acceptance": over_prompts(at(rows, long), lambda rs: accepted(without_window(rs)) - accepted(rs)),
                  "whole_longest": over_prompts(at(rows, long), lambda rs: decode(without_window(rs))),
                  "whole_prefill": over_prompts(at(rows, long), lambda rs: speed(drafted(without_window(rs)), prefill) / speed(plain(rs), prefill))}
    if short < long:
        found["context_ratio"] = over_prompts(rows, lambda rs: decode(at(rs, long)) / decode(at(rs, short)))
        found["context_acceptance"] = over_prompts(rows, lambda rs: accepted(at(rs, long)) - accepted(at(rs, short)))
    return found


def loops(rows: Rows) -> float:
    return st.mean([r["ar_looped_fraction"] for r in plain(rows)])


def of_lengths(file: RowFile) -> dict[str, Found]:
    rows = section(file, "length")
    short, long = min(values(rows, "tokens")), max(values(rows, "tokens"))
    if short == long:
        return {}
    at = lambda rs, n: only(rs, tokens=n)  # noqa: E731
    return {"length_ratio": over_prompts(rows, lambda rs: factor(at(rs, long)) / factor(at(rs, short))),
            "length_acceptance": over_prompts(rows, lambda rs: accepted(at(rs, long)) - accepted(at(rs, short))),
            "length_loops": over_prompts(rows, lambda rs: loops(at(rs, long)) - loops(at(rs, short)))}


def of_modified(file: RowFile) -> dict[str, Found]:
    rows = section(file, "modified")
    most = max(values(rows, "tuning_steps"))
    at = lambda rs, steps: only(rs, tuning_steps=steps)  # noqa: E731
    return {"modified_acceptance": over_prompts(rows, lambda rs: accepted(at(rs, most)) - accepted(at(rs, 0))),
            "modified_ratio": over_prompts(rows, lambda rs: factor(at(rs, most)) / factor(at(rs, 0))),
            "modified_factor": over_prompts(at(rows, most), factor)}


def of_machine(file: RowFile) -> dict[str, Found]:
    rows = section(file, "machine")
    at = lambda rs, name: only(rs, condition=name)  # noqa: E731
    found = {}
    for name in ("low_priority", "busy_core"):
        found[f"{name}_plain"] = over_prompts(rows, lambda rs, name=name: speed(plain(at(rs, name))) / speed(plain(at(rs, "quiet"))))
        found[f"{name}_factor"] = over_prompts(rows, lambda rs, name=name: factor(at(rs, name)) / factor(at(rs, "quiet")))
    return found
