"""How well an embedding of cells keeps cell types apart and mixes batches: the numbers of the field.

The metrics and parameters are those that scib-metrics 0.5.10 computes by default (Luecken et al., "Benchmarking
atlas-level data integration in single-cell genomics", 2022), written anew as formulas, in float64 and with exact
neighbours. Every score is scaled so that 1 is best and 0 is worst. What differs, and why:

- Neighbours are exact there only by an option; here always.
- k-means is the best of ten starts here, a single start there, whose outcome depends on the seed.
- Silhouettes of more than 50,000 cells are those of a sample; there of all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int, Shaped
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from scipy.special import chdtrc
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, adjusted_rand_score, f1_score, normalized_mutual_info_score
from sklearn.metrics import silhouette_samples as euclidean_silhouettes
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import gen_batches

from omniset.runs.devices import one_blas_thread

Vectors = Float[np.ndarray, "cells dim"]
Codes = Int[np.ndarray, " cells"]  # numbers of groups, from 0
# Of a cell and its nearest ones, the cell itself counted as one.
LISI_NEIGHBOURS = 90
KBET_NEIGHBOURS = 50
GRAPH_NEIGHBOURS = 15
SILHOUETTE_CELLS = 50_000
DIFFUSION_COMPONENTS = 100
BLOCK = 8192  # cells at a time, so that memory does not grow with cells x neighbours x dimensions

BIO = ("isolated_labels", "kmeans_nmi", "kmeans_ari", "silhouette_label", "clisi")
BATCH = ("bras", "ilisi", "kbet", "graph_connectivity", "pcr_comparison")


@dataclass(frozen=True)
class Neighbours:
    """The nearest cells of every cell, the cell itself first, by Euclidean distance."""

    indices: Int[np.ndarray, "cells k"]
    distances: Float[np.ndarray, "cells k"]  # ascending, in units of the embedding

    def first(self, k: int) -> Neighbours:
        return Neighbours(self.indices[:, :k], self.distances[:, :k])


def integration(
    embedding: Vectors,
    labels: Shaped[np.ndarray, " cells"],
    batches: Shaped[np.ndarray, " cells"],
    reference: Float[np.ndarray, "cells width"],
    seed: int = 0,
) -> dict[str, float]:
    """All scores of an embedding, each that of the function of its name, and their means.

    Args:
        embedding: To be judged.
        labels: The type of each cell, None for some. A cell without one counts for `ilisi` and `pcr_comparison` only:
            for all other scores it is as if it were not there, as a neighbour too.
        batches: The batch of each cell.
        reference: What was not integrated, the principal components of log-normalised counts.
        seed: Of k-means, and of the sample of 50,000 cells that silhouettes are computed on where there are more.

    Returns:
        Scores from 0 to 1 (`kmeans_ari` is below 0 where worse than chance; `silhouette_label` is of all types), NaN
        where one is not defined; `bio` and `batch`, the means of those that are; and `total`, 0.6 bio + 0.4 batch. With
        one batch, batch scores are NaN and the total is bio. With fewer than two types, scores of types are NaN, and so
        is the total, since noise mixes batches best. Where there are fewer cells than neighbours, all of them are.
    """
    batch, label = (pd.factorize(values, sort=True)[0].astype(np.int64) for values in (batches, labels))
    several, known = bool(batch.max() > 0), label >= 0
    z, y, b = embedding[known], label[known], batch[known]

    scores = dict.fromkeys((*BIO, *BATCH), float("nan"))
    if several:
        near = neighbours(embedding, LISI_NEIGHBOURS)
        scores["ilisi"] = ilisi(near, batch)
        scores["pcr_comparison"] = pcr_comparison(reference, embedding, batch)
    if len(y):
        near_known = near if several and known.all() else neighbours(z, LISI_NEIGHBOURS)
        if y.max() > 0:
            widths, sample = silhouettes(z, y, seed)
            scores["silhouette_label"] = (float(widths.mean()) + 1) / 2 if len(widths) else float("nan")
            scores["isolated_labels"] = isolated_labels(widths, y[sample], isolated(y, b))
            scores["kmeans_nmi"], scores["kmeans_ari"] = kmeans(z, y, seed)
            scores["clisi"] = clisi(near_known, y)
        if several:
            scores["bras"] = bras(z, y, b)
            scores["kbet"] = kbet(near_known.first(KBET_NEIGHBOURS), y, b)
            scores["graph_connectivity"] = graph_connectivity(near_known.first(GRAPH_NEIGHBOURS), y)
    bio, mixing = (_mean([scores[name] for name in names]) for names in (BIO, BATCH))
    return {**scores, "bio": bio, "batch": mixing, "total": bio if np.isnan(mixing) else 0.6 * bio + 0.4 * mixing}


def neighbours(points: Vectors, k: int) -> Neighbours:
    """The exact k nearest points of each point, itself first; all of them where there are fewer than k."""
    n = len(points)
    k = min(k, n)
    itself = np.arange(n)[:, None]
    if k < 2:
        return Neighbours(itself[:, :k], np.zeros((n, k)))
    others = NearestNeighbors(n_neighbors=k - 1).fit(points).kneighbors(return_distance=False)
    distances = np.empty((n, k - 1))
    # The search takes |x|^2 - 2 xy + |y|^2, by which equal points are 1e-8 apart: distances anew from differences.
    for part in gen_batches(n, BLOCK):
        for j in range(k - 1):
            distances[part, j] = np.linalg.norm(points[part] - points[others[part, j]], axis=1)
    order = np.argsort(distances, axis=1, kind="stable")
    others, distances = np.take_along_axis(others, order, 1), np.take_along_axis(distances, order, 1)
    return Neighbours(np.hstack([itself, others]), np.hstack([np.zeros((n, 1)), distances]))


def lisi(near: Neighbours, codes: Codes) -> Float[np.ndarray, " cells"]:
    """1 / sum_g (sum of p_j over neighbours j of group g)^2: how many groups a neighbourhood has, in effect.

    p_j is proportional to exp(-beta d_j), with beta such that the entropy of p is the log of a third of the number of
    neighbours, as Korsunsky et al. have it in code, "Fast, sensitive and accurate integration of single-cell data with
    Harmony" (2019). The cell itself is left out.
    """
    n, k = near.indices.shape
    wanted = np.log(max(k // 3, 1))
    effective_groups = np.full(n, np.nan)
    if k < 2:
        return effective_groups
    for part in gen_batches(n, BLOCK):
        d = near.distances[part, 1:] - near.distances[part, 1:2]  # p is the same, and does not vanish

        def gap(beta: Any, d: Any = d) -> Any:
            p, total = _shares(beta, d)
            return wanted - np.log(total) - beta * (p * d).sum(1)

        p, _ = _shares(_root(gap, len(d)), d)
        groups = codes[near.indices[part, 1:]]
        simpson = sum(np.square((p * (groups == g)).sum(1)) for g in range(int(codes.max()) + 1))
        effective_groups[part] = 1 / simpson
    return effective_groups


def _shares(beta: Float[np.ndarray, " some"], d: Float[np.ndarray, "some k"]) -> tuple[np.ndarray, np.ndarray]:
    """The p of each neighbour, and the sum by which it was divided."""
    p = np.exp(-beta[:, None] * d)
    return p / p.sum(1, keepdims=True), p.sum(1)


def clisi(near: Neighbours, labels: Codes) -> float:
    """(L - median of LISI over types) / (L - 1) for L types: 1 where neighbours are of one type."""
    number = int(labels.max()) + 1
    return float(number - np.median(lisi(near, labels))) / (number - 1)


def ilisi(near: Neighbours, batches: Codes) -> float:
    """(median of LISI over batches - 1) / (B - 1) for B batches: 1 where neighbours are of all batches alike."""
    return float(np.median(lisi(near, batches)) - 1) / int(batches.max())


def _root(gap: Callable[[Any], Any], n: int) -> Float[np.ndarray, " n"]:
    """For n ascending functions, x > 0 with gap(x) = 0 within 1e-5: doubled or halved from 1, then bisected.

    The tolerance is that of the original programs of LISI and UMAP; a closer one would give other numbers.
    """
    x, low, high = np.ones(n), np.zeros(n), np.full(n, np.inf)
    for _ in range(64):
        value = gap(x)
        missed = np.abs(value) >= 1e-5
        if not missed.any():
            break
        high = np.where(missed & (value > 0), x, high)
        low = np.where(missed & (value < 0), x, low)
        middle = np.where(np.isinf(high), 2 * x, (low + np.minimum(high, np.finfo(np.float64).max)) / 2)
        x = np.where(missed, middle, x)
    return x


def silhouettes(
    embedding: Vectors, labels: Codes, seed: int
) -> tuple[Float[np.ndarray, " kept"], Int[np.ndarray, " kept"]]:
    """(b - a) / max(a, b) of each cell, with a its mean distance to the others of its type and b that to the nearest
    other type; 0 for the only cell of a type (Rousseeuw, "Silhouettes: a graphical aid", 1987). And of which cells: a
    sample of 50,000 where there are more. Empty where every cell is of its own type.
    """
    rows = np.arange(len(embedding))
    if len(rows) > SILHOUETTE_CELLS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, SILHOUETTE_CELLS, replace=False))
    types = len(np.unique(labels[rows]))
    if not 2 <= types < len(rows):
        return np.empty(0), rows[:0]
    return euclidean_silhouettes(embedding[rows], labels[rows]), rows


def isolated(labels: Codes, batches: Codes) -> Bool[np.ndarray, " types"]:
    """Which types are in the smallest number of batches that any type is in."""
    number = np.unique(np.stack([labels, batches]), axis=1)
    batches_of = np.bincount(number[0])
    return batches_of == batches_of.min()


def isolated_labels(widths: Float[np.ndarray, " cells"], labels: Codes, chosen: Bool[np.ndarray, " types"]) -> float:
    """Mean over isolated types of (mean silhouette of the type + 1) / 2 (Luecken et al., 2022)."""
    return _mean([(float(widths[labels == t].mean()) + 1) / 2 for t in np.flatnonzero(chosen) if (labels == t).any()])


def bras(embedding: Vectors, labels: Codes, batches: Codes) -> float:
    """Batch removal adapted silhouette: mean over types of the mean of 1 - |s| over cells of the type, with
    s = (b - a) / max(a, b), a the mean distance to the other cells of the same type and batch, b that to the cells of
    the same type in all other batches (Rautenstrauch and Ohler, "Shortcomings of silhouette in single-cell integration
    benchmarking", 2025).

    Distance is 1 - cosine, for which a sum over cells is their number minus the product with the sum of their unit
    vectors; so no pairs are formed. A zero vector has the distance 1 from all others. A type in one batch, or with one
    cell in every batch, does not count.
    """
    norms = np.linalg.norm(embedding, axis=1, keepdims=True)
    units = np.divide(embedding, norms, out=np.zeros_like(embedding), where=norms > 0)
    scores = []
    for t in range(int(labels.max()) + 1):
        u, batch = units[labels == t], np.unique(batches[labels == t], return_inverse=True)[1]
        sizes = np.bincount(batch)
        if len(sizes) < 2 or len(sizes) == len(u):
            continue
        sums = np.stack([u[batch == b].sum(0) for b in range(len(sizes))])
        itself = 1 - np.square(u).sum(1)
        within = sizes[batch] - (u * sums[batch]).sum(1) - itself
        between = len(u) - sizes[batch] - (u * (sums.sum(0) - sums[batch])).sum(1)
        a = within / np.maximum(sizes[batch] - 1, 1)
        b = between / (len(u) - sizes[batch])
        largest = np.maximum(a, b)
        alone = (sizes[batch] == 1) | (largest <= 1e-12)  # equal vectors differ by rounding only
        s = np.where(alone, 0.0, (b - a) / np.where(alone, 1.0, largest))
        scores.append(float((1 - np.abs(s)).mean()))
    return _mean(scores)


def kmeans(embedding: Vectors, labels: Codes, seed: int) -> tuple[float, float]:
    """Normalised mutual information (arithmetic mean) and adjusted Rand index (Hubert and Arabie, "Comparing
    partitions", 1985) of types and as many k-means clusters.
    """
    with warnings.catch_warnings():
        # Fewer distinct points than types: the scores say it.
        warnings.filterwarnings("ignore", "Number of distinct clusters", ConvergenceWarning)
        clusters = KMeans(int(labels.max()) + 1, n_init=10, random_state=seed).fit_predict(embedding)
    return float(normalized_mutual_info_score(labels, clusters)), float(adjusted_rand_score(labels, clusters))


# ---------------------------------------------------------------------- graphs


def graph_connectivity(near: Neighbours, labels: Codes) -> float:
    """Mean over types of the share of the type's cells in its largest strongly connected component of the directed
    graph of neighbours within the type (Luecken et al., 2022).
    """
    graph = _sparse(near.indices, np.ones(near.indices.shape))
    shares = []
    for t in range(int(labels.max()) + 1):
        chosen = labels == t
        _, component = connected_components(graph[chosen][:, chosen], connection="strong")
        shares.append(float(np.bincount(component).max() / chosen.sum()))
    return _mean(shares)


def fuzzy_graph(near: Neighbours) -> sp.csr_array:
    """(cells, cells) symmetric weights w_ij + w_ji - w_ij w_ji, with w_ij = exp(-max(0, d_ij - r_i) / s_i), r_i the
    distance to the nearest cell that is not at distance 0 and s_i such that the sum over the k - 1 neighbours of i is
    log2(k), but no less than a thousandth of their mean distance (McInnes et al., "UMAP", 2018).
    """
    n, k = near.indices.shape
    distances = near.distances
    apart = np.where(distances > 0, distances, np.inf).min(1)
    nearest = np.where(np.isinf(apart), 0.0, apart)
    weights = np.zeros((n, k))
    least = 1e-3 * np.where(nearest > 0, distances.mean(1), distances.mean())
    for part in gen_batches(n, BLOCK):
        beyond = np.maximum(distances[part, 1:] - nearest[part, None], 0)

        def gap(scale: Any, beyond: Any = beyond) -> Any:
            return np.exp(-beyond / scale[:, None]).sum(1) - np.log2(k)

        scale = np.maximum(_root(gap, len(beyond)), least[part])[:, None]
        weights[part, 1:] = np.exp(-np.divide(beyond, scale, out=np.zeros_like(beyond), where=scale > 0))
    directed = _sparse(near.indices, weights)
    directed.eliminate_zeros()
    return sp.csr_array(directed + directed.T - directed.multiply(directed.T))


def diffusion_coordinates(graph: sp.csr_array, components: int) -> Float[np.ndarray, "cells components"]:
    """Eigenvectors of the walk on the graph, each times e / (1 - e) for its eigenvalue e, which sums walks of all
    lengths; e = 1 has the weight 1. The walk is made independent of the density of cells: K = W_ij / (q_i q_j) with q
    the row sums of W, then K_ij / sqrt(z_i z_j) with z those of K (Coifman and Lafon, "Diffusion maps", 2006; Haghverdi
    et al., "Diffusion pseudotime robustly reconstructs lineage branching", 2016).
    """
    density = 1 / graph.sum(0)
    kernel = sp.csr_array(graph.multiply(density[:, None]).multiply(density[None, :]))
    degree = 1 / np.sqrt(kernel.sum(0))
    walk = sp.csr_array(kernel.multiply(degree[:, None]).multiply(degree[None, :]))
    start = np.random.default_rng(0).standard_normal(len(degree))  # else ARPACK's own, another in every call
    values, vectors = eigsh(walk, k=components, which="LM", v0=start)
    one = values > 1 - 2.0**-25  # what is 1 in single precision
    return vectors * np.where(one, 1.0, values / np.where(one, 1.0, 1 - values))


def kbet(near: Neighbours, labels: Codes, batches: Codes) -> float:
    """Mean over types of the share of cells whose neighbourhood has batches in the proportions of their type, by
    chi-squared test at 5 % (Büttner et al., "A test metric for assessing single-cell RNA-seq batch correction", 2019).

    A neighbourhood is the cell and its k nearest ones of the type in diffusion coordinates of the graph of neighbours,
    k = a quarter of the type's mean number of cells per batch, but within 10 and 70. Types with fewer than 10 cells or
    one batch do not count. Of a type in several components those of at least 3 k cells are taken, if they have 75 % of
    its cells; else it scores 0.

    scib-metrics keeps the number of coordinates, 100 at first, as low as a type before (in sorted order) had it, which
    can have no more than its cells less one. So is it here, for the sake of equal numbers.
    """
    graph = fuzzy_graph(near)
    components, scores = DIFFUSION_COMPONENTS, []
    for t in range(int(labels.max()) + 1):
        chosen = np.flatnonzero(labels == t)
        sizes = np.bincount(batches[chosen])
        sizes = sizes[sizes > 0]
        if len(chosen) < 10 or len(sizes) < 2:
            continue
        k = int(np.clip(np.floor(sizes.mean() / 4), 10, 70))
        number, component = connected_components(graph[chosen][:, chosen], directed=False)
        if number > 1:
            large = np.bincount(component) >= 3 * k
            connected = chosen[large[component]]
            if len(connected) < 0.75 * len(chosen):
                scores.append(0.0)
                continue
            chosen = connected
        components = min(components, len(chosen) - 1)
        coordinates = diffusion_coordinates(sp.csr_array(graph[chosen][:, chosen]), components)
        scores.append(_accepted(neighbours(coordinates, k + 1).indices, batches[chosen]))
    return _mean(scores)


def _accepted(indices: Int[np.ndarray, "cells k"], batches: Codes) -> float:
    """Share of neighbourhoods with p >= 0.05; 0 where only one batch is left."""
    sizes = np.bincount(batches)
    present = np.flatnonzero(sizes)
    if len(present) < 2:
        return 0.0
    near = batches[indices]
    observed = np.stack([(near == b).sum(1) for b in present], 1)
    expected = sizes[present] / len(batches) * indices.shape[1]
    statistic = (np.square(observed - expected) / expected).sum(1)
    return float((chdtrc(len(present) - 1, statistic) >= 0.05).mean())


def _sparse(indices: Int[np.ndarray, "cells k"], values: Float[np.ndarray, "cells k"]) -> sp.csr_array:
    n, k = indices.shape
    # Copies, since scipy sorts its indices in place.
    return sp.csr_array((values.flatten(), indices.flatten(), np.arange(0, n * k + 1, k)), shape=(n, n))


def explained(embedding: Vectors, batches: Codes) -> float:
    """Sum of squares between batches / total sum of squares.

    Principal component regression sums the share R^2 of each component that batches explain, weighted by the
    component's variance (Büttner et al., 2019). R^2 times the variance is the variance between batches, and sums of
    variances are the same in every rotation: so no components are needed.
    """
    centred = embedding - embedding.mean(0)
    total = float(np.square(centred).sum())
    if total <= 1e-24 * float(np.square(embedding).sum()):  # equal cells differ by rounding only
        return 0.0
    sums = np.stack([np.bincount(batches, column) for column in centred.T], 1)
    return float((np.square(sums).sum(1) / np.maximum(np.bincount(batches), 1)).sum()) / total


def pcr_comparison(reference: Float[np.ndarray, "cells dim_of_reference"], embedding: Vectors, batches: Codes) -> float:
    """max(0, 1 - explained by batches after / before integration); NaN where it was 0 before."""
    before = explained(reference, batches)
    return max(0.0, 1 - explained(embedding, batches) / before) if before > 0 else float("nan")


def transfer(
    train_z: Float[np.ndarray, "train dim"],
    train_labels: Shaped[np.ndarray, " train"],
    test_z: Float[np.ndarray, "test dim"],
    test_labels: Shaped[np.ndarray, " test"],
    k: int = 15,
) -> dict[str, float]:
    """How well types of new cells are predicted from an embedding that was fitted without them.

    Args:
        train_z: Of cells whose types are given.
        train_labels: Types; a cell with a missing one is left out, here and in the test.
        test_z: Of new cells, by the same map.
        test_labels: Their types.
        k: Nearest training cells that vote, all alike; no more than there are.

    Returns:
        `knn_f1`, `knn_accuracy`: by the vote. `linear_f1`, `linear_accuracy`: by logistic regression (L2, C = 1) on
        standardised dimensions. F1 is the mean over all types that are true or predicted of a test cell, each alike.
    """
    codes, _ = pd.factorize(np.concatenate([train_labels, test_labels]), sort=True)
    train, test = np.split(codes, [len(train_labels)])
    z, y = train_z[train >= 0].astype(np.float64), train[train >= 0]
    new, truth = test_z[test >= 0].astype(np.float64), test[test >= 0]
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    scores = {}
    for name, model in (("knn", KNeighborsClassifier(min(k, len(z)))), ("linear", linear)):
        with one_blas_thread():
            types = model.fit(z, y).predict(new) if y.min() < y.max() else np.full(len(new), y[0])
        scores[f"{name}_f1"] = float(f1_score(truth, types, average="macro", zero_division=0))
        scores[f"{name}_accuracy"] = float(accuracy_score(truth, types))
    return scores


def _mean(values: list[float]) -> float:
    """Of those that are not NaN; NaN if there are none."""
    defined = [v for v in values if not np.isnan(v)]
    return float(np.mean(defined)) if defined else float("nan")
