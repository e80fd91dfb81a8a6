"""`omniset studies`: list, run, table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from omniset.cli.options import split
from omniset.options import Device

RESULTS = Path("results/studies")


def list_studies() -> None:
    """What can be run, what data it needs, and how each network is trained."""
    from paper.registry import describe

    print("\n".join(describe()))


def run(
    name: str,
    out: Path | None = None,
    data: Path | None = None,
    seeds: int = 10,
    epochs: int | None = None,
    trainings: str | None = None,
    budget: float | None = None,
    device: Device = "auto",
    test_again: bool = False,
    progress: bool = True,
) -> None:
    """Train and test the networks of a study, and write tables, figures and a report.

    What is there already is not done again: the same command goes on where it was stopped, or adds seeds.

    Args:
        name: Of the study, as `omniset studies list` has it.
        out: Folder for results and report. null: results/studies/NAME.
        data: Folder with the data of the study, or for what it makes. null: $OMNISET_DATA/mnist for digits,
            $OMNISET_DATA/microbiomes/contax for taxonomy, studies-data for mixtures, which are drawn once. Faces need
            the folder of CelebA.
        seeds: How many networks are trained in each way; seeds are 0, 1, ...
        epochs: Fewer (or more) than the paper's, which `list` tells. Results of other epochs need another folder.
        trainings: Only these of the study's trainings, separated by commas.
        budget: Stop, between two epochs, after so many minutes, and test what there is.
        device: Where to compute.
        test_again: Test the networks that are kept in the folder, without training.
        progress: Show progress.
    """
    from omniset.runs.console import resumable, run_folder, say
    from omniset.runs.devices import find
    from paper.registry import load
    from paper.report import write_report
    from paper.running import Runner
    from paper.tables import Results

    if name == "memory":
        raise ValueError(
            "name: the study memory is a benchmark, run by python -m benchmarks multisets in the repository"
        )
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    if budget is not None and budget <= 0:
        raise ValueError(f"budget must be > 0 minutes, got {budget}")
    deadline = None if budget is None else time.monotonic() + 60 * budget
    study = load(name, data, epochs)
    chosen = study.recipe.chosen(split(trainings))
    folder = RESULTS / name if out is None else out
    with resumable(folder, "the same command"), run_folder(folder):
        runner = Runner(study, folder, device, progress)
        if not Results.read(folder).trainings:
            for name in ("report.html", "report.json"):
                if (folder / name).exists():
                    raise ValueError(f"{folder / name} is not of a study: move it away, or take another --out")
        runner.check(chosen)
        study.prepare(range(seeds))
        lines = runner.test_again(chosen, range(seeds)) if test_again else runner.run(chosen, range(seeds), deadline)
        for line in lines:
            say(line)
        for table in study.tables(Results.read(folder)):
            say(f"\n{table.text()}")
        write_report(study, folder, find(device).type)
        say(f"\nWritten to {folder}: results, figures, report.html, report.json")


def table(
    name: str,
    out: Path | None = None,
    format: Literal["text", "markdown"] = "text",
) -> None:
    """Ours beside the paper's numbers, with 95 % intervals.

    Args:
        name: Of the study; "features": which architecture has which property; "memory": Figure A.1, of the benchmark.
        out: Folder with the results of the study. null: results/studies/NAME.
        format: "text" or "markdown".
    """
    from omniset.runs.console import say_notes
    from paper.registry import STUDIES, tables_of

    folder = RESULTS / name if out is None else out
    if out is not None and not out.exists():
        raise ValueError(f"out: there is no {out}")
    if name in STUDIES and not folder.exists():
        say_notes([f"there are no results in {folder.absolute()}: run this in the clone, or give --out"])
    for one in tables_of(name, folder):
        lines = ["", f"### {one.title}", "", *one.markdown()] if format == "markdown" else ["", one.text()]
        print("\n".join(lines))


COMMANDS: dict[str, Any] = {
    "_help": "Experiments of the Universal Set Transformer paper, run again.",
    "list": list_studies,
    "run": run,
    "table": table,
}
