"""Blocks in one call of compiled code are the plain blocks: outputs, gradients of either order, empty sets."""

import pytest
import torch
from torch import nn

from omniset import SetBatch, encoders
from omniset import engine as engines
from omniset.kernels import blocks, small
from omniset.layers import MultisetAttentionBlock
from omniset.testing import relative_error

D, H = 24, 4
SIZES = [(5, 5, 7, 5), (3, 1, 2, 37), (1, 1, 79, 3), (2, 2, 67, 33), (2, 1, 13, 13)]  # sets, those of queries, Q, N
CASES = [(ffn_dim, sizes, weighted) for ffn_dim in (0, 13) for sizes in SIZES for weighted in (False, True)]

if blocks.library() is None:
    pytest.skip("there is no compiler here, or it fails", allow_module_level=True)


@pytest.fixture
def plainly(monkeypatch):
    def compute(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(small, "whole_block", lambda *_: None)
            return function(*arguments)

    return compute


@pytest.fixture(autouse=True)
def in_pieces(monkeypatch):
    """Of some sets each, and always, where else folding would be faster."""
    monkeypatch.setattr(small, "PIECE", 8 * D)
    monkeypatch.setattr(small, "PADDED", 100)


def block(ffn_dim=None):
    torch.manual_seed(3)
    module = MultisetAttentionBlock(D, H, ffn_dim).double()
    for p in module.parameters():  # biases and norms away from 0 and 1, so that none can be forgotten unnoticed
        p.data += 0.3 * torch.randn_like(p)
    return module


def inputs(sets, of_queries, queries, elements):
    torch.manual_seed(5)
    x = torch.randn(of_queries, queries, D, dtype=torch.float64, requires_grad=True)
    y = torch.randn(sets, elements, D, dtype=torch.float64, requires_grad=True)
    m = torch.randint(0, 3, (sets, elements)).double()
    m[-1] = 0  # an empty set
    return x, y, m


def gradients(out, wanted, **options):
    torch.manual_seed(7)
    return torch.autograd.grad(out, wanted, torch.randn_like(out), allow_unused=True, **options)


def assert_close(got, expected):
    """None, of what no gradient reaches, is 0; the bias of keys has none but rounding, which follows the others."""
    pairs = [[torch.zeros(()) if z is None else z for z in pair] for pair in zip(got, expected, strict=True)]
    others = max(1.0, *(float(e.norm()) / 10 for _, e in pairs))
    for g, e in pairs:
        assert (g - e).norm() <= 1e-12 * max(float(e.norm()), others)


@pytest.mark.parametrize(("ffn_dim", "sizes", "weighted"), CASES)
def test_small_is_plain(ffn_dim, sizes, weighted, plainly):
    layer, (x, y, m) = block(ffn_dim), inputs(*sizes)
    given = (x, y, m) if weighted else (x, y)
    got, expected = layer(*given), plainly(layer, *given)
    assert got.grad_fn.name() == "SmallBlockBackward"
    assert relative_error(got, expected) < 1e-13
    with torch.no_grad():
        torch.testing.assert_close(layer(*given), got, rtol=0, atol=0)
    wanted = [x, y, *layer.parameters()]
    # Twice: what is kept stays as it is.
    assert_close(gradients(got, wanted, retain_graph=True), gradients(expected, wanted, retain_graph=True))
    assert_close(gradients(got, wanted), gradients(expected, wanted))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sizes", SIZES[1:4])
def test_second_derivatives(sizes, weighted, plainly):
    layer, (x, y, m) = block(13), inputs(*sizes)
    given = (x, y, m) if weighted else (x, y)
    wanted = [x, y, *layer.parameters()]

    def second():
        first = gradients(layer(*given), wanted, create_graph=True)
        return gradients(sum((g**2).sum() for g in first), wanted)

    assert_close(second(), plainly(second))


def test_elements_that_are_the_queries(plainly):
    """Both gradients flow into one tensor."""
    layer, (_, y, m) = block(), inputs(*SIZES[4])
    got, expected = layer(y, y, m), plainly(layer, y, y, m)
    assert_close(gradients(got, [y]), gradients(expected, [y]))


def test_hooks_within_the_block_are_run():
    layer, (x, y, _) = block(), inputs(*SIZES[0])
    seen = []
    layer.value.register_forward_hook(lambda *_: seen.append(1))
    layer(x, y)
    assert seen
    assert isinstance(layer.ffn, nn.Sequential)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [6, 16, 40])
