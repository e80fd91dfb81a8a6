"""The network: sequences become vectors, a sample of vectors a prior over taxa, and each sequence gets a taxon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from omniset import encoders
from omniset.core.sets import SetBatch
from omniset.tables.dna import Spectra, spectra

STRONGEST = 10.0  # logarithm of the largest weight of the class token's shares
STRAND = 7  # length of the words that tell a strand
NONE = "none"  # in place of an encoder's name: every sequence by itself


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


class VectorProjection(nn.Module):
    """Vectors of sequences from those that another model made: Linear(x).

    Args:
        given: Width of what is given.
    """

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(given, width)

    def forward(self, inputs: Float[Tensor, "sequences given"]) -> Float[Tensor, "sequences width"]:
        return self.linear(inputs)


class SequenceNetwork(nn.Module):
    """Each sequence by itself: a scaled cosine between its vector and one of each taxon, in several members.

    A member has its own part of the vectors, layer-normalised, and learns for itself; logits are the mean of the
    members', as in Lakshminarayanan et al., "Simple and scalable predictive uncertainty estimation using deep
    ensembles", 2017, but of logits in place of probabilities. The length of the taxa's vectors does not count, only
    their direction.

    Args:
        width: Of the vectors; divisible by the number of members.
    """

    def __init__(
        self, projection: SpectrumProjection | VectorProjection, width: int, taxa: int, members: int = 1
    ) -> None:
        super().__init__()
        self.projection = projection
        # Only their direction counts, but the longer they are the slower Adam turns them.
        self.prototypes = nn.Parameter(F.normalize(torch.randn(taxa, members, width // members), dim=-1))
        self.log_scale = nn.Parameter(torch.full((members,), math.log(16.0)))

    def vectors(self, inputs: Any) -> Float[Tensor, "sequences width"]:
        """Of what the projection takes."""
        members = self.projection(inputs).unflatten(-1, self.prototypes.shape[1:])
        return F.layer_norm(members, members.shape[-1:]).flatten(-2)

    def _cosines(self, vectors: Float[Tensor, "*sequences width"], weight: Tensor) -> Float[Tensor, "*sequences taxa"]:
        """Sum over the members, each with a weight."""
        members = vectors.unflatten(-1, self.prototypes.shape[1:])
        taxa = F.normalize(self.prototypes, dim=-1) * weight[:, None]
        return F.normalize(members, dim=-1).flatten(-2) @ taxa.flatten(1).T

    def cosines(self, vectors: Float[Tensor, "*sequences width"]) -> Float[Tensor, "*sequences taxa"]:
        """Mean over the members."""
        return self._cosines(vectors, torch.full_like(self.log_scale, 1 / len(self.log_scale)))

    def logits(self, vectors: Float[Tensor, "*sequences width"]) -> Float[Tensor, "*sequences taxa"]:
        return self._cosines(vectors, self.log_scale.exp() / len(self.log_scale))

    def logits_of_members(self, vectors: Float[Tensor, "sequences width"]) -> Float[Tensor, "members sequences taxa"]:
        members = F.normalize(vectors.unflatten(-1, self.prototypes.shape[1:]), dim=-1)
        taxa = F.normalize(self.prototypes, dim=-1) * self.log_scale.exp()[:, None]
        return torch.einsum("nmw,tmw->mnt", members, taxa)

    def forward(self, inputs: Any) -> Float[Tensor, "sequences taxa"]:
        return self.logits(self.vectors(inputs))


class SampleShares(nn.Module):
    """Shares of the taxa in a sample: rounds of expectation maximisation, with a prior from the sample's class token.

        share_0 = softmax(Linear(token)),  k = exp(Linear(token))
        share_r = (sum_i reads_i softmax(alone_i + log share_(r-1)) / sum_i reads_i + k share_0) / (1 + k)

    The rounds go towards the shares that have the largest posterior under a Dirichlet prior with k reads for each of
    the sample's. At first share_0 is the same for all taxa and k is 1; without k they are the rounds of Saerens et al.,
    "Adjusting the outputs of a classifier to new a priori probabilities", 2002.
    """

    def __init__(self, dim: int, taxa: int, rounds: int = 3) -> None:
        super().__init__()
        self.rounds = rounds
        self.first, self.strength = nn.Linear(dim, taxa), nn.Linear(dim, 1)
        for layer in (self.first, self.strength):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(
        self, token: Float[Tensor, "samples dim"], shards: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[Float[Tensor, "samples taxa"], Float[Tensor, "samples taxa"]]:
        """Logarithms of share_0 and of the shares after the last round.

        Args:
            shards: Reads (samples, sequences) and logits (samples, sequences, taxa); read once in every round.
        """
        first, strength = self.first(token).log_softmax(1), self.strength(token).clamp(max=STRONGEST).exp()
        log_share = first
        for _ in range(self.rounds):
            total, reads = torch.zeros(()), torch.zeros(())
            for counts, logits in shards:
                posterior = (logits + log_share[:, None]).softmax(2)
                total = total.to(log_share) + (counts[..., None] * posterior).sum(1)
                reads = reads.to(log_share) + counts.sum(1)
            tiny = torch.finfo(log_share.dtype).tiny
            share = total / reads.clamp(min=tiny)[:, None]
            log_share = (share + strength * first.exp()).clamp(min=tiny).log() - strength.log1p()
        return first, log_share


@dataclass
class ShardsAlone:
    """What each sequence says by itself, shard by shard: reads and logits, computed whenever it is read."""

    alone: SequenceNetwork
    source: Iterable[SetBatch]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for shard in self.source:
            logits = self.alone.logits(shard.elements)
            yield shard.multiplicity.to(logits.dtype), logits


class TaxonNetwork(nn.Module):
    """Logits of the taxa of each sequence in its sample:

        logits = alone(vector) + prior(sample),  prior = log of the taxa's shares (`SampleShares`)

    with the logits of the sequence by itself (`SequenceNetwork`). Given the shares of a community's taxa, its reads are
    drawn independently of each other: all that a sample can tell of a sequence is a prior over taxa, the same for all
    that are in it, but for the read itself, which is one of those that the shares are found by.

    Args:
        encoder: In the registry, with a class token; or "none": there is no prior.
        **sizes: For the encoder.

    Attributes:
        strand: How much each word of `STRAND` bases speaks for the strand of the references.
    """

    strand: Tensor

    def __init__(self, alone: SequenceNetwork, encoder: str, **sizes: Any) -> None:
        super().__init__()
        self.alone = alone
        taxa, width = len(alone.prototypes), alone.prototypes[0].numel()
        self.encoder: encoders.Encoder | None = None
        self.shares: SampleShares | None = None
        if encoder != NONE:
            self.encoder = encoders.build(encoder, input_dim=width, class_token=True, **sizes)
            self.shares = SampleShares(sizes["dim"], taxa)
        self.register_buffer("strand", torch.zeros(4**STRAND))

    def prior(self, source: SetBatch | Iterable[SetBatch], **options: Any) -> Float[Tensor, "samples taxa"]:
        """What the samples tell, however large; zeros without an encoder. Options: as `Encoder.forward`."""
        return self.priors(source, **options)[1]

    def priors(
        self, source: SetBatch | Iterable[SetBatch], **options: Any
    ) -> tuple[Float[Tensor, "samples taxa"], Float[Tensor, "samples taxa"]]:
        """What the class tokens tell of the samples, and what that and the sequences tell."""
        batches = [source] if isinstance(source, SetBatch) else source
        if self.encoder is None or self.shares is None:
            nothing = self.alone.prototypes.new_zeros(len(next(iter(batches))), len(self.alone.prototypes))
            return nothing, nothing
        shards = ShardsAlone(self.alone, batches)
        # Of a batch the logits are kept from round to round; of shards there is room for one at a time.
        passes = [*shards] if isinstance(source, SetBatch) else shards
        return self.shares(self.encoder(source, **options).summary[:, 0], passes)

    def in_context(
        self, batch: SetBatch, prior: Float[Tensor, "samples taxa"]
    ) -> Float[Tensor, "samples sequences taxa"]:
        """Logits of sequences, a shard of the samples or others, in samples with this prior."""
        return self.alone.logits(batch.elements) + prior[:, None]

    def forward(self, batch: SetBatch, **options: Any) -> Float[Tensor, "samples sequences taxa"]:
        return self.in_context(batch, self.prior(batch, **options))
