"""The reports of the system for cells: on a fitted model, on an evaluation.

Each composer returns the page and the plain numbers behind it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped
from scipy.stats import spearmanr
from sklearn.cluster import KMeans
from sklearn.neighbors import NearestNeighbors

from omniset.cells.checks import THINNED
from omniset.cells.data import Cells
from omniset.cells.embedder import CellEmbedder
from omniset.cells.evaluate import ALL, NEW, TRANSFER, WHOLE, Evaluation
from omniset.cells.metrics import BATCH, BIO
from omniset.cells.readings import BLOCK
from omniset.report import figures, frame
from omniset.report.blocks import (
    Block,
    Cell,
    Facts,
    Note,
    Plot,
    Report,
    Section,
    Table,
    listed,
    many,
    rounded,
    text_of,
    whole,
)

DRAWN = 20_000  # cells, at most
EXPLAINED = 6
GENES = 15  # shown for each of these
FEW = 50  # values that a column of obs may have to be taken for categories
COLUMNS = 4  # of these that are drawn
BATCHES = 200  # listed
NEIGHBOURS = 15  # of UMAP
PARTS = {
    "loss": "all parts together",
    "reconstruction": "minus the log-likelihood of the counts",
    "kl": "divergence from a normal distribution",
    "alignment": "distance between batches within clusters",
    "clusters": "distance of cells from the centres of their clusters, no part of the loss",
}
WHAT: list[list[Any]] = [
    ["total", "0.6 bio + 0.4 batch"],
    ["bio", "mean of the next five: are cells of one type together and apart from others"],
    ["isolated_labels", "silhouette of the types in the fewest batches"],
    ["kmeans_nmi", "normalised mutual information of k-means clusters and types"],
    ["kmeans_ari", "adjusted Rand index of k-means clusters and types"],
    ["silhouette_label", "silhouette of all types"],
    ["clisi", "neighbours are of the same type"],
    ["batch", "mean of the next five: are batches mixed"],
    ["bras", "batches within a type lie on one another"],
    ["ilisi", "neighbours are of all batches"],
    ["kbet", "neighbourhoods have the batches of their type"],
    ["graph_connectivity", "cells of a type are connected"],
    ["pcr_comparison", "the variance that batches explain, removed"],
]


# ---------------------------------------------------------------------- what is drawn and explained


@dataclass
class Drawn:
    """Cells that are drawn: all, or a sample in their order.

    Attributes:
        rows: Their numbers.
        z: Their vectors.
        seen: Whether they have counts of genes that the model knows.
        library: Their sums of counts; None where counts are not known.
        groups: Of each column drawn, the category of each cell; "" where it has none.
        of: Number of all cells.
    """

    rows: Int[np.ndarray, " drawn"]
    names: Shaped[np.ndarray, " drawn"]
    z: Float[np.ndarray, "drawn dim"]
    seen: Bool[np.ndarray, " drawn"]
    library: Float[np.ndarray, " drawn"] | None
    groups: dict[str, np.ndarray] = field(default_factory=dict)
    of: int = 0

    @property
    def sentence(self) -> str:
        return _share(len(self.rows), self.of)


def _sampled(cells: int, seed: int) -> Int[np.ndarray, " drawn"]:
    """At most `DRAWN` of so many cells, in their order."""
    if cells <= DRAWN:
        return np.arange(cells)
    return np.sort(np.random.default_rng(seed).choice(np.arange(cells), DRAWN, replace=False))


def _share(drawn: int, cells: int) -> str:
    return f"All {cells:,} cells." if drawn == cells else f"{drawn:,} of {cells:,} cells, drawn at random."


def draw(
    embedder: CellEmbedder,
    cells: Cells,
    codes: Int[np.ndarray, " cells"],
    batch_key: str | None,
    seed: int,
    columns: int = COLUMNS,
) -> Drawn:
    """At most `DRAWN` cells, with their vectors, batches and the first columns of obs that have few values."""
    rows = _sampled(len(cells), seed)
    z = embedder.embed_cells(cells, rows)
    groups = {}
    if len(embedder.batches_) > 1:
        groups[batch_key or "file"] = np.array(embedder.batches_, dtype=object)[codes[rows]]
    for name in [name for name in few_values(cells.obs) if name != batch_key][:columns]:
        values = cells.obs[name].iloc[rows]
        groups[name] = np.where(values.isna(), "", values.astype(str).to_numpy(dtype=object))
    matched = cells.on(embedder.genes_)
    seen = np.concatenate([np.diff(matched.take(rows[i : i + BLOCK]).indptr) > 0 for i in range(0, len(rows), BLOCK)])
    library = None if any(cells.relative) else cells.library(rows)
    return Drawn(rows, cells.names[rows], z, seen, library, groups, len(cells))


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


# ---------------------------------------------------------------------- a fitted model


def of_fit(
    embedder: CellEmbedder,
    drawn: Drawn,
    explained: pd.DataFrame | None,
    batches: pd.DataFrame,
    run: frame.Run,
) -> tuple[Report, dict[str, Any]]:
    """The report on a fitted model.

    Args:
        drawn: Cells to draw.
        explained: What `CellEmbedder.explain` gave on a few of them.
        batches: A row per batch: `batch`, `cells`, and `library`, their median sum of counts.
    """
    sizes, seconds = embedder.sizes_, getattr(embedder, "seconds_", None)
    how, places = flat(drawn.z, int(embedder.seed))
    first, correlation = _library(drawn)
    items: list[tuple[str, Any, str]] = [
        ("cells", sizes["cells"], f"{sizes['validation']:,} kept back" if sizes["validation"] else "none kept back"),
        ("genes", sizes["genes"], "the vocabulary"),
        ("batches", len(embedder.batches_), "which the decoder knows"),
        ("width", embedder.embedding_dim, "of the vectors"),
    ]
    if seconds is not None:
        items.append(("seconds", Cell(f"{seconds:,.0f}", seconds), "of training"))
    sections = [_batches(batches), _learning(embedder), _picture(drawn, how, places)]
    sections += [_depth(drawn, first, correlation), _genes(explained)]
    how_taught = f"with {many(len(embedder.types_), 'label')}" if embedder.types_ else "without labels"
    lead = (
        f"Vectors of cells, learned from {many(sizes['training'], 'cell')} and {sizes['genes']:,} genes {how_taught}."
    )
    numbers = {
        "sizes": sizes,
        "model": embedder.identity(),
        "seconds": seconds,
        "history": embedder.history_,
        "batches": batches.to_dict("records"),
        "drawn": {"cells": len(drawn.rows), "of": drawn.of, "by": how, "columns": list(drawn.groups)},
        "library_correlation": correlation,
        "explained": [] if explained is None else explained.to_dict("records"),
    }
    return frame.compose(run, lead, sections, numbers, headline=items, settings=embedder.get_params())


def _batches(batches: pd.DataFrame) -> Section:
    rows = batches[["batch", "cells", "library"]].head(BATCHES).values.tolist()
    cut = f" The first {BATCHES} of {len(batches):,}." if len(batches) > BATCHES else ""
    table = Table(f"Cells of each batch.{cut}", ["batch", "cells", "median counts per cell"], rows, half=True)
    text = "" if len(batches) > 1 else "All cells are taken for one batch: nothing was mixed."
    return Section("Batches", text, [table])


def _learning(embedder: CellEmbedder) -> Section:
    history = embedder.history_
    watched = [row for row in history if "val_loss" in row]
    best_epoch = None
    if embedder.patience is not None and watched:
        best_epoch = int(min(watched, key=lambda row: row["val_loss"])["epoch"])
    keys = history[0] if history else {}
    rising = [name for part, name in (("kl", "divergence"), ("alignment", "alignment")) if f"train_{part}" in keys]
    text = f"The weight of {' and of '.join(rising)} rises over the first half. " if rising else ""
    parts = [f"{name}: {what}." for name, what in PARTS.items() if f"train_{name}" in keys]
    return frame.learning({"": history}, kept_epochs={"": best_epoch}, text=f"{text}{' '.join(parts)}")


def _picture(drawn: Drawn, how: str, places: Float[np.ndarray, "drawn 2"]) -> Section:
    groups = drawn.groups or {"all cells": np.full(len(places), "", dtype=object)}
    blocks: list[Block] = [
        plotted(places, labels, how, f"{how} of the vectors, by {name}.") for name, labels in groups.items()
    ]
    return Section("Embedding", f"{drawn.sentence} {remark(how)}", blocks)


def remark(how: str) -> str:
    if how == "UMAP":
        return "UMAP keeps neighbours together; distances between groups and their sizes mean little."
    return "The first two principal components; what lies apart in others is not seen."


def plotted(places: Float[np.ndarray, "rows 2"], labels: Shaped[np.ndarray, " rows"], how: str, caption: str) -> Plot:
    names, numbers = np.unique(labels.astype(str), return_counts=True)
    order = np.argsort(-numbers, kind="stable")
    cells = listed({str(names[i]) or "not known": int(numbers[i]) for i in order})
    figure = figures.categories(places, labels, f"{how} 1", f"{how} 2")
    return Plot(figure, f"A point per cell. Cells: {cells}.", caption)


def _library(drawn: Drawn) -> tuple[Float[np.ndarray, " drawn"], float | None]:
    """The first principal component, and its rank correlation with library sizes."""
    first = components(drawn.z, 1)[:, 0]
    if drawn.library is None or not np.ptp(first) or not np.ptp(drawn.library):
        return first, None
    return first, float(spearmanr(first, drawn.library).statistic)


def _depth(drawn: Drawn, first: Float[np.ndarray, " drawn"], correlation: float | None) -> Section:
    if drawn.library is None or correlation is None:
        return Section("Depth of sequencing", "Library sizes are not known, or all the same.")
    text = (
        "Vectors should say what a cell is, and not how deeply it was sequenced. Some correlation is biology: cells of "
        "some types have more RNA."
    )
    figure = figures.points(drawn.library, first, "counts per cell", "first principal component", log=True)
    caption = (
        f"First principal component of the vectors against library size. Spearman's correlation {text_of(correlation)}."
    )
    return Section("Depth of sequencing", text, [Plot(figure, caption, caption)])


def _genes(explained: pd.DataFrame | None) -> Section:
    if explained is None or explained.empty:
        return Section("Genes", "No cell was explained in this run.")
    text = (
        "Which genes make a few cells' vectors what they are. Change: how far, along its own direction from the mean "
        "of all cells, the vector would go back without the gene. Attribution: self-attention attribution, the cell's "
        "highest is 1."
    )
    blocks: list[Block] = []
    for name, rows in explained.groupby("cell", sort=False):
        top = rows.head(GENES)
        alt = f"Bars of change: {listed(dict(zip(top['gene'], top['change'].tolist(), strict=True)))}."
        figure = figures.bars(top["gene"].tolist(), top["change"].tolist(), "change of the vector")
        blocks.append(Plot(figure, alt, f"Cell {name}: the genes with the largest change."))
        columns = ["gene", "count", "change", "attribution"]
        cells = [[gene, whole(count), *rest] for gene, count, *rest in top[columns].to_numpy(dtype=object).tolist()]
        blocks.append(Table(f"Cell {name}: the same genes.", columns, cells, half=True))
    return Section("Genes", text, blocks)


# ---------------------------------------------------------------------- an evaluation


def of_evaluation(evaluation: Evaluation, run: frame.Run) -> tuple[Report, dict[str, Any]]:
    """The report on an evaluation: verdict and gates first, then every method."""
    drawn, how = _pictures(evaluation)
    measured = Section(
        "What is measured",
        "All scores are scaled so that 1 is best. They are those of scib-metrics (Luecken et al., 2022).",
        [Table("The scores.", ["score", "what it is"], WHAT)],
    )
    sections = [_all_cells(evaluation), drawn, _new_batches(evaluation), _checks(evaluation), measured]
    comparison, cells = evaluation.comparison, len(evaluation.labels)
    lead = (
        f"{many(len(comparison.methods), 'method')} on {many(cells, 'cell')}, judged by labels that no method has seen."
    )
    totals = comparison.table("total", ALL)["value"].sort_values(ascending=False, kind="stable")
    numbers = {
        **{"advice": evaluation.advice(), "checks": evaluation.checks, "not_run": evaluation.not_run},
        **{"drawn": {"cells": min(cells, DRAWN), "of": cells, "by": how}},
    }
    return frame.compose(
        run,
        lead,
        sections,
        numbers,
        headline=[(f"total, {method}", rounded(value), "all cells") for method, value in totals.items()],
        summary=[Note("info", evaluation.advice())],
        comparison=comparison,
    )


def _all_cells(evaluation: Evaluation) -> Section:
    comparison, seeds = evaluation.comparison, evaluation.transductive["seed"].nunique()
    caption = f"Mean over {many(seeds, 'seed')}. What other cells would give cannot be told from one data set."
    blocks: list[Block] = [frame.methods(comparison, ALL, ["total", "bio", "batch"], caption=caption)]
    for caption, names in (("Cell types together", BIO), ("Batches mixed", BATCH)):
        tables = [comparison.table(name, ALL)["value"] for name in names]
        rows = [[method, *(rounded(table[method]) for table in tables)] for method in tables[0].index]
        blocks.append(Table(f"{caption}: single scores.", ["method", *names], rows))
    seconds = evaluation.seconds().itertuples(name=None)
    rows = [[method, rounded(fit, 1), rounded(embed, 1)] for method, fit, embed in seconds]
    blocks.append(Table("Seconds, median over seeds.", ["method", "fit", "embedding"], rows, half=True))
    blocks.append(_rows("Every seed", evaluation.transductive, ["seed", "method"], WHOLE))
    return Section("All cells at hand", "Each method is fitted on all cells, with batches and without labels.", blocks)


def _new_batches(evaluation: Evaluation) -> Section:
    title = "Batches that were not seen"
    if evaluation.inductive.empty:
        return Section(title, "No batch was left out of a fit.")
    text = (
        "One batch at a time is left out of the fit altogether and then embedded without being named; its labels are "
        "told from those of the other batches by 15 nearest neighbours, and by a linear classifier."
    )
    means = frame.methods(evaluation.comparison, NEW, TRANSFER)
    every = _rows("Every batch", evaluation.inductive, ["seed", "batch", "method"], TRANSFER)
    return Section(title, text, [means, every])


def _rows(caption: str, scored: pd.DataFrame, names: list[str], scores: Sequence[str]) -> Table:
    rows = [[*(row[n] for n in names), *(rounded(row[n]) for n in scores)] for row in scored.to_dict("records")]
    return Table(caption, [*names, *scores], rows, folded=True)


def _pictures(evaluation: Evaluation) -> tuple[Section, str]:
    number = len(evaluation.labels)
    rows = _sampled(number, 0)
    blocks: list[Block] = []
    how = "PCA"
    for method, z in evaluation.embeddings.items():
        how, places = flat(z[rows], 0)
        for name, labels in (("batch", evaluation.batches), ("cell type", evaluation.labels)):
            caption = f"{method}: {how} by {name}."
            blocks.append(plotted(places, labels[rows].astype(object), how, caption))
    return Section("Embeddings", f"Of the first seed. {_share(len(rows), number)} {remark(how)}", blocks), how


def _checks(evaluation: Evaluation) -> Section:
    checks = evaluation.checks
    texts = {
        "determinism": "largest difference of vectors between two fits",
        "order": "between cells embedded in this and in another order",
        "alone": "between cells embedded together and one by one",
        "cells_per_second": "cells embedded per second",
        "training_seconds": "seconds of training",
        "peak_memory_mb": "peak memory, MiB",
    }
    pairs = [(text, f"{checks[name]:,.4g}") for name, text in texts.items() if checks.get(name) is not None]
    blocks: list[Block] = [Facts(pairs)] if pairs else []
    if checks.get("thinning"):
        by = {(row["method"], row["kept"]): row for row in checks["thinning"]}
        methods = list(dict.fromkeys(row["method"] for row in checks["thinning"]))
        rows = [
            [method, *(rounded(by[method, share][what]) for share in THINNED for what in ("cosine", "found"))]
            for method in methods
        ]
        columns = ["method", *(f"{share:.0%} kept: {what}" for share in THINNED for what in ("cosine", "found"))]
        caption = (
            "Cells with fewer counts, thinned at random. Cosine: of a cell's two vectors. Found: share of cells whose "
            "own full vector is among the 15 nearest."
        )
        blocks.append(Table(caption, columns, rows))
    if checks.get("library"):
        rows = [[method, rounded(value)] for method, value in checks["library"].items()]
        caption = "Largest rank correlation of library size with one of the first five principal components."
        blocks.append(Table(caption, ["method", "|correlation|"], rows, half=True))
    text = "On our model of the first seed." if blocks else "Nothing was checked."
    return Section("Checks", text, blocks)
