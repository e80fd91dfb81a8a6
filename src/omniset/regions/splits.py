"""Folds of regions: a fold is predicted by what learned from all other regions and the pairs among them.

Test pairs are those within a fold, training pairs those within the rest, so neither region of a test pair is in any
training pair; pairs of one and the other belong to neither. Random folds leave neighbours of every test region in
training, and neighbours are alike in expression and in connectivity. Spatial folds take whole neighbourhoods out, but
leave most of their mirror images in the other hemisphere, which are as alike. Bilateral folds take both out.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial.distance import cdist

from omniset.regions.data import Places, Regions, check_places, mirrored

KINDS = ("bilateral", "spatial", "random")
FEWEST = 3  # regions of a fold: as many pairs, the fewest that have a correlation other than 1 or -1
CLOSE = 0.75  # of the spacing of known regions, within which there is a known region close by


def split(kind: str, regions: Regions, folds: int, seed: int) -> list[Int[np.ndarray, " _"]]:
    """Folds of the given kind: sorted positions.

    Args:
        kind: "bilateral", `spatial_folds` of places mirrored into one hemisphere: a neighbourhood and its mirror image;
            "spatial"; or "random", `random_folds`.
        regions: To be divided; all but random folds need their coordinates.
        folds: At least 2.
        seed: The same seed and order of the regions give the same folds.

    Raises:
        ValueError: An unknown kind, a region without coordinates where folds need them, fewer than 2 folds, or fewer
            than 3 regions for each.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    number = len(regions)
    if folds < 2:
        raise ValueError(f"folds must be at least 2, got {folds}")
    if number < FEWEST * folds:
        raise ValueError(
            f"folds must be at most {number // FEWEST} for {number} regions, {FEWEST} in each, got {folds}"
        )
    if kind == "random":
        return random_folds(number, folds, seed)
    if regions.coordinates is None:
        raise ValueError(f"coordinates are not known of these regions: {kind} folds need them")
    check_places(regions.coordinates, regions.names)
    return spatial_folds(mirrored(regions.coordinates) if kind == "bilateral" else regions.coordinates, folds, seed)


def held_back(train: Regions, folds: int, seed: int, kind: str = KINDS[0]) -> list[tuple[Regions, Regions]]:
    """Of each fold of the regions that a method learns from: all but the fold, and the fold.

    Folds are of the given kind where all places are known, else random; fewer of few regions, none where that leaves
    one.
    """
    folds = min(folds, len(train) // FEWEST)
    if folds < 2:
        return []
    return _without(train, split(kind if train.placed else "random", train, folds, seed))


def held_back_twice(train: Regions, folds: int, seed: int) -> list[tuple[Regions, Regions]]:
    """As `held_back`, in two manners: bilateral folds, and then folds without the mirror images of their regions.

    Of the second kind are the regions of a bilateral fold on the left and those of the next one on the right: the
    mirror image of each is learned from. Where places are not known, or all on one side, there is only the first
    manner, with twice as many folds.
    """
    right = train.coordinates[:, 0] >= 0 if train.placed and train.coordinates is not None else np.zeros(len(train))
    if not 0 < right.sum() < len(train):
        return held_back(train, 2 * folds, seed)
    folds = min(folds, len(train) // FEWEST)
    both = split(KINDS[0], train, folds, seed) if folds > 1 else []
    alone = [np.union1d(a[~right[a]], b[right[b]]) for a, b in zip(both, both[1:] + both[:1], strict=True)]
    return _without(train, both + alone)


def _without(train: Regions, parts: list[Int[np.ndarray, " _"]]) -> list[tuple[Regions, Regions]]:
    return [(train.take(np.setdiff1d(np.arange(len(train)), rows)), train.take(rows)) for rows in parts]


def near_known(known: Float[np.ndarray, "known 3"], places: Places) -> Bool[np.ndarray, " regions"]:
    """Is there a known region close to each place, or to its mirror image in the plane x = 0?

    Close is within 0.75 of the spacing of known regions: the median distance of one to the next on its side.
    """
    apart = cdist(known, known)
    right = known[:, 0] >= 0
    apart[np.eye(len(known), dtype=bool) | (right[:, None] != right)] = np.inf
    spacing = np.median(apart.min(1)[np.isfinite(apart.min(1))])
    return cdist(mirrored(places), mirrored(known)).min(1) <= CLOSE * spacing


def random_folds(regions: int, folds: int, seed: int) -> list[Int[np.ndarray, " _"]]:
    """Every region in one fold, drawn by the seed; sizes differ by at most one. See `split`."""
    order = np.random.default_rng(seed).permutation(regions)
    return [np.sort(part) for part in np.array_split(order, folds)]


def spatial_folds(coordinates: Places, folds: int, seed: int) -> list[Int[np.ndarray, " _"]]:
    """Neighbourhoods: a region drawn by the seed and the nearest to it, fold after fold, of those that are left.

    Sizes differ by at most one. Distances are Euclidean, so a fold may reach over to the other hemisphere. The last
    fold is what the others left, which need not be one neighbourhood. Equally near regions are taken in their order.
    See `split`.
    """
    regions = len(coordinates)
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
