"""The network: sequences become vectors, vectors see the sample that they are in, and each gets a taxon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
    """Each sequence by itself: a scaled cosine between its vector and one of each taxon.

    The taxa's vectors are as long as their number of features asks for; only their direction counts.
    """

    def __init__(self, projection: SpectrumProjection | VectorProjection, width: int, taxa: int) -> None:
        super().__init__()
        self.projection = projection
        self.prototypes = nn.Parameter(torch.randn(taxa, width) / math.sqrt(width))
        self.log_scale = nn.Parameter(torch.tensor(math.log(16.0)))

    def cosines(self, vectors: Float[Tensor, "*sequences width"]) -> Float[Tensor, "*sequences taxa"]:
        return F.normalize(vectors, dim=-1) @ F.normalize(self.prototypes, dim=-1).T

    def logits(self, vectors: Float[Tensor, "*sequences width"]) -> Float[Tensor, "*sequences taxa"]:
        return self.log_scale.exp() * self.cosines(vectors)

    def forward(self, found: Any) -> Float[Tensor, "sequences taxa"]:
        return self.logits(self.projection(found))


class RowwiseBlock(nn.Module):
    """What is left of an attention block without attention: x + Linear(ReLU(Linear(LayerNorm(x))))."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
        return x + self.layers(x)


class TaxonNetwork(nn.Module):
    """Logits of the taxa of each sequence in its sample:

        logits = alone(vector) + head(element in its context) + prior(class token)

    with the logits of the sequence by itself (`SequenceNetwork`); what is added starts at 0. The class token has seen
    the whole sample: its part is the same for all sequences, as a prior over taxa is in Bayes' rule. With
    `literal=True` logits = head(element) alone, the network of the Universal Set Transformer paper (Table A.10).

    Args:
        encoder: In the registry, of those with outputs for elements; or "none", the same depth of row-wise blocks: no
            sequence sees another, nor is there a prior.
        **sizes: For the encoder.
    """

    def __init__(
        self,
        alone: SequenceNetwork,
        encoder: str,
        literal: bool = False,
        **sizes: Any,
    ) -> None:
        super().__init__()
        self.alone, self.literal = alone, literal
        taxa, width = alone.prototypes.shape
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
        if not literal:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
        self.prior: nn.Linear | None = None
        if not literal and encoder != NONE:
            self.prior = nn.Linear(dim, taxa)
            nn.init.zeros_(self.prior.weight)
            nn.init.zeros_(self.prior.bias)

    def encode(self, source: SetBatch | Iterable[SetBatch], **options: Any) -> EncoderOutput | None:
        """What the samples are, however large; None without context. Options: as `Encoder.forward`."""
        return self.encoder(source, **options) if isinstance(self.encoder, encoders.Encoder) else None

    def of_elements(
        self,
        vectors: Float[Tensor, "samples sequences width"],
        elements: Float[Tensor, "samples sequences dim"],
        summary: Float[Tensor, "samples tokens dim"] | None,
    ) -> Float[Tensor, "samples sequences taxa"]:
        """Logits from what the encoder made of the sequences and of the sample."""
        found = self.head(elements)
        if not self.literal:
            found = found + self.alone.logits(vectors)
        if self.prior is not None and summary is not None:
            found = found + self.prior(summary[:, :1])
        return found

    def in_context(self, batch: SetBatch, encoded: EncoderOutput | None) -> Float[Tensor, "samples sequences taxa"]:
        """Logits of sequences, a shard of the samples or others, in the context of samples that were encoded."""
        if encoded is None or encoded.contexts is None:
            return self.of_elements(batch.elements, self.encoder(batch.elements), None)
        assert isinstance(self.encoder, encoders.Encoder)
        elements = self.encoder.contextualize(batch, encoded.contexts)
        return self.of_elements(batch.elements, elements, encoded.summary)

    def forward(self, batch: SetBatch, **options: Any) -> Float[Tensor, "samples sequences taxa"]:
        out = self.encode(batch, **options)
        if out is None:
            return self.of_elements(batch.elements, self.encoder(batch.elements), None)
        assert isinstance(out.elements, Tensor)
        return self.of_elements(batch.elements, out.elements, out.summary)
