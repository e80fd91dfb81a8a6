"""`Gather` and `Spread` in compiled blocks: the formulas of gather.py and spread.py, shared out over threads once."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from omniset.core.attention import zero_if_minus_inf
from omniset.kernels.blocks import call
from omniset.kernels.derived import derived
from omniset.kernels.gather import Gather, moderate
from omniset.kernels.pages import empty
from omniset.kernels.spread import Spread
from omniset.kernels.team import Piece, pieces, share_out
from omniset.kernels.tiles import centred

FFN = nn.ReLU, None  # activations that blocks have; None: no FFN


class BlockGather(torch.autograd.Function):
    """See `omniset.kernels.gather.Gather`, whose arguments and results these are."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, log_m: Tensor | None, folded: Tensor, offset: Tensor, peak: Tensor | None, eps: float
    ):
        (sets, elements, dim), points = x.shape, folded.shape[1]
        x, log_m, rows = x.contiguous(), _contiguous(log_m), centred(folded).contiguous()
        known = peak is not None or moderate(rows, log_m)
        start = 0.0 if known else -torch.inf
        top = folded.new_full((sets, points), start) if peak is None else (peak.to(folded.dtype) - offset)[..., 0]
        top = top.contiguous()

        def sums(piece: Piece) -> tuple[Tensor, Tensor, Tensor]:
            number = piece.last - piece.first
            here = top[piece.first : piece.last] if known else top[piece.first : piece.last].clone()
            weight, total = (torch.zeros((number, points, *more), dtype=torch.float64) for more in ((), (dim,)))
            numbers = elements, dim, points, *piece, known
            call("gather", x.dtype, [x, log_m, rows, here, weight, total], numbers, eps)
            return here, weight, total

        weight, total = (torch.zeros((sets, points, size), dtype=torch.float64) for size in (1, dim))
        parts = pieces(sets, elements, dim)
        for piece, (here, some_weight, some_total) in zip(parts, share_out(parts, sums), strict=True):
            b = slice(piece.first, piece.last)
            factor = torch.ones((), dtype=torch.float64)
            if not known:
                highest = torch.maximum(top[b], here)
                base = zero_if_minus_inf(highest).double()
                before, factor = (torch.exp(peaks.double() - base)[..., None] for peaks in (top[b], here))
                weight[b] *= before
                total[b] *= before
                top[b] = highest
            weight[b] += some_weight[..., None] * factor
            total[b] += some_total * factor
        total -= total.mean(-1, True)
        ctx.save_for_backward(x, log_m, folded, offset, top)
        ctx.eps = eps
        peak = top[..., None] + offset
        ctx.mark_non_differentiable(peak)
        return peak, weight, total

    @staticmethod
    def backward(ctx: Any, _: Any, d_weight: Tensor, d_total: Tensor):
        x, log_m, folded, offset, top = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            plain = partial(Gather.plain, (top[..., None] + offset).detach(), ctx.eps)
            return *derived(plain, (x, log_m, folded, offset), (d_weight, d_total)), None, None
        (sets, elements, dim), points, dtype = x.shape, folded.shape[1], folded.dtype
        d_x = empty(x.shape, x) if ctx.needs_input_grad[0] else None
        d_log_m = torch.empty_like(log_m) if log_m is not None and ctx.needs_input_grad[1] else None
        rows, d_weight = centred(folded).contiguous(), d_weight.to(dtype).contiguous()
        d_total = centred(d_total.to(dtype)).contiguous()
        after = torch.cat((d_total, rows.expand_as(d_total)), 1).mT.contiguous()

        def sums(piece: Piece) -> tuple[Tensor, Tensor]:
            d_points, d_offset = (torch.zeros(size, dtype=torch.float64) for size in ((points, dim), (points,)))
            arrays = [x, log_m, rows, top, d_weight, d_total, after, d_x, d_log_m, d_points, d_offset]
            call("gather_backward", x.dtype, arrays, (elements, dim, points, *piece), ctx.eps)
            return d_points, d_offset

        d_points, d_offset = torch.zeros(points, dim, dtype=torch.float64), torch.zeros(points, dtype=torch.float64)
        for some_points, some_offset in share_out(pieces(sets, elements, dim), sums):
            d_points += some_points
            d_offset += some_offset
        return d_x, d_log_m, centred(d_points).to(dtype)[None], d_offset.to(dtype)[None, :, None], None, None


