"""The encoders and their registry."""

from __future__ import annotations

import inspect
from typing import Any

from omniset.encoders.base import AttentionEncoder, Encoder
from omniset.encoders.deep_sets import DeepSets
from omniset.encoders.fspool import FSPool
from omniset.encoders.set_transformer import SetTransformer, UniversalSetTransformer
from omniset.encoders.sse import HierarchicalSlotSetEncoder
from omniset.encoders.strxl import SetTransformerXL
from omniset.encoders.umbc import UMBC
from omniset.layers.universal import attention_block

ENCODERS: dict[str, type[Encoder]] = {
    "deep-sets": DeepSets,
    "fspool": FSPool,
    "set-transformer-sab": SetTransformer,
    "set-transformer-isab": UniversalSetTransformer,
    "sse": HierarchicalSlotSetEncoder,
    "strxl": SetTransformerXL,
    "umbc": UMBC,
    "ust": UniversalSetTransformer,
}

# Every encoder can be built with these; one that has no use for an argument ignores it.
COMMON = {
    *("input_dim", "dim", "depth", "num_heads", "num_inducing", "num_outputs"),
    *("input_layers", "class_token", "decoder_depth", "dropout", "ffn_dim", "norm"),
}


def build(name: str, **arguments: Any) -> Encoder:
    """An encoder by its name in the registry.

    Args:
        name: One of `omniset.encoders.ENCODERS`.
        **arguments: input_dim, dim, depth, num_heads, num_inducing, num_outputs, input_layers, class_token,
            decoder_depth, dropout, ffn_dim, norm (an encoder ignores those it has no use for), and what its class
            takes beside them.

    Raises:
        ValueError: An unknown name, or a value out of bounds.
        TypeError: An argument that this encoder does not know.

    >>> build("ust", input_dim=2, dim=8, depth=1, num_heads=2, num_inducing=3).mini_batch_consistent
    True
    """
    if name not in ENCODERS:
        raise ValueError(f"encoder must be one of {sorted(ENCODERS)}, got {name!r}")
    known = _known(ENCODERS[name])
    unknown = sorted(set(arguments) - known - COMMON)
    if unknown:
        raise TypeError(f"encoder {name!r} does not take {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
    return ENCODERS[name](**{k: v for k, v in arguments.items() if k in known})


def _known(encoder: type[Encoder]) -> set[str]:
    known = set(inspect.signature(encoder).parameters)
    if issubclass(encoder, AttentionEncoder):
        known |= set(inspect.signature(AttentionEncoder).parameters)
    if issubclass(encoder, AttentionEncoder | UMBC):
        known |= set(inspect.signature(attention_block).parameters)
    return known - {"arguments", "options"}


__all__ = [
    "COMMON",
    "ENCODERS",
    "UMBC",
    "AttentionEncoder",
    "DeepSets",
    "Encoder",
    "FSPool",
    "HierarchicalSlotSetEncoder",
    "SetTransformer",
    "SetTransformerXL",
    "UniversalSetTransformer",
    "build",
]
