"""Act IV-N's launches: a denoiser over a canvas whose corrupted positions show states of the alphabet, with or without a reverse pass.

The setting is Act II's, which the Act was to test again: [clean prefix | canvas], the readout of a canvas row names the token that stands
there. In drafting (Act IV-U) such states could not be used, since they are a function of the token that is still to be found.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..backend import mx, nn  # isort: skip

import numpy as np

from ..families import tower
from ..lora import PUBLISHED
from ..streams import DATA_SAMPLING
from ..targets import Target
from . import alphabet as symbols
from . import denoise
from .alphabet import Alphabet, SideTable
from .bidirectional import Canvas, Mixing, install
from .denoise import Denoiser, in_turn
from .loop import Loop

PREFIX, CANVAS = 16, 32  # rows, as in Act II
LEVELS = (0.5, 0.75, 1.0)
GATE = 0.5  # of every arm with a second pass, the control too, as in the published notes
ARMS = {"causal": Mixing(), "aligned": Mixing("constant", GATE), "shuffled": Mixing("constant", GATE, "shuffled")}
BATCH = 32  # windows of one forward without gradient


def allowed(name: str) -> bool:
    """What a launch may train: the adapter, the timestep conditioner and the side table."""
    return name.endswith(("lora_a", "lora_b")) or name.startswith("time.") or name == "states.side"


@dataclass(frozen=True)
class Recipe(denoise.Recipe):
    """``conditioner``: of the noise level, free in size, as in Act II."""

    conditioner: bool = True


def build(target: Target, alphabet: Alphabet, arm: str, recipe: Recipe) -> tuple[Denoiser, Canvas]:
    """A denoiser over the target's weights that embeds the states, and what its second pass needs to know. The condition changes nothing in it."""
    model, canvas = Denoiser(target, recipe.rank, PUBLISHED, recipe.scale, recipe.conditioner, seed=recipe.seed), Canvas(PREFIX)
    model.states = SideTable(tower(target.model).embed_tokens, alphabet.vocab, alphabet.states, recipe.seed)
    model._embed = lambda ids: model.states(ids)
    install(model.adapted, ARMS[arm], canvas)
    return model, canvas


def shown(alphabet: Alphabet, condition: str, ids: mx.array, hit: mx.array, key: mx.array) -> mx.array:
    """Windows ids [B, P + C] with the canvas positions of ``hit`` [B, C] replaced by what the condition shows of them."""
    clean = ids[:, PREFIX:]
    return mx.concatenate([ids[:, :PREFIX], mx.where(hit, alphabet.symbols(condition, clean, key), clean)], axis=1)


def batches(text: np.ndarray, alphabet: Alphabet, condition: str, recipe: Recipe) -> Callable[[int], tuple]:
    """``batch(step)``: step, noisy windows, clean canvas, corrupted positions, noise levels; a function of seed and step alone.

    Windows, levels and positions are the same in every condition.
    """
    taken = in_turn(text, recipe.seed, DATA_SAMPLING, recipe.batch)

    def batch(step: int) -> tuple:
        ids = taken(step)
        where, what = symbols.keys(recipe.seed, step)
        t, hit = symbols.drawn((len(ids), CANVAS), where)
        return step, shown(alphabet, condition, ids, hit, what), ids[:, PREFIX:], hit, t[:, 0]

    return batch


def nats(model: Denoiser, ids, clean, t) -> tuple[mx.array, mx.array]:
    """Cross-entropy of every canvas row against the token that stands there, and whether the readout is right; both [B, C]."""
    logits = model(ids, PREFIX, t).astype(mx.float32)
    return nn.losses.cross_entropy(logits, clean), mx.argmax(logits, axis=-1) == clean


def training(target: Target, alphabet: Alphabet, condition: str, arm: str, recipe: Recipe, text: np.ndarray) -> tuple[Loop, Canvas]:
    """The loop of one launch: cross-entropy over the corrupted positions; the shuffled control permutes anew at every forward."""
    model, canvas = build(target, alphabet, arm, recipe)

    def loss(model, step, ids, clean, hit, t):
        canvas.shuffle(CANVAS, recipe.seed, step)
        return (nats(model, ids, clean, t)[0] * hit).sum() / hit.sum()

    return Loop(model, loss, batches(text, alphabet, condition, recipe), recipe, allowed=allowed, frozen=target.digest, log_every=1), canvas


