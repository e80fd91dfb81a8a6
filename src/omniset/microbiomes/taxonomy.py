"""Taxa: read as QIIME 2 has them, cut at a rank, and numbered with their clades at every rank above."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from omniset.tables.files import TextFile, _short

RANKS = ("domain", "phylum", "class", "order", "family", "genus", "species")
PREFIX = re.compile(r"^(?:(sk|[dkpcofgst])__|D_(\d+)__)")
LETTERS = {"d": 0, "k": 0, "sk": 0, "p": 1, "c": 2, "o": 3, "f": 4, "g": 5, "s": 6, "t": 7}
NO_NAME = ("", "na", "nan", "none", "unassigned", "unclassified", "unknown")
FEATURE = ("feature id", "feature-id", "featureid", "feature_id", "#otu id", "#otuid", "otu id", "id", "#id", "name")
TAXON = ("taxon", "taxonomy", "lineage", "consensus lineage")
UNASSIGNED = "Unassigned"
Lineage = tuple[str, ...]  # a name for each rank from the first on, as the file spells it


def read_taxonomy(path: str | Path) -> dict[str, Lineage]:
    """The lineage of each feature, from a tab-separated table of names and taxa such as QIIME 2's.

    Taxa are names with semicolons between, with prefixes of their ranks (d__, k__, D_0__) or without. Ranks without a
    name at the end are left away; one between others keeps its place, with its prefix as its name.

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: A line without a taxon, a name that comes twice, ranks out of order, a damaged file.
    """
    file = TextFile(path)
    found: dict[str, Lineage] = {}
    name_at, taxon_at, first = 0, 1, True
    for row, line in file.lines():
        if not line.strip() or line.startswith("#q2:types"):
            continue
        cells = [cell.strip().strip('"') for cell in line.split("\t")]
        if first:
            first = False
            header = [cell.lower() for cell in cells]
            if header[0] in FEATURE or header[-1] in TAXON:
                taxa = [i for i, cell in enumerate(header) if cell in TAXON]
                names = [i for i, cell in enumerate(header) if cell in FEATURE and i not in taxa]
                if not taxa or not names:
                    raise file.error(row, f"must name a column Feature ID and one Taxon, has {', '.join(cells)}")
                name_at, taxon_at = names[0], taxa[0]
                continue
        if len(cells) <= max(name_at, taxon_at) or not cells[name_at]:
            raise file.error(row, f"must have a name and a taxon with a tab between, is {_short(line[:60])}")
        name = cells[name_at]
        if name in found:
            raise file.error(row, f"has {name!r} a second time")
        try:
            found[name] = lineage_of(cells[taxon_at])
        except ValueError as error:
            raise file.error(row, str(error)) from None
    if not found:
        raise file.error(None, "has no taxa: it needs lines of a name and a taxon with a tab between")
    return found


def lineage_of(text: str) -> Lineage:
    """A taxon in its parts.

    Raises:
        ValueError: Prefixes of ranks that are not one below the other.

    >>> lineage_of("k__Bacteria; p__; c__Bacilli; o__")
    ('k__Bacteria', 'p__', 'c__Bacilli')
    >>> lineage_of("Unassigned")
    ()
    """
    return checked(text.strip().strip(";").split(";"), text)


def checked(names: Sequence[Any], said: object) -> Lineage:
    """A lineage of the names of its ranks, without those at its end that are none.

    Args:
        said: For the error: what the user gave.

    Raises:
        ValueError: As `lineage_of`, or something that is no text.
    """
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"the taxon {said!r} is no text and no tuple of names")
    parts = [name.strip() for name in names]
    for place, part in enumerate(parts):
        if (rank := _rank(part)) is not None and rank != place:
            raise ValueError(f"the taxon {said!r} has {part!r} at rank {place + 1}, {_ordinal(place)} belongs there")
    while parts and bare(parts[-1]).lower() in NO_NAME:
        parts.pop()
    return tuple(parts)


def lineages_of(taxonomy: Mapping[str, Any]) -> dict[str, Lineage]:
    """Taxa by name, as text or as the names of their ranks.

    Raises:
        ValueError: As `lineage_of`, with the name; or something that is neither.
    """
    found = {}
    for name, taxon in taxonomy.items():
        try:
            if isinstance(taxon, str):
                found[name] = lineage_of(taxon)
            else:
                found[name] = checked(taxon if isinstance(taxon, Sequence) else [taxon], taxon)
        except ValueError as error:
            raise ValueError(f"taxonomy: {name!r}: {error}") from None
    return found


def _rank(part: str) -> int | None:
    found = PREFIX.match(part)
    if found is None:
        return None
    return LETTERS[found[1]] if found[1] else int(found[2])


def _ordinal(rank: int) -> str:
    return RANKS[rank] if rank < len(RANKS) else f"rank {rank + 1}"


def bare(name: str) -> str:
    """A name without its prefix.

    >>> bare("g__Bacillus"), bare("Bacillus"), bare("D_5__Bacillus")
    ('Bacillus', 'Bacillus', 'Bacillus')
    """
    return PREFIX.sub("", name)


def joined(lineage: Lineage) -> str:
    """As QIIME 2 reads it."""
    return "; ".join(lineage) or UNASSIGNED


@dataclass
class Taxa:
    """The taxa that a model knows, with their clades.

    Attributes:
        lineages: Of each taxon, down to its rank.
        ranks: Names of the ranks.
        clade: (ranks, taxa) number of the taxon's clade at each rank.
    """

    lineages: list[Lineage]
    ranks: Sequence[str]
    clade: Int[np.ndarray, "ranks taxa"]

    @classmethod
    def of(cls, lineages: Sequence[Lineage]) -> Taxa:
        """All of one depth."""
        depth = len(lineages[0])
        clade = []
        for rank in range(1, depth + 1):
            number = {prefix: i for i, prefix in enumerate(dict.fromkeys(lineage[:rank] for lineage in lineages))}
            clade.append([number[lineage[:rank]] for lineage in lineages])
        return cls([*lineages], RANKS[:depth], np.array(clade))

    def __len__(self) -> int:
        return len(self.lineages)


def depth_of(rank: str) -> int:
    """How many names a lineage down to this rank has.

    Raises:
        ValueError: Another rank.
    """
    if rank not in RANKS:
        raise ValueError(f"rank must be one of {', '.join(RANKS)}, got {rank!r}")
    return RANKS.index(rank) + 1


def cut(lineage: Lineage, depth: int) -> Lineage | None:
    """The lineage down to a rank; None where it has no name there.

    >>> cut(("d__A", "p__", "c__C"), 2), cut(("d__A",), 2)
    (None, None)
    """
    return lineage[:depth] if len(lineage) >= depth and bare(lineage[depth - 1]).lower() not in NO_NAME else None


def names_at(lineages: Mapping[str, Lineage], rank: int) -> Iterator[tuple[str, str]]:
    """Feature and bare name at a rank (from 0), of those that have one."""
    for feature, lineage in lineages.items():
        if cut(lineage, rank + 1) is not None:
            yield feature, bare(lineage[rank])
