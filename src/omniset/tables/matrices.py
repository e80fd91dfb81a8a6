"""One matrix of cells in one place (AnnData, .h5ad, zarr, 10x Genomics' .h5 and folders), read by blocks of rows.

Known imperfections: column-compressed matrices (CSC), folders of 10x, and files as anndata wrote them before 0.7, are
read whole into memory. Dense matrices chunked by columns are read slowly.
"""

from __future__ import annotations

import importlib
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from omniset.core.bounded import most_of, require_file
from omniset.lazy import needs
from omniset.tables.files import TextFile, listed, tidy
from omniset.tables.hdf5 import check_hdf5

DAMAGED = "the file is damaged or cut off"
EXPECTED = "an .h5ad file, a zarr store of AnnData, or a .h5 file or a folder of 10x Genomics' Cell Ranger"
OTHERS = {  # by how names end
    (".csv", ".tsv", ".txt"): "a table: write anndata.io.read_csv(path, ',', True), .T where genes are rows, as .h5ad",
    (".parquet", ".xlsx", ".feather"): (
        "a table: pandas, with cells as index, and anndata.AnnData(table), .T where genes are rows, and write_h5ad "
        "make an .h5ad"
    ),
    (".rds", ".rda", ".rdata", ".qs"): (
        "of R: zellkonverter::writeH5AD makes an .h5ad of as.SingleCellExperiment(object)"
    ),
    (".zip", ".tar", ".tgz"): "an archive: unpack it, and give the folder or the file in it",
}
GENES = {"gene expression", "gex", "rna", "mrna", "gene"}  # types of features, as 10x and others have it
NO_GENES = re.compile(  # rows of HTSeq, antibodies of BioLegend, and controls of MERSCOPE, CosMx and Xenium
    r"__(no_feature|ambiguous|too_low_aQual|not_aligned|alignment_not_unique)|.*[_-]TotalSeq[_-]?[A-D]|"
    r"(?i:blank[_-]?\d+|neg(control)?(probe|prb|codeword)[_-]?\w+|systemcontrol\d+|unassignedcodeword_\d+)"
)
MTX = re.compile(
    r"((.*?)[._-]?)(?:matrix|cells_x_genes)\.mtx(?:\.gz)?", re.IGNORECASE
)  # with what is before, the sample
# Beside it: of 10x, kb-python, alevin-fry and Parse Biosciences.
ROWS = ("features.tsv", "genes.tsv", "cells_x_genes.genes.txt", "quants_mat_cols.txt", "all_genes.csv")
COLUMNS = ("barcodes.tsv", "cells_x_genes.barcodes.txt", "quants_mat_rows.txt", "cell_metadata.csv")


class Matrix(ABC):
    """What rows are read from. All that is needed to know is known before any value is read."""

    shape: tuple[int, int]
    dtype: np.dtype
    sparse: bool
    stored: int  # numbers that there are: all of a dense matrix

    @abstractmethod
    def rows(self, start: int, stop: int) -> sp.csr_array: ...


@dataclass
class Opened:
    """What matrices are read from."""

    name: str  # its path as it was given, or "AnnData"
    origin: Any = None  # what `open_source` opens it by
    root: Any = None  # of a file or a store
    close: Callable[[], None] = lambda: None  # closes the file, if we opened one


