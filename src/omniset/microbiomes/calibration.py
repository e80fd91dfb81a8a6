"""How far to trust naive Bayes, the network and the sample, and how sure to be: learned on what was kept back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy import optimize
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from omniset.microbiomes.abundances import Prior
from omniset.microbiomes.model import WEIGHTS, Candidates, TaxonNetwork, candidates_of, most_probable
from omniset.microbiomes.references import Members, de_novo, draw
from omniset.microbiomes.taxonomy import Taxa
from omniset.microbiomes.training import Material
from omniset.runs.devices import one_blas_thread
from omniset.trials.comparison import OURS, Aim, Comparison, Score

Logits = Float[np.ndarray, "sequences candidates"]
PerSequence = Float[np.ndarray, " sequences"]
Profiles = Float[np.ndarray, "profiles taxa"]
BOTH, PARTS = (True, True), ((True, False), (False, True))  # naive Bayes and the network, or one of them
LEAST = 20  # validation sequences below which nothing is calibrated
FOREIGNERS = 500  # sequences that are nothing's
SAMPLES, READS = 48, 1024
ALONE = Prior(1e12)  # so strong that the sample says nothing
STRENGTHS = (0.1, 0.3, 1.0)  # of what is expected of a sample, where nothing is known of it
ROUNDING = 1e-9  # of equal shares of reads
SHARPER = (1.0, 2.0, 4.0)  # how much surer the scores are made, where a sample has a say
INFORMED = (0.3, 1.0, 3.0, 10.0)  # where profiles are
MOST_PROFILES = 1000
FOREIGN = 0.1  # share of what is not known that is of no taxon at all
NOVEL = 0.1  # share of unknown taxa in made-up samples where none is expected
NAIVE_BAYES, KEPT = "naive Bayes, each sequence by itself", "sequences kept back"


@dataclass
class Confidence:
    """How often a clade that has a probability is right, reads of unknown taxa included: logistic regressions."""

    # (ranks, 4) of the clade's log-odds, of the two likenesses to the nearest taxon, and of 1; None: confidences are
    # the probabilities.
    weights: Float[np.ndarray, "ranks 4"] | None = None

    def of(
        self, odds: Float[np.ndarray, "sequences ranks"], likeness: Float[np.ndarray, "sequences 2"]
    ) -> Float[np.ndarray, "sequences ranks"]:
        """Of no rank more than of the one above."""
        if self.weights is not None:
            odds = odds * self.weights[:, 0] + likeness @ self.weights[:, 1:3].T + self.weights[:, 3]
        return np.minimum.accumulate(1 / (1 + np.exp(-odds)), axis=1)

    @classmethod
    def fit(
        cls,
        odds: Float[np.ndarray, "cases ranks"],
        likeness: Float[np.ndarray, "cases 2"],
        right: Float[np.ndarray, "cases ranks"],
        weight: Float[np.ndarray, " cases"],
    ) -> Confidence:
        """From cases whose truth is known."""
        rows = []
        for of_rank, truth in zip(odds.T, right.T > 0, strict=True):
            if truth.all() or not truth.any():  # nothing to tell apart
                rows.append([0.0, 0.0, 0.0, 6.0 if truth.all() else -6.0])
                continue
            columns = [of_rank, *likeness.T]
            used = [0, 1, 2]
            row = _regression(np.stack(columns, 1), truth, weight)
            # Neither small odds nor being unlike all that is known may make a read surer: what would is left out.
            while len(used) > 1 and (negative := [i for i in used if row[used.index(i)] < 0]):
                used.remove(min(negative, key=lambda i: row[used.index(i)]))
                row = _regression(np.stack([columns[i] for i in used], 1), truth, weight)
            by_column = dict(zip(used, row[:-1], strict=True))
            rows.append([*(by_column.get(i, 0.0) for i in range(3)), row[-1]])
        return cls(np.array(rows))


@one_blas_thread()
def _regression(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> list[float]:
    model = LogisticRegression(C=10.0, max_iter=1000).fit(x, y, sample_weight=weight)
    return [*model.coef_[0].tolist(), float(model.intercept_[0])]


@dataclass
class Trust:
    """What makes calls of the scores of a sample's sequences."""

    weights: Float[np.ndarray, " two"]  # of naive Bayes and of the network
    prior: Prior = field(default_factory=Prior)  # what is expected of a sample
    confidence: Confidence = field(default_factory=Confidence)  # how often a call is right
    compared: Comparison | None = None  # ours beside naive Bayes on what was kept back; None: too little was

    def logits(self, these: Candidates, reads: PerSequence, taxa: int) -> Logits:
        """Of the sequences of one sample, in its context."""
        alone = these.logits(self.weights)
        return alone + self.prior.log_shares(these.taxon, alone, reads, taxa)[these.taxon]

    def call(
        self, these: Candidates, reads: PerSequence, taxa: Taxa
    ) -> tuple[Int[np.ndarray, " sequences"], Float[np.ndarray, "sequences ranks"]]:
        """The most probable taxon of each, and the confidence in its clade at each rank."""
        taxon, odds = most_probable(these.taxon, self.logits(these, reads, len(taxa)), taxa.clade)
        return taxon, self.confidence.of(odds, these.likeness)


