"""Every format holds the same matrix; what is no format of cells is refused in a sentence that names it."""

import gzip
import io
import os
import sys
import warnings
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp

from omniset.tables import matrices as formats
from omniset.tables.matrices import open_source

pytestmark = pytest.mark.usefixtures("text_as_objects")


CELLS, GENES = 307, 13  # more than one block of rows, and the last one is not full


DENSE = np.random.default_rng(3).poisson(0.7, (CELLS, GENES))
DENSE[5], DENSE[:, 7] = 0, 0  # a cell and a gene without counts
FLOATS = DENSE.astype(np.float32)


def frames():
    obs = pd.DataFrame({"batch": pd.Categorical(["a", "b"] * (CELLS // 2) + ["a"]), "depth": np.arange(CELLS) / 7})
    obs.index = [f"cell{i}" for i in range(CELLS)]
    var = pd.DataFrame({"gene_ids": [f"ENSG{i:011d}" for i in range(GENES)]}, index=[f"G{i}" for i in range(GENES)])
    return obs, var


def adata(x=None, **kwargs):
    obs, var = frames()
    return anndata.AnnData(sp.csr_matrix(FLOATS) if x is None else x, obs=obs, var=var, **kwargs)


def write_zarr(data, path, version):
    with warnings.catch_warnings():  # anndata and zarr: version 2 is to go, consolidated metadata is not in version 3
        warnings.simplefilter("ignore")
        anndata.settings.zarr_write_format = version
        try:
            data.write_zarr(path)
        finally:
            anndata.settings.reset("zarr_write_format")


def write_10x(path, version=3, types=None, dense=DENSE):
    """As Cell Ranger lays it out: genes x cells, columns compressed, so that a column is a cell."""
    matrix = sp.csc_matrix(dense.T.astype(np.int32))
    _, var = frames()
    text = lambda values: np.array(list(values), dtype="S")  # noqa: E731
    with h5py.File(path, "w") as file:
        group = file.create_group("matrix" if version == 3 else "GRCh38")
        group["data"], group["indices"] = matrix.data, matrix.indices.astype(np.int64)
        group["indptr"], group["shape"] = matrix.indptr.astype(np.int64), np.array(matrix.shape, dtype=np.int32)
        group["barcodes"] = text(f"cell{i}" for i in range(dense.shape[0]))
        if version == 2:
            group["genes"], group["gene_names"] = text(var["gene_ids"]), text(var.index)
            return path
        features = group.create_group("features")
        features["id"], features["name"] = text(var["gene_ids"]), text(var.index)
        features["feature_type"] = text(types or ["Gene Expression"] * GENES)
        features["genome"] = text(["GRCh38"] * GENES)
    return path


def write_mtx(folder, names=("matrix.mtx.gz", "features.tsv.gz", "barcodes.tsv.gz"), cells=slice(None), turned=False):
    """As Cell Ranger lays out text: genes x cells, and a line of features.tsv is id, name and type."""
    _, var = frames()
    folder.mkdir(parents=True, exist_ok=True)
    dense, out = DENSE[cells], io.BytesIO()
    scipy.io.mmwrite(out, sp.coo_matrix(dense if turned else dense.T))
    rows = [f"{a}\t{b}\tGene Expression" for a, b in zip(var["gene_ids"], var.index, strict=True)]
    texts = [out.getvalue().decode(), *("\n".join(lines) + "\n" for lines in (rows, frames()[0].index[cells]))]
    for name, text in zip(names, texts, strict=True):
        (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return folder


def written(folder, data):
    data.write_h5ad(folder / "a.h5ad")
    return folder / "a.h5ad"


def h5ad(folder, x=None, **kwargs):
    return written(folder, adata(x, **kwargs))


def backed(folder, x=None):
    return anndata.read_h5ad(h5ad(folder, x), backed="r")


def zarr_store(folder, version, x=None):
    write_zarr(adata(x), folder / "a.zarr", version)
    return folder / "a.zarr"


BESIDE = ("features.tsv", "barcodes.tsv")
FORMATS = {
    "h5ad CSR": lambda folder: h5ad(folder),
    "h5ad CSC": lambda folder: h5ad(folder, sp.csc_matrix(FLOATS)),
    "h5ad dense": lambda folder: h5ad(folder, FLOATS),
    "zarr 2 CSR": lambda folder: zarr_store(folder, 2),
    "zarr 3 CSR": lambda folder: zarr_store(folder, 3),
    "zarr 3 CSC": lambda folder: zarr_store(folder, 3, sp.csc_matrix(FLOATS)),
    "zarr 2 dense": lambda folder: zarr_store(folder, 2, FLOATS),
    "10x 3": lambda folder: write_10x(folder / "a.h5"),
    "10x 2": lambda folder: write_10x(folder / "a.h5", 2),
    "10x folder": lambda folder: write_mtx(folder / "a"),
    "10x folder 2": lambda folder: write_mtx(folder / "a", ("matrix.mtx", "genes.tsv", "barcodes.tsv")),
    "10x GEO": lambda folder: write_mtx(folder / "a", [f"GSM1_{n}.gz" for n in ("matrix.mtx", *BESIDE)]),
    "10x file": lambda folder: write_mtx(folder / "a", ["1_matrix.mtx", *(f"1_{n}" for n in BESIDE)]) / "1_matrix.mtx",
    "10x turned": lambda folder: write_mtx(folder / "a", ("matrix.mtx", *BESIDE), turned=True),
    "10x outs": lambda folder: write_mtx(write_mtx(folder / "filtered_a").with_name("raw_a"), cells=slice(9)).parent,
    "memory CSR": lambda folder: adata(),
    "memory CSR array": lambda folder: adata(sp.csr_array(FLOATS)),
    "memory CSC": lambda folder: adata(sp.csc_matrix(FLOATS)),
    "memory dense": lambda folder: adata(FLOATS),
    "memory view": lambda folder: anndata.concat([adata(), adata()], merge="same", index_unique="-")[:CELLS],
    "backed CSR": lambda folder: backed(folder),
    "backed CSC": lambda folder: backed(folder, sp.csc_matrix(FLOATS)),
    "backed dense": lambda folder: backed(folder, FLOATS),
    "named otherwise": lambda folder: h5ad(folder).rename(folder / "a.data"),
}


def whole(source, size=101):
    cells = source.shape[0]
    blocks = [source.rows(start, min(start + size, cells)) for start in range(0, cells, size)]
    assert {block.dtype for block in blocks} == {np.dtype(np.float32)}
    return sp.vstack(blocks).toarray()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.filterwarnings("ignore:Observation names are not unique")
def test_every_format_gives_the_same_matrix(format, tmp_path):
    with open_source(FORMATS[format](tmp_path)) as source:
        assert np.array_equal(whole(source), DENSE)
        assert np.array_equal(source.rows(17, 19).toarray(), DENSE[17:19])
        assert source.rows(11, 11).shape == (0, GENES)
        assert source.shape == (CELLS, GENES)
        obs, var = frames()
        assert [name.removesuffix("-0") for name in source.names] == obs.index.tolist()
        assert source.genes == var.index.tolist()
        assert source.var["gene_ids"].tolist() == var["gene_ids"].tolist()
        assert source.sparse == ("dense" not in format)
        if "10x" not in format:
            assert source.obs["depth"].tolist() == obs["depth"].tolist()
        with pytest.raises(ValueError, match=f"rows must be within 0 and {CELLS}, got 300 to 308"):
            source.rows(300, 308)


@pytest.mark.parametrize("kind", ["CSR", "dense", "raw"])
def test_a_view_of_a_backed_one_is_read_whole_and_said_so(kind, tmp_path):
    data = adata(FLOATS if kind == "dense" else None)
    data.raw = data.copy()
    data.write_h5ad(tmp_path / "a.h5ad")
    view = anndata.read_h5ad(tmp_path / "a.h5ad", backed="r")[3:214]
    try:
        view.to_memory()
    except AttributeError:
        pytest.skip("this anndata cannot slice sparse matrices on disk with this SciPy (0.12.6 with 1.17)")
    with pytest.warns(UserWarning, match="is a view of a backed one and read whole into memory, 211 cells x 13 genes"):
        source = open_source(view, "raw" if kind == "raw" else None)
    assert np.array_equal(whole(source), DENSE[3:214])
    assert source.names.tolist() == [f"cell{i}" for i in range(3, 214)]


@pytest.mark.parametrize("where", ["memory", "h5ad", "zarr", "backed"])
def test_layers_and_raw(where, tmp_path):
    data = adata(np.log1p(FLOATS), layers={"counts": sp.csr_matrix(FLOATS), "twice": 2 * FLOATS})
    data.raw = data[:, :5].copy()
    data = data[:, 2:7].copy()
    given = data
    if where != "memory":
        given = tmp_path / "a"
        write_zarr(data, given, 3) if where == "zarr" else data.write_h5ad(given)
    if where == "backed":
        given = anndata.read_h5ad(given, backed="r")
    assert np.array_equal(whole(open_source(given, "counts")), DENSE[:, 2:7])
    assert np.array_equal(whole(open_source(given, "twice")), 2 * DENSE[:, 2:7])
    raw = open_source(given, "raw")
    np.testing.assert_array_equal(whole(raw), np.log1p(FLOATS[:, :5]))
    assert raw.genes == ["G0", "G1", "G2", "G3", "G4"]
    assert raw.choices == [None, "counts", "twice", "raw"]
    with pytest.raises(ValueError, match="no layer 'logs'; there are: X .layer=None., 'counts', 'twice', 'raw'"):
        open_source(given, "logs")


def test_a_layer_named_raw_comes_before_raw_itself(tmp_path):
    data = adata(layers={"raw": 3 * FLOATS})
    data.raw = data.copy()
    for given in (data, written(tmp_path, data)):
        assert np.array_equal(whole(open_source(given, "raw")), 3 * DENSE)


def test_without_x(tmp_path):
    obs, var = frames()
    data = anndata.AnnData(obs=obs, var=var, layers={"counts": FLOATS})
    for given in (data, written(tmp_path, data)):
        assert np.array_equal(whole(open_source(given, "counts")), DENSE)
        with pytest.raises(ValueError, match="has no X; there are: 'counts'"):
            open_source(given)


DTYPES = [np.bool_, np.uint8, np.uint16, np.int32, np.int64, np.float32, np.float64]
STORED = [(store, dtype) for store in (np.array, sp.csr_matrix, sp.csc_matrix) for dtype in DTYPES]


@pytest.mark.parametrize(("store", "dtype"), [*STORED, (np.array, np.float16)])  # SciPy has no sparse ones of float16
def test_types_of_values(store, dtype, tmp_path):
    expected = DENSE.astype(dtype)
    source = open_source(h5ad(tmp_path, store(expected)))
    assert source.dtype == dtype
    assert np.array_equal(whole(source), expected.astype(np.float32))


def test_the_matrix_given_is_not_touched():
    """Indices out of order, zeros written out, an entry in two parts: tidy in the block, as it was in the object."""
    data, indices = np.array([2, 3, 0, 1, 4], dtype=np.float32), np.array([4, 1, 2, 3, 3])
    x = sp.csr_matrix((data.copy(), indices.copy(), np.array([0, 3, 5])), (2, 5))
    given = anndata.AnnData(x)
    block = open_source(given).rows(0, 2)
    assert block.toarray().tolist() == [[0, 3, 0, 0, 2], [0, 0, 0, 5, 0]]
    assert block.nnz == 3
    block.data[:] = 7
    assert (given.X.data.tolist(), given.X.indices.tolist()) == (data.tolist(), indices.tolist())
    dense = anndata.AnnData(FLOATS.copy())
    open_source(dense).rows(0, 7).data[:] = 9
    assert np.array_equal(dense.X, DENSE)


def test_no_value_is_read_at_open(tmp_path):
    source = open_source(damaged(h5ad(tmp_path), lambda file: file["X/indices"].__setitem__(3, 1000)))
    assert source.rows(5, 300).shape == (295, GENES)
    with pytest.raises(ValueError, match="a.h5ad: cells 0 to 4 cannot be read: .*indices must be within 0 and 12, one"):
        source.rows(0, 5)


def test_features_that_are_no_genes_are_left_out(tmp_path):
    types = ["Gene Expression"] * 9 + ["Antibody Capture"] * 3 + ["CRISPR Guide Capture"]
    path = write_10x(tmp_path / "a.h5", types=types)
    with pytest.warns(UserWarning, match="no genes are left out: 3 Antibody Capture, 1 CRISPR Guide Capture"):
        source = open_source(path)
    assert np.array_equal(whole(source), DENSE[:, :9])
    assert source.genes == [f"G{i}" for i in range(9)]
    peaks = write_10x(tmp_path / "b.h5", types=["Peaks"] * GENES)
    with pytest.raises(ValueError, match="b.h5 has no features of type 'Gene Expression', it has 'Peaks'"):
        open_source(peaks)
    with pytest.raises(ValueError, match="is a 10x file: it has one matrix and no layer 'raw'"):
        open_source(path, "raw")


def test_samples_in_one_folder_are_stacked_and_told_apart(tmp_path):
    write_mtx(tmp_path / "GSE1" / "s2", cells=slice(100, None))
    write_mtx(tmp_path / "GSE1" / "s1", cells=slice(100))
    write_mtx(tmp_path / "GSE2", ("s1_matrix.mtx", "features.tsv", "s1_barcodes.tsv"), slice(100))
    write_mtx(tmp_path / "GSE2", ("s2_matrix.mtx", "features.tsv", "s2_barcodes.tsv"), slice(100, None))
    for folder in ("GSE1", "GSE2"):
        source = open_source(tmp_path / folder)
        assert np.array_equal(whole(source), DENSE)
        assert source.obs["sample"].tolist() == ["s1"] * 100 + ["s2"] * 207
        assert source.names[100] == "s2_cell100"
    (tmp_path / "GSE2" / "s2_barcodes.tsv").write_text("a\nb\n")
    with pytest.raises(
        ValueError, match="s2_matrix.mtx is 13 x 207, the files beside it have 13 features and 2 barcodes"
    ):
        open_source(tmp_path / "GSE2")
    (tmp_path / "GSE1" / "s1" / "barcodes.tsv.gz").unlink()
    with pytest.raises(ValueError, match="matrix.mtx.gz: beside it must be barcodes.tsv or barcodes.tsv.gz, as 10x"):
        open_source(tmp_path / "GSE1")


def test_folders_of_other_tools(tmp_path):
    """alevin-fry's, of which spliced and ambiguous counts are added; Parse Biosciences'; any one matrix."""
    obs, var = frames()
    alevin, parse = tmp_path / "af_quant" / "alevin", tmp_path / "DGE_filtered"
    alevin.mkdir(parents=True), parse.mkdir()
    scipy.io.mmwrite(alevin / "quants_mat.mtx", sp.coo_matrix(np.hstack([DENSE - DENSE // 2, 5 * DENSE, DENSE // 2])))
    (alevin / "quants_mat_rows.txt").write_text("\n".join(obs.index) + "\n")
    (alevin / "quants_mat_cols.txt").write_text("".join(f"{g}{end}\n" for end in ("", "-U", "-A") for g in var.index))
    for path in (alevin, alevin.parent, alevin / "quants_mat.mtx"):
        with pytest.warns(UserWarning, match="spliced and ambiguous counts are added, unspliced"):
            source = open_source(path)
        assert np.array_equal(whole(source), DENSE)
        assert (source.genes, [*source.names]) == ([*var.index], [*obs.index])
    scipy.io.mmwrite(parse / "count_matrix.mtx", sp.coo_matrix(DENSE))
    genes = pd.DataFrame({"gene_id": var["gene_ids"], "gene_name": var.index, "genome": "hg38"})
    genes.to_csv(parse / "all_genes.csv", index=False)
    pd.DataFrame({"bc_wells": obs.index, "sample": obs["batch"]}).to_csv(parse / "cell_metadata.csv", index=False)
    source = open_source(parse)
    assert np.array_equal(whole(source), DENSE)
    assert (source.genes, source.obs["sample"].tolist()) == ([*var.index], [*obs["batch"]])
    folder = write_mtx(tmp_path / "Velocyto", ("spliced.mtx", "features.tsv", "barcodes.tsv"))
    assert np.array_equal(whole(open_source(folder)), DENSE)
    write_mtx(folder, ("unspliced.mtx", "features.tsv", "barcodes.tsv"))
    with pytest.raises(ValueError, match="has several matrices: give one of 'spliced.mtx', 'unspliced.mtx'"):
        open_source(folder)


def test_a_10x_file_of_two_genomes_is_refused(tmp_path):
    path = damaged(write_10x(tmp_path / "a.h5", 2), lambda file: file.copy("GRCh38", "mm10"))
    with pytest.raises(ValueError, match="several genomes, 'GRCh38', 'mm10'"):
        open_source(path)


def test_anndata_before_07_is_read_with_a_warning(tmp_path):
    """Tables of records for obs and var, and the shape of a sparse matrix in another attribute."""
    path, matrix = tmp_path / "old.h5ad", sp.csr_matrix(FLOATS)
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        group.attrs["h5sparse_format"], group.attrs["h5sparse_shape"] = "csr", matrix.shape
        group["data"], group["indices"], group["indptr"] = matrix.data, matrix.indices, matrix.indptr
        file["obs"] = np.array([(f"cell{i}".encode(), i) for i in range(CELLS)], dtype=[("index", "S9"), ("n", "i4")])
        file["var"] = np.array([(f"G{i}".encode(),) for i in range(GENES)], dtype=[("index", "S9")])
    with pytest.warns(UserWarning, match="old.h5ad is of an anndata before 0.7 and read whole"):
        source = open_source(path)
    assert np.array_equal(whole(source), DENSE)
    assert source.genes[3] == "G3"
    assert source.names[17] == "cell17"


def cut(path, share):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    return path


def hdf5(path, **groups):
    with h5py.File(path, "w") as file:
        for name, value in groups.items():
            if value is None:
                file.create_group(name)
            else:
                file[name] = value
    return path


def bytes_of(path, content):
    path.write_bytes(content)
    return path


def damaged(path, change):
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def replaced(name, make):
    """A change of a part of X."""

    def change(file):
        values = file["X"][name][:]
        del file["X"][name]
        file["X"][name] = make(values)

    return change


def linked(name, link):
    def change(file):
        if name in file:
            del file[name]
        file[name] = link

    return change


def without(name):
    return lambda file: file.__delitem__(name)


def said(name, value):
    return lambda file: file["X"].attrs.__setitem__(name, value)


BAD = {
    "text": (
        lambda f: bytes_of(f / "a.h5ad", b"cell,G1\nc1,3\n"),
        "a.h5ad is no HDF5 file; expected is an .h5ad file, a zarr store of AnnData, or a .h5 file or a folder of 10x",
    ),
    "cut off": (lambda folder: cut(h5ad(folder), 0.7), "a.h5ad: is damaged or cut off"),
    "cut off early": (lambda folder: cut(h5ad(folder), 0.01), "a.h5ad: is damaged or cut off"),
    "empty file": (lambda folder: cut(h5ad(folder), 0), "a.h5ad is no HDF5 file"),
    "of R": (lambda f: bytes_of(f / "a.rds", b"\x1f\x8b"), "a.rds is of R: zellkonverter::writeH5AD makes an .h5ad"),
    "packed": (lambda f: bytes_of(f / "a.h5ad.gz", b"\x1f\x8b\x08\0"), "a.h5ad.gz is packed with gzip: unpack it"),
    "MuData": (lambda f: hdf5(f / "a.h5mu", mod=None, obs=None), "a.h5mu is a MuData of several modalities: write the"),
    "Seurat": (lambda f: hdf5(f / "a.h5Seurat", assays=None, **{"cell.names": DENSE}), "a.h5Seurat is an .h5Seurat"),
    "loom": (lambda f: hdf5(f / "a.loom", matrix=DENSE, row_attrs=None, col_attrs=None), "a.loom is a loom file"),
    "other HDF5": (lambda f: hdf5(f / "a.h5", weights=DENSE), "a.h5 is an HDF5 file with 'weights'; expected is"),
    "empty HDF5": (lambda f: hdf5(f / "a.h5"), "a.h5 is an HDF5 file with nothing in it; expected is"),
    "folder": (
        lambda f: h5ad(f).parent,
        "is a folder, no zarr store, and has no matrix.mtx of 10x: give the folder that has it, or .*h5ad'",
    ),
    "no cells": (lambda f: adata()[:0].copy(), "AnnData has no cells"),
    "no genes": (lambda f: adata()[:, :0].copy(), "AnnData has no genes"),
    "no cells in a file": (lambda f: written(f, adata()[:0].copy()), "a.h5ad has no cells"),
    "no cells of 10x": (lambda f: write_10x(f / "b.h5", dense=DENSE[:0]), "b.h5 has no cells"),
    "wrong shape": (lambda f: damaged(h5ad(f), said("shape", (307, 14))), "X is 307 x 14, it must be 307 x 13"),
    "no file": (lambda f: f / "none.h5ad", "none.h5ad is not there"),
    "no source": (lambda f: DENSE, "source must be an AnnData or the path of a file, got ndarray"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_sources_are_refused(what, tmp_path):
    make, message = BAD[what]
    given = make(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_source(given)


DAMAGE = {  # of links see tests/test_hdf5.py
    "circle": (linked("X", h5py.SoftLink("/X")), "'/X' is a link that leads nowhere or in a circle"),
    "external link": (linked("X", h5py.ExternalLink("no.h5", "/X")), "'/X' is in another file, 'no.h5', which"),
    "unknown encoding": (said("encoding-type", "banana"), "X cannot be read: .*it is said to be 'banana'"),
    "number as encoding": (said("encoding-type", 3), "X cannot be read: .*it is said to be '3'"),
    "encoding of obs": (lambda f: f["obs"].attrs.__setitem__("encoding-type", "x"), "obs or var cannot be read"),
    "no data": (without("X/data"), "X cannot be read: .*it has no data"),
    "no indices": (without("X/indices"), "X cannot be read: .*it has no indices"),
    "no indptr": (without("X/indptr"), "X cannot be read: .*it has no indptr"),
    "no shape": (lambda file: file["X"].attrs.__delitem__("shape"), "its shape must be two numbers.* it is None"),
    "fraction in shape": (said("shape", (307.5, 13)), "shape must be whole numbers, one is 307.5"),
    "short indptr": (replaced("indptr", lambda v: v[:-1]), "X cannot be read: .*307 pointers .*for 307 rows"),
    "fraction in indptr": (replaced("indptr", lambda v: v + (v == v[5]) / 2), "indptr must be whole numbers, one is"),
    "nan in indptr": (replaced("indptr", lambda v: np.where(v == v[5], np.nan, v)), "indptr must be whole .* nan"),
    "indptr of text": (replaced("indptr", lambda v: v.astype("S")), "indptr must be whole numbers, they are of"),
    "indptr in columns": (replaced("indptr", lambda v: v[:, None]), "indptr must be a list of values"),
    "fraction in indices": (replaced("indices", lambda v: v + 0.5), "cells 0 to .*indices must be whole numbers, one"),
    "negative index": (replaced("indices", lambda v: v - 1), "cells 0 to .*indices must be within 0 and .*one is -1"),
    "large index": (replaced("indices", lambda v: v * 400), "cells 0 to .*indices must be within 0 and"),
    "wrong pointers": (replaced("indptr", lambda v: np.append(v[:-1], 1)), "indptr, indices and data do not fit"),
    "short indices": (replaced("indices", lambda v: v[:-1]), "X cannot be read: .*do not fit"),
    "data in columns": (replaced("data", lambda v: np.c_[v, v]), "data must be a list of values"),
    "three dimensions": (linked("X", np.ones((CELLS, GENES, 2))), "X cannot be read: .*its shape is .307, 13, 2."),
    "one dimension": (linked("X", np.ones(CELLS)), "X cannot be read: .*it must be cells x genes"),
    "nothing": (linked("X", h5py.Empty("f")), "X cannot be read: .*it must be cells x genes"),
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("store", [sp.csr_matrix, sp.csc_matrix])
def test_damaged_parts_are_named_with_the_file(what, store, tmp_path):
    change, message = DAMAGE[what]
    if store is sp.csc_matrix and what == "short indptr":
        message = "X cannot be read: .*13 pointers .*for 13 rows"
    path = damaged(h5ad(tmp_path, store(FLOATS)), change)
    with pytest.raises(ValueError, match=f"^{path}: .*{message}") as error, open_source(path) as source:
        source.rows(0, CELLS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("part", ["barcodes", "shape", "features/name"])
def test_a_group_in_place_of_a_list_in_a_10x_file(part, tmp_path):
    path = write_10x(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        del file["matrix"][part]
        file["matrix"].create_group(part)
    with pytest.raises(ValueError, match=f"^{path}: is damaged.*{part.split('/')[-1]} must be a list of values"):
        open_source(path)


def test_what_a_library_says_of_its_own_classes_is_left_out(tmp_path):
    path = damaged(h5ad(tmp_path), lambda file: file["obs/batch/categories"].attrs.update({"encoding-version": "x"}))
    with pytest.raises(ValueError, match="a.h5ad: obs or var cannot be read: .* from h5py.*Dataset"):
        open_source(path)


def test_a_file_that_asks_for_too_much_memory_is_named(tmp_path, monkeypatch):
    def lacking(path, *_):
        raise MemoryError("Unable to allocate 8.00 TiB")

    monkeypatch.setattr("anndata.io.read_elem", lacking)
    with pytest.raises(ValueError, match="a.h5ad asks for more memory than there is: .*Unable to allocate 8.00 TiB"):
        open_source(h5ad(tmp_path))


@pytest.mark.parametrize("store", [sp.csr_matrix, sp.csc_matrix])
def test_whole_numbers_that_are_kept_as_floats_are_read(store, tmp_path):
    path = h5ad(tmp_path, store(FLOATS))
    with h5py.File(path, "r+") as file:
        for part in ("indices", "indptr"):
            replaced(part, lambda values: values.astype(np.float64))(file)
        kind = file["X"].attrs["encoding-type"]
        file["X"].attrs["encoding-type"] = np.bytes_(kind)  # as some writers keep text
        file["X"].attrs["shape"] = (float(CELLS), float(GENES))
    assert np.array_equal(whole(open_source(path)), DENSE)


def test_indices_of_a_matrix_in_memory_are_looked_at():
    given = adata(sp.csc_matrix(FLOATS))
    given.X.indices[7] = CELLS + 5
    with pytest.raises(ValueError, match="AnnData: X cannot be read .*indices must be within 0 and 306, one is 312"):
        open_source(given)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("part", ["data", "indices"])
def test_chunks_that_a_zarr_store_lacks_are_no_zeros(version, part, tmp_path):
    path = zarr_store(tmp_path, version)
    chunks = [file for file in (path / "X" / part).rglob("*") if file.is_file() and file.name.isdigit()]
    chunks[0].unlink()
    with pytest.raises(ValueError, match=f"a.zarr: X cannot be read: .*1 of 1 chunks of {part} are not there: copy it"):
        open_source(path)


@pytest.mark.parametrize("dense", [DENSE[:, :1], 0 * DENSE], ids=["one gene", "no counts"])
def test_chunks_of_zeros_that_zarr_leaves_out(dense, tmp_path):
    obs, var = frames()
    matrix = sp.csr_matrix(dense.astype(np.float32))
    write_zarr(anndata.AnnData(matrix, obs=obs, var=var[: dense.shape[1]]), tmp_path / "a.zarr", 3)
    assert np.array_equal(whole(open_source(tmp_path / "a.zarr")), dense)


def test_damage_within_a_compressed_file_is_named_when_it_is_met(tmp_path):
    path = tmp_path / "a.h5ad"
    adata(FLOATS).write_h5ad(path, compression="gzip")
    with h5py.File(path, "r") as file:
        place = file["X"].id.get_chunk_info(0)
    with open(path, "r+b") as file:
        file.seek(place.byte_offset)
        file.write(os.urandom(place.size))
    with pytest.raises(ValueError, match="a.h5ad: cells 0 to 6 cannot be read: the file is damaged or cut off"):
        open_source(path).rows(0, 7)


def test_without_the_packages_it_says_how_to_install_them(tmp_path, monkeypatch):
    path = h5ad(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"reading cells needs h5py, which is not installed: .*\[tables\]"):
        open_source(path)


def test_the_package_does_not_import_what_it_may_not_need():
    """Nothing of anndata, h5py, zarr or scanpy at the top of a module."""
    tables = Path(formats.__file__).parent
    for module in (*tables.glob("*.py"), *tables.with_name("cells").glob("*.py")):
        lines = module.read_text().splitlines()
        top = [line for line in lines if line.startswith(("import ", "from "))]
        assert not any(word in line for line in top for word in ("anndata", "h5py", "zarr", "scanpy")), module
