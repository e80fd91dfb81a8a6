"""The core works with torch, numpy, safetensors and jaxtyping alone, and what these themselves need."""

import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

NEEDED = ("torch", "numpy", "safetensors", "jaxtyping")

PROGRAM = '''
import importlib.machinery, pkgutil, sys

ALLOWED = {*sys.stdlib_module_names, "omniset", *sys.argv[1:]}

class Allowed:
    """Other packages are as if they were not installed."""

    finders = [*sys.meta_path]
    find_distributions = staticmethod(importlib.machinery.PathFinder.find_distributions)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ALLOWED:
            return next(filter(None, (finder.find_spec(name, path, target) for finder in self.finders)), None)

sys.meta_path[:] = [Allowed()]

import torch
import omniset
from omniset import encoders, explain, sources, testing

for part in ("core", "kernels", "layers", "engine", "encoders", "explain", "testing", "options"):
    package = importlib.import_module(f"omniset.{part}")
    for module in pkgutil.iter_modules(getattr(package, "__path__", []), f"omniset.{part}."):
        if module.name != "omniset.core.encoding":  # columns of tables, which are pandas' and Arrow's
            importlib.import_module(module.name)

x, m = torch.randn(3, 23, 2).double(), torch.randint(0, 3, (3, 23))
for name, kind in encoders.ENCODERS.items():
    encoder = encoders.build(name, input_dim=2, dim=8, depth=2, num_heads=2, num_inducing=3).double().eval()
    results = []
    for options in ({}, {"shard_size": 5}):
        if options and not kind.mini_batch_consistent:
            continue
        leaf = x.clone().requires_grad_()
        summary = encoder(omniset.SetBatch(leaf, m), **options).summary
        results.append([summary, *torch.autograd.grad(summary.sin().sum(), leaf)])
    assert testing.relative_error(results[-1], results[0]) < 1e-12
encoder = encoders.build("ust", input_dim=2, dim=8, depth=1, num_heads=2, num_inducing=3).double().eval()
shards = sources.ArraySource(x[0].numpy(), shard_size=5)
assert testing.relative_error(encoder(shards, store="disk").summary, encoder(omniset.SetBatch(x[:1])).summary) < 1e-12
assert explain.attribute(encoder, omniset.SetBatch(x, m), steps=2).shape == (3, 23)
assert omniset.compact(torch.tensor([[1, 2], [3, 4], [1, 2]]), by="hash")[1].tolist() == [2, 1]
assert omniset.Sets.from_ragged([x[0], x[1, :5]]).sizes.tolist() == [23, 5]
print("exact")
'''


def closure(names):
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            parsed = [Requirement(line) for line in requires(name) or []]
            waiting += [r.name for r in parsed if r.marker is None or r.marker.evaluate({"extra": ""})]
    return {name.lower().replace("_", "-") for name in found}


def test_the_core_works_alone():
    there = closure(NEEDED)
    allowed = [
        module
        for module, packages in packages_distributions().items()
        if any(package.lower().replace("_", "-") in there for package in packages)
    ]
    assert "pandas" not in allowed
    command = [sys.executable, "-c", PROGRAM, *allowed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "exact\n", done.stderr
