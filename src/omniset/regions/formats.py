"""Files of brain regions: expression of genes, connectivity, coordinates; each read into one shape, by names.

Names are what joins the files, so they are looked for wherever a file may have them. Numbers that only count rows from
0, as pandas writes them beside a table without names, are no names.

Known imperfections: a line break within quotes is not read; v7.3 files of MATLAB give no sparse matrices. What SciPy
and HDF5 make of a .mat or .h5ad file that is damaged inside, rather than cut off, is theirs: at worst they end the
process, or never end.
"""

from __future__ import annotations

import csv
import importlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int

from omniset.genes import canonical
from omniset.tables.files import OPENERS, TextFile, _listed, _short, _tidy
from omniset.tables.labels import NUMBER

MISSING = ("", "na", "nan", "n/a", "#n/a", "null", "none")
TITLES = ("region", "label", "name", "roi", "id")  # of a column of names of regions, the best first
GENE_TITLES = ("gene_symbol", "symbol", "gene_name", "gene", "gene_id", "entrez_id", "ensembl_id")
PAIRS = (
    ("i", "j"),
    ("source", "target"),
    *((f"{one}{gap}1", f"{one}{gap}2") for one in ("region", "node", "roi", "label", "parcel") for gap in ("_", "")),
    ("region_i", "region_j"),
    ("from", "to"),
)
WEIGHTS = ("weight", "connectivity", "value", "strength", "correlation", "r", "z", "fc", "sc")
PLACES = (
    *(tuple(form.format(axis) for axis in "xyz") for form in ("mni_{}", "{}_mni", "{}")),
    ("r", "a", "s"),  # right, anterior, superior
)
HEMISPHERES = {"l": "L", "lh": "L", "left": "L", "r": "R", "rh": "R", "right": "R"} | dict.fromkeys(
    (*MISSING, "b", "both", "bilateral", "m", "midline"), ""
)
NAMES = ("names", "labels", "regions", "region", "label", "parcels", "rois", "roi", "name", "region_names")  # of arrays
SYMBOL = re.compile(r"(?!(?:LH|RH|L|R)[-.])(?=..)[A-Z][A-Z0-9]*([-.][A-Z0-9]+)*|C(\d+|X|Y)orf\d+[A-Z]?")
ENSEMBL_GENE = re.compile(r"ENS[A-Z]*G\d{11}(_\w+)?")
SCHAEFER = re.compile(r"\d+Networks_[LR]H_([A-Za-z]+)(_\w+)?")
WHOLE = re.compile(r"(\d+)(\.0+)?")  # a whole number, maybe read as a float
PEEK = 64  # rows that tell whether the first column holds names
SURE = 0.25  # difference in share from which on one side of a table is that of the genes
SYMMETRIC = 1e-6
MOST = 20_000  # regions of a list of edges: their matrix has to fit
HDF5 = b"\x89HDF\r\n\x1a\n"
LARGEST = float(np.finfo(np.float32).max)
TABLES = ".csv, .tsv or .txt (also with .gz, .bz2, .xz) or .parquet"


@dataclass
class Expression:
    """Expression of genes in regions.

    Attributes:
        frame: float64, index: names of regions, columns: names of genes, each once. NaN: not measured.
        notes: What was decided, a sentence each.
    """

    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)


@dataclass
class Connectivity:
    """Connectivity of pairs of regions.

    Attributes:
        names: Of the regions, each once; None: the source has none, its regions are known by their order alone.
        matrix: NaN on the diagonal and for pairs that are not known.
        notes: What was decided, a sentence each.
    """

    names: list[str] | None
    matrix: Float[np.ndarray, "regions regions"]
    notes: list[str] = field(default_factory=list)


# Expression


def read_expression(
    source: Any, aliases: Mapping[str, str] | None = None, *, regions: Sequence[str] | None = None
) -> Expression:
    """Read the expression of genes in regions.

    | source | regions are named by |
    |---|---|
    | `.csv`, `.tsv`, `.txt` (also `.gz`, `.bz2`, `.xz`), `.parquet` | the column region, label, name, roi or id among \
the first three; else the first column, or the index |
    | `.h5ad`, AnnData | `obs_names` (and the genes by `var_names`) |
    | DataFrame | its index; one that only counts is passed over for a column of names |
    | list or dict of these, one for each donor | as above |

    Of donors the mean is taken, by names of regions and genes, over those that measured a value.

    A table of genes x regions is turned round. Let s be the share of names that look like a gene (a symbol of HGNC or
    an Ensembl id, or in `aliases`) minus the share that are in `regions`. Genes are on the side where s is larger, if
    it is so by 0.25; else they are taken to be in the columns.

    Genes are spelled as `omniset.genes.canonical` does. Of columns of one gene the mean is taken. Whole numbers (ids of
    an atlas, Entrez ids) are kept as text.

    Args:
        aliases: Other names of genes, alias to name.
        regions: Names of regions that other files have, to tell which way round the table is.

    Raises:
        OSError: The file is not there or may not be read.
        ImportError: The package that reads the format is not installed.
        ValueError: Naming the source, the region and the gene: an entry that is no number or infinite; a region that
            is there twice or has no name; no regions, no genes; a file cut off, damaged or of another format.
    """
    known = set(_ids(regions or ()))
    if isinstance(source, Mapping):
        donors = [(one, name_of(one, f"expression of donor {key!r}")) for key, one in source.items()]
    elif isinstance(source, list | tuple):
        donors = [(one, name_of(one, f"expression of donor {number}")) for number, one in enumerate(source, 1)]
    else:
        return _expression(source, name_of(source, "expression"), aliases or {}, known)
    if not donors:
        raise ValueError("expression must be of one donor at least, it is an empty list")
    found = [_expression(one, name, aliases or {}, known) for one, name in donors]
    return found[0] if len(found) == 1 else _mean_of_donors(found)


def name_of(source: Any, otherwise: str) -> str:
    """What messages call a source: its path, or what it is."""
    return str(source) if isinstance(source, str | Path) else otherwise


@dataclass
class _Table:
    """Numbers with names for rows and columns, whichever of them are the genes."""

    name: str
    rows: list[str]
    columns: list[str]
    values: Float[np.ndarray, "rows columns"]
    notes: list[str] = field(default_factory=list)

    def turned(self) -> _Table:
        return _Table(self.name, self.columns, self.rows, self.values.T, self.notes)


