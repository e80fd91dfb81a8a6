import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omniset import SetBatch
from omniset.core.sets import SetCollection, StoredSet, batched
from omniset.core.sources import source_of


def test_ragged_in_and_out():
    sets = [torch.randn(n, 3) for n in (5, 0, 2)]
    counts = [torch.randint(1, 9, (n,)) for n in (5, 0, 2)]
    batch = SetBatch.from_ragged(sets, counts)
    assert batch.elements.shape == (3, 5, 3)
    assert batch.multiplicity.sum(1).tolist() == [int(c.sum()) for c in counts]
    elements, multiplicity = batch.to_ragged()
    for got, expected in zip(elements + multiplicity, sets + counts, strict=True):
        assert torch.equal(got, expected)


def test_ragged_accepts_lists_arrays_and_empty_lists():
    batch = SetBatch.from_ragged([[[1, 2]], [], np.array([[3.5, 4], [5, 6]])])
    assert batch.elements.tolist() == [[[1, 2], [0, 0]], [[0, 0], [0, 0]], [[3.5, 4], [5, 6]]]
    assert batch.multiplicity.tolist() == [[1, 0], [0, 0], [1, 1]]
    assert SetBatch.from_ragged([[], []], dim=4).elements.shape == (2, 0, 4)
    with pytest.raises(ValueError, match="pass dim="):
        SetBatch.from_ragged([[], []])


@pytest.mark.parametrize(("size", "lengths"), [(1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (64, [7])])
def test_shards_are_the_batch_cut_in_order(size, lengths):
    batch = SetBatch(torch.randn(2, 7, 3), torch.randint(0, 4, (2, 7)))
    shards = batch.shards(size)
    assert [s.elements.shape[1] for s in shards] == lengths
    assert torch.equal(torch.cat([s.elements for s in shards], 1), batch.elements)
    assert torch.equal(torch.cat([s.multiplicity for s in shards], 1), batch.multiplicity)
    assert [len(s) for s in shards] == [2] * len(lengths)


def test_an_empty_batch_has_one_empty_shard():
    assert [s.elements.shape for s in SetBatch(torch.zeros(2, 0, 3)).shards(4)] == [(2, 0, 3)]


@pytest.mark.parametrize("size", [0, -3])
def test_bad_shard_size(size):
    with pytest.raises(ValueError, match=rf"shard size must be an integer >= 1, got {size}"):
        SetBatch(torch.zeros(1, 2, 3)).shards(size)


def test_what_is_written_in_padding_does_not_matter():
    elements = torch.ones(1, 3, 2)
    elements[0, 1] = math.nan
    batch = SetBatch(elements, torch.tensor([[1, 0, 2]]))
    assert batch.elements.tolist() == [[[1, 1], [0, 0], [1, 1]]]


@pytest.mark.parametrize("bad", [-0.5, math.nan, math.inf])
def test_bad_multiplicities_are_named(bad):
    m = torch.ones(3, 5)
    m[2, 4] = bad
    with pytest.raises(ValueError, match=r"multiplicity\[2, 4\] is .*must be finite and >= 0"):
        SetBatch(torch.zeros(3, 5, 2), m)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_bad_features_are_named(bad):
    x = torch.zeros(3, 5, 2)
    x[1, 3, 1] = bad
    with pytest.raises(ValueError, match=r"elements\[1, 3, 1\] is .*must be finite"):
        SetBatch(x)


def test_bad_shapes_are_named():
    with pytest.raises(ValueError, match=r"elements must be \(sets, elements, dim\), got shape \(3, 2\)"):
        SetBatch(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"multiplicity must have shape \(3, 5\).*got \(3, 4\)"):
        SetBatch(torch.zeros(3, 5, 2), torch.ones(3, 4))
    with pytest.raises(ValueError, match=r"set 1 must be \(N, 2\), got shape \(4, 3\)"):
        SetBatch.from_ragged([np.zeros((1, 2)), np.zeros((4, 3))])
    with pytest.raises(ValueError, match=r"set 0 must be \(N, D\), got shape \(3,\)"):
        SetBatch.from_ragged([np.zeros(3)])
    with pytest.raises(ValueError, match=r"multiplicities\[1\] must have length 4"):
        SetBatch.from_ragged([np.zeros((1, 2)), np.zeros((4, 2))], [[1], [1, 2]])


def test_table_and_list_and_batch_are_the_same_collection():
    table = pd.DataFrame(
        {"set": ["b", "a", "b", "b"], "x": [1.0, 2.0, 3.0, 4.0], "multiplicity": [1, 2, 3, 1], "y": [5, 6, 7, 8]}
    )
    from_table = SetCollection.of(table, torch.float32)
    sets, counts = [[[1, 5], [3, 7], [4, 8]], [[2, 6]]], [[1, 3, 1], [2]]
    from_batch = SetCollection.of(SetBatch.from_ragged(sets, counts), torch.float32)
    assert from_table.names == ["b", "a"]
    assert from_table.features == ["x", "y"]
    assert torch.equal(from_table.elements, from_batch.elements)
    assert torch.equal(from_table.multiplicity, from_batch.multiplicity)
    assert from_table.offsets.tolist() == from_batch.offsets.tolist() == [0, 3, 4]
    assert torch.equal(SetCollection.of(sets, torch.float32).elements, from_table.elements)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": [1.0, math.nan]}, "column 'x', row 1: nan must be finite"),
        ({"multiplicity": [2, -1]}, "column 'multiplicity', row 1: -1 must be finite and >= 0"),
        ({"x": ["1", "two"]}, "column 'x', row 1: 'two' must be a number, as the others are"),
        ({"x": ["two", "1"]}, "column 'x', row 1: is '1', which is a number, and 'two' is none"),
        ({"x": [[1], [2]]}, "column 'x' must be numbers or text, it is object"),
        ({"set": ["a", None]}, "column 'set' is missing in row 1"),
    ],
)
def test_bad_tables(change, message):
    table = pd.DataFrame({"set": ["a", "b"], "x": [1.0, 2.0], "multiplicity": [1, 1]} | change)
    with pytest.raises(ValueError, match=message):
        SetCollection.of(table, torch.float32)


