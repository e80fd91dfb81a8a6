"""What every way of completing a genome is: our models and the baselines, so that they can be trained and compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int, UInt8
from sklearn.decomposition import PCA
from torch import Tensor, nn

from omniset.genomes.noise import NoiseModel, Observed

SURE = 255  # how a family is kept that a reference has for certain
AT_ONCE = 64  # references that are imputed at a time
GRAIN = 2.0**-7  # of evidence: sums up to 2^17 are then of at most 24 bits
NEIGHBOURS = 15


class Method(nn.Module):
    """Log-odds, for each genome and family of the vocabulary, that the complete genome has the family.

    A genome of which nothing was observed gets the prior: the log-odds of the prevalence in the training genomes.

    Args:
        noise: Shared by the methods of one completer.

    Attributes:
        trained: Whether there are weights to be learned; else `fit` is all.
    """

    trained = False

    def __init__(self, noise: NoiseModel) -> None:
        super().__init__()
        self.noise = noise

    def fit(self, counts: sp.csr_array, rng: np.random.Generator) -> None:
        """Take what can be had of the (genomes, families) complete training genomes without training."""

    def forward(self, observed: Observed) -> Float[Tensor, "genomes families"]:
        settled, given = self.noise.settle(observed)
        empty = ~observed.present.any(1, keepdim=True)
        return torch.where(empty, self.noise.prior(), self.log_odds(settled, given))

    def learned(self, observed: Observed) -> list[Float[Tensor, "genomes families"]]:
        """The log-odds that training makes right, each by a loss of its own."""
        return [self(observed)]

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        """What forward gives for genomes with at least one family.

        Args:
            observed: With estimates where completeness or contamination is not known.
            given: 1 where it is.
        """
        raise NotImplementedError


@dataclass
class Compared:
    """Genomes, compared with all references.

    Attributes:
        similarity: See `References.corrected_similarity`.
        likelihood: See `References.likelihood`.
        likeliest: See `References.likeliest`.
        company: What share of the likeliest are genomes that are completed together with this one.
    """

    similarity: Float[Tensor, "genomes references"]
    likelihood: Float[Tensor, "genomes references"]
    likeliest: Float[Tensor, "genomes families"]
    company: Float[Tensor, " genomes"]


class References(nn.Module):
    """Training genomes to compare with.

    Args:
        number: How many are kept.
        families: Vocabulary size.

    Attributes:
        presence: How probable each family is in each, in multiples of 1 / 255: 0 and 255 where they are complete.
        joined: How many of them, the last ones, are genomes that are completed together.
    """

    presence: UInt8[Tensor, "references families"]

    def __init__(self, number: int, families: int) -> None:
        super().__init__()
        self.register_buffer("presence", torch.zeros(number, families, dtype=torch.uint8))
        self.joined = 0
        self._dense: Tensor | None = None
        self._sizes: Tensor | None = None

    def fit(self, counts: sp.csr_array) -> None:
        """Take up genomes in place of those before, also another number of them."""
        self.take(torch.from_numpy((counts > 0).toarray() * np.uint8(SURE)).to(self.presence.device))

    def take(self, presence: UInt8[Tensor, "references families"], joined: int = 0) -> None:
        """Others, whose families are as probable; so many of them, the last ones, are completed together."""
        self.presence, self.joined, self._dense = presence, joined, None

    def of_others(
        self,
        noise: NoiseModel,
        itself: Float[np.ndarray, " references"],
        rows: Int[np.ndarray, " chosen"],
        contamination: Float[np.ndarray, " references"] | None = None,
    ) -> Iterator[tuple[Int[Tensor, " some"], Observed, Tensor, Tensor]]:
        """For some references at a time: which they are, what they show, weights of the 15 other references under which
        they are likeliest, and the share of organisms like them that has each family. Each of the 15 counts as much as
        it would show the family (Horvitz and Thompson, 1952).

        Args:
            itself, contamination: (references,) completeness and contamination of each. None: they are clean.
        """
        complete = torch.from_numpy(itself).to(noise.copies)
        dirty = torch.zeros_like(complete) if contamination is None else torch.from_numpy(contamination).to(complete)
        shown, everything = noise.shows(complete), torch.arange(len(complete), device=complete.device)
        for some in torch.from_numpy(rows).to(complete.device).split(AT_ONCE):
            known = Observed(self.dense(shown)[some], complete[some], dirty[some], some[:, None] == everything)
            weights, which = self._nearest(self.likelihood(known, noise.evidence(known)))
            have, could = (torch.einsum("bk,bkv->bv", weights, of[which]) for of in (self.dense(shown), shown))
            yield some, known, weights, (have / could.clamp(min=1e-6)).clamp(max=1)

    @torch.no_grad()
    def impute(
        self,
        noise: NoiseModel,
        itself: Float[np.ndarray, " references"],
        contamination: Float[np.ndarray, " references"] | None = None,
        *,
        rows: Int[np.ndarray, " chosen"] | None = None,
    ) -> None:
        """Give families that incomplete references lack the probability that they are there all the same, by Bayes'
        rule out of the share of organisms like them that has them; where they are contaminated also those that they
        show.

        Args:
            itself, contamination: See `of_others`.
            rows: Which references. None: the incomplete ones.
        """
        filled, chosen = self.presence.clone(), np.flatnonzero(itself < 1) if rows is None else rows
        for some, known, weights, share in self.of_others(noise, itself, chosen, contamination):
            share = _shrunken(weights, share * weights.sum(1, keepdim=True), noise.prevalence)
            probability = (SURE * (log_odds_of(share) + noise.evidence(known)).sigmoid()).round()
            certain = known.present & (contamination is None)
            filled[some] = torch.where(certain, SURE, probability).to(torch.uint8)
        self.take(filled, self.joined)

    def dense(self, like: Tensor) -> Float[Tensor, "references families"]:
        """As probabilities, made once."""
        if self._dense is None or self._dense.device != like.device or self._dense.dtype != like.dtype:
            self._dense = self.presence.to(like).div_(SURE)
            self._sizes = self._dense.sum(1)
        return self._dense

    def sizes(self, like: Tensor) -> Float[Tensor, " references"]:
        """Expected number of families of each."""
        self.dense(like)
        assert self._sizes is not None
        return self._sizes

    def compare(self, observed: Observed, noise: NoiseModel) -> Compared:
        """What genomes have in common with the references. Their quality is settled."""
        likelihood = self.likelihood(observed, noise.evidence(observed))
        likeliest = self.likeliest(observed, likelihood, noise.prevalence)
        company = torch.zeros_like(observed.completeness)
        if self.joined:
            weights, which = self._nearest(likelihood)
            others = which >= len(self.presence) - self.joined
            company = (weights * others).sum(1) / weights.sum(1).clamp(min=1e-12)
        return Compared(self.corrected_similarity(observed, noise), likelihood, likeliest, company)

    def similarity(self, observed: Observed) -> Float[Tensor, "genomes references"]:
        """(B, R) Jaccard similarity of what was observed to each reference; -1 for an excluded one."""
        present, sizes = observed.present.to(observed.counts), self.sizes(observed.counts)
        shared = present @ self.dense(observed.counts).T
        either = present.sum(1, keepdim=True) + sizes - shared
        return _masked(shared / either.clamp(min=1), observed, -1.0)

    def corrected_similarity(self, observed: Observed, noise: NoiseModel) -> Float[Tensor, "genomes references"]:
        """(B, R) Jaccard similarity that the complete genome would have, estimated: every family that was seen stands
        for 1 / (1 - missed_v) of them (Horvitz and Thompson, "A generalization of sampling without replacement from a
        finite universe", 1952). -1 for an excluded reference.
        """
        references, sizes = self.dense(observed.counts), self.sizes(observed.counts)
        stands_for = observed.present / (1 - noise.rates(observed.completeness, observed.contamination)[0])
        size, shared = stands_for.sum(1, keepdim=True), stands_for @ references.T
        # An estimate may say that more is shared than either genome has.
        shared = shared.minimum(sizes).minimum(size)
        return _masked(shared / (size + sizes - shared).clamp(min=1), observed, -1.0)

    def neighbours(
        self, observed: Observed, prevalence: Float[Tensor, " families"]
    ) -> Float[Tensor, "genomes families"]:
        """(B, V) share of the 15 most similar references that have the family, the prevalence counted as one more."""
        similarity = self.similarity(observed)
        nearest, which = similarity.topk(min(NEIGHBOURS, similarity.shape[1]), 1)
        there = (nearest >= 0).to(observed.counts)
        have = torch.einsum("bk,bkv->bv", there, self.dense(observed.counts)[which])
        return (have + prevalence) / (there.sum(1, keepdim=True) + 1)

    def likelihood(
        self, observed: Observed, evidence: Float[Tensor, "genomes families"]
    ) -> Float[Tensor, "genomes references"]:
        """(B, R) log-likelihood of what was observed, had the genome the families of reference r: the sum of the
        evidence over those families, less that of the likeliest reference. Least where a reference is excluded.

        Small differences between sums of thousands of families count. So the evidence is cut in two: multiples of
        GRAIN, whose sums are exact in float32 whatever their order, and a small rest, added when the largest is gone.
        """
        coarse = (evidence.detach() / GRAIN).round() * GRAIN
        # The references are read once: where they are many, that is what takes the time.
        sums, rests = (torch.cat([coarse, evidence - coarse]) @ self.dense(observed.counts).T).chunk(2)
        likelihood = sums - sums.amax(1, keepdim=True) + rests
        # Not -inf, whose product with a weight of 0 is NaN in the backward of a row without any reference.
        return _masked(likelihood, observed, torch.finfo(evidence.dtype).min)

    def likeliest(
        self,
        observed: Observed,
        likelihood: Float[Tensor, "genomes references"],
        prevalence: Float[Tensor, " families"],
    ) -> Float[Tensor, "genomes families"]:
        """(B, V) share of the 15 references of the greatest likelihood that have the family, the prevalence one more.

        Weights fall from 1 to 0, 1 - ((l_1 - l_r) / (l_1 - l_16))^2 (Epanechnikov, "Non-parametric estimation of a
        multivariate probability density", 1969): log-likelihoods of thousands of families, which are not independent,
        differ by hundreds, so that the distance to the 16th sets the scale (Loftsgaarden and Quesenberry, "A
        nonparametric estimate of a multivariate density function", 1965).
        """
        weights, which = self._nearest(likelihood)
        chosen = self.dense(observed.counts)[which]
        return _shrunken(weights, torch.einsum("bk,bkv->bv", weights, chosen), prevalence)

    def _nearest(
        self, likelihood: Float[Tensor, "genomes references"]
    ) -> tuple[Float[Tensor, "genomes chosen"], Int[Tensor, "genomes chosen"]]:
        """Weights of the 15 likeliest, and which they are."""
        nearest, which = likelihood.topk(min(NEIGHBOURS + 1, likelihood.shape[1]), 1)
        there = nearest > torch.finfo(nearest.dtype).min
        distance = torch.where(there, nearest[:, :1] - nearest, 0.0)
        scale = distance.amax(1, keepdim=True).clamp(min=1e-6)
        weights = (1 - (distance / scale).square()) * there
        return weights[:, :NEIGHBOURS], which[:, :NEIGHBOURS]

    def kernels(
        self,
        observed: Observed,
        likelihood: Float[Tensor, "genomes references"],
        prevalence: Float[Tensor, " families"],
        sharpness: Float[Tensor, " kernels"],
    ) -> Float[Tensor, "genomes families kernels"]:
        """(B, V, J) attention over the references: the family's share among them, weighted by likelihood^sharpness.

        The evidence is the query, the references are keys and values.
        """
        allowed = likelihood > torch.finfo(likelihood.dtype).min
        scores = sharpness[:, None, None] * likelihood
        weights = scores.masked_fill(~allowed, torch.finfo(likelihood.dtype).min).softmax(2)
        weights = (weights * allowed.any(1, keepdim=True)).flatten(0, 1)
        shares = _shrunken(weights, weights @ self.dense(observed.counts), prevalence)
        return shares.unflatten(0, (len(sharpness), -1)).permute(1, 2, 0)


def _shrunken(
    weights: Float[Tensor, "genomes chosen"],
    have: Float[Tensor, "genomes families"],
    prevalence: Float[Tensor, " families"],
) -> Float[Tensor, "genomes families"]:
    """Weighted shares, of as many genomes as the weights amount to (Kish, "Survey Sampling", 1965), and the prevalence
    as one more.
    """
    total = weights.sum(1, keepdim=True)
    number = total.square() / weights.square().sum(1, keepdim=True).clamp(min=1e-12)
    return (number * have / total.clamp(min=1e-12) + prevalence) / (number + 1)


def _masked(values: Tensor, observed: Observed, fill: float) -> Tensor:
    return values if observed.excluded is None else values.masked_fill(observed.excluded, fill)


def log_odds_of(probability: Tensor) -> Tensor:
    """Finite log-odds: shares of references are never quite 0 or 1."""
    return torch.logit(probability, eps=1e-4)


def principal_directions(
    counts: sp.csr_array, rank: int
) -> tuple[Float[np.ndarray, " components"], Float[np.ndarray, "components families"]]:
    """The largest singular values, at most `rank`, and principal directions of the centred presence of families."""
    present = (counts > 0).astype(np.float32)
    if min(present.shape) > max(4 * rank, 100):
        # The centred table is not sparse and is never made: Lanczos iterations need its products alone.
        fitted = PCA(rank, svd_solver="arpack", random_state=0).fit(present)
        return fitted.singular_values_.astype(np.float32), fitted.components_.astype(np.float32)
    centred = present.toarray()
    centred -= centred.mean(0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    return values[:rank], directions[:rank]
