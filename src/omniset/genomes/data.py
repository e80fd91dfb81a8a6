"""Genomes as multisets of gene families: out of files as a stream, or in memory; their quality and their taxonomy.

Known imperfection: in a table whose rows are families a genome is complete only when the last row is read, so such
tables are held in memory as sparse counts. All other formats are read in bounded memory (names and families are kept).
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from jaxtyping import Bool, Int

from omniset.genomes.formats import (
    CHOICES,
    COGS,
    FORMATS,
    KOFAM,
    detect,
    distinct,
    kind_of_identifier,
    mixture,
    normalise,
    odd_names,
    orientation,
    summary_of_kinds,
    twice,
)
from omniset.genomes.metadata import as_numbers
from omniset.genomes.readers import MANY, MOST, READERS, Genome, Notes, pooled, without_sums
from omniset.runs.progress import Progress
from omniset.tables.doubts import FEWEST
from omniset.tables.files import TextFile, listed, unpacked
from omniset.tables.sheets import Sheet, key, look

WIDE = ("genomes-by-families", "families-by-genomes")
READABLE = (".tsv", ".csv", ".txt", ".tab", ".annotations", ".rtab", ".parquet", ".ko", ".out", ".tblout", ".tbl")
# What to take from a folder that holds the other outputs of the same tool too.
PREFERRED = re.compile(
    r"\.emapper\.annotations|^cog_classify\.tsv|_cog_classify\.tsv|^classifier_result\.tsv|^gene_presence_absence\.Rtab"
    r"|^annotations\.tsv|^overview\.(txt|tsv)"
)
TOLERATED = {  # what a reader counts, and what is said of it
    "empty": "{number} empty cells were read as 0, since no cell is 0: "
    "if some mean that nothing is known, leave those genomes or families out",
    "unwanted": "{number} families or entries are not {wanted} and were left out: "
    "ask for another kind with identifiers if that is not meant",
    "genomes without any family": "{number} genomes have no family at all: "
    "see whether their files or rows are complete",
    "many copies": f"{{number}} genomes have more than {MANY} copies of most families: counts must be of genes, "
    "not of reads, TPM or coverage, and of one genome",
    "no family": "{number} rows name no family and were left out",
    "absent": "{number} rows say that there is none and were left out",
    "pfam names": "eggNOG-mapper writes names of Pfam families, not accessions such as PF00001: "
    "use them only with models of such names",
    "unread": "{number} entries hold no identifier of kind {wanted} and were left out: "
    "see whether a spreadsheet changed them",
}
BESIDE = re.compile(r"(\.(hypotheticals|inference)\.tsv|\.txt|\.tbl)(?=\.|$)")  # of Bakta and Prokka, beside .tsv


class GenomeFile:
    """Genomes out of a file, a folder or several files, one after another, as often as they are iterated over.

    Args:
        path: A file, a folder of files, or a list of files. Where a format holds one genome per file, the genome's name
            is that of the file without what the tool appends. Text may be compressed (.gz, .bz2, .xz).
        format: One of `FORMATS`, or "auto": recognised by the columns.
        identifiers: Which families to take where there are several kinds ("COG", "KO", "Pfam", "EC", "CAZy", ...).
            "auto": the kind that `known` has most of; else COG out of eggNOG-mapper's files, KO out of DRAM's, all
            out of tables.
        known: Families of a model. They tell which way round a table is.

    Attributes:
        paths: The files, in the order in which they are read.
        size: Their bytes; `position` says how many of them were read.
        format: Which one it is.
        identifiers: The main kind of identifiers, "other", or "mixed"; known when it was read.
        categories: Functional category by family, where the file has any; filled while it is read.
        descriptions: By family, where the file has any; filled while it is read.
        warnings: What was read tolerantly, a sentence each; filled while it is read.

    Raises:
        OSError: A file is not there or may not be read.
        ValueError: Not of a format that can be read, or not of the same format.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        format: str = "auto",
        identifiers: str = "auto",
        known: Collection[str] | None = None,
    ) -> None:
        if format not in ("auto", *FORMATS):
            raise ValueError(f"format must be 'auto' or one of {', '.join(FORMATS)}, got {format!r}")
        if identifiers != "auto" and key(identifiers) not in CHOICES:
            choices = ", ".join(dict.fromkeys(CHOICES.values()))
            raise ValueError(f"identifiers must be 'auto' or one of {choices}, got {identifiers!r}")
        self.paths, skipped = _without_empty(*_files(path))
        self.size = sum(p.stat().st_size for p in self.paths)
        self._known = frozenset(known or ())
        self._asked = format
        self._sheet = look(self.paths[0], header=KOFAM)
        self._before = 0  # bytes of the files before the one that is read
        self._guesses: list[str] = [skipped] if skipped else []
        self.format, guess = self._format_of(self._sheet)
        self._guesses += [guess] if guess else []
        self._wanted = self._choose(identifiers)
        self.identifiers = self._wanted or "other"
        self.categories: dict[str, str] = {}
        self.descriptions: dict[str, str] = {}
        self.warnings: list[str] = list(self._guesses)

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._before + self._sheet.file.position

    def __iter__(self) -> Iterator[Genome]:
        """The genomes.

        Raises:
            ValueError: Something is wrong with a file; the message names file, line, column and value.
        """
        notes = Notes(self._wanted, self._known, self.categories, self.descriptions)
        self.warnings = notes.warnings
        notes.warnings += self._guesses
        where: dict[str, tuple[TextFile, int]] = {}
        families: set[str] = set()
        self._before = 0
        for number, path in enumerate(self.paths):
            self._before += self._sheet.file.size if number else 0
            self._sheet = sheet = look(path, header=KOFAM)
            if number and (file_format := self._format_of(sheet)[0]) != self.format:
                raise sheet.file.error(None, f"is of the format {file_format}, {self.paths[0]} is of {self.format}")
            genomes = 0
            for row, genome in READERS[self.format](sheet, notes):
                genomes += 1
                if genome.name in where:
                    raise twice(sheet.file, row, genome.name, *where[genome.name])
                where[genome.name] = sheet.file, row
                families.update(genome.families)
                notes.tally["genomes without any family"] += not genome.families
                notes.tally["many copies"] += len(genome.counts) >= FEWEST and np.median(genome.counts) > MANY
                if not FORMATS[self.format].genome and (begin := pooled(genome.contigs)):
                    notes.warnings.append(
                        f"{path}: genes whose names begin with {listed(begin, 3)} have the same families, once each, "
                        f"as {len(begin)} genomes do, and were taken for one: split the file by these, one per genome"
                    )
                yield genome
            if not genomes:
                raise sheet.file.error(None, "has no genomes: there are no rows below its header")
        self._finish(notes, where, families)

    def _finish(self, notes: Notes, genomes: Collection[str], families: Collection[str]) -> None:
        self._before = self.size - self._sheet.file.position
        kinds = Counter(map(kind_of_identifier, families))
        self.identifiers = self._wanted or summary_of_kinds(kinds)
        of = str(self.paths[0]) + (f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else "")
        told = [(notes.tally[what], text) for what, text in TOLERATED.items() if notes.tally[what]]
        notes.warnings += [f"{of}: {text.format(number=number, wanted=self._wanted)}" for number, text in told]
        notes.warnings += [
            f"{of}: {warning}" for warning in (*odd_names("genomes", genomes), *odd_names("families", families))
        ]
        if self._wanted is None and len(mixture(kinds)) > 1:
            counted = ", ".join(f"{kinds[kind]} {kind}" for kind in sorted(kinds, key=lambda k: (-kinds[k], k)))
            notes.warnings.append(
                f"{of}: families of several kinds are mixed ({counted}): take one kind with identifiers, such as "
                f'identifiers="{mixture(kinds)[0]}"'
            )

    def _format_of(self, sheet: Sheet) -> tuple[str, str | None]:
        """The format of a file, and a warning if that is a guess."""
        if self._asked not in ("auto", *WIDE):
            return self._asked, None
        file_format = detect(sheet) if self._asked == "auto" else "genomes-by-families"
        if file_format not in WIDE:
            return file_format, None
        way, guess = orientation(sheet, self._known)
        if self._asked == "auto":
            return way, guess
        if guess is None and way != self._asked:
            place = "its first column" if way == "families-by-genomes" else "its header"
            raise sheet.file.error(
                None, f"was said to be {self._asked}, but its families are in {place}: say format={way!r}"
            )
        return self._asked, None

    def _choose(self, identifiers: str) -> str | None:
        """The kind of identifiers to take, None where all are."""
        if identifiers != "auto":
            return CHOICES[key(identifiers)]
        main = summary_of_kinds(Counter(map(kind_of_identifier, self._known)))
        main = "COG" if main in COGS else main
        if self.format == "anvio-functions":
            sheet = self._sheet
            accessions = sheet.records([sheet.need(["accession"], "accessions")], False)
            names = dict.fromkeys(row[0].split("!!!")[0] for _, row in accessions)
            here = Counter(kind_of_identifier(normalise(name)) for name in names if name)
            order = [*([main] if self._known else []), "COG", "KO", "Pfam", *(kind for kind, _ in here.most_common())]
            return next((kind for kind in order if kind in here), "other")
        kinds = FORMATS[self.format].families
        return None if not kinds else main if main in kinds else next(iter(kinds))


