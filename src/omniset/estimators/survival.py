"""Times until an event, some of them not seen to their end: `SetSurvival`, its methods, and how they are mixed.

What is learned from are signed ranks of times (`omniset.training.cox.ranked`). Each method m says a log relative risk
f_m, known up to a constant. It counts as much as it has shown to tell,

    a_m = argmin over a in [0, 5] of   - sum_i w_i c_i(a f_m) + (a - 1)^2 / 2,

c_i the contribution of an event to the partial likelihood (`omniset.training.cox`): Cox regression on one number that
the method had not learned from, the penalty a normal distribution around 1. The mixture is

    f = sum over methods m of  w_m a_m f_m

with the weights of `omniset.trials.stacking`, where the loss of a set is - c_i(f) if its event was seen, and 0 if not.
Sets left out are at risk beside those of their own fold only: the risks of others are of other models. Where
sets were dealt to folds several times, f_m is the mean over the repeats, and the folds are those of the first repeat:
two sets of a fold have the same model in that repeat, and in the others models whose constants agree. The constant of
a network is the one at which the mean over the sets that it left out is 0; simple methods choose theirs so that the
mean over what they learned from is about 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor

from omniset.core.sets import Sets
from omniset.estimators import inputs
from omniset.estimators.base import SetEstimator
from omniset.estimators.ensembles import Batch, EnsembleModule
from omniset.estimators.inputs import sets_of
from omniset.estimators.methods import VARIANCES, DissimilarityLinear, Method, PooledForest, Prior, Table
from omniset.estimators.mixture import NETWORK, SetMixture
from omniset.estimators.model import SetModel
from omniset.runs.devices import one_blas_thread
from omniset.training import artefacts, schema
from omniset.training.cox import contributions, loss_parts, ranked
from omniset.training.network import SetNetwork
from omniset.trials.comparison import OURS
from omniset.trials.stacking import Loss, Rows, RowWeights, Target, Told
from omniset.trials.survival import LARGEST, Steps, breslow, concordance

RISK = "risk"
COLUMNS = ("time", "event")
FEW = 10  # events
STEEPEST = 5.0  # slope
SEARCH: dict[str, Any] = {"maxiter": 200, "ftol": 1e-7}  # for the slopes of Cox regression


# ---------------------------------------------------------------------- methods without a network


class RiskMethod(Method):
    """Learns log relative risks. Where no event was seen, all are 0."""

    def fit(
        self,
        x: Table,
        y: Shaped[np.ndarray, " rows"],
        weights: Float[np.ndarray, " rows"] | None = None,
        seed: int = 0,
        groups: Shaped[np.ndarray, " rows"] | None = None,
    ) -> Method:
        counted = y > 0 if weights is None else (y > 0) & (np.asarray(weights) > 0)
        super().fit(x, y if counted.any() else np.zeros(len(y)), weights, seed, groups)
        self.prior = np.zeros(1)
        return self


class RiskPrior(RiskMethod, Prior):
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


class DissimilarityCox(RiskMethod, DissimilarityLinear):
    """Cox regression with a penalty that inner cross-validation chooses.

    With the columns z of `DissimilarityLinear`, and c_i the contributions of events to the partial likelihood of
    f = z b,

        minimise over b   - sum_i w_i c_i + |b|^2 / (2 v)

    for the v with the largest partial likelihood of rows left out, each fold compared within itself (Verweij and van
    Houwelingen, "Cross-validation in survival analysis", 1993), in the light of what `DissimilarityLinear` holds for
    likely.
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
        from scipy.optimize import minimize

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


class RiskForest(RiskMethod, PooledForest):
    """The forest of `PooledForest`, of deviance residuals: how much earlier, or later, an event came than one would
    expect. They are learned by squared error.
    """

    def _fit(self, x: Table, y: np.ndarray, w: np.ndarray, seed: int, groups: np.ndarray | None) -> None:
        super()._fit(x, deviance_residuals(y, w), w, seed, groups)


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


