"""What annotation tools write gene by gene, and long tables: read line by line, one genome after another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from omniset.genomes.formats import (
    COUNT_NAMES,
    DRAM,
    EGGNOG,
    ENDINGS,
    FAMILY_NAMES,
    GENOME_NAMES,
    KO_NAMES,
    MOST,
    NO_NAME,
    Entry,
    Found,
    Notes,
    bad_count,
    contig_of,
    gather,
    is_kofam,
)
from omniset.genomes.identifiers import COGS, kind_of_identifier, several
from omniset.tables.files import OPENERS, listed, short
from omniset.tables.sheets import NUMBER, Sheet, key, split_loosely

INSIDE = {  # identifiers within longer texts
    "KO": re.compile(r"\bK\d{5}\b"),
    "CAZy": re.compile(r"\b(?:GH|GT|PL|CE|AA|CBM)\d+(?:_\d+)?(?![0-9A-Za-z])"),  # also of GT2_Glycos_transf_2
    "Pfam": re.compile(r"\bPF\d{5}\b"),
}
HIT = re.compile(r'(?:\*|"\*"|[ ]+\*(?=\s))\s*(.*)')  # the mark of KofamScan's hits
HIDDEN = re.compile(r"[\s,;]K\d{5}$")


def read_long(sheet: Sheet, notes: Notes) -> Found:
    genome, family = sheet.need(GENOME_NAMES, "genomes"), sheet.need(FAMILY_NAMES, "families")
    count = None if sheet.first(COUNT_NAMES) is None else sheet.need(COUNT_NAMES, "counts")
    at = [genome, family, *([count] if count is not None else [])]
    numbers = [i for i in range(len(sheet.columns)) if i not in at and _holds_numbers(sheet, i)]
    if count is None and numbers:
        notes.warnings.append(
            f"{sheet.file.path}: no column is called count, so that each row was taken for one copy: "
            f"rename column {sheet.columns[numbers[0]]!r} to count if its numbers are those of copies"
        )

    def entries() -> Iterator[Entry]:
        for row, (name, identifier, *rest) in sheet.records(at):
            for column, text in ((genome, name), (family, identifier)):
                if not text:
                    raise sheet.file.error(row, f"column {sheet.columns[column]!r} is empty")
            copies = 1
            if rest:
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


def _holds_numbers(sheet: Sheet, column: int) -> bool:
    cells = [fields[column + sheet.shifted] for fields in sheet.rows if column + sheet.shifted < len(fields)]
    return bool(cells) and all(cell.isdigit() for cell in cells)


def genome_of(path: Path) -> str:
    """The genome that a file is of: the file's name without what tools append, or the folder's where nothing is left.

    Example:
        >>> genome_of(Path("x/GCF_000011125.1.faa.emapper.annotations.gz"))
        'GCF_000011125.1'
        >>> genome_of(Path("x/bin.7/cog_classify.tsv"))
        'bin.7'
    """
    name = path.name
    if path.suffix.lower() in OPENERS:
        name = name[: -len(path.suffix)]
    while (shorter := ENDINGS.sub("", name)) not in (name, ""):
        name = shorter
    return path.resolve().parent.name or name if name.lower() in NO_NAME else name


def once(seen: set[tuple[str, str]], gene: str, families: list[str]) -> list[str]:
    """Those families that this gene was not met with before: several rows of a gene are not several copies."""
    new = [family for family in dict.fromkeys(families) if (gene, family) not in seen]
    if gene:
        seen.update((gene, family) for family in new)
    return new


def read_eggnog(sheet: Sheet, notes: Notes) -> Found:
    """Gene by gene: the COG at the root of its orthologous groups (else an arCOG), or another column's identifiers."""
    _name_last_columns(sheet)
    wanted = notes.wanted or "COG"
    of = sheet.first(EGGNOG.get(wanted, ()))
    if of is None:
        have = [kind for kind, names in EGGNOG.items() if sheet.first(names) is not None]
        raise sheet.file.error(None, f"has no column for identifiers {wanted!r}, it has some for {listed(have)}")
    if wanted == "Pfam":
        notes.tally["pfam names"] += 1
    category = sheet.first([k for k in sheet.keys if k.startswith("cog_") and "cat" in k] or ["cog"])
    text = sheet.first([k for k in sheet.keys if k.startswith(("desc", "eggnog_free_text", "eggnog_hmm_model"))])
    extra = [i for i in (category, text) if i is not None]
    name = genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
        for row, (gene, field, *rest) in sheet.records([0, of, *extra], quoted=False, comments=True):
            if wanted in COGS:
                families = _groups(field.split(","), wanted)
            elif wanted == "Pfam":  # names, in which other characters may stand
                families = [name for name in map(str.strip, field.split(",")) if name not in ("", "-")]
            else:
                families = list(map(notes.family, several(field)))
            words = dict(zip(extra, rest, strict=True))
            for family in families:
                notes.describe(family, words.get(category, ""), words.get(text, ""))  # type: ignore[arg-type]
            yield row, name, list(dict.fromkeys(families)), 1, contig_of(gene)

    return gather(sheet.file, entries(), name)


