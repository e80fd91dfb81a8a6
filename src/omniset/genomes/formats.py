"""The formats of gene content: how its columns tell each from the others, and what all readers share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from jaxtyping import Int

from omniset.core.features import MISSING
from omniset.genomes.identifiers import COGS, kind_of_identifier, normalise, several
from omniset.tables.files import TableFile, TextFile, listed, short
from omniset.tables.sheets import NUMBER, Sheet

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
    "prokka": "Prokka's .tsv, one genome per file",
    "bakta": "Bakta's .tsv, one genome per file",
    "interproscan": "InterProScan's .tsv, one genome per file",
    "hmmscan": "--tblout of hmmscan or hmmsearch, one genome per file",
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
MOST = 2**31 - 1  # what 32 bits hold
BLOCK = 1 << 22  # characters read at a time
TBLOUT = re.compile(r"#\s*target name\s+accession\s+query name\b")
MD5 = re.compile(r"[0-9a-f]{32}")
KOFAM = re.compile(r"#\s*gene name\s+KO\b")
ENDINGS = re.compile(
    r"(\.emapper|\.annotations|\.tsv|\.csv|\.txt|\.tab|\.out|\.rtab|\.parquet|\.mapper|\.detail|\.tblout|\.tbl|\.fasta|\.faa|\.fna|\.fa"
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
        contigs: Copies of the families on each contig, where the file tells them and there are several.
    """

    name: str
    families: list[str]
    counts: Int[np.ndarray, " families"]
    contigs: dict[str, dict[str, int]] = field(default_factory=dict)


def is_kofam(sheet: Sheet) -> bool:
    """It begins like KofamScan's detail."""
    return sheet.marked and KOFAM.match("\t".join(["#", *sheet.columns])) is not None


# ---------------------------------------------------------------------- which format it is


def detect(sheet: Sheet) -> str:
    """The format, by the columns. Wide tables are "genomes-by-families" whichever way round they are.

    Raises:
        ValueError: None of those that can be read.
    """
    keys = set(sheet.keys)
    if is_kofam(sheet):
        return "kofamscan"
    if is_tblout(sheet):
        return "hmmscan"
    if {"locus_tag", "ftype", "product"} <= keys:
        return "prokka"
    if {"type", "locus_tag", "dbxrefs"} <= keys:
        return "bakta"
    if len(sheet.columns) >= 11 and MD5.fullmatch(sheet.columns[1]):
        return "interproscan"
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


def is_tblout(sheet: Sheet) -> bool:
    """HMMER's table of hits: its header is among the first lines, each with a # before it."""
    if isinstance(sheet.file, TableFile):
        return False
    return any(TBLOUT.match(line) for _, line in islice(sheet.file.lines(), 5))


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
        names = several(fields[1]) if len(fields) > 1 else []
        if any(kind_of_identifier(name) != "KO" for name in names):
            return False
        some = some or bool(names)
    if some:
        return True
    for _, line in sheet.file.lines():
        gene, *kos = line.split(sheet.separator)
        if names := several(kos[0]) if kos else []:
            return bool(gene.strip()) and all(kind_of_identifier(name) == "KO" for name in names)
    return False


def orientation(sheet: Sheet, known: Collection[str]) -> tuple[str, str | None]:
    """Which way round a wide table is, and a warning if that is a guess.

    Raises:
        ValueError: Both ways are equally right.
    """
    across = sheet.titles[1:]
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
    """What a reader takes, and what it finds beside the genomes.

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
# Row, genome, families, copies of each, and the contig where it is told: else "".
Entry = tuple[int, str, list[str], int] | tuple[int, str, list[str], int, str]


def gather(file: TextFile, entries: Iterable[Entry], only: str | None = None) -> Found:
    """Genomes out of entries that come genome by genome.

    Args:
        only: The file is this one genome, even if nothing is in it.

    Raises:
        ValueError: A genome again, after other ones.
    """
    began: dict[str, int] = {}
    counts: dict[str, int] = {}
    contigs: dict[str, dict[str, int]] = {}
    name, start = only, -1
    for row, genome, families, copies, *contig in entries:
        if genome != name:
            if name is not None:
                yield start, _genome(name, counts, contigs)
            if genome in began:
                first = file.where(began[genome])
                raise file.error(
                    row, f"genome {genome!r} again, after other genomes (it began at {first}): sort the rows by genome"
                )
            name, start, counts, contigs = genome, row, {}, {}
            began[genome] = row
        for family in families:
            counts[family] = counts.get(family, 0) + copies
            if contig and contig[0]:
                on = contigs.setdefault(contig[0], {})
                on[family] = on.get(family, 0) + copies
    if name is not None:
        yield start, _genome(name, counts, contigs)


def _genome(name: str, counts: dict[str, int], contigs: dict[str, dict[str, int]]) -> Genome:
    present = {family: count for family, count in counts.items() if count > 0}
    several = contigs if len(contigs) > 1 else {}
    return Genome(name, list(present), np.array(list(present.values()), dtype=np.int64), several)


def contig_of(gene: str) -> str:
    """The contig of a gene, out of the name that Prodigal gives it: the contig's and the gene's number on it. "" where
    it is no such name.

    >>> contig_of("k141_7_12"), contig_of("WP_000123456.1")
    ('k141_7', '')
    """
    contig, _, number = gene.rpartition("_")
    return contig if number.isdigit() else ""


def bad_count(column: str, text: str, row: str) -> str:
    value = "empty" if text.lower() in MISSING else short(text)
    hint = ". Write numbers without a separator of thousands and with a decimal point" if COMMAS.fullmatch(text) else ""
    return f"column {column!r} is {value}, it must be a whole number from 0 to {MOST} (of {row!r}){hint}"


def twice(file: TextFile, row: int, name: str, first: TextFile, at: int) -> ValueError:
    before = f"in {first.path}" if first.path != file.path else f"first at {first.where(at)}"
    return file.error(
        row if row >= 0 else None, f"genome {name!r} is there twice ({before}): each must have its own name"
    )