def test_widths_with_and_without_padding(width, dtype, plainly):
    torch.manual_seed(2)
    layer = MultisetAttentionBlock(width, 2, 2 * width).to(dtype)
    x, y = (torch.randn(4, rows, width, dtype=dtype, requires_grad=True) for rows in (17, 33))
    got, expected = layer(x, y), plainly(layer, x, y)
    bound = 1e-5 if dtype == torch.float32 else 1e-13
    assert relative_error(got, expected) < bound
    wanted = [x, y, *layer.parameters()]
    pairs = zip(gradients(got, wanted), gradients(expected, wanted), strict=True)
    largest = max(float(e.norm()) for e in gradients(plainly(layer, x, y), wanted))
    assert max(float((g - e).norm()) for g, e in pairs) < bound * largest


def test_sets_do_not_meet():
    """A set has the same output alone and among others, and NaN stays where it is."""
    layer, (x, y, m) = block(), inputs(5, 5, 7, 5)
    alone = torch.cat([layer(x[i : i + 1], y[i : i + 1], m[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(layer(x, y, m), alone, rtol=1e-13, atol=1e-13)
    broken = y.detach().clone()
    broken[1, 2, 3] = torch.nan
    m = torch.ones_like(m)
    out = layer(x, broken, m)
    assert out[1].isnan().any()
    assert not out[[0, 2, 3, 4]].isnan().any()


def test_threads_change_no_bit():
    layer, (x, y, m) = block(), inputs(5, 5, 7, 5)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        out = layer(x, y, m)
        found.append([out.detach(), *gradients(out, [x, y, *layer.parameters()])])
    torch.set_num_threads(1)
    assert len(small._pieces((x, y), (), small.SUMS)) > 2
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=0, atol=0)


def test_gaps_in_memory_and_no_eps(plainly):
    """Rows that pad have no deviation: without eps nothing of them may reach a gradient."""
    layer, (x, y, _) = block(), inputs(5, 5, 7, 5)
    for norm in (layer.norm_queries, layer.norm_elements, layer.norm_ffn):
        norm.eps = 0.0
    wanted = [x, y, *layer.parameters()]

    def found():
        return gradients(layer(x[:, ::2], y.flip(1)), wanted)

    assert_close(found(), plainly(found))


def test_what_does_not_fit_is_left_to_pytorch(plainly):
    """Compiled code reads memory without a look at shapes and types."""
    layer, (x, y, m) = block(), inputs(5, 5, 7, 5)
    wide = torch.zeros(5, 7, 2 * D, dtype=torch.float64)
    for queries, elements in ((wide, wide), (x, wide), (wide, y)):
        with pytest.raises(RuntimeError):
            layer(queries, elements)
    torch.testing.assert_close(layer(x, y, m[:1]), plainly(layer, x, y, m[:1].expand(5, -1)), rtol=1e-12, atol=1e-12)
    layer.value = nn.Linear(D, 2 * D).double()
    with pytest.raises(RuntimeError):
        layer(x, y)


LENGTHS = {"full": [33] * 3, "ragged": [30, 3, 0, 45], "one": [37]}
LOSSES = {
    "all": lambda out: sum((x**2).sum() for x in (out.summary, out.elements, *out.contexts)),
    "summary": lambda out: (out.summary**2).sum(),
    "first": lambda out: (out.contexts[0] ** 2).sum(),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("class_token", [False, True])
def test_a_network_is_its_layers(lengths, class_token, order, monkeypatch):
    """Whatever the loss depends on; queries of later blocks, points and padded elements among what has a gradient."""
    torch.manual_seed(1)
    encoder = encoders.build(
        "ust", input_dim=3, dim=D, depth=2, num_heads=H, num_inducing=5, class_token=class_token
    ).double()
    batch = SetBatch.from_ragged([torch.randn(n, 3).double() for n in LENGTHS[lengths]], dim=3)

    def found():
        results = []
        for loss in LOSSES.values():
            out = encoder(batch)
            wanted = [*encoder.parameters()]
            options = {"allow_unused": True, "materialize_grads": True}
            first = torch.autograd.grad(loss(out), wanted, create_graph=order > 1, **options)
            results += [x.detach() for x in (out.summary, out.elements, *out.contexts, *first)]
            if order > 1:
                results += torch.autograd.grad(sum((g**2).sum() for g in first), wanted, **options)
        return results

    calls = []
    whole = small.whole_blocks
    monkeypatch.setattr(small, "whole_blocks", lambda *given: calls.append(len(given[0])) or whole(*given))
    got = found()
    assert max(calls) >= 4
    monkeypatch.setattr(small, "whole_block", lambda *_: None)
    monkeypatch.setattr(engines, "in_one_call", lambda *_: None)
    assert_close(got, found())
