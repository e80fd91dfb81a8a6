"""Columns of a table as features: numbers as they are, categories as one column each, missing values marked.

What a model has learned of its table is used again on every other one, so that a feature means the same in all.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Number
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float, Shaped

from omniset.core.checks import short
from omniset.core.features import MISSING, writing, written

Missing = Literal["error", "indicator"]
CATEGORIES = 100  # of a column, at most: more are names
# Those of SAS, of spreadsheets and of the Genomic Data Commons; among categories "-" is a strand.
NO_NUMBER = (*MISSING, "-", "--", "'--", ".", "?", "n.d.")
NO_CATEGORY = tuple(word for word in MISSING if word != "none")  # "none" may well be one
MIDNIGHT = r" 00:00:00(\.0+)?Z?$"  # of dates without a time
MARKED = '; missing values are taken, and marked, by fit with --missing indicator (Python: missing="indicator")'


class EncodingError(ValueError):
    """What is wrong with a column as a whole."""


class Block:
    """Some rows of a table, and how an error in them is told."""

    columns: dict[str, pa.Array]  # numbers, truth values or text
    remedy = ""  # what else to do about a column that is no number, for its error

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def values(self, column: str) -> pa.Array:
        """A column; as truth values where, but for what is missing, its texts are true and false in any case."""
        values = self.columns[column]
        if _is_number_type(values.type) or not pa.types.is_string(values.type):
            return values
        first = next((t for t in values.slice(0, 1000).to_pylist() if t and t.strip().lower() not in MISSING), "")
        if first.strip().lower() not in ("true", "false"):
            return values
        text = pc.utf8_lower(pc.utf8_trim_whitespace(values))
        if not {*text.unique().to_pylist()} <= {"true", "false", None, *MISSING}:
            return values
        return pc.if_else(pc.is_in(text, pa.array(("true", "false"))), pc.equal(text, "true"), None)

    def numbers(
        self, column: str, least: float | None = None, values: pa.Array | None = None
    ) -> Float[np.ndarray, " rows"]:
        """A column, or these values of it, of finite numbers, not below `least`.

        Raises:
            ValueError: Naming the first that is not.
        """
        values = self.values(column) if values is None else values
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.int8())
        if not _is_number_type(values.type):
            values = self._parsed(column, pc.utf8_trim_whitespace(self.as_text(column, values)))
        numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        bad = ~np.isfinite(numbers)
        if least is not None:
            bad |= numbers < least
        if bad.any():
            row = int(bad.argmax())
            what = "is missing" if not values[row].is_valid else f"is {numbers[row]:g}"
            bound = "a finite number" if least is None else f"a finite number >= {least:g}"
            hint = MARKED if least is None and np.isnan(numbers[row]) else ""
            raise self.error(row, column, f"{what}, it must be {bound}{hint}")
        return numbers

    def _parsed(self, column: str, values: pa.Array) -> pa.Array:
        try:
            return pc.cast(values, pa.float64())
        except pa.ArrowInvalid:
            texts = values.to_pylist()
            row = next(row for row, text in enumerate(texts) if text is not None and not _is_number(text))
            state = f"is {short(texts[row])}" if texts[row] else "is empty"
            state += f", {other}" if (other := writing(texts[row])) else ""
            hint = MARKED if texts[row].lower() in NO_NUMBER else ""
            raise self.error(row, column, f"{state}, it must be a number{self.remedy}{hint}") from None

    def as_text(self, column: str, values: pa.Array) -> pa.Array:
        """Values as text. Raises: ValueError where they are neither text nor numbers."""
        try:
            text = values.cast(pa.string())
            return pc.replace_substring_regex(text, MIDNIGHT, "") if pa.types.is_timestamp(values.type) else text
        except pa.ArrowException:
            raise self.error(None, column, f"must be text or numbers, it is {values.type}") from None

    def error(self, row: int | None, column: str | None, message: str) -> ValueError:
        """An error of one of the rows, from 0, or of all."""
        raise NotImplementedError


@dataclass
class Column:
    """What is known of a column."""

    name: str
    categories: list[str] | None = None  # In alphabetical order. None: the column is of numbers.
    mean: float = 0.0  # Of the numbers that are there. It stands where one is missing.
    marked: bool = False  # a feature of 0 and 1 says where a value is missing

    @property
    def features(self) -> list[str]:
        names = [self.name] if self.categories is None else [f"{self.name}={value}" for value in self.categories]
        return names + ([f"{self.name} is missing"] if self.marked else [])


class Encoding:
    """How the columns of a table become features.

    | column | features |
    |---|---|
    | numbers | `column` |
    | text | `column=category` for each category: 1 where it is that one, else 0 |
    | with missing values, `missing="indicator"` | also `column is missing`: 1 where it is, else 0 |

    A missing number is replaced by the mean of those that were there at fit. A missing category is none of them, and so
    is one that was not there at fit.

    Args:
        columns: In the order of the features.
        missing: "error", or "indicator".

    Raises:
        EncodingError: Two features of one name.

    >>> Encoding([Column("x", marked=True), Column("stain", ["HE", "PAS"])], "indicator").features
    ['x', 'x is missing', 'stain=HE', 'stain=PAS']
    """

    def __init__(self, columns: Sequence[Column], missing: Missing = "error") -> None:
        self.columns, self.missing = list(columns), missing
        self.features = [name for column in self.columns for name in column.features]
        twice = pd.Series(self.features, dtype=object).duplicated().to_numpy()
        if twice.any():
            raise EncodingError(f"two features would be called {self.features[int(twice.argmax())]!r}: rename a column")

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return [column.name for column in self.columns]

    @classmethod
    def of_numbers(cls, names: Sequence[str]) -> Encoding:
        """Columns of numbers, none of them missing."""
        return cls([Column(name) for name in names])

    @classmethod
    def fit(
        cls, names: Sequence[str], blocks: Callable[[Sequence[str]], Iterable[Block]], missing: Missing = "error"
    ) -> Encoding:
        """Learn it of a table.

        A column is of numbers where the first value that is there is one, and then all must be; else of categories,
        and then none may be a number.

        Args:
            names: Of the columns.
            blocks: Gives all rows with these columns. It is called once or twice.

        Raises:
            ValueError: A column of numbers and text, of more than 100 categories, or without any value.
        """
        learned = {name: _Learned(name) for name in names}
        if missing == "error":  # the first rows tell which columns are text; numbers need no look at the others
            for block in blocks(names):
                for column in learned.values():
                    column.decide(block)
                break
            text = [name for name, column in learned.items() if column.categorical]
        else:
            text = [*names]
        for block in blocks(text) if text else []:
            for name in text:
                learned[name].see(block, missing)
        return cls([column.result(missing) for column in learned.values()], missing)

    def apply(
        self, block: Block, dtype: type[np.floating], warned: set[str] | None = None
    ) -> Float[np.ndarray, "rows features"]:
        """The features of some rows.

        Args:
            dtype: Of the result.
            warned: What was warned of already; more is added.

        Raises:
            ValueError: A value that is missing (missing="error"), no finite number, or too large for `dtype`.
        """
        warned = set() if warned is None else warned
        features = np.zeros((len(block), len(self.features)), dtype=dtype)
        at = 0
        for column in self.columns:
            part = features[:, at : at + len(column.features)]
            at += part.shape[1]
            if column.categories is None:
                gone = self._numbers(part, column, block)
                instead = "the mean takes its place"
            else:
                gone, unknown = self._marks(part, column, block)
                instead = "it is of no category"
                _tell(block, column.name, unknown, "is a category that was not there at fit: it counts as none", warned)
            if column.marked:
                part[:, -1] = gone
            else:
                _tell(block, column.name, gone, f"is missing, which none was at fit: {instead}", warned)
        return features

    def _numbers(self, out: np.ndarray, column: Column, block: Block) -> Bool[np.ndarray, " rows"]:
        values, gone = block.values(column.name), np.zeros(len(block), dtype=bool)
        if self.missing == "indicator":
            gone = _missing(block, column.name, values, NO_NUMBER)
        numbers = block.numbers(column.name, values=_filled(block, column.name, values, gone))
        out[:, 0] = _narrowed(block, column.name, np.where(gone, column.mean, numbers), out.dtype.type)
        return gone

    def _marks(
        self, out: np.ndarray, column: Column, block: Block
    ) -> tuple[Bool[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
        """Also where a value is missing, and where it is unknown."""
        values = block.columns[column.name]
        gone = _missing(block, column.name, values, NO_CATEGORY)
        if self.missing == "error":
            _refuse_missing(block, column.name, gone)
        codes = pc.utf8_trim_whitespace(block.as_text(column.name, values)).dictionary_encode()
        place = {category: number for number, category in enumerate(column.categories or [])}
        positions = np.array([place.get(value, -1) for value in codes.dictionary.to_pylist()] + [-1])
        indices = pc.fill_null(codes.indices, len(positions) - 1).to_numpy(zero_copy_only=False)
        which = np.where(gone, -1, positions[indices])
        rows = np.flatnonzero(which >= 0)
        out[rows, which[rows]] = 1
        return gone, (which < 0) & ~gone

    @property
    def state(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"missing": self.missing, "columns": [asdict(column) for column in self.columns]}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Encoding:
        return cls([Column(**column) for column in state["columns"]], state["missing"])


class _Learned:
    """What the rows so far say of a column."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.categorical: bool | None = None  # None: no value so far
        self._text = ""  # the first one that is no number
        self._categories: set[str] = set()
        self._sum, self._count, self._gone = 0.0, 0, False

    def decide(self, block: Block) -> None:
        """The first value that is there tells which kind the column is of."""
        if self.categorical is not None or not len(block):
            return
        values = block.values(self.name)
        there = np.flatnonzero(~_missing(block, self.name, values, NO_NUMBER))
        if len(there):
            value = block.as_text(self.name, values)[int(there[0])].as_py().strip()
            self.categorical = not (_is_number_type(values.type) or _is_number(value))
            self._text = value

    def see(self, block: Block, missing: Missing) -> None:
        self.decide(block)
        values = block.columns[self.name] if self.categorical else block.values(self.name)
        gone = _missing(block, self.name, values, NO_CATEGORY if self.categorical else NO_NUMBER)
        self._gone |= bool(gone.any())
        if self.categorical is None or not len(block):
            return
        if missing == "error":
            _refuse_missing(block, self.name, gone)
        if not self.categorical:
            numbers = block.numbers(self.name, values=_filled(block, self.name, values, gone))
            self._sum += float(numbers[~gone].sum())
            self._count += int((~gone).sum())
            return
        text = pc.utf8_trim_whitespace(block.as_text(self.name, values))
        for value in text.filter(pa.array(~gone)).unique().to_pylist():
            if _is_number(value):
                row = pc.index(text, value).as_py()
                none = f"is {other}" if (other := writing(self._text)) else "is none"
                bound = f"which is a number, and {self._text!r} {none}: a feature is numbers, or text, throughout"
                raise block.error(row, self.name, f"is {value!r}, {bound}")
            self._categories.add(value)
            if len(self._categories) > CATEGORIES:
                self._refuse_numbers()
                row = pc.index(text, value).as_py()
                message = f"is text of more than {CATEGORIES} different values, here {value!r}: is it a name? "
                raise block.error(row, self.name, f"{message}--ignore {shlex.quote(self.name)} leaves it out")

    def _refuse_numbers(self) -> None:
        """As categories, numbers in another writing, or dates, would mean nothing."""
        if found := written(sorted(self._categories)):
            remedy = f"write plain numbers, or words; --ignore {shlex.quote(self.name)} leaves it out"
            raise EncodingError(f"column {self.name!r} has {short(found[0])}, {found[1]}: {remedy}")

    def result(self, missing: Missing) -> Column:
        marked = missing == "indicator" and self._gone
        if marked and self.categorical is None:
            remedy = f"--ignore {shlex.quote(self.name)} leaves it out"
            raise EncodingError(f"column {self.name!r} has no value in any row: {remedy}")
        if self.categorical:
            self._refuse_numbers()
            return Column(self.name, sorted(self._categories), marked=marked)
        return Column(self.name, mean=self._sum / max(self._count, 1), marked=marked)


