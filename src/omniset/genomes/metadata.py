"""What is known of genomes beside their families: how complete they are, and where they stand in a taxonomy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from omniset.genomes.formats import GENOME_NAMES, twice
from omniset.tables.doubts import judge_join
from omniset.tables.files import listed, short
from omniset.tables.sheets import Sheet, look, number_of, numbers_of

RANKS = ("domain", "phylum", "class", "order", "family", "genus", "species")

COMPLETENESS = (
    *("completeness", "checkm2_completeness", "checkm_completeness"),
    *("completeness_specific", "completeness_general", "bin_completeness"),
    *("percent_completion", "completion", "complete"),
)
CONTAMINATION = (
    *("contamination", "checkm2_contamination", "checkm_contamination"),
    *("percent_redundancy", "redundancy", "bin_contamination"),
)
LINEAGE = ("gtdb_taxonomy", "classification", "gtdb_classification", "taxonomy", "lineage", "taxon", "ncbi_taxonomy")
PREFIXES = {"d": 0, "k": 0, "p": 1, "c": 2, "o": 3, "f": 4, "g": 5, "s": 6}
ALIASES = {"superkingdom": "domain", "kingdom": "domain"}
PREFIXED = re.compile("[dkpcofgs]__")
WHOLE = 99.0  # percent, at least, of a genome that is taken for whole: what it lacks is absent
SEVERAL = re.compile(r"[;,|\s][dkpcofgs]__")  # another rank's name within a name
PARTS = re.compile(r"[a-z].*[;|]|[dk]__|[;|].*[a-z]", re.IGNORECASE)  # of a lineage
ABOVE = re.compile(r"(?:(?:r__)?root|cellular organisms|\w+ati|.* group)$", re.IGNORECASE)  # none of our ranks
ENDS = {4: re.compile(r"\w+aceae"), 3: re.compile(r"\w+ales")}  # names of families and of orders, and where they stand
NO_TAXON = re.compile(  # words that genomes of many taxa have
    r"|na|nan|none|n/a|-|no support|not classified|(?:un(?:classified|assigned|known|cultured|identified)\b.*)"
    r"|incertae[ _]sedis|metagenome",
    re.IGNORECASE,
)
ONE_NAME = "it must be one name, of this rank"


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
    if contamination is not None:
        sheet.need([sheet.keys[contamination]], "contamination")
    at = [i for i in (completeness, contamination) if i is not None]
    models = [i for name in ("general", "model_used") if (i := sheet.first([f"completeness_{name}"])) is not None]
    models *= len(models) == 2 and sheet.keys[completeness] == "completeness_specific"
    names, rows, texts = _column_of_names(sheet, genome, [*at, *models])
    values = np.full((len(names), 2), np.nan)
    for number, (row, fields) in enumerate(zip(rows, texts, strict=True)):
        if models and "General" in fields.pop():  # CheckM2 says which of its two models fits
            fields[0] = fields[-1]
        for which, text in enumerate(fields[: len(at)]):
            values[number, which] = _percent(sheet, row, at[which], text, 100.0 if which == 0 else np.inf)
    if doubt := seem_fractions(values):
        raise sheet.file.error(None, f"column {sheet.columns[completeness]!r} {doubt}")
    return pd.DataFrame(values, index=pd.Index(names, name="genome"), columns=["completeness", "contamination"])


def seem_fractions(values: Float[np.ndarray, "genomes two"]) -> str | None:
    """What to say of completeness that cannot be percent, since that of all genomes is at most 1; else None.

    Contamination tells nothing: half a percent is usual.
    """
    completeness, contamination = (column[~np.isnan(column)] for column in values.T)
    if not 0 < completeness.max(initial=0) <= 1:
        return None
    both = "completeness and contamination" if contamination.max(initial=0) <= 1 else "completeness"
    return f"is at most {completeness.max():g}, so it seems to hold fractions: multiply {both} by 100"


def as_numbers(values: np.ndarray) -> tuple[Float[np.ndarray, "..."], tuple[int, ...] | None]:
    """Numbers of a frame, text read as in files, NaN where nothing is given; and where the first is that is none.

    Example:
        >>> as_numbers(np.array([["1", 2.5], [None, "1_000"]], dtype=object))
        (array([[1. , 2.5],
               [nan, nan]]), (1, 1))
    """
    if values.dtype.kind in "biuf":
        return values.astype(np.float64), None
    plain = [float(v) if isinstance(v, (bool, np.bool_)) else "" if v is None or v is pd.NA else v for v in values.flat]
    numbers, wrong = numbers_of([str(value) for value in plain])
    if wrong is None:  # a number that is infinite is told its bounds
        infinite = np.isinf(numbers) & np.array([isinstance(value, str) for value in values.flat], dtype=bool)
        wrong = int(infinite.argmax()) if infinite.any() else None
    place = None if wrong is None else tuple(map(int, np.unravel_index(wrong, values.shape)))
    return numbers.reshape(values.shape), place


def _percent(sheet: Sheet, row: int, column: int, text: str, most: float) -> float:
    text = text.removesuffix("%").strip()
    value = np.nan if text == "-" else number_of(text)
    if value is None or value < 0 or value > most or np.isinf(value):
        bound = "from 0 to 100" if most == 100 else ">= 0"
        raise sheet.file.error(
            row, f"column {sheet.columns[column]!r} is {short(text)}, it must be a number {bound} (percent)"
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
    genome = _genome_column(sheet)
    ranks = _rank_columns(sheet, genome)
    there = [at for name in LINEAGE if (at := sheet.first([name])) is not None]
    hold = [at for at in there if any(PARTS.search(row[at]) for row in sheet.rows if at < len(row))]
    lineage = next(iter(hold if ranks or hold else there), None)
    if lineage is None and not ranks:
        raise sheet.file.error(
            None, f"has no column with lineages ({', '.join(LINEAGE)}) nor of a rank, it has {listed(sheet.columns, 6)}"
        )
    if lineage is not None:
        names, rows, texts = _column_of_names(sheet, genome, [lineage])
        lineages = [_lineage(sheet, row, lineage, text) for row, (text,) in zip(rows, texts, strict=True)]
        if not any(map(any, lineages)):
            raise _no_lineage(sheet, rows[0], lineage, texts[0][0])
        columns = list(RANKS)
    else:
        columns = [rank for rank in RANKS if rank in ranks]
        names, rows, texts = _column_of_names(sheet, genome, [ranks[rank] for rank in columns])
        for row, of_genome in zip(rows, texts, strict=True):
            for rank, text in zip(columns, of_genome, strict=True):
                if _is_of_others(rank, text):
                    raise sheet.file.error(row, f"column {sheet.columns[ranks[rank]]!r} is {short(text)}, {ONE_NAME}")
        lineages = [[_taxon(text) for text in row] for row in texts]
    return pd.DataFrame(lineages, index=pd.Index(names, name="genome"), columns=columns, dtype=object)


def _rank_columns(sheet: Sheet, genome: int) -> dict[str, int]:
    """The column of each rank. Beside a domain, a kingdom is a rank that is none of ours."""
    columns: dict[str, int] = {}
    for at, name in enumerate(sheet.keys):
        if at == genome or name not in (*RANKS, *ALIASES):
            continue
        if name in columns:
            raise sheet.file.error(None, f"has two columns of the rank {name!r}: leave one of them out")
        columns[name] = at
    for alias, rank in ALIASES.items():
        if alias in columns:
            columns.setdefault(rank, columns.pop(alias))
    return {rank: at for rank, at in columns.items() if rank in RANKS}


def _is_of_others(rank: str, text: str) -> bool:
    """Whether this cannot be a name of the rank: it has another rank's prefix, or several names."""
    prefix = re.match(r"([dkpcofgs])__", text)
    return bool(SEVERAL.search(text)) or (prefix is not None and RANKS[PREFIXES[prefix[1]]] != rank)


