"""Matrix products through the faster of the two libraries that PyTorch brings for the CPU.

For float32 PyTorch itself takes MKL, which is slow on some processors. oneDNN is as fast or faster there where the
second matrix is given transposed, as in a linear layer, and slower where the first one is. It prepares itself for every
new shape for about a millisecond, and returns its result in memory of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from omniset.kernels import private

LARGE = 1 << 24  # multiplications, from where on oneDNN's preparation is soon made up for
ROUND = 64  # only shapes that are multiples: full tiles, which come again, rather than what is left over


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Product of x (rows, D) and the transposed weight (F, D), plus bias (F,). Not always written to `out`."""
    if faster_by_onednn(x, weight):
        return private.onednn_linear(x, weight, bias)
    out = None if out is None or out.dtype != x.dtype else out
    return torch.mm(x, weight.mT, out=out) if bias is None else torch.addmm(bias, x, weight.mT, out=out)


def add_linear(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Y (rows, F) plus linear(x, weight, bias); y may be overwritten."""
    if faster_by_onednn(x, weight):
        return private.onednn_add_linear(y, x, weight, bias)
    if y.dtype != x.dtype:
        return y.add_(torch.addmm(bias, x, weight.mT))
    return y.addmm_(x, weight.mT).add_(bias)


def batched(x: Tensor, other: Tensor, out: Tensor | None = None) -> Tensor:
    """Product of x (sets, rows, D) and the transposed `other` (sets, F, D). Not always written to `out`."""
    if x.shape[0] == 1:
        return linear(x[0], other[0], out=None if out is None else out[0])[None]
    return torch.bmm(x, other.mT, out=None if out is None or out.dtype != x.dtype else out)


def faster_by_onednn(x: Tensor, weight: Tensor) -> bool:
    rows, columns, inner = x.shape[0], weight.shape[0], x.shape[1]
    if rows * columns * inner < LARGE or max(rows, columns, inner) % ROUND:
        return False
    if x.dtype != torch.float32 or x.device.type != "cpu" or x.stride(1) != 1:
        return False
    return private.HAS_ONEDNN and bool(torch.backends.mkldnn.enabled)
