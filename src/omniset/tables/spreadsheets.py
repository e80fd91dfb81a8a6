"""Text that a spreadsheet would compute, fields that begin like a formula, and numbers as it writes them.

Tables are written with names as they are, since other programs join by them. The option --csv_safe of the commands
is for tables that people open in a spreadsheet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

SAFE: ContextVar[bool] = ContextVar("csv_safe", default=False)
DECIMAL: ContextVar[str] = ContextVar("decimal", default=".")  # of numbers in tables that are read as text
COMMA = re.compile(r"\s*([+-]?(?:[0-9]{1,3}(?:\.[0-9]{3})+|[0-9]*)),([0-9]+(?:[eE][+-]?[0-9]+)?)\s*")
POINT = re.compile(r"\s*[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+\s*")
BEGINNINGS = ("=", "+", "-", "@", "\t", "\r")  # of formulas: OWASP, "CSV Injection"


def point(text: str) -> str | None:
    """With decimal commas, a number as others write it; None where a point may be one of thousands or of decimals.

    >>> token = DECIMAL.set(",")
    >>> point("1,5"), point("-1.234,5e3"), point("1.234"), point("B,5")
    ('1.5', '-1234.5e3', None, 'B,5')
    >>> DECIMAL.reset(token)
    """
    if DECIMAL.get() != ",":
        return text
    if number := COMMA.fullmatch(text):
        return f"{number[1].replace('.', '')}.{number[2]}"
    return None if POINT.fullmatch(text) else text


def field(value: Any) -> Any:
    """A value as a text file gets it: with an apostrophe before what would be a formula, where that is asked for."""
    return f"'{value}" if SAFE.get() and isinstance(value, str) and _computed(value) else value


def fields(values: Iterable[Any]) -> list[Any]:
    return [field(value) for value in values]


def frame_of_fields(frame: pd.DataFrame) -> pd.DataFrame:
    """Its texts and the names of its columns as fields."""
    if not SAFE.get():
        return frame
    safe = frame.set_axis(fields(frame.columns), axis=1)
    for place, kind in enumerate(frame.dtypes):
        if kind.kind not in "biufcmM":
            safe.isetitem(place, fields(frame.iloc[:, place]))
    return safe


def _computed(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.startswith(BEGINNINGS)
    return False
