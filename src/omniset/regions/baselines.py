"""What a model must beat, and what the default is made of: what distance says, kernel ridge, and boosted trees.

Every method learns from the pairs among the regions it is given, and every number it keeps, means, scales, components,
widths and penalties, is of these regions alone. Their order does not matter: they are sorted by name first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, cg

from omniset.estimators.methods import Trees
from omniset.regions.data import (
    Pairs,
    PairValues,
    Regions,
    Square,
    known_pairs,
    matrix_of,
    mirrored,
    places_of,
)
from omniset.regions.method import Fields, Method
from omniset.regions.scaling import Components, Scaling, squared_distances
from omniset.regions.scores import FEWEST, pearson
from omniset.regions.splits import held_back

# Of distance.
SCALES = (10.0, 20.0, 40.0, 80.0)  # mm
PENALTY = 1e-3  # of the weights, per pair

# Of the ridge: what inner folds choose from.
FOLDS = 4
WIDTHS = (20.0, 12.0, 33.0, 55.0)  # mm
SIDES = (0.0, 0.5)
STRETCHED = (0.5, 2.0)
RATES = (0.3, 0.1, 1.0)
WEIGHTS = (None, 0.5, 0.25, 0.75)
GENES_ALONE = (0.05, 0.1, 0.3, 1.0, 3.0)
PENALTIES = (0.3, 0.03, 0.1, 1.0, 3.0)
MOST = 300  # regions that choices are made on

# Of boosting.
COMPONENTS = 10
MOST_PAIRS = 100_000
ITERATIONS, DEPTH = 200, 6
AT_ONCE = 100_000  # pairs whose features are in memory together

Compared = dict[str, Float[np.ndarray, "..."]]  # see `Space.compare`
Features = Float[np.ndarray, "pairs features"]


# ---------------------------------------------------------------------- what distance says


class Geometry(Method):
    """Connectivity by distance, to a region and to its mirror image: least squares on smooth decays.

        b + sum over s in 10, 20, 40, 80 mm of a_s exp(-d / s) + a'_s exp(-d' / s) + c [both in one hemisphere]

    d is the distance, d' that of one region from the other's mirror image in the plane x = 0. Ridge penalty 0.001 per
    pair on all but b. Where places are not known it is b alone, the mean.

    Attributes:
        weights: b, and the others in that order.
    """

    name = "geometry"
    FIELDS: ClassVar[Fields] = {"weights": None}
    weights: Float[np.ndarray, " features"]

    def __init__(self, genes: bool = False) -> None:
        """Genes are not looked at, whatever is asked for."""
        self.needs_genes = self.needs_coordinates = False

    def _fit(self, train: Regions, seed: int) -> None:
        pairs, values = known_pairs(train)
        if train.coordinates is None:
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


# ---------------------------------------------------------------------- two-step kernel ridge


@dataclass(frozen=True)
class GaussianKernel:
    """1 + exp(-rate genes), 1 + place, or 1 + their weighted sum or product, with

        place = exp(-sum over axes of d_axis^2 / (2 width_axis^2) - side [the regions lie on different sides])

    d is the difference of (|x|, y, z): the hemispheres are nearly mirror images. The constant has the level of a
    region's connectivity learned at little penalty, as an intercept does.

    Attributes:
        rate: Of genes; None: only places.
        widths: Of each axis, in mm; None: only genes.
        side: How much two sides take from the likeness of places.
        weight: Of genes in the sum, that of places is 1 - weight; None: the product.
    """

    rate: float | None = None
    widths: tuple[float, float, float] | None = None
    side: float = 0.0
    weight: float | None = None

    def __call__(self, compared: Compared) -> Float[np.ndarray, "left right"]:
        kernels = []
        if self.rate is not None:
            kernels.append(np.exp(-self.rate * compared["genes"]))
        if self.widths is not None:
            near = compared["axes"] @ (1 / (2 * np.square(self.widths)))
            kernels.append(np.exp(-near - self.side * compared["sides"]))
        if len(kernels) == 1:
            return 1 + kernels[0]
        if self.weight is None:
            return 1 + kernels[0] * kernels[1]
        return 1 + self.weight * kernels[0] + (1 - self.weight) * kernels[1]

    def stretched(self, factor: float, axes: Sequence[int] = (0, 1, 2)) -> GaussianKernel:
        """With other widths of some axes."""
        assert self.widths is not None
        x, y, z = (w * factor if axis in axes else w for axis, w in enumerate(self.widths))
        return replace(self, widths=(x, y, z))


class Space:
    """Expression and coordinates of any regions beside those of the training regions.

    Args:
        train: The training regions.
        genes: Compare expression.
        place: Compare coordinates.
    """

    def __init__(self, train: Regions, genes: bool = False, place: bool = False) -> None:
        self._train, self._genes, self._place = train, genes, place

    def compare(self, regions: Regions) -> Compared:
        """Any regions, with the same genes, on the left against the training regions on the right.

        Returns:
            `genes`, squared distances of expression, standardised over the training regions, divided by the number of
            genes that vary there; `axes`, (left, right, 3), squared differences of (|x|, y, z); `sides`, 1 where x has
            another sign, else 0.
        """
        compared: Compared = {}
        if self._genes:
            scaling = Scaling.of(self._train.expression)
            z, learned = scaling(regions.expression), scaling(self._train.expression)
            compared["genes"] = squared_distances(z, learned) / max(int(scaling.varies.sum()), 1)
        if self._place:
            new, known = places_of(regions), places_of(self._train)
            compared["axes"] = np.square(mirrored(new)[:, None] - mirrored(known))
            compared["sides"] = ((new[:, None, 0] > 0) != (known[:, 0] > 0)).astype(np.float64)
        return compared


@dataclass(frozen=True)
class Spectrum:
    """A symmetric positive semidefinite kernel K = U diag(s) U^T: every penalty then costs products alone."""

    values: Float[np.ndarray, " n"]
    vectors: Square

    @classmethod
    def of(cls, kernel: Square) -> Spectrum:
        values, vectors = np.linalg.eigh(kernel)
        return cls(np.maximum(values, 0), vectors)

    def inverse(self, penalty: float) -> Square:
        """(K + penalty I)^-1."""
        return (self.vectors / (self.values + penalty)) @ self.vectors.T


class TwoStep:
    """Two-step kernel ridge: from the kernel K_t of other regions with the training regions,

        F = K_t (K + l I)^-1 Y (K + l I)^-1 K_t^T

    It is kernel ridge regression over rows and then over columns. Source: Stock, Pahikkala, Airola, De Baets and
    Waegeman, "A comparative study of pairwise learning methods based on kernel ridge regression" (2018).

    Where we depart from it: the formula wants every entry of Y, but a region has no connectivity with itself, and other
    pairs may not be known either. A constant there would be learned as if it were data, most of all for pairs of
    neighbours, as they are predicted from entries about the diagonal. So these entries are what the fit itself gives
    there, F of the training regions: see `filled`.

    Args:
        spectrum: Of K.
        target: Y, about 0; NaN where it is not known. It need not be symmetric.
        penalty: l, positive, on the scale of K.
    """

    FIELDS: ClassVar[Fields] = {"inverse": None, "target": None}

    def __init__(self, spectrum: Spectrum, target: Square, penalty: float) -> None:
        self.inverse = spectrum.inverse(penalty)
        self.target = filled(target, np.eye(len(target)) - penalty * self.inverse)

    def predict(self, cross: Float[np.ndarray, "regions n"]) -> Float[np.ndarray, "regions regions"]:
        """All pairs of any regions, from their kernel with the training regions."""
        dual = cross @ self.inverse
        return dual @ self.target @ dual.T


def filled(target: Square, smoother: Square) -> Square:
    """Y with unknown entries such that (H Y H)_ij = Y_ij in each of them.

    For the symmetric H = K (K + l I)^-1, with eigenvalues below 1, there is one such Y. If the diagonal alone is not
    known, it is the solution d of (I - H o H) d = diag(H Y_0 H), with o by entries and Y_0 zero on the diagonal. Else
    the equations are solved by conjugate gradients, to 1e-6.

    Args:
        target: NaN where it is not known.
        smoother: H.
    """
    unknown = np.isnan(target)
    whole = np.where(unknown, 0.0, target)
    if not unknown.any():
        return whole
    if np.array_equal(unknown, np.eye(len(target), dtype=bool)):
        fit = ((smoother @ whole) * smoother).sum(1)
        np.fill_diagonal(whole, np.linalg.solve(np.eye(len(target)) - np.square(smoother), fit))
        return whole

    def remainder(entries: Float[np.ndarray, " unknown"]) -> Float[np.ndarray, " unknown"]:
        part = np.zeros_like(whole)
        part[unknown] = entries.reshape(-1)
        return part[unknown] - (smoother @ part @ smoother)[unknown]

    number = int(unknown.sum())
    operator = LinearOperator((number, number), matvec=remainder, dtype=np.float64)
    whole[unknown], _ = cg(operator, (smoother @ whole @ smoother)[unknown], rtol=1e-6, maxiter=1000)
    return whole


@dataclass(frozen=True)
class Fold:
    """Regions to learn from, and others whose pairs are to be predicted; with and without what `Geometry` says.

    Attributes:
        targets: Y, and what the trunk leaves of it.
        trunks: What is added to the prediction of either.
    """

    learn: Compared
    check: Compared
    targets: tuple[Square, ...]
    trunks: tuple[PairValues, ...]
    pairs: Pairs
    values: PairValues

    def scores(self, kernel: GaussianKernel, over: Sequence[bool]) -> list[list[float]]:
        """Pearson's r without or with the trunk, for each penalty; 0 where it is not defined."""
        spectrum, cross = Spectrum.of(kernel(self.learn)), kernel(self.check)

        def score(trunk: bool, penalty: float) -> float:
            predicted = TwoStep(spectrum, self.targets[trunk], penalty).predict(cross)[tuple(self.pairs.T)]
            return float(np.nan_to_num(pearson(self.values, predicted + self.trunks[trunk])))

        return [[score(trunk, penalty) for penalty in PENALTIES] for trunk in over]


