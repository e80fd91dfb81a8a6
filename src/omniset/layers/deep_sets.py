"""Pooling of Deep Sets (Zaheer et al., "Deep Sets", 2017) over multisets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from omniset.layers.base import SetLayer
from omniset.pages import empty
from omniset.states import State, wide

Pooling = Literal["mean", "sum", "max"]


@dataclass(frozen=True)
class SumState(State):
    """sums: sum of m x (B, D) and sum of m (B, 1)."""


@dataclass(frozen=True)
class MaxState(State):
    """peak: the maximum (B, D). sums: of m x over the elements that reach it, and of their m; the ratio is the maximum.

    Written so, ties share the gradient by multiplicity, just as repeated elements would.
    """

    def factor(self, peak: Tensor | None) -> Tensor:
        assert self.peak is not None
        assert peak is not None
        return wide((self.peak == peak) & (peak > -torch.inf))


class SetPooling(SetLayer):
    """mean: sum m x / sum m. sum: sum m x. max: the largest present x, per channel. An empty set gives 0.

    Raises:
        ValueError: Another pooling.
    """

    def __init__(self, pooling: Pooling = "mean") -> None:
        super().__init__()
        if pooling not in ("mean", "sum", "max"):
            raise ValueError(f"pooling must be 'mean', 'sum' or 'max', got {pooling!r}")
        self.pooling = pooling

    def forward(
        self, elements: Float[Tensor, "sets elements dim"], multiplicity: Shaped[Tensor, "sets elements"]
    ) -> Float[Tensor, "sets 1 dim"]:
        return self.finish(self.reduce(elements, multiplicity))

    def reduce(
        self,
        elements: Float[Tensor, "sets elements dim"],
        multiplicity: Shaped[Tensor, "sets elements"],
        peak: Tensor | None = None,
    ) -> State:
        m = multiplicity.to(elements.dtype)[..., None]
        if self.pooling != "max":
            return SumState(None, (weighted_sum(m, elements), m.sum(1)))
        if peak is None:
            seen = torch.where(m > 0, elements, -torch.inf).detach()
            some = elements.shape[1] > 0
            peak = seen.amax(1) if some else seen.new_full((len(seen), seen.shape[2]), -torch.inf)
        m = torch.where(elements.detach() == peak[:, None], m, 0)
        return MaxState(peak, ((m * elements).sum(1), m.sum(1)))  # m has channels here

    def finish(self, state: State) -> Float[Tensor, "sets 1 dim"]:
        total, weight = state.sums
        pooled = total if self.pooling == "sum" else total / torch.where(weight == 0, 1, weight)
        return pooled[:, None]


BLOCK = 1024  # elements that one product adds up in the precision of the elements


def weighted_sum(m: Tensor, elements: Tensor) -> Tensor:
    """Sum of m x over the elements of each set, (B, N, 1) and (B, N, D) to (B, D)."""
    # Compilers and the transforms of torch.func go through plain operations only; half precision adds up in float32.
    plain = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if plain or torch.is_autocast_enabled(elements.device.type) or elements.dtype not in (torch.float32, torch.float64):
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
