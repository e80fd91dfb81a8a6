"""Decision trees as arrays: what scikit-learn has fitted, kept and read without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

ROWS_AND_TREES = 1 << 15  # that go down at once, so that a cache holds where they are
CHECKED = 64  # rows


@dataclass
class Trees:
    """Trees whose nodes are numbered through.

    From its root a row x goes left where x[feature] <= threshold, in float32 as in scikit-learn (of histograms in
    float64), else right, until it is at a leaf, whose left and right is the leaf itself.

    Attributes:
        roots: A node per tree.
        value: What a tree says of the rows that end at a node.
        depth: Of the deepest tree.
    """

    roots: Int[np.ndarray, " trees"]
    feature: Int[np.ndarray, " nodes"]
    threshold: Float[np.ndarray, " nodes"]
    left: Int[np.ndarray, " nodes"]
    right: Int[np.ndarray, " nodes"]
    value: Float[np.ndarray, "nodes outputs"]
    depth: int

    @classmethod
    def of(cls, fitted: Sequence[Any]) -> Trees:
        """The trees of fitted `DecisionTreeClassifier`s or `DecisionTreeRegressor`s, by their public `tree_`."""
        trees = [tree.tree_ for tree in fitted]
        sizes = np.array([tree.node_count for tree in trees])
        roots = np.concatenate([[0], sizes.cumsum()[:-1]])
        parts: dict[str, list[np.ndarray]] = {"left": [], "right": []}
        for tree, root in zip(trees, roots, strict=True):
            leaf = tree.children_left < 0
            itself = np.arange(tree.node_count)
            parts["left"].append(root + np.where(leaf, itself, tree.children_left))
            parts["right"].append(root + np.where(leaf, itself, tree.children_right))
        return cls(
            roots.astype(np.int32),
            np.concatenate([np.maximum(tree.feature, 0) for tree in trees]).astype(np.int32),
            np.concatenate([tree.threshold for tree in trees]),
            np.concatenate(parts["left"]).astype(np.int32),
            np.concatenate(parts["right"]).astype(np.int32),
            np.concatenate([tree.value[:, 0] for tree in trees]),
            max(tree.max_depth for tree in trees),
        )

    @classmethod
    def of_histograms(cls, model: Any) -> tuple[Trees, float]:
        """The trees of a fitted `HistGradientBoostingRegressor` of numbers without NaN, and the value they add to.

        scikit-learn has no public name for them: that they say the same as the model is seen on the thresholds.

        Raises:
            ValueError: They do not, as of a version of scikit-learn that stores them otherwise.
        """
        trees = [tree.nodes for (tree,) in model._predictors]
        sizes = np.array([len(nodes) for nodes in trees])
        roots = np.concatenate([[0], sizes.cumsum()[:-1]])
        nodes = np.concatenate(trees)
        first, itself = np.repeat(roots, sizes), np.arange(len(nodes))
        leaf = nodes["is_leaf"].astype(bool)
        made = cls(
            roots.astype(np.int32),
            np.where(leaf, 0, nodes["feature_idx"]).astype(np.int32),
            np.where(leaf, 0.0, nodes["num_threshold"]),
            np.where(leaf, itself, first + nodes["left"]).astype(np.int32),
            np.where(leaf, itself, first + nodes["right"]).astype(np.int32),
            nodes["value"][:, None].copy(),
            int(nodes["depth"].max()),
        )
        start = float(np.ravel(model._baseline_prediction)[0])
        rows = np.resize(made.threshold, (CHECKED, model.n_features_in_))
        if not np.allclose(start + len(roots) * made.means(rows)[:, 0], model.predict(rows), rtol=1e-9, atol=1e-12):
            raise ValueError("this version of scikit-learn stores boosted trees in a way that is not known here")
        return made, start

    def means(self, x: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows outputs"]:
        """The mean over trees."""
        out = np.empty((len(x), self.value.shape[1]))
        for some, leaves in self._leaves(x):
            out[some] = self.value[leaves].mean(1)
        return out

    def totals(self, x: Float[np.ndarray, "rows columns"], rounds: int) -> Float[np.ndarray, "rows outputs"]:
        """The sum over rounds, where each round has one tree with a single value per output, one after another."""
        outputs = len(self.roots) // rounds
        out = np.empty((len(x), outputs))
        for some, leaves in self._leaves(x):
            out[some] = self.value[leaves, 0].reshape(len(leaves), rounds, outputs).sum(1)
        return out

    def _leaves(self, x: Float[np.ndarray, "rows columns"]) -> Iterator[tuple[slice, Int[np.ndarray, "some trees"]]]:
        """The leaf of each row in each tree, some rows at a time. Places are flat: `take` finds them fastest."""
        numbers, columns = np.ascontiguousarray(x).reshape(-1), x.shape[1]
        feature = self.feature.astype(np.intp)
        children = np.stack([self.right, self.left], 1).reshape(-1).astype(np.intp)
        size = max(ROWS_AND_TREES // len(self.roots), 1)
        for start in range(0, len(x), size):
            rows = np.arange(start, min(start + size, len(x)))
            first = columns * rows[:, None]
            node = np.repeat(self.roots[None].astype(np.intp), len(rows), 0)
            for _ in range(self.depth):
                goes_left = numbers.take(feature.take(node) + first) <= self.threshold.take(node)
                node = children.take(2 * node + goes_left)
            yield slice(start, start + len(rows)), node

    def state(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(value) for name, value in vars(self).items()}

    @classmethod
    def restored(cls, state: dict[str, np.ndarray]) -> Trees:
        return cls(
            **{name: state[name] for name in cls.__dataclass_fields__ if name != "depth"}, depth=int(state["depth"])
        )
