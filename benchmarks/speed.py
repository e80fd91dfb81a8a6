"""Speed and memory of set layers against peers, ratios of medians in one run; here two induced layers, named cases.

Contenders take turns, so that a slow spell of the machine meets all of them. Absolute times depend on the machine and
its other load; the ratios are what counts. Memory is measured in a process of its own for each.

How near a pass comes to what the machine can do is told twice. Of one layer, with N elements of width D, H heads and P
points, a product of matrices counted as two per multiplication:

1.  `limit`: the products that the gradient needs, in the folded form: 4 N D^2 of the FFN and 8 N H P D of scores and
    sums forward, twice that backward; none twice, nothing else.
2.  `counted`: the products of the form that was taken (the graph tells which), those included that are computed again
    because they were not kept, and the exponentials of the attention weights.

        form      products forward       products backward       exponentials forward, backward
        folded    4 N D^2 + 8 N H P D    10 N D^2 + 22 N H P D   2 N H P, 2 N H P
        small     12 N D^2 + 8 N P D     24 N D^2 + 16 N P D     2 N H P, none
        plain     12 N D^2 + 8 N P D     24 N D^2 + 20 N P D     2 N H P, 2 N H P

    Folded, backward, computes again scores of both halves, the second half's sums and the FFN's first layer: 6 N H P D
    + 2 N D^2. Small keeps all steps, and projects keys, values, queries and sums. Plain, scores are computed again.

Either takes products / rate of products + exponentials / rate of exponentials, or traffic / rate of copying, whichever
is longer; the rates are measured in the same run, on as many threads, with all numbers of products and exponentials in
the cache. Norms, residuals, activations, sums of softmax and transposes are in neither.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.machine import Memory, limit, quota, rates
from benchmarks.results import ROOT, record
from omniset.kernels import blocks
from omniset.layers import InducedSetAttentionBlock

Contender = Callable[[Tensor], Tensor]
LAYERS = 2


@dataclass(frozen=True)
class Case:
    """Induced set attention layers one after the other, FFN width dim, float32."""

    name: str
    sets: int
    elements: int
    dim: int
    heads: int
    inducing: int
    repeats: int
    layers: int = LAYERS
    kind: str = "induced"

    def input(self) -> Tensor:
        return torch.randn(self.sets, self.elements, self.dim)

    def lengths(self) -> Tensor:
        """Of sets padded to `elements`: anything between 1 and that, small ones as often as large ones."""
        generator = torch.Generator().manual_seed(0)
        return torch.exp(torch.rand(self.sets, generator=generator) * math.log(self.elements)).long()

    def mask(self) -> Tensor:
        return torch.arange(self.elements) < self.lengths()[:, None]

    @property
    def entries(self) -> int:
        return int(self.lengths().sum()) if self.kind == "ragged" else self.sets * self.elements

    def flops(self, backward: bool) -> float:
        """Of the folded form: FFN and, in each half, scores and averages of heads x inducing columns; 1 + 2 times."""
        half = 4 * self.dim * self.heads * self.inducing
        one = {"mean": 2 * self.dim, "pooling": half}.get(self.kind, 4 * self.dim**2 + 2 * half)
        return self.layers * self.entries * one * (3 if backward else 1)

    def counted(self, form: str, backward: bool) -> tuple[float, float]:
        """Operations of products, and exponentials, that this form computes (table above)."""
        squares, columns = self.dim**2, self.dim * self.inducing
        columns *= self.heads if form == "folded" else 1
        (square, column), (square_back, column_back), times = FORMS[form]
        products = square * squares + column * columns + backward * (square_back * squares + column_back * columns)
        exponentials = 2 * self.heads * self.inducing * (times if backward else 1)
        return self.layers * self.entries * products, self.layers * self.entries * exponentials

    def traffic(self, backward: bool) -> float:
        """Bytes: each half reads the elements, the second writes them; backward reads them and the gradient, twice."""
        passes = 1 + 2 * backward if self.kind in ("mean", "pooling") else 3 + 7 * backward
        return self.layers * self.entries * self.dim * 4 * passes


# Products forward and backward, as multiples of N D^2 and N P D (folded: N H P D); how often exponentials are computed.
FORMS = {"folded": ((4, 8), (10, 22), 2), "small": ((12, 8), (24, 16), 1), "plain": ((12, 8), (24, 20), 2)}
MADE_BY = {"SpreadBackward": "folded", "SmallBlockBackward": "small"}  # the last step of a layer


CASES = (
    Case("A", sets=64, elements=512, dim=32, heads=4, inducing=8, repeats=41),
    Case("B", sets=8, elements=4096, dim=128, heads=4, inducing=16, repeats=21),
    Case("C", sets=1, elements=131_072, dim=256, heads=4, inducing=16, repeats=7),
    Case("D", sets=1, elements=1_000_000, dim=32, heads=4, inducing=4, repeats=7),
)


def ours(case: Case) -> Contender:
    return nn.Sequential(*(InducedSetAttentionBlock(case.dim, case.heads, case.inducing) for _ in range(case.layers)))


def torch_geometric(case: Case) -> Contender:
    from torch_geometric.nn.aggr.utils import InducedSetAttentionBlock as Theirs

    return nn.Sequential(*(Theirs(case.dim, case.inducing, case.heads) for _ in range(case.layers)))


class PlainLayer(nn.Module):
    """The same layer with scaled_dot_product_attention and nothing else: what one writes in ten minutes."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        d, self.heads = case.dim, case.heads
        self.points = nn.Parameter(torch.randn(1, case.inducing, d))
        self.linears = nn.ModuleList(nn.ModuleList(nn.Linear(d, d) for _ in range(6)) for _ in range(2))
        self.norms = nn.ModuleList(nn.ModuleList(nn.LayerNorm(d) for _ in range(3)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(1, x, self.block(0, self.points.expand(len(x), -1, -1), x))

    def block(self, number: int, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value, out, first, second = self.linears[number]
        norm_x, norm_y, norm_h = self.norms[number]
        normed = norm_y(y)
        parts = (query(norm_x(x)), key(normed), value(normed))
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        h = x + out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))
        return h + second(first(norm_h(h)).relu())


def plain(case: Case) -> Contender:
    return nn.Sequential(*(PlainLayer(case) for _ in range(case.layers)))


KINDS: dict[str, dict[str, Callable[[Case], Any]]] = {
    "induced": {"omniset": ours, "torch_geometric": torch_geometric, "plain SDPA": plain},
}


def forward(layer: Contender, x: Tensor) -> None:
    with torch.no_grad():
        layer(x)


def forward_backward(layer: Contender, x: Tensor) -> None:
    layer(x.requires_grad_()).sum().backward()


WORK = {"forward": forward, "forward+backward": forward_backward}


def in_turn(work: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Seconds of each, over so many rounds after one to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(repeats + 1):
        for name, function in work.items():
            start = time.perf_counter()
            function()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return {name: {"median": statistics.median(s), "least": min(s), "most": max(s)} for name, s in seconds.items()}


def faults(work: Callable[[], Any]) -> int:
    """Pages of memory that the system hands out anew while the work is done once more."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Beside other programs that never rest."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def measure(case: Case, what: str, seed: int, machine: dict[str, float], weigh: bool = True) -> dict[str, Any]:
    torch.manual_seed(seed)
    layers = {name: make(case) for name, make in KINDS[case.kind].items()}
    x = case.input()
    work: dict[str, Any] = {n: lambda layer=layer: WORK[what](layer, x.detach()) for n, layer in layers.items()}
    seconds = in_turn(work, case.repeats)
    memory = {name: extra_memory(case, name, what) for name in layers} if weigh else None
    peer = min((n for n in seconds if n != "omniset"), key=lambda n: seconds[n]["median"])
    backward, median = what != "forward", seconds["omniset"]["median"]
    least = limit(case.flops(backward), case.traffic(backward), machine)
    counted = None
    if case.kind == "induced":
        form = MADE_BY.get(layers["omniset"](x).grad_fn.name(), "plain")
        products, exponentials = case.counted(form, backward)
        counted = limit(products, case.traffic(backward), machine, exponentials) | {
            "form": form,
            "products": products,
            "exponentials": exponentials,
        }
    return {
        "case": asdict(case),
        "what": what,
        "seconds": seconds,
        "extra_bytes": memory,
        "faster_peer": peer,
        "speedup": seconds[peer]["median"] / median,
        "memory_ratio": memory and memory["omniset"] / max(min(m for n, m in memory.items() if n != "omniset"), 1),
        "limit": least,
        "share_of_limit": least["seconds"] / median,
        "counted": counted,
        "share_counted": counted and counted["seconds"] / median,
        "faults": {name: faults(function) for name, function in work.items()},
    }


def extra_memory(case: Case, name: str, what: str) -> int:
    """Peak anonymous memory beyond the input and the weights: outputs and gradients are counted."""
    words = json.dumps([asdict(case), name, what])
    module = "grid" if case.kind != "induced" else "speed"  # where the kind is known
    command = [sys.executable, "-c", f"from benchmarks.{module} import alone; alone({words!r})"]
    return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def alone(words: str) -> None:
    case, name, what = json.loads(words)
    torch.set_num_threads(2)
    case = Case(**case)
    layer, x = KINDS[case.kind][name](case), case.input()
    # What libraries set up once is not counted.
    small = replace(case, sets=1, elements=64)
    WORK[what](KINDS[case.kind][name](small), small.input())
    with Memory() as memory:
        WORK[what](layer, x)
    print(memory.extra)


def half(case: Case, seed: int) -> dict[str, Any]:
    """Ours with input and weights in bfloat16, against the float32 peers, and how far from float64 it is."""
    torch.manual_seed(seed)
    ours_half, x = ours(case), case.input()
    assert isinstance(ours_half, nn.Module)
    with torch.no_grad():
        exact = ours_half.double()(x[:, :8192].double())
        ours_half.bfloat16()
        error = (ours_half(x[:, :8192].bfloat16()).double() - exact).norm() / exact.norm()
    peers: dict[str, Any] = {n: make(case) for n, make in KINDS["induced"].items() if n != "omniset"}
    low = x.bfloat16()
    work: dict[str, Any] = {n: lambda layer=layer: forward_backward(layer, x.detach()) for n, layer in peers.items()}
    work["omniset"] = lambda: forward_backward(ours_half, low.detach())
    seconds = in_turn(work, case.repeats)
    peer = min(peers, key=lambda n: seconds[n]["median"])
    return {
        "case": case.name,
        "seconds": seconds,
        "faster_peer": peer,
        "speedup": seconds[peer]["median"] / seconds["omniset"]["median"],
        "error": float(error),
    }


def main(seed: int = 0) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks speed", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="ABCD")
    parser.add_argument("--beside", type=int, default=1, help="busy processes beside which all is measured once more")
    parser.add_argument("--quota", type=float, default=1.0, help="processors of which a container has the time")
    parser.add_argument("--name", default="speed", help="of the file of results, for another machine")
    given = parser.parse_args(sys.argv[2:])
    torch.set_num_threads(2)
    machine = rates()
    print(machine, file=sys.stderr)
    rows = []
    conditions = [(0, None), (given.beside, None), (0, given.quota)]
    kinds = [("forward", *conditions[0]), *(("forward+backward", *condition) for condition in conditions)]
    for case in [case for case in CASES if case.name in given.cases]:
        for what, others, share in kinds:
            alone = others == 0 and share is None
            with busy(others), nullcontext(True) if share is None else quota(share) as possible:
                if not possible:
                    print("no quota: control groups cannot be made here", file=sys.stderr)
                    continue
                row = measure(case, what, seed, machine, weigh=alone) | {"beside": others, "quota": share}
            rows.append(row)
            memory = f", memory {row['memory_ratio']:.2f}" if row["memory_ratio"] else ""
            print(
                f"{case.name} {what}, beside {others}, quota {share}: "
                f"{row['speedup']:.2f} x {row['faster_peer']}{memory}, "
                f"{row['share_of_limit']:.0%} of the limit ({row['limit']['by']}), "
                f"{row['share_counted']:.0%} with all that is computed ({row['counted']['form']})",
                file=sys.stderr,
                flush=True,
            )
    about = {"layers": LAYERS, "processors": os.cpu_count(), "instructions": torch.backends.cpu.get_cpu_capability()}
    about["compiled"] = blocks.library() is not None
    values = {"machine": machine, "rows": rows, "bfloat16": half(CASES[2], seed)}
    record(f"benchmarks/{given.name}", about | values, seed=seed, part_of=f"speed --name {given.name}")
