"""What a model must beat: connectivity by distance, by likeness of expression, by closed forms, by features of pairs.

Every method learns from the pairs among the regions it is given, and every number it keeps, means, scales, components,
widths and penalties, is of these regions alone. Their order does not matter: they are sorted by name first.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from scipy.optimize import least_squares

from omniset.estimators.methods import Trees
from omniset.regions.data import Pairs, PairValues, Regions
from omniset.regions.geometry import Geometry
from omniset.regions.kept import Kept
from omniset.regions.methods import Method
from omniset.regions.ridge import Bilinear, KernelRidge
from omniset.regions.scaling import Components, Scaling, known_pairs, mirrored_places, places_of, squared_distances
from omniset.regions.scores import pair_distance
from omniset.regions.splits import mirrored

COMPONENTS = 10
MOST_PAIRS = 100_000
ITERATIONS, DEPTH = 200, 6  # of boosting
NEAREST = 40  # known regions that a region may copy from
AT_ONCE = 100_000  # pairs whose features are in memory together

Expression = Float[np.ndarray, "n genes"]
Features = Float[np.ndarray, "pairs features"]


# ---------------------------------------------------------------------- one number of a pair, and a curve


class Copy(Method):
    """The connectivity of the nearest known pair: no model at all.

    Of new regions i, j it is that of the pair of known regions a, b with the least d(i, a) + d(j, b), with d the
    distance of (|x|, y, z) in mm, and 1 mm more for either region on the other side. Of two that are as near it is the
    first by name.
    """

    name = "copy"
    needs_genes = False
    needs_coordinates = True
    KEPT: ClassVar[Kept] = {"mean": None}

    def _fit(self, train: Regions, seed: int) -> None:
        self.mean = float(known_pairs(train)[1].mean())
        self._restored(train)

    def _restored(self, train: Regions) -> None:
        self._train = train

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        new, old = places_of(regions), places_of(self._train)
        apart = np.sqrt(squared_distances(mirrored(new), mirrored(old)))
        apart += (new[:, None, 0] > 0) != (old[:, 0] > 0)
        known, values = known_pairs(self._train)
        if not self.directed:  # either way round
            known, values = np.concatenate([known, known[:, ::-1]]), np.concatenate([values, values])
        nearest = np.argsort(apart, 1, kind="stable")[:, :NEAREST]
        matrix = np.full((len(old), len(old)), np.nan)
        matrix[tuple(known.T)] = values
        out = np.empty(len(pairs))
        for at, (i, j) in enumerate(pairs):
            a, b = nearest[i], nearest[j]
            cost = np.where(np.isfinite(matrix[np.ix_(a, b)]), apart[i, a][:, None] + apart[j, b], np.inf)
            row, column = np.unravel_index(int(cost.argmin()), cost.shape)
            out[at] = matrix[a[row], b[column]] if np.isfinite(cost[row, column]) else self.mean
        return out


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
    KEPT: ClassVar[Kept] = dict.fromkeys("abc")

    def _fit(self, train: Regions, seed: int) -> None:
        pairs, values = known_pairs(train)
        distance = pair_distance(places_of(train), pairs)
        longest = distance.max() or 1.0
        low, high = longest / 1000, longest * 10

        def start(b: float) -> tuple[float, float, float]:
            slope, intercept = _line(np.exp(-distance / b), values)
            return slope, b, intercept

        def residuals(a: float, b: float, c: float) -> PairValues:
            return a * np.exp(-distance / b) + c - values

        starts = [start(float(b)) for b in np.geomspace(low, high, 27)[1:-1]]
        best = min(starts, key=lambda abc: float(np.square(residuals(*abc)).sum()))
        scale = values.std() or 1.0
        bounds = ([-np.inf, low, -np.inf], [np.inf, high, np.inf])
        # What scipy's curve_fit calls where there are bounds, without the covariance that may not exist.
        fit = least_squares(lambda x: residuals(*x), best, bounds=bounds, x_scale=[scale, best[1], scale])
        self.a, self.b, self.c = map(float, fit.x)

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        return self.a * np.exp(-pair_distance(places_of(regions), pairs) / self.b) + self.c


class _Likeness(Method):
    """A line through connectivity over the likeness of two regions' expression."""

    KEPT: ClassVar[Kept] = {"scaling": Scaling, "slope": None, "intercept": None}

    def _fit(self, train: Regions, seed: int) -> None:
        self.scaling = Scaling.of(train.expression)
        pairs, values = known_pairs(train)
        expression = self.scaling(train.expression)
        self._learn(expression, pairs)
        self.slope, self.intercept = _line(self._likeness(expression)[tuple(pairs.T)], values)

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        return self.slope * self._likeness(self.scaling(regions.expression))[tuple(pairs.T)] + self.intercept

    def _learn(self, expression: Expression, pairs: Pairs) -> None:
        """What the likeness needs to be known of the training pairs."""

    @abstractmethod
    def _likeness(self, expression: Expression) -> Float[np.ndarray, "n n"]: ...


