"""Numbers behind the report on an evaluation: of the test pairs of the first seed, and of the spins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from omniset.regions.evaluate import Evaluation, groups_of
from omniset.regions.nulls import distortion, spins
from omniset.regions.scores import pair_distance, pearson

BINS = 6  # of distance
NULLS = 100  # spins, at most, whose distortion is measured


def tested_pairs(evaluation: Evaluation) -> Int[np.ndarray, "pairs 2"]:
    """The known pairs within folds of the first seed."""
    pairs = evaluation.regions.pairs()
    return pairs[evaluation.folds[pairs[:, 0]] == evaluation.folds[pairs[:, 1]]]


def true_and_predicted(
    evaluation: Evaluation, method: str, pairs: Int[np.ndarray, "pairs 2"]
) -> tuple[np.ndarray, np.ndarray]:
    """What is true, and what the method predicts."""
    assert evaluation.regions.connectivity is not None
    return evaluation.regions.connectivity[tuple(pairs.T)], evaluation.predictions[method][tuple(pairs.T)]


def within_folds(
    truth: Float[np.ndarray, " pairs"], predicted: Float[np.ndarray, " pairs"], folds: Int[np.ndarray, " pairs"]
) -> float:
    """Pearson's r in each fold, the mean by numbers of pairs; NaN where it is defined in none.

    So levels that differ between folds do not pass for predictions.
    """
    found = [(pearson(truth[folds == f], predicted[folds == f]), int((folds == f).sum())) for f in np.unique(folds)]
    good = [(r, n) for r, n in found if not math.isnan(r)]
    return float(np.average([r for r, _ in good], weights=[n for _, n in good])) if good else math.nan


def r_by_distance(
    evaluation: Evaluation, shown: str, tested: Int[np.ndarray, "pairs 2"]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Bins of distance with as many test pairs each; and r of ours and of the best baseline in them."""
    if evaluation.regions.coordinates is None:
        return [], []
    distance = pair_distance(evaluation.regions.coordinates, tested)
    known = np.isfinite(distance)
    pairs, distance = tested[known], distance[known]
    if not len(pairs):
        return [], []
    edges = np.quantile(distance, np.arange(1, BINS) / BINS, method="inverted_cdf")
    place = np.searchsorted(edges, distance)
    bins, rows = [], []
    for at in np.unique(place):
        here = place == at
        own = distance[here]
        bins.append({"rows": here, "mean": float(own.mean()), "low": float(own.min()), "high": float(own.max())})
    for method in dict.fromkeys([shown, evaluation.best_baseline() or shown]):
        truth, predicted = true_and_predicted(evaluation, method, pairs)
        for part in bins:
            here = part["rows"]
            r = within_folds(truth[here], predicted[here], evaluation.folds[pairs[here, 0]])
            about = {key: part[key] for key in ("mean", "low", "high")}
            rows.append({"method": method, **about, "pairs": int(here.sum()), "pearson": r})
    return bins, rows


def r_by_network(
    evaluation: Evaluation, shown: str, tested: Int[np.ndarray, "pairs 2"]
) -> tuple[list[str], Float[np.ndarray, "networks networks"]]:
    """Names, and r of the test pairs between each two."""
    of = np.array(evaluation.regions.network, dtype=np.str_)
    names = sorted({name for name in of.tolist() if name})
    found = np.full((len(names), len(names)), np.nan)
    truth, predicted = true_and_predicted(evaluation, shown, tested)
    i, j = of[tested].T
    for a, one in enumerate(names):
        for b, other in enumerate(names[: a + 1]):
            here = ((i == one) & (j == other)) | ((i == other) & (j == one))
            r = within_folds(truth[here], predicted[here], evaluation.folds[tested[here, 0]])
            found[a, b] = found[b, a] = r
    return names, found


def kept_by_spins(evaluation: Evaluation) -> float | None:
    """Pearson's r of distances before and after a spin, mean over spins; None without spins."""
    regions, number = evaluation.regions, int(evaluation.null["spin"].nunique()) if len(evaluation.null) else 0
    if not number or regions.coordinates is None:
        return None
    seed = int(evaluation.null["seed"].iloc[0])
    turned = spins(regions.coordinates, regions.hemisphere, min(number, NULLS), seed, groups_of(regions))
    kept = distortion(regions.coordinates, regions.hemisphere, turned)
    kept = kept[np.isfinite(kept)]
    return float(kept.mean()) if len(kept) else None
