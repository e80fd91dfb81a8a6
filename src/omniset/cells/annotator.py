"""The types of new cells, by labelled reference cells: a mixture of simple methods, and "unknown" with a stated error.

What each method counts, how sure its probabilities are, and from which strangeness on a cell is unknown, is learned on
batches kept back: those that neither the vectors nor the classifiers of that fold have seen. Labels of one batch that
is like the others would make all of it look too good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Shaped
from torch import Tensor, nn

import omniset
from omniset.cells.classifiers import METHODS, OF_GENES, WIDTHS, Classifiers, evenly
from omniset.cells.data import UNKNOWN, Cells, batch_codes, labels_of, numbered_anew, opened
from omniset.cells.embedder import LEAST, CellEmbedder, claimed, warn_of_empty
from omniset.cells.model import CellModel, Completion
from omniset.cells.novelty import Novelty
from omniset.cells.options import AnnotatorOptions
from omniset.cells.variable_genes import log_normalised
from omniset.fitted import Estimator
from omniset.report.blocks import many
from omniset.runs.progress import Progress
from omniset.training import artefacts, schema
from omniset.training.located import located
from omniset.trials.comparison import OURS, Aim, Comparison, Score
from omniset.trials.stacking import Classes, Stack, cross_fitted, in_words, log_losses, raised

Chosen = Int[np.ndarray, " chosen"]  # rows of labelled cells
Codes = Int[np.ndarray, " cells"]
Shares = Float64[np.ndarray, "cells types"]  # of each type
Marks = Bool[np.ndarray, " cells"]
Names = Shaped[np.ndarray, " cells"]
EMBEDDER = "embedder"  # folder of the vectors' model, within that of the annotator
SHARED = len(METHODS) - 1  # methods before those that have a width
FOLDS, CELL_FOLDS = 3, 5  # parts that are kept back in turn: of whole batches; of cells, where there is one
MOST = 20_000  # labelled cells that are learned from, at most; rare types lose none
TOGETHER = 4096  # cells annotated at a time
FEW_BATCHES = 5  # fewer, and intervals are of cells
SIMPLE, KEPT = "logistic regression on genes", "cells kept back"
NAMES = (SIMPLE, "the same on principal components", "the same on vectors", "neighbours")  # of the methods


@dataclass
class Annotation:
    """What is said of new cells.

    Attributes:
        table: A row per cell: `cell`; `label`, "unknown" or the type; `type`, the most probable type, also of an
            unknown cell; `probability` of it; `second` and `second_probability`; `known_as_strange`, the share of known
            cells kept back that are at least as strange; `strangeness`.
        probabilities: (cells, types), if a cell is of a known type.
        types: Of the columns of these.
        z: (cells, latent) vectors.
        empty: Cells without counts of the model's genes, all of which are unknown.
    """

    table: pd.DataFrame
    probabilities: Float32[np.ndarray, "cells types"]
    types: list[str]
    z: Float32[np.ndarray, "cells latent"]
    empty: Bool[np.ndarray, " cells"]

    def by_label(self) -> pd.DataFrame:
        """A row per label, most frequent first: `label`, `cells`, `share`, median `probability`, and of the cells that
        are most likely of this type those `unknown`.
        """
        table = self.table
        unknown = table["label"] == UNKNOWN
        rows = []
        for name in [*self.types, UNKNOWN]:
            here = table[table["label"] == name]
            like = int((unknown & (table["type"] == name)).sum())
            middle = float(here["probability"].median()) if len(here) else np.nan
            rows.append((name, len(here), len(here) / max(len(table), 1), middle, like))
        counts = pd.DataFrame(rows, columns=["label", "cells", "share", "probability", "unknown"])
        return counts.sort_values("cells", ascending=False, kind="stable", ignore_index=True)

    def lines(self) -> list[str]:
        """What a terminal shows."""
        counts = self.by_label()
        width = max(12, *(len(name) for name in counts["label"]))
        shown = [f"{'label':{width}}{'cells':>10}{'share':>9}{'probability':>13}{'unknown, most like it':>24}"]
        for row in counts[(counts["cells"] > 0) | (counts["unknown"] > 0)].to_dict("records"):
            middle = "-" if np.isnan(row["probability"]) else f"{row['probability']:.3f}"
            like = "" if row["label"] == UNKNOWN else f"{row['unknown']:,}"
            shown.append(f"{row['label']:{width}}{row['cells']:>10,}{row['share']:>9.1%}{middle:>13}{like:>24}")
        return shown


class _Network(nn.Module):
    """The classifiers, and numbers of known cells that were kept back."""

    known: Tensor
    calls: Tensor

    def __init__(self, classifiers: Classifiers, known: Float[Tensor, "known 2"], calls: Int[Tensor, " known"]) -> None:
        super().__init__()
        self.classifiers = classifiers
        self.register_buffer("known", known)
        self.register_buffer("calls", calls)


@dataclass
class _Kept:
    """What a fold says of cells that it has not learned from; of known types only."""

    classifiers: Classifiers
    values: Float32[np.ndarray, "held genes"]
    answers: Float64[np.ndarray, "methods held types"]
    y: Int[np.ndarray, " held"]
    batches: Int[np.ndarray, " held"]


class CellAnnotator(AnnotatorOptions, Estimator):
    """Types of new cells, learned from a labelled reference.

        p(type | cell) = [ sum_m w_m p_m(type | cell)^a_m ]^b, normalised

    with p_m of `omniset.cells.classifiers`, weights w and powers a of `omniset.trials.stacking`, learned on batches
    kept back with each type of each batch as one unit; b makes the mixture as sure as it was right there. A cell is
    unknown where it is stranger (`omniset.cells.novelty`) than all but `error` of the known cells in every batch
    kept back.

    Args:
        {options}

    Attributes:
        types_: The types.
        embedder_: The model of the cells' vectors.
        weights_: Of each method.
        kept_back_: What was said of cells kept back: how many; the share `right`, its 95 % interval from `low` to
            `high`, and that of logistic regression on genes, `simple`; the share `unknown`.
        notes_: What was decided, a sentence each.
    """

    network_: _Network
    FITTED: ClassVar[dict[str, Any]] = {
        "label": schema.TEXT,
        "types": schema.array(schema.TEXT, minItems=2),
        "genes": schema.SIZE,
        "latent": schema.SIZE,
        "components": schema.SIZE,
        "cells": schema.SIZE,
        "known": schema.COUNT,
        "weights": schema.array(schema.NUMBER, minItems=len(METHODS), maxItems=len(METHODS)),
        "powers": schema.array(schema.NUMBER, minItems=len(METHODS), maxItems=len(METHODS)),
        "sureness": schema.NUMBER,
        "bound": schema.optional(schema.NUMBER),
        "embedder": schema.TEXT,
        "kept_back": schema.OBJECT,
        "notes": schema.array(schema.TEXT),
    }
    HISTORIES: ClassVar[tuple[str, ...]] = ()

    # ------------------------------------------------------------------ the verbs

    def fit(
        self,
        reference: Any,
        *,
        label: str,
        batch_key: str | None = None,
        embedder: CellEmbedder | str | Path | None = None,
        **reading: Any,
    ) -> CellAnnotator:
        """Learn from the cells of the reference that have a label; vectors from all of them.

        Args:
            reference, batch_key: As in `CellEmbedder.fit`.
            label: Column of obs with the types.
            embedder: A model of vectors that is fitted, or its folder: it is used as it is. One that is not fitted, or
                None: it is fitted on the reference, and anew for each fold.
            reading: `layer`, `input` and `gene_column`, as in `read_cells`.

        Raises:
            ValueError: No such column, fewer than two types, or what `CellEmbedder.fit` refuses.
        """
        self.check_options()
        with opened(reference, **reading) as cells:
            codes, _ = batch_codes(cells, batch_key, label)
            return self.fit_cells(cells, codes, np.arange(len(cells)), labels_of(cells, label), label, embedder)

    def fit_cells(
        self,
        cells: Cells,
        codes: Int[np.ndarray, " cells"],
        rows: Int[np.ndarray, " rows"],
        labels: Shaped[np.ndarray, " cells"],
        label: str = "type",
        embedder: CellEmbedder | str | Path | None = None,
    ) -> CellAnnotator:
        """`fit` on some of the cells, of these batches and labels (None: not known). Others are not looked at."""
        known = rows[[labels[row] is not None for row in rows]]
        self.types_ = sorted({labels[row] for row in known})
        if len(self.types_) < 2:
            raise ValueError(f"label: the reference has {many(len(self.types_), 'type')} in {label}, 2 are needed")
        number = {name: i for i, name in enumerate(self.types_)}
        y = np.array([number[labels[row]] for row in known], dtype=np.int64)
        some = evenly(y, MOST, self.seed)
        chosen, y = known[some], y[some]
        self.label_ = label
        self.notes_ = [f"{many(len(chosen), 'cell')} of {many(len(self.types_), 'type')} are learned from"]
        if len(rows) > len(known):
            self.notes_.append(f"{len(rows) - len(known):,} cells without {label} shape the vectors only")
        model = CellEmbedder.load(embedder) if isinstance(embedder, str | Path) else embedder
        teach = _Teacher(self, cells, codes, rows, model)
        self.embedder_ = teach(rows)
        self.notes_ += (
            self.embedder_.notes_ if teach.anew else ["the vectors' model is given: it may know what is kept back"]
        )
        folds = self._folds(teach, chosen, y)
        said = self._weigh(folds)
        classifiers = self._classifiers(cells, self.embedder_, chosen, y)
        classifiers.width.mul_(self.width_)
        calls = [self._mixed(fold.answers).argmax(1) for fold in folds]
        strange = [fold.classifiers.strangeness(fold.values, call) for fold, call in zip(folds, calls, strict=True)]
        numbers, called = np.concatenate(strange), np.concatenate(calls)
        parts = np.concatenate([fold.batches for fold in folds])
        self.novelty_ = Novelty.learned(numbers, called, parts, self.error) if self.error else Novelty(numbers, called)
        self.network_ = _Network(classifiers, torch.from_numpy(numbers), torch.from_numpy(called)).eval()
        self.embedded_by_ = self.embedder_.identity()
        self._say(folds, said)
        return self

    def annotate(self, source: Any, *, aliases: Mapping[str, str] | None = None, **reading: Any) -> Annotation:
        """The type of every cell, in their order; "unknown" for one without counts, of which there is a warning.

        Genes that a source has not measured are filled in as for the vectors.

        Args:
            source, aliases, reading: As in `CellEmbedder.transform`; `layer`, `input` and `gene_column` are of reading.
        """
        self.require_fitted()
        with opened(source, **reading) as cells:
            known = self.embedder_.on(cells, aliases)
            annotation = self.annotate_cells(known, np.arange(len(known)))
            warn_of_empty(known, annotation.empty, "nothing tells their type")
            return annotation

    def annotate_cells(self, cells: Cells, rows: Int[np.ndarray, " rows"]) -> Annotation:
        """`annotate` for some of the cells."""
        cells, classifiers = cells.on(self.embedder_.genes_), self.network_.classifiers
        parts: list[tuple[np.ndarray, ...]] = []
        with Progress("annotating", len(rows), self.progress, unit="cells") as progress:
            for start in range(0, max(len(rows), 1), TOGETHER):
                some = rows[start : start + TOGETHER]
                z, empty = self.embedder_.vectors_of(cells, some, silent=True)
                values = values_of(cells, some, classifiers.middle.numpy(), self._completion)
                p = self._mixed(classifiers.probabilities(values, z, weights=self.mixture_.weights))
                parts.append((z, p, classifiers.strangeness(values, p.argmax(1)), empty))
                progress.at(start + len(some))
        z, p, numbers, empty = (np.concatenate(several) for several in zip(*parts, strict=True))
        table = self._table(cells.names[rows], p, numbers, empty)
        return Annotation(table, p.astype(np.float32), self.types_, z, empty)

    def predict(self, source: Any, **options: Any) -> Shaped[np.ndarray, " cells"]:
        """The labels that `annotate` gives, "unknown" among them."""
        return self.annotate(source, **options).table["label"].to_numpy(dtype=object)

    def write(self, folder: str | Path, metrics: Mapping[str, Any] | None = None) -> None:
        """As `Estimator.write`; the vectors' model is a folder of its own within."""
        super().write(folder, metrics)
        self.embedder_.write(Path(folder) / EMBEDDER)

    @classmethod
    def load(cls, folder: str | Path, **overrides: Any) -> CellAnnotator:
        """As `Estimator.load`."""
        folder = located(folder)
        annotator = super().load(folder, **overrides)
        used = {name: getattr(annotator, name) for name in ("device", "progress")}
        annotator.embedder_ = CellEmbedder.load(folder / EMBEDDER, **used)
        if annotator.embedder_.identity() != annotator.embedded_by_:
            raise ValueError(
                f"{Path(folder) / EMBEDDER} is model {annotator.embedder_.identity()}, the annotator was fitted with "
                f"{annotator.embedded_by_}"
            )
        return annotator

    # ------------------------------------------------------------------ what they are made of

    def _folds(self, teach: _Teacher, chosen: Chosen, y: Chosen) -> list[_Kept]:
        """What was said of cells kept back: batches where types are in several of them, else cells."""
        batches = teach.codes[chosen]
        fold_of, by_batch = _dealt(batches, y, self.seed)
        self.by_batch_ = by_batch
        what = "whole batches" if by_batch else "cells, as no type is in two batches"
        self.notes_.append(f"{fold_of.max() + 1} parts of the reference are kept back in turn: {what}")
        folds = []
        for fold in range(int(fold_of.max()) + 1):
            held, train = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
            held = held[np.isin(y[held], y[train])]
            if not len(held) or len(np.unique(y[train])) < 2:
                continue
            left = np.isin(teach.codes[teach.rows], np.unique(batches[held]))
            model = teach(teach.rows[~left]) if by_batch and teach.anew else self.embedder_
            classifiers = self._classifiers(teach.cells, model, chosen[train], y[train])
            values = values_of(teach.cells.on(model.genes_), chosen[held], classifiers.middle.numpy())
            answers = classifiers.probabilities(values, model.embed_cells(teach.cells, chosen[held]), WIDTHS)
            part = batches[held] if by_batch else np.full(len(held), fold)
            folds.append(_Kept(classifiers, values, answers, y[held], part))
        if not folds:
            raise ValueError(f"label: no type in {self.label_} has two cells, one of which could be kept back")
        return folds

    def _classifiers(
        self, cells: Cells, model: CellEmbedder, rows: Int[np.ndarray, " rows"], y: Int[np.ndarray, " rows"]
    ) -> Classifiers:
        values = values_of(cells.on(model.genes_), rows, None)
        return Classifiers.learned(values, model.embed_cells(cells, rows), y, len(self.types_), self.seed)

    def _weigh(self, folds: list[_Kept]) -> Shares:
        """The neighbours' width, the methods' weights and the mixture's sureness, by what was kept back.

        Of whole batches, each type of each batch is a unit; of cells of one batch, each cell: new ones are drawn as
        they were. Sureness, and what is said of the calls, come from mixtures learned without the cells they are asked
        about.
        """
        answers, y = np.concatenate([fold.answers for fold in folds], 1), np.concatenate([fold.y for fold in folds])
        unit = np.concatenate([fold.batches for fold in folds]) * len(self.types_) + y
        unit = unit if self.by_batch_ else np.arange(len(y))
        weight = 1 / np.bincount(unit)[unit]
        width = int((log_losses(answers[SHARED:], y) @ weight).argmin())
        self.width_ = WIDTHS[width]
        for fold in folds:
            fold.answers = np.concatenate((fold.answers[:SHARED], fold.answers[SHARED + width :][:1]))
        answers = np.concatenate([fold.answers for fold in folds], 1)
        parts = np.concatenate([np.full(len(fold.y), number) for number, fold in enumerate(folds)])
        asked = len(METHODS) if self.by_batch_ else OF_GENES
        if not self.by_batch_:
            # Cells of a batch that vectors were learned from do not say how these carry over to a new batch.
            self.notes_.append("how well vectors carry over to a new batch cannot be told from one: they do not count")
        mixture = Stack.learned(answers[:asked], Classes(y), parts, weight, unit)
        none = np.zeros(len(METHODS) - asked)
        self.mixture_ = Stack(np.append(mixture.weights, none), np.append(mixture.powers, none + 1))
        mixed = mixture(answers[:asked])
        if len(folds) > 1:
            mixed = cross_fitted(answers[:asked], Classes(y), parts, parts, weight, unit)
        self.sureness_ = Classes(y).power(mixed, np.ones(len(y)))
        self.weights_ = dict(zip(METHODS, self.mixture_.weights.tolist(), strict=True))
        return raised(mixed, self.sureness_)

    @property
    def _completion(self) -> Completion | None:
        """What fills missing genes in, where the vectors' model reads log-normalised genes and has learned it."""
        network = self.embedder_.network_
        completion = network.encoder.completion if isinstance(network, CellModel) else None
        return completion if completion is not None and completion.middle.any() else None

    def _mixed(self, answers: Float64[np.ndarray, "methods cells types"]) -> Shares:
        return raised(self.mixture_(answers), self.sureness_)

    def _say(self, folds: list[_Kept], said: Shares) -> None:
        y, batches = (np.concatenate([getattr(fold, name) for fold in folds]) for name in ("y", "batches"))
        simple = np.concatenate([fold.answers[0] for fold in folds])  # of genes
        each = [(name, p.argmax(1) == y) for name, p in ((OURS, said), (SIMPLE, simple))]
        about = {"condition": KEPT, "cell": np.arange(len(y)), "batch": batches}
        rows = pd.concat([pd.DataFrame({**about, "method": name, "right": right * 1.0}) for name, right in each])
        unit = "batch" if self.by_batch_ and len(np.unique(batches)) >= FEW_BATCHES else "cell"
        score, aims = Score("right", "accuracy", share=True), [Aim(KEPT, "right", SIMPLE)]
        compared = Comparison(rows, [score], unit, unit, ["cell"], [SIMPLE], aims)
        ours, genes = (compared.interval("right", KEPT, name) for name, _ in each)
        refused = float(self.novelty_.unknown(self.novelty_.known, self.novelty_.calls).mean())
        self.kept_back_ = {"cells": len(y), "right": ours.value, "low": ours.low, "high": ours.high}
        self.kept_back_ |= {"simple": genes.value, "unknown": refused}
        self.measured_ = compared.numbers()
        counts = np.bincount(y, minlength=len(self.types_))
        self.notes_.insert(0, in_words(dict(zip(NAMES, self.weights_.values(), strict=True))))
        lone = [name for name, count in zip(self.types_, counts, strict=True) if not count]
        if lone:
            why = "in one of these parts only" if self.by_batch_ else "of a single cell"
            self.notes_.append(f"nothing tells how well these types are called, which are {why}: {', '.join(lone)}")

    def _table(self, names: Names, p: Shares, numbers: Float32[np.ndarray, "cells 2"], empty: Marks) -> pd.DataFrame:
        types = np.array(self.types_, dtype=object)
        order = np.argsort(-p, axis=1, kind="stable")
        best, second = order[:, 0], order[:, 1]
        strangeness = self.novelty_.strangeness(numbers, best)
        row = np.arange(len(p))
        return pd.DataFrame(
            {
                "cell": names.astype(str),
                "label": np.where(empty | (strangeness > self.novelty_.bound), UNKNOWN, types[best]),
                "type": types[best],
                "probability": np.round(p[row, best], 4),
                "second": types[second],
                "second_probability": np.round(p[row, second], 4),
                "known_as_strange": np.round(self.novelty_.share(strangeness), 5),
                "strangeness": np.round(strangeness, 3),
            }
        )

    def _state(self) -> dict[str, Any]:
        classifiers, bound = self.network_.classifiers, self.novelty_.bound
        return {
            "label": self.label_,
            "types": self.types_,
            "genes": len(self.embedder_.genes_),
            "latent": classifiers.places.shape[1],
            "components": classifiers.axes.shape[1],
            "cells": len(classifiers.labels),
            "known": len(self.network_.calls),
            "weights": self.mixture_.weights.tolist(),
            "powers": self.mixture_.powers.tolist(),
            "sureness": self.sureness_,
            "bound": float(bound) if np.isfinite(bound) else None,
            "embedder": self.embedder_.identity(),
            "kept_back": self.kept_back_,
            "notes": self.notes_,
        }

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        genes, latent, cells, components = (fitted[name] for name in ("genes", "latent", "cells", "components"))
        self.label_, self.types_, self.notes_ = fitted["label"], fitted["types"], fitted["notes"]

        def empty() -> _Network:
            classifiers = Classifiers(genes, latent, len(self.types_), cells, components)
            known = fitted["known"]
            return _Network(classifiers, torch.zeros(known, 2), torch.zeros(known, dtype=torch.int64))

        self.network_ = weights.build(empty)
        self.mixture_ = Stack(np.array(fitted["weights"]), np.array(fitted["powers"]))
        self.weights_ = dict(zip(METHODS, fitted["weights"], strict=True))
        self.sureness_, self.kept_back_ = fitted["sureness"], fitted["kept_back"]
        self.embedded_by_ = fitted["embedder"]
        bound = np.inf if fitted["bound"] is None else fitted["bound"]
        self.novelty_ = Novelty(self.network_.known.numpy(), self.network_.calls.numpy(), bound)


