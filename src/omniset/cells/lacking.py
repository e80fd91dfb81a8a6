"""What becomes of cells of a type that the reference lacks: each type is left out of it in its turn.

A stated error for known types says nothing on how many cells of unknown ones are found: that depends on how near to
these the nearest known type is. So it is measured: a logistic regression learns from the reference without the type,
and its bound comes from cells kept back of all others. The cells of the type that were kept back with them are new.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int

from omniset.cells.heads import Heads
from omniset.cells.tails import Tails

CELLS = 2_000  # of the reference that are learned from without a type, at most; rare types lose none
HELD = 10  # cells of a type kept back, at least
TYPES = 20  # left out, at most: those with most cells kept back

Codes = Int[np.ndarray, " cells"]


@dataclass(frozen=True)
class Lacking:
    """One type left out.

    Attributes:
        type: Its number.
        cells: Of it that were kept back.
        unknown: Share of these that is called unknown.
        called: The number of the type that most of the others are called.
    """

    type: int
    cells: int
    unknown: float
    called: int


def types_left_out(numbers: Int[np.ndarray, "types parts"]) -> list[tuple[int, int]]:
    """Which types are left out, and the part of the reference that is kept back then.

    Args:
        numbers: Of cells of each type in each part that is kept back.
    """
    most = numbers.max(1)
    order = np.argsort(-most, kind="stable")[:TYPES]
    return [(int(code), int(numbers[code].argmax())) for code in np.sort(order) if most[code] >= HELD]


def left_out(
    code: int,
    values: Float32[np.ndarray, "rows genes"],
    y: Int[np.ndarray, " rows"],
    held: Float32[np.ndarray, "cells genes"],
    of_held: Codes,
    batches: Codes,
    types: int,
    error: float,
    seed: int,
) -> Lacking | None:
    """A type left out. None: there is nothing else to learn from, or to compare with.

    Args:
        code: Number of the type.
        values: Log-normalised genes of the reference without it.
        y: Numbers of the types there.
        held: Genes of the cells kept back.
        of_held: Their types.
        batches: Their batches.
        types: How many there are.
        error: Share of known cells that may be unknown, in each batch.
    """
    new = of_held == code
    if len(np.unique(y)) < 2 or new.all():
        return None
    heads = Heads.learned(values, np.zeros((len(values), 1), dtype=np.float32), y, types, seed)  # vectors have no part
    with torch.no_grad():
        calls = heads.genes(torch.from_numpy(held)).argmax(1).numpy()
    numbers = heads.strangeness(held, calls)
    tails = Tails.learned(numbers[~new], calls[~new], batches[~new], error)
    unknown = tails.unknown(numbers[new], calls[new])
    others = calls[new] if unknown.all() else calls[new][~unknown]
    return Lacking(code, int(new.sum()), float(unknown.mean()), int(np.bincount(others).argmax()))
