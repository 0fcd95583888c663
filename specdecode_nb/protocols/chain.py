"""A target that is a table, to count what sampling emits: the next token depends on the last one alone, so every probability is known."""
from __future__ import annotations

from collections.abc import Sequence

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
    """One long generation from the prompt [0]."""
    target = Target(ChainModel(table), ChainTokenizer(), "chain", "float32", LENGTH, len(table))
    return generate(target, [0], drafter, k=k, max_tokens=tokens, seed=seed, sampling=sampling, ignore_eos=True)


def pairs(tokens: Sequence[int], vocab: int) -> np.ndarray:
    """Counts [vocab, vocab, vocab]: two tokens after a third, where the next pair follows the last of this one."""
    ids = np.array([0, *tokens])
    counts = np.zeros((vocab,) * 3, dtype=int)
    end = (len(ids) - 1) // 2 * 2
    np.add.at(counts, (ids[0:end:2], ids[1 : end + 1 : 2], ids[2 : end + 1 : 2]), 1)
    return counts


def chi_square(counts: np.ndarray, p: np.ndarray) -> dict:
    """Joint chi-square of counts [V, V, V] of pairs against the chain p [V, V]: ``statistic``, ``df``, and ``z``, about normal if
    the distribution is right (Wilson and Hilferty)."""
    expected = counts.sum(axis=(1, 2))[:, None, None] * p[:, :, None] * p[None]
    open_cells = expected > 0
    if counts[~open_cells].any():
        return {"statistic": float("inf"), "df": int(open_cells.sum() - len(p)), "z": float("inf")}
    statistic = float(((counts - expected)[open_cells] ** 2 / expected[open_cells]).sum())
    df = int(open_cells.sum() - (counts.sum(axis=(1, 2)) > 0).sum())
    return {"statistic": statistic, "df": df, "z": ((statistic / df) ** (1 / 3) - 1 + 2 / (9 * df)) / (2 / (9 * df)) ** 0.5}


def acceptance(p: np.ndarray, q: np.ndarray, rule: str) -> np.ndarray:
    """Probability that a draft after each token is accepted, by the closed form of the rule: p, q [V, V] -> [V].

    ``match`` takes q as drawn from; the drafters of this package propose the most likely token, so their q is a point mass.
    """
    if rule == "gumbel":
        with np.errstate(divide="ignore", invalid="ignore"):
            worst = np.maximum(p[:, None, :] / p[:, :, None], q[:, None, :] / q[:, :, None]).sum(axis=-1)
        return np.where((p > 0) & (q > 0), 1 / worst, 0).sum(axis=-1)
    return (np.minimum(p, q) if rule == "rejection" else p * q).sum(axis=-1)


def judged(result, closed: np.ndarray) -> dict:
    """Drafts that were judged and accepted in a generation, the closed form's expectation of the latter, and the distance in standard
    deviations. ``closed`` [V] as :func:`acceptance` gives it."""
    s, ids = result.stats, [0, *result.tokens]
    at, accepted, rates = 0, 0, []
    for offered, kept, committed in zip(s.offered_per_cycle, s.accepted_per_cycle, s.committed_per_cycle):
        rates += [closed[t] for t in ids[at : at + min(offered, kept + 1)]]
        accepted += kept
        at += committed
    rates = np.array(rates)
    spread = float(np.sqrt((rates * (1 - rates)).sum()))
    return {"judged": len(rates), "accepted": accepted, "expected": float(rates.sum()), "z": (accepted - float(rates.sum())) / spread if spread else 0.0}
