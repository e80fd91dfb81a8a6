"""Communities to learn from: profiles of taxa, replicates of them, and the reads that a sequencer would draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

MU, SIGMA = 1.0, 2.0  # of the logarithm of abundances
NOISE = (0.5, 0.8)  # replicates differ from their profile by so much of each abundance


@dataclass
class Members:
    """Which references each taxon has. A reference is a sequence and a taxon: one sequence may be several references.

    Attributes:
        reference: Numbers of references, taxon after taxon.
        starts: (taxa + 1,) where those of each taxon start.
    """

    reference: Int[np.ndarray, " references"]
    starts: Int[np.ndarray, " taxa_and_end"]

    @classmethod
    def of(cls, reference: Int[np.ndarray, " references"], taxon: Int[np.ndarray, " references"], taxa: int) -> Members:
        """Args: taxon: Of each of these references."""
        order = np.argsort(taxon, kind="stable")
        return cls(reference[order], np.searchsorted(taxon[order], np.arange(taxa + 1)))

    @property
    def present(self) -> Bool[np.ndarray, " taxa"]:
        """Whether a taxon has any."""
        return np.diff(self.starts) > 0


def de_novo(taxa: int, rng: np.random.Generator) -> Float[np.ndarray, " taxa"]:
    """A community's profile: log-normal abundances, exp(N(1, 2^2)), that sum to 1.

    As Fritz et al., "CAMISIM: simulating metagenomes and microbial communities", 2019, draw them.
    """
    profile = np.exp(MU + SIGMA * rng.standard_normal(taxa))
    return profile / profile.sum()


def replicate(
    profile: Float[np.ndarray, " taxa"], noise: float, rng: np.random.Generator
) -> Float[np.ndarray, " taxa"]:
    """A profile with relative Gaussian noise: x (1 + noise N(0, 1)), nothing below 0, summing to 1."""
    noisy = np.maximum(profile * (1 + noise * rng.standard_normal(len(profile))), 0)
    return noisy / noisy.sum()


def draw(
    profile: Float[np.ndarray, " taxa"], reads: int, members: Members, rng: np.random.Generator
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
