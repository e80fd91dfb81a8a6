"""Expression on the scale of the regions that are learned from: its genes, its components, and is new expression on it?

A model takes values as they are: what is ten times as large, or z-scores where the fit had 0 to 1, is far from all that
it has learned, and would be predicted all the same. So the values of each new region are compared with those of each
region of the fit, over the genes of both: where they lie, how large they are, and their sign. A new region of the same
data may be unlike all others in many genes, but its values as a whole lie among those of the others, or near them;
another unit, a logarithm or standardised genes move them all.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float

from omniset.regions.data import Regions

SMALLEST = 1e-13  # of variances, beside the largest: what is below is rounding
GENES = 10  # to compare, at least
# From the outermost region of the fit to the middle one of the new: in quartile ranges, and the ratio of their sizes.
# Held-out regions of three atlases, of normalised, standardised and logarithmic values, stay below the second pair.
REFUSED, DOUBTED = (2.0, 3.0), (1.4, 1.5)
NEGATIVE = 0.1  # share of values from which on negative ones belong to a scale
SURE = 100  # values that are enough to say that a scale has no negative ones
OUTSIDE = 0.25  # share of genes


@dataclass(frozen=True)
class Scaling:
    """(x - mean) / standard deviation by columns, 0 where x is NaN."""

    mean: Float[np.ndarray, " columns"]  # of what is not NaN
    deviation: Float[np.ndarray, " columns"]  # likewise, over n
    # Columns that have different values. Others say nothing and become 0 everywhere, also in other rows.
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

    Attributes:
        axes: Orthonormal, by descending variance; of each, the entry farthest from 0 is positive.
        scaling: Of expression.
    """

    FIELDS: ClassVar = {"axes": None, "scaling": Scaling}

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


# ---------------------------------------------------------------------- new expression


@dataclass
class _Values:
    """The values of regions as a whole."""

    quartiles: tuple[float, float]  # of all values, the first and the third
    middle: Float[np.ndarray, " regions"]  # median of each region
    size: Float[np.ndarray, " regions"]  # 0.9 quantile of the absolute values of each region
    spread: Float[np.ndarray, " regions"]  # between the quartiles of each region
    negative: float  # share of all values
    number: int  # of all values

    @classmethod
    def of(cls, values: Float[np.ndarray, "regions genes"]) -> _Values:
        rows = [row[np.isfinite(row)].astype(np.float64) for row in values]
        rows = [row for row in rows if len(row)]
        everything = np.concatenate(rows)
        low, middle, high = np.array([np.quantile(row, (0.25, 0.5, 0.75)) for row in rows]).T
        size = np.array([np.quantile(np.abs(row), 0.9) for row in rows])
        below, above = np.quantile(everything, (0.25, 0.75)).tolist()
        # What rounding leaves below 0 is no sign.
        negative = float((everything < -0.01 * np.median(size)).mean())
        return cls((below, above), middle, size, high - low, negative, len(everything))


def check_scale(fit: Float[np.ndarray, "regions genes"], new: Float[np.ndarray, "others genes"]) -> None:
    """Warn where new expression may be on another scale than that of the fit, NaN where a gene was not measured.

    Raises:
        ValueError: It clearly is.
    """
    shared = np.isfinite(fit).any(0) & np.isfinite(new).any(0)
    if shared.sum() < GENES:
        return
    fit, new = fit[:, shared], new[:, shared]
    one, other = _Values.of(fit), _Values.of(new)
    apart, ratio = _distance(one, other)
    signs = _other_signs(one, other)
    if apart < DOUBTED[0] and ratio < DOUBTED[1] and not signs:
        outside = _outside(fit, new)
        if outside > OUTSIDE:
            warnings.warn(
                f"expression of {outside:.0%} of the genes is far outside of what the model has learned from: "
                "predictions extrapolate. Was it processed otherwise, or are the regions of another structure?",
                stacklevel=4,
            )
        return
    (low, high), (from_, to) = other.quartiles, one.quartiles
    gap = f"half of its values lie between {low:.3g} and {high:.3g}, at fit between {from_:.3g} and {to:.3g}"
    if signs:
        gap += f", and {other.negative:.0%} are negative, at fit {one.negative:.0%}"
    if signs or apart > REFUSED[0] or ratio > REFUSED[1]:
        raise ValueError(
            f"expression is on another scale than at fit: {gap}. Process it as that of the fit was: the same unit, "
            "logarithm and normalisation"
        )
    warnings.warn(f"expression may be on another scale than at fit: {gap}", stacklevel=4)


def _distance(fit: _Values, new: _Values) -> tuple[float, float]:
    """How far the middle one of the new regions is from the outermost of the fit: in place, and in size."""
    middle, size = float(np.median(new.middle)), float(np.median(new.size))
    away = max(0.0, middle - fit.middle.max(), fit.middle.min() - middle)
    unit = (fit.quartiles[1] - fit.quartiles[0]) or float(fit.size.max())  # most are 0
    low, high = float(fit.size.min()), float(fit.size.max())
    return away / unit if unit else 0.0, max(size / high, low / size) if size and high else 1.0


def _other_signs(fit: _Values, new: _Values) -> bool:
    """Negative values where there were none; or none where there were many, in a narrower range."""
    if fit.negative == 0:
        return new.negative >= NEGATIVE
    none = new.negative == 0 and new.number >= SURE
    return bool(none and fit.negative >= NEGATIVE and np.median(new.spread) < fit.spread.min())


def _outside(fit: Float[np.ndarray, "regions genes"], new: Float[np.ndarray, "others genes"]) -> float:
    """Share of genes whose median is further outside of the range at fit than that is wide."""
    low, high = np.nanmin(fit, 0), np.nanmax(fit, 0)
    middle = np.nanmedian(new, 0)
    wide = high - low
    return float(((middle < low - wide) | (middle > high + wide)).mean())
