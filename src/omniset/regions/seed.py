"""The seed's network of region pairs, cross-attention between two regions' genes, and how it is trained.

Source: the document "CrossAttentionGene2VecModel - Detailed Architecture"; what it leaves open is said where it is
decided. Regions are kept once, pairs are positions (i, j) into them: no input is ever copied per pair.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.core.attention import log_multiplicity
from omniset.core.sets import SetBatch
from omniset.layers import MultisetAttentionBlock
from omniset.regions.data import Pairs, PairValues, Regions, known_pairs, matrix_of, places_of
from omniset.regions.methods import Method
from omniset.regions.options import PredictorOptions
from omniset.regions.splits import FEWEST, split
from omniset.runs import devices
from omniset.training.artefacts import Weights
from omniset.training.data import EpochSampler, Key, Lesson
from omniset.training.fit import TrainingModule, fit
from omniset.training.network import Standardize

# As published.
BINS, TOKEN_DIM, HEADS, HIDDEN, DROPOUT = 5, 200, 4, (512, 256, 128), 0.1
CLS_DIM, CLS_SCALE = 6, 0.02
SYMMETRY = 0.1  # weight of the mean of (f(i, j) - f(j, i))^2
WEIGHT_DECAY = 1e-2
BATCH = 23  # regions, all of whose pairs are learned from

COLUMNS_TOGETHER = 4  # when predicting
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
        vectors: Of the genes; kept as they are, and stored with the model. None: learned, N(0, 1) at the start.
    """

    vectors: Tensor

    def __init__(self, genes: int, dim: int, vectors: Float[Tensor, "genes token_dim"] | None = None) -> None:
        super().__init__()
        if vectors is None:
            self.vectors = nn.Parameter(torch.randn(genes, TOKEN_DIM))
        else:
            self.register_buffer("vectors", vectors.detach().to(torch.get_default_dtype(), copy=True))
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
        """The bin of each gene, one-hot; no bin where the expression is NaN."""
        edges = torch.arange(1, BINS, device=expression.device) / BINS
        bins = F.one_hot(torch.bucketize(expression.float(), edges, right=True), BINS)
        return bins.masked_fill(expression.isnan()[..., None], 0)


# ---------------------------------------------------------------------- pooling and head


