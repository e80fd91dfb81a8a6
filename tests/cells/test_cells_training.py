"""What a model is taught with: hidden counts, and blocks of cells that are shuffled and read once."""

import numpy as np
import torch
from cell_files import cells

from omniset.cells.data import read_cells
from omniset.cells.model import TypeHead
from omniset.cells.training import Blocks, BlockSampler, CellBatches, lesson


def test_hidden_counts_are_not_seen_and_repeat():
    source = read_cells(cells())

    def batches(epoch: int, seed: int = 0):
        made = CellBatches(source, np.zeros(53, dtype=np.int64), 0.4, seed)
        loader = lesson(made, np.arange(53), np.arange(0), batch_size=17, whole=True).loader(True)
        loader.batch_sampler.sampler.set_epoch(epoch)
        return list(loader)

    first, again, later = batches(0), batches(0), batches(1)
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.seen, b.seen)
    assert not torch.equal(first[0].counts, later[0].counts)
    share = torch.cat([b.hidden for b in first]).double().mean()
    assert 0.3 < share < 0.5
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
    assert [i for _, i in BlockSampler(positions, None)] == positions.tolist()


def test_every_block_is_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr("omniset.cells.training.BLOCK", 5)
    monkeypatch.setattr("omniset.cells.training.WINDOW", 3)
    data = cells()
    data.write_h5ad(tmp_path / "all.h5ad")
    source = read_cells(tmp_path / "all.h5ad", memory=0)
    asked: list[np.ndarray] = []
    take = source.take
    source.take = lambda rows: asked.append(rows) or take(rows)
    blocks, counts = Blocks(source), data.X.toarray()
    for rows in np.split(np.array([i for _, i in BlockSampler(np.arange(53), 3)]), [7, 14, 21, 28, 35, 42, 49]):
        assert np.array_equal(blocks.take(rows).toarray(), counts[rows])
    assert sorted(np.concatenate(asked)) == list(range(53))
    assert len(blocks.cache) <= 6


def test_types_are_told_apart_by_a_weighted_cross_entropy_of_labelled_cells():
    torch.manual_seed(0)
    head = TypeHead(5, 3).double()
    head.weigh(torch.tensor([16, 4, 1]))
    z = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    types = torch.tensor([0, -1, 2, 2, 1, -1, 0])
    total, weights = 0.0, 0.0
    for place, kind in zip(z, types.tolist(), strict=True):
        if kind >= 0:
            logits = head.linear.weight @ place + head.linear.bias
            weight = [0.25, 0.5, 1.0][kind]
            total, weights = total - weight * (logits[kind] - logits.logsumexp(0)), weights + weight
    found = head(z, types)
    torch.testing.assert_close(found, total / weights, atol=1e-12, rtol=0)
    found.backward()
    assert (z.grad[types < 0] == 0).all()
    assert (z.grad[types >= 0] != 0).all()
    nothing = head(z, torch.full((7,), -1))
    nothing.backward()
    assert nothing == 0
