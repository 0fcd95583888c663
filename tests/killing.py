"""Kill commands at random moments, look at what is left, start them again.

    python tests/killing.py 50 [measure run figures train term full] [--seed N]

Every attempt is a forked child, so that nothing is imported twice. Half of the kills come at a moment drawn from the measured duration of
an undisturbed run, half right before a drawn one of the file operations that it did, so that short phases are met as well. A killed command
is started again, and killed again up to three times, before it may finish. Drawn pages are executed in the child itself, every tenth time in
a kernel. ``term`` sends SIGTERM instead of SIGKILL, and for ``full`` no file can grow beyond a drawn size, as on a disk without room:
after these nothing half made may be left. Exit status 1 if anything was lost.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

os.environ |= {"SPECDECODE_BLAS": "reference", "MLX_ENABLE_TF32": "0", "OMP_NUM_THREADS": "1"}
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import nbformat  # noqa: E402
import numpy as np  # noqa: E402
import papermill  # noqa: E402
from book_tools import REPOSITORY, SMALL, tree  # noqa: E402
from specdecode_nb import cli, condition, ending, environment, records  # noqa: E402
from specdecode_nb.book import check, export, needs, notebooks, page  # noqa: E402, F401
from specdecode_nb.protocols import act4s, common  # noqa: E402
from specdecode_nb.train import dflash, tapped, uno  # noqa: E402
import toy  # noqa: E402

LIMIT = 900  # seconds that one attempt may take
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
MEASURE = ["run", "act4s", "-p", "measure=true", "-p", "prompts=2", "-p", "tokens=4", "-p", "repeats=1", "-p", "block_sizes=2,4", "--out", "out"]


# --- what a child does ---

def quick() -> None:
    """Toy target and drafter, a machine that is not looked at."""
    toy_target = lambda name="", dtype=None: toy.hybrid(dtype=dtype or "float32")  # noqa: E731
    for module in (common, act4s, tapped, uno):
        module.load_target = toy_target
    environment.package_digest = lambda: "0" * 64  # so that one may edit the package meanwhile; a journal of another package is refused
    common.load_drafter = lambda name, target: toy.uno(target)
    condition.readings = lambda when="start", since=None: {"when": when, "nice": 0, "load_1min": 0.1, "load_per_core": 0.05}
    tapped.PREFIX, tapped.HELD_OUT = 8, 2
    tapped.Training.run.__defaults__ = (8, lambda *_, **__: None)


def drawn(book, path, parameters, cwd, kernel_manager_class, **_):
    """papermill's part in this process: cells in order, the notebook saved after each."""
    os.environ |= kernel_manager_class().kernel_spec.env
    names, before = {}, os.getcwd()
    for count, cell in enumerate((c for c in book.cells if c.cell_type == "code"), 1):
        cell.outputs, cell.execution_count = [], count
        page.display = lambda data, metadata=None, raw=True, cell=cell: cell.outputs.append(nbformat.v4.new_output("display_data", data, metadata=metadata or {}))
        os.chdir(cwd)
        try:
            exec(cell.source, names)
        finally:
            os.chdir(before)
        nbformat.write(book, path.replace("{{", "{").replace("}}", "}"))
    return book


def stand_in(act, params, staging, cwd, command):
    """A page of one file in the place of the measured Act's, which takes too long to draw fifty times."""
    (staging / "figures").mkdir()
    (staging / "figures" / "act4s-rows.csv").write_text("rows\n")
    return nbformat.v4.new_notebook(cells=[])


