"""Nearest cells in an embedded reference, exactly, and the labels that they suggest."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

ENTRIES = 1 << 24  # distances in memory at a time


@dataclass
class Transfer:
    """What the neighbours of each queried cell say.

    Attributes:
        neighbours: (cells, k) positions in the reference, nearest first; with labels, of cells that have one.
        distances: (cells, k) Euclidean.
        label: The label with the most weight among the neighbours; None without labels.
        confidence: Its share of their weight. A neighbour weighs 1; at equal weight the nearer one decides.
        far: Farther from the reference than 95 % of its own cells are from their nearest neighbour.
    """

    neighbours: Int[np.ndarray, "cells k"]
    distances: Float[np.ndarray, "cells k"]
    label: Shaped[np.ndarray, " cells"] | None
    confidence: Float[np.ndarray, " cells"] | None
    far: Bool[np.ndarray, " cells"]

    def frame(self, names: Any, reference: Any) -> pd.DataFrame:
        """A row per cell: `cell`, `label`, `confidence`, `nearest`, `distance`, `far`."""
        columns: dict[str, Any] = {"cell": list(names)}
        if self.label is not None and self.confidence is not None:
            columns |= {"label": self.label, "confidence": np.round(self.confidence, 4)}
        first = self.neighbours[:, 0]
        columns |= {
            "nearest": np.asarray(reference, dtype=object)[first].tolist(),
            "distance": self.distances[:, 0],
            "far": self.far,
        }
        return pd.DataFrame(columns)


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
    step = max(1, ENTRIES // max(len(reference), 1))
    distances, positions = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), step):
        some = torch.from_numpy(np.ascontiguousarray(queries[start : start + step], dtype=np.float32))
        apart: Tensor = torch.cdist(some, cells, compute_mode="donot_use_mm_for_euclid_dist")
        if same:
            apart[torch.arange(len(some)), torch.arange(start, start + len(some))] = torch.inf
        closest = apart.topk(k, dim=1, largest=False)
        distances[start : start + step], positions[start : start + step] = closest.values, closest.indices
    return distances, positions


def transfer(
    queries: Float[np.ndarray, "queries dim"],
    reference: Float[np.ndarray, "reference dim"],
    labels: Any,
    k: int = 15,
) -> Transfer:
    """The k nearest cells of a reference, and what they say of each query.

    Args:
        labels: One per reference cell. Cells without one (see `unlabelled`) are left out, with a warning.

    Raises:
        ValueError: k < 1, vectors of another width, another number of labels than cells, or fewer than 2 labels.
    """
    if k < 1:
        raise ValueError(f"k must be >= 1, got {k}")
    if len(reference) < 2:
        raise ValueError(f"the reference must have at least 2 cells, it has {len(reference)}")
    if queries.shape[1] != reference.shape[1]:
        raise ValueError(f"queries have {queries.shape[1]} dimensions, the reference has {reference.shape[1]}")
    for name, vectors in (("queries", queries), ("the reference", reference)):
        if not np.isfinite(vectors).all():
            wrong = int(np.isfinite(vectors).all(1).argmin())
            raise ValueError(f"vectors must be finite, number {wrong + 1:,} of {name} is not")
    if labels is not None and len(labels) != len(reference):
        raise ValueError(f"labels must be one per reference cell: there are {len(labels)} for {len(reference)}")
    label = confidence = known = None
    if labels is not None:
        known = _labelled(labels)
        reference = reference[known]
    if k > len(reference):
        warnings.warn(f"k={k}, but the reference has {len(reference):,} cells: all of them vote", stacklevel=3)
    distances, neighbours = nearest(queries, reference, k)
    limit = _usual(reference)
    if known is not None:
        codes, names = pd.factorize(pd.Series(np.asarray(labels, dtype=object)[known]).astype(str))
        codes_near = codes[neighbours]
        neighbours = known[neighbours]
        votes = np.zeros((len(queries), len(names)), dtype=np.int64)
        np.add.at(votes, (np.arange(len(queries))[:, None], codes_near), 1)
        # Among labels with the most votes, that of the nearest neighbour which has one of them.
        winners = votes == votes.max(1, keepdims=True)
        first = np.take_along_axis(winners, codes_near, 1).argmax(1)
        chosen = codes_near[np.arange(len(queries)), first]
        label = np.asarray(names, dtype=object)[chosen]
        confidence = votes[np.arange(len(queries)), chosen] / codes_near.shape[1]
    return Transfer(neighbours, distances, label, confidence, distances[:, 0] > limit)


def unlabelled(labels: Any) -> Bool[np.ndarray, " cells"]:
    """Which labels are missing: None, NaN, NA or text without a letter."""
    values = pd.Series(np.asarray(labels, dtype=object))
    return (values.isna() | (values.astype(str).str.strip() == "")).to_numpy(dtype=bool)


def _labelled(labels: Any) -> Int[np.ndarray, " known"]:
    """Positions of the cells with a label. Says how many have none; a column of a table says its name and theirs."""
    lacking = unlabelled(labels)
    known = np.flatnonzero(~lacking)
    what, number = getattr(labels, "name", None) or "label", int(lacking.sum())
    if len(known) < 2:
        raise ValueError(
            f"labels: {number:,} of the {len(lacking):,} cells of the reference have no {what}, at least 2 must"
        )
    if number:
        first = int(lacking.argmax())
        cell = f"{labels.index[first]!r}" if isinstance(labels, pd.Series) else f"number {first + 1:,}"
        warnings.warn(
            f"{number:,} of the {len(lacking):,} cells of the reference {'has' if number == 1 else 'have'} no {what} "
            f"and {'is' if number == 1 else 'are'} left out, such as {cell}",
            stacklevel=4,
        )
    return known


def _usual(reference: Float[np.ndarray, "reference dim"], most: int = 2000) -> float:
    """95 % of the reference's cells (of `most` of them, spread evenly) have their nearest neighbour within this."""
    some = np.unique(np.linspace(0, len(reference) - 1, min(most, len(reference))).astype(np.int64))
    distances, positions = nearest(reference[some], reference, 2)
    itself = positions[:, 0] == some  # a cell's nearest is itself, or one at the same place
    return float(np.quantile(np.where(itself | (distances[:, 0] == 0), distances[:, 1], distances[:, 0]), 0.95))
