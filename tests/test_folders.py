"""Folders of sets: read as they come, the same numbers whatever the format, and one line for what is wrong."""

import pickle
import re

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from omniset.cli import main
from omniset.core.encoding import Encoding
from omniset.report import plots
from omniset.tables import collect
from omniset.tables.hdf5 import check_all
from omniset.tables.reading import open_sets
from small import QUIET, TINY

SIZES = {"b": 7, "a": 3, "d": 0, "c": 11, "é f": 2}


def arrays(width=5, dtype=np.float64):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(size, width)).astype(dtype) for name, size in SIZES.items()}


def write(path, features, coords=None):
    """As the programs do: TRIDENT puts an axis of 1 in front."""
    if path.suffix == ".npy":
        np.save(path, features)
    elif path.suffix == ".pt":
        held = torch.from_numpy(features)
        torch.save(held if coords is None else {"features": held, "coords": torch.from_numpy(coords)}, path)
    else:
        with h5py.File(path, "w") as root:
            root["features"] = features if coords is None else features[None]
            if coords is not None:
                root["coords"] = coords[None]


def folder(tmp_path, ending, dtype=np.float64, places=False, width=5):
    out = tmp_path / "sets"
    out.mkdir()
    for number, (name, values) in enumerate(arrays(width, dtype).items()):
        coords = np.arange(2 * len(values)).reshape(-1, 2) * 256 + number if places else None
        write(out / f"{name}{ending}", values, coords)
    (out / ".DS_Store").write_bytes(b"")
    (out / "notes.txt").write_text("none of them")
    return out


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("ending", [".h5", ".hdf5", ".npy", ".pt", ".H5"])
def test_every_format_holds_the_same_sets(ending, dtype, tmp_path):
    table = open_sets(folder(tmp_path, ending, dtype, places=ending != ".npy"))
    expected = {name: torch.from_numpy(values.astype(np.float32)) for name, values in sorted(arrays(5, dtype).items())}
    assert table.features == [f"feature_{i}" for i in range(1, 6)]
    found = list(table)
    assert [s.name for s in found] == [*expected]
    for stored, values in zip(found, expected.values(), strict=True):
        assert torch.equal(stored.read()[0], values)
        assert torch.equal(stored.read(2, 3)[0], values[2:5])
        assert stored.read()[1].tolist() == [1] * len(values)
    if ending != ".npy":
        places = found[1].columns["coords"]()
        assert places.dtype == np.float64
        assert places.tolist() == [[512 * i, 512 * i + 256] for i in range(7)]
    sets, _ = collect(table, table.features, None, (), table.encoding, table.stays)
    whole = torch.cat([*expected.values()])
    assert sets.offsets.tolist() == [0, 3, 10, 21, 21, 23]
    for rows in range(1, 24):
        blocks = [elements for elements, _ in sets.blocks(rows)]
        assert [len(block) for block in blocks[:-1]] == [rows] * (len(blocks) - 1)
        assert torch.equal(torch.cat(blocks), whole)
    assert all(torch.equal(sets[i].read()[0], values) for i, values in enumerate(expected.values()))
    assert table.file.position == table.file.size == 4 * 5 * 23


def test_no_more_is_read_than_is_asked_for(tmp_path, monkeypatch):
    out = folder(tmp_path, ".h5")
    read = []
    original = h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda self, rows: read.append(rows) or original(self, rows))
    table = open_sets(out)
    assert read == []
    next(stored for stored in table if stored.name == "c").read(4, 3)
    assert read == [slice(4, 7)]


def test_many_files_are_looked_at_together(tmp_path, monkeypatch):
    from omniset.tables import hdf5

    calls = []
    original = hdf5._answer
    monkeypatch.setattr(hdf5, "_answer", lambda *a, **k: calls.append(k) or original(*a, **k))
    out = folder(tmp_path, ".h5")
    paths = sorted(out.glob("*.h5"))
    check_all(paths)
    assert [len(call["others"]) for call in calls] == [4]
    check_all(paths)
    assert len(calls) == 1
    with h5py.File(paths[2], "w") as root:
        root["features"] = h5py.ExternalLink("elsewhere.h5", "/x")
    with pytest.raises(ValueError, match=rf"{re.escape(str(paths[2]))}: .* is in another file"):
        check_all(paths)


def h5(values, **more):
    def make(path):
        with h5py.File(path, "w") as root:
            for name, held in (more | ({} if values is None else {"features": values})).items():
                root[name] = held

    return make


def pt(make):
    return lambda path: torch.save(make(torch.ones(3, 5)), path)


def nan(path):
    values = np.ones((4, 5), dtype=np.float32)
    values[2, 3] = np.nan
    write(path, values)


