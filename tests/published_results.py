"""An invented ``results/`` folder in the schemas of the published project: the same fields and roundings, other numbers."""
from __future__ import annotations

import copy
import functools
import json
import random
from pathlib import Path

CATEGORIES = ("prose", "factual", "code", "math", "structured", "technical", "dialogue", "reasoning", "high_entropy")
DIGEST = "7cd0" * 16
PROVENANCE = {
    "timestamp": "2026-09-13T08:13:31",
    "commit": "4063e4a0" * 5,
    "branch": "main",
    "dirty": True,
    "platform": "macOS-27.0-arm64-arm-64bit-Mach-O",
    "machine": "arm64",
    "mlx": "0.32.1",
    "model": "unsloth/Qwen3.5-4B-Base",
    "backbone_digest": f"BackboneFingerprint(digest='{DIGEST}', num_tensors=426, num_params=4205751296, checksums={{}})",
}
PROMPTS = [(c, f"{c} begins with a long sentence of its own, and then goes on for more than sixty letters {n}") for c in CATEGORIES for n in (1,)]
SWEEP = [("ar", "ar", {}), *((f"uno_k{k}", "uno", {"k": k}) for k in (1, 2, 4, 8, 16))]
CONTROLS = [
    SWEEP[0],
    SWEEP[3],
    *((f"ngram{n}_k4", "ngram", {"k": 4, "order": n}) for n in (2, 3)),
    *((f"refine{n}_k4", "refine", {"k": 4, "refine": n}) for n in (1, 2, 4)),
]
ADAPTIVE = [SWEEP[0], *SWEEP[2:5], *((f"adapt_{p}", "adaptive", {"policy": p}) for p in ("entropy", "ev", "survival"))]
STAGED = [("dec_d4v4", 4, 4), ("staged_d8v4", 8, 4), ("staged_d8v2", 8, 2), ("staged_d6v4", 6, 4), ("staged_d6v3", 6, 3)]
DECISIVE = [SWEEP[0], SWEEP[3], *((a, "decoupled", {"draft": d, "verify": v, "staged": d != v}) for a, d, v in STAGED)]


