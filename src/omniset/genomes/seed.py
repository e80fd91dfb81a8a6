"""The architecture "seed": the set transformer of the system's document, as it is written there."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from omniset import encoders
from omniset.core.sets import SetBatch
from omniset.genomes.baselines import Method
from omniset.genomes.noise import NoiseModel, Observed
from omniset.layers import PoolingByMultiheadAttention

DROPOUT = 0.1


class SeedModel(Method):
    """No evidence, no quality, everything through the pool: X = Embedding(family) + Linear(count); local = mean of X;
    SABs, post-norm; PMA, LN(S + MHA(S, X, X)); then Linear-ReLU-Linear on [pooled ; local].
    """

    trained = True

    def __init__(self, noise: NoiseModel, families: int, dim: int = 64, num_heads: int = 4, seeds: int = 1) -> None:
        super().__init__(noise)
        self.tokens = FamilyTokens(families, dim)
        sizes: dict[str, Any] = {"input_dim": dim, "dim": dim, "depth": 2, "num_heads": num_heads}
        sizes |= {"num_outputs": seeds, "input_layers": 0}
        self.encoder = encoders.build("set-transformer-sab", **sizes, dropout=DROPOUT, norm="post")
        assert isinstance(self.encoder, encoders.AttentionEncoder)
        # The document's PMA has no feed-forward part.
        self.encoder.pool = PoolingByMultiheadAttention(dim, num_heads, seeds, ffn_dim=0, norm="post", dropout=DROPOUT)
        self.decoder = nn.Sequential(nn.Linear((seeds + 1) * dim, dim), nn.ReLU(), nn.Linear(dim, families))

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        tokens = self.tokens(observed.counts)
        pooled = self.encoder(tokens).summary.flatten(1)
        return self.decoder(torch.cat([pooled, mean_of_present(tokens)], 1))


class FamilyTokens(nn.Module):
    """The observed families of each genome as a set of vectors: Embedding(family) + Linear(count)."""

    def __init__(self, families: int, dim: int) -> None:
        super().__init__()
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
        once = (counts.gather(1, which) > 0).to(counts)  # a family counts once, however many copies there are
        tokens = self.family(which) + self.count(once[..., None])
        return SetBatch(tokens * multiplicity[..., None], multiplicity, validate=False)


def mean_of_present(batch: SetBatch) -> Float[Tensor, "genomes dim"]:
    """Mean over the present elements only: padding counts for nothing, and an empty set gives 0."""
    m = batch.multiplicity[..., None]
    return (batch.elements * m).sum(1) / m.sum(1).clamp(min=1)
