"""`omniset genomes`: the same verbs on files, with their reports."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from omniset.genomes import report
from omniset.genomes import simulate as simulator
from omniset.genomes.cohort import Cohort
from omniset.genomes.completer import GenomeCompleter
from omniset.genomes.completion import Completion
from omniset.genomes.contigs import FOREIGN
from omniset.genomes.data import GenomeFile, GenomeTable, read_qualities, read_table, read_taxonomy, watched
from omniset.genomes.evaluate import DEFAULT, Evaluation
from omniset.genomes.evaluate import evaluate as run_evaluation
from omniset.genomes.evaluation_report import less_precise, of_evaluation
from omniset.genomes.explaining import Explanation
from omniset.genomes.modules import Modules, read_modules
from omniset.report import multiqc
from omniset.report.blocks import many
from omniset.runs import devices
from omniset.runs.console import noted, say, say_notes
from omniset.runs.folders import new_file, unfinished
from omniset.runs.verbs import working_folder
from omniset.tables.files import TableWriter, kind_of

TOGETHER = 64  # genomes written at a time
ESTIMATED = (
    "no file of qualities: completeness and contamination are estimated from marker families; --quality gives those of "
    "CheckM2"
)
SHOWN = ("100/0", "95/0", "90/0", "70/0", "50/0", "70/5", "50/5")  # conditions that MultiQC is given
MEANING = {
    "neighbours": "what reference genomes like it have",
    "likeliest": "what the 15 likeliest of them have",
    "components": "what principal components of its families say",
    "context": "what the set of all its families says",
    "evidence": "that it {seen}, at this completeness and contamination",
    "shift": "how often such families, not observed, are there all the same",
}


def fit(
    table: Path,
    taxonomy: Path | None,
    quality: Path | None,
    out: Path,
    format: str,
    identifiers: str,
    arguments: dict[str, Any],
    resume: bool,
) -> GenomeCompleter:
    """See `omniset.cli.genomes.fit`."""
    completer = GenomeCompleter(**arguments)
    completer.check_arguments()
    completer.check_resumed(unfinished(out), resume)
    device = devices.find(completer.device).type
    about: dict[str, Any] = {"makes": ["GenomeCompleter"], "reads": [table, taxonomy, quality], "resume": resume}
    with working_folder(out, "genomes", "fit", seed=completer.seed, device=device, **about) as folder:
        genomes = read_table(table, format=format, identifiers=identifiers, progress=completer.progress)
        known = None if taxonomy is None else read_taxonomy(taxonomy)
        own = None if quality is None else read_qualities(quality)
        say(f"{len(genomes):,} genomes, {len(genomes.families):,} families")
        completer.fit(genomes, known, own, folder=folder.path, resume=resume)
        if not folder.first:
            return completer
        folder.save(completer, {"provenance": folder.provenance})
        sizes, worst = completer.sizes_, max(completer.levels_, key=lambda level: level.ece)
        line = (
            f"on {many(sizes['validation'], 'validation genome')}, {many(sizes['validation clades'], 'clade')}: "
            f"expected calibration error over all families at most {worst.ece:.4f} (completeness "
            f"{worst.completeness:g} %, contamination {worst.contamination:g} %); evaluate says that of missing "
            "families"
        )
        notes = [f"  {note}" for note in completer.notes_]
        made = report.of_fit(folder.about(f"Model of {table.name}", completer.notes_), completer)
        folder.write(made, histories=completer.histories_, files=["the model"], lines=[line, *notes])
        return completer


def complete(
    table: Path,
    model: Path,
    quality: Path | None,
    out: Path,
    *,
    method: str | None,
    threshold: float,
    precision: float | None,
    format: str,
    identifiers: str,
    output: str,
    modules: Path | None,
    detection: str | None,
    together: bool,
    overrides: dict[str, Any],
) -> pd.DataFrame:
    """See `omniset.cli.genomes.complete`. Returns the summary, a row per genome."""
    completer = _load(model, overrides)
    reads = [table, model, quality, modules]
    with working_folder(out, "genomes", "completion", reads=reads, seed=completer.seed) as folder:
        given = None if quality is None else read_qualities(quality)
        file = GenomeFile(table, format=format, identifiers=identifiers, known=completer.families_)
        how: dict[str, Any] = {"method": method, "threshold": threshold, "precision": precision, "detection": detection}
        how["together"] = together
        completions = completer.completions(file, given, **how)
        parts = None if modules is None else Modules(read_modules(modules), completer.families_)
        names = ["calls", "probabilities", "summary", *([] if parts is None else ["modules"])]
        paths = {name: folder.path / f"{name}.{output}" for name in (*names, "contigs")}
        cohort = Cohort(completer.families_, completer.vocabulary_)
        with ExitStack() as stack:  # the tables appear together, or not at all
            writers = {name: stack.enter_context(TableWriter(paths[name])) for name in names}
            while group := list(islice(completions, TOGETHER)):
                for one in group:
                    cohort.add(one)
                _write(writers, group, cohort)
                if parts is not None:
                    writers["modules"].write(parts.table(group))
                if any(one.contigs for one in group):
                    if "contigs" not in writers:
                        writers["contigs"] = stack.enter_context(TableWriter(paths["contigs"]))
                    writers["contigs"].write(contig_rows(group))
        notes = [*([] if given is not None else [ESTIMATED]), *([] if parts is None else parts.notes())]
        rows = cohort.summary
        line = (
            f"{len(rows):,} genomes: {int(rows['added'].sum()):,} families added, {int(rows['removed'].sum()):,} "
            f"removed; {int(rows['far'].sum()):,} genomes far from the references"
        )
        about = folder.about(f"Completion of {table.name}", notes)
        made = report.of_completion(about, cohort, completer, threshold=threshold, precision=precision, modules=parts)
        folder.write(made, files=[paths[name].name for name in writers], lines=[line, *notes])
        return rows


def evaluate(
    table: Path,
    taxonomy: Path | None,
    quality: Path | None,
    out: Path,
    *,
    methods: Sequence[str] | None,
    seeds: int,
    test_fraction: float,
    precision: float,
    format: str,
    identifiers: str,
    arguments: dict[str, Any],
    resume: bool,
) -> Evaluation:
    """See `omniset.cli.genomes.evaluate`."""
    completer = GenomeCompleter(**arguments)
    completer.check_arguments()
    progress, device = completer.progress, devices.find(completer.device).type
    about: dict[str, Any] = {"reads": [table, taxonomy, quality], "resume": resume}
    with working_folder(out, "genomes", "evaluation", seed=completer.seed, device=device, **about) as folder:
        evaluation = run_evaluation(
            read_table(table, format=format, identifiers=identifiers, progress=progress),
            None if taxonomy is None else read_taxonomy(taxonomy),
            None if quality is None else read_qualities(quality),
            methods=DEFAULT if methods is None else methods,
            seeds=seeds,
            test_fraction=test_fraction,
            precision=precision,
            folder=folder.path,
            resume=resume,
            say=say if progress else lambda line: None,
            **arguments,
        )
        compared = evaluation.comparison
        compared.write_rows(folder.path / "scores.csv.gz", evaluation.columns)
        folder.write(
            of_evaluation(folder.about(f"Evaluation on {table.name}", evaluation.notes), evaluation),
            metrics=evaluation.numbers(),
            scores={c: scores for c, scores in multiqc.of_ours(compared).items() if c in SHOWN},
            files=["scores.csv.gz", "rows/"],
            lines=[*compared.lines(evaluation.decisive), *filter(None, [less_precise(evaluation)])],
        )
        return evaluation


def explain(
    genome: str,
    family: str,
    table: Path,
    model: Path,
    quality: Path | None,
    out: Path | None,
    format: str,
    identifiers: str,
    top: int,
    overrides: dict[str, Any],
) -> None:
    """See `omniset.cli.genomes.explain_call`."""
    if top < 1:
        raise ValueError(f"top must be >= 1, got {top}")
    completer = _load(model, overrides)
    if out is not None:
        kind_of(out)
        new_file(out, table)
    with noted() as notes:
        file = GenomeFile(table, format=format, identifiers=identifiers, known=completer.families_)
        one = next((g for g in watched(file, completer.progress, "reading") if g.name == genome), None)
        if one is None:
            raise ValueError(f"genome {genome!r} is not in {table}")
        given = None if quality is None else read_qualities(quality)
        why = completer.explain(GenomeTable.from_genomes([one]), genome, family, given)
        description = str(completer.vocabulary_.set_index("family")["description"][why.family])
        _print_explanation(why, description, top)
        if out is not None:
            with TableWriter(out) as writer:
                writer.write(why.families.assign(genome=genome, explained=family))
            say(f"\nWritten to {out}: {len(why.families)} families")
        say_notes(notes())


def _print_explanation(why: Explanation, description: str, top: int) -> None:
    seen = "was observed" if why.observed else "was not observed"
    named = f"{why.family} ({description})" if description else why.family
    say(f"{named} {seen} in {why.genome}; probability {why.probability:.3f}")
    say(f"\nlog-odds {why.log_odds:+.2f}, the sum of")
    for name, value in why.terms.items():
        if name == "shift" and why.observed:
            continue  # 0 by definition
        say(f"  {value:+8.2f}  {name:11} {MEANING.get(name, '').format(seen=seen)}")
    say("\nnearest references        similarity  has it")
    for row in why.references.head(5).to_dict("records"):
        say(f"  {row['genome']:24}{row['similarity']:>10.3f}  {'yes' if row['has_family'] else 'no'}")
    say(f"\nobserved families whose absence would change the log-odds most (of {len(why.families)})")
    for row in why.families.head(top).to_dict("records"):
        say(f"  {row['change']:+8.3f}  {row['family']}{' (itself)' if row['family'] == why.family else ''}")


def simulate(out: Path, **options: Any) -> None:
    """See `omniset.cli.genomes.simulate`."""
    with working_folder(out, "genomes", "simulation", reads=[options["tree"]]) as folder:
        simulated = simulator.simulate(**options)
        simulator.write(folder.path, simulated)
        say_notes(folder.warnings())
    say(
        f"Written to {out}: families.tsv ({len(simulated.genomes)} genomes x {len(simulated.families)} families), "
        f"taxonomy.tsv, mags.tsv ({len(simulated.mags)} incomplete genomes), quality_report.tsv, truth.tsv"
    )


def _write(writers: dict[str, TableWriter], group: list[Completion], cohort: Cohort) -> None:
    """The genomes that were added to the cohort last."""
    wide = pd.DataFrame(np.stack([one.probability for one in group]).round(5), columns=cohort.families)
    wide.insert(0, "genome", [one.name for one in group])
    writers["probabilities"].write(wide)
    writers["calls"].write(pd.concat([long_rows(one, cohort.families) for one in group], ignore_index=True))
    writers["summary"].write(pd.DataFrame(cohort.rows[-len(group) :]))


def long_rows(one: Completion, families: Sequence[str]) -> pd.DataFrame:
    """The rows of a genome in the long table: families that were observed or are called present, then unknown ones."""
    which = np.flatnonzero(one.observed | one.call)
    flag = np.where(one.added, "added", np.where(one.removed, "removed", "kept"))
    known = pd.DataFrame(
        {
            "genome": one.name,
            "family": [families[i] for i in which.tolist()],
            "observed": one.counts[which],
            "probability": np.round(one.probability[which], 5),
            "call": one.call[which].astype(np.int64),
            "flag": flag[which],
            "log_odds": np.round(one.log_odds[which], 4),
        }
    )
    if not one.unknown:
        return known
    unknown = pd.DataFrame(one.unknown.items(), columns=["family", "observed"])
    unknown = unknown.assign(genome=one.name, probability=np.nan, call=1, flag="unknown", log_odds=np.nan)[[*known]]
    return unknown if known.empty else pd.concat([known, unknown], ignore_index=True)


def contig_rows(group: Sequence[Completion]) -> pd.DataFrame:
    """A row per contig: its genome, the probability that it is foreign, and whether it was taken out."""
    rows = [(one.name, contig, share) for one in group for contig, share in one.contigs.items()]
    table = pd.DataFrame(rows, columns=["genome", "contig", "foreign"])
    return table.assign(foreign=table["foreign"].round(5), taken_out=(table["foreign"] >= FOREIGN).astype(np.int64))


def _load(folder: Path, overrides: dict[str, Any]) -> GenomeCompleter:
    completer = GenomeCompleter.load(folder)
    completer.set_params(**{k: v for k, v in overrides.items() if v is not None})
    completer.check_arguments()
    return completer
