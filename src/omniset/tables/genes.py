"""Names of genes: one spelling for each, and which of one list are meant by those of another."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Int

from omniset.tables.doubts import FEWEST, counted_from
from omniset.tables.files import TableFile, listed

# ENS, the species (none for human), the kind (G gene, T transcript, P protein, ...), 11 digits, version, and a suffix
# such as _PAR_Y, which tells the copy on chromosome Y from that on X.
ENSEMBL = re.compile(r"(ENS[A-Z]*[A-Z]\d{11})\.\d+(_\w+)?")
PLACES = 100_000  # more than any reference has genes; of a transcriptome the largest id of Entrez is far above
NAMING = re.compile("symbol|name|gene|feature|ensembl|index", re.IGNORECASE)  # columns that may name genes
GENOME = re.compile(r"(?:GRC[a-z]\d+|hg\d+|mm\d+|rn\d+|T2T)[\w.-]*?_+")  # as references of several species have it
MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)"  # genes of worms are called as dec-1
DATE = re.compile(rf"\d\d?-(?i:{MONTH})|{MONTH}-\d\d|\d{{4}}-\d\d-\d\d.*|\d\d?/\d\d?/\d+|\d\.\d+E\+\d+")
ALIAS = re.compile("alias|synonym|prev", re.IGNORECASE)
BEFORE, BEHIND = re.compile(r"[^_:|-]+[_:|-]+"), re.compile(r"[_:|-]+[^_:|-]+$")


@lru_cache(1 << 18)
def canonical(name: str) -> str:
    """A name without spaces around it, an Ensembl id also without its version.

    Example:
        >>> [canonical(n) for n in (" TP53", "ENSG00000141510.17", "ENSG00000182378.15_PAR_Y", "RP11-34P13.7")]
        ['TP53', 'ENSG00000141510', 'ENSG00000182378_PAR_Y', 'RP11-34P13.7']
    """
    name = name.strip()
    match = ENSEMBL.fullmatch(name)
    return match[1] + (match[2] or "") if match else name


@dataclass(frozen=True)
class Match:
    """Which entry of a vocabulary each name stands for.

    Attributes:
        positions: For each name its place in the vocabulary, or -1.
        exact: Number of names that are spelled as in the vocabulary.
        canonical: Number of those that are so without version and spaces.
        aliases: Number of those found as an alias.
        case: Number of those that differ in upper and lower case only.
        duplicates: Entries of the vocabulary that several names stand for, in the vocabulary's order: their values are
            to be summed.
        unmatched: Names that stand for no entry, in order.
        missing: Entries that no name stands for, in order.
    """

    positions: Int[np.ndarray, " names"]
    exact: int
    canonical: int
    aliases: int
    case: int
    duplicates: list[str]
    unmatched: list[str]
    missing: list[str]

    @property
    def matched(self) -> int:
        """Number of names that stand for an entry."""
        return self.exact + self.canonical + self.aliases + self.case

    def sentence(self) -> str:
        """One line for reports.

        Example:
            >>> match(["TP53", "gapdh", "FOO1"], ["TP53", "GAPDH"]).sentence()
            "2 of 3 genes matched (1 by case only), 1 unknown such as 'FOO1'"
        """
        ways = (
            (self.canonical, "by Ensembl id without version"),
            (self.aliases, "by alias"),
            (self.case, "by case only"),
        )
        how = ", ".join(f"{number:,} {way}" for number, way in ways if number)
        parts = [f"{self.matched:,} of {len(self.positions):,} genes matched" + (f" ({how})" if how else "")]
        if self.duplicates:
            one = len(self.duplicates) == 1
            number = "1 name occurs" if one else f"{len(self.duplicates):,} names occur"
            parts.append(f"{number} more than once and {'is' if one else 'are'} summed")
        if self.unmatched:
            parts.append(f"{len(self.unmatched):,} unknown such as {self.unmatched[0]!r}")
        return ", ".join(parts)


def match(names: Sequence[str], vocabulary: Sequence[str], aliases: Mapping[str, str] | None = None) -> Match:
    """Find each name in the vocabulary: as it is; by its canonical form; as an alias; whatever its case.

    The first of these ways that finds an entry is taken. By canonical form and by case a name is found only where it
    can mean one entry alone: of "Abc" and "ABC", "abc" is neither.

    Args:
        aliases: Other names of entries, alias to name.

    Raises:
        ValueError: The vocabulary has an entry twice.
    """
    exact = {name: position for position, name in enumerate(vocabulary)}
    if len(exact) < len(vocabulary):
        name, times = Counter(vocabulary).most_common(1)[0]
        raise ValueError(f"vocabulary must have each gene once, it has {name!r} {times} times")
    same = _unambiguous(vocabulary, canonical)
    folded = _unambiguous(vocabulary, _folded)
    others = aliases or {}

    def find(name: str) -> tuple[int, str]:
        if name in exact:
            return exact[name], "exact"
        plain = canonical(name)
        if plain in same:
            return same[plain], "canonical"
        other = others.get(name, others.get(plain))
        if other is not None:
            position = exact.get(other, same.get(canonical(other), -1))
            if position >= 0:
                return position, "aliases"
        if _folded(name) in folded:
            return folded[_folded(name)], "case"
        return -1, "unmatched"

    entries = [find(name) for name in names]
    ways = Counter(way for _, way in entries)
    positions = np.array([position for position, _ in entries], dtype=np.int64)
    hits = np.bincount(positions[positions >= 0], minlength=len(vocabulary))
    return Match(
        positions=positions,
        exact=ways["exact"],
        canonical=ways["canonical"],
        aliases=ways["aliases"],
        case=ways["case"],
        duplicates=[vocabulary[i] for i in np.flatnonzero(hits > 1).tolist()],
        unmatched=[name for name, (position, _) in zip(names, entries, strict=True) if position < 0],
        missing=[vocabulary[i] for i in np.flatnonzero(hits == 0).tolist()],
    )


def only_count(names: Sequence[str]) -> bool:
    """Whether names of genes are the numbers of rows, all or some of them: these are no names.

    >>> only_count(["0", "1", "2"]), only_count(["3", "17", "204", "205", "9001"]), only_count(["7157", "100130426"])
    (True, True, False)
    """
    if not all(name.isascii() and name.isdecimal() for name in names):
        return False
    numbers = [int(name) for name in names]
    if counted_from([str(number) for number in sorted(numbers)]) is not None:
        return True
    return len(names) >= FEWEST and numbers[-1] < PLACES and all(a < b for a, b in pairwise(numbers))


def gene_names(name: str, var: pd.DataFrame, known: Collection[str] = ()) -> list[str]:
    """What genes are called: the index, or where that only counts a column; without a genome before all of them.

    What is not the index is said, and what a spreadsheet has made of names.

    Args:
        known: Names of others that these should be, canonical.

    Raises:
        ValueError: The index only counts, and no column of var names genes.
    """
    names, said = var.index.tolist(), ""
    rated: dict[tuple[int, bool, int], tuple[str, list[str]]] = {}
    for column, entries in text_columns(var) if only_count(names) else []:
        plain = {entry for entry in entries if " " not in entry}  # no description
        if NAMING.search(column) and len(plain) > 0.9 * len(entries) and not only_count(entries):
            shared = sum(canonical(entry) in known for entry in plain)
            rated[shared, "symbol" in column or "name" in column, -len(rated)] = column, entries
    if rated:
        column, names = rated[max(rated)]
        said = f"genes have no names but numbers, and are called as column {column!r} of var has them"
    elif only_count(names):
        columns = listed([str(column) for column in var.columns]) or "none"
        raise ValueError(
            f"{name}: its genes have no names, {listed(names, 3)} only count them: give them names (adata.var_names), "
            f"or a column 'gene_name' of var; there are: {columns}"
        )
    starts = {found[0] if (found := GENOME.match(gene)) else "" for gene in names}
    if len(starts) == 1 and (start := starts.pop()):
        names, said = [gene.removeprefix(start) for gene in names], f"genes are called without {start!r}, as all begin"
    dates = [gene for gene in names if DATE.fullmatch(gene)]
    doubt = (
        f"a spreadsheet has made dates or numbers of the names of {len(dates):,} genes (as of MARCH1, SEPT2, DEC1), "
        f"such as {listed(dates, 3)}: no other file calls them so"
    )
    for words in (said, doubt if dates else ""):
        if words:
            warnings.warn(f"{name}: {words}", stacklevel=3)
    return names


def respelled(names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Names without what begins or ends many of them, or one part of each: what was left out, and the names.

    >>> dict(respelled(["GRCh38_TP53", "GRCh38_CD4", "mm10___Cd4"]))["without 'GRCh38_'"]
    ['TP53', 'CD4', 'mm10___Cd4']
    """
    for pattern, cut in ((BEFORE, str.removeprefix), (BEHIND, str.removesuffix)):
        ends = Counter(found[0] for name in names if (found := pattern.search(name)))
        for end, times in ends.most_common(3):
            if times > len(names) / 5:
                yield f"without {end!r}", [cut(name, end) for name in names]
    for sign in "_|:-":
        parts = [name.partition(sign) for name in names]
        if sum(bool(tail) for _, _, tail in parts) > 0.9 * len(names):
            yield f"without what is behind {sign!r}", [head for head, _, _ in parts]
            yield f"without what is before {sign!r}", [tail or head for head, _, tail in parts]


