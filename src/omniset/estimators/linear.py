"""The linear members: logistic regression, or ridge, on standardised pooled features, or distances to other sets."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Float64

from omniset.estimators.folds import folds_of
from omniset.estimators.simple import DISTANCES, Member, Outputs, State, Table, softmax
from omniset.runs.devices import one_blas_thread

VARIANCES = tuple(10.0 ** (k / 2) for k in range(-6, 7))  # of what the columns together say, before it is learned
FOLDS = 5
CHOSEN_ON = 5_000  # rows that the variance is chosen on, at most
LEFT_OUT = 1_000  # rows left out that are enough to choose it
ROTATED = 2_000  # rows up to which more columns than rows are rotated
STATE = ("mean", "per_unit", "slope", "intercept")
LARGEST = 3.0  # standard deviations from the mean at which a column stops to say more


class PooledLinear(Member):
    """Logistic regression, or ridge, with a penalty that inner cross-validation chooses.

    With columns z_ij = (x_ij - mean_j) / sd_j, clipped at 3 either way, over sqrt(columns), and loss = the log loss, or
    half the squared error of y in its standard deviations:

        minimise over b, c   sum_i w_i loss(y_i, c + z_i b) + |b|^2 / (2 v)

    v, the variance that z b has before it is learned, is one of 0.001, 0.003, ..., 1,000: the one with the least

        loss on rows left out + (log10 v)^2 / 2,

    the loss of numbers being n / 2 log(mean squared error). There are five folds; of more than 1,000 rows without
    groups only the first folds are left out, until 1,000 rows were. The second term is a normal distribution of log10 v
    with deviation 1: of 30 rows that a plane happens to part, the loss alone would choose to be sure. If there are
    fewer rows than columns, b is looked for among the sums of rows, where it is (Kimeldorf and Wahba, 1971): z is
    rotated into so many columns, which changes nothing else.
    """

    name = "pooled-linear"
    variances: ClassVar[Sequence[float]] = VARIANCES

    def _fit(self, x: Table, y: np.ndarray, w: np.ndarray, seed: int, groups: np.ndarray | None) -> None:
        z = x.astype(np.float64)
        self.mean = np.average(z, 0, w)
        deviation = np.sqrt(np.average(np.square(z - self.mean), 0, w))
        varies = deviation > 1e-6 * (np.abs(self.mean) + 1e-30)
        self.per_unit = np.where(varies, 1 / np.where(varies, deviation, 1.0), 0.0)  # a column that never changes is 0
        z = self._standardised(z)
        turn = _rotation(z) if len(z) < min(z.shape[1], ROTATED) and z.any() else None
        z = z if turn is None else z @ turn
        level, spread = self._scale(y, w)
        y = y if self.classes is not None else (y - level) / spread
        self.variance = self._chosen(z, y, w, seed, groups)
        slope, intercept = self._solve(z, y, w, [self.variance])[0]
        self.slope = (slope if turn is None else turn @ slope) * spread
        self.intercept = intercept * spread + level

    def _scale(self, y: np.ndarray, w: np.ndarray) -> tuple[float, float]:
        """Mean and standard deviation of numbers."""
        if self.classes is not None:
            return 0.0, 1.0
        level = float(w @ y / w.sum())
        return level, float(np.sqrt(w @ np.square(y - level) / w.sum()))

    def _standardised(self, x: Float[np.ndarray, "rows columns"]) -> Float64[np.ndarray, "rows columns"]:
        return np.clip((x - self.mean) * self.per_unit, -LARGEST, LARGEST) / np.sqrt(x.shape[1])

    def _chosen(
        self, z: Float64[np.ndarray, "rows columns"], y: np.ndarray, w: np.ndarray, seed: int, groups: np.ndarray | None
    ) -> float:
        some = np.sort(np.random.default_rng(seed).permutation(len(z))[:CHOSEN_ON])
        z, y, w, groups = z[some], y[some], w[some], None if groups is None else groups[some]
        folds = folds_of(y, FOLDS, seed, groups)
        losses, left_out = np.zeros(len(self.variances)), np.zeros(len(z), dtype=bool)
        for fold in range(folds.max() + 1):
            if groups is None and left_out.sum() >= LEFT_OUT:
                break
            there, left = folds != fold, folds == fold
            left_out |= left
            if not there.any() or (self.classes is not None and not (y[there] != y[there][0]).any()):
                continue
            for at, (slope, intercept) in enumerate(self._solve(z[there], y[there], w[there], self.variances)):
                losses[at] += self._loss(z[left] @ slope + intercept, y[left], w[left])
        unlikely = self._surprise(losses, w[left_out]) + np.square(np.log10(self.variances)) / 2
        return self.variances[int(unlikely.argmin())]  # the first of equals: the least that is learned

    def _surprise(self, losses: Float64[np.ndarray, " variances"], w: np.ndarray) -> Float64[np.ndarray, " variances"]:
        """Minus the log likelihood, from the sum of the losses."""
        if self.classes is not None:
            return losses
        return w.sum() / 2 * np.log(np.maximum(losses / w.sum(), np.finfo(np.float64).tiny))

    def _loss(self, out: Float64[np.ndarray, "rows outputs"], y: np.ndarray, w: np.ndarray) -> float:
        if self.classes is None:
            return float(w @ np.square(y - out[:, 0]))
        return float(-w @ np.log(np.maximum(softmax(out)[np.arange(len(y)), y], 1e-12)))

    @one_blas_thread()
    def _solve(
        self, z: Float64[np.ndarray, "rows columns"], y: np.ndarray, w: np.ndarray, variances: Sequence[float]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The slopes b (columns, outputs) and levels c (outputs,) for each of these variances."""
        from sklearn.linear_model import LogisticRegression, Ridge

        if self.classes is None:
            models: list[Any] = [Ridge(1 / v).fit(z, y, w) for v in variances]
            return [(model.coef_[:, None], np.array([model.intercept_])) for model in models]
        solved = []
        model = LogisticRegression(warm_start=True, max_iter=1_000, tol=1e-4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it might be closer still
            for v in variances:
                model.set_params(C=v).fit(z, y, w)
                solved.append(self._of_all_classes(model))
        return solved

    def _of_all_classes(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        """A column per class; those that training lacks are as good as impossible."""
        slope = np.zeros((model.coef_.shape[1], self.classes or 0))
        intercept = np.full(self.classes or 0, -50.0)
        coefficients, level = model.coef_.T.copy(), model.intercept_.copy()
        if len(model.classes_) == 2:
            coefficients = np.concatenate([0 * coefficients, coefficients], 1)
            level = np.concatenate([0 * level, level])
        slope[:, model.classes_], intercept[model.classes_] = coefficients, level
        return slope, intercept

    def _predict(self, x: Table) -> Outputs:
        out = self._standardised(x) @ self.slope + self.intercept
        return out[:, 0] if self.classes is None else softmax(out)

    def _state(self) -> State:
        return {name: getattr(self, name) for name in STATE}

    def _restore(self, state: State) -> None:
        for name in STATE:
            setattr(self, name, state[name])


class DissimilarityLinear(PooledLinear):
    """The same on the distances of a set to the sets that were learned from, in place of its pooled features."""

    name = "dissimilarity-linear"
    sees = DISTANCES


def _rotation(z: Float64[np.ndarray, "rows columns"]) -> Float64[np.ndarray, "columns rank"]:
    """Orthonormal columns that span the rows of z."""
    values, vectors = np.linalg.eigh(z @ z.T)
    there = values > 1e-10 * values[-1]
    return z.T @ (vectors[:, there] / np.sqrt(values[there]))
