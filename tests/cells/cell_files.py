"""Cells that tests make up, and the smallest models of them."""

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

SMALL = {"embedding_dim": 5, "dim": 8, "epochs": 2, "batch_size": 16, "progress": False}
SEED = {
    **SMALL,
    "architecture": "seed",
    "encoder_options": {"depth": 1, "num_heads": 2, "slots": 20, "positives": 5, "negatives": 5, "shared": 7},
}


def text(values):
    """As anndata 0.12 can write it, which knows no text of pandas 3."""
    return pd.Index(list(values), dtype=object)


def cells(number: int = 53, genes: int = 41, seed: int = 0) -> ad.AnnData:
    """Three types in two batches, which differ in depth."""
    rng = np.random.default_rng(seed)
    kind, batch = rng.integers(0, 3, number), rng.integers(0, 2, number)
    rates = rng.lognormal(0, 1, (3, genes))
    rates *= 60 / rates.sum(1, keepdims=True)
    counts = rng.poisson(rates[kind] * np.array([1.0, 2.0])[batch][:, None])
    obs = pd.DataFrame({"batch": pd.Categorical.from_codes(batch, text(["one", "two"])), "kind": kind})
    obs.index = text(f"cell{i}" for i in range(number))
    var = pd.DataFrame(index=text(f"Gene{i}" for i in range(genes)))
    return ad.AnnData(sp.csr_matrix(counts.astype(np.float32)), obs=obs, var=var)
