"""Scores beside scipy and scikit-learn, parts beside loops over pairs, intervals beside every draw that there is."""

import itertools

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import mean_squared_error, r2_score

from omniset.regions.scores import interval, pair_distance, pair_hemispheres, pearson, scores

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
    assert set(found) - set(scores(truth, predicted)) == {"pearson_short", "pearson_mid", "pearson_long"}


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
    assert set(found) - set(scores(truth, predicted)) == {"pearson_left", "pearson_right", "pearson_between"}


def test_the_order_of_pairs_does_not_matter():
    given = pairs_of()
    order = np.random.default_rng(3).permutation(101)
    same(scores(*(values[order] for values in given)), scores(*given))


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
        assert len(found) == 10
        assert np.isnan(list(found.values())).all()
    few = scores(truth[:7], predicted[:7], distance[:7], np.array(["L", "L", "R", "R", "R", "", ""]))
    expected = {"pearson_left": True, "pearson_right": False, "pearson_between": True}
    assert {name: bool(np.isnan(few[name])) for name in expected} == expected


def test_bad_pairs():
    truth, predicted, distance, of_pair = pairs_of()
    given = {"truth": truth, "predicted": predicted, "distance": distance}
    for name, wrong in itertools.product(given, (np.nan, np.inf)):
        bad = given[name].copy()
        bad[[31, 37]] = wrong
        with pytest.raises(ValueError, match=f"{name} must be finite, 2 of 101 are not, such as {wrong} at 31"):
            scores(**{**given, name: bad})
    for name in ("predicted", "distance"):
        with pytest.raises(ValueError, match=f"{name} must have a number for each of the 101 pairs, got 97"):
            scores(**{**given, name: given[name][:97]})
    with pytest.raises(ValueError, match="hemisphere_pairs must have 101 entries, got 97"):
        scores(truth, predicted, hemisphere_pairs=of_pair[:97])
    of_pair = of_pair.copy()
    of_pair[5] = "RL"
    with pytest.raises(ValueError, match="hemisphere_pairs must be one of 'L', 'R', 'LR', '', got 'RL' at 5"):
        scores(truth, predicted, hemisphere_pairs=of_pair)


# ---------------------------------------------------------------------- what is known of pairs


def test_distance_of_pairs():
    coordinates = np.random.default_rng(0).normal(scale=40.0, size=(7, 3))
    pairs = np.array(list(itertools.product(range(7), repeat=2)))
    assert np.allclose(pair_distance(coordinates, pairs), cdist(coordinates, coordinates).ravel(), rtol=1e-13)
    coordinates[3, 1] = np.nan
    assert np.array_equal(np.isnan(pair_distance(coordinates, pairs)), (pairs == 3).any(1))
    assert pair_distance(coordinates, pairs[:0]).shape == (0,)


def test_hemispheres_of_pairs():
    hemisphere = ["L", "R", "", "R", "L"]
    pairs = np.array([[0, 4], [0, 1], [1, 0], [3, 1], [2, 0], [1, 2], [2, 2]])
    assert pair_hemispheres(hemisphere, pairs).tolist() == ["L", "LR", "LR", "R", "", "", ""]
    assert pair_hemispheres(["L", "L"], np.array([[0, 1]])).tolist() == ["L"]
    assert pair_hemispheres(hemisphere, pairs[:0]).shape == (0,)
    with pytest.raises(ValueError, match="hemisphere must be one of 'L', 'R', '', got 'left' at 1"):
        pair_hemispheres(["L", "left"], np.array([[0, 1]]))


# ---------------------------------------------------------------------- intervals


def draws_of(groups):
    """The means of all ways to draw as many groups as there are."""
    ways = itertools.product(groups, repeat=len(groups))
    return [np.mean(np.concatenate(way)) for way in ways]


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_interval_is_that_of_all_draws(level):
    groups = [[0.1, 0.7], [0.2], [0.9, 1.1, 1.6]]
    found = interval(np.concatenate(groups), groups=["b", "b", "c", "a", "a", "a"], level=level, seed=1, draws=40_000)
    expected = np.quantile(draws_of(groups), [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    assert np.allclose(found, expected, atol=1e-12)


def test_interval_without_groups_draws_values():
    values = [0.3, 0.1, 0.9, 0.5]
    expected = np.quantile(draws_of([[v] for v in values]), [0.05, 0.95], method="inverted_cdf")
    assert np.allclose(interval(values, level=0.9, draws=40_000), expected, atol=1e-12)
    assert interval(values, groups=[7, 3, 5, 2]) == interval(values)


def test_values_that_depend_on_each_other_widen_the_interval():
    values = np.repeat([0.1, 0.5, 0.9], 31)
    low, high = interval(values)
    wide = interval(values, groups=np.repeat([2, 3, 5], 31))
    assert wide[0] < low - 0.1
    assert wide[1] > high + 0.1


def test_order_and_names_do_not_move_the_interval():
    rng = np.random.default_rng(0)
    values, groups = rng.normal(size=23), rng.integers(5, size=23)
    order = rng.permutation(23)
    names = np.array(["q", "a", "z", "b", "m"])
    assert interval(values[order]) == interval(values)
    assert interval(values[order], names[groups[order]]) == pytest.approx(interval(values, groups), rel=1e-12)
    assert interval(values, groups, seed=1) != interval(values, groups, seed=0)


def test_no_interval():
    for values, groups in (([], None), ([0.5], None), ([0.5, 0.7], ["a", "a"]), ([0.5, np.nan, 0.7], None)):
        assert np.isnan(interval(values, groups)).all()
    assert interval([0.5] * 7) == (0.5, 0.5)


def test_bad_intervals():
    for level in (0.0, 1.0, 95.0, np.nan):
        with pytest.raises(ValueError, match=f"level must be between 0 and 1, got {level}"):
            interval([0.1, 0.2], level=level)
    with pytest.raises(ValueError, match="draws must be at least 1, got 0"):
        interval([0.1, 0.2], draws=0)
    with pytest.raises(ValueError, match="groups must be as many as values, 3, got 2"):
        interval([0.1, 0.2, 0.3], groups=["a", "b"])