class Source:
    """One matrix of cells, its names, and what is known of its cells and genes. No value is read before `rows`.

    Attributes:
        name: Of what it is read from, see `Opened`.
        layer: Which matrix: None is X.
        obs: Of each cell; its index are the cells' names.
        var: Of each gene; its index are the genes' names.
        names, genes: The cells' and the genes' names.
        shape: Cells, genes.
        dtype: Of the values as they are stored.
        sparse: Whether zeros are left out there.
        nbytes: Of the matrix, were it in memory as `rows` gives it.
        choices: All values of `layer` that there are: None, names of layers, "raw".
    """

    def __init__(
        self,
        opened: Opened,
        obs: pd.DataFrame,
        var: pd.DataFrame,
        matrix: Matrix,
        *,
        layer: str | None = None,
        choices: list[str | None] | None = None,
    ) -> None:
        self.name, self.layer, self.choices = opened.name, layer, choices or [None]
        self._matrix, self._opened = matrix, opened
        self._keep: np.ndarray | None = None
        what = f"{self.name}: {spelled(layer)}"
        if matrix.shape != (len(obs), len(var)):
            shape = " x ".join(map(str, matrix.shape))
            raise ValueError(f"{what} is {shape}, it must be {len(obs)} x {len(var)}: cells x genes")
        if matrix.dtype.kind not in "biuf":
            raise ValueError(f"{what} must be of numbers, it is of {matrix.dtype}")
        self.obs, self.var = obs, var
        for number, things in ((len(self.obs), "cells"), (len(self.var), "genes")):
            if not number:
                raise ValueError(f"{self.name} has no {things}: there is nothing to read")
        self.obs.index, self.var.index = self.obs.index.astype(str), self.var.index.astype(str)
        self.names: pd.Index = self.obs.index
        self.genes: list[str] = self.var.index.tolist()
        self.shape = (len(self.obs), len(self.var))
        self.dtype, self.sparse = matrix.dtype, matrix.sparse
        self.nbytes = 8 * matrix.stored + 8 * len(self.obs)

    def rows(self, start: int, stop: int) -> sp.csr_array:
        """Cells start, ..., stop - 1 as float32, their values as they are stored; zeros left out, genes in order.

        Raises:
            ValueError: They cannot be read.
        """
        if not 0 <= start <= stop <= len(self.obs):
            raise ValueError(f"rows must be within 0 and {len(self.obs)}, got {start} to {stop}")
        with with_our_words(self.name, f"cells {start} to {stop - 1} cannot be read: {DAMAGED}"):
            block = self._matrix.rows(start, stop)
        if self._keep is not None:
            block = block[:, self._keep]
        block.sum_duplicates()
        block.eliminate_zeros()
        return block

    def of_genes(self, strict: bool = False) -> Source:
        """Itself, without features that are no genes, such as antibodies, of which there is a warning.

        Raises:
            ValueError: It must be `strict`, and none is said to be a gene.
        """
        column = next((name for name in ("feature_types", "feature_type", "modality") if name in self.var), None)
        if column is None:
            none = [NO_GENES.fullmatch(name) and "by their names" for name in self.genes]
            kinds = pd.Series(none, self.var.index, dtype=object)
        else:
            kinds = self.var[column].astype(object)
        plain = kinds.astype(str).str.replace(r"[\W_]+", " ", regex=True).str.strip().str.casefold()
        genes = (plain.isin(GENES) | kinds.isna()).to_numpy()
        if not genes.any() and strict:
            has = listed([str(kind) for kind in kinds.unique()])
            raise ValueError(f"{self.name} has no features of type 'Gene Expression', it has {has}")
        if genes.any() and not genes.all():
            others = ", ".join(f"{number:,} {kind}" for kind, number in kinds[~genes].value_counts().items())
            warnings.warn(f"{self.name}: features that are no genes are left out: {others}", stacklevel=3)
            self._keep, self.var = np.flatnonzero(genes), self.var[genes]
            self.genes, self.shape = self.var.index.tolist(), (len(self.obs), int(genes.sum()))
        return self

    def other(self, layer: str | None) -> Source:
        """Another matrix of the same cells."""
        return open_source(self._opened.origin, layer)

    def close(self) -> None:
        """Close the file, if we opened one."""
        self._opened.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_source(source: Any, layer: str | None = None) -> Source:
    """Open one matrix of cells.

    Args:
        source: An AnnData, in memory or backed, or the path of an .h5ad file, a zarr store, a 10x .h5 file, a folder of
            matrix.mtx, features.tsv and barcodes.tsv, or such a matrix.mtx. Content tells which of them an HDF5 file
            is, not its name.
        layer: None: X. "raw": that of `.raw`, unless there is a layer of that name. "obsm/X_pca": of a file, what is
            known of each cell under that name, its columns called X_pca_1 and so on. Else the layer.

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: Of another format, cut off or damaged; no such layer; no cells, no genes.
        ImportError: A package that reads the format is not installed.
    """
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if not path.exists():
            raise FileNotFoundError(f"{source} is not there")
        if samples := _samples(path):
            return _open_mtx(path, samples, layer)
        return _open_folder(path, layer) if path.is_dir() else _open_file(path, layer)
    if isinstance(source, needed("anndata").AnnData):
        return _open_anndata(source, "AnnData", layer)
    raise ValueError(f"source must be an AnnData or the path of a file, got {type(source).__name__}")