def annotate(
    adata: Any,
    reference: Any,
    *,
    label: str = "cell_type",
    batch_key: str | None = None,
    key_added: str = "omniset",
    copy: bool = False,
    aliases: Mapping[str, str] | None = None,
    **reading: Any,
) -> Any:
    """Types of cells by a labelled reference, kept in their AnnData as `embed` keeps vectors, which refuses the same.

    Example:
        omniset.cells.annotate(adata, reference, label="cell_type", batch_key="donor")
        scanpy.pl.umap(adata, color=["omniset_label", "omniset_probability"])

    Args:
        adata: As in `embed`. Added are three columns of obs, with key_added before their names: `_label`, `_type` and
            `_probability`, which `Annotation` explains; and what made them: `uns["omniset"]["obs"]`.
        reference: Cells with labels, as in `CellAnnotator.fit`; or a fitted `CellAnnotator`.
        label, batch_key, aliases, reading: As in `CellAnnotator.fit` and `annotate`. Both are read in the same way.
    """
    names = {f"{key_added}_{what}": what for what in ("label", "type", "probability")}
    about, fitted = claimed(adata, "obs", key_added, list(names), batch_key=batch_key, **reading), reference
    if not isinstance(fitted, CellAnnotator):
        fitted = CellAnnotator().fit(reference, label=label, batch_key=batch_key, **reading)
    elif batch_key is not None:
        raise ValueError(f"batch_key={batch_key!r} is for learning, and the reference is fitted: leave it out")
    table = fitted.annotate(adata, aliases=aliases, **reading).table
    adata = adata.copy() if copy else adata
    for name, what in names.items():
        adata.obs[name] = table[what].to_numpy() if what == "probability" else pd.Categorical(table[what])
    made = {"class": type(fitted).__name__, "version": omniset.__version__, "label": fitted.label_}
    about["obs"][key_added] |= made | {"model": fitted.embedded_by_, "error": fitted.error, "seed": fitted.seed}
    adata.uns["omniset"] = about
    return adata if copy else None


