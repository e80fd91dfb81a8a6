"""The folded form of induced attention is the plain one: outputs, states, gradients of either order."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from omniset.core import private
from omniset.kernels import blocks, folded, gather, small, spread, team, tiles
from omniset.layers import InducedSetAttentionBlock, MultisetAttentionBlock, PoolingByMultiheadAttention
from omniset.testing import relative_error
from oracle import shaken

D, H, K = 24, 4, 5
MAKE = {
    "U-ISAB": functools.partial(InducedSetAttentionBlock, D, H, K),
    "PMA": functools.partial(PoolingByMultiheadAttention, D, H, 2),
}
CASES = [(13, sizes, weighted) for sizes in ((3, 11), (1, 701), (2, 503), (3, 0), (1, 3)) for weighted in (False, True)]
CASES += [(ffn_dim, (2, 503), True) for ffn_dim in (None, 0)]


@pytest.fixture(autouse=True, params=["blocks", "tiles"])
def pieces_of_sets(request, monkeypatch):
    """Folded however small the sets are, in pieces and tiles of 64 elements that two threads share out."""
    monkeypatch.setattr(folded, "LEAST", 0)
    monkeypatch.setattr(folded, "MORE", 0)
    monkeypatch.setattr(small, "whole_block", lambda *_: None)
    monkeypatch.setattr(team, "SMALLEST", 64 * D)
    monkeypatch.setattr(tiles, "TILE", 64 * D)
    if request.param == "tiles":
        monkeypatch.setattr(blocks, "takes", lambda _: False)
    elif blocks.library() is None:
        pytest.skip("there is no compiler here, or it fails")
    torch.set_num_threads(2)
    return request.param


@pytest.fixture
def plainly(monkeypatch):
    def compute(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(folded, "form", lambda *_, **__: folded.PLAIN)
            return function(*arguments)

    return compute


def sets(number, length, dtype=torch.float64):
    torch.manual_seed(5)
    x = torch.randn(number, length, D, dtype=dtype)
    return x.requires_grad_(), torch.randint(0, 3, (number, length)).to(dtype).requires_grad_()


def gradients(output, wanted, **options):
    torch.manual_seed(7)
    return torch.autograd.grad(
        output, wanted, torch.randn(output.shape, dtype=output.dtype), allow_unused=True, **options
    )


def assert_close(got, expected, bound):
    assert [g is None for g in got] == [e is None for e in expected]
    pairs = [(g.detach(), e.detach()) for g, e in zip(got, expected, strict=True) if e is not None]
    # The bias of keys has no gradient but that of rounding, which follows the size of the others.
    others = max([1.0, *(float(e.norm()) / 10 for _, e in pairs)])
    for g, e in pairs:
        assert (g - e).norm() <= bound * max(float(e.norm()), others)


@pytest.mark.parametrize(("ffn_dim", "sizes", "weighted"), CASES)
@pytest.mark.parametrize("kind", MAKE)
def test_folded_is_plain(kind, ffn_dim, sizes, weighted, plainly):
    layer = shaken(MAKE[kind](ffn_dim))
    x, m = sets(*sizes)
    inputs = (x, m) if weighted else (x,)
    if sizes[1] > 2 * K:
        assert folded.form(layer.gather, layer.points, x, m)[0] == "gather"
    got, expected = layer(*inputs), plainly(layer, *inputs)
    assert relative_error(got, expected) < 1e-13
    wanted = [*inputs, *layer.parameters()]
    assert_close(gradients(got, wanted), gradients(expected, wanted), 1e-12)


@pytest.mark.parametrize("kind", MAKE)
def test_scores_measured_against_a_running_peak(kind, monkeypatch, plainly):
    """Which tame inputs do not need."""
    monkeypatch.setattr(gather, "MODERATE", 0.0)
    layer = shaken(MAKE[kind](13))
    x, m = sets(2, 503)
    got, expected = layer(x, m), plainly(layer, x, m)
    assert relative_error(got, expected) < 1e-13
    wanted = [x, m, *layer.parameters()]
    # Twice: what is kept stays as it is.
    assert_close(gradients(got, wanted, retain_graph=True), gradients(expected, wanted, retain_graph=True), 1e-12)
    assert_close(gradients(got, wanted), gradients(expected, wanted), 1e-12)


@pytest.mark.parametrize("dim", [1, 7, 131])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_widths_that_fill_no_vector(dim, dtype, plainly):
    """Nearly as exact as the plain form in the same precision, whose products are added up in other ways."""
    layer = shaken(InducedSetAttentionBlock(dim, 1, 3, 5 * dim), dtype)
    torch.manual_seed(5)
    x = torch.randn(2, 211, dim, dtype=dtype, requires_grad=True)

    def results(layer, x):
        out = layer(x).double()
        return [out, torch.cat([g.double().flatten() for g in gradients(out, [x, *layer.parameters()])])]

    got, plain = results(layer, x), plainly(results, layer, x)
    exact = plainly(results, layer.double(), x.detach().double().requires_grad_())
    for ours, theirs, truth in zip(got, plain, exact, strict=True):
        bound = 1e-12 if dtype == torch.float64 else 4 * relative_error(theirs, truth)
        assert relative_error(ours, truth) < max(bound, 1e-12)


@pytest.mark.parametrize("number", [1, 37])
def test_threads_and_views_change_nothing(number):
    """To the bit: sums are added up in the order of the pieces. Elements may have gaps between them in memory."""
    x, m = sets(number, 503, torch.float32)
    points, values = torch.randn(number, H * K, D), torch.randn(number, H * K, D)
    ffn = torch.randn(13, D), torch.randn(13), torch.randn(D, 13), torch.randn(D)
    inputs = [points[:1], points, values, *ffn]
    for tensor in inputs:
        tensor.requires_grad_()
    offset, log_m = torch.zeros(number, H * K, 1), (m.detach() + 1).log().requires_grad_()
    results = []
    for threads, view in ((1, x), (2, x), (5, x), (2, x.mT.contiguous().mT)):
        torch.set_num_threads(threads)
        _, *sums = gather.Gather.apply(view, log_m, inputs[0], offset[:1], None, 1e-5)
        out = spread.Spread.apply(view, points, offset, values, H, nn.ReLU, 1e-5, *ffn)
        outputs = [*sums, out]
        wanted = [x, log_m, *inputs]
        results.append(outputs + [g for o in outputs for g in gradients(o, wanted, retain_graph=True) if g is not None])
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert torch.get_num_threads() == 2


def test_elements_far_from_0_lose_no_digits(plainly):
    """LayerNorm does not see a row's mean, and neither may rounding."""
    layer = shaken(MAKE["PMA"](), torch.float32)
    x, _ = sets(2, 503, torch.float32)
    rows = torch.arange(503)[:, None] % 7 < 2  # some, so that tiles have both kinds
    far = torch.where(rows, x.detach() + 300, x.detach())
    exact = plainly(layer.double(), far.double())
    plain = plainly(layer.float(), far)
    assert relative_error(layer(far).double(), exact) < 2 * relative_error(plain.double(), exact)


