import functools
import math

import pytest
import torch
import torch_geometric.nn.aggr.utils as pyg

from omniset import AttentionState
from omniset.kernels import fused, sums
from omniset.layers import (
    GatedAttentionPooling,
    InducedSetAttentionBlock,
    LatentRouting,
    LeeAttentionBlock,
    MultisetAttentionBlock,
    PoolingByMultiheadAttention,
    SetAttentionBlock,
    SetPooling,
    SlotSetEncoder,
)
from omniset.testing import relative_error
from oracle import induced, lee, msab, repeat, shaken

B, N, Q, D, H, K = 3, 11, 5, 6, 2, 7


def sets(n=N):
    return torch.randn(B, n, D, dtype=torch.float64), torch.randint(0, 3, (B, n))


def assert_same(layer, got, expected):
    """Outputs and all parameters' gradients."""
    assert relative_error(got, expected) < 1e-13
    upstream = torch.randn_like(expected)
    parameters = list(layer.parameters())
    ours, theirs = (torch.autograd.grad(o, parameters, upstream, materialize_grads=True) for o in (got, expected))
    assert relative_error([*ours], [*theirs]) < 1e-12


@pytest.mark.parametrize("ffn_dim", [None, 0, 13])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_multiset_attention_block(norm, ffn_dim):
    layer = shaken(MultisetAttentionBlock(D, H, ffn_dim, norm))
    elements, m = sets()
    queries = torch.randn(B, Q, D, dtype=torch.float64)
    expected = torch.stack([msab(layer, q, repeat(e, c)) for q, e, c in zip(queries, elements, m, strict=True)])
    assert_same(layer, layer(queries, elements, m), expected)


@pytest.mark.parametrize("norm", ["none", "post", "pre"])
def test_lees_block(norm):
    layer = shaken(LeeAttentionBlock(D, H, norm))
    elements, m = sets()
    queries = torch.randn(B, Q, D, dtype=torch.float64)
    expected = torch.stack([lee(layer, q, repeat(e, c)) for q, e, c in zip(queries, elements, m, strict=True)])
    assert_same(layer, layer(queries, elements, m), expected)


@pytest.mark.parametrize("variant", ["universal", "lee"])
def test_blocks_on_sets(variant):
    norm, block = {"universal": ("pre", msab), "lee": ("post", lee)}[variant]
    elements, m = sets()
    each = list(zip(elements, m.double(), strict=True))
    layer = shaken(SetAttentionBlock(D, H, norm=norm, variant=variant))
    assert_same(layer, layer(elements, m), torch.stack([block(layer.block, e, e, w) for e, w in each]))
    layer = shaken(InducedSetAttentionBlock(D, H, K, norm=norm, variant=variant))
    assert_same(layer, layer(elements, m), torch.stack([induced(layer, e, w, block) for e, w in each]))
    layer = shaken(PoolingByMultiheadAttention(D, H, Q, norm=norm, variant=variant))
    assert_same(layer, layer(elements, m), torch.stack([block(layer.gather, layer.points[0], e, w) for e, w in each]))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_without_multiplicities_every_element_counts_once(norm):
    elements, _ = sets()
    for layer in (
        shaken(InducedSetAttentionBlock(D, H, K, norm=norm)),
        shaken(PoolingByMultiheadAttention(D, H, Q, norm=norm)),
        shaken(SetAttentionBlock(D, H, norm=norm)),
    ):
        assert_same(layer, layer(elements), layer(elements, torch.ones(B, N)))
        assert layer(elements[:, :0]).isfinite().all()


def test_fractional_multiplicities_are_weights():
    layer = shaken(InducedSetAttentionBlock(D, H, K))
    elements, _ = sets()
    weights = torch.rand(B, N, dtype=torch.float64)
    expected = torch.stack([induced(layer, e, w) for e, w in zip(elements, weights, strict=True)])
    assert_same(layer, layer(elements, weights), expected)


def copy_pyg(block, theirs):
    """torch_geometric's block is ours in post-norm with relu(W x) for an FFN: our second FFN layer the identity."""
    weights, biases = theirs.attn.in_proj_weight.chunk(3), theirs.attn.in_proj_bias.chunk(3)
    for ours, w, b in zip((block.query, block.key, block.value), weights, biases, strict=True):
        ours.weight.data, ours.bias.data = w.data, b.data
    block.output.load_state_dict(theirs.attn.out_proj.state_dict())
    block.ffn[0].load_state_dict(theirs.lin.state_dict())
    block.ffn[2].weight.data, block.ffn[2].bias.data = torch.eye(D).double(), torch.zeros(D).double()
    block.norm_attention.load_state_dict(theirs.layer_norm1.state_dict())
    block.norm_ffn.load_state_dict(theirs.layer_norm2.state_dict())


