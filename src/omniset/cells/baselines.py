"""What an embedding of cells must beat: principal components, Harmony, scVI, each as its field runs it."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from jaxtyping import Float, Int
from sklearn.decomposition import PCA

from omniset.cells.variable import Moments, most_variable, normalised
from omniset.lazy import needs

Vectors = Float[np.ndarray, "cells dim"]
Codes = Int[np.ndarray, " cells"]
GENES = 2000
COMPONENTS = 50


class PrincipalComponents:
    """Principal components of log-normalised counts of the most variable genes.

    Counts are divided by the cell's total, times 10^4, and x becomes log(1 + x); 2,000 genes are chosen by
    `variable_genes`, or all are taken where there are no more; values are centred, not scaled.

    Args:
        dim: Number of components, fewer where there are fewer cells or genes.
        seed: Of the start of the iteration that finds them; it changes them by rounding.

    Attributes:
        genes: Positions of the chosen genes, in ascending order.
        mean: (chosen,) mean over the cells of the fit.
        axes: (chosen, dim) orthonormal, by descending variance; 0 where the cells do not differ.
    """

    genes: Int[np.ndarray, " chosen"]
    mean: Float[np.ndarray, " chosen"]
    axes: Float[np.ndarray, "chosen dim"]

    def __init__(self, dim: int = COMPONENTS, seed: int = 0) -> None:
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self.dim, self.seed = dim, seed

    def fit(self, counts: Any, batches: Any = None) -> PrincipalComponents:
        """Choose genes, their means and components.

        Args:
            counts: (cells, genes) sparse or dense counts.
            batches: (cells,) to choose genes that vary within several batches.

        Raises:
            ValueError: Fewer than 2 cells, negative or not finite counts, or batches of other cells.
        """
        counts = _checked(counts, 2)
        self._width = counts.shape[1]
        self.genes = variable_genes(counts, batches, GENES)
        values = log_normalised(counts)[:, self.genes]
        self.mean = values.mean(0)
        dim = min(self.dim, values.shape[0] - 1, values.shape[1])
        self.axes = np.zeros((len(self.genes), dim))
        if (values.max(0) - values.min(0)).toarray().any():
            iterative = dim < values.shape[1]  # else there are few genes, and the iteration cannot find all components
            model = PCA(dim, svd_solver="arpack" if iterative else "full", random_state=self.seed)
            self.axes = model.fit(values if iterative else values.toarray()).components_.T
        return self

    def transform(self, counts: Any) -> Vectors:
        """(cells, dim) of any cells with the same genes: a cell does not depend on the others.

        Raises:
            ValueError: Another number of genes than in fit, negative or not finite counts.
        """
        counts = _checked(counts)
        if counts.shape[1] != self._width:
            raise ValueError(f"counts must have the {self._width} genes of the fit, got {counts.shape[1]} columns")
        return log_normalised(counts)[:, self.genes] @ self.axes - self.mean @ self.axes


def embed(
    name: str,
    counts: Any,
    batches: Any = None,
    *,
    dim: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Vectors:
    """Cells embedded by a baseline that is fitted on them.

    Args:
        name: "pca", "harmony" or "scvi".
        counts: (cells, genes) sparse or dense counts, as they were measured.
        batches: (cells,) batch of each cell; None: all are of one. Without a second batch "harmony" is "pca".
        dim: Of the embedding; None: 50, for "scvi" 10, as it has it.
        seed: The same gives the same embedding.
        progress: Let scVI show its bar and log.

    Raises:
        ValueError: An unknown name, or what PrincipalComponents.fit refuses.
        ImportError: The baseline's package is not installed.
    """
    if name not in BASELINES:
        raise ValueError(f"name must be one of {', '.join(BASELINES)}, got {name!r}")
    if dim is not None and dim < 1:
        raise ValueError(f"dim must be at least 1, got {dim}")
    counts = _checked(counts, 2)
    return BASELINES[name](counts, _batch_codes(batches, counts.shape[0]), dim, seed, progress)


def _pca(counts: sp.csr_array, batches: Codes, dim: int | None, seed: int, progress: bool) -> Vectors:
    return PrincipalComponents(dim or COMPONENTS, seed).fit(counts, batches).transform(counts)


def _harmony(counts: sp.csr_array, batches: Codes, dim: int | None, seed: int, progress: bool) -> Vectors:
    """Korsunsky et al., "Fast, sensitive and accurate integration of single-cell data with Harmony" (2019), its
    defaults, on the principal components.
    """
    try:
        import harmonypy
    except ImportError as error:
        raise ImportError(needs("Harmony", "harmonypy")) from error
    components = _pca(counts, batches, dim, seed, progress)
    if batches.max() == 0:
        return components
    harmony = harmonypy.run_harmony(
        components,
        pd.DataFrame({"batch": batches.astype(str)}),
        "batch",
        nclust=max(2, min(round(len(components) / 30), 100)),  # its default, which is 0 for fewer than 15 cells
        random_state=seed,
        verbose=False,
    )
    corrected = np.asarray(harmony.Z_corr, dtype=np.float64)
    # (cells, dim) since harmonypy 0.1, (dim, cells) before.
    return corrected if corrected.shape == components.shape else corrected.T


def _scvi(
    counts: sp.csr_array, batches: Codes, dim: int | None, seed: int, progress: bool, epochs: int | None = None
) -> Vectors:
    """Lopez et al., "Deep generative modeling for single-cell transcriptomics" (2018), its defaults, among them
    min(round(20000 / cells * 400), 400) epochs, on the counts of the same variable genes.
    """
    with _quiet(progress):
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
        with _randomness_kept():
            scvi.settings.seed = seed
            model = scvi.model.SCVI(cells, **({} if dim is None else {"n_latent": dim}))
            model.train(max_epochs=epochs, accelerator="cpu", enable_progress_bar=progress)
            with torch.no_grad():
                return np.asarray(model.get_latent_representation(), dtype=np.float64)


BASELINES: dict[str, Callable[..., Vectors]] = {"pca": _pca, "harmony": _harmony, "scvi": _scvi}


# ---------------------------------------------------------------------- preprocessing


def log_normalised(counts: sp.csr_array) -> sp.csr_array:
    """log(1 + 10^4 count / total of the cell); a cell without counts stays 0."""
    values = normalised(counts)
    values.data = np.log1p(values.data)
    return values


def variable_genes(counts: Any, batches: Any = None, number: int = GENES) -> Int[np.ndarray, " chosen"]:
    """Positions, ascending, of the genes that vary most for their mean: see `omniset.cells.variable.most_variable`."""
    counts = _checked(counts)
    batch = _batch_codes(batches, counts.shape[0])
    moments = [Moments.none(counts.shape[1]) for _ in range(int(batch.max()) + 1)]
    for b, of_batch in enumerate(moments):
        of_batch.add(counts[batch == b])
    return most_variable(moments, number)


def _checked(counts: Any, cells: int = 1) -> sp.csr_array:
    """As compressed rows, of at least so many cells."""
    counts = sp.csr_array(counts)
    if 0 in counts.shape:
        raise ValueError(f"counts must have cells and genes, got {counts.shape[0]} x {counts.shape[1]}")
    wrong = ~(np.isfinite(counts.data) & (counts.data >= 0))
    if wrong.any():
        at = int(np.argmax(wrong))
        cell = int(np.searchsorted(counts.indptr, at, side="right")) - 1
        raise ValueError(
            f"counts must be finite and not negative, got {counts.data[at]} for cell {cell}, gene {counts.indices[at]}"
        )
    if counts.shape[0] < cells:
        raise ValueError(f"counts must be of at least {cells} cells, got {counts.shape[0]}")
    return counts


def _batch_codes(batches: Any, cells: int) -> Codes:
    """Numbers of the batches in sorted order of their names."""
    if batches is None:
        return np.zeros(cells, dtype=np.int64)
    if len(batches) != cells:
        raise ValueError(f"batches must name a batch for each of the {cells} cells, got {len(batches)}")
    codes, _ = pd.factorize(np.asarray(batches, dtype=object), sort=True)
    if (codes < 0).any():
        raise ValueError(f"batches must name a batch for every cell, cell {int(np.argmax(codes < 0))} has none")
    return codes.astype(np.int64)


# ---------------------------------------------------------------------- scVI's surroundings


@contextmanager
def _quiet(progress: bool) -> Iterator[None]:
    """Without warnings that users cannot mend; with scVI's and Lightning's lines only on demand."""
    loggers = [logging.getLogger(name) for name in ("scvi", "lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings():
            for message in QUIET:
                warnings.filterwarnings("ignore", message)
            if not progress:
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


@contextmanager
def _randomness_kept() -> Iterator[None]:
    """Random states of the caller as they were: scVI's seed is that of the whole process."""
    from lightning.pytorch.utilities.seed import isolate_rng

    names = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")
    variables = {name: os.environ[name] for name in names if name in os.environ}
    try:
        with isolate_rng():
            yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(variables)
