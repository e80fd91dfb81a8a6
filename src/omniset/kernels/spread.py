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
Nothing of one element meets another but in the sums over n, so elements come in tiles. As the numbers of z_n and u_n
sum to 0, k_p and the rows of W_1 stand here less their means, as in `gather`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omniset.core.states import wide
from omniset.kernels import private
from omniset.kernels.derived import derived
from omniset.kernels.pages import empty
from omniset.kernels.products import add_linear, batched, faster_by_onednn, linear
from omniset.kernels.tiles import (
    Moments,
    Workspace,
    buffer_for_backward,
    centred,
    narrow,
    normalised,
    scaled,
    tiles,
    workspace,
)

Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
ACTIVATIONS: dict[type[nn.Module], Activation] = {  # and gradients, from their own gradient and what went in
    nn.ReLU: (torch.relu_, private.relu_backward),  # in place: what went in is positive where it was
    nn.GELU: (F.gelu, private.gelu_backward),
    nn.SiLU: (F.silu, private.silu_backward),
}


class Spread(torch.autograd.Function):
    """The output of elements x (B, N, D).

    Shapes: k = keys and v = values (B, P, D), a = offset (B, P, 1), heads side by side; w1 (F, D), b1 (F,), w2 (D, F),
    b2 (D,), or None.
    """

    @staticmethod
    def forward(ctx: Any, x, keys, offset, values, heads: int, activation: Any, eps: float, w1, b1, w2, b2):
        out, dtype, low, work = empty(x.shape, x), keys.dtype, narrow(x.dtype), workspace(keys)
        moments, moments_y = (Moments(ctx, keys, x) for _ in range(2))
        rows, low_values = centred(keys).to(low), values.to(low)
        kept_p = buffer_for_backward(ctx, keys, low, x.shape[0], keys.shape[1], x.shape[1])
        kept_hidden = None if w1 is None else buffer_for_backward(ctx, keys, low, *x.shape[:2], len(w1))
        kept_y = None if w1 is None else buffer_for_backward(ctx, keys, dtype, *x.shape)
        act, done = None if w1 is None else ACTIVATIONS[activation][0], []
        ffn: Any = [] if w1 is None else [v.to(low) for v in (centred(w1), b1, w2, b2)]
        for b, n in tiles(x):
            tile = work.cast("tile", x[b, n], dtype)
            z, far = normalised(tile, eps, moments(b, n), work("z", *tile.shape))
            z = work.cast("low z", z, low)
            p = work.cast("low p", _weights(rows[b], offset[b], z, heads, work), low)
            if kept_p is not None:
                kept_p[b, :, n] = p
            # What is made in `out` need not be copied there, but oneDNN makes it elsewhere.
            direct = x.dtype == dtype and (act is None or not faster_by_onednn(tile.flatten(0, 1), ffn[0]))
            into = out[b, n] if direct else work("y", *tile.shape)
            y = torch.add(tile, batched(p.mT, low_values[b].mT, z), out=into)
            far_y = False
            if act is not None:
                u, far_y = normalised(y, eps, moments_y(b, n), work("z", *tile.shape))
                if kept_y is not None:
                    kept_y[b, n] = y
                u = work.cast("low z", u, low).flatten(0, 1)
                hidden = linear(u, ffn[0], ffn[1], work("hidden", u.shape[0], ffn[0].shape[0], dtype=low))
                if kept_hidden is not None:
                    kept_hidden[b, n] = hidden.view(*tile.shape[:2], -1)
                y = add_linear(y.flatten(0, 1), act(hidden), ffn[2], ffn[3]).view_as(tile)
            done.append((b, n, far, far_y))
            if not direct:
                out[b, n] = y
        saved = x, keys, offset, values, moments.all, moments_y.all, kept_p, kept_hidden, kept_y
        ctx.save_for_backward(*saved, w1, b1, w2, b2)
        ctx.heads, ctx.activation, ctx.eps, ctx.tiles = heads, activation, eps, done
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
    def backward(ctx: Any, d_out: Tensor):
        x, keys, offset, values, moments, moments_y, kept_p, kept_hidden, kept_y, w1, b1, w2, b2 = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            plain = partial(Spread.plain, ctx.heads, ctx.activation, ctx.eps)
            gradients = derived(plain, (x, keys, offset, values, w1, b1, w2, b2), (d_out,))
            return *gradients[:4], None, None, None, *gradients[4:]
        dtype, low, work = keys.dtype, narrow(x.dtype), workspace(keys)
        d_x = empty(x.shape, x)
        d_keys, d_offset, d_values = (wide(torch.zeros_like(v)) for v in (keys, offset, values))
        rows, low_values = centred(keys).to(low), values.to(low)
        ffn = None if w1 is None else _FeedForward.of(w1, b1, w2, b2, ctx.activation, low, work)
        for b, n, far, far_y in ctx.tiles:
            tile, d_y = work.cast("tile", x[b, n], dtype), d_out[b, n]
            z = work.cast("low z", scaled(tile, moments[:, b, n], far, work("z", *tile.shape)), low)
            if kept_p is None:
                p = _weights(rows[b], offset[b], z, ctx.heads, work)
            else:
                p = work("p", z.shape[0], keys.shape[1], z.shape[1]).copy_(kept_p[b, :, n])
            low_p = work.cast("low p", p, low)
            if ffn is not None:
                if kept_y is None:
                    y = batched(low_p.mT, low_values[b].mT, work("u", *tile.shape, dtype=low))
                    y = torch.add(tile, y, out=work("y", *tile.shape))
                else:
                    y = kept_y[b, n]
                hidden = None if kept_hidden is None else kept_hidden[b, n]
                d_y = ffn.backward(d_y, y, moments_y[:, b, n], far_y, hidden)
            d_y = work.cast("d_y", d_y, dtype)
            low_d_y = work.cast("low d_y", d_y, low)
            d_values[b] += batched(low_p, low_d_y.mT)  # (6)
            d_p = batched(low_values[b], low_d_y, work("low d_p", *p.shape, dtype=low))  # (7)
            by_head = p.shape[0], ctx.heads, -1, p.shape[2]
            p, d_p = p.view(by_head), work.cast("d_p", d_p, dtype).view(by_head)
            d_s = private.softmax_backward(d_p, p, 2, work("d_s", *p.shape)).flatten(1, 2)  # (8)
            d_offset[b] += d_s.sum(-1, True)  # (9)
            low_d_s = work.cast("low p", d_s, low)
            d_keys[b] += batched(low_d_s, z.mT)  # (9)
            d_z = work.cast("z", batched(low_d_s.mT, rows[b].mT, z), dtype)  # (10)
            d_z = private.normalised_backward(d_z, tile, *moments[:, b, n].unbind())
            if d_x.dtype == dtype:
                torch.add(d_y, d_z, out=d_x[b, n])  # (11)
            else:
                d_x[b, n] = d_z.add_(d_y)
        d_ffn = [None] * 4 if ffn is None else ffn.gradients(dtype)
        grads = centred(d_keys).to(dtype), d_offset.to(dtype), d_values.to(dtype)
        return d_x, *grads, None, None, None, *d_ffn


