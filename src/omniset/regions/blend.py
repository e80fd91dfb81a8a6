"""The default: several methods, each with and without what distance says, as regions held back weigh them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from omniset.regions.baselines import METHODS
from omniset.regions.data import Pairs, PairValues, Regions
from omniset.regions.methods import Method
from omniset.regions.scaling import known_pairs, matrix_of, places_of
from omniset.regions.scores import pair_distance, pearson
from omniset.regions.splits import FEWEST, held_back
from omniset.regions.training import Attention, NetworkMethod
from omniset.training.artefacts import Weights

SCALES = (10.0, 20.0, 40.0, 80.0)  # mm
PENALTY = 1e-3  # of the geometry's weights, per pair
FOLDS = 4
PULL = 0.3  # of the weights towards those that are the same for all parts
GENES_AND_PLACES = ("ridge", "ridge-position", "boosting", "boosting-position")
GENES_ALONE = ("ridge-genes", "boosting-genes")
OVER = "distance+"  # begins the name of a part that is added to the trunk
NETWORK = "distance+attention"  # fitted also where its weight is 0, to be explained


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
        pairs, values = known_pairs(train)
        features = self._features(train, pairs)
        penalty = PENALTY * len(features) * np.eye(features.shape[1])
        penalty[0, 0] = 0
        self.weights = np.linalg.solve(features.T @ features + penalty, features.T @ values)

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        return self._features(regions, pairs) @ self.weights

    def _features(self, regions: Regions, pairs: Pairs) -> Float[np.ndarray, "pairs features"]:
        c = places_of(regions)
        i, j = pairs.T
        straight = pair_distance(c, pairs)
        crossed = np.linalg.norm(c[i] * [-1, 1, 1] - c[j], axis=1)
        decays = [np.exp(-d / s) for s in SCALES for d in (straight, crossed)]
        return np.stack([np.ones(len(pairs)), *decays, (c[i, 0] * c[j, 0] > 0).astype(np.float64)], 1)


class Blend(Method):
    """b + sum over parts p of w_p p(i, j), with weights w >= 0 on which regions held back decide.

    The parts are kernel ridge and boosted trees, each of genes and places and of places alone, and each fitted twice:
    to connectivity itself, and to what the trunk, `Geometry`, leaves, and then added to the trunk ("distance+ridge").
    The network, "distance+attention", is of the latter kind. Where places are not known, the trunk is the mean, and the
    parts are ridge and trees of genes, and the network. b makes the mean right.

    Four folds of the training regions, spatial where places are known, are predicted by parts that had not seen them.
    The weights are `stacked`, and pulled towards those that are the same for all parts but 0 for the network: it has to
    earn its place. Parts whose weight is 0 are not fitted again, but for the network, so that it can be explained.

    Args:
        attention: Makes the network; None: without it.
        say: Told what is being fitted.

    Attributes:
        weights: By name.
        scores: Pearson's r over the folds of "distance", the trunk, of each part, and of "blend", whose weights were
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
        self.level = (1 - sum(self.weights.values())) * float(known_pairs(train)[1].mean())
        self.trunk, rest = self._trunk(train, seed)
        self.fitted = {}
        for name in self._used():
            self.say(f"fitting {name}")
            self.fitted[name] = self._fit_part(name, train, rest, seed)

    def _choose(self, train: Regions) -> None:
        """The parts, as they can be fitted here."""
        self._placed = train.placed  # also where the one region without a place is left out of a fold
        self._parts = {name: METHODS[name] for name in (GENES_AND_PLACES if self._placed else GENES_ALONE)}
        if self._placed:
            self._parts |= {OVER + name: make for name, make in self._parts.items()}
        if self.attention is not None:
            self._parts[NETWORK] = self.attention

    def _used(self) -> list[str]:
        """The parts that are fitted to all training regions."""
        return [name for name in self._parts if self.weights[name] or name == NETWORK]

    def _fit_part(self, name: str, train: Regions, rest: Regions, seed: int) -> Method:
        return self._parts[name]().fit(rest if name.startswith(OVER) else train, np.arange(len(train)), seed)

    def _weigh(self, train: Regions, seed: int) -> dict[str, float]:
        """By name, from pairs of regions that were left out."""
        columns, values, trunks = [], [], []
        folds = held_back(train, FOLDS, seed)
        for at, (learn, left) in enumerate(folds, 1):
            self.say(f"validation {at} of {len(folds)}")
            if not len(left.pairs()) or len(learn.pairs()) < FEWEST:
                continue
            trunk, rest = self._trunk(learn, seed)
            pairs, known = known_pairs(left)
            trunks.append(trunk(left, pairs))
            predicted = [
                trunks[-1] * name.startswith(OVER) + self._fit_part(name, learn, rest, seed).predict(left, pairs)
                for name in self._parts
            ]
            columns.append(np.stack(predicted, 1))
            values.append(known)
        usual = np.array([float(name != NETWORK) for name in self._parts])
        weights = stacked(columns, values, usual / usual.sum())
        tried = {"distance": trunks, **{name: [x[:, at] for x in columns] for at, name in enumerate(self._parts)}}
        tried["blend"] = [x @ weights for x in columns]
        scores = {name: [pearson(y, of) for of, y in zip(tries, values, strict=True)] for name, tries in tried.items()}
        self.scores = {name: float(np.mean(r)) for name, r in scores.items() if len(r) and np.isfinite(r).all()}
        return {name: float(w) for name, w in zip(self._parts, weights, strict=True)}

    def _trunk(self, train: Regions, seed: int) -> tuple[Callable[[Regions, np.ndarray], PairValues], Regions]:
        """What predicts the trunk, and the regions with what it leaves."""
        pairs, values = known_pairs(train)
        if self._placed:
            predict = Geometry().fit(train, np.arange(len(train)), seed).predict
        else:
            mean = float(values.mean())

            def predict(regions: Regions, pairs: np.ndarray) -> np.ndarray:
                return np.full(len(pairs), mean)

        rest = matrix_of(train, pairs, values - predict(train, pairs))
        return predict, train.with_(connectivity=rest)

    def state(self) -> dict[str, Any]:
        """What else than the weights of networks is needed to predict."""
        parts = {name: part.state() for name, part in self.networks.items()}
        return {"weights": self.weights, "scores": self.scores, "level": self.level, "seed": self._seed, "parts": parts}

    def restore(self, state: dict[str, Any], train: Regions, weights: Weights | None = None) -> Blend:
        """Become as when `state` was taken: networks by their weights, where these are given; else by another fit."""
        self.genes, self.directed, self._seed = list(train.genes), train.directed, state["seed"]
        self.weights, self.scores, self.level = state["weights"], state["scores"], state["level"]
        self._choose(train)
        self.trunk, rest = self._trunk(train, self._seed)
        self.fitted = {}
        for name in self._used():
            part = self._parts[name]()
            if isinstance(part, NetworkMethod):
                self.fitted[name] = part.restore(state["parts"][part.name], rest, weights)
            else:
                self.fitted[name] = self._fit_part(name, train, rest, self._seed)
        return self

    @property
    def networks(self) -> dict[str, NetworkMethod]:
        """The parts that have one, by the names of their methods."""
        return {part.name: part for part in self.fitted.values() if isinstance(part, NetworkMethod)}

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        predicted = np.full(len(pairs), self.level)
        trunk = self.trunk(regions, pairs)
        for name, part in self.fitted.items():
            if self.weights[name]:
                predicted += self.weights[name] * (trunk * name.startswith(OVER) + part.predict(regions, pairs))
        return predicted


