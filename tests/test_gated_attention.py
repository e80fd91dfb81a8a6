"""Pooling of multiple-instance learning: against its formulas, ties of the maximum, attribution."""

import pytest
import torch
from torch import nn

import oracle
from omniset import SetBatch, encoders, explain, testing
from omniset.layers import CriticalAttention, CriticalInstances, GatedAttentionPooling
from omniset.testing import relative_error

DOUBLE = torch.float64
SIZES = {"input_dim": 3, "dim": 7, "depth": 1, "num_outputs": 2}
NAMES = ("abmil", "dsmil")


def gradients(output, wanted):
    upstream = torch.randn(output.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    grads = torch.autograd.grad((output.sin() * upstream).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(grads, wanted, strict=True)]


def random_sets(dim=7):
    m = torch.randint(0, 4, (3, 11))
    m[0], m[-1] = 1, 0
    return torch.randn(3, 11, dim, dtype=DOUBLE, requires_grad=True), m


def repeated(function, x, m):
    return torch.stack([function(each.repeat_interleave(copies, 0)) for each, copies in zip(x, m, strict=True)])


# ------------------------------------------------------------------------ gated attention


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("number", "width"), [(1, None), (3, 5)])
def test_gated_attention_by_its_formula(gated, number, width):
    layer = GatedAttentionPooling(7, number, width, gated).double()
    x, m = random_sets()
    got, expected = layer(x, m), repeated(lambda copies: oracle.gated(layer, copies), x, m)
    assert relative_error(got, expected) < 1e-13
    assert not got[-1].any()
    wanted = [x, *layer.parameters()]
    assert relative_error(gradients(got, wanted), gradients(expected, wanted)) < 1e-12


def test_an_encoder_without_the_gate():
    gated, plain = (encoders.build("abmil", **SIZES, gated=g, attention_dim=5) for g in (True, False))
    assert [n for n, _ in gated.named_parameters() if n not in dict(plain.named_parameters())] == [
        "pool.gate.weight",
        "pool.gate.bias",
    ]
    assert plain.pool.weight.shape == (2, 5)
    testing.assert_shard_consistent(plain.double(), SetBatch(torch.randn(2, 13, 3, dtype=DOUBLE)))


def test_large_scores_do_not_overflow():
    layer = GatedAttentionPooling(7).double()
    layer.weight.data *= 1e4
    x = random_sets()[0][:1]
    parts = [layer.reduce(part, torch.ones(1, part.shape[1])) for part in x.split(4, 1)]
    merged = layer.finish(parts[0].merge(parts[1]).merge(parts[2]))
    assert relative_error(merged[0], oracle.gated(layer, x[0])) < 1e-12


# ---------------------------------------------------------------------------- dual stream


class DualStream(nn.Module):
    def __init__(self, number, width):
        super().__init__()
        self.first, self.second = CriticalInstances(7, number, width), CriticalAttention(7, number)

    def forward(self, x, m):
        mapped = self.first.map(x, self.first.finish(self.first.reduce(x, m)))
        return self.second.finish(self.second.reduce(mapped, m))


@pytest.mark.parametrize(("number", "width"), [(1, None), (3, 5)])
def test_dual_stream_by_its_formula(number, width):
    layer = DualStream(number, width).double()
    x, m = random_sets()
    got = layer(x, m)
    expected = repeated(lambda copies: oracle.dual_stream(layer.first, layer.second, copies), x, m)
    assert relative_error(got, expected) < 1e-13
    wanted = [x, *layer.parameters()]
    assert relative_error(gradients(got, wanted), gradients(expected, wanted)) < 1e-12


def test_a_linear_head_gives_the_score_of_the_paper():
    """(W_0 h_m + W_b sum U v) / 2 with W_0 the score that chooses, where the head maps its direction to 1."""
    layer, head = DualStream(1, None).double(), torch.randn(7, dtype=DOUBLE)
    layer.second.direction.data = head[None] / head.square().sum()
    x = random_sets()[0][0]
    score = layer.first.score(x)[:, 0]
    query = layer.first.query(x)
    weights = (query @ query[score.argmax()] / 7**0.5).softmax(0)
    expected = (score.max() + head @ layer.second.value(weights @ x)) / 2
    assert relative_error(layer(x[None], torch.ones(1, 11))[0, 0] @ head, expected) < 1e-13


