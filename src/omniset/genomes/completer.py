"""The public class: fit on complete genomes, then complete and clean others."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int
from torch import Tensor

from omniset.fitted import Estimator
from omniset.genomes import calibration, explaining, incomplete, learning
from omniset.genomes.completion import About, Completion, Matching, Rule, complete, refuse_far
from omniset.genomes.contigs import judged, without_foreign
from omniset.genomes.data import RANKS, Genome, GenomeFile, GenomeTable, Table, as_table, kind_of_identifier, watched
from omniset.genomes.explaining import Explanation
from omniset.genomes.identifiers import normalise
from omniset.genomes.metadata import (
    Quality,
    check_bounds,
    check_quality,
    completeness_of,
    lineages,
    warn_of_small,
)
from omniset.genomes.model import EvidenceModel
from omniset.genomes.noise import Observed
from omniset.genomes.options import CompleterOptions
from omniset.genomes.recovery import Detection, detection_of
from omniset.genomes.suite import UNMOVED, UNTRAINED, Suite
from omniset.genomes.together import joined, own_references
from omniset.genomes.training import Clades, Genomes, split
from omniset.options import blaming
from omniset.report.blocks import many
from omniset.runs import devices
from omniset.runs.console import telling
from omniset.runs.finite import require_finite_outputs
from omniset.tables.files import listed
from omniset.training import artefacts, schema

FEW = 10  # clades kept back: with fewer, what they tell may not hold for others


class GenomeCompleter(CompleterOptions, Estimator):
    """Which gene families an incomplete, contaminated genome truly has, with probabilities.

    Args:
        {options}

    Attributes:
        families_: The vocabulary.
        network_: All methods.
        history_: A dict per epoch of the architecture's training.
        notes_: What was decided on the data, a sentence each.
        levels_, accessory_levels_: What validation says, level by level: as it stands, and of genomes whose rare
            families are known to be lost more often.
        references_: Names and lineages of the reference genomes.
    """

    FITTED: ClassVar[dict[str, Any]] = {
        "trained": schema.array(schema.TEXT),
        "references": schema.SIZE,
        "families": schema.SIZE,
        "levels": schema.array(schema.OBJECT),
        "accessory_levels": schema.array(schema.OBJECT),
        "with_taxonomy": schema.FLAG,
        "sizes": schema.OBJECT,
    }
    TABLES: ClassVar = {"vocabulary": ["family", "category", "description"], "references": ["genome", "lineage"]}
    HISTORIES: ClassVar = ("history", "histories", "notes")

    # ------------------------------------------------------------------ the verbs

    def fit(
        self,
        table: Table,
        taxonomy: pd.DataFrame | None = None,
        quality: pd.DataFrame | None = None,
        *,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> GenomeCompleter:
        """Learn from complete genomes.

        Args:
            table: A GenomeTable; a frame, genomes x families; or what `read_table` reads.
            taxonomy: Index genome, a column per rank, as `read_taxonomy` gives. Without one, clades are clusters of
                similar genomes.
            quality: How complete they are themselves, as `read_qualities` gives. What an incomplete one lacks may then
                be there all the same, in what is learned, in references and in thresholds; else, and where it is not
                known how complete one is, it counts as absent.
            folder: Keep checkpoints here.
            resume: Go on with an interrupted run in this folder.

        Raises:
            ValueError: An argument out of its bounds, too few genomes, or a taxonomy or quality of other genomes.
            KeyboardInterrupt: Ctrl-C; with a folder, the last whole epoch is kept for `resume`.
        """
        self.check_arguments()
        self.check_resumed(folder, resume)
        warn_of_small(self.contamination)
        genomes = as_table(table)
        if len(genomes) < 8:
            raise ValueError(f"table has {len(genomes)} genomes, at least 8 are needed to learn from")
        sizes = np.diff(genomes.counts.indptr)
        if not sizes.all():
            empty = [name for name, size in zip(genomes.names, sizes, strict=True) if not size]
            warnings.warn(f"{len(empty)} genomes without any family are left out: {empty[0]!r}", stacklevel=2)
            genomes = genomes.select(sizes > 0)
        clades = Clades.of(genomes.counts, taxonomy, genomes.names, self.clade)
        parts = split(clades.groups, (self.validation_fraction,), np.random.default_rng(self.seed))
        return self.fit_split(genomes, taxonomy, clades, *parts, quality=quality, folder=folder, resume=resume)

    def fit_split(
        self,
        table: GenomeTable,
        taxonomy: pd.DataFrame | None,
        clades: Clades,
        train: Int[np.ndarray, " train"],
        validation: Int[np.ndarray, " validation"],
        *,
        quality: pd.DataFrame | None = None,
        also: Sequence[str] = (),
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> GenomeCompleter:
        """`fit` with training and validation genomes chosen. Others of the table are not looked at.

        Validation genomes tell when to stop, weights and thresholds; weights are told also by as many single genomes of
        the training clades. Then all is learned anew from all genomes. Unless `refit` is False: then validation genomes
        alone are kept back, and stay out of the model.

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
        start, root = time.monotonic(), None if folder is None else Path(folder)
        everything, single = np.sort(np.concatenate([train, validation])), train[:0]
        if self.refit:  # else they would stay out of the model
            single = learning.singles(clades, train, len(validation), self.seed)
            train = np.setdiff1d(train, single)
        stated = incomplete.known(completeness_of(quality, table.names))
        genomes, vocabulary = learning.genomes_of(self, table, clades, train, validation, stated, single)
        genomes.itself, lacking = incomplete.believed(genomes, self.seed)
        self.with_taxonomy_, self.sizes_ = clades.given, _sizes(clades, train, genomes.validation)
        self.sizes_["genomes"] = len(everything)
        self.trained_ = [*dict.fromkeys([*self._trained(), *also])]
        how: dict[str, Any] = {"resume": resume, "fingerprint": self.fingerprint()}
        suite, self.histories_ = learning.learn(self, genomes, self.trained_, root, **how)
        self.history_ = self.histories_.get(self.architecture, [])
        main = self._calibrated(self.method)
        # What "auto" chooses among, and the completer's own.
        candidates = {name: suite[name] for name in (*self._trained(), "knn", "prevalence-bayes", "as-is", main)}
        levels = calibration.calibrate(candidates, main, genomes, self.seed, devices.find(self.device))
        self.levels_, self.accessory_levels_ = levels
        notes, asked = [*clades.notes(), *_of_asked(genomes, validation)], genomes.validation
        notes += incomplete.notes(stated, lacking, everything, levels[0])
        if self.refit:
            # What was kept back has told what it was kept back for.
            genomes, vocabulary = learning.genomes_of(self, table, clades, everything, everything[:0], genomes.itself)
            telling(self.progress)(f"learning anew, from all {len(everything):,} genomes")
            again = None if root is None else root / "refit"
            suite = learning.learn_anew(self, suite, self.histories_, len(train), genomes, self.trained_, again, **how)
        self.network_ = suite.to("cpu")
        self._set_vocabulary(vocabulary)
        self.sizes_["families"] = len(vocabulary)
        self.references_ = _lineages([table.names[i] for i in genomes.references], taxonomy)
        self.notes_ = [*notes, *_of_vocabulary(len(vocabulary), len(table.families), self.min_genomes)]
        self.notes_ += _of_drawn(len(genomes.references), len(genomes.train))
        self.notes_ += _of_kept_back(clades, asked, taxonomy, table.names, self.clade, self.refit)
        if len(single):
            self.notes_.append(f"{many(len(single), 'genome')} of the other clades told weights as well")
        self.seconds_ = round(time.monotonic() - start, 1)
        return self

    def complete(
        self,
        table: Table,
        quality: pd.DataFrame | None = None,
        *,
        method: str | None = None,
        detection: Detection = None,
        together: bool = False,
    ) -> pd.DataFrame:
        """Probabilities that the complete genomes have the families: index genome, a column per family.

        Args:
            table: As for fit. Families that are not in the vocabulary are left out; a warning says how many.
            quality: Index genome, columns `completeness` and `contamination` in percent, NaN where not known; as
                `read_qualities` gives. Default: estimated from marker families.
            method: Another one than the completer's.
            detection: How often each family is recovered, as a multiple of what completeness says: a series by family,
                or a file, see `omniset.genomes.recovery.read_detection`; "accessory": rare families less often.
                None: all alike.
            together: Each genome is a reference of the others too, with what it probably has.

        Raises:
            ValueError: A quality or a detection out of its bounds; no family that is known.
        """
        self._fitted()
        genomes = as_table(table, known=self.families_)
        rows = list(self.completions(genomes, quality, method=method, detection=detection, together=together))
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
        detection: Detection = None,
        together: bool = False,
    ) -> Iterator[Completion]:
        """Complete genomes as they come, a batch in memory at a time; together, all of them.

        Args:
            genomes: Such as a GenomeFile or a GenomeTable; or what `complete` takes.
            quality, method, detection, together: As in `complete`.
            threshold: Families with at least this probability are called present.
            precision: Instead, call against what was observed (add or remove a family) only where on validation
                clades this share of such changes, at this completeness and contamination, was right.

        Raises:
            ValueError: An argument out of its bounds; no family of the first genomes is known.
        """
        self._fitted()
        method = self.method if method is None else method
        self._check_method(method)
        rule = Rule(threshold, precision)
        if precision is not None and self._calibrated(method) != self._calibrated(self.method):
            raise ValueError(
                f"precision is calibrated for method {self._calibrated(self.method)!r}, not for {method!r}: fit with "
                "that method, or give a threshold"
            )
        if isinstance(genomes, pd.DataFrame | str | Path):
            genomes = as_table(genomes, known=self.families_)
        factors = detection_of(detection, self.families_, self._fitted().noise)
        return self._completions(genomes, check_quality(quality), method, rule, factors, together)

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
        suite = self._fitted()
        model = suite[self.architecture] if self.architecture in suite.methods else None
        if not isinstance(model, EvidenceModel):
            raise ValueError("explain is for architecture='evidence', whose log-odds are a sum of terms")
        family = family if family in self._position else normalise(family)  # as tables are read
        if family not in self._position:
            raise ValueError(
                f"family {family!r} is not in the model's vocabulary, which has such as {self.families_[0]!r}"
            )
        source = table if isinstance(table, GenomeTable | pd.DataFrame) else as_table(table, known=self.families_)
        one = next((g for g in as_table(source) if g.name == genome), None)
        if one is None:
            raise ValueError(f"genome {genome!r} is not in the table")
        batch = _batch([one], check_quality(quality), self._position)[0]
        if not bool(batch.present.any()):
            raise ValueError(f"genome {genome!r} has no family that the model knows: it gets the prior, of prevalence")
        position, together = self._position[family], 4 * self.batch_size
        return explaining.explain(
            model, genome, batch, position, self.families_, self.references_, at_a_time=together, steps=steps
        )

    def _state(self) -> dict[str, Any]:
        return {
            "trained": self.trained_,
            "references": len(self.references_),
            "families": len(self.families_),
            "levels": calibration.to_json(self.levels_),
            "accessory_levels": calibration.to_json(self.accessory_levels_),
            "with_taxonomy": self.with_taxonomy_,
            "sizes": self.sizes_,
        }

    def _tables(self) -> dict[str, pd.DataFrame]:
        return {"vocabulary": self.vocabulary_, "references": self.references_}

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        sizes = fitted["families"], fitted["references"], fitted["trained"]
        if (len(tables["vocabulary"]), len(tables["references"])) != sizes[:2]:
            raise ValueError(f"the tables must have {sizes[0]} families and {sizes[1]} references")
        self.network_ = weights.build(lambda: learning.suite_of(self, *sizes))
        self.check_arguments()
        self.levels_ = calibration.of_json(fitted["levels"])
        self.accessory_levels_ = calibration.of_json(fitted["accessory_levels"])
        self.trained_, self.with_taxonomy_, self.sizes_ = fitted["trained"], fitted["with_taxonomy"], fitted["sizes"]
        self.references_ = tables["references"]
        self._set_vocabulary(tables["vocabulary"])

    # ------------------------------------------------------------------ what they are made of

    def check_arguments(self) -> None:
        """Raise the ValueError that fit would, where that can be said without genomes."""
        self.check_options()
        devices.find(self.device)
        check_bounds(self.completeness, self.contamination)
        if self.encoder_options is not None and self.encoder is None and self.architecture != "seed":
            raise ValueError(
                f"encoder_options are for an encoder, and encoder is None: choose one, got {self.encoder_options!r}"
            )
        with blaming(self.encoder_options), torch.random.fork_rng():
            learning.suite_of(self, 1, 1, [self.architecture])

    def _trained(self) -> list[str]:
        """Methods with weights that this completer needs."""
        if self.method in ("model", "auto"):
            return [self.architecture]
        return [] if self.method in UNTRAINED else [self.method]

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

    def _fitted(self) -> Suite:
        self.require_fitted()
        return self.network_

    def _set_vocabulary(self, vocabulary: pd.DataFrame) -> None:
        self.vocabulary_, self.families_ = vocabulary, vocabulary["family"].tolist()
        self._position = {family: i for i, family in enumerate(self.families_)}

    def columns(self, table: GenomeTable) -> sp.csr_array:
        """The counts of the vocabulary's families."""
        at = {family: i for i, family in enumerate(table.families)}
        return table.counts[:, [at[family] for family in self.families_]]

    def _completions(
        self,
        genomes: Iterable[Genome],
        quality: Quality | None,
        method: str,
        rule: Rule,
        detection: Tensor | None,
        together: bool,
    ) -> Iterator[Completion]:
        device = devices.find(self.device)
        suite = self._fitted().to(device)
        file = genomes if isinstance(genomes, GenomeFile) else None
        stream = iter(genomes) if file is None else watched(file, self.progress, "completing")
        matching, trained = Matching(quality), (self.completeness[0], self.contamination[1])
        company = ExitStack()
        try:
            if together:
                everything = list(stream)
                batches = _batches(everything, self.batch_size, quality, self._position, device)
                company.enter_context(joined(suite.references, suite.noise, batches))
                stream = iter(everything)
            while group := list(islice(stream, self.batch_size)):
                batch, unknown = _batch(group, quality, self._position)
                if together:
                    batch.excluded = own_references(matching.number, len(group), len(self.references_), len(everything))
                if not matching.number and not bool(batch.present.any()) and any(unknown):
                    example = next(family for lost in unknown for family in lost)
                    raise ValueError(_all_unknown(example, self.families_[0]))
                odds, about = self._apply(suite, batch.to(device), method, detection)
                foreign: list[dict[str, float]] = [{} for _ in group]
                if method not in UNMOVED and any(genome.contigs for genome in group):
                    foreign = judged(group, batch.to(device), odds, suite.noise, self._position)
                    if (rest := without_foreign(group, batch, foreign, self._position)) is not None:
                        odds, about = self._apply(suite, rest.to(device), method, detection)
                require_finite_outputs(odds, [genome.name for genome in group], "genome")
                for row, genome in enumerate(group):
                    counts = batch.counts[row].long().numpy()
                    one = complete(
                        genome, counts, odds[row], unknown[row], about[row], rule, trained, self.far == "warn"
                    )
                    one.contigs = foreign[row]
                    refuse_far(one, about[row].level, self.far)
                    matching.add(one)
                    yield one
        finally:
            company.close()
            suite.to("cpu")
        for message in () if file is None else file.warnings:
            warnings.warn(message, stacklevel=2)
        matching.warn(self.families_, self.far == "warn")

    @torch.no_grad()
    def _apply(
        self, suite: Suite, batch: Observed, method: str, detection: Tensor | None
    ) -> tuple[Float[np.ndarray, "genomes families"], list[About]]:
        """Log-odds of a batch, and what they depend on."""
        settled, given = suite.noise.settle(batch)
        similarity = suite.references.corrected_similarity(settled, suite.noise)
        # Others that are completed together make a genome no less new.
        similar, nearest = similarity[:, : len(self.references_)].max(1)
        genomes = zip(
            *(100 * v.double().cpu().numpy() for v in (settled.completeness, settled.contamination)),
            given.all(1).tolist(),
            (1 - similar).tolist(),
            nearest.tolist(),
            strict=True,
        )
        about = []
        for c, q, known, novelty, which in genomes:
            level = calibration.at_quality(self.levels_ if detection is None else self.accessory_levels_, c, q)
            nearest_name = str(self.references_["genome"].iloc[which])
            least_lost = min(level.loss, key=level.loss.__getitem__)
            taken = least_lost if method == "auto" else self._name_of(method)
            about.append(About(c, q, known, novelty, nearest_name, level, taken))
        odds = torch.zeros_like(batch.counts)
        for name in dict.fromkeys(one.method for one in about):
            of = torch.tensor([one.method == name for one in about], device=odds.device)
            some = batch.select(of)
            odds[of] = suite[name](some)
            if detection is not None and name not in UNMOVED:
                odds[of] += suite.noise.shift(some, detection.to(odds.device))
        return odds.double().cpu().numpy(), about


