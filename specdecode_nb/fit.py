"""What sampling should give, in closed form, and how far counts are from it. Nothing here needs a model."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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


def distance(judged_after: Sequence[int], accepted: int, closed: np.ndarray) -> dict:
    """Accepted drafts against the closed form [V] over what was judged after each token [V]: ``expected``, and ``z`` in standard deviations."""
    judged = np.asarray(judged_after)
    expected, spread = float(judged @ closed), float(np.sqrt(judged @ (closed * (1 - closed))))
    return {"judged": int(judged.sum()), "accepted": accepted, "expected": expected, "z": (accepted - expected) / spread if spread > 1e-6 else 0.0}
