import itertools
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils import _safe_indexing

from omniset import SetBatch, SetClassifier, Sets
from omniset.core.disk import DiskRows
from omniset.core.sets import batched
from omniset.core.sources import source_of
from omniset.core.stored import Storage, StoredSet


def whole(sets):
    return next(sets.blocks(10**9))


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
    with pytest.raises(ValueError, match=rf"shard_size must be an integer >= 1, got {size}"):
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


@pytest.mark.parametrize(("lost", "narrow"), [(1e-50, "0.0"), (1e-300, "0.0"), (1e300, "inf")])
def test_multiplicities_that_the_dtype_cannot_hold_are_named(lost, narrow):
    """In float32, 1e-50 would be 0, and the element absent; in float64 it is there."""
    m = torch.ones(3, 5, dtype=torch.float64)
    m[2, 4] = lost
    said = rf"multiplicity\[2, 4\] is .*, which is {narrow} as torch.float32: multiplicities must be 0 or from 1.4e-45 "
    with pytest.raises(ValueError, match=said + r"to 3.4e\+38. Multiply all by the same factor"):
        SetBatch(torch.zeros(3, 5, 2), m)
    with pytest.raises(ValueError, match="set 1: multiplicity.* as torch.float32"):
        Sets.from_ragged([torch.zeros(5, 2)] * 2, [m[0], m[2]])
    assert SetBatch(torch.zeros(3, 5, 2, dtype=torch.float64), m).presence.lengths.tolist() == [5, 5, 5]
    kept = Sets.from_ragged([torch.zeros(5, 2)], [m[2]], dtype=torch.float64).to_batch()
    assert float(kept.multiplicity[0, 4]) == lost
    assert SetBatch(torch.zeros(1, 1, 2, dtype=torch.float16), torch.tensor([[70000]])).multiplicity.tolist() == [
        [70000]
    ]


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
    collection = Sets.of([torch.rand(n, 2) for n in sizes], torch.float32)
    sets = [collection[i] for i in range(len(sizes))]
    source = source_of(sets, 3, size)
    if sizes == [5]:
        assert [s.elements.shape[1] for s in source] == ([3, 2] if size is None else [2, 2, 1])
        assert torch.equal(torch.cat([s.elements for s in source], 1)[0], whole(collection)[0])
    else:
        assert source.multiplicity.sum(1).tolist() == sizes
        assert source.elements.shape[1] == max(sizes)


# ---------------------------------------------------------------------- Sets

NAMES = [f"s{i}" for i in range(7)]
SIZES = (3, 0, 5, 1, 2, 0, 7)


def lists(sets):
    return [(s.name, s.read()[0].tolist(), s.read()[1].tolist()) for s in sets]


def rows_of(sizes=SIZES, dim=2, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-9, 9, (n, dim)).astype(np.float32) for n in sizes]


class Counted:
    def __init__(self, rows):
        self.rows, self.reads = torch.as_tensor(rows), []

    @property
    def shape(self):
        return tuple(self.rows.shape)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, rows):
        self.reads.append(rows)
        return self.rows[rows]


def stored_everywhere(folder):
    """The sets of `rows_of`, two each end to end: in memory, on disk, and where each read is counted."""
    arrays, counts = rows_of(), [np.arange(n, dtype=np.float32) for n in SIZES]
    disk = DiskRows(2, torch.float32, folder), DiskRows(None, torch.float32, folder)
    for i in (2, 3, 4):
        disk[0].append(torch.as_tensor(arrays[i]))
        disk[1].append(torch.as_tensor(counts[i]))
    counted = Counted(np.concatenate(arrays[5:])), torch.as_tensor(np.concatenate(counts[5:]))
    memory = torch.as_tensor(np.concatenate(arrays[:2])), torch.as_tensor(np.concatenate(counts[:2]))
    storages = [Storage(*counted), Storage(*disk), Storage(*memory)]
    places = [(2, 0, 3), (2, 3, 3), (1, 0, 5), (1, 5, 6), (1, 6, 8), (0, 0, 0), (0, 0, 7)]
    expected = [(n, a.tolist(), c.tolist()) for n, a, c in zip(NAMES, arrays, counts, strict=True)]
    return Sets(storages, np.array(places), NAMES, ["x", "y"]), expected


