"""How far shards are from the whole set: outputs and gradients, every encoder, store and shard size, both dtypes."""

from typing import Any

import torch

from benchmarks.results import record
from omniset import SetBatch, encoders
from omniset.engine.stores import STORES
from omniset.testing import relative_error

SIZES = (1, 7, 64)
BOUNDS = {"float64": {"outputs": 1e-12, "gradients": 1e-12}, "float32": {"outputs": 1e-6, "gradients": 3e-6}}


def outputs_and_gradients(encoder: Any, batch: SetBatch, **options: Any) -> tuple[list, list]:
    out = encoder(batch, **options)
    outputs = [out.summary] if out.elements is None else [out.summary, out.elements]
    generator = torch.Generator().manual_seed(1)
    loss = sum((o * torch.randn(o.shape, generator=generator).to(o)).sum() for o in outputs)
    grads = torch.autograd.grad(loss, list(encoder.parameters()), allow_unused=True)
    return outputs, [torch.zeros_like(p) if g is None else g for g, p in zip(grads, encoder.parameters(), strict=True)]


def main(seed: int = 0) -> None:
    rows = []
    for dtype in (torch.float64, torch.float32):
        name = str(dtype).removeprefix("torch.")
        for encoder_name, kind in encoders.ENCODERS.items():
            if not kind.mini_batch_consistent:
                continue
            torch.manual_seed(seed)
            encoder = encoders.build(
                encoder_name, input_dim=3, dim=32, depth=4, num_heads=4, num_inducing=8, num_outputs=2
            )
            encoder = encoder.to(dtype).eval()  # without random slots
            # SAB compares every pair of shards: fewer elements, or shards of 1 take minutes.
            n = 67 if encoder_name == "set-transformer-sab" else 509
            m = torch.randint(0, 4, (5, n))
            m[0] = 0
            batch = SetBatch(torch.randn(5, n, 3, dtype=dtype), m)
            whole = outputs_and_gradients(encoder, batch)
            for store in STORES:
                if encoder_name == "set-transformer-sab" and store not in ("device", "cpu"):
                    continue
                worst = {"outputs": 0.0, "gradients": 0.0}
                for size in SIZES:
                    got = outputs_and_gradients(encoder, batch, shard_size=size, store=store)
                    for key, a, b in zip(worst, got, whole, strict=True):
                        worst[key] = max(worst[key], relative_error(a, b))
                within = all(worst[key] <= BOUNDS[name][key] for key in worst)
                rows.append({"dtype": name, "encoder": encoder_name, "store": store, **worst, "within": within})
                print(rows[-1])
    record("exactness", {"shard_sizes": SIZES, "bounds": BOUNDS, "rows": rows}, seed=seed)
