"""Drawings of numbers that the package has computed: every interval comes in, none is estimated here.

Each function draws into ``ax`` or into a figure of its own and returns the figure. Names of series are method ids where
a method is meant (see :mod:`.palette`), so a method looks the same everywhere.
"""
from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .palette import BLACK, GREY, HATCHES, label, style

WIDTH, DPI = 6.4, 110  # inches of a page column; 704 pixels inline
LOOK = sns.axes_style("ticks") | sns.plotting_context("paper") | {
    "figure.facecolor": "white", "axes.facecolor": "white", "savefig.facecolor": "white", "font.family": ["DejaVu Sans"], "text.color": "#1a1a1a",
    "axes.grid": True, "grid.color": "#dddddd", "grid.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.titlesize": 9.6, "axes.titleweight": "bold", "axes.titlelocation": "left", "legend.frameon": False, "lines.linewidth": 1.5,
    "lines.markersize": 5.5, "hatch.linewidth": 0.6, "svg.fonttype": "path", "pdf.fonttype": 42}


def panels(columns: int = 1, height: float = 3.3, rows: int = 1, **options):
    """An opaque white figure of page width and its axes (one, or an array)."""
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained", facecolor="white")
        return figure, figure.subplots(rows, columns, **options)


def _axis(ax, height: float = 3.3):
    return ax if ax is not None else panels(height=height)[1]


def _finish(ax, x: str, y: str, title: str, legend: bool, columns: int = 1):
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if title:
        ax.set_title(title)
    if legend:
        ax.legend(loc="best", ncols=columns)  # named, or a slow machine makes matplotlib warn
    return ax.figure


def legend_above(figure, columns: int = 3):
    """The figure with one legend above its axes, which share their series, instead of one inside each."""
    handles = figure.axes[0].get_legend_handles_labels()
    for ax in figure.axes:
        if ax.get_legend():
            ax.get_legend().remove()
    figure.legend(*handles, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)
    return figure


def _reference(ax, value: float | None, vertical: bool = False) -> None:
    if value is not None:
        (ax.axvline if vertical else ax.axhline)(value, color=BLACK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)


def lines(series: Mapping[str, tuple], x: str, y: str, title: str = "", log_x: bool = False, whole_x: bool = False, reference: float | None = None,
          ylim: tuple | None = None, ax=None):
    """One line a series; a series is (xs, ys) or (xs, ys, lows, highs), the interval drawn as a band."""
    with mpl.rc_context(LOOK):
        ax = _axis(ax)
        ticks = set()
        for i, (name, (xs, ys, *band)) in enumerate(series.items()):
            look = style(name, i)
            keep = [(a, b) for a, b in zip(xs, ys) if b is not None and not pd.isna(b)]
            strokes = look.marker in "x+1"  # markers without a face: a white edge would hide them
            sns.lineplot(x=[a for a, _ in keep], y=[b for _, b in keep], ax=ax, color=look.color, marker=look.marker, linestyle=look.dash,
                         markeredgecolor=look.color if strokes else "white", markeredgewidth=1.2 if strokes else 0.5, label=look.label,
                         errorbar=None, estimator=None, legend=False)
            if band:
                ax.fill_between(xs, band[0], band[1], color=look.color, alpha=0.16, linewidth=0)
            ticks |= {a for a, _ in keep}
        if log_x:
            ax.set_xscale("log", base=2)
            ax.set_xticks(sorted(ticks), [f"{t:,g}" for t in sorted(ticks)])
            ax.minorticks_off()
        elif whole_x:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        _reference(ax, reference)
        if ylim:
            ax.set_ylim(*ylim)
        return _finish(ax, x, y, title, len(series) > 1)


def survival(series: Mapping[str, Sequence[float]], title: str = "", ax=None):
    """P(accepted prefix >= j) over slot j from 1, one line a method."""
    return lines({name: (range(1, len(v) + 1), v) for name, v in series.items()}, "speculative slot j", "P(accepted prefix ≥ j)", title,
                 whole_x=True, ylim=(0, 1), ax=ax)


def forest(entries: Sequence[Mapping], x: str, reference: float = 0.0, title: str = "", fmt: str = "+.2f", ax=None):
    """Estimates with 95 % intervals beside the line of no effect; an entry has label, value, low, high and may have n."""
    with mpl.rc_context(LOOK):
        ax = _axis(ax, 0.9 + 0.36 * len(entries))
        for i, e in enumerate(entries):
            look = style(e["label"], 0)
            if e.get("low") is not None:
                ax.plot([e["low"], e["high"]], [i, i], color=look.color, linewidth=1.8, solid_capstyle="butt")
            ax.plot([e["value"]], [i], color=look.color, marker=look.marker, markersize=6.5, linestyle="none")
            span = f" [{e['low']:{fmt}}, {e['high']:{fmt}}]" if e.get("low") is not None else ""
            ax.annotate(f"{e['value']:{fmt}}{span}", (1.01, i), xycoords=("axes fraction", "data"), va="center", fontsize=7.6)
        _reference(ax, reference, vertical=True)
        ax.set_yticks(range(len(entries)), [label(e["label"]) + (f" (n={e['n']})" if e.get("n") else "") for e in entries])
        ax.set_ylim(len(entries) - 0.5, -0.5)
        ax.grid(axis="y", visible=False)
        return _finish(ax, x, "", title, False)


