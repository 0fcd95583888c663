"""Act IV-S: the sweep over block widths by the published protocol (system of the report, 3.4 to 3.10)."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ..decoder import generate
from ..drafters import NAMES, NOISE_SEED
from ..errors import BadInput
from ..statistics import distinct_ratio, looped_fraction
from ..targets import Target, load_target, mx
from .common import WARMUP_PROMPTS, check_room, decode_rows, decoded, drafting_arm, journal_of, keeper, load_pair, plain_arms, prompt_suite

TIE_PROMPTS = 12


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
        params: target, drafter, block_sizes, tokens, repeats, prompts (number or None for all), dtype, quick.
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is measured, if an input does not exist or does not fit.
    """
    if max(params["block_sizes"]) < 2:
        raise BadInput("block_sizes is 1, but one position is the seed token and drafts nothing; add a width of 2 or more.")
    target, drafter = load_pair(params)
    prompts = prompt_suite(target, params.get("prompts"))
    name = params["drafter"] if params["drafter"] in NAMES else "uno"
    arms = plain_arms(target) | {f"{name}_k{k}": drafting_arm(target, drafter, k) for k in params["block_sizes"]}
    check_room(target, prompts, params["tokens"], max(params["block_sizes"]))
    config = {key: params[key] for key in ("target", "drafter", "block_sizes", "tokens", "repeats", "dtype")}
    config |= {"reduced": params["quick"], "prompts": [p["id"] for p in prompts], "warmup_prompts": WARMUP_PROMPTS, "noise_seed": NOISE_SEED,
               "arms": list(arms)}
    ties = prompts[: 3 if params["quick"] else TIE_PROMPTS]
    total = len(prompts) * len(arms) * params["repeats"] + len(prompts) + len(ties)
    with journal_of("act4s", journal, target, drafter, config, resume) as rows:
        keep = keeper(rows, total, progress)
        keep(decode_rows(target, prompts, arms, params["tokens"], params["repeats"], decoded(rows)))
        others = {(r["kind"], r["prompt_id"]) for r in rows if r["kind"] != "decode"}
        references = {p["id"]: generate(target, p["text"], max_tokens=params["tokens"], ignore_eos=True).tokens for p in prompts}
        keep(entropy_row(target, p, references[p["id"]]) for p in prompts if ("loops", p["id"]) not in others)
        keep(tie_rows(params["target"], [p for p in ties if ("tie", p["id"]) not in others], references, "bfloat16"))
    return journal.with_suffix(".json")
