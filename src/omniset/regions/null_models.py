"""Maps of the brain that mean nothing, and how much of a score is owed to genes being where they are.

Maps are smooth, so two of them correlate without any link between them. A null that keeps the smoothness says how much
of a score it explains. A *spin* lays a map on a sphere, turns the sphere, and every region takes the values that came
to lie on it; with one assignment for all, every region's values are used once. What a spin does not keep: a hemisphere
is no sphere, so projecting and turning it changes distances between regions, and what is turned onto the medial wall,
where no regions are, is assigned to places further away. Such distortions may inflate false positives (Bazinet et al.).
A *variogram* surrogate is as smooth as the map, and alike in both hemispheres. Which of the two is harder to beat
depends on the data, so that a test has both.

Of several maps at once all go through the same change, so that they stay as alike as they were.

A network or a search of kernels fitted to every null would take days. So `null_test` has a statistic of its own, a
kernel ridge over the trunk without inner folds: the best mean r over a few rates and penalties. It is the best over the
same few for expression as it is and for every null, so that p values are valid whatever is best.

Sources: Alexander-Bloch et al., "On testing for spatial correspondence between maps of human brain structure and
function", 2018 (spins); Burt, Helmer, Shinn, Anticevic and Murray, "Generative modeling of brain maps with spatial
autocorrelation", 2020 (variograms); Markello and Misic, "Comparing spatial null models for brain maps", 2021; Bazinet,
Liu and Misic, "The effect of spherical projection on spin tests for brain maps", 2025.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.spatial.transform import Rotation

from omniset.regions.atlas_coordinates import groups_of
from omniset.regions.data import (
    RIGHT,
    Places,
    Regions,
    Square,
    check_places,
    known_pairs,
    matrix_of,
    mirrored,
    places_of,
)
from omniset.regions.kernel_ridge import GaussianKernel, compared
from omniset.regions.methods import geometry_of
from omniset.regions.scaling import Components, squared_distances
from omniset.regions.scores import FEWEST, check_hemispheres, pearson

KINDS = ("spin", "variogram")
MIRROR = np.diag([-1.0, 1.0, 1.0])

# Of variograms.
SHARES = np.arange(1, 10) / 10  # of the regions that a value is smoothed over
BINS = 20  # of distance
NEAR = 0.25  # quantile of the distances that a variogram is of

# Of the test.
COMPONENTS = 40
RATES = (0.1, 0.4)  # per mean squared distance
PENALTIES = (0.1, 0.5)
WIDTH, SIDE = 25.0, 0.5  # of places in the kernel of both
WHAT = ("genes", "genes and places")

Maps = Float[np.ndarray, "regions maps"]
Spins = Int[np.ndarray, "number regions"]


# ---------------------------------------------------------------------- spins


def spins(regions: Regions, number: int, seed: int) -> Spins:
    """Permutations of regions by random rotations: `expression[spins(...)[k]]` is null k.

    Regions of one hemisphere and structure (cortex, subcortex) are a part, and swap places only with one another. Of
    each part:

        p_i = (x_i - c) / |x_i - c|                        c the mean of the part, p_i on the unit sphere
        s   = argmin over permutations of sum_i |p_i - R p_s(i)|

    R is a rotation drawn uniformly, one for each spin; right hemispheres turn by M R M, M the mirror of left and right,
    so that regions and their mirror images turn alike. A region alone in its part stays.

    Args:
        regions: With places; without hemispheres these are one part.
        seed: The same seed gives the same spins; of fewer spins, the first of them.

    Raises:
        ValueError: A region without coordinates, a hemisphere that is not "L", "R" or "", or parts of one region each,
            which leave nothing to permute.
    """
    places = places_of(regions)
    check_places(places)
    parts = _parts(regions)
    if all(len(rows) < 2 for rows, _ in parts):
        raise ValueError(f"hemispheres and structures must leave two regions together, each of {len(places)} is alone")
    # Four normal numbers, as a quaternion, are a uniform rotation (Shoemake, "Uniform random rotations", 1992).
    quaternions = np.random.default_rng(seed).normal(size=(number, 4))
    rotations = Rotation.from_quat(quaternions).as_matrix() if number else np.zeros((0, 3, 3))
    turned = np.tile(np.arange(len(places)), (number, 1))
    for rows, right in parts:
        sphere = _on_sphere(places[rows])
        for k, rotation in enumerate(rotations):
            turn = MIRROR @ rotation @ MIRROR if right else rotation
            _, moved = linear_sum_assignment(cdist(sphere, sphere @ turn.T))
            turned[k, rows] = rows[moved]
    return turned


def _parts(regions: Regions) -> list[tuple[Int[np.ndarray, " rows"], bool]]:
    """Positions of the regions of each hemisphere and structure; are they of the right?"""
    number = len(regions)
    sides = check_hemispheres([""] * number if regions.hemisphere is None else regions.hemisphere, number)
    labels = np.array(groups_of(regions), dtype=np.str_)
    parts = sorted(set(zip(sides.tolist(), labels.tolist(), strict=True)))
    return [(np.flatnonzero((sides == side) & (labels == label)), side == RIGHT) for side, label in parts]


def _on_sphere(places: Float[np.ndarray, "rows 3"]) -> Float[np.ndarray, "rows 3"]:
    """Directions from the mean; what lies at the mean has none and stays there, as far from all others."""
    centred = places - places.mean(0)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.divide(centred, length, out=np.zeros_like(centred), where=length > 0)


# ---------------------------------------------------------------------- surrogates


def surrogates(kind: str, maps: Maps, regions: Regions, number: int, seed: int) -> Iterator[Maps]:
    """So many surrogates of maps of regions.

    Args:
        kind: "spin", rows by rotation (`spins`); or "variogram" (`variogram`).

    Raises:
        ValueError: An unknown kind, or as `spins` does.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    if kind == "spin":
        yield from (maps[rows] for rows in spins(regions, number, seed))
        return
    places = places_of(regions)
    check_places(places)
    yield from variogram(maps, mirrored(places), number, seed)


