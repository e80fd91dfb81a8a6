"""Damaged files of HDF5 and MATLAB end another process than ours, and are refused in one line that names them."""

import io
import json
import sys
from contextlib import suppress

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from benchmarks.fuzz.worker import Maker

from omniset.regions.connectivity import read_connectivity
from omniset.regions.expression import read_expression
from omniset.tables import hdf5
from omniset.tables.hdf5 import check_hdf5, read_mat


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as root:
        root.attrs["kind"] = "test"
        root["X/data"] = np.arange(7.0)
        root.create_dataset("names", data=["a", "b"], dtype=h5py.string_dtype())
        root["same"] = h5py.SoftLink("/X/data")
        root["twice"] = root["X"]
        root["nothing"] = h5py.Empty("f8")
        root["reference"] = np.array([root["X"].ref], dtype=h5py.ref_dtype)
    return tmp_path / "a.h5"


@pytest.fixture
def looks(monkeypatch):
    """The files that were looked at in another process."""
    look, found = hdf5._answer, []
    monkeypatch.setattr(hdf5, "_answer", lambda *job, **more: found.append(job[1]) or look(*job, **more))
    return found


def test_a_good_file_is_looked_at_once_unless_it_changes(path, looks, monkeypatch):
    monkeypatch.chdir(path.parent)
    for given in (path, str(path), path.name):
        check_hdf5(given)
    assert looks == [str(path)]
    with h5py.File(path, "r+") as root:
        root["late"] = h5py.SoftLink("/nowhere")
    for _ in range(2):
        with pytest.raises(ValueError, match="^a.h5: '/late' is a link that leads nowhere or in a circle$"):
            check_hdf5(path.name)
    assert len(looks) == 2


def virtual(root):
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
    root.create_virtual_dataset("new", layout)


def within(root):
    root["X/new"] = root["/"]


def around(root):
    root["X/new"] = h5py.SoftLink("/new")
    root["new/X"] = h5py.SoftLink("/X")


CHANGES = {
    "nowhere": (lambda r: r.__setitem__("new", h5py.SoftLink("/no")), "'/new' is a link that leads nowhere or in a"),
    "itself": (lambda r: r.__setitem__("new", h5py.SoftLink("/new")), "'/new' is a link that leads nowhere or in a"),
    "other file": (
        lambda r: r.__setitem__("X/new", h5py.ExternalLink("b.h5", "/x")),
        "'/X/new' is in another file, 'b.h5', which is not opened: copy what is there into this one",
    ),
    "virtual": (virtual, "'/new' is in another file, 'other.h5', which"),
    "raw data": (lambda r: r.create_dataset("new", (3,), "f8", external="raw.bin"), "'/new' is in another file, 'raw"),
    "within itself": (within, "is damaged: it has a group within itself"),
    "around": (around, "is damaged: it has a group within itself"),
    "chunks": (
        lambda r: r.create_dataset("new", (1 << 40,), "i8", chunks=(1024,)),
        "is damaged: '/new' claims 1,099,511,627,776 values, which the file does not hold",
    ),
    "contiguous": (lambda r: r.create_dataset("new", (1 << 20, 1 << 20), "i8"), "is damaged: '/new' claims 1,099,511"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_refused(change, path):
    with h5py.File(path, "r+") as root:
        CHANGES[change][0](root)
    with pytest.raises(ValueError, match="^" + str(path)) as error:
        check_hdf5(path)
    assert str(error.value).startswith(f"{path}: {CHANGES[change][1]}")


def test_a_part_that_cannot_be_opened(path):
    with h5py.File(path) as root:
        at = h5py.h5o.get_info(root["X/data"].id).addr
    data = path.read_bytes()
    path.write_bytes(data[:at] + bytes(8) + data[at + 8 :])
    with pytest.raises(ValueError, match="a.h5: is damaged: '/X/data' cannot be opened"):
        check_hdf5(path)


def test_other_errors_are_the_readers(path, tmp_path):
    """Of these, a reader may not want the part that is damaged, or says better what is wrong."""
    check_hdf5(tmp_path / "none.h5")
    (tmp_path / "cut.h5").write_bytes(path.read_bytes()[:900])
    check_hdf5(tmp_path / "cut.h5")
    with pytest.raises(ValueError, match=r"cut.h5: is no .mat file of MATLAB, or damaged \("):
        read_mat(tmp_path / "cut.h5")


def test_a_large_file(tmp_path):
    """5 GB that are not there: neither read nor refused."""
    path = tmp_path / "large.h5"
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    create.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as root:
        h5py.h5d.create(root.id, b"X", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((25 << 10, 50 << 10)), create)
        root["names"] = np.arange(5)
    assert path.stat().st_size > 5e9
    check_hdf5(path)


@pytest.mark.parametrize(("check", "kind"), [(check_hdf5, "hdf5"), (read_mat, "mat")])
def test_what_has_no_end_is_refused(check, kind, path, tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "SECONDS", 1e-6)
    scipy.io.savemat(tmp_path / "a.mat", {"x": np.arange(5)})
    given = path if kind == "hdf5" else tmp_path / "a.mat"
    with pytest.raises(ValueError, match=f"^{given}: is damaged: looking into it takes more than .* s, if it ever end"):
        check(given)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "is damaged: reading it ends the process"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "reading it takes more memory than there is"),
        ("while True: pass", "is damaged: looking into it takes more than 0.01"),
        ("os.kill(os.getpid(), signal.SIGTERM)", None),
        ("raise ImportError", None),
        ("print('nonsense')", None),
    ],
)
def test_how_the_other_process_ends(code, message, path, monkeypatch):
    script = path.parent / "script.py"
    script.write_text(f"import os, signal\n{code}")
    monkeypatch.setattr(hdf5, "__file__", str(script))
    monkeypatch.setattr(hdf5, "SECONDS", 0.01)
    monkeypatch.setattr(hdf5, "START", 0.3 if "while" in code else 60)
    if message is None:
        check_hdf5(path)
    else:
        with pytest.raises(ValueError, match=f"^{path}: {message}"):
            check_hdf5(path)


