"""Blocks that follow each other, of small sets, in one call of compiled code (small.cpp), their gradient in another.

Of a set of some hundred elements the numbers take less time than the bookkeeping: of each block some twenty modules and
forty nodes of a graph. Here a network of induced attention is one node with its gradient written out, and threads meet
once in it: each takes whole sets, from the first block to the last.

    q = Q LN(x) + q_0,  k = K LN(y) + k_0,  v = V LN(y) + v_0
    h = x + O softmax(q k^T scale + log m) v + o_0,    out = h + F_2 act(F_1 LN(h) + f_1) + f_2
"""

from __future__ import annotations

import bisect
import itertools
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
from omniset.kernels.team import PIECES, Piece, in_one_thread

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


class Link(NamedTuple):
    """A block among others. What it reads has a number: first what goes in, then what each block makes."""

    queries: int
    elements: int
    of_set: tuple[bool, bool]  # whether these are as many as the set has
    weighed: bool
    how: How
    tensors: int


class Chain(NamedTuple):
    """Blocks that follow each other, of some tensors that go in."""

    inputs: int
    links: tuple[Link, ...]
    lengths: tuple[int, ...]  # of the sets, where they are padded; else none

    @property
    def passing(self) -> set[int]:
        """What only the next block sees, its queries: the output of that takes its place."""
        return {link.queries for link in self.links if link.queries >= self.inputs}


def whole_block(block: Any, queries: Tensor, elements: Tensor, multiplicity: Tensor | None) -> Tensor | None:
    """The block's output (B, Q, D), for queries (B or 1, Q, D) and elements (B, N, D); None where another form is
    faster, or this one does not compute it.
    """
    found = whole_blocks([(block, 0, 1)], [queries, elements], multiplicity)
    return None if found is None else found[0]


def whole_blocks(
    steps: Sequence[tuple[Any, int, int]],
    inputs: Sequence[Tensor],
    multiplicity: Tensor | None,
    lengths: Sequence[int] = (),
) -> tuple[Tensor, ...] | None:
    """The outputs of blocks that follow each other, but for what are the queries of a later one; None as above.

    Args:
        steps: Blocks, and the numbers of their queries and elements (`Link`).
        lengths: Of each set in the first input, which is padded, the entries up to its last element, at least 1.
    """
    if not _may_take(inputs) or blocks.library() is None:
        return None
    dtype, links, tensors = inputs[0].dtype, [], []
    shapes, of_set = [x.shape for x in inputs], [bool(lengths), *[False] * (len(inputs) - 1)]
    for block, q, e in steps:
        parts = block.foldable() if worth(shapes[q], shapes[e], block.num_heads) else None
        if parts is None or parts.activation not in ACTIVATIONS:
            return None
        weights = private.tensors_of(parts.modules)
        if weights[0].dtype != dtype:
            weights = [tensor.to(dtype) for tensor in weights]
        if not _fit(parts.hidden, shapes[q], shapes[e], dtype, weights):
            return None
        eps = parts.norm_queries.eps, parts.norm_elements.eps, 0.0 if parts.ffn is None else parts.norm_ffn.eps
        weighed = multiplicity is not None and (of_set[e] or not lengths)
        how = How(parts.heads, parts.scale, *eps, parts.activation)
        links.append(Link(q, e, (of_set[q], of_set[e]), weighed, how, len(weights)))
        tensors += weights
        shapes.append(torch.Size((shapes[e][0], *shapes[q][1:])))
        of_set.append(of_set[q])
    m = None if multiplicity is None else multiplicity.to(dtype).expand(shapes[steps[0][2]][:2])
    if m is not None and not m.is_cpu:
        return None
    chain = Chain(len(inputs), tuple(links), tuple(lengths))
    if torch.is_grad_enabled():
        return SmallBlock.apply(chain, m, *inputs, *tensors)
    return _outputs(chain, m, [*inputs, *tensors])[0]


def _may_take(inputs: Sequence[Tensor]) -> bool:
    """By their kind alone."""
    if private.plain_only():  # before any size is asked for: a program that is compiled is for all of them
        return False
    dtype = inputs[0].dtype
    same = all(x.is_cpu and x.dtype is dtype and x.numel() for x in inputs)
    return same and dtype in PRECISIONS and not torch.is_autocast_enabled("cpu")


