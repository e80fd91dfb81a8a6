"""Questions that every reader asks of the data, where files can contradict what is assumed of them.

Names that only count are no names, a join that loses much is no success, and equal rows are no result. Each question is
asked here once; readers give the words for what they read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from omniset.tables.files import listed

WARNED = 1 / 3  # of the names of one file that a join loses: said
REFUSED = 2 / 3  # the same: refused
FEWEST = 5  # names, and rows, of which a share says something
TRIED = 3  # names that may begin or end otherwise


class Affix(NamedTuple):
    """What stands before and behind all of some names."""

    prefix: str
    ending: str

    def __str__(self) -> str:
        said = (f"begin with {self.prefix!r}" if self.prefix else "", f"end in {self.ending!r}" if self.ending else "")
        return " and ".join(part for part in said if part)

    def without(self, name: str) -> str | None:
        """The name without both; None where it has not both."""
        inside = len(name) - len(self.prefix) - len(self.ending)
        if inside <= 0 or not (name.startswith(self.prefix) and name.endswith(self.ending)):
            return None
        return name[len(self.prefix) : len(self.prefix) + inside]


def counted_from(names: Sequence[str]) -> int | None:
    """0 or 1 where names are the whole numbers from there on, in this order: they only count. Else None.

    >>> [counted_from(names) for names in (["0", "1", "2"], ["1", "2"], ["7157", "7158"], ["1", "0"], ["01"], [])]
    [0, 1, None, None, None, None]
    """
    for start in (0, 1):
        if names and all(name == str(number) for number, name in enumerate(names, start)):
            return start
    return None


def affix(lost: Sequence[str], others: Collection[str]) -> Affix | None:
    """What stands before or behind all of these names, and without which each is one of the others, and only one is.

    >>> affix(["7Networks_LH_Vis_1", "7Networks_LH_Vis_2"], {"LH_Vis_1", "LH_Vis_2", "Thalamus"})
    Affix(prefix='7Networks_', ending='')
    >>> affix(["A01.FCS", "B07.FCS"], {"A01", "B07"})
    Affix(prefix='', ending='.FCS')

    Letters, digits and signs are cut apart where they meet, so that "11" is never "1" behind a 1.

    >>> affix(["11", "12"], {"1", "2"})
    """
    others = set(others)
    if not lost or not others:
        return None
    for found in chain.from_iterable(_affixes(name, others) for name in lost[:TRIED]):
        inside = [found.without(name) for name in lost]
        if all(name in others for name in inside) and len(set(inside)) == len(inside):
            return found
    return None


def _affixes(name: str, others: set[str]) -> list[Affix]:
    """Of one name, the shortest first."""
    size = len(name)
    pieces = ((start, stop) for start in range(size) for stop in range(start + 1, size + 1))
    found = [at for at in pieces if at != (0, size) and name[slice(*at)] in others and _parts(name, at)]
    return [Affix(name[:start], name[stop:]) for start, stop in sorted(found, key=lambda at: at[0] - at[1])]


def _parts(name: str, ends: tuple[int, int]) -> bool:
    """Whether other kinds of letters meet at these places."""
    kinds = ["letter" if letter.isalpha() else "digit" if letter.isdigit() else "sign" for letter in name]
    inner = [place for place in ends if 0 < place < len(name)]
    return all("sign" in kinds[at - 1 : at + 1] or kinds[at - 1] != kinds[at] for at in inner)


def judge_join(
    lost: Sequence[str],
    total: int,
    others: Collection[str],
    *,
    file: str,
    other: str,
    what: str,
    refused: float = REFUSED,
) -> str:
    """What to warn of where a join by names loses some of a file's; "" where little is lost.

    A third and more is said. Two thirds are refused, and so is any loss that a common beginning or ending of all lost
    names explains, by which both files mean the same: a reader that can tell joins without it (`affix`) before it asks.

    Args:
        lost: Names of `file` that the other one lacks.
        total: Names of `file`.
        others: Names of the other file that have no partner.
        file, other: What the files are called.
        what: Names of what, as "regions".
        refused: From which share on; more than 1 where a name may lack a partner.

    Raises:
        ValueError: Such a share is lost, or all lost ones differ by what they begin with or end in.

    >>> judge_join(["x", "y"], 5, ["z"], file="a.csv", other="b.csv", what="sets")
    "a.csv: 2 of 5 sets are not in b.csv, such as 'x', 'y'"
    """
    if not lost:
        return ""
    said = f"{file}: {len(lost):,} of {total:,} {what} are not in {other}, such as {listed(list(lost), 3)}"
    for names, pool, here, there in ((lost, others, file, other), (list(others), lost, other, file)):
        many = len(names) >= TRIED or len(names) == total
        if many and (found := affix(names, pool)) is not None:
            raise ValueError(
                f"{said}: those of {here} all {found}, which {there} lacks: give both files the same names"
            )
    share = len(lost) / total
    if share >= refused and total >= FEWEST:
        few = f", which has such as {listed(list(others)[:3], 3)}" if others else ""
        raise ValueError(f"{said}{few}: give both files the same names, or leave out of {file} what is not meant")
    return said if share >= WARNED else ""


def refuse_equal_rows(
    rows: Shaped[np.ndarray, "rows columns"], names: Sequence[object], *, file: str, what: str
) -> None:
    """See that an output tells its rows apart.

    Args:
        rows: One for each name, without rows that are known to be empty.
        what: What a row is, as "cells".

    Raises:
        ValueError: More than half of at least 5 rows are the same to the bit.
    """
    if len(rows) < FEWEST or not rows.shape[1]:
        return
    keys = [row.tobytes() for row in np.ascontiguousarray(rows)]
    most, times = Counter(keys).most_common(1)[0]
    if 2 * times > len(keys):
        same = [str(names[at]) for at, key in enumerate(keys) if key == most]
        raise ValueError(
            f"{file}: {times:,} of {len(keys):,} {what} come out the same, such as {listed(same, 3)}: look whether "
            "their values are what they should be (counts that were scaled or rounded, columns that were not read)"
        )