class CoExpression(_Likeness):
    """Correlated gene expression: slope r_ij + intercept, with r_ij Pearson's r of two regions over standardised genes.

    A region whose standardised expression is the same for all genes, such as one that was not measured, has r = 0.

    Attributes:
        slope, intercept: In units of connectivity; the slope may be negative.
    """

    name = "cge"

    def _likeness(self, expression: Expression) -> Float[np.ndarray, "n n"]:
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
    KEPT: ClassVar[Kept] = {**_Likeness.KEPT, "s": None}

    def _learn(self, expression: Expression, pairs: Pairs) -> None:
        squares = squared_distances(expression, expression)[tuple(pairs.T)]
        self.s = float(np.median(np.sqrt(squares))) or 1.0

    def _likeness(self, expression: Expression) -> Float[np.ndarray, "n n"]:
        return np.exp(-squared_distances(expression, expression) / (2 * self.s**2))


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

    KEPT: ClassVar[Kept] = {"directed": None, "place": None, "products": None, "components": Components}

    def __init__(self, train: Regions, genes: bool, place: bool, products: bool) -> None:
        self.directed = train.directed
        self.place = place
        self.products = products
        self.components = Components(train, COMPONENTS) if genes else None

    def __call__(self, regions: Regions, pairs: Pairs) -> Features:
        i, j = pairs.T
        features = []
        if self.components is not None:
            p = self.components(regions)
            features += [abs(p[i] - p[j]), p[i] + p[j]]
            features += [p[i] * p[j]] if self.products else []
            features += [p[i], p[j]] if self.directed else []
        if self.place:
            c, m = places_of(regions), mirrored_places(regions)
            features += [np.linalg.norm(of[i] - of[j], axis=1)[:, None] for of in (c, m)]
            features += [m[i] + m[j], abs(m[i] - m[j]), (c[i, :1] * c[j, :1] > 0).astype(np.float64)]
            features += [m[i], m[j]] if self.directed else []
        return np.concatenate(features, 1)


class _OfFeatures(Method):
    """A regressor on features of pairs; at most 100,000 training pairs are drawn.

    Args:
        name: Of the method.
        genes: Use expression.
        place: Use coordinates.
    """

    products = True

    def __init__(self, name: str, genes: bool = True, place: bool = True) -> None:
        if not (genes or place):
            raise ValueError("genes and place must not both be False")
        self.name, self.needs_genes, self.needs_coordinates = name, genes, place

    def _fit(self, train: Regions, seed: int) -> None:
        self.features = PairFeatures(train, self.needs_genes, self.needs_coordinates, self.products)
        pairs, values = known_pairs(train)
        if len(pairs) > MOST_PAIRS:
            drawn = np.sort(np.random.default_rng(seed).choice(len(pairs), MOST_PAIRS, replace=False))
            pairs, values = pairs[drawn], values[drawn]
        self._learn(self.features(train, pairs), values, seed)

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        parts = [pairs[at : at + AT_ONCE] for at in range(0, len(pairs), AT_ONCE)]
        return np.concatenate([self._of(self.features(regions, part)) for part in parts])

    @abstractmethod
    def _learn(self, features: Features, values: PairValues, seed: int) -> None: ...

    @abstractmethod
    def _of(self, features: Features) -> PairValues: ...