ONE = np.ones((4, 5), dtype=np.float32)
NOT_PLAIN = {
    "nested": (lambda x: torch.nested.nested_tensor([x, x[1:]]), "must be a plain tensor, it is nested or without"),
    "sparse": (lambda x: x.to_sparse(), "must be a plain tensor, it is torch.sparse_coo"),
    "no data": (lambda x: x.to("meta"), "must be a plain tensor, it is nested or without"),
    "expanded": (
        lambda x: x[:1, :1].clone().expand(10**12, 5),
        "is said to be of shape (1000000000000, 5), the file holds 1 numbers of it: save .contiguous() of it",
    ),
}
BAD = {
    "no features": ("c.h5", h5(None, embedding=ONE), "c.h5: has no dataset 'features', it has 'embedding'"),
    "a group": ("c.h5", h5(None, **{"features/x": ONE}), "c.h5: 'features' must be a dataset, it is a group"),
    "one axis": ("c.h5", h5(ONE[0]), "c.h5: features must be (N, D) or (1, N, D), their shape is (5,)"),
    "two sets": ("c.h5", h5(np.ones((2, 3, 5))), "c.h5: features must be (N, D) or (1, N, D), their shape is (2, 3"),
    "bytes": ("c.h5", h5(np.full((4, 5), b"x")), "c.h5: features must be numbers, they are |S1"),
    "no numbers": ("c.h5", h5(np.ones((4, 0))), "c.h5: has 0 features, a.h5 has 5"),
    "another width": ("c.h5", h5(np.ones((4, 7))), "c.h5: has 7 features, a.h5 has 5"),
    "places of others": ("c.h5", h5(ONE, coords=ONE[:3, :2]), "c.h5: coords must be (N, 2) with N = 4, their shape"),
    "no HDF5": ("c.h5", lambda path: path.write_text("x" * 999), "c.h5: is cut off, damaged or no HDF5 file"),
    "empty": ("c.h5", lambda path: path.write_bytes(b""), "c.h5: is cut off, damaged or no HDF5 file"),
    "NaN": ("c.h5", nan, "c.h5: row 3, number 4 is nan: features must be finite and at most 3.4e38"),
    "infinite": ("c.h5", h5((np.inf * ONE).astype(np.float16)), "c.h5: row 1, number 1 is inf: features must be"),
    "too large": ("c.h5", h5(np.full((4, 5), 1e39)), "c.h5: row 1, number 1 is 1e+39: features must be finite"),
    "two of a name": ("b.npy", nan, "sets: b.h5 and b.npy are sets of one name"),
    "no .npy": ("f.npy", lambda path: path.write_bytes(b"PK"), "f.npy is cut off, damaged or no .npy file"),
    "objects": ("f.npy", lambda path: np.save(path, np.array([{}, []], dtype=object)), "f.npy is a pickle of objects"),
    "pickle": ("f.npy", lambda path: path.write_bytes(pickle.dumps(np.ones((2, 3)))), "f.npy is a pickle of objects"),
    "text": ("f.pt", lambda path: path.write_text("features"), "f.pt is cut off, damaged or no file of torch.save"),
    "a pickle": ("f.pt", pt(lambda x: pd.Series([1.0])), "f.pt is a pickle of objects"),
    "a list": ("f.pt", pt(lambda x: [1.0]), "f.pt: must hold a tensor, or a dict with 'features', it"),
    "no tensor": ("f.pt", pt(lambda x: {"x": x}), "f.pt: has no tensor 'features', it"),
}
BAD |= {name: ("f.pt", pt(make), f"f.pt: features {said}") for name, (make, said) in NOT_PLAIN.items()}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
@pytest.mark.parametrize("case", BAD)
def test_wrong_files_are_one_line(case, tmp_path, monkeypatch, capsys):
    name, make, said = BAD[case]
    out = folder(tmp_path, ".h5")
    make(out / name)
    pd.DataFrame({"set": [*SIZES], "label": list("pqpqp")}).to_csv(tmp_path / "labels.csv", index=False)
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "sets", "--target=labels.csv", "--out=run", *TINY, *QUIET]) == 2
    # Numbers are read late, when the few labels have been warned of.
    message = "".join(line for line in capsys.readouterr().err.splitlines(True) if not line.startswith("warning: "))
    assert message.startswith(f"omniset: error: {'' if said.startswith('sets') else 'sets/'}{said}")
    assert message.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["labels.csv", "sets"]


def one_file(out, name="feats"):
    with h5py.File(out / "all.h5", "w") as root:
        for key, values in arrays().items():
            root[f"{key}/{name}"] = values
            root[f"{key}/coords"] = np.zeros((len(values), 2), int)
    return out / "all.h5"


def packed(out, **more):
    for name, values in arrays().items():
        np.savez(out / f"{name}.npz", feats=values, **{key: np.arange(n) for key, n in more.items()})
    return out


