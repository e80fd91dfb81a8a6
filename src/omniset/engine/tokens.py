"""Class tokens: learned elements of multiplicity 1 that join the first shard and come out of it as the summary."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from omniset.engine.stages import Stage, Wrapper


class JoinedByTokens(Wrapper):
    """The first stage, which puts the class tokens in front of the elements of the first shard."""

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
    return torch.cat([m.new_ones(len(m), number), m], 1) if number else m
