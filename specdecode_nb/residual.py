"""Does what a drafter knows of its own guess predict agreement, beyond the offset in the block (published system, 5.11)?

Nested logistic models of one label, fitted on some windows and scored on others. A window gives several positions that are not
independent, so it is split, and resampled for intervals, with all of them.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from . import statistics as st

FIT, VALIDATION, TEST = range(3)
SHARES = (0.5, 0.2, 0.3)
SEED, RESAMPLES, SHUFFLES, GROUPS = 20260908, 2000, 20, 5
OFFSET_POSITIONS, TERCILE_POSITIONS = 200, 40  # below which an offset counts for nothing
MODELS = {"1 progress only": ("progress",), "2 drafter's entropy only": ("entropy",), "3 draftability gap only": ("gap",),
          "4 progress + entropy": ("progress", "entropy"), "5 progress + gap": ("progress", "gap"),
          "6 progress + gap + entropy": ("progress", "gap", "entropy"), "7 progress + shuffled entropy": ("progress", "shuffled"),
          "8 progress + teacher entropy": ("progress", "teacher_entropy")}
RISING = ("top1", "margin")  # the larger, the likelier is agreement; of every other signal the smaller
Number = tuple[float | None, float | None, float | None, int]
"""Value, ends of its 95 % interval, windows resampled."""


def split(windows: Iterable[int], seed: int = SEED) -> dict[int, int]:
    """FIT, VALIDATION or TEST for every window, drawn by window."""
    order = np.random.default_rng(seed).permutation(sorted(set(windows)))
    ends = np.round(np.cumsum(SHARES) * len(order)).astype(int)
    return {int(w): int(np.searchsorted(ends, i, side="right")) for i, w in enumerate(order)}


def resampled(units: np.ndarray, resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
    """How often each position counts in each resample [resamples, n]: ``units`` [n] are drawn with all their positions."""
    names, which = np.unique(units, return_inverse=True)
    n = len(names)
    drawn = st.draws(n, n * resamples, seed).reshape(resamples, n) + n * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=n * resamples).reshape(resamples, n)[:, which].astype(float)


def auroc(y: np.ndarray, score: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """P(score of an agreeing position is above that of another), ties counting half; ``weights`` [..., n] give [...].

    NaN where one of the two kinds has no weight.
    """
    w = np.ones(len(y)) if weights is None else weights
    order = np.argsort(score, kind="stable")
    first = np.flatnonzero(np.diff(score[order], prepend=np.nan) != 0)
    up, down = (np.add.reduceat((w * kind)[..., order], first, axis=-1) for kind in (y, 1 - y))
    pairs = up.sum(axis=-1) * down.sum(axis=-1)
    won = (up * (np.cumsum(down, axis=-1) - down / 2)).sum(axis=-1)
    return np.divide(won, pairs, out=np.full_like(won, np.nan), where=pairs > 0)


def log_loss(y: np.ndarray, score: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Mean negative log-likelihood in nats; ``score`` is the log-odds of agreement."""
    w = np.ones(len(y)) if weights is None else weights
    return (w @ np.logaddexp(0, np.where(y == 1, -score, score))) / w.sum(axis=-1)


