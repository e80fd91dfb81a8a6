"""The set layers made of attention blocks: SAB, ISAB (U-ISAB) and PMA.

Lee et al., "Set Transformer", 2019, with the blocks of the Universal Set Transformer; `variant="lee"` takes theirs.
An ISAB and a U-ISAB are one layer: what is universal about the second is that it may be run in shards, which the
engine does for either.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.core.attention import AttentionState
from omniset.core.checks import check_sizes
from omniset.layers.base import Elements, Multiplicity, SetLayer, feed_forward
from omniset.layers.universal import AUTHORS_DROPOUT, AttentionBlock, Norm, Tabulated, attention_block

PointsInit = Literal["xavier", "normal"]


def learned_points(number: int, dim: int, start: PointsInit | None, options: dict[str, Any]) -> nn.Parameter:
    """Learned points (1, number, dim); `start` None follows from the variant."""
    if start is None:
        start = "normal" if options.get("variant") == "author" else "xavier"
    if start not in ("xavier", "normal"):
        raise ValueError(f"points_init must be 'xavier' or 'normal', got {start!r}")
    empty = torch.empty(1, number, dim)
    return nn.Parameter(nn.init.xavier_uniform_(empty) if start == "xavier" else nn.init.normal_(empty))


class SetAttentionBlock(SetLayer):
    """SAB(X, m) = MSAB(X, X, m): every element attends to all. O(n^2) time; streamed by the engine in O(shard) memory.

    Args:
        dim: As in MultisetAttentionBlock, and so num_heads, ffn_dim and norm.
        **options: Likewise dropout, activation, init, hidden_dropout and scale; and `variant`, "universal",
            "author" or "lee".
    """

    keeps_elements = True

    def __init__(
        self, dim: int, num_heads: int, ffn_dim: int | None = None, norm: Norm = "pre", **options: Any
    ) -> None:
        super().__init__()
        self.block = attention_block(dim, num_heads, ffn_dim, norm, one_norm=True, **options)

    def forward(self, elements: Elements, multiplicity: Multiplicity | None = None) -> Elements:
        return self.block(elements, elements, multiplicity)

    def map(self, elements: Elements, context: Any) -> Elements:
        return context.apply(self.block, elements)

    @property
    def set_attention(self) -> AttentionBlock:
        return self.block


class InducedLayer(SetLayer):
    """Learned points that attend to the set: the reduce of ISAB and PMA."""

    gather: AttentionBlock
    points: nn.Parameter

    def prepare(self, elements: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """What the points attend to, of each element by itself."""
        return elements

    def reduce(
        self, elements: Elements, multiplicity: Multiplicity | None = None, peak: Tensor | None = None
    ) -> AttentionState:
        return self.gather.reduce(self.points, self.prepare(elements), multiplicity, peak)

    def finish(self, state: AttentionState) -> Float[Tensor, "sets k dim"]:  # type: ignore[override]
        return self.gather.finish(self.points, state)

    def context(self, elements: Elements, multiplicity: Multiplicity | None = None) -> Float[Tensor, "sets k dim"]:
        return self.gather(self.points, self.prepare(elements), multiplicity)

    def tabulate(self, table: Float[Tensor, "rows dim"]) -> Tabulated:
        """As `AttentionBlock.tabulate`, with the points for queries."""
        return self.gather.tabulate(self.points[0], self.prepare(table))

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
        num_inducing: k, >= 1.
        dim: As in MultisetAttentionBlock, and so num_heads, ffn_dim and norm.
        points_init: How the points are drawn: "xavier" uniform, or "normal", from N(0, 1). None: "normal" with
            variant="author", else "xavier".
        **options: Likewise dropout, activation, init and hidden_dropout; and `variant`, "universal",
            "author" or "lee".
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_inducing: int,
        ffn_dim: int | None = None,
        norm: Norm = "pre",
        points_init: PointsInit | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_sizes(num_inducing=num_inducing)
        self.points = learned_points(num_inducing, dim, points_init, options)
        self.gather = attention_block(dim, num_heads, ffn_dim, norm, **options)
        self.spread = attention_block(dim, num_heads, ffn_dim, norm, **options)

    def map(self, elements: Elements, context: Float[Tensor, "sets k dim"]) -> Elements:
        return self.spread(elements, context)


class PoolingByMultiheadAttention(InducedLayer):
    """PMA: MSAB(S, X, m) with learned seeds S.

    Args:
        num_seeds: How many vectors the set is pooled to, >= 1.
        dim: As in MultisetAttentionBlock, and so num_heads, ffn_dim and norm.
        points_init: How the seeds are drawn, as in InducedSetAttentionBlock.
        element_ffn_dim: Width of an FFN that each element passes before the seeds attend to it, without residual. 0:
            none. None: 4 dim with variant="author", else 0.
        **options: Likewise dropout, activation, init, hidden_dropout and scale; and `variant`, "universal",
            "author" or "lee".
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_seeds: int,
        ffn_dim: int | None = None,
        norm: Norm = "pre",
        points_init: PointsInit | None = None,
        element_ffn_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_sizes(num_seeds=num_seeds)
        author = options.get("variant") == "author"
        width = (4 * dim if author else 0) if element_ffn_dim is None else element_ffn_dim
        check_sizes(0, element_ffn_dim=width)
        hidden = options.get("hidden_dropout")
        hidden = (AUTHORS_DROPOUT if author else 0.0) if hidden is None else hidden
        activation = options.get("activation", "relu")
        self.points = learned_points(num_seeds, dim, points_init, options)
        self.gather = attention_block(dim, num_heads, ffn_dim, norm, **options)
        self.element_ffn = feed_forward(dim, width, 0.0, activation, hidden) if width else None

    def prepare(self, elements: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        return elements if self.element_ffn is None else self.element_ffn(elements)
