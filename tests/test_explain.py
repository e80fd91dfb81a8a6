import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from omniset import SetBatch, encoders, explain
from omniset.kernels import folded
from omniset.layers import PoolingByMultiheadAttention
from omniset.testing import relative_error

B, N, D = 3, 7, 6
PARTS = ("scores", "total", "change")


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool, self.head = PoolingByMultiheadAttention(D, 2, 1), nn.Linear(D, 4)

    def forward(self, batch):
        return self.head(self.pool(batch.elements, batch.multiplicity)[:, 0])


def sets():
    m = torch.randint(0, 4, (B, N))
    m[:, 2] = 0
    return SetBatch(torch.randn(B, N, D, dtype=torch.float64), m)


def written_out(model, batch):
    block, heads = model.pool.gather, lambda z: z.unflatten(-1, (2, -1)).transpose(1, 2)
    y = block.norm_elements(batch.elements)
    q, k, v = heads(block.query(block.norm_queries(model.pool.points))), heads(block.key(y)), heads(block.value(y))
    return F.softmax(q @ k.mT / 3**0.5 + batch.multiplicity.double().log()[:, None, None], -1).detach(), v


@pytest.mark.parametrize("baseline", ["zero", "equal"])
def test_against_attribution_written_out(baseline):
    """A * mean over alpha of dF/d(alpha A), with A built by hand; against equal attention, of values less their mean.

    There the way is that of A from 1/n to what it is. To subtract the mean of what is attributed is to subtract that of
    the values, as it is linear in them.
    """
    model, batch, steps = Pooled().double(), sets(), 5
    block, m = model.pool.gather, batch.multiplicity
    a, v = written_out(model, batch)
    target = model(batch).argmax(1)

    def f_each(weights):
        h = model.pool.points + block.output((weights @ v).transpose(1, 2).flatten(2))
        return model.head((h + block.ffn(block.norm_ffn(h)))[:, 0]).gather(1, target[:, None])[:, 0]

    def f(weights):
        return f_each(weights).sum()

    assert relative_error(f(a), model(batch).max(1).values.sum()) < 1e-14
    alike = (m.double() / m.sum(1, keepdim=True))[:, None, None]
    start = alike.expand_as(a) if baseline == "equal" else torch.zeros_like(a)
    total = 0
    places, shares = np.polynomial.legendre.leggauss(steps)
    for place, share in zip((places + 1) / 2, shares / 2, strict=True):
        scaled = (start + (a - start) * place).requires_grad_()
        total = total + share * torch.autograd.grad(f(scaled), scaled)[0]
    if baseline == "equal":
        total = total - (total * alike).sum(-1, keepdim=True)
    attribution = a * total
    (layer,) = explain.attribute_layers(model, batch, steps=steps, baseline=baseline)
    summed = attribution.clamp(min=0).sum((1, 2))
    assert relative_error(layer.scores, summed) < 1e-13
    assert relative_error(layer.total, attribution.sum((1, 2, 3))) < 1e-13
    assert relative_error(layer.change, f_each(a) - f_each(start)) < 1e-12
    expected = summed / summed.amax(1, keepdim=True).clamp(min=1e-300)
    assert relative_error(explain.attribute(model, batch, steps=steps, baseline=baseline), expected) < 1e-13


@pytest.mark.parametrize("name", ["ust", "set-transformer-sab", "umbc", "sse", "flare", "abmil"])
def test_against_equal_attention_what_values_share_counts_nothing(name):
    """It is moved from the values to the bias of the projection that follows, or the reverse: the same function.

    Where there is no such projection the attribution is still complete.
    """
    sizes = {"input_dim": D, "dim": 10, "num_heads": 2, "num_inducing": 5, "depth": 2}
    encoder, batch = encoders.build(name, **sizes).double().eval(), sets()
    before = encoder(batch).summary
    coarse, fine = (explain.attribute_layers(encoder, batch, 1, n, baseline="equal") for n in (30, 60))
    for a, b in zip(coarse, fine, strict=True):
        assert relative_error(2 * b.total - a.total, b.change) < 0.03
    blocks = [block for block in explain._set_attention(encoder).values() if hasattr(block, "output")]
    for block in blocks:
        if (shared := getattr(block.value, "bias", None)) is not None:
            shift = torch.randn_like(shared)
            shared.data += shift
            block.output.bias.data -= block.output.weight @ shift
    assert relative_error(encoder(batch).summary, before) < 1e-12
    for a, b in zip(fine, explain.attribute_layers(encoder, batch, 1, 60, baseline="equal"), strict=True):
        assert relative_error(b.scores, a.scores) < 1e-9


