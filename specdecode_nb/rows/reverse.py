"""The kinds of rows of Act II, beside those of :mod:`.rows`: launches, held-out windows, scores, and the sweep over gates."""
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .types import Count, Row, Seconds, Share


class ReverseLaunchRow(Row):
    """One training run of one arm of Act II. ``losses`` and ``norms`` have one entry a step, ``gates`` entries [step, gate of each layer].

    ``digest`` is that of all trained tensors. A run that ended early says so in ``stopped`` and is not evaluated.
    """

    kind: Literal["reverse_launch"]
    arm: str
    seed: Count
    steps: Annotated[int, Field(ge=1)]
    trained: Annotated[int, Field(ge=1)]
    losses: list[float]
    norms: list[Seconds]
    gates: list[list[float]]
    seconds: Seconds
    digest: str
    stopped: str | None

    @model_validator(mode="after")
    def lists_agree(self):
        if len(self.losses) != len(self.norms) or self.stopped is None and len(self.losses) != self.steps:
            raise ValueError(f"{len(self.losses)} losses and {len(self.norms)} norms for {self.steps} steps")
        return self


class ReverseWindowsRow(Row):
    """The held-out windows at one noise level, the same for every arm and seed: canvas rows whose id was changed, one count a window."""

    kind: Literal["reverse_windows"]
    level: Share
    canvas: Annotated[int, Field(ge=1)]
    changed: list[Count]


class ReverseScoreRow(Row):
    """One launch on the held-out windows at one noise level, one entry a window: canvas rows read out right, those of them that were changed,
    and the cross-entropy over the canvas (nats a row)."""

    kind: Literal["reverse_score"]
    arm: str
    seed: Count
    level: Share
    right: list[Count]
    changed_right: list[Count]
    nats: list[Seconds]

    @model_validator(mode="after")
    def lists_agree(self):
        if not len(self.right) == len(self.changed_right) == len(self.nats) > 0 or any(a < b for a, b in zip(self.right, self.changed_right)):
            raise ValueError(f"{len(self.right)}, {len(self.changed_right)} and {len(self.nats)} windows")
        return self


class GateSweepRow(Row):
    """The target without any training at one noise level and fusion gate: cross-entropy over the canvas of each held-out window (nats a row)."""

    kind: Literal["gate_sweep"]
    condition: Literal["aligned", "shuffled", "none"]
    gate: Share
    level: Share
    nats: Annotated[list[Seconds], Field(min_length=1)]


ROWS: dict[str, type[Row]] = {"reverse_launch": ReverseLaunchRow, "reverse_windows": ReverseWindowsRow, "reverse_score": ReverseScoreRow, "gate_sweep": GateSweepRow}
