"""The running state of a set, which shards are merged into.

`State.merge` is associative and commutative up to rounding, so that any split of a set, in any order, sums up to the
same. The state of no elements changes nothing (the identity of a monoid); the engine needs none, it starts from None.
Only FSPool's states do not merge to that of the union; its encoder has `mini_batch_consistent = False`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

S = TypeVar("S", bound="State")


@dataclass(frozen=True)
class State:
    """Sums over elements, measured against a peak.

    The peak is a reference that keeps exp(score - peak) in range: mostly the largest score (kernels/gather.py takes 0
    where no score is large). `factor` carries the sums over to another peak, and `finish` cancels it. Max pooling
    differs: its peak is the maximum itself, its factor 0 or 1. None: the sums need no peak. For autograd the peak is a
    constant, and *given the final peak the state is a plain sum over the elements*: that is what makes exact gradients
    through shards possible (omniset.engine.exact).
    """

    peak: Tensor | None
    sums: tuple[Tensor, ...]

    def factor(self, peak: Tensor | None) -> Tensor | float:
        """What carries these sums over to another peak (>= self.peak)."""
        return 1.0

    def merge(self: S, other: S) -> S:
        """The state of both sets of elements together. Accumulates in float64 (float32 on MPS)."""
        peak = None if self.peak is None or other.peak is None else torch.maximum(self.peak, other.peak)
        f, g = self.factor(peak), other.factor(peak)
        return replace(
            self, peak=peak, sums=tuple(wide(a) * f + wide(b) * g for a, b in zip(self.sums, other.sums, strict=True))
        )

    def with_gradient_scaled(self: S, scale: Tensor) -> S:
        """The same values, and `scale`, (sets,), times the gradient."""
        scales = (scale.to(s).view(-1, *[1] * (s.dim() - 1)) for s in self.sums)
        sums = tuple(s.detach() + (s - s.detach()) * c for s, c in zip(self.sums, scales, strict=True))
        return replace(self, sums=sums)


def wide(x: Tensor) -> Tensor:
    """In the dtype in which small sums over many shards are kept: float64, float32 on MPS, which has no other."""
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)
