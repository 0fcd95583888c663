"""What splitting the published target over several Macs would do to plain decoding and to a cycle: a cost model, nothing measured.

A forward over w rows on N machines takes ``whole(w) (u + (1 - u) / N) + n latency + bytes(w) / bandwidth``, where ``whole(w)`` is published for one
Mac (system 5.8), ``u`` is the share that every machine repeats, and ``n`` counts the sums over machines. Each forward pays ``n latency`` once,
however many rows it has and however many tokens come of it.
"""
from __future__ import annotations

from dataclasses import dataclass

from . import published

K = 4


@dataclass(frozen=True)
class Assumed:
    """What the model assumes of target and link; all of it hypothetical but the shape of the published target.

    ``repeated``: share of a forward's weights that mlx-lm leaves whole on every machine: the tied embedding as head, 248,320 rows of 2560,
    of 4.2 thousand million. ``latency_us``: of one sum over all machines, of nothing. ``gigabytes``: a second, of the link, each way.
    """

    latency_us: float
    machines: int = 2
    gigabytes: float = 5.0
    layers: int = 32
    hidden: int = 2560
    bytes_each: int = 2
    repeated: float = 248_320 * 2560 / 4.2e9

    @property
    def sums(self) -> int:
        """Of one forward, verify or draft: after attention or recurrence, and after the MLP; an adapter's update rides on the same sums."""
        return 2 * self.layers

    def forward(self, whole: float, rows: int) -> float:
        """Milliseconds on all machines of a forward over ``rows`` that takes ``whole`` milliseconds on one."""
        if self.machines == 1:
            return whole
        sent = self.sums * rows * self.hidden * self.bytes_each * 2 * (self.machines - 1) / self.machines  # a ring, each way
        return whole * (self.repeated + (1 - self.repeated) / self.machines) + self.sums * self.latency_us / 1e3 + sent / self.gigabytes / 1e6


def whole() -> dict[str, float]:
    """Published milliseconds on one Mac: ``plain`` and ``verify`` (K + 1 rows) by the line through the verify forwards, ``draft`` (K rows) by its
    median, because the line misses it by a tenth, ``commit``; and ``committed``, tokens of a cycle of K = 4."""
    act = published.load("act4u6")
    fixed, row = (act.value("u6_fits", column, **{"pass": "verify"}) for column in ("fixed", "marginal"))
    return {"plain": fixed + row, "verify": fixed + (K + 1) * row, "draft": act.value("u6_draft_cost", "median", width=K),
            "commit": act.value("u6_verify_cost", "commit median", width=K + 1), "committed": act.value("u6_cycle", "committed per cycle", arm="B")}


def predict(assumed: Assumed) -> dict[str, float]:
    """Milliseconds of a ``plain`` step and of a ``cycle``; tokens a second ``plain_rate`` and ``rate``; ``speedup`` of drafting at the published
    tokens a cycle; ``break_even``, the tokens a cycle from which drafting pays; and ``free``, the same for a drafter without a forward."""
    ms = whole()
    plain, verify = assumed.forward(ms["plain"], 1), assumed.forward(ms["verify"], K + 1) + ms["commit"]
    cycle = verify + assumed.forward(ms["draft"], K)
    return {"plain": plain, "cycle": cycle, "plain_rate": 1e3 / plain, "rate": 1e3 * ms["committed"] / cycle,
            "speedup": ms["committed"] * plain / cycle, "break_even": cycle / plain, "free": verify / plain}


def pays_below(machines: int, draft: bool) -> float:
    """The latency in microseconds of one sum below which ``machines`` Macs are faster than one: for plain decoding, or for a cycle."""
    what = "cycle" if draft else "plain"
    one, none, some = (predict(Assumed(latency, n))[what] for latency, n in ((0, 1), (0, machines), (1, machines)))
    return (one - none) / (some - none)  # a line in the latency


def table() -> str:
    """The table of environment.md, in Markdown."""
    rows = ["| Macs | latency of a sum, us | plain, tok/s | K=4, tok/s | K=4 over plain | breaks even at, tokens a cycle | without a draft forward |",
            "|" + "---|" * 7]
    for machines, latency in [(1, 0), *((n, latency) for n in (2, 4) for latency in (0, 20, 100, 500))]:
        p = predict(Assumed(latency, machines))
        rows.append(f"| {machines} | {'-' if machines == 1 else latency} | {p['plain_rate']:.1f} | {p['rate']:.1f} | {p['speedup']:.2f}x | "
                    f"{p['break_even']:.2f} | {p['free']:.2f} |")
    return "\n".join(rows)


def pays() -> str:
    """The sentence of environment.md on where several Macs are faster than one."""
    found = {(n, draft): f"{pays_below(n, draft):.0f}" for n in (2, 4) for draft in (False, True)}
    return (f"Splitting pays while a sum takes less than {found[2, False]} us over two Macs and {found[4, False]} us over four for plain decoding, "
            f"{found[2, True]} us and {found[4, True]} us for cycles of K=4.")