def test_the_mean_of_elements_that_tie():
    """By multiplicity; an absent one that ties has no part; and the score's gradient is shared as copies share it."""
    layer = CriticalInstances(2).double()
    layer.score.weight.data, layer.score.bias.data = torch.tensor([[1.0, 0.0]]).double(), torch.zeros(1).double()
    x = torch.tensor([[[3.0, 5.0], [1.0, 9.0], [3.0, -7.0], [3.0, 100.0]]], dtype=DOUBLE, requires_grad=True)
    m = torch.tensor([[2.0, 4.0, 1.0, 0.0]])
    whole = layer.finish(layer.reduce(x, m))
    assert whole.tolist() == [[[3.0, 1.0]]]
    shards = [layer.reduce(x[:, i : i + 1], m[:, i : i + 1]) for i in (1, 3, 2, 0)]
    merged = shards[0].merge(shards[1]).merge(shards[2]).merge(shards[3])
    assert torch.equal(layer.finish(merged), whole)
    (grad,) = torch.autograd.grad(whole.sum(), x)
    assert relative_error(grad[0], torch.tensor([2, 0, 1, 0]).double()[:, None].expand(-1, 2) / 3) < 1e-15


def test_copies_tie_whatever_rounding_does():
    """Products round differently in shards of different sizes: copies of the critical instance are still one."""
    x = torch.randn(1, 60, 3, dtype=DOUBLE)
    for seed in range(5):
        torch.manual_seed(seed)
        encoder = encoders.build("dsmil", input_dim=3, dim=64, depth=1).double()
        best = int(encoder.layers[0].score(encoder.embed(x)).argmax())
        copied = torch.cat([x, x[:, best : best + 1].expand(-1, 7, -1)], 1)
        batch = SetBatch(copied[:, torch.randperm(67)].clone().requires_grad_())
        sums = (encoder(batch, shard_size=size).summary.sum() for size in (None, 1, 7))
        whole, *parts = (torch.autograd.grad(value, batch.elements)[0] for value in sums)
        assert max(relative_error(part, whole) for part in parts) < 1e-12
        same = (batch.elements == x[:, best]).all(-1)[0]
        assert same.sum() == 8
        assert relative_error(whole[0, same], whole[0, same][:1].expand(8, -1)) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_multiplicity_is_copies_in_shards(name):
    """Outputs and gradients; those of an element are the sum of its copies'."""
    encoder = encoders.build(name, **SIZES).double()
    x = torch.randn(1, 13, 3, dtype=DOUBLE, requires_grad=True)
    m = torch.randint(0, 4, (1, 13))
    wanted = [x, *encoder.parameters()]
    counted = encoder(SetBatch(x, m)).summary
    expected = gradients(counted, wanted)
    for size in (None, 1, 5):
        copies = x[0].repeat_interleave(m[0], 0)
        copies = copies[torch.randperm(len(copies))][None]
        summary = encoder(SetBatch(copies), shard_size=size).summary
        assert relative_error(summary, counted) < 1e-12
        assert relative_error(gradients(summary, wanted), expected) < 1e-12


