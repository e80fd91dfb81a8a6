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
Elements in half precision are read as they are and computed with in float32, a tile at a time, but for the products of
bfloat16 on processors that have units for them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omniset.attention import AttentionState, log_multiplicity
from omniset.pages import empty
from omniset.products import add_linear, batched, faster_by_onednn, linear
from omniset.states import wide

TILE = 1 << 19  # numbers of a tile of elements: 2 MiB in float32
SMALL_SETS = 2  # so much smaller is a tile of several sets, whose products are many small ones
MODERATE = 50.0  # exp(-50) and sums of many exp(50) are well within float32
LEAST = 1 << 18  # numbers of the elements, from where on folding is faster (on two cores, D from 32 to 256)
WIDE = 64  # from this width on, keeping a number should cost less than the product that computes it again
KEPT = 1 << 26  # bytes of one kind that a call keeps at most: beyond, memory is dearer than time
FAR = 2.0  # deviations of a row's mean from 0, from where on leaving it in would cost digits
ACCELERATOR_TILE = 1 << 24  # where each tile costs launches; not measured yet
PRECISION = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}
HALF_UNITS = any(getattr(torch.cpu, name, bool)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
Rows = tuple[slice, slice]
PROJECTIONS = ("query", "key", "value", "output")


def form(block: Any, queries: Tensor, elements: Tensor, multiplicity: Tensor | None) -> str | None:
    """Choose "gather" or "spread" where it computes the same as the plain form in fewer products, else None.

    With P points, H heads and width D, both forms of either half come to 4 N P D (folded: 4 N H P D) for scores and
    averages, and the plain one to 4 N D^2 for the projections of elements: folding pays where P (H - 1) < D, and where
    the elements of all sets are so many that its many small steps take no time.
    """
    # Compilers and the transforms of torch.func go through plain operations only.
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    spreads = queries.shape[1] > elements.shape[1]
    points = elements.shape[1] if spreads else queries.shape[1]
    shared = len(queries) == 1  # learned points are the same for all sets
    few = multiplicity is None and len(queries) == len(elements) and points > 0
    dim = queries.shape[2]
    if not (few if spreads else shared) or points * (block.num_heads - 1) >= dim or not block.foldable:
        return None
    if max(queries.numel(), elements.numel()) < LEAST:
        return None
    if queries.dtype not in PRECISION or torch.is_autocast_enabled(queries.device.type):
        return None
    return "spread" if spreads else "gather"


def known(block: Any) -> bool:
    """Whether the block's parts are what they were made as: none replaced, parametrized or with a hook of its own."""
    parts: list[Any] = [getattr(block, name) for name in PROJECTIONS]
    kinds: list[Any] = [nn.Linear] * len(parts)
    parts += [block.norm_queries, block.norm_elements]
    kinds += [nn.LayerNorm] * 2
    if block.ffn is not None:
        parts += [block.norm_ffn, block.ffn, *block.ffn]
        kinds += [nn.LayerNorm, nn.Sequential, nn.Linear, type(block.ffn[1]), nn.Linear, nn.Dropout]
        if type(block.ffn[1]) not in ACTIVATIONS:
            return False
    return [type(part) for part in parts] == kinds and not any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        for part in parts
    )


def gather(
    block: Any,
    queries: Tensor,
    elements: Tensor,
    multiplicity: Tensor | None,
    peak: Tensor | None = None,
) -> AttentionState:
    """As `AttentionBlock.reduce`, for queries (1, Q, D) that all sets share."""
    dtype, by_head = PRECISION[elements.dtype], (block.num_heads, -1)
    key, value, norm = block.key, block.value, block.norm_elements
    q = project(block.query, layer_norm(block.norm_queries, queries.to(dtype)))
    q = q.unflatten(-1, by_head).transpose(1, 2) * block.scale
    weight, bias = norm.weight.to(dtype), norm.bias.to(dtype)
    folded = torch.einsum("bhqc,hcd->bhqd", q, (key.weight.to(dtype) * weight).unflatten(0, by_head))
    offset = torch.einsum("bhqc,hc->bhq", q, project(key, bias).unflatten(0, by_head))[..., None]
    log_m = None if multiplicity is None else log_multiplicity(multiplicity, dtype)
    given = None if peak is None else peak.flatten(1, 2)
    found = Gather.apply(elements, log_m, folded.flatten(1, 2), offset.flatten(1, 2), given, norm.eps)
    top, count, total = (v.unflatten(1, by_head) for v in found)
    w_v = (value.weight.to(dtype) * weight).unflatten(0, by_head).to(total)
    b_v = project(value, bias).unflatten(0, by_head).to(total)
    average = torch.einsum("bhqd,hcd->bhqc", total, w_v) + count * b_v[:, None]
    return AttentionState(top if peak is None else peak, (count, average))


