"""Nearest cells, exactly; and which labels are missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

ENTRIES = 1 << 23  # distances in memory at a time


def nearest(
    queries: Float[np.ndarray, "queries dim"],
    reference: Float[np.ndarray, "reference dim"],
    k: int,
    *,
    same: bool = False,
) -> tuple[Float[np.ndarray, "queries k"], Int[np.ndarray, "queries k"]]:
    """Euclidean distances of the k nearest of the reference, exact, and their positions; blocks of queries at a time.

    Args:
        same: Both are the same cells, of which none is its own neighbour.
    """
    k = min(k, len(reference) - same)
    cells = torch.from_numpy(np.ascontiguousarray(reference, dtype=np.float32))
    # Of |q - r|^2 all but |q|^2, which is the same for all r: a product of matrices, in 64 bits nothing is lost by it.
    key, square = cells.double().T, cells.double().square().sum(1)
    step = max(1, ENTRIES // max(len(reference), 1))
    distances, positions = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), step):
        some = torch.from_numpy(np.ascontiguousarray(queries[start : start + step], dtype=np.float32))
        apart: Tensor = torch.addmm(square, some.double(), key, alpha=-2)
        if same:
            apart[torch.arange(len(some)), torch.arange(start, start + len(some))] = torch.inf
        which = apart.topk(k, dim=1, largest=False).indices
        positions[start : start + step] = which
        distances[start : start + step] = (some[:, None] - cells[which]).norm(dim=2)
    return distances, positions


def unlabelled(labels: Any) -> Bool[np.ndarray, " cells"]:
    """Which labels are missing: None, NaN, NA or text without a letter."""
    values = pd.Series(np.asarray(labels, dtype=object))
    return (values.isna() | (values.astype(str).str.strip() == "")).to_numpy(dtype=bool)
