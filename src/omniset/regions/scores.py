"""How well connectivity was predicted: scores over pairs of regions, whole and by distance and hemisphere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy.stats import rankdata

from omniset.regions.data import LEFT, RIGHT

BETWEEN = LEFT + RIGHT
FEWEST = 3  # pairs that a score needs: two always lie on a line
SCORES = ("pearson", "spearman", "r2", "mse")
DISTANCES = ("short", "mid", "long")
HEMISPHERES = {"left": LEFT, "right": RIGHT, "between": BETWEEN}


def scores(
    truth: Float[np.ndarray, " pairs"],
    predicted: Float[np.ndarray, " _"],
    distance: Float[np.ndarray, " _"] | None = None,
    hemisphere_pairs: Shaped[np.ndarray, " _"] | None = None,
) -> dict[str, float]:
    """Scores of predictions, computed in float64.

        r2  = 1 - sum (truth - predicted)^2 / sum (truth - mean truth)^2
        mse = mean (truth - predicted)^2

    Args:
        truth: Connectivity of each pair.
        predicted: Likewise.
        distance: Of each pair, see `pair_distance`.
        hemisphere_pairs: Of each pair, see `pair_hemispheres`.

    Returns:
        `pearson`, `spearman` (Pearson's r of ranks, ties share their mean), `r2`, `mse` and `pairs`, their number.
        With distances, `pearson_short`, `pearson_mid` and `pearson_long`: up to the first tercile of these distances,
        from there up to the second, beyond; equal distances stay together. With hemispheres, `pearson_left`,
        `pearson_right` and `pearson_between`.

        NaN is what is not defined: any score of fewer than 3 pairs, a correlation where either side is constant, r2
        where the truth is.

    Raises:
        ValueError: Numbers that are not finite, arrays that are not as long as the truth, or a hemisphere that
            `pair_hemispheres` does not give.
    """
    x, y = _numbers("truth", truth, len(truth)), _numbers("predicted", predicted, len(truth))
    found = {**dict.fromkeys(SCORES, np.nan), "pairs": float(len(x))}
    if len(x) >= FEWEST:
        squares = np.square(x - y)
        spread = np.square(_centred(x)).sum()
        found["pearson"] = pearson(x, y)
        found["spearman"] = pearson(rankdata(x), rankdata(y))
        found["r2"] = float(1 - squares.sum() / spread) if spread > 0 else np.nan
        found["mse"] = float(squares.mean())
    if distance is not None:
        d = _numbers("distance", distance, len(x))
        edges = np.quantile(d, [1 / 3, 2 / 3], method="inverted_cdf") if len(d) else np.zeros(2)
        part = np.searchsorted(edges, d)
        found |= {f"pearson_{name}": pearson(x[part == i], y[part == i]) for i, name in enumerate(DISTANCES)}
    if hemisphere_pairs is not None:
        of_pair = _labels("hemisphere_pairs", hemisphere_pairs, len(x), (*HEMISPHERES.values(), ""))
        found |= {
            f"pearson_{name}": pearson(x[of_pair == label], y[of_pair == label]) for name, label in HEMISPHERES.items()
        }
    return found


def pearson(x: Float[np.ndarray, " pairs"], y: Float[np.ndarray, " pairs"]) -> float:
    """Pearson's r; NaN of fewer than 3 pairs, and where x or y is constant but for rounding."""
    if len(x) < FEWEST:
        return np.nan
    a, b = _centred(x), _centred(y)
    if not (a.any() and b.any()):
        return np.nan
    return float(np.clip((a / np.linalg.norm(a)) @ (b / np.linalg.norm(b)), -1, 1))


def pair_distance(
    coordinates: Float[np.ndarray, "regions 3"], pairs: Int[np.ndarray, "pairs 2"]
) -> Float[np.ndarray, " pairs"]:
    """Euclidean distance of the regions of each pair, in mm; NaN where either has no coordinates."""
    places = np.asarray(coordinates, dtype=np.float64)
    return np.linalg.norm(places[pairs[:, 0]] - places[pairs[:, 1]], axis=1)


def pair_hemispheres(hemisphere: Sequence[str], pairs: Int[np.ndarray, "pairs 2"]) -> Shaped[np.ndarray, " pairs"]:
    """Of each pair "L" or "R" where both regions are of that hemisphere, "LR" between the two, "" where one has none.

    Raises:
        ValueError: A hemisphere that is not "L", "R" or "".
    """
    first, second = check_hemispheres(hemisphere, len(hemisphere))[pairs.T]
    either = np.where(first == second, first, BETWEEN)
    return np.where((first == "") | (second == ""), "", either)


def interval(
    values: Sequence[float] | Float[np.ndarray, " values"],
    groups: Any = None,
    level: float = 0.95,
    seed: int = 0,
    draws: int = 1000,
) -> tuple[float, float]:
    """Percentile interval of the mean of values, by the bootstrap.

    Whole groups are drawn with replacement, as many as there are; a draw's mean is over all values in it. The interval
    does not depend on the order of the values nor on the names of the groups.

    Args:
        values: A score of each fold.
        groups: Of each value, what it depends on with others, such as the seed of its folds; None: on no other.
        level: Of the draws that lie within the interval.
        seed: Of the draws.
        draws: At least 1.

    Returns:
        Low and high; NaN where there are fewer than two groups, or a value is not finite.

    Raises:
        ValueError: A level that is not between 0 and 1, no draws, or groups that are not as many as values.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    labels = np.arange(len(numbers)) if groups is None else np.asarray(groups)
    if len(labels) != len(numbers):
        raise ValueError(f"groups must be as many as values, {len(numbers)}, got {len(labels)}")
    _, group = np.unique(labels, return_inverse=True)
    sizes = np.bincount(group)
    if len(sizes) < 2 or not np.isfinite(numbers).all():
        return np.nan, np.nan
    sums = np.bincount(group, weights=numbers)
    order = np.lexsort((sizes, sums))
    drawn = order[np.random.default_rng(seed).integers(len(sizes), size=(draws, len(sizes)))]
    means = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def check_hemispheres(hemisphere: Sequence[str], regions: int) -> Shaped[np.ndarray, " regions"]:
    """The hemisphere of each region, as an array.

    Raises:
        ValueError: One that is not "L", "R" or "", or not as many as regions.
    """
    return _labels("hemisphere", hemisphere, regions, (LEFT, RIGHT, ""))


def _labels(name: str, values: Any, number: int, known: tuple[str, ...]) -> Shaped[np.ndarray, " rows"]:
    labels = np.asarray(values, dtype=np.str_)
    if len(labels) != number:
        raise ValueError(f"{name} must have {number} entries, got {len(labels)}")
    unknown = np.flatnonzero(~np.isin(labels, known))
    if len(unknown):
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, known))}, got {str(labels[unknown[0]])!r} at {unknown[0]}"
        )
    return labels


def _numbers(name: str, values: Shaped[np.ndarray, " _"], number: int) -> Float[np.ndarray, " pairs"]:
    numbers = np.asarray(values, dtype=np.float64)
    if len(numbers) != number:
        raise ValueError(f"{name} must have a number for each of the {number} pairs, got {len(numbers)}")
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        raise ValueError(
            f"{name} must be finite, {len(wrong)} of {number} are not, such as {numbers[wrong[0]]} at {wrong[0]}"
        )
    return numbers


def _centred(x: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    """Differences from the mean; zeros where they are nothing but rounding."""
    x = np.asarray(x, dtype=np.float64)
    centred = x - x.mean()
    return centred if np.linalg.norm(centred) > 1e-13 * np.linalg.norm(x) else np.zeros_like(x)
