"""A made-up brain, to try things on: `omniset regions simulate`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.spatial.distance import cdist

from omniset.regions.data import LEFT, RIGHT, Regions
from omniset.runs.verbs import working_folder
from omniset.tables.files import TableWriter

NETWORKS = ("Visual", "Motor", "Attention", "Limbic", "Default")
RADII = (65.0, 85.0, 60.0)  # mm: left to right, back to front, down to up
SMOOTH = 30.0  # mm, over which expression changes
FIELDS = 8  # of which every gene's map is a mixture
NOISE = 0.3


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


def write(made: Regions, out: Path) -> list[str]:
    """Write expression.csv, connectivity.csv and regions.csv, and tell their names."""
    assert made.coordinates is not None
    index = pd.Index(made.names, name="region")
    about = pd.DataFrame(made.coordinates.round(2), index, ["x", "y", "z"])
    tables = {
        "expression": pd.DataFrame(made.expression, index, made.genes).round(6),
        "connectivity": pd.DataFrame(made.connectivity, index, made.names).round(6),
        "regions": about.assign(hemisphere=made.hemisphere, network=made.network),
    }
    with working_folder(out, "regions", "simulation") as folder:
        for name, table in tables.items():
            with TableWriter(folder.path / f"{name}.csv") as writer:
                writer.write(table.reset_index())
    return [f"{name}.csv" for name in tables]
