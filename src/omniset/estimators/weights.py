"""How much each of several methods counts, from what they said of rows that they had not learned from.

First, classes: each method's probabilities p are made as sure as they have shown to be right,

    p_k^a / sum_l p_l^a,      a = argmin of  sum_i loss_i(a) + 9/2 (log a)^2

(temperature scaling: Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", 2017; the penalty is
a normal distribution of log a with deviation 1/3, so that 30 rows hardly change anything).

Then, weights. Those with the least loss (Wolpert, "Stacked generalization", 1992) fit the rows at hand, which of 30 to
200 sets is mostly chance. Here a method counts as often as it is the best, when the rows are drawn anew:

    w_m = mean over b of  softmax_m( - n / 2 sum_i g_bi loss_mi ),       g_b ~ Dirichlet(c_1, ..., c_n)

over Bayesian bootstraps b of the n rows; c_i is 1, or their weights, on average 1. That is pseudo-BMA+ of Yao, Vehtari,
Simpson and Gelman, "Using stacking to average Bayesian predictive distributions" (2018), but for the 1/2, which shares
more. Methods that n rows cannot tell apart share the weight; one that is clearly better takes it all. The loss is the
log loss; for numbers sum_i g_bi loss_mi becomes 1/2 log sum_i g_bi (y_i - f_mi)^2, that of a normal distribution at its
best deviation. Rows of one group are one row, with their mean loss and the sum of their weights.

The result is the mean of the methods' probabilities, or numbers, with these weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int, Shaped

SHARING = 0.5
STIFFNESS = 4.5
BOOTSTRAPS = 1_000
LEAST = 0.02  # a weight below is 0: the method need not be fitted again
SMALLEST = 1e-12

Predictions = Float[np.ndarray, "methods rows classes"] | Float[np.ndarray, "methods rows"]
Mixed = Float64[np.ndarray, "rows classes"] | Float64[np.ndarray, " rows"]
Rows = Shaped[np.ndarray, " rows"]
RowWeights = Float[np.ndarray, " rows"]


@dataclass
class Mixture:
    """The mean of what methods say.

    Attributes:
        weights: Of each, not negative, with sum 1.
        powers: a of each; 1 for numbers.
    """

    weights: Float64[np.ndarray, " methods"]
    powers: Float64[np.ndarray, " methods"]

    def __call__(self, predictions: Predictions) -> Mixed:
        """Predictions of methods whose weight is 0 are not looked at: they may be anything."""
        mixed = np.zeros(predictions.shape[1:])
        for one, weight, power in zip(predictions, self.weights, self.powers, strict=True):
            if weight > 0:
                mixed += weight * (one if one.ndim == 1 else raised(one, float(power)))
        return mixed


def mixture_of(
    predictions: Predictions,
    y: Rows,
    weights: RowWeights | None = None,
    groups: Rows | None = None,
    seed: int = 0,
) -> Mixture:
    """Learn a mixture.

    Args:
        predictions: Of rows left out: probabilities of classes, or numbers.
        y: Classes from 0, or numbers.
        weights: How much each row counts, >= 0, not all 0; only their proportions matter.
        groups: Rows that belong together, as several sets of one person.
    """
    w = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    there = w > 0
    predictions, y, w = predictions[:, there], y[there], w[there] / w[there].mean()
    unit = np.arange(len(y)) if groups is None else np.unique(groups[there], return_inverse=True)[1]
    of_unit = np.bincount(unit, w)
    units = len(of_unit)
    powers = np.ones(len(predictions))
    if predictions.ndim == 3:
        powers = np.array([_power(p, y, w * units / len(y)) for p in predictions])
        predictions = np.stack([raised(p, a) for p, a in zip(predictions, powers, strict=True)])
    losses = np.stack([np.bincount(unit, w * loss) for loss in losses_of(predictions, y)]) / of_unit
    return Mixture(shares(losses, of_unit, seed, numbers=predictions.ndim == 2), powers)


def shares(
    losses: Float[np.ndarray, "methods units"],
    of_unit: Float[np.ndarray, " units"],
    seed: int = 0,
    numbers: bool = False,
) -> Float64[np.ndarray, " methods"]:
    """The weight of each method; those below 0.02 are 0.

    Args:
        losses: Of units that were left out: minus log likelihoods, or squared errors.
        of_unit: How much each unit counts.
        numbers: They are squared errors.
    """
    units = len(of_unit)
    drawn = np.random.default_rng(seed).gamma(of_unit / of_unit.mean(), size=(BOOTSTRAPS, units))
    means = drawn / drawn.sum(1, keepdims=True) @ losses.T
    scores = -SHARING * units * (0.5 * np.log(np.maximum(means, SMALLEST)) if numbers else means)
    likely = np.exp(scores - scores.max(1, keepdims=True))
    weights = (likely / likely.sum(1, keepdims=True)).mean(0)
    weights[weights < min(LEAST, 1 / len(weights))] = 0
    return weights / weights.sum()


def cross_fitted(
    predictions: Predictions,
    y: Rows,
    folds: Int[np.ndarray, " rows"],
    weights: RowWeights | None = None,
    groups: Rows | None = None,
    seed: int = 0,
) -> Mixed:
    """What the mixture says of rows that neither the methods nor the mixture were learned from.

    Args:
        folds: Of each row, at least two. The rows of a fold get the mixture that those of all others give.

    Raises:
        ValueError: One fold only.
    """
    numbers = np.unique(folds)
    if len(numbers) < 2:
        raise ValueError(f"folds must be at least two, got {numbers.tolist()}")
    out = np.empty(predictions.shape[1:])
    for fold in numbers:
        left, there = folds == fold, folds != fold
        w, together = (None if values is None else values[there] for values in (weights, groups))
        out[left] = mixture_of(predictions[:, there], y[there], w, together, seed)(predictions[:, left])
    return out


def losses_of(predictions: Predictions, y: Rows) -> Float64[np.ndarray, "methods rows"]:
    """-log of the probability of the right class, or the squared error."""
    if predictions.ndim == 2:
        return np.square(predictions - y[None])
    right = predictions[:, np.arange(len(y)), y.astype(np.int64)]
    return -np.log(np.maximum(right, SMALLEST))


def raised(p: Float[np.ndarray, "rows classes"], power: float) -> Float64[np.ndarray, "rows classes"]:
    """p^a / sum p^a."""
    logs = power * np.log(np.maximum(p, SMALLEST))
    surer = np.exp(logs - logs.max(1, keepdims=True))
    return surer / surer.sum(1, keepdims=True)


def _power(p: Float[np.ndarray, "rows classes"], y: Rows, w: RowWeights) -> float:
    def penalised(log_power: float) -> float:
        return float(w @ losses_of(raised(p, np.exp(log_power))[None], y)[0] + STIFFNESS * log_power**2)

    from scipy.optimize import minimize_scalar

    return float(np.exp(minimize_scalar(penalised, bounds=(-2.5, 2.5), method="bounded").x))
