"""Encoders whose layers mix elements through a few vectors of each head: FLARE and Transolver."""

from __future__ import annotations

from typing import Any

from omniset.encoders.base import AttentionEncoder
from omniset.layers.base import SetLayer
from omniset.layers.flare import LatentRouting
from omniset.layers.slices import SliceAttention


class FLARE(AttentionEncoder):
    """FLARE's blocks (Puri et al., "FLARE: Fast Low-rank Attention Routing Engine", 2025) and PMA, O(n k).

    The paper has outputs of elements alone; here PMA, or class tokens, make a summary of them.

    Args:
        input_dim: As in AttentionEncoder, and so dim, depth, num_heads, num_outputs, input_layers, class_token and
            decoder_depth.
        num_inducing: Latent queries of each head and layer.
        ffn_dim: As in LatentRouting, and so norm, dropout, activation and hidden_layers; but for hidden_layers, also
            of PMA and the SABs on the summary.
    """

    only_of_layers = ("num_inducing", "hidden_layers")

    def __init__(
        self,
        *,
        input_dim: int,
        dim: int,
        depth: int,
        num_heads: int,
        num_inducing: int,
        num_outputs: int = 1,
        input_layers: int = 1,
        class_token: bool = False,
        decoder_depth: int = 0,
        ffn_dim: int | None = None,
        norm: str = "pre",
        dropout: float = 0.0,
        activation: str = "gelu",
        hidden_layers: int = 3,
    ) -> None:
        super().__init__(
            input_dim=input_dim,
            dim=dim,
            depth=depth,
            num_heads=num_heads,
            num_outputs=num_outputs,
            input_layers=input_layers,
            class_token=class_token,
            decoder_depth=decoder_depth,
            num_inducing=num_inducing,
            ffn_dim=ffn_dim,
            norm=norm,
            dropout=dropout,
            activation=activation,
            hidden_layers=hidden_layers,
        )

    def set_layer(self, dim: int, num_heads: int, options: dict[str, Any]) -> SetLayer:
        taken = {name: options[name] for name in ("ffn_dim", "norm", "dropout", "activation", "hidden_layers")}
        return LatentRouting(dim, num_heads, options["num_inducing"], **taken)


class Transolver(AttentionEncoder):
    """Transolver's blocks (Wu et al., "Transolver: A Fast Transformer Solver for PDEs on General Geometries", 2024) and
    PMA, O(n k).

    The paper has outputs of elements alone; here PMA, or class tokens, make a summary of them.

    Args:
        input_dim: As in AttentionEncoder, and so dim, depth, num_heads, num_outputs, input_layers, class_token and
            decoder_depth.
        num_inducing: Slices of each layer.
        ffn_dim: As in SliceAttention, and so norm, dropout and activation; also of PMA and the SABs on the summary.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        dim: int,
        depth: int,
        num_heads: int,
        num_inducing: int,
        num_outputs: int = 1,
        input_layers: int = 1,
        class_token: bool = False,
        decoder_depth: int = 0,
        ffn_dim: int | None = None,
        norm: str = "pre",
        dropout: float = 0.0,
        activation: str = "gelu",
    ) -> None:
        super().__init__(
            input_dim=input_dim,
            dim=dim,
            depth=depth,
            num_heads=num_heads,
            num_outputs=num_outputs,
            input_layers=input_layers,
            class_token=class_token,
            decoder_depth=decoder_depth,
            num_inducing=num_inducing,
            ffn_dim=ffn_dim,
            norm=norm,
            dropout=dropout,
            activation=activation,
        )

    def set_layer(self, dim: int, num_heads: int, options: dict[str, Any]) -> SetLayer:
        taken = {name: options[name] for name in ("ffn_dim", "norm", "dropout", "activation")}
        return SliceAttention(dim, num_heads, options["num_inducing"], **taken)
