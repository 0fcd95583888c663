"""The commands. Exit status: 0 done, 1 failed while running, 2 bad input (nothing started, nothing written)."""
from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from . import paths
from .ending import PROGRAM, check_surroundings, guarded, take_away
from .errors import BadInput

SAMPLING = (("top-k", int, "keep so many of the most likely tokens"), ("top-p", float, "keep the most likely tokens of this mass"),
            ("min-p", float, "keep tokens at least this share as likely as the best"), ("repetition-penalty", float, "above 1 makes repeating less likely"),
            ("presence-penalty", float, "taken from logits of the latest ids"), ("frequency-penalty", float, "taken for each of their occurrences"),
            ("rule", str, "gumbel (default), match or rejection: which sampled drafts survive"))


EVERY = 30.0  # seconds between lines of progress where stderr is no terminal


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one sentence."""

    def error(self, message):
        raise BadInput(f"{message[0].upper() + message[1:]}; `{self.prog} --help` tells what fits.")

    def exit(self, status=0, message=None):
        sys.stdout.flush()  # here, where a full disk is still an error of ours
        super().exit(status, message)


def parser() -> Parser:
    p = Parser(prog=PROGRAM, description="Drafting with diffusion: run the Acts again, generate, check, export.", allow_abbrev=False)
    commands = p.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)

    def command(name: str, text: str, **options) -> Parser:
        return commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False, **options)

    command("list", "the Acts: question, published verdict, what was measured here")
    run = command("run", "an Act again with other parameters; `run ACT --help` lists them", add_help=False)
    run.add_argument("act", nargs="?", metavar="ACT")
    run.add_argument("-p", dest="params", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the Act; may be repeated")
    run.add_argument("--out", type=Path, metavar="DIR", help="where results go (default: out/ACT in the current folder)")
    run.add_argument("--resume", action="store_true", help="go on with a measurement that was interrupted in DIR, or draw from it if all its rows are there; begins one if there is none")
    run.add_argument("--download", action="store_true", help="fetch the target from the hub if it is not on this machine, before measuring")
    run.add_argument("-h", "--help", action="store_true", help="this text, or the parameters of ACT")
    figures = command("figures", "figures, tables, captions and numbers for a write-up")
    figures.add_argument("acts", nargs="*", metavar="ACT", help="default: every Act that has a notebook")
    figures.add_argument("--to", type=Path, required=True, metavar="DIR")
    site = command("site", "the monograph as HTML pages that open without a network")
    site.add_argument("--to", type=Path, required=True, metavar="DIR", help="index.html is the overview; figures go to DIR/figures")
    build = command("build", "the committed notebooks, figures, tables and numbers, from sources and recorded rows")
    build.add_argument("acts", nargs="*", metavar="ACT", help="default: every Act that has a notebook")
    check = command("check", "every derived file against its source")
    check.add_argument("--rebuild", action="store_true", help="also execute every notebook again and compare byte by byte")
    generate = command("generate", "text, then one line of statistics")
    generate.add_argument("prompt", metavar="PROMPT")
    generate.add_argument("--target", default="tiny-hybrid", metavar="T", help="name, folder or hub id (default: tiny-hybrid)")
    checkpoint(generate)
    generate.add_argument("--drafter", default="uno", metavar="D", help="uno, dflash, mtp, ngram, random, none, or the path of one (default: uno)")
    generate.add_argument("-k", type=int, default=4, metavar="K", help="drafted positions a cycle, the first of which is the target's own next token (default: 4)")
    generate.add_argument("--max-tokens", type=int, default=128, metavar="N", help="new tokens at most (default: 128)")
    generate.add_argument("--temperature", type=float, default=0.0, metavar="F", help="0 decodes greedily (default)")
    for name, kind, words in SAMPLING:
        generate.add_argument(f"--{name}", type=kind, metavar="N" if kind is int else "R" if kind is str else "F", help=words)
    generate.add_argument("--seed", type=int, default=0, metavar="S", help="of the noise of sampling (default: 0)")
    generate.add_argument("--exact", action="store_true", help="forwards of one shape: the same bits with any drafter or none; slower")
    generate.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated")
    card = command("card", "what a target is, and which drafters and undoing it supports")
    card.add_argument("target", metavar="TARGET", help="name, folder or hub id")
    card.add_argument("--digest", action="store_true", help="also the digest of its weights, and whether it is the published one")
    checkpoint(card)
    brought = command("import", "the published project's raw results/ folder into our row schema, and its tables worked out again")
    brought.add_argument("results", type=Path, metavar="DIR", help="that folder, or a part of it; it is only read")
    brought.add_argument("--out", type=Path, default=Path("out") / "imported", metavar="DIR", help="where row files and agreement.csv go (default: out/imported)")
    command("doctor", "versions, device, BLAS, TF32 flag, priority, load, power and heat, drafters, known packaging traps")
    return p


def checkpoint(p: Parser) -> None:
    """The options that say how a target is read."""
    p.add_argument("--dtype", metavar="TYPE", help="float32 or bfloat16, for all that is not quantised (default: float32)")
    p.add_argument("--download", action="store_true", help="fetch a hub id that is not on this machine; otherwise the network is not touched")
    p.add_argument("--revision", metavar="R", help="commit, tag or branch of a hub id (default: main, or the pinned one of a published target)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    # read by MLX when it is first imported; a user's own value stands
    os.environ.setdefault("MLX_ENABLE_TF32", "0")

    def command() -> int:
        check_surroundings(sys.argv[1:] if argv is None else argv)
        options = parser().parse_args(argv)
        return {"list": list_acts, "run": run, "figures": figures, "site": site, "build": build, "check": check, "generate": generate,
                "import": bring, "card": card, "doctor": doctor}[options.command](options)

    return guarded(command)


# --- commands ---

def list_acts(options) -> int:
    from .book import overview

    for line in overview.lines():
        print(line)
    return 0


def run(options) -> int:
    from .book import acts

    if options.act is None:
        if options.help:
            p = parser()
            print(p._subparsers._group_actions[0].choices["run"].format_help(), end="")
            return 0
        raise BadInput(f"No Act is named; `{PROGRAM} list` lists them.")
    act = acts.get(options.act)
    if options.help:
        print(f"usage: {PROGRAM} run {act.id} [-p NAME=VALUE]... [--out DIR] [--resume] [--download]\n\nparameters, with their defaults:")
        print("\n".join(f"  {p.describe()}" for p in act.params) or "  none")
        if act.reduced:
            print("quick=true stands for " + ", ".join(f"{name}={acts.text_of(value)}" for name, value in act.reduced.items()) + ", where these are not given")
        return 0
    named = act.parse(options.params)
    params = act.resolve(named)
    out = folder(options.out or Path("out") / act.id, "figures", "figures/tables", "failed")
    from .book import needs
    from .book.notebooks import read_source, run as execute
    from .book.origin import measured_path
    from .records import load_rows, unfinished

    read_source(act.id)  # before anything is measured
    making, measuring = act.measuring(params)[0], bool(params.get("measure"))
    journal = out / f"{making}.journal"
    if measuring and not act.measure:
        raise BadInput(f"{act.id} cannot be measured by this version; leave measure out.")
    if measuring and params["rows"]:
        raise BadInput("rows names a file to draw from and measure=true makes a new one; give one of them.")
    if options.resume and not measuring:
        raise BadInput("--resume goes on with a measurement; add -p measure=true.")
    if measuring and journal.exists() and not options.resume:
        raise BadInput(unfinished(journal))
    if measuring and journal.with_suffix(".json").exists() and not options.resume:
        raise BadInput(f"{journal.with_suffix('.json')} holds a finished measurement; draw from it with --resume, or choose another --out.")
    given = load_rows(params["rows"]) if params.get("rows") else None
    if given is not None:
        if given.act not in act.row_files:
            raise BadInput(f"{given.name} holds rows of {given.act!r}, this is {act.id!r}; name a row file of this Act.")
        params["rows"] = os.path.relpath(params["rows"], out)
    for name in act.row_files if "rows" in params else ():
        here = given is not None and given.act == name
        if here:
            needs.check(given)
        replaced = here and not given.published or measuring and making == name  # published rows are drawn beside ours
        if not replaced and (committed := measured_path(name, params["target"])).exists():
            needs.check(load_rows(committed))
    idle = [name for name in named if not measuring and name not in acts.DRAWING]
    if idle:
        print(f"{PROGRAM}: {', '.join(idle)} would tell how to measure; recorded rows are drawn as they are. Add -p measure=true to measure.", file=sys.stderr)
    if options.download:
        from .checkpoints import find

        if not measuring:
            raise BadInput("--download fetches the target of a measurement; add -p measure=true.")
        find(params["target"], download=True)
    take_away(out, out / "figures", out / "figures" / "tables", out / "failed")
    if measuring:
        params["rows"] = measure(act, params, journal, options.resume).name
        needs.check(load_rows(out / params["rows"]))
    out.mkdir(parents=True, exist_ok=True)
    for name in ("target", "drafter"):  # the notebook runs in its own folder, from which a relative path is another one
        if (value := params.get(name)) and value != act.defaults[name] and not os.path.isabs(value) and os.path.exists(value):
            params[name] = os.path.relpath(value, out)
    changed = {name: value for name, value in params.items() if value != act.defaults[name]}
    words = [f"-p {name}={acts.text_of(value)}" for name, value in named.items() if name != "rows"]
    try:
        written = [*execute(act.id, changed, out, " ".join([PROGRAM, "run", act.id, *words]))]
    except KeyboardInterrupt:
        raise KeyboardInterrupt("; the rows are finished, and --resume draws from them" if measuring else "") from None
    written += [out / params["rows"]] if measuring else []
    lines = [shown(p) for p in written if p.parent == out]  # of what lies deeper, the folders
    folders = [*dict.fromkeys(p.parent for p in written if p.parent != out), *([journal.with_suffix(".work")] if measuring and journal.with_suffix(".work").is_dir() else [])]
    for line in lines + [f"{shown(d)}{os.sep}" for d in folders]:
        print(line)
    return 0


def measure(act, params: dict, journal: Path, resume: bool) -> Path:
    """Make the rows of an Act, or find them finished; returns the row file."""
    from .records import Finished

    if resume and not journal.exists() and not journal.with_suffix(".json").exists():
        print(f"{PROGRAM}: {shown(journal.parent)} holds nothing to go on with; a new measurement begins.", file=sys.stderr)
    module, function = act.measuring(params)[1].split(":")
    measuring = getattr(importlib.import_module(module), function)
    try:
        return with_a_bar(act.id, lambda progress: measuring(params, journal, progress, resume=resume))
    except Finished as finished:
        print(f"{PROGRAM}: {shown(finished.path)} is finished, under these settings; it is drawn as it is.", file=sys.stderr)
        return finished.path
    except KeyboardInterrupt:
        raise KeyboardInterrupt("; finished rows are kept, and --resume goes on from them" if journal.exists() else "") from None


def with_a_bar(title: str, work: Callable[[Callable | None], Path]) -> Path:
    """``work`` with a function that moves a bar on stderr, or where that is no terminal writes a line there every EVERY seconds."""
    if not sys.stderr.isatty():
        told = time.monotonic()

        def tell(done: int, total: int, label: str) -> None:
            nonlocal told
            if time.monotonic() - told >= EVERY:
                told = time.monotonic()
                with suppress(OSError):  # nobody reads it any more
                    print(f"{title}: {done} of {total} rows, {label}", file=sys.stderr, flush=True)

        return work(tell)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"),
                  console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading")
        return work(lambda done, total, label: bar.update(task, completed=done, total=total, description=label))


def folder(path: Path, *inside: str) -> Path:
    """``path`` as a folder for results: outside the committed tree, and one can write there. Raises BadInput.

    ``inside`` names the folders that will be made in it.
    """
    root, missing = paths.root(), []
    try:
        path = path.expanduser().absolute()
        for place in (path, *(path / name for name in inside)):
            real = place.resolve()
            if real == root:
                raise BadInput(f"{path} is the repository, whose files are not to be mixed with results; choose another folder, such as out/.")
            for kept in (paths.data(), paths.notebooks(), paths.figures(), root / "tests", root / ".git", Path(__file__).resolve().parent):
                if real.is_relative_to(kept):
                    raise BadInput(f"{place} lies in the committed {kept.name}/, where no results go; choose another folder.")
            if os.path.lexists(place) and not place.is_dir():
                raise BadInput(f"{place} is no folder; choose another.")
        missing = [p for p in (path, *path.parents) if not os.path.lexists(p)]
        path.mkdir(parents=True, exist_ok=True)  # tried, and taken back
        for place in filter(Path.is_dir, (path, *(path / name for name in inside))):
            os.rmdir(tempfile.mkdtemp(dir=place))
    except (OSError, RuntimeError) as error:
        raise BadInput(f"{path} can be no folder for results ({getattr(error, 'strerror', None) or error}); choose another.") from None
    finally:
        for made in missing:
            with suppress(OSError):
                made.rmdir()
    return path


def shown(path: Path) -> str:
    """Relative to the current folder where it lies in it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def chosen(names: Sequence[str]) -> list[str]:
    """Acts by name, each with a notebook source; all of them if none is named. Raises BadInput."""
    from .book import acts, notebooks

    for name in names:
        notebooks.read_source(acts.get(name).id)
    return list(dict.fromkeys(names)) or notebooks.sources()