def _expression(source: Any, name: str, aliases: Mapping[str, str], known: set[str]) -> Expression:
    table = _expression_table(source, name)
    if not table.values.size:
        raise ValueError(f"{name} must have regions and genes, it has {len(table.rows)} x {len(table.columns)}")
    table.rows, table.columns = _ids(table.rows), _ids(table.columns)
    table = _genes_in_columns(table, aliases, known)
    _check_names(table.rows, name)
    if "" in table.columns:
        raise ValueError(f"{name}: gene {table.columns.index('') + 1:,} has no name")
    with np.errstate(invalid="ignore"):  # some NaN of damaged files make NumPy warn
        bad = np.argwhere(np.abs(table.values) > LARGEST)
    if len(bad):
        row, column = bad[0]
        raise ValueError(
            f"{name}: region {table.rows[row]!r}, gene {table.columns[column]!r} is {table.values[row, column]:g}, it "
            "must be finite, at most 3.4e38, or NaN where nothing was measured"
        )
    return _one_column_a_gene(table, aliases)


def _expression_table(source: Any, name: str) -> _Table:
    if isinstance(source, pd.DataFrame):
        return _frame_table(source, name)
    if hasattr(source, "obs_names") and hasattr(source, "var_names"):
        return _anndata_table(source, name)
    if not isinstance(source, str | Path):
        raise ValueError(f"expression must be a file, a DataFrame, an AnnData or donors of these, got {_kind(source)}")
    path = _file(source)
    if path.name.lower().endswith(".h5ad"):
        anndata = _needed("anndata", name, "'omniset[cells]'")
        with _clear(name, "is no .h5ad file that can be read"):
            adata = anndata.read_h5ad(path)
        return _anndata_table(adata, name)
    if path.suffix.lower() == ".parquet":
        return _frame_table(_read_parquet(path), name)
    if _is_text(path):
        return _text_table(_Lines(path))
    raise ValueError(f"{name}: the name must end in {TABLES} or .h5ad")


def _anndata_table(adata: Any, name: str) -> _Table:
    with _clear(name, "X cannot be read"):
        x = adata.to_memory().X if adata.isbacked else adata.X
        if x is None:
            raise ValueError(f"{name}: has no X, the expression of genes in regions")
        x = np.asarray(x.toarray() if sp.issparse(x) else x)
        rows, columns = ([_text(n) for n in names] for names in (adata.obs_names, adata.var_names))
        if x.dtype.kind not in "biuf":
            raise ValueError(f"{name}: X must be of numbers, it is of {x.dtype}")
        return _Table(name, rows, columns, x.astype(np.float64))


def _frame_table(frame: pd.DataFrame, name: str) -> _Table:
    titles = [_text(title) for title in frame.columns]
    names: int | None = None
    left: set[int] = set()
    if _counts_only(frame.index):
        names, left = _names_column(titles)
        if names is None and titles and not pd.api.types.is_numeric_dtype(frame.dtypes.iloc[0]):
            names, left = 0, {0}
    rows = [_text(value) for value in (frame.index if names is None else frame.iloc[:, names])]
    kept = [i for i in range(len(titles)) if i not in left]
    columns = [titles[i] for i in kept]
    return _Table(name, rows, columns, _frame_numbers(frame.iloc[:, kept], name, rows, columns))


def _text_table(lines: _Lines) -> _Table:
    titles = lines.titles()
    if len(titles) < 2:
        raise lines.error(0, "has one column only: columns must be separated by commas, tabs, semicolons or spaces")
    names, left = _names_column(titles)
    if names is None and not _fractions([fields[0] for _, fields in islice(lines.rows(titles), PEEK)]):
        names, left = 0, {0}
    kept = [i for i in range(len(titles)) if i not in left]
    columns = [titles[i] for i in kept]
    rows: list[str] = []
    values = np.empty((len(lines) - 1, len(kept)))
    for number, (line, fields) in enumerate(lines.rows(titles, empty=names is None)):
        rows.append(str(number + 1) if names is None else fields[names])
        texts = [fields[i] for i in kept]
        bad = _fill(values[number], texts)
        if bad is not None:
            raise lines.error(line, f"{rows[-1]!r}, {columns[bad]!r} is {_short(texts[bad])}, it must be a number")
    said = [f"{lines.name} has no names of regions: they are named by their number, from 1"] if names is None else []
    return _Table(lines.name, rows, columns, values[: len(rows)], said)


def _names_column(titles: list[str]) -> tuple[int | None, set[int]]:
    """Which of the first columns holds names by its title, and which ones hold no values, therefore."""
    first = {title.lower(): i for i, title in reversed(list(enumerate(titles[:3])))}
    found = [first[title] for title in (*TITLES, *GENE_TITLES) if title in first]
    # Columns before the names are counters and the like.
    return (found[0], {*found, *range(found[0])}) if found else (None, set())


def _fractions(texts: list[str]) -> bool:
    """No names: all are numbers, and some have a fraction."""
    numbers = [_number(text) for text in texts]
    return None not in numbers and any(number is not None and number % 1 > 0 for number in numbers)


def _genes_in_columns(table: _Table, aliases: Mapping[str, str], known: set[str]) -> _Table:
    def share(names: list[str]) -> float:
        genes = sum(bool(SYMBOL.fullmatch(n) or ENSEMBL_GENE.fullmatch(canonical(n)) or n in aliases) for n in names)
        return (genes - sum(n in known for n in names)) / len(names)

    difference = share(table.columns) - share(table.rows)
    if difference >= SURE:
        return table
    if difference > -SURE:
        table.notes.append(
            f"{table.name}: names do not tell whether genes are in rows or columns: columns such as "
            f"{table.columns[0]!r} are taken for genes, rows such as {table.rows[0]!r} for regions"
        )
        return table
    table.notes.append(f"{table.name} has genes in its rows and was turned round")
    return table.turned()


