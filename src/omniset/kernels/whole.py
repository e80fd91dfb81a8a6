"""A whole block in one step of autograd, for sets that are there as a whole and are not worth folding.

Of a set of some hundred elements the numbers take less time than the bookkeeping: some twenty modules and forty nodes
of a graph. Here the block is one node with its gradient written out. The attention is PyTorch's fused kernel for
processors. Many rows, with more points than are worth folding, are shared out in pieces that a cache holds: a thread
takes one through all steps but the attention of few queries to many elements.

    q = Q LN(x) + q_0,  k = K LN(y) + k_0,  v = V LN(y) + v_0
    h = x + O softmax(q k^T scale + log m) v + o_0,    out = h + F_2 act(F_1 LN(h) + f_1) + f_2
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from omniset.kernels import pages, private, small
from omniset.kernels.fused import derived, filled, masks, plain_attention
from omniset.kernels.team import Piece, pieces, share_out
from omniset.kernels.tiles import ACTIVATIONS

Tensors = Sequence[Any]

PRECISIONS = (torch.float32, torch.float64)
MANY = 1 << 18  # numbers in queries, or in elements, from where on pieces of them are shared out
SEEN = 3  # tensors that the gradient needs of each piece of elements
FEW = 32  # keys, up to which plain products and a softmax with the queries innermost are faster (D from 32 to 128)


class How(NamedTuple):
    """What of a block is no tensor. `activation` is the FFN's class; None where there is no FFN."""

    heads: int
    scale: float
    eps_queries: float
    eps_elements: float
    eps_ffn: float
    activation: type[torch.nn.Module] | None

    @classmethod
    def of(cls, parts: Any) -> How:
        eps = parts.norm_queries.eps, parts.norm_elements.eps, 0.0 if parts.ffn is None else parts.norm_ffn.eps
        return cls(parts.heads, parts.scale, *eps, parts.activation)


class Mask(NamedTuple):
    """What `omniset.kernels.fused.masks` makes of multiplicities."""

    bias: Tensor | None = None
    empty: Tensor | None = None

    def of(self, piece: Piece) -> Mask:
        """What belongs to the sets of the piece."""
        return Mask(*(None if part is None else part[piece.first : piece.last] for part in self))


def takes(queries: Tensor, elements: Tensor) -> bool:
    """Whether `apply` computes it."""
    return (
        private.HAS_FLASH
        and elements.device.type == queries.device.type == "cpu"
        and elements.dtype == queries.dtype
        and elements.dtype in PRECISIONS
        and queries.shape[0] in (1, elements.shape[0])
        and queries.numel() > 0
        and elements.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and not private.plain_only()
    )


def apply(parts: Any, queries: Tensor, elements: Tensor, multiplicity: Tensor | None) -> Tensor:
    """The block's output (B, Q, D), for queries (B or 1, Q, D) and elements (B, N, D)."""
    tensors = private.tensors_of(parts.modules)
    how = How.of(parts)
    if tensors[0].dtype != queries.dtype:
        tensors = [tensor.to(queries.dtype) for tensor in tensors]
    multiplicity = None if multiplicity is None else multiplicity.expand(elements.shape[:2])
    sizes = parts.sizes(queries, elements)
    if sizes.cost_small <= sizes.cost_whole and small.takes(how.activation, sizes):
        m = None if multiplicity is None else multiplicity.to(queries.dtype)
        if small.fits(sizes, queries, elements, m, tensors):
            if not torch.is_grad_enabled():
                return small.output(how, m, queries, elements, tensors)[0]
            return small.SmallBlock.apply(how, WholeBlock.plain, m, queries, elements, *tensors)
    mask = Mask() if multiplicity is None else Mask(*masks(multiplicity, queries.dtype))
    if torch.is_grad_enabled():
        return WholeBlock.apply(how, *mask, queries, elements, *tensors)
    return _forward(how, mask, queries, elements, tensors, keep=False)[0]


