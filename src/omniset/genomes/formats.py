"""The formats of gene content: how each is told from the others by its columns, and what all readers share."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int

from omniset.genomes.identifiers import COGS, kind_of_identifier, normalise, several
from omniset.tables.files import INDEX, OPENERS, TableFile, TextFile, listed, short
from omniset.tables.labels import NUMBER

FORMATS = {
    "genomes-by-families": "a table, one genome per row, one column per family",
    "families-by-genomes": "its transpose, one family per row",
    "rtab": "gene_presence_absence.Rtab of Roary, Panaroo or PPanGGOLiN",
    "picrust2": "a table of PICRUSt2 (column assembly or sequence)",
    "long": "a table with columns genome, family and, if wanted, count",
    "eggnog": "eggNOG-mapper's .emapper.annotations, one genome per file",
    "cogclassifier": "COGclassifier's cog_classify.tsv, one genome per file",
    "kofamscan": "KofamScan's detail or detail-tsv, one genome per file",
    "ko-mapper": "gene<TAB>KO as KofamScan's mapper, BlastKOALA and GhostKOALA write it, one genome per file",
    "dram": "DRAM's annotations.tsv",
    "anvio-matrix": "a matrix of anvi-script-gen-function-matrix-across-genomes",
    "anvio-functions": "anvi-export-functions, one genome per file",
}
DRAM = {
    "KO": ("ko_id", "kegg_id", "kofam_id"),
    "CAZy": ("cazy_ids", "cazy_id", "cazy_best_hit", "cazy_hits"),
    "Pfam": ("pfam_hits", "pfam_id", "pfam_ids"),
}
EGGNOG = {
    **{"COG": ("eggnog_ogs", "matching_ogs"), "arCOG": ("eggnog_ogs", "matching_ogs"), "KO": ("kegg_ko", "kegg_kos")},
    **{"EC": ("ec", "ec_number"), "CAZy": ("cazy",), "Pfam": ("pfams", "pfam"), "GO": ("gos", "go_terms")},
}
CHOICES = {  # what may be asked for
    **{"cog": "COG", "arcog": "arCOG", "cog_id": "COG", "eggnog_ogs": "COG"},
    **{"ko": "KO", "ko_id": "KO", "kegg_ko": "KO", "kegg_id": "KO", "kegg": "KO"},
    **{"pfam": "Pfam", "pfams": "Pfam", "pfam_hits": "Pfam", "cazy": "CAZy", "cazy_ids": "CAZy", "cazy_id": "CAZy"},
    **{"ec": "EC", "go": "GO", "gos": "GO", "tigrfam": "TIGRFAM", "ncbifam": "NCBIfam", "interpro": "InterPro"},
    **{"kog": "KOG", "eggnog": "eggNOG", "other": "other"},
}

GENOME_NAMES = (
    *("genome", "genome_id", "genome_name", "user_genome", "assembly", "assembly_accession", "accession"),
    *("bin_id", "bin", "bin_name", "mag", "mag_id", "mag_name", "fasta", "name", "sequence", "sample", "sample_id"),
    *("isolate", "strain", "organism"),
)
FAMILY_NAMES = (
    *("family", "gene_family", "families", "family_id", "function", "orthogroup", "cog", "cog_id", "ko", "ko_id"),
    *("pfam", "ec", "ec_number", "cluster", "gene_cluster", "gene_cluster_id", "feature", "gene", "otu_id", "key"),
)
KO_NAMES = ("ko", "kos", "ko_id", "kegg_id", "k_number")
COUNT_NAMES = ("count", "counts", "copies", "copy_number", "gene_count", "n", "number")
METADATA = ("metadata_nsti",)  # PICRUSt2's distance to the nearest sequenced taxon
COMMAS = re.compile(r"[+-]?\d+(?:[, '_]\d+)+(?:\.\d*)?", re.ASCII)  # of decimals or of thousands: refused as a count
MISSING = ("", "na", "nan", "n/a", "null", "none")
MOST = 2**31 - 1  # what 32 bits hold
BLOCK = 1 << 22  # characters read at a time
PEEK = 64  # rows that tell a format, at most
PEEK_SIZE = 1 << 17  # and characters of them
SEPARATORS = "\t,;"
HEAD = 1 << 10  # lines with a # above the header, at most
KOFAM = re.compile(r"#\s*gene name\s+KO\b")
AS_TEXT = "write its counts as a table of text, separated by tabs"
OTHERS = {  # what a file begins with that is no table of text
    b"\x89HDF": f"is an HDF5 file, such as BIOM or h5ad: {AS_TEXT} (of BIOM: biom convert --to-tsv)",
    b"{": f"is JSON, such as BIOM 1.0: {AS_TEXT} (of BIOM: biom convert --to-tsv)",
    b"PK\x03\x04": "is a zip archive, such as an Excel workbook: save the sheet as CSV (UTF-8)",
    b"\xd0\xcf\x11\xe0": "is an Excel workbook: save the sheet as CSV (UTF-8)",
    b"SQLite format 3": "is a database, such as anvi'o's: export its functions (anvi-export-functions)",
    b"PAR1": "is a Parquet file: let its name end in .parquet",
    b"\x1f\x8b": "is compressed: let its name end in .gz",
}
ENDINGS = re.compile(
    r"(\.emapper|\.annotations|\.tsv|\.csv|\.txt|\.tab|\.out|\.rtab|\.parquet|\.mapper|\.detail|\.fasta|\.faa|\.fna|\.fa"
    r"|[._-](?:ko|kofam|kofamscan|functions|cog_classify|classifier_result))$",
    re.IGNORECASE,
)
NO_NAME = ("cog_classify", "classifier_result", "annotations", "emapper", "user_ko", "functions")


@dataclass
class Genome:
    """A genome as a multiset of gene families.

    Attributes:
        name: Of the genome.
        families: Those that were observed, each once.
        counts: How many copies of each, at least 1 (int64).
    """

    name: str
    families: list[str]
    counts: Int[np.ndarray, " families"]


# ---------------------------------------------------------------------- the beginning of a file


@dataclass
class Sheet:
    """A file whose beginning was looked at.

    Attributes:
        file: To read it from; a TableFile where it is Parquet.
        separator: Between fields.
        columns: Names in the header, as they stand, without a leading #.
        header: Number of the header's line (-1 is the first); rows below it are data.
        rows: The first rows, at most `PEEK`.
        shifted: The header lacks a name for the first column, as R writes row names.
        kofam: It begins like KofamScan's detail.
    """

    file: TextFile
    separator: str
    columns: list[str]
    header: int = -1
    rows: list[list[str]] = field(default_factory=list)
    shifted: bool = False
    kofam: bool = False

    @property
    def keys(self) -> list[str]:
        return [key(column) for column in self.columns]

    def first(self, names: Iterable[str]) -> int | None:
        """The column of the first of these names that is there."""
        keys = self.keys
        return next((keys.index(name) for name in names if name in keys), None)

    def need(self, names: Iterable[str], what: str) -> int:
        """As `first`.

        Raises:
            ValueError: None of them is there, or two columns have the name.
        """
        at = self.first(names)
        if at is None:
            raise self.file.error(None, f"has no column with {what}, it has {listed(self.columns)}")
        if self.keys.count(self.keys[at]) > 1:
            raise self.file.error(None, f"has two columns {self.columns[at]!r}: leave one of them out")
        return at


@lru_cache(1 << 16)
def key(column: str) -> str:
    """A column's name, whatever its case and punctuation."""
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


