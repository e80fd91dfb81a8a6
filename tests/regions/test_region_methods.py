"""Baselines of regions: statistics against loops, planted truths recovered, and what every method keeps to."""

import json
from functools import partial

import numpy as np
import pytest
from region_methods import GENES, REGIONS, TRAIN, UNKNOWN, every_pair, regions_of, standardised
from sklearn import ensemble

from omniset.estimators.methods import Trees
from omniset.regions import kernel_ridge, methods
from omniset.regions.data import Regions
from omniset.regions.kernel_ridge import KernelRidge
from omniset.regions.methods import Boosting, Geometry, PairFeatures, joined, parted
from omniset.regions.scaling import Components, Scaling
from omniset.regions.scores import pearson

# As they are, and of places alone.
MAKERS = {
    "geometry": Geometry,
    "ridge": KernelRidge,
    "ridge, places": partial(KernelRidge, False),
    "boosting": Boosting,
    "boosting, places": partial(Boosting, False),
}
ALONE = ("ridge, places", "boosting, places")
NO_GENES = ("geometry", *ALONE)


# ---------------------------------------------------------------------- recovery


def test_geometry_is_the_penalised_least_squares_fit():
    regions = regions_of(unknown=UNKNOWN)
    method = Geometry().fit(regions, np.arange(REGIONS))
    pairs = [ij for ij in every_pair(REGIONS, directed=False) if np.isfinite(regions.connectivity[tuple(ij)])]
    rows = []
    for i, j in pairs:
        a, b = regions.coordinates[i], regions.coordinates[j]
        d, crossed = np.linalg.norm(a - b), np.linalg.norm(a * [-1, 1, 1] - b)
        decays = [np.exp(-x / s) for s in (10, 20, 40, 80) for x in (d, crossed)]
        rows.append([1.0, *decays, float(a[0] * b[0] > 0)])
    x, y = np.array(rows), np.array([regions.connectivity[tuple(ij)] for ij in pairs])
    penalty = np.diag([0.0] + [np.sqrt(1e-3 * len(x))] * 9)
    expected = np.linalg.lstsq(np.vstack([x, penalty]), np.concatenate([y, np.zeros(10)]))[0]
    assert np.allclose(method.weights, expected, rtol=1e-6)
    assert np.allclose(method.predict(regions, np.array(pairs)), x @ expected)


def test_stored_trees_say_what_those_of_scikit_learn_say(monkeypatch):
    made, real = [], Trees.of_histograms
    monkeypatch.setattr(Trees, "of_histograms", lambda model: made.append(model) or real(model))
    others, pairs = other_regions(), every_pair(11, directed=False)
    method = Boosting().fit(regions_of(), TRAIN)
    expected = made[0].predict(method.features(others, pairs))
    assert np.allclose(method.predict(others, pairs), expected, rtol=1e-9)


def test_a_method_is_read_without_being_fitted_again(fitted, name, monkeypatch):
    method, before = fitted
    regions = regions_of().take(TRAIN)
    ordered = regions.take(np.argsort(regions.names))
    plain, arrays = parted(method.state())
    state = joined(json.loads(json.dumps(plain)), arrays)
    monkeypatch.setattr(type(method), "_fit", None)
    again = MAKERS[name]().restore(state, ordered)
    assert np.allclose(again.predict(other_regions(), every_pair(11)), before, rtol=1e-9)
    with pytest.raises(ValueError, match="must have .*, got"):
        MAKERS[name]().restore({**state, "more": 1}, ordered)


@pytest.mark.parametrize("kind", [KernelRidge, Boosting])
def test_connectivity_that_follows_expression_is_learned(kind):
    """For one gene twice, as a dominant component, connectivity is a sum over both regions."""
    rng = np.random.default_rng(5)
    gene = rng.random(61)
    expression = np.column_stack([gene, gene, 1 - gene, gene, 0.2 * rng.random(61)])
    connectivity = gene[:, None] + gene
    np.fill_diagonal(connectivity, np.nan)
    names = [f"r{i}" for i in range(61)]
    regions = Regions(names, list("ABCDE"), expression.astype(np.float32), connectivity=connectivity)
    pairs = every_pair(14, directed=False) + 47
    predicted = kind().fit(regions, np.arange(47)).predict(regions, pairs)
    truth = connectivity[tuple(pairs.T)]
    assert pearson(truth, predicted) > 0.97
    assert np.square(truth - predicted).mean() < 0.1 * truth.var()


