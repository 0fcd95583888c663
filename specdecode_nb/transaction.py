"""A transaction over the caches of a model: forward some rows, then keep exactly the first n of them in every layer.

Attention caches are cut by moving an offset. A recurrent state cannot be cut, so four schemes rebuild it:

``tape``              replay the recorded innovations row by row (default; exact, no second forward, small)
``per_token_states``  keep every intermediate state and pick one (the published scheme)
``replay``            go back to the start and run the kept rows again (a second forward; the oracle of the tests)
``rewind``            run the rule backward from the end, with a guard and every state as its net (:mod:`.rewind`; close, not exact)
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from .backend import mx  # isort: skip

from mlx_lm.models.cache import ArraysCache, KVCache

from .gdn import RecurrentCache, Tape, replay_step
from .rewind import rewind

EXACT = ("tape", "per_token_states", "replay")
SCHEMES = (*EXACT, "rewind")


class TransactionError(RuntimeError):
    """The transaction was used out of order: nested, committed twice, or rows were forwarded outside it."""


class RollbackUnsupported(TypeError):
    """A cache in the list cannot be undone; the message names the layer and the type."""


def snapshot(cache: Sequence) -> list:
    """References to the present content of every cache; nothing is copied, since no array is written in place
    below its offset."""
    return [(c.cache[:], getattr(c, "offset", None)) if isinstance(c, ArraysCache) else c.offset for c in cache]


def restore(cache: Sequence, saved: list) -> None:
    """Put every cache back to :func:`snapshot`. Attention rows beyond the offset are stale and are overwritten."""
    for c, s in zip(cache, saved):
        if isinstance(c, ArraysCache):
            c.cache = s[0][:]
            if s[1] is not None:
                c.offset = s[1]
        else:
            c.offset = s


def check_caches(cache: Sequence, scheme: str) -> None:
    """Raises RollbackUnsupported for a cache that ``scheme`` cannot undo, by its layer."""
    for i, c in enumerate(cache):
        if type(c) is KVCache or isinstance(c, RecurrentCache):
            if isinstance(c, RecurrentCache) and (c.lengths is not None or c.left_padding is not None):
                raise RollbackUnsupported(f"Layer {i} ({type(c).__name__}) holds a padded batch, which cannot be undone row by row.")
            continue
        if type(c) is ArraysCache and scheme == "replay":
            continue
        raise RollbackUnsupported(
            f"Layer {i} has a {type(c).__name__}, which cannot be undone by the scheme {scheme!r}; "
            "make the caches with target.make_cache().")
    if cache and all(type(c) is ArraysCache for c in cache):
        raise RollbackUnsupported("None of these caches counts its rows: all are stock ArraysCaches, so nothing could tell how many rows a block has; "
                                  "make the caches with target.make_cache(), or pass an attention cache of the model along.")


class Transaction:
    """Forward rows inside the block, then :meth:`commit`; leaving without a commit keeps none, whatever the reason.

    Args:
        cache: one cache per layer, as ``target.make_cache()`` gives it.
        scheme: one of :data:`SCHEMES`.
        rerun: needed by ``replay``: called with n after the caches are back at the start, must forward the first n rows.

    Raises:
        RollbackUnsupported: at construction, if a cache cannot be undone.
        TransactionError: nested or repeated use, rows forwarded after the commit, layers of different length.

    Attributes:
        recorded_bytes: what was recorded beside the caches and the convolution rows, known after the commit.
        rewind_steps: rows undone by "rewind", summed over heads and layers; 0 for other schemes.
    """

    def __init__(self, cache: Sequence, scheme: str = "tape", rerun: Callable[[int], object] | None = None):
        if scheme not in SCHEMES:
            raise ValueError(f"There is no scheme {scheme!r}; choose one of {', '.join(SCHEMES)}.")
        if (scheme == "replay") != (rerun is not None):
            raise ValueError("The scheme 'replay' needs rerun, a function that forwards the first n rows again; no other takes it.")
        check_caches(cache, scheme)
        self._cache, self._scheme, self._rerun = list(cache), scheme, rerun
        self._recurrent = [c for c in self._cache if isinstance(c, RecurrentCache)]
        self._saved: list | None = None
        self._kept: int | None = None
        self._end: list | None = None
        self.recorded_bytes = self.rewind_steps = 0
        self._fallbacks: list[mx.array] = []

    def __enter__(self) -> Transaction:
        if self._saved is not None:
            raise TransactionError("This transaction has been used; make a new one for each block.")
        if any(getattr(c, "transaction", None) is not None for c in self._cache):
            raise TransactionError("One of these caches is inside another transaction; transactions do not nest.")
        self._saved = snapshot(self._cache)
        for c in self._cache:
            c.transaction = self
        if self._scheme != "replay":
            for c in self._recurrent:
                c.tape = Tape(self._scheme)
        return self

    @property
    def rewind_fallbacks(self) -> int:
        """How many of ``rewind_steps`` took the recorded state; reading it evaluates."""
        return sum(int(f.item()) for f in self._fallbacks)

    @property
    def rows(self) -> int:
        """Rows forwarded so far. Raises TransactionError if the layers disagree."""
        counts = {c.offset - (s[1] if isinstance(s, tuple) else s) for c, s in zip(self._cache, self._saved)
                  if getattr(c, "offset", None) is not None}
        if len(counts) > 1:
            raise TransactionError(f"The layers have forwarded different numbers of rows: {sorted(counts)}.")
        return counts.pop() if counts else 0

    def commit(self, n: int) -> None:
        """Keep the first ``n`` of the forwarded rows in every layer and close; 0 <= n <= rows."""
        if self._saved is None or self._kept is not None:
            raise TransactionError("commit needs an open transaction, and only once.")
        rows = self.rows
        if not isinstance(n, int) or not 0 <= n <= rows:
            raise TransactionError(f"Cannot keep {n!r} rows: {rows} were forwarded.")
        self._keep(n, rows)

    def _keep(self, n: int, rows: int | None) -> None:
        """``rows`` is None after a failure, when the layers may disagree: then only n = 0 is possible."""
        tapes = [c.tape for c in self._recurrent]
        self.recorded_bytes = sum(t.nbytes for t in tapes if t is not None)
        for c in self._recurrent:
            c.tape = None
        if n != rows:
            restore(self._cache, self._saved)
            if n and self._scheme == "replay":
                self._rerun(n)
                if self.rows != n:
                    raise TransactionError(f"rerun({n}) forwarded {self.rows} rows.")
            elif n:
                for c in self._cache:
                    if not isinstance(c, RecurrentCache):
                        c.offset += n
                for c, tape in zip(self._recurrent, tapes):
                    c[0] = mx.contiguous(tape.conv_rows[:, n : n + tape.conv_before.shape[1]])
                    c[1] = self._rebuild(tape, n)
                    c.offset += n
        self._kept, self._end = n, snapshot(self._cache)
        for c in self._recurrent:
            c.sealed = True

    def _rebuild(self, tape: Tape, n: int) -> mx.array:
        if self._scheme == "per_token_states":
            return tape.states[n - 1]
        if self._scheme == "rewind":
            state, fallbacks = rewind(tape, n)
            self._fallbacks.append(fallbacks)
            self.rewind_steps += (tape.rows - n) * tape.betas[0].size
            return state
        return _replay(tape, n)

    def __exit__(self, kind, value, trace) -> None:
        if self._kept is None:
            self._keep(0, None)
        late = any(c.offset != e if not isinstance(c, ArraysCache) else any(a is not b for a, b in zip(c.cache, e[0]))
                   for c, e in zip(self._cache, self._end))
        if late:
            restore(self._cache, self._end)
        for c in self._cache:
            c.transaction = None
        for c in self._recurrent:
            c.sealed = False
        if late and kind is None:
            raise TransactionError("Rows were forwarded after the commit; they have been dropped.")


def _replay(tape: Tape, n: int) -> mx.array:
    state = tape.state_before
    for t in range(n):
        state = replay_step(tape.deltas[t], tape.keys[t], tape.decays[t], state)
    return state