def look(path: str | Path) -> Sheet:
    """The beginning of a file.

    Raises:
        OSError, ValueError: As TextFile and TableFile; nothing in it.
    """
    path = Path(path)
    return _look_parquet(path) if path.suffix.lower() == ".parquet" else _look_text(path)


def _look_text(path: Path) -> Sheet:
    file = TextFile(path)
    _refuse_other_files(file)
    sheet = _headed(file)
    size = 0
    for row, line in file.lines():
        if row > sheet.header and line.strip(sheet.separator + " \t"):
            sheet.rows.append(_fields(line, sheet.separator))
            size += len(line)
        if len(sheet.rows) == PEEK or size > PEEK_SIZE:
            break
    more = bool(sheet.rows) and all(len(fields) == len(sheet.columns) + 1 for fields in sheet.rows)
    sheet.shifted = more and any(fields[-1] for fields in sheet.rows)  # else each line ends with a separator
    return sheet


def _refuse_other_files(file: TextFile) -> None:
    if file.path.suffix.lower() in OPENERS:
        return
    with open(file.path, "rb") as binary:
        begins = binary.read(16)
    for first, what in OTHERS.items():
        if begins.startswith(first):
            raise file.error(None, what)


def _headed(file: TextFile) -> Sheet:
    """The sheet with its header: the first line, or one of the lines with a # before it.

    Raises:
        ValueError: The file is empty, or it cannot be told whether a line with a # is its header.
    """
    marked: list[tuple[int, str]] = []
    first: tuple[int, str] | None = None  # the first line without a #
    for row, line in file.lines():
        if KOFAM.match(line):
            return Sheet(file, "\t", _fields(line[1:].strip(), "\t"), row, kofam=True)
        if line.startswith("#") and len(marked) < HEAD:
            marked.append((row, line[1:]))
        elif line.strip():
            first = row, line
            break
    marked = [(row, line) for row, line in marked if _separator(line.rstrip("\t,; "))]  # others are comments
    if first is None:
        if not marked:
            raise file.error(None, "is empty: it holds no genome and no header")
        first, marked = marked[0], []
    for row, line in marked:
        for separator in SEPARATORS:
            same = 0 < line.count(separator) == first[1].count(separator)
            if same or (line.startswith("query") and separator in line):
                return Sheet(file, separator, _fields(line, separator), row)
    separator = _separator(first[1]) or "\t"
    columns = _fields(first[1], separator)
    between = [(row, line) for row, line in marked if separator in line]
    if between and any(map(NUMBER.fullmatch, columns[1:])):
        row, line = between[-1]
        raise file.error(
            row,
            f"begins with # and has {len(_fields(line, separator))} fields, {file.where(first[0])} has {len(columns)}: "
            "if it is the header, give both the same number of fields, else remove it",
        )
    return Sheet(file, separator, columns, first[0])


