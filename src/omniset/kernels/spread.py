"""Elements attend to a few points, then the feed-forward network (FFN): output and gradient, both written out.

With z_n for element x_n normalised, (x_n - mean) / deviation, k_p, a_p and v_p for the key of point p, the offset of
its scores and its value, all weights folded into them, each of the P points belonging to a head,

    s_pn = k_p . z_n + a_p                  softmax over the points of a head:  w_pn = exp(s_pn) / sum of exp(s_qn)
    y_n = x_n + sum over p of w_pn v_p      of all heads
    u_n = y_n normalised                    h_n = W_1 u_n + b_1
    out_n = y_n + W_2 act(h_n) + b_2

From d(out) to the gradients of what went in, first of the FFN,

    (1)  d(W_2) = sum over n of d(out_n) act(h_n)^T,    d(b_2) = sum over n of d(out_n)
    (2)  d(h_n) = act'(h_n) times W_2^T d(out_n)
    (3)  d(W_1) = sum over n of d(h_n) u_n^T,           d(b_1) = sum over n of d(h_n)
    (4)  d(u_n) = W_1^T d(h_n)
    (5)  d(y_n) = d(out_n) + norm'(d(u_n))              y is in out itself, and in u

without an FFN d(y) = d(out); then of the attention,

    (6)  d(v_p) = sum over n of w_pn d(y_n)
    (7)  d(w_pn) = v_p . d(y_n)
    (8)  d(s_pn) = w_pn (d(w_pn) - sum over the points q of the head of w_qn d(w_qn))       softmax
    (9)  d(a_p) = sum over n of d(s_pn),                d(k_p) = sum over n of d(s_pn) z_n
    (10) d(z_n) = sum over p of d(s_pn) k_p
    (11) d(x_n) = d(y_n) + norm'(d(z_n))                x is in y itself, and in z

where norm'(d) = (d - mean of d - z times the mean of d z) / deviation is the backward of LayerNorm without weights.
Nothing of one element meets another but in the sums over n: threads take pieces, as in `gather`. As the numbers of z_n
and u_n sum to 0, k_p and the rows of W_1 stand here less their means.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omniset.kernels import blocks, tiles
from omniset.kernels.fused import derived
from omniset.kernels.pages import empty
from omniset.kernels.team import backward_in_one_thread, by_set, pieces, share_out, slots
from omniset.kernels.tiles import FFN, How, Points, centred

COMPILED = nn.ReLU, None  # activations that blocks have; None: no FFN


class Spread(torch.autograd.Function):
    """The output of elements x (B, N, D).

    Shapes: k = keys and v = values (B, P, D), a = offset (B, P, 1), heads side by side; w1 (F, D), b1 (F,), w2 (D, F),
    b2 (D,), or None.
    """

    @staticmethod
    def forward(ctx: Any, x, keys, offset, values, heads: int, activation: Any, eps: float, w1, b1, w2, b2):
        x = x.contiguous()
        out, ffn = empty(x.shape, x), None if w1 is None else (centred(w1), b1, w2, b2)
        work, how = _in_blocks if _compiled(x, activation) else _in_tiles, How(heads, activation, eps)
        work(x, Points(keys, offset, values), how, ffn, out)
        ctx.save_for_backward(x, keys, offset, values, w1, b1, w2, b2)
        ctx.how, ctx.numbers = how, keys.numel()
        return out

    @staticmethod
    def plain(heads: int, activation: Any, eps: float, x, keys, offset, values, w1, b1, w2, b2) -> tuple[Tensor]:
        """The output by plain operations."""
        tile = x.to(keys.dtype)
        s = keys @ F.layer_norm(tile, x.shape[-1:], eps=eps).mT + offset
        y = tile + s.unflatten(1, (heads, -1)).softmax(2).flatten(1, 2).mT @ values
        if w1 is not None:
            y = y + F.linear(activation()(F.linear(F.layer_norm(y, x.shape[-1:], eps=eps), w1, b1)), w2, b2)
        return (y.to(x.dtype),)

    @staticmethod
    @backward_in_one_thread
    def backward(ctx: Any, d_out: Tensor):
        x, keys, offset, values, w1, b1, w2, b2 = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            inputs = x, keys, offset, values, w1, b1, w2, b2
            gradients = derived(partial(Spread.plain, *ctx.how), inputs, (d_out,))
            return *gradients[:4], None, None, None, *gradients[4:]
        dtype, d_x = keys.dtype, empty(x.shape, x)
        ffn = None if w1 is None else (centred(w1), b1, w2, b2)
        work: Any = _in_blocks_backward if _compiled(x, ctx.how.activation) else _in_tiles_backward
        sums = work(x, d_out, Points(keys, offset, values), ctx.how, ffn, d_x)
        d_keys, d_offset, d_values = (by_set(some, len(x)).sum(1).to(dtype) for some in sums[:3])
        d_ffn = [some.sum(0).to(dtype) for some in sums[3:]]
        gradients = [centred(d_ffn[0]), *d_ffn[1:]] if d_ffn else [None] * 4
        return d_x, d_keys, d_offset, d_values, None, None, None, *gradients


def _compiled(x: Tensor, activation: Any) -> bool:
    return activation in COMPILED and blocks.takes(x)


def _in_blocks(x: Tensor, points: Points, how: How, ffn: FFN | None, out: Tensor) -> None:
    keys, offset, values = points
    arrays = blocks.contiguous(x, keys, offset, values.mT, *(ffn or [None] * 4), out)
    numbers = x.shape[1], x.shape[2], keys.shape[1], how.heads, 0 if ffn is None else len(ffn[0])
    blocks.run("spread", x.dtype, arrays, numbers, (how.eps,), pieces(x))


def _in_tiles(x: Tensor, *arguments: Any) -> None:
    share_out(pieces(x), partial(tiles.spread, x, *arguments))


def _in_blocks_backward(
    x: Tensor, d_out: Tensor, points: Points, how: How, ffn: FFN | None, d_x: Tensor
) -> list[Tensor]:
    """d(k), d(a) and d(v) of each slot; d(W_1), d(b_1), d(W_2) and d(b_2) of each piece."""
    keys, offset, values = points
    parts, (number, dim) = pieces(x), keys.shape[1:]
    shapes: list[tuple[int, ...]] = [(slots(parts), number, size) for size in (dim, 1, dim)]
    of_ffn: list[Tensor | None] = [None] * 4
    if ffn is not None:
        w1, b1, w2, b2 = ffn
        of_ffn = [w1, w1.mT, b1, w2.mT]
        shapes += [(len(parts), *v.shape) for v in (w1, b1, w2.mT, b2)]
    sums = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    weights = blocks.contiguous(keys, keys.mT, offset, values, values.mT, *of_ffn)
    width = 0 if ffn is None else len(ffn[0])
    # A gradient may be one number for all, as that of a sum is, which is nowhere written out.
    numbers = x.shape[1], dim, number, how.heads, width, *d_out.stride()
    arrays = [x, d_out, *weights, d_x, *sums, *[None] * (7 - len(sums))]
    blocks.run("spread_backward", x.dtype, arrays, numbers, (how.eps,), parts)
    return sums if ffn is None else [*sums[:5], sums[5].mT, sums[6]]


def _in_tiles_backward(x: Tensor, *arguments: Any) -> list[Tensor]:
    sums = share_out(pieces(x), partial(tiles.spread_backward, x, *arguments))
    of_sets, of_ffn = [*zip(*sums, strict=True)][:3], [*zip(*sums, strict=True)][3:]
    return [torch.cat(some) for some in of_sets] + [torch.stack(some) for some in of_ffn]
