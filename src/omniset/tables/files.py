"""Table files (Parquet, CSV, TSV, compressed too): read in chunks, written in chunks, errors that name file and line.

Text is read as text and turned into numbers here, so that every message can name line, column and value.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import difflib
import errno
import gzip
import io
import lzma
import os
import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from omniset.core.bounded import LINE, Lines, TooLongError, require_file, require_room
from omniset.core.checks import short as short  # for those that read files
from omniset.core.encoding import Block
from omniset.runs.files import replacing
from omniset.tables.spreadsheets import DECIMAL, frame_of_fields, point

SEPARATORS = {".csv": ",", ".tsv": "\t"}
READ = SEPARATORS | {".txt": "\t"}  # of tables that are not ours
PEEK = 64  # rows that tell the form, at most
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
ARTIFACT = ".qza"
ARTIFACT_TEXTS = ("taxonomy.tsv", "dna-sequences.fasta", "aligned-dna-sequences.fasta")
AS_TEXT = "write its counts as a table of text, separated by tabs"
SHEET = "save the sheet as CSV (UTF-8)"
OTHERS: dict[str | bytes, str] = {  # what a file begins with, or its name ends in, that is no table of text
    b"\x89HDF": f"is an HDF5 file, such as BIOM or h5ad: {AS_TEXT} (of BIOM: biom convert --to-tsv)",
    b"{": f"is JSON, such as BIOM 1.0: {AS_TEXT} (of BIOM: biom convert --to-tsv)",
    b"PK\x03\x04": f"is a zip archive, such as an Excel workbook: {SHEET}",
    b"\xd0\xcf\x11\xe0": f"is an Excel workbook: {SHEET}",
    b"SQLite format 3": "is a database, such as anvi'o's: export its functions (anvi-export-functions)",
    b"PAR1\x15": "is a Parquet file: let its name end in .parquet",
    b"##gff-version": "is GFF: give the table of annotations (.tsv) that the tool writes beside it",
    b"\x28\xb5\x2f\xfd": "is compressed by Zstandard, which is not read: unpack it (zstd -d), or compress it as .gz",
    ".bam": "is BAM: write its reads as FASTQ (samtools fastq)",
    ".rds": "is R's own: write it as text in R (write.csv)",
    b"\x1f\x8b": "is compressed: let its name end in .gz",
}
REMEDIES = dict.fromkeys((".xlsx", ".xls", ".ods"), f": {SHEET}")
REMEDIES |= dict.fromkeys((".rds", ".rda", ".rdata"), ": in R, write.csv(..., row.names = FALSE) makes a table of it")
SEPARATOR_LINE = re.compile(r"[\"']?sep=(.?)[\"']?,*", re.IGNORECASE)  # which tells Excel what separates fields
TYPES = "#q2:types"  # a line of QIIME 2 that says which columns are of numbers
INDEX = re.compile(r"__index_level_\d+__")  # what pandas adds to a Parquet file for its own use
NO_TEXT = re.compile("[\0\ud800-\udfff]")  # NUL, and what surrogateescape makes of bytes that are not UTF-8
OBJECT = re.compile(r"<(?:class ')?([\w.]+)(?:'| object at 0x[0-9a-f]+)>")  # as Python shows it
CELLS = 1 << 19  # values held at a time
COLUMNS = 1 << 20  # of a table
POINTED = "of which --decimal , leaves open whether its point is of thousands or of decimals: write it in one way"


def unpacked(name: str) -> str:
    """The name of a file without the ending that says by what it is compressed."""
    suffix = Path(name).suffix
    return name.removesuffix(suffix) if suffix.lower() in OPENERS else name


@dataclass
class Chunk(Block):
    """Some rows of a file."""

    file: Origin  # where they are from
    first: int  # number of the first one, from 0, the header not counted
    columns: dict[str, pa.Array]  # by name: text as it is in the file, or Parquet's values, categories written out

    remedy = ", or left out with --ignore"

    def text(self, column: str) -> pa.Array:
        """A column of identifiers, without spaces around them.

        Raises:
            ValueError: An entry is missing, or the column is of numbers with fractions.
        """
        values = self.columns[column]
        if pa.types.is_floating(values.type):  # pandas has whole numbers so, where one was missing once
            try:
                values = values.cast(pa.int64())
            except pa.ArrowInvalid:
                bound = f"column {column!r} must be text or whole numbers, it is {values.type}"
                raise self.file.error(None, bound) from None
        values = pc.utf8_trim_whitespace(self.as_text(column, values))
        missing = pc.fill_null(pc.equal(values, ""), True).to_numpy(zero_copy_only=False)
        if missing.any():
            raise self.error(int(missing.argmax()), column, "is empty")
        return values

    def read_commas(self) -> None:
        """Numbers with a decimal comma as numbers, where these are asked for."""
        for name, values in self.columns.items() if DECIMAL.get() == "," else ():
            held = [text or "" for text in values.to_pylist()]
            texts = [point(text) for text in held]
            if None in texts:
                if {*texts} <= {None, *held} and any(re.fullmatch(r"[+-]?\d*\.\d+", text or "") for text in texts):
                    continue  # all have points
                raise self.error(at := texts.index(None), name, f"is {short(held[at])}, {POINTED}")
            self.columns[name] = pa.array(texts, pa.string())

    def error(self, row: int | None, column: str | None, message: str) -> ValueError:
        at = None if row is None else self.first + row
        return self.file.error(at, f"column {column!r} {message}" if column else message)


class Origin:
    """Where sets or labels are from, and where in it an error is."""

    path: Path  # a file or a folder
    columns: list[str]  # names of columns that it has
    # How much of it was read, for progress.
    position: int = 0
    size: int = 0

    def __init__(self, path: Path) -> None:
        self.path, self.columns = path, []

    def error(self, row: int | None, message: str) -> ValueError:
        """An error at a row, from 0."""
        return ValueError(f"{self.path}: {message}" if row is None else f"{self.path}: {self.where(row)}: {message}")

    def where(self, row: int) -> str:
        return f"row {row + 1}"

    def nth(self, number: int) -> int:
        """The row of the number-th one (from 0) that is not blank."""
        return number


class TextFile(Origin):
    """A file of text, which may be compressed (.gz, .bz2, .xz) or within an artifact of QIIME 2 (.qza).

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: A directory, a pipe or a device.
    """

    separator: str | None = "\t"
    longest = LINE

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        require_file(self.path)
        self._opener = self._prepare()
        self._raw: IO[bytes] | None = None  # while it is read
        self.size = self.path.stat().st_size

    @property
    def position(self) -> int:  # type: ignore[override]
        """Bytes read so far."""
        return 0 if self._raw is None else self.size if self._raw.closed else self._raw.tell()

    def _prepare(self) -> Callable[..., Any]:
        suffix = self.path.suffix.lower()
        return partial(artifact_part, names=ARTIFACT_TEXTS) if suffix == ARTIFACT else OPENERS.get(suffix, open)

    def refuse_other_kinds(self) -> None:
        """Raise ValueError where the first bytes are of a file that is no text, whatever its name says."""
        suffix = self.path.suffix.lower()
        if suffix in (ARTIFACT, *OPENERS):
            return
        with open(self.path, "rb") as binary:
            begins = binary.read(16)
        for of, what in OTHERS.items():
            if begins.startswith(of) if isinstance(of, bytes) else suffix == of:
                raise self.error(None, what)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Every line without its end, with the number that `error` takes: -1 for the first one.

        Raises:
            ValueError: Cut off, damaged or not UTF-8.
        """
        with self.clear_errors(), self._text(encoding="utf-8-sig") as text:
            for number, line in enumerate(text):
                if "\0" in line:
                    raise UnicodeError("it has bytes of 0")
                if number == 0 and SEPARATOR_LINE.fullmatch(line.rstrip("\r\n")):
                    continue
                yield number - 1, line.rstrip("\r\n")

    def where(self, row: int) -> str:
        return f"line {row + 2}" if self.separator else f"row {row + 1}"

    @contextmanager
    def _text(self, **options: Any) -> Iterator[_Text]:
        with open(self.path, "rb") as raw:
            self._raw = raw
            unpacked: Any = raw if self._opener is open else self._opener(raw, "rb")
            if unpacked.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # "Unicode text" of Excel
                options["encoding"] = "utf-16"
            lines: Any = Lines(unpacked, self.longest)
            with _Text(lines, newline="", **options) as text:
                yield text

    @contextmanager
    def clear_errors(self) -> Iterator[None]:
        """Errors of the libraries that read, in our words."""
        try:
            yield
        except TooLongError as error:
            raise self.error(error.line - 1, str(error)) from None
        except UnicodeError as error:
            if self.separator is None:
                raise self.error(None, f"is damaged: {error}") from error
            raise self.error(self._undecodable(), f"is not UTF-8 text ({error}): save the file as UTF-8") from error
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise self.error(None, f"is cut off or not a whole compressed file: {error}") from error
        except zipfile.BadZipFile as error:
            raise self.error(None, f"is no artifact of QIIME 2 that can be read: {tidy(str(error))}") from error
        except pd.errors.ParserError as error:
            raise self._malformed(str(error)) from error
        except pa.ArrowException as error:
            raise self.error(None, f"is cut off, damaged or no Parquet file: {tidy(str(error))}") from error
        except OSError as error:
            if error.filename is None and error.errno is None:  # Arrow's and bz2's own
                raise self.error(None, f"is cut off or damaged: {tidy(str(error))}") from error
            raise

    def _undecodable(self) -> int | None:
        damaged = suppress(EOFError, OSError, zlib.error, lzma.LZMAError, TooLongError, UnicodeError)  # further on
        with damaged, self._text(encoding="utf-8", errors="surrogateescape") as lines:
            for number, line in enumerate(lines):
                if NO_TEXT.search(line):
                    return number - 1
        return None

    def _malformed(self, message: str) -> ValueError:
        if match := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", message):
            fields, line, here = map(int, match.groups())
            return self.error(line - 2, f"has {here} fields, the header has {fields}")
        if match := re.search(r"EOF inside string starting at row (\d+)", message):
            return self.error(int(match[1]) - 1, 'has a quote (") that is never closed')
        return self.error(None, f"is no table of fields separated by {_spell(self.separator or ',')}: {tidy(message)}")


