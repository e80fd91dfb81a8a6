"""What it gains to hold memory back (`omniset.kernels.pages`): steps of a small network with it, and without.

A process each, with and without in turn: the C library adapts to what a process has done before. Of one thread, in
seconds of the processor, which other programs change little.
"""

import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from benchmarks.results import ROOT, record
from omniset.core.sets import SetBatch
from omniset.encoders import build
from omniset.kernels import gather, pages, spread, sums

CASES = ((64, 50, 64), (16, 250, 64), (64, 250, 32), (64, 250, 64), (64, 250, 128))  # sets, of, dim
REPEATS, SECONDS = 3, 2.0


def main() -> None:
    if len(sys.argv) > 2:
        print(step(*(int(word) for word in sys.argv[2:])))
        return
    rows = []
    for case in CASES:
        rows.append(measure(*case))
        print(rows[-1], flush=True)
    record("benchmarks/held_back", {"network": "ust, 2 blocks, 4 heads, 16 points", "rows": rows}, seed=0)


def measure(number: int, size: int, dim: int) -> dict[str, Any]:
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(REPEATS):
        for held, into in seconds.items():
            words = [sys.executable, "-m", "benchmarks", "held_back", *map(str, (held, number, size, dim))]
            into.append(float(subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout))
    return {
        "sets": number,
        "elements": size,
        "dim": dim,
        "seconds": statistics.median(seconds[1]),
        "ratios": [without / held for without, held in zip(*seconds.values(), strict=True)],  # above 1: it gains
    }


def step(held: int, number: int, size: int, dim: int) -> float:
    """Median seconds of a step of training in this process."""
    if not held:
        for module in (pages, gather, spread, sums):
            module.empty = plain  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = build("ust", input_dim=16, num_inducing=16, dim=dim, num_heads=4, depth=2)
    optimizer = torch.optim.AdamW(encoder.parameters())
    x = torch.randn(number, size, 16)
    seconds: list[float] = []
    start = time.process_time()
    while len(seconds) < 8 or time.process_time() < start + SECONDS:
        before = time.process_time()
        optimizer.zero_grad()
        encoder(SetBatch(x)).summary.square().sum().backward()
        optimizer.step()
        seconds.append(time.process_time() - before)
    return statistics.median(seconds[3:])


def plain(shape: Any, like: torch.Tensor, dtype: torch.dtype | None = None, passing: bool = False) -> torch.Tensor:
    return like.new_empty(shape, dtype=like.dtype if dtype is None else dtype)
