"""`omniset cells perturb`: what a perturbation does to populations of cells, with its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from omniset.cells.data import Cells
from omniset.cells.perturber import CellPerturber
from omniset.cells.perturbing import DONORS, TYPES, PerturbationEvaluation, evaluate_perturbation
from omniset.cells.shifts import Study
from omniset.report import frame, multiqc
from omniset.report.blocks import Note, Report, Section, Table, rounded
from omniset.runs.console import say
from omniset.runs.files import replacing
from omniset.runs.verbs import Folder
from omniset.tables.matrices import needed

GENES = 15  # shown for a perturbation


def perturb(
    folder: Folder,
    cells: Cells,
    arguments: dict[str, Any],
    columns: dict[str, Any],
    title: str,
) -> PerturbationEvaluation:
    """Leave out, learn from all, foretell what was not measured, and write it into the folder.

    Args:
        columns: `condition`, `control`, `type_key`, `donor`, as of `Study.of`.
    """
    study = Study.of(cells, **columns)
    evaluation = evaluate_perturbation(study, say if arguments["progress"] else lambda line: None, **arguments)
    perturber = CellPerturber(**arguments).fit(study)
    notes = [*cells.notes, *perturber.notes_, *evaluation.notes]
    written = ["scores.csv.gz"]
    evaluation.comparison.write_rows(folder.path / "scores.csv.gz")
    if study.lacking:
        _write(folder.path / "foretold.h5ad", study, perturber, cells.names)
        written.append("foretold.h5ad")
        notes.append(f"{len(study.lacking)} populations that were not measured after treatment are foretold")
    run = folder.about(f"Perturbation of {title}", notes)
    folder.write(
        _report(study, evaluation, perturber, run),
        metrics=evaluation.numbers(),
        scores=multiqc.of_ours(evaluation.comparison),
        files=written,
        lines=[*evaluation.comparison.lines(), evaluation.advice(), *(f"  {note}" for note in notes)],
    )
    return evaluation


def _write(path: Path, study: Study, perturber: CellPerturber, names: np.ndarray) -> None:
    """The untreated cells of groups without treated ones, as if they had been treated: log-normalised."""
    anndata = needed("anndata")
    parts, frames = [], []
    for group in study.lacking:
        parts.append(perturber.predict(study, group).astype(np.float32))
        about = {"perturbation": group.perturbation, "type": group.type, "donor": group.donor}
        index = [f"{name}, {group.perturbation}" for name in names[group.control]]
        frames.append(pd.DataFrame(about, index=pd.Index(index, dtype=object), dtype=object))
    obs = pd.concat(frames).astype("category")
    for name in obs:
        obs[name] = obs[name].cat.set_categories(pd.Index(sorted(map(str, obs[name].cat.categories)), dtype=object))
    var = pd.DataFrame(index=pd.Index(study.genes, dtype=object))
    with replacing(path) as temporary:
        anndata.AnnData(np.concatenate(parts), obs, var).write_h5ad(temporary)


def _report(
    study: Study, evaluation: PerturbationEvaluation, perturber: CellPerturber, run: frame.Run
) -> tuple[Report, dict[str, Any]]:
    comparison, sections = evaluation.comparison, []
    texts = {
        DONORS: "All treated cells of a donor are left out; its untreated ones are given.",
        TYPES: "All treated cells of a type are left out, of every donor; its untreated ones are given.",
    }
    names = [score.name for score in comparison.scores]
    for condition in comparison.conditions:
        table = frame.methods(comparison, condition, names)
        sections.append(Section(condition.capitalize(), texts[condition], [table]))
    rows = []
    for name in dict.fromkeys(group.perturbation for group in study.groups):
        of = np.array([p == name for p in perturber.shifts_.perturbations])
        mean = np.average(perturber.shifts_.values[of], axis=0, weights=perturber.shifts_.sizes[of])
        for gene in np.argsort(-np.abs(mean), kind="stable")[:GENES]:
            rows.append([name, study.genes[gene], rounded(float(mean[gene]))])
    table = Table("Mean change of log-normalised counts over known groups.", ["perturbation", "gene", "change"], rows)
    sections.append(Section("Genes that change most", "", [table]))
    lead = f"Treated cells foretold from untreated ones: {len(study.groups)} populations before and after."
    numbers = {"advice": evaluation.advice(), "size": list(perturber.size_), "widths": list(perturber.shifts_.widths)}
    summary = [Note("info", evaluation.advice())]
    settings = perturber.plain()
    return frame.compose(run, lead, sections, numbers, summary=summary, comparison=comparison, settings=settings)
