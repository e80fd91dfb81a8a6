"""How well connectivity was predicted: scores over pairs of regions, whole and by distance and hemisphere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped
from scipy.stats import rankdata

from omniset.regions.data import LEFT, RIGHT, Pairs, PairValues
from omniset.trials.intervals import Draws, Values

BETWEEN = LEFT + RIGHT
FEWEST = 3  # pairs that a score needs: two always lie on a line
ROUNDING = 1e-12  # of squares, below which what is left of them is rounding
SCORES = ("pearson", "spearman", "r2", "mse", "slope")
DISTANCES = ("short", "mid", "long")
HEMISPHERES = {"left": LEFT, "right": RIGHT, "between": BETWEEN}


def scores(
    truth: PairValues,
    predicted: Float[np.ndarray, " _"],
    distance: Float[np.ndarray, " _"] | None = None,
    hemisphere_pairs: Shaped[np.ndarray, " _"] | None = None,
) -> dict[str, float]:
    """Scores of predictions, computed in float64.

        r2  = 1 - sum (truth - predicted)^2 / sum (truth - mean truth)^2
        mse = mean (truth - predicted)^2
        slope = of truth over predicted, by least squares: 1 is calibrated, above it predictions are squeezed

    Args:
        truth: Connectivity of each pair.
        predicted: Likewise.
        distance: Of each pair, see `pair_distance`.
        hemisphere_pairs: Of each pair, see `pair_hemispheres`.

    Returns:
        `pearson`, `spearman` (Pearson's r of ranks, ties share their mean), `r2`, `mse`, `slope` and `pairs`, their
        number.
        With distances, `pearson_short`, `pearson_mid` and `pearson_long`: up to the first tercile of these distances,
        from there up to the second, beyond; equal distances stay together. With hemispheres, `pearson_left`,
        `pearson_right` and `pearson_between`.

        NaN is what is not defined: any score of fewer than 3 pairs, a correlation where either side is constant, r2
        where the truth is.
    """
    x, y = (np.asarray(values, dtype=np.float64) for values in (truth, predicted))
    measured = {**dict.fromkeys(SCORES, np.nan), "pairs": float(len(x))}
    if len(x) >= FEWEST:
        squares = np.square(x - y)
        spread = np.square(_centred(x)).sum()
        measured["pearson"] = pearson(x, y)
        measured["spearman"] = pearson(rankdata(x), rankdata(y))
        measured["r2"] = float(1 - squares.sum() / spread) if spread > 0 else np.nan
        measured["mse"] = float(squares.mean())
        a, b = _centred(y), _centred(x)
        measured["slope"] = float(a @ b / (a @ a)) if a.any() else np.nan
    if distance is not None:
        edges = np.quantile(distance, [1 / 3, 2 / 3], method="inverted_cdf") if len(x) else np.zeros(2)
        part = np.searchsorted(edges, distance)
        measured |= {f"pearson_{name}": pearson(x[part == i], y[part == i]) for i, name in enumerate(DISTANCES)}
    if hemisphere_pairs is not None:
        for name, label in HEMISPHERES.items():
            here = np.asarray(hemisphere_pairs) == label
            measured[f"pearson_{name}"] = pearson(x[here], y[here])
    return measured


def pearson(x: PairValues, y: PairValues) -> float:
    """Pearson's r; NaN of fewer than 3 pairs, and where x or y is constant but for rounding."""
    if len(x) < FEWEST:
        return np.nan
    a, b = _centred(x), _centred(y)
    if not (a.any() and b.any()):
        return np.nan
    return float(np.clip((a / np.linalg.norm(a)) @ (b / np.linalg.norm(b)), -1, 1))


def pair_distance(coordinates: Float[np.ndarray, "regions 3"], pairs: Pairs) -> PairValues:
    """Euclidean distance of the regions of each pair, in mm; NaN where either has no coordinates."""
    places = np.asarray(coordinates, dtype=np.float64)
    return np.linalg.norm(places[pairs[:, 0]] - places[pairs[:, 1]], axis=1)


def pair_hemispheres(hemisphere: Sequence[str], pairs: Pairs) -> Shaped[np.ndarray, " pairs"]:
    """Of each pair "L" or "R" where both regions are of that hemisphere, "LR" between these, "" where one has none."""
    first, second = check_hemispheres(hemisphere, len(hemisphere))[pairs.T]
    either = np.where(first == second, first, BETWEEN)
    return np.where((first == "") | (second == ""), "", either)


def pearson_of_draws(rows: pd.DataFrame, draws: Draws) -> Values:
    """Pearson's r of the pairs of each fold, where regions are drawn again; the mean over folds and seeds.

    A pair of regions that are drawn c_i and c_j times counts w_ij = c_i c_j times. In a fold, with sums over its pairs,

        W = sum w,   V_ab = sum w a b - (sum w a) (sum w b) / W,   r = V_xy / sqrt(V_xx V_yy).

    x and y are taken from their plain means first, so that squares do not cancel. A fold counts where r is defined in
    it: of 3 different pairs at least that are not all alike. Where every region is drawn once, r is `pearson`'s to the
    bit.

    Args:
        rows: `seed`, `fold`, `truth` and `predicted` of each pair.
        draws: Of both regions of each pair.

    Returns:
        NaN where r is defined in no fold.
    """
    truth, predicted = (rows[name].to_numpy(np.float64) for name in ("truth", "predicted"))
    seeds, folds = (rows[name].to_numpy() for name in ("seed", "fold"))
    order = np.lexsort((folds, seeds))
    starts = np.flatnonzero(np.diff(seeds[order]) | np.diff(folds[order])) + 1
    once = bool((draws.weights == 1).all())
    parts = []
    for fold in np.split(order, starts):
        x, y = truth[fold], predicted[fold]
        parts.append(
            np.full(len(draws), pearson(x, y)) if once else _of_draws(x, y, Draws(draws.codes[fold], draws.weights))
        )
    values = np.stack(parts, 1)
    number = np.isfinite(values).sum(1)
    return np.divide(np.nansum(values, 1), number, out=np.full(len(draws), np.nan), where=number > 0)


def _of_draws(x: PairValues, y: PairValues, draws: Draws) -> Values:
    """Pearson's r of the pairs of one fold in each draw."""
    a, b = (centred / (np.linalg.norm(centred) or 1.0) for centred in (_centred(x), _centred(y)))
    weights = draws.rows()
    sums = weights @ np.stack([np.ones(len(a)), a, b, a * a, b * b, a * b], 1)
    number, sum_a, sum_b, square_a, square_b, product = sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        spread_a, spread_b = square_a - sum_a**2 / number, square_b - sum_b**2 / number
        r = (product - sum_a * sum_b / number) / np.sqrt(spread_a * spread_b)
        differ = (spread_a > ROUNDING * square_a) & (spread_b > ROUNDING * square_b)
    return np.where(differ & ((weights > 0).sum(1) >= FEWEST), np.clip(r, -1, 1), np.nan)


def check_hemispheres(hemisphere: Sequence[str], regions: int) -> Shaped[np.ndarray, " regions"]:
    """The hemisphere of each region, as an array.

    Raises:
        ValueError: One that is not "L", "R" or "", or not as many as regions.
    """
    labels = np.asarray(hemisphere, dtype=np.str_)
    if len(labels) != regions:
        raise ValueError(f"hemisphere must have {regions} entries, got {len(labels)}")
    unknown = np.flatnonzero(~np.isin(labels, (LEFT, RIGHT, "")))
    if len(unknown):
        raise ValueError(f"hemisphere must be 'L', 'R' or '', got {str(labels[unknown[0]])!r} at {unknown[0]}")
    return labels


def _centred(x: PairValues) -> PairValues:
    """Differences from the mean; zeros where they are nothing but rounding."""
    x = np.asarray(x, dtype=np.float64)
    centred = x - x.mean()
    return centred if np.linalg.norm(centred) > 1e-13 * np.linalg.norm(x) else np.zeros_like(x)
