"""What every method has: it learns from some regions, predicts pairs of any, and is stored as plain values. And the
simplest of them: what distance says, and boosted trees.

Every method learns from the pairs among the regions it is given, and every number it keeps, means, scales, components,
widths and penalties, is of these regions alone. Their order does not matter: they are sorted by name first.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Float, Int

from omniset.estimators.methods import Trees
from omniset.regions.data import Pairs, PairValues, Regions, check_places, known_pairs, mirrored, places_of
from omniset.regions.scaling import Components, Scaling
from omniset.regions.scores import FEWEST
from omniset.regions.splits import KINDS
from omniset.runs.finite import require_finite_outputs

# Of distance.
SCALES = (10.0, 20.0, 40.0, 80.0)  # mm
PENALTY = 1e-3  # of the weights, per pair

# Of boosting.
COMPONENTS = 10
MOST_PAIRS = 100_000
ITERATIONS, DEPTH = 200, 6
AT_ONCE = 100_000  # pairs whose features are in memory together

Features = Float[np.ndarray, "pairs features"]
Fields = Mapping[str, Any]  # of an attribute its class; None: a number, text, a list, a dict of these, or an array
T = TypeVar("T")


class Method(ABC):
    """Connectivity of pairs of regions, learned from other regions.

    Places are used where they are known of the regions that are learned from; they must then be known of new regions.

    Args:
        genes: Look at expression. Without, it is of places alone.
    """

    name: str  # as `ConnectivityPredictor` has it
    directed: bool  # fitted to directed connectivity; if not, (i, j) and (j, i) are predicted alike
    # How regions are held back where the method chooses by them, see `omniset.regions.splits.split`: as those will be
    # that it is to predict.
    held_out: str = KINDS[0]
    FIELDS: ClassVar[Fields] = {}  # what it predicts with, besides the regions that it was fitted to

    def __init__(self, genes: bool = True) -> None:
        self.needs_genes, self.needs_coordinates = genes, not genes

    def fit(self, regions: Regions, rows: Int[np.ndarray, " rows"], seed: int = 0) -> Method:
        """Learn from the pairs among some regions; nothing of the others is looked at.

        Args:
            regions: With connectivity; pairs that are not known are left out.
            rows: Positions of the regions to learn from, each once, in any order.
            seed: The same gives the same predictions. It decides on inner folds, on pairs that are drawn and on where
                a network starts; closed forms without choices do not depend on it.

        Raises:
            ValueError: Fewer than 3 known pairs among them, no gene that differs between them, places of some regions
                alone, or none where the method is of places alone.
        """
        train = regions.take(sorted(rows.tolist(), key=regions.names.__getitem__))
        known = len(train.pairs())
        if known < FEWEST:
            raise ValueError(f"rows must have at least {FEWEST} pairs of known connectivity among them, got {known}")
        self._prepare(train)
        self.check_coordinates(train)
        if self.needs_genes and not Scaling.of(train.expression).varies.any():
            raise ValueError(f"expression must differ between the {len(train)} rows in a gene at least, it is constant")
        self._fit(train, seed)
        return self

    def predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        """Connectivity of pairs.

        Args:
            regions: Any, with the genes of the fit in the same order where the method uses genes.
            pairs: Positions into these regions, (from, to) where connectivity is directed.

        Raises:
            ValueError: A region without coordinates where the method needs them, or what is not finite.
        """
        if len(pairs) == 0:
            return np.zeros(0)
        if not self.directed:
            pairs = np.sort(pairs, 1)
        # Every pair once: (i, j) and (j, i) then have the same prediction to the bit.
        codes, of = np.unique(pairs[:, 0] * np.int64(len(regions)) + pairs[:, 1], return_inverse=True)
        used, at = np.unique(np.stack(np.divmod(codes, len(regions)), 1), return_inverse=True)
        chosen, places = regions.take(used), at.reshape(-1, 2)
        self.check_coordinates(chosen)
        predicted = self._predict(chosen, places)
        if not np.isfinite(predicted).all():  # names are made where they are needed: of many pairs that takes long
            require_finite_outputs(predicted, [" and ".join(chosen.names[i] for i in pair) for pair in places], "pair")
        return predicted[of]

    def state(self) -> dict[str, Any]:
        """What it predicts with, as plain values and arrays."""
        return {name: packed(getattr(self, name), kind) for name, kind in self.FIELDS.items()}

    def restore(self, state: dict[str, Any], train: Regions) -> Method:
        """Become as when `state` was taken. `train`: those of the fit, in the order of their names."""
        self._prepare(train)
        take(self, state)
        self._restored(train)
        return self

    def _prepare(self, train: Regions) -> None:
        """What the regions of the fit say of its needs."""
        self.directed = train.directed
        self.needs_coordinates |= self._reads_places(train)

    def _reads_places(self, train: Regions) -> bool:
        return train.coordinates is not None

    def _restored(self, train: Regions) -> None:  # noqa: B027 most methods have all in `state`
        """Make of the regions of the fit what `state` does not have."""

    def check_coordinates(self, regions: Regions) -> None:
        """Raise ValueError where places are needed, and are not known of these regions."""
        if not self.needs_coordinates:
            return
        if regions.coordinates is None:
            raise ValueError(f"coordinates are not known of these regions: {self.name!r} needs them")
        check_places(regions.coordinates, regions.names)

    @abstractmethod
    def _fit(self, train: Regions, seed: int) -> None: ...

    @abstractmethod
    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues: ...


# ---------------------------------------------------------------------- as plain values and arrays


def fields_of(kind: type) -> Fields:
    """The attributes that a class is made of: its FIELDS; of a dataclass else all fields."""
    if hasattr(kind, "FIELDS"):
        fields: Fields = kind.FIELDS
        return fields
    return dict.fromkeys(field.name for field in dataclasses.fields(kind))


def packed(value: Any, kind: type | None = None) -> Any:
    """An object as a dict of plain values and arrays."""
    if kind is None or value is None:
        return value
    return {name: packed(getattr(value, name), of) for name, of in fields_of(kind).items()}


def unpacked(kind: type[T], state: Mapping[str, Any]) -> T:
    """The object that `packed` was given."""
    made = object.__new__(kind)
    take(made, state)
    return made


def take(made: Any, state: Mapping[str, Any]) -> None:
    """Give an object the attributes that `packed` was given. Raises: as `unpacked`."""
    fields = fields_of(type(made))
    if not isinstance(state, Mapping) or state.keys() != fields.keys():
        have = sorted(state) if isinstance(state, Mapping) else state
        raise ValueError(f"{type(made).__name__} must have {', '.join(sorted(fields))}, got {have}")
    for name, of in fields.items():
        value = state[name]
        object.__setattr__(made, name, value if of is None or value is None else unpacked(of, value))


def parted(state: Any, place: str = "") -> tuple[Any, dict[str, np.ndarray]]:
    """Plain values with the place of each array in its stead, and the arrays by place."""
    if isinstance(state, np.ndarray):
        return {"array": place}, {place: state}
    if not isinstance(state, Mapping):
        return state, {}
    plain: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, value in state.items():
        plain[name], more = parted(value, f"{place}__{name}" if place else name)  # as a name of a module may be
        arrays |= more
    return plain, arrays


def joined(plain: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """What `parted` was given."""
    if not isinstance(plain, Mapping):
        return plain
    if plain.keys() == {"array"}:
        if plain["array"] not in arrays:
            raise ValueError(f"there is no array {plain['array']!r}")
        return arrays[plain["array"]]
    return {name: joined(value, arrays) for name, value in plain.items()}


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

    def at(self, regions: Regions, pairs: Pairs) -> PairValues:
        """The trunk of pairs, (i, j) and (j, i) alike, without the checks of `predict`."""
        if len(self.weights) == 1:
            return np.full(len(pairs), self.weights[0])
        return self._features(regions, pairs) @ self.weights

    _predict = at

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


# ---------------------------------------------------------------------- boosted trees


class PairFeatures:
    """Features of a pair (i, j), the same for (j, i) unless connectivity is directed.

    Of the first 10 principal components p of expression: |p_i - p_j|, p_i + p_j, and p_i p_j by entries. Of the places,
    in mm: the distance, the distance of (|x|, y, z), their sums and absolute differences, and whether both are on the
    same side (x of the same sign). Directed: also p_i, p_j and (|x|, y, z) of i and of j.
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
