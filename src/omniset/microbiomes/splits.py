"""What an evaluation holds out, and the samples that it draws: of communities that are known, and of new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from omniset.microbiomes.communities import NOISE, Members, de_novo, draw, replicate
from omniset.microbiomes.references import References, held_out
from omniset.microbiomes.taxonomy import Taxa

KNOWN, NEW, UNKNOWN = "known communities", "new communities", "with unknown taxa"
MOST_TESTED, MOST_UNKNOWN = 20_000, 5_000  # distinct sequences
TEST_SHARE, UNKNOWN_TAXA = 0.2, 0.05  # of distinct sequences, and of taxa as a whole, that are held out
UNKNOWN_READS = 8192
UNKNOWN_SHARE = 0.1
COMMUNITIES, REPLICATES = 10, 100
TESTED = 2  # test replicates of each community, and as many new communities altogether


@dataclass
class Split:
    """What is learned from, and what is tested.

    Attributes:
        references: Of the taxa that are known.
        train, test: Their pairs.
        unknown: Distinct sequences of taxa that were held out.
        taxa: Those that are known.
    """

    references: References
    train: Int[np.ndarray, " train"]
    test: Int[np.ndarray, " test"]
    unknown: list[str]
    taxa: Taxa

    @cached_property
    def tested(self) -> Int[np.ndarray, " tested"]:
        """Numbers of the distinct sequences to be tested, sorted."""
        return np.unique(self.references.sequence[self.test])

    @property
    def texts(self) -> list[str]:
        """The tested sequences, then the unknown ones."""
        return [self.references.texts[i] for i in self.tested] + self.unknown

    def sizes(self) -> dict[str, int]:
        """How much there is of what."""
        return {
            "taxa": len(self.taxa),
            "training sequences": len(np.unique(self.references.sequence[self.train])),
            "test sequences": len(self.tested),
            "unknown sequences": len(self.unknown),
        }


def split(references: References, taxa: Taxa, seed: int) -> Split:
    """Hold out taxa, one at least, and distinct sequences of the others, at random.

    Raises:
        ValueError: Too little is left.
    """
    rng = np.random.default_rng([seed, 11])
    order = rng.permutation(np.unique(references.taxon))
    unknown, known = np.split(order, [max(round(UNKNOWN_TAXA * len(order)), 1)])
    known = np.sort(known)
    if len(known) < 2:
        raise ValueError(f"references must be of at least 3 taxa, one of which is held out, there are {len(order)}")
    pairs = np.isin(references.taxon, known)
    used, sequence = np.unique(references.sequence[pairs], return_inverse=True)
    texts = [references.texts[i] for i in used]
    remaining = References(texts, sequence, np.searchsorted(known, references.taxon[pairs]), len(known))
    tested = held_out(remaining, min(TEST_SHARE, MOST_TESTED / len(used)), rng)  # none of a taxon that has but one
    if not tested.any():
        raise ValueError("no taxon has two distinct sequences, one of which could be tested")
    tested_pairs = tested[sequence]
    # A sequence that a known taxon has too is not unknown.
    others = np.setdiff1d(np.unique(references.sequence[np.isin(references.taxon, unknown)]), used)
    others = rng.permutation(others)[:MOST_UNKNOWN]
    return Split(
        remaining,
        np.flatnonzero(~tested_pairs),
        np.flatnonzero(tested_pairs),
        [references.texts[i] for i in others],
        Taxa.of([taxa.lineages[i] for i in known], taxa.ranks),
    )


@dataclass
class TestSample:
    """A sample whose truth is known.

    Attributes:
        kind: `KNOWN`, `NEW` or `UNKNOWN`.
        size: Reads.
        community, replicate: Numbers of which it is; equal ones of a split are of one profile.
        rows: Numbers of the sequences among `Split.texts`.
        reads: Of each sequence.
        taxon: Of each sequence; -1: unknown.
    """

    __test__ = False  # no class of tests

    kind: str
    size: int
    community: int
    replicate: int
    rows: Int[np.ndarray, " distinct"]
    reads: Float[np.ndarray, " distinct"]
    taxon: Int[np.ndarray, " distinct"]

    @property
    def condition(self) -> str:
        return condition(self.kind, self.size)


def condition(kind: str, size: int) -> str:
    return f"{kind}, {size:,} reads"


def communities(
    parts: Split, sizes: Sequence[int], seed: int
) -> tuple[Float[np.ndarray, "profiles taxa"], list[TestSample]]:
    """Replicates of ten communities to learn from; test samples of every kind and size."""
    rng = np.random.default_rng([seed, 12])
    taxa = len(parts.taxa)
    bases = [(de_novo(taxa, rng), rng.uniform(*NOISE)) for _ in range(COMMUNITIES)]
    train = np.stack([replicate(base, noise, rng) for base, noise in bases for _ in range(REPLICATES)])
    known = [replicate(base, noise, rng) for base, noise in bases for _ in range(TESTED)]
    new = [de_novo(taxa, rng) for _ in range(COMMUNITIES * TESTED)]
    members = parts.references.members(parts.test)
    tests = []
    for kind, profiles, first, each in ((KNOWN, known, 0, TESTED), (NEW, new, COMMUNITIES, 1)):
        for size in sizes:
            for i, profile in enumerate(profiles):
                place = (first + i // each, i % each)
                tests.append(TestSample(kind, size, *place, *_drawn(parts, profile, size, members, rng)))
    foreign = round(UNKNOWN_SHARE * UNKNOWN_READS)
    for i, profile in enumerate(known):
        rows, reads, taxon = _drawn(parts, profile, UNKNOWN_READS - foreign, members, rng)
        others, times = np.unique(rng.integers(len(parts.unknown), size=foreign), return_counts=True)
        rows = np.concatenate([rows, len(parts.tested) + others])
        reads, taxon = np.concatenate([reads, times]), np.concatenate([taxon, np.full(len(others), -1)])
        tests.append(TestSample(UNKNOWN, UNKNOWN_READS, i // TESTED, i % TESTED, rows, reads, taxon))
    return train, tests


def _drawn(
    parts: Split, profile: np.ndarray, size: int, members: Members, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pairs, times = draw(profile, size, members, rng)
    rows = np.searchsorted(parts.tested, parts.references.sequence[pairs])
    return rows, times.astype(np.float64), parts.references.taxon[pairs]
