"""The default: weights by quadratic programming, the blend against its parts, and that it is read as it was fitted."""

import json

import numpy as np
import pytest
from region_methods import brain_of, every_pair
from scipy.optimize import minimize

from omniset.regions import blend, set_attention
from omniset.regions.blend import Blend, slope_of, stacked
from omniset.regions.methods import joined, parted


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(set_attention, "STEPS", 3)
        yield


@pytest.fixture(scope="module")
def fitted(_quick):
    regions = brain_of(29)
    return regions, Blend().fit(regions, np.arange(23))


def test_weights_minimise_what_the_docstring_has():
    rng = np.random.default_rng(0)
    values = [rng.normal(size=n) for n in (31, 17)]
    columns = [np.stack([y + s * rng.normal(size=len(y)) for s in (0.5, 1.0, 5.0)], 1) for y in values]
    usual = np.full(3, 1 / 3)

    def loss(w):
        total = 0.0
        for x, y in zip(columns, values, strict=True):
            x, y = (x - x.mean(0)) / y.std(), (y - y.mean()) / y.std()
            total += np.mean((y - x @ w) ** 2) + blend.PULL * np.sum((w - usual) ** 2 * np.mean(x**2, 0))
        return total

    expected = minimize(loss, usual, bounds=[(0, None)] * 3, tol=1e-14).x
    assert np.allclose(stacked(columns, values, usual), expected, atol=1e-6)
    assert np.array_equal(stacked([], [], usual), usual)
    assert np.array_equal(stacked([columns[0]], [np.ones(31)], usual), usual)


def test_the_slope_is_that_within_folds():
    rng = np.random.default_rng(1)
    x = [rng.normal(size=n) for n in (13, 29)]
    y = [2 * a + 0.1 * rng.normal(size=len(a)) + level for a, level in zip(x, (0, 5), strict=True)]
    groups = np.repeat([0.0, 1.0], [13, 29])
    design = np.column_stack([np.concatenate(x), groups, 1 - groups])
    assert slope_of(x, y) == pytest.approx(np.linalg.lstsq(design, np.concatenate(y))[0][0])
    assert slope_of([np.ones(5)], [np.arange(5.0)]) == 1
    assert slope_of(x, [-one for one in y]) == 0
    assert slope_of([], []) == 1


def test_it_is_the_weighted_sum_of_its_parts(fitted):
    regions, method = fitted
    pairs = every_pair(29, directed=False)
    expected = method.level + method.slope * sum(
        method.weights[name] * part.predict(regions, pairs) for name, part in method.fitted.items()
    )
    assert np.allclose(method.predict(regions, pairs), expected)
    assert list(method.weights) == ["attention", "attention-position", "ridge", "boosting"]
    assert min(method.weights.values()) >= 0
    assert method.scores.keys() == {*method.weights, "blend"}


def test_it_is_read_as_it_was_fitted(fitted, monkeypatch):
    regions, method = fitted
    train = regions.take(np.arange(23))
    plain, arrays = parted(method.state())
    state = joined(json.loads(json.dumps(plain)), arrays)
    for part in method.fitted.values():
        monkeypatch.setattr(type(part), "_fit", None)
    again = Blend().restore(state, train.take(np.argsort(train.names)))
    pairs = every_pair(29)
    assert np.array_equal(again.predict(regions, pairs), method.predict(regions, pairs))


@pytest.mark.parametrize(
    ("genes", "placed"),
    [(True, False), (False, True)],
)
def test_parts_are_those_that_can_be_fitted(genes, placed):
    regions = brain_of(23, placed=placed)
    method = Blend(genes).fit(regions, np.arange(19))
    assert list(method.weights) == ["attention", "ridge", "boosting"]
    assert method.needs_coordinates == placed
    if not genes:
        other = regions.with_(expression=np.random.default_rng(4).random(regions.expression.shape).astype(np.float32))
        pairs = every_pair(23)
        assert np.array_equal(method.predict(other, pairs), method.predict(regions, pairs))


def test_regions_are_held_back_as_asked(monkeypatch):
    asked = []
    real = blend.held_back
    monkeypatch.setattr(blend, "held_back", lambda *a: asked.append(a[3]) or real(*a))
    method = Blend()
    method.held_out = "spatial"
    method.fit(brain_of(), np.arange(23))
    assert asked == ["spatial"]
    assert {part.held_out for part in method.fitted.values()} == {"spatial"}
