"""The weights of a block folded into its few points, with the gradients written out.

By autograd these are some forty small steps with as many of their own in the backward pass, which take longer than the
elements of a small set do. With H heads of width d = D / H, points p are folded in three ways. A and a are weight and
bias of the points' projection, B and b of the elements', r and s of the elements' norm; a subscript h stands for the
rows of a head:

    scores    q = scale (A LN(p) + a)           u_h = centred((B_h^T q_h) r)        o_h = q_h . (B s + b)_h
    values    v = V LN(p) + v_0                 O_h v_h + o_0 / H                   O: output projection, h: its columns
    average   V_h (t r) + c (V s + v_0)_h       of the sums c and t of z            V: projection of the values

The score of an element z (normalised, without weights) is u . z + o; the numbers of z sum to 0, so that u may be
centred. Tensors of points of B sets lie heads outermost, (H, B P, ...), where they are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from omniset.kernels.fused import derived
from omniset.kernels.team import backward_in_one_thread


class Scores(NamedTuple):
    """How points are scored: weight and bias of the points' projection, of the elements', and of the elements' norm."""

    own: Tensor
    own_bias: Tensor
    far: Tensor
    far_bias: Tensor
    norm: Tensor
    norm_bias: Tensor


class Folded(torch.autograd.Function):
    """u (B, H P, D) and o (B, H P, 1) of points (B, P, D), less the norm's eps; and values V (B, H P, D), which
    elements that attend to points need of them, where `weights` begin with weight and bias of the projection of values
    and of the output. The last six are Scores; w and b are of the points' norm.
    """

    @staticmethod
    def forward(ctx: Any, heads: int, scale: float, eps: float, points: Tensor, w: Tensor, b: Tensor, *weights: Tensor):
        folded, kept = Folded.computed(heads, scale, eps, points, w, b, *weights)
        ctx.save_for_backward(points, w, b, *weights, *kept)
        ctx.how, ctx.numbers, ctx.number = (heads, scale, eps), kept[4].numel(), 3 + len(weights)
        return folded

    @staticmethod
    def plain(*arguments: Any) -> tuple[Tensor, ...]:
        return Folded.computed(*arguments)[0]

    @staticmethod
    def computed(
        heads: int, scale: float, eps: float, points: Tensor, w: Tensor, b: Tensor, *weights: Tensor
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """What is folded, and what the gradient needs."""
        y, mean, deviation = torch.native_layer_norm(points, points.shape[-1:], w, b, eps)
        *of_values, q, turned, bias = *weights[:-6], *_scored(y, Scores(*weights[-6:]), heads, scale)
        folded: tuple[Tensor, ...] = _folded(q, turned, bias, weights[-2], len(points))
        kept = [y, mean, deviation, q, turned, bias]
        if of_values:
            value, value_bias, output, output_bias = of_values
            kept.append(_split(F.linear(y, value, value_bias), heads))  # (H, B P, d)
            values = torch.bmm(kept[-1], _by_columns(output, heads)) + output_bias / heads
            folded = *folded, _by_sets(values, len(points))
        return folded, kept

    @staticmethod
    @backward_in_one_thread
    def backward(ctx: Any, *upstream: Tensor):
        saved = ctx.saved_tensors  # under torch.utils.checkpoint they can be asked for only once
        inputs, kept = saved[: ctx.number], saved[ctx.number :]
        if torch.is_grad_enabled():  # a second derivative is wanted
            return None, None, None, *derived(partial(Folded.plain, *ctx.how), inputs, upstream)
        (points, w, b, *weights), (y, mean, deviation, q, turned, bias, *v) = inputs, kept
        heads, scale, _ = ctx.how
        of_values: list[Tensor] = []
        between, scores = (y, q, turned, bias), Scores(*weights[-6:])
        d_y, d_weights = _scored_backward(upstream[0], upstream[1], between, scores, heads, scale)
        if v:
            value, _, output, _ = weights[:-6]
            d = _by_heads(upstream[2], heads)  # (H, B P, D)
            d_output = torch.bmm(d.mT, v[0]).transpose(0, 1).reshape(output.shape)
            d_v = _joined(torch.bmm(d, _by_columns(output, heads).mT))
            d_y = torch.addmm(d_y, d_v, value)
            of_values = [d_v.mT @ y.flatten(0, 1), d_v.sum(0), d_output, d.sum((0, 1)) / heads]
        d_points = _norm_backward(d_y.view(points.shape), points, mean, deviation, w, b)
        return None, None, None, *d_points, *of_values, *d_weights


class Average(torch.autograd.Function):
    """The weighted sums of the values, (B, H, P, d), from c (B, H P, 1) and t (B, H P, D), in the precision of these.

    What follows an attention state is in float64, as sums of many elements are.
    """

    @staticmethod
    def forward(ctx: Any, heads: int, c: Tensor, t: Tensor, value: Tensor, bias: Tensor, norm: Tensor, shift: Tensor):
        ctx.save_for_backward(c, t, value, bias, norm, shift)
        ctx.heads, ctx.numbers = heads, t.numel()
        return Average.plain(heads, c, t, value, bias, norm, shift)[0]

    @staticmethod
    def plain(heads: int, c: Tensor, t: Tensor, value: Tensor, bias: Tensor, norm: Tensor, shift: Tensor):
        constant = torch.addmv(bias, value, shift).to(t).view(heads, 1, -1)
        c_heads, t_heads, rows = _by_heads(c, heads), _by_heads(t, heads), value.to(t).view(heads, -1, value.shape[1])
        average = torch.baddbmm(c_heads * constant, t_heads * norm, rows.mT)
        return (average.view(heads, len(t), t.shape[1] // heads, average.shape[-1]).transpose(0, 1),)

    @staticmethod
    @backward_in_one_thread
    def backward(ctx: Any, d: Tensor):
        c, t, value, bias, norm, shift = ctx.saved_tensors
        heads = ctx.heads
        if torch.is_grad_enabled():  # a second derivative is wanted
            return None, *derived(partial(Average.plain, heads), (c, t, value, bias, norm, shift), (d,))
        d = d.transpose(0, 1).flatten(1, 2)
        c_heads, t_heads, rows = _by_heads(c, heads), _by_heads(t, heads), value.to(t).view(heads, -1, value.shape[1])
        constant = torch.addmv(bias, value, shift).to(t).view(heads, -1, 1)
        d_constant = torch.bmm(d.mT, c_heads).flatten()
        turned = torch.bmm(d, rows)  # (H, B P, D)
        d_value = torch.bmm(d.mT, t_heads * norm).view(value.shape) + d_constant[:, None] * shift
        d_c, d_t = _by_sets(torch.bmm(d, constant), len(t)), _by_sets(turned * norm, len(t))
        d_norm = (turned * t_heads).sum((0, 1)).to(norm)
        d_shift = torch.mv(value.mT, d_constant.to(value))
        return None, d_c, d_t, d_value.to(value), d_constant.to(bias), d_norm, d_shift


def _norm_backward(
    d: Tensor, x: Tensor, mean: Tensor, deviation: Tensor, w: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias of torch.native_layer_norm, whose mean and 1/deviation are given."""
    z, g = (x - mean) * deviation, d * w
    d_x = (g - g.mean(-1, True) - z * (g * z).mean(-1, True)) * deviation
    return d_x, (d * z).flatten(0, -2).sum(0), d.flatten(0, -2).sum(0)


def _scored(y: Tensor, weights: Scores, heads: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """The projected points q (H, B P, d), B^T q without the norm's weight (H, B P, D), and B s + b."""
    q = _split(F.linear(y, weights.own, weights.own_bias), heads) * scale
    bias = torch.addmv(weights.far_bias, weights.far, weights.norm_bias)
    return q, torch.bmm(q, weights.far.view(heads, -1, weights.far.shape[1])), bias


def _folded(q: Tensor, turned: Tensor, bias: Tensor, norm: Tensor, sets: int) -> tuple[Tensor, Tensor]:
    folded, offset = turned * norm, torch.bmm(q, bias.view(len(q), -1, 1))
    return _by_sets(folded - folded.mean(-1, True), sets), _by_sets(offset, sets)


def _scored_backward(
    d_folded: Tensor, d_offset: Tensor, between: Sequence[Tensor], weights: Scores, heads: int, scale: float
) -> tuple[Tensor, list[Tensor]]:
    """d(LN(p)) (B P, D) and the gradients of the weights, given LN(p) and what `_scored` made of it."""
    y, q, turned, bias = between
    g, o = _by_heads(d_folded - d_folded.mean(-1, True), heads), _by_heads(d_offset, heads)
    far = weights.far.view(heads, -1, weights.far.shape[1])
    d_turned = g * weights.norm
    d_bias = torch.bmm(q.mT, o)  # (H, d, 1)
    d_q = _joined(torch.baddbmm(o * bias.view(heads, 1, -1), d_turned, far.mT)) * scale
    d_far = torch.baddbmm(d_bias * weights.norm_bias, q.mT, d_turned).view(weights.far.shape)
    d_bias = d_bias.flatten()
    d_norm, d_norm_bias = (g * turned).sum((0, 1)), torch.mv(weights.far.mT, d_bias)
    d_own = d_q.mT @ y.flatten(0, 1)
    return d_q @ weights.own, [d_own, d_q.sum(0), d_far, d_bias, d_norm, d_norm_bias]


def _by_columns(output: Tensor, heads: int) -> Tensor:
    """(D, D) to (H, d, D): of each head the columns, turned."""
    return output.mT.view(heads, -1, output.shape[0])


def _split(x: Tensor, heads: int) -> Tensor:
    """(B, P, D) to (H, B P, d)."""
    return x.flatten(0, 1).unflatten(-1, (heads, -1)).transpose(0, 1)


def _joined(x: Tensor) -> Tensor:
    """(H, B P, d) to (B P, D)."""
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def _by_sets(x: Tensor, sets: int) -> Tensor:
    """(H, B P, n) to (B, H P, n)."""
    if sets == 1:
        return x.reshape(1, -1, x.shape[-1])
    return x.view(len(x), sets, x.shape[1] // max(sets, 1), x.shape[-1]).transpose(0, 1).flatten(1, 2)


def _by_heads(x: Tensor, heads: int) -> Tensor:
    """(B, H P, n) to (H, B P, n)."""
    if len(x) == 1:
        return x.view(heads, -1, x.shape[-1])
    return x.view(len(x), heads, x.shape[1] // heads, x.shape[-1]).transpose(0, 1).flatten(1, 2)
