"""Arithmetic that goes on from the line before: running totals, sequences, bills."""
from __future__ import annotations

from .world import ITEMS, World, cycle


def running(w: World) -> str:
    """A chain of additions and subtractions; the plan of operations stands at the top."""
    total, steps_ = w.number(100, 500), [w.small(2, 9) * w.r.choice([1, 1, 1, -1]) for _ in range(20)]
    name = w.people(1)[0]
    out = [f"Problem. {name} starts with {total}. Changes: " + ", ".join(f"({i}) {d:+d}" for i, d in enumerate(steps_, 1)) + ". Find every total.\n\nSolution."]
    tell = [
        lambda i, a, op, d, b: f"Step {i}: {a} {op} {d} = {b}.",
        lambda i, a, op, d, b: f"In step {i} we take {a} {op} {d}, which gives {b}.",
        lambda i, a, op, d, b: f"Change ({i}) is {op}{d}: from {a} we come to {b}.",
        lambda i, a, op, d, b: f"Next, ({i}): the total {a} becomes {a} {op} {d} = {b}.",
        lambda i, a, op, d, b: f"Now {name} has {a}; after step {i} with {op}{d} it is {b}.",
        lambda i, a, op, d, b: f"({i}) Since {a} {op} {d} = {b}, the new total is {b}.",
        lambda i, a, op, d, b: f"Then {op}{d} in step {i} turns {a} into {b}.",
        lambda i, a, op, d, b: f"For ({i}) write {a} {op} {d} = {b} below it.",
    ]
    steps = cycle(w, tell)
    for i, d in enumerate(steps_, 1):
        out.append(next(steps)(i, total, "+" if d > 0 else "-", abs(d), total + d))
        total += d
    out.append(f"Answer: {name} ends with {total}.")
    return "\n".join(out)


def sequence(w: World) -> str:
    """Two arithmetic sequences side by side, their sums and differences."""
    a, b, s, t = w.number(1, 40), w.number(20, 90), w.small(1, 4), w.small(2, 5)
    out = [f"Let a(1) = {a} and a(n) = a(n-1) + {s}. Let b(1) = {b} and b(n) = b(n-1) + {t}. We list the terms."]
    tell = [
        lambda n, a, b: f"a({n}) = {a - s} + {s} = {a}, and b({n}) = {b - t} + {t} = {b}.",
        lambda n, a, b: f"For n = {n} the first sequence has {a} and the second {b}; their sum is {a + b}.",
        lambda n, a, b: f"Adding {s} to {a - s} gives a({n}) = {a}. Adding {t} to {b - t} gives b({n}) = {b}.",
        lambda n, a, b: f"Term {n}: {a} and {b}, so b({n}) - a({n}) = {b - a}.",
        lambda n, a, b: f"Pair {n} is ({a}, {b}). It exceeds the last pair by ({s}, {t}).",
        lambda n, a, b: f"Check n = {n}: a = {a} is {'even' if a % 2 == 0 else 'odd'}, b = {b} is {'even' if b % 2 == 0 else 'odd'}.",
        lambda n, a, b: f"With {n - 1} steps of {s} we reach a({n}) = {a}; with {n - 1} steps of {t} we reach {b}.",
        lambda n, a, b: f"Hence a({n}) + b({n}) = {a} + {b} = {a + b}.",
    ]
    steps = cycle(w, tell)
    for n in range(2, 20):
        out.append(next(steps)(n, a + s * (n - 1), b + t * (n - 1)))
    return "\n".join(out)


def bill(w: World) -> str:
    """Several buyers, counts times prices, a running sum."""
    things, prices, people = w.some(ITEMS, 9), [w.small(2, 5) for _ in range(9)], w.people(9)
    counts, total = [w.small(2, 9) for _ in range(9)], w.number(5, 60)
    out = [f"The box holds {total} coins. " + " ".join(f"({i}) {p} buys {n} {t}s at {c}." for i, (p, n, t, c) in enumerate(zip(people, counts, things, prices), 1)) + " How many coins are in the box?\n"]
    tell = [
        lambda i, p, n, t, c, m, a, b: f"({i}) {p} pays {n} x {c} = {m} for the {t}s. The box had {a}, so now {a} + {m} = {b}.",
        lambda i, p, n, t, c, m, a, b: f"({i}) Each {t} costs {c}. For {n} of them {p} gives {m} coins, and {a} grows to {b}.",
        lambda i, p, n, t, c, m, a, b: f"({i}) Here {n} {t}s at {c} make {m}. With the coins of {p} we count {a} + {m} = {b}.",
        lambda i, p, n, t, c, m, a, b: f"({i}) The {t}s of {p}: {c} times {n} is {m}. Add this to {a} and get {b}.",
        lambda i, p, n, t, c, m, a, b: f"({i}) {p} takes {n} {t}s. We multiply, {n} x {c} = {m}, then add, {a} + {m} = {b}.",
        lambda i, p, n, t, c, m, a, b: f"({i}) Because {p} bought {n} {t}s at {c}, we add {m} to {a} and reach {b}.",
        lambda i, p, n, t, c, m, a, b: f"({i}) What does {p} owe for every {t}? It is {n} x {c} = {m}. The sum was {a} and becomes {b}.",
    ]
    steps = cycle(w, tell)
    for i, (p, n, t, c) in enumerate(zip(people, counts, things, prices), 1):
        out.append(next(steps)(i, p, n, t, c, n * c, total, total + n * c))
        total += n * c
    out.append(f"Answer: the box holds {total} coins.")
    return "\n".join(out)


TYPES = (running, sequence, bill)