def needed(module: str, what: str = "reading cells") -> Any:
    """Import what few need. Where it is not installed, an ImportError says how to."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(needs(what, module)) from error


# What matrices are kept in


class Compressed(Matrix):
    """Rows compressed (CSR), on disk or in memory: row pointers are held, the rest is read on demand."""

    sparse = True
    axis = 0  # that is compressed

    def __init__(self, data: Any, indices: Any, indptr: Any, shape: tuple[int, int]) -> None:
        self.shape, self.dtype, self.stored = shape, np.dtype(data.dtype), int(data.shape[0])
        self._data, self._indices = data, indices
        self._indptr = pointers(indptr, shape[self.axis], self.stored, int(indices.shape[0]))

    def rows(self, start: int, stop: int) -> sp.csr_array:
        first, last = int(self._indptr[start]), int(self._indptr[stop])
        data = single(self._data[first:last])
        indices = places(self._indices[first:last], self.shape[1])
        return sp.csr_array(
            (data, indices.astype(np.int32), self._indptr[start : stop + 1] - first), (stop - start, self.shape[1])
        )


class Sliced(Matrix):
    """An array, in memory or on disk, or what can be sliced as one."""

    sparse = False

    def __init__(self, array: Any, shape: tuple[int, int]) -> None:
        self.shape, self.dtype, self.stored = shape, np.dtype(array.dtype), shape[0] * shape[1]
        self._array = array

    def rows(self, start: int, stop: int) -> sp.csr_array:
        block = self._array[start:stop]
        if hasattr(block, "compute"):  # dask
            block = block.compute()
        if sp.issparse(block):
            block = sp.csr_array(block)
            return sp.csr_array((single(block.data), block.indices.copy(), block.indptr.copy()), block.shape)
        return sp.csr_array(single(block))


class Turned(Compressed):
    """Columns compressed (CSC) on disk: read whole, and turned into rows, at the first read."""

    axis = 1

    def rows(self, start: int, stop: int) -> sp.csr_array:
        return self._turned.rows(start, stop)

    @cached_property
    def _turned(self) -> Compressed:
        indices = places(self._indices[:], self.shape[0])
        held = sp.csc_array((single(self._data[:]), indices, self._indptr), self.shape).tocsr()
        return Compressed(held.data, held.indices, held.indptr, self.shape)


def single(values: Any) -> np.ndarray:
    """A copy as float32; what is too large for it is infinite."""
    with np.errstate(over="ignore"):
        return np.array(values, dtype=np.float32)


def pointers(indptr: Any, rows: int, data: int, indices: int) -> np.ndarray:
    """Row pointers, held in memory.

    Raises:
        ValueError: They do not fit the rest.
    """
    held = whole(indptr[:], "indptr")
    if len(held) != rows + 1 or held[0] or held[-1] != data or indices != data or (np.diff(held) < 0).any():
        raise ValueError(
            f"indptr, indices and data do not fit: {len(held)} pointers to {held[-1] if len(held) else 0} values for "
            f"{rows} rows, {indices} indices, {data} values"
        )
    return held


def places(indices: Any, width: int) -> np.ndarray:
    """Indices, none of them outside of the matrix."""
    held = whole(indices, "indices")
    if len(held) and (held.min() < 0 or held.max() >= width):
        wrong = held.min() if held.min() < 0 else held.max()
        raise ValueError(f"indices must be within 0 and {width - 1}, one is {wrong}")
    return held


def whole(values: Any, what: str) -> np.ndarray:
    """A copy as int64, in which no fraction is cut off. Whole numbers that are kept as floats are accepted."""
    held = np.asarray(values)
    if held.dtype.kind not in "iuf":
        raise ValueError(f"{what} must be whole numbers, they are of {held.dtype}")
    if held.dtype.kind == "f":
        wrong = ~np.isfinite(held) | (held != np.rint(held))
        if wrong.any():
            raise ValueError(f"{what} must be whole numbers, one is {held[wrong][0]:g}")
    return held.astype(np.int64)


# Files and objects


def _open_anndata(adata: Any, name: str, layer: str | None) -> Source:
    if adata.isbacked and adata.is_view:
        # anndata has no views of backed views, so there is no way to read one by blocks.
        warnings.warn(
            f"{name} is a view of a backed one and read whole into memory, {adata.n_obs:,} cells x {adata.n_vars:,} "
            "genes: writing it to a file of its own avoids this",
            stacklevel=3,
        )
        with with_our_words(name, "cannot be read as a view of a backed one: write it to a file of its own"):
            adata = adata.to_memory()
    choices = _choices(adata.X is not None, list(adata.layers), adata.raw is not None)
    kind = _kind(name, layer, choices, list(adata.layers))
    var = adata.raw.var if kind == "raw" else adata.var
    x = adata.raw.X if kind == "raw" else adata.X if kind == "X" else adata.layers[layer]
    with with_our_words(name, f"{spelled(layer)} cannot be read"):
        matrix = _matrix(x)
    return Source(Opened(name, adata), adata.obs.copy(), var.copy(), matrix, layer=layer, choices=choices)


def _open_folder(path: Path, layer: str | None) -> Source:
    if not any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zattrs", ".zmetadata")):
        raise ValueError(
            f"{path} is a folder, no zarr store, and has no matrix.mtx of 10x: give the folder that has it, or the "
            f"files, as '{path}/*.h5ad'"
        )
    zarr = needed("zarr")
    with with_our_words(str(path), "is no zarr store that can be read"):
        root = zarr.open_group(str(path), mode="r")
        return _open_store(Opened(str(path), path, root), layer)


def _open_file(path: Path, layer: str | None) -> Source:
    h5py = needed("h5py")
    name = str(path)
    require_file(path)
    if not h5py.is_hdf5(path):
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        what = "packed with gzip: unpack it" if packed else "no HDF5 file"
        for endings, other in OTHERS.items():
            what = other if {suffix.lower() for suffix in path.suffixes}.intersection(endings) else what
        raise ValueError(f"{name} is {what}; expected is {EXPECTED}")
    check_hdf5(path)
    with with_our_words(name, "is damaged or cut off: copy it again"):
        root = h5py.File(path, "r")
    try:
        with with_our_words(name, "is damaged or cut off: copy it again"):
            kind = _kind_of_file(name, root)
            if kind == "anndata":
                if isinstance(_part(name, root, "obs"), h5py.Dataset):
                    root.close()
                    return _open_old(path, layer)
                return _open_store(Opened(name, path, root, root.close), layer)
            return _open_10x(Opened(name, path, root, root.close), kind, layer)
    except BaseException:
        root.close()
        raise


def _kind_of_file(name: str, root: Any) -> str:
    """What an HDF5 file is: "anndata", or the group of a 10x matrix."""
    if "mod" in root:
        raise ValueError(f"{name} is a MuData of several modalities: write the one with genes to an .h5ad file")
    if "obs" in root and "var" in root:
        return "anndata"
    if "assays" in root and "cell.names" in root:
        raise ValueError(f"{name} is an .h5Seurat file: SeuratDisk::Convert(path, dest = 'h5ad') makes an .h5ad of it")
    if "row_attrs" in root and "col_attrs" in root:
        raise ValueError(f"{name} is a loom file: anndata.io.read_loom (with loompy) reads it, write it as .h5ad")
    groups = [key for key in root if {"barcodes", "data", "indices", "indptr", "shape"} <= _keys(root[key])]
    if len(groups) > 1:
        raise ValueError(f"{name} has matrices of several genomes, {listed(groups)}: write the one wanted as .h5ad")
    if not groups or not {"features", "gene_names", "genes"} & _keys(root[groups[0]]):
        raise ValueError(f"{name} is an HDF5 file with {listed(list(root)) or 'nothing in it'}; expected is {EXPECTED}")
    return groups[0]


def _open_store(opened: Opened, layer: str | None) -> Source:
    """AnnData on disk, HDF5 or zarr."""
    name, root, read_elem = opened.name, opened.root, needed("anndata.io").read_elem
    if not _keys(root) >= {"obs", "var"}:
        raise ValueError(f"{name} has no obs and var, it has {listed(sorted(_keys(root)))}; expected is {EXPECTED}")
    if layer is not None and layer.startswith("obsm/"):
        return _open_obsm(opened, layer)
    layers = sorted(_keys(_part(name, root, "layers"))) if "layers" in root else []
    raw = "raw" in root and "X" in _keys(_part(name, root, "raw"))
    choices = _choices("X" in root and attribute(_part(name, root, "X"), "encoding-type") != "null", layers, raw)
    kind = _kind(name, layer, choices, layers)
    where = {"X": "X", "raw": "raw/X", "layer": f"layers/{layer}"}[kind]
    with with_our_words(name, "obs or var cannot be read: the file is damaged, or of a newer anndata than this one"):
        obs, var = read_elem(root["obs"]), read_elem(root["raw/var" if kind == "raw" else "var"])
    with with_our_words(name, f"{spelled(layer)} cannot be read: {DAMAGED}"):
        matrix = _matrix(root[where])
    return Source(opened, obs, var, matrix, layer=layer, choices=choices)


def _open_obsm(opened: Opened, layer: str) -> Source:
    name, root, key = opened.name, opened.root, layer.removeprefix("obsm/")
    there = sorted(_keys(_part(name, root, "obsm"))) if "obsm" in root else []
    if key not in there:
        raise ValueError(f"{name} has no {key!r} in obsm, it has {listed(there) or 'nothing'}")
    with with_our_words(name, "obs cannot be read: the file is damaged, or of a newer anndata than this one"):
        obs = needed("anndata.io").read_elem(root["obs"])
    with with_our_words(name, f"{layer} cannot be read: {DAMAGED}"):
        frame = attribute(root[layer], "encoding-type") == "dataframe"  # as cell2location has it
        held = needed("anndata.io").read_elem(root[layer]) if frame else root[layer]
        matrix = _matrix(held.to_numpy() if frame else held)
    names = held.columns if frame else [f"{key}_{number + 1}" for number in range(matrix.shape[1])]
    var = pd.DataFrame(index=pd.Index(names))
    return Source(opened, obs, var, matrix, layer=layer)


def _open_old(path: Path, layer: str | None) -> Source:
    """As anndata wrote before 0.7: obs and var are tables of records."""
    warnings.warn(
        f"{path} is of an anndata before 0.7 and read whole into memory: writing it again avoids this", stacklevel=2
    )
    with warnings.catch_warnings(), with_our_words(str(path), "is of an old format that anndata cannot read"):
        warnings.simplefilter("ignore")  # anndata's own words on the old format
        adata = needed("anndata").read_h5ad(path)
    return _open_anndata(adata, str(path), layer)


def _open_10x(opened: Opened, group: str, layer: str | None) -> Source:
    """10x Genomics' feature-barcode matrix, of Cell Ranger 2 or later: compressed columns, and a column is a cell."""
    name, held = opened.name, opened.root[group]
    if layer is not None:
        raise ValueError(f"{name} is a 10x file: it has one matrix and no layer {layer!r}")
    genes, cells = (int(number) for number in whole(_list(held, "shape")[:], "shape"))
    if "features" in held:
        columns = {"gene_ids": "id", "feature_types": "feature_type", "genome": "genome"}
        features = held["features"]
        var = {column: _text(features, key) for column, key in columns.items() if key in _keys(features)}
        index = _text(features, "name")
    else:
        var, index = {"gene_ids": _text(held, "genes")}, _text(held, "gene_names")
    obs = pd.DataFrame(index=pd.Index(_text(held, "barcodes")))
    matrix = Compressed(*_compressed_parts(held), (cells, genes))
    return Source(opened, obs, pd.DataFrame(var, index=pd.Index(index)), matrix).of_genes(strict=True)