def multiplicities(block: Block, dtype: type[np.floating]) -> Float[np.ndarray, " rows"]:
    """The column `multiplicity` of some rows.

    Raises:
        ValueError: One is not finite and >= 0, or too large for `dtype`, or so small that it would be 0, and absent.
    """
    numbers = block.numbers("multiplicity", 0.0)
    narrow, known = _narrowed(block, "multiplicity", numbers, dtype), np.finfo(dtype)
    if (lost := (numbers > 0) & (narrow == 0)).any():
        row, bits = int(lost.argmax()), 8 * narrow.dtype.itemsize
        bound = f"too small for {bits}-bit numbers (at least {known.smallest_subnormal:.2g}, or 0 for what is absent)"
        raise block.error(row, "multiplicity", f"is {numbers[row]:g}, {bound}: multiply all by the same factor")
    return narrow


class FrameRows(Block):
    """All rows of a DataFrame.

    Args:
        columns: Labels of the table's columns, by the names that they have here.
    """

    def __init__(self, table: pd.DataFrame, columns: Mapping[str, Any]) -> None:
        self.columns = {name: self._array(name, table[label]) for name, label in columns.items()}

    @staticmethod
    def _array(name: str, values: pd.Series) -> pa.Array:
        if isinstance(values.dtype, pd.CategoricalDtype):
            values = values.astype(values.dtype.categories.dtype if len(values.dtype.categories) else object)
        if values.dtype.kind in "biuf":
            return pa.array(values, from_pandas=True)
        gone = values.isna().to_numpy()
        known = values[~gone]
        if values.dtype.kind not in "OTU" or not all(isinstance(v, str | Number) for v in known):
            raise ValueError(f"column {name!r} must be numbers or text, it is {values.dtype}")
        return pa.array([None if g else str(v) for g, v in zip(gone, values, strict=True)], pa.string())

    def error(self, row: int | None, column: str | None, message: str) -> ValueError:
        return ValueError(f"column {column!r}, row {row}: {message}")


