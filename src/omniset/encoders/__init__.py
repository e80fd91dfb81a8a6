"""The encoders and their registry."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from omniset.encoders.author import from_author
from omniset.encoders.base import AttentionEncoder, Encoder
from omniset.encoders.embedding import RowWise
from omniset.encoders.pooling import ABMIL, DeepSets, FSPool
from omniset.encoders.set_transformer import FLARE, SetTransformer, UniversalSetTransformer
from omniset.encoders.slots import UMBC, HierarchicalSlotSetEncoder
from omniset.encoders.strxl import SetTransformerXL
from omniset.layers.universal import MultisetAttentionBlock

ENCODERS: dict[str, type[Encoder]] = {
    "abmil": ABMIL,
    "deep-sets": DeepSets,
    "flare": FLARE,
    "fspool": FSPool,
    "set-transformer-sab": SetTransformer,
    "set-transformer-isab": UniversalSetTransformer,
    "sse": HierarchicalSlotSetEncoder,
    "strxl": SetTransformerXL,
    "umbc": UMBC,
    "ust": UniversalSetTransformer,
}

# Why each is here: the comparison of the paper, a file that users have, or a result (tests/test_encoders.py).
REASONS = {
    **dict.fromkeys(("deep-sets", "fspool", "sse", "strxl", "umbc", "ust"), "paper"),
    **dict.fromkeys(("set-transformer-isab", "set-transformer-sab"), "paper"),
    "abmil": "files: bags of features, as programs for slides write them",
    "flare": "results/studies/point-shapes/flare.json",
}

# Every encoder can be built with these; one that has no use for an argument ignores it.
COMMON = {
    *("input_dim", "dim", "depth", "num_heads", "num_inducing", "num_outputs"),
    *("input_layers", "class_token", "decoder_depth", "dropout", "ffn_dim", "norm"),
}
NORMS = ("pre", "post", "none")


def build(name: str, *, embed: nn.Module | None = None, **arguments: Any) -> Encoder:
    """An encoder by its name in the registry.

    Args:
        name: One of `omniset.encoders.ENCODERS`.
        embed: What turns elements into features, in place of the input layers (of deep-sets and fspool: of phi): a
            module from rows (n, input_dim) to rows (n, dim). It is trained with the encoder, through shards with the
            exact gradient. `omniset.encoders.RowWise` says what it must keep to.
        **arguments: input_dim, dim, depth, num_heads, num_inducing, num_outputs, input_layers, class_token,
            decoder_depth, dropout, ffn_dim, norm (an encoder ignores those it has no use for), and what its class
            takes beside them.

    Raises:
        ValueError: An unknown name, or a value out of bounds; an `embed` that does not make dim features of
            input_dim, or that has batch normalization.
        TypeError: An argument that this encoder does not know, or one that it needs and is not there; an `embed` that
            is no module.

    >>> build("ust", input_dim=2, dim=8, depth=1, num_heads=2, num_inducing=3).mini_batch_consistent
    True
    >>> tiles = nn.Sequential(nn.Unflatten(1, (3, 8, 8)), nn.Conv2d(3, 16, 8), nn.Flatten())
    >>> encoder = build("abmil", input_dim=3 * 8 * 8, dim=16, embed=tiles)
    """
    if name not in ENCODERS:
        raise ValueError(f"encoder must be one of {sorted(ENCODERS)}, got {name!r}")
    known = _known(ENCODERS[name])
    unknown = sorted(set(arguments) - known - COMMON)
    if unknown:
        raise TypeError(f"encoder {name!r} does not take {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
    if missing := [argument for argument in _required(ENCODERS[name]) if argument not in arguments]:
        raise TypeError(f"encoder {name!r} needs {', '.join(missing)}")
    if (norm := arguments.get("norm", "pre")) not in NORMS:  # also of one that ignores it
        raise ValueError(f"norm must be one of {NORMS}, got {norm!r}")
    if embed is not None:
        arguments.pop("input_layers", None)
    encoder = ENCODERS[name](**{k: v for k, v in arguments.items() if k in known})
    return encoder if embed is None else encoder.with_embed(embed)


def _parameters(encoder: type[Encoder]) -> dict[str, inspect.Parameter]:
    """Its own arguments; `arguments` stands for those of AttentionEncoder."""
    parameters = dict(inspect.signature(encoder).parameters)
    if "arguments" in parameters:
        parameters = {**inspect.signature(AttentionEncoder).parameters, **parameters}
    return parameters


def _required(encoder: type[Encoder]) -> list[str]:
    """Arguments without a default."""
    named = [p for p in _parameters(encoder).values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    return [p.name for p in named if p.default is inspect.Parameter.empty]


def _known(encoder: type[Encoder]) -> set[str]:
    """What it takes; `options` stands for the arguments of a block."""
    known = set(_parameters(encoder))
    if "options" in known:
        known |= {*inspect.signature(MultisetAttentionBlock).parameters, "variant"} - {"one_norm"}
    return known - {"arguments", "options"}


__all__ = [
    "ABMIL",
    "COMMON",
    "ENCODERS",
    "FLARE",
    "UMBC",
    "AttentionEncoder",
    "DeepSets",
    "Encoder",
    "FSPool",
    "HierarchicalSlotSetEncoder",
    "RowWise",
    "SetTransformer",
    "SetTransformerXL",
    "UniversalSetTransformer",
    "build",
    "from_author",
]
