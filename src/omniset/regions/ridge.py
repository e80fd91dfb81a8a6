"""Two-step kernel ridge: connectivity as a product of kernels of both regions, in a closed form."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, cg

from omniset.regions.data import Pairs, PairValues, Regions
from omniset.regions.methods import Method
from omniset.regions.scaling import (
    Components,
    Scaling,
    centred_target,
    known_pairs,
    mirrored_places,
    places_of,
    squared_distances,
)
from omniset.regions.scores import FEWEST, pearson
from omniset.regions.splits import held_back

FOLDS = 4

# What inner folds choose from; the first is kept unless another is clearly better.
RATES = (0.3, 0.1, 1.0, 3.0)
WIDTHS = (1.0, 0.3, 3.0, 0.1)
WEIGHTS = (0.5, 0.25, 0.75)
RANKS = (10, 5, 20, 40)
PENALTIES = (0.3, 0.1, 1.0, 0.03, 3.0, 10.0)

Square = Float[np.ndarray, "n n"]
Compared = dict[str, Float[np.ndarray, "_ _"]]  # see `Space.compare`


@dataclass(frozen=True)
class GaussianKernel:
    """1 + exp(-rate genes), 1 + exp(-place / (2 width^2)), or 1 + their weighted sum or product.

    The constant has the level of a region's connectivity learned at little penalty, as an intercept does.

    Attributes:
        rate: Of genes; None: only places.
        width: Of places, in standard deviations of the coordinates; None: only genes.
        mirrored: Places are (|x|, y, z).
        weight: Of genes in the sum, that of places is 1 - weight; None: the product.
    """

    rate: float | None = None
    width: float | None = None
    mirrored: bool = True
    weight: float | None = None

    def __call__(self, compared: Compared) -> Float[np.ndarray, "left right"]:
        kernels = []
        if self.rate is not None:
            kernels.append(np.exp(-self.rate * compared["genes"]))
        if self.width is not None:
            kernels.append(np.exp(-compared["mirrored" if self.mirrored else "place"] / (2 * self.width**2)))
        if len(kernels) == 1:
            return 1 + kernels[0]
        if self.weight is None:
            return 1 + kernels[0] * kernels[1]
        return 1 + self.weight * kernels[0] + (1 - self.weight) * kernels[1]


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
    """Expression and coordinates on scales of the training regions.

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
            `genes`, squared distances of standardised expression, divided by the number of genes that vary in training;
            `place`, those of coordinates in units of the training standard deviation of each axis, and `mirrored`, the
            same of (|x|, y, z): the two hemispheres are nearly mirror images; `left` and `right`, components of each.
        """
        compared: Compared = {}
        if self._genes:
            scaling = Scaling.of(self._train.expression)
            z, learned = scaling(regions.expression), scaling(self._train.expression)
            compared["genes"] = squared_distances(z, learned) / max(int(scaling.varies.sum()), 1)
        if self._place:
            for name, of in (("place", places_of), ("mirrored", mirrored_places)):
                scaling = Scaling.of(of(self._train))
                compared[name] = squared_distances(scaling(of(regions)), scaling(of(self._train)))
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
    """Regions to learn from, and others whose pairs are to be predicted."""

    learn: Compared
    check: Compared
    target: Square
    pairs: Pairs
    values: PairValues

    def scores(self, kernel: GaussianKernel | LinearKernel) -> list[float]:
        """Pearson's r for each penalty, 0 where it is not defined."""
        spectrum, cross = Spectrum.of(kernel(self.learn)), kernel(self.check)
        predicted = [TwoStep(spectrum, self.target, penalty).predict(cross) for penalty in PENALTIES]
        return [float(np.nan_to_num(pearson(self.values, f[tuple(self.pairs.T)]))) for f in predicted]


Kernel = TypeVar("Kernel", GaussianKernel, LinearKernel)