def _one_column_a_gene(table: _Table, aliases: Mapping[str, str]) -> Expression:
    plain = [canonical(column) for column in table.columns]
    spelled = [
        canonical(aliases.get(own, aliases.get(one, one))) for own, one in zip(table.columns, plain, strict=True)
    ]
    if renamed := [own for own, new in zip(plain, spelled, strict=True) if own != new]:
        table.notes.append(f"{table.name}: {len(renamed):,} gene(s) are named by an alias, such as {renamed[0]!r}")
    columns: dict[str, list[int]] = {}
    for number, gene in enumerate(spelled):
        columns.setdefault(gene, []).append(number)
    values = table.values[:, [numbers[0] for numbers in columns.values()]]
    several = [gene for gene, numbers in columns.items() if len(numbers) > 1]
    for at, numbers in enumerate(columns.values()):
        if len(numbers) > 1:
            values[:, at] = _mean(table.values[:, numbers])
    if several:
        table.notes.append(
            f"{table.name}: {len(several):,} gene(s) are in several columns, such as {several[0]!r}: the mean of what "
            "was measured is taken"
        )
    return Expression(pd.DataFrame(values, index=pd.Index(table.rows), columns=pd.Index(list(columns))), table.notes)


def _mean(values: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, " rows"]:
    """Of each row's known values; NaN where there is none."""
    known = ~np.isnan(values)
    number = known.sum(1)
    return np.where(number, np.where(known, values, 0).sum(1) / np.maximum(number, 1), np.nan)


def _mean_of_donors(donors: list[Expression]) -> Expression:
    rows = pd.Index(list(dict.fromkeys(chain(*(donor.frame.index for donor in donors)))))
    columns = pd.Index(list(dict.fromkeys(chain(*(donor.frame.columns for donor in donors)))))
    total, number = np.zeros((len(rows), len(columns))), np.zeros((len(rows), len(columns)), dtype=np.int64)
    for donor in donors:
        at = np.ix_(rows.get_indexer(donor.frame.index), columns.get_indexer(donor.frame.columns))
        values = donor.frame.to_numpy()
        known = ~np.isnan(values)
        total[at] += np.where(known, values, 0)
        number[at] += known
    values = np.where(number, total / np.maximum(number, 1), np.nan)
    everywhere = [
        sum(all(name in names for names in held) for name in together)
        for together, held in (
            (rows, [set(donor.frame.index) for donor in donors]),
            (columns, [set(donor.frame.columns) for donor in donors]),
        )
    ]
    note = (
        f"expression is the mean over {len(donors)} donors of what each measured; {everywhere[0]:,} of {len(rows):,} "
        f"regions and {everywhere[1]:,} of {len(columns):,} genes are in the tables of all of them"
    )
    return Expression(
        pd.DataFrame(values, index=rows, columns=columns), [*chain(*(donor.notes for donor in donors)), note]
    )


# Connectivity


@dataclass
class _Grid:
    """Numbers, and the names of their rows and columns where there are some.

    Attributes:
        named: Names of regions that came apart from the numbers.
    """

    values: np.ndarray
    rows: list[str] | None = None
    columns: list[str] | None = None
    named: list[list[str]] = field(default_factory=list)


@dataclass
class _Edges:
    """A weight for each pair of names that is listed."""

    pairs: list[tuple[str, str]]
    weights: Float[np.ndarray, " pairs"]


def read_connectivity(
    source: Any,
    *,
    fisher_z: bool = False,
    zero_negative: bool = False,
    directed: bool = False,
    regions: Sequence[str] | None = None,
) -> Connectivity:
    """Read the connectivity of pairs of regions.

    | source | holds |
    |---|---|
    | `.csv`, `.tsv`, `.txt` (also `.gz`, `.bz2`, `.xz`), `.parquet`, DataFrame | a square, with or without names in \
the first row and the first column; or a list of edges: i, j, weight |
    | `.npy`, `.npz`, `.mat` (v7.3 too), array | a square; of several arrays the one called `connectivity`, or the \
only square. Names from an array of as many texts, called names, labels or regions |
    | `.pconn.nii` | the square of a parcellated connectome, with the names of its parcels |

    Each of the first two also: the upper triangle without the diagonal, row by row, as a vector of N(N-1)/2; and a
    stack of subjects, S x N x N (arrays only) or S x N(N-1)/2. Of subjects the mean is taken, over those of which a
    pair is known.

    Numbers are names where they are distinct and whole and the shape has one row or column too many for a square.
    Names that only count from 0 are passed over, unless `regions` has them.

    In this order: the diagonal is left out; unless `directed`, a pair's two values may differ by 1e-6 max(1, |value|)
    and their mean is taken, or the one that is known; Fisher's z = artanh(r); the mean over subjects; negative values
    to 0.

    Args:
        fisher_z: Values are correlations: transform them.
        zero_negative: Make negative values 0.
        directed: Value [i, j] is that from i to j, and may differ from [j, i].
        regions: Names of the expression's regions, to tell names from numbers. A list of edges whose i and j are none
            of them and count from 0 or 1 is of positions in this order.

    Raises:
        OSError: The file is not there or may not be read.
        ImportError: The package that reads the format is not installed.
        ValueError: Naming the source and the pair: an entry that is no number or infinite; a matrix that is not
            symmetric, though not directed; |r| >= 1 with `fisher_z`; a pair twice with different weights; names of
            rows and columns that differ; a shape that is none of those above; no known pair; all the same.
    """
    name = name_of(source, "connectivity")
    known = _ids(regions or ())
    notes: list[str] = []
    found = _connectivity_source(source, name)
    if isinstance(found, _Edges):
        names, stack = _square_of_edges(found, name, known, directed, notes)
    else:
        names, stack = _squares(found, name, set(known), notes)
    if stack.shape[1] < 2:
        raise ValueError(f"{name} has {stack.shape[1]} regions, a pair needs 2")
    total, number = np.zeros(stack.shape[1:]), np.zeros(stack.shape[1:], dtype=np.int64)
    single = 0
    for subject, values in enumerate(stack, 1):
        one = f"{name}: subject {subject}" if len(stack) > 1 else name
        matrix = np.array(values, dtype=np.float64)
        matrix[np.isnan(matrix)] = np.nan  # some NaN of damaged files make NumPy warn
        _check_matrix(matrix, one, names, directed)
        if not directed:
            filled = np.isnan(matrix) & ~np.isnan(matrix.T)
            single += int(filled.sum())
            both = np.where(np.isnan(matrix.T), matrix, (matrix + matrix.T) / 2)
            matrix = np.where(filled, matrix.T, both)
        if fisher_z:
            outside = np.argwhere(np.abs(matrix) >= 1)
            if len(outside):
                pair, value = _pair(outside[0], names), matrix[tuple(outside[0])]
                raise ValueError(f"{one}: {pair} is {value:g}, with fisher_z it must be within -1 and 1, both excluded")
            matrix = np.arctanh(matrix)
        there = ~np.isnan(matrix)
        total += np.where(there, matrix, 0)
        number += there
    matrix = np.where(number, total / np.maximum(number, 1), np.nan)
    if single:
        notes.append(f"{name}: {single:,} pair(s) are given one way only, which is taken for both")
    if len(stack) > 1:
        notes.append(f"{name} is the mean over {len(stack):,} subjects")
    if fisher_z:
        notes.append(f"{name}: values are Fisher's z of what the source has")
    if zero_negative:
        negative = matrix < 0
        matrix[negative] = 0
        notes.append(f"{name}: {_pairs(int(negative.sum()), directed)} of negative connectivity are set to 0")
    check_target(matrix, name)
    unknown = unknown_regions(matrix)
    if unknown.any():
        notes.append(f"{name}: {int(unknown.sum())} of {len(matrix)} regions have no known pair")
    rest = np.isnan(matrix[np.ix_(~unknown, ~unknown)]).sum() - (~unknown).sum()
    if rest:
        notes.append(f"{name}: {_pairs(int(rest), directed)} among the other regions are not known")
    return Connectivity(names, matrix, notes)


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


