"""Sets out of a long table: one row per element, the rows of a set together."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from jaxtyping import Shaped

from omniset.core.disk import DiskRows
from omniset.core.encoding import Encoding, EncodingError, Missing, multiplicities
from omniset.core.features import MISSING, RESERVED, RowNumbers, doubt
from omniset.core.sets import Sets
from omniset.core.stored import StoredSet
from omniset.tables.files import Chunk, TableFile, listed
from omniset.tables.stored import StoredSets

STEP = 1 << 16  # rows copied at a time
POOLED = "rows of which nobody knows the set are taken for one set, if it means that"
NAMED = 1_000_000  # rows whose elements' names are kept in memory


@dataclass
class Rows:
    """Rows of one set that were read together: all of the set, or a part of it."""

    name: str
    elements: Shaped[np.ndarray, "rows dim"]
    multiplicity: Shaped[np.ndarray, " rows"]
    columns: dict[str, pa.Array]
    identifiers: Shaped[np.ndarray, " rows"] | None  # hashes of the elements' names
    row: int  # of the first one in the file
    ends: bool


class SetTable:
    """A long table of sets, read from top to bottom, sets in the order of the file.

    Args:
        path: See `TableFile`. Columns: `set`, features, optionally `multiplicity` and `element`.
        features: Columns that are features, in the order in which the model takes them. Default: all but the reserved
            ones, `keep` and `ignore`; none of them may look like a row index or a misspelt reserved name.
        keep: Columns to hand out as they are, such as labels of elements.
        most: Sets of more elements wait on disk.
        folder: Where they wait.
        ignore: Columns that are no features.
        set_column: The column that is called `set` here.
        encoding: How columns become features, as a model has learned it of another table; it says which columns are
            `features`. Default: learned of this table, which is read once more where it has columns of text or may
            have missing values.
        missing: "error", or "indicator" (`omniset.core.encoding.Encoding`).

    Attributes:
        columns: Columns that are features.
        stays: Reading the sets again is as good as a copy on disk.
        level: What labels that are columns are of, unless it is said.

    Raises:
        OSError, ValueError: As TableFile; a column is missing, or is no feature by its name.
    """

    stays, level = False, "element"

    def __init__(
        self,
        path: str | Path,
        features: Sequence[str] | None = None,
        keep: Sequence[str] = (),
        most: int = 1 << 15,
        folder: str | Path | None = None,
        ignore: Sequence[str] = (),
        set_column: str = "set",
        encoding: Encoding | None = None,
        missing: Missing = "error",
    ) -> None:
        self.file, self.set_column, self.missing = TableFile(path), set_column, missing
        self.reading: dict[str, Any] = {}  # options of reading that were chosen here
        reserved = (set_column, *RESERVED[1:])
        features = features if encoding is None else encoding.names
        for name in ignore:
            if name in reserved or name in (features or []):
                why = "says what the rows are" if name in reserved else "is named by --features too"
                raise self.file.error(None, f"column {name!r} cannot be ignored (--ignore): it {why}")
        self.file.require([*dict.fromkeys([set_column, *keep]), *(features or []), *ignore])
        besides = {*reserved, *keep, *ignore}
        others = [c for c in self.file.columns if c not in besides]
        self.columns = others if features is None else list(features)
        if not self.columns:
            raise self.file.error(None, f"has no feature columns, only {listed(self.file.columns)}")
        self._chosen, self._encoding = features is not None, encoding
        for name in [] if self._chosen else self.columns:
            self._refuse(name, doubt(name))
        self.has_elements = "element" in self.file.columns
        self.has_multiplicity = "multiplicity" in self.file.columns
        self._keep = [*keep, *(["element"] if self.has_elements else [])]
        self._most, self._folder = most, folder

    @cached_property
    def encoding(self) -> Encoding:
        """How columns become features.

        Raises:
            ValueError: Naming a column of numbers and text, of too many categories or without any value, and its line.
        """
        try:
            return self._encoding or Encoding.fit(self.columns, self.file.chunks, self.missing)
        except EncodingError as error:
            raise self.file.error(None, str(error)) from None

    @property
    def features(self) -> list[str]:
        """Their names: of a column of text, one for each category."""
        return self.encoding.features

    @property
    def ignored(self) -> list[str]:
        """Columns that are not used."""
        used = {self.set_column, *RESERVED[1:], *self.columns}
        return [c for c in self.file.columns if c not in used]

    def __iter__(self) -> Iterator[StoredSet]:
        """The sets, whole.

        Raises:
            ValueError: A value that is no number, not finite or, as multiplicity, negative; rows of one set that are
                not together; an element twice in a set; no rows; a feature that nobody has named and that only counts
                the rows. The message names file, line, column and value.
        """
        parts: list[Rows] = []
        disk: tuple[DiskRows, ...] | None = None
        size = 0
        for rows in self._rows():
            parts.append(rows)
            size += len(rows.elements)
            if len(parts) > 1 and size > self._most:
                waiting = [rows] if disk else parts
                widths = (len(self.features), None)
                disk = disk or tuple(DiskRows(width, torch.float32, self._folder) for width in widths)
                for part in waiting:
                    disk[0].append(torch.from_numpy(part.elements))
                    disk[1].append(torch.from_numpy(part.multiplicity))
                    part.elements, part.multiplicity = part.elements[:0].copy(), part.multiplicity[:0].copy()
            if rows.ends:
                if len(parts) > 1 and self.has_elements:
                    self._check_identifiers(parts)
                yield self._join(parts, disk)
                parts, disk, size = [], None, 0

    def _join(self, parts: list[Rows], disk: tuple[DiskRows, ...] | None) -> StoredSet:
        columns = {c: pa.chunked_array([p.columns[c] for p in parts]) for c in self._keep}
        identifiers = columns["element"] if self.has_elements else None
        if disk is None:
            elements = torch.from_numpy(np.concatenate([p.elements for p in parts]))
            counts = torch.from_numpy(np.concatenate([p.multiplicity for p in parts]))
            return StoredSet(elements, counts, 0, len(elements), parts[0].name, identifiers, columns)
        return StoredSet(disk[0], disk[1], 0, len(disk[0]), parts[0].name, identifiers, columns)

    def _rows(self) -> Iterator[Rows]:
        """Stretches of equal set names, one chunk at a time."""
        seen: dict[str, int] = {}
        held: Rows | None = None
        numbered = None if self._chosen else RowNumbers(self.features)
        reached = 0  # elements of the held set
        counts = ["multiplicity"] if self.has_multiplicity else []
        warned: set[str] = set()
        for chunk in self.file.chunks([*dict.fromkeys([self.set_column, *counts, *self._keep, *self.columns])]):
            codes = chunk.text(self.set_column).dictionary_encode()
            names, numbers = codes.dictionary.to_pylist(), codes.indices.to_numpy()
            elements = self.encoding.apply(chunk, np.float32, warned)
            multiplicity = multiplicities(chunk, np.float32) if counts else np.ones(len(chunk), dtype=np.float32)
            identifiers = None
            if self.has_elements:
                chunk.columns["element"] = chunk.text("element")
                identifiers = self._identifiers(chunk, names, numbers)
            starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(chunk)]
            places = np.arange(len(chunk)) - np.repeat(starts[:-1], np.diff(starts))
            if held is not None and held.name == names[numbers[0]]:
                places[: starts[1]] += reached
            reached = int(places[-1]) + 1
            if numbered is not None:
                numbered.see(elements, places)
            for a, b in pairwise(starts):
                name = names[numbers[a]]
                if held is not None:
                    held.ends = held.name != name
                    yield held
                if held is None or held.ends:
                    if name in seen:
                        raise chunk.error(
                            a,
                            None,
                            f"set {name!r} again, after other sets (it began at {self.file.where(seen[name])}): the "
                            f"rows of a set must be together, sort the table by column {self.set_column!r}",
                        )
                    seen[name] = chunk.first + a
                    if name.lower() in MISSING:
                        warnings.warn(str(chunk.error(a, self.set_column, f"is {name!r}: {POOLED}")), stacklevel=2)
                columns = {c: chunk.columns[c].slice(a, b - a) for c in self._keep}
                hashes = None if identifiers is None else identifiers[a:b]
                held = Rows(name, elements[a:b], multiplicity[a:b], columns, hashes, chunk.first + a, False)
        if held is None:
            raise self.file.error(None, "has no rows below its header")
        if numbered is not None and (column := numbered.doubt()) is not None:
            self._refuse(*column)
        held.ends = True
        yield held

    def _refuse(self, name: str, why: str | None) -> None:
        if why is not None:
            remedy = f"--ignore {shlex.quote(name)} leaves it out, --features takes what it names"
            raise self.file.error(None, f"column {name!r} would be a feature, but {why}; {remedy}")

    @staticmethod
    def _identifiers(chunk: Chunk, names: list[str], sets: np.ndarray) -> np.ndarray:
        """64-bit hashes of the elements' names, no two equal ones in a set. (By chance: once in 300,000 files of one
        set of ten million elements.)
        """
        values = chunk.columns["element"]
        hashes = pd.util.hash_array(values.to_numpy(zero_copy_only=False).astype(object))
        again = pd.Series(hashes + sets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).duplicated().to_numpy()
        if again.any():
            row = int(again.argmax())
            raise chunk.error(row, "element", _twice(values[row].as_py(), names[sets[row]]))
        return hashes

    def _check_identifiers(self, parts: list[Rows]) -> None:
        again = pd.Series(np.concatenate([p.identifiers for p in parts])).duplicated().to_numpy()
        if again.any():
            row = int(again.argmax())
            value = pa.chunked_array([p.columns["element"] for p in parts])[row].as_py()
            rows = np.concatenate([np.arange(p.row, p.row + len(p.columns["element"])) for p in parts])
            raise self.file.error(int(rows[row]), f"column 'element' {_twice(value, parts[0].name)}")


def _twice(element: str, name: str) -> str:
    return f"names {element!r} a second time in set {name!r}: use multiplicity"


def collect(
    table: Iterable[StoredSet],
    features: list[str],
    folder: str | Path | None = None,
    columns: Sequence[str] = (),
    encoding: Encoding | None = None,
    stays: bool = False,
) -> tuple[Sets, dict[str, pa.ChunkedArray]]:
    """All sets of a table as Sets whose elements are on disk, and these columns of the table, in memory.

    Args:
        features: The table's.
        folder: For the files without a name that hold 4 (D + 1) bytes per row. Default: Python's (TMPDIR).
        encoding: The table's, which they keep. Default: that of a SetTable or StoredSets.
        stays: The sets are left where they are, and read again; those of StoredSets are.

    Names of elements are kept up to a million rows; in longer tables elements go by their numbers.
    """
    if isinstance(table, SetTable | StoredSets):
        encoding, stays = encoding or table.encoding, table.stays
    labels: dict[str, list[pa.Array]] = {column: [] for column in columns}

    def watched() -> Iterator[StoredSet]:
        for stored in table:
            for column in columns:
                if column == "element" and column not in stored.columns:  # names that are no column of a table
                    labels[column].append(pa.array(stored.names_of_elements(), pa.string()))
                else:
                    labels[column].extend(stored.columns[column].chunks)
            yield stored

    sets = Sets.from_stored(watched(), features, encoding) if stays else _copied(watched(), features, folder, encoding)
    return sets, {column: pa.chunked_array(chunks) for column, chunks in labels.items()}


def _copied(
    table: Iterable[StoredSet], features: list[str], folder: str | Path | None, encoding: Encoding | None
) -> Sets:
    elements = DiskRows(len(features), torch.float32, folder)
    multiplicity = DiskRows(None, torch.float32, folder)
    names: list[Any] = []
    sizes = [0]
    identifiers: list[pa.Array] | None = []
    for stored in table:
        for start in range(0, len(stored), STEP):
            rows, counts = stored.read(start, STEP)
            elements.append(rows)
            multiplicity.append(counts)
        names.append(stored.name)
        sizes.append(len(stored))
        if stored.identifiers is None or len(elements) > NAMED:
            identifiers = None
        elif identifiers is not None:
            identifiers.extend(stored.identifiers.chunks)
    named = None if identifiers is None else pa.chunked_array(identifiers, pa.string())
    return Sets.from_rows(elements, multiplicity, np.cumsum(sizes), names, features, None, named, encoding)
