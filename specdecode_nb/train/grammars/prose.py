"""Stories: a journey with a plan, a keeper's diary, a chain of gifts."""
from __future__ import annotations

from .world import COLOURS, DAYS, ITEMS, ORDINALS, PLACES, World, cycle


def journey(w: World) -> str:
    """Two travellers visit a numbered list of places and give away what they carry."""
    a, b, *hosts = w.people(12)
    town, home = w.towns(2)
    places = w.some(PLACES, 10)
    goods = w.r.choice(["apples", "candles", "eggs", "letters", "buns", "ribbons"])
    gifts = [w.small(2, 4) for _ in places]
    left = w.number(40, 99)
    out = [f"The Road to {town}\n\n{a} and {b} left {home} with {left} {goods}. The plan was short: "
           + ", ".join(f"{i} {p} with {k} for {h}" for i, (p, h, k) in enumerate(zip(places, hosts, gifts), 1)) + "."]
    tell = [
        lambda n, p, h, k, l: f"Stop {n} was the {p}, where {PLACES[p][1]}. {h} was {PLACES[p][0]} and did not look up. {a} put down {k} {goods} and counted {l} that were left.",
        lambda n, p, h, k, l: f"They came to stop {n}, the {p}, before noon. \"You are early,\" said {h}, still {PLACES[p][0]}. {b} laughed and handed over {k}, so {l} {goods} went on.",
        lambda n, p, h, k, l: f"Rain fell on the way to stop {n}. At the {p} {PLACES[p][1]}, and {h} gave them {PLACES[p][2]} in return for {k} {goods}. Now the basket held {l}.",
        lambda n, p, h, k, l: f"Nobody answered at stop {n}, so {a} walked round the {p} and found {h} {PLACES[p][0]}. For the trouble {h} took {k} and left them {l}.",
        lambda n, p, h, k, l: f"{b} had never seen stop {n}. Here {PLACES[p][1]}, and beside the {p} sat {h}, tired of {PLACES[p][0]}. After a gift of {k} {goods} there were {l}.",
        lambda n, p, h, k, l: f"By stop {n} the light was going. {h} opened the door of the {p} and asked for {k} {goods}. \"Then we keep {l},\" said {a}, and wrote it down.",
        lambda n, p, h, k, l: f"Stop {n} lay behind a wall. Over it they heard {h} at the {p}, {PLACES[p][0]} and singing. {b} left {k} on the step, which made {l} in all.",
        lambda n, p, h, k, l: f"The road turned, and stop {n} was in sight: the {p}, as {a} had said. {h} offered {PLACES[p][2]} and received {k} {goods}; they still had {l}.",
        lambda n, p, h, k, l: f"It was quiet at stop {n}. In the {p} {PLACES[p][1]}. {h} thanked {b} for the {k} {goods}, and {l} were packed again.",
    ]
    steps = cycle(w, tell)
    for n, (p, h, k) in enumerate(zip(places, hosts, gifts), 1):
        left -= k
        out.append(next(steps)(n, p, h, k, left))
    out.append(f"So {a} and {b} reached {town} with {left} {goods}, and slept well.")
    return "\n\n".join(out)


