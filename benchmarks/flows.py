"""`--scheduler`: two workers of Dask against one, and a run of which one worker is killed.

`wall` is the time of the whole command. `busy` is the processor time of the worker that had most to do: what `wall`
would be on processors that nobody else uses, the command's own seconds and waiting left out.
"""

import os
import signal
import statistics
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pandas as pd

from benchmarks.results import record
from omniset import SetClassifier
from omniset.cli import main as command
from omniset.runs.console import RECORDS

PARTS, SETS, ELEMENTS, FEATURES = 8, 400, 2_000, 8
ROUNDS = ((1, 2), (2, 1), (1, 2))  # workers, interleaved


def main(seed: int = 0) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make(root, seed)
        first, _ = predict(root, "synchronous", "synchronous")
        timed: dict[int, list[dict[str, float]]] = {1: [], 2: []}
        for number in (workers for together in ROUNDS for workers in together):
            with cluster(number) as (address, client, _):
                made, seconds = predict(root, f"of-{number}", address, client)
            assert made == first
            timed[number].append(seconds)
            print(number, seconds, flush=True)
        with cluster(2) as (address, _, workers):
            killing = threading.Thread(target=kill, args=(root / "killed", workers[0].pid))
            killing.start()
            made, _ = predict(root, "killed", address)
            killing.join()
    medians = {n: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for n, rows in timed.items()}
    speedup = {key: medians[1][key] / medians[2][key] for key in medians[1]}
    print(speedup)
    shape = {"parts": PARTS, "sets": SETS, "elements": ELEMENTS, "features": FEATURES}
    killed = {"parts": len(made), "equal": sum(made[name] == first[name] for name in first)}
    values = {"seconds": timed, "speedup": speedup, "killed": killed, "load": os.getloadavg()[2]}
    record("flows", {**shape, **values, "dask": distributed.__version__}, seed=seed)


def make(root: Path, seed: int) -> None:
    """A model, and parts of sets."""
    rng = np.random.default_rng(seed)
    columns = [f"x{i}" for i in range(FEATURES)]
    few = pd.DataFrame(rng.standard_normal((40 * 50, FEATURES)), columns=columns)
    few.insert(0, "set", np.repeat([f"s{i}" for i in range(40)], 50))
    SetClassifier("ust", dim=128, epochs=1, device="cpu", progress=False).fit(few, np.arange(40) % 2).save(
        root / "model"
    )
    (root / "sets").mkdir()
    for number in range(PARTS):
        values = rng.standard_normal((SETS * ELEMENTS, FEATURES), dtype=np.float32)
        names = np.repeat([f"{number}-{i}" for i in range(SETS)], ELEMENTS)
        frame = pd.DataFrame(values, columns=columns)
        frame.insert(0, "set", names)
        frame.to_parquet(root / "sets" / f"part.{number}.parquet", index=False)


@contextmanager
def cluster(workers: int) -> Any:
    """Its address, a client and its workers, which have loaded the package already."""
    options = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(n_workers=workers, **options) as made, distributed.Client(made) as client:
        client.run(load)
        yield made.scheduler_address, client, made.workers


def load() -> None:
    import omniset.estimators.commands  # noqa: F401


def predict(root: Path, out: str, scheduler: str, client: Any = None) -> tuple[dict[str, bytes], dict[str, float]]:
    """What is written, by name; and seconds."""
    before = client.run(time.process_time) if client else {}
    start = time.perf_counter()
    words = ["predict", f"{root}/sets", f"--model={root}/model", f"--out={root}/{out}", f"--scheduler={scheduler}"]
    assert command([*words, "--device=cpu", "--progress=false"]) == 0
    wall = time.perf_counter() - start
    after = client.run(time.process_time) if client else {}
    busy = max((after[name] - before[name] for name in after), default=0.0)
    made = {path.name: path.read_bytes() for path in (root / out).iterdir() if path.is_file()}
    return made, {"wall": wall, "busy": busy}


def kill(out: Path, process: int) -> None:
    """When the first part is done, and others are at work."""
    while not [*out.glob(f"{RECORDS}/*.json")]:
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