class _Ridge(Method, Generic[Kernel]):
    """Two-step kernel ridge with a kernel and a penalty that inner folds choose.

    The regions of a fold are left out, rows and columns; the pairs among them are predicted. The choice with the best
    mean of Pearson's r over the folds replaces the one at hand if it is better by more than the standard error of the
    difference over the folds (after the rule of one standard error of Breiman, Friedman, Olshen and Stone,
    "Classification and regression trees", 1984): four folds are few, and their best choice alone is often worse.

    Attributes:
        kernel: Chosen.
        penalty: Chosen.
        score: Mean over inner folds of Pearson's r with this choice; NaN where there were fewer than two.
    """

    kernel: Kernel
    penalty: float
    score: float

    def _fit(self, train: Regions, seed: int) -> None:
        self.kernel, self.penalty, self.score = self._first(), PENALTIES[0], np.nan
        self._search(self._inner(train, seed))
        self._space = self._space_of(train)
        self._mean, target = centred_target(train)
        self._fitted = TwoStep(Spectrum.of(self.kernel(self._space.compare(train))), target, self.penalty)

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        matrix = self._fitted.predict(self.kernel(self._space.compare(regions)))
        return matrix[tuple(pairs.T)] + self._mean

    def _inner(self, train: Regions, seed: int) -> list[Fold]:
        folds = []
        for learn, check in held_back(train, FOLDS, seed):
            if len(check.pairs()) >= FEWEST and len(learn.pairs()) >= FEWEST:
                space = self._space_of(learn)
                _, target = centred_target(learn)
                folds.append(Fold(space.compare(learn), space.compare(check), target, *known_pairs(check)))
        return folds

    def _choose(self, folds: list[Fold], kernels: list[Kernel]) -> None:
        """Take the best of some kernels, the one at hand among them, with its best penalty, if it is clearly better."""
        if len(folds) < 2:
            return
        scores = np.array([[fold.scores(kernel) for kernel in kernels] for fold in folds])
        means = scores.mean(0)
        best = divmod(int(means.argmax()), len(PENALTIES))
        held = kernels.index(self.kernel), PENALTIES.index(self.penalty)
        gain = scores[:, best[0], best[1]] - scores[:, held[0], held[1]]
        taken = best if gain.mean() > gain.std(ddof=1) / np.sqrt(len(folds)) else held
        self.kernel, self.penalty, self.score = kernels[taken[0]], PENALTIES[taken[1]], float(means[taken])

    @abstractmethod
    def _first(self) -> Kernel:
        """The kernel that is kept unless another is clearly better."""

    @abstractmethod
    def _search(self, folds: list[Fold]) -> None:
        """Call `_choose` with what there is to choose from."""

    @abstractmethod
    def _space_of(self, train: Regions) -> Space: ...


class KernelRidge(_Ridge[GaussianKernel]):
    """Two-step kernel ridge with Gaussian kernels of expression, of coordinates, or of both: see `TwoStep`.

    With both, the width and form of places are chosen first, then the rate of genes, then how the two are put together,
    each with every penalty and with what was chosen before. All combinations would be eight times as many.

    Args:
        name: Of the method.
        genes: Use expression.
        place: Use coordinates.
    """

    def __init__(self, name: str = "ridge", genes: bool = True, place: bool = True) -> None:
        if not (genes or place):
            raise ValueError("genes and place must not both be False")
        self.name, self.needs_genes, self.needs_coordinates = name, genes, place

    def _first(self) -> GaussianKernel:
        both = self.needs_genes and self.needs_coordinates
        rate = RATES[0] if self.needs_genes else None
        return GaussianKernel(rate, WIDTHS[0] if self.needs_coordinates else None, weight=WEIGHTS[0] if both else None)

    def _search(self, folds: list[Fold]) -> None:
        if self.needs_coordinates:
            forms = [(width, mirrored) for mirrored in (True, False) for width in WIDTHS]
            self._choose(folds, [replace(self.kernel, width=width, mirrored=mirrored) for width, mirrored in forms])
        if self.needs_genes:
            self._choose(folds, [replace(self.kernel, rate=rate) for rate in RATES])
        if self.needs_genes and self.needs_coordinates:
            self._choose(folds, [replace(self.kernel, weight=weight) for weight in (*WEIGHTS, None)])

    def _space_of(self, train: Regions) -> Space:
        return Space(train, genes=self.needs_genes, place=self.needs_coordinates)


class Bilinear(_Ridge[LinearKernel]):
    """(1, p_i)^T W (1, p_j) + mean, with p the first principal components of expression.

    It is two-step kernel ridge with a linear kernel, see `TwoStep`; p is scaled to a mean square norm of 1. The inner
    folds choose the number of components, out of 5, 10, 20 and 40, and the penalty.
    """

    name = "bilinear"

    def _first(self) -> LinearKernel:
        return LinearKernel(RANKS[0])

    def _search(self, folds: list[Fold]) -> None:
        self._choose(folds, [LinearKernel(rank) for rank in RANKS])

    def _space_of(self, train: Regions) -> Space:
        return Space(train, components=max(RANKS))