class WholeBlock(torch.autograd.Function):
    """Of tensors: weight and bias of the norms of queries and elements, of query, key, value and output, of the FFN's
    norm and its two layers.
    """

    @staticmethod
    def forward(ctx: Any, how: How, bias: Tensor | None, empty: Tensor | None, x: Tensor, y: Tensor, *tensors: Tensor):
        out, between = _forward(how, Mask(bias, empty), x, y, tensors)
        ctx.how = how
        ctx.number = len(tensors)
        ctx.save_for_backward(bias, empty, x, y, *tensors, *between)
        return out

    @staticmethod
    def plain(how: How, bias: Tensor | None, empty: Tensor | None, x: Tensor, y: Tensor, *tensors: Tensor):
        dim = x.shape[-1:]
        wq, bq, we, be, query, query_0, key, key_0, value, value_0, output, output_0, *ffn = tensors
        xn, yn = F.layer_norm(x, dim, wq, bq, how.eps_queries), F.layer_norm(y, dim, we, be, how.eps_elements)
        projected = F.linear(xn, query, query_0), F.linear(yn, key, key_0), F.linear(yn, value, value_0)
        q, k, v = (z.unflatten(2, (how.heads, -1)).transpose(1, 2) for z in projected)
        average = plain_attention(q, k, v, bias, empty, how.scale).transpose(1, 2).flatten(2)
        h = x + F.linear(average, output, output_0)
        if how.activation is None:
            return (h,)
        w, b, first, first_0, second, second_0 = ffn
        z = F.linear(F.layer_norm(h, dim, w, b, how.eps_ffn), first, first_0)
        return (h + F.linear(how.activation()(z), second, second_0),)

    @staticmethod
    def backward(ctx: Any, d: Tensor):
        bias, empty, x, y, *saved = ctx.saved_tensors
        tensors, between = saved[: ctx.number], saved[ctx.number :]
        if torch.is_grad_enabled():  # a second derivative is wanted
            function = partial(WholeBlock.plain, ctx.how, bias, empty)
            return None, None, None, *derived(function, (x, y, *tensors), (d,))
        return None, None, None, *_backward(ctx.how, Mask(bias, empty), x, y, tensors, between, d)


def _parts(x: Tensor) -> list[Piece] | None:
    """Many rows in pieces that a cache holds."""
    return pieces(x) if x.numel() >= MANY else None


def _rows_of(x: Tensor, piece: Piece) -> Tensor:
    return x[piece.first : piece.last, piece.start : piece.stop]


def _added(sums: Sequence[Tensors]) -> list[Tensor]:
    """The sums of all pieces, in their order."""
    return [torch.stack(column).sum(0) for column in zip(*sums, strict=True)]


def _by_piece(parts: Sequence[Piece], tensors: Sequence[Any]) -> dict[Piece, Sequence[Any]]:
    """What was put one after the other, as many for each piece."""
    number = len(tensors) // len(parts)
    return {piece: tensors[turn * number : (turn + 1) * number] for turn, piece in enumerate(parts)}


def _forward(
    how: How, mask: Mask, x: Tensor, y: Tensor, tensors: Tensors, keep: bool = True
) -> tuple[Tensor, list[Tensor | None]]:
    """The output, and what the gradient needs of the steps between: of the elements, then of the queries, piece by
    piece. `keep`: whether a gradient is wanted; without one, what a piece needs is given up after it.
    """
    k, v, seen = _see_all(how, y, tensors, keep)
    parts = _parts(x) if x.shape[0] == y.shape[0] else None
    if parts is None:
        out, answered = _answer(how, mask, x, k, v, tensors)
        return out, [k, v, *seen, *answered]
    out = pages.empty(x.shape, x)

    def work(piece: Piece) -> list[Tensor | None]:
        some = _rows_of(x, piece), k[piece.first : piece.last], v[piece.first : piece.last]
        _, answered = _answer(how, mask.of(piece), *some, tensors, _rows_of(out, piece))
        return answered if keep else []

    return out, [k, v, *seen, *itertools.chain(*share_out(parts, work))]


def _backward(
    how: How, mask: Mask, x: Tensor, y: Tensor, tensors: Tensors, between: Tensors, d: Tensor
) -> list[Tensor]:
    """Gradients of queries, elements and tensors."""
    k, v, *between = between
    end = SEEN * len(_parts(y) or [y])
    seen, answers = between[:end], between[end:]
    parts = _parts(x) if x.shape[0] == y.shape[0] else None
    if parts is None:
        d_x, d_k, d_v, *rest = _answer_backward(how, mask, (x, k, v), tensors, answers, d)
    else:
        d_x, d_k, d_v = pages.empty(x.shape, x), torch.zeros_like(k), torch.zeros_like(v)
        answered = _by_piece(parts, answers)

        def work(piece: Piece) -> list[Tensor]:
            some = _rows_of(x, piece), k[piece.first : piece.last], v[piece.first : piece.last]
            of_piece = mask.of(piece), some, tensors, answered[piece], _rows_of(d, piece), _rows_of(d_x, piece)
            return _answer_backward(how, *of_piece)[1:]

        sums = share_out(parts, work)
        for piece, (of_keys, of_values, *_) in zip(parts, sums, strict=True):
            d_k[piece.first : piece.last] += of_keys
            d_v[piece.first : piece.last] += of_values
        rest = _added([row[2:] for row in sums])
    d_y, *of_elements = _see_all_backward(y, tensors, seen, d_k, d_v)
    return [d_x, d_y, *rest[:2], *of_elements[:2], *rest[2:4], *of_elements[2:], *rest[4:]]