def networks_of(method: Method) -> dict[str, NetworkMethod]:
    """What has a network of a method, by name."""
    if isinstance(method, Blend):
        return method.networks
    return {method.name: method} if isinstance(method, NetworkMethod) else {}


def stacked(
    columns: Sequence[Float[np.ndarray, "_ parts"]],
    values: Sequence[Float[np.ndarray, " _"]],
    usual: Float[np.ndarray, " parts"],
) -> Float[np.ndarray, " parts"]:
    """Weights w >= 0 of parts, from their predictions x of pairs in several folds, whose connectivity is y.

    With x and y centred within each fold and both divided by the standard deviation of y there,

        w = argmin over w >= 0 of  sum_f mean_f (y - sum_p w_p x_p)^2  +  0.3 sum_p (w_p - u_p)^2 sum_f mean_f x_p^2

    where mean_f is that over the pairs of fold f. So every fold counts the same, whatever its size and spread, and what
    folds cannot tell apart is shared out as the usual weights u say. A fold whose y is constant says nothing. Without
    any fold, w = u. After Wolpert, "Stacked generalization" (1992), and Breiman, "Stacked regressions" (1996), who has
    w >= 0.

    Args:
        columns: x of each fold, pairs by parts.
        values: y of each fold.
        usual: u.
    """
    rows, targets = [], []
    for x, y in zip(columns, values, strict=True):
        deviation = float(y.std())
        if deviation > 0:
            scale = deviation * np.sqrt(len(y))
            rows.append((x - x.mean(0)) / scale)
            targets.append((y - y.mean()) / scale)
    if not rows:
        return usual
    size = np.sqrt(PULL * sum(np.square(x).sum(0) for x in rows))
    weights, _ = nnls(np.vstack([*rows, np.diag(size)]), np.concatenate([*targets, size * usual]))
    return weights
