"""`omniset genomes`: the same verbs on files, with their reports."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from omniset.console import noted, own_command, refuse_own_input, run_folder, say, say_notes
from omniset.files import provenance, write_json
from omniset.genomes import report
from omniset.genomes import simulate as simulator
from omniset.genomes.completer import Completion, GenomeCompleter
from omniset.genomes.data import Genome, GenomeFile, GenomeTable, read_qualities, read_taxonomy
from omniset.genomes.evaluate import ALL, MINE, Evaluation
from omniset.genomes.evaluate import evaluate as run_evaluation
from omniset.genomes.metadata import rows_by_name
from omniset.progress import Progress
from omniset.report import write as write_report
from omniset.tables.files import TableWriter, kind_of

TOGETHER = 64  # genomes written at a time
ENDINGS = ("tsv", "tsv.gz", "csv", "csv.gz", "parquet")


def fit(
    table: Path,
    taxonomy: Path | None,
    out: Path,
    format: str,
    identifiers: str,
    arguments: dict[str, Any],
    resume: bool,
) -> GenomeCompleter:
    """See `omniset.cli.genomes.fit`."""
    with run_folder(out), noted() as notes:
        completer = GenomeCompleter(**arguments)
        completer.check_arguments()
        found = _read(GenomeFile(table, format=format, identifiers=identifiers), completer.progress)
        known = None if taxonomy is None else read_taxonomy(taxonomy)
        if (out / "config.json").exists() and not resume:
            say(f"{out} holds a model already: it is replaced when this one is done")
        say(f"{len(found):,} genomes, {len(found.families):,} families")
        completer.fit(found, known, folder=out, resume=resume)
        about = provenance(completer.seed)
        page, numbers = report.of_fit(
            completer, title=f"Model of {table.name}", command=own_command(), notes=notes(), provenance=about
        )
        completer.save(out, {"provenance": about})
        write_report(out, page, numbers)
        worst = max(completer.levels_, key=lambda level: level.ece)
        say(
            f"on {completer.sizes_['validation']} validation genomes, {completer.sizes_['validation clades']} clades: "
            f"expected calibration error at most {worst.ece:.4f} (completeness {worst.completeness:g} %, "
            f"contamination {worst.contamination:g} %)"
        )
        say_notes(notes())
        say(f"Written to {out}: the model, report.html, report.json")
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
    overrides: dict[str, Any],
) -> pd.DataFrame:
    """See `omniset.cli.genomes.complete`. Returns the summary, a row per genome."""
    completer = _load(model, overrides)
    if out.is_dir() and (out / "config.json").exists():
        raise ValueError(f"out={out} holds a model, whose report would be replaced: choose another folder")
    with run_folder(out), noted() as notes:
        given = None if quality is None else read_qualities(quality)
        file = GenomeFile(table, format=format, identifiers=identifiers, known=completer.families_)
        cohort = report.Cohort(completer.families_, completer.vocabulary_)
        completions = completer.completions(
            _watched(file, completer.progress, "completing"),
            given,
            method=method,
            threshold=threshold,
            precision=precision,
        )
        paths = {name: out / f"{name}.{output}" for name in ("calls", "probabilities", "summary")}
        for path in paths.values():
            refuse_own_input(path, table)
        stale = [out / f"{name}.{end}" for name in paths for end in ENDINGS if end != output]
        with _outputs(paths, completer.families_) as write:
            for one in completions:
                cohort.add(one)
                write(one)
            _warn_of_names(cohort.summary, given, quality)  # or fails, and nothing is written
        for path in stale:  # of an earlier run
            path.unlink(missing_ok=True)
        for message in file.warnings:
            warnings.warn(message, stacklevel=2)
        _warn_of_unknown(cohort.summary, len(completer.families_))
        page, numbers = report.of_completion(
            cohort,
            completer,
            title=f"Completion of {table.name}",
            command=own_command(),
            notes=notes(),
            provenance=provenance(completer.seed),
            threshold=threshold,
            precision=precision,
        )
        write_report(out, page, numbers)
        rows = cohort.summary
        say(
            f"{len(rows):,} genomes: {int(rows['added'].sum()):,} families added, {int(rows['removed'].sum()):,} "
            f"removed; {int(rows['far'].sum()):,} genomes far from the references"
        )
        say_notes(notes())
        say(f"Written to {out}: calls.{output}, probabilities.{output}, summary.{output}, report.html, report.json")
        return rows


def evaluate(
    table: Path,
    taxonomy: Path | None,
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
    if out.is_dir() and (out / "config.json").exists():
        raise ValueError(f"out={out} holds a model, whose report would be replaced: choose another folder")
    with run_folder(out), noted() as notes:
        GenomeCompleter(**arguments).check_arguments()
        progress = arguments["progress"]
        found = _read(GenomeFile(table, format=format, identifiers=identifiers), progress)
        evaluation = run_evaluation(
            found,
            None if taxonomy is None else read_taxonomy(taxonomy),
            methods=ALL if methods is None else methods,
            seeds=seeds,
            test_fraction=test_fraction,
            precision=precision,
            folder=out,
            resume=resume,
            say=say if progress else lambda line: None,
            **arguments,
        )
        about = provenance(arguments["seed"])
        page, numbers = report.of_evaluation(
            evaluation, title=f"Evaluation on {table.name}", command=own_command(), notes=notes(), provenance=about
        )
        write_json(out / "metrics.json", numbers)
        write_report(out, page, numbers)
        _print_evaluation(evaluation)
        say_notes(notes())
        say(f"\nWritten to {out}: metrics.json, report.html, report.json, seeds/")
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
        refuse_own_input(out, table)
    with noted() as notes:
        file = GenomeFile(table, format=format, identifiers=identifiers, known=completer.families_)
        one = next((g for g in _watched(file, completer.progress, "reading") if g.name == genome), None)
        if one is None:
            raise ValueError(f"genome {genome!r} is not in {table}")
        found = completer.explain(
            GenomeTable.from_genomes([one]), genome, family, None if quality is None else read_qualities(quality)
        )
        seen = "was observed" if found.observed else "was not observed"
        said = str(completer.vocabulary_.set_index("family")["description"][found.family])
        say(f"{family}{f' ({said})' if said else ''} {seen} in {genome}; probability {found.probability:.3f}")
        say(f"\nlog-odds {found.log_odds:+.2f}, the sum of")
        meaning = {
            "neighbours": "what reference genomes like it have",
            "context": "what the set transformer reads off its other families",
            "evidence": f"that it {seen}, at this completeness and contamination",
        }
        for name, value in found.terms.items():
            say(f"  {value:+8.2f}  {name:11} {meaning.get(name, '')}")
        say("\nnearest references        similarity  has it")
        for row in found.references.head(5).to_dict("records"):
            say(f"  {row['genome']:24}{row['similarity']:>10.3f}  {'yes' if row['has_family'] else 'no'}")
        say(f"\nobserved families whose absence would change the log-odds most (of {len(found.families)})")
        for row in found.families.head(top).to_dict("records"):
            say(f"  {row['change']:+8.3f}  {row['family']}{' (itself)' if row['family'] == family else ''}")
        if out is not None:
            with TableWriter(out) as writer:
                writer.write(found.families.assign(genome=genome, explained=family))
            say(f"\nWritten to {out}: {len(found.families)} families")
        say_notes(notes())


def simulate(out: Path, **options: Any) -> None:
    """See `omniset.cli.genomes.simulate`."""
    with run_folder(out):
        simulated = simulator.simulate(**options)
        simulator.write(out, simulated)
    say(
        f"Written to {out}: families.tsv ({len(simulated.genomes)} genomes x {len(simulated.families)} families), "
        f"taxonomy.tsv, mags.tsv ({len(simulated.mags)} incomplete genomes), quality_report.tsv, truth.tsv"
    )


@contextmanager
def _outputs(paths: dict[str, Path], families: list[str]) -> Iterator[Callable[[Completion], None]]:
    """Gives a function that writes a genome to the three tables; they appear together, or not at all."""
    waiting: list[Completion] = []
    with ExitStack() as stack:
        writers = {name: stack.enter_context(TableWriter(path)) for name, path in paths.items()}

        def flush() -> None:
            if not waiting:
                return
            wide = pd.DataFrame(np.stack([one.probability for one in waiting]).round(5), columns=families)
            wide.insert(0, "genome", [one.name for one in waiting])
            writers["probabilities"].write(wide)
            writers["calls"].write(pd.concat([long_rows(one, families) for one in waiting], ignore_index=True))
            writers["summary"].write(pd.DataFrame([report.summary_row(one) for one in waiting]))
            waiting.clear()

        def write(one: Completion) -> None:
            waiting.append(one)
            if len(waiting) == TOGETHER:
                flush()

        yield write
        flush()


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
    unknown = pd.DataFrame({"genome": one.name, "family": list(one.unknown), "observed": list(one.unknown.values())})
    unknown = unknown.assign(probability=np.nan, call=1, flag="unknown", log_odds=np.nan)
    return unknown if known.empty else pd.concat([known, unknown], ignore_index=True)


# ---------------------------------------------------------------------- parts


def _load(folder: Path, overrides: dict[str, Any]) -> GenomeCompleter:
    completer = GenomeCompleter.load(folder)
    completer.set_params(**{k: v for k, v in overrides.items() if v is not None})
    completer.check_arguments()
    return completer


def _read(file: GenomeFile, progress: bool) -> GenomeTable:
    found = GenomeTable.from_genomes(_watched(file, progress, "reading"))
    for message in file.warnings:
        warnings.warn(message, stacklevel=3)
    found.categories, found.descriptions = file.categories, file.descriptions
    return found


def _watched(file: GenomeFile, show: bool, what: str) -> Iterator[Genome]:
    with Progress(f"{what} {file.paths[0].name}", file.size, show) as progress:
        for number, genome in enumerate(file, 1):
            progress.at(file.position, number, "genomes")
            yield genome
        progress.at(file.size, number, "genomes")


def _warn_of_names(summary: pd.DataFrame, given: pd.DataFrame | None, path: Path | None) -> None:
    """Which genomes had no quality, and which qualities no genome."""
    if given is None:
        warnings.warn(
            "no file of qualities: completeness and contamination are estimated from marker families; "
            "--quality gives those of CheckM2",
            stacklevel=2,
        )
        return
    lacking = summary.loc[summary["quality"] != "given", "genome"].tolist()
    if len(lacking) == len(summary):
        raise ValueError(
            f"{path}: completeness and contamination of none of the genomes: its names are such as "
            f"{str(given.index[0])!r}, the genomes' such as {lacking[0]!r}"
        )
    if lacking:
        warnings.warn(
            f"{path} does not give both completeness and contamination of {len(lacking)} genomes, such as "
            f"{lacking[0]!r}: what is not given is estimated from marker families",
            stacklevel=2,
        )
    row_of = rows_by_name(given)
    unused = len(given) - len({row_of(name) for name in summary["genome"]} - {-1})
    if unused:
        warnings.warn(f"{path}: {unused} of its {len(given)} genomes are not in the table", stacklevel=2)


def _warn_of_unknown(summary: pd.DataFrame, known: int) -> None:
    lost = int((summary["unknown_families"] > 0).sum())
    if lost:
        share = summary["unknown_share"].mean()
        warnings.warn(
            f"{lost} genomes have families that are not among the model's {known:,}, {share:.2%} of all on average: "
            "nothing is said of these, they are kept and flagged 'unknown'"
            + (". Was the model fitted on other identifiers?" if share > 0.5 else ""),
            stacklevel=2,
        )


def _print_evaluation(evaluation: Evaluation) -> None:
    shown = [c for c in ("100/0", "95/0", "90/0", "70/0", "50/0", "70/5", "50/5") if c in evaluation.conditions]
    for metric, title in (("f1", "F1"), ("auprc_missing", "AUPRC of missing families"), ("ece", "calibration error")):
        say(f"\n{title} at completeness/contamination, mean over test genomes of {len(evaluation.splits)} splits\n")
        say(" " * 22 + "".join(f"{c:>9}" for c in shown))
        tables = {c: evaluation.ece(c) if metric == "ece" else evaluation.table(metric, c) for c in shown}
        for method in evaluation.methods:
            values = [float(tables[c]["value"].get(method, np.nan)) for c in shown]
            mark = "*" if method == MINE else " "
            say(f"{mark} {method:20}" + "".join(f"{v:>9.3f}" if v == v else f"{'':>8}-" for v in values))
    say("\n* ours. What it must hold:\n")
    for gate in evaluation.gates():
        interval = f"{gate['value']:+.4f} ({gate['low']:+.4f} to {gate['high']:+.4f})"
        say(f"  {'holds' if gate['holds'] else 'FAILS'}  {gate['gate']}: {interval}, asked {gate['bound']}")
