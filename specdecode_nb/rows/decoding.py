"""Schemas of rows about decoding: generations, single forwards, faults and audits, and the published rows that an import brings."""
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .types import Count, Row, Seconds, Share

WHOLE = "_all"  # ends the name of an arm whose drafter reads all of the context instead of its window


class DecodeRow(Row):
    """One generation of one arm on one prompt. Times are seconds of wall clock, the lists have one entry a cycle.

    ``section`` tells apart the parts of an Act that decode the same arm. Lists that only some arms have are empty elsewhere:
    the width a policy asked for, the entropy it saw, and (top-1 probability, margin) of each speculative proposal. What was
    done to the target or to the machine, where something was: its precision, the relative change of its weights, the condition.
    Imported rows keep the rate and the acceptance that were published with them, since the times there are rounded; they have no
    ``ar_looped_fraction`` where none was published.
    """

    kind: Literal["decode"]
    arm: str
    prompt_id: str
    category: str
    section: str = ""
    precision: str = ""
    condition: str = ""
    change: Seconds = 0.0
    repeat: Count
    prompt_tokens: Annotated[int, Field(ge=1)]
    tokens: Count
    wall_seconds: Annotated[float, Field(gt=0)]
    prefill_seconds: Seconds
    draft_seconds: Seconds
    verify_seconds: Seconds
    commit_seconds: Seconds
    forwards: Count
    cycles: Count
    accepted_per_cycle: list[Count]
    committed_per_cycle: list[Count]
    width_per_cycle: list[Count] = []
    entropy_per_cycle: list[Seconds] = []
    confidence_per_cycle: list[list[list[Share]]] = []
    ar_looped_fraction: Share | None
    identical_to_ar: bool | None
    first_divergence: Count | None
    divergence_gap_ulps: Annotated[float, Field(ge=0)] | None
    tokens_per_second: Annotated[float, Field(gt=0)] | None = None
    acceptance_rate: Share | None = None
    replay_forwards: Count = 0
    recorded_bytes: Count = 0
    rewind_steps_per_cycle: list[Count] = []
    rewind_fallbacks_per_cycle: list[Count] = []
    drafted_per_cycle: list[Count] = []
    handed_per_cycle: list[Count] = []
    draft_seconds_per_cycle: list[Seconds] = []
    seconds_per_cycle: list[Seconds] = []

    @model_validator(mode="after")
    def counts_agree(self):
        for name in ("rewind_steps_per_cycle", "rewind_fallbacks_per_cycle", "drafted_per_cycle", "handed_per_cycle", "draft_seconds_per_cycle",
                     "seconds_per_cycle", "width_per_cycle", "confidence_per_cycle"):
            if len(getattr(self, name)) not in (0, self.cycles):
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {self.cycles} cycles")
        for name in ("accepted_per_cycle", "committed_per_cycle"):
            if len(getattr(self, name)) != self.cycles:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {self.cycles} cycles")
        if self.cycles and sum(self.committed_per_cycle) != self.tokens:
            raise ValueError(f"committed_per_cycle sums to {sum(self.committed_per_cycle)}, tokens is {self.tokens}")
        if self.tokens_per_second is not None and abs(self.tokens_per_second * self.wall_seconds - self.tokens) > 1e-3 * self.tokens:
            raise ValueError(f"tokens_per_second {self.tokens_per_second} is not {self.tokens} tokens in {self.wall_seconds} s")
        if any(len(pair) != 2 for cycle in self.confidence_per_cycle for pair in cycle):
            raise ValueError("confidence_per_cycle needs pairs of top-1 probability and margin")
        return self


class TieRow(Row):
    """How often the two best logits of one prompt and its continuation are exactly equal."""

    kind: Literal["tie"]
    prompt_id: str
    dtype: str
    positions: Annotated[int, Field(ge=1)]
    exact_ties: Count
    gap_median: float
    gap_p05: float


class LoopsRow(Row):
    """How far plain decoding of one prompt repeats itself."""

    kind: Literal["loops"]
    prompt_id: str
    category: str
    tokens_length: Count
    looped_fraction: Share
    distinct_ratio: Share


class CommitRow(Row):
    """Commits of the first ``kept`` of ``width`` verified rows by one scheme, one entry a repetition; milliseconds of wall clock.

    ``state_error`` is the largest difference from the states that the scheme per_token_states kept, relative to their largest entry.
    """

    kind: Literal["commit"]
    scheme: str
    width: Annotated[int, Field(ge=1)]
    kept: Annotated[int, Field(ge=1)]
    prompt_ids: list[str]
    commit_ms: list[Seconds]
    verify_ms: list[Seconds]
    state_error: list[Seconds]
    rewind_fallbacks: list[Count]
    rewind_steps: Count
    recorded_bytes: Count

    @model_validator(mode="after")
    def lists_agree(self):
        lengths = {len(getattr(self, name)) for name in ("prompt_ids", "commit_ms", "verify_ms", "state_error", "rewind_fallbacks")}
        if len(lengths) > 1 or not self.prompt_ids or self.kept > self.width:
            raise ValueError(f"lists of {sorted(lengths)} repetitions, {self.kept} of {self.width} rows kept")
        return self