def _samples(path: Path) -> dict[str, Path]:
    """Matrices as 10x writes text, by what their samples are called: a file's, a folder's, or of the folders in it."""
    if path.is_file():
        return {"": path} if path.name.lower().endswith((".mtx", ".mtx.gz")) else {}
    inside = {found[2]: one for one in sorted(path.iterdir(), reverse=True) if (found := MTX.fullmatch(one.name))}
    for one in sorted(path.glob("*/*.mtx*"), reverse=True) if not inside else []:
        if found := MTX.fullmatch(one.name):
            inside[f"{one.parent.name} {found[2]}".strip()] = one
    others = sorted(path.glob("*.mtx*")) or sorted(path.glob("*/*.mtx*"))  # of any name, where there is but one
    if not inside and len(others) > 1:
        raise ValueError(
            f"{path} has several matrices: give one of {listed([str(one.relative_to(path)) for one in others])}"
        )
    if others and not inside:
        return {"": others[0]}
    twins = {name for name in inside if "raw" in name and name.replace("raw", "filtered") in inside}
    return {name: inside[name] for name in sorted(inside) if name not in twins}


def _open_mtx(path: Path, samples: dict[str, Path], layer: str | None) -> Source:
    """Of 10x Genomics, or kb-python; several samples are told apart by the column `sample` of obs."""
    if layer is not None:
        key = layer.removeprefix("obsm/")
        what = f"layer {layer!r}" if key == layer else f"{key!r} in obsm"
        raise ValueError(f"{path} has no {what}: as 10x writes it, it has one matrix")
    matrices, tables, known = zip(*map(_read_mtx, samples.values()), strict=True)
    for sample, var in zip(samples, tables, strict=True):
        if not var.equals(tables[0]):
            where = "" if next(iter(samples.values())).parent == path else "*/"
            raise ValueError(
                f"{path}: {sample} has other features than {next(iter(samples))}: give the matrices one by one, as in "
                f"'{path}/{where}*.mtx*'"
            )
    several = len(samples) > 1
    cells = [obs.set_index(f"{s}_" + obs.index).assign(sample=s) for s, obs in zip(samples, known, strict=True)]
    matrix = _matrix(sp.csr_array(sp.vstack(matrices, format="csr")))
    obs = pd.concat(cells) if several else known[0]
    return Source(Opened(str(path), path), obs, tables[0], matrix).of_genes(strict=True)