def test_bad_sizes():
    for make, message in (
        (lambda: GatedAttentionPooling(0), "dim must be an integer >= 1, got 0"),
        (lambda: GatedAttentionPooling(5, 0), "num_outputs must be an integer >= 1, got 0"),
        (lambda: CriticalInstances(5, attention_dim=0), "attention_dim must be an integer >= 1, got 0"),
        (lambda: CriticalAttention(5, -1), "number must be an integer >= 1, got -1"),
        (lambda: encoders.build("abmil", **{**SIZES, "depth": -1}), "depth must be an integer >= 0, got -1"),
        (lambda: encoders.build("dsmil", **SIZES, attention_dim=0), "attention_dim must be an integer >= 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.parametrize("name", [*NAMES, "umbc"])
def test_no_element_has_an_output(name):
    encoder = encoders.build(name, **SIZES, num_heads=1, num_inducing=3)
    batch = SetBatch(torch.randn(1, 5, 3))
    with pytest.raises(ValueError, match=f"{type(encoder).__name__} has no outputs of elements"):
        encoder.contextualize(batch, encoder(batch).contexts)


# --------------------------------------------------------------------------- explanations


def attentions(encoder, batch):
    """Normalised weights (sets, outputs, elements) of what attends; and DSMIL's of its critical instances."""
    x, m = encoder.embed(batch.elements), batch.multiplicity.double()[:, None]
    pool = encoder.pool
    if isinstance(pool, GatedAttentionPooling):
        return ((pool.gate(x).sigmoid() * pool.tanh(x).tanh()) @ pool.weight.mT).mT.add(m.log()).softmax(-1), None
    first = encoder.layers[0]
    best = first.score(x).mT.masked_fill(m == 0, -torch.inf).argmax(-1)  # (sets, outputs)
    critical = torch.stack([each[places] for each, places in zip(x, best, strict=True)])
    products = first.query(critical) @ first.query(x).mT / 7**0.5
    return products.add(m.log()).softmax(-1), nn.functional.one_hot(best, x.shape[1]).double()


def present_sets():
    m = torch.randint(0, 4, (3, 11))
    m[:, 0] = 1
    return SetBatch(torch.randn(3, 11, 3, dtype=DOUBLE), m)


@pytest.mark.parametrize("name", NAMES)
def test_attention_is_that_of_the_formula(name):
    encoder, batch = encoders.build(name, **SIZES).double(), present_sets()
    weights = attentions(encoder, batch)[0].sum(1)
    expected = weights / weights.amax(1, keepdim=True)
    for options in ({}, {"shard_size": 4}, {"shard_size": 4, "store": "recompute"}):
        assert relative_error(explain.attention(encoder, batch, **options), expected) < 1e-12


def test_attribution_written_out():
    """Each layer's A * mean over alpha of dF / d(alpha A), A built by hand."""
    batch, steps = present_sets(), 5
    for name in NAMES:
        encoder = encoders.build(name, **SIZES).double()
        x = encoder.embed(batch.elements).detach()
        second, first = (None if a is None else a.detach() for a in attentions(encoder, batch))

        def f(scaled, encoder=encoder, x=x, second=second, name=name):
            """The output that is explained, with the last attention, or that of the critical instances, as given."""
            pool = encoder.pool
            if name == "abmil":
                return (scaled @ x).flatten(1)[:, 3].sum()
            layer, (a, critical) = encoder.layers[0], scaled
            c = critical @ x
            score = (c * layer.score.weight).sum(-1) + layer.score.bias
            if a is None:
                products = layer.query(c) @ layer.query(x).mT / 7**0.5
                a = products.add(batch.multiplicity.double()[:, None].log()).softmax(-1)
            return ((pool.value(a @ x) + score[..., None] * pool.direction) / 2).flatten(1)[:, 3].sum()

        paths = [("pool", second, lambda s: s)] if name == "abmil" else []
        if name == "dsmil":
            paths = [("layers.0", first, lambda s: (None, s)), ("pool", second, lambda s, c=first: (s, c))]
        found = explain.attribute_layers(encoder, batch, 3, steps=steps)
        sharded = explain.attribute_layers(encoder, batch, 3, steps=steps, shard_size=4)
        assert [layer.layer for layer in found] == [path for path, *_ in paths]
        for layer, parts, (_, a, scaled) in zip(found, sharded, paths, strict=True):
            total = 0
            for step in range(1, steps + 1):
                alpha = (a * step / steps).requires_grad_()
                total = total + torch.autograd.grad(f(scaled(alpha)), alpha)[0]
            expected = a * total / steps
            assert relative_error(layer.scores, expected.clamp(min=0).sum(1)) < 1e-12
            assert relative_error(layer.total, expected.sum((1, 2))) < 1e-12
            assert relative_error(parts.scores, layer.scores) < 1e-12
            assert relative_error(parts.change, layer.change) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_attribution_is_complete(name):
    encoder = encoders.build(name, **SIZES).double()
    batch = present_sets()
    few, many = (explain.completeness(explain.attribute_layers(encoder, batch, 1, steps=n)) for n in (4, 200))
    assert (many < 0.02).all()
    assert (many <= few + 1e-12).all()  # where F is linear in A, any number of steps is exact
    scores = explain.attribute(encoder, batch)
    assert (scores.amax(1) == 1).all()
    assert not scores[batch.multiplicity == 0].any()
    assert all(p.grad is None and p.requires_grad for p in encoder.parameters())
    assert not [n for n, _ in encoder.named_modules() if n.endswith("probe")]
