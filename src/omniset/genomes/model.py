"""The set transformers that complete genomes: families are the elements, copies and quality come with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset import encoders
from omniset.core.sets import SetBatch
from omniset.genomes.methods import Method, References, principal_directions
from omniset.genomes.noise import NoiseModel, Observed
from omniset.layers import PoolingByMultiheadAttention


class FamilyTokens(nn.Module):
    """The observed families of each genome as a set of vectors: Embedding(family) + Linear(count).

    Args:
        families: Vocabulary size V.
        dim: Width d.
        binary: Count a family once, however many copies there are; else log(1 + copies).
    """

    def __init__(self, families: int, dim: int, binary: bool) -> None:
        super().__init__()
        self.binary = binary
        self.family = nn.Embedding(families, dim)
        self.count = nn.Linear(1, dim)

    def forward(self, counts: Float[Tensor, "genomes families"]) -> SetBatch:
        """(B, N, d), N the largest number of families observed; the order is that of the vocabulary."""
        present = counts > 0
        sizes = present.sum(1)
        width = max(int(sizes.max()), 1) if len(sizes) else 1
        # Positions of the observed families, in order, before those of all others.
        which = torch.sort(present.to(torch.uint8), dim=1, descending=True, stable=True).indices[:, :width]
        multiplicity = (torch.arange(width, device=counts.device) < sizes[:, None]).to(counts)
        copies = counts.gather(1, which)
        copies = (copies > 0).to(counts) if self.binary else copies.log1p()
        tokens = self.family(which) + self.count(copies[..., None])
        return SetBatch(tokens * multiplicity[..., None], multiplicity, validate=False)


def mean_of_present(batch: SetBatch) -> Float[Tensor, "genomes dim"]:
    """Mean over the present elements only: padding counts for nothing, and an empty set gives 0."""
    m = batch.multiplicity[..., None]
    return (batch.elements * m).sum(1) / m.sum(1).clamp(min=1)


class EvidenceModel(Method):
    """Our default: what a set transformer and the nearest references expect, plus what was observed.

        log-odds = neighbours + context + evidence,   evidence = a_v LLR_v

    `neighbours` is a weighted sum of log-odds of the prevalence, of the 15 nearest references and of two attentions
    over the references; the weights are those of the family times those that the genome's own summary asks for.
    `context` comes from the summary alone. In training a genome's own clade is hidden from the references, at a depth
    drawn anew each time, so that the model learns how far references can be trusted.

    Args:
        families: Vocabulary size.
        encoder: In the registry. Elements are families; each carries completeness and contamination.
        sizes: Of the encoder: depth, num_heads, num_inducing.
    """

    trained = True

    def __init__(
        self,
        noise: NoiseModel,
        references: References,
        families: int,
        *,
        encoder: str,
        dim: int,
        encoder_options: dict[str, Any] | None = None,
        decoder_dim: int = 256,
        dropout: float = 0.1,
        **sizes: int,
    ) -> None:
        super().__init__(noise)
        self.references = references
        self.tokens = FamilyTokens(families, dim, binary=False)
        self.quality = nn.Sequential(nn.Linear(5, dim), nn.GELU(), nn.Linear(dim, dim))
        self.encoder = build_encoder(encoder, dim, dropout, sizes | (encoder_options or {}))
        width = (self.encoder.num_outputs + 2) * dim
        self.summary_norm, self.local_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        first, second = nn.Linear(width, decoder_dim), nn.Linear(decoder_dim, decoder_dim)
        self.decoder = nn.Sequential(first, nn.GELU(), nn.Dropout(dropout), second, nn.GELU())
        self.output = nn.Linear(decoder_dim, families)
        self.gate = nn.Linear(width + 2, 4)
        self.log_sharpness = nn.Parameter(torch.tensor([60.0, 180.0]).div(families).log())
        # Deviations from 1, so that weight decay pulls towards the plain sum.
        self.trust = nn.Parameter(torch.zeros(families, 4))
        self.belief = nn.Parameter(torch.zeros(families, 2))
        for layer in (self.output, self.gate):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.register_buffer("start", torch.tensor([0.1, 0.3, 0.3, 0.3]), persistent=False)

    def fit(self, counts: sp.csr_array, rng: np.random.Generator) -> None:
        """Start the families' vectors at the principal directions of the training genomes."""
        _, directions = principal_directions(counts)
        dim = self.tokens.family.embedding_dim
        rank = min(dim, len(directions))
        vectors = rng.normal(0, 0.05, self.tokens.family.weight.shape).astype(np.float32)
        vectors[:, :rank] += 0.5 * directions[:rank].T * np.sqrt(len(vectors))
        with torch.no_grad():
            self.tokens.family.weight.copy_(torch.from_numpy(vectors))

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        return torch.stack(list(self._terms(observed, given).values())).sum(0)

    def terms(self, observed: Observed) -> dict[str, Float[Tensor, "genomes families"]]:
        """What the log-odds are the sum of."""
        return self._terms(*self.noise.settle(observed))

    def _terms(self, observed: Observed, given: Tensor) -> dict[str, Tensor]:
        tokens, quality = self.read(observed, given)
        return self.terms_of(observed, self.summarize(self.tokens(observed.counts), tokens, quality))

    def read(
        self, observed: Observed, given: Float[Tensor, "genomes two"]
    ) -> tuple[SetBatch, Float[Tensor, "genomes dim"]]:
        """What the encoder reads: families, each with the genome's quality added to it; and that quality."""
        size = observed.present.sum(1).to(observed.counts).log1p() - 7  # about 0 for a thousand families
        features = [observed.completeness, 10 * observed.contamination, *given.unbind(1), size]
        quality = self.quality(torch.stack(features, 1))
        tokens = self.tokens(observed.counts)
        marked = (tokens.elements + quality[:, None]) * tokens.multiplicity[..., None]
        return SetBatch(marked, tokens.multiplicity, validate=False), quality

    def summarize(
        self, plain: SetBatch, tokens: SetBatch, quality: Float[Tensor, "genomes dim"]
    ) -> Float[Tensor, "genomes width"]:
        """The set transformer's view of each genome: its summary, the mean of its families, and its quality."""
        summary = self.summary_norm(self.encoder(tokens).summary)
        return torch.cat([summary.flatten(1), self.local_norm(mean_of_present(plain)), quality], 1)

    def terms_of(
        self, observed: Observed, summary: Float[Tensor, "genomes width"]
    ) -> dict[str, Float[Tensor, "genomes families"]]:
        evidence = self.noise.evidence(observed)
        near = self._near(observed, evidence)
        nearest = self.references.corrected_similarity(observed, self.noise).amax(1, keepdim=True)
        gates = self.start + self.gate(torch.cat([summary, nearest, observed.completeness[:, None]], 1))
        seen, unseen = self.belief.unbind(1)
        return {
            "neighbours": torch.einsum("bvj,bj,vj->bv", near, gates, 1 + self.trust),
            "context": self.output(self.decoder(summary)),
            "evidence": (1 + torch.where(observed.present, seen, unseen)) * evidence,
        }

    def _near(self, observed: Observed, evidence: Tensor) -> Float[Tensor, "genomes families four"]:
        prevalence = self.noise.prevalence
        shares = self.references.neighbours(observed, prevalence)[..., None]
        kernels = self.references.kernels(observed, evidence, prevalence, self.log_sharpness.exp())
        return torch.cat([prevalence.expand_as(observed.counts)[..., None], shares, kernels], 2).logit(eps=1e-4)


