"""`omniset genomes`: fit, complete, evaluate, explain, simulate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from omniset.cli.sets import Device, _split

Method = Literal[
    "model", "auto", "as-is", "prevalence", "prevalence-bayes", "knn", "pca", "autoencoder", "autoencoder-evidence"
]


def fit(
    table: Path,
    taxonomy: Path | None = None,
    out: Path = Path("model"),
    format: str = "auto",
    identifiers: str = "auto",
    architecture: Literal["evidence", "seed"] = "evidence",
    method: Method = "model",
    encoder: str | None = None,
    dim: int = 64,
    depth: int = 2,
    num_heads: int = 4,
    num_inducing: int = 16,
    encoder_options: dict[str, Any] | None = None,
    epochs: int | None = None,
    batch_size: int = 16,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-2,
    patience: int | None = 3,
    validation_fraction: float = 0.1,
    clade: Literal["domain", "phylum", "class", "order", "family", "genus", "species"] = "family",
    completeness: tuple[float, float] = (30.0, 100.0),
    contamination: tuple[float, float] = (0.0, 12.0),
    min_genomes: int = 1,
    max_references: int = 4000,
    seed: int = 0,
    device: Device = "auto",
    resume: bool = False,
    progress: bool = True,
) -> None:
    """Learn from complete genomes which gene families go together.

    Example: omniset genomes fit families.tsv --taxonomy taxonomy.tsv --out model

    Args:
        table: Gene families of complete genomes: a table genomes x families or families x genomes, a long table
            (genome, family, count), or what eggNOG-mapper, COGclassifier, KofamScan, DRAM, anvi'o, PICRUSt2 or a
            pangenome tool wrote; a file, compressed or not, or a folder of files.
        taxonomy: Taxonomy of the genomes, such as GTDB's: relatives are never split between training and validation.
            null: clusters of similar genomes take its place.
        out: Folder for the model and its report.
        format: Of the table: genomes-by-families, families-by-genomes, long, rtab, picrust2, eggnog, cogclassifier,
            kofamscan, ko-mapper, dram, anvio-matrix or anvio-functions. "auto": told by its columns.
        identifiers: Which families, where the table has several kinds: COG, KO, Pfam, EC, CAZy, ... "auto": the main
            one.
        architecture: "evidence": a set transformer and reference genomes, plus what was observed. "seed": a set
            transformer alone, which cannot copy its input.
        method: What completes: the model, a baseline, or "auto", which takes what is best at a genome's quality.
        encoder: Kind of set encoder: ust, set-transformer-isab, set-transformer-sab or deep-sets. null: ust, or
            set-transformer-sab for "seed".
        dim: Width of the model: more learns more, and slower.
        depth: Layers of the model.
        num_heads: Attention heads; must divide dim.
        num_inducing: Inducing points, through which families see each other.
        encoder_options: Further settings of the encoder, such as '{"dropout": 0.2}'.
        epochs: How often, at most, each genome is learned from, each time with other noise. null: 6, or for few
            genomes more.
        batch_size: Genomes per step.
        learning_rate: Largest step size.
        weight_decay: Pull of the weights towards zero.
        patience: Stop after so many epochs without progress on the genomes kept back. null: never.
        validation_fraction: Share of the genomes kept back, by whole clades, to watch the training and to calibrate.
        clade: Rank of the clades.
        completeness: Lowest and highest completeness that is simulated, in percent, such as "[30,100]".
        contamination: Lowest and highest contamination that is simulated, in percent, such as "[0,12]".
        min_genomes: Families of fewer genomes are not learned.
        max_references: Genomes kept in the model to compare with, at most.
        seed: The same seed gives the same numbers.
        device: Where to compute.
        resume: Go on with an interrupted run in the same folder.
        progress: Show progress.
    """
    from omniset.genomes import runs

    given = dict(locals())
    others = ("table", "taxonomy", "out", "format", "identifiers", "resume", "runs")
    try:
        runs.fit(table, taxonomy, out, format, identifiers, {k: v for k, v in given.items() if k not in others}, resume)
    except KeyboardInterrupt:
        if (out / "checkpoints").is_dir():
            print(f"\nWhole epochs, if any, are kept in {out}: go on with --resume true", file=sys.stderr)
        raise


def complete(
    table: Path,
    model: Path = Path("model"),
    quality: Path | None = None,
    out: Path = Path("completed"),
    method: Method | None = None,
    threshold: float = 0.5,
    precision: float | None = None,
    format: str = "auto",
    identifiers: str = "auto",
    output: Literal["tsv", "tsv.gz", "csv", "csv.gz", "parquet"] = "tsv",
    batch_size: int | None = None,
    device: Device = "auto",
    progress: bool = True,
) -> None:
    """Say which gene families incomplete genomes truly have: missed ones, contamination, and how sure that is.

    Example: omniset genomes complete mags.tsv --model model --quality quality_report.tsv --out completed

    Args:
        table: Gene families of the genomes, in any format that fit reads.
        model: Folder that fit wrote.
        quality: Completeness and contamination in percent, such as CheckM2's quality_report.tsv. null: estimated from
            marker families.
        out: Folder for calls (long), probabilities (wide), summary (a row per genome) and the report.
        method: Another one than at fit: "knn", "prevalence-bayes", "auto", ... null: that of the model.
        threshold: Call families with at least this probability present.
        precision: Instead, such as 0.95: add or remove a family only where at least this share of such changes was
            right on clades kept back in training.
        format: Of the table, as for fit. "auto": told by its columns.
        identifiers: Which families, where the table has several kinds. "auto": those that the model knows.
        output: Kind of files that are written.
        batch_size: Genomes computed on at a time. null: as at fit.
        device: Where to compute.
        progress: Show progress.
    """
    from omniset.genomes import runs

    runs.complete(
        table,
        model,
        quality,
        out,
        method=method,
        threshold=threshold,
        precision=precision,
        format=format,
        identifiers=identifiers,
        output=output,
        overrides={"batch_size": batch_size, "device": device, "progress": progress},
    )


def evaluate(
    table: Path,
    taxonomy: Path | None = None,
    out: Path = Path("evaluation"),
    methods: str | None = None,
    seeds: int = 3,
    test_fraction: float = 0.2,
    precision: float = 0.95,
    format: str = "auto",
    identifiers: str = "auto",
    encoder: str | None = None,
    dim: int = 64,
    depth: int = 2,
    num_heads: int = 4,
    num_inducing: int = 16,
    encoder_options: dict[str, Any] | None = None,
    epochs: int | None = None,
    batch_size: int = 16,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-2,
    patience: int | None = 3,
    validation_fraction: float = 0.1,
    clade: Literal["domain", "phylum", "class", "order", "family", "genus", "species"] = "family",
    completeness: tuple[float, float] = (30.0, 100.0),
    contamination: tuple[float, float] = (0.0, 12.0),
    min_genomes: int = 1,
    max_references: int = 4000,
    seed: int = 0,
    device: Device = "auto",
    resume: bool = False,
    progress: bool = True,
) -> None:
    """Compare the model with all baselines on clades that none of them has seen.

    Complete genomes are split by clade, and those of the test degraded in known ways.

    Example: omniset genomes evaluate families.tsv --taxonomy taxonomy.tsv --out evaluation

    Args:
        table: As for fit.
        taxonomy: As for fit.
        out: Folder for the report, the metrics and the rows of every seed.
        methods: Beside the model and the untrained baselines: seed, pca, autoencoder, autoencoder-evidence, separated
            by commas. null: all.
        seeds: How many splits, each trained on anew.
        test_fraction: Share of the genomes kept for the test, by whole clades.
        precision: At which changes to what was observed are judged.
        format: Of the table, as for fit. "auto": told by its columns.
        identifiers: Which families, where the table has several kinds.
        encoder: As for fit.
        dim: As for fit.
        depth: As for fit.
        num_heads: As for fit.
        num_inducing: As for fit.
        encoder_options: As for fit.
        epochs: As for fit.
        batch_size: As for fit.
        learning_rate: As for fit.
        weight_decay: As for fit.
        patience: As for fit.
        validation_fraction: As for fit.
        clade: As for fit.
        completeness: As for fit.
        contamination: As for fit.
        min_genomes: As for fit.
        max_references: As for fit.
        seed: The first seed.
        device: Where to compute.
        resume: Keep the seeds that are done in the same folder.
        progress: Show progress.
    """
    from omniset.genomes import runs

    given = dict(locals())
    others = (
        *("table", "taxonomy", "out", "methods", "seeds", "test_fraction", "precision", "format", "identifiers"),
        *("resume", "runs"),
    )
    runs.evaluate(
        table,
        taxonomy,
        out,
        methods=_split(methods),
        seeds=seeds,
        test_fraction=test_fraction,
        precision=precision,
        format=format,
        identifiers=identifiers,
        arguments={k: v for k, v in given.items() if k not in others},
        resume=resume,
    )


def explain_call(
    genome: str,
    family: str,
    table: Path,
    model: Path = Path("model"),
    quality: Path | None = None,
    out: Path | None = None,
    top: int = 15,
    format: str = "auto",
    identifiers: str = "auto",
    progress: bool = True,
) -> None:
    """Say why a family is called present, or absent, in a genome.

    Example: omniset genomes explain MAG_7 PF00119 mags.tsv --model model --quality quality_report.tsv

    Args:
        genome: Its name in the table.
        family: Its identifier.
        table: With the genome, as for complete.
        model: Folder that fit wrote.
        quality: As for complete.
        out: Table of all observed families: by how much the log-odds would fall without each, and its attribution.
            Ends in .parquet, .csv or .tsv; the last two may be compressed (.gz, .bz2, .xz).
        top: Families to print.
        format: Of the table, as for fit. "auto": told by its columns.
        identifiers: Which families, where the table has several kinds.
        progress: Show progress.
    """
    from omniset.genomes import runs

    runs.explain(genome, family, table, model, quality, out, format, identifiers, top, {"progress": progress})


def simulate(
    out: Path = Path("simulated"),
    genomes: int = 400,
    families: int = 1000,
    mags: int = 100,
    completeness: tuple[float, float] = (50.0, 95.0),
    contamination: tuple[float, float] = (0.0, 10.0),
    tree: Path | None = None,
    seed: int = 0,
) -> None:
    """Make tables to try the others on: gene content that evolved by gain and loss along a tree.

    Example: omniset genomes simulate --out simulated

    Args:
        out: Folder for families.tsv (complete genomes), taxonomy.tsv, mags.tsv (incomplete and contaminated genomes),
            quality_report.tsv (their estimated quality) and truth.tsv (their complete content).
        genomes: Complete genomes.
        families: Gene families.
        mags: Incomplete genomes.
        completeness: Lowest and highest, in percent, such as "[50,95]".
        contamination: Lowest and highest, in percent, such as "[0,10]".
        tree: A Newick file with at least as many leaves. null: one is drawn.
        seed: The same seed gives the same tables.
    """
    from omniset.genomes import runs

    runs.simulate(
        out,
        genomes=genomes,
        families=families,
        mags=mags,
        completeness=completeness,
        contamination=contamination,
        seed=seed,
        tree=tree,
    )
