"""Act IV-U: the adapter from scratch at K=2 and K=4, beside the untrained one and the shuffled-teacher control.

``launch`` and ``forced`` rows by arm; ``decode`` rows with the states kept, and with the published replay, where a rejected block is forwarded again.
"""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import training
from .training import UNTRAINED, Job, published

ACT = "act4u"


def plan(params: dict) -> tuple[list[Job], training.Arms]:
    """The launches, and what is decoded: each trained adapter at its own width, that of K=4 at 8 as well."""
    end = (params["steps"],)
    jobs = [Job(UNTRAINED, published(params, 4), (0,))]
    jobs += [Job(f"{kind}_k{k}", published(params, k, shuffled=kind == "shuffled"), end) for k in (2, 4) for kind in ("trained", "shuffled")]
    last, replay = training.stems(jobs), {"scheme": "replay"}
    arms = {f"untrained_k{k}": (UNTRAINED, k, {}) for k in (2, 4, 8)}
    arms |= {f"{kind}_k{k}": (last[f"{kind}_k{k}-1"], k, {}) for k in (2, 4) for kind in ("trained", "shuffled")}
    arms["trained_k8"] = last["trained_k4-1"], 8, {}
    return jobs, arms | {f"replay_k{k}": (arms[f"trained_k{k}"][0], k, replay) for k in (2, 4, 8)}


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act IV-U; see :func:`.training.measure` for arguments and errors."""
    return training.measure(ACT, params, journal, progress, resume, *plan(params))
