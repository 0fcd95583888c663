"""The one training loop: weights, moments, step and log of a run that can be killed and goes on bit for bit.

What is trained, on which batches and for which loss, is passed in. A batch is a function of its step alone (keys from
``streams.stream_seed``, published system 1.6), so a step does not depend on how the run came to it.
"""
from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

from ..backend import mx, nn  # isort: skip

import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from ..checkpoints import expect, read_safetensors, write_safetensors
from ..errors import BadInput

CLIP = 1.0  # global norm of the gradient
STILL, PATIENCE = 1e-3, 5  # a gradient norm below STILL for PATIENCE steps of saturated logits ends a run (published system 1.4)
LONGER = {"steps", "patience"}  # what may differ between a checkpoint and the run that goes on from it; steps where the rate is flat alone
STATE = {"recipe": dict, "step": int, "seconds": (int, float), "log": dict}


@dataclass(frozen=True)
class Recipe:
    """The least that a recipe says; any frozen dataclass with these fields will do.

    ``schedule`` of the rate after its linear warm-up: "flat", "linear" (falls over all steps to a twentieth) or "end" (flat, falls over the
    last 30 % to a fiftieth). A recipe without the field is "linear"; one may also have ``betas`` and ``weight_decay``.
    """

    lr: float = 1e-3
    warmup: int = 20
    steps: int = 1000
    seed: int = 20260903
    schedule: str = "flat"


def schedule(recipe) -> str:
    """The schedule's name; that of a recipe without the field."""
    return getattr(recipe, "schedule", "linear")


def rate(recipe, step: int) -> float:
    """The learning rate of ``step``, counted from 0. Raises BadInput for an unknown schedule."""
    kind, left = schedule(recipe), 1 - step / recipe.steps
    falls = {"flat": 1.0, "linear": max(0.05, left), "end": max(0.02, min(1.0, left / 0.3))}
    if kind not in falls:
        raise BadInput(f"There is no schedule {kind!r}; take {', '.join(falls)}.")
    return recipe.lr * min((step + 1) / recipe.warmup, 1.0) * falls[kind]


def read_checkpoint(path: Path) -> tuple[dict, dict]:
    """Tensors and state of a file that :meth:`Loop.save` wrote. Raises BadInput if it is damaged, or no such file."""
    try:
        tensors, found = read_safetensors(path), mx.load(str(path), return_metadata=True)[1].get("state", "null")
        state = json.loads(found)
        if not isinstance(state, dict) or not all(isinstance(state.get(k), kind) for k, kind in STATE.items()) or "loss" not in state["log"]:
            raise ValueError
    except BadInput as error:
        if not path.exists():
            raise
        raise BadInput(f"{str(error).rpartition(';')[0]}; remove it, or give another folder.") from None
    except ValueError:
        raise BadInput(f"The file {path.name!r} is no checkpoint of a training, or a damaged one; remove it, or give another folder.") from None
    return tensors, state


