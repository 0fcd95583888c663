"""The corruption alphabet of Act IV-N: noise states outside the vocabulary, and how each condition hides a token (published system, section 6).

A state has an id from the vocabulary's size upward. The readout cannot produce it, and a side table embeds it. The condition decides
what a corrupted position shows; which positions are corrupted is drawn from a stream of its own and is the same for every condition.

Known of the original: 32 states, the side table, E (spherical k-means of the token embeddings) and that D is a permutation of E with the same
entropy. Chosen here: A, B and C, and that D exchanges tokens between buckets until its entropy over text is that of E as well.
"""
from __future__ import annotations

from dataclasses import dataclass

from ..backend import mx, nn  # isort: skip

import numpy as np

from ..streams import EVAL_NOISE, TRAIN_NOISE, TRAIN_RATE, stream_seed
from ..targets import share

STATES = 32
CONDITIONS = {"A": "one state for every token: a mask, which tells nothing", "B": "a random token of the vocabulary, as in Acts I and II: tells something false",
              "C": "a state drawn as often as E shows it, whatever the token is: the symbols of E without their information",
              "D": "the state of another token: E permuted, its information without its meaning",
              "E": "the state of the token's own bucket, a cluster of embeddings"}
NEAR, TRIES = 0.005, 20_000  # bits between the entropies of D and E over text; exchanges tried to get there
EVAL_RATE, SIDE = 0x4556414C5F525445, 0x534944455441424C  # streams: positions of evaluation, apart from the symbols of EVAL_NOISE; the side table
RESTARTS, ROUNDS = 3, 40


