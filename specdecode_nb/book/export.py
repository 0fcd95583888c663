"""Everything a write-up needs in one folder: figures, tables, captions, numbers."""
from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..records import write_atomic
from . import notebooks, numbers
from .tables import latex


def write_up(acts: Sequence[str], folder: Path) -> list[Path]:
    """Draw ``acts`` from their sources and recorded rows into ``folder``; returns every path written.

    Beside what a build keeps there are captions.md and captions.tex: the caption of each figure and table, for LaTeX as
    a macro (``\\CaptionActFourSSurvival`` for the figure act4s-survival).
    """
    files: list[Path] = []
    for act in acts:
        with notebooks.staging_folder() as staging:
            notebooks.execute(act, {}, staging, staging, f"specdecode-nb figures {act}")
            files += notebooks.install(act, staging, folder)
    return [*dict.fromkeys(files), *write_captions(folder)]


def write_captions(folder: Path) -> list[Path]:
    records = [record for _, record in notebooks.recorded(folder)]
    lines, macros = [], []
    for record in records:
        kind = "Figure" if "alt" in record else "Table"
        name = numbers.macro(f"caption.{record['id']}" if kind == "Figure" else f"caption.table.{record['id']}")
        lines.append(f"**{kind} `{record['id']}`.** {record['caption']}" + (f" *Alt text:* {record['alt']}" if "alt" in record else ""))
        macros.append(f"\\newcommand{{{name}}}{{{latex(record['caption'])}}}")
    write_atomic(folder / "captions.md", "\n\n".join(lines) + "\n")
    write_atomic(folder / "captions.tex", "\n".join(macros) + "\n")
    write_atomic(folder / "captions.json", json.dumps({r["id"]: r["caption"] for r in records}, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return [folder / f"captions.{kind}" for kind in ("md", "tex", "json")]