def _batch(
    genomes: Sequence[Genome], quality: Quality | None, position: dict[str, int]
) -> tuple[Observed, list[dict[str, int]]]:
    """Counts of the vocabulary's families and qualities; and of each genome the families that it lacks."""
    counts = np.zeros((len(genomes), len(position)), dtype=np.float32)
    given = np.full((len(genomes), 2), np.nan, dtype=np.float32)
    unknown: list[dict[str, int]] = []
    for row, genome in enumerate(genomes):
        unknown.append({})
        for family, count in zip(genome.families, genome.counts.tolist(), strict=True):
            if family in position:
                counts[row, position[family]] += count
            else:
                unknown[row][family] = count
        if quality is not None and (at := quality.row_of(genome.name)) >= 0:
            given[row] = quality.values[at]
    return Observed(torch.from_numpy(counts), *torch.from_numpy(given).unbind(1)), unknown


def _batches(
    genomes: Sequence[Genome],
    size: int,
    quality: Quality | None,
    position: dict[str, int],
    device: torch.device,
) -> Iterator[Observed]:
    """All genomes, so many at a time."""
    for first in range(0, len(genomes), size):
        yield _batch(genomes[first : first + size], quality, position)[0].to(device)


def _sizes(
    clades: Clades, train: Int[np.ndarray, " train"], validation: Int[np.ndarray, " validation"]
) -> dict[str, int]:
    """Numbers of genomes and of clades."""
    return {
        "training": len(train),
        "validation": len(validation),
        "training clades": len(np.unique(clades.groups[train])),
        "validation clades": len(np.unique(clades.groups[validation])),
    }


