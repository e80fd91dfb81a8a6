import pytest
import torch
import torch.nn.functional as F
from torch import nn

from omniset import SetBatch, encoders, explain
from omniset.layers import PoolingByMultiheadAttention
from omniset.testing import relative_error

B, N, D = 3, 7, 6


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


def test_against_attribution_written_out():
    """A * mean over alpha of dF/d(alpha A), with A built by hand."""
    model, batch, steps = Pooled().double(), sets(), 5
    block, m = model.pool.gather, batch.multiplicity
    heads = lambda z: z.unflatten(-1, (2, -1)).transpose(1, 2)  # noqa: E731
    y = block.norm_elements(batch.elements)
    q, k, v = heads(block.query(block.norm_queries(model.pool.points))), heads(block.key(y)), heads(block.value(y))
    a = F.softmax(q @ k.mT / 3**0.5 + m.double().log()[:, None, None], -1).detach()
    target = model(batch).argmax(1)

    def f(weights):
        h = model.pool.points + block.output((weights @ v).transpose(1, 2).flatten(2))
        return model.head((h + block.ffn(block.norm_ffn(h)))[:, 0]).gather(1, target[:, None]).sum()

    assert relative_error(f(a), model(batch).max(1).values.sum()) < 1e-14
    total = 0
    for step in range(1, steps + 1):
        scaled = (a * step / steps).requires_grad_()
        total = total + torch.autograd.grad(f(scaled), scaled)[0]
    attribution = a * total / steps
    (layer,) = explain.attribute_layers(model, batch, steps=steps)
    assert relative_error(layer.scores, attribution) < 1e-13
    summed = attribution.clamp(min=0).sum((1, 2))
    expected = summed / summed.amax(1, keepdim=True).clamp(min=1e-300)
    assert relative_error(explain.attribute(model, batch, steps=steps), expected) < 1e-13


@pytest.mark.parametrize("name", ["ust", "set-transformer-sab", "set-transformer-isab", "strxl"])
@pytest.mark.parametrize("class_token", [False, True])
def test_complete_bounded_and_absent_elements_score_0(name, class_token):
    sizes = {"input_dim": D, "dim": 10, "depth": 2, "num_heads": 2, "num_inducing": 5, "decoder_depth": 1}
    encoder = encoders.build(name, **sizes, class_token=class_token, activation="gelu").double()
    batch = sets()
    coarse, fine = (explain.attribute_layers(encoder, batch, steps=n) for n in (11, 22))
    assert len(coarse) == len(fine) == 2 + (not class_token)
    for a, b in zip(coarse, fine, strict=True):  # the error of a right sum over a smooth path is c/n + O(1/n^2)
        assert relative_error(2 * b.total - a.total, b.change) < 5e-3
        assert relative_error(b.total, b.change) < relative_error(a.total, a.change)
        assert b.scores.shape[-1] == N
    scores = explain.attribute(encoder, batch, steps=5)
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
    q, k, v = (
        z.unflatten(-1, (2, -1)).transpose(1, 2) for z in layer.project(layer.slots, encoder.embed(batch.elements))
    )
    scores = q @ k.mT / 5**0.5
    weigh = {"softmax": torch.exp, "sigmoid": torch.sigmoid, "slots": lambda s: s.softmax(2)}[weighting]
    a = weigh(scores) * m
    a = (a / a.sum(-1, keepdim=True)).detach()

    def f(a):
        return layer.norm_output(layer.query(layer.norm_slots(layer.slots)) + (a @ v).transpose(1, 2).flatten(2)).sum()

    layer.norm_output.weight.data = torch.randn(10, dtype=torch.float64)
    assert relative_error(f(a), encoder(batch).summary.sum()) < 1e-13
    total = 0
    for step in range(1, 6):
        scaled = (a * step / 5).requires_grad_()
        total = total + torch.autograd.grad(f(scaled), scaled)[0]
    (found,) = explain.attribute_layers(encoder, batch, steps=5)
    assert relative_error(found.scores, a * total / 5) < 1e-12
    assert (encoder.pool.gate, "project" in vars(encoder.pool)) == (None, False)
    scores = explain.attribute(encoders.build("umbc", **sizes, depth=2).double().eval(), batch)
    assert (scores.amax(1) == 1).all()
    assert not scores[batch.multiplicity == 0].any()


def test_permutes_with_the_elements_and_counts_copies():
    model, batch = Pooled().double(), sets()
    order = torch.randperm(N)
    shuffled = SetBatch(batch.elements[:, order], batch.multiplicity[:, order])
    raw = explain.attribute_layers(model, batch, target=1)[0].scores
    assert relative_error(explain.attribute_layers(model, shuffled, target=1)[0].scores, raw[..., order]) < 1e-12
    for b in range(B):  # an element's score is that of its copies together
        m = batch.multiplicity[b]
        copies = SetBatch(batch.elements[b].repeat_interleave(m, 0)[None])
        each = explain.attribute_layers(model, copies, target=1)[0].scores
        summed = torch.stack([part.sum(-1) for part in each.split(m.tolist(), -1)], -1)
        assert relative_error(summed[0], raw[b]) < 1e-12


def test_target_per_set_and_no_trace_left():
    model, batch = Pooled().double(), sets()
    each = explain.attribute(model, batch, target=torch.tensor([0, 1, 2]))
    for b in range(B):
        assert relative_error(each[b], explain.attribute(model, batch[b : b + 1], target=b)[0]) < 1e-12
    assert model.pool.gather.gate is None
    assert "project" not in vars(model.pool.gather)
    assert all(p.grad is None for p in model.parameters())


def test_an_empty_set_scores_0():
    model = Pooled().double()
    assert (
        explain.attribute(model, SetBatch(torch.zeros(2, 3, D).double(), torch.zeros(2, 3))).tolist() == [[0] * 3] * 2
    )
    assert explain.attribute(model, SetBatch(torch.zeros(2, 0, D).double())).shape == (2, 0)


def test_bad_arguments():
    model, batch = Pooled().double(), sets()
    with pytest.raises(ValueError, match="steps must be >= 1, got 0"):
        explain.attribute(model, batch, steps=0)
    with pytest.raises(ValueError, match="target must be from 0 to 3, got 4"):
        explain.attribute(model, batch, target=4)
    deep_sets = encoders.build("deep-sets", input_dim=D, dim=5).double()
    with pytest.raises(ValueError, match="DeepSets has no attention over the elements"):
        explain.attribute(deep_sets, batch)