def text_columns(var: pd.DataFrame) -> Iterator[tuple[str, list[str]]]:
    """Columns of text, and the index where they are empty."""
    for column in var.columns:
        kind = var[column].dtype
        values = kind.categories.dtype if isinstance(kind, pd.CategoricalDtype) else kind
        if pd.api.types.is_string_dtype(values) or pd.api.types.is_object_dtype(values):
            yield str(column), filled(var, column)


def filled(var: pd.DataFrame, column: str) -> list[str]:
    """A column as text, the index where it is empty."""
    values = var[column]
    empty = values.isna().to_numpy() | (values.astype(str).str.strip() == "").to_numpy()
    return np.where(empty, var.index.to_numpy(dtype=object), values.astype(str).to_numpy(dtype=object)).tolist()


def read_aliases(path: str | Path) -> dict[str, str]:
    """Other names of genes, alias to name, out of a table of two columns: alias, name, unless titles say otherwise.

    A first line of titles is allowed and not needed. An alias that several genes have is left out with a warning, since
    it does not say which one is meant.

    Args:
        path: Ending in .csv or .tsv, may be compressed (.gz, .bz2, .xz), or in .parquet.

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: Not two columns, or an entry is missing.
    """
    file = TableFile(path)
    if len(file.columns) != 2:
        raise file.error(None, f"must have two columns, alias and name, it has {len(file.columns)}")
    columns = sorted(file.columns, key=lambda title: ALIAS.match(title) is None)  # titles say which is which, if any
    # A file without titles: its first line is a pair too. Titles taken for one do no harm.
    pairs = [(columns[0], columns[1])] if file.separator else []
    for chunk in file.chunks():
        alias, name = (chunk.text(column).to_pylist() for column in columns)
        pairs += zip(alias, name, strict=True)
    aliases: dict[str, str] = {}
    several: dict[str, None] = {}
    for alias, name in pairs:
        if aliases.setdefault(alias, name) != name:
            several[alias] = None
    if several:
        warnings.warn(
            f"{path}: {len(several):,} aliases are of several genes and left out, such as {next(iter(several))!r}",
            stacklevel=2,
        )
    return {alias: name for alias, name in aliases.items() if alias not in several}


def _folded(name: str) -> str:
    return canonical(name).casefold()


def _unambiguous(vocabulary: Iterable[str], form: Callable[[str], str]) -> dict[str, int]:
    forms = [form(name) for name in vocabulary]
    times = Counter(forms)
    return {name: position for position, name in enumerate(forms) if times[name] == 1}
