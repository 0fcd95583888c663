"""JSON and CSV files of any size, read piece by piece; whatever is wrong with one is a sentence.

Memory holds one chunk and the value being decoded. NaN and infinite numbers, which strict JSON has none of, become None and
are counted. Refused: a key twice in one object, nesting that no decoder follows, whole numbers beyond 64 bits, text that is
no UTF-8, values above :data:`LARGEST`, files that end too early.
"""
from __future__ import annotations

import codecs
import csv
import json
import math
import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import BadInput

CHUNK, LARGEST = 1 << 16, 1 << 26  # bytes read at once; letters of one value
NEAR = 64  # letters before the end of what was read within which an error may come from the cut
SPACE = re.compile(r"[ \t\r\n]*")
WORDS = ("", "true", "false", "null", "NaN", "Infinity", "-Infinity")
TEXT = ("arm", "category", "checkpoint")  # columns of a CSV file that hold names; the others hold numbers
MAY_BE_EMPTY = ("speedup_vs_ar", "decode_speedup_vs_ar", "context_length", "max_tokens", "acc_plus_2", "acc_plus_3", "required_per_slot_accept")
# the most that each count may be
COUNTS = dict.fromkeys(("rows", "cycles", "n", "step"), 10_000_000) | dict.fromkeys(("j", "accepted", "accepted_specs", "K", "bin", "quintile"), 1000)
REMEDY = "fetch the file again, or take it out of the folder"


