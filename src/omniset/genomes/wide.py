"""Wide tables: genomes x families, and families x genomes.

A table of families x genomes is held as sparse counts: a genome is complete only when the last row is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int

from omniset.core.features import MISSING
from omniset.genomes import formats
from omniset.genomes.formats import (
    METADATA,
    MOST,
    Found,
    Genome,
    Notes,
    bad_count,
    text_columns,
)
from omniset.genomes.identifiers import distinct, kind_of_identifier
from omniset.tables.files import TableFile, TextFile
from omniset.tables.sheets import NUMBER, Sheet, key, texts_of


@dataclass
class Block:
    """Some rows of a wide table: their numbers, first fields and cells (NaN where one is empty)."""

    rows: list[int]
    names: list[str]
    cells: Float[np.ndarray, "rows columns"]
    texts: list[list[str]]  # of columns that are not cells


class Cells:
    """Cells of a wide table made into counts.

    A table in which all absent families are empty (as pivoting writes them) is read with 0 in their place. One that has
    both zeros and empty cells is refused, since its empty cells may mean something else.

    Args:
        columns: Names of the columns of the cells.
    """

    def __init__(self, sheet: Sheet, columns: list[str], notes: Notes) -> None:
        self._file = sheet.file
        self._columns = columns
        self._notes = notes
        self._zero: str | None = None
        self._empty: str | None = None

    def counts(self, block: Block, cells: Float[np.ndarray, "rows columns"]) -> Int[np.ndarray, "rows columns"]:
        """Whole numbers from 0 on.

        Raises:
            ValueError: Naming the first cell that is none.
        """
        empty = np.isnan(cells)
        if empty.any():
            self._notes.tally["empty"] += int(empty.sum())
            self._empty = self._empty or self._where(block, empty)
        filled = np.where(empty, 0, cells) if self._empty else cells
        bad = ~((filled >= 0) & (filled <= MOST) & (filled == np.floor(filled)))
        if bad.any():
            row, column = np.argwhere(bad)[0]
            text = f"{filled[row, column]:g}"
            raise self._file.error(block.rows[row], bad_count(self._columns[column], text, block.names[row]))
        zero = (cells == 0) if self._zero is None else None
        if zero is not None and zero.any():
            self._zero = self._where(block, zero)
        if self._zero and self._empty:
            raise self._file.error(
                None, f"{self._empty} is empty where {self._zero} is 0: write 0 in every cell of an absent family"
            )
        return filled.astype(np.int64)

    def _where(self, block: Block, chosen: Bool[np.ndarray, "rows columns"]) -> str:
        row, column = np.argwhere(chosen)[0]
        return f"{self._file.where(block.rows[row])}, column {self._columns[column]!r}"


def blocks(sheet: Sheet, words: Sequence[int] = ()) -> Iterator[Block]:
    """The rows of a wide table below its header.

    Args:
        words: Columns that are not cells.

    Raises:
        ValueError: A row with too few or too many fields, or without a name; a cell that is no number.
    """
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
        if size >= formats.BLOCK:
            yield _text_block(sheet, rows, lines, words)
            rows, lines, size = [], [], 0
    if rows:
        yield _text_block(sheet, rows, lines, words)


def _text_block(sheet: Sheet, rows: list[int], lines: list[str], words: Sequence[int]) -> Block:
    width = len(sheet.titles)
    if not words and not any('"' in line for line in lines):
        parts = [line.split(sheet.separator, 1) for line in lines]
        names = [part[0].strip() for part in parts]
        if sheet.separator is not None and all(names) and all(len(part) == 2 for part in parts):
            plain = _digits([part[1] for part in parts], sheet.separator, width - 1)
            if plain is not None:
                return Block(rows, names, plain, [])
        with suppress(ValueError):  # what is no plain number is read again, more slowly
            if all(names) and all(len(part) == 2 and part[1] for part in parts):
                cells = np.loadtxt([p[1] for p in parts], np.float64, comments=None, delimiter=sheet.separator, ndmin=2)
                if cells.shape == (len(lines), width - 1) and np.isfinite(cells).all():
                    return Block(rows, names, cells, [])
    return _careful_block(sheet, rows, lines, words, width)


def _digits(lines: list[str], separator: str, width: int) -> Float[np.ndarray, "rows columns"] | None:
    """Cells, where all are of digits alone: several times as fast as what reads any number. None where one is not."""
    text = separator.join(lines)
    bounded = f"{separator}{text}{separator}"
    if 2 * separator in bounded or text.encode().translate(None, f"0123456789{separator}".encode()):
        return None
    if any(line.count(separator) != width - 1 for line in lines):
        return None
    cells = np.fromstring(text, np.int64, sep=separator).astype(np.float64)
    return cells.reshape(len(lines), width) if cells.max() <= MOST else None


def _careful_block(sheet: Sheet, rows: list[int], lines: list[str], words: Sequence[int], width: int) -> Block:
    names = sheet.titles
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
        elif text.lower() in ("true", "false"):
            value = float(text.lower() == "true")
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
    columns = _wide_columns(sheet)
    _refuse_no_name(sheet, "family")
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
    for block in blocks(sheet):
        counts = cells.counts(block, block.cells if len(places) == len(columns) else block.cells[:, places])
        for row, name, of_genome in zip(block.rows, block.names, counts, strict=True):
            present = np.flatnonzero(of_genome)
            yield row, Genome(name, named[present].tolist(), of_genome[present])


def _wide_columns(sheet: Sheet) -> list[str]:
    columns = sheet.titles[1:]
    if not columns:
        raise sheet.file.error(None, "has one column only: columns must be separated by tabs or commas")
    return columns


def _refuse_no_name(sheet: Sheet, what: str) -> None:
    """Raise the ValueError where a column, the first one aside, has no name."""
    columns = sheet.titles
    at = next((at for at, name in enumerate(columns) if at and not name), None)
    if at is not None:
        ends = ": does the line end with a separator?" if at == len(columns) - 1 else ""
        row = None if isinstance(sheet.file, TableFile) else sheet.header
        raise sheet.file.error(row, f"column {at + 1} has no name, each {what} needs one{ends}")


def read_transposed(sheet: Sheet, notes: Notes) -> Found:
    """Families x genomes: held as sparse counts, since the last row completes the first genome."""
    _wide_columns(sheet)
    words = text_columns(sheet) if sheet.keys[0] == "key" else []
    genomes = [title for i, title in enumerate(sheet.titles) if i and i not in words]
    _refuse_no_name(sheet, "genome")
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
            for family in _functions(sheet, words, block.texts[number], notes) if words else [name]:
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
    for number, genome in enumerate(genomes):
        inside = slice(table.indptr[number], table.indptr[number + 1])
        yield -1, Genome(genome, [families[i] for i in table.indices[inside]], table.data[inside].astype(np.int64))


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
    """Families by their names in a table, and which of them are wanted.

    Raises:
        ValueError: One is there twice or has no name; none is wanted.
    """
    try:
        families, apart = distinct(names, notes.known)
    except ValueError as error:
        raise sheet.file.error(None, str(error)) from error
    if apart:
        notes.warnings.append(
            f"{sheet.file.path}: {len(apart)} families such as {apart[0]} have the identifier of another one but for "
            "its version, and were kept apart: rename them if that is not meant"
        )
    wanted = [notes.wants(family) for family in families]
    if not any(wanted):
        raise _none_wanted(sheet.file, families, notes)
    notes.tally["unwanted"] += len(wanted) - sum(wanted)
    return families, wanted


def _none_wanted(file: TextFile, families: list[str], notes: Notes) -> ValueError:
    kinds = Counter(map(kind_of_identifier, families))
    have = ", ".join(f"{count} of {kind}" for kind, count in kinds.most_common()) or "none at all"
    return file.error(None, f"has no family{f' of kind {notes.wanted}' if notes.wanted else ''}, it has {have}")