class _FeedForward(NamedTuple):
    """The backward of the FFN, tile by tile.

    Attributes:
        first: W_1, rows less their means; with `bias` b_1 and `second` W_2 in the precision of products.
        activation: Act, and its backward.
        sums: Of the gradients of W_1, b_1, W_2 and b_2.
    """

    first: Tensor
    bias: Tensor
    second: Tensor
    activation: Activation
    sums: list[Tensor]
    work: Workspace

    @classmethod
    def of(
        cls, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, activation: Any, low: torch.dtype, work: Workspace
    ) -> _FeedForward:
        sums = [wide(torch.zeros_like(v)) for v in (w1, b1, w2, b2)]
        return cls(centred(w1).to(low), b1.to(low), w2.to(low), ACTIVATIONS[activation], sums, work)

    def backward(self, d_out: Tensor, y: Tensor, moments: Tensor, far: bool, kept_hidden: Tensor | None) -> Tensor:
        """The d(y) of a tile from its d(out); `kept_hidden` is h if it has been kept."""
        work, low, (act, act_backward) = self.work, self.first.dtype, self.activation
        u = scaled(y, moments, far, work("u", *y.shape)).flatten(0, 1)
        u = work.cast("low u", u, low)
        flat = work.cast("low d_y", d_out, low).contiguous().flatten(0, 1)
        size = u.shape[0], self.first.shape[0]
        before = work("before", *size, dtype=low)
        if kept_hidden is None:
            before = linear(u, self.first, self.bias, before)
        else:
            before.view(kept_hidden.shape).copy_(kept_hidden)
        hidden = act(before)
        d_hidden = linear(flat, self.second.mT, out=work("d_hidden", *size, dtype=low))
        d_hidden = act_backward(d_hidden, before)  # (2)
        parts = d_hidden.mT @ u, d_hidden.sum(0), flat.mT @ hidden, flat.sum(0)  # (3), (1)
        for total, part in zip(self.sums, parts, strict=True):
            total += part
        d_u = work.cast("u", linear(d_hidden, self.first.mT, out=u).view_as(y), y.dtype)  # (4)
        return private.normalised_backward(d_u, y, *moments.unbind()).add_(d_out)  # (5)

    def gradients(self, dtype: torch.dtype) -> list[Tensor]:
        first, *others = self.sums
        return [g.to(dtype) for g in (centred(first), *others)]


def _weights(keys: Tensor, offset: Tensor, z: Tensor, heads: int, work: Workspace) -> Tensor:
    """(sets, P, elements), which sum to 1 over the points of a head."""
    shape = z.shape[0], keys.shape[1], z.shape[1]
    s = batched(keys, z, work("low p", *shape, dtype=z.dtype))
    s = torch.add(s, offset, out=work("p", *shape)).view(shape[0], heads, -1, shape[2])
    return private.softmax(s, 2).flatten(1, 2)
