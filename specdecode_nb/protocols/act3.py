"""Act III: ordinary decoding and masked denoising trained at once, the size of the timestep bias as a controlled comparison, and the sampler.

``masked_launch`` rows: arm "none" (the published second run, without a conditioner) for ``steps`` steps; arms "free" (the aborted first run: the
conditioner's bias grows as it will), "x1" and "x20" (the bias has the norm of 1 or 20 token embeddings, all else equal) for ``bias_steps`` steps.
``canvas`` rows: canvases of arm "none" after prefixes of held-out windows, and the target's own, scored by the target. A killed
launch goes on from its last checkpoint, beside the journal.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from .. import criteria
from ..errors import BadInput
from ..lora import PUBLISHED
from ..sampling import logprobs_of
from ..statistics import distinct_ratio, looped_fraction
from ..streams import SAMPLE_NOISE, TRAIN_NOISE, TRAIN_RATE, stream_seed
from ..targets import Target, load_target, mx
from ..train.corpus import windows
from ..train.denoise import EVAL_CANVAS, RECURRENT, SCRAMBLE, Denoiser, both_losses, in_turn, masks, ordinary_nats, scrambled, trains, unmask
from ..train.loop import Loop, Recipe
from .common import journal_of, keeper

ACT, FIRST_SEED, EVAL_SEED = "act3", 20260825, 777
TEXT = f"denoise/{ACT}"  # what its documents are drawn by
PREFIX, CANVAS, BATCH = 64, 128, 2  # rows and windows, as published
RANK, SCALE, WEIGHT = 32, 2.0, 1.0  # WEIGHT is lambda
LEVELS, LOWEST = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0), 0.05
ARMS: dict[str, dict] = {"none": {"timestep": False}, "free": {}, "x1": {"size": 1.0}, "x20": {"size": 20.0}}
FILLS = ((0.0, 8), (0.0, 64), (0.5, 8))  # share of the canvas that is given, forwards
SHARES = (0.1, 0.5)  # of a launch, after which its health is taken, besides its start and end
SAVE_EVERY, FORWARD, APART = 100, 8, 9  # steps between checkpoints; windows of one forward without gradient; distance of the held-out ones


def mask_id(target: Target) -> int:
    """An id that no text holds, in the place of the published unused embedding row: the padding token's. Raises BadInput if there is none."""
    found = getattr(target.tokenizer, "pad_token_id", None)
    if found is None or found in target.eos_ids:
        raise BadInput(f"The tokenizer of target {target.name!r} has no padding token of its own to stand for a mask; choose tiny-hybrid.")
    return int(found)


def build(target: Target, arm: str, seed: int) -> Denoiser:
    return Denoiser(target, RANK, PUBLISHED + RECURRENT, SCALE, block_end=True, seed=seed, **ARMS[arm])


def batches(text: np.ndarray, recipe: Recipe) -> Callable[[int], tuple]:
    """``batch(step)``: windows [B, P + C], hidden [B, C], noise levels [B], a function of seed and step alone."""
    taken = in_turn(text, recipe.seed, TRAIN_NOISE, BATCH)

    def batch(step: int) -> tuple:
        key = lambda stream: mx.random.key(stream_seed(recipe.seed, stream, step))  # noqa: E731
        t = mx.random.uniform(LOWEST, 1.0, (BATCH,), key=key(TRAIN_RATE))
        return taken(step), masks(t, CANVAS, key(TRAIN_NOISE)), t

    return batch


def masked(model: Denoiser, text: np.ndarray, level: float, mask: int) -> dict:
    """Held-out windows at one noise level, masks and scrambling the same for every launch: the fields of a ``Masked`` entry."""
    found: dict = {name: [] for name in ("hidden_right", "visible_right", "visible_next", "visible_next_of", "names_mask", "nats", "canvas_l1")}
    for first in range(0, len(text), FORWARD):
        ids, step = mx.array(text[first : first + FORWARD]), 1000 * LEVELS.index(level) + first
        t, true = mx.full((len(ids),), level), ids[:, PREFIX:]
        hidden = masks(t, CANVAS, mx.random.key(stream_seed(EVAL_SEED, EVAL_CANVAS, step)))
        shown = mx.where(hidden, mask, true)
        join = lambda canvas, ids=ids: mx.concatenate([ids[:, :PREFIX], canvas], axis=1)  # noqa: E731
        logits = model(join(shown), PREFIX, t).astype(mx.float32)
        mixed = model(join(scrambled(shown, hidden, mx.random.key(stream_seed(EVAL_SEED, SCRAMBLE, step)))), PREFIX, t).astype(mx.float32)
        best, count = mx.argmax(logits, axis=-1), hidden.sum(axis=-1)
        nats = mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, true[..., None], axis=-1)[..., 0]
        moved = mx.abs(mx.softmax(logits, axis=-1) - mx.softmax(mixed, axis=-1)).sum(axis=-1)
        found["hidden_right"] += ((best == true) & hidden).sum(axis=-1).tolist()
        found["visible_right"] += ((best == true) & ~hidden).sum(axis=-1).tolist()
        found["visible_next"] += ((best[:, :-1] == true[:, 1:]) & ~hidden[:, :-1]).sum(axis=-1).tolist()
        found["visible_next_of"] += (~hidden[:, :-1]).sum(axis=-1).tolist()
        found["names_mask"] += ((best == mask) & hidden).sum(axis=-1).tolist()
        found["nats"] += ((nats * hidden).sum(axis=-1) / count).tolist()
        found["canvas_l1"] += ((moved * hidden).sum(axis=-1) / count).tolist()
    many = round(level * CANVAS)
    return {"t": level, "hidden": many, "visible": CANVAS - many, **found}


