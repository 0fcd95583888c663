"""Act IV-S, the rest: controls, refinement, confidence, policies that choose the width, generated lengths, contexts (5.1 to 5.6).

Sections share the protocol of the sweep (arms innermost, plain decoding first, identity audited on every row). Costs of the
widths are measured in the warm-up of the same run and kept as rows; the policies are given those.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from .. import paths
from .. import criteria
from ..decoder import generate
from ..drafters import NOISE_SEED, NgramDrafter, UnoDrafter, load_drafter
from ..errors import BadInput
from ..lora import DELTANET, PUBLISHED, attach
from ..policies import ByConditionalValue, ByEntropy, ByExpectedValue, BySurvival, Fixed
from ..records import sha256
from ..statistics import by
from ..targets import Target
from .common import CONTEXT_SEED, WARMUP_PROMPTS, Arm, check_room, context_prompt, decode_rows, drafting_arm, journal_of, keeper, load_pair, plain_arms, prompt_suite

ACT, K, WIDTHS = "act4s_rest", 4, (2, 4, 8)
COST_WIDTHS, COST_TOKENS = (0, 1, 2, 4, 8), 32


def shuffled_path(target: Target) -> Path:
    """The control adapter whose teacher rows were shuffled."""
    return paths.models() / target.name / "uno_shuffled.safetensors"


def control_arms(target: Target, drafter: UnoDrafter, name: str) -> dict[str, Arm]:
    """Both plain arms, K = 1 and 4, more passes, lookup, an adapter without training, one trained on shuffled teachers, confidence."""
    rank = (drafter.metadata.get("recipe") or {}).get("rank", 32)
    drafters = {f"refine{n}_k{K}": load_drafter(name, target, passes=n) for n in (2, 4)} | {f"ngram{n}_k{K}": NgramDrafter(n) for n in (2, 3)}
    drafters[f"untrained_k{K}"] = UnoDrafter(target, *attach(target.model, rank, PUBLISHED + DELTANET), name="untrained")
    if shuffled_path(target).is_file():
        drafters[f"shuffled_k{K}"] = load_drafter(str(shuffled_path(target)), target)
    drafters[f"conf_k{K}"] = load_drafter(name, target, confidence=True)
    return (plain_arms(target) | {"uno_k1": drafting_arm(target, drafter, 1), f"uno_k{K}": drafting_arm(target, drafter, K)}
            | {arm: drafting_arm(target, d, K) for arm, d in drafters.items()})


def policy_arms(target: Target, drafter: UnoDrafter, costs: Mapping[int, float]) -> dict[str, Arm]:
    """Both plain arms, the fixed widths, and the rules; ``costs``: milliseconds of a cycle by width."""
    rules = {"adapt_entropy": ByEntropy(WIDTHS), "adapt_survival": BySurvival(WIDTHS), "adapt_ev": ByExpectedValue(costs, WIDTHS),
             "adapt_value0": ByConditionalValue(costs)}
    return (plain_arms(target) | {f"uno_k{k}": drafting_arm(target, drafter, k) for k in WIDTHS}
            | {arm: drafting_arm(target, drafter, rule) for arm, rule in rules.items()})


def cost_rows(target: Target, drafter, prompts: list[dict], tokens: int, done: set, widths: Sequence[int] = COST_WIDTHS) -> Iterator[dict]:
    """Time of the cycles of each width on the warm-up prompts; one generation a width is dropped first."""
    for width in widths:
        for i, p in enumerate([prompts[0], *prompts]):
            if i and (width, p["id"]) in done:
                continue
            s = generate(target, p["text"], drafter=drafter, k=Fixed(width), max_tokens=tokens, ignore_eos=True).stats
            if i:
                yield {"kind": "cycle_cost", "width": width, "prompt_id": p["id"], "cycles": s.cycles, "seconds": s.wall_seconds - s.prefill_seconds}


def costs_of(rows: list[dict]) -> dict[int, float]:
    """Milliseconds of a cycle by width, from rows of kind ``cost``."""
    return {width: 1000 * sum(r["seconds"] for r in group) / sum(r["cycles"] for r in group) for width, group in by(rows, "width").items()}


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure the rest of Act IV-S and write a row file beside ``journal``; finished rows survive a kill and are not measured again.

    Args:
        params: target, drafter (uno or the path of an adapter), tokens, dtype, quick, rest_prompts, policy_prompts, rest_repeats,
            lengths, contexts.
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is measured, if an input does not exist or does not fit.
    """
    target, drafter = load_pair(params)
    if not isinstance(drafter, UnoDrafter):
        raise BadInput(f"The drafter is {params['drafter']!r}, but refinement and confidence need an adapter; choose uno or the path of one.")
    tokens, repeats, lengths, contexts = params["tokens"], params["rest_repeats"], sorted(params["lengths"]), sorted(params["contexts"])
    few, more = prompt_suite(target, params["rest_prompts"]), prompt_suite(target, params["policy_prompts"])
    check_room(target, [*few, *more], max(tokens, *lengths), max(WIDTHS))
    long = [context_prompt(target, n) for n in contexts]
    check_room(target, long, tokens, max(WIDTHS))
    warm = few[:WARMUP_PROMPTS]
    config = {key: params[key] for key in ("target", "drafter", "tokens", "dtype", "rest_repeats", "lengths", "contexts")}
    config |= {"reduced": params["quick"], "prompts": [p["id"] for p in few], "policy_prompts": [p["id"] for p in more],
               "warmup_prompts": WARMUP_PROMPTS, "noise_seed": NOISE_SEED, "context_seed": CONTEXT_SEED, "widths": list(WIDTHS), "criteria": criteria.load(ACT).rules,
               "shuffled_adapter": sha256(shuffled_path(target).read_bytes()) if shuffled_path(target).is_file() else None}
    controls, plain = control_arms(target, drafter, params["drafter"]), plain_arms(target)
    short = {"ar": plain["ar"], f"uno_k{K}": controls[f"uno_k{K}"]}
    wide = plain | {f"uno_k{k}": drafting_arm(target, drafter, k) for k in WIDTHS}
    total = (len(COST_WIDTHS) * len(warm) + repeats * (len(controls) * len(few) + len(policy_arms(target, drafter, dict.fromkeys(COST_WIDTHS, 1.0))) * len(more)
             + len(lengths) * len(short) * len(few) + len(contexts) * len(wide)))
    with journal_of(ACT, journal, target, drafter, config, resume) as rows:
        keep = keeper(rows, total, progress)

        def section(name: str, prompts: list[dict], arms: Mapping[str, Arm], new: int, **options) -> None:
            mine = {p["id"] for p in prompts}
            done = {(r["arm"], r["prompt_id"], r["repeat"]) for r in rows if r.get("section") == name and r["tokens"] == new and r["prompt_id"] in mine}
            if len(done) < len(prompts) * len(arms) * repeats:  # else the warm-up would be for nothing
                keep(decode_rows(target, prompts, arms, new, repeats, done, section=name, **options))

        keep(cost_rows(target, drafter, warm, min(COST_TOKENS, tokens), {(r["width"], r["prompt_id"]) for r in rows if r["kind"] == "cycle_cost"}))
        section("controls", few, controls, tokens)
        section("policies", more, policy_arms(target, drafter, costs_of([r for r in rows if r["kind"] == "cycle_cost"])), tokens)
        for n in lengths:
            section("length", few, short, n)
        for p in long:
            section("context", [p], wide, tokens, warm=long[:1] if p is long[0] else [])
    return journal.with_suffix(".json")