def spherical_kmeans(vectors: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """Cluster the directions of ``vectors`` [n, d]; int64 labels [n], every cluster used.

    The best of a few starts by the sum of cosines to the centres. Raises ValueError for fewer vectors than clusters.
    """
    if len(vectors) < clusters:
        raise ValueError(f"{len(vectors)} vectors cannot fill {clusters} clusters.")
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    best, labels = -np.inf, None
    for start in range(RESTARTS):
        rng = np.random.default_rng([seed, start])
        centres = unit[rng.choice(len(unit), clusters, replace=False)]
        found = None
        for _ in range(ROUNDS):
            cosine = unit @ centres.T
            before, found = found, cosine.argmax(1)
            for empty in np.setdiff1d(np.arange(clusters), found):  # takes the vector that fits worst, of a cluster that can spare it
                spare = np.bincount(found, minlength=clusters)[found] > 1
                found[np.where(spare, cosine[np.arange(len(unit)), found], np.inf).argmin()] = empty
            if before is not None and (before == found).all():
                break
            sums = np.eye(clusters, dtype=unit.dtype)[found].T @ unit
            centres = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
        score = (unit * centres[found]).sum()
        if score > best:
            best, labels = score, found
    return labels


def entropy_bits(labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    """H(c(X)) in bits, X a vocabulary entry drawn uniformly or by ``weights`` [V] (counts or shares)."""
    mass = np.bincount(labels, weights=weights)
    p = mass[mass > 0] / mass.sum()
    return float(-(p * np.log2(p)).sum())


def permuted(labels: np.ndarray, frequencies: np.ndarray, seed: int) -> np.ndarray:
    """``labels`` [V] exchanged among tokens: every state keeps its number of tokens exactly, and no token its own state if that can be.

    A free permutation keeps the entropy over the vocabulary but not the one over text, where few tokens are most of it. So pairs are then
    exchanged, frequent tokens first, until both entropies over text (``frequencies`` [V]) are within NEAR bits.
    """
    rng, wanted, mass = np.random.default_rng(seed), entropy_bits(labels, frequencies), frequencies / frequencies.sum()
    result = labels[rng.permutation(len(labels))]
    for i in np.flatnonzero(result == labels):
        if result[i] == labels[i] and (fit := np.flatnonzero((result != labels[i]) & (labels != result[i]))).size:
            j = rng.choice(fit)
            result[[i, j]] = result[[j, i]]
    off = abs(entropy_bits(result, frequencies) - wanted)
    for i, j in zip(rng.choice(len(labels), TRIES, p=mass), rng.integers(0, len(labels), TRIES)):
        if off <= NEAR:
            break
        if result[i] != labels[j] and result[j] != labels[i]:
            result[[i, j]] = result[[j, i]]
            new = abs(entropy_bits(result, frequencies) - wanted)
            if new < off:
                off = new
            else:
                result[[i, j]] = result[[j, i]]
    return result


@dataclass(frozen=True)
class Alphabet:
    """States by token for E and D, int64 [V] each, and how often each token is in text, [V]; ids of states are ``vocab`` + state."""

    semantic: np.ndarray
    permuted: np.ndarray
    frequencies: np.ndarray
    states: int = STATES

    @property
    def vocab(self) -> int:
        return len(self.semantic)

    def labels(self, condition: str) -> np.ndarray:
        """States by token under D or E."""
        return {"D": self.permuted, "E": self.semantic}[condition]

    def shares(self) -> np.ndarray:
        """How often each state of E occurs in text, [states]."""
        return np.bincount(self.semantic, weights=self.frequencies, minlength=self.states) / self.frequencies.sum()

    def symbols(self, condition: str, ids: mx.array, key: mx.array) -> mx.array:
        """What the tokens ``ids`` [...] would show if they were corrupted; of A, D and E a function of the token, without a draw."""
        if condition == "A":
            return mx.full(ids.shape, self.vocab, dtype=mx.int32)
        if condition == "B":
            return mx.random.randint(0, self.vocab, ids.shape, key=key).astype(mx.int32)
        if condition == "C":
            logits = mx.broadcast_to(mx.log(mx.array(self.shares() + 1e-12).astype(mx.float32)), (*ids.shape, self.states))
            return (self.vocab + mx.random.categorical(logits, key=key)).astype(mx.int32)
        return self.vocab + mx.array(self.labels(condition).astype(np.int32))[ids]


def build(vectors: np.ndarray, frequencies: np.ndarray, seed: int, states: int = STATES) -> Alphabet:
    """The alphabet of one launch: buckets of the token embeddings ``vectors`` [V, d], and their permutation. Same seed, same alphabet."""
    semantic = spherical_kmeans(vectors, states, seed)
    return Alphabet(semantic, permuted(semantic, frequencies, seed), np.asarray(frequencies, dtype=float), states)


def keys(seed: int, step: int, held_out: bool = False) -> tuple[mx.array, mx.array]:
    """Keys of one batch: positions and rate, and symbols. Two streams, so that a condition that draws no symbol moves no position."""
    streams = (EVAL_RATE, EVAL_NOISE) if held_out else (TRAIN_RATE, TRAIN_NOISE)
    return tuple(mx.random.key(stream_seed(seed, stream, step)) for stream in streams)


def drawn(shape: tuple[int, int], key: mx.array) -> tuple[mx.array, mx.array]:
    """Rates t ~ U(0, 1) [B, 1] and corrupted positions [B, C], each with probability t; a row where none is hit is corrupted at its first draw."""
    rate_key, hit_key = mx.random.split(key)
    rate, chance = mx.random.uniform(shape=(shape[0], 1), key=rate_key), mx.random.uniform(shape=shape, key=hit_key)
    return rate, (chance < rate) | (chance == chance.min(axis=1, keepdims=True))


def exactly(shape: tuple[int, int], rate: float, key: mx.array) -> mx.array:
    """Corrupted positions [B, C]: round(rate C) in every row."""
    order = mx.argsort(mx.argsort(mx.random.uniform(shape=shape, key=key), axis=1), axis=1)
    return order < round(rate * shape[1])


class SideTable(nn.Module):
    """The frozen embedding and, beside it, trainable vectors ``side`` [states, hidden] for ids from the vocabulary's size up.

    They begin as Gaussian directions of the mean norm of a token embedding, the same for one seed in every condition. It is an
    embedding only: the readout stays that of the target, so no logit belongs to a state.
    """

    def __init__(self, base: nn.Module, vocab: int, states: int, seed: int):
        super().__init__()
        self.base, self._vocab = share(base), vocab
        self.base.freeze()
        vectors = self.base(mx.arange(vocab)).astype(mx.float32)
        side = mx.random.normal((states, vectors.shape[-1]), key=mx.random.key(stream_seed(seed, SIDE, 0)))
        self.side = side / mx.linalg.norm(side, axis=-1, keepdims=True) * mx.linalg.norm(vectors, axis=-1).mean()

    def __call__(self, ids):
        outside = ids >= self._vocab
        plain = self.base(mx.where(outside, 0, ids))
        return mx.where(outside[..., None], self.side[mx.where(outside, ids - self._vocab, 0)].astype(plain.dtype), plain)
