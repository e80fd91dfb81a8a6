"""The reports of the system for cells: on a fitted model, on an evaluation.

Each composer returns the page and the plain numbers behind it.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped
from scipy.stats import spearmanr
from sklearn.cluster import KMeans

from omniset.cells.data import BLOCK, Cells
from omniset.cells.embedder import CellEmbedder
from omniset.cells.evaluate import MINE, SCORES, THINNED, TIE, Evaluation
from omniset.cells.metrics import BATCH, BIO
from omniset.report import figures
from omniset.report.blocks import (
    Block,
    Cell,
    Facts,
    Headline,
    Note,
    Plot,
    Report,
    Section,
    Table,
    listed,
    many,
    text_of,
    whole,
)

FORMAT, VERSION = "omniset report of cells", 1
DRAWN = 20_000  # cells, at most
EXPLAINED = 6
GENES = 15  # shown for each of these
FEW = 50  # values that a column of obs may have to be taken for categories
COLUMNS = 4  # of these that are drawn
BATCHES = 200  # listed
NEIGHBOURS = 15  # of UMAP
METHODS = {MINE: "Omniset (ours)", "pca": "PCA", "harmony": "Harmony", "scvi": "scVI"}
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
        names: Their names.
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
        if len(self.rows) == self.of:
            return f"All {self.of:,} cells."
        return f"{len(self.rows):,} of {self.of:,} cells, drawn at random."


def draw(
    embedder: CellEmbedder,
    cells: Cells,
    codes: Int[np.ndarray, " cells"],
    batch_key: str | None,
    seed: int,
    columns: int = COLUMNS,
) -> Drawn:
    """At most `DRAWN` cells, with their vectors, batches and the first columns of obs that have few values."""
    rows = np.arange(len(cells))
    if len(rows) > DRAWN:
        rows = np.sort(np.random.default_rng(seed).choice(rows, DRAWN, replace=False))
    z = embedder._embed(cells, rows)
    groups = {}
    if len(embedder.batches_) > 1:
        groups[batch_key or "file"] = np.array(embedder.batches_, dtype=object)[codes[rows]]
    for name in [name for name in few_values(cells.obs) if name != batch_key][:columns]:
        values = cells.obs[name].iloc[rows]
        groups[name] = np.where(values.isna(), "", values.astype(str).to_numpy(dtype=object))
    own = cells.on(embedder.genes_)
    seen = np.concatenate([np.diff(own.take(rows[i : i + BLOCK]).indptr) > 0 for i in range(0, len(rows), BLOCK)])
    library = None if any(cells.relative) else cells.library(rows)
    return Drawn(rows, cells.names[rows], z, seen, library, groups, len(cells))


def few_values(obs: pd.DataFrame) -> dict[str, int]:
    """Columns that could be a batch or a label, and how many values each has: 2 to 50, and at most half the cells."""
    found = {}
    for name in obs.columns:
        values = obs[name]
        if pd.api.types.is_float_dtype(values.dtype):
            continue
        number = int(values.nunique())
        if 2 <= number <= min(FEW, max(len(values) // 2, 2)):
            found[str(name)] = number
    return found


def central(drawn: Drawn, seed: int, most: int = EXPLAINED) -> list[str]:
    """Names of the cells nearest the centres of k-means clusters, largest cluster first.

    Cells without counts are left out, and those whose name another cell has too.
    """
    names, times = np.unique(drawn.names.astype(str), return_counts=True)
    good = np.isin(drawn.names.astype(str), names[times == 1]) & drawn.seen
    z = drawn.z[good].astype(np.float64)
    if not len(z):
        return []
    clusters = min(most, len(np.unique(z, axis=0)))
    found = KMeans(clusters, n_init=1, random_state=seed).fit(z)
    distances = found.transform(z)
    order = np.argsort(-np.bincount(found.labels_, minlength=clusters), kind="stable")
    nearest = dict.fromkeys(int(distances[:, i].argmin()) for i in order)
    return [str(name) for name in drawn.names[good][list(nearest)]]


def components(z: Float[np.ndarray, "cells dim"], number: int = 2) -> Float[np.ndarray, "cells number"]:
    """The first principal components; the entry of largest size of each axis is positive. Columns of 0 where there are
    fewer.
    """
    centred = z.astype(np.float64) - z.mean(0, dtype=np.float64)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:number] * np.sign(axes[np.arange(min(number, len(axes))), np.abs(axes[:number]).argmax(1)])[:, None]
    found = np.zeros((len(z), number))
    found[:, : len(axes)] = centred @ axes.T
    return found


def flat(z: Float[np.ndarray, "cells dim"], seed: int) -> tuple[str, Float[np.ndarray, "cells 2"]]:
    """Places on a plane, and how they were found: UMAP (McInnes et al., "UMAP: uniform manifold approximation and
    projection for dimension reduction", 2018) where it is installed and there are cells enough, else PCA.
    """
    if importlib.util.find_spec("umap") is None or len(z) <= 2 * NEIGHBOURS:
        return "PCA", components(z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own workings: threads, parts that are not connected
        import umap

        places = umap.UMAP(n_neighbors=NEIGHBOURS, random_state=seed, n_jobs=1).fit_transform(z.astype(np.float32))
    places = np.asarray(places, dtype=np.float64)
    return "UMAP", np.where(np.isfinite(places), places, 0.0)


# ---------------------------------------------------------------------- a fitted model


def of_fit(
    embedder: CellEmbedder,
    drawn: Drawn,
    explained: pd.DataFrame | None,
    batches: pd.DataFrame,
    *,
    title: str,
    command: str,
    notes: list[str],
    provenance: dict[str, Any],
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
    sections = [
        Section("Summary", "", [Headline(items), *_warnings(notes), *(Note("info", n) for n in embedder.notes_)]),
        _batches(batches),
        _learning(embedder),
        _picture(drawn, how, places),
        _depth(drawn, first, correlation),
        _genes(explained),
        Section("Settings", "", [Facts(list(embedder.get_params().items()))]),
    ]
    lead = (
        f"Vectors of cells, learned from {many(sizes['training'], 'cell')} and {sizes['genes']:,} genes without labels."
    )
    found = {
        "sizes": sizes,
        "model": embedder.identity(),
        "seconds": seconds,
        "history": embedder.history_,
        "decided": embedder.notes_,
        "batches": batches.to_dict("records"),
        "drawn": {"cells": len(drawn.rows), "of": drawn.of, "by": how, "columns": list(drawn.groups)},
        "library_correlation": correlation,
        "explained": [] if explained is None else explained.to_dict("records"),
        "arguments": embedder.get_params(),
    }
    return _finish("fit", Report(title, lead, sections, command, provenance), notes, found)


def _batches(batches: pd.DataFrame) -> Section:
    rows = batches[["batch", "cells", "library"]].head(BATCHES).values.tolist()
    cut = f" The first {BATCHES} of {len(batches):,}." if len(batches) > BATCHES else ""
    table = Table(f"Cells of each batch.{cut}", ["batch", "cells", "median counts per cell"], rows, half=True)
    text = "" if len(batches) > 1 else "All cells are of one batch: there is nothing to mix."
    return Section("Batches", text, [table])


def _learning(embedder: CellEmbedder) -> Section:
    history = embedder.history_
    if not history:
        return Section("Learning curves", "Nothing was trained in this run.")
    keys = list(dict.fromkeys(key for row in history for key in row if key != "epoch"))
    kept = None
    watched = [row for row in history if "val_loss" in row]
    if embedder.patience is not None and watched:
        kept = int(min(watched, key=lambda row: row["val_loss"])["epoch"])
    blocks: list[Block] = []
    for name in dict.fromkeys(key.removeprefix("train_").removeprefix("val_") for key in keys):
        last = {figures.words(key): history[-1].get(key) for key in keys if key.endswith(f"_{name}")}
        alt = f"Line plot of {name} by epoch. In the last epoch: {listed(last)}."
        caption = f"{figures.words(name).capitalize()}: {PARTS.get(name, 'by epoch')}."
        blocks.append(Plot(figures.learning_curve(history, name, kept), alt, caption))
    rows = [[row["epoch"], *(row.get(key) for key in keys)] for row in history]
    blocks.append(Table("Learning curves as a table", ["epoch", *map(figures.words, keys)], rows, folded=True))
    rising = [
        name for part, name in (("kl", "divergence"), ("alignment", "alignment")) if f"train_{part}" in history[0]
    ]
    text = f"Training took {many(len(history), 'epoch')}."
    if rising:
        text += f" The weight of {' and of '.join(rising)} rises over the first half."
    return Section("Learning curves", text, blocks)


def _picture(drawn: Drawn, how: str, places: Float[np.ndarray, "drawn 2"]) -> Section:
    groups = drawn.groups or {"all cells": np.full(len(places), "", dtype=object)}
    blocks: list[Block] = [
        _drawn(places, labels, how, f"{how} of the vectors, by {name}.") for name, labels in groups.items()
    ]
    text = f"{drawn.sentence} {_about(how)}"
    return Section("Embedding", text, blocks)


def _about(how: str) -> str:
    if how == "UMAP":
        return "UMAP keeps neighbours together; distances between groups and their sizes mean little."
    return "The first two principal components; what lies apart in others is not seen."


def _drawn(places: Float[np.ndarray, "rows 2"], labels: Shaped[np.ndarray, " rows"], how: str, caption: str) -> Plot:
    names, numbers = np.unique(labels.astype(str), return_counts=True)
    order = np.argsort(-numbers, kind="stable")
    said = listed({str(names[i]) or "not known": int(numbers[i]) for i in order})
    figure = figures.categories(places, labels, f"{how} 1", f"{how} 2")
    return Plot(figure, f"A point per cell. Cells: {said}.", caption)


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
    said = f"Spearman's correlation {text_of(correlation)}."
    figure = figures.points(drawn.library, first, "counts per cell", "first principal component", log=True)
    caption = f"First principal component of the vectors against library size. {said}"
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
        cells = [
            [
                row["gene"],
                whole(row["count"]),
                row["change"],
                None if math.isnan(row["attribution"]) else row["attribution"],
            ]
            for row in top.to_dict("records")
        ]
        blocks.append(Plot(figure, alt, f"Cell {name}: the genes with the largest change."))
        columns = ["gene", "count", "change", "attribution"]
        blocks.append(Table(f"Cell {name}: the same genes.", columns, cells, half=True))
    return Section("Genes", text, blocks)


# ---------------------------------------------------------------------- an evaluation


def of_evaluation(
    evaluation: Evaluation, *, title: str, command: str, notes: list[str], provenance: dict[str, Any]
) -> tuple[Report, dict[str, Any]]:
    """The report on an evaluation: gates first, then every method."""
    found = evaluation.numbers()
    drawn, how = _pictures(evaluation)
    sections = [
        _gates(evaluation, found["gates"], notes),
        _transductive(evaluation),
        drawn,
        _inductive(evaluation),
        _checks(evaluation),
        Section(
            "What is measured",
            "All scores are scaled so that 1 is best. They are those of scib-metrics (Luecken et al., 2022).",
            [Table("The scores.", ["score", "what it is"], WHAT)],
        ),
    ]
    methods, cells = len(evaluation.methods), len(evaluation.labels)
    lead = f"{many(methods, 'method')} on {many(cells, 'cell')}, judged by labels that no method has seen."
    found["drawn"] = {"cells": min(cells, DRAWN), "of": cells, "by": how}
    return _finish("evaluation", Report(title, lead, sections, command, provenance), notes, found)


def label(method: Any) -> str:
    """A method's name for readers."""
    return METHODS.get(method, str(method))


def _gates(evaluation: Evaluation, gates: list[dict[str, Any]], notes: list[str]) -> Section:
    table = evaluation.table()
    asked = [gate for gate in gates if gate["quality"]]
    items: list[tuple[str, Any, str]] = [
        ("gates held", Cell(f"{sum(g['holds'] for g in asked)} of {len(asked)}", sum(g["holds"] for g in asked)), "")
    ]
    for method in table.index:
        low, high = (_rounded(table.loc[method, f"total_{end}"]) for end in ("low", "high"))
        items.append((f"total, {label(method)}", _rounded(table.loc[method, "total"]), f"{low.text} to {high.text}"))
    blocks: list[Block] = [Headline(items), *_warnings(notes), Note("info", evaluation.advice())]
    failed = [gate for gate in asked if not gate["holds"]]
    if failed:
        said = "; ".join(f"{g['gate']}: {text_of(g['value'])}, asked for {g['bound']}" for g in failed)
        blocks.append(Note("warning", f"{many(len(failed), 'gate')} of {len(asked)} not held. {said}."))
    blocks += [Note("info", f"{label(name)} was not run: {why}") for name, why in evaluation.not_run.items()]
    blocks += [Note("info", note) for note in evaluation.notes]
    rows = [
        [
            gate["gate"],
            gate["value"],
            gate["bound"],
            Cell(("yes" if gate["holds"] else "NO") + (", a tie" if gate["tie"] else ""), gate["holds"]),
            "quality" if gate["quality"] else "speed on this machine",
        ]
        for gate in gates
    ]
    if rows:
        blocks.append(Table("Gates.", ["gate", "value", "asked for", "holds", "of"], rows))
    text = f"What a useful method must hold. Differences up to {TIE:g} are ties: seeds differ by as much."
    return Section("Summary", text, blocks)


def _transductive(evaluation: Evaluation) -> Section:
    table, seeds = evaluation.table(), evaluation.transductive["seed"].nunique()
    wide = [
        [
            label(method),
            *(_rounded(row[name]) for name in ("total", "bio", "batch")),
            f"{_rounded(row['total_low']).text} to {_rounded(row['total_high']).text}",
            _rounded(row["fit_seconds"], 1),
            _rounded(row["embed_seconds"], 1),
        ]
        for method, row in table.iterrows()
    ]
    columns = ["method", "total", "bio", "batch", "total, all seeds", "fit, s", "embedding, s"]
    blocks: list[Block] = [
        Table(f"Mean over {many(seeds, 'seed')}; smallest and largest total of any seed.", columns, wide)
    ]
    for caption, names in (("Cell types together", BIO), ("Batches mixed", BATCH)):
        rows = [[label(method), *(_rounded(row[name]) for name in names)] for method, row in table.iterrows()]
        blocks.append(Table(f"{caption}: single scores.", ["method", *names], rows))
    every = evaluation.transductive
    rows = [
        [row["seed"], label(row["method"]), *(_rounded(row[n]) for n in SCORES)] for row in every.to_dict("records")
    ]
    blocks.append(Table("Every seed", ["seed", "method", *SCORES], rows, folded=True))
    return Section("All cells at hand", "Each method is fitted on all cells, with batches and without labels.", blocks)


def _pictures(evaluation: Evaluation) -> tuple[Section, str]:
    number = len(evaluation.labels)
    rows = np.arange(number)
    if number > DRAWN:
        rows = np.sort(np.random.default_rng(0).choice(rows, DRAWN, replace=False))
    blocks: list[Block] = []
    how = "PCA"
    for method, z in evaluation.embeddings.items():
        how, places = flat(z[rows], 0)
        for name, labels in (("batch", evaluation.batches), ("cell type", evaluation.labels)):
            caption = f"{label(method)}: {how} by {name}."
            blocks.append(_drawn(places, labels[rows].astype(object), how, caption))
    said = f"All {number:,} cells." if len(rows) == number else f"{len(rows):,} of {number:,} cells, drawn at random."
    return Section("Embeddings", f"Of the first seed. {said} {_about(how)}", blocks), how


def _inductive(evaluation: Evaluation) -> Section:
    if evaluation.inductive.empty:
        return Section("Batches that were not seen", "No batch was left out of a fit.")
    table = evaluation.inductive_table()
    rows = [
        [
            label(method),
            _rounded(row["knn_f1"]),
            f"{_rounded(row['knn_f1_low']).text} to {_rounded(row['knn_f1_high']).text}",
            _rounded(row["linear_f1"]),
            f"{_rounded(row['linear_f1_low']).text} to {_rounded(row['linear_f1_high']).text}",
            _rounded(row["knn_accuracy"]),
            _rounded(row["linear_accuracy"]),
        ]
        for method, row in table.iterrows()
    ]
    columns = ["method", "kNN macro-F1", "all seeds", "linear macro-F1", "all seeds, linear"]
    columns += ["kNN accuracy", "linear accuracy"]
    every = [
        [row["seed"], row["batch"], label(row["method"]), _rounded(row["knn_f1"]), _rounded(row["linear_f1"])]
        for row in evaluation.inductive.to_dict("records")
    ]
    text = (
        "One batch at a time is left out of the fit altogether and then embedded without being named; its labels are "
        "told from those of the other batches by 15 nearest neighbours, and by a linear classifier."
    )
    return Section(
        "Batches that were not seen",
        text,
        [
            Table("Mean over batches left out, then over seeds.", columns, rows),
            Table("Every batch", ["seed", "batch", "method", "kNN macro-F1", "linear macro-F1"], every, folded=True),
        ],
    )


def _checks(evaluation: Evaluation) -> Section:
    checks = evaluation.checks
    said = {
        "determinism": "largest difference of vectors between two fits",
        "order": "between cells embedded in this and in another order",
        "alone": "between cells embedded together and one by one",
        "cells_per_second": "cells embedded per second",
        "training_seconds": "seconds of training",
        "peak_memory_mb": "peak memory, MiB",
    }
    pairs = [(text, f"{checks[name]:,.4g}") for name, text in said.items() if checks.get(name) is not None]
    blocks: list[Block] = [Facts(pairs)] if pairs else []
    if checks.get("thinning"):
        by = {(row["method"], row["kept"]): row for row in checks["thinning"]}
        methods = list(dict.fromkeys(row["method"] for row in checks["thinning"]))
        rows = [
            [label(method), *(_rounded(by[method, share][what]) for share in THINNED for what in ("cosine", "found"))]
            for method in methods
        ]
        columns = ["method", *(f"{share:.0%} kept: {what}" for share in THINNED for what in ("cosine", "found"))]
        caption = (
            "Cells with fewer counts, thinned at random. Cosine: of a cell's two vectors. Found: share of cells whose "
            "own full vector is among the 15 nearest."
        )
        blocks.append(Table(caption, columns, rows))
    if checks.get("library"):
        rows = [[label(method), _rounded(value)] for method, value in checks["library"].items()]
        caption = "Largest rank correlation of library size with one of the first five principal components."
        blocks.append(Table(caption, ["method", "|correlation|"], rows, half=True))
    text = "On our model of the first seed." if blocks else "Nothing was checked."
    return Section("Checks", text, blocks)


# ---------------------------------------------------------------------- parts


def _finish(kind: str, report: Report, notes: list[str], found: dict[str, Any]) -> tuple[Report, dict[str, Any]]:
    about = {"format": FORMAT, "version": VERSION, "kind": kind, "title": report.title}
    made = {"notes": notes, "command": report.command, "provenance": report.provenance}
    return report, about | found | made


def _warnings(texts: Iterable[str]) -> list[Block]:
    return [Note("warning", text) for text in texts]


def _rounded(value: float, digits: int = 3) -> Cell:
    """With so many decimals; a dash if it is NaN."""
    text = f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}")
    return Cell(text_of(None) if value != value else text, value)


def sample_of(names: Sequence[str], most: int = 8) -> str:
    """A few of many names."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
