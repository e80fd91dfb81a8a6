"""Methods without a network that learn log relative risks of sets from their pooled features.

What they learn from are signed ranks of times (`omniset.training.cox.ranked`). They know risks up to a constant, which
they choose so that the mean over what they learned from is about 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Shaped
from scipy.optimize import minimize

from omniset.estimators.boosting import PooledBoosting
from omniset.estimators.linear import VARIANCES, PooledLinear
from omniset.estimators.pooling import means_of
from omniset.estimators.simple import DISTANCES, Member, PooledForest, Prior, Table
from omniset.runs.devices import one_blas_thread
from omniset.training.cox import loss_parts
from omniset.trials.survival import breslow

SEARCH: dict[str, Any] = {"maxiter": 200, "ftol": 1e-7}  # for the slopes


class RiskMember(Member):
    """Learns log relative risks. Where no event was seen, all are 0."""

    def fit(
        self,
        x: Table,
        y: Shaped[np.ndarray, " rows"],
        weights: Float[np.ndarray, " rows"] | None = None,
        seed: int = 0,
        groups: Shaped[np.ndarray, " rows"] | None = None,
    ) -> Member:
        counted = y > 0 if weights is None else (y > 0) & (np.asarray(weights) > 0)
        super().fit(x, y if counted.any() else np.zeros(len(y)), weights, seed, groups)
        self.prior = np.zeros(1)
        return self


class RiskPrior(RiskMember, Prior):
    """Every set is as much at risk as any other."""


class PartialLikelihood:
    """- sum_i w_i c_i over the events, as `omniset.training.cox` has it, and its gradient, in closed form.

    A minimiser asks for them hundreds of times: what depends on times and weights alone is computed once, and nothing
    is differentiated. With S_j the sum of w exp f over those at risk at time j, D_j that over its d_j events, W_j the
    sum of their weights and u_jl = 1 - l/d_j D_j/S_j,

        d/df_k = exp(f_k) w_k (sum_{j: t_j <= t_k} A_j/S_j  -  [k is an event at j] B_j/S_j)  -  [k is an event] w_k
        A_j = W_j/d_j sum_{l=0}^{d_j-1} 1/u_jl,      B_j = W_j/d_j sum_{l=0}^{d_j-1} l/d_j 1/u_jl

    Sums are of logarithms, so that no risk is too large for them.

    Attributes:
        order: In which rows are taken: of falling times.
    """

    def __init__(self, y: Float64[np.ndarray, " rows"], w: Float64[np.ndarray, " rows"]) -> None:
        self.order = np.argsort(-np.abs(y), kind="stable")
        y, w = y[self.order], w[self.order]
        with np.errstate(divide="ignore"):
            self._log_weight = np.log(w)
        seen = (y > 0) & (w > 0)
        self._weight = np.where(seen, w, 0.0)
        self._events = np.flatnonzero(seen)
        ranks, self._first, self._time, number = np.unique(
            -y[seen], return_index=True, return_inverse=True, return_counts=True
        )
        self._tied = (np.arange(len(self._events)) - self._first[self._time]) / number[self._time]  # l / d
        self._each = np.bincount(self._time, w[seen], len(number)) / number  # W / d
        self._last = np.searchsorted(-np.abs(y), ranks, side="right") - 1  # at risk at a time, with all before
        self._next = np.searchsorted(ranks, -np.abs(y))  # the first time with an event at which a row is at risk

    def loss(self, f: Float64[np.ndarray, " rows"]) -> tuple[float, Float64[np.ndarray, " rows"]]:
        """The sum, and the gradient in f.

        Args:
            f: Log relative risks, in `order`; the gradient is in it too.
        """
        if not len(self._events):
            return 0.0, np.zeros(len(f))
        x, events, time = f + self._log_weight, self._events, self._time
        at_risk = np.logaddexp.accumulate(x)[self._last]  # log S
        share = np.exp(x[events] - at_risk[time])
        left = 1 - self._tied * np.add.reduceat(share, self._first)[time]  # u
        inverse, tied = (self._each * np.add.reduceat(top / left, self._first) for top in (1.0, self._tied))  # A, B
        later = np.logaddexp.accumulate((np.log(inverse) - at_risk)[::-1])[::-1]
        gradient = np.exp(x + np.append(later, -np.inf)[self._next]) - self._weight
        gradient[events] -= share * tied[time]
        logs = np.add.reduceat(np.log(left) + at_risk[time], self._first)
        return float(self._each @ logs - self._weight @ f), gradient


class PooledCox(RiskMember, PooledLinear):
    """Cox regression with a penalty that inner cross-validation chooses.

    With the columns z of `PooledLinear`, and c_i the contributions of events to the partial likelihood of f = z b,

        minimise over b   - sum_i w_i c_i + |b|^2 / (2 v)

    for the v with the largest partial likelihood of rows left out, each fold compared within itself (Verweij and van
    Houwelingen, "Cross-validation in survival analysis", 1993), in the light of what `PooledLinear` holds for likely.
    """

    variances: ClassVar[Sequence[float]] = VARIANCES[1:9]  # risks that differ by e^6 are rare enough

    def _scale(self, y: np.ndarray, w: np.ndarray) -> tuple[float, float]:
        return 0.0, 1.0

    def _loss(self, out: Float64[np.ndarray, "rows outputs"], y: np.ndarray, w: np.ndarray) -> float:
        return float(loss_parts(*(torch.from_numpy(part) for part in (out[:, 0], y, w)))[0])

    def _surprise(self, losses: Float64[np.ndarray, " variances"], w: np.ndarray) -> Float64[np.ndarray, " variances"]:
        return losses

    @one_blas_thread()
    def _solve(
        self, z: Float64[np.ndarray, "rows columns"], y: np.ndarray, w: np.ndarray, variances: Sequence[float]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        likelihood = PartialLikelihood(y, w)
        sorted_ = z[likelihood.order]

        def penalised(b: np.ndarray, v: float) -> tuple[float, np.ndarray]:
            loss, gradient = likelihood.loss(sorted_ @ b)
            return loss + b @ b / (2 * v), gradient @ sorted_ + b / v

        solved, b = [], np.zeros(z.shape[1])
        for v in variances:  # each starts where the one before has ended
            b = minimize(penalised, b, (v,), "L-BFGS-B", jac=True, options=SEARCH).x
            solved.append((b[:, None], np.array([-(w @ (z @ b)) / w.sum()])))
        return solved


class DissimilarityCox(PooledCox):
    """The same on the distances of a set to the sets that were learned from, in place of its pooled features."""

    name = "dissimilarity-linear"
    sees = DISTANCES


class MeanCox(PooledCox):
    """Cox regression on the means of the features and nothing else: what takes ten lines."""

    name = "mean-linear"

    @classmethod
    def columns(cls, width: int) -> slice:
        return means_of(width)


class OnResiduals(RiskMember):
    """Learns deviance residuals by squared error: how much earlier, or later, an event came than one would expect."""

    def _fit(self, x: Table, y: np.ndarray, w: np.ndarray, seed: int, groups: np.ndarray | None) -> None:
        super()._fit(x, deviance_residuals(y, w), w, seed, groups)  # type: ignore[safe-super]


class RiskForest(OnResiduals, PooledForest):
    """The forest of `PooledForest`, of deviance residuals."""


class RiskBoosting(OnResiduals, PooledBoosting):
    """The boosting of `PooledBoosting`, of deviance residuals."""


def deviance_residuals(y: Shaped[np.ndarray, " rows"], w: Float[np.ndarray, " rows"]) -> Float64[np.ndarray, " rows"]:
    """Of the model in which all are as much at risk:

        m_i = e_i - H(t_i),      d_i = sign(m_i) (-2 (m_i + e_i log H(t_i)))^(1/2)

    H is the cumulative hazard, e_i = 1 where the event was seen, else 0. Source: Therneau, Grambsch and Fleming,
    "Martingale-based residuals for survival models", 1990.

    Args:
        y: Signed ranks of the times.
    """
    rank, event = np.abs(y), y > 0
    hazard = breslow(rank, event, np.zeros(len(y)), w)(rank)
    m = event - hazard
    surprise = np.where(event, np.log(np.where(event, hazard, 1.0)), 0.0)
    return np.sign(m) * np.sqrt(np.maximum(-2 * (m + surprise), 0.0))


MEMBERS: dict[str, type[Member]] = {
    kind.name: kind for kind in (RiskPrior, MeanCox, PooledCox, RiskForest, RiskBoosting, DissimilarityCox)
}
