"""The catalogue of public reports: each id has tests that exist, or one sentence on why it cannot occur here."""
import ast
import json
import re
from pathlib import Path

import pytest
from specdecode_nb.protocols.museum import FAULTS

HERE = Path(__file__).parent
ENTRIES = json.loads((HERE / "catalogue.json").read_text())
IDS = [f"{letter}{n}" for letter, numbers in (
    ("A", (*range(1, 9), 10, 11, 12, *range(14, 20), 21, 22, 23, 24, 26, 28)), ("B", (*range(1, 8), 9, 11, 12, 13)), ("C", (1, 2, *range(4, 8), 9, 10)),
    ("D", (*range(1, 8), 9, 10, 11)), ("E", (1, 2, 3, 5, 7, 8, 9)), ("F", (*range(1, 8), *range(9, 13))), ("G", (1, *range(3, 10))),
    ("H", (1, 2, 3, 4, 6, 7)), ("I", range(1, 20))) for n in numbers]
MUSEUM = "test_museum.py::test_a_fault_is_caught_by_the_check_meant_for_it_and_is_gone_afterwards"


def functions(file: str) -> set[str]:
    path = HERE / file
    return {f.name for f in ast.parse(path.read_text()).body if isinstance(f, ast.FunctionDef)} if path.is_file() else set()


def test_every_id_is_there_once():
    assert [e["id"] for e in ENTRIES] == IDS


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e["id"])
def test_an_id_has_tests_that_exist_or_a_reason(entry):
    assert set(entry) in ({"id", "link", "statement", "tests"}, {"id", "link", "statement", "reason"})
    for sentence in (entry["statement"], entry.get("reason", "None.")):
        assert sentence[0].isupper() and sentence.endswith(".") and ". " not in sentence
    # those found by reading code alone have no report
    assert entry["id"][0] == "I" and entry["link"] == "" or re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+(/(issues|pull)/\d+)?", entry["link"])
    if "tests" in entry:
        assert entry["tests"] and len(set(entry["tests"])) == len(entry["tests"])
    for name in entry.get("tests", ()):
        file, _, function = name.partition("::")
        assert function in functions(file), f"{name} does not exist"


def test_faults_of_the_museum_are_in_the_catalogue():
    assert {e["id"] for e in ENTRIES if MUSEUM in e.get("tests", ())} == {f.id for f in FAULTS}