def spread(block: Any, queries: Tensor, elements: Tensor) -> Tensor:
    """As `AttentionBlock.forward`, for few elements (B, P, D) without multiplicities."""
    dtype, by_head = PRECISION[queries.dtype], (block.num_heads, -1)
    query, output, norm = block.query, block.output, block.norm_queries
    y = layer_norm(block.norm_elements, elements.to(dtype))
    k, v = (project(part, y).unflatten(-1, by_head).transpose(1, 2) for part in (block.key, block.value))
    k = k * block.scale
    weight, bias = norm.weight.to(dtype), norm.bias.to(dtype)
    keys = torch.einsum("bhpc,hcd->bhpd", k, (query.weight.to(dtype) * weight).unflatten(0, by_head))
    offset = torch.einsum("bhpc,hc->bhp", k, project(query, bias).unflatten(0, by_head))[..., None]
    # The weights of a head sum to 1, so that every head's values can carry a share of the bias.
    values = torch.einsum("bhpc,dhc->bhpd", v, output.weight.to(dtype).unflatten(1, by_head))
    values = values + output.bias.to(dtype) / block.num_heads
    ffn: tuple[Tensor | None, ...] = (None,) * 4
    if block.ffn is not None:
        first, _, second, _ = block.ffn
        weight, bias = block.norm_ffn.weight.to(dtype), block.norm_ffn.bias.to(dtype)
        ffn = first.weight.to(dtype) * weight, project(first, bias), second.weight.to(dtype), second.bias.to(dtype)
    keys, offset, values = (x.flatten(1, 2) for x in (keys, offset, values))
    activation = None if block.ffn is None else type(block.ffn[1])
    return Spread.apply(queries, keys, offset, values, block.num_heads, activation, norm.eps, *ffn)


def project(layer: nn.Linear, x: Tensor) -> Tensor:
    """In the precision of x."""
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))


def layer_norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, layer.normalized_shape, layer.weight.to(x.dtype), layer.bias.to(x.dtype), layer.eps)