def _look_parquet(path: Path) -> Sheet:
    file = TableFile(path)
    with file._clear_errors(), pq.ParquetFile(path) as parquet:
        schema = parquet.schema_arrow
    if index := _index_of(schema):
        file.columns = [index, *(name for name in file.columns if name != index)]
    sheet = Sheet(file, "", ["" if INDEX.fullmatch(name) else name for name in file.columns])
    for chunk in file.chunks():
        first = {
            name: values.slice(0, PEEK if at == 0 else 8) for at, (name, values) in enumerate(chunk.columns.items())
        }
        texts = [texts_of(values) for values in first.values()]
        sheet.rows = [[text[i] if i < len(text) else "" for text in texts] for i in range(min(len(chunk), PEEK))]
        break
    return sheet


def _index_of(schema: pa.Schema) -> str | None:
    """The column that pandas had as the index. What it wrote on that is a hint: a damaged one tells nothing."""
    try:
        said = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    except (ValueError, RecursionError):
        return None
    names = said.get("index_columns") if isinstance(said, dict) else None
    return next((name for name in names if name in schema.names), None) if isinstance(names, list) else None


def texts_of(values: pa.Array) -> list[str]:
    return ["" if value is None else str(value).strip() for value in values.to_pylist()]


def _separator(header: str) -> str | None:
    return next((s for s in SEPARATORS if s in header), None)


def _fields(line: str, separator: str) -> list[str]:
    """The fields of a line; quotes that are none are taken as they are."""
    try:
        return [f.strip() for f in split(line, separator)]
    except csv.Error:
        return [f.strip() for f in line.split(separator)]


def split(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator, strict=True), [""]) if '"' in line else line.split(separator)


# ---------------------------------------------------------------------- which format it is


def detect(sheet: Sheet) -> str:
    """The format, by the columns. Wide tables are "genomes-by-families" whichever way round they are.

    Raises:
        ValueError: None of those that can be read.
    """
    keys = set(sheet.keys)
    if sheet.kofam:
        return "kofamscan"
    if {"letter", "count"} <= keys and "cog_id" not in keys:
        raise sheet.file.error(
            None, "counts letters (functional categories) only: give COGclassifier's cog_classify.tsv"
        )
    if {"gene", "non_unique_gene_name", "annotation"} <= keys:
        raise sheet.file.error(
            None, "lists names of genes, not counts: give the file gene_presence_absence.Rtab that stands beside it"
        )
    if {"query_id", "cog_id"} <= keys:
        return "cogclassifier"
    if keys & {"query", "query_name"} and keys & {"eggnog_ogs", "cog_category", "kegg_ko", "seed_eggnog_ortholog"}:
        return "eggnog"
    if {"gene_callers_id", "accession"} <= keys:
        return "anvio-functions"
    if keys & {"fasta", "input_fasta"} and keys & {name for names in DRAM.values() for name in names}:
        return "dram"
    if sheet.keys[0] == "key" and text_columns(sheet):
        return "anvio-matrix"
    if sheet.first(GENOME_NAMES) is not None and sheet.first(FAMILY_NAMES) not in (None, sheet.first(GENOME_NAMES)):
        return "long"
    if _is_mapper(sheet):
        return "ko-mapper"
    if len(sheet.columns) > 1 or sheet.shifted:
        cells = [cell for fields in sheet.rows[:8] for cell in fields[1:]]
        if 2 * sum(map(_is_count, cells)) >= len(cells):
            return {"gene": "rtab"}.get(sheet.keys[0], "genomes-by-families")
    raise sheet.file.error(
        None,
        f"is of no known format: its columns are {listed(sheet.columns, 4)}. What can be read: {', '.join(FORMATS)}. "
        "Give the format if it is one of these",
    )