INDICES = [
    slice(1, 5),
    slice(None, None, -2),
    slice(5, 2),
    [4, 1, 1],
    [],
    [-1, 0, -7],
    np.array([6, 2, 6], dtype=np.uint8),
    np.array([], dtype=np.int64),
    range(2, 6),
    [True, False] * 3 + [True],
    np.array([0, 1, 1, 0, 0, 1, 1], dtype=bool),
    np.zeros(7, dtype=bool),
    torch.tensor([5, 3]),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_choosing_is_that_of_a_list(index, tmp_path):
    sets, expected = stored_everywhere(tmp_path)
    numbers = np.arange(7)[index if isinstance(index, slice) else np.asarray(index, dtype=None if len(index) else int)]
    wanted = [expected[i] for i in numbers]
    chosen = sets[index]
    assert lists(chosen) == wanted
    assert (len(chosen), chosen.shape, chosen.names) == (len(wanted), (len(wanted),), [name for name, _, _ in wanted])
    assert chosen.sizes.tolist() == [len(rows) for _, rows, _ in wanted]
    assert chosen.offsets.tolist() == [0, *itertools.accumulate(len(rows) for _, rows, _ in wanted)]
    assert (chosen.features, chosen.dim) == (["x", "y"], 2)
    assert repr(chosen) == f"Sets(sets={len(wanted)}, elements={sum(chosen.sizes)}, dim=2)"
    assert lists(chosen[::-1][:2]) == wanted[::-1][:2]
    if not isinstance(index, range | torch.Tensor):
        assert lists(_safe_indexing(sets, index)) == wanted


def test_one_set_of_many(tmp_path):
    sets, expected = stored_everywhere(tmp_path)
    assert [lists([sets[i]])[0] for i in range(-7, 7)] == expected * 2
    assert lists([sets[np.int64(2)], _safe_indexing(sets, 2)]) == [expected[2]] * 2
    assert lists(iter(sets)) == expected
    assert repr(sets[2]) == "StoredSet(name='s2', elements=5, dim=2)"
    for number in (7, -8, [0, 7], np.array([-8])):
        with pytest.raises(IndexError, match="set -?[78] of 7"):
            sets[number]
    for index in ("s1", ["s1"], [0.5], None, True, [[1]], (1, 2, 3)):
        with pytest.raises(ValueError, match="sets are chosen by an integer, a slice, a list of integers or a mask"):
            sets[index]
    with pytest.raises(ValueError, match="a mask of sets must be as long as they are, 7, got 2"):
        sets[[True, False]]


@pytest.mark.parametrize("rows", [1, 2, 5, 17, 18, 19])
@pytest.mark.parametrize("index", [slice(None), [6, 0, 2, 3, 3, 5], [2, 3, 4], [1, 5], []], ids=str)
def test_blocks_are_all_elements_in_order(rows, index, tmp_path):
    sets, expected = stored_everywhere(tmp_path)
    expected = [expected[i] for i in np.arange(7)[index if isinstance(index, slice) else np.array(index, dtype=int)]]
    blocks = list(sets[index].blocks(rows))
    assert [row for e, _ in blocks for row in e.tolist()] == [row for _, e, _ in expected for row in e]
    assert [count for _, m in blocks for count in m.tolist()] == [count for _, _, m in expected for count in m]
    assert all(len(e) == rows for e, _ in blocks[:-1])
    assert all(0 < len(e) <= rows for e, _ in blocks)


def test_choosing_reads_and_copies_nothing(tmp_path):
    sets, expected = stored_everywhere(tmp_path)
    chosen = sets[[6, 2, 6, 0]][1:]
    counted = sets[6].elements
    assert counted.reads == []
    assert [a.elements is sets[i].elements for a, i in zip(chosen, (2, 6, 0), strict=True)] == [True] * 3
    assert lists([chosen[1]]) == [expected[6]]
    assert set(map(str, counted.reads)) == {"slice(0, 7, None)"}
    # sets that follow each other in a storage are read at once
    counted.reads.clear()
    neighbours = Sets([Storage(counted)], np.array([(0, 0, 2), (0, 2, 2), (0, 2, 6), (0, 1, 3)]))
    assert [len(e) for e, _ in neighbours.blocks(100)] == [8]
    assert counted.reads == [slice(0, 6), slice(1, 3)]


def test_one_storage_each_and_multiplicities_of_one(tmp_path):
    arrays = [a.astype(np.float64) for a in rows_of((3, 0, 2))]
    sets = Sets([Storage(Counted(a)) for a in arrays])
    assert lists(sets) == [(i, a.tolist(), [1.0] * len(a)) for i, a in enumerate(arrays)]
    in_tensors = Sets([Storage(torch.as_tensor(a)) for a in arrays])
    assert in_tensors[0].multiplicity.dtype == torch.float64
    assert in_tensors[0].multiplicity.untyped_storage().nbytes() == 8


def test_sets_from_stored_sets_share_their_storages(tmp_path):
    sets, expected = stored_everywhere(tmp_path)
    again = Sets.from_stored([sets[3], sets[6], sets[2]], ["p", "q"])
    assert (lists(again), again.features) == ([expected[3], expected[6], expected[2]], ["p", "q"])
    assert again[1].elements is sets[6].elements
    assert lists(Sets.of([sets[3], sets[0]])) == [expected[3], expected[0]]
    with pytest.raises(ValueError, match="sets is empty"):
        Sets.from_stored([])
    with pytest.raises(ValueError, match="sets is empty"):
        Sets.of(sets[:0])


def test_as_one_batch(tmp_path):
    sets, expected = stored_everywhere(tmp_path)
    elements, multiplicity = sets[[2, 0]].to_batch().to_ragged()  # those of multiplicity 0 are absent
    assert [e.tolist() for e in elements] == [expected[2][1][1:], expected[0][1][1:]]
    assert [m.tolist() for m in multiplicity] == [expected[2][2][1:], expected[0][2][1:]]
    assert sets[:0].to_batch().elements.shape == (0, 0, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"storages": []}, "storages is empty"),
        ({"storages": [Storage(torch.zeros(5, 2)), Storage(torch.zeros(1, 3))]}, "storage 1 must have 2 features"),
        ({"places": np.array([[0, 0, 2], [1, 0, 1]])}, r"places\[1\] is rows 0 to 1 of storage 1, which is not there"),
        ({"places": np.array([[0, 0, 6]])}, r"places\[0\] is rows 0 to 6 of storage 0, which is 5 rows"),
        ({"places": np.array([[0, 3, 2]])}, r"places\[0\] is rows 3 to 2"),
        ({"places": np.array([[0, -1, 2]])}, r"places\[0\] is rows -1 to 2"),
        ({"places": np.array([[0.0, 0, 1]])}, r"places must be integers \(sets, 3\), got float64 of shape \(1, 3\)"),
        ({"names": ["a", "b"]}, r"names must be one per set, \(1,\), got shape \(2,\)"),
        ({"features": ["x"]}, "features must be 2 names, got 1"),
        ({"features": ["x", "x"]}, "features must not name one twice: 'x'"),
        ({"order": np.arange(4)}, "order must be of all 5 elements, got 4"),
    ],
)
def test_bad_sets(change, message):
    with pytest.raises(ValueError, match=message):
        Sets(**{"storages": [Storage(torch.zeros(5, 2))]} | change)


