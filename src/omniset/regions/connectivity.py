"""Connectivity of pairs of regions: from what a file holds, numbers or a list of edges, to one matrix with names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int

from omniset.regions.files import (
    LARGEST,
    TABLES,
    WHOLE,
    check_names,
    clear_errors,
    counts_only,
    frame_numbers,
    ids_of,
    is_name,
    is_text,
    name_of,
    no_region,
    path_of,
    read_parquet,
    sheet_of,
    spelling,
    text_of,
)
from omniset.tables.arrays import require_npz
from omniset.tables.files import listed, short
from omniset.tables.hdf5 import check_hdf5, read_mat, texts
from omniset.tables.matrices import needed
from omniset.tables.sheets import Sheet, number_of, numbers_of

SYMMETRIC = 1e-6
SPARSE = 1 / 3  # of the pairs exactly 0, from which on it is said
SKEWED = 100  # times the median of what is above 0, that the largest of some counts is
MOST = 20_000  # regions of a list of edges: their matrix has to fit
PAIRS = (
    ("i", "j"),
    ("source", "target"),
    *((f"{one}{gap}1", f"{one}{gap}2") for one in ("region", "node", "roi", "label", "parcel") for gap in ("_", "")),
    ("region_i", "region_j"),
    ("from", "to"),
    ("var1", "var2"),  # R's melt
)
WEIGHTS = ("weight", "connectivity", "value", "strength", "correlation", "r", "z", "fc", "sc", "count")
# Arrays of names, the best first; the last two may be numbers of an atlas.
NAMES = ("names", "labels", "regions", "region", "label", "parcels", "rois", "roi", "name", "region_names", "ids", "id")
Triangle = Literal["upper", "lower"]
TRIANGLES: dict[Triangle, Any] = {"upper": np.triu_indices, "lower": np.tril_indices}  # read row by row
LETTERS = (9, 10, 13, *range(32, 127))  # numbers of characters
HDF5 = b"\x89HDF\r\n\x1a\n"


@dataclass
class Beside:
    """An array beside the numbers that may hold the names of the regions."""

    key: str  # what the file calls it
    shape: tuple[int, ...] | None  # None: not known
    # What it says; None: it is not read, since that would run code of the file, or nobody knows how to.
    texts: list[str] | None
    numbers: bool = False  # they were numbers

    @property
    def rank(self) -> int:
        """The place of its key among NAMES, which say that these are names; behind them: it is none of these."""
        word = self.key.lower().rsplit(".", 1)[-1]
        return NAMES.index(word) if word in NAMES else len(NAMES)

    @property
    def called(self) -> bool:
        return self.rank < len(NAMES)


@dataclass
class Grid:
    """Numbers, and the names of their rows and columns where there are some."""

    values: np.ndarray
    rows: list[str] | None = None
    columns: list[str] | None = None
    # What the file holds beside the numbers; keys that say names come first.
    beside: list[Beside] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was decided in reading


@dataclass
class Edges:
    """A weight for each pair of names that is listed."""

    pairs: list[tuple[str, str]]
    weights: Float[np.ndarray, " pairs"]
    notes: list[str]


@dataclass
class Connectivity:
    """Connectivity of pairs of regions."""

    # Of the regions, each once; None: the source has none, its regions are known by their order alone.
    names: list[str] | None
    matrix: Float[np.ndarray, "regions regions"]  # NaN on the diagonal and for pairs that are not known
    notes: list[str] = field(default_factory=list)  # what was decided, a sentence each


def read_connectivity(
    source: Any,
    *,
    fisher_z: bool = False,
    zero_negative: bool = False,
    directed: bool = False,
    matrix: str | None = None,
    triangle: Triangle | None = None,
    regions: Sequence[str] | None = None,
) -> Connectivity:
    """Read the connectivity of pairs of regions from a square, a list of edges, triangles as vectors, or a stack.

    Which files, and what is taken of them, says "What is read" in docs/regions.md. Numbers are names where they are
    distinct and whole and the shape has one row or column too many for a square. Names that only count from 0 are
    passed over, unless `regions` has them.

    In this order: the diagonal is left out; unless `directed`, a triangle of zeros below or above others is not known,
    a pair's two values may differ by 1e-6 of the larger, or of the largest of all up to 1, and their mean is taken, or
    the one that is known; Fisher's z = artanh(r), of percent where the diagonal is 100; the mean over subjects of which
    a pair is known; negative values to 0.

    Args:
        fisher_z: Values are correlations: transform them.
        zero_negative: Make negative values 0.
        directed: Value [i, j] is that from i to j, and may differ from [j, i].
        matrix: Name of the array that is the connectivity, of an .npz or .mat file.
        triangle: The one that a vector holds row by row. None: its diagonal tells.
        regions: Names of the expression's regions, to tell names from numbers. A list of edges whose i and j are none
            of them and count from 0 or 1 is of positions in this order.

    Raises:
        OSError: The file is not there or may not be read.
        ImportError: The package that reads the format is not installed.
        ValueError: Naming the source and the pair: an entry that is no number or infinite; a matrix that is not
            symmetric, though not directed; no correlations, with `fisher_z`; a triangle that may be either; no array
            `matrix`; a pair twice with different weights; names that differ, or cannot be read; another shape; no known
            pair; all the same.
    """
    name = name_of(source, "connectivity")
    known = ids_of([region for region in regions or () if not no_region(region)])
    content = read_matrix(source, name, matrix)
    notes = content.notes
    if isinstance(content, Edges):
        names, stack = _square_of_edges(content, name, known, directed, notes)
    else:
        names, stack = _squares(content, name, known, notes, triangle)
    if stack.shape[1] < 2:
        raise ValueError(f"{name} has {stack.shape[1]} regions, a pair needs 2")
    total, number = np.zeros(stack.shape[1:]), np.zeros(stack.shape[1:], dtype=np.int64)
    single = 0
    for subject, values in enumerate(stack, 1):
        one = f"{name}: subject {subject}" if len(stack) > 1 else name
        square = np.array(values, dtype=np.float64)
        square[np.isnan(square)] = np.nan  # some NaN of damaged files make NumPy warn
        ends = np.diagonal(square)
        if fisher_z and np.isposinf(ends).all():
            raise ValueError(f"{one}: the diagonal is infinite, as that of Fisher's z is: leave fisher_z out")
        if fisher_z and (ends == 100).all():
            square = square / 100
            notes.append(f"{one}: the diagonal is 100, so that correlations are in percent: they are divided")
        _check_matrix(square, one, names, directed)
        if not directed:
            single += int((np.isnan(square) & ~np.isnan(square.T)).sum())
            other = np.where(np.isnan(square.T), square, square.T)
            square = (np.where(np.isnan(square), other, square) + other) / 2
        if fisher_z:
            outside = np.argwhere(np.abs(square) >= 1)
            if len(outside):
                pair, value = _pair(outside[0], names), square[tuple(outside[0])]
                raise ValueError(
                    f"{one}: {pair} is {value:g}, with fisher_z it must be within -1 and 1, both excluded: are these "
                    "Fisher's z already, or percent?"
                )
            square = np.arctanh(square)
        there = ~np.isnan(square)
        total += np.where(there, square, 0)
        number += there
    mean = np.where(number, total / np.maximum(number, 1), np.nan)
    if single:
        notes.append(f"{name}: {single:,} pair(s) are given one way only, which is taken for both")
    if len(stack) > 1:
        notes.append(f"{name} is the mean over {len(stack):,} subjects")
    if fisher_z:
        notes.append(f"{name}: values are Fisher's z of what the source has")
    if zero_negative:
        negative = mean < 0
        mean[negative] = 0
        notes.append(f"{name}: {_pairs(int(negative.sum()), directed)} of negative connectivity are set to 0")
    check_target(mean, name)
    if not zero_negative:
        notes += _doubts(mean[np.isfinite(mean)], name)
    unknown = unknown_regions(mean)
    if unknown.any():
        notes.append(f"{name}: {int(unknown.sum())} of {len(mean)} regions have no known pair")
    rest = np.isnan(mean[np.ix_(~unknown, ~unknown)]).sum() - (~unknown).sum()
    if rest:
        notes.append(f"{name}: {_pairs(int(rest), directed)} among the other regions are not known")
    return Connectivity(names, mean, notes)


def unknown_regions(matrix: Float[np.ndarray, "regions regions"]) -> Bool[np.ndarray, " regions"]:
    """Those of which no pair is known."""
    there = np.isfinite(matrix)
    return ~(there.any(0) | there.any(1))


def check_target(matrix: Float[np.ndarray, "regions regions"], name: str) -> None:
    """Raise ValueError where there is nothing to predict: no known pair, or all of one value."""
    values = matrix[np.isfinite(matrix)]
    if not len(values):
        raise ValueError(f"{name} has no known pair of regions")
    if values.min() == values.max():
        raise ValueError(f"{name} is {values[0]:g} for every pair of regions: there is nothing to predict")


def _doubts(values: Float[np.ndarray, " pairs"], name: str) -> Iterator[str]:
    """What makes one doubt that these are what was meant to be learned."""
    zeros, above = (values == 0).mean(), values[values > 0]
    if zeros >= SPARSE:
        yield f"{name}: {zeros:.0%} of the pairs are exactly 0 and learned so (no edge): NaN is what is not known"
    if (values >= 0).all() and (values % 1 == 0).all() and above.max() > (usual := SKEWED * np.median(above)):
        yield (
            f"{name}: values are counts, the largest ({above.max():,.0f}) more than {SKEWED} times the usual one "
            f"({usual / SKEWED:,.0f}), so that few pairs decide: give log(1 + count)"
        )


def _squares(
    grid: Grid, name: str, known: list[str], notes: list[str], triangle: Triangle | None
) -> tuple[list[str] | None, Float[np.ndarray, "subjects regions regions"]]:
    """Names, and a matrix of each subject."""
    values = np.asarray(grid.values)
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{name}: must be of numbers, it is of {values.dtype}")
    values = values if values.dtype == np.float32 else values.astype(np.float64)
    if values.ndim == 2 and grid.rows is None:
        values = _peeled(grid, values)
    if values.ndim == 3:
        stack = _subjects(values, name)
    elif values.ndim == 1 or (values.ndim == 2 and values.shape[0] != values.shape[1]):
        vectors = values.reshape(1, -1) if 1 in values.shape else np.atleast_2d(values)
        grid.rows = grid.columns = None  # of subjects and of pairs
        size, ways = _triangles(vectors, name, known)
        names = _names_of(grid, name, size, known, notes)
        held = f"{name}: {vectors.shape[1]:,} values are"
        if triangle not in ways and len(ways) > 1:
            raise ValueError(
                f"{held} a triangle of {size} regions, and nothing tells which: give --triangle lower if row by row of "
                "the lower one (nilearn, numpy.tril_indices, MATLAB's A(triu(...)), R's upper.tri), upper if of the "
                "upper one (numpy.triu_indices, squareform, MATLAB's A(tril(...)), R's lower.tri)"
            )
        way, why = (triangle, "") if triangle in ways else (ways[0], ", which its diagonal tells")
        notes.append(f"{held} the {way} triangle of {size} regions, row by row{why}")
        return names, _filled(vectors, size, way)
    else:
        stack = values[None]
    if stack.ndim != 3 or stack.shape[1] != stack.shape[2]:
        shape = " x ".join(map(str, np.shape(grid.values)))
        raise ValueError(f"{name}: must be regions x regions, it is {shape}")
    size = stack.shape[1]
    names = _names_of(grid, name, size, known, notes)
    if names is not None and grid.rows and grid.columns and ids_of(grid.columns) != names:
        at = {one: i for i, one in enumerate(ids_of(grid.columns))}
        stack = stack[:, :, [at[one] for one in names]]
    return names, stack


def _peeled(grid: Grid, values: np.ndarray) -> np.ndarray:
    """Whole numbers in the first row or column, of a matrix that has one too many for a square, are names."""
    rows, columns = values.shape
    if columns == rows + 1 and (names := whole_numbers(values[:, 0])):
        grid.rows = names
        if grid.columns is not None and len(grid.columns) == columns:
            grid.columns = grid.columns[1:]
        return values[:, 1:]
    if grid.columns is None and rows == columns + 1 and (names := whole_numbers(values[0])):
        grid.columns = names
        return values[1:]
    if grid.columns is None and rows == columns > 2 and np.isnan(values[0, 0]):
        names, others = whole_numbers(values[1:, 0]), whole_numbers(values[0, 1:])
        if names and set(names) == set(others):
            grid.rows, grid.columns = names, others
            return values[1:, 1:]
    return values


def _subjects(values: np.ndarray, name: str) -> np.ndarray:
    """Subjects first. MATLAB's users have them last."""
    first, second, third = values.shape
    if second == third and first == second:
        last = np.array_equal(values, values.transpose(1, 0, 2), equal_nan=True)
        each = np.array_equal(values, values.transpose(0, 2, 1), equal_nan=True)
        return values.transpose(2, 0, 1) if last and not each else values
    if second == third:
        return values
    if first == second:
        return values.transpose(2, 0, 1)
    raise ValueError(f"{name}: a stack must be subjects x regions x regions, it is {first} x {second} x {third}")


