"""The demo, recorded."""

import shutil
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.results import ROOT, record
from omniset.cli.demo import demo


def main(seed: int = 0) -> None:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = demo(Path(folder), seed=seed, device="cpu", progress=False)
        (ROOT / "docs" / "images").mkdir(exist_ok=True)
        shutil.copy(Path(folder) / "digits.png", ROOT / "docs" / "images")
    seconds = round(time.perf_counter() - start)
    kept = ("train_sets", "test_sets", "model", "accuracy", "shard_agreement")
    record(
        "demo", {key: found[key] for key in kept} | {"seconds": seconds, "threads": torch.get_num_threads()}, seed=seed
    )
