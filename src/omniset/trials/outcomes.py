"""How good predictions are: every number that a report or a command shows.

A metric is a formula over draws of the rows (`omniset.trials.intervals`), of weights w, one per row. With w = 1 it is
the usual metric; with w = how often a row's set was drawn it is the metric of a resample. scikit-learn's functions take
one weight vector a call, too slow for a thousand resamples, so the same formulas are written here as weighted sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int, Shaped

from omniset.training.cox import loss_parts, ranked
from omniset.trials.intervals import RESAMPLES, Draws, Interval, Resampling, Values
from omniset.trials.survival import concordance

CALIBRATION_BINS = 10
RANKED = 2 * 10**8  # numbers that a metric of ranks may sort into place
PAIRED = 2 * 10**10  # pairs that a metric of pairs may look at
LEAST = 100  # draws, however long they take
FEW, SHARE = 3, 0.03  # units that are few: at most so many, and this share of all
MATTERS = 0.1  # change of R2 that is said


@dataclass
class Outcome:
    """Predictions of one target beside the truth. Rows are sets, or elements of sets.

    Args:
        name: Of the target.
        truth: (rows,) class labels, or numbers.
        predicted: (rows,) likewise.
        sets: (rows,) name or number of the set that each row belongs to.
        sizes: (rows,) number of distinct elements of that set.
        classes: Of a classification: labels, in the order of the columns of `probabilities`. None: a regression.
        probabilities: (rows, classes), needed for classes.
        groups: (rows,) name or number of the group, such as the patient, of each row. Intervals are then of groups, not
            of sets.
        events: Of times until an event: whether it was seen. `truth` are then the times, and `predicted` risks, which
            are the higher the earlier the event is to come.
        briers: (rows,) of such risks: `omniset.trials.survival.integrated_brier`.
        strata: (rows,) of such risks: only rows of one stratum are compared, as where each fold has its own model.

    Raises:
        ValueError: A label that is not among the classes, or classes without probabilities.
    """

    name: str
    truth: Shaped[np.ndarray, " rows"]
    predicted: Shaped[np.ndarray, " rows"]
    sets: Shaped[np.ndarray, " rows"]
    sizes: Shaped[np.ndarray, " rows"]
    classes: list[str] | None = None
    probabilities: Shaped[np.ndarray, "rows classes"] | None = None
    groups: Shaped[np.ndarray, " rows"] | None = None
    events: Bool[np.ndarray, " rows"] | None = None
    briers: Float[np.ndarray, " rows"] | None = None
    strata: Shaped[np.ndarray, " rows"] | None = None

    def __post_init__(self) -> None:
        if self.classes is None:
            return
        if self.probabilities is None or self.probabilities.shape[1] != len(self.classes):
            raise ValueError(f"probabilities must have a column for each of the {len(self.classes)} classes")
        known = set(self.classes)
        unknown = sorted({str(label) for label in (*self.truth, *self.predicted)} - known)
        if unknown:
            raise ValueError(f"target {self.name!r}: labels {unknown[:5]} are not among its classes")

    @property
    def classifies(self) -> bool:
        return self.classes is not None

    @property
    def measures(self) -> dict[str, Measure]:
        """The metrics of such predictions, by name, most telling first."""
        return SURVIVAL if self.events is not None else CLASSIFICATION if self.classifies else REGRESSION

    @cached_property
    def codes(self) -> tuple[Int[np.ndarray, " rows"], Int[np.ndarray, " rows"]]:
        """Truth and prediction as positions in `classes`."""
        position = {label: i for i, label in enumerate(self.classes or [])}
        truth, predicted = ([position[str(label)] for label in labels] for labels in (self.truth, self.predicted))
        return np.array(truth, dtype=np.int64), np.array(predicted, dtype=np.int64)

    @cached_property
    def numbers(self) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]]:
        """Truth and prediction of a regression."""
        return self.truth.astype(np.float64), self.predicted.astype(np.float64)

    @cached_property
    def defined(self) -> bool:
        """There are rows, and no number among them is NaN or infinite."""
        parts = [self.probabilities] if self.probabilities is not None else self.numbers
        return len(self.truth) > 0 and all(np.isfinite(np.asarray(p, dtype=np.float64)).all() for p in parts)

    def rows(self, chosen: Shaped[np.ndarray, " _"]) -> Outcome:
        """The outcome on these rows: a mask or positions."""
        picked = {name: getattr(self, name)[chosen] for name in ("truth", "predicted", "sets", "sizes")}
        for name in ("probabilities", "groups", "events", "briers", "strata"):
            values = getattr(self, name)
            picked[name] = None if values is None else values[chosen]
        return replace(self, **picked)


def score(outcome: Outcome, name: str, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """A metric with its 95 % interval.

    It is of whole sets, or groups of them (rows of one set depend on each other): see
    `omniset.trials.intervals.Resampling`. A single set has no interval. Metrics of ranks (AUROC, Spearman r) have to
    rank every resample anew: for them there are at most 2e8 / (rows x classes) resamples, but never fewer than 100.
    """
    resampling = Resampling(outcome.sets if outcome.groups is None else outcome.groups, resamples, seed)
    measure = outcome.measures[name]
    draws = measure.draws(len(outcome.truth), len(outcome.classes or [0]))
    how: dict[str, Any] = {"share": measure.share, "draws": draws, "within": measure.within}
    error = None if measure.error is None else partial(measure.error, outcome, None)
    return resampling.estimate(partial(measure.of, outcome), error=error, **how)


def confusion(outcome: Outcome) -> Int[np.ndarray, "classes classes"]:
    """Number of rows of each true class (down) that were predicted as each class (across)."""
    truth, predicted = outcome.codes
    k = len(outcome.classes or [])
    return np.bincount(truth * k + predicted, minlength=k * k).reshape(k, k)


def by_class(outcome: Outcome) -> pd.DataFrame:
    """How each class fared: `label`; rows that are it, `true`, and that were called it, `predicted`; `recall`,
    `precision` and `f1`, NaN where they are not defined.
    """
    sums = _by_class(outcome, np.ones((1, len(outcome.truth))))
    true, predicted, right = (each[0].round().astype(np.int64) for each in sums)
    with np.errstate(invalid="ignore"):
        shares = {"recall": right / true, "precision": right / predicted, "f1": 2 * right / (true + predicted)}
    return pd.DataFrame({"label": outcome.classes, "true": true, "predicted": predicted, **shares})


def calibration(outcome: Outcome, bins: int = CALIBRATION_BINS) -> pd.DataFrame:
    """Confidence, the largest probability, beside the share that is right, in bins of equal width from 0 to 1.

    Returns:
        A row for each bin [`low`, `high`): `count`, mean `confidence` and the share `right`, NaN where it is empty, as
        all are where probabilities are no numbers.
    """
    if not outcome.defined:
        outcome = outcome.rows(np.arange(0))
    edges = np.arange(bins + 1) / bins
    count, confidence, right = (s[0] for s in _bin_sums(outcome, np.ones((1, len(outcome.truth))), bins))
    with np.errstate(invalid="ignore"):
        means = {"confidence": confidence / count, "right": right / count}
    return pd.DataFrame({"low": edges[:-1], "high": edges[1:], "count": count.round().astype(np.int64), **means})


def carried(outcome: Outcome) -> str:
    """Of numbers: the few units that carry R2, or spoil it, in a sentence; empty where leaving them out changes little.

    They are those with the largest share of the squared errors beyond their share of the squared distances to the
    mean, either way.
    """
    units = outcome.sets if outcome.groups is None else outcome.groups
    names, unit = np.unique(units.astype(str), return_inverse=True)
    number = min(FEW, int(SHARE * len(names)))
    if outcome.classifies or outcome.events is not None or not outcome.defined or not number:
        return ""
    truth, predicted = outcome.numbers
    errors, spread = (np.bincount(unit, np.square(truth - of)) for of in (predicted, truth.mean()))
    if not errors.sum() or not spread.sum():
        return ""
    order = np.argsort(errors / errors.sum() - spread / spread.sum(), kind="stable")
    whole, found = 1 - errors.sum() / spread.sum(), []
    for few, what in ((order[:number], "carry"), (order[-number:], "spoil")):
        rest = outcome.rows(~np.isin(unit, few))
        found.append((float(_r2(rest, np.ones((1, len(rest.truth))))[0]), few, what))
    without, few, what = max(found, key=lambda one: np.nan_to_num(abs(one[0] - whole)))
    if not abs(without - whole) > MATTERS:
        return ""
    who = f"{number} of {len(names):,} {'sets' if outcome.groups is None else 'groups'} {what}"
    who = who if number > 1 else f"{who}s"
    return f"{who} this score: without {', '.join(sorted(names[few]))} R2 is {without:.3f}, not {whole:.3f}."


# ---------------------------------------------------------------------- intervals

Weights = Float[np.ndarray, "draws rows"]
Formula = Callable[[Outcome, Weights], Values]


@dataclass(frozen=True)
class Measure:
    """A metric: how it is computed, and how it is read."""

    formula: Formula  # of an outcome and the weights of its rows in each draw; NaN where it is not defined
    text: str  # what it is
    larger: bool = True  # larger is better
    share: bool = False  # it lies between 0 and 1
    ranks: bool = False  # every draw is ranked anew
    pairs: bool = False  # in every draw each row is compared with each other
    within: tuple[float, float] = (-np.inf, np.inf)  # the least and the largest value
    # Its standard error in each draw; of two outcomes that of their difference.
    error: Callable[[Outcome, Outcome | None, Draws], Values] | None = None

    def of(self, outcome: Outcome, draws: Draws) -> Values:
        """In every draw; NaN where predictions are no numbers."""
        if not outcome.defined:
            return np.full(len(draws), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is how a formula says that it is not defined
            return self.formula(outcome, draws.rows())

    def draws(self, rows: int, columns: int) -> int | None:
        """How many draws an interval takes at most; None: as many as any."""
        if self.pairs:
            return max(LEAST, PAIRED // max(rows, 1) ** 2)
        return max(LEAST, RANKED // max(rows * columns, 1)) if self.ranks else None


# ---------------------------------------------------------------------- formulas: classes


def _by_class(outcome: Outcome, weights: Weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weight of the rows that are of each class, that were called it, and both: each (draws, classes)."""
    truth, predicted = outcome.codes
    k, right = len(outcome.classes or []), truth == predicted
    return _summed(weights, truth, k), _summed(weights, predicted, k), _summed(weights[:, right], truth[right], k)