def test_scores_beyond_the_range_of_exponentials(plainly):
    layer = shaken(MAKE["PMA"]())
    layer.set_attention.query.weight.data *= 100
    x, m = sets(2, 503)
    assert layer.reduce(x, m).peak.abs().max() > 1000
    assert relative_error(layer(x, m), plainly(layer, x, m)) < 1e-10


@pytest.mark.parametrize("m", [0.0, 1e-30, 1e30])
def test_any_multiplicity_is_in_range(m, plainly):
    layer = shaken(MAKE["PMA"](), torch.float32)
    x, _ = sets(2, 503, torch.float32)
    m = torch.full((2, 503), m)
    m[0, 5] *= 3
    assert relative_error(layer(x, m), plainly(layer.double(), x.double(), m.double()).float()) < 1e-5


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activations_against_the_oracle(activation, plainly):
    layer = shaken(MultisetAttentionBlock(D, H, 13, activation=activation))
    x, _ = sets(2, 101)
    context = torch.randn(2, K, D, dtype=torch.float64, requires_grad=True)
    assert folded.form(layer, x, context, None)[0] == "spread"
    got, expected = layer(x, context), plainly(layer, x, context)
    assert relative_error(got, expected) < 1e-13
    wanted = [x, context, *layer.parameters()]
    assert_close(gradients(got, wanted), gradients(expected, wanted), 1e-12)


def test_states_merge_with_those_of_the_plain_form(plainly):
    """Shards of different sizes may take different forms; a given peak is kept by both."""
    layer = shaken(MAKE["PMA"]())
    x, m = sets(2, 211)
    whole = plainly(layer.reduce, x, m)
    first, second = layer.reduce(x[:, :101], m[:, :101]), plainly(layer.reduce, x[:, 101:], m[:, 101:])
    assert_close([layer.finish(first.merge(second))], [layer.finish(whole)], 1e-13)
    peak = whole.peak + 0.7
    got, expected = layer.reduce(x, m, peak), plainly(layer.reduce, x, m, peak)
    assert got.peak is peak
    assert_close(got.sums, expected.sums, 1e-13)
    wanted = [x, m, *layer.parameters()]
    for g, e in zip(got.sums, expected.sums, strict=True):
        assert_close(gradients(g, wanted, retain_graph=True), gradients(e, wanted, retain_graph=True), 1e-12)


@pytest.mark.parametrize("kind", MAKE)
def test_recomputed_in_the_backward(kind):
    """As training on independent shards does it: torch lets what was saved be asked for once."""
    layer, (x, m) = shaken(MAKE[kind]()), sets(3, 11)
    once, again = (
        run(x, m).square().sum() for run in (layer, functools.partial(checkpoint, layer, use_reentrant=False))
    )
    inputs = [x, m, *layer.parameters()]
    for a, b in zip(*(torch.autograd.grad(y, inputs, allow_unused=True) for y in (once, again)), strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-3), (torch.float16, 6e-4)])
