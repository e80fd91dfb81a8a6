"""`omniset genomes`: fit, complete, evaluate, explain, simulate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from omniset.cli.options import Saving, given, split, takes
from omniset.cli.parts import in_parts
from omniset.genomes.options import CompleterOptions, Method
from omniset.options import Computing


@takes(CompleterOptions)
@takes(Saving, "replace")
def fit(
    table: Path,
    taxonomy: Path | None = None,
    quality: Path | None = None,
    out: Path = Path("model"),
    resume: bool = False,
    format: str = "auto",
    identifiers: str = "auto",
    **options: Any,
) -> None:
    """Learn from complete genomes which gene families go together.

    Example: omniset genomes fit families.tsv --taxonomy taxonomy.tsv --out model

    Args:
        table: Gene families of complete genomes: a table genomes x families or families x genomes, a long table
            (genome, family, count), or what eggNOG-mapper, COGclassifier, KofamScan, DRAM, anvi'o, PICRUSt2, Prokka,
            Bakta, InterProScan, HMMER or a pangenome tool wrote; a file, compressed or not, or a folder of files.
        taxonomy: Taxonomy of the genomes, such as GTDB's: relatives are never split between training and validation.
            null: clusters of similar genomes take its place.
        quality: How complete these genomes are themselves, in percent, such as GTDB's metadata or CheckM2's report:
            what an incomplete one lacks may be there all the same. null: what they lack counts as absent.
        out: Folder for the model and its report.
        resume: Go on with an interrupted run in the same folder.
        format: Of the table: genomes-by-families, families-by-genomes, long, rtab, picrust2, eggnog, cogclassifier,
            kofamscan, ko-mapper, dram, anvio-matrix, anvio-functions, prokka, bakta, interproscan or hmmscan. "auto":
            recognised by its columns.
        identifiers: Which families, where the table has several kinds: COG, KO, Pfam, EC, CAZy, ... "auto": the main
            one.
    """
    from omniset.genomes import runs
    from omniset.runs.processes import one_voice

    with one_voice(1, 1):
        runs.fit(table, taxonomy, quality, out, format, identifiers, given(CompleterOptions, options), resume)


def _parts(arguments: dict[str, Any]) -> list[Path]:
    from omniset.genomes.data import GenomeFile
    from omniset.runs import parts

    if arguments["together"]:
        raise ValueError("together=True takes all genomes at once, scheduler takes them in parts: give one of them")
    table = Path(arguments["table"])
    if not table.is_dir():
        return parts.find(table, (), "table")
    return GenomeFile(table, format=arguments["format"], identifiers=arguments["identifiers"]).paths


def _summary(arguments: dict[str, Any]) -> str:
    return f"summary.{arguments['output']}"


def _one_summary(arguments: dict[str, Any]) -> Any:
    def join(made: Mapping[str, Path], out: Path) -> list[str]:
        from omniset.tables import joined

        name = _summary(arguments)
        joined.require_each_once(made, "genome", name)
        rows = joined.stack(made, name, out / name)
        added, removed, far = (int(rows[column].sum()) for column in ("added", "removed", "far"))
        return [
            f"{len(rows):,} genomes: {added:,} families added, {removed:,} removed; {far:,} genomes far from the "
            f"references. Their summaries together: {name}"
        ]

    return join


@in_parts("table", _parts, unsaid=r"quality: \d+ of its", join=_one_summary, joined=_summary)
@takes(CompleterOptions, "far", "batch_size", "device", "progress", as_at_fit=True)
@takes(Saving)
def complete(
    table: Path,
    model: Path = Path("model"),
    quality: Path | None = None,
    out: Path = Path("completed"),
    precision: float | None = None,
    threshold: float = 0.5,
    method: Method | None = None,
    modules: Path | None = None,
    detection: str | None = None,
    together: bool = False,
    format: str = "auto",
    identifiers: str = "auto",
    output: Literal["tsv", "tsv.gz", "csv", "csv.gz", "parquet"] = "tsv",
    **options: Any,
) -> None:
    """Say which gene families incomplete genomes truly have: missed ones, contamination, and how sure that is.

    Example: omniset genomes complete mags.tsv --model model --quality quality_report.tsv --out completed

    Args:
        table: Gene families of the genomes, in any format that fit reads.
        model: Folder that fit wrote.
        quality: Completeness and contamination in percent, such as CheckM2's quality_report.tsv. null: estimated from
            marker families.
        out: Folder for calls (long), probabilities (wide), summary (a row per genome) and the report.
        precision: Such as 0.95: add or remove a family only where at least this share of such changes was right on
            clades kept back in training. null: by threshold.
        threshold: Call families with at least this probability present.
        method: Another one than at fit: "knn", "prevalence-bayes", "auto", ... null: that of the model.
        modules: Definitions of modules in KEGG's notation, or a table of the families of pathways: how probable it is
            that each is complete. null: none.
        detection: How often families are recovered, as a multiple of what completeness says: a table with columns
            family and detection, from 0 to 1; or "accessory": rare ones less often than core ones. null: all alike.
        together: Take each genome for a reference of the others too, with what it probably has: several of one species,
            or of a lineage without references. All are held in memory. Novelty is still that to the model's references.
        format: Of the table, as for fit. "auto": recognised by its columns.
        identifiers: Which families, where the table has several kinds. "auto": those that the model knows.
        output: Kind of files that are written.
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
        modules=modules,
        detection=detection,
        together=together,
        overrides=given(CompleterOptions, options),
    )


