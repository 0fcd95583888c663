"""Act DFlash, the sweep: a block-diffusion drafter by block width, rules that choose the width, and what else drafts.

``cycle_cost`` rows: cycles of fixed widths on the warm-up prompts, from which the rules take their prices.
``decode`` rows (section "sweep"): both plain baselines, the chained head, the adapter, fixed blocks, rules, lookup.
``cost`` rows: single verify and draft forwards by width at the end of a few prompts, the break-even curve (peers 11).
"""
from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from .. import criteria, paths
from ..decoder import Session, generate
from ..dflash import DFlashDrafter
from ..drafters import NOISE_SEED, NgramDrafter, load_drafter
from ..errors import BadInput
from ..policies import ByAcceptance, ByConditionalValue, ByProbing
from ..records import sha256
from ..targets import Target, load_target, mx
from ..transaction import Transaction, restore, snapshot
from .act4s_rest import cost_rows as cycle_rows
from .act4s_rest import costs_of
from .common import WARMUP_PROMPTS, Arm, check_room, decode_rows, drafting_arm, journal_of, keeper, plain_arms, prompt_suite

ACT, SECTION = "dflash", "sweep"
HEAD, OTHERS = 4, 4  # width of the chained head (depth 3) and of the adapter and lookup
CYCLE_WIDTHS, SHORT = (0, 2, 4, 5, 8, 16), 4
ROWS = (1, 2, 3, 4, 5, 8, 16)  # of single forwards
COST_PROMPTS, COST_REPEATS, ORDER_SEED = 9, 5, 20261203
FRESH = 4  # rows committed since the last draft, which a timed draft has to read first


def load_drafters(target: Target, optional: Sequence[str] = ()) -> tuple[dict, dict[str, str]]:
    """The drafters that were trained for this target (dflash, mtp, uno) and the digests of their files; one of ``optional`` may be
    missing. Raises BadInput if another is."""
    files = {"dflash": "dflash/model.safetensors", "mtp": "mtp.safetensors", "uno": "uno.safetensors"}
    places = {name: paths.models() / target.name / file for name, file in files.items()}
    drafters = {name: load_drafter(name, target) for name in files if name not in optional or places[name].is_file()}
    return drafters, {name: sha256(places[name].read_bytes()) for name in drafters}


def cycle_widths(blocks: Sequence[int]) -> tuple[int, ...]:
    """Widths whose cycles are timed: those that the rules need, up to the widest block, and every block."""
    return tuple(sorted({w for w in CYCLE_WIDTHS if w <= max(blocks)} | {*blocks}))


def arms_of(target: Target, drafters: Mapping, blocks: Sequence[int], costs: Mapping[int, float]) -> dict[str, Arm]:
    """Every arm in the order of the interleave; ``costs``: milliseconds of a dflash cycle by width, 0 included."""
    block, widest = drafters["dflash"], max(blocks)
    rules = {"adapt_value": ByConditionalValue(costs, allowed=(0, *range(2, widest + 1)), exact=0), "adapt_mlx_vlm": ByAcceptance(start=widest),
             "adapt_dflash_mlx": ByProbing(costs, full=widest, short=min(SHORT, widest))}
    others = {f"mtp{HEAD - 1}": ("mtp", HEAD), f"uno_k{OTHERS}": ("uno", OTHERS)}
    return (plain_arms(target) | {arm: drafting_arm(target, drafters[name], k) for arm, (name, k) in others.items() if name in drafters}
            | {f"dflash_b{b}": drafting_arm(target, block, b) for b in blocks} | {arm: drafting_arm(target, block, rule) for arm, rule in rules.items()}
            | {f"ngram2_k{OTHERS}": drafting_arm(target, NgramDrafter(2), OTHERS)})


