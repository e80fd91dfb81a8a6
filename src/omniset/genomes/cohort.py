"""Completed genomes summed up: a line each, sums by family and by functional category, all calls of a few."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from omniset.genomes.completion import Completion

MOST_CHANGED = 60  # genomes whose calls are kept

# Galperin et al., "COG database update: focus on microbial diversity, model organisms, and widespread pathogens", 2021.
COG = {
    "J": "Translation, ribosomal structure and biogenesis",
    "A": "RNA processing and modification",
    "K": "Transcription",
    "L": "Replication, recombination and repair",
    "B": "Chromatin structure and dynamics",
    "D": "Cell cycle control, cell division, chromosome partitioning",
    "Y": "Nuclear structure",
    "V": "Defense mechanisms",
    "T": "Signal transduction mechanisms",
    "M": "Cell wall/membrane/envelope biogenesis",
    "N": "Cell motility",
    "Z": "Cytoskeleton",
    "W": "Extracellular structures",
    "U": "Intracellular trafficking, secretion, and vesicular transport",
    "O": "Posttranslational modification, protein turnover, chaperones",
    "X": "Mobilome: prophages, transposons",
    "C": "Energy production and conversion",
    "G": "Carbohydrate transport and metabolism",
    "E": "Amino acid transport and metabolism",
    "F": "Nucleotide transport and metabolism",
    "H": "Coenzyme transport and metabolism",
    "I": "Lipid transport and metabolism",
    "P": "Inorganic ion transport and metabolism",
    "Q": "Secondary metabolites biosynthesis, transport and catabolism",
    "R": "General function prediction only",
    "S": "Function unknown",
}

SUMMARY = (  # columns
    *("genome", "completeness", "contamination", "quality", "observed", "expected", "low", "high", "called", "kept"),
    *("added", "removed", "unknown_families", "unknown_share", "novelty", "nearest_reference", "far", "method"),
    "warnings",
)


def summary_row(one: Completion) -> dict[str, Any]:
    """A genome in a line."""
    observed, unknown = int(one.observed.sum()), len(one.unknown)
    return {
        "genome": one.name,
        "completeness": round(one.completeness, 2),
        "contamination": round(one.contamination, 2),
        "quality": "given" if one.given else "estimated",
        "observed": observed,
        "expected": round(one.expected, 2),
        "low": round(one.low, 2),
        "high": round(one.high, 2),
        "called": int(one.call.sum()),
        "kept": int((one.call & one.observed).sum()),
        "added": int(one.added.sum()),
        "removed": int(one.removed.sum()),
        "unknown_families": unknown,
        "unknown_share": round(unknown / max(observed + unknown, 1), 4),
        "novelty": round(one.novelty, 4),
        "nearest_reference": one.nearest,
        "far": one.far,
        "method": one.method,
        "warnings": "; ".join(one.warnings),
    }


@dataclass
class Cohort:
    """What is kept of completed genomes to report on: a line each, sums over them by family, and all calls of the few
    that changed most.
    """

    families: list[str]
    vocabulary: pd.DataFrame
    rows: list[dict[str, Any]] = field(default_factory=list, init=False)
    most_changed: list[tuple[int, int, str, np.ndarray, np.ndarray]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.sums = {name: np.zeros(len(self.families)) for name in ("observed", "expected", "added", "removed")}

    def add(self, one: Completion) -> None:
        added, removed, observed = one.added, one.removed, one.observed
        for name, values in zip(self.sums, (observed, one.probability, added, removed), strict=True):
            self.sums[name] += values
        # A heap: the genome that changed least, of those the latest, is on top.
        entry = (int(added.sum() + removed.sum()), -len(self.rows), one.name, observed, one.call)
        push = heapq.heappush if len(self.most_changed) < MOST_CHANGED else heapq.heappushpop
        push(self.most_changed, entry)
        self.rows.append(summary_row(one))

    @property
    def summary(self) -> pd.DataFrame:
        """A row per genome, as `summary_row` has it."""
        return pd.DataFrame(self.rows, columns=[*SUMMARY])

    @property
    def by_family(self) -> pd.DataFrame:
        """The vocabulary with sums over the genomes: observed, expected, added, removed."""
        return self.vocabulary.reset_index(drop=True).assign(**self.sums)

    @property
    def by_category(self) -> pd.DataFrame:
        """Index category; `families` and the sums of `by_family`. A family of several categories counts for each."""
        rows = self.by_family.assign(families=1)
        rows["category"] = rows["category"].map(categories_of)
        rows = rows.explode("category").dropna(subset="category")
        return rows.groupby("category")[["families", *self.sums]].sum()


def categories_of(text: str) -> list[str]:
    """Letters of COG count each; any other text is one category.

    >>> categories_of("CE"), categories_of("transport"), categories_of("")
    (['C', 'E'], ['transport'], [])
    """
    if text in ("", "-"):
        return []
    return list(dict.fromkeys(text)) if set(text) <= COG.keys() else [text]
