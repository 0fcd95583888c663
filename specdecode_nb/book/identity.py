"""Tables and metrics of Act V from its rows: bit identity, width noise, the audit of flips, exact decoding and its price."""
from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .. import criteria
from .. import statistics as st
from ..records import RowFile
from .measures import Found, ratio, section
from .sweep import frame

CONTROL, GRID = "nothing", "exact"
DTYPES = ("float32", "bfloat16")
RATIOS = (("exact", "ar"), ("dflash_b8_exact", "exact"), ("dflash_b8_exact", "ar"))


def only(file: RowFile, kind: str, **fields) -> list[dict]:
    """Rows of ``kind`` whose fields have these values."""
    return st.only(file.of(kind), **fields)


def total(rows: Sequence[dict], name: str) -> int:
    return sum(r[name] or 0 for r in rows)


def identity(rows: Sequence[dict], *names: str) -> pd.DataFrame:
    """Identity rows summed over groups: tokens and numbers of the caches that were compared, and how many of them differ."""
    return frame([dict(zip(names, group)) | {"texts": len(g), "tokens": total(g, "tokens"), "accepted drafts": total(g, "accepted"), "tokens differing": total(g, "token_mismatches"),
                  "numbers in caches": total(g, "states"), "numbers differing": total(g, "state_mismatches")} for group, g in st.by(rows, *names).items()])


def reference(file: RowFile) -> list[dict]:
    """Ordinary drafting against ordinary plain decoding on the reference BLAS."""
    return only(file, "identity", section="reference")


def gridded(file: RowFile) -> list[dict]:
    """Drafting on the grid against plain decoding on the grid."""
    return only(file, "identity", section="exact", against="plain_exact")


# --- where bits differ ---

def noise(file: RowFile) -> pd.DataFrame:
    """Width noise by type and width: how many positions get other logits, and by how much."""
    return frame([{"dtype": dtype, "rows": width, "positions": total(g, "positions"), "changed": 100 * total(g, "rows_changed") / total(g, "positions"),
                   "median change": max(r["median_change"] for r in g), "largest change": max(r["largest_change"] for r in g),
                   "largest logit": max(r["largest_logit"] for r in g), "other best token": total(g, "flips")}
                  for (dtype, width), g in st.by(file.of("width_noise"), "dtype", "width").items()], changed="% of positions")


def tau(file: RowFile, dtype: str) -> float:
    """The largest change of any logit between one row and several, over the texts of the calibration. Raises ValueError without any."""
    return max(r["largest_change"] for r in only(file, "width_noise", dtype=dtype))


def audited(file: RowFile) -> pd.DataFrame:
    """By type and arm: positions, ties, flips, the worst of them against the noise, and how far verified rows were off."""
    entries = []
    for (dtype, arm), g in st.by(file.of("audit"), "dtype", "arm").items():
        limit, gaps = tau(file, dtype), [gap for r in g for gap in r["flip_gaps"]]
        entries.append({"dtype": dtype, "arm": arm, "texts": len(g), "positions": total(g, "positions"), "exact ties": total(g, "exact_ties"),
                        "other texts": sum(r["first_divergence"] is not None for r in g), "flips": len(gaps), "worst gap": max(gaps, default=None), "noise": limit,
                        "unexplained": sum(gap > limit for gap in gaps), "rows with other bits": 100 * total(g, "rows_changed") / max(1, total(g, "rows_compared")),
                        "largest row change": max(r["largest_change"] for r in g)})
    return frame(entries, **{"rows with other bits": "%", "worst gap": "logits", "noise": "logits", "largest row change": "logits"})


def depths(file: RowFile, dtype: str) -> dict[tuple[str, str], dict[int, int | None]]:
    """(family, prompt) -> first difference from plain decoding by block width, for families with three widths or more."""
    found: dict[tuple[str, str], dict[int, int | None]] = {}
    for r in only(file, "audit", dtype=dtype):
        found.setdefault((r["family"], r["prompt_id"]), {})[r["width"]] = r["first_divergence"]
    return {key: dict(sorted(by.items())) for key, by in found.items() if len(by) > 2}


