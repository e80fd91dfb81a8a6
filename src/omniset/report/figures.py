"""Figures of reports: charts of any numbers. Every one is a single panel, small enough to be read on a phone.

Text is drawn as it stands: a label that looks like a formula ($x$) is no formula. So axes that would write powers of
ten as formulas get plain numbers.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from omniset.report.blocks import shown
from omniset.report.plots import COLOURS
from omniset.trials.survival import Steps

BLUE, ORANGE = COLOURS[:2]
GREY = "#5f6670"
MORE_COLOURS = (*COLOURS, "#56b4e9", "#e69f00", "#000000")  # the rest of Okabe and Ito's that can be seen on white
MARKERS = "osD^vP*Xh"
# For points too small for their form to tell. The last five are darker or paler than what is like them before.
TWELVE = (*MORE_COLOURS, "#332288", "#882255", "#999933", "#ddcc77", "#aa4499")
MANY_POINTS = 2000  # more are shown as a density
PIXELS = 500  # more points are drawn as an image: each of them would be a line of the page
DPI = 200  # of that image
LONGEST = 80  # characters of a line
NUMBERED = 15  # classes of a confusion matrix that has room for numbers
STACKED = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#332288", "#882255", "#44aa99"),
    "#999933",
)
OTHERS = "#c6cbd1"
NAMED, BETWEEN = "names of items:", "\N{SYMBOL FOR UNIT SEPARATOR}"
WORDS = {"train": "training", "val": "validation", "mse": "mean squared error", "mae": "mean absolute error"}
STYLE: Any = {
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "omniset",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#1b1f24",
    "axes.titlesize": 9.5,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "#1b1f24",
    "ytick.labelcolor": "#1b1f24",
    "axes.grid": False,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw in the style of reports, whatever the user's own settings of matplotlib are."""

    @wraps(draw)
    def drawing(*arguments: Any, **options: Any) -> Figure:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(STYLE)
            return draw(*arguments, **options)

    return drawing


