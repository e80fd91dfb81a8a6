"""Sources: the same sets shard by shard, read anew in every pass. An array on disk, or a function.

An encoder takes them in the place of a SetBatch. With store="disk" or "recompute" no copy of the set is ever in memory,
neither forward nor backward, and `out.elements` is a source again, of what the encoder made of the elements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped

from omniset.core.checks import check_sizes
from omniset.core.sets import SetBatch, collate
from omniset.core.stored import StoredSet


class Source(ABC):
    """One group of sets that comes in shards: each pass over it gives the same SetBatches in the same order.

    All shards are of the same sets, and at least one comes, of length 0 where there are no elements. Any object with
    such an `__iter__` is a source; this class only says so.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[SetBatch]:
        """The shards, from the first one on."""

    def to(self, *_args: Any, **_kwargs: Any) -> Source:
        """Stays where it is: the engine moves shard by shard."""
        return self


class ArraySource(Source):
    """Shards of an array (N, D): one in memory, or mapped from a file, as by numpy.load(path, mmap_mode="r").

    Args:
        array: The elements.
        shard_size: Elements of a shard.
        multiplicity: (N,) likewise. Default: 1 each.

    Raises:
        ValueError: Not an array with two axes, multiplicities of another length, a shard size below 1; when read,
            values that a SetBatch refuses.

    >>> source = ArraySource(np.ones((5, 3), dtype=np.float32), shard_size=2)
    >>> [shard.elements.shape[1] for shard in source]
    [2, 2, 1]
    """

    def __init__(
        self,
        array: Shaped[np.ndarray, "elements dim"],
        shard_size: int,
        multiplicity: Shaped[np.ndarray, " elements"] | None = None,
    ) -> None:
        check_sizes(shard_size=shard_size)
        shapes = [np.shape(array), *([] if multiplicity is None else [np.shape(multiplicity)])]
        if len(shapes[0]) != 2 or shapes[1:] not in ([], [shapes[0][:1]]):
            raise ValueError(f"array must be (N, D), and multiplicity (N,), got the shapes {shapes}")
        self.array, self.shard_size, self.multiplicity = array, shard_size, multiplicity

    def __iter__(self) -> Iterator[SetBatch]:
        for start in range(0, max(len(self.array), 1), self.shard_size):
            rows = slice(start, start + self.shard_size)
            m = None if self.multiplicity is None else _tensor(self.multiplicity[rows])[None]
            try:
                shard = SetBatch(_tensor(self.array[rows])[None], m)
            except ValueError as error:
                raise ValueError(f"rows from {start:,} (counted from 0) of the array: {error}") from None
            yield shard


class FunctionSource(Source):
    """Shards that a function makes anew for each pass: the same ones in the same order every time.

    Raises:
        TypeError: Not a function; when read, one that gives nothing to iterate over.

    >>> source = FunctionSource(lambda: (SetBatch(torch.ones(1, n, 3)) for n in (2, 1)))
    >>> [shard.elements.shape[1] for shard in source], [shard.elements.shape[1] for shard in source]
    ([2, 1], [2, 1])
    """

    def __init__(self, function: Callable[[], Iterable[SetBatch]]) -> None:
        if not callable(function):
            raise TypeError(f"function must be a function that makes shards, got {type(function).__name__}")
        self.function = function

    def __iter__(self) -> Iterator[SetBatch]:
        shards = self.function()
        if not isinstance(shards, Iterable):
            raise TypeError(f"function must give SetBatch shards to iterate over, it gave {type(shards).__name__}")
        yield from shards


def source_of(sets: Sequence[StoredSet], max_elements: int, shard_size: int | None = None) -> SetBatch | Source:
    """What an encoder reads for a group made by `omniset.core.sets.batched`: a batch, or a large set in shards.

    Args:
        shard_size: Of a large set. Default: max_elements.
    """
    if len(sets) > 1 or len(sets[0]) <= max_elements:
        return collate(one.read() for one in sets)
    size, large = max_elements if shard_size is None else shard_size, sets[0]
    return FunctionSource(lambda: (collate([large.read(start, size)]) for start in range(0, len(large), size)))


def checked(source: Iterable[SetBatch], dim: int, refuse_gradients: bool = False) -> Source:
    """A source whose every shard is looked at before it is used: the same sets, of so many features.

    Args:
        refuse_gradients: Of elements or multiplicities, which would be lost.
    """

    def shards() -> Iterator[SetBatch]:
        sets = None
        for i, shard in enumerate(source):
            if not isinstance(shard, SetBatch):
                raise TypeError(f"source must give SetBatch shards, shard {i} is {type(shard).__name__}")
            check_dim(shard, dim)
            sets = len(shard) if sets is None else sets
            if len(shard) != sets:
                raise ValueError(f"all shards must hold the same sets: shard 0 has {sets}, shard {i} has {len(shard)}")
            if refuse_gradients and (shard.elements.requires_grad or shard.multiplicity.requires_grad):
                raise ValueError(
                    f"shard {i} of a re-iterable source requires grad, and its gradient could not be returned: "
                    "give a SetBatch, or detach"
                )
            yield shard
        if sets is None:
            raise ValueError("the source gave no shard: a source without elements gives one shard of length 0")

    return FunctionSource(shards)


def check_dim(batch: SetBatch, dim: int) -> None:
    """Raise ValueError where a batch has another number of features."""
    if batch.elements.shape[2] != dim:
        raise ValueError(f"elements must have {dim} features (input_dim), got {batch.elements.shape[2]}")


def _tensor(block: Shaped[np.ndarray, "..."]) -> Shaped[torch.Tensor, "..."]:
    return torch.from_numpy(np.array(block))  # a copy: what is mapped may not be written to