@one_blas_thread()
def weights_of(
    candidates: Candidates, taxon: Int[np.ndarray, " sequences"], used: tuple[bool, bool] = (True, True)
) -> Float[np.ndarray, " two"]:
    """The weights of naive Bayes and of the network with the least loss, neither below 0, and 0 where not used.

    Sequences whose taxon is not among the candidates are left out.
    """
    own = candidates.taxon == taxon[:, None]
    there = own.any(1)
    if not there.any():
        return np.array(WEIGHTS)
    parts = np.stack([candidates.naive_bayes[there], candidates.network[there]]).astype(np.float64)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        log_share = log_softmax(np.tensordot(weights, parts, 1), axis=1)
        truth = own[there]
        wrong = np.exp(log_share) - truth
        return float(-log_share[truth].sum() / there.sum()), (parts * wrong).sum((1, 2)) / there.sum()

    bounds = [(0.0, None if one else 0.0) for one in used]
    return np.asarray(optimize.minimize(loss, np.array(WEIGHTS) * used, jac=True, bounds=bounds, method="L-BFGS-B").x)


def thinned(profiles: Profiles, rng: np.random.Generator) -> Float[np.ndarray, "some taxa"]:
    """At most `MOST_PROFILES` of them, drawn at random."""
    if len(profiles) <= MOST_PROFILES:
        return profiles
    return profiles[np.sort(rng.permutation(len(profiles))[:MOST_PROFILES])]


@dataclass
class KeptBack:
    """Made-up samples of sequences that were kept back, each with its number."""

    # Of the sequences.
    candidates: Candidates
    taxon: Int[np.ndarray, " sequences"]
    weights: Float[np.ndarray, " two"]  # of naive Bayes and the network
    taxa: int  # how many there are
    # Communities to draw from in turn; None: a new log-normal one each time.
    profiles: Float[np.ndarray, "profiles taxa"] | None
    seed: int  # each sample depends on it and on its number alone

    @cached_property
    def logits(self) -> Logits:
        return self.candidates.logits(self.weights)

    @cached_property
    def members(self) -> Members:
        return Members.of(np.arange(len(self.taxon)), self.taxon, self.taxa)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray, int | None]]:
        """Numbers of sequences, their reads, and which profile they are of."""
        for number in range(SAMPLES):
            rng = np.random.default_rng([self.seed, 1, number])
            of = None if self.profiles is None else int(rng.integers(len(self.profiles)))
            profile = de_novo(self.taxa, rng) if self.profiles is None or of is None else self.profiles[of]
            if not (profile * self.members.present).sum() > 0:  # nothing of it was kept back
                continue
            rows, reads = draw(profile, READS, self.members, rng)
            yield rows, reads.astype(np.float64), of

    def log_shares(self, prior: Prior, rows: np.ndarray, reads: np.ndarray) -> Float[np.ndarray, " taxa"]:
        return prior.log_shares(self.candidates.taxon[rows], self.logits[rows], reads, self.taxa)


@dataclass
class Choice:
    """Scores and prior, and how they call samples of what was kept back."""

    samples: KeptBack
    prior: Prior

    @cached_property
    def right(self) -> Float[np.ndarray, " samples"]:
        """Of each sample, the share of the reads. Its own profile is not among those that it is called with."""
        shares = []
        for rows, reads, of in self.samples:
            prior = self.prior
            if prior.profiles is not None and of is not None:
                prior = replace(prior, profiles=np.delete(prior.profiles, of, axis=0))
            taxon = self.samples.candidates.taxon[rows]
            logits = self.samples.logits[rows] + self.samples.log_shares(prior, rows, reads)[taxon]
            called = np.take_along_axis(taxon, logits.argmax(1)[:, None], axis=1)[:, 0]
            shares.append(float(reads @ (called == self.samples.taxon[rows])) / READS)
        return np.array(shares)

    def or_better(self, others: Sequence[Choice], errors: float) -> Choice:
        """That of the others with most reads right, if these are more by so many standard errors over samples; below
        0: if they are not less by more.
        """
        if not others or len(self.right) < 2:
            return self
        best = max(others, key=lambda one: one.right.mean())
        gains = best.right - self.right
        noise = gains.std(ddof=1) / np.sqrt(len(gains)) + ROUNDING
        return best if gains.mean() > errors * noise else self


def choose(samples: Sequence[KeptBack], context: bool = True) -> Choice:
    """Scores and prior with which most reads are right. The sample has a say unless fewer are right by more than a
    standard error, a part of the scores is taken alone where more are by more than one, and profiles where more are.

    Args:
        samples: With the weights of the sum first, then with those of each part.
        context: Whether the sample may have a say.
    """
    each = []
    for one in samples:
        sharper = [replace(one, weights=more * one.weights) for more in SHARPER] if context else []
        each.append(Choice(one, ALONE).or_better([Choice(s, Prior(k)) for s in sharper for k in STRENGTHS], -1.0))
    best = each[0].or_better(each[1:], 1.0)
    if not context or (profiles := best.samples.profiles) is None or len(profiles) < 2:
        return best
    strength = min(best.prior.strength, STRENGTHS[-1])
    return best.or_better([Choice(best.samples, Prior(strength, k, profiles)) for k in INFORMED], 0.0)


