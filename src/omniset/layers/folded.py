"""Induced attention without keys or values of the elements: weights folded into the few points, elements in tiles.

With k points, h heads and n elements of width d, a score is a product of two projections of which one can move over to
the points: (W_q p) . (W_k x) = (W_k^T W_q p) . x. What the points attend to is then the elements themselves, and the
weighted sum of the elements is projected once, not each element. LayerNorm's affine part moves over in the same way,
so that x stands here for the element less its mean, over its deviation. Two functions of x remain, each with the
gradient written out, each in tiles that stay in the processor's cache, and neither keeps anything of the size of the
set but its input:

    gather   S = U x^T,  w = m exp(S - peak),  sums w and w x
    spread   P = softmax over k of (K x^T + c),  y = x0 + P^T V,  out = y + W_2 act(W_1 LN(y) + b_1) + b_2

Scores lie with the elements innermost, (points, elements), as a softmax over a handful of neighbours in memory is slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from omniset.attention import AttentionState, log_multiplicity

if TYPE_CHECKING:
    from omniset.layers.universal import MultisetAttentionBlock

TILE = 1 << 18  # numbers of a tile of elements: 1 MiB in float32
Rows = tuple[slice, slice]


def form(block: Any, queries: Tensor, elements: Tensor, multiplicity: Tensor | None) -> str | None:
    """"gather" or "spread" where the folded form applies and costs fewer products than the plain one, else None.

    With P points, H heads and width D, both forms of either half come to 4 N P D (folded: 4 N H P D) for scores and
    averages, and the plain one to 4 N D^2 for the projections of elements: folding pays where P (H - 1) < D.
    """
    spreads = queries.shape[1] > elements.shape[1]
    points = elements.shape[1] if spreads else queries.shape[1]
    if spreads:
        fits = multiplicity is None and len(queries) == len(elements) and points > 0
    else:
        fits = len(queries) == 1
    if not fits or points * (block.num_heads - 1) >= queries.shape[2] or not block.foldable:
        return None
    if block.gate is not None or queries.dtype not in (torch.float32, torch.float64):
        return None
    if torch.is_autocast_enabled(queries.device.type) or torch.compiler.is_compiling():
        return None
    # torch.func's transforms go through plain operations only.
    if torch._C._are_functorch_transforms_active():
        return None
    return "spread" if spreads else "gather"


def gather(
    block: MultisetAttentionBlock,
    queries: Tensor,
    elements: Tensor,
    multiplicity: Tensor | None,
    peak: Tensor | None = None,
) -> AttentionState:
    """As `AttentionBlock.reduce`, for queries (1, Q, D) that all sets share."""
    heads, norm = block.num_heads, block.norm_elements
    q = block.query(block.norm_queries(queries)).unflatten(-1, (heads, -1)).transpose(1, 2) * block.scale
    key, value = block.key, block.value
    folded = torch.einsum("bhqc,hcd->bhqd", q, (key.weight * norm.weight).unflatten(0, (heads, -1)))
    offset = torch.einsum("bhqc,hc->bhq", q, key(norm.bias).unflatten(0, (heads, -1)))[..., None]
    given = None if peak is None else (peak - offset.detach().to(peak.dtype)).flatten(1, 2)
    log_m = None if multiplicity is None else log_multiplicity(multiplicity, elements.dtype)
    top, weight, total = Gather.apply(elements, log_m, folded.flatten(1, 2), given, norm.eps)
    top, weight, total = (v.unflatten(1, (heads, -1)) for v in (top, weight, total))
    # All scores of a query have the same offset: it cancels, but belongs to the state, as its gradient does.
    once = torch.exp(offset - offset.detach()).to(weight)
    weight, total = weight * once, total * once
    w_v = (value.weight * norm.weight).unflatten(0, (heads, -1)).to(total)
    b_v = value(norm.bias).unflatten(0, (heads, -1)).to(total)
    average = torch.einsum("bhqd,hcd->bhqc", total, w_v) + weight * b_v[:, None]
    return AttentionState(top + offset.detach() if peak is None else peak, (weight, average))


def spread(block: MultisetAttentionBlock, queries: Tensor, elements: Tensor) -> Tensor:
    """As `AttentionBlock.forward`, for few elements (B, P, D) without multiplicities."""
    heads, norm = block.num_heads, block.norm_queries
    y = block.norm_elements(elements)
    k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (block.key(y) * block.scale, block.value(y)))
    keys = torch.einsum("bhpc,hcd->bhpd", k, (block.query.weight * norm.weight).unflatten(0, (heads, -1)))
    offset = torch.einsum("bhpc,hc->bhp", k, block.query(norm.bias).unflatten(0, (heads, -1)))[..., None]
    # The weights of a head sum to 1, so that every head's values can carry a share of the bias.
    values = torch.einsum("bhpc,dhc->bhpd", v, block.output.weight.unflatten(1, (heads, -1)))
    values = values + block.output.bias / heads
    ffn: tuple[Any, ...] = (None, None, None, None)
    if block.ffn is not None:
        first, _, second, _ = block.ffn
        ffn = (first.weight * block.norm_ffn.weight, first(block.norm_ffn.bias), second.weight, second.bias)
    keys, offset, values = (x.flatten(1, 2) for x in (keys, offset, values))
    return Spread.apply(queries, keys, offset, values, heads, block.activation, norm.eps, *ffn)


def tiles(x: Tensor) -> Iterator[Rows]:
    """Sets and elements of tiles of at most TILE numbers: several small sets together, or a part of one."""
    sets, elements, dim = x.shape
    rows = max(TILE // dim, 64)
    step = max(rows // max(elements, 1), 1)
    for first in range(0, sets, step):
        for start in range(0, elements, rows):
            yield slice(first, first + step), slice(start, start + rows)


def normalised(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return torch.native_layer_norm(x, x.shape[-1:], None, None, eps)


def normalised_backward(d: Tensor, x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return torch.ops.aten.native_layer_norm_backward(
        d, x, x.shape[-1:], mean, deviation, None, None, [True, False, False]
    )[0]


class Gather(torch.autograd.Function):
    """(peak, sums of w, sums of w x) of the points `folded` (1, P, D), in float64.

    Shapes: x (B, N, D), log_m (B, N) or None; peak (B, P, 1), or given; sums (B, P, 1) and (B, P, D).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, log_m: Tensor | None, folded: Tensor, peak: Tensor | None, eps: float):
        sets, points, dim = len(x), folded.shape[1], x.shape[2]
        given = peak is not None
        top = peak if given else x.new_full((sets, points, 1), -torch.inf)
        weight = x.new_zeros((sets, points, 1), dtype=torch.float64)
        total = x.new_zeros((sets, points, dim), dtype=torch.float64)
        for b, n in tiles(x):
            z = normalised(x[b, n], eps)[0]
            s = scores(folded, z)
            if log_m is not None:
                s += log_m[b, None, n]
            if given:
                here = top[b]
            else:
                here = torch.maximum(top[b], s.amax(-1, True))
                factor = torch.exp((top[b] - safe(here)).double())
                weight[b] *= factor
                total[b] *= factor
                top[b] = here
            w = s.sub_(safe(here)).exp_()
            weight[b] += w.sum(-1, True)
            total[b] += torch.bmm(w, z)
        ctx.save_for_backward(x, log_m, folded, top)
        ctx.eps = eps
        ctx.mark_non_differentiable(top)
        return top, weight, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Any, d_weight: Tensor, d_total: Tensor):
        x, log_m, folded, top = ctx.saved_tensors
        eps = ctx.eps
        d_x = torch.empty_like(x)
        d_log_m = None if log_m is None or not ctx.needs_input_grad[1] else torch.empty_like(log_m)
        d_folded = torch.zeros_like(folded, dtype=torch.float64)
        d_weight, d_total = d_weight.to(x.dtype), d_total.to(x.dtype)
        for b, n in tiles(x):
            tile = x[b, n]
            z, mean, deviation = normalised(tile, eps)
            s = scores(folded, z)
            if log_m is not None:
                s += log_m[b, None, n]
            w = s.sub_(safe(top[b])).exp_()
            d_s = torch.baddbmm(d_weight[b].expand(-1, -1, z.shape[1]), d_total[b], z.mT).mul_(w)
            if d_log_m is not None:
                d_log_m[b, n] = d_s.sum(1)
            d_z = torch.bmm(w.mT, d_total[b])
            if len(tile) == 1:
                d_z[0].addmm_(d_s[0].mT, folded[0])
                d_folded[0] += d_s[0] @ z[0]
            else:
                d_z.baddbmm_(d_s.mT, folded.expand(len(tile), -1, -1))
                d_folded[0] += torch.bmm(d_s, z).sum(0)
            d_x[b, n] = normalised_backward(d_z, tile, mean, deviation)
        return d_x, d_log_m, d_folded.to(folded.dtype), None, None


