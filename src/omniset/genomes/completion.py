"""What is said of one genome: probabilities, calls, how many families it should have, how near its references are."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from omniset.genomes.calibration import Level
from omniset.genomes.data import Genome
from omniset.genomes.metadata import Quality


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
        method: Which one it was.
        warnings: A sentence each.
        contigs: The probability that each is foreign, where the file tells them.
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
    method: str
    warnings: list[str] = field(default_factory=list)
    contigs: dict[str, float] = field(default_factory=dict)

    @property
    def probability(self) -> Float[np.ndarray, " families"]:
        return 1 / (1 + np.exp(-self.log_odds))

    @property
    def observed(self) -> Bool[np.ndarray, " families"]:
        return self.counts > 0

    @property
    def added(self) -> Bool[np.ndarray, " families"]:
        return self.call & ~self.observed

    @property
    def removed(self) -> Bool[np.ndarray, " families"]:
        return ~self.call & self.observed


@dataclass
class About:
    """What a completion depends on beside its families; see `Completion`.

    Attributes:
        level: What validation says of genomes of this quality.
    """

    completeness: float
    contamination: float
    given: bool
    novelty: float
    nearest: str
    level: Level
    method: str


@dataclass(frozen=True)
class Rule:
    """When a family is called present.

    Attributes:
        threshold: Its least probability.
        precision: Instead: what was observed is changed only where this share of such changes was right on validation
            clades.

    Raises:
        ValueError: A number out of its bounds, or both numbers.
    """

    threshold: float = 0.5
    precision: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must be between 0 and 1, got {self.threshold}")
        if self.precision is not None:
            check_precision(self.precision)
            if self.threshold != 0.5:
                raise ValueError(f"give threshold or precision, not both: got {self.threshold} and {self.precision}")

    def call(
        self, probability: Float[np.ndarray, " families"], observed: Bool[np.ndarray, " families"], level: Level
    ) -> tuple[Bool[np.ndarray, " families"], list[str]]:
        """(families,) whether each is called present; and warnings."""
        if self.precision is None:
            return probability >= self.threshold, []
        added, removed = level.changes(probability, observed, self.precision)
        notes = []
        if level.threshold("added", self.precision) == 1:  # that no removal reaches it is the rule
            notes.append(f"no addition reaches a precision of {self.precision:g} at this quality")
        return (observed & ~removed) | added, notes


def check_precision(precision: float) -> None:
    """Raise the ValueError of a precision that is out of bounds."""
    if not 0.5 <= precision < 1:
        raise ValueError(f"precision must be at least 0.5 and below 1, got {precision}")


def complete(
    genome: Genome,
    counts: Int[np.ndarray, " families"],
    log_odds: Float[np.ndarray, " families"],
    unknown: dict[str, int],
    about: About,
    rule: Rule,
    trained: tuple[float, float],
    shrink: bool = False,
) -> Completion:
    """Call families, and sum up.

    Args:
        counts, log_odds, unknown, about: See `Completion`.
        trained: Lowest completeness and highest contamination, in percent, that the methods were trained on.
        shrink: Draw the probabilities of a far genome towards what was observed.
    """
    far = about.novelty > about.level.novelty
    probability, size = 1 / (1 + np.exp(-log_odds)), size_of(log_odds, about.level)
    if far and shrink:
        log_odds = _shrunken(log_odds, counts > 0, about)
        probability = 1 / (1 + np.exp(-log_odds))
        expected = float(probability.sum())
        size = expected, min(size[1], expected), max(size[2], expected)
    call, notes = rule.call(probability, counts > 0, about.level)
    if not counts.any():
        notes.append("no family that the model knows was observed: probabilities are the prior")
    elif far:
        notes.append("farther from the reference genomes than 95 % of those of validation clades: trust it less")
        if shrink:
            notes[-1] += "; probabilities were drawn towards what was observed"
    if len(unknown) > 0.1 * max(len(genome.families), 1):
        notes.append(f"{len(unknown)} of its {len(genome.families)} families are not in the vocabulary")
    if about.completeness < trained[0]:
        notes.append(f"completeness {about.completeness:.1f} % is below what was trained on, {trained[0]:g} %")
    if about.contamination > trained[1]:
        notes.append(f"contamination {about.contamination:.1f} % is above what was trained on, {trained[1]:g} %")
    quality = about.completeness, about.contamination, about.given
    near = about.novelty, about.nearest, bool(far)
    return Completion(genome.name, counts, log_odds, call, unknown, *quality, *size, *near, about.method, notes)


def refuse_far(one: Completion, level: Level, far: str) -> None:
    """Raise the ValueError of a genome that is far from the references, where far is "stop"."""
    if far == "stop" and one.far and one.observed.any():
        raise ValueError(
            f"genome {one.name!r} is far from the model's reference genomes (novelty {one.novelty:.2f}, at most "
            f"{level.novelty:.2f} is near), and far is 'stop'"
        )


def size_of(log_odds: Float[np.ndarray, " families"], level: Level) -> tuple[float, float, float]:
    """Expected number of families, with its interval."""
    p = 1 / (1 + np.exp(-log_odds))
    expected, deviation = float(p.sum()), float(np.sqrt((p * (1 - p)).sum()))
    low, high = expected - level.below * deviation, expected + level.above * deviation
    return expected, max(low, 0.0), min(high, float(len(p)))


def _shrunken(
    log_odds: Float[np.ndarray, " families"], observed: Bool[np.ndarray, " families"], about: About
) -> Float[np.ndarray, " families"]:
    """Log-odds of (1 - s) p + s o, o what was observed, s = min(2 (n - l) / (1 - l), 1), n the genome's novelty, l its
    limit: from halfway between the limit and nothing in common on, the references say nothing.
    """
    limit = min(about.level.novelty, 1 - 1e-6)
    share = min(2 * (about.novelty - limit) / (1 - limit), 1.0)
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
        self.shares.append(len(one.unknown) / max(int(one.observed.sum()) + len(one.unknown), 1))
        if self.quality is not None:
            self.rows.add(self.quality.row_of(one.name))
            if not one.given:
                self.lacking.append(one.name)

    def warn(self, families: Sequence[str], warn_of_far: bool) -> None:
        """Warn of what may be wrong.

        Raises:
            ValueError: There is no quality of any of the genomes.
        """
        if self.quality is not None and self.number:
            self._warn_of_quality(self.quality)
        if self.far and warn_of_far:
            warnings.warn(
                f"{len(self.far)} of {self.number} genomes, such as {self.far[0]!r}, are far from the model's "
                "reference genomes: it knows nothing like them. Their probabilities were drawn to what was observed, "
                "and completeness that is estimated may be wrong. Fit a model on their relatives, or take them as they "
                "are with far='keep'",
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
        if self.lacking:
            warnings.warn(
                f"quality does not give both completeness and contamination of {len(self.lacking)} genomes, such as "
                f"{self.lacking[0]!r}: what is not given is estimated from marker families",
                stacklevel=2,
            )
        unused = len(quality.names) - len(self.rows - {-1})
        if unused:
            warnings.warn(f"quality: {unused} of its {len(quality.names)} genomes are not in the table", stacklevel=2)
