"""The set transformer of cells: a cell is a multiset of genes, its vector a function of the cell alone.

    genes of the vocabulary -> one table of tokens -> PMA over each cell -> head -> z      (encoder)
    z, batch -> share of each gene -> expected counts                                      (decoder)

Counts enter as multiplicities: a gene is in the set log(1 + 10^4 c / library) times. All cells share one table of
tokens, so keys, values and scores are computed once per gene and step, and the sums of all cells are one matrix product
(`omniset.layers.set_transformer.InducedLayer.tabulate`).

What is a constant here was an option once: counts as multiplicities, tokens on the principal axes, a negative binomial,
no layers before the pooling. On Kang's cells each other choice was a tie.

`Completion` fills in what a panel or another platform leaves out, which is no zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from sklearn.decomposition import PCA
from torch import Tensor, nn

from omniset import encoders
from omniset.layers.set_transformer import InducedLayer

Values = Float[Tensor, "cells genes"]
Vectors = Float[Tensor, "cells latent"]
Measured = Bool[Tensor, "cells genes"] | None  # which genes were; None: all
PerCell = Float[Tensor, " cells"]
SCALE = 1e4  # counts per so many, before the logarithm
WIDTH = 128  # of the head's and the decoder's hidden layer
QUERIES = 8  # that pool the genes of a cell
HEADS = 4  # of the attention that pools
DROPOUT = 0.1  # of the head
CLUSTERS = 30  # of the alignment
TEMPERATURE = 0.1  # of the soft clusters
DECAY = 0.95  # of the sums over cells per step
PASSES = 3  # of filling in and computing axes anew, where some of the cells lack genes
LEAST = 1e-6  # noise of a gene, at least, relative to the mean variance of genes
RIDGE = 1.0  # cells without offset, per cluster and batch


class CellEncoder(nn.Module):
    """Counts of a cell to its vector z.

    Args:
        dim: Width of the genes' tokens, which stay as `cells.training.start_from_axes` sets them.
    """

    tokens: Tensor

    def __init__(self, genes: int, *, latent: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("tokens", torch.randn(genes, dim))
        sizes: dict[str, Any] = {"input_dim": dim, "dim": dim, "depth": 0, "num_heads": HEADS, "num_inducing": 1}
        sizes |= {"num_outputs": QUERIES, "input_layers": 0, "ffn_dim": 2 * dim}
        self.encoder = encoders.build("ust", **sizes)
        self.completion = Completion(genes, dim)
        # Means over hundreds of genes are much alike: what differs between cells is small beside what they share.
        width = QUERIES * dim
        self.standard = nn.BatchNorm1d(width)
        self.head = nn.Sequential(
            nn.LayerNorm(width), nn.Dropout(DROPOUT), nn.Linear(width, WIDTH), nn.SiLU(), nn.LayerNorm(WIDTH)
        )
        self.mean = nn.Linear(WIDTH, latent)
        nn.Linear(WIDTH, latent)  # drawn for nothing, so that a seed gives the decoder that it always gave

    @property
    def pool(self) -> InducedLayer:
        """Attention of a few queries to the genes of a cell."""
        pool = self.encoder.pool
        assert isinstance(pool, InducedLayer)
        return pool

    def table(self) -> Any:
        """Keys and values of all genes, which all cells share; made once for many of them where weights stay."""
        return self.pool.tabulate(self.encoder.embed(self.tokens))

    def head_of(self, summary: Float[Tensor, "cells outputs dim"]) -> Vectors:
        return self.mean(self.head(self.standard(summary.flatten(1))))

    def forward(self, counts: Values, library: PerCell, table: Any = None, measured: Measured = None) -> Vectors:
        """The vectors.

        Args:
            library: Sum of all counts of each cell, also of genes that are no columns here.
            table: What `table()` gave; None: made anew.
            measured: Genes that were; the others are filled in. None: all were.
        """
        table = self.table() if table is None else table
        return self.head_of(
            self.encoder.decoder(self.pool.pool_tabulated(table, self.values(counts, library, measured)))
        )

    def values(self, counts: Values, library: PerCell, measured: Measured = None) -> Values:
        """How often each gene is in a cell's multiset; of genes that were not measured what is expected."""
        values = torch.log1p(counts / library[:, None].clamp(min=torch.finfo(counts.dtype).tiny) * SCALE)
        return values if measured is None else self.completion(values, measured)


