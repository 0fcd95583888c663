"""Schemas of the rows about other projects (:mod:`specdecode_nb.protocols.peers`)."""
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .types import Row, Seconds


class PeerRow(Row):
    """Whether another project's decoding runs beside ours on this target and platform: ``call`` is what was called, ``why`` what stopped it.

    "refused" is the peer's own error, "absent" that something it needs is not here; ``version`` is None where it is not installed.
    """

    kind: Literal["peer"]
    peer: str
    version: str | None
    call: str
    outcome: Literal["ran", "refused", "absent"]
    why: str

    @model_validator(mode="after")
    def agree(self):
        if (self.outcome == "ran") == bool(self.why):
            raise ValueError(f"the outcome is {self.outcome!r} and the reason {self.why!r}; what did not run needs a reason, what ran has none")
        return self


class PeerStateRow(Row):
    """The caches of another project's runtime once all but ``kept`` of ``width`` verified rows are undone, against those of one row at a time on the
    same model: the largest difference in any cache, relative to the largest entry of that array."""

    kind: Literal["peer_state"]
    peer: str
    prompt_id: str
    width: Annotated[int, Field(ge=2)]
    kept: Annotated[int, Field(ge=1)]
    relative_error: Seconds


ROWS: dict[str, type[Row]] = {"peer": PeerRow, "peer_state": PeerStateRow}
