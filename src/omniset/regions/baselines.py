"""What a model must beat: connectivity by distance, by likeness of expression, by closed forms, by features of pairs.

Every method learns from the pairs among the regions it is given, and every number it keeps, means, scales, components,
widths and penalties, is of these regions alone. Their order does not matter: they are sorted by name first.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import least_squares
from scipy.sparse.linalg import LinearOperator, cg
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

from omniset.regions.data import Regions
from omniset.regions.scores import FEWEST, pair_distance, pearson
from omniset.regions.splits import FEWEST as FEWEST_IN_FOLD
from omniset.regions.splits import check_places, split

FOLDS = 4
COMPONENTS = 10
MOST_PAIRS = 300_000
ITERATIONS = 200  # of boosting
AT_ONCE = 100_000  # pairs whose features are in memory together

# What inner folds choose from; the first is kept unless another is clearly better.
RATES = (0.3, 0.1, 1.0, 3.0)
WIDTHS = (1.0, 0.3, 3.0, 0.1)
WEIGHTS = (0.5, 0.25, 0.75)
RANKS = (10, 5, 20, 40)
PENALTIES = (0.3, 0.1, 1.0, 0.03, 3.0, 10.0)


class Method(ABC):
    """Connectivity of pairs of regions, learned from other regions.

    Attributes:
        name: As in METHODS.
        needs_genes: Does it use expression?
        needs_coordinates: Does it use coordinates?
        genes: Of the fit, in order.
        directed: Was it fitted to directed connectivity? If not, (i, j) and (j, i) are predicted alike.
    """

    name: str
    needs_genes = True
    needs_coordinates = False
    genes: list[str]
    directed: bool

    def fit(self, regions: Regions, rows: Int[np.ndarray, " rows"], seed: int = 0) -> Method:
        """Learn from the pairs among some regions; nothing of the others is looked at.

        Args:
            regions: With connectivity; pairs that are not known are left out.
            rows: Positions of the regions to learn from, each once, in any order.
            seed: The same gives the same predictions. It decides on inner folds, on pairs that are drawn and on where
                a network starts; closed forms without choices do not depend on it.

        Raises:
            ValueError: Rows that are doubled or no region's, fewer than 3 known pairs among them, no gene that differs
                between them or a region without coordinates where the method needs these.
        """
        _check_rows(rows, len(regions))
        train = regions.take(sorted(rows.tolist(), key=regions.names.__getitem__))
        known = len(train.pairs())
        if known < FEWEST:
            raise ValueError(f"rows must have at least {FEWEST} pairs of known connectivity among them, got {known}")
        self._check_coordinates(train)
        if self.needs_genes and not Scaling.of(train.expression).varies.any():
            raise ValueError(f"expression must differ between the {len(train)} rows in a gene at least, it is constant")
        self.genes, self.directed = list(regions.genes), regions.directed
        self._fit(train, seed)
        return self

    def predict(self, regions: Regions, pairs: Int[np.ndarray, "pairs 2"]) -> Float[np.ndarray, " pairs"]:
        """Connectivity of pairs.

        Args:
            regions: Any, with the genes of the fit in the same order where the method uses genes.
            pairs: Positions into these regions, (from, to) where connectivity is directed.

        Raises:
            ValueError: Not fitted, other genes, a pair of no region, or a region without coordinates where the method
                needs them.
        """
        if not hasattr(self, "genes"):
            raise ValueError(f"this {type(self).__name__} is not fitted yet: call fit first")
        if self.needs_genes:
            _check_genes(regions.genes, self.genes)
        if len(pairs) == 0:
            return np.zeros(0)
        outside = pairs[((pairs < 0) | (pairs >= len(regions))).any(1)]
        if len(outside):
            raise ValueError(f"pairs must be of positions from 0 to {len(regions) - 1}, got {outside[0].tolist()}")
        if not self.directed:
            pairs = np.sort(pairs, 1)
        # Every pair once: (i, j) and (j, i) then have the same prediction to the bit.
        codes, of = np.unique(pairs[:, 0] * np.int64(len(regions)) + pairs[:, 1], return_inverse=True)
        used, at = np.unique(np.stack(np.divmod(codes, len(regions)), 1), return_inverse=True)
        chosen = regions.take(used)
        self._check_coordinates(chosen)
        return self._predict(chosen, at.reshape(-1, 2))[of]

    def _check_coordinates(self, regions: Regions) -> None:
        if not self.needs_coordinates:
            return
        if regions.coordinates is None:
            raise ValueError(f"coordinates are not known of these regions: {self.name!r} needs them")
        check_places(regions.coordinates, regions.names)

    @abstractmethod
    def _fit(self, train: Regions, seed: int) -> None: ...

    @abstractmethod
    def _predict(self, regions: Regions, pairs: Int[np.ndarray, "pairs 2"]) -> Float[np.ndarray, " pairs"]: ...


# ---------------------------------------------------------------------- one number of a pair, and a curve


class DistanceDecay(Method):
    """Exponential decay a exp(-d / b) + c with the distance d, by least squares.

    b is between a thousandth and ten times the longest distance among the training regions, a and c are free. The start
    is the best of 25 b, each with its a and c in closed form, so that no other minimum is found.

    Attributes:
        a: In units of connectivity.
        b: In mm.
        c: In units of connectivity.
    """

    name = "distance"
    needs_genes = False
    needs_coordinates = True

    def _fit(self, train: Regions, seed: int) -> None:
        pairs, values = _known(train)
        distance = _distance(train, pairs)
        longest = distance.max() or 1.0
        low, high = longest / 1000, longest * 10

        def start(b: float) -> tuple[float, float, float]:
            slope, intercept = _line(np.exp(-distance / b), values)
            return slope, b, intercept

        def residuals(a: float, b: float, c: float) -> Float[np.ndarray, " pairs"]:
            return a * np.exp(-distance / b) + c - values

        starts = [start(float(b)) for b in np.geomspace(low, high, 27)[1:-1]]
        best = min(starts, key=lambda abc: float(np.square(residuals(*abc)).sum()))
        scale = values.std() or 1.0
        bounds = ([-np.inf, low, -np.inf], [np.inf, high, np.inf])
        # What scipy's curve_fit calls where there are bounds, without the covariance that may not exist.
        found = least_squares(lambda x: residuals(*x), best, bounds=bounds, x_scale=[scale, best[1], scale])
        self.a, self.b, self.c = map(float, found.x)

    def _predict(self, regions: Regions, pairs: Int[np.ndarray, "pairs 2"]) -> Float[np.ndarray, " pairs"]:
        return self.a * np.exp(-_distance(regions, pairs) / self.b) + self.c


class _Likeness(Method):
    """A line through connectivity over the likeness of two regions' expression."""

    def _fit(self, train: Regions, seed: int) -> None:
        self._scaling = Scaling.of(train.expression)
        pairs, values = _known(train)
        expression = self._scaling(train.expression)
        self._learn(expression, pairs)
        self.slope, self.intercept = _line(self._likeness(expression)[tuple(pairs.T)], values)

    def _predict(self, regions: Regions, pairs: Int[np.ndarray, "pairs 2"]) -> Float[np.ndarray, " pairs"]:
        return self.slope * self._likeness(self._scaling(regions.expression))[tuple(pairs.T)] + self.intercept

    def _learn(self, expression: Float[np.ndarray, "n genes"], pairs: Int[np.ndarray, "pairs 2"]) -> None:
        pass

    @abstractmethod
    def _likeness(self, expression: Float[np.ndarray, "n genes"]) -> Float[np.ndarray, "n n"]: ...


