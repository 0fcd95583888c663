"""Decode while the machine is quiet, while the measuring process has a low priority, and while a core is taken.

Priority cannot be given back without privileges, so the measuring is done by child processes, one at each priority, that
read requests as lines of JSON and answer with rows. Competitors spin only while a request is answered. Every child is
killed on the way out, whatever the reason, and ends by itself once its parent is gone.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..ending import PROGRAM, guarded
from ..errors import BadInput, RunFailed

CONDITIONS = ("quiet", "low_priority", "busy_core")
NICE = 10
SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(10**6): pass"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def child(arguments: Sequence[str], **options) -> Iterator[subprocess.Popen]:
    """A Python process that is gone when the block is left."""
    # a group of its own, so that Ctrl-C reaches the parent alone; the same session, since schedulers may divide time by session first
    process = subprocess.Popen([sys.executable, *arguments], process_group=0, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


@contextmanager
def busy(count: int) -> Iterator[list[subprocess.Popen]]:
    """``count`` processes that do nothing but spin, at the priority of this one."""
    with ExitStack() as stack:
        yield [stack.enter_context(child(["-c", SPIN, str(os.getpid())])) for _ in range(count)]


class Worker:
    """A child that decodes on request. ``niceness``: its own, as it says itself."""

    def __init__(self, process: subprocess.Popen, errors):
        self.process, self._errors, self.niceness = process, errors, None

    def ask(self, request: dict) -> Generator[dict]:
        """Send one request and yield the rows of the answer; for errors see :meth:`answer`."""
        self.send(request)
        yield from self.answer()

    def send(self, request: dict) -> None:
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it wrote before it ended says why

    def answer(self) -> Generator[dict]:
        """The rows of the answer. Raises what the child ended with, in its last words: BadInput, or RunFailed for everything else."""
        while True:
            line = self.process.stdout.readline()
            if not line:
                self._errors.seek(0)
                words, status = self._errors.read().decode(errors="replace").strip().splitlines() or ["no message"], self.process.wait()
                said = words[-1].removeprefix(f"{PROGRAM}: ")
                raise BadInput(said) if status == 2 else RunFailed(f"A measuring process ended with status {status}: {said}")
            answer = json.loads(line)
            if answer.get("done"):
                self.niceness = answer["niceness"]
                return
            yield answer


@contextmanager
def worker(setup: dict, nice: int, module: str = __name__, **environ: str) -> Iterator[Worker]:
    """A :class:`Worker` at ``nice`` above this process, whose first answer says that it has loaded what ``setup`` names.

    Args:
        setup: target, dtype, drafter and block, as a protocol's parameters have them, or whatever ``module`` wants.
        module: what the child runs; it ends in a call of :func:`main`.
        environ: variables of its environment, such as the BLAS that it chooses.
    """
    package = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))} | environ
    with tempfile.TemporaryFile() as errors, child(["-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                                                   env=environment) as process:
        made = Worker(process, errors)
        made.send(setup | {"nice": nice})
        yield made


@contextmanager
def conditions(setup: dict) -> Iterator[Callable[[str, dict], Generator[dict]]]:
    """``decode(condition, request)`` gives the rows of a request measured under a condition; see :func:`worker` for ``setup``.

    A request holds prompts, tokens, warm and fields, arguments of :func:`.common.decode_rows`.
    """
    with worker(setup, 0) as usual, worker(setup, NICE) as low:
        for each in (usual, low):
            list(each.answer())

        def decode(condition: str, request: dict) -> Generator[dict]:
            measuring = low if condition == "low_priority" else usual
            with busy({"quiet": 0, "low_priority": cores(), "busy_core": 1}[condition]):
                yield from measuring.ask(request)

        yield decode


def decoding(setup: dict) -> Callable[[dict], Iterator[dict]]:
    """Rows of plain decoding and of one drafter, request by request."""
    from ..targets import load_target
    from .common import decode_rows
    from .dflash_rest import pair_of_arms  # which takes the conditions from here

    target = load_target(setup["target"], setup["dtype"])
    arms = pair_of_arms(target, setup["drafter"], setup["block"])
    return lambda r: decode_rows(target, r["prompts"], arms, r["tokens"], 1, warm=r["warm"], niceness=os.nice(0), **r["fields"])


def serve(requests, answers, prepare: Callable[[dict], Callable[[dict], Iterator[dict]]] = decoding) -> None:
    """The loop of a child: the first line is its setup, every further one a request."""
    setup = json.loads(next(requests))
    niceness = os.nice(setup.get("nice", 0))
    answer = prepare(setup)
    while True:
        answers.write(json.dumps({"done": True, "niceness": niceness}) + "\n")
        answers.flush()
        line = next(requests, None)
        if line is None:
            return
        for row in answer(json.loads(line)):
            answers.write(json.dumps(row) + "\n")
            answers.flush()  # a finished row is the parent's at once


def end_with(parent: int) -> None:
    """End this process once its parent is another one: a child that computes does not see its requests end."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main(prepare: Callable = decoding) -> None:
    """Serve requests from standard input; exits with a status and one sentence as a command does."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    out, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    sys.exit(guarded(lambda: serve(iter(sys.stdin.readline, ""), out, prepare)))


if __name__ == "__main__":
    main()
