"""The seeded grammar: nine categories of documents whose text is driven by visible state (plans, counters, lists)."""
from __future__ import annotations

from .grammars import code, dialogue, entropy, factual, mathematics, prose, reasoning, structured, technical
from .grammars.world import World

CATEGORIES = {
    "prose": prose.TYPES, "factual": factual.TYPES, "code": code.TYPES, "math": mathematics.TYPES,
    "structured": structured.TYPES, "technical": technical.TYPES, "dialogue": dialogue.TYPES,
    "reasoning": reasoning.TYPES, "high_entropy": entropy.TYPES,
}


def document(category: str, number: int, seed: int | str, held_out: bool = False) -> str:
    """Document ``number`` of a category; the types take turns. Held-out documents use other names and opening numbers.

    Raises KeyError for an unknown category.
    """
    kinds = CATEGORIES[category]
    kind = kinds[number % len(kinds)]
    split = "held-out" if held_out else "train"
    return kind(World(f"{seed}/{split}/{category}/{number}", held_out))
