"""`omniset microbiomes`: fit, classify, evaluate, explain, simulate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from omniset.cli.options import Saving, given, needed, split, takes, whole_numbers
from omniset.cli.parts import in_parts
from omniset.microbiomes.options import ClassifierOptions
from omniset.options import option, options

READS = (".fastq", ".fq", ".fasta", ".fa", ".fna")
USING = ("embedder", "trust_code", "cache", "device", "progress")


@options
class Reading:
    """How reads are read."""

    strand: Literal["auto", "forward"] = option(
        "auto",
        "Whether reads of the other strand are recognised by their words and turned, or taken as they are.",
        group="data",
    )


@takes(ClassifierOptions)
@takes(Saving, "replace")
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
    from omniset.microbiomes import runs
    from omniset.runs.processes import one_voice

    file = needed(references=references)[0]
    with one_voice(1, 1):
        runs.fit(file, taxonomy, profiles, given(ClassifierOptions, options), out, resume)


def _parts(arguments: dict[str, Any]) -> list[Path]:
    from omniset.runs import parts

    if not arguments["reads"]:
        raise ValueError("scheduler is for files of reads, each a sample: give them in place of --table")
    return [p for given in _files(arguments["reads"]) for p in parts.find(given, READS, "reads")]


def _one_abundance(arguments: dict[str, Any]) -> Any:
    def join(made: Mapping[str, Path], out: Path) -> list[str]:
        from omniset.tables import joined

        table = joined.beside(made, "abundance.tsv", out / "abundance.tsv")
        return [f"{len(made):,} samples, {len(table):,} taxa: abundance.tsv has all of them"]

    return join


@in_parts(
    "reads", _parts, place=lambda path: json.dumps([str(path)]), join=_one_abundance, joined=lambda _: "abundance.tsv"
)
@takes(Reading)
@takes(ClassifierOptions, *USING)
@takes(Saving)
def classify(
    reads: str | None = None,
    table: Path | None = None,
    sequences: Path | None = None,
    model: Path = Path("model"),
    out: Path = Path("classified"),
    threshold: float | None = None,
    against: Path | None = None,
    renamed: Path | None = None,
    metadata: Path | None = None,
    by: str | None = None,
    **options: Any,
) -> None:
    """Name the taxon of every sequence in every sample.

    Example: omniset microbiomes classify --table table.biom --sequences seqs.fasta --model model --out classified

    Args:
        reads: Files of reads, FASTA or FASTQ (.gz, .bz2, .xz), each a sample, with commas between; or, as first words
            and without the option, with spaces between. Equal reads are counted once.
        table: Feature table: BIOM 2.1, or text with a line per feature. In place of reads.
        sequences: FASTA with the features' sequences. null: features are named by their sequences.
        model: Folder that fit wrote.
        out: Folder for taxonomy.tsv, taxonomy.qza (the same as an artifact of QIIME 2), calls.tsv.gz
            (samples in which a sequence has another name), abundance.tsv and a report; of reads also sequences.fasta
            and table.tsv.
        threshold: Confidence that a rank needs to be named. null: as at fit.
        against: Table of other calls of the same sequences, Feature ID and Taxon: how far they agree is reported, and
            which of their names are none of ours.
        renamed: Table of two columns, a name in against and ours for the same taxon, such as Bacteroidetes and
            Bacteroidota.
        metadata: Table of the samples, the first column their names.
        by: Column of it by which the report orders and averages the samples.
    """
    from omniset.microbiomes import runs

    if bool(reads) == (table is not None or sequences is not None):
        raise ValueError("give either files of reads, or --table with --sequences (or one of them)")
    computing = _using(options), options["strand"]
    beside = runs.Beside(against, renamed, metadata, by)
    runs.classify(_files(reads), table, sequences, model, out, threshold, beside, *computing)


@takes(ClassifierOptions)
@takes(Saving, "replace")
def evaluate(
    references: Path | None = None,
    taxonomy: Path | None = None,
    out: Path = Path("evaluation"),
    methods: str | None = None,
    seeds: int = 3,
    sizes: str = "1024,8192,131072",
    least: int = 2,
    test_fraction: float = 0.2,
    unknown_fraction: float = 0.05,
    resume: bool = False,
    **options: Any,
) -> None:
    """Compare calls with those of other methods, on sequences that none of them has seen, in samples of many sizes.

    Example: omniset microbiomes evaluate --references refs.fasta --taxonomy tax.tsv --region 515F-806R --out evaluation

    Args:
        references: As for fit.
        taxonomy: As for fit.
        out: Folder for the report, metrics.json, scores.csv.gz and the rows of every seed.
        methods: What to compare, separated by commas: omniset, with-profiles (told the communities), no-context (every
            sequence by itself), no-network; naive-bayes, naive-bayes-sample, naive-bayes-community, nearest; and
            vsearch's sintax and Debian's rdp, where they are installed. null: all that are there.
        seeds: How often references are divided and all is learned anew.
        sizes: Numbers of reads of the test samples, with commas between; those with unknown taxa have 8192.
        least: Taxa of fewer distinct sequences are references only, and none of theirs is tested.
        test_fraction: Share of distinct sequences that is held out.
        unknown_fraction: Share of taxa that is held out as a whole, to see what is made of reads of unknown taxa.
        resume: Keep what is done in the same folder.
    """
    from omniset.microbiomes import runs

    file = needed(references=references)[0]
    chosen = split(methods)
    runs.evaluate(
        file,
        taxonomy,
        given(ClassifierOptions, options),
        out,
        resume,
        methods=chosen,
        seeds=seeds,
        sizes=whole_numbers("sizes", sizes),
        least=least,
        test_fraction=test_fraction,
        unknown_fraction=unknown_fraction,
    )


@takes(Reading, "strand")
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
    from omniset.microbiomes import runs

    runs.explain(
        feature, needed(table=table)[0], sequences, sample, model, out, top, _using(options), options["strand"]
    )


@takes(Saving)
def simulate(out: Path = Path("microbiome"), samples: int = 12, seed: int = 0) -> None:
    """Write a made-up microbiome to try the other commands on.

    Example: omniset microbiomes simulate --out microbiome

    Args:
        out: Folder for references.fasta, taxonomy.tsv, table.tsv and sequences.fasta (samples of two communities in
            turn), truth.tsv (their taxa) and reads.fastq.gz (one more sample).
        samples: How many.
        seed: The same seed gives the same files.
    """
    from omniset.microbiomes import simulate as simulated
    from omniset.runs.console import say

    say(f"Written to {out}: {', '.join(simulated.write(simulated.simulate(samples, seed), out))}")


def _using(options: dict[str, Any]) -> dict[str, Any]:
    """What an artefact does not keep, where it is given."""
    return {name: value for name, value in given(ClassifierOptions, options).items() if value is not None}


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
