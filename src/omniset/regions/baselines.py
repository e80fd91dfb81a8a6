"""What a model must beat: connectivity by distance, by likeness of expression, by closed forms, by features of pairs.

Every method learns from the pairs among the regions it is given, and every number it keeps, means, scales, components,
widths and penalties, is of these regions alone. Their order does not matter: they are sorted by name first.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import numpy as np
from jaxtyping import Float
from scipy.optimize import least_squares
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

from omniset.regions.data import Pairs, PairValues, Regions
from omniset.regions.methods import Method
from omniset.regions.ridge import Bilinear, KernelRidge
from omniset.regions.scaling import Components, Scaling, known_pairs, mirrored_places, places_of, squared_distances
from omniset.regions.scores import pair_distance

COMPONENTS = 10
MOST_PAIRS = 300_000
ITERATIONS = 200  # of boosting
AT_ONCE = 100_000  # pairs whose features are in memory together

Expression = Float[np.ndarray, "n genes"]
Features = Float[np.ndarray, "pairs features"]


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

    def _fit(self, train: Regions, seed: int) -> None:
        self._scaling = Scaling.of(train.expression)
        pairs, values = known_pairs(train)
        expression = self._scaling(train.expression)
        self._learn(expression, pairs)
        self.slope, self.intercept = _line(self._likeness(expression)[tuple(pairs.T)], values)

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        return self.slope * self._likeness(self._scaling(regions.expression))[tuple(pairs.T)] + self.intercept

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
    """A regressor from scikit-learn on features of pairs; at most 300,000 training pairs are drawn."""

    products = True

    def _fit(self, train: Regions, seed: int) -> None:
        self._features = PairFeatures(train, self.needs_genes, self.needs_coordinates, self.products)
        pairs, values = known_pairs(train)
        if len(pairs) > MOST_PAIRS:
            drawn = np.sort(np.random.default_rng(seed).choice(len(pairs), MOST_PAIRS, replace=False))
            pairs, values = pairs[drawn], values[drawn]
        self._learn(self._features(train, pairs), values, seed)

    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        parts = [pairs[at : at + AT_ONCE] for at in range(0, len(pairs), AT_ONCE)]
        return np.concatenate([self._of(self._features(regions, part)) for part in parts])

    @abstractmethod
    def _learn(self, features: Features, values: PairValues, seed: int) -> None: ...

    @abstractmethod
    def _of(self, features: Features) -> PairValues: ...


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

    def _learn(self, features: Features, values: PairValues, seed: int) -> None:
        self._model = HistGradientBoostingRegressor(
            learning_rate=0.05, max_iter=ITERATIONS, early_stopping=False, random_state=seed
        ).fit(features, values)

    def _of(self, features: Features) -> PairValues:
        return self._model.predict(features)


class Perceptron(_OfFeatures):
    """A network of two hidden layers (128, 64) on pair features without products, in 30 epochs of Adam.

    Features and connectivity are standardised over the training pairs. L2 penalty 0.01, no early stop.
    """

    name = "mlp"
    needs_coordinates = True
    products = False

    def _learn(self, features: Features, values: PairValues, seed: int) -> None:
        self._scaling = Scaling.of(features)
        self._mean, self._scale = float(values.mean()), float(values.std()) or 1.0
        self._model = MLPRegressor(hidden_layer_sizes=(128, 64), alpha=1e-2, max_iter=30, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # 30 epochs are meant
            self._model.fit(self._scaling(features), (values - self._mean) / self._scale)

    def _of(self, features: Features) -> PairValues:
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


def _line(x: PairValues, y: PairValues) -> tuple[float, float]:
    """Slope and intercept by least squares; slope 0 where x is constant."""
    centred = x - x.mean()
    squares = float(np.square(centred).sum())
    slope = float(centred @ y) / squares if squares > 0 else 0.0
    return slope, float(y.mean() - slope * x.mean())
