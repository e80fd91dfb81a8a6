"""An encoder with a head: what is trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.encoders import Encoder
from omniset.sets import SetBatch, SetCollection


class Standardize(nn.Module):
    """(x - shift) / scale, fitted once on training data and stored with the weights."""

    shift: Float[Tensor, " dim"]
    scale: Float[Tensor, " dim"]

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    def fit(self, x: Float[Tensor, "rows dim"], weights: Float[Tensor, " rows"] | None = None) -> None:
        """Weighted mean and standard deviation per column; constant columns are only shifted."""
        x = x.double()
        w = torch.ones(len(x), dtype=x.dtype) if weights is None else weights.double()
        total = w.sum()
        if total > 0:
            mean = (w[:, None] * x).sum(0) / total
            deviation = ((w[:, None] * (x - mean).square()).sum(0) / total).sqrt()
            self.shift.copy_(mean)
            self.scale.copy_(torch.where(deviation > 1e-6 * mean.abs().clamp(min=1e-30), deviation, 1))

    def forward(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
        return (x - self.shift) / self.scale

    def undo(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
        return x * self.scale + self.shift


class SetNetwork(nn.Module):
    """Standardised features, encoder, and one Linear from the summary to the outputs.

    Outputs are logits, or targets standardised by `targets`.
    """

    def __init__(self, encoder: Encoder, num_targets: int) -> None:
        super().__init__()
        # As its first input layer the encoder standardises shard by shard, whatever source it reads.
        encoder.embed = nn.Sequential(Standardize(encoder.input_dim), encoder.embed)
        self.encoder = encoder
        self.head = nn.Linear(encoder.num_outputs * encoder.dim, num_targets)
        self.targets = Standardize(num_targets)

    def forward(self, source: SetBatch | Iterable[SetBatch], **options: Any) -> Float[Tensor, "sets targets"]:
        return self.head(self.encoder(source, **options).summary.flatten(1))

    def fit_features(self, sets: SetCollection, which: Int[np.ndarray, " chosen"]) -> None:
        """Fit the standardisation of features to these sets, every element counted by its multiplicity."""
        chosen = [sets[i] for i in which.tolist()]
        standardize: Standardize = self.encoder.embed[0]  # type: ignore[index]
        standardize.fit(torch.cat([e for e, _ in chosen]), torch.cat([m for _, m in chosen]))
