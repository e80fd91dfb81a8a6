"""Files of regions that are none, that need a package, or that are damaged: what is wrong is named."""

import gzip
import re
import sys

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
from region_files import GOOD, TEXT_AS_OBJECTS, refused, written

from omniset.regions.atlas_coordinates import read_coordinates
from omniset.regions.connectivity import read_connectivity
from omniset.regions.expression import read_expression

pytestmark = TEXT_AS_OBJECTS


@pytest.mark.parametrize("reader", [read_expression, read_connectivity, read_coordinates])
def test_files_that_are_none(reader, tmp_path):
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(GOOD.encode() * 99)[:40])
    refused(reader, tmp_path / "cut.csv.gz", ": is cut off or not a whole compressed file")
    refused(reader, written(tmp_path / "a.parquet", GOOD), ": is cut off, damaged or no Parquet file")
    refused(reader, written(tmp_path / "a.xlsx", GOOD), ": the name must end in .csv, .tsv or .txt")
    refused(reader, tmp_path, "is a directory, it must be a file")
    for name in ("none.csv", "none.parquet", "none.npy", "none.mat", "none.h5ad"):
        with pytest.raises(FileNotFoundError, match=name):
            reader(tmp_path / name)
    refused(reader, 3, " must be a file", reader.__name__.removeprefix("read_"))


@pytest.mark.parametrize(
    ("module", "file", "extra"),
    [("nibabel", "a.pconn.nii", "regions"), ("h5py", "a.mat", "tables"), ("anndata", "a.h5ad", "cells")],
)
def test_what_a_format_needs_is_said(module, file, extra, tmp_path, monkeypatch):
    (tmp_path / file).write_bytes(b"\x89HDF\r\n\x1a\n")
    monkeypatch.setitem(sys.modules, module, None)
    reader = read_expression if module == "anndata" else read_connectivity
    remedy = f'{tmp_path / file} needs {module}, which is not installed: pip install "omniset[{extra}]"'
    with pytest.raises(ImportError, match=re.escape(remedy)):
        reader(tmp_path / file)


def test_what_libraries_say_is_in_words(tmp_path):
    """Without the names of their classes and the places of objects in memory."""
    np.save(tmp_path / "a.npy", np.zeros((3, 3)))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole.replace(b"'<f8'", b"names"))
    with pytest.raises(ValueError, match="a.npy: is no array of NumPy, or .*malformed node .*ast.Name.") as error:
        read_connectivity(tmp_path / "a.npy")
    assert not re.search("0x|<", str(error.value))
    path, names = tmp_path / "a.h5ad", pd.DataFrame(index=["A", "B"])
    anndata.AnnData(np.ones((2, 2)), names, names).write_h5ad(path)
    with h5py.File(path, "r+") as root:
        root["obs"].attrs["encoding-version"] = "99"
    with pytest.raises(ValueError, match=f"{path}: is no .h5ad file that can be read .No read method") as error:
        read_expression(path)
    assert "<class" not in str(error.value)