def _triangles(vectors: np.ndarray, name: str, known: list[str]) -> tuple[int, list[Triangle]]:
    """Regions of a matrix whose triangle each row is, and which triangle it may be, row by row.

    With the diagonal where values are the same in all places of a diagonal, which then also tell the triangle.
    """
    edges = vectors.shape[1]
    size = round((1 + np.sqrt(1 + 8 * edges)) / 2)
    if size * (size - 1) // 2 != edges or not edges:
        raise ValueError(
            f"{name}: must be a square, or have the N(N-1)/2 values of a triangle, N(N+1)/2 with the diagonal; it is "
            f"{' x '.join(map(str, vectors.shape))}"
        )
    ways = [*TRIANGLES]
    if len(known) == size or size < 4:
        return size, ways
    ends = {way: vectors[:, np.equal(*TRIANGLES[way](size - 1))] for way in ways}
    even = [way for way in ways if np.isnan(ends[way]).all() or np.allclose(ends[way], ends[way][0, 0], SYMMETRIC, 0)]
    if not even and len(known) == size - 1:
        raise ValueError(
            f"{name}: {edges:,} values are the triangle of {size} regions, or of the {size - 1} of other files with "
            "a diagonal of several values: leave the diagonal out, or what is no region"
        )
    return (size - 1, even) if even else (size, ways)


