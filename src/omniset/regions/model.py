"""The default's network: the brain is a set of regions, and a new region attends to those that are known.

What is read is their connectivity, row by row and then column by column: the core's multiset attention, in which a
known entry has the multiplicity 1 and an unknown one 0. So a connectome that was measured in part is used as it is.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.core.attention import multiset_attention
from omniset.core.checks import check_sizes

# Of each head at first: the logarithms of its scales of genes, and of places.
GENES = (0.0, 0.7, 1.1, -1.0, 0.3, 0.9, 0.0, 0.5)
PLACES = (0.0, -1.0, -2.0, 0.7, 0.3, -0.5, -0.7, 0.0)
SOFT = 0.3  # weight of a head's own reading at first
NOTHING = 1e-3  # what the trunk weighs beside what is known: an entry that only far regions know is read as 0


class RegionSetAttention(nn.Module):
    """f(i, j) of pairs of new regions, from the matrix Y of known regions a, b with multiplicities m_ab.

        s_h(i, a)  = sum over c of w_hc^2 (x_ic - x_ac)^2                         scales w of head h
        A_h(i)     = attention weights, the softmax of -t_h s_h(i, .)             temperature 1 / t
        rows       r_h(i, b)   = sum_a A_ia m_ab Y_ab / (0.001 + sum_a A_ia m_ab)    attention with multiplicities m_.b
        columns    F_gh(i, j)  = sum_b A_g(j)_b r_h(i, b)
        read-out   G_h(i, j)   = S_h(i) Y' S_h(j)^T,  S_h = K_h(i, .) (K_h + l_h I)^-1,  K_h = 1 + exp(-s_h / 2)
        f(i, j)    = sum_gh C_gh F_gh(i, j) + sum_h e_h G_h(i, j), the mean of (i, j) and (j, i) unless it is directed

    The softmax is a weighted mean, as of Nadaraya and Watson, and never leaves the range of what it reads; the read-out
    beside it is the exact least-squares solution with the same keys, two-step kernel ridge. It wants all entries: Y' is
    Y, with 0 where it is not known, which is the trunk's value. w, t, C, l and e are learned; there is nothing else.

    Args:
        genes: Columns of x that are of expression, first.
        places: Columns of x that are of places, after them.
        num_heads: H.
        directed: May f(i, j) differ from f(j, i)?
        generator: Of the heads' small differences at the start.

    Raises:
        ValueError: A size out of bounds.
    """

    def __init__(
        self,
        genes: int,
        places: int = 0,
        num_heads: int = 8,
        directed: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_sizes(columns=genes + places, num_heads=num_heads)
        self.directed = directed
        starts = [[GENES[h % 8]] * genes + [PLACES[h % 8]] * places for h in range(num_heads)]
        noise = 0.05 * torch.randn(num_heads, genes + places, generator=generator)
        self.log_scales = nn.Parameter(torch.tensor(starts) + noise)
        self.log_sharpness = nn.Parameter(torch.full((num_heads,), 0.7))
        self.log_penalty = nn.Parameter(torch.full((num_heads,), -0.7))
        self.mix = nn.Parameter(SOFT * torch.eye(num_heads))
        self.read = nn.Parameter(torch.full((num_heads,), 1 / num_heads))

    def forward(
        self,
        queries: Float[Tensor, "q columns"],
        keys: Float[Tensor, "n columns"],
        values: Float[Tensor, "n n"],
        known: Float[Tensor, "n n"],
    ) -> Float[Tensor, "q q"]:
        """All f of pairs of the queries.

        Args:
            values: Y; what is not known may be anything finite.
            known: m, not negative; 0: not known.
        """
        f = self.attended(queries, keys, values, known) + self.solved(queries, keys, torch.where(known > 0, values, 0))
        return f if self.directed else (f + f.mT) / 2

    def attended(
        self,
        queries: Float[Tensor, "q columns"],
        keys: Float[Tensor, "n columns"],
        values: Float[Tensor, "n n"],
        known: Float[Tensor, "n n"],
    ) -> Float[Tensor, "q q"]:
        """The part that the softmax reads: sum of C_gh F_gh."""
        projected, offered = self._projected(queries, keys)
        both = torch.cat([known * values, known], 1)
        total, weight = multiset_attention(projected, offered, both, scale=1.0).chunk(2, -1)  # (H, q, n) each
        rows = total / (weight + NOTHING)
        there = (known > 0).any(0)
        columns = torch.einsum("gh,hib->gbi", self.mix, rows)
        return multiset_attention(projected, offered, columns, there, scale=1.0).sum(0).mT

    def solved(
        self, queries: Float[Tensor, "q columns"], keys: Float[Tensor, "n columns"], values: Float[Tensor, "n n"]
    ) -> Float[Tensor, "q q"]:
        """The read-out by least squares: sum of e_h G_h."""
        w = self.log_scales.exp()[:, None]
        x, a = queries * w, keys * w
        penalty = self.log_penalty.exp()[:, None, None] * torch.eye(len(keys), dtype=keys.dtype, device=keys.device)
        factor = torch.linalg.cholesky(1 + torch.exp(-_squares(a, a) / 2) + penalty)
        weights = torch.cholesky_solve((1 + torch.exp(-_squares(x, a) / 2)).mT, factor).mT  # (H, q, n)
        return ((weights * self.read[:, None, None]) @ values @ weights.mT).sum(0)

    def weights(
        self, queries: Float[Tensor, "q columns"], keys: Float[Tensor, "n columns"]
    ) -> Float[Tensor, "heads q n"]:
        """A: how much each head of each query reads of each known region; sums to 1."""
        projected, offered = self._projected(queries, keys)
        return torch.softmax(projected @ offered.mT, -1)

    def _projected(
        self, queries: Float[Tensor, "q columns"], keys: Float[Tensor, "n columns"]
    ) -> tuple[Float[Tensor, "heads q d"], Float[Tensor, "heads n d"]]:
        """Vectors whose products are -t s, but for what is the same for all keys."""
        w = self.log_scales.exp()[:, None]
        t = self.log_sharpness.exp()[:, None, None]
        x, a = queries * w, keys * w
        return t * torch.cat([2 * x, -torch.ones_like(x[..., :1])], -1), torch.cat([a, a.square().sum(-1, True)], -1)


def _squares(left: Float[Tensor, "h q d"], right: Float[Tensor, "h n d"]) -> Float[Tensor, "h q n"]:
    """|a - b|^2."""
    a, b = left.square().sum(-1)[..., None], right.square().sum(-1)[:, None]
    return (a + b - 2 * left @ right.mT).clamp(min=0)
