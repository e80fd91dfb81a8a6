"""Null models of expression: the same values at other places, neighbours still neighbours.

Maps of the brain are smooth, so two of them correlate without any link between them. A null that keeps the smoothness
says how much of a score it explains: the map is laid on a sphere, the sphere is turned, and every region takes the
values that came to lie on it. With one assignment for all, every region's values are used once (here), with the
nearest for each some are used more than once and some never.

What a spin does not keep: a hemisphere is no sphere, so projecting and turning it changes distances between regions,
and what is turned onto the medial wall, where no regions are, is assigned to places further away. Such distortions may
inflate false positives; leaving out the most distorted spins lowers them (Bazinet et al.). `distortion` says how much
of the distances is kept, by a measure of our own.

Sources: Alexander-Bloch et al., "On testing for spatial correspondence between maps of human brain structure and
function", 2018 (spins); Markello and Misic, "Comparing spatial null models for brain maps", 2021 (ways to assign);
Bazinet, Liu and Misic, "The effect of spherical projection on spin tests for brain maps", 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.spatial.transform import Rotation

from omniset.regions.data import RIGHT
from omniset.regions.scores import check_hemispheres, pair_distance, pearson
from omniset.regions.splits import check_places

MIRROR = np.diag([-1.0, 1.0, 1.0])


def spins(
    coordinates: Float[np.ndarray, "regions 3"],
    hemisphere: Sequence[str] | None,
    number: int,
    seed: int,
    groups: Sequence[str] | None = None,
) -> Int[np.ndarray, "number regions"]:
    """Permutations of regions by random rotations: `expression[spins(...)[k]]` is null k.

    Regions of one hemisphere and group are a part, and swap places only with one another. Of each part:

        p_i = (x_i - c) / |x_i - c|                        c the mean of the part, p_i on the unit sphere
        s   = argmin over permutations of sum_i |p_i - R p_s(i)|

    R is a rotation drawn uniformly, one for each spin; right hemispheres turn by M R M, M the mirror of left and right,
    so that regions and their mirror images turn alike. A region alone in its part stays.

    Args:
        coordinates: In mm, x from left to right.
        hemisphere: "L", "R" or "" of each region; None: one part for all.
        number: Of spins.
        seed: The same seed gives the same spins; of fewer spins, the first of them.
        groups: A label of each region, such as of its structure (cortex, subcortex); None: one group.

    Raises:
        ValueError: A region without coordinates, a hemisphere that is not "L", "R" or "", a list that is not as long
            as the coordinates, a negative number, or parts of one region each, which leave nothing to permute.
    """
    if number < 0:
        raise ValueError(f"number must be at least 0, got {number}")
    check_places(coordinates)
    places = np.asarray(coordinates, dtype=np.float64)
    parts = _parts(hemisphere, groups, len(places))
    if all(len(rows) < 2 for rows, _ in parts):
        raise ValueError(
            f"hemisphere and groups must leave two regions together, got {len(parts)} parts of {len(places)} regions"
        )
    # Four normal numbers, as a quaternion, are a uniform rotation (Shoemake, "Uniform random rotations", 1992).
    quaternions = np.random.default_rng(seed).normal(size=(number, 4))
    rotations = Rotation.from_quat(quaternions).as_matrix() if number else np.zeros((0, 3, 3))
    turned = np.tile(np.arange(len(places)), (number, 1))
    for rows, mirrored in parts:
        sphere = _on_sphere(places[rows])
        for k, rotation in enumerate(rotations):
            turn = MIRROR @ rotation @ MIRROR if mirrored else rotation
            _, moved = linear_sum_assignment(cdist(sphere, sphere @ turn.T))
            turned[k, rows] = rows[moved]
    return turned


def as_spins(array: Any, regions: int) -> Int[np.ndarray, "number regions"]:
    """Spins made elsewhere, such as by neuromaps or netneurotools, one in each row.

    Args:
        array: (number, regions), or (regions, number) as netneurotools has it: for each region, the position, from 0,
            of the region whose values it takes. A position may be there more than once, as nearest neighbours are.
        regions: Their number.

    Raises:
        ValueError: Neither side is the number of regions; both are, and it does not show which of them are the spins;
            or something is no position of a region, such as -1, which stands for the medial wall.
    """
    given = np.asarray(array)
    if given.ndim != 2 or regions not in given.shape:
        raise ValueError(f"spins must be an array with {regions} regions along one side, got shape {given.shape}")
    if not np.issubdtype(given.dtype, np.number):
        raise ValueError(f"spins must be numbers, got {given.dtype}")
    # Positions are checked before anything is turned around, so that errors name the caller's row.
    wrong = np.argwhere(~((given >= 0) & (given < regions) & (given == np.floor(given))))
    if len(wrong):
        row, column = wrong[0]
        raise ValueError(
            f"spins must be positions from 0 to {regions - 1}, "
            f"got {given[row, column]} in row {row}, column {column} ({len(wrong)} in all)"
        )
    positions = given.astype(np.int64)
    if positions.shape[0] != positions.shape[1]:
        return positions if positions.shape[1] == regions else positions.T
    in_rows, in_columns = ((np.sort(side, 1) == np.arange(regions)).all() for side in (positions, positions.T))
    if in_rows == in_columns:
        raise ValueError(
            f"spins are as many as regions, {regions}, and could be rows or columns: give one more or one less"
        )
    return positions if in_rows else positions.T


def distortion(
    coordinates: Float[np.ndarray, "regions 3"],
    hemisphere: Sequence[str] | None,
    spins: Int[np.ndarray, "number regions"],
) -> Float[np.ndarray, " number"]:
    """How well each spin s keeps distances: Pearson's r of |x_i - x_j| and |x_s(i) - x_s(j)| over pairs i < j.

    1: every distance is as it was but for scale. Pairs are those within a hemisphere; NaN where there are fewer than 3
    of them, or all distances are equal.

    Raises:
        ValueError: A region without coordinates, or hemispheres as in `spins`.
    """
    check_places(coordinates)
    pairs = np.stack(np.triu_indices(len(coordinates), 1), 1)
    if hemisphere is not None:
        of_region = check_hemispheres(hemisphere, len(coordinates))
        pairs = pairs[of_region[pairs[:, 0]] == of_region[pairs[:, 1]]]
    before = pair_distance(coordinates, pairs)
    return np.array([pearson(before, pair_distance(coordinates, spin[pairs])) for spin in spins], dtype=np.float64)


def _parts(
    hemisphere: Sequence[str] | None, groups: Sequence[str] | None, regions: int
) -> list[tuple[Int[np.ndarray, " rows"], bool]]:
    """Positions of the regions of each hemisphere and group; are they of the right?"""
    sides = check_hemispheres([""] * regions if hemisphere is None else hemisphere, regions)
    labels = np.asarray([""] * regions if groups is None else groups, dtype=np.str_)
    if len(labels) != regions:
        raise ValueError(f"groups must have {regions} entries, got {len(labels)}")
    parts = sorted(set(zip(sides.tolist(), labels.tolist(), strict=True)))
    return [(np.flatnonzero((sides == side) & (labels == label)), side == RIGHT) for side, label in parts]


def _on_sphere(places: Float[np.ndarray, "rows 3"]) -> Float[np.ndarray, "rows 3"]:
    """Directions from the mean; what lies at the mean has none and stays there, as far from all others."""
    centred = places - places.mean(0)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.divide(centred, length, out=np.zeros_like(centred), where=length > 0)
