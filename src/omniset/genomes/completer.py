"""The public class: fit on complete genomes, then complete and clean others."""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float, Int
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from omniset import devices, explain
from omniset.encoders import ENCODERS
from omniset.genomes import calibration
from omniset.genomes.calibration import Level
from omniset.genomes.data import RANKS, Genome, GenomeTable, kind_of_identifier, read_table
from omniset.genomes.metadata import lineages, rows_by_name
from omniset.genomes.model import EvidenceModel
from omniset.genomes.noise import Observed
from omniset.genomes.suite import ARCHITECTURES, BASELINES, UNTRAINED, Suite
from omniset.genomes.training import Clades, Draws, Genomes, split
from omniset.sets import SetBatch
from omniset.training import artefacts

METHODS = ("model", *BASELINES, "auto")
Table = GenomeTable | pd.DataFrame | str | Path


@dataclass
class Completion:
    """What is said of one genome. Families are those of the vocabulary, in its order.

    Attributes:
        name: Of the genome.
        counts: (families,) copies observed.
        log_odds: (families,) natural logarithm of p / (1 - p), p the probability that the complete genome has it.
        call: (families,) whether it is called present.
        unknown: Copies of observed families that are not in the vocabulary, of which nothing is said.
        completeness, contamination: In percent, as given; or estimated where not.
        given: Both were given.
        expected, low, high: Number of families of the complete genome, with an interval of 95 %.
        novelty: 1 - estimated Jaccard similarity to the nearest reference genome.
        nearest: That reference.
        far: Farther than 95 % of the validation genomes, whose clades were kept back.
        method: Which one it was.
        warnings: A sentence each.
    """

    name: str
    counts: Int[np.ndarray, " families"]
    log_odds: Float[np.ndarray, " families"]
    call: Bool[np.ndarray, " families"]
    unknown: dict[str, int]
    completeness: float
    contamination: float
    given: bool
    expected: float
    low: float
    high: float
    novelty: float
    nearest: str
    far: bool
    method: str
    warnings: list[str] = field(default_factory=list)

    @property
    def probability(self) -> Float[np.ndarray, " families"]:
        return 1 / (1 + np.exp(-self.log_odds))

    @property
    def observed(self) -> Bool[np.ndarray, " families"]:
        return self.counts > 0

    @property
    def added(self) -> Bool[np.ndarray, " families"]:
        return self.call & ~self.observed

    @property
    def removed(self) -> Bool[np.ndarray, " families"]:
        return ~self.call & self.observed


@dataclass
class Explanation:
    """Why a family was called present, or absent, in a genome.

    Attributes:
        log_odds: Of the family.
        terms: What they are the sum of: neighbours, context, evidence.
        families: A row per observed family: `family`, `count`, `change` (log-odds now minus those without it, its
            count set to 0 and all else as it is) and `attribution` (0 to 1, self-attention attribution).
        references: The nearest reference genomes: `genome`, `similarity`, `has_family`, lineage.
    """

    genome: str
    family: str
    observed: bool
    log_odds: float
    terms: dict[str, float]
    families: pd.DataFrame
    references: pd.DataFrame

    @property
    def probability(self) -> float:
        return float(1 / (1 + np.exp(-self.log_odds)))


@dataclass
class _About:
    """What a completion depends on beside its families; see Completion."""

    completeness: float
    contamination: float
    given: bool
    novelty: float
    nearest: str
    level: Level
    method: str