def worth(queries: torch.Size, elements: torch.Size, heads: int) -> bool:
    """By sizes alone.

    Measured by whole encoders, with gradients and without, on one thread, of 1 to 300 sets of 30 to 4,000 elements and
    widths of 32 to 128: up to MOST numbers this is 1.2 to 3 times as fast as the plain form, and faster than folding
    but where few points (their number times heads at most the width) meet sets of many elements, or many sets. Of many
    sets of some five elements most of what it computes would be padding.
    """
    (given, number, dim), (sets, many, _) = queries, elements
    larger = max(number, many)
    if dim > WIDEST or given not in (1, sets) or sets * max(larger * dim, heads * number * many) > MOST:
        return False
    padded = sum(math.ceil(rows / LANES) * LANES for rows in (number, many))
    if sets > 1 and padded > PADDED * (number + many):
        return False
    columns = min(number, many) * heads
    most = OF_SETS if 2 * columns <= dim else 3 * OF_SETS  # folding also keeps less
    return not (columns <= dim and (larger * dim > OF_SET or sets * larger * dim >= most))


def _fit(hidden: int, x: torch.Size, y: torch.Size, dtype: torch.dtype, tensors: Sequence[Tensor]) -> bool:
    """Whether all have the shapes, type and device that small.cpp reads without a look.

    If they have not, PyTorch's operations say what is wrong, or compute it.
    """
    dim = y[2]
    square, row, widened = (dim, dim), (dim,), (hidden,)
    shapes = [*[row] * 4, *[square, row] * 4]
    shapes += [row, row, (hidden, dim), widened, (dim, hidden), row] if hidden else []
    return (
        x[2] == dim
        and len(tensors) == len(shapes)
        and all(
            tensor.shape == shape and tensor.dtype is dtype and tensor.is_cpu
            for tensor, shape in zip(tensors, shapes, strict=True)
        )
    )


class SmallBlock(torch.autograd.Function):
    """Of tensors: what goes in; then of each block weight and bias of the norms of queries and elements, of query, key,
    value and output, of the FFN's norm and its two layers.
    """

    @staticmethod
    def forward(ctx: Any, chain: Chain, m: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        out, kept = _outputs(chain, m, tensors, keep=True)
        ctx.save_for_backward(m, kept, *tensors)
        ctx.set_materialize_grads(False)
        ctx.chain = chain
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Any):
        m, kept, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            given = [d is not None for d in upstream]
            plain = partial(_plain_outputs, ctx.chain, m, given)
            return None, None, *derived(plain, tuple(tensors), tuple(itertools.compress(upstream, given)))
        return None, None, *in_one_thread(0, partial(_gradients, ctx.chain, m, kept, tensors, upstream))


def _plain_outputs(chain: Chain, m: Tensor | None, wanted: Sequence[bool], *tensors: Tensor) -> tuple[Tensor, ...]:
    """The outputs that are wanted, by operations that PyTorch differentiates."""
    values, rest = [*tensors[: chain.inputs]], iter(tensors[chain.inputs :])
    for link in chain.links:
        weights = itertools.islice(rest, link.tensors)
        of_link = m if link.weighed else None
        values += _plain(link.how, of_link, values[link.queries], values[link.elements], *weights)
    return tuple(itertools.compress((value for _, value in _returned(chain, values)), wanted))


def _returned(chain: Chain, values: Sequence[Any]) -> list[tuple[int, Any]]:
    """Of all that blocks make, what none of them has for its queries, with its number."""
    passing = chain.passing
    return [(n, value) for n, value in enumerate(values) if n >= chain.inputs and n not in passing]


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


