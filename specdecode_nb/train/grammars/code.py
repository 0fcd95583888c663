"""Program text: a class over declared fields, functions with tests, SQL over a declared table."""
from __future__ import annotations

from .world import FIELDS, ITEMS, MODULES, World, cycle


def record_class(w: World) -> str:
    """A Python class: the fields are declared once, then every field gets methods in the declared order."""
    fields, name = w.some(FIELDS, 8), w.people(1)[0]
    start, step = w.number(1, 60), w.small(1, 5)
    values = [start + step * i for i in range(8)]
    low = name.lower()
    out = [f'"""Module {low}: fields ' + ", ".join(f"{i} {f}" for i, f in enumerate(fields, 1)) + '."""\n\n\n'
           f"class {name}:\n    def __init__(self, " + ", ".join(f"{f}={v}" for f, v in zip(fields, values)) + "):\n"
           + "\n".join(f"        self.{f} = {f}" for f in fields)]
    methods = [
        lambda f, g, v: f"    def get_{f}(self):\n        return self.{f}",
        lambda f, g, v: f"    def set_{f}(self, value):\n        if value < {v}:\n            raise ValueError(\"{f} must be at least {v}\")\n        self.{f} = value",
        lambda f, g, v: f"    def {f}_and_{g}(self):\n        \"\"\"Both {f} and {g}, in this order.\"\"\"\n        return (self.{f}, self.{g})",
        lambda f, g, v: f"    def raise_{f}(self, step={v}):\n        self.{f} += step\n        return self.{g}",
        lambda f, g, v: f"    def has_{f}(self):\n        return self.{f} is not None and self.{g} > {v}",
        lambda f, g, v: f"    def {f}_over(self, other):\n        # compares {f} first, then {g}\n        return self.{f} > other.{f} or self.{g} > {v}",
        lambda f, g, v: f"    @property\n    def {f}_text(self):\n        return f\"{f} {{self.{f}}} of {v}\"",
        lambda f, g, v: f"    def reset_{f}(self):\n        old, self.{f} = self.{f}, {v}\n        print(\"{g}\", old)",
    ]
    steps = cycle(w, methods)
    for i, f in enumerate(fields):
        out.append(next(steps)(f, fields[(i + 1) % 8], values[i]))
    tests = [f"def test_{f}():\n    {low} = {name}({f}={v})\n    assert {low}.{f} == {v}" for f, v in list(zip(fields, values))[:4]]
    return "\n\n".join(out) + "\n\n\n" + "\n\n\n".join(tests)


def functions(w: World) -> str:
    """Small functions named by their constant, each followed by a test whose value is computed."""
    names, n, x = w.some(MODULES, 10), w.number(2, 30), w.number(1, 40)
    step = w.small(1, 4)
    out = ["# steps: " + ", ".join(f"{i} {m} {n + step * (i - 1)}" for i, m in enumerate(names, 1)) + f"\n\nSTART = {x}"]
    make = [
        lambda i, m, k, x: f"def {m}_{i}(x):\n    \"\"\"Add {k}.\"\"\"\n    return x + {k}\n\n\nassert {m}_{i}({x}) == {x + k}",
        lambda i, m, k, x: f"def {m}_{i}(items, limit={k}):\n    return [item for item in items if item < limit]\n\n\nassert {m}_{i}([{k - 1}, {k + 1}]) == [{k - 1}]",
        lambda i, m, k, x: f"def {m}_{i}(text):\n    # at most {k} letters\n    return text[:{k}].strip()\n\n\nassert len({m}_{i}(\"{m}\" * {k})) == {k}",
        lambda i, m, k, x: f"def {m}_{i}(x, y={k}):\n    if x > y:\n        return x - y\n    return {k}\n\n\nprint({m}_{i}({x + k}))  # {x}",
        lambda i, m, k, x: f"def {m}_{i}(table):\n    for key, value in table.items():\n        table[key] = value + {k}\n    return table\n\n\nassert {m}_{i}({{\"{m}\": {x}}})[\"{m}\"] == {x + k}",
        lambda i, m, k, x: f"def {m}_{i}(values):\n    total = {k}\n    for value in values:\n        total += value\n    return total\n\n\nassert {m}_{i}([1, 2]) == {k + 3}",
        lambda i, m, k, x: f"class {m.capitalize()}Error(Exception):\n    code = {k}\n\n\ndef {m}_{i}():\n    raise {m.capitalize()}Error(\"{m} failed with {k}\")",
        lambda i, m, k, x: f"def {m}_{i}(path):\n    with open(path) as file:\n        lines = file.readlines()\n    return lines[{k}:{k + x}]\n\n\nassert callable({m}_{i})",
    ]
    steps = cycle(w, make)
    for i, m in enumerate(names, 1):
        out.append(next(steps)(i, m, n + step * (i - 1), x))
        x += 1
    return "\n\n\n".join(out)


def sql(w: World) -> str:
    """A table, rows with rising ids, then queries over the declared columns in order."""
    c, (table,) = w.some(FIELDS, 4), w.some(ITEMS, 1)
    names, n = w.people(10), w.number(10, 400)
    step, amount = w.small(1, 5), w.number(2, 40)
    out = [f"CREATE TABLE {table}s (\n    id INTEGER PRIMARY KEY,\n    " + ",\n    ".join(f"{f} {'TEXT' if i == 0 else 'INTEGER'}" for i, f in enumerate(c)) + "\n);\n-- by the last digit of the id: " + ", ".join(f"{i} {p}" for i, p in enumerate(names))]
    make = [
        lambda i, p, v: f"INSERT INTO {table}s (id, {c[0]}, {c[1]}) VALUES ({i}, '{p}', {v});",
        lambda i, p, v: f"UPDATE {table}s SET {c[2]} = {v} WHERE id = {i} AND {c[0]} = '{p}';",
        lambda i, p, v: f"SELECT {c[0]}, {c[3]} FROM {table}s WHERE {c[1]} > {v} ORDER BY id LIMIT {i}; -- for {p}",
        lambda i, p, v: f"-- row {i} for {p}\nSELECT * FROM {table}s WHERE id = {i} OR {c[3]} = {v};",
        lambda i, p, v: f"INSERT INTO {table}s VALUES ({i}, '{p}', {v}, {v + step}, {v + i});",
        lambda i, p, v: f"DELETE FROM {table}s WHERE id <> {i} AND {c[0]} = '{p}' AND {c[2]} < {v};",
        lambda i, p, v: f"SELECT COUNT(*) AS {c[1]}_{i} FROM {table}s WHERE {c[1]} BETWEEN {v} AND {v + i}; -- {p}",
        lambda i, p, v: f"UPDATE {table}s SET {c[3]} = {c[3]} + {v} WHERE id > {i} AND {c[0]} <> '{p}';",
        lambda i, p, v: f"CREATE INDEX {table}_{i} ON {table}s ({c[1]}, {c[2]}); -- {p}, size {v}",
    ]
    steps = cycle(w, make)
    for k in range(22):
        out.append(next(steps)(n + k, names[(n + k) % 10], amount + step * k))
    return "\n".join(out)


TYPES = (record_class, functions, sql)
