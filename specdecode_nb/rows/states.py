"""The kinds of rows of Act IV-N, beside those of :mod:`.rows`: alphabets, checks, launches, scores, and what the states tell by themselves."""
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .types import Count, Row, Seconds, Share

Some = Annotated[int, Field(ge=1)]


class AlphabetRow(Row):
    """The alphabet of one seed. Entropies in bits over the vocabulary and over training text; ``sizes`` and ``shares`` by state of E: its tokens,
    and how much of the text they are. ``kept``: share of the text whose tokens have the same state in D. ``examples``: most frequent tokens of each state."""

    kind: Literal["alphabet"]
    seed: Count
    states: Some
    vocabulary: Some
    entropy: dict[str, Seconds]
    text_entropy: dict[str, Seconds]
    sizes: list[Count]
    shares: list[Share]
    kept: Share
    examples: list[list[str]]

    @model_validator(mode="after")
    def lists_agree(self):
        if not len(self.sizes) == len(self.shares) == len(self.examples) == self.states or sum(self.sizes) != self.vocabulary:
            raise ValueError(f"{len(self.sizes)} sizes that sum to {sum(self.sizes)} for {self.states} states and {self.vocabulary} tokens")
        return self


class StateCheckRow(Row):
    """One check of Stage 0: what must be so, and what was found."""

    kind: Literal["state_check"]
    check: str
    found: str
    passed: bool


class StateLaunchRow(Row):
    """One training run. ``losses`` and ``norms`` have one entry a step. Stage 1 learns one batch by heart and counts ``hidden`` and ``right`` positions of it.

    ``digest`` is that of all trained tensors, ``target_digest`` of the target afterwards. ``stopped`` says why a run ended early.
    """

    kind: Literal["state_launch"]
    stage: Annotated[int, Field(ge=1, le=2)]
    condition: str
    arm: str
    seed: Count
    steps: Some
    trained: Some
    losses: list[Seconds]
    norms: list[Seconds]
    hidden: Count
    right: Count
    seconds: Seconds
    digest: str
    target_digest: str
    stopped: str | None

    @model_validator(mode="after")
    def lists_agree(self):
        if len(self.losses) != len(self.norms) or self.stopped is None and len(self.losses) != self.steps or self.right > self.hidden:
            raise ValueError(f"{len(self.losses)} losses and {len(self.norms)} norms for {self.steps} steps, {self.right} of {self.hidden} right")
        return self


class StateTableRow(Row):
    """A readout without a model on the held-out windows of one seed at one noise level: the most frequent training token of the state shown. Fields as in a score row."""

    kind: Literal["state_table"]
    condition: str
    seed: Count
    level: Share
    hidden: Some
    right: list[Count]
    nats: list[Seconds]

    @model_validator(mode="after")
    def lists_agree(self):
        if not 0 < len(self.right) == len(self.nats) or max(self.right) > self.hidden:
            raise ValueError(f"{len(self.right)} counts and {len(self.nats)} losses, {self.hidden} hidden positions")
        return self


class StateScoreRow(StateTableRow):
    """One launch on the held-out windows of its seed at one noise level: of ``hidden`` corrupted positions those read out right, and their mean
    cross-entropy (nats), one entry a window."""

    kind: Literal["state_score"]
    arm: str


class StateToldRow(Row):
    """What the states of one condition tell the target itself on held-out windows, without training; one entry a window, ``state_bits`` a row."""

    kind: Literal["state_told"]
    condition: Literal["D", "E"]
    seed: Count
    rows: Some
    state_bits: list[Seconds]
    right: list[Count]
    right_within: list[Count]

    @model_validator(mode="after")
    def lists_agree(self):
        if not 0 < len(self.state_bits) == len(self.right) == len(self.right_within) or max(self.right + self.right_within) > self.rows:
            raise ValueError(f"{len(self.state_bits)}, {len(self.right)} and {len(self.right_within)} windows of {self.rows} rows")
        return self


ROWS: dict[str, type[Row]] = {"alphabet": AlphabetRow, "state_check": StateCheckRow, "state_launch": StateLaunchRow, "state_score": StateScoreRow,
                             "state_table": StateTableRow, "state_told": StateToldRow}
