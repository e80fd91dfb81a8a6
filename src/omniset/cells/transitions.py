"""Networks that move the cells of a population, each in the light of all others; and what they are taught by.

All cells are in principal components, divided by the deviation along the first one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset import encoders
from omniset.cells.shifts import energy_distance
from omniset.core.sets import SetBatch
from omniset.layers import SetAttentionBlock
from omniset.training.fit import TrainingModule

DRAWN = 256  # cells of a population in a step


class Correction(nn.Module):
    """W f(cell | population), in principal components.

    Args:
        components: Their number P. A cell comes with its group's shift, so that f knows what is done: 2 P numbers.
    """

    def __init__(self, components: int, *, encoder: str, dim: int, **sizes: Any) -> None:
        super().__init__()
        self.encoder = encoders.build(encoder, input_dim=2 * components, dim=dim, **sizes)
        self.out = nothing_at_first(dim, components)

    def forward(
        self, cells: Float[Tensor, "cells components"], shift: Float[Tensor, " components"]
    ) -> Float[Tensor, "cells components"]:
        given = torch.cat((cells, shift.expand_as(cells)), 1)
        elements: Any = self.encoder(SetBatch(given[None])).elements
        return self.out(elements[0])


class Transition(nn.Module):
    """The form of STATE's transition model: what each cell moves by.

        h_i   = W_2 GELU(W_1 x_i + b_1) + b_2 + t_p       x_i an untreated cell, t_p the token of the perturbation
        h     = depth x full attention among the cells, with no order (`omniset.layers.SetAttentionBlock`)
        moved = x_i + W h_i

    Adduri et al., "Predicting cellular responses to perturbation across diverse contexts with State", 2025. There,
    cells are genes or embeddings, the transformer is that of a language model without its positions, sets have one
    size, and a token of the batch may be added. Here they are principal components, layers are ours, a set has at most
    256 cells in training and is the whole population when it is used, W starts at 0, and batches have no token: a new
    donor is known by its cells alone.

    Args:
        components: Of a cell.
        perturbations: Number of tokens.
    """

    def __init__(self, components: int, perturbations: int, *, dim: int, depth: int, num_heads: int) -> None:
        super().__init__()
        self.cell = nn.Sequential(nn.Linear(components, dim), nn.GELU(), nn.Linear(dim, dim))
        self.tokens = nn.Embedding(perturbations, dim)
        self.layers = nn.ModuleList(SetAttentionBlock(dim, num_heads, 4 * dim, activation="gelu") for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.out = nothing_at_first(dim, components)

    def forward(
        self, cells: Float[Tensor, "cells components"], perturbation: Int[Tensor, ""]
    ) -> Float[Tensor, "cells components"]:
        h = (self.cell(cells) + self.tokens(perturbation))[None]
        for layer in self.layers:
            h = layer(h)
        return self.out(self.norm(h[0]))


def nothing_at_first(dim: int, components: int) -> nn.Linear:
    """A linear layer that gives 0 until it has learned."""
    out = nn.Linear(dim, components)
    nn.init.zeros_(out.weight)
    nn.init.zeros_(out.bias)
    return out


@dataclass
class Pair:
    """Untreated and treated cells of a group.

    Attributes:
        shift: What all move by, beside what the network says.
        given: What the network is told of what is done: the shift, or the number of the perturbation.
    """

    control: Float[Tensor, "controls components"]
    treated: Float[Tensor, "treated components"]
    shift: Float[Tensor, " components"]
    given: Tensor

    def some(self, rng: np.random.Generator) -> Pair:
        """At most 256 cells of either population."""
        rows = [torch.from_numpy(rng.permutation(len(x))[:DRAWN]) for x in (self.control, self.treated)]
        return Pair(self.control[rows[0]], self.treated[rows[1]], self.shift, self.given)


class PairModule(TrainingModule):
    """Energy distance between what is predicted and what was measured, mean over groups."""

    def training_step(self, batch: list[Pair], index: int) -> Tensor:
        losses = [
            energy_distance(pair.control + pair.shift + self.network(pair.control, pair.given), pair.treated)
            for pair in batch
        ]
        loss = torch.stack(losses).mean()
        self.log("train_loss", loss, batch_size=len(batch))
        return loss
