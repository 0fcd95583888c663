"""Train a Uno drafter: noise blocks that branch off one frozen pass over clean text.

    python -m specdecode_nb.train.uno OUT.safetensors [--rank R --modules published|all --objective tv|ce --own-text ...]

The clean rows are not adapted, so their keys, values and recurrent states carry no gradient. One pass over a window
keeps the state after every row; blocks of noise rows then start from many anchors at once, from exactly the states that
decoding sees. The published layout (one block at the end of each window) is :func:`suffix_loss`; on the same blocks
both give the same loss.
"""
from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ..backend import mx, nn  # isort: skip

import mlx.optimizers as optim
import numpy as np

from ..gdn import RecurrentCache, Tape
from ..lora import DELTANET, PUBLISHED, adapter_weights, attach, save_adapter
from ..streams import DATA_SAMPLING, EVAL_NOISE, TRAIN_NOISE, TRAIN_RATE, stream_seed
from ..targets import Target, load_target
from .fast import adopt_mlp

MODULES = {"published": PUBLISHED, "all": PUBLISHED + DELTANET}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result, besides the target and the text. ``block`` is K at training (slots 2..K)."""

    rank: int = 32
    modules: str = "all"
    objective: str = "ce"
    own_text: bool = True
    block: int = 8
    corruption: str = "full"
    lr: float = 2e-3
    warmup: int = 20
    steps: int = 400
    windows: int = 2
    anchors: int = 64
    seed: int = 20260903


class _AnchoredKV:
    """Keys and values of a clean pass, seen by every block up to its own anchor; stands in for a KVCache."""

    def __init__(self, keys, values, window_of, anchors):
        self._keys, self._values = keys[window_of], values[window_of]
        self._anchors = anchors
        self.offset = anchors + 1  # rotary position of the first noise row, per block

    def make_mask(self, n, **_):
        clean = mx.arange(self._keys.shape[2])[None, :] <= self._anchors[:, None]
        block = mx.tril(mx.ones((n, n), dtype=mx.bool_))
        shape = (len(self._anchors), 1, n)
        return mx.concatenate([mx.broadcast_to(clean[:, None, None, :], (*shape, clean.shape[1])),
                               mx.broadcast_to(block[None, None], (*shape, n))], axis=-1)

    def update_and_fetch(self, keys, values):
        return mx.concatenate([self._keys, keys], axis=2), mx.concatenate([self._values, values], axis=2)


def clean_pass(target: Target, ids: mx.array):
    """One frozen pass over ids [B, W]. Returns logits [B, W, V] and the caches, with the state after each row recorded."""
    cache = target.make_cache()
    for c in cache:
        if isinstance(c, RecurrentCache):
            c.tape = Tape(keep_states=True)
    logits = target.model(ids, cache=cache)
    return logits, cache


def branch(cache: list, window_of: mx.array, anchors: mx.array) -> list:
    """Caches for blocks that go on after row ``anchors[n]`` of window ``window_of[n]``; both int [N]."""
    result = []
    for c in cache:
        if isinstance(c, RecurrentCache):
            b = RecurrentCache()
            width = c.tape.conv_before.shape[1]
            rows = anchors[:, None] + 1 + mx.arange(width)[None]
            b[0] = c.tape.conv_rows[window_of[:, None], rows]
            b[1] = mx.stack(c.tape.states, axis=1)[window_of, anchors]
            result.append(b)
        else:
            result.append(_AnchoredKV(*c.keys_and_values(), window_of, anchors))
    return result


def objective_sum(student, teacher, kind: str):
    """Loss summed over rows; logits [N, R, V]. ``tv`` is the L1 distance of the distributions, in [0, 2] a row;
    ``ce`` is the cross-entropy of the student against the teacher's distribution, in nats."""
    q, p = student.astype(mx.float32), mx.softmax(teacher.astype(mx.float32), axis=-1)
    if kind == "tv":
        return mx.abs(mx.softmax(q, axis=-1) - p).sum()
    return (mx.logsumexp(q, axis=-1) - (p * q).sum(axis=-1)).sum()


def corrupt(ids, target_vocab: int, recipe: Recipe, step: int, stream: int = TRAIN_NOISE):
    """Draft rows from the true tokens ids [N, R]: all noise (``full``), or each one noise with a rate t ~ U(0,1) a block."""
    noise_key, keep_key = mx.random.split(mx.random.key(stream_seed(recipe.seed, stream, step)))
    noise = mx.random.randint(1, target_vocab, ids.shape, key=noise_key).astype(ids.dtype)
    if recipe.corruption == "full":
        return noise
    rate = mx.random.uniform(shape=(ids.shape[0], 1), key=mx.random.key(stream_seed(recipe.seed, TRAIN_RATE, step)))
    return mx.where(mx.random.uniform(shape=ids.shape, key=keep_key) < rate, noise, ids)


