"""What a model is taught with: hidden counts, and blocks of cells that are shuffled and read once."""

import numpy as np
import pytest
import torch
from cell_files import cells

from omniset.cells import training
from omniset.cells.data import read_cells
from omniset.cells.training import Blocks, BlockSampler, CellBatches, loss_settled
from omniset.training.data import Lesson


def test_hidden_counts_are_not_seen_and_repeat(monkeypatch):
    monkeypatch.setattr(training, "HIDDEN", 0.4)
    source = read_cells(cells())

    def batches(epoch: int, seed: int = 0):
        made = CellBatches(source, np.zeros(53, dtype=np.int64), seed)
        how = {"batch_size": 17, "seed": seed, "sampler": BlockSampler, "whole": True}
        loader = Lesson(made, np.arange(53), [], **how).loader(True)
        loader.set_epoch(epoch)
        return list(loader)

    first, again, later = batches(0), batches(0), batches(1)
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.seen, b.seen)
    assert not torch.equal(first[0].counts, later[0].counts)
    assert 0.3 < torch.cat([b.hidden for b in first]).double().mean() < 0.5
    for batch in first:
        assert torch.equal(batch.seen[batch.where][~batch.hidden], batch.counts[batch.where][~batch.hidden])
        assert not batch.seen[batch.where][batch.hidden].any()


def test_blocks_are_shuffled_whole_and_once():
    positions = np.delete(np.arange(1000), [3, 500])
    sampler = BlockSampler(positions, 5)
    first = [i for _, i in sampler]
    assert sorted(first) == positions.tolist()
    assert first == [i for _, i in sampler]
    sampler.set_epoch(1)
    assert [i for _, i in sampler] != first


def test_every_block_is_read_once(monkeypatch):
    monkeypatch.setattr("omniset.cells.training.BLOCK", 5)
    monkeypatch.setattr("omniset.cells.training.WINDOW", 3)
    data = cells()
    source, asked = read_cells(data, memory=0), []
    take = source.take
    source.take = lambda rows: asked.append(rows) or take(rows)
    blocks, counts = Blocks(source), data.X.toarray()
    for rows in np.split(np.array([i for _, i in BlockSampler(np.arange(53), 3)]), [7, 14, 21, 28, 35, 42, 49]):
        assert np.array_equal(blocks.take(rows).toarray(), counts[rows])
    assert sorted(np.concatenate(asked)) == list(range(53))
    assert len(blocks.cache) <= 6


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([9.0] * 18 + [2.0, 2.0, 1.99, 1.99], "settled: it changed by 0.5% in"),
        ([9.0] * 18 + [2.0, 2.0, 1.0, 1.0], "not settled, more epochs may help: it changed by 50.0%"),
        ([-3.0] * 10, "settled: it changed by 0.0%"),
        ([1.0] * 9, "cannot be told from 9 epochs"),
    ],
)
def test_whether_the_loss_settled(losses, said):
    assert said in loss_settled([{"train_loss": loss} for loss in losses])


def test_fit_says_it(fitted):
    assert any("cannot be told from 2 epochs" in note for note in fitted.notes_)