def test_induced_block_against_torch_geometric():
    theirs = shaken(pyg.InducedSetAttentionBlock(D, K, H))
    layer = InducedSetAttentionBlock(D, H, K, norm="post").double()
    layer.points.data = theirs.ind.data
    copy_pyg(layer.gather, theirs.mab1)
    copy_pyg(layer.spread, theirs.mab2)
    mask = torch.rand(B, N) < 0.7
    mask[:, 0] = True  # a set without elements is NaN there
    elements, _ = sets()
    ours = elements.clone().requires_grad_()
    elements.requires_grad_()
    got, expected = layer(ours, mask) * mask[..., None], theirs(elements, mask)
    # Theirs sets the attention of absent rows to 0 before the residual; only present rows compare.
    expected = expected * mask[..., None]
    assert relative_error(got, expected) < 1e-14
    got.square().sum().backward()
    expected.square().sum().backward()
    assert relative_error(ours.grad, elements.grad) < 1e-12
    assert relative_error(layer.points.grad, theirs.ind.grad) < 1e-12
    assert relative_error(layer.gather.query.weight.grad, theirs.mab1.attn.in_proj_weight.grad[:D]) < 1e-12


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_empty_set_keeps_residual_and_output_bias(norm):
    layer = shaken(PoolingByMultiheadAttention(D, H, Q, norm=norm))
    elements, _ = sets()
    m = torch.ones(B, N)
    m[1] = 0
    out = layer(elements, m)
    assert relative_error(out[1], msab(layer.gather, layer.points[0], elements[1, :0])) < 1e-14
    none = layer(elements[:, :0], m[:, :0])
    assert relative_error(none, out[[1, 1, 1]]) < 1e-14
    grads = torch.autograd.grad(out.sum() + none.sum(), list(layer.parameters()))
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("kind", [SetAttentionBlock, functools.partial(InducedSetAttentionBlock, num_inducing=K)])
def test_empty_sets_have_the_gradients_of_the_plain_form(kind):
    """Of either order, and forward; learned multiplicities take the plain form, of sums against a peak."""
    layer = shaken(kind(dim=D, num_heads=H))
    x, m = torch.randn(B, N, D, dtype=torch.float64), torch.rand(B, N, dtype=torch.float64)
    m[1] = 0
    targets, found = [x.requires_grad_(), *layer.parameters()], []
    for multiplicity in (m, m.clone().requires_grad_()):
        out = layer(x, multiplicity).sin().sum()
        first = torch.autograd.grad(out, targets, retain_graph=True)
        followed = torch.autograd.grad(out, targets, create_graph=True)
        second = torch.autograd.grad(sum(g.sin().sum() for g in followed), targets)
        found.append([*first, *(g.detach() for g in followed), *second])
    scale = max(float(g.norm()) for g in found[0])  # next to which gradients that are 0 in truth are rounding
    assert all((a - b).norm() < 1e-12 * scale for a, b in zip(*found, strict=True))
    forward = torch.func.jvp(lambda x: layer(x, m).sin().sum(), (x.detach(),), (torch.ones_like(x),))
    assert relative_error(forward[1], found[0][0].sum()) < 1e-12


def test_tabulated_scores_may_be_large():
    """Beyond the range of exponentials, which are measured against the largest score of the table."""
    layer = shaken(PoolingByMultiheadAttention(D, H, Q))
    layer.gather.query.weight.data *= 1000
    table, m = torch.randn(N, D, dtype=torch.float64), torch.ones(1, N, dtype=torch.float64)
    got, expected = layer.pool_tabulated(layer.tabulate(table), m), layer(table[None], m)
    assert relative_error(got, expected) < 1e-10


