"""Rows dealt to folds: classes evenly, groups whole."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int, Shaped


def folds_of(
    y: Shaped[np.ndarray, " rows"], number: int, seed: int, groups: Shaped[np.ndarray, " rows"] | None = None
) -> Int[np.ndarray, " rows"]:
    """The fold of each row, from 0. Fewer folds than asked for where there are fewer rows, or groups.

    Args:
        y: Labels; each fold gets its share of every class, or of low and high numbers.
        groups: Rows of one group go to one fold. Large groups come first; each goes to the fold that has the fewest
            rows with its most frequent label, then to the smallest one.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(len(y))
    if groups is None:
        folds = np.empty(len(y), dtype=np.int64)
        folds[drawn[np.argsort(y[drawn], kind="stable")]] = np.arange(len(y)) % number
        return folds
    _, group = np.unique(groups, return_inverse=True)
    labels = np.unique(y, return_inverse=True)[1] if y.dtype.kind in "iub" else np.zeros(len(y), dtype=np.int64)
    counts = np.zeros((group.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(counts, (group, labels), 1)
    held = np.zeros((min(number, len(counts)), counts.shape[1]), dtype=np.int64)
    fold_of_group = np.zeros(len(counts), dtype=np.int64)
    shuffled = rng.permutation(len(counts))
    for one in shuffled[np.argsort(-counts[shuffled].sum(1), kind="stable")]:
        fold = np.lexsort([held.sum(1), held[:, counts[one].argmax()]])[0]
        fold_of_group[one] = fold
        held[fold] += counts[one]
    return fold_of_group[group]
