"""Training of cells: blocks of cells as they come from files, genes hidden from the input, and the losses of z."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from omniset.cells.completing import principal_axes
from omniset.cells.data import Cells
from omniset.cells.losses import loss
from omniset.cells.model import SCALE, CellEncoder, CellModel
from omniset.training.data import EpochSampler, Key, Lesson
from omniset.training.fit import TrainingModule

BLOCK = 64  # cells that are next to each other in a file and are read together
WINDOW = 64  # blocks that are shuffled into each other
CLUSTERS = 5.0  # weight of the centres' distance from their cells: how fast they follow
SAMPLE = 20_000  # cells, at most, whose principal axes are computed
LOOKED_AT = 2_000  # cells, at most, whose batches are looked at


def start_from_axes(
    encoder: CellEncoder, cells: Cells, rows: Int[np.ndarray, " rows"], seed: int, tokens: bool = True
) -> tuple[Int[np.ndarray, " some"], Float[np.ndarray, "some components"]] | None:
    """Set tokens to where genes lie on the principal axes of log-normalised counts, and what fills in genes.

    Returns at most 2,000 of the cells with their principal components; None where there are no axes.

    Genes that go together then have like tokens, which takes long to learn, and of few cells is learned amiss. Axes are
    those of at most 20,000 of the cells, evenly spaced; what is left of the width is 0.

    Args:
        tokens: Whether they are set.
    """
    some = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(np.int64))]
    counts = sp.csr_array(cells.take(some), dtype=np.float64)
    measured = None if cells.measured.all() else cells.measured[cells.source_of[some]]
    own, completion = encoder.tokens.own if tokens else None, encoder.completion
    places, values = None, counts
    if own is not None or encoder.counts == "multiplicity":
        library = np.maximum(cells.library(some), np.finfo(np.float64).tiny)
        values = counts.copy()
        values.data = np.log1p(counts.data / np.repeat(library, np.diff(counts.indptr)) * SCALE)
        places = principal_axes(values, measured, encoder.width, seed)
    if own is not None and places is not None:
        vectors = places.components.T * np.sqrt(places.variances)
        if (spread := np.sqrt(np.square(vectors).mean())) > 0:
            with torch.no_grad():
                own.zero_()[:, : vectors.shape[1]] = torch.from_numpy(vectors / spread).to(own)
    if completion is not None:
        if encoder.counts == "log1p":
            values = counts
            values.data = np.log1p(counts.data)
            places = principal_axes(values, measured, encoder.width, seed)
        if places is not None:
            completion.learn(places)
    if places is None:
        return None
    look = np.unique(np.linspace(0, len(some) - 1, min(len(some), LOOKED_AT)).astype(np.int64))
    away = values[look].toarray() - places.middle
    if measured is not None:
        away *= measured[look]
    return some[look], away @ places.components.T


@dataclass
class CellBatch:
    """Cells to learn from.

    Attributes:
        counts: (B, G)
        library: (B,) sums of all counts, also of genes that are not learned from.
        where: Cell and gene of every count that is not 0.
        hidden: (entries,) whether the encoder may not see it.
        batch: (B,)
        measured: (B, G); None: every gene in every cell.
        types: (B,) -1 where not known; None: no cell is labelled.
    """

    counts: Float[Tensor, "cells genes"]
    library: Float[Tensor, " cells"]
    where: tuple[Int[Tensor, " entries"], Int[Tensor, " entries"]]
    hidden: Bool[Tensor, " entries"]
    batch: Int[Tensor, " cells"]
    measured: Bool[Tensor, "cells genes"] | None
    types: Int[Tensor, " cells"] | None = None

    def to(self, device: torch.device) -> CellBatch:
        measured, types = (x if x is None else x.to(device) for x in (self.measured, self.types))
        where = self.where[0].to(device), self.where[1].to(device)
        counts, library = self.counts.to(device), self.library.to(device)
        return CellBatch(counts, library, where, self.hidden.to(device), self.batch.to(device), measured, types)

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
        if self.seed is None:
            yield from super().__iter__()
            return
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
    """Batches of (epoch, position) pairs. What is hidden depends on (seed, epoch, cells) alone; when not training, on
    the cells alone.

    Args:
        batch: Number of the batch of each cell.
        hide: Mean share of a cell's expressed genes that are hidden from the encoder.
        types: Number of the type of each cell, -1 where not known.
    """

    def __init__(
        self,
        cells: Cells,
        batch: Int[np.ndarray, " cells"],
        hide: float,
        seed: int,
        types: Int[np.ndarray, " cells"] | None = None,
    ) -> None:
        self.cells, self.batch, self.hide, self.seed, self.types = cells, batch, hide, seed, types
        self.blocks = {True: Blocks(cells), False: Blocks(cells)}
        self.measured = None if cells.measured.all() else cells.measured

    def __call__(self, keys: list[Key], training: bool) -> CellBatch:
        epoch = keys[0][0] if training else 2**31
        rows = np.array([i for _, i in keys])
        counts = self.blocks[training].take(rows)
        rng = np.random.default_rng([self.seed, epoch, zlib.crc32(rows.tobytes())])
        cell = np.repeat(np.arange(len(rows)), np.diff(counts.indptr))
        # Cells differ in how much is hidden: none to twice the mean.
        share = rng.uniform(0, 2 * self.hide, len(rows))[cell]
        hidden = rng.random(len(share)) < share
        return CellBatch(
            torch.from_numpy(counts.toarray()),
            torch.from_numpy(self.cells.library(rows).astype(np.float32)),
            (torch.from_numpy(cell), torch.from_numpy(counts.indices.astype(np.int64))),
            torch.from_numpy(hidden),
            torch.from_numpy(self.batch[rows]),
            None if self.measured is None else torch.from_numpy(self.measured[self.cells.source_of[rows]]),
            None if self.types is None else torch.from_numpy(self.types[rows]),
        )


def lesson(
    batches: Any,
    train: Int[np.ndarray, " train"],
    validation: Int[np.ndarray, " validation"],
    *,
    batch_size: int,
    whole: bool = False,
) -> Lesson:
    """Training and validation on batches of `CellBatches` or `SeedBatches`, of cells by blocks.

    Args:
        train, validation: Positions, each in ascending order.
        whole: Whether the last cells of an epoch are left out where they fill no batch.
    """
    return Lesson(
        batches,
        train,
        validation,
        batch_size=batch_size,
        seed=batches.seed,
        move=lambda made, device: made.to(device),
        sampler=BlockSampler,
        whole=whole,
    )


class CellModule(TrainingModule):
    """Evidence lower bound of the counts plus alignment of the batches, and of labelled cells their types.

        loss = -log p(counts | z, batch) + w beta KL(q(z | seen) || N(0, 1)) + w lambda |z - moved z|^2
               + gamma (-log p(type | z), see `omniset.cells.model.TypeHead`)

    (Kingma & Welling, "Auto-encoding variational Bayes", 2014; Lopez et al., "Deep generative modeling for single-cell
    transcriptomics", 2018), with w rising from 0 to 1 over the first half of the steps.

    Args:
        objective: likelihood, beta, alignment (lambda) and label_weight (gamma), as in CellEmbedder; condition, whether
            the decoder reads the batch.
    """

    network: CellModel

    def __init__(self, network: CellModel, *arguments: Any, objective: dict[str, Any], **more: Any) -> None:
        super().__init__(network, *arguments, **more)
        self.objective = objective

    def training_step(self, batch: CellBatch, index: int) -> Tensor:
        done = self.global_step / self.steps
        return self._step(batch, "train", min(1.0, 2 * done))

    def validation_step(self, batch: CellBatch, index: int) -> None:
        self._step(batch, "val", 1.0)

    def _step(self, batch: CellBatch, stage: str, warm: float) -> Tensor:
        network, weight = self.network, self.objective
        mean, log_variance = network.encoder(batch.seen, batch.library, measured=batch.measured)
        z = mean
        if stage == "train" and weight["beta"]:
            z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        batches = network.decoder.batches
        one_hot = torch.nn.functional.one_hot(batch.batch, batches).to(z.dtype) * weight["condition"]
        log_share = network.decoder(z, one_hot, batch.measured)
        parts = {
            "reconstruction": loss(
                weight["likelihood"],
                batch.counts,
                batch.where,
                log_share,
                network.decoder.log_dispersion,
                batch.measured,
            ).mean()
        }
        total = parts["reconstruction"]
        if weight["beta"]:
            parts["kl"] = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
            total = total + warm * weight["beta"] * parts["kl"]
        if weight["alignment"] and batches > 1 and stage == "train":
            moved, clusters = network.alignment(mean, batch.batch)
            parts["alignment"] = moved
            total = total + warm * weight["alignment"] * moved
            parts["clusters"] = CLUSTERS * clusters
        if network.types is not None and batch.types is not None:
            parts["types"] = network.types(mean, batch.types)
            total = total + weight["label_weight"] * parts["types"]
        several: dict[str, Any] = {"batch_size": len(mean)}
        self.log(f"{stage}_loss", total, **several)
        for name, value in parts.items():
            self.log(f"{stage}_{name}", value, **several)
        # The centres follow the cells, which do not feel them: this is no part of the model's own loss.
        return total + parts.get("clusters", 0.0)
