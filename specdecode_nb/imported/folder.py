"""The files of a ``results/`` folder: found by their published names, read once, and turned into rows."""
from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..records import check_row
from . import convert
from .stream import REMEDY, Reader, open_plain, table

NOT_FINITE = "a number that is not finite"
MOST = 20_000  # entries of a folder that is still taken for results/
SESSIONS = r"[a-z0-9]+_(?:baseline|ksweep|context|controls|adaptive|confidence)"
SUMMARY = tuple("""
    arm rows tok_s_median tok_s_mean tok_s_sd decode_tok_s_median decode_speedup_vs_ar tok_s_p25 tok_s_p75 speedup_vs_ar tpf_median ms_per_token_median
    ttft_ms_median acceptance_rate mean_accepted_prefix mean_committed_per_cycle cycles proposal_ms verify_ms commit_ms overhead_ms lossless
    """.split())
CHECKPOINT = """
    checkpoint step K val_tv tf_agree_specs free_acceptance_rate free_mean_accepted_specs free_full_block_rate tpf forwards_per_token proposal_ms verify_ms
    commit_ms tok_s_median tok_s_std predicted_tok_s ar_baseline_tok_s acc_plus_1 acc_plus_2 acc_plus_3"""
KINDS = (  # names of the files of one published schema, their Act, how they are read, the columns of a CSV file that are used
    (rf"{SESSIONS}\.json", "act4s", "rows", ""),
    (rf"{SESSIONS}_divergence_audit\.json", "act4s", "audit", ""),
    (r"[a-z0-9]+_degeneration\.json", "act4s", "loops", ""),
    (rf"{SESSIONS}_summary(?:_clean)?\.csv", "act4s", "csv", " ".join(SUMMARY)),
    (rf"{SESSIONS}_by_category\.csv", "act4s", "csv", " ".join(("category", *SUMMARY))),
    (rf"{SESSIONS}_survival\.csv", "act4s", "csv", "arm context_length j p_survive"),
    (rf"{SESSIONS}_histogram\.csv", "act4s", "csv", "arm accepted probability"),
    (r"[a-z0-9]+_confidence_bins\.csv", "act4s", "csv", "bin mean_top1 mean_accepted n"),
    (r"(?:calibrate|pilot|decisive)\.json", "act4u6", "rows", ""),
    (r"(?:cost_curve|diagnostic_wide_draft|floor|pilot_gate|u6_scores)\.json", "act4u6", "aggregate", ""),
    (r"u3_summary\.json", "act4u3", "aggregate", ""),
    (r"u3_checkpoints\.csv", "act4u3", "csv", CHECKPOINT),
    (r"u3_acceptance_histogram\.csv", "act4u3", "csv", "checkpoint step K accepted_specs cycles fraction"),
    (r"u3_cost_model\.csv", "act4u3", "csv", "checkpoint K target_speedup required_per_slot_accept actual_per_slot_accept actual_speedup"),
    (r"u3_draftability\.csv", "act4u3", "csv", "checkpoint quintile acceptance pearson_gap pearson_entropy"),
    (r"eval_(?:curve|endpoints|replicates)\.json", "act4u5", "aggregate", ""),
)
LISTED = {"rows": "rows", "audit": "audit", "loops": "rows"}  # where a file's rows are, by how it is read


@dataclass
class Source:
    """One file as it was read. ``rows`` in our schema, ``about`` what else its top level holds, ``odd`` its numbers that were not finite,
    ``left`` its rows that our schema cannot hold, by reason.
    """

    stem: str
    name: str
    act: str
    reads: str
    sample: bool = False
    digest: str = ""
    rows: list[dict] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    odd: int = 0
    left: Counter = field(default_factory=Counter)

    @property
    def file(self) -> str:
        """The name of the file itself, which is a published one; where it lay says nothing."""
        return f"{self.stem}{'.sample' * self.sample}{'.csv' if self.reads == 'csv' else '.json'}"

    @property
    def whole(self) -> bool:
        """Whether all its rows are here, by what it says of their number."""
        listed, checked = self.about.get("summary"), self.about.get("losslessness")
        expected = [s.get("rows") for s in listed if isinstance(s, dict)] if isinstance(listed, list) else []
        drafted = checked.get("rows_checked") if isinstance(checked, dict) else None
        if self.sample or self.left or type(drafted) is int and drafted != sum(r["cycles"] > 0 for r in self.rows):
            return False
        return not expected or any(type(n) is not int for n in expected) or sum(expected) == len(self.rows)


def walk(folder: Path) -> Iterator[Path]:
    """Plain files of ``folder`` that have a published name, sorted. Raises BadInput for links and for what is too large to be results/."""
    seen, waiting = 0, [folder]
    while waiting:
        place = waiting.pop()
        try:
            entries = sorted(os.scandir(place), key=lambda e: e.name)
        except OSError as error:
            raise BadInput(f"{str(place)!a} cannot be read ({error.strerror}); name the results/ folder of the published project.") from None
        for entry in entries:
            seen += 1
            if seen > MOST:
                raise BadInput(f"{str(folder)!a} holds more than {MOST:,} files; name the results/ folder itself.")
            if entry.is_symlink() and (kind_of(entry.name) or entry.is_dir()):
                raise BadInput(f"{os.path.relpath(entry.path, folder)!a} is a link, and links are not followed; put a copy in its place.")
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            elif kind_of(entry.name):
                yield Path(entry.path)


