"""Tables as other programs write them: what separates fields, which line is the header, what a number is.

`omniset.tables.files.TableFile` reads tables whose form is ours. A Sheet is one whose form its first lines tell.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float

from omniset.core.features import MISSING
from omniset.tables.files import INDEX, PEEK, POINTED, TableFile, TextFile, listed, separator_of
from omniset.tables.spreadsheets import DECIMAL, point

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)  # Python's own reader takes 1_000 too
INFINITE = {"inf": np.inf, "+inf": np.inf, "-inf": -np.inf}
PEEK_SIZE = 1 << 17  # characters of the rows that tell the form
HEAD = 1 << 10  # lines with a # above the header, at most


def number_of(text: str) -> float | None:
    """NaN where nothing is written; None: no number.

    >>> [number_of(text) for text in ("1e3", "n/a", "1_000", "-Infinity")]
    [1000.0, nan, None, -inf]
    """
    plain = text.strip()
    if NUMBER.fullmatch(plain):
        return float(plain)
    lower = plain.lower()
    return np.nan if lower in MISSING else INFINITE.get(lower.replace("infinity", "inf"))


def numbers_of(texts: Sequence[str]) -> tuple[Float[np.ndarray, " texts"], int | None]:
    """As `number_of`, and the place of the first that is no number, which is NaN here.

    >>> numbers_of(["1", "", "1_0"])
    (array([ 1., nan, nan]), 2)
    """
    try:
        values = np.array(texts, dtype=np.float64)
    except ValueError:
        pass
    else:  # Python takes 1_0 for 10, and digits of other scripts
        if all(text.isascii() and "_" not in text for text in texts):
            return values, None
    each = [number_of(text) for text in texts]
    numbers = np.array([np.nan if number is None else number for number in each])
    return numbers, each.index(None) if None in each else None


@lru_cache(1 << 16)
def key(column: str) -> str:
    """A column's name, whatever its case and punctuation.

    >>> key("#OTU ID"), key("KEGG-ko")
    ('otu_id', 'kegg_ko')
    """
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


def split(line: str, separator: str | None) -> list[str]:
    """The fields of a line. None: any spaces separate them.

    Raises:
        csv.Error: A quote is never closed, or out of place.
    """
    if '"' not in line:
        return line.split(separator)
    if separator is None:
        return next(csv.reader([line.strip()], delimiter=" ", strict=True, skipinitialspace=True), [""])
    return next(csv.reader([line], delimiter=separator, strict=True), [""])


def split_loosely(line: str, separator: str | None) -> list[str]:
    """The fields of a tool's line: without the quotes that a spreadsheet put around some; other quotes are text."""
    plain = line.split(separator)
    if '"' not in line:
        return plain
    try:
        fields = split(line, separator)
    except csv.Error:
        return plain
    return fields if len(fields) == len(plain) else plain


def texts_of(values: pa.Array) -> list[str]:
    return ["" if value is None else str(value).strip() for value in values.to_pylist()]


@dataclass
class Sheet:
    """A table whose beginning was looked at."""

    file: TextFile  # to read it from; a TableFile where it is Parquet
    separator: str | None  # between fields; None: spaces
    columns: list[str]  # names in the header, as they stand, without a leading #
    header: int = -1  # number of the header's line (-1 is the first); rows below it are data
    rows: list[list[str]] = field(default_factory=list)  # the first rows, at most `PEEK`
    shifted: bool = False  # the header lacks a name for the first column, as R writes row names
    marked: bool = False  # the header began with #

    @property
    def keys(self) -> list[str]:
        return [key(column) for column in self.columns]

    @property
    def titles(self) -> list[str]:
        """The columns' names, "" for the one that the header has no name for."""
        return ["", *self.columns] if self.shifted else self.columns

    @property
    def edge(self) -> str:
        """Characters that a line without any value is of."""
        return (self.separator or "") + " \t"

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

    def records(
        self, at: Sequence[int], quoted: bool = True, comments: bool = False
    ) -> Iterator[tuple[int, list[str]]]:
        """Some columns of each row, as text without spaces around it.

        Args:
            at: Which columns, of `columns`.
            quoted: Fields may be in quotes. Else they are of a tool, whose texts may hold quotes that are none.
            comments: Lines of one field that begins with # are none of the rows.

        Raises:
            ValueError: A row with fewer fields than the header, or, with quotes, with more; the header again.
        """
        if isinstance(self.file, TableFile):
            names = [self.file.columns[i] for i in at]
            for chunk in self.file.chunks(list(dict.fromkeys(names))):
                texts = [texts_of(chunk.columns[name]) for name in names]
                yield from ((chunk.first + i, list(values)) for i, values in enumerate(zip(*texts, strict=True)))
            return
        if self.shifted and not quoted:
            raise self.file.error(
                self.header, f"has {len(self.columns)} fields, the rows below have one more: name each column"
            )
        places = [i + self.shifted for i in at]
        for row, fields in self._rows(quoted, comments, False):
            yield row, [fields[i].strip() for i in places]

    def whole(self, blank: bool = False) -> Iterator[tuple[int, list[str]]]:
        """As `records`: all fields, in the order of `titles`. `blank`: rows without any value are rows too."""
        if isinstance(self.file, TableFile):
            yield from self.records(range(len(self.columns)))
            return
        for row, fields in self._rows(True, False, blank):
            yield row, [field.strip() for field in fields]

    def _rows(self, quoted: bool, comments: bool, blank: bool) -> Iterator[tuple[int, list[str]]]:
        width = len(self.titles)
        # Tools write tabs, spreadsheets also commas, with proper quotes.
        strict = quoted or self.separator != "\t"
        edge = " " if blank else self.edge
        titled = not any(map(NUMBER.fullmatch, self.columns))
        for row, line in self.file.lines():
            if row <= self.header or not line.strip(edge):
                continue
            if comments and line.startswith("#") and not line.partition(self.separator or " ")[2].strip(edge):
                continue
            fields = self.split(row, line) if strict else split_loosely(line, self.separator)
            if len(fields) < width or (strict and len(fields) > width):
                raise self.wrong_width(row, line, len(fields))
            if DECIMAL.get() == ",":
                read = [point(field) for field in fields]
                if None in read:
                    raise self.file.error(row, f"has {fields[read.index(None)]!r}, {POINTED}")
                fields = [field or "" for field in read]
            again = titled and fields[0].lstrip("#").strip() == self.columns[0]
            if again and [field.strip() for field in fields[1:width]] == self.columns[1:]:
                raise self.file.error(
                    row, "is the header again: remove it, or give the files that were joined here one by one"
                )
            yield row, fields

    def split(self, row: int, line: str) -> list[str]:
        """The fields of a line.

        Raises:
            ValueError: A quote out of place.
        """
        try:
            return split(line, self.separator)
        except csv.Error as error:
            raise self.file.error(row, 'has a quote (") that is never closed, or is out of place') from error

    def wrong_width(self, row: int, line: str, number: int) -> ValueError:
        width = len(self.titles)
        hint = ": is the file cut off?" if number < width else ""
        hint = ": comments may stand above the header only" if number == 1 and line.startswith("#") else hint
        return self.file.error(row, f"has {number} fields, the header has {width}{hint}")


