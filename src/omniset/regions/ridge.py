"""Two-step kernel ridge: connectivity as a product of kernels of both regions, in a closed form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

import numpy as np
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, cg

from omniset.regions.data import Pairs, PairValues, Regions
from omniset.regions.geometry import Geometry, geometry_of
from omniset.regions.kept import Kept
from omniset.regions.methods import Method
from omniset.regions.scaling import (
    Components,
    Scaling,
    centred_target,
    known_pairs,
    matrix_of,
    places_of,
    squared_distances,
)
from omniset.regions.scores import FEWEST, pearson
from omniset.regions.splits import held_back, mirrored

FOLDS = 4

# What inner folds choose from.
WIDTHS = (20.0, 12.0, 33.0, 55.0)  # mm
SIDES = (0.0, 0.5)
STRETCHED = (0.5, 2.0)
RATES = (0.3, 0.1, 1.0)
WEIGHTS = (None, 0.5, 0.25, 0.75)
GENES_ALONE = (0.05, 0.1, 0.3, 1.0, 3.0)
RANKS = (10, 5, 20, 40)
PENALTIES = (0.3, 0.03, 0.1, 1.0, 3.0)
MOST = 300  # regions that choices are made on

Square = Float[np.ndarray, "n n"]
Compared = dict[str, Float[np.ndarray, "..."]]  # see `Space.compare`


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


@dataclass(frozen=True)
class LinearKernel:
    """1 + p_i . p_j / s of the first principal components p, with s the mean of p_i . p_i over the training regions.

    Attributes:
        rank: Number of components, fewer where there are fewer.
    """

    rank: int

    def __call__(self, compared: Compared) -> Float[np.ndarray, "left right"]:
        left, right = compared["left"][:, : self.rank], compared["right"][:, : self.rank]
        scale = float(np.square(right).sum(1).mean()) or 1.0  # no components where expression does not vary
        return 1 + left @ right.T / scale


class Space:
    """Expression and coordinates of any regions beside those of the training regions.

    Args:
        train: The training regions.
        genes: Compare expression.
        place: Compare coordinates.
        components: Number of principal components of expression.
    """

    def __init__(self, train: Regions, genes: bool = False, place: bool = False, components: int = 0) -> None:
        self._train, self._genes, self._place = train, genes, place
        self._components = Components(train, components) if components else None

    def compare(self, regions: Regions) -> Compared:
        """Any regions, with the same genes, on the left against the training regions on the right.

        Returns:
            `genes`, squared distances of expression, standardised over the training regions, divided by the number of
            genes that vary there; `axes`, (left, right, 3), squared differences of (|x|, y, z); `sides`, 1 where x has
            another sign, else 0; `left` and `right`, components of each.
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
        if self._components is not None:
            compared |= {"left": self._components(regions), "right": self._components(self._train)}
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

    KEPT: ClassVar[Kept] = {"inverse": None, "target": None}

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

    def scores(self, kernel: GaussianKernel | LinearKernel, over: Sequence[bool]) -> list[list[float]]:
        """Pearson's r without or with the trunk, for each penalty; 0 where it is not defined."""
        spectrum, cross = Spectrum.of(kernel(self.learn)), kernel(self.check)

        def score(trunk: bool, penalty: float) -> float:
            predicted = TwoStep(spectrum, self.targets[trunk], penalty).predict(cross)[tuple(self.pairs.T)]
            return float(np.nan_to_num(pearson(self.values, predicted + self.trunks[trunk])))

        return [[score(trunk, penalty) for penalty in PENALTIES] for trunk in over]


Kernel = TypeVar("Kernel", GaussianKernel, LinearKernel)


class _Ridge(Method, Generic[Kernel]):
    """Two-step kernel ridge with a kernel and a penalty that inner folds choose.

    The regions of a fold are left out, rows and columns; the pairs among them are predicted. The choice is the one with
    the best mean of Pearson's r over the folds.

    Attributes:
        kernel: Chosen.
        penalty: Chosen.
        over_trunk: Chosen: it is fitted to what distance leaves, see `omniset.regions.geometry.Geometry`.
        score: Mean over inner folds of Pearson's r with this choice; None where there were fewer than two.
    """

    kernel: Kernel
    penalty: float
    over_trunk: bool
    score: float | None
    mean: float
    trunk: Geometry | None
    fitted: TwoStep
    chosen: _Ridge[Kernel] | None = None

    def _fit(self, train: Regions, seed: int) -> None:
        self.kernel, self.penalty, self.over_trunk, self.score = self._first(), PENALTIES[0], False, None
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
                trunks: list[Geometry | None] = [None]
                if self.needs_coordinates:
                    trunks.append(geometry_of(learn))
                parts = [np.zeros(len(pairs)) if trunk is None else trunk.at(check, pairs) for trunk in trunks]
                targets = [_rest(learn, trunk)[1] for trunk in trunks]
                folds.append(
                    Fold(space.compare(learn), space.compare(check), tuple(targets), tuple(parts), pairs, values)
                )
        return folds

    def _choose(self, folds: list[Fold], kernels: Sequence[Kernel], over: Sequence[bool] | None = None) -> None:
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

    @abstractmethod
    def _first(self) -> Kernel:
        """The kernel where there are no folds to choose by."""

    @abstractmethod
    def _search(self, folds: list[Fold]) -> None:
        """Call `_choose` with what there is to choose from."""

    @abstractmethod
    def _space_of(self, train: Regions) -> Space: ...