def _filled(vectors: np.ndarray, size: int, triangle: Triangle) -> np.ndarray:
    """Matrices of these triangles, row by row."""
    beside = 0 if 2 * vectors.shape[1] == size * (size + 1) else 1 if triangle == "upper" else -1
    i, j = TRIANGLES[triangle](size, beside)
    stack = np.full((len(vectors), size, size), np.nan)
    stack[:, i, j] = stack[:, j, i] = vectors
    return stack


def _names_of(grid: Grid, name: str, size: int, known: Collection[str], notes: list[str]) -> list[str] | None:
    given = []
    for names in (grid.rows, grid.columns):
        if names is not None:
            ids = ids_of(names)
            if ids == [str(i) for i in range(size)] and not set(known).issuperset(ids):
                counted = f"{name}: 0, 1, ... beside the matrix are taken for a count, not for names"
                notes += [counted] if counted not in notes else []
                continue
            if len(ids) != size:
                raise ValueError(f"{name} has {len(ids)} names for {size} regions")
            check_names(ids, name)
            given.append(ids)
    if len(given) == 2 and set(given[0]) != set(given[1]):
        written = {spelling(one): one for one in given[0]}
        grid.columns = given[1] = [written.get(spelling(one), one) for one in given[1]]
    if len(given) == 2 and set(given[0]) != set(given[1]):
        one = sorted(set(given[0]) - set(given[1]))
        other = sorted(set(given[1]) - set(given[0]))
        raise ValueError(
            f"{name}: rows and columns must be of the same regions, only in rows: {listed(one, 3)}; only "
            f"in columns: {listed(other, 3)}"
        )
    if not given and (names := _names_beside(grid, name, size, known, notes)):
        given.append(names)
    if len(given) == 1 and grid.rows and grid.columns:
        grid.rows = grid.columns = None  # one of them is a count
    return given[0] if given else None


