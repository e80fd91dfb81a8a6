"""FLARE's layers: attention and attribution by their formulas, many latent queries, bad sizes."""

import numpy as np
import torch

from omniset import SetBatch, encoders, explain, testing
from omniset.testing import relative_error

DOUBLE = torch.float64
SIZES = {"input_dim": 3, "dim": 8, "depth": 1, "num_heads": 2, "num_inducing": 3}


def sets():
    m = torch.randint(0, 4, (3, 11))
    m[:, 0] = 1
    return SetBatch(torch.randn(3, 11, 3, dtype=DOUBLE), m)


def weights_of(layer, x, m):
    """Normalised over the elements: (sets, heads, latent queries, elements), and what they average."""
    y = layer.norm_mixing(x)
    key, value = (mlp(y).unflatten(-1, (2, -1)) for mlp in (layer.key, layer.value))
    weights = torch.einsum("hkc,bnhc->bhkn", layer.latents, key).exp() * m[:, None, None]
    return weights / weights.sum(-1, keepdim=True), value.transpose(1, 2)


def test_attribution_written_out():
    """A * mean over alpha of dF / d(alpha A), with the rest of the layer from what it averages; attention is A."""
    encoder, batch, steps = encoders.build("flare", **SIZES, class_token=True).double(), sets(), 4
    layer = encoder.layers[0]
    x = torch.cat([encoder.class_tokens.expand(3, -1, -1), encoder.embed(batch.elements)], 1)
    m = torch.cat([torch.ones(3, 1), batch.multiplicity], 1).double()
    a, value = (tensor.detach() for tensor in weights_of(layer, x, m))

    def f(weights):
        return layer.map(x, (weights @ value).transpose(1, 2).flatten(2))[:, 0].sum(1)

    assert relative_error(f(a), encoder(batch).summary.sum((1, 2))) < 1e-13
    total = 0
    places, shares = np.polynomial.legendre.leggauss(steps)
    for place, share in zip((places + 1) / 2, shares / 2, strict=True):
        scaled = (a * place).requires_grad_()
        total = total + share * torch.autograd.grad(f(scaled).sum(), scaled)[0]
    attribution = a * total
    for options in ({}, {"shard_size": 4}):
        (found,) = explain.attribute_layers(encoder, batch, steps=steps, **options)
        assert relative_error(found.scores, attribution.clamp(min=0).sum((1, 2))[:, 1:]) < 1e-12
        assert relative_error(found.total, attribution.sum((1, 2, 3))) < 1e-12
        assert relative_error(found.change, f(a) - f(0 * a)) < 1e-12
    seen = a.sum((1, 2))[:, 1:]
    assert relative_error(explain.attention(encoder, batch), seen / seen.amax(1, keepdim=True)) < 1e-12


def test_large_scores_do_not_overflow():
    """They are not scaled."""
    encoder = encoders.build("flare", **SIZES).double()
    encoder.layers[0].latents.data *= 1e5
    testing.assert_shard_consistent(encoder, sets())
    encoder(sets(), shard_size=4).summary.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in encoder.parameters())


def test_many_latent_queries():
    """More than elements, as many as the paper has: exact in shards, and each head has its own."""
    encoder = encoders.build("flare", **SIZES | {"num_inducing": 512}, hidden_layers=0).double()
    assert encoder.layers[0].latents.shape == (2, 512, 4)
    testing.assert_shard_consistent(encoder, sets(), shard_sizes=(1, 7))
    deeper = encoders.build("flare", **SIZES)
    assert len(deeper.layers[0].key.hidden) == len(deeper.layers[0].ffn[0].hidden) == 3
