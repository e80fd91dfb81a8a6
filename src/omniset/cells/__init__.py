"""Cells: state embeddings, learned from counts without labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omniset.lazy import lazily

if TYPE_CHECKING:
    from omniset.cells.data import Cells, read_cells
    from omniset.cells.embedder import CellEmbedder
    from omniset.cells.neighbours import Transfer

__all__ = [
    "CellEmbedder",
    "Cells",
    "Transfer",
    "read_cells",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "CellEmbedder": "embedder",
        "Cells": "data",
        "Transfer": "neighbours",
        "read_cells": "data",
    },
)
