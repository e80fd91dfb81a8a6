"""Attention to sets that are there as a whole, by PyTorch's fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from omniset.core.attention import log_multiplicity
from omniset.core.private import KNOWS_TRANSFORMS, transformed


def fused_attention(q: Tensor, k: Tensor, v: Tensor, multiplicity: Tensor | None, scale: float) -> Tensor:
    """The average of the values of each set by its keys' weights, 0 for a set without elements.

    Args:
        q: (sets, heads, queries, d).
        k: (sets, heads, elements, d); v likewise.
        multiplicity: (sets, elements), of no gradient.
    """
    plain = transformed() or not KNOWS_TRANSFORMS
    bias, empty = (None, None) if multiplicity is None else masks(multiplicity, q.dtype, plain)
    if plain:  # under torch.func.vmap the fused one is a loop, and it has no forward mode
        return plain_attention(q, k, v, bias, empty, scale)
    average = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    if torch.compiler.is_compiling() or not average.requires_grad:
        return filled(average, empty)
    return FusedAttention.apply(average, q, k, v, bias, empty, scale)


def masks(multiplicity: Tensor, dtype: torch.dtype, differentiable: bool = False) -> tuple[Tensor, Tensor]:
    """What is added to the scores, (sets, 1, 1, elements), and whether a set is empty, (sets, 1, 1, 1).

    An empty set contributes nothing, and is masked afterwards: its softmax would be NaN.

    Args:
        differentiable: Transforms may differentiate multiplicities that do not say so.
    """
    empty = (multiplicity <= 0).all(1)[:, None, None, None]
    log_m = log_multiplicity(multiplicity, dtype) if differentiable else multiplicity.to(dtype).log()
    return log_m[:, None, None].masked_fill(empty, 0), empty


def plain_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, empty: Tensor | None, scale: float) -> Tensor:
    if k.shape[-2] < q.shape[-2]:  # queries innermost: a softmax over a few keys in a row takes three times as long
        scores = (k * scale) @ q.mT
        weights = (scores if bias is None else scores + bias.mT).softmax(-2)
        return filled((v.mT @ weights).mT, empty)
    scores = (q * scale) @ k.mT
    return filled((scores if bias is None else scores + bias).softmax(-1) @ v, empty)


def filled(x: Tensor, empty: Tensor | None) -> Tensor:
    return x.view_as(x) if empty is None else x.masked_fill(empty, 0)


class FusedAttention(torch.autograd.Function):
    """The average that fused attention has made, 0 for empty sets, with second derivatives, which it lacks.

    A gradient goes on to the fused attention's own backward. One that is to be differentiated again stops here, and
    those of q, k and v are computed anew by plain operations. What is kept, fused attention keeps anyway.
    """

    @staticmethod
    def forward(ctx: Any, average: Tensor, q: Tensor, k: Tensor, v: Tensor, bias, empty, scale: float):
        ctx.save_for_backward(q, k, v, bias, empty)
        ctx.scale = scale
        return filled(average, empty)

    @staticmethod
    def backward(ctx: Any, d: Tensor):
        q, k, v, bias, empty = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return filled(d, empty), *[None] * 6

        def plain(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
            return (plain_attention(q, k, v, bias, empty, ctx.scale),)

        return None, *derived(plain, (q, k, v), (d,)), *[None] * 3


def derived(
    function: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor | None, ...], upstream: tuple[Tensor, ...]
) -> list[Tensor | None]:
    """Gradients of the inputs that can themselves be differentiated; None of what needs none."""
    # An input may come from another one: what is wanted ends at views of them.
    views = [None if x is None else x.view_as(x) for x in inputs]
    wanted = [x for x in views if x is not None and x.requires_grad]
    gradients = iter(torch.autograd.grad(function(*views), wanted, upstream, create_graph=True, allow_unused=True))
    return [next(gradients) if x is not None and x.requires_grad else None for x in views]