@takes(CompleterOptions, but=["architecture", "method"])
@takes(Saving, "replace")
def evaluate(
    table: Path,
    taxonomy: Path | None = None,
    quality: Path | None = None,
    out: Path = Path("evaluation"),
    methods: str | None = None,
    seeds: int = 3,
    resume: bool = False,
    test_fraction: float = 0.2,
    precision: float = 0.95,
    format: str = "auto",
    identifiers: str = "auto",
    **options: Any,
) -> None:
    """Compare the model with all baselines on clades that none of them has seen.

    Complete genomes are split by clade, and those of the test degraded in known ways.

    Example: omniset genomes evaluate families.tsv --taxonomy taxonomy.tsv --out evaluation

    Args:
        table: Gene families of complete genomes, in any format that fit reads.
        taxonomy: Taxonomy of the genomes. null: clusters of similar genomes take its place.
        quality: How complete these genomes are themselves, as for fit: those of at least 99 % are also judged alone,
            and tell whether probabilities and sizes are right. null: not known.
        out: Folder for the report, the metrics and the rows of every seed.
        methods: Beside the model and the untrained baselines: pca, autoencoder, autoencoder-evidence, mean, seed,
            separated by commas. null: all but seed.
        seeds: How many splits, each trained on anew.
        resume: Keep the seeds that are done in the same folder.
        test_fraction: Share of the genomes kept for the test, by whole clades.
        precision: At which changes to what was observed are judged.
        format: Of the table, as for fit. "auto": recognised by its columns.
        identifiers: Which families, where the table has several kinds.
    """
    from omniset.genomes import runs

    runs.evaluate(
        table,
        taxonomy,
        quality,
        out,
        methods=split(methods),
        seeds=seeds,
        test_fraction=test_fraction,
        precision=precision,
        format=format,
        identifiers=identifiers,
        arguments=given(CompleterOptions, options),
        resume=resume,
    )


@takes(Computing, "progress")
@takes(Saving)
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
    **options: Any,
) -> None:
    """Say why a family is called present, or absent, in a genome.

    Example: omniset genomes explain MAG_7 PF00119 mags.tsv --model model --quality quality_report.tsv

    Args:
        genome: Its name in the table.
        family: Its identifier.
        table: With the genome, as for complete.
        model: Folder that fit wrote.
        quality: Completeness and contamination in percent, as for complete.
        out: Table of all observed families: by how much the log-odds would fall without each, and its attribution.
            Ends in .parquet, .csv or .tsv; the last two may be compressed (.gz, .bz2, .xz).
        top: Families to print.
        format: Of the table, as for fit. "auto": recognised by its columns.
        identifiers: Which families, where the table has several kinds.
    """
    from omniset.genomes import runs

    runs.explain(genome, family, table, model, quality, out, format, identifiers, top, given(Computing, options))


@takes(Saving)
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
