"""Files of the expression of genes in regions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from omniset.regions.files import (
    LARGEST,
    TABLES,
    check_names,
    clear_errors,
    counts_only,
    frame_numbers,
    ids_of,
    is_text,
    name_columns,
    name_of,
    path_of,
    read_parquet,
    sheet_of,
    sided,
    text_of,
)
from omniset.tables.files import listed, short
from omniset.tables.genes import canonical
from omniset.tables.hdf5 import check_hdf5
from omniset.tables.matrices import needed
from omniset.tables.sheets import Sheet, number_of, numbers_of

GENE_TITLES = ("gene_symbol", "symbol", "gene_name", "gene", "gene_id", "entrez_id", "ensembl_id")
SYMBOL = re.compile(r"(?!(?:LH|RH|L|R)[-.])(?=..)[A-Z][A-Z0-9]*([-.][A-Z0-9]+)*|C(\d+|X|Y)orf\d+[A-Z]?")
ENSEMBL_GENE = re.compile(r"ENS[A-Z]*G\d{11}(_\w+)?")
MONTHS = "(?:Jan|Feb|Mar|Mrz|Apr|May|Mai|Jun|Jul|Aug|Sep|Oct|Okt|Nov|Dec|Dez)"
DATE = re.compile(rf"\d{{1,2}}-{MONTHS}|{MONTHS}-\d{{1,2}}|20\d\d-\d\d-\d\d( 00:00:00)?|\d{{1,2}}/\d{{1,2}}/\d+")
NO_GENES = {"x", "y", "z", "mni_x", "mni_y", "mni_z", "hemisphere", "hemi", "structure", "network", "cortex"}
RARE, USUAL = 0.1, 0.8  # shares of names that do not, and do, look like genes, between which a name is said
SURE = 0.25  # difference in share from which on one side of a table is that of the genes


@dataclass
class Expression:
    """Expression of genes in regions."""

    frame: pd.DataFrame  # float64, index: names of regions, columns: names of genes, each once. NaN: not measured.
    notes: list[str] = field(default_factory=list)  # what was decided, a sentence each


def read_expression(
    source: Any, aliases: Mapping[str, str] | None = None, *, regions: Sequence[str] | None = None
) -> Expression:
    """Read the expression of genes in regions.

    Which files, and what is taken of them, says "What is read" in docs/regions.md; in Python also a DataFrame, an
    AnnData, and a list or dict of any of these, one for each donor.

    Of donors the mean is taken, by names of regions and genes, over those that measured a value.

    A table of genes x regions is turned round. Let s be the share of names that look like a gene (a symbol of HGNC or
    an Ensembl id, or in `aliases`) minus the share that are in `regions`. Genes are on the side where s is larger, if
    it is so by 0.25; else they are taken to be in the columns.

    Genes are spelled as `omniset.tables.genes.canonical` does. Of columns of one gene the mean is taken. Whole numbers
    (ids of an atlas, Entrez ids) are kept as text.

    Args:
        aliases: Other names of genes, alias to name.
        regions: Names of regions that other files have, to tell which way round the table is.

    Raises:
        OSError: The file is not there or may not be read.
        ImportError: The package that reads the format is not installed.
        ValueError: Naming the source, the region and the gene: an entry that is no number or infinite; a region that
            is there twice or has no name; no regions, no genes; a file cut off, damaged or of another format.
    """
    known = set(ids_of(regions or ()))
    if not isinstance(source, Mapping | list | tuple):
        return _expression(source, name_of(source, "expression"), aliases or {}, known)
    donors = source.items() if isinstance(source, Mapping) else enumerate(source, 1)
    named = [(one, name_of(one, f"expression of donor {key!r}")) for key, one in donors]
    if not named:
        raise ValueError("expression must be of one donor at least, it is an empty list")
    expressions = [_expression(one, name, aliases or {}, known) for one, name in named]
    return expressions[0] if len(expressions) == 1 else _mean_of_donors(expressions)


def _expression(source: Any, name: str, aliases: Mapping[str, str], known: set[str]) -> Expression:
    table, notes = _expression_table(source, name)
    if not table.size:
        raise ValueError(f"{name} must have regions and genes, it has {len(table)} x {table.shape[1]}")
    table.index, table.columns = pd.Index(ids_of([*table.index])), pd.Index(ids_of([*table.columns]))
    table = _genes_in_columns(table, name, aliases, known, notes)
    rows, columns, values = table.index.tolist(), table.columns.tolist(), table.to_numpy()
    check_names(rows, name)
    if "" in columns:
        raise ValueError(f"{name}: gene {columns.index('') + 1:,} has no name")
    with np.errstate(invalid="ignore"):  # some NaN of damaged files make NumPy warn
        bad = np.argwhere(np.abs(values) > LARGEST)
    if len(bad):
        row, column = bad[0]
        raise ValueError(
            f"{name}: region {rows[row]!r}, gene {columns[column]!r} is {values[row, column]:g}, it must be finite, at "
            "most 3.4e38, or NaN where nothing was measured"
        )
    return Expression(_one_column_a_gene(table, name, aliases, notes), notes)


def _expression_table(source: Any, name: str) -> tuple[pd.DataFrame, list[str]]:
    """Numbers with names for rows and columns, whichever of them are the genes; and notes."""
    if isinstance(source, pd.DataFrame):
        return _frame_table(source, name)
    if hasattr(source, "obs_names") and hasattr(source, "var_names"):
        return _anndata_table(source, name), []
    if not isinstance(source, str | Path):
        kind = type(source).__name__
        raise ValueError(f"expression must be a file, a DataFrame, an AnnData or donors of these, got {kind}")
    path = path_of(source)
    if path.name.lower().endswith(".h5ad"):
        anndata = needed("anndata", name)
        check_hdf5(path, whole=True)
        with clear_errors(name, "is no .h5ad file that can be read"):
            adata = anndata.read_h5ad(path)
        return _anndata_table(adata, name), []
    if path.suffix.lower() == ".parquet":
        return _frame_table(read_parquet(path), name)
    if is_text(path):
        return _text_table(sheet_of(path))
    raise ValueError(f"{name}: the name must end in {TABLES} or .h5ad")


def _anndata_table(adata: Any, name: str) -> pd.DataFrame:
    with clear_errors(name, "X cannot be read"):
        x = adata.to_memory().X if adata.isbacked else adata.X
        if x is None:
            raise ValueError(f"{name}: has no X, the expression of genes in regions")
        x = np.asarray(x.toarray() if sp.issparse(x) else x)
        rows, columns = ([text_of(n) for n in names] for names in (adata.obs_names, adata.var_names))
        if x.dtype.kind not in "biuf":
            raise ValueError(f"{name}: X must be of numbers, it is of {x.dtype}")
        return pd.DataFrame(x.astype(np.float64), rows, columns)


def _frame_table(frame: pd.DataFrame, name: str) -> tuple[pd.DataFrame, list[str]]:
    titles = [text_of(title) for title in frame.columns]

    def texts(at: int) -> list[str]:
        return [text_of(value) for value in frame.iloc[:, at]]

    names, side, places = None, None, [i for i, title in enumerate(titles) if title.lower() not in NO_GENES]
    if counts_only(frame.index):
        named = bool(titles) and not pd.api.types.is_numeric_dtype(frame.dtypes.iloc[0])
        names, side, places = _divided(titles, named, texts)
    notes: list[str] = []
    rows = [text_of(value) for value in frame.index] if names is None else texts(names)
    rows = sided(rows, None if side is None else texts(side), notes, name)
    columns = [titles[i] for i in places]
    return pd.DataFrame(frame_numbers(frame.iloc[:, places], name, rows, columns), rows, columns), notes


def _text_table(sheet: Sheet) -> tuple[pd.DataFrame, list[str]]:
    titles, name = sheet.titles, str(sheet.file.path)
    if len(titles) < 2:
        raise sheet.file.error(
            sheet.header, "has one column only: columns must be separated by commas, tabs, semicolons or spaces"
        )
    if _fractions(titles):
        raise sheet.file.error(sheet.header, "holds numbers: names of genes must stand above them, in a header")

    def texts(at: int) -> list[str]:
        return [fields[at] for fields in sheet.rows if len(fields) > at]

    names, side, places = _divided(titles, not _fractions(texts(0)), texts)
    columns = [titles[i] for i in places]
    rows: list[str] = []
    sides: list[str] = []
    values: list[np.ndarray] = []
    for row, fields in sheet.whole(blank=names is None):
        rows.append(str(len(rows) + 1) if names is None else fields[names])
        sides.append("" if side is None else fields[side])
        numbers, bad = numbers_of([fields[i] for i in places])
        values.append(numbers)
        if bad is not None:
            at = places[bad]
            raise sheet.file.error(row, f"{rows[-1]!r}, {titles[at]!r} is {short(fields[at])}, it must be a number")
    notes = [f"{name} has no names of regions: they are named by their number, from 1"] if names is None else []
    rows = sided(rows, sides, notes, name)
    return pd.DataFrame(np.array(values).reshape(len(rows), len(columns)), rows, columns), notes


def _divided(
    titles: list[str], named: bool, texts: Callable[[int], list[str]]
) -> tuple[int | None, int | None, list[int]]:
    """Where names, hemispheres and values are. Names are in one of the first columns, by its title and so that they
    tell regions apart, if one does; else in the first column if it may.
    """
    lower = [title.lower() for title in titles]
    genes = [lower.index(title) for title in GENE_TITLES if title in lower[:3]]
    columns = [*name_columns(titles[:3]), *genes] or [0] * named
    names = next((at for at in columns if len(set(texts(at))) == len(texts(at))), columns[0] if columns else None)
    side = next((i for i, title in enumerate(lower) if title in ("hemisphere", "hemi")), None)
    # Columns before the names are counters and the like.
    left = set() if names is None else {*columns, *range(names)}
    return names, side, [i for i in range(len(titles)) if i not in left and lower[i] not in NO_GENES]


def _fractions(texts: list[str]) -> bool:
    """No names: all are numbers, and some have a fraction."""
    numbers = [number_of(text) for text in texts]
    return None not in numbers and any(number is not None and number % 1 > 0 for number in numbers)


def _genes_in_columns(
    table: pd.DataFrame, name: str, aliases: Mapping[str, str], known: set[str], notes: list[str]
) -> pd.DataFrame:
    def share(names: pd.Index) -> float:
        genes = sum(bool(SYMBOL.fullmatch(n) or ENSEMBL_GENE.fullmatch(canonical(n)) or n in aliases) for n in names)
        return (genes - sum(n in known for n in names)) / len(names)

    difference = share(table.columns) - share(table.index)
    if difference <= -SURE:
        notes.append(f"{name} has genes in its rows and was turned round")
        return table.T
    if difference < SURE:
        notes.append(
            f"{name}: names do not tell whether genes are in rows or columns: columns such as {table.columns[0]!r} are "
            f"taken for genes, rows such as {table.index[0]!r} for regions"
        )
    return table


def _one_column_a_gene(table: pd.DataFrame, name: str, aliases: Mapping[str, str], notes: list[str]) -> pd.DataFrame:
    """Genes as `canonical` spells them; of several columns the mean of what was measured."""
    plain = [canonical(column) for column in table.columns]
    titles = zip(map(str, table), plain, strict=True)
    spelled = [canonical(aliases.get(title, aliases.get(one, one))) for title, one in titles]
    if renamed := [title for title, new in zip(plain, spelled, strict=True) if title != new]:
        notes.append(f"{name}: {len(renamed):,} gene(s) are named by an alias, such as {renamed[0]!r}")
    odd = [title for title in spelled if title[:1].islower()]
    if len(odd) < RARE * len(spelled) < sum(bool(SYMBOL.fullmatch(title)) for title in spelled) * RARE / USUAL and odd:
        notes.append(
            f"{name}: {listed(odd, 3)} are taken for genes, and their names look like those of none: are they?"
        )
    if dates := [*filter(DATE.fullmatch, spelled)]:
        notes.append(
            f"{name}: {len(dates)} gene(s) are dates such as {dates[0]!r}, which spreadsheets make of MARCH1 or SEPT2: "
            "--aliases can name them"
        )
    table = table.set_axis(spelled, axis=1)
    if table.columns.is_unique:
        return table
    several = table.columns[table.columns.duplicated()].unique()
    notes.append(
        f"{name}: {len(several):,} gene(s) are in several columns, such as {several[0]!r}: the mean of what was "
        "measured is taken"
    )
    return table.T.groupby(level=0, sort=False).mean().T


def _mean_of_donors(donors: list[Expression]) -> Expression:
    frames = [donor.frame for donor in donors]
    mean = pd.concat(frames).groupby(level=0, sort=False).mean()
    regions, genes = (len(set.intersection(*map(set, names))) for names in zip(*(f.axes for f in frames), strict=True))
    note = (
        f"expression is the mean over {len(donors)} donors of what each measured; {regions:,} of {len(mean):,} regions "
        f"and {genes:,} of {mean.shape[1]:,} genes are in the tables of all of them"
    )
    return Expression(mean, [*chain(*(donor.notes for donor in donors)), note])
