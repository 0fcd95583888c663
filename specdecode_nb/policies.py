"""Who chooses the width of the next block: rules that see earlier cycles and nothing of the one to come.

The decoder calls ``width()`` before a cycle and ``observe(cycle)`` after its commit. ``begin()`` gives every generation its
own state. Width 0 is a plain step: one target row and no draft. The first three adaptive rules are the published ones (5.2).
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from .errors import BadInput

ALLOWED = (2, 4, 8)


@dataclass(frozen=True)
class Cycle:
    """A finished cycle: the width asked for, speculative tokens offered and accepted, tokens committed, and where a policy wants it
    the entropy (nats) of the verify forward's first row."""

    width: int
    offered: int
    accepted: int
    committed: int
    entropy: float | None = None


_ONE_OR_MORE = ("samples", "probe", "trust", "first", "rarest", "window", "start", "floor", "full", "short")


def _number(value, least: float, most: float = float("inf")) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def _whole(value, least: int) -> bool:
    return isinstance(value, int) and _number(value, least)


@dataclass
class Policy:
    """Base of the rules; ``wants_entropy`` makes the decoder compute the entropy, at its cost.

    Raises BadInput, when it is made, for options that could not be followed.
    """

    wants_entropy = False

    def __post_init__(self):
        name, options = type(self).__name__, vars(self)

        def need(option: str, fits: bool, what: str) -> None:
            if not fits:
                raise BadInput(f"{name}: {option} is {options[option]!r}; give {what}.")

        for option in _ONE_OR_MORE:
            if option in options:
                need(option, _whole(options[option], 1), "a whole number, 1 or more")
        for option in ("decay", "rate"):
            if option in options:
                need(option, _number(options[option], 0, 1), "a number from 0 to 1")
        if "allowed" in options:
            need("allowed", isinstance(self.allowed, (tuple, list)) and bool(self.allowed) and all(_whole(k, self.least) for k in self.allowed),
                 f"widths, each a whole number, {self.least} or more")
        if "costs" in options:
            need("costs", isinstance(self.costs, Mapping) and bool(self.costs) and all(_whole(k, 0) and _number(v, 1e-9, 1e9) for k, v in self.costs.items()),
                 "milliseconds by width, each above 0")

    least = 1  # the narrowest width that may be allowed

    def begin(self) -> Policy:
        """The same rule without a history."""
        return replace(self)

    @property
    def widest(self) -> int:
        return max(self.allowed)

    def observe(self, cycle: Cycle) -> None:
        """Take a finished cycle in."""


@dataclass
class Fixed(Policy):
    """Always the same width; 0 decodes plainly, one synchronous step a cycle."""

    k: int

    def __post_init__(self):
        if not _whole(self.k, 0):
            raise BadInput(f"Fixed: k is {self.k!r}; give a whole number, 0 or more.")

    @property
    def widest(self) -> int:
        return max(1, self.k)

    def width(self) -> int:
        return self.k


@dataclass
class ByEntropy(Policy):
    """The widest block after a sure verifier, the narrowest after an unsure one, ``default`` between; starts sure."""

    allowed: tuple[int, ...] = ALLOWED
    default: int = 4
    low: float = 0.5
    high: float = 2.0
    _last: float = field(default=0.0, init=False)
    wants_entropy = True

    def __post_init__(self):
        super().__post_init__()
        if self.default not in self.allowed:
            raise BadInput(f"ByEntropy: default is {self.default!r}; give one of the allowed widths {list(self.allowed)}.")
        if not (_number(self.low, 0) and _number(self.high, self.low)):
            raise BadInput(f"ByEntropy: low is {self.low!r} and high {self.high!r}; give nats, the lower first.")

    def width(self) -> int:
        return max(self.allowed) if self._last <= self.low else min(self.allowed) if self._last >= self.high else self.default

    def observe(self, cycle: Cycle) -> None:
        if cycle.entropy is not None:
            self._last = cycle.entropy


@dataclass
class BySurvival(Policy):
    """The widest block whose slots are no more than one beyond a moving average of the accepted prefix."""

    allowed: tuple[int, ...] = ALLOWED
    decay: float = 0.7
    _estimate: float = field(default=1.0, init=False)

    def width(self) -> int:
        return max((k for k in self.allowed if k - 1 <= self._estimate + 1), default=min(self.allowed))

    def observe(self, cycle: Cycle) -> None:
        self._estimate = self.decay * self._estimate + (1 - self.decay) * cycle.accepted


