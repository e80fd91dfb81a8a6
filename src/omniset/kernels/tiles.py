"""Pieces of sets by tensor operations, a tile that stays in the processor's cache at a time.

The four functions are those of blocks.cpp, for devices and types that have no compiled blocks. The formulas and the
numbers of their steps are in gather.py and spread.py.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omniset.core import private
from omniset.core.attention import zero_if_minus_inf
from omniset.core.states import wide
from omniset.kernels.team import Piece

TILE = 1 << 19  # numbers of a tile of elements: 2 MiB in float32
SMALL_SETS = 2  # so much smaller is a tile of several sets, whose products are many small ones
ACCELERATOR_TILE = 1 << 24  # where each tile costs launches; not measured yet
LARGE = 1 << 24  # multiplications, from where on oneDNN's preparation is soon made up for
ROUND = 64  # only shapes that are multiples: full tiles, which come again, rather than what is left over
PRECISION = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}


def _relu_backward(d: Tensor, x: Tensor) -> Tensor:
    return d.masked_fill_(x <= 0, 0)


def _gelu_backward(d: Tensor, x: Tensor) -> Tensor:
    density = torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5
    return d * (torch.special.ndtr(x) + x * density)


def _silu_backward(d: Tensor, x: Tensor) -> Tensor:
    s = x.sigmoid()
    return d * s * (1 + x * (1 - s))


Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
ACTIVATIONS: dict[type[nn.Module], Activation] = {  # and gradients, from their own gradient and what went in
    nn.ReLU: (torch.relu_, _relu_backward),  # in place: what went in is positive where it was
    nn.GELU: (F.gelu, _gelu_backward),
    nn.SiLU: (F.silu, _silu_backward),
}
Rows = tuple[slice, slice]
FFN = tuple[Tensor, Tensor, Tensor, Tensor]


class Elements(NamedTuple):
    """What points attend to: elements (B, N, D), their log m (B, N) or None, and the norm's eps."""

    x: Tensor
    log_m: Tensor | None
    eps: float


class Points(NamedTuple):
    """What elements attend to: keys (B, P, D), offsets (B, P, 1) and values (B, P, D), heads side by side."""

    keys: Tensor
    offset: Tensor
    values: Tensor


class How(NamedTuple):
    """What of it is no tensor: `activation` is the class of the FFN's, None without one."""

    heads: int
    activation: Any
    eps: float


