"""The types that the schemas of rows are made of."""
from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Strict(BaseModel):
    """Types as written in the file: no text becomes a number here."""

    model_config = ConfigDict(strict=True, extra="allow")


class Row(Strict):
    kind: str
