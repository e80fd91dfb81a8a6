"""Sets in tiles that stay in the processor's cache: which rows, in which memory, and their LayerNorm."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from omniset.kernels import private
from omniset.kernels.pages import empty

TILE = 1 << 19  # numbers of a tile of elements: 2 MiB in float32
SMALL_SETS = 2  # so much smaller is a tile of several sets, whose products are many small ones
ACCELERATOR_TILE = 1 << 24  # where each tile costs launches; not measured yet
WIDE = 64  # from this width on, keeping a number should cost less than the product that computes it again
KEPT = 1 << 26  # bytes of one kind that a call keeps at most: beyond, memory is dearer than time
FAR = 2.0  # deviations of a row's mean from 0, from where on leaving it in would cost digits
PRECISION = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}
Rows = tuple[slice, slice]


def tiles(x: Tensor) -> Iterator[Rows]:
    """Sets and elements of tiles of about TILE numbers at most: several small sets together, or a part of one."""
    sets, elements, dim = x.shape
    rows = max((TILE if x.device.type == "cpu" else ACCELERATOR_TILE) // dim, 64)
    step = max(rows // SMALL_SETS // max(elements, 1), 1)
    for first in range(0, sets, step):
        for start in range(0, elements, rows):
            yield slice(first, first + step), slice(start, start + rows)


_of_thread = threading.local()


def workspace(like: Tensor) -> Workspace:
    """That of this thread, which every call takes again: fresh memory costs more than the arithmetic done in it."""
    if like.device.type != "cpu":  # whose allocator keeps memory itself
        return Workspace(like)
    held = _of_thread.__dict__
    name = str(like.dtype)
    if name not in held:
        held[name] = Workspace(like.new_empty(0))
    return held[name]


class Workspace:
    """Buffers of about the size of a tile, each with a name."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.held: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        size, held = math.prod(shape), self.held.get(name)
        if held is None or held.numel() < size:
            held = self.held[name] = self.like.new_empty(size)
        return held.view(dtype or held.dtype)[:size].view(shape)

    def cast(self, name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x if x.dtype == dtype else self(name, *x.shape, dtype=dtype).copy_(x)


def narrow(dtype: torch.dtype) -> torch.dtype:
    """Of the factors of products with elements of that dtype: bfloat16 where the processor has units for it.

    Sums over tiles, and all that is not a product, stay in float32 or wider.
    """
    return dtype if dtype == torch.bfloat16 and private.HALF_UNITS else PRECISION[dtype]


class Moments:
    """Means and 1 / sqrt(variance + eps) of a set's rows, (2, B, N, 1): of all where a gradient is wanted."""

    def __init__(self, ctx: Any, like: Tensor, x: Tensor) -> None:
        self.work = workspace(like)
        self.all = empty((2, *x.shape[:2], 1), like) if any(ctx.needs_input_grad) else None
        self.shape = x.shape

    def __call__(self, b: slice, n: slice) -> Tensor:
        if self.all is not None:
            return self.all[:, b, n]
        sizes = (len(range(*part.indices(size))) for part, size in zip((b, n), self.shape, strict=False))
        return self.work("moments", 2, *sizes, 1)


def buffer_for_backward(ctx: Any, like: Tensor, dtype: torch.dtype, *shape: int) -> Tensor | None:
    """Memory for what the backward pass would have to compute again, where it is worth keeping."""
    worth = any(ctx.needs_input_grad) and like.shape[-1] >= WIDE and like.device.type == "cpu"
    return empty(shape, like, dtype) if worth and math.prod(shape) * dtype.itemsize <= KEPT else None


def normalised(x: Tensor, eps: float, moments: Tensor, out: Tensor) -> tuple[Tensor, bool]:
    """`scaled`, and whether its rows are `far`; mean and 1 / sqrt(variance + eps) are written to `moments` (2, ...)."""
    mean, inverse_deviation = moments.unbind()
    far = True
    if x.device.type == "cpu":  # where PyTorch's own kernel takes several times as long as two sums
        torch.mean(x, -1, True, out=mean)
        torch.linalg.vector_norm(x, dim=-1, keepdim=True, out=inverse_deviation)
        inverse_deviation.square_().addcmul_(mean, mean, value=-x.shape[-1]).div_(x.shape[-1]).add_(eps).rsqrt_()
        low, high = torch.aminmax(mean * inverse_deviation)
        far = not bool((low >= -FAR) & (high <= FAR))  # not a number: far
    if far:
        moments[0], moments[1] = private.moments(x, eps)
    return scaled(x, moments, far, out), far


def scaled(x: Tensor, moments: Tensor, far: bool, out: Tensor) -> Tensor:
    """Rows over their deviations, less their means only where one is far from 0: they meet what sums to 0 anyway."""
    mean, inverse_deviation = moments.unbind()
    return torch.sub(x, mean, out=out).mul_(inverse_deviation) if far else torch.mul(x, inverse_deviation, out=out)


def centred(x: Tensor) -> Tensor:
    """What gives the same products with a row as with the row less its mean."""
    return x - x.mean(-1, True)
