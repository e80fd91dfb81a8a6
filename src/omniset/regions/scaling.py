"""Expression and places on scales of the regions that are learned from, and their known connectivity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float

from omniset.regions.data import Pairs, PairValues, Regions
from omniset.regions.kept import Kept
from omniset.regions.splits import mirrored

SMALLEST = 1e-13  # of variances, beside the largest: what is below is rounding


@dataclass(frozen=True)
class Scaling:
    """(x - mean) / standard deviation by columns, 0 where x is NaN.

    Attributes:
        mean: Of what is not NaN.
        deviation: Likewise, over n.
        varies: Columns that have different values. Others say nothing and become 0 everywhere, also in other rows.
    """

    mean: Float[np.ndarray, " columns"]
    deviation: Float[np.ndarray, " columns"]
    varies: Bool[np.ndarray, " columns"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "rows columns"]) -> Scaling:
        values = np.asarray(values, dtype=np.float64)
        known = np.isfinite(values)
        number = np.maximum(known.sum(0), 1)
        mean = np.where(known, values, 0).sum(0) / number
        deviation = np.sqrt(np.where(known, np.square(values - mean), 0).sum(0) / number)
        varies = np.where(known, values, -np.inf).max(0) > np.where(known, values, np.inf).min(0)
        return cls(mean, np.where(varies, deviation, 1), varies)

    def __call__(self, values: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns"]:
        scaled = (np.asarray(values, dtype=np.float64) - self.mean) / self.deviation
        return np.where(np.isfinite(scaled) & self.varies, scaled, 0)


class Components:
    """Principal components of the standardised expression of the training regions.

    Args:
        train: The training regions.
        number: Of components, fewer where there are fewer.

    Attributes:
        axes: Orthonormal, by descending variance; of each, the entry farthest from 0 is positive.
        scaling: Of expression.
    """

    KEPT: ClassVar[Kept] = {"axes": None, "scaling": Scaling}

    axes: Float[np.ndarray, "genes components"]

    def __init__(self, train: Regions, number: int) -> None:
        self.scaling = Scaling.of(train.expression)
        scaled = self.scaling(train.expression)
        values, vectors = np.linalg.eigh(scaled @ scaled.T)  # far fewer regions than genes: cheaper than their axes
        there = min(number, int((values > SMALLEST * values[-1]).sum()))
        leading = (vectors[:, ::-1][:, :there] / np.sqrt(values[::-1][:there])).T @ scaled
        largest = np.take_along_axis(leading, abs(leading).argmax(1)[:, None], 1)
        self.axes = (leading * np.sign(largest)).T

    def __call__(self, regions: Regions) -> Float[np.ndarray, "regions components"]:
        return self.scaling(regions.expression) @ self.axes


def squared_distances(
    left: Float[np.ndarray, "left columns"], right: Float[np.ndarray, "right columns"]
) -> Float[np.ndarray, "left right"]:
    """|a - b|^2 of every row a on the left and b on the right."""
    a, b = np.square(left).sum(1)[:, None], np.square(right).sum(1)
    return np.maximum(a + b - 2 * (left @ right.T), 0)


def places_of(regions: Regions) -> Float[np.ndarray, "regions 3"]:
    """Coordinates, which must be known."""
    assert regions.coordinates is not None
    return np.asarray(regions.coordinates, dtype=np.float64)


def mirrored_places(regions: Regions) -> Float[np.ndarray, "regions 3"]:
    """(|x|, y, z): of a region and its mirror image the same."""
    return mirrored(places_of(regions))


def known_pairs(regions: Regions) -> tuple[Pairs, PairValues]:
    """Pairs of known connectivity, and this."""
    pairs = regions.pairs()
    assert regions.connectivity is not None
    return pairs, np.asarray(regions.connectivity[tuple(pairs.T)], dtype=np.float64)


def centred_target(regions: Regions) -> tuple[float, Float[np.ndarray, "n n"]]:
    """Mean of the known connectivity, and the matrix of differences from it; NaN: not known."""
    pairs, values = known_pairs(regions)
    mean = float(values.mean())
    return mean, matrix_of(regions, pairs, values - mean)


def matrix_of(regions: Regions, pairs: Pairs, values: PairValues) -> Float[np.ndarray, "n n"]:
    """Values of pairs as a matrix, NaN elsewhere; on both sides of the diagonal unless connectivity is directed."""
    matrix = np.full((len(regions), len(regions)), np.nan)
    matrix[tuple(pairs.T)] = values
    if not regions.directed:
        matrix[tuple(pairs.T[::-1])] = values
    return matrix
