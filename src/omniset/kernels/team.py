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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
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
_helpers: dict[int, tuple[SimpleQueue, list[threading.Thread]]] = {}  # by process: a child that was forked has none


def share_out(parts: Sequence[Piece], work: Callable[[Piece], R]) -> list[R]:
    """What `work` makes of each piece, in their order; in all threads by the modes of this one, without a graph."""
    results: dict[int, R] = {}
    turns = itertools.count()  # a single step of the interpreter: no two threads get the same
    inference, cast = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    kind = torch.get_autocast_dtype("cpu")

    def take() -> None:
        with torch.inference_mode(inference), torch.autocast("cpu", kind, cast), torch.no_grad():
            while (turn := next(turns)) < len(parts):
                results[turn] = work(parts[turn])

    together(functools.partial(_alone, take), len(parts))
    return [results[turn] for turn in range(len(parts))]


def together(work: Callable[[], None], most: int) -> None:
    """Do the work once in each thread, of as many as PyTorch has for one operation, at most so many.

    Args:
        work: Holds the tensors that it reads and writes, as a signal may end the wait for other threads.
    """
    threads = min(getattr(_threads, "number", 0) or torch.get_num_threads(), most)
    if threads > 1 and most >= SEVERAL * threads:
        _let_go()
    others: list[Future] = []
    try:
        if threads > 1:
            jobs, team = _team(threads - 1)
            for _ in team[: threads - 1]:
                others.append(Future())
                jobs.put((others[-1], work))
        work()
    finally:
        try:
            _wait(others)
        finally:
            _wait(others)  # a signal may have raised before the first one began


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


def in_one_thread(numbers: int, work: Callable[[], R]) -> R:
    """PyTorch's operations by this thread alone, where tensors hold few numbers; `together` takes as many as before.

    So no threads of OpenMP are made that would have to be let go.
    """
    before = torch.get_num_threads()
    if numbers > FEW or before == 1:
        return work()
    _threads.number = before
    try:
        return _alone(work)
    finally:
        _threads.number = 0


def backward_in_one_thread(backward: Callable[..., R]) -> Callable[..., R]:
    """Of an autograd function whose forward pass left `ctx.numbers`, those of its points."""

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Tensor | None) -> R:
        return in_one_thread(ctx.numbers, functools.partial(backward, ctx, *gradients))

    return run


def _alone(work: Callable[[], R]) -> R:
    """With PyTorch's operations by this thread alone. With `torch.set_num_threads`, a thread that begins meanwhile
    would keep one for good.
    """
    before, mkl_before = torch.get_num_threads(), 0
    openmp, mkl = _setters()
    try:
        openmp(1)
        mkl_before = mkl(1)
        return work()
    finally:
        try:  # a signal may raise after either
            openmp(before)
        finally:
            mkl(mkl_before)


@functools.cache
def _setters() -> tuple[Callable[[int], Any], Callable[[int], int]]:
    """How many threads operations of the calling thread take: for OpenMP; for MKL, which returns what it was before."""
    before = torch.get_num_threads()
    with contextlib.suppress(OSError, AttributeError, StopIteration):
        # Found through what PyTorch itself is linked with: there may be several.
        code = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))))
        code.omp_set_num_threads(before + 1)
        follows = torch.get_num_threads() == before + 1
        code.omp_set_num_threads(before)
        if follows:
            return code.omp_set_num_threads, getattr(code, "MKL_Set_Num_Threads_Local", lambda number: 0)
    return torch.set_num_threads, lambda number: 0


def _wait(others: list[Future]) -> None:
    """Take back what has not begun, as there is nothing left, and wait for the rest; then raise the error of any.

    What a signal raises meanwhile is raised after the wait.
    """
    raised: BaseException | None = None
    while others:
        try:
            while others:
                raised = (None if others[-1].cancel() else others[-1].exception()) or raised
                others.pop()
        except BaseException as error:  # in a lock's own waiting, what a signal raises ends in a RuntimeError of it
            raised = (isinstance(error, RuntimeError) and error.__context__) or error
    if raised is not None:
        raise raised


def _team(number: int) -> tuple[SimpleQueue, list[threading.Thread]]:
    """Threads that end with the process, so many where it can have more, and what they take their work from."""
    jobs, team = _helpers.setdefault(os.getpid(), (SimpleQueue(), []))
    with contextlib.suppress(RuntimeError):  # none can be had, as at the interpreter's end
        while len(team) < number:
            thread = threading.Thread(target=_help, args=(jobs,), name="omniset", daemon=True)
            thread.start()
            team.append(thread)
    return jobs, team


def _help(jobs: SimpleQueue) -> None:
    while True:
        future, work = jobs.get()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
        del future, work  # and the tensors that they hold, before it waits
