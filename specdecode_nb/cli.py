"""The commands. Exit status: 0 done, 1 failed while running, 2 bad input (nothing started, nothing written)."""
from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import paths
from .errors import BadInput

PROGRAM = "specdecode-nb"


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one sentence."""

    def error(self, message):
        raise BadInput(f"{message[0].upper() + message[1:]}; `{self.prog} --help` tells what fits.")


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
    run.add_argument("--resume", action="store_true", help="go on from the finished rows of a measurement that was interrupted in DIR")
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
    generate.add_argument("--drafter", default="uno", metavar="D", help="uno, dflash, mtp, ngram, random, none, or the path of one (default: uno)")
    generate.add_argument("-k", type=int, default=4, metavar="K", help="drafted positions a cycle (default: 4)")
    generate.add_argument("--max-tokens", type=int, default=128, metavar="N", help="new tokens at most (default: 128)")
    generate.add_argument("--temperature", type=float, default=0.0, metavar="F", help="0 decodes greedily (default)")
    generate.add_argument("--seed", type=int, default=0, metavar="S")
    generate.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated")
    command("doctor", "versions, device, BLAS, TF32 flag, priority, load, power and heat, drafters, known packaging traps")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    from .book.errors import RunFailed

    # read by MLX when it is first imported; a user's own value stands
    os.environ.setdefault("MLX_ENABLE_TF32", "0")
    try:
        options = parser().parse_args(argv)
        return {"list": list_acts, "run": run, "figures": figures, "site": site, "build": build, "check": check, "generate": generate, "doctor": doctor}[options.command](options)
    except BadInput as error:
        return complain(error, 2)
    except RunFailed as error:
        return complain(error, 1)
    except KeyboardInterrupt:
        return complain("Interrupted; finished rows are kept, and --resume goes on from them.", 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def complain(message: object, status: int) -> int:
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    return status


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
        print(f"usage: {PROGRAM} run {act.id} [-p NAME=VALUE]... [--out DIR] [--resume]\n\nparameters, with their defaults:")
        print("\n".join(f"  {p.describe()}" for p in act.params) or "  none")
        return 0
    given = act.parse(options.params)
    params = act.resolve(given)
    out = folder(options.out or Path("out") / act.id)
    from .book.notebooks import read_source, run as execute

    read_source(act.id)  # before anything is measured
    journal, measuring = out / f"{act.measuring(params)[0]}.journal", bool(params.get("measure"))
    if measuring and not act.measure:
        raise BadInput(f"{act.id} cannot be measured by this version; leave measure out.")
    if measuring and params["rows"]:
        raise BadInput("rows names a file to draw from and measure=true makes a new one; give one of them.")
    if options.resume and not measuring:
        raise BadInput("--resume goes on with a measurement; add -p measure=true.")
    if measuring and journal.exists() and not options.resume:
        from .records import unfinished

        raise BadInput(unfinished(journal))
    if params.get("rows"):
        from .records import load_rows

        file = load_rows(params["rows"])
        if file.act not in act.row_files:
            raise BadInput(f"{file.name} holds rows of {file.act!r}, this is {act.id!r}; name a row file of this Act.")
        params["rows"] = os.path.relpath(params["rows"], out)
    idle = [name for name in given if not measuring and name not in acts.DRAWING]
    if idle:
        print(f"{PROGRAM}: {', '.join(idle)} would tell how to measure; recorded rows are drawn as they are. Add -p measure=true to measure.", file=sys.stderr)
    if measuring:
        params["rows"] = measure(act, params, journal, options.resume).name
    out.mkdir(parents=True, exist_ok=True)
    changed = {name: value for name, value in params.items() if value != act.defaults[name]}
    words = [f"-p {name}={acts.text_of(value)}" for name, value in given.items() if name != "rows"]
    written = [*execute(act.id, changed, out, " ".join([PROGRAM, "run", act.id, *words]))]
    written += [out / params["rows"]] if measuring else []
    lines = [shown(p) for p in written if p.parent == out]  # of what lies deeper, the folders
    for line in lines + [f"{shown(d)}{os.sep}" for d in dict.fromkeys(p.parent for p in written if p.parent != out)]:
        print(line)
    return 0


def measure(act, params: dict, journal: Path, resume: bool) -> Path:
    """Make the rows of an Act, with a bar on stderr if that is a terminal; returns the row file."""
    module, function = act.measuring(params)[1].split(":")
    measuring = getattr(importlib.import_module(module), function)
    if not sys.stderr.isatty():
        return measuring(params, journal, None, resume=resume)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(TextColumn(act.id), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"),
                  console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading")
        return measuring(params, journal, lambda done, total, label: bar.update(task, completed=done, total=total, description=label), resume=resume)


def folder(path: Path) -> Path:
    """``path`` as a folder for results: outside the committed tree, and one can write there. Raises BadInput."""
    path = path.expanduser().absolute()
    for kept in (paths.data(), paths.notebooks(), paths.figures(), Path(__file__).parent):
        if path.resolve().is_relative_to(kept):
            raise BadInput(f"{path} lies in the committed {kept.name}/, which only `{PROGRAM} build` writes; choose another folder.")
    existing = next(p for p in (path, *path.parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise BadInput(f"{path} cannot be written ({existing} is no folder one may write to); choose another.")
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

    for path in export.write_up(chosen(options.acts), folder(options.to)):
        print(shown(path))
    return 0


def site(options) -> int:
    from .book import site as pages

    for path in pages.write(folder(options.to)):
        print(shown(path))
    return 0


def build(options) -> int:
    from .book import notebooks

    for path in notebooks.each(notebooks.build, chosen(options.acts)):
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
    from . import generate as decode
    from . import load_drafter, load_target

    if not options.prompt.strip():
        raise BadInput("The prompt is empty; give at least one word.")
    target = load_target(options.target)
    drafter = load_drafter(None if options.drafter == "none" else options.drafter, target)
    result = decode(target, options.prompt, drafter=drafter, k=options.k, max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed,
                    stop=options.stop)
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


def doctor(options) -> int:
    from .doctor import examine

    rows = examine()
    width = [max(len(row[i]) for row in rows) for i in (0, 1)]
    for item, found, note in rows:
        print(f"{item:{width[0]}}  {found:{width[1]}}  {note}".rstrip())
    return 0
