"""Connectivity of brain regions from the genes that they express: `ConnectivityPredictor`."""

from omniset.regions.data import Regions
from omniset.regions.predictor import ConnectivityPredictor
from omniset.regions.reading import read_regions

__all__ = ["ConnectivityPredictor", "Regions", "read_regions"]