def diary(w: World) -> str:
    """A keeper's log: the day, the visitor and the falling stock change with every entry."""
    keeper, *guests = w.people(11)
    town = w.towns(1)[0]
    places = w.some(PLACES, 10)
    oil, day, weekday = w.number(70, 190), w.number(1, 40), w.start(7)
    step = w.small(2, 5)
    out = [f"The Diary of {keeper}, Keeper at {town}\n\nThe lamp burns {step} jars of oil a night. The last figure of the day names the guest: "
           + ", ".join(f"{i} {g} from the {p}" for i, (g, p) in enumerate(zip(guests, places))) + "."]
    tell = [
        lambda d, wd, g, p, o: f"Day {d}, {wd}. Wind from the north. {g} came up the stairs with news of the {p}, where {PLACES[p][1]}. Oil: {o} jars.",
        lambda d, wd, g, p, o: f"Day {d}, {wd}. Clear sky at last. I walked to the {p} and saw {g} {PLACES[p][0]}. When I came home there were {o} jars.",
        lambda d, wd, g, p, o: f"Day {d}, {wd}. Fog until evening, and {g} lost the path near the {p}. We drank tea and measured {o} jars of oil.",
        lambda d, wd, g, p, o: f"Day {d}, {wd}. A letter from {g}: at the {p} {PLACES[p][1]}. I read it twice, trimmed the lamp and wrote down {o}.",
        lambda d, wd, g, p, o: f"Day {d}, {wd}. Heavy rain. {g} brought {PLACES[p][2]} from the {p} and would take no money. The store now holds {o} jars.",
        lambda d, wd, g, p, o: f"Day {d}, {wd}. I dreamed of the {p} and woke late. {g} had filled the lamp for me, which leaves {o} jars.",
        lambda d, wd, g, p, o: f"Day {d}, {wd}. Two ships passed before dawn. {g} waved from the {p}, tired of {PLACES[p][0]}. I count {o} jars tonight.",
        lambda d, wd, g, p, o: f"Day {d}, {wd}. Snow on the roof. The road to the {p} is closed, so {g} stayed here and told stories. Oil down to {o}.",
    ]
    steps = cycle(w, tell)
    for n in range(w.small(11, 14)):
        oil -= step
        out.append(next(steps)(day + n, DAYS[(weekday + n) % 7], guests[(day + n) % 10], places[(day + n) % 10], oil))
    return "\n\n".join(out)


def chain(w: World) -> str:
    """A ring of friends: each passes a thing on to the next and the tale moves from place to place."""
    people, places, things, colours = w.people(9), w.some(PLACES, 9), w.some(ITEMS, 9), w.some(COLOURS, 9)
    town = w.towns(1)[0]
    hour = w.start(4)
    out = [f"The Ring of {town}\n\nNine friends made a promise, and each hid one thing: "
           + ", ".join(f"{p} the {c} {t} at the {x}" for p, c, t, x in zip(people, colours, things, places)) + "."]
    tell = [
        lambda o, p, c, t, x, q: f"The {o} to move was {p}. Down at the {x}, where {PLACES[x][1]}, the {c} {t} was still in its place. {p} took it and ran to find {q}.",
        lambda o, p, c, t, x, q: f"{p} went {o}. \"I am only {PLACES[x][0]},\" said {p} to the people at the {x}, and slipped the {c} {t} into a sleeve for {q}.",
        lambda o, p, c, t, x, q: f"Then the {o} bell rang. From the {x} came {p} with the {c} {t} wrapped in cloth, and {q} stood waiting at the corner.",
        lambda o, p, c, t, x, q: f"For the {o} time a door opened. In the {x} {PLACES[x][1]}; {p} reached behind the wall, felt the {c} {t} and called softly to {q}.",
        lambda o, p, c, t, x, q: f"It was the {o} hour, and {p} was afraid. The {c} {t} had fallen between two stones by the {x}. With a stick {p} drew it out, and {q} cheered.",
        lambda o, p, c, t, x, q: f"The {o} turn was easy. {p} had spent the day at the {x}, {PLACES[x][0]}, and simply carried the {c} {t} home past {q}.",
        lambda o, p, c, t, x, q: f"A dog barked at the {o} friend. It was {p}, coming back from the {x} with {PLACES[x][2]} in one hand and the {c} {t} in the other. \"Your turn,\" {p} told {q}.",
        lambda o, p, c, t, x, q: f"Who was {o}? {p} was. Near the {x} the {c} {t} shone in the grass, and before the rain began {q} had it too.",
    ]
    steps = cycle(w, tell)
    for n in range(9):
        out.append(next(steps)(ORDINALS[n], people[n], colours[n], things[n], places[n], people[(n + 1) % 9]))
    out.append(f"In the end {people[0]} laid all the things in a row at {ORDINALS[hour]} light, and {town} was quiet.")
    return "\n\n".join(out)


TYPES = (journey, diary, chain)
