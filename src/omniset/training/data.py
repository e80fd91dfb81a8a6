"""The data of a lesson, of every system: batches that depend on (seed, epoch, positions) alone.

So a run repeats, and one that was killed and is resumed goes on as if nothing had been. A system gives positions of its
items and a function that makes a batch of some of them:

    def make(keys: list[Key], training: bool) -> Batch:
        epoch, positions = keys[0][0], [position for _, position in keys]
        rng = np.random.default_rng([seed, epoch, *positions])
        ...

    fit(module, Lesson(make, train, validation, batch_size=64, seed=0), ...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

Key = tuple[int, int]  # epoch, position


class EpochSampler:
    """The chosen positions, in an order of its own each epoch if there is a seed."""

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


@dataclass
class Batches:
    """The batches of an epoch that one of `world` processes computes on, as often as they are asked for.

    All processes take the same number of steps.
    """

    sampler: EpochSampler
    batch_size: int
    make: Callable[[list[Key]], Any]  # makes a batch of keys; of no keys a batch of nothing
    rank: int = 0
    world: int = 1
    whole: bool = False  # leave out a last batch of fewer items
    # Of all batches every world-th, so that `world` of them make a step; else of each batch every world-th item, none
    # where there are too few, so that all processes compute on the batches of one process alone.
    turns: bool = False
    # In turns, take the first ones again where the last round lacks some; else it may lack batches.
    again: bool = False

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return (self.make(keys) for keys in (self._in_turn() if self.turns else self._shares()))

    def __len__(self) -> int:
        items, size = len(self.sampler), self.batch_size
        number = items // size if self.whole else -(-items // size)
        if not self.turns:
            return number
        return -(-number // self.world) if self.again else len(range(self.rank, number, self.world))

    def _all(self) -> Iterator[list[Key]]:
        keys = iter(self.sampler)
        while batch := list(islice(keys, self.batch_size)):
            if not self.whole or len(batch) == self.batch_size:
                yield batch

    def _shares(self) -> Iterator[list[Key]]:
        return (batch[self.rank :: self.world] for batch in self._all())

    def _in_turn(self) -> Iterator[list[Key]]:
        first: list[list[Key]] = []
        number = 0
        for number, batch in enumerate(self._all(), 1):
            if len(first) < self.world:
                first.append(batch)
            if (number - 1) % self.world == self.rank:
                yield batch
        lacking = self.rank - number % self.world
        if self.again and number % self.world and lacking >= 0:
            yield first[lacking % len(first)]


class Lesson:
    """What is learned from and what is watched; in several processes, this one's share of every batch.

    Args:
        make: Makes a batch of (epoch, position) pairs: make(keys, training). Whatever is drawn in it comes of the
            seed and these. Of no keys, where a process has no share of a batch, it makes a batch of nothing.
        train, validation: Positions of items. Where items are made by number, such as samples that are drawn for each
            step, positions are range(steps), with batch_size=1, seed=None, and epoch * steps + position the number.
        seed: Of the order of the training items, another one each epoch. None: as they are.
        move: Moves a batch to a device. None: as Fabric does, which knows tensors, and what has `to`, in tuples,
            lists and dicts.
        sampler: Makes the order of items, such as one that keeps what lies together on disk together.
        whole: Leave out a last training batch of fewer items, unless it is the only one.

    Attributes:
        watched: Items of a batch that is watched; as many as of one that is learned from, unless it is set.
        validation: The positions that are watched; `omniset.training.fit.fit` asks whether there are any.
    """

    def __init__(
        self,
        make: Callable[[list[Key], bool], Any],
        train: Sequence[int] | np.ndarray,
        validation: Sequence[int] | np.ndarray,
        *,
        batch_size: int,
        seed: int | None,
        move: Callable[[Any, torch.device], Any] | None = None,
        sampler: Callable[[Sequence[int] | np.ndarray, int | None], EpochSampler] = EpochSampler,
        whole: bool = False,
    ) -> None:
        self.make, self.train, self.validation, self.watched = make, train, validation, batch_size
        self.batch_size, self.seed, self.move, self.sampler, self.whole = batch_size, seed, move, sampler, whole

    def loader(self, training: bool, rank: int = 0, world: int = 1, turns: bool = False) -> Batches:
        """The batches of an epoch, to learn from or to watch, of one of `world` processes.

        Args:
            turns: Batches of its own; where there are fewer than processes to watch, all of them. Else its share of
                every batch.
        """
        positions, seed = (self.train, self.seed) if training else (self.validation, None)
        size = self.batch_size if training else self.watched
        whole = training and self.whole and len(positions) >= size
        if turns and not training and len(positions) <= size * (world - 1):
            rank, world = 0, 1

        def make(keys: list[Key]) -> Any:
            return self.make(keys, training)

        return Batches(self.sampler(positions, seed), size, make, rank, world, whole, turns, again=training)