def _narrowed(
    block: Block, column: str, numbers: Float[np.ndarray, " rows"], dtype: type[np.floating]
) -> Float[np.ndarray, " rows"]:
    with np.errstate(over="ignore"):
        narrow = numbers.astype(dtype)
    too_large = np.isinf(narrow)
    if too_large.any():
        row = int(too_large.argmax())
        bits, most = 8 * narrow.dtype.itemsize, np.finfo(dtype).max
        bound = f"too large for {bits}-bit numbers (at most {most:.2g})".replace("e+", "e")
        raise block.error(row, column, f"is {numbers[row]:g}, {bound}")
    return narrow


def _is_number_type(kind: pa.DataType) -> bool:
    return pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _is_number(text: str) -> bool:
    try:
        pa.scalar(text, pa.string()).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _missing(block: Block, column: str, values: pa.Array, words: Sequence[str]) -> Bool[np.ndarray, " rows"]:
    """Where nothing is, or one of these words says so."""
    if pa.types.is_floating(values.type):
        return pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False)
    if _is_number_type(values.type):
        return pc.is_null(values).to_numpy(zero_copy_only=False)
    text = pc.utf8_lower(pc.utf8_trim_whitespace(block.as_text(column, values)))
    listed: Shaped[np.ndarray, " rows"] = pc.is_in(text, pa.array(words)).to_numpy(zero_copy_only=False)
    return listed | pc.is_null(text).to_numpy(zero_copy_only=False)


def _filled(block: Block, column: str, values: pa.Array, gone: Bool[np.ndarray, " rows"]) -> pa.Array:
    """With a 0 where nothing is."""
    if not gone.any():
        return values
    if not _is_number_type(values.type):
        return pc.if_else(pa.array(gone), pa.scalar("0"), block.as_text(column, values))
    return pc.if_else(pa.array(gone), pa.scalar(0).cast(values.type), values)


def _tell(block: Block, column: str, rows: Bool[np.ndarray, " rows"], what: str, warned: set[str]) -> None:
    """Warn of the first of these rows, once."""
    if rows.any() and f"{column} {what}" not in warned:
        warned.add(f"{column} {what}")
        row = int(rows.argmax())
        value = "" if what.startswith("is missing") else f"{block.columns[column][row].as_py()!r} "
        warnings.warn(str(block.error(row, column, f"{value}{what} (told once a column)")), stacklevel=3)


def _refuse_missing(block: Block, column: str, gone: Bool[np.ndarray, " rows"]) -> None:
    if gone.any():
        raise block.error(int(gone.argmax()), column, f"is missing, it must be a category{MARKED}")
