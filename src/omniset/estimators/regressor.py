"""Numbers of sets, or of their elements: `SetRegressor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from omniset.core.stored import StoredSet
from omniset.estimators import labels
from omniset.estimators.base import SetEstimator, target_called


class SetRegressor(SetEstimator):
    """Predict one or several numbers for a set. Arguments and attributes are those of SetEstimator."""

    classifies = False

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        return tags

    def predict(self, sets: Any, shard_size: int | None = None) -> Any:
        """The targets: (B,) if y was one number per set, else (B, targets). level="element": a row per row of the
        table, or one array per set.
        """
        collection, outputs = self._outputs(sets, shard_size)
        values = self._values(outputs)
        return self._shaped(values[:, 0] if self.single_ else values, collection)

    def score(self, sets: Any, y: Any, sample_weight: Any = None) -> float:
        """R2, averaged over targets. Elements without a label are left out.

        Args:
            sample_weight: (B,) how much each set counts, with all its elements.

        Raises:
            ValueError: Weights as in `fit`.
        """
        from sklearn.metrics import r2_score

        collection, outputs = self._outputs(sets, None)
        truth = labels.numbers(labels.aligned(y, collection, self.level)[0])
        weights = labels.weights_of_rows(sample_weight, collection, self.level)
        scores = []
        for true, predicted in zip(truth.T, self._values(outputs).T, strict=True):
            there = np.isfinite(true)
            counts = labels.weights_of_labelled(weights, there)
            scores.append(r2_score(true[there], predicted[there], sample_weight=counts))
        return float(np.mean(scores))

    def _values(self, outputs: Tensor) -> np.ndarray:
        return self.fitted().targets.undo(outputs).double().numpy()

    def _columns(self, outputs: Tensor) -> dict[str, np.ndarray]:
        return dict(zip(self.targets_, self._values(outputs).T, strict=True))

    def columns(self, answers: Float[Tensor, "rows outputs"]) -> dict[str, np.ndarray]:
        return dict(zip(self.targets_, answers.double().numpy().T, strict=True))

    def probable(self, sets: Any, like: SetEstimator) -> Float[np.ndarray, "sets outputs"]:
        return self.predict_table(sets)[like.targets_].to_numpy(np.float64)

    def constant(self, rows: int) -> pd.DataFrame:
        return pd.DataFrame({name: np.repeat(p, rows) for name, p in zip(self.targets_, self.prior_, strict=True)})

    def prior_of(self, targets: Tensor, widths: list[int]) -> list[np.ndarray]:
        columns = [column[column.isfinite()].double().numpy() for column in targets.T]
        return [np.array([values.mean() if len(values) else 0.0]) for values in columns]

    def _encode_targets(self, y: np.ndarray) -> tuple[Tensor, list[int]]:
        values = labels.numbers(y)
        bad = np.isinf(values) if self.level == "element" else ~np.isfinite(values)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            at = f"[{row}]" if self.single_ else f"[{row}, {column}]"
            raise ValueError(f"y{at} is {values[row, column]}: targets must be finite")
        for number, name in enumerate(self.targets_):
            column = values[:, number][np.isfinite(values[:, number])]
            if not len(column) or (column == column[0]).all():
                raise ValueError(
                    f"{target_called(name, len(self.targets_))} is constant in {len(column)} samples: nothing to learn"
                )
        return torch.as_tensor(values, dtype=torch.float32), [1] * values.shape[1]

    def explained(self, group: Sequence[StoredSet], target: Any) -> Any:
        return 0 if target is None else self.output_of(target)

    def output_of(self, target: Any) -> int:
        if target in self.targets_:
            return self.targets_.index(target)
        if not isinstance(target, int) or not 0 <= target < len(self.targets_):
            raise ValueError(f"target must be one of {self.targets_}, or its number, got {target!r}")
        return target
