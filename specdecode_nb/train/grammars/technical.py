"""Manuals, change logs and job logs with rising step, ticket and clock numbers."""
from __future__ import annotations

from .world import COLOURS, ITEMS, MODULES, World, cycle

PARTS = "plate bolt spring valve wheel belt cover hinge frame pump pipe shaft lever panel motor switch bracket tray".split()


def manual(w: World) -> str:
    """Assembly: parts with slots and torques listed, then fitted in order."""
    parts, colours = w.some(PARTS, 11), [w.r.choice(COLOURS) for _ in range(11)]
    slot, step, model = w.number(10, 80), w.small(1, 4), w.number(100, 900)
    torque = [w.small(3, 19) for _ in parts]
    town = w.towns(1)[0]
    out = [f"{town} {model} Assembly Manual\n\nParts: " + ", ".join(f"{i} {c} {p} {t} Nm" for i, (c, p, t) in enumerate(zip(colours, parts, torque), 1)) + f". Slots begin at {slot}.\n"]
    tell = [
        lambda i, c, p, t, s, q: f"Step {i}. Lift the {c} {p} into slot {s} and tighten it to {t} Nm. Do not touch the {q} yet.",
        lambda i, c, p, t, s, q: f"Step {i}. Slot {s} takes the {c} {p}. Clean it, press it down and turn the key until it shows {t} Nm; the {q} comes next.",
        lambda i, c, p, t, s, q: f"Step {i}. Check that the {p} is {c}. Slide it along the rail to slot {s}, torque {t} Nm, and leave room for the {q}.",
        lambda i, c, p, t, s, q: f"Step {i}. Put a drop of oil on the {p}. With the {c} side up, fix it in slot {s} ({t} Nm). Keep the {q} ready.",
        lambda i, c, p, t, s, q: f"Step {i}. Now mount the {c} {p}: open slot {s}, push, and lock at {t} Nm. If it rattles, remove the {q} first.",
        lambda i, c, p, t, s, q: f"Step {i}. Warning: the {p} is heavy. Two people lower the {c} end to slot {s}, then one sets {t} Nm and fetches the {q}.",
        lambda i, c, p, t, s, q: f"Step {i}. Connect the {p} by its {c} wire. In slot {s} the limit is {t} Nm. Test it before the {q}.",
        lambda i, c, p, t, s, q: f"Step {i}. Turn the unit over. Slot {s} is on the left; the {c} {p} clicks in at {t} Nm and holds the {q}.",
    ]
    steps = cycle(w, tell)
    for i, (c, p, t) in enumerate(zip(colours, parts, torque), 1):
        out.append(next(steps)(i, c, p, t, slot + step * (i - 1), parts[i] if i < 11 else "cover plate"))
    return "\n".join(out)


def changelog(w: World) -> str:
    """Releases in rising order; entries are numbered, and the last digit of the number says who and what."""
    minor, ticket, step, size = w.number(1, 30), w.number(100, 800), w.small(1, 4), w.number(20, 90)
    modules, people, items, month = w.some(MODULES, 10), w.people(10), w.some(ITEMS, 10), w.small(1, 12)
    out = ["Change log. By the last digit of an entry: " + ", ".join(f"{i} {m} {x} {p}" for i, (m, x, p) in enumerate(zip(modules, items, people))) + ".\n"]
    tell = [
        lambda m, n, k, p, x: f"- {n}: Fixed #{k}, the {m} no longer drops the {x} when it is open twice ({p}).",
        lambda m, n, k, p, x: f"- {n}: New option --{x}-limit for the {m}, asked for in #{k}. Thanks to {p}.",
        lambda m, n, k, p, x: f"- {n}: The {m} is faster by {k} ms for one {x}. Measured by {p}.",
        lambda m, n, k, p, x: f"- {n}: {p} removed the old {x} switch from the {m} (#{k}); use its short name instead.",
        lambda m, n, k, p, x: f"- {n}: Documented how the {m} reads {x} data, as #{k} wished, by {p}.",
        lambda m, n, k, p, x: f"- {n}: Errors of the {m} now name the {x} and ticket #{k}. Reviewed by {p}.",
        lambda m, n, k, p, x: f"- {n}: Tests for #{k} cover the {x} path of the {m}. {p} wrote them.",
        lambda m, n, k, p, x: f"- {n}: In #{k} {p} found a leak in the {m}: every {x} was kept.",
    ]
    steps, j = cycle(w, tell), 0
    for release in range(9):
        out.append(f"Version 2.{minor + release} ({(month + release - 1) % 12 + 1:02d}/{25 + (month + release - 1) // 12})")
        for _ in range(2):
            d = (size + j) % 10
            out.append(next(steps)(modules[d], size + j, ticket + step * j, people[d], items[d]))
            j += 1
    return "\n".join(out)


def log(w: World) -> str:
    """A service log: clock, job number, module and queue length advance."""
    minute, second, job, queue = w.small(0, 30), w.small(0, 59), w.number(100, 900), w.number(20, 60)
    modules, step, items, people = w.some(MODULES, 10), w.small(3, 9), w.some(ITEMS, 10), w.people(10)
    out = [f"# one line every {step} s; last digit of the job: " + ", ".join(f"{i} {m} {x} {p}" for i, (m, x, p) in enumerate(zip(modules, items, people)))]
    tell = [
        lambda m, q, x, p: f"{m}: accepted from {p}, {q} in line",
        lambda m, q, x, p: f"{m}: reading {x}.dat, {q} left",
        lambda m, q, x, p: f"{m}: {p} changed the {x} setting to {q}",
        lambda m, q, x, p: f"{m}: warning, {x} is slow, waiting for {q} others",
        lambda m, q, x, p: f"{m}: wrote {q} rows of {x} to {p}/{x}.out",
        lambda m, q, x, p: f"{m}: done, mail sent to {p}, queue {q}",
        lambda m, q, x, p: f"{m}: retry {q} of {x} for {p}",
        lambda m, q, x, p: f"{m}: closed {x} and freed {q} MB for {p}",
        lambda m, q, x, p: f"{m}: {p} asked for the state of {x}: {q} percent",
    ]
    steps, clock = cycle(w, tell), 60 * minute + second
    for i in range(24):
        d = (job + i) % 10
        out.append(f"10:{clock // 60:02d}:{clock % 60:02d} [{job + i}] " + next(steps)(modules[d], queue + i, items[d], people[d]))
        clock += step
    return "\n".join(out)


TYPES = (manual, changelog, log)
