"""Facts first, deductions in order: ages, rules, elimination."""
from __future__ import annotations

from .world import COLOURS, ITEMS, PLACES, World, cycle


def ages(w: World) -> str:
    """A chain of differences: every age follows from the one before."""
    people, age = w.people(11), w.number(8, 60)
    gaps = [w.small(2, 6) * w.r.choice([1, 1, -1]) if age > 40 else w.small(2, 5) for _ in range(10)]
    word = lambda d: "older" if d > 0 else "younger"  # noqa: E731
    facts = " ".join(f"({i}) {b} is {abs(d)} years {word(d)} than {a}." for i, (a, b, d) in enumerate(zip(people, people[1:], gaps), 1))
    out = [f"Facts: {people[0]} is {age}. {facts} How old is everyone?\n"]
    tell = [
        lambda i, a, b, d, x, y: f"By fact {i}, {b} is {abs(d)} years {word(d)} than {a}. {a} is {x}, therefore {b} is {y}.",
        lambda i, a, b, d, x, y: f"We know {a} is {x}. Fact {i} speaks of {abs(d)} years, so {b}, who is {word(d)}, must be {y}.",
        lambda i, a, b, d, x, y: f"Take fact {i}. The age of {b} is {x} {'+' if d > 0 else '-'} {abs(d)} = {y}, since {a} is {x}.",
        lambda i, a, b, d, x, y: f"What about {b}? Fact {i} compares with {a}: {word(d)} by {abs(d)}. From {x} we get {y}.",
        lambda i, a, b, d, x, y: f"If {a} is {x}, then by fact {i} {b} can only be {y}, which is {abs(d)} years {word(d)}.",
        lambda i, a, b, d, x, y: f"Fact {i} settles {b}: {abs(d)} years {word(d)} than {a} at {x} means {y}.",
        lambda i, a, b, d, x, y: f"Now use {i}. Because {x} is the age of {a}, and the gap is {abs(d)}, {b} has to be {y}.",
        lambda i, a, b, d, x, y: f"The {word(d)} one in fact {i} is {b}. It is {abs(d)} years from {x}, the age of {a}, so {b} is {y}.",
    ]
    steps = cycle(w, tell)
    for i, (a, b, d) in enumerate(zip(people, people[1:], gaps), 1):
        out.append(next(steps)(i, a, b, d, age, age + d))
        age += d
    out.append(f"So the last one, {people[-1]}, is {age}.")
    return "\n".join(out)


def rules(w: World) -> str:
    """Rules chain places: whoever holds a thing goes to a place, where the next thing lies."""
    p, (first, *things), places = w.people(1)[0], w.some(ITEMS, 11), w.some(PLACES, 10)
    names, n = w.people(10), w.number(1, 40)
    items = [first, *things]
    rules_ = " ".join(f"Rule {n + i}: the {t} opens the {x}, where {h} keeps the {u}." for i, (t, x, h, u) in enumerate(zip(items, places, names, items[1:])))
    out = [f"{p} has the {first}. {rules_} Where does {p} end?\n"]
    tell = [
        lambda k, t, x, h, u: f"{p} has the {t}, so rule {k} applies. The {x} is open, and {h} gives the {u}.",
        lambda k, t, x, h, u: f"With the {t} in hand we look at rule {k}: it leads to the {x}. There {h} holds the {u}, which {p} takes.",
        lambda k, t, x, h, u: f"Rule {k} needs the {t}. We have it; hence {p} enters the {x}, meets {h} and gains the {u}.",
        lambda k, t, x, h, u: f"Which rule uses the {t}? Rule {k} does. It follows that {h} at the {x} hands over the {u}.",
        lambda k, t, x, h, u: f"Since the {t} opens the {x} by rule {k}, {p} sees {h} {PLACES[x][0]}. From there comes the {u}.",
        lambda k, t, x, h, u: f"The {t} was found, therefore the {x} is next (rule {k}). {h} lets {p} carry off the {u}.",
        lambda k, t, x, h, u: f"By rule {k} the way to {h} is free: the {t} fits the {x}. So the {u} belongs to {p}.",
    ]
    steps = cycle(w, tell)
    for i, (t, x, h, u) in enumerate(zip(items, places, names, items[1:])):
        out.append(next(steps)(n + i, t, x, h, u))
    out.append(f"No rule uses the {items[-1]}. {p} ends at the {places[-1]} with {names[-1]}.")
    return "\n".join(out)


def elimination(w: World) -> str:
    """Each clue takes one person and one colour off the shrinking lists."""
    people, colours, n = w.people(10), w.some(COLOURS, 10), w.number(1, 40)
    order = w.some(range(10), 10)
    clues = " ".join(f"Clue {n + j}: {people[k]}, {colours[k]} house." for j, k in enumerate(order))
    out = [f"Ten people, ten houses. People: {', '.join(people)}. {clues} Who is left after each clue?\n"]
    left, free = list(people), list(colours)
    span = lambda rest: f"{len(rest)}, from {rest[0]} to {rest[-1]}" if len(rest) > 1 else " ".join(rest) or "nothing"  # noqa: E731
    tell = [
        lambda c, p, x, m, f: f"Clue {c} puts {p} in the {x} house. Without {p} the list of people is {m}.",
        lambda c, p, x, m, f: f"Next, {p} and {x} belong together by clue {c}. People left: {m}. Houses left: {f}.",
        lambda c, p, x, m, f: f"From clue {c} the {x} house is taken by {p}, so there remain {m}.",
        lambda c, p, x, m, f: f"We cross out {p}, who has {x} (clue {c}). Free houses: {f}.",
        lambda c, p, x, m, f: f"Clue {c} names {p}. The {x} house is gone and the street has {f}; people: {m}.",
        lambda c, p, x, m, f: f"Who owns the {x} house? By clue {c} it is {p}. The others: {m}.",
        lambda c, p, x, m, f: f"Then clue {c}: {x} goes to {p}. Houses without an owner: {f}.",
    ]
    steps = cycle(w, tell)
    for j, k in enumerate(order):
        left.remove(people[k])
        free.remove(colours[k])
        out.append(next(steps)(n + j, people[k], colours[k], span(left), span(free)))
    return "\n".join(out)


TYPES = (ages, rules, elimination)
