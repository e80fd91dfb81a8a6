"""Classes and numbers of sets, or of their elements: `SetClassifier` and `SetRegressor`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from omniset.core.sets import Sets
from omniset.core.stored import StoredSet
from omniset.estimators import inputs
from omniset.estimators.base import SetEstimator, target_called
from omniset.estimators.mixture import NumberMixture, columns_of_targets
from omniset.estimators.model import SetModel
from omniset.runs.devices import find
from omniset.training import artefacts, schema
from omniset.trials.stacking import log_losses


class SetClassifier(SetEstimator):
    """Classify sets. Arguments and attributes are those of SetEstimator, and `classes_`, the labels in order.

    With several targets `classes_` is a list of such arrays, and `predict` and `predict_proba` are as scikit-learn's
    for several outputs: (B, targets), and a list of (B, classes).

    >>> sets = [[[0.0], [0.1]], [[5.0]], [[0.2]], [[5.1], [4.9], [5.0]]] * 3
    >>> model = SetClassifier(folds=3, repeats=1, epochs=20, progress=False, device="cpu")
    >>> model = model.fit(sets, ["low", "high"] * 6)
    >>> model.predict([[[0.05]], [[5.2], [5.0]]]).tolist()
    ['low', 'high']
    """

    FITTED: ClassVar[dict[str, Any]] = SetEstimator.FITTED | {
        "classes": schema.array(schema.array({"type": ["string", "number", "boolean"]}, minItems=1))
    }

    classifies = True

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        return tags

    @property
    def classes_(self) -> Any:
        if not hasattr(self, "_classes"):
            raise AttributeError("classes_ is there after fit")
        return self._classes[0] if self.single_ else self._classes

    @property
    def labels_(self) -> dict[str, list[Any]]:
        """The labels in order, by target."""
        return {name: classes.tolist() for name, classes in zip(self.targets_, self._classes, strict=True)}

    def predict_proba(self, sets: Any, shard_size: int | None = None) -> Any:
        """Probabilities (B, classes), columns as in `classes_`. With several targets a list; level="element": a row per
        row of the table, or one array per set. shard_size: default that of the model; the result is the same.
        """
        collection, outputs = self._outputs(sets, shard_size)
        probabilities = [self._shaped(p, collection) for p in self._probabilities(outputs)]
        return probabilities[0] if self.single_ else probabilities

    def predict(self, sets: Any, shard_size: int | None = None) -> Any:
        """The most probable label of each set (or element, in the form of `predict_proba`)."""
        collection, outputs = self._outputs(sets, shard_size)
        predicted = self._labels(outputs)
        same = len({c.dtype.kind for c in self._classes}) == 1
        columns = np.stack(predicted if same else [c.astype(object) for c in predicted], 1)
        return self._shaped(columns[:, 0] if self.single_ else columns, collection)

    def score(self, sets: Any, y: Any) -> float:
        """Accuracy; of several targets the mean. Elements without a label are left out.

        Raises:
            ValueError: A label that was not in training.
        """
        collection, outputs = self._outputs(sets, None)
        truth = inputs.aligned(y, collection, self.level)[0]
        shares = []
        for number, predicted in enumerate(self._labels(outputs)):
            there = ~inputs.missing(truth[:, number])
            values = truth[there, number]
            inputs.require_trained(values, self._classes[number])
            shares.append(float(np.mean(predicted[there] == values)))
        return float(np.mean(shares))

    def _probabilities(self, outputs: Tensor) -> list[np.ndarray]:
        return [o.double().softmax(1).numpy() for o in self.fitted().split(outputs)]

    def _labels(self, outputs: Tensor) -> list[np.ndarray]:
        return [c[o.argmax(1).numpy()] for c, o in zip(self._classes, self.fitted().split(outputs), strict=True)]

    def _columns(self, outputs: Tensor) -> dict[str, np.ndarray]:
        return self._named(self._labels(outputs), self._probabilities(outputs))

    def columns(self, answers: Float[Tensor, "rows outputs"]) -> dict[str, np.ndarray]:
        return self._named(self._labels(answers), [part.numpy() for part in self.fitted().split(answers)])

    def probable(self, sets: Any, like: SetModel) -> Float[np.ndarray, "sets outputs"]:
        table = self.predict_table(sets)
        assert isinstance(like, SetClassifier)
        names = [name for columns in like.probability_columns().values() for name in columns.values()]
        return table.reindex(columns=names, fill_value=0.0).to_numpy(np.float64)

    def constant(self, rows: int) -> pd.DataFrame:
        most = [c[[p.argmax()] * rows] for c, p in zip(self._classes, self.prior_, strict=True)]
        return pd.DataFrame(self._named(most, [np.tile(p, (rows, 1)) for p in self.prior_]))

    def _named(self, predicted: list[np.ndarray], probabilities: list[np.ndarray]) -> dict[str, np.ndarray]:
        named = dict(zip(self.targets_, predicted, strict=True))
        for names, columns in zip(self.probability_columns().values(), probabilities, strict=True):
            named |= dict(zip(names.values(), columns.T, strict=True))
        return named

    def probability_columns(self) -> dict[str, dict[str, str]]:
        """The columns of `predict_table` with probabilities: for each target, by label in order."""
        return {
            name: {str(c): f"p_{c}" if len(self.targets_) == 1 else f"p_{name}_{c}" for c in classes}
            for name, classes in self.labels_.items()
        }

    def _encode_targets(self, y: np.ndarray) -> tuple[Tensor, list[int]]:
        self._classes: list[np.ndarray] = []
        codes = np.full(y.shape, -1)
        for number, name in enumerate(self.targets_):
            there = ~inputs.missing(y[:, number])
            if inputs.continuous(y[there, number]):
                raise ValueError(
                    f"{target_called(name, len(self.targets_))} is continuous, numbers with fractions that are hardly "
                    "there twice: they are no classes; SetRegressor predicts numbers"
                )
            classes, codes[there, number] = np.unique(y[there, number].tolist(), return_inverse=True)
            if len(classes) < 2:
                number_of = f"only one class, {classes.tolist()[0]!r}" if len(classes) else "no labels"
                raise ValueError(f"{target_called(name, len(self.targets_))} has {number_of}: nothing to learn")
            self._classes.append(classes)
        return torch.as_tensor(codes), [len(c) for c in self._classes]

    def prior_of(self, targets: Tensor, widths: list[int]) -> list[np.ndarray]:
        codes = [column[column >= 0].numpy() for column in targets.T]
        counts = [np.bincount(some, minlength=width) for some, width in zip(codes, widths, strict=True)]
        return [number / max(number.sum(), 1) for number in counts]

    def warn_of_classes(self, y: np.ndarray, codes: Tensor) -> None:
        for doubt in inputs.doubts(y, self.targets_, self.level):
            warnings.warn(doubt, stacklevel=3)
        for number, (name, classes) in enumerate(zip(self.targets_, self._classes, strict=True)):
            lacking = [c for i, c in enumerate(classes.tolist()) if not bool((codes[:, number] == i).any())]
            if lacking:
                warnings.warn(
                    f"{name}: no training set has {', '.join(map(repr, lacking[:5]))}, only sets kept back have: the "
                    "model cannot learn it",
                    stacklevel=3,
                )

    def truth(self, y: Any, sets: Sets) -> Shaped[np.ndarray, "rows targets"]:
        truth = inputs.aligned(y, sets, self.level)[0]
        for column, classes in zip(truth.T, self.labels_.values(), strict=True):
            inputs.require_trained(column[~inputs.missing(column)], np.asarray(classes))
        return truth

    def codes(self, truth: Shaped[np.ndarray, "sets targets"]) -> Shaped[np.ndarray, "sets columns"]:
        codes = np.empty(truth.shape, dtype=np.int64)
        for number, (column, classes) in enumerate(zip(truth.T, self.labels_.values(), strict=True)):
            places = {str(label): place for place, label in enumerate(classes)}
            codes[:, number] = [places[str(label)] for label in column.tolist()]
        return codes

    def losses(
        self, outputs: Float64[np.ndarray, "sets outputs"], codes: Shaped[np.ndarray, "sets columns"]
    ) -> Float64[np.ndarray, "sets targets"]:
        parts = columns_of_targets(self.fitted().widths)
        return np.stack([log_losses(outputs[:, p], y) for p, y in zip(parts, codes.T, strict=True)], 1)

    def _require_spread(self, targets: Shaped[Tensor, "sets targets"], groups: inputs.Groups, left_out: bool) -> None:
        for (name, classes), codes in zip(self.labels_.items(), targets.numpy().T, strict=True):
            of_class = {label: np.unique(groups[codes == code]).tolist() for code, label in enumerate(classes)}
            inputs.require_spread(name, of_class)

    def explained(self, group: Sequence[StoredSet], target: Any) -> Any:
        if target is not None:
            return self.output_of(target)
        outputs = torch.cat([some for _, parts in self.outputs(group) for some in parts])
        return self.fitted().split(outputs)[0].argmax(1).to(find(self.device))

    def output_of(self, target: Any) -> int:
        classes = self._classes[0]
        places = np.flatnonzero(classes == target)
        if not len(places):
            raise ValueError(f"target must be one of {classes.tolist()[:20]}, got {target!r}")
        return int(places[0])

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"classes": [c.tolist() for c in self._classes]}

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        super()._restore(fitted, tables, weights)
        self._classes = [np.asarray(c) for c in fitted["classes"]]

    def _check_fitted(self, fitted: dict[str, Any]) -> None:
        super()._check_fitted(fitted)
        numbers = [len(classes) for classes in fitted["classes"]]
        if numbers != fitted["widths"]:
            raise ValueError(
                f"fitted.classes must be as many as the outputs of each target, {fitted['widths']}, got {numbers}"
            )


class SetRegressor(SetEstimator):
    """Predict one or several numbers for a set. Arguments and attributes are those of SetEstimator."""

    classifies = False
    MIXTURE = NumberMixture

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

    def score(self, sets: Any, y: Any) -> float:
        """R2, averaged over targets. Elements without a label are left out."""
        from sklearn.metrics import r2_score

        collection, outputs = self._outputs(sets, None)
        truth = inputs.numbers(inputs.aligned(y, collection, self.level)[0])
        scores = []
        for true, predicted in zip(truth.T, self._values(outputs).T, strict=True):
            there = np.isfinite(true)
            scores.append(r2_score(true[there], predicted[there]))
        return float(np.mean(scores))

    def _values(self, outputs: Tensor) -> np.ndarray:
        return self.fitted().targets.undo(outputs).double().numpy()

    def _columns(self, outputs: Tensor) -> dict[str, np.ndarray]:
        return dict(zip(self.targets_, self._values(outputs).T, strict=True))

    def columns(self, answers: Float[Tensor, "rows outputs"]) -> dict[str, np.ndarray]:
        return dict(zip(self.targets_, answers.double().numpy().T, strict=True))

    def probable(self, sets: Any, like: SetModel) -> Float[np.ndarray, "sets outputs"]:
        return self.predict_table(sets)[like.targets_].to_numpy(np.float64)

    def constant(self, rows: int) -> pd.DataFrame:
        return pd.DataFrame({name: np.repeat(p, rows) for name, p in zip(self.targets_, self.prior_, strict=True)})

    def prior_of(self, targets: Tensor, widths: list[int]) -> list[np.ndarray]:
        columns = [column[column.isfinite()].double().numpy() for column in targets.T]
        return [np.array([values.mean() if len(values) else 0.0]) for values in columns]

    def _encode_targets(self, y: np.ndarray) -> tuple[Tensor, list[int]]:
        values = inputs.numbers(y)
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

    def truth(self, y: Any, sets: Sets) -> Shaped[np.ndarray, "rows targets"]:
        return inputs.numbers(inputs.aligned(y, sets, self.level)[0])

    def codes(self, truth: Shaped[np.ndarray, "sets targets"]) -> Shaped[np.ndarray, "sets columns"]:
        return truth

    def losses(
        self, outputs: Float64[np.ndarray, "sets outputs"], codes: Shaped[np.ndarray, "sets columns"]
    ) -> Float64[np.ndarray, "sets targets"]:
        return np.square(outputs - codes)

    def output_of(self, target: Any) -> int:
        if target in self.targets_:
            return self.targets_.index(target)
        if not isinstance(target, int) or not 0 <= target < len(self.targets_):
            raise ValueError(f"target must be one of {self.targets_}, or its number, got {target!r}")
        return target
