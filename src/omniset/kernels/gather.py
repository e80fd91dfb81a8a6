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

where means are over the D numbers of a row; (7) is the backward of LayerNorm without weights. Elements come in tiles:
all of this is sums over n, or of one n alone.

The numbers of z_n sum to 0. So products with z_n are the same with u_p less its mean, and t_p and d(u_p) have no mean.
Where the means of rows are small, then, z_n need not be centred itself: it meets only what is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from omniset.core.attention import zero_if_minus_inf
from omniset.core.states import wide
from omniset.kernels import private
from omniset.kernels.derived import derived
from omniset.kernels.pages import empty
from omniset.kernels.products import batched, linear
from omniset.kernels.tiles import Moments, buffer_for_backward, centred, narrow, normalised, scaled, tiles, workspace

MODERATE = 50.0  # exp(-50) and sums of many exp(50) are well within float32


class Gather(torch.autograd.Function):
    """(peak, c, t) of the points u = `folded` (1, P, D), which all sets share, with a = `offset`.

    Shapes: x (B, N, D), log_m (B, N) or None; offset (1, P, 1); peak (B, P, 1), or given; in float64 c (B, P, 1) and
    t (B, P, D).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, log_m: Tensor | None, folded: Tensor, offset: Tensor, peak: Tensor | None, eps: float
    ):
        sets, points, dim = x.shape[0], folded.shape[1], x.shape[2]
        dtype, low, work = folded.dtype, narrow(x.dtype), workspace(folded)
        rows, done = centred(folded), []
        weight, total = (wide(folded.new_zeros((sets, points, size))) for size in (1, dim))
        moments = Moments(ctx, folded, x)
        # exp(u . z + a - peak) with peak = top + a never needs a; gradient (4) still does.
        known = peak is not None or moderate(rows, log_m)
        start = 0 if known else -torch.inf
        top = folded.new_full((sets, points, 1), start) if peak is None else peak.to(folded.dtype) - offset
        shifted = bool(top.any())
        kept_weights = buffer_for_backward(ctx, folded, low, sets, points, x.shape[1]) if known else None
        for b, n in tiles(x):
            tile = work.cast("tile", x[b, n], dtype)
            z, far = normalised(tile, eps, moments(b, n), work("z", *tile.shape))
            done.append((b, n, far))
            z = work.cast("low z", z, low)
            w = work.cast(
                "w", _products(rows.to(low), z, work("low w", z.shape[0] * points, z.shape[1], dtype=low)), dtype
            )
            if log_m is not None:
                w += log_m[b, None, n]
            if not known:
                here = torch.maximum(top[b], w.amax(-1, True))
                factor = torch.exp(wide(top[b]) - wide(zero_if_minus_inf(here)))
                weight[b] *= factor
                total[b] *= factor
                top[b] = here
            if shifted:
                w -= zero_if_minus_inf(top[b])
            w.exp_()
            weight[b] += w.sum(-1, True)
            total[b] += batched(work.cast("low w", w, low), z.mT)
            if kept_weights is not None:
                kept_weights[b, :, n] = w
        total -= total.mean(-1, True)
        ctx.save_for_backward(x, log_m, folded, offset, top, moments.all, kept_weights)
        ctx.eps, ctx.tiles = eps, done
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
    def backward(ctx: Any, _: Any, d_weight: Tensor, d_total: Tensor):
        x, log_m, folded, offset, top, moments, kept_weights = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            plain = partial(Gather.plain, (top + offset).detach(), ctx.eps)
            gradients = derived(plain, (x, log_m, folded, offset), (d_weight, d_total))
            return *gradients, None, None
        d_x = empty(x.shape, x) if ctx.needs_input_grad[0] else None
        d_log_m = None if log_m is None or not ctx.needs_input_grad[1] else torch.empty_like(log_m)
        d_folded, d_offset = (wide(torch.zeros_like(v)) for v in (folded, offset))
        d_weight, d_total = d_weight.to(folded.dtype), centred(d_total.to(folded.dtype))
        points, rows = folded.shape[1], centred(folded).expand(x.shape[0], -1, -1)
        # The scores of (2) and the products of (1), both with z^T, are one product; so are the two of (6).
        before = torch.cat((rows, d_total), 1) if kept_weights is None else d_total
        after = torch.cat((d_total, rows), 1)
        dtype, low, work = folded.dtype, narrow(x.dtype), workspace(folded)
        before, after, shifted = before.to(low), after.to(low), bool(top.any())
        for b, n, far in ctx.tiles:
            tile = work.cast("tile", x[b, n], dtype)
            z = work.cast("low z", scaled(tile, moments[:, b, n], far, work("z", *tile.shape)), low)
            both = batched(before[b], z, work("low both", z.shape[0], before.shape[1], z.shape[1], dtype=low))
            if kept_weights is None:
                both = work.cast("both", both, dtype)
            else:
                both = torch.cat((kept_weights[b, :, n], both), 1, out=work("both", z.shape[0], 2 * points, z.shape[1]))
            w, d_s = both[:, :points], both[:, points:]  # d_s is d(t) . z so far
            if kept_weights is None:
                if log_m is not None:
                    w += log_m[b, None, n]
                if shifted:
                    w -= zero_if_minus_inf(top[b])
                w.exp_()
            d_s.add_(d_weight[b]).mul_(w)  # (1), (2)
            if d_log_m is not None:
                d_log_m[b, n] = d_s.sum(1)  # (3)
            low_both = work.cast("low both", both, low)
            d_folded[0] += batched(low_both[:, points:], z.mT).sum(0)  # (5); all sets share the points
            d_offset[0] += d_s.sum((0, 2))[:, None]  # (4)
            if d_x is not None:
                d_z = work.cast("z", batched(low_both.mT, after[b].mT, z), dtype)  # (6)
                d_x[b, n] = private.normalised_backward(d_z, tile, *moments[:, b, n].unbind())  # (7)
        return d_x, d_log_m, centred(d_folded).to(folded.dtype), d_offset.to(folded.dtype), None, None


def _products(points: Tensor, z: Tensor, out: Tensor) -> Tensor:
    """(sets, points, elements) of points (1, P, D) that all sets share: one product for all sets of a tile."""
    sets, elements, _ = z.shape
    product = linear(points[0], z.flatten(0, 1), out=out.view(-1, sets * elements))
    return product.view(-1, sets, elements).transpose(0, 1)


def moderate(points: Tensor, log_m: Tensor | None) -> bool:
    """Whether no score can be so large or small that its exponential would have to be measured against a peak.

    A normalised element is no longer than sqrt(D), so that its product with a point is bounded by the point's length.
    """
    bound = points.norm(dim=-1).amax() * points.shape[-1] ** 0.5 if points.numel() else 0.0
    if log_m is not None and log_m.numel():
        bound = bound + log_m.masked_fill(log_m == -torch.inf, 0).abs().amax()
    return bool(bound <= MODERATE)
