"""Files of regions are joined by name, whatever their order; what does not join is said."""

import re

import numpy as np
import pandas as pd
import pytest
from region_files import csv

from omniset.regions.reading import read_regions

REGIONS, GENES = 23, 17
NAMES = [f"7Networks_{'LH' if i < 12 else 'RH'}_{['Vis', 'Cont', 'Limbic'][i % 3]}_{i}" for i in range(REGIONS)]
SYMBOLS = [f"SLC{i}A{i + 1}" for i in range(GENES)]
RNG = np.random.default_rng(11)
VALUES = RNG.random((REGIONS, GENES)).round(5)
PLACES = RNG.uniform(-70, 70, (REGIONS, 3)).round(3)
PLACES[:, 0] = abs(PLACES[:, 0]) * np.where(["LH" in name for name in NAMES], -1, 1)
SQUARE = np.triu(RNG.normal(0.3, 0.2, (REGIONS, REGIONS)).round(5), 1)
SQUARE = SQUARE + SQUARE.T


def expression(names=NAMES):
    return pd.DataFrame(VALUES.copy(), list(names), SYMBOLS)


def connectivity(names=NAMES):
    return pd.DataFrame(SQUARE.copy(), list(names), list(names))


def coordinates(names=NAMES):
    return pd.DataFrame(PLACES.copy(), pd.Index(list(names), name="region"), ["x", "y", "z"])


def check(regions, rows=range(REGIONS), columns=range(GENES)):
    """These rows and columns of the data, each with its own neighbours."""
    rows, columns = list(rows), list(columns)
    assert regions.names == [NAMES[i] for i in rows]
    assert regions.genes == [SYMBOLS[i] for i in columns]
    assert regions.expression.dtype == np.float32
    np.testing.assert_array_equal(regions.expression, VALUES[np.ix_(rows, columns)].astype(np.float32))
    if regions.coordinates is not None:
        np.testing.assert_array_equal(regions.coordinates, PLACES[rows])
    if regions.connectivity is not None:
        expected = SQUARE[np.ix_(rows, rows)]
        np.fill_diagonal(expected, np.nan)
        np.testing.assert_array_equal(regions.connectivity, expected)
    assert regions.hemisphere == ["L" if i < 12 else "R" for i in rows]
    assert regions.network == [["Vis", "Cont", "Limbic"][i % 3] for i in rows]


def shuffled(seed):
    return np.random.default_rng(seed).permutation(REGIONS)


