"""Speed of one layer against peers on small sets: alone, and in batches as networks are trained on.

A network that is fitted takes one thread, whoever calls a layer mostly all. Calls are repeated often: a program calls a
layer thousands of times, and Python's first calls are slower.
"""

import sys

import torch

from benchmarks.machine import rates
from benchmarks.results import record
from benchmarks.speed import WORK, Case, measure

ALONE = [Case(f"{n:,} elements", 1, n, dim=32, heads=4, inducing=4, repeats=201, layers=1) for n in (100, 300, 1000)]
BATCHES = [
    Case(f"{sets} sets of {n:,}", sets, n, dim=64, heads=4, inducing=16, repeats=101, layers=1)
    for sets, n in ((100, 30), (16, 100), (16, 250), (16, 1000))
]


def main(seed: int = 0) -> None:
    rows = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        machine = rates()
        for case in (*ALONE, *BATCHES):
            for what in WORK:
                rows.append({"threads": threads, **measure(case, what, seed, machine, weigh=False)})
                print(f"{case.name}, {threads} threads, {what}: {rows[-1]['speedup']:.2f}", file=sys.stderr, flush=True)
    record("benchmarks/batches", {"rows": rows}, seed=seed)
