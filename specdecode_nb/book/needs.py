"""What the page of a measured Act takes for granted in a row file, asked before a kernel starts.

One entry of :data:`NEEDS` a row file; its page may then draw without asking again.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from .. import criteria
from ..errors import BadInput
from ..records import RowFile
from . import block, denoising, identity, imported, peers, rest, reverse, sampled, staging, states, sweep, trained, uncertainty, undo

Cells = tuple[tuple[str, ...], Callable[[dict], Iterable[tuple]]]
PLAIN = ("ar", "ar_mlx_lm")
COMMON = {"prompts": list[str], "tokens": int, "dtype": str, "reduced": bool}
ORIGIN = ("drafter.name",)
MACHINES = ("drafter.name", "target.name", "target.parameters", "target.dtype", "machine.class", "versions.mlx", "blas.name")
UNITS = ("prompt_id", "repeat", "at", "window")
SOME = 4  # of a long list in the sentence


@dataclass(frozen=True)
class Needs:
    """What one row file must hold.

    Attributes:
        cells: by kind, the fields that tell its rows apart and, from the config, their values that must occur. All cells of a kind
            (of a section, where rows have one) must cover the same prompts, repeats and places.
        config: keys with their types; a list must not be empty. ``provenance``: keys, nested ones with a dot.
        fields: by kind, by arm or by arm up to its width, the fields beyond its schema that its rows must have, lists not empty.
        rules: the criteria under which the rows must have been measured, "" for none.
        more: anything else that is lacking, in words.
    """

    cells: Mapping[str, Cells]
    config: Mapping[str, type] = field(default_factory=lambda: COMMON)
    provenance: Sequence[str] = ORIGIN
    fields: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rules: str = ""
    more: Callable[[RowFile], Iterator[str]] = lambda file: iter(())


def check(file: RowFile) -> RowFile:
    """``file`` itself if its page can draw from it. Raises BadInput, one sentence that names all that is lacking."""
    if file.published:
        if not any(file.of(kind) for kind in imported.KINDS):
            raise BadInput(f"{file.name} holds no rows of kind {', '.join(imported.KINDS[:-1])} or {imported.KINDS[-1]}; import the results folder again.")
        return file
    needs = NEEDS.get(file.act)
    if needs is None:
        return file
    lacking = list(lacks(needs, file))
    try:
        if needs.rules:
            criteria.load(needs.rules).bind(file)
    except BadInput:
        if not lacking:
            raise
        lacking.append(f"config.criteria of the rules in data/criteria/{needs.rules}.json")
    if lacking:
        raise BadInput(f"{file.name} cannot be drawn as {file.act}, for it lacks {'; '.join(lacking)}; name another row file or measure again.")
    return file


def lacks(needs: Needs, file: RowFile) -> Iterator[str]:
    keys = [f"config.{k}" for k, kind in needs.config.items() if not fits(file.config.get(k), kind)]
    found = set(nested(file.provenance))
    keys += [f"provenance.{k}" for k in needs.provenance if k not in found]
    kinds = [k for k in needs.cells if not file.of(k)]
    if kinds:
        yield f"rows of kind {listed(kinds)}"
    if keys:
        yield listed(keys, len(keys))
    for kind, (names, wanted) in needs.cells.items():
        if kind in kinds or any(k.startswith("config.") for k in keys):
            continue
        cells = by_cell(file.of(kind), names)
        absent = [c for c in wanted(file.config) if c not in cells]
        if absent:
            yield f"{kind} rows with {' and '.join(names)} {listed([' '.join(map(str, c)) for c in absent])}"
        else:
            yield from uneven(kind, cells)
    for name, fields in needs.fields.items():
        rows = [r for r in file.rows if name in (r["kind"], r.get("arm"), r.get("arm", "").rstrip("0123456789"))]
        absent = [f for f in fields if any(r.get(f) in (None, []) for r in rows)]
        if absent:
            yield f"{listed(absent)} in rows of {name}"
    if any(r["ar_looped_fraction"] is None for r in file.of("decode")):
        yield "ar_looped_fraction in decode rows"
    yield from needs.more(file)


def by_cell(rows: Iterable[dict], names: Sequence[str]) -> dict[tuple, list[dict]]:
    cells: dict[tuple, list[dict]] = {}
    for row in rows:
        cells.setdefault(tuple(row.get(n) for n in names), []).append(row)
    return cells


def uneven(kind: str, cells: Mapping[tuple, Sequence[dict]]) -> Iterator[str]:
    """The first cell that does not cover what the first one of its section covers."""
    first: dict[str, tuple[tuple, Counter]] = {}
    for cell, rows in cells.items():
        covered = Counter(tuple(r.get(u) for u in UNITS) for r in rows)
        against, other = first.setdefault(rows[0].get("section", ""), (cell, covered))
        if covered != other:
            yield f"{kind} rows of {' '.join(map(str, cell))} for the same prompts and repeats as {' '.join(map(str, against))}"
            return


def fits(value: Any, kind: type) -> bool:
    inner = get_args(kind)
    return type(value) is list and bool(value) and all(type(v) is inner[0] for v in value) if inner else type(value) is kind


def nested(value: Mapping, at: str = "") -> Iterator[str]:
    """The keys of a mapping and of those in it, joined by dots."""
    for key, item in value.items():
        yield f"{at}{key}"
        if isinstance(item, dict):
            yield from nested(item, f"{at}{key}.")


def listed(names: Sequence[str], most: int = SOME) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def arms(*names: str, section: str | None = None) -> list[tuple]:
    return [(name,) if section is None else (section, name) for name in names]


def drafts_in_widths(file: RowFile) -> Iterator[str]:
    """The sweep is drawn over widths, which are read from the names of its arms."""
    drafting = sweep.drafting(file.of("decode"))
    odd = [a for a in drafting if not re.fullmatch(r".+_k[1-9]\d*", a)]
    if odd:
        yield f"the width at the end of the name of {listed(odd)}, as in uno_k4"
    elif file.of("decode") and not any(sweep.width(a) > 1 for a in drafting):
        yield "decode rows of an arm that drafts more than one position, as uno_k4"


def trains(act: str) -> Needs:
    """A training Act: every checkpoint of its configuration there, judged and decoded where that says so."""
    told = lambda key: (("arm", "launch", "step"), lambda c: [tuple(entry) for entry in c[key]])  # noqa: E731
    return Needs({"decode": (("arm",), lambda c: arms(*PLAIN, *c["arms"])), "launch": told("launches"), "forced": told("judged")},
                 COMMON | {"steps": int, "launches": list[list], "judged": list[list], "arms": list[str]}, fields={"decode": ("overhead_seconds",)}, rules=act)


REVERSED = {"reverse_windows": (("level",), lambda c: [(t,) for t in c["levels"]]), "reverse_launch": (("arm", "seed"), lambda c: [(a, s) for a in c["arms"] for s in c["seeds"]])}
REVERSED_CONFIG = {"reduced": bool, "arms": list[str], "seeds": list[int], "levels": list[float], "recipe": dict, "canvas": int}
STATES_CONFIG = {"reduced": bool, "seeds": list[int], "runs": list[list], "levels": list[float], "conditions": dict, "recipe": dict, "windows": int, "train_windows": int}
NEEDS = {
    "act1": Needs({"overfit": (("run",), lambda c: [(name,) for name in ("001", "002", "003", "004")])}, {"seeds": list[int], "lr": float, "reduced": bool}, MACHINES, rules="act1"),
    "act2": Needs(REVERSED | {"gate_sweep": (("condition", "gate"), lambda c: [(w, g) for w in reverse.CONDITIONS for g in c["gates"]])}, REVERSED_CONFIG | {"gates": list[float]},
                  ("target.name",), rules="act2", more=reverse.lacking),
    "act2_bare": Needs(REVERSED, REVERSED_CONFIG, ("target.name",), rules="act2_bare", more=reverse.lacking),
    "act3": Needs({"masked_launch": (("arm",), lambda c: [(arm,) for arm in denoising.ARMS]),
                   "canvas": (("source", "given", "forwards"), lambda c: [*((s, 0.0, 0) for s in denoising.SOURCES), *((s, *f) for s, *f in (("sampler", *fill) for fill in c["fills"]))])},
                  {"seeds": list[int], "steps": int, "bias_steps": int, "windows": int, "shared_windows": int, "fills": list[list], "reduced": bool}, MACHINES, rules="act3"),
    "act4n": Needs(
        {"alphabet": (("seed",), lambda c: [(s,) for s in c["seeds"]]), "state_check": (("check",), lambda c: [(name,) for name in c["checks"]]),
         "state_told": (("condition", "seed"), lambda c: [(k, s) for s in c["seeds"] for k in "DE"]),
         "state_launch": (("stage", "condition", "arm", "seed"), lambda c: [(1, k, "aligned", c["seeds"][0]) for k in c["conditions"]] + [(2, *run) for run in c["runs"]])},
        STATES_CONFIG | {"checks": list[str], "full": int, "heart_steps": int, "states": int, "near": float}, ("target.name",), rules="act4n", more=states.lacking),
    "act4n_bare": Needs(
        {"state_table": (("condition", "seed", "level"), lambda c: [(k, s, t) for s in c["seeds"] for k in "DE" for t in c["levels"]]),
         "state_launch": (("stage", "condition", "arm", "seed"), lambda c: [(2, *run) for run in c["runs"]])},
        STATES_CONFIG, ("target.name",), rules="act4n_bare", more=states.lacking),
    "act4s": Needs({"decode": (("arm",), lambda c: arms(*PLAIN))}, COMMON | {"repeats": int}, fields={"decode": ("overhead_seconds",)},
                   more=drafts_in_widths),
    "act4s_rest": Needs(
        {"cycle_cost": (("width",), lambda c: [(0,)]),
         "decode": (("section", "arm"), lambda c: [
             *arms(*PLAIN, "uno_k1", "uno_k4", "refine2_k4", "refine4_k4", "ngram2_k4", "untrained_k4", "conf_k4", section="controls"),
             *arms(*PLAIN, *rest.FIXED, *rest.POLICIES, rest.RULE, section="policies"), *arms("ar", "uno_k4", section="length"),
             *arms(*PLAIN, *rest.FIXED, section="context")])},
        COMMON | {"policy_prompts": list[str], "rest_repeats": int},
        fields={"decode": ("overhead_seconds",), "conf_k4": ("confidence_per_cycle",), "adapt_survival": ("width_per_cycle",)}, rules="act4s_rest"),
    "act4u2": Needs(
        {"decode": (("arm",), lambda c: arms(*PLAIN, *(f"{s}_k{k}" for k in c["block_sizes"] for s in undo.SCHEMES))),
         "commit": (("scheme", "width", "kept"), lambda c: [(s, w, n) for w in c["widths"] for n in range(1, w + 1) for s in undo.SCHEMES]),
         "gates": ((), lambda c: []), "rewind": ((), lambda c: [])},
        COMMON | {"repeats": int, "block_sizes": list[int], "widths": list[int]}, MACHINES,
        {"decode": ("token_digest",)} | dict.fromkeys((f"{s}_k" for s in undo.SCHEMES), ("replay_forwards", "recorded_bytes")), "act4u2"),
    "act4u6": Needs(
        {"decode": (("arm",), lambda c: arms("ar", staging.B, staging.DUPLICATE, staging.DECOUPLED, *staging.STAGED, *staging.TRUNCATED)),
         "wide_draft": (("condition", "draft_width"), lambda c: [("redraw", 4), *(("decoder", w) for w in dict.fromkeys([4, *c["drafts"]]))]),
         "cost": (("forward", "width"), lambda c: [*(("verify", w) for w in range(1, 18)), *(("draft", w) for w in range(1, 17))])},
        COMMON | {"drafts": list[int]}, fields={"decode": ("overhead_seconds",), **{a: ("draft_width",) for a in staging.STAGED}}, rules="act4u6"),
    "rprm1": Needs({"slots": (("stratum",), lambda c: [(s,) for s in uncertainty.LABELS])},
                   {"windows": int, "seed": int, "vocab": int, "strata": list[str], "dtype": str, "reduced": bool}, MACHINES, rules="rprm1"),
    "dflash": Needs(
        {"decode": (("arm",), lambda c: arms(*PLAIN, *(a for a in (block.HEAD, block.ADAPTER) if a in c["arms"]), *(f"dflash_b{b}" for b in c["blocks"]), *block.RULES.values(), "ngram2_k4")),
         "cycle_cost": (("width",), lambda c: [(0,), *((b,) for b in c["blocks"])]),
         "cost": (("forward", "width"), lambda c: [("verify", 1), *((f, b) for f in ("verify", "draft") for b in c["blocks"])])},
        COMMON | {"repeats": int, "blocks": list[int], "arms": list[str]}, MACHINES, {"decode": ("overhead_seconds",)}, "dflash"),
    "dflash_rest": Needs(
        {"decode": (("section", "arm"), lambda c: [a for s in ("precision", "context", "length", "modified", "machine")
                                                   for a in arms("ar", f"dflash_b{c['block']}", section=s)]),
         "text_effect": (("precision",), lambda c: [(name,) for name in c["bits"]])},
        COMMON | {"block": int, "lengths": list[int], "contexts": list[int], "bits": dict}, MACHINES, rules="dflash_rest"),
    "dflash_peers": Needs(
        {"decode": (("section", "arm"), lambda c: arms(*PLAIN, section=peers.SECTION)), "peer": (("peer",), lambda c: [("mlx-lm",), *((name,) for name in peers.RUNTIMES)])},
        COMMON | {"block": int, "drafts": list[int], "arms": list[str]}, MACHINES, {"decode": ("overhead_seconds",)}, "dflash_peers"),
    "act5": Needs(
        {"decode": (("section", "arm"), lambda c: arms(*PLAIN, "exact", "uno_k4", "uno_k4_exact", "dflash_b8", "dflash_b8_exact", section="price")),
         "identity": ((), lambda c: []),
         "width_noise": (("dtype",), lambda c: [(d,) for d in identity.DTYPES]), "audit": (("dtype", "arm"), lambda c: [(d, identity.CONTROL) for d in identity.DTYPES]),
         "museum": (("fault",), lambda c: [("none",)])},
        {"prompts": list[str], "tokens": int, "reduced": bool, "cell": int, "widths": list[int]}, rules="act5"),
    "act6": Needs(
        {"decode": (("section", "arm"), lambda c: [*arms(*PLAIN, *sampled.DRAFTERS.values(), section="greedy"),
                                                   *(a for s in ("t0.6", sampled.HOT) for a in arms(*PLAIN, *sampled.ARMS, section=s)),
                                                   *arms("ar", *sampled.ARMS, section="filtered")]),
         "chain": (("case",), lambda c: [(case,) for case in {sampled.CONTROL, *c["chains"]}])},
        COMMON | {"chain_tokens": int, "seed": int, "chains": list[str]}, MACHINES, {"decode": ("overhead_seconds",)}, "act6"),
} | {act: trains(act) for act in trained.NUMBERS}
