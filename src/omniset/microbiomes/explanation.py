"""Which other members of a sample moved the call of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset import explain
from omniset.microbiomes.model import TaxonNetwork
from omniset.sets import SetBatch


@dataclass
class Moved:
    """What moved a call.

    Attributes:
        logits: Of every member, in the sample.
        alone: Of the one that is explained, by itself.
        members: Numbers of those that were taken out, one at a time, without the one that is explained.
        changes: By how much the log-odds of the call (natural logarithm) fall without each of them.
        attribution: Of each, 0 to 1: self-attention attribution, Hao et al., "Self-Attention Attribution: Interpreting
            Information Interactions Inside Transformer", 2021.
    """

    logits: Float[Tensor, "sequences taxa"]
    alone: Float[Tensor, " taxa"]
    members: Int[np.ndarray, " top"]
    changes: Float[np.ndarray, " top"]
    attribution: Float[np.ndarray, " top"]


def moved(network: TaxonNetwork, sample: SetBatch, place: int, top: int, steps: int) -> Moved:
    """Take out those members that the call of the member at `place` depends on most, one at a time.

    Args:
        network: With an encoder.
        sample: One, whole: vectors (1, sequences, width) with their reads.
        top: How many are taken out: those with the largest derivative of the log-odds by their count, times that count.
        steps: Of the attribution's integral.
    """
    with torch.no_grad():
        logits = network(sample)[0]
        alone = network.alone.logits(sample.elements[0, place])
    model = _LogOdds(network, sample.elements[:, place : place + 1], int(logits[place].argmax())).eval()
    attribution = explain.attribute(model, sample, 0, steps)[0].numpy()
    counts = sample.multiplicity.clone().requires_grad_()
    slope = torch.autograd.grad(model(SetBatch(sample.elements, counts)).sum(), counts)[0]
    expected = (slope * sample.multiplicity).abs()[0].numpy()
    expected[place] = -1.0  # itself: what it is without the others is `alone`
    members = np.argsort(-expected, kind="stable")[: min(top, len(expected) - 1)]
    changes = []
    with torch.no_grad():
        whole = float(model(sample)[0, 0])
        for i in members.tolist():
            less = sample.multiplicity.clone()
            less[0, i] = 0
            changes.append(whole - float(model(SetBatch(sample.elements, less))[0, 0]))
    return Moved(logits, alone, members, np.array(changes), attribution[members])


class _LogOdds(nn.Module):
    """Log-odds of one taxon for one sequence, as a function of the sample that it is in, for attribution."""

    def __init__(self, network: TaxonNetwork, vector: Float[Tensor, "1 1 width"], taxon: int) -> None:
        super().__init__()
        self.network, self.vector, self.taxon = network, vector, taxon

    def forward(self, sample: SetBatch, **options: Any) -> Float[Tensor, "1 1"]:
        logits = self.network.in_context(SetBatch(self.vector), self.network.prior(sample, **options))[0]
        own = torch.arange(logits.shape[1]) == self.taxon
        return logits[:, self.taxon : self.taxon + 1] - logits.masked_fill(own, -torch.inf).logsumexp(1, keepdim=True)
