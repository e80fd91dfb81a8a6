"""What annotation must beat: each calls the types of new cells as its field does, from the reference's counts alone.

logistic     multinomial logistic regression (L2, C = 1) on the log-normalised variable genes
balanced     the same, in which each type weighs alike
pca          the first on 50 principal components, standardised
symphony     Kang et al., "Efficient and precise single-cell reference atlas mapping with Symphony", 2021: new cells are
             moved into the reference's Harmony space, where the 5 nearest vote
celltypist   Dominguez Conde et al., "Cross-tissue immune cell analysis reveals tissue-specific features in humans",
             2022, trained on the reference
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from jaxtyping import Float, Int, Shaped
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from omniset.cells.baselines import PrincipalComponents, log_normalised
from omniset.lazy import needs
from omniset.runs.devices import one_blas_thread

NEIGHBOURS = 5
SIGMA = 0.1  # of Harmony's soft clusters
RIDGE = 1.0  # of a batch's shift

Codes = Int[np.ndarray, " cells"]
Types = Shaped[np.ndarray, " cells"]
Said = tuple[Shaped[np.ndarray, " new"], Float[np.ndarray, " new"]]  # type of each new cell, and how strange it is


def call(
    name: str, counts: sp.csr_array, types: Types, batches: Codes, new: sp.csr_array, genes: list[str], seed: int
) -> Said:
    """Types of new cells, of one batch, and 1 minus the probability of each: larger where it may be of no known type.

    Args:
        name: One of CALLERS.
        counts: (cells, genes) of the reference.

    Raises:
        ImportError: The package that it needs is not installed.
    """
    return CALLERS[name](counts, types.astype(str), batches, new, genes, seed)


@one_blas_thread()
def _logistic(balance: str | None, counts: Any, types: Types, batches: Codes, new: Any, genes: Any, seed: int) -> Said:
    chosen = PrincipalComponents(seed=seed).fit(counts, batches).genes
    model = LogisticRegression(class_weight=balance, max_iter=1000)
    return _most_probable(model.fit(log_normalised(counts)[:, chosen], types), log_normalised(new)[:, chosen])


@one_blas_thread()
def _pca(counts: Any, types: Types, batches: Codes, new: Any, genes: Any, seed: int) -> Said:
    components = PrincipalComponents(seed=seed).fit(counts, batches)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return _most_probable(model.fit(components.transform(counts), types), components.transform(new))


def _most_probable(model: Any, values: Any) -> Said:
    p = model.predict_proba(values)
    return model.classes_[p.argmax(1)], 1 - p.max(1)


def _symphony(counts: Any, types: Types, batches: Codes, new: Any, genes: Any, seed: int) -> Said:
    components = PrincipalComponents(seed=seed).fit(counts, batches)
    reference, corrected, shares = _harmonised(components.transform(counts), batches, seed)
    moved = symphony(corrected, shares, components.transform(new))
    return _most_probable(KNeighborsClassifier(min(NEIGHBOURS, len(reference))).fit(corrected, types), moved)


def _harmonised(z: Float[np.ndarray, "cells dim"], batches: Codes, seed: int) -> tuple[np.ndarray, ...]:
    """Components, those that Harmony makes of them, and each cell's shares in its soft clusters."""
    try:
        import harmonypy
    except ImportError as error:
        raise ImportError(needs("Symphony", "harmonypy")) from error
    clusters = max(2, min(round(len(z) / 30), 100))
    frame = pd.DataFrame({"batch": batches.astype(str)})
    harmony = harmonypy.run_harmony(z, frame, "batch", nclust=clusters, random_state=seed, verbose=False)
    corrected, shares = (np.asarray(a, dtype=np.float64) for a in (harmony.Z_corr, harmony.R))
    corrected = corrected if corrected.shape == z.shape else corrected.T
    return z, corrected if batches.max() else z, shares if shares.shape[0] == len(z) else shares.T


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
    distance = 2 - 2 * _unit(new) @ _unit(centres).T
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


def _unit(x: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows dim"]:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _celltypist(counts: Any, types: Types, batches: Codes, new: Any, genes: list[str], seed: int) -> Said:
    try:
        import anndata
        import celltypist
    except ImportError as error:
        raise ImportError("CellTypist needs the package celltypist: pip install celltypist") from error
    given = []
    for matrix, prefix in ((counts, "r"), (new, "n")):
        obs = pd.DataFrame(index=pd.Index([f"{prefix}{i}" for i in range(matrix.shape[0])], dtype=object))
        var = pd.DataFrame(index=pd.Index(genes, dtype=object))
        given.append(anndata.AnnData(sp.csr_matrix(log_normalised(matrix)), obs, var))
    model = celltypist.train(given[0], labels=types, n_jobs=1, check_expression=False)
    predicted = celltypist.annotate(given[1], model=model, majority_voting=False)
    return predicted.predicted_labels["predicted_labels"].to_numpy(
        dtype=object
    ), 1 - predicted.probability_matrix.to_numpy().max(1)


CALLERS: dict[str, Callable[..., Said]] = {
    "logistic": lambda *arguments: _logistic(None, *arguments),
    "balanced": lambda *arguments: _logistic("balanced", *arguments),
    "pca": _pca,
    "symphony": _symphony,
    "celltypist": _celltypist,
}
