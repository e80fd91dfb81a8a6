"""Reference genomes that others are compared with: the likeliest of them, genomes that are completed together with
others, and references that are incomplete themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from omniset.genomes.metadata import WHOLE
from omniset.genomes.noise import NoiseModel, Observed

PerReference = Float[Tensor, "genomes references"]  # of each genome
PerFamily = Float[Tensor, "genomes families"]  # of each genome
Prevalence = Float[Tensor, " families"]  # of each family
SURE = 255  # how a family is kept that a reference has for certain
AT_ONCE = 64  # references that are imputed at a time
GRAIN = 2.0**-7  # of evidence: sums up to 2^17 are then of at most 24 bits
NEIGHBOURS = 15
LEAST = 0.05  # completeness, at least, that a genome is taken to have
EXPECTED = 0.99  # of organisms like it, at least this share has a family that a genome is expected to have
SINGLE = 0.9  # of the genomes that have it, at least this share has one copy of a family by which loss is measured


@dataclass
class Compared:
    """Genomes, compared with all references."""

    similarity: Float[Tensor, "genomes references"]  # see `References.corrected_similarity`
    likelihood: Float[Tensor, "genomes references"]  # see `References.likelihood`
    likeliest: Float[Tensor, "genomes families"]  # see `References.likeliest`
    # What share of the likeliest are genomes that are completed together with this one.
    company: Float[Tensor, " genomes"]


class References(nn.Module):
    """Training genomes to compare with."""

    # How probable each family is in each, in multiples of 1 / 255: 0 and 255 where they are complete.
    presence: UInt8[Tensor, "references families"]

    def __init__(self, number: int, families: int) -> None:
        super().__init__()
        self.register_buffer("presence", torch.zeros(number, families, dtype=torch.uint8))
        self.joined = 0  # how many of them, the last ones, are genomes that are completed together
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

    def similarity(self, observed: Observed) -> PerReference:
        """(B, R) Jaccard similarity of what was observed to each reference; -1 for an excluded one."""
        present, sizes = observed.present.to(observed.counts), self.sizes(observed.counts)
        shared = present @ self.dense(observed.counts).T
        either = present.sum(1, keepdim=True) + sizes - shared
        return _masked(shared / either.clamp(min=1), observed, -1.0)

    def corrected_similarity(self, observed: Observed, noise: NoiseModel) -> PerReference:
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

    def neighbours(self, observed: Observed, prevalence: Prevalence) -> PerFamily:
        """(B, V) share of the 15 most similar references that have the family, the prevalence counted as one more."""
        similarity = self.similarity(observed)
        nearest, which = similarity.topk(min(NEIGHBOURS, similarity.shape[1]), 1)
        there = (nearest >= 0).to(observed.counts)
        have = torch.einsum("bk,bkv->bv", there, self.dense(observed.counts)[which])
        return (have + prevalence) / (there.sum(1, keepdim=True) + 1)

    def likelihood(self, observed: Observed, evidence: PerFamily) -> PerReference:
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

    def likeliest(self, observed: Observed, likelihood: PerReference, prevalence: Prevalence) -> PerFamily:
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
        self, likelihood: PerReference
    ) -> tuple[Float[Tensor, "genomes chosen"], Int[Tensor, "genomes chosen"]]:
        """Weights of the 15 likeliest, and which they are."""
        nearest, which = likelihood.topk(min(NEIGHBOURS + 1, likelihood.shape[1]), 1)
        there = nearest > torch.finfo(nearest.dtype).min
        distance = torch.where(there, nearest[:, :1] - nearest, 0.0)
        scale = distance.amax(1, keepdim=True).clamp(min=1e-6)
        weights = (1 - (distance / scale).square()) * there
        return weights[:, :NEIGHBOURS], which[:, :NEIGHBOURS]

    def kernels(
        self, observed: Observed, likelihood: PerReference, prevalence: Prevalence, sharpness: Float[Tensor, " kernels"]
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

    @contextmanager
    def together(self, noise: NoiseModel, batches: Iterable[Observed]) -> Iterator[int]:
        """While it is open, genomes stand behind the references, each with the families that it probably has, see
        `impute`: genomes that are completed together, such as several of one species. What was observed of them is
        doubted as far as they are contaminated.

        Returns:
            How many genomes there are.
        """
        before, seen, complete, contaminated = self.presence, [], [], []
        for batch in batches:
            settled = noise.settle(batch)[0]
            seen.append(settled.present.to(torch.uint8) * SURE)
            complete.append(settled.completeness.double().cpu().numpy())
            contaminated.append(settled.contamination.double().cpu().numpy())
        number, ones = sum(map(len, seen)), np.ones(len(before))
        # Of one without any family nothing is said, not even what all have.
        told = [row for row, any_there in enumerate(torch.cat(seen).any(1).tolist()) if any_there] if seen else []
        self.take(torch.cat([before, *seen]), number)
        try:
            if told:
                quality = np.concatenate([ones, *complete]), np.concatenate([0 * ones, *contaminated])
                self.impute(noise, *quality, rows=len(before) + np.array(told))
            yield number
        finally:
            self.take(before)

    def each_with_others(self, noise: NoiseModel, batches: Sequence[Observed]) -> Iterator[tuple[int, Observed]]:
        """Batches and their positions; as long as they are read, each genome is a reference of all others."""
        at = 0
        with self.together(noise, batches):
            for position, observed in enumerate(batches):
                hidden = self.themselves(at, len(observed)).to(observed.counts.device)
                yield position, replace(observed, excluded=hidden)
                at += len(observed)

    def themselves(self, first: int, number: int) -> Bool[Tensor, "number references"]:
        """(number, references) the reference that each of so many genomes, from the first of those that are completed
        together on, may not be compared with: itself.
        """
        every = torch.arange(len(self.presence))
        return every == len(every) - self.joined + first + torch.arange(number)[:, None]


def _shrunken(weights: Float[Tensor, "genomes chosen"], have: PerFamily, prevalence: Prevalence) -> PerFamily:
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


# ---------------------------------------------------------------------- references that are incomplete themselves


def known(completeness: Float[np.ndarray, " genomes"] | None) -> Float[np.ndarray, " genomes"] | None:
    """(genomes,) completeness, 1 of whole genomes and where nothing is known; of others by how much they are less than
    whole, see `metadata.WHOLE`. None: all are taken for complete.
    """
    if completeness is None:
        return None
    less = np.nan_to_num(WHOLE / 100 - completeness).clip(0, 1 - LEAST)
    return 1 - less if less.any() else None


@torch.no_grad()
def lacking(counts: sp.csr_array, itself: Float[np.ndarray, " references"], seed: int) -> float:
    """How much of what genomes are said to lack they do lack: the slope g, from 0 to 1, of

        share of the expected families that a genome lacks = a + g (1 - a) missed,

    missed the share of them that it would lack by its completeness, by least squares over the reference genomes.
    Families of several copies, whose copies may lie side by side and be lost together, do not tell. Completeness is
    measured on few markers: where a lineage has lost some, or an annotation misses some, all other families may be
    there.

    Returns:
        1 where the genomes do not tell: all of the same completeness, or without expected families.
    """
    noise, references = NoiseModel(counts.shape[1]), References(*counts.shape)
    noise.fit(counts, np.random.default_rng(seed), itself)
    references.fit(counts)
    shares = np.zeros((len(itself), 2))  # of expected families: lacking, and lacking by what completeness says
    for some, shown, _, share in references.of_others(noise, itself, np.arange(len(itself))):
        expected = (share >= EXPECTED) & (noise.copies[0] >= SINGLE)
        number = expected.sum(1).clamp(min=1)
        lacks = [~shown.present, 1 - noise.shows(shown.completeness)]
        shares[some.numpy()] = torch.stack([(expected * part).sum(1) / number for part in lacks], 1).numpy()
    lacked, missed = shares.T
    if np.ptp(itself) < 1e-3 or np.ptp(missed) < 1e-3:
        return 1.0
    slope, first = np.polyfit(missed, lacked, 1)
    return float(np.clip(slope / max(1 - first, 1e-6), 0, 1))
