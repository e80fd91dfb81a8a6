"""What is said of one genome: probabilities, calls, how many families it should have, how near its references are; and
of many: the tables that are written, and the sums that are reported.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from omniset.genomes.calibration import Level, PerFamily, Present, Rule
from omniset.genomes.metadata import Quality
from omniset.genomes.model import EvidenceModel
from omniset.genomes.noise import Observed
from omniset.genomes.readers import Genome
from omniset.genomes.references import SURE
from omniset.genomes.training import COMPLETENESS, CONTAMINATION
from omniset.tables.doubts import judge_join

About = tuple[float, float, bool, float, str]  # completeness, contamination, given, novelty, nearest
NEAREST = 15  # references that are listed
AT_ONCE = 64  # genomes without one of their families that are completed together
MEANING = {
    "neighbours": "what reference genomes like it have",
    "likeliest": "what the 15 likeliest of them have",
    "components": "what principal components of its families say",
    "context": "what the set of all its families says",
    "evidence": "that it {seen}, at this completeness and contamination",
    "shift": "how often such families, not observed, are there all the same, and how many must be",
}


@dataclass
class Completion:
    """What is said of one genome. Families are those of the vocabulary, in its order.

    Attributes:
        name: Of the genome.
        counts: (families,) copies observed.
        log_odds: (families,) natural logarithm of p / (1 - p), p the probability that the complete genome has it.
        call: (families,) whether it is called present.
        unknown: Copies of observed families that are not in the vocabulary, of which nothing is said.
        completeness, contamination: In percent, as given; or estimated where not.
        given: Both were given.
        expected, low, high: Number of families of the complete genome, with an interval of 95 %.
        novelty: 1 - estimated Jaccard similarity to the nearest reference genome.
        nearest: That reference.
        far: Farther than 95 % of the validation genomes, whose clades were kept back.
        warnings: A sentence each.
    """

    name: str
    counts: Int[np.ndarray, " families"]
    log_odds: Float[np.ndarray, " families"]
    call: Bool[np.ndarray, " families"]
    unknown: dict[str, int]
    completeness: float
    contamination: float
    given: bool
    expected: float
    low: float
    high: float
    novelty: float
    nearest: str
    far: bool
    warnings: list[str] = field(default_factory=list)

    @property
    def probability(self) -> PerFamily:
        return 1 / (1 + np.exp(-self.log_odds))

    @property
    def observed(self) -> Present:
        return self.counts > 0

    @property
    def added(self) -> Present:
        return self.call & ~self.observed

    @property
    def removed(self) -> Present:
        return ~self.call & self.observed

    @property
    def unknown_share(self) -> float:
        """Of the families that were observed."""
        return len(self.unknown) / max(int(self.observed.sum()) + len(self.unknown), 1)


def complete(
    genome: Genome,
    counts: Int[np.ndarray, " families"],
    log_odds: PerFamily,
    unknown: dict[str, int],
    about: About,
    level: Level,
    rule: Rule,
) -> Completion:
    """Call families, and sum up. The probabilities of a genome that is far from the references are drawn towards what
    was observed.

    Args:
        counts, log_odds, unknown: See `Completion`.
        about: Its completeness, contamination, given, novelty and nearest.
        level: What validation says of genomes of this quality.
    """
    completeness, contamination, given, novelty, _ = about
    far = bool(novelty > level.novelty)
    probability, size = 1 / (1 + np.exp(-log_odds)), level.size(log_odds, counts > 0, given)
    if far:
        log_odds = _shrunken(log_odds, counts > 0, novelty, level.novelty)
        probability = 1 / (1 + np.exp(-log_odds))
        expected = float(probability.sum())
        size = expected, min(size[1], expected), max(size[2], expected)
    call, notes = rule.call(probability, counts > 0, level)
    if not counts.any():
        notes.append("no family that the model knows was observed: probabilities are the prior")
    elif far:
        notes.append(
            "farther from the reference genomes than 95 % of those of validation clades: trust it less; probabilities "
            "were drawn towards what was observed"
        )
    if len(unknown) > 0.1 * max(len(genome.families), 1):
        notes.append(f"{len(unknown)} of its {len(genome.families)} families are not in the vocabulary")
    lowest, highest = 100 * COMPLETENESS[0], 100 * CONTAMINATION[1]
    if completeness < lowest:
        notes.append(f"completeness {completeness:.1f} % is below what was trained on, {lowest:g} %")
    if contamination > highest:
        notes.append(f"contamination {contamination:.1f} % is above what was trained on, {highest:g} %")
    return Completion(genome.name, counts, log_odds, call, unknown, *about[:3], *size, *about[3:], far, notes)


def _shrunken(log_odds: PerFamily, observed: Present, novelty: float, most: float) -> PerFamily:
    """Log-odds of (1 - s) p + s o, o what was observed, s = min(2 (n - l) / (1 - l), 1), n the genome's novelty, l its
    limit: from halfway between the limit and nothing in common on, the references say nothing.
    """
    limit = min(most, 1 - 1e-6)
    share = min(2 * (novelty - limit) / (1 - limit), 1.0)
    p = (1 - share) / (1 + np.exp(-log_odds)) + share * observed
    p = np.clip(p, 1e-9, 1 - 1e-9)
    return np.log(p) - np.log1p(-p)


@dataclass
class Matching:
    """Which genomes had no quality, which qualities no genome, and which genomes unknown families."""

    quality: Quality | None
    number: int = 0
    lacking: list[str] = field(default_factory=list)
    rows: set[int] = field(default_factory=set)
    shares: list[float] = field(default_factory=list)
    far: list[str] = field(default_factory=list)

    def add(self, one: Completion) -> None:
        self.number += 1
        if one.far and one.observed.any():
            self.far.append(one.name)
        self.shares.append(one.unknown_share)
        if self.quality is not None:
            self.rows.add(self.quality.row_of(one.name))
            if not one.given:
                self.lacking.append(one.name)

    def warn(self, families: Sequence[str]) -> None:
        """Warn of what may be wrong.

        Raises:
            ValueError: There is no quality of any of the genomes.
        """
        if self.quality is not None and self.number:
            self._warn_of_quality(self.quality)
        if self.far:
            warnings.warn(
                f"{len(self.far)} of {self.number} genomes, such as {self.far[0]!r}, are far from the model's "
                "reference genomes: it knows nothing like them. Their probabilities were drawn to what was observed, "
                "and completeness that is estimated may be wrong. Fit a model on their relatives",
                stacklevel=2,
            )
        several = sum(share > 0 for share in self.shares)
        if several:
            mean = float(np.mean(self.shares))
            warnings.warn(
                f"{several} genomes have families that are not among the model's {len(families):,}, {mean:.2%} of all "
                "on average: nothing is said of these, they are kept and flagged 'unknown'"
                + (". Was the model fitted on other identifiers?" if mean > 0.5 else ""),
                stacklevel=2,
            )

    def _warn_of_quality(self, quality: Quality) -> None:
        if self.rows == {-1}:
            raise ValueError(
                f"quality must have the completeness and contamination of these genomes, such as {self.lacking[0]!r}: "
                f"it has none of them, its names are such as {quality.names[0]!r}"
            )
        unused = [name for row, name in enumerate(quality.names) if row not in self.rows]
        judge_join(
            self.lacking, self.number, unused, file="table", other="the quality", what="genomes", refused=math.inf
        )
        if self.lacking:
            warnings.warn(
                f"quality does not give both completeness and contamination of {len(self.lacking)} genomes, such as "
                f"{self.lacking[0]!r}: what is not given is estimated from marker families",
                stacklevel=2,
            )
        if unused:
            warnings.warn(
                f"quality: {len(unused)} of its {len(quality.names)} genomes are not in the table", stacklevel=2
            )


# ---------------------------------------------------------------------- why


@dataclass
class Explanation:
    """Why a family was called present, or absent, in a genome.

    Attributes:
        log_odds: Of the family.
        terms: What they are the sum of: neighbours, likeliest, components, context, evidence, shift.
        families: A row per observed family: `family`, `count`, `change` (log-odds now minus those without it, its
            count set to 0 and all else as it is).
        references: The nearest reference genomes: `genome`, `similarity`, `has_family`, lineage.
    """

    genome: str
    family: str
    observed: bool
    log_odds: float
    terms: dict[str, float]
    families: pd.DataFrame
    references: pd.DataFrame

    @property
    def probability(self) -> float:
        return float(1 / (1 + np.exp(-self.log_odds)))

    def lines(self, description: str, top: int) -> Iterator[str]:
        """In words: terms, near references, and so many families."""
        seen = "was observed" if self.observed else "was not observed"
        named = f"{self.family} ({description})" if description else self.family
        yield f"{named} {seen} in {self.genome}; probability {self.probability:.3f}"
        yield f"\nlog-odds {self.log_odds:+.2f}, the sum of"
        for name, value in self.terms.items():
            if name != "shift" or not self.observed:  # else 0 by definition
                yield f"  {value:+8.2f}  {name:11} {MEANING.get(name, '').format(seen=seen)}"
        yield "\nnearest references        similarity  has it"
        for row in self.references.head(5).to_dict("records"):
            yield f"  {row['genome']:24}{row['similarity']:>10.3f}  {'yes' if row['has_family'] else 'no'}"
        yield f"\nobserved families whose absence would change the log-odds most (of {len(self.families)})"
        for row in self.families.head(top).to_dict("records"):
            yield f"  {row['change']:+8.3f}  {row['family']}{' (itself)' if row['family'] == self.family else ''}"


def explain(
    model: EvidenceModel, genome: str, observed: Observed, family: int, families: list[str], references: pd.DataFrame
) -> Explanation:
    """Leave out every observed family in turn.

    Args:
        observed: Of the genome alone, with at least one family.
        family: Position in `families`, the vocabulary.
        references: Names and lineages of the model's reference genomes.
    """
    present = observed.present[0].nonzero()[:, 0]
    with torch.no_grad():
        settled, given = model.noise.settle(observed)
        terms = {name: float(values[0, family]) for name, values in model.terms(settled, given).items()}
        similar = model.references.corrected_similarity(settled, model.noise)[0]
    log_odds = sum(terms.values())
    rows = pd.DataFrame(
        {
            "family": [families[i] for i in present.tolist()],
            "count": observed.counts[0, present].long().numpy(),
            "change": log_odds - _without(model, settled, given, present, family),
        }
    )
    order = similar.argsort(descending=True)[:NEAREST]
    near = references.iloc[order.numpy()].reset_index(drop=True)
    near.insert(1, "similarity", similar[order].numpy())
    near.insert(2, "has_family", 2 * model.references.presence[order, family].numpy().astype(np.int64) > SURE)
    rows = rows.sort_values("change", key=np.abs, ascending=False, ignore_index=True)
    return Explanation(genome, families[family], bool(observed.present[0, family]), log_odds, terms, rows, near)


@torch.no_grad()
def _without(
    model: EvidenceModel, settled: Observed, given: Tensor, present: Int[Tensor, " observed"], family: int
) -> Float[np.ndarray, " observed"]:
    """Log-odds of the family without each observed one, its count set to 0 and all else as it is."""
    parts = []
    for some in present.split(AT_ONCE):
        counts = settled.counts.repeat(len(some), 1)
        counts[torch.arange(len(some)), some] = 0
        quality = settled.completeness.expand(len(some)), settled.contamination.expand(len(some))
        parts.append(model.log_odds(Observed(counts, *quality), given.expand(len(some), 2))[:, family])
    return torch.cat(parts).numpy()


# ---------------------------------------------------------------------- tables


SUMMARY: dict[str, Callable[[Completion], Any]] = {  # columns of a genome's line
    "genome": lambda one: one.name,
    "completeness": lambda one: round(one.completeness, 2),
    "contamination": lambda one: round(one.contamination, 2),
    "quality": lambda one: "given" if one.given else "estimated",
    "observed": lambda one: int(one.observed.sum()),
    "expected": lambda one: round(one.expected, 2),
    "low": lambda one: round(one.low, 2),
    "high": lambda one: round(one.high, 2),
    "called": lambda one: int(one.call.sum()),
    "kept": lambda one: int((one.call & one.observed).sum()),
    "added": lambda one: int(one.added.sum()),
    "removed": lambda one: int(one.removed.sum()),
    "foreign": lambda one: round(float((1 - one.probability)[one.observed].sum()), 2),
    "unknown_families": lambda one: len(one.unknown),
    "unknown_share": lambda one: round(one.unknown_share, 4),
    "novelty": lambda one: round(one.novelty, 4),
    "nearest_reference": lambda one: one.nearest,
    "far": lambda one: one.far,
    "warnings": lambda one: "; ".join(one.warnings),
}


@dataclass
class Cohort:
    """What is kept of completed genomes to report on: a line each, and sums over them by family."""

    families: list[str]
    vocabulary: pd.DataFrame
    rows: list[dict[str, Any]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.sums = {name: np.zeros(len(self.families)) for name in ("observed", "expected", "added", "removed")}

    def add(self, one: Completion) -> None:
        for name, values in zip(self.sums, (one.observed, one.probability, one.added, one.removed), strict=True):
            self.sums[name] += values
        self.rows.append({name: value(one) for name, value in SUMMARY.items()})

    @property
    def summary(self) -> pd.DataFrame:
        """A row per genome."""
        return pd.DataFrame(self.rows, columns=[*SUMMARY])

    @property
    def by_family(self) -> pd.DataFrame:
        """The vocabulary with sums over the genomes: observed, expected, added, removed."""
        return self.vocabulary.reset_index(drop=True).assign(**self.sums)


def wide_rows(group: Sequence[Completion], families: Sequence[str]) -> pd.DataFrame:
    """A row per genome, its probabilities."""
    wide = pd.DataFrame(np.stack([one.probability for one in group]).round(5), columns=list(families))
    wide.insert(0, "genome", [one.name for one in group])
    return wide


def long_rows(group: Sequence[Completion], families: Sequence[str]) -> pd.DataFrame:
    """A row per genome and family, as `_long` has them."""
    return pd.concat([_long(one, families) for one in group], ignore_index=True)


def _long(one: Completion, families: Sequence[str]) -> pd.DataFrame:
    """The rows of a genome in the long table: families that were observed or are called present, then unknown ones."""
    which = np.flatnonzero(one.observed | one.call)
    flag = np.where(one.added, "added", np.where(one.removed, "removed", "kept"))
    known = pd.DataFrame(
        {
            "genome": one.name,
            "family": [families[i] for i in which.tolist()],
            "observed": one.counts[which],
            "probability": np.round(one.probability[which], 5),
            "call": one.call[which].astype(np.int64),
            "flag": flag[which],
            "log_odds": np.round(one.log_odds[which], 4),
        }
    )
    if not one.unknown:
        return known
    unknown = pd.DataFrame(one.unknown.items(), columns=["family", "observed"])
    unknown = unknown.assign(genome=one.name, probability=np.nan, call=1, flag="unknown", log_odds=np.nan)[[*known]]
    return unknown if known.empty else pd.concat([known, unknown], ignore_index=True)
