"""Figures of predictions beside the truth (`omniset.trials.outcomes`)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from omniset.report.figures import BLUE, GREY, ORANGE, dense_points, distinct, finite, panel, styled
from omniset.report.plots import COLOURS
from omniset.trials.outcomes import Bin, SizeGroup
from omniset.trials.survival import Steps

NUMBERED = 15  # classes of a confusion matrix that has room for numbers


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
    if widest <= 40 / k:  # characters that fit under a column
        axes.set_xticks(np.arange(k) + 0.5, broken)
    else:
        axes.set_xticks(np.arange(k) + 0.5, names, rotation=90)
    axes.set_yticks(np.arange(k) + 0.5, names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.invert_yaxis()
    axes.set(xlabel="predicted class", ylabel="true class", aspect="equal")
    if k > NUMBERED:
        bar = figure.colorbar(mesh, ax=axes, label="fraction of the true class", shrink=0.75, aspect=25)
        bar.outline.set_visible(False)
        bar.solids.set_edgecolor("face")  # type: ignore[union-attr]  # else viewers show seams between its colours
    return figure


@styled
def calibration_curve(bins: Sequence[Bin]) -> Figure:
    """Confidence against the fraction right; the area of a point shows how many predictions it stands for."""
    figure, axes = panel(height=3.6)
    filled = [b for b in bins if b.confidence is not None and b.right is not None]
    x, y = (np.array([getattr(b, part) for b in filled], dtype=np.float64) for part in ("confidence", "right"))
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1, label="perfect calibration")
    axes.plot(x, y, color=BLUE, linewidth=1)
    most = max((b.count for b in filled), default=1)
    axes.scatter(x, y, s=[10 + 140 * b.count / most for b in filled], color=BLUE, edgecolors="white", zorder=3)
    axes.set(xlabel="mean confidence", ylabel="fraction right", xlim=(-0.03, 1.05), ylim=(-0.03, 1.05), aspect="equal")
    axes.legend(loc="upper left")
    return figure


@styled
def score_by_size(groups: Sequence[SizeGroup]) -> Figure:
    """Score of each group of sizes, with its interval."""
    figure, axes = panel()
    for place, group in enumerate(groups):
        score = group.score
        if score.value is None:
            continue
        if score.low is not None and score.high is not None:
            axes.plot([place, place], [score.low, score.high], color=BLUE, linewidth=1.5)
        axes.plot(place, score.value, "o", color=BLUE, markersize=6, markeredgecolor="white")
    axes.set_xticks(range(len(groups)), [size_range(group) for group in groups])
    axes.set(xlabel="elements per set", xlim=(-0.5, len(groups) - 0.5), ylabel=groups[0].score.name if groups else "")
    axes.margins(y=0.15)
    return figure


@styled
def predicted_against_true(truth: Float[np.ndarray, " rows"], predicted: Float[np.ndarray, " rows"]) -> Figure:
    figure, axes = panel(height=3.6)
    truth, predicted = finite(truth, predicted)
    both = np.concatenate([truth, predicted])
    ends = [both.min(), both.max()] if len(both) else [0, 1]
    axes.plot(ends, ends, color=GREY, linestyle=":", linewidth=1, label="predicted = true", zorder=3)
    dense_points(figure, axes, truth, predicted)
    axes.set(xlabel="true value", ylabel="predicted value")
    axes.legend(loc="upper left")
    return figure


@styled
def residuals(truth: Float[np.ndarray, " rows"], predicted: Float[np.ndarray, " rows"]) -> Figure:
    figure, axes = panel(height=3.6)
    truth, predicted = finite(truth, predicted)
    axes.axhline(0, color=GREY, linestyle=":", linewidth=1, zorder=3)
    dense_points(figure, axes, predicted, predicted - truth)
    axes.set(xlabel="predicted value", ylabel="predicted minus true")
    return figure


@styled
def survival_curves(curves: Mapping[str, tuple[Steps, float]]) -> Figure:
    """The share without the event by time, of several groups of sets.

    Args:
        curves: And the time until which each is known.
    """
    figure, axes = panel()
    for (name, (curve, end)), colour, dashes in zip(curves.items(), COLOURS, ("-", "--", "-."), strict=False):
        times = np.concatenate([[0.0], curve.times, [end]])
        axes.step(times, curve(times), where="post", label=name, color=colour, linestyle=dashes, linewidth=1.4)
    axes.set(xlabel="time", ylabel="share without the event", ylim=(0, 1.02))
    axes.set_xlim(left=0)
    figure.legend(loc="outside lower left", ncols=3, handlelength=2.2, columnspacing=1.2)
    return figure


@styled
def importance_bars(
    labels: Sequence[str],
    values: Float[np.ndarray, " bars"],
    low: Float[np.ndarray, " bars"],
    high: Float[np.ndarray, " bars"],
    threshold: Float[np.ndarray, " bars"],
    xlabel: str,
) -> Figure:
    """Horizontal bars with intervals, the first on top, and beside each a mark at its threshold, where it has one."""
    figure, axes = panel(6.4, 1.3 + 0.25 * max(len(labels), 2))
    places = np.arange(len(labels))
    axes.barh(places, values, color=BLUE, height=0.66, alpha=0.75, label="importance")
    axes.hlines(places, low, high, color="#1b1f24", linewidth=1.2)
    axes.vlines(threshold, places - 0.42, places + 0.42, color=ORANGE, linewidth=2, label="what chance reaches")
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_yticks(places, distinct(labels))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set(xlabel=xlabel)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    figure.legend(loc="outside upper left", ncols=2)
    return figure


def size_range(group: SizeGroup) -> str:
    """Such as 3–17."""
    low, high = f"{group.smallest:,}", f"{group.largest:,}"
    return low if low == high else f"{low}\N{EN DASH}{high}"
