"""Numbers that wait on disk, in temporary files without a name: the system removes them whatever happens."""

from __future__ import annotations

import errno
import io
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

MEMORY = 1 << 24  # bytes of rows that are held before they are written


class Scratch:
    """One unnamed temporary file: bytes are written at, and read from, any place.

    Args:
        what: Who uses it, for messages.
        folder: Where. Default: Python's (TMPDIR).
        advice: What to do when it is full, for that message.
        memory: Bytes that are held in memory before there is a file.

    Raises:
        OSError: The folder cannot be written to, or is full.
    """

    def __init__(self, what: str, folder: str | Path | None = None, advice: str = "", memory: int = 0) -> None:
        self.what, self.folder, self.advice = what, str(folder or tempfile.gettempdir()), advice
        self._memory = memory
        self._file: Any = io.BytesIO() if memory else self._opened()

    def _opened(self) -> Any:
        try:
            file = tempfile.TemporaryFile(dir=self.folder, prefix="omniset-", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise OSError(
                error.errno, f"{self.what} cannot write to its folder: {error.strerror}", self.folder
            ) from error
        weakref.finalize(self, file.close)
        return file

    def write(self, offset: int, data: memoryview) -> None:
        if self._memory and offset + len(data) > self._memory:
            held, self._file, self._memory = self._file.getvalue(), self._opened(), 0
            self.write(0, memoryview(held))
        try:
            self._file.seek(offset)
            while len(data):
                data = data[self._file.write(data) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            self._file.close()
            raise OSError(
                error.errno,
                f"{self.what} is full: {error.strerror} after {offset / 1e6:.1f} MB; its file was removed. "
                f"{self.advice}".strip(),
                self.folder,
            ) from error

    def read(self, offset: int, size: int) -> Shaped[Tensor, " bytes"]:
        buffer = torch.empty(size, dtype=torch.uint8)
        view = buffer.numpy().data
        self._file.seek(offset)
        while len(view):
            view = view[self._file.readinto(view) :]
        return buffer


class DiskRows:
    """Rows of numbers in a file, few of them in memory: append, then read by slices, which are tensors.

    Args:
        width: Numbers in a row. None: the rows are single numbers, and slices (rows,).
    """

    def __init__(self, width: int | None, dtype: torch.dtype, folder: str | Path | None = None) -> None:
        self._tail = () if width is None else (width,)
        self.dtype, self._rows = dtype, 0
        self._bytes = (1 if width is None else width) * torch.empty((), dtype=dtype).element_size()
        self._scratch = Scratch("the copy of the sets on disk", folder, "Choose a folder with more room", MEMORY)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._rows, *self._tail)

    def append(self, rows: Shaped[Tensor, "rows ..."]) -> None:
        if rows.shape[1:] != self._tail:
            raise ValueError(f"rows must have shape (rows, {', '.join(map(str, self._tail))}), got {tuple(rows.shape)}")
        data = rows.to(self.dtype).contiguous().flatten().view(torch.uint8).numpy().data
        self._scratch.write(self._rows * self._bytes, data)
        self._rows += len(rows)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: slice) -> Shaped[Tensor, "rows ..."]:
        start, stop, step = rows.indices(self._rows)
        if step != 1:
            raise ValueError(f"rows on disk are read without gaps: step must be 1, got {step}")
        number = max(stop - start, 0)
        data = self._scratch.read(start * self._bytes, number * self._bytes)
        return data.view(self.dtype).view(number, *self._tail)
