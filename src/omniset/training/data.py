"""Data sets of sets for training: order and shuffles depend on (seed, epoch, set) alone, so runs repeat and resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import lightning.pytorch as pl
import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from omniset.sets import SetBatch, SetCollection, collate

Key = tuple[int, int]
Item = tuple[Tensor, Tensor, Tensor]


class SetDataset(Dataset[Item]):
    """Items are looked up by (epoch, position). With a seed, the elements of a set come in a new order each epoch."""

    def __init__(self, sets: SetCollection, targets: Shaped[Tensor, "sets ..."], seed: int | None) -> None:
        self.sets, self.targets, self.seed = sets, targets, seed

    def __getitem__(self, key: Key) -> Item:
        epoch, i = key
        elements, multiplicity = self.sets[i]
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch, i]).permutation(len(elements))
            elements, multiplicity = elements[order], multiplicity[order]
        return elements, multiplicity, self.targets[i]

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


def collate_items(items: list[Item]) -> tuple[SetBatch, Tensor]:
    return collate((e, m) for e, m, _ in items), torch.stack([t for *_, t in items])


class SetDataModule(pl.LightningDataModule):
    """Training and validation sets. `shuffle_elements` puts random elements into each shard, for training in shards."""

    def __init__(
        self,
        sets: SetCollection,
        targets: Shaped[Tensor, "sets ..."],
        train: np.ndarray,
        validation: np.ndarray,
        batch_size: int,
        seed: int,
        shuffle_elements: bool,
    ) -> None:
        super().__init__()
        self.sets, self.targets, self.train, self.validation = sets, targets, train, validation
        self.batch_size, self.seed, self.shuffle_elements = batch_size, seed, shuffle_elements

    def train_dataloader(self) -> DataLoader:
        return self._loader(self.train, self.seed, self.seed if self.shuffle_elements else None)

    def val_dataloader(self) -> DataLoader:
        return self._loader(self.validation, None, None)

    def _loader(self, positions: np.ndarray, order: int | None, elements: int | None) -> DataLoader:
        data = SetDataset(self.sets, self.targets, elements)
        sampler = EpochSampler(positions, order)
        return DataLoader(data, self.batch_size, sampler=sampler, collate_fn=collate_items)
