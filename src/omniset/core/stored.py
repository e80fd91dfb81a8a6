"""Sets that wait where they are, in memory, on disk or elsewhere, until they are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from omniset.core.forms import real


@runtime_checkable
class Rows(Protocol):
    """Where elements, or their multiplicities, wait: a tensor, DiskRows, or anything that is read by slices."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


class Storage:
    """Rows that sets are made of.

    Args:
        elements: (rows, D).
        multiplicity: (rows,). Default: 1 each.
        identifiers: (rows,) names of the elements, where they have any.

    Raises:
        ValueError: Elements without a second axis; multiplicities of another length.
    """

    def __init__(self, elements: Rows, multiplicity: Rows | None = None, identifiers: Any = None) -> None:
        shape = tuple(elements.shape)
        if len(shape) != 2:
            raise ValueError(f"elements of a storage must be (rows, D), got shape {shape}")
        if multiplicity is None:
            dtype = getattr(elements, "dtype", None)
            multiplicity = once(shape[0], real(dtype) if isinstance(dtype, torch.dtype) else None)
        if tuple(multiplicity.shape) != shape[:1]:
            raise ValueError(f"multiplicity must have shape {shape[:1]}, got {tuple(multiplicity.shape)}")
        self.elements, self.multiplicity, self.identifiers = elements, multiplicity, identifiers

    def __len__(self) -> int:
        return len(self.elements)


def once(rows: int, dtype: torch.dtype | None = None) -> Shaped[Tensor, " rows"]:
    """Multiplicity 1 of so many elements; it takes no memory."""
    return torch.ones((), dtype=dtype).expand(rows)


@dataclass(repr=False)
class StoredSet:
    """Rows start to stop of a storage: one set, read when it is asked for.

    Attributes:
        columns: Further columns of the table that it is from, where they were asked for.
    """

    elements: Rows
    multiplicity: Rows
    start: int
    stop: int
    name: Any = None
    identifiers: Any = None
    columns: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.stop - self.start

    def __repr__(self) -> str:
        return f"StoredSet(name={self.name!r}, elements={len(self)}, dim={self.elements.shape[1]})"

    def names_of_elements(self, start: int = 0, size: int | None = None) -> Shaped[np.ndarray, " elements"]:
        """Their identifiers, or, without any, their numbers in the set, from 1."""
        stop = len(self) if size is None else min(start + size, len(self))
        if self.identifiers is None:
            return np.arange(start + 1, stop + 1)
        return np.asarray(self.identifiers[self.start + start : self.start + stop])

    def read(
        self, start: int = 0, size: int | None = None
    ) -> tuple[Shaped[Tensor, "elements dim"], Shaped[Tensor, " elements"]]:
        """Elements and multiplicity, from element `start`, at most `size` of them."""
        first = self.start + start
        rows = slice(first, self.stop if size is None else min(first + size, self.stop))
        return self.elements[rows], self.multiplicity[rows]
