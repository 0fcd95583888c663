"""What slows a machine besides the work at hand: priority, other work, power and heat; read, recorded and judged in one place.

A record holds a list of readings, one a start and one at the end. Rows without readings are not judged and carry no mark.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from .rows import Count, Strict

OTHER_CORES = 0.25  # processor cores that other work may take before a machine counts as degraded
SAMPLE_SECONDS = 1.0
PROC, SYS = Path("/proc"), Path("/sys")
MANAGED = ("intel_pstate", "amd-pstate-epp")  # drivers whose governor "powersave" is the ordinary one
LOW_PROFILES = ("low-power", "quiet", "cool")
Amount = Annotated[float, Field(ge=0)]


class Power(Strict):
    """Power mode and heat; what a system does not tell is absent."""

    governor: str | None = None
    driver: str | None = None
    preference: str | None = None
    profile: str | None = None
    supply: str | None = None
    throttle_count: Count | None = None  # since boot: only a difference says something
    hottest_celsius: float | None = None
    passive_cooling: bool | None = None  # some zone has passed the point at which the system slows the processor
    low_power_mode: int | None = None
    speed_limit_percent: int | None = None


class Reading(Strict):
    """One reading as it stands in a record; what could not be read is absent."""

    when: str  # start, resumed or end
    nice: int
    load_1min: Amount | None = None
    load_per_core: Amount | None = None
    other_cores: Amount | None = None  # of other processes: over a second at a start, over the whole run at its end
    power: Power | None = None


Mark = tuple[float, float | None, frozenset[int]]
"""Seconds of a clock, processor seconds that others have used until then, and the cores looked at."""


def open_cores() -> frozenset[int]:
    """The cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def mark(looked_at: frozenset[int] | None = None) -> Mark:
    looked_at = looked_at or open_cores()
    return time.monotonic(), others_seconds(looked_at), looked_at


def others_seconds(looked_at: frozenset[int]) -> float | None:
    """Processor seconds since boot on these cores, but for those of this process and its finished children; Linux only."""
    try:
        lines = (PROC / "stat").read_text().splitlines()
    except OSError:
        return None
    # user, nice, system, (idle, iowait,) irq, softirq and steal, which is time that other machines on the same hardware took
    busy = [[int(v) for v in words[1:9]] for words in map(str.split, lines) if words and words[0] in {f"cpu{n}" for n in looked_at}]
    if not busy:
        return None
    return sum(sum(v[:3]) + sum(v[5:]) for v in busy) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def other_cores(since: Mark | None = None) -> float | None:
    """Cores that other processes have kept busy: since a mark, or over ``SAMPLE_SECONDS`` from now. None where it cannot be read.

    macOS tells a recent average of each process instead. Own processor time does not count either way, so warming up does not.
    """
    if sys.platform == "darwin":
        lines = [line.split() for line in ask("ps", "-A", "-o", "pid=,%cpu=").splitlines()]
        used = [float(share.replace(",", ".")) for pid, share in (w for w in lines if len(w) == 2) if int(pid) != os.getpid()]
        return round(sum(used) / 100, 2) if used else None
    if since is None:
        since = mark()
        time.sleep(SAMPLE_SECONDS)
    now = mark(since[2])
    if now[1] is None or since[1] is None:
        return None
    return round(max(0.0, now[1] - since[1]) / max(now[0] - since[0], 1e-9), 2)


