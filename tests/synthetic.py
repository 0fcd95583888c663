"""Invented rows in the shape of measured ones, for tests of everything that is drawn from rows. Never shown as measured."""
from __future__ import annotations

import random
from pathlib import Path

import pytest
from specdecode_nb.records import load_rows, save_rows
from specdecode_nb.statistics import LOOP_FREE

CATEGORIES = ("prose", "factual", "code", "math", "structured", "technical", "dialogue", "reasoning", "high_entropy")
STEP = 0.010  # seconds of an invented plain step

SHORT = [{"id": "a-1", "category": "a", "text": "Step 1."}, {"id": "b-1", "category": "b", "text": "Day 2, Monday."}]
"""Prompts for measuring on the reference BLAS of the tests, which is slow."""


def short_prompts(protocol):
    """A fixture: the module ``protocol`` measures on SHORT instead of the suite."""
    @pytest.fixture(scope="module", autouse=True)
    def short_prompts():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(protocol, "prompt_suite", lambda target, count: SHORT[:count])
            yield

    return short_prompts


def decode_row(rng: random.Random, arm: str, prompt: str, repeat: int, tokens: int, looped: float, rate: float) -> dict:
    k, accepted, committed = (int(arm.rsplit("_k", 1)[1]) if "_k" in arm else 0), [], []
    while k and sum(committed) < tokens:
        a = 0
        while a < k - 1 and rng.random() < rate:
            a += 1
        keep = min(a + 2, tokens - sum(committed))
        accepted.append(min(a, keep))
        committed.append(keep)
    cycles = len(committed)
    draft, verify, commit, overhead = (cycles * STEP * f for f in (0.9 + 0.05 * k, 0.9 + 0.05 * k, 0.01, 0.02)) if k else (0.0, tokens * STEP, 0.0, 0.0)
    slower = 1.05 if arm == "ar_mlx_lm" else 1.0
    noise = 1 + 0.01 * rng.random()
    wall = (0.02 + draft + verify + commit + overhead) * slower * noise
    diverged = bool(k) and rng.random() < 0.2
    return {"kind": "decode", "arm": arm, "prompt_id": prompt, "category": prompt.rsplit("-", 1)[0], "repeat": repeat, "prompt_tokens": 40, "tokens": tokens,
            "wall_seconds": wall, "prefill_seconds": 0.02, "draft_seconds": draft * noise, "verify_seconds": verify * noise, "commit_seconds": commit,
            "overhead_seconds": overhead, "forwards": 1 + 2 * cycles if k else 1 + tokens, "forward_tokens": 40 + tokens, "cycles": cycles,
            "accepted_per_cycle": accepted, "offered_per_cycle": [k - 1] * cycles, "committed_per_cycle": committed, "ar_looped_fraction": looped,
            "ar_distinct_ratio": 0.5, "identical_to_ar": not diverged, "first_divergence": 17 if diverged else None,
            "divergence_gap_ulps": rng.choice([0.0, 1.0]) if diverged else None, "divergence_positions_checked": tokens if diverged else 0,
            "finish_reason": "length", "token_digest": "0" * 16, "peak_memory_bytes": 60_000_000 + 1_000_000 * k}


def rows(tokens: int = 32, repeats: int = 2, per_category: int = 2, widths=(1, 2, 4, 8, 16), seed: int = 7) -> list[dict]:
    rng = random.Random(seed)
    prompts = [f"{c}-{i}" for c in CATEGORIES for i in range(1, per_category + 1)]
    looped = {p: rng.choice([0.0, 0.01, 0.3]) for p in prompts}
    rate = {p: 0.4 + 0.4 * rng.random() for p in prompts}
    out = [decode_row(rng, arm, p, repeat, tokens, looped[p], rate[p]) for repeat in range(repeats) for p in prompts
           for arm in ("ar", "ar_mlx_lm", *(f"uno_k{k}" for k in widths))]
    out += [{"kind": "loops", "prompt_id": p, "category": p.rsplit("-", 1)[0], "tokens_length": tokens, "looped_fraction": looped[p], "distinct_ratio": 0.5,
             "mean_entropy_nats": 1.5, "median_entropy_nats": 1.2} for p in prompts]
    out += [{"kind": "tie", "dtype": "bfloat16", "prompt_id": p, "category": p.rsplit("-", 1)[0], "positions": 72, "exact_ties": rng.randrange(3),
             "gap_median": 1.0, "gap_p05": 0.125} for p in prompts[:3]]
    assert any(v < LOOP_FREE for v in looped.values())
    return out


