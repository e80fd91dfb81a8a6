"""Whatever a file is written as, its pairs of regions are the same; what is wrong with it is named."""

import sys
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp
from region_files import GOOD, IDS, NAMES, REGIONS, TEXT_AS_OBJECTS, csv, parquet, refused, written
from scipy.io.matlab import MatlabOpaque

from omniset.regions.connectivity import read_connectivity

pytestmark = TEXT_AS_OBJECTS


def connectivity(size=REGIONS):
    matrix = np.random.default_rng(2).normal(0.3, 0.2, (size, size)).round(6)
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    np.fill_diagonal(matrix, 1)
    matrix[2, 4] = matrix[4, 2] = np.nan
    return matrix


def truth(matrix=None):
    matrix = connectivity() if matrix is None else matrix.copy()
    np.fill_diagonal(matrix, np.nan)
    return matrix


def named(names=NAMES):
    return pd.DataFrame(connectivity(), index=pd.Index(names, dtype=object), columns=pd.Index(names, dtype=object))


def edges(names, columns=("i", "j", "weight")):
    matrix = connectivity()
    rows = [(names[i], names[j], matrix[i, j]) for i in range(REGIONS) for j in range(i, REGIONS)]
    return pd.DataFrame(rows, columns=list(columns))


def lines(matrix, path, separator=","):
    np.savetxt(path, matrix, delimiter=separator)
    return path


def mat(path, **arrays):
    scipy.io.savemat(path, arrays)
    return path


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def npy(path, array):
    np.save(path, array)
    return path


def cells(names):
    return np.array(names, dtype=object)


