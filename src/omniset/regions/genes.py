"""Which genes a model looks at, and which its predictions need."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from omniset.regions.blend import NETWORK, Blend, networks_of
from omniset.regions.data import Regions
from omniset.regions.methods import Method
from omniset.regions.scaling import known_pairs
from omniset.regions.scores import pearson
from omniset.regions.seed import CrossAttention
from omniset.regions.training import Attention, SeedMethod
from omniset.runs.progress import Progress


def attended(method: Method, pair: Regions, top: int) -> pd.DataFrame:
    """Weights of pairs of genes, those of the first of two regions attending to those of the second: largest first.

    See `ConnectivityPredictor.explain`.

    Raises:
        ValueError: A method without cross-attention.
    """
    part = next(iter(networks_of(method).values()), None)
    rows = pair.genes
    if isinstance(part, Attention):
        if isinstance(method, Blend) and not method.weights[NETWORK]:
            warnings.warn(
                "validation gave the network the weight 0: predictions do not use what is explained here", stacklevel=3
            )
        weights = part.weights(pair)
    elif isinstance(part, SeedMethod) and isinstance(part.network, CrossAttention):
        weights, rows = part.weights(pair), ["CLS", *pair.genes]
    else:
        raise ValueError(
            "explain is for methods with cross-attention: the default, 'attention' and architecture='seed'"
        )
    order = np.argsort(weights, axis=None, kind="stable")[::-1][:top]
    i, j = np.unravel_index(order, weights.shape)
    columns = {"gene_i": np.array(rows, dtype=object)[i], "gene_j": np.array(pair.genes, dtype=object)[j]}
    return pd.DataFrame({**columns, "weight": weights[i, j].astype(np.float64)})


def permuted(
    method: Method, regions: Regions, genes: Sequence[str] | None, repeats: int, top: int, seed: int, progress: bool
) -> pd.DataFrame:
    """How far Pearson's r falls where a gene's values change places among the regions: largest first.

    See `ConnectivityPredictor.importance`.

    `attention` is the mean weight of each gene over the regions that attend, and are attended to.

    Raises:
        ValueError: A gene that is not known.
    """
    part = next(iter(networks_of(method).values()), None)
    attention = part.gene_weights(regions) if isinstance(part, Attention) else np.full(len(regions.genes), np.nan)
    if genes is None:
        by = np.nanvar(regions.expression, axis=0) if np.isnan(attention).all() else attention
        chosen = np.argsort(-np.nan_to_num(by), kind="stable")[:top]
    else:
        place = {gene: at for at, gene in enumerate(regions.genes)}
        for gene in genes:
            if gene not in place:
                raise ValueError(f"gene {gene!r} is not among the {len(place):,} of the model")
        chosen = np.array([place[gene] for gene in genes])
    pairs, truth = known_pairs(regions)
    base = pearson(truth, method.predict(regions, pairs))
    rng = np.random.default_rng(seed)
    falls = []
    with Progress("permuting genes", len(chosen), progress, "genes") as bar:
        for number, gene in enumerate(chosen, 1):
            of_gene = []
            for _ in range(repeats):
                expression = regions.expression.copy()
                expression[:, gene] = expression[rng.permutation(len(regions)), gene]
                of_gene.append(base - pearson(truth, method.predict(regions.with_(expression=expression), pairs)))
            falls.append(float(np.mean(of_gene)))
            bar.at(number)
    columns = {"gene": [regions.genes[g] for g in chosen], "importance": falls, "attention": attention[chosen]}
    return pd.DataFrame(columns).sort_values("importance", ascending=False, ignore_index=True)
