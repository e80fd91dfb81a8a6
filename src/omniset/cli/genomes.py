"""`omniset genomes`: fit, complete, evaluate, explain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from omniset.cli.options import Saving, chosen, given, takes
from omniset.cli.parts import find, in_parts
from omniset.genomes.options import CompleterOptions
from omniset.options import Computing

AT_ONCE = 64  # genomes written at a time
ESTIMATED = (
    "no file of qualities: completeness and contamination are estimated from marker families; --quality gives those of "
    "CheckM2"
)
EXPLAINING = 15  # families that are printed
SHOWN = ("100/0", "95/0", "90/0", "70/0", "50/0", "70/5", "50/5")  # conditions that MultiQC is given


@takes(CompleterOptions)
@takes(Saving)
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
        format: Of the table: genomes-by-families, families-by-genomes, long, eggnog, cogclassifier,
            kofamscan, ko-mapper, dram, anvio-matrix, anvio-functions, prokka, bakta, dbcan, interproscan or hmmscan.
            "auto": recognised by its columns.
        identifiers: Which families, where the table has several kinds: COG, KO, Pfam, EC, CAZy, ... "auto": the main
            one.
    """
    from omniset.genomes import report
    from omniset.genomes.completer import GenomeCompleter
    from omniset.genomes.data import read_table
    from omniset.genomes.metadata import read_qualities, read_taxonomy
    from omniset.report.run import working_folder
    from omniset.runs import devices
    from omniset.runs.console import say
    from omniset.runs.folders import unfinished
    from omniset.runs.processes import one_voice

    completer = GenomeCompleter(**given(CompleterOptions, options))
    completer.check_arguments()
    completer.check_resumed(unfinished(out), resume)
    device = devices.find(completer.device).type
    about: dict[str, Any] = {"makes": ["GenomeCompleter"], "reads": [table, taxonomy, quality], "resume": resume}
    with one_voice(1, 1), working_folder(out, "genomes", "fit", seed=completer.seed, device=device, **about) as folder:
        genomes = read_table(table, format=format, identifiers=identifiers, progress=completer.progress)
        known = None if taxonomy is None else read_taxonomy(taxonomy)
        own = None if quality is None else read_qualities(quality)
        say(f"{len(genomes):,} genomes, {len(genomes.families):,} families")
        completer.fit(genomes, known, own, folder=folder.path, resume=resume)
        if not folder.first:
            return
        folder.save(completer, {"provenance": folder.provenance})
        notes = [f"  {note}" for note in completer.notes_]
        made = report.of_fit(folder.about(f"Model of {table.name}", completer.notes_), completer)
        folder.write(made, histories=completer.histories_, files=["the model"], lines=notes)


def _fitted(model: Path, options: Mapping[str, Any]) -> Any:
    from omniset.genomes.completer import GenomeCompleter

    completer = GenomeCompleter.load(model, **options)
    completer.check_arguments()
    return completer


def _parts(arguments: dict[str, Any]) -> list[Path]:
    from omniset.genomes.data import GenomeFile

    if arguments["together"]:
        raise ValueError("together=True takes all genomes at once, scheduler takes them in parts: give one of them")
    table = Path(arguments["table"])
    if not table.is_dir():
        return find(table, (), "table")
    return GenomeFile(table, format=arguments["format"], identifiers=arguments["identifiers"]).paths


def _one_summary(made: Mapping[str, Path], out: Path) -> list[str]:
    from omniset.cli import joined

    name = next(next(iter(made.values())).glob("summary.*")).name
    joined.require_each_once(made, "genome", name)
    rows = joined.stack(made, name, out / name)
    return [f"{_counted(rows)}. Their summaries together: {name}"]


def _counted(summary: Any) -> str:
    added, removed, far = (int(summary[column].sum()) for column in ("added", "removed", "far"))
    genomes, foreign = f"{len(summary):,} genomes: {added:,} families added", f"{summary['foreign'].sum():,.0f}"
    return f"{genomes}, {removed:,} removed of about {foreign} that are foreign; {far:,} far from the references"


