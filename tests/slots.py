"""Invented blocks in the shape of measured ones, whose signals are planted. Never shown as measured."""
from __future__ import annotations

import numpy as np
from specdecode_nb.protocols.rprm1 import BLOCK, STRATA
from specdecode_nb.records import RowFile
from specdecode_nb.train.grammar import CATEGORIES

VOCAB = 2048


def rows(windows: int = 600, effect: float = 3.0, gap: float = 1.0, shared: float = 0.0, seed: int = 1, strata=STRATA) -> list[dict]:
    """Agreement falls with the offset; ``effect`` and ``gap`` are log-odds for one standard deviation of entropy and gap, ``shared`` those of
    an unseen trait that all positions of a window have in common."""
    rng, out = np.random.default_rng(seed), []
    for w in range(windows):
        for stratum in strata:
            entropy, gaps = rng.normal(size=(2, BLOCK - 1))
            rate = rng.random() if stratum == "schedule" else 1.0
            noised = (rng.random(BLOCK - 1) < rate).astype(int)
            odds = 0.8 - 0.4 * np.arange(BLOCK - 1) - effect * entropy - gap * gaps + shared * rng.normal() + 1.5 * (stratum == "schedule") * (1 - noised)
            q = np.clip(0.3 + 0.1 * entropy, 0.001, 0.999)
            values = {"entropy": q, "doubt": q, "second": q / 2, "gap": np.clip(1 + 0.2 * gaps, 0, 2), "teacher_entropy": rng.exponential(size=BLOCK - 1),
                      "bare_entropy": rng.exponential(size=BLOCK - 1)}
            out.append({"kind": "slots", "stratum": stratum, "window": w, "category": list(CATEGORIES)[w % len(CATEGORIES)], "rate": float(rate),
                        "noised": noised.tolist() if stratum == "schedule" else [], "agree": (rng.random(BLOCK - 1) < 1 / (1 + np.exp(-odds))).astype(int).tolist(),
                        **{name: [float(f"{v:.3g}") for v in value] for name, value in values.items()}})
    return out


def config(rules: str, windows: int, reduced: bool = False) -> dict:
    return {"target": "invented", "drafter": "uno", "windows": windows, "seed": 20260908, "dtype": "float32", "reduced": reduced, "strata": list(STRATA), "block": BLOCK,
            "vocab": VOCAB, "context": [64, 256], "own_tokens": 32, "shares": [0.5, 0.2, 0.3], "trained_block": 5, "criteria": rules}


def row_file(rules: str, windows: int = 600, **options) -> RowFile:
    return RowFile("rprm1", "invented", {}, config(rules, windows), rows(windows, **options), "invented.json", "0")
