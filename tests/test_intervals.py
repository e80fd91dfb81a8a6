"""Intervals against SciPy, against the definition, and where they must not collapse."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from omniset.trials import intervals
from omniset.trials.comparison import Aim, Comparison, Gate, Score
from omniset.trials.intervals import Draws, Interval, Resampling, widened

RNG = np.random.default_rng(7)


def mean_of(values):
    return lambda draws: draws.mean(values)


@pytest.mark.parametrize("units", [2, 7, 29])
def test_of_few_units_the_mean_has_students_interval(units):
    values = RNG.normal(size=units)
    found = Resampling(np.arange(units)).estimate(mean_of(values))
    oracle = stats.t.interval(0.95, units - 1, values.mean(), stats.sem(values))
    assert (found.how, found.units, found.few) == ("t", units, True)
    np.testing.assert_allclose((found.value, found.low, found.high), (values.mean(), *oracle), rtol=1e-12)


def test_rows_of_one_unit_are_drawn_together():
    """Repeating every row changes neither the value nor the interval: rows are no units."""
    values, units = RNG.normal(size=41), np.arange(41) % 37
    once = Resampling(units).estimate(mean_of(values))
    again = Resampling(np.tile(units, 5)).estimate(mean_of(np.tile(values, 5)))
    assert once.how == "bootstrap"
    np.testing.assert_allclose(list(once.as_dict().values())[:3], list(again.as_dict().values())[:3], rtol=1e-12)


@pytest.mark.parametrize("units", [20, 30, 60, 3000])
def test_what_learned_from_the_units_is_as_uncertain(units):
    """Nadeau and Bengio's part of five folds up to 30 units, then less; no share goes beyond 0 and 1."""
    right = np.arange(units) % 10 < 7
    drawn, learned = (
        Resampling(np.arange(units), learned=also).estimate(mean_of(right.astype(float)), share=True)
        for also in (False, True)
    )
    variance = 1 + 5 / 4 * {20: 1, 30: 1, 60: 1 / 2, 3000: 1 / 100}[units]
    assert learned.value == drawn.value
    for one, other in ((drawn.low, learned.low), (drawn.high, learned.high)):
        assert (other - drawn.value) == pytest.approx((one - drawn.value) * variance**0.5)
    wide = widened(Interval(0.75, 0.5, 1.0, 30), (0.0, 1.0))
    assert (wide.low, wide.high) == (0.75 - 0.25 * 1.5, 1.0)


def test_of_many_units_it_is_the_percentile_bootstrap():
    """SciPy draws other resamples: the ends agree but for chance."""
    values = RNG.exponential(size=997)
    found = Resampling(np.arange(997), resamples=4000).estimate(mean_of(values))
    oracle = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=4000, rng=1).confidence_interval
    np.testing.assert_allclose((found.low, found.high), oracle, atol=0.1 * (oracle.high - oracle.low))


@pytest.mark.parametrize("units", [5, 31, 400])
@pytest.mark.parametrize("right", [0.0, 1.0])
def test_a_share_without_spread_has_wilsons_interval(units, right):
    found = Resampling(np.arange(units)).estimate(mean_of(np.full(units, right)), share=True)
    t = stats.t.ppf(0.975, units - 1)
    other = found.low if right else found.high
    assert found.how == "Wilson"
    # The end is the share from which what was seen is t standard errors away.
    np.testing.assert_allclose(abs(right - other), t * np.sqrt(other * (1 - other) / units), rtol=1e-9)


def test_a_share_of_many_units_is_the_surer_the_fewer_errors_it_has():
    """Without an error, with few (Wilson) and with several (bootstrap): each end falls with every error more."""
    ends = []
    for wrong in range(14):
        found = Resampling(np.arange(40), resamples=4000).estimate(mean_of((np.arange(40) >= wrong) * 1.0), share=True)
        assert found.how == ("Wilson" if wrong < 10 else "bootstrap")
        ends.append((found.low, found.high))
        if 0 < wrong < 10:  # as of independent trials, but for the chance of the draws
            oracle = stats.binomtest(40 - wrong, 40).proportion_ci(method="wilson")
            np.testing.assert_allclose(ends[-1], oracle, atol=0.01)
    assert (np.diff([low for low, _ in ends]) < 0).all()
    assert (np.diff([high for _, high in ends]) <= 0).all()


