"""What a cell's counts are worth under the decoder, so that zeros cost next to nothing.

Most genes of a cell have no count. The terms of log-gamma functions vanish there, so they are computed where there are
counts alone; what is left for all genes is one logarithm each.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from omniset.cells.model import SCALE, depth_normalised

Cells = Float[Tensor, " cells"]


def loss(
    kind: str,
    counts: Float[Tensor, "cells genes"],
    where: tuple[Int[Tensor, " entries"], Int[Tensor, " entries"]],
    log_share: Float[Tensor, "cells genes"],
    log_dispersion: Float[Tensor, " genes"],
    measured: Bool[Tensor, "cells genes"] | None = None,
) -> Cells:
    """Per cell, summed over its measured genes; mu = share * sum of the cell's counts.

        nb:       -log NB(c | mu, theta),  variance mu + mu^2 / theta   (Hilbe, "Negative Binomial Regression", 2011)
        poisson:  -log Poisson(c | mu)
        mse:      (log(1 + 10^4 share) - log(1 + 10^4 c / sum c))^2

    Args:
        where: Cell and gene of every count that is not 0.
        log_dispersion: log theta, for "nb".
    """
    if kind == "nb":
        return _negative_binomial(counts, where, log_share, log_dispersion, measured)
    return _poisson(counts, where, log_share) if kind == "poisson" else _squared(counts, log_share, measured)


def _negative_binomial(
    counts: Float[Tensor, "cells genes"],
    where: tuple[Int[Tensor, " entries"], Int[Tensor, " entries"]],
    log_share: Float[Tensor, "cells genes"],
    log_dispersion: Float[Tensor, " genes"],
    measured: Bool[Tensor, "cells genes"] | None,
) -> Cells:
    cell, gene = where
    theta = log_dispersion.exp()
    log_mean = log_share + _library(counts).log()[:, None]
    # log(theta / (theta + mu)), of every gene
    log_none = -torch.nn.functional.softplus(log_mean - log_dispersion)
    everywhere = theta * log_none
    if measured is not None:
        everywhere = everywhere.masked_fill(~measured, 0)
    c, t = counts[where], theta[gene]
    there = torch.lgamma(c + t) - torch.lgamma(t) - torch.lgamma(c + 1)
    there = there + c * (log_mean[where] - log_dispersion[gene] + log_none[where])
    return -everywhere.sum(1) - _summed(there, cell, len(counts))


def _poisson(
    counts: Float[Tensor, "cells genes"],
    where: tuple[Int[Tensor, " entries"], Int[Tensor, " entries"]],
    log_share: Float[Tensor, "cells genes"],
) -> Cells:
    total = _library(counts)
    c = counts[where]
    there = c * (log_share[where] + total.log()[where[0]]) - torch.lgamma(c + 1)
    return total - _summed(there, where[0], len(counts))  # shares add up to 1: the means to the total


def _squared(
    counts: Float[Tensor, "cells genes"],
    log_share: Float[Tensor, "cells genes"],
    measured: Bool[Tensor, "cells genes"] | None,
) -> Cells:
    each = (torch.log1p(SCALE * log_share.exp()) - depth_normalised(counts, counts.sum(1))).square()
    return (each if measured is None else each.masked_fill(~measured, 0)).sum(1)


def _library(counts: Float[Tensor, "cells genes"]) -> Cells:
    # A cell without counts has mean 0, and nothing is learned from it: its logarithm must stay finite.
    return counts.sum(1).clamp(min=torch.finfo(counts.dtype).tiny)


def _summed(values: Float[Tensor, " entries"], cell: Int[Tensor, " entries"], cells: int) -> Cells:
    return values.new_zeros(cells).index_add(0, cell, values)
