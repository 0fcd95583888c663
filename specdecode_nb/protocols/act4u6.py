"""Act IV-U6: draft width apart from verify width (system of the report, 5.7 and 5.8), in three sections of one run.

``wide_draft`` rows: first proposals at several draft widths under three conditions of the noise, along plain continuations.
``cost`` rows: single verify and draft forwards of every width, in shuffled order at a fixed context for each prompt.
``decode`` rows: the coupled K=4 decoder twice (its own duplicate), once through the staged code, staged and truncating arms.
"""
from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from .. import criteria
from ..decoder import Session, generate
from ..drafters import NOISE_SEED, UnoDrafter
from ..errors import BadInput
from ..staged import Staged, Truncated
from ..streams import BENCH_NOISE, stream_seed
from ..targets import Target, mx
from ..transaction import Transaction, restore, snapshot
from .common import WARMUP_PROMPTS, Arm, check_room, decode_rows, decoded, drafting_arm, journal_of, keeper, load_pair, plain_arms, prompt_suite

COUPLED = 4  # the incumbent's block, as published
STAGED, TRUNCATED = ((6, 4), (8, 4), (6, 3), (8, 2)), ((6, 4), (8, 4))
CONTEXT, SPACING, SEEN = 64, 8, 16  # tokens of plain continuation, between two contexts, and known after each
ALIGNED, WIDEST, ORDER_SEED = 100_000, 16, 20260914
VERIFY_ROWS, DRAFT_ROWS = range(1, 18), range(1, 17)


def split_arm(target: Target, wrapper, draft: int) -> Arm:
    """An arm that decodes with a staged or truncating ``wrapper``; its rows tell, by decoder cycle, what was drafted and handed on.

    ``seconds_per_cycle`` runs from one draft to the next, the last cycle takes what is left of the wall clock.
    """
    coupled = drafting_arm(target, wrapper, draft)

    def decode(prompt, tokens):
        out, stats = coupled(prompt, tokens)
        began = [h.began for h in wrapper.trace]
        seconds = [b - a for a, b in zip(began, began[1:])]
        seconds.append(max(0.0, stats["wall_seconds"] - stats["prefill_seconds"] - sum(seconds)))
        return out, stats | {"draft_width": draft, "verify_width": wrapper.verify, "drafted_per_cycle": [h.drafted for h in wrapper.trace],
                             "handed_per_cycle": [h.handed for h in wrapper.trace], "draft_seconds_per_cycle": [h.draft_seconds for h in wrapper.trace],
                             "seconds_per_cycle": seconds}

    return decode


def arms_of(target: Target, drafter) -> dict[str, Arm]:
    """Every arm in the order of the interleave; the duplicate stands two places behind its original."""
    arms = {"ar": plain_arms(target)["ar"], "uno_k4": drafting_arm(target, drafter, COUPLED),
            "dec_d4v4": split_arm(target, Staged(drafter, COUPLED), COUPLED), "uno_k4_b2": drafting_arm(target, drafter, COUPLED)}
    arms |= {f"staged_d{d}v{v}": split_arm(target, Staged(drafter, v), d) for d, v in STAGED}
    return arms | {f"trunc_d{d}v{v}": split_arm(target, Truncated(drafter, v), d) for d, v in TRUNCATED}


def noise_of(vocab: int, condition: str, width: int, index: int) -> mx.array:
    """Noise ids [width - 1]. decoder: drawn at its own width, as published; redraw: the same from the next seed; aligned: the
    beginning of one block of 16 that all widths share, which is what this package's decoder does as well."""
    seed, step, drawn = {"decoder": (NOISE_SEED, index, width - 1), "redraw": (NOISE_SEED + 1, index, width - 1),
                         "aligned": (NOISE_SEED, index + ALIGNED, WIDEST - 1)}[condition]
    return mx.random.randint(1, vocab, (drawn,), key=mx.random.key(stream_seed(seed, BENCH_NOISE, step)))[: width - 1]


def wide_draft_rows(target: Target, drafter: UnoDrafter, prompt: dict, known: Sequence[int], widths: Sequence[int], first: int) -> Iterator[dict]:
    """First proposals at contexts ``SPACING`` tokens apart along the plain continuation ``known`` of one prompt.

    Args:
        known: CONTEXT + SEEN tokens. ``first``: number of the first context, which keys its noise.
    """
    session = Session(target)
    session.feed(target.encode(prompt["text"]))
    for n, at in enumerate(range(0, CONTEXT + 1, SPACING)):
        if at:
            session.feed(known[at - SPACING : at])
        base: dict[str, np.ndarray] = {}
        for condition, width in [(c, w) for c in ("decoder", "aligned") for w in widths] + [("redraw", COUPLED)]:
            with Transaction(session.cache):  # nothing is committed
                logits = np.array(drafter.logits(session.cache, session.tokens[-1], noise_of(target.vocab_size, condition, width, first + n)).astype(mx.float32))
            head = logits[:COUPLED]
            like = base.setdefault("decoder" if condition == "redraw" else condition, head)
            spread = np.exp(head - head.max(axis=-1, keepdims=True))
            yield {"kind": "wide_draft", "prompt_id": prompt["id"], "category": prompt["category"], "context_tokens": len(session.tokens), "at": at,
                   "condition": condition, "draft_width": width, "proposals": logits.argmax(axis=-1).tolist(), "target": list(known[at : at + SEEN]),
                   "top1": (spread.max(axis=-1) / spread.sum(axis=-1)).tolist(), "max_abs_logit_diff_vs_d4": np.abs(head - like).max(axis=-1).tolist()}