def _is_count(cell: str) -> bool:
    return cell.lower() in (*MISSING, "true", "false") or bool(NUMBER.fullmatch(cell) or COMMAS.fullmatch(cell))


def text_columns(sheet: Sheet) -> list[int]:
    """Columns of words, the first one not counted."""
    wide = range(1, len(sheet.columns))
    return [at for at in wide if 2 * sum(at < len(f) and not _is_count(f[at]) for f in sheet.rows) > len(sheet.rows)]


def _is_mapper(sheet: Sheet) -> bool:
    """Lines of a gene and at most one KO or more, no header; the first KO may come late."""
    some = False
    if sheet.keys[0] in GENOME_NAMES or isinstance(sheet.file, TableFile):
        return False
    header = len(sheet.columns) > 1 and sheet.keys[1] in KO_NAMES
    for fields in [*([] if header else [sheet.columns]), *sheet.rows]:
        found = several(fields[1]) if len(fields) > 1 else []
        if any(kind_of_identifier(name) != "KO" for name in found):
            return False
        some = some or bool(found)
    if some:
        return True
    for _, line in sheet.file.lines():
        gene, *kos = line.split(sheet.separator)
        if found := several(kos[0]) if kos else []:
            return bool(gene.strip()) and all(kind_of_identifier(name) == "KO" for name in found)
    return False


def orientation(sheet: Sheet, known: Collection[str]) -> tuple[str, str | None]:
    """Which way round a wide table is, and a warning if that is a guess.

    Raises:
        ValueError: Both ways are equally right.
    """
    across = sheet.columns if sheet.shifted else sheet.columns[1:]
    down = [fields[0] for fields in sheet.rows]
    by_genomes, by_families = "genomes-by-families", "families-by-genomes"

    def shares(what: str, belongs: Callable[[str], bool]) -> tuple[float, float]:
        here, there = (sum(map(belongs, names)) / max(len(names), 1) for names in (across, down))
        if min(here, there) > 0.5:
            raise sheet.file.error(
                None, f"has families ({what}) in its header and in its first column: one of them must be genomes"
            )
        return here, there

    of_model = shares("known to the model", lambda name: name in known or normalise(name) in known)
    named = shares("by their identifiers", lambda name: kind_of_identifier(name) not in ("other", "CAZy"))
    cazy = [sum(kind_of_identifier(name) == "CAZy" for name in names) for names in (across, down)]
    first = "" if sheet.shifted else sheet.keys[0]
    if of_model[0] != of_model[1]:
        return (by_genomes if of_model[0] > of_model[1] else by_families), None
    if max(named) <= 0.5 and first in (*FAMILY_NAMES, *GENOME_NAMES):
        return (by_families if first in FAMILY_NAMES else by_genomes), None
    for here, there in (named, cazy):  # the latter last, since strains may have such names too (CE10)
        if here != there:
            return (by_genomes if here > there else by_families), None
    return by_genomes, (
        f"{sheet.file.path}: nothing tells whether rows are genomes or families; rows were taken for genomes: "
        'if they are families, say format="families-by-genomes"'
    )


# ---------------------------------------------------------------------- readers


@dataclass
class Notes:
    """What a reader is told, and what it finds beside the genomes.

    Attributes:
        wanted: Kind of identifiers, None where all are.
        known: Families of a model, as they are spelled there.
        categories, descriptions, warnings: See GenomeFile.
        tally: How often something was read tolerantly, by what it was.
    """

    wanted: str | None = None
    known: Collection[str] = ()
    categories: dict[str, str] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)

    def family(self, name: str) -> str:
        return name.strip() if name.strip() in self.known else normalise(name)

    def wants(self, family: str) -> bool:
        if self.wanted is None:
            return True
        kind = kind_of_identifier(family)
        return kind == self.wanted or (self.wanted == "COG" and kind in COGS)

    def describe(self, family: str, category: str, description: str) -> None:
        for texts, text in ((self.categories, category), (self.descriptions, description)):
            if text not in ("", "-") and family not in texts:
                texts[family] = text


Found = Iterator[tuple[int, Genome]]  # with the row where it begins
Entry = tuple[int, str, list[str], int]  # row, genome, families, copies of each