def clam(out):
    (out / "h5_files").mkdir()
    for name, values in arrays().items():
        write(out / "h5_files" / f"{name}.h5", values)
    return out


@pytest.mark.parametrize(
    ("make", "dataset"),
    [
        *[(one_file, "feats"), (lambda out: one_file(out, "features"), None), (packed, None), (clam, None)],
        (lambda out: packed(out, more=3), "feats"),
    ],
)
def test_other_forms_of_folders_hold_the_same_sets(make, dataset, tmp_path):
    found = {one.name: one.read()[0] for one in open_sets(make(tmp_path), dataset=dataset)}
    assert {name: len(rows) for name, rows in found.items()} == SIZES
    assert all(torch.equal(found[n], torch.from_numpy(v.astype(np.float32))) for n, v in arrays().items())


def test_names_of_datasets_are_told_and_whole_numbers_are_numbers(tmp_path):
    with pytest.raises(ValueError, match=r"a.npz: has no array 'features', it has 'feats', 'more': --dataset names"):
        open_sets(packed(tmp_path, more=3))
    np.save(tmp_path / "x.npy", np.arange(6).reshape(3, 2))
    (stored,) = open_sets(tmp_path / "x.npy")
    assert stored.read()[0].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_options_that_are_for_tables(tmp_path):
    out = folder(tmp_path, ".npy")
    for options, said in (
        ({"features": ["x"]}, "--features is for files of another kind"),
        ({"missing": "indicator"}, "--missing is for files of another kind"),
        ({"keep": ["label"]}, "has no column 'label': give a file of labels, --target"),
        ({"encoding": Encoding.of_numbers(["feature_1"])}, "a.npy: has 5 features, the model has 1$"),
    ):
        with pytest.raises(ValueError, match=said):
            open_sets(out, **options)
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match=r"none: is a folder without a file of \.h5, \.hdf5, \.npy, \.npz, \.pt"):
        open_sets(tmp_path / "none")
    for path in out.glob("*.npy"):
        np.save(path, np.empty((0, 5)))
    with pytest.raises(ValueError, match="all sets are empty"):
        open_sets(out)
    with pytest.raises(FileNotFoundError):
        open_sets(tmp_path / "nowhere.h5")


@pytest.mark.usefixtures("as_asked")
def test_scores_are_drawn_where_the_elements_are(tmp_path, monkeypatch, capsys):
    out = folder(tmp_path, ".h5", places=True)
    monkeypatch.chdir(tmp_path)
    write(out / "f.h5", np.ones((3, 5)))  # without places
    names = [*SIZES, "f"]
    pd.DataFrame({"set": names, "label": list("pqpqpq")}).to_csv("labels.csv", index=False)
    assert main(["fit", "sets", "--target=labels.csv", "--out=run", *TINY, *QUIET]) == 0
    drawn = {}

    def spy(places, scores, title, label):
        drawn[title.partition(":")[0]] = (places, scores, label)
        return plots_of(places, scores, title, label)

    plots_of = plots.heat_map
    monkeypatch.setattr(plots, "heat_map", spy)
    explain = ["explain", "sets", "--model=run", "--out=x.csv.gz", "--method=attention", *QUIET]
    (tmp_path / "x-maps").mkdir()
    (tmp_path / "x-maps" / "a.png").write_text("mine")
    for more in ([], ["--replace=true"]):
        assert main([*explain, *more]) == 2
        assert "x-maps holds what no run of Omniset has made, such as a.png" in capsys.readouterr().err
    assert not (tmp_path / "x.csv.gz").exists()
    assert (tmp_path / "x-maps" / "a.png").read_text() == "mine"
    (tmp_path / "x-maps" / "a.png").unlink()
    (tmp_path / "x-maps").rmdir()
    assert main(explain) == 0
    assert "26 scores written to x.csv.gz, 4 maps to x-maps" in capsys.readouterr().out
    maps = [p for p in (tmp_path / "x-maps").iterdir() if p.name != "run.json"]
    assert sorted(p.name for p in maps) == ["a.png", "b.png", "c.png", "é f.png"]
    assert {p.read_bytes()[:4] for p in maps} == {b"\x89PNG"}
    table = pd.read_csv("x.csv.gz")
    for name, (places, scores, label) in drawn.items():
        rows = table[table["set"] == name]
        assert rows[["x", "y"]].to_numpy().tolist() == places.tolist()
        np.testing.assert_allclose(rows["score"], scores, rtol=1e-6)
        assert label == "attention"
    assert table.loc[table["set"] == "f", ["x", "y"]].isna().all(axis=None)
    before = sorted(p.name for p in tmp_path.iterdir())
    assert main([*explain, "--only=z"]) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == before