def timed_forward(target: Target, drafter, session: Session, forward: str, rows: int) -> dict:
    """Seconds of one forward of ``rows`` rows as the decoder runs it; the caches are put back."""
    ids = session.tokens[-rows:]
    saved, clock = snapshot(session.cache), time.perf_counter
    t0 = clock()
    if forward == "draft":
        drafter.draft(session.cache, session.tokens, rows, 1)
        t1 = t2 = clock()
    else:
        with Transaction(session.cache) as tx:
            best = mx.argmax(target.model(mx.array([ids]), cache=session.cache)[0], axis=-1)
            mx.eval(best)
            best.tolist()
            t1 = clock()
            tx.commit(max(1, rows // 2))
        mx.eval([c.state for c in session.cache])
        t2 = clock()
    restore(session.cache, saved)
    return {"seconds": t1 - t0, "commit_seconds": t2 - t1}


def cost_rows(target: Target, drafter, prompt: dict, known: Sequence[int], repeat: int) -> Iterator[dict]:
    """Every forward once, in an order drawn for this prompt and repeat, after the prompt and ``CONTEXT`` tokens of its continuation."""
    session = Session(target)
    session.feed(target.encode(prompt["text"]) + list(known[:CONTEXT]))
    forwards = [("verify", w) for w in VERIFY_ROWS] + [("draft", w) for w in DRAFT_ROWS]
    for forward, width in forwards if repeat == 0 else ():
        timed_forward(target, drafter, session, forward, width)  # the first call at a shape compiles; dropped
    random.Random(f"{ORDER_SEED}:{prompt['id']}:{repeat}").shuffle(forwards)
    for forward, width in forwards:
        yield {"kind": "cost", "prompt_id": prompt["id"], "category": prompt["category"], "context_tokens": len(session.tokens), "repeat": repeat,
               "forward": forward, "width": width, **timed_forward(target, drafter, session, forward, width)}


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act IV-U6 and write a row file beside ``journal``; finished prompts survive a kill.

    Args:
        params: target, drafter, drafts (widths of the diagnostic), tokens, repeats, cost_repeats, prompts, dtype, quick.
        progress: called with (rows done, rows in all, label).
    Raises:
        BadInput: before anything is measured, if an input does not exist or does not fit.
    """
    target, drafter = load_pair(params)
    if not isinstance(drafter, UnoDrafter):
        raise BadInput(f"The drafter {drafter.name!r} drafts no canvas, which this Act widens; choose uno or the path of an adapter file.")
    if COUPLED not in params["drafts"]:
        raise BadInput(f"drafts is {params['drafts']}, but every width is compared with {COUPLED}; add it.")
    widths = [COUPLED, *sorted(w for w in params["drafts"] if w != COUPLED)]
    prompts, tokens, repeats = prompt_suite(target, params["prompts"]), params["tokens"], params["repeats"]
    check_room(target, prompts, max(tokens, CONTEXT + SEEN), max(*widths, 17))
    arms = arms_of(target, drafter)
    config = {key: params[key] for key in ("target", "drafter", "drafts", "tokens", "repeats", "cost_repeats", "dtype")}
    config |= {"reduced": params["quick"], "prompts": [p["id"] for p in prompts], "warmup_prompts": WARMUP_PROMPTS, "noise_seed": NOISE_SEED,
               "arms": list(arms), "criteria": criteria.load("act4u6").rules}
    contexts, shots = CONTEXT // SPACING + 1, 2 * len(widths) + 1
    forwards = len(VERIFY_ROWS) + len(DRAFT_ROWS)
    total = len(prompts) * (contexts * shots + forwards * params["cost_repeats"] + len(arms) * repeats)
    with journal_of("act4u6", journal, target, drafter, config, resume) as rows:
        keep = keeper(rows, total, progress)
        seen: dict[tuple, int] = {}
        for r in rows:
            key = (r["kind"], r["prompt_id"], r.get("repeat"))
            seen[key] = seen.get(key, 0) + 1
        known: dict[str, list[int]] = {}
        for n, p in enumerate(prompts):
            known[p["id"]] = generate(target, p["text"], max_tokens=CONTEXT + SEEN, ignore_eos=True).tokens
            # rows of a prompt that was cut short are made again, the finished ones skipped: they are the same at any time
            have = seen.get(("wide_draft", p["id"], None), 0)
            if have < contexts * shots:
                keep(islice(wide_draft_rows(target, drafter, p, known[p["id"]], widths, n * contexts), have, None))
        for repeat in range(params["cost_repeats"]):
            for p in prompts:
                have = seen.get(("cost", p["id"], repeat), 0)
                if have < forwards:
                    keep(islice(cost_rows(target, drafter, p, known[p["id"]], repeat), have, None))
        keep(decode_rows(target, prompts, arms, tokens, repeats, decoded(rows)))
    return journal.with_suffix(".json")
