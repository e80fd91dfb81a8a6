"""Set transformers: with full self-attention, with induced attention (which, run in shards, is the UST), and FLARE."""

from __future__ import annotations

from typing import Any

from omniset.encoders.base import AttentionEncoder
from omniset.layers import InducedSetAttentionBlock, LatentRouting, SetAttentionBlock, SetLayer


class SetTransformer(AttentionEncoder):
    """Set Transformer with SABs (Lee et al., 2019): O(n^2). Arguments: AttentionEncoder."""

    def set_layer(self, dim: int, num_heads: int, options: dict[str, Any]) -> SetLayer:
        return SetAttentionBlock(dim, num_heads, **options)


class UniversalSetTransformer(AttentionEncoder):
    """Universal Set Transformer: U-ISABs and PMA, O(n k), exact in shards. Arguments: AttentionEncoder and
    num_inducing, the inducing points k of every layer.

    On whole sets it is the Set Transformer with ISABs, and so it is here: one architecture under two names, which
    differ only in how the literature runs them on shards (merged, or independently).
    """

    def __init__(self, *, num_inducing: int, **arguments: Any) -> None:
        super().__init__(num_inducing=num_inducing, **arguments)

    def set_layer(self, dim: int, num_heads: int, options: dict[str, Any]) -> SetLayer:
        return InducedSetAttentionBlock(dim, num_heads, **options)


class FLARE(AttentionEncoder):
    """FLARE's blocks (Puri et al., "FLARE: Fast Low-rank Attention Routing Engine", 2025) and PMA, O(n k).

    The paper has outputs of elements alone; here PMA, or class tokens, make a summary of them.

    Args:
        num_inducing: Latent queries of each head and layer.
        hidden_layers: As in LatentRouting.
        activation: Likewise, and so ffn_dim and dropout.
        **arguments: As in AttentionEncoder; options that LatentRouting has not are of PMA and the SABs on the summary.
    """

    only_of_layers = ("num_inducing", "hidden_layers")

    def __init__(
        self, *, num_inducing: int, hidden_layers: int = 3, activation: str = "gelu", **arguments: Any
    ) -> None:
        super().__init__(num_inducing=num_inducing, hidden_layers=hidden_layers, activation=activation, **arguments)

    def set_layer(self, dim: int, num_heads: int, options: dict[str, Any]) -> SetLayer:
        names = ("ffn_dim", "dropout", "activation", "hidden_layers")
        taken = {name: options[name] for name in names if options.get(name) is not None}
        return LatentRouting(dim, num_heads, options["num_inducing"], **taken)