class Spread(torch.autograd.Function):
    """Elements attend to the points' context, and through the FFN.

    Shapes: x (B, N, D); keys, values (B, H k, D), offset (B, H k, 1); w1 (F, D), b1 (F,), w2 (D, F), b2 (D,) or None.
    """

    @staticmethod
    def forward(ctx: Any, x, keys, offset, values, heads: int, activation: str, eps: float, w1, b1, w2, b2):
        out = torch.empty_like(x)
        for b, n in tiles(x):
            tile = x[b, n]
            z = normalised(tile, eps)[0]
            p = weights(keys[b], offset[b], z, heads)
            y = torch.baddbmm(tile, p.mT, values[b])
            if w1 is not None:
                hidden = ACTIVATIONS[activation][0](torch.addmm(b1, normalised(y, eps)[0].flatten(0, 1), w1.mT))
                y.flatten(0, 1).addmm_(hidden, w2.mT).add_(b2)
            out[b, n] = y
        ctx.save_for_backward(x, keys, offset, values, w1, b1, w2)
        ctx.heads, ctx.activation, ctx.eps = heads, activation, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor):
        x, keys, offset, values, w1, b1, w2 = ctx.saved_tensors
        eps = ctx.eps
        d_x = torch.empty_like(x)
        d_keys, d_offset, d_values = (torch.zeros_like(v, dtype=torch.float64) for v in (keys, offset, values))
        d_ffn = None if w1 is None else [torch.zeros_like(v, dtype=torch.float64) for v in (w1, b1, w2, w2[:, 0])]
        act, act_backward = ACTIVATIONS[ctx.activation]
        for b, n in tiles(x):
            tile, d_y = x[b, n], d_out[b, n]
            z, mean, deviation = normalised(tile, eps)
            p = weights(keys[b], offset[b], z, ctx.heads)
            if d_ffn is not None:
                y = torch.baddbmm(tile, p.mT, values[b])
                u, mean_y, deviation_y = normalised(y, eps)
                u, flat = u.flatten(0, 1), d_y.flatten(0, 1)
                before = torch.addmm(b1, u, w1.mT)
                hidden = act(before)
                d_hidden = act_backward(flat @ w2, before)
                for total, part in zip(
                    d_ffn, (d_hidden.mT @ u, d_hidden.sum(0), flat.mT @ hidden, flat.sum(0)), strict=True
                ):
                    total += part
                d_u = (d_hidden @ w1).view_as(y)
                d_y = d_y + normalised_backward(d_u, y, mean_y, deviation_y)
            d_values[b] += torch.bmm(p, d_y)
            d_p = torch.bmm(values[b], d_y.mT)
            p4, d4 = (v.unflatten(1, (ctx.heads, -1)) for v in (p, d_p))
            d_s = torch._softmax_backward_data(d4, p4, 2, p.dtype).flatten(1, 2)
            d_keys[b] += torch.bmm(d_s, z)
            d_offset[b] += d_s.sum(-1, True)
            d_z = torch.bmm(d_s.mT, keys[b])
            torch.add(d_y, normalised_backward(d_z, tile, mean, deviation), out=d_x[b, n])
        grads = [None] * 4 if d_ffn is None else [g.to(x.dtype) for g in d_ffn]
        return d_x, d_keys.to(x.dtype), d_offset.to(x.dtype), d_values.to(x.dtype), None, None, None, *grads


def scores(folded: Tensor, z: Tensor) -> Tensor:
    return torch.matmul(folded, z.mT) if len(z) > 1 else (folded[0] @ z[0].mT)[None]


def weights(keys: Tensor, offset: Tensor, z: Tensor, heads: int) -> Tensor:
    s = torch.baddbmm(offset.expand(-1, -1, z.shape[1]), keys, z.mT)
    return torch.softmax(s.unflatten(1, (heads, -1)), 2).flatten(1, 2)


def safe(peak: Tensor) -> Tensor:
    return torch.where(peak == -torch.inf, 0, peak)


ACTIVATIONS: dict[str, Any] = {
    "relu": (torch.relu_, lambda d, before: d.mul_(before > 0)),
    "gelu": (torch.nn.functional.gelu, torch.ops.aten.gelu_backward),
    "silu": (torch.nn.functional.silu, torch.ops.aten.silu_backward),
}
