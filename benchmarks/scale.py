"""Exact gradients at scale: steps on sets larger than memory, the step's cost against the whole set, two processes."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.machine import Memory
from benchmarks.results import ROOT, record
from benchmarks.speed import Case, PlainLayer, in_turn
from omniset import SetBatch, encoders
from omniset.core.sources import ArraySource

DIM, HEADS, POINTS, DEPTH = 32, 4, 4, 4
SHARD = 65_536
MILLION = 1_000_000


def encoder() -> Any:
    torch.manual_seed(0)
    return encoders.build("ust", input_dim=DIM, dim=DIM, depth=DEPTH, num_heads=HEADS, num_inducing=POINTS)


class Plain(torch.nn.Module):
    """The same network as `encoder`, whole, with scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(DIM, DIM)
        case = Case("", 1, 0, DIM, HEADS, POINTS, 0)
        self.layers = torch.nn.Sequential(*(PlainLayer(case) for _ in range(DEPTH)))
        self.pool = PlainLayer(case)
        self.pool.points = torch.nn.Parameter(torch.randn(1, 1, DIM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool.block(0, self.pool.points, self.layers(self.embed(x)))


def main(seed: int = 0) -> None:
    torch.set_num_threads(2)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for millions in (10, 20):
            path = Path(folder) / f"{millions}.npy"
            write(path, millions * MILLION, seed)
            for store in ("disk", "recompute"):
                rows.append({"elements": millions * MILLION, "store": store, **child("larger", [str(path), store])})
                print(rows[-1], flush=True)
            path.unlink()
    values = {
        "dim": DIM,
        "layers": DEPTH,
        "inducing": POINTS,
        "shard_size": SHARD,
        "larger_than_memory": rows,
        "one_million": million(),
        "processes": processes(),
    }
    record("benchmarks/scale", values, seed=seed)


def write(path: Path, elements: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    array = np.lib.format.open_memmap(path, "w+", np.float32, (elements, DIM))
    for start in range(0, elements, MILLION):
        array[start : start + MILLION] = rng.standard_normal((min(MILLION, elements - start), DIM), dtype=np.float32)
    array.flush()


def child(function: str, arguments: list[Any], threads: int = 2) -> dict[str, Any]:
    command = [sys.executable, "-c", f"from benchmarks import scale; scale.{function}(*{arguments!r})"]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def larger(path: str, store: str) -> None:
    """One training step from a mapped file."""
    model, source = encoder(), ArraySource(np.load(path, mmap_mode="r"), SHARD)
    start = time.perf_counter()
    with Memory() as memory:
        model(source, store=store).summary.square().sum().backward()
    print(json.dumps({"seconds": time.perf_counter() - start, "peak_anonymous_bytes": memory.peak}))


def million() -> dict[str, Any]:
    """A step on a million elements in memory: streamed with exact gradients against whole, plain and ours."""
    ways = ("plain SDPA, whole", "omniset, whole", "omniset, shards")
    x = torch.randn(1, MILLION, DIM)
    seconds = in_turn({way: step_of(way, x) for way in ways}, 7)
    found = {way: {**seconds[way], **child("million_memory", [way])} for way in ways}
    print(found, flush=True)
    return found


def step_of(way: str, x: torch.Tensor) -> Any:
    if way.startswith("plain"):
        plain = Plain()
        return lambda: plain(x).square().sum().backward()
    model, size = encoder(), SHARD if way.endswith("shards") else None
    return lambda: model(SetBatch(x), shard_size=size).summary.square().sum().backward()


def million_memory(way: str) -> None:
    step_of(way, torch.randn(1, 64, DIM))()
    step = step_of(way, torch.randn(1, MILLION, DIM))
    with Memory() as memory:
        step()
    print(json.dumps({"extra_bytes": memory.extra}))


def processes() -> dict[str, Any]:
    """A step on one set of a million elements: one process with one thread, two processes with one each, in turn."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(3):
        for size in seconds:
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-c", "from benchmarks import scale; scale.share()"]
                environment = os.environ | {"OMP_NUM_THREADS": "1", "BENCHMARK_GROUP": f"{folder}/meet {size}"}
                running = [
                    subprocess.Popen(
                        command, cwd=ROOT, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True
                    )
                    for rank in range(size)
                ]
                said = [process.communicate()[0] for process in running]
                seconds[size] += json.loads(said[0])
    median = {size: float(np.median(s)) for size, s in seconds.items()}
    found = {"elements": MILLION, "seconds": seconds, "median": median, "speedup": median[1] / median[2]}
    print(found, flush=True)
    return found


def share() -> None:
    torch.set_num_threads(1)
    path, number = os.environ["BENCHMARK_GROUP"].split()
    rank, size = int(os.environ["RANK"]), int(number)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    model = encoder()
    batch = SetBatch(torch.randn(1, MILLION, DIM)[:, rank::size].contiguous())
    taken = []
    for _ in range(4):
        dist.barrier()
        start = time.perf_counter()
        out = model(batch, shard_size=SHARD, process_group=dist.group.WORLD if size > 1 else None)
        out.summary.square().sum().backward()
        dist.barrier()
        taken.append(time.perf_counter() - start)
    print(json.dumps(taken[1:]))
    dist.destroy_process_group()
