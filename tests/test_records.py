"""Row files and journals: what is refused, in which words, and what survives a kill."""
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdecode_nb.errors import BadInput
from specdecode_nb.records import Journal, dumps, load_rows, parse, save_rows, sweep, unfit, write_atomic

HEAD = {"act": "act4s", "target": "toy", "provenance": {"date": "2026-01-01", "machine": {"class": "toy"}}, "config": {"tokens": 4}}


def row(**changes):
    return {"kind": "decode", "arm": "uno_k2", "prompt_id": "code-1", "category": "code", "repeat": 0, "prompt_tokens": 3, "tokens": 4,
            "wall_seconds": 1.0, "prefill_seconds": 0.1, "draft_seconds": 0.3, "verify_seconds": 0.4, "commit_seconds": 0.1, "forwards": 5,
            "cycles": 2, "accepted_per_cycle": [0, 0], "committed_per_cycle": [2, 2], "ar_looped_fraction": 0.0, "identical_to_ar": True,
            "first_divergence": None, "divergence_gap_ulps": None} | changes


def write(path, **changes):
    value = {"schema": 1, **HEAD, "rows": [row()]} | changes
    path.write_text(json.dumps(value))
    return path


def test_a_row_file_is_read_back_with_one_row_a_line(tmp_path):
    path = save_rows(tmp_path / "a.json", rows=[row(), row(repeat=1, note="é\u2028")], **HEAD)
    file = load_rows(path, "data/a.json")
    assert [r["repeat"] for r in file.of("decode")] == [0, 1] and file.name == "data/a.json" and len(file.digest) == 64
    assert sum(line.startswith('  {"kind"') for line in path.read_text().split("\n")) == 2
    assert load_rows(save_rows(tmp_path / "b.json", rows=file.rows, **HEAD)).digest == file.digest


@pytest.mark.parametrize("text, words", [
    ("", ["not JSON", "line 1"]), ("{", ["not JSON"]), ("[" * 100_000, ["nested too deeply"]), ("[]", ["schema None"]), ('{"schema": 2}', ["schema 2", "reads 1"]),
    ('{"schema": true}', ["schema True"]), ('{"schema": 1, "schema": 1}', ["'schema' twice"]), ('{"schema": 1, "act": NaN}', ["not finite at act"]),
    ('{"schema": 1, "act": 1e999}', ["not finite at act"]), ('{"schema": 1, "act": "a"}', ["at target", "required"])])
def test_a_damaged_file_is_refused_by_name_and_field(tmp_path, text, words):
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(BadInput) as refused:
        load_rows(path)
    assert all(word in str(refused.value) for word in ["rows.json", *words]), refused.value


@pytest.mark.parametrize("changes, words", [
    ({"wall_seconds": float("nan")}, ["rows[0].wall_seconds", "not finite"]), ({"wall_seconds": "1.0"}, ["rows[0].wall_seconds", "number"]),
    ({"wall_seconds": 0.0}, ["rows[0].wall_seconds", "greater than 0"]), ({"tokens": 4.0}, ["rows[0].tokens", "integer"]), ({"tokens": True}, ["rows[0].tokens"]),
    ({"ar_looped_fraction": 1.5}, ["ar_looped_fraction"]), ({"accepted_per_cycle": [0]}, ["1 entries for 2 cycles"]), ({"committed_per_cycle": [2, 1]}, ["sums to 3"]),
    ({"accepted_per_cycle": [0, -1]}, ["accepted_per_cycle[1]"]), ({"identical_to_ar": 1}, ["identical_to_ar"]), ({"kind": 3}, ["kind"])])
def test_a_row_that_does_not_fit_is_refused_by_field(tmp_path, changes, words):
    with pytest.raises(BadInput) as refused:
        load_rows(write(tmp_path / "rows.json", rows=[row(**changes)]))
    assert all(word in str(refused.value) for word in ["rows.json", *words]), refused.value


@pytest.mark.parametrize("field", sorted(set(row()) - {"kind"}))
def test_every_field_of_a_decode_row_is_needed(tmp_path, field):
    short = row()
    del short[field]
    with pytest.raises(BadInput, match=rf"rows\[0\].{field}: field required"):
        load_rows(write(tmp_path / "rows.json", rows=[short]))


