"""Errors that a user can act on."""
from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """One sentence that names the value and the remedy; commands print it and exit with status 2."""


class RunFailed(RuntimeError):
    """An Act stopped while running; one sentence that names Act, cell and reason."""


def nearest(name: object, choices: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the closest of ``choices``, or nothing."""
    close = difflib.get_close_matches(str(name), list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def flag(name: str, value) -> bool:
    """``value``, which must be True or False. Raises BadInput."""
    if not isinstance(value, bool):
        raise BadInput(f"{name} is {value!r}; give True or False.")
    return value
