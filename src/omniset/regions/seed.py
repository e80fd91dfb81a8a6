"""The seed's network of region pairs, cross-attention between two regions' genes, and how it is trained.

Source: the document "CrossAttentionGene2VecModel - Detailed Architecture"; what it leaves open is said where it is
decided. Regions are kept once, pairs are positions (i, j) into them: no input is ever copied per pair.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.core.attention import log_multiplicity
from omniset.core.checks import check_sizes
from omniset.core.sets import SetBatch
from omniset.layers import MultisetAttentionBlock
from omniset.regions.data import Pairs, PairValues, Regions, known_pairs, matrix_of, places_of
from omniset.regions.method import Method
from omniset.regions.splits import FEWEST, split
from omniset.runs import devices
from omniset.training.artefacts import Weights
from omniset.training.data import EpochSampler, Key, Lesson
from omniset.training.fit import TrainingModule, fit
from omniset.training.network import Standardize

# As published.
BINS, TOKEN_DIM, HIDDEN, DROPOUT = 5, 200, (512, 256, 128), 0.1
CLS_DIM, CLS_SCALE = 6, 0.02
SYMMETRY = 0.1  # weight of the mean of (f(i, j) - f(j, i))^2
WEIGHT_DECAY = 1e-2
BATCH = 23  # regions, all of whose pairs are learned from

CLS = ("random", "spatial")
POOLINGS = ("mean", "attention", "cls")
COLUMNS_TOGETHER = 4  # of the grid
PATIENCE = 10
VALIDATION_FOLDS = 5  # one of which is kept back


class ExpressionTokens(nn.Module):
    """The genes of each region as a set of vectors.

        t_g = W (U onehot(bin(x_g)) + u + v_g) + w,    bin(x) = how many of the edges 1/K, ..., (K-1)/K are <= x

    with K = 5 bins, v_g the gene's vector, U token_dim x K and W dim x token_dim. Values below 0 fall into the first
    bin, those above 1 into the last, as if clamped. Values and edges are compared in float32, whatever they come in, so
    that a value on an edge is in the same bin everywhere. A gene whose expression is NaN is absent: its multiplicity is
    0.

    U onehot(bin) + u has K values and v_g one per gene, so W is applied to K + genes rows, however many regions there
    are.

    The document's own best configuration has one-hot genes instead of vectors. A Linear of a one-hot gene is a table of
    vectors that are learned (its bias adds to u), and that is what `vectors=None` is.

    Args:
        genes: Number of genes.
        dim: Width of the tokens.
        vectors: Of the genes; kept as they are, and stored with the model. None: learned, N(0, 1) at the start.
        token_dim: Width of the learned vectors; vectors that are given have their own.

    Raises:
        ValueError: A size out of bounds; vectors of another number than genes, or not finite.
    """

    vectors: Tensor

    def __init__(
        self,
        genes: int,
        dim: int,
        vectors: Float[Tensor, "genes token_dim"] | None = None,
        token_dim: int = TOKEN_DIM,
    ) -> None:
        super().__init__()
        check_sizes(genes=genes, dim=dim, token_dim=token_dim)
        if vectors is None:
            self.vectors = nn.Parameter(torch.randn(genes, token_dim))
        else:
            _check_vectors(vectors, genes)
            self.register_buffer("vectors", vectors.detach().to(torch.get_default_dtype(), copy=True))
        self.genes = genes
        self.bin = nn.Linear(BINS, self.vectors.shape[1])
        self.project = nn.Linear(self.vectors.shape[1], dim)

    def forward(self, expression: Float[Tensor, "regions genes"]) -> SetBatch:
        """(R, G) to tokens (R, G, dim); multiplicity 0 where the expression is NaN."""
        by_bin, by_gene = self.tables()
        multiplicity = (~expression.isnan()).to(by_bin)
        tokens = self.one_hot(expression).to(by_bin) @ by_bin + by_gene
        return SetBatch(tokens * multiplicity[..., None], multiplicity, validate=False)

    def tables(self) -> tuple[Float[Tensor, "bins dim"], Float[Tensor, "genes dim"]]:
        """W (U e_k + u) + w of each bin, and W v_g of each gene: a token is the sum of a row of each."""
        return self.project(self.bin.weight.T + self.bin.bias), F.linear(self.vectors, self.project.weight)

    def one_hot(self, expression: Float[Tensor, "regions genes"]) -> Int[Tensor, "regions genes bins"]:
        """The bin of each gene, one-hot; no bin where the expression is NaN.

        Raises:
            ValueError: Another number of genes.
        """
        if expression.shape[1] != self.genes:
            raise ValueError(f"expression must have {self.genes:,} genes, got {expression.shape[1]:,}")
        edges = torch.arange(1, BINS, device=expression.device) / BINS
        bins = F.one_hot(torch.bucketize(expression.float(), edges, right=True), BINS)
        return bins.masked_fill(expression.isnan()[..., None], 0)


def _check_vectors(vectors: Tensor, genes: int) -> None:
    if len(vectors) != genes or not vectors.shape[1]:
        raise ValueError(f"vectors must be (genes, token_dim) = ({genes}, >= 1), got {tuple(vectors.shape)}")
    bad = ~vectors.isfinite().all(1)
    if bool(bad.any()):
        raise ValueError(f"vectors must be finite, that of gene {int(bad.nonzero()[0])} is not")


# ---------------------------------------------------------------------- pooling and head


class TokenPooling(nn.Module):
    """One vector of CLS and the present genes of a region: sum_t a_t x_t.

        mean       a_t = 1 / number of tokens
        attention  a = softmax over t of w . tanh(V x_t), V dim x dim, no biases
        cls        a = 1 for CLS, which is the first token, and 0 for the others

    The document does not say what its attention pooling is; this form is that of Ilse et al., "Attention-based Deep
    Multiple Instance Learning", 2018.
    """

    def __init__(self, dim: int, pooling: str) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
        self.pooling = pooling
        self.score: nn.Module | None = None
        if pooling == "attention":
            self.score = nn.Sequential(nn.Linear(dim, dim, bias=False), nn.Tanh(), nn.Linear(dim, 1, bias=False))

    def forward(
        self, x: Float[Tensor, "sets tokens dim"], multiplicity: Float[Tensor, "sets tokens"]
    ) -> Float[Tensor, "sets dim"]:
        if self.pooling == "cls":
            return x[:, 0]
        scores = self._scores(x).masked_fill(multiplicity[..., None] == 0, -torch.inf)
        return (scores.softmax(1).mT @ x)[:, 0]

    def shared(
        self,
        cls: Float[Tensor, "sets firsts dim"],
        genes: Float[Tensor, "sets tokens dim"],
        members: Float[Tensor, "subsets tokens"],
    ) -> Float[Tensor, "subsets sets dim"]:
        """The same for many subsets of the same tokens.

        Args:
            cls: The CLS token of each subset, or one for all (firsts = 1).
            members: 1 where a subset holds a token, else 0.
        """
        if self.pooling == "cls":
            return cls.transpose(0, 1).expand(len(members), -1, -1)
        of_cls = self._scores(cls).expand(-1, len(members), -1)
        of_genes = self._scores(genes).mT + log_multiplicity(members, genes.dtype)
        weights = torch.cat([of_cls, of_genes], 2).softmax(2)  # (sets, subsets, 1 + tokens)
        return (weights[..., :1] * cls + weights[..., 1:] @ genes).transpose(0, 1)

    def _scores(self, x: Float[Tensor, "sets tokens dim"]) -> Float[Tensor, "sets tokens 1"]:
        return torch.zeros_like(x[..., :1]) if self.score is None else self.score(x)


class RunningBatchNorm(nn.BatchNorm1d):
    """Batch normalisation that in training takes its running statistics for a batch of one, and leaves them as they
    are: one row has no variance, and PyTorch's raises an error.
    """

    def forward(self, x: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        if self.training and len(x) < 2:
            mean, var = self.running_mean, self.running_var
            return F.batch_norm(x, mean, var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)


class ConnectivityHead(nn.Module):
    """Linear, ReLU, BatchNorm, dropout for each of the widths `hidden`, then Linear to 1."""

    def __init__(self, dim: int, hidden: Sequence[int] = HIDDEN, dropout: float = DROPOUT) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in hidden:
            check_sizes(hidden=width)
            layers += [nn.Linear(dim, width), nn.ReLU(), RunningBatchNorm(width), nn.Dropout(dropout)]
            dim = width
        self.layers = nn.Sequential(*layers, nn.Linear(dim, 1))

    def forward(self, x: Float[Tensor, "pairs dim"]) -> Float[Tensor, " pairs"]:
        return self.layers(x)[:, 0]


# ---------------------------------------------------------------------- the networks


def _check_positions(name: str, positions: Tensor, regions: int) -> None:
    if not positions.numel():
        return
    low, high = (int(x) for x in positions.aminmax())
    if low < 0 or high >= regions:
        raise ValueError(f"{name} must be >= 0 and < {regions}, the number of regions; got {low if low < 0 else high}")


def _with_cls(cls: Float[Tensor, "sets dim"], genes: SetBatch) -> SetBatch:
    one = torch.ones_like(genes.multiplicity[:, :1])
    x = torch.cat([cls[:, None], genes.elements], 1)
    return SetBatch(x, torch.cat([one, genes.multiplicity], 1), validate=False)


def _attend(
    block: Any, queries: Float[Tensor, "sets queries dim"], keys: SetBatch
) -> Float[Tensor, "sets queries dim"]:
    everything = bool((keys.multiplicity > 0).all())  # then faster kernels will do
    return block(queries, keys.elements, None if everything else keys.multiplicity)


class CrossAttention(nn.Module):
    """The document's network: region i's genes, with CLS before them, attend to region j's.

        K = [t_j1, ..., t_jG]                                  keys and values of every layer
        Q_0 = [CLS ; t_i1, ..., t_iG]
        Q_l = LN(h + FFN(h)),  h = LN(Q_l-1 + MHA(Q_l-1, K, K))     l = 1, ..., depth
        f(i, j) = head(pool(Q_depth))

        CLS   random:   Linear(p), p six numbers that are learned, N(0, 0.02^2) at the start
              spatial:  Linear(0.02 [s(c_i) ; s(c_j)]), s the standardisation with the training regions' mean and
                        standard deviation per axis, stored with the model

    The FFN is dim - 4 dim - dim with ReLU. f(i, j) is not f(j, i). Absent genes are no keys and are not pooled.

    The rows of Q never see one another: each row only meets region j. So with pooling="cls" no gene of region i reaches
    the prediction, against what the document says of this option; a warning says so. And so `grid` computes the rows of
    a region j once for all its partners i, as a row depends on the gene, its bin and j only.

    Args:
        genes: Number of genes: the columns of expression, in this order.
        dim: Width of the tokens, divisible by num_heads.
        depth: Number of layers.
        cls: "random" or "spatial".
        pooling: "mean", "attention" or "cls", see `TokenPooling`.
        vectors, token_dim: As in ExpressionTokens.
        hidden: Widths of the head's layers.
        dropout: Of the outputs of attention and FFN and within the head, in training.

    Raises:
        ValueError: A size or a choice out of bounds; vectors as in ExpressionTokens.
    """

    cls: Tensor | None

    def __init__(
        self,
        genes: int,
        dim: int = 128,
        num_heads: int = 4,
        depth: int = 4,
        cls: str = "random",
        pooling: str = "mean",
        vectors: Float[Tensor, "genes token_dim"] | None = None,
        token_dim: int = TOKEN_DIM,
        hidden: Sequence[int] = HIDDEN,
        dropout: float = DROPOUT,
    ) -> None:
        super().__init__()
        if cls not in CLS:
            raise ValueError(f"cls must be one of {', '.join(CLS)}, got {cls!r}")
        check_sizes(dim=dim, num_heads=num_heads, depth=depth)
        self.tokens = ExpressionTokens(genes, dim, vectors, token_dim)
        self.cls = nn.Parameter(CLS_SCALE * torch.randn(CLS_DIM))
        self.cls_projection = nn.Linear(CLS_DIM, dim)
        self.layers = nn.ModuleList(
            MultisetAttentionBlock(dim, num_heads, 4 * dim, norm="post", dropout=dropout, activation="relu")
            for _ in range(depth)
        )
        self.pool = TokenPooling(dim, pooling)
        self.head = ConnectivityHead(dim, hidden, dropout)
        if pooling == "cls":
            warnings.warn(
                "pooling='cls' lets no gene of region i into the prediction of a pair (i, j): its CLS token attends to "
                "the genes of region j alone",
                stacklevel=2,
            )
        self.reads_coordinates = cls == "spatial"
        if self.reads_coordinates:
            self.cls = None
            self.statistics = Standardize(3)
            self.statistics.shift.fill_(torch.nan)  # not known yet

    def forward(
        self,
        expression: Float[Tensor, "regions genes"],
        pairs: Int[Tensor, "pairs 2"],
        coordinates: Float[Tensor, "regions 3"] | None = None,
    ) -> Float[Tensor, " pairs"]:
        """Connectivity of each pair (i, j).

        Args:
            expression: (N, G) of all regions, once; NaN: not measured.
            pairs: (B, 2) positions of i and j among the regions.
            coordinates: (N, 3) in mm; read by cls="spatial" alone.

        Raises:
            ValueError: Another number of genes; a position out of range; coordinates that are needed and are missing,
                not finite, or of another number; coordinates before `standardise`.
        """
        queries, keys = self._read(expression, pairs, coordinates)
        x = queries.elements
        for layer in self.layers:
            x = _attend(layer, x, keys)
        return self.head(self.pool(x, queries.multiplicity))

    def standardise(self, coordinates: Float[Tensor, "regions 3"]) -> None:
        """Store mean and standard deviation of the *training* regions' coordinates, to which all later ones are put.

        Raises:
            ValueError: cls="random"; no region; coordinates that are not finite.
        """
        if not self.reads_coordinates:
            raise ValueError("cls='random' reads no coordinates: there is nothing to standardise")
        if not len(coordinates):
            raise ValueError("coordinates must be those of at least one region")
        _check_finite(coordinates)
        statistics = Standardize(3).double()  # on the CPU, since not every device has float64
        statistics.fit([(coordinates.detach().cpu(), torch.ones(len(coordinates)))])
        self.statistics.load_state_dict(statistics.state_dict())

    def attention(
        self,
        expression: Float[Tensor, "regions genes"],
        pairs: Int[Tensor, "pairs 2"],
        coordinates: Float[Tensor, "regions 3"] | None = None,
    ) -> Float[Tensor, "pairs queries genes"]:
        """The last layer's attention weights, mean over its heads: (B, 1 + G, G), CLS and genes of i by genes of j.

        Each row sums to 1. Rows of genes absent in i and columns of genes absent in j are 0. In training mode dropout
        is on in the layers before.
        """
        queries, keys = self._read(expression, pairs, coordinates)
        x = queries.elements
        for before in self.layers[:-1]:
            x = _attend(before, x, keys)
        block: Any = self.layers[-1]
        m = keys.multiplicity
        m = torch.where((m > 0).any(1, keepdim=True), m, 1)  # no NaN of a region without genes, whose weights are 0
        bias = log_multiplicity(m, x.dtype)[:, None]
        q, k, _ = (part.chunk(block.num_heads, -1) for part in block.project(x, keys.elements))
        weights = sum((block.scale * a @ b.mT + bias).softmax(-1) for a, b in zip(q, k, strict=True))
        return weights / block.num_heads * keys.multiplicity[:, None] * queries.multiplicity[..., None]

    def grid(
        self,
        expression: Float[Tensor, "regions genes"],
        rows: Int[Tensor, " rows"],
        columns: Int[Tensor, " columns"],
        coordinates: Float[Tensor, "regions 3"] | None = None,
    ) -> Float[Tensor, "rows columns"]:
        """Connectivity of every pair (i, j) of i in rows and j in columns: what `forward` gives for these.

        For each j the layers run once over the distinct (gene, bin) that occur in rows, at most K G of them, instead of
        over G tokens for each i: with many rows this is cheaper by a factor up to rows / K. Otherwise than in
        `forward`, pairs of the same j share what dropout drops.
        """
        for name, positions in (("rows", rows), ("columns", columns)):
            _check_positions(name, positions, len(expression))
        if not len(rows) or not len(columns):
            return expression.new_zeros(len(rows), len(columns))
        members = self.tokens.one_hot(expression[rows]).flatten(1)
        used = members.any(0).nonzero()[:, 0]
        by_bin, by_gene = self.tokens.tables()
        table = (by_gene[:, None] + by_bin).flatten(0, 1)[used]
        keys = self.tokens(expression[columns])
        if self.reads_coordinates:
            pairs = torch.stack(torch.meshgrid(rows, columns, indexing="xy"), -1)  # (columns, rows, 2)
            cls = self._cls(expression, pairs.flatten(0, 1), coordinates).unflatten(0, pairs.shape[:2])
        else:
            cls = self._cls(expression, rows.new_zeros(len(columns), 2))[:, None]
        x = torch.cat([cls, table.expand(len(columns), -1, -1)], 1)
        for layer in self.layers:
            x = _attend(layer, x, keys)
        first = cls.shape[1]
        pooled = self.pool.shared(x[:, :first], x[:, first:], members[:, used].to(x))
        return self.head(pooled.flatten(0, 1)).view(len(rows), len(columns))

    def _read(self, expression: Tensor, pairs: Tensor, coordinates: Tensor | None) -> tuple[SetBatch, SetBatch]:
        """Queries, CLS first, and keys of each pair."""
        _check_positions("pairs", pairs, len(expression))
        regions, where = pairs.unique(return_inverse=True)
        tokens = self.tokens(expression[regions])
        return _with_cls(self._cls(expression, pairs, coordinates), tokens[where[:, 0]]), tokens[where[:, 1]]

    def _cls(
        self, expression: Tensor, pairs: Int[Tensor, "pairs 2"], coordinates: Tensor | None = None
    ) -> Float[Tensor, "pairs dim"]:
        if self.cls is not None:
            return self.cls_projection(self.cls).expand(len(pairs), -1)
        if coordinates is None:
            raise ValueError("coordinates must be given: the model was made with cls='spatial'")
        if len(coordinates) != len(expression):
            raise ValueError(f"coordinates must be those of {len(expression):,} regions, got {len(coordinates):,}")
        if bool(self.statistics.shift.isnan().any()):
            raise ValueError("coordinates cannot be read before standardise was called with the training regions'")
        _check_finite(coordinates, pairs)
        scaled = self.statistics(coordinates.to(self.statistics.shift))
        return self.cls_projection(CLS_SCALE * scaled[pairs].flatten(1))


def _check_finite(coordinates: Float[Tensor, "regions 3"], pairs: Tensor | None = None) -> None:
    """Of all regions, or of those that occur in pairs."""
    bad = ~coordinates.isfinite().all(1)
    bad = bad.nonzero()[:, 0] if pairs is None else pairs[bad[pairs]]
    if len(bad):
        region = int(bad[0])
        raise ValueError(f"coordinates must be finite, those of region {region} are {coordinates[region].tolist()}")


# ---------------------------------------------------------------------- training


class Passes(EpochSampler):
    """Several passes over the positions in an epoch, each in an order of its own and in batches of one size: the rest
    of a pass is left out. Without a seed the positions as they are.
    """

    def __init__(self, positions: Sequence[int] | np.ndarray, seed: int | None, *, size: int, passes: int) -> None:
        super().__init__(positions, seed)
        self.used, self.passes = (len(positions) // size * size, passes) if seed is not None else (len(positions), 1)

    def __iter__(self) -> Iterator[Key]:
        for number in range(self.passes):
            order = self.positions
            if self.seed is not None:
                order = np.random.default_rng([self.seed, self.epoch, number]).permutation(order)
            yield from ((self.epoch, int(i)) for i in order[: self.used])

    def __len__(self) -> int:
        return self.passes * self.used


class PairsModule(TrainingModule):
    """Squared error of all pairs among the regions of a batch, and a pull of f(i, j) to f(j, i).

    Pairs are computed in a grid, so that what they share is computed once: see `CrossAttention.grid`. What is watched
    is the mean of both ways.

    Args:
        expression, coordinates: Of all regions.
        target: (N, N), NaN where not known.
        directed: f(j, i) is not to be f(i, j).
    """

    def __init__(
        self,
        *arguments: Any,
        expression: Float[Tensor, "regions genes"],
        coordinates: Float[Tensor, "regions 3"] | None,
        target: Float[Tensor, "regions regions"],
        directed: bool,
    ) -> None:
        super().__init__(*arguments)
        self.expression, self.coordinates, self.target, self.directed = expression, coordinates, target, directed

    def matrix(self, rows: Int[Tensor, " rows"]) -> Float[Tensor, "rows rows"]:
        """All f of pairs among some regions."""
        coordinates = None if self.coordinates is None else self.coordinates[rows.cpu()].to(rows.device)
        everything = torch.arange(len(rows), device=rows.device)
        return self.network.grid(self.expression[rows.cpu()].to(rows.device), everything, everything, coordinates)

    def training_step(self, rows: Tensor, index: int) -> Tensor:
        predicted = self.matrix(rows)
        loss = self._error(predicted, rows)
        self.log("train_loss", loss, batch_size=len(rows))
        if not self.directed:
            loss = loss + SYMMETRY * (predicted - predicted.mT).square().mean()
        return loss

    def validation_step(self, rows: Tensor, index: int) -> None:
        predicted = self.matrix(rows)
        if not self.directed:
            predicted = (predicted + predicted.mT) / 2
        self.log("val_loss", self._error(predicted, rows), batch_size=len(rows))

    def _error(self, predicted: Float[Tensor, "rows rows"], rows: Int[Tensor, " rows"]) -> Float[Tensor, ""]:
        target = self.target[rows.cpu()][:, rows.cpu()].to(predicted)
        known = torch.isfinite(target)
        error = torch.where(known, predicted - target.nan_to_num(), 0).square()
        return error.sum() / known.sum().clamp(min=1)


class SeedMethod(Method):
    """The network of the seed document, trained as described there, with a part of the training regions kept back.

    The document's batches are of 512 pairs; these are all pairs among 23 regions, 529 with those of a region with
    itself, which no loss reads. The loss is mean((f(i, j) - y)^2) + 0.1 mean((f(i, j) - f(j, i))^2), of connectivity
    standardised over the training pairs. One of five folds of the training regions, divided as `held_out` says where
    places are known, is watched: training stops after 10 epochs without progress there, and the weights of the best
    epoch are taken. An epoch has as many batches as the pairs need.

    Args:
        vectors: (G, T) of the genes; None: learned.
        options: Of `CrossAttention`: dim, num_heads, depth, cls, pooling, token_dim, hidden.
        epochs: At most.
        learning_rate: Of AdamW.

    Attributes:
        network: Once fitted.
        history: A dict per epoch: the losses.
        folder: For checkpoints; None: a temporary one.
        resume: Go on from the folder's checkpoint, if it was made with the same settings.
        settings: Of the run.
    """

    name = "seed"
    network: CrossAttention
    history: list[dict[str, Any]]
    folder: Path | None = None
    resume = False
    settings: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        vectors: Float[np.ndarray, "genes token_dim"] | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
        epochs: int = 100,
        learning_rate: float = 1e-3,
        device: str = "cpu",
        progress: bool = False,
    ) -> None:
        super().__init__()
        self.vectors, self.options, self.epochs = vectors, dict(options), epochs
        self.learning_rate, self.device, self.progress = learning_rate, device, progress
        self.needs_coordinates = self.options.get("cls") == "spatial"

    def _reads_places(self, train: Regions) -> bool:
        return self.needs_coordinates

    def _fit(self, train: Regions, seed: int) -> None:
        pairs, values = known_pairs(train)
        self._mean, self._scale = float(values.mean()), float(values.std()) or 1.0
        target = matrix_of(train, pairs, (values - self._mean) / self._scale)
        learn, watched = self._split(train, seed)
        network = self._network(len(train.genes), seed)
        coordinates = self._coordinates(train)
        if coordinates is not None:
            network.standardise(coordinates[learn])
        order = np.concatenate([learn, watched])
        vectors = None if self.vectors is None else zlib.crc32(np.ascontiguousarray(self.vectors).tobytes())
        module = PairsModule(
            network,
            self.learning_rate,
            WEIGHT_DECAY,
            seed,
            {**self.settings, "vectors": vectors, "data": checksum(train)},
            expression=torch.from_numpy(train.expression[order]).float(),
            coordinates=None if coordinates is None else coordinates[order],
            target=torch.from_numpy(target[np.ix_(order, order)]).float(),
            directed=self.directed,
        )
        fit(
            module,
            _lesson(len(learn), len(watched), seed),
            epochs=self.epochs,
            patience=PATIENCE if len(watched) else None,
            device=self.device,
            progress=self.progress,
            log=None,
            folder=self.folder,
            resume=self.resume,
        )
        self.network, self.history = module.network.eval(), module.history

    def _split(self, train: Regions, seed: int) -> tuple[Int[np.ndarray, " learn"], Int[np.ndarray, " watched"]]:
        """Regions to learn from, and those whose pairs are watched."""
        everything = np.arange(len(train))
        if len(train) < VALIDATION_FOLDS * FEWEST:
            return everything, everything[:0]
        watched = split(self.held_out if train.placed else "random", train, VALIDATION_FOLDS, seed)[0]
        return np.setdiff1d(everything, watched), watched

    def _network(self, genes: int, seed: int) -> CrossAttention:
        vectors = None if self.vectors is None else torch.from_numpy(self.vectors).float()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                return CrossAttention(genes, vectors=vectors, **self.options)
            except TypeError as error:
                raise ValueError(f"options: {error}") from error

    def _coordinates(self, regions: Regions) -> Float[Tensor, "regions 3"] | None:
        """For the networks that read them."""
        if not self.needs_coordinates:
            return None
        return torch.from_numpy(places_of(regions)).float()

    @torch.no_grad()
    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        device = devices.find(self.device)
        network = self.network.to(device).eval()
        expression = torch.from_numpy(regions.expression).float().to(device)
        coordinates = self._coordinates(regions)
        coordinates = None if coordinates is None else coordinates.to(device)
        rows = torch.arange(len(regions), device=device)
        parts = [network.grid(expression, rows, some, coordinates) for some in rows.split(COLUMNS_TOGETHER)]
        matrix = torch.cat(parts, 1).double().cpu().numpy()
        network.to("cpu")
        if not self.directed:
            matrix = (matrix + matrix.T) / 2
        return matrix[tuple(pairs.T)] * self._scale + self._mean

    @torch.no_grad()
    def weights(self, pair: Regions) -> Float[np.ndarray, "rows genes"]:
        """Of two regions: the last layer's attention of CLS and of each gene of the first to each of the second."""
        expression, both = torch.from_numpy(pair.expression).float(), torch.tensor([[0, 1]])
        return self.network.attention(expression, both, self._coordinates(pair))[0].double().numpy()

    # ------------------------------------------------------------------ on disk

    def state(self) -> dict[str, Any]:
        """What else than the weights is needed to predict."""
        return {"mean": self._mean, "scale": self._scale}

    def built(self, state: dict[str, Any], train: Regions, weights: Weights) -> SeedMethod:
        """Become as when `state` was taken, with the network of an artefact."""
        self._prepare(train)
        self._mean, self._scale, self.history = state["mean"], state["scale"], []
        self.network = weights.build(partial(self._network, len(train.genes), 0), f"{self.name}.")
        return self


def _lesson(number: int, watched: int, seed: int) -> Lesson:
    """Batches of positions, of regions to learn from and of those behind them that are watched, all in one batch."""

    def make(keys: list[Key], training: bool) -> Tensor:
        return torch.tensor([i for _, i in keys]) if training else torch.arange(number, number + watched)

    size = min(BATCH, number)
    sampler = partial(Passes, size=size, passes=max(1, round(number / size)))
    return Lesson(make, range(number), [0] if watched else [], batch_size=size, seed=seed, sampler=sampler)


def checksum(regions: Regions) -> int:
    """Of names, expression, coordinates and connectivity."""
    crc = zlib.crc32("\n".join([*regions.names, *regions.genes]).encode())
    for part in (regions.expression, regions.coordinates, regions.connectivity):
        if part is not None:  # NaN has many bit patterns, of which a file gives back one
            crc = zlib.crc32(np.ascontiguousarray(np.where(np.isnan(part), np.nan, part)).tobytes(), crc)
    return crc
