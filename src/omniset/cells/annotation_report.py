"""The report on what new cells are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped

from omniset.cells import report
from omniset.cells.annotating import NEW, REMOVED, AnnotationEvaluation
from omniset.cells.annotator import Annotation, CellAnnotator, values_of
from omniset.cells.batches import UNKNOWN, labels_of
from omniset.cells.data import Cells
from omniset.report import figures, frame
from omniset.report.blocks import Block, Cell, Note, Plot, Report, Section, Table, many, rounded

MARKERS, MARKED = 8, 5000  # genes shown for a type; cells from which they come
SAMPLES, TYPES = 60, 40  # shown
MUCH = 0.2  # share of unknown cells above which the page speaks up


def of_annotation(
    annotator: CellAnnotator, annotation: Annotation, cells: Cells, label: str, sample: str | None, run: frame.Run
) -> tuple[Report, dict[str, Any]]:
    """The page, and the numbers behind it.

    Args:
        cells: The new ones, on the model's genes.
        label: Column that may have the truth.
        sample: Column with the sample of each cell.
    """
    table, unknown = annotation.table, annotation.table["label"] == UNKNOWN
    counts = by_label(annotation)
    truth = labels_of(cells, label) if label in cells.obs else None
    sections = [_calls(annotator, counts), _picture(annotator, annotation)]
    if sample is not None:
        sections.append(_composition(table, cells.obs[sample].astype(str).to_numpy(dtype=object), sample))
    confusion = None if truth is None else _confusion(table, truth)
    if confusion is not None and not confusion.empty:
        sections.append(_beside(confusion, label))
    markers = _markers(annotator, annotation, cells)
    sections += [_genes(markers), *_lacking(annotator), _learned(annotator)]
    share = float(unknown.mean()) if len(table) else 0.0
    headline: list[tuple[str, Any, str]] = [
        ("cells", len(table), "that were annotated"),
        ("types", int(table.loc[~unknown, "label"].nunique()), f"of {len(annotation.types)} that the reference has"),
        (
            "unknown",
            Cell(f"{share:.1%}", share),
            f"of these; of known types at most {annotator.error:.1%} of a batch kept back",
        ),
        ("right", rounded(annotator.kept_back_["right"]), "share of known cells that were kept back"),
    ]
    summary: list[Block] = []
    if share > MUCH:
        text = (
            f"{share:.0%} of the cells are unknown: of types that the reference lacks, or measured otherwise than its "
            "batches."
        )
        summary.append(Note("warning", text))
    numbers = {
        "calls": counts.to_dict("records"),
        "kept_back": annotator.kept_back_,
        "lacking": annotator.lacking_,
        "weights": annotator.weights_,
        "markers": markers.to_dict("records"),
        "confusion": None if confusion is None else confusion.reset_index().to_dict("records"),
        "model": annotator.embedder_.identity(),
    }
    lead = f"Types of {many(len(table), 'cell')} by a reference with {len(annotation.types)} types."
    settings = annotator.get_params()
    return frame.compose(run, lead, sections, numbers, headline=headline, summary=summary, settings=settings)


def of_evaluation(evaluation: AnnotationEvaluation, run: frame.Run) -> tuple[Report, dict[str, Any]]:
    """The report on an evaluation of annotation."""
    comparison, sections = evaluation.comparison, []
    about = {
        NEW: "One batch at a time is left out altogether, and its cells are called by what the others teach.",
        REMOVED: "Besides, one type is taken out of the reference: its cells are unknown. Strangeness of a baseline is "
        "1 minus its largest probability.",
    }
    scores = {NEW: ["f1", "right", "kept"], REMOVED: ["auroc", "found", "kept"]}
    for condition in comparison.conditions:
        table = frame.methods(comparison, condition, scores[condition])
        sections.append(Section(condition.capitalize(), about[condition], [table]))
    weights = [list(row.values()) for row in evaluation.weights.to_dict("records")]
    table = Table(
        "What each of our methods counted.", [str(name) for name in evaluation.weights.columns], weights, folded=True
    )
    sections.append(Section("Weights", "", [table]))
    lead = f"{many(len(comparison.methods), 'method')} that call the types of cells of batches they have not seen."
    numbers = {"not_run": evaluation.not_run}
    return frame.compose(run, lead, sections, numbers, comparison=comparison)


def by_label(annotation: Annotation) -> pd.DataFrame:
    """A row per label, most frequent first: `label`, `cells`, `share`, median `probability`, and of the cells that are
    most likely of this type those `unknown`.
    """
    table = annotation.table
    unknown = table["label"] == UNKNOWN
    rows = []
    for name in [*annotation.types, UNKNOWN]:
        here = table[table["label"] == name]
        like = int((unknown & (table["type"] == name)).sum())
        middle = float(here["probability"].median()) if len(here) else np.nan
        rows.append((name, len(here), len(here) / max(len(table), 1), middle, like))
    counts = pd.DataFrame(rows, columns=["label", "cells", "share", "probability", "unknown"])
    return counts.sort_values("cells", ascending=False, kind="stable", ignore_index=True)


def lines(annotator: CellAnnotator, annotation: Annotation) -> list[str]:
    """What a terminal shows."""
    counts = by_label(annotation)
    width = max(12, *(len(name) for name in counts["label"]))
    shown = [f"{'label':{width}}{'cells':>10}{'share':>9}{'probability':>13}{'unknown, most like it':>24}"]
    for row in counts[(counts["cells"] > 0) | (counts["unknown"] > 0)].to_dict("records"):
        middle = "-" if np.isnan(row["probability"]) else f"{row['probability']:.3f}"
        like = "" if row["label"] == UNKNOWN else f"{row['unknown']:,}"
        shown.append(f"{row['label']:{width}}{row['cells']:>10,}{row['share']:>9.1%}{middle:>13}{like:>24}")
    return [*shown, *(f"  {note}" for note in annotator.notes_)]


def _calls(annotator: CellAnnotator, counts: pd.DataFrame) -> Section:
    rows = [
        [name, cells, rounded(share), rounded(middle), None if name == UNKNOWN else like]
        for name, cells, share, middle, like in counts.itertuples(index=False, name=None)
    ]
    text = (
        "A cell is unknown where it is stranger than nearly all known cells that were called the same; the last column "
        "says what such cells are most like. Probabilities are those of being right, if a cell is of a known type."
    )
    columns = ["label", "cells", "share", "median probability", "unknown, most like it"]
    return Section("Calls", text, [Table("Cells of each type.", columns, rows)])


def _picture(annotator: CellAnnotator, annotation: Annotation) -> Section:
    heads = annotator.network_.heads
    new = (annotation.z - heads.embedding.centre.numpy()) / heads.embedding.spread.numpy()
    places, types = heads.places.numpy(), np.array(annotation.types, dtype=object)
    rng = np.random.default_rng(annotator.seed)
    half = report.DRAWN // 2
    of_new, of_known = (np.sort(rng.permutation(n)[:half]) for n in (len(new), len(places)))
    how, where = report.flat(np.concatenate((places[of_known], new[of_new])), int(annotator.seed))
    labels = np.concatenate(
        (types[heads.labels.numpy()[of_known]], annotation.table["label"].to_numpy(dtype=object)[of_new])
    )
    kinds = np.repeat(np.array(["reference", "new"], dtype=object), [len(of_known), len(of_new)])
    known = kinds == "reference"
    blocks: list[Block] = [
        report.plotted(where, kinds, how, f"{how} of the vectors: reference and new cells."),
        report.plotted(where[known], labels[known], how, "The reference, by its labels."),
        report.plotted(where[~known], labels[~known], how, "New cells, by what they are called."),
    ]
    text = f"{len(of_known):,} reference cells and {len(of_new):,} new ones on one plane. {report.remark(how)}"
    return Section("New cells on the reference", text, blocks)


def _composition(table: pd.DataFrame, samples: Shaped[np.ndarray, " cells"], name: str) -> Section:
    shares = pd.crosstab(samples, table["label"].to_numpy(dtype=object), normalize="index")
    order = shares.mean().sort_values(ascending=False).index[:TYPES]
    shown = shares[order].head(SAMPLES)
    sizes = pd.Series(samples).value_counts()
    rows = [
        [sample, int(sizes[sample]), *(rounded(v) for v in values)] for sample, *values in shown.itertuples(name=None)
    ]
    caption = f"Share of each type in each {name}." + (f" The first {SAMPLES}." if len(shares) > SAMPLES else "")
    return Section("Composition", "", [Table(caption, [name, "cells", *map(str, order)], rows)])


def _confusion(table: pd.DataFrame, truth: Shaped[np.ndarray, " cells"]) -> pd.DataFrame:
    known = np.array([value is not None for value in truth], dtype=bool)
    return pd.crosstab(truth[known].astype(str), table["label"].to_numpy(dtype=object)[known].astype(str))


def _beside(confusion: pd.DataFrame, label: str) -> Section:
    shares = confusion.div(confusion.sum(axis=1), axis=0)
    names = [str(name) for name in confusion.index], [str(name) for name in confusion.columns]
    right = sum(int(confusion.loc[n, n]) for n in confusion.index if n in confusion.columns)
    total = int(confusion.to_numpy().sum())
    figure = figures.heat_map(shares.to_numpy(), *names, label="share of the row")
    alt = f"Rows are {label}, columns what was called; {right:,} of {total:,} cells lie on the diagonal."
    rows = [[name, *map(int, values)] for name, *values in confusion.itertuples(name=None)]
    table = Table("The same as numbers of cells.", [label, *names[1]], rows, folded=True)
    text = f"New cells have {label} too. It was not read before; {right / max(total, 1):.1%} are called the same."
    return Section("Beside the truth", text, [Plot(figure, alt, "Each row adds up to 1.", half=False), table])


def _markers(annotator: CellAnnotator, annotation: Annotation, cells: Cells) -> pd.DataFrame:
    """Genes that decide for a type: their weight times how much more of them its new cells have than the others.

    A gene that speaks for a type by its absence is no marker of it.
    """
    rows = np.sort(np.random.default_rng(annotator.seed).permutation(len(annotation.table))[:MARKED])
    values = values_of(cells, rows, annotator.network_.heads.middle.numpy())
    labels = annotation.table["label"].to_numpy(dtype=object)[rows]
    weight = annotator.network_.heads.genes.weight.numpy()
    records = []
    for code, name in enumerate(annotation.types):
        here = labels == name
        if not here.any() or here.all():
            continue
        inside: Float[np.ndarray, " genes"] = values[here].mean(0)
        outside = values[~here].mean(0)
        score = np.maximum(weight[code], 0) * np.maximum(inside - outside, 0)
        for gene in np.argsort(-score, kind="stable")[:MARKERS]:
            if score[gene] > 0:
                about = {"type": name, "gene": annotator.embedder_.genes_[gene], "score": float(score[gene])}
                records.append({**about, "inside": float(inside[gene]), "outside": float(outside[gene])})
    return pd.DataFrame(records, columns=["type", "gene", "score", "inside", "outside"])


def _genes(markers: pd.DataFrame) -> Section:
    rows = [[name, ", ".join(part["gene"])] for name, part in markers.groupby("type", sort=False)]
    text = (
        "For each type the genes that speak most for it: weight in the logistic regression times how much more of the "
        "gene, log-normalised, its new cells have than the other new cells. What is no marker here deserves a look."
    )
    return Section("Markers", text, [Table("Genes by type.", ["type", "genes"], rows)])


def _learned(annotator: CellAnnotator) -> Section:
    rows = [[name, rounded(weight)] for name, weight in annotator.weights_.items()]
    caption = "What each method counts, by how it called cells of batches kept back."
    return Section("How it was learned", "", [Table(caption, ["method", "weight"], rows, half=True)])


def _lacking(annotator: CellAnnotator) -> list[Section]:
    """How many cells of a type that is not in the reference are found to be unknown. None where it was not measured."""
    rows = [[one["type"], one["cells"], rounded(one["unknown"]), one["called"]] for one in annotator.lacking_]
    text = (
        "Each type was left out of the reference in turn, and its cells that were kept back called by the others. The "
        "nearer another type is, the fewer of them are found: a low share says that cells of such a new type would "
        "pass for those of the type on the right."
    )
    columns = ["type left out", "cells", "unknown", "most others are called"]
    table = Table("Cells of a type that the reference lacks.", columns, rows)
    return [Section("Were a type not in the reference", text, [table])] if rows else []
