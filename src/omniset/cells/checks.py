"""What vectors of cells must hold whatever the labels: the same again, alone, in any order, with fewer counts."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from scipy.stats import rankdata
from sklearn.neighbors import NearestNeighbors

from omniset.cells.baselines import PrincipalComponents
from omniset.cells.data import Cells, with_counts
from omniset.cells.embedder import CellEmbedder

NEIGHBOURS = 15
THINNED = (0.5, 0.25, 0.1)  # shares of the counts that are kept
COMPONENTS = 5  # of an embedding, compared with library sizes
ALONE = 16  # cells embedded one by one
PASSES = 3


def repeated(
    again: CellEmbedder, cells: Cells, z: Float[np.ndarray, "cells dim"], seed: int
) -> tuple[dict[str, float], Float[np.ndarray, "cells dim"]]:
    """How far vectors differ between two fits of one seed, with the order of the cells, and from those of cells alone.

    Args:
        again: The second fit.
        z: What the first one gave.

    Returns:
        `determinism`, `order`, `alone`: the largest differences; `cells_per_second`. And the vectors of the second fit.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(cells))
    some = np.sort(rng.choice(len(cells), min(ALONE, len(cells)), replace=False))
    alone = np.concatenate([again.embed_cells(cells, some[i : i + 1]) for i in range(len(some))])
    seconds, full = [], z
    for _ in range(PASSES):
        start = time.perf_counter()
        full = again.embed_cells(cells)
        seconds.append(time.perf_counter() - start)
    differences = {
        "determinism": full - z,
        "order": again.embed_cells(cells, order) - full[order],
        "alone": alone - full[some],
    }
    largest = {name: float(np.abs(difference).max()) for name, difference in differences.items()}
    return largest | {"cells_per_second": len(cells) / float(np.median(seconds))}, full


def thinning(
    model: CellEmbedder,
    full: Float[np.ndarray, "cells dim"],
    components: PrincipalComponents,
    cells: Cells,
    counts: sp.csr_array,
    seed: int,
) -> list[dict[str, Any]]:
    """`thinning_robustness` of our vectors and of principal components, a dict per method and share of counts kept."""
    known, rows = components.transform(counts), []
    for share in THINNED:
        fewer = thinned(counts, share, seed)
        ours = model.embed_cells(with_counts(cells, fewer))
        for name, before, after in (("omniset", full, ours), ("pca", known, components.transform(fewer))):
            cosine, near = thinning_robustness(before.astype(np.float64), after.astype(np.float64))
            rows.append({"method": name, "kept": share, "cosine": cosine, "found": near})
    return rows


def thinned(counts: sp.csr_array, share: float, seed: int) -> sp.csr_array:
    """Binomial(count, share) in place of each count, as if so much had been sequenced. Counts are rounded first."""
    rng = np.random.default_rng([seed, round(1e6 * share)])
    remaining = rng.binomial(np.rint(counts.data).astype(np.int64), share).astype(counts.dtype)
    sample = sp.csr_array((remaining, counts.indices, counts.indptr), shape=counts.shape, copy=True)
    sample.eliminate_zeros()
    return sample


def thinning_robustness(
    full: Float[np.ndarray, "cells dim"], fewer: Float[np.ndarray, "cells dim"], k: int = NEIGHBOURS
) -> tuple[float, float]:
    """How near cells with fewer counts stay to themselves.

    Returns:
        Mean cosine of a cell's two vectors, both less the mean of the full ones (0 where one of them is 0); and the
        share of cells whose own full vector is among the k nearest of all full ones.
    """
    middle = full.mean(0)
    a, b = full - middle, fewer - middle
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine = np.divide((a * b).sum(1), lengths, out=np.zeros(len(a)), where=lengths > 0)
    near = NearestNeighbors(n_neighbors=min(k, len(full))).fit(full).kneighbors(fewer, return_distance=False)
    return float(cosine.mean()), float((near == np.arange(len(full))[:, None]).any(1).mean())


def library_correlation(embedding: Float[np.ndarray, "cells dim"], library: Float[np.ndarray, " cells"]) -> float:
    """Largest |Spearman correlation| of library size with any of the first 5 principal components of an embedding: how
    much of a cell's place is depth of sequencing. 0 where either is the same for all cells.
    """
    z = embedding.astype(np.float64)
    u, sizes, _ = np.linalg.svd(z - z.mean(0), full_matrices=False)
    large = sizes[:COMPONENTS] > 1e-9 * np.linalg.norm(z)  # the others are rounding
    ranks = np.column_stack([rankdata(library), *(rankdata(c) for c in u[:, :COMPONENTS].T[large])])
    ranks -= ranks.mean(0)
    lengths = np.linalg.norm(ranks, axis=0)
    products = np.abs(ranks[:, 1:].T @ ranks[:, 0])
    scale = lengths[1:] * lengths[0]
    return float(np.divide(products, scale, out=np.zeros_like(products), where=scale > 0).max(initial=0.0))


def peak_memory_mb() -> float | None:
    """Most resident memory of this process so far, in MiB; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    # Kilobytes, but bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
