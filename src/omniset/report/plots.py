"""Pictures of sets, and how pictures are saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from omniset.runs.files import replacing

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe and Ito's: colour-blind readers see the difference


def point_clouds(
    clouds: Sequence[Float[np.ndarray, "_ xy"]],
    sizes: Sequence[Float[np.ndarray, " _"]],
    scores: Sequence[Float[np.ndarray, " _"]],
    titles: Sequence[str],
) -> Figure:
    """Sets of points, five in a row: area shows multiplicity, colour the attribution from 0 to 1."""
    rows, columns = -(-len(clouds) // 5), min(len(clouds), 5)
    figure = Figure(figsize=(1.8 * columns + 0.9, 2.1 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[len(clouds) :]:
        ax.set_axis_off()
    for ax, xy, size, score, title in zip(axes, clouds, sizes, scores, titles, strict=False):
        largest = max(float(size.max()), 1.0) if len(size) else 1.0
        dots = ax.scatter(xy[:, 0], -xy[:, 1], s=150 * size / largest, c=score, cmap="viridis", vmin=0, vmax=1)
        ax.set(title=title, xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal", xticks=[], yticks=[])
    figure.colorbar(dots, ax=list(axes), label="attribution", shrink=0.8)
    return figure


def heat_map(
    places: Float[np.ndarray, "elements xy"], scores: Float[np.ndarray, " elements"], title: str, label: str
) -> Figure:
    """A score from 0 to 1 at the place of each element, as squares that touch where the places are a grid; y points
    down, as in images.
    """
    wide, high = np.ptp(places, axis=0) if len(places) else (1.0, 1.0)
    inches = 6.0
    figure = Figure(figsize=(inches + 1, float(np.clip(inches * high / max(wide, 1e-12), 2, 2 * inches))))
    axes = figure.add_subplot()
    gaps = [gap[gap > 0] for gap in (np.diff(np.unique(places[:, axis])) for axis in (0, 1))]
    step = min((float(gap.min()) for gap in gaps if len(gap)), default=1.0)
    points = float(np.clip(72 * inches * 0.8 * step / max(wide, high, step), 1.0, 24.0))  # the side of a square
    dots = axes.scatter(
        places[:, 0], places[:, 1], s=points**2, c=scores, marker="s", cmap="viridis", vmin=0, vmax=1, linewidths=0
    )
    axes.set(title=title, aspect="equal", xticks=[], yticks=[])
    axes.invert_yaxis()
    figure.colorbar(dots, ax=axes, label=label, shrink=0.8)
    return figure


def save(figure: Figure, path: str | Path) -> None:
    """At the resolution of all plots, and the same bytes for the same plot."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=144, metadata={"Software": None})
