"""Act V, exact identity: bits on the reference BLAS, the audit where bits differ, and exact decoding on the grid.

The rows are made by :mod:`.identity` in two child processes, one that keeps MLX's reference BLAS and one that takes the fastest
that can be had. A unit is one section, type of numbers and prompt.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .. import criteria
from ..decoder import PREFILL_ROWS
from ..exact import CELL
from ..targets import load_target
from . import identity, machine, museum
from .common import CONTEXT_SEED, check_room, context_prompt, journal_of, keeper, prompt_suite
from .dflash import load_drafters

ACT = "act5"
TOY_TOKENS, SHORTEST = 250, 24  # of one toy prompt, at most and at least
CALIBRATION = 2  # texts of the width noise, none of which is audited
LENGTH = 64  # tokens of the prompts of the calibration
FASTER = "auto"  # what the second process asks for


def key(row: dict) -> tuple:
    """What tells rows of one unit apart."""
    return tuple(row.get(name) for name in ("kind", "against", "arm", "width", "repeat", "fault"))


def toy_arms() -> list[tuple]:
    """(drafter, k, scheme) of the toy's arms."""
    return list(identity.toy_arms(identity.toy.hybrid(), list, [2]).values())


def toy_units(params: dict, arms: int) -> list[dict]:
    """As many toy prompts as bring the tokens of all arms to ``identity_tokens``, those of the target counted; one at least."""
    target, each = params["identity_prompts"] * params["tokens"] * arms, len(toy_arms())
    tokens = min(TOY_TOKENS, max(SHORTEST, params["identity_tokens"] // each))
    count = max(1, math.ceil((params["identity_tokens"] - target) / (each * tokens)))
    return [{"section": "reference", "model": "toy", "dtype": "float32", "prompt": {"id": f"toy-{i}"}, "tokens": tokens} for i in range(count)]


def units(params: dict, target, arms: int) -> dict[str, list[dict]]:
    """Requests by BLAS, in order."""
    few, prompts = prompt_suite(target, params["identity_prompts"]), prompt_suite(target, params["prompts"])
    texts = [context_prompt(target, LENGTH, which) for which in range(1, CALIBRATION + 1)]
    one = lambda section, dtype, chosen, **more: [  # noqa: E731
        {"section": section, "model": "target", "dtype": dtype, "prompt": p, "tokens": params["tokens"], "repeats": params["repeats"], **more} for p in chosen]
    toy = toy_units(params, arms)
    both = ("float32", "bfloat16")
    return {"reference": one("reference", "float32", few) + [toy[0] | {"section": "exact", "dtype": d, "tokens": toy[0]["tokens"] // 2} for d in both]
            + one("exact", "float32", few) + toy + [{"section": "museum", "model": "toy", "dtype": "float32", "prompt": {"id": "battery"}}],
            FASTER: one("price", "float32", prompts) + [u for d in both for u in one("noise", d, texts)] + [u for d in both for u in one("audit", d, prompts)]
            + [u for d in both for u in one("exact", d, few)]}


def answered(worker: machine.Worker, unit: dict, asked: str, old: Sequence[dict]) -> Iterator[dict]:
    """The rows of a unit that ``old`` does not have. Each names the unit that it belongs to."""
    have = {key(r) for r in old}
    for row in worker.ask(unit):
        if key(row) not in have:
            yield row | {"asked": asked}


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act V and write a row file beside ``journal``; a unit that was finished is not measured again.

    Args:
        params: target, tokens, prompts, identity_tokens, identity_prompts, widths, repeats, quick.
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is measured, if a drafter of the target is missing or an input does not fit.
    """
    target = load_target(params["target"], "float32")
    drafters, digests = load_drafters(target)
    arms = identity.arms(target, drafters, params["widths"])
    wanted = units(params, target, len(arms))
    check_room(target, [u["prompt"] for units in wanted.values() for u in units if u["model"] == "target"], params["tokens"] + identity.SLACK, max(*params["widths"], CELL))
    on_grid = sum(k <= CELL for _, k, _ in arms.values())
    of_toy = toy_arms()
    counts = {"museum": len(museum.FAULTS) + 1, "noise": len({*params["widths"], CELL}), "audit": len(arms) + 1, "price": len(identity.price_arms(target, drafters)) * params["repeats"]}
    size = lambda u: counts.get(u["section"]) or {  # noqa: E731
        ("reference", "target"): len(arms), ("exact", "target"): on_grid + 1, ("reference", "toy"): len(of_toy),
        ("exact", "toy"): sum(k <= CELL and scheme != "replay" for _, k, scheme in of_toy) + 1}[u["section"], u["model"]]
    config = {name: params[name] for name in ("target", "tokens", "repeats", "identity_tokens", "identity_prompts", "widths")} | {"reduced": params["quick"]}
    config |= {"prompts": [p["id"] for p in prompt_suite(target, params["prompts"])], "toy_tokens": TOY_TOKENS, "calibration_texts": CALIBRATION, "context_seed": CONTEXT_SEED,
               "seed": identity.SEED, "cell": CELL, "prefill_rows": PREFILL_ROWS, "faster": FASTER, "drafters": digests, "criteria": criteria.load(ACT).rules}
    with journal_of(ACT, journal, target, drafters["dflash"], config, resume) as rows:
        keep = keeper(rows, sum(size(u) for units in wanted.values() for u in units), progress)
        for asked, units_of in wanted.items():
            old = lambda u: [r for r in rows if (r["asked"], r["section"], r["dtype"], r["prompt_id"]) == (asked, u["section"], u["dtype"], u["prompt"]["id"])]  # noqa: B023, E731
            missing = [u for u in units_of if len(old(u)) < size(u)]
            if missing:
                with machine.worker({"target": params["target"], "widths": params["widths"]}, 0, identity.__name__, SPECDECODE_BLAS=asked) as worker:
                    list(worker.answer())
                    for unit in missing:
                        keep(answered(worker, unit, asked, old(unit)))
    return journal.with_suffix(".json")
