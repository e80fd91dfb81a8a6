"""The model of cells: pooling from one table, likelihoods against scipy's, the alignment by hand."""

import numpy as np
import pytest
import scipy.stats
import torch

from omniset.cells.losses import loss
from omniset.cells.model import DECAY, RIDGE, TEMPERATURE, Alignment, CellDecoder, CellEncoder, CellModel, GeneTokens
from omniset.layers import PoolingByMultiheadAttention
from omniset.layers.set_transformer import InducedSetAttentionBlock

CELLS, GENES, DIM, LATENT = 5, 23, 12, 7


def encoder(**options) -> CellEncoder:
    torch.manual_seed(1)
    sizes = {"dim": DIM, "depth": 0, "num_heads": 3, "num_inducing": 4, "num_outputs": 2, "dropout": 0.5}
    return CellEncoder(GENES, latent=LATENT, **{"encoder": "ust", **sizes, **options}).double().eval()


def counts(seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.poisson(1.3, (CELLS, GENES)) * (rng.random((CELLS, GENES)) < 0.6)).double()


def vectors(model: CellEncoder, values: torch.Tensor) -> torch.Tensor:
    return model(values, values.sum(1))[0]


def where(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cell, gene = values.nonzero().unbind(1)
    return cell, gene


@pytest.mark.parametrize("variant", ["universal", "lee"])
@pytest.mark.parametrize("layer", [PoolingByMultiheadAttention, InducedSetAttentionBlock])
def test_pooling_from_a_table_is_pooling_of_the_elements(layer, variant):
    torch.manual_seed(0)
    norm = "pre" if variant == "universal" else "post"
    pool = layer(DIM, 3, 5, norm=norm, variant=variant).double()
    table = torch.randn(GENES, DIM, dtype=torch.float64, requires_grad=True)
    multiplicity = counts()
    multiplicity[2] = 0  # an empty set
    given = (table, *(p for p in pool.parameters()))
    direct = pool.finish(pool.reduce(table.expand(CELLS, -1, -1), multiplicity))
    tabulated = pool.pool_tabulated(pool.tabulate(table), multiplicity)
    assert torch.allclose(tabulated, direct, rtol=0, atol=1e-13)
    upstream = torch.randn_like(direct)
    ours, theirs = (torch.autograd.grad(x, given, upstream, allow_unused=True) for x in (tabulated, direct))
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, rtol=0, atol=1e-12)


def test_a_cell_is_a_multiset_of_tokens():
    model = encoder()
    values = counts()
    assert model.tabulates
    z = vectors(model, values)
    tokens = model.sets(model.values(values, values.sum(1)), model.tokens())
    apart = model.mean(model.head_of(model.encoder(tokens).summary))
    assert torch.allclose(z, apart, rtol=0, atol=1e-13)
    # The multiplicity is the depth-normalised count.
    expected = torch.log1p(1e4 * values / values.sum(1, keepdim=True))
    assert torch.allclose(tokens.multiplicity.sum(1), expected.sum(1), rtol=1e-14, atol=0)


OPTIONS = {
    "pma": {},
    "isab": {"depth": 1},
    "deep sets": {"encoder": "deep-sets", "num_outputs": 2},
    "tokens": {"counts": "tokens"},
    "class token": {"depth": 1, "options": {"class_token": True}},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_vector_depends_on_its_own_cell_alone(name):
    model, values = encoder(**OPTIONS[name]), counts()
    together = vectors(model, values)
    for row in range(CELLS):  # alone: no padding
        assert torch.allclose(vectors(model, values[row : row + 1])[0], together[row], rtol=0, atol=1e-12)
    order = torch.tensor([3, 0, 4, 1, 2])
    assert torch.allclose(vectors(model, values[order]), together[order], rtol=0, atol=1e-12)
    assert (together[0] - together[1]).norm() > 1e-3
    assert torch.equal(vectors(model, values), together)  # dropout is off


@pytest.mark.parametrize("name", OPTIONS)
def test_cells_without_counts_and_with_all_genes(name):
    model, values = encoder(**OPTIONS[name]), counts()
    values[1] = 0
    values[2] = 3
    z = vectors(model, values)
    assert z.isfinite().all()
    empty = vectors(model, torch.zeros(2, GENES, dtype=torch.float64))
    assert torch.allclose(empty[0], z[1], rtol=0, atol=1e-12)
    assert torch.allclose(empty[1], z[1], rtol=0, atol=1e-12)
    assert vectors(model, values[:0]).shape == (0, LATENT) if model.tabulates else True


def test_groups_of_cells_that_fit_are_all_cells(monkeypatch):
    model, values = encoder(depth=1), counts()
    whole = vectors(model, values)
    monkeypatch.setattr("omniset.cells.model.GATHERED", 17)  # less than two cells
    assert torch.allclose(vectors(model, values), whole, rtol=0, atol=1e-12)


def test_depth_does_not_enter():
    model, values = encoder(), counts()
    assert torch.allclose(vectors(model, 7 * values), vectors(model, values), rtol=0, atol=1e-12)


def test_tokens_of_given_vectors():
    torch.manual_seed(0)
    vectors = torch.randn(GENES, 11)
    vectors[4] = 0
    tokens = GeneTokens(GENES, DIM, 5 * vectors, "none").double()
    table = tokens()
    assert not table[4].any()
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    assert torch.allclose(table[3], tokens.project(unit)[3], rtol=0, atol=1e-6)
    both = GeneTokens(GENES, DIM, vectors, "learned").double()
    assert torch.equal(both()[4], both.own[4])
    assert not any(p is both.vectors for p in both.parameters())
    with pytest.raises(ValueError, match="needs gene vectors"):
        GeneTokens(GENES, DIM, None, "none")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["nb", "poisson", "mse"])
