"""FSPool."""

from __future__ import annotations

from omniset.encoders.base import Encoder
from omniset.encoders.deep_sets import phi_and_rho
from omniset.layers.fspool import FeaturewiseSortPooling


class FSPool(Encoder):
    """Deep Sets with featurewise sort pooling (Zhang et al., 2020). Not mini-batch consistent.

    Args:
        input_dim: Features of an element.
        dim: Width.
        depth: Hidden layers of phi and of rho.
        num_outputs: Vectors in the summary, made of the pooled one by rho's last Linear.
        pieces: Of the weight as a function of the place.
    """

    outputs_elements = False
    mini_batch_consistent = False

    def __init__(
        self,
        *,
        input_dim: int,
        dim: int,
        depth: int = 3,
        num_outputs: int = 1,
        pieces: int = 20,
        activation: str = "relu",
    ) -> None:
        super().__init__(input_dim, dim, num_outputs)
        self.embed, self.decoder = phi_and_rho(input_dim, dim, depth, num_outputs, activation)
        self.pool = FeaturewiseSortPooling(dim, pieces)
