"""Figures of studies: lines with 95 % intervals, in colours that colour-blind readers tell apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from omniset.report.figures import MORE_COLOURS, line_style
from paper.tables import Curve, Results

Series = dict[str, tuple[str, str]]  # label: training and column


def line(axes: Axes, curve: Curve, x: Any, number: int, top: float = np.inf, **options: Any) -> None:
    """Means with their intervals shaded, as far as such numbers, from 0 to `top`, can be."""
    mean, half = curve
    style = line_style(number)
    axes.plot(x, mean, **{**style, "markersize": 4, **options})
    low, high = (np.clip(mean + sign * half, 0, top) for sign in (-1, 1))
    axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _alike(results: Results, series: Series, *keys: str) -> Series:
    """Those with results; columns of one training with the same numbers, whose lines would cover each other, as one."""
    groups: dict[str, tuple[list[str], tuple[str, str]]] = {}
    for label, place in series.items():
        rows = results.rows(*place)
        if rows:
            values = json.dumps([place[0], [[row.get(key) for key in keys] for row in rows]])
            groups.setdefault(values, ([], place))[0].append(label)
    return {", ".join(labels): place for labels, place in groups.values()}


def _numbers(panels: Iterable[Iterable[str]]) -> dict[str, int]:
    """A number for the style of each label, the same in all panels."""
    return {label: number for number, label in enumerate(dict.fromkeys(chain.from_iterable(panels)))}


def identification(results: Results, rows: dict[str, Series]) -> Figure:
    """Figure 3: how often the deciding element is among the k highest scores, and its score then; a row per entry."""
    figure = Figure(figsize=(9, 3.2 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), 2, squeeze=False)
    drawn = {title: _alike(results, series, "identified", "score") for title, series in rows.items()}
    numbers = _numbers(drawn.values())
    for (title, series), (left, right) in zip(drawn.items(), grid, strict=True):
        for label, place in series.items():
            k = np.arange(1, len(results.rows(*place)[0]["identified"]) + 1)
            for axes, key in ((left, "identified"), (right, "score")):
                line(axes, results.curve(*place, key), k, numbers[label], 1.0, label=label)
        left.set(xlabel="k", ylabel="among the k highest scores", title=title, ylim=(-0.03, 1.03))
        right.set(xlabel="k", ylabel="mean score when among them", ylim=(-0.03, 1.03))
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        if left.lines:
            left.plot(k, k / len(k), color="0.6", linestyle=":", label="by chance")
            left.legend(frameon=False, fontsize="x-small")
    return figure


def against_sizes(
    results: Results, panels: dict[str, tuple[str, Series]], sizes: Sequence[int], xlabel: str, ylabel: str
) -> Figure:
    """Figures 1 and A.3: numbers against sizes; a panel per entry: title, what is shown, and of what."""
    drawn = {title: (key, _alike(results, series, key)) for title, (key, series) in panels.items()}
    numbers = _numbers(series for _, series in drawn.values())
    many = any(len(series) > len(MORE_COLOURS) for _, series in drawn.values())  # their names stand beside the lines
    figure = Figure(figsize=((7.2 if many else 4.6) * len(panels), 3.6), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=len({key for key, _ in drawn.values()}) == 1)[0]
    for axes, (title, (key, series)) in zip(grid, drawn.items(), strict=True):
        top = 100.0 if key.startswith("accuracy") else np.inf
        for label, place in series.items():
            line(axes, results.curve(*place, key), sizes, numbers[label], top, label=label)
        axes.set_xscale("log", base=2)
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)} if many else {}
            axes.legend(frameon=False, fontsize="x-small", **beside)
    return figure


def over_steps(results: Results, panels: dict[str, dict[str, str]], steps: int) -> Figure | None:
    """Validation losses as training goes on; None where none were kept.

    Args:
        panels: By title, the label of each training.
        steps: Of an epoch.
    """
    curves = {
        title: {label: curve for label, name in labels.items() if (curve := results.losses(name)) is not None}
        for title, labels in panels.items()
    }
    curves = {title: of_title for title, of_title in curves.items() if of_title}
    if not curves:
        return None
    figure = Figure(figsize=(4.6 * len(curves), 3.6), layout="constrained")
    grid = figure.subplots(1, len(curves), squeeze=False, sharey=True)[0]
    numbers = _numbers(curves.values())
    for axes, (title, of_title) in zip(grid, curves.items(), strict=True):
        for label, curve in of_title.items():
            line(axes, curve, steps * np.arange(1, len(curve[0]) + 1), numbers[label], marker="", label=label)
        axes.set(xlabel="steps", ylabel="validation loss", title=title)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="x-small")
    return figure


def mixtures(points: Sequence[np.ndarray], predicted: dict[str, np.ndarray]) -> Figure:
    """Sets of points, a row each, and what each column's network takes for their mixtures.

    Args:
        points: (points, 2) of each set.
        predicted: (sets, components, 5): weight, mean and standard deviation per axis.
    """
    figure = Figure(figsize=(2.1 * len(predicted), 2.2 * len(points)), layout="constrained")
    grid = figure.subplots(len(points), len(predicted), squeeze=False)
    for column, (label, sets) in enumerate(predicted.items()):
        for axes, xy, components in zip(grid[:, column], points, sets, strict=False):
            axes.scatter(xy[:, 0], xy[:, 1], s=2, color="0.7", linewidths=0, rasterized=True)
            for (weight, x, y, width, height), colour in zip(components, MORE_COLOURS, strict=False):
                shape = Ellipse((x, y), 4 * width, 4 * height, fill=False, color=colour, linewidth=0.5 + 4 * weight)
                axes.add_patch(shape)
            axes.set(xlim=(-6, 6), ylim=(-6, 6), xticks=[], yticks=[], aspect="equal")
        grid[0, column].set_title(label.replace(", ", ",\n"), fontsize="small")  # as wide as its panel
    return figure
