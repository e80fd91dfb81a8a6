"""Slot Set Encoders, one or a hierarchy."""

from __future__ import annotations

from torch import nn

from omniset.core.checks import check_sizes
from omniset.encoders.base import Encoder, linear_layers
from omniset.layers.slots import SlotSetEncoder, Weighting


class HierarchicalSlotSetEncoder(Encoder):
    """Linear layers, `depth` Slot Set Encoders one on the other (Andreis et al., 2021).

    Only the first reads the set; each further one reads the slots before it.

    Args:
        input_dim: Features of an element.
        dim: Width, divisible by num_heads.
        depth: Slot Set Encoders, >= 1.
        num_inducing: Slots of all but the last, which has num_outputs.
        num_outputs: Vectors in the summary.
        input_layers: Linear layers before, ReLU between them.
        weighting: As in SlotSetEncoder, and so random.
    """

    outputs_elements = False
    cross_attention = True

    def __init__(
        self,
        *,
        input_dim: int,
        dim: int,
        num_heads: int,
        num_inducing: int = 16,
        depth: int = 1,
        num_outputs: int = 1,
        input_layers: int = 1,
        weighting: Weighting = "sigmoid",
        random: bool = True,
    ) -> None:
        super().__init__(input_dim, dim, num_outputs)
        check_sizes(depth=depth, num_inducing=num_inducing)
        self.embed = linear_layers(input_dim, dim, input_layers)
        slots = [num_inducing] * (depth - 1) + [num_outputs]
        encoders = [SlotSetEncoder(dim, num_heads, number, weighting, random) for number in slots]
        self.pool = encoders[0]
        self.decoder = nn.Sequential(*encoders[1:])
