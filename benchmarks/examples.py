"""`omniset example`, as a newcomer runs it: the time of each command, whether the truth is found, and what benchmarks/
pictures.py draws of it.
"""

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

import anndata
import numpy as np
import pandas as pd
import umap

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
    drawn = list(truth.index[:12])
    states = {
        "found": truth & before & after,
        "added, right": truth & ~before & after,
        "added, wrong": ~truth & ~before & after,
        "still missing": truth & ~after,
    }
    families = {name: cells.loc[drawn].sum(axis=1).tolist() for name, cells in states.items()}
    return {
        "f1": {"as found": f1(truth, before), "completed": f1(truth, after)},
        "genomes": drawn,
        "families": families,
    }


def f1(truth: pd.DataFrame, called: pd.DataFrame) -> float:
    return float(2 * (truth & called).to_numpy().sum() / (truth.to_numpy().sum() + called.to_numpy().sum()))


def cells(place: Path) -> dict[str, Any]:
    calls = pd.read_csv(place / "annotation/calls.tsv", sep="\t").merge(pd.read_csv(place / "truth.csv"), on="cell")
    new, unknown = calls["cell_type"] == "platelet", calls["label"] == "unknown"
    right = calls["label"] == calls["cell_type"]
    shares = {"platelets_unknown": float(unknown[new].mean()), "others_right": float(right[~new].mean())}
    embedded = anndata.read_h5ad(place / "embedded.h5ad")
    x, y = umap.UMAP(random_state=0).fit_transform(embedded.obsm["X_omniset"]).T.astype(float).round(2).tolist()
    calls = calls.set_index("cell").loc[embedded.obs_names]
    return shares | {"x": x, "y": y, "called": calls["label"].tolist(), "true": calls["cell_type"].tolist()}


def regions(place: Path) -> dict[str, Any]:
    """Pearson's r of regions left out, of each part of the default; and all pairs of 24 regions that another model was
    not shown.
    """
    report = json.loads((place / "model/report.json").read_text(encoding="utf-8"))
    tables = {
        name: pd.read_csv(place / f"{name}.csv", index_col=0) for name in ("expression", "connectivity", "regions")
    }
    hidden = np.random.default_rng(0).permutation(tables["regions"].index)[:24]
    hidden = tables["regions"].loc[hidden].sort_values("network").index
    true = tables["connectivity"].loc[hidden, hidden]
    tables["connectivity"].drop(index=hidden, columns=hidden).to_csv(place / "known.csv")
    for name in ("expression", "regions"):
        tables[name].loc[hidden].to_csv(place / f"hidden_{name}.csv")
    fit = "regions fit --expression expression.csv --connectivity known.csv --coordinates regions.csv --out half"
    run(fit, place)
    of = "--expression hidden_expression.csv --coordinates hidden_regions.csv"
    run(f"regions predict --model half {of} --out hidden.csv", place)
    foretold = pd.read_csv(place / "hidden.csv", index_col=0).loc[hidden, hidden]
    upper = np.triu_indices(len(hidden), 1)
    r = np.corrcoef(true.to_numpy()[upper], foretold.to_numpy()[upper])[0, 1]
    pictured = {"hidden": list(hidden), "networks": list(tables["regions"].loc[hidden, "network"])}
    for name, matrix in (("true", true), ("predicted", foretold)):
        pictured[name] = [" ".join(f"{value:.2f}" for value in row) for row in matrix.to_numpy()]
    return {"pearson": report["scores"], "weights": report["weights"], "pearson of hidden": float(r)} | pictured


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
    abundance = pd.read_csv(place / "classified/abundance.tsv", sep="\t", index_col=0)
    abundance.index = abundance.index.str.rsplit("__").str[-1]
    return {
        "reads_right": float(np.average(taxon == reads["Taxon_true"], weights=reads["count"])),
        "samples": list(abundance.columns),
        "reads": {str(genus): row.astype(int).tolist() for genus, row in abundance.iterrows()},
    }


TRUTH: dict[str, Callable[[Path], dict[str, Any]]] = {
    "tables": lambda place: {"accuracy": scores(place, "accuracy"), **explained(place)},
    "survival": lambda place: {"concordance": scores(place, "concordance"), **explained(place)},
    "slides": lambda place: {"concordance": scores(place, "concordance"), **tiles(place)},
    "genomes": genomes,
    "cells": cells,
    "regions": regions,
    "microbiomes": microbiomes,
}
