"""Where to compute."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from threadpoolctl import ThreadpoolController

from omniset.options import Device

DEVICES = typing.get_args(Device)
SMALL = 1 << 24  # numbers up to which one thread computes
SMALL_STEP = 1 << 19  # likewise of the elements of a step, where they are as wide as the network


def find(device: str) -> torch.device:
    """The device of this name; "auto": an accelerator where there is one.

    Raises:
        ValueError: An unknown name, or a device that this machine lacks.
    """
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {device!r}")
    if device == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if accelerator is None else accelerator
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not here[device]:
        raise ValueError(f"device={device!r} is not there on this machine: take 'auto'")
    return torch.device(device)


@contextmanager
def threads_for(numbers: int, small: int = SMALL) -> Iterator[None]:
    """One thread where tensors hold at most so many numbers in all, else as many as before.

    More gain nothing there, and wait for each other at every step where other programs run beside.
    """
    before = torch.get_num_threads()
    if numbers <= small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """One thread in NumPy's and in SciPy's linear algebra; also as a decorator.

    Each of them has threads of its own, as have PyTorch and scikit-learn. Where steps of several alternate, as in
    SciPy's minimisers and so in scikit-learn's logistic regression, those that wait take the processors from those that
    compute: with two threads on two processors, a regression of 4,000 rows and 1,000 columns takes five times as long
    as with one, and a model of 365 brain regions more than twice as long.
    """
    with _libraries(len(sys.modules)).limit(limits=1, user_api="blas"):
        yield


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Those of linear algebra: looked for, which takes as long as a small regression, where a module has come since."""
    return ThreadpoolController()
