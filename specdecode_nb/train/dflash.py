"""Train a DFlash drafter on the target's own continuations.

    python -m specdecode_nb.train.dflash OUT WORK [CORPUS] [--target T] [--windows FILE.npy ...] [--layers 2 ...]

OUT gets config.json, model.safetensors and training.json. Each step opens many blocks (a real anchor token and masks) in
a few windows; a block sees the context strictly before its anchor and itself, as in decoding (peers 3.4).
"""
from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ..backend import mx, nn  # isort: skip

import numpy as np

from ..ending import guarded
from ..dflash import BlockAttention, DFlashConfig, DFlashDrafter, DFlashModel
from ..dflash_files import write_dflash
from ..families import text_of, tower
from ..streams import DATA_SAMPLING, stream_seed
from ..targets import Target, share
from ..taps import embed_and_head
from . import tapped
from .columns import columns, head_rows, most_frequent

SAMPLE = 64  # windows whose rows tell the sizes of the taps
WINDOW = 256  # context rows that a block sees; a prompt longer than the windows of training is then nothing new to it


@dataclass(frozen=True)
class Recipe(tapped.Recipe):
    """``blocks`` are the block sizes trained, one a step in turn, so that each decoded size has been seen. ``rows`` is the
    number of block rows a step. Three steps of four read ``segment`` rows of each window instead of all: attention finds the
    rows before the anchor sooner among few (slot 1 agreed at .48 after 160 s where whole windows had .10), and a step is cheaper.
    ``mask`` is an id that never occurs in text: 1 is <|pad|> of tiny-hybrid. With ``negatives`` a step scores its labels against the
    ``frequent`` ids of the windows and so many uniform ones in the place of the whole vocabulary (:mod:`.columns`). With ``even`` the
    inputs of ``fc`` are brought to one size while training and its weights put back in the file: the stream of a deep model grows tenfold
    from the first tap to the last and has offsets of a few inputs far above all others. ``soft`` is the share of the loss that goes to the
    target's whole distribution at each position (over the scored ids) in the place of its token: few windows then say more, and are learnt by
    heart later. The rows of the target's last layer are kept beside the taps for it.
    """

    taps: tuple[int, ...] = (0, 2, 3)
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 640
    blocks: tuple[int, ...] = (8, 5, 16)
    rows: int = 512
    segment: int = 96
    mask: int = 1
    negatives: int = 0
    frequent: int = 4096
    even: bool = False
    soft: float = 0.0
    weight_decay: float = 0.0
    lr: float = 2e-3
    windows_a_step: int = 8
    steps: int = 10000
    probe_every: int = 500

    def read(self, target: Target) -> tuple[int, ...]:
        """The layers whose rows training needs: the taps, and the last one where its distribution is a label."""
        last = len(target.model.layers) - 1
        return tuple(self.taps) + ((last,) if self.soft and last not in self.taps else ())

    def config(self, target: Target) -> DFlashConfig:
        text = text_of(target.model).args
        return DFlashConfig(text.hidden_size, self.mlp, self.layers, self.heads, self.kv_heads, 64, target.vocab_size, text.rms_norm_eps, 1e5,
                            max(self.blocks), len(target.model.layers), tuple(self.taps), self.mask, WINDOW)


def sizes(taps: np.ndarray) -> mx.array:
    """Root mean square of each input, [hidden * taps], of taps [N, T, hidden * taps]."""
    return mx.array(np.sqrt(np.mean(taps.astype(np.float32) ** 2, axis=(0, 1))) + 1e-3)


def gamma(block: int) -> float:
    """Decay of the loss over positions: 7 for blocks of 16, 4 for blocks of 8 and less, as published."""
    return 4.0 if block <= 8 else 7.0


def _attend_many(features, anchors, window: int | None):
    """``attend`` for A blocks in each of W windows: features [W, C, hidden], anchors [W, A]; blocks are [W * A, T, hidden] and
    see ``window`` rows before their anchor, None for all."""
    W, C, _ = features.shape
    A = anchors.shape[1]
    back = anchors[:, :, None] - mx.arange(C)
    mask = mx.where((back > 0) & (back <= (window or C)), 0.0, -mx.inf)[:, None, :, None, :]

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


def block_logits(model: DFlashModel, target: Target, taps, ids, anchors, block: int, chosen=None):
    """Logits [W * A, block - 1, vocab] of the blocks that open at ``anchors`` [W, A] of windows ``ids`` [W, C]; with ``chosen`` [V'] of those ids alone."""
    embed, head = embed_and_head(target)
    anchor = mx.take_along_axis(ids, anchors, axis=1).reshape(-1, 1)
    rows = mx.concatenate([anchor, mx.full((len(anchor), block - 1), model.config.mask_token_id, dtype=anchor.dtype)], axis=1)
    attend = _attend_many(model.features(taps), anchors, model.config.draft_window_size)
    hidden = model(embed(rows), [attend] * len(model.layers))
    return head(hidden) if chosen is None else hidden @ head_rows(target, chosen).T