def write(path: Path, reduced: bool = False, **options) -> Path:
    """An invented row file at ``path``."""
    found = rows(**options)
    prompts = sorted({r["prompt_id"] for r in found if r["kind"] == "decode"})
    provenance = {"target": {"name": "invented", "digest": "0" * 64, "parameters": 1, "dtype": "float32"}, "drafter": {"name": "uno", "digest": "0" * 64, "recipe": "invented"},
                  "machine": {"class": "invented machine", "cores": 2, "platform": "none"}, "versions": {"python": "3", "mlx": "0", "mlx_lm": "0", "numpy": "2", "specdecode_nb": "0"},
                  "blas": {"name": "invented", "version": "0", "how": "invented"}, "tf32": "off", "date": "2026-01-01", "package_digest": "0" * 64}
    config = {"target": "invented", "drafter": "uno", "block_sizes": [1, 2, 4, 8, 16], "tokens": 32, "repeats": 2, "dtype": "float32", "reduced": reduced,
              "prompts": prompts, "warmup_prompts": 3, "noise_seed": 20260905, "arms": []}
    return save_rows(path, act="act4s", target="invented", provenance=provenance, config=config, rows=found)


def rest_rows(seed: int = 7, tokens: int = 32) -> list[dict]:
    """Rows of the rest of Act IV-S: every section, arm and list that its page draws."""
    rng = random.Random(seed)
    prompts = [f"{c}-1" for c in CATEGORIES]
    looped = {p: 0.02 * i if i < 3 else 0.05 * i for i, p in enumerate(prompts)}

    def row(section: str, arm: str, prompt: str, n: int = tokens, **fields) -> dict:
        made = decode_row(rng, arm if "_k" in arm or arm.startswith("ar") else "x_k4", prompt, 0, n, looped.get(prompt, 0.0), 0.5)
        made |= {"arm": arm, "section": section, "identical_to_ar": True, "first_divergence": None, "divergence_gap_ulps": None, **fields}
        if arm.startswith("adapt_"):
            made["width_per_cycle"] = [rng.choice([0, 2, 4, 8]) for _ in range(made["cycles"])]
        if arm == "conf_k4":
            made["confidence_per_cycle"] = [[[round(rng.random(), 4), 0.0] for _ in range(3)] for _ in range(made["cycles"])]
        return made

    out = [{"kind": "cycle_cost", "width": w, "prompt_id": p, "cycles": 10, "seconds": STEP * (10 + 5 * w)} for w in (0, 1, 2, 4, 8) for p in prompts[:3]]
    out += [row("controls", arm, p) for p in prompts for arm in ("ar", "ar_mlx_lm", "uno_k1", "uno_k4", "refine2_k4", "refine4_k4", "ngram2_k4", "ngram3_k4",
                                                                 "untrained_k4", "shuffled_k4", "conf_k4")]
    out += [row("policies", arm, p) for p in prompts for arm in ("ar", "ar_mlx_lm", "uno_k2", "uno_k4", "uno_k8", "adapt_entropy", "adapt_survival", "adapt_ev",
                                                                 "adapt_value0")]
    out += [row("length", arm, p, n) for n in (tokens, 2 * tokens) for p in prompts for arm in ("ar", "uno_k4")]
    out += [row("context", arm, f"context-{n}", prompt_tokens=n, category="context") for n in (64, 256) for arm in ("ar", "ar_mlx_lm", "uno_k2", "uno_k4", "uno_k8")]
    return out


def write_rest(path: Path, rules: str, reduced: bool = False) -> Path:
    """An invented row file of the rest of Act IV-S at ``path``, made under the criteria with the digest ``rules``."""
    plain = load_rows(write(path, reduced))
    config = {"target": "invented", "drafter": "uno", "tokens": 32, "dtype": "float32", "reduced": reduced, "rest_repeats": 1, "lengths": [32, 64], "contexts": [64, 256],
              "prompts": [f"{c}-1" for c in CATEGORIES], "policy_prompts": [f"{c}-1" for c in CATEGORIES], "criteria": rules}
    return save_rows(path, act="act4s_rest", target="invented", provenance=plain.provenance, config=config, rows=rest_rows())