def measure(folder: Path, words=()) -> int:
    quick()
    notebooks.execute = stand_in
    append = records.Journal.append
    told = os.open(folder / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def telling(journal, row):
        append(journal, row)
        os.write(told, records.dumps(row).encode() + b"\n")  # the kernel has it, whatever becomes of this process

    records.Journal.append = telling
    return cli.main([*MEASURE, *words])


def draw(folder: Path, words) -> int:
    if not os.environ.get("KERNEL"):
        papermill.execute_notebook = drawn
    return cli.main(words)


def train(folder: Path, which: str) -> int:
    quick()
    if which == "dflash":
        sys.argv = ["train", "out", "work", "corpus", *"--layers 1 --mlp 64 --blocks 4 --windows-a-step 3 --rows 48 --text-windows 8 --window 40 --steps 6 "
                    "--probe-every 2 --probe-block 4 --probe-tokens 8 --patience 9".split()]
        return ending.guarded(lambda: tapped.command("", dflash.Training, dflash.Recipe))
    else:
        sys.argv = ["train", "out/uno.safetensors", "corpus", *"--windows-file work/own.npy --window 28 --prefix 8 --text-windows 6 --rank 4 --block 4 --steps 4 --windows 4 "
                    "--blocks 8".split()]
        return ending.guarded(uno.main)


def start(work, folder: Path, root: Path, at_change: int | None = None, number: int = signal.SIGKILL, kernel: bool = False,
          room: int | None = None) -> int:
    """Fork a child that does ``work`` in ``folder``; it signals itself right before its file operation ``at_change``, and has files of ``room``
    bytes at most. Returns its pid."""
    (folder / "tmp").mkdir(exist_ok=True)
    (folder / "said").write_text("")
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        os.chdir(folder)
        os.environ |= {"SPECDECODE_ROOT": str(root), "KILLED_IN": str(folder)} | ({"KERNEL": "1"} if kernel else {})
        tempfile.tempdir = str(folder / "tmp")  # not TMPDIR, in which MLX keeps what it has compiled
        changes = 0

        def count(event, arguments):
            nonlocal changes
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR) and arguments[0] != "/dev/null"
            if event in CHANGES or writes:
                changes += 1
                if changes == at_change:
                    os.kill(os.getpid(), number)

        if room is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        with open(folder / "said", "w") as said, redirect_stderr(said), redirect_stdout(open(os.devnull, "w")):
            sys.addaudithook(count)
            status = work(folder)
            done = changes
        if room is None:
            (folder / "changes").write_text(str(done))
    except BaseException:
        import traceback

        resource.setrlimit(resource.RLIMIT_FSIZE, (hard := resource.getrlimit(resource.RLIMIT_FSIZE)[1], hard))
        (folder / "traceback").write_text(traceback.format_exc())
    finally:
        os._exit(status)  # whatever happens: two drivers must not go on


def wait(child: int, seconds: float) -> int | None:
    """The wait status of a child that ends within ``seconds``, or None."""
    until = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        if time.monotonic() >= until:
            return None
        time.sleep(0.002)


def finish(work, folder: Path, root: Path) -> tuple[int, str]:
    """An undisturbed attempt: exit status, and what it said on stderr."""
    child = start(work, folder, root)
    if (status := wait(child, LIMIT)) is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return 124, "it did not end"
    said = (folder / "said").read_text() + ((folder / "traceback").read_text() if (folder / "traceback").exists() else "")
    return os.waitstatus_to_exitcode(status), said


# --- what is looked at ---

def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()} if folder.exists() else {}


def digest(folder: Path) -> str:
    return hashlib.sha256(repr(sorted(files(folder).items())).encode()).hexdigest()


def left_running(folder: Path) -> bool:
    """Whether a process that the killed command started is there after some seconds."""
    mark, until = f"KILLED_IN={folder}".encode(), time.monotonic() + 20
    while time.monotonic() < until:
        alive = False
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                alive |= mark in path.read_bytes().split(b"\0")
            except OSError:
                continue
        if not alive:
            return False
        time.sleep(0.1)
    return True


def told_rows(folder: Path) -> list[bytes]:
    return (folder / "told").read_bytes().splitlines() if (folder / "told").exists() else []


def kept_rows(folder: Path) -> list[bytes]:
    """The rows of the journal or of the finished file, a torn last line of the journal left out."""
    journal, rows = folder / "out" / "act4s.journal", folder / "out" / "act4s.json"
    if journal.exists():
        lines = journal.read_bytes().split(b"\n")[1:-1]
        return [line for line in lines if not line.startswith(b'{"condition"')]
    return [records.dumps(row).encode() for row in records.load_rows(rows).rows] if rows.exists() else []


def whole(path: str, data: bytes) -> bool:
    """Whether a file that training leaves can be read by what reads it."""
    if path.endswith(".json"):
        return isinstance(json.loads(data), dict)
    return len(data) >= 8 and len(data) > 8 + int.from_bytes(data[:8], "little") if path.endswith(".safetensors") else True


def timeless(name: str, data: bytes):
    """``data`` without what differs from run to run."""
    if not name.endswith(".json"):
        return data
    value = json.loads(data)
    for place in (value, value.get("log") if isinstance(value, dict) else None):
        if isinstance(place, dict):
            place.pop("seconds", None)
    if name == "act4s.json":
        return [{k: v for k, v in r.items() if "seconds" not in k and k != "peak_memory_bytes"} for r in value["rows"]], value["config"]
    return value