@in_parts("table", _parts, join=_one_summary, joined=("summary.",))
@takes(Computing, "device", "progress")
@takes(Saving)
def complete(
    table: Path,
    model: Path = Path("model"),
    quality: Path | None = None,
    out: Path = Path("completed"),
    precision: float | None = None,
    threshold: float = 0.5,
    modules: Path | None = None,
    detection: Literal["accessory"] | None = None,
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
        modules: Definitions of modules in KEGG's notation, or a table of the families of pathways: how probable it is
            that each is complete. null: none.
        detection: "accessory": rare families were recovered less often than completeness says, as from short reads.
            null: all alike.
        together: Take each genome for a reference of the others too, with what it probably has: several of one species,
            or of a lineage without references. All are held in memory. Novelty is still that to the model's references.
        format: Of the table, as for fit. "auto": recognised by its columns.
        identifiers: Which families, where the table has several kinds. "auto": those that the model knows.
        output: Kind of files that are written.
    """
    from contextlib import ExitStack
    from itertools import islice

    import pandas as pd

    from omniset.genomes import report
    from omniset.genomes.completion import Cohort, long_rows, wide_rows
    from omniset.genomes.data import GenomeFile
    from omniset.genomes.kegg_modules import Modules, read_modules
    from omniset.genomes.metadata import read_qualities
    from omniset.report.run import working_folder
    from omniset.tables.files import TableWriter

    completer = _fitted(model, chosen(Computing, options))
    reads = [table, model, quality, modules]
    with working_folder(out, "genomes", "completion", reads=reads, seed=completer.seed) as folder:
        stated = None if quality is None else read_qualities(quality)
        file = GenomeFile(table, format=format, identifiers=identifiers, known=completer.families_)
        how: dict[str, Any] = {"threshold": threshold, "precision": precision, "detection": detection}
        completions = completer.completions(file, stated, **how, together=together)
        pathways = None if modules is None else Modules(read_modules(modules), completer.families_, completer.asked_)
        cohort = Cohort(completer.families_, completer.vocabulary_)
        with ExitStack() as stack:  # the tables appear together, or not at all
            writers: dict[str, TableWriter] = {}
            while group := list(islice(completions, AT_ONCE)):
                for one in group:
                    cohort.add(one)
                rows = {
                    "calls": long_rows(group, cohort.families),
                    "probabilities": wide_rows(group, cohort.families),
                    "summary": pd.DataFrame(cohort.rows[-len(group) :]),
                    **({} if pathways is None else {"modules": pathways.table(group)}),
                }
                for name, frame in rows.items():
                    if name not in writers:
                        writers[name] = stack.enter_context(TableWriter(folder.path / f"{name}.{output}"))
                    writers[name].write(frame)
        notes = [*([] if stated is not None else [ESTIMATED]), *([] if pathways is None else pathways.notes())]
        about = folder.about(f"Completion of {table.name}", notes)
        how = {"threshold": threshold, "precision": precision, "modules": pathways}
        made = report.of_completion(about, cohort, **how)
        folder.write(made, files=[f"{name}.{output}" for name in writers], lines=notes)


@takes(CompleterOptions, "epochs", "clade", "seed", "device", "progress", as_at_fit=True)
@takes(Saving)
def evaluate(
    table: Path,
    taxonomy: Path | None = None,
    quality: Path | None = None,
    model: Path | None = None,
    out: Path = Path("evaluation"),
    seeds: int = 3,
    resume: bool = False,
    precision: float = 0.95,
    format: str = "auto",
    identifiers: str = "auto",
    **options: Any,
) -> None:
    """Compare our method with simple ones on clades that none of them has seen.

    Complete genomes are split by clade, all methods learn anew, and the genomes of the test are degraded in known ways.

    Example: omniset genomes evaluate families.tsv --taxonomy taxonomy.tsv --model model --out evaluation

    Args:
        table: Gene families of complete genomes, in any format that fit reads.
        taxonomy: Taxonomy of the genomes. null: clusters of similar genomes take its place.
        quality: How complete these genomes are themselves, as for fit: those of at least 99 % are also judged alone,
            and tell whether probabilities and sizes are right. null: not known.
        model: Folder that fit wrote: ours is fitted with its options. null: with the defaults of fit.
        out: Folder for the report, the metrics and the rows of every seed.
        seeds: How many splits, each trained on anew.
        resume: Keep the seeds that are done in the same folder.
        precision: At which changes to what was observed are judged.
        format: Of the table, as for fit. "auto": recognised by its columns.
        identifiers: Which families, where the table has several kinds.
    """
    from omniset.genomes import report
    from omniset.genomes.completer import GenomeCompleter
    from omniset.genomes.data import read_table
    from omniset.genomes.evaluate import evaluate as run
    from omniset.genomes.metadata import read_qualities, read_taxonomy
    from omniset.report import multiqc
    from omniset.report.run import working_folder
    from omniset.runs import devices
    from omniset.runs.console import say

    asked = chosen(CompleterOptions, options)
    completer = GenomeCompleter(**asked) if model is None else _fitted(model, asked)
    completer.check_arguments()
    device = devices.find(completer.device).type
    about: dict[str, Any] = {"reads": [table, taxonomy, quality, model], "resume": resume}
    with working_folder(out, "genomes", "evaluation", seed=completer.seed, device=device, **about) as folder:
        evaluation = run(
            read_table(table, format=format, identifiers=identifiers, progress=completer.progress),
            None if taxonomy is None else read_taxonomy(taxonomy),
            None if quality is None else read_qualities(quality),
            seeds=seeds,
            precision=precision,
            folder=folder.path,
            resume=resume,
            say=say if completer.progress else lambda line: None,
            **completer.get_params(),
        )
        compared = evaluation.comparison
        compared.write_rows(folder.path / "scores.csv.gz", evaluation.columns)
        folder.write(
            report.of_evaluation(folder.about(f"Evaluation on {table.name}", evaluation.notes), evaluation),
            metrics=evaluation.numbers(),
            scores={c: scores for c, scores in multiqc.of_ours(compared).items() if c in SHOWN},
            files=["scores.csv.gz", "rows/"],
            lines=[*compared.lines(evaluation.decisive), *filter(None, [evaluation.imprecise()])],
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
        out: Table of all observed families: by how much the log-odds would fall without each. Ends in
            .parquet, .csv or .tsv; the last two may be compressed (.gz, .bz2, .xz).
        format: Of the table, as for fit. "auto": recognised by its columns.
        identifiers: Which families, where the table has several kinds.
    """
    from omniset.genomes.data import GenomeFile, GenomeTable, watched
    from omniset.genomes.metadata import read_qualities
    from omniset.runs.console import noted, say, say_notes
    from omniset.runs.folders import new_file
    from omniset.tables.files import TableWriter, kind_of

    completer = _fitted(model, chosen(Computing, options))
    if out is not None:
        kind_of(out)
        new_file(out)
    with noted() as notes:
        file = GenomeFile(table, format=format, identifiers=identifiers, known=completer.families_)
        one = next((g for g in watched(file, completer.progress, "reading") if g.name == genome), None)
        if one is None:
            raise ValueError(f"genome {genome!r} is not in {table}")
        stated = None if quality is None else read_qualities(quality)
        why = completer.explain(GenomeTable.from_genomes([one]), genome, family, stated)
        description = str(completer.vocabulary_.set_index("family")["description"][why.family])
        say("\n".join(why.lines(description, EXPLAINING)))
        if out is not None:
            with TableWriter(out) as writer:
                writer.write(why.families.assign(genome=genome, explained=family))
            say(f"\nWritten to {out}: {len(why.families)} families")
        say_notes(notes())
