"""`omniset example`, as a newcomer runs it: the time of each command, and whether the truth is found."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.results import record
from omniset.cli.example import EXAMPLES


def main(seed: int = 0) -> None:
    found: dict[str, Any] = {}
    for name, example in EXAMPLES.items():
        with tempfile.TemporaryDirectory() as folder:
            place, seconds = Path(folder), {}
            for command in (f"example {name} --out . --seed {seed}", *example.commands):
                if command.startswith("example"):
                    run(command.replace("--out .", f"--out {name}"), place)
                    place /= name
                else:
                    seconds[command] = run(command, place)
            found[name] = {"cpu_seconds": seconds, "in_all": sum(seconds.values()), **TRUTH[name](place)}
            print(name, found[name], file=sys.stderr, flush=True)
    record("examples", {"examples": found}, seed=seed)


def run(command: str, place: Path) -> float:
    """Seconds of processor time of a command, the start of Python and the report included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "omniset", *shlex.split(command), "--progress", "false"]
    words = words[:-2] if command.startswith("example") else words
    subprocess.run(words, cwd=place, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)


def scores(place: Path, name: str) -> dict[str, float]:
    """The score of each method on what was held out."""
    rows = json.loads((place / "evaluation/metrics.json").read_text(encoding="utf-8"))["scores"]
    return {row["method"]: row["value"] for row in rows if row["score"] == name}


def explained(place: Path) -> dict[str, Any]:
    """The elements of one set, their scores and their states."""
    table = pd.read_csv(place / "scores.csv").merge(pd.read_csv(place / "truth.csv"), on=["set", "element"])
    both = table["state"] == "CD25+ CD69+"
    first = table.sort_values("score", ascending=False)["element"].head(int(both.sum()))
    of_set = pd.read_csv(place / "held_out.csv").merge(table, on=["set", "element"])
    cells = of_set[["CD25", "CD69", "score", "state"]].round(3).to_dict("list")
    found = int(table["element"][both].isin(first).sum())
    return {"set": table["set"][0], "double_positive": int(both.sum()), "among_the_first": found, "cells": cells}


def tiles(place: Path) -> dict[str, Any]:
    """Of the tiles of a slide with both kinds of cells, how many are among as many with the highest scores."""
    table = pd.read_csv(place / "scores.csv").merge(pd.read_csv(place / "truth.csv"), on=["set", "element"])
    both = table.sort_values("score", ascending=False)["state"] == "both"
    return {"set": table["set"][0], "both": int(both.sum()), "among_the_first": int(both.head(both.sum()).sum())}


def genomes(place: Path) -> dict[str, Any]:
    """F1 of the content, as it was found and as it was completed."""
    truth, before = (pd.read_csv(place / f"{name}.tsv", sep="\t", index_col=0) > 0 for name in ("truth", "mags"))
    calls = pd.read_csv(place / "completed/calls.tsv", sep="\t").pivot(index="genome", columns="family", values="call")
    after = calls.reindex(index=truth.index, columns=truth.columns) == 1
    return {"f1": {"as found": f1(truth, before), "completed": f1(truth, after)}}


def f1(truth: pd.DataFrame, called: pd.DataFrame) -> float:
    return float(2 * (truth & called).to_numpy().sum() / (truth.to_numpy().sum() + called.to_numpy().sum()))


def cells(place: Path) -> dict[str, Any]:
    calls = pd.read_csv(place / "annotation/calls.tsv", sep="\t").merge(pd.read_csv(place / "truth.csv"), on="cell")
    new, unknown = calls["cell_type"] == "platelet", calls["label"] == "unknown"
    right = calls["label"] == calls["cell_type"]
    return {"platelets_unknown": float(unknown[new].mean()), "others_right": float(right[~new].mean())}


def regions(place: Path) -> dict[str, Any]:
    """Pearson's r of regions left out, of each part of the default."""
    report = json.loads((place / "model/report.json").read_text(encoding="utf-8"))
    return {"pearson": report["scores"], "weights": report["weights"]}


def microbiomes(place: Path) -> dict[str, Any]:
    """The share of the reads of all samples whose genus is called; a sample's own calls come before those of all."""
    reads = pd.read_csv(place / "table.tsv", sep="\t", index_col=0).stack().rename("count")
    reads = reads[reads > 0].rename_axis(["Feature ID", "sample"]).reset_index()
    called, truth = (pd.read_csv(place / f"{name}.tsv", sep="\t") for name in ("classified/taxonomy", "truth"))
    own = pd.read_csv(place / "classified/calls.tsv.gz", sep="\t")
    reads = reads.merge(own[["Feature ID", "sample", "Taxon"]], "left").merge(
        truth, on="Feature ID", suffixes=("", "_true")
    )
    taxon = reads["Taxon"].fillna(reads["Feature ID"].map(called.set_index("Feature ID")["Taxon"]))
    return {"reads_right": float(np.average(taxon == reads["Taxon_true"], weights=reads["count"]))}


TRUTH: dict[str, Callable[[Path], dict[str, Any]]] = {
    "tables": lambda place: {"accuracy": scores(place, "accuracy"), **explained(place)},
    "survival": lambda place: {"concordance": scores(place, "concordance"), **explained(place)},
    "slides": lambda place: {"concordance": scores(place, "concordance"), **tiles(place)},
    "genomes": genomes,
    "cells": cells,
    "regions": regions,
    "microbiomes": microbiomes,
}
