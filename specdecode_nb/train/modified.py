"""A target that somebody went on training: copies in memory after a few AdamW steps on text that no drafter was made for.

The text is the published sentences that this repository keeps (``data/published``): English about decoding, fixed by the
clone and not part of the corpus of the embedded target.
"""
from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..backend import mx, nn  # isort: skip

import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten

from .. import paths
from ..errors import BadInput
from ..targets import Target, own_arrays, share
from .target import RECIPE, loss_of

SEED, RATE, BATCH, WINDOW = 20261129, 3e-4, 2, 128
SHORTEST = 60  # characters: a sentence, not a name


def published_text() -> str:
    """Every published sentence, by file and place in it, one a line."""
    def sentences(value):
        if isinstance(value, str):
            yield from [value] if len(value) >= SHORTEST else []
        else:
            for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
                yield from sentences(item)

    files = [json.loads(path.read_text()) for path in sorted((paths.data() / "published").glob("*.json"))]
    return "\n".join(dict.fromkeys(s for file in files for s in sentences(file)))


def distance(a, b) -> float:
    """Frobenius norm of the difference of all weights of two models over that of ``a``."""
    pairs = [(x.astype(mx.float32), y.astype(mx.float32)) for (_, x), (_, y) in zip(tree_flatten(a.parameters()), tree_flatten(b.parameters()), strict=True)]
    apart, norm = (sum(((x - y) ** 2).sum().item() for x, y in pairs), sum((x**2).sum().item() for x, _ in pairs))
    return (apart / norm) ** 0.5


def tuned(target: Target, text: str, stops: Sequence[int], rate: float = RATE, seed: int = SEED) -> Iterator[tuple[int, float, Target]]:
    """Train a copy of ``target`` on ``text`` and yield (steps, relative change of the weights, a target) at each of ``stops``, ascending.

    0 among the stops is the untouched weights. ``target`` shares nothing with what is trained.

    Raises:
        BadInput: a quantised target, or a text of fewer ids than one window.
    """
    if target.bits is not None:
        raise BadInput(f"Target {target.name!r} has {target.bits}-bit matrices, which cannot be trained; use the original.")
    ids = np.array(target.encode(text), dtype=np.int32)
    if len(ids) <= WINDOW:
        raise BadInput(f"The text has {len(ids)} tokens, too few for a window of {WINDOW}; give more.")
    model = own_arrays(share(target.model))
    model.train()
    optimizer = optim.AdamW(rate, betas=RECIPE["betas"], weight_decay=0.0, bias_correction=True)
    gradient, draw = nn.value_and_grad(model, loss_of), np.random.default_rng(seed)
    for step in range(max(stops) + 1):
        if step in stops:
            copy = own_arrays(share(model))
            copy.eval()
            yield step, distance(target.model, copy), replace(target, model=copy)
        starts = draw.integers(0, len(ids) - WINDOW, BATCH)
        _, grads = gradient(model, mx.array(np.stack([ids[s : s + WINDOW + 1] for s in starts])))
        grads, _ = optim.clip_grad_norm(grads, RECIPE["clip"])
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state)