def legible(figure: Figure) -> None:
    """Rewrite all text of a figure as `shown`, no line of it longer than the figure bears."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(formatter := axis.get_major_formatter(), FuncFormatter):  # of ticks that have names too
                formatter.func = _legible_ticks(formatter.func)
    for text in figure.findobj(Text):
        text.set_text(_legible(text.get_text()))
        text.set_parse_math(False)


def _legible(text: str) -> str:
    lines = shown(text).split("\n")
    return "\n".join(line if len(line) <= LONGEST else _short(line, LONGEST) for line in lines)


def _legible_ticks(name: Callable[..., str]) -> Callable[..., str]:
    return lambda value, place=None: _legible(name(value, place))


def named(artist: Artist, names: Sequence[str]) -> None:
    """Points, or a bar, that a page names where the mouse is on them."""
    if names:
        artist.set_gid(NAMED + BETWEEN.join(shown(name).replace(BETWEEN, " ") for name in names))


@styled
def histogram(values: Shaped[np.ndarray, " values"], xlabel: str, ylabel: str) -> Figure:
    """A log axis where the largest value is over 100 times the smallest; bins of whole numbers where these are few."""
    values = values[np.isfinite(values)]
    figure, axes = panel()
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    whole = np.issubdtype(values.dtype, np.integer)
    bins: Any = 30
    if low > 0 and high > 100 * low:
        bins = np.geomspace(low, high, 31)
        axes.set(xscale="log", xlim=(low, high))
        _plain_log(axes.xaxis)
    elif whole and high - low <= 40:
        bins = np.arange(low - 0.5, high + 1)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.hist(values, bins=bins, color=BLUE, edgecolor="white", linewidth=0.4)
    axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set(xlabel=_short(xlabel, 50), ylabel=ylabel)
    _thousands(axes.yaxis)
    return figure


@styled
def bars(labels: Sequence[str], values: Sequence[float | int], xlabel: str) -> Figure:
    """Horizontal bars, the first on top."""
    figure, axes = panel(height=0.9 + 0.27 * max(len(labels), 2))
    axes.barh(_down(axes, distinct(labels)), values, color=BLUE, height=0.72)
    axes.set(xlabel=xlabel)
    whole = all(float(v).is_integer() for v in values)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=whole))
    form = ",.10g" if whole else ".3g"  # small ones are as long as 0.00005 as text
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:{form}}".replace("-", "\N{MINUS SIGN}")))
    return figure


@styled
def learning_curve(history: list[dict[str, Any]], name: str, kept_epoch: int | None) -> Figure:
    """A quantity by epoch. Its keys are `name` itself, or train_`name` and val_`name`."""
    figure, axes = panel()
    styles = {"train_": ("training", ORANGE, "--"), "val_": ("validation", BLUE, "-"), "": ("", BLUE, "-")}
    seen = [np.nan]
    for prefix, (label, colour, line) in styles.items():
        points = [(row["epoch"], row[prefix + name]) for row in history if row.get(prefix + name) is not None]
        if points:
            x, y = np.array(points, dtype=np.float64).T
            marker = "o" if len(x) <= 25 else None
            axes.plot(x, y, color=colour, linestyle=line, marker=marker, markersize=3, label=label or None)
            seen += y[np.isfinite(y)].tolist()
    if min(seen[1:], default=0) > 0 and max(seen[1:]) > 50 * min(seen[1:]):
        axes.set_yscale("log")
        _plain_log(axes.yaxis)
    if kept_epoch is not None:
        axes.axvline(kept_epoch, color=GREY, linewidth=1, linestyle=":", label=f"kept: epoch {kept_epoch}")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set(xlabel="epoch", ylabel=_short(words(name), 30))
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper left", ncols=3, handlelength=1.8, columnspacing=1.2)
    return figure


@styled
def lines(series: Mapping[str, Sequence[float]], x: Sequence[float | int], xlabel: str, ylabel: str) -> Figure:
    """A line each."""
    figure, axes = panel(height=3.1 + 0.22 * -(-len(series) // 2))
    for place, (name, y) in enumerate(series.items()):
        axes.plot(x, y, label=_short(name, 24), linewidth=1.3, markersize=4.5, **line_style(place))
    axes.set(xlabel=xlabel, ylabel=ylabel)
    figure.legend(loc="outside lower left", ncols=2, handlelength=2.2, columnspacing=1.2)
    return figure


@styled
def calibration_curves(curves: Mapping[str, Sequence[tuple[int, float, float]]], least: int = 20) -> Figure:
    """Mean probability against the share that is true, a line each.

    Args:
        curves: Number, mean probability and share of each bin.
        least: Bins of fewer are left out.
    """
    figure, axes = panel(height=3.6 + 0.22 * -(-len(curves) // 2))
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
    styles = {name: line_style(place) for place, name in enumerate(curves)}
    for name, bins in curves.items():
        points = np.array([(p, share) for n, p, share in bins if n >= least], dtype=np.float64).reshape(-1, 2)
        axes.plot(*points.T, label=_short(name, 24), linewidth=1.2, markersize=4.5, **styles[name])
    axes.set(xlabel="mean probability", ylabel="share that is true", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    axes.set_aspect("equal")
    figure.legend(loc="outside lower left", ncols=2, handlelength=2.2, columnspacing=1.2)
    return figure


@styled
def intervals(
    labels: Sequence[str],
    measured: tuple[str, Sequence[float | int], Sequence[float | int], Sequence[float | int]],
    beside: tuple[str, Sequence[float | int]] | None,
    xlabel: str,
) -> Figure:
    """A row each, the first on top: a dot with its interval, and a second value to compare with where there is one.
    `measured`: name, values, lower and upper ends.
    """
    figure, axes = panel(height=1.3 + 0.2 * max(len(labels), 3))
    places = _down(axes, distinct(labels), fontsize=8)
    name, values, low, high = measured
    axes.hlines(places, low, high, color=BLUE, linewidth=2, alpha=0.55)
    axes.plot(values, places, "o", color=BLUE, markersize=4.5, label=name)
    if beside is not None:
        axes.plot(beside[1], places, "D", color=ORANGE, markersize=4.5, markerfacecolor="white", label=beside[0])
        figure.legend(loc="outside upper left", ncols=2)
    axes.grid(axis="y", color="#e6e9ed", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set(xlabel=xlabel)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    _thousands(axes.xaxis)
    return figure


@styled
def scatter(
    x: Float[np.ndarray, " rows"],
    y: Float[np.ndarray, " rows"],
    xlabel: str,
    ylabel: str,
    items: Shaped[np.ndarray, " rows"] | None = None,
) -> Figure:
    """With the line on which both are the same; items are names of the points, where these are known."""
    figure, axes = panel(height=3.6)
    names = [] if items is None else items[np.isfinite(x) & np.isfinite(y)].astype(str).tolist()
    x, y = _finite(x, y)
    both = np.concatenate([x, y])
    ends = [both.min(), both.max()] if len(both) else [0, 1]
    axes.plot(ends, ends, color=GREY, linestyle=":", linewidth=1, label="the same", zorder=3)
    _dense_points(figure, axes, x, y, names)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5))
        _thousands(axis)
    axes.legend(loc="lower right")
    return figure


@styled
def categories(
    places: Float[np.ndarray, "rows 2"], labels: Shaped[np.ndarray, " rows"], xlabel: str, ylabel: str
) -> Figure:
    """A point each in the colour and form of its category; none of these lies above the others.

    Args:
        labels: Text, of which the twelve most frequent get a colour; the others, and "", are grey.
    """
    names, numbers = np.unique(labels.astype(str), return_counts=True)
    ranked = [(str(names[i]), int(numbers[i])) for i in np.argsort(-numbers, kind="stable") if names[i]]
    shown, rest = ranked[: len(TWELVE)], ranked[len(TWELVE) :]
    figure, axes = panel(height=3.9 + 0.11 * (len(shown) + 2))
    figure.set_dpi(DPI)
    named = np.isin(labels.astype(str), [name for name, _ in shown])
    order = np.random.default_rng(0).permutation(len(labels))
    drawn: dict[str, Any] = {"s": _size(len(labels)), "linewidths": 0, "rasterized": len(labels) > PIXELS}
    x, y = places.T
    axes.scatter(x[~named], y[~named], color=OTHERS, **drawn)
    for marker in MARKERS[:2]:
        colour_of = {name: TWELVE[i] for i, (name, _) in enumerate(shown) if _form(i) == marker}
        some = order[np.isin(labels[order].astype(str), list(colour_of))]
        axes.scatter(x[some], y[some], c=[colour_of[str(labels[i])] for i in some], marker=marker, alpha=0.75, **drawn)
    entry: dict[str, Any] = {"linestyle": "", "markersize": 5.5}
    handles = [
        Line2D([], [], marker=_form(i), color=TWELVE[i], label=_entry(name, number), **entry)
        for i, (name, number) in enumerate(shown)
    ]
    for name, number in (
        (f"{len(rest):,} others", sum(number for _, number in rest)),
        ("not known", len(labels) - sum(number for _, number in ranked)),
    ):
        if number:
            handles.append(Line2D([], [], marker="o", color=OTHERS, label=_entry(name, number), **entry))
    axes.set(xlabel=xlabel, ylabel=ylabel, xticks=[], yticks=[])
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=2, handletextpad=0.2, columnspacing=1.0)
    return figure


@styled
def confusion_matrix(counts: Int[np.ndarray, "classes classes"], classes: Sequence[str]) -> Figure:
    """Colour: share of the true class. Numbers: counts, where there is room for them."""
    k = len(classes)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = float(np.clip(2.2 + 0.35 * k, 3.6, 8.2))
    figure, axes = panel(side + 1.0, side)
    mesh = axes.pcolormesh(shares, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=0.8)
    if k <= NUMBERED:
        for (i, j), n in np.ndenumerate(counts):
            colour = "white" if shares[i, j] > 0.55 else "#1b1f24" if n else GREY
            axes.text(j + 0.5, i + 0.5, f"{n:,}", ha="center", va="center", color=colour, fontsize=9 if k <= 9 else 7)
    names = distinct(classes)
    broken = [textwrap.fill(name, 10, break_long_words=False) for name in names]
    widest = max(len(line) for name in broken for line in name.split("\n"))
    _grid(axes, names, names)
    if widest <= 40 / k:  # characters that fit under a column
        axes.set_xticks(np.arange(k) + 0.5, broken, rotation=0)
    axes.set(xlabel="predicted class", ylabel="true class", aspect="equal")
    if k > NUMBERED:
        _colour_bar(figure, axes, mesh, "fraction of the true class", shrink=0.75, aspect=25)
    return figure


@styled
def probabilities(
    values: Float[np.ndarray, " rows"],
    truth: Shaped[np.ndarray, " rows"],
    right: Bool[np.ndarray, " rows"],
    names: Shaped[np.ndarray, " rows"],
) -> Figure:
    """The probability given to the true class, a point each, in a line for each of the twelve most frequent classes."""
    classes, numbers = np.unique(truth.astype(str), return_counts=True)
    shown_classes = classes[np.argsort(-numbers, kind="stable")[: len(TWELVE)]]
    figure, axes = panel(height=2 + 0.25 * max(len(shown_classes), 2))
    figure.set_dpi(DPI)
    places = _down(axes, distinct([*shown_classes]))
    among = dict(zip(shown_classes.tolist(), places.tolist(), strict=True))
    at = np.array([among.get(str(one), np.nan) for one in truth], dtype=np.float64)
    at += np.random.default_rng(0).uniform(-0.28, 0.28, len(at))  # so that points do not hide each other
    for kind, label, colour, marker in ((right, "called right", BLUE, "o"), (~right, "called otherwise", ORANGE, "D")):
        some = np.flatnonzero(kind & np.isfinite(at))
        how: dict[str, Any] = {"color": colour, "marker": marker, "alpha": 0.6, "linewidths": 0, "label": label}
        points = axes.scatter(values[some], at[some], s=16, rasterized=len(at) > PIXELS, **how)
        if len(at) <= PIXELS:
            named(points, [f"{names[i]}: {truth[i]}, probability {values[i]:.2f}" for i in some])
    axes.set(xlabel="probability given to the true class", xlim=(-0.03, 1.03))
    figure.legend(loc="outside upper left", ncols=2, handletextpad=0.2)
    return figure


@styled
def stacked(
    parts: Sequence[tuple[str, Shaped[np.ndarray, " items"]]], items: Sequence[str], ylabel: str, form: str = ",.0f"
) -> Figure:
    """A bar for each item, of parts on each other; what is negative hangs below 0. The twelfth part is grey."""
    figure = Figure(figsize=(9.4, 3.6), layout="constrained")
    axes = figure.subplots()
    tops = {True: np.zeros(len(items)), False: np.zeros(len(items))}
    for i, (part, values) in enumerate(parts):
        floor = tops[bool((values < 0).any())]
        colour = STACKED[i] if i < len(STACKED) else "#bbbbbb"
        drawn = axes.bar(np.arange(len(items)), values, bottom=floor, color=colour, width=0.92, label=part[:28])
        floor += values
        for bar, item, value in zip(drawn.patches, items, values, strict=True):
            named(bar, [f"{item}: {part} {abs(value):{form}}"])
    axes.set(ylabel=ylabel, xlim=(-0.6, len(items) - 0.4))
    every = max(len(items) // 30, 1)
    axes.set_xticks(np.arange(len(items))[::every], [s[:14] for s in items[::every]], rotation=90, fontsize=7)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


@styled
def survival_curves(curves: Mapping[str, tuple[Steps, float]]) -> Figure:
    """The share without the event by time, of several groups of sets. Each curve comes with the time until which it is
    known.
    """
    figure, axes = panel()
    for (name, (curve, end)), colour, dashes in zip(curves.items(), COLOURS, ("-", "--", "-."), strict=False):
        times = np.concatenate([[0.0], curve.times, [end]])
        axes.step(times, curve(times), where="post", label=name, color=colour, linestyle=dashes, linewidth=1.4)
    axes.set(xlabel="time", ylabel="share without the event", ylim=(0, 1.02))
    axes.set_xlim(left=0)
    figure.legend(loc="outside lower left", ncols=3, handlelength=2.2, columnspacing=1.2)
    return figure


# ---------------------------------------------------------------------- parts


def panel(width: float = 4.6, height: float = 3.1) -> tuple[Figure, Axes]:
    """An empty figure, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _down(axes: Axes, names: Sequence[str], fontsize: int | None = None) -> Int[np.ndarray, " names"]:
    places = np.arange(len(names))
    axes.set_yticks(places, names, fontsize=fontsize)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return places


