"""Train a DFlash drafter on the target's own continuations; an acceptance probe by decoding decides when it is done.

    python -m specdecode_nb.train.dflash OUT WORK CORPUS [--windows FILE.npy ...] [--layers 2 ...]

OUT gets config.json, model.safetensors and training.json of the best probe so far; WORK keeps the windows, the tapped
rows of every window and a checkpoint after each probe, from which a killed run goes on bit for bit.

The target is frozen, so its tapped rows are computed once. Each step opens many blocks (a real anchor token and masks) in
a few windows; a block sees the context strictly before its anchor and itself, as in decoding (peers 3.4).
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ..backend import mx, nn  # isort: skip

import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from ..decoder import generate
from ..dflash import BlockAttention, DFlashConfig, DFlashDrafter, DFlashModel, embed_and_head
from ..dflash_files import write_dflash
from ..statistics import looped_fraction
from ..streams import DATA_SAMPLING, stream_seed
from ..taps import TappedModel
from ..targets import Target, load_target
from .fast import adopt_mlp
from .uno import own_windows

PREFIX = 128  # tokens of a window that are not the target's own
HELD_OUT = 32  # windows that are probed and never trained on
MASK = 1  # <|pad|> of the tokenizer, which never occurs in text


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result, besides the target and the text.

    ``blocks`` are the block sizes trained, one a step in turn, so that each decoded size has been seen. ``rows`` is the
    number of block rows a step. ``patience`` counts probes without a better one before training ends.
    """

    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 640
    taps: tuple[int, ...] = (0, 2, 3)
    blocks: tuple[int, ...] = (8, 5, 16)
    lr: float = 1e-3
    warmup: int = 50
    steps: int = 4000
    windows_a_step: int = 8
    rows: int = 2048
    probe_every: int = 100
    probe_block: int = 8
    probe_tokens: int = 64
    patience: int = 10
    seed: int = 20261201

    def config(self, target: Target) -> DFlashConfig:
        text = target.model.language_model.args
        return DFlashConfig(text.hidden_size, self.mlp, self.layers, self.heads, self.kv_heads, 64, target.vocab_size, text.rms_norm_eps, 1e5,
                            max(self.blocks), len(target.model.layers), tuple(self.taps), MASK)


def gamma(block: int) -> float:
    """Decay of the loss over positions: 7 for blocks of 16, 4 for blocks of 8 and less, as published."""
    return 4.0 if block <= 8 else 7.0


def tapped_rows(target: Target, windows: np.ndarray, layers, path: Path, batch: int = 16, say=print) -> np.ndarray:
    """The tapped rows of every window, [P, W, len(layers) * hidden] float16, computed once and mapped from ``path``."""
    if not path.exists():
        model, part = TappedModel(target.model, layers), path.with_suffix(".part")
        width = len(layers) * target.model.language_model.args.hidden_size
        out = np.lib.format.open_memmap(part, mode="w+", dtype=np.float16, shape=(*windows.shape, width))
        for first in range(0, len(windows), batch):
            rows = mx.array(windows[first : first + batch].astype(np.int32))
            out[first : first + batch] = np.array(mx.concatenate(model.taps(rows, target.make_cache())[1], axis=-1).astype(mx.float16))
            say("taps", first + len(rows), "of", len(windows), flush=True)
        out.flush()
        del out
        os.replace(part, path)
    return np.load(path, mmap_mode="r")


