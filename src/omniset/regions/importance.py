"""Which genes predictions of unseen regions rest on, by chance as well? And what a network looks at for a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import false_discovery_control

from omniset.core.bounded import read_small
from omniset.regions.blend import attention_of
from omniset.regions.data import Regions
from omniset.regions.methods import Method
from omniset.regions.null_models import spins
from omniset.regions.scaling import Scaling
from omniset.regions.seed import SeedMethod
from omniset.regions.set_attention import FOLDS, SetAttention
from omniset.regions.splits import FEWEST, held_back

FEWEST_GENES = 3  # of a set


def gene_importance(
    regions: Regions,
    attention: SetAttention,
    nulls: int,
    seed: int,
    sets: Mapping[str, Sequence[str]],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Importance out of fold, and how often that of a surrogate map is as large.

    The regions are divided into four folds; those of a fold are predicted by a network that has not seen them, and

        importance of gene g = mean over folds of  sum over regions i of the fold of  z_ig dr / dz_ig

    with z standardised expression and r Pearson's r of the fold's pairs: to first order, how far r falls where the
    gene's map is made flat. Of a surrogate of the gene's map, z' takes the place of the first z: as large an importance
    by a map that means nothing. p = (1 + surrogates as important) / (1 + surrogates), q is p after Benjamini and
    Hochberg, "Controlling the false discovery rate", 1995. Genes that vary together share what they say.

    The importance of a set is the mean of its genes', and its p value that of the same mean of surrogates, which keep
    how genes vary together: see Fulcher, Arnatkeviciute and Fornito, "Overcoming false-positive gene-category
    enrichment in the analysis of spatially resolved transcriptomic brain atlas data", 2021.

    Args:
        regions: Those learned from.
        attention: Whose settings are taken.
        nulls: Surrogates: spins, see `omniset.regions.null_models.spins`; without places rows are permuted.
        sets: Genes by name of the set; those that are not measured are left out, and sets of fewer than 3 then.

    Returns:
        By descending importance: `gene`, `importance`, `null` (mean of the surrogates), `p`, `q`; and `set`, `genes`,
        `importance`, `null`, `p`, `q`.

    Raises:
        ValueError: nulls below 1, too few regions, or no set with 3 genes that are measured.
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
    return _tables(regions.genes, observed, np.stack([(z[rows] * slopes).sum(0) for rows in orders]), sets)


def _tables(
    genes: Sequence[str],
    observed: Float[np.ndarray, " genes"],
    nulls: Float[np.ndarray, "nulls genes"],
    sets: Mapping[str, Sequence[str]],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    place = {gene: at for at, gene in enumerate(genes)}
    chosen = {name: [place[gene] for gene in dict.fromkeys(members) if gene in place] for name, members in sets.items()}
    chosen = {name: members for name, members in chosen.items() if len(members) >= FEWEST_GENES}
    if sets and not chosen:
        raise ValueError(f"none of the {len(sets):,} gene sets has {FEWEST_GENES} genes that were measured")
    of_genes = pd.DataFrame({"gene": genes, **_beside(observed, nulls)})
    columns = list(chosen.values())
    means = np.array([observed[members].mean() for members in columns])
    null_means = np.stack([nulls[:, members].mean(1) for members in columns], 1) if columns else np.zeros((1, 0))
    about = {"set": list(chosen), "genes": [len(members) for members in columns]}
    of_sets = pd.DataFrame({**about, **_beside(means, null_means)})
    return tuple(t.sort_values("importance", ascending=False, ignore_index=True) for t in (of_genes, of_sets))  # type: ignore[return-value]


def _beside(
    observed: Float[np.ndarray, " n"], nulls: Float[np.ndarray, "nulls n"]
) -> dict[str, Float[np.ndarray, " n"]]:
    # What differs by rounding alone is as large: a flat map and its surrogates are 0.
    p = (1 + (nulls >= observed - 1e-12).sum(0)) / (1 + len(nulls))
    q = false_discovery_control(p) if len(p) else p
    return {"importance": observed, "null": nulls.mean(0), "p": p, "q": q}


def read_gmt(path: str | Path) -> dict[str, list[str]]:
    """Sets of genes: a line for each, its name, a description, and the genes, separated by tabs.

    Raises:
        ValueError: A line without genes, a set that is there twice, or a file that is not text.
    """
    sets: dict[str, list[str]] = {}
    for number, line in enumerate(read_small(path).removeprefix("\ufeff").splitlines(), 1):
        if not line.strip():
            continue
        name, *rest = line.split("\t")
        genes = [gene.strip() for gene in rest[1:] if gene.strip()]
        if not name or not genes:
            raise ValueError(f"{path}, line {number}: must have a name, a description and genes, separated by tabs")
        if name in sets:
            raise ValueError(f"{path}, line {number}: the set {name!r} is there more than once")
        sets[name] = genes
    if not sets:
        raise ValueError(f"{path} has no sets of genes")
    return sets


# ---------------------------------------------------------------------- a pair of regions


def attended(method: Method, pair: Regions, known: Regions, top: int) -> pd.DataFrame:
    """Known regions that two regions read from, or genes that attend to genes. See `ConnectivityPredictor.explain`.

    Args:
        known: The regions of the fit, in any order.

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
