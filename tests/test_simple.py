"""Methods without a network against scikit-learn, against each other's definitions, and after they were stored."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss

from omniset.estimators import methods
from omniset.estimators.inputs import folds_of
from omniset.estimators.methods import Trees
from omniset.estimators.mixture import NumberMixture
from omniset.estimators.pooling import OF_SIZE, STATISTICS

METHODS = NumberMixture.SIMPLE

DIM = 3
COLUMNS = len(OF_SIZE) + DIM * len(STATISTICS)
LEARNING = [name for name in METHODS if name != "prior"]


def table(rows, seed=0, columns=COLUMNS):
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


def labels(x, classes, seed=0):
    noise = np.random.default_rng(seed).normal(size=len(x))
    score = x[:, 3] + 0.5 * x[:, 4] ** 2 + 0.3 * noise
    return score if classes is None else np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


def unsmoothed(p, member):
    return p if member.classes is None else ((member.rows + 1) * p - member.prior) / member.rows


@pytest.mark.parametrize("classes", [None, 2, 3])
@pytest.mark.parametrize("name", list(METHODS))
def test_restored_arrays_predict_the_same(name, classes):
    x, new = table(41), table(13, 1)
    new[2] = np.nan  # an empty set
    member = METHODS[name](classes).fit(x, labels(x, classes))
    state = member.state()
    assert all(isinstance(value, np.ndarray) and value.dtype.kind in "buif" for value in state.values())
    again = METHODS[name](classes).restore({key: value.copy() for key, value in state.items()})
    predicted = member.predict(new)
    np.testing.assert_array_equal(again.predict(new), predicted)
    assert predicted.shape == ((13,) if classes is None else (13, classes))
    assert np.isfinite(predicted).all()
    if classes is not None:
        np.testing.assert_allclose(predicted.sum(1), 1, rtol=1e-12)
        assert predicted.min() > 0


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_the_forest_is_scikit_learns(classes):
    x, new = table(61), table(1009, 1)
    y = labels(x, classes)
    w = np.random.default_rng(2).uniform(0.5, 2, 61)
    method = METHODS["pooled-forest"](classes).fit(x, y, w, seed=5)
    maker = (ExtraTreesRegressor, ExtraTreesClassifier)[classes is not None]
    leaf = 3 if classes is None else 1
    oracle = maker(methods.TREES, random_state=5, max_features="sqrt", min_samples_leaf=leaf).fit(x, y, w / w.mean())
    expected = oracle.predict(new) if classes is None else oracle.predict_proba(new)
    np.testing.assert_allclose(unsmoothed(method.predict(new), method), expected, atol=1e-7)  # kept in 32 bits


@pytest.mark.parametrize("classes", [None, 3])
def test_of_many_rows_the_forest_is_scikit_learns(classes, monkeypatch):
    """Each tree sees some, drawn by weight; some are alike, so that leaves have shares of several classes."""
    monkeypatch.setattr(methods, "SAMPLED", 50)
    x, new = table(61), table(1009, 1)
    y, w = labels(x, classes), np.random.default_rng(2).uniform(0.5, 2, 61)
    x[:20] = x[0]
    method = METHODS["pooled-forest"](classes).fit(x, y, w, seed=5)
    maker = (ExtraTreesRegressor, ExtraTreesClassifier)[classes is not None]
    drawn = {"max_features": "sqrt", "bootstrap": True, "max_samples": 50}
    drawn["min_samples_leaf"] = 3 if classes is None else 1
    oracle = maker(methods.TREES, random_state=5, **drawn).fit(x, y, w / w.mean())
    expected = oracle.predict(new) if classes is None else oracle.predict_proba(new)
    np.testing.assert_allclose(unsmoothed(method.predict(new), method), expected, atol=1e-7)


@pytest.mark.parametrize("classes", [4, 100])
def test_a_forest_is_as_large_as_its_rows_are_many(classes):
    """Of n rows a tree has at most n leaves, n - 1 other nodes and n entries, whatever the number of classes: per leaf
    three numbers of a byte, per node two bytes, per split a byte and a threshold.
    """
    state = METHODS["pooled-forest"](classes).fit(table(200), np.arange(200) % classes).state()
    of_trees = sum(array.nbytes for name, array in state.items() if name not in ("prior", "fill"))
    assert of_trees <= methods.TREES * (200 * (3 + 2 * 2 + 1 + 4) + 4) + 100


def test_trees_are_kept_one_at_a_time():
    """scikit-learn's has a share of every class at every node: all of them together are classes times larger."""
    forest, alive = RandomForestClassifier(7, random_state=0).fit(table(61), labels(table(61), 3)), []

    def one_by_one():
        for fitted in forest.estimators_:
            assert sum(array() is not None for array in alive) <= 5  # those of the last one
            names = ("children_left", "children_right", "feature", "threshold", "value")
            arrays = {name: getattr(fitted.tree_, name).copy() for name in names}
            alive.extend(map(weakref.ref, arrays.values()))
            tree = SimpleNamespace(**arrays, node_count=fitted.tree_.node_count, max_depth=fitted.tree_.max_depth)
            del arrays
            yield SimpleNamespace(tree_=tree)

    made, whole = Trees.of(one_by_one()), Trees.of(forest.estimators_)
    np.testing.assert_array_equal(made.means(table(61), 3), whole.means(table(61), 3))
    np.testing.assert_allclose(whole.means(table(61), 3), forest.predict_proba(table(61)), atol=1e-12)