def moments(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What :func:`pearson` needs of each position [n, 6], to be summed in any way."""
    x, y = x - x.mean(), y - y.mean()
    return np.column_stack([np.ones(len(x)), x, y, x * x, y * y, x * y])


def pearson(sums: np.ndarray) -> np.ndarray:
    """Correlation [...] from sums of :func:`moments` [..., 6]; NaN where one side does not vary."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread = np.sqrt(np.maximum((xx / n - (x / n) ** 2) * (yy / n - (y / n) ** 2), 0))
    return np.divide(xy / n - x * y / n**2, spread, out=np.full_like(spread, np.nan), where=spread > 1e-12)


def fit(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Intercept and coefficients [1 + columns] of a logistic regression without a penalty, by L-BFGS-B."""
    from scipy.optimize import minimize  # a second to import, which other commands need not wait for
    from scipy.special import expit

    x, sign = np.column_stack([np.ones(len(y)), x]), 2 * y - 1

    def loss(b):
        m = sign * (x @ b)
        return np.logaddexp(0, -m).mean(), -(x * (sign * expit(-m))[:, None]).mean(axis=0)

    return minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-9}).x


def with_interval(value: float, samples: np.ndarray, windows: int) -> Number:
    """A number and the 95 % interval of its resamples; resamples where it does not exist are left out."""
    samples = samples[np.isfinite(samples)]
    if not np.isfinite(value) or not len(samples):
        return None, None, None, windows
    low, high = st.interval(samples)
    return float(value), min(low, float(value)), max(high, float(value)), windows


class Stratum:
    """The positions of one stratum, by window and offset, and what models make of them.

    Attributes:
        y, window, offset, part: [n]; agreement as 0/1, the window, tokens ahead, FIT, VALIDATION or TEST.
        columns: signals [n] by name. ``progress``: indicators of the offset and, where the corruption rate varies, the rate, the
            share of noised rows of the block and how many were noised up to this one [n, columns].
        weights: those of the resampled test windows [RESAMPLES, test positions].
    """

    def __init__(self, rows: Sequence[Mapping], vocab: int, part_of: Mapping[int, int], seed: int = SEED):
        block = {name: np.array([r[name] for r in rows], float) for name in ("agree", "entropy", "doubt", "second", "gap", "teacher_entropy", "bare_entropy")}
        windows, slots = block["agree"].shape
        noised = np.array([r["noised"] or [1] * slots for r in rows], float)
        self.windows, self.seed, flat = windows, seed, lambda a: np.ravel(a)
        self.y, self.window = flat(block["agree"]), np.repeat([r["window"] for r in rows], slots)
        self.offset = np.tile(np.arange(2, slots + 2), windows)
        self.part = np.array([part_of[w] for w in self.window])
        self.columns = {name: flat(block[name]) for name in ("entropy", "gap", "teacher_entropy", "bare_entropy")}
        self.columns |= {"top1": 1 - flat(block["doubt"]), "margin": 1 - flat(block["doubt"] + block["second"]),
                         "support": np.exp(self.columns["entropy"] * np.log(vocab))}
        progress = [(self.offset == o).astype(float) for o in range(3, slots + 2)]
        rate = np.repeat([float(r["rate"]) for r in rows], slots)
        self.varies = len(np.unique(rate)) > 1
        if self.varies:
            progress += [rate, np.repeat(noised.mean(axis=1), slots), flat(np.cumsum(noised, axis=1))]
        self.progress = np.column_stack(progress)
        # what the shuffled control may exchange: positions of one split, one offset and one fifth of the rates
        fifth = np.searchsorted(np.quantile(rate, np.arange(1, GROUPS) / GROUPS), rate, side="right") if self.varies else 0
        self._cell = (self.part * (slots + 2) + self.offset) * GROUPS + fifth
        self.test = self.part == TEST
        self.weights = resampled(self.window[self.test], seed=seed)
        self.test_windows = len(np.unique(self.window[self.test]))
        self._scores: dict[tuple, np.ndarray] = {}

    def shuffled(self, number: int, signal: str = "entropy") -> np.ndarray:
        """``signal`` [n] with its values exchanged within the cells of the control, in the ``number``-th way."""
        rng, out = np.random.default_rng([self.seed, number]), self.columns[signal].copy()
        for cell in np.unique(self._cell):
            at = np.flatnonzero(self._cell == cell)
            out[at] = out[rng.permutation(at)]
        return out

    def score(self, names: Sequence[str], shuffle: int = 0) -> np.ndarray:
        """Log-odds [n] of the model of these columns, standardised and fitted on FIT; "shuffled" is the entropy exchanged."""
        key = (*names, shuffle)
        if key not in self._scores:
            found = np.column_stack([self.progress if n == "progress" else self.shuffled(shuffle) if n == "shuffled" else self.columns[n] for n in names])
            fitted = found[self.part == FIT]
            spread = fitted.std(axis=0)
            x = (found - fitted.mean(axis=0)) / np.where(spread > 0, spread, 1)
            b = fit(x[self.part == FIT], self.y[self.part == FIT])
            self._scores[key] = b[0] + x @ b[1:]
        return self._scores[key]

    def value(self, model: Sequence[str], measure=auroc, part: int = TEST, shuffle: int = 0) -> float:
        """``measure`` of one model on the positions of one part."""
        at = self.part == part
        return float(measure(self.y[at], self.score(model, shuffle)[at]))

    def gain(self, model: Sequence[str], control: Sequence[str], measure=auroc, sign: int = 1, offsets: Sequence[int] = ()) -> Number:
        """``sign`` (measure of ``model`` - measure of ``control``) on the test positions, of some ``offsets`` if given."""
        among = np.isin(self.offset[self.test], offsets) if len(offsets) else np.ones(self.test.sum(), bool)
        y, (a, b) = self.y[self.test][among], (self.score(m)[self.test][among] for m in (model, control))
        change = lambda w: sign * (measure(y, a, w) - measure(y, b, w))  # noqa: E731
        return with_interval(float(change(None)), change(self.weights[:, among]), self.test_windows)

    def shuffles(self, measure=auroc) -> np.ndarray:
        """``measure`` of model 7 in each of its shuffles."""
        return np.array([self.value(MODELS["7 progress + shuffled entropy"], measure, shuffle=k) for k in range(1, SHUFFLES + 1)])

    def over_shuffled(self) -> float:
        """AUROC of model 4 above the 97.5th percentile of the shuffled control."""
        return self.value(MODELS["4 progress + entropy"]) - float(np.quantile(self.shuffles(), 0.975))

    def groups(self, signal: str = "entropy") -> list[dict]:
        """Acceptance on test positions by fifths of ``signal``, whose limits come from FIT; None where a fifth is empty."""
        limits = np.quantile(self.columns[signal][self.part == FIT], np.arange(1, GROUPS) / GROUPS)
        values, y = self.columns[signal][self.test], self.y[self.test]
        which, out = np.searchsorted(limits, values, side="right"), []
        for g in range(GROUPS):
            at = which == g
            w = self.weights[:, at]
            with np.errstate(invalid="ignore"):
                share = with_interval(y[at].mean() if at.any() else np.nan, (w @ y[at]) / w.sum(axis=1), self.test_windows)
            out.append({"group": g, "n": int(at.sum()), "mean value": float(values[at].mean()) if at.any() else None, "acceptance": share[0], "low": share[1], "high": share[2]})
        return out

    def spread(self) -> Number:
        """Acceptance in the lowest over that in the highest fifth of the entropy."""
        limits = np.quantile(self.columns["entropy"][self.part == FIT], [1 / GROUPS, 1 - 1 / GROUPS])
        values, y = self.columns["entropy"][self.test], self.y[self.test]
        ends = (values < limits[0], values >= limits[1])

        def ratio(w):
            low, high = ((w[..., at] @ y[at]) / w[..., at].sum(axis=-1) for at in ends)
            return low / high

        with np.errstate(invalid="ignore", divide="ignore"):
            return with_interval(float(ratio(np.ones(len(y)))), ratio(self.weights), self.test_windows)

    def rises(self) -> tuple[int, float]:
        """Rises of acceptance over the fifths of the entropy: how many, and the largest (0 without one)."""
        steps = np.diff([g["acceptance"] for g in self.groups() if g["acceptance"] is not None])
        return int((steps > 0).sum()), float(max(0.0, *steps)) if len(steps) else 0.0

    def within(self, signal: str, offsets: Sequence[int], less: str = "") -> Number:
        """AUROC of ``signal`` alone within an offset, where progress says nothing, the mean over ``offsets``; minus that of ``less`` if given."""
        y, parts = self.y[self.test], [self.offset[self.test] == o for o in offsets]
        ranked = lambda name, at, w: auroc(y[at], self.columns[name][self.test][at] * (1 if name in RISING else -1), w[..., at])  # noqa: E731
        mean = lambda w: np.mean([ranked(signal, at, w) - (ranked(less, at, w) if less else 0) for at in parts], axis=0)  # noqa: E731
        return with_interval(float(mean(np.ones(len(y)))), mean(self.weights), self.test_windows)

    def counting(self, signal: str = "entropy") -> list[int]:
        """Offsets within which ``signal`` ranks above chance, of those with enough positions on the whole and in each tercile."""
        found = []
        for o in np.unique(self.offset):
            here = self.offset == o
            limits = np.quantile(self.columns[signal][here & (self.part == FIT)], [1 / 3, 2 / 3])
            sizes = np.bincount(np.searchsorted(limits, self.columns[signal][here & self.test], side="right"), minlength=3)
            enough = sizes.sum() >= OFFSET_POSITIONS and sizes.min() >= TERCILE_POSITIONS
            if enough and auroc(self.y[here & self.test], self.columns[signal][here & self.test] * (1 if signal in RISING else -1)) > 0.5:
                found.append(int(o))
        return found

    def correlation(self, one: str, other: str = "", less: tuple[str, str] | None = None) -> Number:
        """Pearson's r over all positions of the stratum, of a signal with another or ("") with agreement; minus that of ``less`` if given."""
        names, which = np.unique(self.window, return_inverse=True)
        weights, column = resampled(names, seed=self.seed), lambda name: self.columns[name] if name else self.y

        def r(pair):
            by_window = np.zeros((len(names), 6))
            np.add.at(by_window, which, moments(*map(column, pair)))
            return pearson(np.vstack([by_window.sum(axis=0), weights @ by_window]))

        found = r((one, other)) - (r(less) if less else 0)
        return with_interval(float(found[0]), found[1:], self.windows)
