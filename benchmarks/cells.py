"""Cells: ours beside PCA, Harmony and scVI, on what it was tuned on and on what it was not; its choices; its costs.

The data is found through the environment variable OMNISET_DATA. What is done is kept in runs/cells, so that an
interrupted run goes on where it stopped; each part is written to results/cells/ when it is done. On which cells choices
were made is said in LOOKS.
"""

import dataclasses
import itertools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from benchmarks.memory import measure
from benchmarks.results import ROOT, record
from omniset.runs.files import plain

RUNS = ROOT / "runs" / "cells"
SETS = {"kang": "kang_pbmc_muscat.h5ad", "baron": "baron_mouse_pancreas.h5ad"}
BLOOD = "pbmc68k"  # that come with scanpy: of one batch
LOOKS = (
    "Choices were made on Kang's cells, whole and subsampled, on scanpy's blood cells with batches made, and on "
    "simulated cells. Baron's were looked at twice before, first with 64 dimensions and an alignment of 50, then with "
    "tokens of 4,000 genes that were learned."
)
SEEDS, ABLATED, ALIGNED, ANNOTATED = 5, 1, 3, 3  # how many seeds
REMOVED = 1  # type of each batch
DRAWN = 1_000  # times that calls are drawn by their probabilities
# What differs from the default.
ABLATIONS: dict[str, dict[str, Any]] = {"no alignment": {"alignment": 0.0}}
# Scored with all batches at hand alone.
TRANSDUCTIVE: dict[str, dict[str, Any]] = {
    "16 dimensions": {"embedding_dim": 16},
    "64 dimensions": {"embedding_dim": 64},
    # A small one: the published size is a matter of days on a CPU.
    "seed": {
        "architecture": "seed",
        "dim": 64,
        "epochs": 10,
        "batch_size": 32,
        "learning_rate": 1e-3,
        "encoder_options": {"slots": 256, "positives": 128, "negatives": 128, "shared": 128},
    },
}
LONG = 50  # epochs after which the loss of "seed" has settled
ALIGNMENTS: dict[str, dict[str, Any]] = {f"weight {weight:g}": {"alignment": weight} for weight in (5.0, 80.0)}
LACKING = (0.2, 0.5, 0.8)  # shares of a file's genes that are left out of it, at random
PANELS, PANEL_SEEDS = 3, 3  # how often they are drawn; models
CELLS, GENES, EXPRESSED = 1_000_000, 2_000, 100  # of the large simulated file
LABELLED = 5_000  # cells of its reference


def main(seed: int = 0) -> None:
    if "OMNISET_DATA" not in os.environ:
        sys.exit("set OMNISET_DATA to the folder that holds cells/kang_pbmc_muscat.h5ad")
    data = Path(os.environ["OMNISET_DATA"]) / "cells"
    parts = sys.argv[2:] or ["embed", "alignment", "panels", "perturb", "annotate", "seed", "costs"]
    if "perturb" in parts:
        record("cells/perturb_kang", perturbed(data), seed=seed, part_of="cells perturb")
    if "annotate" in parts:
        for name in (*reversed(SETS), BLOOD):
            record(f"cells/annotate_{name}", annotated(name, data, seed), seed=seed, part_of="cells annotate")
    if "embed" in parts:
        embedded(data, seed)
    if "alignment" in parts:
        found = {name: aligned(name, data, seed) for name in SETS}
        record("cells/alignment", {"data": found}, seed=seed, part_of="cells alignment")
    if "panels" in parts:
        rows = [row for name in SETS for row in panels(name, data, seed)]
        calls = [row for name in SETS for row in called(name, data, seed)]
        record("cells/panels", {"rows": rows, "calls": calls}, seed=seed, part_of="cells panels")
    if "seed" in parts:
        record("cells/seed", {"models": trained_long(data, seed)}, seed=seed, part_of="cells seed")
    if "costs" in parts:
        record("cells/costs", {"rows": costs(data / SETS["baron"], seed)}, seed=seed, part_of="cells costs")


def embedded(data: Path, seed: int) -> None:
    for name in SETS:
        record(f"cells/{name}", {**evaluated(name, data, seed), "looks": LOOKS}, seed=seed, part_of="cells")
    found = {"both": ablated(data, ABLATIONS, True, seed), "transductive": ablated(data, TRANSDUCTIVE, False, seed)}
    record("cells/ablations", found, seed=seed, part_of="cells")


def evaluated(name: str, data: Path, seed: int = 0) -> dict[str, Any]:
    return compared(name, data, seed, name, seeds=SEEDS)