@pytest.mark.parametrize("rows", [19, 53])  # fewer and more than columns
@pytest.mark.parametrize("classes", [None, 2, 3])
def test_linear_minimises_its_objective(classes, rows, monkeypatch):
    monkeypatch.setattr(methods.PooledLinear, "variances", (0.7,))
    x, new = table(rows), table(7, 1)
    y = labels(x, classes)
    w = np.random.default_rng(2).uniform(0.5, 2, rows)
    w /= w.mean()
    member = METHODS["pooled-linear"](classes).fit(x, y, w)
    mean = np.average(x.astype(float), 0, w)
    sd = np.sqrt(np.average((x - mean) ** 2, 0, w))

    def standardised(values):
        return np.clip((values - mean) / sd, -3, 3) / np.sqrt(COLUMNS)

    outputs = 1 if classes in (None, 2) else classes
    z = standardised(x)
    level = np.average(y, weights=w)
    spread = np.sqrt(np.average((y - level) ** 2, weights=w))
    target = y if classes is not None else (y - level) / spread

    def out(b, values):
        b = b.reshape(-1, outputs)
        scores = values @ b[:-1] + b[-1]
        return np.concatenate([0 * scores, scores], 1) if classes == 2 else scores

    def objective(b):
        scores = out(b, z)
        if classes is None:
            loss = 0.5 * (target - scores[:, 0]) ** 2
        else:
            loss = np.log(np.exp(scores).sum(1)) - scores[np.arange(rows), target]
        return w @ loss + (b.reshape(-1, outputs)[:-1] ** 2).sum() / (2 * 0.7)

    found = minimize(objective, np.zeros((COLUMNS + 1) * outputs), method="BFGS", options={"gtol": 1e-5}).x
    scores = out(found, standardised(new))
    if classes is None:
        expected = scores[:, 0] * spread + level
    else:
        expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(unsmoothed(member.predict(new), member), expected, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("classes", [None, 2])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("enough", "used", "rows"), [(29, 5, 29), (7, 2, 12)])
def test_linear_takes_the_likeliest_penalty(seed, classes, enough, used, rows, monkeypatch):
    """By rows left out, which are enough after some folds, and a normal distribution of its logarithm."""
    monkeypatch.setattr(methods, "LEFT_OUT", enough)
    monkeypatch.setattr(methods.PooledLinear, "variances", methods.VARIANCES)
    monkeypatch.setattr(methods, "FOLDS", 5)
    x = table(29, seed)
    score = x[:, 3] + np.random.default_rng(seed).normal(size=29)
    y = score if classes is None else (score > 0).astype(int)
    member = METHODS["pooled-linear"](classes).fit(x, y, seed=seed)
    z = np.clip((x - x.mean(0, dtype=float)) / x.std(0, dtype=float), -3, 3) / np.sqrt(COLUMNS)
    y = y if classes else (y - y.mean()) / y.std()
    folds = folds_of(y, 5, seed)
    unlikely = []
    for v in methods.VARIANCES:
        loss = 0
        for k in range(used):
            there, left = folds != k, folds == k
            if classes:
                fitted = LogisticRegression(C=v, tol=1e-8, max_iter=10_000).fit(z[there], y[there])
                loss += log_loss(y[left], fitted.predict_proba(z[left]), labels=[0, 1], normalize=False)
            else:
                loss += np.square(y[left] - Ridge(1 / v).fit(z[there], y[there]).predict(z[left])).sum()
        unlikely.append((loss if classes else rows / 2 * np.log(loss / rows)) + np.log10(v) ** 2 / 2)
    assert unlikely[methods.VARIANCES.index(member.variance)] == pytest.approx(min(unlikely), rel=1e-3)


