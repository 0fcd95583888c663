"""The published project's ``results/`` folder in our row schema, and its tables worked out again (section 7 of the description of the system)."""
from __future__ import annotations

import csv
import io
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .. import statistics as st
from ..book import published
from ..errors import BadInput
from ..records import save_rows, write_atomic
from ..rows import Strict
from . import compare, convert, folder
from .folder import Source
from .stream import REMEDY, counted

PROJECT, RELEASE = "qwen-block-diffusion-lab", "diffusion-specdecode-v0.1"
MODEL = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
SETTINGS = ("tokens", "repeats", "warmup", "block_sizes", "token_counts", "allowed", "default_k", "entropy_low", "entropy_high", "noise_stream_seed",
            "transaction_mode", "include_truncate", "tag", "command")
AGREEMENT = "agreement.csv"


class Origin(Strict):
    """The provenance of a published file, as far as it is kept: no host, user or path is in it."""

    model: convert.Words | None = None
    timestamp: convert.Words | None = None
    commit: convert.Words | None = None
    git_sha: convert.Words | None = None
    branch: convert.Words | None = None
    dirty: bool | None = None
    git_dirty: bool | None = None
    platform: convert.Words | None = None
    machine: convert.Words | None = None
    mlx: convert.Words | None = None
    backbone_digest: str | None = None


@dataclass(frozen=True)
class Imported:
    """What a folder held: its files, the comparison cell by cell, and the row files that were written."""

    sources: list[Source]
    lines: list[compare.Line]
    written: list[Path]


def bring(results: Path, out: Path, place: Callable[..., Path]) -> Imported:
    """Read ``results``, compare, and write row files and the comparison under ``out``; nothing is written before all has been read.

    ``place(out, *inside)`` tells whether one may write there. Raises BadInput for whatever does not fit.
    """
    root = Path(os.path.expanduser(results))
    if place(out).resolve().is_relative_to(root.resolve()):
        raise BadInput(f"--out {out} lies in {results}, which is only read; choose another folder.")
    sources = folder.read(root)
    lines = compare.compare(sources)
    files = [made for act in dict.fromkeys(s.act for s in sources) for made in row_files(act, [s for s in sources if s.act == act])]
    targets = sorted({target for target, *_ in files})
    out = place(out, *targets)
    for target in targets:
        if (out / target).resolve() != out.resolve() / target:
            raise BadInput(f"{out / target} is a link that leads elsewhere; remove it or choose another --out.")
    return Imported(sources, lines, write(out, files, lines))


def write(out: Path, files: Iterable[tuple], lines: Iterable[compare.Line]) -> list[Path]:
    """All files are made beside their places first, so that a full disk leaves none of them half written."""
    made = [p for p in (out, *out.parents) if not p.exists()]
    out.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=out, prefix=".import-"))
    try:
        names = [AGREEMENT]
        write_atomic(staging / AGREEMENT, as_csv(lines))
        for target, name, act, provenance, config, rows in files:
            save_rows(staging / target / name, act, target, provenance, config, rows)
            names.append(f"{target}/{name}")
        for name in names:
            (out / name).parent.mkdir(exist_ok=True)
            os.replace(staging / name, out / name)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        for p in made:
            if p.is_dir() and not any(p.iterdir()):
                p.rmdir()
        raise
    shutil.rmtree(staging, ignore_errors=True)
    return [out / name for name in names]


def row_files(act: str, sources: list[Source]) -> Iterable[tuple[str, str, str, dict, dict, list[dict]]]:
    """(target, file name, act, provenance, config, rows): a file a session of decode rows, one with everything else of the Act."""
    facts = published.load(act).facts
    rest: list[Source] = []
    for s in sources:
        if s.reads == "rows":
            if s.rows:
                provenance = origin(s.about, facts, [s])
                yield folder_name(provenance), f"{act}-{s.stem}.json", act, provenance, settings(s), s.rows
        elif s.rows:
            rest.append(s)
    if rest:
        about = next((s.about for s in rest if isinstance(s.about.get("provenance"), dict)), {})
        provenance = origin(about, facts, rest)
        yield folder_name(provenance), f"{act}-summaries.json", act, provenance, {"reduced": False}, [row for s in rest for row in s.rows]


def folder_name(provenance: dict) -> str:
    return provenance["target"]["name"].rsplit("/", 1)[1].lower()


def origin(about: dict, facts: published.Published, sources: list[Source]) -> dict:
    """Provenance that says whose rows these are. What a file does not say of itself stands as data/published has it, and is named in ``as_published``."""
    where = sources[0].name
    given = about.get("provenance")
    if given is not None and not isinstance(given, dict):
        raise BadInput(f"{where} has no object at provenance; {REMEDY}.")
    o = convert.fit(Origin, {k: v for k, v in (given or {}).items() if k in Origin.model_fields}, where, "provenance")
    model = o.model or facts.setup.get("model", "").split(",")[0]
    if not MODEL.fullmatch(model):
        raise BadInput(f"{where} names the model {model!a}, which is no owner/name; {REMEDY}.")
    digest = re.search(r"digest='([0-9a-f]{64})'.*?num_params=(\d{1,15})", o.backbone_digest or "")
    sha = about.get("adapter_sha256")
    kept = {"commit": o.commit or o.git_sha, "branch": o.branch, "uncommitted_changes": o.git_dirty if o.dirty is None else o.dirty}
    return {
        "origin": "published",
        "project": PROJECT,
        "release": RELEASE,
        "target": {"name": model, "dtype": "bfloat16", **({"digest": digest[1], "parameters": int(digest[2])} if digest else {})},
        "drafter": {"name": "uno", **({"sha256": sha} if isinstance(sha, str) and re.fullmatch("[0-9a-f]{64}", sha) else {})},
        "machine": {"class": facts.setup.get("hardware", "machine not named")} | {k: v for k, v in (("platform", o.platform), ("architecture", o.machine)) if v},
        "versions": {"mlx": o.mlx} if o.mlx else {},
        "date": (o.timestamp or facts.date or "undated")[:10],
        **{k: v for k, v in kept.items() if v is not None},
        "as_published": ["machine.class"] + ["target.name"] * (not o.model) + ["date"] * (not o.timestamp),
        "files": [{"name": s.file, "sha256": s.digest, "cut_sample": s.sample} for s in sources],
    }


