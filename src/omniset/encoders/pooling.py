"""Encoders that embed each element by itself and pool: Deep Sets, FSPool, ABMIL."""

from __future__ import annotations

from torch import nn

from omniset.core.checks import check_sizes
from omniset.encoders.base import Encoder
from omniset.layers.base import activation_layer
from omniset.layers.pooling import FeaturewiseSortPooling, GatedAttentionPooling, Pooling, SetPooling


class DeepSets(Encoder):
    """rho(pool(phi(x))) (Zaheer et al., "Deep Sets", 2017); phi and rho are (Linear, ReLU) x depth, Linear.

    Args:
        input_dim: Features of an element.
        dim: Width.
        depth: Hidden layers of phi and of rho.
        num_outputs: Vectors in the summary, made of the pooled one by rho's last Linear.
        pooling: mean, sum or max over the multiset.

    Raises:
        ValueError: depth < 0; an unknown pooling or activation.
    """

    outputs_elements = False

    def __init__(
        self,
        *,
        input_dim: int,
        dim: int,
        depth: int = 3,
        num_outputs: int = 1,
        pooling: Pooling = "mean",
        activation: str = "relu",
    ) -> None:
        super().__init__(input_dim, dim, num_outputs)
        self.embed, self.decoder = phi_and_rho(input_dim, dim, depth, num_outputs, activation)
        self.pool = SetPooling(pooling)


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


class ABMIL(Encoder):
    """Gated attention pooling of embedded elements (Ilse et al., "Attention-based Deep Multiple Instance Learning",
    2018). The embedding is (Linear, activation) x depth, Linear.

    Args:
        input_dim: Features of an element.
        dim: Width.
        depth: Hidden layers of the embedding, >= 0.
        num_outputs: Vectors in the summary, each with an attention of its own over the set; the paper has one.
        attention_dim: Width of the attention. None: dim.
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
        activation: str = "relu",
    ) -> None:
        super().__init__(input_dim, dim, num_outputs)
        self.embed = mlp(input_dim, dim, dim, depth, activation)
        self.pool = GatedAttentionPooling(dim, num_outputs, attention_dim)
        self.decoder = nn.Sequential()


def phi_and_rho(
    input_dim: int, dim: int, depth: int, num_outputs: int, activation: str
) -> tuple[nn.Sequential, nn.Sequential]:
    """What Deep Sets do before and after pooling, with `depth` hidden layers each."""
    phi = mlp(input_dim, dim, dim, depth, activation)
    rho = mlp(dim, dim, num_outputs * dim, depth, activation)
    return phi, nn.Sequential(nn.Flatten(), rho, nn.Unflatten(1, (num_outputs, dim)))


def mlp(input_dim: int, dim: int, output_dim: int, depth: int, activation: str) -> nn.Sequential:
    """(Linear, activation) x depth, Linear."""
    check_sizes(0, depth=depth)
    layers: list[nn.Module] = []
    for n in range(depth):
        layers += [nn.Linear(dim if n else input_dim, dim), activation_layer(activation)]
    return nn.Sequential(*layers, nn.Linear(dim if depth else input_dim, output_dim))
