"""`omniset microbiomes`: fit, classify, evaluate, explain.

Options that several commands share are written once, as dataclasses: the parser finds them behind `**options`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omniset.cli.sets import Device, _split


@dataclass(kw_only=True)
class Using:
    """How a model is used.

    Args:
        embedder: Folder of the transformer that the model was fitted with, if it is another now.
        trust_code: Run Python files that are in the folder of the embedder. DNABERT-S needs it.
        cache: Folder in which the transformer's vectors are kept from run to run.
        strand: Whether reads of the other strand are told by their words and turned, or taken as they are.
        shard_size: Sequences of a sample that are computed on at a time: bounds the memory, and changes nothing.
        device: Where to compute.
        progress: Show progress.
    """

    embedder: Path | None = None
    trust_code: bool = False
    cache: Path | None = None
    strand: Literal["auto", "forward"] = "auto"
    shard_size: int = 2048
    device: Device = "auto"
    progress: bool = True

    def model(self) -> dict[str, Any]:
        """Arguments of `TaxonClassifier.load`."""
        found = {"trust_code": self.trust_code, "device": self.device, "progress": self.progress}
        given = {"embedder": self.embedder, "cache": self.cache}
        return found | {name: value for name, value in given.items() if value is not None}


@dataclass(kw_only=True)
class Learning:
    """How a model is made: the arguments of `TaxonClassifier`, with its defaults.

    Args:
        rank: Taxa that are told apart.
        region: Which part of the references to learn: 515F-806R, 341F-805R, or the primers as FORWARD...REVERSE. null:
            the references as they are.
        words: Lengths of the k-mers, with commas between.
        width: Of a sequence's vector.
        members: Classifiers of single sequences whose logits are averaged; must divide width.
        embedder: Folder of a transformer that makes vectors in place of k-mers. null: k-mers.
        trust_code: Run Python files that are in that folder. DNABERT-S needs it.
        cache: Folder in which the transformer's vectors are kept from run to run.
        encoder: What sees the sample; "none": every sequence by itself.
        dim: Width of the encoder.
        depth: Its layers.
        num_heads: Attention heads; must divide dim.
        num_inducing: Inducing points of a layer.
        lengths: Of reads that may be shorter than the region, with commas between; learned beside it.
        kinds: How many kinds of communities to learn from, where no table of them is given. null: a new one for every
            sample, which teaches to read any sample. A number: replicates of so many.
        background: Share of new communities that is mixed into given ones.
        reads: Of a training sample.
        views: Mutated versions of each reference, for each length.
        steps: Of the lesson on samples; more than 20 are rounded up to a multiple of 20.
        batch_size: Samples in a step.
        learning_rate: Largest step size in that lesson.
        weight_decay: Pull of the weights towards zero.
        sequence_epochs: Of the lesson on sequences by themselves.
        sequence_batch: Sequences in a step of it.
        sequence_rate: Largest step size in it.
        validation_fraction: Share of distinct sequences kept back to watch training and to calibrate confidences.
        novel: Share of reads taken to be of taxa without references, for confidences.
        threshold: Confidence that a rank needs to be named.
        seed: The same seed gives the same numbers.
        device: Where to compute.
        progress: Show progress.
    """

    rank: Literal["domain", "phylum", "class", "order", "family", "genus", "species"] = "genus"
    region: str | None = None
    words: str = "5,7"
    width: int = 256
    members: int = 4
    embedder: Path | None = None
    trust_code: bool = False
    cache: Path | None = None
    encoder: Literal["ust", "set-transformer-isab", "set-transformer-sab", "none"] = "ust"
    dim: int = 128
    depth: int = 2
    num_heads: int = 4
    num_inducing: int = 16
    lengths: str = "100,150,200"
    kinds: int | None = None
    background: float = 0.1
    reads: int = 1024
    views: int = 2
    steps: int = 600
    batch_size: int = 8
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    sequence_epochs: int = 8
    sequence_batch: int = 128
    sequence_rate: float = 3e-3
    validation_fraction: float = 0.05
    novel: float = 0.1
    threshold: float = 0.7
    seed: int = 0
    device: Device = "auto"
    progress: bool = True

    def classifier(self) -> dict[str, Any]:
        """The arguments of `TaxonClassifier`."""
        if self.kinds is not None and self.kinds < 1:
            raise ValueError(f"kinds must be >= 1, got {self.kinds}")
        found = dict(vars(self))
        found["profiles"] = found.pop("kinds")
        return found | {name: _lengths(name, found[name]) for name in ("words", "lengths")}


def _lengths(name: str, given: str) -> list[int]:
    try:
        return [int(word) for word in given.split(",") if word.strip()]
    except ValueError:
        raise ValueError(f"{name} must be whole numbers with commas between, got {given!r}") from None


def fit(
    references: Path | None = None,
    taxonomy: Path | None = None,
    profiles: Path | None = None,
    out: Path = Path("model"),
    resume: bool = False,
    **options: Any,
) -> None:
    """Learn taxa from reference sequences, and how they come together in samples.

    Example: omniset microbiomes fit --references refs.fasta --taxonomy tax.tsv --region 515F-806R --out model

    Args:
        references: FASTA (.gz, .bz2, .xz) with the reference sequences.
        taxonomy: Table of their names and taxa, as QIIME 2 has it: Feature ID, Taxon.
        profiles: Feature table (BIOM or text) whose samples are communities to learn from; its features are taxa, or
            names of references. null: made-up communities.
        out: Folder for the model and its report.
        resume: Go on with an interrupted run in the same folder.
        **options: See `Learning`.
    """
    from omniset.microbiomes import runs

    learning = Learning(**options)
    given = _given("references", references), _given("taxonomy", taxonomy)
    try:
        runs.fit(*given, profiles, learning.classifier(), out, resume)
    except KeyboardInterrupt:
        if (out / "first").is_dir():
            print(f"\nWhole epochs, if any, are kept in {out}: go on with --resume true", file=sys.stderr)
        raise


def classify(
    reads: str | None = None,
    table: Path | None = None,
    sequences: Path | None = None,
    model: Path = Path("model"),
    out: Path = Path("classified"),
    threshold: float | None = None,
    against: Path | None = None,
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
        out: Folder for taxonomy.tsv (which QIIME 2 imports), calls.tsv.gz (by sample), abundance.tsv and a report; of
            reads also sequences.fasta and table.tsv.
        threshold: Confidence that a rank needs to be named. null: as at fit.
        against: Table of other calls of the same sequences, Feature ID and Taxon: how far they agree is reported.
        **options: See `Using`.
    """
    from omniset.microbiomes import runs

    using = Using(**options)
    if bool(reads) == (table is not None or sequences is not None):
        raise ValueError("give either files of reads, or --table with --sequences (or one of them)")
    computing = using.model(), using.strand, using.shard_size
    runs.classify(_files(reads), table, sequences, model, out, threshold, against, *computing)