def compared(
    name: str, data: Path, seed: int, folder: str, variants: dict[str, dict[str, Any]] | None = None, **how: Any
) -> dict[str, Any]:
    """What `omniset.cells.evaluate.evaluate` finds on one of SETS, kept in a folder of RUNS.

    Args:
        variants: Further models of ours: a name, and what differs in the arguments.
    """
    from omniset.cells import CellEmbedder
    from omniset.cells.evaluate import evaluate
    from omniset.trials.comparison import OURS

    about = {"batch_key": "batch", "label_key": "cell_type", "resume": True}
    ours = {"seed": seed, "progress": False}
    found = evaluate(data / SETS[name], folder=RUNS / folder, say=print, model=CellEmbedder(**ours), **about, **how)
    for variant, changed in (variants or {}).items():
        place = RUNS / f"{folder}_{variant}"
        model = CellEmbedder(**ours, **changed)
        other = evaluate(data / SETS[name], folder=place, say=print, model=model, **about, **how)
        parts = {}
        for part in ("transductive", "inductive"):
            rows = getattr(other, part)
            named = rows[rows["method"] == OURS].assign(method=variant) if len(rows) else rows
            parts[part] = pd.concat([getattr(found, part), named], ignore_index=True)
        found = dataclasses.replace(found, **parts)
    return _recorded(found, data)


def annotated(name: str, data: Path, seed: int = 0) -> dict[str, Any]:
    """Types of cells whose labels are left out, and where there are batches, of one left out, and of one from which a
    type was removed besides. `calibrated`: what our calibration error would be if stated probabilities were right.
    """
    from omniset.cells import CellEmbedder
    from omniset.cells.evaluate_annotation import HALF, evaluate_annotation
    from omniset.trials.comparison import OURS
    from omniset.trials.kept import Kept

    source, keys = (blood(), (None, "bulk_labels")) if name == BLOOD else (data / SETS[name], ("batch", "cell_type"))
    found = evaluate_annotation(
        source,
        batch_key=keys[0],
        label_key=keys[1],
        seeds=ANNOTATED,
        removed=REMOVED,
        model=CellEmbedder(seed=seed, progress=False),
        kept=Kept(RUNS / f"annotate_{name}", True, print),
    )
    numbers = found.numbers()
    ours = found.rows[(found.rows["method"] == OURS) & (found.rows["condition"] == HALF)]
    notes = [note.replace(f"{data}{os.sep}", "") for note in numbers["notes"]]
    return {**numbers, "notes": notes, "calibrated": calibrated(ours, seed)}


def blood() -> Any:
    """Of the file's 700 cells the genes that it has logarithms of counts of; `X` is scaled."""
    import scanpy

    cells = scanpy.datasets.pbmc68k_reduced()
    raw = cells.raw.to_adata()
    raw.obs = cells.obs[["bulk_labels"]].astype(str)
    return raw


def calibrated(rows: pd.DataFrame, seed: int) -> dict[str, float]:
    """Mean and 95 % quantile of the calibration error where each call is right with the probability that is stated."""
    from omniset.cells.evaluate_annotation import calibration_error
    from omniset.trials.intervals import Draws

    rng, rows, found = np.random.default_rng(seed), rows.reset_index(drop=True), []
    once = Draws(np.arange(len(rows)), np.ones((1, len(rows))))
    for _ in range(DRAWN):
        right = rng.random(len(rows)) < rows["probability"].to_numpy(dtype=float)
        found.append(calibration_error(rows.assign(right=right), once)[0])
    return {"mean": float(np.mean(found)), "high": float(np.quantile(found, 0.95))}


def panels(name: str, data: Path, seed: int = 0) -> list[dict[str, Any]]:
    """How far vectors of cells move where a share of the genes is left out of their file, and whose they then are.

    Rows have, of genes that are filled in and of genes that count as not expressed: `shift`, the distance of the mean
    vectors by dimension over the deviation of the whole cells, mean over dimensions; `moved`, the median distance of a
    cell to itself over the root of the cells' total variance; `itself`, the share of cells whose nearest whole cell is
    itself; `near`, that of those that are among their 15 nearest.
    """
    import anndata
    from sklearn.neighbors import NearestNeighbors

    from omniset.cells import CellEmbedder
    from omniset.cells.data import read_cells
    from omniset.cells.model import Completion

    adata, rows = anndata.read_h5ad(data / SETS[name]), []
    for number in range(seed, seed + PANEL_SEEDS):
        model = CellEmbedder(seed=number, progress=False).fit(adata, batch_key="batch")
        whole, completion = model.transform(adata), model.network_.encoder.completion
        nothing = Completion(*completion.weights.shape)  # has not learned what to fill in
        deviation, itself = whole.std(0), np.arange(len(whole))[:, None]
        neighbours = NearestNeighbors(n_neighbors=15).fit(whole)
        for lacking, draw in itertools.product(LACKING, range(PANELS)):
            there = np.random.default_rng([draw, round(100 * lacking)]).random(adata.n_vars) >= lacking
            few = read_cells(adata[:, there].copy())
            for how, used in (("filled in", completion), ("not expressed", nothing)):
                model.network_.encoder.completion = used
                z = model.embed_cells(few)
                near = neighbours.kneighbors(z, return_distance=False) == itself
                moved = np.linalg.norm(z - whole, axis=1) / np.linalg.norm(deviation)
                found = {"shift": (np.abs(z.mean(0) - whole.mean(0)) / deviation).mean(), "moved": np.median(moved)}
                found |= {"itself": near[:, 0].mean(), "near": near.any(1).mean()}
                about = {"data": name, "seed": number, "draw": draw, "lacking": lacking, "genes": how}
                rows.append(about | {key: float(value) for key, value in found.items()})
            model.network_.encoder.completion = completion
        print(name, number, flush=True)
    return rows