def _names_beside(grid: Grid, name: str, size: int, known: Collection[str], notes: list[str]) -> list[str] | None:
    """The names in another array of the file: distinct texts, as many as there are regions.

    Of several such arrays that with most of the known names is taken, else the first. Numbers have to be called names.
    """
    names_of: dict[str, list[str]] = {}
    for one in grid.beside:
        names = ids_of(one.texts or [])
        if len(names) > size and len(regions := [text for text in names if not no_region(text)]) == size:
            notes.append(f"{name}: {listed([*filter(no_region, names)], 3)} in {one.key!r} is no region")
            names = regions
        if not len(names) == size == len(set(names)) or "" in names:
            continue
        if one.numbers and known and set(known).isdisjoint(names):
            notes.append(f"{name}: numbers in {one.key!r} are no names of other files and are passed over")
        else:
            names_of[one.key] = names
    if names_of:
        key = max(names_of, key=lambda key: len(set(known).intersection(names_of[key])))
        if len(names_of) > 1 or not any(one.called for one in grid.beside if one.key == key):
            others = [other for other in names_of if other != key]
            rest = f", not those in {listed(others, 3)}" if others else ""
            notes.append(f"{name}: names of regions are the texts in {key!r}{rest}")
        return names_of[key]
    for one in grid.beside:
        if doubt := _doubt(one, name, size):
            notes.append(f"{name}: {doubt}")
    return None


