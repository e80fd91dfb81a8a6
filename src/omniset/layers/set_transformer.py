"""The set layers made of attention blocks: SAB, ISAB (U-ISAB) and PMA.

Lee et al., "Set Transformer", 2019, with the blocks of the Universal Set Transformer; `variant="lee"` takes theirs.
An ISAB and a U-ISAB are one layer: what is universal about the second is that it may be run in shards, which the
engine does for either.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from omniset.core.attention import AttentionState
from omniset.core.sets import check_sizes
from omniset.layers.base import SetLayer
from omniset.layers.universal import AttentionBlock, Norm, Tabulated, attention_block


def _points(number: int, dim: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, number, dim)))


class SetAttentionBlock(SetLayer):
    """SAB(X, m) = MSAB(X, X, m): every element attends to all. O(n^2) time; streamed by the engine in O(shard) memory.

    Args:
        dim: As in MultisetAttentionBlock, and so num_heads, ffn_dim and norm.
        **options: Likewise dropout and activation; and `variant`, "universal" or "lee".
    """

    keeps_elements = True

    def __init__(
        self, dim: int, num_heads: int, ffn_dim: int | None = None, norm: Norm = "pre", **options: Any
    ) -> None:
        super().__init__()
        self.block = attention_block(dim, num_heads, ffn_dim, norm, **options)

    def forward(
        self, elements: Float[Tensor, "sets elements dim"], multiplicity: Shaped[Tensor, "sets elements"] | None = None
    ) -> Float[Tensor, "sets elements dim"]:
        return self.block(elements, elements, multiplicity)

    def map(self, elements: Float[Tensor, "sets elements dim"], context: Any) -> Float[Tensor, "sets elements dim"]:
        return context.apply(self.block, elements)

    @property
    def set_attention(self) -> AttentionBlock:
        return self.block


class InducedLayer(SetLayer):
    """Learned points that attend to the set: the reduce of ISAB and PMA."""

    gather: AttentionBlock
    points: nn.Parameter

    def reduce(
        self,
        elements: Float[Tensor, "sets elements dim"],
        multiplicity: Shaped[Tensor, "sets elements"] | None = None,
        peak: Tensor | None = None,
    ) -> AttentionState:
        return self.gather.reduce(self.points, elements, multiplicity, peak)

    def finish(self, state: AttentionState) -> Float[Tensor, "sets k dim"]:  # type: ignore[override]
        return self.gather.finish(self.points, state)

    def tabulate(self, table: Float[Tensor, "rows dim"]) -> Tabulated:
        """As `AttentionBlock.tabulate`, with the points for queries."""
        return self.gather.tabulate(self.points[0], table)

    def pool_tabulated(
        self, tabulated: Tabulated, multiplicity: Float[Tensor, "sets rows"]
    ) -> Float[Tensor, "sets points dim"]:
        """As `AttentionBlock.attend_tabulated`: the points' context."""
        return self.gather.attend_tabulated(self.points[0], tabulated, multiplicity)

    @property
    def set_attention(self) -> AttentionBlock:
        return self.gather


class InducedSetAttentionBlock(InducedLayer):
    """ISAB and U-ISAB: h = MSAB(I, X, m), out = MSAB(X, h) with k learned inducing points I. O(n k) time.

    Args:
        num_inducing: k, >= 1. The points are drawn Xavier uniform.
        dim: As in MultisetAttentionBlock, and so num_heads, ffn_dim and norm.
        **options: Likewise dropout and activation; and `variant`, "universal" or "lee".
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_inducing: int,
        ffn_dim: int | None = None,
        norm: Norm = "pre",
        **options: Any,
    ) -> None:
        super().__init__()
        check_sizes(num_inducing=num_inducing)
        self.points = _points(num_inducing, dim)
        self.gather = attention_block(dim, num_heads, ffn_dim, norm, **options)
        self.spread = attention_block(dim, num_heads, ffn_dim, norm, **options)

    def forward(
        self, elements: Float[Tensor, "sets elements dim"], multiplicity: Shaped[Tensor, "sets elements"] | None = None
    ) -> Float[Tensor, "sets elements dim"]:
        return self.map(elements, self.gather(self.points, elements, multiplicity))

    def map(
        self, elements: Float[Tensor, "sets elements dim"], context: Float[Tensor, "sets k dim"]
    ) -> Float[Tensor, "sets elements dim"]:
        return self.spread(elements, context)


class PoolingByMultiheadAttention(InducedLayer):
    """PMA: MSAB(S, X, m) with learned seeds S.

    Args:
        num_seeds: How many vectors the set is pooled to, >= 1. The seeds are drawn Xavier uniform.
        dim: As in MultisetAttentionBlock, and so num_heads, ffn_dim and norm.
        **options: Likewise dropout and activation; and `variant`, "universal" or "lee".
    """

    def __init__(
        self, dim: int, num_heads: int, num_seeds: int, ffn_dim: int | None = None, norm: Norm = "pre", **options: Any
    ) -> None:
        super().__init__()
        check_sizes(num_seeds=num_seeds)
        self.points = _points(num_seeds, dim)
        self.gather = attention_block(dim, num_heads, ffn_dim, norm, **options)

    def forward(
        self, elements: Float[Tensor, "sets elements dim"], multiplicity: Shaped[Tensor, "sets elements"] | None = None
    ) -> Float[Tensor, "sets seeds dim"]:
        return self.gather(self.points, elements, multiplicity)