# ---------------------------------------------------------------------- what every method keeps to


FEWER = {"RATES": (0.3, 0.1), "WIDTHS": (1.0, 0.3), "WEIGHTS": (0.5,), "PENALTIES": (0.3, 0.03)}


def fit(name, *arguments, **options):
    """With less to choose from: it is quicker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "ITERATIONS", 20)
        for grid, values in FEWER.items():
            patch.setattr(kernel_ridge, grid, values)
        return MAKERS[name]().fit(*arguments, **options)


@pytest.fixture(scope="module", params=list(MAKERS))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def fitted(name):
    """And what it predicts for other regions, in both directions."""
    method = fit(name, regions_of(), TRAIN, seed=3)
    return method, method.predict(other_regions(), every_pair(11))


def other_regions():
    return regions_of(11, seed=7, missing=False).with_(connectivity=None)


def test_predictions_are_finite_and_symmetric(fitted):
    _, predicted = fitted
    whole = np.zeros((11, 11))
    whole[tuple(every_pair(11).T)] = predicted
    assert predicted.dtype == np.float64
    assert np.isfinite(predicted).all()
    assert predicted.std() > 0
    assert np.array_equal(whole, whole.T)


def test_nothing_is_learned_of_other_rows(fitted, name):
    _, before = fitted
    regions = regions_of()
    others = np.setdiff1d(np.arange(REGIONS), TRAIN)
    rng = np.random.default_rng(8)
    regions.expression[others] = rng.normal(size=(len(others), GENES)) * 1e3
    regions.coordinates[others] = rng.normal(size=(len(others), 3)) * 1e3
    regions.connectivity[others] = 1e3
    regions.connectivity[:, others] = 1e3
    again = fit(name, regions, TRAIN, seed=3)
    assert np.array_equal(again.predict(other_regions(), every_pair(11)), before)
    # The test would see it: the same of a training row does matter.
    regions.connectivity[np.ix_(TRAIN[:9], TRAIN[:9])] += 1e3
    other = fit(name, regions, TRAIN, seed=3)
    assert not np.allclose(other.predict(other_regions(), every_pair(11)), before)


def test_order_does_not_matter(fitted, name):
    _, before = fitted
    rng = np.random.default_rng(9)
    order = rng.permutation(REGIONS)
    at = np.argsort(order)
    again = fit(name, regions_of().take(order), rng.permutation(at[TRAIN]), seed=3)
    shuffled = rng.permutation(11)
    pairs = np.argsort(shuffled)[every_pair(11)]
    assert np.allclose(again.predict(other_regions().take(shuffled), pairs), before, rtol=1e-9, atol=1e-9)


def test_a_pair_does_not_depend_on_other_pairs(fitted, monkeypatch):
    method, before = fitted
    pairs = every_pair(11)
    monkeypatch.setattr(methods, "AT_ONCE", 13)
    assert np.allclose(method.predict(other_regions(), pairs), before, atol=1e-12)
    assert np.allclose(method.predict(other_regions(), pairs[[50, 3]]), before[[50, 3]], atol=1e-9)
    assert method.predict(other_regions(), pairs[:0]).shape == (0,)
    assert np.allclose(method.predict(other_regions(), pairs[[3, 3]]), before[[3, 3]], atol=1e-9)


def test_missing_expression_is_the_training_mean(fitted):
    method, _ = fitted
    regions, pairs = other_regions(), every_pair(11)
    mean = np.nanmean(regions_of().expression[TRAIN], axis=0, dtype=np.float64).astype(np.float32)
    regions.expression[4, 7] = np.nan
    missing = method.predict(regions, pairs)
    regions.expression[4, 7] = mean[7]
    assert np.allclose(method.predict(regions, pairs), missing, atol=1e-5)
    regions.expression[4, 7] = mean[7] + 30
    if method.needs_genes:
        assert not np.allclose(method.predict(regions, pairs), missing, atol=1e-5)
    else:
        none = regions.with_(genes=[], expression=regions.expression[:, :0])
        assert np.array_equal(method.predict(none, pairs), missing)


def test_unknown_pairs_are_left_out(fitted, name):
    _, before = fitted
    regions = regions_of(unknown=UNKNOWN)
    again = fit(name, regions, TRAIN, seed=3)
    found = again.predict(other_regions(), every_pair(11))
    assert np.isfinite(found).all()
    assert not np.array_equal(found, before)
    infinite = regions.with_(connectivity=np.nan_to_num(regions.connectivity, nan=np.inf))  # as unknown as NaN
    other = fit(name, infinite, TRAIN, seed=3)
    assert np.array_equal(other.predict(other_regions(), every_pair(11)), found)


def test_genes_that_do_not_vary_in_training_say_nothing(name):
    regions = regions_of()
    regions.expression[TRAIN, 4] = 0.3
    regions.expression[TRAIN, 9] = np.nan
    method = fit(name, regions, TRAIN)
    others = other_regions()
    before = method.predict(others, every_pair(11))
    others.expression[:, [4, 9]] = 1e3
    assert np.array_equal(method.predict(others, every_pair(11)), before)


def test_regions_without_coordinates(fitted, name):
    method, before = fitted
    regions, others = regions_of(), other_regions()
    assert method.needs_coordinates  # places were known
    regions.coordinates[5] = np.nan
    others.coordinates[10] = np.nan
    nowhere = regions.with_(coordinates=None)
    with pytest.raises(ValueError, match=f"coordinates must be known .* such as '{regions.names[5]}'"):
        fit(name, regions, TRAIN)
    with pytest.raises(ValueError, match=f"coordinates must be known .* such as '{others.names[10]}'"):
        method.predict(others, every_pair(11))
    needs = f"coordinates are not known of these regions: '{method.name}' needs them"
    with pytest.raises(ValueError, match=needs):
        method.predict(others.with_(coordinates=None), every_pair(11))
    assert np.allclose(method.predict(others, every_pair(10)), before[(every_pair(11) < 10).all(1)], atol=1e-9)
    if name in ALONE:
        with pytest.raises(ValueError, match=needs):
            fit(name, nowhere, TRAIN)
        return
    alone = fit(name, nowhere, TRAIN)
    assert not alone.needs_coordinates
    predicted = alone.predict(nowhere, every_pair(REGIONS))
    assert np.array_equal(alone.predict(regions, every_pair(REGIONS)), predicted)
    if name == "geometry":  # the mean
        known = regions.connectivity[np.ix_(TRAIN, TRAIN)]
        assert np.allclose(predicted, known[np.triu_indices(len(TRAIN), 1)].mean())
    else:
        assert np.isfinite(predicted).all()


def test_directed(name):
    regions = regions_of(directed=True)
    method = fit(name, regions, TRAIN)
    whole = np.zeros((11, 11))
    whole[tuple(every_pair(11).T)] = method.predict(other_regions(), every_pair(11))
    assert np.isfinite(whole).all()
    if name != "ridge, places":  # which may choose a kernel so narrow that all new regions are alike
        assert np.allclose(whole, whole.T) == (name == "geometry")
    # Turned around, connectivity is predicted turned around where a method is linear in it.
    if "ridge" in name:
        turned = fit(name, regions.with_(connectivity=regions.connectivity.T), TRAIN)
        found = turned.predict(other_regions(), every_pair(11)[:, ::-1])
        assert np.allclose(found, whole[tuple(every_pair(11).T)], atol=1e-6)


def test_bad_input(name):
    with pytest.raises(ValueError, match="rows must have at least 3 pairs of known connectivity among them, got 2"):
        fit(name, regions_of(unknown=UNKNOWN), np.array([0, 3, 1]))
    with pytest.raises(ValueError, match="connectivity is not known"):
        fit(name, regions_of().with_(connectivity=None), TRAIN)
    constant = regions_of().with_(expression=np.full((REGIONS, GENES), 0.5, np.float32))
    if name in NO_GENES:
        fit(name, constant, TRAIN)
    else:
        with pytest.raises(ValueError, match="expression must differ between the 17 rows in a gene at least"):
            fit(name, constant, TRAIN)


# ---------------------------------------------------------------------- features


def test_scaling():
    values = regions_of().expression
    scaling = Scaling.of(values[TRAIN])
    assert np.allclose(scaling(values), standardised(values, TRAIN), atol=1e-12)
    assert scaling.varies.all()


def test_components_are_of_the_training_rows():
    regions = regions_of()
    components = Components(regions.take(TRAIN), 5)
    z = standardised(regions.expression, TRAIN)
    values, vectors = np.linalg.eigh(np.cov(z[TRAIN].T, bias=True))
    assert np.allclose(np.var(components(regions)[TRAIN], axis=0), values[::-1][:5])
    assert np.allclose(abs(components.axes.T @ vectors[:, ::-1][:, :5]), np.eye(5), atol=1e-6)
    assert all(axis[abs(axis).argmax()] > 0 for axis in components.axes.T)
    assert Components(regions.take(TRAIN[:4]), 10).axes.shape == (GENES, 3)  # no more than there are


@pytest.mark.parametrize("directed", [False, True])
def test_features_against_loops(directed):
    regions = regions_of(directed=directed)
    train = regions.take(TRAIN)
    p = Components(train, 10)(regions)
    pairs = np.array([[3, 8], [8, 3], [0, 5], [14, 2]])
    found = PairFeatures(train, genes=True, place=True)(regions, pairs)
    for (i, j), row in zip(pairs, found, strict=True):
        c, d = regions.coordinates[i], regions.coordinates[j]
        m, n = np.array([abs(c[0]), *c[1:]]), np.array([abs(d[0]), *d[1:]])
        expected = [*abs(p[i] - p[j]), *(p[i] + p[j]), *(p[i] * p[j])]
        expected += [*p[i], *p[j]] if directed else []
        expected += [np.sqrt(sum((c - d) ** 2)), np.sqrt(sum((m - n) ** 2))]
        expected += [*(m + n), *abs(m - n), float((c[0] < 0) == (d[0] < 0))]
        expected += [*m, *n] if directed else []
        assert np.allclose(row, expected)
    assert np.array_equal(found[0], found[1]) == (not directed)
    assert {0.0, 1.0} == set(PairFeatures(train, False, True)(regions, every_pair(REGIONS))[:, 8])
    assert PairFeatures(train, True, False)(regions, pairs).shape[1] == (50 if directed else 30)


def test_of_many_pairs_some_are_drawn(monkeypatch):
    monkeypatch.setattr(methods, "MOST_PAIRS", 29)
    seen, model = [], ensemble.HistGradientBoostingRegressor
    real = model.fit
    monkeypatch.setattr(model, "fit", lambda self, x, y: seen.append((x, y)) or real(self, x, y))
    regions = regions_of()
    for seed in (3, 3, 4):
        Boosting().fit(regions, TRAIN, seed)
    train = regions.take(TRAIN)
    known = train.pairs()
    x = PairFeatures(train, True, True)(train, known)
    rows = {tuple(np.round(row, 6)): train.connectivity[tuple(ij)] for row, ij in zip(x, known, strict=True)}
    for x, y in seen:
        assert len({tuple(row) for row in x}) == 29
        assert [rows[tuple(row)] for row in np.round(x, 6)] == pytest.approx(list(y))
    assert np.array_equal(seen[0][0], seen[1][0])
    assert not np.array_equal(seen[0][0], seen[2][0])
