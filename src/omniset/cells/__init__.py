"""Cells: state embeddings, learned from counts without labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omniset.lazy import lazily

if TYPE_CHECKING:
    from omniset.cells.annotator import Annotation, CellAnnotator, annotate
    from omniset.cells.data import Cells, read_cells
    from omniset.cells.embedder import CellEmbedder, embed
    from omniset.cells.perturber import CellPerturber

__all__ = ["Annotation", "CellAnnotator", "CellEmbedder", "CellPerturber", "Cells", "annotate", "embed", "read_cells"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Annotation": "annotator",
        "CellAnnotator": "annotator",
        "CellEmbedder": "embedder",
        "CellPerturber": "perturber",
        "Cells": "data",
        "annotate": "annotator",
        "embed": "embedder",
        "read_cells": "data",
    },
)