class TokenPooling(nn.Module):
    """One vector of CLS and some genes: sum_t a_t x_t over these tokens.

        mean       a_t = 1 / number of tokens
        attention  a = softmax over t of w . tanh(V x_t), V dim x dim, no biases
        cls        a = 1 for CLS, which is the first token, and 0 for the others

    The document does not say what its attention pooling is; this form is that of Ilse et al., "Attention-based Deep
    Multiple Instance Learning", 2018.
    """

    def __init__(self, dim: int, pooling: str) -> None:
        super().__init__()
        self.pooling = pooling
        self.score: nn.Module | None = None
        if pooling == "attention":
            self.score = nn.Sequential(nn.Linear(dim, dim, bias=False), nn.Tanh(), nn.Linear(dim, 1, bias=False))

    def forward(
        self,
        cls: Float[Tensor, "sets firsts dim"],
        genes: Float[Tensor, "sets tokens dim"],
        members: Float[Tensor, "subsets tokens"],
    ) -> Float[Tensor, "subsets sets dim"]:
        """A vector for each of many subsets of the same tokens.

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


class ConnectivityHead(nn.Module):
    """Linear, ReLU, BatchNorm, dropout for each of the published widths, then Linear to 1."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in HIDDEN:
            layers += [nn.Linear(dim, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Dropout(DROPOUT)]
            dim = width
        self.layers = nn.Sequential(*layers, nn.Linear(dim, 1))

    def forward(self, x: Float[Tensor, "pairs dim"]) -> Float[Tensor, " pairs"]:
        return self.layers(x)[:, 0]


# ---------------------------------------------------------------------- the networks


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
    the prediction, against what the document says of this option; a warning says so. And so the rows of a region j are
    computed once for all its partners i, as a row depends on the gene, its bin and j only.

    Args:
        genes: Number of genes: the columns of expression, in this order.
        dim: Width of the tokens, divisible by the heads.
        cls: "random" or "spatial".
        pooling: "mean", "attention" or "cls", see `TokenPooling`.
    """

    cls: Tensor | None

    def __init__(
        self,
        genes: int,
        dim: int = 128,
        depth: int = 4,
        cls: str = "random",
        pooling: str = "mean",
        vectors: Float[Tensor, "genes token_dim"] | None = None,
    ) -> None:
        super().__init__()
        self.tokens = ExpressionTokens(genes, dim, vectors)
        self.cls = nn.Parameter(CLS_SCALE * torch.randn(CLS_DIM))
        self.cls_projection = nn.Linear(CLS_DIM, dim)
        self.layers = nn.ModuleList(
            MultisetAttentionBlock(dim, HEADS, 4 * dim, norm="post", dropout=DROPOUT, activation="relu")
            for _ in range(depth)
        )
        self.pool = TokenPooling(dim, pooling)
        self.head = ConnectivityHead(dim)
        if pooling == "cls":
            warnings.warn(
                "pooling='cls' lets no gene of region i into the prediction of a pair (i, j): its CLS token attends to "
                "the genes of region j alone",
                stacklevel=2,
            )
        if cls == "spatial":
            self.cls = None
            self.statistics = Standardize(3)

    def forward(
        self,
        expression: Float[Tensor, "regions genes"],
        rows: Int[Tensor, " rows"],
        columns: Int[Tensor, " columns"],
        coordinates: Float[Tensor, "regions 3"] | None = None,
    ) -> Float[Tensor, "rows columns"]:
        """Connectivity of every pair (i, j) of i in rows and j in columns.

        For each j the layers run once over the distinct (gene, bin) that occur in rows, at most K G of them, instead of
        over G tokens for each i: with many rows this is cheaper by a factor up to rows / K. Pairs of the same j share
        what dropout drops.

        Args:
            expression: (N, G) of all regions, once; NaN: not measured.
            coordinates: (N, 3) in mm; read by cls="spatial" alone.
        """
        members = self.tokens.one_hot(expression[rows]).flatten(1)
        used = members.any(0).nonzero()[:, 0]
        by_bin, by_gene = self.tokens.tables()
        table = (by_gene[:, None] + by_bin).flatten(0, 1)[used]
        keys = self.tokens(expression[columns])
        cls = self._cls(rows, columns, coordinates)
        x = torch.cat([cls, table.expand(len(columns), -1, -1)], 1)
        for layer in self.layers:
            x = _attend(layer, x, keys)
        first = cls.shape[1]
        pooled = self.pool(x[:, :first], x[:, first:], members[:, used].to(x))
        return self.head(pooled.flatten(0, 1)).view(len(rows), len(columns))

    def standardise(self, coordinates: Float[Tensor, "regions 3"]) -> None:
        """Store mean and standard deviation of the *training* regions' coordinates, to which all later ones are put."""
        statistics = Standardize(3).double()  # on the CPU, since not every device has float64
        statistics.fit([(coordinates.detach().cpu(), torch.ones(len(coordinates)))])
        self.statistics.load_state_dict(statistics.state_dict())

    def attention(
        self, expression: Float[Tensor, "2 genes"], coordinates: Float[Tensor, "2 3"] | None = None
    ) -> Float[Tensor, "queries genes"]:
        """The last layer's attention weights, mean over its heads: (1 + G, G), CLS and genes of i by genes of j.

        Each row sums to 1. Rows of genes absent in i and columns of genes absent in j are 0.
        """
        i, j = torch.tensor([0]), torch.tensor([1])
        genes, keys = self.tokens(expression[i]), self.tokens(expression[j])
        x = torch.cat([self._cls(i, j, coordinates), genes.elements], 1)
        present = torch.cat([torch.ones_like(genes.multiplicity[:, :1]), genes.multiplicity], 1)
        for before in self.layers[:-1]:
            x = _attend(before, x, keys)
        block: Any = self.layers[-1]
        m = keys.multiplicity
        m = torch.where((m > 0).any(1, keepdim=True), m, 1)  # no NaN of a region without genes, whose weights are 0
        bias = log_multiplicity(m, x.dtype)[:, None]
        q, k, _ = (part.chunk(block.num_heads, -1) for part in block.project(x, keys.elements))
        weights = sum((block.scale * a @ b.mT + bias).softmax(-1) for a, b in zip(q, k, strict=True))
        return (weights / block.num_heads * keys.multiplicity[:, None] * present[..., None])[0]

    def _cls(
        self, rows: Int[Tensor, " rows"], columns: Int[Tensor, " columns"], coordinates: Tensor | None
    ) -> Float[Tensor, "columns firsts dim"]:
        """The CLS tokens of each region j: one for each i, or one for all of them (firsts = 1)."""
        if self.cls is not None:
            return self.cls_projection(self.cls).expand(len(columns), 1, -1)
        assert coordinates is not None
        scaled = self.statistics(coordinates.to(self.statistics.shift))
        pairs = torch.stack(torch.meshgrid(rows, columns, indexing="xy"), -1)
        return self.cls_projection(CLS_SCALE * scaled[pairs].flatten(2))


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

    What is watched is the mean of both ways.

    Args:
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
        return self.network(self.expression[rows.cpu()].to(rows.device), everything, everything, coordinates)

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
    """

    name = "seed"
    network: CrossAttention  # once fitted
    history: list[dict[str, Any]]  # of each epoch the losses
    folder: Path | None = None  # for checkpoints; None: a temporary one
    resume = False  # go on from the folder's checkpoint, if it was made with the same options

    def __init__(self, options: PredictorOptions, vectors: Float[np.ndarray, "genes token_dim"] | None = None) -> None:
        super().__init__()
        self.options, self.vectors = options, vectors
        self.needs_coordinates = options.cls == "spatial"

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
            self.options.learning_rate,
            WEIGHT_DECAY,
            seed,
            {**self.options.fingerprint(), "vectors": vectors, "data": checksum(train)},
            expression=torch.from_numpy(train.expression[order]).float(),
            coordinates=None if coordinates is None else coordinates[order],
            target=torch.from_numpy(target[np.ix_(order, order)]).float(),
            directed=self.directed,
        )
        fit(
            module,
            _lesson(len(learn), len(watched), seed),
            epochs=self.options.epochs,
            patience=PATIENCE if len(watched) else None,
            device=self.options.device,
            progress=self.options.progress,
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
            of = self.options
            return CrossAttention(genes, of.dim, of.depth, of.cls, of.pooling, vectors)

    def _coordinates(self, regions: Regions) -> Float[Tensor, "regions 3"] | None:
        """For the networks that read them."""
        if not self.needs_coordinates:
            return None
        return torch.from_numpy(places_of(regions)).float()

    @torch.no_grad()
    def _predict(self, regions: Regions, pairs: Pairs) -> PairValues:
        device = devices.find(self.options.device)
        network = self.network.to(device).eval()
        expression = torch.from_numpy(regions.expression).float().to(device)
        coordinates = self._coordinates(regions)
        coordinates = None if coordinates is None else coordinates.to(device)
        rows = torch.arange(len(regions), device=device)
        parts = [network(expression, rows, some, coordinates) for some in rows.split(COLUMNS_TOGETHER)]
        matrix = torch.cat(parts, 1).double().cpu().numpy()
        network.to("cpu")
        if not self.directed:
            matrix = (matrix + matrix.T) / 2
        return matrix[tuple(pairs.T)] * self._scale + self._mean

    @torch.no_grad()
    def weights(self, pair: Regions) -> Float[np.ndarray, "rows genes"]:
        """Of two regions: the last layer's attention of CLS and of each gene of the first to each of the second."""
        expression = torch.from_numpy(pair.expression).float()
        return self.network.attention(expression, self._coordinates(pair)).double().numpy()

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
