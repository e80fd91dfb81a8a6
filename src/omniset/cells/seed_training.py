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
}


def seed_options(given: dict[str, Any] | None) -> dict[str, Any]:
    """The defaults, and what is given.

    Raises:
        TypeError: A name that is none of them.
    """
    unknown = sorted(set(given or {}) - set(DEFAULTS))
    if unknown:
        raise TypeError(f"architecture 'seed' does not take {', '.join(unknown)}; it takes {', '.join(DEFAULTS)}")
    return DEFAULTS | (given or {})


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
    """The seed's loss, gradients clipped to a norm of 0.8."""

    network: SeedModel
    clip = CLIP

    def __init__(self, network: SeedModel, *arguments: Any, shared: int, **more: Any) -> None:
        super().__init__(network, *arguments, **more)
        self.shared = shared

    def training_step(self, batch: SeedBatch, index: int) -> Tensor:
        return self._step(batch, "train")

    def validation_step(self, batch: SeedBatch, index: int) -> None:
        self._step(batch, "val")

    def _step(self, batch: SeedBatch, stage: str) -> Tensor:
        network = self.network
        counts = batch.counts if network.count_encoder is not None else None
        depth = batch.depth if network.depth_scalar else None
        output = network(batch.genes, counts, batch.multiplicity, batch.tasks, depth)
        shared, datasets = min(self.shared, network.genes), batch.datasets if network.datasets else None
        loss = seed_loss(output.prediction, batch.targets, shared, batch.mask, output.dataset_logits, datasets)
        self.log(f"{stage}_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch), prog_bar=True)
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
    read = sentences(cells, rows, counts, options, None).to(device)
    return network.embed(read.genes, read.counts if network.count_encoder is not None else None, read.multiplicity)


@torch.no_grad()
def seed_decode(network: SeedModel, z: Float[Tensor, "cells out"], depth: float) -> Float[Tensor, "cells genes"]:
    """log(1 + count) of all genes, as expected of no dataset in particular (its vector is 0).

    Args:
        depth: Mean log(1 + count) of expressed genes.
    """
    tasks = torch.arange(network.genes, device=z.device).expand(len(z), -1)
    dataset = z.new_zeros(len(z), network.dataset_embedder.out_features) if network.datasets else None
    return network.decode(z, tasks, z.new_full((len(z),), depth) if network.depth_scalar else None, dataset)