def test_table_without_set_or_features():
    with pytest.raises(ValueError, match="needs a column 'set'"):
        SetCollection.of(pd.DataFrame({"x": [1.0]}), torch.float32)
    with pytest.raises(ValueError, match="no feature columns"):
        SetCollection.of(pd.DataFrame({"set": [1], "element": ["q"]}), torch.float32)
    with pytest.raises(ValueError, match="at least one set"):
        SetCollection.of([], torch.float32)


def test_bad_values_in_a_list_name_set_and_element():
    with pytest.raises(ValueError, match=r"set 1: elements\[2, 0\] is nan"):
        SetCollection.of([np.ones((1, 2)), np.array([[1.0, 1], [1, 1], [np.nan, 1]])], torch.float32)


@settings(deadline=None)
@given(st.lists(st.integers(0, 7), max_size=11), st.integers(1, 5), st.integers(1, 23))
def test_groups_fit_and_are_as_large_as_fits(sizes, batch_size, most):
    rows, bounds = torch.zeros(sum(sizes), 1), np.cumsum([0, *sizes])
    sets = [StoredSet(rows, rows[:, 0], int(a), int(b)) for a, b in itertools.pairwise(bounds)]
    groups = list(batched(iter(sets), batch_size, most))
    assert [id(s) for group in groups for s in group] == [id(s) for s in sets]

    def fits(group):
        return len(group) <= batch_size and len(group) * max(map(len, group)) <= most

    assert all(len(group) == 1 or fits(group) for group in groups)
    assert not any(fits([*group, following[0]]) for group, following in itertools.pairwise(groups))


def test_groups_are_made_while_sets_are_read():
    rows = torch.zeros(6, 1)
    sets = (StoredSet(rows, rows[:, 0], 2 * i, 2 * i + 2) for i in range(3))
    assert len(next(batched(sets, 5, 2))) == 1
    assert next(sets).start == 4  # only the one after the group has been read


@pytest.mark.parametrize(("sizes", "size"), [([3], None), ([3], 2), ([2, 3], 2), ([5], None), ([5], 2), ([0], 1)])
def test_a_group_is_padded_and_a_set_larger_than_fits_comes_in_shards(sizes, size):
    collection = SetCollection.of([torch.rand(n, 2) for n in sizes], torch.float32)
    sets = [collection[i] for i in range(len(sizes))]
    source = source_of(sets, 3, size)
    if sizes == [5]:
        assert [s.elements.shape[1] for s in source] == ([3, 2] if size is None else [2, 2, 1])
        assert torch.equal(torch.cat([s.elements for s in source], 1)[0], collection.elements)
    else:
        assert source.multiplicity.sum(1).tolist() == sizes
        assert source.elements.shape[1] == max(sizes)