def evaluate(
    references: Path | None = None,
    taxonomy: Path | None = None,
    out: Path = Path("evaluation"),
    methods: str | None = None,
    seeds: int = 3,
    sizes: str = "1024,2048,4096,8192,16384,32768,65536,131072",
    least: int = 5,
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
        out: Folder for the report, the metrics and the rows of every seed.
        methods: What to compare, separated by commas: omniset, general (learned from any communities), sab (full
            self-attention), no-context, naive-bayes, naive-bayes-community, naive-bayes-sample, nearest. null: all.
        seeds: How often references are divided and networks trained anew.
        sizes: Numbers of reads of the test samples, with commas between; those with unknown taxa have 8192.
        least: Taxa of fewer distinct sequences are left out.
        test_fraction: Share of distinct sequences that is held out.
        unknown_fraction: Share of taxa that is held out as a whole, to see what is made of reads of unknown taxa.
        resume: Keep what is done in the same folder.
        **options: See `Learning`.
    """
    from omniset.microbiomes import runs

    learning = Learning(**options)
    given = _given("references", references), _given("taxonomy", taxonomy)
    chosen = _split(methods)
    try:
        runs.evaluate(
            *given,
            learning.classifier(),
            out,
            resume,
            methods=chosen,
            seeds=seeds,
            sizes=_lengths("sizes", sizes),
            least=least,
            test_fraction=test_fraction,
            unknown_fraction=unknown_fraction,
        )
    except KeyboardInterrupt:
        if out.is_dir():
            print(f"\nWhat is done is kept in {out}: go on with --resume true", file=sys.stderr)
        raise


def explain_taxon(
    feature: str,
    table: Path | None = None,
    sequences: Path | None = None,
    sample: str | None = None,
    model: Path = Path("model"),
    out: Path = Path("explanation.tsv"),
    top: int = 20,
    steps: int = 20,
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
            of the explained call fall without it, attribution. That call is the most probable taxon, also where it is
            not confident enough for classify to name it.
        top: Members whose change is computed: those that the log-odds depend on most.
        steps: Of the attribution's integral.
        **options: See `Using`.
    """
    from omniset.microbiomes import runs

    using = Using(**options)
    runs.explain(
        feature, _given("table", table), sequences, sample, model, out, top, steps, using.model(), using.strand
    )


def simulate(out: Path = Path("microbiome"), samples: int = 12, seed: int = 0) -> None:
    """Write a made-up microbiome to try the other commands on.

    Example: omniset microbiomes simulate --out microbiome

    Args:
        out: Folder for references.fasta, taxonomy.tsv, table.tsv and sequences.fasta (samples of two communities in
            turn), truth.tsv (their taxa) and reads.fastq.gz (one more sample).
        samples: How many.
        seed: The same seed gives the same files.
    """
    from omniset.console import say
    from omniset.microbiomes import simulate as simulated

    say(f"Written to {out}: {', '.join(simulated.write(simulated.simulate(samples, seed), out))}")


def _given(name: str, file: Path | None) -> Path:
    if file is None:
        raise ValueError(f"--{name} must be given: the file with it")
    return file


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
