"""Pooled features against NumPy on the multiset written out, in one piece, in shards, and from disk."""

import numpy as np
import pytest
import torch

from omniset.core.disk import DiskRows
from omniset.core.sets import SetBatch, Sets
from omniset.estimators import pooling
from omniset.estimators.pooling import OF_SIZE, QUANTILES, STATISTICS, names_of, pooled

SIZES = (1, 2, 13, 5, 101, 29)
DIM = 3


def sets_of(multiplicities, seed=0, low=-3, high=4):
    """Small integers, so that elements come more than once."""
    rng = np.random.default_rng(seed)
    elements = [rng.integers(low, high, (len(m), DIM)).astype(np.float32) for m in multiplicities]
    return elements, Sets.of(SetBatch.from_ragged(elements, multiplicities), torch.float32)


def counts(rng, least=0):
    return [rng.integers(least, 5, size).astype(np.float32) for size in SIZES]


def oracle(elements, multiplicity):
    """One set, each element written as often as it occurs."""
    x = np.repeat(elements.astype(np.float64), multiplicity.astype(int), 0)
    of_size = [np.log1p(len(x)), np.log1p(len(np.unique(x, axis=0))), len(x) == 0]
    if not len(x):
        return np.concatenate([of_size, np.full(len(STATISTICS) * DIM, np.nan)])
    of_features = [x.mean(0), x.std(0), x.min(0), x.max(0)]
    of_features += [np.quantile(x, p, axis=0, method="inverted_cdf") for p in QUANTILES]
    return np.concatenate([of_size, *of_features])


def assert_equal_to_oracle(table, elements, multiplicities):
    expected = np.stack([oracle(e, m) for e, m in zip(elements, multiplicities, strict=True)])
    np.testing.assert_allclose(table, expected, rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize("together", [1, 40, 1 << 20])
def test_pooled_is_that_of_the_multiset_written_out(monkeypatch, together):
    monkeypatch.setattr(pooling, "TOGETHER", together)
    multiplicities = counts(np.random.default_rng(1))
    multiplicities[3][:] = 0  # an empty set
    elements, sets = sets_of(multiplicities)
    assert_equal_to_oracle(pooled(sets), elements, multiplicities)


def test_sets_without_multiplicities_take_the_way_by_ranks_to_the_same():
    multiplicities = [np.ones(size, dtype=np.float32) for size in SIZES]
    multiplicities[2][::2] = 0
    elements, sets = sets_of(multiplicities)
    assert_equal_to_oracle(pooled(sets), elements, multiplicities)
    doubled = Sets.from_ragged([s.read()[0] for s in sets], [2 * s.read()[1] for s in sets])
    np.testing.assert_array_equal(pooled(doubled)[:, 1:], pooled(sets)[:, 1:])


@pytest.mark.parametrize("on_disk", [False, True])
def test_shards_of_a_large_set_give_the_whole(monkeypatch, tmp_path, on_disk):
    multiplicities = counts(np.random.default_rng(2))
    elements, sets = sets_of(multiplicities)
    if on_disk:
        rows, weights = DiskRows(DIM, torch.float32, tmp_path), DiskRows(None, torch.float32, tmp_path)
        for stored in sets:
            rows.append(stored.read()[0])
            weights.append(stored.read()[1])
        sets = Sets.from_rows(rows, weights, sets.offsets)
    monkeypatch.setattr(pooling, "SHARD", 7 * DIM)
    monkeypatch.setattr(pooling, "TOGETHER", 1)
    assert_equal_to_oracle(pooled(sets), elements, multiplicities)


def test_fractional_multiplicities_are_weights():
    rng = np.random.default_rng(3)
    m = rng.integers(1, 6, 17)
    elements = rng.normal(size=(17, DIM)).astype(np.float32)
    tenths = Sets.of(SetBatch.from_ragged([elements], [(m / 10).astype(np.float32)]), torch.float32)
    whole = Sets.of(SetBatch.from_ragged([elements], [m.astype(np.float32)]), torch.float32)
    np.testing.assert_allclose(pooled(tenths)[:, 1:], pooled(whole)[:, 1:], rtol=1e-6)
    assert pooled(tenths)[0, 0] == pytest.approx(np.log1p(m.sum() / 10), rel=1e-6)


@pytest.mark.parametrize("exact", [1 << 26, 40 * DIM])
def test_order_copies_and_absent_elements_change_nothing(monkeypatch, exact):
    monkeypatch.setattr(pooling, "EXACT", exact)  # 40 of 97 elements: quantiles are those of a sample
    monkeypatch.setattr(pooling, "SHARD", 19 * DIM)
    rng = np.random.default_rng(4)
    elements = rng.normal(size=(97, DIM)).astype(np.float32)
    m = rng.integers(1, 4, 97)
    order = rng.permutation(m.sum() + 1)
    copies = np.concatenate([np.repeat(elements, m, 0), [[9, 9, 9]]])[order].astype(np.float32)
    there = np.append(np.ones(m.sum()), 0)[order].astype(np.float32)
    once = Sets.of(SetBatch.from_ragged([elements], [m.astype(np.float32)]), torch.float32)
    written = Sets.of(SetBatch.from_ragged([copies], [there]), torch.float32)
    np.testing.assert_allclose(pooled(written), pooled(once), rtol=2e-7, atol=2e-7)


def test_few_distinct_elements_are_exact_however_many_copies(monkeypatch):
    rng = np.random.default_rng(8)
    distinct = rng.normal(size=(7, DIM)).astype(np.float32)
    elements = distinct[rng.integers(0, 7, 1_009)]
    sets = Sets.of([elements], torch.float32)
    monkeypatch.setattr(pooling, "EXACT", 11 * DIM)
    monkeypatch.setattr(pooling, "SHARD", 5 * DIM)
    assert_equal_to_oracle(pooled(sets), [elements], [np.ones(1_009)])


def test_a_sample_of_a_large_set_is_near_the_whole(monkeypatch):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(20_011, DIM)).astype(np.float32)
    sets = Sets.of([x], torch.float32)
    whole = pooled(sets)
    monkeypatch.setattr(pooling, "EXACT", 15_000)
    monkeypatch.setattr(pooling, "SHARD", 4_001 * DIM)
    sampled = pooled(sets)
    first = len(OF_SIZE) + 4 * DIM
    np.testing.assert_array_equal(sampled[:, 2:first], whole[:, 2:first])  # exact in any case
    assert np.abs(sampled[:, first:] - whole[:, first:]).max() < 0.15  # five standard errors of 2,500
    assert (sampled[:, first:] != whole[:, first:]).any()
    assert np.expm1(sampled[0, 1]) == pytest.approx(20_011, rel=0.1)


