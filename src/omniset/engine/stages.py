"""The stages of an encoder: the map of one layer, then the reduce and the finish of the next."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from omniset.engine.stack import Stack


class Stage:
    """Stage t of an encoder: map of layer t - 1; reduce and finish of layer t, or of the pool.

    The number i of a shard is there for those that do something else with one shard than with another (`Wrapper`).
    """

    def __init__(self, encoder: Stack, t: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        reducer: Any = encoder.pool if t == len(encoder.layers) else encoder.layers[t]
        self.mapper: Any = encoder.layers[t - 1] if t else encoder.embed
        # The context is all elements, as full self-attention needs it: reduce and finish do nothing.
        self.keeps_elements = reducer is not None and reducer.keeps_elements
        self.reducer: Any = None if self.keeps_elements else reducer
        self.modules = [module for module in (self.mapper, reducer) if module is not None]

    @cached_property
    def parameters(self) -> list[Tensor]:
        """Those that are trained."""
        return [p for m in self.modules for p in m.parameters() if p.requires_grad]

    def map(self, i: int, x: Tensor, context: Any) -> Tensor:
        return self.mapper.map(x, context)

    def reduce(self, i: int, x: Tensor, m: Tensor, peak: Tensor | None = None) -> Any:
        if self.reducer is None:
            return None
        return self.reducer.reduce(x, m, peak)

    def finish(self, state: Any) -> Any:
        return None if state is None else self.reducer.finish(state).to(self.dtype)


class FirstStage(Stage):
    """Its map embeds the source."""

    def __init__(self, encoder: Stack, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(encoder, 0, dtype)
        self.device = device

    def map(self, i: int, x: Tensor, context: None) -> Tensor:
        return self.mapper(x.to(self.device, self.dtype))


class Wrapper(Stage):
    """Delegates to `stage`; subclasses override one method."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.keeps_elements = stage, stage.keeps_elements

    @cached_property
    def parameters(self) -> list[Tensor]:
        return self.stage.parameters

    def map(self, i: int, x: Tensor, context: Any) -> Tensor:
        return self.stage.map(i, x, context)

    def reduce(self, i: int, x: Tensor, m: Tensor, peak: Tensor | None = None) -> Any:
        return self.stage.reduce(i, x, m, peak)

    def finish(self, state: Any) -> Any:
        return self.stage.finish(state)


class JoinedByTokens(Wrapper):
    """The first stage, which puts class tokens in front of the elements of the first shard: learned elements of
    multiplicity 1, which come out of it as the summary.
    """

    def __init__(self, stage: Stage, tokens: Tensor, here: bool) -> None:
        super().__init__(stage)
        self.tokens, self.here = tokens, here

    @cached_property
    def parameters(self) -> list[Tensor]:
        return [*self.stage.parameters, *([self.tokens] if self.tokens.requires_grad else [])]

    def map(self, i: int, x: Tensor, context: Any) -> Tensor:
        x = super().map(i, x, context)
        return torch.cat([self.tokens.expand(len(x), -1, -1), x], 1) if self.here and i == 0 else x


def prepend_ones(number: int, m: Tensor) -> Tensor:
    """Multiplicities of a shard with so many class tokens in front."""
    return torch.cat([m.new_ones(m.shape[0], number), m], 1) if number else m


def stages_of(encoder: Stack, device: torch.device, dtype: torch.dtype) -> list[Stage]:
    return [FirstStage(encoder, device, dtype), *(Stage(encoder, t, dtype) for t in range(1, len(encoder.layers) + 1))]


def parameters_of(stages: Iterable[Stage]) -> list[Tensor]:
    """Each once: a layer is in two stages, in one for its reduce and in the other for its map."""
    return list({id(p): p for stage in stages for p in stage.parameters}.values())
