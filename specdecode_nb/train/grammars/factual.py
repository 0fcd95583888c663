"""Encyclopaedic entries: the towns of a river, a field guide, a line of rulers."""
from __future__ import annotations

from .world import ANIMALS, COLOURS, ITEMS, PLACES, World, cycle


def river(w: World) -> str:
    """Towns in order downstream: distance, age and trade are carried along."""
    towns, name = w.towns(9), w.people(1)[0]
    mile, year, places = 0, w.number(110, 600), w.some(PLACES, 9)
    out = [f"The River {name}\n\nThe {name} rises in the hills and passes nine towns: "
           + ", ".join(f"{i} {t} with its {p}" for i, (t, p) in enumerate(zip(towns, places), 1)) + "."]
    tell = [
        lambda i, t, p, m, y, q: f"{i}. {t} stands at mile {m} of the {name}. It was founded in {y}, and its {p} sends {PLACES[p][2]} down to {q}.",
        lambda i, t, p, m, y, q: f"{i}. At mile {m} the river reaches {t}, a town of the year {y}. Travellers remember the {p}, where {PLACES[p][1]}. The next town is {q}.",
        lambda i, t, p, m, y, q: f"{i}. {t} (mile {m}) received its charter in {y}. Most families live by {PLACES[p][0]}; the old {p} faces the road to {q}.",
        lambda i, t, p, m, y, q: f"{i}. The name of {t} is first written in {y}. The town lies {m} miles from the source and is known for {PLACES[p][2]} from its {p}. Boats leave daily for {q}.",
        lambda i, t, p, m, y, q: f"{i}. Below a bend at mile {m} lies {t}, built in {y} around a {p}. Visitors find people {PLACES[p][0]} there, and a path leads on to {q}.",
        lambda i, t, p, m, y, q: f"{i}. {t} burned down once and was built again in {y}. Its {p} at mile {m} was saved. Merchants of {q} buy {PLACES[p][2]} here.",
        lambda i, t, p, m, y, q: f"{i}. In {y} settlers chose mile {m} of the {name} for {t}. By the {p} {PLACES[p][1]}. The people trade with {q} in spring.",
        lambda i, t, p, m, y, q: f"{i}. The smallest town is {t}, at mile {m}. Since {y} it has kept a {p} and a school for {PLACES[p][0]}. Its rival is {q}.",
    ]
    steps = cycle(w, tell)
    for i, (t, p) in enumerate(zip(towns, places), 1):
        mile, year = mile + w.small(3, 9), year + w.small(2, 12)
        out.append(next(steps)(i, t, p, mile, year, towns[i] if i < 9 else "the sea"))
    out.append(f"After {mile} miles the {name} enters the sea.")
    return "\n\n".join(out)


def guide(w: World) -> str:
    """A field guide: a table of attributes first, then one entry for each animal that reuses them."""
    animals, colours, places, towns = w.some(ANIMALS, 8), w.some(COLOURS, 8), w.some(PLACES, 8), w.towns(8)
    length, young = w.number(12, 60), [w.small(2, 9) for _ in animals]
    keeper = w.people(1)[0]
    rows = [f"{i} {t} {a}, {c}, {length + i} cm, {y} young, near the {p}" for i, (t, a, c, y, p) in enumerate(zip(towns, animals, colours, young, places), 1)]
    out = [f"Animals of the Valley, collected by {keeper}\n\n" + "\n".join(rows)]
    tell = [
        lambda i, t, a, c, l, y, p: f"Entry {i}. The {t} {a} has a {c} coat and grows to {l} cm. It raises {y} young each year and is often seen near the {p}, where {PLACES[p][1]}.",
        lambda i, t, a, c, l, y, p: f"Entry {i}. Few have watched the {t} {a}. At {l} cm it is easy to miss, although it is {c}. Its {y} young are born close to a {p}.",
        lambda i, t, a, c, l, y, p: f"Entry {i}. People {PLACES[p][0]} know the {t} {a} well: a {c} animal of {l} cm that lives by the {p} with {y} young.",
        lambda i, t, a, c, l, y, p: f"Entry {i}. A length of {l} cm and a {c} back mark the {t} {a}. In winter it sleeps under the {p}; in May there are {y} young.",
        lambda i, t, a, c, l, y, p: f"Entry {i}. The {c} {a} of {t} measures {l} cm. Old books say it steals {PLACES[p][2]} from the {p}, but it only feeds its {y} young.",
        lambda i, t, a, c, l, y, p: f"Entry {i}. Named after {t}, the {a} is {c} all over. It keeps {y} young in a hole by the {p} until they are {l} cm long.",
        lambda i, t, a, c, l, y, p: f"Entry {i}. Listen for the {t} {a} at dusk. The {c} male, {l} cm, calls from the {p} while {y} young stay hidden.",
    ]
    steps = cycle(w, tell)
    for i, (t, a, c, y, p) in enumerate(zip(towns, animals, colours, young, places), 1):
        out.append(next(steps)(i, t, a, c, length + i, y, p))
    return "\n\n".join(out)


def rulers(w: World) -> str:
    """Reigns that follow one another: the end of one is the beginning of the next."""
    people, town = w.people(11), w.towns(1)[0]
    year, reigns, things, places = w.number(200, 800), [w.small(2, 9) for _ in range(10)], w.some(ITEMS, 10), w.some(PLACES, 10)
    out = [f"The Rulers of {town}\n\n{town} had ten rulers after the year {year}. Their reigns: "
           + ", ".join(f"{i} {p} {n} years" for i, (p, n) in enumerate(zip(people, reigns), 1)) + "."]
    tell = [
        lambda i, p, n, a, b, t, x, q: f"{p}, ruler {i}, reigned {n} years, from {a} to {b}. The sign of this reign was the {t}, and the new {x} was its pride. Then came {q}.",
        lambda i, p, n, a, b, t, x, q: f"Ruler {i} was {p}, crowned in {a}. In {n} years the {x} was repaired, and people lived by {PLACES[x][0]}. In {b} the {t} passed to {q}.",
        lambda i, p, n, a, b, t, x, q: f"In {a} began the reign of {p}, number {i} in the line. It lasted {n} years. A stone {t} near the {x} recalls the year {b}, when {q} followed.",
        lambda i, p, n, a, b, t, x, q: f"{p} took the throne in {a} and held it for {n} years as ruler {i}. A law of that time protects the {x}. {q} found the {t} in {b}.",
        lambda i, p, n, a, b, t, x, q: f"Little is known of {p}, ruler {i}. Between {a} and {b}, a span of {n} years, {town} built its {x} and sold {PLACES[x][2]}. The heir {q} kept a {t}.",
        lambda i, p, n, a, b, t, x, q: f"The years {a} to {b} belong to {p}. Ruler {i} sat for {n} years in the {x}, where {PLACES[x][1]}, and left the {t} to {q}.",
        lambda i, p, n, a, b, t, x, q: f"Songs praise {p}. As ruler {i}, from {a}, this friend of the {x} gave every child a {t}. After {n} years, in {b}, the crown went to {q}.",
    ]
    steps = cycle(w, tell)
    for i, (p, n, t, x) in enumerate(zip(people, reigns, things, places), 1):
        out.append(next(steps)(i, p, n, year, year + n, t, x, people[i]))
        year += n
    return "\n\n".join(out)


TYPES = (river, guide, rulers)
