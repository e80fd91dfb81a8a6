"""Files of connectivity as they are: numbers and what names stand beside them, or a list of edges."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from jaxtyping import Float

from omniset.regions.formats.tables import (
    TABLES,
    clear_errors,
    counts_only,
    frame_numbers,
    is_name,
    is_text,
    kind_of,
    needed,
    path_of,
    read_parquet,
    sheet_of,
    text_of,
)
from omniset.tables.arrays import require_npz
from omniset.tables.files import short
from omniset.tables.hdf5 import check_hdf5, read_mat, texts
from omniset.tables.sheets import Sheet, number_of, numbers_of

PAIRS = (
    ("i", "j"),
    ("source", "target"),
    *((f"{one}{gap}1", f"{one}{gap}2") for one in ("region", "node", "roi", "label", "parcel") for gap in ("_", "")),
    ("region_i", "region_j"),
    ("from", "to"),
)
WEIGHTS = ("weight", "connectivity", "value", "strength", "correlation", "r", "z", "fc", "sc")
# Arrays of names, the best first; the last two may be numbers of an atlas.
NAMES = ("names", "labels", "regions", "region", "label", "parcels", "rois", "roi", "name", "region_names", "ids", "id")
HDF5 = b"\x89HDF\r\n\x1a\n"


@dataclass
class Unread:
    """An array that is not read, since that would run code of the file, or that nobody knows how to read.

    Attributes:
        shape: Its own; None: not known.
    """

    shape: tuple[int, ...] | None = None


@dataclass
class Beside:
    """An array beside the numbers that may hold the names of the regions.

    Attributes:
        key: What the file calls it.
        shape: None: not known.
        texts: What it says; None: that cannot be read.
        numbers: They were numbers.
    """

    key: str
    shape: tuple[int, ...] | None
    texts: list[str] | None
    numbers: bool = False

    @property
    def called(self) -> bool:
        """Its key says that these are names."""
        return self.key.lower().rsplit(".", 1)[-1] in NAMES


@dataclass
class Grid:
    """Numbers, and the names of their rows and columns where there are some.

    Attributes:
        beside: What the file holds beside the numbers; keys that say names come first.
    """

    values: np.ndarray
    rows: list[str] | None = None
    columns: list[str] | None = None
    beside: list[Beside] = field(default_factory=list)


@dataclass
class Edges:
    """A weight for each pair of names that is listed."""

    pairs: list[tuple[str, str]]
    weights: Float[np.ndarray, " pairs"]


def read_matrix(source: Any, name: str) -> Grid | Edges:
    """What a file, a DataFrame or an array holds; the errors are those of `read_connectivity`."""
    if isinstance(source, pd.DataFrame):
        return _frame_grid(source, name)
    if sp.issparse(source):
        return Grid(source.toarray())
    if isinstance(source, np.ndarray | list | tuple):
        with clear_errors(name, "is no array of numbers"):
            return Grid(_numeric(np.asarray(source), name))
    if not isinstance(source, str | Path):
        raise ValueError(f"connectivity must be a file, a DataFrame or an array, got {kind_of(source)}")
    path = path_of(source)
    ending = path.suffix.lower()
    if ending == ".parquet":
        return _frame_grid(read_parquet(path), name)
    if ending == ".npy":
        with clear_errors(name, "is no array of NumPy, or damaged"):
            return Grid(_numeric(np.load(path, allow_pickle=False), name))
    if ending == ".npz":
        return _npz(path)
    if ending == ".mat":
        return _mat(path)
    if path.name.lower().endswith(".pconn.nii"):
        return _pconn(path)
    if is_text(path):
        return _text_grid(sheet_of(path))
    raise ValueError(f"{name}: the name must end in {TABLES}, .npy, .npz, .mat or .pconn.nii")


def _numeric(values: np.ndarray, name: str) -> np.ndarray:
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{name}: must be of numbers, it is of {values.dtype}")
    return values


def _frame_grid(frame: pd.DataFrame, name: str) -> Grid | Edges:
    titles = [text_of(title) for title in frame.columns]
    if edge_columns := _edge_columns(titles):
        one, other, weight = (frame.iloc[:, i] for i in edge_columns)
        pairs = list(zip(map(text_of, one), map(text_of, other), strict=True))
        of = [f"{a!r}, {b!r}" for a, b in pairs]
        return Edges(pairs, frame_numbers(weight.to_frame(), name, of, ["weight"])[:, 0])
    rows = None if counts_only(frame.index) else [text_of(value) for value in frame.index]
    if rows is None and len(titles) == len(frame) + 1 and not pd.api.types.is_numeric_dtype(frame.dtypes.iloc[0]):
        rows = [text_of(value) for value in frame.iloc[:, 0]]
        frame, titles = frame.iloc[:, 1:], titles[1:]
    columns = None if counts_only(frame.columns) else titles
    where = rows or [str(number + 1) for number in range(len(frame))]
    return Grid(frame_numbers(frame, name, where, titles), rows, columns)


def _text_grid(sheet: Sheet) -> Grid | Edges:
    lines = [(sheet.header, sheet.titles), *sheet.whole(blank=True)]
    cells = [fields for _, fields in lines]
    width = len(cells[0])
    named = any(is_name(fields[0]) for fields in cells[1:])
    corner = is_name(cells[0][0]) or (cells[0][0] == "" and named)
    titled = any(map(is_name, cells[0][1:])) or (corner and len(cells) >= width)
    edges = _edge_columns(cells[0])
    if edges or (width == 3 and len(cells) > 4):
        begin = 1 if edges or number_of(cells[0][2]) is None else 0
        return _text_edges(sheet, lines[begin:], edges or (0, 1, 2))
    columns = cells[0] if titled else None
    first = 1 if titled else 0
    body = cells[first:]
    if not body:
        raise ValueError(f"{sheet.file.path} has no rows below its header")
    rows = None
    # A first column of numbers may still be names: the shape tells, later.
    if named or any(is_name(fields[0]) for fields in body):
        rows, body = [fields[0] for fields in body], [fields[1:] for fields in body]
    if columns is not None and (rows is not None or columns[0] == "" or len(body) == width - 1):
        columns = columns[1:]
    values = np.empty((len(body), len(body[0])))
    for number, fields in enumerate(body):
        values[number], bad = numbers_of(fields)
        if bad is not None:
            of = columns[bad] if columns is not None and bad < len(columns) else str(bad + 1)
            where = rows[number] if rows else str(number + 1)
            row = lines[first + number][0]
            raise sheet.file.error(row, f"pair {where!r}, {of!r} is {short(fields[bad])}, it must be a number")
    return Grid(values, rows, columns)


def _text_edges(sheet: Sheet, lines: list[tuple[int, list[str]]], at: tuple[int, int, int]) -> Edges:
    pairs, weights = [], np.empty(len(lines))
    for number, (row, fields) in enumerate(lines):
        one, other, text = (fields[i] for i in at)
        if not one or not other:
            raise sheet.file.error(row, "names one region only, an edge has two")
        value = number_of(text)
        if value is None:
            raise sheet.file.error(row, f"the weight of {one!r}, {other!r} is {short(text)}, it must be a number")
        pairs.append((one, other))
        weights[number] = value
    return Edges(pairs, weights)


def _edge_columns(titles: list[str]) -> tuple[int, int, int] | None:
    """Where the two regions and the weight are, if titles say so."""
    at = {re.sub("[ .-]", "_", title.lower()): i for i, title in enumerate(titles)}
    for one, other in PAIRS:
        if one in at and other in at:
            weights = [at[title] for title in WEIGHTS if title in at]
            if not weights and len(titles) == 3:
                weights = [3 - at[one] - at[other]]
            if weights:
                return at[one], at[other], weights[0]
    return None


def _npz(path: Path) -> Grid:
    arrays: dict[str, Any] = {}
    with open(path, "rb") as raw, clear_errors(str(path), "is no .npz file of NumPy, or damaged"):
        require_npz(path)
        file = np.load(raw, allow_pickle=False)
        for key in file.files:
            try:
                arrays[key] = file[key]
            except ValueError as error:
                if "allow_pickle" not in str(error):
                    raise
                arrays[key] = Unread(_shape(file.zip, key))
        return _chosen(arrays, str(path))


def _shape(archive: zipfile.ZipFile, key: str) -> tuple[int, ...] | None:
    """Of an array of objects: its header is no object."""
    with archive.open(key if key in archive.namelist() else f"{key}.npy") as file:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        return readers[version](file)[0] if version in readers else None


def _mat(path: Path) -> Grid:
    name = str(path)
    with open(path, "rb") as file:
        head = file.read(520)
    with clear_errors(name, "is no .mat file of MATLAB, or damaged"):
        if HDF5 not in (head[:8], head[512:]):  # v7.3 has a header of its own before that of HDF5
            return _chosen({key: _variable(key, value) for key, value in read_mat(path).items()}, name)
        h5py = needed("h5py", name)
        check_hdf5(path, whole=True)
        with h5py.File(path, "r") as file:
            return _chosen(dict(_variables_of_hdf5(file)), name)


def _variable(key: str, value: Any) -> Any:
    """One of a file before v7.3: an array, or the shape and the texts of what is none."""
    if not isinstance(value, tuple):
        return value
    shape, entries = value
    return Unread() if shape is None else Beside(key, shape, entries)


def _variables_of_hdf5(file: Any) -> Iterator[tuple[str, Any]]:
    """Those of a v7.3 file. Text is kept as its characters' numbers, cell arrays as references."""

    def text(held: Any) -> str:
        characters = held.attrs.get("MATLAB_class") == b"char" and "MATLAB_empty" not in held.attrs
        return "".join(map(chr, np.ravel(held[()]).tolist())) if characters else ""

    for key, held in file.items():
        if not hasattr(held, "dtype") or "MATLAB_empty" in held.attrs:
            continue
        if "MATLAB_object_decode" in held.attrs:  # a string, a table
            yield key, Unread()
        elif held.dtype.kind == "O":
            yield key, np.array([text(file[reference]) for reference in np.ravel(held[()])])
        elif held.attrs.get("MATLAB_class") == b"char":
            yield key, np.array(["".join(map(chr, row)) for row in np.atleast_2d(held[()].T).tolist()])
        else:
            yield key, held[()].T  # arrays are kept column by column, so that HDF5 has their axes in reverse


