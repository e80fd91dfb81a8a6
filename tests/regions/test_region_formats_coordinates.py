"""Whatever a file is written as, the places of its regions are the same; what is wrong with it is named."""

import re

import numpy as np
import pandas as pd
import pytest
from region_files import IDS, NAMES, REGIONS, TEXT_AS_OBJECTS, csv, parquet, refused, written

from omniset.regions.atlas_coordinates import hemisphere_of_name, read_coordinates

pytestmark = TEXT_AS_OBJECTS
SIDES = [name[0] for name in NAMES]
PLACES = np.random.default_rng(8).uniform(-70, 70, (REGIONS, 3)).round(4)
PLACES[:, 0] = [abs(x) * {"L": -1, "R": 1}[side] for x, side in zip(PLACES[:, 0], SIDES, strict=True)]


def places(columns=("x", "y", "z"), names=NAMES, **more):
    frame = pd.DataFrame(PLACES, columns=list(columns)).assign(**more)
    frame.insert(0, "region", names)
    return frame


COORDINATES = {
    "csv": lambda p: csv(places(), p / "a.csv", index=False),
    "spaces": lambda p: csv(places(), p / "a.txt", index=False, sep=" "),
    "counted": lambda p: csv(places(), p / "a.csv"),
    "index": lambda p: csv(places().set_index("region"), p / "a.csv"),
    "index without title": lambda p: csv(places().set_index("region").rename_axis(None), p / "a.csv"),
    "R": lambda p: csv(places().set_index("region").rename_axis(None), p / "a.csv", index_label=False),
    "any first title": lambda p: csv(places().rename(columns={"region": "parcel"}), p / "a.csv", index=False),
    "label": lambda p: csv(places(ID=IDS).rename(columns={"region": "Label"}), p / "a.csv", index=False),
    "columns in another order": lambda p: csv(places()[["z", "x", "region", "y"]], p / "a.csv", index=False),
    "mni_x": lambda p: csv(places(["mni_x", "mni_y", "mni_z"], x=1, y=2, z=3), p / "a.csv", index=False),
    "X_MNI": lambda p: csv(places(["X_MNI", "Y_MNI", "Z_MNI"]), p / "a.csv", index=False),
    "MNI.X": lambda p: csv(places(["MNI.X", "MNI.Y", "MNI.Z"]), p / "a.csv", index=False),
    "RAS": lambda p: csv(places(["R", "A", "S"]), p / "a.csv", index=False),
    "parquet": lambda p: parquet(places(), p / "a.parquet"),
    "parquet, index": lambda p: parquet(places().set_index("region"), p / "a.parquet"),
    "DataFrame": lambda p: places(),
    "DataFrame, index without title": lambda p: places(id=IDS).set_index("region").rename_axis(None),
}


@pytest.mark.parametrize("format", COORDINATES)
def test_every_format_gives_the_same_coordinates(format, tmp_path):
    found = read_coordinates(COORDINATES[format](tmp_path))
    assert found.index.tolist() == NAMES
    assert found.columns.tolist() == ["x", "y", "z", "hemisphere"]
    np.testing.assert_array_equal(found[["x", "y", "z"]].to_numpy(), PLACES)
    assert found["hemisphere"].tolist() == SIDES
    assert found.attrs["notes"] == []


def test_the_column_of_names_is_the_one_that_the_expression_has():
    """An atlas with an id, a label that is there twice (left and right), and a name."""
    frame = places(id=[f"{i}.0" for i in IDS], label=[name[2:] for name in NAMES])
    assert read_coordinates(frame).index.tolist() == NAMES
    assert read_coordinates(frame, regions=IDS[::-1]).index.tolist() == IDS
    assert read_coordinates(frame.drop(columns="region")).index.tolist() == IDS
    refused(read_coordinates, frame.drop(columns=["region", "id"]), "region 'areaa' is there twice", "coordinates")


@pytest.mark.parametrize("title", ["hemisphere", "Hemi"])
def test_hemispheres_of_a_column(title):
    words = ["L", "lh", "LEFT", "R", "rh", "Right", "", "B", "midline", None, "left", "NA", "both"]
    x = [-20.0] * 3 + [20.0] * 3 + [-30.0] * 7
    found = read_coordinates(places(**{title: words}).assign(x=x))
    assert found["hemisphere"].tolist() == ["L", "L", "L", "R", "R", "R", "", "", "", "", "L", "", ""]
    assert found.attrs["notes"] == []
    up = places(**{title: ["L", "up", *words[2:]]})
    refused(read_coordinates, up, "region 'L_areab': hemisphere is 'up', it must be L, R or empty", "coordinates")


