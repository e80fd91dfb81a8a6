"""`omniset cells`: inspect, fit, embed, query, decode, explain, evaluate.

Options that several commands share are written once, as dataclasses: the parser finds them behind `**options`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omniset.cli.sets import Device, _split


@dataclass(kw_only=True)
class Reading:
    """How files are read.

    Args:
        layer: Which matrix of each file: a layer, or "raw" for that of .raw. null: X.
        input: What the matrix holds: counts, or log1p of counts. "auto": told by the values.
        gene_column: Column of var that has the genes' names. null: its index.
        progress: Show progress.
    """

    layer: str | None = None
    input: Literal["auto", "counts", "log1p"] = "auto"
    gene_column: str | None = None
    progress: bool = True

    def cells(self) -> dict[str, Any]:
        """The options of `read_cells`."""
        return {"layer": self.layer, "input": self.input, "gene_column": self.gene_column}


@dataclass(kw_only=True)
class Using(Reading):
    """How a model is used.

    Args:
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than in the model.
        device: Where to compute.
    """

    aliases: Path | None = None
    device: Device = "auto"

    def model(self) -> dict[str, Any]:
        """Arguments of `CellEmbedder` that may differ from those at fit."""
        return {"device": self.device, "progress": self.progress}


@dataclass(kw_only=True)
class Learning(Reading):
    """How a model is made: the arguments of `CellEmbedder`, with its defaults.

    Args:
        architecture: "multiset"; or "seed": network and training as first described, whose settings beside dim, depth,
            num_heads and embedding_dim are in encoder_options.
        embedding_dim: Width of the cells' vectors.
        encoder: Kind of set encoder: ust, set-transformer-isab, set-transformer-sab or deep-sets.
        dim: Width of the genes' vectors: more learns more, and slower.
        depth: Layers in which the genes of a cell see each other before they are pooled. null: none, which is fast; for
            "seed" 2.
        num_heads: Attention heads; must divide dim.
        num_inducing: Inducing points, through which genes see each other.
        num_outputs: Attention queries that pool the genes of a cell.
        encoder_options: Further settings of the encoder, such as '{"dropout": 0.2}'.
        counts: How counts enter: "multiplicity" (a gene is in the cell log(1 + 10^4 count / library) times), "log1p"
            (log(1 + count) times) or "tokens" (once, its vector changed by the count).
        gene_tokens: What stands for a gene, beside its vector where gene_vectors are given: "axes" (its place on the
            principal axes of the log-normalised counts), "learned" (from there on), "random" (learned from a random
            start) or "given" (nothing).
        likelihood: Of the counts: nb (negative binomial), poisson, or mse (of log-normalised values).
        beta: Weight of the pull of vectors towards a normal distribution. 0: none, and no noise in training.
        alignment: Weight of mixing the batches within clusters of cells. 0: batches stay apart.
        clusters: Number of these clusters.
        condition: Tell the decoder a cell's batch, so that its vector need not hold it.
        hide: Mean share of expressed genes that are hidden in training and predicted.
        dropout: Share of the encoder's last layer that is switched off in training.
        max_genes: Genes that are learned, at most: those that vary most for their mean. null: all.
        min_cells: Genes seen in fewer cells are not learned.
        epochs: How often, at most, each cell is learned from. null: enough for 800 steps.
        batch_size: Cells per step.
        learning_rate: Largest step size.
        weight_decay: Pull of the weights towards zero.
        patience: Stop after so many epochs without progress on the cells kept back. null: never.
        validation_fraction: Share of the cells kept back to watch the training. 0: none.
        seed: The same seed gives the same numbers.
        device: Where to compute.
    """

    architecture: Literal["multiset", "seed"] = "multiset"
    embedding_dim: int = 32
    encoder: str = "ust"
    dim: int = 64
    depth: int | None = None
    num_heads: int = 4
    num_inducing: int = 16
    num_outputs: int = 8
    encoder_options: dict[str, Any] | None = None
    counts: Literal["multiplicity", "log1p", "tokens"] = "multiplicity"
    gene_tokens: Literal["axes", "learned", "random", "given"] = "axes"
    likelihood: Literal["nb", "poisson", "mse"] = "nb"
    beta: float = 0.0
    alignment: float = 20.0
    clusters: int = 30
    condition: bool = True
    hide: float = 0.2
    dropout: float = 0.1
    max_genes: int | None = 2000
    min_cells: int = 1
    epochs: int | None = None
    batch_size: int = 128
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    patience: int | None = None
    validation_fraction: float = 0.0
    seed: int = 0
    device: Device = "auto"

    def embedder(self) -> dict[str, Any]:
        """The arguments of `CellEmbedder`."""
        return {name: value for name, value in vars(self).items() if name not in self.cells()}


def inspect(
    files: list[str],
    batch_key: str | None = None,
    model: Path | None = None,
    gene_vectors: Path | None = None,
    aliases: Path | None = None,
    **options: Any,
) -> None:
    """Say what files of cells hold, and what fit would make of them.

    Example: omniset cells inspect kang.h5ad

    Args:
        files: An .h5ad file, a zarr store, a 10x .h5 file, a pattern such as "runs/*.h5ad", or several of these.
        batch_key: Column of obs with the batch that fit would be given. null: each file is a batch.
        model: Folder that fit wrote: says how many of its genes are here.
        gene_vectors: Vectors of genes: says how many of the genes here have one.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than there.
        **options: See `Reading`.
    """
    from omniset.cells import runs

    reading = Reading(**options)
    runs.inspect(files, reading.cells(), reading.progress, batch_key, model, gene_vectors, aliases)


def fit(
    files: list[str],
    batch_key: str | None = None,
    out: Path = Path("model"),
    gene_vectors: Path | None = None,
    aliases: Path | None = None,
    start_from: Path | None = None,
    explain_cells: str | None = None,
    resume: bool = False,
    **options: Any,
) -> None:
    """Learn vectors of cells from their counts, without labels.

    Example: omniset cells fit kang.h5ad --batch_key ind --out model

    Args:
        files: An .h5ad file, a zarr store, a 10x .h5 file, a pattern such as "runs/*.h5ad", or several of these.
            Counts of more than 512 MB are read in blocks, each epoch anew.
        batch_key: Column of obs with the batch, such as the donor or the chemistry. null: each file is a batch.
        out: Folder for the model and its report.
        gene_vectors: Vectors of genes, such as ESM2's or gene2vec's, beside `gene_tokens`: a .pt,
            .safetensors, .npz or .npy file, or text with a gene per line.
        aliases: Table of two columns, alias and name, for genes that are spelled otherwise than the vectors, or than in
            start_from.
        start_from: Folder of a fitted model to learn on from: with its genes and its weights. Sizes must be the same.
        explain_cells: Names of the cells whose genes the report explains, separated by commas. null: six in the middle
            of clusters.
        resume: Go on with an interrupted run in the same folder.
        **options: See `Learning`.
    """
    from omniset.cells import runs

    learning, named = Learning(**options), _split(explain_cells)
    try:
        runs.fit(
            files,
            learning.cells(),
            learning.embedder(),
            batch_key,
            out,
            gene_vectors,
            aliases,
            start_from,
            named,
            resume,
        )
    except KeyboardInterrupt:
        if (out / "checkpoints").is_dir():
            print(f"\nWhole epochs, if any, are kept in {out}: go on with --resume true", file=sys.stderr)
        raise


def embed(
    files: list[str],
    model: Path = Path("model"),
    out: Path = Path("embedded.h5ad"),
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Write the vector of every cell.

    Example: omniset cells embed new.h5ad --model model --out embedded.h5ad

    Args:
        files: As for fit.
        model: Folder that fit wrote.
        out: Ends in .h5ad: one .h5ad file is copied as it is, with the vectors in obsm["X_omniset"]; of others, obs and
            the vectors are written, without counts. Or in .npy, .parquet, .csv or .tsv: the vectors alone, rows in the
            order of the cells.
        overwrite: Replace vectors that the file itself has in obsm["X_omniset"].
        **options: See `Using`.
    """
    from omniset.cells import runs

    using = Using(**options)
    runs.embed(files, using.cells(), using.model(), using.aliases, model, out, overwrite)


