"""Gene content out of files: rows of a format that is known, one genome after another.

A table of families x genomes is held as sparse counts: a genome is complete only when the last row is read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from jaxtyping import Float, Int

from omniset.core.features import MISSING
from omniset.genomes.formats import (
    AMOUNTS,
    COGS,
    COMMAS,
    COUNT_NAMES,
    DESCRIPTIONS,
    EGGNOG,
    FAMILY_NAMES,
    FORMATS,
    GENOME_NAMES,
    METADATA,
    PRESENCE,
    columns_of_hits,
    distinct,
    is_beheaded_eggnog,
    is_kofam,
    is_list_of_kos,
    kind_of_identifier,
    normalise,
    several,
    text_columns,
)
from omniset.tables.doubts import FEWEST, counted_from
from omniset.tables.files import TableFile, TextFile, listed, short, unpacked
from omniset.tables.sheets import NUMBER, Sheet, key, split_loosely, texts_of

MOST = 2**31 - 1  # what 32 bits hold
MANY = 10  # copies of most families of a genome, or in most genomes, are more than there are
MOST_OF_GENE = 50  # KOs: a gene has a few, a genome hundreds
BLOCK = 1 << 22  # characters read at a time
ENDINGS = re.compile(
    r"(\.emapper|\.annotations|\.tsv|\.csv|\.txt|\.tab|\.out|\.rtab|\.parquet|\.mapper|\.detail|\.tblout|\.tbl|\.fasta|\.faa|\.fna|\.fa"
    r"|[._-](?:ko|kofam|kofamscan|functions|cog_classify|classifier_result))$",
    re.IGNORECASE,
)
NO_NAME = ("cog_classify", "classifier_result", "annotations", "emapper", "user_ko", "functions", "overview")
INSIDE = {  # identifiers within longer texts
    "KO": re.compile(r"\bK\d{5}\b"),
    "CAZy": re.compile(r"\b(?:GH|GT|PL|CE|AA|CBM)\d+(?:_\d+)?(?![0-9A-Za-z])"),  # also of GT2_Glycos_transf_2
    "Pfam": re.compile(r"\bPF\d{5}\b"),
}
HIT = re.compile(r'(?:\*|"\*"|[ ]+\*(?=\s))\s*(.*)')  # the mark of KofamScan's hits
HIDDEN = re.compile(r"[\s,;]K\d{5}$")


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


@dataclass
class Notes:
    """What a reader takes, and what it finds beside the genomes."""

    wanted: str | None = None  # kind of identifiers, None where all are
    known: Collection[str] = ()  # families of a model, as they are spelled there
    # See GenomeFile.
    categories: dict[str, str] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)  # how often something was read tolerantly, by what it was

    def family(self, name: str) -> str:
        return name.strip() if name.strip() in self.known else normalise(name)

    def wants(self, family: str) -> bool:
        if self.wanted is None:
            return True
        kind = kind_of_identifier(family)
        return kind == self.wanted or (self.wanted == "COG" and kind in COGS)

    def left_out(self, sheet: Sheet, what: str, name: str) -> None:
        said = f"{sheet.file.path}: {what} {name!r} is the sum of all others and was left out"
        self.warnings += [said] * (said not in self.warnings)

    def describe(self, family: str, category: str, description: str) -> None:
        for texts, text in ((self.categories, category), (self.descriptions, description)):
            if text not in ("", "-") and family not in texts:
                texts[family] = text


Found = Iterator[tuple[int, Genome]]  # with the row where it begins
# Row, genome, families, copies of each, and the contig where it is told: else "".
Entry = tuple[int, str, list[str], int] | tuple[int, str, list[str], int, str]


def gather(file: TextFile, entries: Iterable[Entry], only: str | None = None) -> Found:
    """Genomes out of entries that come genome by genome; `only`: of this one, even if nothing is in the file."""
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
    return Genome(name, list(present), np.array([*present.values()], np.int64), contigs if len(contigs) > 1 else {})


def contig_of(gene: str) -> str:
    """The contig of a gene, out of the name that Prodigal gives it: the contig's and the gene's number on it. "" where
    it is no such name.

    >>> contig_of("k141_7_12"), contig_of("WP_000123456.1")
    ('k141_7', '')
    """
    contig, _, number = gene.rpartition("_")
    return contig if number.isdigit() else ""


ALIKE = 50  # families of two copies, at least, that tell whether genes are of several genomes


def pooled(contigs: dict[str, dict[str, int]]) -> list[str]:
    """What the names of contigs begin with where they seem to be of several genomes; else nothing.

    The two largest parts are asked. Of the families with two copies in both together genomes have more often one in
    each than parts of a genome, with shares a and b of its genes: these as often as 2ab says, by 4 deviations at most.
    """
    for words in range(1, 6):
        begin = re.compile(rf"(?:[^\W_]+[\W_]*){{{words}}}")
        parts: dict[str, Counter[str]] = {}
        for contig, on in contigs.items():
            found = begin.match(contig) if words < 5 else None
            parts.setdefault((found[0] if found else contig).rstrip("_|~.:-"), Counter()).update(on)
        if len(parts) < 2:
            continue
        one, other = sorted(parts.values(), key=Counter.total)[-2:]
        in_two = [family for family, copies in (one + other).items() if copies == 2]
        share, number = one.total() / (one + other).total(), max(len(in_two), 1)
        chance = 2 * share * (1 - share)
        apart = sum(one[family] == 1 for family in in_two) / number
        if number >= ALIKE and apart > chance + 4 * math.sqrt(chance * (1 - chance) / number):
            return list(parts)
    return []


def sum_of_others(table: np.ndarray | sp.csr_array) -> int | None:
    """Number of the row that is the sum of all others, in columns enough to be no chance; else None."""
    sums, beside = table.sum(0), ((table > 0).sum(0) - 2).clip(0)  # rows above 0, beside one and the sum
    if (beside > 0).sum() > 1 and beside.sum() >= 2 * FEWEST:
        for row in np.flatnonzero(2 * table.sum(1) == sums.sum()):
            if not (2 * table[[row]] - sums).any():
                return int(row)
    return None


def without_sums(
    genomes: list[str], families: list[str], table: sp.csr_array
) -> tuple[sp.csr_array, list[tuple[str, str]]]:
    """A table, and its names, without a genome and a family that are the sum of all others; and which they are."""
    found = []
    for what, names, turned in (("genome", genomes, table), ("family", families, table.T.tocsr())):
        if (at := sum_of_others(turned)) is not None:
            rest = np.arange(len(names)) != at
            table = table[rest] if what == "genome" else table[:, rest]
            found.append((what, names.pop(at)))
    return table, found


def bad_count(column: str, text: str, row: str) -> str:
    value = "empty" if text.lower() in MISSING else short(text)
    hint = ". Write numbers without a separator of thousands and with a decimal point" if COMMAS.fullmatch(text) else ""
    return f"column {column!r} is {value}, it must be a whole number from 0 to {MOST} (of {row!r}){hint}"


# ---------------------------------------------------------------------- a row per copy, gene or hit


def read_long(sheet: Sheet, notes: Notes) -> Found:
    genome, family = sheet.need(GENOME_NAMES, "genomes"), sheet.need(FAMILY_NAMES, "families")
    count = None if sheet.first(COUNT_NAMES) is None else sheet.need(COUNT_NAMES, "counts")
    amount = sheet.first(AMOUNTS) if count is None else count
    at = [genome, family, *([amount] if amount is not None else [])]
    places = [i for i in range(len(sheet.columns)) if i not in at[:2]]
    cells = {i: [row[i + sheet.shifted] for row in sheet.rows if i + sheet.shifted < len(row)] for i in places}
    numbers = [i for i, some in cells.items() if some and all(map(str.isdigit, some))]
    if count is None and numbers:
        notes.warnings.append(
            f"{sheet.file.path}: no column is called count, so that each row was taken for one copy: "
            f"rename column {sheet.columns[numbers[0]]!r} to count if its numbers are those of copies"
        )

    def entries() -> Iterator[Entry]:
        for row, (name, identifier, *rest) in sheet.records(at):
            if count is None and name and not identifier:
                notes.tally["no family"] += 1  # of a gene, as BV-BRC's of RNA
                yield row, name, [], 0
                continue
            for column, text in ((genome, name), (family, identifier)):
                if not text:
                    raise sheet.file.error(row, f"column {sheet.columns[column]!r} is empty")
            copies = 1
            if rest and count is None:  # each row is one copy, but where none is there
                copies = int(rest[0].lower() in MISSING or _Numbers()[rest[0]] != 0)
                notes.tally["absent"] += not copies
            elif rest:
                value = float(rest[0]) if NUMBER.fullmatch(rest[0]) else np.nan
                if not (0 <= value <= MOST and value == np.floor(value)):
                    raise sheet.file.error(row, bad_count(sheet.columns[at[2]], rest[0], name))
                copies = int(value)
            name_of_family = notes.family(identifier)
            if notes.wants(name_of_family):
                yield row, name, [name_of_family], copies
            else:
                notes.tally["unwanted"] += 1
                yield row, name, [], 0

    return gather(sheet.file, entries())


def genome_of(path: Path) -> str:
    """The genome that a file is of: the file's name without what tools append, or the folder's where nothing is left.

    Example:
        >>> genome_of(Path("x/GCF_000011125.1.faa.emapper.annotations.gz"))
        'GCF_000011125.1'
        >>> genome_of(Path("x/bin.7/cog_classify.tsv"))
        'bin.7'
    """
    name = unpacked(path.name)
    while name.lower() not in NO_NAME and (shorter := ENDINGS.sub("", name)) not in (name, ""):
        name = shorter
    return path.resolve().parent.name or name if name.lower() in NO_NAME else name


def once(seen: set[tuple[str, str]], gene: str, families: list[str]) -> list[str]:
    """Those families that this gene was not met with before: several rows of a gene are not several copies."""
    new = [family for family in dict.fromkeys(families) if (gene, family) not in seen]
    if gene:
        seen.update((gene, family) for family in new)
    return new


def read_genes(name: str, sheet: Sheet, notes: Notes) -> Found:
    """A format whose columns `FORMATS` names: gene by gene the identifiers of one kind."""
    form = FORMATS[name]
    if name == "eggnog":
        _name_last_columns(sheet)
    genome = sheet.need(form.genome, f"genomes ({form.genome[0]})") if form.genome else None
    wanted = notes.wanted or next(iter(form.families))
    of = sheet.first(form.families.get(wanted, ()))
    if of is None:
        have = [kind for kind, names in form.families.items() if sheet.first(names) is not None]
        if len(form.families) == 1:
            sheet.need(form.families.get(wanted, ()), f"{wanted}s")
        some = f"it has some for {listed(have)}: say identifiers={have[0]!r}" if have else "nor for others"
        raise sheet.file.error(None, f"has no column for identifiers {wanted!r}, {some}")
    if name == "eggnog" and wanted == "Pfam":
        notes.tally["pfam names"] += 1
    parts = ("gene", "contig", "category", "description")
    there = {part: place for part in parts if (place := sheet.first(getattr(form, part))) is not None}
    at = [of, *there.values(), *([] if genome is None else [genome])]
    only = None if form.genome else genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
        seen: set[tuple[str, str]] = set()
        for row, (text, *more) in sheet.records(at, quoted=False, comments=name == "eggnog"):
            told = dict(zip(there, more, strict=False))
            if genome is not None and not more[-1]:
                raise sheet.file.error(row, f"column {sheet.columns[genome]!r} is empty")
            families = list(dict.fromkeys(_picked(form.pick, text, wanted, notes, sheet, row, of)))
            notes.tally["unread"] += form.pick == "inside" and not families and text not in ("", "-")
            words = told.get("description", "")
            # Where several sources or accessions are joined, so are their texts.
            texts = words.split("!!!") if name == "anvio-functions" else [words] * len(families)
            for family, description in zip(families, texts, strict=False):
                notes.describe(family, told.get("category", ""), description)
            gene = told.get("gene", "")
            if name == "anvio-functions":  # a gene has a row per source of functions, and several may tell the same
                families = once(seen, gene, families)
            contig = told["contig"] if "contig" in told else contig_of(gene)
            yield row, only or more[-1], families, 1, contig

    return gather(sheet.file, entries(), only)


def _picked(pick: str, text: str, wanted: str, notes: Notes, sheet: Sheet, row: int, column: int) -> list[str]:
    """The families in a field, see `Format.pick`."""
    if pick == "roots" and wanted in COGS:
        return _groups(text.split(","), wanted)
    if pick == "roots" and wanted == "Pfam":  # names, in which other characters may stand
        return [name for name in map(str.strip, text.split(",")) if name not in ("", "-")]
    if pick == "only":
        return _each(sheet, row, f"column {sheet.columns[column]!r}", text, wanted, notes)
    if pick == "inside":
        return INSIDE[wanted].findall(text)
    if pick == "prefixed":  # "COG:COG0001, KEGG:K00001, ..."
        names = [name for one in text.split(",") for name in (one.strip(), one.strip().partition(":")[2])]
        return [notes.family(name) for name in names if name and kind_of_identifier(name) == wanted]
    families = list(map(notes.family, several(text)))
    return families if pick == "roots" else [family for family in families if notes.wants(family)]


def _name_last_columns(sheet: Sheet) -> None:
    """eggNOG-mapper 2.0 left the last five columns without a name; `grep -v` takes all names away."""
    if is_beheaded_eggnog(sheet):
        sheet.columns, sheet.header = [*EGGNOG], -2
    if (
        sheet.first(FORMATS["eggnog"].families["COG"]) is None
        and sheet.rows
        and len(sheet.rows[0]) == len(sheet.columns) + 5
    ):
        sheet.columns += ["tax_scope", "eggNOG_OGs", "best_OG", "COG_category", "Description"]


def _groups(values: list[str], wanted: str) -> list[str]:
    """Out of "COG0001@1|root,COG0001@2|Bacteria,...": the root's COGs, else arCOGs."""
    groups = [value.strip().partition("@") for value in values]
    cogs = [g for g, _, level in groups if kind_of_identifier(g) == "COG" and level.split("|")[0] in ("", "1", "NOG")]
    arcogs = [g for g, _, _ in groups if kind_of_identifier(g) == "arCOG"]
    return arcogs if wanted == "arCOG" else cogs or arcogs


