"""A network of the user's own in place of the input layers: exact through shards, and what is refused."""

import pytest
import torch
from torch import nn

from omniset import SetBatch, SetClassifier, encoders, explain
from omniset.encoders import RowWise
from omniset.layers import PoolingByMultiheadAttention
from omniset.testing import relative_error
from oracle import assert_along

C, H, W, DIM = 2, 7, 5, 6
SIZES = {"input_dim": C * H * W, "dim": DIM, "depth": 1, "num_heads": 2, "num_inducing": 3}


def tiles(*more):
    """A small convolutional network of tiles, which come flattened."""
    return nn.Sequential(
        nn.Unflatten(1, (C, H, W)),
        nn.Conv2d(C, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        *more,
        nn.Conv2d(4, DIM, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def images():
    m = torch.randint(0, 3, (2, 17))
    m[1, 9:] = 0
    return SetBatch(torch.randn(2, 17, C * H * W, dtype=torch.float64, requires_grad=True), m)


def results(encoder, batch, **options):
    out = encoder(batch, **options)
    generator = torch.Generator().manual_seed(1)
    loss = (out.summary * torch.randn(out.summary.shape, generator=generator)).sum()
    if out.elements is not None:
        loss = loss + (out.elements * torch.randn(out.elements.shape, generator=generator)).sum()
    wanted = [batch.elements, *encoder.parameters()]
    # Random slots have none, outside training.
    return [out.summary], [*torch.autograd.grad(loss, wanted, materialize_grads=True)]


@pytest.mark.parametrize("name", [n for n, e in encoders.ENCODERS.items() if e.mini_batch_consistent])
def test_shards_are_the_whole(name):
    encoder, batch = encoders.build(name, **SIZES, embed=tiles()).double().eval(), images()
    summary, grads = results(encoder, batch)
    for options in ({"shard_size": 1}, {"shard_size": 5}, {"shard_size": 5, "store": "cpu"}):
        got = results(encoder, batch, **options)
        assert relative_error(got[0], summary) <= 1e-12
        assert relative_error(got[1], grads) <= 1e-12


def test_it_is_the_network_on_each_element():
    """Against the encoder without input layers, on features that the network made beforehand."""
    network = tiles().double()
    encoder = encoders.build("ust", **SIZES, embed=network, input_layers=2).double()
    plain = encoders.build("ust", **{**SIZES, "input_dim": DIM}, input_layers=0).double()
    plain.load_state_dict({n: p for n, p in encoder.state_dict().items() if not n.startswith("embed")})
    batch = images()
    features = torch.stack([torch.cat([network(tile[None]) for tile in each]) for each in batch.elements])
    expected = plain(SetBatch(features, batch.multiplicity))
    out = encoder(batch, shard_size=4)
    assert relative_error(out.summary, expected.summary) < 1e-13
    wanted = list(network.parameters())
    got, true = (torch.autograd.grad(o.summary.square().sum(), wanted) for o in (out, expected))
    assert relative_error(got, true) < 1e-12


@pytest.mark.parametrize("name", encoders.ENCODERS)
def test_every_encoder_takes_one(name):
    encoder = encoders.build(name, **SIZES, embed=tiles()).double()
    out = encoder(images())
    grads = torch.autograd.grad(out.summary.square().sum(), list(encoder.embed.parameters()))
    assert all(g.abs().sum() > 0 for g in grads)
    empty = encoder(SetBatch(torch.zeros(2, 0, C * H * W, dtype=torch.float64)))
    assert empty.summary.isfinite().all()


def test_dropout_within_is_replayed():
    """The gradient through shards is that of the very masks of the forward."""
    encoder, batch = encoders.build("abmil", **SIZES, embed=tiles(nn.Dropout2d(0.3))).double(), images()
    parameters = list(encoder.parameters())

    def loss():
        torch.manual_seed(7)
        return encoder(batch, shard_size=5).summary.square().sum()

    assert_along(parameters, torch.autograd.grad(loss(), parameters), loss)


def test_the_check_leaves_the_module_as_it_was():
    network = tiles(nn.Dropout(0.5))
    network[0].eval()
    before, state = [m.training for m in network.modules()], torch.get_rng_state()
    RowWise(network, C * H * W, DIM)
    assert [m.training for m in network.modules()] == before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None and p.requires_grad for p in network.parameters())
    assert RowWise(nn.LazyLinear(5), 3, 5).module.in_features == 3


def test_attention_of_the_network_is_none_over_the_set():
    class OfPixels(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = PoolingByMultiheadAttention(DIM, 2, 1)

        def forward(self, rows):
            return self.pool(rows.unflatten(1, (-1, DIM)))[:, 0]

    sizes = {"input_dim": 4 * DIM, "dim": DIM, "depth": 1}
    batch = SetBatch(torch.randn(2, 5, 4 * DIM))
    layers = explain.attribute_layers(encoders.build("abmil", **sizes, embed=OfPixels()), batch, 0, steps=2)
    assert [layer.layer for layer in layers] == ["pool"]
    with pytest.raises(ValueError, match="DeepSets has no attention over the elements"):
        explain.attribute(encoders.build("deep-sets", **sizes, embed=OfPixels()), batch)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(70, 5), r"embed must make rows of dim=6 features, \(2, 6\) of \(2, 70\), got \(2, 5\)"),
        (nn.Unflatten(1, (C, H, W)), r"embed must make rows of dim=6 features, .* got \(2, 2, 7, 5\)"),
        (nn.GRU(70, 6), r"embed must make rows of dim=6 features, .* got tuple"),
        (nn.Linear(71, 6), "embed does not take rows of input_dim=70 features: .*70"),
        (tiles(nn.BatchNorm2d(4)), r"each element by itself, and BatchNorm2d \(4\) normalises .* take GroupNorm"),
        (nn.BatchNorm1d(70), r"and BatchNorm1d \(embed itself\) normalises over the batch"),
        ("resnet", "embed"),
    ],
)
def test_what_is_refused(module, message):
    with pytest.raises(TypeError if module == "resnet" else ValueError, match=message):
        encoders.build("abmil", **SIZES, embed=module)


def test_an_estimator_stores_no_code():
    model = SetClassifier("abmil", dim=DIM, encoder_options={"embed": tiles()}, progress=False)
    with pytest.raises(ValueError, match=r"encoder_options: embed is a module, .* omniset.encoders.build"):
        model.fit([[[0.0]], [[1.0]]], [0, 1])
