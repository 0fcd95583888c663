"""Act VI, sampling: three rules of acceptance at two temperatures, by two drafters, and counts where every probability is known.

``decode`` rows by section: greedy, a temperature ("t0.6", "t1"), or "filtered" (filters and penalties together). Each section has its
own plain arms, and arms of all sections interleave on every prompt. ``chain`` rows: sampling from a table (:mod:`.chain`).
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from .. import criteria, fit, paths
from ..drafters import NOISE_SEED, load_drafter
from ..records import sha256
from ..sampling import RULES, Sampling
from ..streams import ACCEPT_NOISE, DRAFT_NOISE
from ..targets import Target, load_target, mx
from . import chain
from .common import WARMUP_PROMPTS, Arm, check_room, decode_plain_mlx_lm, decode_rows, drafting_arm, journal_of, keeper, plain_arms, prompt_suite

ACT, SEED, VOCAB, WIDTH = "act6", 20261130, 4, 4
TEMPERATURES = (0.6, 1.0)
FILTERED = Sampling(0.8, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.1)
BLOCKS = {"uno": ("uno_k4", 4), "dflash": ("dflash_b8", 8)}
FILES = {"uno": "uno.safetensors", "dflash": "dflash/model.safetensors"}
UNPROMISED = {"identical_to_ar": None, "first_divergence": None, "divergence_gap_ulps": None}
CHAINS: dict[str, tuple[Sampling, int | None]] = {
    "gumbel": (Sampling(), None), "gumbel, top-k": (Sampling(0.9, top_k=3), None),
    "match, greedy draft": (Sampling(rule="match"), None), "match, drawn draft": (Sampling(rule="match"), DRAFT_NOISE),
    "rejection": (Sampling(rule="rejection"), None), "rejection, top-p": (Sampling(0.9, top_p=0.85, rule="rejection"), None),
    "control: noise used twice": (Sampling(rule="rejection"), ACCEPT_NOISE)}
"""What is drawn from the table: its sampling, and the stream that a drafter draws with (None: as its rule says)."""


def load_drafters(target: Target) -> tuple[dict, dict[str, str]]:
    """Both drafters of the target and the digests of their files. Raises BadInput if one is missing."""
    drafters = {name: load_drafter(name, target) for name in BLOCKS}
    return drafters, {name: sha256((paths.models() / target.name / file).read_bytes()) for name, file in FILES.items()}


def mlx_lm_arm(target: Target, s: Sampling) -> Arm:
    """mlx-lm's own sampled loop, with its global generator seeded for each prompt."""
    from mlx_lm.sample_utils import make_sampler

    sampler = make_sampler(s.temperature, s.top_p, s.min_p, top_k=s.top_k)

    def decode(prompt, tokens):
        mx.random.seed(SEED)
        return decode_plain_mlx_lm(target, prompt, tokens, sampler=sampler)

    return decode


def sections_of(target: Target, drafters: Mapping) -> dict[str, dict[str, Arm]]:
    """Every arm by section, in the order of the interleave; the first of a section is its plain decoding."""
    found = {"greedy": plain_arms(target) | {name: drafting_arm(target, drafters[d], k) for d, (name, k) in BLOCKS.items()}}
    for section, s in ({f"t{t:g}": Sampling(t) for t in TEMPERATURES} | {"filtered": FILTERED}).items():
        arms = {"ar": drafting_arm(target, None, sampling=s, seed=SEED)}
        if not s.penalised:  # mlx-lm's loop shows its penalties another part of the prompt
            arms["ar_mlx_lm"] = mlx_lm_arm(target, s)
        found[section] = arms | {f"{rule}_{name}": drafting_arm(target, drafters[d], k, sampling=replace(s, rule=rule), seed=SEED)
                                 for d, (name, k) in BLOCKS.items() for rule in RULES}
    return found


def sampled_rows(target: Target, prompt: dict, sections: Mapping[str, Mapping[str, Arm]], tokens: int, done: set) -> Iterator[dict]:
    """Decode rows of one prompt that are not in ``done`` ((section, arm, prompt id)). Where a rule does not promise the plain tokens of
    the seed, the identity audit is left empty."""
    for section, arms in sections.items():
        mine = {(arm, p, 0) for where, arm, p in done if where == section}
        for row in decode_rows(target, [prompt], arms, tokens, 1, mine, warm=[], section=section):
            free = section != "greedy" and (row["arm"] == "ar_mlx_lm" or row["arm"].startswith("rejection"))
            yield row | (UNPROMISED if free else {})


def chain_row(case: str, tokens: int) -> dict:
    """Counts of one generation from the table, and both closed-form tables it is held against."""
    s, stream = CHAINS[case]
    target, drafter = chain.tables(VOCAB)
    began = time.perf_counter()
    result = chain.decode(target, chain.ChainDrafter(drafter, stream and (SEED, stream)), s, tokens, WIDTH, SEED)
    p, q = chain.probabilities(target, s), chain.probabilities(drafter, s)
    judged, accepted = chain.judged_after(result, VOCAB)
    if s.rule == "match" and stream is None:
        q = np.eye(VOCAB)[q.argmax(axis=1)]
    return {"kind": "chain", "case": case, "rule": s.rule, "sound": stream != ACCEPT_NOISE, "tokens": tokens, "k": WIDTH, "p": p.tolist(), "q": q.tolist(),
            "counts": fit.pairs(result.tokens, VOCAB).ravel().tolist(), "judged_after": judged, "accepted": accepted, "seconds": time.perf_counter() - began}


def measure(params: dict, journal: Path, progress: Callable[[int, int, str], None] | None = None, resume: bool = False) -> Path:
    """Measure Act VI and write a row file beside ``journal``; finished rows survive a kill and are not measured again.

    Args:
        params: target, tokens, prompts (number), chain_tokens, dtype, quick.
        progress: called with (rows done, rows in all, label).
    Returns:
        The path of the finished row file.
    Raises:
        BadInput: before anything is measured, if an input does not exist or does not fit.
    """
    target = load_target(params["target"], params["dtype"])
    drafters, digests = load_drafters(target)
    prompts, tokens = prompt_suite(target, params["prompts"]), params["tokens"]
    check_room(target, prompts, tokens, max(k for _, k in BLOCKS.values()))
    sections = sections_of(target, drafters)
    config = {key: params[key] for key in ("target", "tokens", "chain_tokens", "dtype")} | {"reduced": params["quick"]}
    config |= {"prompts": [p["id"] for p in prompts], "warmup_prompts": WARMUP_PROMPTS, "noise_seed": NOISE_SEED, "seed": SEED, "temperatures": list(TEMPERATURES),
               "filtered": asdict(FILTERED), "arms": {section: list(arms) for section, arms in sections.items()}, "chains": list(CHAINS),
               "drafters": digests, "criteria": criteria.load(ACT).rules}
    total = len(CHAINS) + len(prompts) * sum(map(len, sections.values()))
    with journal_of(ACT, journal, target, drafters["uno"], config, resume) as rows:
        keep = keeper(rows, total, progress)
        counted = {r["case"] for r in rows if r["kind"] == "chain"}
        keep(chain_row(case, params["chain_tokens"]) for case in CHAINS if case not in counted)
        for arms in sections.values():
            keep(decode_rows(target, [], arms, tokens, 0, warm=prompts[:WARMUP_PROMPTS]))
        for p in prompts:
            keep(sampled_rows(target, p, sections, tokens, {(r["section"], r["arm"], r["prompt_id"]) for r in rows if r["kind"] == "decode"}))
    return journal.with_suffix(".json")