def phase(kind: str, folder: Path, old: dict, new: dict) -> str:
    """How far a killed command had got, told by its files."""
    out = files(folder / "out")
    visible = {n: d for n, d in out.items() if not n.rsplit("/", 1)[-1].startswith(".")}
    half = " (a file half written)" if any(n.endswith(".writing") or ".writing." in n or n.endswith(".part") for n in [*out, *files(folder / "work")]) else ""
    if kind in ("dflash", "uno"):
        if any(n in new for n in visible):
            return ("all written" if visible.keys() >= new.keys() else "some written") + half
        return ("windows made" if (folder / "work" / "own.npy").exists() else "before the windows") + half
    if kind.startswith("measure") and "act4s.ipynb" not in visible:
        if "act4s.json" in visible:
            return ("rows finished, journal there" if "act4s.journal" in visible else "rows finished") + half
        return (f"{min(len(kept_rows(folder)), 9)} rows" if "act4s.journal" in visible else "before the journal") + half
    changed = [n for n, d in visible.items() if old.get(n) != d]
    if len(changed) == sum(old.get(n) != d for n, d in new.items()):
        return "all installed" + half
    return ("some installed" if changed else "executing" if any((folder / "tmp").iterdir()) else "before executing") + half


class Lost(AssertionError):
    """What a kill has lost."""


def expect(holds, what: str) -> None:
    if not holds:
        raise Lost(what)


