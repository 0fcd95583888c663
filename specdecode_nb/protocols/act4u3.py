"""Act IV-U3: one launch at K=4 from scratch, judged and decoded at every checkpoint, and its first stretch launched again."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import training
from .training import UNTRAINED, Job, published

ACT, SHARES = "act4u3", (8, 4, 2, 1)  # checkpoints at these parts of all steps, as 400, 800, 1600 and 3200 are published


def stops(steps: int) -> tuple[int, ...]:
    """Steps of the checkpoints, each once."""
    return tuple(dict.fromkeys(max(1, steps // share) for share in SHARES))


def plan(params: dict) -> tuple[list[Job], training.Arms]:
    """The curve, its first checkpoint made a second time, and every checkpoint decoded at K=4 and K=2."""
    points, recipe = stops(params["steps"]), published(params, 4)
    jobs = [Job(UNTRAINED, recipe, (0,)), Job("curve", recipe, points), Job("curve", recipe, points[:1], launch=2, change="launched again", against="curve-1")]
    arms = {f"step{step}_k{k}": (f"curve-1-{step}", k, {}) for step in points for k in (4, 2)}
    return jobs, {"untrained_k4": (UNTRAINED, 4, {})} | arms


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act IV-U3; see :func:`.training.measure` for arguments and errors."""
    return training.measure(ACT, params, journal, progress, resume, *plan(params))
