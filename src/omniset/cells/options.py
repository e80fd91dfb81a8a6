"""The options of CellEmbedder, CellAnnotator and CellPerturber."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Literal

from omniset import options as shared
from omniset.options import Computing, option, options


@options
class EmbedderOptions(Computing):
    """How a model of cells is made."""

    architecture: Literal["multiset", "seed"] = option(
        "multiset",
        '"multiset"; or "seed": network and training of the document "State Embedding Neural Network Architecture". '
        "Its sizes are dim, depth, num_heads and embedding_dim (published: 512, 8, 16, 512), with FFNs of width 2 dim; "
        "encoder_options sets its branches and sentences. Of the others it uses batch_size, epochs, the options of "
        "AdamW (published: 1e-5 and 0.01), dropout and validation only.",
    )
    _: KW_ONLY
    embedding_dim: int = option(32, "Width of the cells' vectors.", least=1)
    dim: int = shared.dim(64, "Width of the genes' vectors: more learns more, and slower.")
    num_heads: int = shared.num_heads(4)
    depth: int = shared.depth(2, 'Layers of "seed", in which the genes of a cell see each other.')
    encoder_options: dict[str, Any] | None = option(
        None, """Branches and sentences of "seed", such as '{"slots": 1024, "dataset_token": false}'."""
    )
    alignment: float = option(
        20.0, "Weight of mixing the batches within clusters of cells. 0: batches stay apart.", group="training", least=0
    )
    label_weight: float = option(
        10.0,
        "Weight of telling types apart, where fit is given a label; else it has no part.",
        group="training",
        least=0,
    )
    dropout: float = option(
        0.1, "Share of the encoder's head that is switched off in training.", group="training", least=0, below=1
    )
    max_genes: int | None = option(
        2000,
        "Genes in the vocabulary, at most: those that vary most for their mean. None: all.",
        group="data",
        least=1,
    )
    min_cells: int = option(1, "Genes seen in fewer cells are left out of the vocabulary.", group="data", least=1)
    epochs: int | None = shared.epochs(
        None, "How often, at most, each cell is learned from. None: enough for 800 steps."
    )
    batch_size: int = shared.batch_size(128, "Cells per step.", least=2)
    learning_rate: float = shared.learning_rate(2e-3)
    weight_decay: float = shared.weight_decay(1e-4)
    patience: int | None = shared.patience(None, "cells")
    validation_fraction: float = shared.validation_fraction(
        0.0, "Share of the cells kept back to watch the training. 0: none.", below=0.5
    )


@options
class AnnotatorOptions(Computing):
    """How cells are annotated."""

    error: float = option(
        0.01,
        "Share of cells of known types that may be called unknown: at most so many in each batch kept back. 0: no cell "
        "is.",
        least=0,
        below=0.5,
    )
    _: KW_ONLY
    folds: int = option(
        3, "Parts of the reference that are kept back in turn: batches, or cells where there is one.", least=2
    )
    max_cells: int = option(
        20_000, "Labelled cells that are learned from, at most; rare types lose none.", least=2, group="data"
    )


@options
class PerturberOptions(Computing):
    """How perturbed cells are foretold."""

    components: int = option(30, "Principal components in which cells are compared.", least=1)


@options
class Reading:
    """How files of cells are read."""

    layer: str | None = option(
        None, 'Which matrix of each file: a layer, or "raw" for that of .raw. None: X.', group="data"
    )
    input: Literal["auto", "counts", "log1p"] = option(
        "auto", 'What the matrix holds: counts, or log1p of counts. "auto": recognised by the values.', group="data"
    )
    gene_column: str | None = option(None, "Column of var that has the genes' names. None: its index.", group="data")
