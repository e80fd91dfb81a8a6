"""Summaries of sets, read block by block: they may be larger than memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from omniset.core.sets import Sets
from omniset.report.sets import DataSummary, quantiles

SAMPLE = 1_000_000  # multiplicities, evenly spread, that quantiles are taken of
STEP = 1 << 16  # rows read at a time
VALUES = 1 << 23  # of elements, at most, read at a time
CACHED = 1 << 19  # of them looked at together, in double precision


def summarize(sets: Sets, labels: pd.DataFrame) -> DataSummary:
    """What a report says of the data.

    Args:
        labels: A column per target, missing where there is none.
    """
    total, quantiles = _multiplicities(sets)
    return DataSummary(
        sets=len(sets),
        elements=int(sets.offsets[-1]),
        total_multiplicity=None if quantiles is None else int(total) if total.is_integer() else total,
        sizes=sets.sizes,
        multiplicity_quantiles=quantiles,
        missing={f"no label of {c}": int(n) for c, n in labels.isna().sum().items() if n},
        features=_features(sets),
        targets={str(c): labels[c].dropna().to_numpy() for c in labels},
    )


def _multiplicities(sets: Sets) -> tuple[float, dict[str, float] | None]:
    total, sample = 0.0, []
    stride = -(-int(sets.offsets[-1]) // SAMPLE)
    for _, weights in sets.blocks(STEP):
        counts = weights.double().numpy()
        total += float(counts.sum())
        sample.append(counts[::stride])
    values = np.concatenate(sample)
    return total, None if (values == 1).all() else quantiles(values)


def _features(sets: Sets) -> list[tuple[str, float, float, float, float]]:
    """Mean, standard deviation, least and largest value of each feature over all rows."""
    rows = int(sets.offsets[-1])
    step = min(STEP, max(VALUES // sets.dim, 1))
    shift = next(sets.blocks(step))[0].double().mean(0)  # so that squares do not cancel
    least, largest = torch.full_like(shift, np.inf), torch.full_like(shift, -np.inf)
    first, second = torch.zeros_like(shift), torch.zeros_like(shift)
    for elements, _ in sets.blocks(step):
        for piece in elements.split(max(CACHED // max(sets.dim, 1), 1)):
            least, largest = torch.minimum(least, piece.amin(0)), torch.maximum(largest, piece.amax(0))
            shifted = piece.double().sub_(shift)
            first += shifted.sum(0)
            second += shifted.square_().sum(0)
    mean = first / rows
    deviation = (second / rows - mean.square()).clamp(min=0).sqrt()
    columns = zip(sets.features or [], mean + shift, deviation, least, largest, strict=True)
    return [(name, *(float(v) for v in values)) for name, *values in columns]  # type: ignore[misc]
