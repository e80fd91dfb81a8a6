"""Distances to reference sets against their formula written out, in float64; the sample that stands for a large set."""

import numpy as np
import pytest
import torch

from omniset.core.sets import Sets
from omniset.estimators import distances, pooling
from omniset.estimators.distances import References, samples_of, seen_of

DIM = 3
SPREAD = (np.array([0.5, -1.0, 2.0]), np.array([1.0, 2.0, 0.25]))


def some(number, seed=0, most=9, empty=None):
    rng = np.random.default_rng(seed)
    elements = [rng.normal(size=(int(rng.integers(1, most)), DIM)).astype(np.float32) for _ in range(number)]
    counts = [rng.integers(1, 4, len(x)).astype(np.float64) for x in elements]
    if empty is not None:
        elements[empty], counts[empty] = elements[empty][:0], counts[empty][:0]
    return elements, counts


def sets_of(elements, counts=None):
    return Sets.from_ragged(elements, counts, dtype=torch.float32)


def described(learned, new, seen=50, **options):
    return References.of(samples_of(learned, seen), SPREAD, seen, **options).distances(samples_of(new, seen))


def directed(x, m, r):
    x, r = (np.clip((of.astype(np.float64) - SPREAD[0]) / SPREAD[1], -5, 5) for of in (x, r))
    return sum(w * min(np.linalg.norm(one - other) for other in r) for w, one in zip(m, x, strict=True)) / m.sum()


@pytest.mark.parametrize("together", [1 << 22, 1])
def test_distances_are_the_formula_written_out(together, monkeypatch):
    monkeypatch.setattr(distances, "TOGETHER", together)
    (x, m), (r, k) = some(7, empty=4), some(5, 1, empty=2)
    found = described(sets_of(r, k), sets_of(x, m))
    there = [j for j in range(5) if j != 2]  # an empty set is no reference
    assert found.shape == (7, 2 * len(there))
    assert np.isnan(found[4]).all()
    for i in (0, 1, 2, 3, 5, 6):
        expected = [directed(x[i], m[i], r[j]) for j in there] + [directed(r[j], k[j], x[i]) for j in there]
        np.testing.assert_allclose(found[i], expected, rtol=1e-6)


def test_features_far_out_say_no_more_than_five_deviations():
    x, r = np.full((1, DIM), 1e30, dtype=np.float32), SPREAD[0][None].astype(np.float32)
    np.testing.assert_allclose(described(sets_of([r]), sets_of([x])), np.full((1, 2), 5 * np.sqrt(DIM)), rtol=1e-6)


@pytest.mark.parametrize(("seen", "elements"), [(50, 4_096), (5, 13)])
def test_order_and_copies_of_elements_change_nothing(seen, elements, monkeypatch):
    monkeypatch.setattr(distances, "ELEMENTS", elements)
    (x, m), (r, k) = some(7, most=19), some(5, 1, most=19)
    rng = np.random.default_rng(2)

    def otherwise(elements, counts):
        copies = [np.repeat(e, c.astype(int), 0) for e, c in zip(elements, counts, strict=True)]
        return sets_of([each[rng.permutation(len(each))] for each in copies])

    one = described(sets_of(r, k), sets_of(x, m), seen)
    np.testing.assert_array_equal(described(otherwise(r, k), otherwise(x, m), seen), one)


def test_absent_elements_are_not_there():
    (x, m), (r, k) = some(4), some(3, 1)
    more = [np.concatenate([e, np.zeros((1, DIM), dtype=np.float32)]) for e in (*x, *r)]
    counts = [np.append(c, 0.0) for c in (*m, *k)]
    changed = described(sets_of(more[4:], counts[4:]), sets_of(more[:4], counts[:4]))
    np.testing.assert_array_equal(changed, described(sets_of(r, k), sets_of(x, m)))


