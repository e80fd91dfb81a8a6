"""The seed's network of cells as it is written there: CLS, post-norm transformer, decoder; loss, sampling, training.

Source: the document "State Embedding Neural Network Architecture"; for what it leaves open, the public original
(Adduri et al., "Predicting cellular responses to perturbation across diverse contexts with State", 2025). Where the two
differ, the document is followed, or this file says why not.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from omniset.cells.data import Cells
from omniset.cells.training import Blocks
from omniset.core.checks import check_sizes
from omniset.core.sets import SetBatch
from omniset.layers import SetAttentionBlock
from omniset.training.data import Key
from omniset.training.fit import TrainingModule

Genes: TypeAlias = Int[Tensor, "cells genes"]  # (B, N) positions in the table of vectors
Counts: TypeAlias = Float[Tensor, "cells genes"]
Multiplicity: TypeAlias = Shaped[Tensor, "cells genes"]
Vectors: TypeAlias = Float[Tensor, "cells out"]
BINS, COUNT_DIM = 10, 512
SLOTS, POSITIVES, NEGATIVES, SHARED = 2048, 512, 512, 512
CLIP = 0.8  # of the gradient's norm
WEIGHT_DECAY = 0.01  # of AdamW
DATASET_DIM = 10  # width of the decoder's dataset vector
SENTENCES = ("slots", "positives", "negatives")


@dataclass(frozen=True)
class SeedOptions:
    """What encoder_options may set.

    Raises:
        ValueError: A negative number of genes.
    """

    # Of a cell, see `sentence`.
    slots: int = SLOTS
    positives: int = POSITIVES
    negatives: int = NEGATIVES
    shared: int = SHARED  # genes that all cells of a batch share as tasks
    depth: int = 2  # number of the transformer's layers
    num_heads: int = 4  # of these
    token_dim: int | None = None  # Width of vectors of genes that are learned. None: that of the transformer.
    read_counts: bool = True  # can tokens carry counts?
    dataset_token: bool = True  # are datasets told apart, where there are several?
    depth_scalar: bool = True  # does the decoder read a number that says how deeply the cell was sequenced?

    def __post_init__(self) -> None:
        for name in (*SENTENCES, "shared"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")

    @classmethod
    def of(cls, given: dict[str, Any] | None) -> SeedOptions:
        """The defaults, and what is given."""
        known, given = [field.name for field in fields(cls)], given or {}
        if unknown := sorted(set(given) - set(known)):
            raise TypeError(f"architecture 'seed' does not take {', '.join(unknown)}; it takes {', '.join(known)}")
        return cls(**given)


class SkipBlock(nn.Module):
    """LN(x + W_2 ReLU(W_1 x + b_1) + b_2), W_1 to twice the width and W_2 back."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        return self.norm(x + self.narrow(self.widen(x).relu()))