Hit = tuple[int, str, list[str]]  # row, gene, and families that it is said to be of


def read_hits(hits: Callable[[Sheet, Notes], Iterator[Hit]], sheet: Sheet, notes: Notes) -> Found:
    """A file of one genome, hit by hit: a gene with several hits of a family counts once."""
    seen: set[tuple[str, str]] = set()
    name = genome_of(sheet.file.path)
    entries = (
        (row, name, once(seen, gene, families), 1, contig_of(gene)) for row, gene, families in hits(sheet, notes)
    )
    return gather(sheet.file, entries, name)


def interproscan_hits(sheet: Sheet, notes: Notes) -> Iterator[Hit]:
    """The signature's identifier, or InterPro's."""
    wanted = notes.wanted or "Pfam"
    column = {"InterPro": 11, "GO": 13}.get(wanted, 4)
    for row, line in sheet.file.lines():
        fields = line.rstrip("\r\n").split("\t")
        if not line.strip():
            continue
        if len(fields) < 11:
            raise sheet.file.error(row, f"has {len(fields)} fields, InterProScan writes at least 11")
        text = fields[column] if len(fields) > column else "-"
        names = re.split(r"[|(]", text)  # "GO:0000001(InterPro)|GO:0000002"
        yield row, fields[0], [notes.family(name) for name in names if kind_of_identifier(name) == wanted]


