"""Genomes to learn from, degraded anew in every epoch, and the methods that learn to undo it, trained side by side."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float, Int, Int8
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor, nn

from omniset.genomes.baselines import (
    AsIs,
    Autoencoder,
    LikelihoodNeighbours,
    Mean,
    Method,
    Neighbours,
    Prevalence,
    PrincipalComponents,
)
from omniset.genomes.metadata import check_taxonomy, lineages, refuse_other_names
from omniset.genomes.model import EvidenceModel, Mixture, Predictions, WithoutNetwork, fit_weights
from omniset.genomes.noise import NoiseModel, Observed, Recovery, cross_entropy, degrade, flip
from omniset.genomes.options import CompleterOptions
from omniset.genomes.references import References
from omniset.genomes.seed import SeedModel
from omniset.runs import devices
from omniset.tables.doubts import REFUSED
from omniset.training.data import Key, Lesson
from omniset.training.fit import TrainingModule, fit
from omniset.trials.stacking import in_words

Rows = Int[np.ndarray, " chosen"]  # positions of genomes
CLUSTERED = 5000  # genomes, at most, whose clades are made by clustering where there is no taxonomy
AT_ONCE = 1000  # genomes whose families are counted at a time
BATCH_SIZE = 16  # genomes per step, and at a time when completing
WEIGHT_DECAY = 1e-2
PATIENCE = 3  # epochs without progress on the genomes kept back, after which a training stops; its best weights stay
VALIDATION_FRACTION = 0.1  # share of the genomes that are kept back, by whole clades
MOST_REFERENCES = 4000  # genomes that are kept to compare with
COMPLETENESS, CONTAMINATION = (0.3, 1.0), (0.0, 0.12)  # lowest and highest that are learned from
NEAR = 0.5  # how often a donor is of the clade above the genome's own
ERROR = 0.05  # of an estimated completeness or contamination, at most
# The document's noise: (missed, foreign) in the first, second and last third of the epochs.
CURRICULUM = ((0.10, 0.01), (0.25, 0.02), (0.50, 0.05))
# How often a genome's clade one rank up, its clade, and only it, are hidden from its references.
HIDDEN = (0.25, 0.5, 0.25)
# Completeness and contamination, in percent, of the genomes that the weights of a mixture are fitted to.
QUALITIES = ((97.0, 1.0), (90.0, 5.0), (80.0, 0.0), (65.0, 5.0), (50.0, 2.0))
PAIRS = 400_000  # genomes x families, at most, that weights are fitted to, drawn at random
TOGETHER = 150  # genomes that are completed together, at most, when weights are fitted
NO_NETWORK = "no-network"  # our model without its network
UNTRAINED = ("as-is", "prevalence", "prevalence-bayes", "knn", "knn-likelihood")
MEAN_OF = ("knn-likelihood", "pca", "autoencoder")  # the strongest simple method
# How the methods that are compared with are trained.
TRAINING: dict[str, dict[str, Any]] = {
    # The document's optimiser; its curriculum needs all its epochs.
    "seed": {"epochs": 6, "learning_rate": 1e-3, "weight_decay": 0.0, "batch_size": 10, "patience": None},
    "pca": {"epochs": 20, "learning_rate": 3e-3},
    "autoencoder": {"epochs": 40, "learning_rate": 1e-3},
}
Batch = tuple[Observed, Tensor, Tensor, Recovery | None]
Degraded = tuple[np.ndarray, Observed, Recovery]  # positions, what is observed, and how much of them that truly is


@dataclass
class Clades:
    """Which genomes belong together."""

    # (genomes, 3) number of the clade above, of the clade, and of the genome itself.
    codes: Int[np.ndarray, "genomes three"]
    given: bool = True  # they come from a taxonomy; else from the genomes' similarity

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
        refuse_other_names(taxonomy, names, "taxonomy", REFUSED)
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

    def weights(self, rows: Rows) -> Float[np.ndarray, " chosen"]:
        """(chosen,) so that every clade counts the same; mean 1."""
        _, which, sizes = np.unique(self.groups[rows], return_inverse=True, return_counts=True)
        weights = 1 / sizes[which]
        return weights / weights.mean() if len(weights) else weights

    def drawn(self, rows: Rows, number: int, seed: int) -> Int[np.ndarray, " drawn"]:
        """All of these genomes, or so many of them, drawn over the clades."""
        if len(rows) <= number:
            return rows
        weights = self.weights(rows)
        chosen = np.random.default_rng(seed).choice(len(rows), number, replace=False, p=weights / weights.sum())
        return rows[np.sort(chosen)]

    def singles(self, train: Int[np.ndarray, " train"], number: int, seed: int) -> Int[np.ndarray, " single"]:
        """So many training genomes, drawn over the clades, that leave at least half of each clade."""
        shuffled = np.random.default_rng(seed).permutation(train)
        of_clade = pd.Series(self.groups[shuffled]).groupby(self.groups[shuffled])
        spare = (of_clade.cumcount() < of_clade.transform("size") // 2).to_numpy()
        return self.drawn(np.sort(shuffled[spare]), number, seed)


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


def drawn_quality(rng: np.random.Generator, itself: float = 1.0) -> tuple[float, float, float, float]:
    """Completeness and contamination of a genome to learn from, in relation to the genome that is degraded; and both in
    relation to its organism, as the method reads them: the truth, an estimate, or NaN. One genome in five is complete,
    two of five are clean.
    """
    c = 1.0 if rng.random() < 0.2 else rng.uniform(*COMPLETENESS)
    q = 0.0 if rng.random() < 0.4 else rng.uniform(*CONTAMINATION)
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
    """Complete genomes to learn from."""

    counts: sp.csr_array  # (genomes, families) of the vocabulary
    clades: Clades
    # Positions, no clade in both.
    train: Int[np.ndarray, " train"]
    validation: Int[np.ndarray, " validation"]
    # Positions, out of `train`, of the genomes kept to compare with.
    references: Int[np.ndarray, " references"] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    # (genomes,) how complete each is itself. None: all are taken for complete.
    itself: Float[np.ndarray, " genomes"] | None = None
    # Positions of genomes that are kept back although others of their clades are in `train`.
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


def carriers(counts: sp.csr_array, rows: Rows) -> Int[np.ndarray, " families"]:
    """(families,) how many of the chosen genomes have each family. The rows of a large table are not copied at once."""
    number = np.zeros(counts.shape[1], dtype=np.int64)
    for some in np.split(rows, range(AT_ONCE, len(rows), AT_ONCE)):
        number += np.bincount(counts[some].indices, minlength=len(number))
    return number


def recovery_of(told: Iterable[tuple[float, float, float]]) -> Recovery:
    """Of genomes one by one."""
    return Recovery(*torch.tensor([*told], dtype=torch.float32).unbind(1))


@dataclass
class Noisy:
    """Complete genomes, degraded at one level, with a method's log-odds."""

    rows: Int[np.ndarray, " genomes"]  # positions in the table
    truth: Bool[np.ndarray, "genomes families"]  # what the complete genomes have
    observed: Bool[np.ndarray, "genomes families"]  # what was recovered
    log_odds: Float[np.ndarray, "genomes families"]
    novelty: Float[np.ndarray, " genomes"]  # 1 - similarity to the nearest reference
    # (genomes, families) by which log-odds change if rare families are lost more often; None: not asked for.
    shift: Float[np.ndarray, "genomes families"] | None = None
    # (genomes, families) how often a family of the organism is not in `truth`, since the genome is incomplete itself,
    # see `NoiseModel.hidden`. None: it is complete.
    hidden: Float[np.ndarray, "genomes families"] | None = None

    @property
    def probability(self) -> Float[np.ndarray, "genomes families"]:
        """That the organism has the family."""
        return 1 / (1 + np.exp(-self.log_odds))

    @property
    def shown(self) -> Float[np.ndarray, "genomes families"]:
        """Probability that `truth` has it: what it can be compared with."""
        return self.probability if self.hidden is None else self.probability * (1 - self.hidden)

    @property
    def shifted(self) -> Noisy:
        """The same, had it been known that rare families are lost more often."""
        assert self.shift is not None
        return replace(self, log_odds=self.log_odds + self.shift, shift=None)