class CellDecoder(nn.Module):
    """z and batch to the share of each gene: softmax over the measured genes of W relu(LN(U [z; batch])) + b.

    Args:
        batches: Number of batches. The decoder alone knows a cell's batch, so that z need not hold it.
    """

    def __init__(self, genes: int, latent: int, batches: int) -> None:
        super().__init__()
        self.batches = batches
        self.hidden = nn.Sequential(nn.Linear(latent + batches, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU())
        self.logits = nn.Linear(WIDTH, genes)
        self.log_dispersion = nn.Parameter(torch.zeros(genes))

    def forward(self, z: Vectors, batch: Float[Tensor, "cells batches"], measured: Measured = None) -> Values:
        """Logarithms of the shares.

        Args:
            batch: One-hot, or the mean of several batches.
            measured: Genes among which the shares add up to 1. None: all.
        """
        logits = self.logits(self.hidden(torch.cat((z, batch), 1)))
        if measured is not None:
            logits = logits.masked_fill(~measured, torch.finfo(logits.dtype).min)
        return logits.log_softmax(1)


def negative_binomial_loss(
    counts: Values,
    where: tuple[Int[Tensor, " entries"], Int[Tensor, " entries"]],
    log_share: Values,
    log_dispersion: Float[Tensor, " genes"],
    measured: Measured = None,
) -> PerCell:
    """-log NB(c | mu, theta) of each cell, summed over its measured genes; mu = share * sum of the cell's counts.

    Variance is mu + mu^2 / theta (Hilbe, "Negative Binomial Regression", 2011). Most genes of a cell have no count. The
    terms of log-gamma functions vanish there, so they are computed where there are counts alone; what is left for all
    genes is one logarithm each.

    Args:
        where: Cell and gene of every count that is not 0.
    """
    cell, gene = where
    # A cell without counts has mean 0, and nothing is learned from it: its logarithm must stay finite.
    total = counts.sum(1).clamp(min=torch.finfo(counts.dtype).tiny)
    c, theta = counts[where], log_dispersion.exp()
    log_mean = log_share + total.log()[:, None]
    log_none = -F.softplus(log_mean - log_dispersion)  # log(theta / (theta + mu)), of every gene
    everywhere = theta * log_none
    everywhere = (everywhere if measured is None else everywhere.masked_fill(~measured, 0)).sum(1)
    t = theta[gene]
    there = torch.lgamma(c + t) - torch.lgamma(t) - torch.lgamma(c + 1)
    there = there + c * (log_mean[where] - log_dispersion[gene] + log_none[where])
    return -everywhere - there.new_zeros(len(counts)).index_add(0, cell, there)


class Alignment(nn.Module):
    """Soft clusters of cells, and how far in each of them the cells of a batch lie from those of all batches.

    Harmony (Korsunsky et al., "Fast, sensitive and accurate integration of single-cell data with Harmony", 2019) moves
    cells by these distances; here the loss makes the *encoder* undo them, so that a vector stays a function of
    its cell. Clusters hold z's direction; sums run over the last steps.
    """

    counts: Tensor
    sums: Tensor

    def __init__(self, latent: int, batches: int) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(CLUSTERS, latent))
        self.register_buffer("counts", torch.zeros(CLUSTERS, batches))
        self.register_buffer("sums", torch.zeros(CLUSTERS, batches, latent))

    def forward(self, z: Vectors, batch: Int[Tensor, " cells"]) -> tuple[Tensor, Tensor]:
        """The mean squared distance of cells to where they would be moved; and that of directions to their centres."""
        centres = F.normalize(self.centres, dim=1)
        distance = 2 - 2 * F.normalize(z.detach(), dim=1) @ centres.T
        share = (-distance.detach() / TEMPERATURE).softmax(1)
        with torch.no_grad():
            one_hot = F.one_hot(batch, self.counts.shape[1]).to(z.dtype)
            self.counts.mul_(DECAY).add_(share.T @ one_hot)
            self.sums.mul_(DECAY).add_(torch.einsum("nk,nb,nd->kbd", share, one_hot, z))
            total = self.counts.sum(1)
            middle = self.sums.sum(1) / total.clamp(min=1e-6)[:, None]
            # Few cells of a batch say little of where it lies: as Harmony's ridge, cells without offset are added.
            offset = (self.sums - self.counts[..., None] * middle[:, None]) / (self.counts[..., None] + RIDGE)
            target = z - torch.einsum("nk,nkd->nd", share, offset[:, batch].transpose(0, 1))
        return (z - target).square().sum(1).mean(), (share * distance).sum(1).mean()


class CellModel(nn.Module):
    """Encoder, decoder and alignment: what is trained and saved."""

    def __init__(self, genes: int, batches: int, *, latent: int, dim: int) -> None:
        super().__init__()
        self.encoder = CellEncoder(genes, latent=latent, dim=dim)
        self.decoder = CellDecoder(genes, latent, batches)
        self.alignment = Alignment(latent, batches)

    def start_from(self, other: CellModel, batches: Sequence[int | None]) -> None:
        """Take over the weights of a model of the same sizes.

        Args:
            batches: For each batch of this model, its number in the other. One that the other does not know, None,
                starts as the mean of all that it knows.
        """
        state = other.state_dict()
        name = "decoder.hidden.0.weight"
        of_z, of_batches = state[name].split([state[name].shape[1] - other.decoder.batches, other.decoder.batches], 1)
        columns = [of_batches.mean(1) if number is None else of_batches[:, number] for number in batches]
        state[name] = torch.cat((of_z, torch.stack(columns, 1)), 1)
        anew = ("alignment.counts", "alignment.sums")  # where batches lie is found anew
        state = {key: value for key, value in state.items() if not key.startswith(anew)}
        state |= {key: value for key, value in self.state_dict().items() if key.startswith(anew)}
        self.load_state_dict(state)


# ---------------------------------------------------------------------- genes that were not measured


@dataclass
class Axes:
    """Principal axes of cells' values."""

    middle: Float[np.ndarray, " genes"]  # mean
    components: Float[np.ndarray, "number genes"]  # each of length 1
    variances: Float[np.ndarray, " number"]  # of the cells along them
    rest: float  # mean variance along all other directions
    of_genes: Float[np.ndarray, " genes"]  # variance of each gene


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

    def forward(self, values: Values, measured: Bool[Tensor, "cells genes"]) -> Values:
        """The values, and what is expected of those that were not measured."""
        if (measured == measured[:1]).all():
            return self._completed(values, measured[0]) if len(values) else values
        patterns, pattern = measured.unique(dim=0, return_inverse=True)
        completed = torch.empty_like(values)
        for number, some in enumerate(patterns):
            rows = pattern == number
            completed[rows] = self._completed(values[rows], some)
        return completed

    def _completed(self, values: Values, measured: Bool[Tensor, " genes"]) -> Values:
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