def mat73(path, names=None, key="connectivity", matrix=None, characters=(), decoded=""):
    """As MATLAB lays out a v7.3 file: a header of its own, arrays column by column, cell arrays of references."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file[key] = (connectivity() if matrix is None else matrix).T
        file[key].attrs["MATLAB_class"] = np.bytes_("double")
        file["note"] = np.array([[ord(c)] for c in "resting state"], dtype=np.uint16)
        file["note"].attrs["MATLAB_class"] = np.bytes_("char")
        file["nothing"] = np.zeros(2, dtype=np.uint64)
        file["nothing"].attrs["MATLAB_empty"] = 1
        if characters:
            file["label"] = np.array([[ord(c) for c in name] for name in characters], dtype=np.uint16).T
            file["label"].attrs["MATLAB_class"] = np.bytes_("char")
        if decoded:  # as MATLAB keeps an array of strings: numbers that stand for an object
            file[decoded] = np.arange(6, dtype=np.uint32)
            file[decoded].attrs["MATLAB_object_decode"] = 3
        if names:
            texts = []
            for number, name in enumerate(names):
                held = file.create_dataset(f"#refs#/{number}", data=np.array([[ord(c)] for c in name], dtype=np.uint16))
                held.attrs["MATLAB_class"] = np.bytes_("char")
                texts.append(held.ref)
            file.create_dataset("labels", data=np.array([texts], dtype=h5py.ref_dtype))
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")
    return path


UPPER = np.triu_indices(REGIONS, 1)
VECTOR = connectivity()[UPPER]
SQUARES = {  # a source, and the names it gives
    "csv, all names": (lambda p: csv(named(), p / "a.csv"), NAMES),
    "csv, titled corner": (lambda p: csv(named(), p / "a.csv", index_label="region"), NAMES),
    "csv, header": (lambda p: csv(named(), p / "a.csv", index=False), NAMES),
    "csv, index": (lambda p: csv(named(), p / "a.csv", header=False), NAMES),
    "csv, no names": (lambda p: csv(named(), p / "a.csv", header=False, index=False), None),
    "csv, empty diagonal": (lambda p: csv(pd.DataFrame(truth()), p / "a.csv", header=False, index=False), None),
    "savetxt": (lambda p: lines(connectivity(), p / "a.txt", " "), None),
    "R": (
        lambda p: written(p / "a.txt", csv(named(), p / "b", sep=" ", na_rep="NA", quoting=2).read_text()[3:]),
        NAMES,
    ),
    "columns in another order": (lambda p: csv(named()[NAMES[::-1]], p / "a.csv"), NAMES),
    "ids, all": (lambda p: csv(named(IDS), p / "a.csv"), IDS),
    "ids, titled corner": (lambda p: csv(named(IDS), p / "a.csv", index_label="label"), IDS),
    "ids as floats": (lambda p: csv(named([f"{i}.0" for i in IDS]), p / "a.csv"), IDS),
    "ids in rows, names in columns": (lambda p: csv(named().set_axis(range(REGIONS)), p / "a.csv"), NAMES),
    "names in rows, ids in columns": (lambda p: csv(named().set_axis(range(REGIONS), axis=1), p / "a.csv"), NAMES),
    "a count": (lambda p: csv(pd.DataFrame(connectivity()), p / "a.csv"), None),
    "a count, header": (lambda p: csv(pd.DataFrame(connectivity()), p / "a.csv", index=False), None),
    "parquet": (lambda p: parquet(named(), p / "a.parquet"), NAMES),
    "parquet, column": (lambda p: parquet(named().rename_axis("x").reset_index(), p / "a.parquet"), NAMES),
    "parquet, columns only": (lambda p: parquet(named().reset_index(drop=True), p / "a.parquet"), NAMES),
    "parquet, no names": (lambda p: parquet(pd.DataFrame(connectivity()).rename(columns=str), p / "a.parquet"), None),
    "DataFrame": (lambda p: named(), NAMES),
    "DataFrame, index only": (lambda p: named().set_axis(range(REGIONS), axis=1), NAMES),
    "DataFrame, ids": (lambda p: named([int(i) for i in IDS]), IDS),
    "DataFrame, id column": (lambda p: named(IDS).rename_axis("x").reset_index().astype({"x": int}), IDS),
    "DataFrame, no names": (lambda p: pd.DataFrame(connectivity()), None),
    "npy": (lambda p: npy(p / "a.npy", connectivity()), None),
    "npz": (lambda p: npz(p / "a.npz", whatever=connectivity()), None),
    "npz, several": (lambda p: npz(p / "a.npz", other=np.eye(7), Connectivity=connectivity()), None),
    "npz, only square": (lambda p: npz(p / "a.npz", xyz=np.ones((REGIONS, 3)), m=connectivity(), n=np.ones(9)), None),
    "npz, names": (lambda p: npz(p / "a.npz", m=connectivity(), names=np.array(NAMES)), NAMES),
    "npz, bytes": (lambda p: npz(p / "a.npz", m=connectivity(), labels=np.array(NAMES, dtype="S")), NAMES),
    "npz, ids": (lambda p: npz(p / "a.npz", m=connectivity(), ids=np.array(IDS, dtype=int)), IDS),
    "npz, other numbers": (lambda p: npz(p / "a.npz", m=connectivity(), voxels=np.array(IDS, dtype=int)), None),
    "mat": (lambda p: mat(p / "a.mat", connectivity=connectivity(), other=np.eye(5)), None),
    "mat, only square": (lambda p: mat(p / "a.mat", sc=connectivity(), n=13.0, xyz=np.ones((REGIONS, 3))), None),
    "mat, names": (lambda p: mat(p / "a.mat", sc=connectivity(), labels=cells(NAMES), who="me"), NAMES),
    "mat, characters": (lambda p: mat(p / "a.mat", sc=connectivity(), region=np.array(NAMES)), NAMES),
    "mat, struct": (lambda p: mat(p / "a.mat", sc=connectivity(), atlas={"n": 13.0, "label": cells(NAMES)}), NAMES),
    "mat, ids": (lambda p: mat(p / "a.mat", sc=connectivity(), roi=np.array(IDS, dtype=float)), IDS),
    "mat, sparse": (lambda p: mat(p / "a.mat", sc=sp.csc_matrix(connectivity())), None),
    "mat 7.3": (lambda p: mat73(p / "a.mat"), None),
    "mat 7.3, names": (lambda p: mat73(p / "a.mat", NAMES, "sc"), NAMES),
    "mat 7.3, characters": (lambda p: mat73(p / "a.mat", key="sc", characters=NAMES), NAMES),
    "array": (lambda p: connectivity(), None),
    "sparse": (lambda p: sp.csr_array(connectivity()), None),
    "triangle": (lambda p: VECTOR, None),
    "triangle, line": (lambda p: lines(VECTOR[None], p / "a.csv"), None),
    "triangle, column": (lambda p: lines(VECTOR, p / "a.txt"), None),
    "edges": (lambda p: csv(edges(NAMES), p / "a.csv", index=False), NAMES),
    "edges, counted": (lambda p: csv(edges(NAMES), p / "a.csv"), NAMES),
    "edges, no header": (lambda p: csv(edges(NAMES), p / "a.tsv", index=False, header=False, sep="\t"), NAMES),
    "edges, ids without header": (lambda p: csv(edges(IDS), p / "a.csv", index=False, header=False), IDS),
    "edges, positions": (lambda p: csv(edges(list(range(REGIONS))), p / "a.csv", index=False), None),
    "edges, titled": (lambda p: csv(edges(NAMES, ["Region.1", "Region.2", "any"]), p / "a.csv", index=False), NAMES),
    "edges, more columns": (
        lambda p: csv(edges(NAMES, ["source", "target", "r"]).assign(p=0.5).iloc[:, ::-1], p / "a.csv", index=False),
        NAMES,
    ),
    "edges, parquet": (lambda p: parquet(edges(NAMES), p / "a.parquet"), NAMES),
    "edges, DataFrame": (lambda p: edges([int(i) for i in IDS]), IDS),
    "edges, both ways": (lambda p: pd.concat([edges(NAMES), edges(NAMES, ["j", "i", "weight"])]), NAMES),
}


@pytest.mark.parametrize("format", SQUARES)
def test_every_format_gives_the_same_connectivity(format, tmp_path):
    make, names = SQUARES[format]
    source = make(tmp_path)
    found = read_connectivity(str(source) if isinstance(source, Path) else source, triangle="upper")
    assert found.names == names
    np.testing.assert_array_equal(found.matrix, truth())
    assert found.matrix.dtype == np.float64
    of = source if isinstance(source, Path) else "connectivity"
    assert found.notes[-1] == f"{of}: 1 pair among the other regions are not known"


def test_edges_in_any_order_and_either_way_round():
    rng, frame = np.random.default_rng(5), edges(NAMES)
    turned = rng.random(len(frame)) < 0.5
    frame.loc[turned, ["i", "j"]] = frame.loc[turned, ["j", "i"]].to_numpy()
    found = read_connectivity(frame.iloc[rng.permutation(len(frame))])
    at = [found.names.index(name) for name in NAMES]
    np.testing.assert_array_equal(found.matrix[np.ix_(at, at)], truth())


def test_the_array_given_is_not_touched():
    matrix = connectivity()
    matrix[0, 1] = matrix[1, 0] = -0.5
    for source in (matrix, matrix[None], pd.DataFrame(matrix)):
        before = matrix.copy()
        read_connectivity(source, fisher_z=True, zero_negative=True)
        np.testing.assert_array_equal(matrix, before)


# A region between others has no edge, the last one none, either way of counting.
@pytest.mark.parametrize(("begin", "last"), [(0, REGIONS - 1), (0, REGIONS - 2), (1, REGIONS - 1)])
def test_edges_of_positions(begin, last):
    rows = [(i + begin, j + begin, i + j / 7) for i in range(last + 1) for j in range(i) if 3 not in (i, j)]
    found = read_connectivity(pd.DataFrame(rows, columns=["i", "j", "weight"]), regions=NAMES)
    assert found.names is None
    assert found.matrix.shape == (REGIONS, REGIONS)
    for i, j, weight in rows:
        assert found.matrix[i - begin, j - begin] == found.matrix[j - begin, i - begin] == weight
    assert np.isfinite(found.matrix).sum() == 2 * len(rows)
    assert f"numbers of regions count from {begin}, they are taken for positions, not for names" in found.notes[0]


def test_edges_that_may_count_from_0_or_1_are_between_names():
    rows = [(i, j, i + j / 7) for i in range(1, REGIONS - 2) for j in range(1, i)]
    frame = pd.DataFrame(rows, columns=["i", "j", "weight"])
    assert set(read_connectivity(frame, regions=NAMES).names) == {str(i) for i in range(1, REGIONS - 2)}
    assert set(read_connectivity(frame, regions=IDS).names) == {str(i) for i in range(1, REGIONS - 2)}
    from_0 = frame - [1, 1, 0]
    assert read_connectivity(from_0, regions=[str(i) for i in range(REGIONS)]).names is not None


def test_numbers_of_an_atlas_are_names_too():
    ids = [str(1000 + 3 * i) for i in range(REGIONS)]
    peeled = np.full((REGIONS + 1, REGIONS + 1), np.nan)
    peeled[1:, 1:], peeled[0, 1:], peeled[1:, 0] = connectivity(), [int(i) for i in ids], [int(i) for i in ids]
    for source in (peeled, peeled[:, 1:], peeled[1:]):
        found = read_connectivity(source)
        assert found.names == ids
        np.testing.assert_array_equal(found.matrix, truth())


def test_a_parcellated_connectome(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    voxels = [np.array([[i, 0, 0]]) for i in range(REGIONS)]
    axis = nibabel.cifti2.ParcelsAxis(NAMES, voxels, [{}] * REGIONS, np.eye(4), (REGIONS, 1, 1), {})
    values = np.nan_to_num(connectivity()).astype(np.float32)
    nibabel.Cifti2Image(values, (axis, axis)).to_filename(tmp_path / "a.pconn.nii")
    found = read_connectivity(tmp_path / "a.pconn.nii")
    assert found.names == NAMES
    np.testing.assert_array_equal(found.matrix, truth(values.astype(np.float64)))
    (tmp_path / "b.pconn.nii").write_bytes((tmp_path / "a.pconn.nii").read_bytes()[:700])
    refused(read_connectivity, tmp_path / "b.pconn.nii", "b.pconn.nii: is no .pconn.nii file, or damaged")


# Subjects, transformations


def subjects(number=5):
    rng = np.random.default_rng(4)
    stack = rng.uniform(-0.9, 0.9, (number, REGIONS, REGIONS))
    stack = np.triu(stack, 1) + np.triu(stack, 1).transpose(0, 2, 1)
    stack[1, 2, 3] = stack[1, 3, 2] = np.nan
    stack[:, 4, 5] = stack[:, 5, 4] = np.nan
    stack[:, np.arange(REGIONS), np.arange(REGIONS)] = 1
    return stack


def mean_of_subjects(stack):
    expected = np.full(stack.shape[1:], np.nan)
    for i in range(REGIONS):
        for j in range(REGIONS):
            there = [value for value in stack[:, i, j].tolist() if value == value]
            if i != j and there:
                expected[i, j] = sum(there) / len(there)
    return expected


STACKS = {
    "array": lambda s, p: s,
    "subjects last": lambda s, p: s.transpose(1, 2, 0),
    "npz": lambda s, p: npz(p / "a.npz", subjects=s, age=np.ones(len(s))),
    "triangles": lambda s, p: s[:, *UPPER],
    "triangles, titled csv": lambda s, p: csv(
        pd.DataFrame(s[:, *UPPER]).rename("sub-{}".format).add_prefix("edge-"), p / "a.csv"
    ),
}


@pytest.mark.parametrize("number", [5, REGIONS])
@pytest.mark.parametrize("format", STACKS)
def test_subjects_are_averaged(format, number, tmp_path):
    source = STACKS[format](subjects(number), tmp_path)
    found = read_connectivity(source, triangle="upper")
    np.testing.assert_allclose(found.matrix, mean_of_subjects(subjects(number)), rtol=0, atol=1e-14)
    assert found.names is None
    of = source if isinstance(source, Path) else "connectivity"
    assert f"{of} is the mean over {number} subjects" in found.notes
    if "triangles" in format:
        assert found.notes[0] == f"{of}: 78 values are the upper triangle of 13 regions, row by row"


def test_fisher_z_is_taken_of_each_subject():
    stack = subjects()
    ones = stack.copy()
    ones[:, np.arange(REGIONS), np.arange(REGIONS)] = 0.5
    expected = mean_of_subjects(0.5 * np.log((1 + ones) / (1 - ones)))
    found = read_connectivity(stack, fisher_z=True)
    np.testing.assert_allclose(found.matrix, expected, rtol=1e-12)
    assert "connectivity: values are Fisher's z of what the source has" in found.notes


def test_negative_values_to_0():
    matrix = connectivity()
    matrix[0, 1] = matrix[1, 0] = -0.25
    negative = np.triu(matrix < 0, 1).sum()
    found = read_connectivity(matrix, zero_negative=True)
    np.testing.assert_array_equal(found.matrix, truth(np.where(matrix < 0, 0, matrix)))
    assert f"connectivity: {negative} pairs of negative connectivity are set to 0" in found.notes
    both = read_connectivity(matrix, fisher_z=True, zero_negative=True).matrix
    np.testing.assert_allclose(both, np.arctanh(truth(np.where(matrix < 0, 0, matrix))), rtol=1e-12)


@pytest.mark.parametrize("value", [1.0, -1.0, 1.5])
def test_correlations_of_1_have_no_fisher_z(value):
    matrix = connectivity()
    matrix[2, 7] = matrix[7, 2] = value
    message = f"pair 'L_areac', 'R_areaa' is {value:g}, with fisher_z it must be"
    refused(partial(read_connectivity, fisher_z=True), pd.DataFrame(matrix, NAMES, NAMES), message, "connectivity")
    assert read_connectivity(matrix).matrix[2, 7] == value


@pytest.mark.parametrize("diagonal", [0.0, 1.0, np.nan, 99.0])
def test_the_diagonal_is_not_read(diagonal):
    matrix = connectivity()
    np.fill_diagonal(matrix, diagonal)
    np.testing.assert_array_equal(read_connectivity(matrix, fisher_z=True).matrix, np.arctanh(truth()))


# Symmetry, unknown pairs


def test_what_is_not_symmetric_is_named(tmp_path):
    matrix = connectivity()
    matrix[6, 8] += 2e-6
    matrix[9, 7] = 5
    path = csv(pd.DataFrame(matrix, NAMES, NAMES), tmp_path / "a.csv")
    refused(read_connectivity, path, "is not symmetric at 2 pair(s): pair 'L_areag', 'R_areab' is")
    np.testing.assert_array_equal(read_connectivity(path, directed=True).matrix, truth(matrix))
    stack, message = np.stack([connectivity(), matrix]), "is not symmetric at 2 pair(s): the pair of regions 7 and 9 is"
    refused(read_connectivity, stack, message, "connectivity: subject 2")


def test_symmetry_has_a_tolerance_by_pair():
    matrix = connectivity()
    matrix[6, 8] += 1e-7
    matrix[1, 0], matrix[0, 1] = 1e6, 1e6 + 0.5  # single precision
    expected = truth(matrix)
    expected[6, 8] = expected[8, 6] = (matrix[6, 8] + matrix[8, 6]) / 2
    expected[0, 1] = expected[1, 0] = 1e6 + 0.25
    np.testing.assert_array_equal(read_connectivity(matrix).matrix, expected)
    matrix[6, 8] += 1e-5  # beside large values all the same
    refused(read_connectivity, matrix, "not symmetric at 1 pair", "connectivity")


def test_a_pair_given_one_way_is_taken_for_both_unless_directed():
    matrix = connectivity()
    matrix[np.tril_indices(REGIONS)] = np.nan
    found = read_connectivity(matrix)
    np.testing.assert_array_equal(found.matrix, truth())
    assert found.notes[0] == "connectivity: 77 pair(s) are given one way only, which is taken for both"
    directed = read_connectivity(matrix, directed=True)
    np.testing.assert_array_equal(directed.matrix, truth(matrix))
    assert directed.notes == ["connectivity: 79 pairs among the other regions are not known"]


def test_a_direction_is_that_from_row_to_column(tmp_path):
    matrix = np.random.default_rng(6).random((REGIONS, REGIONS))
    frame = pd.DataFrame(matrix, NAMES, NAMES)
    named_files = csv(frame, tmp_path / "a.csv"), parquet(frame, tmp_path / "a.parquet")
    for source in (mat(tmp_path / "a.mat", sc=matrix), mat73(tmp_path / "b.mat", matrix=matrix), *named_files):
        np.testing.assert_array_equal(read_connectivity(source, directed=True).matrix, truth(matrix))


def test_edges_with_a_direction():
    rows = [("a", "b", 1.0), ("b", "a", 2.0), ("b", "c", 3.0), ("c", "c", 9.0)]
    frame = pd.DataFrame(rows, columns=["from", "to", "weight"])
    found = read_connectivity(frame, directed=True)
    nan = np.nan
    np.testing.assert_array_equal(found.matrix, [[nan, 1, nan], [2, nan, 3], [nan, nan, nan]])
    refused(read_connectivity, frame, "the pair 'b', 'a' is there twice, 1 and 2", "connectivity")


def with_one(value):
    matrix = connectivity()
    matrix[[1, 2], [2, 1]] = value
    return matrix


ROW = "a,b,weight\n"
BAD_SQUARES = {
    "constant": (np.ones((7, 7)), "is 1 for every pair of regions: there is nothing to predict"),
    "nothing known": (np.full((7, 7), np.nan), "has no known pair of regions"),
    "infinite": (with_one(np.inf), "the pair of regions 2 and 3 is inf, it must be finite"),
    "too large": (with_one(-1e39), "the pair of regions 2 and 3 is -1e+39, it must be finite, at most"),
    "not square": (np.ones((7, 5)), "must be a square, or have the N(N-1)/2 values of a triangle, N(N+1)/2 with"),
    "no triangle": (np.ones(7), "must be a square, or have the N(N-1)/2 values of a triangle, N(N+1)/2 with"),
    "one region": (np.ones((1, 1)), "has 1 regions, a pair needs 2"),
    "a number": (np.array(1.0), "must be regions x regions, it is "),
    "no subject": (np.ones((0, 7, 7)), "has no known pair"),
    "four axes": (np.ones((2, 3, 7, 7)), "must be regions x regions, it is 2 x 3 x 7 x 7"),
    "no stack": (np.ones((2, 3, 4)), "a stack must be subjects x regions x regions, it is 2 x 3 x 4"),
    "complex": (np.ones((7, 7)) * 1j, "must be of numbers, it is of complex128"),
    "ragged": ([[1, 2], [3]], "is no array of numbers"),
    "other columns": (named().rename(columns={"L_areaa": "x"}), "only in rows: 'L_areaa'; only in columns: 'x'"),
    "a name twice": (named([NAMES[0], *NAMES[:-1]]), "region 'L_areaa' is there twice"),
    "no name": (named(["", *NAMES[1:]]), "region 1 has no name"),
    "text in a frame": (named().astype(object).replace(1.0, "x"), "'L_areaa', 'L_areaa' is 'x', it must be a number"),
    "text": (",a,b\na,1,x\nb,2,1\n", "line 2: pair 'a', 'b' is 'x', it must be a number"),
    "cut off": (",a,b\na,1,2\nb,2\n", "line 3: has 2 fields, the header has 3: is the file cut off?"),
    "edges, text": (ROW + "a,b,1\na,c,2\na,d,x\na,e,1\n", "line 4: the weight of 'a', 'd' is 'x', it must be a number"),
    "edges, no name": (ROW + "a,b,1\n,c,2\na,d,3\na,e,1\n", "line 3: names one region only, an edge has two"),
    "edges, twice": (ROW + "a,b,1\na,c,2\nb,a,3\na,e,1\n", "the pair 'b', 'a' is there twice, 1 and 3"),
    "edges, numbers": ("0.5,0.25,1\n" * 7, "must be between names or whole numbers, they are"),
    "edges, none": ("i,j,weight\n", "has no edges"),
    "edges, infinite": (ROW + "a,b,1\na,c,2\nb,d,inf\na,e,1\n", "pair 'b', 'd' is inf, it must be finite"),
}


@pytest.mark.parametrize("kind", BAD_SQUARES)
def test_what_is_wrong_with_a_connectivity(kind, tmp_path):
    source, message = BAD_SQUARES[kind]
    if isinstance(source, str):
        refused(read_connectivity, written(tmp_path / "a.csv", source), message)
    else:
        refused(read_connectivity, source, message, "connectivity")


def test_too_many_regions_of_edges(monkeypatch):
    monkeypatch.setattr("omniset.regions.connectivity.MOST", REGIONS - 1)
    refused(read_connectivity, edges(NAMES), "edges are between 13 regions, at most 12 can be read", "connectivity")


def test_files_of_arrays_that_do_not_say_which(tmp_path):
    two = npz(tmp_path / "a.npz", fc=np.eye(3), sc=np.eye(5), n=np.ones(2))
    message = "must have one square array, or one called 'connectivity'; it has fc (3 x 3), sc (5 x 5), n (2)"
    refused(read_connectivity, two, message)
    refused(read_connectivity, npz(tmp_path / "b.npz"), "or one called 'connectivity'; it has none")
    for name, said in (("a.npy", "is no array of NumPy"), ("a.npz", "is no .npz file"), ("a.mat", "is no .mat file")):
        refused(read_connectivity, written(tmp_path / name, GOOD), f"{name}: {said}")
    objects = npy(tmp_path / "c.npy", cells(NAMES))
    refused(read_connectivity, objects, "c.npy: is no array of NumPy, or damaged (Object arrays cannot be loaded")


# Names in arrays beside the matrix


def opaque(name):
    """What SciPy makes of an array of MATLAB's strings."""
    found = np.array(
        [[(name, b"MCOS", b"string", np.zeros(6))]], dtype=[(field, object) for field in ("s0", "s1", "s2", "arr")]
    )
    return found.view(MatlabOpaque)


