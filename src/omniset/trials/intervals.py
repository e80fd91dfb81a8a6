"""95 % intervals of scores: what other data of the same kind would give.

What is drawn again are the units that new data will be new in (clades, batches, brain regions, communities, groups of
sets), never seeds, folds or single rows of a unit. Two methods are compared on the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped

FEW = 30  # units: below, the interval is Student's t, and is said to be of few
SELDOM = 10  # successes or failures, among as many independent trials, below which a share has Wilson's interval
UNSTABLE = 30  # units up to which what is learned from four fifths of them differs as much as they do
RESAMPLES = 1000
LEVEL = 0.95
BLOCK = 1 << 22  # numbers in one block of draws x rows
KEPT = 1 << 24  # numbers of draws x units that are drawn once for all formulas; more are drawn as they are needed

Values = Float[np.ndarray, " draws"]


@dataclass(frozen=True)
class Interval:
    """A score and its 95 % interval; the ends are NaN where there are fewer than two units."""

    value: float
    low: float = np.nan
    high: float = np.nan
    units: int = 0  # from which it was estimated
    how: str = "none"  # "bootstrap", "t", "Wilson", or "none"

    @property
    def few(self) -> bool:
        return 0 < self.units < FEW

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("value", "low", "high", "units", "how")}


def decimals(*intervals: Interval) -> int:
    """How many decimals scores can bear beside each other, by half the widest interval: two, or those that show it;
    fewer above 0.5. Without an interval, by what so many units, five at least, tell of a share.

    >>> [decimals(Interval(0.5, 0.5 - half, 0.5 + half)) for half in (0.003, 0.05, 2.0, 30.0)]
    [3, 2, 1, 0]
    >>> decimals(Interval(1.0, units=24))
    2
    """
    known = [i for i in intervals if i.units or i.high > i.low]
    halves = [(i.high - i.low) / 2 if i.high > i.low else max(i.units, 5) ** -0.5 for i in known]
    half = max(halves, default=0.001)
    return min(max(2 if half < 0.5 else 1 if half < 5 else 0, -math.floor(math.log10(half))), 4)


class Draws:
    """Rows of a table with how often each is drawn: a formula of weighted sums gives its value in every draw.

    Args:
        codes: (rows,) number of the unit of each row; or (rows, several), as of pairs of brain regions: a row then
            counts as often as the product of its units' numbers.
        weights: (draws, units).
    """

    def __init__(self, codes: Int[np.ndarray, "rows ..."], weights: Float[np.ndarray, "draws units"]) -> None:
        self.codes, self.weights = codes, weights

    def __len__(self) -> int:
        return len(self.weights)

    def rows(self) -> Float[np.ndarray, "draws rows"]:
        """The weight of each row."""
        several = self.codes.reshape(len(self.codes), -1)
        weights = self.weights[:, several[:, 0]]
        for codes in several.T[1:]:
            weights = weights * self.weights[:, codes]
        return weights

    def sums(self, values: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "draws columns"]:
        """The weighted sum of each column; rows are summed by unit first where they have one."""
        if self.codes.ndim > 1:
            return self.rows() @ values
        by_unit = np.zeros((self.weights.shape[1], values.shape[1]))
        np.add.at(by_unit, self.codes, values)
        return self.weights @ by_unit

    def mean(self, values: Float[np.ndarray, " rows"]) -> Values:
        """Of the rows that have a value."""
        known = np.isfinite(values)
        total, number = self.sums(np.column_stack([np.where(known, values, 0.0), known.astype(np.float64)])).T
        with np.errstate(invalid="ignore", divide="ignore"):
            return total / number


Formula = Callable[[Draws], Values]


class Resampling:
    """Intervals of formulas over the rows of one table.

    Where there are 30 units or more, they are drawn with replacement, as many as there are, 1,000 times, and the
    interval is from the 2.5 % to the 97.5 % quantile of what the formula gives (draws in which it is not defined are
    left out). Of fewer, it is

        value ± t SE,  SE² = (n - 1) / n Σ_i (θ_i - mean θ)²,

    θ_i the formula without unit i, t the 97.5 % quantile of Student's distribution with n - 1 degrees of freedom: of a
    mean of units this is the usual interval. A score that lies between 0 and 1 has Wilson's interval of as many
    independent trials as give the same SE; where no unit differs, of n trials: it is never a point. So has such a score
    of 30 units or more that is near to 0 or 1, with fewer than 10 successes or failures among these trials: there a
    bootstrap is too narrow. A difference of two such scores that is the same in all units has the interval of Bonett
    and Price; where it is 0 in all, it is 0.

    A formula that has a standard error s in each draw, as R2 has, has an interval that also spans

        value ± s q,      q the 95 % quantile of |value in a draw - value| / (s in that draw)

    (Hall's symmetric bootstrap-t): of numbers with heavy tails, few draws hold what the largest of them do, and the
    interval of quantiles alone is too narrow.

    Args:
        units: (rows,) or (rows, several) names of the units of each row.
        seed: Of the draws. Tables of the same units have the same draws.
        learned: The methods learned from these same units, each left out in its turn: see `widened`.

    Sources: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993; Tukey, "Bias and confidence in not quite
    large samples", 1958; Wilson, "Probable inference, the law of succession, and statistical inference", 1927; Bonett
    and Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired data", 2012;
    Hall, "On symmetric bootstrap confidence intervals", 1988.
    """

    def __init__(
        self, units: Shaped[np.ndarray, "rows ..."], resamples: int = RESAMPLES, seed: int = 0, learned: bool = False
    ) -> None:
        self.learned = learned
        self.names, codes = np.unique(units, return_inverse=True)
        self.codes = codes.reshape(np.shape(units))
        self.resamples, self.seed = resamples, seed

    @property
    def units(self) -> int:
        return len(self.names)

    def estimate(
        self,
        formula: Formula,
        *,
        share: bool = False,
        paired: bool = False,
        draws: int | None = None,
        within: tuple[float, float] = (-np.inf, np.inf),
        error: Formula | None = None,
    ) -> Interval:
        """The formula on all rows, with its interval.

        Args:
            share: It lies between 0 and 1, such as an accuracy.
            paired: It is a difference of two such scores, within -1 and 1.
            draws: At most so many resamples, for a formula that takes long.
            within: Values that it can have, such as those of a correlation: the interval ends there.
            error: Its standard error in each draw.
        """
        interval = self._estimate(formula, share, paired, draws)
        if error is not None and interval.how == "bootstrap":
            half = self._half_width(formula, error, interval.value)
            ends = min(interval.low, interval.value - half), max(interval.high, interval.value + half)
            interval = replace(interval, low=ends[0], high=ends[1])
        if self.learned:
            bound = (0.0, 1.0) if share else (-1.0, 1.0) if paired else (-np.inf, np.inf)
            interval = widened(interval, bound)
        low, high = (float(np.clip(end, *within)) for end in (interval.low, interval.high))
        return replace(interval, low=low, high=high)

    def _estimate(self, formula: Formula, share: bool, paired: bool, draws: int | None) -> Interval:
        value = float(formula(Draws(self.codes, np.ones((1, self.units))))[0])
        if not np.isfinite(value) or self.units < 2:
            return Interval(value, units=self.units)
        if self.units < FEW:
            return _of_few(value, self._values(formula, [1 - np.eye(self.units)]), self.units, share, paired)
        number = self.resamples if draws is None else min(draws, self.resamples)
        values = self._values(formula, _resamples(self.units, number, self.seed, BLOCK // max(len(self.codes), 1)))
        if not values.size:
            return Interval(value, units=self.units)
        error = _more_than_rounding(float(values.std()), value)
        if share and 0 < value < 1 and error:
            trials = _trials(value, error)
            if trials * min(value, 1 - value) < SELDOM:
                ends = _wilson(value, trials, NormalDist().inv_cdf((1 + LEVEL) / 2))
                return Interval(value, *ends, self.units, "Wilson")
        if error or not (share or (paired and value)):
            low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            return Interval(value, float(low), float(high), self.units, "bootstrap")
        return _of_few(value, np.full(self.units, value), self.units, share, paired)

    def _half_width(self, formula: Formula, error: Formula, value: float) -> float:
        """Of `error`: q times the standard error; 0 where it is not defined."""
        blocks = _resamples(self.units, self.resamples, self.seed, BLOCK // max(len(self.codes), 1))
        draws = (Draws(self.codes, block) for block in blocks)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.concatenate([np.abs(formula(some) - value) / error(some) for some in draws])
        own, t = error(Draws(self.codes, np.ones((1, self.units))))[0], t[np.isfinite(t)]
        return float(own * np.quantile(t, LEVEL)) if len(t) and np.isfinite(own) else 0.0

    def _values(
        self, formula: Formula, weights: Iterable[Float[np.ndarray, "_ units"]]
    ) -> Float[np.ndarray, " defined"]:
        values = np.concatenate([formula(Draws(self.codes, block)) for block in weights])
        return values[np.isfinite(values)]


def widened(interval: Interval, bound: tuple[float, float] = (-np.inf, np.inf)) -> Interval:
    """The interval of a score of units left out, when what was learned from the others is as uncertain as they are.

    Drawing units again does not draw what was learned from them again. With n units in folds, its variance adds

        1 + 5/4 min(1, 30 / n)

    times: up to 30 units that of Nadeau and Bengio for five folds, 1 + J n_test / n_train. It falls with more of them,
    as a method that learns from more changes less when one is exchanged. `results/sets/coverage.json` has how often
    the score of new units was inside.

    Source: Nadeau and Bengio, "Inference for the generalization error", 2003.
    """
    factor = np.sqrt(1 + 1.25 * min(1.0, UNSTABLE / max(interval.units, 1)))
    ends = (interval.value + factor * (end - interval.value) for end in (interval.low, interval.high))
    low, high = (float(np.clip(end, *bound)) for end in ends)
    return replace(interval, low=low, high=high)


def _resamples(units: int, number: int, seed: int, size: int) -> Iterator[Float[np.ndarray, "draws units"]]:
    """How often each unit is drawn, some resamples at a time."""
    size = max(size, 1)
    if units * number <= KEPT:
        weights = _drawn(units, number, seed)
        yield from (weights[start : start + size] for start in range(0, number, size))
        return
    generator = np.random.default_rng(seed)
    for start in range(0, number, size):
        places = (generator.integers(units, size=units) for _ in range(min(size, number - start)))
        yield np.stack([np.bincount(drawn, minlength=units) for drawn in places]).astype(np.float64)


@lru_cache(maxsize=8)
def _drawn(units: int, resamples: int, seed: int) -> Float[np.ndarray, "draws units"]:
    chances = np.full(units, 1 / units)
    return np.random.default_rng(seed).multinomial(units, chances, size=resamples).astype(np.float64)


def _of_few(value: float, without: Float[np.ndarray, " left"], units: int, share: bool, paired: bool) -> Interval:
    """From the values without each unit, see `Resampling`."""
    n = len(without)
    if n < 2:
        return Interval(value, units=units)
    error = _more_than_rounding(float(np.sqrt((n - 1) / n * np.square(without - without.mean()).sum())), value)
    t = _student(n - 1)
    if share and 0 <= value <= 1:
        trials = _trials(value, error) if error and 0 < value < 1 else float(n)
        return Interval(value, *_wilson(value, trials, t), units, "Wilson")
    if paired and not error and value:
        # All units differ alike: with one more unit each way, p = (n |value| + 1) / (n + 2) for us and q = 1 / (n + 2)
        # against, the difference has the variance (p + q - (p - q)^2) / (n + 2).
        p, q = (n * abs(value) + 1) / (n + 2), 1 / (n + 2)
        error = float(np.sqrt((p + q - (p - q) ** 2) / (n + 2)))
    return Interval(value, value - t * error, value + t * error, units, "t")


@lru_cache(maxsize=64)
def _student(freedom: int) -> float:
    from scipy.special import stdtrit  # here: who only predicts waits for none of it

    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def _more_than_rounding(error: float, value: float) -> float:
    """The standard error of a value; 0 where it is none but that of the sums."""
    return 0.0 if error < 1e-12 * max(abs(value), 1.0) else error


def _trials(share: float, error: float) -> float:
    """How many independent trials give a share this standard error."""
    return share * (1 - share) / error**2


def _wilson(share: float, trials: float, z: float) -> tuple[float, float]:
    """The shares p of which the observed one is z standard errors sqrt(p (1 - p) / trials) away."""
    middle = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * np.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))