def timed_forward(drafter: DFlashDrafter, session: Session, following: Sequence[int], forward: str, width: int) -> dict:
    """Seconds of one forward of ``width`` rows as the decoder runs it; session and context are as before afterwards.

    A draft follows a verify forward that brought ``FRESH`` rows, so it reads those besides its block.

    Args:
        session: fed through the drafter's verifier. ``following``: the ids after its tokens, at least ``FRESH`` and ``width``.
    """
    clock, saved = time.perf_counter, snapshot(session.cache)
    # one that proposes nothing, which cuts the drafter's context back to this session
    drafter.draft(session.cache, session.tokens, 1, 1)
    with Transaction(session.cache) as tx:
        fresh = FRESH if forward == "draft" else width
        rows = session.tokens[-1:] + list(following[: fresh - 1])
        t0 = clock()
        best = mx.argmax(drafter.verifier(mx.array([rows]), cache=session.cache)[0], axis=-1)
        mx.eval(best)
        best.tolist()
        if forward == "draft":
            t0 = clock()
            drafter.draft(session.cache, session.tokens + list(following[:FRESH]), width, 1)
        t1 = clock()
        tx.commit(max(1, fresh // 2))
    mx.eval([c.state for c in session.cache])
    t2 = clock()
    restore(session.cache, saved)
    return {"seconds": t1 - t0, "commit_seconds": t2 - t1 if forward == "verify" else 0.0}


def forwards_of(blocks: Sequence[int]) -> list[tuple[str, int]]:
    """(forward, rows): verify forwards of every width, drafts of every width that proposes something."""
    widths = sorted({*ROWS, *blocks})
    return [("verify", w) for w in widths] + [("draft", w) for w in widths if 1 < w <= max(blocks)]


def cost_rows(target: Target, drafter: DFlashDrafter, prompt: dict, blocks: Sequence[int], done: set) -> Iterator[dict]:
    """Every forward at the end of one prompt, ``COST_REPEATS`` times in orders drawn for it; ``done``: (repeat, forward, width)."""
    forwards = forwards_of(blocks)
    if all((repeat, *f) in done for repeat in range(COST_REPEATS) for f in forwards):
        return
    following = generate(target, prompt["text"], max_tokens=max(w for _, w in forwards), ignore_eos=True).tokens
    session = Session(target)
    session.feed(target.encode(prompt["text"]), drafter.verifier)
    for f in forwards:
        timed_forward(drafter, session, following, *f)  # the first call at a shape compiles; dropped
    for repeat in range(COST_REPEATS):
        random.Random(f"{ORDER_SEED}:{prompt['id']}:{repeat}").shuffle(forwards)
        for forward, width in forwards:
            if (repeat, forward, width) not in done:
                yield {"kind": "cost", "prompt_id": prompt["id"], "category": prompt["category"], "context_tokens": len(session.tokens), "repeat": repeat,
                       "forward": forward, "width": width, **timed_forward(drafter, session, following, forward, width)}


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure the sweep of Act DFlash and write a row file beside ``journal``; finished rows survive a kill.

    Args:
        params: target, blocks, tokens, repeats, prompts, dtype, quick.
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is measured, if the target has no dflash drafter or an input does not fit. One without a chained head
            or an adapter is measured without those arms.
    """
    target = load_target(params["target"], params["dtype"])
    drafters, digests = load_drafters(target, optional=("mtp", "uno"))
    blocks, tokens = sorted(params["blocks"]), params["tokens"]
    for name, widest in (("dflash", max(blocks)), ("mtp", HEAD)):
        if name in drafters and widest > drafters[name].block_size:
            raise BadInput(f"A block of {widest} is asked for, but the drafter {name!r} was trained for blocks of at most {drafters[name].block_size}; "
                           f"{'leave the wider blocks out' if name == 'dflash' else 'train a deeper one'}.")
    prompts = prompt_suite(target, params["prompts"])
    check_room(target, prompts, tokens, max(*blocks, *ROWS))
    warm, timed, widths = prompts[:WARMUP_PROMPTS], prompts[:COST_PROMPTS], cycle_widths(blocks)
    config = {key: params[key] for key in ("target", "blocks", "tokens", "repeats", "dtype")} | {"reduced": params["quick"]}
    config |= {"prompts": [p["id"] for p in prompts], "warmup_prompts": WARMUP_PROMPTS, "noise_seed": NOISE_SEED, "fresh_rows": FRESH,
               "cost_repeats": COST_REPEATS, "order_seed": ORDER_SEED, "arms": list(arms_of(target, drafters, blocks, dict.fromkeys((0, SHORT, *blocks), 1.0))),
               "drafters": digests, "criteria": criteria.load(ACT).rules}
    total = len(widths) * len(warm) + len(prompts) * len(config["arms"]) * params["repeats"] + len(timed) * COST_REPEATS * len(forwards_of(blocks))
    with journal_of(ACT, journal, target, drafters["dflash"], config, resume) as rows:
        keep = keeper(rows, total, progress)
        keep(cycle_rows(target, drafters["dflash"], warm, tokens, {(r["width"], r["prompt_id"]) for r in rows if r["kind"] == "cycle_cost"}, widths))
        costs = costs_of([r for r in rows if r["kind"] == "cycle_cost"])
        done = {(r["arm"], r["prompt_id"], r["repeat"]) for r in rows if r["kind"] == "decode"}
        keep(decode_rows(target, prompts, arms_of(target, drafters, blocks, costs), tokens, params["repeats"], done, section=SECTION))
        for p in timed:
            mine = {(r["repeat"], r["forward"], r["width"]) for r in rows if r["kind"] == "cost" and r["prompt_id"] == p["id"]}
            keep(cost_rows(target, drafters["dflash"], p, blocks, mine))
    return journal.with_suffix(".json")