class Loop:
    """Train ``model`` in place with AdamW: ``loss(model, *batch(step))`` is a scalar, ``batch(step)`` a tuple.

    Args:
        recipe: a frozen dataclass with at least ``lr``, ``warmup``, ``steps`` and ``seed`` (see :class:`Recipe`).
        allowed: which names may be trainable, e.g. ``lambda name: name.endswith(("lora_a", "lora_b"))``. None: all.
        frozen: the digest of what must not change, e.g. ``target.digest``; taken now and at the end of every :meth:`run`.
        saturated: asked with (model, *batch) after a step whose gradient is as good as zero; five times true in a row ends the run.
        rate: the learning rate of a step; None: that of the recipe's schedule.
    Raises:
        BadInput: ``allowed`` refuses a trainable tensor, or nothing is trainable.

    ``log["loss"]`` holds [step, loss, gradient norm] of every ``log_every``-th step; callers add lists of their own to ``log``.
    """

    def __init__(self, model: nn.Module, loss: Callable, batch: Callable[[int], tuple], recipe, *, allowed: Callable[[str], bool] | None = None,
                 frozen: Callable[[], str] | None = None, saturated: Callable[..., bool] | None = None,
                 rate: Callable[[int], float] | None = None, log_every: int = 10):
        self.model, self.recipe, self.batches, self.log_every = model, recipe, batch, log_every
        names = [k for k, _ in tree_flatten(model.trainable_parameters())]
        foreign = [k for k in names if allowed and not allowed(k)]
        if foreign or not names:
            raise BadInput(f"The tensor {foreign[0]!r} would be trained ({len(foreign)} in all); freeze it." if foreign else "Nothing in the model is trainable.")
        self.optimizer = optim.AdamW(recipe.lr, betas=list(getattr(recipe, "betas", (0.9, 0.98))),
                                     weight_decay=getattr(recipe, "weight_decay", 0.0), bias_correction=True)
        # without the bias correction the first hundred steps are several times too long, and drafts fall to unigrams
        self.optimizer.init(model.trainable_parameters())
        self.step, self.seconds, self.still, self.log = 0, 0.0, 0, {"loss": []}
        self._gradient, self._rate, self._saturated = nn.value_and_grad(model, loss), rate, saturated
        self._frozen, self._digest = frozen, frozen() if frozen else None

    def run(self, until: int, say: Callable = print) -> None:
        """Steps up to ``until``; ``self.seconds`` counts their wall time.

        Raises:
            FloatingPointError: a loss, gradient or weight that is not finite, or saturation.
            RuntimeError: the frozen part is not what it was.
        """
        while self.step < until:
            began = time.perf_counter()
            loss, grads = self._gradient(self.model, *self.batches(self.step))
            grads, norm = optim.clip_grad_norm(grads, CLIP)
            self.optimizer.learning_rate = self._rate(self.step) if self._rate else rate(self.recipe, self.step)
            self.optimizer.update(self.model, grads)
            mx.eval(self.model.trainable_parameters(), self.optimizer.state, loss, norm)
            self.step += 1
            self.seconds += time.perf_counter() - began
            self.still = self.still + 1 if self._saturated and norm.item() < STILL and self._saturated(self.model, *self.batches(self.step - 1)) else 0
            if not np.isfinite([loss.item(), norm.item()]).all() or self.still >= PATIENCE:
                raise FloatingPointError(f"Training stopped at step {self.step}: loss {loss.item()}, gradient norm {norm.item():.2g}; lower the rate.")
            if self.step % self.log_every == 0:
                self.log["loss"].append([self.step, round(loss.item(), 4), round(norm.item(), 3)])
                say(*self.log["loss"][-1], f"{self.seconds / self.step:.2f} s/step", flush=True)
        if not all(mx.isfinite(v).all().item() for _, v in tree_flatten(self.model.trainable_parameters())):  # no later loss tells of the last update
            raise FloatingPointError(f"Training stopped at step {self.step}: weights are not finite after the update; lower the rate.")
        if self._frozen and self._frozen() != self._digest:
            raise RuntimeError("The target's digest changed during training; what was trained is void.")

    def save(self, path: Path) -> None:
        """Trainable tensors, moments, recipe, step, seconds and log in one safetensors file, put in place whole."""
        tensors = {f"model.{k}": v for k, v in tree_flatten(self.model.trainable_parameters())}
        tensors |= {f"optimizer.{k}": v for k, v in tree_flatten(self.optimizer.state)}
        state = {"recipe": asdict(self.recipe), "step": self.step, "seconds": self.seconds, "still": self.still, "log": self.log, "frozen": self._digest}
        write_safetensors(path, tensors, {"state": json.dumps(state)})

    def resume(self, path: Path, changed: Iterable[str] = ()) -> None:
        """Go on from :meth:`save`.

        Raises:
            BadInput: the file is damaged, the recipe differs in other fields than ``changed`` and those that may (``steps`` under the
                schedule "flat" alone, since the other rates depend on it), or target, tensors or moments are of another model.
        """
        tensors, state = read_checkpoint(path)
        free = {*changed} | (LONGER if schedule(self.recipe) == "flat" else LONGER - {"steps"})
        later = {f.name: f.default for f in fields(self.recipe) if f.default is not MISSING}  # an older checkpoint lacks fields of today
        theirs, ours = (json.loads(json.dumps(r)) for r in (later | state["recipe"], asdict(self.recipe)))
        if differ := sorted(k for k in {*theirs, *ours} - free if theirs.get(k) != ours.get(k)):
            raise BadInput(f"The checkpoint {path.name!r} belongs to another recipe ({', '.join(differ)}); give that one or another folder.")
        if state.get("frozen") and self._digest and state["frozen"] != self._digest:
            raise BadInput(f"The checkpoint {path.name!r} was trained on another target; give that one or another folder.")
        wanted = dict(tree_flatten({"model": self.model.trainable_parameters(), "optimizer": self.optimizer.state}))
        expect({k: v.shape for k, v in wanted.items()}, {k: v.shape for k, v in tensors.items()}, path.name)
        if odd := next((k for k, v in wanted.items() if v.dtype != tensors[k].dtype), None) or ("optimizer.step" if tensors["optimizer.step"].item() != state["step"] else None):
            raise BadInput(f"The tensor {odd!r} in {path.name!r} is not one that this training wrote there; remove the file, or give another folder.")
        part = tree_unflatten(list(tensors.items()))
        self.model.update(part["model"])
        self.optimizer.state = part["optimizer"]
        self.step, self.seconds, self.still, self.log = state["step"], state["seconds"], state.get("still", 0), state["log"]
