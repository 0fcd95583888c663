"""Act IV-U5: four arms from one start checkpoint, and what makes two launches of one command differ.

Launches that are meant to be identical are processes of their own and share everything else. Each perturbed launch differs from the
control in one ingredient, and is compared with it bit for bit after a few steps. Full launches over seeds, and from a start
that was moved by one unit in the last place, say how far apart the ends lie.
"""
from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from .. import blas
from ..errors import BadInput
from ..targets import load_target
from . import machine, training
from .training import UNTRAINED, Job, Texts, job_rows, published

ACT, CONTROL = "act4u5", "A_k4"
ARMS = {CONTROL: (4,), "B_k6": (6,), "C_k8": (8,), "D_curr": (4, 6, 8)}
OTHER = "C_k8"  # the second arm that is launched again
OLDER = "ARMV8" if platform.machine() in ("arm64", "aarch64") else "Prescott"  # a processor whose kernels OpenBLAS has on any machine of the kind
OTHER_SEED = 7919  # added to the seed of one stream


def repetitions(launches: int) -> dict[str, int]:
    """Identical launches by arm: all of them of the control, half as many of the other arm, two at least."""
    return {CONTROL: launches, OTHER: max(2, (launches + 1) // 2)}


def plan(params: dict) -> tuple[list[Job], training.Arms]:
    """All launches in order, and every full one decoded at K=4. Raises BadInput if perturbed launches would be longer than full ones."""
    begin, steps, few = params["start_steps"], params["steps"], params["short_steps"]
    if few > steps:
        raise BadInput(f"short_steps is {few}, but a full launch has {steps} steps; give steps={few} or more, or fewer short_steps.")
    end, start, soon = (begin + steps,), f"start-1-{begin}", (begin + few,)
    jobs = [Job(UNTRAINED, published(params, 4), (0,)), Job("start", published(params, 4), (begin,))]

    def full(arm: str, **more) -> Job:
        return Job(arm, published(params, ARMS[arm][0], **more.pop("recipe", {})), end, ARMS[arm], start=start, **more)

    repeated = repetitions(params["launches"])
    for arm in ARMS:
        for n in range(1, repeated.get(arm, 1) + 1):
            job = full(arm, launch=n, change="launched again" if n > 1 else "", against=f"{arm}-1" if n > 1 else "", judged=n == 1, alone=arm in repeated)
            jobs.append(replace(job, stops=(*soon, *end)) if (arm, n) == (CONTROL, 1) and few < steps else job)
    other = "2" if blas.report()["threads"] == 1 else "1"
    control = {"recipe": published(params, 4), "stops": soon, "start": start, "against": f"{CONTROL}-1", "judged": False}
    for name, changed in {"nothing": {"alone": True}, "looking": {"watch": max(1, few // 5)}, "threads": {"alone": True, "environ": (("OPENBLAS_NUM_THREADS", other), ("OMP_NUM_THREADS", other))},
                          "kernels": {"alone": True, "environ": (("OPENBLAS_CORETYPE", OLDER),)}, "rounding": {"nudged": 0},
                          "order": {"recipe": replace(control["recipe"], data_seed=training.SEED + OTHER_SEED)},
                          "noise": {"recipe": replace(control["recipe"], noise_seed=training.SEED + OTHER_SEED)}}.items():
        jobs.append(Job(f"only_{name}", change=name, **control | changed))
    for n in range(1, params["seeds"] + 1):
        jobs += [full(arm, launch=100 + n, change="seed", against=f"{arm}-1", judged=False, recipe={"data_seed": training.SEED + n, "noise_seed": training.SEED + n}) for arm in (CONTROL, OTHER)]
        jobs.append(full(CONTROL, launch=200 + n, change="rounding", against=f"{CONTROL}-1", judged=False, nudged=n - 1))
    whole = [job for job in jobs if job.stops[-1] == end[0] and not job.arm.startswith("only_")]
    return jobs, {"untrained_k4": (UNTRAINED, 4, {})} | {job.name: (f"{job.name}-{job.stops[-1]}", 4, {}) for job in [jobs[1], *whole]}


@contextmanager
def apart(name: str, target, texts: Texts, work: Path) -> Iterator[Callable]:
    """Runs jobs in child processes, which load the target ``name``: one for all that share it, and one each for those that want to be alone."""
    setup = {"target": name, "windows": texts.count, "batches": texts.batches, "work": str(work.absolute())}
    with ExitStack() as stack:
        shared: list = []

        def run(job: Job) -> Iterator[dict]:
            with ExitStack() as own:
                if job.alone or not shared:
                    worker = (own if job.alone else stack).enter_context(machine.worker(setup, 0, __name__, **dict(job.environ)))
                    list(worker.answer())
                    shared.extend([] if job.alone else [worker])
                yield from (worker if job.alone else shared[0]).ask(asdict(job))

        yield run


def prepare(setup: dict) -> Callable[[dict], Iterator[dict]]:
    """What a child answers a job with."""
    target = load_target(setup["target"], "float32")
    texts = Texts(target, setup["windows"], setup["batches"])
    return lambda request: job_rows(target, texts, Job.read(request), Path(setup["work"]))


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act IV-U5; see :func:`.training.measure` for arguments and errors."""
    return training.measure(ACT, params, journal, progress, resume, *plan(params), partial(apart, params["target"]))


if __name__ == "__main__":
    machine.main(prepare)