def records(
    sheet: Sheet, at: Sequence[int], quoted: bool = True, comments: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Some columns of each row, as text without spaces around it.

    Args:
        at: Which columns.
        quoted: Fields may be in quotes. Else they are of a tool, whose texts may hold quotes that are none.
        comments: Lines of one field that begins with # are none of the rows.

    Raises:
        ValueError: A row with fewer fields than the header, or, with quotes, with more; the header a second time.
    """
    file = sheet.file
    if isinstance(file, TableFile):
        names = [file.columns[i] for i in at]
        for chunk in file.chunks(list(dict.fromkeys(names))):
            texts = [texts_of(chunk.columns[name]) for name in names]
            for i, values in enumerate(zip(*texts, strict=True)):
                yield chunk.first + i, list(values)
        return
    if sheet.shifted and not quoted:
        raise file.error(
            sheet.header, f"has {len(sheet.columns)} fields, the rows below have one more: name each column"
        )
    strict = quoted or sheet.separator != "\t"  # tools write tabs, spreadsheets also commas, with proper quotes
    for row, line in file.lines():
        if row <= sheet.header or not line.strip(sheet.separator + " "):
            continue
        if comments and line.startswith("#") and not line.partition(sheet.separator)[2].strip(sheet.separator + " "):
            continue
        fields = split_at(file, row, line, sheet.separator) if strict else split_loosely(line, sheet.separator)
        shift = int(sheet.shifted)
        width = len(sheet.columns) + shift
        if len(fields) < width or (strict and len(fields) > width):
            raise wrong_width(sheet, row, line, len(fields))
        again = fields[0].lstrip("#").strip() == sheet.columns[0]
        if again and [field.strip() for field in fields[1:width]] == sheet.columns[1:]:
            raise file.error(row, "is the header again: give the files that were joined here one by one")
        yield row, [fields[i + shift].strip() for i in at]


def wrong_width(sheet: Sheet, row: int, line: str, number: int) -> ValueError:
    width = len(sheet.columns) + sheet.shifted
    hint = ": is the file cut off?" if number < width else ""
    hint = ": comments may stand above the header only" if number == 1 and line.startswith("#") else hint
    return sheet.file.error(row, f"has {number} fields, the header has {width}{hint}")


def split_loosely(line: str, separator: str) -> list[str]:
    """The fields of a tool's line: without the quotes that a spreadsheet put around some; other quotes are text."""
    plain = line.split(separator)
    if '"' not in line:
        return plain
    try:
        fields = split(line, separator)
    except csv.Error:
        return plain
    return fields if len(fields) == len(plain) else plain


def split_at(file: TextFile, row: int, line: str, separator: str) -> list[str]:
    try:
        return split(line, separator)
    except csv.Error as error:
        raise file.error(row, 'has a quote (") that is never closed, or is out of place') from error


def gather(file: TextFile, entries: Iterable[Entry], only: str | None = None) -> Found:
    """Genomes out of entries that come genome by genome.

    Args:
        only: The file is this one genome, even if nothing is in it.

    Raises:
        ValueError: A genome again, after other ones.
    """
    began: dict[str, int] = {}
    counts: dict[str, int] = {}
    name, start = only, -1
    for row, genome, families, copies in entries:
        if genome != name:
            if name is not None:
                yield start, _genome(name, counts)
            if genome in began:
                first = file.where(began[genome])
                raise file.error(
                    row, f"genome {genome!r} again, after other genomes (it began at {first}): sort the rows by genome"
                )
            name, start, counts = genome, row, {}
            began[genome] = row
        for family in families:
            counts[family] = counts.get(family, 0) + copies
    if name is not None:
        yield start, _genome(name, counts)


def _genome(name: str, counts: dict[str, int]) -> Genome:
    present = {family: count for family, count in counts.items() if count > 0}
    return Genome(name, list(present), np.array(list(present.values()), dtype=np.int64))


def bad_count(column: str, text: str, row: str) -> str:
    found = "empty" if text.lower() in MISSING else short(text)
    hint = ". Write numbers without a separator of thousands and with a decimal point" if COMMAS.fullmatch(text) else ""
    return f"column {column!r} is {found}, it must be a whole number from 0 to {MOST} (of {row!r}){hint}"


def twice(file: TextFile, row: int, name: str, first: TextFile, at: int) -> ValueError:
    before = f"in {first.path}" if first.path != file.path else f"first at {first.where(at)}"
    return file.error(
        row if row >= 0 else None, f"genome {name!r} is there twice ({before}): each must have its own name"
    )
