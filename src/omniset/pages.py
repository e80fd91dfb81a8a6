"""Memory in huge pages: a large tensor that is written once costs more in page faults than in arithmetic otherwise."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor

SMALLEST = 1 << 23  # bytes; below, the allocator mostly hands out memory that has been touched before
PAGE = 4096
MADV_HUGEPAGE = 14  # of Linux


def empty_like(x: Tensor) -> Tensor:
    """As torch.empty_like; large ones in huge pages where the system gives them to those who ask (Linux: "madvise")."""
    out = torch.empty_like(x)
    advise = _madvise()
    if advise is not None and out.device.type == "cpu" and out.nbytes >= SMALLEST:
        start = -(-out.data_ptr() // PAGE) * PAGE
        # Advice only: a system that does not take it changes nothing.
        advise(ctypes.c_void_p(start), ctypes.c_size_t(out.data_ptr() + out.nbytes - start), MADV_HUGEPAGE)
    return out


@cache
def _madvise() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "madvise", None)