class CoExpression(_Likeness):
    """Correlated gene expression: slope r_ij + intercept, with r_ij Pearson's r of two regions over standardised genes.

    A region whose standardised expression is the same for all genes, such as one that was not measured, has r = 0.

    Attributes:
        slope, intercept: In units of connectivity; the slope may be negative.
    """

    name = "cge"

    def _likeness(self, expression: Float[np.ndarray, "n genes"]) -> Float[np.ndarray, "n n"]:
        centred = expression - expression.mean(1, keepdims=True)
        length = np.linalg.norm(centred, axis=1, keepdims=True)
        unit = np.divide(centred, length, out=np.zeros_like(centred), where=length > 1e-12)
        return unit @ unit.T


class GaussianLikeness(_Likeness):
    """slope exp(-|z_i - z_j|^2 / (2 s^2)) + intercept, over standardised genes z.

    Attributes:
        s: Median of |z_i - z_j| over the known training pairs; 1 where that is 0.
        slope, intercept: In units of connectivity; the slope may be negative.
    """

    name = "gaussian"

    def _learn(self, expression: Float[np.ndarray, "n genes"], pairs: Int[np.ndarray, "pairs 2"]) -> None:
        squares = squared_distances(expression, expression)[tuple(pairs.T)]
        self.s = float(np.median(np.sqrt(squares))) or 1.0

    def _likeness(self, expression: Float[np.ndarray, "n genes"]) -> Float[np.ndarray, "n n"]:
        return np.exp(-squared_distances(expression, expression) / (2 * self.s**2))


