"""Pooling of Deep Sets (Zaheer et al., "Deep Sets", 2017) over multisets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from omniset.core.states import State, wide
from omniset.kernels.sums import weighted_sum
from omniset.layers.base import SetLayer

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
            has_elements = elements.shape[1] > 0
            peak = seen.amax(1) if has_elements else seen.new_full((len(seen), seen.shape[2]), -torch.inf)
        # The engine's backward computes x again, and it must equal the forward's bit for bit to be found here.
        m = torch.where(elements.detach() == peak[:, None], m, 0)
        return MaxState(peak, ((m * elements).sum(1), m.sum(1)))  # m has channels here

    def finish(self, state: State) -> Float[Tensor, "sets 1 dim"]:
        total, weight = state.sums
        pooled = total if self.pooling == "sum" else total / torch.where(weight == 0, 1, weight)
        return pooled[:, None]
