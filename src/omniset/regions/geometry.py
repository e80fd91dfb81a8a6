"""What places alone say in a line: the trunk to which other methods add what it leaves."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from jaxtyping import Float

from omniset.regions.data import Pairs, PairValues, Regions
from omniset.regions.kept import Kept
from omniset.regions.methods import Method
from omniset.regions.scaling import known_pairs, places_of

SCALES = (10.0, 20.0, 40.0, 80.0)  # mm
PENALTY = 1e-3  # of the weights, per pair


class Geometry(Method):
    """Connectivity by distance, to a region and to its mirror image: least squares on smooth decays.

        b + sum over s in 10, 20, 40, 80 mm of a_s exp(-d / s) + a'_s exp(-d' / s) + c [both in one hemisphere]

    d is the distance, d' that of one region from the other's mirror image in the plane x = 0. Ridge penalty 0.001 per
    pair on all but b. Where places are not known it is b alone, the mean.

    Attributes:
        weights: b, and the others in that order.
    """

    name = "geometry"
    needs_genes = False
    KEPT: ClassVar[Kept] = {"weights": None}
    weights: Float[np.ndarray, " features"]

    def _fit(self, train: Regions, seed: int) -> None:
        pairs, values = known_pairs(train)
        if not train.placed:
            self.weights = np.array([values.mean()])
            return
        features = self._features(train, pairs)
        penalty = PENALTY * len(features) * np.eye(features.shape[1])
        penalty[0, 0] = 0
        self.weights = np.linalg.solve(features.T @ features + penalty, features.T @ values)

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        return self.at(regions, pairs)

    def at(self, regions: Regions, pairs: Pairs) -> PairValues:
        """The trunk of pairs, (i, j) and (j, i) alike, without the checks of `predict`."""
        if len(self.weights) == 1:
            return np.full(len(pairs), self.weights[0])
        return self._features(regions, pairs) @ self.weights

    def _features(self, regions: Regions, pairs: Pairs) -> Float[np.ndarray, "pairs features"]:
        c = places_of(regions)
        i, j = pairs.T
        straight = np.linalg.norm(c[i] - c[j], axis=1)
        crossed = np.linalg.norm(c[i] * [-1, 1, 1] - c[j], axis=1)
        decays = [np.exp(-d / s) for s in SCALES for d in (straight, crossed)]
        return np.stack([np.ones(len(pairs)), *decays, (c[i, 0] * c[j, 0] > 0).astype(np.float64)], 1)


def geometry_of(train: Regions) -> Geometry:
    """The trunk of these regions."""
    trunk = Geometry()
    trunk.fit(train, np.arange(len(train)))
    return trunk
