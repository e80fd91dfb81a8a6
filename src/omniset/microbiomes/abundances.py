"""What a sample tells of its reads: the shares of its taxa, found by expectation maximisation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

ROUNDS = 10
TOGETHER = 1 << 16  # sequences at a time
UNIFORM = 0.1  # share of all taxa alike in what profiles expect, at first


@dataclass
class Prior:
    """Which taxa samples have, before one is seen.

    The expected shares are uniform; or, where there are profiles of the habitat, a mixture of these and of uniform
    ones, whose weights are found anew in each sample.
    """

    strength: float = 0.3  # of uniform shares, in samples: 1 counts as much as the sample's own reads
    informed: float = 1.0  # of profiles, likewise
    # (profiles, taxa), each summing to 1; None: none are known.
    profiles: Float[np.ndarray, "profiles taxa"] | None = None

    def log_shares(
        self,
        taxon: Int[np.ndarray, "sequences candidates"],
        logits: Float[np.ndarray, "sequences candidates"],
        reads: Float[np.ndarray, " sequences"],
        taxa: int,
        rounds: int = ROUNDS,
    ) -> Float[np.ndarray, " taxa"]:
        """Logarithm of the taxa's shares s in a sample, after rounds of

            c = sum_i reads_i softmax(logits_i + log s) / sum_i reads_i
            s = (c + sum_p k_p w_p m_p) / (1 + sum_p k_p w_p)

        with uniform shares as m_0 and profiles as the others, of strengths k_p, from s = sum_p w_p m_p: expectation
        maximisation under a Dirichlet prior (without prior: Saerens et al., "Adjusting the outputs of a classifier to
        new a priori probabilities", 2002). The weights w, which sum to 1, are moved in each round by one of expectation
        maximisation of c as a mixture of the m_p: profiles that explain the sample are listened to, and where none does
        the uniform one is all that is left. Profiles are left out of a sample where what the other sequences tell makes
        each of its sequences no more likely with them than without: then it is of another habitat.
        """
        likelihood = np.exp(logits - logits.max(1, keepdims=True, initial=-np.inf))
        given = taxon, likelihood, reads
        told = self._shares(*given, taxa, rounds)
        if self.profiles is not None:
            without = replace(self, profiles=None)._shares(*given, taxa, rounds)
            if without.left_out(*given) >= told.left_out(*given):
                told = without
        return np.log(np.maximum(told.share, 1e-300))

    def _shares(self, taxon: np.ndarray, likelihood: np.ndarray, reads: np.ndarray, taxa: int, rounds: int) -> _Shares:
        number = 0 if self.profiles is None else len(self.profiles)
        mixture = np.full((1 + number, taxa), 1 / taxa)
        strengths = np.array([self.strength] + number * [self.informed])
        weight = np.ones(1)
        if self.profiles is not None:
            mixture[1:] = self.profiles
            weight = np.array([UNIFORM, *np.full(number, (1 - UNIFORM) / number)])
        mean = weight @ mixture
        shares, total = _Shares(mean, np.zeros(taxa), np.zeros(taxa)), max(float(reads.sum()), 1e-300)
        for _ in range(rounds):
            counts = np.zeros(taxa)
            for some, posterior in shares.posteriors(taxon, likelihood):
                counts += np.bincount(taxon[some].ravel(), (posterior * reads[some, None]).ravel(), minlength=taxa)
            of_reads = counts / total
            if number and counts.any():
                weight = weight * (mixture @ (of_reads / mean))
                weight /= weight.sum()
                mean = weight @ mixture
            strength = weight * strengths
            expected = strength @ mixture
            shares = _Shares((of_reads + expected) / (1 + strength.sum()), counts, expected)
        return shares


@dataclass
class _Shares:
    """Shares of the taxa of a sample, all (taxa,)."""

    share: Float[np.ndarray, " taxa"]  # s
    counts: Float[np.ndarray, " taxa"]  # the reads that made them
    expected: Float[np.ndarray, " taxa"]  # sum_p k_p w_p m_p

    def posteriors(self, taxon: np.ndarray, likelihood: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Of the candidates of each sequence, some sequences at a time."""
        for start in range(0, len(taxon), TOGETHER):
            some = slice(start, start + TOGETHER)
            posterior = likelihood[some] * self.share[taxon[some]]
            posterior /= np.maximum(posterior.sum(1, keepdims=True), 1e-300)
            yield some, posterior

    def left_out(self, taxon: np.ndarray, likelihood: np.ndarray, reads: np.ndarray) -> float:
        """Log-likelihood of the reads, each sequence's by the shares without its own reads.

        These are taken out as the shares give them out now, which is how they were counted once the rounds settle.
        """
        likelihoods, reads_of_all = [], self.counts.sum()
        for some, posterior in self.posteriors(taxon, likelihood):
            others = np.maximum(reads_of_all - reads[some, None], 1e-300)
            counts = np.maximum(self.counts[taxon[some]] - posterior * reads[some, None], 0)
            share = (counts / others + self.expected[taxon[some]]) / (1 + self.expected.sum())
            likelihoods.append((likelihood[some] * share).sum(1))
        return float(reads @ np.log(np.maximum(np.concatenate([*likelihoods, np.zeros(0)]), 1e-300)))
