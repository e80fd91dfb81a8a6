"""Peak resident memory of the commands on tables: small, long, and of a few very large sets."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.results import record

FEATURES = 5
BLOCK = 100_000  # rows made at a time


def main(seed: int = 0) -> None:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for sets, size in ((200, 100), (20_000, 100), (4, 500_000)):
            here = root / f"{sets}x{size}"
            here.mkdir()
            make(here, sets, size, seed)
            fit = ["fit", "sets.csv", "--target", "labels.csv", "--out", "run", "--epochs", "1", "--device", "cpu"]
            fit += ["--method", "ust"]
            for command in (
                fit,
                ["predict", "sets.csv", "--model", "run", "--out", "predictions.parquet", "--device", "cpu"],
            ):
                rows.append({"command": command[0], "rows": sets * size, "sets": sets, **measure(command, here)})
                print(rows[-1], flush=True)
        from omniset import SetClassifier

        here = root / "20000x100"
        found = pd.read_parquet(here / "predictions.parquet")
        whole = SetClassifier.load(here / "run").predict_table(pd.read_csv(here / "sets.csv"))
        equal = found.astype(whole.dtypes).equals(whole)
    values = {"rows": rows, "features": FEATURES, "compared": len(whole), "equal_to_the_bit": equal}
    record("benchmarks/memory", values, seed=seed)


def make(folder: Path, sets: int, size: int, seed: int) -> None:
    """A table whose sets differ in the mean of their first feature, by class."""
    rng = np.random.default_rng(seed)
    classes = np.arange(sets) % 2
    names = np.array([f"s{i:06d}" for i in range(sets)])
    pd.DataFrame({"set": names, "label": np.array(["low", "high"])[classes]}).to_csv(folder / "labels.csv", index=False)
    with (folder / "sets.csv").open("w", encoding="utf-8") as file:
        for start in range(0, sets * size, BLOCK):
            which = np.arange(start, min(start + BLOCK, sets * size)) // size
            values = rng.normal(size=(len(which), FEATURES)).round(4)
            values[:, 0] += 0.5 * classes[which]
            frame = pd.DataFrame(values, columns=[f"f{i}" for i in range(FEATURES)])
            frame.insert(0, "set", names[which])
            frame["multiplicity"] = rng.integers(1, 4, len(frame))
            frame.to_csv(file, index=False, header=start == 0)


# A process begins with its parent's peak as its own: one that has used nothing yet stands between.
WATCH = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=sys.stderr); "
    "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
    "print(used.ru_maxrss, used.ru_utime + used.ru_stime); sys.exit(code % 256)"
)


def measure(command: list[str], folder: Path, limits: str = "") -> dict[str, float]:
    """Run omniset with these words: the child's largest resident memory, in MB of 10^6 bytes, and seconds.

    Args:
        limits: Of the shell, such as "ulimit -t 300;".

    Raises:
        RuntimeError: It failed. The error has its exit code and what it wrote.
    """
    start = time.perf_counter()
    words = [sys.executable, "-c", WATCH, "sh", "-c", f'{limits} exec "$@"', "sh"]
    words += [sys.executable, "-m", "omniset", *command]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # compiled once, as where it is installed
    with (folder / "log").open("w", encoding="utf-8") as log:
        child = subprocess.run(
            words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, check=False
        )
    if child.returncode:
        raise RuntimeError(f"exit code {child.returncode}\n{(folder / 'log').read_text(encoding='utf-8')}")
    unit = 1 if sys.platform == "darwin" else 1024
    peak, processor = child.stdout.split()
    seconds = {"seconds": time.perf_counter() - start, "cpu_seconds": float(processor)}
    return {"peak_mb": int(peak) * unit / 1e6, **seconds}