def _read_mtx(path: Path) -> tuple[sp.csr_array, pd.DataFrame, pd.DataFrame]:
    """Cells x features, the features, and the cells, out of a file and what is beside it."""
    rows, columns = _beside(path, ROWS), _beside(path, COLUMNS)
    with with_our_words(str(path), "is damaged or cut off: copy it again"):
        *shape, stored = needed("scipy.io").mminfo(path)[:3]
        if 4 * stored > most_of(path.stat().st_size):
            raise ValueError(f"it claims {stored:,} values, more than it can hold")
        titled = [len(lines) - 1 in shape and len(lines) not in shape for lines in (rows, columns)]
        heads = [lines.pop(0) if title else [] for lines, title in zip((rows, columns), titled, strict=True)]
        turned = shape == [len(rows), len(columns)]  # genes x cells, as 10x has it
        if not turned and shape != [len(columns), len(rows)]:
            raise ValueError(
                f"{path} is {shape[0]:,} x {shape[1]:,}, the files beside it have {len(rows):,} features and "
                f"{len(columns):,} barcodes: they are of another matrix, or cut off"
            )
        matrix = needed("scipy.io").mmread(path)
    matrix = sp.csr_array(matrix.T if turned else matrix)
    width = min(map(len, rows))
    kinds = ("gene_ids", "", "genome" if "genome" in heads[0] else "feature_types")[:width]
    parts = {name: [row[i] for row in rows] for i, name in enumerate(kinds)}
    index = parts.pop("", parts["gene_ids"])
    third = len(index) // 3
    if third and index[third:] == [f"{name}{end}" for end in ("-U", "-A") for name in index[:third]]:
        warnings.warn(f"{path}: spliced and ambiguous counts are added, unspliced (-U) are left out", stacklevel=4)
        matrix, index = sp.csr_array(matrix[:, :third] + matrix[:, 2 * third :]), index[:third]
        parts = {"gene_ids": index}
    known = {title: [cell[at] for cell in columns] for at, title in enumerate(heads[1])}
    obs = pd.DataFrame(dict([*known.items()][1:]), index=pd.Index([cell[0] for cell in columns]))
    return matrix, pd.DataFrame(parts, index=pd.Index(index)), obs