def _name_last_columns(sheet: Sheet) -> None:
    """eggNOG-mapper 2.0 left the last five columns without a name."""
    if sheet.first(EGGNOG["COG"]) is None and sheet.rows and len(sheet.rows[0]) == len(sheet.columns) + 5:
        sheet.columns += ["tax_scope", "eggNOG_OGs", "best_OG", "COG_category", "Description"]


def _groups(values: list[str], wanted: str) -> list[str]:
    """Out of "COG0001@1|root,COG0001@2|Bacteria,...": the root's COGs, else arCOGs."""
    groups = [value.strip().partition("@") for value in values]
    cogs = [g for g, _, level in groups if kind_of_identifier(g) == "COG" and level.split("|")[0] in ("", "1", "NOG")]
    arcogs = [g for g, _, _ in groups if kind_of_identifier(g) == "arCOG"]
    return arcogs if wanted == "arCOG" else cogs or arcogs


def read_cogclassifier(sheet: Sheet, notes: Notes) -> Found:
    cog = sheet.need(["cog_id"], "COGs (COG_ID)")
    extra = [i for i in map(sheet.first, (["cog_letter"], ["cog_name"])) if i is not None]
    query, name = sheet.first(["query_id"]) or 0, genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
        for row, (gene, field, *rest) in sheet.records([query, cog, *extra], quoted=False):
            families = _each(sheet, row, f"column {sheet.columns[cog]!r}", field, "COG", notes)
            for family in families:
                words = dict(zip((sheet.keys[i] for i in extra), rest, strict=True))
                notes.describe(family, words.get("cog_letter", ""), words.get("cog_name", ""))
            yield row, name, families, 1, contig_of(gene)

    return gather(sheet.file, entries(), name)


def read_prokka(sheet: Sheet, notes: Notes) -> Found:
    """Gene by gene: its COG or its EC number."""
    columns = {"COG": ["cog"], "EC": ["ec_number"]}
    wanted = notes.wanted or "COG"
    if wanted not in columns:
        raise sheet.file.error(None, f"has no column for identifiers {wanted!r}, it has some for {listed([*columns])}")
    at, name = sheet.need(columns[wanted], f"{wanted} (identifiers)"), genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
        for row, (field,) in sheet.records([at], quoted=False):
            yield row, name, [notes.family(one) for one in several(field) if kind_of_identifier(one) == wanted], 1

    return gather(sheet.file, entries(), name)


def read_bakta(sheet: Sheet, notes: Notes) -> Found:
    """Gene by gene: identifiers of one kind out of its references to databases, "COG:COG0001, KEGG:K00001, ..."."""
    wanted, name = notes.wanted or "COG", genome_of(sheet.file.path)
    at = [sheet.need(["dbxrefs"], "references to databases (DbXrefs)"), sheet.first(["sequence_id"])]

    def entries() -> Iterator[Entry]:
        for row, (field, *contig) in sheet.records([i for i in at if i is not None], quoted=False):
            names = [text for one in field.split(",") for text in (one.strip(), one.strip().partition(":")[2])]
            families = [notes.family(text) for text in names if text and kind_of_identifier(text) == wanted]
            yield row, name, list(dict.fromkeys(families)), 1, "".join(contig)

    return gather(sheet.file, entries(), name)


def read_interproscan(sheet: Sheet, notes: Notes) -> Found:
    """Match by match: the signature's identifier, or InterPro's; a gene with several matches counts once."""
    wanted, name = notes.wanted or "Pfam", genome_of(sheet.file.path)
    column = 11 if wanted == "InterPro" else 4

    def entries() -> Iterator[Entry]:
        seen: set[tuple[str, str]] = set()
        for row, line in sheet.file.lines():
            fields = line.rstrip("\r\n").split("\t")
            if not line.strip():
                continue
            if len(fields) < 11:
                raise sheet.file.error(row, f"has {len(fields)} fields, InterProScan writes at least 11")
            text = fields[column] if len(fields) > column else "-"
            if kind_of_identifier(text) == wanted and (fields[0], text) not in seen:
                seen.add((fields[0], text))
                yield row, name, [notes.family(text)], 1, contig_of(fields[0])

    return gather(sheet.file, entries(), name)


