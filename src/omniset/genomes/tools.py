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
    MOST,
    NO_NAME,
    Entry,
    Found,
    Notes,
    Sheet,
    bad_count,
    gather,
    records,
)
from omniset.genomes.identifiers import COGS, kind_of_identifier
from omniset.tables.files import OPENERS, _listed, _short
from omniset.tables.labels import NUMBER

INSIDE = {  # identifiers within longer texts
    "KO": re.compile(r"\bK\d{5}\b"),
    "CAZy": re.compile(r"\b(?:GH|GT|PL|CE|AA|CBM)\d+(?:_\d+)?\b"),
    "Pfam": re.compile(r"\bPF\d{5}\b"),
}


def read_long(sheet: Sheet, notes: Notes) -> Found:
    genome, family = sheet.need(GENOME_NAMES, "genomes"), sheet.need(FAMILY_NAMES, "families")
    count = sheet.first(COUNT_NAMES)
    at = [genome, family, *([count] if count is not None else [])]

    def entries() -> Iterator[Entry]:
        for row, (name, found, *rest) in records(sheet, at):
            for column, text in ((genome, name), (family, found)):
                if not text:
                    raise sheet.file.error(row, f"column {sheet.columns[column]!r} is empty")
            copies = 1
            if rest:
                value = float(rest[0]) if NUMBER.fullmatch(rest[0]) else np.nan
                if not (0 <= value <= MOST and value == np.floor(value)):
                    raise sheet.file.error(row, bad_count(sheet.columns[at[2]], rest[0], name))
                copies = int(value)
            name_of_family = notes.family(found)
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
    name = path.name
    if path.suffix.lower() in OPENERS:
        name = name[: -len(path.suffix)]
    while (shorter := ENDINGS.sub("", name)) not in (name, ""):
        name = shorter
    return path.resolve().parent.name or name if name.lower() in NO_NAME else name


def read_eggnog(sheet: Sheet, notes: Notes) -> Found:
    """Gene by gene: the COG at the root of its orthologous groups (else an arCOG), or another column's identifiers."""
    _name_last_columns(sheet)
    wanted = notes.wanted or "COG"
    of = sheet.first(EGGNOG.get(wanted, ()))
    if of is None:
        have = [kind for kind, names in EGGNOG.items() if sheet.first(names) is not None]
        raise sheet.file.error(None, f"has no column for identifiers {wanted!r}, it has some for {_listed(have)}")
    if wanted == "Pfam":
        notes.tally["pfam names"] += 1
    category = sheet.first([k for k in sheet.keys if k.startswith("cog_") and "cat" in k] or ["cog"])
    text = sheet.first([k for k in sheet.keys if k.startswith(("desc", "eggnog_free_text", "eggnog_hmm_model"))])
    extra = [i for i in (category, text) if i is not None]
    name = genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
        for row, (found, *rest) in records(sheet, [of, *extra], quoted=False):
            values = [] if found in ("", "-") else found.split(",")
            families = _groups(values, wanted) if wanted in COGS else [notes.family(v) for v in values if v.strip()]
            words = dict(zip(extra, rest, strict=True))
            for family in families:
                notes.describe(family, words.get(category, ""), words.get(text, ""))  # type: ignore[arg-type]
            yield row, name, list(dict.fromkeys(families)), 1

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
    name = genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
        for row, (found, *rest) in records(sheet, [cog, *extra], quoted=False):
            families = [notes.family(found)] if found not in ("", "-") else []
            for family in families:
                words = dict(zip((sheet.keys[i] for i in extra), rest, strict=True))
                notes.describe(family, words.get("cog_letter", ""), words.get("cog_name", ""))
            yield row, name, families, 1

    return gather(sheet.file, entries(), name)


def read_kofamscan(sheet: Sheet, notes: Notes) -> Found:
    """Only hits above the threshold, which a * marks. The plain form is aligned by spaces, the other by tabs."""
    if not sheet.kofam:
        raise sheet.file.error(None, "does not begin with KofamScan's header (# gene name, KO, thrshld, ...)")
    name = genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
        for row, line in sheet.file.lines():
            if not line.startswith("*"):
                continue
            fields = line[1:].strip().split("\t") if "\t" in line else line[1:].split(None, 5)
            if len(fields) < 2 or kind_of_identifier(fields[1].strip()) != "KO":
                found = _short(fields[1] if len(fields) > 1 else "")
                raise sheet.file.error(row, f"column 'KO' is {found}, it must be a KO such as 'K00001'")
            family = notes.family(fields[1])
            if len(fields) > 5:
                notes.describe(family, "", fields[5].strip().strip('"').replace('""', '"'))
            yield row, name, [family], 1

    return gather(sheet.file, entries(), name)


def read_mapper(sheet: Sheet, notes: Notes) -> Found:
    name = genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
        for row, line in sheet.file.lines():
            if line.startswith("#"):
                continue
            _, *fields = line.split(sheet.separator)
            kos: list[str] = []
            for field_ in map(str.strip, fields):  # further columns may tell the next best hit
                if kind_of_identifier(field_) != "KO":
                    break
                kos.append(notes.family(field_))
            if not kos and any(fields[:1]) and fields[0].strip():
                raise sheet.file.error(
                    row, f"column 2 is {_short(fields[0])}, it must be a KO such as 'K00001' or empty"
                )
            yield row, name, list(dict.fromkeys(kos)), 1

    return gather(sheet.file, entries(), name)


def read_dram(sheet: Sheet, notes: Notes) -> Found:
    wanted = notes.wanted or "KO"
    genome, of = sheet.need(("fasta", "input_fasta"), "genomes (fasta)"), sheet.first(DRAM.get(wanted, ()))
    if of is None:
        have = [kind for kind, names in DRAM.items() if sheet.first(names) is not None]
        raise sheet.file.error(None, f"has no column for identifiers {wanted!r}, it has some for {_listed(have)}")

    def entries() -> Iterator[Entry]:
        for row, (name, found) in records(sheet, [genome, of], quoted=False):
            if not name:
                raise sheet.file.error(row, f"column {sheet.columns[genome]!r} is empty")
            yield row, name, list(dict.fromkeys(INSIDE[wanted].findall(found))), 1

    return gather(sheet.file, entries())


def read_functions(sheet: Sheet, notes: Notes) -> Found:
    """anvi-export-functions: a gene has a row per source of functions, and accessions joined by !!!."""
    at = [sheet.need(["accession"], "accessions"), *(i for i in [sheet.first(["function"])] if i is not None)]
    name = genome_of(sheet.file.path)

    def entries() -> Iterator[Entry]:
        for row, (found, *text) in records(sheet, at, quoted=False):
            families = [f for f in map(notes.family, found.split("!!!")) if f and notes.wants(f)]
            for family, words in zip(families, (text or [""])[0].split("!!!"), strict=False):
                notes.describe(family, "", words)
            yield row, name, list(dict.fromkeys(families)), 1

    return gather(sheet.file, entries(), name)