class CountEncoder(nn.Module):
    """Soft bins: softmax(W_2 LeakyReLU(W_1 c + b_1) + b_2) E with 10 bins, W_1 1 -> 512, W_2 512 -> 10, E 10 x dim."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bins = nn.Sequential(nn.Linear(1, COUNT_DIM), nn.LeakyReLU(), nn.Linear(COUNT_DIM, BINS))
        self.vectors = nn.Parameter(torch.randn(BINS, dim))

    def forward(self, counts: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        return self.bins(counts[..., None]).softmax(-1) @ self.vectors


class SeedOutput(NamedTuple):
    """What the network makes of a batch."""

    embedding: Float[Tensor, "cells out"]  # z, of length 1
    prediction: Float[Tensor, "cells tasks"]  # log(1 + count) of the task genes, as it expects them
    # Unnormalised log-probabilities of the datasets; None without a dataset token.
    dataset_logits: Float[Tensor, "cells datasets"] | None


class SeedModel(nn.Module):
    """The network.

        e(v)      SiLU(LN(Linear(v)))
        tokens    [e(CLS) ; e(v_g / ||v_g||) + count's vector, for each gene g ; e(dataset token)]
        h         depth x { LN(x + MHA(x)), LN(h + FFN(h)) }, FFN with GELU
        o         Linear(SkipBlock(h))
        z         o_CLS / ||o_CLS||
        decoder   Linear(SkipBlock(SkipBlock([e(v_t / ||v_t||) ; z ; depth scalar ; Linear(o_dataset)]))), task gene t
        dataset   Linear(LN(SiLU(Linear(o_dataset))))

    Every branch is optional: counts, the depth scalar, datasets. The dataset vector of the decoder is a linear map of
    the dataset token's output, and the dataset head has SiLU and LayerNorm between its layers, as in the public
    original; the document gives their widths only. Otherwise than there, the CLS token gets no count, padding is not
    attended to, the vectors of task genes are normalised as well, and tokens are not multiplied by sqrt(dim).

    Args:
        vectors: Of the genes; kept as they are, and stored with the model. None: a table that is learned.
        datasets: Number of datasets; of one there is no dataset token.
        dim: Width of the transformer, divisible by num_heads; its FFNs are twice as wide.
        dropout: Of the outputs of attention and FFN and within the dataset head, in training.
    """

    vectors: Tensor

    def __init__(
        self,
        vectors: Float[Tensor, "genes token_dim"] | None,
        genes: int,
        datasets: int,
        options: SeedOptions,
        dim: int,
        output_dim: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        token_dim = (options.token_dim or dim) if vectors is None else vectors.shape[1]
        check_sizes(genes=genes, token_dim=token_dim, depth=options.depth, output_dim=output_dim)
        check_sizes(dim=dim, num_heads=options.num_heads)
        datasets = datasets if datasets > 1 and options.dataset_token else 0
        self.genes, self.datasets, self.depth_scalar = genes, datasets, options.depth_scalar
        if vectors is None:
            self.vectors = nn.Parameter(torch.randn(genes, token_dim))
        else:
            self.register_buffer("vectors", vectors.detach().to(torch.get_default_dtype(), copy=True))
        self.cls = nn.Parameter(torch.randn(token_dim))
        self.encoder = nn.Sequential(nn.Linear(token_dim, dim), nn.LayerNorm(dim), nn.SiLU())
        self.count_encoder = CountEncoder(dim) if options.read_counts else None
        self.transformer = nn.ModuleList(
            SetAttentionBlock(dim, options.num_heads, 2 * dim, norm="post", activation="gelu", dropout=dropout)
            for _ in range(options.depth)
        )
        self.decoder = nn.Sequential(SkipBlock(dim), nn.Linear(dim, output_dim))
        width = dim + output_dim + bool(options.depth_scalar) + (DATASET_DIM if datasets else 0)
        self.binary_decoder = nn.Sequential(SkipBlock(width), SkipBlock(width), nn.Linear(width, 1))
        self.dataset_token: nn.Parameter | None = None
        if datasets:
            self.dataset_token = nn.Parameter(torch.randn(token_dim))
            self.dataset_embedder = nn.Linear(output_dim, DATASET_DIM)
            self.dataset_head = nn.Sequential(
                nn.Linear(output_dim, dim), nn.SiLU(), nn.LayerNorm(dim), nn.Dropout(dropout), nn.Linear(dim, datasets)
            )

    def forward(
        self,
        genes: Genes,
        counts: Counts | None,
        multiplicity: Multiplicity | None,
        tasks: Int[Tensor, "cells tasks"],
        depth: Float[Tensor, " cells"] | None = None,
    ) -> SeedOutput:
        """Read the cells' sentences and predict their task genes, and which dataset they are of."""
        z, dataset = self.encode(genes, counts, multiplicity)
        if dataset is None:
            return SeedOutput(z, self.decode(z, tasks, depth), None)
        return SeedOutput(z, self.decode(z, tasks, depth, self.dataset_embedder(dataset)), self.dataset_head(dataset))

    def tokens(self, genes: Genes, counts: Counts | None = None, multiplicity: Multiplicity | None = None) -> SetBatch:
        """The transformer's input: (B, 1 + N, d), with a dataset token (B, 1 + N + 1, d).

        Args:
            counts: (B, N) what the count encoder reads; None: nothing is added to the tokens.
            multiplicity: (B, N), 0 for padding, whose genes and counts may be anything. Default: 1.
        """
        if multiplicity is None:
            multiplicity = torch.ones_like(genes, dtype=self.cls.dtype)
        present = multiplicity > 0
        elements = self._encoded(genes.where(present, 0))
        if counts is not None and self.count_encoder is not None:
            elements = elements + self.count_encoder(counts.where(present, 0))
        elements = elements.where(present[..., None], 0)
        first = self.encoder(self.cls).expand(len(genes), 1, -1)
        one = multiplicity.new_ones(len(genes), 1)
        if self.dataset_token is None:
            return SetBatch(torch.cat([first, elements], 1), torch.cat([one, multiplicity], 1), validate=False)
        last = self.encoder(self.dataset_token).expand(len(genes), 1, -1)
        multiplicity = torch.cat([one, multiplicity, one], 1)
        return SetBatch(torch.cat([first, elements, last], 1), multiplicity, validate=False)

    def encode(
        self, genes: Genes, counts: Counts | None = None, multiplicity: Multiplicity | None = None
    ) -> tuple[Vectors, Vectors | None]:
        """Embeddings z (B, out), and the dataset token's output (B, out) or None. Args: as `tokens`."""
        tokens = self.tokens(genes, counts, multiplicity)
        x = tokens.elements
        for layer in self.transformer:
            x = layer(x, tokens.multiplicity)
        z = F.normalize(self.decoder(x[:, 0]), dim=-1)  # no other token's output is read
        return z, None if self.dataset_token is None else self.decoder(x[:, -1])

    def embed(self, genes: Genes, counts: Counts | None = None, multiplicity: Multiplicity | None = None) -> Vectors:
        """Embeddings z (B, out), each of length 1. Args: as `tokens`."""
        return self.encode(genes, counts, multiplicity)[0]

    def decode(
        self,
        z: Vectors,
        genes: Int[Tensor, "cells tasks"],
        depth: Float[Tensor, " cells"] | None = None,
        dataset: Float[Tensor, "cells dataset_dim"] | None = None,
    ) -> Float[Tensor, "cells tasks"]:
        """What each cell is expected to have of each gene, (B, T): log(1 + count), if trained on that.

        Args:
            dataset: (B, dataset_dim), of a model with a dataset token: a linear map of its output, or any such vector.
        """
        given = [z] + ([depth[:, None]] if depth is not None else []) + ([dataset] if dataset is not None else [])
        same = torch.cat(given, 1)[:, None].expand(-1, genes.shape[1], -1)  # for all genes of a cell
        return self.binary_decoder(torch.cat([self._encoded(genes), same], 2))[..., 0]

    def decode_all(self, z: Vectors, depth: float) -> Float[Tensor, "cells genes"]:
        """log(1 + count) of all genes, as expected of no dataset in particular (its vector is 0)."""
        tasks = torch.arange(self.genes, device=z.device).expand(len(z), -1)
        dataset = z.new_zeros(len(z), self.dataset_embedder.out_features) if self.datasets else None
        return self.decode(z, tasks, z.new_full((len(z),), depth) if self.depth_scalar else None, dataset)

    def _encoded(self, genes: Genes) -> Float[Tensor, "cells genes dim"]:
        """SiLU(LN(Linear(v / ||v||))), each gene of the batch once: it is the same in every cell."""
        distinct, where = genes.unique(return_inverse=True)
        return self.encoder(F.normalize(self.vectors[distinct], dim=-1))[where]


def seed_loss(
    prediction: Float[Tensor, "cells tasks"],
    target: Float[Tensor, "cells tasks"],
    shared: int = 0,
    mask: Bool[Tensor, "cells tasks"] | None = None,
    dataset_logits: Float[Tensor, "cells datasets"] | None = None,
    datasets: Int[Tensor, " cells"] | None = None,
) -> Float[Tensor, ""]:
    """The seed's loss.

        mean_i ||y_hat_i - y_i||  +  mean_g ||y_hat_.g - y_.g||  -  mean_i log p(dataset of i)

    with i the cells, g the genes that all cells of the batch share as tasks, and Euclidean norms: that of a cell over
    all its tasks, that of a gene over the cells. (The energy distance between single points, which the public original
    computes, is this norm.)

    Args:
        shared: How many genes are shared: the first columns.
        mask: False for tasks that do not count: genes that were not measured, padding. Cells and genes of which no task
            counts are left out of the means. Default: all count.
        dataset_logits: None: without the third term.
        datasets: The cells' datasets, from 0.
    """
    mask = torch.ones_like(target, dtype=torch.bool) if mask is None else mask
    error = (prediction - target).where(mask, 0)
    loss = _mean_norm(error, mask) + _mean_norm(error[:, :shared].mT, mask[:, :shared].mT)
    if dataset_logits is not None and datasets is not None:
        loss = loss + F.cross_entropy(dataset_logits, datasets)
    return loss


def _mean_norm(error: Float[Tensor, "rows entries"], mask: Bool[Tensor, "rows entries"]) -> Float[Tensor, ""]:
    """Mean Euclidean norm of the rows of which anything counts; 0 without any. Its gradient at a norm of 0 is 0."""
    return torch.linalg.vector_norm(error, dim=1).sum() / mask.any(1).sum().clamp(min=1)


@dataclass
class Sentence:
    """What the network reads of a cell, and the genes that it predicts."""

    genes: Int[np.ndarray, " slots"]  # positions of the genes read
    # 100 c / sum(c) of these, c = log(1 + count), the sum over all genes of the cell.
    counts: Float[np.ndarray, " slots"]
    # Positions of the genes to predict: the shared ones, some expressed ones, some not expressed.
    tasks: Int[np.ndarray, " tasks"]
    targets: Float[np.ndarray, " tasks"]  # c of these
    mask: Bool[np.ndarray, " tasks"]  # False for shared genes that were not measured
    # Mean c of the cell's expressed genes, 0 without any. (The public original takes the mean over those among the
    # tasks, so that a cell's depth depends on them.)
    depth: float


@dataclass
class SeedBatch:
    """Sentences of one length: padding has multiplicity 0, tasks that do not count are masked. See `Sentence`."""

    genes: Int[Tensor, "cells slots"]
    counts: Float[Tensor, "cells slots"]
    multiplicity: Float[Tensor, "cells slots"]
    tasks: Int[Tensor, "cells tasks"]
    targets: Float[Tensor, "cells tasks"]
    mask: Bool[Tensor, "cells tasks"]
    depth: Float[Tensor, " cells"]
    datasets: Int[Tensor, " cells"] | None = None

    def __len__(self) -> int:
        return len(self.genes)

    def to(self, device: torch.device | str) -> SeedBatch:
        moved: dict[str, Any] = {name: t if t is None else t.to(device) for name, t in vars(self).items()}
        return SeedBatch(**moved)


def draw_shared(genes: int, rng: np.random.Generator, size: int = SHARED) -> Int[np.ndarray, " shared"]:
    """The genes to predict in all cells of a batch: `size` of them, or all if there are fewer."""
    return rng.choice(genes, min(size, genes), replace=False)


def sentence(
    counts: Shaped[np.ndarray, " genes"],
    rng: np.random.Generator,
    shared: Int[np.ndarray, " shared"] | None = None,
    *,
    slots: int = SLOTS,
    positives: int = POSITIVES,
    negatives: int = NEGATIVES,
    measured: Bool[np.ndarray, " genes"] | None = None,
) -> Sentence:
    """Draw a cell's sentence and tasks.

    The sentence is the genes of the largest counts (of equal ones, any), topped up with random genes of count 0.
    A gene is drawn at most once, so that sentence and tasks are shorter where there are fewer genes.
    (The public original takes all genes with log(1 + count) < 1, so those of one count too, for not expressed.)

    To embed cells, give each of them a new generator of one seed: a cell's sentence then depends on nothing else.

    Args:
        counts: Of a cell, >= 0.
        shared: From `draw_shared`; default: none.
        slots: Most genes in a sentence, CLS and dataset token not counted.
        positives: Most expressed genes among the tasks.
        negatives: Most genes of count 0 among them.
        measured: Which genes the cell's source has; the others are neither drawn nor count as tasks. Default: all.
    """
    values = counts.astype(np.float64)
    measured = np.ones(len(values), dtype=bool) if measured is None else measured
    c = np.log1p(np.where(measured, values, 0))
    shared = np.zeros(0, dtype=np.int64) if shared is None else shared
    # In random order: the first of each are a random choice, and a stable sort breaks ties at random.
    expressed = rng.permutation(np.flatnonzero(c > 0))
    absent = rng.permutation(np.flatnonzero(measured & (c == 0)))
    tasks = np.concatenate([shared, expressed[:positives], absent[:negatives]])
    top = expressed[np.argsort(-c[expressed], kind="stable")][:slots]
    filler = rng.permutation(absent)[: slots - len(top)]  # drawn apart from the tasks
    genes = np.concatenate([top, filler])
    return Sentence(
        genes=genes,
        counts=100 * c[genes] / max(c.sum(), np.finfo(float).tiny),
        tasks=tasks,
        targets=c[tasks],
        mask=measured[tasks],
        depth=float(c[expressed].mean()) if len(expressed) else 0.0,
    )


def collate(sentences: Sequence[Sentence]) -> SeedBatch:
    """Pad sentences and tasks to one length. Tasks are padded at their end, so that shared genes stay in front."""

    def padded(arrays: list[np.ndarray], dtype: torch.dtype) -> Tensor:
        return nn.utils.rnn.pad_sequence([torch.as_tensor(a).to(dtype) for a in arrays], batch_first=True)

    return SeedBatch(
        genes=padded([s.genes for s in sentences], torch.int64),
        counts=padded([s.counts for s in sentences], torch.float32),
        multiplicity=padded([np.ones(len(s.genes)) for s in sentences], torch.float32),
        tasks=padded([s.tasks for s in sentences], torch.int64),
        targets=padded([s.targets for s in sentences], torch.float32),
        mask=padded([s.mask for s in sentences], torch.bool),
        depth=torch.tensor([s.depth for s in sentences]),
    )


class SeedBatches:
    """Batches of sentences by (epoch, position) pairs; drawn from (seed, epoch, cells) alone."""

    def __init__(self, cells: Cells, batch: Int[np.ndarray, " cells"], options: SeedOptions, seed: int) -> None:
        self.cells, self.batch, self.options, self.seed = cells, batch, options, seed
        self.blocks = Blocks(cells)

    def __call__(self, keys: list[Key], training: bool) -> SeedBatch:
        rows = np.array([i for _, i in keys])
        rng = np.random.default_rng([self.seed, keys[0][0], zlib.crc32(rows.tobytes())])
        shared = draw_shared(len(self.cells.genes), rng, self.options.shared)
        made = sentences(self.cells, rows, self.blocks.take(rows), self.options, rng, shared)
        return replace(made, datasets=torch.from_numpy(self.batch[rows]))


def sentences(
    cells: Cells,
    rows: Int[np.ndarray, " rows"],
    counts: sp.csr_array,
    options: SeedOptions,
    rng: np.random.Generator | None,
    shared: Int[np.ndarray, " shared"] | None = None,
) -> SeedBatch:
    """The sentences of some cells with these counts. Without rng each is drawn by a generator of its own, so that it
    depends on its cell alone.
    """
    sizes = {name: getattr(options, name) for name in (SENTENCES if rng is not None else ("slots",))}
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
        network = self.network
        depth = batch.depth if network.depth_scalar else None
        output = network(*read_by(network, batch), batch.tasks, depth)
        shared, datasets = min(self.shared, network.genes), batch.datasets if network.datasets else None
        loss = seed_loss(output.prediction, batch.targets, shared, batch.mask, output.dataset_logits, datasets)
        self.log("train_loss", loss, len(batch))
        return loss


def read_by(network: SeedModel, batch: SeedBatch) -> tuple[Tensor, Tensor | None, Tensor]:
    """What the network reads of sentences: genes, counts where it reads them, multiplicities."""
    return batch.genes, batch.counts if network.count_encoder is not None else None, batch.multiplicity