@dataclass
class _Teacher:
    """Models of vectors, learned from some of the rows; or the one that was given."""

    options: CellAnnotator
    cells: Cells
    codes: Int[np.ndarray, " cells"]
    rows: Int[np.ndarray, " rows"]
    model: CellEmbedder | None

    @property
    def anew(self) -> bool:
        return self.model is None or not hasattr(self.model, "network_")

    def __call__(self, rows: Int[np.ndarray, " some"]) -> CellEmbedder:
        if self.model is not None and not self.anew:
            return self.model
        shared = {name: getattr(self.options, name) for name in ("seed", "device", "progress")}
        embedder = CellEmbedder(**(shared if self.model is None else self.model.get_params()))
        return embedder.fit_cells(self.cells, numbered_anew(self.codes, rows), rows)


def values_of(
    cells: Cells,
    rows: Int[np.ndarray, " rows"],
    middle: Float32[np.ndarray, " genes"] | None,
    completion: Completion | None = None,
    library: Float[np.ndarray, " rows"] | None = None,
) -> Float32[np.ndarray, "rows genes"]:
    """Log-normalised genes.

    Args:
        middle: The mean cell: what stands for a gene that a source has not measured. None: 0 does.
        completion: What fills such genes in, in place of the mean cell.
        library: Totals of the cells. None: those of all their counts.
    """
    library = cells.library(rows) if library is None else library
    values = log_normalised(cells.take(rows), library).astype(np.float32).toarray()
    if middle is None:
        return values
    for source, measured in enumerate(cells.measured):
        here = np.flatnonzero(cells.source_of[rows] == source)
        if measured.all() or not len(here):
            continue
        if completion is None:
            values[np.ix_(here, ~measured)] = middle[~measured]
            continue
        some = torch.from_numpy(values[here]).to(completion.middle.device)
        values[here] = completion(some, torch.from_numpy(measured).to(some.device).expand(len(some), -1)).cpu()
    return values


def _dealt(batches: Codes, y: Codes, seed: int) -> tuple[Codes, bool]:
    """Number of the part in which each cell is kept back, and whether parts are of whole batches.

    Batches are dealt by size, the largest first, each to the smallest part. Where no two types would be left to learn
    from, or none to be judged, cells are dealt, of each type alike.
    """
    numbers, sizes = np.unique(batches, return_counts=True)
    if len(numbers) > 1:
        of_part, part_of = np.zeros(min(FOLDS, len(numbers))), {}
        for i in np.argsort(-sizes, kind="stable"):
            part_of[numbers[i]] = int(of_part.argmin())
            of_part[of_part.argmin()] += sizes[i]
        fold_of = np.array([part_of[batch] for batch in batches])
        for part in range(len(of_part)):
            train = np.unique(y[fold_of != part])
            if len(train) > 1 and np.isin(y[fold_of == part], train).any() and (fold_of != part).sum() >= LEAST:
                return fold_of, True
    order = np.random.default_rng(seed).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    fold_of = np.zeros(len(y), dtype=np.int64)
    fold_of[order] = np.arange(len(y)) % CELL_FOLDS
    return fold_of, False
