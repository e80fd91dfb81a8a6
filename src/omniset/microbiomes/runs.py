"""`omniset microbiomes`: the same verbs on files, with their reports."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from omniset.console import noted, own_command, refuse_own_input, run_folder, say, say_notes
from omniset.files import plain, provenance, replacing, write_json
from omniset.microbiomes import report
from omniset.microbiomes.calls import Calls
from omniset.microbiomes.classifier import TaxonClassifier
from omniset.microbiomes.evaluate import METHODS, Evaluation
from omniset.microbiomes.evaluate import evaluate as run_evaluation
from omniset.microbiomes.inputs import sample_name
from omniset.microbiomes.samples import Samples, read_samples
from omniset.microbiomes.sequences import EmptyFileError, dereplicate, read_fasta
from omniset.microbiomes.taxonomy import Lineage, bare, lineage_of, names_at, read_taxonomy
from omniset.report import write as write_report
from omniset.report.blocks import many
from omniset.tables.files import TableWriter, kind_of

ROWS = 100_000  # written at a time
LEAST_KNOWN = 0.5  # share of the reads that are like any reference: below, a warning is due
SHOWN = 10  # rows of an explanation, at the shell


def fit(
    references: Path,
    taxonomy: Path,
    profiles: Path | None,
    arguments: dict[str, Any],
    out: Path,
    resume: bool,
) -> TaxonClassifier:
    """See `omniset.cli.microbiomes.fit`."""
    with run_folder(out), noted() as notes:
        classifier = TaxonClassifier(**arguments)
        classifier.check_arguments()
        if (out / "config.json").exists() and not resume:
            say(f"{out} holds a model already: it is replaced when this one is done")
        classifier.fit(references, taxonomy, profiles, folder=out, resume=resume)
        for note in classifier.notes_:
            say(f"  {note}")
        about = provenance(classifier.seed)
        page, numbers = report.of_fit(
            classifier, title=f"Model of {references.name}", command=own_command(), notes=notes(), provenance=about
        )
        classifier.save(out, {"provenance": about})
        write_report(out, page, numbers)
        sizes = classifier.sizes_
        say(f"{many(sizes['distinct sequences'], 'distinct sequence')}, {sizes['taxa']:,} taxa")
        say_notes(notes())
        say(f"Written to {out}: the model, report.html, report.json")
        return classifier


def classify(
    reads: Sequence[Path],
    table: Path | None,
    sequences: Path | None,
    model: Path,
    out: Path,
    threshold: float | None,
    against: Path | None,
    overrides: dict[str, Any],
    strand: str,
    shard_size: int,
) -> Calls:
    """See `omniset.cli.microbiomes.classify`."""
    if out.is_dir() and (out / "config.json").exists():
        raise ValueError(f"out={out} holds a model, whose report would be replaced: choose another folder")
    classifier = TaxonClassifier.load(model, **overrides)
    if threshold is not None:
        classifier.set_params(threshold=threshold).check_arguments()
    with run_folder(out), noted() as notes:
        others = None if against is None else read_taxonomy(against)
        texts: dict[str, str] | None
        counts: Samples | None
        if reads:
            texts, counts = pooled(reads, classifier.progress)
        else:
            texts = None if sequences is None else read_fasta(sequences, classifier.progress)
            counts = None if table is None else read_samples(table)
        if table is not None and counts is not None and not counts.counts.nnz:
            raise ValueError(f"{table} has no reads: every count is 0")
        if others is not None:
            names = texts if texts else [] if counts is None else [*counts.features, *counts.names]
            if others.keys().isdisjoint(names):
                raise ValueError(
                    f"against={against} has calls of none of the sequences: it has such as {next(iter(others))!r}, "
                    f"they are such as {next(iter(names), None)!r}"
                )
        start = time.monotonic()
        calls = classifier.calls(texts, counts, strand=strand, shard_size=shard_size)
        seconds = time.monotonic() - start
        if not reads:
            texts = counts = None  # they may be large
        by_feature = calls.per_feature(classifier.threshold)
        abundance = calls.abundance(classifier.threshold)
        agreed = None if others is None else agreement(calls, by_feature, others)
        written = ["taxonomy.tsv", "calls.tsv.gz", "abundance.tsv"]
        if texts is not None and counts is not None:
            written += ["sequences.fasta", "table.tsv"]
            _write_fasta(out / "sequences.fasta", texts)
            _write_table(out / "table.tsv", counts)
        _write(out / "taxonomy.tsv", by_feature)
        with TableWriter(out / "calls.tsv.gz") as writer:
            for first in range(0, max(len(calls.taxon), 1), ROWS):
                writer.write(calls.part(first, first + ROWS).per_sample(classifier.threshold))
        _write(out / "abundance.tsv", _by_taxon(abundance))
        warn_of_strangers(calls, classifier)
        what = ", ".join(path.name for path in (*reads, *(p for p in (table, sequences) if p is not None)))
        page, numbers = report.of_calls(
            calls,
            by_feature,
            classifier,
            title=f"Taxa of {what}",
            command=own_command(),
            notes=notes(),
            provenance=provenance(classifier.seed),
            seconds=seconds,
            agreed=agreed,
        )
        write_report(out, page, numbers)
        say(
            f"{many(len(calls.samples), 'sample')}, {many(len(calls.features), 'sequence')}, "
            f"{calls.count.sum():,.0f} reads in {seconds:,.1f} s"
        )
        for rank, share in numbers["named"].items():
            say(f"  {report.share_of(share):>6} of the reads are named at rank {rank}")
        if agreed is not None:
            say(f"agreement with {against}, where both name a rank and its name is among the references:")
            for row in agreed.to_dict("records"):
                by_reads, by_sequences = (report.share_of(row[key]) for key in ("by_reads", "by_sequences"))
                say(
                    f"  {row['rank']}: {by_reads:>6} of reads, {by_sequences:>6} of sequences; "
                    f"{report.share_of(row['compared_reads'])} of all reads could be compared"
                )
        say_notes(notes())
        say(f"Written to {out}: {', '.join(written)}, report.html, report.json")
        return calls


def warn_of_strangers(calls: Calls, classifier: TaxonClassifier) -> None:
    """Of reads that are nothing to the model: they may be of another part of the gene."""
    likely = (calls.taxon >= 0) & (calls.confidence[:, 0] >= 0.5)
    share = float(calls.count[likely].sum() / max(calls.count.sum(), 1e-300))
    if share < LEAST_KNOWN:
        region = classifier.region
        learned = "whole references" if region is None else f"the region {region}, without its primers"
        warnings.warn(
            f"only {report.share_of(share)} of the reads are likely to be of the {calls.taxa.ranks[0]} that they are "
            f"nearest to: the model has learned {learned}; are these reads of it, from its start on?",
            stacklevel=2,
        )


def evaluate(
    references: Path, taxonomy: Path, arguments: dict[str, Any], out: Path, resume: bool, **options: Any
) -> Evaluation:
    """See `omniset.cli.microbiomes.evaluate`."""
    if out.is_dir() and (out / "config.json").exists():
        raise ValueError(f"out={out} holds a model, whose report would be replaced: choose another folder")
    with run_folder(out), noted() as notes:
        classifier = TaxonClassifier(**arguments)
        classifier.check_arguments()
        found = classifier.prepare(references, read_taxonomy(taxonomy))
        for note in classifier.notes_:
            say(f"  {note}")
        if options["methods"] is None:
            options["methods"] = METHODS
        evaluation = run_evaluation(
            classifier,
            found,
            folder=out,
            resume=resume,
            say=say if classifier.progress else lambda line: None,
            **options,
        )
        page, numbers = report.of_evaluation(
            evaluation,
            classifier,
            title=f"Evaluation on {references.name}",
            command=own_command(),
            notes=notes(),
            provenance=provenance(classifier.seed),
        )
        write_json(out / "metrics.json", plain(numbers))
        write_report(out, page, numbers)
        for kind, reads in report.shown(evaluation):
            say(f"\n{kind}, {reads:,} reads, means over seeds")
            say(report.short_table(evaluation, kind, reads).to_string())
        for gate in evaluation.gates():
            say(f"{'holds' if gate['holds'] else 'FAILS'}: {gate['gate']}: {gate['value']:+.4f}")
        say_notes(notes())
        say(f"\nWritten to {out}: metrics.json, report.html, report.json, seeds/")
        return evaluation


def agreement(calls: Calls, by_feature: pd.DataFrame, others: dict[str, Lineage]) -> pd.DataFrame:
    """How often our calls and others have the same name at a rank: `rank`, `by_reads`, `by_sequences`, and
    `compared_reads`, the share of all reads that this is of.

    Compared is what both name, and by a name that the references have at this rank: elsewhere taxonomies differ.
    """
    reads = np.bincount(calls.feature, calls.count, minlength=len(calls.features))
    ours = {name: lineage_of(taxon) for name, taxon in zip(by_feature["Feature ID"], by_feature["Taxon"], strict=True)}
    rows = []
    for rank, name in enumerate(calls.taxa.ranks):
        known = {bare(lineage[rank]) for lineage in calls.taxa.lineages}
        mine, theirs = dict(names_at(ours, rank)), dict(names_at(others, rank))
        both = [i for i, f in enumerate(calls.features) if f in mine and theirs.get(f) in known]
        same = np.array([mine[calls.features[i]] == theirs[calls.features[i]] for i in both], dtype=bool)
        weight = reads[both]
        rows.append(
            {
                "rank": name,
                "by_reads": float(weight[same].sum() / weight.sum()) if weight.sum() else np.nan,
                "by_sequences": float(same.mean()) if len(same) else np.nan,
                "compared_reads": float(weight.sum() / max(reads.sum(), 1e-300)),
            }
        )
    return pd.DataFrame(rows)


def explain(
    feature: str,
    table: Path,
    sequences: Path | None,
    sample: str | None,
    model: Path,
    out: Path,
    top: int,
    steps: int,
    overrides: dict[str, Any],
    strand: str,
) -> pd.DataFrame:
    """See `omniset.cli.microbiomes.explain_taxon`."""
    kind_of(out)
    refuse_own_input(out, table)
    classifier = TaxonClassifier.load(model, **overrides)
    with run_folder(out.parent), noted() as notes:
        found = classifier.explain(
            feature, sequences, read_samples(table), sample=sample, top=top, steps=steps, strand=strand
        )
        about = found.attrs
        of_what = pd.DataFrame({"sample": about["sample"], "explained": feature}, index=found.index)
        _write(out, pd.concat([of_what, found], axis=1))
        say(f"{feature} in sample {about['sample']}: {about['taxon']} is most probable, {about['probability']:.3f}")
        same = "the same taxon" if about["taxon_alone"] == about["taxon"] else about["taxon_alone"]
        say(f"  by itself: {same}; probability of the former {about['alone']:.3f}")
        if len(found):
            say(found.head(SHOWN).to_string(index=False))
            if len(found) > SHOWN:
                say(f"  and {len(found) - SHOWN} more")
        else:
            say("  there is nothing else in the sample")
        say_notes(notes())
        say(f"Written to {out}")
        return found


def pooled(files: Sequence[Path], progress: bool) -> tuple[dict[str, str], Samples]:
    """Distinct reads of several files by name, and how often each file has them. The most frequent are named first.

    An empty file among others, such as that of a negative control, is a sample without reads.

    Raises:
        EmptyFileError: All are.
        ValueError: Two files of one name, or damaged ones.
    """
    names = [sample_name(path) for path in files]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"reads: two files would both be the sample {name!r}")
    each: list[dict[str, int]] = []
    for path in files:
        try:
            each.append(dereplicate(path, progress))
        except EmptyFileError:
            if len(files) == 1:
                raise
            each.append({})
    if not any(each):
        raise EmptyFileError(f"reads: all {len(files)} files are empty")
    total: dict[str, int] = {}
    for counts in each:
        for text, number in counts.items():
            total[text] = total.get(text, 0) + number
    order = sorted(total, key=lambda text: (-total[text], text))
    place = {text: i for i, text in enumerate(order)}
    rows = np.repeat(np.arange(len(each)), [len(counts) for counts in each])
    columns = np.array([place[text] for counts in each for text in counts])
    values = np.array([number for counts in each for number in counts.values()], dtype=np.float64)
    table = sp.csr_array((values, (rows, columns)), shape=(len(each), len(order)))
    features = [f"read{i}" for i in range(1, len(order) + 1)]
    return dict(zip(features, order, strict=True)), Samples(names, features, table)


def _write(path: Path, frame: pd.DataFrame) -> None:
    with TableWriter(path) as writer:
        writer.write(frame)


def _by_taxon(abundance: pd.DataFrame) -> pd.DataFrame:
    """With a row per taxon, as feature tables are."""
    return abundance.T.rename_axis("#OTU ID").reset_index()


def _write_fasta(path: Path, texts: dict[str, str]) -> None:
    with replacing(path) as temporary, open(temporary, "w", encoding="ascii") as file:
        file.writelines(f">{name}\n{text}\n" for name, text in texts.items())


def _write_table(path: Path, samples: Samples) -> None:
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write("\t".join(["#OTU ID", *samples.names]) + "\n")
        by_feature = samples.counts.tocsc()
        for start in range(0, len(samples.features), 1000):
            block = by_feature[:, start : start + 1000].toarray().T
            for name, row in zip(samples.features[start : start + 1000], block, strict=True):
                file.write("\t".join([name, *(f"{value:.0f}" for value in row)]) + "\n")