def bars(names: Sequence[str], groups: Mapping[str, Sequence[float]], y: str, title: str = "", reference: float | None = None,
         low: Sequence[float] | None = None, high: Sequence[float] | None = None, fmt: str | None = None, ax=None):
    """Bars by name, side by side where there are several groups (told apart by hatch too).

    With one group ``low`` and ``high`` are its interval, and bars whose name is a method take its color.
    """
    with mpl.rc_context(LOOK):
        ax = _axis(ax)
        at, width = np.arange(len(names)), 0.8 / len(groups)
        for i, (group, values) in enumerate(groups.items()):
            look = style(group, i)
            heights = np.array([np.nan if v is None else v for v in values], dtype=float)
            place = at + (i - (len(groups) - 1) / 2) * width
            colors = [style(n, 0).color for n in names] if len(groups) == 1 else look.color
            ax.bar(place, heights, width * 0.9, color=colors, hatch=HATCHES[i % len(HATCHES)] if len(groups) > 1 else "", edgecolor="white",
                           linewidth=0.6, label=look.label)
            whiskers = low is not None and len(groups) == 1
            if whiskers:
                ax.errorbar(place, heights, yerr=[heights - np.array(low, float), np.array(high, float) - heights], fmt="none", ecolor=BLACK,
                            elinewidth=1.1, capsize=3)
            if fmt:  # beyond the whisker, on white, so that no line crosses it
                ends = [b if h >= 0 else a for a, b, h in zip(low, high, heights)] if whiskers else heights
                for x_at, end, h in zip(place, ends, heights):
                    if np.isnan(h):
                        continue
                    ax.annotate(f"{h:{fmt}}", (x_at, end), xytext=(0, 4 if h >= 0 else -4), textcoords="offset points", ha="center", fontsize=7.4,
                                va="bottom" if h >= 0 else "top", bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6})
        texts = ["\n".join(textwrap.wrap(label(n), max(8, 84 // len(names)), break_long_words=False, break_on_hyphens=False)) for n in names]
        wide = max(len(part) for text in texts for part in text.split("\n")) * len(texts) > 90
        ax.set_xticks(at, texts, rotation=28 if wide else 0, ha="right" if wide else "center", rotation_mode="anchor" if wide else "default")
        ax.grid(axis="x", visible=False)
        ax.margins(y=0.12)
        _reference(ax, reference)
        return _finish(ax, "", y, title, len(groups) > 1)


def stacked(names: Sequence[str], parts: Mapping[str, Sequence[float]], x: str, title: str = "", fmt: str = ".1f", ax=None):
    """Horizontal bars made of parts, with their sum at the end: where a cycle's milliseconds go."""
    with mpl.rc_context(LOOK):
        ax = _axis(ax, 1.3 + 0.34 * len(names))
        left = np.zeros(len(names))
        for i, (part, values) in enumerate(parts.items()):
            look = style(part, i)
            ax.barh(range(len(names)), values, 0.68, left=left, color=look.color, hatch=HATCHES[i % len(HATCHES)], edgecolor="white", linewidth=0.6,
                    label=look.label)
            left = left + np.array(values, dtype=float)
        for i, total in enumerate(left):
            ax.annotate(f"{total:{fmt}}", (total, i), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7.6)
        ax.set_yticks(range(len(names)), [label(n) for n in names])
        ax.invert_yaxis()
        ax.margins(x=0.09)
        ax.grid(axis="y", visible=False)
        wide = sum(len(label(p)) + 5 for p in parts) > 64
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2 if wide else len(parts))
        ax.set_xlabel(x)
        if title:
            ax.figure.suptitle(title, fontsize=9.6, fontweight="bold", x=0.01, ha="left")
        return ax.figure


def dots(names: Sequence[str], series: Mapping[str, Sequence[float]], x: str, title: str = "", reference: float | None = None, ax=None):
    """One line a name, one mark a series: categories under several methods."""
    with mpl.rc_context(LOOK):
        ax = _axis(ax, 1.1 + 0.27 * len(names))
        for i, (name, values) in enumerate(series.items()):
            look = style(name, i)
            ax.plot(values, range(len(names)), linestyle="none", marker=look.marker, color=look.color, markersize=6.5, label=look.label)
        _reference(ax, reference, vertical=True)
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.5, -0.5)
        if len(series) > 1:  # above the axes: inside, its marks would read as data
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(series), handletextpad=0.2)
        return _finish(ax, x, "", title, False)


def scatter(groups: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str, y: str, title: str = "", names: Mapping[str, Sequence[str]] | None = None,
            diagonal: bool = False, fit: tuple[float, float] | None = None, reference: float | None = None, ax=None):
    """Points by group, each with its marker; ``names`` writes a text at each point, ``fit`` is (intercept, slope)."""
    with mpl.rc_context(LOOK):
        ax = _axis(ax)
        for i, (group, (xs, ys)) in enumerate(groups.items()):
            look = style(group, i)
            sns.scatterplot(x=list(xs), y=list(ys), ax=ax, color=look.color, marker=look.marker if look.marker not in "x+1" else "X", s=40,
                            label=look.label, legend=False)
            for text, a, b in zip((names or {}).get(group, ()), xs, ys):
                ax.annotate(text, (a, b), xytext=(5, 3), textcoords="offset points", fontsize=7.4)
        if diagonal:
            ax.axline((0, 0), slope=1, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        if fit:
            ax.axline((0, fit[0]), slope=fit[1], color=GREY, linewidth=1.0, zorder=1)
        _reference(ax, reference)
        return _finish(ax, x, y, title, len(groups) > 1)
