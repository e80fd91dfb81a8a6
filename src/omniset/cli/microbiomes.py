"""`omniset microbiomes`: fit, classify, evaluate, explain."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from omniset.cli.options import Saving, chosen, given, needed, split, takes, whole_numbers
from omniset.cli.parts import find, in_parts
from omniset.microbiomes.options import ClassifierOptions

READS = (".fastq", ".fq", ".fasta", ".fa", ".fna")
USING = ("device", "progress")
SHOWN = 10  # rows of an explanation


@takes(ClassifierOptions)
@takes(Saving)
def fit(
    references: Path | None = None,
    taxonomy: Path | None = None,
    profiles: Path | None = None,
    out: Path = Path("model"),
    resume: bool = False,
    **options: Any,
) -> None:
    """Learn taxa from reference sequences.

    Example: omniset microbiomes fit --references refs.fasta --taxonomy tax.tsv --region 515F-806R --out model

    Args:
        references: FASTA (.gz, .bz2, .xz) with the reference sequences.
        taxonomy: Table of their names and taxa, as QIIME 2 has it: Feature ID, Taxon. null: the taxa are in the headers
            of the references, as SILVA, GTDB, RDP, UNITE, PR2, SINTAX and DADA2 have them.
        profiles: Feature table (BIOM or text) whose samples are communities of the habitat; its features are taxa, or
            names of references. Used where calls of sequences that were kept back are the better for it. null: all
            taxa are expected alike.
        out: Folder for the model and its report.
        resume: Go on with an interrupted run in the same folder.
    """
    file = needed(references=references)[0]
    from omniset.microbiomes import TaxonClassifier, report
    from omniset.report.run import working_folder
    from omniset.runs.processes import one_voice

    classifier = TaxonClassifier(**given(ClassifierOptions, options))
    classifier.check_arguments()
    about: dict[str, Any] = {"makes": ["TaxonClassifier"], "reads": [file, taxonomy, profiles], "resume": resume}
    with one_voice(1, 1), working_folder(out, "microbiomes", "fit", **_place(classifier), **about) as folder:
        classifier.check_resumed(folder.path, resume)
        classifier.fit(file, taxonomy, profiles, folder=folder.path, resume=resume)
        if not folder.first:
            return
        folder.save(classifier, {"provenance": folder.provenance})
        notes = classifier.notes_
        folder.write(
            report.of_fit(classifier, folder.about(f"Model of {file.name}", notes)),
            histories={"network": classifier.history_},
            files=["the model"],
            lines=[f"  {note}" for note in notes],
        )


def _parts(arguments: dict[str, Any]) -> list[Path]:
    if not arguments["reads"]:
        raise ValueError("scheduler is for files of reads, each a sample: give them in place of --table")
    from omniset.microbiomes.samples import of_pairs

    return of_pairs(
        [p for given in _files(arguments["reads"]) for p in find(given, READS, "reads")], arguments["pairs"]
    )


def _one_abundance(made: Mapping[str, Path], out: Path) -> list[str]:
    from omniset.cli import joined

    table = joined.beside(made, "abundance.tsv", out / "abundance.tsv")
    return [f"{len(made):,} samples, {len(table):,} taxa: abundance.tsv has all of them"]


@in_parts("reads", _parts, place=lambda path: json.dumps([str(path)]), join=_one_abundance, joined=("abundance.tsv",))
@takes(ClassifierOptions, *USING)
@takes(Saving)
def classify(
    reads: str | None = None,
    table: Path | None = None,
    sequences: Path | None = None,
    model: Path = Path("model"),
    out: Path = Path("classified"),
    pairs: Literal["first", "both"] | None = None,
    sample_from: Literal["header", "sample", "barcodelabel"] | None = None,
    threshold: float | None = None,
    against: Path | None = None,
    **options: Any,
) -> None:
    """Name the taxon of every sequence in every sample.

    Example: omniset microbiomes classify --table table.biom --sequences seqs.fasta --model model --out classified

    Args:
        reads: Files of reads, FASTA or FASTQ (.gz, .bz2, .xz), each a sample, with commas between; or, as first words
            and without the option, with spaces between. Equal ones are one, read1, ...; sequences keeps names.
        table: Feature table: BIOM 2.1, or text with a line per feature. In place of reads.
        sequences: FASTA with the features' sequences. null: features are named by their sequences.
        model: Folder that fit wrote.
        out: Folder for taxonomy.tsv, calls.tsv.gz (samples in which a sequence has another name), abundance.tsv and a
            report; of reads also sequences.fasta and table.tsv.
        pairs: Of files, or names, of first and second reads of pairs (_R1_001 and _R2_001, _1 and _2, /1 and /2): first
            leaves the second ones out, with both each fragment counts twice. null: both, with a warning.
        sample_from: Take a read's sample from its name: header for what stands before the number, as in S3_17 or S3.17;
            sample for sample=S3, barcodelabel for barcodelabel=S3 or barcode=S3. null: each file is a sample.
        threshold: Confidence that a rank needs to be named. null: as at fit.
        against: Table of other calls of the same sequences, Feature ID and Taxon: how far they agree is reported.
    """
    if bool(reads) == (table is not None or sequences is not None):
        raise ValueError("give either files of reads, or --table with --sequences (or one of them)")
    import numpy as np

    from omniset.microbiomes import TaxonClassifier, read_samples, read_taxonomy, report
    from omniset.microbiomes.assignments import agreement, require_named
    from omniset.microbiomes.samples import Samples, pooled, write_samples
    from omniset.microbiomes.sequences import write_fasta
    from omniset.microbiomes.taxonomy import Taxonomy
    from omniset.report.run import working_folder
    from omniset.tables.dna import known_as, read_fasta

    files = [p for one in _files(reads) for p in (find(one, READS, "reads") if one.is_dir() else [one])]
    classifier = TaxonClassifier.load(model, **chosen(ClassifierOptions, options))
    if threshold is not None:
        classifier.set_params(threshold=threshold).check_arguments()
    threshold = classifier.threshold
    read = [*files, table, sequences, model, against]
    with working_folder(out, "microbiomes", "classify", reads=read, **_place(classifier)) as folder:
        place = folder.path
        texts: dict[str, str] | None
        counts: Samples | None
        if files:
            texts, counts = pooled(files, classifier.progress, pairs, sample_from)
        else:
            texts = None if sequences is None else read_fasta(sequences, classifier.progress)
            counts = None if table is None else read_samples(table)
            if counts is not None and not counts.counts.nnz:
                raise ValueError(f"{table} has no reads: every count is 0")
        others = None if against is None else read_taxonomy(against, classifier.ranks)
        names = [] if others is None else [*(texts or ()), *([] if counts is None else counts.features)]
        if others is not None:
            called = known_as(names, others, texts or {})[0]
            if not called:
                raise ValueError(
                    f"against={against} has calls of none of the sequences: it has such as {next(iter(others))!r}, "
                    f"they are such as {next(iter(names), None)!r}"
                )
            theirs, others = others, Taxonomy(others.ranks)
            others.update({name: theirs[there] for name, there in called.items()})
        start = time.monotonic()
        calls = classifier.calls(texts, counts)
        seconds = time.monotonic() - start
        written = ["taxonomy.tsv", "calls.tsv.gz", "abundance.tsv"]
        if files and texts is not None and counts is not None:
            write_fasta(place / "sequences.fasta", texts)
            write_samples(place / "table.tsv", counts)
            written += ["sequences.fasta", "table.tsv"]
        require_named(calls, threshold)
        del texts, counts, names  # they may be large
        by_feature = calls.per_feature(threshold)
        agreed = None if others is None else agreement(calls, by_feature, others)
        _write(place / "taxonomy.tsv", by_feature)
        differing = calls.part(np.flatnonzero(calls.differing(threshold)))
        _write(place / "calls.tsv.gz", differing.per_sample(threshold))
        calls = calls.settled(threshold)
        # With a row per taxon, as feature tables are.
        _write(place / "abundance.tsv", calls.abundance(threshold).T.rename_axis("#OTU ID").reset_index())
        what = ", ".join(path.name for path in (*files, *(path for path in (table, sequences) if path is not None)))
        made = report.of_calls(calls, classifier, folder.about(f"Taxa of {what}"), seconds, agreed)
        folder.write(made, files=written, lines=_lines(calls, seconds, against, agreed))


@takes(ClassifierOptions, "rank", "ranks", "region", "epochs", "seed", *USING, as_at_fit=True)
@takes(Saving)
def evaluate(
    references: Path | None = None,
    taxonomy: Path | None = None,
    model: Path | None = None,
    out: Path = Path("evaluation"),
    methods: str | None = None,
    seeds: int = 3,
    sizes: str = "1024,8192,131072",
    resume: bool = False,
    **options: Any,
) -> None:
    """Compare calls with those of other methods, on sequences that none of them has seen, in samples of many sizes.

    Example: omniset microbiomes evaluate --references refs.fasta --taxonomy tax.tsv --region 515F-806R --out evaluation

    Args:
        references: As for fit.
        taxonomy: As for fit.
        model: Folder that fit wrote: all is learned with its options. null: with those that fit has by default.
        out: Folder for the report, metrics.json, scores.csv.gz and the rows of every seed.
        methods: What to compare, separated by commas: omniset, with-profiles (told the communities), no-context (every
            sequence by itself), no-network; naive-bayes, naive-bayes-sample, naive-bayes-community, nearest. null: all.
        seeds: How often references are divided and all is learned anew.
        sizes: Numbers of reads of the test samples, with commas between; those with unknown taxa have 8192.
        resume: Keep what is done in the same folder.
    """
    file, numbers = needed(references=references)[0], whole_numbers("sizes", sizes)
    from omniset.microbiomes import TaxonClassifier, report
    from omniset.microbiomes.evaluate import evaluate as compared
    from omniset.report import multiqc
    from omniset.report.run import working_folder
    from omniset.runs.console import say, telling

    fitted = {} if model is None else TaxonClassifier.load(model).get_params()
    classifier = TaxonClassifier(**fitted | chosen(ClassifierOptions, options))
    classifier.check_arguments()
    about: dict[str, Any] = {"reads": [file, taxonomy, model], "resume": resume, **_place(classifier)}
    with working_folder(out, "microbiomes", "evaluation", **about) as folder:
        parts, notes = classifier.prepare(file, taxonomy)[0], classifier.notes_
        for note in notes:
            say(f"  {note}")
        evaluation = compared(
            classifier,
            parts,
            methods=split(methods) or None,
            seeds=seeds,
            sizes=numbers,
            folder=folder.path,
            resume=resume,
            say=telling(classifier.progress),
        )
        evaluation.comparison.write_rows(folder.path / "scores.csv.gz")
        folder.write(
            report.of_evaluation(evaluation, classifier, folder.about(f"Evaluation on {file.name}", notes)),
            metrics=evaluation.numbers(),
            scores=multiqc.of_ours(evaluation.comparison),
            files=["scores.csv.gz", "rows/"],
            lines=evaluation.comparison.lines(evaluation.smallest),
        )


@takes(ClassifierOptions, *USING)
@takes(Saving)
def explain_taxon(
    feature: str,
    table: Path | None = None,
    sequences: Path | None = None,
    sample: str | None = None,
    model: Path = Path("model"),
    out: Path = Path("explanation.tsv"),
    top: int = 20,
    **options: Any,
) -> None:
    """Say which other members of a sample moved the call of one sequence.

    Example: omniset microbiomes explain ASV3 --table table.biom --sequences seqs.fasta --model model

    Args:
        feature: Whose call.
        table: Feature table, as for classify.
        sequences: FASTA with the features' sequences. null: features are named by their sequences.
        sample: In which sample. null: the one with most of its reads.
        model: Folder that fit wrote.
        out: Table of members, each with the sample and the explained feature: count, own call, by how much the log-odds
            of the explained call fall without it. That call is the most probable taxon, also where it is not confident
            enough for classify to name it.
        top: Members whose change is computed: those with most reads of the taxa that the call is between.
    """
    counts = needed(table=table)[0]
    import pandas as pd

    from omniset.microbiomes import TaxonClassifier, read_samples
    from omniset.runs.console import noted, run_folder, say, say_notes
    from omniset.runs.folders import new_file
    from omniset.tables.files import kind_of

    kind_of(out)
    new_file(out)
    classifier = TaxonClassifier.load(model, **chosen(ClassifierOptions, options))
    with run_folder(out.parent), noted() as notes:
        explanation = classifier.explain(feature, sequences, read_samples(counts), sample=sample, top=top)
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


def _place(classifier: Any) -> dict[str, Any]:
    """Seed and device of a run."""
    from omniset.runs import devices

    return {"seed": classifier.seed, "device": devices.find(classifier.device).type}


# Helpers of commands say Any of classes: the parser looks types up, and what is imported for them makes it slow.


def _lines(calls: Any, seconds: float, against: Path | None, agreed: Any | None) -> Iterator[str]:
    """What classify says of its `Calls`, and of their `agreement` with those in `against`."""
    from omniset.microbiomes.assignments import share_of
    from omniset.report.blocks import many

    yield f"{many(len(calls.samples), 'sample')}, {many(len(calls.features), 'sequence')} in {seconds:,.1f} s"
    if agreed is None:
        return
    yield f"agreement with {against}, where both name a rank and its name is among the references:"
    for row in agreed.to_dict("records"):
        by_reads, by_sequences = (share_of(row[key]) for key in ("by_reads", "by_sequences"))
        yield (
            f"  {row['rank']}: {by_reads:>6} of reads, {by_sequences:>6} of sequences; "
            f"{share_of(row['compared_reads'])} of all reads could be compared"
        )


def _write(path: Path, table: Any) -> None:
    from omniset.tables.files import TableWriter

    with TableWriter(path, empty=True) as writer:
        writer.write(table)


def _files(reads: str | None) -> list[Path]:
    # Words without an option come as JSON: a name may have a comma in it.
    text = reads or ""
    given = json.loads(text) if text.startswith("[") else text.split(",")
    return [Path(name) for name in given if name]


def with_reads(words: list[str]) -> list[str]:
    """The words of `microbiomes classify` with its files of reads as an option.

    >>> with_reads(["microbiomes", "classify", "a.fq", "b.fq", "--out", "c"])
    ['microbiomes', 'classify', '--reads', '["a.fq", "b.fq"]', '--out', 'c']
    """
    if words[:2] != ["microbiomes", "classify"]:
        return words
    number = next((i for i, word in enumerate(words[2:]) if word.startswith("-")), len(words) - 2)
    files = words[2 : 2 + number]
    options = [word.partition("=")[0] for word in words]
    if files and any(len(option) > 2 and "--reads".startswith(option) for option in options):
        raise ValueError(f"reads must be given once: as words, which are {', '.join(files)}, or by --reads")
    return [*words[:2], *(["--reads", json.dumps(files)] if files else []), *words[2 + number :]]
