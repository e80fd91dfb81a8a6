"""Omniset: learning from sets and multisets of any size, exactly."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from omniset import cells, encoders, engine, explain, genomes, layers, regions, sources, testing
    from omniset.attention import AttentionState, multiset_attention
    from omniset.engine import EncoderOutput
    from omniset.estimators import SetClassifier, SetRegressor
    from omniset.multisets import compact, compacting_pays
    from omniset.sets import SetBatch

# Looked up when first used, so that `omniset --help` need not wait for PyTorch.
_HOMES = {
    "SetBatch": "sets",
    "compact": "multisets",
    "compacting_pays": "multisets",
    "multiset_attention": "attention",
    "AttentionState": "attention",
    "EncoderOutput": "engine",
    "SetClassifier": "estimators",
    "SetRegressor": "estimators",
}
_MODULES = (
    "cells",
    "encoders",
    "engine",
    "explain",
    "genomes",
    "layers",
    "microbiomes",
    "regions",
    "sources",
    "testing",
)

__all__ = [
    "AttentionState",
    "EncoderOutput",
    "SetBatch",
    "SetClassifier",
    "SetRegressor",
    "__version__",
    "cells",
    "compact",
    "compacting_pays",
    "encoders",
    "engine",
    "explain",
    "genomes",
    "layers",
    "microbiomes",
    "multiset_attention",
    "regions",
    "sources",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"omniset.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"omniset.{name}")
    raise AttributeError(f"module 'omniset' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
