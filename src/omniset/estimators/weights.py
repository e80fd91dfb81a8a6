"""How much each of several methods counts, from what they said of rows that they had not learned from.

Stacking by the least loss (Wolpert, "Stacked generalization", 1992) finds weights that fit the rows at hand, and with 30
to 200 sets these are mostly chance. Here a method counts as often as it is the best, when the rows are drawn anew:

    w_m = mean over b of  softmax_m( - s n sum_i g_bi loss_mi ),       g_b ~ Dirichlet(c_1, ..., c_n)

over Bayesian bootstraps b of the n rows (c_i = 1, or their weights, on average 1): pseudo-BMA+ of Yao, Vehtari, Simpson
and Gelman, "Using stacking to average Bayesian predictive distributions" (2018), there with s = 1. Methods that n rows
cannot tell apart share the weight; one that is clearly better takes it all. Our s is smaller, which shares more.
The loss is the log loss; for numbers n s sum_i g_bi loss_mi is s n / 2 log(sum_i g_bi (y_i - f_mi)^2), the same of a normal
distribution at its best spread. What is predicted is the mean of probabilities, or of numbers, with these weights.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float64, Int, Shaped

SHARING = 0.3  # s
BOOTSTRAPS = 500
LEAST = 0.02  # a weight below is 0: the method need not be fitted again
SMALLEST = 1e-12

Predictions = Float[np.ndarray, "methods rows classes"] | Float[np.ndarray, "methods rows"]


def weights_of(
    predictions: Predictions,
    y: Shaped[np.ndarray, " rows"],
    weights: Float[np.ndarray, " rows"] | None = None,
    seed: int = 0,
) -> Float64[np.ndarray, " methods"]:
    """w, not negative, with sum 1.

    Args:
        predictions: Of rows left out: probabilities of classes, or numbers.
        y: Classes from 0, or numbers.
        weights: How much each row counts, >= 0. Rows of weight 0 are left out.
    """
    losses = losses_of(predictions, y)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    losses, w = losses[:, w > 0], w[w > 0]
    if not len(w):
        return np.full(len(predictions), 1 / len(predictions))
    drawn = np.random.default_rng(seed).gamma(w / w.mean(), size=(BOOTSTRAPS, len(w)))
    means = drawn / drawn.sum(1, keepdims=True) @ losses.T
    scores = -SHARING * len(w) * (means if predictions.ndim == 3 else 0.5 * np.log(np.maximum(means, SMALLEST)))
    shares = np.exp(scores - scores.max(1, keepdims=True))
    found = (shares / shares.sum(1, keepdims=True)).mean(0)
    found[found < LEAST] = 0
    return found / found.sum()


def losses_of(predictions: Predictions, y: Shaped[np.ndarray, " rows"]) -> Float64[np.ndarray, "methods rows"]:
    """-log of the probability of the right class, or the squared error."""
    if predictions.ndim == 2:
        return np.square(predictions - y[None])
    right = predictions[:, np.arange(len(y)), y.astype(np.int64)]
    return -np.log(np.maximum(right, SMALLEST))


def mixed(
    predictions: Predictions, weights: Float[np.ndarray, " methods"]
) -> Float64[np.ndarray, "rows classes"] | Float64[np.ndarray, " rows"]:
    """The mean of the methods' probabilities, or numbers."""
    return np.tensordot(weights, predictions, 1)


def cross_fitted(
    predictions: Predictions,
    y: Shaped[np.ndarray, " rows"],
    folds: Int[np.ndarray, " rows"],
    weights: Float[np.ndarray, " rows"] | None = None,
    seed: int = 0,
) -> Float64[np.ndarray, "rows classes"] | Float64[np.ndarray, " rows"]:
    """What the mixture says of rows that neither the methods nor its weights were learned from.

    Args:
        folds: Of each row. The rows of a fold get the weights that the rows of all others give. Only one fold: equal
            weights.
    """
    out = np.empty(predictions.shape[1:])
    for fold in np.unique(folds):
        left, there = folds == fold, folds != fold
        if there.any():
            found = weights_of(predictions[:, there], y[there], None if weights is None else weights[there], seed)
        else:
            found = np.full(len(predictions), 1 / len(predictions))
        out[left] = mixed(predictions[:, left], found)
    return out
