"""The model of cells: pooling from one table, likelihood against scipy's, alignment by hand, genes not measured."""

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats
import torch

from omniset.cells import model as module
from omniset.cells.model import (
    DECAY,
    RIDGE,
    TEMPERATURE,
    Alignment,
    Axes,
    CellDecoder,
    CellEncoder,
    CellModel,
    Completion,
    negative_binomial_loss,
    principal_axes,
)
from omniset.core.sets import SetBatch

CELLS, GENES, DIM, LATENT = 5, 23, 12, 7


def encoder() -> CellEncoder:
    torch.manual_seed(1)
    return CellEncoder(GENES, latent=LATENT, dim=DIM).double().eval()


def counts(seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.poisson(1.3, (CELLS, GENES)) * (rng.random((CELLS, GENES)) < 0.6)).double()


def vectors(model: CellEncoder, values: torch.Tensor) -> torch.Tensor:
    return model(values, values.sum(1))


def test_a_cell_is_a_multiset_of_tokens():
    """Pooled from one table of keys and values as from each cell's tokens."""
    model, values = encoder(), counts()
    values[1], values[2] = 0, 3  # without counts, and with all genes
    z = vectors(model, values)
    tokens = SetBatch(model.tokens.expand(CELLS, -1, -1), model.values(values, values.sum(1)))
    apart = model.head_of(model.encoder(tokens).summary)
    assert torch.allclose(z, apart, rtol=0, atol=1e-13)
    assert torch.allclose(vectors(model, 7 * values), z, rtol=0, atol=1e-12)  # depth does not enter
    expected = torch.log1p(1e4 * values / values.sum(1, keepdim=True).clamp(min=1))
    assert torch.allclose(tokens.multiplicity.sum(1), expected.sum(1), rtol=1e-14, atol=0)


def test_a_vector_depends_on_its_own_cell_alone():
    model, values = encoder(), counts()
    values[1] = 0
    together = vectors(model, values)
    for row in range(CELLS):  # alone: no padding
        assert torch.allclose(vectors(model, values[row : row + 1])[0], together[row], rtol=0, atol=1e-12)
    order = torch.tensor([3, 0, 4, 1, 2])
    assert torch.allclose(vectors(model, values[order]), together[order], rtol=0, atol=1e-12)
    assert (together[0] - together[1]).norm() > 1e-3
    assert vectors(model, values[:0]).shape == (0, LATENT)


@pytest.mark.parametrize("masked", [False, True])
def test_loss_against_scipy(masked):
    torch.manual_seed(0)
    values = counts()
    values[3] = 0
    measured = (torch.rand(CELLS, GENES) < 0.8) | (values > 0) if masked else None
    logits = torch.randn(CELLS, GENES, dtype=torch.float64)
    if measured is not None:
        logits = logits.masked_fill(~measured, torch.finfo(torch.float64).min)
    log_share = logits.log_softmax(1).requires_grad_()
    log_theta = torch.randn(GENES, dtype=torch.float64).requires_grad_()
    where = values.nonzero(as_tuple=True)
    ours = negative_binomial_loss(values, where, log_share, log_theta, measured)

    share, theta, c = log_share.detach().exp().numpy(), log_theta.detach().exp().numpy(), values.numpy()
    mean = share * c.sum(1, keepdims=True)
    each = -scipy.stats.nbinom.logpmf(c, theta, theta / (theta + mean))
    expected = np.where(True if measured is None else measured.numpy(), each, 0).sum(1)
    with_counts = c.any(1)
    assert np.allclose(ours.detach().numpy()[with_counts], expected[with_counts], rtol=1e-10, atol=1e-10)
    assert ours.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(ours.sum(), (log_share, log_theta)))


def test_shares_are_of_the_measured_genes():
    torch.manual_seed(0)
    decoder = CellDecoder(GENES, LATENT, 3).double()
    z, batch = torch.randn(CELLS, LATENT).double(), torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0, 1]]
    measured = torch.rand(CELLS, GENES) < 0.5
    measured[:, 0] = True
    share = decoder(z, batch, measured).exp()
    assert torch.allclose(share.sum(1), torch.ones(CELLS, dtype=torch.float64), rtol=0, atol=1e-12)
    assert not share[~measured].any()
    assert not torch.allclose(decoder(z, batch), decoder(z, batch.flip(0)))


