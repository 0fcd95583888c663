"""Peers side by side: other projects' speculative decoding on the same target and prompts, in the same interleave.

``decode`` rows, section "peers": both plain loops; mlx-lm's ``speculative_generate_step`` with a small draft model, and this package's
decoder with the same one; the block drafter. A section for each of :data:`.runtimes.RUNTIMES` that is importable: that project's own runtime with
this package's block drafter, beside plain decoding, in a process of its own; ``peer_state`` rows: its states after every count of rows kept.
``peer`` rows: one for each project, what ran or what stopped it.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

from .. import criteria
from ..decoder import PREFILL_ROWS
from ..drafters import load_drafter, place
from ..environment import installed
from ..errors import BadInput, RunFailed
from ..records import sha256
from ..small import SmallDrafter, SmallModel, read_small
from ..targets import Target, load_target, mx
from . import machine
from .common import WARMUP_PROMPTS, Arm, check_room, decode_rows, decoded, drafting_arm, journal_of, keeper, plain_arms, prompt_suite
from .runtimes import RUNTIMES

ACT, SECTION = "dflash_peers", "peers"
DRAFTS = (2, 3)  # drafted tokens a cycle: the default of mlx-lm's function, and that of its command line
STATE_PROMPTS = 3  # whose states are compared after every count of rows kept
CALL = "mlx_lm.generate.speculative_generate_step"


def own_caches(model) -> list:
    """The caches that mlx-lm makes for a model of its class, also where this package's stand in their place."""
    from mlx_lm.models.cache import KVCache

    own = getattr(type(model), "make_cache", None)
    return own(model) if own else [KVCache() for _ in model.layers]


def by_cycle(from_draft: Sequence[bool], drafts: int) -> tuple[list[int], list[int], list[int]]:
    """Accepted, offered and committed tokens of each cycle, from mlx-lm's flags: a cycle ends with a token of the target's own, or
    where the budget of ``len(from_draft)`` tokens ends; it never drafts beyond that budget."""
    accepted, offered, committed, start, total = [], [], [], 0, len(from_draft)
    while start < total:
        end = next((i for i in range(start, total) if not from_draft[i]), total)
        accepted.append(end - start)
        offered.append(min(drafts, total - start))
        committed.append(min(end + 1, total) - start)
        start += committed[-1]
    return accepted, offered, committed


class _Marked:
    """A draft model that notes when its first draft begins, which is when both prefills of ``rows`` rows are done."""

    def __init__(self, model, rows: int):
        self.model, self.rows, self.began = model, rows, None

    def __call__(self, ids, cache):
        if self.began is None and cache[0].offset == self.rows:
            self.began = time.perf_counter()
        return self.model(ids, cache=cache)


def decode_spec_mlx_lm(target: Target, draft: SmallModel, prompt: list[int], tokens: int, drafts: int) -> tuple[list[int], dict]:
    """mlx-lm's own loop with a draft model; it has no stages to time apart, so drafting counts as verifying, and so do its forwards.

    Raises ValueError, mlx-lm's own, where it cannot trim the caches of ``target``.
    """
    from mlx_lm.generate import speculative_generate_step

    rows = len(prompt) - 1
    marked, began = _Marked(draft, rows), time.perf_counter()
    steps = speculative_generate_step(mx.array(prompt), target.model, marked, num_draft_tokens=drafts, max_tokens=tokens, prefill_step_size=PREFILL_ROWS,
                                      prompt_cache=own_caches(target.model) + own_caches(draft))
    found = [(int(token), bool(drafted)) for token, _, drafted in steps]
    wall = time.perf_counter() - began
    accepted, offered, committed = by_cycle([drafted for _, drafted in found], drafts)
    prefill = marked.began - began
    # after a cycle whose drafts were all kept, the next draft begins with two rows
    doubled = sum(a == o for a, o in zip(accepted[:-1], offered))
    return [token for token, _ in found], {
        "prompt_tokens": len(prompt), "tokens": len(found), "wall_seconds": wall, "prefill_seconds": prefill, "draft_seconds": 0.0,
        "verify_seconds": wall - prefill, "commit_seconds": 0.0, "overhead_seconds": 0.0, "forwards": 2 * (rows > 0) + len(accepted) + sum(offered),
        "forward_tokens": 2 * rows + 2 * sum(offered) + len(accepted) + doubled, "cycles": len(accepted), "accepted_per_cycle": accepted,
        "offered_per_cycle": offered, "committed_per_cycle": committed, "finish_reason": "length"}


def small_model(target: Target) -> tuple[SmallModel, dict, str] | None:
    """The small draft model of a target, its metadata and the sha256 of its file; None if there is none. Raises BadInput for a damaged one."""
    path = place("small", target.name)
    return (*read_small(path, target), sha256(path.read_bytes())) if path.is_file() else None


def refusal(target: Target, draft) -> str:
    """What mlx-lm says to two tokens of speculative decoding on ``target``, "" if it decodes them."""
    try:
        decode_spec_mlx_lm(target, draft, [1, 1], 2, 1)
    except ValueError as error:
        return str(error)
    return ""


def peer(name: str, package: str, call: str, why: str, absent: bool) -> dict:
    return {"kind": "peer", "peer": name, "version": installed(package), "call": call, "why": why,
            "outcome": "ran" if not why else "absent" if absent else "refused"}