def _lineage(sheet: Sheet, row: int, column: int, text: str) -> list[str | None]:
    ranks: list[str | None] = [None] * len(RANKS)
    parts = [_common_prefix(part.strip()) for part in text.split(";" if ";" in text else "|")]
    if ABOVE.match(parts[0]):  # NCBI's: kingdoms and groups stand among the ranks
        parts = [part for part in parts if not ABOVE.match(part)] or [""]
    prefixed = any(map(PREFIXED.match, parts))
    if prefixed:
        wrong = not all(re.match(r"(-|[a-z]{1,2}\d?)__", part) for part in parts if part)
    elif len(parts) < 2:
        return ranks  # nothing, or words such as Unclassified
    else:
        wrong = any(at != rank and name.fullmatch(part) for at, part in enumerate(parts) for rank, name in ENDS.items())
        wrong |= len(parts) > len(RANKS) or all(map(str.isdigit, parts))
    if wrong or any(map(SEVERAL.search, parts)):
        raise _no_lineage(sheet, row, column, text)
    seen: dict[int, str] = {}
    for number, part in enumerate(parts):
        below = part.startswith("k__") and any(one.startswith("d__") for one in parts)  # a kingdom beneath the domain
        if below or (prefixed and not PREFIXED.match(part)):  # or a strain: no rank of ours
            continue
        rank = PREFIXES[part[0]] if prefixed else number
        if rank in seen:
            again = (
                f"has the rank {RANKS[rank]} twice ({short(seen[rank])}, {short(part)}): a lineage has each rank once"
            )
            raise sheet.file.error(row, f"column {sheet.columns[column]!r} {again}")
        seen[rank], ranks[rank] = part, _taxon(part)
    return ranks


