"""When a cell is of no known type, and how many of unknown ones are found.

`Novelty`: how strange a cell is beside known cells that were kept back, as a share of these, and a bound with a stated
error. `type_left_out`: what becomes of cells of a type that the reference has not. A stated error for known types says
nothing on how many cells of unknown ones are found: that depends on how near to these the nearest known type is. So it
is measured: a logistic regression learns from the reference without the type, and its bound comes from cells kept back
of all others. The cells of the type that were kept back with them are new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from scipy.stats import median_abs_deviation

from omniset.cells.classifiers import Classifiers, Codes, Numbers, PerCell, Values

SHRINKAGE = 30  # cells of a type that weigh as much as all
TAIL = 0.1  # share of the known cells from which on the tail is taken for exponential
FLOOR = 1e-6
CELLS = 2_000  # of the reference that are learned from without a type, at most; rare types lose none
HELD = 10  # cells of a type kept back, at least
TYPES = 20  # left out, at most: those with most cells kept back


@dataclass
class Novelty:
    """What is usual.

    Each number x of a cell that was called k becomes u = (x - m_k) / s_k, m_k and s_k the median and the median
    deviation of known cells that were called k, drawn towards those of all known cells as by 30 cells more. A cell's
    strangeness is the sum over its numbers of -log of the share of known cells with at least this u; beyond their 90 %
    quantile the share falls exponentially, as fast as the mean excess says, so that the strangest are told apart.

    Attributes:
        known: Numbers of known cells that were kept back: not learned from.
        calls: What they were called.
        bound: Strangeness above which a cell is unknown.
    """

    known: Numbers
    calls: Codes
    bound: float = np.inf

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


def types_left_out(numbers: Int[np.ndarray, "types parts"]) -> list[tuple[int, int]]:
    """Which types are left out, and the part of the reference that is kept back then.

    Args:
        numbers: Of cells of each type in each part that is kept back.
    """
    most = numbers.max(1)
    order = np.argsort(-most, kind="stable")[:TYPES]
    return [(int(code), int(numbers[code].argmax())) for code in np.sort(order) if most[code] >= HELD]


def type_left_out(
    code: int, classifiers: Classifiers, held: Values, of_held: Codes, batches: Codes, error: float
) -> dict[str, Any]:
    """A type left out.

    Args:
        code: Number of the type.
        classifiers: What the reference teaches without it.
        held: Log-normalised genes of the cells kept back, of which some are of another type.
        of_held: Their types.
        batches: Their batches.
        error: Share of known cells that may be unknown, in each batch.

    Returns:
        `type`, its number; `cells` of it that were kept back; `unknown`, the share of these that is called unknown;
        `called`, the number of the type that most of the others are called.
    """
    new = of_held == code
    with torch.no_grad():
        calls = classifiers.genes(torch.from_numpy(held)).argmax(1).numpy()
    numbers = classifiers.strangeness(held, calls)
    novelty = Novelty.learned(numbers[~new], calls[~new], batches[~new], error)
    unknown = novelty.unknown(numbers[new], calls[new])
    others = calls[new] if unknown.all() else calls[new][~unknown]
    called, share = int(np.bincount(others).argmax()), float(unknown.mean())
    return {"type": code, "cells": int(new.sum()), "unknown": share, "called": called}