def open_plain(path: Path, where: str) -> BinaryIO:
    """``path`` opened without following a link, if it is a plain file. Raises BadInput."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BadInput(f"{where} cannot be read ({error.strerror}); {REMEDY}.") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadInput(f"{where} is no plain file; {REMEDY}.")
    return os.fdopen(handle, "rb")


class Reader:
    """The top-level object of one JSON file. ``odd`` counts the numbers that were not finite, ``last_odd`` those of the last value, ``rows`` the whole elements read."""

    def __init__(self, file: BinaryIO, where: str):
        self.file, self.where, self.odd, self.rows = file, where, 0, 0
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text, self._at, self._before, self._ended, self.last_odd = "", 0, 0, False, 0
        self._scan = json.JSONDecoder(object_pairs_hook=self._pairs, parse_constant=self._constant, parse_float=self._float, parse_int=self._int).raw_decode

    # --- what the decoder makes of numbers and objects ---

    def _constant(self, _: str) -> None:
        self.last_odd += 1

    def _float(self, text: str) -> float | None:
        value = float(text)
        return value if math.isfinite(value) else self._constant(text)

    def _int(self, text: str) -> int:
        if len(text) > 19 or abs(int(text)) >= 1 << 63:
            raise self.wrong(f"holds a whole number beyond 64 bits near letter {self._before + self._at}")
        return int(text)

    def _pairs(self, items: list[tuple[str, Any]]) -> dict:
        value = dict(items)
        if len(value) < len(items):
            keys = [k for k, _ in items]
            raise self.wrong(f"holds the key {next(k for k in keys if keys.count(k) > 1)!a} twice in one object")
        return value

    # --- text ---

    def wrong(self, what: str) -> BadInput:
        return BadInput(f"{self.where} {what}; {REMEDY}.")

    def short(self) -> BadInput:
        return self.wrong(f"ends too early, after {counted(self.rows)}")

    def bad(self, why: str, at: int) -> BadInput:
        return self.wrong(f"is not JSON ({why} at letter {self._before + at}, after {counted(self.rows)})")

    def _more(self, size: int) -> None:
        data = None
        try:
            data = self.file.read(size)
            new = self._decode(data, final=not data)
        except UnicodeDecodeError:
            raise (self.wrong("is no UTF-8 text") if data else self.short()) from None
        except OSError as error:
            raise self.wrong(f"cannot be read ({error.strerror})") from None
        self._ended = not data
        self._before += self._at
        self._text, self._at = self._text[self._at :] + new, 0

    def _next(self) -> str:
        """The next letter that is no space, not taken; "" at the end of the file."""
        while True:
            self._at = SPACE.match(self._text, self._at).end()
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._more(CHUNK)

    def _take(self, *expected: str) -> str:
        found = self._next()
        if found == "" != expected[-1]:
            raise self.short()
        if found not in expected:
            raise self.bad(f"{found!a} where {' or '.join(map(repr, expected))} belongs", self._at)
        self._at += len(found)
        return found

    def _value(self) -> Any:
        self._next()
        while True:
            self.last_odd = 0
            try:
                value, end = self._scan(self._text, self._at)
                if end < len(self._text) or self._ended:
                    self._at = end
                    self.odd += self.last_odd
                    return value
            except json.JSONDecodeError as error:
                unsure = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - NEAR
                if not unsure:
                    raise self.bad(error.msg, error.pos) from None
                if self._ended:
                    tail = self._text[error.pos :].strip()
                    cut = any(word.startswith(tail) for word in WORDS) or error.msg.startswith(("Unterminated", "Invalid \\u"))
                    raise (self.short() if cut else self.bad(error.msg, error.pos)) from None
            except RecursionError:
                raise self.wrong(f"is nested too deeply near letter {self._before + self._at}") from None
            waiting = len(self._text) - self._at
            if waiting > LARGEST:
                raise self.wrong(f"holds a value of more than {LARGEST >> 20} million letters")
            self._more(max(CHUNK, waiting))  # twice as much each time, so that a long value is scanned a few times only

    # --- the object ---

    def items(self, lists: Collection[str] = ("rows",)) -> Iterator[tuple[str, Any]]:
        """(key, value) in file order; a list under a key of ``lists`` comes element by element, as (key, element)."""
        if self._next() == "":
            raise self.short()
        keys: set[str] = set()
        for _ in self._until("{", "}"):
            if self._next() not in ('"', ""):
                raise self.bad("no key in quotes", self._at)
            key = self._value()
            if key in keys:
                raise self.wrong(f"holds the key {key!a} twice in one object")
            keys.add(key)
            self._take(":")
            if key not in lists:
                yield key, self._value()
                continue
            if self._next() not in ("[", ""):
                raise self.wrong(f"has no list at {key}")
            for _ in self._until("[", "]"):
                value = self._value()
                self.rows += 1
                yield key, value
        if self._next() != "":
            raise self.bad("more text after the end of the object", self._at)

    def _until(self, first: str, last: str) -> Iterator[None]:
        """One turn for each thing that stands between the brackets, separated by commas."""
        self._take(first)
        if self._next() == last:
            self._take(last)
            return
        yield
        while self._take(",", last) == ",":
            yield


def counted(rows: int) -> str:
    return f"{rows} whole row{'s' * (rows != 1)}"


def table(file: BinaryIO, where: str, columns: Collection[str]) -> Iterator[tuple[dict, int]]:
    """The lines of a CSV file as dictionaries of float, int, bool, text or None, each with its count of numbers that are not finite (None then).

    The last line must end in a line break: one that does not has been cut. Raises BadInput for a line that lacks a cell of ``columns``, or holds text
    where they have numbers.
    """

    def wrong(what: str) -> BadInput:
        return BadInput(f"{where} {what}; {REMEDY}.")

    def lines() -> Iterator[str]:
        for number, data in enumerate(iter(lambda: file.readline(CHUNK), b""), 1):
            if not data.endswith(b"\n"):
                raise wrong(f"ends too early, after {counted(max(0, number - 2))}")
            try:
                yield data.decode("utf-8")
            except UnicodeDecodeError:
                raise wrong(f"is no UTF-8 text at line {number}") from None

    reader = csv.reader(lines(), strict=True)
    try:
        head = next(reader, [])
        if absent := [c for c in columns if c not in head]:
            raise wrong(f"has no column {absent[0]!r}")
        if len(set(head)) < len(head):
            raise wrong("has a column twice")
        for line in reader:
            if len(line) != len(head):
                raise wrong(f"has {len(line)} cells for {len(head)} columns at line {reader.line_num}")
            entry = dict(zip(head, map(cell, line)))
            if odd := next((c for c in columns if not fits(c, entry[c])), None):
                raise wrong(f"has {entry[odd]!a} in the column {odd!r} at line {reader.line_num}")
            infinite = [c for c, v in entry.items() if isinstance(v, float) and not math.isfinite(v)]
            yield entry | dict.fromkeys(infinite), len(infinite)
    except csv.Error as error:
        raise wrong(f"is no CSV at line {reader.line_num} ({error})") from None


def fits(column: str, value: Any) -> bool:
    if value is None:
        return column in MAY_BE_EMPTY
    if column in COUNTS:
        return type(value) is int and 0 <= value <= COUNTS[column]
    return isinstance(value, str) == (column in TEXT)


def cell(text: str) -> Any:
    """A CSV cell as a number where it is one, None where it is empty."""
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text
