"""Hostile files, places and values: one sentence, status 2, nothing written, nothing executed, in bounded time and memory."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

CASES = 170


@pytest.fixture(scope="module")
def results():
    done = subprocess.run([sys.executable, Path(__file__).parent / "hostile.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_hostile_input_is_one_sentence_and_leaves_nothing(results):
    assert len(results) >= CASES and results[0]["status"] == 0 and "toy with random" in results[0]["out"]
    wrong = []
    for r in results[1:]:
        refused = r["status"] == 2 and r["out"] == "" and r["err"].startswith("specdecode-nb: ")
        one_line = r["err"].count("\n") == 1 and r["err"][:-1].isprintable() and "Traceback" not in r["err"]
        fine = r["status"] == 0 and not r["err"]  # some of it is harmless
        if not (refused and one_line or fine) or r["written"] or r["mb"] > 3000:
            wrong.append({k: str(v)[-300:] for k, v in r.items()})
    assert not wrong, json.dumps(wrong, indent=1)


def test_what_is_hostile_is_refused(results):
    """Little of it is harmless, and that is named here."""
    harmless = {r["case"] for r in results[1:] if r["status"] == 0}
    assert harmless == HARMLESS, harmless ^ HARMLESS


HARMLESS = {"results at a line break", "results at an escape", "code that a tokenizer names",  # which is not executed
            f"generate {' '.join(['--seed', '9' * 40])[:30]!a}"}
