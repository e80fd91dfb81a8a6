"""The multiset attention block, from which all attention layers here are made, in its variants.

Shapes: B sets, Q queries, N elements, H heads, D = dim.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset.core.attention import AttentionState
from omniset.core.checks import check_probabilities, check_sizes
from omniset.kernels import folded, small
from omniset.kernels.fused import fused_attention
from omniset.layers.base import Elements, Multiplicity, feed_forward
from omniset.layers.probes import Probed

Variant = Literal["universal", "author", "lee", "lee-pre"]
Norm = Literal["pre", "post", "none"]
Start = Literal["xavier", "linear"]
Queries = Float[Tensor, "#sets queries dim"]
Answers = Float[Tensor, "sets queries dim"]

AUTHORS_DROPOUT = 0.1


class Tabulated(NamedTuple):
    """What each row of a table of elements adds to the sums of each query."""

    peak: Float[Tensor, "1 heads queries 1"]  # largest score of each query
    columns: Float[Tensor, "rows columns"]  # exp(score - peak) times (value, 1), side by side


class AttentionBlock(Probed):
    """Queries attend to elements. `reduce` sums the elements up for each query, `finish` is the rest of the block.

    A variant says what is projected and how (`project`), and what becomes of the heads' averages (`combine`).
    """

    scale: float

    def __init__(self, dim: int, num_heads: int, init: Start = "xavier") -> None:
        super().__init__()
        check_sizes(dim=dim, num_heads=num_heads)
        if dim % num_heads:
            raise ValueError(f"dim must be divisible by num_heads, got dim={dim} and num_heads={num_heads}")
        if init not in ("xavier", "linear"):
            raise ValueError(f"init must be 'xavier' or 'linear', got {init!r}")
        self.num_heads = num_heads
        self.query, self.key, self.value = (self._projection(dim, init) for _ in range(3))

    def forward(self, queries: Queries, elements: Elements, multiplicity: Multiplicity | None = None) -> Answers:
        learned = multiplicity is not None and multiplicity.requires_grad  # log has no gradient at 0
        if not learned and self.probe is None:
            out = small.whole_block(self, queries, elements, multiplicity)
            if out is not None:
                return out
        form, parts = folded.form(self, queries, elements, multiplicity)
        if parts is not None and form == "spread":
            return folded.spread(parts, elements=queries, points=elements)
        if parts is not None or self.probe is not None or learned or not elements.shape[1]:
            return self.finish(queries, self._reduce(parts, queries, elements, multiplicity))
        # All elements are here: PyTorch's fused attention computes the same, without keeping the weights.
        q, k, v = self._heads(queries, elements)
        q = q.expand(k.shape[0], -1, -1, -1)
        return self._combine(queries, fused_attention(q, k, v, multiplicity, self.scale))

    def reduce(
        self,
        queries: Queries,
        elements: Elements,
        multiplicity: Multiplicity | None = None,
        peak: Float[Tensor, "sets heads queries 1"] | None = None,
    ) -> AttentionState:
        """The state of these elements."""
        form, parts = folded.form(self, queries, elements, multiplicity)
        return self._reduce(parts if form == "gather" else None, queries, elements, multiplicity, peak)

    def _reduce(
        self,
        parts: folded.Parts | None,
        queries: Tensor,
        elements: Tensor,
        multiplicity: Tensor | None,
        peak: Tensor | None = None,
    ) -> AttentionState:
        if self.probe is not None:
            self.probe.see(partial(self._measured, queries, elements, multiplicity), multiplicity)
        if parts is not None:
            return folded.gather(parts, queries, elements, multiplicity, peak)
        m = None if multiplicity is None else multiplicity[:, None]
        q, k, v = self._heads(queries, elements)
        return AttentionState.of(q, k, v, m, self.scale, peak=peak)

    def finish(self, queries: Queries, state: AttentionState) -> Answers:
        return self._combine(queries, self.average(state))

    def _measured(
        self, queries: Tensor, elements: Tensor, multiplicity: Tensor | None, peak: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        q, k, v = self._heads(queries, elements)
        m = None if multiplicity is None else multiplicity[:, None]
        return AttentionState.exponentials(q, k, m, self.scale, peak)[0], v

    def tabulate(self, queries: Float[Tensor, "queries dim"], table: Float[Tensor, "rows dim"]) -> Tabulated:
        """What each row of a table adds to the sums of each query, once.

        Of sets whose elements all are rows of one table (genes of a vocabulary), `attend_tabulated` then makes the sums
        of many sets by one product; no key and no value of an element is computed more than once.
        """
        q, k, v = self._heads(queries[None], table[None])
        scores = (q * self.scale) @ k.mT  # (1, H, Q, rows)
        peak = scores.detach().amax(-1, True)
        weights = torch.exp(scores - peak)
        sums = torch.cat((weights[..., None] * v[:, :, None], weights[..., None]), -1)  # (1, H, Q, rows, d_v + 1)
        return Tabulated(peak, sums[0].permute(2, 0, 1, 3).flatten(1))

    def attend_tabulated(
        self, queries: Float[Tensor, "queries dim"], tabulated: Tabulated, multiplicity: Float[Tensor, "sets rows"]
    ) -> Answers:
        """The block's output for sets that hold row r of the table multiplicity[b, r] times.

        Equal to `forward(queries, elements, multiplicity)` to rounding, as long as no set has only rows whose score
        lies some 80 below the largest of the table's: their weights are 0 in float32, and such a set counts as empty.
        """
        peak, columns = tabulated
        sums = (multiplicity @ columns).unflatten(1, (self.num_heads, len(queries), -1))
        return self.finish(queries[None], AttentionState(peak, (sums[..., -1:], sums[..., :-1])))

    def foldable(self) -> folded.Parts | None:
        """What `omniset.kernels.folded` folds of the block as it is now; None if only the plain form computes it."""
        return None

    def project(self, queries: Queries, elements: Elements) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, heads side by side."""
        raise NotImplementedError

    def combine(self, queries: Queries, average: Answers) -> Answers:
        """The block's output from its queries and the heads' averages of the values, side by side."""
        raise NotImplementedError

    def _heads(self, queries: Tensor, elements: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in self.project(queries, elements))
        return q, k, v

    def _combine(self, queries: Tensor, average: Float[Tensor, "sets heads queries d"]) -> Tensor:
        return self.combine(queries, average.to(queries.dtype).transpose(1, 2).flatten(2))

    @staticmethod
    def _projection(dim: int, init: Start) -> nn.Linear:
        linear = nn.Linear(dim, dim)
        if init == "xavier":
            # As in torch.nn.MultiheadAttention: Linear's own, smaller, start leaves the attention near uniform for
            # long.
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        return linear