class KernelRidge(Method):
    """Two-step kernel ridge with Gaussian kernels of expression, of places, or of both: see `TwoStep`.

    Inner folds choose: the regions of a fold are left out, rows and columns, and the pairs among them are predicted.
    The width of places, whether sides count, and the trunk are chosen first, then the width of each axis; then the rate
    of genes together with how the two are put together; then all widths and the rate once more about these. Each is
    tried with every penalty, and what has the best mean of Pearson's r over the folds is taken. All combinations would
    be a hundred times as many. Choices are made on 300 regions at most, drawn by the seed.

    Args:
        genes: Use expression.
        chosen: Fitted: its choices are taken. None: they are made here.

    Attributes:
        kernel, penalty: Chosen.
        over_trunk: Chosen: it is fitted to what distance leaves, see `Geometry`.
        score: Mean over inner folds of Pearson's r with this choice; None where there were fewer than two.
    """

    name = "ridge"
    FIELDS: ClassVar[Fields] = {
        **dict.fromkeys(("penalty", "over_trunk", "score", "mean")),
        "kernel": GaussianKernel,
        "trunk": Geometry,
        "fitted": TwoStep,
    }
    kernel: GaussianKernel
    penalty: float
    over_trunk: bool
    score: float | None
    mean: float
    trunk: Geometry | None
    fitted: TwoStep

    def __init__(self, genes: bool = True, chosen: KernelRidge | None = None) -> None:
        super().__init__(genes)
        self.chosen = chosen

    def _fit(self, train: Regions, seed: int) -> None:
        widths = (WIDTHS[0],) * 3 if self.needs_coordinates else None
        self.kernel = GaussianKernel(RATES[0] if self.needs_genes else None, widths)
        self.penalty, self.over_trunk, self.score = PENALTIES[0], False, None
        if self.chosen is not None:
            self.kernel, self.penalty = self.chosen.kernel, self.chosen.penalty
            self.over_trunk, self.score = self.chosen.over_trunk, self.chosen.score
        elif len(folds := self._inner(train, seed)) > 1:
            self._search(folds)
        self.trunk = geometry_of(train) if self.over_trunk else None
        self.mean, target = _rest(train, self.trunk)
        self._restored(train)
        self.fitted = TwoStep(Spectrum.of(self.kernel(self._space.compare(train))), target, self.penalty)

    def _restored(self, train: Regions) -> None:
        self._space = self._space_of(train)

    def _space_of(self, train: Regions) -> Space:
        return Space(train, genes=self.needs_genes, place=self.needs_coordinates)

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        matrix = self.fitted.predict(self.kernel(self._space.compare(regions)))
        trunk = 0.0 if self.trunk is None else self.trunk.at(regions, pairs)
        return matrix[tuple(pairs.T)] + self.mean + trunk

    def _inner(self, train: Regions, seed: int) -> list[Fold]:
        folds = []
        if len(train) > MOST:
            train = train.take(np.sort(np.random.default_rng(seed).choice(len(train), MOST, replace=False)))
        for learn, check in held_back(train, FOLDS, seed, self.held_out):
            if len(check.pairs()) >= FEWEST and len(learn.pairs()) >= FEWEST:
                space = self._space_of(learn)
                pairs, values = known_pairs(check)
                trunks = [None, geometry_of(learn)] if self.needs_coordinates else [None]
                parts = tuple(np.zeros(len(pairs)) if trunk is None else trunk.at(check, pairs) for trunk in trunks)
                targets = tuple(_rest(learn, trunk)[1] for trunk in trunks)
                folds.append(Fold(space.compare(learn), space.compare(check), targets, parts, pairs, values))
        return folds

    def _choose(self, folds: list[Fold], kernels: Sequence[GaussianKernel], over: Sequence[bool] | None = None) -> None:
        """Take the best of some kernels, with its best penalty, if it is better than what is chosen.

        Args:
            over: Without and with the trunk; None: as is chosen.
        """
        over = [self.over_trunk] if over is None else over
        for kernel in kernels:
            scores = np.mean([fold.scores(kernel, over) for fold in folds], 0)
            if self.score is None or scores.max() > self.score:
                trunk, number = divmod(int(scores.argmax()), len(PENALTIES))
                self.kernel, self.penalty = kernel, PENALTIES[number]
                self.over_trunk, self.score = bool(over[trunk]), float(scores.max())

    def _search(self, folds: list[Fold]) -> None:
        if not self.needs_coordinates:
            self._choose(folds, [GaussianKernel(rate) for rate in GENES_ALONE])
            return
        near = [GaussianKernel(widths=(width,) * 3, side=side) for width in WIDTHS for side in SIDES]
        self._choose(folds, near, (False, True))
        for axis in range(3):
            self._choose(folds, [self.kernel.stretched(factor, [axis]) for factor in STRETCHED])
        if self.needs_genes:
            both = [replace(self.kernel, rate=rate, weight=weight) for rate in RATES for weight in WEIGHTS]
            self._choose(folds, both)
        self._choose(folds, [self.kernel.stretched(factor) for factor in STRETCHED])
        if self.kernel.rate is not None:
            self._choose(folds, [replace(self.kernel, rate=self.kernel.rate * factor) for factor in STRETCHED])


