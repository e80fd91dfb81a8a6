"""Brain regions: expression of genes, places, and connectivity of pairs, joined by the regions' names.

Pairs are positions (i, j) into the regions; nothing is ever copied per pair.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

LEFT, RIGHT = "L", "R"
Pairs = Int[np.ndarray, "pairs 2"]
PairValues = Float[np.ndarray, " pairs"]


@dataclass
class Regions:
    """Regions with a name each, and what is known of them.

    Attributes:
        names: Each once.
        genes: Each once, in the order of the columns.
        expression: float32; NaN: this gene was not measured in this region.
        coordinates: In mm, x from left (negative) to right; None: not known.
        hemisphere: "L", "R", or "" where a region has none; None: not known.
        network: Name of the network, or of the structure, that a region is counted to; None: not known.
        connectivity: float64; NaN on the diagonal and for pairs that are not known; None: to be predicted.
        directed: May connectivity differ between (i, j) and (j, i)?
        notes: What was decided in reading, a sentence each.
        structure: "cortex", "subcortex", or "" where files do not say it; None: of no region.
    """

    names: list[str]
    genes: list[str]
    expression: Float[np.ndarray, "regions genes"]
    coordinates: Float[np.ndarray, "regions 3"] | None = None
    hemisphere: list[str] | None = None
    network: list[str] | None = None
    connectivity: Float[np.ndarray, "regions regions"] | None = None
    directed: bool = False
    notes: list[str] = field(default_factory=list)
    structure: list[str] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: Sequence[int] | Int[np.ndarray, " rows"]) -> Regions:
        """These regions, in this order, and the pairs among them."""
        rows = np.asarray(rows, dtype=np.int64)

        taken: dict[str, Any] = {
            "expression": self.expression[rows],
            "coordinates": None if self.coordinates is None else self.coordinates[rows],
            "connectivity": None if self.connectivity is None else self.connectivity[np.ix_(rows, rows)],
        }
        for name in ("names", "hemisphere", "network", "structure"):
            values = getattr(self, name)
            taken[name] = None if values is None else [values[i] for i in rows]
        return replace(self, **taken)

    def without(self, names: Collection[str]) -> Regions:
        """All regions but those of these names."""
        return self.take([at for at, name in enumerate(self.names) if name not in names])

    @property
    def placed(self) -> bool:
        """Are the coordinates of every region known?"""
        return self.coordinates is not None and bool(np.isfinite(self.coordinates).all())

    @property
    def one_sided(self) -> bool:
        """Are all regions of the same hemisphere, as far as hemispheres, or else places, are known?"""
        sides = set(self.hemisphere or ())
        if self.hemisphere is None and self.coordinates is not None:
            sides = {LEFT if x < 0 else RIGHT if x > 0 else "" for x in self.coordinates[:, 0].tolist()}
        return len(sides - {""}) == 1

    def with_(self, **changes: Any) -> Regions:
        """The same regions with other attributes."""
        return replace(self, **changes)

    def pairs(self) -> Int[np.ndarray, "pairs 2"]:
        """Pairs with a known connectivity: i < j, or every i != j where it is directed.

        Raises:
            ValueError: No connectivity.
        """
        if self.connectivity is None:
            raise ValueError("connectivity is not known of these regions")
        known = np.isfinite(self.connectivity)
        np.fill_diagonal(known, False)
        if not self.directed:
            known = np.triu(known, 1)
        return np.argwhere(known)