UNREAD = {
    "objects": lambda p: npz(p / "a.npz", m=connectivity(), names=cells(NAMES)),
    "objects and networks": lambda p: npz(p / "a.npz", m=connectivity(), label=["Vis"] * REGIONS, names=cells(NAMES)),
    "a dict": lambda p: npz(p / "a.npz", m=connectivity(), names=np.array({"names": NAMES})),
    "records": lambda p: npz(p / "a.npz", m=connectivity(), names=np.array([(n, 1) for n in NAMES], "U9,i4")),
    "two columns": lambda p: npz(p / "a.npz", m=connectivity(), names=np.array([(n, "Vis") for n in NAMES])),
    "cells of numbers": lambda p: mat(p / "a.mat", m=connectivity(), names=cells([float(i) for i in IDS])),
    "cells, one empty": lambda p: mat(p / "a.mat", m=connectivity(), names=cells([*NAMES[:-1], np.zeros(0)])),
    "structs": lambda p: mat(p / "a.mat", m=connectivity(), names=np.array([(n,) for n in NAMES], [("n", object)])),
    "strings of v7.3": lambda p: mat73(p / "a.mat", key="m", decoded="names"),
}


@pytest.mark.parametrize("kind", UNREAD)
def test_names_that_cannot_be_read_are_refused(kind, tmp_path):
    """Another file's order would be taken for theirs."""
    path = UNREAD[kind](tmp_path)
    remedy = "cellstr(names)" if path.suffix == ".mat" else "np.array(names, dtype=str)"
    message = "may hold the names of the 13 regions, and cannot be read as text: save the names as text under 'names'"
    refused(read_connectivity, path, f"{message}, such as {remedy}; or leave 'names' out", f"{path}: the array 'names'")