def _files(path: str | Path | Sequence[str | Path]) -> tuple[list[Path], str | None]:
    """The files to read, and a sentence on those of a folder that are not."""
    if not isinstance(path, (str, Path)):
        paths = [Path(p) for p in path]
        if not paths:
            raise ValueError("path must name at least one file, the list is empty")
        return paths, None
    path = Path(path)
    if not path.is_dir():
        return [path], None
    there = [*sorted(path.iterdir()), *sorted(path.glob("*/*"))]
    usable = [
        p for p in there if p.is_file() and not p.name.startswith(".") and unpacked(p.name).lower().endswith(READABLE)
    ]
    main = [p for p in usable if (of := p.with_name(BESIDE.sub(".tsv", p.name))) == p or not of.exists()]
    chosen = [p for p in main if PREFERRED.search(p.name)] or [p for p in main if p.parent == path] or main
    if not chosen:
        raise ValueError(f"{path} is a folder without a file that ends in {', '.join(READABLE)} (or these with .gz)")
    left = [p for p in usable if p not in set(chosen)]
    if not left:
        return chosen, None
    return (
        chosen,
        f"{path}: {len(left)} files such as {left[0].name} were left out: give a list of files to read others",
    )


def _without_empty(paths: list[Path], skipped: str | None) -> tuple[list[Path], str | None]:
    """Without files of no bytes, where there are others: annotations of nothing."""
    filled = [path for path in paths if not path.is_file() or path.stat().st_size]
    if not filled or len(filled) == len(paths):
        return paths, skipped
    empty = next(path for path in paths if path not in filled)
    said = f"{len(paths) - len(filled)} of {len(paths)} files, such as {empty}, are empty and were left out"
    return filled, said if skipped is None else f"{skipped}; {said}"