def hmmscan_hits(sheet: Sheet, notes: Notes) -> Iterator[Hit]:
    """The accession of the model, else its name.

    The hits are those of the file: choose them with HMMER's --cut_ga or -E. hmmscan has models as targets, hmmsearch as
    queries. The side that has an accession is the model; where none has, the program that the last lines name tells.
    """
    at = columns_of_hits(sheet) or (0, 1, 2, 3)
    queries: bool | None = None
    for row, line in sheet.file.lines():
        fields = line.split(None, 7)
        if line.startswith("#") or not fields:
            continue
        if len(fields) < 6:
            raise sheet.file.error(row, f"has {len(fields)} fields, a row of --tblout has 18")
        target, accession, query, other = (fields[place] for place in at)
        if accession == other == "-":
            queries = _models_are_queries(sheet.file, at[2]) if queries is None else queries
            model, gene = (query, target) if queries else (target, query)
        else:
            model, gene = (other, target) if accession == "-" else (accession, query)
        yield row, gene, [notes.family(model.removesuffix(".hmm"))]  # dbCAN's are called so


def _models_are_queries(file: TextFile, query: int) -> bool:
    """Of a table without accessions: whether hmmsearch wrote it, by its end; else models are fewer than genes."""
    names: tuple[set[str], set[str]] = set(), set()
    for _, line in file.lines():
        if program := re.match(r"# Program:\s+hmm(scan|search)", line):
            return program[1] == "search"
        if fields := [] if line.startswith("#") else line.split(None, query + 1):
            names[0].add(fields[0])
            names[1].add(fields[query])
    if len(names[0]) == len(names[1]):
        raise file.error(
            None,
            f"has hits of {min(names[0])!r} and {min(names[1])!r} without accessions, and nothing tells which is the "
            "model: keep HMMER's last line '# Program: hmmsearch' (or hmmscan)",
        )
    return len(names[1]) < len(names[0])


