"""The public class: fit on complete genomes, then complete and clean others."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int

from omniset.fitted import Estimator
from omniset.genomes import calibration, training
from omniset.genomes.calibration import Level, Rule
from omniset.genomes.completion import About, Completion, Explanation, Matching, complete, explain
from omniset.genomes.data import GenomeFile, GenomeTable, Table, as_table, watched
from omniset.genomes.formats import normalise, unlike
from omniset.genomes.metadata import RANKS, WHOLE, Quality, check_quality, completeness_of, lineages
from omniset.genomes.model import EvidenceModel, Mixture
from omniset.genomes.noise import Observed
from omniset.genomes.options import CompleterOptions
from omniset.genomes.readers import Genome
from omniset.genomes.references import known, lacking
from omniset.genomes.training import MAKERS, TRAINING, Clades, Genomes, Suite, carriers, split
from omniset.report.blocks import many
from omniset.runs import devices
from omniset.runs.console import telling
from omniset.runs.finite import require_finite_outputs
from omniset.training import artefacts, schema
from omniset.training.fit import as_long

FEW = 10  # clades kept back: with fewer, what they tell may not hold for others
# Of large tables: genomes learned from in all epochs together, at least once each; and kept-back ones that are asked.
MOST_READ, MOST_ASKED = 30_000, 400
Detection = str | None  # "accessory": rare families are lost more often


class GenomeCompleter(CompleterOptions, Estimator):
    """Which gene families an incomplete, contaminated genome truly has, with probabilities.

    Args:
        {options}

    Attributes:
        families_: The vocabulary.
        network_: The model, its noise model and its reference genomes.
        history_: A dict per epoch of the architecture's training.
        notes_: What was decided on the data, a sentence each.
        levels_, accessory_levels_: What validation says, level by level: as it stands, and of genomes whose rare
            families are known to be lost more often.
        compared_: Ours beside the simple method on validation genomes.
        references_: Names and lineages of the reference genomes.
    """

    FITTED: ClassVar[dict[str, Any]] = {
        "methods": schema.array(schema.TEXT),
        "references": schema.SIZE,
        "families": schema.SIZE,
        "levels": schema.array(schema.OBJECT),
        "accessory_levels": schema.array(schema.OBJECT),
        "with_taxonomy": schema.FLAG,
        "sizes": schema.OBJECT,
        "asked": {"type": "integer", "minimum": 0},
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
        genomes = as_table(table)
        if len(genomes) < 8:
            raise ValueError(f"table has {len(genomes)} genomes, at least 8 are needed to learn from")
        sizes = np.diff(genomes.counts.indptr)
        if not sizes.all():
            empty = [name for name, size in zip(genomes.names, sizes, strict=True) if not size]
            warnings.warn(f"{len(empty)} genomes without any family are left out: {empty[0]!r}", stacklevel=2)
            genomes = genomes.select(sizes > 0)
        _refuse_own_names(genomes)
        clades = Clades.of(genomes.counts, taxonomy, genomes.names, self.clade)
        parts = split(clades.groups, (training.VALIDATION_FRACTION,), np.random.default_rng(self.seed))
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
        refit: bool = True,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> GenomeCompleter:
        """`fit` with training and validation genomes chosen. Others of the table are not looked at.

        Validation genomes tell when to stop, weights and thresholds; weights are told also by as many single genomes of
        the training clades. Then all is learned anew from all genomes.

        Args:
            also: Further methods to train.
            refit: Learn anew. False: validation genomes alone are kept back, and stay out of the model.

        Raises:
            ValueError: A part is empty.
        """
        self.check_arguments()
        for name, part in (("training", train), ("validation", validation)):
            if not len(part):
                raise ValueError(
                    f"there is no {name} genome: whole clades are kept back, a small part of the genomes, and each of "
                    f"the {len(np.unique(clades.groups))} clades (by taxonomy, of rank {self.clade!r}) is larger: give "
                    "more genomes, or with a taxonomy a lower rank as clade"
                )
        start, root = time.monotonic(), None if folder is None else Path(folder)
        everything, single = np.sort(np.concatenate([train, validation])), train[:0]
        if refit:  # else they would stay out of the model
            single = clades.singles(train, min(len(validation), MOST_ASKED), self.seed)
            train = np.setdiff1d(train, single)
        stated = known(completeness_of(quality, table.names))
        genomes, vocabulary = self.genomes_of(table, clades, train, validation, stated, single)
        lack = 0.0
        if stated is not None:
            lack = lacking(genomes.counts[genomes.references], stated[genomes.references], self.seed)
            genomes.itself = 1 - lack * (1 - stated)
        self.with_taxonomy_, self.sizes_ = clades.given, {"genomes": len(everything)}
        for name, part in (("training", train), ("validation", genomes.validation)):
            self.sizes_ |= {name: len(part), f"{name} clades": len(np.unique(clades.groups[part]))}
        self.methods_ = [*dict.fromkeys([self.architecture, *also])]
        suite, self.histories_ = self._learn(genomes, root, resume)
        self.history_ = self.histories_[self.architecture]
        device = devices.find(self.device)
        main = suite[self.architecture]
        levels = calibration.calibrate(main, genomes, self.seed, device, suite.references)
        self.levels_, self.accessory_levels_ = levels
        self.compared_ = calibration.beside(main, MAKERS["knn-likelihood"](suite), genomes, self.seed, device)
        self.measured_ = self.compared_.numbers() | {"on": f"{many(len(genomes.validation), 'genome')} kept back"}
        answers, families = calibration.asked(main, genomes, self.seed, device), pd.Index(vocabulary["family"])
        asked = genomes.validation
        notes = [*clades.notes(), *_of_incomplete(stated, lack, everything, levels[0])]
        if len(asked) < len(validation):
            whole = f"{len(asked):,} of {len(validation):,} genomes that were kept back"
            notes.append(f"{whole} are asked for weights and thresholds, drawn over the clades")
        if refit:
            # What was kept back has told what it was kept back for.
            genomes, vocabulary = self.genomes_of(table, clades, everything, everything[:0], genomes.itself)
            telling(self.progress)(f"learning anew, from all {len(everything):,} genomes")
            suite = self._learn_anew(suite, len(train), genomes, None if root is None else root / "refit", resume)
        at = families.get_indexer(vocabulary["family"])  # -1 of a new one, which is absent
        suite.said, suite.true = (
            torch.from_numpy(np.where(at < 0, nothing, of[:, at]).astype(of.dtype))
            for of, nothing in zip(answers, (-127, False), strict=True)
        )
        self.network_ = suite.to("cpu")
        self._set_vocabulary(vocabulary)
        self.sizes_["families"] = len(vocabulary)
        self.references_ = _lineages([table.names[i] for i in genomes.references], taxonomy)
        left_out = len(table.families) - len(vocabulary)
        if left_out:
            few = f"{left_out:,} of {len(table.families):,} families are not in any genome learned from"
            notes.append(f"{few}, and are left out of the vocabulary")
        if len(genomes.references) < len(genomes.train):
            kept = f"{len(genomes.references):,} of {len(genomes.train):,} genomes are kept to compare with"
            notes.append(f"{kept}, drawn over the clades")
        number = self.sizes_["validation clades"]
        then = "before all was learned anew with them" if refit else "and stay out of the model"
        told = f"{many(len(asked), 'genome')} of {many(number, 'clade')} set weights and thresholds, {then}"
        few = "these are few clades: a precision that they tell may not hold in clades that are unlike them"
        self.notes_ = [*notes, told, *([few] if number < FEW else [])]
        if len(single):
            self.notes_.append(f"{many(len(single), 'genome')} of the other clades set weights as well")
        self.notes_ += [main.verdict] if isinstance(main, Mixture) and main.verdict else []
        self.seconds_ = round(time.monotonic() - start, 1)
        return self

    def genomes_of(
        self,
        table: GenomeTable,
        clades: Clades,
        train: Int[np.ndarray, " train"],
        validation: Int[np.ndarray, " validation"],
        itself: Float[np.ndarray, " genomes"] | None = None,
        single: Int[np.ndarray, " single"] | None = None,
    ) -> tuple[Genomes, pd.DataFrame]:
        """What is learned from, and the vocabulary: this and the references are those of the training genomes. Of many
        validation genomes 400 are taken.

        Args:
            itself, single: See Genomes.
        """
        columns = np.flatnonzero(carriers(table.counts, train))
        vocabulary = pd.DataFrame({"family": [table.families[i] for i in columns]})
        for name, texts in (("category", table.categories), ("description", table.descriptions)):
            vocabulary[name] = [texts.get(family, "") for family in vocabulary["family"]]
        references = clades.drawn(train, training.MOST_REFERENCES, self.seed)
        validation = clades.drawn(validation, MOST_ASKED, self.seed)
        single = train[:0] if single is None else single
        counts = table.counts if len(columns) == len(table.families) else table.counts[:, columns]
        return Genomes(counts, clades, train, validation, references, itself, single), vocabulary

    def _learn(
        self, genomes: Genomes, folder: Path | None, resume: bool, epochs: dict[str, int] | None = None
    ) -> tuple[Suite, dict[str, list[dict[str, Any]]]]:
        """The methods, learned, and a dict per epoch of those that are trained.

        Args:
            epochs: Of each method that is trained, instead of stopping early.
        """
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            suite = Suite(genomes.counts.shape[1], len(genomes.references), self.methods_)
        return suite, suite.fit(genomes, self, self._planned(len(genomes.train)), folder, resume, epochs)

    def _learn_anew(self, before: Suite, number: int, genomes: Genomes, folder: Path | None, resume: bool) -> Suite:
        """The same methods, learned from all genomes: none is kept back.

        What was kept back has told when to stop (see `omniset.training.fit.as_long`) and how the parts of a mixture are
        weighted. Both are taken as they are.

        Args:
            before, number: What a part of the genomes gave, and how many it has.
        """
        epochs = {}
        for name, history in self.histories_.items():
            of_method = {} if name == self.architecture else TRAINING[name]
            stops = of_method.get("patience", training.PATIENCE) is not None  # else the last weights were taken
            best = min(history, key=lambda epoch: epoch["val_loss"]) if stops else history[-1]
            epochs[name] = as_long(int(best["epoch"]), of_method.get("epochs", self._planned(number)))
        suite, _ = self._learn(genomes, folder, resume, epochs)
        for name in suite.methods:
            told, method = before.methods[name], suite[name]
            if isinstance(told, Mixture) and isinstance(method, Mixture):
                method.mixture.copy_(told.mixture)
                method.completeness_weight.copy_(told.completeness_weight)
                method.verdict = told.verdict
        return suite

    def _planned(self, genomes: int) -> int:
        """Epochs, at most: 15, or 600 steps where genomes are few; `MOST_READ` genomes where many."""
        few = -(-600 * training.BATCH_SIZE // genomes)
        return self.epochs or max(min(15, MOST_READ // genomes), few, 1)

    def complete(
        self, table: Table, quality: pd.DataFrame | None = None, *, detection: Detection = None, together: bool = False
    ) -> pd.DataFrame:
        """Probabilities that the complete genomes have the families: index genome, a column per family.

        Args:
            table: As for fit. Families that are not in the vocabulary are left out; a warning says how many.
            quality: Index genome, columns `completeness` and `contamination` in percent, NaN where not known; as
                `read_qualities` gives. Default: estimated from marker families.
            detection: "accessory": rare families are recovered less often than completeness says, see
                `omniset.genomes.noise.accessory_loss`. None: all alike.
            together: Each genome is a reference of the others too, with what it probably has.

        Raises:
            ValueError: A quality out of its bounds; no family that is known.
        """
        self._fitted()
        genomes = as_table(table, known=self.families_)
        rows = list(self.completions(genomes, quality, detection=detection, together=together))
        values = np.stack([one.probability for one in rows]) if rows else np.zeros((0, len(self.families_)))
        index = pd.Index([one.name for one in rows], name="genome")
        return pd.DataFrame(values, index=index, columns=pd.Index(self.families_, name="family"))

    def completions(
        self,
        genomes: Iterable[Genome] | pd.DataFrame | str | Path,
        quality: pd.DataFrame | None = None,
        *,
        threshold: float = 0.5,
        precision: float | None = None,
        detection: Detection = None,
        together: bool = False,
    ) -> Iterator[Completion]:
        """Complete genomes as they come, a batch in memory at a time; together, all of them.

        Args:
            genomes: Such as a GenomeFile or a GenomeTable; or what `complete` takes.
            quality, detection, together: As in `complete`.
            threshold: Families with at least this probability are called present.
            precision: Instead, call against what was observed (add or remove a family) only where on validation
                clades this share of such changes, at this completeness and contamination, was right.

        Raises:
            ValueError: An argument out of its bounds; no family of the first genomes is known.
        """
        self._fitted()
        rule = Rule(threshold, precision)
        if detection not in (None, "accessory"):
            raise ValueError(f"detection must be 'accessory' or None, got {detection!r}")
        if isinstance(genomes, pd.DataFrame | str | Path):
            genomes = as_table(genomes, known=self.families_)
        return self._completions(genomes, check_quality(quality), rule, detection, together)

    def explain(self, table: Table, genome: str, family: str, quality: pd.DataFrame | None = None) -> Explanation:
        """Why the model says what it says of a family in a genome.

        Every observed family is left out in turn.

        Args:
            table: With the genome.
            genome, family: Names.
            quality: As in `complete`.

        Raises:
            ValueError: A genome that is not in the table, or is empty; a family that is not in the vocabulary; an
                architecture other than "evidence".
        """
        model = self._fitted()[self.architecture]
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
        position = self._position[family]
        return explain(model, genome, batch, position, self.families_, self.references_)

    def _state(self) -> dict[str, Any]:
        return {
            "methods": self.methods_,
            "references": len(self.references_),
            "families": len(self.families_),
            "levels": [*map(asdict, self.levels_)],
            "accessory_levels": [*map(asdict, self.accessory_levels_)],
            "with_taxonomy": self.with_taxonomy_,
            "sizes": self.sizes_,
            "asked": len(self.network_.said),
        }

    def _tables(self) -> dict[str, pd.DataFrame]:
        return {"vocabulary": self.vocabulary_, "references": self.references_}

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        sizes = fitted["families"], fitted["references"], fitted["methods"], fitted["asked"]
        if (len(tables["vocabulary"]), len(tables["references"])) != sizes[:2]:
            raise ValueError(f"the tables must have {sizes[0]} families and {sizes[1]} references")
        self.network_ = weights.build(lambda: Suite(*sizes))
        self.check_arguments()
        self.levels_ = calibration.of_json(fitted["levels"])
        self.accessory_levels_ = calibration.of_json(fitted["accessory_levels"])
        self.methods_, self.with_taxonomy_, self.sizes_ = fitted["methods"], fitted["with_taxonomy"], fitted["sizes"]
        self.references_ = tables["references"]
        self._set_vocabulary(tables["vocabulary"])

    # ------------------------------------------------------------------ what they are made of

    def check_arguments(self) -> None:
        """Raise the ValueError that fit would, where that can be said without genomes."""
        self.check_options()
        devices.find(self.device)

    @property
    def asked_(self) -> Float[np.ndarray, "two asked families"]:
        """Probabilities of validation genomes, and what they have: by these modules are calibrated."""
        said, true = self._fitted().said.cpu().float(), self._fitted().true.cpu().float()
        return torch.stack([(said / calibration.SIXTEEN).sigmoid(), true]).double().numpy()

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
        self, genomes: Iterable[Genome], quality: Quality | None, rule: Rule, detection: Detection, together: bool
    ) -> Iterator[Completion]:
        device = devices.find(self.device)
        suite = self._fitted().to(device)
        file = genomes if isinstance(genomes, GenomeFile) else None
        stream = iter(genomes) if file is None else watched(file, self.progress, "completing")
        matching, company = Matching(quality), ExitStack()
        try:
            if together:
                everything = list(stream)
                starts = range(0, len(everything), training.BATCH_SIZE)
                groups = (everything[first : first + training.BATCH_SIZE] for first in starts)
                batches = (_batch(group, quality, self._position)[0].to(device) for group in groups)
                company.enter_context(suite.references.together(suite.noise, batches))
                stream = iter(everything)
            while group := list(islice(stream, training.BATCH_SIZE)):
                batch, unknown = _batch(group, quality, self._position)
                if together:
                    batch.excluded = suite.references.themselves(matching.number, len(group))
                if not matching.number and not bool(batch.present.any()) and any(unknown):
                    example = next(family for lost in unknown for family in lost)
                    raise ValueError(
                        "none of the families of the first genomes is in the model's vocabulary: "
                        f"{unlike(example, self.families_[0])}. Annotate both alike, or choose identifiers of the file"
                    )
                odds, about = self._apply(suite, batch.to(device), detection)
                require_finite_outputs(odds, [genome.name for genome in group], "genome")
                for row, genome in enumerate(group):
                    counts = batch.counts[row].long().numpy()
                    one = complete(genome, counts, odds[row], unknown[row], *about[row], rule)
                    matching.add(one)
                    yield one
        finally:
            company.close()
            suite.to("cpu")
        for message in () if file is None else file.warnings:
            warnings.warn(message, stacklevel=2)
        matching.warn(self.families_)

    @torch.no_grad()
    def _apply(
        self, suite: Suite, batch: Observed, detection: Detection
    ) -> tuple[Float[np.ndarray, "genomes families"], list[tuple[About, Level]]]:
        """Log-odds of a batch, what they depend on, and what validation says of it."""
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
        for c, q, told, novelty, which in genomes:
            level = calibration.at_quality(self.levels_ if detection is None else self.accessory_levels_, c, q)
            about.append(((c, q, told, novelty, str(self.references_["genome"].iloc[which])), level))
        odds = suite[self.architecture](batch)
        if detection is not None:
            odds = odds + suite[self.architecture].shift(batch, odds)
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


def _refuse_own_names(genomes: GenomeTable) -> None:
    """Families are what genomes share. Names of genes, read as families, are each of one genome."""
    shared = int((np.bincount(genomes.counts.indices, minlength=len(genomes.families)) > 1).sum())
    if 20 * shared < len(genomes.families):
        raise ValueError(
            f"table: {shared:,} of {len(genomes.families):,} families, such as {genomes.families[0]!r}, are in two "
            "genomes or more, at least a twentieth must be: are these names of genes? Give families that genomes share"
        )


def _of_incomplete(
    itself: Float[np.ndarray, " genomes"] | None,
    lacking: float,
    learned: Int[np.ndarray, " learned"],
    levels: Sequence[Level],
) -> list[str]:
    """How complete the genomes are that are learned from, and of which qualities a precision is known."""
    if itself is None:
        return []
    less = itself[learned] < 1
    found = [
        f"{less.sum():,} of {many(len(learned), 'genome')} to learn from are less than {WHOLE:g} % complete "
        f"themselves: they lack {100 * lacking:.0f} % of what that says, and it may be there all the same"
    ]
    told = {level.completeness for level in levels if any(level.added)}
    blank = sorted({level.completeness for level in levels} - told - {100.0}, reverse=True)  # nothing lacks at 100 %
    if blank:
        at = ", ".join(f"{completeness:g}" for completeness in blank)
        found.append(f"too few are complete enough to tell how often an addition is right at {at} %")
    return found


def _lineages(names: list[str], taxonomy: pd.DataFrame | None) -> pd.DataFrame:
    if taxonomy is None:
        return pd.DataFrame({"genome": names, "lineage": ""})
    ranks = lineages(taxonomy[[c for c in taxonomy.columns if c in RANKS]], names)
    return pd.DataFrame({"genome": names, "lineage": [";".join(v for v in row if v) for row in ranks.to_numpy()]})
