"""SIGTERM, by which schedulers and containers end a program: an exception, as Ctrl-C is, so that files stay whole.

Python drops an exception that is raised in a destructor or in a callback of garbage collection, and a signal may arrive
there. So long work asks now and then whether one has (`raise_received`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(SystemExit):
    """This process received SIGTERM. Where nothing catches it, the exit status is 143, as the shell has it."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


_received: list[int] = []


def raise_terminated() -> None:
    """From now on SIGTERM raises `Terminated`. Only the main thread can set this; elsewhere nothing changes."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)


def raise_received() -> None:
    """Raise what a signal has raised within `terminable`, where that did not get this far."""
    if _received and threading.current_thread() is threading.main_thread():
        raise Terminated if _received[0] == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def terminable() -> Iterator[None]:
    """Within, SIGTERM raises `Terminated`; afterwards it does what it did before."""
    numbers = signal.SIGTERM, signal.SIGINT
    before = [signal.getsignal(number) for number in numbers]
    raise_terminated()
    try:
        yield
    except Exception as error:  # in which compiled code may have put what a signal raised
        try:
            raise_received()
        except (KeyboardInterrupt, Terminated) as stopped:
            for note in getattr(error, "__notes__", []):
                stopped.add_note(note)
            raise
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
            if before[0] is not _terminate:  # the outermost one
                _received.clear()


def hear_no_more() -> None:
    """From now on neither signal is heard: a second one would cut short what puts files in order."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _terminate(number: int, frame: FrameType | None) -> None:
    hear_no_more()
    _received.append(number)
    raise Terminated


def _interrupt(number: int, frame: FrameType | None) -> None:
    hear_no_more()
    _received.append(number)
    raise KeyboardInterrupt
