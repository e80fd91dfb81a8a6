"""What is taken of a file at once, bounded: a small file whole, what is packed, a line.

Files that are read from top to bottom may be of any size. What they unpack to may not be held at once, or be written to
a temporary folder, beyond these bounds: a file of some kilobytes can unpack to terabytes.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

SETTINGS = 1 << 22  # bytes of a file that a person writes
WHOLE = 1 << 28  # bytes that anything may hold or unpack to,
TIMES = 100  # and times its size that what is packed may unpack to
LINE = 1 << 26  # bytes of a line
BLOCK = 1 << 31  # bytes of rows that are read together: what Arrow holds in a column


def require_file(path: str | Path) -> None:
    """Raise ValueError where a path is that of a folder, a pipe or a device: reading it may never end."""
    path = Path(path)
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "a pipe or a device"
        raise ValueError(f"{path} is {kind}, it must be a file")


def read_small(path: str | Path, most: int | None = None) -> str:
    """The text of a file that is read whole, as UTF-8.

    Raises:
        OSError: It is not there or may not be read.
        ValueError: It is larger, no file, or no UTF-8.
    """
    require_file(path)
    most = WHOLE if most is None else most
    with open(path, "rb") as file:
        return decoded(path, file.read(most + 1), most)


def decoded(path: str | Path, data: bytes, most: int) -> str:
    if len(data) > most:
        raise ValueError(f"{path} is larger than {_spelled(most)}, at most that is read of such a file")
    try:
        return data.decode()
    except UnicodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None


def require_room(size: float, path: str | Path, remedy: str) -> None:
    """See that a file that is packed does not unpack to more than is held at once."""
    packed = Path(path).stat().st_size
    if size > (most := most_of(packed)):
        bound = f"{TIMES} times its size" if most > WHOLE else _spelled(most)
        raise ValueError(f"{path} is {_spelled(packed)}, packed, and holds more than {bound}: {remedy}")


def most_of(packed: int) -> int:
    """Bytes that a file of so many may unpack to, if that is held at once."""
    return max(WHOLE, TIMES * packed)


class TooLongError(ValueError):
    """A line, or rows that are read together, are too long."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class Lines(io.BufferedIOBase):
    """Bytes of text, of which no line is too long, nor what is read from one call of `next_block` to the next."""

    def __init__(self, file: Any, most: int = LINE) -> None:
        self._file, self._most = file, most
        self._lines = self._length = self._block = 0

    def next_block(self) -> None:
        self._block = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        data: bytes = self._file.read(size)
        end = max(data.rfind(b"\n"), data.rfind(b"\r"))
        self._lines += data.count(b"\n")
        self._length = self._length + len(data) if end < 0 else len(data) - end - 1
        self._block += len(data)
        if self._length > self._most:
            what = f"is longer than {_spelled(self._most)}, at most that is read: a line must be one row"
            raise TooLongError(what, self._lines)
        if self._block > BLOCK:
            what = f"more than {_spelled(BLOCK)} are read before some rows end: is a quote never closed?"
            raise TooLongError(what, self._lines)
        return data

    read1 = read

    def close(self) -> None:
        self._file.close()
        super().close()


def _spelled(size: float) -> str:
    """Bytes in words.

    >>> _spelled(67108864), _spelled(3e9)
    ('67.1 MB', '3 GB')
    """
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
