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

from omniset.attention import AttentionState
from omniset.layers.base import SetLayer, check_sizes
from omniset.layers.universal import AttentionBlock, Norm, attention_block


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

    def tabulate(
        self, table: Float[Tensor, "rows dim"]
    ) -> tuple[Float[Tensor, "1 heads points 1"], Float[Tensor, "rows columns"]]:
        """What each row of a table adds to the points' sums, once: exp(score - peak) times (value, 1), side by side.

        Of sets whose elements all are rows of one table (genes of a vocabulary), `pool_tabulated` then makes the
        sums of many sets by one product; no key and no value of an element is computed more than once.
        """
        q, k, v = self.gather.project(self.points, table[None])
        heads = self.gather.num_heads
        q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
        scores = (q * self.gather.scale) @ k.mT  # (1, H, k, rows)
        peak = scores.detach().amax(-1, True)
        weights = torch.exp(scores - peak)
        sums = torch.cat((weights[..., None] * v[:, :, None], weights[..., None]), -1)  # (1, H, k, rows, d_v + 1)
        return peak, sums[0].permute(2, 0, 1, 3).flatten(1)

    def pool_tabulated(
        self,
        tabulated: tuple[Float[Tensor, "1 heads points 1"], Float[Tensor, "rows columns"]],
        multiplicity: Float[Tensor, "sets rows"],
    ) -> Float[Tensor, "sets points dim"]:
        """The points' context for sets that hold row r of the table multiplicity[b, r] times.

        Equal to `finish(reduce(elements, multiplicity))` to rounding, as long as no set has only rows whose score
        lies some 80 below the largest of the table's: their weights are 0 in float32, and such a set counts as empty.
        """
        peak, columns = tabulated
        sums = (multiplicity @ columns).unflatten(1, (self.gather.num_heads, self.points.shape[1], -1))
        return self.finish(AttentionState(peak, (sums[..., -1:], sums[..., :-1])))

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
