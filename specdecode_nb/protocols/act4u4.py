"""Act IV-U4: how far ahead. One K=4 start goes on at K = 4, 6 and 8 with equal draft rows; each is decoded at its own width and beyond."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import training
from .training import UNTRAINED, Job, published

ACT, WIDTHS = "act4u4", (4, 6, 8)


def plan(params: dict) -> tuple[list[Job], training.Arms]:
    """The start, three horizons from it, and every one of these four adapters decoded at all three widths."""
    begin, steps = params["start_steps"], params["steps"]
    jobs = [Job(UNTRAINED, published(params, 4), (0,)), Job("start", published(params, 4), (begin,))]
    jobs += [Job(f"horizon{k}", published(params, k), (begin + steps,), start=f"start-1-{begin}") for k in WIDTHS]
    last = training.stems(jobs)
    return jobs, {f"{job.arm}_k{k}": (last[job.name], k, {}) for job in jobs[1:] for k in WIDTHS}


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act IV-U4; see :func:`.training.measure` for arguments and errors."""
    return training.measure(ACT, params, journal, progress, resume, *plan(params))
