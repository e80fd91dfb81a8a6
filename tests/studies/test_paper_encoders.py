"""Encoders of studies alone: by their formulas with elements repeated, in shards, and what they keep and lose."""

import pytest
import torch
from paper.encoders import CriticalInstances, SetNorm, build

import oracle
from omniset import SetBatch
from omniset.testing import relative_error

pytestmark = pytest.mark.slow

DOUBLE = torch.float64
SIZES = {"input_dim": 3, "dim": 8, "depth": 2, "num_outputs": 2}
ATTENDING = SIZES | {"num_heads": 2, "num_inducing": 3, "ffn_dim": 5}
BUILT = {
    "dsmil": ("dsmil", SIZES),
    "transolver": ("transolver", ATTENDING),
    "deep-sets-norm": ("deep-sets", SIZES | {"norm": "set"}),
    "ust-norm": ("ust", ATTENDING | {"norm": "set"}),
    "ust-sigmoid": ("ust", ATTENDING | {"attention": "sigmoid"}),
}


def set_norm(affine, x):
    """Of one set: one mean and one deviation of all its numbers."""
    if not x.numel():
        return x
    deviation = ((x - x.mean()) ** 2).mean().add(1e-5).sqrt()
    return (x - x.mean()) / deviation * affine.weight + affine.bias


def normed_transformer(encoder, x):
    """Set Transformer++ on one set: elements, and the output of PMA."""
    scale = (x.shape[1] / encoder.pool.gather.num_heads) ** -0.5
    layers, last = encoder.layers[:-1], encoder.layers[-1]
    for n in range(0, len(layers), 3):
        block, points = layers[n + 1], layers[n + 1].points[0]
        h = points + oracle.linear(
            block.gather.output, oracle.heads_average(block.gather, points, set_norm(block.norm_keys, x), scale)
        )
        h = h + oracle.feed_forward(block.gather.ffn, set_norm(block.gather.norm_ffn.affine, h))
        normed = set_norm(block.norm_queries, x), set_norm(block.norm_points.affine, h)
        x = x + oracle.linear(block.spread.output, oracle.heads_average(block.spread, *normed, scale))
        x = x + oracle.feed_forward(layers[n + 2].ffn, set_norm(layers[n + 2].affine, x))
    x, seeds = set_norm(last.affine, x), encoder.pool.points[0]
    h = seeds + oracle.linear(encoder.pool.gather.output, oracle.heads_average(encoder.pool.gather, seeds, x, scale))
    return x, h + oracle.feed_forward(encoder.pool.gather.ffn, h)


def normed_phi(encoder, x):
    """Phi of Deep Sets++ on one set, after its first Linear."""
    *layers, last = encoder.layers
    for first, second in zip(layers[::2], layers[1::2], strict=True):
        h = oracle.linear(first.linear, set_norm(first.affine, x).relu())
        x = x + oracle.linear(second.linear, set_norm(second.affine, h).relu())
    return oracle.linear(last.linear, set_norm(last.affine, x).relu())


def slice_attention(layer, x):
    """Transolver's block on one set, one slice at a time."""

    def mix(h, y, columns):
        place, content = oracle.linear(layer.place, y)[:, columns], oracle.linear(layer.content, y)[:, columns]
        temperature = min(max(layer.temperature[h], 0.1), 5)
        weights = torch.exp(oracle.linear(layer.slices, place) / temperature)
        weights = weights / weights.sum(1, keepdim=True)
        zero = content.new_zeros(content.shape[1])
        tokens = [w @ content / w.sum() if len(x) else zero for w in weights.T]
        new = []
        for token in tokens:
            products = [(layer.query.weight @ token) @ (layer.key.weight @ other) for other in tokens]
            e = torch.exp(torch.stack(products) / len(token) ** 0.5)
            new.append(sum(a * (layer.value.weight @ other) for a, other in zip(e / e.sum(), tokens, strict=True)))
        return weights @ torch.stack(new)

    return oracle.around(layer, x, mix, lambda h: oracle.feed_forward(layer.ffn, h))


def dual_stream(first, second, x):
    """DSMIL of one set: the first element of largest score, its inner products with all, the mean of both streams."""
    out = []
    for c, direction in enumerate(second.direction):
        w, b = first.score.weight[c], first.score.bias[c]
        score, average = x.new_zeros(()), x.new_zeros(x.shape[1])
        if len(x):
            critical = x[int((x @ w).argmax())]
            score = critical @ w + b
            products = (
                oracle.linear(first.query, x) @ oracle.linear(first.query, critical) / first.query.out_features**0.5
            )
            e = torch.exp(products - products.max())
            average = e @ x / e.sum()
        out.append((direction * score + oracle.linear(second.value, average)) / 2)
    return torch.stack(out)


