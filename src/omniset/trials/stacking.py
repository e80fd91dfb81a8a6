"""How much each of several methods counts, from what they said of rows that they had not learned from.

First each part is made as sure as it has shown to be right, by one number a: probabilities p of classes become

    p_k^a / sum_l p_l^a,      a = argmin of  sum_i loss_i(a) + 9/2 (log a)^2

(temperature scaling: Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", 2017; the penalty is
a normal distribution of log a with deviation 1/3, so that 30 rows hardly change anything); what is a number becomes a
times it. Then the mixture f = sum_m w_m p_m has the weights

    w = argmin over w >= 0, sum_m w_m = 1 of   n L(f) + 3 M/2 sum_m (w_m - 1/M)^2

of M parts and n units, L the mean loss: minus the log likelihood, of numbers 1/2 log of the mean square (a normal
distribution at its best deviation). Wolpert, "Stacked generalization", 1992; van der Laan, Polley and Hubbard, "Super
learner", 2007. The pull to equal weights is what we add: weights of the least loss of 50 units are mostly chance. Rows
of one unit, as several sets of a person, count as one; units are what new data are new in.

**A mixture is not below its best part by more than noise.** Fold by fold, weights and the best part are learned on the
other folds, and the losses of both on the fold are compared unit by unit. If those of the mixture are larger by more
than their standard error, the part of the least loss is taken alone: the discrete super learner of van der Laan, Polley
and Hubbard. To ask for more, that the mixture be better by more than noise, costs what mixing gains, see
docs/decisions/a-mixture-and-its-best-part.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Shaped

PULL = 3.0
STIFFNESS = 4.5
NOISE = 1.0  # standard errors
ROUNDING = 1e-9  # of equal losses
LEAST = 0.02  # a weight below is 0: the method need not be fitted again
SMALLEST = 1e-12

Parts = Float[np.ndarray, "methods rows classes"] | Float[np.ndarray, "methods rows"]
Mixed = Float64[np.ndarray, "rows classes"] | Float64[np.ndarray, " rows"]
Rows = Shaped[np.ndarray, " rows"]
RowWeights = Float[np.ndarray, " rows"]
Weights = Float64[np.ndarray, " methods"]
Told = Float64[np.ndarray, " rows"]
Loss = Callable[[Told], tuple[float, Told]]  # and its gradient


class Target(ABC):
    """What was true of rows, and how wrong it is to say something else."""

    y: Rows

    def __init__(self, y: Rows) -> None:
        self.y = y

    def of(self, rows: Bool[np.ndarray, " rows"]) -> Target:
        """Of some of the rows."""
        return type(self)(self.y[rows])

    def power(self, part: Float[np.ndarray, "rows ..."], weights: RowWeights) -> float:
        """How much surer a part is to be made: a. The sum of the weights is the number of units."""
        return 1.0

    def told(self, parts: Parts) -> Float64[np.ndarray, "methods rows"]:
        """The number of each row that losses depend on."""
        return np.asarray(parts, dtype=np.float64)

    @abstractmethod
    def losses(self, told: Told, weights: RowWeights) -> Told:
        """Of each row."""

    @abstractmethod
    def mean(self, weights: RowWeights) -> Loss:
        """L."""


class Classes(Target):
    """Classes from 0, of which parts say probabilities: the log loss."""

    def power(self, part: Float[np.ndarray, "rows ..."], weights: RowWeights) -> float:
        from scipy.optimize import minimize_scalar

        def penalised(log_power: float) -> float:
            return float(weights @ log_losses(raised(part, np.exp(log_power)), self.y) + STIFFNESS * log_power**2)

        return float(np.exp(minimize_scalar(penalised, bounds=(-2.5, 2.5), method="bounded").x))

    def told(self, parts: Parts) -> Float64[np.ndarray, "methods rows"]:
        """The probability of the right class."""
        return np.asarray(parts[:, np.arange(len(self.y)), self.y.astype(np.int64)], dtype=np.float64)

    def losses(self, told: Told, weights: RowWeights) -> Told:
        return -np.log(np.maximum(told, SMALLEST))

    def mean(self, weights: RowWeights) -> Loss:
        share = weights / weights.sum()
        return lambda told: (float(share @ self.losses(told, weights)), -share / np.maximum(told, SMALLEST))


class Numbers(Target):
    """Numbers: the squared error."""

    def losses(self, told: Told, weights: RowWeights) -> Told:
        return np.square(told - self.y)

    def mean(self, weights: RowWeights) -> Loss:
        share = weights / weights.sum()
        least = SMALLEST * float(share @ np.square(self.y - share @ self.y))

        def loss(told: Told) -> tuple[float, Told]:
            square = max(float(share @ self.losses(told, weights)), least, np.finfo(np.float64).tiny)
            return float(np.log(square)) / 2, share * (told - self.y) / square

        return loss


@dataclass(frozen=True)
class Contest:
    """The mixture beside its best part, on rows that had a say in neither."""

    # The mean loss of the best part, and of the mixture.
    alone: float
    mixed: float
    noise: float  # the standard error of their difference
    weights: Mapping[int, Weights]  # of the mixture of each fold, learned on the others

    @property
    def below(self) -> bool:
        """The mixture is worse by more than noise."""
        return self.mixed - self.alone > NOISE * self.noise + ROUNDING * abs(self.alone)


@dataclass(frozen=True)
class Stack:
    """A mixture of parts, or the best of them."""

    weights: Weights  # of each part, not negative, with sum 1
    powers: Weights  # a of each
    contest: Contest | None = field(default=None, compare=False)  # None where there are not two folds

    @classmethod
    def learned(
        cls,
        parts: Parts,
        target: Target,
        folds: Int[np.ndarray, " rows"],
        weights: RowWeights | None = None,
        units: Shaped[np.ndarray, " rows"] | Shaped[np.ndarray, "rows several"] | None = None,
    ) -> Stack:
        """From what parts said of rows left out.

        Args:
            folds: Of each row, by which the mixture and its best part are compared. A unit may be in several: then
                its other rows have no say in what is compared on one of them.
            weights: How much each row counts, >= 0, not all 0; only their proportions matter.
            units: Of each row; or several of each, as a pair has two. Default: rows.
        """
        w = np.ones(parts.shape[1]) if weights is None else np.asarray(weights, dtype=np.float64)
        there = w > 0
        parts, target, folds, w = parts[:, there], target.of(there), folds[there], w[there]
        of_row = np.arange(len(w)) if units is None else units[there]
        unit = np.unique(of_row, return_inverse=True)[1].reshape(len(w), -1)
        n = int(unit.max()) + 1
        w = w * n / w.sum()
        powers = np.array([target.power(part, w) for part in parts])
        told = target.told(np.stack([calibrated(part, a) for part, a in zip(parts, powers, strict=True)]))
        contest = _compared(told, target, folds, w, unit)
        if contest is not None and contest.below:
            chosen = np.eye(len(told))[_best(told, target, w)]
        else:
            chosen = _least(told, target, w, n)
        return cls(chosen, powers, contest)

    def __call__(self, parts: Parts) -> Mixed:
        """What the mixture says. Parts whose weight is 0 are not looked at: they may be anything."""
        mixed = np.zeros(parts.shape[1:])
        for part, weight, power in zip(parts, self.weights, self.powers, strict=True):
            if weight > 0:
                mixed += weight * calibrated(part, float(power))
        return mixed


def cross_fitted(
    parts: Parts,
    target: Target,
    left_out: Int[np.ndarray, " rows"],
    folds: Int[np.ndarray, " rows"],
    weights: RowWeights | None = None,
    units: Rows | None = None,
) -> Mixed:
    """What the mixture says of rows that neither the parts nor the mixture were learned from.

    Args:
        left_out: Folds, at least two. The rows of one get the mixture that those of all others give.
        folds, weights, units: As for `Stack.learned`.
    """
    numbers = np.unique(left_out)
    if len(numbers) < 2:
        raise ValueError(f"folds must be at least two, got {numbers.tolist()}")
    mixed = np.empty(parts.shape[1:])
    for number in numbers:
        left, there = left_out == number, left_out != number
        of_row = (None if values is None else values[there] for values in (weights, units))
        mixed[left] = Stack.learned(parts[:, there], target.of(there), folds[there], *of_row)(parts[:, left])
    return mixed


def in_words(weights: Mapping[str, float]) -> str:
    """How much methods count, or which one is taken alone.

    >>> in_words({"trees": 0.25, "ridge": 0.75, "prior": 0.0})
    'weights of the methods: ridge 0.75, trees 0.25'
    >>> in_words({"trees": 0.0, "ridge": 1.0})
    'ridge is taken alone: mixed with the others it was no better on what was left out'
    """
    shares = sorted(((w, name) for name, w in weights.items() if w), reverse=True)
    if len(shares) == 1:
        return f"{shares[0][1]} is taken alone: mixed with the others it was no better on what was left out"
    return "weights of the methods: " + ", ".join(f"{name} {w:.2f}" for w, name in shares)


def calibrated(part: Float[np.ndarray, "rows ..."], power: float) -> Mixed:
    """Probabilities that are raised to a power, or numbers times it."""
    return raised(part, power) if part.ndim == 2 else np.asarray(power * part, dtype=np.float64)


def raised(p: Float[np.ndarray, "rows classes"], power: float) -> Float64[np.ndarray, "rows classes"]:
    """p^a / sum p^a."""
    logs = power * np.log(np.maximum(p, SMALLEST))
    surer = np.exp(logs - logs.max(1, keepdims=True))
    return surer / surer.sum(1, keepdims=True)


def log_losses(p: Float[np.ndarray, "*methods rows classes"], y: Rows) -> Float64[np.ndarray, "*methods rows"]:
    """-log of the probability of the right class."""
    return -np.log(np.maximum(p[..., np.arange(len(y)), y.astype(np.int64)], SMALLEST))


def _least(told: Float64[np.ndarray, "methods rows"], target: Target, w: RowWeights, n: int) -> Weights:
    """The weights of the least penalised loss; those below 0.02 are 0."""
    from scipy.optimize import minimize

    methods, loss = len(told), target.mean(w)
    equal, pull = np.full(methods, 1 / methods), PULL * methods / n

    def penalised(weights: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(weights @ told)
        return value + pull / 2 * np.square(weights - equal).sum(), told @ gradient + pull * (weights - equal)

    whole = {"type": "eq", "fun": lambda v: v.sum() - 1, "jac": np.ones_like}
    how: dict[str, Any] = {"method": "SLSQP", "options": {"ftol": 1e-12, "maxiter": 300}}
    found = minimize(penalised, equal, jac=True, bounds=[(0.0, 1.0)] * methods, constraints=[whole], **how).x
    found[found < min(LEAST, 1 / methods)] = 0
    return found / found.sum()


def _best(told: Float64[np.ndarray, "methods rows"], target: Target, w: RowWeights) -> int:
    loss = target.mean(w)
    return int(np.argmin([loss(one)[0] for one in told]))


def _compared(
    told: Float64[np.ndarray, "methods rows"],
    target: Target,
    folds: Int[np.ndarray, " rows"],
    w: RowWeights,
    unit: Int[np.ndarray, "rows several"],
) -> Contest | None:
    """The mixture and its best part, fold by fold.

    The noise is that of sums over units, also where rows share units as pairs do (Aronow, Samii and Assenova,
    "Cluster-robust variance estimation for dyadic data", 2015).
    """
    if len(told) < 2 or len(np.unique(folds)) < 2:
        return None
    losses, weights = np.zeros((2, len(w))), {}
    for fold in np.unique(folds).tolist():
        left = folds == fold
        there = ~left & ~np.isin(unit, unit[left]).any(1)
        if not there.any():
            return None
        others = target.of(there)
        weights[fold] = _least(told[:, there], others, w[there], len(np.unique(unit[there])))
        best = _best(told[:, there], others, w[there])
        for of_row, said in zip(losses, (told[best], weights[fold] @ told), strict=True):
            of_row[left] = target.of(left).losses(said[left], w[left])
    alone, mixed = losses @ w / w.sum()
    gains, of_unit = losses[0] - losses[1], np.zeros(unit.max() + 1)
    np.add.at(of_unit, unit, (w * (gains - (alone - mixed)))[:, None])
    variance = np.square(of_unit).sum() * len(of_unit) / max(len(of_unit) - 1, 1)
    return Contest(float(alone), float(mixed), float(np.sqrt(variance) / w.sum()), weights)