# ---------------------------------------------------------------------- in memory


@dataclass
class GenomeTable:
    """Genomes in memory.

    Attributes:
        names: Of the genomes, each its own.
        families: Of the columns, each its own.
        counts: Sparse (genomes, families), int32; a genome may have none.
        categories, descriptions: See GenomeFile.
    """

    names: list[str]
    families: list[str]
    counts: sp.csr_array
    categories: dict[str, str] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_genomes(cls, genomes: Iterable[Genome]) -> GenomeTable:
        """Collect genomes; families are columns as they come.

        Raises:
            ValueError: A genome is there twice.
        """
        columns: dict[str, int] = {}
        names: dict[str, None] = {}
        pointers, at, counts = [0], [], []
        for genome in genomes:
            if genome.name in names:
                raise ValueError(f"genome {genome.name!r} is there twice: each must have its own name")
            names[genome.name] = None
            positions = np.array([columns.setdefault(family, len(columns)) for family in genome.families], np.int32)
            order = np.argsort(positions)
            if genome.counts.max(initial=0) > MOST:
                raise ValueError(f"genome {genome.name!r} has a family more than {MOST} times")
            at.append(positions[order])
            counts.append(genome.counts[order].astype(np.int32))
            pointers.append(pointers[-1] + len(order))
        empty = np.zeros(0, dtype=np.int32)
        # Pointers of 64 bits would make indices of 64 bits, half as much again of a large table.
        width = np.int32 if pointers[-1] <= np.iinfo(np.int32).max else np.int64
        parts = (np.concatenate([empty, *counts]), np.concatenate([empty, *at]), np.array(pointers, dtype=width))
        table = sp.csr_array(parts, shape=(len(names), len(columns)), dtype=np.int32)
        return cls(list(names), list(columns), table)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> GenomeTable:
        """Out of a frame: index genomes, columns families.

        Raises:
            ValueError: A value is no whole number from 0 on, or a name is there twice.
        """
        genomes, columns = _names(frame.index, "the frame's index"), _names(frame.columns, "its columns")
        shares = [sum(kind_of_identifier(n) not in ("other", "CAZy") for n in names) for names in (genomes, columns)]
        if 2 * shares[0] > len(genomes) and 2 * shares[1] <= len(columns):
            raise ValueError(
                f"the frame's index has families such as {genomes[0]!r}, it must be of genomes: give frame.T"
            )
        families, _ = distinct(columns)
        matrix = sp.csr_array(_whole(frame.to_numpy(), genomes, families))
        if len(set(genomes)) != len(genomes):
            raise ValueError(f"genome {_again(genomes)!r} is there twice: each must have its own name")
        matrix, sums = without_sums(genomes, families, matrix)
        for what, name in sums:
            warnings.warn(f"{what} {name!r} is the sum of all others and was left out", stacklevel=2)
        return cls(genomes, families, matrix.astype(np.int32))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Genome]:
        for number, name in enumerate(self.names):
            inside = slice(self.counts.indptr[number], self.counts.indptr[number + 1])
            families = [self.families[i] for i in self.counts.indices[inside]]
            yield Genome(name, families, self.counts.data[inside].astype(np.int64))

    def select(self, rows: Sequence[int] | Int[np.ndarray, " chosen"] | Bool[np.ndarray, " genomes"]) -> GenomeTable:
        """Some of the genomes, by number or by a mask, with all families."""
        numbers = np.arange(len(self))[np.asarray(rows, dtype=None if len(rows) else np.int64)]
        names = [self.names[i] for i in numbers]
        return GenomeTable(names, self.families, self.counts[numbers], self.categories, self.descriptions)


