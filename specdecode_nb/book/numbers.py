"""Numbers of prose and papers: kept raw with unit and origin, formatted where they are used."""
from __future__ import annotations

import json
import re
from pathlib import Path

from ..errors import BadInput, nearest
from ..records import unfit, parse, read_text, write_atomic
from .tables import latex

DIGITS = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
NAME = re.compile(r"[a-z][a-z0-9_]*")
FIELDS = {"value", "text", "unit", "source"}
USE = re.compile(r"\[\[([^\[\]]*)\]\]")


def macro(key: str) -> str:
    r"""The LaTeX command of a number: ``act4s.k4_speedup`` is ``\ActFourSKFourSpeedup``."""
    parts = re.findall(r"\d|[a-z]+", key.lower())
    return "\\" + "".join(DIGITS[int(p)] if p.isdigit() else p.capitalize() for p in parts)


class Numbers:
    """The numbers of one Act, each under ``<act>.<name>``."""

    def __init__(self, act: str):
        self.act, self.items = act, {}

    def record(self, name: str, value: float | int | str, fmt: str = "", unit: str = "", source: str = "") -> str:
        """Keep a value and return it formatted. The same name again with anything else is an error."""
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a number; use lower case, digits and underscores.")
        value = value.item() if hasattr(value, "item") else value
        if type(value) not in (int, float, str) or unfit(value):
            raise ValueError(f"The number {name!r} is {value!r}; record a finite number or a text.")
        item = {"value": value, "text": format(value, fmt), "unit": unit, "source": source}
        if self.items.setdefault(f"{self.act}.{name}", item) != item:
            raise ValueError(f"The number {name!r} is recorded twice with different contents.")
        return item["text"]

    def text(self, name: str) -> str:
        """A recorded number as text. Raises BadInput with the nearest name."""
        key = f"{self.act}.{name}"
        if key not in self.items:
            raise BadInput(f"There is no number {name!r} in {self.act}{nearest(key, self.items)}; record it before it is used.")
        return self.items[key]["text"]

    def fill(self, prose: str) -> str:
        """``prose`` with every ``[[name]]`` replaced by the number of that name."""
        return USE.sub(lambda use: self.text(use[1].strip()), prose)


def write(folder: Path, act: str, items: dict) -> list[str]:
    """Put the numbers of ``act`` into numbers.json and numbers.tex of ``folder``; the other Acts keep theirs."""
    path = folder / "numbers.json"
    others = {k: v for k, v in load(path).items() if not k.startswith(f"{act}.")}
    every = others | items
    write_atomic(path, canonical(every))
    write_atomic(folder / "numbers.tex", as_latex(every))
    return ["numbers.json", "numbers.tex"]


def canonical(items: dict) -> str:
    """The text of numbers.json, in the order of names."""
    return json.dumps(dict(sorted(items.items())), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def load(path: Path) -> dict:
    """The numbers of a numbers.json by name; none without the file. Raises BadInput for anything else than such a file."""
    items = parse(read_text(path, "file of numbers"), path.name) if path.exists() else {}
    odd = "the top" if not isinstance(items, dict) else next((key for key, item in items.items() if not isinstance(item, dict) or set(item) != FIELDS
                                                              or not all(isinstance(item[f], str) for f in FIELDS - {"value"})), None)
    if odd is not None:
        raise BadInput(f"{path.name} is no record of numbers at {odd}; restore it, or remove it and run `specdecode-nb build`.")
    return items


def as_latex(every: dict) -> str:
    r"""One ``\newcommand`` a number. Two names with one macro are an error."""
    macros: dict[str, str] = {}
    for key in sorted(every):
        if macros.setdefault(macro(key), key) != key:
            raise ValueError(f"The numbers {macros[macro(key)]!r} and {key!r} have the same LaTeX name {macro(key)}; rename one.")
    lines = [f"\\newcommand{{{name}}}{{{latex(every[key]['text'])}}} % {key}{' in ' + every[key]['unit'] if every[key]['unit'] else ''}"
             for name, key in macros.items()]
    return "% made from numbers.json\n" + "\n".join(lines) + "\n"
