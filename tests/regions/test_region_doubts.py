"""What files contradict: each case is read right, with a word on it, or refused; the truth is that of `simulate`."""

import numpy as np
import pandas as pd
import pytest
import scipy.io

from omniset.regions import read_regions
from omniset.regions.connectivity import read_connectivity
from omniset.regions.data import simulate

MADE = simulate(60, 20)
SIZE = len(MADE)
NAMES = [f"7Networks_{side}H_Vis_{i % 30 + 1}" for i, side in enumerate(MADE.hemisphere)]
SHORT = [name.removeprefix("7Networks_") for name in NAMES]
NUMBERS = [str(i + 11) for i in range(SIZE)]
EXPRESSION = pd.DataFrame(MADE.expression, NAMES, [f"SLC{i}A1" for i in range(20)])
PLACES = pd.DataFrame(MADE.coordinates, pd.Index(NAMES, name="region"), ["x", "y", "z"])
SQUARE = pd.DataFrame(MADE.connectivity, NAMES, NAMES)
FULL = np.where(np.eye(SIZE), 1, MADE.connectivity)
LOWER, UPPER = np.tril_indices(SIZE, -1), np.triu_indices(SIZE, 1)
WITH = np.tril_indices(SIZE)
NILEARN = FULL[WITH] / np.where(WITH[0] == WITH[1], np.sqrt(2), 1)
ORDER = np.random.default_rng(0).permutation(SIZE)
SHIFTED = ["Background", *NAMES[:-1]]
VOXELS = PLACES / 2 + np.array([45, 63, 36])
BELOW = pd.DataFrame(0.1 * np.arange(80).reshape(4, 20), ["Laccumb", "Lthal", "Raccumb", "Rthal"], EXPRESSION.columns)
WITH_BELOW = pd.concat([EXPRESSION[:30], BELOW[:2], EXPRESSION[30:], BELOW[2:]])
AREAS = [f"gyrus {i}" for i in range(30)]  # each on both sides
TWICE = PLACES.set_axis(pd.Index(AREAS + AREAS, name="region")).assign(hemi=["left"] * 30 + ["right"] * 30)
LATERAL = [f"{side}h_{area}" for side in "lr" for area in AREAS]
GGSEG = EXPRESSION.reset_index(drop=True).assign(region=AREAS + AREAS, hemi=[*TWICE["hemi"]])
GGSEG = GGSEG[["hemi", "region", *EXPRESSION]]
CENTROIDS = PLACES.set_axis(["R", "A", "S"], axis=1).reset_index(names="ROI Name")
CENTROIDS.insert(0, "ROI Label", range(1, SIZE + 1))
PAIRS = pd.DataFrame([(NAMES[i], NAMES[j], FULL[i, j]) for i, j in zip(*UPPER, strict=True)])
MIRRORED = pd.concat([EXPRESSION[:30], EXPRESSION[:30].set_axis(NAMES[30:])])


def e(**changes):
    return {"expression": EXPRESSION, "connectivity": SQUARE, "coordinates": PLACES, **changes}


def both(names):
    return SQUARE.set_axis(names).set_axis(names, axis=1)


def numbered(places):
    given = [EXPRESSION.set_axis(NUMBERS), both(NUMBERS), places.set_axis(pd.Index(NUMBERS, name="region"))]
    return dict(zip(("expression", "connectivity", "coordinates"), given, strict=True))


