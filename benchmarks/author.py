"""The package of the paper's author beside ours, with the same weights: errors, seconds. Needs the extra peers."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.results import record
from omniset import SetBatch, encoders
from omniset.testing import relative_error

DIM, HEADS, POINTS, LAYERS, SHARD = 32, 4, 8, 2, 8
TIMED = (8, 4096, 7)  # sets, elements, repetitions


def main(seed: int = 0) -> None:
    torch.manual_seed(seed)
    warnings.filterwarnings("ignore", message=".*does not support minibatch.*")
    rows = [row for dtype in (torch.float64, torch.float32) for row in errors(dtype)]
    for row in rows:
        print(row)
    timed = speed()
    print(timed)
    sizes = {"dim": DIM, "heads": HEADS, "points": POINTS, "layers": LAYERS, "shard": SHARD}
    record("author", {"sizes": sizes, "rows": rows, "speed": timed}, seed=seed)


def model_of(dtype: torch.dtype) -> Any:
    import ust

    layer = ust.InducedSetAttentionBlock(DIM, HEADS, POINTS)
    pooler = ust.PoolingByMultiheadSetAttention(DIM, HEADS, 1)
    encoder = ust.SetTransformerEncoder(layer, LAYERS)
    return ust.SetTransformerModel(ust.SetTransformerConfig(), encoder=encoder, pooler=pooler).to(dtype).eval()


def errors(dtype: torch.dtype) -> list[dict[str, Any]]:
    """Of outputs and gradients, against our whole sets in float64, which tests hold to written-out mathematics."""
    model = model_of(dtype)
    ours = encoders.from_author(model.state_dict(), num_heads=HEADS).eval()
    exact = encoders.from_author({n: v.double() for n, v in model.state_dict().items()}, num_heads=HEADS).eval()
    x = torch.randn(5, 41, DIM, dtype=dtype)
    counts = torch.randint(1, 4, (5, 41)).to(dtype)
    absent = counts.clone()
    absent[1, :SHARD] = 0  # one set has no element in the first shard
    rows = []
    for case, m, size in (
        ("whole sets", None, None),
        ("whole sets, multiplicities", counts, None),
        ("shards", torch.ones_like(counts), SHARD),
        ("shards, multiplicities", counts, SHARD),
        ("a set is absent in one shard", absent, SHARD),
    ):
        batch = SetBatch(x, torch.ones_like(counts) if m is None else m)
        truth = gradients(exact, lambda b=batch: exact(SetBatch(b.elements.double(), b.multiplicity.double())).summary)
        mine = gradients(ours, lambda b=batch, s=size: ours(b, shard_size=s).summary)
        theirs = gradients(model, lambda m=m, s=size: model(x, m, s))
        theirs = theirs[0], renamed(theirs[1])
        row: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch."), "case": case}
        for name, (output, grads) in {"ours": mine, "author": theirs}.items():
            row[name] = {
                "outputs": relative_error(output.double(), truth[0]),
                "gradients": relative_error([grads[key].double() for key in truth[1]], [*truth[1].values()]),
            }
        rows.append(row)
    return rows


def gradients(module: Any, compute: Callable[[], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    module.zero_grad()
    output = compute()
    generator = torch.Generator().manual_seed(1)
    (output * torch.randn(output.shape, generator=generator).to(output)).sum().backward()
    return output.detach(), {name: p.grad for name, p in module.named_parameters()}


def renamed(grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """Under our names: gradients are weights like others to `from_author`."""
    return {name: p.detach() for name, p in encoders.from_author(grads, num_heads=HEADS).named_parameters()}


def speed() -> dict[str, Any]:
    """Seconds of forward and backward of whole sets in float32, in turns: median, and each."""
    sets, elements, repetitions = TIMED
    model = model_of(torch.float32)
    ours = encoders.from_author(model.state_dict(), num_heads=HEADS).eval()
    x = torch.randn(sets, elements, DIM)
    seconds: dict[str, list[float]] = {"ours": [], "author": []}
    steps = {"ours": (ours, lambda: ours(SetBatch(x)).summary), "author": (model, lambda: model(x))}
    for turn in range(repetitions + 1):
        for name, (module, compute) in steps.items():
            start = time.process_time()
            gradients(module, compute)
            if turn:  # the first is warm-up
                seconds[name].append(time.process_time() - start)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {"sets": sets, "elements": elements, "cpu_seconds": medians, "each": seconds}
