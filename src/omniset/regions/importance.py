"""Which genes predictions of unseen regions rest on, by chance as well? And what a network looks at for a pair."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control

from omniset.regions.blend import attention_of
from omniset.regions.data import Regions
from omniset.regions.methods import Method
from omniset.regions.null_models import spins
from omniset.regions.scaling import Scaling
from omniset.regions.seed import SeedMethod
from omniset.regions.set_attention import FOLDS, SetAttention
from omniset.regions.splits import FEWEST, held_back


def gene_importance(regions: Regions, attention: SetAttention, nulls: int, seed: int) -> pd.DataFrame:
    """Importance out of fold, and how often that of a surrogate map is as large.

    The regions are divided into four folds; those of a fold are predicted by a network that has not seen them, and

        importance of gene g = mean over folds of  sum over regions i of the fold of  z_ig dr / dz_ig

    with z standardised expression and r Pearson's r of the fold's pairs: to first order, how far r falls where the
    gene's map is made flat. Of a surrogate of the gene's map, z' takes the place of the first z: as large an importance
    by a map that means nothing. p = (1 + surrogates as important) / (1 + surrogates), q is p after Benjamini and
    Hochberg, "Controlling the false discovery rate", 1995. Genes that vary together share what they say.

    Args:
        regions: Those learned from.
        attention: Whose settings are taken.
        nulls: Surrogates: spins, see `omniset.regions.null_models.spins`; without places rows are permuted.

    Returns:
        By descending importance: `gene`, `importance`, `null` (mean of the surrogates), `p`, `q`.

    Raises:
        ValueError: nulls below 1, or too few regions.
    """
    if nulls < 1:
        raise ValueError(f"nulls must be >= 1, got {nulls}")
    slopes = np.zeros(regions.expression.shape)
    place = {name: at for at, name in enumerate(regions.names)}
    folds = [
        (learn, left)
        for learn, left in held_back(regions, FOLDS, seed, attention.held_out)
        if len(left.pairs()) >= FEWEST and len(learn.pairs()) >= FEWEST
    ]
    if not folds:
        raise ValueError(f"regions must be {2 * FEWEST} at least for folds, got {len(regions)}")
    for learn, left in folds:
        network = SetAttention(attention.needs_genes, attention.device)
        network.held_out = attention.held_out
        network.fit(learn, np.arange(len(learn)), seed)
        slopes[[place[name] for name in left.names]] = np.nan_to_num(network.slopes(left)) / len(folds)
    z = Scaling.of(regions.expression)(regions.expression)
    observed = (z * slopes).sum(0)
    if regions.coordinates is None:
        rng = np.random.default_rng(seed)
        orders = np.stack([rng.permutation(len(z)) for _ in range(nulls)])
    else:
        orders = spins(regions, nulls, seed)
    surrogates = np.stack([(z[rows] * slopes).sum(0) for rows in orders])
    # What differs by rounding alone is as large: a flat map and its surrogates are 0.
    p = (1 + (surrogates >= observed - 1e-12).sum(0)) / (1 + nulls)
    about = {"importance": observed, "null": surrogates.mean(0), "p": p, "q": false_discovery_control(p)}
    table = pd.DataFrame({"gene": regions.genes, **about})
    return table.sort_values("importance", ascending=False, ignore_index=True)


# ---------------------------------------------------------------------- a pair of regions


def attended(method: Method, pair: Regions, known: Regions, top: int) -> pd.DataFrame:
    """Known regions that two regions read from, or genes that attend to genes. See `ConnectivityPredictor.explain`.

    Raises:
        ValueError: A method without attention, or regions without the places that it needs.
    """
    method.check_coordinates(pair)
    if isinstance(method, SeedMethod):
        weights = method.weights(pair)
        order = np.argsort(weights, axis=None, kind="stable")[::-1][:top]
        i, j = np.unravel_index(order, weights.shape)
        genes = np.array(pair.genes, dtype=object)
        columns = {"gene_i": np.array(["CLS", *pair.genes], dtype=object)[i], "gene_j": genes[j]}
        return pd.DataFrame({**columns, "weight": weights[i, j].astype(np.float64)})
    attention = attention_of(method)
    if attention is None:
        raise ValueError("explain is for methods with attention: the default, 'attention' and 'seed'")
    names = np.array(sorted(known.names), dtype=object)
    parts = []
    for name, weights in zip(pair.names, attention.read(pair), strict=True):
        order = np.argsort(-weights, kind="stable")[:top]
        parts.append(pd.DataFrame({"region": name, "known": names[order], "weight": weights[order]}))
    return pd.concat(parts, ignore_index=True)
