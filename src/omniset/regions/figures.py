"""The figures of brain regions: matrices, glass brains, and what the reports need beside those of all systems."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Patch, Rectangle

from omniset.lazy import needs
from omniset.regions.data import Places, Square
from omniset.report import figures

SHARE = 0.02  # of edges, in glass brains
PIXELS = 600  # rows of a matrix, at most, that are kept as they are: more are averaged by the drawing
LEVELS = 64  # of colour, so that images of matrices are small files
UNKNOWN = "#d0d4d9"
INK = "#1b1f24"
NEEDS = needs("a glass brain", "nilearn")


# ---------------------------------------------------------------------- what is drawn


def arranged(
    network: Sequence[str] | None, hemisphere: Sequence[str] | None, folds: Int[np.ndarray, " regions"]
) -> tuple[Int[np.ndarray, " regions"], list[tuple[str, int, int]]]:
    """Order by network, hemisphere and fold, else as they are; and the groups: name, first place and the one after."""
    number = len(folds)
    first = [""] * number if network is None else list(network)
    second = [""] * number if hemisphere is None else list(hemisphere)
    order = sorted(range(number), key=lambda i: (first[i], second[i], int(folds[i]), i))
    names = [f"{first[i]} {second[i]}".strip() for i in order]
    starts = [i for i in range(number) if i == 0 or names[i] != names[i - 1]]
    groups = [(names[a], a, b) for a, b in zip(starts, [*starts[1:], number], strict=True)]
    return np.array(order, dtype=np.int64), groups


def strongest(matrix: Square, share: float) -> Square:
    """The entries of largest size off the diagonal, at least one, NaN elsewhere; equal sizes stay together."""
    edges = np.array(matrix, dtype=np.float64)
    np.fill_diagonal(edges, np.nan)
    sizes = np.abs(edges[np.isfinite(edges)])
    if not len(sizes):
        return edges
    bound = np.sort(sizes)[-max(math.ceil(share * len(sizes)), 1)]
    return np.where(np.abs(edges) >= bound, edges, np.nan)


def limits(values: Float[np.ndarray, " values"]) -> tuple[float, float]:
    """Where colours end: from the 1st to the 99th percentile, alike on both sides of 0 where there are both."""
    if not len(values):
        return 0.0, 1.0
    low, high = (float(v) for v in np.quantile(values, [0.01, 0.99]))
    if low < 0 < high:
        most = max(-low, high)
        return -most, most
    return (low, high) if high > low else (low, low + 1.0)


# ---------------------------------------------------------------------- glass brains


@figures.styled
def brain(matrix: Square, coordinates: Places) -> Figure:
    """A glass brain: the strongest edges, by size, between the places of their regions.

    Args:
        matrix: Connectivity, or residuals; NaN are no edges.
        coordinates: In mm, of MNI space; regions without are left out.

    Raises:
        ImportError: nilearn is not installed.
    """
    try:
        from nilearn import plotting
    except ImportError as error:
        raise ImportError(NEEDS) from error
    here = np.isfinite(coordinates).all(1)
    edges = strongest(matrix[np.ix_(here, here)], SHARE)
    values = np.nan_to_num(edges)
    sizes = np.abs(edges[np.isfinite(edges)])
    most = float(sizes.max()) or 1.0
    least = max(float(1.5 * sizes.min() - 0.5 * sizes.max()), 0.0)  # the palest third can hardly be seen on white
    least = least if most - least > 0.1 * most else 0.0  # nilearn rounds the ends of the scale to two digits
    signed = bool((values < 0).any())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "brain.png"
        plotting.plot_connectome(
            values,
            np.asarray(coordinates, dtype=np.float64)[here],
            node_color=figures.GREY,
            node_size=4,
            edge_cmap="RdBu_r" if signed else "viridis_r",
            edge_vmin=-most if signed else least,
            edge_vmax=most,
            edge_kwargs={"linewidth": float(np.clip(300 / len(sizes), 0.6, 1.6))},
            colorbar=True,
            output_file=str(path),
        )
        image = imread(path)
    height, width = image.shape[:2]
    figure, axes = figures.panel(7.2, 7.2 * height / width)
    figure.set_dpi(figures.DPI)
    axes.imshow(image)
    axes.set_axis_off()
    return figure


# ---------------------------------------------------------------------- the other figures


@figures.styled
def region_matrix(
    values: Square,
    groups: list[tuple[str, int, int]],
    folds: Int[np.ndarray, " regions"] | None,
    ends: tuple[float, float],
    name: str,
) -> Figure:
    """A matrix as an image, grey where it is NaN, with names of groups, and stripes of folds where there are any."""
    number = len(values)
    folds = np.zeros(0, dtype=np.int64) if folds is None else folds
    parts = np.unique(folds)
    figure, axes = figures.panel(4.6, 3.7 + 0.2 * -(-len(parts) // 4))
    figure.set_dpi(figures.DPI)
    cmap = colormaps["RdBu_r" if ends[0] < 0 else "viridis"].resampled(LEVELS).with_extremes(bad=UNKNOWN)
    norm = Normalize(*ends)
    # As it is, where every pair can be seen; an image of more pixels would only make the page large.
    how = "none" if number <= PIXELS else "antialiased"
    axes.imshow(np.ma.masked_invalid(values), cmap, norm, extent=(0, number, number, 0), interpolation=how)
    wide, gap = 0.03 * number, 0.012 * number
    colours = {f: figures.MORE_COLOURS[at % len(figures.MORE_COLOURS)] for at, f in enumerate(parts)}
    runs = [i for i in range(len(folds)) if i == 0 or folds[i] != folds[i - 1]]
    stripes = []
    for a, b in zip(runs, [*runs[1:], number][: len(runs)], strict=True):
        stripes += [Rectangle((-gap - wide, a), wide, b - a), Rectangle((a, -gap - wide), b - a, wide)]
    of = [colours[folds[a]] for a in runs for _ in range(2)]
    axes.add_collection(PatchCollection(stripes, facecolors=of, linewidths=0))
    cuts = [a for _, a, _ in groups[1:]]
    axes.hlines(cuts, 0, number, color=INK, linewidth=0.5)
    axes.vlines(cuts, 0, number, color=INK, linewidth=0.5)
    places: dict[float, str] = {}
    for text, a, b in sorted(groups, key=lambda group: group[1] - group[2]):
        middle = (a + b) / 2
        if text and all(abs(middle - other) >= 0.05 * number for other in places):  # a line of text is as high
            places[middle] = text if len(text) <= 14 else f"{text[:13]}…"
    axes.set_yticks(list(places), list(places.values()), fontsize=8)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlim=(-gap - wide, number), ylim=(number, -gap - wide), aspect="equal")
    _colour_bar(figure, axes, norm, cmap, name)
    handles = [Patch(facecolor=colours[f], label=f"fold {f + 1}") for f in parts]
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=4, handlelength=1.0, columnspacing=1.2)
    return figure


# ---------------------------------------------------------------------- parts


def _colour_bar(figure: Figure, axes: Axes, norm: Any, cmap: Any, name: str) -> None:
    bar = figure.colorbar(ScalarMappable(norm, cmap), ax=axes, label=name, shrink=0.8, aspect=28)
    bar.outline.set_visible(False)
    assert bar.solids is not None
    bar.solids.set_rasterized(True)
