"""Which columns of a table are features, where nobody has named them: all, and an error where one is hardly meant.

A row index that was written with the table, or a misspelt name of a column that has a meaning of its own, would be
learned from like a measurement, and, where rows are sorted by label, win.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Int, Real

RESERVED = ("set", "multiplicity", "element")
MISSING = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "none")  # what programs write where there is nothing
SPELLED = {  # without spaces, underscores and case
    **dict.fromkeys(("set", "sets", "setid", "setids", "setname", "setnames"), "set"),
    **dict.fromkeys(("element", "elements", "elementid", "elementids", "elementname", "elementnames"), "element"),
    **dict.fromkeys(("multiplicity", "multiplicities", "count", "counts", "n", "copies"), "multiplicity"),
    **dict.fromkeys(("weight", "weights", "abundance", "abundances", "reads", "nreads", "readcount"), "multiplicity"),
    **dict.fromkeys(("freq", "frequency", "frequencies", "mult", "num"), "multiplicity"),
}
UNNAMED = re.compile(r"(Unnamed: \d+.*)?")  # what pandas calls a column without a name, such as its own row index
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
BOUND = "a bound of a number"
WRITINGS = {  # of numbers and dates, of which each would be a category
    "a number whose comma is of thousands, or of decimals, as --decimal , reads it": r"[+-]?[1-9]\d{0,2},\d{3}",
    "a number with a comma (--decimal , reads decimal commas)": r"[+-]?(\d{1,3}(\.\d{3})+|\d*),\d+(e[+-]?\d+)?",
    "a number with separators of thousands": r"[+-]?\d{1,3}([ ,'\xa0\u2009\u202f]\d{3})+(\.\d+)?",
    "a number in percent": NUMBER + r"\s?%",
    BOUND: r"([<>≤≥~]|[<>]=)\s?" + NUMBER + r"\s?%?",
    "a number with another minus than -": "[\u2212\u2013]" + NUMBER,
    "a date": r"\d{4}([-/.])\d{1,2}\1\d{1,2}([T ].*)?|[0-3]?\d([-/.])[0-3]?\d\3(\d\d){1,2}( .*)?",
    "a time": r"\d{1,2}:\d\d:\d\d(\.\d+)?",
    "a number with a unit": NUMBER + r"\s?[a-zµμ°Ω]+(/[a-z]+)?",
}
MANY = 10  # numbers with a unit, or labels: fewer are categories, such as 10x and 5x
INDEX = ("index", "level0")  # what it calls an index that has become a column
LEAST = 10  # rows; in fewer, a feature may count them by chance


def meant(name: str) -> str | None:
    """The column with a meaning of its own that this name is a spelling of."""
    return SPELLED.get(_plain(name))


def doubt(name: str) -> str | None:
    """Why a column of this name is hardly a feature, and what to do about it; None: it may be one."""
    if UNNAMED.fullmatch(name):
        return "is a row index without a name: write the table with index=False"
    reserved = meant(name)
    return None if reserved is None else f"its name is nearly {reserved!r}: rename it if it is that"


def writing(text: str) -> str | None:
    """In which other writing this is a number, or a date.

    >>> writing("1.234,5"), writing("HE"), writing("2 mg/kg")
    ('a number with a comma (--decimal , reads decimal commas)', None, 'a number with a unit')
    """
    return next((what for what, form in WRITINGS.items() if re.fullmatch(form, text.strip(), re.IGNORECASE)), None)


def written(texts: Iterable[str], least: int = 1) -> tuple[str, str] | None:
    """Of the different texts of a column, one of a number or a date in another writing, where half of them are.

    Args:
        least: That are in one writing. Bounds, as "<1%" beside "1-50%", are categories.

    >>> written(["1,5", "n.d.", "2,25"]), written(["HE", "PAS", "10%"]), written(["5 mg", "10 mg"])
    (('1,5', 'a number with a comma (--decimal , reads decimal commas)'), None, None)
    """
    found = {text: writing(text) for text in texts}
    counts = Counter(what for what in found.values() if what not in (None, BOUND))
    what, times = max(counts.items(), key=lambda one: one[1], default=("", 0))
    if times < max(MANY if "unit" in what else least, 1) or 2 * sum(counts.values()) < len(found):
        return None
    return next(text for text in found if found[text] == what), what


class RowNumbers:
    """Which columns only count the rows, of the table or of each set, from 0 or from 1. Told block by block."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        # By the four ways of counting that `see` goes through: columns that no row has contradicted.
        self._counting = np.ones((4, len(self._names)), dtype=bool)
        self._index: Bool[np.ndarray, " columns"] = np.array([_plain(name) in INDEX for name in self._names])
        self._rows = self._largest = 0

    def see(self, values: Real[np.ndarray, "rows columns"], places: Int[np.ndarray, " rows"]) -> None:
        """The next rows, and the place of each of them in its set, from 0."""
        if not len(values):
            return
        rows = self._rows + np.arange(len(values))
        for counting, numbers in zip(self._counting, (rows, rows + 1, places, places + 1), strict=True):
            expected = numbers.astype(values.dtype)
            left = np.flatnonzero(counting)
            left = left[values[-1, left] == expected[-1]]
            counting[:] = False
            counting[left[(values[:, left] == expected[:, None]).all(0)]] = True
        named = np.flatnonzero(self._index)
        self._index[named] = ((values[:, named] >= 0) & (values[:, named] % 1 == 0)).all(0)
        self._rows += len(values)
        self._largest = max(self._largest, int(places.max()) + 1)

    def doubt(self) -> tuple[str, str] | None:
        """The first column that counts, and what to say of it. Places in sets of one or two rows tell nothing."""
        counts = np.asarray(self._counting[:2].any(0))
        within = np.asarray(self._counting[2:].any(0)) & (self._largest > 2)
        enough = self._rows >= LEAST
        for name, row, place, index in zip(self._names, counts, within, self._index, strict=True):
            if (enough and (row or place)) or index:
                what = "is an index" if index else "only counts the rows"
                what += " of each set" if place and not (row or index) else ""
                return name, f"{what}: write the table without it"
        return None


def _plain(name: str) -> str:
    return re.sub(r"[\s_.-]+", "", name).casefold()