def _of_asked(genomes: Genomes, validation: Int[np.ndarray, " validation"]) -> list[str]:
    """That not all validation genomes were asked."""
    number, every = len(genomes.validation), len(validation)
    asked = f"{number:,} of {every:,} genomes that were kept back are asked for weights and thresholds"
    return [f"{asked}, drawn over the clades"] if number < every else []


def _of_vocabulary(number: int, families: int, min_genomes: int) -> list[str]:
    """How many families of the table the model does not have."""
    least = "any genome" if min_genomes == 1 else f"min_genomes={min_genomes} genomes"
    left_out = f"{families - number:,} of {families:,} families are not in {least} learned from"
    return [f"{left_out}, and are left out of the vocabulary"] if number < families else []


def _of_drawn(references: int, genomes: int) -> list[str]:
    """That not all genomes are references."""
    kept = f"{references:,} of {genomes:,} genomes are kept to compare with, drawn over the clades"
    return [kept] if references < genomes else []


def _of_kept_back(
    clades: Clades,
    validation: Int[np.ndarray, " validation"],
    taxonomy: pd.DataFrame | None,
    names: list[str],
    rank: str,
    refit: bool,
) -> list[str]:
    """Which genomes told weights and thresholds, and that they were few."""
    groups = np.unique(clades.groups[validation])
    named = ""
    if taxonomy is not None:
        taxa = lineages(taxonomy, [names[i] for i in validation])[rank]
        named = f" ({listed(sorted(name for name in set(taxa) if name))})"
    notes = [
        f"{many(len(validation), 'genome')} of {many(len(groups), 'clade')}{named} told weights and thresholds"
        + (", before all was learned anew with them" if refit else ", and stay out of the model")
    ]
    if len(groups) < FEW:
        notes.append("these are few clades: a precision that they tell may not hold in clades that are unlike them")
    return notes


def _lineages(names: list[str], taxonomy: pd.DataFrame | None) -> pd.DataFrame:
    if taxonomy is None:
        return pd.DataFrame({"genome": names, "lineage": ""})
    ranks = lineages(taxonomy[[c for c in taxonomy.columns if c in RANKS]], names)
    return pd.DataFrame({"genome": names, "lineage": [";".join(v for v in row if v) for row in ranks.to_numpy()]})


def _all_unknown(example: str, known: str) -> str:
    return (
        f"none of the families of the first genomes is in the model's vocabulary: they are such as {example!r} "
        f"({kind_of_identifier(example)}), the model's such as {known!r} ({kind_of_identifier(known)}). Annotate both "
        "alike, or choose identifiers of the file"
    )
