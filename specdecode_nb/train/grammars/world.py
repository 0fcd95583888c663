"""Shared lexicon and the seeded source of entities and numbers for every document type.

Training and held-out documents never share a name, a town or an opening number: each pair (stem, ending) belongs to
one split, and opening numbers are split by their residue modulo 7.
"""
from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

STEMS = "Mar Tor El Bran Sel Ked Lin Os Dav Fen Gar Hal Ir Jor Kal Lor Nel Per Quin Ros Sam Tam Ul Vel Wil Yor Zan Ast Bel Cor".split()
ENDINGS = "a in en is o ek ad wyn".split()
TOWN_STEMS = "Ash Bram Cold Dun East Fair Glen Har Iron King Long Mill North Oak Pen Red Stone Thorn Well West Wood Lake".split()
TOWN_ENDINGS = "ford well bridge ton field wick mouth dale".split()

# place: (what people do there, what one sees, what one takes away)
PLACES = {
    "mill": ("grinding corn", "the wheel turned in the stream", "flour"),
    "harbour": ("mending nets", "the boats lay side by side", "fish"),
    "bridge": ("counting carts", "the river ran high", "tolls"),
    "market": ("setting out baskets", "the stalls were full", "plums"),
    "tower": ("winding the clock", "the bell hung in the dark", "rope"),
    "garden": ("cutting roses", "the beds were in flower", "seeds"),
    "forge": ("hammering a hinge", "the fire glowed red", "nails"),
    "school": ("copying maps", "the desks stood in rows", "chalk"),
    "library": ("sorting letters", "the shelves reached the roof", "paper"),
    "inn": ("carrying soup", "the lamps were lit early", "bread"),
    "barn": ("stacking hay", "the swallows came and went", "straw"),
    "well": ("drawing water", "the bucket swung on its chain", "water"),
    "orchard": ("picking pears", "the trees bent low", "pears"),
    "bakery": ("kneading dough", "the oven was warm", "loaves"),
    "station": ("reading the timetable", "the rails shone in the rain", "tickets"),
    "quarry": ("cutting stone", "the dust lay white", "slate"),
    "workshop": ("planing a door", "the floor was deep in shavings", "boards"),
    "dairy": ("churning butter", "the pails stood in the shade", "cheese"),
    "hill": ("watching sheep", "the grass moved in the wind", "wool"),
    "museum": ("dusting a clock", "the cases gleamed", "coins"),
}
ITEMS = "lamp key coin ring rope cup bell book map drum hook seal flag stone chest fan pen cloak mask net".split()
COLOURS = "red blue green white black grey brown yellow silver golden".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
NUMBER_WORDS = "one two three four five six seven eight nine ten eleven twelve".split()
ANIMALS = "otter heron fox hare owl badger marten crane toad lynx stoat raven finch beaver newt vole".split()
FIELDS = "name price count weight height colour owner place score level rank total width depth speed label share offset status rate".split()
MODULES = "parser cache loader router client server queue index writer reader timer logger filter scanner packer mixer".split()


def _split(stems: Sequence[str], endings: Sequence[str], held_out: bool) -> list[list[str]]:
    """Names by stem; in every stem one ending is kept for the held-out split."""
    return [[s + e for j, e in enumerate(endings) if ((3 * i + j) % len(endings) == 0) == held_out] for i, s in enumerate(stems)]


class World:
    """Draws entities for one document from ``random.Random(seed)``; ``held_out`` selects the reserved names and numbers."""

    def __init__(self, seed: int | str, held_out: bool = False):
        self.r = random.Random(seed)
        self.held_out = held_out

    def people(self, n: int) -> list[str]:
        """n names with different stems."""
        return [self.r.choice(group) for group in self.r.sample(_split(STEMS, ENDINGS, self.held_out), n)]

    def towns(self, n: int) -> list[str]:
        """n town names with different stems."""
        return [self.r.choice(group) for group in self.r.sample(_split(TOWN_STEMS, TOWN_ENDINGS, self.held_out), n)]

    def number(self, low: int, high: int) -> int:
        """An opening number in [low, high] that belongs to the split; the range must span at least 13 numbers."""
        return self.r.choice([n for n in range(low, high + 1) if (n % 7 == 3) == self.held_out])

    def some(self, words: Sequence[str], n: int) -> list[str]:
        return self.r.sample(list(words), n)

    def small(self, low: int, high: int) -> int:
        """A small increment, not reserved for either split."""
        return self.r.randint(low, high)

    def start(self, n: int) -> int:
        return self.r.randrange(n)


def cycle(world: World, templates: Sequence[Callable]) -> Iterator[Callable]:
    """The templates in their fixed order for ever, from a random first one: the order is learnable, nothing repeats soon."""
    at = world.start(len(templates))
    while True:
        yield templates[at % len(templates)]
        at += 1


def listed(words: Sequence[str]) -> str:
    """1 mill, 2 inn, 3 well: a numbered plan, so that a counter alone finds the next entry."""
    return ", ".join(f"{i} {w}" for i, w in enumerate(words, 1))


def article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
