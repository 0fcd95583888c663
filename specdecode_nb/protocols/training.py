"""What the training Acts share: text, launches with checkpoints, teacher-forced judging, decoding of what was trained, the journal.

A launch trains one adapter in the published layout, objective and corruption (TV, uniform, rank 16; system 1) and leaves a checkpoint at
every stop in the work folder beside the journal. A killed run goes on from the last one, bit for bit. The text is the grammar part of the
committed corpus recipe, which needs no installed package: documents that the target has read to train on, held-out ones to judge.
"""
from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from mlx.utils import tree_unflatten

from .. import blas, criteria
from ..drafters import NOISE_SEED, UnoDrafter
from ..errors import BadInput
from ..lora import adapter_weights, attach
from ..streams import EVAL_NOISE
from ..targets import Target, load_target, mx
from ..train import corpus, uno
from ..train.loop import read_checkpoint
from .common import WARMUP_PROMPTS, check_room, decode_rows, decoded, drafting_arm, journal_of, keeper, plain_arms, prompt_suite

SEED, WINDOW, LOWEST = 20260903, 192, 64  # tokens of a window, and the first of them that a block may branch off from
HELD_OUT, WIDEST = 6, 8  # windows to judge on for each batch, with blocks of seven speculative slots: a slot does not see those behind it
JUDGE = uno.Recipe(seed=20261003, block=WIDEST, blocks=64, corruption="full")
UNTRAINED = "untrained"
FREE = ("block", "blocks", "seed", "data_seed", "noise_seed")  # what may change where one launch goes on from another