def sigmoids(block, queries, elements, _=None):
    q, y = oracle.norm(block.norm_queries, queries), oracle.norm(block.norm_elements, elements)
    q, k, v = oracle.linear(block.query, q), oracle.linear(block.key, y), oracle.linear(block.value, y)
    by_head = zip(*(x.split(4, 1) for x in (q, k, v)), strict=True)
    sums = torch.cat([(1 / (1 + torch.exp(-(q @ k.T) / 2))) @ v for q, k, v in by_head], 1)
    h = queries + oracle.linear(block.output, sums)
    return h + oracle.feed_forward(block.ffn, oracle.norm(block.norm_ffn, h))


def encode(name, encoder, x):
    """The summary of one set."""
    x = oracle.mlp(encoder.embed, x)
    if name == "dsmil":
        return dual_stream(encoder.layers[0], encoder.pool, x)
    if name == "deep-sets-norm":
        x = normed_phi(encoder, x)
        pooled = x.mean(0) if len(x) else x.new_zeros(x.shape[1])
        return oracle.mlp(encoder.decoder[1], pooled).reshape(2, -1)
    if name == "ust-norm":
        return normed_transformer(encoder, x)[1]
    for layer in encoder.layers:
        sigmoid = name == "ust-sigmoid"
        x = (
            oracle.induced(layer, x, block=lambda b, q, y, _=None: sigmoids(b, q, y))
            if sigmoid
            else slice_attention(layer, x)
        )
    points, block = encoder.pool.points[0], encoder.pool.gather
    return sigmoids(block, points, x) if sigmoid else oracle.msab(block, points, x)


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("shard_size", [None, 7])
def test_by_their_formulas(name, shard_size):
    """Outputs and gradients; one set is empty."""
    kind, sizes = BUILT[name]
    encoder = oracle.shaken(build(kind, **sizes))
    x, m = torch.randn(3, 17, 3, dtype=DOUBLE, requires_grad=True), torch.randint(0, 4, (3, 17))
    m[1] = 0
    got = encoder(SetBatch(x, m), shard_size=shard_size).summary
    expected = torch.stack([encode(name, encoder, e.repeat_interleave(c, 0)) for e, c in zip(x, m, strict=True)])
    assert relative_error(got, expected) < 1e-12
    wanted = [x, *(p for n, p in encoder.named_parameters() if not n.endswith("key.bias"))]  # 0 in truth
    upstream = torch.randn_like(got)
    ours, theirs = (torch.autograd.grad(y, wanted, upstream, materialize_grads=True) for y in (got, expected))
    assert relative_error([*ours], [*theirs]) < 1e-12


def test_a_variance_far_below_the_mean():
    """Sums are in float64 for elements in float32 too: a difference of large sums keeps its digits."""
    x = 1000 + torch.randn(1, 200, 5)
    layer = SetNorm(5)
    state = layer.reduce(x[:, :70], torch.ones(1, 70)).merge(layer.reduce(x[:, 70:], torch.ones(1, 130)))
    mean, inverse = layer.finish(state)[0, 0]
    assert abs(mean / x.double().mean() - 1) < 1e-12
    assert abs(inverse * (x.double().var(correction=0) + 1e-5).sqrt() - 1) < 1e-9


def test_the_mean_of_elements_that_tie():
    """By multiplicity; an absent one that ties has no part; and the score's gradient is shared as copies share it."""
    layer = CriticalInstances(2).double()
    layer.score.weight.data, layer.score.bias.data = torch.tensor([[1.0, 0.0]]).double(), torch.zeros(1).double()
    x = torch.tensor([[[3.0, 5.0], [1.0, 9.0], [3.0, -7.0], [3.0, 100.0]]], dtype=DOUBLE, requires_grad=True)
    m = torch.tensor([[2.0, 4.0, 1.0, 0.0]])
    whole = layer.finish(layer.reduce(x, m))
    assert whole.tolist() == [[[3.0, 1.0]]]
    shards = [layer.reduce(x[:, i : i + 1], m[:, i : i + 1]) for i in (1, 3, 2, 0)]
    assert torch.equal(layer.finish(shards[0].merge(shards[1]).merge(shards[2]).merge(shards[3])), whole)
    (grad,) = torch.autograd.grad(whole.sum(), x)
    assert relative_error(grad[0], torch.tensor([2, 0, 1, 0]).double()[:, None].expand(-1, 2) / 3) < 1e-15