def _grid(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=90)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.invert_yaxis()


def _colour_bar(figure: Figure, axes: Axes, drawn: Any, label: str, **size: Any) -> Axes:
    bar = figure.colorbar(drawn, ax=axes, label=label, **size)
    bar.outline.set_visible(False)
    bar.solids.set_edgecolor("face")  # type: ignore[union-attr]  # else viewers show seams between its colours
    return bar.ax


def line_style(place: int) -> dict[str, Any]:
    """Colour and marker of the line at this place; where colours come again it is dashed."""
    again, which = divmod(place, len(MORE_COLOURS))
    marker = MARKERS[place % len(MARKERS)]
    return {"color": MORE_COLOURS[which], "marker": marker, "linestyle": "--" if again else "-"}


def _dense_points(
    figure: Figure, axes: Axes, x: Float[np.ndarray, " rows"], y: Float[np.ndarray, " rows"], names: Sequence[str]
) -> None:
    """Points, or, where there are many, how densely they lie."""
    if len(x) <= MANY_POINTS:
        named(axes.scatter(x, y, s=12, color=BLUE, alpha=0.45, linewidths=0), names)
        return
    dense = axes.hexbin(x, y, gridsize=45, bins="log", mincnt=1, cmap="viridis", linewidths=0.1)
    _plain_log(_colour_bar(figure, axes, dense, "predictions per cell", aspect=30).yaxis)


