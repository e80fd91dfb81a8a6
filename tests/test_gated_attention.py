"""Gated attention pooling: against its formula, attribution."""

import pytest
import torch

import oracle
from omniset import SetBatch, encoders, explain
from omniset.layers import GatedAttentionPooling
from omniset.testing import relative_error

DOUBLE = torch.float64
SIZES = {"input_dim": 3, "dim": 7, "depth": 1, "num_outputs": 2}


def gradients(output, wanted):
    upstream = torch.randn(output.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    return [*torch.autograd.grad((output.sin() * upstream).sum(), wanted, materialize_grads=True)]


def random_sets(dim=7):
    m = torch.randint(0, 4, (3, 11))
    m[0], m[-1] = 1, 0
    return torch.randn(3, 11, dim, dtype=DOUBLE, requires_grad=True), m


def repeated(function, x, m):
    return torch.stack([function(each.repeat_interleave(copies, 0)) for each, copies in zip(x, m, strict=True)])


@pytest.mark.parametrize(("number", "width"), [(1, None), (3, 5)])
def test_gated_attention_by_its_formula(number, width):
    layer = GatedAttentionPooling(7, number, width).double()
    x, m = random_sets()
    got, expected = layer(x, m), repeated(lambda copies: oracle.gated(layer, copies), x, m)
    assert relative_error(got, expected) < 1e-13
    assert not got[-1].any()
    wanted = [x, *layer.parameters()]
    assert relative_error(gradients(got, wanted), gradients(expected, wanted)) < 1e-12


def test_large_scores_do_not_overflow():
    layer = GatedAttentionPooling(7).double()
    layer.weight.data *= 1e4
    x = random_sets()[0][:1]
    parts = [layer.reduce(part, torch.ones(1, part.shape[1])) for part in x.split(4, 1)]
    merged = layer.finish(parts[0].merge(parts[1]).merge(parts[2]))
    assert relative_error(merged[0], oracle.gated(layer, x[0])) < 1e-12


@pytest.mark.parametrize("name", ["abmil", "umbc"])
def test_no_element_has_an_output(name):
    encoder = encoders.build(name, **SIZES, num_heads=1, num_inducing=3)
    batch = SetBatch(torch.randn(1, 5, 3))
    with pytest.raises(ValueError, match=f"{type(encoder).__name__} has no outputs of elements"):
        encoder.contextualize(batch, encoder(batch).contexts)


def attention_of(encoder, batch):
    """Normalised weights (sets, outputs, elements)."""
    x, m, pool = encoder.embed(batch.elements), batch.multiplicity.double()[:, None], encoder.pool
    return ((pool.gate(x).sigmoid() * pool.tanh(x).tanh()) @ pool.weight.mT).mT.add(m.log()).softmax(-1)


def present_sets():
    m = torch.randint(0, 4, (3, 11))
    m[:, 0] = 1
    return SetBatch(torch.randn(3, 11, 3, dtype=DOUBLE), m)


def test_attention_is_that_of_the_formula():
    encoder, batch = encoders.build("abmil", **SIZES).double(), present_sets()
    weights = attention_of(encoder, batch).sum(1)
    expected = weights / weights.amax(1, keepdim=True)
    for options in ({}, {"shard_size": 4}, {"shard_size": 4, "store": "recompute"}):
        assert relative_error(explain.attention(encoder, batch, **options), expected) < 1e-12


def test_attribution_written_out():
    """A * mean over alpha of dF / d(alpha A), A built by hand: F is linear in it."""
    batch, encoder = present_sets(), encoders.build("abmil", **SIZES).double()
    x, a = (tensor.detach() for tensor in (encoder.embed(batch.elements), attention_of(encoder, batch)))
    scaled = a.clone().requires_grad_()
    expected = a * torch.autograd.grad((scaled @ x).flatten(1)[:, 3].sum(), scaled)[0]
    (found,), (parts,) = (explain.attribute_layers(encoder, batch, 3, steps=5, **o) for o in ({}, {"shard_size": 4}))
    assert found.layer == "pool"
    assert relative_error(found.scores, expected.clamp(min=0).sum(1)) < 1e-12
    assert relative_error(found.total, expected.sum((1, 2))) < 1e-12
    assert relative_error([parts.scores, parts.change], [found.scores, found.change]) < 1e-12


def test_attribution_is_complete():
    encoder = encoders.build("abmil", **SIZES).double()
    batch = present_sets()
    few, many = (explain.completeness(explain.attribute_layers(encoder, batch, 1, steps=n)) for n in (4, 200))
    assert (many < 0.02).all()
    assert (many <= few + 1e-12).all()  # where F is linear in A, any number of steps is exact
    scores = explain.attribute(encoder, batch)
    assert (scores.amax(1) == 1).all()
    assert not scores[batch.multiplicity == 0].any()
    assert all(p.grad is None and p.requires_grad for p in encoder.parameters())
    assert not [n for n, _ in encoder.named_modules() if n.endswith("probe")]