class BlockSpread(torch.autograd.Function):
    """See `omniset.kernels.spread.Spread`, whose arguments and result these are; the activation is one of FFN."""

    @staticmethod
    def forward(ctx: Any, x, keys, offset, values, heads: int, activation: Any, eps: float, w1, b1, w2, b2):
        (sets, elements, dim), points = x.shape, keys.shape[1]
        x = x.contiguous()
        width = 0 if w1 is None else len(w1)
        out = empty(x.shape, x)
        arrays = [
            x, centred(keys).contiguous(), offset.contiguous(), values.mT.contiguous(),
            *(None if v is None else v.contiguous() for v in (None if w1 is None else centred(w1), b1, w2, b2)), out,
        ]  # fmt: skip

        def write(piece: Piece) -> None:
            call("spread", x.dtype, arrays, (elements, dim, points, heads, width, *piece), eps)

        share_out(pieces(sets, elements, dim), write)
        ctx.save_for_backward(x, keys, offset, values, w1, b1, w2, b2)
        ctx.heads, ctx.activation, ctx.eps = heads, activation, eps
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor):
        x, keys, offset, values, w1, b1, w2, b2 = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            plain = partial(Spread.plain, ctx.heads, ctx.activation, ctx.eps)
            gradients = derived(plain, (x, keys, offset, values, w1, b1, w2, b2), (d_out,))
            return *gradients[:4], None, None, None, *gradients[4:]
        (sets, elements, dim), points, dtype = x.shape, keys.shape[1], keys.dtype
        width = 0 if w1 is None else len(w1)
        d_x, rows = empty(x.shape, x), centred(keys).contiguous()
        first = None if w1 is None else centred(w1).contiguous()
        weights = [rows, rows.mT.contiguous(), offset.contiguous(), values.contiguous(), values.mT.contiguous()]
        weights += [first, *(None if v is None else v.contiguous() for v in (_mT(first), b1, _mT(w2)))]

        def sums(piece: Piece) -> list[Tensor]:
            number = piece.last - piece.first
            some = [torch.zeros((number, points, *more), dtype=torch.float64) for more in ((dim,), (), (dim,))]
            some += [torch.zeros(size, dtype=torch.float64) for size in ((width, dim), width, (width, dim), dim)]
            numbers = elements, dim, points, ctx.heads, width, *piece
            gradient, start = d_out, 0
            if not d_out.is_contiguous():  # as that of a sum is, which has one number only
                gradient = d_out[piece.first : piece.last, piece.start : piece.stop].contiguous()
                start = piece.first * elements + piece.start
            address = gradient.data_ptr() - start * dim * gradient.element_size()  # of the first element of all
            call("spread_backward", x.dtype, [x, address, *weights, d_x, *some], numbers, ctx.eps)
            return some

        d_keys, d_offset, d_values = (torch.zeros_like(v, dtype=torch.float64) for v in (keys, offset, values))
        d_ffn = [torch.zeros(size, dtype=torch.float64) for size in ((width, dim), width, (width, dim), dim)]
        parts = pieces(sets, elements, dim)
        for piece, (some_keys, some_offset, some_values, *some_ffn) in zip(parts, share_out(parts, sums), strict=True):
            b = slice(piece.first, piece.last)
            d_keys[b] += some_keys
            d_offset[b] += some_offset[..., None]
            d_values[b] += some_values
            for total, some in zip(d_ffn, some_ffn, strict=True):
                total += some
        d_w1, d_b1, d_w2, d_b2 = (v.to(dtype) for v in d_ffn)
        gradients = [None] * 4 if w1 is None else [centred(d_w1), d_b1, d_w2.mT, d_b2]
        return d_x, centred(d_keys).to(dtype), d_offset.to(dtype), d_values.to(dtype), None, None, None, *gradients


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _mT(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.mT
