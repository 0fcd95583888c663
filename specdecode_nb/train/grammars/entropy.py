"""Near-random content in a regular frame: words, hexadecimal ids, coordinates, shuffles."""
from __future__ import annotations

from .world import ANIMALS, COLOURS, DAYS, FIELDS, ITEMS, MODULES, PLACES, World
from .technical import PARTS

WORDS = sorted({*ANIMALS, *COLOURS, *FIELDS, *ITEMS, *MODULES, *PLACES, *PARTS, *(v[2] for v in PLACES.values())})


def random_words(w: World) -> str:
    """Numbered lines of words drawn at random; no word comes back before all have been used."""
    n, width, bag, out = w.number(10, 90), w.small(5, 8), [], []
    for i in range(w.small(40, 48)):
        if len(bag) < width:
            bag = w.some(WORDS, len(WORDS))
        out.append(f"{n + i}. " + " ".join(bag.pop() for _ in range(width)))
    return "Random words\n" + "\n".join(out)


def hex_ids(w: World) -> str:
    n = w.number(10, 300)
    out = [f"{n + i} {w.r.getrandbits(32):08x}-{w.r.getrandbits(16):04x} {w.r.choice(WORDS)}" for i in range(w.small(26, 34))]
    return "Session ids\n" + "\n".join(out)


def coordinates(w: World) -> str:
    n, out = w.number(10, 200), []
    for i in range(w.small(24, 30)):
        x, y, z = (w.r.randint(-999, 999) / 10 for _ in range(3))
        out.append(f"{n + i}: ({x:.1f}, {y:.1f}, {z:.1f}) {w.r.choice(COLOURS)}")
    return "Random points\n" + "\n".join(out)


def shuffles(w: World) -> str:
    """Draws of names, words and days in no order at all."""
    n, out = w.number(10, 90), []
    for i in range(w.small(22, 28)):
        a, b = w.people(2)
        out.append(f"Draw {n + i}: {a} {w.r.choice(WORDS)} {w.r.randint(10, 999)} {w.r.choice(DAYS)}, {w.r.choice(WORDS)} {b} {w.r.randint(10, 999)}")
    return "\n".join(out)


TYPES = (random_words, hex_ids, coordinates, shuffles)
