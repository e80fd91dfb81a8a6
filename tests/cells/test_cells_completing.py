"""Genes that were not measured: what a normal distribution expects of them, and nothing where all were."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from omniset.cells.completing import Axes, Completion, principal_axes

CELLS, GENES, RANK = 60, 20, 3


def low_rank(noise: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(0)
    values = 5 + rng.normal(size=(CELLS, RANK)) @ rng.normal(size=(RANK, GENES)) * 0.4
    return np.maximum(values + noise * rng.normal(size=values.shape), 0.01)


def learned(values: np.ndarray, measured: np.ndarray | None = None, width: int = 5) -> Completion:
    axes = principal_axes(sp.csr_array(values), measured, width, 0)
    assert axes is not None
    completion = Completion(GENES, width).double()
    completion.learn(axes)
    return completion


def completed(completion: Completion, values: np.ndarray, measured: np.ndarray) -> np.ndarray:
    return completion(torch.from_numpy(values * measured), torch.from_numpy(measured)).numpy()


def test_linear_functions_of_the_measured_genes_come_back():
    values = low_rank()
    measured = np.zeros((CELLS, GENES), dtype=bool)
    measured[:, [2, 5, 7, 11, 16]] = True
    found = completed(learned(values), values, measured)
    assert np.abs(found - values).max() < 0.01
    assert np.abs(values.mean(0) - values).max() > 1  # which the mean of each gene would not do


def test_it_is_the_expectation_of_a_normal_distribution():
    values = low_rank(0.3)
    measured = np.random.default_rng(1).random((3, GENES)) < 0.5
    pattern = np.arange(CELLS) % 3  # as cells of three files
    middle, covariance = values.mean(0), np.cov(values.T)
    sizes, axes = np.linalg.eigh(covariance)
    shared = axes[:, -RANK:] * (sizes[-RANK:] - sizes[:-RANK].mean()) @ axes[:, -RANK:].T
    model = shared + np.diag(np.diag(np.cov(values.T, ddof=0) - shared))
    found = completed(learned(values, width=RANK), values, measured[pattern])
    for kind, p in enumerate(measured):
        expected = middle[~p] + (values[:, p] - middle[p]) @ np.linalg.solve(model[np.ix_(p, p)], model[np.ix_(p, ~p)])
        here = pattern == kind
        assert (expected > 0).all()
        assert np.allclose(found[here][:, ~p], expected[here], rtol=0, atol=1e-6)
        assert np.array_equal(found[here][:, p], values[here][:, p])


def test_what_is_whole_or_empty_stays_and_nothing_falls_below_0():
    values = low_rank(0.3)
    completion = learned(values)
    everything = np.ones((CELLS, GENES), dtype=bool)
    assert np.array_equal(completed(completion, values, everything), values)
    half = everything.copy()
    half[::2, 10:] = False
    values[4] = 0
    found = completed(completion, values, half)
    assert np.array_equal(found[1::2], values[1::2])
    assert not found[4].any()
    # What would be negative is 0, and the others make up for it.
    completion.weights.zero_()
    completion.middle[10:] = torch.tensor([-1.0] + [1.0] * 9)
    assert np.allclose(completed(completion, values, half)[0, 10:], [0] + [8 / 9] * 9, atol=1e-15)
    completion.middle[10:] = -1
    assert not completed(completion, values, half)[::2, 10:].any()


def test_cells_that_lack_genes_teach_too():
    """Each half of the cells lacks other genes; the ones that both have tell what these would be."""
    values = low_rank()
    measured = np.ones((CELLS, GENES), dtype=bool)
    measured[:30, :5], measured[30:, 15:] = False, False
    found = completed(learned(values * measured, measured, RANK), values, measured)
    mean = (values * measured).sum(0) / measured.sum(0)
    lacking = ~measured
    error = np.square(found - values)[lacking].mean()
    assert error < 0.1 * np.square(np.broadcast_to(mean, values.shape) - values)[lacking].mean()


@pytest.mark.parametrize("values", [np.ones((1, GENES)), np.zeros((9, GENES))])
def test_without_axes(values):
    assert principal_axes(sp.csr_array(values), None, 4, 0) is None
    values = torch.ones(2, GENES)
    measured = torch.arange(GENES).expand(2, -1) < 7
    assert torch.equal(Completion(GENES, 4)(values * measured, measured), values * measured)


def test_axes_fill_the_width():
    axes = Axes(np.zeros(GENES), np.eye(2, GENES), np.array([4.0, 2.0]), 1.0, np.full(GENES, 5.0))
    completion = Completion(GENES, 5)
    completion.learn(axes)
    assert completion.weights.count_nonzero() == 2
    assert torch.allclose(completion.weights[:2, :2], torch.diag(torch.tensor([3.0, 1.0]).sqrt()))
    assert torch.allclose(completion.noise, torch.tensor([2.0, 4.0] + [5.0] * (GENES - 2)))