def published(params: Mapping, block: int, **changes) -> uno.Recipe:
    """The published recipe with the scale of ``params``: blocks of ``block``, as many as make ``draft_rows`` rows a step.

    The number of draft rows, not of blocks, is what a step costs here and what it supervises, since the clean rows are computed once.
    """
    return replace(uno.Recipe(rank=16, modules="published", objective="tv", own_text=False, corruption="uniform", schedule="flat", warmup=20, seed=SEED),
                   lr=float(params["rate"]), steps=params["steps"], windows=params["windows"], block=block, blocks=max(1, params["draft_rows"] // (block - 1)), **changes)


@dataclass(frozen=True)
class Texts:
    """The clean passes over what is trained on and what is judged on; each is made when it is first asked for.

    Attributes:
        count: windows to train on.
        batches: of JUDGE.blocks held-out blocks to judge on; four are 256 rows, as published.
    """

    target: Target
    count: int
    batches: int = 4

    @cached_property
    def clean(self) -> uno.CleanPass:
        return uno.clean_pass(self.target, corpus.windows(self.target, self.count, WINDOW, corpus.SEED))

    @cached_property
    def unseen(self) -> uno.CleanPass:
        return uno.clean_pass(self.target, corpus.windows(self.target, HELD_OUT * self.batches, WINDOW, corpus.SEED, held_out=True))


@dataclass(frozen=True)
class Job:
    """One launch of one arm.

    Attributes:
        stops: steps at which it is saved and judged; the last is its end.
        widths: blocks of equal parts between start and end (a curriculum); () is the recipe's.
        start: the checkpoint that it goes on from, by the stem of its file.
        change: what was made different from the launch ``against``, whose checkpoint at the same step it is measured from.
        nudged: the adapter tensor, in order of name, whose first number is moved by one unit in the last place at the start.
        watch: look at held-out text every so many steps; 0 for never.
        judged: held-out blocks too, a ``forced`` row at every stop.
        alone: in a process of its own, with ``environ`` among its variables, where the Act runs processes.
    """

    arm: str
    recipe: uno.Recipe
    stops: tuple[int, ...]
    widths: tuple[int, ...] = ()
    launch: int = 1
    start: str = ""
    change: str = ""
    against: str = ""
    nudged: int | None = None
    watch: int = 0
    judged: bool = True
    alone: bool = False
    environ: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.launch}"

    @classmethod
    def read(cls, found: dict) -> Job:
        """From the dictionary that ``asdict`` made, as JSON gives it back."""
        lists = {k: tuple(found[k]) for k in ("stops", "widths")} | {"environ": tuple(map(tuple, found["environ"]))}
        return cls(**found | lists | {"recipe": uno.Recipe(**found["recipe"])})


def checkpoint(work: Path, name: str, step: int) -> Path:
    return work / f"{name}-{step}.safetensors"


def step_of(stem: str) -> int:
    return int(stem.rsplit("-", 1)[1])


def weights(path: Path, part: str = "model.") -> dict[str, mx.array]:
    """The adapter tensors of a checkpoint; with ``part`` "" the moments too. Raises BadInput for a damaged file."""
    return {k.removeprefix("model."): v for k, v in read_checkpoint(path)[0].items() if k.startswith(part)}


def spent(path: Path) -> float:
    """Seconds of training that led to a checkpoint, those of the launch it went on from included. Raises BadInput for a damaged file."""
    return read_checkpoint(path)[1]["seconds"]


def digest(tensors: Mapping[str, mx.array]) -> str:
    """sha256 over names and bytes, in order of name."""
    h = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        h.update(name.encode() + np.array(value).tobytes())
    return h.hexdigest()


def distance(one: Mapping[str, mx.array], other: Mapping[str, mx.array]) -> float:
    """Frobenius norm of the difference over that of ``other``."""
    pairs = [(np.array(one[k], dtype=np.float64), np.array(v, dtype=np.float64)) for k, v in other.items()]
    return float(np.sqrt(sum(((a - b) ** 2).sum() for a, b in pairs) / sum((b**2).sum() for _, b in pairs)))


def view(target: Target, rank: int = 16, tensors: Mapping[str, mx.array] | None = None):
    """(adapted model, gate) as decoding has them; without tensors the untrained adapter, whose update is zero."""
    adapted, gate = attach(target.model, rank)
    adapted.update(tree_unflatten(list((tensors or {}).items())))
    return adapted, gate


def nudge(adapted, which: int) -> None:
    """Move the first number of one adapter tensor up by one unit in the last place."""
    name, value = sorted(adapter_weights(adapted).items())[which]
    moved = np.array(value)
    moved.flat[0] = np.nextafter(moved.flat[0], np.float32(np.inf))
    adapted.update(tree_unflatten([(name, mx.array(moved))]))


def resume(run: uno.Loop, path: Path, changed: Iterable[str] = ()) -> None:
    """Go on from a checkpoint, which must be of the step in its name. Raises BadInput."""
    run.resume(path, changed)
    if run.step != step_of(path.stem):
        raise BadInput(f"The checkpoint {path.name!r} is of step {run.step}; remove it, or start anew in another folder (--out).")


def check_kept(rows: Iterable[dict], job: Job, work: Path) -> None:
    """The checkpoints of a job, moments included, must be those that its launch rows tell of. Raises BadInput."""
    for row in rows:
        if row["kind"] == "launch" and (row["arm"], row["launch"]) == (job.arm, job.launch):
            path = checkpoint(work, job.name, row["step"])
            if path.exists() and digest(weights(path, "")) != row["state_digest"]:
                raise BadInput(f"The checkpoint {str(path)!r} is not the one that was measured; remove it, or start anew in another folder (--out).")


def emptied(work: Path) -> None:
    """Take the folder away with the checkpoints of another measurement, which are none of this one's. Raises BadInput."""
    try:
        if os.path.lexists(work):
            shutil.rmtree(work)
    except OSError as error:  # a link too
        raise BadInput(f"The folder of checkpoints {str(work)!r} cannot be emptied ({error.strerror or error}); remove it, or choose another --out.") from None


def train(target: Target, texts: Texts, job: Job, work: Path) -> Iterator[tuple[int, uno.Loop]]:
    """Run a launch from checkpoint to checkpoint; yields (step, its loop) at every stop, also of one that is finished."""
    first = step_of(job.start) if job.start else 0
    parts = job.widths or (job.recipe.block,)
    ends = [first + round((job.stops[-1] - first) * (n + 1) / len(parts)) for n in range(len(parts))]
    rows, before = job.recipe.blocks * (job.recipe.block - 1), work / f"{job.start}.safetensors" if job.start else None
    for point in sorted({*job.stops, *ends}):
        block = parts[next(n for n, end in enumerate(ends) if point <= end)]
        recipe = replace(job.recipe, block=block, blocks=max(1, rows // (block - 1)))
        adapted, gate, loop = uno.launch(target, texts.clean, recipe, LOWEST)
        loop.log_every = 1
        path = checkpoint(work, job.name, point)
        if path.exists():
            resume(loop, path)
        else:
            if before:
                resume(loop, before, FREE)
            if job.nudged is not None and loop.step == first:
                nudge(adapted, job.nudged)
            while loop.step < point:
                loop.run(min(point, loop.step + (job.watch or point)), say=lambda *a, **k: None)
                if job.watch:
                    uno.agreement(target, adapted, gate, texts.unseen, recipe, 1, LOWEST)
            loop.save(path)
        before = path
        if point in job.stops:
            yield point, loop


def forced_row(target: Target, texts: Texts, tensors: Mapping[str, mx.array] | None, rank: int = 16) -> dict:
    """Held-out blocks of full noise, teacher-forced: agreement by slot and distance of the distributions, block by block.

    ``seed_rows_changed`` counts numbers of the rows before a block that are not the bits of the target without any adapter (G0).
    """
    adapted, gate = view(target, rank, tensors)
    matches, apart, of = [], [], []
    for b in range(texts.batches):
        rows, caches, teacher, _ = uno._blocks(target, texts.unseen, JUDGE, b, EVAL_NOISE, LOWEST)
        gate.rows(mx.ones(rows.shape))
        student = adapted(rows, cache=caches)
        matches.append(np.array(mx.argmax(student, -1) == mx.argmax(teacher, -1)))
        apart.append(np.array(mx.abs(mx.softmax(student.astype(mx.float32), -1) - mx.softmax(teacher.astype(mx.float32), -1)).sum(-1)))
        rng = np.random.default_rng(uno.stream_seed(JUDGE.seed, EVAL_NOISE, b + 1))
        of += rng.integers(0, HELD_OUT * texts.batches, JUDGE.blocks).tolist()  # the windows, as the blocks were drawn
    hits, l1, ids = np.concatenate(matches), np.concatenate(apart), texts.unseen.ids[:4]
    gate.rows(mx.concatenate([mx.zeros((len(ids), WINDOW - WIDEST + 1)), mx.ones((len(ids), WIDEST - 1))], axis=1))
    clean = [np.array(m(ids))[:, : WINDOW - WIDEST + 1] for m in (adapted, target.model)]
    gate.rows(None)
    return {"blocks": len(hits), "windows": of, "matches": ["".join("01"[bool(h)] for h in row) for row in hits], "l1_by_slot": [round(float(v), 5) for v in l1.mean(0)],
            "l1_k4": [round(float(v), 4) for v in l1[:, :3].sum(1) / 4], "seed_rows_compared": clean[0].size, "seed_rows_changed": int((clean[0] != clean[1]).sum())}


def job_rows(target: Target, texts: Texts, job: Job, work: Path) -> Iterator[dict]:
    """A ``launch`` row for every stop, and a ``forced`` one if the job is judged."""
    since, earlier = (step_of(job.start), spent(work / f"{job.start}.safetensors")) if job.start else (0, 0.0)
    for step, loop in train(target, texts, job, work):
        path = checkpoint(work, job.name, step)
        about = {"arm": job.arm, "launch": job.launch, "step": step, "change": job.change, "block": (job.widths or (job.recipe.block,))[-1]}
        tensors = weights(path)
        far = distance(tensors, weights(checkpoint(work, job.against, step))) if job.against else None
        yield {"kind": "launch", **about, "start": job.start, "recipe": asdict(job.recipe), "widths": list(job.widths), "adapter_digest": digest(tensors),
               "state_digest": digest(weights(path, "")), "trained": sum(v.size for v in tensors.values()),
               "foreign": sum(not k.endswith(("lora_a", "lora_b")) for k in tensors), "distance": far, "seconds": round(loop.seconds - earlier, 2),
               "loss": [entry for entry in loop.log["loss"] if entry[0] > since], "blas": blas.report()["name"], "threads": blas.report()["threads"]}
        since = step
        if job.judged:
            yield {"kind": "forced", **about, **forced_row(target, texts, tensors, job.recipe.rank)}


Arms = Mapping[str, tuple[str, int, dict]]
"""Decode arms by name: the checkpoint's stem (or UNTRAINED), the width, options of :func:`.common.drafting_arm`."""


@contextmanager
def here(target: Target, texts: Texts, work: Path) -> Iterator[Callable[[Job], Iterator[dict]]]:
    """Runs jobs in this process."""
    yield lambda job: job_rows(target, texts, job, work)


def arms_of(target: Target, arms: Arms, work: Path) -> dict:
    """Plain arms and one for each trained adapter and width. ``scheme="replay"`` drafts and undoes as published: the whole draft is dropped."""
    made = plain_arms(target)
    for name, (stem, k, options) in arms.items():
        tensors = None if stem == UNTRAINED else weights(work / f"{stem}.safetensors")
        drafter = UnoDrafter(target, *view(target, tensors=tensors), name=name, keep_seed=options.get("scheme") != "replay")
        made[name] = drafting_arm(target, drafter, k, **options)
    return made


def measure(act: str, params: dict, journal: Path, progress: Callable | None, resume: bool, jobs: Sequence[Job], arms: Arms,
            running: Callable = here) -> Path:
    """Train every job, judge it, decode every arm on the prompt suite, and write a row file beside ``journal``.

    Args:
        params: target, rate, draft_rows, windows, batches, tokens, repeats, prompts, quick and the Act's own.
        running: a context of (target, texts, work) that gives what runs one job and yields its rows.
    Raises:
        BadInput: before anything is trained, if an input does not exist or does not fit; a checkpoint is damaged or not the one that was measured.
    """
    target = load_target(params["target"], "float32")
    prompts, work = prompt_suite(target, params["prompts"]), journal.with_suffix(".work")
    check_room(target, prompts, params["tokens"], WIDEST)
    config = {k: v for k, v in params.items() if k not in ("measure", "quick", "rows")} | {"dtype": "float32", "reduced": params["quick"]}
    config |= {"prompts": [p["id"] for p in prompts], "warmup_prompts": WARMUP_PROMPTS, "noise_seed": NOISE_SEED, "window": WINDOW, "lowest": LOWEST, "held_out_windows": HELD_OUT * params["batches"],
               "launches": [[job.arm, job.launch, step] for job in jobs for step in job.stops],
               "judged": [[job.arm, job.launch, step] for job in jobs for step in job.stops if job.judged], "arms": list(arms), "criteria": criteria.load(act).rules}
    trainee = SimpleNamespace(name="uno", metadata={"made": "trained in this measurement, see the launch rows"})
    total = sum(len(job.stops) * (1 + job.judged) for job in jobs) + len(prompts) * params["repeats"] * (len(arms) + 2)
    with journal_of(act, journal, target, trainee, config, resume) as rows:
        if not len(rows):
            emptied(work)
        work.mkdir(parents=True, exist_ok=True)
        keep = keeper(rows, total, progress)
        done = {(r["kind"], r["arm"], r["launch"], r["step"]) for r in rows if r["kind"] in ("launch", "forced")}
        with running(target, Texts(target, params["windows"], params["batches"]), work) as run:
            for job in jobs:
                check_kept(rows, job, work)
                rows_there = all((kind, job.arm, job.launch, step) in done for kind in ("launch", "forced")[: 1 + job.judged] for step in job.stops)
                if not rows_there or not all(checkpoint(work, job.name, step).exists() for step in job.stops):  # decoding and later launches need them
                    keep(r for r in run(job) if (r["kind"], r["arm"], r["launch"], r["step"]) not in done)
                    check_kept(rows, job, work)  # what was trained a second time for rows that are there
        keep(decode_rows(target, prompts, arms_of(target, arms, work), params["tokens"], params["repeats"], decoded(rows)))
    return journal.with_suffix(".json")


def stems(jobs: Iterable[Job]) -> dict[str, str]:
    """The last checkpoint of each job by its name."""
    return {job.name: f"{job.name}-{job.stops[-1]}" for job in jobs}
