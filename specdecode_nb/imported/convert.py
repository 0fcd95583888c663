"""Rows of the published project as rows of our schema (:mod:`specdecode_nb.rows`); its schemas are in section 7 of the description of the system.

What the published files have more finely than ours would be recomputed stays in the row, under ``tokens_per_second``,
``acceptance_rate`` and ``recorded``: times there are rounded to a tenth of a millisecond, so a rate worked out again from them would
miss the printed digit. Prompts are not copied: a prompt is named by its category and a digest of its first 60 letters, all that the
audits quote.
"""
from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from ..errors import BadInput
from ..records import check_row
from ..rowtypes import Count, Seconds, Share, Strict
from .stream import REMEDY

Name = Annotated[str, Field(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.+@-]{0,63}\z")]
Words = Annotated[str, Field(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.+@:/ -]{0,79}\z")]
QUOTED = 60  # letters of a prompt by which audits name it
STAGES = ("proposal", "verify", "commit", "overhead", "unattributed")
RECORDED = (
    "tokens_per_forward",
    "mean_committed_per_cycle",
    "cycle_seconds",
    "unattributed_seconds",
    "cycles",
    "full_blocks",
    *(f"{s}_ms_per_cycle" for s in STAGES),
)


class Decoded(Strict):
    """One published decode row: the fields that are read, with their types."""

    arm: Name
    kind: Name
    repeat: Count
    category: Name
    prompt: str
    prompt_tokens: Annotated[int, Field(ge=1)]
    tokens: Count
    forwards: Count
    forward_tokens: Count = 0
    cycles: Count
    wall_seconds: Annotated[float, Field(gt=0)]
    prefill_seconds: Seconds
    tokens_per_second: Annotated[float, Field(gt=0)]
    tokens_per_forward: Seconds
    acceptance_rate: Share
    proposal_seconds: Seconds
    verify_seconds: Seconds
    commit_seconds: Seconds
    overhead_seconds: Seconds
    replay_forwards: Count
    ar_looped_fraction: Share | None = None
    ar_distinct_ratio: Share | None = None
    identical_to_ar: bool | None
    first_divergence: Count | None
    divergence_tokens: list[int] | None = None
    accepted_per_cycle: list[Count]
    committed_per_cycle: list[Count]
    entropy_per_cycle: list[Seconds] = []
    k: Annotated[int, Field(ge=1)] | None = None
    draft: Annotated[int, Field(ge=1)] | None = None
    verify: Annotated[int, Field(ge=1)] | None = None
    context_length: Count | None = None
    trace: list[dict] | None = None

    @model_validator(mode="after")
    def agrees(self):
        if abs(self.tokens_per_second * self.wall_seconds - self.tokens) > 1e-3 * self.tokens:
            raise ValueError(f"tokens_per_second {self.tokens_per_second} is not {self.tokens} tokens in {self.wall_seconds} s")
        return self


def fit(model: type[Strict], value: Any, where: str, at: str) -> Any:
    """``value`` as ``model``. Raises BadInput, one sentence about the first thing that does not fit."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = at + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise BadInput(f"{where} does not fit the published schema at {field}: {message[0].lower() + message[1:]}; {REMEDY}.") from None


def prompt_id(category: str, prompt: str, context: int | None = None) -> str:
    """``category-digest``; a context of one length is one prompt."""
    if context is not None:
        return f"context-{context}"
    return f"{category}-{hashlib.sha256(prompt[:QUOTED].encode('utf-8', 'replace')).hexdigest()[:8]}"


def decode_row(value: Any, section: str, where: str, number: int, sample: bool = False) -> dict:
    """One published row as a row of kind ``decode``; ``section`` names the session. Plain rows have no cycles here. A trace that a ``sample`` cut is left out.

    Raises BadInput.
    """
    r = fit(Decoded, value, where, f"rows[{number}]")
    plain = r.kind == "ar"
    row = {
        "kind": "decode",
        "arm": r.arm,
        "section": section,
        "prompt_id": prompt_id(r.category, r.prompt, r.context_length),
        "category": r.category,
        "repeat": r.repeat,
        "prompt_tokens": r.prompt_tokens,
        "tokens": r.tokens,
        "wall_seconds": r.wall_seconds,
        "prefill_seconds": r.prefill_seconds,
        "draft_seconds": r.proposal_seconds,
        "verify_seconds": r.verify_seconds,
        "commit_seconds": r.commit_seconds,
        "overhead_seconds": r.overhead_seconds,
        "forwards": r.forwards,
        "forward_tokens": r.forward_tokens,
        "cycles": 0 if plain else r.cycles,
        "accepted_per_cycle": r.accepted_per_cycle,
        "committed_per_cycle": r.committed_per_cycle,
        "entropy_per_cycle": r.entropy_per_cycle,
        "replay_forwards": r.replay_forwards,
        "ar_looped_fraction": r.ar_looped_fraction,
        "ar_distinct_ratio": r.ar_distinct_ratio,
        "identical_to_ar": r.identical_to_ar,
        "first_divergence": r.first_divergence,
        "divergence_gap_ulps": None,
        "tokens_per_second": r.tokens_per_second,
        "acceptance_rate": r.acceptance_rate,
        "recorded": {k: v for k in RECORDED if type(v := value.get(k)) in (int, float)},
    }
    row |= {
        name: v
        for name, v in (("context_length", r.context_length), ("draft_width", r.draft), ("verify_width", r.verify), ("divergence_tokens", r.divergence_tokens))
        if v is not None
    }
    if r.trace and (len(r.trace) == r.cycles or not sample):
        if len(r.trace) != r.cycles:
            raise BadInput(f"{where} has {len(r.trace)} entries at rows[{number}].trace for {r.cycles} cycles; {REMEDY}.")
        row |= traced(r.trace, where, f"rows[{number}].trace")
    elif not plain and r.k and r.kind in ("uno", "refine") and round(sum(r.accepted_per_cycle) / max(1, (r.k - 1) * r.cycles), 4) == r.acceptance_rate:
        row["offered_per_cycle"] = [r.k - 1] * r.cycles
    return check_row(row, where, f"rows[{number}]")


class Cycle(Strict):
    """One cycle of a trace, of an adaptive or confidence-recording arm or of a decoupled one."""

    k: Count | None = None
    offered: Count | None = None
    draft_top1: list[Share] = []
    draft_margin: list[Share] = []
    stages: list[dict] | None = None
    cycle_ms: Seconds | None = None
    unused_draft_tokens: Count | None = None


class Stage(Strict):
    verify_tokens: Count
    offered: Count


def traced(trace: list[dict], where: str, at: str) -> dict:
    """The lists by cycle that a trace adds to its row."""
    cycles = [fit(Cycle, c, where, f"{at}[{n}]") for n, c in enumerate(trace)]
    if cycles[0].stages is not None:
        stages = [[fit(Stage, s, where, f"{at}[{n}].stages[{m}]") for m, s in enumerate(c.stages or [])] for n, c in enumerate(cycles)]
        return {
            "offered_per_cycle": [sum(s.offered for s in c) for c in stages],
            "stages_per_cycle": [len(c) for c in stages],
            "verified_per_cycle": [sum(s.verify_tokens for s in c) for c in stages],
            "cycle_ms_per_cycle": [c.cycle_ms for c in cycles],
            "unused_per_cycle": [c.unused_draft_tokens for c in cycles],
        }
    found = {"width_per_cycle": [c.k for c in cycles], "offered_per_cycle": [c.offered for c in cycles]}
    if any(c.draft_top1 for c in cycles):
        found["confidence_per_cycle"] = [[list(pair) for pair in zip(c.draft_top1, c.draft_margin)] for c in cycles]
    return {name: values for name, values in found.items() if None not in values}


# --- audits: the gap of the contested logits of every row that left plain decoding ---

class Audited(Strict):
    """An entry of a divergence audit (7.3), or of the one inside a file of Act IV-U6 (7.4)."""

    arm: Name
    position: Count
    gap_in_ulps: Seconds
    category: Name | None = None
    max_tokens: int | None = None
    ar_token: int | None = None
    spec_token: int | None = None
    exact_tie: bool | None = None
    prompt: str | None = None
    repeat: int | None = None


def audit_row(value: Any, section: str, where: str, number: int) -> dict:
    """One entry of an audit as a row of kind ``divergence``."""
    a = fit(Audited, value, where, f"audit[{number}]")
    row = {"kind": "divergence", "section": section, **a.model_dump(include=set(Audited.model_fields) - {"prompt"}, exclude_none=True)}
    if a.prompt is not None:
        row["prompt_digest"] = prompt_id("", a.prompt).lstrip("-")
    return row


def with_gaps(rows: Iterable[dict], audit: Iterable[dict]) -> None:
    """Write the audited gap into every divergent row of ``rows`` that exactly one gap of the ``audit`` fits."""
    gaps: dict[tuple, set[float]] = {}
    for a in audit:
        key = (
            (a["arm"], a["repeat"], a["prompt_digest"], a["position"])
            if "prompt_digest" in a
            else (a["arm"], a.get("category"), a.get("max_tokens"), a["position"], a.get("ar_token"), a.get("spec_token"))
        )
        gaps.setdefault(key, set()).add(a["gap_in_ulps"])
    for row in rows:
        if row["identical_to_ar"] is False:
            pair = row.get("divergence_tokens", [None, None])
            found = gaps.get((row["arm"], row["repeat"], row["prompt_id"].rsplit("-", 1)[1], row["first_divergence"])) or next(
                (g for length in (row["tokens"], None) if (g := gaps.get((row["arm"], row["category"], length, row["first_divergence"], *pair)))), set()
            )
            if len(found) == 1:
                row["divergence_gap_ulps"] = next(iter(found))


# --- aggregates ---

def summaries(value: Any, table: str, path: str = "") -> Iterable[dict]:
    """Every object of a file of aggregates as a row of kind ``summary``: its numbers, flags and short names under ``values``, where it was in ``path``."""
    if isinstance(value, dict):
        named = {k: v for k, v in value.items() if len(k) <= 90 and printable(k) and k != "prompt"}
        plain = {
            k: v
            for k, v in named.items()
            if v is None
            or isinstance(v, (bool, int, float))
            or isinstance(v, str)
            and short(v)
            or isinstance(v, list)
            and v
            and all(isinstance(x, (int, float)) or x is None for x in v)
        }
        if plain:
            yield {"kind": "summary", "table": table, "path": path, "values": plain}
        for k, v in named.items():
            if k not in plain:
                yield from summaries(v, table, f"{path}.{k}".lstrip("."))
    elif isinstance(value, list):
        for n, v in enumerate(value):
            yield from summaries(v, table, f"{path}.{n}".lstrip("."))


def printable(text: str) -> bool:
    return text.isascii() and text.isprintable() and "/" not in text and "\\" not in text


def short(text: str) -> bool:
    """A name, number or date; sentences, prompts and paths are not copied."""
    return len(text) <= 64 and printable(text) and text.count(" ") < 5


class Looped(Strict):
    """An entry of main_degeneration.json."""

    max_tokens: Count
    category: Name
    prompt: str
    looped_fraction: Share
    distinct_ratio: Share
    acceptance_rate: Share
    tokens_per_second: Seconds
    mean_accepted: Seconds


def loops_row(value: Any, where: str, number: int) -> dict:
    """One prompt's loop statistics as a row of kind ``loops``, with what K=4 accepted on it."""
    r = fit(Looped, value, where, f"rows[{number}]")
    return check_row(
        {
            "kind": "loops",
            "prompt_id": prompt_id(r.category, r.prompt),
            "category": r.category,
            "tokens_length": r.max_tokens,
            "looped_fraction": r.looped_fraction,
            "distinct_ratio": r.distinct_ratio,
            "acceptance_rate": r.acceptance_rate,
            "tokens_per_second": r.tokens_per_second,
            "mean_accepted": r.mean_accepted,
        },
        where,
        f"rows[{number}]",
    )