def _doubt(one: Beside, name: str, size: int) -> str | None:
    """What to say of an array that gives no names; raise ValueError where it should have given them."""
    if one.texts is None or (len(one.texts) != size and size in (one.shape or ())):
        if one.called or size in (one.shape or ()):
            held = f" ({' x '.join(map(str, one.shape))})" if one.shape else ""
            as_text = "cellstr(names)" if name.lower().endswith(".mat") else "np.array(names, dtype=str)"
            raise ValueError(
                f"{name}: the array {one.key!r}{held} may hold the names of the {size} regions, and cannot be read as "
                f"text: save the names as text under 'names', such as {as_text}; or leave {one.key!r} out if it is "
                "something else"
            )
        return None if one.shape else f"{one.key!r} cannot be read"
    number, different = len(one.texts), len(set(one.texts))
    if one.numbers or not one.called or number < 2:
        return None
    if number == size and different >= size / 2:  # fewer are networks
        check_names(one.texts, f"{name}: the array {one.key!r}")
    if 0 < abs(number - size) <= max(2, size / 20):
        raise ValueError(
            f"{name}: the array {one.key!r} has {number} names for {size} regions: leave out what is no region"
        )
    return f"{one.key!r} has {number} texts, {different} different, for {size} regions: they are taken for no names"


