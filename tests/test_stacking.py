"""Weights against SciPy's minimiser on the simplex, and that a mixture is not below its best part."""

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import softmax

from omniset.trials.stacking import Classes, Numbers, Stack, cross_fitted

METHODS, ROWS, CLASSES = 3, 41, 4
FOLDS = np.arange(ROWS) % 5


def said(seed=0, rows=ROWS, sharpness=(0.5, 2.0, 1.0)):
    """Probabilities of methods, from a good one to one that knows nothing, and the truth."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, rows)
    signal = np.eye(CLASSES)[y]
    scores = [1.3 * signal, signal, 0 * signal]
    p = [softmax(c * (s + rng.normal(size=s.shape)), 1) for c, s in zip(sharpness, scores, strict=True)]
    return np.stack(p), y


def numbers_said(seed=0, rows=ROWS, spreads=(40, 60, 90)):
    rng = np.random.default_rng(seed)
    y = 100 * rng.normal(size=rows)
    return np.stack([y + spread * rng.normal(size=rows) for spread in spreads]), y


KINDS = pytest.mark.parametrize(("make", "kind"), [(said, Classes), (numbers_said, Numbers)])


def log_loss(p, y, a=1.0):
    return -np.log((p**a / (p**a).sum(1, keepdims=True))[np.arange(len(y)), y])


def on_the_simplex(objective):
    starts = [np.zeros(METHODS), *3 * np.eye(METHODS)]
    found = [
        minimize(lambda u: objective(softmax(u)), start, method="BFGS", options={"gtol": 1e-9}) for start in starts
    ]
    return softmax(min(found, key=lambda one: one.fun).x)


def pulled(w):
    return 3.0 * METHODS / 2 * np.sum((w - 1 / METHODS) ** 2)


def test_classes_have_the_weights_and_powers_of_the_formula():
    p, y = said()
    c = np.random.default_rng(1).uniform(0.5, 2, ROWS)
    c /= c.mean()
    found = Stack.learned(p, Classes(y), FOLDS, c)
    powers = [
        np.exp(minimize_scalar(lambda t, m=m: c @ log_loss(m, y, np.exp(t)) + 4.5 * t * t, (-0.1, 0.1)).x) for m in p
    ]
    np.testing.assert_allclose(found.powers, powers, rtol=1e-4)
    assert found.powers[0] > 1 > found.powers[1]  # one was too timid, one too sure
    each = np.stack([m**a / (m**a).sum(1, keepdims=True) for m, a in zip(p, found.powers, strict=True)])
    right = each[:, np.arange(ROWS), y]
    expected = on_the_simplex(lambda w: -c @ np.log(w @ right) + pulled(w))
    np.testing.assert_allclose(found.weights, expected, atol=1e-5)
    np.testing.assert_allclose(found(p), np.tensordot(found.weights, each, 1), rtol=1e-9)


def test_numbers_have_those_of_the_normal_likelihood_in_any_unit():
    f, y = numbers_said()
    found = Stack.learned(f, Numbers(y), FOLDS)
    expected = on_the_simplex(lambda w: ROWS / 2 * np.log(np.mean((y - w @ f) ** 2)) + pulled(w))
    np.testing.assert_allclose(found.weights, expected, atol=1e-5)
    np.testing.assert_allclose(found(f), found.weights @ f, rtol=1e-12)
    again = Stack.learned(f / 1000 + 7, Numbers(y / 1000 + 7), FOLDS)
    np.testing.assert_allclose(again.weights, found.weights, atol=1e-6)


def test_equal_parts_share_and_a_much_better_one_takes_all():
    p, y = said()
    np.testing.assert_allclose(Stack.learned(np.stack([p[1]] * 3), Classes(y), FOLDS).weights, 1 / 3, rtol=1e-6)
    right = 0.97 * np.eye(CLASSES)[y] + 0.01 * np.ones(CLASSES)
    right /= right.sum(1, keepdims=True)
    parts = np.stack([p[2], right, p[2]])
    found = Stack.learned(parts, Classes(y), FOLDS)
    np.testing.assert_array_equal(found.weights, [0, 1, 0])
    parts[0] = np.nan
    np.testing.assert_allclose(found(parts).sum(1), 1, rtol=1e-12)


@KINDS
def test_the_comparison_is_learned_on_other_folds(make, kind):
    p, y = make()
    found = Stack.learned(p, kind(y), FOLDS)
    if kind is Classes:
        p = np.stack([m**a / (m**a).sum(1, keepdims=True) for m, a in zip(p, found.powers, strict=True)])

    def losses(f, rows):
        return -np.log(f[np.arange(rows.sum()), y[rows]]) if kind is Classes else (f - y[rows]) ** 2

    gains = np.zeros(ROWS)
    for fold in range(5):
        left, there = fold == FOLDS, fold != FOLDS
        best = np.argmin([losses(m[there], there).mean() for m in p])
        mixed = np.tensordot(found.contest.weights[fold], p[:, left], 1)
        gains[left] = losses(p[best, left], left) - losses(mixed, left)
        lied = np.where(left, y[::-1], y)
        # Powers, one number of each part, are of all rows; weights are not.
        if kind is Numbers:
            again = Stack.learned(p, kind(lied), FOLDS).contest.weights[fold]
            np.testing.assert_array_equal(again, found.contest.weights[fold])
    assert found.contest.alone - found.contest.mixed == pytest.approx(gains.mean())
    assert found.contest.noise == pytest.approx(gains.std(ddof=1) / np.sqrt(ROWS))


def test_a_mixture_that_is_worse_than_its_best_part_is_not_taken():
    """The second makes good what the first does wrong in some folds, and doubles it in others."""
    rng = np.random.default_rng(0)
    y, wrong = rng.normal(size=(2, 5 * 13))
    folds = np.repeat(np.arange(5), 13)
    parts = np.stack([y + wrong, y + np.array([-1.5, 4, -1.5, 4, -1.5])[folds] * wrong])
    found = Stack.learned(parts, Numbers(y), folds)
    assert found.contest.mixed > found.contest.alone + found.contest.noise
    assert found.contest.below
    np.testing.assert_array_equal(found.weights, [1, 0])
    order = Stack.learned(parts[::-1], Numbers(y), folds)
    np.testing.assert_array_equal(order.weights, [0, 1])


@KINDS
def test_the_order_of_parts_is_theirs_alone(make, kind):
    p, y = make()
    order = [2, 0, 1]
    a, b = Stack.learned(p, kind(y), FOLDS), Stack.learned(p[order], kind(y), FOLDS)
    np.testing.assert_allclose(b.weights, a.weights[order], atol=1e-6)
    np.testing.assert_allclose(b.powers, a.powers[order], rtol=1e-9)


@KINDS
def test_rows_of_weight_0_are_not_there_and_only_proportions_count(make, kind):
    p, y = make()
    w = np.random.default_rng(2).uniform(1, 2, ROWS)
    w[::5] = 0
    folds = np.arange(ROWS) % 3
    some, there = Stack.learned(p, kind(y), folds, w), w > 0
    few = Stack.learned(p[:, there], kind(y[there]), folds[there], w[there])
    np.testing.assert_array_equal(some.weights, few.weights)
    np.testing.assert_allclose(Stack.learned(p, kind(y), folds, 8 * w).weights, some.weights, atol=1e-6)


@KINDS
def test_a_unit_is_one_row_however_often_it_is_repeated(make, kind):
    p, y = make()
    once = Stack.learned(p, kind(y), FOLDS)
    thrice = np.concatenate([p] * 3, 1), kind(np.tile(y, 3)), np.tile(FOLDS, 3)
    again = Stack.learned(*thrice, units=np.tile(np.arange(ROWS), 3))
    np.testing.assert_allclose(again.weights, once.weights, atol=1e-6)
    np.testing.assert_allclose(again.powers, once.powers, rtol=1e-6)
    assert again.contest.noise == pytest.approx(once.contest.noise, rel=1e-4)
    surer = Stack.learned(*thrice)  # as many rows would be
    assert surer.weights.max() > once.weights.max()
    assert surer.contest.noise < 0.7 * once.contest.noise


def test_noise_of_pairs_is_that_of_their_two_units():
    rng = np.random.default_rng(5)
    pairs = np.array([(i, j) for i in range(13) for j in range(i) if (i - j) % 2 == 0])
    level = rng.normal(size=13)[pairs].sum(1)
    y = rng.normal(size=len(pairs))
    parts = np.stack([y + level, y + rng.normal(size=len(pairs))])
    folds = pairs[:, 0] % 2
    found = Stack.learned(parts, Numbers(y), folds, units=pairs).contest
    gains = np.zeros(len(pairs))
    for fold in (0, 1):
        left = folds == fold
        best = np.argmin(np.square(parts[:, ~left] - y[~left]).mean(1))
        mixed = found.weights[fold] @ parts[:, left]
        gains[left] = (parts[best, left] - y[left]) ** 2 - (mixed - y[left]) ** 2
    off = gains - gains.mean()
    variance = sum(off[(pairs == unit).any(1)].sum() ** 2 for unit in range(13)) * 13 / 12
    assert found.noise == pytest.approx(np.sqrt(variance) / len(pairs))


def test_what_else_a_unit_said_has_no_say_in_the_comparison_on_one_of_its_folds():
    p, y = numbers_said()
    twice = np.tile(np.arange(ROWS), 2)  # left out in two manners: in one of five folds, and in one of three
    folds = np.concatenate([FOLDS, 5 + np.arange(ROWS) % 3])
    p, y = np.tile(p, 2), np.tile(y, 2)
    found = Stack.learned(p, Numbers(y), folds, units=twice)
    for fold in np.unique(folds):
        there = ~np.isin(twice, twice[folds == fold])
        alone = Stack.learned(p[:, there], Numbers(y[there]), np.zeros_like(twice[there]), units=twice[there])
        np.testing.assert_allclose(found.contest.weights[fold], alone.weights, atol=1e-9)
    assert Stack.learned(p[:, :2], Numbers(y[:2]), np.arange(2), units=np.zeros(2)).contest is None


@KINDS
def test_cross_fitted_rows_do_not_weigh_themselves(make, kind):
    p, y = make()
    left_out = np.arange(ROWS) % 3
    honest = cross_fitted(p, kind(y), left_out, FOLDS)
    for fold in range(3):
        there, left = left_out != fold, left_out == fold
        expected = Stack.learned(p[:, there], kind(y[there]), FOLDS[there])(p[:, left])
        np.testing.assert_allclose(honest[left], expected, rtol=1e-12)
        lied = np.where(left, y[::-1], y)
        np.testing.assert_array_equal(cross_fitted(p, kind(lied), left_out, FOLDS)[left], honest[left])


def test_one_fold_has_no_comparison_and_is_refused_where_one_is_left_out():
    p, y = said()
    one = np.full(ROWS, 7)
    assert Stack.learned(p, Classes(y), one).contest is None
    with pytest.raises(ValueError, match=r"folds must be at least two, got \[7\]"):
        cross_fitted(p, Classes(y), one, FOLDS)
