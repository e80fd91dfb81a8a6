"""References to learn from: sequences with their taxa, made distinct and numbered; profiles of these
taxa, and the reads that a sequencer would draw of them.
"""

from __future__ import annotations

import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int

from omniset.microbiomes.sequences import SHORTEST, extract
from omniset.microbiomes.taxonomy import (
    RANKS,
    Lineage,
    Taxa,
    Taxonomy,
    bare,
    depth_of,
    ended,
    joined,
    lineage_of,
    lineages_of,
)
from omniset.report.blocks import many
from omniset.tables.counts import Samples
from omniset.tables.dna import known_as
from omniset.tables.doubts import WARNED, judge_join
from omniset.tables.files import listed

Profile = Float[np.ndarray, " taxa"]
MOST_FOUND = 0.8  # share of the references that have the region: below, a warning is due
MU, SIGMA = 1.0, 2.0  # of the logarithm of abundances
NOISE = (0.5, 0.8)  # replicates differ from their profile by so much of each abundance


@dataclass
class Members:
    """Which references each taxon has. A reference is a sequence and a taxon: a sequence may be several of them."""

    reference: Int[np.ndarray, " references"]  # numbers of references, taxon after taxon
    starts: Int[np.ndarray, " taxa_and_end"]  # where those of each taxon start

    @classmethod
    def of(cls, reference: Int[np.ndarray, " references"], taxon: Int[np.ndarray, " references"], taxa: int) -> Members:
        """Args: taxon: Of each of these references."""
        order = np.argsort(taxon, kind="stable")
        return cls(reference[order], np.searchsorted(taxon[order], np.arange(taxa + 1)))

    @property
    def present(self) -> Bool[np.ndarray, " taxa"]:
        """Whether a taxon has any."""
        return np.diff(self.starts) > 0


@dataclass
class References:
    """Sequences of known taxa."""

    texts: list[str]  # distinct sequences
    # (pairs,) which are of which; a sequence may be of several taxa.
    sequence: Int[np.ndarray, " pairs"]
    taxon: Int[np.ndarray, " pairs"]
    taxa: int  # how many there are

    def checksum(self) -> int:
        """Of all sequences and their taxa."""
        numbers = zlib.crc32(self.taxon.tobytes(), zlib.crc32(self.sequence.tobytes()))
        return zlib.crc32("".join(self.texts).encode("ascii"), numbers)

    def members(self, pairs: Int[np.ndarray, " chosen"]) -> Members:
        """Of some pairs, by their numbers."""
        return Members.of(pairs, self.taxon[pairs], self.taxa)


def held_out(references: References, fraction: float, rng: np.random.Generator) -> Bool[np.ndarray, " sequences"]:
    """Distinct sequences to keep back, drawn at random; each taxon is left with at least one."""
    mask = np.zeros(len(references.texts), dtype=bool)
    mask[rng.permutation(len(mask))[: round(fraction * len(mask))]] = True
    left = np.bincount(references.taxon[~mask[references.sequence]], minlength=references.taxa)
    for taxon in np.flatnonzero(left == 0):
        mask[references.sequence[references.taxon == taxon][0]] = False
    return mask


@contextmanager
def of_files(*given: Any) -> Iterator[None]:
    """Around what takes what was read: its errors begin with the names of the files among `given`."""
    names = [str(one) for one in given if isinstance(one, str | Path)]
    try:
        yield
    except ValueError as error:
        if not names or any(name in str(error) for name in names):
            raise
        raise ValueError(f"{' and '.join(names)}: {error}") from error


