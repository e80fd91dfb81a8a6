"""A whole block of small sets in one call of compiled code (small.cpp), and its gradient in another.

A set of a hundred elements takes less time than Python takes to call the operations of whole.py. The formulas are the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from omniset.kernels import blocks, costs, pages, private
from omniset.kernels.fused import derived, masks
from omniset.kernels.team import PIECES, Piece

ACTIVATIONS = (nn.ReLU, None)  # that small.cpp has; None: no FFN
MOST = 1 << 21  # numbers of the elements, and of the weights: of more sets too much would be kept for the gradient
WIDEST = 128
PIECE = 1 << 14  # numbers of a piece
SUMS = 8  # pieces of the gradient, at most: each has sums of all weights
TENSORS = 18  # of a block that has an FFN


def takes(activation: Any, sizes: costs.Block) -> bool:
    """Whether small.cpp computes blocks of these sizes, with an FFN of this activation (its class; None: no FFN)."""
    numbers = sizes.sets * max(sizes.queries, sizes.elements) * sizes.dim
    weights = sizes.sets * sizes.heads * sizes.queries * sizes.elements
    small = sizes.dim <= WIDEST and max(numbers, weights) <= MOST
    return small and activation in ACTIVATIONS and blocks.library() is not None


def fits(sizes: costs.Block, x: Tensor, y: Tensor, m: Tensor | None, tensors: Sequence[Tensor]) -> bool:
    """Whether all have the shapes, type and device that small.cpp reads without a look.

    If they have not, PyTorch's operations say what is wrong, or compute it.
    """
    square, row, widened = (sizes.dim, sizes.dim), (sizes.dim,), (sizes.ffn,)
    shapes = [*[row] * 4, *[square, row] * 4]
    shapes += [row, row, (*widened, *row), widened, (*row, *widened), row] if sizes.ffn else []
    weights = len(tensors) == len(shapes) and all(
        tensor.shape == shape and tensor.dtype is x.dtype and tensor.is_cpu
        for tensor, shape in zip(tensors, shapes, strict=True)
    )
    return weights and x.shape[2] == sizes.dim and (m is None or (m.shape == y.shape[:2] and m.is_cpu))


class SmallBlock(torch.autograd.Function):
    """The output (B, Q, D), with the tensors of `omniset.kernels.whole.WholeBlock`, whose plain form is `plain`."""

    @staticmethod
    def forward(ctx: Any, how: Any, plain: Any, m: Tensor | None, x: Tensor, y: Tensor, *tensors: Tensor) -> Tensor:
        out, kept = output(how, m, x, y, tensors, keep=True)
        ctx.save_for_backward(m, x, y, kept, *tensors)
        ctx.how, ctx.plain = how, plain
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor):
        m, x, y, kept, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            bias, empty = (None, None) if m is None else masks(m, x.dtype)
            return None, None, None, *derived(partial(ctx.plain, ctx.how, bias, empty), (x, y, *tensors), (d,))
        return None, None, None, *gradients(ctx.how, m, x, y, kept, tensors, d)


def output(
    how: Any, m: Tensor | None, x: Tensor, y: Tensor, tensors: Sequence[Tensor], keep: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The output, and what the gradient needs of the steps between."""
    numbers = _sizes(how, x, y, tensors)
    out, kept = pages.empty((y.shape[0], *x.shape[1:]), x), None
    if keep:
        kept = pages.empty((y.shape[0], blocks.kept_numbers(x.dtype, numbers)), x)
    arrays = [*blocks.contiguous(x, y, m), out, kept, *blocks.contiguous(*tensors), *[None] * (TENSORS - len(tensors))]
    blocks.run("block", x.dtype, arrays, numbers, _reals(how), _pieces(x, y, PIECES))
    return out, kept


def gradients(
    how: Any, m: Tensor | None, x: Tensor, y: Tensor, kept: Tensor, tensors: Sequence[Tensor], d: Tensor
) -> list[Tensor]:
    """Of queries, elements and tensors."""
    parts, number = _pieces(x, y, SUMS), sum(tensor.numel() for tensor in tensors)
    d_x, d_y = pages.empty(d.shape, x), pages.empty(y.shape, x)
    sums = x.new_zeros(len(parts), number)
    arrays = [*blocks.contiguous(x, m), kept, d, d_x, d_y, sums, *blocks.contiguous(*tensors)]
    numbers = *_sizes(how, x, y, tensors), *d.stride(), number
    blocks.run("block_backward", x.dtype, [*arrays, *[None] * (TENSORS - len(tensors))], numbers, _reals(how), parts)
    of_tensors = private.unflattened(sums[0] if len(parts) == 1 else sums.sum(0), tensors)
    return [d_x.sum(0, True) if x.shape[0] < y.shape[0] else d_x, d_y, *of_tensors]


def _sizes(how: Any, x: Tensor, y: Tensor, tensors: Sequence[Tensor]) -> tuple[int, ...]:
    hidden = 0 if how.activation is None else tensors[-4].shape[0]
    return x.shape[1], y.shape[1], x.shape[2], how.heads, hidden, x.shape[0] < y.shape[0]


def _reals(how: Any) -> tuple[float, ...]:
    return how.scale, how.eps_queries, how.eps_elements, how.eps_ffn


def _pieces(x: Tensor, y: Tensor, most: int) -> list[Piece]:
    """Some sets each, of about one size, which depends on the shapes only."""
    sets = y.shape[0]
    numbers = sets * (x.shape[1] + y.shape[1]) * y.shape[2]
    step = -(-sets // max(min(most, numbers // PIECE, sets), 1))
    return [Piece(first, min(first + step, sets), 0, y.shape[1], first) for first in range(0, sets, step)]
