"""Two-step kernel ridge against explicit inverses, its choices by inner folds, planted truths recovered."""

import numpy as np
import pytest
from region_methods import GENES, REGIONS, TRAIN, every_pair, regions_of, squared, standardised

from omniset.regions import kernel_ridge
from omniset.regions.data import known_pairs, matrix_of
from omniset.regions.kernel_ridge import (
    Fold,
    GaussianKernel,
    GenesOverDistance,
    KernelRidge,
    MirroredPlaces,
    TwoStep,
    compared,
    filled,
    spectrum_of,
)
from omniset.regions.methods import Geometry
from omniset.regions.scores import pearson
from omniset.regions.splits import split


def positive(rng, number):
    root = rng.normal(size=(number, number))
    return root @ root.T / number


# ---------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("penalty", [0.03, 0.7, 10.0])
def test_two_step_against_solve(penalty):
    rng = np.random.default_rng(0)
    kernel, target, cross = positive(rng, 11), rng.normal(size=(11, 11)), rng.normal(size=(5, 11))
    right = np.linalg.solve(kernel + penalty * np.eye(11), cross.T)
    found = TwoStep(spectrum_of(kernel), target, penalty).predict(cross)
    assert np.allclose(found, right.T @ target @ right, rtol=1e-9, atol=1e-10)
    assert not np.allclose(found, found.T)


def test_two_step_and_ridge_with_the_kronecker_kernel():
    rng = np.random.default_rng(2)
    kernel, target, cross = positive(rng, 7), rng.normal(size=(7, 7)), rng.normal(size=(3, 7))
    # The same system over all pairs, its regularisation written out: l (K x I + I x K) + l^2.
    one, low = np.eye(7), 0.3
    system = np.kron(kernel, kernel) + low * (np.kron(kernel, one) + np.kron(one, kernel)) + low**2 * np.eye(49)
    expected = (np.kron(cross, cross) @ np.linalg.solve(system, target.ravel())).reshape(3, 3)
    assert np.allclose(TwoStep(spectrum_of(kernel), target, low).predict(cross), expected)

    # Ordinary ridge, K x K + m I, is the same where all eigenvalues of K are s or 0, with m = 2 s l + l^2.
    basis = np.linalg.qr(rng.normal(size=(7, 3)))[0]
    kernel, cross = 1.7 * basis @ basis.T, rng.normal(size=(5, 3)) @ basis.T
    system = np.kron(kernel, kernel) + (2 * 1.7 * low + low**2) * np.eye(49)
    expected = (np.kron(cross, cross) @ np.linalg.solve(system, target.ravel())).reshape(5, 5)
    assert np.allclose(TwoStep(spectrum_of(kernel), target, low).predict(cross), expected)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("unknown", [[], [(0, 1), (5, 2), (2, 5)]])
def test_unknown_entries_are_their_own_fit(directed, unknown):
    rng = np.random.default_rng(3)
    kernel, target = positive(rng, 11), rng.normal(size=(11, 11))
    if not directed:
        target = target + target.T
    smoother = kernel @ np.linalg.inv(kernel + 0.5 * np.eye(11))
    np.fill_diagonal(target, np.nan)
    for i, j in unknown:
        target[i, j] = np.nan
    found = filled(target, smoother)
    where = np.isnan(target)
    assert np.array_equal(found[~where], target[~where])
    # Solved whole: y_u = (H x H)_uk y_k + (H x H)_uu y_u.
    whole, u = np.kron(smoother, smoother), where.ravel()
    known = whole[np.ix_(u, ~u)] @ target.ravel()[~u]
    expected = np.linalg.solve(np.eye(u.sum()) - whole[np.ix_(u, u)], known)
    assert np.allclose(found[where], expected, atol=1e-5 if unknown else 1e-10)
    assert abs(expected).max() > 0.1
    assert np.array_equal(filled(found, smoother), found)


def test_kernels():
    regions = regions_of()
    train, others = regions.take(TRAIN), regions.take([1, 6, 7])
    both = compared(others, train, genes=True, place=True)
    z = standardised(regions.expression, TRAIN)
    genes = np.exp(-0.3 * squared(z[[1, 6, 7]], z[TRAIN]) / GENES)
    x = np.column_stack([abs(regions.coordinates[:, 0]), regions.coordinates[:, 1:]])
    widths = np.array([12.0, 33.0, 20.0])
    near = np.exp(-squared(x[[1, 6, 7]] / widths, x[TRAIN] / widths) / 2)
    left = regions.coordinates[:, 0] < 0
    near *= np.where(left[[1, 6, 7], None] == left[TRAIN], 1, np.exp(-0.4))
    for kernel, expected in (
        (GaussianKernel(rate=0.3), genes),
        (GaussianKernel(widths=tuple(widths), side=0.4), near),
        (GaussianKernel(widths=(12.0, 66.0, 20.0), side=0.4).stretched(0.5, [1]), near),
        (GaussianKernel(0.3, tuple(widths), 0.4, 0.25), 0.25 * genes + 0.75 * near),
        (GaussianKernel(0.3, tuple(widths), 0.4), genes * near),
    ):
        assert np.allclose(kernel(both), 1 + expected, rtol=1e-6)


