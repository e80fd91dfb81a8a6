"""The default: what distance says, and on what it leaves, several methods, as validation weighs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import nnls

from omniset.regions.baselines import Boosting, KernelRidge, Method, _known, _places
from omniset.regions.data import Regions
from omniset.regions.scores import pair_distance, pearson
from omniset.regions.splits import FEWEST, split
from omniset.regions.training import Attention, NetworkMethod

SCALES = (10.0, 20.0, 40.0, 80.0)  # mm
PENALTY = 1e-3  # of the geometry's weights, per pair
FOLDS = 4
NETWORK = "attention"  # fitted also where its weight is 0, to be explained


class Geometry(Method):
    """Connectivity by distance, to a region and to its mirror image: least squares on smooth decays.

        b + sum over s in 10, 20, 40, 80 mm of a_s exp(-d / s) + a'_s exp(-d' / s) + c [both in one hemisphere]

    d is the distance, d' that of one region from the other's mirror image in the plane x = 0. Ridge penalty 0.001 per
    pair on all but b.

    Attributes:
        weights: b, and the others in that order.
    """

    name = "geometry"
    needs_genes = False
    needs_coordinates = True

    def _fit(self, train: Regions, seed: int) -> None:
        pairs, values = _known(train)
        features = self._features(train, pairs)
        penalty = PENALTY * len(features) * np.eye(features.shape[1])
        penalty[0, 0] = 0
        self.weights = np.linalg.solve(features.T @ features + penalty, features.T @ values)

    def _predict(self, regions: Regions, pairs: Int[np.ndarray, "pairs 2"]) -> Float[np.ndarray, " pairs"]:
        return self._features(regions, pairs) @ self.weights

    def _features(self, regions: Regions, pairs: Int[np.ndarray, "pairs 2"]) -> Float[np.ndarray, "pairs features"]:
        c = _places(regions)
        i, j = pairs.T
        straight = pair_distance(c, pairs)
        crossed = np.linalg.norm(c[i] * [-1, 1, 1] - c[j], axis=1)
        decays = [np.exp(-d / s) for s in SCALES for d in (straight, crossed)]
        return np.stack([np.ones(len(pairs)), *decays, (c[i, 0] * c[j, 0] > 0).astype(np.float64)], 1)


class Blend(Method):
    """b + w_0 trunk(i, j) + sum over parts p of w_p p(i, j), the parts fitted to what the trunk leaves.

    The trunk is `Geometry` where coordinates are known, else the mean. Weights are >= 0 and fitted by least squares to
    predictions of pairs of regions that trunk and parts had not seen, of four folds of the training regions (spatial
    where places are known); a level of its own for each fold takes up what folds differ by. Parts whose weight is 0
    are not fitted again, but for the network, which can then still be explained. Stacking: Wolpert, "Stacked
    generalization" (1992); Breiman, "Stacked regressions" (1996).

    Args:
        attention: Makes the part "attention"; None: without it. The others are "ridge" and "boosting", which use places
            where these are known.
        say: Told what is being fitted.

    Attributes:
        weights: By name, "trunk" first.
        scores: Pearson's r of each part alone, with the trunk, over the folds, and of "blend", whose weights were
            fitted to these very pairs; without those that are not defined, as of a constant.
        fitted: The parts.
    """

    name = "blend"
    weights: dict[str, float]
    scores: dict[str, float]
    fitted: dict[str, Method]
    _parts: dict[str, Callable[[], Method]]

    def __init__(
        self, attention: Callable[[], Method] | None = Attention, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.attention, self.say = attention, say

    def _fit(self, train: Regions, seed: int) -> None:
        self._seed = seed
        self._choose(train)
        self.weights = self._weigh(train, seed)
        self.trunk, rest = self._trunk(train, seed)
        self.fitted = {}
        for name, make in self._parts.items():
            if self.weights[name] or name == NETWORK:
                self.say(f"fitting {name}")
                self.fitted[name] = make().fit(rest, np.arange(len(rest)), seed)
        pairs, values = _known(train)
        self.level = float(values.mean() - self.weights["trunk"] * self.trunk(train, pairs).mean())

    def _choose(self, train: Regions) -> None:
        """The parts, as they can be fitted here."""
        self._placed = train.coordinates is not None and bool(np.isfinite(train.coordinates).all())
        genes_alone: dict[str, Callable[[], Method]] = {
            "ridge": partial(KernelRidge, "ridge-genes", place=False),
            "boosting": partial(Boosting, "boosting-genes", place=False),
        }
        self._parts = {"ridge": KernelRidge, "boosting": Boosting} if self._placed else genes_alone
        if self.attention is not None:
            self._parts[NETWORK] = self.attention

    def _weigh(self, train: Regions, seed: int) -> dict[str, float]:
        """By name, from pairs of regions that were left out."""
        names = ["trunk", *self._parts]
        number = min(FOLDS, len(train) // FEWEST)
        self.scores = {}
        columns, values, folds = [], [], []
        kind = "spatial" if self._placed else "random"
        for at, rows in enumerate(split(kind, train, number, seed) if number > 1 else []):
            self.say(f"validation {at + 1} of {number}")
            left, learn = train.take(rows), train.take(np.setdiff1d(np.arange(len(train)), rows))
            if not len(left.pairs()) or len(learn.pairs()) < FEWEST:
                continue
            trunk, rest = self._trunk(learn, seed)
            pairs, known = _known(left)
            found = [trunk(left, pairs)]
            found += [
                make().fit(rest, np.arange(len(rest)), seed).predict(left, pairs) for make in self._parts.values()
            ]
            columns.append(np.stack(found, 1))
            values.append(known)
            folds.append(np.full(len(pairs), at))
        if not columns:
            return {name: 1.0 if name == "trunk" else 1 / len(self._parts) for name in names}
        x, y, fold = np.concatenate(columns), np.concatenate(values), np.concatenate(folds)
        for at in np.unique(fold):
            here = fold == at
            x[here] -= x[here].mean(0)
            y[here] -= y[here].mean()
        weights, _ = nnls(x, y)
        tried = {"trunk": x[:, 0], **{name: x[:, 0] + x[:, 1 + at] for at, name in enumerate(self._parts)}}
        scores = {name: _mean_r(of, y, fold) for name, of in {**tried, "blend": x @ weights}.items()}
        self.scores = {name: r for name, r in scores.items() if np.isfinite(r)}
        return {name: float(w) for name, w in zip(names, weights, strict=True)}

    def _trunk(
        self, train: Regions, seed: int
    ) -> tuple[Callable[[Regions, np.ndarray], Float[np.ndarray, " pairs"]], Regions]:
        """What predicts the trunk, and the regions with what it leaves."""
        pairs, values = _known(train)
        if self._placed:
            predict = Geometry().fit(train, np.arange(len(train)), seed).predict
        else:
            mean = float(values.mean())

            def predict(regions: Regions, pairs: np.ndarray) -> np.ndarray:
                return np.full(len(pairs), mean)

        rest = np.full((len(train), len(train)), np.nan)
        rest[tuple(pairs.T)] = values - predict(train, pairs)
        if not train.directed:
            rest = np.where(np.isnan(rest), rest.T, rest)
        return predict, train.with_(connectivity=rest)

    def state(self) -> dict[str, Any]:
        """What else than the weights of networks is needed to predict."""
        parts = {name: part.state() for name, part in self.fitted.items() if isinstance(part, NetworkMethod)}
        return {"weights": self.weights, "scores": self.scores, "level": self.level, "seed": self._seed, "parts": parts}

    def restore(self, state: dict[str, Any], train: Regions) -> Blend:
        """Become as when `state` was taken, but for the weights of networks: what has no network is fitted again."""
        self.genes, self.directed, self._seed = list(train.genes), train.directed, state["seed"]
        self.weights, self.scores, self.level = state["weights"], state["scores"], state["level"]
        self._choose(train)
        self.trunk, rest = self._trunk(train, self._seed)
        self.fitted = {}
        for name, make in self._parts.items():
            if self.weights[name] or name == NETWORK:
                part = make()
                if isinstance(part, NetworkMethod):
                    self.fitted[name] = part.restore(state["parts"][name], rest)
                else:
                    self.fitted[name] = part.fit(rest, np.arange(len(rest)), self._seed)
        return self

    @property
    def networks(self) -> dict[str, NetworkMethod]:
        """The parts that have one."""
        return {name: part for name, part in self.fitted.items() if isinstance(part, NetworkMethod)}

    def _predict(self, regions: Regions, pairs: Int[np.ndarray, "pairs 2"]) -> Float[np.ndarray, " pairs"]:
        found = self.weights["trunk"] * self.trunk(regions, pairs)
        for name, part in self.fitted.items():
            if not self.weights[name]:
                continue
            found = found + self.weights[name] * part.predict(regions, pairs)
        return found + self.level


def _mean_r(found: np.ndarray, y: np.ndarray, fold: np.ndarray) -> float:
    return float(np.mean([pearson(found[fold == f], y[fold == f]) for f in np.unique(fold)]))
