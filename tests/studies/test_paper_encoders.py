"""Set norm by its definition, what it keeps and what it loses, and the encoders that take it."""

import pytest
import torch

import oracle
from omniset import SetBatch, encoders, explain, testing
from omniset.layers import SetNorm
from omniset.testing import relative_error

DOUBLE = torch.float64
SIZES = {"input_dim": 3, "dim": 8, "depth": 2, "num_heads": 2, "num_inducing": 3}


def shaken(module):
    for p in module.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return module.double()


def test_by_its_definition():
    """Of copies written out, with gradients of elements, weights and fractional multiplicities."""
    layer = shaken(SetNorm(5))
    x, m = torch.randn(3, 11, 5, dtype=DOUBLE, requires_grad=True), torch.randint(0, 4, (3, 11))
    m[-1] = 0
    got = torch.cat([rows.repeat_interleave(c, 0) for rows, c in zip(layer(x, m), m, strict=True)])
    expected = [oracle.set_norm(layer.affine, rows.repeat_interleave(c, 0)) for rows, c in zip(x, m, strict=True)]
    assert relative_error(got, torch.cat(expected)) < 1e-13
    upstream, wanted = torch.randn_like(got), [x, *layer.parameters()]
    grads = [torch.autograd.grad((y * upstream).sum(), wanted) for y in (got, torch.cat(expected))]
    assert relative_error(*grads) < 1e-12
    fractions = (torch.rand(3, 11, dtype=DOUBLE) + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, m: layer(x, m), (x, fractions), fast_mode=True)


def test_a_set_loses_its_mean_and_its_scale_and_no_more():
    """A layer norm takes both from every element: it tells no two elements apart that differ in them alone."""
    layer, x = SetNorm(5).double(), torch.randn(1, 11, 5, dtype=DOUBLE)
    assert relative_error(layer(100 * x + 7), layer(100 * x)) < 1e-12
    assert relative_error(layer(100 * x), layer(1000 * x)) < 1e-8  # but for the 1e-5 beside the variance
    normed = layer(x)
    assert relative_error((normed[0, 0] - normed[0, 1]), (x[0, 0] - x[0, 1]) / x.std(correction=0)) < 1e-4
    two = torch.stack([x[0, 0], 2 * x[0, 0] + 1])[None]
    in_layer_norm = torch.nn.functional.layer_norm(two, (5,))[0]
    assert relative_error(in_layer_norm[0], in_layer_norm[1]) < 1e-4
    assert relative_error(layer(two)[0, 0], layer(two)[0, 1]) > 0.1


def test_a_variance_far_below_the_mean():
    """Sums are in float64 for elements in float32 too: a difference of large sums keeps its digits."""
    x = 1000 + torch.randn(1, 200, 5)
    layer = SetNorm(5)
    state = layer.reduce(x[:, :70], torch.ones(1, 70)).merge(layer.reduce(x[:, 70:], torch.ones(1, 130)))
    mean, inverse = layer.finish(state)[0, 0]
    exact = x.double()
    assert abs(mean / exact.mean() - 1) < 1e-12
    assert abs(inverse * (exact.var(correction=0) + 1e-5).sqrt() - 1) < 1e-9


@pytest.mark.parametrize("name", ["ust", "deep-sets"])
def test_constant_sets(name):
    """One element, or copies of one: nothing to divide by."""
    encoder = shaken(encoders.build(name, **SIZES, norm="set"))
    x = torch.randn(2, 1, 3, dtype=DOUBLE).expand(-1, 6, -1).clone().requires_grad_()
    whole = encoder(SetBatch(x)).summary
    assert relative_error(encoder(SetBatch(x), shard_size=4).summary, whole) < 1e-12
    assert relative_error(encoder(SetBatch(x[:, :1])).summary, whole) < 1e-9
    (grad,) = torch.autograd.grad(whole.sum(), x)
    assert grad.isfinite().all()


def test_residuals_are_clean_paths():
    """With the last maps of its blocks at 0, an encoder hands on its embedding, whatever the norms are."""
    encoder = shaken(encoders.build("ust", **SIZES, norm="set"))
    for layer in encoder.layers[:-1]:
        for last in ("spread", "ffn"):
            part = getattr(layer, last, None)
            if part is not None:
                linear = part.output if last == "spread" else part[2]
                linear.weight.data.zero_()
                linear.bias.data.zero_()
    batch = SetBatch(torch.randn(2, 9, 3, dtype=DOUBLE))
    expected = [oracle.set_norm(encoder.layers[-1].affine, x) for x in encoder.embed(batch.elements)]
    assert relative_error(encoder(batch).elements, torch.stack(expected)) < 1e-13


def test_attribution_through_set_norms():
    encoder = shaken(encoders.build("ust", **SIZES, norm="set", activation="gelu"))
    batch = SetBatch(torch.randn(2, 9, 3, dtype=DOUBLE), torch.randint(1, 3, (2, 9)))
    whole, parts = (explain.attribute_layers(encoder, batch, steps=9, **o) for o in ({}, {"shard_size": 4}))
    assert [layer.layer for layer in whole] == ["layers.1", "layers.4", "pool"]
    for a, b in zip(whole, parts, strict=True):
        assert relative_error(b.scores, a.scores) < 1e-12
    gaps = (explain.completeness(layers) for layers in (whole, explain.attribute_layers(encoder, batch, steps=36)))
    coarse, fine = gaps  # of a sum over a smooth path: in proportion to the length of a step
    assert (fine < coarse / 3).all()


@pytest.mark.parametrize("name", ["ust", "set-transformer-isab"])
def test_contextualize(name):
    encoder = shaken(encoders.build(name, **SIZES, norm="set", class_token=True))
    batch = SetBatch(torch.randn(2, 9, 3, dtype=DOUBLE))
    out = encoder(batch, shard_size=4)
    assert relative_error(encoder.contextualize(batch, out.contexts), out.elements) < 1e-12
    testing.assert_permutation_equivariant(encoder, batch)


def test_where_there_is_none():
    for name in ("set-transformer-sab", "strxl", "umbc", "flare", "transolver"):
        with pytest.raises(ValueError, match="norm must be 'pre' or 'post', got 'set'"):
            encoders.build(name, **SIZES, norm="set")
    with pytest.raises(ValueError, match="norm must be 'none' or 'set', got 'layer'"):
        encoders.build("deep-sets", **SIZES, norm="layer")
    with pytest.raises(ValueError, match="variant must be 'universal' with norm='set', got 'author'"):
        encoders.build("ust", **SIZES, norm="set", variant="author")
