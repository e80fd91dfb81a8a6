"""The set transformer of cells: a cell is a multiset of genes, its vector a function of the cell alone.

    genes of the vocabulary -> one table of tokens -> PMA over each cell -> head -> z      (encoder)
    z, batch -> share of each gene -> expected counts                                      (decoder)

Counts enter as multiplicities: a gene is in the set log(1 + 10^4 c / library) times. All cells share one table of
tokens, so keys, values and scores are computed once per gene and step, and the sums of all cells are one matrix product
(`omniset.layers.set_transformer.InducedLayer.tabulate`). With `depth` > 0 genes see each other before they are pooled,
through U-ISABs, which costs time per gene of each cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from omniset import encoders
from omniset.cells.completing import Completion
from omniset.core.sets import SetBatch
from omniset.encoders import AttentionEncoder
from omniset.layers.set_transformer import InducedLayer

SCALE = 1e4  # counts per so many, before the logarithm
WIDTH = 128  # of the head's and the decoder's hidden layer
GATHERED = 1 << 16  # tokens, at most, that are gathered at a time
TEMPERATURE = 0.1  # of the soft clusters
DECAY = 0.95  # of the sums over cells per step
RIDGE = 1.0  # cells without offset, per cluster and batch


def depth_normalised(
    counts: Float[Tensor, "cells genes"], library: Float[Tensor, " cells"]
) -> Float[Tensor, "cells genes"]:
    """log(1 + 10^4 c / library); 0 for a cell without counts.

    Args:
        library: Sum of all counts of each cell, also of genes that are no columns here.
    """
    return torch.log1p(counts / library[:, None].clamp(min=torch.finfo(counts.dtype).tiny) * SCALE)


class GeneTokens(nn.Module):
    """One table of tokens: a vector of the gene's own, a projection of a given vector, or their sum.

    Args:
        genes: Vocabulary size G.
        dim: Width d.
        vectors: (G, token_dim) frozen, rows of zeros for genes that have none; or their width, to be loaded. They are
            scaled to length 1. None: own vectors only.
        own: "fixed" (to be set, see `cells.training.start_from_axes`), "learned", or "none".
    """

    own: Tensor | None
    vectors: Tensor | None

    def __init__(
        self, genes: int, dim: int, vectors: Float[Tensor, "genes token_dim"] | int | None = None, own: str = "fixed"
    ) -> None:
        super().__init__()
        if vectors is None and own == "none":
            raise ValueError("own='none' needs gene vectors")
        drawn = torch.randn(genes, dim)
        if own == "learned":
            self.own = nn.Parameter(drawn)
        else:
            self.register_buffer("own", drawn if own == "fixed" else None)
        if isinstance(vectors, int):
            vectors = torch.zeros(genes, vectors)
        self.register_buffer("vectors", None if vectors is None else F.normalize(vectors, dim=1))
        self.project = (
            None if self.vectors is None else nn.Sequential(nn.Linear(self.vectors.shape[1], dim), nn.LayerNorm(dim))
        )

    def forward(self) -> Float[Tensor, "genes dim"]:
        tokens = torch.zeros(()) if self.own is None else self.own
        if self.project is None:
            return tokens
        assert self.vectors is not None
        known = (self.vectors != 0).any(1, keepdim=True)  # a gene without a vector has its own alone
        return tokens + self.project(self.vectors) * known


class CellEncoder(nn.Module):
    """Counts of a cell to its vector z.

    Args:
        genes: Vocabulary size.
        latent: Width of z.
        encoder: In the registry. Its summary (num_outputs vectors) goes through the head.
        counts: How they enter: "multiplicity", the depth-normalised one; "log1p", log(1 + c) as multiplicity; or
            "tokens": token * (1 + a(v)) + b(v) with v the depth-normalised count and a, b learned, every gene once.
        vectors, own: See GeneTokens.
        options: For the encoder.
    """

    def __init__(
        self,
        genes: int,
        *,
        latent: int,
        encoder: str,
        dim: int,
        depth: int,
        num_heads: int,
        num_inducing: int,
        num_outputs: int,
        dropout: float,
        counts: str = "multiplicity",
        vectors: Float[Tensor, "genes token_dim"] | int | None = None,
        own: str = "fixed",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.tokens = GeneTokens(genes, dim, vectors, own)
        sizes = {"input_dim": dim, "dim": dim, "depth": depth, "num_heads": num_heads, "num_inducing": num_inducing}
        sizes |= {"num_outputs": num_outputs, "input_layers": 0, "ffn_dim": 2 * dim}
        self.encoder = encoders.build(encoder, **(sizes | (options or {})))
        self.counts, self.width = counts, dim
        # A gene that is expected a little would be one more token of a cell whose genes are there once each.
        self.completion = None if counts == "tokens" else Completion(genes, dim)
        self.modulate = (
            nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 2 * dim)) if counts == "tokens" else None
        )
        width = self.encoder.num_outputs * self.encoder.dim
        # Means over hundreds of genes are much alike: what differs between cells is small beside what they share.
        self.standard = nn.BatchNorm1d(width)
        self.head = nn.Sequential(
            nn.LayerNorm(width), nn.Dropout(dropout), nn.Linear(width, WIDTH), nn.SiLU(), nn.LayerNorm(WIDTH)
        )
        self.mean, self.log_variance = nn.Linear(WIDTH, latent), nn.Linear(WIDTH, latent)

    @property
    def tabulates(self) -> bool:
        """Whether cells are pooled by one product from a table; else their genes' tokens are gathered."""
        return (
            self.modulate is None
            and isinstance(self.encoder, AttentionEncoder)
            and not len(self.encoder.layers)
            and isinstance(self.encoder.pool, InducedLayer)
        )

    def table(self) -> Any:
        """What all cells share; made once for many of them where weights do not change."""
        tokens = self.tokens()
        if not self.tabulates:
            return tokens
        pool = self.encoder.pool
        assert isinstance(pool, InducedLayer)
        return pool.tabulate(self.encoder.embed(tokens))

    def hidden(self, values: Float[Tensor, "cells genes"], table: Any = None) -> Float[Tensor, "cells width"]:
        table = self.table() if table is None else table
        if self.tabulates:
            pool = self.encoder.pool
            assert isinstance(pool, InducedLayer)
            summary = self.encoder.decoder(pool.pool_tabulated(table, values))
        else:
            summary = self._gathered(values, table)
        return self.head_of(summary)

    def head_of(self, summary: Float[Tensor, "cells outputs dim"]) -> Float[Tensor, "cells width"]:
        return self.head(self.standard(summary.flatten(1)))

    def _gathered(
        self, values: Float[Tensor, "cells genes"], tokens: Float[Tensor, "genes dim"]
    ) -> Float[Tensor, "cells outputs dim"]:
        """Cells of like size together, so that little is padded, in groups that fit."""
        sizes = (values > 0).sum(1)
        order = sizes.argsort(stable=True)
        ends, start = [], 0
        for i, size in enumerate(sizes[order].tolist()):
            if i > start and (i + 1 - start) * size > GATHERED:
                ends.append(i - start)
                start = i
        groups = order.split([*ends, len(order) - start])
        summaries = torch.cat([self.encoder(self.sets(values[group], tokens)).summary for group in groups])
        return summaries[order.argsort()]

    def forward(
        self,
        counts: Float[Tensor, "cells genes"],
        library: Float[Tensor, " cells"],
        table: Any = None,
        measured: Bool[Tensor, "cells genes"] | None = None,
    ) -> tuple[Float[Tensor, "cells latent"], Float[Tensor, "cells latent"]]:
        """Mean and log-variance of z.

        Args:
            library: See depth_normalised.
            table: What `table()` gave; None: made anew.
            measured: Genes that were; the others are filled in. None: all were.
        """
        hidden = self.hidden(self.values(counts, library, measured), table)
        return self.mean(hidden), self.log_variance(hidden).clamp(-10, 4)

    def values(
        self,
        counts: Float[Tensor, "cells genes"],
        library: Float[Tensor, " cells"],
        measured: Bool[Tensor, "cells genes"] | None = None,
    ) -> Float[Tensor, "cells genes"]:
        """What stands for the counts, of genes that were not measured what is expected."""
        values = torch.log1p(counts) if self.counts == "log1p" else depth_normalised(counts, library)
        return values if measured is None or self.completion is None else self.completion(values, measured)

    def sets(self, values: Float[Tensor, "cells genes"], tokens: Float[Tensor, "genes dim"]) -> SetBatch:
        """The expressed genes of each cell as a set of tokens: (B, N, d), N the largest number expressed."""
        present = values > 0
        width = max(int(present.sum(1).max()), 1) if len(values) else 1
        which = torch.sort(present.to(torch.uint8), dim=1, descending=True, stable=True).indices[:, :width]
        there, value = present.gather(1, which), values.gather(1, which)
        elements = tokens[which]
        if self.modulate is None:
            return SetBatch(elements, value, validate=False)
        gain, shift = self.modulate(value[..., None]).chunk(2, -1)
        return SetBatch(elements * (1 + gain) + shift, there, validate=False)


