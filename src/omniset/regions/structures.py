"""Cortex and subcortex, of which no null may carry one into the other."""

from __future__ import annotations

from omniset.regions.data import Regions
from omniset.regions.formats import structure_of_name, structure_of_text


def groups_of(regions: Regions) -> list[str]:
    """The structure of each region.

    What the files say comes first: of the structure, then with the network. Where they do not, the name tells.
    """
    number = len(regions)
    files = zip(regions.structure or [""] * number, regions.network or [""] * number, regions.names, strict=True)
    return [structure or structure_of_text(network) or structure_of_name(name) for structure, network, name in files]
