"""Physics-Attention (Wu et al., "Transolver: A Fast Transformer Solver for PDEs on General Geometries", 2024) over
multisets.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from omniset.core.checks import check_probabilities, check_sizes
from omniset.core.states import State
from omniset.layers.base import feed_forward
from omniset.layers.mixing import MixingLayer


class SliceAttention(MixingLayer):
    """Elements belong to k slices in part; slices attend to each other, and elements take back their parts.

    In each head, with p and f two projections of LN(x_i), and weights w_i that each element has by itself:

        reduce:  z_s = sum_i m_i w_is f_i / sum_i m_i w_is,    w_i = softmax_s((W p_i + b) / temperature)
        finish:  z' = softmax(W_q z (W_k z)^T / sqrt(D / H)) W_v z
        mix:     y_i = sum_s w_is z'_s

    All heads share W, b, W_q, W_k and W_v; each has a temperature of its own, from 0.5 on, which is held between 0.1
    and 5, as in the paper's code for regular meshes. That code divides by the sum of weights plus 1e-5; here a slice
    without weight has z_s = 0. So an empty set has z = 0. What surrounds it is as in `MixingLayer`. W starts
    orthogonal, other Linear layers as PyTorch's own (the paper's code: from N(0, 0.02^2), cut off).

    Args:
        dim: D, width of the elements; divisible by num_heads.
        num_heads: H.
        num_slices: k, >= 1; 32 and 64 in the paper.
        ffn_dim: Width of the FFN. None: dim. 0: no FFN.
        norm: Layer normalization, "pre" or "post"; the paper has "pre".
        dropout: Of what was mixed and of the FFN's output, in training.
        activation: relu, gelu or silu.

    Raises:
        ValueError: A size, norm or activation out of bounds.

    >>> layer = SliceAttention(dim=8, num_heads=2, num_slices=3)
    >>> x = torch.randn(1, 3, 8)
    >>> counted, copied = layer(x, torch.tensor([[2, 1, 0]])), layer(x[:, [0, 0, 1]])
    >>> torch.allclose(counted[:, :2], copied[:, 1:], atol=1e-6)
    True
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_slices: int,
        ffn_dim: int | None = None,
        norm: str = "pre",
        dropout: float = 0.0,
        activation: str = "gelu",
    ) -> None:
        ffn_dim = dim if ffn_dim is None else ffn_dim
        check_sizes(num_slices=num_slices)
        check_sizes(0, ffn_dim=ffn_dim)
        check_probabilities(dropout=dropout)
        ffn = feed_forward(dim, ffn_dim, dropout, activation) if ffn_dim else None
        super().__init__(dim, num_heads, ffn, norm, dropout)
        width = dim // num_heads
        self.place, self.content = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.slices = nn.Linear(width, num_slices)
        nn.init.orthogonal_(self.slices.weight)
        self.temperature = nn.Parameter(torch.full((num_heads, 1, 1), 0.5))
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))

    def reduce(
        self,
        elements: Float[Tensor, "sets elements dim"],
        multiplicity: Shaped[Tensor, "sets elements"],
        peak: Tensor | None = None,
    ) -> State:
        y = self.before(elements)
        weights = self._weights(y).mT * multiplicity.to(y.dtype)[:, None, None]  # (B, H, k, N)
        content = self.heads(self.content(y))
        if self.probe is not None:
            self.probe.see(lambda _: (weights, content), multiplicity)
        return State(None, (weights.sum(-1, keepdim=True), weights @ content))

    def finish(self, state: State) -> Float[Tensor, "sets k dim"]:
        weight, total = state.sums
        z = total / torch.where(weight == 0, 1, weight)
        if self.probe is not None:
            z = self.probe(z, None, weight)
        z = z.to(self.query.weight.dtype)
        scores = self.query(z) @ self.key(z).mT * z.shape[-1] ** -0.5
        return self.joined(scores.softmax(-1) @ self.value(z))

    def mix(
        self, elements: Float[Tensor, "sets elements dim"], context: Float[Tensor, "sets k dim"]
    ) -> Float[Tensor, "sets heads elements d"]:
        return self._weights(elements) @ self.heads(context)

    def _weights(self, y: Float[Tensor, "sets elements dim"]) -> Float[Tensor, "sets heads elements k"]:
        return (self.slices(self.heads(self.place(y))) / self.temperature.clamp(0.1, 5)).softmax(-1)
