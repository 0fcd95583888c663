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
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile

from ..backend import mx  # isort: skip

import numpy as np
from mlx.utils import tree_unflatten

from ..ending import guarded, take_away
from ..errors import BadInput
from ..families import embed_and_head, tower
from ..gdn import RecurrentCache, Tape
from ..lora import DELTANET, PUBLISHED, adapter_weights, attach, load_adapter, save_adapter
from ..records import write_atomic
from ..streams import DATA_SAMPLING, EVAL_NOISE, TRAIN_NOISE, TRAIN_RATE, stream_seed
from ..targets import Target, load_target
from .columns import columns, head_rows, most_frequent
from .fast import adopt_mlp
from .loop import Loop

HELD_OUT = 32  # windows that are judged and never trained on
MODULES = {"published": PUBLISHED, "all": PUBLISHED + DELTANET}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result, besides the target and the text. ``block`` is K at training (slots 2..K).

    With ``own_text`` the target itself goes on after ``prefix`` tokens of a document. A short prefix (24, as after a prompt) was tried:
    900 more steps raised the teacher-forced prefix from 1.9 to 2.3 and lowered that of the prompt suite from 2.0 to 1.6.
    ``shuffled`` makes the control: each block learns what the target said after another block. With ``negatives`` student and teacher
    are compared over the true tokens, the ``frequent`` ids of the windows and so many uniform ones in the place of the whole vocabulary.
    ``schedule``: of the rate, see :mod:`.loop`. ``data_seed`` and ``noise_seed`` set the order of the blocks or their noise apart from
    ``seed``; None: as ``seed``.
    """

    rank: int = 32
    modules: str = "all"
    objective: str = "ce"
    own_text: bool = True
    prefix: int = 128
    block: int = 5
    corruption: str = "full"
    lr: float = 6e-4
    warmup: int = 30
    steps: int = 1000
    windows: int = 256
    blocks: int = 128
    seed: int = 20260903
    shuffled: bool = False
    negatives: int = 0
    frequent: int = 4096
    schedule: str = "linear"
    data_seed: int | None = None
    noise_seed: int | None = None

    def seed_of(self, stream: int) -> int:
        """The seed of one stream."""
        own = {DATA_SAMPLING: self.data_seed, TRAIN_NOISE: self.noise_seed, TRAIN_RATE: self.noise_seed}.get(stream)
        return self.seed if own is None else own


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


@dataclass
class CleanPass:
    """One frozen pass over windows ids [P, W]: the rows that the head reads, hidden [P, W, H], and per layer either what a recurrent
    layer held after every row (states [P, W, Hv, Dv, Dk] and convolution rows) or the keys and values. Reused by every step."""

    ids: mx.array
    hidden: mx.array
    layers: list


def clean_pass(target: Target, ids, batch: int = 16) -> CleanPass:
    parts = []
    for first in range(0, len(ids), batch):
        rows, cache = mx.array(ids[first : first + batch]).astype(mx.int32), target.make_cache()
        for c in cache:
            if isinstance(c, RecurrentCache):
                c.tape = Tape("per_token_states")
        hidden = tower(target.model)(rows, cache=cache)
        layers = [(mx.stack(c.tape.states, axis=1), c.tape.conv_rows) if isinstance(c, RecurrentCache) else
                  tuple(mx.contiguous(a) for a in c.keys_and_values()) for c in cache]
        mx.eval(hidden, layers)
        parts.append((rows, hidden, layers))
    join = lambda arrays: mx.concatenate(arrays) if len(arrays) > 1 else arrays[0]  # noqa: E731
    layers = [tuple(join([p[2][i][j] for p in parts]) for j in (0, 1)) for i in range(len(parts[0][2]))]
    done = CleanPass(join([p[0] for p in parts]), join([p[1] for p in parts]), layers)
    mx.eval(done.ids, done.hidden, done.layers)
    return done


def branch(target: Target, clean: CleanPass, window_of: mx.array, anchors: mx.array) -> list:
    """Caches for blocks that go on after row ``anchors[n]`` of window ``window_of[n]``; both int [N]."""
    result = []
    for c, (first, second) in zip(target.make_cache(), clean.layers):
        if isinstance(c, RecurrentCache):
            width = second.shape[1] - clean.ids.shape[1]
            rows = anchors[:, None] + 1 + mx.arange(width)[None]
            c[0], c[1] = second[window_of[:, None], rows], first[window_of, anchors]
            result.append(c)
        else:
            result.append(_AnchoredKV(first, second, window_of, anchors))
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
    noise_key, keep_key = mx.random.split(mx.random.key(stream_seed(recipe.seed_of(stream), stream, step)))
    noise = mx.random.randint(1, target_vocab, ids.shape, key=noise_key).astype(ids.dtype)
    if recipe.corruption == "full":
        return noise
    rate = mx.random.uniform(shape=(ids.shape[0], 1), key=mx.random.key(stream_seed(recipe.seed_of(TRAIN_RATE), TRAIN_RATE, step)))
    return mx.where(mx.random.uniform(shape=ids.shape, key=keep_key) < rate, noise, ids)


def branch_loss(adapted, gate, rows, caches, teacher, scored, kind: str):
    """Loss per supervised row, the seed row (which is exact and adds nothing) counted, as published: sum / (N (R + 1)).
    ``teacher`` [N, R, V] over all ids, or over those of the head's rows ``scored`` [V, H]."""
    gate.rows(mx.ones(rows.shape))
    student = adapted(rows, cache=caches) if scored is None else tower(adapted)(rows, cache=caches) @ scored.T
    return objective_sum(student, teacher, kind) / (rows.shape[0] * (rows.shape[1] + 1))


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
    """n windows [n, length]: the first ``prefix`` tokens of a document, then the target's own greedy continuation.

    Raises:
        BadInput: ``tokens`` has fewer than ``n`` documents.
    """
    rng = np.random.default_rng(stream_seed(seed, DATA_SAMPLING, 0))
    begins = np.concatenate([[0], np.flatnonzero(tokens == 0) + 1])
    begins = begins[begins + prefix < len(tokens)]
    if len(begins) < n:
        raise BadInput(f"{n} windows of own text need as many documents, but the corpus has {len(begins)}; ask for fewer or give a larger corpus.")
    starts = rng.choice(begins, n, replace=False)
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


