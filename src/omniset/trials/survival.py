"""Times until an event, of which some are only known to be longer than what was seen: how they are described.

`event` is whether the event was seen at `time`; else the time is that until which it had not happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Shaped

BLOCK = 1 << 22  # pairs that are looked at at once
LARGEST = 500.0  # log relative risk of which exp is taken

Times = Float[np.ndarray, " rows"]
Events = Bool[np.ndarray, " rows"]


def concordance(
    time: Times,
    event: Events,
    risk: Float[np.ndarray, " rows"],
    weights: Float[np.ndarray, "draws rows"],
    strata: Shaped[np.ndarray, " rows"] | None = None,
) -> Float64[np.ndarray, " draws"]:
    """Harrell's concordance: of the pairs whose order is known, the share in which the riskier one had the event first.

        sum over pairs (i, j) of  w_i w_j ([f_i > f_j] + 1/2 [f_i = f_j])  /  sum over pairs of  w_i w_j

    A pair is one where the event of i was seen and t_i < t_j, or t_i = t_j and the event of j was not seen. Source:
    Harrell, Califf, Pryor, Lee and Rosati, "Evaluating the yield of medical tests", 1982.

    Args:
        risk: f, of any scale.
        weights: w, how often each row is drawn.
        strata: Rows are paired within a stratum only, as where risks of others are by another model.

    Returns:
        NaN where there is no pair.
    """
    right, pairs = np.zeros(len(weights)), np.zeros(len(weights))
    for rows in _strata(strata, len(time)):
        t, seen, f, w = time[rows], event[rows], risk[rows], weights[:, rows]
        first = np.flatnonzero(seen)
        size = max(BLOCK // max(len(rows), 1), 1)
        for start in range(0, len(first), size):
            i = first[start : start + size]
            known = (t[i, None] < t) | ((t[i, None] == t) & ~seen)
            better = np.where(known, np.sign(f[i, None] - f), 0.0)
            pairs += (w[:, i] * (w @ known.T)).sum(1)
            right += (w[:, i] * (w @ better.T)).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return 0.5 + 0.5 * right / pairs


def _strata(strata: Shaped[np.ndarray, " rows"] | None, rows: int) -> Iterator[Int[np.ndarray, " some"]]:
    if strata is None:
        yield np.arange(rows)
        return
    order = np.argsort(strata, kind="stable")
    yield from np.split(order, np.flatnonzero(strata[order][1:] != strata[order][:-1]) + 1)


@dataclass(frozen=True)
class Steps:
    """A function that changes at some times: `values[i]` from `times[i]` on, `start` before the first."""

    times: Float64[np.ndarray, " times"]
    values: Float64[np.ndarray, " times"]
    start: float

    def __call__(self, at: Float[np.ndarray, "*some"]) -> Float64[np.ndarray, "*some"]:
        return np.concatenate([[self.start], self.values])[np.searchsorted(self.times, at, side="right")]


def kaplan_meier(time: Times, event: Events) -> Steps:
    """The share that is without the event after t: product over the times s <= t of 1 - d(s) / n(s).

    d(s) events are seen at s, n(s) are at risk: their times are s or later. Source: Kaplan and Meier, "Nonparametric
    estimation from incomplete observations", 1958.
    """
    times, events, at_risk = _by_time(time, event, np.ones(len(time)), np.ones(len(time)))
    return Steps(times, np.cumprod(1 - events / at_risk), 1.0)


def breslow(
    time: Times, event: Events, risk: Float[np.ndarray, " rows"], weights: Float[np.ndarray, " rows"] | None = None
) -> Steps:
    """The cumulative baseline hazard of risks: H(t) = sum over the times s <= t of  sum_D(s) w / sum_R(s) w exp f.

    D(s) have their event at s, R(s) are at risk. The survival function of a set with the log relative risk f is
    exp(-H(t) exp f). Source: Breslow's contribution to the discussion of Cox, "Regression models and life-tables",
    1972. With f = 0 it is the estimate of Nelson, 1969, and Aalen, 1978.
    """
    w = np.ones(len(time)) if weights is None else weights.astype(np.float64)
    times, events, at_risk = _by_time(time, event, w, w * np.exp(np.clip(risk, -LARGEST, LARGEST)))
    return Steps(times, np.cumsum(events / at_risk), 0.0)


def uncensored(time: Times, event: Events) -> Steps:
    """G, the chance of not being censored up to t: Kaplan and Meier's estimate with censoring as the event.

    Of sets with one time, those whose event was seen count as gone before the others are censored.
    """
    times, at = np.unique(time.astype(np.float64), return_inverse=True)
    seen, lost = (np.bincount(at, kind.astype(np.float64), len(times)) for kind in (event, ~event))
    at_risk = (seen + lost)[::-1].cumsum()[::-1] - seen
    there = lost > 0
    return Steps(times[there], np.cumprod(1 - lost[there] / at_risk[there]), 1.0)


def integrated_brier(
    time: Times, event: Events, risk: Float[np.ndarray, " rows"], hazard: Steps
) -> Float64[np.ndarray, " rows"]:
    """Of each row, the squared error of its survival function S(t) = exp(-H(t) exp f), in the mean over time.

        b_i = 1 / tau integral from 0 to tau of
                  S_i(t)^2 [t_i <= t, event seen] / G(t_i-)  +  (1 - S_i(t))^2 [t_i > t] / G(t)  dt

    The mean over rows is the integrated Brier score; 1/4 is that of S = 1/2. By G, estimated from these rows, they
    stand in for those that were censored, whose event is not known. tau is the last time at which an event was seen,
    here and where H was learned: later, H is not known. All are step functions, so that the integral is exact.
    Source: Graf, Schmoor, Sauerbrei and Schumacher, "Assessment and comparison of prognostic classification schemes for
    survival data", 1999.

    Args:
        risk: f, log relative risks.
        hazard: H, cumulative, of f = 0.

    Returns:
        NaN where there is no event after time 0.
    """
    end = min(time[event].max(initial=0.0), hazard.times.max(initial=0.0))
    if end <= 0:
        return np.full(len(time), np.nan)
    still = uncensored(time, event)
    edges = np.unique(np.concatenate([[0.0, end], time, hazard.times, still.times]))
    edges = edges[edges <= end]
    start, width = edges[:-1], np.diff(edges)
    before = np.concatenate([[1.0], still.values])[np.searchsorted(still.times, time, side="left")]  # G(t_i-)
    relative, h, g = np.exp(np.clip(risk, -LARGEST, LARGEST)), hazard(start), still(start)
    out = np.empty(len(time))
    size = max(BLOCK // len(start), 1)
    for first in range(0, len(time), size):
        rows = slice(first, first + size)
        alive = np.exp(-relative[rows, None] * h)
        waiting = start < time[rows, None]
        gone = np.where(event[rows, None], alive**2 / before[rows, None], 0.0)
        out[rows] = np.where(waiting, (1 - alive) ** 2 / g, gone) @ width / end
    return out


def _by_time(
    time: Times, event: Events, counted: Float64[np.ndarray, " rows"], exposed: Float64[np.ndarray, " rows"]
) -> tuple[Float64[np.ndarray, " times"], Float64[np.ndarray, " times"], Float64[np.ndarray, " times"]]:
    """The times at which events were seen, how much these count, and how much those count that are at risk."""
    times, at = np.unique(time.astype(np.float64), return_inverse=True)
    events = np.bincount(at, counted * event, len(times))
    at_risk = np.bincount(at, exposed, len(times))[::-1].cumsum()[::-1]
    there = events > 0
    return times[there], events[there], at_risk[there]
