"""Numbers behind the report on an evaluation: of the test pairs of the first seed, and of the spins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from omniset.regions.data import Pairs, PairValues
from omniset.regions.evaluate import DECISIVE, Evaluation
from omniset.regions.nulls import distortion, spins
from omniset.regions.scores import pair_distance, pearson
from omniset.regions.structures import groups_of

BINS = 6  # of distance
NULLS = 100  # spins, at most, whose distortion is measured


def true_and_predicted(evaluation: Evaluation, method: str, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """What is true, and what the method predicts in the first seed."""
    assert evaluation.regions.connectivity is not None
    return evaluation.regions.connectivity[tuple(pairs.T)], evaluation.predictions[method][0][tuple(pairs.T)]


def within_folds(truth: PairValues, predicted: PairValues, folds: Int[np.ndarray, " pairs"]) -> float:
    """Pearson's r in each fold, the mean by numbers of pairs; NaN where it is defined in none.

    So levels that differ between folds do not pass for predictions.
    """
    parts = [(pearson(truth[folds == f], predicted[folds == f]), int((folds == f).sum())) for f in np.unique(folds)]
    known = [(r, n) for r, n in parts if not math.isnan(r)]
    return float(np.average([r for r, _ in known], weights=[n for _, n in known])) if known else math.nan


def r_by_distance(
    evaluation: Evaluation, shown: str, tested: Pairs
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
        mm = distance[here]
        bins.append({"rows": here, "mean": float(mm.mean()), "low": float(mm.min()), "high": float(mm.max())})
    best = evaluation.comparison.best_baseline(DECISIVE.name, evaluation.split)
    for method in dict.fromkeys([shown, best or shown]):
        truth, predicted = true_and_predicted(evaluation, method, pairs)
        for part in bins:
            here = part["rows"]
            r = within_folds(truth[here], predicted[here], evaluation.folds[0, pairs[here, 0]])
            about = {key: part[key] for key in ("mean", "low", "high")}
            rows.append({"method": method, **about, "pairs": int(here.sum()), "pearson": r})
    return bins, rows


def r_by_network(
    evaluation: Evaluation, shown: str, tested: Pairs
) -> tuple[list[str], Float[np.ndarray, "networks networks"]]:
    """Names, and r of the test pairs between each two."""
    of = np.array(evaluation.regions.network, dtype=np.str_)
    names = sorted({name for name in of.tolist() if name})
    r_of = np.full((len(names), len(names)), np.nan)
    truth, predicted = true_and_predicted(evaluation, shown, tested)
    i, j = of[tested].T
    for a, one in enumerate(names):
        for b, other in enumerate(names[: a + 1]):
            here = ((i == one) & (j == other)) | ((i == other) & (j == one))
            r = within_folds(truth[here], predicted[here], evaluation.folds[0, tested[here, 0]])
            r_of[a, b] = r_of[b, a] = r
    return names, r_of


def kept_by_spins(evaluation: Evaluation) -> float | None:
    """Pearson's r of distances before and after a spin, mean over spins; None without spins."""
    regions = evaluation.regions
    spun = next((len(one.nulls) for one in evaluation.nulls if one.kind == "spin"), 0)
    if not spun or regions.coordinates is None:
        return None
    turned = spins(regions.coordinates, regions.hemisphere, min(spun, NULLS), evaluation.seeds[0], groups_of(regions))
    correlations = distortion(regions.coordinates, regions.hemisphere, turned)
    correlations = correlations[np.isfinite(correlations)]
    return float(correlations.mean()) if len(correlations) else None