def depth_table(file: RowFile, dtype: str) -> pd.DataFrame:
    """One line a family and prompt of which some width leaves plain decoding; empty cells: it does not."""
    return pd.DataFrame([{"family": family, "prompt": prompt} | {f"width {w}": at for w, at in by.items()}
                         for (family, prompt), by in depths(file, dtype).items() if any(at is not None for at in by.values())])


def moving(file: RowFile, dtype: str) -> tuple[int, int] | None:
    """Prompts whose first difference rises, or falls, with every further width, of those that differ at three widths; None if there is none."""
    lines = [[at for at in by.values() if at is not None] for by in depths(file, dtype).values()]
    lines = [line for line in lines if len(line) > 2]
    one_way = lambda line: len({(a < b) - (a > b) for a, b in zip(line, line[1:])} | {0}) == 2 and len(set(line)) == len(line)  # noqa: E731
    return (sum(map(one_way, lines)), len(lines)) if lines else None


# --- exact decoding ---

def texts(file: RowFile) -> pd.DataFrame:
    """Plain decoding on the grid against ordinary plain decoding, by model, BLAS and type."""
    rows = only(file, "identity", section="exact", against="plain")
    return frame([{"model": model, "BLAS": blas, "dtype": dtype, "texts": len(g), "other texts": sum(r["token_mismatches"] > 0 for r in g), "tokens": total(g, "tokens"),
                   "before the first difference": total(g, "prefix")} for (model, blas, dtype), g in st.by(rows, "model", "blas", "dtype").items()],
                 **{"before the first difference": "tokens"})


def exact_agrees(rows: Sequence[dict]) -> bool:
    """In timed rows: every exact arm has the tokens of plain exact decoding."""
    wanted = {(r["prompt_id"], r["repeat"]): r["token_digest"] for r in rows if r["arm"] == GRID}
    return all(wanted[r["prompt_id"], r["repeat"]] == r["token_digest"] for r in rows if r["arm"].endswith(f"_{GRID}"))


# --- metrics of the criteria ---

def numbers(file: RowFile) -> dict[str, Found]:
    """Every metric of data/criteria/act5.json that these rows can give."""
    count = lambda value, n: (value, None, None, n)  # noqa: E731
    bare, grid, price = reference(file), gridded(file), section(file, "price")
    out: dict[str, Found] = {}
    if bare:
        out |= {"compared_tokens": count(total(bare, "tokens"), len(bare)), "token_mismatches": count(total(bare, "token_mismatches"), total(bare, "tokens")),
                "state_mismatches": count(total(bare, "state_mismatches"), total(bare, "states"))}
    if grid:
        out |= {"exact_tokens": count(total(grid, "token_mismatches"), total(grid, "tokens")), "exact_states": count(total(grid, "state_mismatches"), total(grid, "states"))}
    judged = file.of("audit")
    if judged:
        control = [r for r in judged if r["arm"] == CONTROL]
        out["control_flips"] = count(sum(len(r["flip_gaps"]) for r in control), total(control, "positions"))
    for dtype in DTYPES:
        calibration, mine = only(file, "width_noise", dtype=dtype), [r for r in judged if r["dtype"] == dtype and r["arm"] != CONTROL]
        plain = only(file, "identity", section="exact", against="plain", dtype=dtype)
        if calibration:
            out[f"changed:{dtype}"] = count(total(calibration, "rows_changed") / total(calibration, "positions"), total(calibration, "positions"))
        if calibration and mine:
            limit = tau(file, dtype)
            out[f"unexplained:{dtype}"] = count(sum(gap > limit for r in mine for gap in r["flip_gaps"]), total(mine, "positions"))
            out[f"off:{dtype}"] = count(sum(r["largest_change"] > 2 * limit for r in mine), len(mine))
        if plain:
            out[f"texts:{dtype}"] = count(sum(r["token_mismatches"] > 0 for r in plain), len(plain))
    if lines := [found for dtype in DTYPES if (found := moving(file, dtype)) is not None]:
        out["moving"] = count(*map(sum, zip(*lines)))
    arms = set(st.by(price, "arm"))
    return out | {f"speed:{a}/{b}": ratio(price, a, b) for a, b in RATIOS if {a, b} <= arms}


def outcomes(file: RowFile) -> list[criteria.Outcome]:
    """Every criterion judged on these rows. Raises BadInput if they were measured under other rules."""
    return criteria.load("act5").judged(file, numbers)
