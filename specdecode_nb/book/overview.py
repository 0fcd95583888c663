"""The Acts side by side: what was asked, what was published, what was measured here."""
from __future__ import annotations

import pandas as pd

from .. import paths, statistics
from ..records import RowFile, load_rows
from . import palette, published, verdicts


BESIDE = {"act4u": ("uno_recipes",), "act4s": ("act4s_rest",)}  # further row files of an Act


def rows_of(act: str) -> dict[str, RowFile]:
    """The committed row files of an Act by target."""
    return {p.parent.name: load_rows(p, p.relative_to(paths.root()).as_posix()) for p in sorted((paths.data() / "measured").glob(f"*/{act}.json"))}


def measured(act: str) -> str:
    """What the committed rows of an Act say, in one phrase for each target; "not measured" without rows."""
    found = []
    for target, file in rows_of(act).items():
        rows = file.of("decode")
        arms = {arm for arm in statistics.by(rows, "arm") if arm not in ("ar", "ar_mlx_lm")}
        if not arms:
            found.append(f"{target}: recorded")
            continue
        entries = {e["arm"]: e["x plain"] for e in statistics.summarise(rows)}
        best = max(arms, key=entries.get)
        clean = {e["arm"]: e["x plain"] for e in statistics.summarise(statistics.loop_free(rows))} if statistics.loop_free(rows) else {}
        short = ", a reduced run" if file.config.get("reduced") else ""
        found.append(f"{target}: {palette.label(best)} {entries[best]:.2f} x plain" + (f" ({clean[best]:.2f} loop-free)" if best in clean else "") + short)
    for name in BESIDE.get(act, ()):
        found += [f"{target}: {name} recorded{', a reduced run' if file.config.get('reduced') else ''}" for target, file in rows_of(name).items()]
    return "; ".join(found) or "not measured"


def acts() -> pd.DataFrame:
    """One row an Act, in reading order."""
    facts = {act: published.load(act).facts for act in paths.ACTS}
    return pd.DataFrame([{"act": act, "title": f.title, "question": f.question, "date": f.date, "verdict": f.verdict, "measured": measured(act)}
                         for act, f in facts.items()])


def lines() -> list[str]:
    """One line an Act: id, question, published verdict, what was measured here."""
    return [f"{r['act']:7} {r['question']} | published: {r['verdict']} | here: {r['measured']}" for r in acts().to_dict("records")]


def ledger() -> pd.DataFrame:
    """Every criterion and every negative result: act, kind, id, statement, outcome as published and as measured here."""
    outcome = {True: "passed", False: "FAILED", None: "not judged"}
    here = {target: verdicts.claims(rows.of("decode")) for target, rows in rows_of("act4s").items()}
    entries = []
    for act in paths.ACTS:
        f = published.load(act).facts
        entries += [{"act": act, "kind": "criterion", "id": c.id, "statement": f"{c.statement} ({c.threshold})", "published": f"{outcome[c.passed]}: {c.observed}",
                     "claim": c.id} for c in f.criteria]
        entries += [{"act": act, "kind": "negative result", "id": f"N{n}", "statement": r.hypothesis, "published": r.observed, "claim": r.hypothesis}
                    for n, r in enumerate(f.negative_results, 1)]
    for e in entries:
        claim = e["act"], e.pop("claim")
        found = [f"{target}: {judged[claim]}" for target, judged in here.items() if claim in judged]
        e["here"] = "; ".join(found) or "not measured"
    return pd.DataFrame(entries)
