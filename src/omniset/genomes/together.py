"""Genomes that are completed together: each is a reference of the others, such as several MAGs of one species."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from omniset.genomes.methods import SURE, References
from omniset.genomes.noise import NoiseModel, Observed


@contextmanager
def joined(references: References, noise: NoiseModel, batches: Iterable[Observed]) -> Iterator[int]:
    """While it is open, genomes stand behind the references, each with the families that it probably has: see
    `References.impute`. What was observed of them is doubted as far as they are contaminated.

    Returns:
        How many genomes there are.
    """
    before, seen, complete, contaminated = references.presence, [], [], []
    for batch in batches:
        settled = noise.settle(batch)[0]
        seen.append(settled.present.to(torch.uint8) * SURE)
        complete.append(settled.completeness.double().cpu().numpy())
        contaminated.append(settled.contamination.double().cpu().numpy())
    number, ones = sum(map(len, seen)), np.ones(len(before))
    # Of one without any family nothing is said, not even what all have.
    told = [row for row, any_there in enumerate(torch.cat(seen).any(1).tolist()) if any_there] if seen else []
    references.take(torch.cat([before, *seen]), number)
    try:
        if told:
            quality = np.concatenate([ones, *complete]), np.concatenate([0 * ones, *contaminated])
            references.impute(noise, *quality, rows=len(before) + np.array(told))
        yield number
    finally:
        references.take(before)


def each_with_others(
    references: References, noise: NoiseModel, batches: Sequence[Observed]
) -> Iterator[tuple[int, Observed]]:
    """Batches and their positions; as long as they are read, each genome is a reference of all others: see `joined`."""
    before, at = len(references.presence), 0
    with joined(references, noise, batches) as number:
        for position, observed in enumerate(batches):
            hidden = own_references(at, len(observed), before, number).to(observed.counts.device)
            yield position, replace(observed, excluded=hidden)
            at += len(observed)


def own_references(first: int, number: int, references: int, genomes: int) -> Bool[Tensor, "number all_references"]:
    """(number, references + genomes) the reference that each of so many genomes, from the first on, may not be compared
    with: itself.

    Args:
        references, genomes: How many there are.
    """
    return torch.arange(references + genomes) == references + first + torch.arange(number)[:, None]
