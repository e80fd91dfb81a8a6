"""Pieces of sets by kernels of Triton, for GPUs: the four functions of tiles.py, each tile read once.

Tensor operations write every intermediate result of a tile to the device's memory and read it again; these kernels hold
a block of elements in registers through norm, scores, softmax and sums. Products of the FFN stay PyTorch's, which no
kernel of ours would beat. The formulas and the numbers of their steps are in gather.py and spread.py.

Checked by Triton's interpreter on a CPU; never run, nor timed, on a GPU. So they are asked for: `OMNISET_GPU=1`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from omniset.core.attention import zero_if_minus_inf
from omniset.core.states import wide
from omniset.kernels import tiles
from omniset.kernels.team import Piece

TYPES = torch.float32, torch.bfloat16, torch.float16
NUMBERS = 1 << 13  # of the points that a program holds, at most: they share its registers with a block of elements
BLOCK = 64  # elements that a program holds
LEAST = 16  # numbers of a side of a product
PROGRAMS = 1024  # about, that a set's elements are shared out over


def asked() -> bool:
    """Whether forms for GPUs are to be used that no GPU has run."""
    return os.environ.get("OMNISET_GPU") == "1"


@functools.cache
def wanted() -> bool:
    return asked() and importlib.util.find_spec("triton") is not None


def takes(x: Tensor, points: Tensor, heads: int = 1) -> bool:
    """Whether elements x (..., D) on this device meet here with points (..., P, D), those of a head side by side."""
    shape = _padded(points.shape[-2], heads)
    held = shape[0] * shape[1] * _power(x.shape[-1])
    return wanted() and x.device.type == "cuda" and x.dtype in TYPES and held <= NUMBERS


def gather(
    x: Tensor, log_m: Tensor | None, rows: Tensor, top: Tensor, known: bool, eps: float, piece: Piece
) -> tuple[Tensor, Tensor, Tensor]:
    """As `tiles.gather`."""
    sums = _Sums(x, log_m, piece)
    points, dim = rows.shape
    tops, weight, total = (sums.empty(rows, points, *more) for more in ((), (1,), (dim,)))
    start = top[piece.first : piece.last].contiguous()
    given = *strided(sums.log_m), rows.contiguous(), start
    sums.launch("gather", points, 1, *given, tops, weight, total, eps=eps, KNOWN=known)
    factor: Tensor | float = 1.0
    peak = tops.amax(1)
    if not known:
        factor = torch.exp(wide(tops) - wide(zero_if_minus_inf(peak))[:, None])[..., None]
    return peak[..., None], (wide(weight) * factor).sum(1), (wide(total) * factor).sum(1)


def gather_backward(
    x: Tensor,
    log_m: Tensor | None,
    rows: Tensor,
    top: Tensor,
    d_weight: Tensor,
    d_total: Tensor,
    d_x: Tensor | None,
    d_log_m: Tensor | None,
    eps: float,
    piece: Piece,
) -> tuple[Tensor, Tensor]:
    """As `tiles.gather_backward`."""
    sums = _Sums(x, log_m, piece)
    (points, dim), here = rows.shape, slice(piece.first, piece.last)
    d_rows, d_offset = (sums.empty(rows, points, *more) for more in ((dim,), ()))
    given = rows, zero_if_minus_inf(top[here]), d_weight[here], d_total[here]
    whole = [v.contiguous() for v in given]
    into = [part for some in (d_x, d_log_m) for part in strided(None if some is None else sums.of(some))]
    sums.launch("gather_backward", points, 1, *strided(sums.log_m), *whole, *into, d_rows, d_offset, eps=eps)
    return wide(d_rows).sum((0, 1)), wide(d_offset).sum((0, 1))


def spread(
    x: Tensor,
    keys: Tensor,
    offset: Tensor,
    values: Tensor,
    heads: int,
    activation: Any,
    eps: float,
    ffn: tiles.FFN | None,
    out: Tensor,
    piece: Piece,
) -> None:
    """As `tiles.spread`."""
    dtype, work = keys.dtype, tiles.workspace(keys)
    for b, n in tiles.tiles(x, piece):
        tile = Piece(b.start, b.stop, n.start, n.stop, 0)
        if ffn is None:
            _attend(x, keys, offset, values, heads, eps, out, tile)
            continue
        y = work("y", b.stop - b.start, n.stop - n.start, x.shape[2], dtype=dtype)
        _attend(x, keys, offset, values, heads, eps, y, tile)
        out[b, n] = tiles.ffn_of(y, activation, eps, ffn, work)


def spread_backward(
    x: Tensor,
    d_out: Tensor,
    keys: Tensor,
    offset: Tensor,
    values: Tensor,
    heads: int,
    activation: Any,
    eps: float,
    ffn: tiles.FFN | None,
    d_x: Tensor,
    piece: Piece,
) -> list[Tensor]:
    """As `tiles.spread_backward`."""
    work, of_sets = tiles.workspace(keys), slice(piece.first, piece.last)
    d_keys, d_offset, d_values = (wide(torch.zeros_like(v[of_sets])) for v in (keys, offset, values))
    d_ffn = [] if ffn is None else [wide(torch.zeros_like(v)) for v in ffn]
    for b, n in tiles.tiles(x, piece):
        tile, here = Piece(b.start, b.stop, n.start, n.stop, 0), slice(b.start - piece.first, b.stop - piece.first)
        d_y = d_out[b, n]
        if ffn is not None:
            y = work("y", *d_y.shape, dtype=keys.dtype)
            _attend(x, keys, offset, values, heads, eps, y, tile)
            d_y = tiles.ffn_backward(d_y, y, eps, ffn, tiles.ACTIVATIONS[activation], d_ffn, work)
        sums = _Sums(x, None, tile)
        points, dim = keys.shape[1:]
        parts = [sums.empty(keys, points, *more) for more in ((dim,), (), (dim,))]
        given = (v[b].contiguous() for v in (keys, offset, values))
        into = *given, *strided(d_y), *strided(sums.of(d_x)), *parts
        sums.launch("attend_backward", points, heads, *into, eps=eps)
        for total, part in zip((d_keys, d_offset, d_values), parts, strict=True):
            total[here] += wide(part).sum(1).view_as(total[here])
    return [d_keys, d_offset, d_values, *d_ffn]


def _attend(
    x: Tensor, keys: Tensor, offset: Tensor, values: Tensor, heads: int, eps: float, y: Tensor, tile: Piece
) -> None:
    """Elements with what they attend to added, into y: all of a tile, or the tile's part of all sets."""
    sums, here = _Sums(x, None, tile), slice(tile.first, tile.last)
    given = (v[here].contiguous() for v in (keys, offset, values))
    into = sums.of(y) if y.shape == x.shape else y
    sums.launch("attend", keys.shape[1], heads, *given, *strided(into), eps=eps)