def tiles(x: Tensor) -> Iterator[Rows]:
    """Sets and elements of tiles of about TILE numbers at most: several small sets together, or a part of one."""
    sets, elements, dim = x.shape
    rows = max((TILE if x.device.type == "cpu" else ACCELERATOR_TILE) // dim, 64)
    step = max(rows // SMALL_SETS // max(elements, 1), 1)
    for first in range(0, sets, step):
        for start in range(0, elements, rows):
            yield slice(first, first + step), slice(start, start + rows)


OF_THREAD = threading.local()


def workspace(like: Tensor) -> Workspace:
    """That of this thread, which every call takes again: fresh memory costs more than the arithmetic done in it."""
    if like.device.type != "cpu":  # whose allocator keeps memory itself
        return Workspace(like)
    return OF_THREAD.__dict__.setdefault(str(like.dtype), Workspace(like.new_empty(0)))


class Workspace:
    """Buffers of about the size of a tile, each with a name."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.held: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        size, held = math.prod(shape), self.held.get(name)
        if held is None or held.numel() < size:
            held = self.held[name] = self.like.new_empty(size)
        return held.view(dtype or held.dtype)[:size].view(shape)

    def cast(self, name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x if x.dtype == dtype else self(name, *x.shape, dtype=dtype).copy_(x)


def narrow(dtype: torch.dtype) -> torch.dtype:
    """Of the factors of products with elements of that dtype: bfloat16 where the processor has units for it.

    Sums over tiles, and all that is not a product, stay in float32 or wider.
    """
    return dtype if dtype == torch.bfloat16 and HALF_UNITS else PRECISION[dtype]


class Moments:
    """Means and 1 / sqrt(variance + eps) of a set's rows, (2, B, N, 1): of all where a gradient is wanted."""

    def __init__(self, ctx: Any, like: Tensor, x: Tensor) -> None:
        self.work = workspace(like)
        self.all = empty((2, *x.shape[:2], 1), like) if any(ctx.needs_input_grad) else None
        self.shape = x.shape

    def __call__(self, b: slice, n: slice) -> Tensor:
        if self.all is not None:
            return self.all[:, b, n]
        sizes = (len(range(*part.indices(size))) for part, size in zip((b, n), self.shape, strict=False))
        return self.work("moments", 2, *sizes, 1)


def keep(ctx: Any, like: Tensor, dtype: torch.dtype, *shape: int) -> Tensor | None:
    """Memory for what the backward pass would have to compute again, where it is worth keeping."""
    worth = any(ctx.needs_input_grad) and like.shape[-1] >= WIDE and like.device.type == "cpu"
    return empty(shape, like, dtype) if worth and math.prod(shape) * dtype.itemsize <= KEPT else None


def normalised(x: Tensor, eps: float, moments: Tensor, out: Tensor) -> tuple[Tensor, bool]:
    """`scaled`, and whether its rows are `far`; mean and 1 / sqrt(variance + eps) are written to `moments` (2, ...)."""
    mean, deviation = moments
    far = True
    if x.device.type == "cpu":  # where PyTorch's own kernel takes several times as long as two sums
        torch.mean(x, -1, True, out=mean)
        torch.linalg.vector_norm(x, dim=-1, keepdim=True, out=deviation)
        deviation.square_().addcmul_(mean, mean, value=-x.shape[-1]).div_(x.shape[-1]).add_(eps).rsqrt_()
        low, high = torch.aminmax(mean * deviation)
        far = not bool((low >= -FAR) & (high <= FAR))  # not a number: far
    if far:
        _, moments[0], moments[1] = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
    return scaled(x, moments, far, out), far


def scaled(x: Tensor, moments: Tensor, far: bool, out: Tensor) -> Tensor:
    """Rows over their deviations, less their means only where one is far from 0: they meet what sums to 0 anyway."""
    mean, deviation = moments
    return torch.sub(x, mean, out=out).mul_(deviation) if far else torch.mul(x, deviation, out=out)


def normalised_backward(d: Tensor, x: Tensor, moments: Tensor) -> Tensor:
    return torch.ops.aten.native_layer_norm_backward(d, x, x.shape[-1:], *moments, None, None, [True, False, False])[0]


def centred(x: Tensor) -> Tensor:
    """What gives the same products with a row as with the row less its mean."""
    return x - x.mean(-1, True)


def derived(
    function: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor | None, ...], upstream: tuple[Tensor, ...]
) -> list[Tensor | None]:
    """Gradients of the inputs that can themselves be differentiated; None of what needs none."""
    # An input may come from another one: what is wanted ends at views of them.
    views = [None if x is None else x.view_as(x) for x in inputs]
    wanted = [x for x in views if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(function(*views), wanted, upstream, create_graph=True, allow_unused=True))
    return [next(found) if x is not None and x.requires_grad else None for x in views]


class Gather(torch.autograd.Function):
    """(peak, sums of w, sums of w x) of the points `folded` (1, P, D), all of whose scores are larger by `offset`.

    Shapes: x (B, N, D), log_m (B, N) or None; offset (1, P, 1); peak (B, P, 1), or given; sums, in float64, (B, P, 1)
    and (B, P, D).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, log_m: Tensor | None, folded: Tensor, offset: Tensor, peak: Tensor | None, eps: float
    ):
        sets, points, dim = len(x), folded.shape[1], x.shape[2]
        dtype, low, work = folded.dtype, narrow(x.dtype), workspace(folded)
        rows, done = centred(folded), []
        count, total = (wide(folded.new_zeros((sets, points, size))) for size in (1, dim))
        moments = Moments(ctx, folded, x)
        # The offset cancels in a state, but for the peak: scores are measured without it.
        known = peak is not None or moderate(rows, log_m)
        start = 0 if known else -torch.inf
        top = folded.new_full((sets, points, 1), start) if peak is None else peak.to(folded.dtype) - offset
        shifted = bool(top.any())
        kept = keep(ctx, folded, low, sets, points, x.shape[1]) if known else None
        for b, n in tiles(x):
            tile = work.cast("tile", x[b, n], dtype)
            z, far = normalised(tile, eps, moments(b, n), work("z", *tile.shape))
            done.append((b, n, far))
            z = work.cast("low z", z, low)
            w = work.cast("w", products(rows.to(low), z, work("low w", len(z) * points, z.shape[1], dtype=low)), dtype)
            if log_m is not None:
                w += log_m[b, None, n]
            if not known:
                here = torch.maximum(top[b], w.amax(-1, True))
                factor = torch.exp(wide(top[b]) - wide(safe(here)))
                count[b] *= factor
                total[b] *= factor
                top[b] = here
            if shifted:
                w -= safe(top[b])
            w.exp_()
            count[b] += w.sum(-1, True)
            total[b] += batched(work.cast("low w", w, low), z.mT)
            if kept is not None:
                kept[b, :, n] = w
        total -= total.mean(-1, True)
        ctx.save_for_backward(x, log_m, folded, offset, top, moments.all, kept)
        ctx.eps, ctx.tiles = eps, done
        peak = top + offset
        ctx.mark_non_differentiable(peak)
        return peak, count, total

    @staticmethod
    def plain(
        peak: Tensor, eps: float, x: Tensor, log_m: Tensor | None, folded: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor]:
        z = F.layer_norm(x.to(folded.dtype), x.shape[-1:], eps=eps)
        s = folded @ z.mT + offset - safe(peak)
        w = wide(torch.exp(s if log_m is None else s + log_m[:, None]))
        return w.sum(-1, True), w @ wide(z)

    @staticmethod
    def backward(ctx: Any, _: Any, d_count: Tensor, d_total: Tensor):
        x, log_m, folded, offset, top, moments, kept = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            plain = partial(Gather.plain, (top + offset).detach(), ctx.eps)
            found = derived(plain, (x, log_m, folded, offset), (d_count, d_total))
            return *found, None, None
        d_x = empty(x.shape, x) if ctx.needs_input_grad[0] else None
        d_log_m = None if log_m is None or not ctx.needs_input_grad[1] else torch.empty_like(log_m)
        d_folded, d_offset = (wide(torch.zeros_like(v)) for v in (folded, offset))
        d_count, d_total = d_count.to(folded.dtype), centred(d_total.to(folded.dtype))
        points, rows = folded.shape[1], centred(folded).expand(len(x), -1, -1)
        # Two products with z^T are one, and so are two whose results are added.
        before, after = torch.cat((rows, d_total), 1) if kept is None else d_total, torch.cat((d_total, rows), 1)
        dtype, low, work = folded.dtype, narrow(x.dtype), workspace(folded)
        before, after, shifted = before.to(low), after.to(low), bool(top.any())
        for b, n, far in ctx.tiles:
            tile = work.cast("tile", x[b, n], dtype)
            z = work.cast("low z", scaled(tile, moments[:, b, n], far, work("z", *tile.shape)), low)
            both = batched(before[b], z, work("low both", len(z), before.shape[1], z.shape[1], dtype=low))
            if kept is None:
                both = work.cast("both", both, dtype)
            else:
                both = torch.cat((kept[b, :, n], both), 1, out=work("both", len(z), 2 * points, z.shape[1]))
            w, d_s = both[:, :points], both[:, points:]
            if kept is None:
                if log_m is not None:
                    w += log_m[b, None, n]
                if shifted:
                    w -= safe(top[b])
                w.exp_()
            d_s.add_(d_count[b]).mul_(w)
            if d_log_m is not None:
                d_log_m[b, n] = d_s.sum(1)
            low_both = work.cast("low both", both, low)
            d_folded[0] += batched(low_both[:, points:], z.mT).sum(0)
            d_offset[0] += d_s.sum((0, 2))[:, None]
            if d_x is not None:
                d_z = work.cast("z", batched(low_both.mT, after[b].mT, z), dtype)
                d_x[b, n] = normalised_backward(d_z, tile, moments[:, b, n])
        return d_x, d_log_m, centred(d_folded).to(folded.dtype), d_offset.to(folded.dtype), None, None


class Spread(torch.autograd.Function):
    """Elements attend to the points' context, and through the FFN.

    Shapes: x (B, N, D); keys, values (B, H k, D), offset (B, H k, 1); w1 (F, D), b1 (F,), w2 (D, F), b2 (D,) or None.
    """

    @staticmethod
    def forward(ctx: Any, x, keys, offset, values, heads: int, activation: Any, eps: float, w1, b1, w2, b2):
        out, dtype, low, work = empty(x.shape, x), keys.dtype, narrow(x.dtype), workspace(keys)
        moments, moments_y = (Moments(ctx, keys, x) for _ in range(2))
        rows, low_values = centred(keys).to(low), values.to(low)
        kept = keep(ctx, keys, low, len(x), keys.shape[1], x.shape[1])
        kept_hidden = None if w1 is None else keep(ctx, keys, low, *x.shape[:2], len(w1))
        kept_y = None if w1 is None else keep(ctx, keys, dtype, *x.shape)
        act, done = None if w1 is None else ACTIVATIONS[activation][0], []
        ffn: Any = [] if w1 is None else [v.to(low) for v in (centred(w1), b1, w2, b2)]
        for b, n in tiles(x):
            tile = work.cast("tile", x[b, n], dtype)
            z, far = normalised(tile, eps, moments(b, n), work("z", *tile.shape))
            z = work.cast("low z", z, low)
            p = work.cast("low p", weights(rows[b], offset[b], z, heads, work), low)
            if kept is not None:
                kept[b, :, n] = p
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
                hidden = linear(u, ffn[0], ffn[1], work("hidden", len(u), len(ffn[0]), dtype=low))
                if kept_hidden is not None:
                    kept_hidden[b, n] = hidden.view(*tile.shape[:2], -1)
                y = add_linear(y.flatten(0, 1), act(hidden), ffn[2], ffn[3]).view_as(tile)
            done.append((b, n, far, far_y))
            if not direct:
                out[b, n] = y
        saved = x, keys, offset, values, moments.all, moments_y.all, kept, kept_hidden, kept_y
        ctx.save_for_backward(*saved, w1, b1, w2, b2)
        ctx.heads, ctx.activation, ctx.eps, ctx.tiles = heads, activation, eps, done
        return out

    @staticmethod
    def plain(heads: int, activation: Any, eps: float, x, keys, offset, values, w1, b1, w2, b2) -> tuple[Tensor]:
        tile = x.to(keys.dtype)
        s = keys @ F.layer_norm(tile, x.shape[-1:], eps=eps).mT + offset
        y = tile + s.unflatten(1, (heads, -1)).softmax(2).flatten(1, 2).mT @ values
        if w1 is not None:
            y = y + F.linear(activation()(F.linear(F.layer_norm(y, x.shape[-1:], eps=eps), w1, b1)), w2, b2)
        return (y.to(x.dtype),)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor):
        x, keys, offset, values, moments, moments_y, kept, kept_hidden, kept_y, w1, b1, w2, b2 = ctx.saved_tensors
        eps, dtype = ctx.eps, keys.dtype
        if torch.is_grad_enabled():  # a second derivative is wanted
            plain = partial(Spread.plain, ctx.heads, ctx.activation, eps)
            found = derived(plain, (x, keys, offset, values, w1, b1, w2, b2), (d_out,))
            return *found[:4], None, None, None, *found[4:]
        d_x, low, work = empty(x.shape, x), narrow(x.dtype), workspace(keys)
        d_keys, d_offset, d_values = (wide(torch.zeros_like(v)) for v in (keys, offset, values))
        d_ffn = None if w1 is None else [wide(torch.zeros_like(v)) for v in (w1, b1, w2, b2)]
        rows, low_values = centred(keys).to(low), values.to(low)
        ffn: Any = [] if w1 is None else [v.to(low) for v in (centred(w1), b1, w2)]
        for b, n, far, far_y in ctx.tiles:
            tile, d_y = work.cast("tile", x[b, n], dtype), d_out[b, n]
            z = work.cast("low z", scaled(tile, moments[:, b, n], far, work("z", *tile.shape)), low)
            if kept is None:
                p = weights(rows[b], offset[b], z, ctx.heads, work)
            else:
                p = work("p", len(z), keys.shape[1], z.shape[1]).copy_(kept[b, :, n])
            low_p = work.cast("low p", p, low)
            if d_ffn is not None:
                if kept_y is None:
                    y = batched(low_p.mT, low_values[b].mT, work("u", *tile.shape, dtype=low))
                    y = torch.add(tile, y, out=work("y", *tile.shape))
                else:
                    y = kept_y[b, n]
                u = scaled(y, moments_y[:, b, n], far_y, work("u", *tile.shape)).flatten(0, 1)
                u = work.cast("low u", u, low)
                flat = work.cast("low d_y", d_y, low).contiguous().flatten(0, 1)
                first, bias, second = ffn
                before = work("before", len(u), len(first), dtype=low)
                if kept_hidden is None:
                    before = linear(u, first, bias, before)
                else:
                    before.view(*tile.shape[:2], -1).copy_(kept_hidden[b, n])
                act, act_backward = ACTIVATIONS[ctx.activation]
                hidden = act(before)
                d_hidden = linear(flat, second.mT, out=work("d_hidden", len(u), len(first), dtype=low))
                d_hidden = act_backward(d_hidden, before)
                sums = d_hidden.mT @ u, d_hidden.sum(0), flat.mT @ hidden, flat.sum(0)
                for total, part in zip(d_ffn, sums, strict=True):
                    total += part
                d_u = work.cast("u", linear(d_hidden, first.mT, out=u).view_as(y), dtype)
                d_y = normalised_backward(d_u, y, moments_y[:, b, n]).add_(d_y)
            d_y = work.cast("d_y", d_y, dtype)
            low_d_y = work.cast("low d_y", d_y, low)
            d_values[b] += batched(low_p, low_d_y.mT)
            d_p = batched(low_values[b], low_d_y, work("low d_p", *p.shape, dtype=low))
            p4, d4 = (v.unflatten(1, (ctx.heads, -1)) for v in (p, work.cast("d_p", d_p, dtype)))
            d_s = torch._softmax_backward_data(d4, p4, 2, dtype, grad_input=work("d_s", *p4.shape)).flatten(1, 2)
            d_offset[b] += d_s.sum(-1, True)
            low_d_s = work.cast("low p", d_s, low)
            d_keys[b] += batched(low_d_s, z.mT)
            d_z = work.cast("z", batched(low_d_s.mT, rows[b].mT, z), dtype)
            d_z = normalised_backward(d_z, tile, moments[:, b, n])
            if d_x.dtype == dtype:
                torch.add(d_y, d_z, out=d_x[b, n])
            else:
                d_x[b, n] = d_z.add_(d_y)
        d_keys = centred(d_keys)
        if d_ffn is not None:
            d_ffn[0] = centred(d_ffn[0])
        grads = [None] * 4 if d_ffn is None else [g.to(dtype) for g in d_ffn]
        return d_x, d_keys.to(dtype), d_offset.to(dtype), d_values.to(dtype), None, None, None, *grads


def products(points: Tensor, z: Tensor, out: Tensor) -> Tensor:
    """(sets, points, elements) of points (1, P, D) that all sets share: one product for all sets of a tile."""
    sets, elements, _ = z.shape
    found = linear(points[0], z.flatten(0, 1), out=out.view(-1, sets * elements))
    return found.view(-1, sets, elements).transpose(0, 1)


def weights(keys: Tensor, offset: Tensor, z: Tensor, heads: int, work: Workspace) -> Tensor:
    shape = len(z), keys.shape[1], z.shape[1]
    s = batched(keys, z, work("low p", *shape, dtype=z.dtype))
    s = torch.add(s, offset, out=work("p", *shape)).unflatten(1, (heads, -1))
    return torch._softmax(s, 2, False, out=s).flatten(1, 2)


def moderate(points: Tensor, log_m: Tensor | None) -> bool:
    """Whether no score can be so large or small that its exponential would have to be measured against a peak.

    A normalised element is no longer than sqrt(D), so that its product with a point is bounded by the point's length.
    """
    bound = points.norm(dim=-1).amax() * points.shape[-1] ** 0.5 if points.numel() else 0.0
    if log_m is not None and log_m.numel():
        bound = bound + log_m.masked_fill(log_m == -torch.inf, 0).abs().amax()
    return bool(bound <= MODERATE)


def safe(peak: Tensor) -> Tensor:
    return torch.where(peak == -torch.inf, 0, peak)


Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
ACTIVATIONS: dict[type[nn.Module], Activation] = {  # and gradients, from their own gradient and what went in
    # In place: what went in is positive where it was.
    nn.ReLU: (torch.relu_, lambda d, before: torch.ops.aten.threshold_backward(d, before, 0, grad_input=d)),
    nn.GELU: (F.gelu, torch.ops.aten.gelu_backward),
    nn.SiLU: (F.silu, torch.ops.aten.silu_backward),
}
