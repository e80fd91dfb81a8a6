"""Training of methods: complete genomes are degraded anew in every epoch, and the methods learn to undo it."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from omniset.genomes.metadata import check_taxonomy, lineages
from omniset.genomes.methods import Method
from omniset.genomes.noise import Observed, Recovery, degrade, flip
from omniset.training.data import Key, Lesson
from omniset.training.fit import TrainingModule, fit

CLUSTERED = 5000  # genomes, at most, whose clades are made by clustering where there is no taxonomy
AT_ONCE = 1000  # genomes whose families are counted at a time
ERROR = 0.05  # of an estimated completeness or contamination, at most
# The document's noise: (missed, foreign) in the first, second and last third of the epochs.
CURRICULUM = ((0.10, 0.01), (0.25, 0.02), (0.50, 0.05))
# How often a genome's clade one rank up, its clade, and only it, are hidden from its references.
HIDDEN = (0.25, 0.5, 0.25)
Batch = tuple[Observed, Tensor, Tensor, Recovery | None]


@dataclass
class Clades:
    """Which genomes belong together.

    Attributes:
        codes: (genomes, 3) number of the clade above, of the clade, and of the genome itself.
        given: They come from a taxonomy; else from the genomes' similarity.
    """

    codes: Int[np.ndarray, "genomes three"]
    given: bool = True

    @classmethod
    def of(cls, counts: sp.csr_array, taxonomy: pd.DataFrame | None, names: list[str], rank: str) -> Clades:
        """`of_taxonomy`, or `of_similarity` where there is none."""
        if taxonomy is not None:
            return cls.of_taxonomy(taxonomy, names, rank)
        clades = cls.of_similarity(counts)
        if len(np.unique(clades.groups)) == len(names):
            warnings.warn(
                "without a taxonomy every genome is a clade of its own, and what validation says is too good: "
                "give a taxonomy",
                stacklevel=3,
            )
        return clades

    @classmethod
    def of_taxonomy(cls, taxonomy: pd.DataFrame, names: list[str], rank: str) -> Clades:
        """Clades of a rank such as "family", and of the rank above.

        Raises:
            ValueError: The taxonomy has no such rank, or knows none of the genomes.
        """
        check_taxonomy(taxonomy)
        ranks = [c for c in taxonomy.columns if taxonomy[c].fillna("").astype(bool).any()]
        if rank not in ranks:
            raise ValueError(f"clade must be a rank that the taxonomy has, {', '.join(ranks)}; got {rank!r}")
        taxa = lineages(taxonomy, names)
        lacking = [name for name, taxon in zip(names, taxa[rank], strict=True) if not taxon]
        if len(lacking) == len(names):
            raise ValueError(
                f"taxonomy has a {rank} for none of the {len(names)} genomes: its names are such as "
                f"{str(taxonomy.index[0])!r}, the genomes' such as {names[0]!r}"
            )
        if lacking:
            warnings.warn(
                f"taxonomy: {len(lacking)} of {len(names)} genomes have no {rank}, such as {lacking[0]!r}: each is "
                "taken for a clade of its own",
                stacklevel=3,
            )
        above = ranks[max(ranks.index(rank) - 1, 0)]
        codes = [_codes(taxa[r].to_numpy(), names) for r in (above, rank)]
        return cls(np.stack([*codes, np.arange(len(names))], 1))

    @classmethod
    def of_similarity(cls, counts: sp.csr_array) -> Clades:
        """Clusters of average linkage, at Jaccard distances of 0.5 and 0.35; of many genomes each for itself."""
        singles = np.arange(counts.shape[0])
        if not 1 < len(singles) <= CLUSTERED:
            return cls(np.stack([singles] * 3, 1), given=False)
        present = (counts > 0).astype(np.float32)
        shared = (present @ present.T).toarray()
        sizes = present.sum(1)
        distance = 1 - shared / np.maximum(sizes[:, None] + sizes - shared, 1)
        np.fill_diagonal(distance, 0)
        tree = linkage(squareform(distance, checks=False), "average")
        codes = [fcluster(tree, cut, "distance") for cut in (0.5, 0.35)]
        return cls(np.stack([*codes, singles], 1), given=False)

    def notes(self) -> list[str]:
        """What was decided on the data, a sentence each."""
        if self.given:
            return []
        return [f"without a taxonomy, the {len(np.unique(self.groups)):,} clades are clusters of similar genomes"]

    @property
    def groups(self) -> Int[np.ndarray, " genomes"]:
        return self.codes[:, 1]


def _codes(values: np.ndarray, names: list[str]) -> Int[np.ndarray, " genomes"]:
    """Equal values get equal numbers; a genome without a value gets one of its own."""
    singles = np.array([f"\n{name}" for name in names], dtype=object)  # of no taxon; pandas 2 ends text at NUL
    return pd.factorize(np.where(values == "", singles, values))[0]


def split(
    groups: Int[np.ndarray, " genomes"], fractions: tuple[float, ...], rng: np.random.Generator
) -> list[Int[np.ndarray, " part"]]:
    """Parts of about these fractions of the genomes, no group in two parts; what is left is the first part.

    Groups are taken in random order; one that would overfill a part by more than 2 % of the genomes is passed on.
    """
    names, sizes = np.unique(groups, return_counts=True)
    part_of = dict.fromkeys(names.tolist(), 0)
    filled = np.zeros(len(fractions))
    for i in rng.permutation(len(names)):
        for part, fraction in enumerate(fractions):
            if filled[part] + sizes[i] <= fraction * len(groups) + 0.02 * len(groups):
                filled[part] += sizes[i]
                part_of[int(names[i])] = part + 1
                break
    parts = np.array([part_of[int(g)] for g in groups])
    return [np.flatnonzero(parts == part) for part in range(len(fractions) + 1)]


@dataclass
class Draws:
    """What noise training draws. Shares between 0 and 1.

    Attributes:
        completeness, contamination: Bounds of uniform draws; one genome in five is complete, two of five are clean.
        near: How often the donor is of the clade above the genome's own.
        losses: How genes are lost, out of `noise.LOSSES`, each as often.
        curriculum: The document's independent noise instead, by the share of epochs that have passed.
    """

    completeness: tuple[float, float] = (0.3, 1.0)
    contamination: tuple[float, float] = (0.0, 0.12)
    near: float = 0.5
    losses: tuple[str, ...] = ("copies",)
    curriculum: bool = False

    def quality(self, rng: np.random.Generator, itself: float = 1.0) -> tuple[float, float, float, float]:
        """Completeness and contamination, in relation to the genome that is degraded; and both in relation to its
        organism, as the method reads them: the truth, an estimate, or NaN.

        Args:
            itself: Completeness of the genome, before it is degraded.
        """
        c = 1.0 if rng.random() < 0.2 else rng.uniform(*self.completeness)
        q = 0.0 if rng.random() < 0.4 else rng.uniform(*self.contamination)
        kind = rng.random()
        stated = "known" if kind < 0.4 else "estimated" if kind < 0.8 else "unknown"
        return (c, q, *stated_quality(itself * c, itself * q, stated, rng))


def stated_quality(
    completeness: float, contamination: float, kind: str, rng: np.random.Generator
) -> tuple[float, float]:
    """A genome's quality as a method reads it: "known", "estimated" (within 5 points) or "unknown" (NaN)."""
    if kind == "unknown":
        return np.nan, np.nan
    if kind == "known":
        return completeness, contamination
    c, q = completeness + rng.uniform(-ERROR, ERROR), contamination + rng.uniform(-ERROR, ERROR)
    return float(np.clip(c, 0.05, 1.0)), float(max(q, 0.0))


