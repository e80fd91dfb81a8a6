"""What torch.compile makes of encoders. In a process of its own: the type checks of the test run cannot be traced."""

import subprocess
import sys

import pytest

from omniset import encoders

pytestmark = pytest.mark.slow

COMPILED = """
import torch
from omniset import SetBatch, encoders
from omniset.testing import relative_error
for name in encoders.ENCODERS:
    torch._dynamo.reset()
    encoder = encoders.build(name, input_dim=3, dim=8, depth=2, num_heads=2, num_inducing=3, num_outputs=2).double()
    x, m = torch.randn(2, 17, 3, dtype=torch.float64), torch.randint(0, 3, (2, 17))
    def run(x, m):
        out = encoder(SetBatch(x, m, validate=False))
        return (out.summary,) if out.elements is None else (out.summary, out.elements)
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    torch.manual_seed(0)  # random slots
    outputs = compiled(x, m)
    torch.manual_seed(0)
    for got, expected in zip(outputs, run(x, m), strict=True):
        assert relative_error(got, expected) < 1e-13, name
    print(name)
"""


def test_whole_encoders_compile_to_one_graph(tmp_path):
    (tmp_path / "compiled.py").write_text(COMPILED, encoding="utf-8")
    done = subprocess.run([sys.executable, tmp_path / "compiled.py"], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [*encoders.ENCODERS], done.stderr