def readings(when: str = "start", since: Mark | None = None) -> dict:
    """One reading: at a start, or ``since`` the mark of the start."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        load = None
    return Reading(when=when, nice=os.getpriority(os.PRIO_PROCESS, 0), load_1min=None if load is None else round(load, 2),
                   load_per_core=None if load is None else round(load / len(open_cores()), 2), other_cores=other_cores(since), power=Power(**found) if (found := power()) else None).model_dump(exclude_none=True)


def power() -> dict:
    """Power mode and heat as far as this system tells; keys that it does not tell are absent."""
    return _power_mac() if sys.platform == "darwin" else _power_linux()


def _power_mac() -> dict:
    text = ask("pmset", "-g") + "\n" + ask("pmset", "-g", "therm")
    found = {"supply": m[1] for m in [re.search(r"drawing from '([^']+)'", ask("pmset", "-g", "batt"))] if m}
    for key, pattern in (("low_power_mode", r"\b(?:lowpowermode|powermode)\s+(\d+)"), ("speed_limit_percent", r"CPU_Speed_Limit\s*=\s*(\d+)")):
        if m := re.search(pattern, text):
            found[key] = int(m[1])
    return found


def _power_linux() -> dict:
    cpu = "devices/system/cpu/cpu0/cpufreq/"
    found: dict = {}
    for key, pattern in (("governor", cpu + "scaling_governor"), ("driver", cpu + "scaling_driver"), ("preference", cpu + "energy_performance_preference"),
                         ("profile", "firmware/acpi/platform_profile"), ("supply", "class/power_supply/BAT*/status")):
        if values := _read(pattern):
            found[key] = values[0]
    counts = [int(v) for v in _read("devices/system/cpu/cpu*/thermal_throttle/core_throttle_count") if v.isdigit()]
    if counts:
        found["throttle_count"] = sum(counts)
    heat = [z for z in map(_zone, sorted(SYS.glob("class/thermal/thermal_zone*"))) if z]
    if heat:
        found |= {"hottest_celsius": max(t for t, _ in heat), "passive_cooling": any(hot for _, hot in heat)}
    return found


def _zone(folder: Path) -> tuple[float, bool] | None:
    """Temperature of a thermal zone in degrees Celsius, and whether it has passed a point at which the system slows the processor."""
    try:
        now = int((folder / "temp").read_text())
        limits = [int((p.parent / p.name.replace("_type", "_temp")).read_text()) for p in sorted(folder.glob("trip_point_*_type")) if p.read_text().strip() == "passive"]
    except (OSError, ValueError):  # some drivers list a file that cannot be read
        return None
    return now / 1000, any(0 < limit <= now for limit in limits)


def _read(pattern: str) -> list[str]:
    values = []
    for path in sorted(SYS.glob(pattern)):
        try:
            values.append(path.read_text().strip())
        except OSError:
            continue
    return values


def ask(*command: str) -> str:
    """What a system command prints, or nothing where there is no such command or it does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def reasons(found: Sequence[Mapping]) -> list[str]:
    """Why rows measured under these readings come from a degraded machine; nothing if none of them says so."""
    said = [f"nice {max(nice)}"] if (nice := [r["nice"] for r in found if r["nice"] > 0]) else []
    for places, where in ((("start", "resumed"), "at the start"), (("end",), "over the run")):
        taken = [r["other_cores"] for r in found if r["when"] in places and (r.get("other_cores") or 0) > OTHER_CORES]
        said += [f"other work on {max(taken):.1f} cores {where}"] if taken else []
    power = [r.get("power") or {} for r in found]
    said += [text for facts in power for text in _slowed(facts)]
    counts = [facts.get("throttle_count") for facts in power]
    if any(a is not None and b is not None and b > a for a, b in zip(counts, counts[1:])):
        said.append("throttled during the run")
    return list(dict.fromkeys(said))


def _slowed(facts: Mapping) -> list[str]:
    """What one reading of power and heat says by itself."""
    tests = {f"power profile {facts.get('profile')}": facts.get("profile") in LOW_PROFILES,
             "governor powersave": facts.get("governor") == "powersave" and facts.get("driver") not in MANAGED,
             "energy preference power": facts.get("preference") == "power", "low power mode": facts.get("low_power_mode") == 1,
             f"throttled to {facts.get('speed_limit_percent')} %": facts.get("speed_limit_percent") not in (None, 100), "hot, throttled": bool(facts.get("passive_cooling"))}
    return [text for text, holds in tests.items() if holds]


def marking(provenance: Mapping) -> str:
    """What a caption says of rows with this record: ``measured on a degraded machine: nice 10``, or nothing."""
    said = reasons(provenance.get("condition", []))
    return f"measured on a degraded machine: {', '.join(said)}" if said else ""
