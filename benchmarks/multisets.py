"""Cost follows the distinct elements: a multiset of 4,194,304 elements of which u are distinct, against a set of u.

After Figure A.1 of the Universal Set Transformer: peak memory and time of one layer, forward and backward, u from 1 up.
"""

import json
import subprocess
import sys
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks.machine import Memory
from benchmarks.results import ROOT, record
from benchmarks.speed import in_turn
from omniset import compact
from omniset.layers import InducedSetAttentionBlock, SetAttentionBlock
from omniset.report.plots import COLOURS, save

TOTAL = 1 << 22
DIM, HEADS, POINTS = 32, 4, 4
LARGEST = {"SAB": 14, "U-ISAB": 22}  # powers of 2
REPEATS = 7


def layer_of(name: str) -> Any:
    torch.manual_seed(0)
    return SetAttentionBlock(DIM, HEADS) if name == "SAB" else InducedSetAttentionBlock(DIM, HEADS, POINTS)


def main(seed: int = 0) -> None:
    torch.set_num_threads(2)
    rows = []
    for name, largest in LARGEST.items():
        for power in range(0, largest + 1, 2):
            rows.append(measure(name, 1 << power, seed))
            print(rows[-1], flush=True)
    draw(rows)
    values = {
        "elements": TOTAL,
        "dim": DIM,
        "heads": HEADS,
        "inducing": POINTS,
        "rows": rows,
        "compact": compacting(seed),
    }
    record("benchmarks/multisets", values, seed=seed)


def inputs(distinct: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct elements and how often each is there, TOTAL in all."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, distinct, DIM, generator=generator)
    m = torch.full((1, distinct), TOTAL // distinct)
    return x, m


def step(layer: Any, x: torch.Tensor, m: torch.Tensor | None) -> None:
    layer(x.detach().requires_grad_(), m).sum().backward()


def measure(name: str, distinct: int, seed: int) -> dict[str, Any]:
    layer, (x, m) = layer_of(name), inputs(distinct, seed)
    once = torch.ones_like(m)
    seconds = in_turn({"multiset": lambda: step(layer, x, m), "set": lambda: step(layer, x, once)}, REPEATS)
    memory = {kind: extra_memory(name, distinct, kind) for kind in ("multiset", "set")}
    return {"layer": name, "distinct": distinct, "seconds": seconds, "extra_bytes": memory}


def extra_memory(name: str, distinct: int, kind: str) -> int:
    words = json.dumps([name, distinct, kind])
    command = [sys.executable, "-c", f"from benchmarks.multisets import alone; alone({words!r})"]
    return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def alone(words: str) -> None:
    name, distinct, kind = json.loads(words)
    torch.set_num_threads(2)
    layer, (x, m) = layer_of(name), inputs(distinct, 0)
    m = m if kind == "multiset" else torch.ones_like(m)
    step(layer_of(name), *inputs(64, 0))
    with Memory() as memory:
        step(layer, x, m)
    print(memory.extra)


def compacting(seed: int) -> list[dict[str, Any]]:
    """Seconds of finding the duplicates of TOTAL elements."""
    rows = []
    for power in (10, 18):
        x = inputs(1 << power, seed)[0][0]
        which = torch.randint(len(x), (TOTAL,), generator=torch.Generator().manual_seed(seed))
        repeated = x[which]
        seconds = in_turn({"hash": lambda repeated=repeated: compact(repeated, by="hash")}, 1)["hash"]["median"]
        rows.append({"distinct": len(x), "seconds": seconds})
    return rows


def draw(rows: list[dict[str, Any]]) -> None:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, key, label in zip(
        figure.subplots(1, 2), ("extra_bytes", "seconds"), ("peak extra memory (MB)", "time (s)"), strict=True
    ):
        for colour, name in zip(COLOURS, LARGEST, strict=False):
            own = [row for row in rows if row["layer"] == name]
            for kind, style in (("multiset", "-o"), ("set", "--x")):
                values = [row[key][kind] / 1e6 if key == "extra_bytes" else row[key][kind]["median"] for row in own]
                axes.plot([r["distinct"] for r in own], values, style, color=colour, ms=4, label=f"{name}, {kind}")
        axes.set(xscale="log", yscale="log", xlabel="distinct elements", ylabel=label)
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    save(figure, ROOT / "docs" / "images" / "multisets.png")
