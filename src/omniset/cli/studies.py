"""`omniset studies`: list, run, table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from omniset.cli.sets import Device, _split


def list_studies() -> None:
    """What can be run, what data it needs, and how each network is trained."""
    from omniset.studies import describe

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
    from omniset.studies import run_study

    folder = Path("results/studies") / name if out is None else out
    try:
        run_study(name, folder, data, seeds, epochs, _split(trainings), budget, device, test_again, progress)
    except KeyboardInterrupt:
        print("\nWhole epochs, if any, are kept: the same command goes on with them", file=sys.stderr)
        raise


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
    from omniset.studies import tables_of

    if out is not None and not out.exists():
        raise ValueError(f"out: there is no {out}")
    folder = Path("results/studies") / name if out is None else out
    for found in tables_of(name, folder):
        print(
            "\n".join(["", f"### {found.title}", "", *found.markdown()])
            if format == "markdown"
            else f"\n{found.text()}"
        )
