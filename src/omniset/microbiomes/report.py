"""The reports of the system for microbiomes: on a fitted model, on classified samples, on an evaluation.

Each composer returns the page and the plain numbers behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure

from omniset.microbiomes.assignments import Calls, share_of
from omniset.microbiomes.classifier import TaxonClassifier
from omniset.microbiomes.evaluate import METHODS, MISLED, PROFILED, Evaluation, condition
from omniset.microbiomes.taxonomy import bare
from omniset.report import figures, frame
from omniset.report.blocks import Block, Cell, Plot, Report, Section, Table, many, rounded
from omniset.report.figures import styled

BARS = 60  # samples drawn, at most
ABOUT = {  # methods
    "omniset": "ours",
    "no-context": "ours, every sequence by itself",
    "no-network": "ours without the network",
    "naive-bayes-community": "with the taxa of the communities",
    "naive-bayes-sample": "with the taxa of the sample",
}
TAXA = 11  # taxa with a colour of their own
ROWS = 25  # of tables
SAMPLES = 1000  # listed
COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#332288", "#882255", "#44aa99"),
    "#999933",
)


def of_fit(classifier: TaxonClassifier, run: frame.Run) -> tuple[Report, dict[str, Any]]:
    """The report on a fitted model."""
    sizes = classifier.sizes_
    text = f"Validation is {many(sizes['validation sequences'], 'distinct sequence')} that were kept back."
    return frame.compose(
        run,
        f"Taxa at rank {classifier.rank}, learned from {many(sizes['distinct sequences'], 'reference sequence')}.",
        [frame.learning({"network": classifier.history_}, text=text)],
        {"sizes": sizes, "history": classifier.history_, "seconds": classifier.seconds_},
        headline=[
            ("sequences", sizes["distinct sequences"], "distinct references"),
            ("taxa", sizes["taxa"], f"at rank {classifier.rank}"),
            ("seconds", rounded(classifier.seconds_, 0), "of training"),
        ],
        settings=classifier.get_params(),
    )


def of_calls(
    calls: Calls,
    by_feature: pd.DataFrame,
    classifier: TaxonClassifier,
    run: frame.Run,
    seconds: float,
    agreed: pd.DataFrame | None = None,
) -> tuple[Report, dict[str, Any]]:
    """The report on classified samples."""
    threshold, ranks = classifier.threshold, calls.taxa.ranks
    reads = float(calls.count.sum())
    deep = calls.depth(threshold)
    named = {rank: float(calls.count[deep > place].sum() / reads) if reads else 0.0 for place, rank in enumerate(ranks)}
    shares = Table(
        f"Reads that are named at each rank, with confidence of at least {threshold:g}.",
        ["rank", "share of reads"],
        [[rank, _share(share)] for rank, share in named.items()],
        half=True,
    )
    shown = sorted({max(len(ranks) - 5, 0), max(len(ranks) - 2, 0), len(ranks) - 1})
    samples, unnamed = _samples(calls, deep)
    return frame.compose(
        run,
        f"Taxa of {many(len(calls.features), 'sequence')} in {many(len(calls.samples), 'sample')}.",
        [
            *(_abundance(calls.abundance(threshold, place + 1), ranks[place]) for place in shown),
            samples,
            *_agreement(agreed),
            _features(calls, by_feature),
        ],
        {
            "samples": len(calls.samples),
            "sequences": len(calls.features),
            "reads": reads,
            "seconds": seconds,
            "threshold": threshold,
            "named": named,
            "unnamed_in_samples": unnamed,
            "agreement": None if agreed is None else agreed.to_dict("records"),
        },
        headline=[
            ("samples", len(calls.samples), ""),
            ("sequences", len(calls.features), "distinct"),
            ("reads", round(reads), ""),
            ("named", _share(named[ranks[-1]]), f"of the reads, at rank {ranks[-1]}"),
        ],
        summary=[shares],
        settings=classifier.get_params(),
    )


def _share(value: float) -> Cell:
    return Cell(share_of(value), value)


def _samples(calls: Calls, deep: np.ndarray) -> tuple[Section, dict[str, float]]:
    """What share of each sample's reads has no name, those with most first; and quartiles over the samples."""
    number, ranks = len(calls.samples), calls.taxa.ranks
    reads = np.bincount(calls.sample, calls.count, minlength=number)
    shares = [
        np.bincount(calls.sample, calls.count * (deep < names), minlength=number) / np.maximum(reads, 1e-300)
        for names in (1, len(ranks))
    ]
    rows = []
    for i in np.argsort(-shares[1], kind="stable")[:SAMPLES].tolist():
        rows.append([calls.samples[i][:40], round(float(reads[i])), *(_share(float(s[i])) for s in shares)])
    more = "" if number <= SAMPLES else f" The first {SAMPLES:,} of {number:,}."
    head = ["sample", "reads", "unassigned", f"not named at rank {ranks[-1]}"]
    table = Table(f"Reads without a name, by sample.{more}", head, rows, folded=number > ROWS)
    least, median, most = np.quantile(shares[1][reads > 0], (0, 0.5, 1)).tolist() if reads.any() else 3 * [0.0]
    return Section("By sample", "", [table]), {"least": least, "median": median, "most": most}


