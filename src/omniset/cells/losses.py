"""What a cell's counts are worth under the decoder, so that zeros cost next to nothing.

Most genes of a cell have no count. The terms of log-gamma functions vanish there, so they are computed where there are
counts alone; what is left for all genes is one logarithm each.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from omniset.cells.model import SCALE, depth_normalised


def loss(
    kind: str,
    counts: Float[Tensor, "cells genes"],
    where: tuple[Int[Tensor, " entries"], Int[Tensor, " entries"]],
    log_share: Float[Tensor, "cells genes"],
    log_dispersion: Float[Tensor, " genes"],
    measured: Bool[Tensor, "cells genes"] | None = None,
) -> Float[Tensor, " cells"]:
    """Per cell, summed over its measured genes; mu = share * sum of the cell's counts.

        nb:       -log NB(c | mu, theta),  variance mu + mu^2 / theta   (Hilbe, "Negative Binomial Regression", 2011)
        poisson:  -log Poisson(c | mu)
        mse:      (log(1 + 10^4 share) - log(1 + 10^4 c / sum c))^2

    Args:
        where: Cell and gene of every count that is not 0.
        log_dispersion: log theta, for "nb".
    """
    if kind == "mse":
        error = torch.log1p(SCALE * log_share.exp()) - depth_normalised(counts, counts.sum(1))
        return _over_measured(error.square(), measured)
    cell, gene = where
    # A cell without counts has mean 0, and nothing is learned from it: its logarithm must stay finite.
    total = counts.sum(1).clamp(min=torch.finfo(counts.dtype).tiny)
    c = counts[where]
    if kind == "poisson":
        there = c * (log_share[where] + total.log()[cell]) - torch.lgamma(c + 1)
        everywhere = -total  # shares add up to 1: the means to the total
    else:
        theta = log_dispersion.exp()
        log_mean = log_share + total.log()[:, None]
        # log(theta / (theta + mu)), of every gene
        log_none = -torch.nn.functional.softplus(log_mean - log_dispersion)
        everywhere = _over_measured(theta * log_none, measured)
        t = theta[gene]
        there = torch.lgamma(c + t) - torch.lgamma(t) - torch.lgamma(c + 1)
        there = there + c * (log_mean[where] - log_dispersion[gene] + log_none[where])
    return -everywhere - there.new_zeros(len(counts)).index_add(0, cell, there)


def _over_measured(
    values: Float[Tensor, "cells genes"], measured: Bool[Tensor, "cells genes"] | None
) -> Float[Tensor, " cells"]:
    return (values if measured is None else values.masked_fill(~measured, 0)).sum(1)
