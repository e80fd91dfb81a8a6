"""What a sequence is by itself: naive Bayes on its k-mers, and a network, each with a score for every taxon."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.kernels import products
from omniset.microbiomes.naive_bayes import KmerLikelihood, KmerTable
from omniset.microbiomes.sequences import STRAND
from omniset.tables.dna import Kmers, kmers_of

CANDIDATES = 64  # taxa of each sequence that a sample chooses among
WEIGHTS = (0.3, 0.3)  # of naive Bayes and of the network, where too little is kept back to learn them


class KmerProjection(nn.Module):
    """Vectors of sequences: sum over k of table_k[k-mers].sum / sqrt(number of k-mers).

    Args:
        lengths: Of the k-mers; a table has 4^k rows.
        width: Of the vectors.
    """

    def __init__(self, lengths: Sequence[int], width: int) -> None:
        super().__init__()
        self.lengths = tuple(lengths)
        self.tables = nn.ModuleList(nn.EmbeddingBag(4**k, width, mode="sum") for k in lengths)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.05)  # type: ignore[arg-type]

    def read(self, texts: Sequence[str]) -> list[Kmers]:
        """What `forward` takes."""
        return [kmers_of(texts, k) for k in self.lengths]

    def forward(self, inputs: list[Kmers]) -> Float[Tensor, "sequences width"]:
        total = torch.stack([one.sizes for one in inputs]).sum(0).clamp(min=1)
        summed = torch.stack(
            [table(one.numbers, one.starts) for table, one in zip(self.tables, inputs, strict=True)]
        ).sum(0)
        return summed / total.to(summed.dtype).sqrt()[:, None]


class SequenceNetwork(nn.Module):
    """Each sequence by itself: a scaled cosine between its vector and one of each taxon, in several members.

    A member has its own part of the vectors, layer-normalised, and learns for itself; logits are the mean of the
    members', as in Lakshminarayanan et al., "Simple and scalable predictive uncertainty estimation using deep
    ensembles", 2017, but of logits in place of probabilities. The length of the taxa's vectors does not count, only
    their direction.

    Args:
        lengths: Of the k-mers.
        width: Of the vectors; divisible by the number of members.
    """

    def __init__(self, lengths: Sequence[int], width: int, taxa: int, members: int = 1) -> None:
        super().__init__()
        self.projection = KmerProjection(lengths, width)
        # Only their direction counts, but the longer they are the slower Adam turns them.
        self.prototypes = nn.Parameter(F.normalize(torch.randn(taxa, members, width // members), dim=-1))
        self.log_scale = nn.Parameter(torch.full((members,), math.log(16.0)))

    def vectors(self, inputs: list[Kmers]) -> Float[Tensor, "sequences width"]:
        """Of k-mers, as the projection reads them."""
        members = self.projection(inputs).unflatten(-1, self.prototypes.shape[1:])
        return F.layer_norm(members, members.shape[-1:]).flatten(-2)

    def directions(self, taxa: slice = slice(None)) -> Float[Tensor, "taxa width"]:
        """Of taxa, as `logits` takes them: members' unit vectors times their scales over the number of members."""
        scales = self.log_scale.exp() / len(self.log_scale)
        return (F.normalize(self.prototypes[taxa], dim=-1) * scales[:, None]).flatten(1)

    def logits(
        self, vectors: Float[Tensor, "sequences width"], directions: Float[Tensor, "taxa width"]
    ) -> Float[Tensor, "sequences taxa"]:
        """Mean over the members of scaled cosines, to some of the taxa."""
        members = vectors.unflatten(-1, self.prototypes.shape[1:])
        return products.linear(F.normalize(members, dim=-1).flatten(-2), directions)

    def logits_of_members(self, vectors: Float[Tensor, "sequences width"]) -> Float[Tensor, "members sequences taxa"]:
        members = F.normalize(vectors.unflatten(-1, self.prototypes.shape[1:]), dim=-1)
        taxa = F.normalize(self.prototypes, dim=-1) * self.log_scale.exp()[:, None]
        return torch.einsum("nmw,tmw->mnt", members, taxa)

    def forward(self, inputs: list[Kmers]) -> Float[Tensor, "sequences taxa"]:
        return self.logits(self.vectors(inputs), self.directions())


class TaxonNetwork(nn.Module):
    """What a read is by itself: naive Bayes on its k-mers and a network of its sequence.

    Args:
        alone: The network.
        likelihood: Naive Bayes.

    Attributes:
        weights: (2,) of the scores of naive Bayes and of the network's logits in their sum.
        profiles: (profiles, taxa) of the habitat, from `profiles=` at fit; none: (0, taxa).
        strand: How much each k-mer of `STRAND` bases speaks for the strand of the references.
    """

    strand: Tensor
    weights: Tensor
    profiles: Tensor

    def __init__(self, alone: SequenceNetwork, likelihood: KmerLikelihood, profiles: int = 0) -> None:
        super().__init__()
        self.alone, self.likelihood = alone, likelihood
        self.register_buffer("weights", torch.tensor(WEIGHTS, dtype=torch.float64))
        self.register_buffer("profiles", torch.zeros(profiles, len(alone.prototypes)))
        self.register_buffer("strand", torch.zeros(4**STRAND))

    @torch.no_grad()
    def directions(self, table: KmerTable) -> Float[Tensor, "rows width"]:
        """Of the taxa of a table; rows of zeros are added, up to whole tiles of matrix products."""
        directions = self.alone.directions(slice(table.first, table.last))
        return F.pad(directions, (0, 0, 0, -len(directions) % products.ROUND))

    @torch.no_grad()
    def candidates(
        self, inputs: list[Kmers], kmers: Kmers, table: KmerTable, directions: Float[Tensor, "rows width"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The most probable taxa of sequences among those of a table: their numbers, and the two scores of each.

        Args:
            inputs: As the projection reads them.
            kmers: Of `likelihood`'s length.
            directions: Those of the table.
        """
        scores = table.scores(kmers)
        logits = self.alone.logits(self.alone.vectors(inputs), directions)[:, : scores.shape[1]]
        by_kmers, by_network = self.weights.to(scores.dtype)
        best = _largest(by_kmers * scores + by_network * logits, min(CANDIDATES, scores.shape[1]))
        return table.first + best, scores.gather(1, best), logits.gather(1, best)


def _largest(values: Float[Tensor, "rows columns"], number: int) -> Int[Tensor, "rows number"]:
    """Where the largest of each row are, in any order. NaN counts as the largest."""
    if values.device.type != "cpu":
        return values.topk(number, sorted=False)[1]
    # NumPy parts a row several times as fast as PyTorch.
    return torch.from_numpy(np.argpartition(values.numpy(), -number, axis=1)[:, -number:])
