"""SIGTERM, by which schedulers and containers end a program, and SIGHUP, by which a terminal does that is closed: an
exception, as Ctrl-C is, so that files stay whole.

Python drops an exception that is raised in a destructor or in a callback of garbage collection, and a signal may arrive
there. So long work asks now and then whether one has (`raise_received`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]  # the second is Unix's


class Terminated(SystemExit):
    """This process received SIGTERM or SIGHUP. Where nothing catches it, the exit status is the shell's, 143 or 129."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


_received: list[int] = []


def raise_terminated() -> None:
    """From now on SIGTERM and SIGHUP raise `Terminated`, but one that is ignored, as under nohup. Only the main thread
    can set this; elsewhere nothing changes.
    """
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _stop)


def raise_received() -> None:
    """Raise what a signal has raised within `terminable`, where that did not get this far."""
    if _received and threading.current_thread() is threading.main_thread():
        raise _stopped(_received[0])


@contextmanager
def terminable() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP raise `Terminated`; afterwards they do what they did before."""
    numbers = [*ENDING, signal.SIGINT]
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
            if before[0] is not _stop:  # the outermost one
                _received.clear()


def hear_no_more() -> None:
    """From now on none of the signals is heard: a second one would cut short what puts files in order."""
    for number in (*ENDING, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _stop(number: int, frame: FrameType | None) -> None:
    hear_no_more()
    _received.append(number)
    raise _stopped(number)


def _stopped(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