def _rest(train: Regions, trunk: Geometry | None) -> tuple[float, Square]:
    """Mean of the known connectivity and differences from it; with a trunk 0, and what the trunk leaves."""
    pairs, values = known_pairs(train)
    mean = float(values.mean()) if trunk is None else 0.0
    return mean, matrix_of(train, pairs, values - (mean if trunk is None else trunk.at(train, pairs)))


# ---------------------------------------------------------------------- boosted trees


class PairFeatures:
    """Features of a pair (i, j), the same for (j, i) unless connectivity is directed.

    Of the first 10 principal components p of expression: |p_i - p_j|, p_i + p_j, and p_i p_j by entries. Of the places,
    in mm: the distance, the distance of (|x|, y, z), their sums and absolute differences, and whether both are on the
    same side (x of the same sign). Directed: also p_i, p_j and (|x|, y, z) of i and of j.

    Args:
        train: The training regions, whose components are used.
        genes: Of expression.
        place: Of coordinates.
    """

    FIELDS: ClassVar[Fields] = {"directed": None, "place": None, "components": Components}

    def __init__(self, train: Regions, genes: bool, place: bool) -> None:
        self.directed = train.directed
        self.place = place
        self.components = Components(train, COMPONENTS) if genes else None

    def __call__(self, regions: Regions, pairs: Pairs) -> Features:
        i, j = pairs.T
        features = []
        if self.components is not None:
            p = self.components(regions)
            features += [abs(p[i] - p[j]), p[i] + p[j], p[i] * p[j]]
            features += [p[i], p[j]] if self.directed else []
        if self.place:
            c = places_of(regions)
            m = mirrored(c)
            features += [np.linalg.norm(of[i] - of[j], axis=1)[:, None] for of in (c, m)]
            features += [m[i] + m[j], abs(m[i] - m[j]), (c[i, :1] * c[j, :1] > 0).astype(np.float64)]
            features += [m[i], m[j]] if self.directed else []
        return np.concatenate(features, 1)


