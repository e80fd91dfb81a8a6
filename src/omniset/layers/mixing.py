"""Layers that mix the elements of a set through k vectors of each head: the parts they share.

A transformer block in which something else stands for the attention. With mix(x) for the heads' results, side by side:

    pre:   h = x + W_o mix(LN(x));  out = h + FFN(LN(h))
    post:  h = LN(x + W_o mix(x));  out = LN(h + FFN(h))
"""

from __future__ import annotations

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from omniset.core.checks import check_sizes
from omniset.layers.base import SetLayer
from omniset.layers.probes import Probe


class MixingLayer(SetLayer):
    """A block around `mix`. Its context is k vectors of each head, side by side: (B, k, D).

    Args:
        dim: D, width of the elements; divisible by num_heads.
        num_heads: H.
        ffn: Network of each element after the mixing; None: none.
        norm: Layer normalization, "pre" or "post".
        dropout: Of what was mixed, in training. The FFN has its own.

    Raises:
        ValueError: A size or norm out of bounds.
    """

    probe: Probe | None
    """Set by omniset.explain, for the time of an explanation."""

    def __init__(self, dim: int, num_heads: int, ffn: nn.Module | None, norm: str, dropout: float) -> None:
        super().__init__()
        check_sizes(dim=dim, num_heads=num_heads)
        if dim % num_heads:
            raise ValueError(f"dim must be divisible by num_heads, got dim={dim} and num_heads={num_heads}")
        if norm not in ("pre", "post"):
            raise ValueError(f"norm must be 'pre' or 'post', got {norm!r}")
        self.num_heads, self.pre = num_heads, norm == "pre"
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.norm_mixing = nn.LayerNorm(dim)
        self.norm_ffn = nn.LayerNorm(dim) if ffn is not None else nn.Identity()
        self.ffn = ffn
        self.register_module("probe", None)

    @property
    def set_attention(self) -> MixingLayer:
        return self

    def mix(
        self, elements: Float[Tensor, "sets elements dim"], context: Float[Tensor, "sets k dim"]
    ) -> Float[Tensor, "sets heads elements d"]:
        """What each head makes of each element, given the context. `elements` are normalised if `pre`."""
        raise NotImplementedError

    def forward(
        self, elements: Float[Tensor, "sets elements dim"], multiplicity: Shaped[Tensor, "sets elements"] | None = None
    ) -> Float[Tensor, "sets elements dim"]:
        m = elements.new_ones(elements.shape[:2]) if multiplicity is None else multiplicity
        return self.map(elements, self.finish(self.reduce(elements, m)))

    def map(
        self, elements: Float[Tensor, "sets elements dim"], context: Float[Tensor, "sets k dim"]
    ) -> Float[Tensor, "sets elements dim"]:
        mixed = self.dropout(self.output(self.joined(self.mix(self.before(elements), context))))
        if self.pre:
            h = elements + mixed
            return h if self.ffn is None else h + self.ffn(self.norm_ffn(h))
        h = self.norm_mixing(elements + mixed)
        return h if self.ffn is None else self.norm_ffn(h + self.ffn(h))

    def before(self, elements: Float[Tensor, "sets elements dim"]) -> Float[Tensor, "sets elements dim"]:
        """Elements as `mix` and `reduce` take them."""
        return self.norm_mixing(elements) if self.pre else elements

    def heads(self, x: Float[Tensor, "sets rows dim"]) -> Float[Tensor, "sets heads rows d"]:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def joined(self, x: Float[Tensor, "sets heads rows d"]) -> Float[Tensor, "sets rows dim"]:
        return x.transpose(1, 2).flatten(2)
