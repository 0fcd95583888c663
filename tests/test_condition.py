"""Readings of priority, load, power and heat from invented systems, and when they mark a run as one on a degraded machine."""
import json
import logging
import os
import sys
import types

import pytest

import synthetic
from conftest import QUIET
from specdecode_nb import condition
from specdecode_nb.book import overview, page
from specdecode_nb.condition import readings  # the real one, taken before the tests' own is put in its place
from specdecode_nb.errors import BadInput
from specdecode_nb.protocols import common
from specdecode_nb.records import Journal, RowFile, load_rows

TICKS = os.sysconf("SC_CLK_TCK")


def reading(when="start", **changes):
    return {"when": when, **QUIET, **changes}


@pytest.fixture
def system(tmp_path, monkeypatch):
    """An invented Linux: files by path below /sys or /proc, a clock and own processor seconds that are set by hand."""
    now = types.SimpleNamespace(clock=100.0, own=(1.0, 0.5, 0.0, 0.0))

    def put(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def stat(**cores):
        put("proc/stat", "\n".join(["cpu  9 9 9 9 9 9 9 9 9 9"] + [f"{core} " + " ".join(str(int(v * TICKS)) for v in values) for core, values in cores.items()]))

    now.put, now.stat = put, stat
    monkeypatch.setattr(condition, "SYS", tmp_path / "sys")
    monkeypatch.setattr(condition, "PROC", tmp_path / "proc")
    monkeypatch.setattr(condition, "open_cores", lambda: frozenset({0, 1}))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(condition.time, "monotonic", lambda: now.clock)
    monkeypatch.setattr(condition.os, "times", lambda: (*now.own, 0.0))
    return now


def test_own_work_does_not_count_and_other_work_does(system):
    system.stat(cpu0=[10, 0, 2, 50, 3, 0, 0, 0, 0, 0], cpu1=[5, 1, 0, 60, 0, 0, 1, 2, 0, 0], cpu2=[99, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    since = condition.mark()
    system.clock, system.own = 110.0, (9.0, 1.5, 4.0, 1.0)  # 14 s of our own, those of finished children among them
    system.stat(cpu0=[18, 0, 3, 50, 9, 0, 0, 0, 0, 0], cpu1=[10, 1, 0, 60, 0, 0, 1, 2, 0, 0], cpu2=[999, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    assert condition.other_cores(since) == 0.0  # 14 s of work in all; waiting for a disk and closed cores do not count
    system.stat(cpu0=[20, 0, 3, 50, 9, 0, 0, 0, 0, 0], cpu1=[10, 2, 0, 60, 0, 0, 1, 5, 0, 0], cpu2=[999, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    assert condition.other_cores(since) == 0.6  # 2 s of a user, 1 s of a niced one, 3 s stolen, in ten


def test_a_start_samples_for_a_while(system, monkeypatch):
    system.stat(cpu0=[1, 0, 0, 0, 0, 0, 0, 0])

    def sleep(seconds):
        system.clock += seconds
        system.stat(cpu0=[1.8, 0, 0, 0, 0, 0, 0, 0])

    monkeypatch.setattr(condition.time, "sleep", sleep)
    assert condition.other_cores() == 0.8


def test_what_cannot_be_read_is_absent_and_marks_nothing(system, monkeypatch):
    monkeypatch.setattr(condition.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(condition.os, "getpriority", lambda *_: 0)

    def no_load():
        raise OSError

    monkeypatch.setattr(condition.os, "getloadavg", no_load)
    assert readings() == {"when": "start", "nice": 0} and condition.reasons([readings()]) == []


def test_a_reading_of_linux(system, monkeypatch):
    for path, text in (("scaling_governor", "powersave"), ("scaling_driver", "intel_pstate"), ("energy_performance_preference", "balance_performance")):
        system.put(f"sys/devices/system/cpu/cpu0/cpufreq/{path}", text)
    for path, text in (("firmware/acpi/platform_profile", "balanced"), ("class/power_supply/BAT1/status", "Discharging"),
                       ("devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3"), ("devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "4"),
                       ("class/thermal/thermal_zone0/temp", "61000"), ("class/thermal/thermal_zone0/trip_point_0_type", "passive"),
                       ("class/thermal/thermal_zone0/trip_point_0_temp", "95000"), ("class/thermal/thermal_zone1/temp", "not a number")):
        system.put(f"sys/{path}", text)
    system.stat(cpu0=[1, 0, 0, 0, 0, 0, 0, 0])
    since = condition.mark()
    system.clock += 10
    monkeypatch.setattr(condition.os, "getloadavg", lambda: (1.5, 1.0, 0.5))
    monkeypatch.setattr(condition.os, "getpriority", lambda *_: 10)
    found = readings("end", since)
    assert found == {"when": "end", "nice": 10, "load_1min": 1.5, "load_per_core": 0.75, "other_cores": 0.0, "power": {
        "governor": "powersave", "driver": "intel_pstate", "preference": "balance_performance", "profile": "balanced", "supply": "Discharging",
        "throttle_count": 7, "hottest_celsius": 61.0, "passive_cooling": False}}
    assert condition.reasons([found]) == ["nice 10"]
    system.put("sys/class/thermal/thermal_zone0/temp", "96000")
    assert condition.reasons([reading(power=condition.power())]) == ["hot, throttled"]


def test_a_reading_of_a_mac(monkeypatch):
    said = {("pmset", "-g"): "Currently in use:\n lowpowermode         1\n sleep 1", ("pmset", "-g", "therm"): "CPU_Speed_Limit \t= 80",
            ("pmset", "-g", "batt"): "Now drawing from 'Battery Power'\n -InternalBattery-0 80%", ("ps", "-A", "-o", "pid=,%cpu="): f"  1  12,5\n {os.getpid()} 190.0\n 77 30.0\n"}
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(condition, "ask", lambda *command: said[command])
    assert condition.power() == {"supply": "Battery Power", "low_power_mode": 1, "speed_limit_percent": 80}
    assert condition.other_cores() == 0.42
    assert condition.reasons([reading(power=condition.power())]) == ["low power mode", "throttled to 80 %"]
    monkeypatch.setattr(condition, "ask", lambda *command: "")
    assert condition.power() == {} and condition.other_cores() is None


@pytest.mark.parametrize("found, said", [
    ([], []), ([reading()], []), ([reading(other_cores=condition.OTHER_CORES)], []), ([reading(nice=-5)], []),
    ([reading(nice=10)], ["nice 10"]), ([reading(other_cores=0.84)], ["other work on 0.8 cores at the start"]),
    ([reading(), reading("resumed", nice=5), reading("end", other_cores=1.26)], ["nice 5", "other work on 1.3 cores over the run"]),
    ([reading(load_1min=8.0, load_per_core=4.0)], []),  # our own work may have made it
    ([reading(power={"profile": "low-power"})], ["power profile low-power"]), ([reading(power={"preference": "power"})], ["energy preference power"]),
    ([reading(power={"governor": "powersave", "driver": "acpi-cpufreq"}), reading("end", power={"governor": "powersave", "driver": "acpi-cpufreq"})], ["governor powersave"]),
    ([reading(power={"speed_limit_percent": 100, "low_power_mode": 0, "supply": "Discharging"})], []),
    ([reading(power={"throttle_count": 7})], []), ([reading(power={"throttle_count": 7}), reading("end", power={"throttle_count": 8})], ["throttled during the run"])])
def test_one_rule_says_why_a_machine_is_degraded(found, said):
    assert condition.reasons(found) == said
    assert condition.marking({"condition": found}) == (f"measured on a degraded machine: {', '.join(said)}" if said else "")


# --- captions ---

def degraded(path, found, **options) -> RowFile:
    value = json.loads(synthetic.write(path, **options).read_text())
    value["provenance"] |= {"condition": found}
    path.write_text(json.dumps(value))
    return load_rows(path)


def test_captions_of_rows_from_a_degraded_machine_end_in_the_reason(tmp_path):
    plain = page.measured_label(load_rows(synthetic.write(tmp_path / "old.json", reduced=True)))
    assert plain.endswith("2026-01-01; a reduced run")
    quiet = degraded(tmp_path / "quiet.json", [reading(), reading("end")], reduced=True)
    assert page.measured_label(quiet) == plain and "degraded" not in overview.phrase("act4s", quiet)
    slow = degraded(tmp_path / "slow.json", [reading(nice=10), reading("end", nice=10)], reduced=True)
    assert page.measured_label(slow) == plain + "; measured on a degraded machine: nice 10"
    assert overview.phrase("act4s", slow).endswith(", a reduced run, measured on a degraded machine: nice 10")


@pytest.mark.parametrize("found, word", [("quiet", "condition"), ([{"when": "start"}], "nice"), ([reading(nice="10")], "condition[0].nice"), ([reading(power={"low_power_mode": "1"})], "low_power_mode")])
def test_a_reading_that_does_not_fit_is_refused_by_field(tmp_path, found, word):
    with pytest.raises(BadInput) as refused:
        degraded(tmp_path / "rows.json", found)
    assert word in str(refused.value)


# --- journals ---

HEAD = {"act": "act4s", "target": "toy", "config": {}}


def test_a_resume_keeps_every_reading(tmp_path):
    path = tmp_path / "a.journal"
    with Journal(path, provenance={"date": "2026-01-01", "condition": [reading()]}, **HEAD) as rows:
        rows.append({"kind": "x"})
    with Journal(path, provenance={"date": "2026-01-01", "condition": [reading(nice=3)]}, resume=True, **HEAD) as rows:
        rows.note(reading("resumed", nice=3))
        rows.append({"kind": "y"})
    with Journal(path, provenance={"date": "2026-01-01"}, resume=True, **HEAD) as rows:
        assert [r["kind"] for r in rows] == ["x", "y"]
        rows.note(reading("end"))
        file = load_rows(rows.finish())
    assert [(r["when"], r["nice"]) for r in file.provenance["condition"]] == [("start", 0), ("resumed", 3), ("end", 0)]
    assert file.rows == [{"kind": "x"}, {"kind": "y"}]
    path.write_text("")
    with Journal(path, provenance={}, resume=True, **HEAD) as rows:
        rows.append({"kind": "x"})
    path.write_text(path.read_text() + '{"condition": {"when": "end"}}\n')
    with pytest.raises(BadInput, match="line 3.*nice"), Journal(path, provenance={}, resume=True, **HEAD):
        pass


TARGET = types.SimpleNamespace(name="toy", dtype="float32", digest=lambda: "0" * 64, parameters=lambda: 1)
DRAFTER = types.SimpleNamespace(name="uno", metadata={})


def test_a_measurement_records_start_resume_and_end_and_warns_once_a_sitting(tmp_path, monkeypatch, caplog):
    nice, marks = iter([10, 0, 0]), []

    def invented(when="start", since=None):
        marks.append((when, since is not None))
        return reading(when, nice=next(nice))

    monkeypatch.setattr(condition, "readings", invented)
    path = tmp_path / "act4s.journal"
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt), common.journal_of("act4s", path, TARGET, DRAFTER, {}) as rows:
        assert [r.getMessage() for r in caplog.records] == ["This machine is degraded (nice 10); the captions of what is measured now will say so."]
        rows.append({"kind": "x"})
        raise KeyboardInterrupt
    caplog.clear()
    with common.journal_of("act4s", path, TARGET, DRAFTER, {}, resume=True):
        pass
    file = load_rows(tmp_path / "act4s.json")
    assert not caplog.records and marks == [("start", False), ("start", False), ("end", True)]
    assert [(r["when"], r["nice"]) for r in file.provenance["condition"]] == [("start", 10), ("resumed", 0), ("end", 0)]
    assert "nice 10" in page.measured_label(file) and file.rows == [{"kind": "x"}]


def test_rows_are_kept_one_by_one_and_each_is_told(tmp_path):
    told = []
    with Journal(tmp_path / "a.journal", provenance={}, **HEAD) as rows:
        keep = common.keeper(rows, 3, lambda *of: told.append(of))

        def new():
            yield {"kind": "note", "prompt_id": "a-1", "arm": "ar"}
            assert len(rows) == 1  # the one before is on disk before the next is made
            yield {"kind": "note"}

        keep(new())
        assert told == [(0, 3, "warming up"), (1, 3, "a-1 ar"), (2, 3, "note")]
        common.keeper(rows, 3, None)([{"kind": "note"}])
        assert len(rows) == 3 and len(told) == 3


def test_captions_name_the_types_and_libraries_of_rows_made_in_processes_of_their_own(tmp_path):
    plain = load_rows(synthetic.write(tmp_path / "rows.json"))
    for row, (dtype, blas) in zip(plain.rows, [("bfloat16", "other"), ("float32", "other"), ("bfloat16", None)]):
        row |= {"dtype": dtype} | ({"blas": blas} if blas else {})
    assert page.measured_label(plain).startswith("measured here: invented, float32 and bfloat16; invented machine; MLX 0, BLAS invented and other;")
    for row in plain.rows:
        row.pop("blas", None)
    assert page.measured_label(plain).startswith("measured here: invented, float32; invented machine; MLX 0, BLAS invented;")