class SeedModel(Method):
    """The document's set transformer, as it is written there: no evidence, no quality, everything through the pool.

    X = Embedding(family) + Linear(count); local = mean of X; SABs, post-norm; PMA, LN(S + MHA(S, X, X)); then
    Linear-ReLU-Linear on [pooled ; local].

    Args:
        num_outputs: Seeds of the pool.
    """

    trained = True

    def __init__(
        self,
        noise: NoiseModel,
        families: int,
        *,
        encoder: str,
        dim: int,
        num_heads: int,
        encoder_options: dict[str, Any] | None = None,
        num_outputs: int = 1,
        dropout: float = 0.1,
        **sizes: int,
    ) -> None:
        super().__init__(noise)
        self.tokens = FamilyTokens(families, dim, binary=True)
        options = {"num_heads": num_heads, "norm": "post", "num_outputs": num_outputs} | sizes | (encoder_options or {})
        self.encoder = build_encoder(encoder, dim, dropout, options)
        seeds = self.encoder.num_outputs
        if self.encoder.pool is not None and isinstance(self.encoder, encoders.AttentionEncoder):
            # The document's PMA has no feed-forward part.
            self.encoder.pool = PoolingByMultiheadAttention(
                dim, num_heads, seeds, ffn_dim=0, norm="post", dropout=dropout
            )
        self.decoder = nn.Sequential(nn.Linear((seeds + 1) * dim, dim), nn.ReLU(), nn.Linear(dim, families))

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        tokens = self.tokens(observed.counts)
        pooled = self.encoder(tokens).summary.flatten(1)
        return self.decoder(torch.cat([pooled, mean_of_present(tokens)], 1))


def build_encoder(name: str, dim: int, dropout: float, options: dict[str, Any]) -> encoders.Encoder:
    """An encoder of tokens that have its width already."""
    return encoders.build(name, **{"input_dim": dim, "dim": dim, "input_layers": 0, "dropout": dropout} | options)