def test_genes_over_distance_and_mirrored_places():
    """A kernel of genes alone, solved whole, of what distance leaves; and the ridge without genes."""
    regions = regions_of(missing=False)
    method = GenesOverDistance().fit(regions, TRAIN)
    train = regions.take(sorted(TRAIN.tolist(), key=lambda i: regions.names[i]))
    trunk = Geometry().fit(regions, TRAIN)
    assert (method.kernel.widths, method.over_trunk) == (None, True)
    kernel = method.kernel(compared(regions, train, genes=True, place=False))
    pairs = every_pair(REGIONS, directed=False)
    known, values = known_pairs(train)
    left = matrix_of(train, known, values - trunk.at(train, known))
    gram = method.kernel(compared(train, train, genes=True, place=False))
    expected = TwoStep(spectrum_of(gram), left, method.penalty).predict(kernel)[tuple(pairs.T)]
    assert np.allclose(method.predict(regions, pairs), expected + trunk.at(regions, pairs))
    places, ridge = MirroredPlaces().fit(regions, TRAIN), KernelRidge(False).fit(regions, TRAIN)
    assert np.array_equal(places.predict(regions, pairs), ridge.predict(regions, pairs))


# ---------------------------------------------------------------------- choice by inner folds


class Table(Fold):
    """A fold whose scores are given."""

    def __init__(self, scores):
        object.__setattr__(self, "given", scores)

    def scores(self, kernel, over):
        return [[self.given.get((kernel.rate, penalty), 0.0) for penalty in kernel_ridge.PENALTIES] for _ in over]


@pytest.mark.parametrize(("gains", "taken"), [((0.2, 0.3, 0.2, 0.3), True), ((0.9, -0.5, 0.9, -1.5), False)])
def test_the_choice_with_the_best_mean_is_taken(gains, taken):
    method = KernelRidge()
    method.kernel, method.penalty, method.over_trunk, method.score = GaussianKernel(10.0), 0.3, False, None
    folds = [Table({(10, 0.3): 0.1, (20, 3.0): 0.1 + gain, (5, 0.1): -1.0}) for gain in gains]
    method._choose(folds, [GaussianKernel(rate) for rate in (10.0, 5.0, 20.0, 40.0)])
    assert (method.kernel.rate, method.penalty) == ((20, 3.0) if taken else (10, 0.3))
    assert method.score == pytest.approx(0.1 + (np.mean(gains) if taken else 0))


def test_the_score_is_that_of_regions_that_were_left_out(monkeypatch):
    monkeypatch.setattr(kernel_ridge, "GENES_ALONE", (0.3,))
    monkeypatch.setattr(kernel_ridge, "PENALTIES", (0.7,))
    regions = regions_of(missing=False)
    method = KernelRidge().fit(regions.with_(coordinates=None), TRAIN, seed=5)
    train = regions.take(sorted(TRAIN.tolist(), key=lambda i: regions.names[i]))
    found = []
    for fold in split("random", train, 4, 5):
        rest = np.setdiff1d(np.arange(17), fold)
        z = standardised(train.expression, rest)
        known = every_pair(len(rest))
        target = train.connectivity[np.ix_(rest, rest)]
        target = target - target[tuple(known.T)].mean()
        np.fill_diagonal(target, 0)
        kernel = 1 + np.exp(-0.3 * squared(z[rest], z[rest]) / GENES)
        cross = 1 + np.exp(-0.3 * squared(z[fold], z[rest]) / GENES)
        inverse = np.linalg.inv(kernel + 0.7 * np.eye(len(rest)))
        for _ in range(300):  # the diagonal is its own fit
            np.fill_diagonal(target, np.diag(kernel @ inverse @ target @ inverse @ kernel))
        predicted = cross @ inverse @ target @ inverse @ cross.T
        pairs = every_pair(len(fold), directed=False)
        found.append(pearson(train.connectivity[np.ix_(fold, fold)][tuple(pairs.T)], predicted[tuple(pairs.T)]))
    assert method.score == pytest.approx(np.mean(found), abs=1e-6)


def test_few_regions_take_the_first_choice():
    regions = regions_of(missing=False)
    method = KernelRidge().fit(regions, np.arange(5))
    assert (method.kernel, method.penalty) == (GaussianKernel(0.3, (20.0, 20.0, 20.0)), 0.3)
    assert method.score is None
    assert np.isfinite(method.predict(regions, every_pair(REGIONS))).all()


def test_inner_folds_choose_what_the_target_depends_on():
    regions = regions_of(71, missing=False)
    side = np.tanh(regions.coordinates[:, 0] / 20)
    connectivity = side[:, None] * side
    np.fill_diagonal(connectivity, np.nan)
    method = KernelRidge(genes=False).fit(regions.with_(connectivity=connectivity), np.arange(71))
    assert method.kernel.side > 0
    # What distance says alone is the trunk's; choices are those that a ridge with genes begins with, and are passed on.
    near = np.exp(-np.sqrt(squared(regions.coordinates, regions.coordinates)) / 40)
    np.fill_diagonal(near, np.nan)
    given = regions.with_(connectivity=near)
    start = KernelRidge(genes=False).fit(given, np.arange(71))
    assert start.over_trunk
    assert start.score > 0.99
    again = KernelRidge(genes=False, chosen=start).fit(given, np.arange(71), seed=3)
    assert (again.kernel, again.penalty, again.over_trunk) == (start.kernel, start.penalty, True)
    pairs = every_pair(71)
    assert np.array_equal(again.predict(given, pairs), start.predict(given, pairs))
