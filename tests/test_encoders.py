"""One contract for every encoder in the registry: a new member joins by its name, with no test of its own."""

import pytest
import torch

from omniset import SetBatch, encoders, testing
from omniset.layers import LeeAttentionBlock

SIZES = {"input_dim": 3, "dim": 10, "depth": 2, "num_heads": 2, "num_inducing": 5}


@pytest.fixture(params=encoders.ENCODERS)
def encoder(request):
    return encoders.build(request.param, num_outputs=2, **SIZES).double().eval()


@pytest.fixture
def batch():
    m = torch.randint(0, 3, (4, 23))
    m[2] = 0
    return SetBatch(torch.randn(4, 23, 3, dtype=torch.float64), m)


def test_symmetries(encoder, batch):
    testing.assert_permutation_invariant(encoder, batch)
    testing.assert_multiset_consistent(encoder, batch)
    if encoder.outputs_elements:
        testing.assert_permutation_equivariant(encoder, batch)


def test_mini_batch_consistency_is_what_it_says(encoder, batch):
    if encoder.mini_batch_consistent:
        testing.assert_shard_consistent(encoder, batch)
    else:
        with pytest.raises(ValueError, match="not mini-batch consistent"):
            encoder(batch, shard_size=7)
    with pytest.raises(AssertionError, match="not shard consistent at shard_size=7: relative error"):
        testing.assert_shard_consistent(encoder, batch, shard_sizes=[7], shards="independent")


PAPER = {  # Table 1 of the Universal Set Transformer: mini-batch consistent, cross- and self-attention, elements
    "deep-sets": (True, False, False, False),
    "fspool": (False, False, False, False),
    "sse": (True, True, False, False),
    "umbc": (True, True, True, False),
    "strxl": (False, True, True, True),
    "ust": (True, True, True, True),
}


@pytest.mark.parametrize("name", PAPER)
def test_features_are_those_of_the_paper(name):
    made = encoders.build(name, **SIZES)
    said = made.mini_batch_consistent, made.cross_attention, made.self_attention, made.outputs_elements
    assert said == PAPER[name]
    kinds = {type(module).__name__ for module in made.modules()}
    points = {"InducedSetAttentionBlock", "PoolingByMultiheadAttention", "SlotSetEncoder"}
    assert made.cross_attention == bool(kinds & points)
    assert made.self_attention == bool(kinds & {"InducedSetAttentionBlock", "SetAttentionBlock"})


def test_shapes(encoder, batch):
    out = encoder(batch)
    assert out.summary.shape == (4, 2, 10)
    assert out.elements is None or out.elements.shape == (4, 23, 10)
    assert out.elements is None or not out.elements[batch.multiplicity == 0].any()


def test_padding_changes_nothing(encoder, batch):
    padded = SetBatch(
        torch.cat([batch.elements, torch.full((4, 5, 3), torch.nan).double()], 1),
        torch.cat([batch.multiplicity, torch.zeros(4, 5).long()], 1),
    )
    assert testing.relative_error(encoder(padded).summary, encoder(batch).summary) <= 1e-12


def test_every_parameter_is_used(encoder, batch):
    out = encoder.train()(batch)
    grads = torch.autograd.grad(out.summary.square().sum(), list(encoder.parameters()), allow_unused=True)
    unused = [n for (n, _), g in zip(encoder.named_parameters(), grads, strict=True) if g is None]
    assert unused == []


def test_modules_can_be_walked(encoder):
    """torch.nn.Module.apply visits every module: no layer may shadow it."""
    seen = []
    encoder.apply(lambda module: seen.append(type(module).__name__))
    assert len(seen) == len(list(encoder.modules()))


def test_state_dict_round_trip(encoder, batch):
    other = encoders.build(next(n for n, c in encoders.ENCODERS.items() if c is type(encoder)), num_outputs=2, **SIZES)
    other = other.double().eval()
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(batch).summary, encoder(batch).summary)


@pytest.mark.parametrize("name", encoders.ENCODERS)
def test_listed_arguments_are_always_taken(name):
    listed = {"input_layers": 2, "class_token": False, "decoder_depth": 1, "dropout": 0.1, "ffn_dim": 7, "norm": "post"}
    encoders.build(name, num_outputs=1, **SIZES, **listed)
    with pytest.raises(TypeError, match=f"encoder '{name}' does not take nonsense"):
        encoders.build(name, **SIZES, nonsense=1)


def test_bad_builds():
    with pytest.raises(ValueError, match="encoder must be one of .*'ust'.* got 'transformer'"):
        encoders.build("transformer", **SIZES)
    with pytest.raises(ValueError, match="input_dim must be an integer >= 1, got 0"):
        encoders.build("ust", **{**SIZES, "input_dim": 0})
    with pytest.raises(ValueError, match="depth must be >= 0, got -1"):
        encoders.build("ust", **{**SIZES, "depth": -1})
    with pytest.raises(ValueError, match="input_layers=0 needs input_dim == dim, got 3 and 10"):
        encoders.build("ust", **SIZES, input_layers=0)


def test_ust_and_isab_are_one_architecture(batch):
    a, b = (encoders.build(n, **SIZES).double() for n in ("ust", "set-transformer-isab"))
    b.load_state_dict(a.state_dict())
    assert torch.equal(a(batch).summary, b(batch).summary)


def test_lees_variant(batch):
    encoder = encoders.build("set-transformer-isab", **SIZES, variant="lee", norm="none").double()
    assert isinstance(encoder.layers[0].gather, LeeAttentionBlock)
    testing.assert_shard_consistent(encoder, batch)


@pytest.mark.parametrize("tokens", [1, 3])
def test_class_tokens_are_elements_of_multiplicity_1(tokens, batch):
    encoder = encoders.build("ust", **SIZES, class_token=True, num_outputs=tokens).double()
    x = torch.cat([encoder.class_tokens.expand(4, -1, -1), encoder.embed(batch.elements)], 1)
    m = torch.cat([torch.ones(4, tokens).long(), batch.multiplicity], 1)
    for layer in encoder.layers:
        x = layer(x, m)
    out = encoder(batch)
    assert testing.relative_error(out.summary, x[:, :tokens]) <= 1e-14
    present = batch.multiplicity > 0
    assert testing.relative_error(out.elements[present], x[:, tokens:][present]) <= 1e-14
