"""No form of a block writes into what it was given, and each has the gradients of the textbook."""

import pytest
import torch

from omniset.kernels import blocks, folded, small, team, tiles
from omniset.layers import InducedSetAttentionBlock
from omniset.testing import relative_error
from oracle import induced, shaken

D, H, K = 24, 4, 5
FORMS = {  # and the step of autograd that tells it
    "plain": "AddBackward",
    "small": "SmallBlockBackward",
    "blocks": "SpreadBackward",
    "tiles": "SpreadBackward",
}


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    name = request.param
    if name in ("small", "blocks") and blocks.library() is None:
        pytest.skip("there is no compiler here, or it fails")
    monkeypatch.setattr(team, "SMALLEST", 64 * D)
    if name in ("blocks", "tiles"):
        monkeypatch.setattr(folded, "LEAST", 0)
        monkeypatch.setattr(folded, "MORE", 0)
        monkeypatch.setattr(tiles, "TILE", 64 * D)
        if name == "tiles":
            monkeypatch.setattr(blocks, "takes", lambda _: False)
    else:
        monkeypatch.setattr(folded, "form", lambda *_, **__: folded.PLAIN)
    if name != "small":
        monkeypatch.setattr(small, "whole_block", lambda *_: None)
    torch.set_num_threads(2)
    return name


@pytest.mark.parametrize(("ffn_dim", "weighted"), [(0, True), (13, False)])
@pytest.mark.parametrize("upstream", ["written out", "expanded", "shared", "a residual", "with gaps"])
def test_what_is_given_stays_as_it_is(upstream, ffn_dim, weighted, form):
    layer = shaken(InducedSetAttentionBlock(D, H, K, ffn_dim))
    x = torch.randn(3, 131, D, dtype=torch.float64, requires_grad=True)
    m = torch.randint(1, 4, (3, 131)).double().requires_grad_() if weighted else None
    inputs = [x, *layer.parameters()] if m is None else [x, m, *layer.parameters()]
    d = torch.randn_like(x)
    if upstream == "expanded":  # as of a sum
        d = torch.ones((), dtype=torch.float64).expand_as(x)
    elif upstream == "with gaps":
        d = torch.randn(131, 3, 2 * D, dtype=torch.float64)[:, :, ::2].transpose(0, 1)
    d_before, before = d.clone(), [tensor.detach().clone() for tensor in inputs]

    def results(layer_of):
        for tensor in inputs:
            tensor.grad = None
        h = x * 1
        out = layer_of(h)
        outs = {"shared": [out, h], "a residual": [h + out]}.get(upstream, [out])
        for one in (h, out):
            one.retain_grad()
        torch.autograd.backward(outs, [d] * len(outs))
        return out, [tensor.grad for tensor in (h, *inputs)]

    out, found = results(lambda h: layer(h, m))
    assert out.grad_fn.name().startswith(FORMS[form])
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(inputs, before, strict=True))
    assert torch.equal(d, d_before)
    assert torch.equal(out.grad, d_before)

    def by_the_book(h):
        return torch.stack([induced(layer, one, None if m is None else m[i]) for i, one in enumerate(h)])

    expected_out, expected = results(by_the_book)
    assert relative_error(out, expected_out) < 1e-12
    assert [f is None for f in found] == [e is None for e in expected]
    pairs = [(f, e) for f, e in zip(found, expected, strict=True) if e is not None]
    others = max(float(e.norm()) for _, e in pairs) / 10  # the bias of keys has no gradient but that of rounding
    assert all((f - e).norm() <= 1e-12 * max(float(e.norm()), others) for f, e in pairs)