def called(name: str, data: Path, seed: int = 0) -> list[dict[str, Any]]:
    """Types of a batch by the others, where its file lacks a share of the genes.

    Rows have `right`, the share of cells whose most probable type is that of the file, and `unknown`.
    """
    import anndata

    from omniset.cells import CellAnnotator

    adata, rows = anndata.read_h5ad(data / SETS[name]), []
    new = (adata.obs["batch"].astype(str) == max(adata.obs["batch"].astype(str))).to_numpy()
    truth = adata.obs["cell_type"].astype(str).to_numpy()[new]
    for number in range(seed, seed + PANEL_SEEDS):
        annotator = CellAnnotator(seed=number, progress=False)
        annotator.fit(adata[~new].copy(), label="cell_type", batch_key="batch")
        for lacking, draw in [(0.0, 0), *itertools.product(LACKING, range(PANELS))]:
            there = np.random.default_rng([draw, round(100 * lacking)]).random(adata.n_vars) >= lacking
            table = annotator.annotate(adata[new][:, there].copy()).table
            found = {"right": (table["type"] == truth).mean(), "unknown": (table["label"] == "unknown").mean()}
            about = {"data": name, "seed": number, "draw": draw, "lacking": lacking, "cells": len(truth)}
            rows.append(about | {key: float(value) for key, value in found.items()})
        print(name, number, "annotated", flush=True)
    return rows


def perturbed(data: Path) -> dict[str, Any]:
    """Kang's cells before and after interferon beta, each donor and each type left out."""
    import anndata

    from omniset.cells.data import read_cells
    from omniset.cells.evaluate_perturbation import evaluate_perturbation
    from omniset.cells.perturber import Study

    cells = anndata.read_h5ad(data / SETS["kang"])
    batch = cells.obs["batch"].astype(str)  # such as stim101: condition and donor
    cells.obs["condition"], cells.obs["donor"] = batch.str[:4].astype(object), batch.str[4:].astype(object)
    study = Study.of(read_cells(cells), "condition", "ctrl", "cell_type", "donor")
    return evaluate_perturbation(study, print).numbers()


def ablated(data: Path, variants: dict[str, dict[str, Any]], inductive: bool, seed: int = 0) -> dict[str, Any]:
    how: dict[str, Any] = {"methods": (), "variants": variants, "inductive": inductive, "seeds": ABLATED}
    return compared("kang", data, seed, "ablations", **how)


def aligned(name: str, data: Path, seed: int = 0) -> dict[str, Any]:
    """Other weights of the alignment than the default's."""
    how: dict[str, Any] = {"methods": (), "variants": ALIGNMENTS, "inductive": False, "seeds": ALIGNED}
    return compared(name, data, seed, f"alignment_{name}", **how)


def trained_long(data: Path, seed: int = 0) -> list[dict[str, Any]]:
    """A small model of the architecture "seed" after as many epochs as it takes, beside the default: the loss of each
    epoch, whether it had settled, and how well the cells are integrated.
    """
    import anndata

    from omniset.cells import CellEmbedder
    from omniset.cells.data import read_cells
    from omniset.cells.evaluate import Task
    from omniset.cells.metrics import integration
    from omniset.cells.training import loss_settled

    adata, rows = anndata.read_h5ad(data / SETS["kang"]), []
    task = Task.of(read_cells(adata), "batch", "cell_type", CellEmbedder(seed=seed))
    models: dict[str, dict[str, Any]] = {"default": {}, "seed": {**TRANSDUCTIVE["seed"], "epochs": LONG}}
    for name, more in models.items():
        model = CellEmbedder(seed=seed, progress=False, **more)
        model.fit(adata, batch_key="batch", folder=RUNS / f"long_{name}", resume=True)
        found = integration(model.transform(adata).astype(np.float64), task.labels, task.codes, task.reference, seed)
        history = [{key: epoch[key] for key in ("epoch", "train_loss")} for epoch in model.history_]
        rows.append({"model": name, **found, "history": history, "settled": loss_settled(model.history_)})
        print(rows[-1], flush=True)
    return plain(rows)