def query(
    files: list[str],
    reference: Path = Path("embedded.h5ad"),
    label: str | None = None,
    model: Path = Path("model"),
    out: Path = Path("calls.tsv"),
    k: int = 15,
    **options: Any,
) -> None:
    """Find the nearest cells of an embedded reference, and the labels that they suggest.

    Example: omniset cells query new.h5ad --reference embedded.h5ad --label cell_type --model model --out calls.tsv

    Args:
        files: As for fit.
        reference: What embed wrote, with the same model, to an .h5ad file.
        label: Column of its obs with the labels. null: the nearest cell only.
        model: Folder that fit wrote.
        out: Table with a row per cell: label, confidence (share of the neighbours that have it), nearest cell, its
            distance, and whether that is far. Ends in .parquet, .csv or .tsv; the last two may be compressed.
        k: Neighbours that vote.
        **options: See `Using`.
    """
    from omniset.cells import runs

    using = Using(**options)
    runs.query(files, using.cells(), using.model(), using.aliases, reference, label, model, out, k)


def decode(
    files: list[str],
    model: Path = Path("model"),
    out: Path = Path("expected.h5ad"),
    genes: str | None = None,
    batch: str | None = None,
    library: float = 10000.0,
    **options: Any,
) -> None:
    """Write the counts that the model expects of each cell: without noise, and as one batch would show them.

    Example: omniset cells decode embedded.h5ad --model model --genes CD3E,MS4A1 --out expected.parquet

    Args:
        files: As for fit; or what embed wrote, with the same model.
        model: Folder that fit wrote.
        out: Ends in .h5ad, .npy, .parquet, .csv or .tsv: a row per cell, a column per gene.
        genes: Names of genes, separated by commas. null: all that the model knows.
        batch: As this batch, one of those learned from, would show them. null: mean over the batches.
        library: Sum of the counts of each cell.
        **options: See `Using`.
    """
    from omniset.cells import runs

    using = Using(**options)
    runs.decode(files, using.cells(), using.model(), using.aliases, model, out, _split(genes), batch, library)


