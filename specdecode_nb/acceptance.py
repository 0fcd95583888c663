"""Which tokens of a draft survive: the target's own choice at every row, and how many drafted tokens agree with it."""
from __future__ import annotations

from collections.abc import Sequence

from .backend import mx


class Greedy:
    """The most likely token. Ties fall to the lowest id, as in plain decoding."""

    def pick(self, logits: mx.array, position: int) -> mx.array:
        """The target's tokens [T] for logits [T, V], unevaluated; row 0 chooses the token at absolute ``position``."""
        return mx.argmax(logits, axis=-1)

    def accept(self, best: Sequence[int], draft: Sequence[int], exact: int, shift: int) -> tuple[int, int]:
        """Accepted tokens of ``draft`` and the target's token after them. ``best[i - shift]`` is the target's choice where
        ``draft[i]`` was proposed; the first ``exact`` tokens are the target's own already."""
        n = exact
        while n < len(draft) and best[n - shift] == draft[n]:
            n += 1
        return n, best[n - shift]
