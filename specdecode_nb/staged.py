"""Draft width apart from verify width: wrappers of a drafter (published system, 5.7).

Both go through the same decoder, verifier and transaction as a coupled block: they decide only which of the drafted tokens
a cycle of the decoder gets to see. A staged block is therefore several decoder cycles, each of which commits by itself.
"""
from __future__ import annotations

import time
from dataclasses import dataclass, replace

from .drafters import Draft, _whole
from .errors import BadInput


@dataclass
class Handed:
    """One decoder cycle as its drafter saw it: ``drafted`` tokens made now (0: a carried stage), ``handed`` of them to verify.

    ``began`` and ``draft_seconds`` are seconds of ``time.perf_counter``.
    """

    drafted: int
    handed: int
    began: float
    draft_seconds: float


class _Wrapper:
    """``trace`` has one entry for each cycle of the present generation."""

    def __init__(self, drafter, verify: int, letter: str):
        if not hasattr(drafter, "draft"):
            raise BadInput(f"The drafter is {drafter!r}; make one with load_drafter.")
        self.inner, self.verify = drafter, _whole("verify", verify, 1)
        self.name = f"{letter}({drafter.name},{verify})"
        self.metadata = getattr(drafter, "metadata", {})
        for name in ("target", "verifier", "block_size", "exact", "samples"):  # what the decoder asks a drafter for
            if hasattr(drafter, name):
                setattr(self, name, getattr(drafter, name))
        self.begin()

    def begin(self) -> None:
        """A new generation: the decoder says so before its first cycle."""
        self.trace: list[Handed] = []

    def draft(self, cache: list, history: list[int], k: int, cycle: int, *rule) -> Draft:
        began = time.perf_counter()
        draft, drafted = self._draft(cache, history, k, cycle, *rule)
        self.trace.append(Handed(drafted, len(draft.tokens), began, time.perf_counter() - began))
        return draft


def _first(draft: Draft, n: int) -> Draft:
    """The first ``n`` tokens of a draft."""
    return replace(draft, tokens=draft.tokens[:n], q=None if draft.q is None else draft.q[: n - draft.exact])


class Truncated(_Wrapper):
    """T(D,V): draft D tokens, hand the first V to the verifier, drop the rest. D is the decoder's block width."""

    def __init__(self, drafter, verify: int):
        super().__init__(drafter, verify, "T")

    def _draft(self, cache, history, k, cycle, *rule):
        draft = self.inner.draft(cache, history, k, cycle, *rule)
        return _first(draft, self.verify), len(draft.tokens)


class Staged(_Wrapper):
    """S(D,V): draft D tokens, hand V at a time; go on with the rest while everything so far was committed as drafted.

    A further stage needs the last verifier to have chosen the next drafted token too, and a guess after it. That token is
    the stage's seed; its row is not in the caches (only the draft forward leaves one), so a stage of V guesses verifies
    V + 1 rows where the first one, with the seed kept, verifies V. With D = V it is the coupled decoder.

    What has been committed is read from the history itself: a stopped, failed or closed generation leaves nothing to undo
    here, and a remainder that does not continue the history is dropped. Noise is keyed by the block, not by the stage.
    """

    def __init__(self, drafter, verify: int):
        super().__init__(drafter, verify, "S")

    def begin(self) -> None:
        super().begin()
        self._start, self._expected, self._blocks = 0, [], 0

    def _draft(self, cache, history, k, cycle, *rule):
        at = len(history)
        if self._start < at < len(self._expected) and history == self._expected[:at]:
            return Draft(self._expected[at : at + min(self.verify, k)]), 0
        self._expected = []  # nothing is carried if the draft fails
        self._blocks += 1
        draft = self.inner.draft(cache, history, k, self._blocks, *rule)
        self._start, self._expected = at, history + draft.tokens
        return _first(draft, self.verify), len(draft.tokens)
