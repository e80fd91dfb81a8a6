"""The package of the paper's author, with the same weights: equal in outputs and gradients, whole and in shards."""

import pytest
import torch
from torch import nn

from omniset import SetBatch, encoders, testing
from omniset.layers import (
    InducedSetAttentionBlock,
    MultisetAttentionBlock,
    PoolingByMultiheadAttention,
)
from omniset.testing import relative_error
from oracle import linear, msab, repeat, shaken

D, H, K, B, N = 12, 3, 5, 4, 17
AUTHOR = {"input_dim": 3, "dim": D, "depth": 2, "num_heads": H, "num_inducing": K, "variant": "author"}
DOUBLE = torch.float64
BIAS = "encoder.layers.1.mab2.linear1.bias"


@pytest.fixture(scope="module")
def ust():
    return pytest.importorskip("ust", reason="the extra peers (universal-set-transformers) is not installed")


def theirs(ust, induced):
    kind = {"num_slots": K} if induced else {}
    layer = (ust.InducedSetAttentionBlock if induced else ust.SetAttentionBlock)(D, H, **kind)
    pooler = ust.PoolingByMultiheadSetAttention(D, H, 2)
    model = ust.SetTransformerModel(
        ust.SetTransformerConfig(), encoder=ust.SetTransformerEncoder(layer, 2), pooler=pooler
    )
    return shaken(model).eval()


@pytest.mark.parametrize("induced", [True, False])
@pytest.mark.parametrize("counted", [False, True])
def test_same_weights_same_numbers(ust, induced, counted):
    """In float32 where there are multiplicities: the package's logarithms of them are float32 in any case."""
    model = theirs(ust, induced)
    model = model.float() if counted else model
    encoder = encoders.from_author(model.state_dict(), num_heads=H).eval()
    x, m = torch.randn(B, N, D, dtype=encoder.pool.points.dtype), torch.ones(B, N)
    if counted:
        m[:, 1:] = torch.randint(0, 3, (B, N - 1))
    expected = model(x, m if counted else None)
    upstream = torch.randn_like(expected)
    (expected * upstream).sum().backward()
    # Their gradients under our names.
    whole = [*encoders.from_author({name: p.grad for name, p in model.named_parameters()}, num_heads=H).parameters()]
    for options in ({}, {"shard_size": 5}):
        encoder.zero_grad()
        got = encoder(SetBatch(x, m), **options).summary
        (got * upstream).sum().backward()
        assert relative_error(got, expected) < (1e-6 if counted else 1e-14)
        assert relative_error([p.grad for p in encoder.parameters()], whole) < (3e-6 if counted else 1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("pooler.linear2.bias"), r"state_dict has no 'pooler.linear2.bias'"),
        (lambda w: w.update({"decoder.weight": torch.ones(1)}), "state_dict has 'decoder.weight', which is of no such"),
        (lambda w: w.update({BIAS: torch.ones(7)}), rf"'{BIAS}' of state_dict is \(7,\), and must be \(48,\) with 12"),
    ],
)
def test_other_weights_are_refused(change, message):
    weights = _weights()
    change(weights)
    with pytest.raises(ValueError, match=message):
        encoders.from_author(weights, num_heads=H)


def test_what_the_weights_decide_is_no_option():
    with pytest.raises(TypeError, match="from_author does not take dim; it takes activation, dropout, "):
        encoders.from_author(_weights(), num_heads=H, dim=D)


def _weights():
    """Of that package's names, without the package."""
    block = {
        **{f"attention.w{x}.weight": torch.randn(D, D) for x in "qkvo"},
        **{f"attention.w{x}.bias": torch.randn(D) for x in "qkvo"},
        **{f"{norm}.{part}": torch.randn(D) for norm in ("norm_x", "pre_norm_y", "norm_ffn") for part in PARTS},
    }
    ffn = {"linear1.weight": (4 * D, D), "linear1.bias": (4 * D,), "linear2.weight": (D, 4 * D), "linear2.bias": (D,)}
    block |= {name: torch.randn(shape) for name, shape in ffn.items()}
    blocks = ["pooler.mab", *(f"encoder.layers.{n}.mab{i}" for n in (0, 1) for i in (1, 2))]
    weights = {f"{where}.{name}": value.clone() for where in blocks for name, value in block.items()}
    weights |= {f"pooler.{name}": torch.randn(shape) for name, shape in ffn.items()}
    weights |= {f"encoder.layers.{n}.slots.slots": torch.randn(1, K, D) for n in (0, 1)}
    return weights | {"pooler.slots.slots": torch.randn(1, 2, D)}


PARTS = ("weight", "bias")