@dataclass
class Genomes:
    """Complete genomes to learn from.

    Attributes:
        counts: (genomes, families) of the vocabulary.
        train, validation: Positions, no clade in both.
        references: Positions, out of `train`, of the genomes kept to compare with.
        itself: (genomes,) how complete each is itself. None: all are taken for complete.
        single: Positions of genomes that are kept back although others of their clades are in `train`.
    """

    counts: sp.csr_array
    clades: Clades
    train: Int[np.ndarray, " train"]
    validation: Int[np.ndarray, " validation"]
    references: Int[np.ndarray, " references"] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    itself: Float[np.ndarray, " genomes"] | None = None
    single: Int[np.ndarray, " single"] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @cached_property
    def prevalence(self) -> Float[np.ndarray, " families"]:
        """Share of the training genomes that have each family."""
        return carriers(self.counts, self.train) / max(len(self.train), 1)

    @property
    def training_counts(self) -> sp.csr_array:
        """(train, families) those of the training genomes; no copy where these are all."""
        everything = np.array_equal(self.train, np.arange(self.counts.shape[0]))
        return self.counts if everything else self.counts[self.train]

    def row(self, i: int) -> Int[np.ndarray, " families"]:
        return self.counts[[i]].toarray()[0]

    def donor(self, i: int, near: bool, rng: np.random.Generator) -> Int[np.ndarray, " families"]:
        """A training genome that is not of i's clade, of the clade above it if `near` and there is one."""
        above, clade, _ = self.clades.codes[self.train].T
        others = self.train[clade != self.clades.codes[i, 1]]
        close = self.train[(clade != self.clades.codes[i, 1]) & (above == self.clades.codes[i, 0])]
        pool = close if near and len(close) else others if len(others) else self.train
        return self.row(int(rng.choice(pool)))


