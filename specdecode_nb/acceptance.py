"""Which tokens of a draft survive: the target's own choice at every row, and how many drafted tokens agree with it.

Each rule emits exactly the target's distribution; they differ in what the drafter proposes and in how much of it is accepted
(p: the target's distribution at a position, q: the drafter's, both after penalties, filters and temperature):

- ``gumbel``: drafter and target add the same noise, keyed by (seed, absolute position), and a draft is accepted while equal.
  The tokens of a seed are the same with any drafter, any block and after any stop.
  Acceptance sum_i 1 / sum_j max(p_j / p_i, q_j / q_i).
- ``match``: as gumbel, but the drafter proposes its most likely token, which is independent of the noise. Acceptance sum p q.
- ``rejection``: the drafter draws from q with noise of its own; its token x is accepted with probability min(1, p(x) / q(x)),
  and is replaced by a sample of max(p - q, 0) otherwise. Acceptance sum min(p, q).

Noise of the three uses (target, draft, acceptance) comes from separate streams, so they are independent, and one number is
never shared by two positions. A position is drafted again only if nothing of its first draft was emitted.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .backend import mx
from .sampling import Sampling, gumbel, uniform
from .streams import ACCEPT_NOISE, DRAFT_NOISE, SAMPLE_NOISE


class Greedy:
    """The most likely token. Ties fall to the lowest id, as in plain decoding."""

    reads_ids = False  # whether a row's choice needs the ids before it, so that none can be started ahead of them

    def pick(self, logits: mx.array, position: int, ids: Sequence[int] = (), draft=None) -> mx.array:
        """The target's tokens [T] for logits [T, V], unevaluated; row t chooses the token at absolute ``position + t`` after
        ``ids[: position + t]``. ``draft``: the Draft that the rows verify, None in a plain step."""
        return mx.argmax(logits, axis=-1)

    def propose(self, logits: mx.array, position: int, ids: Sequence[int], exact: int = 0) -> tuple[mx.array, mx.array | None]:
        """A drafter's tokens [T] for its logits [T, V], unevaluated, and the distributions [T - exact, V] that the speculative
        ones were drawn from (None: they were not drawn). The first ``exact`` rows are the target's own."""
        return mx.argmax(logits, axis=-1), None

    def accept(self, best: Sequence[int], draft: Sequence[int], exact: int, shift: int) -> tuple[int, int]:
        """Accepted tokens of ``draft`` and the target's token after them. ``best[i - shift]`` is the target's choice where
        ``draft[i]`` was proposed; the first ``exact`` tokens are the target's own already."""
        n = exact
        while n < len(draft) and best[n - shift] == draft[n]:
            n += 1
        return n, best[n - shift]


class Gumbel(Greedy):
    """The argmax of scores and position-keyed noise, on both sides; with temperature 0 that of the penalised logits."""

    def __init__(self, sampling: Sampling, seed: int):
        self.sampling, self.reads_ids = sampling, sampling.penalised
        # drafter and target need the noise of a position in the same cycle
        self._row = lru_cache(maxsize=32)(lambda stream, position, vocab: gumbel(seed, stream, position, vocab))
        self._seed = seed

    def _draw(self, scores: mx.array, position: int, stream: int = SAMPLE_NOISE) -> mx.array:
        """A token [T] of each row of scores [T, V]."""
        if self.sampling.temperature:
            scores = scores + mx.stack([self._row(stream, position + t, scores.shape[-1]) for t in range(scores.shape[0])])
        return mx.argmax(scores, axis=-1)

    def pick(self, logits, position, ids=(), draft=None):
        return self._draw(self.sampling.scores(logits, position, ids), position)

    def propose(self, logits, position, ids, exact=0):
        # penalties of a draft are those of the committed ids alone: any draft is allowed, and these are known
        scores = self.sampling.scores(logits, position, ids)
        if scores.shape[0] == exact:
            return self._draw(scores, position), None
        guesses, q = self._guess(scores[exact:], position + exact)
        return mx.concatenate([self._draw(scores[:exact], position), guesses]) if exact else guesses, q

    def _guess(self, scores: mx.array, position: int) -> tuple[mx.array, mx.array | None]:
        """Speculative tokens [T] by the drafter's scores [T, V], and what they were drawn from."""
        return self._draw(scores, position), None


class Match(Gumbel):
    """The target's own sample against the drafter's most likely token."""

    def _guess(self, scores, position):
        return mx.argmax(scores, axis=-1), None


class Rejection(Gumbel):
    """Accepted with min(1, p / q), else a sample of the residual. A proposal without q is a point mass: accepted with p(x)."""

    def _guess(self, scores, position):
        return self._draw(scores, position, DRAFT_NOISE), mx.softmax(scores, axis=-1)

    def pick(self, logits, position, ids=(), draft=None):
        """With a draft [2, T]: whether its token at a row is accepted, and the target's token there if it is not."""
        scores = self.sampling.scores(logits, position, ids)
        if draft is None:
            return self._draw(scores, position)
        first, guesses = draft.exact - int(draft.seed_kept), draft.tokens[draft.exact :]
        accepted = mx.zeros((scores.shape[0],), dtype=mx.int32)
        if guesses:
            last = first + len(guesses)
            p, x = mx.softmax(scores[first:last], axis=-1), mx.array(guesses)[:, None]
            q = (mx.arange(p.shape[-1])[None] == x).astype(mx.float32) if draft.q is None else draft.q
            u = mx.stack([uniform(self._seed, ACCEPT_NOISE, position + t) for t in range(first, last)])
            accepted[first:last] = u * mx.take_along_axis(q, x, axis=-1)[:, 0] < mx.take_along_axis(p, x, axis=-1)[:, 0]
            residual = mx.maximum(p - q, 0)
            # p equal to q leaves nothing, and is then never rejected but for rounding
            scores[first:last] = mx.where(residual.sum(axis=-1, keepdims=True) > 0, mx.log(residual), scores[first:last])
        return mx.stack([accepted, self._draw(scores, position).astype(mx.int32)])

    def accept(self, best, draft, exact, shift):
        accepted, following = best
        n = exact
        while n < len(draft) and accepted[n - shift]:
            n += 1
        return n, following[n - shift]


def rule(sampling: Sampling, seed: int) -> Greedy:
    """The rule of one generation. With temperature 0 nothing is drawn, so all rules are the greedy one."""
    if sampling.temperature == 0:
        return Gumbel(sampling, seed) if sampling.penalised else Greedy()
    return {"gumbel": Gumbel, "match": Match, "rejection": Rejection}[sampling.rule](sampling, seed)
