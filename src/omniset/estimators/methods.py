"""Methods without a network that learn labels of sets from a table: a row of numbers for each set.

These are pooled features (`omniset.estimators.pooling`), or distances to other sets (`omniset.estimators.distances`):
a forest on the former, logistic regression or ridge on the latter, and the prior, which looks at neither.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Float32, Float64, Int, Shaped

from omniset.estimators.inputs import folds_of
from omniset.runs.devices import one_blas_thread

Table = Float32[np.ndarray, "rows columns"]
Outputs = Float64[np.ndarray, "rows classes"] | Float64[np.ndarray, " rows"]
State = dict[str, np.ndarray]

POOLED, DISTANCES = "pooled features", "distances"  # of `pooling` and of `references`: what a method sees
ELEMENTS, IN_SETS = "elements", "elements in their sets"  # features; the same beside the pooled features of the set


class Method(ABC):
    """Learns one target from a table with a row per set.

    With n rows of weights w_i, and classes, a method's p is mixed with the prior as one more row would count:

        n / (n + 1) p + 1 / (n + 1) prior,     prior_k = (1 / K + sum over i of class k of w_i) / (1 + sum_i w_i)

    so that no class is ever impossible. NaN in the table is replaced by the mean of its column in training.

    Args:
        classes: K, or None for a number.

    Attributes:
        sees: Which table.
        STATE: Arrays that predicting needs, beside those of every method.
        prior: (K,) how frequent each class is; or (1,), the mean.
        fill: The means of the columns.
    """

    name: ClassVar[str]
    sees: ClassVar[str] = POOLED
    STATE: ClassVar[tuple[str, ...]] = ()

    def __init__(self, classes: int | None) -> None:
        self.classes = classes

    def fit(
        self,
        x: Table,
        y: Shaped[np.ndarray, " rows"],
        weights: Float[np.ndarray, " rows"] | None = None,
        seed: int = 0,
        groups: Shaped[np.ndarray, " rows"] | None = None,
    ) -> Method:
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
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The number of unique classes")  # few sets of a class are noted once
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

    def restore(self, state: State) -> Method:
        self.prior, self.fill, self.rows = state["prior"], state["fill"], int(state["rows"])
        self._learns = bool(state["learns"])
        if self._learns:
            self._restore(state)
        return self

    def inputs(self, x: Table) -> Float32[np.ndarray, "rows seen"]:
        """What is looked at, without NaN."""
        return np.where(np.isnan(x), self.fill, x)

    def _constant(self, rows: int) -> Outputs:
        return np.repeat(self.prior, rows) if self.classes is None else np.tile(self.prior, (rows, 1))

    @abstractmethod
    def _fit(self, x: Table, y: np.ndarray, w: np.ndarray, seed: int, groups: np.ndarray | None) -> None: ...

    @abstractmethod
    def _predict(self, x: Table) -> Outputs: ...

    def _state(self) -> State:
        return {name: getattr(self, name) for name in self.STATE}

    def _restore(self, state: State) -> None:
        for name in self.STATE:
            setattr(self, name, state[name])


class Prior(Method):
    """Looks at no set: how frequent each class is, or the mean."""

    name = "prior"

    def _fit(self, x: Table, y: np.ndarray, w: np.ndarray, seed: int, groups: np.ndarray | None) -> None:
        pass

    def _predict(self, x: Table) -> Outputs:
        return self._constant(len(x))


# ---------------------------------------------------------------------- forest

TREES = 300
LEAF = 3  # rows of a leaf, of numbers
SAMPLED = 10_000  # rows that a tree sees at most
ROWS_AND_TREES = 1 << 15  # that go down at once, so that a cache holds where they are
CHECKED = 64  # rows
SMALL = (np.uint8, np.int16, np.int32, np.float16, np.float32)


class PooledForest(Method):
    """Extremely randomised trees (Geurts, Ernst and Wehenkel, 2006): 300, grown out, as many columns per split as the
    root of their number; of numbers a leaf has at least 3 rows, as a single one may be an outlier. Of more than 10,000
    rows each tree sees 10,000, drawn with replacement.
    """

    name = "pooled-forest"
    trees: Trees

    def _fit(self, x: Table, y: np.ndarray, w: np.ndarray, seed: int, groups: np.ndarray | None) -> None:
        known, codes = (None, y) if self.classes is None else np.unique(y, return_inverse=True)
        trees = self.trees = Trees.of(self._grown(x, codes, w, seed))
        below = trees.threshold.astype(np.float32)  # as the table is: rounded down, all rows go where they went
        trees.threshold = small(np.where(below > trees.threshold, np.nextafter(below, np.float32(-np.inf)), below))
        trees.value = small(trees.value.astype(np.float32))
        if known is not None:
            trees.output = small(known[trees.output])

    def _grown(self, x: Table, y: np.ndarray, w: np.ndarray, seed: int) -> Iterator[Any]:
        """The trees of scikit-learn's `ExtraTreesClassifier` or `ExtraTreesRegressor`, one after the other.

        Each of theirs holds a share of every class at every node: all at once they would not fit into memory.
        """
        from sklearn import tree

        maker: Any = tree.ExtraTreeRegressor if self.classes is None else tree.ExtraTreeClassifier
        leaf = LEAF if self.classes is None else 1
        seeds = np.random.RandomState(seed)
        for _ in range(TREES):
            state = seeds.randint(np.iinfo(np.int32).max)
            if len(x) > SAMPLED:
                drawn = np.random.RandomState(state).choice(len(x), SAMPLED, p=w / w.sum())
                counts = np.bincount(drawn, minlength=len(x)).astype(np.float64)
            how: dict[str, Any] = {"max_features": "sqrt", "min_samples_leaf": leaf, "random_state": state}
            yield maker(**how).fit(x, y, w if len(x) <= SAMPLED else counts)

    def _predict(self, x: Table) -> Outputs:
        out = self.trees.means(x, self.classes or 1)
        return out[:, 0] if self.classes is None else out

    def _state(self) -> State:
        return self.trees.state()

    def _restore(self, state: State) -> None:
        self.trees = Trees.restored(state)


class ElementForest(PooledForest):
    """The same on an element's own features, of labels of elements."""

    name = "element-forest"
    sees = ELEMENTS