def test_what_takes_all_memory_is_refused(monkeypatch, capsys):
    def look(path, *_how):
        raise MemoryError(path)

    monkeypatch.setattr(hdf5, "_look_hdf5", look)
    monkeypatch.setattr(hdf5, "_limit", lambda seconds, memory: None)
    job = {"kind": "hdf5", "path": __file__, "seconds": 1, "modules": [], "bounds": [1, 1]}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(job)))
    hdf5._main()
    assert json.loads(capsys.readouterr().out) == "is damaged: it claims to hold more than there is memory for"


@pytest.mark.parametrize("executable", [None, "", "/nowhere/python"])
def test_where_no_process_can_be_started_files_are_read(executable, path, monkeypatch):
    monkeypatch.setattr(sys, "executable", executable)
    check_hdf5(path)
    scipy.io.savemat(path.parent / "a.mat", {"x": np.arange(5.0), "names": np.array(["a", "bc"], dtype=object)})
    variables = read_mat(path.parent / "a.mat")
    assert variables["x"].tolist() == [[0, 1, 2, 3, 4]]
    assert variables["names"] == ((1, 2), ["a", "bc"])


def test_variables_of_matlab_as_scipy_reads_them(tmp_path):
    rng = np.random.default_rng(0)
    given = {
        "numbers": rng.normal(size=(3, 5)),
        "whole": rng.integers(-9, 9, (2, 3, 4)),
        "complex": rng.normal(size=(2, 2)) * 1j,
        "sparse": scipy.sparse.random(7, 5, 0.3, random_state=0, format="csc"),
        "text": "abc",
        "lines": ["ab", "cd"],
        "cells": np.array(["ab", "c"], dtype=object),
        "mixed": np.array(["ab", 1.0], dtype=object),
        "one": {"names": np.array(["x", "yz"], dtype=object), "values": np.arange(3.0)},
    }
    scipy.io.savemat(tmp_path / "a.mat", given)
    variables, oracle = read_mat(tmp_path / "a.mat"), scipy.io.loadmat(tmp_path / "a.mat")
    for key in ("numbers", "whole", "complex", "text", "lines"):
        np.testing.assert_array_equal(variables.pop(key), oracle[key], strict=True)
    np.testing.assert_array_equal(variables.pop("sparse"), oracle["sparse"].toarray(), strict=True)
    assert variables == {
        "cells": ((1, 2), ["ab", "c"]),
        "mixed": ((1, 2), None),
        "one.names": ((1, 2), ["x", "yz"]),
        "one.values": ((1, 3), None),
    }


@pytest.mark.parametrize(
    ("case", "read"),
    [("regions/expression.h5ad:0:40", read_expression), ("regions/connectivity.mat:0:38", read_connectivity)],
)
def test_files_that_libraries_end_at_or_never_end_at(case, read, tmp_path, monkeypatch):
    """Another version of the libraries may know better; then the file is read or refused as any other."""
    monkeypatch.setattr(hdf5, "SECONDS", 0.5)
    name, seed, number = case.split(":")
    made, _ = Maker(tmp_path).make(name, int(seed), int(number), tmp_path / "case")
    path = tmp_path / "case" / made
    with suppress(ValueError):
        read(path)
