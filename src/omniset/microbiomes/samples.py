"""Feature tables of sequences: how often each was seen in each sample, and what is known of its taxon."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import scipy.sparse as sp

from omniset.microbiomes.sequences import SHORTEST, alike
from omniset.microbiomes.taxonomy import Lineage, lineages_of
from omniset.report.blocks import many
from omniset.runs.files import replacing
from omniset.tables import spreadsheets
from omniset.tables.counts import read_feature_table
from omniset.tables.dna import OTHER, PLAIN
from omniset.tables.files import TableFile


@dataclass
class Samples:
    """Counts of features in samples.

    Attributes:
        names: Of the samples.
        features: Their identifiers.
        counts: (samples, features), from 0 to 1e15.
        taxa: Lineages that the table itself gives, by feature.
    """

    names: list[str]
    features: list[str]
    counts: sp.csr_array
    taxa: dict[str, Lineage] = field(default_factory=dict)

    def turned(self) -> Samples:
        """With features as samples and the other way round."""
        return Samples(self.features, self.names, sp.csr_array(self.counts.T))


def read_samples(path: str | Path) -> Samples:
    """A feature table, with its taxa where they can be read (omniset.tables.counts.read_feature_table).

    Raises:
        OSError, ValueError: As it does.
    """
    table = read_feature_table(path)
    return Samples(table.names, table.features, table.counts, _taxa(Path(path), table.taxa))


def _taxa(path: Path, texts: dict[str, str]) -> dict[str, Lineage]:
    """Lineages in a table, which few commands need: unreadable ones are left out with a warning."""
    try:
        return lineages_of(texts)
    except ValueError as error:
        warnings.warn(f"{path}: its taxa are left out: {error}", stacklevel=3)
        return {}


@dataclass
class Column:
    """What a column of a table says of samples.

    Attributes:
        name: Of the column.
        values: Of each sample; empty: not known.
    """

    name: str
    values: list[str]

    def order(self) -> list[int]:
        """The samples by their values, as numbers where all are some; those without one last."""
        try:
            numbers: list[Any] = [float(value or "inf") for value in self.values]
        except ValueError:
            numbers = self.values
        return sorted(range(len(self.values)), key=lambda i: (not self.values[i], numbers[i]))


def read_column(path: str | Path, column: str, samples: Sequence[str]) -> Column:
    """A column of a table whose first one has names of samples, such as QIIME 2's sample metadata.

    Raises:
        OSError, ValueError: The table cannot be read, has no such column, names none of the samples, or one twice.
    """
    file = TableFile(path)
    file.require([column])
    value_of: dict[str, str] = {}
    for chunk in file.chunks([file.columns[0], column]):
        values = ["" if value is None else str(value).strip() for value in chunk.columns[column].to_pylist()]
        for row, (name, value) in enumerate(zip(chunk.text(file.columns[0]).to_pylist(), values, strict=True)):
            if name in value_of:
                raise chunk.error(row, file.columns[0], f"has the sample {name!r} a second time")
            value_of[name] = value
    lacking = [name for name in samples if name not in value_of]
    if len(lacking) == len(samples):
        raise ValueError(
            f"{path}: column {file.columns[0]!r} has none of the samples, which are such as {samples[0]!r}; it has "
            f"such as {next(iter(value_of), None)!r}{alike(samples, value_of)}"
        )
    if lacking:
        warnings.warn(f"{path}: {many(len(lacking), 'sample')} not there, such as {lacking[0]!r}", stacklevel=2)
    return Column(column, [value_of.get(name, "") for name in samples])


def write_samples(path: Path, samples: Samples) -> None:
    """A table as text, as `read_samples` reads it."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write("\t".join(["#OTU ID", *spreadsheets.fields(samples.names)]) + "\n")
        by_feature = samples.counts.tocsc()
        for start in range(0, len(samples.features), 1000):
            block = by_feature[:, start : start + 1000].toarray().T
            for name, row in zip(samples.features[start : start + 1000], block, strict=True):
                file.write("\t".join([spreadsheets.field(name), *(f"{value:.0f}" for value in row)]) + "\n")


def are_sequences(features: Sequence[str]) -> bool:
    """Whether the identifiers are the sequences themselves, as DADA2 has them."""
    return all(len(name) >= SHORTEST and not OTHER.search(name.translate(PLAIN)) for name in features)
