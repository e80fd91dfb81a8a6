"""Identifiers of gene families: whose they are, and one spelling for each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache

IDENTIFIER = re.compile(
    r"(?P<COG>COG\d{4,5})|(?P<arCOG>arCOG\d{5})|(?P<KOG>KOG\d{4})|(?P<KO>(?:[kK][oO]:)?K\d{5})"
    r"|(?P<Pfam>PF\d{5}(?:\.\d+)?)|(?P<TIGRFAM>TIGR\d{5}(?:\.\d+)?)|(?P<NCBIfam>NF\d{6}(?:\.\d+)?)"
    r"|(?P<InterPro>IPR\d{6})|(?P<EC>(?:EC[: ]?)?\d+\.(?:\d+|-)\.(?:\d+|-)\.(?:[nB]?\d+|-))"
    r"|(?P<CAZy>(?:GH|GT|PL|CE|AA|CBM)\d+(?:_\d+)?)|(?P<GO>GO:\d{7})|(?P<eggNOG>ENOG\w+)"
)
BETWEEN = re.compile(r"!!!|[\s,;/|+]+")  # what stands between several identifiers in one field
COGS = ("COG", "arCOG", "KOG")  # one naming scheme for three parts of life


def kind_of_identifier(family: str) -> str:
    """Whose identifier this is: "COG", "arCOG", "KO", "Pfam", "EC", "TIGRFAM", "CAZy" and the like, or "other".

    Example:
        >>> [kind_of_identifier(f) for f in ("COG0001", "ko:K00001", "PF00001.21", "group_17")]
        ['COG', 'KO', 'Pfam', 'other']
    """
    match = IDENTIFIER.fullmatch(family)
    return match.lastgroup or "other" if match else "other"


@lru_cache(1 << 18)
def normalise(family: str) -> str:
    """An identifier as we keep it: without spaces around it, version or database prefix.

    Example:
        >>> [normalise(f) for f in ("ko:K00001", " PF00001.21", "2.7.1.1", "group.1")]
        ['K00001', 'PF00001', 'EC:2.7.1.1', 'group.1']
    """
    family = family.strip()
    kind = kind_of_identifier(family)
    if kind == "KO":
        return family[-6:]
    if kind in ("Pfam", "TIGRFAM", "NCBIfam"):
        return family.partition(".")[0]
    if kind == "EC":
        return "EC:" + family.removeprefix("EC").lstrip(": ")
    return family


def several(field: str) -> list[str]:
    """The identifiers in one field, as tools join them.

    Example:
        >>> several("K05845/K05846"), several(" COG0187!!!COG0188, COG0187 "), several("-")
        (['K05845', 'K05846'], ['COG0187', 'COG0188'], [])
    """
    return [name for name in dict.fromkeys(BETWEEN.split(field)) if name not in ("", "-")]


def summary_of_kinds(kinds: Counter[str]) -> str:
    """One word for the kinds of many families: the main one, or "mixed"."""
    if not kinds:
        return "other"
    return "mixed" if len(mixture(kinds)) > 1 else kinds.most_common(1)[0][0]


def mixture(kinds: Counter[str]) -> list[str]:
    """The naming schemes of which at least one family in a hundred is; names of no scheme do not count as one."""
    groups: Counter[str] = Counter()
    for kind, count in kinds.items():
        groups["COG" if kind in COGS else kind] += count
    del groups["other"]
    return [kind for kind, count in groups.most_common() if count * 100 >= kinds.total()]


def distinct(names: Sequence[str], known: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Families of different columns (or rows), each of another name.

    Names of one family that differ in their version only are often columns that were renamed since they had the same
    name (PF00001 and PF00001.1): the second is kept apart, as it stands.

    Args:
        known: Names to keep as they stand.

    Returns:
        The families, and those that were kept apart.

    Raises:
        ValueError: A name is there twice or is empty.
    """
    taken: dict[str, str] = {}
    spelled = set()
    for name in names:
        if not name:
            raise ValueError("has a family without a name")
        if name in spelled:
            header = ": is there a header?" if name.isdigit() else ""
            raise ValueError(f"family {name!r} is there twice{header}")
        spelled.add(name)
    apart = []
    families = []
    for name in names:
        family = name if name in known else normalise(name)
        if family != name and (family in spelled or family in taken):
            family = name
            apart.append(name)
        taken[family] = name
        families.append(family)
    return families, apart
