"""How much of a score is owed to genes being where they are: a thousand nulls of a closed form in minutes.

A network or a search of kernels fitted to every null would take days. So the test has a statistic of its own, a kernel
ridge over the trunk without inner folds: the best mean r over a few rates and penalties. It is the best over the same
few for expression as it is and for every null, so that p values are valid whatever is best.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import cho_factor, cho_solve

from omniset.regions.data import Regions
from omniset.regions.geometry import geometry_of
from omniset.regions.ridge import GaussianKernel, Space
from omniset.regions.scaling import Components, known_pairs, matrix_of, squared_distances
from omniset.regions.scores import FEWEST, pearson

COMPONENTS = 40
RATES = (0.1, 0.4)  # per mean squared distance
PENALTIES = (0.1, 0.5)
WIDTH, SIDE = 25.0, 0.5  # of places in the kernel of both
WHAT = ("genes", "genes and places")

Maps = Float[np.ndarray, "regions maps"]


@dataclass
class NullResult:
    """A score beside that of nulls.

    Attributes:
        what: Of WHAT.
        kind: Of the nulls.
        observed: Mean of Pearson's r over folds.
        nulls: Of each surrogate.
    """

    what: str
    kind: str
    observed: float
    nulls: Float[np.ndarray, " nulls"]

    @property
    def p(self) -> float:
        """(1 + nulls as high) / (1 + nulls)."""
        return float((1 + (self.nulls >= self.observed).sum()) / (1 + len(self.nulls)))

    def as_dict(self) -> dict[str, Any]:
        """The gain is over the mean of the nulls; its ends over their 97.5 % and 2.5 % quantiles."""
        low, high = np.quantile(self.nulls, [0.025, 0.975])
        middle = float(self.nulls.mean())
        return {
            "what": self.what,
            "null": self.kind,
            "observed": self.observed,
            "mean": middle,
            "highest": float(self.nulls.max()),
            "gain": self.observed - middle,
            "gain_low": float(self.observed - high),
            "gain_high": float(self.observed - low),
            "nulls": len(self.nulls),
            "p": self.p,
        }


class Statistic:
    """The best mean of Pearson's r over folds, of rates and penalties, from maps of regions.

    Genes: the kernel 1 + exp(-rate |x_i - x_j|^2 / m), m the mean of |x_i - x_j|^2; genes and places: 1 + half of that
    exponential + half of that of places. Y' of the two-step ridge is 0 where it is not known, what the trunk says.

    Args:
        regions: With places and connectivity.
        folds: Positions of each.
    """

    def __init__(self, regions: Regions, folds: Sequence[Int[np.ndarray, " _"]]) -> None:
        everything = np.arange(len(regions))
        place = GaussianKernel(widths=(WIDTH,) * 3, side=SIDE)
        self._near = place(Space(regions, place=True).compare(regions)) - 1
        self._folds = []
        for rows in folds:
            learn = np.setdiff1d(everything, rows)
            known, left = regions.take(learn), regions.take(rows)
            pairs, values = known_pairs(left)
            if len(pairs) < FEWEST or len(known.pairs()) < FEWEST:
                continue
            trunk = geometry_of(known)
            places, y = known_pairs(known)
            rest = np.nan_to_num(matrix_of(known, places, y - trunk.at(known, places)))
            self._folds.append((learn, rows, rest, pairs, values, trunk.at(left, pairs)))

    def __call__(self, maps: Maps) -> dict[str, float]:
        squares = squared_distances(maps, maps)
        squares = squares / (squares.mean() or 1.0)
        best = {}
        for what in WHAT:
            scores = []
            for rate in RATES:
                like = np.exp(-rate * squares)
                kernel = 1 + like if what == "genes" else 1 + (like + self._near) / 2
                scores.append(np.mean([self._scores(kernel, *fold) for fold in self._folds], 0))
            best[what] = float(np.max(scores))
        return best

    def _scores(
        self,
        kernel: Float[np.ndarray, "n n"],
        learn: Int[np.ndarray, " learn"],
        rows: Int[np.ndarray, " rows"],
        rest: Float[np.ndarray, "learn learn"],
        pairs: Int[np.ndarray, "pairs 2"],
        values: Float[np.ndarray, " pairs"],
        trunk: Float[np.ndarray, " pairs"],
    ) -> list[float]:
        scores = []
        for penalty in PENALTIES:
            factor = cho_factor(kernel[np.ix_(learn, learn)] + penalty * np.eye(len(learn)), check_finite=False)
            weights = cho_solve(factor, kernel[np.ix_(learn, rows)], check_finite=False).T
            predicted = (weights @ rest @ weights.T)[tuple(pairs.T)] + trunk
            scores.append(float(np.nan_to_num(pearson(values, predicted))))
        return scores


def maps_of(regions: Regions) -> Maps:
    """Principal components of expression, 40 at most."""
    return Components(regions, COMPONENTS)(regions)


def null_test(
    regions: Regions, folds: Sequence[Int[np.ndarray, " _"]], kind: str, nulls: Iterable[Maps]
) -> list[NullResult]:
    """The statistic of expression as it is, and of surrogates of `maps_of`."""
    statistic = Statistic(regions, folds)
    observed = statistic(maps_of(regions))
    of_nulls = [statistic(maps) for maps in nulls]
    return [NullResult(what, kind, observed[what], np.array([one[what] for one in of_nulls])) for what in WHAT]
