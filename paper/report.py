"""The report on a study: its tables, its figures, how its numbers were made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omniset.report import Plot, Report, Section, Table, write
from omniset.report.plots import save
from omniset.runs.console import own_command
from omniset.runs.files import provenance
from paper.study import Study
from paper.tables import Results


def write_report(study: Study, out: Path, device: str) -> None:
    """report.html, report.json and a PNG of every figure."""
    results = Results.read(out)
    tables, drawn = study.tables(results), study.figures(results)
    blocks: list[Any] = [
        Table(table.title, table.head, [[*row] for row in table.rows]) for table in tables if table.rows
    ]
    missing = [f"{table.title}. Not run: {'; '.join(table.missing)}." for table in tables if table.missing]
    for name, figure in drawn.items():
        save(figure, out / f"{name}.png")
        blocks.append(Plot(figure, study.recipe.title, f"{study.recipe.title}.", half=False))
    lead = (
        "Means over seeds with 95 % intervals (Student's t) beside those of the paper: Universal Set Transformer. "
        "A number without interval is of one seed."
    )
    rows = [
        [name, int(seed), row["steps"], row["of"], row["best_epoch"], row["validation_loss"], row["seconds"]]
        for name, content in results.trainings.items()
        for seed, row in content["seeds"].items()
    ]
    head = ["training", "seed", "steps", "of", "kept epoch", "validation loss", "seconds (of all seeds together)"]
    sections = [
        Section("Results", " ".join(missing), blocks),
        Section(
            "Trainings",
            " ".join(f"{line}." for line in study.conditions(results)),
            [Table("Every network.", head, rows)],
        ),
    ]
    command = own_command()
    report = Report(f"Study: {study.recipe.title}", lead, sections, command, provenance(None, device))
    numbers: dict[str, Any] = {"results": results.trainings, "tables": [[t.head, *t.rows] for t in tables]}
    write(out, report, numbers)
