"""SIGTERM, by which schedulers and containers end a program: an exception, as Ctrl-C is, so that files stay whole."""

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


def raise_terminated() -> None:
    """From now on SIGTERM raises `Terminated`. Only the main thread can set this; elsewhere nothing changes."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _raise)


@contextmanager
def terminable() -> Iterator[None]:
    """Within, SIGTERM raises `Terminated`; afterwards it does what it did before."""
    before = signal.getsignal(signal.SIGTERM)
    raise_terminated()
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _raise(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would cut short what puts files in order
    raise Terminated