def _attend_many(features, anchors):
    """``attend`` for A blocks in each of W windows: features [W, C, hidden], anchors [W, A]; blocks are [W * A, T, hidden]."""
    W, C, _ = features.shape
    A = anchors.shape[1]
    before = mx.arange(C)[None, None, :] < anchors[:, :, None]
    mask = mx.where(before, 0.0, -mx.inf)[:, None, :, None, :]

    def attend(attention: BlockAttention, x):
        T = x.shape[1]
        context_keys, context_values = attention.keys_values(features, 0)
        keys, values = attention.keys_values(x, anchors.reshape(-1))
        queries = attention.queries(x, anchors.reshape(-1)) * attention.scale
        G, D = keys.shape[1], keys.shape[-1]
        rows = queries.shape[1] // G * T
        grouped = queries.reshape(W, A, G, rows, D)
        inside = grouped @ keys.reshape(W, A, G, T, D).swapaxes(-1, -2)  # [W, A, G, rows, T]
        by_window = grouped.swapaxes(1, 2).reshape(W, G, A * rows, D)
        outside = (by_window @ context_keys.swapaxes(-1, -2)).reshape(W, G, A, rows, C) + mask
        weights = mx.softmax(mx.concatenate([outside, inside.swapaxes(1, 2)], axis=-1), axis=-1)
        from_context = (weights[..., :C].reshape(W, G, A * rows, C) @ context_values).reshape(W, G, A, rows, D)
        from_block = weights[..., C:].swapaxes(1, 2) @ values.reshape(W, A, G, T, D)
        return (from_context.swapaxes(1, 2) + from_block).reshape(W * A, -1, T, D)

    return attend


def block_logits(model: DFlashModel, target: Target, taps, ids, anchors, block: int):
    """Logits [W * A, block - 1, vocab] of the blocks that open at ``anchors`` [W, A] of windows ``ids`` [W, C]."""
    embed, head = embed_and_head(target)
    anchor = mx.take_along_axis(ids, anchors, axis=1).reshape(-1, 1)
    rows = mx.concatenate([anchor, mx.full((len(anchor), block - 1), model.config.mask_token_id, dtype=anchor.dtype)], axis=1)
    attend = _attend_many(model.features(taps), anchors)
    return head(model(embed(rows), [attend] * len(model.layers)))


def block_loss(model: DFlashModel, target: Target, taps, ids, anchors, block: int):
    """Cross-entropy of row k against the token at its own position, weighted exp(-(k - 1) / gamma) and averaged, in nats."""
    logits = block_logits(model, target, taps, ids, anchors, block)
    at = anchors[:, :, None] + 1 + mx.arange(block - 1)
    labels = mx.take_along_axis(ids, at.reshape(len(ids), -1), axis=1).reshape(-1, block - 1)
    weight = mx.exp(-mx.arange(block - 1) / gamma(block))
    return (nn.losses.cross_entropy(logits, labels) * weight).sum() / (weight.sum() * len(labels))


