"""The seed's networks of region pairs: cross-attention between two regions' genes, and what it is compared with.

Source: the document "CrossAttentionGene2VecModel - Detailed Architecture"; what it leaves open is said where it is
decided. Regions are kept once, pairs are positions (i, j) into them: no input is ever copied per pair.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.core.attention import log_multiplicity
from omniset.core.checks import check_sizes
from omniset.core.sets import SetBatch
from omniset.core.states import State
from omniset.layers import MultisetAttentionBlock
from omniset.training.network import Standardize

BINS, TOKEN_DIM, HIDDEN = 5, 200, (512, 256, 128)
CLS_DIM, CLS_SCALE = 6, 0.02

CLS = ("random", "spatial")
POOLINGS = ("mean", "attention", "cls")


class ExpressionTokens(nn.Module):
    """The genes of each region as a set of vectors.

        t_g = W (U onehot(bin(x_g)) + u + v_g) + w,    bin(x) = how many of the edges 1/K, ..., (K-1)/K are <= x

    with K bins, v_g the gene's vector, U token_dim x K and W dim x token_dim. Values below 0 fall into the first bin,
    those above 1 into the last, as if clamped. Values and edges are compared in float32, whatever they come in, so that
    a value on an edge is in the same bin everywhere. A gene whose expression is NaN is absent: its multiplicity is 0.

    U onehot(bin) + u has K values and v_g one per gene, so W is applied to K + genes rows, however many regions there
    are.

    The document's own best configuration has one-hot genes instead of vectors. A Linear of a one-hot gene is a table of
    vectors that are learned (its bias adds to u), and that is what `vectors=None` is.

    Args:
        genes: Number of genes.
        dim: Width of the tokens.
        bins: K.
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
        bins: int = BINS,
        vectors: Float[Tensor, "genes token_dim"] | None = None,
        token_dim: int = TOKEN_DIM,
    ) -> None:
        super().__init__()
        check_sizes(genes=genes, dim=dim, bins=bins, token_dim=token_dim)
        if vectors is None:
            self.vectors = nn.Parameter(torch.randn(genes, token_dim))
        else:
            _check_vectors(vectors, genes)
            self.register_buffer("vectors", vectors.detach().to(torch.get_default_dtype(), copy=True))
        self.genes, self.bins = genes, bins
        self.bin = nn.Linear(bins, self.vectors.shape[1])
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
        edges = torch.arange(1, self.bins, device=expression.device) / self.bins
        bins = F.one_hot(torch.bucketize(expression.float(), edges, right=True), self.bins)
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

    def __init__(self, dim: int, hidden: Sequence[int] = HIDDEN, dropout: float = 0.1) -> None:
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


