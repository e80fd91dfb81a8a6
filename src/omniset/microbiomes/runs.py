"""`omniset microbiomes`: the same verbs on files, with their reports."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from omniset.microbiomes import report
from omniset.microbiomes.artifact import write_artifact
from omniset.microbiomes.calls import Agreement, Calls, share_of
from omniset.microbiomes.classifier import TaxonClassifier
from omniset.microbiomes.evaluate import Evaluation
from omniset.microbiomes.evaluate import evaluate as run_evaluation
from omniset.microbiomes.inputs import pooled
from omniset.microbiomes.samples import Column, Samples, read_column, read_samples, write_samples
from omniset.microbiomes.sequences import alike, write_fasta
from omniset.microbiomes.taxonomy import Taxonomy, read_renamed, read_taxonomy
from omniset.report import multiqc
from omniset.report.blocks import many
from omniset.runs import devices
from omniset.runs.console import noted, own_command, run_folder, say, say_notes, telling
from omniset.runs.folders import new_file
from omniset.runs.verbs import working_folder
from omniset.tables.dna import read_fasta
from omniset.tables.files import TableWriter, kind_of

SHOWN = 10  # rows of an explanation, at the shell


def fit(
    references: Path,
    taxonomy: Path | None,
    profiles: Path | None,
    arguments: dict[str, Any],
    out: Path,
    resume: bool,
) -> TaxonClassifier:
    """See `omniset.cli.microbiomes.fit`."""
    classifier = TaxonClassifier(**arguments)
    classifier.check_arguments()
    about: dict[str, Any] = {"makes": ["TaxonClassifier"], "reads": [references, taxonomy, profiles], "resume": resume}
    with working_folder(out, "microbiomes", "fit", **_place(classifier), **about) as folder:
        classifier.check_resumed(folder.path, resume)
        classifier.fit(references, taxonomy, profiles, folder=folder.path, resume=resume)
        if not folder.first:
            return classifier
        folder.save(classifier, {"provenance": folder.provenance})
        sizes = classifier.sizes_
        folder.write(
            report.of_fit(classifier, folder.about(f"Model of {references.name}", classifier.notes_)),
            histories={"network": classifier.history_},
            files=["the model"],
            lines=[
                *(f"  {note}" for note in classifier.notes_),
                f"{many(sizes['distinct sequences'], 'distinct sequence')}, {sizes['taxa']:,} taxa",
            ],
        )
        return classifier


@dataclass
class Beside:
    """What calls are looked at beside.

    Attributes:
        against: Other calls of the same sequences.
        renamed: Names of theirs and of ours.
        metadata: Table of the samples.
        by: Its column that samples are ordered and averaged by.
    """

    against: Path | None = None
    renamed: Path | None = None
    metadata: Path | None = None
    by: str | None = None

    def check(self) -> None:
        if self.renamed is not None and self.against is None:
            raise ValueError(f"renamed={self.renamed} is of the names in against, which is not given")
        if (self.metadata is None) != (self.by is None):
            raise ValueError("metadata and by must be given together: a table of the samples, and a column of it")

    def others(self, classifier: TaxonClassifier, names: Sequence[str]) -> tuple[Taxonomy, dict[str, str]] | None:
        """The other calls, and our names by theirs.

        Args:
            names: Of the sequences.
        """
        if self.against is None:
            return None
        others = read_taxonomy(self.against, classifier.ranks)
        if others.keys().isdisjoint(names):
            raise ValueError(
                f"against={self.against} has calls of none of the sequences: it has such as {next(iter(others))!r}, "
                f"they are such as {next(iter(names), None)!r}{alike(others, names)}"
            )
        return others, {} if self.renamed is None else read_renamed(self.renamed)

    def column(self, samples: Sequence[str]) -> Column | None:
        return None if self.metadata is None or self.by is None else read_column(self.metadata, self.by, samples)


def classify(
    reads: Sequence[Path],
    table: Path | None,
    sequences: Path | None,
    model: Path,
    out: Path,
    threshold: float | None,
    beside: Beside,
    overrides: dict[str, Any],
    strand: str,
) -> Calls:
    """See `omniset.cli.microbiomes.classify`."""
    beside.check()
    classifier = TaxonClassifier.load(model, **overrides)
    if threshold is not None:
        classifier.set_params(threshold=threshold).check_arguments()
    reads_of_run = [*reads, table, sequences, model, beside.against, beside.renamed, beside.metadata]
    with working_folder(out, "microbiomes", "classify", reads=reads_of_run, **_place(classifier)) as folder:
        place = folder.path
        began = datetime.now(UTC)
        texts, counts = _given(reads, table, sequences, classifier.progress)
        others = beside.others(classifier, [*(texts or ()), *([] if counts is None else counts.features)])
        column = beside.column(["sample"] if counts is None else counts.names)
        start = time.monotonic()
        calls = classifier.calls(texts, counts, strand=strand)
        seconds = time.monotonic() - start
        written = ["taxonomy.tsv", "taxonomy.qza", "calls.tsv.gz", "abundance.tsv"]
        if reads and texts is not None and counts is not None:
            write_fasta(place / "sequences.fasta", texts)
            write_samples(place / "table.tsv", counts)
            written += ["sequences.fasta", "table.tsv"]
        del texts, counts  # they may be large
        by_feature = calls.per_feature(classifier.threshold)
        agreed = None if others is None else Agreement.of(calls, by_feature, *others)
        _write(place / "taxonomy.tsv", by_feature)
        write_artifact(place / "taxonomy.qza", place / "taxonomy.tsv", began, own_command(), folder.provenance)
        _write(
            place / "calls.tsv.gz",
            calls.part(np.flatnonzero(calls.differing(classifier.threshold))).per_sample(classifier.threshold),
        )
        calls = calls.settled(classifier.threshold)
        # With a row per taxon, as feature tables are.
        _write(place / "abundance.tsv", calls.abundance(classifier.threshold).T.rename_axis("#OTU ID").reset_index())
        if agreed is not None and len(agreed.strangers):
            _write(place / "strangers.tsv", agreed.strangers)
            written.append("strangers.tsv")
        what = ", ".join(path.name for path in (*reads, *(p for p in (table, sequences) if p is not None)))
        made = report.of_calls(calls, by_feature, classifier, folder.about(f"Taxa of {what}"), seconds, agreed, column)
        lines = _lines(calls, made[1]["named"], seconds, beside.against, agreed)
        folder.write(made, files=written, lines=lines)
        return calls


def evaluate(
    references: Path, taxonomy: Path | None, arguments: dict[str, Any], out: Path, resume: bool, **options: Any
) -> Evaluation:
    """See `omniset.cli.microbiomes.evaluate`."""
    classifier = TaxonClassifier(**arguments)
    classifier.check_arguments()
    about: dict[str, Any] = {"reads": [references, taxonomy], "resume": resume}
    with working_folder(out, "microbiomes", "evaluation", **_place(classifier), **about) as folder:
        parts = classifier.prepare(references, taxonomy)
        for note in classifier.notes_:
            say(f"  {note}")
        options["methods"] = options["methods"] or None
        evaluation = run_evaluation(
            classifier, parts, folder=folder.path, resume=resume, say=telling(classifier.progress), **options
        )
        evaluation.comparison.write_rows(folder.path / "scores.csv.gz")
        folder.write(
            report.of_evaluation(
                evaluation, classifier, folder.about(f"Evaluation on {references.name}", classifier.notes_)
            ),
            metrics=evaluation.numbers(),
            scores=multiqc.of_ours(evaluation.comparison),
            files=["scores.csv.gz", "rows/"],
            lines=evaluation.comparison.lines(evaluation.smallest),
        )
        return evaluation


def explain(
    feature: str,
    table: Path,
    sequences: Path | None,
    sample: str | None,
    model: Path,
    out: Path,
    top: int,
    overrides: dict[str, Any],
    strand: str,
) -> pd.DataFrame:
    """See `omniset.cli.microbiomes.explain_taxon`."""
    kind_of(out)
    new_file(out, table, sequences)
    classifier = TaxonClassifier.load(model, **overrides)
    with run_folder(out.parent), noted() as notes:
        explanation = classifier.explain(feature, sequences, read_samples(table), sample=sample, top=top, strand=strand)
        about = explanation.attrs
        of_what = pd.DataFrame({"sample": about["sample"], "explained": feature}, index=explanation.index)
        _write(out, pd.concat([of_what, explanation], axis=1))
        say(f"{feature} in sample {about['sample']}: {about['taxon']} is most probable, {about['probability']:.3f}")
        if about["clear"]:
            say("  it is clear by itself: the sample changes nothing of note")
        same = "the same taxon" if about["taxon_alone"] == about["taxon"] else about["taxon_alone"]
        say(f"  by itself: {same}; probability of the former {about['alone']:.3f}")
        if len(explanation):
            say(explanation.head(SHOWN).to_string(index=False))
            if len(explanation) > SHOWN:
                say(f"  and {len(explanation) - SHOWN} more")
        else:
            say("  there is nothing else in the sample")
        say_notes(notes())
        say(f"Written to {out}")
        return explanation


def _place(classifier: TaxonClassifier) -> dict[str, Any]:
    """Seed and device of a run."""
    return {"seed": classifier.seed, "device": devices.find(classifier.device).type}


def _given(
    reads: Sequence[Path], table: Path | None, sequences: Path | None, progress: bool
) -> tuple[dict[str, str] | None, Samples | None]:
    """Sequences by name, and how often each sample has them."""
    if reads:
        return pooled(reads, progress)
    texts = None if sequences is None else read_fasta(sequences, progress)
    counts = None if table is None else read_samples(table)
    if counts is not None and not counts.counts.nnz:
        raise ValueError(f"{table} has no reads: every count is 0")
    return texts, counts


def _lines(
    calls: Calls, named: dict[str, float], seconds: float, against: Path | None, agreed: Agreement | None
) -> Iterator[str]:
    """What classify says of its result."""
    yield (
        f"{many(len(calls.samples), 'sample')}, {many(len(calls.features), 'sequence')}, "
        f"{calls.count.sum():,.0f} reads in {seconds:,.1f} s"
    )
    for rank, share in named.items():
        yield f"  {share_of(share):>6} of the reads are named at rank {rank}"
    if agreed is not None:
        yield f"agreement with {against}, where both name a rank and its name is among the references:"
        for row in agreed.ranks.to_dict("records"):
            by_reads, by_sequences = (share_of(row[key]) for key in ("by_reads", "by_sequences"))
            yield (
                f"  {row['rank']}: {by_reads:>6} of reads, {by_sequences:>6} of sequences; "
                f"{share_of(row['compared_reads'])} of all reads could be compared"
            )
        for of_rank, group in agreed.strangers.groupby("rank", sort=False):
            most = zip(group["name"].head(3), group["share_of_reads"].head(3), strict=True)
            few = ", ".join(f"{one} {share_of(share)}" for one, share in most)
            yield f"  {of_rank}: {many(len(group), 'name')} of theirs that none of ours is, such as {few}"


def _write(path: Path, frame: pd.DataFrame) -> None:
    with TableWriter(path, empty=True) as writer:
        writer.write(frame)
