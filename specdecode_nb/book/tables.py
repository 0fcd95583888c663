"""Tables that read without CSS: bare HTML and text inline; CSV at full precision, LaTeX and Markdown on disk."""
from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from ..records import unfit, sha256, write_atomic

MISSING = "–"
WRAP, LINE = 24, 80  # letters of a text column before it wraps in LaTeX; letters of a line
LATEX = {"\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
         "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\"": r"\textquotedbl{}", "≥": r"$\ge$",
         "≤": r"$\le$", "≈": r"$\approx$", "×": r"$\times$", "·": r"$\cdot$", "±": r"$\pm$", "–": "--", "—": "---", "−": "$-$", "→": r"$\to$",
         "…": r"\ldots{}", "Δ": r"$\Delta$", "λ": r"$\lambda$", "γ": r"$\gamma$", "β": r"$\beta$", "α": r"$\alpha$", "µ": r"$\mu$", "ü": r"\"u",
         "é": r"\'e", "“": "``", "”": "''", "’": "'", "✓": r"$\checkmark$"}


def latex(text: str) -> str:
    """``text`` for LaTeX, every special character escaped, the percent sign included. A letter with no rendering is an error."""
    out = "".join(LATEX.get(ch, ch) for ch in text)
    odd = next((ch for ch in out if ord(ch) > 126), None)
    if odd:
        raise ValueError(f"{text!r} holds {odd!r}, which has no LaTeX form here; add it to the map.")
    return out


def missing(value) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value)


def decimals(values: Sequence) -> int:
    """Digits after the point that the column's numbers have, at most 4."""
    texts = [repr(float(v)) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and not missing(v)]
    return max((min(4, len(t.partition(".")[2])) if "e" not in t and not t.endswith(".0") else 0 for t in texts), default=0)


def cell(value, spec: str, whole: bool = False) -> str:
    """One cell as text. ``spec`` formats numbers, ``whole`` says that the column holds whole numbers only."""
    if missing(value):
        return MISSING
    if isinstance(value, (bool, str)) or type(value).__name__ == "bool_":
        return value if isinstance(value, str) else "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(v, spec or f".{decimals(value)}f", whole) for v in value)
    if spec == "r":
        return repr(value)
    if not spec and whole:
        return f"{int(value):,}" if abs(value) >= 10_000 else str(int(value))
    if not spec and value and abs(value) < 10 ** -decimals([value]):
        return f"{value:.3g}"  # too small for the digits of its column
    return format(value, spec)