def _size(number: int) -> float:
    return float(np.clip(6000 / max(number, 1), 1.5, 14))


def _form(place: int) -> str:
    return MARKERS[int(place >= len(MORE_COLOURS))]


def _entry(name: str, number: int) -> str:
    """Of a legend, which leaves out what begins with an underscore."""
    name = _short(name, 22)
    return f"{' ' if name.startswith('_') else ''}{name} ({number:,})"


def _finite(*arrays: Float[np.ndarray, " rows"]) -> list[np.ndarray]:
    good = np.all([np.isfinite(a) for a in arrays], axis=0)
    return [a[good] for a in arrays]


def _plain_log(axis: Axis) -> None:
    low, high = sorted(axis.get_view_interval())
    wide = low <= 0 or high > 500 * low
    axis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5), numticks=12))
    _thousands(axis)
    axis.set_minor_formatter(NullFormatter())


def _thousands(axis: Axis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def distinct(labels: Sequence[str]) -> list[str]:
    """Short forms; with numbers where two of them would look the same."""
    short = [_short(label, 20) for label in labels]
    return short if len(set(short)) == len(set(labels)) else [f"{i}: {s}" for i, s in enumerate(short, 1)]


def _short(label: str, length: int) -> str:
    label = " ".join(shown(label).split())
    return label if len(label) <= length else f"{label[: length - 8]}…{label[-7:]}"


def words(name: str) -> str:
    """A key of a history for readers."""
    return " ".join(WORDS.get(word, word) for word in name.split("_"))