def _beside(path: Path, names: tuple[str, ...]) -> list[list[str]]:
    """Lines of a file beside a matrix: of the same sample, or the only one for all samples."""
    found = MTX.fullmatch(path.name)
    before = found[1] if found else ""
    there = [path.with_name(f"{before}{name}{packed}") for name in names for packed in ("", ".gz")]
    shared = [one for name in names for one in sorted(path.parent.glob(f"*{name}*"))]
    some = [one for one in there if one.is_file()] or (shared if len(shared) == 1 else [])
    if not some:
        raise ValueError(f"{path}: beside it must be {before}{names[0]} or {before}{names[0]}.gz, as 10x writes them")
    separator = "," if ".csv" in some[0].suffixes else "\t"
    lines = ([entry.strip('" ') for entry in line.split(separator)] for _, line in TextFile(some[0]).lines())
    return [line for line in lines if line[0]]


def _matrix(x: Any) -> Matrix:
    """What to read rows from: a matrix or array in memory, an array or group of HDF5 or zarr, AnnData's own on disk."""
    if hasattr(x, "group"):
        x = x.group
    if sp.issparse(x):
        if x.format == "csc":
            places(x.indices, x.shape[0])  # SciPy turns it without a look at them
        held = x if x.format == "csr" else x.tocsr()
        return Compressed(held.data, held.indices, held.indptr, held.shape)
    kind = attribute(x, "encoding-type") or attribute(x, "h5sparse_format")
    if hasattr(x, "shape"):
        if kind not in ("", "array"):
            raise ValueError(f"it is an array that is said to be {kind!r}, which is not known")
        if len(x.shape or ()) != 2:
            raise ValueError(f"it must be cells x genes, its shape is {x.shape}")
        return Sliced(x, (int(x.shape[0]), int(x.shape[1])))
    if kind not in ("csr_matrix", "csc_matrix", "csr", "csc"):
        raise ValueError(f"it must be an array, CSR or CSC, it is said to be {kind!r}")
    given = x.attrs.get("shape", x.attrs.get("h5sparse_shape"))
    shape = np.zeros(0) if given is None else whole(given, "shape")
    if shape.shape != (2,) or (shape < 0).any():
        raise ValueError(f"its shape must be two numbers, cells and genes, it is {given}")
    rows, columns = int(shape[0]), int(shape[1])
    if kind.startswith("csr"):
        return Compressed(*_compressed_parts(x), (rows, columns))
    return Turned(*_compressed_parts(x), (rows, columns))


