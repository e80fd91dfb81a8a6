"""Genes that were not measured, from those that were: what a panel or another platform leaves out is no zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float
from sklearn.decomposition import PCA
from torch import Tensor, nn

PASSES = 3  # of filling in and computing axes anew, where some of the cells lack genes
LEAST = 1e-6  # noise of a gene, at least, relative to the mean variance of genes


@dataclass
class Axes:
    """Principal axes of cells' values.

    Attributes:
        middle: (genes,) mean.
        components: (number, genes) of length 1.
        variances: (number,) of the cells along them.
        rest: Mean variance along all other directions.
        of_genes: (genes,) variance of each gene.
    """

    middle: Float[np.ndarray, " genes"]
    components: Float[np.ndarray, "number genes"]
    variances: Float[np.ndarray, " number"]
    rest: float
    of_genes: Float[np.ndarray, " genes"]


def principal_axes(
    values: sp.csr_array, measured: Bool[np.ndarray, "cells genes"] | None, number: int, seed: int
) -> Axes | None:
    """Of values, at most `number` axes. None: there are none.

    Args:
        measured: Which values were; the others are filled in by what these axes say of them, a few times over, starting
            at the means of genes. None: all were.
    """
    number = min(number, min(values.shape) - 1)
    if number < 1 or not values.nnz:
        return None
    cells = np.full(values.shape[1], len(values.indptr) - 1) if measured is None else measured.sum(0).clip(1)
    middle = values.sum(0) / cells
    of_genes = np.maximum(values.power(2).sum(0) / cells - middle**2, 0)

    def axes_of(some: sp.csr_array | np.ndarray) -> Axes:
        model = PCA(number, svd_solver="arpack", random_state=seed).fit(some)
        rest = float(model.noise_variance_)
        return Axes(model.mean_, model.components_, model.explained_variance_, rest, of_genes)

    if measured is None:
        return axes_of(values)
    known = values.toarray()
    axes = axes_of(np.where(measured, known, middle))
    for _ in range(PASSES):
        completion = Completion(values.shape[1], number).double()
        completion.learn(axes)
        axes = axes_of(completion(torch.from_numpy(known), torch.from_numpy(measured)).numpy())
    return axes


class Completion(nn.Module):
    """Values of genes that were not measured in a cell, by a model of factors.

    Values are taken for v = mu + W x + e with x ~ N(0, 1) and e ~ N(0, Psi), Psi diagonal. Of the genes M that were not
    measured is then expected

        E[v_M | v_P] = mu_M + W_M (W_P' Psi_P^-1 W_P + 1)^-1 W_P' Psi_P^-1 (v_P - mu_P),

    with P those that were. As multiplicities are not negative, what falls below 0 is 0, and the others are scaled so
    that their sum stays. W has the principal axes, as long as the cells' deviations along them less those along all
    other axes (Tipping and Bishop, "Probabilistic principal component analysis", 1999); Psi is what is left of each
    gene's variance.

    Measured values stay as they are, and so does a cell that has none above 0. With nothing learned, what is not
    measured is 0.

    Args:
        genes: Number of genes.
        width: Of x.
    """

    middle: Tensor
    weights: Tensor
    noise: Tensor

    def __init__(self, genes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("middle", torch.zeros(genes))
        self.register_buffer("weights", torch.zeros(genes, width))
        self.register_buffer("noise", torch.ones(genes))

    def learn(self, axes: Axes) -> None:
        """Take up axes; what is left of the width is 0."""
        weights = axes.components.T * np.sqrt(np.maximum(axes.variances - axes.rest, 0))
        noise = np.maximum(axes.of_genes - np.square(weights).sum(1), LEAST * axes.of_genes.mean())
        self.middle.copy_(torch.from_numpy(axes.middle))
        self.weights.zero_()[:, : weights.shape[1]] = torch.from_numpy(weights).to(self.weights)
        self.noise.copy_(torch.from_numpy(noise)).clamp_(min=torch.finfo(torch.float32).tiny)

    def forward(
        self, values: Float[Tensor, "cells genes"], measured: Bool[Tensor, "cells genes"]
    ) -> Float[Tensor, "cells genes"]:
        """The values, and what is expected of those that were not measured."""
        if (measured == measured[:1]).all():
            return self._completed(values, measured[0]) if len(values) else values
        patterns, pattern = measured.unique(dim=0, return_inverse=True)
        completed = torch.empty_like(values)
        for number, some in enumerate(patterns):
            rows = pattern == number
            completed[rows] = self._completed(values[rows], some)
        return completed

    def _completed(
        self, values: Float[Tensor, "cells genes"], measured: Bool[Tensor, " genes"]
    ) -> Float[Tensor, "cells genes"]:
        if measured.all():
            return values
        weights = self.weights[measured]
        weighed = weights.T / self.noise[measured]
        apart = weighed @ (values[:, measured] - self.middle[measured]).T
        # These few numbers in double precision: directions in which no gene is noisy are next to singular.
        precision = (weighed @ weights).double().cpu()
        precision.diagonal().add_(1)
        x = torch.linalg.solve(precision, apart.double().cpu()).to(values)
        expected = self.middle[~measured] + x.T @ self.weights[~measured].T
        above = expected.clamp(min=0)
        scale = expected.sum(1).clamp(min=0) / above.sum(1).clamp(min=torch.finfo(values.dtype).tiny)
        completed = values.clone()
        completed[:, ~measured] = above * (scale * (values > 0).any(1))[:, None]
        return completed