def _abundance(abundance: pd.DataFrame, rank: str) -> Section:
    total = abundance.to_numpy().sum(1)
    shares = abundance.div(np.maximum(total, 1e-300), axis=0)
    shown = shares.iloc[:BARS]
    left = "" if len(shares) <= BARS else f" The first {BARS} of {len(shares):,} samples."
    names = [bare(taxon.split("; ")[-1]) or taxon for taxon in abundance.columns]
    caption = f"What share of each sample's reads is of which {rank}.{left}"
    blocks: list[Block] = [Plot(stacked(shown.to_numpy(), list(shown.index), names), caption, caption, half=False)]
    mean, seen, reads = shares[total > 0].mean(), (abundance > 0).sum(), abundance.sum()
    rows = [
        [str(taxon), Cell(f"{mean[taxon]:.2%}", float(mean[taxon])), int(seen[taxon]), round(float(reads[taxon]))]
        for taxon in mean.sort_values(ascending=False, kind="stable").index[:ROWS]
    ]
    more = "" if abundance.shape[1] <= ROWS else f" The first {ROWS} of {abundance.shape[1]:,}; all in abundance.tsv."
    columns = ["taxon", "mean share", "samples", "reads"]
    blocks.append(Table(f"Taxa by their mean share.{more}", columns, rows, folded=True))
    return Section(f"By {rank}", "", blocks)


@styled
def stacked(shares: Float[np.ndarray, "samples taxa"], samples: list[str], taxa: list[str]) -> Figure:
    """A bar per sample, parted by taxa; those beyond the first are one part."""
    parts, labels = shares[:, :TAXA], taxa[:TAXA]
    if len(taxa) > TAXA:
        parts, labels = np.concatenate([parts, shares[:, TAXA:].sum(1, keepdims=True)], 1), [*labels, "all others"]
    figure = Figure(figsize=(9.4, 3.6), layout="constrained")
    axes = figure.subplots()
    floor = np.zeros(len(parts))
    for i, label in enumerate(labels):
        colour = COLOURS[i] if i < TAXA else "#bbbbbb"
        axes.bar(np.arange(len(parts)), parts[:, i], bottom=floor, color=colour, width=0.92, label=label[:28])
        floor += parts[:, i]
    axes.set(ylabel="share of reads", ylim=(0, 1), xlim=(-0.6, len(parts) - 0.4))
    every = max(len(samples) // 30, 1)
    axes.set_xticks(np.arange(len(samples))[::every], [s[:14] for s in samples[::every]], rotation=90, fontsize=7)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def _features(calls: Calls, by_feature: pd.DataFrame) -> Section:
    reads = np.bincount(calls.feature, calls.count, minlength=len(calls.features))
    some = np.argsort(-reads, kind="stable")[:ROWS].tolist()
    of_some = zip(some, by_feature["Taxon"].iloc[some], by_feature["Confidence"].iloc[some], strict=True)
    rows = [[calls.features[i][:40], round(float(reads[i])), taxon, float(sure)] for i, taxon, sure in of_some]
    caption = "The sequences with most reads, and what most of their reads are called."
    table = Table(caption, ["sequence", "reads", "taxon", "confidence"], rows)
    return Section("Sequences", "", [table])


def _agreement(agreed: pd.DataFrame | None) -> list[Section]:
    if agreed is None:
        return []
    keys = ("by_reads", "by_sequences", "compared_reads")
    rows = [[row["rank"], *(_share(row[key]) for key in keys)] for row in agreed.to_dict("records")]
    text = "Compared is what both name at a rank, by a name that the references have there."
    columns = ["rank", "same name, of reads", "of sequences", "reads compared, of all"]
    table = Table("The same name at each rank.", columns, rows)
    return [Section("Agreement with other calls", text, [table])]


def of_evaluation(evaluation: Evaluation, classifier: TaxonClassifier, run: frame.Run) -> tuple[Report, dict[str, Any]]:
    """The report on an evaluation."""
    sizes = ", ".join(f"{value:,} {name}" for name, value in evaluation.sizes.items())
    kinds = evaluation.rows["kind"].unique().tolist()
    return frame.compose(
        run,
        f"Test sequences are of known taxa, and were never learned from. First seed: {sizes}.",
        [_kind(evaluation, kind) for kind in kinds],
        {"pooled": evaluation.pooled.to_dict("records"), "sizes": evaluation.sizes},
        comparison=evaluation.comparison,
        settings=classifier.get_params(),
    )


def _kind(evaluation: Evaluation, kind: str) -> Section:
    """Methods in the smallest samples of a kind, and in samples of all sizes."""
    comparison, reads = evaluation.comparison, evaluation.sizes_of[kind]
    small = condition(kind, reads[0])
    scores = [score.name for score in comparison.scores]
    pooled = evaluation.pooled_means(small)
    rows = [[method, *map(rounded, values)] for method, values in zip(pooled.index, pooled.to_numpy(), strict=True)]
    columns = ["method", *(str(name).replace("_", " ") for name in pooled.columns)]
    blocks: list[Block] = [
        frame.methods(comparison, small, scores, label=lambda n: f"{n} ({ABOUT[n]})" if n in ABOUT else n),
        Table("Of all samples of a seed together; means over seeds.", columns, rows, folded=True),
    ]
    special = (f"{small}, {PROFILED}", f"{small}, {MISLED}")
    blocks += [frame.methods(comparison, name, scores) for name in special if name in comparison.conditions]
    if len(reads) > 1:
        tables = [comparison.table(scores[0], condition(kind, size)) for size in reads]
        names = [name for name in pooled.index if name in tables[0].index]
        series = {n: figures.Series(reads, *np.array([table.loc[n] for table in tables]).T.tolist()) for n in names}
        order = [*METHODS, *(name for name in names if name not in METHODS)]
        figure = figures.lines(series, "reads of a sample", comparison.scores[0].text, order=order)
        figure.axes[0].set_xscale("log", base=2)
        figure.axes[0].set_xticks(reads, [f"{size:,}" for size in reads], rotation=30, ha="right")
        caption = f"{comparison.scores[0].text} by the number of reads of a sample"
        blocks.append(Plot(figure, caption, f"{caption}."))
    return Section(kind[0].upper() + kind[1:], "", blocks)
