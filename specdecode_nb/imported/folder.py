"""The files of a ``results/`` folder: found by their published names, read once, and turned into rows."""
from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import BadInput
from ..records import check_row
from . import convert
from .stream import REMEDY, Reader, open_plain, table

SESSIONS = "baseline|ksweep|context|controls|adaptive|confidence"
SUMMARY = (
    "arm",
    "rows",
    "tok_s_median",
    "tok_s_mean",
    "tok_s_sd",
    "decode_tok_s_median",
    "decode_speedup_vs_ar",
    "tok_s_p25",
    "tok_s_p75",
    "speedup_vs_ar",
    "tpf_median",
    "ms_per_token_median",
    "ttft_ms_median",
    "acceptance_rate",
    "mean_accepted_prefix",
    "mean_committed_per_cycle",
    "cycles",
    "proposal_ms",
    "verify_ms",
    "commit_ms",
    "overhead_ms",
    "lossless",
)
NOT_FINITE = "a number that is not finite"
MOST = 20_000  # entries of a folder that is still taken for results/


@dataclass(frozen=True)
class Kind:
    """Files of one published schema: the ``act`` they belong to, how they are read, the ``columns`` of a CSV that are used."""

    pattern: str
    act: str
    reads: str  # rows, audit, aggregate or csv
    columns: tuple[str, ...] = ()


KINDS = (
    Kind(rf"[a-z0-9]+_(?:{SESSIONS})\.json", "act4s", "rows"),
    Kind(rf"[a-z0-9]+_(?:{SESSIONS})_divergence_audit\.json", "act4s", "audit"),
    Kind(r"[a-z0-9]+_degeneration\.json", "act4s", "loops"),
    Kind(rf"[a-z0-9]+_(?:{SESSIONS})_summary(?:_clean)?\.csv", "act4s", "csv", SUMMARY),
    Kind(rf"[a-z0-9]+_(?:{SESSIONS})_by_category\.csv", "act4s", "csv", ("category", *SUMMARY)),
    Kind(rf"[a-z0-9]+_(?:{SESSIONS})_survival\.csv", "act4s", "csv", ("arm", "context_length", "j", "p_survive")),
    Kind(rf"[a-z0-9]+_(?:{SESSIONS})_histogram\.csv", "act4s", "csv", ("arm", "accepted", "probability")),
    Kind(r"[a-z0-9]+_confidence_bins\.csv", "act4s", "csv", ("bin", "mean_top1", "mean_accepted", "n")),
    Kind(r"(?:calibrate|pilot|decisive)\.json", "act4u6", "rows"),
    Kind(r"(?:cost_curve|diagnostic_wide_draft|floor|pilot_gate|u6_scores)\.json", "act4u6", "aggregate"),
    Kind(r"u3_summary\.json", "act4u3", "aggregate"),
    Kind(
        r"u3_checkpoints\.csv",
        "act4u3",
        "csv",
        (
            "checkpoint",
            "step",
            "K",
            "val_tv",
            "tf_agree_specs",
            "free_acceptance_rate",
            "free_mean_accepted_specs",
            "free_full_block_rate",
            "tpf",
            "forwards_per_token",
            "proposal_ms",
            "verify_ms",
            "commit_ms",
            "tok_s_median",
            "tok_s_std",
            "predicted_tok_s",
            "ar_baseline_tok_s",
            "acc_plus_1",
            "acc_plus_2",
            "acc_plus_3",
        ),
    ),
    Kind(r"u3_acceptance_histogram\.csv", "act4u3", "csv", ("checkpoint", "step", "K", "accepted_specs", "cycles", "fraction")),
    Kind(r"u3_cost_model\.csv", "act4u3", "csv", ("checkpoint", "K", "target_speedup", "required_per_slot_accept", "actual_per_slot_accept", "actual_speedup")),
    Kind(r"u3_draftability\.csv", "act4u3", "csv", ("checkpoint", "quintile", "acceptance", "pearson_gap", "pearson_entropy")),
    Kind(r"eval_(?:curve|endpoints|replicates)\.json", "act4u5", "aggregate"),
)


@dataclass
class Source:
    """One file as it was read. ``rows`` in our schema, ``about`` what else its top level holds, ``odd`` its numbers that were not finite,
    ``left`` its rows that our schema cannot hold, by reason, ``whole`` whether all its rows are here.
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
    left: dict[str, int] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The name of the file itself, which is a published one; where it lay says nothing."""
        return f"{self.stem}{'.sample' * self.sample}{'.csv' if self.reads == 'csv' else '.json'}"

    @property
    def whole(self) -> bool:
        listed = self.about.get("summary")
        expected = [s.get("rows") for s in listed if isinstance(s, dict)] if isinstance(listed, list) else []
        checked = self.about.get("losslessness")
        drafted = checked.get("rows_checked") if isinstance(checked, dict) else None
        if type(drafted) is int and drafted != sum(r["cycles"] > 0 for r in self.rows):
            return False
        return not self.sample and not self.left and (not expected or any(type(n) is not int for n in expected) or sum(expected) == len(self.rows))


class Digested:
    """A file that is digested while it is read."""

    def __init__(self, file: BinaryIO):
        self.file, self.sha = file, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self.file.read(size)
        self.sha.update(data)
        return data

    def readline(self, size: int) -> bytes:
        data = self.file.readline(size)
        self.sha.update(data)
        return data