def _rest(train: Regions, trunk: Geometry | None) -> tuple[float, Square]:
    """Mean and differences from it; with a trunk 0, and what the trunk leaves."""
    if trunk is None:
        return centred_target(train)
    pairs, values = known_pairs(train)
    return 0.0, matrix_of(train, pairs, values - trunk.at(train, pairs))


class KernelRidge(_Ridge[GaussianKernel]):
    """Two-step kernel ridge with Gaussian kernels of expression, of coordinates, or of both: see `TwoStep`.

    The width of places, whether sides count, and the trunk are chosen first, then the width of each axis; then the rate
    of genes together with how the two are put together; then all widths and the rate once more about these. Each is
    tried with every penalty. All combinations would be a hundred times as many. Choices are made on 300 regions at
    most, drawn by the seed.

    Args:
        name: Of the method.
        genes: Use expression.
        place: Use coordinates.
        start: Fitted to places alone, of the same regions and seed: its choices are begun with. None: they are made
            here.
        chosen: Of this kind, and fitted: its choices are taken. None: they are made here.
    """

    KEPT: ClassVar[Kept] = {
        **dict.fromkeys(("penalty", "over_trunk", "score", "mean")),
        "kernel": GaussianKernel,
        "trunk": Geometry,
        "fitted": TwoStep,
    }

    def __init__(
        self,
        name: str = "ridge",
        genes: bool = True,
        place: bool = True,
        start: KernelRidge | None = None,
        chosen: KernelRidge | None = None,
    ) -> None:
        if not (genes or place):
            raise ValueError("genes and place must not both be False")
        self.name, self.needs_genes, self.needs_coordinates = name, genes, place
        self.start, self.chosen = start, chosen

    def _first(self) -> GaussianKernel:
        widths = (WIDTHS[0],) * 3 if self.needs_coordinates else None
        return GaussianKernel(RATES[0] if self.needs_genes else None, widths)

    def _search(self, folds: list[Fold]) -> None:
        if not self.needs_coordinates:
            self._choose(folds, [GaussianKernel(rate) for rate in GENES_ALONE])
            return
        if self.start is None:
            near = [GaussianKernel(widths=(width,) * 3, side=side) for width in WIDTHS for side in SIDES]
            self._choose(folds, near, (False, True))
            for axis in range(3):
                self._choose(folds, [self.kernel.stretched(factor, [axis]) for factor in STRETCHED])
        else:
            self.kernel, self.penalty = self.start.kernel, self.start.penalty
            self.over_trunk, self.score = self.start.over_trunk, self.start.score
        if self.needs_genes:
            both = [replace(self.kernel, rate=rate, weight=weight) for rate in RATES for weight in WEIGHTS]
            self._choose(folds, both)
        self._choose(folds, [self.kernel.stretched(factor) for factor in STRETCHED])
        if self.kernel.rate is not None:
            self._choose(folds, [replace(self.kernel, rate=self.kernel.rate * factor) for factor in STRETCHED])

    def _space_of(self, train: Regions) -> Space:
        return Space(train, genes=self.needs_genes, place=self.needs_coordinates)


class Bilinear(_Ridge[LinearKernel]):
    """(1, p_i)^T W (1, p_j) + mean, with p the first principal components of expression.

    It is two-step kernel ridge with a linear kernel, see `TwoStep`; p is scaled to a mean square norm of 1. The inner
    folds choose the number of components, out of 5, 10, 20 and 40, and the penalty.
    """

    name = "bilinear"
    KEPT: ClassVar[Kept] = {**KernelRidge.KEPT, "kernel": LinearKernel}

    def _first(self) -> LinearKernel:
        return LinearKernel(RANKS[0])

    def _search(self, folds: list[Fold]) -> None:
        self._choose(folds, [LinearKernel(rank) for rank in RANKS])

    def _space_of(self, train: Regions) -> Space:
        return Space(train, components=max(RANKS))