def health(model: Denoiser, step: int, text: np.ndarray, mask: int) -> dict:
    """The state of a launch on held-out windows."""
    bias = (mx.linalg.norm(model.time(mx.array(LEVELS)), axis=-1) / model.unit).tolist() if "time" in model else []
    return {"step": step, "ar": ordinary_nats(model, text, True), "bias": bias, "levels": [masked(model, text, level, mask) for level in LEVELS]}


def launch(target: Target, arm: str, recipe: Recipe, text: np.ndarray, held_out: np.ndarray, checkpoint: Path) -> tuple[dict, Denoiser]:
    """Train one arm at one seed, or go on from ``checkpoint``: its row, and the model."""
    before, mask, parts = target.digest(), mask_id(target), []
    model, draw = build(target, arm, recipe.seed), batches(text, recipe)

    def keep_parts():
        for name, part in zip(("ar", "diff"), parts):
            loop.log[name].append(round(part.item(), 4))
        parts.clear()

    def batch(step: int) -> tuple:
        keep_parts()  # of the step before
        return draw(step)

    def loss(model, ids, hidden, t):
        parts[:] = both_losses(model, ids, hidden, t, PREFIX, mask)
        return parts[0] + WEIGHT * parts[1]

    loop = Loop(model, loss, batch, recipe, allowed=trains, frozen=target.digest, log_every=1)
    loop.log |= {"ar": [], "diff": [], "health": []}
    if checkpoint.exists():
        loop.resume(checkpoint)
    stopped, points = None, {0, recipe.steps, *(int(share * recipe.steps) for share in SHARES)}
    try:
        for until in sorted(points | {*range(SAVE_EVERY, recipe.steps, SAVE_EVERY)}):
            if until < loop.step or until in {h["step"] for h in loop.log["health"]}:
                continue
            loop.run(until, say=lambda *_, **__: None)
            keep_parts()
            if until in points:
                loop.log["health"].append(health(model, until, held_out, mask))
            loop.save(checkpoint)
    except FloatingPointError as error:
        stopped = str(error)
    row = {"kind": "masked_launch", "arm": arm, "seed": recipe.seed, "steps": recipe.steps, "trained": sum(v.size for v in model.trainable().values()),
           **{name: loop.log[name] for name in ("ar", "diff", "health")}, "stopped": stopped, "digest": model.fingerprint(),
           "target_before": before, "target_after": target.digest(), "seconds": loop.seconds}
    return row, model


def told(target: Target, prompt: np.ndarray, tokens: list[int], true: np.ndarray, written: np.ndarray | None = None) -> dict:
    """What a canvas row says of ``tokens`` after ``prompt``: repetition, and of the rows that were ``written`` (bool [C], default all, so that
    given ones do not count) nats a token under the target and rows right."""
    written = np.ones(len(tokens), bool) if written is None else written
    logits = target.model(mx.array([[*prompt.tolist(), *tokens]]))[0, len(prompt) - 1 : -1]
    nats = -np.array(logprobs_of(logits, mx.array(tokens)))[written]
    return {"tokens": tokens, "nats": float(nats.mean()), "distinct": distinct_ratio(tokens), "looped": looped_fraction(tokens),
            "written": int(written.sum()), "right": int((np.array(tokens) == true)[written].sum())}


def own_text(target: Target, prompt: np.ndarray, drawn: bool, window: int) -> list[int]:
    """CANVAS tokens of the target itself after ``prompt``, its best ones or drawn at temperature 1."""
    cache, out = target.make_cache(), []
    logits = target.model(mx.array(prompt)[None], cache=cache)[:, -1].astype(mx.float32)
    for place in range(CANVAS):
        key = mx.random.key(stream_seed(EVAL_SEED + window, SAMPLE_NOISE, place))
        out.append((mx.random.categorical(logits, key=key) if drawn else mx.argmax(logits, axis=-1)).item())
        logits = target.model(mx.array([[out[-1]]]), cache=cache)[:, -1].astype(mx.float32)
    return out