def _connectivity_source(source: Any, name: str) -> _Grid | _Edges:
    if isinstance(source, pd.DataFrame):
        return _frame_grid(source, name)
    if sp.issparse(source):
        return _Grid(source.toarray())
    if isinstance(source, np.ndarray | list | tuple):
        with _clear(name, "is no array of numbers"):
            return _Grid(_numeric(np.asarray(source), name))
    if not isinstance(source, str | Path):
        raise ValueError(f"connectivity must be a file, a DataFrame or an array, got {_kind(source)}")
    path = _file(source)
    ending = path.suffix.lower()
    if ending == ".parquet":
        return _frame_grid(_read_parquet(path), name)
    if ending == ".npy":
        with _clear(name, "is no array of NumPy, or damaged"):
            return _Grid(_numeric(np.load(path, allow_pickle=False), name))
    if ending == ".npz":
        return _npz(path)
    if ending == ".mat":
        return _mat(path)
    if path.name.lower().endswith(".pconn.nii"):
        return _pconn(path)
    if _is_text(path):
        return _text_grid(_Lines(path))
    raise ValueError(f"{name}: the name must end in {TABLES}, .npy, .npz, .mat or .pconn.nii")


def _numeric(values: np.ndarray, name: str) -> np.ndarray:
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{name}: must be of numbers, it is of {values.dtype}")
    return values


def _frame_grid(frame: pd.DataFrame, name: str) -> _Grid | _Edges:
    titles = [_text(title) for title in frame.columns]
    if found := _edge_columns(titles):
        one, other, weight = (frame.iloc[:, i] for i in found)
        pairs = list(zip(map(_text, one), map(_text, other), strict=True))
        of = [f"{a!r}, {b!r}" for a, b in pairs]
        return _Edges(pairs, _frame_numbers(weight.to_frame(), name, of, ["weight"])[:, 0])
    rows = None if _counts_only(frame.index) else [_text(value) for value in frame.index]
    if rows is None and len(titles) == len(frame) + 1 and not pd.api.types.is_numeric_dtype(frame.dtypes.iloc[0]):
        rows = [_text(value) for value in frame.iloc[:, 0]]
        frame, titles = frame.iloc[:, 1:], titles[1:]
    columns = None if _counts_only(frame.columns) else titles
    where = rows or [str(number + 1) for number in range(len(frame))]
    return _Grid(_frame_numbers(frame, name, where, titles), rows, columns)


def _text_grid(lines: _Lines) -> _Grid | _Edges:
    cells = [lines.fields(number) for number in range(len(lines))]
    cells[0] = lines.titles()
    width = len(cells[0])
    for number, fields in enumerate(cells):
        if len(fields) != width:
            cut = ": is the file cut off?" if len(fields) < width else ""
            raise lines.error(number, f"has {len(fields)} fields, the first line has {width}{cut}")
    named = any(_is_name(fields[0]) for fields in cells[1:])
    corner = _is_name(cells[0][0]) or (cells[0][0] == "" and named)
    titled = any(map(_is_name, cells[0][1:])) or (corner and len(cells) >= width)
    edges = _edge_columns(cells[0])
    if edges or (width == 3 and len(cells) > 4):
        begin = 1 if edges or _number(cells[0][2]) is None else 0
        return _text_edges(lines, cells, edges or (0, 1, 2), begin)
    columns = cells[0] if titled else None
    first = 1 if titled else 0
    body = cells[first:]
    if not body:
        raise ValueError(f"{lines.name} has no rows below its header")
    rows = None
    # A first column of numbers may still be names: the shape tells, later.
    if named or any(_is_name(fields[0]) for fields in body):
        rows, body = [fields[0] for fields in body], [fields[1:] for fields in body]
    if columns is not None and (rows is not None or columns[0] == "" or len(body) == width - 1):
        columns = columns[1:]
    values = np.empty((len(body), len(body[0])))
    for number, fields in enumerate(body):
        bad = _fill(values[number], fields)
        if bad is not None:
            of = columns[bad] if columns is not None and bad < len(columns) else str(bad + 1)
            where = rows[number] if rows else str(number + 1)
            raise lines.error(first + number, f"pair {where!r}, {of!r} is {_short(fields[bad])}, it must be a number")
    return _Grid(values, rows, columns)


def _text_edges(lines: _Lines, cells: list[list[str]], at: tuple[int, int, int], begin: int) -> _Edges:
    pairs, weights = [], np.empty(len(cells) - begin)
    for number, fields in enumerate(cells[begin:]):
        one, other, text = (fields[i] for i in at)
        if not one or not other:
            raise lines.error(begin + number, "names one region only, an edge has two")
        value = _number(text)
        if value is None:
            raise lines.error(
                begin + number, f"the weight of {one!r}, {other!r} is {_short(text)}, it must be a number"
            )
        pairs.append((one, other))
        weights[number] = value
    return _Edges(pairs, weights)


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


def _npz(path: Path) -> _Grid:
    arrays = {}
    with open(path, "rb") as raw, _clear(str(path), "is no .npz file of NumPy, or damaged"):
        file = np.load(raw, allow_pickle=False)
        for key in file.files:
            try:
                arrays[key] = file[key]
            except ValueError as error:
                if "allow_pickle" not in str(error):  # objects: not read, since that may run code
                    raise
        return _chosen(arrays, str(path))