def arms_of(target: Target, block: int) -> tuple[dict[str, Arm], list[dict], dict[str, str], list]:
    """The arms of the interleave, a ``peer`` row for mlx-lm, the sha256 of the drafters' files, and the drafters of our own."""
    arms, files, ours = plain_arms(target), {}, []
    found = small_model(target)
    # where it refuses, it does so before the draft model is ever called
    why = refusal(target, found[0] if found else target.model)
    if why:
        row = peer("mlx-lm", "mlx-lm", CALL, why, absent=False)
    elif found is None:
        row = peer("mlx-lm", "mlx-lm", CALL, f"there is no small draft model for {target.name}; specdecode_nb.train.small trains one", absent=True)
    else:
        model, metadata, files["small"] = found
        row = peer("mlx-lm", "mlx-lm", CALL, "", absent=False)
        ours.append(SmallDrafter(model, metadata))
        for n in DRAFTS:
            arms[f"spec_mlx_lm_d{n}"] = lambda prompt, tokens, n=n: decode_spec_mlx_lm(target, model, prompt, tokens, n)
            arms[f"small_k{n + 1}"] = drafting_arm(target, ours[-1], n + 1)
    if (folder := place("dflash", target.name)).is_dir():
        drafter = load_drafter("dflash", target)
        if not 2 <= block <= drafter.block_size:
            raise BadInput(f"The block has {block} rows, but 'dflash' drafts blocks of 2 to {drafter.block_size}; choose among those.")
        ours.append(drafter)
        files["dflash"] = sha256((folder / "model.safetensors").read_bytes())
        arms[f"dflash_b{block}"] = drafting_arm(target, drafter, block)
    return arms, [row], files, ours


def runtime_rows(name: str, setup: dict, prompts: list[dict], tokens: int, repeats: int, rows: Iterable[dict]) -> Generator[dict]:
    """Rows of the runtime called ``name`` that are not among ``rows``: a ``peer`` row, and decode rows if it runs."""
    rows, other = list(rows), RUNTIMES[name]
    told = any(r["kind"] == "peer" and r["peer"] == name for r in rows)
    row = lambda why, absent=False: peer(name, other.package, other.call, why, absent)  # noqa: E731
    if lacking := lacks(name, setup["name"]):
        yield from [] if told else [row(lacking, absent=True)]
        return
    done = decoded(r for r in rows if r.get("section") == name)
    missing = [(p, n) for n in range(repeats) for p in prompts if any((arm, p["id"], n) not in done for arm in ("ar", name))]
    undone = [(r["prompt_id"], r["kept"]) for r in rows if r["kind"] == "peer_state" and r["peer"] == name]
    undoing = [p for p in prompts[:STATE_PROMPTS] if any((p["id"], kept) not in undone for kept in range(1, setup["block"] + 1))]
    if told and not missing and not undoing:
        return
    begun = told or bool(done)
    with machine.worker(setup | {"runtime": name}, 0, module=f"{__package__}.runtimes") as child:
        try:
            list(child.answer())
            for number, (p, n) in enumerate(missing):
                for answer in child.ask({"prompts": [p], "tokens": tokens, "warm": prompts[:WARMUP_PROMPTS] if not number else []}):
                    begun = True
                    if (answer["arm"], p["id"], n) not in done:
                        yield answer | {"section": name, "repeat": n}
            for p in undoing:
                for answer in child.ask({"undo": p}):
                    begun = True
                    if (p["id"], answer["kept"]) not in undone:
                        yield answer
        except (BadInput, RunFailed) as error:  # its last words say what stopped it
            if begun:
                raise
            yield row(str(error))
            return
    if not told:
        yield row("")


def lacks(name: str, target: str) -> str:
    """What the runtime called ``name`` lacks here, in words; "" for nothing."""
    other = RUNTIMES[name]
    if find_spec(other.module) is None:
        return f"the package {other.package} is not installed"
    return "" if place("dflash", target).is_dir() else f"there is no block drafter for {target}"


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure the peers and write a row file beside ``journal``; finished rows survive a kill and are not measured again.

    Args:
        params: target, dtype, block, tokens, repeats, prompts, quick.
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is measured, if an input does not fit.
    """
    target, block, tokens, repeats = load_target(params["target"], params["dtype"]), params["block"], params["tokens"], params["repeats"]
    prompts = prompt_suite(target, params["prompts"])
    check_room(target, prompts, tokens, max(block, *DRAFTS))
    arms, told, files, ours = arms_of(target, block)
    config = {"target": params["target"], "tokens": tokens, "repeats": repeats, "dtype": params["dtype"], "reduced": params["quick"], "block": block,
              "drafts": list(DRAFTS), "prompts": [p["id"] for p in prompts], "warmup_prompts": WARMUP_PROMPTS, "state_prompts": STATE_PROMPTS, "arms": list(arms), "drafters": files,
              "runtimes": {name: installed(other.package) for name, other in RUNTIMES.items()}, "criteria": criteria.load(ACT).rules}
    running = sum(not lacks(name, target.name) for name in RUNTIMES)
    total = len(prompts) * repeats * (len(arms) + 2 * running) + 1 + len(RUNTIMES) + running * block * len(prompts[:STATE_PROMPTS])
    with journal_of(ACT, journal, target, ours[0] if ours else SimpleNamespace(name="none"), config, resume) as rows:
        keep = keeper(rows, total, progress)
        keep(told if not any(r["kind"] == "peer" for r in rows) else [])
        done = decoded(r for r in rows if r.get("section") == SECTION)
        keep(decode_rows(target, prompts, arms, tokens, repeats, done, section=SECTION))
        setup = {"target": params["target"], "name": target.name, "dtype": params["dtype"], "block": block}
        for name in RUNTIMES:
            with closing(runtime_rows(name, setup, prompts, tokens, repeats, rows)) as new:
                keep(new)
    return journal.with_suffix(".json")