def block_labels(ids: np.ndarray, anchors: np.ndarray, block: int) -> np.ndarray:
    """The tokens [W * A, block - 1] that the rows of the blocks stand for."""
    at = anchors[:, :, None] + 1 + np.arange(block - 1)
    return np.take_along_axis(ids, at.reshape(len(ids), -1), axis=1).reshape(-1, block - 1)


def teacher(target: Target, last, anchors, block: int, chosen=None):
    """The target's own distribution [W * A, block - 1, vocab or V'] over the token of each row of the blocks at ``anchors`` [W, A],
    from what its last layer put out, ``last`` [W, C, hidden]."""
    at = (anchors[:, :, None] + mx.arange(block - 1)).reshape(len(last), -1, 1)
    hidden = tower(target.model).norm(mx.take_along_axis(last, at, axis=1)).reshape(-1, block - 1, last.shape[-1])
    return mx.softmax(embed_and_head(target)[1](hidden) if chosen is None else hidden @ head_rows(target, chosen).T, axis=-1)


def block_loss(model: DFlashModel, target: Target, taps, ids, anchors, block: int, labels, chosen=None, last=None, soft: float = 0.0):
    """Cross-entropy of row k against the token at its own position, weighted exp(-(k - 1) / gamma) and averaged, in nats.
    ``labels`` are ids, or positions in ``chosen`` where it is given; the share ``soft`` of it is against :func:`teacher`."""
    logits = block_logits(model, target, taps, ids, anchors, block, chosen)
    weight, losses = mx.exp(-mx.arange(block - 1) / gamma(block)), nn.losses.cross_entropy(logits, labels)
    if soft:
        losses = (1 - soft) * losses + soft * nn.losses.cross_entropy(logits, teacher(target, last, anchors, block, chosen))
    return (losses * weight).sum() / (weight.sum() * len(labels))


class Training(tapped.Training):
    _frequent: np.ndarray | None = None
    _sizes: mx.array | None = None  # of the inputs of fc, root mean square over the first windows

    def new_model(self) -> DFlashModel:
        return DFlashModel(self.recipe.config(self.target))

    def batch(self, step: int, rows: np.ndarray, windows: np.ndarray, prefix: int) -> tuple:
        """Taps, ids, anchors, block size, labels, the scored ids (None: all) and rows of the last layer (None: no soft labels).
        Anchor and labels are the target's own."""
        r = self.recipe
        rng = np.random.default_rng(stream_seed(r.seed, DATA_SAMPLING, step))
        block, width = r.blocks[step % len(r.blocks)], windows.shape[1]
        length = width if step % 4 == 3 else min(r.segment, width)
        chosen = rng.choice(len(windows), r.windows_a_step, replace=len(windows) < r.windows_a_step)
        first = int(rng.integers(min(max(0, prefix - length // 4), width - length), width - length + 1))
        anchors = rng.integers(max(0, prefix - 1 - first), length - block + 1, (len(chosen), max(1, r.rows // (block * r.windows_a_step))))
        part = slice(first, first + length)
        ids = windows[chosen][:, part].astype(np.int32)
        labels, scored = block_labels(ids, anchors, block), None
        if r.negatives:
            if self._frequent is None:
                self._frequent = most_frequent(windows[:, prefix:], r.frequent)
            scored, labels = (mx.array(a) for a in columns(labels, self._frequent, self.target.vocab_size, r.negatives, rng))
        read = mx.array(rows[chosen][:, part]).astype(mx.float32)
        one = read.shape[-1] // len(r.read(self.target))
        across, taps, last = one * len(r.taps), read[..., : one * len(r.taps)], None
        if r.soft:
            at = one * r.read(self.target).index(len(self.target.model.layers) - 1)
            last = read[..., at : at + one]
        if r.even:
            if self._sizes is None:
                self._sizes = sizes(rows[np.arange(min(SAMPLE, len(windows)))][:, prefix:, :across])
            taps = taps / self._sizes
        return taps, mx.array(ids), mx.array(anchors.astype(np.int32)), block, mx.array(labels), scored, last

    def loss(self, model: DFlashModel, *batch) -> mx.array:
        return block_loss(model, self.target, *batch, self.recipe.soft)

    def _for_raw_taps(self, model: DFlashModel) -> DFlashModel:
        """The same function of taps as they are."""
        if self._sizes is None:
            return model
        model = share(model)
        model.fc.weight = model.fc.weight / self._sizes
        return model

    def drafter(self, model: DFlashModel) -> DFlashDrafter:
        return DFlashDrafter(self.target, tapped.shipped(self._for_raw_taps(model)))

    def write(self, out: Path, facts: dict) -> None:
        write_dflash(out, self._for_raw_taps(self.model), facts)


if __name__ == "__main__":
    sys.exit(guarded(lambda: tapped.command(__doc__.splitlines()[0], Training, Recipe)))