def _compressed_parts(group: Any) -> tuple[Any, Any, Any]:
    parts = {part: _list(group, part) for part in ("data", "indices", "indptr")}
    if parts["data"].shape[0] >= parts["indptr"].shape[0]:  # else all may well be of the first gene, which is number 0
        for part in ("data", "indices"):
            _all_there(parts[part], part)
    return parts["data"], parts["indices"], parts["indptr"]


def _all_there(held: Any, part: str) -> None:
    """A chunk that is not found is zeros to zarr, and here are none."""
    lacking = getattr(held, "nchunks", 0) - getattr(held, "nchunks_initialized", 0)
    if lacking > 0:
        raise ValueError(f"{lacking} of {held.nchunks} chunks of {part} are not there: copy it again")


def attribute(held: Any, name: str) -> str:
    """An attribute as text, which some writers keep as bytes or as a list of one. Empty where there is none."""
    value = np.asarray(getattr(held, "attrs", {}).get(name, "")).ravel()
    first = value[0] if len(value) == 1 else ""
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)


def _choices(x: bool, layers: list[str], raw: bool) -> list[str | None]:
    first: list[str | None] = [None] if x else []
    return first + [*filter(None, layers)] + (["raw"] if raw and "raw" not in layers else [])  # anndata 0.13: X is None


def _kind(name: str, layer: str | None, choices: list[str | None], layers: list[str]) -> str:
    if layer not in choices:
        known = ", ".join("X (layer=None)" if choice is None else repr(choice) for choice in choices) or "none at all"
        raise ValueError(f"{name} has no {spelled(layer)}; there are: {known}")
    return "X" if layer is None else "layer" if layer in layers else "raw"


def spelled(layer: str | None) -> str:
    """How messages call a matrix."""
    return "X" if layer is None else f"layer {layer!r}"


def _keys(group: Any) -> set[str]:
    return set(group.keys()) if hasattr(group, "keys") else set()


def _list(group: Any, key: str) -> Any:
    if key not in _keys(group):
        raise ValueError(f"it has no {key}")
    values = group[key]
    if len(getattr(values, "shape", None) or ()) != 1:
        raise ValueError(f"{key} must be a list of values")
    return values


def _text(group: Any, key: str) -> list[str]:
    return [value.decode() if isinstance(value, bytes) else str(value) for value in _list(group, key)[:]]


def _part(name: str, root: Any, key: str) -> Any:
    with with_our_words(name, f"{key} cannot be read: {DAMAGED}, or it is a link that leads nowhere"):
        return root[key]


@contextmanager
def with_our_words(name: str, message: str) -> Iterator[None]:
    """Errors of HDF5, zarr and anndata, which are of many kinds, in our words. Ours begin with the name and stay."""
    try:
        yield
    except ImportError:
        raise
    except MemoryError as error:
        raise ValueError(
            f"{name} asks for more memory than there is: it is damaged, or too large for this machine "
            f"({tidy(str(error))})"
        ) from error
    except Exception as error:
        if str(error).startswith(name) or (isinstance(error, OSError) and error.filename is not None):
            raise
        raise ValueError(f"{name}: {message} ({tidy(str(error))})") from error