def _summed(weights: Weights, of: Int[np.ndarray, " rows"], number: int) -> Float[np.ndarray, "draws number"]:
    """The sum of the weights of the rows of each of so many kinds."""
    from scipy.sparse import csr_array  # here: who only predicts waits for none of it

    one = csr_array((np.ones(len(of)), (np.arange(len(of)), of)), shape=(len(of), number))
    return np.asarray(weights @ one)


def _mean_over(values: np.ndarray, where: Bool[np.ndarray, "draws classes"]) -> Values:
    return np.where(where, values, 0).sum(1) / where.sum(1)


def _mean(values: Shaped[np.ndarray, " rows"], weights: Weights) -> Values:
    return weights @ np.asarray(values, dtype=np.float64) / weights.sum(1)


def _accuracy(outcome: Outcome, weights: Weights) -> Values:
    truth, predicted = outcome.codes
    return _mean(truth == predicted, weights)


def _balanced_accuracy(outcome: Outcome, weights: Weights) -> Values:
    true, _, right = _by_class(outcome, weights)
    return _mean_over(right / true, true > 0)


def _macro_f1(outcome: Outcome, weights: Weights) -> Values:
    true, predicted, right = _by_class(outcome, weights)
    both = true + predicted
    return _mean_over(2 * right / both, both > 0)