@pytest.mark.parametrize("files", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_files_are_joined_in_the_order_of_the_expression(files, turned, tmp_path):
    one, other, order = shuffled(1), shuffled(2), shuffled(4)
    e, c, p = expression().iloc[order], connectivity().iloc[one, other], coordinates().iloc[shuffled(3)]
    e = e.T if turned else e
    if files:
        e, c, p = csv(e, tmp_path / "e.csv"), csv(c, tmp_path / "c.tsv.gz", sep="\t"), csv(p, tmp_path / "p.csv")
        e, c, p = str(e), str(c), str(p)
    found = read_regions(e, c, p)
    check(found, order)
    of = e if files else "expression"
    assert found.notes == ([f"{of} has genes in its rows and was turned round"] if turned else [])


def test_expression_alone_and_with_one_other():
    alone = read_regions(expression())
    check(alone)
    assert (alone.coordinates, alone.connectivity) == (None, None)
    check(read_regions(expression(), connectivity()))
    placed = read_regions(expression(), coordinates=coordinates())
    check(placed)
    assert placed.connectivity is None
    assert not placed.directed


def test_names_that_tell_nothing():
    found = read_regions(expression([f"area {i}" for i in range(REGIONS)]))
    assert (found.hemisphere, found.network) == (None, None)


def test_options_reach_the_connectivity():
    square = SQUARE.copy()
    square[3, 5] = -0.75
    with pytest.raises(ValueError, match="^connectivity is not symmetric at 1 pair.*: pair '7Networks_LH_Vis_3', "):
        read_regions(expression(), pd.DataFrame(square, NAMES, NAMES))
    found = read_regions(expression(), square, directed=True, fisher_z=True, zero_negative=True)
    assert found.directed
    expected = np.arctanh(np.maximum(square, 0))
    np.fill_diagonal(expected, np.nan)
    np.testing.assert_allclose(found.connectivity, expected, rtol=1e-12)
    assert len(found.pairs()) == REGIONS * (REGIONS - 1)


# Matrices without names


def test_a_matrix_without_names_is_taken_in_the_order_of_the_expression(tmp_path):
    order = shuffled(5)
    np.save(tmp_path / "c.npy", SQUARE[np.ix_(order, order)])
    e = csv(expression().iloc[order], tmp_path / "e.csv")
    found = read_regions(e, tmp_path / "c.npy", coordinates())
    check(found, order)
    assert found.notes[0].startswith(
        f"{tmp_path / 'c.npy'} has no names: its 23 regions are taken in the order of {e} (r "
    )
    # or else in that of the coordinates
    order = shuffled(6)
    rows = [7, 2, *range(11, REGIONS)]
    found = read_regions(expression().iloc[rows], SQUARE[np.ix_(order, order)], coordinates().iloc[order])
    check(found, rows)
    assert found.notes[0] == "connectivity has no names: its 23 regions are taken in the order of coordinates"
    # or else it is refused
    message = "^connectivity has 19 regions without names, .*; expression has 17 and coordinates has 23$"
    with pytest.raises(ValueError, match=message):
        read_regions(expression()[:17], SQUARE[:19, :19], coordinates())


def test_a_count_beside_the_matrix_is_no_name(tmp_path):
    """Rows are counted from 0 by pandas, regions from 1 by the atlas: by these names all would be one off."""
    ids = [str(i + 1) for i in range(REGIONS)]
    counted = csv(pd.DataFrame(SQUARE), tmp_path / "c.csv")
    found = read_regions(expression(ids), counted)
    np.testing.assert_array_equal(found.connectivity[0, 1:], SQUARE[0, 1:])
    assert [note.removeprefix(str(counted)) for note in found.notes] == [
        ": 0, 1, ... beside the matrix are taken for a count, not for names",
        " has no names: its 23 regions are taken in the order of expression",
    ]
    by_name = read_regions(expression([str(i) for i in range(REGIONS)]), counted)
    np.testing.assert_array_equal(by_name.connectivity, found.connectivity)
    assert by_name.notes == []


def test_an_atlas_by_ids():
    """Expression by ids, their names and places in a table of the atlas, a matrix without any."""
    ids = [str(i + 1) for i in range(REGIONS)]
    atlas = coordinates().reset_index().rename(columns={"region": "label"}).assign(id=range(1, REGIONS + 1))
    found = read_regions(expression(ids).rename_axis("label"), SQUARE, atlas.iloc[shuffled(8)])
    assert found.names == ids
    np.testing.assert_array_equal(found.coordinates, PLACES)
    np.testing.assert_array_equal(found.connectivity[0, 1:], SQUARE[0, 1:])


# What does not join


def test_regions_that_do_not_join_are_left_out_and_named(tmp_path):
    e = csv(expression()[:21], tmp_path / "e.csv")
    c = csv(connectivity().iloc[1:, 1:], tmp_path / "c.csv")
    p = csv(coordinates().drop(index=NAMES[5:12]), tmp_path / "p.csv")
    found = read_regions(e, c, p)
    check(found, [1, 2, 3, 4, *range(12, 21)])
    listed = ", ".join(repr(NAMES[i]) for i in (0, 5, 6, 7, 8))
    assert found.notes == [
        f"{e}: 8 of 21 region(s) are not in every file and left out: {listed} and 3 more",
        f"{p}: 3 of 16 region(s) are not in every file and left out: {NAMES[0]!r}, {NAMES[21]!r}, {NAMES[22]!r}",
        f"{c}: 9 of 22 region(s) are not in every file and left out: "
        f"{', '.join(repr(NAMES[i]) for i in (5, 6, 7, 8, 9))} and 4 more",
    ]


def test_fewer_than_10_are_refused_with_names_of_each_file(tmp_path):
    for joining in (10, 9):
        names = [*NAMES[:joining], *(f"x{i}" for i in range(REGIONS - joining))]
        c = csv(connectivity(names[::-1]), tmp_path / "c.csv")
        if joining == 10:
            assert len(read_regions(expression(), c)) == 10
    message = "9 regions have the same name in all files, at least 10 are needed: expression has 23 such as '7Net"
    with pytest.raises(ValueError, match=f"^{message}.*; {re.escape(str(c))} has 23 such as 'x13', 'x12', 'x11'$"):
        read_regions(expression(), c)


def test_two_regions_are_enough_to_be_predicted():
    check(read_regions(expression()[3:5], coordinates=coordinates()[4:2:-1]), range(3, 5))
    with pytest.raises(ValueError, match="^1 regions have the same name in all files, at least 2 are needed"):
        read_regions(expression()[3:5], coordinates=coordinates()[4:])


def test_whole_numbers_written_differently_are_the_same_if_nothing_else_is():
    ids = [str(i) for i in range(3, REGIONS + 3)]
    padded, dotted = [f"{i:03d}" for i in range(3, REGIONS + 3)], [f"{i}." for i in range(3, REGIONS + 3)]
    order = shuffled(9)
    found = read_regions(expression(ids), connectivity(padded).iloc[order, order], coordinates(dotted).iloc[order])
    assert found.names == ids
    np.testing.assert_array_equal(found.coordinates, PLACES)
    np.testing.assert_array_equal(found.connectivity[0, 1:], SQUARE[0, 1:])
    said = f"connectivity: 23 of 23 regions are written otherwise in expression, such as {padded[order[0]]!r} for "
    assert found.notes[-1].startswith(said)


@pytest.mark.parametrize("begin", [0, 1])
def test_names_that_count_from_0_here_and_from_1_there_are_refused(begin):
    """All would join with their neighbour, or all but one; of a file that has some of them alone too."""
    counted = [str(i + begin) for i in range(REGIONS)]
    every = [str(i + 1 - begin) for i in range(REGIONS)]
    some = [name for name in every if name not in ("3", "22")] if begin == 0 else [*every[:9], every[12]]
    for names, first in ((every, 1 - begin), (some, begin)):
        given = expression().iloc[: len(names)].set_axis(names)
        with pytest.raises(ValueError, match=f"count from {first} in the first and from {1 - first} in the second"):
            read_regions(given, coordinates=coordinates(counted))
    read_regions(given.set_axis(counted[: len(names)]), coordinates=coordinates(counted))  # some of them as they are


# What is not known


def test_regions_without_expression(tmp_path):
    e = expression()
    e.iloc[[4, 9]] = np.nan
    e.iloc[2, 3] = np.nan
    rest = [i for i in range(REGIONS) if i not in (4, 9)]
    found = read_regions(csv(e, tmp_path / "{}.csv"), connectivity(), coordinates())
    assert np.isnan(found.expression).sum() == 1
    found.expression[2, 3] = VALUES[2, 3]
    check(found, rest)
    (said,) = found.notes
    assert said.startswith(f"{tmp_path}/{{}}.csv: 2 region(s) have no expression")
    assert f"left out: {NAMES[4]!r}, {NAMES[9]!r}" in said


def test_regions_without_connectivity():
    """One in the file; one whose only known pair is with a region that has no expression."""
    e, c = expression(), connectivity()
    c.iloc[3] = c.iloc[:, 3] = np.nan
    kept = c.iloc[7, 11]
    c.iloc[7] = c.iloc[:, 7] = np.nan
    c.iloc[7, 11] = c.iloc[11, 7] = kept
    e.iloc[11] = np.nan
    found = read_regions(e, c, coordinates())
    check(found, [i for i in range(REGIONS) if i not in (3, 7, 11)])
    assert "connectivity: 1 of 23 regions have no known pair" in found.notes
    listed = f"{NAMES[3]!r}, {NAMES[7]!r}"
    assert found.notes[-1] == f"connectivity: 2 region(s) have no known pair and are left out: {listed}"


def test_too_few_regions_are_left():
    e = expression()
    e.iloc[9:] = np.nan
    message = "^expression has 9 regions of which all is known, at least 10 are needed: .*14 region.s. have no expr"
    with pytest.raises(ValueError, match=message):
        read_regions(e, connectivity())


def test_genes_without_a_value_in_any_region_that_is_left():
    e = expression()
    e.iloc[:, 5] = np.nan
    e.iloc[:19, 8] = np.nan
    found = read_regions(e, connectivity().iloc[:17, :17])
    check(found, range(17), [i for i in range(GENES) if i not in (5, 8)])
    assert found.notes[-1] == ("expression: 2 gene(s) have no value in any region and are left out: 'SLC5A6', 'SLC8A9'")


def test_fewer_than_10_genes_are_refused():
    check(read_regions(expression().iloc[:, :10]), columns=range(10))
    with pytest.raises(ValueError, match="^expression has 9 genes with values, at least 10 are needed"):
        read_regions(expression().iloc[:, :9])


def test_a_constant_target(tmp_path):
    """In the whole file, or among the regions that join."""
    square = np.ones((REGIONS, REGIONS))
    for size in (REGIONS, 17):
        path = csv(pd.DataFrame(square, NAMES, NAMES), tmp_path / "c.csv")
        with pytest.raises(ValueError, match=f"^{path} is 1 for every pair of regions: there is nothing to predict"):
            read_regions(expression()[:size], path)
        square[18, 20] = square[20, 18] = 3


@pytest.mark.slow
@pytest.mark.parametrize(("atlas", "regions", "genes"), [("dk82", 80, 1645), ("schaefer_100", 114, 810)])
def test_real_regions(atlas, regions, genes, data_folder):
    folder = data_folder / "regions" / atlas
    connectivity, places = folder / "structural_connectivity.csv.gz", folder / "regions.csv"
    found = read_regions(folder / "expression.csv.gz", connectivity, places)
    e = pd.read_csv(folder / "expression.csv.gz", index_col=0)
    sampled = e.dropna(how="all")
    assert sampled.shape == (regions, genes)
    assert found.names == sampled.index.tolist()
    assert found.genes == sampled.columns.tolist()
    assert "% of the pairs are exactly 0" in found.notes[0]
    assert len(found.notes) == 1 + (atlas == "dk82")  # which has two regions without a sample
    np.testing.assert_array_equal(found.expression, sampled.to_numpy(dtype=np.float32))
    c = pd.read_csv(connectivity, index_col=0).loc[found.names, found.names].to_numpy()
    off = ~np.eye(len(found), dtype=bool)
    np.testing.assert_array_equal(found.connectivity[off], c[off])
    p = pd.read_csv(places, index_col="region").loc[found.names]
    np.testing.assert_array_equal(found.coordinates, p[["x", "y", "z"]].to_numpy())
    assert found.hemisphere == p["hemisphere"].tolist()
    expected = {"Vis", "SomMot", "DorsAttn", "SalVentAttn", "Limbic", "Cont", "Default", "subcortex"}
    assert set(found.network) == (expected if atlas != "dk82" else {"cortex", "subcortex"})
