"""A whole block of small sets in one call of compiled code (small.cpp), and its gradient in another.

Of a set of some hundred elements the numbers take less time than the bookkeeping: some twenty modules and forty nodes
of a graph. Here the block is one node with its gradient written out.

    q = Q LN(x) + q_0,  k = K LN(y) + k_0,  v = V LN(y) + v_0
    h = x + O softmax(q k^T scale + log m) v + o_0,    out = h + F_2 act(F_1 LN(h) + f_1) + f_2
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omniset.core import private
from omniset.kernels import blocks, pages
from omniset.kernels.fused import derived, masks, plain_attention
from omniset.kernels.team import PIECES, Piece

ACTIVATIONS = (nn.ReLU, None)  # that small.cpp has; None: no FFN
PRECISIONS = (torch.float32, torch.float64)
MOST = 1 << 22  # numbers of the elements, and of the weights: of more sets too much would be kept for the gradient
WIDEST = 128
OF_SET, OF_SETS = 1 << 16, 1 << 17  # numbers of a set, and of all, from where on folding few points is faster
LANES = 16  # to which small.cpp pads rows, in float32 with the widest vectors
PADDED = 2  # times as many rows, beyond which the plain form computes several sets faster
PIECE = 1 << 14  # numbers of a piece
SUMS = 8  # pieces of the gradient, at most: each has sums of all weights
TENSORS = 18  # of a block that has an FFN


class How(NamedTuple):
    """What of a block is no tensor. `activation` is the FFN's class; None where there is no FFN."""

    heads: int
    scale: float
    eps_queries: float
    eps_elements: float
    eps_ffn: float
    activation: type[nn.Module] | None


def whole_block(block: Any, queries: Tensor, elements: Tensor, multiplicity: Tensor | None) -> Tensor | None:
    """The block's output (B, Q, D), for queries (B or 1, Q, D) and elements (B, N, D); None where another form is
    faster, or this one does not compute it.
    """
    if not _may_take(queries, elements, block.num_heads):
        return None
    parts = block.foldable()
    if parts is None or parts.activation not in ACTIVATIONS or blocks.library() is None:
        return None
    tensors = private.tensors_of(parts.modules)
    if tensors[0].dtype != queries.dtype:
        tensors = [tensor.to(queries.dtype) for tensor in tensors]
    m = None if multiplicity is None else multiplicity.expand(elements.shape[:2]).to(queries.dtype)
    if not _fit(parts.hidden, queries, elements, m, tensors):
        return None
    eps = parts.norm_queries.eps, parts.norm_elements.eps, 0.0 if parts.ffn is None else parts.norm_ffn.eps
    how = How(parts.heads, parts.scale, *eps, parts.activation)
    if torch.is_grad_enabled():
        return SmallBlock.apply(how, m, queries, elements, *tensors)
    return _output(how, m, queries, elements, tensors)[0]