def carriers(counts: sp.csr_array, rows: Int[np.ndarray, " chosen"]) -> Int[np.ndarray, " families"]:
    """(families,) how many of the chosen genomes have each family. The rows of a large table are not copied at once."""
    number = np.zeros(counts.shape[1], dtype=np.int64)
    for some in np.split(rows, range(AT_ONCE, len(rows), AT_ONCE)):
        number += np.bincount(counts[some].indices, minlength=len(number))
    return number


class GenomeBatches:
    """Batches of degraded genomes by (epoch, position). Noise depends on (seed, epoch, genome) alone; when not training
    it is the same in every epoch.
    """

    def __init__(self, genomes: Genomes, draws: Draws, seed: int, epochs: int) -> None:
        self.genomes, self.draws, self.seed, self.epochs = genomes, draws, seed, epochs
        groups = genomes.clades.groups
        self.weights = np.ones(len(groups))
        _, which, sizes = np.unique(groups[genomes.train], return_inverse=True, return_counts=True)
        weights = sizes[which] ** -0.5  # large clades count more than small ones, but not as much more
        self.weights[genomes.train] = weights / weights.mean()

    def __call__(self, keys: list[Key], training: bool) -> Batch:
        seen, c, q, hidden, truth, weights, told = zip(*(self.one(key, training) for key in keys), strict=True)
        c, q, weights = (torch.tensor(numbers, dtype=torch.float32) for numbers in (c, q, weights))
        seen, hidden, truth = (torch.from_numpy(np.stack(rows)) for rows in (seen, hidden, truth))
        recovery = None if self.genomes.itself is None else recovery_of(told)
        return Observed(seen.float(), c, q, hidden), truth.float(), weights, recovery

    def one(
        self, key: Key, training: bool
    ) -> tuple[np.ndarray, float, float, np.ndarray, np.ndarray, float, tuple[float, float, float]]:
        """What was observed, its stated quality, which references are hidden, the truth, its weight; and completeness
        of the genome itself, and completeness and contamination of what was observed, of the organism.
        """
        epoch, i = key
        itself = 1.0 if self.genomes.itself is None else float(self.genomes.itself[i])
        rng = np.random.default_rng([self.seed, epoch if training else 2**31, i])
        counts = self.genomes.row(i)
        if self.draws.curriculum:
            stage = min(len(CURRICULUM) * epoch // max(self.epochs, 1), len(CURRICULUM) - 1) if training else 1
            (missed, contamination), c, q = CURRICULUM[stage], np.nan, np.nan
            seen, completeness = flip(counts, missed, contamination, rng), 1 - missed
        else:
            completeness, contamination, c, q = self.draws.quality(rng, itself)
            donor = self.genomes.donor(i, rng.random() < self.draws.near, rng)
            losses = self.draws.losses
            lost = losses[0] if len(losses) == 1 else losses[int(rng.integers(len(losses)))]
            seen = degrade(counts, donor, completeness, contamination, rng, lost, self.genomes.prevalence)
        level, codes = rng.choice(3, p=HIDDEN) if training else 2, self.genomes.clades.codes
        hidden = codes[self.genomes.references, level] == codes[i, level]
        told = itself, itself * completeness, itself * contamination
        return seen, c, q, hidden, counts > 0, float(self.weights[i]), told


def recovery_of(told: Iterable[tuple[float, float, float]]) -> Recovery:
    """Of genomes one by one."""
    return Recovery(*torch.tensor([*told], dtype=torch.float32).unbind(1))


def lesson(genomes: Genomes, draws: Draws, batch_size: int, epochs: int, seed: int) -> Lesson:
    """Training and validation batches."""
    make = GenomeBatches(genomes, draws, seed, epochs)
    return Lesson(make, genomes.train, genomes.validation, batch_size=batch_size, seed=seed, move=_move)


def _move(batch: Batch, device: torch.device) -> tuple[Any, ...]:
    return tuple(None if part is None else part.to(device) for part in batch)


class GenomeModule(TrainingModule):
    """Cross-entropy of the log-odds, see `loss`, mean over families and genomes, small clades counting more; in
    training the mean over all log-odds that the method learns by a loss of their own.
    """

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return self._step(batch, "train")

    def validation_step(self, batch: Batch, index: int) -> None:
        self._step(batch, "val")

    def _step(self, batch: Batch, stage: str) -> Tensor:
        observed, truth, weights, recovery = batch
        hidden = None if recovery is None else self.network.noise.hidden(observed.present, recovery)
        predicted = self.network.learned(observed) if stage == "train" else [self.network(observed)]
        each = torch.stack([loss(log_odds, truth, hidden) for log_odds in predicted]).mean(0)
        mean = (weights * each).mean()
        self.log(f"{stage}_loss", mean, batch_size=len(weights))
        return mean


def loss(
    log_odds: Float[Tensor, "genomes families"],
    truth: Float[Tensor, "genomes families"],
    hidden: Float[Tensor, "genomes families"] | None = None,
) -> Float[Tensor, " genomes"]:
    """Mean of `cross_entropy` over families."""
    return cross_entropy(log_odds, truth, hidden).mean(1)


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


def train(
    method: Method,
    genomes: Genomes,
    *,
    draws: Draws,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    weight_decay: float,
    seed: int,
    fingerprint: dict[str, Any],
    **fitting: Any,
) -> list[dict[str, Any]]:
    """Train a method in place, and give a dict per epoch.

    Args:
        fitting: patience, device, progress, folder and resume of `omniset.training.fit.fit`.
    """
    checksum = 0
    itself = () if genomes.itself is None else (genomes.itself,)
    for part in (genomes.counts.data, genomes.counts.indices, genomes.train, *itself):
        checksum = zlib.crc32(np.ascontiguousarray(part).data, checksum)
    method.train()  # what methods share was left in evaluation mode by the one before
    module = GenomeModule(method, learning_rate, weight_decay, seed, fingerprint | {"data": checksum})
    fit(module, lesson(genomes, draws, batch_size, epochs, seed), epochs=epochs, log=None, **fitting)
    return module.history
