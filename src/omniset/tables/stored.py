"""Sets that stay where they are: rows that are read when they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from omniset.core.encoding import Encoding
from omniset.core.stored import StoredSet
from omniset.tables.files import Origin


class FileRows(ABC):
    """Rows of `width` numbers; a slice of them is a tensor of float32."""

    def __init__(self, rows: int, width: int) -> None:
        self.shape: tuple[int, ...] = (rows, width)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Shaped[Tensor, "rows ..."]:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError(f"stored rows are read without gaps: step must be 1, got {step}")
        return self._read(start, max(start, stop))

    @abstractmethod
    def _read(self, start: int, stop: int) -> Shaped[Tensor, "rows ..."]: ...


class StoredSets:
    """Sets of files that hold numbers alone, as `SetTable` gives those of a table.

    Args:
        file: Where they are from. Its `columns` can be targets and groups.
        sets: Their `columns` are Arrow's chunked arrays.
        ignored: Columns or features that are there and are not used.
        reading: Options of reading as they were chosen.
    """

    stays = True  # reading them again is as good as a copy on disk
    level = "set"  # what labels that are columns are of, unless it is said

    def __init__(
        self,
        file: Origin,
        sets: Sequence[StoredSet],
        features: Sequence[str],
        ignored: Sequence[str] = (),
        reading: dict[str, Any] | None = None,
    ) -> None:
        self.file, self.sets, self.ignored, self.reading = file, list(sets), list(ignored), reading or {}
        self.encoding = Encoding.of_numbers(features)
        self.columns = self.features = self.encoding.features
        self.has_elements = all(stored.identifiers is not None for stored in self.sets)
        # Whether sets have `columns["coords"]`, a function that gives the place (x, y) of each element.
        self.has_places = any("coords" in stored.columns for stored in self.sets)
        self.file.size = 4 * len(self.features) * sum(map(len, self.sets))

    def __iter__(self) -> Iterator[StoredSet]:
        self.file.position = 0
        for stored in self.sets:
            self.file.position += 4 * len(self.features) * len(stored)
            yield stored


def finite(
    values: Shaped[np.ndarray, "rows dim"], where: str, start: int, names: Sequence[str] | None = None
) -> Float[Tensor, "rows dim"]:
    """As float32.

    Raises:
        ValueError: One is NaN, infinite, or too large.
    """
    with np.errstate(over="ignore"):
        single = torch.from_numpy(values.astype(np.float32))
    if single.numel() and not bool(torch.stack(torch.aminmax(single)).isfinite().all()):
        row, column = np.argwhere(~np.isfinite(single.numpy()))[0]
        value = values[row, column]
        place = f"number {int(column) + 1}" if names is None else repr(names[int(column)])
        raise ValueError(
            f"{where}: row {start + int(row) + 1}, {place} is {value}: features must be finite and at most 3.4e38"
        )
    return single
