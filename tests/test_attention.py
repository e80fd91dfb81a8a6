import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from omniset import AttentionState, multiset_attention
from omniset.testing import relative_error

Q, N, D, V = 3, 7, 5, 2


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_by_hand():
    # scores 0 and ln 2, multiplicities 3 and 1: weights 3 and 2.
    query, key = torch.ones(1, 1).double(), torch.tensor([[0.0], [math.log(2)]], dtype=torch.float64)
    value = torch.tensor([[10.0], [20.0]]).double()
    got = multiset_attention(query, key, value, torch.tensor([3, 1]), scale=1.0)
    assert got.item() == pytest.approx((3 * 10 + 2 * 20) / 5, rel=1e-15)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_multiplicity_is_repetition(dtype):
    query, key, value = draw(Q, D), draw(N, D), draw(N, V)
    m = torch.tensor([0, 1, 2, 3, 1, 0, 5])
    repeated = torch.repeat_interleave(torch.arange(N), m)
    expected = F.softmax(query @ key[repeated].T / D**0.5, 1) @ value[repeated]
    assert relative_error(multiset_attention(query, key, value, m.to(dtype)), expected) < 1e-14


def test_bool_is_a_mask_and_fractions_are_weights():
    query, key, value = draw(Q, D), draw(N, D), draw(N, V)
    mask = torch.tensor([1, 0, 1, 1, 0, 1, 1]).bool()
    expected = F.softmax(query @ key[mask].T / D**0.5, 1) @ value[mask]
    assert relative_error(multiset_attention(query, key, value, mask), expected) < 1e-14
    weights = torch.rand(N).double() + 0.1
    e = torch.exp(query @ key.T / D**0.5) * weights
    assert relative_error(multiset_attention(query, key, value, weights), e @ value / e.sum(1, True)) < 1e-14


def test_gradients_of_everything_at_multiplicity_0_too():
    m = torch.tensor([0.0, 1.5, 2.0, 0.3, 0.0, 4.0, 1.0]).double()
    inputs = [t.requires_grad_() for t in (draw(Q, D), draw(N, D), draw(N, V), m)]
    upstream = draw(Q, V)
    got = torch.autograd.grad((multiset_attention(*inputs) * upstream).sum(), inputs)
    query, key, value, m = inputs
    e = torch.exp(query @ key.T / D**0.5) * m  # linear in m, so d/dm is finite at 0
    expected = torch.autograd.grad(((e @ value / e.sum(1, True)) * upstream).sum(), inputs)
    for g, x in zip(got[:3], expected[:3], strict=True):
        assert relative_error(g, x) < 1e-12
    present = m.detach() > 0
    assert relative_error(got[3][present], expected[3][present]) < 1e-12
    assert torch.equal(got[3][~present], torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("keys", [0, N])
def test_nothing_present_gives_0_with_finite_gradients(keys, train):
    inputs = [draw(Q, D), draw(keys, D), draw(keys, V)]
    m = torch.zeros(keys, dtype=torch.float64, requires_grad=train)
    out = multiset_attention(*[t.requires_grad_(train) for t in inputs], m)
    assert torch.equal(out, torch.zeros(Q, V, dtype=torch.float64))
    if train:
        for grad in torch.autograd.grad(out.sum(), [*inputs, m]):
            assert torch.equal(grad, torch.zeros_like(grad))


def test_large_scores_and_multiplicities_do_not_overflow():
    query, key, value = 1e3 * draw(Q, D), 1e3 * draw(N, D), draw(N, V)
    m = torch.tensor([1e300, 1, 1e-300, 0, 1, 1, 1], dtype=torch.float64)
    assert multiset_attention(query, key, value, m).isfinite().all()
    half = multiset_attention(torch.randn(Q, D).half() * 50, key.half() * 0.05, value.half(), torch.full((N,), 60000))
    assert half.isfinite().all()


@settings(deadline=None, max_examples=60)
@given(cuts=st.lists(st.integers(0, N), max_size=4), order=st.randoms(use_true_random=False), seed=st.integers(0, 99))
def test_any_split_in_any_order_is_the_whole(cuts, order, seed):
    torch.manual_seed(seed)
    query, key, value = 30 * draw(Q, D), draw(N, D), draw(N, V)
    m = torch.randint(0, 3, (N,)).double()
    bounds = [0, *sorted(cuts), N]
    parts = [slice(a, b) for a, b in itertools.pairwise(bounds)]
    order.shuffle(parts)
    states = [AttentionState.of(query, key[p], value[p], m[p]) for p in parts]
    state = AttentionState.identity(query, value)
    for one in states:
        state = state.merge(one)
    whole = multiset_attention(query, key, value, m)
    assert relative_error(state.finish(), whole) < 1e-12
    again = AttentionState.identity(query, value)
    for p in parts:
        again = again.update(query, key[p], value[p], m[p])
    assert torch.equal(again.finish(), state.finish())


def test_first_shard_fully_absent():
    """The paper's Algorithm A.1, repaired by renaming, gives 0 here."""
    query, key, value = draw(Q, D), draw(N, D), draw(N, V)
    m = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    state = AttentionState.of(query, key[:3], value[:3], m[:3]).update(query, key[3:], value[3:], m[3:])
    assert relative_error(state.finish(), F.softmax(query @ key[3:].T / D**0.5, 1) @ value[3:]) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_multiplicity_is_there_whatever_its_size(dtype):
    """The softmax knows ratios of multiplicities alone: 1e-300 twice and 3e-300 are 1 twice and 3."""
    q, k, v = (torch.randn(n, 5, dtype=dtype) for n in (2, 3, 3))
    m = torch.tensor([1.0, 1.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(
        multiset_attention(q, k, v, 1e-300 * m), multiset_attention(q, k, v, m), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_bad_multiplicity_is_named(bad):
    m = torch.ones(N)
    m[4] = bad
    with pytest.raises(ValueError, match=rf"multiplicity\[4\] is {bad}: multiplicities must be finite and >= 0"):
        multiset_attention(torch.ones(Q, D), torch.ones(N, D), torch.ones(N, V), m)