def test_losses_against_scipy(kind, masked):
    torch.manual_seed(0)
    values = counts()
    values[3] = 0
    measured = (torch.rand(CELLS, GENES) < 0.8) | (values > 0) if masked else None
    logits = torch.randn(CELLS, GENES, dtype=torch.float64)
    if measured is not None:
        logits = logits.masked_fill(~measured, torch.finfo(torch.float64).min)
    log_share = logits.log_softmax(1).requires_grad_()
    log_theta = torch.randn(GENES, dtype=torch.float64).requires_grad_()
    ours = loss(kind, values, where(values), log_share, log_theta, measured)

    share, theta, c = log_share.detach().exp().numpy(), log_theta.detach().exp().numpy(), values.numpy()
    there = np.ones_like(c, dtype=bool) if measured is None else measured.numpy()
    total = c.sum(1, keepdims=True)
    mean = share * total
    each = {
        "nb": lambda: -scipy.stats.nbinom.logpmf(c, theta, theta / (theta + mean)),
        "poisson": lambda: -scipy.stats.poisson.logpmf(c, mean),
        "mse": lambda: (np.log1p(1e4 * share) - np.log1p(1e4 * c / np.maximum(total, 1e-300))) ** 2,
    }[kind]()
    expected = np.where(there, each, 0).sum(1)
    with_counts = total[:, 0] > 0
    assert np.allclose(ours.detach().numpy()[with_counts], expected[with_counts], rtol=1e-10, atol=1e-10)
    assert ours.isfinite().all()
    gradients = torch.autograd.grad(ours.sum(), (log_share, log_theta), allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in gradients)


def test_shares_are_of_the_measured_genes():
    torch.manual_seed(0)
    decoder = CellDecoder(GENES, LATENT, 3).double()
    z, batch = torch.randn(CELLS, LATENT).double(), torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0, 1]]
    measured = torch.rand(CELLS, GENES) < 0.5
    measured[:, 0] = True
    share = decoder(z, batch, measured).exp()
    assert torch.allclose(share.sum(1), torch.ones(CELLS, dtype=torch.float64), rtol=0, atol=1e-12)
    assert not share[~measured].any()
    assert torch.allclose(share[0, 0] / share[0, measured[0]].sum(), share[0, 0])
    assert not torch.allclose(decoder(z, batch), decoder(z, batch.flip(0)))


def test_alignment_by_hand():
    torch.manual_seed(0)
    latent, clusters, batches = 3, 2, 2
    alignment = Alignment(clusters, latent, batches).double()
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
    same = Alignment(clusters, latent, batches).double()
    assert same(z.detach()[:1].expand(4, -1), torch.tensor([0, 1, 0, 1]))[0] < 1e-20  # batches that coincide


def test_a_model_starts_from_another():
    torch.manual_seed(2)
    sizes = {"latent": LATENT, "clusters": 3, "encoder": "ust", "dim": DIM, "depth": 0, "num_heads": 3}
    sizes |= {"num_inducing": 4, "num_outputs": 2, "dropout": 0.0}
    other, own = (CellModel(GENES, batches, **sizes).double().eval() for batches in (3, 4))
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