def _square_of_edges(
    edges: Edges, name: str, known: list[str], directed: bool, notes: list[str]
) -> tuple[list[str] | None, Float[np.ndarray, "1 regions regions"]]:
    if not edges.pairs:
        raise ValueError(f"{name} has no edges")
    flat = ids_of(list(chain(*edges.pairs)))
    order = list(dict.fromkeys(flat))
    if len(order) > MOST:
        raise ValueError(f"{name}: edges are between {len(order):,} regions, at most {MOST:,} can be read")
    begin = None
    if all(map(WHOLE.fullmatch, order)):
        begin = _begin(order, known)
    elif not any(map(is_name, order)):
        raise ValueError(f"{name}: edges must be between names or whole numbers, they are between {listed(order, 2)}")
    if begin is None:
        at, size = {one: i for i, one in enumerate(order)}, len(order)
    else:
        at, size = {one: int(one) - begin for one in order}, len(known) or len(order)
        notes.append(f"{name}: numbers of regions count from {begin}, they are taken for positions, not for names")
    matrix = np.full((size, size), np.nan)
    seen: dict[tuple[int, int], float] = {}
    largest = float(np.nanmax(np.abs(edges.weights), initial=0))
    for one, other, weight in zip(flat[::2], flat[1::2], edges.weights.tolist(), strict=True):
        i, j = at[one], at[other]
        for key in {(i, j)} if directed else {(i, j), (j, i)}:
            before = seen.setdefault(key, weight)
            same = before == weight or np.isnan([before, weight]).all()
            if i != j and not same and not abs(before - weight) <= _allowed(before, weight, largest):
                raise ValueError(f"{name}: the pair {one!r}, {other!r} is there twice, {before:g} and {weight:g}")
            matrix[key] = before
    return (order if begin is None else None), matrix[None]


def _begin(numbers: list[str], known: list[str]) -> int | None:
    """From what on numbers of regions count positions; None: they are names."""
    if set(known).issuperset(numbers):
        return None
    least, most = min(map(int, numbers)), max(map(int, numbers))
    if not known:
        return 0 if least == 0 and most == len(numbers) - 1 else None
    if least == 0 and most < len(known):
        return 0
    return 1 if least > 0 and most == len(known) else None


def _check_matrix(
    matrix: Float[np.ndarray, "regions regions"], name: str, names: list[str] | None, directed: bool
) -> None:
    """Empty the diagonal, and a triangle of zeros alone unless directed; raise ValueError where the rest is bad."""
    np.fill_diagonal(matrix, np.nan)
    halves = [indices(len(matrix), beside) for indices, beside in ((np.triu_indices, 1), (np.tril_indices, -1))]
    filled = [bool(np.nan_to_num(matrix[half]).any()) for half in halves]
    if not directed and sum(filled) == 1:
        matrix[halves[filled.index(False)]] = np.nan
    infinite = np.argwhere(np.abs(matrix) > LARGEST)
    if len(infinite):
        value = matrix[tuple(infinite[0])]
        raise ValueError(
            f"{name}: {_pair(infinite[0], names)} is {value:g}, it must be finite, at most 3.4e38, or NaN where it is "
            "not known"
        )
    apart = np.abs(matrix - matrix.T)
    bad = np.argwhere(np.triu(apart > _allowed(matrix, matrix.T, float(np.nanmax(np.abs(matrix), initial=0))), 1))
    if len(bad) and not directed:
        i, j = bad[0]
        raise ValueError(
            f"{name} is not symmetric at {len(bad):,} pair(s): {_pair(bad[0], names)} is {matrix[i, j]:g}, the "
            f"other way {matrix[j, i]:g}; give directed=True if connectivity has a direction"
        )


def _allowed(one: Any, other: Any, largest: float) -> Any:
    """Difference of a pair's two values that is rounding, where so large is the largest of all."""
    return SYMMETRIC * np.maximum(min(1, largest), np.maximum(np.abs(one), np.abs(other)))


def _pair(at: Int[np.ndarray, " 2"], names: list[str] | None) -> str:
    i, j = at.tolist()
    return f"pair {names[i]!r}, {names[j]!r}" if names else f"the pair of regions {i + 1} and {j + 1}"


def _pairs(entries: int, directed: bool) -> str:
    number = entries if directed else entries // 2
    return f"{number:,} pair{'' if number == 1 else 's'}"


# ---------------------------------------------------------------------- files as they are


