"""What sets are checked for. Errors name the argument, the value and the bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor


def check_multiplicity(
    multiplicity: Shaped[Tensor, ...], name: str = "multiplicity", dtype: torch.dtype | None = None
) -> None:
    """Raise ValueError at the first multiplicity that is negative, NaN or infinite, and name its position.

    Args:
        dtype: What it is computed in: there, none may become infinite, or 0, which is absent.
    """
    if multiplicity.dtype == torch.bool:
        return
    bad = ~(multiplicity.isfinite() & (multiplicity >= 0))
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        raise ValueError(f"{name}{list(at)} is {multiplicity[at].item()}: multiplicities must be finite and >= 0")
    if dtype is None or dtype == multiplicity.dtype:
        return
    narrow = multiplicity.to(dtype)
    lost = ~narrow.isfinite() | ((narrow > 0) != (multiplicity > 0))
    if bool(lost.any()):
        at, bounds = tuple(lost.nonzero()[0].tolist()), torch.finfo(dtype)
        raise ValueError(
            f"{name}{list(at)} is {multiplicity[at].item()}, which is {narrow[at].item()} as {dtype}: multiplicities "
            f"must be 0 or from {bounds.tiny * bounds.eps:.2g} to {bounds.max:.2g}. Multiply all by the same factor"
        )


def check_sizes(least: int = 1, /, **sizes: int) -> None:
    """Raise ValueError for the first of these arguments that is not an integer >= `least`."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < least:
            raise ValueError(f"{name} must be an integer >= {least}, got {size!r}")


def check_probabilities(**probabilities: float) -> None:
    """Raise ValueError for the first of these arguments that is not a number from 0 to 1."""
    for name, probability in probabilities.items():
        if not isinstance(probability, int | float) or not 0 <= probability <= 1:
            raise ValueError(f"{name} must be from 0 to 1, got {probability!r}")


def check_finite(elements: Shaped[Tensor, ...], name: str = "elements", dtype: torch.dtype | None = None) -> None:
    """Raise ValueError at the first number that is NaN or infinite, also as this dtype, whose largest one may be
    smaller, and name its position.
    """
    bad = ~elements.to(elements.dtype if dtype is None else dtype).isfinite()
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        as_dtype = f" as {dtype}" if bool(elements[at].isfinite()) else ""
        raise ValueError(f"{name}{list(at)} is {elements[at].item()}: features must be finite{as_dtype}")


def check_places(places: np.ndarray, lengths: Int[np.ndarray, " storages"]) -> None:
    """Raise ValueError at the first place that is no stretch of rows of a storage, or for another shape or type.

    Args:
        places: (sets, 3) integers: of each set the number of its storage, its first row, and the row after its last.
        lengths: Rows of each storage.
    """
    if places.ndim != 2 or places.shape[1] != 3 or places.dtype.kind not in "iu":
        raise ValueError(f"places must be integers (sets, 3), got {places.dtype} of shape {places.shape}")
    storage, start, stop = places.T
    there = (storage >= 0) & (storage < len(lengths))
    bad = ~there | (start < 0) | (start > stop) | (stop > lengths[np.where(there, storage, 0)])
    if bad.any():
        first = int(bad.argmax())
        number, start, stop = places[first].tolist()
        rows = f"{lengths[number]} rows" if there[first] else f"not there: there are {len(lengths)}"
        raise ValueError(f"places[{first}] is rows {start} to {stop} of storage {number}, which is {rows}")


def check_features(features: Sequence[str], dim: int) -> None:
    """Raise ValueError if these are not `dim` names, or one is there twice."""
    if len(features) != dim:
        raise ValueError(f"features must be {dim} names, got {len(features)}")
    seen: set[str] = set()
    for name in features:
        if name in seen:
            raise ValueError(f"features must not name one twice: {name!r}")
        seen.add(name)


def short(value: Any) -> str:
    """A value in an error: its beginning."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