def cached(path: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The windows in ``path``; made, and put there whole, if there are none. Raises BadInput for a file that holds no windows."""
    if not path.exists():
        part = path.with_suffix(".part")
        try:
            with open(part, "wb") as file:
                np.save(file, make())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    return token_ids(path, 2)


def token_ids(path: Path, axes: int) -> np.ndarray:
    """The whole numbers in a .npy file, of so many axes. Raises BadInput."""
    try:
        found = np.load(path)
        if getattr(found, "ndim", None) != axes or not np.issubdtype(found.dtype, np.integer):
            raise ValueError(f"no whole numbers of {axes} ax{'i' if axes == 1 else 'e'}s")
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise BadInput(f"The file {str(path)!r} holds no token ids ({getattr(error, 'strerror', None) or str(error).splitlines()[0]}); restore it or give another.") from None
    return found


def _blocks(target, clean: CleanPass, recipe: Recipe, step: int, stream: int, lowest: int, frequent=None):
    """Draft rows, caches, teacher logits and the head's rows that they are over (None: all) of one step; everything without gradient."""
    order = DATA_SAMPLING if stream == TRAIN_NOISE else stream
    rng = np.random.default_rng(stream_seed(recipe.seed_of(order), order, step + 1))
    r = recipe.block - 1
    window_of = mx.array(rng.integers(0, len(clean.ids), recipe.blocks))
    anchors = mx.array(rng.integers(lowest, clean.ids.shape[1] - r - 1, recipe.blocks))
    at = anchors[:, None] + 1 + mx.arange(r)[None]
    hidden, scored = clean.hidden[window_of[:, None], at], None
    if frequent is None:
        teacher = embed_and_head(target)[1](hidden)
    else:
        said = np.array(clean.ids[window_of[:, None], at + 1])
        scored = head_rows(target, mx.array(columns(said, frequent, target.vocab_size, recipe.negatives, rng)[0]))
        teacher = hidden @ scored.T
    if recipe.shuffled and stream == TRAIN_NOISE:  # held-out blocks are always judged by their own teacher
        teacher = mx.roll(teacher, 1, axis=0)
    rows = corrupt(clean.ids[window_of[:, None], at], target.vocab_size, recipe, step, stream)
    return rows, branch(target, clean, window_of, anchors), teacher, scored


def agreement(target, adapted, gate, clean: CleanPass, recipe: Recipe, batches: int = 4, lowest: int = 16) -> dict:
    """Teacher-forced on held-out windows under full noise: match per slot, mean accepted prefix, L1 distance a row."""
    full = Recipe(**(asdict(recipe) | {"corruption": "full"}))
    matches, l1 = [], []
    for b in range(batches):
        rows, caches, teacher, _ = _blocks(target, clean, full, b, EVAL_NOISE, lowest)
        gate.rows(mx.ones(rows.shape))
        student = adapted(rows, cache=caches)
        matches.append(np.array(mx.argmax(student, -1) == mx.argmax(teacher, -1)))
        l1.append(objective_sum(student, teacher, "tv").item() / (rows.shape[0] * (rows.shape[1] + 1)))
    m = np.concatenate(matches)
    return {"per_slot": [round(float(v), 4) for v in m.mean(0)], "l1": round(float(np.mean(l1)), 4), "blocks": len(m),
            "prefix_k4": round(float(np.cumprod(m[:, :3], 1).sum(1).mean()), 4),
            "prefix_block": round(float(np.cumprod(m, 1).sum(1).mean()), 4)}


def launch(target: Target, clean: CleanPass, recipe: Recipe, lowest: int = 16, start: dict | None = None):
    """A training of an adapter over the windows of ``clean``, at its first step.

    ``start`` holds the tensors of an earlier adapter to go on from, with fresh moments. Returns (adapted model, gate, :class:`Loop`).
    """
    adapted, gate = attach(target.model, recipe.rank, MODULES[recipe.modules], seed=recipe.seed)
    if start:
        adapted.update(tree_unflatten(list(start.items())))
    for layer in adapted.layers:
        layer.mlp = adopt_mlp(layer.mlp)

    def saturated(model, rows, caches, teacher, _):
        gate.rows(mx.ones(rows.shape))
        return (mx.abs(model(rows, cache=caches)).max() > 2 * mx.abs(teacher).max()).item()

    frequent = most_frequent(np.array(clean.ids), recipe.frequent) if recipe.negatives else None
    return adapted, gate, Loop(adapted, lambda m, *a: branch_loss(m, gate, *a, recipe.objective),
                               lambda step: _blocks(target, clean, recipe, step, TRAIN_NOISE, lowest, frequent), recipe,
                               allowed=lambda name: name.endswith(("lora_a", "lora_b")), frozen=target.digest, saturated=saturated)


def train(target: Target, windows: np.ndarray, heldout: np.ndarray, recipe: Recipe, lowest: int = 16, say=print, start: dict | None = None,
          checkpoint: Path | None = None):
    """Train an adapter; the target's weights are untouched by construction (compare its digest before and after).

    ``start`` holds the tensors of an earlier adapter to go on from, with fresh moments. ``checkpoint`` is written every 100 steps,
    and a run that finds it goes on from it.

    Returns:
        (adapted model, gate, log) with the loss every 10 steps and the teacher-forced agreement every 100.
    """
    chosen = np.random.default_rng(recipe.seed).permutation(len(windows))[: recipe.windows]
    clean, unseen = clean_pass(target, windows[chosen]), clean_pass(target, heldout)
    adapted, gate, loop = launch(target, clean, recipe, lowest, start)
    loop.log["agreement"] = [[0, agreement(target, adapted, gate, unseen, recipe, lowest=lowest)]]
    if checkpoint and checkpoint.exists():
        loop.resume(checkpoint)
    while loop.step < recipe.steps:
        loop.run(min(recipe.steps, loop.step + 100), say)
        loop.log["agreement"].append([loop.step, agreement(target, adapted, gate, unseen, recipe, lowest=lowest)])
        say(loop.step, loop.log["agreement"][-1][1], flush=True)
        if checkpoint:
            loop.save(checkpoint)
    return adapted, gate, loop.log | {"seconds": round(loop.seconds, 1)}


LEAST = {"rank": 1, "block": 2, "prefix": 1, "window": 1, "text_windows": 1, "windows": 1, "blocks": 1, "steps": 1, "frequent": 1, "negatives": 0, "seed": 0}


def check(o: argparse.Namespace) -> None:
    """Raises BadInput for options with which nothing can be trained, or what is trained cannot be written."""
    for name, least in LEAST.items():
        if getattr(o, name) < least:
            raise BadInput(f"--{name.replace('_', '-')} is {getattr(o, name)}; give {least} or more.")
    if not 0 < o.lr < np.inf:
        raise BadInput(f"--lr is {o.lr}; give a finite number above 0.")
    if o.window <= o.prefix + o.block:
        raise BadInput(f"--window is {o.window}; give more than --prefix and --block together ({o.prefix + o.block}).")
    for path in filter(None, (o.out, o.checkpoint, o.windows_file)):
        if path.is_dir() or not path.parent.is_dir():
            raise BadInput(f"There cannot be a file {str(path)!r}: {'that is a folder' if path.is_dir() else 'its folder is missing'}; give another path or make the folder.")


def check_windows(windows: np.ndarray, o: argparse.Namespace, vocabulary: int) -> None:
    """Raises BadInput unless there are windows, with room for a block behind the prefix, of ids that the target knows."""
    if not len(windows) or windows.shape[1] <= o.prefix + o.block:
        raise BadInput(f"The text gives {len(windows)} windows of {windows.shape[1]} tokens behind the {HELD_OUT} held-out ones of own text; "
                       f"give more text, and windows longer than --prefix and --block together ({o.prefix + o.block}).")
    if not 0 <= windows.min() <= windows.max() < vocabulary:
        raise BadInput(f"The text holds ids from {windows.min()} to {windows.max()}, but those of the target end at {vocabulary - 1}; give text of this target.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("corpus", type=Path, nargs="?", help="not needed where the windows of own text are there already")
    parser.add_argument("--target", default="tiny-hybrid")
    parser.add_argument("--checkpoint", type=Path, help="written every 100 steps; a killed run goes on from it")
    parser.add_argument("--half", action="store_true", help="keep the adapter in bfloat16, in half the bytes")
    parser.add_argument("--own-text", action=argparse.BooleanOptionalAction, default=Recipe.own_text)
    parser.add_argument("--start", type=Path, help="an adapter of the same rank and modules to go on from")
    parser.add_argument("--windows-file", type=Path, help="cache of the target's own windows")
    parser.add_argument("--window", type=int, default=384)
    parser.add_argument("--text-windows", type=int, default=512)
    parser.add_argument("--shuffled", action="store_true", help="the control: teacher rows of another block")
    for name in ("rank", "prefix", "block", "steps", "windows", "blocks", "seed", "negatives", "frequent"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Recipe, name))
    parser.add_argument("--lr", type=float, default=Recipe.lr)
    parser.add_argument("--modules", choices=MODULES, default=Recipe.modules)
    parser.add_argument("--objective", choices=("tv", "ce"), default=Recipe.objective)
    parser.add_argument("--corruption", choices=("full", "uniform"), default=Recipe.corruption)
    o = parser.parse_args()
    recipe = Recipe(o.rank, o.modules, o.objective, o.own_text, o.prefix, o.block, o.corruption, o.lr, steps=o.steps, windows=o.windows,
                    blocks=o.blocks, seed=o.seed, shuffled=o.shuffled, negatives=o.negatives, frequent=o.frequent)
    check(o)
    take_away(o.out.parent)
    made = o.windows_file is not None and o.windows_file.exists()
    if o.corpus is None and not (made and o.own_text):
        raise BadInput("There is no text to train on; name the folder of a corpus, or a file of windows.")
    tokens = token_ids(o.corpus / "train.npy", 1) if o.corpus else None
    target = load_target(o.target)
    before = target.digest()
    make = lambda: own_windows(target, tokens, o.text_windows + HELD_OUT, o.prefix, o.window, o.seed)  # noqa: E731
    own = cached(o.windows_file, make) if o.windows_file else make()
    windows = own[HELD_OUT:] if recipe.own_text else tokens[: (len(tokens) - 1) // o.window * o.window].reshape(-1, o.window)
    for text in (windows, own):
        check_windows(text, o, target.vocab_size)
    before_that = []
    if o.start:
        earlier, _, metadata = load_adapter(o.start, target.model)
        before_that = [*metadata.get("earlier_recipes", []), metadata["recipe"]]
    adapted, gate, log = train(target, windows, own[:HELD_OUT], recipe, lowest=o.prefix, start=adapter_weights(earlier) if o.start else None,
                               checkpoint=o.checkpoint)
    if target.digest() != before:
        raise RuntimeError("The target's digest changed during training; the adapter is void.")
    save_adapter(o.out, adapted, {"scale": 16.0, "recipe": asdict(recipe), "earlier_recipes": before_that, "target": target.name, "target_digest": before,
                                  "tokenizer_digest": target.tokenizer_digest(),
                                  "parameters": sum(v.size for v in adapter_weights(adapted).values())}, half=o.half)
    write_atomic(o.out.with_suffix(".json"), json.dumps({"recipe": asdict(recipe), "earlier_recipes": before_that, "target_digest": before, "log": log}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(guarded(main))