def branch_loss(adapted, gate, rows, caches, teacher, kind: str):
    """Loss per supervised row, the seed row (which is exact and adds nothing) counted, as published: sum / (N (R + 1))."""
    gate.rows(mx.ones(rows.shape))
    return objective_sum(adapted(rows, cache=caches), teacher, kind) / (rows.shape[0] * (rows.shape[1] + 1))


def suffix_loss(adapted, gate, target: Target, ids, rows, kind: str):
    """The published layout: ids [N, s + 1] clean rows, then the draft rows [N, R], in one forward from position 0.

    The teacher reads the clean continuation; it is passed as the last R columns of ``ids`` [N, s + 1 + R].
    """
    n, r = rows.shape
    clean = ids[:, : ids.shape[1] - r]
    teacher = target.model(ids)[:, -r:]
    gate.rows(mx.concatenate([mx.zeros(clean.shape), mx.ones(rows.shape)], axis=1))
    student = adapted(mx.concatenate([clean, rows], axis=1))[:, -r:]
    return objective_sum(student, teacher, kind) / (n * (r + 1))


def own_windows(target: Target, tokens: np.ndarray, n: int, prefix: int, length: int, seed: int, batch: int = 136) -> np.ndarray:
    """n windows [n, length]: ``prefix`` tokens of text, then the target's own greedy continuation."""
    rng = np.random.default_rng(stream_seed(seed, DATA_SAMPLING, 0))
    starts = rng.integers(0, len(tokens) - prefix - 1, n)
    made = []
    for first in range(0, n, batch):
        rows = np.stack([tokens[s : s + prefix] for s in starts[first : first + batch]]).astype(np.int32)
        cache, out = target.make_cache(), [rows]
        y = mx.argmax(target.model(mx.array(rows), cache=cache)[:, -1:], axis=-1)
        for _ in range(length - prefix):
            out.append(y)
            y = mx.argmax(target.model(y, cache=cache)[:, -1:], axis=-1)
            mx.eval(y, [c.state[0] for c in cache])
        made.append(np.concatenate([np.array(o) for o in out], axis=1))
    return np.concatenate(made)


def _blocks(target, windows, recipe: Recipe, step: int, stream: int, lowest: int):
    """Clean pass, anchors and draft rows of one step; everything without gradient."""
    rng = np.random.default_rng(stream_seed(recipe.seed, DATA_SAMPLING if stream == TRAIN_NOISE else stream, step + 1))
    r = recipe.block - 1
    ids = mx.array(windows[rng.choice(len(windows), recipe.windows, replace=False)].astype(np.int32))
    anchors = mx.array(rng.integers(lowest, ids.shape[1] - r - 1, recipe.windows * recipe.anchors))
    window_of = mx.array(np.repeat(np.arange(recipe.windows), recipe.anchors))
    logits, cache = clean_pass(target, ids)
    at = anchors[:, None] + 1 + mx.arange(r)[None]
    teacher = logits[window_of[:, None], at]
    rows = corrupt(ids[window_of[:, None], at], target.vocab_size, recipe, step, stream)
    caches = branch(cache, window_of, anchors)
    mx.eval(teacher, rows, [[c[0], c[1]] if isinstance(c, RecurrentCache) else [c._keys, c._values] for c in caches])
    return rows, caches, teacher


def agreement(target, adapted, gate, windows, recipe: Recipe, batches: int = 4, lowest: int = 16) -> dict:
    """Teacher-forced on held-out windows under full noise: match per slot, mean accepted prefix, L1 distance a row."""
    full = Recipe(**(asdict(recipe) | {"corruption": "full"}))
    matches, l1 = [], []
    for b in range(batches):
        rows, caches, teacher = _blocks(target, windows, full, b, EVAL_NOISE, lowest)
        gate.rows(mx.ones(rows.shape))
        student = adapted(rows, cache=caches)
        matches.append(np.array(mx.argmax(student, -1) == mx.argmax(teacher, -1)))
        l1.append(objective_sum(student, teacher, "tv").item() / (rows.shape[0] * (rows.shape[1] + 1)))
    m = np.concatenate(matches)
    return {"per_slot": [round(float(v), 4) for v in m.mean(0)], "l1": round(float(np.mean(l1)), 4), "blocks": len(m),
            "prefix_k4": round(float(np.cumprod(m[:, :3], 1).sum(1).mean()), 4),
            "prefix_k8": round(float(np.cumprod(m, 1).sum(1).mean()), 4)}


