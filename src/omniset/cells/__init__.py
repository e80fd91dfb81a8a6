"""Cells: embeddings of cell states from single-cell counts."""
