"""Regions: ours beside baselines on regions that are not seen, on two atlases and two kinds of connectivity.

The data is found through the environment variable OMNISET_DATA. What is done is kept in runs/regions, so that an
interrupted run goes on where it stopped; each part is written to results/regions/ when it is done. On which data
choices were made is said in LOOKS. `python -m benchmarks regions costs` does one part, and so do the other names in
PARTS.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.memory import measure
from benchmarks.results import ROOT, record
from omniset.regions.data import simulate, write_tables
from omniset.regions.evaluate import evaluate
from omniset.regions.reading import read_regions
from omniset.runs.files import plain

RUNS = ROOT / "runs" / "regions"
LOOKS = (
    "What the default is made of (the network, the parts, equal weights as what the stacking is pulled to) was chosen "
    "on dk82 and on structural connectivity of schaefer_100, with the folds of seeds from 100 on. Functional "
    "connectivity of both atlases was looked at before with the spatial folds of these seeds: closed forms, earlier "
    "defaults and a first form of attention to known regions. Weights near known regions and far from them, and the "
    "parts, were chosen anew on functional connectivity of schaefer_100, three divisions, and on simulated brains."
)
SEEDS = 5
SPLITS = ("bilateral", "spatial")
NULLS = 1000
LARGE = 1_000, 10_000  # regions and genes
Results = Iterator[tuple[str, dict[str, Any]]]  # names of files, and what they are to hold
# What differs from the default.
ABLATIONS: dict[str, dict[str, Any]] = {"attention alone": {"method": "attention"}}
# A small form of the document's network, its own best configuration: its full size takes hours.
NETWORKS: dict[str, dict[str, Any]] = {
    "seed, d 32": {"method": "seed", "dim": 32, "depth": 2, "pooling": "attention", "epochs": 20}
}


def main(seed: int = 0) -> None:
    if "OMNISET_DATA" not in os.environ:
        sys.exit("set OMNISET_DATA to the folder that holds regions/schaefer_100")
    data = Path(os.environ["OMNISET_DATA"]) / "regions"
    parts = sys.argv[2:] or [*PARTS]
    if not set(parts) <= set(PARTS):
        sys.exit(f"usage: python -m benchmarks regions [{'] ['.join(PARTS)}]")
    for part in parts:
        for name, found in PARTS[part](data, seed):
            record(f"regions/{name}", found, seed=seed, part_of=f"regions {part}")


def schaefer_100(data: Path, seed: int) -> Results:
    yield from functional(data / "schaefer_100", seed)


def schaefer_400(data: Path, seed: int) -> Results:
    yield from functional(data / "schaefer_400", seed)


def functional(atlas: Path, seed: int) -> Results:
    for split in SPLITS:
        found = evaluated(atlas, "functional", seed, split, seeds=SEEDS, variants=ABLATIONS)
        yield f"{atlas.name}_{split}", found


def structural(data: Path, seed: int) -> Results:
    for split in SPLITS:
        found = evaluated(data / "schaefer_100", "structural", seed, split, seeds=3)
        yield f"schaefer_100_structural_{split}", found


def nulls(data: Path, seed: int) -> Results:
    yield "nulls", meaningless(data / "schaefer_100", seed)


def nulls_400(data: Path, seed: int) -> Results:
    yield "nulls_400", meaningless(data / "schaefer_400", seed)


def meaningless(atlas: Path, seed: int) -> dict[str, Any]:
    options: dict[str, Any] = {"methods": ["geometry"], "mine": False, "null": NULLS}
    return evaluated(atlas, "functional", seed, "bilateral", "nulls", seeds=1, **options)


def networks(data: Path, seed: int) -> Results:
    options: dict[str, Any] = {"methods": (), "mine": False, "variants": NETWORKS}
    yield "networks", evaluated(data / "schaefer_100", "functional", seed, "bilateral", "networks", seeds=1, **options)


def costs(data: Path, seed: int) -> Results:
    yield "costs", {"rows": measured(data / "schaefer_400", seed)}


PARTS: dict[str, Callable[[Path, int], Results]] = {
    part.__name__: part for part in (schaefer_100, schaefer_400, structural, nulls, nulls_400, networks, costs)
}


def measured(atlas: Path, seed: int) -> list[dict[str, Any]]:
    """Peak memory and seconds of `omniset regions fit` and `predict`, also of many regions and genes.

    A process of their own each, with what it needs to start, to read its files, and to write the report.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_tables(root / "large", simulate(*LARGE))
        paths = {
            "schaefer_400": [atlas / f"{name}.csv.gz" for name in ("expression", "functional_connectivity")]
            + [atlas / "regions.csv"],
            "simulated": [root / "large" / f"{name}.csv" for name in ("expression", "connectivity", "regions")],
        }
        for data, files in paths.items():
            words = zip(("--expression", "--connectivity", "--coordinates"), map(str, files), strict=True)
            fit = ["regions", "fit", *(word for pair in words for word in pair), "--out", data, "--seed", str(seed)]
            predict = ["regions", "predict", "--model", data, "--out", f"{data}.npy"]
            for command in (fit, predict):
                number = len(read_regions(*files))
                rows.append({"data": data, "regions": number, "command": command[1], **measure(command, root)})
                print(rows[-1], flush=True)
    return rows


def evaluated(folder: Path, kind: str, seed: int, split: str, part: str = "methods", **options: Any) -> dict[str, Any]:
    names = ("expression", f"{kind}_connectivity", "regions")
    regions = read_regions(
        *(folder / f"{name}.csv.gz" if name != "regions" else folder / "regions.csv" for name in names)
    )
    regions.notes = [note.replace(f"{folder}{os.sep}", "") for note in regions.notes]  # files as anybody has them
    evaluation = evaluate(
        regions,
        split_by=split,
        folder=RUNS / f"{folder.name}_{kind}_{split}_{part}",
        resume=True,
        seed=seed,
        progress=False,
        say=print,
        **options,
    )
    return plain({**evaluation.comparison.numbers(), **evaluation.numbers(), "looks": LOOKS})
