"""Time and memory of the commands on a folder of HDF5 files, a large set each, as TRIDENT writes tiles of slides.

The files take 30 GB, in a temporary folder below the environment variable FOLDERS. What was measured is written after
each number of sets.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd

from benchmarks.memory import measure
from benchmarks.results import record

ELEMENTS, FEATURES = 50_000, 1_024
SETS = (30, 100, 300)
ROWS = 5_000  # made at a time
FIT = ["--folds", "2", "--epochs", "2", "--device", "cpu", "--progress", "false"]


def main(seed: int = 0) -> None:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("FOLDERS")) as folder:
        root = Path(folder)
        files = make(root, seed)
        for sets in SETS:
            here = root / f"{sets}"
            names = link(here / "features", files[:sets])
            labels = pd.DataFrame({"set": names, "label": [("low", "high")[i % 2] for i in range(sets)]})
            labels.to_csv(here / "labels.csv", index=False)
            gigabytes = sets * files[0].stat().st_size / 1e9
            for command in (
                ["fit", "features", "--target", "labels.csv", "--out", "run", *FIT],
                ["explain", "features", "--model", "run", "--only", names[0], "--out", "scores.csv", *FIT[-4:]],
            ):
                row = {"command": command[0], "sets": sets, "gigabytes": gigabytes, **measure(command, here)}
                rows.append({**row, "load": os.getloadavg()[1]})  # of all that ran here in its last five minutes
                print(rows[-1], flush=True)
            shape = {"elements": ELEMENTS, "features": FEATURES, "options": FIT[:6]}
            record("sets/folders", {"rows": rows, **shape}, seed=seed, part_of="folders")


def make(folder: Path, seed: int) -> list[Path]:
    """Files of 16-bit numbers; in every second one the first feature is higher."""
    rng = np.random.default_rng(seed)
    files = []
    for number in range(max(SETS)):
        files.append(folder / f"{number}.h5")
        with h5py.File(files[-1], "w") as file:
            features = file.create_dataset("features", (ELEMENTS, FEATURES), "f2")
            for start in range(0, ELEMENTS, ROWS):
                values = rng.standard_normal((ROWS, FEATURES), dtype=np.float32)
                values[:, 0] += number % 2
                features[start : start + ROWS] = values
            file["coords"] = rng.integers(0, 1 << 16, (ELEMENTS, 2))
    return files


def link(folder: Path, files: list[Path]) -> list[str]:
    folder.mkdir(parents=True)
    names = [f"slide_{number:03d}" for number in range(len(files))]
    for name, file in zip(names, files, strict=True):
        (folder / f"{name}.h5").symlink_to(file)
    return names
