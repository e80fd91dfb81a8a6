"""Speed and memory against peers: named cases, all contenders in turn in one run, ratios of medians.

A contender is built from the case and called with (elements,); it returns a tensor like elements. Absolute times depend
on the machine and its other load; the ratios are what counts.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.results import record
from omniset.layers import InducedSetAttentionBlock

Contender = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """One induced set attention layer, FFN width dim, float32."""

    name: str
    sets: int
    elements: int
    dim: int
    heads: int
    inducing: int
    repeats: int


CASES = (
    Case("A", sets=64, elements=512, dim=32, heads=4, inducing=8, repeats=21),
    Case("B", sets=8, elements=4096, dim=128, heads=4, inducing=16, repeats=11),
    Case("C", sets=1, elements=131_072, dim=256, heads=4, inducing=16, repeats=5),
    Case("D", sets=1, elements=1_000_000, dim=32, heads=4, inducing=4, repeats=5),
)


def ours(case: Case) -> Contender:
    return InducedSetAttentionBlock(case.dim, case.heads, case.inducing)


def torch_geometric(case: Case) -> Contender:
    from torch_geometric.nn.aggr.utils import InducedSetAttentionBlock as Theirs

    return Theirs(case.dim, case.inducing, case.heads)


class PlainBlock(nn.Module):
    """The same layer with scaled_dot_product_attention and nothing else: what one writes in ten minutes."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        d, self.heads = case.dim, case.heads
        self.points = nn.Parameter(torch.randn(1, case.inducing, d))
        self.linears = nn.ModuleList(nn.ModuleList(nn.Linear(d, d) for _ in range(6)) for _ in range(2))
        self.norms = nn.ModuleList(nn.ModuleList(nn.LayerNorm(d) for _ in range(3)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(1, x, self.block(0, self.points.expand(len(x), -1, -1), x))

    def block(self, number: int, x: Tensor, y: Tensor) -> Tensor:
        query, key, value, out, first, second = self.linears[number]
        norm_x, norm_y, norm_h = self.norms[number]
        normed = norm_y(y)
        parts = (query(norm_x(x)), key(normed), value(normed))
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        h = x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return h + second(first(norm_h(h)).relu())


CONTENDERS: dict[str, Callable[[Case], Contender]] = {
    "omniset": ours,
    "torch_geometric": torch_geometric,
    "plain SDPA": PlainBlock,
}


def forward(layer: Contender, x: Tensor) -> None:
    with torch.no_grad():
        layer(x)


def forward_backward(layer: Contender, x: Tensor) -> None:
    layer(x.requires_grad_()).sum().backward()


def measure(case: Case, work: Callable[[Contender, Tensor], None], seed: int) -> dict[str, Any]:
    """Median seconds of each contender, run in turn so that a slow spell of the machine meets all of them."""
    torch.manual_seed(seed)
    layers = {name: make(case) for name, make in CONTENDERS.items()}
    x = torch.randn(case.sets, case.elements, case.dim)
    seconds: dict[str, list[float]] = {name: [] for name in layers}
    for repeat in range(case.repeats + 1):
        for name, layer in layers.items():
            start = time.perf_counter()
            work(layer, x.detach())
            if repeat:  # the first warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: {"median": statistics.median(s), "least": min(s), "most": max(s)} for name, s in seconds.items()}


def main(seed: int = 0, names: str = "ABCD") -> None:
    torch.set_num_threads(2)
    rows = []
    for case in CASES:
        if case.name not in names:
            continue
        for what, work in (("forward", forward), ("forward+backward", forward_backward)):
            seconds = measure(case, work, seed)
            peer = min((n for n in seconds if n != "omniset"), key=lambda n: seconds[n]["median"])
            ratio = seconds[peer]["median"] / seconds["omniset"]["median"]
            rows.append({"case": asdict(case), "what": what, "seconds": seconds, "faster_peer": peer, "speedup": ratio})
            print(f"{case.name} {what}: {ratio:.2f} x {peer}", file=sys.stderr)
    record("benchmarks/speed", {"layer": "one induced set attention block, float32", "rows": rows}, seed=seed)