def _auroc(outcome: Outcome, weights: Weights) -> Values:
    """(sum of the ranks of positives - P (P + 1) / 2) / (P N), P and N the numbers of positives and negatives."""
    truth, _ = outcome.codes
    scores = _probabilities(outcome)
    labels = [1] if scores.shape[1] == 2 else range(scores.shape[1])
    areas = []
    for label in labels:
        positive = weights * (truth == label)
        p = positive.sum(1)
        n = weights.sum(1) - p
        ranks = (positive * _ranks(scores[:, label], weights)).sum(1)
        areas.append((ranks - p * (p + 1) / 2) / (p * n))
    each = np.stack(areas, 1)
    return _mean_over(each, np.isfinite(each))


def _log_loss(outcome: Outcome, weights: Weights) -> Values:
    truth, _ = outcome.codes
    scores = _probabilities(outcome)
    right = scores[np.arange(len(truth)), truth]
    return _mean(-np.log(np.clip(right, np.finfo(np.float64).eps, 1)), weights)


def _brier(outcome: Outcome, weights: Weights) -> Values:
    truth, _ = outcome.codes
    errors = _probabilities(outcome).copy()
    errors[np.arange(len(truth)), truth] -= 1
    return _mean((errors**2).sum(1), weights)


def _calibration_error(outcome: Outcome, weights: Weights) -> Values:
    _, confidence, right = _bin_sums(outcome, weights, CALIBRATION_BINS)
    return np.abs(confidence - right).sum(1) / weights.sum(1)


