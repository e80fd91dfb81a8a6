"""Products of matrices by either library, and memory in huge pages."""

import pytest
import torch

from omniset.kernels import tiles
from omniset.testing import relative_error


@pytest.fixture(params=[True, False], ids=["oneDNN", "MKL"])
def library(request, monkeypatch):
    """Both, whatever the size."""
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(tiles, "LARGE", 0 if request.param else 1 << 60)
    monkeypatch.setattr(tiles, "ROUND", 1)
    return request.param


@pytest.mark.parametrize("into", [False, True])
def test_both_libraries_compute_the_same(library, into):
    torch.manual_seed(0)
    x, w, b, y = torch.randn(37, 11), torch.randn(5, 11), torch.randn(5), torch.randn(37, 5)
    assert tiles.faster_by_onednn(x, w) == library
    exact = x.double() @ w.double().mT
    out = torch.empty(37, 5) if into else None
    assert relative_error(tiles.linear(x, w, out=out).double(), exact) < 1e-6
    assert relative_error(tiles.linear(x, w, b, out).double(), exact + b) < 1e-6
    assert relative_error(tiles.linear(x, w.mT.contiguous().mT, b, out).double(), exact + b) < 1e-6
    assert relative_error(tiles.linear(x.mT.contiguous().mT, w, b, out).double(), exact + b) < 1e-6
    assert relative_error(tiles.add_linear(y.clone(), x, w, b).double(), exact + b + y) < 1e-6
    for sets in (1, 3):
        out = torch.empty(sets, 37, 5) if into else None
        found = tiles.batched(x.expand(sets, -1, -1), w.expand(sets, -1, -1), out)
        assert relative_error(found.double(), exact.expand(sets, -1, -1)) < 1e-6


def test_onednn_is_for_large_products_of_shapes_that_come_again():
    large, odd = torch.empty(4096, 128), torch.empty(4097, 128)
    assert tiles.faster_by_onednn(large, torch.empty(128, 128)) == torch.backends.mkldnn.is_available()
    for x in (odd, large[:64], large.double(), large.bfloat16(), torch.empty(128, 4096).mT):
        assert not tiles.faster_by_onednn(x, torch.empty(128, 128, dtype=x.dtype))


def test_bfloat16_into_float32():
    x, w, b, y = torch.randn(37, 11), torch.randn(5, 11), torch.randn(5), torch.randn(37, 5)
    exact = x @ w.mT
    low = [t.bfloat16() for t in (x, w, b)]
    assert relative_error(tiles.linear(*low, torch.empty(37, 5)).float(), exact + b) < 0.02
    found = tiles.add_linear(y.clone(), *low)
    assert found.dtype == torch.float32
    assert relative_error(found, exact + b + y) < 0.02
