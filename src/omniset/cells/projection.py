"""Cells on a plane: which are drawn, where they lie, and which are in the middle of clusters."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped
from sklearn.cluster import KMeans
from sklearn.neighbors import NearestNeighbors

from omniset.cells.data import Cells
from omniset.cells.embedder import CellEmbedder
from omniset.cells.readings import BLOCK
from omniset.report import figures
from omniset.report.blocks import Plot, listed

DRAWN = 20_000  # cells, at most
EXPLAINED = 6
FEW = 50  # values that a column of obs may have to be taken for categories
COLUMNS = 4  # of these that are drawn
NEIGHBOURS = 15  # of UMAP


@dataclass
class Drawn:
    """Cells that are drawn: all, or a sample in their order."""

    rows: Int[np.ndarray, " drawn"]
    names: Shaped[np.ndarray, " drawn"]
    z: Float[np.ndarray, "drawn dim"]
    seen: Bool[np.ndarray, " drawn"]  # whether they have counts of genes that the model knows
    groups: dict[str, np.ndarray] = field(default_factory=dict)  # by column, the category of each cell, or ""
    of: int = 0  # number of all cells


def sampled(cells: int, seed: int, most: int | None = None) -> Int[np.ndarray, " drawn"]:
    """At most `DRAWN` of so many cells, or `most`, in their order."""
    most = DRAWN if most is None else most
    if cells <= most:
        return np.arange(cells)
    return np.sort(np.random.default_rng(seed).choice(np.arange(cells), most, replace=False))


def share_drawn(drawn: int, cells: int) -> str:
    return f"All {cells:,} cells." if drawn == cells else f"{drawn:,} of {cells:,} cells, drawn at random."


def draw(
    embedder: CellEmbedder, cells: Cells, codes: Int[np.ndarray, " cells"] | None, batch_key: str | None, seed: int
) -> Drawn:
    """At most `DRAWN` cells, with their vectors, batches and the first columns of obs that have few values. Without
    codes of batches only vectors are asked for.
    """
    rows = sampled(len(cells), seed)
    z = embedder.embed_cells(cells, rows)
    groups = {}
    if codes is not None and len(embedder.batches_) > 1:
        groups[batch_key or "file"] = np.array(embedder.batches_, dtype=object)[codes[rows]]
    for name in [name for name in few_values(cells.obs) if name != batch_key][: COLUMNS if codes is not None else 0]:
        values = cells.obs[name].iloc[rows]
        groups[name] = np.where(values.isna(), "", values.astype(str).to_numpy(dtype=object))
    matched = cells.on(embedder.genes_)
    seen = np.concatenate([np.diff(matched.take(rows[i : i + BLOCK]).indptr) > 0 for i in range(0, len(rows), BLOCK)])
    return Drawn(rows, cells.names[rows], z, seen, groups, len(cells))


def few_values(obs: pd.DataFrame) -> dict[str, int]:
    """Columns that could be a batch or a label, and how many values each has: 2 to 50, and at most half the cells."""
    columns = {}
    for name in obs.columns:
        values = obs[name]
        if pd.api.types.is_float_dtype(values.dtype):
            continue
        try:
            number = int(values.nunique())
        except TypeError:  # such as lists, or records
            continue
        if 2 <= number <= min(FEW, max(len(values) // 2, 2)):
            columns[str(name)] = number
    return columns


def central(drawn: Drawn, seed: int, most: int = EXPLAINED) -> list[str]:
    """Names of the cells nearest the centres of k-means clusters, largest cluster first.

    Cells without counts are left out, and those whose name another cell has too.
    """
    good = ~pd.Series(drawn.names.astype(str)).duplicated(keep=False).to_numpy() & drawn.seen
    z = drawn.z[good].astype(np.float64)
    if not len(z):
        return []
    clusters = min(most, len(np.unique(z, axis=0)))
    kmeans = KMeans(clusters, n_init=1, random_state=seed).fit(z)
    distances = kmeans.transform(z)
    order = np.argsort(-np.bincount(kmeans.labels_, minlength=clusters), kind="stable")
    nearest = dict.fromkeys(int(distances[:, i].argmin()) for i in order)
    return [str(name) for name in drawn.names[good][list(nearest)]]


def components(z: Float[np.ndarray, "cells dim"], number: int = 2) -> Float[np.ndarray, "cells number"]:
    """The first principal components; the entry of largest size of each axis is positive. Columns of 0 where there are
    fewer.
    """
    centred = z.astype(np.float64) - z.mean(0, dtype=np.float64)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:number] * np.sign(axes[np.arange(min(number, len(axes))), np.abs(axes[:number]).argmax(1)])[:, None]
    places = np.zeros((len(z), number))
    places[:, : len(axes)] = centred @ axes.T
    return places


def flat(z: Float[np.ndarray, "cells dim"], seed: int) -> tuple[str, Float[np.ndarray, "cells 2"]]:
    """Places on a plane, and how they were found: UMAP (McInnes et al., "UMAP: uniform manifold approximation and
    projection for dimension reduction", 2018) where it is installed and there are cells enough, else PCA.
    """
    if importlib.util.find_spec("umap") is None or len(z) <= 2 * NEIGHBOURS:
        return "PCA", components(z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own workings: threads, parts that are not connected
        import umap

        _kept_compiled()
        z = z.astype(np.float32)
        # UMAP's own search for neighbours is compiled anew in each process, which takes longer than all else.
        distances, nearest = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(z).kneighbors(z)
        known = nearest, distances.astype(np.float32), None
        places = umap.UMAP(n_neighbors=NEIGHBOURS, random_state=seed, n_jobs=1, precomputed_knn=known).fit_transform(z)
    places = np.asarray(places, dtype=np.float64)
    return "UMAP", np.where(np.isfinite(places), places, 0.0)


def _kept_compiled() -> None:
    """What UMAP compiles at its first use stays on the disk: anew in each process, it would take longer than the rest
    of a report.
    """
    names = {
        "umap_": ("smooth_knn_dist", "compute_membership_strengths"),
        "layouts": ("_nb_optimize_layout_euclidean_single_epoch",),
    }
    for module, functions in names.items():
        for name in functions:
            # Nowhere to write, or a version of UMAP without these: then it is compiled.
            with contextlib.suppress(ImportError, AttributeError, RuntimeError):
                getattr(importlib.import_module(f"umap.{module}"), name).enable_caching()


def plotted(places: Float[np.ndarray, "rows 2"], labels: Shaped[np.ndarray, " rows"], how: str, caption: str) -> Plot:
    """A point per cell."""
    names, sizes = np.unique(labels.astype(str), return_counts=True)
    cells = listed({str(names[i]) or "not known": int(sizes[i]) for i in np.argsort(-sizes, kind="stable")})
    figure = figures.categories(places, labels, f"{how} 1", f"{how} 2")
    return Plot(figure, f"A point per cell. Cells: {cells}.", caption)


def remark(how: str) -> str:
    if how == "UMAP":
        return "UMAP keeps neighbours together; distances between groups and their sizes mean little."
    return "The first two principal components; what lies apart in others is not seen."
