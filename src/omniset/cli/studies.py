"""`omniset studies`: list, run, table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from omniset.cli.sets import Device


def list_studies() -> None:
    """What can be run, and how each network is trained."""
    from omniset.studies import describe

    print("\n".join(describe()))


def run(
    name: str,
    out: Path | None = None,
    data: Path | None = None,
    seeds: int = 10,
    epochs: int | None = None,
    trainings: list[str] | None = None,
    budget: float | None = None,
    device: Device = "auto",
    test_again: bool = False,
    progress: bool = True,
) -> None:
    """Train and test the networks of a study, and write tables, figures and a report.

    What is there already is not done again: the same command goes on where it was stopped, or adds seeds.

    Args:
        name: Of the study, as `omniset studies list` has it.
        out: Folder for results and report. Default: results/studies/NAME.
        data: Folder with the data of the study, or for what it makes. Default: $OMNISET_DATA/mnist for digits,
            studies-data for sets that are drawn once.
        seeds: How many networks are trained in each way; seeds are 0, 1, ...
        epochs: Fewer (or more) epochs than the paper's.
        trainings: Only these of the study's trainings.
        budget: Stop, between two epochs, after so many minutes, and test what there is.
        device: Where to compute.
        test_again: Test the networks that are kept in the folder, without training.
        progress: Show progress.
    """
    from omniset.studies import run_study

    folder = Path("results/studies") / name if out is None else out
    try:
        run_study(name, folder, data, seeds, epochs, trainings, budget, device, test_again, progress)
    except KeyboardInterrupt:
        print("\nWhole epochs are kept: the same command goes on with them", file=sys.stderr)
        raise


def table(
    name: str,
    out: Path | None = None,
    format: Literal["text", "markdown"] = "text",
) -> None:
    """Ours beside the paper's numbers, with 95 % intervals.

    Args:
        name: Of the study; or "features": which architecture has which property.
        out: Folder with the results of the study. Default: results/studies/NAME.
        format: "text" or "markdown".
    """
    from omniset.studies import tables_of

    folder = Path("results/studies") / name if out is None else out
    for found in tables_of(name, folder):
        print(
            "\n".join(["", f"### {found.title}", "", *found.markdown()])
            if format == "markdown"
            else f"\n{found.text()}"
        )