class PairNetwork(nn.Module):
    """What both networks have: tokens, CLS, layers, pooling, head. A layer is LN(x + MHA(x, y)), LN(h + FFN(h)), its
    FFN dim - 4 dim - dim with ReLU.

    Args:
        genes: Number of genes: the columns of expression, in this order.
        dim: Width of the tokens, divisible by num_heads.
        depth: Number of layers.
        pooling: "mean", "attention" or "cls", see `TokenPooling`.
        dropout: Of the outputs of attention and FFN and within the head, in training.
        bins: As in ExpressionTokens, and so vectors and token_dim.
        hidden: Widths of the head's layers.

    Raises:
        ValueError: A size or a choice out of bounds; vectors as in ExpressionTokens.
    """

    cls: Tensor | None
    reads_coordinates = False
    """Whether `forward` needs coordinates; else they may be given and are not read."""
    _vectors_of_a_pair = 1

    def __init__(
        self,
        genes: int,
        dim: int = 128,
        num_heads: int = 4,
        depth: int = 4,
        pooling: str = "mean",
        dropout: float = 0.1,
        bins: int = BINS,
        vectors: Float[Tensor, "genes token_dim"] | None = None,
        token_dim: int = TOKEN_DIM,
        hidden: Sequence[int] = HIDDEN,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, num_heads=num_heads, depth=depth)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be >= 0 and < 1, got {dropout!r}")
        self.tokens = ExpressionTokens(genes, dim, bins, vectors, token_dim)
        self.cls = nn.Parameter(CLS_SCALE * torch.randn(CLS_DIM))
        self.cls_projection = nn.Linear(CLS_DIM, dim)
        self.layers = nn.ModuleList(
            MultisetAttentionBlock(dim, num_heads, 4 * dim, norm="post", dropout=dropout, activation="relu")
            for _ in range(depth)
        )
        self.pool = TokenPooling(dim, pooling)
        self.head = ConnectivityHead(dim * self._vectors_of_a_pair, hidden, dropout)

    def forward(
        self,
        expression: Float[Tensor, "regions genes"],
        pairs: Int[Tensor, "pairs 2"],
        coordinates: Float[Tensor, "regions 3"] | None = None,
        shard_size: int | None = None,
    ) -> Float[Tensor, " pairs"]:
        """Connectivity of each pair (i, j).

        Args:
            expression: (N, G) of all regions, once; NaN: not measured.
            pairs: (B, 2) positions of i and j among the regions.
            coordinates: (N, 3) in mm.
            shard_size: Take the keys of every attention in shards of so many genes, with the same result.

        Raises:
            ValueError: Another number of genes; a position out of range; coordinates that are needed and are missing,
                not finite, or of another number; coordinates before `standardise`; a shard_size < 1.
        """
        return self.head(self._pooled(expression, pairs, coordinates, shard_size))

    def grid(
        self,
        expression: Float[Tensor, "regions genes"],
        rows: Int[Tensor, " rows"],
        columns: Int[Tensor, " columns"],
        coordinates: Float[Tensor, "regions 3"] | None = None,
    ) -> Float[Tensor, "rows columns"]:
        """Connectivity of every pair (i, j) of i in rows and j in columns: what `forward` gives for these."""
        pairs = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1).flatten(0, 1)
        return self(expression, pairs, coordinates).view(len(rows), len(columns))

    def _pooled(
        self, expression: Tensor, pairs: Tensor, coordinates: Tensor | None, shard_size: int | None
    ) -> Float[Tensor, "pairs _"]:
        """What the head reads of each pair."""
        raise NotImplementedError

    def _distinct(
        self, expression: Tensor, pairs: Int[Tensor, "pairs 2"]
    ) -> tuple[SetBatch, Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
        """The tokens of every region that occurs, once, and where those of each pair's i and j are."""
        _check_positions("pairs", pairs, len(expression))
        regions, where = pairs.unique(return_inverse=True)
        return self.tokens(expression[regions]), where[:, 0], where[:, 1]


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
    block: Any, queries: Float[Tensor, "sets queries dim"], keys: SetBatch, shard_size: int | None = None
) -> Float[Tensor, "sets queries dim"]:
    if shard_size is None:
        everything = bool((keys.multiplicity > 0).all())  # then faster kernels will do
        return block(queries, keys.elements, None if everything else keys.multiplicity)
    shards = (block.reduce(queries, part.elements, part.multiplicity) for part in keys.shards(shard_size))
    state: Any = reduce(State.merge, shards)
    return block.finish(queries, state)


