"""The default: weights by SciPy, the blend against its parts, and that it is read as it was fitted."""

import numpy as np
import pytest
from region_methods import brain_of, every_pair
from scipy.optimize import minimize

from omniset.regions import blend
from omniset.regions.blend import FAR, NEAR, Blend, Fold, attention_of, mixture, related, scores_of, slope_of, stacked
from omniset.regions.splits import near_known
from omniset.trials import stacking
from omniset.trials.stacking import Stack

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def fitted(quick):
    regions = brain_of(29)
    return regions, Blend().fit(regions, np.arange(23))


def folds_of(spreads, sizes=(31, 17, 23), seed=0, near=False):
    """What parts say of pairs of new regions, each with noise of its own spread, in folds of other levels."""
    rng = np.random.default_rng(seed)
    folds = []
    for number, size in enumerate(sizes):
        y = (number + 1) * rng.normal(size=size) + 7 * number
        columns = np.stack([y + (number + 1) * s * rng.normal(size=size) for s in spreads], 1)
        names = np.array([f"{number}-{i}" for i in range(11)])
        pairs = rng.permuted(np.tile(np.arange(11), (size, 1)), axis=1)[:, :2]
        folds.append(Fold(names[pairs], columns, y, np.full(size, near)))
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
    (found,) = stacked(folds).values()
    assert np.allclose(found.weights, expected / expected.sum(), atol=1e-4)
    assert stacked([]) == {}


def test_each_relation_to_known_regions_has_its_weights():
    """What is best beside a mirror image, and what is best away from all that is known, each have their place."""
    beside, away = folds_of((0.2, 2.0), near=True), folds_of((2.0, 0.2), seed=1)
    found = stacked(beside + away)
    assert found[NEAR].weights[0] > 0.9 < found[FAR].weights[1]
    (alone,) = stacked(away).values()
    assert np.allclose(found[FAR].weights, alone.weights, atol=1e-6)  # the others have no say
    scores = scores_of(["a", "b"], beside + away, found)
    assert scores[NEAR]["a"] > scores[NEAR]["b"]
    assert scores[FAR]["a"] < scores[FAR]["b"]
    weights = {NEAR: {"a": 1.0, "b": 0.0}, FAR: {"a": 0.25, "b": 0.75}}
    said, near = {"a": np.array([1.0, 2.0, 3.0]), "b": np.array([8.0, 8.0, 8.0])}, np.array([True, False, True])
    assert mixture(said, near, weights).tolist() == [1, 6.5, 3]
    assert mixture(said, near, {FAR: weights[FAR]}).tolist() == [6.25, 6.5, 6.75]
    few = [Fold(f.regions, f.columns, f.values, np.arange(len(f.values)) < 2) for f in away]  # of at most 12 regions
    few[0].near[:] = False
    assert [*related(few)] == [FAR]
    assert all(rows.all() for rows in related(few)[FAR])


def test_together_is_scored_with_weights_of_the_other_folds():
    folds = folds_of((0.5, 0.7, 5.0))
    found, sizes = stacked(folds), [len(f.values) for f in folds]
    scores = scores_of(["a", "b", "c"], folds, found)[FAR]
    rs = [np.corrcoef(f.values, f.columns @ found[FAR].contest.weights[n])[0, 1] for n, f in enumerate(folds)]
    assert scores["blend"] == pytest.approx(np.average(rs, weights=sizes))
    rs = [np.corrcoef(f.values, f.columns[:, 1])[0, 1] for f in folds]
    assert scores["b"] == pytest.approx(np.average(rs, weights=sizes))
    assert scores_of(["a"], [], {}) == {}


def test_a_part_that_all_together_spoil_is_taken_alone(monkeypatch):
    """As ridge with r .906 was, of which weights near to equal ones made .884."""
    monkeypatch.setattr(stacking, "PULL", 80.0)
    folds = folds_of((0.3, 0.9, 0.9), (53, 47, 43, 59))
    found = stacked(folds)
    assert found[FAR].contest.below
    assert found[FAR].weights.tolist() == [1, 0, 0]
    scores = scores_of(["ridge", "b", "c"], folds, found)[FAR]
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
    learned = regions.take(sorted(range(23), key=regions.names.__getitem__)).coordinates
    near = near_known(learned, regions.coordinates)[pairs].all(1)
    assert 0 < near.sum() < len(near)
    said = {name: part.predict(regions, pairs) for name, part in method.fitted.items()}
    of_pair = [method.weights[NEAR if one and NEAR in method.weights else FAR] for one in near]
    expected = [sum(of[name] * column[n] for name, column in said.items()) for n, of in enumerate(of_pair)]
    assert np.allclose(method.predict(regions, pairs), method.level + method.slope * np.array(expected))
    for kind, of in method.weights.items():
        assert list(of) == ["attention", "ridge", "ridge-places", "geometry-genes", "boosting"]
        assert min(of.values()) >= 0
        assert sum(of.values()) == pytest.approx(1)
        assert method.scores[kind].keys() == {*of, "blend"}


def test_attention_is_kept_to_explain_whatever_its_weight(monkeypatch):
    only_ridge = Stack(np.array([0.0, 1.0, 0.0, 0.0, 0.0]), np.ones(5))
    monkeypatch.setattr(blend, "stacked", lambda folds: dict.fromkeys(related(folds), only_ridge))
    regions = brain_of(29)
    method = Blend().fit(regions, np.arange(23))
    assert [*method.fitted] == ["attention", "ridge"]
    assert attention_of(method) is method.fitted["attention"]
    pairs = every_pair(29, directed=False)
    monkeypatch.setattr(method.fitted["attention"], "predict", None)  # is not asked
    expected = method.level + method.slope * method.fitted["ridge"].predict(regions, pairs)
    assert np.allclose(method.predict(regions, pairs), expected)


def test_without_folds_that_say_something_parts_count_the_same():
    regions = brain_of(23)
    method = Blend().fit(regions.with_(connectivity=np.ones_like(regions.connectivity)), np.arange(19))
    assert set(method.weights[FAR].values()) == {1 / 5}
    assert method.slope == 1


def test_parts_choose_by_regions_held_back_as_new_ones_may_lie():
    method = Blend()
    method.held_out = "random"  # by whoever divides the regions: what the default is does not depend on it
    method.fit(brain_of(29), np.arange(23))
    asked = {name: part.held_out for name, part in method.fitted.items()}
    assert asked == {**dict.fromkeys(asked, "bilateral"), "ridge-places": "spatial"}
