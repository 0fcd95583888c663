"""Which columns of a wide head a training step scores: a vocabulary of 49,152 costs more than the whole drafter."""
from __future__ import annotations

from ..backend import mx  # isort: skip

import numpy as np

from ..errors import BadInput
from ..families import text_of, tower
from ..targets import Target


def most_frequent(ids: np.ndarray, count: int) -> np.ndarray:
    """The ``count`` most frequent ids, ascending; fewer if fewer occur."""
    found, times = np.unique(ids, return_counts=True)
    return np.sort(found[np.argsort(-times, kind="stable")[:count]])


def columns(labels: np.ndarray, frequent: np.ndarray, vocab: int, extra: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The labels, the frequent ids and ``extra`` uniform ones, so that no token can win at decoding that was never pushed down.

    Returns:
        (ids int32 [C] ascending, positions of ``labels`` among them, int32, of the labels' shape)
    """
    chosen = np.unique(np.concatenate([labels.ravel(), frequent, rng.integers(0, vocab, extra)])).astype(np.int32)
    return chosen, np.searchsorted(chosen, labels).astype(np.int32)


def head_rows(target: Target, ids: mx.array) -> mx.array:
    """The weights [C, hidden] of the head for ``ids`` [C]. Raises BadInput if they are quantised."""
    text = text_of(target.model)
    head = text.lm_head if "lm_head" in text else tower(target.model).embed_tokens
    if "scales" in head:
        raise BadInput(f"The head of {target.name!r} is quantised; train against the whole vocabulary, or load the target in float32.")
    return head.weight[ids]