def look(
    path: str | Path, *, comments: bool = True, spaces: bool = False, header: re.Pattern[str] | None = None
) -> Sheet:
    """The beginning of a table: a Parquet file by its name, else text.

    The header is the first line; with comments, of lines that begin with # the one that has as many separators as the
    first line without.

    Args:
        comments: Lines that begin with # may stand above the header, and it may be one of them.
        spaces: Where the header has no tabs, commas and semicolons, spaces separate fields.
        header: What a line is the header by, wherever it stands among those with a #.

    Raises:
        OSError, ValueError: As TextFile and TableFile; nothing in it; it is a file of another kind by its first bytes;
            it cannot be told whether a line with a # is its header.
    """
    path = Path(path)
    if path.suffix.lower() == ".parquet":
        return _look_parquet(path)
    file = TextFile(path)
    file.refuse_other_kinds()
    sheet = _headed(file, header) if comments else _first_line(file)
    if sheet.separator is None and not (spaces and " " in sheet.columns[0]):
        sheet.separator = "," if spaces else "\t"
    sheet.columns = _fields(sheet.columns[0], sheet.separator)
    edge = " " if spaces else sheet.edge
    size = 0
    for row, line in file.lines():
        if row > sheet.header and line.strip(edge):
            sheet.rows.append([point(field) or field for field in _fields(line, sheet.separator)])
            size += len(line)
        if len(sheet.rows) == PEEK or size > PEEK_SIZE:
            break
    more = bool(sheet.rows) and all(len(fields) == len(sheet.columns) + 1 for fields in sheet.rows)
    sheet.shifted = more and any(fields[-1] for fields in sheet.rows)  # else each line ends with a separator
    return sheet


def _first_line(file: TextFile) -> Sheet:
    """With the header as one text, as `_headed`."""
    for row, line in file.lines():
        if line.strip(" "):
            return Sheet(file, separator_of(line), [line.strip(" ")], row)
    raise file.error(None, "is empty")


def _headed(file: TextFile, header: re.Pattern[str] | None) -> Sheet:
    """With the header as one text: the first line, or one of the lines with a # before it."""
    marked: list[tuple[int, str]] = []
    first: tuple[int, str] | None = None  # the first line without a #
    for row, line in file.lines():
        if header is not None and header.match(line):
            return Sheet(file, "\t", [line[1:].strip()], row, marked=True)
        if line.startswith("#") and len(marked) < HEAD:
            marked.append((row, line[1:]))
        elif line.strip():
            first = row, line
            break
    marked = [(row, line) for row, line in marked if separator_of(line.rstrip("\t,; "))]  # others are comments
    if first is None:
        if not marked:
            raise file.error(None, "is empty: it has no header and no rows")
        row, line = marked[0]
        return Sheet(file, separator_of(line), [line], row, marked=True)
    for row, line in marked:
        for separator in "\t,;":
            same = 0 < line.count(separator) == first[1].count(separator)
            if same or (line.startswith("query") and separator in line):  # eggNOG-mapper 1 leaves fields without a name
                return Sheet(file, separator, [line], row, marked=True)
    separator = separator_of(first[1]) or "\t"
    columns = _fields(first[1], separator)
    between = [(row, line) for row, line in marked if separator in line]
    if between and any(map(NUMBER.fullmatch, columns[1:])):
        row, line = between[-1]
        raise file.error(
            row,
            f"begins with # and has {len(_fields(line, separator))} fields, {file.where(first[0])} has {len(columns)}: "
            "if it is the header, give both the same number of fields, else remove it",
        )
    return Sheet(file, separator_of(first[1]), [first[1]], first[0])


def _look_parquet(path: Path) -> Sheet:
    file = TableFile(path)
    with file.clear_errors(), pq.ParquetFile(path) as parquet:
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
        metadata = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    except (ValueError, RecursionError):
        return None
    names = metadata.get("index_columns") if isinstance(metadata, dict) else None
    return next((name for name in names if name in schema.names), None) if isinstance(names, list) else None


def _fields(line: str, separator: str | None) -> list[str]:
    """The fields of a line; quotes that are none are taken as they are."""
    try:
        return [field.strip() for field in split(line, separator)]
    except csv.Error:
        return [field.strip() for field in line.split(separator)]
