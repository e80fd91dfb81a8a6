"""How many families a complete genome has: their expected number, and an interval of 95 %."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float


def size_interval(log_odds: Float[np.ndarray, " families"], below: float, above: float) -> tuple[float, float, float]:
    """Expected number of families, and its interval of 95 %, from expected - below s to expected + above s, where
    s = sqrt(sum p (1 - p)) is the standard deviation of independent families. They are not: below and above come
    from validation genomes, see `deviations`.
    """
    p = 1 / (1 + np.exp(-log_odds))
    expected, deviation = float(p.sum()), float(np.sqrt((p * (1 - p)).sum()))
    return expected, max(expected - below * deviation, 0.0), min(expected + above * deviation, float(len(p)))


def deviations(
    probability: Float[np.ndarray, "genomes families"], truth: Bool[np.ndarray, "genomes families"]
) -> tuple[float, float]:
    """Below and above: quantiles of 97.5 % of how far sizes lie from what is expected, in standard deviations; at least
    1.96.
    """
    p = probability
    off = (truth.sum(1) - p.sum(1)) / np.sqrt((p * (1 - p)).sum(1).clip(1e-6))
    below, above = (max(float(np.quantile(side, 0.975)), 1.96) for side in (-off, off))
    return below, above
