"""Omniset: learning from sets and multisets of any size, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omniset.lazy import lazily

__version__ = "0.1.0"

if TYPE_CHECKING:
    from omniset import cells, encoders, engine, explain, genomes, layers, microbiomes, regions, testing
    from omniset.core import sources
    from omniset.core.attention import AttentionState, multiset_attention
    from omniset.core.multisets import compact
    from omniset.core.sets import SetBatch, Sets
    from omniset.engine import EncoderOutput
    from omniset.estimators import SetClassifier, SetRegressor, SetSurvival

__all__ = [
    "AttentionState",
    "EncoderOutput",
    "SetBatch",
    "SetClassifier",
    "SetRegressor",
    "SetSurvival",
    "Sets",
    "__version__",
    "cells",
    "compact",
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

__getattr__, __dir__ = lazily(
    __name__,
    {
        "AttentionState": "core.attention",
        "EncoderOutput": "engine",
        "SetBatch": "core.sets",
        "SetClassifier": "estimators",
        "SetRegressor": "estimators",
        "SetSurvival": "estimators",
        "Sets": "core.sets",
        "cells": "",
        "compact": "core.multisets",
        "encoders": "",
        "engine": "",
        "explain": "",
        "genomes": "",
        "layers": "",
        "microbiomes": "",
        "multiset_attention": "core.attention",
        "regions": "",
        "sources": "core",
        "testing": "",
    },
)