def figures(options) -> int:
    from .book import export

    acts, to = chosen(options.acts), folder(options.to, "tables")
    take_away(to, to / "tables")
    for path in export.write_up(acts, to):
        print(shown(path))
    return 0


def site(options) -> int:
    from .book import site as pages

    to = folder(options.to, "figures")
    take_away(to, to / "figures")
    for path in pages.write(to):
        print(shown(path))
    return 0


def build(options) -> int:
    from .book import notebooks

    acts = chosen(options.acts)
    take_away(paths.notebooks(), paths.figures(), paths.figures() / "tables", paths.data())
    for path in notebooks.each(notebooks.build, acts):
        print(shown(path), flush=True)
    return 0


def check(options) -> int:
    from .book.check import problems

    found = problems(rebuild=options.rebuild)
    for line in found:
        print(line, file=sys.stderr)
    print("Every derived file agrees with its source." if not found else f"{len(found)} files do not agree with their sources.")
    return 1 if found else 0


def generate(options) -> int:
    from . import Sampling, load_drafter, load_target
    from . import generate as decode

    if not options.prompt.strip():
        raise BadInput("The prompt is empty; give at least one word.")
    given = {name: value for name in (n.replace("-", "_") for n, *_ in SAMPLING) if (value := getattr(options, name)) is not None}
    sampling = Sampling(temperature=options.temperature, **given)
    target = load_target(options.target, options.dtype, options.download, options.revision)
    drafter = load_drafter(None if options.drafter == "none" else options.drafter, target)
    result = decode(target, options.prompt, drafter=drafter, k=options.k, max_tokens=options.max_tokens, seed=options.seed, stop=options.stop,
                    sampling=sampling, exact=options.exact)
    print(result.text)
    print(statistics_line(result, drafter, options.k, target.name))
    return 0


