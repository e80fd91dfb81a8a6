"""Points attend to the elements of sets: the sums of an attention state, their gradient written out.

With z_n for element n normalised, (x_n - mean) / deviation, u_p for point p with all weights folded into it, a_p for
the offset of its scores and m_n for the multiplicity,

    s_pn = u_p . z_n + a_p + log m_n        w_pn = exp(s_pn - peak_p)
    c_p = sum over n of w_pn                t_p = sum over n of w_pn z_n

From d(c) and d(t) to the gradients of what went in, given the peak, which is a constant:

    (1)  d(w_pn) = d(c_p) + d(t_p) . z_n                            c and t are sums of w and of w z
    (2)  d(s_pn) = w_pn d(w_pn)                                     w = exp(s - peak) is its own derivative
    (3)  d(log m_n) = sum over p of d(s_pn)
    (4)  d(a_p) = sum over n of d(s_pn)
    (5)  d(u_p) = sum over n of d(s_pn) z_n                         s is a product of u and z
    (6)  d(z_n) = sum over p of w_pn d(t_p) + d(s_pn) u_p           z is in t and in s
    (7)  d(x_n) = (d(z_n) - mean of d(z_n) - z_n times the mean of d(z_n) z_n) / deviation_n

where means are over the D numbers of a row; (7) is the backward of LayerNorm without weights. All of this is sums over
n, or of one n alone: threads take pieces of the sets, each by itself (team.py), in compiled blocks (blocks.cpp) or
by tensor operations (tiles.py).

The numbers of z_n sum to 0. So products with z_n are the same with u_p less its mean, and t_p and d(u_p) have no mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from omniset.core.attention import zero_if_minus_inf
from omniset.core.states import wide
from omniset.kernels import blocks, tiles
from omniset.kernels.fused import derived
from omniset.kernels.pages import empty
from omniset.kernels.team import backward_in_one_thread, by_set, pieces, share_out, slots
from omniset.kernels.tiles import Elements, centred

LITTLE = 1 << 21  # numbers of elements, times points: less takes one thread less time than another takes to wake up
MODERATE = 50.0  # exp(-50) and sums of many exp(50) are well within float32


class Gather(torch.autograd.Function):
    """(peak, c, t) of the points u = `folded` (1, P, D), less their means, which all sets share, with a = `offset`.

    Shapes: x (B, N, D), log_m (B, N) or None; offset (1, P, 1); peak (B, P, 1), or given; in float64 c (B, P, 1) and
    t (B, P, D).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, log_m: Tensor | None, folded: Tensor, offset: Tensor, peak: Tensor | None, eps: float
    ):
        x, log_m = x.contiguous(), None if log_m is None else log_m.contiguous()
        rows = folded[0]
        # exp(u . z + a - peak) with peak = top + a never needs a; gradient (4) still does.
        known = peak is not None or _moderate(rows, log_m)
        start = folded.new_full((len(x), folded.shape[1], 1), 0 if known else -torch.inf)
        start = start if peak is None else peak.to(folded.dtype) - offset
        work = _in_blocks if blocks.takes(x) else _in_tiles
        top, weight, total = work(Elements(x, log_m, eps), rows, start, known)
        if len(top) > len(x):  # a set in several pieces
            tops, weights, totals = (by_set(some, len(x)) for some in (top, weight, total))
            top = tops.amax(1)
            if not known:
                factor = torch.exp(wide(tops) - wide(zero_if_minus_inf(top))[:, None])
                weights, totals = weights * factor, totals * factor
            weight, total = weights.sum(1), totals.sum(1)
        total -= total.mean(-1, True)
        ctx.save_for_backward(x, log_m, folded, offset, top)
        ctx.eps, ctx.numbers = eps, total.numel()
        peak = top + offset
        ctx.mark_non_differentiable(peak)
        return peak, weight, total

    @staticmethod
    def plain(
        peak: Tensor, eps: float, x: Tensor, log_m: Tensor | None, folded: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The sums c and t by plain operations."""
        z = F.layer_norm(x.to(folded.dtype), x.shape[-1:], eps=eps)
        s = folded @ z.mT + offset - zero_if_minus_inf(peak)
        w = wide(torch.exp(s if log_m is None else s + log_m[:, None]))
        return w.sum(-1, True), w @ wide(z)

    @staticmethod
    @backward_in_one_thread
    def backward(ctx: Any, _: Any, d_weight: Tensor, d_total: Tensor):
        x, log_m, folded, offset, top = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            plain = partial(Gather.plain, (top + offset).detach(), ctx.eps)
            gradients = derived(plain, (x, log_m, folded, offset), (d_weight, d_total))
            return *gradients, None, None
        dtype, rows = folded.dtype, folded[0]
        d_x = empty(x.shape, x) if ctx.needs_input_grad[0] else None
        d_log_m = torch.empty_like(log_m) if log_m is not None and ctx.needs_input_grad[1] else None
        upstream = d_weight.to(dtype), centred(d_total.to(dtype))
        work = _in_blocks_backward if blocks.takes(x) else _in_tiles_backward
        sums = work(Elements(x, log_m, ctx.eps), rows, top, upstream, (d_x, d_log_m))
        d_rows, d_offset = (some.sum(0) for some in sums)
        return d_x, d_log_m, d_rows.to(dtype)[None], d_offset.to(dtype)[None, :, None], None, None


def _in_blocks(elements: Elements, rows: Tensor, top: Tensor, known: bool) -> tuple[Tensor, Tensor, Tensor]:
    """top, c and t of each slot."""
    x, log_m, eps = elements
    parts, (points, dim) = pieces(x), rows.shape
    number = slots(parts)
    tops = top if number == len(x) else top.repeat_interleave(number // max(len(x), 1), 0)
    weights, totals = (torch.zeros((number, points, size), dtype=torch.float64) for size in (1, dim))
    arrays = [*blocks.contiguous(x, log_m, rows), tops, weights, totals]
    blocks.run("gather", x.dtype, arrays, (x.shape[1], dim, points, known), (eps,), parts, x.numel() * points < LITTLE)
    return tops, weights, totals


def _in_tiles(elements: Elements, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    sums = share_out(pieces(elements.x), partial(tiles.gather, elements, *arguments))
    tops, weights, totals = (torch.cat(some) for some in zip(*sums, strict=True))
    return tops, weights, totals


def _in_blocks_backward(
    elements: Elements, rows: Tensor, top: Tensor, upstream: Sequence[Tensor], into: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """d(u) and d(a) of each piece."""
    (x, log_m, eps), d_total = elements, upstream[1]
    parts, (points, dim) = pieces(x), rows.shape
    d_rows, d_offset = (torch.zeros((len(parts), points, *more), dtype=torch.float64) for more in ((dim,), ()))
    after = torch.cat((d_total.mT, rows.mT.expand(len(x), -1, -1)), 2)
    arrays = [*blocks.contiguous(x, log_m, rows, top, *upstream, after), *into, d_rows, d_offset]
    blocks.run(
        "gather_backward", x.dtype, arrays, (x.shape[1], dim, points), (eps,), parts, x.numel() * points < LITTLE
    )
    return d_rows, d_offset


def _in_tiles_backward(elements: Elements, *arguments: Any) -> tuple[Tensor, Tensor]:
    sums = share_out(pieces(elements.x), partial(tiles.gather_backward, elements, *arguments))
    d_rows, d_offset = (torch.stack(some) for some in zip(*sums, strict=True))
    return d_rows, d_offset


def _moderate(points: Tensor, log_m: Tensor | None) -> bool:
    """Whether no score can be so large or small that its exponential would have to be measured against a peak.

    A normalised element is no longer than sqrt(D), so that its product with a point is bounded by the point's length.
    """
    bound = points.norm(dim=-1).amax() * points.shape[-1] ** 0.5 if points.numel() else 0.0
    if log_m is not None and log_m.numel():
        bound = bound + log_m.masked_fill(log_m == -torch.inf, 0).abs().amax()
    return bool(bound <= MODERATE)