def _mat(path: Path) -> _Grid:
    name = str(path)
    with open(path, "rb") as file:
        head = file.read(520)
    with _clear(name, "is no .mat file of MATLAB, or damaged"):
        if HDF5 not in (head[:8], head[512:]):  # v7.3 has a header of its own before that of HDF5
            found = scipy.io.loadmat(path)
            return _chosen({key: value for key, value in found.items() if not key.startswith("__")}, name)
        h5py = _needed("h5py", name, "'omniset[cells]'")
        with h5py.File(path, "r") as file:
            return _chosen(dict(_variables(file)), name)


def _variables(file: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Those of a v7.3 file. Text is kept as its characters' numbers, cell arrays as references."""

    def text(held: Any) -> str:
        characters = held.attrs.get("MATLAB_class") == b"char" and "MATLAB_empty" not in held.attrs
        return "".join(map(chr, np.ravel(held[()]).tolist())) if characters else ""

    for key, held in file.items():
        if not hasattr(held, "dtype") or "MATLAB_empty" in held.attrs:
            continue
        if held.dtype.kind == "O":
            yield key, np.array([text(file[reference]) for reference in np.ravel(held[()])])
        elif held.attrs.get("MATLAB_class") != b"char":
            yield key, held[()].T  # arrays are kept column by column, so that HDF5 has their axes in reverse


def _chosen(arrays: dict[str, Any], name: str) -> _Grid:
    """The array of a file that is the connectivity, and what of the others may be names."""
    numbers = {}
    for key, value in arrays.items():
        array = value.toarray() if sp.issparse(value) else np.asarray(value)
        if array.dtype.kind in "biuf" and array.ndim in (1, 2, 3) and array.size > 1:
            numbers[key] = array
    called = [key for key in numbers if key.lower() == "connectivity"]
    square = [key for key, array in numbers.items() if array.ndim == 2 and array.shape[0] == array.shape[1]]
    stacks = [key for key, array in numbers.items() if array.ndim == 3]
    choice = called or square or stacks or list(numbers)
    if len(choice) != 1:
        held = [f"{key} ({' x '.join(map(str, np.shape(value)))})" for key, value in arrays.items()]
        raise ValueError(
            f"{name}: must have one square array, or one called 'connectivity'; it has {', '.join(held) or 'none'}"
        )
    texts = {key.lower(): _texts(value) for key, value in arrays.items() if key != choice[0]}
    return _Grid(numbers[choice[0]], named=[texts[key] for key in NAMES if texts.get(key)])


def _texts(value: Any) -> list[str]:
    """What an array of text, or MATLAB's cell array of it, says; empty if it is none."""
    array = np.asarray(value)
    if array.dtype.kind == "O":
        parts = [np.ravel(np.asarray(part)) for part in array.ravel()]
        if any(len(part) != 1 or part.dtype.kind not in "U" for part in parts):
            return []
        return [str(part[0]).strip() for part in parts]
    if array.dtype.kind == "S":
        return [text.decode("utf-8", "replace").strip() for text in array.ravel().tolist()]
    return [text.strip() for text in array.ravel().tolist()] if array.dtype.kind == "U" else []


def _pconn(path: Path) -> _Grid:
    nibabel = _needed("nibabel", str(path), "nibabel")
    with _clear(str(path), "is no .pconn.nii file, or damaged"):
        image = nibabel.load(path)
        rows, columns = ([_text(n) for n in image.header.get_axis(i).name] for i in (0, 1))
        return _Grid(np.asarray(image.dataobj), rows, columns)


def _squares(
    grid: _Grid, name: str, known: set[str], notes: list[str]
) -> tuple[list[str] | None, Float[np.ndarray, "subjects regions regions"]]:
    """Names, and a matrix of each subject."""
    values = np.asarray(grid.values)
    values = values if values.dtype == np.float32 else values.astype(np.float64)
    if values.ndim == 2 and grid.rows is None:
        values = _peeled(grid, values)
    if values.ndim == 3:
        stack = _subjects(values, name)
    elif values.ndim == 1 or (values.ndim == 2 and values.shape[0] != values.shape[1]):
        stack = _of_triangles(values.reshape(1, -1) if 1 in values.shape else np.atleast_2d(values), name, notes)
        grid.rows = grid.columns = None  # of subjects and of pairs
    else:
        stack = values[None]
    if stack.ndim != 3 or stack.shape[1] != stack.shape[2]:
        shape = " x ".join(map(str, np.shape(grid.values)))
        raise ValueError(f"{name}: must be regions x regions, it is {shape}")
    size = stack.shape[1]
    names = _names_of(grid, name, size, known, notes)
    if names is not None and grid.rows and grid.columns and _ids(grid.columns) != names:
        at = {one: i for i, one in enumerate(_ids(grid.columns))}
        stack = stack[:, :, [at[one] for one in names]]
    return names, stack


def _peeled(grid: _Grid, values: np.ndarray) -> np.ndarray:
    """Whole numbers in the first row or column, of a matrix that has one too many for a square, are names."""
    rows, columns = values.shape
    if columns == rows + 1 and (names := _whole(values[:, 0])):
        grid.rows = names
        if grid.columns is not None and len(grid.columns) == columns:
            grid.columns = grid.columns[1:]
        return values[:, 1:]
    if grid.columns is None and rows == columns + 1 and (names := _whole(values[0])):
        grid.columns = names
        return values[1:]
    if grid.columns is None and rows == columns > 2 and np.isnan(values[0, 0]):
        names, others = _whole(values[1:, 0]), _whole(values[0, 1:])
        if names and set(names) == set(others):
            grid.rows, grid.columns = names, others
            return values[1:, 1:]
    return values


def _whole(values: np.ndarray) -> list[str]:
    """Distinct whole numbers from 0 on as text; empty if they are others."""
    if not (np.isfinite(values) & (values >= 0) & (values < 2**53) & (values == np.floor(values))).all():
        return []
    names = [str(int(value)) for value in values]
    return names if len(set(names)) == len(names) else []


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


def _of_triangles(vectors: np.ndarray, name: str, notes: list[str]) -> np.ndarray:
    """Each row is the upper triangle of a matrix, without its diagonal, row by row."""
    edges = vectors.shape[1]
    size = round((1 + np.sqrt(1 + 8 * edges)) / 2)
    if size * (size - 1) // 2 != edges or not edges:
        raise ValueError(
            f"{name}: must be a square, or have the N(N-1)/2 values of an upper triangle; it is "
            f"{' x '.join(map(str, vectors.shape))}"
        )
    stack = np.full((len(vectors), size, size), np.nan)
    i, j = np.triu_indices(size, 1)
    stack[:, i, j] = stack[:, j, i] = vectors
    notes.append(f"{name}: {edges:,} values are taken as the upper triangle of {size} regions, row by row")
    return stack


def _names_of(grid: _Grid, name: str, size: int, known: set[str], notes: list[str]) -> list[str] | None:
    given = []
    for names in (grid.rows, grid.columns):
        if names is not None:
            ids = _ids(names)
            if ids == [str(i) for i in range(size)] and not known.issuperset(ids):
                counted = f"{name}: 0, 1, ... beside the matrix are taken for a count, not for names"
                notes += [counted] if counted not in notes else []
                continue
            if len(ids) != size:
                raise ValueError(f"{name} has {len(ids)} names for {size} regions")
            _check_names(ids, name)
            given.append(ids)
    if len(given) == 2 and set(given[0]) != set(given[1]):
        one = sorted(set(given[0]) - set(given[1]))
        other = sorted(set(given[1]) - set(given[0]))
        raise ValueError(
            f"{name}: rows and columns must be of the same regions, only in rows: {_listed(one, 3)}; only "
            f"in columns: {_listed(other, 3)}"
        )
    for names in grid.named:
        if not given and len(names) == size == len(set(names)) and "" not in names:
            given.append(_ids(names))
    if len(given) == 1 and grid.rows and grid.columns:
        grid.rows = grid.columns = None  # one of them is a count
    return given[0] if given else None


def _square_of_edges(
    edges: _Edges, name: str, known: list[str], directed: bool, notes: list[str]
) -> tuple[list[str] | None, Float[np.ndarray, "1 regions regions"]]:
    if not edges.pairs:
        raise ValueError(f"{name} has no edges")
    flat = _ids(list(chain(*edges.pairs)))
    order = list(dict.fromkeys(flat))
    if len(order) > MOST:
        raise ValueError(f"{name}: edges are between {len(order):,} regions, at most {MOST:,} can be read")
    begin = None
    if all(map(WHOLE.fullmatch, order)):
        begin = _begin(order, known)
    elif not any(map(_is_name, order)):
        raise ValueError(f"{name}: edges must be between names or whole numbers, they are between {_listed(order, 2)}")
    if begin is None:
        at, size = {one: i for i, one in enumerate(order)}, len(order)
    else:
        at, size = {one: int(one) - begin for one in order}, len(known) or len(order)
        notes.append(f"{name}: numbers of regions count from {begin}, they are taken for positions, not for names")
    matrix = np.full((size, size), np.nan)
    seen: dict[tuple[int, int], float] = {}
    for one, other, weight in zip(flat[::2], flat[1::2], edges.weights.tolist(), strict=True):
        i, j = at[one], at[other]
        for key in {(i, j)} if directed else {(i, j), (j, i)}:
            before = seen.setdefault(key, weight)
            same = before == weight or np.isnan([before, weight]).all()
            if i != j and not same and not abs(before - weight) <= _allowed(before, weight):
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
    """Empty the diagonal; raise ValueError where the rest is infinite, or not symmetric unless directed."""
    np.fill_diagonal(matrix, np.nan)
    infinite = np.argwhere(np.abs(matrix) > LARGEST)
    if len(infinite):
        value = matrix[tuple(infinite[0])]
        raise ValueError(
            f"{name}: {_pair(infinite[0], names)} is {value:g}, it must be finite, at most 3.4e38, or NaN where it is "
            "not known"
        )
    apart = np.abs(matrix - matrix.T)
    bad = np.argwhere(np.triu(apart > _allowed(matrix, matrix.T), 1))
    if len(bad) and not directed:
        i, j = bad[0]
        halves = [matrix[triangle(len(matrix), k)] for triangle, k in ((np.tril_indices, -1), (np.triu_indices, 1))]
        half = "" if all(half.any() for half in halves) else "; one triangle is all 0: fill it"
        raise ValueError(
            f"{name} is not symmetric at {len(bad):,} pair(s): {_pair(bad[0], names)} is {matrix[i, j]:g}, the "
            f"other way {matrix[j, i]:g}{half}; give directed=True if connectivity has a direction"
        )


def _allowed(one: Any, other: Any) -> Any:
    return SYMMETRIC * np.maximum(1, np.maximum(np.abs(one), np.abs(other)))


def _pair(at: Int[np.ndarray, " 2"], names: list[str] | None) -> str:
    i, j = at.tolist()
    return f"pair {names[i]!r}, {names[j]!r}" if names else f"the pair of regions {i + 1} and {j + 1}"


def _pairs(entries: int, directed: bool) -> str:
    number = entries if directed else entries // 2
    return f"{number:,} pair{'' if number == 1 else 's'}"


# Coordinates


def read_coordinates(source: Any, *, regions: Sequence[str] | None = None) -> pd.DataFrame:
    """Read where regions are.

    Columns are found by their titles, in upper or lower case:

    | what | titles |
    |---|---|
    | places, in mm | mni_x, mni_y, mni_z; x_mni, y_mni, z_mni; x, y, z; r, a, s |
    | name | region, label, name, roi, id; else the index, or the first column |
    | hemisphere | hemisphere, hemi: L, LH, left; R, RH, right; B, M or nothing for none |
    | network | network, network_label, yeo7; else the names of Schaefer's atlas (7Networks_LH_Vis_1: Vis); else \
structure; else `cortex` (cortex or subcortex) |

    A region whose hemisphere no column tells has the one that its name does (LH, RH, L_, _R, left, ...), else that of
    the sign of x.

    Args:
        source: A .csv, .tsv, .txt (also .gz, .bz2, .xz) or .parquet file, or a DataFrame.
        regions: Names that regions have elsewhere: of several columns that may be the names, the one with most of them
            is taken.

    Returns:
        Index: names; columns: x, y, z, hemisphere ("L", "R" or ""), network where it is known, `cortex` where it is
        given. Its `attrs["notes"]` says what was decided.

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: Naming the source and the region: a place that is no finite number; a name that is missing or there
            twice; an unknown hemisphere; no such columns.
    """
    name = name_of(source, "coordinates")
    titles, rows = _coordinates_table(source, name)
    at: dict[str, int] = {}
    for number, title in enumerate(titles):
        at.setdefault(re.sub("[ .-]", "_", title.lower()), number)
    places = next((found for found in PLACES if all(title in at for title in found)), None)
    if places is None:
        raise ValueError(f"{name}: must have columns x, y, z (or mni_x, ...; x_mni, ...), it has {_listed(titles)}")
    if not rows:
        raise ValueError(f"{name} has no rows below its header")
    columns = [[row[number] for row in rows] for number in range(len(titles))]
    names = _coordinate_names(columns, titles, at, [at[title] for title in places], name, set(_ids(regions or ())))
    values = np.empty((len(names), 3))
    for axis, title in enumerate(places):
        for number, text in enumerate(columns[at[title]]):
            value = _number(text)
            if value is None or not np.isfinite(value):
                found = _short(text) if text else "empty"
                raise ValueError(
                    f"{name}: region {names[number]!r}: {titles[at[title]]} is {found}, it must be a finite number"
                )
            values[number, axis] = value
    notes: list[str] = []
    frame = pd.DataFrame(values, index=pd.Index(names, name="region"), columns=["x", "y", "z"])
    given = next((columns[at[title]] for title in ("hemisphere", "hemi") if title in at), None)
    frame["hemisphere"] = _hemispheres(given, names, values[:, 0], name, notes)
    cortex = [_flag(text) for text in columns[at["cortex"]]] if "cortex" in at else None
    network = _networks(columns, at, names, cortex)
    if network is not None:
        frame["network"] = network
    if cortex is not None:
        frame["cortex"] = pd.array(cortex, dtype="boolean") if None in cortex else cortex
    frame.attrs["notes"] = notes
    return frame


def _coordinates_table(source: Any, name: str) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of text; an index is the first column."""
    if isinstance(source, str | Path):
        path = _file(source)
        if _is_text(path):
            titles = (lines := _Lines(path)).titles()
            return titles, [fields for _, fields in lines.rows(titles)]
        if path.suffix.lower() != ".parquet":
            raise ValueError(f"{name}: the name must end in {TABLES}")
        source = _read_parquet(path)
    if not isinstance(source, pd.DataFrame):
        raise ValueError(f"coordinates must be a file or a DataFrame, got {_kind(source)}")
    columns = [[_text(value) for value in source.iloc[:, i]] for i in range(source.shape[1])]
    titles = [_text(title) for title in source.columns]
    if not _counts_only(source.index):
        titles.insert(0, _text(source.index.name))
        columns.insert(0, [_text(value) for value in source.index])
    return titles, [list(row) for row in zip(*columns, strict=True)]


def _coordinate_names(
    columns: list[list[str]], titles: list[str], at: dict[str, int], places: list[int], name: str, known: set[str]
) -> list[str]:
    candidates = [at[title] for title in TITLES if title in at]
    counted = columns[0] == [str(i) for i in range(len(columns[0]))]
    if not titles[0] and not counted:  # an index without a title
        candidates.insert(0, 0)
    if not candidates and 0 not in places:
        candidates = [0]
    if not candidates:
        raise ValueError(f"{name}: must have a column of names of the regions, called {', '.join(TITLES)}")
    spelled = [_ids(columns[number]) for number in candidates]
    whole = [names for names in spelled if len(set(names)) == len(names) and "" not in names]
    names = max(whole or spelled[:1], key=lambda names: sum(one in known for one in names))
    _check_names(names, name)
    return names


def _hemispheres(
    given: list[str] | None, names: list[str], x: Float[np.ndarray, " regions"], name: str, notes: list[str]
) -> list[str]:
    if given is not None:
        for region, text in zip(names, given, strict=True):
            if text.lower() not in HEMISPHERES:
                raise ValueError(f"{name}: region {region!r}: hemisphere is {_short(text)}, it must be L, R or empty")
        return [HEMISPHERES[text.lower()] for text in given]
    said = [hemisphere_of_name(region) for region in names]
    signs = ["L" if value < 0 else "R" if value > 0 else "" for value in x.tolist()]
    if silent := [region for region, one in zip(names, said, strict=True) if not one]:
        notes.append(
            f"{name}: the hemisphere of {len(silent):,} of {len(names):,} regions, such as {silent[0]!r}, is that of "
            "the sign of x"
        )
    return [one or sign for one, sign in zip(said, signs, strict=True)]


def hemisphere_of_name(name: str) -> str:
    """The hemisphere that a region's name tells: "L", "R", or "" if it tells none.

    Example:
        >>> [hemisphere_of_name(n) for n in ("7Networks_LH_Vis_1", "ctx-rh-cuneus", "V1_L", "Left Thalamus", "Laccumb")]
        ['L', 'R', 'L', 'L', '']
    """
    parts = re.split(r"[^A-Za-z0-9]+", name)
    for number, part in enumerate(parts):
        # A letter alone says it at either end only: in between it may be a part of something else.
        if part.lower() in ("lh", "rh", "left", "right") or (part in ("L", "R") and number in (0, len(parts) - 1)):
            return HEMISPHERES[part.lower()] if len(parts) > 1 else ""
    return ""


def network_of_name(name: str) -> str:
    """The network that a name of Schaefer's atlas tells, else "".

    Example:
        >>> [network_of_name(name) for name in ("7Networks_LH_Vis_1", "17Networks_RH_DefaultA_PFCm_2", "L_insula")]
        ['Vis', 'DefaultA', '']
    """
    found = SCHAEFER.fullmatch(name)
    return found[1] if found else ""


def _networks(
    columns: list[list[str]], at: dict[str, int], names: list[str], cortex: list[bool | None] | None
) -> list[str] | None:
    found = [""] * len(names)
    sources = [columns[at[title]] for title in ("network", "network_label", "yeo7") if title in at][:1]
    sources.append([network_of_name(region) for region in names])
    sources += [columns[at["structure"]]] if "structure" in at else []
    if cortex is not None:
        sources.append(["" if flag is None else "cortex" if flag else "subcortex" for flag in cortex])
    for source in sources:
        found = [one or ("" if text.lower() in MISSING else text) for one, text in zip(found, source, strict=True)]
    return found if any(found) else None


def _flag(text: str) -> bool | None:
    return {"true": True, "1": True, "1.0": True, "yes": True, "cortex": True}.get(
        text.lower(), False if text.lower() in ("false", "0", "0.0", "no", "subcortex") else None
    )


# What all of them share


class _Lines:
    """The lines of a table of text that are not empty, and what separates their fields.

    The first line tells the separator: tabs; else commas or semicolons, whichever are more; else spaces.
    """

    def __init__(self, path: Path) -> None:
        self._file = TextFile(path)
        self.name = str(path)
        self._lines = [(row, line) for row, line in self._file.lines() if line.strip(" ")]
        if not self._lines:
            raise ValueError(f"{path} is empty")
        first = re.sub('"[^"]*"', "_", self._lines[0][1])
        commas, semicolons = first.count(","), first.count(";")
        self._separator: str | None = ","
        if "\t" in first:
            self._separator = "\t"
        elif semicolons > commas:
            self._separator = ";"
        elif not commas and " " in first.strip():
            self._separator = None

    def __len__(self) -> int:
        return len(self._lines)

    def fields(self, number: int) -> list[str]:
        """Of the number-th line, without spaces and quotes around them."""
        line = self._lines[number][1]
        if '"' not in line:
            return [part.strip() for part in line.split(self._separator)]
        try:
            reader = csv.reader(
                [line.strip()], delimiter=self._separator or " ", strict=True, skipinitialspace=self._separator is None
            )
            return [part.strip() for part in next(reader)]
        except csv.Error as error:
            raise self.error(number, f'has a quote (") out of place ({error})') from error

    def titles(self) -> list[str]:
        """The fields of the first line. R gives the column of names no title."""
        titles = self.fields(0)
        return ["", *titles] if len(self) > 1 and len(self.fields(1)) == len(titles) + 1 else titles

    def rows(self, titles: list[str], *, empty: bool = False) -> Iterator[tuple[int, list[str]]]:
        """The fields of the other lines, with their numbers.

        Args:
            empty: Give lines of empty fields too: without names, they are regions like the others.

        Raises:
            ValueError: One has more fields, or fewer.
        """
        for number in range(1, len(self)):
            fields = self.fields(number)
            if len(fields) != len(titles):
                cut = ": is the file cut off?" if len(fields) < len(titles) else ""
                raise self.error(number, f"has {len(fields)} fields, the header has {len(titles)}{cut}")
            if empty or any(fields):
                yield number, fields

    def error(self, number: int, message: str) -> ValueError:
        return self._file.error(self._lines[number][0], message)


def _is_text(path: Path) -> bool:
    ends = [suffix.lower() for suffix in path.suffixes]
    if ends and ends[-1] in OPENERS:
        ends.pop()
    return bool(ends) and ends[-1] in (".csv", ".tsv", ".txt")


def _file(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.is_dir():
        raise ValueError(f"{source} is a directory, it must be a file")
    path.stat()  # not there: FileNotFoundError, whatever would read it
    return path


def _read_parquet(path: Path) -> pd.DataFrame:
    with _clear(str(path), "is cut off, damaged or no Parquet file"):
        return pd.read_parquet(path, engine="pyarrow")


def _number(text: str) -> float | None:
    """NaN where nothing is written; None: no number."""
    plain = text.strip()
    if NUMBER.fullmatch(plain):
        return float(plain)
    lower = plain.lower()
    if lower in MISSING:
        return np.nan
    return {"inf": np.inf, "+inf": np.inf, "-inf": -np.inf}.get(lower.replace("infinity", "inf"))


def _is_name(text: str) -> bool:
    return _number(text) is None


def _fill(row: Float[np.ndarray, " columns"], texts: list[str]) -> int | None:
    """Write the numbers of texts into a row; the place of the first that is none."""
    try:
        row[:] = texts
    except ValueError:
        pass
    else:
        if not any("_" in text for text in texts):  # Python takes 1_0 for 10
            return None
    for at, text in enumerate(texts):
        number = _number(text)
        if number is None:
            return at
        row[at] = number
    return None


def _frame_numbers(
    frame: pd.DataFrame, name: str, rows: list[str], columns: list[str]
) -> Float[np.ndarray, "rows columns"]:
    """A DataFrame's values; what is text is read as the files are."""
    if all(isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in frame.dtypes):
        return frame.to_numpy(dtype=np.float64)
    values = np.empty(frame.shape)
    for number in range(frame.shape[1]):
        column = frame.iloc[:, number]
        for at, value in enumerate(column.tolist()):
            if isinstance(value, bool | int | float | np.number) and not isinstance(value, np.complexfloating):
                found: float | None = float(value)
            else:
                found = _number(_text(value)) if value is None or value is pd.NA or isinstance(value, str) else None
            if found is None:
                raise ValueError(f"{name}: {rows[at]!r}, {columns[number]!r} is {_short(value)}, it must be a number")
            values[at, number] = found
    return values


def _text(value: Any) -> str:
    """A name or an entry as text; what is missing is empty."""
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and np.isnan(value)):
        return ""
    return str(value).strip()


