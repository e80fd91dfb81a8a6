"""The public assertions must fail on models that break what they assert."""

import pytest
import torch

from omniset import SetBatch, testing


def batch():
    return SetBatch(torch.randn(3, 11, 2, dtype=torch.float64), torch.randint(1, 3, (3, 11)))


def mean(sets, shard_size=None):
    m = sets.multiplicity[..., None].double()
    return (m * sets.elements).sum(1) / m.sum(1)


def test_a_good_model_passes():
    testing.assert_permutation_invariant(mean, batch())
    testing.assert_shard_consistent(mean, batch())
    testing.assert_multiset_consistent(mean, batch())
    testing.assert_permutation_equivariant(lambda s: s.elements.sin(), batch())


def test_order_dependence_is_found():
    with pytest.raises(AssertionError, match=r"not permutation invariant: relative error \d"):
        testing.assert_permutation_invariant(lambda s: s.elements[:, 0], batch())
    with pytest.raises(AssertionError, match="not permutation equivariant"):
        testing.assert_permutation_equivariant(lambda s: s.elements.cumsum(1), batch())


def test_shard_dependence_is_found():
    def forgets(sets, shard_size=None):
        return mean(sets.shards(shard_size)[-1] if shard_size else sets)

    with pytest.raises(AssertionError, match="not shard consistent at shard_size=1:"):
        testing.assert_shard_consistent(forgets, batch())


def test_blindness_to_multiplicity_is_found():
    with pytest.raises(AssertionError, match="not multiset consistent"):
        testing.assert_multiset_consistent(lambda s: s.elements.mean(1), batch())


def test_nan_is_no_success():
    with pytest.raises(AssertionError, match="relative error nan"):
        testing.assert_shard_consistent(lambda s, shard_size=None: mean(s) * (torch.nan if shard_size else 1), batch())


def test_relative_error_by_hand():
    assert testing.relative_error(torch.tensor([3.0, 8.0]), torch.tensor([3.0, 4.0])) == pytest.approx(4 / 5)
    assert testing.relative_error([torch.ones(1), torch.zeros(1)], [torch.zeros(1), torch.zeros(1)]) == 1