def degraded(
    genomes: Genomes, rows: Rows, level: tuple[float, float] | str, kind: str, seed: int, lost: str = "copies"
) -> Iterator[Degraded]:
    """Genomes degraded at a level, 16 at a time: their positions, what is observed of them, and how much of them that
    truly is. Same call, same noise.

    Args:
        level: Completeness and contamination in percent, of the organism: less is taken from a genome that is
            incomplete itself, and nothing from one that has no more; or "iid:missed:foreign", independent noise of
            families.
        kind: What methods read of the quality: "known", "estimated", "unknown".
        lost: How genes are lost, one of `noise.LOSSES`.
    """
    prevalence = genomes.prevalence
    for start in range(0, len(rows), 16):
        some = rows[start : start + 16]
        counts, quality, told = [], [], []
        for i in some.tolist():
            rng = np.random.default_rng([seed, i])
            row = genomes.row(i)
            if isinstance(level, str):
                missed, foreign = (float(v) for v in level.split(":")[1:])
                counts.append(flip(row, missed, foreign, rng))
                quality.append((1 - missed, foreign))
                told.append((1.0, 1 - missed, foreign))
            else:
                itself = 1.0 if genomes.itself is None else float(genomes.itself[i])
                c, q = min(level[0] / 100, itself), level[1] / 100
                donor = genomes.donor(i, rng.random() < NEAR, rng)
                counts.append(degrade(row, donor, c / itself, q / itself, rng, lost, prevalence))
                quality.append(stated_quality(c, q, kind, rng))
                told.append((itself, c, q))
        c_stated, q_stated = torch.tensor(quality, dtype=torch.float32).unbind(1)
        yield some, Observed(torch.from_numpy(np.stack(counts)).float(), c_stated, q_stated), recovery_of(told)


