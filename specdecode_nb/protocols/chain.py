"""A target that is a table, to count what sampling emits: the next token depends on the last one alone, so every probability is known."""
from __future__ import annotations

import numpy as np

from ..acceptance import Greedy
from ..backend import mx
from ..decoder import generate
from ..drafters import Draft
from ..sampling import Sampling, uniform
from ..targets import Target

from mlx_lm.models.cache import KVCache  # isort: skip

LENGTH = 1 << 20


class ChainModel:
    """Logits [V, V] by the last token; its cache holds one number a row, for the transaction to undo."""

    def __init__(self, table: np.ndarray):
        self.table = mx.array(table, dtype=mx.float32)

    def make_cache(self) -> list:
        return [KVCache()]

    def __call__(self, ids, cache):
        row = ids[:, None, :, None].astype(mx.float32)
        cache[0].update_and_fetch(row, row)
        return self.table[ids]


class ChainTokenizer:
    eos_token_ids: list[int] = []

    def decode(self, ids, **options) -> str:
        return " ".join(map(str, ids))


class ChainDrafter:
    """Drafts from a table of its own, as the rule says, or by the uniform numbers of ``noise`` (seed, stream).

    With the generation's own seed and acceptance stream that is the mistake which a joint test must see.
    """

    name, exact, samples = "chain", 0, True

    def __init__(self, table: np.ndarray, noise: tuple[int, int] | None = None):
        self.table, self.noise = mx.array(table, dtype=mx.float32), noise

    def draft(self, cache: list, history: list[int], k: int, cycle: int, rule: Greedy = Greedy()) -> Draft:
        last, drawn = mx.array(history[-1:]), []
        for position in range(len(history), len(history) + k - 1):
            token, q = rule.propose(self.table[last], position, history)
            if self.noise is not None:
                q = mx.softmax(rule.sampling.scores(self.table[last], position), axis=-1)
                token = mx.minimum((mx.cumsum(q, axis=-1) <= uniform(*self.noise, position)).sum(axis=-1), q.shape[-1] - 1).astype(mx.int32)
            drawn.append((token, q))
            last = token
        if not drawn:
            return Draft([])
        return Draft(mx.concatenate([t for t, _ in drawn]).tolist(), q=None if q is None else mx.concatenate([q for _, q in drawn]))


def tables(vocab: int, seed: int = 7, size: float = 1.0, apart: float = 0.8) -> tuple[np.ndarray, np.ndarray]:
    """Logits [vocab, vocab] of a target and of a drafter that resembles it."""
    draw = np.random.default_rng(seed)
    p = size * draw.standard_normal((vocab, vocab))
    return p, p + apart * draw.standard_normal((vocab, vocab))


def probabilities(table: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Rows of the distributions that are sampled from; penalties have no place in a chain."""
    return np.array(mx.softmax(sampling.scores(mx.array(table, dtype=mx.float32), 0), axis=-1)).astype(np.float64)


def decode(table: np.ndarray, drafter: ChainDrafter | None, sampling: Sampling, tokens: int, k: int, seed: int):
    """One long generation from the prompt [0]: what one ``chain`` row is counted from."""
    target = Target(ChainModel(table), ChainTokenizer(), "chain", "float32", LENGTH, len(table))
    return generate(target, [0], drafter, k=k, max_tokens=tokens, seed=seed, sampling=sampling, ignore_eos=True)


def judged_after(result, vocab: int) -> tuple[list[int], int]:
    """Drafts judged in a generation, by the token before them, and how many were accepted."""
    stats, ids, at, judged = result.stats, [0, *result.tokens], 0, [0] * vocab
    for offered, kept, committed in zip(stats.offered_per_cycle, stats.accepted_per_cycle, stats.committed_per_cycle):
        # the budget may have cut what was judged last
        for token in ids[at : at + min(offered, kept + 1)] if at + committed < len(ids) - 1 else ():
            judged[token] += 1
        at += committed
    return judged, sum(stats.accepted_per_cycle[:-1])
