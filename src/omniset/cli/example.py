"""`omniset example`: small made-up data whose truth is known, and what to run on them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from omniset.cli.options import Saving, takes


@dataclass(frozen=True)
class Example:
    """Data of one kind.

    Attributes:
        write: Puts the files into a folder, by a seed.
        files: What is in each.
        commands: To run next, in that folder.
        look: What to look at then.
    """

    write: Callable[[Path, int], None]
    files: Mapping[str, str]
    commands: tuple[str, ...]
    look: str


@takes(Saving)
def example(
    name: Literal["tables", "survival", "slides", "genomes", "cells", "regions", "microbiomes"],
    out: Path | None = None,
    seed: int = 0,
    **options: Any,
) -> None:
    """Write small made-up data whose truth is known, and say what to run on them.

    Example: omniset example tables

    Args:
        name: tables: samples of cells of infected and healthy patients. survival: samples of cells, and when patients
            had an event. slides: tiles of tumour slides, a file each, and when patients died. genomes: gene families of
            complete genomes and of incomplete, contaminated ones. cells: counts of labelled donors, and of a new one
            with a type that they lack. regions: a brain's gene expression and connectivity. microbiomes: reference
            sequences, and samples of two habitats.
        out: Folder for the files. null: the name.
        seed: The same seed gives the same files.
    """
    from omniset.report.run import working_folder
    from omniset.runs.console import say

    chosen, out = EXAMPLES[name], Path(name) if out is None else out
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}")
    with working_folder(out, name, "example", seed=seed) as folder:
        chosen.write(folder.path, seed)
    files = {**chosen.files, "run.json": "a list of these files, by which a later run may replace them"}
    width = max(map(len, files))
    say(f"Written to {out}, made up, seed {seed}:")
    for file, what in files.items():
        say(f"  {file:{width}}  {what}")
    say(f"\nNext:\n  cd {out}")
    for command in chosen.commands:
        say(f"  omniset {command}")
    say("")
    for line in textwrap.wrap(f"Then look at {chosen.look}", 100):
        say(line)


def _made(module: str, write: str = "write", simulate: bool = False) -> Callable[[Path, int], None]:
    """Imports the module when it is needed, and writes what it makes of a seed."""

    def made(folder: Path, seed: int) -> None:
        maker = import_module(f"omniset.{module}")
        getattr(maker, write)(folder, maker.simulate(seed=seed) if simulate else seed)

    return made


EXAMPLES = {
    "tables": Example(
        _made("estimators.simulate", "write_classes"),
        {
            "sets.csv": "three markers of each cell of 96 samples",
            "labels.csv": "the patient of each sample, infected or healthy",
            "held_out.csv, held_out_labels.csv": "24 samples of other patients",
            "truth.csv": "what nobody is told: the state of each cell",
        },
        (
            "fit sets.csv --target labels.csv --group patient --out run",
            "evaluate held_out.csv --target held_out_labels.csv --group patient --model run --out evaluation",
            "explain held_out.csv --model run --only sample_096 --out scores.csv",
        ),
        "run/report.html: the forest on means and quantiles of markers can tell hardly anything. All samples have six "
        "cells with a high CD25, and six with a high CD69; in infected patients they are the same cells. In "
        "scores.csv, the six cells of sample_096 that score highest should be cell_1 to cell_6 (truth.csv).",
    ),
    "survival": Example(
        _made("estimators.simulate", "write_survival"),
        {
            "sets.csv": "three markers of each cell of 120 patients",
            "labels.csv": "days until an event, or until a patient was last seen",
            "held_out.csv, held_out_labels.csv": "30 other patients",
            "truth.csv": "what nobody is told: the state of each cell",
        },
        (
            "fit sets.csv --target labels.csv --out run",
            "evaluate held_out.csv --target held_out_labels.csv --model run --out evaluation",
            "explain held_out.csv --model run --only sample_120 --out scores.csv",
        ),
        "evaluation/report.html: how often of two patients the one with the higher risk has the event first. Each cell "
        "in which CD25 and CD69 are both high raises the hazard (truth.csv); averages of markers say nothing of it.",
    ),
    "slides": Example(
        _made("estimators.simulate", "write_slides"),
        {
            "slides/": "features and coordinates of the tiles of 128 slides, a file each",
            "labels.csv": "days until a patient died, or was last seen",
            "held_out/, held_out_labels.csv": "32 other patients",
            "truth.csv": "what nobody is told: the state of each tile",
        },
        (
            "fit slides --target labels.csv --out run",
            "evaluate held_out --target held_out_labels.csv --model run --out evaluation",
            "explain held_out --model run --only slide_128 --out scores.csv",
        ),
        "scores-maps/slide_128.png: tiles that have tumour and macrophages at once raise the hazard (truth.csv). All "
        "slides have as much of either, so that means say nothing of it.",
    ),
    "genomes": Example(
        _made("genomes.simulate", simulate=True),
        {
            "families.tsv, taxonomy.tsv": "gene families of 400 complete genomes, and their clades",
            "mags.tsv, quality_report.tsv": "100 incomplete, contaminated genomes, and their estimated quality",
            "truth.tsv": "what nobody is told: the complete content of these",
        },
        (
            "genomes fit families.tsv --taxonomy taxonomy.tsv --out model",
            "genomes complete mags.tsv --model model --quality quality_report.tsv --out completed",
        ),
        "completed/report.html: which families each genome lacks, and how sure that is; truth.tsv has them.",
    ),
    "cells": Example(
        _made("cells.simulate"),
        {
            "reference.h5ad": "counts of 600 cells of two donors, with their types",
            "new.h5ad": "counts of 300 cells of a third donor",
            "truth.csv": "what nobody is told: their types, one of which the reference lacks (platelet)",
        },
        (
            "cells annotate new.h5ad --reference reference.h5ad --label cell_type --batch_key donor --out annotation",
            "cells fit reference.h5ad --batch_key donor --out model",
            "cells embed new.h5ad --model model --out embedded.h5ad",
        ),
        "annotation/report.html: the type of each cell, by how sure that is. Platelets should be called unknown.",
    ),
    "regions": Example(
        _made("regions.data", "write_tables", simulate=True),
        {
            "expression.csv": "120 genes in 80 regions",
            "connectivity.csv": "between all pairs of regions",
            "regions.csv": "their places in mm, hemispheres and networks",
        },
        (
            "regions fit --expression expression.csv --connectivity connectivity.csv --coordinates regions.csv "
            "--out model",
            "regions predict --model model --out predicted.csv",
            "regions explain L_region_1 R_region_2 --model model --out explanation",
        ),
        "model/report.html: how well connectivity of regions left out is predicted, by genes and by distance alone. It "
        "was made of the distance, and of four of the eight fields that genes are mixtures of.",
    ),
    "microbiomes": Example(
        _made("microbiomes.simulate", simulate=True),
        {
            "references.fasta, taxonomy.tsv": "640 sequences of 32 genera",
            "table.tsv, sequences.fasta": "12 samples of two habitats",
            "reads.fastq.gz": "reads of one more sample",
            "truth.tsv": "what nobody is told: the genus of each sequence",
        },
        (
            "microbiomes fit --references references.fasta --taxonomy taxonomy.tsv --region 515F-806R --out model",
            "microbiomes classify --table table.tsv --sequences sequences.fasta --model model --out classified",
            "microbiomes classify reads.fastq.gz --model model --out reads",
        ),
        "classified/report.html: the genera of each sample. Two and two are so alike that a read alone cannot tell "
        "them apart, the other reads of its sample can; truth.tsv has them.",
    ),
}
