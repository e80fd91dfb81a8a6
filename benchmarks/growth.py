"""How time and memory of the commands grow, where one number is doubled and all else is small.

`python -m benchmarks growth AXIS ...` measures these axes anew and keeps what the result has of the others. A command
that takes more than 6 GB, or more than 100 seconds of a processor, is stopped, and is not run on more.
"""

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from benchmarks.memory import measure
from benchmarks.results import RESULTS, record
from omniset.genomes import simulate
from omniset.microbiomes.simulate import mutated

RESULT = "benchmarks/growth"
SECONDS, GIGABYTES = 100, 6
LIMITS = f"ulimit -t {SECONDS}; ulimit -d {GIGABYTES * 1_000_000};"  # the latter in KiB
FIT = ["--device", "cpu", "--progress", "false"]
MIXTURE, NETWORK = "fit", "fit --method ust"
CATEGORIES = 100  # of a column: as many as a column of text may have
Commands = dict[str, list[str]]


@dataclass
class Axis:
    """What is doubled.

    Attributes:
        of: In words.
        sizes: From the smallest.
        make: Writes files of one size into a folder, and names the commands in the order in which they are run.
    """

    of: str
    sizes: list[int]
    make: Callable[[Path, int, np.random.Generator], Commands]


def doubled(first: int, last: int) -> list[int]:
    return [first << i for i in range(round(math.log2(last / first)) + 1)]