class TableFile(TextFile):
    """A table on disk.

    Args:
        path: Ending in .parquet, .csv, .tsv or .txt; text also compressed (.csv.gz, .bz2, .xz).

    Attributes:
        columns: Their names.
        separator: That of the name, or, where the header is without it, the one that it has.
        indexed: The first column has no name, as R and pandas write names of rows: it is none of `columns`, as in
            Parquet.
        rows: How many, where the file says so (Parquet), else None.

    A line without any value is left out. Fields missing at the end of a line are empty ones. Lines are counted as rows,
    so that a line break within quotes shifts those that messages name.

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: A directory, or not a table of the kind that its name says.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.rows: int | None = None
        self.indexed = self._shifted = False
        self._above = 0  # lines above the header
        self._blank: list[int] = []  # rows left out so far
        with self.clear_errors():
            self.columns = self._read_header() if self.separator else self._read_schema()
        self._check_columns()

    def _prepare(self) -> Callable[..., Any]:
        self.separator, opener = kind_of(self.path, READ)
        return opener

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Chunk]:
        """The rows in order, some tens of thousands at a time.

        Args:
            columns: Which ones. Default: all.

        Raises:
            ValueError: Cut off, damaged, not UTF-8, or a row with too many fields.
        """
        chosen = self.columns if columns is None else list(columns)
        size = max(CELLS // max(len(self.columns), 1), 256)
        with self.clear_errors():
            yield from (self._text_chunks(chosen, size) if self.separator else self._parquet_chunks(chosen, size))

    def nth(self, number: int) -> int:
        before = np.array(self._blank, dtype=np.int64) - np.arange(len(self._blank))
        return number + int(np.searchsorted(before, number, side="right"))

    def require(self, columns: Sequence[str]) -> None:
        """Raise ValueError if one of these columns is not there, or named twice."""
        if twice := [name for name, times in Counter(columns).items() if times > 1]:
            raise self.error(None, f"column {twice[0]!r} is asked for twice: each column is one thing")
        there = set(self.columns)
        if missing := [name for name in columns if name not in there]:
            name = missing[0]
            hint = ": name the column that says of which set a row is with --set_column" if name == "set" else ""
            same = [column for column in self.columns if column.casefold() == name.casefold()]
            if not hint and (near := same or difflib.get_close_matches(name, self.columns, 3)):
                hint = f"; did you mean {' or '.join(map(repr, near))}?"
            raise self.error(None, f"has no column {listed(missing, 5)}, it has {listed(self.columns)}{hint}")

    def _check_columns(self) -> None:
        seen: set[str] = set()
        for number, name in enumerate(self.columns, 1 + self.indexed):
            if not name:
                raise self.error(
                    None,
                    f"column {number} has no name (a row index? write the table without it: index=False in pandas)",
                )
            if name in seen:
                raise self.error(None, f"column {name!r} is there twice")
            seen.add(name)

    def _csv(self, text: _Text, **options: Any) -> Any:
        return pd.read_csv(
            text, sep=self.separator, header=None, dtype=str, na_filter=False, skip_blank_lines=False, **options
        )

    def _read_header(self) -> list[str]:
        self.refuse_other_kinds()
        with self._text(encoding="utf-8-sig") as text:
            line = text.readline()
            marked: list[str] = []
            if said := SEPARATOR_LINE.fullmatch(line.rstrip("\r\n")):
                self.separator, self._above, line = said[1] or self.separator, 1, text.readline()
            while line.startswith("#") and len(marked) < PEEK:
                marked.append(line)
                line = text.readline()
            self._above += self._comments(marked, line, text.readline(), said is not None and bool(said[1]))
        with self._text(encoding="utf-8-sig") as text, suppress(csv.Error):  # pandas takes minutes for each million
            rows = csv.reader(islice(text, self._above, None), delimiter=self.separator or ",")
            if (columns := len(next(rows, []))) > COLUMNS:
                raise self.error(-1, f"has {columns:,} columns, at most {COLUMNS:,} are read: does a row end?")
            if self.separator in ("\t", " "):  # R names rows there; with commas these may be decimal ones
                below = [row for row in islice(rows, PEEK) if row]
                more = bool(below) and all(len(row) == columns + 1 for row in below)
                self._shifted = more and any(row[-1] for row in below)
        with self._text(encoding="utf-8-sig") as text:
            try:
                first = self._csv(text, nrows=1, skiprows=self._above)
            except pd.errors.EmptyDataError:
                raise self.error(None, "is empty: its first line must hold the names of the columns") from None
        self._names = [""] * self._shifted + [str(name).strip() for name in first.iloc[0]]
        while len(self._names) > 2 and not self._names[-1]:  # a spreadsheet's, without a value in any row
            self._names.pop()
        self.indexed = len(self._names) > 1 and not self._names[0]
        return self._names[self.indexed :]

    def take_index(self, name: str) -> None:
        """Give the first column, which has no name, one."""
        self._names[0], self.indexed = name, False
        self.columns.insert(0, name)

    def _comments(self, marked: list[str], first: str, second: str, told: bool) -> int:
        """How many of the lines that begin with # are above the header, which is the only one of them that has as many
        fields as the first line without a #, if any; of cBioPortal several have.
        """
        self.separator = self.separator if told else self._told(first or "".join(marked[:1]), second)
        with suppress(csv.Error):
            rows = csv.reader([*marked, first], delimiter=self.separator or ",")
            *widths, below = map(len, rows) if first else [0]
            named = [at for at, line in enumerate(marked[: len(widths)]) if not line.lower().startswith(("##", TYPES))]
            same = [at for at in named if 1 < widths[at] == below]
            # Fields at the end of a line may be missing; prose has no tabs.
            same = same or [at for at in named if self.separator == "\t" and widths[at] > below]
            return same[0] if len(same) == 1 else len(marked) if first else 0
        return 0

    def _told(self, line: str, below: str) -> str | None:
        """What separates fields, by the header and the line below."""
        bare, spaced = re.sub('"[^"]*"', "_", line).strip("\r\n"), None
        if not bare or (self.separator or "") in bare:
            return self.separator
        with suppress(csv.Error):
            first, second = (len(next(csv.reader([one], delimiter=" ", strict=True), [])) for one in (line, below))
            spaced = " " if 1 < first <= second <= first + 1 else None
        return separator_of(line) or ("|" if "|" in bare else spaced) or self.separator

    def _text_chunks(self, chosen: list[str], size: int) -> Iterator[Chunk]:
        at = [self._names.index(name) for name in chosen]
        self._blank = []
        if self.indexed:
            warnings.warn(f"{self.path}: its first column has no name, and is left out", stacklevel=2)
        above = self._above + self._shifted
        first, start = above - 1, 1 - self._shifted  # the header is no row
        with self._text(encoding="utf-8-sig") as text, self._csv(text, chunksize=size, skiprows=above) as frames:
            for frame in frames:
                text.buffer.next_block()  # type: ignore[attr-defined]
                arrays = [pa.array(frame[i], type=pa.string()).slice(start) for i in range(len(self._names))]
                for i in range(len(self._names), frame.shape[1]):
                    if (frame[i].iloc[start:].str.strip() != "").any():
                        raise self.error(None, f"column {i + 1} has no name, and values")
                rows = len(frame) - start
                for begin, end in self._without_blank_lines(arrays, rows, first + start):
                    columns = {name: arrays[i].slice(begin, end - begin) for name, i in zip(chosen, at, strict=True)}
                    chunk = Chunk(self, first + start + begin, columns)
                    chunk.read_commas()
                    yield chunk
                first += len(frame)
                start = 0

    def _without_blank_lines(self, arrays: list[pa.Array], rows: int, first: int) -> list[tuple[int, int]]:
        """Stretches of rows between blank lines; lines are counted on, so that messages name the right one."""
        blank = np.ones(rows, dtype=bool)
        for array in arrays:
            blank &= pc.equal(pc.utf8_trim_whitespace(array), "").to_numpy(zero_copy_only=False)
            if not blank.any():
                break
        if rows and arrays[0][0].as_py().strip().lower() == TYPES:
            blank[0] = True
        cuts = np.flatnonzero(blank)
        self._blank += (first + cuts).tolist()
        bounds = zip([0, *(cuts + 1)], [*cuts, rows], strict=True)
        return [(int(a), int(b)) for a, b in bounds if b > a]

    def _read_schema(self) -> list[str]:
        with self._parquet() as file:
            self.rows = file.metadata.num_rows
            return [name for name in file.schema_arrow.names if not INDEX.fullmatch(name)]

    @contextmanager
    def _parquet(self) -> Iterator[pq.ParquetFile]:
        # Small buffers: column chunks are read as they are needed, however large a row group is.
        with open(self.path, "rb") as raw:
            options: dict[str, Any] = {"buffer_size": 1 << 20, "pre_buffer": False, "page_checksum_verification": True}
            self._raw = raw
            with pq.ParquetFile(raw, **options) as file:
                yield file

    def _parquet_chunks(self, chosen: list[str], size: int) -> Iterator[Chunk]:
        first = 0
        with self._parquet() as file:
            for batch in file.iter_batches(size, columns=chosen, use_threads=False):
                batch.validate(full=True)  # text that is UTF-8, categories that are there
                if len(batch):
                    yield Chunk(self, first, {name: _plain(batch.column(name)) for name in chosen})
                first += len(batch)
        if first != self.rows:
            raise self.error(None, f"is damaged: it has {first} rows and says that it has {self.rows}")


class TableWriter:
    """Write a table frame by frame; nothing is seen under its name before all is written.

    Text fields are as `omniset.tables.spreadsheets.field` has them.

    Args:
        path: Ending as TableFile's.
        empty: A table without rows is one too.

    Use as a context manager: `with TableWriter(path) as out: out.write(frame)`.

    Raises:
        OSError: The folder is not there, may not be written to or is full.
        ValueError: The name ends otherwise or is that of a folder; no row was written.
    """

    def __init__(self, path: str | Path, empty: bool = False) -> None:
        self.path, self._empty = Path(path), empty
        self.separator, self._opener = kind_of(self.path)
        if self.path.exists() and not self.path.is_file():
            raise ValueError(f"out must be a file, {self.path} is {'a directory' if self.path.is_dir() else 'none'}")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"{self.path.parent} is no directory: make it before writing {self.path.name}")
        self._sink: Any = None

    def __enter__(self) -> TableWriter:
        with ExitStack() as stack:
            self._temporary = stack.enter_context(replacing(self.path))
            stack.enter_context(self._clear_errors())
            if self.separator:
                binary = self._opener(self._temporary, "wb")
                self._sink = stack.enter_context(io.TextIOWrapper(binary, encoding="utf-8", newline=""))
            self._rows = 0
            self._stack = stack.pop_all()
        return self

    def write(self, frame: pd.DataFrame) -> None:
        if self.separator:
            frame = frame_of_fields(frame)
            # Python before 3.13 writes a carriage return without quotes, and whoever reads it finds one more line.
            texts = [frame.columns, *(frame.iloc[:, i] for i, kind in enumerate(frame.dtypes) if kind.kind == "O")]
            returns = any("\r" in text for values in texts for text in values if isinstance(text, str))
            frame.to_csv(
                self._sink,
                sep=self.separator,
                index=False,
                header=not self._rows,
                lineterminator="\n",
                quoting=csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL,
            )
        else:
            table = pa.Table.from_pandas(frame, preserve_index=False)
            if self._sink is None:
                # A column without any value so far is taken for one of text.
                fields = [f.with_type(pa.string()) if pa.types.is_null(f.type) else f for f in table.schema]
                writer = pq.ParquetWriter(self._temporary, pa.schema(fields), write_page_checksum=True)
                self._sink = self._stack.enter_context(writer)
            self._sink.write_table(table.cast(self._sink.schema))
        self._rows += len(frame)

    def __exit__(self, *error: Any) -> None:
        if error[0] is None and not self._rows and not self._empty:
            nothing = ValueError(f"{self.path} is not written: there is no row to write")
            self._stack.__exit__(type(nothing), nothing, None)
            raise nothing
        self._stack.__exit__(*error)

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise OSError(
                error.errno, f"out cannot be written: {os.strerror(error.errno)}; nothing is kept", str(self.path)
            ) from error


def separator_of(line: str) -> str | None:
    """Tabs; else commas or semicolons, whichever are more outside of quotes; None: none of them."""
    if "\t" in line:
        return "\t"
    bare = re.sub('"[^"]*"', "_", line)
    commas, semicolons = bare.count(","), bare.count(";")
    return None if not commas + semicolons else ";" if semicolons > commas else ","


def kind_of(path: Path, known: Mapping[str, str] = SEPARATORS) -> tuple[str | None, Callable[..., Any]]:
    """The separator that a file's name stands for (None: Parquet), and what opens it.

    Raises:
        ValueError: A name that ends otherwise.
    """
    opener, kind = OPENERS.get(path.suffix.lower(), open), Path(unpacked(path.name)).suffix.lower()
    if kind in known:
        return known[kind], opener
    if kind != ".parquet" or opener is not open:
        bound = "the name must end in .parquet, .csv or .tsv (the last two also with .gz, .bz2, .xz)"
        raise ValueError(f"{path}: {bound}{REMEDIES.get(kind, '')}")
    return None, opener


def artifact_part(raw: Any, mode: str = "rb", *, names: Sequence[str], whole: bool = False) -> Any:
    """What an artifact of QIIME 2 holds, open: the file of one of these names in the folder data of its UUID.

    Args:
        raw: The artifact, an open file of bytes.
        whole: It is to be unpacked whole.

    Raises:
        ValueError: It is too large for that.
        zipfile.BadZipFile: It is no zip file, is damaged, or holds something else.
    """
    try:
        archive = zipfile.ZipFile(raw)
        data = {name.split("/", 2)[-1]: name for name in archive.namelist() if name.split("/")[1:2] == ["data"]}
        parts = [archive.getinfo(data[name]) for name in names if name in data]
        opened = archive.open(parts[0]) if parts else None
    except (NotImplementedError, RuntimeError, ValueError, OSError) as error:  # of ways to pack and places in the file
        raise zipfile.BadZipFile(str(error)) from error
    if opened is None:
        raise zipfile.BadZipFile(f"it must hold {' or '.join(names)}, it holds {listed(sorted(data)) or 'no data'}")
    if whole:
        require_room(parts[0].file_size, raw.name, f"unpack it, and give its {names[0]}")
    return opened


class _Text(io.TextIOWrapper):
    """Text without NUL, which is that of UTF-16, or none."""

    def read(self, size: int | None = -1, /) -> str:
        text = super().read(size)
        if "\0" in text:
            raise UnicodeError("it has bytes of 0")
        return text


def _plain(values: pa.Array) -> pa.Array:
    values = values.dictionary_decode() if isinstance(values.type, pa.DictionaryType) else values
    text = pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type)  # as Polars writes them
    return values.cast(pa.string()) if text else values


def tidy(message: str) -> str:
    """What a library says, in one line, without what Python says of objects and classes."""
    message = OBJECT.sub(r"\1", message.replace("Error tokenizing data. C error: ", ""))
    return " ".join(message.split())[:300]


def _spell(separator: str) -> str:
    return {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars", " ": "spaces"}.get(separator, repr(separator))


def listed(names: Sequence[str], most: int = 12) -> str:
    """The first of some names, quoted, and how many more there are.

    >>> listed(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(n) if len(n) <= 60 else repr(n[:57] + "...") for n in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