class CrossAttention(PairNetwork):
    """The document's network: region i's genes, with CLS before them, attend to region j's.

        K = [t_j1, ..., t_jG]                                  keys and values of every layer
        Q_0 = [CLS ; t_i1, ..., t_iG]
        Q_l = LN(h + FFN(h)),  h = LN(Q_l-1 + MHA(Q_l-1, K, K))     l = 1, ..., depth
        f(i, j) = head(pool(Q_depth))

        CLS   random:   Linear(p), p six numbers that are learned, N(0, 0.02^2) at the start
              spatial:  Linear(0.02 [s(c_i) ; s(c_j)]), s the standardisation with the training regions' mean and
                        standard deviation per axis, stored with the model

    f(i, j) is not f(j, i). Genes that are absent are no keys and are not pooled.

    The rows of Q never see one another: each row only meets region j. So with pooling="cls" no gene of region i reaches
    the prediction, against what the document says of this option; a warning says so. And so `grid` computes the rows of
    a region j once for all its partners i, as a row depends on the gene, its bin and j only.

    Args:
        genes, **options: As in PairNetwork.
        cls: "random" or "spatial".
    """

    def __init__(self, genes: int, *, cls: str = "random", **options: Any) -> None:
        if cls not in CLS:
            raise ValueError(f"cls must be one of {', '.join(CLS)}, got {cls!r}")
        super().__init__(genes, **options)
        if self.pool.pooling == "cls":
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

    def _pooled(
        self, expression: Tensor, pairs: Tensor, coordinates: Tensor | None, shard_size: int | None
    ) -> Float[Tensor, "pairs dim"]:
        queries, keys = self._read(expression, pairs, coordinates)
        x = queries.elements
        for layer in self.layers:
            x = _attend(layer, x, keys, shard_size)
        return self.pool(x, queries.multiplicity)

    def attention(
        self,
        expression: Float[Tensor, "regions genes"],
        pairs: Int[Tensor, "pairs 2"],
        coordinates: Float[Tensor, "regions 3"] | None = None,
        layer: int = -1,
    ) -> Float[Tensor, "pairs queries genes"]:
        """The attention weights of a layer, mean over its heads: (B, 1 + G, G), CLS and genes of i by genes of j.

        Each row sums to 1. Rows of genes absent in i and columns of genes absent in j are 0. In training mode dropout
        is on in the layers before.

        Args:
            layer: From 0, or from -1 backwards.

        Raises:
            ValueError: No such layer; otherwise as `forward`.
        """
        depth = len(self.layers)
        if not -depth <= layer < depth:
            raise ValueError(f"layer must be >= {-depth} and < {depth}, got {layer}")
        queries, keys = self._read(expression, pairs, coordinates)
        x = queries.elements
        for before in self.layers[: layer % depth]:
            x = _attend(before, x, keys)
        block: Any = self.layers[layer]
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
            return super().grid(expression, rows, columns, coordinates)
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
        tokens, i, j = self._distinct(expression, pairs)
        return _with_cls(self._cls(expression, pairs, coordinates), tokens[i]), tokens[j]

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


class SelfAttentionConcat(PairNetwork):
    """What the document compares its network with: each region by itself, then both side by side.

        X_0 = [CLS ; t_1, ..., t_G],  X_l = LN(h + FFN(h)),  h = LN(X_l-1 + MHA(X_l-1, X_l-1, X_l-1))
        f(i, j) = head([pool(X_depth of i) ; pool(X_depth of j)]),    CLS = Linear(p), p six numbers that are learned

    Every region of a batch is encoded once, however many of its pairs are in it. Coordinates are not read. Genes that
    are absent are no keys and are not pooled.

    Args:
        genes: As in PairNetwork, and so all others.
    """

    _vectors_of_a_pair = 2

    def _pooled(
        self, expression: Tensor, pairs: Tensor, coordinates: Tensor | None, shard_size: int | None
    ) -> Float[Tensor, "pairs _"]:
        genes, i, j = self._distinct(expression, pairs)
        tokens = _with_cls(self.cls_projection(self.cls).expand(len(genes), -1), genes)
        x, multiplicity = tokens.elements, tokens.multiplicity
        for layer in self.layers:
            x = _attend(layer, x, SetBatch(x, multiplicity, validate=False), shard_size)
        pooled = self.pool(x, multiplicity)
        return torch.cat([pooled[i], pooled[j]], 1)