def test_alignment_by_hand(monkeypatch):
    torch.manual_seed(0)
    latent, clusters, batches = 3, 2, 2
    monkeypatch.setattr(module, "CLUSTERS", clusters)
    alignment = Alignment(latent, batches).double()
    z = torch.randn(7, latent, dtype=torch.float64, requires_grad=True)
    batch = torch.tensor([0, 1, 0, 1, 1, 0, 0])
    for step in range(2):  # the second adds to what is left of the first
        moved, spread = alignment(z, batch)
        gradient = torch.autograd.grad(moved, z, retain_graph=True)[0]
        points = z.detach().numpy()
        unit = points / np.linalg.norm(points, axis=1, keepdims=True)
        centres = alignment.centres.detach().numpy()
        centres = centres / np.linalg.norm(centres, axis=1, keepdims=True)
        distance = 2 - 2 * unit @ centres.T
        share = np.exp(-distance / TEMPERATURE)
        share /= share.sum(1, keepdims=True)
        seen = 1 + DECAY * step  # both steps had the same cells
        target = points.copy()
        for i in range(len(points)):
            for k in range(clusters):
                middle = (share[:, k, None] * points).sum(0) / share[:, k].sum()
                own = batch.numpy() == batch[i].item()
                number = seen * share[own, k].sum()
                total = seen * (share[own, k, None] * points[own]).sum(0)
                target[i] -= share[i, k] * (total - number * middle) / (number + RIDGE)
        assert np.isclose(moved.item(), ((points - target) ** 2).sum(1).mean(), rtol=1e-10)
        assert np.isclose(spread.item(), (share * distance).sum(1).mean(), rtol=1e-10)
        # Cells feel where they are to go, and the clusters do not move them.
        assert np.allclose(gradient.numpy(), 2 * (points - target) / len(points), atol=1e-10)
        assert torch.autograd.grad(spread, z, allow_unused=True)[0] is None
    same = Alignment(latent, batches).double()
    assert same(z.detach()[:1].expand(4, -1), torch.tensor([0, 1, 0, 1]))[0] < 1e-20  # batches that coincide


def test_a_model_starts_from_another():
    torch.manual_seed(2)
    other, own = (CellModel(GENES, batches, latent=LATENT, dim=DIM).double().eval() for batches in (3, 4))
    other.alignment.counts += 7
    own.start_from(other, [2, None, 0, 1])
    values = counts()
    z = vectors(other.encoder, values)
    assert torch.equal(vectors(own.encoder, values), z)
    before, after = torch.eye(3).double(), torch.eye(4).double()
    for batch, known in enumerate((before[2], before.mean(0), before[0], before[1])):
        theirs = other.decoder(z, known.expand(CELLS, -1))
        mine = own.decoder(z, after[batch].expand(CELLS, -1))
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)
    assert torch.equal(own.alignment.centres, other.alignment.centres)
    assert not own.alignment.counts.any()


# ---------------------------------------------------------------------- genes that were not measured

WHOLE, SOME, RANK = 60, 20, 3


def low_rank(noise: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(0)
    values = 5 + rng.normal(size=(WHOLE, RANK)) @ rng.normal(size=(RANK, SOME)) * 0.4
    return np.maximum(values + noise * rng.normal(size=values.shape), 0.01)


def learned(values: np.ndarray, measured: np.ndarray | None = None, width: int = 5) -> Completion:
    axes = principal_axes(sp.csr_array(values), measured, width, 0)
    assert axes is not None
    completion = Completion(SOME, width).double()
    completion.learn(axes)
    return completion


def completed(completion: Completion, values: np.ndarray, measured: np.ndarray) -> np.ndarray:
    return completion(torch.from_numpy(values * measured), torch.from_numpy(measured)).numpy()


def test_linear_functions_of_the_measured_genes_come_back():
    values = low_rank()
    measured = np.zeros((WHOLE, SOME), dtype=bool)
    measured[:, [2, 5, 7, 11, 16]] = True
    found = completed(learned(values), values, measured)
    assert np.abs(found - values).max() < 0.01
    assert np.abs(values.mean(0) - values).max() > 1  # which the mean of each gene would not do


def test_it_is_the_expectation_of_a_normal_distribution():
    values = low_rank(0.3)
    measured = np.random.default_rng(1).random((3, SOME)) < 0.5
    pattern = np.arange(WHOLE) % 3  # as cells of three files
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
    everything = np.ones((WHOLE, SOME), dtype=bool)
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
    measured = np.ones((WHOLE, SOME), dtype=bool)
    measured[:30, :5], measured[30:, 15:] = False, False
    found = completed(learned(values * measured, measured, RANK), values, measured)
    mean = (values * measured).sum(0) / measured.sum(0)
    lacking = ~measured
    error = np.square(found - values)[lacking].mean()
    assert error < 0.1 * np.square(np.broadcast_to(mean, values.shape) - values)[lacking].mean()


@pytest.mark.parametrize("values", [np.ones((1, SOME)), np.zeros((9, SOME))])
def test_without_axes(values):
    assert principal_axes(sp.csr_array(values), None, 4, 0) is None
    values = torch.ones(2, SOME)
    measured = torch.arange(SOME).expand(2, -1) < 7
    assert torch.equal(Completion(SOME, 4)(values * measured, measured), values * measured)


def test_axes_fill_the_width():
    axes = Axes(np.zeros(SOME), np.eye(2, SOME), np.array([4.0, 2.0]), 1.0, np.full(SOME, 5.0))
    completion = Completion(SOME, 5)
    completion.learn(axes)
    assert completion.weights.count_nonzero() == 2
    assert torch.allclose(completion.weights[:2, :2], torch.diag(torch.tensor([3.0, 1.0]).sqrt()))
    assert torch.allclose(completion.noise, torch.tensor([2.0, 4.0] + [5.0] * (SOME - 2)))
