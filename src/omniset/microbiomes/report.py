"""The reports of the system for microbiomes: on a fitted model, on classified samples, on an evaluation.

Each composer returns the page and the plain numbers behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure

from omniset.microbiomes.calls import Calls
from omniset.microbiomes.classifier import TaxonClassifier
from omniset.microbiomes.evaluate import Evaluation, asked
from omniset.microbiomes.taxonomy import bare
from omniset.report import figures
from omniset.report.blocks import Block, Cell, Facts, Headline, Note, Plot, Report, Section, Table, many
from omniset.report.figures import styled

FORMAT, VERSION = "omniset report of microbiomes", 1
BARS = 60  # samples drawn, at most
TAXA = 11  # taxa with a colour of their own
ROWS = 25  # of tables
COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#332288", "#882255", "#44aa99"),
    "#999933",
)


def of_fit(
    classifier: TaxonClassifier, *, title: str, command: str, notes: list[str], provenance: dict[str, Any]
) -> tuple[Report, dict[str, Any]]:
    """The report on a fitted model."""
    sizes, history = classifier.sizes_, classifier.history_
    alone = [row for row in history if row["lesson"] == 1]
    context = [row for row in history if row["lesson"] == 2]
    items: list[tuple[str, Any, str]] = [
        ("sequences", sizes["distinct sequences"], "distinct references"),
        ("taxa", sizes["taxa"], f"at rank {classifier.rank}"),
        ("seconds", Cell(f"{classifier.seconds_:,.0f}", classifier.seconds_), "of training"),
    ]
    learning: list[Block] = []
    for name, rows in (("sequences by themselves", alone), ("sequences in samples", context)):
        for key in ("loss", "accuracy"):
            if any(f"val_{key}" in row for row in rows):
                figure = figures.learning_curve(rows, key, None)
                learning.append(Plot(figure, f"{key} of {name} by epoch", f"{key}, {name}, by epoch"))
    text = (
        f"Validation is {many(sizes['validation sequences'], 'distinct sequence')} that were kept back, in made-up "
        "samples of such sequences alone. Accuracy in samples is by reads, and cannot be compared with that of "
        "sequences by themselves, where each counts once."
    )
    sections = [
        Section("Summary", "", [Headline(items), *_notes(notes), *(Note("info", t) for t in classifier.notes_)]),
        Section("Learning", text, learning),
        Section("Settings", "", [Facts(list(classifier.get_params().items()))]),
    ]
    lead = f"Taxa at rank {classifier.rank}, learned from {many(sizes['distinct sequences'], 'reference sequence')}."
    numbers = {
        "sizes": sizes,
        "decided": classifier.notes_,
        "history": history,
        "seconds": classifier.seconds_,
        "arguments": classifier.get_params(),
    }
    return _finish("fit", Report(title, lead, sections, command, provenance), notes, numbers)


def of_calls(
    calls: Calls,
    by_feature: pd.DataFrame,
    classifier: TaxonClassifier,
    *,
    title: str,
    command: str,
    notes: list[str],
    provenance: dict[str, Any],
    seconds: float,
    agreed: pd.DataFrame | None = None,
) -> tuple[Report, dict[str, Any]]:
    """The report on classified samples."""
    threshold, ranks = classifier.threshold, calls.taxa.ranks
    reads = float(calls.count.sum())
    deep = np.where(calls.taxon >= 0, calls.depth(threshold), 0)
    named = {rank: float(calls.count[deep > place].sum() / reads) if reads else 0.0 for place, rank in enumerate(ranks)}
    items: list[tuple[str, Any, str]] = [
        ("samples", len(calls.samples), ""),
        ("sequences", len(calls.features), "distinct"),
        ("reads", round(reads), ""),
        ("named", Cell(share_of(named[ranks[-1]]), named[ranks[-1]]), f"of the reads, at rank {ranks[-1]}"),
    ]
    shares = Table(
        f"Reads that are named at each rank, with confidence of at least {threshold:g}.",
        ["rank", "share of reads"],
        [[rank, Cell(share_of(share), share)] for rank, share in named.items()],
        half=True,
    )
    sections = [Section("Summary", "", [Headline(items), *_notes(notes), shares])]
    tables: dict[str, Any] = {}
    for place in sorted({max(len(ranks) - 5, 0), max(len(ranks) - 2, 0), len(ranks) - 1}):
        abundance = calls.abundance(threshold, place + 1)
        tables[ranks[place]] = abundance.to_dict("split")
        sections.append(_abundance(abundance, ranks[place]))
    sections += _agreement(agreed)
    sections += [_features(calls, by_feature), Section("Settings", "", [Facts(list(classifier.get_params().items()))])]
    lead = f"Taxa of {many(len(calls.features), 'sequence')} in {many(len(calls.samples), 'sample')}."
    numbers = {
        "samples": calls.samples,
        "sequences": len(calls.features),
        "reads": reads,
        "seconds": seconds,
        "threshold": threshold,
        "named": named,
        "abundance": tables,
        "agreement": None if agreed is None else agreed.to_dict("records"),
    }
    return _finish("classify", Report(title, lead, sections, command, provenance), notes, numbers)


def _abundance(abundance: pd.DataFrame, rank: str) -> Section:
    total = abundance.to_numpy().sum(1)
    shares = abundance.div(np.maximum(total, 1e-300), axis=0)
    shown = shares.iloc[:BARS]
    left = "" if len(shares) <= BARS else f" The first {BARS} of {len(shares):,} samples."
    names = _short_names(list(abundance.columns))
    caption = f"What share of each sample's reads is of which {rank}.{left}"
    plot = Plot(stacked(shown.to_numpy(), list(shown.index), names), caption, caption, half=False)
    mean, seen = shares[total > 0].mean(), (abundance > 0).sum()
    reads = abundance.sum()
    rows = [
        [str(taxon), Cell(f"{mean[taxon]:.2%}", float(mean[taxon])), int(seen[taxon]), round(float(reads[taxon]))]
        for taxon in mean.sort_values(ascending=False, kind="stable").index[:ROWS]
    ]
    more = "" if abundance.shape[1] <= ROWS else f" The first {ROWS} of {abundance.shape[1]:,}; all in abundance.tsv."
    table = Table(f"Taxa by their mean share.{more}", ["taxon", "mean share", "samples", "reads"], rows, folded=True)
    return Section(f"By {rank}", "", [plot, table])


def _short_names(taxa: list[str]) -> list[str]:
    return [bare(taxon.split("; ")[-1]) or taxon for taxon in taxa]


@styled
def stacked(shares: Float[np.ndarray, "samples taxa"], samples: list[str], taxa: list[str]) -> Figure:
    """A bar per sample, parted by taxa; those beyond the first are one part."""
    kept, labels = shares[:, :TAXA], taxa[:TAXA]
    if len(taxa) > TAXA:
        kept, labels = np.concatenate([kept, shares[:, TAXA:].sum(1, keepdims=True)], 1), [*labels, "all others"]
    figure = Figure(figsize=(9.4, 3.6), layout="constrained")
    axes = figure.subplots()
    floor = np.zeros(len(kept))
    for i, label in enumerate(labels):
        colour = COLOURS[i] if i < TAXA else "#bbbbbb"
        axes.bar(np.arange(len(kept)), kept[:, i], bottom=floor, color=colour, width=0.92, label=label[:28])
        floor += kept[:, i]
    axes.set(ylabel="share of reads", ylim=(0, 1), xlim=(-0.6, len(kept) - 0.4))
    every = max(len(samples) // 30, 1)
    axes.set_xticks(np.arange(len(samples))[::every], [s[:14] for s in samples[::every]], rotation=90, fontsize=7)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def _features(calls: Calls, by_feature: pd.DataFrame) -> Section:
    reads = np.bincount(calls.feature, calls.count, minlength=len(calls.features))
    rows = []
    for i in np.argsort(-reads, kind="stable")[:ROWS].tolist():
        one = by_feature.iloc[i]
        rows.append([calls.features[i][:40], round(float(reads[i])), one["Taxon"], float(one["Confidence"])])
    caption = "The sequences with most reads, and what most of their reads are called."
    table = Table(caption, ["sequence", "reads", "taxon", "confidence"], rows)
    return Section("Sequences", "", [table])


def share_of(value: float | None) -> str:
    """In percent; all only where it is all.

    >>> share_of(0.9999), share_of(1.0), share_of(float("nan"))
    ('99.9%', '100.0%', '-')
    """
    return "-" if value is None or np.isnan(value) else f"{min(value, 0.999) if value < 1 else value:.1%}"


def _agreement(agreed: pd.DataFrame | None) -> list[Section]:
    if agreed is None:
        return []
    rows = [
        [row["rank"], *(Cell(share_of(row[key]), row[key]) for key in ("by_reads", "by_sequences", "compared_reads"))]
        for row in agreed.to_dict("records")
    ]
    text = "Compared is what both name at a rank, by a name that the references have there."
    columns = ["rank", "same name, of reads", "of sequences", "reads compared, of all"]
    return [Section("Agreement with other calls", text, [Table("The same name at each rank.", columns, rows)])]


# ---------------------------------------------------------------------- an evaluation

METHODS = {
    "omniset": "Omniset (ours)",
    "general": "Omniset, any communities",
    "sab": "full self-attention",
    "no-context": "without context",
    "naive-bayes": "naive Bayes",
    "naive-bayes-community": "naive Bayes, communities",
    "naive-bayes-sample": "naive Bayes, sample",
    "nearest": "nearest reference",
}


def shown(evaluation: Evaluation) -> list[tuple[str, int]]:
    """Kinds of samples, and the number of reads that a table is made for: the least."""
    rows = evaluation.rows
    return [(kind, int(rows[rows["kind"] == kind]["reads"].min())) for kind in dict.fromkeys(rows["kind"])]


def short_table(evaluation: Evaluation, kind: str, reads: int) -> pd.DataFrame:
    """The scores that there are, in few digits, methods by their names."""
    table = evaluation.table(kind, reads).dropna(axis=1, how="all")
    return table.rename(index=METHODS, columns=lambda name: name.replace("_", " ")).round(4)


def of_evaluation(
    evaluation: Evaluation,
    classifier: TaxonClassifier,
    *,
    title: str,
    command: str,
    notes: list[str],
    provenance: dict[str, Any],
) -> tuple[Report, dict[str, Any]]:
    """The report on an evaluation."""
    gates = evaluation.gates()
    rows = [[g["gate"], Cell(f"{g['value']:+.4f}", g["value"]), asked(g), "yes" if g["holds"] else "no"] for g in gates]
    blocks: list[Block] = [*_notes(notes), *(Note("info", text) for text in classifier.notes_)]
    if rows:
        blocks.append(Table("What a useful classifier must hold.", ["", "mean over seeds", "bound", "holds"], rows))
    sections = [Section("Summary", "", blocks)]
    for kind, reads in shown(evaluation):
        table = short_table(evaluation, kind, reads).reset_index()
        caption = f"Samples of {reads:,} reads. Means over seeds."
        parts: list[Block] = [Table(caption, [str(c) for c in table.columns], table.to_numpy().tolist())]
        sizes = evaluation.by_size(kind)
        if sizes.shape[1] > 1:
            x = [int(reads) for reads in sizes.columns]
            series = {METHODS[str(name)]: figures.Series(x, values.tolist()) for name, values in sizes.iterrows()}
            order = [METHODS[name] for name in METHODS]
            figure = figures.lines(series, "reads of a sample", f"accuracy at rank {evaluation.rank}", order=order)
            figure.axes[0].set_xscale("log", base=2)
            figure.axes[0].set_xticks(x, [f"{reads:,}" for reads in x], rotation=30, ha="right")
            parts.append(Plot(figure, "accuracy by the number of reads", "Accuracy by reads of the sample."))
        sections.append(Section(kind[0].upper() + kind[1:], "", parts))
    sections.append(Section("Settings", "", [Facts(list(classifier.get_params().items()))]))
    sizes_of = ", ".join(f"{value:,} {name}" for name, value in evaluation.sizes.items())
    lead = f"Test sequences are of known taxa, and were never learned from. First seed: {sizes_of}."
    numbers = {
        "gates": gates,
        "sizes": evaluation.sizes,
        "decided": classifier.notes_,
        "rows": evaluation.rows.to_dict("records"),
        "arguments": classifier.get_params(),
    }
    return _finish("evaluate", Report(title, lead, sections, command, provenance), notes, numbers)


# ---------------------------------------------------------------------- parts


def _notes(notes: list[str]) -> list[Note]:
    return [Note("warning", text) for text in notes]


def _finish(kind: str, page: Report, notes: list[str], numbers: dict[str, Any]) -> tuple[Report, dict[str, Any]]:
    head = {"format": FORMAT, "version": VERSION, "kind": kind, "title": page.title, "command": page.command}
    return page, {**head, "provenance": page.provenance, "warnings": notes, **numbers}