def confidence_of(choice: Choice, taxa: Taxa, foreign: Candidates, novel: float) -> Confidence:
    """Confidences fitted on sequences in samples, with others whose own taxon is as if it were not known and which have
    their say in the shares like all; and on sequences that are nothing's, for which no clade is right.

    Args:
        foreign: Of sequences that are nothing's.
        novel: Share of reads taken to be of taxa without references.
    """
    samples = choice.samples
    every, share = samples.candidates.without(samples.taxon), novel or NOVEL
    cases: list[tuple[np.ndarray, ...]] = []

    def add(these: Candidates, log_shares: np.ndarray, truth: np.ndarray | None, weight: np.ndarray) -> None:
        logits = these.logits(samples.weights) + log_shares[these.taxon]
        called, odds = most_probable(these.taxon, logits, taxa.clade)
        right = np.zeros(odds.shape) if truth is None else (taxa.clade[:, called] == taxa.clade[:, truth]).T
        cases.append((odds, these.likeness, right, weight))

    for number, (rows, reads, _) in enumerate(samples):
        rng = np.random.default_rng([samples.seed, 2, number])
        strange, times = draw(de_novo(len(taxa), rng), round(READS * share / (1 - share)), samples.members, rng)
        known, unknown = samples.candidates.of(rows), every.of(strange)
        logits = np.concatenate([known.logits(samples.weights), unknown.logits(samples.weights)])
        given = np.concatenate([known.taxon, unknown.taxon]), logits, np.concatenate([reads, times])
        log_shares = choice.prior.log_shares(*given, len(taxa))
        add(known, log_shares, samples.taxon[rows], (1 - novel) * reads)
        add(unknown, log_shares, samples.taxon[strange], (1 - FOREIGN) * novel * times * READS / times.sum())
        add(foreign, log_shares, None, np.full(len(foreign), FOREIGN * novel * READS / len(foreign)))
    if not cases:
        return Confidence()
    return Confidence.fit(*(np.concatenate(parts) for parts in zip(*cases, strict=True)))


def learn_trust(
    network: TaxonNetwork,
    taxa: Taxa,
    material: Material,
    profiles: Profiles | None,
    *,
    context: bool = True,
    without_network: bool = False,
) -> Trust:
    """On sequences that were kept back: the weights of naive Bayes and of the network, which are set in the network;
    how far to trust what is expected of a sample; and how sure to be of a call. Leaves naive Bayes with all references.
    `context`: may the sample have a say?
    """
    references, validation, seed = material.references, material.validation, material.options.seed
    everything = np.arange(len(references.sequence))
    if len(validation) < LEAST:
        network.likelihood = material.counted(everything)
        return Trust(network.weights.numpy(force=True).copy(), Prior(profiles=profiles) if context else ALONE)
    network.likelihood = material.counted(material.chosen)
    network.weights.copy_(torch.tensor(WEIGHTS))
    sequences, place = np.unique(references.sequence[validation], return_inverse=True)
    texts = [references.texts[i] for i in sequences]
    candidates = candidates_of(network, texts, material.options.progress).of(place)
    taxon = references.taxon[validation]
    each = [weights_of(candidates, taxon, used) for used in (PARTS[:1] if without_network else (BOTH, *PARTS))]
    choice = choose([KeptBack(candidates, taxon, one, len(taxa), profiles, seed) for one in each], context)
    network.weights.copy_(torch.from_numpy(choice.samples.weights))
    rng = np.random.default_rng([seed, 4])
    shuffled = ["".join(rng.permutation(list(texts[i % len(texts)]))) for i in range(FOREIGNERS)]
    confidence = confidence_of(choice, taxa, candidates_of(network, shuffled), material.options.novel)
    network.likelihood = material.counted(everything)
    return Trust(choice.samples.weights, choice.prior, confidence, _compared(choice, taxa.ranks[-1]))


def _compared(choice: Choice, rank: str) -> Comparison:
    """On made-up samples of what was kept back: the choice, and naive Bayes, which calls each sequence by itself."""
    simple = Choice(replace(choice.samples, weights=np.array([1.0, 0.0])), ALONE)
    right = pd.DataFrame({OURS: choice.right, NAIVE_BAYES: simple.right}).rename_axis("sample").reset_index()
    rows = right.melt("sample", var_name="method", value_name="right").assign(condition=KEPT)
    score = Score("right", f"share of reads whose {rank} is right", share=True)
    aims = [Aim(KEPT, score.name, NAIVE_BAYES)]
    return Comparison(rows, [score], "made-up sample", "sample", [], [NAIVE_BAYES], aims)
