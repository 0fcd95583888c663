"""Stage 0 of Act IV-N: named checks of the alphabet, the corruption and the model, each of which a fault can fail.

The published project passed 30 of its own, which are not public; these are ours. A check is a function of the :class:`Bench` that says
what it found and whether that is as it must be.
"""
from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from mlx.utils import tree_flatten

from ..families import tower
from ..targets import Target, mx
from ..train import alphabet as symbols
from ..train import states
from ..train.alphabet import CONDITIONS, NEAR, Alphabet
from ..train.states import ARMS, CANVAS, PREFIX, Recipe

Found = tuple[str, bool]
CHECKS: dict[str, Callable[[Bench], Found]] = {}
LEVEL, STEPS = 0.5, 2
ROUNDING = 1e-5


class Bench:
    """What the checks look at, each thing made once: an alphabet, a few windows, corrupted batches, and short launches."""

    def __init__(self, target: Target, alphabet: Alphabet, text: np.ndarray, recipe: Recipe):
        self.target, self.alphabet, self.text, self.recipe = target, alphabet, text, replace(recipe, steps=STEPS, batch=min(recipe.batch, len(text)))
        self.ids = mx.array(text)
        self.where, self.what = symbols.keys(recipe.seed, 0)
        self.t, self.hit = symbols.drawn((len(text), CANVAS), self.where)

    def shown(self, condition: str, key=None) -> np.ndarray:
        """The canvas [B, C] under a condition."""
        return np.array(states.shown(self.alphabet, condition, self.ids, self.hit, self.what if key is None else key))[:, PREFIX:]

    @cached_property
    def clean(self) -> np.ndarray:
        return self.text[:, PREFIX:]

    @cached_property
    def hidden(self) -> np.ndarray:
        return np.array(self.hit)

    @cached_property
    def many(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens as they occur, 8192 of them, and what C shows of them."""
        ids = np.resize(self.clean.ravel(), 8192)
        return ids, np.array(self.alphabet.symbols("C", mx.array(ids), self.what)) - self.alphabet.vocab

    @property
    def four(self) -> list:
        return [k for held_out in (False, True) for k in symbols.keys(self.recipe.seed, 0, held_out)]

    @cached_property
    def norms(self) -> np.ndarray:
        return np.linalg.norm(np.array(self.models["causal"][0].states.side), axis=-1)

    @cached_property
    def models(self) -> dict:
        return {arm: states.build(self.target, self.alphabet, arm, self.recipe) for arm in ARMS}

    def logits(self, arm: str, step: int = 0):
        model, canvas = self.models[arm]
        canvas.shuffle(CANVAS, self.recipe.seed, step)
        return model(states.shown(self.alphabet, "E", self.ids[:2], self.hit[:2], self.what), PREFIX, self.t[:2, 0])

    def launch(self, until: int = STEPS):
        loop, _ = states.training(self.target, self.alphabet, "E", "aligned", self.recipe, self.text)
        loop.run(until, say=lambda *_, **__: None)
        return loop

    @cached_property
    def before(self) -> str:
        return self.target.digest()

    @cached_property
    def trained(self):
        return self.before, self.launch()


def check(statement: str):
    """Adds a check under the sentence that must be true."""
    def add(function):
        CHECKS[statement] = function
        return function
    return add


def simple(statement: str, function: Callable[[Bench], Found]) -> None:
    CHECKS[statement] = function


def weights(loop) -> bytes:
    return b"".join(name.encode() + bytes(memoryview(v)) for name, v in sorted(tree_flatten(loop.model.trainable_parameters())))


def equal(a, b) -> Found:
    wrong = int((np.asarray(a) != np.asarray(b)).sum())
    return f"{wrong} of {np.asarray(a).size} differ", wrong == 0


def apart(a, b) -> float:
    """The largest difference of two arrays, relative to the largest entry of the second."""
    return (mx.abs(a - b).max() / mx.abs(b).max()).item()


# --- the alphabet ---

simple("states have ids from the vocabulary's size up", lambda b: (f"ids from {b.alphabet.vocab}", b.alphabet.vocab == b.target.vocab_size))
simple("every state of E has a token", lambda b: (f"{(n := len(np.unique(b.alphabet.semantic)))} states", n == b.alphabet.states))
simple("every state has as many tokens in D as in E", lambda b: equal(*(np.bincount(b.alphabet.labels(c), minlength=b.alphabet.states) for c in "DE")))
simple("D and E have the same entropy over the vocabulary", lambda b: equal(*(symbols.entropy_bits(b.alphabet.labels(c)) for c in "DE")))


@check("D and E have nearly the same entropy over text")
def _(b):
    d, e = (symbols.entropy_bits(b.alphabet.labels(c), b.alphabet.frequencies) for c in "DE")
    return f"{d - e:+.4f} bits", abs(d - e) <= NEAR


simple("no token keeps its state in D", lambda b: (f"{(n := int((b.alphabet.semantic == b.alphabet.permuted).sum()))} do", n == 0))
simple("four equal buckets have two bits", lambda b: (f"{(h := symbols.entropy_bits(np.arange(8) % 4))}", h == 2.0))
simple("weights of 1/2, 1/4 and 1/4 have 1.5 bits", lambda b: (f"{(h := symbols.entropy_bits(np.arange(3), np.array([2, 1, 1])))}", h == 1.5))


@check("the same seed gives the same alphabet")
def _(b):
    vectors = np.array(tower(b.target.model).embed_tokens(mx.arange(b.target.vocab_size)).astype(mx.float32))
    again = symbols.build(vectors, b.alphabet.frequencies, b.recipe.seed, b.alphabet.states)
    return equal(np.stack([again.semantic, again.permuted]), np.stack([b.alphabet.semantic, b.alphabet.permuted]))


# --- the corruption ---

simple("A shows one id", lambda b: (f"{(n := len(np.unique(b.shown('A')[b.hidden])))} ids", n == 1))
simple("B shows tokens of the vocabulary", lambda b: (f"largest id {(n := int(b.shown('B').max()))}", n < b.alphabet.vocab))
simple("A, C, D and E show states alone", lambda b: equal(
    [set((b.shown(c)[b.hidden] - b.alphabet.vocab).tolist()) <= set(range(b.alphabet.states)) for c in "ACDE"], [True] * 4))
simple("D shows the state of D of each token", lambda b: equal(b.shown("D")[b.hidden], b.alphabet.vocab + b.alphabet.permuted[b.clean[b.hidden]]))
simple("E shows the state of E of each token", lambda b: equal(b.shown("E")[b.hidden], b.alphabet.vocab + b.alphabet.semantic[b.clean[b.hidden]]))


@check("C shows each state as often as E does in text")
def _(b):
    p, n = b.alphabet.shares(), len(b.many[1])
    off = np.abs(np.bincount(b.many[1], minlength=len(p)) - n * p) / np.sqrt(np.maximum(n * p * (1 - p), 1))
    return f"{off.max():.1f} sd at most", off.max() < 5


@check("C tells nothing of the token")
def _(b):
    own = (b.many[1] == b.alphabet.semantic[b.many[0]]).mean()
    chance = (b.alphabet.shares() * np.bincount(b.alphabet.semantic[b.many[0]], minlength=b.alphabet.states) / len(b.many[0])).sum()
    return f"its own state at {own:.3f}, by chance {chance:.3f}", abs(own - chance) < 5 * math.sqrt(chance * (1 - chance) / len(b.many[0]))


simple("visible positions keep their tokens", lambda b: equal([(b.shown(c) != b.clean)[~b.hidden].any() for c in CONDITIONS], [False] * len(CONDITIONS)))
simple("the prefix keeps its tokens", lambda b: equal(
    np.array(states.shown(b.alphabet, "E", b.ids, b.hit, b.what))[:, :PREFIX], b.text[:, :PREFIX]))
simple("other symbols move no position", lambda b: equal(b.shown("C", symbols.keys(b.recipe.seed, 1)[1]) >= b.alphabet.vocab, b.hidden))
simple("positions and symbols, in training and held out, come from four streams", lambda b: (f"{(n := len({tuple(np.array(k).tolist()) for k in b.four}))} keys", n == 4))


@check("as many positions are corrupted as the noise level says")
def _(b):
    t, hit = (np.array(x) for x in symbols.drawn((2000, CANVAS), b.where))
    off = (hit.mean(1) - t[:, 0]).mean() / (math.sqrt((t * (1 - t)).mean() / CANVAS / len(t)))
    return f"{off:+.1f} sd", abs(off) < 5 and hit.any(axis=1).all()


simple("at a fixed level the count is exact", lambda b: equal(np.array(symbols.exactly((64, CANVAS), LEVEL, b.where)).sum(1), np.full(64, round(LEVEL * CANVAS))))


# --- the model ---

simple("logits have the vocabulary's width", lambda b: (f"{b.logits('aligned').shape}", b.logits("aligned").shape == (2, CANVAS, b.target.vocab_size)))
simple("logits are finite", lambda b: equal(np.isfinite(np.array(b.logits("aligned"))).all(), True))
simple("vectors of states have the mean norm of a token's", lambda b: (
    f"{b.norms.min():.4f} to {b.norms.max():.4f}", np.abs(b.norms / b.models["causal"][0].unit - 1).max() < ROUNDING))
simple("every arm begins with the same vectors", lambda b: equal(b.models["causal"][0].states.side, b.models["shuffled"][0].states.side))
simple("tokens are embedded as by the target", lambda b: equal(b.models["causal"][0].states(b.ids), tower(b.target.model).embed_tokens(b.ids)))
simple("with the adapter off next tokens are the target's, up to rounding", lambda b: (
    f"{(d := apart(b.models['causal'][0].causal(b.ids[:2], adapter=False), b.target.model(b.ids[:2]))):.1e}", d < 1e-3))
simple("the second pass changes the readout", lambda b: (f"{(d := apart(b.logits('aligned'), b.logits('causal'))):.3f}", d > ROUNDING))
simple("and so does shuffling it", lambda b: (f"{(d := apart(b.logits('aligned'), b.logits('shuffled'))):.3f}", d > ROUNDING))
simple("the shuffled control permutes anew at every forward", lambda b: (f"{(d := apart(b.logits('shuffled', 0), b.logits('shuffled', 1))):.3f}", d > ROUNDING))


# --- training ---

@check("only adapter, conditioner and side table are trained")
def _(b):
    foreign = [name for name, _ in tree_flatten(b.trained[1].model.trainable_parameters()) if not states.allowed(name)]
    return f"{len(foreign)} others", not foreign


@check("states that were shown are moved, and no others")
def _(b):
    start, loop = np.array(b.models["aligned"][0].states.side), b.trained[1]
    moved = set(np.flatnonzero((np.array(loop.model.states.side) != start).any(1)).tolist())
    seen = set(np.unique(np.concatenate([np.array(loop.batches(s)[1]).ravel() for s in range(STEPS)])).tolist())
    wanted = {i - b.alphabet.vocab for i in seen if i >= b.alphabet.vocab}
    return f"{len(moved)} moved, {len(wanted)} shown", moved == wanted


simple("the target's digest is what it was", lambda b: (f"{b.target.digest()[:12]}", b.trained[0] == b.target.digest()))
simple("a launch repeats bit for bit", lambda b: ("the same" if (same := weights(b.trained[1]) == weights(b.launch())) else "others", same))


@check("a launch that was stopped goes on bit for bit")
def _(b):
    with tempfile.TemporaryDirectory() as folder:
        b.launch(1).save(Path(folder) / "half.safetensors")
        loop = b.launch(0)
        loop.resume(Path(folder) / "half.safetensors")
        loop.run(STEPS, say=lambda *_, **__: None)
    same = weights(loop) == weights(b.trained[1])
    return ("the same" if same else "others"), same


def run(bench: Bench, done: set[str]) -> Iterator[dict]:
    """The rows of the checks that are not in ``done``, in order."""
    for statement, function in CHECKS.items():
        if statement not in done:
            found, passed = function(bench)
            yield {"kind": "state_check", "check": statement, "found": found, "passed": bool(passed)}
