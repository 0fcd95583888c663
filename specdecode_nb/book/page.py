"""What a notebook sees: the page of one Act, with its facts, its rows, and everything it shows.

Whatever is shown gets a number, an id, its origin and a line of metadata by which ``specdecode-nb check`` finds it again.
:meth:`Page.finish` refuses a page that has left out any published table, criterion, negative result, figure or note.
"""
from __future__ import annotations

import base64
import importlib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pandas as pd
from IPython.display import display

from .. import paths
from ..criteria import AFTERWARDS, FAILS, HOLDS, Criteria, Outcome, load
from ..errors import BadInput, nearest
from ..records import RowFile, load_rows, sha256
from . import acts, figures, overview, palette, tables, trained
from . import numbers as number_files
from . import published as facts
from .numbers import Numbers
from .origin import FIRST, Computed, measured_label, measured_path

OUT, COMMAND = "SPECDECODE_OUT", "SPECDECODE_COMMAND"
LONG = 12  # rows of a list of launches that are shown; its files have all
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class Page:
    """One Act in its notebook.

    Attributes:
        params: the notebook's parameters, checked.
        published: the published facts (:class:`.published.Act`); None for the overview and for an Act of our own.
        rows: the measured row file, or None where nothing has been measured yet.
        imported: the row file that ``rows`` names, where it is one of published rows: drawn beside the verdict, never in the place of ``rows``.
        parts: the row files of the Act's further measurements by name, None where there is none yet.
    """

    def __init__(self, act: str, names: Mapping):
        spec = acts.get(act)
        absent = next((name for name in spec.defaults if name not in names), None)
        if absent:
            raise BadInput(f"The notebook of {act} has no parameter {absent!r}; give it in the cell tagged parameters.")
        given = {name: names[name] for name in spec.defaults if type(names[name]) is not type(spec.defaults[name]) or names[name] != spec.defaults[name]}
        self.act, self.params = act, spec.resolve(given)
        self.published = facts.load(act) if act in paths.ACTS else None
        given = self._given(spec)
        known = [act, *(f"{act}_{part}" for part in spec.parts)]
        if given is not None and given.act not in known:
            raise BadInput(f"{given.name} holds rows of {given.act!r}, this is {act!r}; name a row file of this Act.")
        self.imported = given if given is not None and given.published else None
        own = given if self.imported is None else None
        found = {name: own if own is not None and own.act == name else self.borrowed(name) if "rows" in self.params else None for name in known}
        self.rows, self.parts = found[act], {part: found[f"{act}_{part}"] for part in spec.parts}
        self.numbers = Numbers(act)
        self.command = os.environ.get(COMMAND, f"specdecode-nb run {act}")
        self._out = Path(os.environ[OUT]) if OUT in os.environ else None
        self._count, self._ids, self._shown, self._sources = {"Figure": 0, "Table": 0}, set(), set(), {}
        for source in (self.published, self.imported, self.rows, *self.parts.values()):
            if source is not None:
                self._sources[source.name] = source.digest

    def _given(self, spec: acts.Act) -> RowFile | None:
        """The row file that the parameters name or make."""
        if self.params.get("rows"):
            path = Path(self.params["rows"])
            return load_rows(path, path.name if path.is_absolute() else path.as_posix())
        if self.params.get("measure"):
            name, function = spec.measuring(self.params)
            module, function = function.split(":")
            return load_rows(getattr(importlib.import_module(module), function)(self.params, Path.cwd() / f"{name}.journal"))
        return None

    def borrowed(self, act: str, target: str | None = None) -> RowFile | None:
        """The committed rows of an Act, another one's too, on this page's target or on ``target``; None where there are none."""
        path = measured_path(act, target or self.params["target"])
        return load_rows(path, path.relative_to(paths.root()).as_posix()) if path.exists() else None

    # --- where numbers come from ---

    @property
    def measured_label(self) -> str:
        return measured_label(self.rows)

    def label(self, sources: Sequence) -> str:
        labels = (measured_label(s) if isinstance(s, RowFile) else s.label for s in sources if s is not None)
        return "; and ".join(dict.fromkeys(labels))

    def _origin(self, sources: Sequence | None) -> list:
        chosen = [self.published] if sources is None else list(sources)
        if not chosen or any(s is None for s in chosen):
            raise ValueError("Name the sources of this item: page.published, page.rows, or another Act's facts.")
        self._sources |= {s.name: s.digest for s in chosen}
        return chosen

    @property
    def computed(self) -> Computed:
        """The origin of what a page works out by itself, without a model or a published figure: its own text source."""
        path = paths.notebooks() / "source" / f"{self.act}.py"
        return Computed(path.relative_to(paths.root()).as_posix(), sha256(path.read_bytes()))

    def value(self, table: str, column: str, **where):
        """One cell of a published table, see :meth:`.published.Act.value`."""
        return self.published.value(table, column, **where)

    # --- showing ---

    def _show(self, bundle: dict, **metadata) -> None:
        display(bundle, metadata=metadata, raw=True)

    def _markdown(self, text: str, **about) -> None:
        self._show({"text/markdown": text, "text/plain": text}, **({"specdecode": about} if about else {}))

    def _identify(self, item: str, kind: str) -> tuple[str, int]:
        if not SLUG.fullmatch(item):
            raise ValueError(f"{item!r} is no id; use lower case words joined by hyphens.")
        full = f"{self.act}-{item}"
        if (kind, full) in self._ids:
            raise ValueError(f"The {kind.lower()} id {full!r} is used twice; give each its own.")
        self._ids.add((kind, full))
        self._count[kind] += 1
        return full, self._count[kind]

    def figure(self, figure, id: str, caption: str, alt: str, sources: Sequence | None = None) -> None:
        """Show a figure and keep it as ``<act>-<id>`` (PNG, SVG, PDF, record).

        Args:
            caption: what is drawn; the origin is added. ``alt``: what it shows, for those who do not see it (40+ characters).
            sources: page.published (default), page.rows or both.
        """
        caption, chosen = self.numbers.fill(caption), self._origin(sources)
        alt = self.numbers.fill(alt)
        if len(alt) < 40 or alt == caption:
            raise ValueError(f"The alt text of figure {id!r} must tell what the figure shows, in 40 characters or more.")
        full, number = self._identify(id, "Figure")
        caption = f"{caption.rstrip('. ')}. ({self.label(chosen)})"
        made = figures.render(figure, full, caption, [(s.name, s.digest) for s in chosen])
        sidecar = figures.record(full, made, {"caption": caption, "alt": alt, **self._about(chosen)})
        if self._out:
            figures.write(self._out / "figures", full, made, sidecar)
        self._show({"image/png": base64.b64encode(made["png"]).decode(), "text/plain": f"[figure {full}: {alt}]"}, filename=f"{full}.png",
                   specdecode={"figure": full, "sha256": figures.sha256(sidecar.encode())}, **{"image/png": {"alt": alt}})
        self._markdown(f"**Figure {number}** (`{full}`). {caption}")

    def _about(self, chosen: Sequence) -> dict:
        return {"act": self.act, "sources": [{"file": s.name, "sha256": s.digest} for s in chosen], "command": self.command}

    def show(self, frame: pd.DataFrame, id: str, caption: str, fmt: Mapping[str, str] | None = None, sources: Sequence | None = None,
             full: pd.DataFrame | None = None, full_fmt: Mapping[str, str] | None = None) -> None:
        """Show a table and keep it as ``<act>-<id>`` (CSV, LaTeX, Markdown, record).

        ``fmt`` gives a column its number format; ``frame.attrs["units"]`` its unit. Where ``frame`` is an extract,
        ``full`` is what goes to the files, with the formats ``full_fmt`` (default: those of ``fmt`` that it has columns for).
        """
        caption, chosen = self.numbers.fill(caption), self._origin(sources)
        whole, number = self._identify(id, "Table")
        caption = f"{caption.rstrip('. ')}. ({self.label(chosen)})"
        keep = frame if full is None else full
        formats = full_fmt if full_fmt is not None else {k: v for k, v in (fmt or {}).items() if k in keep.columns}
        record = tables.prepare(whole, keep, caption, {"caption": caption, **self._about(chosen)}, formats)
        if self._out:
            tables.write(self._out / "figures" / "tables", record)
        cut = "" if full is None else f" {len(frame)} of {len(full)} rows and {len(frame.columns)} of {len(full.columns)} columns; all of it in `figures/tables/{whole}.csv`."
        self._markdown(f"**Table {number}** (`{whole}`). {caption}{cut}")
        self._show({"text/html": tables.as_html(frame, fmt), "text/plain": tables.as_text(frame, fmt)},
                   specdecode={"table": whole, "sha256": figures.sha256(record[f"{whole}.json"].encode())})

    def table(self, table: str, columns: Sequence[str] | None = None, rows: Callable[[dict], bool] | None = None, caption: str = "",
              fmt: Mapping[str, str] | None = None, names: Mapping[str, str] | None = None, sources: Sequence | None = None) -> None:
        """Show a published table; ``columns`` and ``rows`` (a test on a row) fold a long one, the files keep all of it.

        ``names`` renames columns for reading; arms are shown by their names in the legends, unless ``names`` has the column.
        """
        source = self.published.table(table)
        whole = source.frame()
        unknown = next((c for c in [*(columns or ()), *(names or ())] if c not in whole.columns), None)
        if unknown:
            raise BadInput(f"Table {table} has no column {unknown!r}{nearest(unknown, whole.columns)}; its columns are {', '.join(whole.columns)}.")
        shown = whole if rows is None else whole[[bool(rows(r)) for r in whole.to_dict("records")]]
        shown = shown[list(columns)] if columns else shown
        if not len(shown):
            raise BadInput(f"No row of table {table} passes the test; change it.")
        units = {(names or {}).get(k, k): u for k, u in whole.attrs["units"].items()}
        if "arm" in shown.columns and "arm" not in (names or {}):
            shown = shown.assign(arm=[palette.label(a, self.act) if isinstance(a, str) else a for a in shown["arm"]])
        shown = shown.rename(columns=dict(names or {}))
        shown.attrs = {"units": units}
        folded = len(shown) < len(whole) or len(shown.columns) < len(whole.columns)
        self._shown.add(("table", table))
        text = f"{(caption or source.title).rstrip('. ')}. Source: {source.source}"
        old = {new: name for name, new in (names or {}).items()}
        original = {old.get(k, k): spec for k, spec in (fmt or {}).items()}
        formats = {(names or {}).get(k, k): spec for k, spec in original.items()}
        self.show(shown, table.removeprefix(f"{self.act}_").replace("_", "-").lower(), text, formats, sources, whole if folded else None, original if folded else None)

    def say(self, text: str) -> None:
        """Prose with numbers: ``[[name]]`` stands for a recorded number; an unknown name is an error."""
        used = sorted({m.strip() for m in number_files.USE.findall(text)})
        self._markdown(self.numbers.fill(text), numbers={n: self.numbers.text(n) for n in used})

    def number(self, name: str, value, fmt: str = "", unit: str = "", source: str | None = None) -> str:
        """Record a number of this Act for prose, JSON and LaTeX; returns it formatted. ``source``: file or table it comes from."""
        return self.numbers.record(name, value, fmt, unit, source if source is not None else (self.published or self.rows).name)

    def check(self, claim: str, holds: bool) -> None:
        """The claim just made, tested on the data. A claim that does not hold stops a build from committed rows; on rows of the
        reader's own (another machine, drafter or setting) it is told, since the text was written for the committed ones."""
        if not bool(holds):
            if self.params.get("rows") or self.params.get("measure"):
                self._markdown(f"**Does not hold on these rows**, other than the committed ones: {self.numbers.fill(claim)}.")
                return
            raise AssertionError(f"This does not hold: {claim}")
        self._markdown(f"Checked: {self.numbers.fill(claim)}.")

    # --- published parts ---

    def opening(self) -> None:
        """The question, what was found here, and what was run on what; of an Act of our own no setup."""
        self._shown.add(("opening", ""))
        files = {self.act: self.rows} | {f"{self.act}_{part}": file for part, file in self.parts.items()}
        # a short run may lack what a finding is made of
        told = [f"on {file.target}: {overview.found(name, file)[0]}." for name, file in files.items() if file is not None and not file.config.get("reduced")]
        here = "\n\n**Found here**, " + "\n\n**Found besides**, ".join(told) if told else ""
        if self.published is None:
            self._markdown(f"**The question.** {acts.get(self.act).question}{here}\n\n**Origin of the numbers.** An Act of our own: nothing of it was published.")
            return
        f = self.published.facts
        self._markdown(f"**The question.** {f.question}{here}\n\n**Origin of the published numbers.** {self.published.label}. Unless a sentence says that it was measured here, it speaks of the published model and machine.")
        self.show(pd.DataFrame({"what": list(f.setup), "published": [str(v) for v in f.setup.values()]}), "setup", "What was run on what")

    def criteria(self, rows: Callable[[facts.Criterion], bool] | None = None, id: str = "criteria", caption: str = "Criteria fixed before the run") -> None:
        """Each criterion with threshold, observation and outcome; ``rows`` picks some, so that long lists can be split."""
        chosen = [c for c in self.published.facts.criteria if rows is None or rows(c)]
        self._shown |= {("criterion", c.id) for c in chosen}
        outcome = {True: "passed", False: "FAILED", None: "not judged"}
        self.show(pd.DataFrame([{"criterion": c.id, "statement": c.statement, "threshold": c.threshold, "observed": c.observed, "outcome": outcome[c.passed]}
                                for c in chosen]), id, caption)

    def negative(self, beginning: str, kills: str | None = None, meaning: str = "", names: Mapping[str, str] | None = None) -> None:
        """One negative result, found by the beginning of its hypothesis.

        Args:
            kills: key of the number that kills it, ``meaning`` what that number is; ``names`` says what the other keys are.
        """
        n = self.published.negative(beginning)
        self._shown.add(("negative", n.hypothesis))
        if n.numbers and kills not in n.numbers:
            raise BadInput(f"{n.hypothesis!r} has no number {kills!r}{nearest(kills, n.numbers)}; it has {', '.join(n.numbers)}.")
        lines = [f"> **Hypothesis.** {n.hypothesis}.", f"> **Observed.** {n.observed}."]
        if n.numbers:
            lines.append(f"> **The number that kills it.** {meaning or kills.replace('_', ' ')}: **{tables.plain(n.numbers[kills])}**")
            rest = [f"{(names or {}).get(k, k.replace('_', ' '))} {tables.plain(v)}" for k, v in n.numbers.items() if k != kills]
            lines += [f"> Beside it: {'; '.join(rest)}."] if rest else []
        lines.append(f"> Source: `{n.source}` ({self.published.label}).")
        self._markdown("\n>\n".join(lines), negative=n.hypothesis)

    def merit(self) -> None:
        """The published figures of merit, with the interval where one was published; each becomes a number."""
        entries = self.published.facts.figures_of_merit
        for m in entries:
            name = "merit_" + "_".join(re.findall(r"[a-z0-9]+", m.name.lower()))
            self.number(name, m.value, "", m.unit, f"{self.published.name}: {m.source}")
        self._shown.add(("merit", ""))
        self.show(pd.DataFrame([{"figure of merit": m.name, "value": tables.plain(m.value), "unit": m.unit,
                                 "95 % interval": f"[{tables.plain(m.ci[0])}, {tables.plain(m.ci[1])}]" if m.ci else None, "source": m.source} for m in entries]),
                  "figures-of-merit", "Published figures of merit")

    def note(self, beginning: str) -> None:
        """A published note, by its beginning, where it bites."""
        found = [n for n in self.published.facts.notes if n.startswith(beginning)]
        if len(found) != 1:
            raise BadInput(f"{len(found)} notes of {self.act} begin with {beginning!r}{nearest(beginning, self.published.facts.notes)}.")
        self._shown.add(("note", found[0]))
        self._markdown(f"> **Note.** {found[0]}")

    def verdict(self) -> None:
        """The verdict, word for word, and beside it what imported rows give."""
        self._shown.add(("verdict", ""))
        self._markdown(f"**Published verdict** ({self.published.label}):\n\n> **{self.published.facts.verdict}**")
        if self.imported is not None:
            from . import imported

            imported.show(self, self.imported)

    # --- measured here ---

    def measured(self, part: str = "") -> bool:
        """True if there are rows (of ``part``); otherwise says in one line that there are none and which command would make them."""
        if (self.parts[part] if part else self.rows) is not None:
            return True
        target = self.params.get("target", "tiny-hybrid")
        can = acts.get(self.act).measure
        how = (f"`specdecode-nb run {self.act} -p measure=true{f' -p part={part}' if part else ''}` makes them" if can
               else "no command of this version makes them")
        self._markdown(f"**No rows of this {'part' if part else 'Act'} have been measured here yet** on {target}: {how}.")
        return False

    def rules(self, rules: Criteria, id: str, caption: str) -> None:
        """The criteria that were fixed before the rows, each with its rule."""
        self.show(pd.DataFrame([{"id": c.id, "hypothesis": c.statement, "rule": str(c.rule)} for c in rules]), id, caption, sources=[rules])

    def told(self, judged: Mapping[str, Outcome], *ids: str, file: RowFile | None = None, prefix: str = "of") -> None:
        """Verdicts of criteria as a list, each with its number, recorded as ``<prefix>_<id>``; ``file``: the rows that they were judged on."""
        lines = []
        for o in (judged[i] for i in ids):
            key = f"{prefix}_{o.criterion.id}".replace("-", "_").lower()
            self.number(key, o.text, source=(file or self.rows).name)
            lines.append(f"- {o.criterion.statement}: **{o.word}**" + (f", [[{key}]]." if o.value is not None else "."))
        self.say("\n".join(lines))

    def tally(self, outcomes: Collection[Outcome], prefix: str = "rules", file: RowFile | None = None) -> None:
        """How many of some hypotheses hold, failed and stayed open, and each that failed with what was found and asked for."""
        words, failed = [o.word for o in outcomes], [o for o in outcomes if o.word == FAILS]
        for key, n in (("hold", words.count(HOLDS)), ("fail", len(failed)), ("open", len(words) - words.count(HOLDS) - len(failed))):
            self.number(f"{prefix}_{key}", n, "d", "hypotheses", (file or self.rows).name)
        if (file or self.rows).config.get("reduced"):
            self.say("**Of a reduced run**: a verdict says whether these few rows meet a rule, not whether the hypothesis holds.")
        self.say(f"Of these hypotheses [[{prefix}_hold]] hold here; [[{prefix}_fail]] failed, and [[{prefix}_open]] could not be decided from these rows."
                 + (f" Of the rules {late} came after the committed rows." if (late := sum(o.criterion.late for o in outcomes)) else "")
                 + "".join(f"\n- **{o.criterion.statement}** failed: {o.text}, while the rule asks for {o.criterion.rule}." for o in failed))
        if afterwards := load((file or self.rows).act).design.get(AFTERWARDS):
            self.say(f"**Changed after rows had been read.** {afterwards}")

    def first_run(self, judge: Callable[[RowFile], Collection[Outcome]]) -> None:
        """The verdicts of this Act's first run beside those of this page's rows, by the same rules, and what the two runs ask for."""
        first = self.borrowed(self.act + FIRST, self.rows.target) if self.rows is not None else None
        if first is None:
            self.say("There is no such pair of runs on this target.")
            return
        if self.rows.config.get("reduced"):
            self.say("These rows are of a reduced run, which is not set beside it.")
            return
        then, now = judge(first), judge(self.rows)
        pairs = [(key, flat(first.config[key]), flat(self.rows.config.get(key))) for key in first.config]
        self.show(pd.DataFrame([{"setting": key, "first run": a, "this run": b} for key, a, b in pairs if a != b and len(a + b) < 500]), "first-settings", "What the two runs ask for, where they differ", sources=[first, self.rows])
        self.show(pd.DataFrame([{"id": a.criterion.id, "hypothesis": a.criterion.statement, "first run": a.text, "verdict then": a.word, "this run": b.text, "verdict now": b.word}
                                for a, b in zip(then, now)]), "first-run", "Every hypothesis by both runs, with 95 % intervals", sources=[first, self.rows])
        kind = lambda o: o.word.split(":")[0]  # noqa: E731
        self.number("first_moved", sum(kind(a) != kind(b) for a, b in zip(then, now)), "d", "hypotheses", self.rows.name)
        self.number("first_all", len(now), "d", "hypotheses", self.rows.name)
        self.say("The verdicts of [[first_moved]] of [[first_all]] hypotheses are not the same.")

    def provenance(self) -> None:
        """What this page was drawn from: files with digests, and for rows also model, machine, versions and settings."""
        entries = [{"what": "source", "which": f"{name} (sha256 {digest[:16]})"} for name, digest in self._sources.items()]
        measured = {"measured": self.rows, "published rows": self.imported} | {f"measured ({part})": file for part, file in self.parts.items()}
        for what, file in measured.items():
            if file is not None:
                entries += [{"what": f"{what}: {key}", "which": flat(value)} for key, value in file.provenance.items()]
                entries.append({"what": what.replace("measured", "settings").replace("published rows", "settings (published rows)"), "which": flat(file.config)})
        entries.append({"what": "drawn by", "which": self.command})
        self.show(pd.DataFrame(entries), "provenance", "What this page was drawn from",
                  sources=[s for s in (self.published, *measured.values()) if s is not None] or [self.computed])
        for id, file in {"adapters": self.rows, **{f"adapters-{part}": file for part, file in self.parts.items()}}.items():
            if file and len(made := trained.manifest(file)):
                some = made if len(made) <= LONG else made.head(LONG)
                self.show(some, id, f"What was trained for the rows of {Path(file.name).name}, checkpoint by checkpoint. Seconds are wall time, other work and pauses of the process included. The adapters are not in the repository: a run with the same settings trains each again, and the digest tells whether it came out the same",
                          {"seed": "d", "trained": ",d", "last losses": ".3f", "seconds": ".0f"}, [file], None if some is made else made)

    def finish(self) -> None:
        """Close the page: everything published has been shown, numbers are kept, and the notebook counts as whole."""
        gaps, f = [], self.published.facts if self.published else None
        if f:
            wanted = [("opening", ""), ("verdict", "")] + [("merit", "")] * bool(f.figures_of_merit) + [("table", t.id) for t in f.tables]
            wanted += [("criterion", c.id) for c in f.criteria] + [("negative", n.hypothesis) for n in f.negative_results] + [("note", n) for n in f.notes]
            gaps = [f"{kind} {which[:60]}".strip() for kind, which in wanted if (kind, which) not in self._shown]
        if acts.get(self.act).question and ("opening", "") not in self._shown:
            gaps = ["opening"]
        if gaps:
            raise AssertionError(f"This page leaves out {len(gaps)} items that it must show: {'; '.join(gaps)}")
        if self._out:
            number_files.write(self._out / "figures", self.act, self.numbers.items)
        done = ", ".join(counted(n, what) for n, what in ((self._count["Table"], "table"), (self._count["Figure"], "figure"), (len(self.numbers.items), "number"))) + "."
        if f:
            done += (f" On this page is all that was published: {counted(len(f.tables), 'table')}, {counted(len(f.criteria), 'criterion', 'criteria')} "
                     f"and {counted(len(f.negative_results), 'negative result')}.")
        digest = figures.sha256(number_files.canonical(self.numbers.items).encode())
        self._markdown(done, finished=self.act, sources=self._sources, numbers_sha256=digest)


def counted(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def flat(value) -> str:
    """A record in one line."""
    if isinstance(value, dict):
        return "; ".join(f"{k} {flat(v)}" for k, v in value.items() if v is not None)
    return ", ".join(map(flat, value)) if isinstance(value, list) else str(value)
