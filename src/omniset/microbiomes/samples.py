"""Feature tables of sequences: how often each was seen in each sample, and what is known of its taxon."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import scipy.sparse as sp

from omniset.microbiomes.sequences import SHORTEST
from omniset.microbiomes.taxonomy import Lineage, lineages_of
from omniset.runs.files import replacing
from omniset.tables import spreadsheets
from omniset.tables.counts import read_feature_table
from omniset.tables.dna import OTHER, PLAIN


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
