"""Which other members of a sample moved the call of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset import explain
from omniset.core.sets import SetBatch
from omniset.microbiomes.model import TaxonNetwork
from omniset.microbiomes.samples import Samples
from omniset.microbiomes.taxonomy import Taxa


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


def place_of(samples: Samples, feature: str, sample: str | None) -> tuple[int, int]:
    """Number of a sample, by default the one with most reads of the feature, and of the feature.

    Raises:
        ValueError: One that is not there, or a feature without reads in the sample.
    """
    if feature not in samples.features:
        raise ValueError(f"feature {feature!r} is not in the table, whose features are such as {samples.features[0]!r}")
    column = samples.features.index(feature)
    reads = samples.counts[:, [column]].toarray()[:, 0]
    if sample is not None and sample not in samples.names:
        raise ValueError(f"sample {sample!r} is not in the table, whose samples are such as {samples.names[0]!r}")
    row = int(reads.argmax()) if sample is None else samples.names.index(sample)
    if not reads[row]:
        raise ValueError(f"feature {feature!r} has no reads in sample {samples.names[row]!r}")
    return row, column


def members_of(samples: Samples, row: int) -> tuple[Int[np.ndarray, " members"], Float[np.ndarray, " members"]]:
    """Numbers of the features that have reads in a sample, and their reads."""
    counts = samples.counts[[row]].tocsr()
    present = counts.data > 0
    return counts.indices[present], counts.data[present]


def explained(
    network: TaxonNetwork, sample: SetBatch, features: Sequence[str], place: int, taxa: Taxa, top: int, steps: int
) -> pd.DataFrame:
    """`moved` as a table, with names; its `attrs` have the call, and its probability in the sample and alone.

    Args:
        features: Names of the sample's members.
    """
    outcome = moved(network, sample, place, top, steps)
    names = np.array(["; ".join(lineage) for lineage in taxa.lineages], dtype=object)
    table = pd.DataFrame(
        {
            "Feature ID": np.array(features, dtype=object)[outcome.members],
            "count": sample.multiplicity[0].numpy()[outcome.members],
            "Taxon": names[outcome.logits.argmax(1)[outcome.members]],
            "change": outcome.changes,
            "attribution": outcome.attribution,
        }
    ).sort_values("change", key=np.abs, ascending=False, ignore_index=True)
    together, alone = outcome.logits[place].softmax(0), outcome.alone.softmax(0)
    table.attrs = {
        "feature": features[place],
        "taxon": names[int(together.argmax())],
        "probability": float(together.max()),
        "alone": float(alone[int(together.argmax())]),
        "taxon_alone": names[int(alone.argmax())],
    }
    return table


class _LogOdds(nn.Module):
    """Log-odds of one taxon for one sequence, as a function of the sample that it is in, for attribution."""

    def __init__(self, network: TaxonNetwork, vector: Float[Tensor, "1 1 width"], taxon: int) -> None:
        super().__init__()
        self.network, self.vector, self.taxon = network, vector, taxon

    def forward(self, sample: SetBatch, **options: Any) -> Float[Tensor, "1 1"]:
        logits = self.network.in_context(SetBatch(self.vector), self.network.prior(sample, **options))[0]
        chosen = torch.arange(logits.shape[1]) == self.taxon
        return logits[:, self.taxon : self.taxon + 1] - logits.masked_fill(chosen, -torch.inf).logsumexp(
            1, keepdim=True
        )
