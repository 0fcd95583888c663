"""How a command ends: its failures become one sentence on stderr and a status, and what is half written is taken away."""
from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .errors import BadInput, RunFailed

PROGRAM = "specdecode-nb"


def guarded(work: Callable[[], int | None]) -> int:
    """The exit status of ``work``, whose failures become one sentence on stderr."""
    try:
        with ended_as_by_ctrl_c():
            status = work() or 0
            sys.stdout.flush()
        return status
    except BadInput as error:
        return complain(error, 2)
    except (RunFailed, FloatingPointError) as error:  # of a page, of a training
        return complain(error, 1)
    except KeyboardInterrupt as error:
        return complain(f"Interrupted{error}.", 1)
    except BrokenPipeError:
        return discard_output()
    except MemoryError:
        return complain("There is not enough memory for this; ask for less, or run it where there is more.", 1)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return complain(f"{error.strerror or error}{where}; see that there is room and that one may read and write there.", discard_output())


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does, so that what is half written is taken away; who ignores or handles them goes on to."""
    def interrupt(*_):
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def check_surroundings(words: Sequence[str]) -> None:
    """Raises BadInput for a current folder that is gone and for words that are no text."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise BadInput("The current folder is gone; change to one that exists.") from None
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise BadInput(f"{word!a} is not UTF-8 text; write it in UTF-8.") from None


def discard_output() -> int:
    """Let what cannot be printed go nowhere, so that the interpreter ends without a word; returns the status of a failure."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def complain(message: object, status: int) -> int:
    """One line on stderr: what a name holds that is no letter (a line break, an escape of the terminal) is spelled out."""
    said = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(message))
    print(f"{PROGRAM}: {said}", file=sys.stderr)
    return status


def take_away(*folders: Path) -> None:
    """Remove, and say so, what a killed command has left half written in ``folders``."""
    from .records import sweep

    if count := sum(map(sweep, folders)):
        print(f"{PROGRAM}: {count} half-written file{'s' * (count > 1)} of a command that was killed {'were' if count > 1 else 'was'} removed.", file=sys.stderr)