def texts(frame: pd.DataFrame, fmt: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Every cell as text: by ``fmt`` of its column, else with the digits that the column has. Headers carry the units."""
    fmt = fmt or {}
    unknown = next((name for name in fmt if name not in frame.columns), None)
    if unknown:
        raise KeyError(f"The table has no column {unknown!r} to format; its columns are {', '.join(map(str, frame.columns))}.")
    columns = {}
    for name in frame.columns:
        values = frame[name].tolist()
        digits = decimals([v for v in values if not isinstance(v, (list, tuple))])
        numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and not missing(v)]
        whole = bool(numbers) and all(float(v).is_integer() for v in numbers)
        if name not in fmt and len({type(v) for v in numbers}) > 1:  # another quantity in each row: its own digits
            columns[header(frame, name)] = [cell(v, "" if isinstance(v, int) else "r", isinstance(v, int)) for v in values]
            continue
        spec = fmt.get(name, "" if whole or not numbers else f".{digits}f")
        columns[header(frame, name)] = [cell(v, spec if name in fmt or digits or not whole else "", whole) for v in values]
    return pd.DataFrame(columns)


def header(frame: pd.DataFrame, name: str) -> str:
    unit = frame.attrs.get("units", {}).get(name, "")
    return f"{name} ({unit})" if unit else str(name)


def alignment(frame: pd.DataFrame) -> list[str]:
    numeric = [all(isinstance(v, (int, float)) and not isinstance(v, bool) or missing(v) for v in frame[c].tolist()) for c in frame.columns]
    return ["right" if n else "left" for n in numeric]


def as_html(frame: pd.DataFrame, fmt: Mapping[str, str] | None = None) -> str:
    """A table without ids, classes or styles: two renders are equal and a sanitiser takes nothing away."""
    shown = texts(frame, fmt)
    align = [f' align="{a}"' for a in alignment(frame)]  # the left one too: some readers set cells to the right
    line = lambda tag, row: "<tr>" + "".join(f"<{tag}{a}>{html.escape(v, quote=False)}</{tag}>" for a, v in zip(align, row)) + "</tr>"  # noqa: E731
    body = "\n".join(line("td", row) for row in shown.itertuples(index=False, name=None))
    return f"<table>\n<thead>\n{line('th', shown.columns)}\n</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def as_text(frame: pd.DataFrame, fmt: Mapping[str, str] | None = None) -> str:
    """Fixed width, for terminals and diffs."""
    shown = texts(frame, fmt)
    align = alignment(frame)
    return tabulate(shown.values.tolist(), headers=list(shown.columns), tablefmt="simple", disable_numparse=True, colalign=align,
                    maxcolwidths=[None if a == "right" else 80 for a in align])


def as_markdown(frame: pd.DataFrame, fmt: Mapping[str, str] | None = None) -> str:
    shown = texts(frame, fmt)
    rows = [[v.replace("|", "\\|").replace("\n", " ") for v in row] for row in [list(shown.columns), *shown.values.tolist()]]
    return tabulate(rows[1:], headers=rows[0], tablefmt="pipe", disable_numparse=True, colalign=alignment(frame))


def as_latex(frame: pd.DataFrame, caption: str, table_id: str, fmt: Mapping[str, str] | None = None) -> str:
    """A table environment with booktabs rules, label ``tab:<id>``."""
    shown = texts(frame, fmt)
    line = lambda row: " & ".join(latex(v) for v in row) + r" \\"  # noqa: E731
    body = "\n".join(line(row) for row in shown.itertuples(index=False, name=None))
    align = "".join(columns(shown, alignment(frame)))
    return (f"\\begin{{table}}\n\\centering\n\\caption{{{latex(caption)}}}\\label{{tab:{table_id}}}\n\\begin{{tabular}}{{{align}}}\n\\toprule\n"
            f"{line(shown.columns)}\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n")


def columns(shown: pd.DataFrame, align: Sequence[str]) -> list[str]:
    """Column types for LaTeX: long texts wrap, each by its share of the width that the short columns leave."""
    longest = [max(map(len, [*shown.iloc[:, i].tolist()]), default=0) for i in range(len(align))]
    wraps = [a == "left" and n > WRAP for a, n in zip(align, longest)]
    if not any(wraps):
        return [a[0] for a in align]
    narrow = sum(max(n, len(str(name)) if not w else 0) + 2 for n, name, w in zip(longest, shown.columns, wraps) if not w)
    room, whole = max(0.3, 0.9 - narrow / LINE), sum(n ** 0.5 for n, w in zip(longest, wraps) if w)
    return [f"p{{{room * n ** 0.5 / whole:.2f}\\linewidth}}" if w else a[0] for n, a, w in zip(longest, align, wraps)]


def as_csv(frame: pd.DataFrame) -> str:
    """Full precision, units in the headers, empty where nothing was recorded."""
    return frame.set_axis([header(frame, c) for c in frame.columns], axis=1).to_csv(index=False, lineterminator="\n")


def prepare(table_id: str, frame: pd.DataFrame, caption: str, about: dict, fmt: Mapping[str, str] | None = None) -> dict[str, str]:
    """``<id>.csv|tex|md`` and the record ``<id>.json`` as texts by file name."""
    if odd := unfit(frame.astype(object).where(frame.notna(), None).values.tolist()):
        raise ValueError(f"Table {table_id} holds {odd}.")
    files = {f"{table_id}.csv": as_csv(frame), f"{table_id}.tex": as_latex(frame, caption, table_id, fmt),
             f"{table_id}.md": f"{as_markdown(frame, fmt)}\n\n{caption}\n"}
    digests = {name.rsplit(".", 1)[1]: sha256(text.encode()) for name, text in files.items()}
    files[f"{table_id}.json"] = json.dumps({"id": table_id, **about, "rows": len(frame), "sha256": digests}, indent=1, ensure_ascii=False,
                                           allow_nan=False) + "\n"
    return files


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        write_atomic(folder / name, text)


def plain(value) -> str:
    """A published value with the digits it was published with."""
    return ", ".join(map(plain, value)) if isinstance(value, (list, tuple)) else f"{value:,}" if isinstance(value, int) else repr(value)
