"""Attention to the set of known regions: the network against loops, and what the method keeps to."""

import numpy as np
import pytest
import torch
from region_methods import brain_of, every_pair

from omniset.regions import set_attention
from omniset.regions.scores import pearson
from omniset.regions.set_attention import NOTHING, RegionSetAttention, SetAttention


def network_of(genes=3, places=2, heads=3, directed=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    network = RegionSetAttention(genes, places, heads, directed, generator).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return network


def inputs_of(q=5, n=11, columns=5, seed=1, unknown=0.2):
    rng = np.random.default_rng(seed)
    known = (rng.random((n, n)) > unknown).astype(float)
    known = np.minimum(known, known.T)
    np.fill_diagonal(known, 0)
    values = rng.normal(size=(n, n))
    arrays = rng.normal(size=(q, columns)), rng.normal(size=(n, columns)), values + values.T, known
    return [torch.from_numpy(array) for array in arrays]


def by_loops(network, queries, keys, values, known):
    """As the docstring has it."""
    w, t = network.log_scales.exp().detach().numpy(), network.log_sharpness.exp().detach().numpy()
    penalty, mix, read = (p.detach().numpy() for p in (network.log_penalty.exp(), network.mix, network.read))
    x, a, y, m = (tensor.detach().numpy() for tensor in (queries, keys, values, known))
    heads, q, n = len(w), len(x), len(a)

    def apart(h, left, right):
        return np.array([[sum(w[h] ** 2 * (one - other) ** 2) for other in right] for one in left])

    weights = [np.exp(-t[h] * apart(h, x, a)) for h in range(heads)]
    weights = [one / one.sum(1, keepdims=True) for one in weights]
    out = np.zeros((q, q))
    for h in range(heads):
        rows = np.zeros((q, n))
        for i in range(q):
            for b in range(n):
                there = weights[h][i] * m[:, b]
                rows[i, b] = there @ y[:, b] / (NOTHING + there.sum())
        for g in range(heads):
            for i in range(q):
                for j in range(q):
                    out[i, j] += mix[g, h] * weights[g][j] @ rows[i]
    for h in range(heads):
        kernel = 1 + np.exp(-apart(h, a, a) / 2) + penalty[h] * np.eye(n)
        s = (1 + np.exp(-apart(h, x, a) / 2)) @ np.linalg.inv(kernel)
        out += read[h] * s @ np.where(m > 0, y, 0) @ s.T
    return out if network.directed else (out + out.T) / 2


@pytest.mark.parametrize("directed", [False, True])
def test_against_loops(directed):
    network, inputs = network_of(directed=directed), inputs_of()
    assert np.allclose(network(*inputs).detach(), by_loops(network, *inputs), rtol=1e-9, atol=1e-12)


def test_order_of_the_known_regions_does_not_matter():
    network, (x, a, y, m) = network_of(), inputs_of()
    order = torch.from_numpy(np.random.default_rng(2).permutation(11))
    permuted = network(x, a[order], y[order][:, order], m[order][:, order])
    assert torch.allclose(permuted, network(x, a, y, m), rtol=1e-12, atol=1e-12)


def test_unknown_entries_are_not_looked_at():
    network, (x, a, y, m) = network_of(), inputs_of()
    other = torch.where(m > 0, y, 1e6)
    assert torch.equal(network(x, a, other, m), network(x, a, y, m))
    assert not torch.allclose(network(x, a, y, torch.ones_like(m)), network(x, a, y, m))
    # What is not known of any region is read as 0, the trunk's value: nothing is left over.
    assert torch.equal(network(x, a, other, 0 * m), torch.zeros(5, 5, dtype=torch.float64))


def test_gradients():
    network, (x, a, y, m) = network_of(heads=2), inputs_of(q=3, n=5)
    names = [name for name, _ in network.named_parameters()]

    def of(*values):
        return torch.func.functional_call(network, dict(zip(names, values, strict=True)), (x, a, y, m))

    assert torch.autograd.gradcheck(of, tuple(p.detach().requires_grad_() for p in network.parameters()))


def test_far_keys_give_no_nan():
    network, (x, a, y, m) = network_of(), inputs_of()
    found = network(x + 1e4, a, y, m)
    found.sum().backward()
    assert torch.isfinite(found).all()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters())


@pytest.mark.parametrize("sizes", [(0, 0, 1), (1, 0, 0)])
def test_bad_sizes(sizes):
    with pytest.raises(ValueError, match="must be"):
        RegionSetAttention(*sizes)


# ---------------------------------------------------------------------- the method


@pytest.fixture
def quick(monkeypatch):
    def make(steps, **options):
        monkeypatch.setattr(set_attention, "STEPS", steps)
        return SetAttention(**options)

    return make


def test_new_regions_are_predicted_from_known_ones(quick):
    """Better than the trunk, on regions that are near known ones in genes; and with fewer pairs known, still."""
    regions = brain_of(71, unknown=())
    test = np.arange(0, 71, 5)
    train = np.setdiff1d(np.arange(71), test)
    within = regions.take(test)
    pairs = every_pair(len(test), directed=False)
    truth = within.connectivity[tuple(pairs.T)]
    partly = regions.with_(connectivity=regions.connectivity.copy())
    rng = np.random.default_rng(3)
    hidden = rng.random((71, 71)) < 0.3
    partly.connectivity[hidden | hidden.T] = np.nan
    for given in (regions, partly):
        method = quick(30)
        method.held_out = "random"
        method.fit(given, train)
        r = pearson(truth, method.predict(within, pairs))
        assert r > pearson(truth, method.trunk.predict(within, pairs)) + 0.1
        assert len(method.history) == 30


def test_many_pairs_are_predicted_in_blocks(quick, monkeypatch):
    regions = brain_of(directed=True)
    method = quick(2).fit(regions, np.arange(17))
    before = method.predict(regions, every_pair(23))
    monkeypatch.setattr("omniset.regions.set_attention.TOGETHER", 7)
    assert np.allclose(method.predict(regions, every_pair(23)), before, atol=1e-5)
    assert not np.allclose(before, method.predict(regions, every_pair(23)[:, ::-1]), atol=1e-3)


def test_what_is_read_sums_to_1_and_is_mostly_its_own(quick):
    regions = brain_of()
    method = quick(2).fit(regions, np.arange(23))
    weights = method.read(regions)
    own = weights[np.arange(23), np.argsort(np.argsort(regions.names))]
    assert np.allclose(weights.sum(1), 1, atol=1e-5)
    assert np.array_equal(own, weights.max(1))


def test_slopes_are_the_differences_of_r(quick):
    regions = brain_of()
    method = quick(5).fit(regions, np.arange(17))
    method.network.double()
    left = regions.take(np.arange(17, 23))
    method._inputs = lambda *arrays: [t.double() for t in SetAttention._inputs(method, *arrays)]
    slopes = method.slopes(left)
    pairs = every_pair(6, directed=False)
    truth = left.connectivity[tuple(pairs.T)]
    scale = method.keys.components.scaling.deviation
    for i, g in ((0, 2), (3, 5), (5, 0)):
        r = []
        for step in (-1e-3, 1e-3):
            moved = left.expression.astype(np.float64)
            moved[i, g] += step * scale[g]
            r.append(pearson(truth, method.predict(left.with_(expression=moved.astype(np.float32)), pairs)))
        assert slopes[i, g] == pytest.approx((r[1] - r[0]) / 2e-3, rel=0.02, abs=1e-5)


def test_places_alone_need_places():
    with pytest.raises(ValueError, match="needs them"):
        SetAttention(genes=False).fit(brain_of(placed=False), np.arange(19))