def explain_cells(
    files: list[str],
    cells: str | None = None,
    model: Path = Path("model"),
    out: Path | None = None,
    top: int = 20,
    **options: Any,
) -> None:
    """Say which genes make the vectors of cells what they are.

    Example: omniset cells explain kang.h5ad --cells AAACATACATTTCC-1,AAACATACCAGAAA-1 --model model

    Args:
        files: As for fit.
        cells: Names of cells, separated by commas. null: six in the middle of clusters.
        model: Folder that fit wrote.
        out: Table with a row per cell and gene. Ends in .parquet, .csv or .tsv; the last two may be compressed.
        top: Genes per cell.
        **options: See `Using`.
    """
    from omniset.cells import runs

    using = Using(**options)
    runs.explain(files, using.cells(), using.model(), using.aliases, _split(cells), model, out, top)


def evaluate(
    files: list[str],
    batch_key: str | None = None,
    label_key: str = "cell_type",
    out: Path = Path("evaluation"),
    baselines: str | None = "pca,harmony,scvi",
    seeds: int = 5,
    inductive: bool = True,
    gene_vectors: Path | None = None,
    aliases: Path | None = None,
    resume: bool = False,
    **options: Any,
) -> None:
    """Compare the vectors with those of other methods, by labels that none of them has seen.

    Example: omniset cells evaluate kang.h5ad --batch_key ind --label_key cell --out evaluation

    Args:
        files: As for fit.
        batch_key: Column of obs with the batch. null: each file is a batch.
        label_key: Column of obs with the cell types: for comparison only, never learned from.
        out: Folder for the report, the metrics and the rows of every seed.
        baselines: Methods to compare with, separated by commas; those that are not installed are left out, and this is
            said. null: none.
        seeds: How often all of it is done, each time with another seed.
        inductive: Also leave one batch out at a time, and embed it with what the others taught.
        gene_vectors: As for fit.
        aliases: As for fit.
        resume: Keep what is done in the same folder.
        **options: See `Learning`.
    """
    from omniset.cells import runs

    learning, compared = Learning(**options), _split(baselines) or []
    try:
        runs.evaluate(
            files,
            learning.cells(),
            learning.embedder(),
            batch_key,
            label_key,
            out,
            compared,
            seeds,
            inductive,
            gene_vectors,
            aliases,
            resume,
        )
    except KeyboardInterrupt:
        if out.is_dir():
            print(f"\nWhat is done is kept in {out}: go on with --resume true", file=sys.stderr)
        raise