@pytest.mark.parametrize("name", list(METHODS))
def test_rows_of_weight_0_are_not_there(name):
    x, y = table(43), labels(table(43), 2)
    w = np.ones(43)
    w[::3] = 0
    few = METHODS[name](2).fit(x[w > 0], y[w > 0], seed=1)
    many = METHODS[name](2).fit(x, y, w, seed=1)
    np.testing.assert_array_equal(many.predict(x), few.predict(x))
    scaled = METHODS[name](2).fit(x, y, 16 * w, seed=1)
    np.testing.assert_array_equal(scaled.predict(x), few.predict(x))
    weighed, plain = (METHODS[name](2).fit(x, y, weights, seed=1).predict(x) for weights in (1.0 + y, None))
    assert (weighed != plain).any()


@pytest.mark.parametrize("name", LEARNING)
def test_classes_that_training_lacks_have_what_the_prior_gives(name):
    x = table(37)
    y = np.where(labels(x, 2) == 1, 3, 1)  # of 0, 1, 2, 3
    member = METHODS[name](4).fit(x, y)
    p = member.predict(x)
    np.testing.assert_allclose(p[:, [0, 2]], (1 / 4 / 38) / 38, rtol=1e-9)
    assert p[y == 3, 3].mean() > p[y == 1, 3].mean()


@pytest.mark.parametrize("classes", [None, 2])
@pytest.mark.parametrize("name", list(METHODS))
def test_labels_that_are_all_the_same_are_the_prediction(name, classes):
    x = table(5)
    member = METHODS[name](classes).fit(x, np.ones(5, dtype=np.int64) if classes else np.full(5, 2.5))
    again = METHODS[name](classes).restore(member.state())
    expected = np.full(5, 2.5) if classes is None else np.tile([0.5 / 6, 5.5 / 6], (5, 1))
    np.testing.assert_allclose(again.predict(x), expected, rtol=1e-12)


@pytest.mark.parametrize("name", LEARNING)
def test_what_an_empty_set_lacks_is_the_mean_of_training(name):
    x, y = table(37), labels(table(37), 2)
    x[5, 3:] = np.nan
    member = METHODS[name](2).fit(x, y)
    empty = np.concatenate([x[:1, :3], np.full((1, COLUMNS - 3), np.nan)], 1).astype(np.float32)
    filled = np.concatenate([x[:1, :3], np.nanmean(x[:, 3:].astype(float), 0)[None]], 1).astype(np.float32)
    np.testing.assert_array_equal(member.predict(empty), member.predict(filled))


def test_trees_go_down_in_blocks_as_in_one(monkeypatch):
    x, y = table(61), labels(table(61), 3)
    forest = RandomForestClassifier(7, random_state=0).fit(x, y)
    trees = Trees.of(forest.estimators_)
    whole = trees.means(x, 3)
    monkeypatch.setattr("omniset.estimators.methods.ROWS_AND_TREES", 40)
    np.testing.assert_array_equal(trees.means(x, 3), whole)


def test_folds_have_their_share_of_each_class_and_keep_groups_whole():
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat([0, 1, 2], [31, 17, 5]))
    folds = folds_of(y, 5, 1)
    counts = np.array([np.bincount(y[folds == k], minlength=3) for k in range(5)])
    assert counts.sum() == 53
    assert (counts.max(0) - counts.min(0)).max() <= 1
    assert counts.sum(1).max() - counts.sum(1).min() <= 1
    groups = np.arange(53) // 4
    folds = folds_of(y, 5, 1, groups)
    assert all(len({*folds[groups == g]}) == 1 for g in range(14))
    sizes = np.bincount(folds)
    assert len(sizes) == 5
    assert sizes.max() - sizes.min() <= 8
    assert folds_of(y, 5, 1, np.arange(53) // 30).max() == 1  # two groups, two folds
    numbers = rng.normal(size=50)
    ranks = numbers.argsort().argsort() // 5
    of_numbers = folds_of(numbers, 5, 1)
    assert all(len({*of_numbers[ranks == r]}) == 5 for r in range(10))