def own_rows(target: Target, held_out: np.ndarray, done: set) -> Iterator[dict]:
    """The held-out canvas and the target's own ones, for every window; ``done``: (source, window)."""
    for n, window in enumerate(held_out):
        prompt, true = window[:PREFIX], window[PREFIX:]
        for source in ("truth", "greedy", "drawn"):
            if (source, n) not in done:
                tokens = true.tolist() if source == "truth" else own_text(target, prompt, source == "drawn", n)
                yield {"kind": "canvas", "section": "own", "source": source, "seed": 0, "window": n, "given": 0.0, "forwards": 0,
                       **told(target, prompt, tokens, true)}


def sampled_rows(target: Target, model: Denoiser, seed: int, held_out: np.ndarray) -> Iterator[dict]:
    """Canvases that the sampler fills after the prefix of every window."""
    for n, window in enumerate(held_out):
        prompt, true = window[:PREFIX], window[PREFIX:]
        for given, forwards in FILLS:
            hidden = np.array(masks(mx.array([1 - given]), CANVAS, mx.random.key(stream_seed(EVAL_SEED, EVAL_CANVAS, 10**6 + n)))[0])
            start = np.where(hidden, mask_id(target), true)
            trace = list(unmask(model, mx.array(prompt)[None], mx.array(start)[None], forwards, ~hidden))
            yield {"kind": "canvas", "section": "sampled", "source": "sampler", "seed": seed, "window": n, "given": given, "forwards": forwards,
                   **told(target, prompt, trace[-1][0].tolist(), true, hidden), "sure": [min(1.0, step[2]) for step in trace], "vague": [max(0.0, step[3]) for step in trace]}


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act III and write a row file beside ``journal``; finished launches are kept, an unfinished one goes on from its checkpoint.

    Args:
        params: target, seeds (number), steps, bias_steps, lr, windows (held out), prompts (of them for the sampler), quick.
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is trained, if an input does not fit.
    """
    target = load_target(params["target"], "float32")
    mask, seeds = mask_id(target), [FIRST_SEED + i for i in range(params["seeds"])]
    text = windows(target, BATCH * max(params["steps"], params["bias_steps"]), PREFIX + CANVAS, TEXT)
    held_out = windows(target, params["windows"], PREFIX + CANVAS, TEXT, True, APART)
    some = held_out[: params["prompts"]]
    config = {name: params[name] for name in ("target", "steps", "bias_steps", "lr", "windows")}
    config |= {"dtype": "float32", "reduced": params["quick"], "seeds": seeds, "prompts": len(some), "warmup": Recipe.warmup, "arms": ARMS,
               "levels": list(LEVELS), "lowest": LOWEST, "prefix": PREFIX, "canvas": CANVAS, "batch": BATCH, "rank": RANK, "scale": SCALE, "lambda": WEIGHT, "mask_id": mask, "eval_seed": EVAL_SEED,
               "shared_windows": len({w.tobytes() for w in text} & {w.tobytes() for w in held_out}), "fills": [list(f) for f in FILLS],
               "criteria": criteria.load(ACT).rules}
    total = 3 * len(some) + len(seeds) * (len(ARMS) + len(FILLS) * len(some))
    with journal_of(ACT, journal, target, SimpleNamespace(name="none"), config, resume) as rows:
        keep, checkpoint = keeper(rows, total, progress), lambda arm, seed: journal.with_name(f"{journal.stem}-{arm}-{seed}.safetensors")
        if not len(rows):  # what lies there is of another measurement
            for seed in seeds:
                for arm in ARMS:
                    checkpoint(arm, seed).unlink(missing_ok=True)
        keep(own_rows(target, some, {(r["source"], r["window"]) for r in rows if r["kind"] == "canvas"}))
        for seed in seeds:
            for arm in ARMS:
                have = {(r["kind"], r.get("arm"), r["seed"], r.get("window"), r.get("given"), r.get("forwards")) for r in rows}
                if ("masked_launch", arm, seed, None, None, None) in have:
                    continue
                recipe = Recipe(params["lr"], steps=params["steps"] if arm == "none" else params["bias_steps"], seed=seed)
                row, model = launch(target, arm, recipe, text, held_out, checkpoint(arm, seed))
                if arm == "none" and row["stopped"] is None:  # before the launch row, so that a launch whose row is there is whole
                    keep(r for r in sampled_rows(target, model, seed, some) if ("canvas", None, seed, r["window"], r["given"], r["forwards"]) not in have)
                keep([row])
                checkpoint(arm, seed).unlink(missing_ok=True)
    return journal.with_suffix(".json")
