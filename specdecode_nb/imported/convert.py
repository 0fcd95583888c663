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
from ..rows import Count, Seconds, Share, Strict
from .stream import REMEDY

Name = Annotated[str, Field(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.+@-]{0,63}\z")]
Words = Annotated[str, Field(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.+@:/ -]{0,79}\z")]
QUOTED = 60  # letters of a prompt by which audits name it
STAGES = ("proposal", "verify", "commit", "overhead", "unattributed")
RECORDED = ("tokens_per_forward", "mean_committed_per_cycle", "cycle_seconds", "unattributed_seconds", "cycles", "full_blocks", *(f"{s}_ms_per_cycle" for s in STAGES))
RENAMED = {"proposal_seconds": "draft_seconds", "draft": "draft_width", "verify": "verify_width", "max_tokens": "tokens_length"}
NOT_KEPT = {"kind", "prompt", "k", "trace", "tokens_per_forward"}
WHERE_KNOWN = {"context_length", "draft_width", "verify_width", "divergence_tokens"}


class Stage(Strict):
    verify_tokens: Count
    offered: Count


class Cycle(Strict):
    """One cycle of a trace, of an adaptive or confidence-recording arm or of a decoupled one."""

    k: Count | None = None
    offered: Count | None = None
    draft_top1: list[Share] = []
    draft_margin: list[Share] = []
    stages: list[Stage] | None = None
    cycle_ms: Seconds | None = None
    unused_draft_tokens: Count | None = None


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
    return f"{category}-{digest(prompt)}" if context is None else f"context-{context}"


def digest(prompt: str) -> str:
    return hashlib.sha256(prompt[:QUOTED].encode("utf-8", "replace")).hexdigest()[:8]


def decode_row(value: Any, section: str, where: str, number: int, sample: bool = False) -> dict:
    """One published row as a row of kind ``decode``; ``section`` names the session. Plain rows have no cycles here. A trace that a ``sample`` cut is left out.

    Raises BadInput.
    """
    at = f"rows[{number}]"
    r = fit(Decoded, value, where, at)
    plain = r.kind == "ar"
    row = {
        "kind": "decode",
        "section": section,
        "prompt_id": prompt_id(r.category, r.prompt, r.context_length),
        **renamed(r, NOT_KEPT, WHERE_KNOWN),
        "cycles": 0 if plain else r.cycles,
        "divergence_gap_ulps": None,
        "recorded": {k: v for k in RECORDED if type(v := value.get(k)) in (int, float)},
    }
    if r.trace and (len(r.trace) == r.cycles or not sample):
        if len(r.trace) != r.cycles:
            raise BadInput(f"{where} has {len(r.trace)} entries at {at}.trace for {r.cycles} cycles; {REMEDY}.")
        row |= traced([fit(Cycle, c, where, f"{at}.trace[{n}]") for n, c in enumerate(r.trace)])
    elif not plain and r.k and r.kind in ("uno", "refine") and round(sum(r.accepted_per_cycle) / max(1, (r.k - 1) * r.cycles), 4) == r.acceptance_rate:
        row["offered_per_cycle"] = [r.k - 1] * r.cycles
    return check_row(row, where, at)


def renamed(read: Strict, left: set[str], where_known: set[str] = frozenset()) -> dict:
    """The fields that our schema has, by its names; those of ``where_known`` only where they are given."""
    fields = {RENAMED.get(k, k): getattr(read, k) for k in type(read).model_fields if k not in left}
    return {k: v for k, v in fields.items() if v is not None or k not in where_known}


def traced(cycles: list[Cycle]) -> dict:
    """The lists by cycle that a trace adds to its row."""
    if cycles[0].stages is not None:
        stages = [c.stages or [] for c in cycles]
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
    own = {k: v for k in Audited.model_fields if (v := getattr(a, k)) is not None and k != "prompt"}
    return {"kind": "divergence", "section": section, **own} | ({} if a.prompt is None else {"prompt_digest": digest(a.prompt)})


def with_gaps(rows: Iterable[dict], audit: Iterable[dict]) -> None:
    """Write the audited gap into every divergent row of ``rows`` that exactly one gap of the ``audit`` fits."""
    gaps: dict[tuple, set[float]] = {}
    for a in audit:
        fields = ("repeat", "prompt_digest", "position") if "prompt_digest" in a else ("category", "max_tokens", "position", "ar_token", "spec_token")
        gaps.setdefault((a["arm"], *map(a.get, fields)), set()).add(a["gap_in_ulps"])
    for row in rows:
        if row["identical_to_ar"] is False:
            arm, category, at, pair = row["arm"], row["category"], row["first_divergence"], row.get("divergence_tokens", [None, None])
            keys = ((arm, row["repeat"], row["prompt_id"].rsplit("-", 1)[1], at), (arm, category, row["tokens"], at, *pair), (arm, category, None, at, *pair))
            found = next((gaps[key] for key in keys if key in gaps), set())
            if len(found) == 1:
                row["divergence_gap_ulps"] = min(found)


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
    return check_row({"kind": "loops", "prompt_id": prompt_id(r.category, r.prompt), **renamed(r, {"prompt"})}, where, f"rows[{number}]")


# --- aggregates ---

def summaries(value: Any, table: str, path: str = "") -> Iterable[dict]:
    """Every object of a file of aggregates as a row of kind ``summary``: its numbers, flags and short names under ``values``, where it was in ``path``."""
    if isinstance(value, dict):
        named = {k: v for k, v in value.items() if len(k) <= 90 and printable(k) and k != "prompt"}
        plain = {k: v for k, v in named.items() if is_plain(v) or isinstance(v, list) and v and all(isinstance(x, (int, float, type(None))) for x in v)}
        if plain:
            yield {"kind": "summary", "table": table, "path": path, "values": plain}
        inside: Iterable[tuple] = ((k, v) for k, v in named.items() if k not in plain)
    else:
        inside = enumerate(value) if isinstance(value, list) else ()
    for k, v in inside:
        yield from summaries(v, table, f"{path}.{k}".lstrip("."))


def is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float)) or isinstance(value, str) and short(value)


def printable(text: str) -> bool:
    return text.isascii() and text.isprintable() and "/" not in text and "\\" not in text


def short(text: str) -> bool:
    """A name, number or date; sentences, prompts and paths are not copied."""
    return len(text) <= 64 and printable(text) and text.count(" ") < 5
