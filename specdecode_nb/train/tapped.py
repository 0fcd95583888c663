"""What training a drafter over tapped layers shares: the target's rows computed once, the loop, and the probe that ends it.

The target is frozen, so its tapped rows of its own continuations are computed once. Every hundred steps the drafter
decodes prompts that it was never trained on; its accepted prefix there, not the loss, says when it is done.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ..backend import mx, nn  # isort: skip

import numpy as np
from mlx.utils import tree_flatten, tree_map

from ..ending import take_away
from ..decoder import generate
from ..errors import BadInput
from ..families import width
from ..lora import share
from ..statistics import looped_fraction
from ..records import write_atomic
from ..targets import Target, load_target
from ..taps import TappedModel
from .fast import adopt_mlp
from .loop import Loop
from .uno import cached, own_windows

PREFIX = 128  # tokens of a window that are not the target's own
HELD_OUT = 32  # windows that are probed and never trained on


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result, besides the target and the text.

    ``patience`` counts probes without a better one before training ends.
    """

    taps: tuple[int, ...]
    lr: float = 1e-3
    warmup: int = 50
    steps: int = 4000
    windows_a_step: int = 4
    probe_every: int = 100
    probe_block: int = 8
    probe_tokens: int = 64
    patience: int = 10
    seed: int = 20261201

    def read(self, target: Target) -> tuple[int, ...]:
        """The layers whose rows training needs."""
        return tuple(self.taps)


def tapped_rows(target: Target, windows: np.ndarray, layers, path: Path, batch: int = 16, say=print) -> np.ndarray:
    """The tapped rows of every window, [P, W, len(layers) * hidden] float16, computed once and mapped from ``path``."""
    if not path.exists():
        model, part = TappedModel(target.model, layers), path.with_suffix(".part")
        across = len(layers) * width(target.model)
        out = np.lib.format.open_memmap(part, mode="w+", dtype=np.float16, shape=(*windows.shape, across))
        for first in range(0, len(windows), batch):
            rows = mx.array(windows[first : first + batch].astype(np.int32))
            out[first : first + batch] = np.array(mx.concatenate(model.taps(rows, target.make_cache())[1], axis=-1).astype(mx.float16))
            say("taps", first + len(rows), "of", len(windows), flush=True)
        out.flush()
        del out
        os.replace(part, path)
    return np.load(path, mmap_mode="r")


def shipped(model: nn.Module) -> nn.Module:
    """The weights as a file would give them back: rounded to bfloat16."""
    copy = share(model)
    copy.update(tree_map(lambda v: v.astype(mx.bfloat16).astype(mx.float32), model.parameters()))
    return copy


def probe(target: Target, drafter, prompts, block: int, tokens: int) -> dict:
    """Decode ``prompts`` (lists of ids): accepted drafts a cycle and reach of each slot, over all and over loop-free ones."""
    accepted, free = [], []
    for prompt in prompts:
        result = generate(target, prompt, drafter, k=block, max_tokens=tokens, ignore_eos=True)
        counts = [a for a, n in zip(result.stats.accepted_per_cycle, result.stats.offered_per_cycle) if n == block - 1]
        accepted += counts
        free += counts if looped_fraction(result.tokens) < 0.05 else []
    mean = lambda v: round(float(np.mean(v)), 4) if v else None  # noqa: E731
    return {"prefix": mean(accepted), "prefix_loop_free": mean(free), "cycles": len(accepted), "block": block,
            "reach": [round(float(np.mean(np.array(accepted) >= j)), 3) for j in range(1, block)]}


class Training(Loop):
    """The loop over a drafter of tapped layers. What is trained, on which batches and for which loss, a subclass says."""

    def __init__(self, target: Target, recipe: Recipe):
        self.target, self.recipe = target, recipe
        mx.random.seed(recipe.seed)
        model = self.new_model()
        for layer in model.layers:
            layer.mlp = adopt_mlp(layer.mlp)
        super().__init__(model, self.loss, None, recipe)
        self.log["probe"] = []

    def new_model(self) -> nn.Module:
        """The drafter with fresh weights."""
        raise NotImplementedError

    def batch(self, step: int, rows: np.ndarray, windows: np.ndarray, prefix: int) -> tuple:
        """What :meth:`loss` takes at ``step``, a function of (seed, step); labels are the target's own tokens."""
        raise NotImplementedError

    def loss(self, model: nn.Module, *batch) -> mx.array:
        """The training loss in nats."""
        raise NotImplementedError

    def drafter(self, model: nn.Module):
        """A drafter of these weights as a file would give them back, for the probe."""
        raise NotImplementedError

    def write(self, out: Path, facts: dict) -> None:
        """The files of the drafter, in ``out``."""
        raise NotImplementedError

    def run(self, rows, windows, until: int, prefix: int = PREFIX, say=print) -> None:
        """Steps up to ``until`` on these windows and their tapped rows."""
        self.batches = lambda step: self.batch(step, rows, windows, prefix)
        super().run(until, say)

    def probe(self, prompts) -> tuple[dict, bool]:
        """Decode with the present weights; also whether this is the best prefix so far."""
        best = max((p["prefix"] for _, p in self.log["probe"]), default=-1.0)
        found = probe(self.target, self.drafter(self.model), prompts, self.recipe.probe_block, self.recipe.probe_tokens)
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


