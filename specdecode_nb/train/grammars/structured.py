"""Records with rising ids: JSON lines, CSV, YAML, INI. A key at the top says what belongs to each last digit of an id."""
from __future__ import annotations

from .world import COLOURS, DAYS, ITEMS, MODULES, PLACES, World


def json_lines(w: World) -> str:
    n, total, step = w.number(100, 900), w.number(10, 90), w.small(1, 6)
    names, places, items = w.people(10), w.some(PLACES, 10), w.some(ITEMS, 10)
    keys = w.r.choice([("name", "place", "item", "total"), ("owner", "from", "sends", "sum"), ("person", "stop", "thing", "count")])
    out = ["{" + ", ".join(f'"{i}": "{p} {x} {t}"' for i, (p, x, t) in enumerate(zip(names, places, items))) + "}"]
    for i in range(w.small(15, 18)):
        d = (n + i) % 10
        out.append(f'{{"id": {n + i}, "{keys[0]}": "{names[d]}", "{keys[1]}": "{places[d]}", "{keys[2]}": "{items[d]}", "{keys[3]}": {total + step * i}}}')
    return "\n".join(out)


def csv_table(w: World) -> str:
    n, balance, step = w.number(10, 300), w.number(50, 400), w.small(2, 9)
    names, items, colours, day = w.people(10), w.some(ITEMS, 10), w.some(COLOURS, 10), w.start(7)
    out = ["# " + ", ".join(f"{i} {p} {t} {c}" for i, (p, t, c) in enumerate(zip(names, items, colours))), "row,day,name,item,colour,change,balance"]
    for i in range(w.small(22, 26)):
        change, d = step + i % 3, (n + i) % 10
        balance += change
        out.append(f"{n + i},{DAYS[(day + i) % 7]},{names[d]},{items[d]},{colours[d]},{change},{balance}")
    return "\n".join(out)


def yaml_hosts(w: World) -> str:
    port, names, modules, places = w.number(200, 800), w.people(10), w.some(MODULES, 10), w.some(PLACES, 10)
    first, step, limit, town = w.number(1, 40), w.small(1, 7), w.number(10, 80), w.towns(1)[0].lower()
    out = [f"site: {town}\nkeys:\n" + "\n".join(f"  {i}: {m} {p} {x}" for i, (m, p, x) in enumerate(zip(modules, names, places))) + "\nservices:"]
    for i in range(w.small(12, 15)):
        n, d = first + i, (first + i) % 10
        extra = [f"    after: {modules[(d - 1) % 10]}-{n - 1}\n    limit: {limit + i}", f"    path: /{places[d]}/{n}\n    retry: {i % 4 + 2}",
                 f"    limit: {limit + i}\n    room: {places[d]}", f"    tags: [{places[d]}, n{n}]", f"    path: /{modules[d]}/{limit + i}\n    room: {places[d]}"][i % 5]
        out.append(f"  - id: {n}\n    name: {modules[d]}-{n}\n    port: {port + step * i}\n    owner: {names[d]}\n{extra}")
    return "\n".join(out)


def ini(w: World) -> str:
    n, names, items, modules = w.number(1, 50), w.people(10), w.some(ITEMS, 10), w.some(MODULES, 10)
    size, colours = w.number(20, 300), w.some(COLOURS, 10)
    out = ["; last digit of the section: " + ", ".join(f"{i} {m} {p} {t} {c}" for i, (m, p, t, c) in enumerate(zip(modules, names, items, colours))) + "\n"]
    for i in range(w.small(13, 16)):
        d, k = (n + i) % 10, size + 4 * i
        m, p, t, c = modules[d], names[d], items[d], colours[d]
        body = [f"owner = {p}\nsize = {k}\nuses = {t}, {c}", f"uses = {t}\nsize = {k}\ncolour = {c}\nnext = {n + i + 1}.{modules[(d + 1) % 10]}",
                f"size = {k}\nowner = {p}\npath = {m}/{t}", f"colour = {c}\nfile = {t}{n + i}.txt\nsize = {k}"][i % 4]
        out.append(f"[{n + i}.{m}]\n{body}\n")
    return "\n".join(out)


TYPES = (json_lines, csv_table, yaml_hosts, ini)
