"""How gene families are missed and how foreign ones come in: the noise model that methods are trained and judged by.

A genome is a multiset of gene copies. Of completeness c, each of its copies is recovered with probability c; of
contamination q, foreign copies come from another organism, q times as many as the complete genome has. Shares here are
between 0 and 1; percentages are for files and people.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

Copies = Int[np.ndarray, " families"]  # gene copies of each family
PerGenome = Float[Tensor, " genomes"]
PerFamily = Float[Tensor, "genomes families"]  # of each genome
Share = TypeVar("Share", Float[np.ndarray, " families"], Float[Tensor, " families"])
MOST_COPIES = 10  # more are as good as certain to be seen
# No assembly and no annotation is free of error: a family of a genome said to be 100 % complete may be missed, and one
# of a genome said to be clean may be foreign.
LEAST_MISSED, LEAST_FOREIGN = 3e-3, 3e-4
CORE, FEWEST_MARKERS = 0.95, 30
# How genes are lost: each by itself, with their contig, rare ones more often, islands and plasmids as a whole.
LOSSES = ("copies", "runs", "accessory", "islands")
RUN, ACCESSORY = 20, 0.65  # genes that are lost together; share of rare families that is recovered where they are lost
ISLANDS, ISLAND = 0.1, 0.4  # share of the genes that lie on islands, and how often these are recovered


@dataclass
class Observed:
    """A batch of B genomes as they were recovered."""

    counts: Float[Tensor, "genomes families"]  # gene copies of each family of the vocabulary
    completeness: Float[Tensor, " genomes"]  # between 0 and 1; NaN: not known
    contamination: Float[Tensor, " genomes"]  # >= 0; NaN: not known
    # (B, R) reference genomes that may not be looked at: in training, a genome and its clade.
    excluded: Bool[Tensor, "genomes references"] | None = None

    @property
    def present(self) -> Bool[Tensor, "genomes families"]:
        return self.counts > 0

    def __len__(self) -> int:
        return len(self.counts)

    def to(self, device: torch.device | str) -> Observed:
        excluded = None if self.excluded is None else self.excluded.to(device)
        return Observed(self.counts.to(device), self.completeness.to(device), self.contamination.to(device), excluded)


@dataclass
class Recovery:
    """What is known of a batch of genomes that are degraded to learn from, where they are incomplete themselves."""

    itself: Float[Tensor, " genomes"]  # (B,) completeness of the genome, before it is degraded
    # (B,) of what was observed of it, both of the organism: the truth, not as stated.
    completeness: Float[Tensor, " genomes"]
    contamination: Float[Tensor, " genomes"]

    def to(self, device: torch.device | str) -> Recovery:
        return Recovery(*(values.to(device) for values in (self.itself, self.completeness, self.contamination)))


def degrade(
    counts: Copies,
    donor: Copies,
    completeness: float,
    contamination: float,
    rng: np.random.Generator,
    lost: str = "copies",
    prevalence: Float[np.ndarray, " families"] | None = None,
) -> Copies:
    """What is recovered of a genome, and copies of a donor.

    Every copy of the donor comes in with the same probability, such that `contamination` x (copies of the genome) are
    expected, at most all of them.

    Args:
        lost: How genes are lost, one of LOSSES.
        prevalence: Share of genomes that have each family, by which "accessory" and "islands" tell rare ones.
    """
    share = min(contamination * counts.sum() / max(donor.sum(), 1), 1.0)
    return lose(counts, completeness, lost, rng, prevalence) + rng.binomial(donor, share)


def lose(
    counts: Copies,
    completeness: float,
    lost: str,
    rng: np.random.Generator,
    prevalence: Float[np.ndarray, " families"] | None = None,
) -> Copies:
    """What is left of a genome's copies. "copies": each is recovered with probability `completeness`. "runs": see
    `lose_runs`. "accessory": each with that probability times `accessory_loss`. "islands": see `lose_islands`.
    """
    if lost == "copies":
        return rng.binomial(counts, completeness)
    if lost == "runs":
        return lose_runs(counts, completeness, rng)
    if prevalence is None:
        raise ValueError(f"prevalence must be given where {lost} are lost, it is None")
    if lost == "islands":
        return lose_islands(counts, completeness, prevalence, rng)
    return rng.binomial(counts, completeness * accessory_loss(prevalence))


def lose_runs(counts: Copies, completeness: float, rng: np.random.Generator, run: int = RUN) -> Copies:
    """What is left where genes are lost together, as with their contig: gene copies in a random order are cut into runs
    of `run`, and each run is recovered with probability `completeness`.
    """
    genes = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    kept = np.repeat(rng.random(-(-len(genes) // run)) < completeness, run)[: len(genes)]
    return np.bincount(genes[kept], minlength=len(counts)).astype(counts.dtype)


def lose_islands(
    counts: Copies, completeness: float, prevalence: Float[np.ndarray, " families"], rng: np.random.Generator
) -> Copies:
    """What is left where islands and plasmids are lost more often than the rest: a tenth of the gene copies, drawn with
    weights of 1 - prevalence, lies on islands of 20, each of which is recovered as a whole with probability
    0.4 x `completeness`; every other copy with probability `completeness`. Of MAGs of simulated metagenomes, Maguire et
    al., "Metagenome-assembled genome binning methods with short reads disproportionately fail for plasmids and genomic
    islands", 2020, found 38 to 44 % of the islands and 1 to 29 % of the plasmids.
    """
    genes = np.repeat(np.arange(len(counts)), counts)
    weights = 1 - np.minimum(prevalence[genes], 1)
    number = min(int(ISLANDS * len(genes)), int((weights > 0).sum()))
    if not number:
        return rng.binomial(counts, completeness)
    chosen = rng.choice(len(genes), number, replace=False, p=weights / weights.sum())
    mobile = np.bincount(genes[chosen], minlength=len(counts)).astype(counts.dtype)
    return rng.binomial(counts - mobile, completeness) + lose_runs(mobile, ISLAND * completeness, rng)


def accessory_loss(prevalence: Share) -> Share:
    """(V,) how often a family is recovered, as a multiple of what completeness says: 1 for core families, of which
    completeness is measured, down to `ACCESSORY` for the rarest. In MAGs said to be 95 % complete Meziti et al., "The
    reliability of metagenome-assembled genomes (MAGs) in representing natural populations", 2021, found 77 % of the
    core and 50 % of the variable genes.
    """
    return ACCESSORY + (1 - ACCESSORY) * (prevalence / CORE).clip(max=1)


def flip(counts: Copies, missed: float, foreign: float, rng: np.random.Generator) -> Copies:
    """Independent noise of families: a present one is lost with `missed`, an absent one comes in with `foreign`."""
    drawn = rng.random(len(counts))
    return np.where(counts > 0, counts * (drawn >= missed), drawn < foreign).astype(counts.dtype)


class NoiseModel(nn.Module):
    """Error rates of each family at a completeness and contamination, and what an observation says, given them.

        missed_v  = E[(1 - c d_v)^K],  K the copies that genomes with the family have, d_v how it is detected, mostly 1
        foreign_v = prevalence_v (1 - E[(1 - q)^K])
        evidence_v = log((1 - missed_v) / foreign_v)        where v is observed
                     log(missed_v / (1 - foreign_v))        where it is not

    Where completeness or contamination is not given it is estimated from marker families, those of at least 95 % of
    the training genomes, by least squares on simulated noise: the idea of CheckM (Parks et al., "CheckM: assessing the
    quality of microbial genomes recovered from isolates, single cells, and metagenomes", 2015).
    """

    copies: Float[Tensor, "most families"]
    prevalence: Float[Tensor, " families"]
    markers: Float[Tensor, " families"]
    quality: Float[Tensor, "features two"]

    def __init__(self, families: int) -> None:
        super().__init__()
        self.register_buffer("copies", torch.zeros(MOST_COPIES, families))
        self.register_buffer("prevalence", torch.full((families,), 0.5))
        self.register_buffer("markers", torch.zeros(families))
        self.register_buffer("quality", torch.zeros(6, 2))

    def fit(
        self, counts: sp.csr_array, rng: np.random.Generator, itself: Float[np.ndarray, " genomes"] | None = None
    ) -> None:
        """Count copies and prevalence in genomes, and learn to read completeness off the markers.

        Args:
            itself: (genomes,) their own completeness: of those with a family a share 1 - missed_v shows it, so that
                each counts for more (Horvitz and Thompson, 1952). None: they are complete.
        """
        genomes, families = counts.shape
        tally = np.zeros((MOST_COPIES, families))
        np.add.at(tally, (np.minimum(counts.data, MOST_COPIES) - 1, counts.indices), 1.0)
        carriers = tally.sum(0)
        # Half a genome with one copy in front, so that a family that nobody has is not divided by 0.
        tally[0] += 0.5
        tally /= tally.sum(0)
        self.copies.copy_(torch.from_numpy(tally))
        showing = np.full(families, float(genomes))
        if itself is not None:
            showing -= ((1 - itself)[:, None] ** np.arange(1, MOST_COPIES + 1)).sum(0) @ tally
            carriers = np.minimum(carriers * genomes / showing, genomes)
        self.prevalence.copy_(torch.from_numpy((carriers + 0.5) / (genomes + 1)))
        order = np.argsort(-carriers, kind="stable")
        core = order[: max(int((carriers >= CORE * genomes).sum()), min(FEWEST_MARKERS, families))]
        weights = torch.zeros(families)
        weights[torch.from_numpy(core.copy())] = 1.0 / len(core)
        self.markers.copy_(weights)
        self._fit_quality(counts[:, np.sort(core)].toarray(), np.ones(genomes) if itself is None else itself, rng)

    def _fit_quality(
        self,
        counts: Int[np.ndarray, "genomes markers"],
        itself: Float[np.ndarray, " genomes"],
        rng: np.random.Generator,
    ) -> None:
        draws = 2000
        which, donors = rng.integers(len(counts), size=(2, draws))
        c, q = rng.uniform(0.2, 1.0, draws), rng.uniform(0, 0.2, draws) * (rng.random(draws) < 0.6)
        drawn = zip(which, donors, c, q, strict=True)
        seen = np.stack([degrade(counts[i], counts[donor], a, b, rng) for i, donor, a, b in drawn])
        share, copies = (seen > 0).mean(1), seen.mean(1) / max((counts.T / itself).mean(), 1e-9)
        c, q = c * itself[which], q * itself[which]
        x = _marker_features(torch.from_numpy(share), torch.from_numpy(copies))
        self.quality.copy_(torch.from_numpy(np.linalg.lstsq(x.numpy(), np.stack([c, q], 1), rcond=None)[0]))

    def rates(
        self, completeness: PerGenome, contamination: PerGenome, detection: Float[Tensor, " families"] | None = None
    ) -> tuple[PerFamily, PerFamily]:
        """(B, V) missed_v and foreign_v.

        Args:
            detection: d_v, how often a family is recovered, as a multiple of what completeness says. None: 1.
        """
        k = torch.arange(1, MOST_COPIES + 1, device=completeness.device)
        if detection is None:
            missed = (1 - completeness)[:, None] ** k @ self.copies
        else:
            lost = 1 - completeness[:, None] * detection
            missed = torch.zeros_like(lost)
            for copies in self.copies.flip(0):  # Horner's scheme
                missed = lost * (copies + missed)
        foreign = self.prevalence * (1 - (1 - contamination.clamp(max=1))[:, None] ** k @ self.copies)
        return missed.clamp(LEAST_MISSED, 1 - LEAST_MISSED), foreign.clamp(LEAST_FOREIGN, 0.5)

    def evidence(self, observed: Observed, detection: Float[Tensor, " families"] | None = None) -> PerFamily:
        """(B, V) log-likelihood ratio, present against absent, of each family's observation. detection: see `rates`."""
        missed, foreign = self.rates(observed.completeness, observed.contamination, detection)
        seen, unseen = ((1 - missed) / foreign).log(), (missed / (1 - foreign)).log()
        return torch.where(observed.present, seen, unseen)

    def shows(self, completeness: PerGenome) -> PerFamily:
        """(B, V) how often a genome of this completeness shows a family of its organism, 1 - missed_v."""
        powers = torch.arange(1, MOST_COPIES + 1, device=completeness.device)
        return 1 - (1 - completeness)[:, None] ** powers @ self.copies

    def hidden(self, present: Bool[Tensor, "genomes families"], recovery: Recovery) -> PerFamily:
        """(B, V) how often a family of the organism is missing in the genome that is learned from, given whether it was
        observed in what was left of that genome. By Bayes' rule, with m and u how often one is missed in the genome and
        in what was left of it, u >= m, and f how often a foreign one comes in:

            m / u                              of one that was not observed
            m f / (1 - u + u f)                of one that was
        """
        missing, missed = (1 - self.shows(c) for c in (recovery.itself, recovery.completeness.minimum(recovery.itself)))
        foreign = self.rates(recovery.completeness, recovery.contamination)[1]
        observed = missing * foreign / (1 - missed + missed * foreign)
        return torch.where(present, observed, missing / missed.clamp(min=1e-12))

    def shift(self, observed: Observed) -> PerFamily:
        """(B, V) what is to be added to log-odds that take all families for equally well detected, where rare ones are
        lost more often, see `accessory_loss`: by Bayes' rule the difference of the evidence. 0 where nothing was
        observed, since the prior holds there.
        """
        settled = self.settle(observed)[0]
        change = self.evidence(settled, accessory_loss(self.prevalence)) - self.evidence(settled)
        return change * observed.present.any(1, keepdim=True)

    def estimate(self, counts: PerFamily) -> tuple[PerGenome, PerGenome]:
        """(B,) completeness and contamination, from the markers."""
        mean = (torch.arange(1, MOST_COPIES + 1, device=counts.device).to(counts) @ self.copies) * self.prevalence
        x = _marker_features((counts > 0).to(counts) @ self.markers, counts @ self.markers / (mean @ self.markers))
        estimates = x @ self.quality
        return estimates[:, 0].clamp(0.05, 1.0), estimates[:, 1].clamp(0.0, 0.3)

    def settle(self, observed: Observed) -> tuple[Observed, Float[Tensor, "genomes two"]]:
        """The same with estimates for what is not given; and (B, 2), 1 where it was given."""
        given = torch.stack([~observed.completeness.isnan(), ~observed.contamination.isnan()], 1)
        if bool(given.all()):
            return observed, given.to(observed.counts)
        completeness, contamination = self.estimate(observed.counts)
        settled = replace(
            observed,
            completeness=torch.where(given[:, 0], observed.completeness, completeness),
            contamination=torch.where(given[:, 1], observed.contamination, contamination),
        )
        return settled, given.to(observed.counts)

    def prior(self) -> Float[Tensor, " families"]:
        """(V,) log-odds of the prevalence."""
        return torch.logit(self.prevalence)


def cross_entropy(
    log_odds: Float[Tensor, "*pairs"], truth: Float[Tensor, "*pairs"], hidden: Float[Tensor, "*pairs"] | None = None
) -> Float[Tensor, "*pairs"]:
    """-log p of a family that the genome has, -log(1 - p (1 - m)) of one that it lacks, p the probability that the
    organism has it, m how often the genome lacks it all the same: the likelihood of targets that are missing.

    Args:
        hidden: m, see `NoiseModel.hidden`. None: 0, the genome is complete, and this is binary cross-entropy.
    """
    if hidden is None:
        return F.binary_cross_entropy_with_logits(log_odds, truth, reduction="none")
    absent = F.softplus(log_odds) - F.softplus(log_odds + hidden.log())
    return torch.where(truth > 0, F.softplus(-log_odds), absent)


def _marker_features(share: PerGenome, copies: PerGenome) -> Float[Tensor, "genomes features"]:
    """Of single-copy markers, share = c + q - cq and copies = c + q: completeness and contamination are functions of
    the two, here quadratic ones.
    """
    return torch.stack([torch.ones_like(share), share, copies, share**2, copies**2, share * copies], 1)