def test_shards_of_a_large_set_give_its_sample(monkeypatch):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(101, DIM)).astype(np.float32)[rng.integers(0, 101, 397)]
    m = rng.integers(0, 3, 397).astype(np.float64)
    stored = sets_of([x], [m])[0]
    whole = pooling.sampled(stored, 23)
    monkeypatch.setattr(pooling, "SHARD", 7 * DIM)
    for one, other in zip(pooling.sampled(stored, 23), whole, strict=True):
        np.testing.assert_array_equal(one, other)
    elements, counts = whole
    assert elements.shape == (23, DIM)
    assert len(np.unique(elements, axis=0)) == 23
    for element, count in zip(elements, counts, strict=True):
        assert count == m[(x == element).all(1)].sum() > 0
    everything, of_all = pooling.sampled(stored, 1000)
    assert len(everything) == len(np.unique(x[m > 0], axis=0))
    assert of_all.sum() == m.sum()


def test_sampled_reference_elements_weigh_without_bias(monkeypatch):
    """Over many sets whose multiplicities are the same numbers, a sum over the sample is on average that over all."""
    monkeypatch.setattr(distances, "SETS", 10_000)
    rng = np.random.default_rng(4)
    m = np.array([1.0, 1.0, 2.0, 3.0, 5.0, 30.0, 4.0, 9.0])
    x = [rng.normal(size=(8, DIM)).astype(np.float32) for _ in range(2_000)]
    monkeypatch.setattr(distances, "ELEMENTS", 3 * len(x))
    one = References.of(samples_of(sets_of(x, [m] * len(x)), 50), SPREAD, 50)
    assert (np.diff(one.starts) == 3).all()
    np.testing.assert_allclose(np.add.reduceat(one.shares, one.starts), 1, rtol=1e-12)
    heaviest = np.stack([e[5] for e in x])  # 30 of 55 in each set: in each sample, as its priority is 30 at least
    z = np.clip((heaviest - SPREAD[0]) / SPREAD[1], -5, 5).astype(np.float32)
    at = np.abs(one.elements.reshape(-1, 3, DIM) - z[:, None]).max(2) == 0
    share = (one.shares.reshape(-1, 3) * at).sum(1)
    assert 0.4 < share.mean() < 0.7


def test_of_many_sets_some_are_references(monkeypatch):
    monkeypatch.setattr(distances, "SETS", 3)
    x, m = some(11)
    table = described(sets_of(x, m), sets_of(x, m), seed=5)
    chosen = np.sort(np.random.default_rng(5).permutation(11)[:3])
    assert table.shape == (11, 6)
    for place, j in enumerate(chosen):
        np.testing.assert_allclose(table[j, [place, 3 + place]], 0, atol=1e-6)  # each set is no way from itself
    np.testing.assert_array_equal(table, described(sets_of(x, m), sets_of(x, m), seed=5))


def test_of_many_features_fewer_elements_are_stored(monkeypatch):
    monkeypatch.setattr(distances, "STORED", 7 * DIM)
    x, m = some(11, most=20)
    for number, part in ((11, 1), (3, 2)):
        one = References.of(samples_of(sets_of(x[:number], m[:number]), 50), SPREAD, 50)
        assert len(one) == min(number, 7)
        assert (np.diff([*one.starts, len(one.elements)]) <= part).all()


def test_without_elements_to_learn_from_nothing_is_known():
    x, m = some(4)
    empty = sets_of([np.empty((0, DIM), dtype=np.float32)] * 3)
    assert np.isnan(described(empty, sets_of(x, m))).all()


def test_stored_references_say_the_same():
    (x, m), (r, k) = some(7), some(5, 1)
    one = References.of(samples_of(sets_of(r, k), 50), SPREAD, 50)
    again = References.restored({name: np.array(array) for name, array in one.state().items()})
    samples = samples_of(sets_of(x, m), again.seen)
    np.testing.assert_array_equal(again.distances(samples), one.distances(samples))


def test_memory_is_bounded_by_what_is_looked_at():
    assert seen_of(100, 166) == 1_024
    assert seen_of(300, 1_024) == (1 << 26) // (300 * 1_024)
    assert seen_of(10_000, 5) == (1 << 20) // 10_000
    assert seen_of(10**7, 5) == 16
