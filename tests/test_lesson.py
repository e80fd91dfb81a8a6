"""The data of a lesson: what a system gives, and what the training loop gets."""

import numpy as np
import pytest
import torch

from omniset.training.data import EpochSampler, Lesson
from omniset.training.fit import TrainingModule, fit


def drawn(keys, training):
    """A batch that says what it was made of, with a number drawn by (epoch, positions)."""
    if not keys:
        return torch.zeros(0, 2)
    rng = np.random.default_rng([7, int(training), *(number for key in keys for number in key)])
    return torch.tensor([[*key, rng.random()] for key in keys])


class Listener(TrainingModule):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__(torch.nn.Linear(1, 1), 0.1, 0.0, 0, {})
        self.seen, self.watched = [], []

    def training_step(self, batch, index):
        self.seen.append(batch)
        return self.network.bias.sum()

    def validation_step(self, batch, index):
        self.watched.append(batch)


def listened(epochs, **options):
    module = Listener()
    lesson = Lesson(drawn, np.arange(11), np.arange(11, 14), **{"batch_size": 4, "seed": 3} | options)
    how = {"patience": None, "device": "cpu", "progress": False, "log": None, "folder": None, "resume": False}
    fit(module, lesson, epochs=epochs, **how)
    return module


def test_batches_of_an_epoch():
    one, again = listened(3), listened(3)
    assert all(torch.equal(a, b) for a, b in zip(one.seen, again.seen, strict=True))
    assert [len(batch) for batch in one.seen] == [4, 4, 3] * 3
    epochs = [torch.cat(one.seen[i : i + 3]) for i in (0, 3, 6)]
    assert [epoch[:, 0].unique().tolist() for epoch in epochs] == [[0], [1], [2]]
    orders = [epoch[:, 1].tolist() for epoch in epochs]
    assert [sorted(order) for order in orders] == [[*range(11)]] * 3
    assert orders[0] != orders[1] != orders[2]
    assert [batch[:, 1].tolist() for batch in one.watched] == [[11, 12, 13]] * 3


def test_options_of_a_lesson():
    assert [len(batch) for batch in listened(1, whole=True).seen] == [4, 4]
    assert [len(batch) for batch in listened(1, whole=True, batch_size=64).seen] == [11]  # the only one
    steps = listened(2, seed=None, batch_size=1)
    assert [int(epoch * 11 + i) for epoch, i, _ in torch.cat(steps.seen).tolist()] == [*range(22)]
    moved = listened(1, move=lambda batch, device: batch.to(device) + 1)
    assert torch.equal(moved.seen[0], listened(1).seen[0] + 1)

    class Backwards(EpochSampler):
        def __iter__(self):
            return iter(list(super().__iter__())[::-1])

    assert [b[:, 1].tolist() for b in listened(1, sampler=Backwards, batch_size=11).seen] == [
        listened(1, batch_size=11).seen[0][:, 1].flip(0).tolist()
    ]


@pytest.mark.parametrize("world", [1, 2, 5, 7])
@pytest.mark.parametrize("items", [1, 11, 20])
def test_processes_take_batches_in_turn(items, world):
    """Each batch of one process alone once, in as many steps of all; the first ones again where the last round lacks
    some.
    """
    lesson = Lesson(lambda keys, training: keys, np.arange(items), np.arange(items), batch_size=2, seed=3)
    alone = [*lesson.loader(True)]
    steps = -(-len(alone) // world)
    taken = [lesson.loader(True, rank, world, turns=True) for rank in range(world)]
    assert [len(loader) for loader in taken] == [steps] * world
    rounds = [[*of_all] for of_all in zip(*taken, strict=True)]
    assert [batch for of_all in rounds for batch in of_all] == (alone * world)[: steps * world]
    # What is watched is never watched twice; where some process would have nothing, each watches all.
    watched = [[*lesson.loader(False, rank, world, turns=True)] for rank in range(world)]
    alone = [*lesson.loader(False)]
    if len(alone) < world:
        assert watched == [alone] * world
    else:
        assert sorted(batch for some in watched for batch in some) == sorted(alone)
        assert [len(lesson.loader(False, rank, world, turns=True)) for rank in range(world)] == [*map(len, watched)]


def test_a_last_batch_that_is_left_out_is_nobodys():
    lesson = Lesson(lambda keys, training: keys, np.arange(11), [], batch_size=2, seed=3, whole=True)
    for rank in range(3):
        assert [len(batch) for batch in lesson.loader(True, rank, 3, turns=True)] == [2, 2]
