"""Memory for large results that is used again, in huge pages.

A large tensor that is written once costs more in page faults than in arithmetic: the system hands out memory page by
page, empties each one, and takes all of it back when the tensor is gone. So the memory of large results that are gone
is held back here for the next ones, as PyTorch does on accelerators.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

SMALLEST = 1 << 22  # bytes; below, the allocator mostly hands out memory that has been touched before
HUGE_PAGE = 1 << 21
HELD_BACK = 1 << 30  # bytes at most


def empty(shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """As like.new_empty. A large result on a CPU cannot be resized: its memory is not PyTorch's own."""
    dtype = like.dtype if dtype is None else dtype
    numbers = math.prod(shape)
    size = numbers * dtype.itemsize
    # Under Windows and macOS an anonymous map has other costs, not measured yet.
    if like.device.type != "cpu" or size < SMALLEST or not sys.platform.startswith("linux"):
        return like.new_empty(shape, dtype=dtype)
    try:
        memory = _lend(_rounded(size))
    except OSError:  # none left: give up what is held back, and let PyTorch try, or say so
        _back.clear()
        return like.new_empty(shape, dtype=dtype)
    buffer = torch.frombuffer(memory, dtype=dtype, count=numbers)
    # In place: to a view autograd would not add a second gradient without memory for their sum.
    return buffer.resize_(shape)


def trim() -> None:
    """Give the system all memory that the C library holds back in pieces, where it is glibc.

    What lives on between large results, such as the nodes of a graph, splits the memory that those leave: the next ones
    fit nowhere, and a process that keeps little has gigabytes.
    """
    _trim()(ctypes.c_size_t(0))


@functools.cache
def _trim() -> Callable[[ctypes.c_size_t], Any]:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or Windows
        return lambda at_top: 0


def _rounded(size: int) -> int:
    """To whole huge pages, at most a quarter more: batches differ in length, and memory of another size is new."""
    step = max(HUGE_PAGE, 1 << size.bit_length() - 3)
    return -(-size // step) * step


_back: dict[int, list[mmap.mmap]] = {}  # by size; its single operations are safe between threads


def _lend(size: int) -> memoryview:
    try:
        memory = _back[size].pop()
    except (KeyError, IndexError):
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # advice only: for a system that does not take it, nothing changes
            memory.madvise(mmap.MADV_HUGEPAGE)
    # The tensor's storage holds this view, and nothing else does.
    view = memoryview(memory)
    weakref.finalize(view, _take_back, memory).atexit = False
    return view


def _take_back(memory: mmap.mmap) -> None:
    size = len(memory)
    if _held_back() + size > HELD_BACK:  # other sizes have been wanted before, this one just now
        for other in list(_back):
            if other != size:
                _back[other].clear()
    if _held_back() + size <= HELD_BACK:
        _back.setdefault(size, []).append(memory)


def _held_back() -> int:
    return sum(size * len(held) for size, held in list(_back.items()))