def _common_prefix(part: str) -> str:
    """A name with its rank as most databases write it: P__X, SILVA's D_1__X and MMseqs2's p_X are p__X."""
    if numbered := re.match(r"D_([0-6])__", part):
        return "dpcofgs"[int(numbered[1])] + part[3:]
    part = re.sub(r"^([-dkpcofgs])_(?=[^_])", r"\1__", re.sub("^sk__", "d__", part))
    return part[:1].lower() + part[1:] if re.match(r"[DKPCOFGS]__", part) else part


def _no_lineage(sheet: Sheet, row: int, column: int, text: str) -> ValueError:
    shape = "it must be a lineage such as 'd__Bacteria;p__Bacillota;...;s__' of at most 7 ranks, none left out between"
    return sheet.file.error(row, f"column {sheet.columns[column]!r} is {short(text)}, {shape}")


def _taxon(text: str) -> str | None:
    name = re.sub(r"^[dkpcofgs]__|: [01]\.\d+$", "", text.strip())  # BAT adds its support
    return None if NO_TAXON.fullmatch(name) else name


def _genome_column(sheet: Sheet) -> int:
    at = sheet.first((*GENOME_NAMES, "bins", "input_file", "sgb", "id"))
    if at is None and not sheet.columns[0] and not sheet.shifted:
        return 0  # an index without a name
    if at is None:
        known = ", ".join(GENOME_NAMES[:8])
        raise sheet.file.error(
            None,
            f"has no column with genomes (named {known}, ...), it has {listed(sheet.columns)}: rename it to genome",
        )
    return at


def _column_of_names(sheet: Sheet, genome: int, at: list[int]) -> tuple[list[str], list[int], list[list[str]]]:
    """Genomes, the rows that they are in, and other columns."""
    first: dict[str, int] = {}
    texts = []
    for row, (name, *rest) in sheet.records([genome, *at]):
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


def refuse_other_names(frame: pd.DataFrame, names: list[str], what: str, refused: float) -> None:
    """See that a frame's names are those of the genomes, by `rows_by_name` (`omniset.tables.doubts.judge_join`)."""
    row_of = rows_by_name(frame)
    rows = [row_of(name) for name in names]
    lost = [name for name, row in zip(names, rows, strict=True) if row < 0]
    unused = [str(frame.index[row]) for row in sorted({*range(len(frame))} - {*rows})]
    judge_join(lost, len(names), unused, file="table", other=f"the {what}", what="genomes", refused=refused)


@dataclass
class Quality:
    """Completeness and contamination by name, as shares."""

    names: list[str]  # of the genomes
    values: Float[np.ndarray, "genomes two"]
    row_of: Callable[[str], int]  # row of a genome; -1: none


