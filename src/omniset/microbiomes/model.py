"""What a sequence is by itself: naive Bayes on its k-mers, and a network, each with a score for every taxon; and its
candidates, the taxa that it may be of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from scipy.special import softmax
from torch import Tensor, nn

from omniset.kernels import tiles
from omniset.microbiomes.naive_bayes import TABLE, K, KmerLikelihood, KmerTable, Scores
from omniset.microbiomes.sequences import STRAND
from omniset.runs.files import reserve
from omniset.runs.finite import require_finite_outputs
from omniset.runs.progress import Progress
from omniset.tables.dna import Kmers, kmers_of

Vectors = Float[Tensor, "sequences width"]
CANDIDATES = 64  # taxa of each sequence that a sample chooses among
WEIGHTS = (0.3, 0.3)  # of naive Bayes and of the network, where too little is kept back to learn them


class KmerProjection(nn.Module):
    """Vectors of sequences: sum over k of table_k[k-mers].sum / sqrt(number of k-mers)."""

    def __init__(self, lengths: Sequence[int], width: int) -> None:
        super().__init__()
        self.lengths = tuple(lengths)
        self.tables = nn.ModuleList(nn.EmbeddingBag(4**k, width, mode="sum") for k in lengths)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.05)  # type: ignore[arg-type]

    def read(self, texts: Sequence[str]) -> list[Kmers]:
        """What `forward` takes."""
        return [kmers_of(texts, k) for k in self.lengths]

    def forward(self, inputs: list[Kmers]) -> Vectors:
        total = torch.stack([one.sizes for one in inputs]).sum(0).clamp(min=1)
        summed = torch.stack(
            [table(one.numbers, one.starts) for table, one in zip(self.tables, inputs, strict=True)]
        ).sum(0)
        return summed / total.to(summed.dtype).sqrt()[:, None]


class SequenceNetwork(nn.Module):
    """Each sequence by itself: a scaled cosine between its vector and one of each taxon, in several members. The width
    is divisible by the number of members.

    A member has its own part of the vectors, layer-normalised, and learns for itself; logits are the mean of the
    members', as in Lakshminarayanan et al., "Simple and scalable predictive uncertainty estimation using deep
    ensembles", 2017, but of logits in place of probabilities. The length of the taxa's vectors does not count, only
    their direction.
    """

    def __init__(self, lengths: Sequence[int], width: int, taxa: int, members: int = 1) -> None:
        super().__init__()
        self.projection = KmerProjection(lengths, width)
        # Only their direction counts, but the longer they are the slower Adam turns them.
        self.prototypes = nn.Parameter(F.normalize(torch.randn(taxa, members, width // members), dim=-1))
        self.log_scale = nn.Parameter(torch.full((members,), math.log(16.0)))

    def vectors(self, inputs: list[Kmers]) -> Vectors:
        """Of k-mers, as the projection reads them."""
        members = self.projection(inputs).unflatten(-1, self.prototypes.shape[1:])
        return F.layer_norm(members, members.shape[-1:]).flatten(-2)

    def directions(self, taxa: slice = slice(None)) -> Float[Tensor, "taxa width"]:
        """Of taxa, as `logits` takes them: members' unit vectors times their scales over the number of members."""
        scales = self.log_scale.exp() / len(self.log_scale)
        return (F.normalize(self.prototypes[taxa], dim=-1) * scales[:, None]).flatten(1)

    def logits(self, vectors: Vectors, directions: Float[Tensor, "taxa width"]) -> Scores:
        """Mean over the members of scaled cosines, to some of the taxa."""
        members = vectors.unflatten(-1, self.prototypes.shape[1:])
        return tiles.linear(F.normalize(members, dim=-1).flatten(-2), directions)

    def logits_of_members(self, vectors: Vectors) -> Float[Tensor, "members sequences taxa"]:
        members = F.normalize(vectors.unflatten(-1, self.prototypes.shape[1:]), dim=-1)
        taxa = F.normalize(self.prototypes, dim=-1) * self.log_scale.exp()[:, None]
        return torch.einsum("nmw,tmw->mnt", members, taxa)

    def forward(self, inputs: list[Kmers]) -> Scores:
        return self.logits(self.vectors(inputs), self.directions())