@dataclass
class ByExpectedValue(Policy):
    """Most tokens a millisecond: (moving average of the accepted prefix at a width + 2) / its cost.

    Each width is tried ``samples`` times first, in the order of ``allowed``; every ``probe``-th cycle takes the widths in turn.
    ``costs``: milliseconds of a cycle by width.
    """

    costs: Mapping[int, float]
    allowed: tuple[int, ...] = ALLOWED
    decay: float = 0.85
    samples: int = 3
    probe: int = 16
    _mean: dict[int, float] = field(default_factory=dict, init=False)
    _count: dict[int, int] = field(default_factory=dict, init=False)
    _cycle: int = field(default=1, init=False)  # number of the cycle to come

    def __post_init__(self):
        super().__post_init__()
        if missing := [k for k in self.allowed if k not in self.costs]:
            raise BadInput(f"ByExpectedValue: costs lacks the width {missing[0]}; give one for each allowed width.")

    def width(self) -> int:
        for k in self.allowed:
            if self._count.get(k, 0) < self.samples:
                return k
        if self._cycle % self.probe == 0:
            return self.allowed[self._cycle // self.probe % len(self.allowed)]
        return max(self.allowed, key=lambda k: (self._mean[k] + 2) / self.costs[k])

    def observe(self, cycle: Cycle) -> None:
        k, self._cycle = cycle.width, self._cycle + 1
        self._mean[k] = self.decay * self._mean[k] + (1 - self.decay) * cycle.accepted if k in self._mean else float(cycle.accepted)
        self._count[k] = self._count.get(k, 0) + 1


@dataclass
class ByConditionalValue(Policy):
    """Expected value with measured costs, acceptance by position, and the choice not to draft.

    The acceptance of a position is counted only where the cycle reached it; after ``trust`` visits it is believed, before that it
    is taken from the deepest believed one, or as certain. Blocks reach at most one slot beyond the believed ones. While the choice
    stays the same, the next wider block is probed after 4, 8, ... up to ``rarest`` cycles, so that plain steps are no dead end.
    ``costs``: milliseconds of a cycle by width, 0 included; other widths are interpolated. ``exact``: leading proposals that are
    the target's own (1 for uno, 0 for drafters that guess the token after the seed as well).
    """

    costs: Mapping[int, float]
    allowed: tuple[int, ...] = (0, 2, 3, 4, 5, 6, 7, 8)
    rate: float = 0.1
    trust: int = 10
    first: int = 4
    rarest: int = 512
    exact: int = 1
    least = 0

    def __post_init__(self):
        super().__post_init__()
        if min(self.allowed) > 2:
            raise BadInput(f"ByConditionalValue: allowed is {self.allowed!r}; it starts from 0, 1 or 2, so one of them must be allowed.")
        known = sorted(self.costs)
        self._price = {k: float(np.interp(k, known, [self.costs[w] for w in known])) for k in self.allowed}
        self._slots = [[0.0, 0] for _ in range(self.widest)]  # acceptance and visits of each speculative position
        self._wait, self._since = self.first, 0
        self._best = self._next = self._choose()

    def expected(self, k: int) -> float:
        """Tokens that a cycle of width k is believed to commit."""
        total, reach, believed = 1.0 + (self.exact if k else 0), 1.0, 1.0
        for rate, visits in self._slots[: max(0, k - 1)]:
            believed = rate if visits >= self.trust else believed
            reach *= believed
            total += reach
        return total

    def _choose(self) -> int:
        frontier = next((n for n, (_, visits) in enumerate(self._slots) if visits < self.trust), len(self._slots))
        return max((k for k in self.allowed if k - 1 <= frontier + 1), key=lambda k: self.expected(k) / self._price[k])

    def width(self) -> int:
        return self._next

    def observe(self, cycle: Cycle) -> None:
        for n, slot in enumerate(self._slots[: min(cycle.offered, cycle.accepted + 1)]):
            slot[1] += 1
            slot[0] += (float(n < cycle.accepted) - slot[0]) * max(self.rate, 1 / slot[1])
        best = self._choose()
        if best != self._best:
            self._best, self._wait, self._since = best, self.first, 0
        self._since += 1
        self._next = best
        if self._since >= self._wait:
            self._next = min((k for k in self.allowed if k > best), default=best)
            self._wait, self._since = min(self.rarest, 2 * self._wait), 0


@dataclass
class ByAcceptance(Policy):
    """The rule of mlx-vlm (peers 6): no costs, no way to zero, compared here and not recommended.

    Over the last ``window`` cycles: acceptance below .30 or fewer than 2 accepted a cycle halves a block of 8 or more and takes
    2 from a smaller one; below .50 takes 2; .85 and 75 % full hits add 2. The window starts again after a change.
    """

    start: int = 16
    floor: int = 4
    window: int = 8
    _seen: list[tuple[int, int]] = field(default_factory=list, init=False)
    _width: int = field(default=0, init=False)

    def __post_init__(self):
        super().__post_init__()
        self._width = self.start

    @property
    def widest(self) -> int:
        return self.start

    def width(self) -> int:
        return self._width

    def observe(self, cycle: Cycle) -> None:
        if not cycle.offered:
            return
        self._seen = [*self._seen, (cycle.offered, cycle.accepted)][-self.window :]
        if len(self._seen) < self.window:
            return
        offered, accepted = (sum(v) for v in zip(*self._seen))
        full = sum(o == a for o, a in self._seen) / self.window
        k = self._width
        if accepted / offered < 0.3 or accepted / self.window < 2:
            k = k // 2 if k >= 8 else k - 2
        elif accepted / offered < 0.5:
            k -= 2
        elif accepted / offered >= 0.85 and full >= 0.75:
            k += 2
        k = min(max(k, self.floor), self.start)
        if k != self._width:
            self._width, self._seen = k, []


@dataclass
class ByProbing(Policy):
    """The rule of dflash-mlx (peers 6): the full block until it disappoints, then a short one with probes of the full one.

    Four full cycles below .75 accepted of emitted, or below 3.5 tokens a cycle, make the next 64 short. Then 8 full ones are tried
    (or 4 after 16 short ones of which 6 of the last 8 were accepted whole, once); they bring the full block back at .80,
    3.5 tokens a cycle and no fewer tokens a millisecond than the short one by ``costs``.
    """

    costs: Mapping[int, float]
    full: int = 16
    short: int = 4
    _mode: str = field(default="full", init=False)
    _seen: list[Cycle] = field(default_factory=list, init=False)  # of the mode that is on
    _probe: int = field(default=8, init=False)
    _early: bool = field(default=True, init=False)
    _slow: float = field(default=0.0, init=False)  # tokens a millisecond of the short block

    def __post_init__(self):
        super().__post_init__()
        if missing := [k for k in (self.full, self.short) if k not in self.costs]:
            raise BadInput(f"ByProbing: costs lacks the width {missing[0]}; give one for the full and the short block.")

    @property
    def widest(self) -> int:
        return self.full

    def width(self) -> int:
        return self.short if self._mode == "short" else self.full

    def _turn(self, mode: str) -> None:
        self._mode, self._seen = mode, []

    def observe(self, cycle: Cycle) -> None:
        if not cycle.offered or self.full <= self.short:
            return
        self._seen.append(cycle)
        n, last = len(self._seen), self._seen[-4:]
        rate = lambda cycles: sum(c.accepted for c in cycles) / max(1, sum(c.committed for c in cycles))  # noqa: E731
        tokens = lambda cycles: sum(c.committed for c in cycles) / len(cycles)  # noqa: E731
        if self._mode == "full":
            if n >= 4 and (rate(last) < 0.75 or tokens(last) < 3.5):
                self._turn("short")
        elif self._mode == "short":
            early = self._early and n == 16 and sum(c.accepted == c.offered for c in self._seen[-8:]) >= 6
            if early or n == 64:
                self._slow, self._probe, self._early = tokens(self._seen) / self.costs[self.short], 4 if early else 8, self._early and not early
                self._turn("probe")
        elif n == self._probe:
            good = rate(self._seen) >= 0.8 and tokens(self._seen) >= 3.5 and tokens(self._seen) / self.costs[self.full] >= self._slow
            self._early = self._early or good
            self._turn("full" if good else "short")
