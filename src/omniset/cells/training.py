"""Training of cells: blocks as they come from files, genes hidden from the input, the losses of z, and how it ended."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from omniset.cells.data import Cells
from omniset.cells.model import CellEncoder, CellModel, negative_binomial_loss, principal_axes
from omniset.cells.variable_genes import log_normalised
from omniset.report.blocks import many
from omniset.training.data import EpochSampler, Key
from omniset.training.fit import TrainingModule

Codes = Int[np.ndarray, " cells"]
Vectors = Float[np.ndarray, "cells dim"]
BLOCK = 64  # cells that are next to each other in a file and are read together
WINDOW = 64  # blocks that are shuffled into each other
SETTLED = 0.01  # relative change of the loss in the last tenth of the epochs
EPOCHS = 10  # at least, to tell
FOLLOW = 5.0  # weight of the centres' distance from their cells: how fast they follow
SAMPLE = 20_000  # cells, at most, whose principal axes are computed
HIDDEN = 0.2  # mean share of a cell's expressed genes that the encoder may not see, and has to predict


def start_from_axes(encoder: CellEncoder, cells: Cells, rows: Int[np.ndarray, " rows"], seed: int) -> None:
    """Set tokens to where genes lie on the principal axes of log-normalised counts, and what fills in genes.

    Genes that go together then have like tokens, which takes long to learn, and of few cells is learned amiss. Axes are
    those of at most 20,000 of the cells, evenly spaced; what is left of the width is 0.
    """
    some = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(np.int64))]
    values = log_normalised(cells.take(some), cells.library(some))
    measured = None if cells.measured.all() else cells.measured[cells.source_of[some]]
    places = principal_axes(values, measured, encoder.tokens.shape[1], seed)
    if places is None:
        return
    vectors = places.components.T * np.sqrt(places.variances)
    if (spread := np.sqrt(np.square(vectors).mean())) > 0:
        encoder.tokens.zero_()[:, : vectors.shape[1]] = torch.from_numpy(vectors / spread).to(encoder.tokens)
    encoder.completion.learn(places)


@dataclass
class CellBatch:
    """Cells to learn from."""

    counts: Float[Tensor, "cells genes"]
    library: Float[Tensor, " cells"]  # sums of all counts, also of genes that are not learned from
    where: tuple[Int[Tensor, " entries"], Int[Tensor, " entries"]]  # cell and gene of every count that is not 0
    hidden: Bool[Tensor, " entries"]  # whether the encoder may not see it
    batch: Int[Tensor, " cells"]
    measured: Bool[Tensor, "cells genes"] | None  # None: every gene in every cell

    @property
    def seen(self) -> Float[Tensor, "cells genes"]:
        """The counts without those that are hidden."""
        visible = torch.where(self.hidden, 0, self.counts[self.where])
        return self.counts.index_put(self.where, visible)


class BlockSampler(EpochSampler):
    """Blocks of neighbouring positions in an order of its own each epoch, shuffled into each other some at a time.

    Reading rows one by one out of a compressed file takes 20 to 50 times as long as reading blocks.
    """

    def __iter__(self) -> Iterator[Key]:
        assert self.seed is not None
        rng = np.random.default_rng([self.seed, self.epoch])
        blocks = np.split(self.positions, np.flatnonzero(np.diff(self.positions // BLOCK)) + 1)
        order = rng.permutation(len(blocks))
        for start in range(0, len(order), WINDOW):
            some = np.concatenate([blocks[i] for i in order[start : start + WINDOW]])
            yield from ((self.epoch, int(i)) for i in rng.permutation(some))


class Blocks:
    """Counts of cells by position, read in whole blocks, of which a cache keeps those read last.

    A batch has a few cells of each of the blocks that the sampler shuffles together: without it each block would be
    read once for every batch.
    """

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.cache: dict[int, sp.csr_array] = {}

    def take(self, rows: Int[np.ndarray, " rows"]) -> sp.csr_array:
        """As `Cells.take`."""
        if self.cells.cached:
            return self.cells.take(rows)
        blocks = np.unique(rows // BLOCK).tolist()
        new = [b for b in blocks if b not in self.cache]
        spans = [np.arange(b * BLOCK, min((b + 1) * BLOCK, len(self.cells))) for b in new]
        if new:
            read = self.cells.take(np.concatenate(spans))
            ends = np.cumsum([0, *map(len, spans)])
            self.cache |= {b: read[ends[i] : ends[i + 1]] for i, b in enumerate(new)}
        order = np.argsort(rows // BLOCK, kind="stable")
        parts = [self.cache[b][rows[order][rows[order] // BLOCK == b] - b * BLOCK] for b in blocks]
        self.cache |= {b: self.cache.pop(b) for b in blocks}  # to the end: used last
        for b in list(self.cache)[: max(len(self.cache) - 2 * WINDOW, 0)]:
            del self.cache[b]
        return sp.csr_array(sp.vstack(parts, format="csr"))[np.argsort(order)]


class CellBatches:
    """Batches of (epoch, position) pairs. What is hidden depends on (seed, epoch, cells) alone."""

    def __init__(self, cells: Cells, batch: Codes, seed: int) -> None:
        self.cells, self.batch, self.seed = cells, batch, seed
        self.blocks = Blocks(cells)
        self.measured = None if cells.measured.all() else cells.measured

    def __call__(self, keys: list[Key], training: bool) -> CellBatch:
        rows = np.array([i for _, i in keys])
        counts = self.blocks.take(rows)
        rng = np.random.default_rng([self.seed, keys[0][0], zlib.crc32(rows.tobytes())])
        cell = np.repeat(np.arange(len(rows)), np.diff(counts.indptr))
        # Cells differ in how much is hidden: none to twice the mean.
        share = rng.uniform(0, 2 * HIDDEN, len(rows))[cell]
        hidden = rng.random(len(share)) < share
        return CellBatch(
            torch.from_numpy(counts.toarray()),
            torch.from_numpy(self.cells.library(rows).astype(np.float32)),
            (torch.from_numpy(cell), torch.from_numpy(counts.indices.astype(np.int64))),
            torch.from_numpy(hidden),
            torch.from_numpy(self.batch[rows]),
            None if self.measured is None else torch.from_numpy(self.measured[self.cells.source_of[rows]]),
        )


class CellModule(TrainingModule):
    """Likelihood of the counts plus alignment of the batches.

        loss = -log p(counts | z, batch) + w lambda |z - moved z|^2

    (Lopez et al., "Deep generative modeling for single-cell transcriptomics", 2018, without its noise and prior), with
    w rising from 0 to 1 over the first half of the steps.

    Args:
        alignment: lambda.
    """

    network: CellModel

    def __init__(self, network: CellModel, *arguments: Any, alignment: float, **more: Any) -> None:
        super().__init__(network, *arguments, **more)
        self.alignment = alignment

    def training_step(self, batch: CellBatch, index: int) -> Tensor:
        network, batches = self.network, self.network.decoder.batches
        warm = min(1.0, 2 * self.global_step / self.steps)
        z = network.encoder(batch.seen, batch.library, measured=batch.measured)
        one_hot = torch.nn.functional.one_hot(batch.batch, batches).to(z.dtype)
        log_share = network.decoder(z, one_hot, batch.measured)
        dispersion = network.decoder.log_dispersion
        total = negative_binomial_loss(batch.counts, batch.where, log_share, dispersion, batch.measured).mean()
        parts = {"reconstruction": total}
        if self.alignment and batches > 1:
            moved, clusters = network.alignment(z, batch.batch)
            parts["alignment"] = moved
            total = total + warm * self.alignment * moved
            parts["clusters"] = FOLLOW * clusters
        for name, value in {"loss": total, **parts}.items():
            self.log(f"train_{name}", value, len(z))
        # The centres follow the cells, which do not feel them: this is no part of the model's own loss.
        return total + parts.get("clusters", 0.0)


def loss_settled(history: Sequence[dict[str, Any]]) -> str:
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