def train(target: Target, windows: np.ndarray, heldout: np.ndarray, recipe: Recipe, lowest: int = 16, say=print):
    """Train an adapter; the target's weights are untouched by construction (compare its digest before and after).

    Returns:
        (adapted model, gate, log) with the loss every 10 steps and the teacher-forced agreement every 100.
    """
    adapted, gate = attach(target.model, recipe.rank, MODULES[recipe.modules], seed=recipe.seed)
    for layer in adapted.layers:
        layer.mlp = adopt_mlp(layer.mlp)
    schedule = lambda s: recipe.lr * min((s + 1) / recipe.warmup, 1.0) * max(0.05, 1 - s / recipe.steps)  # noqa: E731
    optimizer = optim.AdamW(recipe.lr, weight_decay=0.0)
    step_loss = nn.value_and_grad(adapted, lambda m, *a: branch_loss(m, gate, *a, recipe.objective))
    log, began, quiet = {"loss": [], "agreement": []}, time.perf_counter(), 0
    log["agreement"].append([0, agreement(target, adapted, gate, heldout, recipe, lowest=lowest)])
    for step in range(recipe.steps):
        loss, grads = step_loss(adapted, *_blocks(target, windows, recipe, step, TRAIN_NOISE, lowest))
        grads, norm = optim.clip_grad_norm(grads, 1.0)
        optimizer.learning_rate = schedule(step)
        optimizer.update(adapted, grads)
        mx.eval(adapted.trainable_parameters(), optimizer.state, loss, norm)
        quiet = quiet + 1 if norm.item() < 1e-3 else 0
        if not np.isfinite(loss.item()) or quiet >= 5:
            raise FloatingPointError(f"Training stopped at step {step}: loss {loss.item()}, gradient norm {norm.item():.2g}; lower the rate.")
        if (step + 1) % 10 == 0:
            log["loss"].append([step + 1, round(loss.item(), 4)])
        if (step + 1) % 100 == 0 or step + 1 == recipe.steps:
            log["agreement"].append([step + 1, agreement(target, adapted, gate, heldout, recipe, lowest=lowest)])
            say(step + 1, loss.item(), log["agreement"][-1][1], f"{time.perf_counter() - began:.0f} s", flush=True)
    log["seconds"] = round(time.perf_counter() - began, 1)
    return adapted, gate, log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--target", default="tiny-hybrid")
    parser.add_argument("--own-text", action=argparse.BooleanOptionalAction, default=Recipe.own_text)
    parser.add_argument("--windows-file", type=Path, help="cache of the target's own windows")
    parser.add_argument("--window", type=int, default=384)
    parser.add_argument("--text-windows", type=int, default=512)
    for name in ("rank", "block", "steps", "anchors", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Recipe, name))
    parser.add_argument("--lr", type=float, default=Recipe.lr)
    parser.add_argument("--modules", choices=MODULES, default=Recipe.modules)
    parser.add_argument("--objective", choices=("tv", "ce"), default=Recipe.objective)
    parser.add_argument("--corruption", choices=("full", "uniform"), default=Recipe.corruption)
    o = parser.parse_args()
    recipe = Recipe(o.rank, o.modules, o.objective, o.own_text, o.block, o.corruption, o.lr, steps=o.steps, anchors=o.anchors, seed=o.seed)
    target, tokens = load_target(o.target), np.load(o.corpus / "train.npy")
    before = target.digest()
    if o.windows_file and o.windows_file.exists():
        own = np.load(o.windows_file)
    else:
        own = own_windows(target, tokens, o.text_windows + 32, 128, o.window, o.seed)
        if o.windows_file:
            np.save(o.windows_file, own)
    n = (len(tokens) - 1) // o.window
    text = tokens[: n * o.window].reshape(n, o.window)
    windows = own[32:] if recipe.own_text else text
    adapted, gate, log = train(target, windows, own[:32], recipe, lowest=128)
    if target.digest() != before:
        raise RuntimeError("The target's digest changed during training; the adapter is void.")
    save_adapter(o.out, adapted, {"scale": 16.0, "recipe": asdict(recipe), "target": target.name, "target_digest": before,
                                  "parameters": sum(v.size for v in adapter_weights(adapted).values())})
    o.out.with_suffix(".json").write_text(json.dumps({"recipe": asdict(recipe), "target_digest": before, "log": log}, indent=1) + "\n")


if __name__ == "__main__":
    main()