@pytest.mark.parametrize("name", ["ust", "set-transformer-sab", "set-transformer-isab", "strxl"])
@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize("baseline", ["zero", "equal"])
def test_complete_bounded_and_absent_elements_score_0(name, class_token, baseline):
    sizes = {"input_dim": D, "dim": 10, "depth": 2, "num_heads": 2, "num_inducing": 5, "decoder_depth": 1}
    encoder = encoders.build(name, **sizes, class_token=class_token, activation="gelu").double()
    batch = sets()
    coarse, fine = (explain.attribute_layers(encoder, batch, steps=n, baseline=baseline) for n in (2, 32))
    assert len(coarse) == len(fine) == 2 + (not class_token)
    for a, b in zip(coarse, fine, strict=True):  # on a smooth path the error falls faster than any power of steps
        assert relative_error(b.total, b.change) < 1e-6
        assert relative_error(b.total, b.change) < relative_error(a.total, a.change)
        assert b.scores.shape[-1] == N
    scores = explain.attribute(encoder, batch, steps=5, baseline=baseline)
    assert scores.shape == (B, N)
    assert scores.min() >= 0
    assert (scores.amax(1) == 1).all()
    assert not scores[batch.multiplicity == 0].any()


@pytest.mark.parametrize("weighting", ["softmax", "sigmoid", "slots"])
def test_slots_that_attend(weighting):
    sizes = {"input_dim": D, "dim": 10, "num_heads": 2, "num_inducing": 5}
    encoder = encoders.build("sse", **sizes, num_outputs=3, weighting=weighting).double().eval()
    batch = sets()
    layer, m = encoder.pool, batch.multiplicity[:, None, None].double()
    x = encoder.embed(batch.elements)
    projected = layer.query(layer.norm_slots(layer.slots)), layer.key(x), layer.value(x)
    q, k, v = (z.unflatten(-1, (2, -1)).transpose(1, 2) for z in projected)
    scores = q @ k.mT / 5**0.5
    weigh = {"softmax": torch.exp, "sigmoid": torch.sigmoid, "slots": lambda s: s.softmax(2)}[weighting]
    a = weigh(scores) * m
    a = (a / a.sum(-1, keepdim=True)).detach()

    def f(a):
        return layer.norm_output(layer.query(layer.norm_slots(layer.slots)) + (a @ v).transpose(1, 2).flatten(2)).sum()

    layer.norm_output.weight.data = torch.randn(10, dtype=torch.float64)
    assert relative_error(f(a), encoder(batch).summary.sum()) < 1e-13
    total = 0
    places, shares = np.polynomial.legendre.leggauss(5)
    for place, share in zip((places + 1) / 2, shares / 2, strict=True):
        scaled = (a * place).requires_grad_()
        total = total + share * torch.autograd.grad(f(scaled), scaled)[0]
    (found,) = explain.attribute_layers(encoder, batch, steps=5)
    assert relative_error(found.scores, (a * total).clamp(min=0).sum((1, 2))) < 1e-12
    assert relative_error(found.total, (a * total).sum((1, 2, 3))) < 1e-12
    for options in ({}, {"random": False, "slot_block": True}):
        scores = explain.attribute(encoders.build("umbc", **sizes, **options, depth=2).double().eval(), batch)
        assert (scores.amax(1) == 1).all()
        assert not scores[batch.multiplicity == 0].any()


@pytest.mark.parametrize("baseline", ["zero", "equal"])
def test_permutes_with_the_elements_and_counts_copies(baseline):
    how = {"target": 1, "baseline": baseline}
    model, batch = Pooled().double(), sets()
    order = torch.randperm(N)
    shuffled = SetBatch(batch.elements[:, order], batch.multiplicity[:, order])
    raw = explain.attribute_layers(model, batch, **how)[0].scores
    assert relative_error(explain.attribute_layers(model, shuffled, **how)[0].scores, raw[..., order]) < 1e-12
    for b in range(B):  # an element's score is that of its copies together
        m = batch.multiplicity[b]
        copies = SetBatch(batch.elements[b].repeat_interleave(m, 0)[None])
        each = explain.attribute_layers(model, copies, **how)[0].scores
        summed = torch.stack([part.sum(-1) for part in each.split(m.tolist(), -1)], -1)
        assert relative_error(summed[0], raw[b]) < 1e-12


def test_target_per_set_and_no_trace_left():
    model, batch = Pooled().double(), sets()
    each = explain.attribute(model, batch, target=torch.tensor([0, 1, 2]))
    for b in range(B):
        assert relative_error(each[b], explain.attribute(model, batch[b : b + 1], target=b)[0]) < 1e-12
    assert model.pool.gather.probe is None
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    model.head.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="target must be from 0 to 3, got 9"):
        explain.attribute(model, batch, target=9)
    assert model.pool.gather.probe is None
    assert [p.requires_grad for p in model.head.parameters()] == [False, True]


@pytest.mark.parametrize("baseline", ["zero", "equal"])
def test_an_empty_set_scores_0(baseline):
    model = Pooled().double()
    absent = SetBatch(torch.zeros(2, 3, D).double(), torch.zeros(2, 3))
    assert explain.attribute(model, absent, baseline=baseline).tolist() == [[0] * 3] * 2
    empty = SetBatch(torch.zeros(2, 0, D).double())
    assert explain.attribute(model, empty, baseline=baseline).shape == (2, 0)


