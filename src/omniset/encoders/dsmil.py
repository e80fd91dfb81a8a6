"""Dual-stream multiple-instance learning."""

from __future__ import annotations

from torch import nn

from omniset.encoders.base import Encoder
from omniset.encoders.deep_sets import mlp
from omniset.layers.instances import CriticalAttention, CriticalInstances


class DSMIL(Encoder):
    """DSMIL: the element with the largest score, and attention of it to all (Li et al., "Dual-stream Multiple Instance
    Learning Network for Whole Slide Image Classification with Self-supervised Contrastive Learning", 2021).

    The embedding is (Linear, activation) x depth, Linear. Two passes over the set follow: `CriticalInstances` and
    `CriticalAttention` say what they compute and where they depart from the paper.

    Args:
        input_dim: Features of an element.
        dim: Width.
        depth: Hidden layers of the embedding, >= 0.
        num_outputs: Vectors in the summary, each of a score and a critical instance of its own: the paper's classes.
        attention_dim: Width of the queries. None: dim.
    """

    outputs_elements = False
    cross_attention = self_attention = True

    def __init__(
        self,
        *,
        input_dim: int,
        dim: int,
        depth: int = 1,
        num_outputs: int = 1,
        attention_dim: int | None = None,
        activation: str = "relu",
    ) -> None:
        super().__init__(input_dim, dim, num_outputs)
        self.embed = mlp(input_dim, dim, dim, depth, activation)
        self.layers = nn.ModuleList([CriticalInstances(dim, num_outputs, attention_dim)])
        self.pool = CriticalAttention(dim, num_outputs)
        self.decoder = nn.Sequential()
