"""Attention-based deep multiple-instance learning."""

from __future__ import annotations

from torch import nn

from omniset.encoders.base import Encoder
from omniset.encoders.deep_sets import mlp
from omniset.layers.instances import GatedAttentionPooling


class ABMIL(Encoder):
    """Gated attention pooling of embedded elements (Ilse et al., "Attention-based Deep Multiple Instance Learning",
    2018). The embedding is (Linear, activation) x depth, Linear.

    Args:
        input_dim: Features of an element.
        dim: Width.
        depth: Hidden layers of the embedding, >= 0.
        num_outputs: Vectors in the summary, each with an attention of its own over the set; the paper has one.
        attention_dim: Width of the attention. None: dim.
        gated: With the gate of the paper's Eq. 9; False: its Eq. 8.
    """

    outputs_elements = False
    cross_attention = True

    def __init__(
        self,
        *,
        input_dim: int,
        dim: int,
        depth: int = 1,
        num_outputs: int = 1,
        attention_dim: int | None = None,
        gated: bool = True,
        activation: str = "relu",
    ) -> None:
        super().__init__(input_dim, dim, num_outputs)
        self.embed = mlp(input_dim, dim, dim, depth, activation)
        self.pool = GatedAttentionPooling(dim, num_outputs, attention_dim, gated)
        self.decoder = nn.Sequential()
