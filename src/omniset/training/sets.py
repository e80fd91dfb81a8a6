"""Batches of sets to learn from (`omniset.training.data.Lesson`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from omniset.core.sets import SetBatch, Sets, batched, collate
from omniset.core.sources import Source, source_of
from omniset.core.stored import StoredSet
from omniset.training.data import Key

# A source, the positions in the batch of its sets, and their numbers of elements.
Part = tuple[SetBatch | Source, list[int], list[int]]
# All parts, then one row per set (or per element, set after set): targets and weights.
Batch = tuple[list[Part], Tensor, Tensor]


@dataclass
class SetBatches:
    """Makes a batch of some of the sets.

    Attributes:
        targets: A row per set, or, `of_elements`, per element of all sets.
        max_elements: Entries that are computed on at a time. A larger batch comes in several parts, a larger set is
            read shard by shard.
        seed: In training, put the elements of each set that is read as a whole in an order that depends on this, the
            epoch and the set: random elements in each shard. None: as they are.
    """

    sets: Sets
    targets: Shaped[Tensor, "rows targets"]
    of_elements: bool
    max_elements: int
    shard_size: int | None = None
    seed: int | None = None

    def __call__(self, keys: list[Key], training: bool) -> Batch:
        if not keys:
            return [], self.targets[:0], torch.ones(0)
        items = [self._item(*key, training) for key in keys]
        stored = [s for s, _ in items]
        order = list(range(len(items)))
        if len(order) * max(map(len, stored)) > self.max_elements:
            order.sort(key=lambda i: len(stored[i]))  # sets of like size together: less padding
        parts: list[Part] = []
        for group in batched([stored[i] for i in order], len(order), self.max_elements):
            # Elements' outputs need their graph, and so their set in memory.
            source = (
                collate(s.read() for s in group)
                if self.of_elements
                else source_of(group, self.max_elements, self.shard_size)
            )
            positions, order = order[: len(group)], order[len(group) :]
            parts.append((source, positions, [len(s) for s in group]))
        targets = torch.cat([t for _, t in items])
        weights = torch.cat([s.read()[1] for s in stored]) if self.of_elements else torch.ones(len(targets))
        return parts, targets, weights

    def _item(self, epoch: int, i: int, training: bool) -> tuple[StoredSet, Tensor]:
        stored = self.sets[i]
        first, stop = self.sets.offsets[i : i + 2].tolist() if self.of_elements else (i, i + 1)
        targets = self.targets[first:stop]
        if training and self.seed is not None and len(stored) <= self.max_elements:
            order = np.random.default_rng([self.seed, epoch, i]).permutation(len(stored))
            elements, multiplicity = stored.read()
            stored = StoredSet(elements[order], multiplicity[order], 0, len(stored))
            targets = targets[order] if self.of_elements else targets
        return stored, targets
