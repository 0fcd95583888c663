"""Where a number comes from, in words: the label of measured or imported rows, of what is worked out, and the place of committed rows."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import condition, paths
from ..records import RowFile


FIRST = "_first"  # ends the name of the rows of an Act's first run, kept beside those of a longer one that followed


def measured_path(act: str, target: str) -> Path:
    """Where the committed rows of an Act are."""
    return paths.data() / "measured" / target / f"{act}.json"


@dataclass(frozen=True)
class Computed:
    """A source like the others, for illustrations."""

    name: str
    digest: str
    label: str = "worked out on this page; no model is involved"


def measured_label(rows: RowFile) -> str:
    """Model, machine, versions and date of measured rows; a reduced run says so, and one on a degraded machine why. Imported rows are published ones."""
    p, c = rows.provenance, rows.config
    target, machine, versions, blas = (p.get(k, {}) for k in ("target", "machine", "versions", "blas"))
    if rows.published:
        commit = [f"commit {p['commit'][:12]}"] if isinstance(p.get("commit"), str) else []
        parts = [f"{target.get('name', rows.target)}, {target.get('dtype', 'dtype not recorded')}", machine.get("class", "machine not recorded"), p.get("date", "undated"),
                 " ".join([f"rows of {p.get('project', 'a project not named')}", *commit])]
        return "published: " + "; ".join(parts + ["not all of its rows"] * bool(c.get("reduced")))
    types, libraries = among(rows, "dtype", target.get("dtype", "dtype not recorded")), among(rows, "blas", blas.get("name", "?"))
    parts = [f"{target.get('name', rows.target)}, {types}", machine.get("class", "machine not recorded"),
             f"MLX {versions.get('mlx', '?')}, BLAS {libraries}", p.get("date", "undated")]
    parts += ["a reduced run"] * bool(c.get("reduced")) + [text for text in [condition.marking(p)] if text]
    return "measured here: " + "; ".join(parts)


def among(rows: RowFile, name: str, usual: str) -> str:
    """The field ``name`` of a row file: that of its provenance, and those of rows made in a process of their own, which name their BLAS."""
    own = (row[name] for row in rows.rows if isinstance(row.get("blas"), str) and isinstance(row.get(name), str))
    return " and ".join(dict.fromkeys([usual, *own]))
