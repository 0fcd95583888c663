"""The Acts side by side: what was asked, what was published, what was measured here."""
from __future__ import annotations

from collections import Counter

import pandas as pd

from .. import condition, criteria, paths, statistics
from ..records import RowFile, load_rows
from . import block, palette, published, regimes, rest, staging, undo, verdicts

BESIDE = {"act4u": ("uno_recipes",), "act4s": ("act4s_rest",), "dflash": ("dflash_rest",)}  # further row files of an Act
JUDGES = {"act4u2": lambda file: undo.outcomes(criteria.load("act4u2"), file), "act4u6": staging.outcomes, "dflash": block.outcomes,
          "act4s_rest": lambda file: rest.outcomes(criteria.load("act4s_rest"), file),
          "dflash_rest": lambda file: regimes.outcomes(criteria.load("dflash_rest"), file)}  # row files with rules of their own


def rows_of(act: str) -> dict[str, RowFile]:
    """The committed row files of an Act by target."""
    found = sorted((paths.data() / "measured").glob(f"*/{act}.json"))
    return {p.parent.name: load_rows(p, p.relative_to(paths.root()).as_posix()) for p in found}


def files_of(act: str) -> list[tuple[str, str, RowFile]]:
    """Every row file that an Act's page draws: (name, target, rows)."""
    return [(name, target, file) for name in (act, *BESIDE.get(act, ())) for target, file in rows_of(name).items()]


def phrase(name: str, file: RowFile) -> str:
    """What a row file says, in one phrase."""
    mark = condition.marking(file.provenance)
    short = (", a reduced run" if file.config.get("reduced") else "") + (f", {mark}" if mark else "")
    if name in JUDGES:
        words = Counter(o.word.split(":")[0] for o in JUDGES[name](file))
        return f"{name}: " + ", ".join(f"{words[w]} {text}" for w, text in ((criteria.HOLDS, "rules hold"), (criteria.FAILS, "do not"), ("not decidable", "not decidable"))) + short
    rows = file.of("decode")
    arms = {arm for arm in statistics.by(rows, "arm") if arm not in ("ar", "ar_mlx_lm")}
    if not arms:
        return f"{name}: recorded{short}"
    entries = {e["arm"]: e["x plain"] for e in statistics.summarise(rows)}
    best = max(arms, key=entries.get)
    clean = {e["arm"]: e["x plain"] for e in statistics.summarise(statistics.loop_free(rows))} if statistics.loop_free(rows) else {}
    return f"{palette.label(best)} {entries[best]:.2f} x plain" + (f" ({clean[best]:.2f} loop-free)" if best in clean else "") + short


def measured(act: str) -> str:
    """What the committed rows of an Act say, one phrase a row file; "not measured" without rows."""
    return "; ".join(f"{target}: {phrase(name, file)}" for name, target, file in files_of(act)) or "not measured"


def acts() -> pd.DataFrame:
    """One row an Act, in reading order."""
    facts = {act: published.load(act).facts for act in paths.ACTS}
    return pd.DataFrame([{"act": act, "title": f.title, "question": f.question, "date": f.date, "verdict": f.verdict, "measured": measured(act)}
                         for act, f in facts.items()])


def lines() -> list[str]:
    """One line an Act: id, question, published verdict, what was measured here."""
    return [f"{r['act']:7} {r['question']} | published: {r['verdict']} | here: {r['measured']}" for r in acts().to_dict("records")]


def own_verdicts() -> dict[tuple[str, str], list[str]]:
    """Our verdicts by (act, claim): of the sweep by the published rules, of other row files by the rules fixed for them."""
    found: dict[tuple[str, str], list[str]] = {}
    for target, file in rows_of("act4s").items():
        for claim, text in verdicts.claims(file.of("decode")).items():
            found.setdefault(claim, []).append(f"{target}: {text}")
    for act in paths.ACTS:
        for name, target, file in files_of(act):
            marks = ["reduced run"] * bool(file.config.get("reduced")) + ["degraded machine"] * bool(condition.marking(file.provenance))
            short = f" ({', '.join(marks)})" if marks else ""
            for o in JUDGES[name](file) if name in JUDGES else ():
                for claim in o.criterion.claims:
                    found.setdefault((act, claim), []).append(f"{target}{short}: {o.criterion.statement}: {o.word}, {o.text}")
    return found


def ledger() -> pd.DataFrame:
    """Every criterion and every negative result: act, kind, id, statement, outcome as published and as measured here."""
    outcome = {True: "passed", False: "FAILED", None: "not judged"}
    here, entries = own_verdicts(), []
    for act in paths.ACTS:
        f = published.load(act).facts
        entries += [{"act": act, "kind": "criterion", "id": c.id, "statement": f"{c.statement} ({c.threshold})", "published": f"{outcome[c.passed]}: {c.observed}",
                     "claim": c.id} for c in f.criteria]
        entries += [{"act": act, "kind": "negative result", "id": f"N{n}", "statement": r.hypothesis, "published": r.observed, "claim": r.hypothesis}
                    for n, r in enumerate(f.negative_results, 1)]
    for e in entries:
        e["here"] = "; ".join(here.get((e["act"], e.pop("claim")), [])) or "not measured"
    return pd.DataFrame(entries)
