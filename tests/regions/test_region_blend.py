"""The default: weights by SciPy, the blend against its parts, and that it is read as it was fitted."""

import numpy as np
import pytest
from region_methods import brain_of, every_pair
from scipy.optimize import minimize

from omniset.regions import blend
from omniset.regions.blend import Blend, Fold, attention_of, scores_of, slope_of, stacked
from omniset.trials import stacking
from omniset.trials.stacking import Stack

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def fitted(quick):
    regions = brain_of(29)
    return regions, Blend().fit(regions, np.arange(23))


def folds_of(spreads, sizes=(31, 17, 23), seed=0):
    """What parts say of pairs of new regions, each with noise of its own spread, in folds of other levels."""
    rng = np.random.default_rng(seed)
    folds = []
    for number, size in enumerate(sizes):
        y = (number + 1) * rng.normal(size=size) + 7 * number
        columns = np.stack([y + (number + 1) * s * rng.normal(size=size) for s in spreads], 1)
        names = np.array([f"{number}-{i}" for i in range(11)])
        folds.append(Fold(names[rng.permuted(np.tile(np.arange(11), (size, 1)), axis=1)[:, :2]], columns, y))
    return folds


def test_every_fold_counts_the_same():
    folds = folds_of((0.5, 1.0, 5.0))
    regions = len(np.unique(np.concatenate([fold.regions for fold in folds])))

    def loss(w):
        each = []
        for fold in folds:
            x, y = fold.columns - fold.columns.mean(0), fold.values - fold.values.mean()
            each.append(np.mean(((y - x @ w) / fold.values.std()) ** 2))
        return regions / 2 * np.log(np.mean(each)) + 3 * 3 / 2 * np.sum((w - 1 / 3) ** 2)

    whole = {"type": "eq", "fun": lambda w: w.sum() - 1}
    expected = minimize(loss, np.full(3, 1 / 3), bounds=[(0, 1)] * 3, constraints=[whole], tol=1e-12).x
    expected[expected < 0.02] = 0
    found = stacked(folds)
    assert np.allclose(found.weights, expected / expected.sum(), atol=1e-4)
    assert stacked([]) is None


def test_together_is_scored_with_weights_of_the_other_folds():
    folds = folds_of((0.5, 0.7, 5.0))
    found = stacked(folds)
    scores = scores_of(["a", "b", "c"], folds, found)
    rs = [np.corrcoef(f.values, f.columns @ found.contest.weights[n])[0, 1] for n, f in enumerate(folds)]
    assert scores["blend"] == pytest.approx(np.mean(rs))
    assert scores["b"] == pytest.approx(np.mean([np.corrcoef(f.values, f.columns[:, 1])[0, 1] for f in folds]))
    assert scores_of(["a"], [], None) == {}


def test_a_part_that_all_together_spoil_is_taken_alone(monkeypatch):
    """As ridge with r .906 was, of which weights near to equal ones made .884."""
    monkeypatch.setattr(stacking, "PULL", 80.0)
    folds = folds_of((0.3, 0.9, 0.9), (53, 47, 43, 59))
    found = stacked(folds)
    assert found.contest.below
    assert found.weights.tolist() == [1, 0, 0]
    scores = scores_of(["ridge", "b", "c"], folds, found)
    assert scores["blend"] < scores["ridge"]


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
    assert sum(method.weights.values()) == pytest.approx(1)
    assert method.scores.keys() == {*method.weights, "blend"}


def test_attention_is_kept_to_explain_whatever_its_weight(monkeypatch):
    only_ridge = Stack(np.array([0.0, 0.0, 1.0, 0.0]), np.ones(4))
    monkeypatch.setattr(blend, "stacked", lambda folds: only_ridge)
    regions = brain_of(29)
    method = Blend().fit(regions, np.arange(23))
    assert [*method.fitted] == ["attention", "ridge"]
    assert method.alone == "ridge"
    assert attention_of(method) is method.fitted["attention"]
    pairs = every_pair(29, directed=False)
    monkeypatch.setattr(method.fitted["attention"], "predict", None)  # is not asked
    expected = method.level + method.slope * method.fitted["ridge"].predict(regions, pairs)
    assert np.allclose(method.predict(regions, pairs), expected)


def test_without_folds_that_say_something_parts_count_the_same():
    regions = brain_of(23)
    method = Blend().fit(regions.with_(connectivity=np.ones_like(regions.connectivity)), np.arange(19))
    assert set(method.weights.values()) == {1 / 4}
    assert method.slope == 1


def test_regions_are_held_back_as_asked(monkeypatch):
    asked = []
    real = blend.held_back
    monkeypatch.setattr(blend, "held_back", lambda *a: asked.append(a[3]) or real(*a))
    method = Blend()
    method.held_out = "spatial"
    method.fit(brain_of(), np.arange(23))
    assert asked == ["spatial"]
    assert {part.held_out for part in method.fitted.values()} == {"spatial"}