READ = {  # what is given; what is said
    "nilearn": (
        e(connectivity=NILEARN, coordinates=None),
        "the lower triangle of 60 regions, row by row, which its diag",
    ),
    "upper, diagonal": (
        e(connectivity=FULL[np.triu_indices(SIZE)]),
        "the upper triangle of 60 regions, row by row, whi",
    ),
    "subjects": (e(connectivity=np.stack([NILEARN, NILEARN])), "the lower triangle of 60 regions"),
    "asked": (e(connectivity=FULL[LOWER], coordinates=None, triangle="lower"), "the lower triangle of 60 regions"),
    "order of places": (
        e(expression=EXPRESSION.iloc[ORDER], connectivity=FULL),
        "in the order of coordinates (r with near",
    ),
    "half": (e(connectivity=np.triu(FULL)), "1,770 pair(s) are given one way only"),
    "one off": (e(connectivity=both(SHIFTED)), "connectivity: 'Background' is no region, names are one off"),
    "expression one off": (e(expression=EXPRESSION.set_axis(SHIFTED)), "expression: 'Background' is no region"),
    "one label more": (
        e(expression=EXPRESSION.reindex(["Medial wall", *NAMES]), connectivity=FULL),
        "its 60 regions are taken in the order of expression",
    ),
    "prefix": (
        e(connectivity=both([*SHORT[:40], *NAMES[40:]])),
        "40 of 60 regions are written otherwise in expression",
    ),
    "prefix of places": (e(coordinates=PLACES.set_axis(SHORT)), "coordinates: 60 of 60 regions are written otherwise"),
    "dashes": (e(expression=EXPRESSION.set_axis([n.lower().replace("_", "-") for n in NAMES])), "60 of 60 regions are"),
    "FreeSurfer": (
        e(connectivity=both([f"ctx-{n[:2].lower()}-{n[3:]}" for n in SHORT]), expression=EXPRESSION.set_axis(SHORT)),
        "such as 'ctx-lh-Vis_1' for 'LH_Vis_1'",
    ),
    "R": (e(connectivity=SQUARE.add_prefix("X")), ""),
    "subcortex in one file": (
        e(expression=WITH_BELOW, connectivity=FULL, coordinates=None),
        "order of expression, wit",
    ),
    "names of both sides": (e(expression=GGSEG, connectivity=both(LATERAL), coordinates=TWICE), "which are put before"),
    "the side twice": (
        e(connectivity=both([f"{n[:2].lower()}_{n[0]}_{n[3:]}" for n in SHORT])),
        "such as 'lh_L_Vis_1' for '7N",
    ),
    "Schaefer's centroids": (e(coordinates=CENTROIDS), ""),
    "R's melt": (e(connectivity=PAIRS.set_axis(["Var1", "Var2", "value"], axis=1).reset_index(names="row")), ""),
    "two weights": (
        e(connectivity=PAIRS.set_axis(["i", "j", "sc"], axis=1).assign(fc=PAIRS[2], sc=1)),
        "weights are those in 'fc', not in 'sc'",
    ),
    "no gene": (e(expression=EXPRESSION.assign(volume=range(SIZE))), "'volume' are taken for genes"),
    "LPS": (e(coordinates=PLACES * [-1, -1, 1]), "x is from right to left (LPS), and its sign is turned"),
    "cm": (e(coordinates=PLACES / 10), "they are taken for cm and made mm"),
    "percent": (e(connectivity=40 * FULL + 60 * np.eye(SIZE), fisher_z=True), "correlations are in percent"),
    "sparse": (e(connectivity=SQUARE.where(SQUARE > 0.5, 0)), "% of the pairs are exactly 0"),
    "counts": (e(connectivity=np.exp(9 * SQUARE).round()), "give log(1 + count)"),
    "distances": (e(connectivity=1 - SQUARE), "are these distances, lengths or 1 - r"),
    "another order": (e(connectivity=FULL[np.ix_(ORDER, ORDER)]), "are these regions in another order"),
    "mirrored": (e(expression=MIRRORED), "60 of 60 regions have the values of another one"),
    "dates": (e(expression=EXPRESSION.rename(columns={"SLC3A1": "1-Mar"})), "1 gene(s) are dates such as '1-Mar'"),
    "places among genes": (e(expression=EXPRESSION.assign(x=PLACES["x"], hemisphere="L")), ""),
}
REFUSED = {
    "covariances": (
        e(connectivity=FULL[WITH] + 0.3 * (WITH[0] == WITH[1]) * WITH[0]),
        "leave the diagonal out, or what",
    ),
    "tracer": (e(connectivity=1e-7 * np.random.default_rng(0).random((SIZE, SIZE))), "not symmetric at 1,770 pair(s)"),
    "triangle": (e(connectivity=FULL[LOWER]), "nothing tells which: give --triangle lower if row by"),
    "voxels": (numbered(VOXELS), "on one side of the midline: give mm from there, left negative"),
    "voxels by name": (e(coordinates=VOXELS), "on one side of the midline"),
    "rows in another order": (
        e(coordinates=PLACES.iloc[ORDER].set_axis(NAMES)),
        "the rows seem to be in another order",
    ),
    "networks": (e(connectivity=both([f"1{name}" for name in NAMES])), "60 of 60 regions are not in connectivity"),
    "z of z": (
        e(connectivity=np.where(np.eye(SIZE), np.inf, FULL), fisher_z=True),
        "the diagonal is infinite, as that of",
    ),
    "equal rows": (
        e(expression=EXPRESSION.iloc[[0] * 40 + [*range(20)]].set_axis(NAMES)),
        "41 of 60 regions come out the",
    ),
}