def read_matrix(source: Any, name: str, array: str | None = None) -> Grid | Edges:
    """What a file, a DataFrame or an array holds; of several arrays the one that is asked for."""
    if array is not None and not str(source).lower().endswith((".npz", ".mat")):
        raise ValueError(f"{name}: matrix={array!r} is the name of an array in an .npz or .mat file")
    if isinstance(source, pd.DataFrame):
        return _frame_grid(source, name)
    if sp.issparse(source):
        return Grid(source.toarray())
    if isinstance(source, np.ndarray | list | tuple):
        with clear_errors(name, "is no array of numbers"):
            return Grid(np.asarray(source))
    if not isinstance(source, str | Path):
        raise ValueError(f"connectivity must be a file, a DataFrame or an array, got {type(source).__name__}")
    if Path(source).expanduser().is_dir():
        stacked = "np.save('all.npy', np.stack([np.loadtxt(file, delimiter=',') for file in files]))"
        raise ValueError(
            f"{name}: is a directory, it must be a file; several subjects can be one array, as by {stacked}"
        )
    path = path_of(source)
    ending = path.suffix.lower()
    if ending == ".parquet":
        return _frame_grid(read_parquet(path), name)
    if ending == ".npy":
        with clear_errors(name, "is no array of NumPy, or damaged"):
            return Grid(np.load(path, allow_pickle=False))
    if ending == ".npz":
        return _npz(path, array)
    if ending == ".mat":
        return _mat(path, array)
    if path.name.lower().endswith(".pconn.nii"):
        return _pconn(path)
    if is_text(path):
        return _text_grid(sheet_of(path))
    raise ValueError(f"{name}: the name must end in {TABLES}, .npy, .npz, .mat or .pconn.nii")


def _frame_grid(frame: pd.DataFrame, name: str) -> Grid | Edges:
    titles = [text_of(title) for title in frame.columns]
    notes: list[str] = []
    if edge_columns := _edge_columns(titles, name, notes):
        one, other, weight = (frame.iloc[:, i] for i in edge_columns)
        pairs = list(zip(map(text_of, one), map(text_of, other), strict=True))
        of = [f"{a!r}, {b!r}" for a, b in pairs]
        return Edges(pairs, frame_numbers(weight.to_frame(), name, of, ["weight"])[:, 0], notes)
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
    notes: list[str] = []
    edges = _edge_columns(cells[0], str(sheet.file.path), notes)
    if edges or (width == 3 and len(cells) > 4):
        begin = 1 if edges or number_of(cells[0][2]) is None else 0
        return Edges(*_text_edges(sheet, lines[begin:], edges or (0, 1, 2)), notes)
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


def _text_edges(
    sheet: Sheet, lines: list[tuple[int, list[str]]], at: tuple[int, int, int]
) -> tuple[list[tuple[str, str]], Float[np.ndarray, " pairs"]]:
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
    return pairs, weights


def _edge_columns(titles: list[str], name: str, notes: list[str]) -> tuple[int, int, int] | None:
    """Where the two regions and the weight are, if titles say so; of several weights the first in WEIGHTS is noted."""
    at = {re.sub("[ .-]", "_", title.lower()): i for i, title in enumerate(titles)}
    for one, other in PAIRS:
        if one in at and other in at:
            weights = [at[title] for title in WEIGHTS if title in at]
            if not weights and len(titles) == 3:
                weights = [3 - at[one] - at[other]]
            if len(weights) > 1:
                rest = listed([titles[i] for i in weights[1:]], 3)
                notes.append(f"{name}: weights are those in {titles[weights[0]]!r}, not in {rest}")
            if weights:
                return at[one], at[other], weights[0]
    return None


def _npz(path: Path, array: str | None) -> Grid:
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
                arrays[key] = Beside(key, None, None)
        return _chosen(arrays, str(path), array)


def _mat(path: Path, array: str | None) -> Grid:
    name = str(path)
    with open(path, "rb") as file:
        head = file.read(520)
    with clear_errors(name, "is no .mat file of MATLAB, or damaged"):
        if HDF5 not in (head[:8], head[512:]):  # v7.3 has a header of its own before that of HDF5
            held = read_mat(path).items()  # what is no array is its shape and its texts
            return _chosen(
                {key: Beside(key, *one) if isinstance(one, tuple) else one for key, one in held}, name, array
            )
        h5py = needed("h5py", name)
        check_hdf5(path, whole=True)
        with h5py.File(path, "r") as file:
            return _chosen(dict(_variables_of_hdf5(file)), name, array)