@torch.no_grad()
def apply_all(
    methods: dict[str, Method],
    genomes: Genomes,
    batches: Iterable[Degraded],
    device: torch.device | str = "cpu",
    shift: bool = False,
    references: References | None = None,
) -> dict[str, Noisy]:
    """Predictions of several methods for the same genomes, see `degraded`.

    Args:
        shift: Keep by how much log-odds of the first method change if rare families are lost more often.
        references: By which novelty is told. None: those of a method that has some.
    """
    for method in methods.values():
        method.to(device)
    log_odds: dict[str, list[np.ndarray]] = {name: [] for name in methods}
    chosen, observed, novelty, shifts, hidden = [], [], [], [], []
    noise = next(iter(methods.values())).noise
    told: Any = references or next((m.references for m in methods.values() if hasattr(m, "references")), None)
    if told is not None:
        told.to(device)
    for some, batch, recovery in batches:
        batch = batch.to(device)
        chosen.append(some)
        observed.append(batch.present.cpu().numpy())
        for name, method in methods.items():
            log_odds[name].append(method(batch).cpu().numpy())
        if genomes.itself is not None:
            hidden.append(noise.hidden(batch.present, recovery.to(device)).cpu().numpy())
        if shift:
            first = next(iter(methods))
            shifts.append(methods[first].shift(batch, torch.from_numpy(log_odds[first][-1]).to(device)).cpu().numpy())
        if told is None:
            novelty.append(np.full(len(batch), np.nan, dtype=np.float32))
        else:
            near = told.corrected_similarity(noise.settle(batch)[0], noise).amax(1)
            novelty.append(1 - near.cpu().numpy())
    rows = np.concatenate(chosen)
    truth = genomes.counts[rows].toarray() > 0
    seen, far = np.concatenate(observed), np.concatenate(novelty)
    others = [np.concatenate(parts) if parts else None for parts in (shifts, hidden)]
    return {name: Noisy(rows, truth, seen, np.concatenate(odds), far, *others) for name, odds in log_odds.items()}