def choose(
    texts: Mapping[str, str], lineages: Mapping[str, Lineage], rank: str, region: str | None
) -> tuple[References, Taxa, list[str]]:
    """The region of the references that are of known taxa, each distinct pair of sequence and taxon once; the taxa; and
    what was decided, a sentence each. A clade above the rank in which most references end is a taxon that ends there.

    Raises:
        ValueError: The taxonomy has no such rank, there are no references or no taxa, no reference has a taxon or a
            name at the rank, the region is in none, or all that are long enough are of the same taxon.
    """
    for argument, given in (("references", texts), ("taxonomy", lineages)):
        if not given:
            raise ValueError(f"{argument} is empty")
    taxonomy = lineages_of(lineages)
    notes = [*taxonomy.notes]
    taxon_of = _with_taxon(texts, lineages, taxonomy, rank, notes)
    whole = [texts[name] for name in taxon_of]
    parts: Sequence[str | None] = whole if region is None else _cut(whole, region, notes)
    if short := sum(part is not None and len(part) < SHORTEST for part in parts):
        notes.append(f"{short:,} references are shorter than {SHORTEST} bases and are left out")
    taken = zip(parts, taxon_of.values(), strict=True)
    pairs = sorted({(part, taxon) for part, taxon in taken if part and len(part) >= SHORTEST})
    taxa = sorted({taxon for _, taxon in pairs})
    if len(taxa) < 2:
        raise ValueError(
            f"references must be of at least 2 taxa at rank {rank}, there {'is' if len(taxa) == 1 else 'are'} "
            f"{len(taxa)} among {many(len(parts), 'reference')}"
            + (f", {short:,} of which are shorter than {SHORTEST} bases" if short else "")
        )
    above: dict[str, set[Lineage]] = {}
    for taxon in taxa:
        if len(taxon) == depth_of(rank, taxonomy.ranks):
            above.setdefault(bare(taxon[-1]), set()).add(taxon[:-1])
    if twice := [name for name, places in above.items() if len(places) > 1]:
        notes.append(
            f"{many(len(twice), 'name')} at rank {rank} {'stands' if len(twice) == 1 else 'stand'} in several clades, "
            f"such as {twice[0]!r}: each counts as a taxon of its own"
        )
    number = {taxon: i for i, taxon in enumerate(taxa)}
    distinct, sequence, times = np.unique([part for part, _ in pairs], return_inverse=True, return_counts=True)
    if several := int((times > 1).sum()):
        notes.append(f"{several:,} of {len(distinct):,} distinct sequences are of several taxa")
    numbers = np.array([number[taxon] for _, taxon in pairs])
    return References(distinct.tolist(), sequence, numbers, len(taxa)), Taxa.of(taxa, taxonomy.ranks), notes


def _with_taxon(
    texts: Mapping[str, str], lineages: Mapping[str, Lineage], taxonomy: Taxonomy, rank: str, notes: list[str]
) -> dict[str, Lineage]:
    """The lineages down to a rank of those references that have a name there, or end in a clade in which most end; what
    is left out is noted.
    """
    depth = depth_of(rank, taxonomy.ranks)
    called, note = known_as(texts, lineages, texts)
    known = {name: ended(lineages[there], depth) for name, there in called.items()}
    if not known:
        raise ValueError(
            f"taxonomy knows none of the references, which are such as {next(iter(texts))!r}; it has such as "
            f"{next(iter(lineages))!r}"
        )
    notes += [f"references and taxonomy: {note}"] if note else []
    if lacking := [name for name in texts if name not in called]:
        others = lineages.keys() - called.values()
        judge_join(lacking, len(texts), others, file="references", other="the taxonomy", what="sequences")
        warnings.warn(
            f"{len(lacking):,} of {len(texts):,} references have no taxon and are left out, such as {lacking[0]!r}",
            stacklevel=4,
        )
    clades = Counter(lineage[:names] for lineage in known.values() for names in range(1, len(lineage) + 1))
    ends_in = Counter(known.values())
    taken = {end for end, times in ends_in.items() if len(end) == depth or (end and 2 * times > clades[end])}
    if shallow := [name for name, lineage in known.items() if len(lineage) < depth]:
        clade = {known[name] for name in shallow} & taken
        lost = sum(known[name] not in taken for name in shallow)
        notes.append(
            f"{len(shallow):,} of {len(texts):,} references have no name at rank {rank}, such as {shallow[0]!r}; "
            f"{len(shallow) - lost:,} are of clades in which most end, now taxa: {len(clade):,}; left out: {lost:,}"
        )
    if len(shallow) == len(known):
        raise ValueError(
            f"taxonomy has no name at rank {rank} for any reference: {shallow[0]!r} is "
            f"{joined(lineages[called[shallow[0]]])!r}"
        )
    return {name: lineage for name, lineage in known.items() if lineage in taken}


