"""FLARE (Puri et al., "FLARE: Fast Low-rank Attention Routing Engine", 2025) over multisets, in plain PyTorch."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.core.attention import AttentionState
from omniset.core.checks import check_probabilities, check_sizes
from omniset.kernels.fused import fused_attention
from omniset.layers.base import Elements, Multiplicity, SetLayer, activation_layer
from omniset.layers.probes import Probed


class ResidualMLP(nn.Module):
    """h = x + act(W_0 x);  h = h + act(W_l h) for each hidden layer l;  out = h + W h, as FLARE has it.

    Where `hidden_dim` is not `dim`, the first and the last step have no residual.
    """

    def __init__(self, dim: int, hidden_dim: int, hidden_layers: int, activation: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(dim, hidden_dim), nn.Linear(hidden_dim, dim)
        self.hidden = nn.ModuleList(nn.Linear(hidden_dim, hidden_dim) for _ in range(hidden_layers))
        self.activation = activation_layer(activation)
        self.residual = dim == hidden_dim

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        h = self.activation(self.first(x))
        h = x + h if self.residual else h
        for layer in self.hidden:
            h = h + self.activation(layer(h))
        return h + self.last(h) if self.residual else self.last(h)


class LatentRouting(Probed, SetLayer):
    """FLARE's block: of each head, k latent queries attend to the elements, and elements to the latent queries.

    With keys K and values V of a head, both residual MLPs of LN(x), and its latent queries L (k, D / H):

        reduce:  Z = softmax(L K^T + log m) V        over the elements: the state of multiset attention
        map:     Y = softmax(K L^T) Z                over the k latent queries, for each element by itself
        out:     h + FFN(LN(h)), of h = x + W_o Y

    The scores of both are each other's transpose, and are not scaled. An empty set has Z = 0. The FFN is a residual MLP
    too. Latent queries start from N(0, 0.1^2), Linear layers as PyTorch's own (the paper's code: from N(0, 0.02^2)).
    Over shards keys are computed twice, in each pass over the set. The context is the Z of all heads, side by side.

    Args:
        dim: D, width of the elements; divisible by num_heads.
        num_heads: H.
        num_latents: k, >= 1; 64 to 2,048 in the paper.
        ffn_dim: Width of the FFN. None: dim. 0: no FFN.
        dropout: Of what was mixed and of the FFN's output, in training.
        activation: relu, gelu or silu.
        hidden_layers: Of each residual MLP, >= 0; the paper's code has 3.

    Raises:
        ValueError: A size or activation out of bounds.

    >>> layer = LatentRouting(dim=8, num_heads=2, num_latents=3)
    >>> x = torch.randn(1, 3, 8)
    >>> counted, copied = layer(x, torch.tensor([[2, 1, 0]])), layer(x[:, [0, 0, 1]])
    >>> torch.allclose(counted[:, :2], copied[:, 1:], atol=1e-6)
    True
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_latents: int,
        ffn_dim: int | None = None,
        dropout: float = 0.0,
        activation: str = "gelu",
        hidden_layers: int = 3,
    ) -> None:
        super().__init__()
        width = dim if ffn_dim is None else ffn_dim
        check_sizes(dim=dim, num_heads=num_heads, num_latents=num_latents)
        check_sizes(0, hidden_layers=hidden_layers, ffn_dim=width)
        check_probabilities(dropout=dropout)
        if dim % num_heads:
            raise ValueError(f"dim must be divisible by num_heads, got dim={dim} and num_heads={num_heads}")
        self.num_heads = num_heads
        ffn = nn.Sequential(ResidualMLP(dim, width, hidden_layers, activation), nn.Dropout(dropout)) if width else None
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.norm_mixing = nn.LayerNorm(dim)
        self.norm_ffn = nn.LayerNorm(dim) if width else nn.Identity()
        self.ffn = ffn
        self.latents = nn.Parameter(torch.randn(num_heads, num_latents, dim // num_heads) * 0.1)
        self.key, self.value = (ResidualMLP(dim, dim, hidden_layers, activation) for _ in range(2))

    def reduce(
        self,
        elements: Elements,
        multiplicity: Multiplicity | None = None,
        peak: Float[Tensor, "sets heads k 1"] | None = None,
    ) -> AttentionState:
        y = self.norm_mixing(elements)
        return self._reduce(self._heads(self.key(y)), self._heads(self.value(y)), multiplicity, peak)

    def _reduce(
        self, key: Tensor, value: Tensor, multiplicity: Tensor | None, peak: Tensor | None = None
    ) -> AttentionState:
        m = None if multiplicity is None else multiplicity[:, None]
        if self.probe is not None:
            self.probe.see(partial(self._measured, key, value, m), multiplicity)
        return AttentionState.of(self.latents, key, value, m, 1.0, peak=peak)

    def finish(self, state: AttentionState) -> Float[Tensor, "sets k dim"]:  # type: ignore[override]
        return self.average(state).transpose(1, 2).flatten(2).to(self.latents.dtype)

    def map(self, elements: Elements, context: Float[Tensor, "sets k dim"]) -> Elements:
        return self._map(elements, self._heads(self.key(self.norm_mixing(elements))), context)

    def mapped(self, elements: Elements, multiplicity: Multiplicity | None = None) -> tuple[Elements, Tensor]:
        y = self.norm_mixing(elements)
        key, value = self._heads(self.key(y)), self._heads(self.value(y))
        learned = multiplicity is not None and multiplicity.requires_grad  # log has no gradient at 0
        if self.probe is not None or learned or not elements.shape[1]:
            context = self.finish(self._reduce(key, value, multiplicity))
        else:
            average = fused_attention(self.latents.expand(key.shape[0], -1, -1, -1), key, value, multiplicity, 1.0)
            context = average.transpose(1, 2).flatten(2)
        return self._map(elements, key, context), context

    def _map(self, elements: Tensor, key: Float[Tensor, "sets heads elements d"], context: Tensor) -> Tensor:
        latents = self.latents.expand(key.shape[0], -1, -1, -1)
        mixed = fused_attention(key, latents, self._heads(context), None, 1.0)  # (B, H, N, D / H)
        h = elements + self.dropout(self.output(mixed.transpose(1, 2).flatten(2)))
        return h if self.ffn is None else h + self.ffn(self.norm_ffn(h))

    def _heads(self, x: Float[Tensor, "sets rows dim"]) -> Float[Tensor, "sets heads rows d"]:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _measured(self, key: Tensor, value: Tensor, m: Tensor | None, peak: Tensor | None) -> tuple[Tensor, Tensor]:
        return AttentionState.exponentials(self.latents, key, m, 1.0, peak)[0], value