def test_bad_storages():
    with pytest.raises(ValueError, match=r"elements of a storage must be \(rows, D\), got shape \(5,\)"):
        Storage(torch.zeros(5))
    with pytest.raises(ValueError, match=r"multiplicity must have shape \(5,\), got \(4,\)"):
        Storage(torch.zeros(5, 2), torch.ones(4))


# ---------------------------------------------------------------------- scikit-learn


def some_of_two_kinds(number=20):
    rng = np.random.default_rng(1)
    arrays = [rng.normal(3 * (i % 2), 1, (rng.integers(1, 6), 2)) for i in range(number)]
    return Sets.from_ragged(arrays, names=[f"s{i}" for i in range(number)], features=["x", "y"]), arrays


def small(**options):
    settings = {"dim": 4, "num_heads": 2, "depth": 1, "epochs": 2, "validation_fraction": 0.0}
    return SetClassifier("deep-sets", **settings | options, progress=False, device="cpu", log=None)


def test_sets_drawn_twice_keep_their_labels():
    sets, arrays = some_of_two_kinds()
    y = pd.Series(np.arange(20) % 2, index=sets.names)
    drawn = [4, 1, 1, 7, 4, 0, 9, 9, 3, 2, 6, 6]
    one = small().fit(sets[drawn], y.iloc[drawn])
    other = small().fit([arrays[i] for i in drawn], y.to_numpy()[drawn])
    assert np.array_equal(one.predict_proba(sets), other.predict_proba(arrays))