def score(model: Denoiser, canvas: Canvas, alphabet: Alphabet, condition: str, seed: int, text: np.ndarray, level: float) -> dict:
    """Held-out windows at one level, one entry a window: corrupted positions read out right, and their mean cross-entropy in nats.

    Exactly round(level C) positions of each window are corrupted, the same ones in every condition and arm.
    """
    def read(first, ids, hit, what):
        canvas.shuffle(CANVAS, seed, -1 - first)
        return nats(model, shown(alphabet, condition, ids, hit, what), ids[:, PREFIX:], mx.full((len(ids),), level))

    return scored(read, seed, text, level)


def scored(read: Callable[..., tuple[mx.array, mx.array]], seed: int, text: np.ndarray, level: float) -> dict:
    """The entries of :func:`score` for ``read(first, ids, hit, key)``, which gives nats and hits of every canvas row as :func:`nats` does."""
    found = {"right": [], "nats": []}
    for first in range(0, len(text), BATCH):
        ids = mx.array(text[first : first + BATCH])
        where, what = symbols.keys(seed, LEVELS.index(level) * len(text) + first, held_out=True)
        hit = symbols.exactly((len(ids), CANVAS), level, where)
        loss, right = read(first, ids, hit, what)
        found["right"] += (right & hit).sum(axis=-1).tolist()
        found["nats"] += [round(v, 4) for v in ((loss * hit).sum(axis=-1) / hit.sum(axis=-1)).tolist()]
    return {"level": level, "hidden": round(level * CANVAS), **found}


def by_table(labels: np.ndarray, trained_on: np.ndarray, seed: int, text: np.ndarray, level: float) -> dict:
    """The entries of :func:`score` for a readout without a model: of the tokens of the state shown, the most frequent one of the training text.

    Its probabilities are the frequencies within the state, one added to each count.
    """
    count = np.bincount(trained_on.ravel(), minlength=len(labels)) + 1.0
    share = count / np.bincount(labels, weights=count)[labels]
    best = np.array([max(np.flatnonzero(labels == s), key=lambda i: count[i], default=-1) for s in range(labels.max() + 1)])
    loss, right = mx.array(-np.log(share).astype(np.float32)), mx.array(best[labels] == np.arange(len(labels)))
    return scored(lambda first, ids, hit, what: (loss[ids[:, PREFIX:]], right[ids[:, PREFIX:]]), seed, text, level)


def told(target: Target, labels: np.ndarray, states: int, text: np.ndarray) -> dict:
    """What the states would tell the target itself, which reads every true token before them; one entry a window, no training.

    ``state_bits``: how surprising the true states are, bits a row, and so what they tell beyond the text before; ``right``: canvas rows
    that the target finds as they are; ``right_within``: among the tokens of the true state alone.
    """
    found, member = {"state_bits": [], "right": [], "right_within": []}, mx.array(np.eye(states, dtype=np.float32)[labels])
    state = mx.array(labels.astype(np.int32))
    for first in range(0, len(text), BATCH):
        ids = mx.array(text[first : first + BATCH])
        logits, clean = target.model(ids)[:, PREFIX - 1 : -1].astype(mx.float32), ids[:, PREFIX:]
        mass = mx.softmax(logits, axis=-1) @ member
        bits = -mx.log2(mx.maximum(mx.take_along_axis(mass, state[clean][..., None], axis=-1)[..., 0], 1e-30))
        within = mx.where(state[None, None] == state[clean][..., None], logits, -mx.inf)
        found["state_bits"] += [round(v, 4) for v in bits.mean(axis=-1).tolist()]
        found["right"] += (mx.argmax(logits, axis=-1) == clean).sum(axis=-1).tolist()
        found["right_within"] += (mx.argmax(within, axis=-1) == clean).sum(axis=-1).tolist()
    return {"rows": CANVAS, **found}