def kofamscan_hits(sheet: Sheet, notes: Notes) -> Iterator[Hit]:
    """Only hits above the threshold, which a * marks. The plain form is aligned by spaces, the other by tabs."""
    if not is_kofam(sheet):
        raise sheet.file.error(None, "does not begin with KofamScan's header (# gene name, KO, thrshld, ...)")
    began = False
    for row, line in sheet.file.lines():
        if row <= sheet.header or not line.strip() or (line.startswith("#") and not began):
            continue
        began = True
        hit = HIT.match(line)
        if hit is None:
            if not line.startswith((" ", "\t", '""')):
                again = " (the header again? give files that were joined one by one)" if line[0] == "#" else ""
                raise sheet.file.error(row, f"begins with {line[0]!r}, it must with * or a space{again}")
            continue
        fields = split_loosely(hit[1], "\t") if "\t" in line else hit[1].split(None, 5)
        families = _each(sheet, row, "column 'KO'", fields[1] if len(fields) > 1 else "", "KO", notes)
        if not families:
            raise sheet.file.error(row, "column 'KO' is empty, it must be a KO such as 'K00001'")
        if len(fields) > 5:
            notes.describe(families[0], "", fields[5].strip().strip('"').replace('""', '"'))
        yield row, fields[0].strip('"'), families


