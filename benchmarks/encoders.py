"""Encoders as users call them, of the sets that people have, against the same in plain PyTorch: ratios in one run.

Plain: what one writes in an afternoon, linear layers, norms and scaled_dot_product_attention on padded batches. All
contenders take turns on one thread, on two, and on two beside a program that never rests.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.results import record
from benchmarks.speed import busy, in_turn
from omniset import SetBatch, encoders
from omniset.layers import PoolingByMultiheadAttention

INPUT, DIM, HEADS, POINTS = 16, 64, 4, 16
ASKED = {  # plain / ours, forward and forward+backward
    "one set of 50": (1.2, 1.2),
    "one set of 500": (1.3, 1.3),
    "64 sets of 50": (1.7, 1.5),
    "16 sets of 250": (1.7, 2.0),
    "32 ragged sets of 10 to 500": (2.5, 2.3),
    "64 sets of 50, one by one": (1.2, None),
    "flare, 16 sets of 250": (1.0, 1.0),
    "set-transformer-sab, 16 sets of 250": (1.0, 1.0),
    "deep-sets, 16 sets of 250": (1.0, 1.0),
    "pma alone, 16 sets of 250": (1.0, 1.0),
}
Call = Callable[[], Tensor]


class Block(nn.Module):
    """Queries attend to elements, then an FFN; norms before."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out, self.first, self.second = (nn.Linear(DIM, DIM) for _ in range(6))
        self.norm_x, self.norm_y, self.norm_h = (nn.LayerNorm(DIM) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
        normed = self.norm_y(y)
        parts = self.query(self.norm_x(x)).expand(len(y), -1, -1), self.key(normed), self.value(normed)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        h = x + self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))
        return h + self.second(self.first(self.norm_h(h)).relu())


class Attention(nn.Module):
    """Induced layers, or without points full self-attention, and one seed that pools."""

    def __init__(self, depth: int, points: int, embed: bool = True) -> None:
        super().__init__()
        self.embed = nn.Linear(INPUT, DIM) if embed else nn.Identity()
        self.points = nn.ParameterList(nn.Parameter(torch.randn(1, points, DIM)) for _ in range(depth * bool(points)))
        self.blocks = nn.ModuleList(Block() for _ in range(depth * (2 if points else 1)))
        self.seed, self.pool = nn.Parameter(torch.randn(1, 1, DIM)), Block()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed(x)
        blocks = iter(self.blocks)
        for points in self.points:
            x = next(blocks)(x, next(blocks)(points, x, mask), None)
        for block in blocks:
            x = block(x, x, mask)
        return self.pool(self.seed, x, mask)