def test_precision(dtype, bound, plainly, monkeypatch):
    """Elements in half precision lose no more than their own rounding: sums and products are float32."""
    monkeypatch.setattr(private, "HALF_UNITS", False)
    layer = shaken(MAKE["PMA"](0), dtype)
    x, m = sets(2, 5003, dtype)
    # The state, for what follows it is computed in the precision of the weights.
    got = layer.reduce(x.detach(), m.detach())
    assert all(s.dtype == torch.float64 for s in got.sums)
    exact = plainly(layer.double().reduce, x.detach().double(), m.detach().double())
    assert relative_error(got.finish(), exact.finish()) < 1e-6
    out = layer.to(dtype)(x)
    assert out.dtype == dtype
    assert relative_error(out.double(), plainly(layer.double(), x.double())) < bound


@pytest.mark.parametrize("kind", MAKE)
def test_products_in_bfloat16(kind, plainly, monkeypatch):
    """On processors with units for them: closer than the plain form in bfloat16, in outputs and gradients."""
    monkeypatch.setattr(private, "HALF_UNITS", True)
    layer = shaken(MAKE[kind](13), torch.bfloat16)
    x, _ = sets(2, 5003, torch.bfloat16)

    def results(layer, x):
        out = layer(x)
        found = gradients(out.float(), [x, *layer.parameters()])
        return out.double(), torch.cat([g.double().flatten() for g in found if g is not None])

    got, plain = results(layer, x), plainly(results, layer, x)
    exact = plainly(results, layer.double(), x.detach().double().requires_grad_())
    for ours, theirs, truth, bound in zip(got, plain, exact, (0.01, 0.05), strict=True):
        assert relative_error(ours, truth) < min(bound, 1.2 * relative_error(theirs, truth))


def test_memory_of_the_graph():
    """A layer keeps its input, and nothing else of its size."""
    layer = shaken(MAKE["U-ISAB"]())
    x, _ = sets(1, 4001)
    held = {}

    def keep(tensor):
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x)
    assert held.pop(x.data_ptr()) == x.numel() * 8
    assert max(held.values()) < 4001 * 8


def forms(layer, x, m=None):
    context = layer.gather(layer.points, x, m)
    return folded.form(layer.gather, layer.points, x, m)[0], folded.form(layer.spread, x, context, None)[0]


def test_what_is_folded_and_when(pieces_of_sets, monkeypatch):
    x, m = sets(2, 101)
    assert forms(MAKE["U-ISAB"]().double(), x, m) == ("gather", "spread")
    # Eight points with four heads are as many products of width 24 as projecting the elements takes.
    both = ("gather", "spread") if pieces_of_sets == "blocks" else (None, None)
    assert forms(InducedSetAttentionBlock(D, H, 8).double(), x) == both
    assert forms(InducedSetAttentionBlock(D, H, 60).double(), x) == (None, None)
    assert forms(InducedSetAttentionBlock(D, 1, 100).double(), x) == ("gather", "spread")
    assert forms(MAKE["U-ISAB"](norm="post").double(), x) == (None, None)
    layer = MAKE["U-ISAB"](dropout=0.1).double()
    assert forms(layer, x) == (None, None)
    assert forms(layer.eval(), x) == ("gather", "spread")
    assert forms(InducedSetAttentionBlock(D, H, K, norm="none", variant="lee").double(), x) == (None, None)
    half = x.detach().bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert forms(MAKE["U-ISAB"](), half.float()) == (None, None)
    monkeypatch.setattr(folded, "MORE", 21)  # 101 elements are less than 21 times 5 points
    assert forms(MAKE["U-ISAB"]().double(), x) == (None, None)
    monkeypatch.setattr(folded, "MORE", 20)
    monkeypatch.setattr(folded, "LEAST", x.numel() + 1)
    assert forms(MAKE["U-ISAB"]().double(), x) == (None, None)
    assert forms(MAKE["U-ISAB"]().double(), torch.cat([x, x])) == ("gather", "spread")


def test_under_transforms_of_functions():
    """Ensembles of stacked parameters take the plain form, and give what each alone does."""
    layers = [shaken(MAKE["PMA"]()) for _ in range(2)]
    layers[1].points.data += 1
    x, m = sets(2, 101)
    stacked = {
        n: torch.stack([dict(layer.named_parameters())[n] for layer in layers]) for n, _ in layers[0].named_parameters()
    }

    def run(parameters):
        return torch.func.functional_call(layers[0], parameters, (x, m))

    got = torch.func.vmap(run)(stacked)
    assert_close([*got], [layer(x, m) for layer in layers], 1e-13)