def variogram(maps: Maps, places: Places, number: int, seed: int) -> Iterator[Maps]:
    """Surrogates whose variogram is that of the map.

    Rows are permuted, all maps alike, and smoothed over the nearest regions with weights exp(-d / d_k), d_k the
    distance of the farthest of them; of shares of .1 to .9 of the regions each map takes the one that, as a + b
    gamma, comes nearest to the variogram gamma of the map by least squares, and X' = sqrt(b) smoothed + sqrt(a)
    noise. Departing from Burt et al., values are not put back by rank.
    """
    apart = cdist(places, places)
    edges = np.quantile(apart[np.triu_indices(len(places), 1)], np.linspace(0, NEAR, BINS + 1))
    bins = [(apart > low) & (apart <= high) for low, high in pairwise(edges)]
    bins = [one.astype(np.float64) for one in bins if one.any()]
    kernels = [_smoother(apart, share) for share in SHARES]
    wanted = variogram_of(maps, bins)
    rng = np.random.default_rng(seed)
    for _ in range(number):
        order = rng.permutation(len(maps))
        noise = rng.normal(size=len(maps))[:, None]
        best, least = np.empty_like(maps), np.full(maps.shape[1], np.inf)
        for kernel in kernels:
            smoothed = kernel @ maps[order]
            a, b, error = _fitted(variogram_of(smoothed, bins), wanted)
            better = error < least
            made = np.sqrt(b) * (smoothed - smoothed.mean(0)) + np.sqrt(a) * noise
            best[:, better], least[better] = made[:, better], error[better]
        yield best + maps.mean(0)


def variogram_of(maps: Maps, bins: Sequence[Float[np.ndarray, "regions regions"]]) -> Float[np.ndarray, "bins maps"]:
    """Mean of (x_i - x_j)^2 / 2 over the pairs of each bin."""
    return np.stack([(b.sum(1) @ maps**2 - (maps * (b @ maps)).sum(0)) / b.sum() for b in bins])


def _smoother(apart: Square, share: float) -> Square:
    k = max(int(share * len(apart)), 2)
    farthest = np.maximum(np.sort(apart, 1)[:, k - 1 : k], 1e-9)
    weights = np.where(apart <= farthest, np.exp(-apart / farthest), 0)
    return weights / weights.sum(1, keepdims=True)


def _fitted(
    x: Float[np.ndarray, "bins maps"], y: Float[np.ndarray, "bins maps"]
) -> tuple[Float[np.ndarray, " maps"], Float[np.ndarray, " maps"], Float[np.ndarray, " maps"]]:
    """a, b >= 0 of a + b x by least squares, and the squared error."""
    centred = x - x.mean(0)
    spread = np.maximum(np.square(centred).sum(0), 1e-300)
    b = np.maximum((centred * (y - y.mean(0))).sum(0) / spread, 0)
    a = y.mean(0) - b * x.mean(0)
    through = (x * y).sum(0) / np.maximum(np.square(x).sum(0), 1e-300)
    b, a = np.where(a < 0, through, b), np.maximum(a, 0)
    return a, b, np.square(y - a - b * x).sum(0)


# ---------------------------------------------------------------------- the test


@dataclass
class NullResult:
    """A score beside that of nulls."""

    what: str  # of WHAT
    kind: str  # of the nulls
    observed: float  # mean of Pearson's r over folds
    nulls: Float[np.ndarray, " nulls"]  # of each surrogate

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
    """

    def __init__(self, regions: Regions, folds: Sequence[Int[np.ndarray, " _"]]) -> None:
        everything = np.arange(len(regions))
        place = GaussianKernel(widths=(WIDTH,) * 3, side=SIDE)
        self._near = place(compared(regions, regions, genes=False, place=True)) - 1
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
        kernel: Square,
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
