"""The options of CellEmbedder and CellAnnotator, and of how files of cells are read."""

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
        "Its sizes are dim and embedding_dim (published: 512, 512), with FFNs of width 2 dim; encoder_options has the "
        "others, its branches and its sentences. Its learning_rate was 1e-5.",
    )
    _: KW_ONLY
    embedding_dim: int = option(32, "Width of the cells' vectors.", least=1)
    dim: int = shared.dim(64, "Width of the genes' vectors, a multiple of the 4 heads: more learns more, and slower.")
    encoder_options: dict[str, Any] | None = option(
        None, """Further settings of "seed", such as '{"depth": 8, "num_heads": 16, "dataset_token": false}'."""
    )
    alignment: float = option(
        20.0, "Weight of mixing the batches within clusters of cells. 0: batches stay apart.", group="training", least=0
    )
    max_genes: int | None = option(
        2000, "Genes in the vocabulary, at most: those that vary most for their mean. None: all.", group="data", least=1
    )
    epochs: int | None = shared.epochs(
        None, "How often, at most, each cell is learned from. None: enough for 800 steps."
    )
    batch_size: int = shared.batch_size(128, "Cells per step.", least=2)
    learning_rate: float = shared.learning_rate(2e-3)


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
