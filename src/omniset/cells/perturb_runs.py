"""`omniset cells perturb`: what a perturbation does to populations of cells, with its report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from omniset.cells.data import Cells
from omniset.cells.perturber import GROUP, CellPerturber
from omniset.cells.perturbing import (
    DONORS,
    NEW,
    TYPES,
    PerturbationEvaluation,
    evaluate_foretold,
    evaluate_perturbation,
)
from omniset.cells.shifts import Group, Study
from omniset.report import frame, multiqc
from omniset.report.blocks import Note, Report, Section, Table, many, rounded
from omniset.runs.console import say
from omniset.runs.files import replacing
from omniset.runs.verbs import Folder

GENES = 15  # shown for a perturbation
PERTURBER = "perturber"  # folder of the model, within that of the run
TEXTS = {
    DONORS: "All treated cells of a donor are left out; its untreated ones are given.",
    TYPES: "All treated cells of a type are left out, of every donor; its untreated ones are given.",
    NEW: "Treated cells of the file are compared with what is foretold of its untreated ones.",
}


def perturb(
    folder: Folder, cells: Cells, arguments: dict[str, Any], columns: dict[str, Any], title: str
) -> PerturbationEvaluation:
    """Leave out, learn from all, foretell what was not measured, and write it into the folder.

    Args:
        columns: `condition`, `control`, `label`, `donor`, as of `Study.of`.
    """
    study = Study.of(cells, **columns)
    evaluation = evaluate_perturbation(study, say if arguments["progress"] else lambda line: None, **arguments)
    perturber = CellPerturber(**arguments).fit_groups(study)
    perturber.write(folder.path / PERTURBER)
    notes, written = [*cells.notes, *perturber.notes_, *evaluation.notes], [f"{PERTURBER}/"]
    if study.lacking:
        _write(folder.path / "foretold.h5ad", perturber, study, study.lacking, cells)
        written.append("foretold.h5ad")
        notes.append(f"{many(len(study.lacking), 'population')} not measured after treatment are foretold")
    lead = f"Treated cells foretold from untreated ones: {len(study.groups)} populations before and after."
    run = folder.about(f"Perturbation of {title}", notes)
    _finish(folder, _report(perturber, evaluation, run, lead, []), evaluation, written, notes)
    return evaluation


def foretell(
    folder: Folder,
    cells: Cells,
    perturber: CellPerturber,
    columns: dict[str, Any],
    aliases: Mapping[str, str] | None,
    title: str,
) -> PerturbationEvaluation | None:
    """Foretell all untreated populations by a fitted perturber; compare where treated ones are there."""
    study = perturber.study(cells, **columns, aliases=aliases)
    groups = [*study.groups, *study.lacking]
    _write(folder.path / "foretold.h5ad", perturber, study, groups, cells)
    evaluation = evaluate_foretold(study, perturber) if study.groups else None
    notes = [*cells.notes, *([] if evaluation is None else evaluation.notes)]
    notes.append(f"{many(len(groups), 'population')} of untreated cells are foretold")
    known = {*zip(perturber.shifts_.perturbations, perturber.shifts_.types, strict=True)}
    rows = [
        [*(getattr(g, name) for name in GROUP), len(g.control), len(g.treated), (g.perturbation, g.type) in known]
        for g in groups
    ]
    head = [*GROUP, "untreated cells", "treated cells", "type is known"]
    table = Table("What is foretold. A type that is not known moves as groups do that are like it.", head, rows)
    run = folder.about(f"Perturbation of {title}, foretold", notes)
    lead = f"{many(len(groups), 'population')} as if they had been treated, by what was learned from others."
    page = _report(perturber, evaluation, run, lead, [Section("Populations", "", [table])])
    _finish(folder, page, evaluation, ["foretold.h5ad"], notes)
    return evaluation


def _finish(
    folder: Folder,
    page: tuple[Report, dict[str, Any]],
    evaluation: PerturbationEvaluation | None,
    written: list[str],
    notes: list[str],
) -> None:
    """Write what was measured, if anything, and the report."""
    more: dict[str, Any] = {"lines": []}
    if evaluation is not None:
        evaluation.comparison.write_rows(folder.path / "scores.csv.gz")
        written = ["scores.csv.gz", *written]
        more = {"metrics": evaluation.numbers(), "scores": multiqc.of_ours(evaluation.comparison)}
        more["lines"] = [*evaluation.comparison.lines(), evaluation.advice()]
    more["lines"] += [f"  {note}" for note in notes]
    folder.write(page, files=written, **more)


def _write(path: Path, perturber: CellPerturber, study: Study, groups: list[Group], cells: Cells) -> None:
    treated = perturber.treated(study, groups, cells.names)
    with replacing(path) as temporary:
        treated.write_h5ad(temporary)


def _report(
    perturber: CellPerturber,
    evaluation: PerturbationEvaluation | None,
    run: frame.Run,
    lead: str,
    sections: list[Section],
) -> tuple[Report, dict[str, Any]]:
    shifts, rows = perturber.shifts_, []
    numbers: dict[str, Any] = {"size": list(perturber.size_), "widths": list(shifts.widths)}
    more: dict[str, Any] = {}
    if evaluation is not None:
        comparison = evaluation.comparison
        names = [score.name for score in comparison.scores]
        for condition in comparison.conditions:
            table = frame.methods(comparison, condition, names)
            sections.append(Section(condition.capitalize(), TEXTS[condition], [table]))
        numbers["advice"] = evaluation.advice()
        more = {"summary": [Note("info", evaluation.advice())], "comparison": comparison}
    for name in dict.fromkeys(shifts.perturbations):
        of = np.array([p == name for p in shifts.perturbations])
        mean = np.average(shifts.values[of], axis=0, weights=shifts.sizes[of])
        for gene in np.argsort(-np.abs(mean), kind="stable")[:GENES]:
            rows.append([name, perturber.genes_[gene], rounded(float(mean[gene]))])
    table = Table("Mean change of log-normalised counts over known groups.", ["perturbation", "gene", "change"], rows)
    sections.append(Section("Genes that change most", "", [table]))
    return frame.compose(run, lead, sections, numbers, settings=perturber.plain(), **more)
