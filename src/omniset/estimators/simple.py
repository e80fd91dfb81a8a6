"""Methods without a network that learn labels of sets from a table: a row of numbers for each set.

These are pooled features (`omniset.estimators.pooling`), or distances to other sets (`omniset.estimators.references`).
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Float32, Float64, Int, Shaped

from omniset.estimators.pooling import means_of
from omniset.estimators.trees import Trees

Table = Float32[np.ndarray, "rows columns"]
Outputs = Float64[np.ndarray, "rows classes"] | Float64[np.ndarray, " rows"]
State = dict[str, np.ndarray]

POOLED, DISTANCES = "pooled features", "distances"  # of `pooling` and of `references`: what a member sees

TREES = 300
SAMPLED = 10_000  # rows that a tree sees at most


class Member(ABC):
    """Learns one target from a table with a row per set.

    With n rows of weights w_i, and classes, a method's p is mixed with the prior as one more row would count:

        n / (n + 1) p + 1 / (n + 1) prior,     prior_k = (1 / K + sum over i of class k of w_i) / (1 + sum_i w_i)

    so that no class is ever impossible. NaN in the table is replaced by the mean of its column in training.

    Args:
        classes: K, or None for a number.

    Attributes:
        sees: Which table.
        prior: (K,) how frequent each class is; or (1,), the mean.
        fill: The means of the columns.
    """

    name: ClassVar[str]
    sees: ClassVar[str] = POOLED

    def __init__(self, classes: int | None) -> None:
        self.classes = classes

    def fit(
        self,
        x: Table,
        y: Shaped[np.ndarray, " rows"],
        weights: Float[np.ndarray, " rows"] | None = None,
        seed: int = 0,
        groups: Shaped[np.ndarray, " rows"] | None = None,
    ) -> Member:
        """Learn.

        Args:
            y: Classes from 0, or numbers. Not every class has to be there.
            weights: How much each row counts, >= 0; only their proportions matter. Default: all the same.
            groups: Rows of one group are not split where a penalty is chosen.
        """
        w = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64)
        rows = w > 0
        x, y, w = x[rows], y[rows], w[rows] / w[rows].mean()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a column of nothing but NaN
            self.fill = np.nan_to_num(np.nanmean(x, 0, dtype=np.float64)).astype(np.float32)
        self.rows = len(x)
        if self.classes is None:
            self.prior = np.array([w @ y / w.sum()])
        else:
            self.prior = (np.bincount(y, w, self.classes) + 1 / self.classes) / (w.sum() + 1)
        self._learns = bool((y != y[0]).any())
        if self._learns:
            self._fit(self.inputs(x), y, w, seed, None if groups is None else groups[rows])
        return self

    def predict(self, x: Table) -> Outputs:
        """Probabilities of the classes, or numbers."""
        if not self._learns:
            return self._constant(len(x))
        predicted = self._predict(self.inputs(x))
        if self.classes is None:
            return predicted
        return (self.rows * predicted + self.prior) / (self.rows + 1)

    def state(self) -> State:
        """All that predicting needs."""
        common = {"prior": self.prior, "fill": self.fill, "rows": np.array(self.rows)}
        return common | {"learns": np.array(self._learns)} | (self._state() if self._learns else {})

    def restore(self, state: State) -> Member:
        self.prior, self.fill, self.rows = state["prior"], state["fill"], int(state["rows"])
        self._learns = bool(state["learns"])
        if self._learns:
            self._restore(state)
        return self

    @classmethod
    def columns(cls, width: int) -> slice:
        """Of a table of so many columns, those that are looked at."""
        return slice(width)

    def inputs(self, x: Table) -> Float32[np.ndarray, "rows seen"]:
        """What is looked at, without NaN."""
        return np.where(np.isnan(x), self.fill, x)[:, self.columns(x.shape[1])]

    def _constant(self, rows: int) -> Outputs:
        return np.repeat(self.prior, rows) if self.classes is None else np.tile(self.prior, (rows, 1))

    @abstractmethod
    def _fit(self, x: Table, y: np.ndarray, w: np.ndarray, seed: int, groups: np.ndarray | None) -> None: ...

    @abstractmethod
    def _predict(self, x: Table) -> Outputs: ...

    @abstractmethod
    def _state(self) -> State: ...

    @abstractmethod
    def _restore(self, state: State) -> None: ...


class Prior(Member):
    """Looks at no set: how frequent each class is, or the mean."""

    name = "prior"

    def _fit(self, x: Table, y: np.ndarray, w: np.ndarray, seed: int, groups: np.ndarray | None) -> None:
        pass

    def _predict(self, x: Table) -> Outputs:
        return self._constant(len(x))

    def _state(self) -> State:
        return {}

    def _restore(self, state: State) -> None:
        pass


class PooledForest(Member):
    """Extremely randomised trees (Geurts, Ernst and Wehenkel, 2006): 300, grown out, as many columns per split as the
    root of their number. Of more than 10,000 rows each tree sees 10,000, drawn with replacement.
    """

    name = "pooled-forest"
    randomised: ClassVar[bool] = True
    trees: Trees

    def _fit(self, x: Table, y: np.ndarray, w: np.ndarray, seed: int, groups: np.ndarray | None) -> None:
        from sklearn import ensemble

        name = ("ExtraTrees" if self.randomised else "RandomForest") + (
            "Regressor" if self.classes is None else "Classifier"
        )
        many = len(x) > SAMPLED
        options: dict[str, Any] = {"max_samples": SAMPLED} if many else {}
        options |= {
            "bootstrap": many or not self.randomised,
            "max_features": "sqrt" if self.randomised or self.classes else 1 / 3,
        }
        forest = getattr(ensemble, name)(TREES, random_state=seed, **options).fit(x, y, w)
        self.trees = Trees.of(forest.estimators_)
        if self.classes is not None:
            self.trees.value = of_all_classes(self.trees.value, forest.classes_, self.classes)

    def _predict(self, x: Table) -> Outputs:
        out = self.trees.means(x)
        return out[:, 0] if self.classes is None else out

    def _state(self) -> State:
        return self.trees.state()

    def _restore(self, state: State) -> None:
        self.trees = Trees.restored(state)


class MeanForest(PooledForest):
    """A random forest (Breiman, 2001) that sees the means of the features and nothing else: what takes ten lines."""

    name = "mean-forest"
    randomised = False

    @classmethod
    def columns(cls, width: int) -> slice:
        return means_of(width)


def of_all_classes(
    some: Float[np.ndarray, "rows known"], known: Int[np.ndarray, " known"], classes: int
) -> Float64[np.ndarray, "rows classes"]:
    """A column for each class, 0 for those that are not known."""
    every = np.zeros((len(some), classes))
    every[:, known] = some
    return every


def softmax(out: Float64[np.ndarray, "rows outputs"]) -> Float64[np.ndarray, "rows outputs"]:
    raised = np.exp(out - out.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)
