"""What ours must beat, each as its field runs it: embeddings of cells, and methods that call the types of new cells.

pca, harmony, scvi   embed cells
logistic     multinomial logistic regression (L2, C = 1) on the log-normalised variable genes
balanced     the same, in which each type weighs alike
pca          the first on the 32 first principal components
symphony     Kang et al., "Efficient and precise single-cell reference atlas mapping with Symphony", 2021: new cells are
             moved into the reference's Harmony space, where the 5 nearest vote
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from jaxtyping import Float, Int, Shaped
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import cosine_distances
from sklearn.neighbors import KNeighborsClassifier

from omniset.cells.variable_genes import Moments, log_normalised, most_variable
from omniset.lazy import needs
from omniset.runs.devices import one_blas_thread

Vectors = Float[np.ndarray, "cells dim"]
Codes = Int[np.ndarray, " cells"]
Types = Shaped[np.ndarray, " cells"]
Said = tuple[Shaped[np.ndarray, " new"], Float[np.ndarray, " new"]]  # type of each new cell, and how strange it is
GENES = 2000
COMPONENTS = 50
CALLING = 32  # of these, by which types are called
NEIGHBOURS = 5  # that vote in Symphony
SIGMA = 0.1  # of Harmony's soft clusters
RIDGE = 1.0  # of a batch's shift


class PrincipalComponents:
    """Principal components of log-normalised counts of the most variable genes.

    Counts are divided by the cell's total, times 10^4, and x becomes log(1 + x); 2,000 genes are chosen by
    `variable_genes`, or all are taken where there are no more; values are centred, not scaled.

    Args:
        seed: Of the start of the iteration that finds them; it changes them by rounding.
    """

    genes: Int[np.ndarray, " chosen"]  # positions of the chosen genes, in ascending order
    mean: Float[np.ndarray, " chosen"]  # mean over the cells of the fit
    # (chosen, dim) orthonormal, by descending variance, 50 of them where there are cells and genes enough; 0 where the
    # cells do not differ.
    axes: Float[np.ndarray, "chosen dim"]

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, counts: sp.csr_array, batches: Codes) -> PrincipalComponents:
        """Choose genes that vary within batches, their means and components, of 2 cells or more."""
        self.genes = variable_genes(counts, batches, GENES)
        values = log_normalised(counts)[:, self.genes]
        self.mean = values.mean(0)
        dim = min(COMPONENTS, values.shape[0] - 1, values.shape[1])
        self.axes = np.zeros((len(self.genes), dim))
        if (values.max(0) - values.min(0)).toarray().any():
            iterative = dim < values.shape[1]  # else there are few genes, and the iteration cannot find all components
            model = PCA(dim, svd_solver="arpack" if iterative else "full", random_state=self.seed)
            self.axes = model.fit(values if iterative else values.toarray()).components_.T
        return self

    def transform(self, counts: sp.csr_array) -> Vectors:
        """(cells, dim) of any cells with the same genes: a cell does not depend on the others."""
        return log_normalised(counts)[:, self.genes] @ self.axes - self.mean @ self.axes


def _pca(counts: sp.csr_array, batches: Codes, seed: int) -> Vectors:
    return PrincipalComponents(seed).fit(counts, batches).transform(counts)


def _harmony(counts: sp.csr_array, batches: Codes, seed: int) -> Vectors:
    """Korsunsky et al., "Fast, sensitive and accurate integration of single-cell data with Harmony" (2019), its
    defaults, on the principal components.
    """
    components = _pca(counts, batches, seed)
    return _harmonised(components, batches, seed)[0] if batches.max() else components


def _harmonised(z: Vectors, batches: Codes, seed: int) -> tuple[Vectors, Float[np.ndarray, "cells clusters"]]:
    """What Harmony makes of components, and each cell's shares in its soft clusters."""
    try:
        import harmonypy
    except ImportError as error:
        raise ImportError(needs("Harmony", "harmonypy")) from error
    clusters = max(2, min(round(len(z) / 30), 100))  # its default, which is 0 for fewer than 15 cells
    frame = pd.DataFrame({"batch": batches.astype(str)})
    harmony = harmonypy.run_harmony(z, frame, "batch", nclust=clusters, random_state=seed, verbose=False)
    corrected, shares = (np.asarray(a, dtype=np.float64) for a in (harmony.Z_corr, harmony.R))
    # (cells, dim) since harmonypy 0.1, (dim, cells) before.
    return corrected if corrected.shape == z.shape else corrected.T, shares if shares.shape[0] == len(z) else shares.T


def _scvi(counts: sp.csr_array, batches: Codes, seed: int, epochs: int | None = None) -> Vectors:
    """Lopez et al., "Deep generative modeling for single-cell transcriptomics" (2018), its defaults, among them
    min(round(20000 / cells * 400), 400) epochs, on the counts of the same variable genes.
    """
    with _quiet():
        try:
            import anndata
            import scvi
        except ImportError as error:
            raise ImportError(needs("scVI", "scvi")) from error
        import torch

        chosen = sp.csr_matrix(counts[:, variable_genes(counts, batches)].astype(np.float32))
        batch = pd.Categorical(batches.astype(str))
        cells = anndata.AnnData(chosen, obs=pd.DataFrame({"batch": batch}, index=[str(i) for i in range(len(batches))]))
        scvi.model.SCVI.setup_anndata(cells, batch_key="batch")
        with torch.random.fork_rng():
            scvi.settings.seed = seed
            model = scvi.model.SCVI(cells)
            model.train(max_epochs=epochs, accelerator="cpu", enable_progress_bar=False)
            with torch.no_grad():
                return np.asarray(model.get_latent_representation(), dtype=np.float64)