def statistics_line(result, drafter, k: int, target: str) -> str:
    """Tokens, speed and acceptance of one generation in one line."""
    s = result.stats
    words = [f"{s.tokens} tokens in {s.wall_seconds:.2f} s ({s.tokens / s.wall_seconds:.1f} tok/s)" if s.wall_seconds else f"{s.tokens} tokens",
             f"{s.tokens / s.forwards:.2f} tokens per forward" if s.forwards else "no forward"]
    if s.cycles:
        words.append(f"accepted {sum(s.accepted_per_cycle)} of {sum(s.offered_per_cycle)} drafted, {s.tokens / s.cycles:.2f} tokens per cycle")
    words += [f"{target} with {drafter.name}, k={k}" if drafter is not None else f"{target} alone", f"ended by {result.finish_reason}"]
    return f"[{'; '.join(words)}]"


def card(options) -> int:
    from . import load_target
    from .released import backbone_line

    target = load_target(options.target, options.dtype, options.download, options.revision)
    print(target.card())
    if options.digest:
        print(backbone_line(target))
    return 0


def bring(options) -> int:
    from . import imported

    made = imported.bring(options.results, options.out, folder)
    for line in [*imported.told(made), *(f"  {shown(path)}" for path in made.written)]:
        print(line)
    return 0


def doctor(options) -> int:
    from .doctor import examine

    rows = examine()
    width = [max(len(row[i]) for row in rows) for i in (0, 1)]
    for item, found, note in rows:
        print(f"{item:{width[0]}}  {found:{width[1]}}  {note}".rstrip())
    return 0