def _names(values: Iterable[Any], where: str) -> list[str]:
    """As text, without spaces around them."""
    names = ["" if pd.isna(value) else str(value).strip() for value in values]
    if "" in names:
        raise ValueError(f"{where} must be of names, number {names.index('') + 1} is empty")
    return names


def _whole(values: np.ndarray, names: Sequence[str], columns: Sequence[str]) -> Int[np.ndarray, "rows columns"]:
    numbers, wrong = as_numbers(values)
    if wrong is not None:
        row, column = wrong
        raise ValueError(
            f"genome {names[row]!r}, {columns[column]!r} is {values[row, column]!r}: counts must be numbers"
        )
    bad = ~((numbers >= 0) & (numbers <= MOST) & (numbers == np.floor(numbers)))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"genome {names[row]!r}, {columns[column]!r} is {numbers[row, column]:g}, it must be a whole number from 0 "
            f"to {MOST}"
        )
    return numbers.astype(np.int64)


def _again(names: Sequence[str]) -> str:
    return next(name for name, count in Counter(names).items() if count > 1)


def watched(file: GenomeFile, show: bool, what: str) -> Iterator[Genome]:
    """The genomes of a file, with progress by its bytes."""
    with Progress(f"{what} {file.paths[0].name}", file.size, show) as progress:
        for number, genome in enumerate(file, 1):
            progress.at(file.position, number, "genomes")
            yield genome
        progress.at(file.size, number, "genomes")


def read_table(
    path: str | Path | Sequence[str | Path],
    *,
    format: str = "auto",
    identifiers: str = "auto",
    known: Collection[str] | None = None,
    progress: bool = False,
) -> GenomeTable:
    """Genomes of a file, a folder or several files, in memory; see GenomeFile and GenomeTable.from_genomes.

    Warns of what was read tolerantly.
    """
    file = GenomeFile(path, format=format, identifiers=identifiers, known=known)
    table = GenomeTable.from_genomes(watched(file, progress, "reading"))
    for message in file.warnings:
        warnings.warn(message, stacklevel=2)
    return GenomeTable(table.names, table.families, table.counts, file.categories, file.descriptions)


Table = GenomeTable | pd.DataFrame | str | Path


def as_table(table: Table, known: Sequence[str] | None = None) -> GenomeTable:
    """Whatever holds genomes, in memory."""
    if isinstance(table, GenomeTable):
        return table
    return GenomeTable.from_frame(table) if isinstance(table, pd.DataFrame) else read_table(table, known=known)