def _recorded(found: Any, data: Path) -> dict[str, Any]:
    """Numbers and rows; files are named as anybody has them."""
    numbers = found.numbers()
    notes = [note.replace(f"{data}{os.sep}", "") for note in numbers["notes"]]
    rows = {name: getattr(found, name).to_dict("records") for name in ("transductive", "inductive")}
    return plain({**numbers, "notes": notes, **rows})


def read(found: dict[str, Any]) -> tuple[Any, pd.DataFrame]:
    """The comparison of what was recorded; by method `low` and `high`, totals of seeds, and `seconds` of fits."""
    from omniset.cells.evaluate import comparison_of

    rows = pd.DataFrame(found["transductive"])
    methods = rows.groupby("method", sort=False)
    about = {"low": methods["total"].min(), "high": methods["total"].max(), "seconds": methods["fit_seconds"].median()}
    return comparison_of(rows, pd.DataFrame(found["inductive"])), pd.DataFrame(about)


def costs(source: Path, seed: int) -> list[dict[str, Any]]:
    """Peak memory and seconds of `omniset cells fit` and `embed`, and of a file of a million cells also `annotate`."""
    from omniset.cells.data import opened

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        large, reference = root / "large.h5ad", root / "reference.h5ad"
        simulated(large, CELLS, seed)
        simulated(reference, LABELLED, seed, labelled=True)
        for name, path, more in (("baron", source, ["--batch_key", "batch"]), ("simulated", large, ["--epochs", "1"])):
            model, out = f"model_{name}", f"{name}.npy"
            commands = [
                ["cells", "fit", str(path), "--out", model, "--seed", str(seed), *more],
                ["cells", "embed", str(path), "--model", model, "--out", out],
            ]
            if path == large:
                learning = ["cells", "annotate", str(path), "--reference", str(reference), "--model", model]
                learned = ["cells", "annotate", str(path), "--annotator", "learning/annotator"]
                commands += [[*learning, "--out", "learning"], [*learned, "--out", "learned"]]
            with opened(path) as cells:
                number = len(cells)
            for command in commands:
                what = " ".join([command[1], *(["by an annotator"] if "--annotator" in command else [])])
                rows.append({"data": name, "command": what, "cells": number, **measure(command, root)})
                print(rows[-1], flush=True)
    return rows


def simulated(path: Path, cells: int, seed: int, labelled: bool = False) -> None:
    """A sparse file of cells of eight types, written block by block; `labelled`: with these as `cell_type`."""
    import h5py

    rng = np.random.default_rng(seed)
    rates = rng.lognormal(0, 1.5, (8, GENES))
    cumulative = np.cumsum(rates / rates.sum(1, keepdims=True), axis=1)
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        x = file.create_group("X")
        x.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": (cells, GENES)})
        data, indices = (
            x.create_dataset(name, (0,), maxshape=(None,), chunks=(1 << 16,), dtype=kind)
            for name, kind in (("data", "f4"), ("indices", "i4"))
        )
        starts = np.zeros(cells + 1, dtype=np.int64)
        kinds = np.zeros(cells, dtype=np.int64)
        for start in range(0, cells, 20_000):
            number = min(20_000, cells - start)
            kinds[start : start + number] = kind = rng.integers(0, 8, number)
            drawn = [np.searchsorted(cumulative[k], rng.random(EXPRESSED)) for k in kind]
            rows = np.repeat(np.arange(number), EXPRESSED)
            block = sp.csr_array((np.ones(len(rows), np.float32), (rows, np.concatenate(drawn).clip(max=GENES - 1))))
            block.resize((number, GENES))
            block.sum_duplicates()
            for whole, part in ((data, block.data), (indices, block.indices)):
                whole.resize((len(whole) + len(part),))
                whole[-len(part) :] = part
            starts[start + 1 : start + number + 1] = starts[start] + block.indptr[1:]
        x["indptr"] = starts
        for name, length in (("obs", cells), ("var", GENES)):
            frame = file.create_group(name)
            frame.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"})
            frame.attrs["column-order"] = np.array([], dtype="S1")
            index = frame.create_dataset(
                "_index", data=np.array([f"{name}{i}" for i in range(length)], dtype=object), dtype=h5py.string_dtype()
            )
            index.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
        if labelled:
            types = np.array([f"type {kind}" for kind in kinds], dtype=object)
            column = file["obs"].create_dataset("cell_type", data=types, dtype=h5py.string_dtype())
            column.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
            file["obs"].attrs["column-order"] = np.array(["cell_type"], dtype=object)
