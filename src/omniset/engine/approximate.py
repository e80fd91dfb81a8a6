"""Gradients that are not exact, through plain autograd: what a stage does to its gradient on the way up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from omniset.core.sets import SetBatch
from omniset.core.states import State, wide
from omniset.engine.self_attention import AllElements
from omniset.engine.stages import Stage, Wrapper


def _is_first(i: int) -> bool:
    return i == 0


class FirstShardOnly(Wrapper):
    """No gradient goes through the map or reduce of another shard, nor is a graph made there."""

    def map(self, i: int, x: Tensor, context: Any) -> Tensor:
        if isinstance(context, AllElements):
            context = replace(context, live=_is_first)
        with torch.set_grad_enabled(torch.is_grad_enabled() and _is_first(i)):
            return super().map(i, x, context)

    def reduce(self, i: int, x: Tensor, m: Tensor, peak: Tensor | None = None) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled() and _is_first(i)):
            return super().reduce(i, x, m, peak)


class OthersDetached(Wrapper):
    """The pool, where the gradient stops at all shards but the first."""

    def reduce(self, i: int, x: Tensor, m: Tensor, peak: Tensor | None = None) -> Any:
        return super().reduce(i, x if _is_first(i) else x.detach(), m, peak)


class ScaledSums(Wrapper):
    """The gradient of each set's sums, (sets,) times as large."""

    def __init__(self, stage: Stage, scale: Float[Tensor, " sets"]) -> None:
        super().__init__(stage)
        self.scale = scale

    def finish(self, state: State | None) -> Tensor | None:
        return super().finish(None if state is None else state.with_gradient_scaled(self.scale))


def entries_per_entry_of_first(parts: Iterable[SetBatch]) -> Float[Tensor, " sets"]:
    """How many present entries each set has for every one of its first shard."""
    counts = [(part.multiplicity > 0).sum(1) for part in parts]
    return wide(sum(counts[1:], counts[0])) / counts[0].clamp(min=1)