def read_hmmscan(sheet: Sheet, notes: Notes) -> Found:
    """Hit by hit: the accession of the model, else its name; a gene that hits a model several times counts once.

    The hits are those of the file: choose them with HMMER's --cut_ga or -E. hmmscan has models as targets, hmmsearch as
    queries; the side that has an accession is the model.
    """
    name = genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
        seen: set[tuple[str, str]] = set()
        for row, line in sheet.file.lines():
            fields = line.split(None, 5)
            if line.startswith("#") or not fields:
                continue
            if len(fields) < 6:
                raise sheet.file.error(row, f"has {len(fields)} fields, a row of --tblout has 18")
            target, accession, query, other = fields[:4]
            searched = accession == "-" and other != "-"
            model, gene = (other, target) if searched else (target if accession == "-" else accession, query)
            if (gene, model) not in seen:
                seen.add((gene, model))
                yield row, name, [notes.family(model)], 1, contig_of(gene)

    return gather(sheet.file, entries(), name)


def read_kofamscan(sheet: Sheet, notes: Notes) -> Found:
    """Only hits above the threshold, which a * marks. The plain form is aligned by spaces, the other by tabs."""
    if not is_kofam(sheet):
        raise sheet.file.error(None, "does not begin with KofamScan's header (# gene name, KO, thrshld, ...)")
    name = genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
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
            yield row, name, families, 1, contig_of(fields[0].strip('"'))

    return gather(sheet.file, entries(), name)


def read_mapper(sheet: Sheet, notes: Notes) -> Found:
    """Gene and KOs, in one field or several; without comments, since a gene may have any name."""
    name = genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
        seen: set[tuple[str, str]] = set()
        began = False
        for row, line in sheet.file.lines():
            gene, *fields = map(str.strip, split_loosely(line, sheet.separator))
            if not began and fields and key(fields[0]) in EGGNOG["KO"] + KO_NAMES:  # a header, which tools do not write
                continue
            began = True
            families = _each(sheet, row, "column 2", fields[0], "KO", notes) if fields else []
            for field in fields[1:] if families else []:  # further columns may tell the next best hit
                more = several(field)
                if not more or any(kind_of_identifier(identifier) != "KO" for identifier in more):
                    break
                families += map(notes.family, more)
            if not fields and HIDDEN.search(gene):
                raise sheet.file.error(row, f"has one field, {short(gene)}: gene and KO must be separated by a tab")
            yield row, name, once(seen, gene, families), 1, contig_of(gene)

    return gather(sheet.file, entries(), name)


def _each(sheet: Sheet, row: int, column: str, field: str, kind: str, notes: Notes) -> list[str]:
    """The identifiers in a field, all of which must be of one kind."""
    names = several(field)
    kinds = COGS if kind == "COG" else (kind,)
    if any(kind_of_identifier(name) not in kinds for name in names):
        example = {"COG": "COG such as 'COG0001'", "KO": "KO such as 'K00001'"}[kind]
        raise sheet.file.error(row, f"{column} is {short(field)}, it must be a {example}, several or empty")
    return list(dict.fromkeys(map(notes.family, names)))


def read_dram(sheet: Sheet, notes: Notes) -> Found:
    wanted = notes.wanted or "KO"
    genome, of = sheet.need(("fasta", "input_fasta"), "genomes (fasta)"), sheet.first(DRAM.get(wanted, ()))
    if of is None:
        have = [kind for kind, names in DRAM.items() if sheet.first(names) is not None]
        raise sheet.file.error(None, f"has no column for identifiers {wanted!r}, it has some for {listed(have)}")

    scaffold = sheet.first(["scaffold"])

    def entries() -> Iterator[Entry]:
        at = [genome, of, *([] if scaffold is None else [scaffold])]
        for row, (name, field, *contig) in sheet.records(at, quoted=False):
            if not name:
                raise sheet.file.error(row, f"column {sheet.columns[genome]!r} is empty")
            families = list(dict.fromkeys(INSIDE[wanted].findall(field)))
            notes.tally["unread"] += not families and field not in ("", "-")
            yield row, name, families, 1, "".join(contig)

    return gather(sheet.file, entries())


def read_functions(sheet: Sheet, notes: Notes) -> Found:
    """anvi-export-functions: a gene has a row per source of functions, and accessions joined by !!!."""
    accession, gene = sheet.need(["accession"], "accessions"), sheet.need(["gene_callers_id"], "genes")
    at = [gene, accession, *(i for i in [sheet.first(["function"])] if i is not None)]
    name = genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
        seen: set[tuple[str, str]] = set()  # several sources may tell the same of a gene
        for row, (of, accessions, *text) in sheet.records(at, quoted=False):
            families = [f for f in map(notes.family, several(accessions)) if notes.wants(f)]
            for family, words in zip(families, (text or [""])[0].split("!!!"), strict=False):
                notes.describe(family, "", words)
            yield row, name, once(seen, of, families), 1

    return gather(sheet.file, entries(), name)