class Boosting(Method):
    """Gradient boosting of trees by histograms on pair features: 200 iterations, learning rate 0.05, no early stop.

    At most 100,000 training pairs are drawn.
    """

    name = "boosting"
    FIELDS: ClassVar[Fields] = {"features": PairFeatures, "trees": Trees, "start": None}

    def _fit(self, train: Regions, seed: int) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor  # `predict` starts without it

        self.features = PairFeatures(train, self.needs_genes, self.needs_coordinates)
        pairs, values = known_pairs(train)
        if len(pairs) > MOST_PAIRS:
            drawn = np.sort(np.random.default_rng(seed).choice(len(pairs), MOST_PAIRS, replace=False))
            pairs, values = pairs[drawn], values[drawn]
        model = HistGradientBoostingRegressor(
            learning_rate=0.05, max_iter=ITERATIONS, max_depth=DEPTH, early_stopping=False, random_state=seed
        ).fit(self.features(train, pairs), values)
        self.trees, self.start = Trees.of_histograms(model)

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        parts = (self.features(regions, pairs[at : at + AT_ONCE]) for at in range(0, len(pairs), AT_ONCE))
        return np.concatenate([self.start + len(self.trees.roots) * self.trees.means(x)[:, 0] for x in parts])


METHODS: dict[str, type[Method]] = {"ridge": KernelRidge, "boosting": Boosting, "geometry": Geometry}