def test_files_that_cannot_be_read_are_bad_input(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "none.json", tmp_path, tmp_path / "binary.json"):
        with pytest.raises(BadInput):
            load_rows(path)


def test_nothing_that_json_lacks_is_written_and_the_old_file_stays(tmp_path):
    path = save_rows(tmp_path / "a.json", rows=[row()], **HEAD)
    before = path.read_bytes()
    for odd in (float("inf"), {1, 2}, Path("x")):
        with pytest.raises(BadInput):
            save_rows(path, rows=[row(extra=odd)], **HEAD)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_extra_fields_and_other_kinds_are_kept(tmp_path):
    path = save_rows(tmp_path / "a.json", rows=[row(peak_memory_bytes=1), {"kind": "recipe", "arm": "x"}], **HEAD)
    assert load_rows(path).of("recipe") == [{"kind": "recipe", "arm": "x"}]


def test_a_journal_becomes_a_row_file(tmp_path):
    with Journal(tmp_path / "out" / "act4s.journal", **HEAD) as rows:
        rows.append(row())
        rows.append(row(repeat=1))
        assert len(rows) == 2 and [r["repeat"] for r in rows] == [0, 1]
        path = rows.finish()
    assert path == tmp_path / "out" / "act4s.json" and not (tmp_path / "out" / "act4s.journal").exists()
    assert len(load_rows(path).rows) == 2


def test_an_unfinished_journal_needs_resume_and_the_same_configuration(tmp_path):
    path = tmp_path / "act4s.journal"
    with Journal(path, **HEAD) as rows:
        rows.append(row())
    with pytest.raises(BadInput, match="--resume"), Journal(path, **HEAD):
        pass
    for change, word in (({"config": {"tokens": 5}}, "config.tokens was 4, now 5"), ({"target": "other"}, "target"),
                         ({"provenance": {**HEAD["provenance"], "machine": {"class": "x"}}}, "machine.class")):
        with pytest.raises(BadInput, match=word), Journal(path, **{**HEAD, **change}, resume=True):
            pass
    later = {**HEAD, "provenance": {**HEAD["provenance"], "date": "2026-01-02"}}
    with Journal(path, **later, resume=True) as rows:
        assert len(rows) == 1
        assert load_rows(rows.finish()).provenance["date"] == "2026-01-01"


def test_a_torn_last_line_is_dropped_and_the_row_measured_again(tmp_path):
    path = tmp_path / "act4s.journal"
    with Journal(path, **HEAD) as rows:
        rows.append(row())
    whole = path.read_bytes()
    path.write_bytes(whole + whole[whole.index(b"\n") + 1 : -20])
    with Journal(path, **HEAD, resume=True) as rows:
        assert rows.dropped and len(rows) == 1
        rows.append(row(repeat=1))
    with Journal(path, **HEAD, resume=True) as rows:
        assert not rows.dropped and [r["repeat"] for r in rows] == [0, 1]


def test_a_torn_header_begins_again_and_a_damaged_middle_is_refused(tmp_path):
    path = tmp_path / "act4s.journal"
    path.write_bytes(b'{"schema": 1, "act"')
    with Journal(path, **HEAD, resume=True) as rows:
        rows.append(row())
    path.write_bytes(path.read_bytes().replace(b'"kind": "decode"', b'"kind": "dec', 1) + b"{}\n")
    with pytest.raises(BadInput, match="line 2"), Journal(path, **HEAD, resume=True):
        pass


def test_two_processes_do_not_write_one_journal(tmp_path):
    with Journal(tmp_path / "act4s.journal", **HEAD), pytest.raises(BadInput, match="Another process"), \
            Journal(tmp_path / "act4s.journal", **HEAD, resume=True):
        pass


KILLED = """
import sys, time
from test_records import HEAD, row
from specdecode_nb.records import Journal
with Journal(sys.argv[1], **HEAD) as rows:
    for i in range(3):
        rows.append(row(repeat=i))
    print("ready", flush=True)
    time.sleep(60)
"""


def test_finished_rows_survive_kill_9(tmp_path):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])}
    path = tmp_path / "act4s.journal"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, env=env) as child:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)
    with Journal(path, **HEAD, resume=True) as rows:
        assert [r["repeat"] for r in rows] == [0, 1, 2]


# --- what stands in the place of a file ---