@pytest.mark.parametrize("pooling", ["mean", "sum", "max"])
def test_set_pooling(pooling):
    elements, m = sets()
    elements[:, 3] = elements[:, 2]  # ties
    m[1], m[:, 2:4] = 0, 2
    m[1] = 0
    x = elements.clone().requires_grad_()
    expected = []
    for e, c in zip(x, m, strict=True):
        r = repeat(e, c)
        empty = torch.zeros(D, dtype=torch.float64)
        expected.append(empty if not len(r) else {"mean": r.mean(0), "sum": r.sum(0), "max": r.amax(0)}[pooling])
    expected = torch.stack(expected)
    y = elements.clone().requires_grad_()
    got = SetPooling(pooling)(y, m)[:, 0]
    assert relative_error(got, expected) < 1e-14
    upstream = torch.randn_like(got)
    (got * upstream).sum().backward()
    (expected * upstream).sum().backward()
    assert relative_error(y.grad, x.grad) < 1e-14


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultisetAttentionBlock(7, 2), "dim must be divisible by num_heads, got dim=7 and num_heads=2"),
        (lambda: MultisetAttentionBlock(0, 1), "dim must be an integer >= 1, got 0"),
        (lambda: MultisetAttentionBlock(6, 2, activation="tanh"), "activation must be one of .* got 'tanh'"),
        (lambda: InducedSetAttentionBlock(6, 2, 0), "num_inducing must be an integer >= 1, got 0"),
        (lambda: PoolingByMultiheadAttention(6, 2, -1), "num_seeds must be an integer >= 1, got -1"),
        (lambda: SetAttentionBlock(6, 2, variant="lee"), "norm must be 'none' or 'post' with variant='lee', got 'pre'"),
        (lambda: SetAttentionBlock(6, 2, norm="none"), "norm must be 'pre' or 'post', got 'none'"),
        (lambda: SetAttentionBlock(6, 2, 5, norm="none", variant="lee"), "takes no ffn_dim"),
        (lambda: SetAttentionBlock(6, 2, norm="post", variant="lee-pre"), "norm must be 'pre' with variant='lee-pre'"),
        (lambda: SetAttentionBlock(6, 2, norm="post", variant="author"), "norm must be 'pre' with variant='author'"),
        (lambda: SetAttentionBlock(6, 2, norm="none", variant="lee", init="linear"), "takes no ffn_dim, dropout, hid"),
        (lambda: PoolingByMultiheadAttention(6, 2, 1, element_ffn_dim=-1), "element_ffn_dim must be an integer >= 0"),
        (lambda: LatentRouting(8, 2, 0), "num_latents must be an integer >= 1, got 0"),
        (lambda: LatentRouting(8, 3, 2), "dim must be divisible by num_heads, got dim=8 and num_heads=3"),
        (lambda: LatentRouting(8, 2, 2, hidden_layers=-1), "hidden_layers must be an integer >= 0, got -1"),
        (lambda: GatedAttentionPooling(0), "dim must be an integer >= 1, got 0"),
        (lambda: GatedAttentionPooling(5, 0), "num_outputs must be an integer >= 1, got 0"),
        (lambda: GatedAttentionPooling(5, 1, 0), "attention_dim must be an integer >= 1, got 0"),
        (lambda: SlotSetEncoder(4, 3, 3), "dim must be divisible by num_heads, got dim=4 and num_heads=3"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_second_derivatives_cost_training_nothing(monkeypatch):
    """Fused attention keeps what they need, and its own backward makes the first ones."""
    block = shaken(MultisetAttentionBlock(D, H))
    queries, (elements, m) = torch.randn(B, Q, D, dtype=torch.float64), sets()

    def step():
        held = {}

        def keep(tensor):
            held[tensor.untyped_storage().data_ptr()] = tensor  # alive, so that no two have one address
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = block(queries, elements, m)
        grads = torch.autograd.grad(out.square().sum(), list(block.parameters()))
        return sum(t.untyped_storage().nbytes() for t in held.values()), grads

    with monkeypatch.context() as patch:
        patch.setattr(
            fused.FusedAttention, "apply", lambda average, q, k, v, bias, empty, scale: average.masked_fill(empty, 0)
        )
        least, expected = step()
    monkeypatch.setattr(fused, "plain_attention", None)
    size, grads = step()
    assert size == least
    assert relative_error([*grads], [*expected]) == 0


@pytest.mark.parametrize("n", [0, 1, 7, 23])
def test_sums_in_blocks(n, monkeypatch):
    """Against one sum over all, with gradients of either order; and without the rounding of one long product."""
    monkeypatch.setattr(sums, "BLOCK", 7)
    x = torch.randn(B, n, D, dtype=torch.float64, requires_grad=True)
    m = torch.rand(B, n, 1, dtype=torch.float64, requires_grad=True)
    got = sums.weighted_sum(m, x)
    assert relative_error(got, (m * x).sum(1)) < 1e-14
    if n:
        assert torch.autograd.gradcheck(sums.weighted_sum, (m, x))
        assert torch.autograd.gradgradcheck(sums.weighted_sum, (m, x))


def test_a_long_sum_keeps_its_digits():
    x = torch.rand(2, 300_001, 3)
    exact = x.double().sum(1)
    assert relative_error(sums.weighted_sum(torch.ones(2, 300_001, 1), x).double(), exact) < 5e-7


def test_states_are_merged_in_float64():
    """However many shards are added, and whatever they are measured against."""
    one = SetPooling("sum").reduce(torch.ones(1, 1, 1), torch.ones(1, 1))
    state = SetPooling("sum").reduce(torch.full((1, 1, 1), 2.0**25), torch.ones(1, 1))
    for _ in range(3):
        state = state.merge(one)  # in float32 each would be lost
    assert [s.item() for s in state.sums] == [2**25 + 3, 4]
    low, high = torch.tensor([[0.1]]), torch.tensor([[0.7]])
    state = AttentionState(low, (torch.ones(1, 1), torch.ones(1, 1)))
    expected = math.exp(low.item() - high.item())
    assert state.merge(AttentionState(high, state.sums)).sums[0].item() == pytest.approx(1 + expected, rel=1e-15)


def test_a_state_is_finished_however_small_its_sums_are():
    """As of a set whose scores lie far below the peak that they are measured against."""
    peak, sums = torch.zeros(2, 1), (torch.tensor([[1e-30], [0]]), torch.tensor([[3e-30], [0]]))
    assert AttentionState(peak, sums).finish().flatten().tolist() == pytest.approx([3, 0])


def test_a_peak_is_a_constant():
    q, k = torch.randn(5, D, requires_grad=True), torch.randn(N, D)
    state = AttentionState.of(q, k, k)
    assert not state.peak.requires_grad
    assert all(s.requires_grad for s in state.sums)
