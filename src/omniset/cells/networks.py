"""The two architectures behind one form: how each is built from options, taught, and used."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

from omniset.cells.data import Cells
from omniset.cells.model import CellModel
from omniset.cells.options import EmbedderOptions
from omniset.cells.seed import SeedModel
from omniset.cells.seed_training import (
    SeedBatches,
    SeedModule,
    seed_datasets,
    seed_decode,
    seed_embed,
    seed_options,
)
from omniset.cells.training import CellBatches, CellModule, lesson
from omniset.runs import devices
from omniset.runs.finite import require_finite_outputs
from omniset.runs.progress import Progress
from omniset.tables.gene_vectors import GeneVectors, read_gene_vectors
from omniset.training.fit import TrainingModule

TOGETHER = 512  # cells embedded at a time
TOKENS = {"axes": "fixed", "learned": "learned", "random": "learned", "given": "none"}
Network = CellModel | SeedModel


def build(options: EmbedderOptions, genes: int, batches: int, vectors: Tensor | int | None, types: int = 0) -> Network:
    """The network of the options, not trained.

    Args:
        vectors: Of the genes, (genes, width), or their width alone where weights are loaded afterwards.
        types: Of labelled cells; "multiset" only.
    """
    if options.architecture == "seed":
        further = seed_options(options.encoder_options)
        table = torch.zeros(genes, vectors) if isinstance(vectors, int) else vectors
        return SeedModel(
            table,
            genes,
            token_dim=(further["token_dim"] or options.dim) if table is None else table.shape[1],
            depth=2 if options.depth is None else options.depth,
            ffn_dim=2 * options.dim,
            output_dim=options.embedding_dim,
            counts=further["read_counts"],
            datasets=batches if batches > 1 and further["dataset_token"] else 0,
            **{name: getattr(options, name) for name in ("dim", "num_heads", "dropout")},
            **{name: further[name] for name in ("depth_scalar", "scale_tokens")},
        )
    same = ("clusters", "encoder", "dim", "num_heads", "num_inducing", "num_outputs", "dropout", "counts")
    return CellModel(
        genes,
        batches,
        latent=options.embedding_dim,
        depth=options.depth or 0,
        vectors=vectors,
        own=TOKENS[options.gene_tokens],
        types=types,
        options=options.encoder_options,
        **{name: getattr(options, name) for name in same},
    )


def lessons(
    options: EmbedderOptions,
    network: Network,
    cells: Cells,
    codes: Int[np.ndarray, " cells"],
    training: Int[np.ndarray, " train"],
    validation: Int[np.ndarray, " validation"],
    fingerprint: dict[str, Any],
    types: Int[np.ndarray, " cells"] | None = None,
) -> tuple[TrainingModule, Any]:
    """What is trained, and the data that it is trained on."""
    steps = (options.learning_rate, options.weight_decay, options.seed, fingerprint)
    if isinstance(network, SeedModel):
        further = seed_options(options.encoder_options)
        batches = SeedBatches(cells, codes, further, options.seed)
        module = SeedModule(network, *steps, shared=further["shared"], loss=further["loss"])
        return module, lesson(batches, training, validation, batch_size=options.batch_size)
    if network.types is not None and types is not None:
        number = len(network.types.weights)
        network.types.weigh(torch.from_numpy(np.bincount(types[types >= 0], minlength=number)))
    names = ("likelihood", "beta", "alignment", "label_weight", "condition")
    objective = {name: getattr(options, name) for name in names}
    data = CellBatches(cells, codes, options.hide, options.seed, types)
    # Whole batches: a few cells tell little of a batch's place.
    taught = lesson(data, training, validation, batch_size=options.batch_size, whole=True)
    return CellModule(network, *steps, objective=objective), taught


def vectors_of_genes(
    given: GeneVectors | str | Path | None, genes: Sequence[str], aliases: Mapping[str, str] | None, alone: bool
) -> tuple[Tensor | None, list[str]]:
    """Vectors of these genes, 0 where there is none, and a sentence on how many have one. None given: none.

    Args:
        alone: They are all that stands for a gene: genes without one, which the model does not see, are warned of.

    Raises:
        OSError, ValueError: The table cannot be read, or has none of the genes; or it is needed and not given.
    """
    if given is None:
        if alone:
            raise ValueError("gene_tokens='given' needs gene_vectors")
        return None, []
    table = given if isinstance(given, GeneVectors) else read_gene_vectors(given)
    vectors, matched = table.of(list(genes), aliases)
    if not matched.matched:
        raise ValueError(
            f"gene_vectors: none of the genes, such as {genes[0]!r}, has a vector; there are such as {table.names[0]!r}"
        )
    lacking = int((matched.positions < 0).sum())
    if lacking and alone:
        warnings.warn(
            f"{lacking:,} of {len(genes):,} genes have no vector and, as gene_tokens='given', are not seen by the "
            f"model, such as {matched.unmatched[0]!r}",
            stacklevel=4,
        )
    return torch.from_numpy(vectors), [f"gene vectors: {matched.sentence()}"]


def given_vectors(network: Network) -> Tensor | None:
    """Vectors of genes that a network was given, and keeps; None: it has none, or learns its own."""
    vectors = network.vectors if isinstance(network, SeedModel) else network.encoder.tokens.vectors
    return None if isinstance(vectors, torch.nn.Parameter) else vectors


@torch.no_grad()
def embed(
    network: Network, cells: Cells, rows: Int[np.ndarray, " rows"], options: EmbedderOptions, *, silent: bool = False
) -> tuple[Float[np.ndarray, "rows embedding_dim"], Bool[np.ndarray, " rows"]]:
    """Vectors of some of the cells, read block by block, and which of these have no counts of the model's genes.

    Args:
        silent: Show no progress, since the caller does.
    """
    device = devices.find(options.device)
    network = network.to(device).eval()
    vectors = np.empty((len(rows), options.embedding_dim), dtype=np.float32)
    empty = np.zeros(len(rows), dtype=bool)
    table = None if isinstance(network, SeedModel) else network.encoder.table()
    with Progress("embedding", len(rows), options.progress and not silent, unit="cells") as progress:
        for start in range(0, len(rows), TOGETHER):
            some = rows[start : start + TOGETHER]
            block = cells.take(some)
            if isinstance(network, SeedModel):
                z = seed_embed(network, cells, some, block, seed_options(options.encoder_options), device)
            else:
                counts = torch.from_numpy(block.toarray()).to(device)
                library = torch.from_numpy(cells.library(some).astype(np.float32)).to(device)
                z = network.encoder(counts, library, table, measured_in(cells, some, device))[0]
            vectors[start : start + len(z)] = z.cpu().numpy()
            empty[start : start + len(z)] = np.diff(block.indptr) == 0
            progress.at(start + len(z))
    network.to("cpu")
    require_finite_outputs(vectors, [cells.names[row] for row in rows], "cell")
    return vectors, empty


def measured_in(
    cells: Cells, rows: Int[np.ndarray, " rows"], device: torch.device | str = "cpu"
) -> Bool[Tensor, "rows genes"] | None:
    """Which genes were measured in these cells. None: all of them."""
    measured = cells.measured[cells.source_of[rows]]
    return None if measured.all() else torch.from_numpy(measured).to(device)


@torch.no_grad()
def likely_datasets(
    network: SeedModel, cells: Cells, options: EmbedderOptions
) -> Float32[np.ndarray, "cells datasets"]:
    """Probabilities of the data sets that each cell is like, read block by block."""
    device, further = devices.find(options.device), seed_options(options.encoder_options)
    network.to(device).eval()
    parts = []
    for start in range(0, len(cells), TOGETHER):
        rows = np.arange(start, min(start + TOGETHER, len(cells)))
        parts.append(seed_datasets(network, cells, rows, cells.take(rows), further, device).cpu().numpy())
    network.to("cpu")
    return np.concatenate(parts)


@torch.no_grad()
def shares(
    network: Network,
    vectors: Float32[np.ndarray, "cells embedding_dim"],
    batches: Sequence[int] | range,
    number: int,
    options: EmbedderOptions,
) -> Float32[np.ndarray, "cells genes"]:
    """What each gene has of the counts of cells with these vectors: mean over some of `number` batches."""
    device = devices.find(options.device)
    network.to(device).eval()
    parts = []
    for some in torch.from_numpy(vectors).split(TOGETHER):
        z = some.to(device)
        if isinstance(network, SeedModel):
            counts = torch.expm1(seed_decode(network, z, 1.0)).clamp(min=0)
            share = counts / counts.sum(1, keepdim=True).clamp(min=1e-12)
        else:
            share = torch.zeros((), device=device)
            for batch in batches:
                one_hot = torch.zeros(len(z), number, device=device)
                one_hot[:, batch] = options.condition
                share = share + network.decoder(z, one_hot).exp() / len(batches)
        parts.append(share.cpu().numpy())
    network.to("cpu")
    return np.concatenate(parts)