# Cells embedded by a baseline that is fitted on them: counts, batches, seed. ImportError: its package is not installed.
BASELINES: dict[str, Callable[..., Vectors]] = {"pca": _pca, "harmony": _harmony, "scvi": _scvi}


# ---------------------------------------------------------------------- types of new cells


@one_blas_thread()
def _logistic(balance: str | None, counts: Any, types: Types, batches: Codes, new: Any, seed: int) -> Said:
    chosen = PrincipalComponents(seed).fit(counts, batches).genes
    model = LogisticRegression(class_weight=balance, max_iter=1000)
    return _most_probable(model.fit(log_normalised(counts)[:, chosen], types), log_normalised(new)[:, chosen])


@one_blas_thread()
def _logistic_on_pca(counts: Any, types: Types, batches: Codes, new: Any, seed: int) -> Said:
    components = PrincipalComponents(seed).fit(counts, batches)
    known, asked = (components.transform(cells)[:, :CALLING] for cells in (counts, new))
    return _most_probable(LogisticRegression(max_iter=1000).fit(known, types), asked)


def _most_probable(model: Any, values: Any) -> Said:
    p = model.predict_proba(values)
    return model.classes_[p.argmax(1)], 1 - p.max(1)


def _symphony(counts: Any, types: Types, batches: Codes, new: Any, seed: int) -> Said:
    components = PrincipalComponents(seed).fit(counts, batches)
    z = components.transform(counts)
    corrected, shares = _harmonised(z, batches, seed)
    corrected = corrected if batches.max() else z
    moved = symphony(corrected, shares, components.transform(new))
    return _most_probable(KNeighborsClassifier(min(NEIGHBOURS, len(z))).fit(corrected, types), moved)


def symphony(
    corrected: Float[np.ndarray, "cells dim"],
    shares: Float[np.ndarray, "cells clusters"],
    new: Float[np.ndarray, "new dim"],
) -> Float[np.ndarray, "new dim"]:
    """New cells, of one batch, moved into the space of the reference.

    In each soft cluster k, the reference's N_k cells with sum C_k and the new ones with shares r_ik and vectors x_i are
    taken for intercept plus shift of the new batch; the shift, with a ridge of 1, is taken off the new cells in their
    shares:

        b_k = (X_k^T X_k + diag(0, 1))^-1 X_k^T Z_k,   X_k^T X_k = [[N_k + R_k, R_k], [R_k, R_k]],
        X_k^T Z_k = [C_k + S_k, S_k],   R_k = sum_i r_ik,   S_k = sum_i r_ik x_i,   x_i' = x_i - sum_k r_ik b_k2
    """
    centres = shares.T @ corrected
    distance = 2 * cosine_distances(new, centres)
    nearest = distance.min(1, keepdims=True)
    r = np.exp(-(distance - nearest) / SIGMA)
    r /= r.sum(1, keepdims=True)
    moved = new.copy()
    for k in range(shares.shape[1]):
        known, here, sums = shares[:, k].sum(), r[:, k].sum(), r[:, k] @ new
        matrix = np.array([[known + here, here], [here, here + RIDGE]])
        shift = np.linalg.solve(matrix, np.stack([centres[k] + sums, sums]))[1]
        moved -= np.outer(r[:, k], shift)
    return moved


# Types of new cells, of one batch, and 1 minus the probability of each: larger where it may be of no known type. Given
# are counts, types and batches of the reference, counts of the new cells, and the seed.
CALLERS: dict[str, Callable[..., Said]] = {
    "logistic": lambda *arguments: _logistic(None, *arguments),
    "balanced": lambda *arguments: _logistic("balanced", *arguments),
    "pca": _logistic_on_pca,
    "symphony": _symphony,
}


def variable_genes(counts: sp.csr_array, batches: Codes, number: int = GENES) -> Int[np.ndarray, " chosen"]:
    """Positions, ascending, of the genes that vary most: see `omniset.cells.variable_genes.most_variable`."""
    moments = [Moments.none(counts.shape[1]) for _ in range(int(batches.max()) + 1)]
    for b, of_batch in enumerate(moments):
        of_batch.add(counts[batches == b])
    return most_variable(moments, number)


# ---------------------------------------------------------------------- scVI's surroundings


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings that users cannot mend, and without scVI's and Lightning's lines."""
    loggers = [logging.getLogger(name) for name in ("scvi", "lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings():
            for message in QUIET:
                warnings.filterwarnings("ignore", message)
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


QUIET = (
    ".*does not have many workers",
    ".*is smaller than the logging interval",
    ".*moved from training set to validation set",  # where its last batch had one cell
    ".*LeafSpec",
)