# ---------------------------------------------------------------------- two-step kernel ridge


@dataclass(frozen=True)
class Compared:
    """What kernels are made of: regions on the left against the training regions on the right.

    Attributes:
        genes: Squared distance of standardised expression, divided by the number of genes that vary in training.
        place: Squared distance of coordinates in units of the training standard deviation of each axis; None: unused.
        mirrored: The same of (|x|, y, z): the two hemispheres are nearly mirror images; None: unused.
        left: Principal components of expression.
        right: Of the training regions.
    """

    genes: Float[np.ndarray, "left right"] | None = None
    place: Float[np.ndarray, "left right"] | None = None
    mirrored: Float[np.ndarray, "left right"] | None = None
    left: Float[np.ndarray, "left components"] | None = None
    right: Float[np.ndarray, "right components"] | None = None


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
        found = []
        if self.rate is not None:
            assert compared.genes is not None
            found.append(np.exp(-self.rate * compared.genes))
        if self.width is not None:
            squares = compared.mirrored if self.mirrored else compared.place
            assert squares is not None
            found.append(np.exp(-squares / (2 * self.width**2)))
        if len(found) == 1:
            return 1 + found[0]
        if self.weight is None:
            return 1 + found[0] * found[1]
        return 1 + self.weight * found[0] + (1 - self.weight) * found[1]


@dataclass(frozen=True)
class LinearKernel:
    """1 + p_i . p_j / s of the first principal components p, with s the mean of p_i . p_i over the training regions.

    Attributes:
        rank: Number of components, fewer where there are fewer.
    """

    rank: int

    def __call__(self, compared: Compared) -> Float[np.ndarray, "left right"]:
        assert compared.left is not None
        assert compared.right is not None
        left, right = compared.left[:, : self.rank], compared.right[:, : self.rank]
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
        self._train = train
        self._genes, self._place = genes, place
        self._components = Components(train, components) if components else None

    def compare(self, regions: Regions) -> Compared:
        """Any regions, with the same genes, against the training regions."""
        compared: dict[str, Float[np.ndarray, "left columns"]] = {}
        if self._genes:
            scaling = Scaling.of(self._train.expression)
            z, own = scaling(regions.expression), scaling(self._train.expression)
            compared["genes"] = squared_distances(z, own) / max(int(scaling.varies.sum()), 1)
        if self._place:
            for name, of in (("place", _places), ("mirrored", _mirrored)):
                scaling = Scaling.of(of(self._train))
                compared[name] = squared_distances(scaling(of(regions)), scaling(of(self._train)))
        if self._components is not None:
            compared["left"] = self._components(regions)
            compared["right"] = self._components(self._train)
        return Compared(**compared)


@dataclass(frozen=True)
class Spectrum:
    """A symmetric positive semidefinite kernel K = U diag(s) U^T: every penalty then costs products alone."""

    values: Float[np.ndarray, " n"]
    vectors: Float[np.ndarray, "n n"]

    @classmethod
    def of(cls, kernel: Float[np.ndarray, "n n"]) -> Spectrum:
        values, vectors = np.linalg.eigh(kernel)
        return cls(np.maximum(values, 0), vectors)

    def inverse(self, penalty: float) -> Float[np.ndarray, "n n"]:
        """(K + penalty I)^-1."""
        return (self.vectors / (self.values + penalty)) @ self.vectors.T