@pytest.mark.parametrize("level", ["set", "element"])
def test_predictions_of_some_are_those_of_all(level):
    rng = np.random.default_rng(2)
    table = pd.DataFrame(rng.normal(size=(61, 2)), columns=["x", "y"]).assign(set=rng.integers(0, 13, 61))
    sets = Sets.from_pandas(table)
    y = np.arange(len(sets)) % 2 if level == "set" else (table["x"] > 0).to_numpy()
    model = small(level=level, batch_size=5)
    model = model.set_params(encoder="ust").fit(sets, y)
    if level == "element":  # one array of labels per set is the same lesson
        nested = [(s.read()[0][:, 0] > 0).numpy() for s in sets]
        again = model.__class__(**model.get_params()).fit(sets, nested)
        assert np.array_equal(again.predict_proba(table), model.predict_proba(table))
    everything = model.predict_table(sets)
    chosen = np.array([11, 3, 3, 0])
    some = model.predict_table(sets[chosen])
    names = [sets.names[i] for i in chosen]
    expected = pd.concat([everything[everything["set"] == name] for name in names], ignore_index=True)
    pd.testing.assert_frame_equal(some, expected, rtol=1e-5)
    probabilities = model.predict_proba(sets[chosen])
    assert np.array_equal(probabilities, some[["p_0", "p_1"] if level == "set" else ["p_False", "p_True"]])
    if level == "element":  # of a whole table: in the order of its rows
        assert np.allclose(model.predict_proba(sets), model.predict_proba(table), rtol=1e-5)
        rows = np.concatenate([np.flatnonzero(table["set"] == name) for name in names])
        assert np.allclose(model.predict_proba(sets)[rows], probabilities, rtol=1e-5)


def test_features_of_another_order_are_refused():
    sets, arrays = some_of_two_kinds()
    model = small().fit(sets, np.arange(20) % 2)
    other = Sets.from_ragged(arrays, features=["y", "x"])
    with pytest.raises(ValueError, match="feature 1 of the sets is 'y', the model was fitted on 'x' there"):
        model.predict(other)
    assert model.predict(Sets.from_ragged(arrays)).tolist() == model.predict(sets).tolist()


# ---------------------------------------------------------------------- from what users have


def test_from_ragged_by_hand():
    sets = Sets.from_ragged(
        [[[1, 2]], [], np.array([[3.5, 4], [5, 6]])], [[2], [], [0, 1]], (n for n in "bac"), ["x", "y"]
    )
    assert lists(sets) == [("b", [[1, 2]], [2]), ("a", [], []), ("c", [[3.5, 4], [5, 6]], [0, 1])]
    assert (sets.features, sets.order) == (["x", "y"], None)
    assert Sets.from_ragged([[[1]]], dtype=torch.float64)[0].read()[0].dtype == torch.float64
    assert Sets.from_ragged([[], []], dim=3).dim == 3
    with pytest.raises(ValueError, match=r"set 1: multiplicity\[0\] is -1"):
        Sets.from_ragged([[[1.0]], [[2.0]]], [[1], [-1]])
    with pytest.raises(ValueError, match=r"set 0: elements\[0, 1\] is 1e\+39: .* must be finite as torch.float32"):
        Sets.from_ragged([np.array([[1.0, 1e39]])])
    with pytest.raises(ValueError, match=r"names must be one per set, \(1,\), got shape \(2,\)"):
        Sets.from_ragged([[[1.0]]], names=["a", "b"])


def long_table():
    return pd.DataFrame(
        {
            "patient": ["q", "p", "q", "r", "p"],
            "x": [1, 2, 3, 4, 5],
            "multiplicity": [1, 2, 0, 1, 3],
            "y": [True, False, True, True, False],
            "element": list("abcde"),
        },
        index=[7, 7, 3, 1, 0],
    )


EXPECTED = [("q", [[1, 1], [3, 1]], [1, 0]), ("p", [[2, 0], [5, 0]], [2, 3]), ("r", [[4, 1]], [1])]


