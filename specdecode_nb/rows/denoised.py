"""The kinds of rows of Acts I and III, beside those of :mod:`.rows`: launches with their held-out counts, and sampled canvases."""
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .types import Count, Row, Seconds, Share, Strict

Some = Annotated[int, Field(ge=1)]


class Tally(Strict):
    """Canvas rows by whether they were changed and whether the readout was right; ``step`` or ``t`` says when or at which noise level."""

    step: Count = 0
    t: Share = 0.0
    rows: Some
    changed: Count
    changed_right: Count
    unchanged_right: Count

    @model_validator(mode="after")
    def within(self):
        if self.changed_right > self.changed or self.unchanged_right > self.rows - self.changed:
            raise ValueError(f"{self.changed_right} of {self.changed} changed and {self.unchanged_right} of {self.rows - self.changed} "
                             "unchanged rows are right")
        return self


class Level(Tally):
    """One noise level: ``nats`` of the trained readout; base_*: the target itself, in place and as next token (which the last row has not)."""

    nats: Seconds
    base_right: Count
    base_next_right: Count
    base_next_rows: Some


class Fill(Strict):
    """One canvas filled by the sampler: mean confidence and entropy (nats) of the rows still open, an entry a forward, and rows right at the end."""

    sure: list[Share]
    vague: list[Seconds]
    rows: Some
    right: Count


class OverfitRow(Row):
    """One run of Act I at one seed. ``losses`` has one entry a step, ``curve`` counts over training, ``levels`` over noise levels at the end.

    ``curve`` and ``levels`` are of the batch that was learned, ``unseen`` of other texts. ``nats_off`` and ``nats_on``: next-token cross-entropy of
    held-out windows (nats a token) with the adapter off and on, ``greedy_off`` and ``greedy_on`` tokens decoded so. ``bits_changed``: numbers among the logits
    of an ordinary forward with the adapter off that are not the target's own.
    """

    kind: Literal["overfit"]
    run: str
    seed: Count
    steps: Some
    trained: Some
    losses: list[Seconds]
    curve: list[Tally]
    levels: list[Level]
    unseen: Tally
    nats_off: list[Seconds]
    nats_on: list[Seconds]
    greedy_off: list[Count]
    greedy_on: list[Count]
    fills: list[Fill]
    bits_changed: Count
    digest: str
    target_before: str
    target_after: str
    seconds: Seconds

    @model_validator(mode="after")
    def lists_agree(self):
        if len(self.nats_off) != len(self.nats_on) or len(self.losses) != self.steps or not self.curve or self.curve[-1].step != self.steps:
            raise ValueError(f"{len(self.losses)} losses and counts up to step {self.curve[-1].step if self.curve else None} for {self.steps} steps")
        return self


class Masked(Strict):
    """Held-out windows at one noise level, one entry a window: of ``hidden`` and ``visible`` canvas rows, those read out right, visible ones where the next
    token is named (of those that have a next one in the canvas), nats a hidden row, and how far the distributions move when the visible tokens are scrambled (L1, 0 to 2)."""

    t: Share
    hidden: Some
    visible: Count
    hidden_right: list[Count]
    visible_right: list[Count]
    visible_next: list[Count]
    visible_next_of: list[Count]
    names_mask: list[Count]
    nats: list[Seconds]
    canvas_l1: list[Annotated[float, Field(ge=0, le=2.001)]]

    @model_validator(mode="after")
    def lists_agree(self):
        lists = (self.hidden_right, self.visible_right, self.visible_next, self.visible_next_of, self.names_mask, self.nats, self.canvas_l1)
        if len({*map(len, lists)}) > 1 or not self.nats or max(self.hidden_right) > self.hidden or max(self.visible_right) > self.visible:
            raise ValueError(f"lists of {sorted(map(len, lists))} windows with {self.hidden} hidden and {self.visible} visible rows")
        return self


class Health(Strict):
    """The state of a launch at one step. ``ar``: next-token cross-entropy of the held-out windows, adapter on (nats a token); ``bias``: by
    level, the norm of the timestep bias in mean norms of a token embedding, empty without a conditioner."""

    step: Count
    ar: Annotated[list[Seconds], Field(min_length=1)]
    bias: list[Seconds]
    levels: list[Masked]


class MaskedLaunchRow(Row):
    """One training run of Act III. ``ar`` and ``diff`` have one entry a step. ``stopped`` says why a run ended early."""

    kind: Literal["masked_launch"]
    arm: str
    seed: Count
    steps: Some
    trained: Some
    ar: list[Seconds]
    diff: list[Seconds]
    health: list[Health]
    stopped: str | None
    digest: str
    target_before: str
    target_after: str
    seconds: Seconds

    @model_validator(mode="after")
    def lists_agree(self):
        if len(self.ar) != len(self.diff) or self.stopped is None and (len(self.ar) != self.steps or self.health[-1].step != self.steps):
            raise ValueError(f"{len(self.ar)} and {len(self.diff)} losses for {self.steps} steps")
        return self


class CanvasRow(Row):
    """One canvas after the prefix of a held-out window, and what the target says of it: of the rows ``written``, not given, ``nats`` a token and those ``right``.

    ``source``: "truth" (the held-out text), "greedy" and "drawn" (the target's own), else the sampler in ``forwards`` forwards with a share ``given``
    of the true rows visible.
    """

    kind: Literal["canvas"]
    section: Literal["own", "sampled"]
    source: Literal["truth", "greedy", "drawn", "sampler"]
    seed: Count
    window: Count
    given: Share
    forwards: Count
    tokens: Annotated[list[Count], Field(min_length=1)]
    nats: Seconds
    distinct: Share
    looped: Share
    written: Some
    right: Count
    sure: list[Share] = []
    vague: list[Seconds] = []


ROWS: dict[str, type[Row]] = {"overfit": OverfitRow, "masked_launch": MaskedLaunchRow, "canvas": CanvasRow}
