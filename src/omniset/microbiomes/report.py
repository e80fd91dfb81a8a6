"""The reports of the system for microbiomes: on a fitted model, on classified samples, on an evaluation.

Each composer returns the page and the plain numbers behind it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure

from omniset.microbiomes.assignments import Calls, share_of
from omniset.microbiomes.classifier import TaxonClassifier
from omniset.microbiomes.evaluate import MISLED, PROFILED, Evaluation, condition
from omniset.microbiomes.taxonomy import bare
from omniset.report import figures, frame
from omniset.report.blocks import Block, Cell, Plot, Report, Section, Table, listed, many, plots_of

BARS = 60  # samples drawn, at most
TAXA = 11  # taxa with a colour of their own
ROWS = 25  # of tables
SAMPLES = 1000  # listed


def of_fit(classifier: TaxonClassifier, run: frame.Run) -> tuple[Report, dict[str, Any]]:
    """The report on a fitted model."""
    sizes, compared = classifier.sizes_, classifier.trust_.compared
    kept = many(sizes["validation sequences"], "distinct sequence")
    ranks, lineages = classifier.taxa_.ranks, classifier.taxa_.lineages
    place = max(len(ranks) - 5, 0)
    groups = Counter(bare(lineage[place]) for lineage in lineages if len(lineage) > place).most_common(ROWS)
    caption = f"Taxa that can be named, by {ranks[place]}, those with most first."
    bars = figures.bars([name for name, _ in groups], [taxa for _, taxa in groups], "taxa")
    learned = f"{sizes['taxa']:,} taxa at rank {classifier.rank} can be named"
    text = (
        f"Learned from {many(sizes['distinct sequences'], 'distinct reference sequence')}. Made-up samples are of "
        f"{kept} kept back, which also chose how to call, and flatter ours a little; other "
        "sequences would differ by more than these samples do: evaluate tests on others."
    )
    return frame.compose(
        run,
        f"{learned}. {compared.verdict() if compared else 'How often they are right is not known: too few were kept.'}",
        text,
        [frame.learning({"network": classifier.history_}, text=f"Validation is the {kept} kept back.")],
        {"sizes": sizes, "history": classifier.history_, "seconds": classifier.seconds_},
        picture=[Plot(bars, f"{caption} {listed(dict(groups))}.", caption)],
        comparison=compared,
        settings=classifier.get_params(),
    )


def of_calls(
    calls: Calls,
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
    caption = f"Reads that are named at each rank, with confidence of at least {threshold:g}."
    ranked = Table(caption, ["rank", "share of reads"], [[rank, _share(share)] for rank, share in named.items()])
    shown = sorted({max(len(ranks) - 5, 0), max(len(ranks) - 2, 0), len(ranks) - 1})
    samples, unnamed = _samples(calls, deep)
    parts = " and ".join(f"{share_of(share)} at rank {rank}" for rank, share in [*named.items()][-2:])
    whole = calls.abundance(threshold, len(ranks)).sum()
    most = next((taxon for taxon in whole.index if taxon.count("; ") == len(ranks) - 1), None)
    first = "" if most is None else f"; most are {bare(most.split('; ')[-1])}, {share_of(whole[most] / reads)}"
    abundances = [_abundance(calls.abundance(threshold, place + 1), ranks[place]) for place in shown]
    sections = [Section("By rank", "", [ranked]), *reversed(abundances), samples, *_agreement(agreed)]
    return frame.compose(
        run,
        f"Of {reads:,.0f} reads {parts} have a name{first}.",
        f"{many(len(calls.features), 'sequence')} in {many(len(calls.samples), 'sample')}. A name has a confidence "
        f"of at least {threshold:g}.",
        sections,
        {
            **{"samples": len(calls.samples), "sequences": len(calls.features), "reads": reads, "seconds": seconds},
            **{"threshold": threshold, "named": named, "unnamed_in_samples": unnamed},
            "agreement": None if agreed is None else agreed.to_dict("records"),
        },
        picture=plots_of(abundances[-1]),
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
    table = Table(f"Reads without a name, by sample.{more}", head, rows)
    least, median, most = np.quantile(shares[1][reads > 0], (0, 0.5, 1)).tolist() if reads.any() else 3 * [0.0]
    return Section("By sample", "", [table]), {"least": least, "median": median, "most": most}


def _abundance(abundance: pd.DataFrame, rank: str) -> Section:
    total = abundance.to_numpy().sum(1)
    shares = abundance.div(np.maximum(total, 1e-300), axis=0)
    shown = shares.iloc[:BARS]
    left = "" if len(shares) <= BARS else f" The first {BARS} of {len(shares):,} samples."
    names = [bare(taxon.split("; ")[-1]) or taxon for taxon in abundance.columns]
    caption = f"What share of each sample's reads is of which {rank}.{left}"
    blocks: list[Block] = [Plot(_stacked(shown.to_numpy(), list(shown.index), names), caption, caption, half=False)]
    mean, seen, reads = shares[total > 0].mean(), (abundance > 0).sum(), abundance.sum()
    rows = [
        [str(taxon), Cell(f"{mean[taxon]:.2%}", float(mean[taxon])), int(seen[taxon]), round(float(reads[taxon]))]
        for taxon in mean.sort_values(ascending=False, kind="stable").index[:ROWS]
    ]
    more = "" if abundance.shape[1] <= ROWS else f" The first {ROWS} of {abundance.shape[1]:,}; all in abundance.tsv."
    columns = ["taxon", "mean share", "samples", "reads"]
    blocks.append(Table(f"Taxa by their mean share.{more}", columns, rows))
    return Section(f"By {rank}", "", blocks)


def _stacked(shares: Float[np.ndarray, "samples taxa"], samples: list[str], taxa: list[str]) -> Figure:
    """A bar per sample, parted by taxa; those beyond the first are one part."""
    parts = [*zip(taxa[:TAXA], shares.T, strict=False)]
    if len(taxa) > TAXA:
        parts.append(("all others", shares[:, TAXA:].sum(1)))
    return figures.stacked(parts, samples, "share of reads", ".1%")


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
    sections = [_kind(evaluation, kind) for kind in evaluation.rows["kind"].unique().tolist()]
    return frame.compose(
        run,
        "",
        "Test sequences are of known taxa, and were never learned from; known communities were, as profiles, new ones "
        f"were not; with unknown taxa, a tenth of the reads has no reference. First seed: {sizes}.",
        sections,
        {"pooled": evaluation.pooled.to_dict("records"), "sizes": evaluation.sizes},
        comparison=evaluation.comparison,
        settings=classifier.get_params(),
    )


def _kind(evaluation: Evaluation, kind: str) -> Section:
    """Methods in the smallest samples of a kind, and in samples of all sizes."""
    comparison, reads = evaluation.comparison, evaluation.sizes_of[kind]
    small = condition(kind, reads[0])
    scores = [score.name for score in comparison.scores]
    blocks: list[Block] = [frame.methods(comparison, small, scores)]
    special = (f"{small}, {PROFILED}", f"{small}, {MISLED}")
    blocks += [frame.methods(comparison, name, scores) for name in special if name in comparison.conditions]
    if len(reads) > 1:
        tables = [comparison.table(scores[0], condition(kind, size)) for size in reads]
        lines = {name: [float(table.loc[name, "value"]) for table in tables] for name in tables[0].index}
        figure = figures.lines(lines, reads, "reads of a sample", comparison.scores[0].text)
        figure.axes[0].set_xscale("log", base=2)
        figure.axes[0].set_xticks(reads, [f"{size:,}" for size in reads], rotation=30, ha="right")
        caption = f"{comparison.scores[0].text.capitalize()} by the number of reads of a sample."
        blocks.append(Plot(figure, caption, caption))
    return Section(kind[0].upper() + kind[1:], "", blocks)