def mapper_hits(sheet: Sheet, notes: Notes) -> Iterator[Hit]:
    """Gene and KOs, in one field or several, or KOs alone; without comments, since a gene may have any name."""
    header = FORMATS["ko-mapper"].families["KO"]  # which tools do not write
    began, alone, of_gene = False, is_list_of_kos(sheet), Counter[str]()
    for row, line in sheet.file.lines():
        gene, *fields = map(str.strip, split_loosely(line, sheet.separator))
        if not began and fields and key(fields[0]) in header:
            continue
        began = True
        if alone:
            yield row, "", _each(sheet, row, "column 1", gene, "KO", notes)
            continue
        families = _each(sheet, row, "column 2", fields[0], "KO", notes) if fields else []
        for further in fields[1:] if families else []:  # further columns may tell the next best hit
            more = several(further)
            if not more or any(kind_of_identifier(identifier) != "KO" for identifier in more):
                break
            families += map(notes.family, more)
        if not fields and HIDDEN.search(gene):
            raise sheet.file.error(row, f"has one field, {short(gene)}: gene and KO must be separated by a tab")
        of_gene[gene] += len(families)
        if gene and of_gene[gene] > MOST_OF_GENE:
            raise sheet.file.error(
                row,
                f"{short(gene)} has more than {MOST_OF_GENE} KOs: where the first column names genomes, write the line "
                "genome<tab>ko above",
            )
        yield row, gene, families


def _each(sheet: Sheet, row: int, column: str, field: str, kind: str, notes: Notes) -> list[str]:
    """The identifiers in a field, all of which must be of one kind."""
    names = several(field)
    kinds = COGS if kind == "COG" else (kind,)
    if any(kind_of_identifier(name) not in kinds for name in names):
        example = {"COG": "COG such as 'COG0001'", "KO": "KO such as 'K00001'"}[kind]
        raise sheet.file.error(row, f"{column} is {short(field)}, it must be a {example}, several or empty")
    return list(dict.fromkeys(map(notes.family, names)))


# ---------------------------------------------------------------------- wide tables


@dataclass
class Block:
    """Some rows of a wide table: their numbers, first fields and cells (NaN where one is empty)."""

    rows: list[int]
    names: list[str]
    cells: Float[np.ndarray, "rows columns"]
    texts: list[list[str]]  # of columns that are not cells


