"""The blend of distance and genes: weights are those of their formula, and of regions that nothing was learned from."""

import numpy as np
import pytest
from region_methods import REGIONS, brain_of, pairs_once
from scipy.optimize import minimize

from omniset.regions import blend as blend_module
from omniset.regions import ridge
from omniset.regions.blend import NETWORK, PENALTY, PULL, SCALES, Blend, Geometry, stacked
from omniset.regions.methods import Method
from omniset.regions.ridge import KernelRidge
from omniset.regions.scores import pearson
from omniset.regions.splits import split


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Ridges choose from little."""
    for name in ("RATES", "WIDTHS", "WEIGHTS", "PENALTIES"):
        monkeypatch.setattr(ridge, name, getattr(ridge, name)[:1])


class Spy(Method):
    """A part that keeps what it learned from and what it was asked for; it predicts a planted share of the truth."""

    def __init__(self, log, name="spy", needs_coordinates=False):
        self.log, self.name, self.needs_coordinates = log, name, needs_coordinates

    def _fit(self, train, seed):
        self.learned = set(train.names)
        self.log.append(("fit", self.learned, train.connectivity.copy()))

    def _predict(self, regions, pairs):
        self.log.append(("predict", self.learned, {regions.names[i] for i in pairs.ravel()}))
        return regions.expression[pairs[:, 0], 0].astype(np.float64) * regions.expression[pairs[:, 1], 0]


@pytest.fixture
def spied(monkeypatch):
    """Blends whose parts are spies: genes 0 of both regions multiplied, whoever is asked."""
    log = []

    def choose(self, train):
        self._placed = train.placed
        self._parts = {"one": lambda: Spy(log, "one"), "distance+two": lambda: Spy(log, "two")}

    monkeypatch.setattr(Blend, "_choose", choose)
    return log


# ---------------------------------------------------------------------- geometry


def geometry_features(regions, pairs):
    found = []
    for i, j in pairs:
        a, b = regions.coordinates[i], regions.coordinates[j]
        straight, crossed = np.sqrt(((a - b) ** 2).sum()), np.sqrt(((a * [-1, 1, 1] - b) ** 2).sum())
        decays = [np.exp(-d / s) for s in (10, 20, 40, 80) for d in (straight, crossed)]
        found.append([1.0, *decays, float(np.sign(a[0]) == np.sign(b[0]))])
    return np.array(found)


def test_geometry_is_ridge_regression_on_decays():
    regions = brain_of()
    rows = np.arange(17)
    method = Geometry().fit(regions, rows)
    pairs = np.array([p for p in pairs_once(17) if tuple(p) != (0, 3)])
    x, y = geometry_features(regions, pairs), regions.connectivity[tuple(pairs.T)]
    # Ridge as least squares with a row for each weight but the first.
    rows_of_penalty = np.sqrt(PENALTY * len(x)) * np.eye(10)[1:]
    expected = np.linalg.lstsq(np.vstack([x, rows_of_penalty]), np.concatenate([y, np.zeros(9)]), rcond=None)[0]
    assert np.allclose(method.weights, expected, rtol=1e-8, atol=1e-10)
    asked = np.array([[18, 20], [2, 19]])
    assert np.allclose(method.predict(regions, asked), geometry_features(regions, asked) @ expected, rtol=1e-8)
    assert SCALES == (10, 20, 40, 80)


def test_geometry_is_the_same_for_mirrored_pairs():
    regions = brain_of()
    method = Geometry().fit(regions, np.arange(REGIONS))
    mirrored = regions.with_(coordinates=regions.coordinates * [-1, 1, 1])
    pairs = pairs_once(REGIONS)
    assert np.allclose(method.predict(mirrored, pairs), method.predict(regions, pairs), rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- weights


@pytest.mark.parametrize("placed", [True, False])
def test_no_part_is_weighed_on_regions_it_learned_from(spied, placed):
    regions = brain_of(placed=placed)
    rows = np.delete(np.arange(REGIONS), [2, 11])
    blend = Blend().fit(regions, rows)
    used = {regions.names[i] for i in rows}
    fits = [learned for kind, learned, _ in spied if kind == "fit"]
    asked = [(learned, named) for kind, learned, named in spied if kind == "predict"]
    assert len(asked) == 8  # four folds, two parts
    for learned, named in asked:
        assert not learned & named
        assert learned <= used
        assert named <= used
    assert set().union(*(named for _, named in asked)) == used  # every region was left out once
    assert fits.count(used) == sum(weight > 0 for weight in blend.weights.values())


def test_the_trunk_is_weighed_on_regions_it_did_not_learn_from(spied, monkeypatch):
    log = []
    fit, predict = Geometry._fit, Geometry._predict

    def spied_fit(self, train, seed):
        self.learned = set(train.names)
        fit(self, train, seed)

    def spied_predict(self, regions, pairs):
        log.append((self.learned, {regions.names[i] for i in pairs.ravel()}))
        return predict(self, regions, pairs)

    monkeypatch.setattr(Geometry, "_fit", spied_fit)
    monkeypatch.setattr(Geometry, "_predict", spied_predict)
    blend = Blend()
    blend._choose(brain_of())
    blend._weigh(brain_of(), 0)
    # Of each fold: what it leaves of the training pairs, then the pairs left out.
    assert len(log) == 8
    assert all(named <= learned for learned, named in log[::2])
    assert not any(learned & named for learned, named in log[1::2])


def planted(folds=3, parts=4, seed=0):
    """Predictions and connectivity of folds of different size, level and spread."""
    rng = np.random.default_rng(seed)
    columns, values = [], []
    for at in range(folds):
        x = rng.normal(size=(29 + 12 * at, parts)) * rng.uniform(0.2, 3, parts) + rng.normal(size=parts)
        y = (x @ [0.7, 0.2, -0.6, 0.0] + rng.normal(size=len(x))) * 10.0**at + 5 * at
        columns.append(x * 10.0**at)
        values.append(y)
    return columns, values


def objective(weights, columns, values, usual):
    total = 0.0
    for x, y in zip(columns, values, strict=True):
        of, own = (x - x.mean(0)) / y.std(), (y - y.mean()) / y.std()
        total += np.mean((own - of @ weights) ** 2) + PULL * ((weights - usual) ** 2 * np.mean(of**2, 0)).sum()
    return total


def test_stacked_weights_are_the_minimum_of_their_formula():
    columns, values = planted()
    usual = np.array([0.5, 0.25, 0.25, 0.0])
    expected = minimize(
        objective, np.full(4, 0.3), (columns, values, usual), "L-BFGS-B", bounds=[(0, None)] * 4, tol=1e-14
    ).x
    found = stacked(columns, values, usual)
    assert np.allclose(found, expected, rtol=0, atol=1e-6)
    assert found[2] == 0  # it misleads
    assert found[0] > found[1] > 0


def test_every_fold_weighs_the_same():
    columns, values = planted(2)
    usual = np.full(4, 0.25)
    found = stacked(columns, values, usual)
    for shift, scale, repeat in ((3.0, 1, 1), (0, 50.0, 1), (0, 1, 7)):
        other = [columns[0], np.tile(columns[1] * scale + shift, (repeat, 1))]
        again = stacked(other, [values[0], np.tile(values[1] * scale - shift, repeat)], usual)
        assert np.allclose(again, found, rtol=1e-9, atol=1e-12)


def test_without_anything_to_learn_from_weights_are_the_usual_ones():
    usual = np.array([0.5, 0.5, 0.0])
    assert stacked([], [], usual).tolist() == usual.tolist()
    assert stacked([np.ones((5, 3))], [np.full(5, 2.0)], usual).tolist() == usual.tolist()  # connectivity is constant
    x = np.random.default_rng(0).normal(size=(11, 1)) * [1, 1, 1]  # the same three times
    found = stacked([x], [x[:, 0] * 2], usual)
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert found[0] > found[2]


def test_the_blend_is_the_weighted_sum_about_the_mean(spied):
    regions = brain_of()
    blend = Blend().fit(regions, np.arange(REGIONS), seed=5)
    train = regions.take(sorted(range(REGIONS), key=regions.names.__getitem__))
    columns, values = [], []
    for rows in split("spatial", train, 4, 5):
        left, learn = train.take(rows), train.take(np.setdiff1d(np.arange(REGIONS), rows))
        pairs = left.pairs()
        trunk = Geometry().fit(learn, np.arange(len(learn))).predict(left, pairs)
        part = left.expression[pairs[:, 0], 0].astype(float) * left.expression[pairs[:, 1], 0]
        columns.append(np.stack([part, trunk + part], 1))
        values.append(left.connectivity[tuple(pairs.T)])
    expected = stacked(columns, values, np.full(2, 0.5))
    assert list(blend.weights) == ["one", "distance+two"]
    assert np.allclose(list(blend.weights.values()), expected, rtol=1e-9)
    pairs = train.pairs()
    trunk = Geometry().fit(train, np.arange(REGIONS)).predict(train, pairs)
    part = train.expression[pairs[:, 0], 0].astype(float) * train.expression[pairs[:, 1], 0]
    mean = train.connectivity[tuple(pairs.T)].mean()
    whole = expected[0] * part + expected[1] * (trunk + part) + (1 - expected.sum()) * mean
    assert np.allclose(blend.predict(train, pairs), whole, rtol=1e-9)
    of_trunk = [pearson(y, x[:, 1] - x[:, 0]) for x, y in zip(columns, values, strict=True)]
    assert blend.scores["distance"] == pytest.approx(np.mean(of_trunk))
    assert blend.scores["blend"] == pytest.approx(
        np.mean([pearson(y, x @ expected) for x, y in zip(columns, values, strict=True)])
    )


@pytest.mark.parametrize("directed", [False, True])
def test_parts_are_fitted_to_connectivity_or_to_what_the_trunk_leaves(spied, directed):
    regions = brain_of(directed=directed)
    Blend().fit(regions, np.arange(REGIONS))
    fits = [(names, values) for kind, names, values in spied if kind == "fit"]
    assert len(fits) >= 8  # four folds of two parts
    for at, (learned, values) in enumerate(fits[:8]):
        train = regions.take(
            sorted((i for i in range(REGIONS) if regions.names[i] in learned), key=regions.names.__getitem__)
        )
        trunk = Geometry().fit(train, np.arange(len(train)))
        pairs = train.pairs()
        known = train.connectivity[tuple(pairs.T)]
        assert np.allclose(values[tuple(pairs.T)], known - trunk.predict(train, pairs) if at % 2 else known)
        assert directed or np.array_equal(values, values.T, equal_nan=True)
        assert np.array_equal(np.isnan(values), np.isnan(train.connectivity))


def test_a_network_has_to_earn_its_place(monkeypatch):
    def choose(self, train):
        self._placed = True
        self._parts = {name: lambda: Spy([]) for name in ("one", "two", NETWORK)}

    given = []
    monkeypatch.setattr(Blend, "_choose", choose)
    monkeypatch.setattr(blend_module, "stacked", lambda x, y, usual: given.append(usual) or usual)
    blend = Blend().fit(brain_of(), np.arange(REGIONS))
    assert given[0].tolist() == [0.5, 0.5, 0]
    assert list(blend.fitted) == ["one", "two", NETWORK]  # to be explained


def test_a_part_that_misleads_gets_no_weight(monkeypatch):
    class Wrong(Spy):
        def _predict(self, regions, pairs):
            return -regions.connectivity[tuple(pairs.T)]

    class Right(Spy):
        def _predict(self, regions, pairs):
            return 0.5 * regions.connectivity[tuple(pairs.T)]

    def choose(self, train):
        self._placed = True
        self._parts = {"wrong": lambda: Wrong([]), "right": lambda: Right([])}

    monkeypatch.setattr(Blend, "_choose", choose)
    regions = brain_of()
    blend = Blend().fit(regions.with_(connectivity=np.nan_to_num(regions.connectivity)), np.arange(REGIONS))
    assert blend.weights["wrong"] == 0
    assert blend.weights["right"] > 0.9
    assert list(blend.fitted) == ["right"]


# ---------------------------------------------------------------------- the whole


class Ridge(Blend):
    """A blend with ridges alone, which are quick."""

    def _choose(self, train):
        super()._choose(train)
        self._parts = {name: make for name, make in self._parts.items() if name.endswith(("ridge", "ridge-genes"))}


@pytest.mark.parametrize("directed", [False, True])
def test_beats_the_trunk_on_planted_data(directed):
    regions = brain_of(43, directed=directed)
    rows, test = np.arange(31), np.arange(31, 43)
    own = regions.take(test)
    truth = own.connectivity[tuple(own.pairs().T)]
    blend = Ridge().fit(regions, rows)
    found = {
        "blend": pearson(truth, blend.predict(own, own.pairs())),
        "trunk": pearson(truth, Geometry().fit(regions, rows).predict(own, own.pairs())),
    }
    assert found["blend"] > found["trunk"] + 0.05
    assert blend.weights["distance+ridge"] > 0.1
    assert set(blend.scores) == {"distance", "ridge", "distance+ridge", "blend"}
    assert blend.scores["blend"] > blend.scores["distance"]


def test_without_coordinates():
    regions = brain_of(placed=False)
    blend = Ridge().fit(regions, np.arange(REGIONS))
    assert isinstance(blend._parts["ridge-genes"](), KernelRidge)
    assert not blend._parts["ridge-genes"]().needs_coordinates
    assert set(blend.scores) == {"ridge-genes", "blend"}  # a constant has no correlation
    pairs = pairs_once(REGIONS)
    found = blend.predict(regions, pairs)
    assert np.isfinite(found).all()
    assert pearson(np.nan_to_num(regions.connectivity[tuple(pairs.T)]), found) > 0.5
    values = regions.connectivity[tuple(regions.pairs().T)]
    assert blend.trunk(regions, pairs[:2]).tolist() == pytest.approx([values.mean()] * 2)
    some = brain_of()
    some.coordinates[5, 1] = np.nan  # of one region alone
    assert Ridge().fit(some, np.arange(REGIONS)).weights.keys() == {"ridge-genes"}


def test_the_default_parts():
    blend = Blend()
    blend._choose(brain_of())
    own = ["ridge", "ridge-position", "boosting", "boosting-position"]
    over = [f"distance+{name}" for name in own]
    assert list(blend._parts) == [*own, *over, NETWORK]
    assert [make().name for make in blend._parts.values()] == [*own, *own, "attention"]
    blend._choose(brain_of(placed=False))
    assert list(blend._parts) == ["ridge-genes", "boosting-genes", NETWORK]
    assert [make().name for make in blend._parts.values()] == ["ridge-genes", "boosting-genes", "attention"]
    blend = Blend(None)
    blend._choose(brain_of())
    assert list(blend._parts) == [*own, *over]


def test_too_few_regions_to_weigh():
    regions = brain_of(5)
    blend = Ridge().fit(regions, np.arange(5))
    assert blend.weights == {"ridge": 0.5, "distance+ridge": 0.5}
    assert blend.scores == {}
    assert np.isfinite(blend.predict(regions, pairs_once(5))).all()


def test_what_is_fitted_is_told():
    lines = []
    blend = Ridge(say=lines.append).fit(brain_of(), np.arange(REGIONS))
    assert lines[:4] == [f"validation {k} of 4" for k in (1, 2, 3, 4)]
    assert lines[4:] == [f"fitting {name}" for name, weight in blend.weights.items() if weight > 0]
