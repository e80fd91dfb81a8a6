"""The genome system on archaea: our model beside every baseline on held-out families, and what the commands cost.

The data is found through the environment variable OMNISET_DATA. The rows of each seed are kept in runs/genomes, so that
an interrupted run goes on where it stopped.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.memory import measure
from benchmarks.results import ROOT, record

SHOWN = ("f1", "auprc_missing", "recall_missing", "auprc_foreign", "log_loss", "size_error", "worse", "ece")
SHOWN += ("ece_missing", "missing_error", "covered", "precision_added", "precision_removed", "recall_added")
GENOMES = (1000, 4000)  # completed at a time, to see what memory does


def main(seed: int = 0) -> None:
    from omniset.genomes import read_qualities, read_table, read_taxonomy
    from omniset.genomes.evaluate import evaluate
    from omniset.runs.files import plain

    if "OMNISET_DATA" not in os.environ:
        sys.exit("set OMNISET_DATA to the folder that holds genomes/archaea_pfam.tsv.gz")
    data = Path(os.environ["OMNISET_DATA"]) / "genomes"
    table, metadata = data / "archaea_pfam.tsv.gz", data / "archaea_metadata.tsv.gz"
    genomes, about = read_table(table), (read_taxonomy(metadata), read_qualities(metadata))
    evaluation = evaluate(genomes, *about, seed=seed, folder=ROOT / "runs" / "genomes", resume=True, say=print)
    found = evaluation.numbers()
    found["scores"] = [row for row in found["scores"] if row["score"] in SHOWN]
    compared = {(gate["condition"], gate["score"]) for gate in found["gates"] if gate["opponent"]}
    found["differences"] = [row for row in found["differences"] if (row["condition"], row["score"]) in compared]
    found = plain(found) | {"rows": len(evaluation.rows)}
    found["costs"] = costs(table, metadata, genomes, seed)
    record("genomes", found, seed=seed)


def costs(table: Path, taxonomy: Path, genomes: Any, seed: int) -> list[dict[str, Any]]:
    """Peak memory and seconds of `omniset genomes fit` and `complete`."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        fit = ["genomes", "fit", str(table), "--taxonomy", str(taxonomy), "--out", "model", "--seed", str(seed)]
        rows.append({"command": "fit", "genomes": len(genomes), **measure(fit, root)})
        print(rows[-1], flush=True)
        for number in GENOMES:
            spoilt(genomes, number, root, seed)
            complete = ["genomes", "complete", "mags.tsv", "--quality", "quality.tsv", "--out", f"out{number}"]
            rows.append({"command": "complete", "genomes": number, **measure(complete, root)})
            print(rows[-1], flush=True)
    return rows


def spoilt(genomes: Any, number: int, folder: Path, seed: int) -> None:
    """A table of incomplete, contaminated genomes, and their qualities."""
    from omniset.genomes.noise import degrade

    rng = np.random.default_rng(seed)
    names = [f"mag_{i:05d}" for i in range(number)]
    quality = pd.DataFrame({"Name": names, "Completeness": rng.uniform(50, 100, number).round(2)})
    quality["Contamination"] = rng.uniform(0, 10, number).round(2)
    quality.to_csv(folder / "quality.tsv", sep="\t", index=False)
    with (folder / "mags.tsv").open("w", encoding="utf-8") as file:
        file.write("\t".join(["genome", *genomes.families]) + "\n")
        for i, name in enumerate(names):
            which = [[i % len(genomes)], [int(rng.integers(len(genomes)))]]
            row, donor = (genomes.counts[w].toarray()[0] for w in which)
            c, q = quality["Completeness"][i] / 100, quality["Contamination"][i] / 100
            file.write("\t".join([name, *map(str, degrade(row, donor, c, q, rng))]) + "\n")