def _counts_only(index: pd.Index) -> bool:
    """An index that pandas made up."""
    return index.name is None and index.dtype.kind in "iu" and index.tolist() == list(range(len(index)))


def _ids(names: Sequence[str]) -> list[str]:
    """Names as they are; whole numbers that were read as floats ("1.0") without their fraction."""
    found = [WHOLE.fullmatch(name) for name in names]
    return [str(one[1]) for one in found if one] if all(found) else list(names)


def _check_names(names: list[str], name: str) -> None:
    if "" in names:
        raise ValueError(f"{name}: region {names.index('') + 1:,} has no name")
    seen: set[str] = set()
    for one in names:
        if one in seen:
            raise ValueError(f"{name}: region {one!r} is there twice")
        seen.add(one)


def _kind(source: Any) -> str:
    return type(source).__name__


def _needed(module: str, name: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{name} needs {module}: pip install {package}") from error


@contextmanager
def _clear(name: str, message: str) -> Iterator[None]:
    """Errors of the libraries that read, whatever they are, in our words. Ours begin with the name and stay.

    Their warnings are left out: what matters of them (names that are there twice, a damaged header) is an error here.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ImportError:
        raise
    except Exception as error:  # damaged files make these libraries raise errors of any kind
        if str(error).startswith(name) or (isinstance(error, OSError) and error.filename is not None):
            raise
        raise ValueError(f"{name}: {message} ({_tidy(str(error))})") from error
