"""Which genes make a cell's vector what it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from omniset import explain
from omniset.cells.networks import TOGETHER
from omniset.cells.seed import SeedBatch, SeedModel
from omniset.cells.seed_training import read_by
from omniset.core.sets import SetBatch

SENTENCES = 16  # with a gene left out, read at a time


def changes_of(
    encoder: Any,
    counts: Float[Tensor, "1 genes"],
    library: Float[Tensor, " 1"],
    mean: Float[Tensor, " embedding_dim"],
    genes: list[str],
    steps: int,
    measured: Bool[Tensor, "1 genes"] | None = None,
) -> pd.DataFrame:
    """The genes of one cell, largest change first: `gene`, `count`, `change`, `attribution`.

    Args:
        encoder: Of a `CellModel`.
        measured: As of its `forward`. Genes that are filled in have no row.
        mean: Of the vectors of the training cells, from which the vector's own direction starts.
        steps: Of the attribution's integral.
    """
    encoder = encoder.eval()
    which = counts[0].nonzero()[:, 0]
    with torch.no_grad():
        table = encoder.table()
        z = encoder(counts, library, table, measured)[0]
        away = z - mean
        direction = away[0] / away.norm().clamp(min=1e-12)
        changes = []
        for some in which.split(TOGETHER):
            without = counts.repeat(len(some), 1)
            without[torch.arange(len(some)), some] = 0
            there = None if measured is None else measured.expand(len(some), -1)
            changes.append((z - encoder(without, library.expand(len(some)), table, there)[0]) @ direction)
        values = encoder.values(counts, library, measured)
        tokens = encoder.sets(values, encoder.tokens())
        place = (values[0] > 0).cumsum(0)[which] - 1  # of these genes, among those that are filled in
    scores = np.full(len(which), np.nan)
    if explain.attends(encoder.encoder):
        scores = explain.attribute(_Along(encoder, direction, mean).eval(), tokens, 0, steps)[0][place].numpy()
    frame = pd.DataFrame(
        {
            "gene": [genes[i] for i in which.tolist()],
            "count": counts[0, which].numpy(),
            "change": torch.cat(changes).numpy(),
            "attribution": scores,
        }
    )
    return frame.sort_values("change", key=np.abs, ascending=False, ignore_index=True)


def seed_changes_of(
    network: SeedModel,
    cell: SeedBatch,
    counts: Float[Tensor, "1 genes"],
    mean: Float[Tensor, " embedding_dim"],
    genes: list[str],
    steps: int,
) -> pd.DataFrame:
    """As `changes_of`, of the expressed genes in a cell's sentence: `change` is without the gene's token.

    Args:
        cell: Its sentence, as it is embedded.
    """
    network = network.eval()
    position, read, multiplicity = read_by(network, cell)
    which = counts[0, position[0]].nonzero()[:, 0]  # places in the sentence
    with torch.no_grad():
        away = network.embed(position, read, multiplicity) - mean
        direction = away[0] / away.norm().clamp(min=1e-12)
        changes = []
        for some in which.split(SENTENCES):
            without = multiplicity.repeat(len(some), 1)
            without[torch.arange(len(some)), some] = 0
            genes_read = position.expand(len(some), -1)
            counts_read = None if read is None else read.expand(len(some), -1)
            changes.append((away + mean - network.embed(genes_read, counts_read, without)) @ direction)
        tokens = network.tokens(position, read, multiplicity)
    scores = np.full(len(which), np.nan)
    if explain.attends(network):
        of_tokens = explain.attribute(_SeedAlong(network, direction, mean).eval(), tokens, 0, steps)[0]
        of_genes = of_tokens[1 : 1 + position.shape[1]][which]  # CLS comes first, the dataset token last
        scores = (of_genes / of_genes.max().clamp(min=1e-12)).numpy()
    frame = pd.DataFrame(
        {
            "gene": [genes[i] for i in position[0, which].tolist()],
            "count": counts[0, position[0, which]].numpy(),
            "change": torch.cat(changes).numpy(),
            "attribution": scores,
        }
    )
    return frame.sort_values("change", key=np.abs, ascending=False, ignore_index=True)


class _SeedAlong(nn.Module):
    """As `_Along`, of the seed's network."""

    def __init__(self, network: SeedModel, direction: Tensor, mean: Tensor) -> None:
        super().__init__()
        self.network, self.direction, self.middle = network, direction, mean

    def forward(self, tokens: SetBatch) -> Float[Tensor, "cells 1"]:
        z = nn.functional.normalize(self.network.decoder(self.network.transform(tokens)[:, 0]), dim=-1)
        return ((z - self.middle) @ self.direction)[:, None]


class _Along(nn.Module):
    """How far a cell's vector lies along a direction, as a function of its tokens, for attribution."""

    def __init__(self, encoder: Any, direction: Tensor, mean: Tensor) -> None:
        super().__init__()
        self.encoder, self.direction, self.middle = encoder, direction, mean

    def forward(self, tokens: SetBatch) -> Float[Tensor, "cells 1"]:
        z = self.encoder.mean(self.encoder.head_of(self.encoder.encoder(tokens).summary))
        return ((z - self.middle) @ self.direction)[:, None]