def test_a_share_of_1_that_rounding_or_a_formula_moves_has_an_interval():
    for off in (0.0, 1e-16, 3e-14):
        noise = np.where(np.arange(40) % 2, off, 0.0)
        found = Resampling(np.arange(40)).estimate(mean_of(1 - noise), share=True)
        assert 0.85 < found.low < 0.95  # Wilson's of 40 trials, as without rounding
    low = Resampling(np.arange(40)).estimate(lambda draws: 1 - 0.1 * (draws.weights[:, 0] > 1), share=True)
    assert (low.value, low.how, low.high) == (1.0, "bootstrap", 1.0)


def test_a_share_of_few_units_stays_within_0_and_1():
    values = np.array([1.0, 1, 1, 1, 0.9])
    found = Resampling(np.arange(5)).estimate(mean_of(values), share=True)
    assert 0 < found.low < found.value < found.high <= 1


def test_a_paired_difference_without_spread_is_no_point():
    same = Resampling(np.arange(7)).estimate(mean_of(np.zeros(7)), paired=True)
    assert (same.low, same.high) == (0, 0)
    other = Resampling(np.arange(7)).estimate(mean_of(np.full(7, 0.25)), paired=True)
    assert other.low < 0.25 < other.high


@pytest.mark.parametrize(("units", "values"), [([], []), (["a"] * 3, [1.0, 2.0, 3.0]), (["a", "b"], [np.nan, np.nan])])
def test_without_two_units_there_is_no_interval(units, values):
    found = Resampling(np.array(units, dtype=str)).estimate(mean_of(np.array(values)))
    assert np.isnan(found.low)
    assert np.isnan(found.high)


def test_a_row_of_two_units_counts_as_often_as_both():
    """Pairs of regions: the resample of regions written out."""
    pairs = np.array([(i, j) for i in range(5) for j in range(i)])
    values = RNG.normal(size=len(pairs))
    drawn = np.array([2.0, 0, 1, 1, 3])
    repeated = np.repeat(np.arange(5), drawn.astype(int))
    copies = [values[k] for k, (i, j) in enumerate(pairs) for a in repeated for b in repeated if (a, b) == (i, j)]
    draws = Draws(pairs, drawn[None])
    np.testing.assert_allclose(draws.mean(values), np.mean(copies), rtol=1e-12)
    np.testing.assert_allclose(draws.sums(values[:, None])[0, 0], np.sum(copies), rtol=1e-12)


def test_sums_are_those_of_rows():
    codes = RNG.integers(0, 11, 53)
    draws = Draws(codes, RNG.integers(0, 3, (4, 11)).astype(float))
    values = RNG.normal(size=(53, 3))
    np.testing.assert_allclose(draws.sums(values), draws.rows() @ values, rtol=1e-12)


def test_an_interval_ends_where_no_value_can_be():
    few = Resampling(np.arange(4)).estimate(mean_of(np.array([1.0, 1, -0.9, -1])), within=(-1.0, 1.0))
    assert (few.low, few.high) == (-1, 1)
    assert np.isnan(Resampling(np.arange(1)).estimate(mean_of(np.ones(1)), within=(-1.0, 1.0)).low)


def test_a_difference_of_shares_lies_within_minus_1_and_1():
    rows = [
        {"condition": "c", "method": m, "unit": u, "right": float(m == "omniset") if u else 0.5}
        for m in ("omniset", "other")
        for u in range(3)
    ]
    found = Comparison(pd.DataFrame(rows), [Score("right", "share", share=True)], "unit", "unit", [])
    difference = found.difference("right", "c", "other")
    assert -1 <= difference.low < difference.value < difference.high <= 1
    assert Score("r", "r", within=(-1.0, 1.0)).of_differences == (-2, 2)


def test_draws_that_are_not_kept_and_fewer_of_them(monkeypatch):
    """Of more units than are kept in memory the interval is the same but for chance; `draws` limits the resamples."""
    values, seen = RNG.normal(size=499), []

    def formula(draws):
        seen.append(len(draws))
        return draws.mean(values)

    kept = Resampling(np.arange(499)).estimate(formula)
    monkeypatch.setattr(intervals, "KEPT", 0)
    monkeypatch.setattr(intervals, "BLOCK", 499 * 7)
    anew = Resampling(np.arange(499)).estimate(formula, draws=900)
    np.testing.assert_allclose((anew.low, anew.high), (kept.low, kept.high), atol=0.1 * (kept.high - kept.low))
    assert (sum(seen), max(seen[3:])) == (1 + 1000 + 1 + 900, 7)


# ---------------------------------------------------------------------- gates and comparisons


