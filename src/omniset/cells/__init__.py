"""Cells: state embeddings, learned from counts without labels."""

from omniset.cells.data import Cells, read_cells
from omniset.cells.embedder import CellEmbedder
from omniset.cells.neighbours import Transfer

__all__ = ["CellEmbedder", "Cells", "Transfer", "read_cells"]
