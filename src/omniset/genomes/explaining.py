"""Why a family is called present, or absent, in a genome: terms of the log-odds, other families, near references."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from omniset.core.sets import SetBatch
from omniset.explain import attends, attribute
from omniset.genomes.methods import SURE
from omniset.genomes.model import Context, EvidenceModel
from omniset.genomes.noise import Observed

NEAREST = 15  # references that are listed


@dataclass
class Explanation:
    """Why a family was called present, or absent, in a genome.

    Attributes:
        log_odds: Of the family.
        terms: What they are the sum of: neighbours, likeliest, components, context, evidence, shift.
        families: A row per observed family: `family`, `count`, `change` (log-odds now minus those without it, its
            count set to 0 and all else as it is) and `attribution` (0 to 1, self-attention attribution).
        references: The nearest reference genomes: `genome`, `similarity`, `has_family`, lineage.
    """

    genome: str
    family: str
    observed: bool
    log_odds: float
    terms: dict[str, float]
    families: pd.DataFrame
    references: pd.DataFrame

    @property
    def probability(self) -> float:
        return float(1 / (1 + np.exp(-self.log_odds)))


def explain(
    model: EvidenceModel,
    genome: str,
    observed: Observed,
    family: int,
    families: list[str],
    references: pd.DataFrame,
    *,
    at_a_time: int,
    steps: int,
) -> Explanation:
    """Leave out every observed family in turn, and attribute attention.

    Args:
        observed: Of the genome alone, with at least one family.
        family: Position in `families`, the vocabulary.
        references: Names and lineages of the model's reference genomes.
        at_a_time: Genomes without one of the families that are completed together.
        steps: Of the attribution's integral.
    """
    present = observed.present[0].nonzero()[:, 0]
    with torch.no_grad():
        settled, given = model.noise.settle(observed)
        terms = {name: float(values[0, family]) for name, values in model.terms(observed).items()}
        similar = model.references.corrected_similarity(settled, model.noise)[0]
    log_odds = sum(terms.values())
    rows = pd.DataFrame(
        {
            "family": [families[i] for i in present.tolist()],
            "count": observed.counts[0, present].long().numpy(),
            "change": log_odds - _without(model, settled, given, present, family, at_a_time),
            "attribution": _attribution(model, settled, given, family, steps),
        }
    )
    order = similar.argsort(descending=True)[:NEAREST]
    near = references.iloc[order.numpy()].reset_index(drop=True)
    near.insert(1, "similarity", similar[order].numpy())
    near.insert(2, "has_family", 2 * model.references.presence[order, family].numpy().astype(np.int64) > SURE)
    rows = rows.sort_values("change", key=np.abs, ascending=False, ignore_index=True)
    return Explanation(genome, families[family], bool(observed.present[0, family]), log_odds, terms, rows, near)


@torch.no_grad()
def _without(
    model: EvidenceModel, settled: Observed, given: Tensor, present: Int[Tensor, " observed"], family: int, number: int
) -> Float[np.ndarray, " observed"]:
    """Log-odds of the family without each observed one, its count set to 0 and all else as it is."""
    parts = []
    for some in present.split(number):
        counts = settled.counts.repeat(len(some), 1)
        counts[torch.arange(len(some)), some] = 0
        quality = settled.completeness.expand(len(some)), settled.contamination.expand(len(some))
        parts.append(model.log_odds(Observed(counts, *quality), given.expand(len(some), 2))[:, family])
    return torch.cat(parts).numpy()


def _attribution(
    model: EvidenceModel, settled: Observed, given: Tensor, family: int, steps: int
) -> Float[np.ndarray, " observed"]:
    """NaN where the encoder has no attention."""
    context = model.contexts[0]
    assert isinstance(context, Context)
    if context.encoder is None or not attends(context.encoder):
        return np.full(int(settled.present.sum()), np.nan)
    with torch.no_grad():
        tokens = context.read(settled, given)
    reader = _Reader(model, settled, given).eval()
    return attribute(reader, tokens, family, steps)[0].numpy()


class _Reader(nn.Module):
    """The model as a function of its encoder's tokens alone, for attribution."""

    def __init__(self, model: EvidenceModel, observed: Observed, given: Tensor) -> None:
        super().__init__()
        self.model, self.observed, self.given = model, observed, given

    def forward(self, tokens: SetBatch) -> Float[Tensor, "genomes families"]:
        return torch.stack(list(self.model.terms_of(self.observed, self.given, tokens).values())).sum(0)
