"""Times until an event, some of them not seen to their end: `SetSurvival`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from omniset.core.sets import Sets
from omniset.core.stored import StoredSet
from omniset.estimators import baselines, labels
from omniset.estimators.base import SetEstimator
from omniset.estimators.forms import sets_of
from omniset.estimators.stack import Stack
from omniset.estimators.stacking import Kind
from omniset.training import artefacts, schema
from omniset.training.cox import ranked
from omniset.trials.comparison import OURS
from omniset.trials.survival import LARGEST, Steps, breslow, concordance

RISK = "risk"
COLUMNS = ("time", "event")
FEW = 10  # events


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
        self._centre(collection)
        weights = None if sample_weight is None else labels.weights_per_set(sample_weight, collection)
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

    @property
    def kind(self) -> Kind:
        from omniset.estimators.risks import RISKS

        return RISKS

    def _centre(self, sets: Sets) -> None:
        """Choose the constant of one network; a mixture has done so fold by fold."""
        network = self.fitted()
        if not isinstance(network, Stack):
            network.head.bias.data -= float(self.predict(sets).mean())

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
            tables = baselines.by_method(self, (sets[number] for number in range(len(sets))))
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

    def probable(self, sets: Any, like: SetEstimator) -> Float[np.ndarray, "sets outputs"]:
        return self.predict(sets)[:, None]

    def explained(self, group: Sequence[StoredSet], target: Any) -> Any:
        return 0 if target is None else self.output_of(target)

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
    """The hazard relative to f = 0, of risks that are not absurd."""
    return np.exp(np.clip(risk, -LARGEST, LARGEST))


def events_of(event: Bool[np.ndarray, " sets"] | Float[np.ndarray, " sets"]) -> str:
    """What is learned, in words."""
    return f"survival of sets: the event was seen in {int(event.sum()):,} of {len(event):,}"


def observed(y: Any, sets: Sets) -> tuple[Float64[np.ndarray, " sets"], Bool[np.ndarray, " sets"]]:
    """Times and events in the order of the sets. Forms: see `SetSurvival.fit`.

    Raises:
        ValueError: Another form; a time that is negative or missing, an event that is neither 0 nor 1.
    """
    values, _, single = labels.aligned(_two_columns(y), sets, "set")
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
    """Time and event, in this order."""
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
