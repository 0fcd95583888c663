"""Where things are in the repository, from any working directory."""
from __future__ import annotations

import os
import re
from pathlib import Path

from .errors import BadInput

ACTS = ("act1", "act2", "act3", "act4n", "act4u", "act4u2", "act4u3", "act4u4", "rprm1", "act4s", "act4u5", "act4u6", "dflash")
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""The form of a hub id: organisation/model."""


def root() -> Path:
    """The repository: the nearest folder above the package that holds pyproject.toml and data/, or SPECDECODE_ROOT.

    Raises BadInput for an installed package without a repository around it.
    """
    named = os.environ.get("SPECDECODE_ROOT")
    if named:
        if not (Path(named) / "data").is_dir():
            raise BadInput(f"SPECDECODE_ROOT is {named!r}, where there is no folder data; set it to a clone of the repository.")
        return Path(named).resolve()
    for folder in Path(__file__).resolve().parents:
        if (folder / "pyproject.toml").is_file() and (folder / "data").is_dir():
            return folder
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "pyproject.toml").is_file() and (folder / "data" / "published").is_dir():
            return folder
    raise BadInput("The repository is not around this package; run from a clone of it or set SPECDECODE_ROOT to one.")


def data() -> Path:
    return root() / "data"


def models() -> Path:
    return data() / "models"


def notebooks() -> Path:
    return root() / "notebooks"


def figures() -> Path:
    return root() / "figures"