@dataclass
class Cells:
    """Cells of a wide table made into counts.

    A table in which all absent families are empty (as pivoting writes them) is read with 0 in their place. One that has
    both zeros and empty cells is refused, since its empty cells may mean something else.

    Attributes:
        columns: Names of the columns of the cells.
        first: Where the first cell is that is empty, and the first that is 0.
    """

    sheet: Sheet
    columns: list[str]
    notes: Notes
    first: dict[str, str] = field(default_factory=dict)

    def counts(self, block: Block, cells: Float[np.ndarray, "rows columns"]) -> Int[np.ndarray, "rows columns"]:
        """Whole numbers from 0 on.

        Raises:
            ValueError: Naming the first cell that is none.
        """
        file, empty = self.sheet.file, np.isnan(cells)
        self.notes.tally["empty"] += int(empty.sum())
        filled = np.where(empty, 0, cells)
        bad = ~((filled >= 0) & (filled <= MOST) & (filled == np.floor(filled)))
        if bad.any():
            row, column = np.argwhere(bad)[0]
            text = f"{filled[row, column]:g}"
            raise file.error(block.rows[row], bad_count(self.columns[column], text, block.names[row]))
        for what, chosen in (("empty", empty), ("0", cells == 0)):
            if what not in self.first and chosen.any():
                row, column = np.argwhere(chosen)[0]
                self.first[what] = f"{file.where(block.rows[row])}, column {self.columns[column]!r}"
        if len(self.first) > 1:
            where = f"{self.first['empty']} is empty where {self.first['0']} is 0"
            raise file.error(None, f"{where}: write 0 in every cell of an absent family")
        return filled.astype(np.int64)


def blocks(sheet: Sheet, words: Sequence[int] = ()) -> Iterator[Block]:
    """The rows of a wide table below its header; `words` are columns that are not cells."""
    if isinstance(sheet.file, TableFile):
        yield from _parquet_blocks(sheet.file, words)
        return
    rows: list[int] = []
    lines: list[str] = []
    size = 0
    for row, line in sheet.file.lines():
        if row > sheet.header and line.strip(sheet.edge):
            rows.append(row)
            lines.append(line)
            size += len(line)
        if size >= BLOCK:
            yield _text_block(sheet, rows, lines, words)
            rows, lines, size = [], [], 0
    if rows:
        yield _text_block(sheet, rows, lines, words)


def _text_block(sheet: Sheet, rows: list[int], lines: list[str], words: Sequence[int]) -> Block:
    names, width = sheet.titles, len(sheet.titles)
    at = [i for i in range(1, width) if i not in words]
    parse = _Numbers()
    first, texts = [], []
    cells = np.empty((len(rows), len(at)))
    for number, (row, line) in enumerate(zip(rows, lines, strict=True)):
        fields = sheet.split(row, line)
        if len(fields) != width:
            raise sheet.wrong_width(row, line, len(fields))
        name = fields[0].strip()
        if not name:
            raise sheet.file.error(row, f"column {names[0]!r} is empty: each row needs a name")
        first.append(name)
        texts.append([fields[i].strip() for i in words])
        numbers = [parse[fields[i]] for i in at]
        if None in numbers:
            wrong = at[numbers.index(None)]
            raise sheet.file.error(row, bad_count(names[wrong], fields[wrong].strip(), name))
        cells[number] = numbers
    return Block(rows, first, cells, texts)


class _Numbers(dict[str, float | None]):
    """What a cell says: NaN where it is empty, None where it is no number. There are few different cells."""

    def __missing__(self, cell: str) -> float | None:
        text = cell.strip()
        value: float | None = None
        if text.lower() in MISSING:
            value = np.nan
        elif text.lower() in PRESENCE:
            value = PRESENCE[text.lower()]
        elif NUMBER.fullmatch(text):
            value = float(text)
        if len(self) < 1 << 16:
            self[cell] = value
        return value


def _parquet_blocks(file: TableFile, words: Sequence[int]) -> Iterator[Block]:
    at = [name for i, name in enumerate(file.columns) if i and i not in words]
    parse = _Numbers()
    for chunk in file.chunks():
        names = chunk.text(file.columns[0]).to_pylist()
        cells = np.empty((len(chunk), len(at)))
        for number, column in enumerate(at):
            values = chunk.columns[column]
            if pa.types.is_boolean(values.type):
                values = values.cast(pa.int8())
            if pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_null(values.type):
                cells[:, number] = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
                continue
            texts = texts_of(chunk.as_text(column, values))
            numbers = [parse[text] for text in texts]
            if None in numbers:
                row = numbers.index(None)
                raise file.error(chunk.first + row, bad_count(column, texts[row], names[row]))
            cells[:, number] = numbers
        texts_of_row = [list(t) for t in zip(*(texts_of(chunk.columns[file.columns[i]]) for i in words), strict=True)]
        yield Block(list(range(chunk.first, chunk.first + len(chunk))), names, cells, texts_of_row)