def _cut(texts: Sequence[str], region: str, notes: list[str]) -> Sequence[str | None]:
    """The region of each; None where it is not found."""
    parts = extract(texts, region)
    with_region = sum(part is not None for part in parts)
    notes.append(f"region {region} was found in {with_region:,} of {len(parts):,} references")
    if not with_region:
        raise ValueError(
            f"region {region} was found in none of the {len(parts):,} references: leave it out where they are cut "
            "to the region already"
        )
    if with_region < MOST_FOUND * len(parts):
        warnings.warn(f"{notes[-1]}: the others are left out", stacklevel=4)
    return parts


def shares_of(
    samples: Samples, taxa: Taxa, lineages: Mapping[str, Lineage]
) -> tuple[Float[np.ndarray, "samples taxa"], str]:
    """What share each taxon has of the known reads of each sample; samples without any are left out. And a sentence.

    Features are taxa with semicolons between their ranks, or have one in the table or among the lineages.

    Raises:
        ValueError: None is known.
    """
    number = {lineage: i for i, lineage in enumerate(taxa.lineages)}
    try:
        own: Mapping[str, Lineage] = lineages_of(samples.taxa)
    except ValueError as error:
        warnings.warn(f"the taxa in the table of profiles are left out: {error}", stacklevel=3)
        own = {}
    ranks = lineages.ranks if isinstance(lineages, Taxonomy) else RANKS
    columns, called = np.full(len(samples.features), -1), known_as(samples.features, lineages)[0]
    for place, name in enumerate(samples.features):
        lineage = own.get(name, lineages.get(called.get(name, name)))
        if lineage is None:
            with suppress(ValueError):  # a name of anything
                lineage = lineage_of(name, ranks)
        columns[place] = -1 if lineage is None else number.get(ended(lineage, len(taxa.ranks)), -1)
    known = columns >= 0
    if not known.any():
        raise ValueError(
            f"profiles: none of the {len(columns):,} features is a known taxon or reference, such as "
            f"{samples.features[0]!r}; taxa are such as {'; '.join(taxa.lineages[0])!r}"
        )
    places = np.flatnonzero(known), columns[known]
    which = sp.csr_array((np.ones(known.sum()), places), shape=(len(columns), len(taxa)))
    table = (samples.counts @ which).toarray()
    share = table.sum() / max(samples.counts.sum(), 1e-300)
    table = table[table.sum(1) > 0]
    if not len(table):
        raise ValueError("profiles: the table has no reads of known taxa")
    note = f"profiles: {len(table):,} samples, {share:.1%} of whose reads are of known taxa"
    if share < 1 - WARNED:
        warnings.warn(
            f"{note}; not such as {listed([samples.features[at] for at in np.flatnonzero(~known)[:3]])}", stacklevel=3
        )
    return table / table.sum(1, keepdims=True), note


# ---------------------------------------------------------------------- communities of taxa


def de_novo(taxa: int, rng: np.random.Generator) -> Profile:
    """A community's profile: log-normal abundances, exp(N(1, 2^2)), that sum to 1.

    As Fritz et al., "CAMISIM: simulating metagenomes and microbial communities", 2019, draw them.
    """
    profile = np.exp(MU + SIGMA * rng.standard_normal(taxa))
    return profile / profile.sum()


def replicate(profile: Profile, noise: float, rng: np.random.Generator) -> Profile:
    """A profile with relative Gaussian noise: x (1 + noise N(0, 1)), nothing below 0, summing to 1."""
    noisy = np.maximum(profile * (1 + noise * rng.standard_normal(len(profile))), 0)
    return noisy / noisy.sum()


def draw(
    profile: Profile, reads: int, members: Members, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " distinct"], Int[np.ndarray, " distinct"]]:
    """Reads of a community: each of a taxon by its abundance, and of each taxon from all of its references alike.

    Returns the references that were drawn, and how often. Taxa without references are left out.

    Raises:
        ValueError: No taxon of the profile has a reference.
    """
    possible = np.where(members.present, profile, 0.0)
    if not possible.sum() > 0:
        raise ValueError("none of the taxa of a profile has a reference")
    taxon = np.repeat(np.arange(len(profile)), rng.multinomial(reads, possible / possible.sum()))
    starts, sizes = members.starts[taxon], members.starts[taxon + 1] - members.starts[taxon]
    return np.unique(members.reference[starts + (rng.random(reads) * sizes).astype(np.int64)], return_counts=True)
