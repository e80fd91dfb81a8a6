"""How far to trust naive Bayes, the network and the sample, and how sure to be: learned on what was kept back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import optimize
from scipy.special import log_softmax

from omniset.microbiomes.calls import Confidence, most_probable
from omniset.microbiomes.communities import Members, de_novo, draw
from omniset.microbiomes.model import WEIGHTS
from omniset.microbiomes.shares import Candidates, Prior
from omniset.microbiomes.taxonomy import Taxa
from omniset.runs.devices import one_blas_thread

SAMPLES, READS = 48, 1024
STRENGTHS = (0.1, 0.3, 1.0)  # of what is expected of a sample, where nothing is known of it
INFORMED = (0.3, 1.0, 3.0, 10.0)  # where profiles are
MOST_PROFILES = 1000
FOREIGN = 0.1  # share of what is not known that is of no taxon at all


def loss_of(
    logits: Float[np.ndarray, "sequences candidates"], own: Bool[np.ndarray, "sequences candidates"]
) -> Float[np.ndarray, " sequences"]:
    """Cross-entropy of the candidates that are marked as the truth; infinite where none is."""
    return -np.logaddexp.reduce(np.where(own, log_softmax(logits, axis=1), -np.inf), axis=1)


@one_blas_thread()
def weights_of(
    candidates: Candidates, taxon: Int[np.ndarray, " sequences"], without_network: bool = False
) -> Float[np.ndarray, " two"]:
    """The weights of naive Bayes and of the network with the least loss, neither below 0.

    Sequences whose taxon is not among the candidates are left out.
    """
    own = candidates.taxon == taxon[:, None]
    there = own.any(1)
    if not there.any():
        return np.array(WEIGHTS)
    parts = np.stack([candidates.words[there], candidates.network[there]]).astype(np.float64)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        log_share = log_softmax(np.tensordot(weights, parts, 1), axis=1)
        truth = own[there]
        wrong = np.exp(log_share) - truth
        return float(-log_share[truth].sum() / there.sum()), (parts * wrong).sum((1, 2)) / there.sum()

    bounds = [(0.0, None), (0.0, 0.0 if without_network else None)]
    first = np.array(WEIGHTS) * [1, not without_network]
    return np.asarray(optimize.minimize(loss, first, jac=True, bounds=bounds, method="L-BFGS-B").x)


def thinned(profiles: Float[np.ndarray, "profiles taxa"], rng: np.random.Generator) -> Float[np.ndarray, "some taxa"]:
    """At most `MOST_PROFILES` of them, drawn at random."""
    if len(profiles) <= MOST_PROFILES:
        return profiles
    return profiles[np.sort(rng.permutation(len(profiles))[:MOST_PROFILES])]


@dataclass
class Samples:
    """Made-up samples of sequences that were kept back, each with its number.

    Attributes:
        candidates, taxon: Of the sequences.
        weights: Of naive Bayes and the network.
        taxa: How many there are.
        profiles: Communities to draw from in turn; None: a new log-normal one each time.
        seed: Each sample depends on it and on its number alone.
    """

    candidates: Candidates
    taxon: Int[np.ndarray, " sequences"]
    weights: Float[np.ndarray, " two"]
    taxa: int
    profiles: Float[np.ndarray, "profiles taxa"] | None
    seed: int

    @cached_property
    def logits(self) -> Float[np.ndarray, "sequences candidates"]:
        return self.candidates.logits(self.weights)

    @cached_property
    def _members(self) -> Members:
        return Members.of(np.arange(len(self.taxon)), self.taxon, self.taxa)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray, int | None]]:
        """Numbers of sequences, their reads, and which profile they are of."""
        for number in range(SAMPLES):
            rng = np.random.default_rng([self.seed, 1, number])
            of = None if self.profiles is None else int(rng.integers(len(self.profiles)))
            profile = de_novo(self.taxa, rng) if self.profiles is None or of is None else self.profiles[of]
            if not (profile * self._members.present).sum() > 0:  # nothing of it was kept back
                continue
            rows, reads = draw(profile, READS, self._members, rng)
            yield rows, reads.astype(np.float64), of

    def log_shares(self, prior: Prior, rows: np.ndarray, reads: np.ndarray) -> Float[np.ndarray, " taxa"]:
        return prior.log_shares(self.candidates.taxon[rows], self.logits[rows], reads, self.taxa)


def choose_prior(samples: Samples) -> Prior:
    """The prior with the least loss by reads: how strong, and with the profiles or without.

    A sample's own profile is not among those that it is called with.
    """
    prior = _best([Prior(strength) for strength in STRENGTHS], samples)
    profiles = samples.profiles
    if profiles is None or len(profiles) < 2:
        return prior
    return _best([prior, *(Prior(prior.strength, informed, profiles) for informed in INFORMED)], samples)


def _best(choices: Sequence[Prior], samples: Samples) -> Prior:
    """Of the least loss by reads; of several the first."""
    losses = np.zeros(len(choices))
    for rows, reads, of in samples:
        taxon = samples.candidates.taxon[rows]
        own = taxon == samples.taxon[rows][:, None]
        there = own.any(1)
        for i, prior in enumerate(choices):
            if prior.profiles is not None and of is not None:
                prior = replace(prior, profiles=np.delete(prior.profiles, of, axis=0))
            logits = samples.logits[rows] + samples.log_shares(prior, rows, reads)[taxon]
            losses[i] += float(reads[there] @ loss_of(logits[there], own[there]))
    return choices[int(losses.argmin())]


def confidence_of(samples: Samples, prior: Prior, taxa: Taxa, foreign: Candidates, novel: float) -> Confidence:
    """Confidences fitted on sequences in samples, once as they are, and once as if their own taxon were not known; and
    on sequences that are nothing's, for which no clade is right.

    Args:
        foreign: Of sequences that are nothing's.
        novel: Share of reads taken to be of taxa without references.
    """
    cases: list[tuple[np.ndarray, ...]] = []

    def add(these: Candidates, log_shares: np.ndarray, truth: np.ndarray | None, weight: np.ndarray) -> None:
        logits = these.logits(samples.weights) + log_shares[these.taxon]
        called, odds = most_probable(these.taxon, logits, taxa.clade)
        right = np.zeros(odds.shape) if truth is None else (taxa.clade[:, called] == taxa.clade[:, truth]).T
        cases.append((odds, these.likeness, right, weight))

    for rows, reads, _ in samples:
        log_shares = samples.log_shares(prior, rows, reads)
        these, truth = samples.candidates.of(rows), samples.taxon[rows]
        add(these, log_shares, truth, (1 - novel) * reads)
        add(these.without(truth), log_shares, truth, (1 - FOREIGN) * novel * reads)
        weight = np.full(len(foreign), FOREIGN * novel * reads.sum() / len(foreign))
        add(foreign, log_shares, None, weight)
    if not cases:
        return Confidence()
    return Confidence.fit(*(np.concatenate(parts) for parts in zip(*cases, strict=True)))
