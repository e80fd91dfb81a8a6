"""Parts of the brain: the hemispheres, and cortex and subcortex, of which no null may carry one into the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from omniset.regions.data import LEFT, RIGHT, Regions
from omniset.regions.formats import structure_of_name, structure_of_text
from omniset.regions.formats.structures import CORTEX, SUBCORTEX

SIDES = {"left": LEFT, "right": RIGHT}
STRUCTURES = (CORTEX, SUBCORTEX)


def groups_of(regions: Regions) -> list[str]:
    """The structure of each region.

    What the files say comes first: of the structure, then with the network. Where they do not, the name tells.
    """
    number = len(regions)
    files = zip(regions.structure or [""] * number, regions.network or [""] * number, regions.names, strict=True)
    return [structure or structure_of_text(network) or structure_of_name(name) for structure, network, name in files]


def check_parts(only: Sequence[str]) -> None:
    """Raise the ValueErrors of `within` that need no regions."""
    known = (*SIDES, *STRUCTURES)
    if isinstance(only, str):
        raise ValueError(f"only must be a sequence of {', '.join(known)}; got the text {only!r}")
    for part in only:
        if part not in known:
            raise ValueError(f"only must be out of {', '.join(known)}; got {part!r}")
    for kind in (tuple(SIDES), STRUCTURES):
        if set(kind) <= set(only):
            raise ValueError(f"only must have one of {' and '.join(kind)}, got both: leave both out for all regions")


def within(regions: Regions, only: Sequence[str]) -> Int[np.ndarray, " rows"]:
    """Positions of the regions of one part of the brain.

    A region without a hemisphere, such as the brain stem, is in neither.

    Args:
        only: "left" or "right", "cortex" or "subcortex" (see `groups_of`), or one of either.

    Raises:
        ValueError: Another part, both of a kind, or a hemisphere where none is known of any region.
    """
    check_parts(only)
    inside = np.ones(len(regions), dtype=bool)
    for part in only:
        if part in SIDES and not any(regions.hemisphere or ()):
            raise ValueError(f"only={part}: the hemisphere is not known of any region: give coordinates")
        of_region = regions.hemisphere if part in SIDES else groups_of(regions)
        inside &= np.array(of_region) == SIDES.get(part, part)
    return np.flatnonzero(inside)