def batch_of(recipe: Recipe, step: int, rows: np.ndarray, windows: np.ndarray, prefix: int):
    """Taps, ids, anchors and block size of one step, a function of (seed, step). Anchor and labels are the target's own."""
    rng = np.random.default_rng(stream_seed(recipe.seed, DATA_SAMPLING, step))
    block = recipe.blocks[step % len(recipe.blocks)]
    chosen = rng.choice(len(windows), recipe.windows_a_step, replace=len(windows) < recipe.windows_a_step)
    a = max(1, recipe.rows // (block * recipe.windows_a_step))
    anchors = rng.integers(prefix - 1, windows.shape[1] - block + 1, (len(chosen), a))
    return mx.array(rows[chosen]).astype(mx.float32), mx.array(windows[chosen].astype(np.int32)), mx.array(anchors.astype(np.int32)), block


def shipped(model: DFlashModel) -> DFlashModel:
    """The weights as a file would give them back: rounded to bfloat16."""
    copy = DFlashModel(model.config)
    copy.update(tree_map(lambda v: v.astype(mx.bfloat16).astype(mx.float32), model.parameters()))
    return copy


def probe(target: Target, model: DFlashModel, prompts, block: int, tokens: int) -> dict:
    """Decode ``prompts`` (lists of ids): accepted drafts a cycle and reach of each slot, over all and over loop-free ones."""
    drafter, accepted, free = DFlashDrafter(target, shipped(model)), [], []
    for prompt in prompts:
        result = generate(target, prompt, drafter, k=block, max_tokens=tokens, ignore_eos=True)
        counts = [a for a, n in zip(result.stats.accepted_per_cycle, result.stats.offered_per_cycle) if n == block - 1]
        accepted += counts
        free += counts if looped_fraction(result.tokens) < 0.05 else []
    mean = lambda v: round(float(np.mean(v)), 4) if v else None  # noqa: E731
    return {"prefix": mean(accepted), "prefix_loop_free": mean(free), "cycles": len(accepted), "block": block,
            "reach": [round(float(np.mean(np.array(accepted) >= j)), 3) for j in range(1, block)]}


class Training:
    """Weights, moments, step and log of one run."""

    def __init__(self, target: Target, recipe: Recipe):
        self.target, self.recipe = target, recipe
        mx.random.seed(recipe.seed)
        self.model = DFlashModel(recipe.config(target))
        for layer in self.model.layers:
            layer.mlp = adopt_mlp(layer.mlp)
        self.optimizer = optim.AdamW(recipe.lr, betas=[0.9, 0.98], weight_decay=0.0, bias_correction=True)
        self.optimizer.init(self.model.trainable_parameters())
        self.step, self.seconds, self.log = 0, 0.0, {"loss": [], "probe": []}
        self._loss = nn.value_and_grad(self.model, lambda m, *a: block_loss(m, target, *a))

    def run(self, rows, windows, until: int, prefix: int = PREFIX, say=print) -> None:
        """Steps up to ``until``; the loss is logged every 10."""
        r = self.recipe
        while self.step < until:
            began = time.perf_counter()
            loss, grads = self._loss(self.model, *batch_of(r, self.step, rows, windows, prefix))
            grads, norm = optim.clip_grad_norm(grads, 1.0)
            self.optimizer.learning_rate = r.lr * min((self.step + 1) / r.warmup, 1.0) * max(0.05, 1 - self.step / r.steps)
            self.optimizer.update(self.model, grads)
            mx.eval(self.model.parameters(), self.optimizer.state, loss, norm)
            self.step += 1
            self.seconds += time.perf_counter() - began
            if not np.isfinite(loss.item()):
                raise FloatingPointError(f"Training stopped at step {self.step}: loss {loss.item()}; lower the rate.")
            if self.step % 10 == 0:
                self.log["loss"].append([self.step, round(loss.item(), 4), round(norm.item(), 3)])
                say(*self.log["loss"][-1], f"{self.seconds / self.step:.2f} s/step", flush=True)

    def probe(self, prompts) -> tuple[dict, bool]:
        """Decode with the present weights; also whether this is the best prefix so far."""
        best = max((p["prefix"] for _, p in self.log["probe"]), default=-1.0)
        found = probe(self.target, self.model, prompts, self.recipe.probe_block, self.recipe.probe_tokens)
        self.log["probe"].append([self.step, found])
        return found, found["prefix"] > best

    @property
    def best_step(self) -> int:
        """The step whose weights were written."""
        return max(self.log["probe"], key=lambda p: p[1]["prefix"])[0]

    @property
    def verdict(self) -> str | None:
        """Why training is over: "plateau" (the probe has not risen for ``patience`` probes), "steps", or None."""
        prefixes = [p["prefix"] for _, p in self.log["probe"]]
        if prefixes and len(prefixes) - 1 - int(np.argmax(prefixes)) >= self.recipe.patience:
            return "plateau"
        return "steps" if self.step >= self.recipe.steps else None

    def save(self, path: Path) -> None:
        tensors = {f"model.{k}": v for k, v in tree_flatten(self.model.parameters())}
        tensors |= {f"optimizer.{k}": v for k, v in tree_flatten(self.optimizer.state)}
        state = {"recipe": asdict(self.recipe), "step": self.step, "seconds": self.seconds, "log": self.log}
        scratch = path.with_name(path.stem + ".writing.safetensors")
        mx.save_safetensors(str(scratch), tensors, metadata={"state": json.dumps(state)})
        os.replace(scratch, path)

    def resume(self, path: Path) -> None:
        """Go on from :meth:`save`. Raises ValueError if the recipe is another one (``steps`` and ``patience`` may differ)."""
        tensors, metadata = mx.load(str(path), return_metadata=True)
        state = json.loads(metadata["state"])
        fixed = lambda r: {k: v for k, v in r.items() if k not in ("steps", "patience")}  # noqa: E731
        if fixed(state["recipe"]) != fixed(json.loads(json.dumps(asdict(self.recipe)))):
            raise ValueError(f"The checkpoint {path.name!r} belongs to another recipe; give that one or another folder.")
        part = lambda name: tree_unflatten([(k.removeprefix(name), v) for k, v in tensors.items() if k.startswith(name)])  # noqa: E731
        self.model.update(part("model."))
        self.optimizer.state = part("optimizer.")
        self.step, self.seconds, self.log = state["step"], state["seconds"], state["log"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--target", default="tiny-hybrid")
    parser.add_argument("--windows", type=Path, nargs="*", help=f"cached windows of the target's own text after {PREFIX} tokens; made if none are given")
    parser.add_argument("--text-windows", type=int, default=1056)
    parser.add_argument("--window", type=int, default=384)
    for name in ("layers", "heads", "kv_heads", "mlp", "warmup", "steps", "windows_a_step", "rows", "probe_every", "probe_block", "probe_tokens",
                 "patience", "seed"):
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=getattr(Recipe, name))
    for name in ("taps", "blocks"):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=getattr(Recipe, name))
    parser.add_argument("--lr", type=float, default=Recipe.lr)
    o = parser.parse_args()
    recipe = Recipe(**{k: tuple(v) if isinstance(v, list) else v for k, v in vars(o).items() if k in Recipe.__dataclass_fields__})
    o.work.mkdir(parents=True, exist_ok=True)
    target = load_target(o.target)
    before = target.digest()
    files = o.windows or [o.work / "own.npy"]
    if not o.windows and not files[0].exists():
        np.save(files[0], own_windows(target, np.load(o.corpus / "train.npy"), o.text_windows, PREFIX, o.window, o.seed))
    own = np.concatenate([np.load(f) for f in files])
    key = hashlib.blake2b(own.tobytes() + str((before, recipe.taps)).encode(), digest_size=6).hexdigest()
    rows = tapped_rows(target, own, recipe.taps, o.work / f"taps-{key}.npy")
    held_out = {row.tobytes() for row in own[:HELD_OUT, :PREFIX]}
    train = np.array([i for i in range(HELD_OUT, len(own)) if own[i, :PREFIX].tobytes() not in held_out])
    prompts = [row.tolist() for row in own[:HELD_OUT, :PREFIX]]
    run, checkpoint = Training(target, recipe), o.work / "checkpoint.safetensors"
    if checkpoint.exists():
        run.resume(checkpoint)
    rows, windows = _Chosen(rows, train), own[train]
    while run.verdict is None:
        run.run(rows, windows, min(recipe.steps, run.step + recipe.probe_every))
        found, best = run.probe(prompts)
        print(run.step, found, "best" if best else "", flush=True)
        facts = {"recipe": asdict(recipe), "target": target.name, "target_digest": before, "step": run.step, "probe": found,
                 "parameters": sum(v.size for _, v in tree_flatten(run.model.parameters()))}
        if best:
            write_dflash(o.out, run.model, facts)
        run.save(checkpoint)
        (o.out / "training.json").write_text(json.dumps(facts | {"best_step": run.best_step, "seconds": round(run.seconds, 1), "ended": run.verdict, "windows": len(windows),
                                                                 "log": run.log}, indent=1) + "\n")
    if target.digest() != before:
        raise RuntimeError("The target's digest changed during training; the drafter is void.")


class _Chosen:
    """Rows of a mapped array by position in a list, without reading the others."""

    def __init__(self, rows: np.ndarray, index: np.ndarray):
        self._rows, self._index = rows, index

    def __getitem__(self, at):
        return self._rows[self._index[at]]


if __name__ == "__main__":
    main()
