"""Sentences of the seed: which genes a cell says, in which order, and what it is asked."""

import numpy as np
import pytest
import torch

from omniset.cells.seed import SeedModel, collate, draw_shared, seed_loss, sentence
from omniset.testing import relative_error


def row(genes=101, expressed=41, seed=5, most=7):
    """Many ties, counts of 1 among them."""
    rng = np.random.default_rng(seed)
    counts = np.zeros(genes)
    counts[rng.choice(genes, expressed, replace=False)] = rng.integers(1, most, expressed)
    return counts


@pytest.mark.parametrize("slots", [0, 1, 13, 41, 67, 101, 2048])
def test_genes_of_a_sentence(slots):
    counts = row()
    drawn = [sentence(counts, np.random.default_rng(seed), slots=slots) for seed in range(40)]
    c = np.log1p(counts)
    for found in drawn:
        assert len(found.genes) == min(slots, 101) == len(set(found.genes))
        top = min(slots, 41)
        assert np.array_equal(counts[found.genes[:top]], np.sort(counts)[::-1][:top])
        assert not counts[found.genes[top:]].any()
        assert np.allclose(found.counts, [100 * c[g] / c.sum() for g in found.genes], rtol=1e-14, atol=0)
        assert found.depth == pytest.approx(c[c > 0].mean(), rel=1e-14)
    if slots == 13:  # ties at the end of the sentence: any of them
        least = min(counts[found.genes].min() for found in drawn)
        assert {g for f in drawn for g in f.genes} == set(np.flatnonzero(counts >= least))
    if slots == 67:  # any gene that is not expressed tops it up
        assert {g for f in drawn for g in f.genes[41:]} == set(np.flatnonzero(counts == 0))


def test_tasks_of_a_sentence():
    counts = row()
    rng = np.random.default_rng(0)
    shared = draw_shared(101, rng, 17)
    assert len(set(shared)) == 17
    seen = []
    for _ in range(40):
        found = sentence(counts, rng, shared, positives=11, negatives=23)
        assert np.array_equal(found.tasks[:17], shared)
        assert np.array_equal(found.targets, np.log1p(counts[found.tasks]))
        assert found.mask.all()
        assert len(set(found.tasks[17:])) == 11 + 23
        assert (counts[found.tasks[17:28]] > 0).all()
        assert (counts[found.tasks[28:]] == 0).all()  # a count of 1 is one, though log(1 + 1) < 1
        seen.append(found.tasks[17:])
    assert {g for tasks in seen for g in tasks[:11]} == set(np.flatnonzero(counts))
    assert {g for tasks in seen for g in tasks[11:]} == set(np.flatnonzero(counts == 0))


@pytest.mark.parametrize(("genes", "expressed"), [(1, 0), (1, 1), (2, 1), (50, 7), (50, 50), (50, 0)])
def test_small_panels(genes, expressed):
    rng = np.random.default_rng(0)
    found = sentence(row(genes, expressed), rng, draw_shared(genes, rng))
    assert len(found.genes) == genes
    assert len(found.tasks) == 2 * genes  # each gene as shared, and once as expressed or as not
    assert np.isfinite(found.counts).all()
    assert found.counts.sum() == pytest.approx(100 if expressed else 0)
    assert (found.depth > 0) == (expressed > 0)


@pytest.mark.parametrize("dtype", [np.uint16, np.int64, np.float32])
def test_the_same_generator_gives_the_same_sentence(dtype):
    counts = row().astype(dtype)
    kept = counts.copy()
    one, same, other = (sentence(counts, np.random.default_rng(seed), slots=67, positives=5) for seed in (1, 1, 2))
    assert np.array_equal(one.genes, same.genes)
    assert np.array_equal(one.tasks, same.tasks)
    assert not np.array_equal(one.genes, other.genes)
    assert not np.array_equal(one.tasks, other.tasks)
    assert np.array_equal(counts, kept)


def test_genes_that_are_not_measured():
    """They are no zeros: neither drawn nor counted; as shared tasks they are masked."""
    counts, measured = row(), np.random.default_rng(1).random(101) < 0.5
    rng = np.random.default_rng(0)
    shared = draw_shared(101, rng, 31)
    found = sentence(counts, rng, shared, measured=measured)
    alone = sentence(np.where(measured, counts, 0), np.random.default_rng(0), measured=measured)
    assert set(found.genes) == set(np.flatnonzero(measured)) == set(found.tasks[31:])
    assert found.counts.sum() == pytest.approx(100)
    assert found.depth == pytest.approx(alone.depth)
    assert np.array_equal(found.mask[:31], measured[shared])
    assert found.mask[31:].all()
    assert 0 < found.mask[:31].sum() < 31


def test_batches():
    """Of cells of different lengths, the network and its loss see what they see of each alone."""
    rng = np.random.default_rng(0)
    shared = draw_shared(29, rng, 5)
    drawn = [
        sentence(row(29, n, seed=n), rng, shared, slots=s, positives=7, negatives=3)
        for n, s in ((13, 11), (3, 23), (0, 17), (29, 2))
    ]
    batch = collate(drawn)
    assert len(batch) == 4
    assert batch.genes.shape == batch.counts.shape == batch.multiplicity.shape == (4, 23)
    assert batch.tasks.shape == batch.targets.shape == batch.mask.shape == (4, 5 + 7 + 3)
    assert batch.multiplicity.sum(1).tolist() == [11, 23, 17, 2]
    assert batch.mask.sum(1).tolist() == [15, 11, 8, 12]
    sizes = {"token_dim": 11, "dim": 6, "num_heads": 2, "depth": 2, "ffn_dim": 13, "output_dim": 5}
    model = SeedModel(torch.randn(29, 11), 29, **sizes).eval()
    out = model(batch.genes, batch.counts, batch.multiplicity, batch.tasks, batch.depth)
    losses = []
    for i, one in enumerate(drawn):
        b = collate([one])
        alone = model(b.genes, b.counts, b.multiplicity, b.tasks, b.depth)
        assert relative_error(out.embedding[i : i + 1], alone.embedding) < 1e-5
        assert relative_error(out.prediction[i : i + 1, : len(one.tasks)], alone.prediction) < 1e-5
        losses.append(seed_loss(alone.prediction, b.targets, 0, b.mask))
    together = seed_loss(out.prediction, batch.targets, 0, batch.mask)
    assert relative_error(together, torch.stack(losses).mean()) < 1e-5