class _Sums:
    """Elements of some sets, shared out over programs that each go through a run of blocks of one set."""

    def __init__(self, x: Tensor, log_m: Tensor | None, piece: Piece) -> None:
        self.rows = slice(piece.first, piece.last), slice(piece.start, piece.stop)
        self.x, self.log_m = self.of(x), None if log_m is None else self.of(log_m)
        self.sets, self.elements, self.dim = self.x.shape
        blocks = max(-(-self.elements // BLOCK), 1)
        self.programs = min(blocks, max(PROGRAMS // max(self.sets, 1), 1))
        self.run = -(-blocks // self.programs) * BLOCK  # elements of a program

    def of(self, x: Tensor) -> Tensor:
        return x[self.rows]

    def empty(self, like: Tensor, *shape: int) -> Tensor:
        """For a sum of each program."""
        return like.new_empty(self.sets, self.programs, *shape)

    def launch(self, name: str, points: int, heads: int, *tensors: Any, eps: float, **options: bool) -> None:
        if not self.sets:
            return
        from omniset.kernels.programs import KERNELS  # Triton decides when it defines them where they run

        of_heads, of_head = _padded(points, heads)
        shape = {"HEADS": of_heads, "OF_HEAD": of_head, "DIM": _power(self.dim), "BLOCK": BLOCK}
        sizes = self.elements, self.dim, heads, points // heads, self.run
        grid = self.sets, self.programs
        KERNELS[name][grid](*strided(self.x), *tensors, *sizes, eps, **options, **shape)


def strided(x: Tensor | None) -> tuple[Any, ...]:
    """A tensor (sets, elements, ...) with its strides; that of a last dimension is 1."""
    if x is None:
        return None, 0, 0
    x = x if x.dim() == 2 or x.stride(-1) == 1 else x.contiguous()
    return x, x.stride(0), x.stride(1)


def _padded(points: int, heads: int) -> tuple[int, int]:
    """Powers of 2 for heads and points of a head, whose product is LEAST at least."""
    of_heads, of_head = (max(1 << (number - 1).bit_length(), 1) for number in (heads, -(-points // heads)))
    return of_heads, max(of_head, LEAST // of_heads)


def _power(dim: int) -> int:
    return max(1 << (dim - 1).bit_length(), LEAST)
