"""Scores beside scipy and scikit-learn, parts beside loops over pairs, drawn regions beside pairs written out."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import linregress, pearsonr, spearmanr
from sklearn.metrics import mean_squared_error, r2_score

from omniset.regions.scores import pair_distance, pair_hemispheres, pearson, pearson_of_draws, scores
from omniset.trials.intervals import Draws

LABELS = np.array(["L", "R", "LR", ""])


def pairs_of(number=101, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=number).round(1)  # with ties
    predicted = (0.5 * truth + rng.normal(size=number)).round(1)
    distance = rng.gamma(3.0, 20.0, size=number)
    return truth, predicted, distance, LABELS[rng.integers(4, size=number)]


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12, nan_ok=True), name


def test_as_scipy_and_scikit_learn():
    truth, predicted, *_ = pairs_of()
    same(
        scores(truth, predicted),
        {
            "pearson": pearsonr(truth, predicted).statistic,
            "spearman": spearmanr(truth, predicted).statistic,
            "r2": r2_score(truth, predicted),
            "mse": mean_squared_error(truth, predicted),
            "slope": linregress(predicted, truth).slope,
            "pairs": 101.0,
        },
    )
    assert scores(truth, predicted)["r2"] != pytest.approx(scores(predicted, truth)["r2"])


def test_single_precision_is_scored_in_double():
    truth, predicted, distance, _ = pairs_of()
    truth = truth + 1e4
    narrow = [values.astype(np.float32) for values in (truth, predicted + 1e4, distance)]
    same(scores(*narrow), scores(*(values.astype(np.float64) for values in narrow)))
    assert scores(np.float32([1e30, 2e30, 4e30]), np.float32([1, 2, 3]))["mse"] == pytest.approx(7e60, rel=1e-6)


def test_parts_by_distance_are_thirds():
    truth, predicted, distance, _ = pairs_of()
    found = scores(truth, predicted, distance)
    order = np.argsort(distance)
    for name, part in zip(("short", "mid", "long"), (order[:34], order[34:68], order[68:]), strict=True):
        assert found[f"pearson_{name}"] == pytest.approx(pearsonr(truth[part], predicted[part]).statistic, rel=1e-12)


def test_equal_distances_stay_together():
    truth, predicted, *_ = pairs_of(11)
    distance = np.array([1.0] * 5 + [2.0] * 3 + [3.0] * 3)
    found = scores(truth, predicted, distance)
    for name, part in (("short", slice(0, 5)), ("mid", slice(5, 8)), ("long", slice(8, 11))):
        assert found[f"pearson_{name}"] == pytest.approx(pearsonr(truth[part], predicted[part]).statistic, rel=1e-12)
    alike = scores(truth, predicted, np.full(11, 7.0))
    assert alike["pearson_short"] == pytest.approx(alike["pearson"])
    assert np.isnan([alike["pearson_mid"], alike["pearson_long"]]).all()


def test_parts_by_hemisphere():
    truth, predicted, _, of_pair = pairs_of()
    found = scores(truth, predicted, hemisphere_pairs=of_pair)
    for name, label in (("left", "L"), ("right", "R"), ("between", "LR")):
        part = [i for i in range(101) if of_pair[i] == label]
        assert found[f"pearson_{name}"] == pytest.approx(pearsonr(truth[part], predicted[part]).statistic, rel=1e-12)


def test_constant_sides():
    truth, predicted, *_ = pairs_of()
    level = np.full(101, 0.1)
    found = scores(truth, level)
    assert np.isnan([found["pearson"], found["spearman"]]).all()
    assert found["r2"] == pytest.approx(r2_score(truth, level))
    assert found["mse"] == pytest.approx(mean_squared_error(truth, level))
    found = scores(level, predicted)
    assert np.isnan([found["pearson"], found["spearman"], found["r2"]]).all()
    assert np.isfinite(found["mse"])
    nearly = level + np.where(np.arange(101) % 2, 0, 1e-17)  # the mean of 0.1 is not 0.1 to the last bit
    assert np.isnan(scores(truth, nearly)["pearson"])
    assert np.isfinite(scores(truth, level + 1e-9 * predicted)["pearson"])


def test_small_numbers_correlate_like_large_ones():
    truth, predicted, *_ = pairs_of()
    assert pearson(1e-100 * truth, 1e-100 * predicted) == pytest.approx(pearson(truth, predicted), rel=1e-12)
    assert pearson(truth, 3 * truth) == 1
    assert pearson(truth, -3 * truth) == -1


def test_fewer_than_three_pairs_have_no_score():
    truth, predicted, distance, of_pair = pairs_of()
    for number in (0, 1, 2):
        found = scores(truth[:number], predicted[:number], distance[:number], of_pair[:number])
        assert found.pop("pairs") == number
        assert len(found) == 11
        assert np.isnan(list(found.values())).all()
    few = scores(truth[:7], predicted[:7], distance[:7], np.array(["L", "L", "R", "R", "R", "", ""]))
    expected = {"pearson_left": True, "pearson_right": False, "pearson_between": True}
    assert {name: bool(np.isnan(few[name])) for name in expected} == expected


def test_distance_of_pairs():
    coordinates = np.random.default_rng(0).normal(scale=40.0, size=(7, 3))
    pairs = np.array(list(itertools.product(range(7), repeat=2)))
    assert np.allclose(pair_distance(coordinates, pairs), cdist(coordinates, coordinates).ravel(), rtol=1e-13)
    coordinates[3, 1] = np.nan
    assert np.array_equal(np.isnan(pair_distance(coordinates, pairs)), (pairs == 3).any(1))


def test_hemispheres_of_pairs():
    hemisphere = ["L", "R", "", "R", "L"]
    pairs = np.array([[0, 4], [0, 1], [1, 0], [3, 1], [2, 0], [1, 2], [2, 2]])
    assert pair_hemispheres(hemisphere, pairs).tolist() == ["L", "LR", "LR", "R", "", "", ""]
    assert pair_hemispheres(hemisphere, pairs[:0]).shape == (0,)


# ---------------------------------------------------------------------- regions drawn again


def pairs_in_folds(directed=False, seeds=2, regions=17):
    """Rows of test pairs in folds of several seeds, some pairs unknown, and the regions' codes."""
    rng = np.random.default_rng(5)
    rows = []
    for seed in range(seeds):
        folds = rng.permutation(np.arange(regions) % 2)
        for i, j in itertools.permutations(range(regions), 2):
            if folds[i] == folds[j] and (directed or i < j) and (i, j) != (0, 3):
                rows.append((seed, folds[i], i, j))
    frame = pd.DataFrame(rows, columns=["seed", "fold", "a", "b"])
    frame["truth"] = rng.normal(size=len(frame)) + 3 * frame["fold"]
    frame["predicted"] = 0.5 * frame["truth"] + rng.normal(size=len(frame))
    return frame.sample(frac=1, random_state=0, ignore_index=True)