def _variables_of_hdf5(file: Any) -> Iterator[tuple[str, Any]]:
    """Those of a v7.3 file. Text is kept as its characters' numbers, cell arrays as references."""

    def text(held: Any) -> str:
        characters = held.attrs.get("MATLAB_class") == b"char" and "MATLAB_empty" not in held.attrs
        return "".join(map(chr, np.ravel(held[()]).tolist())) if characters else ""

    for key, held in file.items():
        if held.attrs.get("MATLAB_class") == b"struct" and hasattr(held, "keys"):
            yield from ((f"{key}.{part}", Beside(part, None, [])) for part in held)
        if not hasattr(held, "dtype") or "MATLAB_empty" in held.attrs:
            continue
        if "MATLAB_object_decode" in held.attrs:  # a string, a table
            yield key, Beside(key, None, None)
        elif held.dtype.kind == "O":
            yield key, np.array([text(file[reference]) for reference in np.ravel(held[()])])
        elif held.attrs.get("MATLAB_class") == b"char":
            yield key, np.array(["".join(map(chr, row)) for row in np.atleast_2d(held[()].T).tolist()])
        else:
            yield key, held[()].T  # arrays are kept column by column, so that HDF5 has their axes in reverse


def _chosen(arrays: dict[str, Any], name: str, asked: str | None) -> Grid:
    """The array of a file that is the connectivity, the one that is asked for, and what of the others may be names."""
    numbers = {}
    for key, value in arrays.items():
        if isinstance(value, Beside):
            continue
        array = np.asarray(value)
        if array.dtype.kind in "biuf" and array.ndim in (1, 2, 3) and array.size > 1:
            numbers[key] = array
    called = [key for key in numbers if key.lower() == "connectivity"]
    square = [key for key, array in numbers.items() if array.ndim == 2 and array.shape[0] == array.shape[1]]
    stacks = [key for key, array in numbers.items() if array.ndim == 3]
    choice = called or square or stacks or list(numbers) if asked is None else [key for key in numbers if key == asked]
    if len(choice) != 1:
        shapes = {key: " x ".join(map(str, value.shape or ())) for key, value in arrays.items()}
        held = [f"{key} ({shape})" if shape else key for key, shape in shapes.items()]
        which = "one square array, or one called 'connectivity'" if asked is None else f"an array of numbers {asked!r}"
        remedy = f": give --matrix {choice[0]}, or another" if len(choice) > 1 else ""
        if not choice and (of_struct := [key for key in arrays if "." in key]):
            remedy = f": in MATLAB, a = {of_struct[0]}; save('a.mat', 'a') makes that an array of its own"
        raise ValueError(f"{name}: must have {which}; it has {', '.join(held) or 'none'}{remedy}")
    others = [_beside(key, value) for key, value in arrays.items() if key != choice[0]]
    beside = sorted((one for one in others if one is not None), key=lambda one: one.rank)
    grid = Grid(numbers[choice[0]], beside=beside)
    if grid.values.ndim == 2 and len(grid.values) < grid.values.shape[1]:  # of CONN, with further targets behind
        size, all_names = len(grid.values), {len(one.texts or ()): one.texts for one in beside}
        if (names := all_names.get(size)) and names == (all_names.get(grid.values.shape[1]) or [])[:size]:
            grid.notes.append(f"{name}: of {grid.values.shape[1]} columns the first {size} are the regions of the rows")
            grid.values = grid.values[:, :size]
    return grid


def _beside(key: str, value: Any) -> Beside | None:
    """None: numbers that are no names."""
    if isinstance(value, Beside):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        return Beside(key, array.shape, texts(array) or None)
    neighbour = Beside(key, array.shape, [], numbers=True)
    if neighbour.called and array.dtype.kind in "uif":
        codes = array.ravel()
        neighbour.texts = whole_numbers(codes)
        if (codes == 10).any() and np.isin(codes, LETTERS).all():  # lines of text, as DSI Studio has it
            return Beside(key, None, "".join(map(chr, codes.astype(int))).splitlines())
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