class GenomeBatches:
    """Batches of degraded genomes by (epoch, position). Noise depends on (seed, epoch, genome) alone; when not training
    it is the same in every epoch.

    Args:
        curriculum: The document's independent noise of families, by the share of epochs that have passed.
    """

    def __init__(self, genomes: Genomes, seed: int, epochs: int, curriculum: bool = False) -> None:
        self.genomes, self.seed, self.epochs, self.curriculum = genomes, seed, epochs, curriculum
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
        if self.curriculum:
            stage = min(len(CURRICULUM) * epoch // max(self.epochs, 1), len(CURRICULUM) - 1) if training else 1
            (missed, contamination), c, q = CURRICULUM[stage], np.nan, np.nan
            seen, completeness = flip(counts, missed, contamination, rng), 1 - missed
        else:
            completeness, contamination, c, q = drawn_quality(rng, itself)
            donor = self.genomes.donor(i, rng.random() < NEAR, rng)
            seen = degrade(counts, donor, completeness, contamination, rng)
        level, codes = rng.choice(3, p=HIDDEN) if training else 2, self.genomes.clades.codes
        hidden = codes[self.genomes.references, level] == codes[i, level]
        told = itself, itself * completeness, itself * contamination
        return seen, c, q, hidden, counts > 0, float(self.weights[i]), told


def lesson(genomes: Genomes, batch_size: int, epochs: int, seed: int, curriculum: bool = False) -> Lesson:
    """Training and validation batches."""
    make = GenomeBatches(genomes, seed, epochs, curriculum)
    return Lesson(make, genomes.train, genomes.validation, batch_size=batch_size, seed=seed)


class GenomeModule(TrainingModule):
    """`cross_entropy` of the log-odds, mean over families and genomes, small clades counting more; in
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
        each = torch.stack([cross_entropy(log_odds, truth, hidden).mean(1) for log_odds in predicted]).mean(0)
        mean = (weights * each).mean()
        self.log(f"{stage}_loss", mean, batch_size=len(weights))
        return mean


def train(
    method: Method,
    genomes: Genomes,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    weight_decay: float,
    seed: int,
    fingerprint: dict[str, Any],
    **fitting: Any,
) -> list[dict[str, Any]]:
    """Train a method in place, that of a document with its curriculum, and give a dict per epoch.

    Args:
        fitting: patience, device, progress, folder and resume of `omniset.training.fit.fit`.
    """
    checksum = 0
    itself = () if genomes.itself is None else (genomes.itself,)
    for part in (genomes.counts.data, genomes.counts.indices, genomes.train, *itself):
        checksum = zlib.crc32(np.ascontiguousarray(part).data, checksum)
    method.train()  # what methods share was left in evaluation mode by the one before
    module = GenomeModule(method, learning_rate, weight_decay, seed, fingerprint | {"data": checksum})
    data = lesson(genomes, batch_size, epochs, seed, curriculum=isinstance(method, SeedModel))
    fit(module, data, epochs=epochs, log=None, **fitting)
    return module.history


class Suite(nn.Module):
    """Methods that are fitted on the same genomes, sharing one noise model and one set of reference genomes.

    Args:
        names: Out of `MAKERS`; "evidence" before what is made of it.
        asked: Number of validation genomes of which it is kept what was said, see `calibration.asked`.
    """

    said: Int8[Tensor, "asked families"]
    true: Bool[Tensor, "asked families"]

    def __init__(self, families: int, references: int, names: Sequence[str], asked: int = 0) -> None:
        super().__init__()
        if unknown := [name for name in names if name not in MAKERS]:
            raise ValueError(f"methods must be out of {', '.join(MAKERS)}; got {unknown[0]!r}")
        self.families = families
        self.noise, self.references = NoiseModel(families), References(references, families)
        for name, dtype in (("said", torch.int8), ("true", torch.bool)):
            self.register_buffer(name, torch.zeros(asked, families, dtype=dtype))
        self.methods = nn.ModuleDict()
        for name in dict.fromkeys(names):
            self.methods[name] = MAKERS[name](self)

    def fit(
        self,
        genomes: Genomes,
        options: CompleterOptions,
        epochs: int,
        folder: Path | None,
        resume: bool,
        instead: dict[str, int] | None = None,
    ) -> dict[str, list[dict[str, Any]]]:
        """Fit every method; returns the history of those that are trained.

        Args:
            options: Of the architecture; methods beside it are trained with TRAINING, on the same device.
            instead: Epochs of each method that is trained, all of which are taken.
        """
        main, seed, rng = options.architecture, options.seed, np.random.default_rng(options.seed)
        counts = genomes.training_counts
        self.noise.fit(counts, rng, None if genomes.itself is None else genomes.itself[genomes.train])
        self.references.fit(genomes.counts[genomes.references])
        if genomes.itself is not None:
            self.references.impute(self.noise, genomes.itself[genomes.references])
        for name in self.methods:
            self[name].fit(counts, rng)
        del counts  # a copy, where genomes are kept back
        history = {}
        usual = {"epochs": epochs, "learning_rate": options.learning_rate, "batch_size": BATCH_SIZE}
        usual |= {"weight_decay": WEIGHT_DECAY, "patience": PATIENCE}
        computing: dict[str, Any] = {"device": options.device, "progress": options.progress, "resume": resume}
        for name in self.methods:
            method = self[name]
            if method.trained:
                length = {} if instead is None else {"epochs": instead[name], "patience": None}
                history[name] = train(
                    method,
                    genomes,
                    seed=seed,
                    folder=folder if folder is None or name == main else folder / name,
                    fingerprint=options.fingerprint() | {"method": name},
                    **computing | usual | ({} if name == main else TRAINING.get(name, {})) | length,
                )
            if isinstance(method, Mixture):
                mix(method, genomes, seed, devices.find(options.device))
                weigh_completeness(method, genomes, seed, devices.find(options.device))
        self.eval()
        return history

    def __getitem__(self, name: str) -> Method:
        method = self.methods[name]
        assert isinstance(method, Method)
        return method


MAKERS: dict[str, Callable[[Suite], Method]] = {
    "as-is": lambda suite: AsIs(suite.noise),
    "prevalence": lambda suite: Prevalence(suite.noise, bayes=False),
    "prevalence-bayes": lambda suite: Prevalence(suite.noise, bayes=True),
    "knn": lambda suite: Neighbours(suite.noise, suite.references),
    "knn-likelihood": lambda suite: LikelihoodNeighbours(suite.noise, suite.references),
    "pca": lambda suite: PrincipalComponents(suite.noise, suite.families),
    "autoencoder": lambda suite: Autoencoder(suite.noise, suite.families),
    "mean": lambda suite: Mean(suite.noise, [suite[name] for name in MEAN_OF]),
    "evidence": lambda suite: EvidenceModel(suite.noise, suite.references, suite.families),
    "seed": lambda suite: SeedModel(suite.noise, suite.families),
    NO_NETWORK: lambda suite: WithoutNetwork(suite.noise, cast(EvidenceModel, suite["evidence"])),
}


def mix(model: Mixture, genomes: Genomes, seed: int, device: torch.device | str = "cpu") -> None:
    """Fit the weights of a mixture, in place, to degraded genomes that were kept back, with relatives among the
    references and without: in both groups clades count alike. Then to genomes kept back that are completed together.
    Without genomes all parts count the same.
    """
    groups = [rows for rows in (genomes.validation, genomes.single) if len(rows)]
    if not groups:
        return
    rng = np.random.default_rng(seed)
    model.eval().to(device)
    noise = [seed * 1000 + 500 + number for number in range(len(QUALITIES))]
    each = max(PAIRS // (sum(map(len, groups)) * len(QUALITIES)), 1)
    alone = [
        some
        for (level, at), rows in product(zip(QUALITIES, noise, strict=True), groups)
        for some in _predictions(model, genomes, rows, degraded(genomes, rows, level, "estimated", at), each, rng)
    ]
    together: list[Predictions] = []
    if len(genomes.validation):
        # One clade after another: relatives stay together.
        order = np.argsort(genomes.clades.groups[genomes.validation], kind="stable")
        rows = genomes.validation[order[:TOGETHER]]
        each = max(PAIRS // (len(rows) * len(QUALITIES)), 1)
        for level, at in zip(QUALITIES, noise, strict=True):
            batches = _together(model, list(degraded(genomes, rows, level, "estimated", at)))
            together += _predictions(model, genomes, rows, batches, each, rng)
    mixture, contest, best = fit_weights(alone, together)
    model.mixture.copy_(mixture)
    if contest is not None:
        name = model.NAMES[best]
        both = f"{contest.mixed:.4f} of all parts mixed, {contest.alone:.4f} of {name}, the best part, alone"
        model.verdict = in_words({name: 1.0}) if contest.below else f"log loss on clades left out: {both}"


@torch.no_grad()
def weigh_completeness(model: Mixture, genomes: Genomes, seed: int, device: torch.device | str = "cpu") -> None:
    """Fit how much completeness counts in how many families are missing, see `Mixture.of_number`, in place: so that in
    degraded genomes of the validation clades, of which it is known, the logarithms of how many are expected over how
    many are missing have the least sum of squares over the qualities; clades count alike.
    """
    weights, error = torch.linspace(0, 1, 11, device=device)[:, None], torch.zeros(11, device=device)
    of_clade = torch.from_numpy(genomes.clades.weights(genomes.validation)).to(device)
    for at, level in enumerate(QUALITIES if len(of_clade) else ()):
        said, there, first = torch.zeros(11, device=device), torch.tensor(0.5, device=device), 0
        for some, batch, recovery in degraded(genomes, genomes.validation, level, "known", seed * 1000 + 600 + at):
            observed, counts = batch.to(device), torch.from_numpy(genomes.counts[some].toarray()).to(device)
            odds, w = model(observed), of_clade[first : first + len(some)]
            p, kept = odds.sigmoid() * ~observed.present, torch.ones_like(odds)
            if genomes.itself is not None:
                kept = 1 - model.noise.hidden(observed.present, recovery.to(device))
            summed, by_quality = model.missing(odds, observed)
            expected = torch.lerp(summed, by_quality, weights).exp() * (p * kept).sum(1) / p.sum(1)
            said += (w * expected).sum(1)
            there += (w * ((counts > 0) & ~observed.present).sum(1)).sum()
            first += len(some)
        error += (said / there).log().square()
    model.completeness_weight.copy_(weights[error.argmin(), 0])


def _together(model: Mixture, batches: Sequence[Degraded]) -> Iterator[Degraded]:
    """Each genome a reference of the others as long as this is read."""
    seen = [observed.to(model.references.presence.device) for _, observed, _ in batches]
    for position, observed in model.references.each_with_others(model.noise, seen):
        some, _, recovery = batches[position]
        yield some, observed, recovery


def _predictions(
    model: Mixture, genomes: Genomes, rows: Rows, batches: Iterable[Degraded], each: int, rng: np.random.Generator
) -> Iterator[Predictions]:
    """What the parts say of so many families of each genome, drawn at random; of all, where these are no more."""
    by_clade = dict(zip(rows.tolist(), genomes.clades.weights(rows).tolist(), strict=True))
    device = model.mixture.device
    for some, observed, recovery in batches:
        with torch.no_grad():
            parts, about = (values.cpu().double() for values in model.parts(observed.to(device)))
        truth = torch.from_numpy(genomes.counts[some].toarray() > 0).double()
        shape, every = (len(some), each), np.arange(parts.shape[1])
        chosen = torch.from_numpy(rng.choice(every, shape) if each < len(every) else np.tile(every, (len(some), 1)))
        hidden = None
        if genomes.itself is not None:
            of_all = model.noise.hidden(observed.present.to(device), recovery.to(device)).cpu().double()
            hidden = of_all.gather(1, chosen).flatten()
        weights = torch.tensor([by_clade[i] for i in some.tolist()], dtype=torch.float64)
        yield Predictions(
            parts.gather(1, chosen[..., None].expand(-1, -1, parts.shape[2])).flatten(0, 1),
            truth.gather(1, chosen).flatten(),
            weights.repeat_interleave(chosen.shape[1]),
            about.repeat_interleave(chosen.shape[1], 0),
            observed.present.cpu().gather(1, chosen).flatten(),
            torch.from_numpy(genomes.clades.groups[some]).repeat_interleave(chosen.shape[1]),
            hidden,
        )