def test_a_journal_is_never_written_through_a_link_or_over_another_file(tmp_path):
    path, other = tmp_path / "act4s.journal", tmp_path / "notes"
    for text in (b"a page without an end of line", b"[1]\n", b'{"schema": 1}\nhalf', b"\0\0"):
        other.write_bytes(text)
        path.symlink_to(other)
        for resume in (False, True):
            with pytest.raises(BadInput, match="no journal but a link"), Journal(path, **HEAD, resume=resume):
                pass
        path.unlink()
        path.write_bytes(text)
        with pytest.raises(BadInput), Journal(path, **HEAD, resume=True):
            pass
        assert path.read_bytes() == other.read_bytes() == text
        path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="no journal but a link"), Journal(path, **HEAD):
        pass
    assert not (tmp_path / "nowhere").exists()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BadInput, match="no journal"), Journal(path, **HEAD, resume=True):
        pass


@pytest.mark.parametrize("text, words", [
    ('{"a":' * 500 + "1" + "}" * 500, "nested too deeply"), ('{"a": ' + "1" * 5000 + "}", "too many digits"), ('{"a": [1, ' + "1" * 400 + "]}", "beyond 64 bits at a[1]"),
    ('{"a": ["\\ud800"]}', "half a character (a lone surrogate) at a[0]"), ('{"\\udfff": 1}', "half a character"), ("\ufeff{}", "not JSON"), ('{"a": [0, 1e999]}', "not finite at a[1]")])
def test_what_could_not_be_computed_with_or_written_again_is_refused(text, words):
    with pytest.raises(BadInput) as refused:
        parse(text, "x.json")
    assert words in str(refused.value) and "x.json" in str(refused.value) and len(str(refused.value)) < 600


def test_what_is_at_the_limits_is_read():
    text = '{"a": [9223372036854775807, -9223372036854775807, "\U0001f642", ' + "[" * 60 + "]" * 60 + ', 1.7976931348623157e308, true, null]}'
    assert dumps(parse(text, "x")) == dumps(json.loads(text))


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5), lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=3), max_leaves=12)


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(JSON)
def test_what_is_read_can_be_written_and_read_again(value):
    text = json.dumps(value)
    try:
        found = parse(text, "x")
    except BadInput as error:
        assert unfit(value) and str(error).endswith(".")
    else:
        assert found == value and parse(dumps(found), "x") == value and dumps(found).encode()


@settings(max_examples=150, derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_row_file_of_any_values_is_read_or_refused(tmp_path, data):
    """One value in a good file replaced by any other: the rows that come back can be saved again, or one sentence says why not."""
    value = json.loads(json.dumps({"schema": 1, **HEAD, "rows": [row(), row(repeat=1)]}))
    place = value
    while isinstance(place, dict) and data.draw(st.booleans(), label="deeper") or isinstance(place, list):
        at = data.draw(st.sampled_from(sorted(place))) if isinstance(place, dict) else data.draw(st.integers(0, len(place) - 1)) if place else None
        if at is None or not isinstance(place[at], (dict, list)) or not place[at]:
            break
        place = place[at]
    if isinstance(place, dict):
        place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)
    else:
        place[0] = data.draw(JSON)
    path = tmp_path / "any.json"
    path.write_text(json.dumps(value))
    try:
        file = load_rows(path)
    except BadInput as error:
        assert "any.json" in str(error) and "\n" not in str(error)
    else:
        save_rows(tmp_path / "again.json", file.act, file.target, file.provenance, file.config, file.rows)
        assert load_rows(tmp_path / "again.json").rows == file.rows


def test_files_that_a_killed_process_left_half_written_are_swept_and_others_are_not(tmp_path):
    write_atomic(tmp_path / "a.json", "{}")
    left = tmp_path / ".a.json.abcd1234.writing"
    left.write_text("{")
    own = [tmp_path / name for name in (".a.json.abcd1234", ".writing", "a.json.abcd1234.writing", ".a.markdown", ".x.12345678.writings")]
    for path in own:
        path.write_text("mine")
    busy = tmp_path / ".b.json.abcd1234.writing"
    (tmp_path / ".c.json.abcd1234.writing").symlink_to(own[0])
    with open(busy, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert sweep(tmp_path) == 1
        assert not left.exists() and busy.exists() and all(p.read_text() == "mine" for p in own)
    assert sweep(tmp_path) == 1 and sweep(tmp_path / "none") == 0 and not busy.exists()
