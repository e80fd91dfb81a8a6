"""How a fit ended: whether its loss had settled and its batches are mixed, which can be said without labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from omniset.cells.metrics import LISI_NEIGHBOURS, lisi, neighbours
from omniset.report.blocks import many

SETTLED = 0.01  # relative change of the loss in the last tenth of the epochs
EPOCHS = 10  # at least, to tell


def batches_near(points: Float[np.ndarray, "cells dim"], codes: Int[np.ndarray, " cells"]) -> float:
    """How many batches the neighbours of a cell are of, in effect: mean of `omniset.cells.metrics.lisi`."""
    return float(lisi(neighbours(points.astype(np.float64), LISI_NEIGHBOURS), codes).mean())


def of_batches(
    before: Float[np.ndarray, "cells components"],
    after: Float[np.ndarray, "cells dim"],
    codes: Int[np.ndarray, " cells"],
) -> str:
    """A sentence on how far the batches are mixed.

    Args:
        before: Principal components of the cells.
        after: Their vectors.
        codes: Their batches.
    """
    numbers = np.unique(codes, return_inverse=True)[1]
    shares = np.bincount(numbers) / len(numbers)
    return (
        f"batches among the neighbours of a cell, in effect: {batches_near(before, numbers):.2f} by principal "
        f"components, {batches_near(after, numbers):.2f} by the vectors, {1 / np.square(shares).sum():.2f} among all "
        "cells"
    )


def of_loss(history: Sequence[dict[str, Any]]) -> str:
    """A sentence on whether the loss of training had settled: it changed by at most 1 % over the last epochs.

    The mean over the last tenth of the epochs is compared with that over the tenth before.
    """
    losses = [epoch["train_loss"] for epoch in history if epoch.get("train_loss") is not None]
    if len(losses) < EPOCHS:
        return f"whether the loss had settled cannot be told from {many(len(losses), 'epoch')}, {EPOCHS} are needed"
    tenth = len(losses) // 10
    last, earlier = np.mean(losses[-tenth:]), np.mean(losses[-2 * tenth : -tenth])
    change = abs(last - earlier) / max(abs(earlier), np.finfo(float).tiny)
    if change <= SETTLED:
        return f"the loss settled: it changed by {change:.1%} in the last tenth of the epochs"
    return f"the loss had not settled, more epochs may help: it changed by {change:.1%} in the last tenth of them"
