"""The prompt suite: beginnings of documents with reserved names and numbers, three types in each of nine categories.

    python -m specdecode_nb.train.prompts data/prompts/suite.json

Each prompt holds the plan of its document and at most the first entry, so that what follows is fixed by the text.
"""
from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from .grammar import CATEGORIES, document

SEED = 5
# category: for each prompt (document type, separator, pieces kept)
CUTS = {
    "prose": [(0, "\n", 5), (1, "\n", 5), (2, "\n", 5)],
    "factual": [(0, "\n", 5), (1, "\n", 10), (2, "\n", 5)],
    "code": [(0, "\n\n", 2), (1, "\n\n\n", 2), (2, "\n", 9)],
    "math": [(0, "\n", 4), (1, "\n", 4), (2, "\n", 3)],
    "structured": [(0, "\n", 3), (1, "\n", 5), (2, "\n", 18)],
    "technical": [(0, "\n", 5), (1, "\n", 5), (2, "\n", 3)],
    "dialogue": [(0, "\n", 4), (1, "\n", 4), (2, "\n", 2)],
    "reasoning": [(0, "\n", 3), (1, "\n", 3), (2, "\n", 3)],
    "high_entropy": [(0, "\n", 6), (1, "\n", 6), (3, "\n", 5)],
}


def suite(seed: int = SEED) -> list[dict]:
    """27 prompts {"id", "category", "text"}; ``rest`` of each document is what a perfect model would write."""
    out = []
    for category, cuts in CUTS.items():
        for i, (kind, separator, keep) in enumerate(cuts, 1):
            number = kind + len(CATEGORIES[category]) * i
            text = document(category, number, f"prompts/{seed}", held_out=True)
            prompt = separator.join(text.split(separator)[:keep]).rstrip()
            out.append({"id": f"{category.replace('_', '-')}-{i}", "category": category, "text": prompt, "rest": text[len(prompt):]})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the prompt suite.")
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    prompts = [{k: p[k] for k in ("id", "category", "text")} for p in suite()]
    rows = ",\n".join("  " + json.dumps(p, ensure_ascii=False) for p in prompts)
    part = out.with_suffix(".part")
    part.write_text('{"schema": 1, "origin": "specdecode_nb.train.prompts, reserved names and numbers",\n "prompts": [\n' + rows + "\n]}\n", encoding="utf-8")
    os.replace(part, out)


if __name__ == "__main__":
    main()