def _see_all(how: How, y: Tensor, tensors: Tensors, keep: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Keys and values (B, H, N, d) of the elements, and what the gradient needs, piece by piece."""
    parts = _parts(y)
    if parts is None:
        k, v, *seen = _see(how, y, tensors)
    else:
        k, v = pages.empty(y.shape, y), pages.empty(y.shape, y)

        def work(piece: Piece) -> list[Tensor]:
            of_piece = _see(how, _rows_of(y, piece), tensors, *(_rows_of(z, piece).flatten(0, 1) for z in (k, v)))
            return of_piece[2:] if keep else []

        seen = [*itertools.chain(*share_out(parts, work))]
    k, v = (_split(z.view(-1, y.shape[2]), y.shape[0], how.heads) for z in (k, v))
    return k, v, seen


def _see(how: How, y: Tensor, tensors: Tensors, *out: Tensor) -> list[Tensor]:
    """Keys and values of the elements, written to `out` if that is there, and what the gradient needs: rows of all
    sets below each other.
    """
    _, _, we, be, _, _, key, key_0, value, value_0, *_ = tensors
    yn, mean, deviation = torch.native_layer_norm(y, y.shape[-1:], we, be, how.eps_elements)
    yn = yn.view(-1, y.shape[2])
    if not out:
        return [F.linear(yn, key, key_0), F.linear(yn, value, value_0), yn, mean, deviation]
    k, v = out
    torch.addmm(key_0, yn, key.t(), out=k)
    torch.addmm(value_0, yn, value.t(), out=v)
    return [k, v, yn, mean, deviation]


def _see_all_backward(y: Tensor, tensors: Tensors, seen: Tensors, d_k: Tensor, d_v: Tensor) -> list[Tensor]:
    """Gradients of the elements, of their norm, of key and value."""
    parts = _parts(y)
    if parts is None:
        return _see_backward(y, tensors, seen, d_k, d_v)
    d_y, of_piece = pages.empty(y.shape, y), _by_piece(parts, seen)

    def work(piece: Piece) -> list[Tensor]:
        of_heads = (z[piece.first : piece.last, :, piece.start : piece.stop] for z in (d_k, d_v))
        written, *sums = _see_backward(_rows_of(y, piece), tensors, of_piece[piece], *of_heads)
        _rows_of(d_y, piece).copy_(written)
        return sums

    return [d_y, *_added(share_out(parts, work))]


def _see_backward(y: Tensor, tensors: Tensors, seen: Tensors, d_k: Tensor, d_v: Tensor) -> list[Tensor]:
    """Of elements that were seen at once: their gradient, and those of their norm, of key and value."""
    _, _, we, be, _, _, key, _, value, *_ = tensors
    yn, mean, deviation = seen
    d_yn, *d_key = _linear_backward(_rows(d_k), yn, key)
    d_yn_of_v, *d_value = _linear_backward(_rows(d_v), yn, value)
    d_y, *d_norm = private.norm_backward(d_yn.add_(d_yn_of_v).view(y.shape), y, mean, deviation, we, be)
    return [d_y, *d_norm, *d_key, *d_value]


def _answer(
    how: How, mask: Mask, x: Tensor, k: Tensor, v: Tensor, tensors: Tensors, out: Tensor | None = None
) -> tuple[Tensor, list[Tensor | None]]:
    """The output for queries, of keys and values, written to `out` if that is there; and what the gradient needs, rows
    of all sets below each other.
    """
    wq, bq, _, _, query, query_0, _, _, _, _, output, output_0, *ffn = tensors
    of_x, sets = x.shape, k.shape[0]  # len() of a tensor takes as long as a small operation
    dim = of_x[-1:]
    xn, *of_queries = torch.native_layer_norm(x, dim, wq, bq, how.eps_queries)
    xn = xn.view(-1, *dim)
    q = _split(F.linear(xn, query, query_0), of_x[0], how.heads)
    q = q if of_x[0] == sets else q.expand(sets, -1, -1, -1)
    a, *attended = _attend(q, k, v, mask, how.scale)
    shape = sets, of_x[1], of_x[2]
    h = F.linear(a, output, output_0).view(shape).add_(x)
    between: list[Tensor | None] = [xn, *of_queries, q, a, *attended, h]
    if how.activation is None:
        return h if out is None else out.copy_(h), between
    w, b, first, first_0, second, second_0 = ffn
    hn, *of_ffn = torch.native_layer_norm(h, dim, w, b, how.eps_ffn)
    hn = hn.view(-1, *dim)
    z = F.linear(hn, first, first_0)
    hidden = ACTIVATIONS[how.activation][0](z)  # relu writes over z
    answer = F.linear(hidden, second, second_0).view(shape)
    return torch.add(answer, h, out=answer if out is None else out), [*between, hn, *of_ffn, z]


def _answer_backward(
    how: How, mask: Mask, given: Tensors, tensors: Tensors, between: Tensors, d: Tensor, out: Tensor | None = None
) -> list[Tensor]:
    """Gradients of queries (written to `out` if that is there), keys and values; of the queries' norm, of query and
    output; of the FFN's tensors.
    """
    (x, k, v), (wq, bq, _, _, query, _, _, _, _, _, output, _, *ffn) = given, tensors
    xn, mean, deviation, q, a, attended, logsumexp, h, *of_ffn = between
    d_ffn: list[Tensor] = []
    if how.activation is not None:
        d, d_ffn = _ffn_backward(how.activation, h, d, ffn, of_ffn)
    d_a, *d_output = _linear_backward(d.reshape(a.shape), a, output)
    d_a = _split(d_a, k.shape[0], how.heads)
    d_q, d_k, d_v = _attend_backward(d_a, (q, k, v), attended, logsumexp, mask, how.scale)
    if x.shape[0] < k.shape[0]:  # all sets share the queries
        d_q, d = d_q.sum(0, True), d.sum(0, True)
    d_xn, *d_query = _linear_backward(_rows(d_q), xn, query)
    d_x, *d_norm = private.norm_backward(d_xn.view(x.shape), x, mean, deviation, wq, bq)
    return [torch.add(d_x, d, out=d_x if out is None else out), d_k, d_v, *d_norm, *d_query, *d_output, *d_ffn]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """The heads' averages, side by side in rows; and for the gradient the weights (B, H, N, Q) of few keys, or the
    averages (B, H, Q, d) and the logarithms of the sums of exponentials.
    """
    bias, empty = mask
    if not _few(q, k):
        average, logsumexp = private.flash(q, k, v, bias, scale)
        return _rows(average if empty is None else filled(average, empty)), average, logsumexp
    scores = torch.matmul(k * scale, q.mT)
    weights = private.softmax(scores if bias is None else scores.add_(bias.mT), 2)
    if empty is not None:
        weights.masked_fill_(empty, 0)
    return torch.matmul(v.mT, weights).permute(0, 3, 1, 2).reshape(-1, q.shape[1] * q.shape[3]), weights, None


def _attend_backward(
    d: Tensor, given: Tensors, attended: Tensor, logsumexp: Tensor | None, mask: Mask, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; `attended` and `logsumexp` as `_attend` returned them."""
    q, k, v = given
    if logsumexp is not None:
        return private.flash_backward(filled(d, mask.empty), q, k, v, attended, logsumexp, mask.bias, scale)
    d_weights = torch.matmul(v, d.mT)
    d_scores = private.softmax_backward(d_weights, attended, 2, d_weights)
    return torch.matmul(d_scores.mT, k * scale), torch.matmul(d_scores, q).mul_(scale), torch.matmul(attended, d)


def _few(q: Tensor, k: Tensor) -> bool:
    """Whether many queries attend to so few keys that the fused kernel would mostly wait for itself."""
    return k.shape[2] <= FEW and k.shape[2] * 2 <= q.shape[2]


def _ffn_backward(
    activation: type[torch.nn.Module], h: Tensor, d: Tensor, ffn: Tensors, between: Tensors
) -> tuple[Tensor, list[Tensor]]:
    """The gradient of h and those of the FFN's tensors."""
    w, b, first, _, second, _ = ffn
    hn, mean, deviation, z = between
    compute, backward = ACTIVATIONS[activation]
    d_hidden, *d_second = _linear_backward(d.reshape(hn.shape), z if compute is torch.relu_ else compute(z), second)
    d_hn, *d_first = _linear_backward(backward(d_hidden, z), hn, first)
    d_h, *d_norm = private.norm_backward(d_hn.view(h.shape), h, mean, deviation, w, b)
    return d_h.add_(d), [*d_norm, *d_first, *d_second]


def _linear_backward(d: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x (rows, n), weight and bias of x weight^T + bias."""
    return torch.mm(d, weight), torch.mm(d.t(), x), d.sum(0)


def _split(x: Tensor, sets: int, heads: int) -> Tensor:
    """(B N, D) to (B, H, N, d)."""
    return x.view(sets, -1, heads, x.shape[1] // heads).transpose(1, 2)


def _rows(x: Tensor) -> Tensor:
    """(B, H, N, d) to (B N, D)."""
    return x.transpose(1, 2).reshape(-1, x.shape[1] * x.shape[3])
