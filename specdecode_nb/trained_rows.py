"""Schemas of what the training Acts record, beside the kinds of :mod:`.rows`."""
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from . import rows
from .rows import Count, Row, Seconds


class LaunchRow(Row):
    """One checkpoint of one training launch. ``loss``: [step, loss, gradient norm] of every step since the checkpoint before.

    ``distance``: of the adapter from that of the launch it is compared with at the same step, relative; None for a launch without one.
    ``foreign`` counts trained tensors that are no adapter's. Digests are over tensors in order of name; ``state_digest`` has the moments too.
    """

    kind: Literal["launch"]
    arm: str
    launch: Annotated[int, Field(ge=1)]
    step: Count
    change: str
    block: Annotated[int, Field(ge=2)]
    start: str
    recipe: dict
    widths: list[int]
    adapter_digest: str
    state_digest: str
    trained: Annotated[int, Field(ge=1)]
    foreign: Count
    distance: Seconds | None
    seconds: Seconds
    loss: list[list[float | int]]
    blas: str
    threads: int | None


class ForcedRow(Row):
    """A checkpoint judged teacher-forced on held-out blocks: a string of 0 and 1 a block, by slot, whether student and teacher choose alike.

    ``l1_by_slot``: L1 distance of the distributions; ``l1_k4`` [blocks] that of a block at K=4 over its rows, the seed row counted.
    """

    kind: Literal["forced"]
    arm: str
    launch: Annotated[int, Field(ge=1)]
    step: Count
    change: str
    block: Annotated[int, Field(ge=2)]
    blocks: Annotated[int, Field(ge=1)]
    windows: list[Count]
    matches: list[Annotated[str, Field(pattern="^[01]+$")]]
    l1_by_slot: list[Seconds]
    l1_k4: list[Seconds]
    seed_rows_compared: Count
    seed_rows_changed: Count

    @model_validator(mode="after")
    def lists_agree(self):
        if {len(self.windows), len(self.matches), len(self.l1_k4)} != {self.blocks} or {len(m) for m in self.matches} != {len(self.l1_by_slot)}:
            raise ValueError(f"{len(self.windows)} windows, {len(self.matches)} matches and {len(self.l1_k4)} distances for {self.blocks} blocks")
        return self


ROWS: dict[str, type[Row]] = rows.ROWS | {"launch": LaunchRow, "forced": ForcedRow}
