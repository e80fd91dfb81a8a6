"""Brain regions: expression of genes, places, and connectivity of pairs, joined by the regions' names.

Pairs are positions (i, j) into the regions; nothing is ever copied per pair. `simulate` makes up a brain to try things
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.spatial.distance import cdist

from omniset.tables.files import TableWriter

LEFT, RIGHT = "L", "R"
LABELS = ("hemisphere", "network", "structure")
Pairs = Int[np.ndarray, "pairs 2"]
PairValues = Float[np.ndarray, " pairs"]
Places = Float[np.ndarray, "regions 3"]
Square = Float[np.ndarray, "n n"]

# Of the brain that is made up.
NETWORKS = ("Visual", "Motor", "Attention", "Limbic", "Default")
RADII = (65.0, 85.0, 60.0)  # mm: left to right, back to front, down to up
SMOOTH = 30.0  # mm, over which expression changes
FIELDS = 8  # of which every gene's map is a mixture
NOISE = 0.3


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
    coordinates: Places | None = None
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
        for name in ("names", *LABELS):
            values = getattr(self, name)
            taken[name] = None if values is None else [values[i] for i in rows]
        return replace(self, **taken)

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


# ---------------------------------------------------------------------- places and pairs


def places_of(regions: Regions) -> Places:
    """Coordinates, which must be known."""
    assert regions.coordinates is not None
    return np.asarray(regions.coordinates, dtype=np.float64)


def mirrored(coordinates: Places) -> Places:
    """(|x|, y, z): of a region and its mirror image the same."""
    return np.column_stack([np.abs(coordinates[:, 0]), coordinates[:, 1:]])


def check_places(coordinates: Places, names: Sequence[str] | None = None) -> None:
    """Raise a ValueError that names a region without coordinates, by its position where there are no names."""
    without = np.flatnonzero(~np.isfinite(coordinates).all(1))
    if len(without):
        one = f"region {without[0]}" if names is None else repr(names[without[0]])
        raise ValueError(
            f"coordinates must be known of every region, {len(without)} of {len(coordinates)} have none, such as {one}"
        )


def known_pairs(regions: Regions) -> tuple[Pairs, PairValues]:
    """Pairs of known connectivity, and this."""
    pairs = regions.pairs()
    assert regions.connectivity is not None
    return pairs, np.asarray(regions.connectivity[tuple(pairs.T)], dtype=np.float64)


def matrix_of(regions: Regions, pairs: Pairs, values: PairValues) -> Square:
    """Values of pairs as a matrix, NaN elsewhere; on both sides of the diagonal unless connectivity is directed."""
    matrix = np.full((len(regions), len(regions)), np.nan)
    matrix[tuple(pairs.T)] = values
    if not regions.directed:
        matrix[tuple(pairs.T[::-1])] = values
    return matrix


# ---------------------------------------------------------------------- a brain that is made up


def simulate(regions: int = 80, genes: int = 120, seed: int = 0) -> Regions:
    """Regions on two half ellipsoids, which mirror each other, with genes and functional connectivity.

    Genes are mixtures of eight smooth fields, and noise; expression is scaled to 0 to 1. Connectivity is higher between
    near regions and between regions that are alike in the first four fields, so that genes say more than distance does.

    Args:
        regions: Even, half of them on each side; at least 16.
        genes: At least 10.

    Raises:
        ValueError: A number out of its bounds.
    """
    if regions < 16 or regions % 2:
        raise ValueError(f"regions must be even and >= 16, got {regions}")
    if genes < 10:
        raise ValueError(f"genes must be >= 10, got {genes}")
    rng = np.random.default_rng(seed)
    half = regions // 2
    places = rng.normal(size=(half, 3))
    places = np.abs(places) * [1, 0, 0] + places * [0, 1, 1]
    places = places / np.linalg.norm(places, axis=1, keepdims=True) * RADII
    both = np.concatenate([places * [-1, 1, 1], places])
    near = np.exp(-np.square(cdist(places, places)) / (2 * SMOOTH**2))
    fields = np.linalg.cholesky(near + 1e-6 * np.eye(half)) @ rng.normal(size=(half, FIELDS))
    fields = np.concatenate([fields, fields])
    maps = fields @ rng.normal(size=(FIELDS, genes)) + NOISE * FIELDS**0.5 * rng.normal(size=(regions, genes))
    low, high = maps.min(0), maps.max(0)
    alike = fields[:, :4] @ fields[:, :4].T / 4
    values = 0.3 + 0.4 * np.exp(-cdist(both, both) / 40) + 0.25 * np.tanh(alike)
    noise = 0.05 * rng.normal(size=values.shape)
    values = values + (noise + noise.T) / 2
    np.fill_diagonal(values, np.nan)
    kind = [NETWORKS[i] for i in np.argmax(fields[:, : len(NETWORKS)], axis=1)]
    sides = [LEFT] * half + [RIGHT] * half
    return Regions(
        names=[f"{side}_region_{i + 1}" for side in (LEFT, RIGHT) for i in range(half)],
        genes=[f"GENE{i + 1}" for i in range(genes)],
        expression=((maps - low) / (high - low)).astype(np.float32),
        coordinates=both,
        hemisphere=sides,
        network=kind,
        connectivity=values,
    )


def write_tables(folder: Path, made: Regions) -> None:
    """expression.csv, connectivity.csv, and regions.csv with places in mm, hemispheres and networks."""
    folder.mkdir(parents=True, exist_ok=True)
    index = pd.Index(made.names, name="region")
    about = pd.DataFrame(made.coordinates, index, ["x", "y", "z"]).round(2)
    tables = {
        "expression": pd.DataFrame(made.expression, index, made.genes).round(6),
        "connectivity": pd.DataFrame(made.connectivity, index, made.names).round(6),
        "regions": about.assign(hemisphere=made.hemisphere, network=made.network),
    }
    for name, table in tables.items():
        with TableWriter(folder / f"{name}.csv") as writer:
            writer.write(table.reset_index())