class GatesRow(Row):
    """Gates of one layer along one prompt and its plain continuation, one entry a position and head: ln(beta / (1 - beta)) and -ln g."""

    kind: Literal["gates"]
    prompt_id: str
    layer: Count
    positions: Annotated[int, Field(ge=1)]
    heads: Annotated[int, Field(ge=1)]
    write_logit: list[float]
    fade: list[Seconds]
    beta_is_one: Count
    decay_is_zero: Count

    @model_validator(mode="after")
    def lists_agree(self):
        if not len(self.write_logit) == len(self.fade) == self.positions * self.heads:
            raise ValueError(f"{len(self.write_logit)} and {len(self.fade)} gates for {self.positions} positions of {self.heads} heads")
        return self


class RewindRow(Row):
    """One block rewound from its end to ``kept`` rows under one guard; ``limit`` None is none, ``relative_error`` None is not finite."""

    kind: Literal["rewind"]
    prompt_id: str
    width: Annotated[int, Field(ge=1)]
    kept: Count
    guard: Literal["both", "beta"]
    limit: Annotated[float, Field(gt=0)] | None
    steps: Count
    fallbacks: Count
    relative_error: Seconds | None


class WideDraftRow(Row):
    """First proposals at one context: ``proposals`` by slot, ``target`` the plain continuation, the two lists by slot of the first four."""

    kind: Literal["wide_draft"]
    prompt_id: str
    category: str
    context_tokens: Annotated[int, Field(ge=1)]
    at: Count
    condition: Literal["decoder", "aligned", "redraw"]
    draft_width: Annotated[int, Field(ge=4)]
    proposals: list[Count]
    target: list[Count]
    top1: list[Share]
    max_abs_logit_diff_vs_d4: list[Seconds]

    @model_validator(mode="after")
    def lists_agree(self):
        if len(self.proposals) != self.draft_width or len(self.top1) != 4 or len(self.max_abs_logit_diff_vs_d4) != 4 or len(self.target) < 4:
            raise ValueError(f"{len(self.proposals)} proposals, {len(self.target)} target tokens and {len(self.top1)} first slots for a draft of {self.draft_width}")
        return self


class CostRow(Row):
    """One forward of ``width`` rows at a fixed context; seconds of wall clock, the commit apart (0 for a draft, which contains it)."""

    kind: Literal["cost"]
    prompt_id: str
    context_tokens: Annotated[int, Field(ge=1)]
    repeat: Count
    forward: Literal["verify", "draft"]
    width: Annotated[int, Field(ge=1)]
    seconds: Annotated[float, Field(gt=0)]
    commit_seconds: Seconds


class CycleCostRow(Row):
    """What the cycles of one fixed width took on one prompt of the warm-up; seconds of wall clock without prefill, width 0 a plain step."""

    kind: Literal["cycle_cost"]
    width: Count
    prompt_id: str
    cycles: Annotated[int, Field(ge=1)]
    seconds: Annotated[float, Field(gt=0)]


class TextEffectRow(Row):
    """What the precision of the target does to its text on one prompt, drafting apart.

    ``agree_with_full`` counts the leading tokens of its plain continuation that are those of full precision, of ``tokens``;
    ``argmax_agreement`` is the share of positions along the continuation of full precision where its best token is the same.
    ``nats_per_token``: of ``held_out_tokens`` of held-out text, the first of them given.
    """

    kind: Literal["text_effect"]
    precision: str
    prompt_id: str
    category: str
    tokens: Annotated[int, Field(ge=1)]
    agree_with_full: Count
    argmax_agreement: Share
    held_out_tokens: Annotated[int, Field(ge=2)]
    nats_per_token: Seconds

    @model_validator(mode="after")
    def within(self):
        if self.agree_with_full > self.tokens:
            raise ValueError(f"{self.agree_with_full} of {self.tokens} tokens agree")
        return self