def test_distinct_elements_are_those_that_differ_in_any_feature():
    x = np.zeros((2**DIM * 2, DIM), dtype=np.float32)
    x[: 2**DIM] = np.array(np.meshgrid(*[[0.0, 1.0]] * DIM)).reshape(DIM, -1).T
    x[2**DIM :] = -x[: 2**DIM]  # -0 is 0
    table = pooled(Sets.of([x], torch.float32))
    assert np.expm1(table[0, 1]) == pytest.approx(len(np.unique(x, axis=0)))


def test_a_constant_has_no_deviation():
    x = np.full((10_007, DIM), 0.1, dtype=np.float32)
    m = np.random.default_rng(7).uniform(0.1, 3, len(x)).astype(np.float32)
    sets = Sets.of(SetBatch.from_ragged([x], [m]), torch.float32)
    table = pooled(sets)[0]
    np.testing.assert_array_equal(table[3:], np.repeat([0.1, 0, *[0.1] * 7], DIM).astype(np.float32))


def test_columns_have_names():
    names = names_of(["x", "y", "z"])
    assert names[3 + 3 * DIM :][:4] == ["max of x", "max of y", "max of z", "quantile 0.1 of x"]
    _, sets = sets_of(counts(np.random.default_rng(6), least=1))
    assert pooled(sets).shape == (len(SIZES), len(names))


def test_a_set_without_any_element_has_no_statistics():
    sets = Sets.of([np.zeros((0, DIM)), np.ones((1, DIM))], torch.float32)
    table = pooled(sets)
    np.testing.assert_array_equal(table[0], [0, 0, 1] + [np.nan] * (len(STATISTICS) * DIM))
    assert np.isfinite(table[1]).all()
