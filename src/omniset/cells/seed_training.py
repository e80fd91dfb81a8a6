"""Training and use of the seed's network on counts: sentences drawn from cells, its loss, its clipping."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int
from torch import Tensor

from omniset.cells.data import Cells
from omniset.cells.seed import (
    NEGATIVES,
    POSITIVES,
    SHARED,
    SLOTS,
    SeedBatch,
    SeedModel,
    collate,
    draw_shared,
    expressed_loss,
    seed_loss,
    sentence,
)
from omniset.cells.training import Blocks
from omniset.training.data import Key
from omniset.training.fit import TrainingModule

CLIP = 0.8  # of the gradient's norm
SENTENCES = {"slots": SLOTS, "positives": POSITIVES, "negatives": NEGATIVES}
# What encoder_options may set beside those: the branches of the network, and the genes that a batch shares.
DEFAULTS: dict[str, Any] = {
    **SENTENCES,
    "shared": SHARED,
    "token_dim": None,
    "read_counts": True,
    "dataset_token": True,
    "depth_scalar": True,
    "scale_tokens": False,
    "loss": "counts",
}
LOSSES = ("counts", "expressed")  # how much of a gene there is, or whether there is any


def seed_options(given: dict[str, Any] | None) -> dict[str, Any]:
    """The defaults, and what is given.

    Raises:
        TypeError: A name that is none of them.
        ValueError: A loss that is not known.
    """
    unknown = sorted(set(given or {}) - set(DEFAULTS))
    if unknown:
        raise TypeError(f"architecture 'seed' does not take {', '.join(unknown)}; it takes {', '.join(DEFAULTS)}")
    chosen = DEFAULTS | (given or {})
    if chosen["loss"] not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {chosen['loss']!r}")
    return chosen


class SeedBatches:
    """Batches of sentences by (epoch, position) pairs; drawn from (seed, epoch, cells) alone."""

    def __init__(self, cells: Cells, batch: Int[np.ndarray, " cells"], options: dict[str, Any], seed: int) -> None:
        self.cells, self.batch, self.options, self.seed = cells, batch, options, seed
        self.blocks = {True: Blocks(cells), False: Blocks(cells)}

    def __call__(self, keys: list[Key], training: bool) -> SeedBatch:
        rows = np.array([i for _, i in keys])
        rng = np.random.default_rng([self.seed, keys[0][0] if training else 2**31, zlib.crc32(rows.tobytes())])
        shared = draw_shared(len(self.cells.genes), rng, self.options["shared"])
        made = sentences(self.cells, rows, self.blocks[training].take(rows), self.options, rng, shared)
        return replace(made, datasets=torch.from_numpy(self.batch[rows]))


def sentences(
    cells: Cells,
    rows: Int[np.ndarray, " rows"],
    counts: sp.csr_array,
    options: dict[str, Any],
    rng: np.random.Generator | None,
    shared: Int[np.ndarray, " shared"] | None = None,
) -> SeedBatch:
    """The sentences of some cells with these counts. Without rng each is drawn by a generator of its own, so that it
    depends on its cell alone.
    """
    sizes = {name: options[name] for name in SENTENCES} if rng is not None else {"slots": options["slots"]}
    drawn = []
    for values, measured in zip(counts.toarray(), cells.measured[cells.source_of[rows]], strict=True):
        of_cell = np.random.default_rng(0) if rng is None else rng
        drawn.append(sentence(values, of_cell, shared, measured=measured, **sizes))
    return collate(drawn)


class SeedModule(TrainingModule):
    """The seed's loss, gradients clipped to a norm of 0.8.

    Args:
        shared: Genes that all cells of a batch share as tasks.
        loss: "counts" or "expressed".
    """

    network: SeedModel
    clip = CLIP

    def __init__(self, network: SeedModel, *arguments: Any, shared: int, loss: str = "counts", **more: Any) -> None:
        super().__init__(network, *arguments, **more)
        self.shared, self.loss = shared, loss

    def training_step(self, batch: SeedBatch, index: int) -> Tensor:
        return self._step(batch, "train")

    def validation_step(self, batch: SeedBatch, index: int) -> None:
        self._step(batch, "val")

    def _step(self, batch: SeedBatch, stage: str) -> Tensor:
        network = self.network
        depth = batch.depth if network.depth_scalar else None
        output = network(*read_by(network, batch), batch.tasks, depth)
        shared, datasets = min(self.shared, network.genes), batch.datasets if network.datasets else None
        if self.loss == "expressed":
            loss = expressed_loss(output.prediction, batch.targets, batch.mask, output.dataset_logits, datasets)
        else:
            loss = seed_loss(output.prediction, batch.targets, shared, batch.mask, output.dataset_logits, datasets)
        self.log(f"{stage}_loss", loss, batch_size=len(batch))
        return loss


@torch.no_grad()
def seed_embed(
    network: SeedModel,
    cells: Cells,
    rows: Int[np.ndarray, " rows"],
    counts: sp.csr_array,
    options: dict[str, Any],
    device: torch.device,
) -> Float[Tensor, "rows out"]:
    """Vectors of some cells, of these counts; each sentence is drawn by a generator of its own."""
    return network.embed(*read_by(network, sentences(cells, rows, counts, options, None).to(device)))


@torch.no_grad()
def seed_datasets(
    network: SeedModel,
    cells: Cells,
    rows: Int[np.ndarray, " rows"],
    counts: sp.csr_array,
    options: dict[str, Any],
    device: torch.device,
) -> Float[Tensor, "rows datasets"]:
    """Which data set each cell is like, as the dataset token says: probabilities. Arguments: as `seed_embed`."""
    output = network.encode(*read_by(network, sentences(cells, rows, counts, options, None).to(device)))[1]
    assert output is not None
    return network.dataset_logits(output).softmax(1)


def read_by(network: SeedModel, batch: SeedBatch) -> tuple[Tensor, Tensor | None, Tensor]:
    """What the network reads of sentences: genes, counts where it reads them, multiplicities."""
    return batch.genes, batch.counts if network.count_encoder is not None else None, batch.multiplicity


@torch.no_grad()
def seed_decode(network: SeedModel, z: Float[Tensor, "cells out"], depth: float) -> Float[Tensor, "cells genes"]:
    """log(1 + count) of all genes, as expected of no dataset in particular (its vector is 0).

    Args:
        depth: Mean log(1 + count) of expressed genes.
    """
    tasks = torch.arange(network.genes, device=z.device).expand(len(z), -1)
    dataset = z.new_zeros(len(z), network.dataset_embedder.out_features) if network.datasets else None
    return network.decode(z, tasks, z.new_full((len(z),), depth) if network.depth_scalar else None, dataset)
