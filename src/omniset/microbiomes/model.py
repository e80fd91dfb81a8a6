"""What a sequence is by itself: naive Bayes on its words, and a network, each with a score for every taxon."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.kernels import products
from omniset.microbiomes.naive_bayes import WordLikelihood, WordTable
from omniset.microbiomes.sequences import STRAND
from omniset.tables.dna import Spectra, spectra

CANDIDATES = 64  # taxa of each sequence that a sample chooses among
WEIGHTS = (0.3, 0.3)  # of naive Bayes and of the network, where too little is kept back to learn them


class SpectrumProjection(nn.Module):
    """Vectors of sequences from their k-mers: sum over k of table_k[words].sum / sqrt(number of words).

    Args:
        words: Lengths k of the words; a table has 4^k rows.
        width: Of the vectors.
    """

    def __init__(self, words: Sequence[int], width: int) -> None:
        super().__init__()
        self.words = tuple(words)
        self.tables = nn.ModuleList(nn.EmbeddingBag(4**k, width, mode="sum") for k in words)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.05)  # type: ignore[arg-type]

    def read(self, texts: Sequence[str]) -> list[Spectra]:
        """What `forward` takes."""
        return [spectra(texts, k) for k in self.words]

    def forward(self, inputs: list[Spectra]) -> Float[Tensor, "sequences width"]:
        total = torch.stack([s.sizes for s in inputs]).sum(0).clamp(min=1)
        summed = torch.stack([t(s.words, s.starts) for t, s in zip(self.tables, inputs, strict=True)]).sum(0)
        return summed / total.to(summed.dtype).sqrt()[:, None]


class SequenceNetwork(nn.Module):
    """Each sequence by itself: a scaled cosine between its vector and one of each taxon, in several members.

    A member has its own part of the vectors, layer-normalised, and learns for itself; logits are the mean of the
    members', as in Lakshminarayanan et al., "Simple and scalable predictive uncertainty estimation using deep
    ensembles", 2017, but of logits in place of probabilities. The length of the taxa's vectors does not count, only
    their direction.

    Args:
        words: Lengths of the k-mers.
        width: Of the vectors; divisible by the number of members.
    """

    def __init__(self, words: Sequence[int], width: int, taxa: int, members: int = 1) -> None:
        super().__init__()
        self.projection = SpectrumProjection(words, width)
        # Only their direction counts, but the longer they are the slower Adam turns them.
        self.prototypes = nn.Parameter(F.normalize(torch.randn(taxa, members, width // members), dim=-1))
        self.log_scale = nn.Parameter(torch.full((members,), math.log(16.0)))

    def vectors(self, inputs: list[Spectra]) -> Float[Tensor, "sequences width"]:
        """Of spectra, as the projection reads them."""
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

    def forward(self, inputs: list[Spectra]) -> Float[Tensor, "sequences taxa"]:
        return self.logits(self.vectors(inputs), self.directions())


class TaxonNetwork(nn.Module):
    """What a read is by itself: naive Bayes on its words and a network of its sequence.

    Args:
        alone: The network.
        likelihood: Naive Bayes.

    Attributes:
        weights: (2,) of the scores of naive Bayes and of the network's logits in their sum.
        profiles: (profiles, taxa) of the habitat, from `profiles=` at fit; none: (0, taxa).
        strand: How much each word of `STRAND` bases speaks for the strand of the references.
    """

    strand: Tensor
    weights: Tensor
    profiles: Tensor

    def __init__(self, alone: SequenceNetwork, likelihood: WordLikelihood, profiles: int = 0) -> None:
        super().__init__()
        self.alone, self.likelihood = alone, likelihood
        self.register_buffer("weights", torch.tensor(WEIGHTS, dtype=torch.float64))
        self.register_buffer("profiles", torch.zeros(profiles, len(alone.prototypes)))
        self.register_buffer("strand", torch.zeros(4**STRAND))

    @torch.no_grad()
    def directions(self, table: WordTable) -> Float[Tensor, "rows width"]:
        """Of the taxa of a table; rows of zeros are added, up to whole tiles of matrix products."""
        directions = self.alone.directions(slice(table.first, table.last))
        return F.pad(directions, (0, 0, 0, -len(directions) % products.ROUND))

    @torch.no_grad()
    def candidates(
        self, inputs: list[Spectra], words: Spectra, table: WordTable, directions: Float[Tensor, "rows width"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The most probable taxa of sequences among those of a table: their numbers, and the two scores of each.

        Args:
            inputs: Spectra, as the projection reads them.
            words: Of `likelihood`'s length.
            directions: Those of the table.
        """
        scores = table.scores(words)
        logits = self.alone.logits(self.alone.vectors(inputs), directions)[:, : scores.shape[1]]
        by_words, by_network = self.weights.to(scores.dtype)
        best = _largest(by_words * scores + by_network * logits, min(CANDIDATES, scores.shape[1]))
        return table.first + best, scores.gather(1, best), logits.gather(1, best)


def _largest(values: Float[Tensor, "rows columns"], number: int) -> Int[Tensor, "rows number"]:
    """Where the largest of each row are, in any order. NaN counts as the largest."""
    if values.device.type != "cpu":
        return values.topk(number, sorted=False)[1]
    # NumPy parts a row several times as fast as PyTorch.
    return torch.from_numpy(np.argpartition(values.numpy(), -number, axis=1)[:, -number:])