class TaxonNetwork(nn.Module):
    """What a read is by itself: naive Bayes on its k-mers and a network of its sequence."""

    strand: Tensor  # how much each k-mer of `STRAND` bases speaks for the strand of the references
    weights: Tensor  # (2,) of the scores of naive Bayes and of the network's logits in their sum
    profiles: Tensor  # (profiles, taxa) of the habitat, from `profiles=` at fit; none: (0, taxa)

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
        return F.pad(directions, (0, 0, 0, -len(directions) % tiles.ROUND))

    @torch.no_grad()
    def candidates(
        self, inputs: list[Kmers], kmers: Kmers, table: KmerTable, directions: Float[Tensor, "rows width"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The most probable taxa of sequences among those of a table: their numbers, and the two scores of each."""
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


# ---------------------------------------------------------------------- candidates


TOGETHER = 512  # sequences at a time
ARRAYS = (("taxon", "i4"), ("naive_bayes", "f4"), ("network", "f4"))
MOST = 16.0  # log-odds


@dataclass
class Candidates:
    """The taxa that each sequence may be of, by itself."""

    taxon: Int[np.ndarray, "sequences candidates"]  # numbers
    naive_bayes: Float[np.ndarray, "sequences candidates"]  # their scores by it
    network: Float[np.ndarray, "sequences candidates"]  # their logits by the network
    sizes: Float[np.ndarray, " sequences"]  # k-mers of each sequence

    def __len__(self) -> int:
        return len(self.taxon)

    def of(self, some: Int[np.ndarray, " some"]) -> Candidates:
        """Of some sequences."""
        return Candidates(self.taxon[some], self.naive_bayes[some], self.network[some], self.sizes[some])

    def logits(self, weights: Float[np.ndarray, " two"]) -> Float[np.ndarray, "sequences candidates"]:
        """Of each sequence by itself: the weighted sum."""
        return weights[0] * self.naive_bayes.astype(np.float64) + weights[1] * self.network

    def without(self, taxon: Int[np.ndarray, " sequences"]) -> Candidates:
        """As if a taxon of each sequence were not known."""
        own = self.taxon == taxon[:, None]
        naive_bayes, network = (np.where(own, -1e3, values) for values in (self.naive_bayes, self.network))
        return Candidates(self.taxon, naive_bayes, network, self.sizes)

    @property
    def likeness(self) -> Float[np.ndarray, "sequences two"]:
        """How like its nearest taxon each sequence is: mean logarithm of a k-mer's share, and largest logit."""
        return np.stack([self.naive_bayes.max(1) / np.sqrt(np.maximum(self.sizes, 1)), self.network.max(1)], 1)


def candidates_of(
    network: TaxonNetwork, texts: Sequence[str], progress: bool = False, folder: Path | None = None, room: int = TABLE
) -> Candidates:
    """Of sequences, the taxa with the largest logits.

    Args:
        folder: Keep them there in files, mapped into memory; None: in memory.
        room: Entries of the table of k-mers that is in memory at a time: bounds the memory, and changes nothing.

    Raises:
        ValueError: A score that is not finite.
    """
    number, taxa = len(texts), len(network.alone.prototypes)
    shape = (number, min(CANDIDATES, taxa))
    taxon, naive_bayes, logits = (_room(name, kind, shape, folder) for name, kind in ARRAYS)
    made = Candidates(taxon, naive_bayes, logits, np.zeros(number))
    device = network.strand.device
    with Progress("scoring sequences", number * taxa, progress, unit="scores") as bar:
        for table in network.likelihood.tables(room):
            directions = network.directions(table)
            for start in range(0, number, TOGETHER):
                some = list(texts[start : start + TOGETHER])
                kmers = kmers_of(some, K).to(device)
                inputs = [one.to(device) for one in network.alone.projection.read(some)]
                scores = network.candidates(inputs, kmers, table, directions)
                rows = slice(start, start + len(some))
                numbers = [f"number {i + 1}" for i in range(rows.start, rows.stop)]
                require_finite_outputs(scores[1] + scores[2], numbers, "sequence")
                made.sizes[rows] = kmers.sizes.cpu().numpy()
                new = [values.cpu().numpy() for values in scores]
                _keep_best(made, rows, new, network.weights.numpy(force=True), table.first)
                bar.at(table.first * number + (table.last - table.first) * (start + len(some)))
            del table  # before there is room for the next
    return made


def _room(name: str, kind: str, shape: tuple[int, int], folder: Path | None) -> np.ndarray:
    if folder is None or not shape[0]:
        return np.zeros(shape, dtype=kind)
    room = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, shape)
    reserve(folder / f"{name}.npy", room.offset + room.nbytes)
    return room


def _keep_best(made: Candidates, rows: slice, new: list[np.ndarray], weights: np.ndarray, before: int) -> None:
    """Take up new candidates where they are better.

    Args:
        new: Numbers, scores of naive Bayes, logits.
        before: Taxa that were scored before: only so many of the old candidates are some.
    """
    arrays = (made.taxon, made.naive_bayes, made.network)
    width = made.taxon.shape[1]
    old = [array[rows, : min(before, width)] for array in arrays]
    both = [np.concatenate(pair, axis=1) for pair in zip(old, new, strict=True)]
    if both[0].shape[1] > width:
        best = np.argpartition(-(weights[0] * both[1] + weights[1] * both[2]), width - 1, axis=1)[:, :width]
        both = [np.take_along_axis(values, best, axis=1) for values in both]
    for array, values in zip(arrays, both, strict=True):
        array[rows, : values.shape[1]] = values


def most_probable(
    taxon: Int[np.ndarray, "sequences candidates"],
    logits: Float[np.ndarray, "sequences candidates"],
    clade: Int[np.ndarray, "ranks taxa"],
) -> tuple[Int[np.ndarray, " sequences"], Float[np.ndarray, "sequences ranks"]]:
    """The candidate with the largest probability, and the log-odds of its clade at each rank.

    A clade's probability is the sum over its candidates. So is that of all others, for what one clade leaves to 1 is
    lost in rounding where it is sure. Log-odds are within +-16.
    """
    shares = softmax(logits, axis=1)
    best = np.take_along_axis(taxon, shares.argmax(1)[:, None], axis=1)
    odds = []
    for of_rank in clade:
        same = of_rank[taxon] == of_rank[best]
        inside, outside = (np.where(some, shares, 0.0).sum(1) for some in (same, ~same))
        with np.errstate(divide="ignore"):
            odds.append(np.clip(np.log(inside) - np.log(outside), -MOST, MOST))
    return best[:, 0], np.stack(odds, 1)
