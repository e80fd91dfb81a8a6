"""Plots of runs and explanations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from omniset.files import replacing

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe and Ito's: told apart by colour-blind readers


def learning_curves(
    histories: dict[str, list[dict[str, Any]]], path: str | Path, metric: str = "train_accuracy"
) -> None:
    """Training loss and another metric by epoch, a line per run."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, key in zip(figure.subplots(1, 2), ("train_loss", metric), strict=True):
        for colour, (name, history) in zip(COLOURS, histories.items(), strict=False):
            axes.plot([h["epoch"] for h in history], [h.get(key, np.nan) for h in history], color=colour, label=name)
        axes.set(
            xlabel="epoch", ylabel=key.replace("_", " ").replace("val ", "validation ").replace("train ", "training ")
        )
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    save(figure, path)


def point_clouds(
    clouds: Sequence[Float[np.ndarray, "_ xy"]],
    sizes: Sequence[Float[np.ndarray, " _"]],
    scores: Sequence[Float[np.ndarray, " _"]],
    titles: Sequence[str],
    path: str | Path,
) -> None:
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
    save(figure, path)


def save(figure: Figure, path: str | Path) -> None:
    """At the resolution of all plots, and the same bytes for the same plot."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=144, metadata={"Software": None})
