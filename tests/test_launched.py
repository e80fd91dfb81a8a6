"""The kernels of Triton, interpreted: outputs and gradients of the folded form are those of the plain one."""

import functools

import pytest
import torch
from torch import nn

from omniset.kernels import blocks, folded, gather, launched, team, tiles
from omniset.layers import InducedSetAttentionBlock, PoolingByMultiheadAttention
from omniset.testing import relative_error

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

D, H = 24, 4
MAKE = {
    "U-ISAB": functools.partial(InducedSetAttentionBlock, D, H, 5),  # no power of 2 in points, width or elements
    "PMA": functools.partial(PoolingByMultiheadAttention, D, H, 2),
}


@pytest.fixture
def interpreted(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: Triton's kernels are compiled, not interpreted")
    for module, name, value in (
        (launched, "takes", lambda *_: True),
        (launched, "PROGRAMS", 3),
        (blocks, "takes", lambda _: False),
        (folded, "LEAST", 0),
        (folded, "MORE", 0),
        (team, "pieces", None),
    ):
        monkeypatch.setattr(module, name, value)
    whole = lambda x: [team.Piece(0, len(x), 0, x.shape[1], 0)]  # noqa: E731  # as on an accelerator
    monkeypatch.setattr(gather, "pieces", whole)
    monkeypatch.setattr("omniset.kernels.spread.pieces", whole)
    torch.set_num_threads(1)


def layer_of(kind, ffn_dim, dtype=torch.float64):
    torch.manual_seed(3)
    layer = MAKE[kind](ffn_dim).to(dtype)
    for p in layer.parameters():  # biases and norms away from 0 and 1
        p.data += 0.3 * torch.randn_like(p)
    return layer


def results(layer, x, m):
    x = x.clone().requires_grad_()
    inputs = [x] if m is None else [x, m.clone().requires_grad_()]
    out = layer(*inputs)
    torch.manual_seed(7)
    wanted = [*inputs, *layer.parameters()]
    gradients = torch.autograd.grad(out, wanted, torch.randn_like(out), allow_unused=True)
    return out, gradients


@pytest.mark.parametrize("moderate", [50.0, 0.0])  # 0: scores are measured against a running peak
@pytest.mark.parametrize(("sets", "length", "weighted"), [(3, 211, True), (1, 131, False), (2, 0, True)])
@pytest.mark.parametrize(("kind", "ffn_dim"), [("U-ISAB", 13), ("U-ISAB", None), ("PMA", 0)])
def test_kernels_are_the_plain_form(kind, ffn_dim, sets, length, weighted, moderate, interpreted, monkeypatch):
    monkeypatch.setattr(gather, "MODERATE", moderate)
    layer = layer_of(kind, ffn_dim)
    torch.manual_seed(5)
    x = torch.randn(sets, length, D, dtype=torch.float64)
    m = torch.randint(0, 3, (sets, length)).double() if weighted else None
    if weighted and length:
        m[0] = 0  # an empty set
    got, gradients = results(layer, x, m)
    monkeypatch.setattr(folded, "form", lambda *_, **__: folded.PLAIN)
    expected, plain = results(layer, x, m)
    assert relative_error(got, expected) < 1e-13
    largest = max((float(g.norm()) for g in plain if g is not None), default=0.0)
    for g, e in zip(gradients, plain, strict=True):
        assert (g is None) == (e is None)
        if e is not None:
            assert (g - e).norm() <= 1e-12 * max(float(e.norm()), largest / 10)


def test_one_gradient_for_all_elements(interpreted, monkeypatch):
    """That of a sum is one number in memory, at all places."""
    layer = layer_of("U-ISAB", None)
    torch.manual_seed(5)
    x = torch.randn(2, 70, D, dtype=torch.float64, requires_grad=True)
    (got,) = torch.autograd.grad(layer(x).sum(), [x])
    monkeypatch.setattr(folded, "form", lambda *_, **__: folded.PLAIN)
    (expected,) = torch.autograd.grad(layer(x).sum(), [x])
    assert relative_error(got, expected) < 1e-12


def test_what_is_asked_for(monkeypatch):
    """Without the variable, on other devices, in float64 and where points fill the registers, all stays as it was."""
    few, many = torch.empty(1, 8, 32), torch.empty(1, 512, 32)
    elements = torch.empty(1, 100, 32, device="meta")
    cuda = type("Elements", (), {"device": torch.device("cuda"), "dtype": torch.float32, "shape": elements.shape})()
    for asked in ("0", "1"):
        monkeypatch.setenv("OMNISET_GPU", asked)
        launched.wanted.cache_clear()
        assert not launched.takes(elements, few)
        assert launched.takes(cuda, few) == (asked == "1")
        assert not launched.takes(cuda, many)
        cuda.dtype = torch.float64
        assert not launched.takes(cuda, few)
        cuda.dtype = torch.float32
    launched.wanted.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here: Triton's kernels are interpreted only")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_on_a_gpu(dtype, monkeypatch):
    layer = layer_of("U-ISAB", 13, torch.float32).cuda()
    torch.manual_seed(5)
    x = torch.randn(3, 4_099, D, device="cuda").to(dtype)
    m = torch.randint(0, 3, (3, 4_099), device="cuda").to(dtype)
    layer = layer.to(dtype)
    got, gradients = results(layer, x, m)
    monkeypatch.setattr(launched, "wanted", lambda: False)
    expected, others = results(layer, x, m)
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    assert relative_error(got.double(), expected.double()) < bound
    for g, e in zip(gradients, others, strict=True):
        assert relative_error(g.double(), e.double()) < 10 * bound


def test_tiles_and_kernels_share_the_ffn():
    torch.manual_seed(1)
    y = torch.randn(2, 7, 8, dtype=torch.float64)
    ffn = tuple(torch.randn(shape, dtype=torch.float64) for shape in ((5, 8), (5,), (8, 5), (8,)))
    u = nn.functional.layer_norm(y, (8,), eps=1e-5)
    expected = y + nn.functional.linear(nn.functional.linear(u, *ffn[:2]).relu(), *ffn[2:])
    got = tiles.ffn_of(y.clone(), nn.ReLU, 1e-5, ffn, tiles.workspace(y))
    assert relative_error(got, expected) < 1e-14