class CellDecoder(nn.Module):
    """z and batch to the share of each gene: softmax over the measured genes of W relu(LN(U [z; batch])) + b.

    Args:
        genes: Vocabulary size.
        latent: Width of z.
        batches: Number of batches. The decoder alone knows a cell's batch, so that z need not hold it.
    """

    def __init__(self, genes: int, latent: int, batches: int) -> None:
        super().__init__()
        self.batches = batches
        self.hidden = nn.Sequential(nn.Linear(latent + batches, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU())
        self.logits = nn.Linear(WIDTH, genes)
        self.log_dispersion = nn.Parameter(torch.zeros(genes))

    def forward(
        self,
        z: Float[Tensor, "cells latent"],
        batch: Float[Tensor, "cells batches"],
        measured: Bool[Tensor, "cells genes"] | None = None,
    ) -> Float[Tensor, "cells genes"]:
        """Logarithms of the shares.

        Args:
            batch: One-hot, or the mean of several batches.
            measured: Genes among which the shares add up to 1. None: all.
        """
        logits = self.logits(self.hidden(torch.cat((z, batch), 1)))
        if measured is not None:
            logits = logits.masked_fill(~measured, torch.finfo(logits.dtype).min)
        return logits.log_softmax(1)


class Alignment(nn.Module):
    """Soft clusters of cells, and how far in each of them the cells of a batch lie from those of all batches.

    Harmony (Korsunsky et al., "Fast, sensitive and accurate integration of single-cell data with Harmony", 2019) moves
    cells by these distances; here the loss makes the *encoder* undo them, so that a vector stays a function of
    its cell. Clusters hold z's direction; sums run over the last steps.

    Args:
        clusters: Number K of clusters.
        latent: Width of z.
        batches: Number of batches.
    """

    counts: Tensor
    sums: Tensor

    def __init__(self, clusters: int, latent: int, batches: int) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(clusters, latent))
        self.register_buffer("counts", torch.zeros(clusters, batches))
        self.register_buffer("sums", torch.zeros(clusters, batches, latent))

    def forward(self, z: Float[Tensor, "cells latent"], batch: Int[Tensor, " cells"]) -> tuple[Tensor, Tensor]:
        """The mean squared distance of cells to where they would be moved; and that of directions to their centres."""
        centres = F.normalize(self.centres, dim=1)
        distance = 2 - 2 * F.normalize(z.detach(), dim=1) @ centres.T
        share = (-distance.detach() / TEMPERATURE).softmax(1)
        with torch.no_grad():
            one_hot = F.one_hot(batch, self.counts.shape[1]).to(z.dtype)
            self.counts.mul_(DECAY).add_(share.T @ one_hot)
            self.sums.mul_(DECAY).add_(torch.einsum("nk,nb,nd->kbd", share, one_hot, z))
            total = self.counts.sum(1)
            middle = self.sums.sum(1) / total.clamp(min=1e-6)[:, None]
            # Few cells of a batch say little of where it lies: as Harmony's ridge, cells without offset are added.
            offset = (self.sums - self.counts[..., None] * middle[:, None]) / (self.counts[..., None] + RIDGE)
            target = z - torch.einsum("nk,nkd->nd", share, offset[:, batch].transpose(0, 1))
        return (z - target).square().sum(1).mean(), (share * distance).sum(1).mean()