class Driver:
    """Kills one kind of command; ``found`` counts the phases, ``lost`` says what did not hold."""

    def __init__(self, kind: str, base: Path, rng: random.Random):
        self.kind, self.base, self.rng = kind, base, rng
        self.found, self.lost, self.kills, self.late, self.rows, self.cases = Counter(), [], 0, 0, 0, 0
        self.full, self.term = kind == "full", kind in ("term", "full")
        self.root = tree(base / "committed")
        for name in ("data/prompts/english.json", "notebooks/source/act4s.py"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_bytes((REPOSITORY / name).read_bytes())
        self.committed = digest(self.root)
        self.reference: dict[str, tuple] = {}

    def work(self, variant: str):
        if variant == "measure":
            return lambda folder: measure(folder, ["--resume"] if (folder / "told").exists() or (folder / "out").exists() else [])
        if variant in ("dflash", "uno"):
            return lambda folder: train(folder, variant)
        return lambda folder: draw(folder, ["run", "overview", "--out", "out"] if variant == "run" else ["figures", "overview", "--to", "out"])

    def variants(self) -> list[str]:
        return {"train": ["dflash", "uno"], "term": ["measure", "run", "figures"], "full": ["measure", "run", "figures", "dflash", "uno"]}.get(self.kind, [self.kind])

    def fresh(self, name: str) -> Path:
        folder = self.base / name
        training = name.startswith(("dflash", "uno"))
        for part in ("corpus", "work", "out") if training else ("",):
            (folder / part).mkdir(parents=True, exist_ok=True)
        if training:
            tokens = np.random.default_rng(6).integers(1, toy.VOCAB, 3000)
            tokens[::30] = 0
            np.save(folder / "corpus" / "train.npy", tokens)
        return folder

    def learn(self, variant: str) -> tuple:
        """(seconds, file operations, files made, older files in their place) of an undisturbed run."""
        if variant not in self.reference:
            older: dict[str, bytes] = {}
            if variant in ("run", "figures"):
                source = self.root / "notebooks" / "source" / "overview.py"
                source.write_text(SMALL.replace("0.5, \".2f\"", "0.25, \".2f\"").replace("[1.5, 2.0]", "[1.25, 2.0]"))
                expect(finish(self.work(variant), old := self.fresh(f"{variant}-old"), self.root)[0] == 0, (old / "said").read_text())
                older = files(old / "out")
                source.write_text(SMALL)
            folder, began = self.fresh(f"{variant}-whole"), time.monotonic()
            status, said = finish(self.work(variant), folder, self.root)
            expect(status == 0, f"the undisturbed run failed: {said}")
            self.reference[variant] = time.monotonic() - began, int((folder / "changes").read_text()), files(folder / "out"), older
            expect(digest(self.root) == self.committed, "the undisturbed run changed a committed file")
        return self.reference[variant]

    def run(self, count: int) -> None:
        while self.kills < count and len(self.lost) < 10 + count:  # else what always fails would never end
            variant = self.variants()[self.cases % len(self.variants())]
            name = f"{variant}-{self.cases}"
            try:
                self.case(variant, self.fresh(name), self.learn(variant), count)
            except (Lost, records.BadInput, ValueError) as error:
                self.lost.append(f"{name}: {error}")
            self.cases += 1

    def case(self, variant: str, folder: Path, reference: tuple, count: int) -> None:
        seconds, changes, new, older = reference
        kernel = variant in ("run", "figures") and self.cases % 10 == 9
        for name, data in older.items() if self.cases % 2 else ():
            (folder / "out" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "out" / name).write_bytes(data)
        for _ in range(self.rng.choice((1, 2, 3, 4))):
            if self.kills == count:
                break
            by_time, number = kernel or self.rng.random() < 0.5, signal.SIGTERM if self.term else signal.SIGKILL
            if self.full:
                child = start(self.work(variant), folder, self.root, room=self.rng.randrange(max(map(len, new.values()))))
            else:
                child = start(self.work(variant), folder, self.root, None if by_time else self.rng.randint(1, changes), number, kernel)
            status = wait(child, self.rng.uniform(0, 1.05 * seconds) + 3 * kernel if by_time and not self.full else LIMIT)
            if status is None:
                os.kill(child, number)
                if (status := wait(child, LIMIT)) is None:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    raise Lost("it did not end")
            # SIGTERM that comes before the command stands ends the process as such
            early = os.waitstatus_to_exitcode(status) in ((1, -signal.SIGTERM) if self.term else (-signal.SIGKILL,))
            self.kills, self.late = self.kills + early, self.late + (not early)
            self.found[(f"{variant}: " if len(self.variants()) > 1 else "") + (phase(variant, folder, older, new) if early else "had ended")] += 1
            expect(early or os.waitstatus_to_exitcode(status) == 0, f"exit status {os.waitstatus_to_exitcode(status)}: {(folder / 'said').read_text()}")
            self.look(variant, folder, new, older)
            if not early:
                break
        if variant == "measure":
            self.refused_without_resume(folder)
        half = [p for p in (folder / "out").rglob(".*.writing")]
        status, said = finish(self.work(variant), folder, self.root)
        expect(status == 0, f"the next start failed with status {status}: {said}")
        if "uno" != variant != "dflash" or half:
            expect(("half-written" in said) == bool(half) and said.count("\n") <= 3 and "Traceback" not in said, f"{len(half)} half-written files, and it said: {said}")
        self.look(variant, folder, new, older)
        expect({n: timeless(n, d) for n, d in files(folder / "out").items()} == {n: timeless(n, d) for n, d in new.items()},
               f"the result differs from that of an undisturbed run: {sorted(files(folder / 'out'))}")

    def look(self, variant: str, folder: Path, new: dict, older: dict) -> None:
        """What has to hold whenever the command is not running."""
        expect(digest(self.root) == self.committed, "a committed file changed")
        expect(not (folder / "traceback").exists(), (folder / "traceback").read_text() if (folder / "traceback").exists() else "")
        expect(not left_running(folder), "a process was left")
        for name, data in files(folder / "out").items():
            hidden = name.rsplit("/", 1)[-1].startswith(".")
            if hidden or ".writing." in name or name.endswith(".part"):
                expect(not self.term, f"{name} was left")
            elif variant in ("run", "figures") and not name.startswith("failed/"):  # where run keeps a page that stopped
                expect(data in (new.get(name), older.get(name)), f"{name} is neither the old file nor the new one")
            elif variant in ("dflash", "uno"):
                expect(whole(name, data), f"{name} is torn")
        if self.term:
            expect(not any((folder / "tmp").iterdir()), f"there is left {sorted(p.name for p in (folder / 'tmp').iterdir())}")
            expect((folder / "said").read_text().count("\n") <= 2, (folder / "said").read_text())
        if variant == "measure":
            told, kept = told_rows(folder), kept_rows(folder)
            expect(kept[: len(told)] == told, f"{len(told)} rows were finished, and these are left: {len(kept)}")
            self.rows = max(self.rows, len(told))

    def refused_without_resume(self, folder: Path) -> None:
        before = files(folder / "out")
        if {"act4s.journal", "act4s.json"} & before.keys():
            status, said = finish(measure, folder, self.root)
            expect(status == 2 and "--resume" in said and said.count("\n") == 1 and files(folder / "out") == before, f"without --resume: {status}, {said}")

    def report(self) -> str:
        phases = "".join(f"\n    {n:3d}  {name}" for name, n in sorted(self.found.items(), key=lambda item: -item[1]))
        times = ", ".join(f"{v}: {r[0]:.1f} s and {r[1]} file operations undisturbed" for v, r in self.reference.items())
        lost = "".join(f"\n  LOST {line}" for line in self.lost)
        return f"{self.kind}: {self.kills} {'writes without room' if self.full else 'kills'} in {self.cases} cases, {self.late} after the end, {len(self.lost)} losses ({times}){phases}{lost}"


KINDS = ("measure", "run", "figures", "train", "term", "full")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("count", type=int, help="kills of each kind")
    options.add_argument("kinds", nargs="*", default=KINDS, metavar="KIND", help=f"default: {' '.join(KINDS)}")
    options.add_argument("--seed", type=int, default=0)
    o = options.parse_args()
    lost = 0
    for kind in o.kinds:
        with tempfile.TemporaryDirectory(prefix="killing-", ignore_cleanup_errors=True) as base:
            driver = Driver(kind, Path(base).resolve(), random.Random(f"{kind}/{o.seed}"))
            driver.run(o.count)
        print(driver.report(), flush=True)
        lost += len(driver.lost)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
