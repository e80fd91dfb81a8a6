"""Set transformers: with full self-attention, and with induced attention (which, run in shards, is the UST)."""

from __future__ import annotations

from typing import Any

from omniset.encoders.base import AttentionEncoder
from omniset.layers import InducedSetAttentionBlock, SetAttentionBlock, SetLayer
from omniset.layers.set_norm import set_transformer_block


class SetTransformer(AttentionEncoder):
    """Set Transformer with SABs (Lee et al., 2019): O(n^2). Arguments: AttentionEncoder."""

    def set_layer(self, dim: int, num_heads: int, options: dict[str, Any]) -> SetLayer:
        return SetAttentionBlock(dim, num_heads, **options)


class UniversalSetTransformer(AttentionEncoder):
    """Universal Set Transformer: U-ISABs and PMA, O(n k), exact in shards. Arguments: AttentionEncoder and
    num_inducing, the inducing points k of every layer.

    On whole sets it is the Set Transformer with ISABs, and so it is here: one architecture under two names, which
    differ only in how the literature runs them on shards (merged, or independently).

    With norm="set" it is Set Transformer++ (Zhang et al., "Set Norm and Equivariant Skip Connections: Putting the Deep
    in Deep Sets", 2022): set norms before attention and FFN, and clean residuals. `layers` then has three for each of
    `depth`, and a last set norm, whose outputs are the elements' and are what PMA reads, without a norm of its own.
    """

    has_set_norm = True

    def __init__(self, *, num_inducing: int, **arguments: Any) -> None:
        super().__init__(num_inducing=num_inducing, **arguments)

    def set_layer(self, dim: int, num_heads: int, options: dict[str, Any]) -> SetLayer:
        return InducedSetAttentionBlock(dim, num_heads, **options)

    def normed_layers(self, dim: int, num_heads: int, options: dict[str, Any]) -> list[SetLayer]:
        variant = options.pop("variant", "universal")
        if variant != "universal":
            raise ValueError(f"variant must be 'universal' with norm='set', got {variant!r}")
        return set_transformer_block(dim, num_heads, **options)