class Residual(nn.Module):
    """As FLARE has it, with three hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4)), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return x + self.last(x)


class Flare(nn.Module):
    """Two calls of attention, as its authors write it."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.embed, self.pool, self.seed = nn.Linear(INPUT, DIM), Block(), nn.Parameter(torch.randn(1, 1, DIM))
        self.latents = nn.ParameterList(nn.Parameter(torch.randn(HEADS, POINTS, DIM // HEADS)) for _ in range(depth))
        self.parts = nn.ModuleList(
            nn.ModuleList([*(Residual() for _ in range(3)), nn.Linear(DIM, DIM), nn.LayerNorm(DIM), nn.LayerNorm(DIM)])
            for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for latents, (key, value, ffn, out, norm, norm_ffn) in zip(self.latents, self.parts, strict=True):
            y = norm(x)
            k, v = (z.unflatten(-1, (HEADS, -1)).transpose(1, 2) for z in (key(y), value(y)))
            latent = latents.expand(len(x), -1, -1, -1)
            z = F.scaled_dot_product_attention(latent, k, v, scale=1.0)
            x = x + out(F.scaled_dot_product_attention(k, latent, z, scale=1.0).transpose(1, 2).flatten(2))
            x = x + ffn(norm_ffn(x))
        return self.pool(self.seed, x, None)


class Mean(nn.Module):
    """Deep Sets."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (INPUT, *[DIM] * 5)
        self.phi, self.rho = (
            nn.Sequential(*(m for a, b in pairwise(w) for m in (nn.Linear(a, b), nn.ReLU())))[:-1]
            for w in (sizes, [DIM] * 6)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.rho(self.phi(x).mean(1))


def contenders(case: str) -> tuple[Any, Any, Call, Call]:
    """Our module and the plain one, and a call of each."""
    sizes = {"one set of 50": (1, 50, 3), "one set of 500": (1, 500, 3), "64 sets of 50": (64, 50, 4)}
    sets, elements, depth = sizes.get(case.partition(",")[0], (16, 250, 4))
    kind = case.partition(",")[0] if case.startswith(("flare", "set-", "deep-")) else "ust"
    x = torch.randn(sets, elements, INPUT)
    if "ragged" in case:
        lengths = torch.linspace(10, 500, 32).long().tolist()
        batch = SetBatch.from_ragged([torch.randn(n, INPUT) for n in lengths])
        ours, plain = encoder(kind, depth), Attention(depth, POINTS)
        mask = (batch.multiplicity > 0)[:, None, None]
        return ours, plain, lambda: ours(batch).summary, lambda: plain(batch.elements, mask)
    if case.startswith("pma"):
        y = torch.randn(sets, elements, DIM)
        ours, plain = PoolingByMultiheadAttention(DIM, HEADS, 1), Attention(0, 0, embed=False)
        return ours, plain, lambda: ours(y), lambda: plain(y)
    ours = encoder(kind, depth)
    plain = {"flare": lambda: Flare(depth), "deep-sets": Mean}.get(
        kind, lambda: Attention(depth, POINTS if kind == "ust" else 0)
    )()
    if case.endswith("one by one"):
        every = [SetBatch(one[None]) for one in x]
        return ours, plain, lambda: [ours(b) for b in every][-1].summary, lambda: [plain(b.elements) for b in every][-1]
    batch = SetBatch(x)
    return ours, plain, lambda: ours(batch).summary, lambda: plain(x)


def encoder(kind: str, depth: int) -> nn.Module:
    more: dict[str, Any] = {"num_heads": HEADS}
    more |= {"ust": {"num_inducing": POINTS}, "flare": {"num_inducing": POINTS}}.get(kind, {})
    return encoders.build(kind, input_dim=INPUT, dim=DIM, depth=depth, **({} if kind == "deep-sets" else more))


def measure(case: str, backward: bool, seconds: float) -> dict[str, Any]:
    """Median seconds of each, and plain / ours."""
    torch.manual_seed(0)
    *modules, ours, plain = contenders(case)

    def work(module: nn.Module, call: Call) -> Callable[[], None]:
        def run() -> None:
            with nullcontext() if backward else torch.no_grad():
                out = call()
                if backward:
                    module.zero_grad()
                    out.sum().backward()

        return run

    works = {"omniset": work(modules[0], ours), "plain": work(modules[1], plain)}
    once = statistics.mean(t["median"] for t in in_turn(works, 3).values())
    times = in_turn(works, max(int(seconds / once / 2), 5))
    return {"seconds": times, "ratio": times["plain"]["median"] / times["omniset"]["median"]}


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks encoders", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose names begin so")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default: 2)")
    options = parser.parse_args(sys.argv[2:])
    rows = []
    for name, threads, beside in (("one thread", 1, 0), ("two threads", 2, 0), ("two threads, one busy", 2, 1)):
        torch.set_num_threads(threads)
        with busy(beside):
            for case, asked in ASKED.items():
                if not case.startswith(options.only):
                    continue
                for backward, bound in zip((False, True), asked, strict=True):
                    if bound is None:
                        continue
                    found = measure(case, backward, options.seconds)
                    bound = bound if not beside else 1.0
                    what = "forward+backward" if backward else "forward"
                    rows.append({"on": name, "case": case, "what": what, "asked": bound, **found})
                    print(f"{name:22} {case:36} {what:17} {found['ratio']:.2f} ({bound})", flush=True)
    if not options.only:
        record("benchmarks/encoders", {"rows": rows})