def main(seed: int = 0) -> None:
    wanted = sys.argv[2:] or [*AXES]
    if not set(wanted) <= set(AXES):
        sys.exit(f"growth: one of {', '.join(AXES)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in wanted:
        rows: list[dict[str, Any]] = []
        for row in measured(AXES[name], seed):
            print(name, row, flush=True)
            rows.append(row)
        path = RESULTS / f"{RESULT}.json"
        kept = json.loads(path.read_text(encoding="utf-8"))["axes"] if path.exists() else {}
        kept[name] = {"of": AXES[name].of, "rows": rows, "growth": growth(rows), "load": os.getloadavg()[2]}
        values = {"axes": {axis: kept[axis] for axis in AXES if axis in kept}, "seconds": SECONDS}
        record(RESULT, {**values, "gigabytes": GIGABYTES}, seed=seed)


def measured(axis: Axis, seed: int) -> Iterator[dict[str, Any]]:
    """A row for each command and size: what it took, or that it was stopped and how."""
    stopped: set[str] = set()
    for size in axis.sizes:
        with tempfile.TemporaryDirectory() as folder:
            commands = axis.make(Path(folder), size, np.random.default_rng(seed))
            for name, words in commands.items():
                needs = [words[at + 1] for at, word in enumerate(words) if word in ("--model", "--annotator")]
                if name in stopped or not all((Path(folder) / needed / "config.json").exists() for needed in needs):
                    continue
                try:
                    found: dict[str, Any] = measure(words, Path(folder), LIMITS)
                except RuntimeError as error:
                    stopped.add(name)
                    found = {"stopped": str(error).splitlines()[0]}
                yield {"command": name, "size": size, **found}


def growth(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By command, b in "cost ~ size^b" over its last doubling; memory and seconds of a processor."""
    found = {}
    for name in dict.fromkeys(row["command"] for row in rows):
        *_, before, last = [{}, {}, *(row for row in rows if row["command"] == name and "stopped" not in row)]
        if before:
            found[name] = {what: math.log2(last[what] / before[what]) for what in ("peak_mb", "cpu_seconds")}
    return found


# ---------------------------------------------------------------------- sets in tables


def sets_in_table(folder: Path, sizes: np.ndarray, features: int, classes: int, rng: np.random.Generator) -> None:
    """Sets of so many elements, whose first feature is larger the larger the class is."""
    of, names = np.arange(len(sizes)) % classes, np.array([f"s{i:06d}" for i in range(len(sizes))])
    values = rng.standard_normal((sizes.sum(), features), dtype=np.float32)
    values[:, 0] += np.repeat(of, sizes) * (4 / classes)
    frame = pd.DataFrame(values, columns=[f"f{i}" for i in range(features)])
    frame.insert(0, "set", np.repeat(names, sizes))
    frame.to_parquet(folder / "sets.parquet")
    label(folder, names, of)


def label(folder: Path, names: np.ndarray, of: np.ndarray) -> None:
    labels = {"set": names, "label": [f"c{k:03d}" for k in of]}
    pd.DataFrame(labels).to_csv(folder / "labels.csv", index=False)


def verbs_of_sets() -> Commands:
    fit = ["fit", "sets.parquet", "--target", "labels.csv", "--epochs", "1", *FIT]
    using = {
        "predict": ["predict", "sets.parquet", "--model", "mixture", "--out", "predictions.parquet"],
        "explain": ["explain", "sets.parquet", "--model", "ust", "--out", "scores.parquet", "--method", "attention"],
        "embed": ["embed", "sets.parquet", "--model", "ust", "--out", "vectors.parquet"],
    }
    learning = {NETWORK: [*fit, "--method", "ust", "--out", "ust"], MIXTURE: [*fit, "--folds", "2", "--out", "mixture"]}
    return learning | {verb: [*words, *FIT] for verb, words in using.items()}


def many_sets(folder: Path, size: int, rng: np.random.Generator) -> Commands:
    sets_in_table(folder, np.full(size, 8), 3, 2, rng)
    return verbs_of_sets()


def many_elements(folder: Path, size: int, rng: np.random.Generator) -> Commands:
    sets_in_table(folder, np.array([size, *[50] * 11]), 3, 2, rng)
    return verbs_of_sets()


def many_features(folder: Path, size: int, rng: np.random.Generator) -> Commands:
    sets_in_table(folder, np.full(40, 4), size, 2, rng)
    return verbs_of_sets()


def many_classes(folder: Path, size: int, rng: np.random.Generator) -> Commands:
    sets_in_table(folder, np.full(6 * size, 4), 3, size, rng)
    return verbs_of_sets()


def many_categories(folder: Path, size: int, rng: np.random.Generator) -> Commands:
    """Columns of text of 100 categories each: every one is a feature."""
    names, elements = np.array([f"s{i:06d}" for i in range(50)]), 8
    columns = {
        f"t{i}": [f"v{v:02d}" for v in rng.permutation(np.arange(len(names) * elements) % CATEGORIES)]
        for i in range(size // CATEGORIES)
    }
    frame = pd.DataFrame({"set": np.repeat(names, elements), **columns})
    frame.to_parquet(folder / "sets.parquet")
    label(folder, names, np.arange(len(names)) % 2)
    return verbs_of_sets()


# ---------------------------------------------------------------------- cells


def cells(path: Path, number: int, genes: int, types: int, rng: np.random.Generator) -> None:
    """Counts of cells, each of a type that has more of some genes; every cell is of its own donor in 50."""
    import anndata

    of, more = np.arange(number) % types, rng.integers(0, genes, (types, 20))
    found = np.concatenate([rng.integers(0, genes, (number, 60)), more[of], more[of]], 1)
    at = np.repeat(np.arange(number), found.shape[1]), found.reshape(-1)
    counts = sp.csr_matrix((np.ones(found.size, np.float32), at), (number, genes))
    counts.sum_duplicates()
    obs = pd.DataFrame({"cell_type": [f"t{k:03d}" for k in of], "donor": [f"d{i % 50}" for i in range(number)]})
    var = pd.DataFrame(index=[f"G{i}" for i in range(genes)])
    anndata.AnnData(counts, obs.set_axis([f"c{i}" for i in range(number)]), var).write_h5ad(path)


def annotating(epochs: int = 5) -> Commands:
    return {
        "cells fit": ["cells", "fit", "reference.h5ad", "--out", "model", "--epochs", f"{epochs}", *FIT],
        "cells annotate --reference": (
            ["cells", "annotate", "new.h5ad", "--reference", "reference.h5ad", "--model", "model", "--out", "a", *FIT]
        ),
        "cells annotate --annotator": (
            ["cells", "annotate", "new.h5ad", "--annotator", "a/annotator", "--out", "b", *FIT]
        ),
    }


def many_cells(folder: Path, size: int, rng: np.random.Generator) -> Commands:
    cells(folder / "reference.h5ad", size, 500, 8, np.random.default_rng(1))
    cells(folder / "new.h5ad", size, 500, 8, np.random.default_rng(1))
    return annotating(1)


def many_genes(folder: Path, size: int, rng: np.random.Generator) -> Commands:
    for name in ("reference", "new"):
        cells(folder / f"{name}.h5ad", 1_000, size, 8, np.random.default_rng(1))
    return annotating()


def many_types(folder: Path, size: int, rng: np.random.Generator) -> Commands:
    for name in ("reference", "new"):
        cells(folder / f"{name}.h5ad", 8 * size, 500, size, np.random.default_rng(1))
    return annotating(1)


# ---------------------------------------------------------------------- genomes and microbiomes


def genomes(folder: Path, references: int, families: int, mags: int) -> Commands:
    simulate.write(folder, simulate.simulate(references, families, mags, 0))
    return {
        "genomes fit": ["genomes", "fit", "families.tsv", "--taxonomy", "taxonomy.tsv", "--out", "model", *FIT],
        "genomes complete": (
            [
                "genomes",
                "complete",
                "mags.tsv",
                "--quality",
                "quality_report.tsv",
                "--model",
                "model",
                "--out",
                "c",
                *FIT,
            ]
        ),
    }


def many_genomes(folder: Path, size: int, rng: np.random.Generator) -> Commands:
    return genomes(folder, size // 4, 300, size)


def many_families(folder: Path, size: int, rng: np.random.Generator) -> Commands:
    return genomes(folder, 100, size, 100)


def microbiomes(folder: Path, genera: int, reads: int, rng: np.random.Generator) -> Commands:
    first = "".join(rng.choice(list("ACGT"), 250))
    with (
        (folder / "references.fasta").open("w") as references,
        (folder / "taxonomy.tsv").open("w") as taxonomy,
        (folder / "reads.fasta").open("w") as found,
    ):
        for genus in range(genera):
            of_genus = mutated(first, 0.2, rng)
            for copy in range(3):
                references.write(f">{genus}.{copy}\n{mutated(of_genus, 0.02, rng)}\n")
                lineage = f"d__D;p__P{genus // 64};c__C{genus // 32};o__O{genus // 16};f__F{genus // 4};g__G{genus}"
                taxonomy.write(f"{genus}.{copy}\t{lineage}\n")
            for read in range(genus, reads, genera):
                found.write(f">r{read}\n{mutated(of_genus, 0.01, rng)}\n")
    fit = ["microbiomes", "fit", "--references", "references.fasta", "--taxonomy", "taxonomy.tsv", "--epochs", "2"]
    return {
        "microbiomes fit": [*fit, "--out", "model", *FIT],
        "microbiomes classify": ["microbiomes", "classify", "reads.fasta", "--model", "model", "--out", "c", *FIT],
    }


def many_reads(folder: Path, size: int, rng: np.random.Generator) -> Commands:
    return microbiomes(folder, 32, size, rng)


def many_genera(folder: Path, size: int, rng: np.random.Generator) -> Commands:
    return microbiomes(folder, size, 2_000, rng)


AXES = {
    "sets": Axis("sets of 8 elements with 3 features", doubled(20_000, 80_000), many_sets),
    "elements": Axis("elements of one set, 3 features, beside 11 of 50", doubled(1_000_000, 4_000_000), many_elements),
    "features": Axis("features, in 40 sets of 4 elements", doubled(4_000, 16_000), many_features),
    "classes": Axis("classes, each of 6 sets of 4 elements", doubled(200, 800), many_classes),
    "categories": Axis(
        "categories of text, 100 in a column, in 50 sets of 8 elements", doubled(25_000, 100_000), many_categories
    ),
    "cells": Axis("cells of 500 genes and 8 types, known and new", doubled(10_000, 20_000), many_cells),
    "genes": Axis("genes of 1,000 cells", doubled(8_000, 16_000), many_genes),
    "types": Axis("types, each of 8 cells", doubled(400, 800), many_types),
    "genomes": Axis("genomes of 300 families, and a quarter as many references", doubled(4_000, 8_000), many_genomes),
    "families": Axis("families of 100 genomes", doubled(8_000, 16_000), many_families),
    "reads": Axis("reads of 250 bases, from 32 genera", doubled(40_000, 80_000), many_reads),
    "genera": Axis("genera of 3 references; 2,000 reads", doubled(500, 1_000), many_genera),
}