def read_wide(sheet: Sheet, notes: Notes) -> Found:
    """Genomes x families."""
    columns, words = _wide_columns(sheet, "family"), _words(sheet, notes)
    columns = [name for at, name in enumerate(columns, 1) if at not in words]
    kind = kind_of_identifier(sheet.titles[0])
    if kind != "other" and all(kind_of_identifier(name) == kind for name in columns):
        row = None if isinstance(sheet.file, TableFile) else sheet.header
        text = f"all columns are families: the first, {sheet.titles[0]!r}, must have the names of the genomes"
        raise sheet.file.error(row, text)
    places = [i for i, name in enumerate(columns) if key(name) not in METADATA]
    if left := [name for name in columns if key(name) in METADATA]:
        notes.warnings.append(f"{sheet.file.path}: column {left[0]!r} is no family and was left out; nothing is to do")
    families, wanted = _families(sheet, [columns[i] for i in places], notes)
    places = [i for i, want in zip(places, wanted, strict=True) if want]
    families = [family for family, want in zip(families, wanted, strict=True) if want]
    cells, named = Cells(sheet, [columns[i] for i in places], notes), np.array(families, dtype=object)
    above, total = np.zeros(len(places), dtype=np.int64), None
    for number, block in enumerate(blocks(sheet, words)):
        counts = cells.counts(block, block.cells if len(places) == len(columns) else block.cells[:, places])
        if number == 0:
            total = sum_of_others(counts.T)
            notes.warnings += _unlike_counts(sheet, families, counts)
        if total is not None:
            notes.left_out(sheet, "family", families[total])
            counts[:, total] = 0
        for row, name, of_genome in zip(block.rows, block.names, counts, strict=True):
            present = np.flatnonzero(of_genome)
            if (of_genome == above).all() and (above > 1).sum() >= FEWEST:
                notes.left_out(sheet, "genome", name)
                continue
            above += of_genome
            yield row, Genome(name, named[present].tolist(), of_genome[present])


def _unlike_counts(sheet: Sheet, families: list[str], counts: Int[np.ndarray, "rows columns"]) -> list[str]:
    """A sentence on columns beside identifiers that hold no copies, as sizes of genomes."""
    other = np.array([kind_of_identifier(family) == "other" for family in families])
    if 2 * other.sum() >= len(other) or not (odd := np.flatnonzero(other & (np.median(counts, 0) > MANY))).size:
        return []
    said = f"column {families[odd[0]]!r} is no identifier as others are, its numbers are large, and it was taken for a"
    return [f"{sheet.file.path}: {said} family: leave it out if it is none"]


def _wide_columns(sheet: Sheet, what: str) -> list[str]:
    """The columns behind the first, each of which has a name."""
    columns = sheet.titles[1:]
    if not columns:
        raise sheet.file.error(None, "has one column only: columns must be separated by tabs or commas")
    if "" in columns:
        at = columns.index("") + 1
        ends = ": does the line end with a separator?" if at == len(columns) else ""
        row = None if isinstance(sheet.file, TableFile) else sheet.header
        raise sheet.file.error(row, f"column {at + 1} has no name, each {what} needs one{ends}")
    return columns


def read_transposed(sheet: Sheet, notes: Notes) -> Found:
    """Families x genomes: held as sparse counts, since the last row completes the first genome."""
    _wide_columns(sheet, "genome")
    if kind_of_identifier(sheet.titles[0]) not in ("other", "eggNOG"):
        raise sheet.file.error(None, f"has no header: its first line begins with the family {sheet.titles[0]!r}")
    matrix, words = sheet.keys[0] == "key", _words(sheet, notes)
    genomes = [title for i, title in enumerate(sheet.titles) if i and i not in words]
    for name, times in Counter(genomes).items():
        if times > 1:
            raise sheet.file.error(None, f"genome {name!r} is there twice: each genome needs its own name")
    cells = Cells(sheet, genomes, notes)
    rows_of: dict[str, int] = {}
    numbers: dict[str, int] = {}
    entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for block in blocks(sheet, words):
        counts = cells.counts(block, block.cells)
        of_row, families_of = [], []
        for number, (row, name) in enumerate(zip(block.rows, block.names, strict=True)):
            if name in rows_of:
                raise sheet.file.error(row, f"{name!r} is there twice (first at {sheet.file.where(rows_of[name])})")
            rows_of[name] = row
            if words and not matrix:
                notes.describe(notes.family(name), "", block.texts[number][0])
            for family in _functions(sheet, words, block.texts[number], notes) if matrix and words else [name]:
                of_row.append(number)
                families_of.append(numbers.setdefault(family, len(numbers)))
        at, which = np.nonzero(counts[of_row])
        entries.append(
            (np.array(families_of, dtype=np.int64)[at], which, counts[np.array(of_row, dtype=np.int64)[at], which])
        )
    if not entries:
        return
    families, wanted = _families(sheet, list(numbers), notes)
    at, of, copies = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    taken = np.array(wanted)[at]
    table = sp.csr_array((copies[taken], (of[taken], at[taken])), shape=(len(genomes), len(families)))
    table, sums = without_sums(genomes, families, table)
    for one in sums:
        notes.left_out(sheet, *one)
    for number, genome in enumerate(genomes):
        inside = slice(table.indptr[number], table.indptr[number + 1])
        yield -1, Genome(genome, [families[i] for i in table.indices[inside]], table.data[inside].astype(np.int64))