class MultisetAttentionBlock(AttentionBlock):
    """MSAB (Universal Set Transformer, section 3.3), with pre-layer normalization or with post-.

        pre:   h = x + MHA(LN(x), LN(y), m);  out = h + FFN(LN(h))
        post:  h = LN(x + MHA(x, y, m));      out = LN(h + FFN(h))

    Scale 1/sqrt(dim / num_heads). For a set without elements the heads' average is 0 before the output projection,
    whose bias and the residual stay.

    Args:
        dim: D, width of queries and elements; divisible by num_heads.
        ffn_dim: Width of the FFN. None: dim. 0: no FFN.
        dropout: Of the attention output and of the FFN output, in training.
        activation: relu, gelu or silu.
        init: How the projections to queries, keys and values start: "xavier" uniform without bias, or as
            torch.nn.Linear.
        hidden_dropout: Within the FFN, after the activation.
        one_norm: Pre-layer normalization of queries and elements is one module, where both are the same (SAB).

    Raises:
        ValueError: A size, norm, activation or init out of bounds.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        ffn_dim: int | None = None,
        norm: Norm = "pre",
        dropout: float = 0.0,
        activation: str = "relu",
        *,
        init: Start = "xavier",
        hidden_dropout: float = 0.0,
        one_norm: bool = False,
    ) -> None:
        super().__init__(dim, num_heads, init)
        if norm not in ("pre", "post"):
            raise ValueError(f"norm must be 'pre' or 'post', got {norm!r}")
        ffn_dim = dim if ffn_dim is None else ffn_dim
        check_sizes(0, ffn_dim=ffn_dim)
        check_probabilities(dropout=dropout, hidden_dropout=hidden_dropout)
        self.scale = (dim // num_heads) ** -0.5
        self.pre = norm == "pre"
        self._parts: folded.Parts | None = None
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.norm_queries = nn.LayerNorm(dim) if self.pre else nn.Identity()
        self.norm_elements = nn.LayerNorm(dim) if self.pre and not one_norm else nn.Identity()
        self.norm_attention = nn.LayerNorm(dim) if not self.pre else nn.Identity()
        self.norm_ffn = nn.LayerNorm(dim) if ffn_dim else nn.Identity()
        self.ffn = feed_forward(dim, ffn_dim, dropout, activation, hidden_dropout) if ffn_dim else None
        self.one_norm = one_norm

    def foldable(self) -> folded.Parts | None:
        if not self.pre or self.one_norm:
            return None
        parts = self._parts
        if parts is None or not parts.hold(self):
            parts = self._parts = folded.Parts(self, written_for=MultisetAttentionBlock)
        return parts if parts.fold and not (self.training and any(part.p for part in parts.dropouts)) else None

    def project(self, queries: Queries, elements: Elements) -> tuple[Tensor, Tensor, Tensor]:
        y = (self.norm_queries if self.one_norm else self.norm_elements)(elements)
        return self.query(self.norm_queries(queries)), self.key(y), self.value(y)

    def combine(self, queries: Queries, average: Answers) -> Answers:
        h = self.norm_attention(queries + self.dropout(self.output(average)))
        if self.ffn is None:
            return h
        return h + self.ffn(self.norm_ffn(h)) if self.pre else self.norm_ffn(h + self.ffn(h))


class LeeAttentionBlock(AttentionBlock):
    """MAB as in the code of Lee et al., "Set Transformer", 2019: plain, for the ablation.

        o = W_q x + heads(softmax(W_q x (W_k y)^T / sqrt(dim) + log m) W_v y);  o = LN(o);  out = LN(o + relu(W o))

    The scale is that of the whole width, the residual starts at the *projected* queries, the heads have no output
    projection, and one row-wise Linear stands for the FFN. norm: "none" or "post" (the two LN above). Not of that
    paper, but for the ablation of another, is "pre": LN of queries, of elements, and of o inside the relu, instead.
    """

    def __init__(self, dim: int, num_heads: int, norm: Norm = "none") -> None:
        super().__init__(dim, num_heads)
        if norm not in ("none", "post", "pre"):
            raise ValueError(f"norm must be 'none', 'post' or 'pre', got {norm!r}")
        self.scale = dim**-0.5
        self.rff = nn.Linear(dim, dim)
        self.norm_attention = nn.LayerNorm(dim) if norm == "post" else nn.Identity()
        self.norm_output = nn.LayerNorm(dim) if norm == "post" else nn.Identity()
        self.norm_queries, self.norm_elements, self.norm_rff = (
            nn.LayerNorm(dim) if norm == "pre" else nn.Identity() for _ in range(3)
        )

    def project(self, queries: Queries, elements: Elements) -> tuple[Tensor, Tensor, Tensor]:
        y = self.norm_elements(elements)
        return self.query(self.norm_queries(queries)), self.key(y), self.value(y)

    def combine(self, queries: Queries, average: Answers) -> Answers:
        o = self.norm_attention(self.query(self.norm_queries(queries)) + average)
        return self.norm_output(o + self.rff(self.norm_rff(o)).relu())


def attention_block(
    dim: int,
    num_heads: int,
    ffn_dim: int | None = None,
    norm: Norm = "pre",
    variant: Variant = "universal",
    one_norm: bool = False,
    **options: Any,
) -> AttentionBlock:
    """The block that SAB, ISAB and PMA are made of.

    What is None, or not among the options, follows from the variant. "universal": as MultisetAttentionBlock has it.
    "author": as in the package universal-set-transformers that the author of the paper has published: an FFN of 4 dim,
    projections that start as torch.nn.Linear, dropout 0.1 of the attention output, within the FFN and of its output;
    norm is "pre". "lee" and "lee-pre" (the same with pre-layer normalization, for an ablation) are fixed, and take norm
    alone.
    """
    options = {name: value for name, value in options.items() if value is not None}
    author = variant == "author"
    if variant == "universal" or author:
        if author and norm != "pre":
            raise ValueError(f"norm must be 'pre' with variant='author', got {norm!r}")
        if author:
            ffn_dim = 4 * dim if ffn_dim is None else ffn_dim
            options = {"init": "linear", "dropout": AUTHORS_DROPOUT, "hidden_dropout": AUTHORS_DROPOUT} | options
        return MultisetAttentionBlock(dim, num_heads, ffn_dim, norm, one_norm=one_norm and author, **options)
    if variant not in ("lee", "lee-pre"):
        raise ValueError(f"variant must be 'universal', 'author', 'lee' or 'lee-pre', got {variant!r}")
    plain = {"activation": "relu", "dropout": 0.0, "hidden_dropout": 0.0}
    if ffn_dim is not None or any(plain.get(name) != value for name, value in options.items()):
        raise ValueError(
            f"variant={variant!r} is fixed: it takes no ffn_dim, dropout, hidden_dropout, init or activation"
        )
    known = ("none", "post") if variant == "lee" else ("pre",)
    if norm not in known:
        raise ValueError(f"norm must be {' or '.join(map(repr, known))} with variant={variant!r}, got {norm!r}")
    return LeeAttentionBlock(dim, num_heads, norm)
