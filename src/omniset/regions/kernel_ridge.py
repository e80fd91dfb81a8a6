"""Two-step kernel ridge of pairs of regions: Gaussian kernels of expression and of places, which inner folds choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, cg

from omniset.regions.data import Pairs, PairValues, Regions, Square, known_pairs, matrix_of, mirrored, places_of
from omniset.regions.methods import Fields, Geometry, Method, geometry_of
from omniset.regions.scaling import Scaling, squared_distances
from omniset.regions.scores import FEWEST, pearson
from omniset.regions.splits import held_back

# What inner folds choose from.
FOLDS = 4
WIDTHS = (20.0, 12.0, 33.0, 55.0)  # mm
SIDES = (0.0, 0.5)
STRETCHED = (0.5, 2.0)
RATES = (0.3, 0.1, 1.0)
WEIGHTS = (None, 0.5, 0.25, 0.75)
GENES_ALONE = (0.05, 0.1, 0.3, 1.0, 3.0)
PENALTIES = (0.3, 0.03, 0.1, 1.0, 3.0)
MOST = 300  # regions that choices are made on

Compared = dict[str, Float[np.ndarray, "..."]]  # see `compared`
Spectrum = tuple[Float[np.ndarray, " n"], Square]  # s and U of a kernel U diag(s) U^T


@dataclass(frozen=True)
class GaussianKernel:
    """1 + exp(-rate genes), 1 + place, or 1 + their weighted sum or product, with

        place = exp(-sum over axes of d_axis^2 / (2 width_axis^2) - side [the regions lie on different sides])

    d is the difference of (|x|, y, z): the hemispheres are nearly mirror images. The constant has the level of a
    region's connectivity learned at little penalty, as an intercept does.
    """

    rate: float | None = None  # of genes; None: only places
    widths: tuple[float, float, float] | None = None  # of each axis, in mm; None: only genes
    side: float = 0.0  # how much two sides take from the likeness of places
    weight: float | None = None  # of genes in the sum, that of places is 1 - weight; None: the product

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


def compared(regions: Regions, train: Regions, genes: bool, place: bool) -> Compared:
    """Any regions, on the left, beside the training regions on the right.

    Returns:
        `genes`, squared distances of expression, standardised over the training regions, divided by the number of genes
        that vary there; `axes`, (left, right, 3), squared differences of (|x|, y, z); `sides`, 1 where x has another
        sign, else 0.
    """
    both: Compared = {}
    if genes:
        scaling = Scaling.of(train.expression)
        squares = squared_distances(scaling(regions.expression), scaling(train.expression))
        both["genes"] = squares / max(int(scaling.varies.sum()), 1)
    if place:
        new, known = places_of(regions), places_of(train)
        both["axes"] = np.square(mirrored(new)[:, None] - mirrored(known))
        both["sides"] = ((new[:, None, 0] > 0) != (known[:, 0] > 0)).astype(np.float64)
    return both


def spectrum_of(kernel: Square) -> Spectrum:
    """Of a symmetric positive semidefinite kernel: every penalty then costs products alone."""
    values, vectors = np.linalg.eigh(kernel)
    return np.maximum(values, 0), vectors


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
        target: Y, about 0; NaN where it is not known. It need not be symmetric.
        penalty: l, positive, on the scale of K.
    """

    FIELDS: ClassVar[Fields] = {"inverse": None, "target": None}

    def __init__(self, spectrum: Spectrum, target: Square, penalty: float) -> None:
        values, vectors = spectrum
        self.inverse = (vectors / (values + penalty)) @ vectors.T
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
    """Regions to learn from, and others whose pairs are to be predicted; with and without what `Geometry` says."""

    learn: Compared
    check: Compared
    targets: tuple[Square, ...]  # Y, and what the trunk leaves of it
    trunks: tuple[PairValues, ...]  # what is added to the prediction of either
    pairs: Pairs
    values: PairValues

    def scores(self, kernel: GaussianKernel, over: Sequence[bool]) -> list[list[float]]:
        """Pearson's r without or with the trunk, for each penalty; 0 where it is not defined."""
        spectrum, cross = spectrum_of(kernel(self.learn)), kernel(self.check)

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
        chosen: Fitted: its choices are taken. None: they are made here.
    """

    name = "ridge"
    near: ClassVar[bool] = True  # the kernel looks at places, where they are known
    FIELDS: ClassVar[Fields] = {
        **dict.fromkeys(("penalty", "over_trunk", "score", "mean")),
        "kernel": GaussianKernel,
        "trunk": Geometry,
        "fitted": TwoStep,
    }
    kernel: GaussianKernel
    penalty: float
    over_trunk: bool  # it is fitted to what distance leaves, see `Geometry`
    score: float | None  # mean over inner folds of Pearson's r with this choice; None where there were fewer than two
    mean: float
    trunk: Geometry | None
    fitted: TwoStep

    def __init__(self, genes: bool = True, chosen: KernelRidge | None = None) -> None:
        super().__init__(genes)
        self.chosen = chosen

    def _fit(self, train: Regions, seed: int) -> None:
        widths = (WIDTHS[0],) * 3 if self.needs_coordinates and self.near else None
        self.kernel = GaussianKernel(RATES[0] if self.needs_genes else None, widths)
        self.penalty, self.over_trunk, self.score = PENALTIES[0], self.needs_coordinates and not self.near, None
        if self.chosen is not None:
            self.kernel, self.penalty = self.chosen.kernel, self.chosen.penalty
            self.over_trunk, self.score = self.chosen.over_trunk, self.chosen.score
        elif len(folds := self._inner(train, seed)) > 1:
            self._search(folds)
        self.trunk = geometry_of(train) if self.over_trunk else None
        self.mean, target = _rest(train, self.trunk)
        self._restored(train)
        self.fitted = TwoStep(spectrum_of(self.kernel(self._compared(train, train))), target, self.penalty)

    def _restored(self, train: Regions) -> None:
        self._train = train

    def _compared(self, regions: Regions, train: Regions) -> Compared:
        return compared(regions, train, self.needs_genes, self.needs_coordinates)

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        matrix = self.fitted.predict(self.kernel(self._compared(regions, self._train)))
        trunk = 0.0 if self.trunk is None else self.trunk.at(regions, pairs)
        return matrix[tuple(pairs.T)] + self.mean + trunk

    def _inner(self, train: Regions, seed: int) -> list[Fold]:
        folds = []
        if len(train) > MOST:
            train = train.take(np.sort(np.random.default_rng(seed).choice(len(train), MOST, replace=False)))
        for learn, check in held_back(train, FOLDS, seed, self.held_out):
            if len(check.pairs()) >= FEWEST and len(learn.pairs()) >= FEWEST:
                pairs, values = known_pairs(check)
                trunks = [None, geometry_of(learn)] if self.needs_coordinates else [None]
                parts = tuple(np.zeros(len(pairs)) if trunk is None else trunk.at(check, pairs) for trunk in trunks)
                targets = tuple(_rest(learn, trunk)[1] for trunk in trunks)
                known, new = (self._compared(some, learn) for some in (learn, check))
                folds.append(Fold(known, new, targets, parts, pairs, values))
        return folds

    def _choose(self, folds: list[Fold], kernels: Sequence[GaussianKernel], over: Sequence[bool] | None = None) -> None:
        """Take the best of some kernels, with its best penalty, if it is better than what is chosen. `over`: without
        and with the trunk; None: as is chosen.
        """
        over = [self.over_trunk] if over is None else over
        for kernel in kernels:
            scores = np.mean([fold.scores(kernel, over) for fold in folds], 0)
            if self.score is None or scores.max() > self.score:
                trunk, number = divmod(int(scores.argmax()), len(PENALTIES))
                self.kernel, self.penalty = kernel, PENALTIES[number]
                self.over_trunk, self.score = bool(over[trunk]), float(scores.max())

    def _search(self, folds: list[Fold]) -> None:
        if self.kernel.widths is None:
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


class MirroredPlaces(KernelRidge):
    """Two-step kernel ridge of mirrored places alone."""

    name = "ridge-places"

    def __init__(self, genes: bool = False, chosen: KernelRidge | None = None) -> None:
        """Genes are not looked at, whatever is asked for."""
        super().__init__(False, chosen)


class GenesOverDistance(KernelRidge):
    """What distance and mirrored distance say, see `Geometry`, and of what they leave two-step kernel ridge of genes.

    Inner folds choose the rate of genes and the penalty. Where places are not known it is the ridge.
    """

    name = "geometry-genes"
    near = False


def _rest(train: Regions, trunk: Geometry | None) -> tuple[float, Square]:
    """Mean of the known connectivity and differences from it; with a trunk 0, and what the trunk leaves."""
    pairs, values = known_pairs(train)
    mean = float(values.mean()) if trunk is None else 0.0
    return mean, matrix_of(train, pairs, values - (mean if trunk is None else trunk.at(train, pairs)))