# ---------------------------------------------------------------------- the mixture of risks


class CoxEnsemble(EnsembleModule):
    """The partial likelihood as the loss of an ensemble: each network has the sets of a batch at risk that it learns
    from; those left out are taken together at the end of an epoch.
    """

    def training_step(self, batch: Batch, index: int) -> Tensor:
        total, weight = loss_parts(self._risks(batch), batch.targets[0, :, 0], batch.weights)
        loss = total / weight.clamp(min=torch.finfo(total.dtype).tiny)
        self.log("train_loss", loss.mean().detach(), batch_size=batch.targets.shape[1])
        return loss.sum()

    def _risks(self, batch: Batch) -> Float[Tensor, "networks sets"]:
        outputs, positions = zip(*self.outputs_of(batch), strict=True)
        risks = torch.cat(outputs, 1)[..., 0]
        order = torch.tensor([*chain.from_iterable(positions)], device=risks.device)
        return risks[:, order.argsort()]

    def on_validation_epoch_start(self) -> None:
        self._batches: list[tuple[Tensor, Tensor, Tensor]] = []

    def validation_step(self, batch: Batch, index: int) -> None:
        self._batches.append((self._risks(batch), batch.targets[0, :, 0], batch.left_out))

    def on_validation_epoch_end(self) -> None:
        risks, ranks, weights = zip(*self._batches, strict=True)
        summed, counted = loss_parts(torch.cat(risks, 1), torch.cat(ranks), torch.cat(weights, 1))
        self.log("val_loss", summed.sum() / counted.sum().clamp(min=torch.finfo(summed.dtype).tiny))
        self.choose(summed.double().cpu(), counted.double().cpu())


class Risks(Target):
    """Signed ranks of times, of which parts say log relative risks: minus the log of the partial likelihood.

    Args:
        strata: Rows are at risk beside those of their own stratum.
    """

    def __init__(self, y: Rows, strata: Int[np.ndarray, " rows"]) -> None:
        super().__init__(np.asarray(y, dtype=np.float64))
        self.strata = strata

    def of(self, rows: Bool[np.ndarray, " rows"]) -> Risks:
        return Risks(self.y[rows], self.strata[rows])

    def power(self, part: Float[np.ndarray, "rows ..."], weights: RowWeights) -> float:
        """a_m."""
        from scipy.optimize import minimize_scalar

        if not part.any():
            return 1.0
        mean, total = self.mean(weights), weights.sum()
        found = minimize_scalar(
            lambda a: total * mean(a * part)[0] + (a - 1) ** 2 / 2, bounds=(0, STEEPEST), method="bounded"
        )
        return float(found.x)

    def losses(self, told: Told, weights: RowWeights) -> Told:
        """- c_i of each event; 0 where no event was seen."""
        losses = np.zeros(len(told))
        for stratum in np.unique(self.strata):
            rows = self.strata == stratum
            f, y, w = (torch.from_numpy(part[rows]) for part in (told, self.y, weights))
            losses[rows] = -contributions(f, y, w).numpy()
        return losses

    def mean(self, weights: RowWeights) -> Loss:
        total, parts = weights.sum(), []
        for stratum in np.unique(self.strata):
            rows = np.flatnonzero(self.strata == stratum)
            likelihood = PartialLikelihood(self.y[rows], weights[rows])
            parts.append((rows[likelihood.order], likelihood))

        def loss(told: Told) -> tuple[float, Told]:
            value, gradient = 0.0, np.zeros(len(told))
            for rows, likelihood in parts:
                of_stratum, gradient[rows] = likelihood.loss(told[rows])
                value += of_stratum
            return value / total, gradient / total

        return loss


