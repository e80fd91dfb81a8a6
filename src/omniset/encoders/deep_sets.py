"""Deep Sets."""

from __future__ import annotations

from torch import nn

from omniset.core.checks import check_sizes
from omniset.encoders.base import Encoder
from omniset.layers.base import activation_layer
from omniset.layers.deep_sets import Pooling, SetPooling
from omniset.layers.set_norm import NormedLinear, deep_sets_block


class DeepSets(Encoder):
    """rho(pool(phi(x))) (Zaheer et al., "Deep Sets", 2017); phi and rho are (Linear, ReLU) x depth, Linear.

    Args:
        input_dim: Features of an element.
        dim: Width.
        depth: Hidden layers of phi and of rho.
        num_outputs: Vectors in the summary, made of the pooled one by rho's last Linear.
        pooling: mean, sum or max over the multiset.
        norm: "set": Deep Sets++ (Zhang et al., "Set Norm and Equivariant Skip Connections: Putting the Deep in Deep
            Sets", 2022), whose phi is Linear, `depth` residual blocks x + W_2 act(SN(W_1 act(SN(x)))), and Linear of
            act(SN(x)), with set norms SN (`omniset.layers.SetNorm`). "pre" and "post", norms of blocks of other
            encoders, are as "none".

    Raises:
        ValueError: depth < 0; an unknown pooling, norm or activation.
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
        norm: str = "none",
    ) -> None:
        super().__init__(input_dim, dim, num_outputs)
        if norm not in ("none", "set", "pre", "post"):
            raise ValueError(f"norm must be 'none' or 'set', got {norm!r}")
        self.embed, self.decoder = phi_and_rho(input_dim, dim, depth, num_outputs, activation)
        if norm == "set":
            self.embed = nn.Sequential(nn.Linear(input_dim, dim))
            blocks = [layer for _ in range(depth) for layer in deep_sets_block(dim, activation)]
            self.layers = nn.ModuleList([*blocks, NormedLinear(dim, activation)])
        self.pool = SetPooling(pooling)


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
