"""Sets of cells out of AnnData, .h5ad or zarr: a set is the cells that one value of a column of obs has.

Cells of a set that are not together are copied to a file without a name, 8 bytes for each number that is not 0; what
is in memory is 20 bytes a cell, obs, and the rows that are asked for.

Known imperfection: the principal components of two files are those of one space only where they were computed together.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int
from torch import Tensor

from omniset.core.disk import MEMORY, Scratch
from omniset.core.stored import StoredSet, once
from omniset.tables.files import Chunk, Origin, listed
from omniset.tables.genes import canonical, gene_names
from omniset.tables.labels import as_labels
from omniset.tables.matrices import Source, open_source, spelled
from omniset.tables.stored import FileRows, StoredSets

PREFERRED = ("X_omniset", "X_pca")  # of obsm, where nothing is said
TOTAL = 1e4  # counts of a cell, after scaling
RECORD = np.dtype([("column", "<i4"), ("value", "<f4")])
FIRST = 100  # cells that tell whether a matrix is of counts
BLOCK = 1 << 25  # bytes of a matrix that are copied at a time


class _Names(Origin):
    """Where a cell is: `nth` counts them set by set."""

    def __init__(self, path: Path, source: Source, order: Int[np.ndarray, " cells"]) -> None:
        self.path, self.columns = path, [str(column) for column in source.obs.columns]
        self._names, self._order = source.names, order

    def where(self, row: int) -> str:
        return f"cell {str(self._names[row])!r}"

    def nth(self, number: int) -> int:
        return int(self._order[number])


class _Cells(FileRows):
    """Rows of a matrix in another order.

    Args:
        counts: Take log(1 + 1e4 c / sum of c over all columns) in place of each count c.
        order: Row i is row order[i] of the matrix.
    """

    def __init__(
        self,
        source: Source,
        columns: Int[np.ndarray, " features"],
        counts: bool,
        order: Int[np.ndarray, " cells"],
        folder: str | Path | None,
    ) -> None:
        super().__init__(len(order), len(columns))
        self._source, self._counts, self._order = source, counts, order
        self._columns = None if np.array_equal(columns, np.arange(source.shape[1])) else columns
        self._together = bool((order == np.arange(len(order))).all())
        self._folder = folder
        self._scratch: Scratch | None = None

    def _read(self, start: int, stop: int) -> Float[Tensor, "rows dim"]:
        if self._together:
            return torch.from_numpy(self._block(start, stop).toarray())
        if self._scratch is None:
            self._scratch = self._copy()
        rows = self._order[start:stop]
        first, length = self._first[rows], self._length[rows]
        out = np.zeros((stop - start, self.shape[1]), dtype=np.float32)
        cuts = np.flatnonzero(first[1:] != first[:-1] + length[:-1]) + 1  # between rows that lie apart
        for part in np.split(np.arange(stop - start), cuts) if stop > start else []:
            size = int(length[part].sum())
            held = self._scratch.read(int(first[part[0]]) * RECORD.itemsize, size * RECORD.itemsize).numpy()
            records = held.view(RECORD)
            out[np.repeat(part, length[part]), records["column"]] = records["value"]
        return torch.from_numpy(out)

    def _copy(self) -> Scratch:
        scratch = Scratch("the copy of the cells on disk", self._folder, "Choose a folder with more room", MEMORY)
        cells = len(self._order)
        self._first, self._length = np.zeros((2, cells), dtype=np.int64)
        place = np.empty(cells, dtype=np.int64)
        place[self._order] = np.arange(cells)
        size, written = max(BLOCK * cells // max(self._source.nbytes, 1), 1), 0
        for start in range(0, cells, size):
            block = self._block(start, min(start + size, cells))
            rows = np.argsort(place[start : start + size])
            block = sp.csr_array(block[rows])
            records = np.empty(block.nnz, dtype=RECORD)
            records["column"], records["value"] = block.indices, block.data
            scratch.write(written * RECORD.itemsize, records.view(np.uint8).data)
            self._first[start + rows] = written + block.indptr[:-1]
            self._length[start + rows] = np.diff(block.indptr)
            written += block.nnz
        return scratch

    def _block(self, start: int, stop: int) -> sp.csr_array:
        block = self._source.rows(start, stop)
        bad = ~np.isfinite(block.data)
        bound = "it must be finite and at most 3.4e38"
        if self._counts:
            bad |= (block.data < 0) | (block.data != np.rint(block.data))
            bound = "it must be a count: a whole number that is not below 0; --use_rep X takes numbers as they are"
        if bad.any():
            at = int(bad.argmax())
            cell = str(self._source.names[start + int(np.searchsorted(block.indptr, at, side="right")) - 1])
            what = f"cell {cell!r}, {self._source.genes[block.indices[at]]!r}, is {block.data[at]:g}"
            raise ValueError(f"{self._source.name}: {spelled(self._source.layer)} of {what}: {bound}")
        if self._counts:
            sums = np.add.reduceat(np.append(block.data, 0).astype(np.float64), block.indptr[:-1])
            sums[np.diff(block.indptr) == 0] = 1
            share = block.data / np.repeat(sums, np.diff(block.indptr))
            block.data = np.log1p(TOTAL * share).astype(np.float32)
        if self._columns is not None:
            block = sp.csr_array(block[:, self._columns])
        return block


def open_cells(
    path: Path,
    set_column: str,
    use_rep: str | None = None,
    features: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    ignore: Sequence[str] = (),
    folder: str | Path | None = None,
    fitted: bool = False,
) -> StoredSets:
    """The cells of each value of a column of obs, sets in the order in which they first appear.

    Args:
        use_rep: "X"; "counts": the layer `counts`, or X where there is none, as counts c of which log(1 + 1e4 c / sum
            of c) is taken; or a key of obsm. Default: X_omniset, else X_pca, else X.
        features: Which columns, by name. Default: all. The names are those of var, or X_pca_1, X_pca_2, ...
        keep: Columns of obs to hand out: targets and groups.
        folder: For the copy of cells whose sets are not together. Default: Python's (TMPDIR).
        fitted: The features are those of a model: others may be there.

    Raises:
        ImportError: anndata is not installed.
        OSError, ValueError: As `open_source`; no such column, or a cell without a value in it; no such feature, or two
            of one name; when read, a number that is not finite, or, of counts, no count.
    """
    source, counts, chosen = _opened(path, use_rep)
    genes = (source.of_genes() if counts else source).genes
    if counts:  # else they may be no genes, and need no names
        genes = gene_names(str(path), source.var, {canonical(name) for name in features or []})
    for name in (set_column, *keep):
        if name not in source.obs.columns:
            there = listed([str(column) for column in source.obs.columns]) or "nothing"
            hint = "; --set_column names the column of the donors, or samples" if name == set_column else ""
            raise ValueError(f"{path}: obs has no column {name!r}, it has {there}{hint}")
    origin = Origin(path)
    values = _plain(source.obs[set_column])
    labels = as_labels(Chunk(origin, 0, {set_column: values}), set_column)
    if labels.isna().any():
        cell = str(source.names[int(labels.isna().to_numpy().argmax())])
        raise ValueError(f"{path}: column {set_column!r} of obs is missing for cell {cell!r}")
    codes, names = pd.factorize(labels)
    order = np.argsort(codes, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(codes))]).tolist()
    taken = _features(path, genes, features, ignore)
    place = {name: number for number, name in enumerate(genes)}
    cells = _Cells(source, np.array([place[name] for name in taken]), counts, order, folder)
    identifiers = pa.array([str(name) for name in source.names[order]], pa.string())
    columns = {name: _plain(source.obs[name].iloc[order]) for name in keep}
    multiplicity, sets = once(len(cells)), []
    for name, a, b in zip(names, bounds[:-1], bounds[1:], strict=True):
        of_set = {column: pa.chunked_array([held.slice(a, b - a)]) for column, held in columns.items()}
        sets.append(StoredSet(cells, multiplicity, a, b, str(name), identifiers, of_set))
    unused = place.keys() - set(taken)
    ignored = [] if fitted else [name for name in genes if name in unused]
    return StoredSets(_Names(path, source, order), sets, taken, ignored, {"use_rep": chosen})


def _opened(path: Path, use_rep: str | None) -> tuple[Source, bool, str]:
    """The matrix, whether it is of counts, and what `use_rep` is called."""
    if use_rep is None:
        for chosen in PREFERRED:
            try:
                return open_source(path, f"obsm/{chosen}"), False, chosen
            except ValueError as error:
                if f"has no {chosen!r} in obsm" not in str(error):
                    raise
        use_rep = "X"
        if _whole(source := open_source(path)):
            hint = "if they are counts, --use_rep counts takes log(1 + 10,000 c / sum of the cell's c)"
            warnings.warn(f"{path}: X has whole numbers, and is taken as it is: {hint}", stacklevel=3)
        return source, False, use_rep
    if use_rep == "X":
        return open_source(path), False, use_rep
    if use_rep != "counts":
        return open_source(path, f"obsm/{use_rep}"), False, use_rep
    try:
        return open_source(path, "counts"), True, use_rep
    except ValueError as error:
        if "has no layer 'counts'" not in str(error):
            raise
    source = open_source(path)
    if "raw" in source.choices and not _whole(source) and _whole(raw := source.other("raw")):
        source.close()
        warnings.warn(f"{path}: X has no counts: those of .raw are taken", stacklevel=3)
        return raw, True, use_rep
    return source, True, use_rep


def _whole(source: Source) -> bool:
    values = source.rows(0, min(FIRST, source.shape[0])).data
    return bool((values == np.rint(values)).all())


def _features(path: Path, there: list[str], chosen: Sequence[str] | None, ignore: Sequence[str]) -> list[str]:
    twice = pd.Series(there, dtype=object).duplicated().to_numpy()
    if twice.any():
        name = there[int(twice.argmax())]
        raise ValueError(f"{path}: two features are called {name!r}: make them unique (adata.var_names_make_unique())")
    known = set(there)
    lacking = [name for name in (*(chosen or []), *ignore) if name not in known]
    if lacking:
        more = f" and {len(lacking) - 1:,} more" if len(lacking) > 1 else ""
        raise ValueError(f"{path}: has no feature {lacking[0]!r}{more}, it has {listed(there, 5)}")
    left_out = set(ignore)
    taken = [name for name in (there if chosen is None else chosen) if name not in left_out]
    if not taken:
        raise ValueError(f"{path}: no feature is left")
    return taken


def _plain(values: pd.Series) -> pa.Array:
    held = values.astype(object) if isinstance(values.dtype, pd.CategoricalDtype) else values
    return pa.Array.from_pandas(held)
