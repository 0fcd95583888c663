"""Train a small draft model, the kind that mlx-lm's speculative decoding takes, on a Llama target's own continuations.

    python -m specdecode_nb.train.small OUT WORK [CORPUS] --target T --windows FILE.npy ... --prefix N [--layers 2 --mlp 768 ...]

OUT gets small.safetensors and training.json. A window is one sequence; every row from the last of the prefix on learns the
token that the target chose after it. CORPUS is read only where no windows are given.
"""
from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ..backend import mx, nn  # isort: skip

import numpy as np

from ..ending import guarded
from ..families import tower
from ..small import SmallDrafter, SmallModel, write_small
from ..streams import DATA_SAMPLING, stream_seed
from . import tapped
from .columns import columns, head_rows, most_frequent


@dataclass(frozen=True)
class Recipe(tapped.Recipe):
    """``taps`` stays empty: nothing of the target's layers is read. A step scores its labels against the ``frequent`` ids of the
    windows and ``negatives`` uniform ones (:mod:`.columns`); ``negatives`` 0 scores the whole vocabulary."""

    taps: tuple[int, ...] = ()
    layers: int = 2
    mlp: int = 768
    negatives: int = 1024
    frequent: int = 4096
    windows_a_step: int = 4
    probe_every: int = 250
    probe_block: int = 4


def next_token_loss(model: SmallModel, ids: mx.array, prefix: int, labels: mx.array, head: mx.array | None):
    """Mean cross-entropy in nats of rows ``prefix - 1`` and after of ids [W, C] against ``labels`` [W, C - prefix], ids or, where a part
    ``head`` [V', hidden] of the head is given, positions in it."""
    hidden = model.hidden(ids[:, :-1])[:, prefix - 1 :]
    return nn.losses.cross_entropy(model.head(hidden) if head is None else hidden @ head.T, labels).mean()


class Training(tapped.Training):
    _frequent: np.ndarray | None = None

    def new_model(self) -> SmallModel:
        model = SmallModel(self.target, self.recipe.layers, self.recipe.mlp)
        model.norm.weight = mx.array(tower(self.target.model).norm.weight)  # what the head is used to
        return model

    def batch(self, step: int, rows, windows: np.ndarray, prefix: int) -> tuple:
        """Ids, the length of the prefix, labels, and the scored rows of the head (None: all)."""
        r = self.recipe
        rng = np.random.default_rng(stream_seed(r.seed, DATA_SAMPLING, step))
        ids = windows[rng.choice(len(windows), r.windows_a_step, replace=len(windows) < r.windows_a_step)].astype(np.int32)
        labels, head = ids[:, prefix:], None
        if r.negatives:
            if self._frequent is None:
                self._frequent = most_frequent(windows[:, prefix:], r.frequent)
            scored, labels = columns(labels, self._frequent, self.target.vocab_size, r.negatives, rng)
            head = head_rows(self.target, mx.array(scored))
        return mx.array(ids), prefix, mx.array(labels), head

    def loss(self, model: SmallModel, *batch) -> mx.array:
        return next_token_loss(model, *batch)

    def drafter(self, model: SmallModel) -> SmallDrafter:
        return SmallDrafter(tapped.shipped(model))

    def write(self, out: Path, facts: dict) -> None:
        write_small(out / "small.safetensors", self.model, facts)


if __name__ == "__main__":
    sys.exit(guarded(lambda: tapped.command(__doc__.splitlines()[0], Training, Recipe)))
