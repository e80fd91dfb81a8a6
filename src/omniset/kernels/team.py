"""Work on sets shared out over threads, once: each takes whole pieces and does them alone.

A team of threads that shares out every operation, as PyTorch's own does, meets thousands of times in a pass. Each
meeting waits for the slowest, and where other programs run beside, the slowest one is often not running at all. Here
threads meet once, at the end. Sums are made piece by piece and added up in the order of the pieces, so that they are
the same to the bit, whichever thread did what, and however many there are.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

SMALLEST = 1 << 15  # numbers of the elements of a piece, but of the last ones
PIECES = 32  # about, at most: so many sums there are of each kind
WHOLE = 64  # elements, of which a part of a set has a multiple
FEW = 1 << 17  # numbers up to which operations are not shared out
SEVERAL = 2  # pieces for each thread, from where on those of OpenMP are let go
SOFT = 1  # of omp_pause_resource_all: what is let go comes back when it is needed

R = TypeVar("R")


class Piece(NamedTuple):
    """Elements from `start` to `stop` of sets from `first` to `last`: whole sets, or a part of one.

    What is summed for each set has a slot for each set of each piece; those of this one are from `slot` on.
    """

    first: int
    last: int
    start: int
    stop: int
    slot: int


def pieces(x: Tensor) -> list[Piece]:
    """All elements of sets (B, N, D), in pieces of about one size, which depends on the shape only: some sets each, or
    as many of each set. At least one, even of nothing; on an accelerator, which shares out by itself, one.

    >>> pieces(torch.empty(1, 70_000, 1))
    [Piece(first=0, last=1, start=0, stop=35008, slot=0), Piece(first=0, last=1, start=35008, stop=70000, slot=1)]
    >>> len(pieces(torch.empty(3, 70_000, 32)))
    33
    """
    sets, elements = x.shape[:2]
    number = max(min(PIECES, x.numel() // SMALLEST), 1) if x.device.type == "cpu" else 1
    if sets >= number or not sets:
        step = max(-(-sets // number), 1)
        firsts = range(0, max(sets, 1), step)
        return [Piece(first, min(first + step, sets), 0, elements, first) for first in firsts]
    of_set = -(-number // sets)
    step = -(-elements // of_set // WHOLE) * WHOLE
    parts = [(one, start) for one in range(sets) for start in range(0, elements, step)]
    return [Piece(one, one + 1, start, min(start + step, elements), slot) for slot, (one, start) in enumerate(parts)]


def slots(parts: Sequence[Piece]) -> int:
    """How many there are."""
    last = parts[-1]
    return last.slot + last.last - last.first


def by_set(sums: Tensor, sets: int) -> Tensor:
    """Sums (slots, ...) set by set: (B, pieces of each set, ...)."""
    return sums.view(sets, max(len(sums) // max(sets, 1), 1), *sums.shape[1:])


_threads = threading.local()  # its number: of the thread whose operations are not shared out, as many as it had before
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by process (a child that was forked has none) and threads


def share_out(parts: Sequence[Piece], work: Callable[[Piece], R]) -> list[R]:
    """What `work` makes of each piece, in their order."""
    results: dict[int, R] = {}
    turns = itertools.count()  # a single step of the interpreter: no two threads get the same

    def take() -> None:
        with torch.no_grad():
            while (turn := next(turns)) < len(parts):
                results[turn] = work(parts[turn])

    together(take, len(parts))
    return [results[turn] for turn in range(len(parts))]


def together(work: Callable[[], None], most: int) -> None:
    """Do the work once in each thread, of as many as PyTorch has for one operation, at most so many."""
    threads = min(getattr(_threads, "number", 0) or torch.get_num_threads(), most)
    if threads > 1 and most >= SEVERAL * threads:
        _let_go()
    others = [_pool(threads - 1).submit(_alone, work) for _ in range(threads - 1)]
    try:
        _alone(work)
    finally:
        _wait(others)


def _let_go() -> None:
    """End the threads that OpenMP has for this one: the next operation that is shared out makes new ones.

    After an operation they wait for the next by running in circles, for some ten milliseconds, and take the processors
    from the threads of a pool.
    """
    pause = _pause()
    if pause is not None:
        pause(SOFT)


@functools.cache
def _pause() -> Callable[[int], int] | None:
    """OpenMP 5's omp_pause_resource_all, of GNU's library that PyTorch brings along; None where there is none."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        with contextlib.suppress(OSError, AttributeError):
            pause = ctypes.CDLL(str(path)).omp_pause_resource_all
            return lambda kind: pause(ctypes.c_int(kind))
    return None


@contextlib.contextmanager
def one_thread(numbers: int) -> Iterator[None]:
    """PyTorch's operations by this thread alone, where tensors hold few numbers; `together` takes as many as before.

    So no threads of OpenMP are made that would have to be let go.
    """
    before = torch.get_num_threads()
    if numbers > FEW or before == 1:
        yield
        return
    _threads.number = before
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _threads.number = 0


def backward_in_one_thread(backward: Callable[..., R]) -> Callable[..., R]:
    """Of an autograd function whose forward pass left `ctx.numbers`, those of its points."""

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Tensor | None) -> R:
        with one_thread(ctx.numbers):
            return backward(ctx, *gradients)

    return run


def _alone(work: Callable[[], None]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # of this thread only
    try:
        work()
    finally:
        torch.set_num_threads(before)


def _wait(others: list[Future]) -> None:
    """None still works on memory that its caller gives up; an error of any is the caller's."""
    for other in others:
        other.cancel()  # it has not begun, and there is nothing left
    for other in others:
        if not other.cancelled():
            other.result()


def _pool(threads: int) -> ThreadPoolExecutor:
    key = os.getpid(), threads
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, "omniset")
    return _pools[key]
