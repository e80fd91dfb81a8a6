"""Confidences that are right as often as they say, fitted on samples of validation sequences."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from omniset.core.sets import SetBatch
from omniset.microbiomes.calls import Confidence, most_probable
from omniset.microbiomes.model import TaxonNetwork
from omniset.microbiomes.taxonomy import Taxa
from omniset.microbiomes.training import SampleBatches

SAMPLES = 48
FIRST = 1 << 20  # their number: none that training is watched by
FOREIGN = 0.1  # share of what is not known that is of no taxon at all


@torch.no_grad()
def calibrated(
    network: TaxonNetwork,
    taxa: Taxa,
    samples: SampleBatches,
    foreign: Float[Tensor, "sequences width"],
    novel: float,
) -> Confidence:
    """Confidences fitted on validation sequences in samples, once as they are, and once as if their own taxon were not
    known; and on sequences that are nothing's, for which no clade is right.

    Args:
        network: On the CPU, as all else.
        taxa: Those that it knows.
        samples: Of validation sequences.
        foreign: Vectors of sequences that are nothing's.
        novel: Share of reads taken to be of taxa without references.
    """
    clade = torch.from_numpy(taxa.clade)
    cases: list[list[np.ndarray]] = []

    def add(logits: Tensor, cosines: Tensor, right: Tensor, weight: Tensor) -> None:
        odds = most_probable(logits, clade)[1]
        cases.append([x.double().numpy() for x in (odds, cosines.amax(1), right, weight)])

    for number in range(-(-SAMPLES // samples.batch_size)):
        batch = samples[number + FIRST]
        prior = network.prior(batch.sets)
        logits = network.in_context(batch.sets, prior)
        there = batch.sets.multiplicity > 0
        taxon, reads = batch.taxon[there], batch.sets.multiplicity[there]
        ours, cosines = logits[there], network.alone.cosines(batch.sets.elements[there])
        itself = one_hot(taxon, len(taxa)).bool()
        right = clade[:, ours.argmax(1)] == clade[:, taxon]
        add(ours, cosines, right.T, (1 - novel) * reads)
        ours, cosines = ours.masked_fill(itself, -torch.inf), cosines.masked_fill(itself, -1.0)
        right = clade[:, ours.argmax(1)] == clade[:, taxon]
        add(ours, cosines, right.T, (1 - FOREIGN) * novel * reads)
        some = SetBatch(foreign[None].expand(len(batch.sets), -1, -1))
        ours = network.in_context(some, prior).flatten(0, 1)
        weight = torch.full((len(ours),), FOREIGN * novel * float(reads.sum()) / len(ours))
        add(ours, network.alone.cosines(some.elements).flatten(0, 1), torch.zeros(len(ours), len(clade)), weight)
    odds, similar, right_, weight_ = (np.concatenate(parts) for parts in zip(*cases, strict=True))
    return Confidence.fit(odds, similar, right_, weight_)
