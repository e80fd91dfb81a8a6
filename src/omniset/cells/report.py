"""Reports on cells: a model, annotated cells, a perturbation, evaluations. Each is a page and the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch

from omniset.cells.annotator import SIMPLE, Annotation, CellAnnotator
from omniset.cells.data import UNKNOWN, Cells, labels_of
from omniset.cells.embedder import CellEmbedder
from omniset.cells.evaluate import ALL, NEW, TRANSFER, WHOLE, Evaluation
from omniset.cells.evaluate_annotation import HALF, REMOVED, AnnotationEvaluation
from omniset.cells.evaluate_perturbation import PerturbationEvaluation
from omniset.cells.metrics import BATCH, BIO
from omniset.cells.perturber import CellPerturber
from omniset.cells.projection import DRAWN, Drawn, flat, plotted, remark, sampled, share_drawn
from omniset.report import figures, frame
from omniset.report.blocks import Block, Note, Plot, Report, Section, Table, listed, many, plots_of, rounded
from omniset.trials.comparison import OURS, Comparison, number_of
from omniset.trials.intervals import Interval, decimals

GENES = 15  # shown for a cell that is explained, or a perturbation
LISTED = 200  # batches, samples, pairs of types
TYPES = 30  # that are shown as a matrix
MUCH = 0.2  # share of unknown cells above which the page speaks up
Made = tuple[Report, dict[str, Any]]


def of_fit(
    embedder: CellEmbedder, drawn: Drawn, explained: pd.DataFrame | None, batches: pd.DataFrame, run: frame.Run
) -> Made:
    """On a fitted model: cells to draw, what `explain` gave of a few, and `omniset.cells.data.batch_sizes`."""
    sizes, seconds = embedder.sizes_, getattr(embedder, "seconds_", None)
    how, places = flat(drawn.z, int(embedder.seed))
    text = "" if len(batches) > 1 else "All cells are taken for one batch: nothing was mixed."
    groups = drawn.groups or {"all cells": np.full(len(places), "", dtype=object)}
    pictures = [plotted(places, of, how, f"{how} of the vectors, by {by}.") for by, of in groups.items()]
    sections = [
        Section("Embedding", "", [*pictures]),
        Section("Batches", text, [_table("Their cells, and median counts per cell.", batches.head(LISTED), half=True)]),
        _genes(explained),
        frame.learning({"": embedder.history_}),
    ]
    verdict = (
        f"{many(sizes['cells'], 'cell')} of {number_of(len(batches), 'batch')} have vectors of {drawn.z.shape[1]} "
        f"numbers, learned without labels from {sizes['genes']:,} genes; how well they keep types apart and mix "
        "batches, beside PCA, evaluate says."
    )
    numbers = {
        **{"sizes": sizes, "model": embedder.identity(), "seconds": seconds, "history": embedder.history_},
        "batches": batches.to_dict("records"),
        "drawn": {"cells": len(drawn.rows), "of": drawn.of, "by": how, "columns": list(drawn.groups)},
        "explained": [] if explained is None else explained.to_dict("records"),
    }
    # By type, where a column other than the batch is there.
    return frame.compose(
        run,
        verdict,
        f"{share_drawn(len(drawn.rows), drawn.of)} {remark(how)}",
        sections,
        numbers,
        picture=pictures[1:] or pictures,
        settings=embedder.get_params(),
    )


def of_evaluation(evaluation: Evaluation, run: frame.Run) -> Made:
    """On embeddings beside each other."""
    comparison, number = evaluation.comparison, len(evaluation.labels)
    rows, how = sampled(number, 0), "PCA"
    pictures: list[Plot] = []
    for method, z in evaluation.embeddings.items():
        how, places = flat(z[rows], 0)
        for name, labels in (("batch", evaluation.batches), ("cell type", evaluation.labels)):
            pictures.append(plotted(places, labels[rows].astype(object), how, f"{method}: {how} by {name}."))
    ours = [plot for plot in pictures if plot.caption == f"{OURS}: {how} by cell type."]
    single = {name: comparison.table(name, ALL)["value"] for name in (*BIO, *BATCH)}
    text = "Each method is fitted on all cells. Scores are those of scib-metrics (Luecken et al., 2022): 1 is best."
    tables: list[Block] = [
        frame.methods(comparison, ALL, WHOLE[:3], caption="Mean over seeds. Other cells would give other numbers."),
        _table("Single scores.", pd.DataFrame(single).rename_axis("method").reset_index()),
    ]
    sections = [Section("All cells at hand", text, tables)]
    sections.append(Section("Embeddings", f"{share_drawn(len(rows), number)} {remark(how)}", [*pictures]))
    if not evaluation.inductive.empty:
        text = "A batch is left out of the fit, embedded without being named, and its labels told from the others'."
        sections.append(Section("Batches that were not seen", text, [frame.methods(comparison, NEW, TRANSFER)]))
    lead = f"{many(len(comparison.methods), 'method')} on {many(number, 'cell')}, judged by labels that none has seen. "
    lead += "KNN macro-F1: how well the nearest cells of others tell the types of a batch left out, all types alike."
    about = {"advice": evaluation.advice(), "checks": evaluation.checks, "not_run": evaluation.not_run}
    about["drawn"] = {"cells": len(rows), "of": number, "by": how}
    remarks = [Note("info", evaluation.advice())]
    return frame.compose(run, "", lead, sections, about, picture=ours, remarks=remarks, comparison=comparison)


def of_annotation(
    annotator: CellAnnotator, annotation: Annotation, cells: Cells, label: str, sample: str | None, run: frame.Run
) -> Made:
    """On what new cells are; `label` may have the truth, `sample` has the sample of each."""
    counts = annotation.by_label()
    labels = annotation.table["label"].to_numpy(dtype=object)
    share = float((labels == UNKNOWN).mean()) if len(labels) else 0.0
    text = "A cell is unknown where it is stranger than nearly all known cells that were called the same."
    of_types = _table("Cells of each type, the median probability of the call, and unknown cells most like it.", counts)
    beside_reference = _beside_reference(annotator, annotation)
    sections = [Section("Calls", text, [of_types]), beside_reference]
    if sample is not None:
        shares = pd.crosstab(cells.obs[sample].astype(str).to_numpy(dtype=object), labels, normalize="index")
        shown = _table(f"Share of each type in each {sample}.", shares.rename_axis(sample).reset_index().head(LISTED))
        sections.append(Section("Composition", "", [shown]))
    beside: dict[str, Any] = {"confusion": None}
    if label in cells.obs and len(known := np.flatnonzero((truth := labels_of(cells, label)) != None)):  # noqa: E711
        section, beside = _beside_truth(truth[known].astype(str), labels[known].astype(str), label)
        sections.append(section)
    weights = pd.DataFrame(annotator.weights_.items(), columns=["method", "weight"])
    sections.append(Section("How it was learned", "", [_table("By calls of cells kept back.", weights, half=True)]))
    kept = annotator.kept_back_
    digits = max(decimals(Interval(kept["right"], kept["low"], kept["high"])) - 2, 0)
    right, low, high, simple = (f"{100 * kept[name]:.{digits}f}" for name in ("right", "low", "high", "simple"))
    called = counts.loc[(counts["label"] != UNKNOWN) & (counts["cells"] > 0)]
    verdict = (
        f"{int(called['cells'].sum()):,} of {many(len(labels), 'cell')} are of {many(len(called), 'known type')}, and "
        f"{100 * share:.0f} % are unknown. Of {kept['cells']:,} known cells kept back {right} % were called right "
        f"(95 % interval {low} to {high}), by {SIMPLE} alone {simple} %; of each batch at most "
        f"{100 * annotator.error:g} % were called unknown."
    )
    text = "So many are unknown: of types that the reference lacks, or measured otherwise than it."
    numbers = {
        **{"calls": counts.to_dict("records"), "kept_back": annotator.kept_back_},
        "weights": annotator.weights_,
        **beside,
        "model": annotator.embedder_.identity(),
    }
    remarks = [Note("warning", text)] if share > MUCH else []
    how: dict[str, Any] = {"remarks": remarks, "settings": annotator.get_params()}
    about = f"The reference has {len(annotation.types)} types."
    return frame.compose(run, verdict, about, sections, numbers, picture=plots_of(beside_reference)[2:], **how)


def of_annotation_evaluation(evaluation: AnnotationEvaluation, run: frame.Run) -> Made:
    """On types that were called of batches left out."""
    comparison, known = evaluation.comparison, ["f1", "right", "ece", "kept"]
    texts = {
        HALF: "Half of the cells, of all batches as one, have a label. The others are called.",
        NEW: "One batch at a time is left out altogether, and its cells are called by what the others teach.",
        REMOVED: "Besides, one type is taken out of the reference: its cells are unknown.",
    }
    sections = _conditions(comparison, texts, dict.fromkeys((HALF, NEW), known) | {REMOVED: ["auroc", "found", "kept"]})
    sections.append(Section("Weights", "", [_table("Of our methods.", evaluation.weights)]))
    lead = f"{many(len(comparison.methods), 'method')} that call the types of cells whose labels they have not seen."
    return frame.compose(run, "", lead, sections, {"not_run": evaluation.not_run}, comparison=comparison)


def of_perturbation(
    perturber: CellPerturber, evaluation: PerturbationEvaluation | None, foretold: pd.DataFrame | None, run: frame.Run
) -> Made:
    """On what a perturbation does; `foretold` is of `CellPerturber.populations`, where new cells were foretold."""
    numbers: dict[str, Any] = {"widths": list(perturber.shifts_.widths)}
    sections: list[Section] = []
    more: dict[str, Any] = {}
    if foretold is not None:
        sections.append(Section("Populations", "", [_table("What is foretold, and of how many cells.", foretold)]))
    if evaluation is not None:
        comparison = evaluation.comparison
        names = [score.name for score in comparison.scores]
        sections += _conditions(comparison, evaluation.TEXTS, dict.fromkeys(evaluation.TEXTS, names))
        more["comparison"] = comparison
    changes = perturber.largest_changes(GENES)
    table = _table("Mean change of log-normalised counts over known groups.", changes)
    sections.append(Section("Genes that change most", "", [table]))
    lead = f"Treated cells foretold from untreated ones, by {many(len(perturber.shifts_.values), 'population')}."
    verdict = ""
    if evaluation is None:
        name, genes, by = (column.tolist() for _, column in changes.groupby("perturbation", sort=False).head(1).items())
        verdict = f"{name[0]} changes {genes[0]} most, by {by[0]:+.2f} in the mean; whether such changes foretell "
        verdict += "those of other cells, beside the mean change, was not measured."
        caption = "The gene that each perturbation changes most."
        names = [f"{one}: {gene}" for one, gene in zip(name, genes, strict=True)]
        drawn = figures.bars(names, by, "change of log-normalised counts")
        more["picture"] = [Plot(drawn, f"{caption} {listed(dict(zip(names, by, strict=True)))}.", caption)]
    return frame.compose(run, verdict, lead, sections, numbers, settings=perturber.plain(), **more)


# ---------------------------------------------------------------------- parts


def _table(caption: str, rows: pd.DataFrame, **how: Any) -> Table:
    cells = [[rounded(v) if isinstance(v, float) else v for v in row] for row in rows.itertuples(index=False)]
    return Table(caption, [*map(str, rows.columns)], cells, **how)


def _conditions(comparison: Comparison, texts: dict[str, str], scores: dict[str, list[str]]) -> list[Section]:
    tables = {name: frame.methods(comparison, name, scores[name]) for name in comparison.conditions}
    return [Section(name.capitalize(), texts[name], [table]) for name, table in tables.items()]


def _genes(explained: pd.DataFrame | None) -> Section:
    if explained is None or explained.empty:
        return Section("Genes")
    text = "Change: how far the vector would go back without the gene."
    parts: Iterable[tuple[Any, pd.DataFrame]] = explained.drop(columns="cell").groupby(explained["cell"], sort=False)
    return Section("Genes", text, [_table(f"Cell {name}", rows.head(GENES), half=True) for name, rows in parts])


def _beside_reference(annotator: CellAnnotator, annotation: Annotation) -> Section:
    learned = annotator.network_.classifiers
    new, places = learned.place(torch.from_numpy(annotation.z)).numpy(), learned.places.numpy()
    of_new, of_known = (sampled(len(z), annotator.seed, DRAWN // 2) for z in (new, places))
    how, where = flat(np.concatenate((places[of_known], new[of_new])), int(annotator.seed))
    types = np.array(annotation.types, dtype=object)[learned.labels.numpy()[of_known]]
    called = annotation.table["label"].to_numpy(dtype=object)[of_new]
    kinds = np.repeat(np.array(["reference", "new"], dtype=object), [len(of_known), len(of_new)])
    pictures: list[Block] = [
        plotted(where, kinds, how, f"{how} of the vectors: reference and new cells."),
        plotted(where[: len(types)], types, how, "The reference, by its labels."),
        plotted(where[len(types) :], called, how, "New cells, by what they are called."),
    ]
    text = f"{len(of_known):,} reference cells and {len(of_new):,} new ones on one plane. {remark(how)}"
    return Section("New cells on the reference", text, pictures)


def _beside_truth(truth: Any, called: Any, label: str) -> tuple[Section, dict[str, Any]]:
    """A matrix of few types; of more, as it grows with their square, the pairs that occur."""
    text = f"New cells have {label} too. It was not read before; {(truth == called).mean():.1%} are called the same."
    if max(len({*truth}), len({*called})) > TYPES:
        pairs = pd.DataFrame({"true": truth, "called": called}).value_counts().rename("cells").reset_index()
        shown = _table("The most frequent confusions.", pairs[pairs["true"] != pairs["called"]].head(LISTED))
        return Section("Beside the truth", text, [shown]), {"confusions": pairs.to_dict("records")}
    confusion, names = pd.crosstab(truth, called), sorted({*truth, *called})
    square = confusion.reindex(index=names, columns=names, fill_value=0).to_numpy()
    caption = f"Rows are {label}, columns what was called. Colour: fraction of the row."
    plot = Plot(figures.confusion_matrix(square, names), f"{caption} {text}", caption, half=False)
    return Section("Beside the truth", text, [plot]), {"confusion": confusion.reset_index().to_dict("records")}
