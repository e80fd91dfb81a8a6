"""The network: sequences become vectors, vectors see the sample that they are in, and each gets a taxon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from omniset import encoders
from omniset.engine import EncoderOutput
from omniset.microbiomes.spectra import Spectra, spectra
from omniset.sets import SetBatch

NONE = "none"  # in place of an encoder's name: every sequence by itself


class SpectrumProjection(nn.Module):
    """Vectors of sequences from their k-mers: LayerNorm(sum over k of table_k[words].sum / sqrt(number of words)).

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
        self.norm = nn.LayerNorm(width)

    def read(self, texts: Sequence[str]) -> list[Spectra]:
        """What `forward` takes."""
        return [spectra(texts, k) for k in self.words]

    def forward(self, found: list[Spectra]) -> Float[Tensor, "sequences width"]:
        total = torch.stack([s.sizes for s in found]).sum(0).clamp(min=1)
        summed = torch.stack([t(s.words, s.starts) for t, s in zip(self.tables, found, strict=True)]).sum(0)
        return self.norm(summed / total.to(summed.dtype).sqrt()[:, None])


class VectorProjection(nn.Module):
    """Vectors of sequences from those that another model made: LayerNorm(Linear(x)).

    Args:
        given: Width of what is given.
    """

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(given, width), nn.LayerNorm(width)

    def forward(self, found: Float[Tensor, "sequences given"]) -> Float[Tensor, "sequences width"]:
        return self.norm(self.linear(found))


class SequenceNetwork(nn.Module):
    """Each sequence by itself: a scaled cosine between its vector and one of each taxon, in several members.

    A member sees its own part of the vectors and learns for itself; logits are the mean of the members', as in
    Lakshminarayanan et al., "Simple and scalable predictive uncertainty estimation using deep ensembles", 2017, but
    of logits in place of probabilities. The length of the taxa's vectors does not count, only their direction.

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

    def forward(self, found: Any) -> Float[Tensor, "sequences taxa"]:
        return self.logits(self.projection(found))


class RowwiseBlock(nn.Module):
    """What is left of an attention block without attention: x + Linear(ReLU(Linear(LayerNorm(x))))."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
        return x + self.layers(x)


class SampleShares(nn.Module):
    """What a sample says of its taxa: unrolled expectation maximisation of their shares.

    From prior = 0, in each round k

        share_t = sum_i reads_i softmax(alone_i + prior)_t / sum_i reads_i
        prior_t = weight_k log(share_t + floor / taxa)

    with learned weights, which start at 0, and a learned floor. With weights of 1 and no floor these are the rounds by
    which Saerens et al., "Adjusting the outputs of a classifier to new a priori probabilities", 2002, find the shares.
    """

    def __init__(self, rounds: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rounds))
        self.log_floor = nn.Parameter(torch.tensor(math.log(0.1)))

    def forward(self, alone: SequenceNetwork, shards: Iterable[SetBatch]) -> Float[Tensor, "samples taxa"]:
        taxa = len(alone.prototypes)
        prior: Tensor | None = None
        for weight in self.weight:
            total, reads = torch.zeros(()), torch.zeros(())
            for shard in shards:
                logits = alone.logits(shard.elements)
                shares = (logits if prior is None else logits + prior[:, None]).softmax(2)
                counts = shard.multiplicity.to(shares.dtype)
                total = total.to(shares) + (counts[..., None] * shares).sum(1)
                reads = reads.to(shares) + counts.sum(1)
            share = total / reads.clamp(min=torch.finfo(total.dtype).tiny)[:, None]
            prior = weight * (share + self.log_floor.exp() / taxa).log()
        assert prior is not None
        return prior


@dataclass
class Encoded:
    """What the network knows of samples.

    Attributes:
        contexts: As `EncoderOutput.contexts`.
        prior: (samples, taxa) added to the logits of all sequences of a sample; None: nothing.
    """

    contexts: list[Any] | None
    prior: Float[Tensor, "samples taxa"] | None


class TaxonNetwork(nn.Module):
    """Logits of the taxa of each sequence in its sample:

        logits = alone(vector) + head(element in its context) + prior(class token) + shares(sample)

    with the logits of the sequence by itself (`SequenceNetwork`); what is added starts at 0. The class token has seen
    the whole sample; its part and that of `SampleShares` are the same for all sequences, as a prior over taxa is in
    Bayes' rule.

    Args:
        encoder: In the registry, of those with outputs for elements; or "none", the same depth of row-wise blocks: no
            sequence sees another, nor is there a prior.
        **sizes: For the encoder.
    """

    def __init__(
        self,
        alone: SequenceNetwork,
        encoder: str,
        **sizes: Any,
    ) -> None:
        super().__init__()
        self.alone = alone
        taxa, width = len(alone.prototypes), alone.prototypes[0].numel()
        dim = sizes["dim"]
        self.encoder: nn.Module
        if encoder == NONE:
            blocks = [RowwiseBlock(dim) for _ in range(2 * sizes["depth"])]
            self.encoder = nn.Sequential(nn.Linear(width, dim), *blocks)
        else:
            self.encoder = encoders.build(encoder, input_dim=width, class_token=True, **sizes)
            if not self.encoder.outputs_elements:
                raise ValueError(f"encoder must have outputs for elements, {encoder!r} has none")
        self.head = nn.Linear(dim, taxa)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.prior: nn.Linear | None = None
        self.shares: SampleShares | None = None
        if encoder != NONE:
            self.prior, self.shares = nn.Linear(dim, taxa), SampleShares()
            nn.init.zeros_(self.prior.weight)
            nn.init.zeros_(self.prior.bias)

    def encode(self, source: SetBatch | Iterable[SetBatch], **options: Any) -> Encoded:
        """What the samples are, however large. Options: as `Encoder.forward`."""
        return self._encode(source, options)[0]

    def _encode(
        self, source: SetBatch | Iterable[SetBatch], options: dict[str, Any]
    ) -> tuple[Encoded, EncoderOutput | None]:
        if not isinstance(self.encoder, encoders.Encoder):
            return Encoded(None, None), None
        out = self.encoder(source, **options)
        prior: Tensor | None = None
        if self.prior is not None and self.shares is not None:
            shards = [source] if isinstance(source, SetBatch) else source
            prior = self.prior(out.summary[:, 0]) + self.shares(self.alone, shards)
        return Encoded(out.contexts, prior), out

    def _logits(
        self, vectors: Float[Tensor, "samples sequences width"], elements: Tensor, encoded: Encoded
    ) -> Float[Tensor, "samples sequences taxa"]:
        found = self.head(elements) + self.alone.logits(vectors)
        return found if encoded.prior is None else found + encoded.prior[:, None]

    def in_context(self, batch: SetBatch, encoded: Encoded) -> Float[Tensor, "samples sequences taxa"]:
        """Logits of sequences, a shard of the samples or others, in the context of samples that were encoded."""
        if encoded.contexts is None:
            return self._logits(batch.elements, self.encoder(batch.elements), encoded)
        assert isinstance(self.encoder, encoders.Encoder)
        return self._logits(batch.elements, self.encoder.contextualize(batch, encoded.contexts), encoded)

    def forward(self, batch: SetBatch, **options: Any) -> Float[Tensor, "samples sequences taxa"]:
        encoded, out = self._encode(batch, options)
        elements = self.encoder(batch.elements) if out is None else out.elements
        assert isinstance(elements, Tensor)
        return self._logits(batch.elements, elements, encoded)