def command(description: str, training: type[Training], recipe: type[Recipe]) -> None:
    """The command line of a trainer: every field of its recipe is an option. OUT gets the drafter of the best probe so far
    and training.json; WORK keeps the windows, the tapped rows and a checkpoint a probe, from which a killed run goes on bit for bit."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("out", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("corpus", type=Path, nargs="?", help="not needed where windows are given")
    parser.add_argument("--target", default="tiny-hybrid")
    parser.add_argument("--windows", type=Path, nargs="*", help="cached windows of the target's own text after --prefix tokens; made if none are given")
    parser.add_argument("--text-windows", type=int, default=1056)
    parser.add_argument("--window", type=int, default=384)
    parser.add_argument("--prefix", type=int, default=PREFIX, help="tokens of a window that are not the target's own")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="windows that are probed and never trained on")
    for f in fields(recipe):
        several = isinstance(f.default, tuple)
        if isinstance(f.default, bool):
            parser.add_argument(f"--{f.name}", action=argparse.BooleanOptionalAction, default=f.default)
            continue
        parser.add_argument("--" + f.name.replace("_", "-"), type=int if several else type(f.default), nargs="+" if several else None, default=f.default)
    o = parser.parse_args()
    chosen = recipe(**{k: tuple(v) if isinstance(v, list) else v for k, v in vars(o).items() if k in recipe.__dataclass_fields__})
    if o.corpus is None and not o.windows:
        raise BadInput("There is no text to train on; name the folder of a corpus, or files of windows.")
    o.work.mkdir(parents=True, exist_ok=True)
    o.out.mkdir(parents=True, exist_ok=True)
    take_away(o.out)
    target = load_target(o.target)
    before = target.digest()
    files = o.windows or [o.work / "own.npy"]
    if not o.windows:
        cached(files[0], lambda: own_windows(target, np.load(o.corpus / "train.npy"), o.text_windows, o.prefix, o.window, o.seed))
    own = np.concatenate([np.load(f) for f in files])
    layers = chosen.read(target)
    key = hashlib.blake2b(own.tobytes() + str((before, layers)).encode(), digest_size=6).hexdigest()
    rows = tapped_rows(target, own, layers, o.work / f"taps-{key}.npy") if layers else None
    prompts = [row.tolist() for row in own[: o.held_out, : o.prefix]]
    train = np.array([i for i in range(o.held_out, len(own)) if own[i, : o.prefix].tolist() not in prompts])
    run, checkpoint = training(target, chosen), o.work / "checkpoint.safetensors"
    if checkpoint.exists():
        run.resume(checkpoint, ["steps"])  # where its schedule ends may be moved; a drafter's README tells when
    rows, windows = _Chosen(rows, train), own[train]
    while run.verdict is None:
        run.run(rows, windows, min(chosen.steps, run.step + chosen.probe_every), o.prefix)
        found, best = run.probe(prompts)
        print(run.step, found, "best" if best else "", flush=True)
        facts = {"recipe": asdict(chosen), "target": target.name, "target_digest": before, "tokenizer_digest": target.tokenizer_digest(), "step": run.step, "probe": found,
                 "parameters": sum(v.size for _, v in tree_flatten(run.model.parameters()))}
        if best:
            run.write(o.out, facts)
        write_atomic(o.out / "training.json", json.dumps(facts | {"best_step": run.best_step, "seconds": round(run.seconds, 1), "ended": run.verdict,
                                                                  "windows": len(windows), "log": run.log}, indent=1) + "\n")
        run.save(checkpoint)  # last: a run that is killed before goes on from the one before and writes all of it again
    if target.digest() != before:
        raise RuntimeError("The target's digest changed during training; the drafter is void.")


class _Chosen:
    """Rows of a mapped array by position in a list, without reading the others; of None, which nobody may ask for, where nothing is tapped."""

    def __init__(self, rows: np.ndarray | None, index: np.ndarray):
        self._rows, self._index = rows, index

    def __getitem__(self, at):
        return self._rows[self._index[at]]