def test_names_tell_the_hemisphere_before_x_does():
    names = ["7Networks_LH_Vis_1", "ctx-rh-cuneus", "V1_L", "Right Thalamus", "lh.bankssts", "R_V1_ROI"]
    names += ["Laccumb", "Rthal", "brainstem", "L", "area_R_1", "LHipp", "left"]
    x = np.array([5, -5, 5, -5, 5, -5, -9, 9, 0, -1, -2, 3, 4.0])
    found = read_coordinates(pd.DataFrame({"region": names, "x": x, "y": 0, "z": 0}))
    assert found["hemisphere"].tolist() == ["L", "R", "L", "R", "L", "R", "L", "R", "", "L", "L", "R", "R"]
    assert "the hemisphere of 7 of 13 regions, such as 'Laccumb', is that of the sign of x" in found.attrs["notes"][0]
    assert "6 of 6 regions of a hemisphere lie in the other one" in found.attrs["notes"][1]
    assert [hemisphere_of_name(name) for name in names[6:]] == [""] * 7


SCHAEFER = ["7Networks_LH_Vis_1", "17Networks_RH_DefaultA_PFCm_2", "7Networks_RH_Cont_Par_1", "7Networks_LH_Limbic"]
SCHAEFER += ["Laccumb", "Rthal", "x", "y"]


def test_networks():
    x = [-1.0 if "LH" in name else 1.0 for name in SCHAEFER]
    frame = pd.DataFrame({"region": SCHAEFER, "x": x, "y": 2.0, "z": 3.0})
    assert "network" not in read_coordinates(frame.tail(4))
    assert read_coordinates(frame)["network"].tolist() == ["Vis", "DefaultA", "Cont", "Limbic", "", "", "", ""]
    frame["cortex"] = ["True", "yes", "1.0", True, "False", "0", 1, None]
    found = read_coordinates(frame)
    assert found["network"].tolist() == ["Vis", "DefaultA", "Cont", "Limbic", "subcortex", "subcortex", "cortex", ""]
    assert found["structure"].tolist() == ["cortex"] * 4 + ["subcortex", "subcortex", "cortex", ""]
    frame["Structure"] = ["cortex"] * 4 + ["subcortex/brainstem", "", "nan", "cerebellum"]
    found = read_coordinates(frame)["network"].tolist()
    assert found == ["Vis", "DefaultA", "Cont", "Limbic", "subcortex/brainstem", "subcortex", "cortex", "cerebellum"]
    for title in ("network", "Network_Label", "yeo7"):
        given = read_coordinates(frame.assign(**{title: ["a", "b", "", "c", "d", None, "e", ""]}))["network"].tolist()
        assert given == ["a", "b", "Cont", "c", "d", "subcortex", "e", "cerebellum"]


ROWS = "region,x,y,z\nL_a,1,2,3\nL_b,4,5,6\n"
BAD_COORDINATES = {
    "empty": (ROWS.replace("5", ""), "region 'L_b': y is empty, it must be a finite number"),
    "infinite": (ROWS.replace("5", "inf"), "region 'L_b': y is 'inf', it must be a finite number"),
    "text": (ROWS.replace("5", "far"), "region 'L_b': y is 'far', it must be a finite number"),
    "no columns": (ROWS.replace("y,", "up,"), "must have columns x, y, z (or mni_x, ...; x_mni, ...), it has 'region'"),
    "no names": ("x,y,z\n1,2,3\n", "must have a column of names of the regions, called region, label, name, roi, id"),
    "twice": (ROWS.replace("L_b", "L_a"), "region 'L_a' is there twice"),
    "no name": (ROWS.replace("L_b", ""), "region 2 has no name"),
    "no rows": ("region,x,y,z\n", "has no rows below its header"),
    "cut off": (ROWS.replace(",5,6", ",5"), "line 3: has 3 fields, the header has 4: is the file cut off?"),
}


@pytest.mark.parametrize("kind", BAD_COORDINATES)
def test_what_is_wrong_with_coordinates(kind, tmp_path):
    text, message = BAD_COORDINATES[kind]
    refused(read_coordinates, written(tmp_path / "a.csv", text), message)


def test_doubtful_places_are_noted():
    names = [f"{side}_{i}" for i in range(11) for side in "LR"]
    x = np.array([-30.0, 30.0] * 11)
    frame = pd.DataFrame({"x": x, "y": 10.0, "z": 5.0}, pd.Index(names, name="region"))
    assert not read_coordinates(frame).attrs["notes"]
    two = frame.assign(x=np.where(np.arange(22) < 2, -x, x))
    assert not read_coordinates(two).attrs["notes"]  # a tenth at most may lie across the midline
    three = frame.assign(x=np.where(np.arange(22) < 3, -x, x))
    (note,) = read_coordinates(three).attrs["notes"]
    assert "3 of 22 regions of a hemisphere lie in the other one, such as 'L_0' (x = 30)" in note
    for factor, largest in ((1e-3, "0.03"), (1e3, "3e+04")):
        said = re.escape(f"the largest coordinate is {largest}, in mm it is up to 20 of a mouse, 50 to 150 of man")
        with pytest.warns(UserWarning, match=said):
            read_coordinates(frame.assign(**{axis: frame[axis] * factor for axis in "xyz"}))
