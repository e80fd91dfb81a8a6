"""Mixtures of methods against the formula written out, against SciPy, and that no row weighs itself."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import softmax

from omniset.estimators import weights
from omniset.estimators.weights import cross_fitted, mixture_of

METHODS, ROWS, CLASSES = 3, 41, 4


def said(seed=0, rows=ROWS, sharpness=(0.5, 2.0, 1.0)):
    """Probabilities of methods, from a good one to one that knows nothing, and the truth."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, rows)
    signal = np.eye(CLASSES)[y]
    scores = [1.3 * signal, signal, 0 * signal]
    p = [softmax(c * (s + rng.normal(size=s.shape)), 1) for c, s in zip(sharpness, scores, strict=True)]
    return np.stack(p), y


def numbers_said(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    y = 100 * rng.normal(size=rows)
    return np.stack([y + spread * rng.normal(size=rows) for spread in (40, 60, 90)]), y


def log_loss(p, y, a=1.0):
    return -np.log((p**a / (p**a).sum(1, keepdims=True))[np.arange(len(y)), y])


def test_the_mixture_is_the_formula_written_out(monkeypatch):
    monkeypatch.setattr(weights, "LEAST", 0.0)
    monkeypatch.setattr(weights, "BOOTSTRAPS", 50)
    p, y = said()
    c = np.random.default_rng(1).uniform(0.5, 2, ROWS)
    c /= c.mean()
    found = mixture_of(p, y, c, seed=3)
    expected = [
        np.exp(minimize_scalar(lambda t, m=m: c @ log_loss(m, y, np.exp(t)) + 4.5 * t * t, (-0.1, 0.1)).x) for m in p
    ]
    np.testing.assert_allclose(found.powers, expected, rtol=1e-4)
    assert found.powers[0] > 1 > found.powers[1]  # one was too timid, one too sure
    drawn = np.random.default_rng(3).gamma(c, size=(50, ROWS))
    total = np.zeros(METHODS)
    for g in drawn:
        losses = [(g / g.sum()) @ log_loss(m, y, a) for m, a in zip(p, found.powers, strict=True)]
        total += softmax([-ROWS / 2 * loss for loss in losses])
    np.testing.assert_allclose(found.weights, total / 50, rtol=1e-9)
    each = [m**a / (m**a).sum(1, keepdims=True) for m, a in zip(p, found.powers, strict=True)]
    np.testing.assert_allclose(found(p), np.tensordot(found.weights, each, 1), rtol=1e-9)


def test_of_numbers_it_is_the_formula_with_the_normal_likelihood(monkeypatch):
    monkeypatch.setattr(weights, "LEAST", 0.0)
    monkeypatch.setattr(weights, "BOOTSTRAPS", 50)
    f, y = numbers_said()
    found = mixture_of(f, y, seed=3)
    total = np.zeros(METHODS)
    for g in np.random.default_rng(3).gamma(np.ones(ROWS), size=(50, ROWS)):
        total += softmax([-ROWS / 4 * np.log((g / g.sum()) @ (y - m) ** 2) for m in f])
    np.testing.assert_allclose(found.weights, total / 50, rtol=1e-9)
    np.testing.assert_allclose(found(f), found.weights @ f, rtol=1e-12)
    again = mixture_of(f / 1000 + 7, y / 1000 + 7, seed=3)  # in other units
    np.testing.assert_allclose(again.weights, found.weights, rtol=1e-9)


def test_equal_methods_share_and_a_much_better_one_takes_all():
    p, y = said()
    np.testing.assert_allclose(mixture_of(np.stack([p[1]] * 3), y).weights, 1 / 3, rtol=1e-9)
    right = 0.97 * np.eye(CLASSES)[y] + 0.01 * np.ones(CLASSES)
    right /= right.sum(1, keepdims=True)
    found = mixture_of(np.stack([p[2], right, p[2]]), y)
    np.testing.assert_array_equal(found.weights, [0, 1, 0])
    np.testing.assert_allclose(found(np.stack([np.full_like(right, np.nan), right, p[2]])).sum(1), 1, rtol=1e-12)


def test_the_order_of_methods_is_theirs_alone():
    p, y = said()
    order = [2, 0, 1]
    a, b = mixture_of(p, y), mixture_of(p[order], y)
    np.testing.assert_allclose(b.weights, a.weights[order], rtol=1e-9)
    np.testing.assert_allclose(b.powers, a.powers[order], rtol=1e-9)


@pytest.mark.parametrize("make", [said, numbers_said])
def test_rows_of_weight_0_are_not_there_and_only_proportions_count(make):
    p, y = make()
    w = np.random.default_rng(2).uniform(1, 2, ROWS)
    w[::5] = 0
    some, few = mixture_of(p, y, w), mixture_of(p[:, w > 0], y[w > 0], w[w > 0])
    np.testing.assert_array_equal(some.weights, few.weights)
    np.testing.assert_allclose(mixture_of(p, y, 8 * w).weights, some.weights, rtol=1e-12)


@pytest.mark.parametrize("make", [said, numbers_said])
def test_a_group_is_one_row_however_often_it_is_repeated(make):
    p, y = make()
    groups = np.arange(ROWS)
    once = mixture_of(p, y)
    again = mixture_of(np.concatenate([p] * 3, 1), np.tile(y, 3), groups=np.tile(groups, 3))
    np.testing.assert_allclose(again.weights, once.weights, rtol=1e-9)
    np.testing.assert_allclose(again.powers, once.powers, rtol=1e-6)
    thrice = mixture_of(np.concatenate([p] * 3, 1), np.tile(y, 3))
    assert thrice.weights.max() > once.weights.max()  # as many rows would be surer


@pytest.mark.parametrize("make", [said, numbers_said])
def test_cross_fitted_rows_do_not_weigh_themselves(make):
    p, y = make()
    folds = np.arange(ROWS) % 3
    honest = cross_fitted(p, y, folds)
    for fold in range(3):
        there, left = folds != fold, folds == fold
        expected = mixture_of(p[:, there], y[there])(p[:, left])
        np.testing.assert_allclose(honest[left], expected, rtol=1e-12)
        lied = np.where(left, y[::-1], y)
        np.testing.assert_array_equal(cross_fitted(p, lied, folds)[left], honest[left])


def test_one_fold_is_refused():
    p, y = said()
    with pytest.raises(ValueError, match=r"folds must be at least two, got \[7\]"):
        cross_fitted(p, y, np.full(ROWS, 7))
