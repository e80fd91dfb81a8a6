"""Made-up cells to try the commands on: labelled donors, and one more donor with a type that they lack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp
from jaxtyping import Float, Float32

from omniset.tables.files import TableWriter

TYPES = ("B cell", "T cell", "NK cell", "monocyte", "dendritic cell", "platelet")  # the last one is new
SHARES = (0.2, 0.35, 0.15, 0.2, 0.1)
NEW_TYPE = 0.15  # its share in the new donor
DEPTH, DISPERSION = 800, 0.4  # counts of a cell; counts vary by mu + 0.4 mu^2
MARKERS, FOLD = 30, 1.4  # genes of a type that are higher, and by how much: the logarithm
ALIKE = 0.5  # of the markers, those that two neighbouring types share
DONOR = 0.3  # the deviation of the logarithm of what a donor multiplies each gene by


def write(folder: Path, seed: int = 0, cells: int = 300, genes: int = 300) -> None:
    """reference.h5ad: two donors of five types each; new.h5ad: a third with a sixth type; truth.csv: its cells' types.

    Args:
        cells: Of each donor.
        genes: At least 200: some are of no type.
    """
    import anndata

    rng = np.random.default_rng(seed)
    base = rng.gamma(0.3, 1.0, genes) + 0.01
    own = rng.permutation(genes)[: len(TYPES) * MARKERS].reshape(len(TYPES), MARKERS)
    logs = np.zeros((len(TYPES), genes))
    for kind, markers in enumerate(own):
        logs[kind, markers] = FOLD
        if kind < 4:  # two by two they are near each other
            logs[kind ^ 1, markers[: int(ALIKE * MARKERS)]] = FOLD
    names = [f"GENE{i + 1}" for i in range(genes)]
    parts = []
    for number in range(3):
        shares = np.array([*SHARES, 0.0])
        if number == 2:
            shares = np.append((1 - NEW_TYPE) * np.array(SHARES), NEW_TYPE)
        kinds = rng.choice(len(TYPES), cells, p=shares)
        means = base * np.exp(logs[kinds] + DONOR * rng.normal(size=genes))
        counts = drawn(means, rng)
        obs = pd.DataFrame({"donor": f"donor_{number + 1}", "cell_type": np.array(TYPES)[kinds]})
        obs.index = pd.Index([f"donor_{number + 1}_cell_{i + 1}" for i in range(cells)])
        parts.append(anndata.AnnData(sp.csr_matrix(counts), obs, pd.DataFrame(index=names)))
    anndata.concat(parts[:2]).write_h5ad(folder / "reference.h5ad")
    new = parts[2]
    with TableWriter(folder / "truth.csv") as writer:
        writer.write(new.obs["cell_type"].rename_axis("cell").reset_index())
    del new.obs["cell_type"]
    new.write_h5ad(folder / "new.h5ad")


def drawn(means: Float[np.ndarray, "cells genes"], rng: np.random.Generator) -> Float32[np.ndarray, "cells genes"]:
    """Negative binomial counts of cells that are sequenced to different depths."""
    depth = DEPTH * rng.lognormal(0, 0.3, (len(means), 1))
    mu = depth * means / means.sum(1, keepdims=True)
    return rng.poisson(mu * rng.gamma(1 / DISPERSION, DISPERSION, mu.shape)).astype(np.float32)
