"""Measure the arms of Act IV-S by the published protocol (system of the report, 3.4 to 3.10) into raw rows.

Loop order is repeat, prompt, arm, with plain decoding first, so arms interleave on every prompt; one warm-up pass is
dropped. Every row carries its identity check against this run's own plain decoding: a row that fails it has no speed.
"""
from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from . import paths
from .decoder import generate
from .drafters import NOISE_SEED, load_drafter
from .environment import provenance
from .errors import BadInput
from .records import Journal
from .statistics import distinct_ratio, looped_fraction
from .targets import Target, load_target, mx

MANTISSA_BITS = {"float32": 23, "bfloat16": 7}
WARMUP_PROMPTS, WARMUP_TOKENS, TIE_PROMPTS = 3, 8, 12


def prompt_suite(count: int | None = None) -> list[dict]:
    """The prompts of the suite; ``count`` takes one category after another, so that few prompts still cover all."""
    prompts = json.loads((paths.data() / "prompts" / "suite.json").read_text())["prompts"]
    if count is None or count >= len(prompts):
        return prompts
    rounds = sorted(prompts, key=lambda p: int(p["id"].rsplit("-", 1)[1]))
    chosen = {p["id"] for p in rounds[:count]}
    return [p for p in prompts if p["id"] in chosen]


def ulp(value: float, dtype: str) -> float:
    """The distance between neighbouring numbers of ``dtype`` at ``value``."""
    return 2.0 ** (math.floor(math.log2(max(abs(value), 1e-30))) - MANTISSA_BITS[dtype])


def audit(target: Target, prompt: list[int], reference: list[int], emitted: list[int]) -> dict:
    """Where ``emitted`` leaves ``reference`` and by how much the target itself preferred the reference there.

    A fresh uncached forward over the common prefix gives the two contested logits; the gap is in units in the last
    place of the target's dtype. The whole of ``emitted`` is then teacher-forced the same way, and the largest gap of
    any position is kept: a gap beyond a few units is a defect, not arithmetic.
    """
    if emitted == reference:
        return {"identical_to_ar": True, "first_divergence": None, "divergence_gap_ulps": None, "divergence_positions_checked": 0}
    first = next((i for i, (a, b) in enumerate(zip(reference, emitted)) if a != b), min(len(reference), len(emitted)))
    logits = np.array(target.model(mx.array([prompt + emitted]))[0, len(prompt) - 1 : -1].astype(mx.float32))
    chosen = logits[np.arange(len(emitted)), emitted]
    best = logits.max(axis=-1)
    gaps = [(b - c) / ulp(max(abs(b), abs(c)), target.dtype) for b, c in zip(best.tolist(), chosen.tolist())]
    return {"identical_to_ar": False, "first_divergence": first, "divergence_gap_ulps": round(max(gaps), 3),
            "divergence_positions_checked": len(gaps)}


def decode_plain_mlx_lm(target: Target, prompt: list[int], tokens: int) -> tuple[list[int], dict]:
    """mlx-lm's own ``generate_step`` on the same model: the baseline that a drafter has to beat as well."""
    from mlx_lm.generate import generate_step

    marks = {}
    began = time.perf_counter()
    steps = generate_step(mx.array(prompt), target.model, max_tokens=tokens,
                          prompt_progress_callback=lambda done, total: marks.setdefault("prefilled", time.perf_counter()) if done >= total - 1 else None)
    out = [int(token) for token, _ in steps]
    wall = time.perf_counter() - began
    prefill = marks.get("prefilled", began) - began
    return out, {"prompt_tokens": len(prompt), "tokens": len(out), "wall_seconds": wall, "prefill_seconds": prefill, "draft_seconds": 0.0,
                 "verify_seconds": wall - prefill, "commit_seconds": 0.0, "overhead_seconds": 0.0, "forwards": len(out) + 1,
                 "forward_tokens": len(prompt) - 1 + len(out), "cycles": 0, "accepted_per_cycle": [], "offered_per_cycle": [],
                 "committed_per_cycle": [], "finish_reason": "length"}


def decode_arm(target: Target, drafter, arm: str, prompt: list[int], tokens: int) -> tuple[list[int], dict]:
    """Run one arm on one prompt; returns its tokens and its raw counters."""
    mx.reset_peak_memory()
    if arm == "ar_mlx_lm":
        out, stats = decode_plain_mlx_lm(target, prompt, tokens)
    else:
        k = int(arm.rsplit("_k", 1)[1]) if "_k" in arm else 1
        result = generate(target, prompt, drafter=None if arm == "ar" else drafter, k=k, max_tokens=tokens, ignore_eos=True)
        out, stats = result.tokens, result.row()
    return out, stats | {"peak_memory_bytes": mx.get_peak_memory(), "token_digest": hashlib.sha256(json.dumps(out).encode()).hexdigest()[:16]}


