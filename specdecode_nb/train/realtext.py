"""Real prose and code: docstrings, data-set descriptions and source that ship inside pinned packages."""
from __future__ import annotations

import ast
import hashlib
import textwrap
from importlib import metadata

from ..errors import BadInput

# package: (licence, path prefixes whose docstrings are taken, prefixes whose functions and classes are taken as source)
SOURCES = {
    "numpy": ("BSD-3-Clause", ("numpy/lib/", "numpy/_core/", "numpy/linalg/", "numpy/ma/", "numpy/polynomial/"), ("numpy/lib/",)),
    "scipy": ("BSD-3-Clause", ("scipy/stats/", "scipy/signal/", "scipy/optimize/", "scipy/spatial/"), ()),
    "pandas": ("BSD-3-Clause", ("pandas/core/",), ("pandas/core/reshape/",)),
    "scikit-learn": ("BSD-3-Clause", ("sklearn/",), ("sklearn/linear_model/", "sklearn/tree/", "sklearn/metrics/")),
    "seaborn": ("BSD-3-Clause", ("seaborn/",), ("seaborn/",)),
}
LIMIT = 3600  # characters of one document
SHORTEST = 700


def _clean(text: str) -> str:
    """Dedented docstring; written out because ``inspect.cleandoc`` differs between Python versions."""
    first, _, rest = text.expandtabs().partition("\n")
    joined = first.strip() + "\n" + textwrap.dedent(rest)
    return "\n".join(line.rstrip() for line in joined.splitlines()).strip()


def _pieces(source: str, docs: bool, code: bool) -> list[str]:
    """Docstrings and top-level definitions of one module; definitions lose their docstrings, so no text is taken twice."""
    tree = ast.parse(source)
    lines = source.splitlines()
    out = []
    if docs:
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node, clean=False)
                if text:
                    out.append(_clean(text))
    if code:
        for node in tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                drop = set()
                for inner in ast.walk(node):
                    if isinstance(inner, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(inner, clean=False):
                        drop.update(range(inner.body[0].lineno, inner.body[0].end_lineno + 1))
                kept = [lines[n - 1].rstrip() for n in range(node.lineno, node.end_lineno + 1) if n not in drop]
                out.append("\n".join(kept))
    return out


def _cut(text: str) -> list[str]:
    """Documents of at most LIMIT characters, cut at a blank line where there is one."""
    out = []
    while len(text) > LIMIT:
        at = text.rfind("\n\n", SHORTEST, LIMIT)
        at = at if at > 0 else text.rfind("\n", SHORTEST, LIMIT)
        if at < 0:
            break
        out.append(text[:at].strip())
        text = text[at:].strip("\n")
    return [t for t in [*out, text[:LIMIT]] if len(t) >= SHORTEST]


def documents() -> tuple[list[str], list[dict]]:
    """All real documents, ordered by their digest, and one provenance record for each package.

    A record: package, version, licence, documents, characters, sha256 of its documents. Another version of a package
    gives another digest; the record is what tells. Raises BadInput when one is absent.
    """
    seen: dict[str, str] = {}
    records = []
    for package, (licence, doc_prefixes, code_prefixes) in SOURCES.items():
        try:
            dist = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            raise BadInput(f"The corpus takes text from {package}, which is not installed; install it and start again.") from None
        mine = {}
        for path in sorted(dist.files or [], key=str):
            name = str(path)
            if "/tests/" in name or "/externals/" in name or "/array_api" in name:
                continue
            if name.startswith("sklearn/datasets/descr/") and name.endswith(".rst"):
                pieces = [_clean(path.locate().read_text(encoding="utf-8"))]
            elif name.endswith(".py") and name.startswith((*doc_prefixes, *code_prefixes)):
                pieces = _pieces(path.locate().read_text(encoding="utf-8"), name.startswith(doc_prefixes), bool(code_prefixes) and name.startswith(code_prefixes))
            else:
                continue
            for piece in pieces:
                for text in _cut(piece):
                    mine[hashlib.sha256(text.encode()).hexdigest()] = text
        mine = {k: v for k, v in mine.items() if k not in seen}
        seen.update(mine)
        joined = "\n".join(mine[k] for k in sorted(mine))
        records.append({"package": package, "version": dist.version, "licence": licence, "documents": len(mine),
                        "characters": sum(map(len, mine.values())), "sha256": hashlib.sha256(joined.encode()).hexdigest()})
    return [seen[k] for k in sorted(seen)], records
