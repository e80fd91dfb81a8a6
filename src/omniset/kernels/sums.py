"""Weighted sums over the elements of sets, without the weighted elements."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from omniset.core.private import plain_only
from omniset.kernels.pages import empty

BLOCK = 1024  # elements that one product adds up in the precision of the elements


def weighted_sum(m: Tensor, elements: Tensor) -> Tensor:
    """Sum of m x over the elements of each set, (B, N, 1) and (B, N, D) to (B, D)."""
    half = elements.dtype not in (torch.float32, torch.float64)  # which adds up in float32 here
    if half or plain_only() or torch.is_autocast_enabled(elements.device.type):
        return (m * elements).sum(1)
    return WeightedSum.apply(m, elements)


class WeightedSum(torch.autograd.Function):
    """As products of matrices, of blocks that are short enough not to lose digits: m x is never there as a whole."""

    @staticmethod
    def forward(ctx: Any, m: Tensor, elements: Tensor) -> Tensor:
        ctx.save_for_backward(m, elements)
        number = elements.shape[1]
        if number <= BLOCK:
            return torch.bmm(m.mT, elements)[:, 0]
        whole = number // BLOCK * BLOCK
        rest = torch.bmm(m[:, whole:].mT, elements[:, whole:])[:, 0]
        weights, blocks = (x[:, :whole].unflatten(1, (-1, BLOCK)) for x in (m, elements))
        sums = [torch.bmm(w.mT, x).sum(0) for w, x in zip(weights, blocks, strict=True)]  # set by set
        return rest + torch.cat(sums)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, Tensor | None]:
        m, elements = ctx.saved_tensors
        d_m = elements @ d[..., None] if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return d_m, None
        # Where a second derivative is wanted, autograd follows, and takes no memory of ours.
        into = None if torch.is_grad_enabled() else empty(elements.shape, elements)
        return d_m, torch.mul(m, d[:, None], out=into)
