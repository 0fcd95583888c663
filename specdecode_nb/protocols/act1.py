"""Act I: can a small adapter read tokens out in place? The four published runs, each learning one batch by heart, at several seeds.

One ``overfit`` row a launch (a run at a seed): losses, counts over training and over noise levels, unseen text, ordinary decoding with the adapter off
and left on, the sampler. A seed decides text, adapter and noise. A killed run goes on after its last finished launch.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from mlx.utils import tree_unflatten

from .. import criteria
from ..lora import PUBLISHED
from ..streams import TRAIN_NOISE, TRAIN_RATE, stream_seed
from ..targets import Target, load_target, mx, nn
from ..train.corpus import windows
from ..train.denoise import ATTENTION, EVAL_CANVAS, Denoiser, canvas_loss, ordinary_nats, replaced, tally, trains, unmask
from ..train.loop import Loop, Recipe
from .common import journal_of, keeper

ACT = "act1"
TEXT = f"denoise/{ACT}"  # what its documents are drawn by
PREFIX, CANVAS, EXAMPLES = 16, 32, 2  # rows and texts of the batch, as published
HIGHEST = 0.5  # noise level in training
FIRST_SEED = 1234
WARMUP = 10  # steps
LEVELS = (0.0, 0.1, 0.5, 0.9, 1.0)
EVERY = 10  # steps between counts
FORWARDS = 8  # of the sampler
POOL, APART = 128, 9  # windows that the texts are drawn from; distance of the held-out ones, which then are of all categories
TEXTS, TEXT_ROWS, GREEDY = 8, 128, 32  # held-out windows of the perplexity, their tokens; tokens decoded greedily


@dataclass(frozen=True)
class Run:
    """One published run: which projections are adapted, at which rank, for how many steps, and which rows are scored.

    The published ``alpha / r`` is 2. The learning rate is not recorded there, and is ours.
    """

    adapter: str
    rank: int
    steps: int
    corrupted_only: bool = False
    lowest: float = 0.0
    scale: float = 2.0


MODULES = {"attention": ATTENTION, "attention + MLP": PUBLISHED}
RUNS = {"001": Run("attention", 16, 60), "002": Run("attention", 16, 60, True, 0.1), "003": Run("attention + MLP", 32, 150), "004": Run("attention", 16, 150)}


def examples(target: Target, seed: int, held_out: bool):
    """The texts of one launch, [EXAMPLES, P + C]: windows of documents drawn by the seed."""
    pool = windows(target, POOL, PREFIX + CANVAS, f"{TEXT}/{seed}", held_out)
    return mx.array(pool[np.random.default_rng(seed).permutation(POOL)[:EXAMPLES]])


def noisy(clean, t, vocab: int, seed: int, stream: int, step: int):
    """The windows clean [B, P + C] with a canvas whose ids were replaced at the rates t [B]."""
    key = mx.random.key(stream_seed(seed, stream, step))
    return mx.concatenate([clean[:, :PREFIX], replaced(clean[:, PREFIX:], t, vocab, key)], axis=1)


def levels(count: int, lowest: float, seed: int, stream: int, step: int):
    """Noise levels [count], even from ``lowest`` to HIGHEST."""
    return mx.random.uniform(lowest, HIGHEST, (count,), key=mx.random.key(stream_seed(seed, stream, step)))


def counts(model: Denoiser, clean, t, vocab: int, seed: int, step: int) -> tuple:
    """Rows by :func:`..train.denoise.tally` for noisy copies of clean [B, P + C] at levels t, as many times B as there are copies; also the noisy ids and logits."""
    many = mx.concatenate([clean] * (len(t) // len(clean)))
    ids = noisy(many, t, vocab, seed, EVAL_CANVAS, step)
    logits = model(ids, PREFIX, t).astype(mx.float32)
    return tally(mx.argmax(logits, axis=-1), ids[:, PREFIX:], many[:, PREFIX:]), ids, logits


def as_trained(model: Denoiser, clean, draws: int, vocab: int, seed: int) -> dict:
    """Counts under the noise of training, on draws that are the same at every step."""
    return counts(model, clean, levels(draws * len(clean), 0.0, seed, EVAL_CANVAS, 1), vocab, seed, 2)[0]


def at_level(model: Denoiser, clean, level: float, draws: int, vocab: int, seed: int) -> dict:
    """Counts, loss and what the target itself reads at one noise level."""
    found, ids, logits = counts(model, clean, mx.full((draws * len(clean),), level), vocab, seed, 3)
    many = mx.concatenate([clean] * draws)[:, PREFIX:]
    base = mx.argmax(model(ids, PREFIX, adapter=False), axis=-1)
    following = base[:, :-1] == many[:, 1:]
    return {"t": level, **found, "nats": nn.losses.cross_entropy(logits, many).mean().item(), "base_right": (base == many).sum().item(),
            "base_next_right": following.sum().item(), "base_next_rows": following.size}


def greedy(model: Denoiser, prompt, adapter: bool) -> list[int]:
    """GREEDY tokens after ``prompt`` [1, T] by ordinary decoding."""
    ids = prompt
    for _ in range(GREEDY):
        ids = mx.concatenate([ids, mx.argmax(model.causal(ids, adapter)[:, -1:], axis=-1).astype(ids.dtype)], axis=1)
    return ids[0, prompt.shape[1] :].tolist()


def fill(model: Denoiser, text, vocab: int, seed: int) -> dict:
    """One text [1, P + C] whose canvas is noise at first."""
    start = mx.random.randint(0, vocab, (1, CANVAS), key=mx.random.key(stream_seed(seed, EVAL_CANVAS, 4)))
    trace = list(unmask(model, text[:, :PREFIX], start, FORWARDS))
    return {"sure": [min(1.0, t[2]) for t in trace], "vague": [max(0.0, t[3]) for t in trace], "rows": CANVAS,
            "right": int((trace[-1][0] == np.array(text)[0, PREFIX:]).sum())}


def launch(target: Target, name: str, run: Run, draws: int, recipe: Recipe) -> dict:
    """Train one run at one seed and measure it on ``draws`` noisy copies of its batch: its row."""
    seed, vocab, before = recipe.seed, target.vocab_size, target.digest()
    clean, unseen = (examples(target, seed, held_out) for held_out in (False, True))
    model = Denoiser(target, run.rank, MODULES[run.adapter], run.scale, seed=seed)

    def batch(step: int) -> tuple:
        t = levels(EXAMPLES, run.lowest, seed, TRAIN_RATE, step)
        return noisy(clean, t, vocab, seed, TRAIN_NOISE, step), t

    loop = Loop(model, lambda m, ids, t: canvas_loss(m, ids, clean[:, PREFIX:], t, PREFIX, run.corrupted_only), batch, recipe, allowed=trains,
                frozen=target.digest, log_every=1)
    curve = [{"step": 0, **as_trained(model, clean, draws, vocab, seed)}]
    for until in sorted({*range(EVERY, run.steps, EVERY), run.steps}):
        loop.run(until, say=lambda *_, **__: None)
        curve.append({"step": until, **as_trained(model, clean, draws, vocab, seed)})
    held_out = windows(target, TEXTS, TEXT_ROWS, TEXT, True, APART)
    plain = Denoiser(target, run.rank, MODULES[run.adapter], run.scale, seed=seed, fast=False)
    plain.update(tree_unflatten(list(model.trainable().items())))
    bits = np.array(plain.causal(clean, adapter=False)).view(np.uint32) != np.array(target.model(clean)).view(np.uint32)
    return {"kind": "overfit", "run": name, "seed": seed, "steps": run.steps, "trained": sum(v.size for v in model.trainable().values()),
            "losses": [entry[1] for entry in loop.log["loss"]], "curve": curve, "levels": [at_level(model, clean, t, draws, vocab, seed) for t in LEVELS],
            "unseen": as_trained(model, unseen, draws, vocab, seed),
            "nats_off": ordinary_nats(model, held_out, False), "nats_on": ordinary_nats(model, held_out, True),
            "greedy_off": greedy(model, unseen[:1], False), "greedy_on": greedy(model, unseen[:1], True),
            "fills": [fill(model, clean[i : i + 1], vocab, seed) for i in range(EXAMPLES)], "bits_changed": int(bits.sum()), "digest": model.fingerprint(),
            "target_before": before, "target_after": target.digest(), "seconds": loop.seconds}


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act I and write a row file beside ``journal``; a launch that was finished is not trained again.

    Args:
        params: target, seeds (number), share (of the published steps), draws, lr, quick.
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is trained, if an input does not fit.
    """
    target = load_target(params["target"], "float32")
    seeds = [FIRST_SEED + i for i in range(params["seeds"])]
    runs = {name: replace(run, steps=max(1, round(params["share"] * run.steps))) for name, run in RUNS.items()}
    config = {"target": params["target"], "dtype": "float32", "reduced": params["quick"] or params["share"] < 1, "seeds": seeds, "lr": params["lr"], "warmup": WARMUP,
              "runs": {name: asdict(run) for name, run in runs.items()}, "prefix": PREFIX, "canvas": CANVAS, "examples": EXAMPLES,
              "highest": HIGHEST, "levels": list(LEVELS), "draws": params["draws"], "forwards": FORWARDS, "criteria": criteria.load(ACT).rules}
    with journal_of(ACT, journal, target, SimpleNamespace(name="none"), config, resume) as rows:
        keep, done = keeper(rows, len(seeds) * len(runs), progress), {(r["run"], r["seed"]) for r in rows}
        for seed in seeds:
            keep(launch(target, name, run, params["draws"], Recipe(params["lr"], WARMUP, run.steps, seed)) for name, run in runs.items() if (name, seed) not in done)
    return journal.with_suffix(".json")
