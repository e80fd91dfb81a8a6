"""Names of genomes and families that probably are not meant as they stand: they are kept, and that is said."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

SUMS = re.compile(r"(?:(?:grand|row|column) )?(?:total|sum)s?", re.IGNORECASE)
MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
SPREADSHEET = re.compile(  # dates, errors, and numbers that were cut to a few digits
    rf"\d{{1,2}}-(?:{MONTHS})(?:-\d{{2,4}})?|(?:{MONTHS})-\d{{2}}|#(?:N/A|REF!|NAME\?|VALUE!|DIV/0!|NUM!|NULL!)"
    r"|\d[.,]\d+E\+\d{2,}"
)


def odd_names(what: str, names: Collection[str]) -> Iterator[str]:
    """A sentence for each kind of such names.

    Args:
        what: "genomes" or "families".

    Example:
        >>> list(odd_names("genomes", ["A", "Total"]))
        ["genomes such as 'Total' seem to be sums: leave them out of the table if they are"]
    """
    spelled: dict[str, str] = {}
    alike = []
    for name in sorted(names):
        other = spelled.setdefault(" ".join(name.casefold().split()), name)
        if other != name:
            alike.append((other, name))
    if alike:
        first, second = alike[0]
        yield (
            f"{len(alike)} {what} such as {second!r} differ from another one ({first!r}) in case or spaces only, and "
            "were kept apart: give them one name if they are the same"
        )
    if sums := [name for name in sorted(names) if SUMS.fullmatch(name)]:
        yield f"{what} such as {sums[0]!r} seem to be sums: leave them out of the table if they are"
    if changed := [name for name in sorted(names) if SPREADSHEET.fullmatch(name)]:
        yield f"{len(changed)} {what} such as {changed[0]!r} seem to be what a spreadsheet made of names: restore them"