def kind_of(name: str) -> tuple[str, str, str] | None:
    """(Act, how it is read, columns) of a file by its name, None for other files."""
    plain = name.removesuffix(".sample.json") + ".json" * name.endswith(".sample.json")
    return next((kind for pattern, *kind in KINDS if re.fullmatch(pattern, plain)), None)


def read(folder: Path) -> list[Source]:
    """Every file of ``folder`` that has a published name, whole files before samples. Raises BadInput, for whatever does not fit."""
    if not os.path.isdir(folder):  # of pathlib it raises for a name that is too long
        raise BadInput(f"{str(folder)!a} is no folder; name the results/ folder of the published project.")
    found: dict[str, tuple[Path, str, bool]] = {}
    for path in walk(folder):
        name, sample = os.path.relpath(path, folder), path.name.endswith(".sample.json")
        key = path.name.replace(".sample.json", ".json")
        if key in found and found[key][2] == sample:
            raise BadInput(f"{found[key][1]!a} and {name!a} are the same file of results/; keep one of them.")
        if key not in found or found[key][2]:
            found[key] = (path, name, sample)
    if not found:
        raise BadInput(f"{str(folder)!a} holds no file of the published project, such as speculative/main_ksweep.json; name its results/ folder.")
    sources = [one(*place) for _, place in sorted(found.items())]
    join(sources)
    return sources


def one(path: Path, name: str, sample: bool) -> Source:
    where = name.replace(os.sep, "/") if name.isprintable() and name.isascii() else f"{name!a}"
    act, reads, columns = kind_of(path.name)
    source = Source(path.name.split(".")[0], where, act, reads, sample)
    with open_plain(path, where) as file:
        source.digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        if reads == "csv":
            source.about["lines"] = []
            for number, (line, odd) in enumerate(table(file, where, columns.split())):
                source.odd += odd
                if odd:
                    source.left[NOT_FINITE] += 1
                else:
                    source.about["lines"].append(line)
                    source.rows += convert.summaries(line, source.stem, str(number))
        else:
            read_json(Reader(file, where), source, where)
    return source


def read_json(reader: Reader, source: Source, where: str) -> None:
    listed = LISTED.get(source.reads, "")
    for key, value in reader.items((listed,)):
        if key == "_sample_note":
            source.sample = True
        elif key != listed:
            source.about[key] = value
        elif not isinstance(value, dict):
            raise BadInput(f"{where} has no object at {listed}[{reader.rows - 1}]; {REMEDY}.")
        else:
            add(source, value, where, reader)
    source.odd = reader.odd
    if source.reads == "aggregate":
        source.rows += convert.summaries({k: v for k, v in source.about.items() if k != "provenance"}, source.stem)
    if listed and not reader.rows and not source.sample:
        raise BadInput(f"{where} holds no {listed}; {REMEDY}.")


def add(source: Source, value: dict, where: str, reader: Reader) -> None:
    """One published row. One that holds a number that is not finite where our schema needs one, or whose lists were cut in a sample, is left out and counted."""
    number, session = reader.rows - 1, source.stem.split("_", 1)[-1]
    try:
        if source.reads == "rows":
            row = convert.decode_row(value, session, where, number, source.sample)
        elif source.reads == "audit":
            row = convert.audit_row(value, session.removesuffix("_divergence_audit"), where, number)
        else:
            row = convert.loops_row(value, where, number)
        source.rows.append(row)
    except BadInput:
        reason = NOT_FINITE if reader.last_odd else "lists cut short" if source.sample else ""
        if not reason:
            raise
        source.left[reason] += 1


def join(sources: list[Source]) -> None:
    """What one file knows of the rows of another: gaps of the audits, and how far plain decoding of a prompt repeats itself."""
    audits = {s.stem: s.rows for s in sources if s.reads == "audit"}
    looped = {(r["prompt_id"], r["tokens_length"]): r["looped_fraction"] for s in sources if s.reads == "loops" for r in s.rows}
    looped |= {
        (r["prompt_id"], r["tokens"]): r["ar_looped_fraction"] for s in sources if s.reads == "rows" for r in s.rows if r["ar_looped_fraction"] is not None
    }
    for s in sources:
        if s.reads != "rows":
            continue
        own = s.about.get("ulp_audit", {})
        own = own.get("audit", []) if isinstance(own, dict) else []
        if not isinstance(own, list):
            raise BadInput(f"{s.name} has no list at ulp_audit.audit; {REMEDY}.")
        audit = audits.get(f"{s.stem}_divergence_audit") or [convert.audit_row(a, s.stem, s.name, n) for n, a in enumerate(own)]
        convert.with_gaps(s.rows, audit)
        seen = set()
        for number, row in enumerate(s.rows):
            if row["ar_looped_fraction"] is None:
                row["ar_looped_fraction"] = looped.get((row["prompt_id"], row["tokens"]))
            check_row(row, s.name, f"rows[{number}]")
            key = (row["arm"], row["prompt_id"], row["repeat"], row["tokens"])
            if key in seen:
                raise BadInput(f"{s.name} holds two rows of {' '.join(map(str, key))}; {REMEDY}.")
            seen.add(key)