def decode_row(rng: random.Random, arm: str, kind: str, labels: dict, category: str, prompt: str, repeat: int, tokens: int, context: int | None = None) -> dict:
    """One row: times rounded as published (rates to three digits, seconds to four or five), lists by cycle, a trace where its kind has one."""
    accepted, committed, trace, offered, forwards = [], [], [], 0, 1
    while kind != "ar" and sum(committed) < tokens:
        k = labels.get("k") or labels.get("draft") or rng.choice((2, 4, 8))
        a = next((i for i in range(k - 1) if rng.random() > 0.55), k - 1)
        n = min(a + (1 if kind == "ngram" else 2), tokens - sum(committed))
        stages = rng.choice((1, 2)) if labels.get("staged") else 1
        accepted.append(a)
        committed.append(n)
        offered += k - 1
        forwards += (0 if kind == "ngram" else 1) + stages
        if kind == "adaptive" or arm == "conf_k4":
            top = [[round(rng.random(), 5) for _ in range(k - 1)] for _ in range(2)]
            trace.append(
                {
                    "cycle": len(trace) + 1,
                    "k": k,
                    "accepted": a,
                    "offered": k - 1,
                    "committed": n,
                    "full_block": False,
                    "verifier_entropy": 0.5,
                    "draft_top1": top[0] if arm == "conf_k4" else [],
                    "draft_margin": top[1] if arm == "conf_k4" else [],
                }
            )
        elif kind == "decoupled":
            parts = [k - 1] if stages == 1 else [(k - 1) // 2, k - 1 - (k - 1) // 2]
            trace.append(
                {
                    "cycle": len(trace) + 1,
                    "draft_width": k,
                    "stages": [
                        {"stage": i, "verify_tokens": o + 2, "offered": o, "accepted": 0, "committed": 0, "verify_ms": 23.5} for i, o in enumerate(parts, 1)
                    ],
                    "cycle_ms": round(45 + 10 * rng.random(), 4),
                    "committed": n,
                    "accepted": a,
                    "unused_draft_tokens": stages,
                }
            )
    cycles, prefill = len(accepted), 0.02 + 0.03 * rng.random() + (context or 0) / 1e4
    stage = {s: cycles * t * (0.9 + 0.2 * rng.random()) for s, t in (("proposal", 0.0247), ("verify", 0.024), ("commit", 0.00028), ("overhead", 0.0008))}
    wall = prefill + (sum(stage.values()) if cycles else tokens * 0.0203 * (0.98 + 0.04 * rng.random()))
    parted = bool(cycles) and rng.random() < 0.3
    r = {
        "tokens": tokens,
        "forwards": forwards if cycles else tokens,
        "forward_tokens": 300,
        "cycles": cycles or tokens,
        "tokens_per_forward": round(tokens / (forwards if cycles else tokens), 4),
        "acceptance_rate": round(sum(accepted) / max(1, offered), 4),
        "mean_committed_per_cycle": round(sum(committed) / max(1, cycles), 4),
        "full_blocks": 0,
        "replay_forwards": 0,
        "wall_seconds": round(wall, 4),
        "prefill_seconds": round(prefill, 4),
        "tokens_per_second": round(tokens / wall, 3),
        **{f"{s}_seconds": round(v, 5) for s, v in stage.items()},
        "cycle_seconds": round(wall - prefill, 5) if cycles else 0.0,
        "unattributed_seconds": 0.0,
        **{f"{s}_ms_per_cycle": round(1000 * v / cycles, 4) if cycles else 0.0 for s, v in stage.items()},
        "transaction_mode": "snapshot",
        "transaction": None,
        "arm": arm,
        "kind": kind,
        "repeat": repeat,
        "category": category,
        "prompt": prompt,
        "prompt_tokens": 14,
        "identical_to_ar": not parted,
        "first_divergence": 17 if parted else None,
        "divergence_context": [1, 2] if parted else None,
        "divergence_tokens": [7888, 8677] if parted else None,
        "accepted_per_cycle": accepted,
        "committed_per_cycle": committed,
        "entropy_per_cycle": [0.5] * cycles,
        **labels,
    }
    return r | ({"trace": trace} if trace else {}) | ({"context_length": context} if context else {})


def session(seed: int, arms: list, repeats: int = 2, tokens: int = 32, prompts: list = PROMPTS, **more) -> list[dict]:
    """Rows of one session, repeat by repeat, prompt by prompt, arms innermost; every other prompt loops."""
    rng = random.Random(seed)
    rows = [decode_row(rng, *arm, category, prompt, repeat, tokens, **more) for repeat in range(repeats) for category, prompt in prompts for arm in arms]
    loops = {prompt: (0.01, 0.3)[n % 2] for n, (_, prompt) in enumerate(prompts)}
    return [r | {"ar_looped_fraction": loops[r["prompt"]], "ar_distinct_ratio": 0.5} for r in rows]


def document(rows: list[dict], **more) -> dict:
    arms = list(dict.fromkeys(r["arm"] for r in rows))
    return {
        "provenance": PROVENANCE,
        "config": {"adapter": "runs/u4b1/adapter.safetensors", "tokens": 32, "repeats": 2, "tag": "main", "func": "<function at 0x101351080>"},
        **more,
        "summary": [{"arm": a, "rows": sum(r["arm"] == a for r in rows)} for a in arms],
        "rows": rows,
    }


def audit(rows: list[dict], lengths: bool = False) -> dict:
    found = [
        {
            "arm": r["arm"],
            "category": r["category"],
            "max_tokens": r["tokens"] if lengths else None,
            "position": r["first_divergence"],
            "ar_token": 7888,
            "spec_token": 8677,
            "contested_gap": 0.125,
            "ulp": 0.125,
            "gap_in_ulps": 1.0,
            "exact_tie": False,
            "within_one_ulp": True,
        }
        for r in rows
        if not r["identical_to_ar"]
    ]
    return {
        "summary": {
            "divergences": len(found),
            "exact_ties": 0,
            "within_one_ulp": len(found),
            "beyond_one_ulp": 0,
            "max_gap_in_ulps": 1.0,
            "median_gap_in_ulps": 1.0,
        },
        "audit": found,
    }


def ulps(rows: list[dict]) -> dict:
    """The audit inside a file of Act IV-U6, which names prompts by their first letters."""
    found = [
        {"arm": r["arm"], "prompt": r["prompt"][:60], "repeat": r["repeat"], "position": 17, "gap": 0.0, "gap_in_ulps": 0.0, "within_one_ulp": True}
        for r in rows
        if not r["identical_to_ar"]
    ]
    return {"ulp_audit": {"divergences": len(found), "beyond_one_ulp": 0, "audit": found}}


def loops() -> dict:
    return {
        "by_length": {},
        "rows": [
            {
                "max_tokens": n,
                "category": c,
                "prompt": p[:60],
                "looped_fraction": (0.01, 0.3)[i % 2],
                "distinct_ratio": 0.5,
                "acceptance_rate": round(0.3 + 0.01 * i, 4),
                "tokens_per_second": 60.0 + i,
                "mean_accepted": 1.0,
            }
            for n in (128, 512)
            for i, (c, p) in enumerate(PROMPTS)
        ],
    }


def documents(name: str = "") -> dict:
    """Every file with rows by its name in the folder, or the one named; to be changed at will."""
    return copy.deepcopy(texts()[name] if name else texts())


@functools.cache
def texts() -> dict[str, dict]:
    sweep, controls, adaptive = (session(n, arms) for n, arms in enumerate((SWEEP, CONTROLS, ADAPTIVE)))
    confidence = session(3, [SWEEP[0], ("conf_k4", "refine", {"k": 4, "refine": 1})])
    baseline = [r | {"max_tokens": n} for n in (128, 256, 512) for r in session(n, [SWEEP[0], SWEEP[3]], 1, n)]
    context = [
        r for n in (512, 2048, 8192, 16384) for r in session(n, [SWEEP[0], *SWEEP[2:5]], 3, prompts=[("wikitext", f"<{n}-token held-out context>")], context=n)
    ]
    calibrate = session(4, [SWEEP[0], SWEEP[3], ("uno_k4_b2", "uno", {"k": 4})])
    pilot, decisive = session(5, DECISIVE, 1), session(6, DECISIVE)
    made = {
        "main_ksweep": sweep,
        "main_controls": controls,
        "main_adaptive": adaptive,
        "main_confidence": confidence,
        "main_baseline": baseline,
        "main_context": context,
    }
    ties = {"tie_rate": {"positions": 1536, "exact_ties": 19, "tie_rate": 0.01237}}
    return {
        **{f"speculative/{stem}.json": document(rows, **(ties if stem == "main_baseline" else {})) for stem, rows in made.items()},
        **{f"speculative/{stem}_divergence_audit.json": audit(rows, stem == "main_baseline") for stem, rows in made.items() if stem != "main_confidence"},
        "speculative/main_degeneration.json": loops(),
        **{
            f"act4u6/{stem}.json": document(rows, act="IV-U6", seconds=5.0, adapter_sha256="8200" * 16, **ulps(rows))
            for stem, rows in (("calibrate", calibrate), ("pilot", pilot), ("decisive", decisive))
        },
    }


def write(folder: Path, names: tuple[str, ...] = ()) -> Path:
    """The files ``names`` (all of them if none is named) under ``folder``."""
    for name, made in texts().items():
        if not names or name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json.dumps(made, indent=1))
    return folder