@pytest.mark.parametrize("baseline", ["zero", "equal"])
@pytest.mark.parametrize(
    ("name", "class_token", "store"),
    [
        ("ust", False, "device"),
        ("ust", True, "recompute"),
        ("set-transformer-sab", False, "device"),
        ("set-transformer-sab", True, "device"),
        ("sse", False, "device"),
        ("umbc", False, "recompute"),
    ],
)
def test_shards_give_the_scores_of_the_whole(name, class_token, store, baseline):
    sizes = {"input_dim": D, "dim": 10, "depth": 2, "num_heads": 2, "num_inducing": 5, "decoder_depth": 1}
    encoder = encoders.build(name, **sizes, class_token=class_token).double().eval()
    batch = sets()
    how = {"target": 1, "steps": 2, "baseline": baseline}
    whole = explain.attribute_layers(encoder, batch, **how)
    for source, cut in ((batch, {"shard_size": 1}), (list(batch.shards(3)), {})):
        found = explain.attribute_layers(encoder, source, **how, store=store, **cut)
        for a, b in zip(whole, found, strict=True):
            assert all(relative_error(getattr(b, part), getattr(a, part)) < 1e-12 for part in PARTS)
        expected = explain.attention(encoder, batch)
        assert relative_error(explain.attention(encoder, source, store=store, **cut), expected) < 1e-12


@pytest.mark.parametrize("baseline", ["zero", "equal"])
@pytest.mark.parametrize("name", ["ust", "set-transformer-sab", "umbc", "sse", "flare", "abmil"])
def test_steps_that_are_computed_together_are_as_one_by_one(name, baseline):
    sizes = {"input_dim": D, "dim": 10, "num_heads": 2, "num_inducing": 5, "depth": 2}
    encoder, batch = encoders.build(name, **sizes).double().eval(), sets()
    asked = []
    encoder.register_forward_pre_hook(lambda _, given: asked.append(len(given[0])))
    how = {"target": torch.tensor([1, 0, 2]), "steps": 6, "baseline": baseline}
    alone = explain.attribute_layers(encoder, batch, **how, max_elements=1)
    assert {*asked} == {B}
    for most, sizes in ((B * N * 4, {B, 4 * B, 2 * B}), (explain.AT_ONCE, {B, 6 * B})):
        asked.clear()
        for one, other in zip(alone, explain.attribute_layers(encoder, batch, **how, max_elements=most), strict=True):
            assert all(relative_error(getattr(other, part), getattr(one, part)) < 1e-12 for part in PARTS)
        assert {*asked} == sizes


@pytest.mark.parametrize("least", [0, 1 << 62])
def test_shards_of_folded_layers(least, monkeypatch):
    monkeypatch.setattr(folded, "LEAST", least)
    sizes = {"input_dim": D, "dim": 12, "depth": 2, "num_heads": 2, "num_inducing": 5}
    encoder = encoders.build("ust", **sizes).double().eval()
    batch = sets()
    whole = explain.attribute(encoder, batch, steps=3)
    assert relative_error(explain.attribute(encoder, batch, steps=3, shard_size=2), whole) < 1e-12
    monkeypatch.setattr(folded, "LEAST", 1 << 62)
    assert relative_error(explain.attribute(encoder, batch, steps=3), whole) < 1e-12


def test_plain_attention():
    model, batch = Pooled().double(), sets()
    a = written_out(model, batch)[0].sum((1, 2))
    assert relative_error(explain.attention(model, batch), a / a.amax(1, keepdim=True)) < 1e-13


def test_completeness_says_how_far():
    encoder = encoders.build("ust", input_dim=D, dim=10, depth=1, num_heads=2, num_inducing=5).double()
    coarse, fine = (explain.completeness(explain.attribute_layers(encoder, sets(), steps=n)) for n in (2, 60))
    assert coarse.shape == (2,)
    assert (fine < 0.02).all()
    assert (fine < coarse).all()
    exact = explain.LayerAttribution("", torch.zeros(2, 3), torch.tensor([3.0, -1.0]), torch.tensor([2.0, -2.0]))
    assert explain.completeness([exact]).tolist() == [0.5]


def test_what_cannot_be_explained():
    sizes = {"input_dim": D, "dim": 10, "depth": 1, "num_heads": 2}
    encoder = encoders.build("ust", **sizes, num_inducing=5).double()
    with pytest.raises(ValueError, match="DeepSets has no attention over the elements"):
        explain.attribute(encoders.build("deep-sets", **sizes).double(), sets())
    with pytest.raises(ValueError, match="steps must be >= 1, got 0"):
        explain.attribute(encoder, sets(), steps=0)
    with pytest.raises(ValueError, match="shards must be 'merged' to explain a whole set, got 'independent'"):
        explain.attribute(encoder, sets(), shards="independent", shard_size=2)
    with pytest.raises((ValueError, TypeError), match="baseline"):
        explain.attribute(encoder, sets(), baseline="mean")