def _chosen(arrays: dict[str, Any], name: str) -> Grid:
    """The array of a file that is the connectivity, and what of the others may be names."""
    numbers = {}
    for key, value in arrays.items():
        if isinstance(value, Unread | Beside):
            continue
        array = np.asarray(value)
        if array.dtype.kind in "biuf" and array.ndim in (1, 2, 3) and array.size > 1:
            numbers[key] = array
    called = [key for key in numbers if key.lower() == "connectivity"]
    square = [key for key, array in numbers.items() if array.ndim == 2 and array.shape[0] == array.shape[1]]
    stacks = [key for key, array in numbers.items() if array.ndim == 3]
    choice = called or square or stacks or list(numbers)
    if len(choice) != 1:
        held = [f"{key} ({' x '.join(map(str, value.shape or ()))})" for key, value in arrays.items()]
        raise ValueError(
            f"{name}: must have one square array, or one called 'connectivity'; it has {', '.join(held) or 'none'}"
        )
    others = [_beside(key, value) for key, value in arrays.items() if key != choice[0]]
    beside = [one for one in others if one is not None]
    order = {key: at for at, key in enumerate(NAMES)}
    beside.sort(key=lambda one: order.get(one.key.lower().rsplit(".", 1)[-1], len(order)))
    return Grid(numbers[choice[0]], beside=beside)


def _beside(key: str, value: Any) -> Beside | None:
    """None: numbers that are no names."""
    if isinstance(value, Beside):
        return value
    if isinstance(value, Unread):
        return Beside(key, value.shape, None)
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        return Beside(key, array.shape, texts(array) or None)
    neighbour = Beside(key, array.shape, [], numbers=True)
    if neighbour.called and array.dtype.kind in "uif":
        neighbour.texts = whole_numbers(array.ravel())
    return neighbour if neighbour.texts else None


def whole_numbers(values: np.ndarray) -> list[str]:
    """Distinct whole numbers from 0 on as text; empty if they are others."""
    if not (np.isfinite(values) & (values >= 0) & (values < 2**53) & (values == np.floor(values))).all():
        return []
    names = [str(int(value)) for value in values]
    return names if len(set(names)) == len(names) else []


def _pconn(path: Path) -> Grid:
    nibabel = needed("nibabel", str(path))
    with clear_errors(str(path), "is no .pconn.nii file, or damaged"):
        image = nibabel.load(path)
        rows, columns = ([text_of(n) for n in image.header.get_axis(i).name] for i in (0, 1))
        return Grid(np.asarray(image.dataobj), rows, columns)