class Boosting(_OfFeatures):
    """Gradient boosting of trees by histograms on pair features: 200 iterations, learning rate 0.05, no early stop."""

    KEPT: ClassVar[Kept] = {"features": PairFeatures, "trees": Trees, "start": None}

    def __init__(self, name: str = "boosting", genes: bool = True, place: bool = True) -> None:
        super().__init__(name, genes, place)

    def _learn(self, features: Features, values: PairValues, seed: int) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor  # `predict` starts without it

        model = HistGradientBoostingRegressor(
            learning_rate=0.05, max_iter=ITERATIONS, max_depth=DEPTH, early_stopping=False, random_state=seed
        ).fit(features, values)
        self.trees, self.start = Trees.of_histograms(model)

    def _of(self, features: Features) -> PairValues:
        return self.start + len(self.trees.roots) * self.trees.means(features)[:, 0]


class Perceptron(_OfFeatures):
    """A network of two hidden layers (128, 64) on pair features without products, in 30 epochs of Adam.

    Features and connectivity are standardised over the training pairs. L2 penalty 0.01, no early stop.
    """

    products = False
    KEPT: ClassVar[Kept] = {
        "features": PairFeatures,
        "scaling": Scaling,
        **dict.fromkeys(("mean", "scale", "layers")),
    }

    def __init__(self, name: str = "mlp", genes: bool = True, place: bool = True) -> None:
        super().__init__(name, genes, place)

    def _learn(self, features: Features, values: PairValues, seed: int) -> None:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor

        self.scaling = Scaling.of(features)
        self.mean, self.scale = float(values.mean()), float(values.std()) or 1.0
        model = MLPRegressor(hidden_layer_sizes=(128, 64), alpha=1e-2, max_iter=30, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # 30 epochs are meant
            model.fit(self.scaling(features), (values - self.mean) / self.scale)
        layers = zip(model.coefs_, model.intercepts_, strict=True)
        self.layers = {str(at): {"weights": w, "bias": b} for at, (w, b) in enumerate(layers)}

    def _of(self, features: Features) -> PairValues:
        x = self.scaling(features)
        for at in range(len(self.layers)):
            layer = self.layers[str(at)]
            x = x @ layer["weights"] + layer["bias"]
            x = np.maximum(x, 0) if at + 1 < len(self.layers) else x
        return x[:, 0] * self.scale + self.mean


METHODS: dict[str, Callable[[], Method]] = {
    "distance": DistanceDecay,
    "geometry": Geometry,
    "copy": Copy,
    "cge": CoExpression,
    "gaussian": GaussianLikeness,
    "ridge-genes": partial(KernelRidge, "ridge-genes", place=False),
    "ridge-position": partial(KernelRidge, "ridge-position", genes=False),
    "ridge": KernelRidge,
    "boosting-genes": partial(Boosting, "boosting-genes", place=False),
    "boosting-position": partial(Boosting, "boosting-position", genes=False),
    "boosting": Boosting,
    "bilinear": Bilinear,
    "mlp-position": partial(Perceptron, "mlp-position", genes=False),
    "mlp": Perceptron,
}


def _line(x: PairValues, y: PairValues) -> tuple[float, float]:
    """Slope and intercept by least squares; slope 0 where x is constant."""
    centred = x - x.mean()
    squares = float(np.square(centred).sum())
    slope = float(centred @ y) / squares if squares > 0 else 0.0
    return slope, float(y.mean() - slope * x.mean())
