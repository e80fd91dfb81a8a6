"""The boosting member: gradient boosting on pooled features."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64

from omniset.estimators.folds import folds_of
from omniset.estimators.simple import Member, Outputs, State, Table, of_all_classes, softmax
from omniset.estimators.trees import Trees

MOST = 150  # rounds; of many rows twice as many
SAMPLED = 10_000  # rows that a tree sees at most
FOLDS = 3
MANY = 1_000  # rows, above which there is more to learn
ENOUGH = 5_000  # rows, above which one fold in three is enough to choose the rounds


class PooledBoosting(Member):
    """Stochastic gradient boosting (Friedman, 2002) of small trees, as many rounds as inner cross-validation chooses.

    It starts at the prior, f_k = log of how frequent class k is (or at the mean), and adds a tree in each round, for
    more than two classes one for each, at a rate of 0.05. A tree sees half of the rows, 10,000 at most, and at each of
    its splits as many columns as the root of their number. It has at most 8 leaves of at least 5 rows (fewer where
    there are few rows). The number of rounds, 0 to 150, is the one with the least loss on rows left out, three folds.
    Of more than 1,000 rows, the rate is 0.1, there are up to 300 rounds, and 16 leaves. Of more than 5,000, one fold
    of the three chooses.
    """

    name = "pooled-boosting"
    trees: Trees | None

    def _fit(self, x: Table, y: np.ndarray, w: np.ndarray, seed: int, groups: np.ndarray | None) -> None:
        folds = folds_of(y, FOLDS, seed, groups)
        most = 2 * MOST if len(y) > MANY else MOST
        self.rate, self.depth = (0.1, 4) if len(y) > MANY else (0.05, 3)
        losses = np.zeros(most + 1)
        for fold in range(1 if len(y) > ENOUGH else folds.max() + 1):
            there, left = folds != fold, folds == fold
            if there.any() and (y[there] != y[there][0]).any():
                model = self._boosted(x[there], y[there], w[there], most, seed)
                losses += self._losses(model, x[left], y[left], w[left], self._start(y[there], w[there]))
        self.start = self._start(y, w)
        self.rounds = int(losses.argmin())
        self.trees = None
        if self.rounds:
            model = self._boosted(x, y, w, self.rounds, seed)
            self.trees = Trees.of(list(model.estimators_.ravel()))
            self.seen = np.unique(y) if self.classes is not None else np.zeros(1, dtype=np.int64)

    def _boosted(self, x: Table, y: np.ndarray, w: np.ndarray, rounds: int, seed: int) -> Any:
        from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

        maker = GradientBoostingRegressor if self.classes is None else GradientBoostingClassifier
        return maker(
            learning_rate=self.rate,
            n_estimators=rounds,
            max_depth=self.depth,
            min_samples_leaf=max(min(5, len(x) // 8), 1),
            max_features="sqrt",
            subsample=min(0.5, SAMPLED / len(x)),
            random_state=seed,
        ).fit(x, y, w)

    def _start(self, y: np.ndarray, w: np.ndarray) -> Float64[np.ndarray, " outputs"]:
        """What is known without trees: as scikit-learn has it, of the classes that are there."""
        if self.classes is None:
            return np.array([w @ y / w.sum()])
        frequent = np.bincount(y, w, self.classes)
        return np.log(frequent[frequent > 0] / w.sum())

    def _losses(
        self, model: Any, x: Table, y: np.ndarray, w: np.ndarray, start: Float64[np.ndarray, " outputs"]
    ) -> Float64[np.ndarray, " rounds"]:
        """Of rows left out, after 0, 1, ... rounds."""
        if self.classes is None:
            rounds = [np.full(len(x), start[0]), *model.staged_predict(x)]
            return np.array([w @ np.square(y - predicted) for predicted in rounds])
        rounds = [np.tile(np.exp(start), (len(x), 1)), *model.staged_predict_proba(x)]
        known = np.full(self.classes, -1)
        known[model.classes_] = np.arange(len(model.classes_))
        there = known[y] >= 0  # a class that was not learned from says nothing of rounds
        rows, columns = np.arange(len(x))[there], known[y[there]]
        return np.array([-w[there] @ np.log(np.maximum(p[rows, columns], 1e-12)) for p in rounds])

    def _predict(self, x: Table) -> Outputs:
        if self.trees is None:
            return self._constant(len(x))
        out = self.rate * self.trees.totals(x, self.rounds)
        if self.classes is None:
            return out[:, 0] + self.start[0]
        if out.shape[1] == 1:  # of two classes: the second's log odds
            out = np.concatenate([0 * out, out], 1)
        return of_all_classes(softmax(out + self.start), self.seen, self.classes)

    def _state(self) -> State:
        if self.trees is None:
            return {"rounds": np.array(0)}
        rounds, rate = np.array(self.rounds), np.array(self.rate)
        return {"rounds": rounds, "rate": rate, "start": self.start, "seen": self.seen} | self.trees.state()

    def _restore(self, state: State) -> None:
        self.rounds = int(state["rounds"])
        self.trees = Trees.restored(state) if self.rounds else None
        if self.rounds:
            self.rate, self.start, self.seen = float(state["rate"]), state["start"], state["seen"]