def _words(sheet: Sheet, notes: Notes) -> list[int]:
    """Columns of words beside counts: those of descriptions, and others, which are left out with a note."""
    words, titles = text_columns(sheet), [*map(key, sheet.titles)]
    other = [sheet.titles[at] for at in words if titles[0] != "key" and titles[at] not in DESCRIPTIONS]
    if other and counted_from([fields[0] for fields in sheet.rows]) is not None:
        names = f"leave it out, so that {other[0]!r} names the rows, or leave out the latter"
        raise sheet.file.error(None, f"column {sheet.titles[0]!r} only counts: {names}")
    if other:
        notes.warnings.append(f"{sheet.file.path}: columns of words, such as {other[0]!r}, were left out")
    return sorted(words, key=lambda at: (titles[at] not in DESCRIPTIONS, at))


def _functions(sheet: Sheet, words: list[int], texts: list[str], notes: Notes) -> list[str]:
    """The families of a row of anvi'o's matrix: the accessions where there are some, else the function's text.

    Its `key` is made up for one file and means nothing in another.
    """
    named = dict(zip((sheet.keys[i] for i in words), texts, strict=True))
    text = next((text for column, text in named.items() if "accession" not in column and text), "")
    accessions = [text.split("!!!") for column, text in named.items() if "accession" in column and text]
    families = [notes.family(name) for name in (accessions[0] if accessions else text.split("!!!"))]
    if accessions:
        for family in families:
            notes.describe(family, "", text)
    return list(dict.fromkeys(families))


def _families(sheet: Sheet, names: Sequence[str], notes: Notes) -> tuple[list[str], list[bool]]:
    """Families by their names in a table, and which of them are wanted."""
    try:
        families, apart = distinct(names, notes.known)
    except ValueError as error:
        raise sheet.file.error(None, str(error)) from error
    if apart:
        notes.warnings.append(
            f"{sheet.file.path}: {len(apart)} families such as {apart[0]} have the identifier of another one but for "
            "its version, and were kept apart: rename them if that is not meant"
        )
    if counted_from(families) is not None:
        notes.warnings.append(
            f"{sheet.file.path}: families have the names {families[0]} to {families[-1]}, which mean something else in "
            "a table of another clustering: write their own names if these are lost"
        )
    wanted = [notes.wants(family) for family in families]
    if not any(wanted):
        kinds = Counter(map(kind_of_identifier, families))
        have = ", ".join(f"{count} of {kind}" for kind, count in kinds.most_common()) or "none at all"
        of = f" of kind {notes.wanted}" if notes.wanted else ""
        raise sheet.file.error(None, f"has no family{of}, it has {have}")
    notes.tally["unwanted"] += len(wanted) - sum(wanted)
    return families, wanted


READERS: dict[str, Callable[[Sheet, Notes], Found]] = {
    "genomes-by-families": read_wide,
    "families-by-genomes": read_transposed,
    "long": read_long,
    "kofamscan": partial(read_hits, kofamscan_hits),
    "ko-mapper": partial(read_hits, mapper_hits),
    "anvio-matrix": read_transposed,
    "interproscan": partial(read_hits, interproscan_hits),
    "hmmscan": partial(read_hits, hmmscan_hits),
    **{name: partial(read_genes, name) for name, form in FORMATS.items() if form.pick},
}
