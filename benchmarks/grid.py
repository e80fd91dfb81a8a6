"""How speed and memory against peers follow the size of the sets, the width, and the points; ragged sets; pooling."""

import sys
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor, nn

from benchmarks import speed
from benchmarks.machine import rates
from benchmarks.results import ROOT, record
from benchmarks.speed import Case, PlainLayer, measure
from omniset import SetBatch
from omniset.encoders import build
from omniset.layers import PoolingByMultiheadAttention
from omniset.layers.pooling import SetPooling
from omniset.report.plots import COLOURS, save

alone = speed.alone  # also of the kinds below
SWEEPS: dict[str, list[Case]] = {
    "elements": [
        Case(f"{10**n:,}", 1, 10**n, dim=32, heads=4, inducing=4, repeats=7 if n < 7 else 1, layers=1)
        for n in range(2, 8)
    ],
    "width": [
        Case(str(d), 1, 32_768, dim=d, heads=4, inducing=8, repeats=7, layers=1) for d in (32, 64, 128, 256, 512)
    ],
    "points": [
        Case(f"{k:,}", 1, 32_768, dim=128, heads=4, inducing=k, repeats=7, layers=1)
        for k in (2, 8, 32, 64, 128, 256, 512, 1024)
    ],
    "ragged sets": [
        Case(f"64 sets of 1 to {most:,}", 64, most, 64, 4, 8, 7, layers=1, kind="ragged") for most in (1000, 4096)
    ],
    "PMA": [Case("8 sets of 16,384, 4 seeds", 8, 16_384, 128, 4, 4, 7, layers=1, kind="pooling")],
    "mean": [Case("8 sets of 16,384", 8, 16_384, 128, 1, 1, 7, layers=1, kind="mean")],
}
WEIGHED = ("elements", "ragged sets", "PMA", "mean")  # sweeps in which memory is measured too


class OursRagged(nn.Module):
    """A layer within an encoder, which sees that sets end before the padding does; with a pool that peers lack."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        sizes = {"depth": 1, "num_heads": case.heads, "num_inducing": case.inducing, "input_layers": 0}
        self.encoder, self.m = build("ust", input_dim=case.dim, dim=case.dim, **sizes), case.mask()

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(SetBatch(x, self.m, validate=False)).elements


class TheirsRagged(nn.Module):
    def __init__(self, case: Case) -> None:
        from torch_geometric.nn.aggr.utils import InducedSetAttentionBlock as Theirs

        super().__init__()
        self.layer, self.mask = Theirs(case.dim, case.inducing, case.heads), case.mask()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, self.mask)


class PlainRagged(PlainLayer):
    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.mask = case.mask()[:, None, None]

    def forward(self, x: Tensor) -> Tensor:
        return self.block(1, x, self.block(0, self.points.expand(len(x), -1, -1), x, self.mask))


class TheirPooling(nn.Module):
    """With neither encoder nor decoder: its PMA alone."""

    def __init__(self, case: Case) -> None:
        from torch_geometric.nn.aggr import SetTransformerAggregation

        super().__init__()
        self.layer = SetTransformerAggregation(case.dim, case.inducing, 0, 0, case.heads, layer_norm=True)
        self.index = torch.arange(case.sets).repeat_interleave(case.elements)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(0, 1), self.index)


class PlainPooling(PlainLayer):
    def forward(self, x: Tensor) -> Tensor:
        return self.block(0, self.points.expand(len(x), -1, -1), x)


class OurMean(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.layer, self.m = SetPooling("mean"), torch.ones(case.sets, case.elements)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, self.m)


speed.KINDS |= {
    "ragged": {"omniset": OursRagged, "torch_geometric": TheirsRagged, "plain SDPA": PlainRagged},
    "pooling": {
        "omniset": lambda case: PoolingByMultiheadAttention(case.dim, case.heads, case.inducing),
        "torch_geometric": TheirPooling,
        "plain SDPA": PlainPooling,
    },
    "mean": {"omniset": OurMean, "torch.mean": lambda case: lambda x: x.mean(1)},
}


def main(seed: int = 0) -> None:
    torch.set_num_threads(2)
    machine, rows = rates(), []
    for sweep, cases in SWEEPS.items():
        for case in cases:
            for what in speed.WORK:
                weigh = sweep in WEIGHED and what != "forward" and case.elements >= 1000
                rows.append({"sweep": sweep, **measure(case, what, seed, machine, weigh)})
                print(f"{sweep} {case.name}, {what}: {rows[-1]['speedup']:.2f}", file=sys.stderr, flush=True)
    draw(rows)
    record("benchmarks/grid", {"machine": machine, "rows": rows}, seed=seed)


def draw(rows: list[dict[str, Any]]) -> None:
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    places = {"elements": "elements", "width": "dim", "points": "inducing"}
    for axes, (sweep, key) in zip(figure.subplots(1, 3), places.items(), strict=True):
        own = [row for row in rows if row["sweep"] == sweep and row["what"] != "forward"]
        for colour, name in zip(COLOURS, speed.KINDS["induced"], strict=False):
            values = [row["seconds"][name]["median"] / row["case"]["elements"] * 1e9 for row in own]
            axes.plot([row["case"][key] for row in own], values, "-o", color=colour, ms=4, label=name)
        axes.set(xscale="log", yscale="log", xlabel=sweep, title=f"by {sweep}")
        sizes = [row["case"][key] for row in own]
        axes.set_xticks(sizes, [f"{size:,}" if size < 10_000 else f"$10^{len(str(size)) - 1}$" for size in sizes])
        axes.minorticks_off()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.spines[["top", "right"]].set_visible(False)
        if sweep == "elements":
            axes.set(ylabel="time per element, forward+backward (ns)")
            axes.legend(frameon=False, fontsize="small")
    save(figure, ROOT / "docs" / "images" / "grid.png")
