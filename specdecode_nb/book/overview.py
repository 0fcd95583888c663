"""The Acts side by side: what was asked, what was published, what was measured here."""
from __future__ import annotations

import pandas as pd

from .. import paths, statistics
from ..records import load_rows
from . import palette, published


def measured(act: str) -> str:
    """What the committed rows of an Act say, in one phrase for each target; "not measured" without rows."""
    found = []
    for path in sorted((paths.data() / "measured").glob(f"*/{act}.json")):
        rows = load_rows(path).of("decode")
        arms = {arm for arm in statistics.by(rows, "arm") if arm not in ("ar", "ar_mlx_lm")}
        if not arms:
            found.append(f"{path.parent.name}: recorded")
            continue
        entries = {e["arm"]: e["x plain"] for e in statistics.summarise(rows)}
        best = max(arms, key=entries.get)
        clean = {e["arm"]: e["x plain"] for e in statistics.summarise(statistics.loop_free(rows))} if statistics.loop_free(rows) else {}
        found.append(f"{path.parent.name}: {palette.label(best)} {entries[best]:.2f} x plain" + (f" ({clean[best]:.2f} loop-free)" if best in clean else ""))
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
    """Every criterion and every negative result: act, kind, statement, published outcome."""
    outcome = {True: "passed", False: "FAILED", None: "not judged"}
    entries = []
    for act in paths.ACTS:
        f = published.load(act).facts
        entries += [{"act": act, "kind": "criterion", "id": c.id, "statement": f"{c.statement} ({c.threshold})", "published": f"{outcome[c.passed]}: {c.observed}"}
                    for c in f.criteria]
        entries += [{"act": act, "kind": "negative", "id": f"N{n}", "statement": r.hypothesis, "published": f"REFUTED: {r.observed}"}
                    for n, r in enumerate(f.negative_results, 1)]
    return pd.DataFrame(entries)
