"""Act II: does a second pass over the reversed canvas help the recurrent layers to denoise? Arms A to E and two more controls.

A launch is one training run of one arm at one seed; all arms of a seed share the first adapter, the windows, their order and their
noise, so that they can be compared in pairs. All launches are judged on the same held-out windows under the same noise. Rows:
``reverse_windows`` (what the noise changed), ``gate_sweep`` (before any training), and for each launch its ``reverse_score`` rows by noise level and then
``reverse_launch``. A killed run goes on from its last finished launch. ``part=bare`` trains the same arms without the timestep conditioner, and the causal one with it.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from .. import criteria
from ..lora import DELTANET, PUBLISHED
from ..streams import DATA_SAMPLING, TRAIN_NOISE, TRAIN_RATE, stream_seed
from ..targets import Target, load_target, mx, nn
from ..train import denoise
from ..train.bidirectional import BidirectionalDeltaNet, Canvas, Mixing, gates, install
from ..train.corpus import windows
from ..train.denoise import ATTENTION, EVAL_CANVAS, Denoiser, canvas_loss, in_turn, replaced
from ..train.loop import Loop
from .common import journal_of, keeper

ACT, BARE = "act2", "act2_bare"
TEXT = f"denoise/{ACT}"  # what its documents are drawn by
PREFIX, CANVAS = 16, 32  # rows, as published
LEVELS, SWEPT = (0.5, 0.75, 0.9), 0.5
FIRST_SEED, EVAL_SEED, FIXED_SEED = 1234, 777, 0  # as published: of training, of the held-out noise, of the permutation that never changes
GATES = (1.0, 0.75, 0.5, 0.25, 0.0)
CONDITIONS = ("aligned", "shuffled", "none")
ADAPTERS = {"attention": ATTENTION, "all": PUBLISHED + DELTANET}
BATCH = 32  # windows of one forward without gradient
APART = 12  # held-out windows lie this many windows apart, about a document, so that they are separate evidence
TRACKED = 12  # times that the gates of a launch are read
ARMS = {"A": Mixing(), "B": Mixing("constant", 0.5), "C": Mixing("constant", 0.5, "shuffled"), "D": Mixing("constant", 0.0, "block_end"),
        "E": Mixing("scalar", 0.95)}
EXTRA = {"C_fixed": Mixing("constant", 0.95, "shuffled"), "E_half": Mixing("scalar", 0.5)}
"""The published control as it was (one permutation for good, nearly causal gate), and a gate that starts where arm B stays."""
CONDITIONED = {"A_conditioned": Mixing()}  # beside arms without a conditioner: the causal one with it


@dataclass(frozen=True)
class Recipe(denoise.Recipe):
    """``adapter``: what it is put on, "attention" as published or "all". ``conditioner``: of the noise level, free in size, as published."""

    adapter: str = "all"
    conditioner: bool = True


def allowed(name: str) -> bool:
    """What an arm may train: the adapter, the conditioner and the fusion."""
    return name.endswith(("lora_a", "lora_b", "linear_attn.gate", "linear_attn.weight", "linear_attn.bias")) or name.startswith("time.")


def build(target: Target, mixing: Mixing, recipe: Recipe) -> tuple[Denoiser, Canvas, list[BidirectionalDeltaNet]]:
    """A denoiser over the weights of ``target`` with a second pass, and what its layers share."""
    model, canvas = Denoiser(target, recipe.rank, ADAPTERS[recipe.adapter], recipe.scale, recipe.conditioner, seed=recipe.seed), Canvas(PREFIX)
    return model, canvas, install(model.adapted, mixing, canvas)


def shuffle(canvas: Canvas, arm: str, seed: int, step: int) -> None:
    """The permutation of one forward: drawn anew for every step, but of the published control one for good."""
    canvas.shuffle(CANVAS, *((FIXED_SEED,) if arm == "C_fixed" else (seed, step)))


def noisy(ids, canvas):
    """Windows ids [B, P + C] with another canvas [B, C]."""
    return mx.concatenate([ids[:, :PREFIX], canvas], axis=1)


def batches(text: np.ndarray, recipe: Recipe, vocab: int) -> Callable[[int], tuple]:
    """``batch(step)``: step, noisy windows, their clean canvas, noise level of each; a function of seed and step alone."""
    taken = in_turn(text, recipe.seed, DATA_SAMPLING, recipe.batch)

    def batch(step: int) -> tuple:
        ids = taken(step)
        key = lambda stream: mx.random.key(stream_seed(recipe.seed, stream, step))  # noqa: E731
        t, clean = mx.random.uniform(shape=(recipe.batch,), key=key(TRAIN_RATE)), ids[:, PREFIX:]
        return step, noisy(ids, replaced(clean, t, vocab, key(TRAIN_NOISE))), clean, t

    return batch


def held_out_noise(text: np.ndarray, level: float, vocab: int) -> mx.array:
    """The canvas [W, C] of every held-out window at one level, the same for all launches."""
    key = mx.random.key(stream_seed(EVAL_SEED, EVAL_CANVAS, LEVELS.index(level)))
    return replaced(mx.array(text[:, PREFIX:]), mx.full((len(text),), level), vocab, key)


def score(model: Denoiser, canvas: Canvas, arm: str, text: np.ndarray, level: float, vocab: int) -> dict:
    """The lists of a score row: by window, rows right, changed rows right, nats a row."""
    whole, found = held_out_noise(text, level, vocab), {"right": [], "changed_right": [], "nats": []}
    for first in range(0, len(text), BATCH):
        ids, rows = mx.array(text[first : first + BATCH]), whole[first : first + BATCH]
        clean, t = ids[:, PREFIX:], mx.full((len(ids),), level)
        shuffle(canvas, arm, EVAL_SEED, first)
        logits = model(noisy(ids, rows), PREFIX, t).astype(mx.float32)
        right = mx.argmax(logits, axis=-1) == clean
        found["right"] += right.sum(axis=-1).tolist()
        found["changed_right"] += (right & (rows != clean)).sum(axis=-1).tolist()
        found["nats"] += [round(v, 4) for v in nn.losses.cross_entropy(logits, clean).mean(axis=-1).tolist()]
    return found


def launch(target: Target, arm: str, recipe: Recipe, text: np.ndarray, held_out: np.ndarray) -> Iterator[dict]:
    """Train one arm at one seed; its score rows, then its launch row. One that becomes unstable has no scores and says why."""
    recipe = replace(recipe, conditioner=recipe.conditioner or arm in CONDITIONED)
    model, canvas, layers = build(target, (ARMS | EXTRA | CONDITIONED)[arm], recipe)

    def loss(model, step, ids, clean, t):
        shuffle(canvas, arm, recipe.seed, step)
        return canvas_loss(model, ids, clean, t, PREFIX, corrupted_only=True)

    loop = Loop(model, loss, batches(text, recipe, target.vocab_size), recipe, allowed=allowed, frozen=target.digest, log_every=1)
    tracked, stopped = [[0, *gates(layers)]], None
    try:
        for until in np.unique(np.linspace(0, recipe.steps, TRACKED + 1).astype(int))[1:].tolist():
            loop.run(until, say=lambda *_, **__: None)
            tracked.append([until, *(round(g, 5) for g in gates(layers))])
    except FloatingPointError as error:
        stopped = str(error)
    if stopped is None:
        for level in LEVELS:
            yield {"kind": "reverse_score", "arm": arm, "seed": recipe.seed, "level": level, **score(model, canvas, arm, held_out, level, target.vocab_size)}
    told = [entry for entry in loop.log["loss"] if np.isfinite(entry[1:]).all()]
    yield {"kind": "reverse_launch", "arm": arm, "seed": recipe.seed, "steps": recipe.steps, "trained": sum(v.size for v in model.trainable().values()), "losses": [e[1] for e in told],
           "norms": [e[2] for e in told], "gates": tracked if len(tracked[0]) > 1 else [], "seconds": loop.seconds, "stopped": stopped,
           "digest": model.fingerprint()}


def sweep(target: Target, recipe: Recipe, held_out: np.ndarray, gates: Sequence[float], done: set) -> Iterator[dict]:
    """Before any training: the loss by where the second output comes from and by how much of it is mixed in."""
    for condition in CONDITIONS:
        for gate in gates:
            if (condition, gate) not in done:
                model, canvas, _ = build(target, Mixing("constant", gate, condition), recipe)
                nats = score(model, canvas, "untrained", held_out, SWEPT, target.vocab_size)["nats"]
                yield {"kind": "gate_sweep", "condition": condition, "gate": gate, "level": SWEPT, "nats": nats}


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act II and write a row file beside ``journal``; a launch that was finished is not trained again.

    Args:
        params: target, seeds (number), steps, batch, lr, adapter, windows, train_windows, extra, quick.
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is trained, if an input does not fit.
    """
    return arms_of(ACT, params, ARMS | (EXTRA if params["extra"] else {}), FIRST_SEED, journal, progress, resume)


