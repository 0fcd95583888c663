"""What every measured Act shares: prompts, arms, interleaving, the identity audit, the journal.

Loop order is repeat, prompt, arm, with plain decoding first, so arms interleave on every prompt; one warm-up pass is
dropped. Every row carries its identity check against this run's own plain decoding: a row that fails it has no speed.
"""
from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from .. import condition, paths
from ..decoder import Session, generate
from ..drafters import load_drafter
from ..environment import provenance
from ..errors import BadInput
from ..records import Journal
from ..statistics import distinct_ratio, looped_fraction
from ..targets import EMBEDDED, Target, load_target, mx
from ..train.grammar import CATEGORIES, document

MANTISSA_BITS = {"float32": 23, "bfloat16": 7}
WARMUP_PROMPTS, WARMUP_TOKENS = 3, 8
CONTEXT_SEED = "act4s/context"
FORCED_ROWS = 12_288  # of one forward of the audit: attention scores of four heads are then 2.4 GB
log = logging.getLogger(__name__)

Arm = Callable[[list[int], int], tuple[list[int], dict]]
"""Decodes (prompt ids, number of new tokens) into (tokens, raw counters in the fields of a decode row)."""


def suite_of(target: Target) -> str:
    """The suite that a target is asked: tiny-hybrid knows the documents of its corpus alone, every other target gets English."""
    return "suite" if target.name in EMBEDDED else "english"


def prompt_suite(target: Target, count: int | None = None) -> list[dict]:
    """The prompts of the target's suite; ``count`` takes one category after another, so that few prompts still cover all."""
    prompts = json.loads((paths.data() / "prompts" / f"{suite_of(target)}.json").read_text())["prompts"]
    if count is None or count >= len(prompts):
        return prompts
    rounds = sorted(prompts, key=lambda p: int(p["id"].rsplit("-", 1)[1]))
    chosen = {p["id"] for p in rounds[:count]}
    return [p for p in prompts if p["id"] in chosen]


