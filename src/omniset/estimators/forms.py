"""The forms in which estimators take sets: those of `omniset.Sets.of`, and the arrays of scikit-learn's tools."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from scipy.sparse import issparse

from omniset.core.encoding import Encoding, Missing
from omniset.core.sets import SetBatch, Sets
from omniset.core.stored import StoredSet


def sets_of(
    sets: Any, features: list[str] | None = None, encoding: Encoding | None = None, missing: Missing = "error"
) -> Sets:
    """Sets in any form that estimators take.

    Args:
        sets: What `Sets.of` takes; numbers (B, D), which are B sets of one element each; an array (B, N, D), which is B
            sets of N elements; an array of objects, (B,) or (B, 1), each of them a set. The last form has the two axes
            that some of scikit-learn's tools ask for.
        features: Names of the columns of a table that are features.
        encoding, missing: As for `Sets.from_pandas`.

    Raises:
        ValueError: Sets that cannot be used.
        TypeError: A sparse matrix; objects that are neither sets nor numbers.

    >>> sets_of(np.eye(3)), sets_of([[0.5, 1.0], [2.0, 4.0]])
    (Sets(sets=3, elements=3, dim=3), Sets(sets=2, elements=2, dim=2))
    >>> sets_of(np.zeros((3, 5, 2)))
    Sets(sets=3, elements=15, dim=2)
    """
    is_array = hasattr(sets, "__array__") and not hasattr(sets, "columns")
    form = _of_array(sets) if issparse(sets) or is_array or _is_rows(sets) else sets
    return Sets.of(form, torch.float32, features, encoding, missing)


def _is_rows(sets: Any) -> bool:
    """Whether these are rows of plain numbers."""
    return isinstance(sets, list) and bool(sets) and isinstance(sets[0], list) and bool(sets[0]) and _number(sets[0][0])


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


def _of_array(sets: Any) -> Any:
    """An array in a form that `Sets.of` takes."""
    array = sets
    if not issparse(sets):
        array = sets.cpu().numpy() if isinstance(sets, torch.Tensor) else np.asarray(sets)
        if array.ndim == 3:
            return array
        if array.dtype == object and array.shape[1:] in ((), (1,)) and _are_sets(array.reshape(-1)):
            return array.reshape(-1).tolist()
    from sklearn.utils import check_array

    rows = check_array(array)
    with np.errstate(over="ignore"):  # what is too large is refused
        rows = check_array(rows, dtype=np.float32, copy=True)
    return SetBatch(rows[:, None])


def _are_sets(entries: Shaped[np.ndarray, " sets"]) -> bool:
    return all(isinstance(entry, StoredSet) or np.ndim(entry) == 2 or _is_empty(entry) for entry in entries)


def _is_empty(entry: Any) -> bool:
    return np.ndim(entry) == 1 and not len(entry)