def bare(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """The arms without a timestep conditioner, and the causal one with it; seeds from the second on. Otherwise as :func:`measure`."""
    return arms_of(BARE, params, ARMS | (EXTRA if params["extra"] else {}) | CONDITIONED, FIRST_SEED + 1, journal, progress, resume)


def arms_of(act: str, params: dict, arms: dict[str, Mixing], first: int, journal: Path, progress, resume: bool) -> Path:
    """Train and judge ``arms`` under the rules of ``act``; seeds from ``first`` on."""
    target, seeds = load_target(params["target"], "float32"), [first + i for i in range(params["seeds"])]
    recipe = lambda seed: Recipe(seed, *(params[name] for name in ("steps", "batch", "lr")), adapter=params["adapter"], conditioner=act == ACT)  # noqa: E731
    gates = GATES if act == ACT else ()  # a conditioner begins at zero, so that before training there is nothing to compare
    text = windows(target, params["train_windows"], PREFIX + CANVAS, TEXT)
    held_out = windows(target, params["windows"], PREFIX + CANVAS, TEXT, held_out=True, apart=APART)
    config = {name: params[name] for name in ("target", "windows", "train_windows")} | {"reduced": params["quick"], "dtype": "float32", "seeds": seeds, "arms": list(arms),
              "mixing": {arm: asdict(m) for arm, m in arms.items()}, "levels": list(LEVELS), "gates": list(gates), "prefix": PREFIX, "canvas": CANVAS, "eval_seed": EVAL_SEED, "apart": APART, "forward": BATCH,
              "recipe": {k: v for k, v in asdict(recipe(0)).items() if k != "seed"}, "loss": "changed rows of the canvas",
              "text": {name: hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest() for name, ids in (("train", text), ("held_out", held_out))},
              "criteria": criteria.load(act).rules}
    total = len(LEVELS) + len(CONDITIONS) * len(gates) + len(seeds) * len(arms) * (len(LEVELS) + 1)
    with journal_of(act, journal, target, SimpleNamespace(name="none"), config, resume) as rows:
        keep = keeper(rows, total, progress)
        have = {(r["kind"], *(r.get(name) for name in ("arm", "seed", "level"))) for r in rows}
        changed = lambda level: (held_out_noise(held_out, level, target.vocab_size) != mx.array(held_out[:, PREFIX:])).sum(axis=-1).tolist()  # noqa: E731
        keep({"kind": "reverse_windows", "level": level, "canvas": CANVAS, "changed": changed(level)}
             for level in LEVELS if ("reverse_windows", None, None, level) not in have)
        keep(sweep(target, recipe(FIRST_SEED), held_out, gates, {(r["condition"], r["gate"]) for r in rows if r["kind"] == "gate_sweep"}))
        for seed in seeds:
            for arm in arms:
                if ("reverse_launch", arm, seed, None) not in have:  # its scores may be there already: the launch is made again and gives the same
                    keep(r for r in launch(target, arm, recipe(seed), text, held_out) if (r["kind"], arm, seed, r.get("level")) not in have)
    return journal.with_suffix(".json")