@pytest.mark.parametrize(
    ("low", "high", "bound", "most", "verdict"),
    [
        (0.1, 0.3, 0.0, False, "holds"),
        (-0.1, 0.3, 0.0, False, "tie"),
        (0.0, 0.3, 0.0, False, "tie"),
        (-0.3, -0.1, 0.0, False, "falls short"),
        (-0.002, 0.1, -0.003, False, "holds"),
        (0.01, 0.015, 0.02, True, "holds"),
        (0.01, 0.025, 0.02, True, "tie"),
        (0.03, 0.04, 0.02, True, "falls short"),
        (np.nan, np.nan, 0.0, False, "cannot be told"),
    ],
)
def test_verdicts(low, high, bound, most, verdict):
    interval = Interval((low + high) / 2, low, high, 9, "t")
    assert Gate("g", "c", "s", None, interval, bound, most).verdict == verdict


def comparison(gap=0.2, units=40, **more):
    """Ours is better than "strong" by the gap, and "weak" than nothing; "weak" lacks a unit."""
    rows, rng = [], np.random.default_rng(11)
    for seed in range(3):
        for unit in range(units):
            base = rng.normal()
            for method, bonus in (("omniset", gap), ("strong", 0.0), ("weak", -0.5)):
                if (method, unit) != ("weak", 3):
                    loss = -base - bonus - 0.01 * rng.normal()
                    about = {"condition": "all", "method": method, "unit": f"u{unit}", "seed": seed}
                    rows.append({**about, "r": base + bonus + 0.01 * rng.normal(), "loss": loss})
    scores = [Score("r", "correlation"), Score("loss", "loss", larger=False)]
    aims = [Aim("all", "r"), Aim("all", "loss"), Aim("elsewhere", "r")]
    return Comparison(
        pd.DataFrame(rows), scores, "unit", "unit", ["seed"], baselines=["weak", "strong"], aims=aims, **more
    )


def test_differences_are_paired():
    found = comparison()
    difference = found.difference("r", "all", "strong")
    whole = found.interval("r", "all", "omniset")
    assert 10 * (difference.high - difference.low) < whole.high - whole.low
    np.testing.assert_allclose(difference.value, 0.2, atol=0.01)
    weak = found.rows[found.rows["unit"] != "u3"].pivot_table(index=["unit", "seed"], columns="method", values="r")
    np.testing.assert_allclose(
        found.difference("r", "all", "weak").value, (weak["omniset"] - weak["weak"]).mean(), rtol=1e-12
    )


def test_the_opponent_is_the_best_baseline_whatever_is_better():
    gates = comparison().gates
    assert [(g.score, g.opponent, g.verdict) for g in gates] == [("r", "strong", "holds"), ("loss", "strong", "holds")]
    assert [g.verdict for g in comparison(-0.2).gates] == ["falls short", "falls short"]


def test_of_equal_baselines_the_next_score_decides():
    rows = pd.DataFrame({"condition": "all", "unit": list("ab") * 3, "method": np.repeat(["one", "two", "omniset"], 2)})
    rows["right"], rows["loss"] = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0], [0.5, 0.5, 0.4, 0.5, 0.1, 0.1]
    scores = [Score("right", "right"), Score("loss", "loss", larger=False)]
    made = Comparison(rows, scores, "unit", "unit", [], ["one", "two"], [Aim("all", "right")])
    assert made.best_baseline("right", "all") == "two"
    assert made.gates[0].opponent == "two"
    assert made.best_baseline("loss", "all") == "two"


@pytest.mark.parametrize(
    ("gap", "units", "words"),
    [(0.2, 40, "better than strong, the best baseline"), (-0.2, 7, "Use strong"), (0.0, 7, "tie"), (0.2, 1, "too few")],
)
def test_the_verdict_in_a_sentence(gap, units, words):
    said = comparison(gap, units).verdict()
    assert words in said
    assert ("only 7 units" in said) == (units == 7)


@pytest.mark.parametrize("keys", [["seed"], []])
def test_a_formula_is_compared_on_the_same_draws(keys):
    found = comparison()
    rows = found.rows if keys else found.rows[found.rows["seed"] == 1]
    of_means = Score("m", "", formula=lambda rows, draws: draws.mean(rows["r"].to_numpy()))
    by_formula = Comparison(rows, [*found.scores, of_means], "unit", "unit", keys)
    for other in ("strong", "weak"):
        one, two = (by_formula.difference(name, "all", other).as_dict() for name in ("r", "m"))
        np.testing.assert_allclose(list(one.values())[:4], list(two.values())[:4], rtol=1e-9)