def context_prompt(target: Target, length: int, which: int = 0) -> dict:
    """A prompt of ``length`` tokens: held-out documents of the grammar, the categories in turn, without end-of-text ids.

    ``which`` gives another text with another first category; a shorter prompt is the beginning of a longer one.
    """
    ids: list[int] = []
    for number in range(length):  # a document has more than one token
        category = list(CATEGORIES)[(number + which) % len(CATEGORIES)]
        text = document(category, number // len(CATEGORIES), f"{CONTEXT_SEED}/{which}" if which else CONTEXT_SEED, held_out=True)
        ids += target.encode(text + "\n\n")
        if len(ids) >= length:
            break
    return {"id": f"context-{length}" + f"-{which}" * (which > 0), "category": "context", "ids": ids[:length]}


def ulp(value: float, dtype: str) -> float:
    """The distance between neighbouring numbers of ``dtype`` at ``value``."""
    return 2.0 ** (math.floor(math.log2(max(abs(value), 1e-30))) - MANTISSA_BITS[dtype])


def teacher_forced(target: Target, prompt: list[int], tokens: list[int]) -> np.ndarray:
    """Float32 logits [len(tokens), vocab] before each of ``tokens``, in one uncached forward; a prompt too long for that is prefilled."""
    ids, cache, first = prompt + tokens, None, len(prompt) - 1
    if len(ids) > FORCED_ROWS:
        session = Session(target)
        session.feed(prompt)
        ids, cache, first = ids[first:], session.cache, 0
    return np.array(target.model(mx.array([ids]), cache=cache)[0, first:-1].astype(mx.float32))


def audit(target: Target, prompt: list[int], reference: list[int], emitted: list[int]) -> dict:
    """Where ``emitted`` leaves ``reference`` and by how much the target itself preferred the reference there.

    A fresh uncached forward over the common prefix gives the two contested logits; the gap is in units in the last
    place of the target's dtype. The whole of ``emitted`` is then teacher-forced the same way, and the largest gap of
    any position is kept: a gap beyond a few units is a defect, not arithmetic.
    """
    if emitted == reference:
        return {"identical_to_ar": True, "first_divergence": None, "divergence_gap_ulps": None, "divergence_positions_checked": 0}
    first = next((i for i, (a, b) in enumerate(zip(reference, emitted)) if a != b), min(len(reference), len(emitted)))
    logits = teacher_forced(target, prompt, emitted)
    chosen = logits[np.arange(len(emitted)), emitted]
    best = logits.max(axis=-1)
    gaps = [(b - c) / ulp(max(abs(b), abs(c)), target.dtype) for b, c in zip(best.tolist(), chosen.tolist())]
    return {"identical_to_ar": False, "first_divergence": first, "divergence_gap_ulps": round(max(gaps), 3),
            "divergence_positions_checked": len(gaps)}


def decode_plain_mlx_lm(target: Target, prompt: list[int], tokens: int, sampler=None) -> tuple[list[int], dict]:
    """mlx-lm's own ``generate_step`` on the same model: the baseline that a drafter has to beat as well. ``sampler``: mlx-lm's own, None is greedy."""
    from mlx_lm.generate import generate_step

    marks = {}
    began = time.perf_counter()
    steps = generate_step(mx.array(prompt), target.model, max_tokens=tokens, sampler=sampler,
                          prompt_progress_callback=lambda done, total: marks.setdefault("prefilled", time.perf_counter()) if done >= total - 1 else None)
    out = [int(token) for token, _ in steps]
    wall = time.perf_counter() - began
    prefill = marks.get("prefilled", began) - began
    return out, {"prompt_tokens": len(prompt), "tokens": len(out), "wall_seconds": wall, "prefill_seconds": prefill, "draft_seconds": 0.0,
                 "verify_seconds": wall - prefill, "commit_seconds": 0.0, "overhead_seconds": 0.0, "forwards": len(out) + 1,
                 "forward_tokens": len(prompt) - 1 + len(out), "cycles": 0, "accepted_per_cycle": [], "offered_per_cycle": [],
                 "committed_per_cycle": [], "finish_reason": "length"}


def plain_arms(target: Target) -> dict[str, Arm]:
    """The two baselines of every run: this package's own loop and mlx-lm's ``generate_step``."""
    return {"ar": drafting_arm(target, None), "ar_mlx_lm": lambda prompt, tokens: decode_plain_mlx_lm(target, prompt, tokens)}


def drafting_arm(target: Target, drafter, k: int = 1, **options) -> Arm:
    """An arm that decodes with ``drafter`` at width ``k``; further options go to :func:`generate`."""
    def decode(prompt, tokens):
        result = generate(target, prompt, drafter=drafter, k=k, max_tokens=tokens, ignore_eos=True, **options)
        return result.tokens, result.row()

    return decode


def timed(arm: Arm, prompt: list[int], tokens: int) -> tuple[list[int], dict]:
    """Run ``arm``; its counters with the peak memory of this run alone and a digest of the tokens."""
    mx.reset_peak_memory()
    out, stats = arm(prompt, tokens)
    return out, stats | {"peak_memory_bytes": mx.get_peak_memory(), "token_digest": hashlib.sha256(json.dumps(out).encode()).hexdigest()[:16]}


def decode_rows(target: Target, prompts: Sequence[dict], arms: Mapping[str, Arm], tokens: int, repeats: int, done: set = frozenset(),
                warm: Sequence[dict] | None = None, **fields) -> Iterator[dict]:
    """The decode rows of the sweep that are not in ``done`` ((arm, prompt_id, repeat)), in protocol order.

    Args:
        prompts: each {"id", "category", "text"} or, instead of the text, "ids".
        arms: by name; the first one is plain decoding, the reference of the identity audit.
        warm: prompts of the warm-up pass; by default the first few of ``prompts``.
        fields: added to every row, such as the section of the Act.
    """
    warm = prompts[:WARMUP_PROMPTS] if warm is None else warm
    encoded = {p["id"]: p["ids"] if "ids" in p else target.encode(p["text"]) for p in [*prompts, *warm]}
    for p in warm:
        for arm in arms.values():
            arm(encoded[p["id"]], min(WARMUP_TOKENS, tokens))
    for repeat in range(repeats):
        for p in prompts:
            # a prompt is one unit: its arms are timed next to each other or not at all
            if all((name, p["id"], repeat) in done for name in arms):
                continue
            reference = None
            for name, arm in arms.items():
                out, stats = timed(arm, encoded[p["id"]], tokens)
                reference = reference if reference is not None else out
                if (name, p["id"], repeat) not in done:
                    yield {"kind": "decode", **fields, "arm": name, "prompt_id": p["id"], "category": p["category"], "repeat": repeat, **stats,
                           "ar_looped_fraction": looped_fraction(reference), "ar_distinct_ratio": distinct_ratio(reference),
                           **audit(target, encoded[p["id"]], reference, out)}


def load_pair(params: Mapping):
    """The target and drafter that ``params`` name. Raises BadInput, also for no drafter."""
    target = load_target(params["target"], params["dtype"])
    drafter = load_drafter(params["drafter"], target)
    if drafter is None:
        raise BadInput("The drafter is None, but this Act measures drafting; choose uno or the path of an adapter file.")
    return target, drafter


def check_room(target: Target, prompts: Sequence[dict], tokens: int, widest: int) -> None:
    """Raises BadInput if the longest prompt, ``tokens`` and a block of ``widest`` do not fit the context."""
    longest = max(len(p["ids"]) if "ids" in p else len(target.encode(p["text"])) for p in prompts)
    if longest + tokens + widest > target.context:
        raise BadInput(f"{tokens} tokens and the longest prompt ({longest}) do not fit the context of {target.context}; ask for fewer.")


@contextmanager
def journal_of(act: str, path: Path, target: Target, drafter, config: dict, resume: bool = False) -> Iterator[Journal]:
    """An open journal with full provenance. Leaving it compares the target's digest with the one at the start and turns the
    journal into the row file beside it (suffix ``.json``); an exception leaves the journal for a resume.

    The condition of the machine is read now, at every resume, and over the whole run at the end. A degraded machine is named in
    one warning, and measured on all the same.
    """
    before, config = target.digest(), {"suite": suite_of(target), **config}
    record = provenance() | {"target": {"name": target.name, "digest": before, "parameters": target.parameters(), "dtype": target.dtype},
                             "drafter": {"name": drafter.name, **drafter.metadata} if hasattr(drafter, "metadata") else {"name": drafter.name}}
    with Journal(path, act=act, target=target.name, provenance=record, config=config, resume=resume) as rows:
        now = record["condition"][0]
        if rows.header["provenance"] is not record:  # this goes on from an earlier sitting
            rows.note(now | {"when": "resumed"})
        if slowed := condition.reasons([now]):
            log.warning("This machine is degraded (%s); the captions of what is measured now will say so.", ", ".join(slowed))
        began = condition.mark()
        yield rows
        rows.note(condition.readings("end", began))
        if target.digest() != before:
            raise RuntimeError("The target's digest changed while measuring; these rows are void.")
        rows.finish()


def keeper(rows: Journal, total: int, progress: Callable[[int, int, str], None] | None) -> Callable[[Iterable[dict]], None]:
    """A function that adds new rows to a journal, one by one, and after each tells ``progress`` (rows done, rows in all, label)."""
    def say(label: str) -> None:
        if progress:
            progress(len(rows), total, label)

    def keep(new: Iterable[dict]) -> None:
        for row in new:
            rows.append(row)
            say(f"{row.get('prompt_id', '')} {row.get('arm', row['kind'])}".strip())

    say("warming up")
    return keep


def decoded(rows: Iterable[dict]) -> set[tuple[str, str, int]]:
    """(arm, prompt id, repeat) of the decode rows, as :func:`decode_rows` takes what is done."""
    return {(r["arm"], r["prompt_id"], r["repeat"]) for r in rows if r["kind"] == "decode"}
