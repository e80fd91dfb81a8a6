"""Attention by sigmoids: a sum over the elements, as the package of the paper's author has it."""

import pytest
import torch

from omniset import SetBatch, encoders, explain
from omniset.layers import InducedSetAttentionBlock, SetAttentionBlock
from omniset.testing import relative_error

D, H, K, B, N = 12, 3, 5, 4, 17
DOUBLE = torch.float64


def theirs(induced):
    ust = pytest.importorskip("ust", reason="the extra peers (universal-set-transformers) is not installed")
    from ust.modules.scaled_dot_product_attention import ScaledDotProductSigmoidSetAttention as Sigmoid

    kind = {"num_slots": K, "slot_attention_method": Sigmoid()} if induced else {}
    layer = (ust.InducedSetAttentionBlock if induced else ust.SetAttentionBlock)(
        D, H, attention_method=Sigmoid(), **kind
    )
    model = ust.SetTransformerModel(
        ust.SetTransformerConfig(),
        encoder=ust.SetTransformerEncoder(layer, 2),
        pooler=ust.PoolingByMultiheadSetAttention(D, H, 2, attention_method=Sigmoid()),
    )
    for p in model.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return model.double().eval()


@pytest.mark.parametrize("induced", [True, False])
@pytest.mark.parametrize("counted", [False, True])
def test_same_weights_as_the_package_same_numbers(induced, counted):
    """In float64, outputs and gradients; ours also in shards."""
    model = theirs(induced)
    encoder = encoders.from_author(model.state_dict(), num_heads=H, attention="sigmoid").eval()
    x = torch.randn(B, N, D, dtype=DOUBLE)
    m = torch.randint(0, 3, (B, N)).double() if counted else torch.ones(B, N)
    expected = model(x, m if counted else None)
    upstream = torch.randn_like(expected)
    (expected * upstream).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    whole = [*encoders.from_author(grads, num_heads=H, attention="sigmoid").parameters()]
    for options in ({}, {"shard_size": 5}):
        encoder.zero_grad()
        got = encoder(SetBatch(x, m), **options).summary
        (got * upstream).sum().backward()
        assert relative_error(got, expected) < 1e-13
        assert relative_error([p.grad for p in encoder.parameters()], whole) < 1e-12


def test_weights_do_not_depend_on_each_other():
    """What points make of two sets together is the sum of what they make of each: no softmax does that."""
    sigmoid = InducedSetAttentionBlock(D, H, K, attention="sigmoid").double()
    softmax = InducedSetAttentionBlock(D, H, K).double()
    softmax.load_state_dict(sigmoid.state_dict())
    x = torch.randn(B, N, D, dtype=DOUBLE)
    for layer, additive in ((sigmoid, True), (softmax, False)):
        first, second, both = (layer.reduce(part).finish() for part in (x[:, :6], x[:, 6:], x))
        assert (relative_error(first + second, both) < 1e-13) == additive
        doubled = layer.reduce(x, 2 * torch.ones(B, N)).finish()
        assert relative_error(doubled, (2 if additive else 1) * both) < 1e-13


def test_attribution_is_complete():
    encoder = encoders.build(
        "ust", input_dim=3, dim=D, depth=1, num_heads=H, num_inducing=K, attention="sigmoid", activation="gelu"
    ).double()
    batch = SetBatch(torch.randn(B, N, 3, dtype=DOUBLE), torch.randint(0, 3, (B, N)))
    whole, parts = (explain.attribute_layers(encoder, batch, steps=9, **o) for o in ({}, {"shard_size": 4}))
    for a, b in zip(whole, parts, strict=True):
        assert relative_error(b.scores, a.scores) < 1e-12
    coarse, fine = (explain.completeness(explain.attribute_layers(encoder, batch, steps=n)) for n in (5, 20))
    assert (fine < coarse / 3).all()


def test_bad_options():
    for make, message in (
        (lambda: SetAttentionBlock(D, H, attention="relu"), "attention must be 'softmax' or 'sigmoid', got 'relu'"),
        (lambda: SetAttentionBlock(D, H, attention="sigmoid", scale="size"), "scale must be 'width' with attention="),
        (lambda: SetAttentionBlock(D, H, norm="none", variant="lee", attention="sigmoid"), "it takes no ffn_dim"),
        (
            lambda: InducedSetAttentionBlock(D, H, K, attention="sigmoid").tabulate(torch.randn(3, D)),
            "tables of rows are of attention='softmax', this block has 'sigmoid'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()