def test_from_pandas_by_hand():
    sets = Sets.from_pandas(long_table(), "patient")
    assert (lists(sets), sets.features, sets.order.tolist()) == (EXPECTED, ["x", "y"], [0, 2, 1, 4, 3])
    assert [s.names_of_elements().tolist() for s in sets] == [["a", "c"], ["b", "e"], ["d"]]
    assert [s.names_of_elements(1).tolist() for s in sets[[1, 0]]] == [["e"], ["c"]]
    assert sets[1:].order is None
    only = Sets.from_pandas(long_table(), "patient", features=["y"], dtype=torch.float64)
    assert lists(only[:1]) == [("q", [[1], [1]], [1, 0])]


@pytest.mark.parametrize(
    ("kind", "names"),
    [("category", ["q", "p", "r"]), ("string", ["q", "p", "r"]), ("Int64", [17, 16, 18]), ("datetime", None)],
)
def test_names_of_sets_of_any_kind(kind, names):
    table = long_table()
    if kind in ("Int64", "datetime"):
        table["patient"] = table["patient"].map(ord) - 96
        if kind == "datetime":
            table["patient"] = pd.to_datetime(table["patient"], unit="D")
            names = [pd.Timestamp(1970, 1, 1 + d) for d in (17, 16, 18)]
    sets = Sets.from_pandas(table if kind == "datetime" else table.astype({"patient": kind}), "patient")
    assert sets.names == names
    assert [type(s.name) for s in sets] == [type(name) for name in names]
    assert sets[0].name == names[0]


def test_polars_is_as_pandas():
    def like(frame):  # what a Polars frame has in common with it
        return SimpleNamespace(to_pandas=lambda: frame, columns=[*frame.columns], shape=frame.shape)

    renamed = long_table().rename(columns={"patient": "set"})
    for sets in (Sets.from_pandas(like(long_table()), "patient"), Sets.of(like(renamed))):
        assert (lists(sets), sets.features) == (EXPECTED, ["x", "y"])


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"set_column": "donor"}, "the table needs a column 'donor', it has \\['patient', 'x', .*'element'\\]"),
        ({"patient": ["q", None, "q", "r", "p"]}, {}, "column 'patient' is missing in row 1"),
        ({"x": pd.array([1, 2, None, 4, 5], dtype="Int64")}, {}, "'x', row 2: is missing, it must be a finite number"),
        ({"x": ["1", "2", "3", "4", "five"]}, {}, "column 'x', row 4: is 'five', it must be a number$"),
        ({"x": [[1]] * 5}, {}, "column 'x' must be numbers or text, it is object"),
        ({"x": [1, 2, 3, 1e39, 5]}, {}, r"column 'x', row 3: is 1e\+39, too large for 32-bit numbers"),
        ({"x": [1j] * 5}, {}, "column 'x' must be numbers or text, it is complex128"),
        ({"multiplicity": [1, -1, 1, 1, 1]}, {}, "'multiplicity', row 1: is -1, it must be a finite number >= 0$"),
        ({"multiplicity": [1, 1e39, 1, 1, 1]}, {}, r"column 'multiplicity', row 1: is 1e\+39, too large for 32-bit"),
        ({"set": [3, 5, 7, 1, 1]}, {}, "column 'set' would be a feature, but its name is nearly 'set'"),
        ({}, {"features": ["x", "multiplicity"]}, "features must not name 'multiplicity', which says what the rows"),
        ({}, {"features": ["x", "x"]}, "features must not name one twice: 'x'"),
        ({}, {"features": ["z"]}, "the table has no column 'z'"),
        ({}, {"features": []}, "the table has no feature columns beside 'patient'"),
        ({}, {"set_column": "set"}, "the table needs a column 'set'"),
    ],
)
def test_bad_long_tables(change, options, message):
    with pytest.raises(ValueError, match=message):
        Sets.from_pandas(long_table().assign(**change), **{"set_column": "patient"} | options)


def test_no_table_at_all():
    with pytest.raises(ValueError, match="the table has no rows"):
        Sets.from_pandas(long_table()[:0], "patient")
    with pytest.raises(ValueError, match="table must be a DataFrame of pandas or Polars, got list"):
        Sets.from_pandas([1, 2])
    with pytest.raises(ValueError, match="at least one set"):
        Sets.of([])


@pytest.mark.parametrize("form", [list, dict, "group-by"])
def test_a_table_a_set_is_refused(form):
    frame = long_table().drop(columns="patient")
    sets = long_table().groupby("patient") if form == "group-by" else form({0: frame, 1: frame}.items())
    with pytest.raises(ValueError, match="sets must be one table with a column 'set', not a table for each"):
        Sets.of([frame, frame] if form is list else sets)
