"""Folds of regions: a fold is predicted by what learned from all other regions and the pairs among them.

Test pairs are those within a fold, training pairs those within the rest, so neither region of a test pair is in any
training pair; pairs of one and the other belong to neither. Random folds leave neighbours of every test region in
training, and neighbours are alike in expression and in connectivity. Spatial folds take whole neighbourhoods out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from omniset.regions.data import Regions

KINDS = ("random", "spatial")
FEWEST = 3  # regions of a fold: as many pairs, the fewest that have a correlation other than 1 or -1


def split(kind: str, regions: Regions, folds: int, seed: int) -> list[Int[np.ndarray, " _"]]:
    """Folds of the given kind, `random_folds` or `spatial_folds`: sorted positions.

    Args:
        kind: "random" or "spatial".
        regions: To be divided; spatial folds need their coordinates.
        folds: At least 2.
        seed: The same seed and order of the regions give the same folds.

    Raises:
        ValueError: An unknown kind, a region without coordinates where folds are spatial, fewer than 2 folds, or fewer
            than 3 regions for each.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    if kind == "random":
        return random_folds(len(regions), folds, seed)
    if regions.coordinates is None:
        raise ValueError("coordinates are not known of these regions: spatial folds need them")
    check_places(regions.coordinates, regions.names)
    return spatial_folds(regions.coordinates, folds, seed)


def held_back(train: Regions, folds: int, seed: int) -> list[tuple[Regions, Regions]]:
    """Of each fold of the regions that a method learns from: all but the fold, and the fold.

    Folds are spatial where all places are known, else random; fewer of few regions, none where that leaves one.
    """
    folds = min(folds, len(train) // FEWEST)
    if folds < 2:
        return []
    parts = split("spatial" if train.placed else "random", train, folds, seed)
    return [(train.take(np.setdiff1d(np.arange(len(train)), rows)), train.take(rows)) for rows in parts]


def random_folds(regions: int, folds: int, seed: int) -> list[Int[np.ndarray, " _"]]:
    """Every region in one fold, drawn by the seed; sizes differ by at most one. See `split`."""
    _check_folds(regions, folds)
    order = np.random.default_rng(seed).permutation(regions)
    return [np.sort(part) for part in np.array_split(order, folds)]


def spatial_folds(coordinates: Float[np.ndarray, "regions 3"], folds: int, seed: int) -> list[Int[np.ndarray, " _"]]:
    """Neighbourhoods: a region drawn by the seed and the nearest to it, fold after fold, of those that are left.

    Sizes differ by at most one. Distances are Euclidean, so a fold may reach over to the other hemisphere. The last
    fold is what the others left, which need not be one neighbourhood. Equally near regions are taken in their order.
    See `split`.
    """
    regions = len(coordinates)
    _check_folds(regions, folds)
    rng = np.random.default_rng(seed)
    left = np.arange(regions)
    parts = []
    for size in [len(part) for part in np.array_split(left, folds)]:
        centre = rng.integers(len(left))
        distance = np.linalg.norm(coordinates[left] - coordinates[left[centre]], axis=1)
        distance[centre] = -1  # first also where others are at the same place
        near = np.argsort(distance, kind="stable")[:size]
        parts.append(np.sort(left[near]))
        left = np.delete(left, near)
    return parts


def check_places(coordinates: Float[np.ndarray, "regions 3"], names: Sequence[str] | None = None) -> None:
    """Raise a ValueError that names a region without coordinates, by its position where there are no names."""
    without = np.flatnonzero(~np.isfinite(coordinates).all(1))
    if len(without):
        one = f"region {without[0]}" if names is None else repr(names[without[0]])
        raise ValueError(
            f"coordinates must be known of every region, {len(without)} of {len(coordinates)} have none, such as {one}"
        )


def _check_folds(regions: int, folds: int) -> None:
    if folds < 2:
        raise ValueError(f"folds must be at least 2, got {folds}")
    if regions < FEWEST * folds:
        raise ValueError(
            f"folds must be at most {regions // FEWEST} for {regions} regions, {FEWEST} in each, got {folds}"
        )