def settings(source: Source) -> dict:
    """The configuration of a session without its paths, with what our pages ask of one."""
    given = source.about.get("config")
    if given is not None and not isinstance(given, dict):
        raise BadInput(f"{source.name} has no object at config; {REMEDY}.")
    kept = {k: v for k in SETTINGS if isinstance(v := (given or {}).get(k), (bool, int, float)) or isinstance(v, str) and convert.short(v)}
    rows = source.rows
    return kept | {
        "dtype": "bfloat16",
        "reduced": not source.whole,
        "arms": list(dict.fromkeys(r["arm"] for r in rows)),
        "prompts": list(dict.fromkeys(r["prompt_id"] for r in rows)),
        "cut_sample": source.sample,
    }


# --- what is told ---

def as_csv(lines: Iterable[compare.Line]) -> str:
    """Every published cell that was compared, one a line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["act", "published table", "row", "column", "published", "recomputed", "from", "agrees"])
    for x in lines:
        writer.writerow([x.act, x.table, x.row, x.column, x.published, "" if x.found is None else x.found, x.how, WORDS[x.agrees]])
    return text.getvalue()


WORDS = {True: "yes", False: "NO", None: "not all rows here"}


STAGES = (("proposal", "draft"), ("verify", "verify"), ("commit", "commit"), ("overhead", "overhead"))


def recheck(rows: Iterable[dict]) -> Counter:
    """Figures that published decode rows state of themselves, by whether they follow from the lists and times of the same row, to the digits given."""
    found: Counter = Counter()
    for r in rows:
        stated, cycles = r["recorded"], r["cycles"]
        pairs = [(stated.get("tokens_per_forward"), st.tokens_per_forward(r), 0.5e-4)]
        if cycles:
            pairs.append((stated.get("mean_committed_per_cycle"), st.mean(r["committed_per_cycle"]), 0.5e-4))
            pairs += [(stated.get(f"{theirs}_ms_per_cycle"), 1000 * r[f"{ours}_seconds"] / cycles, 0.5e-4 + 0.5e-2 / cycles) for theirs, ours in STAGES]
            if "offered_per_cycle" in r:
                pairs.append((r["acceptance_rate"], sum(r["accepted_per_cycle"]) / max(1, sum(r["offered_per_cycle"])), 0.5e-4))
        found.update(abs(own - value) <= limit + 1e-9 for own, value, limit in pairs if own is not None)
    return found


def told(made: Imported) -> Iterable[str]:
    """The report in lines: what was read, every table with its cells by outcome, every difference."""
    s = made.sources
    rows = [r for x in s for r in x.rows]
    kinds = ", ".join(f"{n} rows of kind {k}" for k, n in Counter(r["kind"] for r in rows).items())
    yield f"Read {len(s)} files of {PROJECT}, {sum(x.sample for x in s)} of them cut samples: {kinds}."
    for x in s:
        for reason, n in x.left.items():
            yield f"  {x.name}: {counted(n)} left out ({reason})"
        if x.odd:
            yield f"  {x.name}: {x.odd} numbers were not finite and became null"
    if own := recheck(r for r in rows if r["kind"] == "decode"):
        yield f"Of the figures that decode rows state of themselves, {own[True]} of {sum(own.values())} follow from the lists and times of the same row."
    if tallied := compare.tally(made.lines):
        yield ""
        yield f"{'published table':31} {'cells':>5} {'agree':>5} {'differ':>6} {'not here':>8}   worked out from"
        for (act, table), n in tallied.items():
            how = ", ".join(f"{n[h]} {h}" for h in (compare.ROWS, compare.COUNTS, compare.DERIVED, compare.READ) if n[h])
            yield f"{told_of(f'{act} {table}', n)}   {how or 'not all rows here'}"
        yield told_of("all", sum(tallied.values(), Counter()))
        yield "rows: by our statistics from decode rows; counts: from cycles by accepted tokens; derived: ratios, fits and sums of published numbers;"
        yield "read: stands in a published file as it is. A cell agrees if it rounds to the digits printed in its column."
    differing = [x for x in made.lines if x.agrees is False]
    yield ""
    yield f"Differences: {len(differing) or 'none'}"
    if any(x.how == compare.DERIVED for x in differing):
        yield "(what is derived starts from printed numbers; their rounding alone can move its last digit)"
    for x in differing:
        found = f"{x.found:.9g}" if isinstance(x.found, float) else x.found
        yield f"  {x.table} | {x.row} | {x.column} | published {x.published} | recomputed {found} | {x.how} | differs"
    yield ""
    yield "Written (published rows, none of them measured here):"


def told_of(name: str, n: Counter) -> str:
    return f"{name:31} {n[True] + n[False] + n[None]:5} {n[True]:5} {n[False]:6} {n[None]:8}"
