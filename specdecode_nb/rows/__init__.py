"""The kinds of measured rows, one schema each, by what they are about. A row may hold more than its schema names; what it names has these types.

Reading, writing and resuming are :mod:`specdecode_nb.records`.
"""
from __future__ import annotations

from . import decoding, denoised, peers, reverse, states, trained
from .types import Count, Row, Seconds, Share, Strict

__all__ = ["ROWS", "Count", "Row", "Seconds", "Share", "Strict"]
ROWS: dict[str, type[Row]] = decoding.ROWS | peers.ROWS | trained.ROWS | denoised.ROWS | reverse.ROWS | states.ROWS
