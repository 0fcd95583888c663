"""Conversations: an agenda, a shopping list, a lesson. The speakers alternate and work down a numbered list."""
from __future__ import annotations

from .world import DAYS, ITEMS, PLACES, World, article, cycle, listed


def meeting(w: World) -> str:
    """Two speakers go through an agenda; every item costs something and the budget falls."""
    a, b, *owners = w.people(12)
    places, money, costs = w.some(PLACES, 10), w.number(120, 400), [w.small(2, 9) for _ in range(10)]
    town, day = w.towns(1)[0], w.start(7)
    out = [f"Meeting at {town}. Present: {a} and {b}. Budget: {money}. Agenda: "
           + ", ".join(f"{i} {p} {c} ({o})" for i, (p, c, o) in enumerate(zip(places, costs, owners), 1)) + ".\n"]
    tell = [
        lambda s, t, i, p, c, o, m, d: f"{s}: Item {i} is the {p}. Who looks after it?\n{t}: {o} does. We pay {c}, so the budget is {m}, and work begins on {d}.",
        lambda s, t, i, p, c, o, m, d: f"{s}: On to item {i}, please. {o} wrote to me about the {p}.\n{t}: I know, it costs {c}. Shall we say {d}? That leaves {m}.",
        lambda s, t, i, p, c, o, m, d: f"{s}: What about the {p}, item {i}?\n{t}: People are {PLACES[p][0]} there until {d}. {o} needs {c} and I would give it. Then {m} is left.",
        lambda s, t, i, p, c, o, m, d: f"{s}: Item {i} worries me. At the {p} {PLACES[p][1]}.\n{t}: Leave that to {o}. With {c} it can be done before {d}, and we still hold {m}.",
        lambda s, t, i, p, c, o, m, d: f"{s}: Next, number {i}, the {p}. I suggest {d}.\n{t}: Good. {o} has asked for {c}; write {m} in the book.",
        lambda s, t, i, p, c, o, m, d: f"{s}: Can {o} come on {d} for item {i}?\n{t}: Yes, if the {p} gets its {c}. After that the money stands at {m}.",
        lambda s, t, i, p, c, o, m, d: f"{s}: {o} promised {PLACES[p][2]} for the {p}; that is item {i}.\n{t}: A fair offer at {c}. I make it {m} now, payable on {d}.",
    ]
    steps = cycle(w, tell)
    for i, (p, c, o) in enumerate(zip(places, costs, owners), 1):
        money -= c
        s, t = (a, b) if i % 2 else (b, a)
        out.append(next(steps)(s, t, i, p, c, o, money, DAYS[(day + i) % 7]))
    out.append(f"{a}: That was the last item. We close with {money}.\n{b}: Thank you, {a}.")
    return "\n".join(out)


def market(w: World) -> str:
    """A buyer reads a list with prices to a seller and the bill grows."""
    a, b = w.people(2)
    things, prices, total = w.some(ITEMS, 12), [w.small(2, 9) for _ in range(12)], w.number(3, 40)
    out = [f"{a} buys from {b}. Old debt: {total}. The list: " + ", ".join(f"{i} {t} at {p}" for i, (t, p) in enumerate(zip(things, prices), 1)) + ".\n"]
    tell = [
        lambda i, t, p, s: f"{a}: Number {i}: do you have {article(t)}?\n{b}: This {t} is the best in town, and only {p}. You owe me {s}.",
        lambda i, t, p, s: f"{a}: I also want {i}, the {t}.\n{b}: For you, {p}. Let me add that: {s}.",
        lambda i, t, p, s: f"{a}: And what does the {t} cost?\n{b}: As you wrote under {i}, it costs {p}, which brings us to {s}.",
        lambda i, t, p, s: f"{a}: My sister needs {article(t)} too, line {i}.\n{b}: Take this one. With {p} more the bill is {s}.",
        lambda i, t, p, s: f"{a}: Then comes {i}. Is the {t} new?\n{b}: New and polished! I ask {p} for it, {s} altogether.",
        lambda i, t, p, s: f"{a}: Show me the {t}, please. It is {i} here.\n{b}: Mind the edge. It is yours for {p}; I write {s}.",
        lambda i, t, p, s: f"{a}: We are at {i} now.\n{b}: The {t}, of course. The price is still {p}, the sum is {s}.",
        lambda i, t, p, s: f"{a}: Could you wrap the {t} of line {i}?\n{b}: Gladly. {p} for the goods, nothing for the paper: {s}.",
    ]
    steps = cycle(w, tell)
    for i, (t, p) in enumerate(zip(things, prices), 1):
        total += p
        out.append(next(steps)(i, t, p, total))
    out.append(f"{a}: Here are {total}. Good day, {b}.")
    return "\n".join(out)


def lesson(w: World) -> str:
    """A teacher asks a class in turn about a numbered list of facts."""
    teacher, *pupils = w.people(6)
    towns, places, year = w.towns(12), w.some(PLACES, 12), w.number(100, 700)
    years = [year := year + w.small(2, 9) for _ in towns]
    out = [f"{teacher} teaches {listed(pupils)}. On the board: "
           + ", ".join(f"{i} {t} {p} {y} ({pupils[(i - 1) % 5]})" for i, (t, p, y) in enumerate(zip(towns, places, years), 1)) + ".\n"]
    tell = [
        lambda i, t, p, y, s: f"{teacher}: {s}, please read line {i}.\n{s}: {t} built its {p} in {y}.",
        lambda i, t, p, y, s: f"{teacher}: What do we see in line {i}, {s}?\n{s}: The {p} of {t}. The year was {y}.",
        lambda i, t, p, y, s: f"{teacher}: Good. And where were people {PLACES[p][0]} in {y}, {s}?\n{s}: At the {p} in {t}, says line {i}.",
        lambda i, t, p, y, s: f"{teacher}: Line {i} is hard. {s}, when was it?\n{s}: In {y} they opened the {p} at {t}.",
        lambda i, t, p, y, s: f"{teacher}: Tell us about {t}, {s}.\n{s}: It is number {i}. Since {y} its {p} has sold {PLACES[p][2]}.",
        lambda i, t, p, y, s: f"{teacher}: Who knows {i}? Yes, {s}.\n{s}: I do. {PLACES[p][1].capitalize()} in {t}; that is the {p} of {y}.",
        lambda i, t, p, y, s: f"{teacher}: Now {s} with number {i}.\n{s}: {y}, {t}, the {p}. Was that right?",
        lambda i, t, p, y, s: f"{teacher}: Which town had its {p} by {y}?\n{s}: {t} had one. I found it in line {i}, {teacher}.",
    ]
    steps = cycle(w, tell)
    for i, (t, p, y) in enumerate(zip(towns, places, years), 1):
        out.append(next(steps)(i, t, p, y, pupils[(i - 1) % 5]))
    out.append(f"{teacher}: Well done, all of you. {years[-1]} was the last year.")
    return "\n".join(out)


TYPES = (meeting, market, lesson)
