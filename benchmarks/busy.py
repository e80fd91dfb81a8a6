"""Speed where other programs use the processors too: threads wait awake, as by default, or sleep soon, as ours do."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import record
from benchmarks.speed import busy
from omniset.cli import WAITS
from omniset.regions.data import simulate, write_tables

REGIONS, GENES = 120, 200
AWAKE = {"GOMP_SPINCOUNT": "300000"}  # what GNU's OpenMP takes by itself where it has a processor per thread


def main(seed: int = 0) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_tables(root / "brain", simulate(REGIONS, GENES, seed))
        for others in (0, os.cpu_count() or 1):
            with busy(others):
                row = {"others": others, "awake": fit(root, AWAKE, seed), "asleep": fit(root, WAITS, seed)}
            rows.append({**row, "ratio": row["awake"] / row["asleep"]})
            print(rows[-1], file=sys.stderr, flush=True)
    about = {"regions": REGIONS, "genes": GENES, "processors": os.cpu_count()}
    record("benchmarks/busy", {"rows": rows, **about}, seed=seed)


def fit(root: Path, waits: dict[str, str], seed: int) -> float:
    """Seconds of `omniset regions fit`, whole."""
    names = {"expression": "expression", "connectivity": "connectivity", "coordinates": "regions"}
    files = [f"--{name}=brain/{file}.csv" for name, file in names.items()]
    start = time.perf_counter()
    omniset(root, waits, "fit", *files, f"--seed={seed}", "--out=model", "--progress=false")
    return time.perf_counter() - start


def omniset(root: Path, waits: dict[str, str], *words: str) -> None:
    command = [sys.executable, "-m", "omniset", "regions", *words]
    subprocess.run(command, cwd=root, env={**os.environ, **waits}, check=True, stdout=subprocess.DEVNULL)
