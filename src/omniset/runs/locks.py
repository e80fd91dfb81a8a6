"""Files and folders that one process at a time may write to. The system frees them when it ends, however it ends."""

from __future__ import annotations

import errno
import os
import platform
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

NAME = ".lock"  # of the file in a folder that says who holds it
OURS = re.compile(rb"(process \d+ on [^\n]*\n?)?")  # what it says, or will
LONGEST = 1000  # bytes of it
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of some network file systems


@contextmanager
def locked(folder: str | Path, name: Path | None = None) -> Iterator[None]:
    """Hold a folder for a run; one process may hold it twice.

    Raises:
        ValueError: Another run holds it.
    """
    path = Path(folder).resolve() / NAME
    if os.path.lexists(path) and not (path.is_file() and OURS.fullmatch(path.read_bytes()[:LONGEST])):
        raise ValueError(f"{path} is in the way: a file of this name says who holds the folder. Move it elsewhere")
    outermost = not _lock(path).is_locked
    try:
        with held(path, f"the folder {folder}", wait=False):
            try:
                if outermost:
                    path.write_text(f"process {os.getpid()} on {platform.node()}\n", encoding="utf-8")
                yield
            finally:
                if outermost:  # still held: whoever opens it now sees that it is gone, and makes another
                    path.unlink(missing_ok=True)
    except filelock.Timeout:
        what = f"{name or folder} is in use by another run{_holder(path)}"
        raise ValueError(f"{what}: wait for it, or choose another") from None


@contextmanager
def held(path: Path, what: str, wait: bool = True) -> Iterator[None]:
    """Hold a lock file, which is made; where the file system has no locks, with a warning.

    Raises:
        filelock.Timeout: Another process holds it, and this one does not wait.
    """
    lock = _lock(path)
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except (NotImplementedError, OSError) as error:
        if isinstance(error, filelock.Timeout) or (isinstance(error, OSError) and error.errno not in NO_LOCKS):
            raise
        warnings.warn(f"{path} cannot be locked here: let no other process use {what} meanwhile", stacklevel=4)
    try:
        yield
    finally:
        lock.release()


def _lock(path: Path) -> filelock.BaseFileLock:
    return filelock.FileLock(path, is_singleton=True)


def _holder(path: Path) -> str:
    holder = ""
    with suppress(OSError, UnicodeDecodeError):  # it has just been freed, or is just being written
        holder = path.read_text(encoding="utf-8").strip()
    return f" ({holder})" if holder else ""
