"""Which columns of a table are features, where nobody has named them: all, and an error where one is hardly meant.

A row index that was written with the table, or a misspelt name of a column that has a meaning of its own, would be
learned from like a measurement, and, where rows are sorted by label, win.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
