"""Connectivity of brain regions from the genes that they express: `ConnectivityPredictor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omniset.lazy import lazily

if TYPE_CHECKING:
    from omniset.regions.data import Regions
    from omniset.regions.predictor import ConnectivityPredictor
    from omniset.regions.reading import read_regions

__all__ = ["ConnectivityPredictor", "Regions", "read_regions"]

__getattr__, __dir__ = lazily(
    __name__, {"ConnectivityPredictor": "predictor", "Regions": "data", "read_regions": "reading"}
)