def _bin_sums(outcome: Outcome, weights: Weights, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By bin of confidence: weight, summed confidence, summed rightness; each (draws, bins)."""
    truth, predicted = outcome.codes
    confidence = _probabilities(outcome).max(1, initial=0)
    place = np.searchsorted(np.arange(bins + 1) / bins, confidence, side="right") - 1
    member = np.eye(bins)[np.clip(place, 0, bins - 1)]
    right = (truth == predicted)[:, None]
    return weights @ member, weights @ (member * confidence[:, None]), weights @ (member * right)


def _probabilities(outcome: Outcome) -> Float[np.ndarray, "rows classes"]:
    return np.asarray(outcome.probabilities, dtype=np.float64)


# ---------------------------------------------------------------------- formulas: numbers


def _r2(outcome: Outcome, weights: Weights) -> Values:
    truth, predicted = outcome.numbers
    return 1 - weights @ (truth - predicted) ** 2 / _spread(truth, weights)


def _r2_error(mine: Outcome, other: Outcome | None, draws: Draws) -> Values:
    """Of R2 = (D - E) / D, E and D the sums of squared errors and of squared distances to the mean; or of the
    difference of two, (E' - E) / D. With weights w_u of units, whose shares of the sums are e_u, d_u and e'_u:

        s^2 = sum_u w_u ((e'_u - e_u - value d_u) / D)^2,      e'_u = d_u where there is no other

    (the infinitesimal jackknife of Jaeckel, 1972).
    """
    truth, predicted = mine.numbers
    y, errors = truth - truth.mean(), np.square(truth - predicted)
    others = np.zeros(len(y)) if other is None else np.square(truth - other.numbers[1])
    of_units = np.zeros((draws.weights.shape[1], 5))
    np.add.at(of_units, draws.codes, np.stack([errors, others, y**2, y, np.ones(len(y))], 1))
    e, beside, squares, sums, number = of_units.T
    w = draws.weights
    mean = (w @ sums / (w @ number))[:, None]
    d = squares - 2 * mean * sums + mean**2 * number
    gain = (d if other is None else beside) - e
    total = (w * d).sum(1, keepdims=True)
    value = (w * gain).sum(1, keepdims=True) / total
    return np.sqrt((w * np.square((gain - value * d) / total)).sum(1))


def _rmse(outcome: Outcome, weights: Weights) -> Values:
    truth, predicted = outcome.numbers
    return np.sqrt(_mean((truth - predicted) ** 2, weights))


def _mae(outcome: Outcome, weights: Weights) -> Values:
    truth, predicted = outcome.numbers
    return _mean(np.abs(truth - predicted), weights)


def _pearson(outcome: Outcome, weights: Weights) -> Values:
    x, y = outcome.numbers
    return _co_spread(x, y, weights) / np.sqrt(_spread(x, weights) * _spread(y, weights))


def _spearman(outcome: Outcome, weights: Weights) -> Values:
    """Pearson's r of ranks, whose mean is (W + 1) / 2."""
    middle = (weights.sum(1, keepdims=True) + 1) / 2
    x, y = (_ranks(values, weights) - middle for values in outcome.numbers)
    return (weights * x * y).sum(1) / np.sqrt((weights * x * x).sum(1) * (weights * y * y).sum(1))


def _co_spread(x: Float[np.ndarray, " rows"], y: Float[np.ndarray, " rows"], weights: Weights) -> Values:
    x, y = x - x.mean(), y - y.mean()
    return weights @ (x * y) - (weights @ x) * (weights @ y) / weights.sum(1)


def _spread(x: Float[np.ndarray, " rows"], weights: Weights) -> Values:
    """Sum of w (x - mean x)^2; NaN where nothing but rounding is left of it."""
    spread = _co_spread(x, x, weights)
    return np.where(spread > 1e-12 * (weights @ (x - x.mean()) ** 2), spread, np.nan)


def _ranks(values: Float[np.ndarray, " rows"], weights: Weights) -> Float[np.ndarray, "draws rows"]:
    """Rank of each row where row i is there w_i times: ties share the mean of their ranks."""
    levels, level = np.unique(values, return_inverse=True)
    tied = _summed(weights, level, len(levels))
    return (tied.cumsum(1) - (tied - 1) / 2)[:, level]


# ---------------------------------------------------------------------- formulas: times until an event


def _concordance(outcome: Outcome, weights: Weights) -> Values:
    time, risk = outcome.numbers
    seen = np.zeros(len(time), dtype=bool) if outcome.events is None else outcome.events
    return concordance(time, seen, risk, weights, outcome.strata)


def _gain(outcome: Outcome, weights: Weights) -> Values:
    """Within strata, which have a baseline hazard each."""
    time, risk = outcome.numbers
    seen = np.zeros(len(time), dtype=bool) if outcome.events is None else outcome.events
    strata = np.zeros(len(time)) if outcome.strata is None else outcome.strata
    gained, events = np.zeros(len(weights)), np.zeros(len(weights))
    for stratum in np.unique(strata):
        rows = strata == stratum
        ranks, w = torch.from_numpy(ranked(time[rows], seen[rows])), torch.from_numpy(weights[:, rows])
        f = torch.from_numpy(risk[rows]).expand_as(w)
        (lost, number), (unknown, _) = loss_parts(f, ranks, w), loss_parts(torch.zeros_like(f), ranks, w)
        gained, events = gained + (unknown - lost).numpy(), events + number.numpy()
    return gained / events


def _integrated_brier(outcome: Outcome, weights: Weights) -> Values:
    """G is that of all rows, in every resample."""
    if outcome.briers is None:
        return np.full(len(weights), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        return weights @ outcome.briers / weights.sum(1)


LOSS: dict[str, Any] = {"larger": False, "within": (0.0, np.inf)}
CLASSIFICATION = {
    "accuracy": Measure(_accuracy, "Fraction of predictions that are right.", share=True),
    "balanced accuracy": Measure(
        _balanced_accuracy, "Recall (fraction right), averaged over the classes that occur.", share=True
    ),
    "macro F1": Measure(
        _macro_f1,
        "Harmonic mean of precision and recall, averaged over the classes that occur or are predicted.",
        share=True,
    ),
    "AUROC": Measure(
        _auroc,
        "Chance that a member of a class gets a higher probability of it than a non-member. Two classes: of the "
        "second; more: averaged over the classes that occur. 0.5 is guessing.",
        share=True,
        ranks=True,
    ),
    "log loss": Measure(
        _log_loss, "Mean of -log(probability of the true class), natural logarithm. 0 is perfect.", **LOSS
    ),
    "Brier score": Measure(
        _brier,
        "Mean squared distance between probabilities and truth, summed over all classes: from 0, perfect, to 2.",
        larger=False,
        within=(0.0, 2.0),
    ),
    "calibration error": Measure(
        _calibration_error,
        f"Expected calibration error: mean distance between confidence and fraction right, in {CALIBRATION_BINS} "
        "equally wide bins of confidence. 0 is perfect.",
        larger=False,
        share=True,
    ),
}
REGRESSION = {
    "R2": Measure(
        _r2,
        "Fraction of the variance explained: 1 is perfect, 0 is as good as predicting the mean.",
        within=(-np.inf, 1.0),
        error=_r2_error,
    ),
    "RMSE": Measure(_rmse, "Root of the mean squared error, in the unit of the target.", **LOSS),
    "MAE": Measure(_mae, "Mean absolute error, in the unit of the target.", **LOSS),
    "Pearson r": Measure(_pearson, "Linear correlation of prediction and truth, from -1 to 1.", within=(-1.0, 1.0)),
    "Spearman r": Measure(
        _spearman, "Correlation of the ranks of prediction and truth, from -1 to 1.", ranks=True, within=(-1.0, 1.0)
    ),
}
SURVIVAL = {
    "concordance": Measure(
        _concordance,
        "Of two sets of which it is known who had the event first, how often the riskier one did (Harrell's C): 1 is "
        "perfect, 0.5 is guessing.",
        share=True,
        pairs=True,
    ),
    "log likelihood gain": Measure(
        _gain,
        "Logarithm of the partial likelihood per event, minus that of equal risks: 0 is as good as knowing nothing, "
        "below are risks that are too sure.",
        ranks=True,
    ),
    "integrated Brier score": Measure(
        _integrated_brier,
        "Mean squared error of the predicted survival curves over time, up to the last event, where sets stand in for "
        "those that were censored: 0 is perfect.",
        **LOSS,
    ),
}
