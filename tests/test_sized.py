"""Attention scaled by the size of the set: the formula, gradients, shards, copies; folded where there is one set."""

import pytest
import torch

from omniset import SetBatch, encoders, explain, testing
from omniset.kernels import folded
from omniset.layers import (
    InducedSetAttentionBlock,
    MultisetAttentionBlock,
    PoolingByMultiheadAttention,
    SetAttentionBlock,
)
from omniset.testing import relative_error
from oracle import induced, msab, repeat, shaken

B, N, D, H, K = 3, 29, 10, 2, 5
DOUBLE = torch.float64


def sets():
    """Set 1 is empty, set 2 is much larger than set 0."""
    m = torch.randint(0, 4, (B, N))
    m[1], m[2] = 0, 7 * m[2]
    return torch.randn(B, N, D, dtype=DOUBLE), m


def encoder_of(name, **more):
    sizes = {"input_dim": D, "dim": D, "depth": 2, "num_heads": H, "num_inducing": K, "num_outputs": 2}
    return shaken(encoders.build(name, **sizes, scale="size", **more)).eval()


def assert_same(layer, got, expected, inputs=()):
    assert relative_error(got, expected) < 1e-13
    upstream, wanted = torch.randn_like(expected), [*layer.parameters(), *inputs]
    ours, theirs = (torch.autograd.grad(o, wanted, upstream, materialize_grads=True) for o in (got, expected))
    for g, e in zip(ours, theirs, strict=True):
        assert (g - e).norm() <= 1e-12 * max(1, float(e.norm()))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_blocks_by_their_formula(norm, monkeypatch):
    """Of repeated elements; where sets are large enough for the folded form, which has one scale for all sets."""
    monkeypatch.setattr(folded, "LEAST", 0)
    x, m = sets()
    each = list(zip(x, m, strict=True))
    layer = shaken(PoolingByMultiheadAttention(D, H, 2, norm=norm, scale="size"))
    assert folded.form(layer.gather, layer.points, x, m) == folded.PLAIN
    assert_same(layer, layer(x, m), torch.stack([msab(layer.gather, layer.points[0], repeat(e, c)) for e, c in each]))
    layer = shaken(InducedSetAttentionBlock(D, H, 2, norm=norm, scale="size"))
    expected = [msab(layer.spread, e, msab(layer.gather, layer.points[0], repeat(e, c))) for e, c in each]
    assert_same(layer, layer(x, m), torch.stack(expected))
    assert layer.spread.size_scale is None  # elements see two points, however many they are
    layer = shaken(SetAttentionBlock(D, H, norm=norm, scale="size"))
    assert_same(layer, layer(x, m), torch.stack([msab(layer.block, e, repeat(e, c)) for e, c in each]))
    queries = torch.randn(1, 3, D, dtype=DOUBLE)  # not of the size of the set
    block = shaken(MultisetAttentionBlock(D, H, norm=norm, scale="size"))
    assert_same(block, block(queries, x), torch.stack([msab(block, queries[0], e) for e in x]))


@pytest.mark.parametrize("learned", [False, True])
def test_one_set_is_folded(learned, monkeypatch):
    monkeypatch.setattr(folded, "LEAST", 0)
    layer = shaken(InducedSetAttentionBlock(D, H, 2, scale="size"))
    x, m = sets()
    x, m = x[:1].requires_grad_(), (m[:1].double() + 0.3).requires_grad_(learned)
    assert folded.form(layer.gather, layer.points, x, m)[0] == "gather"
    expected = msab(layer.spread, x[0], msab(layer.gather, layer.points[0], x[0], m[0]))[None]
    assert_same(layer, layer(x, m), expected, (x, m) if learned else (x,))
    parts = [layer.gather.reduce(layer.points, x[:, at], m[:, at], None, m.sum(1)) for at in (slice(11), slice(11, N))]
    assert relative_error(layer.map(x, layer.finish(parts[0].merge(parts[1]))), expected) < 1e-13


def test_gradients_of_multiplicities():
    """The size is their sum, so that each also has the gradient of all scores."""
    layer = shaken(InducedSetAttentionBlock(D, H, K, scale="size"))
    x, m = sets()
    m = (m[[0, 2]].double() + 0.3).requires_grad_()
    x = x[[0, 2]].requires_grad_()
    assert_same(layer, layer(x, m), torch.stack([induced(layer, e, w) for e, w in zip(x, m, strict=True)]), (x, m))


def test_the_start_is_plain_attention():
    plain, scaled = (InducedSetAttentionBlock(D, H, K, scale=scale).double() for scale in ("width", "size"))
    scaled.load_state_dict(plain.state_dict(), strict=False)
    x, m = sets()
    assert relative_error(scaled(x, m), plain(x, m)) < 1e-14


@pytest.mark.parametrize("name", ["ust", "set-transformer-sab", "strxl"])
def test_symmetries(name):
    encoder, (x, m) = encoder_of(name), sets()
    batch = SetBatch(x, m)
    testing.assert_permutation_equivariant(encoder, batch)
    testing.assert_multiset_consistent(encoder, batch)
    doubled = encoder(SetBatch(x, 2 * m)).summary
    assert relative_error(doubled[[0, 2]], encoder(batch).summary[[0, 2]]) > 1e-4  # the size counts
    if encoder.mini_batch_consistent:
        again = encoder(list(batch.shards(7)))
        assert relative_error(again.summary, encoder(batch).summary) < 1e-12
        others = SetBatch(torch.randn(B, 3, D, dtype=DOUBLE))
        found, expected = (encoder.contextualize(others, out.contexts) for out in (again, encoder(batch)))
        assert relative_error(found, expected) < 1e-12


@pytest.mark.parametrize("gradient", ["first-shard", "unbiased"])
def test_other_gradients_have_the_whole_sets_values(gradient):
    encoder, (x, m) = encoder_of("ust"), sets()
    batch = SetBatch(x, m)
    assert relative_error(encoder(batch, shard_size=8, gradient=gradient).summary, encoder(batch).summary) < 1e-12


def test_attribution_in_shards_is_that_of_the_whole():
    encoder, (x, m) = encoder_of("ust"), sets()
    batch = SetBatch(x[[0, 2]], m[[0, 2]].double())
    head = torch.nn.Linear(D, 1).double()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = encoder, head

        def forward(self, source, **options):
            return self.head(self.encoder(source, **options).summary[:, 0])

    whole, shards = (explain.attribute(Model(), batch, target=0, steps=3, **o) for o in ({}, {"shard_size": 8}))
    assert relative_error(shards, whole) < 1e-9


def test_a_table_of_rows_is_refused():
    layer = PoolingByMultiheadAttention(D, H, 2, scale="size")
    with pytest.raises(ValueError, match="a block with scale='size' weighs a row by the set that it is in"):
        layer.tabulate(torch.randn(7, D))
    with pytest.raises(TypeError, match="encoder 'umbc' does not take scale"):
        encoders.build("umbc", input_dim=1, dim=4, depth=1, num_heads=1, num_inducing=2, scale="size")
