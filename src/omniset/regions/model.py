"""The default's network: the genes of one region attend to those of the other.

A region is a multiset of genes, in which a gene is the more often the more it is expressed; what a gene's token is does
not depend on the region. So no key and no value is computed per region, let alone per pair, and all pairs of a batch
are one matrix product (`omniset.layers.universal.AttentionBlock.tabulate`).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.core.sets import check_sizes
from omniset.layers import MultisetAttentionBlock, PoolingByMultiheadAttention


class RegionAttention(nn.Module):
    """f(i, j) of region pairs.

        t_g    = LN(Linear(place of gene g on the principal axes of expression))
        m_ig   = expression of gene g in region i, 0 to 1; 0 where it was not measured
        q_i    = PMA(t, m_i) + Linear(place of region i)
        h_ij   = MSAB(q_i, t, m_j)
        g(i,j) = Linear(LN(mean of h_ij over its queries)) + u_i^T B u_j, with u_i = Linear(mean of q_i)
        f(i,j) = (g(i,j) + g(j,i)) / 2, or g where it is directed

    Args:
        axes: (G, A) where genes lie on the principal axes; kept, not learned.
        places: Width of what is known of where regions are; 0: nothing.
        dim: Width; divisible by num_heads.
        num_queries: Vectors that a region is pooled to, which then attend to the other.
        rank: Of B.
        directed: May f(i, j) differ from f(j, i)?

    Raises:
        ValueError: A size out of bounds.
    """

    axes: Tensor

    def __init__(
        self,
        axes: Float[Tensor, "genes axes"],
        places: int = 0,
        dim: int = 32,
        num_heads: int = 4,
        num_queries: int = 1,
        rank: int = 8,
        dropout: float = 0.1,
        directed: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, num_heads=num_heads, num_queries=num_queries, rank=rank)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be >= 0 and < 1, got {dropout!r}")
        self.directed = directed
        self.register_buffer("axes", axes.clone())
        self.token = nn.Sequential(nn.Linear(axes.shape[1], dim), nn.LayerNorm(dim))
        self.pool = PoolingByMultiheadAttention(dim, num_heads, num_queries, 2 * dim, dropout=dropout)
        self.place = nn.Linear(places, dim) if places else None
        self.cross = MultisetAttentionBlock(dim, num_heads, 2 * dim, dropout=dropout)
        self.norm, self.dropout, self.head = nn.LayerNorm(dim), nn.Dropout(dropout), nn.Linear(dim, 1)
        self.factor = nn.Linear(dim, rank)
        self.form = nn.Parameter(torch.zeros(rank, rank))

    def forward(
        self,
        multiplicity: Float[Tensor, "regions genes"],
        places: Float[Tensor, "regions places"] | None = None,
        others: Float[Tensor, "others genes"] | None = None,
        other_places: Float[Tensor, "others places"] | None = None,
        genes: Int[Tensor, " some"] | None = None,
    ) -> Float[Tensor, "regions others"]:
        """Values of f for every region with every other.

        Args:
            multiplicity: (I, G)
            places: (I, P)
            others, other_places: (J, G), (J, P); None: the same regions.
            genes: Positions of the genes that multiplicities are of; None: of all.
        """
        tokens = self.token(self.axes if genes is None else self.axes[genes])
        queries = self.queries(tokens, multiplicity, places)
        if others is None:
            values = self._directed(tokens, queries, queries, multiplicity)
            return values if self.directed else (values + values.mT) / 2
        theirs = self.queries(tokens, others, other_places)
        values = self._directed(tokens, queries, theirs, others)
        if self.directed:
            return values
        return (values + self._directed(tokens, theirs, queries, multiplicity).mT) / 2

    def queries(
        self,
        tokens: Float[Tensor, "genes dim"],
        multiplicity: Float[Tensor, "regions genes"],
        places: Float[Tensor, "regions places"] | None = None,
    ) -> Float[Tensor, "regions queries dim"]:
        """q: what a region is pooled to."""
        pooled = self.pool.pool_tabulated(self.pool.tabulate(tokens), multiplicity)
        return pooled if self.place is None or places is None else pooled + self.place(places)[:, None]

    def weights(
        self,
        multiplicity: Float[Tensor, "regions genes"],
        places: Float[Tensor, "regions places"] | None,
        other: Float[Tensor, "1 genes"],
    ) -> tuple[Float[Tensor, "regions queries genes"], Float[Tensor, "regions queries genes"]]:
        """Attention weights, mean over heads: of the genes of each region when it is pooled, and of the genes of one
        other region when the queries attend to it.
        """
        tokens = self.token(self.axes)
        queries = self.queries(tokens, multiplicity, places)
        pooled = self.pool.gather.mean_weights(self.pool.points[0], tokens, multiplicity)
        crossed = self.cross.mean_weights(queries.flatten(0, 1), tokens, other)[0].unflatten(0, queries.shape[:2])
        return pooled, crossed

    def _directed(
        self,
        tokens: Float[Tensor, "genes dim"],
        queries: Float[Tensor, "regions queries dim"],
        theirs: Float[Tensor, "others queries dim"],
        others: Float[Tensor, "others genes"],
    ) -> Float[Tensor, "regions others"]:
        """Values of g for the regions whose queries are `queries` with those whose genes are `others`."""
        flat = queries.flatten(0, 1)
        seen = self.cross.attend_tabulated(flat, self.cross.tabulate(flat, tokens), others)  # (J, I k, d)
        pooled = seen.unflatten(1, queries.shape[:2]).mean(2)  # (J, I, d)
        attended = self.head(self.dropout(self.norm(pooled)))[..., 0].mT
        form = self.form if self.directed else (self.form + self.form.mT) / 2
        return attended + self.factor(queries.mean(1)) @ form @ self.factor(theirs.mean(1)).mT
