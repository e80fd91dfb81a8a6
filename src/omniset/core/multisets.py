"""From duplicates to multiplicities: find equal (or close) elements and count them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from omniset.core.checks import check_multiplicity

Method = Literal["exact", "voxel", "dbscan"]
Elements = Shaped[Tensor, "unique dim"] | Shaped[np.ndarray, "unique ..."]


def compact(
    x: Tensor | np.ndarray, method: Method = "exact", *, multiplicity: Tensor | np.ndarray | None = None, **options: Any
) -> tuple[Elements, Shaped[Tensor, " unique"], Int[Tensor, " elements"]]:
    """Replace the duplicates in one set by multiplicities.

    Args:
        x: (N, D) elements of any dtype, or a NumPy array (N,) of strings or other objects (`exact` only).
        method: `exact` merges equal rows; `voxel` merges the rows in one cell of a grid; `dbscan` merges clusters
            (Ester et al., "A density-based algorithm for discovering clusters in large spatial databases with noise",
            1996; scikit-learn's), noise points staying alone. The last two represent a group by its weighted mean.
        multiplicity: (N,) weights that x carries already; they are added up. Default: 1 each.
        **options: `by="sort"` (default, result sorted) or `by="hash"` (order of first appearance) for `exact`; `size`
            (edge of a cell, > 0) for `voxel`; `eps` (default 0.5), `min_samples` (default 1) and any other option of
            `sklearn.cluster.DBSCAN` for `dbscan`.

    Returns:
        elements (U, D), multiplicity (U,) and inverse (N,): row i of x became row inverse[i]. Elements of a dtype
        that torch lacks come back as a NumPy array.

    Raises:
        ValueError: A shape, method or option value that does not fit.
        TypeError: An unknown option.

    >>> elements, multiplicity, inverse = compact(torch.tensor([[1, 2], [3, 4], [1, 2]]))
    >>> elements.tolist(), multiplicity.tolist(), inverse.tolist()
    ([[1, 2], [3, 4]], [2, 1], [0, 1, 0])
    """
    symbolic = isinstance(x, np.ndarray) and x.dtype.kind not in "biuf"
    if not symbolic:
        x = torch.as_tensor(x)
    if x.ndim != 2 and not (symbolic and x.ndim == 1):
        raise ValueError(f"x must be one set (elements, dim), got shape {tuple(x.shape)}")
    device = x.device if isinstance(x, Tensor) else "cpu"
    weights = torch.ones(len(x), dtype=torch.int64) if multiplicity is None else torch.as_tensor(multiplicity)
    weights = weights.to(device, torch.int64 if weights.dtype == torch.bool else weights.dtype)
    if weights.shape != x.shape[:1]:
        raise ValueError(f"multiplicity must have length {len(x)}, got shape {tuple(weights.shape)}")
    check_multiplicity(weights)

    finders: dict[str, Callable[..., Tensor]] = {"exact": _exact, "voxel": _voxel, "dbscan": _dbscan}
    if method not in finders:
        raise ValueError(f"method must be one of {sorted(finders)}, got {method!r}")
    if symbolic and method != "exact":
        raise ValueError(f"method={method!r} needs numbers, x is {x.dtype}")
    inverse = finders[method](x, **options).to(device)
    unique = int(inverse.max()) + 1 if len(inverse) else 0
    total = weights.new_zeros(unique).index_add_(0, inverse, weights)
    if method == "exact":
        rows = torch.arange(len(x), device=device)
        first = rows.new_zeros(unique).scatter_reduce_(0, inverse, rows, "amin", include_self=False)
        return x[first.numpy() if symbolic else first], total, inverse
    assert isinstance(x, Tensor)
    # A group of total weight 0 is absent, whatever stands for it: there the plain mean avoids 0 / 0.
    share = torch.where(total[inverse] > 0, weights, 1).to(torch.float64)
    norm = share.new_zeros(unique).index_add_(0, inverse, share)
    sums = share.new_zeros(unique, x.shape[1]).index_add_(0, inverse, x.to(torch.float64) * share[:, None])
    return (sums / norm[:, None]).to(x.dtype if x.is_floating_point() else torch.get_default_dtype()), total, inverse


def _exact(x: Tensor | np.ndarray, by: Literal["sort", "hash"] = "sort") -> Int[Tensor, " elements"]:
    """Group numbers of the rows, one column at a time: exact for any dtype, and no row is ever hashed as a whole."""
    if by not in ("sort", "hash"):
        raise ValueError(f"by must be 'sort' or 'hash', got {by!r}")
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        x = x.float().numpy() if x.dtype in (torch.bfloat16, torch.float16) else x.numpy()
    columns: Any = x.reshape(len(x), -1).T if x.size else []
    codes = np.zeros(len(x), dtype=np.int64)
    for column in columns:
        new, number = _codes(column, by)
        codes, _ = _codes(codes * number + new, by)  # < elements^2, so it fits 64 bits
    if by == "hash":
        number = int(codes.max(initial=-1)) + 1
        first, places = np.empty((2, number), dtype=np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]  # of what is written to one place, the last stays
        places[first.argsort()] = np.arange(number)
        codes = places[codes]
    return torch.as_tensor(codes, dtype=torch.int64)


def _codes(column: Shaped[np.ndarray, " elements"], by: str) -> tuple[Int[np.ndarray, " elements"], int]:
    """A number for each value, NaN among them, and how many there are; in their order, where they have one."""
    if column.dtype.kind == "O":
        import pandas as pd

        codes, found = pd.factorize(np.ascontiguousarray(column), sort=by == "sort", use_na_sentinel=False)
    else:
        found, codes = np.unique(column, return_inverse=True)
    return codes, len(found)


def _voxel(x: Tensor, size: float | None = None) -> Int[Tensor, " elements"]:
    if size is None or not (math.isfinite(size) and size > 0):
        raise ValueError(f"method='voxel' needs size, a finite number > 0, got {size!r}")
    return _exact(torch.floor(x.to(torch.float64) / size))


def _dbscan(x: Tensor, eps: float = 0.5, min_samples: int = 1, **options: Any) -> Int[Tensor, " elements"]:
    from sklearn.cluster import DBSCAN

    if not len(x):
        return _exact(x)
    labels = DBSCAN(eps=eps, min_samples=min_samples, **options).fit_predict(x.detach().cpu().numpy())
    noise = labels < 0
    labels[noise] = labels.max() + 1 + np.arange(noise.sum())
    return torch.as_tensor(labels, dtype=torch.int64)