def decode_rows(target: Target, drafter, prompts: list[dict], arms: list[str], tokens: int, repeats: int, done: set) -> Iterator[dict]:
    """The decode rows of the sweep that are not in ``done`` ((arm, prompt_id, repeat)), in protocol order."""
    encoded = {p["id"]: target.encode(p["text"]) for p in prompts}
    for p in prompts[:WARMUP_PROMPTS]:
        for arm in arms:
            decode_arm(target, drafter, arm, encoded[p["id"]], min(WARMUP_TOKENS, tokens))
    for repeat in range(repeats):
        for p in prompts:
            # a prompt is one unit: its arms are timed next to each other or not at all
            if all((arm, p["id"], repeat) in done for arm in arms):
                continue
            reference = None
            for arm in arms:
                out, stats = decode_arm(target, drafter, arm, encoded[p["id"]], tokens)
                reference = reference if reference is not None else out
                yield {"kind": "decode", "arm": arm, "prompt_id": p["id"], "category": p["category"], "repeat": repeat, **stats,
                       "ar_looped_fraction": looped_fraction(reference), "ar_distinct_ratio": distinct_ratio(reference),
                       **audit(target, encoded[p["id"]], reference, out)}


def tie_rows(name: str, prompts: list[dict], references: dict, dtype: str) -> Iterator[dict]:
    """How often the two best logits are exactly equal, over prompt and plain continuation in one forward."""
    target = load_target(name, dtype)
    for p in prompts:
        ids = target.encode(p["text"]) + references[p["id"]]
        logits = np.array(target.model(mx.array([ids]))[0].astype(mx.float32))
        top = np.sort(np.partition(logits, -2, axis=-1)[:, -2:], axis=-1)
        gap = top[:, 1] - top[:, 0]
        yield {"kind": "tie", "dtype": dtype, "prompt_id": p["id"], "category": p["category"], "positions": len(gap),
               "exact_ties": int((gap == 0).sum()), "gap_median": float(np.median(gap)), "gap_p05": float(np.quantile(gap, 0.05))}


def entropy_row(target: Target, prompt: dict, reference: list[int]) -> dict:
    """Mean entropy in nats of the target along its own continuation: how predictable a category is."""
    ids = target.encode(prompt["text"])
    logits = target.model(mx.array([ids + reference]))[0, len(ids) - 1 : -1].astype(mx.float32)
    logp = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    entropy = -(mx.exp(logp) * logp).sum(axis=-1)
    return {"kind": "loops", "prompt_id": prompt["id"], "category": prompt["category"], "tokens_length": len(reference),
            "looped_fraction": looped_fraction(reference), "distinct_ratio": distinct_ratio(reference),
            "mean_entropy_nats": mx.mean(entropy).item(), "median_entropy_nats": float(np.median(np.array(entropy)))}


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act IV-S and write a row file beside ``journal``; finished rows survive a kill and are not measured again.

    Args:
        params: target, drafter, block_sizes, tokens, repeats, prompts (number or None for all), dtype, reduced.
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is measured, if an input does not exist or does not fit.
    """
    target = load_target(params["target"], params["dtype"])
    drafter = load_drafter(params["drafter"], target)
    if drafter is None:
        raise BadInput("The drafter is None, but Act IV-S measures drafting; choose uno or the path of an adapter file.")
    prompts = prompt_suite(params.get("prompts"))
    arms = ["ar", "ar_mlx_lm", *(f"{params['drafter']}_k{k}" if params["drafter"] in ("uno", "random", "ngram") else f"uno_k{k}"
                                for k in params["block_sizes"])]
    longest = max(len(target.encode(p["text"])) for p in prompts)
    if longest + params["tokens"] + max(params["block_sizes"]) > target.context:
        raise BadInput(f"{params['tokens']} tokens and the longest prompt ({longest}) do not fit the context of {target.context}; ask for fewer.")
    config = {key: params[key] for key in ("target", "drafter", "block_sizes", "tokens", "repeats", "dtype", "reduced")}
    config |= {"prompts": [p["id"] for p in prompts], "warmup_prompts": WARMUP_PROMPTS, "noise_seed": NOISE_SEED, "arms": arms}
    before = target.digest()
    record = provenance() | {"target": {"name": target.name, "digest": before, "parameters": target.parameters(), "dtype": target.dtype},
                             "drafter": {"name": drafter.name, **drafter.metadata} if hasattr(drafter, "metadata") else {"name": drafter.name}}
    ties = prompts[: 3 if params["reduced"] else TIE_PROMPTS]
    total = len(prompts) * len(arms) * params["repeats"] + len(prompts) + len(ties)
    with Journal(journal, act="act4s", target=target.name, provenance=record, config=config, resume=resume) as rows:
        say = lambda label: progress(len(rows), total, label) if progress else None  # noqa: E731
        done = {(r["arm"], r["prompt_id"], r["repeat"]) for r in rows if r["kind"] == "decode"}
        say("warming up")
        for row in decode_rows(target, drafter, prompts, arms, params["tokens"], params["repeats"], done):
            if (row["arm"], row["prompt_id"], row["repeat"]) not in done:
                rows.append(row)
                say(f"{row['prompt_id']} {row['arm']}")
        others = {(r["kind"], r["prompt_id"]) for r in rows if r["kind"] != "decode"}
        references = {p["id"]: generate(target, p["text"], max_tokens=params["tokens"], ignore_eos=True).tokens for p in prompts}
        for p in prompts:
            if ("loops", p["id"]) not in others:
                rows.append(entropy_row(target, p, references[p["id"]]))
        for row in tie_rows(params["target"], [p for p in ties if ("tie", p["id"]) not in others], references, "bfloat16"):
            rows.append(row)
            say(f"{row['prompt_id']} ties")
        if target.digest() != before:
            raise RuntimeError("The target's digest changed while measuring; these rows are void.")
        return rows.finish()