class ChainRow(Row):
    """Counts of one sampled generation from a table, where every probability is known (:mod:`specdecode_nb.fit`).

    ``p`` and ``q`` [V][V] are the distributions that target and drafter draw from, by the last token; ``counts`` [V * V * V] pairs of tokens
    after a third; ``judged_after`` [V] drafts that were judged, by the token before. ``sound`` is False for a control that breaks a rule.
    """

    kind: Literal["chain"]
    case: str
    rule: Literal["gumbel", "match", "rejection"]
    sound: bool
    tokens: Annotated[int, Field(ge=1)]
    k: Annotated[int, Field(ge=2)]
    p: list[list[Share]]
    q: list[list[Share]]
    counts: list[Count]
    judged_after: list[Count]
    accepted: Count

    @model_validator(mode="after")
    def lists_agree(self):
        vocab = len(self.judged_after)
        if {len(self.p), len(self.q), *map(len, self.p + self.q)} != {vocab} or len(self.counts) != vocab**3:
            raise ValueError(f"{len(self.counts)} counts and tables of {len(self.p)} and {len(self.q)} rows for {vocab} tokens")
        if self.accepted > sum(self.judged_after):
            raise ValueError(f"{self.accepted} of {sum(self.judged_after)} judged drafts accepted")
        return self


class MuseumRow(Row):
    """One fault of the museum, put into the source by one edit of the function ``where``: the checks that saw it and what the first of them said.

    ``fault`` is the id of its public ``report``; that of the decoder as it is, "none", is caught by nothing.
    """

    kind: Literal["museum"]
    fault: str
    report: str
    wrong: str
    where: str
    old: str
    new: str
    caught_by: list[str]
    symptom: str


class IdentityRow(Row):
    """One generation held against another on the same model, bit for bit.

    ``against``: "plain" (ordinary plain decoding) or "plain_exact" (plain decoding on the grid of :mod:`specdecode_nb.exact`).
    ``states`` counts the numbers in all caches at the end that were compared, None where the texts differ and nothing can be.
    """

    kind: Literal["identity"]
    model: str
    blas: str
    dtype: str
    arm: str
    against: Literal["plain", "plain_exact"]
    prompt_id: str
    tokens: Annotated[int, Field(ge=1)]
    accepted: Count
    token_mismatches: Count
    first_divergence: Count | None
    states: Count | None
    state_mismatches: Count | None
    seconds: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def agree(self):
        if (self.token_mismatches > 0) != (self.first_divergence is not None) or (self.states is None) != (self.state_mismatches is None):
            raise ValueError(f"{self.token_mismatches} mismatches, first divergence {self.first_divergence}, {self.states} states, {self.state_mismatches} of them others")
        return self


class WidthNoiseRow(Row):
    """The same text forwarded by one row and by ``width`` rows at a time: how far the logits of its positions lie apart."""

    kind: Literal["width_noise"]
    blas: str
    dtype: str
    prompt_id: str
    width: Annotated[int, Field(ge=2)]
    positions: Annotated[int, Field(ge=1)]
    rows_changed: Count
    largest_change: Seconds
    median_change: Seconds
    largest_logit: Seconds
    flips: Count


class AuditRow(Row):
    """One drafted text, every position of it judged by the plain target along that same text.

    ``flip_positions``: where the plain target prefers another token, ``flip_gaps`` by how much (logits). ``exact_ties``: positions whose two
    best logits are equal. ``rows_changed`` of ``rows_compared`` committed rows of verify forwards had other bits than the plain row.
    """

    kind: Literal["audit"]
    blas: str
    dtype: str
    arm: str
    family: str
    width: Count
    prompt_id: str
    category: str
    positions: Annotated[int, Field(ge=1)]
    exact_ties: Count
    flip_positions: list[Count]
    flip_gaps: list[Seconds]
    first_divergence: Count | None
    rows_compared: Count
    rows_changed: Count
    largest_change: Seconds

    @model_validator(mode="after")
    def lists_agree(self):
        if len(self.flip_positions) != len(self.flip_gaps) or self.rows_changed > self.rows_compared:
            raise ValueError(f"{len(self.flip_positions)} flips with {len(self.flip_gaps)} gaps, {self.rows_changed} of {self.rows_compared} rows changed")
        return self


class DivergenceRow(Row):
    """One divergence as a published audit has it: where, and the gap of the contested logits in units in the last place."""

    kind: Literal["divergence"]
    section: str
    arm: str
    position: Count
    gap_in_ulps: Seconds


class SummaryRow(Row):
    """Numbers of one object, or one line, of a published file of aggregates: ``table`` names the file, ``path`` the place in it."""

    kind: Literal["summary"]
    table: str
    path: str
    values: dict[str, bool | int | float | str | list[int | float | None] | None]


ROWS: dict[str, type[Row]] = {"decode": DecodeRow, "tie": TieRow, "loops": LoopsRow, "commit": CommitRow, "gates": GatesRow, "rewind": RewindRow,
                             "wide_draft": WideDraftRow, "cost": CostRow, "cycle_cost": CycleCostRow, "text_effect": TextEffectRow, "museum": MuseumRow,
                             "identity": IdentityRow, "width_noise": WidthNoiseRow, "audit": AuditRow, "divergence": DivergenceRow, "summary": SummaryRow,
                             "chain": ChainRow}