def check_quality(quality: pd.DataFrame | None) -> Quality | None:
    """Both columns, in bounds."""
    if quality is None:
        return None
    if "completeness" not in quality.columns:
        raise ValueError(f"quality has no column 'completeness', it has {list(quality.columns)}")
    percents = pd.DataFrame(index=quality.index, columns=["completeness", "contamination"], dtype=np.float64)
    for name, most in (("completeness", 100.0), ("contamination", np.inf)):
        if name not in quality:
            continue
        numbers, wrong = as_numbers(quality[name].to_numpy())
        bad = (numbers < 0) | (numbers > most) | np.isinf(numbers)
        if wrong is not None or bad.any():
            at = bad.argmax() if wrong is None else wrong[0]
            said, bound = f"{numbers[at]:g}", "from 0 to 100" if most == 100 else ">= 0 and finite"
            if wrong is not None:
                said, bound = repr(quality[name].iloc[at]), "a number"
            raise ValueError(f"quality of genome {percents.index[at]!r}: {name} is {said}, it must be {bound} (%)")
        percents[name] = numbers
    if percents.index.duplicated().any():
        raise ValueError(f"quality: genome {percents.index[percents.index.duplicated()][0]!r} is there twice")
    if doubt := seem_fractions(percents.to_numpy()):
        raise ValueError(f"quality: completeness {doubt}")
    return Quality([str(name) for name in percents.index], percents.to_numpy() / 100, rows_by_name(percents))


def completeness_of(quality: pd.DataFrame | None, names: list[str]) -> Float[np.ndarray, " genomes"] | None:
    """(genomes,) completeness of each, as a share; NaN where that is not known. None: no quality.

    Raises:
        ValueError: As `check_quality`; or the completeness of none of the genomes is known.
    """
    checked = check_quality(quality)
    if checked is None:
        return None
    rows = np.array([checked.row_of(name) for name in names], dtype=np.int64)
    if not (rows >= 0).any():
        raise ValueError(
            f"quality must have the completeness of these genomes, such as {names[0]!r}: it has none of them, its "
            f"names are such as {checked.names[0]!r}"
        )
    assert quality is not None
    refuse_other_names(quality, names, "quality", math.inf)
    return np.where(rows >= 0, checked.values[rows, 0], np.nan)


def is_whole(completeness: Float[np.ndarray, " genomes"]) -> Bool[np.ndarray, " genomes"]:
    """(genomes,) whether each is at least `WHOLE` percent complete; False where that is not known."""
    return 100 * completeness >= WHOLE - 1e-9


def check_taxonomy(taxonomy: pd.DataFrame) -> None:
    """Raise the ValueError if this frame is no taxonomy: a column or a genome twice, or several names in a cell."""
    if taxonomy.columns.duplicated().any():
        raise ValueError(f"taxonomy has column {taxonomy.columns[taxonomy.columns.duplicated()][0]!r} twice")
    if taxonomy.index.duplicated().any():
        raise ValueError(f"taxonomy: genome {taxonomy.index[taxonomy.index.duplicated()][0]!r} is there twice")
    for rank in [column for column in taxonomy.columns if column in RANKS]:
        for text in taxonomy[rank].unique():
            if isinstance(text, str) and _is_of_others(rank, text):
                genome = taxonomy.index[taxonomy[rank] == text][0]
                raise ValueError(f"taxonomy of genome {genome!r}: {rank} is {short(text)}, {ONE_NAME}")


def lineages(taxonomy: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """The taxonomy of these genomes, in their order, "" where a rank is not known; found by `rows_by_name`."""
    check_taxonomy(taxonomy)
    row_of = rows_by_name(taxonomy)
    rows = np.array([row_of(name) for name in names], dtype=np.int64)
    table = taxonomy.iloc[rows].fillna("").astype(str).set_axis(names)
    table[rows < 0] = ""
    return table


def _plain(name: str) -> str:
    return re.sub(r"\.(fa|fna|fasta|faa)$", "", re.sub(r"\.(gz|bz2|xz)$", "", re.sub(r"^(RS|GB)_", "", name)))