def test_weights_are_taken_with_a_network_for_the_elements():
    encoder = encoders.from_author(_weights(), num_heads=H, input_dim=3, embed=nn.Linear(3, D), dropout=0.0)
    assert encoder.input_dim == 3
    assert not any(part.p for part in encoder.modules() if isinstance(part, nn.Dropout) and part.p != 0.1)
    testing.assert_shard_consistent(encoder.double().eval(), SetBatch(torch.randn(B, N, 3, dtype=DOUBLE)))


def test_what_the_variant_sets():
    torch.manual_seed(0)
    encoder = encoders.build("ust", **{**AUTHOR, "dim": 96, "num_inducing": 64})
    block, pool = encoder.layers[0].gather, encoder.pool
    assert block.ffn[0].out_features == pool.element_ffn[0].out_features == 4 * 96
    assert {part.p for part in encoder.modules() if isinstance(part, nn.Dropout)} == {0.0, 0.1}
    bound = 96**-0.5  # of Linear's own start; Xavier's is sqrt(3) times that
    assert 0.97 * bound < block.query.weight.abs().max() <= bound
    assert 0.9 * bound < block.query.bias.abs().max() <= bound
    assert 0.95 < encoder.layers[0].points.std() < 1.05
    plain = encoders.build("ust", **{**AUTHOR, "variant": "universal"})
    assert plain.pool.element_ffn is None
    assert plain.layers[0].gather.ffn[0].out_features == D


@pytest.mark.parametrize(
    "option",
    [
        {"ffn_dim": 4 * D},
        {"init": "linear"},
        {"points_init": "normal"},
        {"element_ffn_dim": 4 * D},
        {"dropout": 0.1},
        {"hidden_dropout": 0.1},
    ],
)
@pytest.mark.parametrize("name", ["ust", "umbc"])
def test_each_is_an_option_by_itself(name, option):
    """Weights differ from the usual in this alone."""
    arguments = {**AUTHOR, "variant": "universal"}
    torch.manual_seed(0)
    encoder = encoders.build(name, **arguments, **option).double().eval()
    usual = encoders.build(name, **arguments).double()
    shapes, before = ({n: v.shape for n, v in one.state_dict().items()} for one in (encoder, usual))
    changed = {n.split(".")[-3 if "ffn" in n else -1] for n in {*shapes} ^ {*before}}
    changed |= {"ffn" for n in {*shapes} & {*before} if shapes[n] != before[n]}
    assert changed == ({"ffn"} if "ffn_dim" in option else {"element_ffn"} if "element_ffn_dim" in option else set())
    testing.assert_shard_consistent(encoder, SetBatch(torch.randn(B, N, 3, dtype=DOUBLE)))


def test_elements_pass_an_ffn_before_the_seeds_see_them():
    pool = PoolingByMultiheadAttention(D, H, K, element_ffn_dim=7).double()
    x, m = torch.randn(B, N, D, dtype=DOUBLE), torch.randint(0, 3, (B, N))
    first, _, second, _ = pool.element_ffn
    hidden = linear(second, linear(first, x).relu())
    expected = torch.stack([msab(pool.gather, pool.points[0], repeat(h, c)) for h, c in zip(hidden, m, strict=True)])
    assert relative_error(pool(x, m), expected) < 1e-13
    table = pool.pool_tabulated(pool.tabulate(x[0]), m.double())
    assert relative_error(table[0], expected[0]) < 1e-12


def test_self_attention_has_one_norm():
    encoder = shaken(encoders.build("set-transformer-sab", **AUTHOR)).eval()
    x, m = torch.randn(B, N, 3, dtype=DOUBLE), torch.randint(0, 3, (B, N))
    assert "layers.0.block.norm_elements.weight" not in encoder.state_dict()
    block = encoder.layers[0].block
    y = encoder.embed(x)
    block_with_two = MultisetAttentionBlock(D, H, 4 * D).double()
    weights = block.state_dict()
    weights |= {f"norm_elements.{part}": weights[f"norm_queries.{part}"] for part in PARTS}
    block_with_two.load_state_dict(weights)
    assert relative_error(block(y, y, m), block_with_two(y, y, m)) < 1e-14
    testing.assert_shard_consistent(encoder, SetBatch(x, m))


def test_hidden_dropout_is_left_to_the_plain_form_in_training(monkeypatch):
    monkeypatch.setattr("omniset.kernels.folded.LEAST", 0)
    layer = InducedSetAttentionBlock(D, H, 2, hidden_dropout=0.5).double()
    x = torch.randn(B, N, D, dtype=DOUBLE)
    context = layer.gather(layer.points, x)
    assert layer.spread.foldable() is None
    trained = [layer.map(x, context) for _ in range(2)]
    assert relative_error(*trained) > 1e-3
    layer.eval()
    assert layer.spread.foldable() is not None
    plain = torch.stack([msab(layer.spread, q, c) for q, c in zip(x, context, strict=True)])
    assert relative_error(layer.map(x, context), plain) < 1e-13
