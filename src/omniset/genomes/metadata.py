"""What is known of genomes beside their families: how complete they are, and where they stand in a taxonomy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from omniset.genomes.formats import GENOME_NAMES, Sheet, look, records, twice
from omniset.tables.files import _listed, _short
from omniset.tables.labels import NUMBER

RANKS = ("domain", "phylum", "class", "order", "family", "genus", "species")

COMPLETENESS = (
    *("completeness", "checkm2_completeness", "checkm_completeness"),
    *("completeness_specific", "completeness_general"),
)
CONTAMINATION = ("contamination", "checkm2_contamination", "checkm_contamination")
LINEAGE = ("gtdb_taxonomy", "classification", "gtdb_classification", "taxonomy", "lineage", "taxon", "ncbi_taxonomy")
PREFIXES = {"d": 0, "k": 0, "p": 1, "c": 2, "o": 3, "f": 4, "g": 5, "s": 6}
ALIASES = {"superkingdom": "domain", "kingdom": "domain"}


def read_qualities(path: str | Path) -> pd.DataFrame:
    """Completeness and contamination of genomes, in percent.

    Args:
        path: CheckM2's quality_report.tsv, CheckM's table (written with --tab_table), GTDB's metadata, or a table with
            columns genome, completeness and, if wanted, contamination, in upper or lower case.

    Returns:
        Columns completeness and contamination (NaN where a value is not given), index genome.

    Raises:
        OSError, ValueError: As TextFile; a column is missing, a genome is there twice, a value is out of its bounds:
            completeness 0 to 100, contamination from 0 on (it may exceed 100).
    """
    sheet = look(path)
    if sheet.columns[0].startswith("---"):
        raise sheet.file.error(None, "is CheckM's table for readers: write it with --tab_table")
    genome = _genome_column(sheet)
    completeness = sheet.need(COMPLETENESS, "completeness")
    tool = sheet.keys[completeness].rpartition("_")[0]
    contamination = sheet.first((f"{tool}_contamination", *CONTAMINATION))
    at = [i for i in (completeness, contamination) if i is not None]
    names, rows, texts = _column_of_names(sheet, genome, at)
    values = np.full((len(names), 2), np.nan)
    for number, (row, found) in enumerate(zip(rows, texts, strict=True)):
        for which, text in enumerate(found):
            values[number, which] = _percent(sheet, row, at[which], text, 100.0 if which == 0 else np.inf)
    given = values[:, 0][~np.isnan(values[:, 0])]
    if given.size and 0 < given.max() <= 1:
        raise sheet.file.error(
            None,
            f"column {sheet.columns[completeness]!r} is at most {given.max():g}, so it seems to hold fractions: "
            "multiply completeness and contamination by 100",
        )
    return pd.DataFrame(values, index=pd.Index(names, name="genome"), columns=["completeness", "contamination"])


def _percent(sheet: Sheet, row: int, column: int, text: str, most: float) -> float:
    text = text.removesuffix("%").strip()
    if text.lower() in ("", "na", "nan", "n/a", "none", "null", "-"):
        return np.nan
    value = float(text) if NUMBER.fullmatch(text) else np.nan
    if not 0 <= value <= most or np.isinf(value):
        bound = "from 0 to 100" if most == 100 else ">= 0"
        raise sheet.file.error(
            row, f"column {sheet.columns[column]!r} is {_short(text)}, it must be a number {bound} (percent)"
        )
    return value


def read_taxonomy(path: str | Path) -> pd.DataFrame:
    """Where genomes stand in a taxonomy.

    Args:
        path: A table with lineages (d__Bacteria;p__...;s__...) in a column such as gtdb_taxonomy, classification,
            taxonomy or lineage; or with a column per rank; or GTDB's file of accession<TAB>lineage without a header.

    Returns:
        A column per rank (of `RANKS`) that the file has, None where it is empty; index genome. Names are without d__.

    Raises:
        OSError, ValueError: As TextFile; a column is missing, a genome is there twice, a lineage cannot be read.
    """
    sheet = look(path)
    if len(sheet.columns) > 1 and re.match(r"[dk]__[^;]*;", sheet.columns[1]):  # no header
        sheet.columns, sheet.header = ["genome", "lineage"] + [""] * (len(sheet.columns) - 2), -2
    genome, lineage = _genome_column(sheet), sheet.first(LINEAGE)
    ranks = {ALIASES.get(k, k): i for i, k in enumerate(sheet.keys) if ALIASES.get(k, k) in RANKS and i != genome}
    if lineage is None and not ranks:
        raise sheet.file.error(
            None, f"has no column with lineages ({', '.join(LINEAGE)}) nor of a rank, it has {_listed(sheet.columns)}"
        )
    if lineage is not None:
        names, rows, texts = _column_of_names(sheet, genome, [lineage])
        found = [_lineage(sheet, row, lineage, text) for row, (text,) in zip(rows, texts, strict=True)]
        columns = list(RANKS)
    else:
        columns = [rank for rank in RANKS if rank in ranks]
        names, _, texts = _column_of_names(sheet, genome, [ranks[rank] for rank in columns])
        found = [[_taxon(text) for text in row] for row in texts]
    return pd.DataFrame(found, index=pd.Index(names, name="genome"), columns=columns, dtype=object)


def _lineage(sheet: Sheet, row: int, column: int, text: str) -> list[str | None]:
    ranks: list[str | None] = [None] * len(RANKS)
    parts = [part.strip() for part in text.split(";" if ";" in text else "|")]
    prefixed = [bool(re.match(r"[dkpcofgs]__", part)) for part in parts]
    if not any(prefixed) and (len(parts) < 2 or len(parts) > len(RANKS)):
        if len(parts) > len(RANKS):
            raise _no_lineage(sheet, row, column, text)
        return ranks  # nothing, or words such as Unclassified
    for number, (part, has_prefix) in enumerate(zip(parts, prefixed, strict=True)):
        if any(prefixed) and part and not has_prefix:
            if re.match(r"[a-z]{1,2}\d?__", part):  # a rank that is none of ours, such as strain
                continue
            raise _no_lineage(sheet, row, column, text)
        ranks[PREFIXES[part[0]] if has_prefix else number] = _taxon(part)
    return ranks


def _no_lineage(sheet: Sheet, row: int, column: int, text: str) -> ValueError:
    shape = "it must be a lineage such as 'd__Bacteria;p__Bacillota;...;s__' of at most 7 ranks"
    return sheet.file.error(row, f"column {sheet.columns[column]!r} is {_short(text)}, {shape}")


def _taxon(text: str) -> str | None:
    name = re.sub(r"^[dkpcofgs]__", "", text.strip())
    return None if name.lower() in ("", "na", "nan", "none", "n/a", "-") else name


def _genome_column(sheet: Sheet) -> int:
    at = sheet.first(GENOME_NAMES if "id" not in sheet.keys else (*GENOME_NAMES, "id"))
    if at is None and not sheet.columns[0] and not sheet.shifted:
        return 0  # an index without a name
    if at is None:
        known = ", ".join(GENOME_NAMES[:8])
        raise sheet.file.error(
            None,
            f"has no column with genomes (named {known}, ...), it has {_listed(sheet.columns)}: rename it to genome",
        )
    return at


def _column_of_names(sheet: Sheet, genome: int, at: list[int]) -> tuple[list[str], list[int], list[list[str]]]:
    """Genomes, the rows that they are in, and other columns.

    Raises:
        ValueError: A genome is there twice or has no name; there is none.
    """
    first: dict[str, int] = {}
    texts = []
    for row, (name, *rest) in records(sheet, [genome, *at]):
        if not name:
            raise sheet.file.error(row, f"column {sheet.columns[genome]!r} is empty")
        if name in first:
            raise twice(sheet.file, row, name, sheet.file, first[name])
        first[name] = row
        texts.append(rest)
    if not first:
        raise sheet.file.error(None, "has no genomes: there are no rows below its header")
    return list(first), list(first.values()), texts


def rows_by_name(frame: pd.DataFrame) -> Callable[[str], int]:
    """A function from a genome's name to its row in a frame indexed by names; -1 where there is none.

    Names that differ only in what databases and assemblers put around them ("RS_" and "GB_" of GTDB in front, ".fa",
    ".fna", ".fasta" and a compression's ending behind) are the same, where that is not ambiguous.
    """
    exact = {str(name): row for row, name in enumerate(frame.index)}
    plain: dict[str, int] = {}
    for name, row in exact.items():
        plain[_plain(name)] = -1 if _plain(name) in plain else row
    return lambda name: exact.get(name, plain.get(_plain(name), -1))


def lineages(taxonomy: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """The taxonomy of these genomes, in their order, "" where a rank is not known; found by `rows_by_name`."""
    row_of = rows_by_name(taxonomy)
    rows = np.array([row_of(name) for name in names], dtype=np.int64)
    found = taxonomy.iloc[rows].fillna("").astype(str).set_axis(names)
    found[rows < 0] = ""
    return found


def _plain(name: str) -> str:
    return re.sub(r"\.(fa|fna|fasta|faa)$", "", re.sub(r"\.(gz|bz2|xz)$", "", re.sub(r"^(RS|GB)_", "", name)))
