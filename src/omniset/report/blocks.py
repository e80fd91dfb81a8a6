"""What a report is made of. Nothing here knows what the report is about."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

# Controls but tab and line break, embeddings and overrides of the direction, halves of characters, no characters.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


@dataclass
class Cell:
    """A cell of a table whose text is not the plain form of its value; sorting goes by the value."""

    text: str
    value: Any


@dataclass
class Table:
    """Cells are text, numbers, None (not known) or `Cell`s. A column of numbers is right-aligned and sorts as numbers.

    Args:
        half: Half as wide as the page where there is room, beside its neighbour.
    """

    caption: str
    columns: list[str]
    rows: list[list[Any]]
    half: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.caption!r}: a row of {len(row)} cells for {len(self.columns)} columns")

    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        columns = ([value_of(row[i]) for row in self.rows] for i in range(len(self.columns)))
        known = ([value for value in column if value is not None] for column in columns)
        return [bool(values) and all(map(_is_number, values)) for values in known]


@dataclass
class Plot:
    """A figure of matplotlib, drawn as SVG. `alt` says in a sentence what is seen, for those who do not see it."""

    figure: Any  # no type: matplotlib is imported where something is drawn
    alt: str
    caption: str
    half: bool = True


@dataclass
class Note:
    kind: Literal["info", "warning"]
    text: str


@dataclass
class Facts:
    """Names and values, one per line."""

    pairs: list[tuple[str, Any]]


Block = Table | Plot | Note | Facts


@dataclass
class Section:
    title: str
    text: str = ""
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Report:
    """A page.

    Args:
        lead: What was found, in a sentence.
        command: That makes the run again.
        provenance: Name and value of what the numbers came from: versions, seed, device.
        about: What it was found on.
        opening: A picture of it, and the notes that a reader must not miss.
    """

    title: str
    lead: str
    sections: list[Section]
    command: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)
    about: str = ""
    opening: list[Block] = field(default_factory=list)


def plots_of(section: Section) -> list[Plot]:
    return [block for block in section.blocks if isinstance(block, Plot)]


def value_of(cell: Any) -> Any:
    """What a cell is sorted by; None: not known."""
    value = cell.value if isinstance(cell, Cell) else cell
    return None if value != value else value


def shown(text: str) -> str:
    r"""A text of the data as pages and figures can hold it: what is no character of HTML or XML, and what changes the
    direction of the text behind it, is written as its number.

    >>> shown("a\x07b\uffff")
    'a\\x07bU+FFFF'
    """
    return UNSEEN.sub(_escaped, text)


def text_of(cell: Any) -> str:
    """How a value is read: 4 decimals or 4 digits, thousands apart, a dash for what is not known.

    >>> [text_of(v) for v in (0.833333, 0.05, 12345, 1234567.8, 123.456, 1.2e-7, 0.0, None, True, "a")]
    ['0.8333', '0.0500', '12,345', '1,234,568', '123.5', '1.200e−07', '0', '–', 'yes', 'a']
    """
    if isinstance(cell, Cell):
        return cell.text
    if cell is None or cell != cell:
        return "\N{EN DASH}"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if not _is_number(cell):
        return str(cell)
    return _number(cell).replace("-", "\N{MINUS SIGN}")


def fact_of(value: Any) -> str:
    """How a value that a person chose is read: as it was written.

    >>> [fact_of(v) for v in (0.001, 1e-05, 12345, None)]
    ['0.001', '1e-05', '12,345', '–']
    """
    return repr(float(value)) if isinstance(value, float) and math.isfinite(value) else text_of(value)


def many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(named: dict[str, Any], at_most: int = 12) -> str:
    entries = [f"{name} {text_of(whole(value))}" for name, value in list(named.items())[:at_most]]
    return ", ".join(entries) + (" and more" if len(named) > at_most else "")


def rounded(value: float, digits: int = 3) -> Cell:
    """With so many decimals; a dash if it is NaN."""
    return _decimals(value, f",.{digits}f")


def signed(value: float, digits: int = 3) -> Cell:
    """A difference, with its sign; a dash if it is NaN."""
    return _decimals(value, f"+,.{digits}f")


def between(low: float, high: float, digits: int = 3, form: Callable[[float, int], Cell] = rounded) -> str:
    """An interval as text; a dash where there is none."""
    return text_of(None) if low != low else f"{form(low, digits).text} to {form(high, digits).text}"


def whole(value: Any) -> Any:
    """3.0 as 3: quantiles of counts are mostly whole."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _decimals(value: float, form: str) -> Cell:
    return Cell(text_of(None) if value != value else f"{value:{form}}".replace("-", "\N{MINUS SIGN}"), value)


def _number(value: Any) -> str:
    if isinstance(value, Integral) or not value or 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 10 else f"{value:#.4g}".rstrip(".")


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 256 else f"U+{number:04X}"


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
