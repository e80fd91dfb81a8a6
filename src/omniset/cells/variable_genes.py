"""Which genes vary most for their mean, out of sums that one pass over the cells makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int, Int64

from omniset.cells.data import Cells
from omniset.runs.progress import Progress

COUNTS_PER_CELL = 1e4
BINS = 20  # of mean expression
TOGETHER = 512  # cells read at a time


@dataclass
class Moments:
    """Sums over the cells of a batch of their normalised counts, 10^4 count / total of the cell."""

    cells: int  # how many
    sums: Float[np.ndarray, " genes"]
    squares: Float[np.ndarray, " genes"]  # sums of squares

    @classmethod
    def none(cls, genes: int) -> Moments:
        """Of no cells yet."""
        return cls(0, np.zeros(genes), np.zeros(genes))

    def of_genes(self, genes: Int[np.ndarray, " some"]) -> Moments:
        return Moments(self.cells, self.sums[genes], self.squares[genes])

    def add(self, counts: sp.csr_array) -> None:
        """Some more cells."""
        values = normalised(counts)
        self.cells += values.shape[0]
        genes = len(self.sums)
        self.sums += np.bincount(values.indices, values.data, minlength=genes)
        self.squares += np.bincount(values.indices, values.data**2, minlength=genes)


def survey(
    cells: Cells, codes: Int[np.ndarray, " cells"], rows: Int[np.ndarray, " rows"], progress: bool
) -> tuple[Int64[np.ndarray, " genes"], list[Moments]]:
    """In how many of these cells each gene has a count, and the moments of each batch."""
    seen = np.zeros(len(cells.genes), dtype=np.int64)
    moments = [Moments.none(len(seen)) for _ in range(int(codes[rows].max()) + 1)]
    with Progress("choosing genes", len(rows), progress, unit="cells") as bar:
        for start in range(0, len(rows), TOGETHER):
            some = rows[start : start + TOGETHER]
            counts = cells.take(some)
            seen += np.bincount(counts.indices[counts.data > 0], minlength=len(seen))
            for batch in np.unique(codes[some]):
                moments[batch].add(counts[codes[some] == batch])
            bar.at(min(start + TOGETHER, len(rows)))
    return seen, moments


def normalised(counts: sp.csr_array, library: Float[np.ndarray, " cells"] | None = None) -> sp.csr_array:
    """10^4 count / total of the cell, in float64; a cell without counts stays 0.

    Args:
        library: Totals, where they are those of more genes than these. None: of these genes.
    """
    totals = counts.sum(1, dtype=np.float64) if library is None else library
    factor = np.divide(COUNTS_PER_CELL, totals, out=np.zeros(len(totals)), where=totals > 0)
    values = sp.csr_array(counts, dtype=np.float64, copy=True)
    values.data *= np.repeat(factor, np.diff(values.indptr))
    return values


def log_normalised(counts: sp.csr_array, library: Float[np.ndarray, " cells"] | None = None) -> sp.csr_array:
    """log(1 + 10^4 count / total of the cell), see `normalised`."""
    values = normalised(counts, library)
    values.data = np.log1p(values.data)
    return values


def most_variable(batches: Sequence[Moments], number: int) -> Int[np.ndarray, " chosen"]:
    """Positions, ascending, of the genes whose normalised counts vary most for their mean.

    Dispersion is log(variance / mean). Within 20 bins of log(1 + mean), of equal width, it is taken minus the mean of
    its bin and divided by its standard deviation; a gene alone in its bin gets 1 (Satija et al., "Spatial
    reconstruction of single-cell gene expression data", 2015; the "seurat" flavor that scanpy has as default). With
    several batches genes are ranked by the number of batches in which they are among the first, and then by their mean
    over batches, 0 where not expressed. Batches of one cell have no say.
    """
    genes = len(batches[0].sums)
    if genes <= number:
        return np.arange(genes)
    chosen, scores = [], []
    for moments in batches:
        if moments.cells < 2:
            continue
        there = moments.sums > 0 if len(batches) > 1 else np.ones(genes, dtype=bool)
        score = np.zeros(genes)
        score[there] = _dispersion(moments, there)
        ranked = np.where(there & ~np.isnan(score), score, -np.inf)
        first = np.argsort(-ranked, kind="stable")[:number]
        chosen.append(np.isin(np.arange(genes), first[ranked[first] > -np.inf]))
        scores.append(score)
    if not scores:
        return np.arange(number)
    defined = ~np.isnan(scores)
    total = np.where(defined, scores, 0).sum(0)
    mean = np.where(defined.any(0), total / np.maximum(defined.sum(0), 1), -np.inf)
    order = np.lexsort((np.arange(genes), -mean, -np.sum(chosen, 0)))
    return np.sort(order[:number])


def _dispersion(moments: Moments, there: np.ndarray) -> Float[np.ndarray, " genes"]:
    """Of each gene relative to its bin; NaN for a gene that does not vary."""
    cells = moments.cells
    mean = moments.sums[there] / cells
    variance = (moments.squares[there] - cells * mean**2) / (cells - 1)
    varies = variance > 1e-12 * mean**2  # what is left of a constant is rounding
    dispersion = np.full(len(mean), np.nan)
    dispersion[varies] = np.log(variance[varies] / mean[varies])
    level = np.log1p(mean)
    if not len(level):
        return dispersion
    low, high = level.min(), level.max()
    # Bins are closed on the right; the least value is in the first.
    edges = np.linspace(low, high, BINS + 1)[1:-1]
    which = np.searchsorted(edges, level, side="left") if high > low else np.zeros(len(level), dtype=np.int64)
    scores = np.full(len(mean), np.nan)
    for b in np.unique(which[varies]):
        of_bin = (which == b) & varies
        among = dispersion[of_bin]
        if len(among) == 1:
            scores[of_bin] = 1.0
        elif (spread := among.std(ddof=1)) > 0:
            scores[of_bin] = (among - among.mean()) / spread
    return scores
