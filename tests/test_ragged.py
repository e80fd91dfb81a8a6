"""Batches of sets of very different sizes: buckets change no result, are the cheapest ones, and keep to themselves."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from omniset.core.sets import SetBatch
from omniset.encoders import ENCODERS, build
from omniset.engine import ragged
from omniset.layers import MultisetAttentionBlock
from omniset.testing import relative_error

LENGTHS = [1, 37, 0, 2, 5, 101, 3, 64]


@pytest.fixture(autouse=True)
def costs(monkeypatch):
    """Buckets wherever they save anything at all."""
    monkeypatch.setattr(ragged, "OVERHEAD", 0)
    monkeypatch.setattr(ragged, "WORTH", 1.0)


def batch_of(lengths=LENGTHS, dim=3, gaps=True):
    torch.manual_seed(1)
    m = (torch.arange(max(lengths) + 2) < torch.tensor(lengths)[:, None]).double()
    m *= torch.randint(1, 4, m.shape)
    if gaps:
        m[5, 17:30] = 0
    return SetBatch(torch.randn(*m.shape, dim, dtype=torch.float64).requires_grad_(), m)


def encoder_of(name, **options):
    torch.manual_seed(2)
    sizes = {"depth": 2, "num_heads": 2, "num_inducing": 3}
    return build(name, input_dim=3, dim=8, **sizes | options).double().eval()


def results(encoder, batch):
    out = encoder(batch)
    outputs = [out.summary] if out.elements is None else [out.summary, out.elements]
    torch.manual_seed(3)
    loss = sum((o * torch.randn_like(o)).sum() for o in outputs)
    wanted = [batch.elements, *encoder.parameters()]
    outputs = [o.detach() for o in outputs]
    return out, outputs + [g for g in torch.autograd.grad(loss, wanted, allow_unused=True) if g is not None]


@pytest.mark.parametrize("name", ENCODERS)
def test_buckets_change_nothing(name, monkeypatch):
    """Outputs and gradients of the batch, and outputs in its sets' context, also of empty sets and of gaps."""
    encoder, batch = encoder_of(name), batch_of()
    assert len(ragged.buckets(batch, 8)) > 2
    got, parts = results(encoder, batch)
    monkeypatch.setattr(ragged, "WORTH", 0.0)
    assert not ragged.buckets(batch, 8)
    expected, parts_expected = results(encoder, batch)
    for one, other in zip(parts, parts_expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= 1e-12 * max(1.0, float(other.abs().max()))
    if encoder.outputs_elements and encoder.layers and got.contexts is not None:
        others = batch_of([4] * len(LENGTHS), gaps=False)
        new, old = (encoder.contextualize(others, out.contexts) for out in (got, expected))
        assert relative_error(new, old) < 1e-12


def test_one_set_in_a_batch_that_is_padded_too_far():
    encoder = encoder_of("ust")
    batch = batch_of([7], gaps=False)
    padded = SetBatch(
        *(nn.functional.pad(x, p) for x, p in ((batch.elements, (0, 0, 0, 90)), (batch.multiplicity, (0, 90))))
    )
    assert ragged.buckets(padded, 8) == [(np.array([0]), 7)]
    assert encoder(padded).elements.shape[1] == 99
    assert relative_error(encoder(padded).summary, encoder(batch).summary) < 1e-13


@pytest.mark.parametrize("fixed", [0, 50, 400, 10_000])
def test_buckets_are_the_cheapest(fixed, monkeypatch):
    """Of all ways to cut the sorted lengths at powers of the third root of two."""
    monkeypatch.setattr(ragged, "OVERHEAD", fixed)
    rng = np.random.default_rng(4)
    for _ in range(20):
        lengths = np.exp(rng.uniform(0, 3.5, 23)).astype(int).tolist()
        batch = SetBatch(torch.zeros(23, max(lengths), 2), torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])
        chosen = ragged.buckets(batch, 2)
        cost = sum(len(b.sets) * b.length * 2 + fixed for b in chosen)
        assert all(b.length == max(lengths[i] for i in b.sets) for b in chosen)
        classes = [[n for n in sorted(lengths) if 2 ** ((k - 1) / 3) < max(n, 1) <= 2 ** (k / 3)] for k in range(17)]
        classes = [c for c in classes if c]
        every = []
        for cuts in itertools.product([False, True], repeat=len(classes) - 1):
            groups = [[*classes[0]]]
            for cut, some in zip(cuts, classes[1:], strict=True):
                groups = [*groups, [*some]] if cut else [*groups[:-1], groups[-1] + some]
            every.append(sum(len(g) * max(g) * 2 + fixed for g in groups))
        whole = 23 * max(lengths) * 2 + fixed
        assert cost == min(every) if chosen else min(every) >= whole
        assert not chosen or sorted(i for b in chosen for i in b.sets) == list(range(23))


def test_who_waits_for_the_whole_batch_gets_it():
    """A hook within; learned multiplicities, which have a gradient where none is present."""
    encoder, batch = encoder_of("ust"), batch_of()
    seen = []
    encoder.embed.register_forward_hook(lambda _, given, __: seen.append(given[0].shape[:2]))
    encoder(batch)
    assert seen == [batch.multiplicity.shape]
    learned = batch.multiplicity.clone().requires_grad_()
    out = encoder_of("ust")(SetBatch(batch.elements, learned, validate=False))
    assert torch.autograd.grad(out.summary.sum(), learned)[0].isfinite().all()


def test_presence():
    """Lengths go up to the last element that is present; what is changed in place is seen."""
    batch = SetBatch(torch.zeros(4, 3, 1), torch.tensor([[0, 0, 0], [1, 0, 0], [0, 0, 2], [1, 1, 1]]))
    assert batch.presence.lengths.tolist() == [0, 1, 3, 3]
    assert not batch.presence.once
    assert SetBatch(torch.zeros(2, 0, 1)).presence.lengths.tolist() == [0, 0]
    batch = SetBatch(torch.zeros(2, 3, 1))
    assert batch.presence.once
    batch.multiplicity[1, 2] = 0
    assert (batch.presence.lengths.tolist(), batch.presence.once) == ([3, 2], False)


def test_sets_without_padding_are_attended_to_without_a_mask(monkeypatch):
    """Without one it is faster; the result is that with multiplicities of 1."""
    encoder, batch = encoder_of("set-transformer-sab"), SetBatch(torch.randn(2, 11, 3, dtype=torch.float64))
    masks = []
    attend = MultisetAttentionBlock.forward
    monkeypatch.setattr(
        MultisetAttentionBlock, "forward", lambda self, q, e, m: (masks.append(m), attend(self, q, e, m))[1]
    )
    got = encoder(batch).elements
    assert masks[:2] == [None, None]
    learned = batch.multiplicity.clone().requires_grad_()
    assert relative_error(encoder(SetBatch(batch.elements, learned, validate=False)).elements, got) < 1e-13
    batch.multiplicity[1, 3:] = 0
    assert (encoder(batch).elements - got)[1].abs().max() > 1e-3
