"""Reports on cells: a model, annotated cells, a perturbation, evaluations. Each is a page and the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

from omniset.cells.annotator import Annotation, CellAnnotator
from omniset.cells.data import UNKNOWN, Cells, labels_of
from omniset.cells.embedder import CellEmbedder
from omniset.cells.evaluate import ALL, NEW, TRANSFER, WHOLE, Evaluation
from omniset.cells.evaluate_annotation import HALF, REMOVED, AnnotationEvaluation
from omniset.cells.evaluate_perturbation import PerturbationEvaluation
from omniset.cells.metrics import BATCH, BIO
from omniset.cells.perturber import CellPerturber
from omniset.cells.projection import DRAWN, Drawn, components, flat, plotted, remark, sampled, share_drawn
from omniset.report import figures, frame
from omniset.report.blocks import Block, Cell, Facts, Note, Plot, Report, Section, Table, many, rounded, text_of
from omniset.trials.comparison import Comparison

GENES = 15  # shown for a cell that is explained, or a perturbation
LISTED = 200  # batches, samples, pairs of types
TYPES = 30  # that are shown as a matrix
MUCH = 0.2  # share of unknown cells above which the page speaks up
Made = tuple[Report, dict[str, Any]]
Items = list[tuple[str, Any, str]]


def of_fit(
    embedder: CellEmbedder, drawn: Drawn, explained: pd.DataFrame | None, batches: pd.DataFrame, run: frame.Run
) -> Made:
    """On a fitted model: cells to draw, what `explain` gave of a few, and `omniset.cells.data.batch_sizes`."""
    sizes, seconds = embedder.sizes_, getattr(embedder, "seconds_", None)
    how, places = flat(drawn.z, int(embedder.seed))
    headline: Items = [("cells", sizes["cells"], "learned from"), ("genes", sizes["genes"], "learned")]
    headline += [] if seconds is None else [("seconds", Cell(f"{seconds:,.0f}", seconds), "of training")]
    text = "" if len(batches) > 1 else "All cells are taken for one batch: nothing was mixed."
    groups = drawn.groups or {"all cells": np.full(len(places), "", dtype=object)}
    pictures: list[Block] = [plotted(places, of, how, f"{how} of the vectors, by {by}.") for by, of in groups.items()]
    depth, correlation = _depth(drawn)
    sections = [
        Section("Batches", text, [_table("Their cells, and median counts per cell.", batches.head(LISTED), half=True)]),
        frame.learning({"": embedder.history_}),
        Section("Embedding", f"{share_drawn(len(drawn.rows), drawn.of)} {remark(how)}", pictures),
        depth,
        _genes(explained),
    ]
    lead = f"Vectors learned from {many(sizes['cells'], 'cell')} and {sizes['genes']:,} genes without labels."
    numbers = {
        **{"sizes": sizes, "model": embedder.identity(), "seconds": seconds, "history": embedder.history_},
        "batches": batches.to_dict("records"),
        "drawn": {"cells": len(drawn.rows), "of": drawn.of, "by": how, "columns": list(drawn.groups)},
        "library_correlation": correlation,
        "explained": [] if explained is None else explained.to_dict("records"),
    }
    return frame.compose(run, lead, sections, numbers, headline=headline, settings=embedder.get_params())


def of_evaluation(evaluation: Evaluation, run: frame.Run) -> Made:
    """On embeddings beside each other."""
    comparison, number, checks = evaluation.comparison, len(evaluation.labels), evaluation.checks
    rows, how = sampled(number, 0), "PCA"
    pictures: list[Block] = []
    for method, z in evaluation.embeddings.items():
        how, places = flat(z[rows], 0)
        for name, labels in (("batch", evaluation.batches), ("cell type", evaluation.labels)):
            pictures.append(plotted(places, labels[rows].astype(object), how, f"{method}: {how} by {name}."))
    single = {name: comparison.table(name, ALL)["value"] for name in (*BIO, *BATCH)}
    text = "Each method is fitted on all cells. Scores are those of scib-metrics (Luecken et al., 2022): 1 is best."
    tables: list[Block] = [
        frame.methods(comparison, ALL, WHOLE[:3], caption="Mean over seeds. Other cells would give other numbers."),
        _table("Single scores.", pd.DataFrame(single).rename_axis("method").reset_index()),
        _table("Seconds, median over seeds.", evaluation.seconds().reset_index(), half=True),
        _table("Every seed", evaluation.transductive[["seed", "method", *WHOLE]], folded=True),
    ]
    sections = [Section("All cells at hand", text, tables)]
    sections.append(Section("Embeddings", f"{share_drawn(len(rows), number)} {remark(how)}", pictures))
    text = "No batch was left out of a fit."
    tables = []
    if not evaluation.inductive.empty:
        text = "A batch is left out of the fit, embedded without being named, and its labels told from the others'."
        every = evaluation.inductive[["seed", "batch", "method", *TRANSFER]]
        tables = [frame.methods(comparison, NEW, TRANSFER), _table("Every batch", every, folded=True)]
    sections += [Section("Batches that were not seen", text, tables), _checks(checks)]
    lead = f"{many(len(comparison.methods), 'method')} on {many(number, 'cell')}, judged by labels that none has seen."
    totals = comparison.table("total", ALL)["value"].sort_values(ascending=False, kind="stable")
    headline = [(f"total, {method}", rounded(value), "all cells") for method, value in totals.items()]
    about = {"advice": evaluation.advice(), "checks": checks, "not_run": evaluation.not_run}
    about["drawn"] = {"cells": len(rows), "of": number, "by": how}
    summary = [Note("info", evaluation.advice())]
    return frame.compose(run, lead, sections, about, headline=headline, summary=summary, comparison=comparison)


def of_annotation(
    annotator: CellAnnotator, annotation: Annotation, cells: Cells, label: str, sample: str | None, run: frame.Run
) -> Made:
    """On what new cells are; `label` may have the truth, `sample` has the sample of each."""
    counts = annotation.by_label()
    labels, left_out = annotation.table["label"].to_numpy(dtype=object), pd.DataFrame(annotator.left_out_)
    share = float((labels == UNKNOWN).mean()) if len(labels) else 0.0
    text = "A cell is unknown where it is stranger than nearly all known cells that were called the same."
    of_types = _table("Of each type; and of the unknown cells those most like it.", counts)
    sections = [Section("Calls", text, [of_types]), _beside_reference(annotator, annotation)]
    if sample is not None:
        shares = pd.crosstab(cells.obs[sample].astype(str).to_numpy(dtype=object), labels, normalize="index")
        shown = _table(f"Share of each type in each {sample}.", shares.rename_axis(sample).reset_index().head(LISTED))
        sections.append(Section("Composition", "", [shown]))
    beside: dict[str, Any] = {"confusion": None}
    if label in cells.obs and len(known := np.flatnonzero((truth := labels_of(cells, label)) != None)):  # noqa: E711
        section, beside = _beside_truth(truth[known].astype(str), labels[known].astype(str), label)
        sections.append(section)
    if len(left_out):
        text = "Each type was left out in turn. A low share says that cells of such a new type would pass for another."
        sections.append(Section("Were a type not in the reference", text, [_table("Its cells kept back.", left_out)]))
    weights = pd.DataFrame(annotator.weights_.items(), columns=["method", "weight"])
    sections.append(Section("How it was learned", "", [_table("By calls of cells kept back.", weights, half=True)]))
    headline = [
        ("cells", len(labels), "that were annotated"),
        ("unknown", Cell(f"{share:.1%}", share), f"of known types at most {annotator.error:.1%} of a batch kept back"),
        ("right", rounded(annotator.kept_back_["right"]), "share of known cells that were kept back"),
    ]
    text = f"{share:.0%} of the cells are unknown: of types that the reference lacks, or measured otherwise than it."
    numbers = {
        **{"calls": counts.to_dict("records"), "kept_back": annotator.kept_back_, "left_out": annotator.left_out_},
        "weights": annotator.weights_,
        **beside,
        "model": annotator.embedder_.identity(),
    }
    lead = f"Types of {many(len(labels), 'cell')} by a reference with {len(annotation.types)} types."
    more: dict[str, Any] = {"headline": headline, "summary": [Note("warning", text)] if share > MUCH else []}
    return frame.compose(run, lead, sections, numbers, settings=annotator.get_params(), **more)


def of_annotation_evaluation(evaluation: AnnotationEvaluation, run: frame.Run) -> Made:
    """On types that were called of batches left out."""
    comparison, known = evaluation.comparison, ["f1", "right", "ece", "kept"]
    texts = {
        HALF: "Half of the cells, of all batches as one, have a label. The others are called.",
        NEW: "One batch at a time is left out altogether, and its cells are called by what the others teach.",
        REMOVED: "Besides, one type is taken out of the reference: its cells are unknown.",
    }
    sections = _conditions(comparison, texts, dict.fromkeys((HALF, NEW), known) | {REMOVED: ["auroc", "found", "kept"]})
    sections.append(Section("Weights", "", [_table("Of our methods.", evaluation.weights, folded=True)]))
    lead = f"{many(len(comparison.methods), 'method')} that call the types of cells of batches they have not seen."
    return frame.compose(run, lead, sections, {"not_run": evaluation.not_run}, comparison=comparison)


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
        comparison, advice = evaluation.comparison, evaluation.advice()
        names = [score.name for score in comparison.scores]
        sections += _conditions(comparison, evaluation.TEXTS, dict.fromkeys(evaluation.TEXTS, names))
        numbers["advice"], more = advice, {"summary": [Note("info", advice)], "comparison": comparison}
    table = _table("Mean change of log-normalised counts over known groups.", perturber.largest_changes(GENES))
    sections.append(Section("Genes that change most", "", [table]))
    lead = f"Treated cells foretold from untreated ones, by {len(perturber.shifts_.values)} populations learned from."
    return frame.compose(run, lead, sections, numbers, settings=perturber.plain(), **more)


# ---------------------------------------------------------------------- parts


def _table(caption: str, rows: pd.DataFrame, **how: Any) -> Table:
    cells = [[rounded(v) if isinstance(v, float) else v for v in row] for row in rows.itertuples(index=False)]
    return Table(caption, [*map(str, rows.columns)], cells, **how)


def _conditions(comparison: Comparison, texts: dict[str, str], scores: dict[str, list[str]]) -> list[Section]:
    tables = {name: frame.methods(comparison, name, scores[name]) for name in comparison.conditions}
    return [Section(name.capitalize(), texts[name], [table]) for name, table in tables.items()]


def _depth(drawn: Drawn) -> tuple[Section, float | None]:
    first, title = components(drawn.z, 1)[:, 0], "Depth of sequencing"
    if drawn.library is None or not np.ptp(first) or not np.ptp(drawn.library):
        return Section(title, "Library sizes are not known, or all the same."), None
    correlation = float(spearmanr(first, drawn.library).statistic)
    figure = figures.points(drawn.library, first, "counts per cell", "first principal component", log=True)
    caption = f"First principal component against library size. Spearman's correlation {text_of(correlation)}."
    text = "Vectors should say what a cell is, and not how deeply it was sequenced. Some correlation is biology."
    return Section(title, text, [Plot(figure, caption, caption)]), correlation


def _genes(explained: pd.DataFrame | None) -> Section:
    if explained is None or explained.empty:
        return Section("Genes", "No cell was explained in this run.")
    text = "Change: how far the vector would go back without the gene."
    parts: Iterable[tuple[Any, pd.DataFrame]] = explained.drop(columns="cell").groupby(explained["cell"], sort=False)
    return Section("Genes", text, [_table(f"Cell {name}", rows.head(GENES), half=True) for name, rows in parts])


def _checks(checks: dict[str, Any]) -> Section:
    numbers = {name: value for name, value in checks.items() if isinstance(value, (int, float))}
    blocks: list[Block] = [Facts([(figures.words(name), f"{value:,.4g}") for name, value in numbers.items()])]
    if "thinning" in checks:
        caption = "Cells with fewer counts: cosine to their full vectors; share with these among the 15 nearest."
        blocks.append(_table(caption, pd.DataFrame(checks["thinning"])))
    return Section("Checks", "On our model of the first seed." if checks else "Nothing was checked.", blocks)


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
    confusion = pd.crosstab(truth, called)
    values, names = confusion.div(confusion.sum(axis=1), axis=0).to_numpy(), ([*confusion.index], [*confusion])
    drawn = figures.heat_map(values, *names, label="share of the row")
    plot = Plot(drawn, f"Rows are {label}, columns what was called. {text}", "Each row adds up to 1.", half=False)
    table = _table("The same as numbers of cells.", confusion.rename_axis(label).reset_index(), folded=True)
    return Section("Beside the truth", text, [plot, table]), {"confusion": confusion.reset_index().to_dict("records")}