def _outputs(
    chain: Chain, m: Tensor | None, tensors: Sequence[Tensor], keep: bool = False
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """The outputs, and what the gradient needs of the steps between."""
    values: list[Any] = blocks.contiguous(*tensors[: chain.inputs])
    passing, arrays, numbers = chain.passing, list[Any](), list[int]()
    for link, weights in _with_weights(chain, tensors):
        x, y = values[link.queries], values[link.elements]
        out = x if link.queries in passing else pages.empty((y.shape[0], *x.shape[1:]), y)
        values.append(out)
        arrays += [x, y, out, None, *weights]
        numbers += [*_numbers(link, x.shape, y.shape, weights), 0, 0, 0, 0]
    sets = values[chain.links[0].elements].shape[0]
    numbers = [len(chain.links), sets, values[0].shape[2], 0, *numbers, *(chain.lengths or [0] * sets)]
    kept = pages.empty((blocks.kept_numbers(y.dtype, numbers),), y) if keep else None
    arrays = [*blocks.contiguous(m), kept, None, *arrays]
    blocks.run("block", y.dtype, arrays, numbers, _reals(chain), _pieces(values, chain.lengths, PIECES))
    return tuple(value for _, value in _returned(chain, values)), kept


def _gradients(
    chain: Chain, m: Tensor | None, kept: Tensor, tensors: Sequence[Tensor], upstream: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Of all tensors."""
    shapes = [x.shape for x in tensors[: chain.inputs]]
    for link in chain.links:
        shapes.append(torch.Size((shapes[link.elements][0], *shapes[link.queries][1:])))
    found: list[Any] = [None] * len(shapes)
    for (number, _), d in zip(_returned(chain, shapes), upstream, strict=True):
        found[number] = d
    ours: set[int] = set()
    like = tensors[0]

    def into(number: int, instead: Tensor | None = None) -> bool:
        """Make room for a gradient; whether there is one already, to which it is added."""
        before = found[number]
        if number not in ours:
            found[number] = before.clone(memory_format=torch.contiguous_format) if before is not None else instead
            if found[number] is None:
                found[number] = pages.empty(shapes[number], like)
            ours.add(number)
        return before is not None

    arrays, numbers, summed = list[Any](), list[int](), list[Any]()
    for i, (link, weights) in reversed([*enumerate(_with_weights(chain, tensors))]):
        q, e, out = link.queries, link.elements, chain.inputs + i
        d = like.new_zeros(1).expand(shapes[out]) if found[out] is None else found[out]
        shared = shapes[q][0] < shapes[e][0]
        add = 0 if shared else into(q, d if out in ours else None)
        add += 2 * into(e)
        arrays[:0] = [tensors[q].contiguous() if shared else None, d, None if shared else found[q], found[e], *weights]
        numbers[:0] = [*_numbers(link, shapes[q], shapes[e], weights), *d.stride(), add]
        summed[:0] = [*([tensors[q]] if shared else []), *weights[: link.tensors]]
    sets, number = shapes[-1][0], sum(tensor.numel() for tensor in summed)
    parts = _pieces(tensors, chain.lengths, SUMS)
    sums = like.new_zeros(len(parts), number)
    numbers = [len(chain.links), sets, like.shape[2], number, *numbers, *(chain.lengths or [0] * sets)]
    arrays = [*blocks.contiguous(m), kept, sums, *arrays]
    blocks.run("block_backward", like.dtype, arrays, numbers, _reals(chain), parts)
    flat = (sums[0] if len(parts) == 1 else sums.sum(0)).split([tensor.numel() for tensor in summed])
    of_sums = (part.view(tensor.shape) for part, tensor in zip(flat, summed, strict=True))
    of_weights: list[Tensor] = []
    for link in chain.links:
        if shapes[link.queries][0] < shapes[link.elements][0]:
            found[link.queries] = next(of_sums)
        of_weights += itertools.islice(of_sums, link.tensors)
    return [*found[: chain.inputs], *of_weights]


def _with_weights(chain: Chain, tensors: Sequence[Tensor]) -> list[tuple[Link, list[Tensor | None]]]:
    """Each block with its weights, as many as small.cpp reads."""
    stops = itertools.accumulate((link.tensors for link in chain.links), initial=chain.inputs)
    return [
        (link, [*blocks.contiguous(*tensors[start:stop]), *[None] * (TENSORS - link.tensors)])
        for link, (start, stop) in zip(chain.links, itertools.pairwise(stops), strict=True)
    ]


def _numbers(link: Link, x: torch.Size, y: torch.Size, weights: Sequence[Any]) -> tuple[int, ...]:
    hidden = 0 if link.how.activation is None else weights[-4].shape[0]
    return x[1], y[1], link.how.heads, hidden, x[0] < y[0], *link.of_set, link.weighed


def _reals(chain: Chain) -> list[float]:
    return [real for link in chain.links for real in link.how[1:5]]


def _pieces(inputs: Sequence[Tensor], lengths: Sequence[int], most: int) -> list[Piece]:
    """Some sets each, of about as many numbers, which depends on the sizes only."""
    sets, dim = max(x.shape[0] for x in inputs[:2]), inputs[0].shape[2]
    ends = [*itertools.accumulate(lengths or [sum(x.shape[1] for x in inputs[:2])] * sets)]
    number = max(min(most, ends[-1] * dim // PIECE, sets), 1)
    stops = {min(bisect.bisect_left(ends, ends[-1] * i / number) + 1, sets) for i in range(1, number + 1)}
    return [Piece(first, last, 0, 0, first) for first, last in itertools.pairwise(sorted({0, *stops}))]