@pytest.mark.parametrize("case", READ)
def test_what_is_read_right_with_a_word(case):
    given, said = READ[case]
    found = read_regions(**given)
    assert any(said in note for note in found.notes) or not said, found.notes
    if case in ("no gene", "percent", "sparse", "counts", "distances", "another order", "mirrored"):
        return
    assert len(found) == SIZE
    at = [EXPRESSION.to_numpy(np.float32).tolist().index(row) for row in found.expression.tolist()]
    assert sorted(at) == [*range(SIZE)] or case == "mirrored"
    np.testing.assert_allclose(found.connectivity, MADE.connectivity[np.ix_(at, at)], atol=1e-12)
    if found.coordinates is not None:
        np.testing.assert_allclose(abs(found.coordinates), abs(MADE.coordinates[at]), atol=1e-9)
        assert (np.sign(found.coordinates[:, 0]) == np.sign(MADE.coordinates[at, 0])).all()
        assert found.hemisphere == [MADE.hemisphere[i] for i in at]


@pytest.mark.parametrize("case", REFUSED)
def test_what_nobody_can_tell_is_refused(case):
    given, said = REFUSED[case]
    with pytest.raises(ValueError, match=".*") as error:
        read_regions(**given)
    assert said in str(error.value)


def test_arrays_by_name_and_labels_of_no_region(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"fc": FULL, "sc": 2 * FULL})
    with pytest.raises(ValueError, match=r"it has fc .60 x 60., sc .60 x 60.: give --matrix fc"):
        read_connectivity(tmp_path / "a.mat")
    assert read_connectivity(tmp_path / "a.mat", matrix="sc").matrix[0, 1] == 2 * FULL[0, 1]
    with pytest.raises(ValueError, match="must have an array of numbers 'x'; it has fc"):
        read_connectivity(tmp_path / "a.mat", matrix="x")
    for more, names in ((["Background"], NAMES), (["area"], None)):
        np.savez(tmp_path / "a.npz", m=FULL, labels=np.array([*more, *NAMES]))
        if names:
            assert read_connectivity(tmp_path / "a.npz").names == names
        else:
            with pytest.raises(ValueError, match="'labels' has 61 names for 60 regions: leave out what is no region"):
                read_connectivity(tmp_path / "a.npz")


def test_the_line_of_excel_that_tells_the_separator(tmp_path):
    for name, frame in (("e", EXPRESSION), ("c", SQUARE), ("p", PLACES)):
        (tmp_path / f"{name}.csv").write_text("sep=;\n" + frame.to_csv(sep=";"))
    found = read_regions(*(tmp_path / f"{name}.csv" for name in "ecp"))
    np.testing.assert_allclose(found.connectivity, MADE.connectivity)


def test_files_as_tools_write_them(tmp_path):
    """BrainNet Viewer's pair, MRtrix' comment, and arrays of DSI Studio and CONN: what they hold is the same."""
    edge, node, square = tmp_path / "a.edge", tmp_path / "a.node", np.nan_to_num(FULL[np.ix_(ORDER, ORDER)])
    np.savetxt(edge, FULL, delimiter="\t")
    node.write_text(
        "".join(f"{x}\t{y}\t{z}\t1\t2\t{n}\n" for (x, y, z), n in zip(MADE.coordinates, NAMES, strict=True))
    )
    np.savetxt(tmp_path / "mrtrix.csv", FULL, header="command_history: tck2connectome a b (version=3.0.4)")
    names = "\n".join(NAMES[i] for i in ORDER) + "\n"
    dsi = {"connectivity": square, "name": np.frombuffer(names.encode(), np.uint8)[None]}
    scipy.io.savemat(tmp_path / "dsi.mat", dsi, format="4")
    more = np.array([*NAMES, "QC_a", "seed b"], dtype=object)[None]
    conn = {"Z": np.hstack([FULL, np.ones((SIZE, 2))]), "names": more[:, :-2], "names2": more, "SE": np.ones((1, 62))}
    scipy.io.savemat(tmp_path / "conn.mat", conn)
    for file, matrix in ((edge, None), ("mrtrix.csv", None), ("dsi.mat", None), ("conn.mat", "Z")):
        found = read_regions(EXPRESSION, tmp_path / file, node, matrix=matrix)
        np.testing.assert_allclose(found.connectivity, MADE.connectivity, atol=1e-12)
        np.testing.assert_array_equal(found.coordinates, MADE.coordinates)


def test_remedies_that_are_named(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"conn": {"fc": FULL}})
    with pytest.raises(
        ValueError, match=r"in MATLAB, a = conn.fc; save\('a.mat', 'a'\) makes that an array of its own"
    ):
        read_connectivity(tmp_path / "a.mat")
    np.savetxt(tmp_path / "a.csv", EXPRESSION, delimiter=",")
    with pytest.raises(ValueError, match="holds numbers: names of genes must stand above them, in a header"):
        read_regions(tmp_path / "a.csv")