def tiles(x: Tensor, piece: Piece) -> Iterator[Rows]:
    """Sets and elements of tiles of about TILE numbers at most: several small sets together, or a part of one."""
    rows = max((TILE if x.device.type == "cpu" else ACCELERATOR_TILE) // x.shape[2], 64)
    step = max(rows // SMALL_SETS // max(piece.stop - piece.start, 1), 1)
    for first in range(piece.first, piece.last, step):
        for start in range(piece.start, piece.stop, rows):
            yield slice(first, min(first + step, piece.last)), slice(start, min(start + rows, piece.stop))


_of_thread = threading.local()


def workspace(like: Tensor) -> Workspace:
    """That of this thread, which every call takes again: fresh memory costs more than the arithmetic done in it."""
    if like.device.type != "cpu":  # whose allocator keeps memory itself
        return Workspace(like)
    held = _of_thread.__dict__
    name = str(like.dtype)
    if name not in held:
        with torch.inference_mode(False):
            held[name] = Workspace(like.new_empty(0))
    return held[name]


class Workspace:
    """Buffers of about the size of a tile, each with a name."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.held: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        size, held = math.prod(shape), self.held.get(name)
        if held is None or held.numel() < size:
            with torch.inference_mode(False):  # what it makes could not be written to without it
                held = self.held[name] = self.like.new_empty(size)
        return held.view(dtype or held.dtype)[:size].view(shape)

    def cast(self, name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x if x.dtype == dtype else self(name, *x.shape, dtype=dtype).copy_(x)


def narrow(dtype: torch.dtype) -> torch.dtype:
    """Of the factors of products with elements of that dtype: bfloat16 where the processor has units for it.

    Sums over tiles, and all that is not a product, stay in float32 or wider.
    """
    return dtype if dtype == torch.bfloat16 and private.HALF_UNITS else PRECISION[dtype]


def centred(x: Tensor) -> Tensor:
    """What gives the same products with a normalised row, whose numbers sum to 0, and loses no digits."""
    return x - x.mean(-1, True)


def normalised(x: Tensor, eps: float, out: Tensor) -> tuple[Tensor, Tensor]:
    """Z = (x - mean) / deviation of each row, and 1 / deviation."""
    z = torch.sub(x, x.mean(-1, True), out=out)
    # Faster than PyTorch's own kernel on a CPU.
    inverse = torch.linalg.vector_norm(z, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return z.mul_(inverse), inverse


def normalised_backward(d: Tensor, z: Tensor, inverse: Tensor) -> Tensor:
    """(d - mean of d - z times the mean of d z) / deviation, in place of d."""
    second = torch.linalg.vecdot(d, z).div_(z.shape[-1])[..., None]
    return d.sub_(d.mean(-1, True)).addcmul_(z, second, value=-1).mul_(inverse)


# ---------------------------------------------------------------------------------------------------- products

# Through the faster of the two libraries that PyTorch brings for the CPU. For float32 PyTorch itself takes MKL, which
# is slow on some processors. oneDNN is as fast or faster there where the second matrix is given transposed, as in a
# linear layer, and slower where the first one is. It prepares itself for every new shape for about a millisecond, and
# returns its result in memory of its own.


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Product of x (rows, D) and the transposed weight (F, D), plus bias (F,). Not always written to `out`."""
    if faster_by_onednn(x, weight):
        return private.onednn_linear(x, weight, bias)
    out = None if out is None or out.dtype != x.dtype else out
    return torch.mm(x, weight.mT, out=out) if bias is None else torch.addmm(bias, x, weight.mT, out=out)


def add_linear(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Y (rows, F) plus linear(x, weight, bias); y may be overwritten."""
    if faster_by_onednn(x, weight):
        return private.onednn_add_linear(y, x, weight, bias)
    if y.dtype != x.dtype:
        return y.add_(torch.addmm(bias, x, weight.mT))
    return y.addmm_(x, weight.mT).add_(bias)


def batched(x: Tensor, other: Tensor, out: Tensor | None = None) -> Tensor:
    """Product of x (sets, rows, D) and the transposed `other` (sets, F, D). Not always written to `out`."""
    if x.shape[0] == 1:
        return linear(x[0], other[0], out=None if out is None else out[0])[None]
    return torch.bmm(x, other.mT, out=None if out is None or out.dtype != x.dtype else out)


def faster_by_onednn(x: Tensor, weight: Tensor) -> bool:
    rows, columns, inner = x.shape[0], weight.shape[0], x.shape[1]
    if rows * columns * inner < LARGE or max(rows, columns, inner) % ROUND:
        return False
    if x.dtype != torch.float32 or x.device.type != "cpu" or x.stride(1) != 1:
        return False
    return private.HAS_ONEDNN and bool(torch.backends.mkldnn.enabled)


# ---------------------------------------------------------------------------------------------------- gather


def gather(elements: Elements, rows: Tensor, top: Tensor, known: bool, piece: Piece) -> tuple[Tensor, Tensor, Tensor]:
    """(top, c, t) of the sets of a piece: (b, P, 1), (b, P, 1) and (b, P, D), for points `rows` (P, D)."""
    x, log_m, eps = elements
    dtype, low, work = rows.dtype, narrow(x.dtype), workspace(rows)
    low_rows, top = rows.to(low), top[piece.first : piece.last].clone()
    weight, total = (wide(rows.new_zeros(*top.shape[:2], size)) for size in (1, rows.shape[1]))
    shifted = not known or bool(top.any())
    for b, n in tiles(x, piece):
        here = slice(b.start - piece.first, b.stop - piece.first)
        tile = work.cast("tile", x[b, n], dtype)
        z = work.cast("low z", normalised(tile, eps, work("z", *tile.shape))[0], low)
        w = work.cast("w", _products(low_rows, z, work), dtype)
        if log_m is not None:
            w += log_m[b, None, n]
        if not known:
            peak = torch.maximum(top[here], w.amax(-1, True))
            factor = torch.exp(wide(top[here]) - wide(zero_if_minus_inf(peak)))
            weight[here] *= factor
            total[here] *= factor
            top[here] = peak
        if shifted:
            w -= zero_if_minus_inf(top[here])
        w.exp_()
        weight[here] += w.sum(-1, True)
        total[here] += batched(work.cast("low w", w, low), z.mT)
    return top, weight, total


def gather_backward(
    elements: Elements, rows: Tensor, top: Tensor, upstream: Sequence[Tensor], into: Sequence[Any], piece: Piece
) -> tuple[Tensor, Tensor]:
    """d(u) (P, D) and d(a) (P,) of a piece from `upstream`, d(c) and d(t); `into` are d(x) and d(log m), or None, of
    which its part is written.
    """
    (x, log_m, eps), (d_weight, d_total), (d_x, d_log_m) = elements, upstream, into
    points = rows.shape[0]
    dtype, low, work = rows.dtype, narrow(x.dtype), workspace(rows)
    d_rows, d_offset = wide(torch.zeros_like(rows)), wide(rows.new_zeros(points))
    # The scores of (2) and the products of (1), both with z^T, are one product; so are the two of (6).
    all_rows = rows.expand_as(d_total)
    before, after = torch.cat((all_rows, d_total), 1).to(low), torch.cat((d_total, all_rows), 1).to(low)
    shifted = bool(top.any())
    for b, n in tiles(x, piece):
        tile = work.cast("tile", x[b, n], dtype)
        z, inverse = normalised(tile, eps, work("z", *tile.shape))
        low_z = work.cast("low z", z, low)
        both = batched(before[b], low_z, work("low both", z.shape[0], 2 * points, z.shape[1], dtype=low))
        both = work.cast("both", both, dtype)
        w, d_s = both[:, :points], both[:, points:]  # d_s is d(t) . z so far
        if log_m is not None:
            w += log_m[b, None, n]
        if shifted:
            w -= zero_if_minus_inf(top[b])
        w.exp_()
        d_s.add_(d_weight[b]).mul_(w)  # (1), (2)
        if d_log_m is not None:
            d_log_m[b, n] = d_s.sum(1)  # (3)
        low_both = work.cast("low both", both, low)
        d_rows += batched(low_both[:, points:], low_z.mT).sum(0)  # (5); all sets share the points
        d_offset += d_s.sum((0, 2))  # (4)
        if d_x is not None:
            d_z = batched(low_both.mT, after[b].mT, work("low d_z", *z.shape, dtype=low))  # (6)
            d_x[b, n] = normalised_backward(work.cast("d_z", d_z, dtype), z, inverse)  # (7)
    return d_rows, d_offset


def _products(points: Tensor, z: Tensor, work: Workspace) -> Tensor:
    """(sets, points, elements) of points (P, D) that all sets share: one product for all sets of a tile."""
    sets, elements, _ = z.shape
    out = work("low w", len(points), sets * elements, dtype=z.dtype)
    return linear(points, z.flatten(0, 1), out=out).view(-1, sets, elements).transpose(0, 1)


# ---------------------------------------------------------------------------------------------------- spread


def spread(x: Tensor, points: Points, how: How, ffn: FFN | None, out: Tensor, piece: Piece) -> None:
    """The part of `out` of a piece; keys and the rows of W_1 less their means."""
    (keys, offset, values), heads, eps = points, how.heads, how.eps
    dtype, low, work = keys.dtype, narrow(x.dtype), workspace(keys)
    keys, values = keys.to(low), values.to(low)
    low_ffn = None if ffn is None else [v.to(low) for v in ffn]
    for b, n in tiles(x, piece):
        tile = work.cast("tile", x[b, n], dtype)
        z = work.cast("low z", normalised(tile, eps, work("z", *tile.shape))[0], low)
        p = work.cast("low p", _weights(keys[b], offset[b], z, heads, work), low)
        y = torch.add(tile, batched(p.mT, values[b].mT, z), out=work("y", *tile.shape))
        if low_ffn is not None:
            y = ffn_of(y, how, low_ffn, work)
        out[b, n] = y


def ffn_of(y: Tensor, how: How, ffn: Sequence[Tensor], work: Workspace) -> Tensor:
    """A tile y with its FFN added, in y's memory."""
    w1, b1, w2, b2 = ffn
    u = work.cast("low z", normalised(y, how.eps, work("z", *y.shape))[0], w1.dtype).flatten(0, 1)
    hidden = linear(u, w1, b1, work("hidden", u.shape[0], w1.shape[0], dtype=w1.dtype))
    return add_linear(y.flatten(0, 1), ACTIVATIONS[how.activation][0](hidden), w2, b2).view_as(y)


def spread_backward(
    x: Tensor, d_out: Tensor, points: Points, how: How, ffn: FFN | None, d_x: Tensor, piece: Piece
) -> list[Tensor]:
    """d(k), d(a) and d(v) of the sets of a piece; d(W_1), d(b_1), d(W_2) and d(b_2); its part of d_x is written."""
    (keys, offset, values), heads, eps = points, how.heads, how.eps
    dtype, low, work = keys.dtype, narrow(x.dtype), workspace(keys)
    of_sets = slice(piece.first, piece.last)
    d_keys, d_offset, d_values = (wide(torch.zeros_like(v[of_sets])) for v in (keys, offset, values))
    d_ffn = [] if ffn is None else [wide(torch.zeros_like(v)) for v in ffn]
    low_keys, low_values = keys.to(low), values.to(low)
    low_ffn = None if ffn is None else [v.to(low) for v in ffn]
    for b, n in tiles(x, piece):
        here = slice(b.start - piece.first, b.stop - piece.first)
        tile = work.cast("tile", x[b, n], dtype)
        z, inverse = normalised(tile, eps, work("z", *tile.shape))
        low_z = work.cast("low z", z, low)
        p = _weights(low_keys[b], offset[b], low_z, heads, work)
        low_p = work.cast("low q", p, low)
        d_y = d_out[b, n]
        if low_ffn is not None:
            y = batched(low_p.mT, low_values[b].mT, work("low y", *tile.shape, dtype=low))
            y = torch.add(tile, y, out=work("y", *tile.shape))
            d_y = ffn_backward(d_y, y, how, low_ffn, d_ffn, work)
        d_y = work.cast("d_y", d_y, dtype)
        low_d_y = work.cast("low d_y", d_y, low)
        d_values[here] += batched(low_p, low_d_y.mT)  # (6)
        d_p = batched(low_values[b], low_d_y, work("low d_p", *p.shape, dtype=low))  # (7)
        by_head = p.shape[0], heads, -1, p.shape[2]
        p, d_p = p.view(by_head), work.cast("d_p", d_p, dtype).view(by_head)
        d_s = torch.mul(p, d_p - (p * d_p).sum(2, True), out=work("d_s", *p.shape)).flatten(1, 2)  # (8)
        d_offset[here] += d_s.sum(-1, True)  # (9)
        low_d_s = work.cast("low p", d_s, low)
        d_keys[here] += batched(low_d_s, low_z.mT)  # (9)
        d_z = batched(low_d_s.mT, low_keys[b].mT, work("low d_z", *z.shape, dtype=low))  # (10)
        d_x[b, n] = normalised_backward(work.cast("d_z", d_z, dtype), z, inverse).add_(d_y)  # (11); d_y may be d_out
    return [d_keys, d_offset, d_values, *d_ffn]


def ffn_backward(
    d_out: Tensor, y: Tensor, how: How, ffn: Sequence[Tensor], sums: list[Tensor], work: Workspace
) -> Tensor:
    """The d(y) of a tile from its d(out), in memory of its own; what the tile adds to the sums of the weights."""
    w1, b1, w2, _ = ffn
    act, act_backward = ACTIVATIONS[how.activation]
    u, inverse = normalised(y, how.eps, work("u", *y.shape))
    low_u = work.cast("low u", u, w1.dtype).flatten(0, 1)
    flat = work.cast("low d_out", d_out, w1.dtype).contiguous().flatten(0, 1)
    size = low_u.shape[0], w1.shape[0]
    before = linear(low_u, w1, b1, work("before", *size, dtype=w1.dtype))
    hidden = act(before)
    d_hidden = linear(flat, w2.mT, out=work("d_hidden", *size, dtype=w1.dtype))
    d_hidden = act_backward(d_hidden, before)  # (2)
    parts = d_hidden.mT @ low_u, d_hidden.sum(0), flat.mT @ hidden, flat.sum(0)  # (3), (1)
    for total, part in zip(sums, parts, strict=True):
        total += part
    d_u = linear(d_hidden, w1.mT, out=work("low d_u", *flat.shape, dtype=w1.dtype)).view_as(y)  # (4)
    return normalised_backward(work.cast("d_u", d_u, y.dtype), u, inverse).add_(d_out)  # (5)


def _weights(keys: Tensor, offset: Tensor, z: Tensor, heads: int, work: Workspace) -> Tensor:
    """(sets, P, elements), which sum to 1 over the points of a head."""
    shape = z.shape[0], keys.shape[1], z.shape[1]
    s = batched(keys, z, work("low p", *shape, dtype=z.dtype))
    s = torch.add(s, offset, out=work("p", *shape)).view(shape[0], heads, -1, shape[2])
    return s.copy_(s.softmax(2)).flatten(1, 2)