class TypeHead(nn.Module):
    """How well vectors tell the types of labelled cells apart.

        loss = sum_i w_i (-log softmax(W z_i + b)[y_i]) / sum_i w_i,   w_i = 1 / sqrt(n[y_i])

    over the cells i that have a type y_i, of which there are n[y_i]: rare types weigh more than their number, and do
    not drown the others. Cells without a type have no part in it; without any that has one it is 0.

    Args:
        latent: Width of z.
        types: Number of types.
    """

    weights: Tensor

    def __init__(self, latent: int, types: int) -> None:
        super().__init__()
        self.linear = nn.Linear(latent, types)
        self.register_buffer("weights", torch.ones(types))

    def weigh(self, numbers: Int[Tensor, " types"]) -> None:
        """Take up how many cells each type has."""
        self.weights.copy_(numbers.clamp(min=1).to(self.weights).rsqrt())

    def forward(self, z: Float[Tensor, "cells latent"], types: Int[Tensor, " cells"]) -> Float[Tensor, ""]:
        """Args:
        types: Their numbers, -1 where not known.
        """
        total = F.cross_entropy(self.linear(z), types, self.weights, ignore_index=-1, reduction="sum")
        return total / self.weights[types[types >= 0]].sum().clamp(min=1e-12)


class CellModel(nn.Module):
    """Encoder, decoder and alignment: what is trained and saved.

    Args:
        genes: Vocabulary size.
        batches: Number of batches.
        latent: Width of z.
        clusters: Of the alignment.
        types: Of labelled cells, which teach too. 0: none do.
        **encoder: See CellEncoder.
    """

    LATER = ("encoder.completion.",)  # of a model without them, missing genes count as not expressed

    def __init__(self, genes: int, batches: int, *, latent: int, clusters: int, types: int = 0, **encoder: Any) -> None:
        super().__init__()
        self.encoder = CellEncoder(genes, latent=latent, **encoder)
        self.decoder = CellDecoder(genes, latent, batches)
        self.alignment = Alignment(clusters, latent, batches)
        self.types = TypeHead(latent, types) if types else None

    def start_from(self, other: CellModel, batches: Sequence[int | None]) -> None:
        """Take over the weights of a model of the same sizes.

        Args:
            batches: For each batch of this model, its number in the other. One that the other does not know, None,
                starts as the mean of all that it knows.
        """
        state = other.state_dict()
        name = "decoder.hidden.0.weight"
        of_z, of_batches = state[name].split([state[name].shape[1] - other.decoder.batches, other.decoder.batches], 1)
        columns = [of_batches.mean(1) if number is None else of_batches[:, number] for number in batches]
        state[name] = torch.cat((of_z, torch.stack(columns, 1)), 1)
        # Where batches lie is found anew, and other types are told apart.
        anew = ("alignment.counts", "alignment.sums", "types.")
        state = {key: value for key, value in state.items() if not key.startswith(anew)}
        state |= {key: value for key, value in self.state_dict().items() if key.startswith(anew)}
        self.load_state_dict(state)
