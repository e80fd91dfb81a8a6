"""Data sets of sets for training: order and shuffles depend on (seed, epoch, set) alone, so runs repeat and resume."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from omniset.sets import LargeSet, SetBatch, SetCollection, StoredSet, batched, collate, source_of

Key = tuple[int, int]
Item = tuple[StoredSet, Tensor]
# A source, the positions in the batch of its sets, and their numbers of elements.
Part = tuple[SetBatch | LargeSet, list[int], list[int]]
# All parts, then one row per set (or per element, set after set): targets and weights.
Batch = tuple[list[Part], Tensor, Tensor]


class SetDataset(Dataset[Item]):
    """Items are looked up by (epoch, position). With a seed, the elements of a set of at most `most` come in a new
    order each epoch; larger sets keep theirs, for they are not read as a whole.
    """

    def __init__(
        self,
        sets: SetCollection,
        targets: Shaped[Tensor, "rows targets"],
        of_elements: bool,
        seed: int | None,
        most: int,
    ) -> None:
        self.sets, self.targets, self.of_elements, self.seed, self.most = sets, targets, of_elements, seed, most

    def __getitem__(self, key: Key) -> Item:
        epoch, i = key
        stored = self.sets[i]
        targets = self.targets[stored.start : stored.stop] if self.of_elements else self.targets[i : i + 1]
        if self.seed is not None and len(stored) <= self.most:
            order = np.random.default_rng([self.seed, epoch, i]).permutation(len(stored))
            elements, multiplicity = stored.read()
            stored = StoredSet(elements[order], multiplicity[order], 0, len(stored))
            targets = targets[order] if self.of_elements else targets
        return stored, targets

    def __len__(self) -> int:
        return len(self.sets)


class EpochSampler(Sampler[Key]):
    """The chosen positions, in an order of its own each epoch if there is a seed. Lightning tells it the epoch."""

    def __init__(self, positions: Sequence[int] | np.ndarray, seed: int | None) -> None:
        self.positions, self.seed, self.epoch = np.asarray(positions), seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Key]:
        order = self.positions
        if self.seed is not None:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(order)
        return ((self.epoch, int(i)) for i in order)

    def __len__(self) -> int:
        return len(self.positions)


class Steps(Sampler[int]):
    """The numbers of the steps of an epoch. Lightning tells it which."""

    def __init__(self, steps: int) -> None:
        self.steps, self.epoch = steps, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[int]:
        # A generator: a run that goes on makes its iterator before it hears of the epoch.
        yield from range(self.epoch * self.steps, (self.epoch + 1) * self.steps)


def as_it_is(batch: Any) -> Any:
    """What a DataLoader does to a batch that its data set made whole."""
    return batch


class ShareOfBatches(Sampler[list[Key]]):
    """Of each batch what one of `world` processes computes on: every world-th item, none where there are too few.

    So all processes take the same number of steps, and together compute on the batches of one process alone.
    """

    def __init__(self, sampler: EpochSampler, batch_size: int, rank: int, world: int) -> None:
        self.sampler, self.batch_size, self.rank, self.world = sampler, batch_size, rank, world

    def __iter__(self) -> Iterator[list[Key]]:
        keys = iter(self.sampler)
        while batch := list(islice(keys, self.batch_size)):
            yield batch[self.rank :: self.world]

    def __len__(self) -> int:
        return math.ceil(len(self.sampler) / self.batch_size)


class SetDataModule(pl.LightningDataModule):
    """Training and validation sets; in several processes, this one's share of every batch.

    Args:
        targets: A row per set, or, `of_elements`, per element of all sets.
        train: Positions of the sets.
        max_elements: Entries that are computed on at a time. A larger batch comes in several parts, a larger set is
            read shard by shard.
        shuffle_elements: Put random elements into each shard, for training in shards.
    """

    def __init__(
        self,
        sets: SetCollection,
        targets: Shaped[Tensor, "rows targets"],
        train: np.ndarray,
        validation: np.ndarray,
        *,
        of_elements: bool,
        batch_size: int,
        max_elements: int,
        shard_size: int | None,
        shuffle_elements: bool,
        seed: int,
    ) -> None:
        super().__init__()
        self.sets, self.targets, self.train, self.validation = sets, targets, train, validation
        self.of_elements, self.batch_size, self.seed = of_elements, batch_size, seed
        self.max_elements, self.shard_size, self.shuffle_elements = max_elements, shard_size, shuffle_elements

    def train_dataloader(self) -> DataLoader:
        return self._loader(self.train, self.seed, self.seed if self.shuffle_elements else None)

    def val_dataloader(self) -> DataLoader:
        return self._loader(self.validation, None, None)

    def _loader(self, positions: np.ndarray, order: int | None, elements: int | None) -> DataLoader:
        data = SetDataset(self.sets, self.targets, self.of_elements, elements, self.max_elements)
        rank, world = (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        share = ShareOfBatches(EpochSampler(positions, order), self.batch_size, rank, world)
        return DataLoader(data, batch_sampler=share, collate_fn=self._collate)

    def _collate(self, items: list[Item]) -> Batch:
        if not items:
            return [], self.targets[:0], torch.ones(0)
        stored = [s for s, _ in items]
        order = list(range(len(items)))
        if len(order) * max(map(len, stored)) > self.max_elements:
            order.sort(key=lambda i: len(stored[i]))  # sets of like size together: less padding
        parts: list[Part] = []
        for group in batched([stored[i] for i in order], len(order), self.max_elements):
            # Elements' outputs need their graph, and so their set in memory.
            source = collate(s.read() for s in group) if self.of_elements else self._source(group)
            positions, order = order[: len(group)], order[len(group) :]
            parts.append((source, positions, [len(s) for s in group]))
        targets = torch.cat([t for _, t in items])
        weights = torch.cat([s.read()[1] for s in stored]) if self.of_elements else torch.ones(len(targets))
        return parts, targets, weights

    def _source(self, group: list[StoredSet]) -> SetBatch | LargeSet:
        return source_of(group, self.max_elements, self.shard_size)