def _may_take(queries: Tensor, elements: Tensor, heads: int) -> bool:
    """By sizes and kind alone.

    Measured by whole encoders, with gradients and without, on one thread, of 1 to 300 sets of 30 to 4,000 elements and
    widths of 32 to 128: up to MOST numbers this is 1.2 to 3 times as fast as the plain form, and faster than folding
    but where few points (their number times heads at most the width) meet sets of many elements, or many sets. Of many
    sets of some five elements most of what it computes would be padding.
    """
    if private.plain_only():  # before any size is asked for: a program that is compiled is for all of them
        return False
    (given, number, dim), (sets, many, _) = queries.shape, elements.shape
    largest = max(number, many)
    if dim > WIDEST or not 0 < sets * max(largest * dim, heads * number * many) <= MOST or not queries.numel():
        return False
    padded = sum(math.ceil(rows / LANES) * LANES for rows in (number, many))
    if sets > 1 and padded > PADDED * (number + many):
        return False
    columns = min(number, many) * heads
    if columns <= dim and (largest * dim > OF_SET or (2 * columns <= dim and sets * largest * dim >= OF_SETS)):
        return False
    return (
        elements.is_cpu
        and queries.is_cpu
        and queries.dtype == elements.dtype
        and elements.dtype in PRECISIONS
        and given in (1, sets)
        and elements.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


def _fit(hidden: int, x: Tensor, y: Tensor, m: Tensor | None, tensors: Sequence[Tensor]) -> bool:
    """Whether all have the shapes, type and device that small.cpp reads without a look.

    If they have not, PyTorch's operations say what is wrong, or compute it.
    """
    dim = y.shape[2]
    square, row, widened = (dim, dim), (dim,), (hidden,)
    shapes = [*[row] * 4, *[square, row] * 4]
    shapes += [row, row, (hidden, dim), widened, (dim, hidden), row] if hidden else []
    weights = len(tensors) == len(shapes) and all(
        tensor.shape == shape and tensor.dtype is x.dtype and tensor.is_cpu
        for tensor, shape in zip(tensors, shapes, strict=True)
    )
    return weights and x.shape[2] == dim and (m is None or m.is_cpu)


class SmallBlock(torch.autograd.Function):
    """Of tensors: weight and bias of the norms of queries and elements, of query, key, value and output, of the FFN's
    norm and its two layers.
    """

    @staticmethod
    def forward(ctx: Any, how: How, m: Tensor | None, x: Tensor, y: Tensor, *tensors: Tensor) -> Tensor:
        out, kept = _output(how, m, x, y, tensors, keep=True)
        ctx.save_for_backward(m, x, y, kept, *tensors)
        ctx.how = how
        return out

    @staticmethod
    def backward(ctx: Any, d: Tensor):
        m, x, y, kept, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            return None, None, *derived(partial(_plain, ctx.how, m), (x, y, *tensors), (d,))
        return None, None, *_gradients(ctx.how, m, x, y, kept, tensors, d)


def _plain(how: How, m: Tensor | None, x: Tensor, y: Tensor, *tensors: Tensor) -> tuple[Tensor]:
    """The output, by operations that PyTorch differentiates."""
    dim, (bias, empty) = x.shape[-1:], (None, None) if m is None else masks(m, x.dtype)
    wq, bq, we, be, query, query_0, key, key_0, value, value_0, output, output_0, *ffn = tensors
    xn, yn = F.layer_norm(x, dim, wq, bq, how.eps_queries), F.layer_norm(y, dim, we, be, how.eps_elements)
    projected = F.linear(xn, query, query_0), F.linear(yn, key, key_0), F.linear(yn, value, value_0)
    q, k, v = (z.unflatten(2, (how.heads, -1)).transpose(1, 2) for z in projected)
    h = x + F.linear(plain_attention(q, k, v, bias, empty, how.scale).transpose(1, 2).flatten(2), output, output_0)
    if how.activation is None:
        return (h,)
    w, b, first, first_0, second, second_0 = ffn
    return (h + F.linear(F.linear(F.layer_norm(h, dim, w, b, how.eps_ffn), first, first_0).relu(), second, second_0),)


def _output(
    how: How, m: Tensor | None, x: Tensor, y: Tensor, tensors: Sequence[Tensor], keep: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The output, and what the gradient needs of the steps between."""
    numbers = _sizes(how, x, y, tensors)
    out, kept = pages.empty((y.shape[0], *x.shape[1:]), x), None
    if keep:
        kept = pages.empty((y.shape[0], blocks.kept_numbers(x.dtype, numbers)), x)
    arrays = [*blocks.contiguous(x, y, m), out, kept, *blocks.contiguous(*tensors), *[None] * (TENSORS - len(tensors))]
    blocks.run("block", x.dtype, arrays, numbers, _reals(how), _pieces(x, y, PIECES))
    return out, kept


def _gradients(
    how: How, m: Tensor | None, x: Tensor, y: Tensor, kept: Tensor, tensors: Sequence[Tensor], d: Tensor
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


def _sizes(how: How, x: Tensor, y: Tensor, tensors: Sequence[Tensor]) -> tuple[int, ...]:
    hidden = 0 if how.activation is None else tensors[-4].shape[0]
    return x.shape[1], y.shape[1], x.shape[2], how.heads, hidden, x.shape[0] < y.shape[0]


def _reals(how: How) -> tuple[float, ...]:
    return how.scale, how.eps_queries, how.eps_elements, how.eps_ffn


def _pieces(x: Tensor, y: Tensor, most: int) -> list[Piece]:
    """Some sets each, of about one size, which depends on the shapes only."""
    sets = y.shape[0]
    numbers = sets * (x.shape[1] + y.shape[1]) * y.shape[2]
    step = -(-sets // max(min(most, numbers // PIECE, sets), 1))
    return [Piece(first, min(first + step, sets), 0, y.shape[1], first) for first in range(0, sets, step)]