class GenomeCompleter(BaseEstimator):
    """Which gene families an incomplete, contaminated genome truly has, with probabilities.

    Args:
        architecture: "evidence" (a set transformer and reference genomes, plus what was observed) or "seed" (a set
            transformer alone, as its document says, which cannot copy its input).
        method: What completes: "model" (the architecture), a baseline ("as-is", "prevalence", "prevalence-bayes",
            "knn", "pca", "autoencoder", "autoencoder-evidence"), or "auto" (what lost least on validation clades at
            the genome's completeness and contamination: the model, knn, prevalence-bayes or as-is).
        encoder: In `omniset.encoders.ENCODERS`. None: "ust" for "evidence", "set-transformer-sab" for "seed".
        dim, depth, num_heads, num_inducing, encoder_options: Its size.
        epochs: At most so many. None: 6, or for few genomes enough for 250 steps.
        batch_size: Genomes per step, and at a time when completing.
        learning_rate, weight_decay: Of AdamW.
        patience: Stop after so many epochs without a better validation loss. None: never.
        validation_fraction: Share of the genomes kept back, by whole clades, to watch the training and to calibrate.
        clade: Rank of the taxonomy whose clades are never split, such as "family" or "order".
        completeness, contamination: Bounds in percent of what is simulated in training.
        min_genomes: Families of fewer training genomes are left out of the vocabulary.
        max_references: Training genomes kept to compare with, at most, drawn over the clades.
        seed: Of everything drawn. The same seed gives the same numbers to the bit on a CPU.
        device: "auto", "cpu", "cuda" or "mps".
        progress: Show progress.

    Attributes:
        families_: The vocabulary.
        network_: All methods.
        history_: A dict per epoch of the architecture's training.
        levels_: What validation says, level by level.
        references_: Names and lineages of the reference genomes.
    """

    def __init__(
        self,
        architecture: str = "evidence",
        *,
        method: str = "model",
        encoder: str | None = None,
        dim: int = 64,
        depth: int = 2,
        num_heads: int = 4,
        num_inducing: int = 16,
        encoder_options: dict[str, Any] | None = None,
        epochs: int | None = None,
        batch_size: int = 16,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-2,
        patience: int | None = 3,
        validation_fraction: float = 0.1,
        clade: str = "family",
        completeness: tuple[float, float] = (30.0, 100.0),
        contamination: tuple[float, float] = (0.0, 12.0),
        min_genomes: int = 1,
        max_references: int = 4000,
        seed: int = 0,
        device: str = "auto",
        progress: bool = True,
    ) -> None:
        self.architecture = architecture
        self.method = method
        self.encoder = encoder
        self.dim = dim
        self.depth = depth
        self.num_heads = num_heads
        self.num_inducing = num_inducing
        self.encoder_options = encoder_options
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.clade = clade
        self.completeness = completeness
        self.contamination = contamination
        self.min_genomes = min_genomes
        self.max_references = max_references
        self.seed = seed
        self.device = device
        self.progress = progress

    # ------------------------------------------------------------------ the verbs

    def fit(
        self,
        table: Table,
        taxonomy: pd.DataFrame | None = None,
        *,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> GenomeCompleter:
        """Learn from complete genomes.

        Args:
            table: A GenomeTable; a frame, genomes x families; or what `read_table` reads.
            taxonomy: Index genome, a column per rank, as `read_taxonomy` gives. Without one, clades are clusters of
                similar genomes.
            folder: Keep checkpoints here.
            resume: Go on with an interrupted run in this folder.

        Raises:
            ValueError: An argument out of its bounds, too few genomes, or a taxonomy of other genomes.
            KeyboardInterrupt: Ctrl-C; with a folder, the last whole epoch is kept for `resume`.
        """
        self.check_arguments()
        found = as_table(table)
        if len(found) < 8:
            raise ValueError(f"table has {len(found)} genomes, at least 8 are needed to learn from")
        sizes = np.diff(found.counts.indptr)
        if not sizes.all():
            without = [name for name, size in zip(found.names, sizes, strict=True) if not size]
            warnings.warn(f"{len(without)} genomes without any family are left out: {without[0]!r}", stacklevel=2)
            found = found.select(sizes > 0)
        rng = np.random.default_rng(self.seed)
        clades = (
            Clades.of_similarity(found.counts)
            if taxonomy is None
            else Clades.of_taxonomy(taxonomy, found.names, self.clade)
        )
        if taxonomy is None and len(np.unique(clades.groups)) == len(found):
            warnings.warn(
                "without a taxonomy every genome is a clade of its own, and what validation says is too good: "
                "give a taxonomy",
                stacklevel=2,
            )
        train, validation = split(clades.groups, (self.validation_fraction,), rng)
        return self.fit_split(found, taxonomy, clades, train, validation, folder=folder, resume=resume)

    def fit_split(
        self,
        table: GenomeTable,
        taxonomy: pd.DataFrame | None,
        clades: Clades,
        train: Int[np.ndarray, " train"],
        validation: Int[np.ndarray, " validation"],
        *,
        also: Sequence[str] = (),
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> GenomeCompleter:
        """`fit` with training and validation genomes chosen. Others of the table are not looked at.

        Args:
            also: Further methods to train.

        Raises:
            ValueError: A part is empty.
        """
        self.check_arguments()
        for name, part in (("training", train), ("validation", validation)):
            if not len(part):
                raise ValueError(
                    f"there is no {name} genome: {len(np.unique(clades.groups))} clades of rank {self.clade!r} cannot "
                    f"be split at validation_fraction={self.validation_fraction}; take a lower rank as clade"
                )
        has = np.bincount(table.counts[train].indices, minlength=len(table.families))
        columns = np.flatnonzero(has >= self.min_genomes)
        if not len(columns):
            raise ValueError(f"no family is in min_genomes={self.min_genomes} training genomes")
        references = train
        if len(train) > self.max_references:
            weights = calibration.clade_weights(clades.groups[train])
            chosen = np.random.default_rng(self.seed).choice(
                len(train), self.max_references, replace=False, p=weights / weights.sum()
            )
            references = train[np.sort(chosen)]
        genomes = Genomes(table.counts[:, columns], clades, train, validation, references)
        self._set_vocabulary([table.families[i] for i in columns], table)
        start = time.monotonic()
        self.references_ = _lineages([table.names[i] for i in references], taxonomy)
        self.with_taxonomy_ = clades.given
        names = [*dict.fromkeys([*self._trained(), *also])]
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            suite = self._build(len(columns), len(references), names)
        unwatched = ("device", "progress", "method")
        histories = suite.fit(
            genomes,
            main=self.architecture,
            draws=Draws(
                (self.completeness[0] / 100, self.completeness[1] / 100),
                (self.contamination[0] / 100, self.contamination[1] / 100),
            ),
            seed=self.seed,
            folder=None if folder is None else Path(folder),
            resume=resume,
            fingerprint={k: v for k, v in self.get_params().items() if k not in unwatched},
            epochs=self.epochs or max(6, -(-250 * self.batch_size // len(train))),
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            patience=self.patience,
            device=self.device,
            progress=self.progress,
        )
        self.seconds_ = round(time.monotonic() - start, 1)
        self.network_, self.trained_ = suite, names
        self.histories_ = histories
        self.history_ = histories.get(self.architecture, [])
        candidates = {name: suite[name] for name in self._candidates()}
        main = self._calibrated(self.method)
        self.levels_ = calibration.calibrate(
            candidates | {main: suite[main]}, main, genomes, self.seed, devices.find(self.device)
        )
        suite.to("cpu")
        self.sizes_ = {
            "genomes": len(train) + len(validation),
            "training": len(train),
            "validation": len(validation),
            "training clades": len(np.unique(clades.groups[train])),
            "validation clades": len(np.unique(clades.groups[validation])),
            "families": len(columns),
        }
        return self

    def complete(self, table: Table, quality: pd.DataFrame | None = None, *, method: str | None = None) -> pd.DataFrame:
        """Probabilities that the complete genomes have the families: index genome, a column per family.

        Args:
            table: As for fit. Families that are not in the vocabulary are left out; a warning says how many.
            quality: Index genome, columns `completeness` and `contamination` in percent, NaN where not known; as
                `read_qualities` gives. Default: estimated from marker families.
            method: Another one than the completer's.

        Raises:
            ValueError: A quality out of its bounds; no family that is known.
        """
        self._fitted()
        found = as_table(table, known=self.families_)
        rows = list(self.completions(found, quality, method=method))
        lost = {family for one in rows for family in one.unknown}
        if lost:
            warnings.warn(
                f"{len(lost)} families, such as {sorted(lost)[0]!r}, are not in the model's vocabulary of "
                f"{len(self.families_)}: nothing is said of them",
                stacklevel=2,
            )
        values = np.stack([one.probability for one in rows]) if rows else np.zeros((0, len(self.families_)))
        index = pd.Index([one.name for one in rows], name="genome")
        return pd.DataFrame(values, index=index, columns=pd.Index(self.families_, name="family"))

    def completions(
        self,
        genomes: Iterable[Genome] | pd.DataFrame | str | Path,
        quality: pd.DataFrame | None = None,
        *,
        method: str | None = None,
        threshold: float = 0.5,
        precision: float | None = None,
    ) -> Iterator[Completion]:
        """Complete genomes as they come, a batch in memory at a time.

        Args:
            genomes: Such as a GenomeFile or a GenomeTable; or what `complete` takes.
            quality, method: As in `complete`.
            threshold: Families with at least this probability are called present.
            precision: Instead, call against what was observed (add or remove a family) only where on validation
                clades this share of such changes, at this completeness and contamination, was right.

        Raises:
            ValueError: An argument out of its bounds; no family of the first genomes is known.
        """
        self._fitted()
        method = self.method if method is None else method
        self._check_method(method)
        if not 0 < threshold < 1:
            raise ValueError(f"threshold must be between 0 and 1, got {threshold}")
        if precision is not None and not 0.5 <= precision < 1:
            raise ValueError(f"precision must be at least 0.5 and below 1, got {precision}")
        if precision is not None and threshold != 0.5:
            raise ValueError(f"give threshold or precision, not both: got {threshold} and {precision}")
        if precision is not None and self._calibrated(method) != self._calibrated(self.method):
            raise ValueError(
                f"precision is calibrated for method {self._calibrated(self.method)!r}, not for {method!r}: fit with "
                "that method, or give a threshold"
            )
        if isinstance(genomes, pd.DataFrame | str | Path):
            genomes = as_table(genomes, known=self.families_)
        return self._completions(genomes, check_quality(quality), method, threshold, precision)

    def explain(
        self, table: Table, genome: str, family: str, quality: pd.DataFrame | None = None, *, steps: int = 20
    ) -> Explanation:
        """Why the model says what it says of a family in a genome.

        Every observed family is left out in turn, and attention is attributed; both are of the model's architecture.

        Args:
            table: With the genome.
            genome, family: Names.
            quality: As in `complete`.
            steps: Of the attribution's integral.

        Raises:
            ValueError: A genome that is not in the table, or is empty; a family that is not in the vocabulary; an
                architecture other than "evidence".
        """
        model = self._fitted()[self.architecture] if self.architecture in self._fitted().methods else None
        if not isinstance(model, EvidenceModel):
            raise ValueError("explain is for architecture='evidence', whose log-odds are a sum of terms")
        if family not in self._position:
            raise ValueError(
                f"family {family!r} is not in the model's vocabulary, which has such as {self.families_[0]!r}"
            )
        source = table if isinstance(table, GenomeTable | pd.DataFrame) else as_table(table, known=self.families_)
        one = next((g for g in as_table(source) if g.name == genome), None)
        if one is None:
            raise ValueError(f"genome {genome!r} is not in the table")
        batch = self._batch([one], check_quality(quality))[0]
        which = batch.present[0].nonzero()[:, 0]
        if not len(which):
            raise ValueError(f"genome {genome!r} has no family that the model knows: it gets the prior, of prevalence")
        target = self._position[family]
        with torch.no_grad():
            settled, given = model.noise.settle(batch)
            terms = {name: float(values[0, target]) for name, values in model.terms(batch).items()}
            total = sum(terms.values())
            changes = []
            for some in which.split(4 * self.batch_size):
                counts = settled.counts.repeat(len(some), 1)
                counts[torch.arange(len(some)), some] = 0
                without = Observed(
                    counts, settled.completeness.expand(len(some)), settled.contamination.expand(len(some))
                )
                changes.append(total - model.log_odds(without, given.expand(len(some), 2))[:, target])
            similar = model.references.corrected_similarity(settled, model.noise)[0]
        scores = (
            self._attribution(model, settled, given, target, steps)
            if explain.attends(model.encoder)
            else np.full(len(which), np.nan)
        )
        families = pd.DataFrame(
            {
                "family": [self.families_[i] for i in which.tolist()],
                "count": batch.counts[0, which].long().numpy(),
                "change": torch.cat(changes).numpy(),
                "attribution": scores,
            }
        )
        order = similar.argsort(descending=True)[:15]
        references = self.references_.iloc[order.numpy()].reset_index(drop=True)
        references.insert(1, "similarity", similar[order].numpy())
        references.insert(2, "has_family", model.references.presence[order, target].numpy() > 0)
        observed = bool(batch.present[0, target])
        by_size = families.sort_values("change", key=np.abs, ascending=False, ignore_index=True)
        return Explanation(genome, family, observed, total, terms, by_size, references)

    def save(self, folder: str | Path, metrics: dict[str, Any] | None = None) -> None:
        """Write the artefact: config.json, model.safetensors, vocabulary.parquet, references.parquet, metrics.json."""
        suite = self._fitted()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, frame in (("vocabulary", self.vocabulary_), ("references", self.references_)):
            artefacts.save_table(folder, name, frame)
        fitted = {
            "trained": self.trained_,
            "references": len(self.references_),
            "reference_names": _checksum(self.references_["genome"].tolist()),
            "families": len(self.families_),
            "vocabulary": _checksum(self.families_),
            "levels": calibration.to_json(self.levels_),
            "with_taxonomy": self.with_taxonomy_,
            "sizes": self.sizes_,
        }
        arguments = self.get_params() | {
            "completeness": list(self.completeness),
            "contamination": list(self.contamination),
        }
        kept = {"history": self.history_, "histories": self.histories_, **(metrics or {})}
        artefacts.save(folder, type(self).__name__, arguments, fitted, suite, kept, devices.find(self.device).type)

    @classmethod
    def load(cls, folder: str | Path) -> GenomeCompleter:
        """Read an artefact. Checks format, version, class, vocabulary and every tensor, and says what differs."""
        folder = Path(folder)
        config = artefacts.load_config(folder, cls.__name__)
        try:
            arguments = config["arguments"]
            for name in ("completeness", "contamination"):
                arguments[name] = tuple(arguments[name])
            completer, fitted = cls(**arguments), config["fitted"]
            completer.check_arguments()
            suite = completer._build(fitted["families"], fitted["references"], fitted["trained"])
            completer.levels_ = calibration.of_json(fitted["levels"])
            completer.trained_, completer.with_taxonomy_ = fitted["trained"], fitted["with_taxonomy"]
            completer.sizes_ = fitted["sizes"]
            checksums = fitted["vocabulary"], fitted["reference_names"]
        except (TypeError, KeyError) as error:
            raise ValueError(f"{folder / 'config.json'} does not describe a {cls.__name__}: {error}") from error
        vocabulary, references = (artefacts.load_table(folder, n) for n in ("vocabulary", "references"))
        if _checksum(vocabulary["family"].tolist()) != checksums[0]:
            raise ValueError(f"{folder / 'vocabulary.parquet'} is not the vocabulary that the model was saved with")
        if _checksum(references["genome"].tolist()) != checksums[1]:
            raise ValueError(f"{folder / 'references.parquet'} is not of the genomes that the model was saved with")
        artefacts.load_weights(folder, suite)
        completer.network_ = suite.eval()
        completer.vocabulary_, completer.references_ = vocabulary, references
        completer.families_ = vocabulary["family"].tolist()
        completer._position = {family: i for i, family in enumerate(completer.families_)}
        metrics = artefacts.load_metrics(folder)
        completer.history_, completer.histories_ = metrics.get("history", []), metrics.get("histories", {})
        return completer

    # ------------------------------------------------------------------ what they are made of

    def check_arguments(self) -> None:
        """Raise the ValueError that fit would, where that can be said without genomes."""
        if self.architecture not in ARCHITECTURES:
            raise ValueError(f"architecture must be one of {', '.join(ARCHITECTURES)}, got {self.architecture!r}")
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.encoder is not None and self.encoder not in ENCODERS:
            raise ValueError(f"encoder must be one of {', '.join(sorted(ENCODERS))}, got {self.encoder!r}")
        if self.clade not in RANKS:
            raise ValueError(f"clade must be one of {', '.join(RANKS)}, got {self.clade!r}")
        for name, least in (("epochs", 1), ("batch_size", 1), ("min_genomes", 1), ("max_references", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be >= {least}, got {value}")
        devices.find(self.device)
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be between 0 and 1, got {self.validation_fraction}")
        for name in ("completeness", "contamination"):
            low, high = getattr(self, name)
            if not 0 <= low <= high <= 100:
                raise ValueError(f"{name} must be two percentages in order, from 0 to 100, got {low}, {high}")
        try:
            with torch.random.fork_rng():
                self._build(1, 1, [self.architecture])
        except TypeError as error:
            raise ValueError(f"encoder_options: {error}") from error

    def _trained(self) -> list[str]:
        """Methods with weights that this completer needs."""
        if self.method in ("model", "auto"):
            return [self.architecture]
        return [] if self.method in UNTRAINED else [self.method]

    def _candidates(self) -> list[str]:
        """What "auto" chooses among."""
        return [*self._trained(), "knn", "prevalence-bayes", "as-is"]

    def _name_of(self, method: str) -> str:
        return self.architecture if method == "model" else method

    def _calibrated(self, method: str) -> str:
        """The method whose thresholds are taken."""
        return self._name_of("model" if method == "auto" else method)

    def _check_method(self, method: str) -> None:
        there = [*UNTRAINED, *(["model", "auto"] if self.architecture in self.trained_ else []), *self.trained_]
        if method not in there:
            known = ", ".join(dict.fromkeys(there))
            raise ValueError(f"method must be one that was fitted, {known}; got {method!r}: fit with it first")

    def _build(self, families: int, references: int, names: list[str]) -> Suite:
        sizes = {
            "encoder": self.encoder,
            "dim": self.dim,
            "depth": self.depth,
            "num_heads": self.num_heads,
            "num_inducing": self.num_inducing,
            "encoder_options": self.encoder_options,
        }
        return Suite(families, references, names, sizes)

    def _fitted(self) -> Suite:
        if not hasattr(self, "network_"):
            raise ValueError(f"this {type(self).__name__} is not fitted yet: call fit first, or load one")
        return self.network_

    def _set_vocabulary(self, families: list[str], table: GenomeTable) -> None:
        self.families_ = families
        self._position = {family: i for i, family in enumerate(families)}
        self.vocabulary_ = pd.DataFrame(
            {
                "family": families,
                "category": [table.categories.get(f, "") for f in families],
                "description": [table.descriptions.get(f, "") for f in families],
            }
        )

    def _columns(self, table: GenomeTable) -> sp.csr_array:
        """The counts of the vocabulary's families."""
        at = {family: i for i, family in enumerate(table.families)}
        return table.counts[:, [at[family] for family in self.families_]]

    def _batch(self, genomes: Sequence[Genome], quality: Quality | None) -> tuple[Observed, list[dict[str, int]]]:
        counts = np.zeros((len(genomes), len(self.families_)), dtype=np.float32)
        told = np.full((len(genomes), 2), np.nan, dtype=np.float32)
        unknown: list[dict[str, int]] = []
        for row, genome in enumerate(genomes):
            lost = {}
            for family, count in zip(genome.families, genome.counts.tolist(), strict=True):
                column = self._position.get(family)
                if column is None:
                    lost[family] = count
                else:
                    counts[row, column] += count
            unknown.append(lost)
            if quality is not None:
                at = quality.row_of(genome.name)
                if at >= 0:
                    told[row] = quality.values[at]
        return Observed(torch.from_numpy(counts), *torch.from_numpy(told).unbind(1)), unknown

    def _completions(
        self,
        genomes: Iterable[Genome],
        quality: Quality | None,
        method: str,
        threshold: float,
        precision: float | None,
    ) -> Iterator[Completion]:
        device = devices.find(self.device)
        suite = self._fitted().to(device)
        stream = iter(genomes)
        first = True
        try:
            while group := list(islice(stream, self.batch_size)):
                batch, unknown = self._batch(group, quality)
                if first and not bool(batch.present.any()) and any(unknown):
                    raise ValueError(self._all_unknown(next(family for lost in unknown for family in lost)))
                first = False
                odds, about = self._apply(suite, batch.to(device), method)
                for row, genome in enumerate(group):
                    yield self._completion(
                        genome,
                        batch.counts[row].long().numpy(),
                        odds[row],
                        unknown[row],
                        about[row],
                        threshold,
                        precision,
                    )
        finally:
            suite.to("cpu")

    @torch.no_grad()
    def _apply(
        self, suite: Suite, batch: Observed, method: str
    ) -> tuple[Float[np.ndarray, "genomes families"], list[_About]]:
        """Log-odds of a batch, and what they depend on."""
        settled, given = suite.noise.settle(batch)
        similar, nearest = suite.references.corrected_similarity(settled, suite.noise).max(1)
        found = zip(
            *(100 * v.double().cpu().numpy() for v in (settled.completeness, settled.contamination)),
            given.all(1).tolist(),
            (1 - similar).tolist(),
            nearest.tolist(),
            strict=True,
        )
        about = []
        for c, q, known, novelty, which in found:
            level = calibration.nearest_level(self.levels_, c, q)
            nearest_name = str(self.references_["genome"].iloc[which])
            about.append(_About(c, q, known, novelty, nearest_name, level, self._method_at(method, level)))
        odds = torch.zeros_like(batch.counts)
        for name in dict.fromkeys(one.method for one in about):
            of = torch.tensor([one.method == name for one in about], device=odds.device)
            odds[of] = suite[name](Observed(batch.counts[of], batch.completeness[of], batch.contamination[of]))
        return odds.double().cpu().numpy(), about

    def _completion(
        self,
        genome: Genome,
        counts: Int[np.ndarray, " families"],
        odds: Float[np.ndarray, " families"],
        unknown: dict[str, int],
        about: _About,
        threshold: float,
        precision: float | None,
    ) -> Completion:
        level = about.level
        p = 1 / (1 + np.exp(-odds))
        add, remove = threshold, 1 - threshold
        notes = []
        if precision is not None:
            add, remove = level.threshold("added", precision), level.threshold("removed", precision)
            if add == 1:  # that no removal does is the rule
                notes.append(f"no addition reaches a precision of {precision:g} at this quality")
            add, remove = (2.0 if t == 1 else t for t in (add, remove))  # more than what rounds to 1
        call = np.where(counts > 0, ~((1 - p >= remove) if precision is not None else (p < threshold)), p >= add)
        expected, spread = p.sum(), level.spread * np.sqrt((p * (1 - p)).sum())
        far = about.novelty > level.novelty
        if not counts.any():
            notes.append("no family that the model knows was observed: probabilities are the prior")
        elif far:
            notes.append("farther from the reference genomes than 95 % of those of validation clades: trust it less")
        if len(unknown) > 0.1 * max(len(genome.families), 1):
            notes.append(f"{len(unknown)} of its {len(genome.families)} families are not in the vocabulary")
        if about.completeness < self.completeness[0]:
            notes.append(
                f"completeness {about.completeness:.1f} % is below what was trained on, {self.completeness[0]:g} %"
            )
        if about.contamination > self.contamination[1]:
            notes.append(
                f"contamination {about.contamination:.1f} % is above what was trained on, {self.contamination[1]:g} %"
            )
        return Completion(
            genome.name,
            counts,
            odds,
            call,
            unknown,
            about.completeness,
            about.contamination,
            about.given,
            float(expected),
            float(max(expected - spread, 0.0)),
            float(min(expected + spread, len(p))),
            about.novelty,
            about.nearest,
            bool(far),
            about.method,
            notes,
        )

    def _method_at(self, method: str, level: Level) -> str:
        return min(level.loss, key=lambda name: level.loss[name]) if method == "auto" else self._name_of(method)

    def _all_unknown(self, example: str) -> str:
        return (
            f"none of the families of the first genomes is in the model's vocabulary: they are such as {example!r} "
            f"({kind_of_identifier(example)}), the model's such as {self.families_[0]!r} "
            f"({kind_of_identifier(self.families_[0])}). Annotate both alike, or choose identifiers of the file"
        )

    def _attribution(
        self, model: EvidenceModel, settled: Observed, given: Tensor, target: int, steps: int
    ) -> Float[np.ndarray, " observed"]:
        with torch.no_grad():
            tokens, quality = model.read(settled, given)
        reader = _Reader(model, settled, quality.detach()).eval()
        return explain.attribute(reader, tokens, target, steps)[0].numpy()


class _Reader(nn.Module):
    """The model as a function of its tokens alone, for attribution."""

    def __init__(self, model: EvidenceModel, observed: Observed, quality: Tensor) -> None:
        super().__init__()
        self.model, self.observed, self.quality_vector = model, observed, quality

    def forward(self, tokens: SetBatch) -> Float[Tensor, "genomes families"]:
        plain = self.model.tokens(self.observed.counts)
        summary = self.model.summarize(plain, tokens, self.quality_vector)
        return torch.stack(list(self.model.terms_of(self.observed, summary).values())).sum(0)


def as_table(table: Table, known: Sequence[str] | None = None) -> GenomeTable:
    """Whatever holds genomes, in memory."""
    if isinstance(table, GenomeTable):
        return table
    return GenomeTable.from_frame(table) if isinstance(table, pd.DataFrame) else read_table(table, known=known)


@dataclass
class Quality:
    """Completeness and contamination by name, as shares.

    Attributes:
        values: (genomes, 2)
        row_of: Row of a genome; -1: none.
    """

    values: Float[np.ndarray, "genomes two"]
    row_of: Callable[[str], int]


def check_quality(quality: pd.DataFrame | None) -> Quality | None:
    """Both columns, in bounds.

    Raises:
        ValueError: Naming the genome, the value and the bound.
    """
    if quality is None:
        return None
    if "completeness" not in quality.columns:
        raise ValueError(f"quality has no column 'completeness', it has {list(quality.columns)}")
    found = quality.reindex(columns=["completeness", "contamination"]).astype(np.float64)
    for name, most in (("completeness", 100.0), ("contamination", np.inf)):
        bad = (found[name] < 0) | (found[name] > most)
        if bad.any():
            value = found.loc[bad, name].iloc[0]
            bound = "from 0 to 100" if most == 100 else ">= 0"
            raise ValueError(f"quality of genome {found.index[bad][0]!r}: {name} is {value:g}, it must be {bound} (%)")
    if found.index.duplicated().any():
        raise ValueError(f"quality: genome {found.index[found.index.duplicated()][0]!r} is there twice")
    return Quality(found.to_numpy() / 100, rows_by_name(found))


def _lineages(names: list[str], taxonomy: pd.DataFrame | None) -> pd.DataFrame:
    if taxonomy is None:
        return pd.DataFrame({"genome": names, "lineage": ""})
    found = lineages(taxonomy[[c for c in taxonomy.columns if c in RANKS]], names)
    return pd.DataFrame({"genome": names, "lineage": [";".join(v for v in row if v) for row in found.to_numpy()]})


def _checksum(names: list[str]) -> int:
    return zlib.crc32("\n".join(names).encode())
