"""When a cell is of no known type: how strange it is beside known cells that were kept back, as a share of these, and a
bound with a stated error. How many cells of unknown types are found depends on how near to these the nearest known type
is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64
from scipy.stats import median_abs_deviation

from omniset.cells.classifiers import Codes, Numbers, PerCell

SHRINKAGE = 30  # cells of a type that weigh as much as all
TAIL = 0.1  # share of the known cells from which on the tail is taken for exponential
FLOOR = 1e-6


@dataclass
class Novelty:
    """What is usual.

    Each number x of a cell that was called k becomes u = (x - m_k) / s_k, m_k and s_k the median and the median
    deviation of known cells that were called k, drawn towards those of all known cells as by 30 cells more. A cell's
    strangeness is the sum over its numbers of -log of the share of known cells with at least this u; beyond their 90 %
    quantile the share falls exponentially, as fast as the mean excess says, so that the strangest are told apart.
    """

    known: Numbers  # numbers of known cells that were kept back: not learned from
    calls: Codes  # what they were called
    bound: float = np.inf  # strangeness above which a cell is unknown

    @classmethod
    def learned(cls, known: Numbers, calls: Codes, batches: Codes, error: float) -> Novelty:
        """With a bound that in each batch kept back calls at most a share of its known cells unknown."""
        strangeness = cls(known, calls).strangeness(known, calls)
        shares = [
            np.quantile(strangeness[batches == batch], 1 - error, method="higher") for batch in np.unique(batches)
        ]
        return cls(known, calls, float(max(shares)))

    def strangeness(self, numbers: Numbers, calls: Codes) -> PerCell:
        total = np.zeros(len(numbers))
        for column in range(self.known.shape[1]):
            usual, given = self._relative(column, self.known, self.calls), self._relative(column, numbers, calls)
            total += _surprise(usual, given)
        return total

    def unknown(self, numbers: Numbers, calls: Codes) -> Bool[np.ndarray, " cells"]:
        return self.strangeness(numbers, calls) > self.bound

    def share(self, strangeness: PerCell) -> PerCell:
        """Of known cells kept back, that are at least as strange; of n such cells 1 / (n + 1) at least."""
        usual = np.sort(self.strangeness(self.known, self.calls))
        return (len(usual) - np.searchsorted(usual, strangeness, side="left") + 1) / (len(usual) + 1)

    def _relative(self, column: int, numbers: Numbers, calls: Codes) -> PerCell:
        known, values = self.known[:, column].astype(np.float64), numbers[:, column].astype(np.float64)
        of_all, width = np.median(known), median_abs_deviation(known)
        relative = np.zeros(len(values))
        for code in np.unique(calls):
            of_type = known[self.calls == code]
            weight = len(of_type) / (len(of_type) + SHRINKAGE)
            middle = weight * np.median(of_type) + (1 - weight) * of_all if len(of_type) else of_all
            spread = weight * median_abs_deviation(of_type) + (1 - weight) * width if len(of_type) else width
            here = calls == code
            relative[here] = (values[here] - middle) / max(spread, FLOOR)
        return relative


def _surprise(usual: Float64[np.ndarray, " known"], given: PerCell) -> PerCell:
    """-log of the share of usual values that are at least as large."""
    usual = np.sort(usual)
    share = (len(usual) - np.searchsorted(usual, given, side="left") + 1) / (len(usual) + 1)
    start = np.quantile(usual, 1 - TAIL)
    excess = usual[usual > start] - start
    if not len(excess) or excess.mean() <= FLOOR:
        return -np.log(share)
    return np.where(given > start, -np.log(TAIL) + (given - start) / excess.mean(), -np.log(share))
