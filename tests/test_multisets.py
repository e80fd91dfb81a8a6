import numpy as np
import pytest
import torch
from sklearn.cluster import DBSCAN

from omniset import compact
from omniset.testing import relative_error


@pytest.mark.parametrize("by", ["sort", "hash"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_exact_rebuilds_the_set(by, dtype):
    x = torch.randint(0, 2, (101, 3)).to(dtype)
    elements, multiplicity, inverse = compact(x, by=by)
    assert elements.dtype == dtype
    assert torch.equal(elements[inverse], x)
    assert multiplicity.tolist() == [int((x == e).all(1).sum()) for e in elements]
    assert len({tuple(e) for e in elements.tolist()}) == len(elements)


def test_order_of_the_result():
    x = torch.tensor([[3, 1], [1, 2], [3, 1], [1, 1]])
    assert compact(x, by="sort")[0].tolist() == [[1, 1], [1, 2], [3, 1]]
    assert compact(x, by="hash")[0].tolist() == [[3, 1], [1, 2], [1, 1]]


@pytest.mark.parametrize("by", ["sort", "hash"])
def test_strings(by):
    reads = np.array(["ACGT", "AC", "ACGT", "ACGT"], dtype=object)
    elements, multiplicity, inverse = compact(reads, by=by)
    assert (elements[inverse.numpy()] == reads).all()
    assert sorted(multiplicity.tolist()) == [1, 3]
    with pytest.raises(ValueError, match="method='voxel' needs numbers"):
        compact(reads, method="voxel", size=1.0)


def test_weights_add_up_and_both_zeros_are_one():
    elements, multiplicity, _ = compact(
        torch.tensor([[0.0], [2.0], [-0.0]]), multiplicity=torch.tensor([0.5, 1.0, 2.0])
    )
    assert elements.tolist() == [[0.0], [2.0]]
    assert multiplicity.tolist() == [2.5, 1.0]


def test_voxel_takes_weighted_means():
    x = torch.tensor([[0.1, 0.1], [0.9, 0.3], [-0.1, 0.1], [5.0, 5.0]])
    elements, multiplicity, inverse = compact(
        x, method="voxel", size=1.0, multiplicity=torch.tensor([3.0, 1.0, 2.0, 0.0])
    )
    expected = {(-0.1, 0.1): 2.0, (0.3, 0.15): 4.0, (5.0, 5.0): 0.0}
    got = {tuple(round(v, 6) for v in e): m for e, m in zip(elements.tolist(), multiplicity.tolist(), strict=True)}
    assert got == expected
    assert inverse[0] == inverse[1] != inverse[2]


def test_dbscan_is_scikit_learns_with_noise_kept():
    x = torch.randn(103, 2, dtype=torch.float64)
    elements, multiplicity, inverse = compact(x, method="dbscan", eps=0.2, min_samples=4)
    labels = DBSCAN(eps=0.2, min_samples=4).fit_predict(x.numpy())
    assert (labels < 0).any()
    assert (labels >= 0).any()
    assert len(elements) == labels.max() + 1 + (labels < 0).sum()
    for label in range(labels.max() + 1):
        members = x[labels == label]
        group = inverse[labels == label].unique()
        assert len(group) == 1
        assert multiplicity[group] == len(members)
        assert relative_error(elements[group[0]], members.mean(0)) < 1e-14


@pytest.mark.parametrize("method", ["exact", "voxel", "dbscan"])
def test_nothing_and_one(method):
    options = {"voxel": {"size": 0.5}, "dbscan": {"eps": 0.1}}.get(method, {})
    elements, multiplicity, inverse = compact(torch.zeros(0, 3), method=method, **options)
    assert (elements.shape, multiplicity.shape, inverse.shape) == ((0, 3), (0,), (0,))
    elements, multiplicity, inverse = compact(torch.ones(1, 3), method=method, **options)
    assert (elements.tolist(), multiplicity.tolist(), inverse.tolist()) == ([[1, 1, 1]], [1], [0])
    assert compact(torch.zeros(5, 0))[1].tolist() == [5]


def test_bad_arguments():
    x = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="size, a finite number > 0, got -1"):
        compact(x, method="voxel", size=-1.0)
    with pytest.raises(ValueError, match="needs size"):
        compact(x, method="voxel")
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        compact(torch.zeros(3))
    with pytest.raises(ValueError, match="multiplicity must have length 3"):
        compact(x, multiplicity=torch.ones(2))
    with pytest.raises(ValueError, match=r"multiplicity\[1\] is -1"):
        compact(x, multiplicity=torch.tensor([1, -1, 1]))
    with pytest.raises(ValueError, match="method must be one of .* got 'magic'"):
        getattr(compact, "__wrapped__", compact)(x, method="magic")  # past the type check, where there is one
    with pytest.raises(TypeError, match="nonsense"):
        compact(x, nonsense=1)