class ContextForest(PooledForest):
    """The same on an element's own features and the pooled ones of its set."""

    name = "context-forest"
    sees = IN_SETS


def small(numbers: Shaped[np.ndarray, " numbers"]) -> Shaped[np.ndarray, " numbers"]:
    """The same numbers, in the first of some types that holds all of them."""
    with np.errstate(all="ignore"):
        made = (numbers.astype(kind) for kind in SMALL)
        return next((each for each in made if (each == numbers).all()), numbers)


@dataclass
class Trees:
    """Trees whose nodes are numbered through, each before all below it: the left child of a node is the next node.

    From its root a row x goes left where x[feature] <= threshold, else right, until it is at a leaf. What a tree says
    of the rows that end there are the entries of the leaf: of output[entry] its value[entry], of all other outputs 0. A
    tree that is grown out knows one class at most leaves, so that a forest is as large as its rows are many, however
    many classes there are; and all is in small types: of ten classes and a thousand rows six bytes a node.

    Attributes:
        depth: Of the deepest tree.
        roots: A node per tree.
        feature, threshold: Of the nodes that are no leaves, one after the other.
        right: How many nodes further on the right child is; 0 of a leaf.
        number: Entries of each leaf, one after the other.
    """

    depth: int
    roots: Shaped[np.ndarray, " trees"]
    feature: Shaped[np.ndarray, " splits"]
    threshold: Shaped[np.ndarray, " splits"]
    right: Shaped[np.ndarray, " nodes"]
    number: Shaped[np.ndarray, " leaves"]
    output: Shaped[np.ndarray, " entries"]
    value: Shaped[np.ndarray, " entries"]

    @classmethod
    def of(cls, fitted: Iterable[Any]) -> Trees:
        """The trees of fitted `DecisionTreeClassifier`s or `DecisionTreeRegressor`s, by their public `tree_`.

        Of each what is kept is copied before the next one is asked for: views would keep the whole tree.
        """
        parts = []
        depth = 0
        for each in fitted:
            tree = each.tree_
            leaf = tree.children_left < 0
            values = tree.value[leaf, 0]
            number = np.zeros(tree.node_count, dtype=np.int64)
            number[leaf] = np.count_nonzero(values, 1)
            of_nodes = (tree.children_left, tree.children_right, np.maximum(tree.feature, 0), tree.threshold, number)
            parts.append([column.copy() for column in (*of_nodes, values.nonzero()[1], values[values.nonzero()])])
            depth = max(depth, tree.max_depth)
        left, right, feature, threshold, *entries = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls._numbered([len(part[0]) for part in parts], feature, threshold, (left, right), entries, depth)

    @classmethod
    def _numbered(
        cls,
        sizes: Sequence[int],
        feature: np.ndarray,
        threshold: Float[np.ndarray, " nodes"],
        children: Sequence[np.ndarray],
        entries: Sequence[np.ndarray],
        depth: int,
    ) -> Trees:
        """Of trees one after the other: children by number in the tree, those of leaves below 0; how many entries each
        node has, their outputs and their values.
        """
        roots = np.cumsum([0, *sizes[:-1]])
        (left, right), itself = children, np.arange(len(feature)) - np.repeat(roots, sizes)
        splits = right >= 0
        if (left[splits] != itself[splits] + 1).any():
            raise ValueError("this version of scikit-learn numbers the nodes of trees in a way that is not known here")
        number, output, value = entries
        further = np.where(splits, right - itself, 0)
        columns = (roots, feature[splits], threshold[splits], further, number[~splits], output, value)
        return cls(int(depth), *map(small, columns))

    @classmethod
    def of_histograms(cls, model: Any) -> tuple[Trees, float]:
        """The trees of a fitted `HistGradientBoostingRegressor` of numbers without NaN, and the value they add to.

        scikit-learn has no public name for them: that they say the same as the model is seen on the thresholds.

        Raises:
            ValueError: They do not, as of a version of scikit-learn that stores them otherwise.
        """
        trees = [tree.nodes for (tree,) in model._predictors]
        nodes = np.concatenate(trees)
        leaf = nodes["is_leaf"].astype(bool)
        feature, threshold = np.where(leaf, 0, nodes["feature_idx"]), np.where(leaf, 0.0, nodes["num_threshold"])
        children = [np.where(leaf, -1, nodes[side].astype(np.int64)) for side in ("left", "right")]
        entries = (leaf, np.zeros(leaf.sum()), nodes["value"][leaf])
        made = cls._numbered([*map(len, trees)], feature, threshold, children, entries, int(nodes["depth"].max()))
        start = float(np.ravel(model._baseline_prediction)[0])
        rows = np.resize(made.threshold.astype(np.float64), (CHECKED, model.n_features_in_))
        if not np.allclose(start + len(trees) * made.means(rows)[:, 0], model.predict(rows), rtol=1e-9, atol=1e-12):
            raise ValueError("this version of scikit-learn stores boosted trees in a way that is not known here")
        return made, start

    def means(self, x: Float[np.ndarray, "rows columns"], outputs: int = 1) -> Float64[np.ndarray, "rows outputs"]:
        """The mean over trees."""
        out = np.empty((len(x), outputs))
        entries = np.zeros(len(self.right) + 1, dtype=np.int64)
        entries[1:][self.right == 0] = self.number
        starts = entries.cumsum()
        for some, leaves in self._leaves(x):
            first, end = starts.take(leaves), starts.take(leaves + 1)
            number = (end - first).reshape(-1)
            entry = np.repeat(end.reshape(-1) - number.cumsum(), number) + np.arange(number.sum())
            place = np.repeat(outputs * np.arange(len(leaves)), (end - first).sum(1)) + self.output.take(entry)
            sums = np.bincount(place, self.value.take(entry), outputs * len(leaves))
            out[some] = sums.reshape(-1, outputs) / len(self.roots)
        return out

    def _leaves(self, x: Float[np.ndarray, "rows columns"]) -> Iterator[tuple[slice, Int[np.ndarray, "some trees"]]]:
        """The leaf of each row in each tree, some rows at a time. Places are flat: `take` finds them fastest."""
        numbers, columns = np.ascontiguousarray(x).reshape(-1), x.shape[1]
        splits, node = self.right > 0, np.arange(len(self.right))
        children = np.stack([node + self.right, node + splits], 1).reshape(-1)  # a leaf's are the leaf itself
        feature, threshold = np.zeros(len(node), dtype=np.intp), np.zeros(len(node), self.threshold.dtype)
        feature[splits], threshold[splits] = self.feature, self.threshold
        size = max(ROWS_AND_TREES // len(self.roots), 1)
        for start in range(0, len(x), size):
            rows = np.arange(start, min(start + size, len(x)))
            first = columns * rows[:, None]
            node = np.repeat(self.roots[None].astype(np.intp), len(rows), 0)
            for _ in range(self.depth):
                goes_left = numbers.take(feature.take(node) + first) <= threshold.take(node)
                node = children.take(2 * node + goes_left)
            yield slice(start, start + len(rows)), node

    def state(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(value) for name, value in vars(self).items()}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Trees:
        return cls(**{name: state[name] for name in cls.__dataclass_fields__} | {"depth": int(state["depth"])})


# ---------------------------------------------------------------------- linear

VARIANCES = tuple(10.0 ** (k / 2) for k in range(-6, 7))  # of what the columns together say, before it is learned
FOLDS = 5
CHOSEN_ON = 5_000  # rows that the variance is chosen on, at most
LEFT_OUT = 1_000  # rows left out that are enough to choose it
ROTATED = 2_000  # rows up to which more columns than rows are rotated
LARGEST = 3.0  # standard deviations from the mean at which a column stops to say more


class PooledLinear(Method):
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
    STATE = ("mean", "per_unit", "slope", "intercept")
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
        slope, level = model.coef_.T, model.intercept_
        if len(model.classes_) == 2:
            slope, level = np.concatenate([0 * slope, slope], 1), np.append(0.0, level)
        intercept = np.full(self.classes or 0, -50.0)
        intercept[model.classes_] = level
        return of_all_classes(slope, model.classes_, self.classes or 0), intercept

    def _predict(self, x: Table) -> Outputs:
        out = self._standardised(x) @ self.slope + self.intercept
        return out[:, 0] if self.classes is None else softmax(out)


class DissimilarityLinear(PooledLinear):
    """The same on the distances of a set to the sets that were learned from, in place of its pooled features."""

    name = "dissimilarity-linear"
    sees = DISTANCES


def _rotation(z: Float64[np.ndarray, "rows columns"]) -> Float64[np.ndarray, "columns rank"]:
    values, vectors = np.linalg.eigh(z @ z.T)
    there = values > 1e-10 * values[-1]
    return z.T @ (vectors[:, there] / np.sqrt(values[there]))


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
