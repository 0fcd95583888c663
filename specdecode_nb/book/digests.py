"""data/digests.json: the sha256 of every file of models and prompts. Rows were measured with them, yet no page reads them."""
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from .. import paths
from ..errors import BadInput
from ..records import load_rows, parse, read_text, sha256, write_atomic

FOLDERS = ("models", "prompts")
TOLD = ("README", "training")  # what only tells of a model: no row depends on it


def current() -> dict[str, str]:
    """sha256 by path below the repository, of the files as they are now; hidden ones are left out."""
    files = sorted(p for folder in FOLDERS for p in (paths.data() / folder).rglob("*") if p.is_file() and not p.name.startswith("."))
    return {p.relative_to(paths.root()).as_posix(): sha256(p.read_bytes()) for p in files}


def write() -> None:
    """Record the files as they are; what ``build`` does, and nothing reads the record but ``check``."""
    write_atomic(paths.data() / "digests.json", json.dumps(current(), indent=1) + "\n")


def problems() -> Iterator[str]:
    """One sentence for each file that is not as recorded, with the rows that were measured with it. Raises BadInput."""
    file = paths.data() / "digests.json"
    if not file.is_file():
        raise BadInput("data/digests.json is missing; run `specdecode-nb build`.")
    recorded = parse(read_text(file, "record of models and prompts"), "data/digests.json")
    if not isinstance(recorded, dict) or not all(isinstance(v, str) for v in recorded.values()):
        raise BadInput("data/digests.json is no record of files and their sha256; restore it or run `specdecode-nb build`.")
    found = current()
    for name in sorted(recorded.keys() | found.keys()):
        if name not in recorded:
            yield f"{name} is not in data/digests.json; remove it or run `specdecode-nb build`."
        elif found.get(name) != recorded[name]:
            rows = measured_with(name, recorded)
            told = f", and {', '.join(rows)} {'was' if len(rows) == 1 else 'were'} measured with it" if rows else ""
            remedy = "restore it, or measure again and run `specdecode-nb build`" if rows else "restore it or run `specdecode-nb build`"
            yield f"{name} {'has changed since data/digests.json was written' if name in found else 'is in data/digests.json but missing'}{told}; {remedy}."


def measured_with(name: str, recorded: dict[str, str]) -> list[str]:
    """The committed row files that a file went into: those that name its drafter or its sha256, all rows of a target, all that name prompts."""
    path, used = Path(name), []
    drafter = not path.stem.startswith("model") and path.with_suffix(".safetensors").as_posix() in recorded
    adapter = recorded.get(path.with_suffix(".safetensors").as_posix(), "-")
    for file in sorted((paths.data() / "measured").glob("*/*.json")):
        try:
            rows = load_rows(file)
        except BadInput:  # the check of the rows tells that
            continue
        if path.parts[1] == "prompts":
            used += [file] * ("prompts" in rows.config and rows.config.get("suite", "suite") == path.stem)  # older rows do not name it
        elif rows.target == path.parent.name and path.stem not in TOLD:
            named = (rows.provenance.get("drafter") or {}).get("name") == path.stem or adapter in rows.config.values()
            used += [file] * (named or not drafter)
    return [file.relative_to(paths.root()).as_posix() for file in used]
