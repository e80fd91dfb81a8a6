"""What every method has: it learns from some regions, predicts pairs of any, and is stored as plain values."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Int

from omniset.regions.data import Pairs, PairValues, Regions, check_places
from omniset.regions.scaling import Scaling
from omniset.regions.scores import FEWEST
from omniset.regions.splits import KINDS
from omniset.runs.finite import require_finite_outputs

Fields = Mapping[str, Any]  # of an attribute its class; None: a number, text, a list, a dict of these, or an array
T = TypeVar("T")


class Method(ABC):
    """Connectivity of pairs of regions, learned from other regions.

    Places are used where they are known of the regions that are learned from; they must then be known of new regions.

    Args:
        genes: Look at expression. Without, it is of places alone.

    Attributes:
        name: As `ConnectivityPredictor` has it.
        needs_genes, needs_coordinates: Does it use expression, and places?
        genes: Of the fit, in order.
        directed: Was it fitted to directed connectivity? If not, (i, j) and (j, i) are predicted alike.
        held_out: How regions are held back where the method chooses by them, see `omniset.regions.splits.split`: as
            those will be that it is to predict.
        FIELDS: The attributes that it predicts with, besides the regions that it was fitted to.
    """

    name: str
    genes: list[str]
    directed: bool
    held_out: str = KINDS[0]
    FIELDS: ClassVar[Fields] = {}

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
            ValueError: Rows that are doubled or no region's, fewer than 3 known pairs among them, no gene that differs
                between them, places of some regions alone, or none where the method is of places alone.
        """
        _check_rows(rows, len(regions))
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
        """Become as when `state` was taken.

        Args:
            train: Those of the fit, in the order of their names.

        Raises:
            ValueError: A state of another method.
        """
        self._prepare(train)
        take(self, state)
        self._restored(train)
        return self

    def _prepare(self, train: Regions) -> None:
        """What the regions of the fit say of its needs."""
        self.genes, self.directed = list(train.genes), train.directed
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
    """The object that `packed` was given.

    Raises:
        ValueError: Its attributes are others.
    """
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
        plain[name], more = parted(value, f"{place}/{name}" if place else name)
        arrays |= more
    return plain, arrays


def joined(plain: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """What `parted` was given.

    Raises:
        ValueError: An array that is not there.
    """
    if not isinstance(plain, Mapping):
        return plain
    if plain.keys() == {"array"}:
        if plain["array"] not in arrays:
            raise ValueError(f"there is no array {plain['array']!r}")
        return arrays[plain["array"]]
    return {name: joined(value, arrays) for name, value in plain.items()}