def drawn_again(number, seed):
    return np.random.default_rng(seed).multinomial(17, np.full(17, 1 / 17), size=number).astype(float)


def by_hand(rows, times):
    """Every pair of drawn copies of two regions written out as a row of its own."""
    drawn = [region for region, number in enumerate(times) for _ in range(int(number))]
    found = []
    for _, fold in rows.groupby(["seed", "fold"]):
        known = {(a, b): (x, y) for a, b, x, y in fold[["a", "b", "truth", "predicted"]].itertuples(index=False)}
        copies = [known[pair] for pair in itertools.product(drawn, repeat=2) if pair in known]
        found.append(pearsonr(*np.array(copies).T).statistic)
    return np.mean(found)


@pytest.mark.parametrize("directed", [False, True])
def test_regions_that_are_drawn_again_repeat_their_pairs(directed):
    rows = pairs_in_folds(directed)
    weights = np.concatenate([drawn_again(7, seed=1), 1 - np.eye(17)[:2]])
    found = pearson_of_draws(rows, Draws(rows[["a", "b"]].to_numpy(), weights))
    np.testing.assert_allclose(found, [by_hand(rows, times) for times in weights], rtol=1e-12)
    weighted = Draws(rows[["a", "b"]].to_numpy(), weights).rows()  # the same by a weight for each draw and pair
    fold = ((rows["seed"] == 0) & (rows["fold"] == 1)).to_numpy()
    x, y = rows["truth"].to_numpy()[fold], rows["predicted"].to_numpy()[fold]
    alone = pearson_of_draws(rows[fold], Draws(rows[["a", "b"]].to_numpy()[fold], weights))
    for w, r in zip(weighted[:, fold], alone, strict=True):
        moments = np.cov(np.stack([x, y]), aweights=w)
        assert r == pytest.approx(moments[0, 1] / np.sqrt(moments[0, 0] * moments[1, 1]), rel=1e-11)


def test_regions_that_are_drawn_once_have_the_mean_of_the_folds_to_the_bit():
    rows = pairs_in_folds()
    once = Draws(rows[["a", "b"]].to_numpy(), np.ones((1, 17)))
    folds = [fold[["truth", "predicted"]].to_numpy().T for _, fold in rows.groupby(["seed", "fold"])]
    mean = pd.Series([pearson(*fold) for fold in folds]).mean()
    assert pearson_of_draws(rows, once)[0] == mean
    almost = pearson_of_draws(rows, Draws(once.codes, np.stack([np.ones(17), np.full(17, 2.0)])))
    np.testing.assert_allclose(almost, mean, rtol=1e-13)


@pytest.mark.parametrize(("shift", "scale"), [(1e7, 1.0), (0.0, 1e-120), (-3e4, 1e-3)])
def test_level_and_unit_do_not_move_drawn_correlations(shift, scale):
    rows = pairs_in_folds()
    draws = Draws(rows[["a", "b"]].to_numpy(), drawn_again(5, seed=2))
    moved = rows.assign(truth=shift + scale * rows["truth"], predicted=scale * rows["predicted"] - shift)
    np.testing.assert_allclose(pearson_of_draws(moved, draws), pearson_of_draws(rows, draws), rtol=1e-8)


def test_folds_without_a_correlation_are_left_out():
    rows = pairs_in_folds(seeds=1)
    codes = rows[["a", "b"]].to_numpy()
    weights = drawn_again(5, seed=2)
    first = (rows["fold"] == 0).to_numpy()
    constant = rows.assign(predicted=rows["predicted"].where(first, 0.1))
    alone = pearson_of_draws(rows[first], Draws(codes[first], weights))
    np.testing.assert_array_equal(pearson_of_draws(constant, Draws(codes, weights)), alone)
    assert np.isnan(pearson_of_draws(constant[~first], Draws(codes[~first], weights))).all()
    inside = np.unique(codes[first])
    few = np.zeros((2, 17))
    few[0, inside[1:3]] = 9.0  # one pair, however often
    few[1, inside[1:4]] = 3.0
    found = pearson_of_draws(rows[first], Draws(codes[first], few))
    assert np.isfinite(found).tolist() == [False, True]