def walk(folder: Path) -> Iterator[tuple[Path, str]]:
    """Plain files of ``folder`` with their names in it, sorted. Raises BadInput for links and for what is too large to be results/."""
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
            name = os.path.relpath(entry.path, folder)
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode) and (kind_of(entry.name) or entry.is_dir()):
                raise BadInput(f"{name!a} is a link, and links are not followed; put a copy in its place.")
            if stat.S_ISDIR(mode):
                waiting.append(Path(entry.path))
            elif kind_of(entry.name):
                yield Path(entry.path), name


def kind_of(name: str) -> tuple[Kind, str, bool] | None:
    """(kind, stem, whether it is a cut sample) of a file by its name, None for other files."""
    sample = name.endswith(".sample.json")
    plain = name.removesuffix(".sample.json") + ".json" if sample else name
    kind = next((k for k in KINDS if re.fullmatch(k.pattern, plain)), None)
    return (kind, plain.rsplit(".", 1)[0], sample) if kind else None


def read(folder: Path) -> list[Source]:
    """Every file of ``folder`` that has a published name, whole files before samples. Raises BadInput, for whatever does not fit."""
    if not folder.is_dir():
        raise BadInput(f"{str(folder)!a} is no folder; name the results/ folder of the published project.")
    found: dict[tuple[str, str], tuple[Path, str, Kind, bool]] = {}
    for path, name in walk(folder):
        kind, stem, sample = kind_of(path.name)
        key = (stem, path.suffix)
        if key in found and found[key][3] == sample:
            raise BadInput(f"{found[key][1]!a} and {name!a} are the same file of results/; keep one of them.")
        if key not in found or found[key][3]:
            found[key] = (path, name, kind, sample)
    if not found:
        raise BadInput(f"{str(folder)!a} holds no file of the published project, such as speculative/main_ksweep.json; name its results/ folder.")
    sources = [one(path, name, kind, stem, sample) for (stem, _), (path, name, kind, sample) in sorted(found.items())]
    join(sources)
    return sources


def one(path: Path, name: str, kind: Kind, stem: str, sample: bool) -> Source:
    where = name.replace(os.sep, "/") if name.isprintable() and name.isascii() else f"{name!a}"
    source = Source(stem, where, kind.act, kind.reads, sample)
    with open_plain(path, where) as file:
        digested = Digested(file)
        if kind.reads == "csv":
            source.about["lines"] = []
            for number, (line, odd) in enumerate(table(digested, where, kind.columns)):
                source.odd += odd
                if odd:
                    source.left[NOT_FINITE] = source.left.get(NOT_FINITE, 0) + 1
                else:
                    source.about["lines"].append(line)
                    source.rows += convert.summaries(line, stem, str(number))
        else:
            read_json(Reader(digested, where), source, where)
        source.digest = digested.sha.hexdigest()
    return source


def read_json(reader: Reader, source: Source, where: str) -> None:
    listed = {"rows": "rows", "audit": "audit", "loops": "rows"}.get(source.reads, "")
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
            source.rows.append(convert.decode_row(value, session, where, number, source.sample))
        elif source.reads == "audit":
            source.rows.append(convert.audit_row(value, session.removesuffix("_divergence_audit"), where, number))
        else:
            source.rows.append(convert.loops_row(value, where, number))
    except BadInput:
        reason = NOT_FINITE if reader.last_odd else "lists cut short" if source.sample else ""
        if not reason:
            raise
        source.left[reason] = source.left.get(reason, 0) + 1


def join(sources: list[Source]) -> None:
    """What one file knows of the rows of another: gaps of the audits, and how far plain decoding of a prompt repeats itself."""
    audits = {s.stem: s.rows for s in sources if s.reads == "audit"}
    looped = {(r["prompt_id"], r["tokens_length"]): r["looped_fraction"] for s in sources if s.reads == "loops" for r in s.rows}
    looped |= {
        (r["prompt_id"], r["tokens"]): r["ar_looped_fraction"] for s in sources if s.reads == "rows" for r in s.rows if r["ar_looped_fraction"] is not None
    }
    for s in sources:
        if s.reads == "rows":
            own = s.about.get("ulp_audit", {})
            own = own.get("audit", []) if isinstance(own, dict) else []
            if not isinstance(own, list):
                raise BadInput(f"{s.name} has no list at ulp_audit.audit; {REMEDY}.")
            audit = audits.get(f"{s.stem}_divergence_audit") or [convert.audit_row(a, s.stem, s.name, n) for n, a in enumerate(own)]
            convert.with_gaps(s.rows, audit)
            for number, row in enumerate(s.rows):
                if row["ar_looped_fraction"] is None:
                    row["ar_looped_fraction"] = looped.get((row["prompt_id"], row["tokens"]))
                check_row(row, s.name, f"rows[{number}]")
            twice = duplicate(s.rows)
            if twice:
                raise BadInput(f"{s.name} holds two rows of {' '.join(map(str, twice))}; {REMEDY}.")


def duplicate(rows: list[dict]) -> tuple | None:
    """Arm, prompt, repeat and length of the first row that is there twice."""
    seen = set()
    for r in rows:
        key = (r["arm"], r["prompt_id"], r["repeat"], r["tokens"])
        if key in seen:
            return key
        seen.add(key)
    return None