class RiskMixture(SetMixture):
    """Fitted methods, their weights, and as powers the slopes of their log relative risks."""

    SIMPLE: ClassVar[Mapping[str, type[Method]]] = {
        method.name: method for method in (RiskPrior, RiskForest, DissimilarityCox)
    }
    METHODS: ClassVar[Sequence[str]] = (*SIMPLE, NETWORK)
    ENSEMBLE: ClassVar[type[EnsembleModule]] = CoxEnsemble
    risks: ClassVar[bool] = True

    @classmethod
    def stratum(cls, targets: Shaped[Tensor, "sets targets"]) -> Shaped[np.ndarray, " sets"]:
        """Events."""
        return (targets[:, 0].numpy() > 0).astype(np.int64)

    @classmethod
    def units(cls, targets: Shaped[Tensor, "sets targets"], groups: Shaped[np.ndarray, " sets"] | None) -> int:
        """Each fold has an event."""
        return min(super().units(targets, groups), int((targets > 0).sum()))

    @classmethod
    def labels(cls, values: Shaped[np.ndarray, "rows targets"], sets: Sets, targets: list[str]) -> Any:
        """Of signed ranks, ranks as times."""
        return np.stack([np.abs(values[:, 0]), values[:, 0] > 0], 1)

    @classmethod
    def centred(cls, answers: Float64[np.ndarray, "*some sets outputs"]) -> Float64[np.ndarray, "*some sets outputs"]:
        """The mean over sets left out is 0, before risks of several repeats are put together."""
        return answers - answers.mean(-2, keepdims=True)

    @classmethod
    def batch_of(cls, sets: int) -> int:
        """More: an event says something beside the other sets of its step only."""
        return min(max(sets // 4, 32), 128)

    @classmethod
    def can_learn(cls, targets: Shaped[Tensor, "rows targets"]) -> bool:
        """Two events, and two times."""
        return int((targets > 0).sum()) > 1 and len(targets.abs().unique()) > 1

    @classmethod
    def target(cls, each: Float[np.ndarray, "methods ..."], y: Rows, strata: Int[np.ndarray, " rows"]) -> Target:
        return Risks(y, strata)


# ---------------------------------------------------------------------- the estimator


class SetSurvival(SetEstimator):
    """Predict how early an event comes to a set, from times of which some are censored.

    What is learned is a log relative risk f of each set: its hazard is exp f times that of a set with f = 0, at all
    times (Cox, "Regression models and life-tables", 1972). Networks and linear methods learn it by the partial
    likelihood (`omniset.training.cox`), trees from deviance residuals. The mean of f over the training sets is about
    0. Arguments and attributes are those of SetEstimator, and

    Attributes:
        baseline_: The cumulative hazard H(t) of a set with f = 0, a step function of time (Breslow, 1972). It is that
            of the risks of sets left out where there are folds, so that it is as sure as predictions of new sets are.
        hazards_: The same by method: ours, and those beside it.
        columns_: How y calls time and event.

    >>> sets = [[[0.0], [0.1]], [[5.0]], [[0.2]], [[5.1], [4.9], [5.0]]] * 3
    >>> y = [[8.0, 1], [2.0, 1], [9.0, 0], [1.5, 1], [7.0, 1], [2.5, 1], [9.0, 0], [1.0, 1], [6.0, 1], [3.0, 1],
    ...      [8.5, 1], [0.5, 1]]
    >>> model = SetSurvival("deep-sets", dim=8, depth=1, epochs=20, learning_rate=0.01, progress=False,
    ...                     validation_fraction=0.0, device="cpu").fit(sets, y)
    >>> low, high = model.predict([[[0.05]], [[5.2], [5.0]]])
    >>> bool(low < high)
    True
    >>> model.predict_survival([[[0.05]], [[5.2], [5.0]]], [0.0, 4.0]).shape
    (2, 2)
    """

    FITTED: ClassVar[dict[str, Any]] = SetEstimator.FITTED | {
        "columns": schema.array(schema.TEXT, minItems=2, maxItems=2),
        "baseline": schema.whole(
            {
                "times": schema.array(schema.NUMBER),
                "hazard": schema.array(schema.NUMBER),
                "beside": schema.OBJECT | {"additionalProperties": schema.array(schema.NUMBER)},
            }
        ),
    }

    classifies = False
    usual_target = RISK
    MIXTURE = RiskMixture

    def fit(
        self,
        sets: Any,
        y: Any,
        *,
        groups: Any = None,
        sample_weight: Any = None,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> SetSurvival:
        """Train.

        Args:
            sets, groups, sample_weight, folder, resume: As for SetEstimator.
            y: (B, 2): of each set the time, and 1 if the event was seen then, 0 if it had not happened until then. Or a
                DataFrame with the columns `time` and `event`, or with two columns in this order, matched as labels are;
                or an array with a field of truth values and one of numbers.

        Raises:
            ValueError: As SetEstimator; a time that is negative or missing, an event that is neither 0 nor 1; fewer
                than two events, or than `folds`; all times the same.
            KeyboardInterrupt: As SetEstimator.
        """
        self.check_arguments()
        self.check_resumed(folder, resume)
        collection = sets_of(sets, missing=self.missing)
        time, event = observed(y, collection)
        how: dict[str, Any] = {"groups": groups, "sample_weight": sample_weight, "folder": folder, "resume": resume}
        super().fit(collection, ranked(time, event), **how)
        self.columns_ = [str(c) for c in _two_columns(y).columns if c != "set"] if hasattr(y, "columns") else [*COLUMNS]
        self.notes_[0] = events_of(event)
        if isinstance(self.network_, SetNetwork):  # its constant; a mixture has chosen one fold by fold
            self.network_.head.bias.data -= float(self.predict(collection).mean())
        weights = None if sample_weight is None else inputs.weights_per_set(sample_weight, collection)
        self.hazards_ = {OURS: breslow(time, event, self.predict(collection), weights)}
        self.hazards_ |= self._hazards(collection, time, event, weights)
        return self

    @property
    def baseline_(self) -> Steps:
        self.require_fitted()
        return self.hazards_[OURS]

    def predict(self, sets: Any, shard_size: int | None = None) -> Float64[np.ndarray, " sets"]:
        """Log relative risks (B,): the higher, the earlier the event."""
        return self._outputs(sets, shard_size)[1][:, 0].double().numpy()

    def predict_survival(
        self, sets: Any, times: Any, shard_size: int | None = None
    ) -> Float64[np.ndarray, "sets times"]:
        """The probability that the event comes after each time: S(t) = exp(-H(t) exp f).

        H does not grow after the last event in training: later, nothing is known.

        Args:
            times: (T,) not negative.

        Raises:
            ValueError: A time that is negative or no number.
        """
        at = np.asarray(times, dtype=np.float64)
        if at.ndim != 1 or not (at >= 0).all():
            raise ValueError(f"times must be a list of numbers of at least 0, got {times!r}")
        risk = self.predict(sets, shard_size)
        return np.exp(-self.baseline_(at)[None] * _relative(risk)[:, None])

    def score(self, sets: Any, y: Any) -> float:
        """Harrell's concordance (`omniset.trials.survival.concordance`)."""
        collection = self.read(sets)
        time, event = observed(y, collection)
        return float(concordance(time, event, self.predict(collection), np.ones((1, len(time))))[0])

    def check_arguments(self) -> None:
        super().check_arguments()
        if self.level != "set":
            raise ValueError(f"level={self.level!r}: survival is of sets")
        if (self.devices, self.num_nodes) != (1, 1):
            raise ValueError(
                f"survival is learned in one process, where all sets of a step are at risk together, got "
                f"devices={self.devices}, num_nodes={self.num_nodes}"
            )

    def _hazards(
        self,
        sets: Sets,
        time: Float64[np.ndarray, " sets"],
        event: Bool[np.ndarray, " sets"],
        weights: Float[np.ndarray, " sets"] | None,
    ) -> dict[str, Steps]:
        if self.out_of_fold_ is not None:
            risks = {method: tables[:, 0] for method, tables in self.out_of_fold_.predictions.items()}
        else:
            tables = self.by_method(sets[number] for number in range(len(sets)))
            risks = {method: table[RISK].to_numpy() for method, table in tables.items()}
        return {method: breslow(time, event, risk, weights) for method, risk in risks.items()}

    def _encode_targets(self, y: np.ndarray) -> tuple[Tensor, list[int]]:
        events = int((y > 0).sum())
        if len(y) < 2:
            raise ValueError(f"survival is learned from two sets or more, got {len(y)}")
        if events < 2:
            raise ValueError(f"y has {events or 'no'} event{'s' * (events != 1)}: at least two must have been seen")
        if np.ptp(np.abs(y)) == 0:
            raise ValueError("y has the same time for all sets: nothing to learn")
        if self.folds is not None and self.folds > events:
            raise ValueError(f"folds must be at most the number of events, {events}, got {self.folds}")
        if events < FEW:
            warnings.warn(f"only {events} events were seen: risks learned from so few are hardly known", stacklevel=4)
        return torch.as_tensor(y, dtype=torch.float32), [1]

    def prior_of(self, targets: Tensor, widths: list[int]) -> list[np.ndarray]:
        return [np.zeros(1)]

    def constant(self, rows: int) -> pd.DataFrame:
        return pd.DataFrame({RISK: np.zeros(rows)})

    def _columns(self, outputs: Tensor) -> dict[str, np.ndarray]:
        risk = outputs[:, 0].double().numpy()
        reached = np.searchsorted(self.baseline_.values, np.log(2) / _relative(risk))
        times = np.append(self.baseline_.times, np.nan)
        return {RISK: risk, "median_time": times[reached]}

    def columns(self, answers: Float[Tensor, "rows outputs"]) -> dict[str, np.ndarray]:
        return {RISK: answers[:, 0].double().numpy()}

    def probable(self, sets: Any, like: SetModel) -> Float[np.ndarray, "sets outputs"]:
        return self.predict(sets)[:, None]

    def truth(self, y: Any, sets: Sets) -> Shaped[np.ndarray, "rows targets"]:
        return np.stack(observed(y, sets), 1)

    def codes(self, truth: Shaped[np.ndarray, "sets targets"]) -> Shaped[np.ndarray, "sets columns"]:
        """Events, and the cumulative baseline hazard at the time of each set."""
        return np.stack([truth[:, 1], self.baseline_(truth[:, 0])], 1)

    def _codes_in_training(
        self, targets: Shaped[Tensor, "sets targets"], answers: Float[np.ndarray, "sets outputs"]
    ) -> Shaped[np.ndarray, "sets columns"]:
        """The hazard is not known yet: it is that of these risks, at the ranks of times."""
        rank, event = targets[:, 0].abs().double().numpy(), (targets[:, 0] > 0).numpy()
        return np.stack([event, breslow(rank, event, answers[:, 0])(rank)], 1)

    def losses(
        self, outputs: Float64[np.ndarray, "sets outputs"], codes: Shaped[np.ndarray, "sets columns"]
    ) -> Float64[np.ndarray, "sets targets"]:
        """H(t_i) exp f_i - [event seen] f_i: up to a constant the negative log likelihood of set i alone, whatever the
        risks of others (Whitehead, "Fitting Cox's regression model to survival data using GLIM", 1980).
        """
        risk = np.clip(outputs[:, :1], -LARGEST, LARGEST)
        return codes[:, 1:] * np.exp(risk) - codes[:, :1] * risk

    def _require_spread(self, targets: Shaped[Tensor, "sets targets"], groups: inputs.Groups, left_out: bool) -> None:
        events = np.unique(groups[(targets[:, 0] > 0).numpy()]).tolist()
        if left_out and len(events) == 1:
            raise ValueError(f"groups: all events are of one group, {events[0]!r}: nothing is left to learn without it")

    def output_of(self, target: Any) -> int:
        if target not in (RISK, 0):
            raise ValueError(f"target must be {RISK!r}, got {target!r}")
        return 0

    def _state(self) -> dict[str, Any]:
        beside = {method: steps.values.tolist() for method, steps in self.hazards_.items() if method != OURS}
        ours = self.baseline_
        baseline = {"times": ours.times.tolist(), "hazard": ours.values.tolist(), "beside": beside}
        return super()._state() | {"baseline": baseline, "columns": self.columns_}

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        super()._restore(fitted, tables, weights)
        baseline, self.columns_ = fitted["baseline"], fitted["columns"]
        times = np.asarray(baseline["times"], dtype=np.float64)
        values = {OURS: baseline["hazard"], **baseline["beside"]}
        self.hazards_ = {method: Steps(times, np.asarray(hazard), 0.0) for method, hazard in values.items()}

    def _check_fitted(self, fitted: dict[str, Any]) -> None:
        super()._check_fitted(fitted)
        baseline = fitted["baseline"]
        times, hazards = baseline["times"], [baseline["hazard"], *baseline["beside"].values()]
        rising = all((np.diff([0.0, *values]) >= 0).all() for values in (times, *hazards))
        if {len(hazard) for hazard in hazards} != {len(times)} or not rising:
            raise ValueError("fitted.baseline must have a hazard for each time, and both must rise from 0")


def _relative(risk: Float64[np.ndarray, " rows"]) -> Float64[np.ndarray, " rows"]:
    return np.exp(np.clip(risk, -LARGEST, LARGEST))


def events_of(event: Bool[np.ndarray, " sets"] | Float[np.ndarray, " sets"]) -> str:
    """What is learned, in words."""
    return f"survival of sets: the event was seen in {int(event.sum()):,} of {len(event):,}"


def observed(y: Any, sets: Sets) -> tuple[Float64[np.ndarray, " sets"], Bool[np.ndarray, " sets"]]:
    """Times and events in the order of the sets. Forms: see `SetSurvival.fit`.

    Raises:
        ValueError: Another form; a time that is negative or missing, an event that is neither 0 nor 1.
    """
    values, _, single = inputs.aligned(_two_columns(y), sets, "set")
    if single or values.shape[1] != 2:
        raise ValueError(f"y must hold time and event of each set, shape ({len(sets)}, 2), got {values.shape}")
    time, event = (_numbers(column, name) for column, name in zip(values.T, COLUMNS, strict=True))
    for name, column, good, bound in (
        ("time", time, (time >= 0) & np.isfinite(time), "a finite number of at least 0"),
        ("event", event, (event == 0) | (event == 1), "1 (seen) or 0 (not seen)"),
    ):
        if not good.all():
            row = int(good.argmin())
            raise ValueError(f"y[{row}]: {name} is {column[row]:g}, it must be {bound}")
    return time, event == 1


def _two_columns(y: Any) -> Any:
    if hasattr(y, "columns"):
        here = [c for c in y.columns if c != "set"]
        wanted = [*COLUMNS] if set(COLUMNS) <= set(here) else here
        return y[[*wanted, *(["set"] if "set" in y.columns else [])]]
    names = getattr(getattr(y, "dtype", None), "names", None)
    if names is None:
        return y
    truth = [name for name in names if y[name].dtype.kind == "b"]
    if len(names) != 2 or len(truth) != 1:
        raise ValueError(f"y must have one field of truth values and one of numbers, got {y.dtype}")
    (time,) = (name for name in names if name not in truth)
    return np.stack([y[time].astype(np.float64), y[truth[0]]], 1)


def _numbers(column: np.ndarray, name: str) -> Float64[np.ndarray, " rows"]:
    try:
        return column.astype(np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} must be a number: {error}") from error