@dataclass(frozen=True)
class TwoStep:
    """A fitted two-step kernel ridge, see `two_step`.

    Attributes:
        inverse: (K + l I)^-1.
        target: Y, with what is not known filled in.
    """

    inverse: Float[np.ndarray, "n n"]
    target: Float[np.ndarray, "n n"]

    def predict(self, cross: Float[np.ndarray, "regions n"]) -> Float[np.ndarray, "regions regions"]:
        """All pairs of any regions, from their kernel with the training regions."""
        found = cross @ self.inverse
        return found @ self.target @ found.T


def two_step(spectrum: Spectrum, target: Float[np.ndarray, "n n"], penalty: float) -> TwoStep:
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
    inverse = spectrum.inverse(penalty)
    smoother = np.eye(len(target)) - penalty * inverse
    return TwoStep(inverse, filled(target, smoother))


def filled(target: Float[np.ndarray, "n n"], smoother: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """Y with unknown entries such that (H Y H)_ij = Y_ij in each of them.

    For the symmetric H = K (K + l I)^-1, with eigenvalues below 1, there is one such Y. If the diagonal alone is not
    known, it is the solution d of (I - H o H) d = diag(H Y_0 H), with o by entries and Y_0 zero on the diagonal. Else
    the equations are solved by conjugate gradients, to 1e-6.

    Args:
        target: NaN where it is not known.
        smoother: H.
    """
    unknown = np.isnan(target)
    found = np.where(unknown, 0.0, target)
    if not unknown.any():
        return found
    if np.array_equal(unknown, np.eye(len(target), dtype=bool)):
        fit = ((smoother @ found) * smoother).sum(1)
        np.fill_diagonal(found, np.linalg.solve(np.eye(len(target)) - np.square(smoother), fit))
        return found

    def remainder(entries: Float[np.ndarray, " unknown"]) -> Float[np.ndarray, " unknown"]:
        whole = np.zeros_like(found)
        whole[unknown] = entries.reshape(-1)
        return whole[unknown] - (smoother @ whole @ smoother)[unknown]

    number = int(unknown.sum())
    operator = LinearOperator((number, number), matvec=remainder, dtype=np.float64)
    found[unknown], _ = cg(operator, (smoother @ found @ smoother)[unknown], rtol=1e-6, maxiter=1000)
    return found


@dataclass(frozen=True)
class _Fold:
    """Regions to learn from, and others whose pairs are to be predicted."""

    learn: Compared
    check: Compared
    target: Float[np.ndarray, "n n"]
    pairs: Int[np.ndarray, "pairs 2"]
    values: Float[np.ndarray, " pairs"]

    def scores(self, kernel: GaussianKernel | LinearKernel) -> list[float]:
        """Pearson's r for each penalty, 0 where it is not defined."""
        spectrum, cross = Spectrum.of(kernel(self.learn)), kernel(self.check)
        found = [two_step(spectrum, self.target, penalty).predict(cross) for penalty in PENALTIES]
        return [float(np.nan_to_num(pearson(self.values, f[tuple(self.pairs.T)]))) for f in found]


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
        self._mean, target = _target(train)
        self._fitted = two_step(Spectrum.of(self.kernel(self._space.compare(train))), target, self.penalty)

    def _predict(self, regions: Regions, pairs: Int[np.ndarray, "pairs 2"]) -> Float[np.ndarray, " pairs"]:
        found = self._fitted.predict(self.kernel(self._space.compare(regions)))
        return found[tuple(pairs.T)] + self._mean

    def _inner(self, train: Regions, seed: int) -> list[_Fold]:
        """Four folds, fewer of few regions: spatial where all places are known, else random."""
        number = min(FOLDS, len(train) // FEWEST_IN_FOLD)
        if number < 2:
            return []
        placed = train.coordinates is not None and np.isfinite(train.coordinates).all()
        found = []
        for rows in split("spatial" if placed else "random", train, number, seed):
            check, learn = train.take(rows), train.take(np.setdiff1d(np.arange(len(train)), rows))
            if len(check.pairs()) >= FEWEST and len(learn.pairs()) >= FEWEST:
                space = self._space_of(learn)
                _, target = _target(learn)
                found.append(_Fold(space.compare(learn), space.compare(check), target, *_known(check)))
        return found

    def _choose(self, folds: list[_Fold], kernels: list[Kernel]) -> None:
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
    def _search(self, folds: list[_Fold]) -> None:
        """Call `_choose` with what there is to choose from."""

    @abstractmethod
    def _space_of(self, train: Regions) -> Space: ...


class KernelRidge(_Ridge[GaussianKernel]):
    """Two-step kernel ridge with Gaussian kernels of expression, of coordinates, or of both: see `two_step`.

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

    def _search(self, folds: list[_Fold]) -> None:
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

    It is two-step kernel ridge with a linear kernel, see `two_step`; p is scaled to a mean square norm of 1. The inner
    folds choose the number of components, out of 5, 10, 20 and 40, and the penalty.
    """

    name = "bilinear"

    def _first(self) -> LinearKernel:
        return LinearKernel(RANKS[0])

    def _search(self, folds: list[_Fold]) -> None:
        self._choose(folds, [LinearKernel(rank) for rank in RANKS])

    def _space_of(self, train: Regions) -> Space:
        return Space(train, components=max(RANKS))


# ---------------------------------------------------------------------- features of pairs


class PairFeatures:
    """Features of a pair (i, j), the same for (j, i) unless connectivity is directed.

    Of the first 10 principal components p of expression: |p_i - p_j|, p_i + p_j, and p_i p_j by entries. Of the places,
    in mm: the distance, the distance of (|x|, y, z), their sums and absolute differences, and whether both are on the
    same side (x of the same sign). Directed: also p_i, p_j and (|x|, y, z) of i and of j.

    Args:
        train: The training regions, whose components are used.
        genes: Of expression.
        place: Of coordinates.
        products: p_i p_j as well.
    """

    def __init__(self, train: Regions, genes: bool, place: bool, products: bool) -> None:
        self.directed = train.directed
        self.place = place
        self.products = products
        self.components = Components(train, COMPONENTS) if genes else None

    def __call__(self, regions: Regions, pairs: Int[np.ndarray, "pairs 2"]) -> Float[np.ndarray, "pairs features"]:
        i, j = pairs.T
        found = []
        if self.components is not None:
            p = self.components(regions)
            found += [abs(p[i] - p[j]), p[i] + p[j]]
            found += [p[i] * p[j]] if self.products else []
            found += [p[i], p[j]] if self.directed else []
        if self.place:
            c, m = _places(regions), _mirrored(regions)
            found += [np.linalg.norm(of[i] - of[j], axis=1)[:, None] for of in (c, m)]
            found += [m[i] + m[j], abs(m[i] - m[j]), (c[i, :1] * c[j, :1] > 0).astype(np.float64)]
            found += [m[i], m[j]] if self.directed else []
        return np.concatenate(found, 1)


class _OfFeatures(Method):
    """A regressor from scikit-learn on features of pairs; at most 300,000 training pairs are drawn."""

    products = True

    def _fit(self, train: Regions, seed: int) -> None:
        self._features = PairFeatures(train, self.needs_genes, self.needs_coordinates, self.products)
        pairs, values = _known(train)
        if len(pairs) > MOST_PAIRS:
            drawn = np.sort(np.random.default_rng(seed).choice(len(pairs), MOST_PAIRS, replace=False))
            pairs, values = pairs[drawn], values[drawn]
        self._learn(self._features(train, pairs), values, seed)

    def _predict(self, regions: Regions, pairs: Int[np.ndarray, "pairs 2"]) -> Float[np.ndarray, " pairs"]:
        parts = [pairs[at : at + AT_ONCE] for at in range(0, len(pairs), AT_ONCE)]
        return np.concatenate([self._of(self._features(regions, part)) for part in parts])

    @abstractmethod
    def _learn(
        self, features: Float[np.ndarray, "pairs features"], values: Float[np.ndarray, " pairs"], seed: int
    ) -> None: ...

    @abstractmethod
    def _of(self, features: Float[np.ndarray, "pairs features"]) -> Float[np.ndarray, " pairs"]: ...


class Boosting(_OfFeatures):
    """Gradient boosting of trees by histograms on pair features: 200 iterations, learning rate 0.05, no early stop.

    Args:
        name: Of the method.
        genes: Use expression.
        place: Use coordinates.
    """

    def __init__(self, name: str = "boosting", genes: bool = True, place: bool = True) -> None:
        if not (genes or place):
            raise ValueError("genes and place must not both be False")
        self.name, self.needs_genes, self.needs_coordinates = name, genes, place

    def _learn(
        self, features: Float[np.ndarray, "pairs features"], values: Float[np.ndarray, " pairs"], seed: int
    ) -> None:
        self._model = HistGradientBoostingRegressor(
            learning_rate=0.05, max_iter=ITERATIONS, early_stopping=False, random_state=seed
        ).fit(features, values)

    def _of(self, features: Float[np.ndarray, "pairs features"]) -> Float[np.ndarray, " pairs"]:
        return self._model.predict(features)


class Perceptron(_OfFeatures):
    """A network of two hidden layers (128, 64) on pair features without products, in 30 epochs of Adam.

    Features and connectivity are standardised over the training pairs. L2 penalty 0.01, no early stop.
    """

    name = "mlp"
    needs_coordinates = True
    products = False

    def _learn(
        self, features: Float[np.ndarray, "pairs features"], values: Float[np.ndarray, " pairs"], seed: int
    ) -> None:
        self._scaling = Scaling.of(features)
        self._mean, self._scale = float(values.mean()), float(values.std()) or 1.0
        self._model = MLPRegressor(hidden_layer_sizes=(128, 64), alpha=1e-2, max_iter=30, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # 30 epochs are meant
            self._model.fit(self._scaling(features), (values - self._mean) / self._scale)

    def _of(self, features: Float[np.ndarray, "pairs features"]) -> Float[np.ndarray, " pairs"]:
        return self._model.predict(self._scaling(features)) * self._scale + self._mean


METHODS: dict[str, Callable[[], Method]] = {
    "distance": DistanceDecay,
    "cge": CoExpression,
    "gaussian": GaussianLikeness,
    "ridge-genes": partial(KernelRidge, "ridge-genes", place=False),
    "ridge-position": partial(KernelRidge, "ridge-position", genes=False),
    "ridge": KernelRidge,
    "boosting-genes": partial(Boosting, "boosting-genes", place=False),
    "boosting-position": partial(Boosting, "boosting-position", genes=False),
    "boosting": Boosting,
    "bilinear": Bilinear,
    "mlp": Perceptron,
}


# ---------------------------------------------------------------------- numbers of regions and pairs


@dataclass(frozen=True)
class Scaling:
    """(x - mean) / standard deviation by columns, 0 where x is NaN.

    Attributes:
        mean: Of what is not NaN.
        deviation: Likewise, over n.
        varies: Columns that have different values. Others say nothing and become 0 everywhere, also in other rows.
    """

    mean: Float[np.ndarray, " columns"]
    deviation: Float[np.ndarray, " columns"]
    varies: Bool[np.ndarray, " columns"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "rows columns"]) -> Scaling:
        values = np.asarray(values, dtype=np.float64)
        known = np.isfinite(values)
        number = np.maximum(known.sum(0), 1)
        mean = np.where(known, values, 0).sum(0) / number
        deviation = np.sqrt(np.where(known, np.square(values - mean), 0).sum(0) / number)
        varies = np.where(known, values, -np.inf).max(0) > np.where(known, values, np.inf).min(0)
        return cls(mean, np.where(varies, deviation, 1), varies)

    def __call__(self, values: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns"]:
        found = (np.asarray(values, dtype=np.float64) - self.mean) / self.deviation
        return np.where(np.isfinite(found) & self.varies, found, 0)


class Components:
    """Principal components of the standardised expression of the training regions.

    Args:
        train: The training regions.
        number: Of components, fewer where there are fewer.

    Attributes:
        axes: Orthonormal, by descending variance; of each, the entry farthest from 0 is positive.
    """

    axes: Float[np.ndarray, "genes components"]

    def __init__(self, train: Regions, number: int) -> None:
        self._scaling = Scaling.of(train.expression)
        _, values, axes = np.linalg.svd(self._scaling(train.expression), full_matrices=False)
        kept = axes[: min(number, int((values > 1e-10 * values[0]).sum()))]
        largest = np.take_along_axis(kept, abs(kept).argmax(1)[:, None], 1)
        self.axes = (kept * np.sign(largest)).T

    def __call__(self, regions: Regions) -> Float[np.ndarray, "regions components"]:
        return self._scaling(regions.expression) @ self.axes


def squared_distances(
    left: Float[np.ndarray, "left columns"], right: Float[np.ndarray, "right columns"]
) -> Float[np.ndarray, "left right"]:
    """|a - b|^2 of every row a on the left and b on the right."""
    a, b = np.square(left).sum(1)[:, None], np.square(right).sum(1)
    return np.maximum(a + b - 2 * (left @ right.T), 0)


def _places(regions: Regions) -> Float[np.ndarray, "regions 3"]:
    assert regions.coordinates is not None
    return np.asarray(regions.coordinates, dtype=np.float64)


def _mirrored(regions: Regions) -> Float[np.ndarray, "regions 3"]:
    places = _places(regions)
    return np.column_stack([abs(places[:, 0]), places[:, 1:]])


def _distance(regions: Regions, pairs: Int[np.ndarray, "pairs 2"]) -> Float[np.ndarray, " pairs"]:
    return pair_distance(_places(regions), pairs)


def _known(regions: Regions) -> tuple[Int[np.ndarray, "pairs 2"], Float[np.ndarray, " pairs"]]:
    """Pairs of known connectivity, and this."""
    pairs = regions.pairs()
    assert regions.connectivity is not None
    return pairs, np.asarray(regions.connectivity[tuple(pairs.T)], dtype=np.float64)


def _target(regions: Regions) -> tuple[float, Float[np.ndarray, "n n"]]:
    """Mean of the known connectivity, and the matrix of differences from it; NaN: not known."""
    pairs, values = _known(regions)
    mean = float(values.mean())
    found = np.full((len(regions), len(regions)), np.nan)
    found[tuple(pairs.T)] = values - mean
    if not regions.directed:
        found[tuple(pairs.T[::-1])] = values - mean
    return mean, found


def _line(x: Float[np.ndarray, " pairs"], y: Float[np.ndarray, " pairs"]) -> tuple[float, float]:
    """Slope and intercept by least squares; slope 0 where x is constant."""
    centred = x - x.mean()
    squares = float(np.square(centred).sum())
    slope = float(centred @ y) / squares if squares > 0 else 0.0
    return slope, float(y.mean() - slope * x.mean())


def _check_rows(rows: Int[np.ndarray, " rows"], regions: int) -> None:
    outside = rows[(rows < 0) | (rows >= regions)]
    if len(outside):
        raise ValueError(f"rows must be from 0 to {regions - 1}, got {outside[0]}")
    unique, number = np.unique(rows, return_counts=True)
    if (number > 1).any():
        raise ValueError(f"rows must hold each region once, {unique[number > 1][0]} is there more than once")


def _check_genes(genes: list[str], fitted: list[str]) -> None:
    if genes == fitted:
        return
    if len(genes) != len(fitted):
        raise ValueError(f"regions must have the {len(fitted):,} genes of the fit, got {len(genes):,}")
    at = next(k for k, (a, b) in enumerate(zip(genes, fitted, strict=True)) if a != b)
    raise ValueError(
        f"regions must have the genes of the fit in the same order, gene {at} is {genes[at]!r}, not {fitted[at]!r}"
    )