def test_what_cannot_be_read_is_said(tmp_path):
    path = npz(tmp_path / "b.npz", m=connectivity(), about=np.array({"n": 3}))
    found = read_connectivity(path)
    assert found.names is None
    assert found.notes[0] == f"{path}: 'about' cannot be read"


def test_strings_of_matlab_are_refused_where_they_are_called_names(monkeypatch, tmp_path):
    path = mat(tmp_path / "a.mat", m=connectivity())
    read = scipy.io.loadmat
    monkeypatch.setattr(sys, "executable", None)  # no other process: SciPy reads here
    for held, key in ((b"names", "None"), (b"", "labels")):
        monkeypatch.setattr(scipy.io, "loadmat", lambda path, held=held, key=key: {**read(path), key: opaque(held)})
        with pytest.raises(ValueError, match="the array '(names|labels)' may hold the names of the 13 regions"):
            read_connectivity(path)
    monkeypatch.setattr(scipy.io, "loadmat", lambda path: {**read(path), "None": opaque(b"atlas")})
    assert read_connectivity(path).notes[0] == f"{path}: 'atlas' cannot be read"


def test_of_several_arrays_of_names_that_of_the_other_files_is_taken(tmp_path):
    long = [f"area {name}" for name in NAMES]
    path = npz(tmp_path / "a.npz", m=connectivity(), who=np.array(NAMES), long=np.array(long))
    by_who, by_long = (NAMES, "who", "long"), (long, "long", "who")
    for regions, (names, key, other) in ((NAMES, by_who), (long, by_long), (None, by_who)):
        found = read_connectivity(path, regions=regions)
        assert found.names == names
        assert found.notes[0] == f"{path}: names of regions are the texts in {key!r}, not those in {other!r}"
    path = npz(tmp_path / "b.npz", m=connectivity(), who=np.array(NAMES))
    assert read_connectivity(path).notes[0] == f"{path}: names of regions are the texts in 'who'"
    path = npz(tmp_path / "c.npz", m=connectivity(), ids=np.array(IDS, dtype=int))
    found = read_connectivity(path, regions=NAMES)
    assert found.names is None
    assert found.notes[0] == f"{path}: numbers in 'ids' are no names of other files and are passed over"


def test_texts_called_names_that_are_none(tmp_path):
    path = npz(tmp_path / "a.npz", m=connectivity(), label=["Vis"] * REGIONS, names=["a", "b"])
    assert read_connectivity(path).notes[:2] == [
        f"{path}: 'names' has 2 texts, 2 different, for 13 regions: they are taken for no names",
        f"{path}: 'label' has 13 texts, 1 different, for 13 regions: they are taken for no names",
    ]
    for names, said in (([n[2:] for n in NAMES], "'areaa' is there twice"), (["", *NAMES[1:]], "1 has no name")):
        path = npz(tmp_path / "b.npz", m=connectivity(), names=np.array(names))
        refused(read_connectivity, path, f"the array 'names': region {said}")
